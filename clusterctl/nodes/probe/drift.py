"""What differs from the records, and which alerts fire."""

import base64
import json
import platform
import ssl
import sys
import types
import urllib.error
import urllib.request
import zlib

from clusterctl.nodes.probe.common import MAX_ALERTS, MAX_DRIFT, NETWORK_SECONDS, Facts


def drift(options: Facts) -> Facts:
    """Compare the node with its records, by the source of the modules that record them.

    `modules` has the packed source by name, each after its imports; `key` is the key of the secrets' hashes, or None.
    """
    found: Facts = {"error": None, "items": [], "more": 0, "versions": {}}
    package = "ansible.module_utils.node_state"
    try:
        for name in ("ansible", "ansible.module_utils", package):
            sys.modules[name] = types.ModuleType(name)
        for name, source in options["modules"].items():
            module = types.ModuleType(package + "." + name)
            sys.modules[module.__name__] = module
            code = compile(zlib.decompress(base64.b64decode(source)), name + ".py", "exec")
            exec(code, module.__dict__)  # noqa: S102 - clusterctl's own source
        record, packages, differ = (sys.modules[package + "." + name] for name in ("record", "packages", "drift"))
        call = record.Call(None, record_key=options["key"])
        items, found["versions"] = differ.compare(call, lambda: packages.package_manager("auto", []))
        found["items"], found["more"] = items[:MAX_DRIFT], max(0, len(items) - MAX_DRIFT)
    except SyntaxError:
        found["error"] = "its Python is %s, expected 3.8 or newer" % platform.python_version()
    except Exception as error:
        found["error"] = str(error) or type(error).__name__
    return found


def alerts(options: Facts) -> Facts:
    """Return the firing alerts of the Prometheus at `url`, the most severe first; `password_file` has the password.

    The password is sent only to a server whose certificate is from the CA in the file `authority`.
    """
    found: Facts = {"error": None, "firing": [], "more": 0}
    try:
        with open(options["password_file"]) as file:
            login = "%s:%s" % (options["user"], file.read(1024).strip())
        header = {"Authorization": "Basic " + base64.b64encode(login.encode()).decode()}
        request = urllib.request.Request(options["url"] + "/api/v1/alerts", headers=header)  # noqa: S310
        trusted = urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=options["authority"]))
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), trusted)
        with opener.open(request, timeout=NETWORK_SECONDS) as answer:
            listed = json.loads(answer.read(16 << 20).decode("utf-8", "replace"))["data"]["alerts"]
        # Severity `none` is that of a watchdog, which always fires.
        firing = [one for one in listed if one.get("state") == "firing" and one["labels"].get("severity") != "none"]
        order = {"critical": 0, "warning": 1}
        firing.sort(key=lambda one: (order.get(one["labels"].get("severity"), 2), one["labels"].get("alertname", "")))
        for one in firing[:MAX_ALERTS]:
            labels = one["labels"]
            alert = {"name": labels.get("alertname", "?"), "severity": labels.get("severity", "none")}
            alert["node"] = labels.get("node") or labels.get("instance", "")
            alert.update(since=one.get("activeAt", ""), summary=one.get("annotations", {}).get("summary", ""))
            found["firing"].append(alert)
        found["more"] = max(0, len(firing) - MAX_ALERTS)
    except urllib.error.HTTPError as error:
        found["error"] = "Prometheus returned HTTP %d %s" % (error.code, error.reason)
    except urllib.error.URLError as error:
        found["error"] = "Prometheus does not answer: %s" % error.reason
    except FileNotFoundError:
        found["error"] = "Prometheus is not set up yet"
    except Exception as error:
        found["error"] = "Prometheus's answer cannot be read (%s)" % type(error).__name__
    return found
