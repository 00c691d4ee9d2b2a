"""What our modules need of Ansible's `ansible.module_utils.basic`, in its place on the node (light_module.py).

It runs on the node, with Python 3.9 or newer, and imports nothing of Ansible's.
"""

from __future__ import annotations

import json
import os
import re
import sys
import syslog
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NoReturn

ARGUMENTS: dict[str, Any] = {}
"""Those of the call, Ansible's own among them; set before the module runs."""

HIDDEN = "VALUE_SPECIFIED_IN_NO_LOG_PARAMETER"
"""Ansible's word in the place of a secret."""

TYPES: Mapping[str, Any] = {
    "bool": (bool,),
    "dict": (dict,),
    "int": (int,),
    "list": (list,),
    "path": (str,),
    "str": (str,),
}


class ArgumentError(ValueError):
    """An argument that the module does not accept."""


class AnsibleModule:
    """The arguments of a call, checked against `argument_spec` as Ansible defines it, and its result.

    Types are not converted, apart from a number that is given as text, or where a text is wanted.
    """

    def __init__(
        self,
        argument_spec: Mapping[str, Mapping[str, Any]],
        supports_check_mode: bool = False,
        required_if: Sequence[tuple[str, object, Sequence[str]]] = (),
    ) -> None:
        own = {name: ARGUMENTS.get("_ansible_" + name) for name in ("check_mode", "diff", "verbosity", "module_name")}
        self.check_mode, self._diff, self._verbosity = bool(own["check_mode"]), bool(own["diff"]), own["verbosity"] or 0
        self.no_log_values: set[str] = set()
        syslog.openlog(f"ansible-{own['module_name']}", 0, syslog.LOG_USER)
        syslog.syslog(syslog.LOG_INFO, "Invoked")
        given = {name: value for name, value in ARGUMENTS.items() if not name.startswith("_ansible_")}
        try:
            self.params = checked(argument_spec, given, self.no_log_values)
            for name, value, needed in required_if:
                if self.params[name] == value:
                    require(needed, {key for key, had in self.params.items() if had is not None})
        except ArgumentError as error:
            self.fail_json(msg=str(error))
        if self.check_mode and not supports_check_mode:
            self.exit_json(skipped=True, msg=f"{own['module_name']} does nothing in check mode")

    def exit_json(self, **result: Any) -> NoReturn:
        """Report the result without secrets, and end."""
        print(json.dumps(without(result, self.no_log_values)))
        sys.exit(0)

    def fail_json(self, msg: str, **result: Any) -> NoReturn:
        """Report the failure, and end."""
        print(json.dumps(without({**result, "failed": True, "msg": msg}, self.no_log_values)))
        sys.exit(1)


def require(names: Sequence[str], given: Collection[str]) -> None:
    """Raise ArgumentError for a name that is not given."""
    if missing := [name for name in names if name not in given]:
        raise ArgumentError(f"missing required arguments: {', '.join(missing)}")


def checked(spec: Mapping[str, Mapping[str, Any]], given: Mapping[str, Any], secrets: set[str]) -> dict[str, Any]:
    """Return the arguments with defaults, and add secret ones to `secrets`. Raises ArgumentError."""
    given = {name: value for name, value in given.items() if value is not None}
    if unknown := sorted(set(given) - set(spec)):
        raise ArgumentError(f"unsupported arguments: {', '.join(unknown)}; expected {', '.join(spec)}")
    require([name for name, rule in spec.items() if rule.get("required")], given)
    values = {name: given.get(name, rule.get("default")) for name, rule in spec.items()}
    for name, rule in spec.items():  # before the checks, whose messages have values
        if rule.get("no_log"):
            secrets.update(texts(values[name]))
    return {name: value if value is None else typed(name, spec[name], value, secrets) for name, value in values.items()}


def typed(name: str, rule: Mapping[str, Any], value: Any, secrets: set[str]) -> Any:
    """Return the value of an argument, of the type that its rule demands. Raises ArgumentError."""
    kind = rule.get("type", "str")
    if kind == "int" and isinstance(value, str) and re.fullmatch("-?[0-9]+", value):
        value = int(value)
    elif kind == "path" and isinstance(value, str):
        value = os.path.expanduser(os.path.expandvars(value))  # noqa: PTH111 - like Ansible
    elif kind == "str" and isinstance(value, (int, float)) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, TYPES[kind]) or (isinstance(value, bool) and kind != "bool"):
        raise ArgumentError(f"argument {name} is {type(value).__name__}, expected {kind}")
    if kind == "list" and "elements" in rule:
        return [typed(name, {**rule, "type": rule["elements"]}, one, secrets) for one in value]
    if kind == "dict" and "options" in rule:
        return checked(rule["options"], value, secrets)
    if "choices" in rule and value not in rule["choices"]:
        raise ArgumentError(f"argument {name} is {value}, expected one of {', '.join(map(str, rule['choices']))}")
    return value


def texts(value: Any) -> Iterator[str]:
    """Yield the texts in a value."""
    if isinstance(value, dict):
        value = list(value.values())
    for one in value if isinstance(value, list) else []:
        yield from texts(one)
    if isinstance(value, str) and value:
        yield value


def without(value: Any, secrets: Collection[str]) -> Any:
    """Return a result with another text in the place of each secret."""
    if isinstance(value, dict):
        return {name: without(one, secrets) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [without(one, secrets) for one in value]
    if isinstance(value, str):
        for secret in sorted(secrets, key=len, reverse=True):
            value = value.replace(secret, HIDDEN)
    return value
