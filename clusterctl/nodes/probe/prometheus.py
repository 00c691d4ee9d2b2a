"""What Prometheus on this node has: firing alerts, and sums of metrics."""

import base64
import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Dict, Optional, Set, Tuple

from clusterctl.nodes.probe.common import MARK, MAX_ALERTS, MAX_SERIES, MAX_TARGETS, NETWORK_SECONDS, Facts

QUERY_SECONDS = 60


def ask_prometheus(access: Facts, path: str, form: Optional[Dict[str, str]] = None, limit: int = 16 << 20) -> Any:
    """Return the data of Prometheus's answer at a path; a form is sent by POST.

    `access` has its `url`, the `user`, the path of `password_file` and of the certificate `authority`. The password is
    sent only to a server whose certificate is from that CA.
    """
    with open(access["password_file"]) as file:
        login = "%s:%s" % (access["user"], file.read(1024).strip())
    header = {"Authorization": "Basic " + base64.b64encode(login.encode()).decode()}
    body = urllib.parse.urlencode(form).encode() if form else None
    request = urllib.request.Request(access["url"] + path, body, header)  # noqa: S310
    trusted = urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=access["authority"]))
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), trusted)
    with opener.open(request, timeout=QUERY_SECONDS if form else NETWORK_SECONDS) as answer:
        # Debian 12's Prometheus sometimes sends a second document after the requested one.
        document, _ = json.JSONDecoder().raw_decode(answer.read(limit).decode("utf-8", "replace"))
        return document["data"]


def prometheus_problem(error: Exception) -> str:
    """Return why Prometheus gave no valid answer."""
    if isinstance(error, urllib.error.HTTPError):
        return "Prometheus returned HTTP %d %s" % (error.code, error.reason)
    if isinstance(error, urllib.error.URLError):
        return "Prometheus does not answer: %s" % error.reason
    if isinstance(error, FileNotFoundError):
        return "Prometheus is not set up yet"
    return "Prometheus's answer cannot be read (%s)" % type(error).__name__


def alerts(access: Facts) -> Facts:
    """Return the firing alerts, the most severe first."""
    found: Facts = {"error": None, "firing": [], "more": 0}
    try:
        listed = ask_prometheus(access, "/api/v1/alerts")["alerts"]
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
    except Exception as error:
        found["error"] = prometheus_problem(error)
    return found


def targets(access: Facts) -> Optional[Dict[str, bool]]:
    """Return for each name of a target whether all of its exporters are up; None without a valid answer.

    The targets of one job and name are of one exporter, such as all pages that the blackbox exporter asks on a host. It
    is up if Prometheus has reached one of them, and has not yet asked for the others, which takes up to a minute.
    """
    jobs: Dict[Tuple[str, str], Set[str]] = {}
    try:
        for one in ask_prometheus(access, "/api/v1/targets?state=active")["activeTargets"]:
            labels = one["labels"]
            key = (str(labels.get("instance", "?")), str(labels.get("job", "?")))
            jobs.setdefault(key, set()).add(str(one.get("health")))
    except Exception:
        return None
    found: Dict[str, bool] = {}
    for (name, _), health in jobs.items():
        found[name] = found.get(name, True) and "up" in health and health <= {"up", "unknown"}
    return found if len(found) <= MAX_TARGETS else None


def measure(options: Facts) -> Facts:
    """Evaluate queries at regular times, and return the sum and the number of the values of each series.

    `access` is for `ask_prometheus`. `queries` has expressions by name, whose series have at most one label. Each of
    the `parts` of the time, which are pairs of begin and end, gets its own sums. `step` is the time between two values.
    The answer has, by query and by the label's value, the sum and the number of each part.
    """
    found: Facts = {"error": None, "series": {name: {} for name in options["queries"]}}
    try:
        for name, expression in options["queries"].items():
            sums = found["series"][name]
            for index, (begin, end) in enumerate(options["parts"]):
                form = {"query": expression, "start": str(begin), "end": str(end - 1), "step": str(options["step"])}
                for series in ask_prometheus(options["access"], "/api/v1/query_range", form, 1 << 28)["result"]:
                    label = "".join(series["metric"].values())
                    if label not in sums and len(sums) == MAX_SERIES:
                        raise ValueError("too many series")
                    values = [float(value) for _, value in series["values"] if value != "NaN"]
                    sums.setdefault(label, [[0, 0] for _ in options["parts"]])[index] = [sum(values), len(values)]
    except Exception as error:
        found["error"] = prometheus_problem(error)
    return found


def print_measures(options: Facts) -> None:
    """Print what `measure` returns."""
    print("\n" + MARK + json.dumps(measure(options)), flush=True)
