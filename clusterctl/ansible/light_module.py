"""Send our modules to a node without Ansible's own module code.

Ansible sends each module with `ansible.module_utils.basic` in a zip file, and Python compiles all of it in each call:
0.15 s of 0.24 s; here it takes 0.2 s to find that code for the first call of a module (docs/benchmarks.md). Our modules
need little of it, so they are sent with light_basic.py in its place, and stay modules that Ansible could run by itself.
"""

import base64
import datetime
import functools
import json
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible import constants
from ansible.executor.module_common import _BuiltModule
from ansible.plugins.action import ActionBase
from ansible.template import trust_as_template

from clusterctl.util.paths import content

_UTILS = "ansible.module_utils"
_BASIC = f"{_UTILS}.basic"
_IMPORT = re.compile(rf"^from ({re.escape(_UTILS)}(?:\.\w+)*) import \(?\s*(\w+)", re.MULTILINE)

WITH_ANSIBLE = frozenset({"gpu_config", "kubernetes_images"})
"""Our modules that need more of Ansible's code than light_basic.py has."""

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
    import {name}

    {name}.main()
except Exception as error:
    import traceback

    said = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    print(json.dumps({{"failed": True, "msg": "{{}}: {{}}".format(type(error).__name__, error), "exception": said}}))
    sys.exit(1)
"""


class Light(ActionBase):  # type: ignore[misc]  # Ansible has no types
    """An action plugin that sends a module of clusterctl, if it calls one, without Ansible's code."""

    def rendered(self, text: str, header: str, task_vars: Mapping[str, Any]) -> str | None:
        """Return a template's text as ansible.builtin.template renders it; `header` is its `ansible_managed`.

        Raises AnsibleError.
        """
        folders = [*task_vars.get("ansible_search_path", []), self._loader.get_basedir()]
        searchpath = [path for folder in folders for path in (str(Path(folder, "templates")), folder)]
        variables = {"ansible_managed": header, **task_vars}
        templar = self._templar.copy_with_new_env(searchpath=searchpath, available_variables=variables)
        options = {"trim_blocks": True}
        found = templar.template(trust_as_template(text), escape_backslashes=False, overrides=options)
        return None if found is None else str(found)

    def _configure_module(self, module_name: str, module_args: dict[str, Any], task_vars: dict[str, Any]) -> Any:
        """Return what is sent, and the module's path. Where Ansible has to look for Python, that is all of its code."""
        host = self._task.delegate_to
        variables = task_vars["ansible_delegated_vars"][host] if host else task_vars
        python = self._templar.template(constants.config.get_config_value("INTERPRETER_PYTHON", variables=variables))
        if module_name not in names() or not str(python).startswith("/"):
            return super()._configure_module(module_name, module_args, task_vars)
        shebang = f"#!{python}"
        data = program(module_name, shebang, module_args)
        built = _BuiltModule(b_module_data=data, module_style="new", shebang=shebang, serialization_profile="legacy")
        return built, str(_folder() / f"{module_name}.py")


def _folder() -> Path:
    return content() / "plugins/modules"


@functools.cache
def names() -> frozenset[str]:
    """Return the names of the modules that are sent so."""
    return frozenset(path.stem for path in _folder().glob("*.py")) - WITH_ANSIBLE


@functools.cache
def sources(name: str) -> str:
    """Return a module of clusterctl and what it imports, {name: text}, compressed."""
    found = {_BASIC: Path(__file__).with_name("light_basic.py").read_text(encoding="utf-8")}
    due = {name: _folder() / f"{name}.py"}
    while due:
        module, path = due.popitem()
        found[module] = path.read_text(encoding="utf-8")
        for package, first in _IMPORT.findall(found[module]):
            wanted = f"{package}.{first}" if package == _UTILS else package
            if wanted not in found:
                due[wanted] = content() / "plugins" / f"{wanted.removeprefix('ansible.').replace('.', '/')}.py"
    return _packed(found)


def _packed(value: Mapping[str, Any]) -> str:
    """Return a value as JSON, compressed, in base64."""
    return base64.b64encode(zlib.compress(json.dumps(value, default=_plain).encode())).decode()


def _plain(value: object) -> str:
    """Return a date as text, as Ansible sends it. Raises TypeError for what else JSON does not have."""
    if isinstance(value, datetime.date):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} cannot be sent to a node")


def program(name: str, shebang: str, arguments: Mapping[str, Any]) -> bytes:
    """Return the program that calls a module of clusterctl with these arguments, Ansible's own among them."""
    given = _packed(arguments)
    return f"{shebang}\n{_START.format(name=name, sources=sources(name), basic=_BASIC, arguments=given)}".encode()
