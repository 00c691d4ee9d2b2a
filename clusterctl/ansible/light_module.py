"""Send node_state to a node without Ansible's own module code.

Ansible sends each module with `ansible.module_utils.basic` in a zip file, and Python compiles all of it in each call:
0.13 s, where a call that does nothing takes 0.21 s (docs/benchmarks.md). node_state needs little of it, so it is sent
with `_STAND_IN` in its place, and stays a module that Ansible could run by itself.
"""

import base64
import functools
import json
import zlib
from collections.abc import Mapping
from typing import Any

from clusterctl.util.paths import content

_BASIC = "ansible.module_utils.basic"

_STAND_IN = '''
"""What node_state needs of Ansible's module of this name."""

import json
import sys
import syslog

ARGUMENTS = {}


class AnsibleModule:
    """The arguments of a call, which the action plugin has checked, and its result."""

    def __init__(self, argument_spec, supports_check_mode=False):
        own = {name: ARGUMENTS.get("_ansible_" + name) for name in ("check_mode", "diff", "verbosity")}
        self.params = {name: ARGUMENTS.get(name) for name in argument_spec}
        self.check_mode, self._diff, self._verbosity = bool(own["check_mode"]), bool(own["diff"]), own["verbosity"] or 0
        self.no_log_values = set()
        syslog.openlog("ansible-node_state", 0, syslog.LOG_USER)
        syslog.syslog(syslog.LOG_INFO, "Invoked")

    def exit_json(self, **result):
        print(json.dumps(result))
        sys.exit(0)

    def fail_json(self, msg, **result):
        print(json.dumps({**result, "failed": True, "msg": msg}))
        sys.exit(1)
'''

_START = """
import os, sys

# Where this program is, or standard input: the home of the login, whose files root must not import.
HERE = os.path.dirname(os.path.abspath(__file__)) if "__file__" in globals() else ""
sys.path = [path for path in sys.path if path not in ("", ".", HERE)]

import base64, importlib.machinery, json, zlib

SOURCES = json.loads(zlib.decompress(base64.b64decode({sources!r})))


class Sources:
    \"\"\"Import modules from SOURCES.\"\"\"

    @staticmethod
    def find_spec(name, path=None, target=None):
        package = any(other.startswith(name + ".") for other in SOURCES)
        known = package or name in SOURCES
        return importlib.machinery.ModuleSpec(name, Sources, origin=name, is_package=package) if known else None

    @staticmethod
    def create_module(spec):
        return None

    @staticmethod
    def exec_module(module):
        exec(compile(Sources.get_source(module.__name__), module.__name__, "exec"), module.__dict__)

    @staticmethod
    def get_source(name):
        return SOURCES.get(name, "")


sys.meta_path.insert(0, Sources)
try:
    import {basic} as basic

    basic.ARGUMENTS = json.loads(zlib.decompress(base64.b64decode({arguments!r})))
    import node_state

    node_state.main()
except Exception as error:
    import traceback

    said = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    print(json.dumps({{"failed": True, "msg": "{{}}: {{}}".format(type(error).__name__, error), "exception": said}}))
    sys.exit(1)
"""


@functools.cache
def sources() -> str:
    """Return all modules of node_state, {name: text}, compressed."""
    plugins = content() / "plugins"
    folder = plugins / "module_utils/node_state"
    found = {f"ansible.module_utils.node_state.{path.stem}": path for path in sorted(folder.glob("*.py"))}
    del found["ansible.module_utils.node_state.__init__"]
    found["node_state"] = plugins / "modules/node_state.py"
    texts = {name: path.read_text(encoding="utf-8") for name, path in found.items()} | {_BASIC: _STAND_IN}
    return _packed(texts)


def _packed(value: Mapping[str, Any]) -> str:
    """Return a value as JSON, compressed, in base64."""
    return base64.b64encode(zlib.compress(json.dumps(value).encode())).decode()


def program(shebang: str, arguments: Mapping[str, Any]) -> bytes:
    """Return the program that makes a call of node_state with these arguments, those of Ansible's own among them."""
    given = _packed(arguments)
    return f"{shebang}\n{_START.format(sources=sources(), basic=_BASIC, arguments=given)}".encode()
