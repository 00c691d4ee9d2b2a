"""What differs from the records."""

import base64
import platform
import sys
import types
import zlib

from clusterctl.nodes.probe.common import MAX_DRIFT, Facts


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
