"""The schema of an inventory, read from the content: groups from the playbook, variables from the roles.

A group is known if playbooks/bootstrap.yml has it, a variable if a role's meta/argument_specs.yml declares it. Types
are checked more strictly than by Ansible, because YAML reads `22:30` as 1350, `010` as 8 and `no` as false, and
Ansible would convert them without a warning.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from clusterctl.inventory import bootstrap_plays
from clusterctl.inventory.document import Key, Node, Report, shown
from clusterctl.inventory.rules import FREE_KEY, Rule, rule_of
from clusterctl.util import paths, yaml_text
from clusterctl.util.errors import ClusterctlError, Position, Problem
from clusterctl.util.text import did_you_mean


@dataclass(frozen=True)
class Option:
    """One variable, or one key of a variable: a role's argument spec."""

    name: str
    role: str
    type: str = "str"
    elements: str = "raw"
    choices: tuple[Any, ...] = ()
    required: bool = False
    secret: bool = False
    description: tuple[str, ...] = ()
    options: Mapping[str, "Option"] = field(default_factory=dict)

    @property
    def number(self) -> bool:
        """Whether a value, or each element of it, is a number."""
        return not {"int", "float"}.isdisjoint((self.type, self.elements))


CONNECTION: Mapping[str, Option] = {
    option.name: option
    for option in (
        Option("ansible_host", "", description=("Address or name of the host for SSH; default: its name.",)),
        Option("ansible_port", "", type="int", description=("Port of its SSH server; default 22.",)),
        Option("ansible_user", "", description=("User to log in as; default: your user name.",)),
        Option("ansible_ssh_private_key_file", "", type="path", description=("Key to log in with, absolute or ~/.",)),
        Option("ansible_become", "", type="bool", description=("Whether to use sudo; default true.",)),
        Option(
            "cluster_jump_host",
            "",
            description=("Jump host for SSH to the other hosts, a host of this inventory, for example the head.",),
        ),
        Option(
            "cluster_host_key",
            "",
            description=("Fingerprint of the host's SSH key, C(SHA256:...), as C(ssh-keygen -l) prints it.",),
        ),
    )
}
"""The only variables of Ansible that an inventory may set: hosts and users of connections."""


@dataclass(frozen=True)
class Schema:
    """The known groups and variables; made by `load`."""

    groups: Mapping[str, tuple[str, ...]]
    """Each known group in the playbook's order, with the roles of its hosts."""
    common: tuple[str, ...]
    """The roles of every host."""
    variables: Mapping[str, Option]
    """Each known variable, including connection variables."""
    defaults: Mapping[str, Any]
    """The default of each variable that has one."""
    optional: tuple[str, ...] = ()
    """The roles that can be uninstalled from a host in service, in the playbook's order; not Slurm's, GPUs' or base."""

    def check(self, name: str, node: Node, key: str, at: Position, report: Report) -> None:
        """Report every problem of `name: node`; `at` is the position of `name`, `key` its path."""
        option = self.variables.get(name)
        if option is None:
            report(Problem(at, key, *self._unknown(name)))
        else:
            _check(option, node, key, report, rule_of(name, option.number))

    def required(self) -> Iterator[str]:
        """Yield the required variables that have no default."""
        return (name for name, option in self.variables.items() if option.required and name not in self.defaults)

    def _unknown(self, name: str) -> tuple[str, str]:
        if re.search("pass(word|wd)?$", name):
            return "a password must not be in an inventory", "log in with a key: ansible_ssh_private_key_file"
        if name.startswith("ansible_"):
            known = did_you_mean(_OLD_NAMES.get(name, name), CONNECTION)
            return "not allowed here, clusterctl sets Ansible's own settings", known
        if moved := _MOVED.get(name):
            return "is no longer a variable", moved
        return f'unknown variable "{shown(name)}"', did_you_mean(name, self.variables)


_HOMES = 'nfs_client_mounts: [{path: /home, source: "nfs1:/export/home"}]'
_MOVED = {f"users_home_{name}": f"list the homes: {_HOMES}" for name in ("export", "type", "options")}
"""Former variables, and what replaces them."""
_OLD_NAMES = {f"ansible_ssh_{name}": f"ansible_{name}" for name in ("host", "port", "user")}


# --- types ----------------------------------------------------------------------------------------------------------


def _is_decimal(node: Node) -> bool:
    is_int = isinstance(node.value, int) and not isinstance(node.value, bool)
    return is_int and re.fullmatch(r"-?(0|[1-9][0-9]*)", node.text) is not None


def _is_number(node: Node) -> bool:
    plain = isinstance(node.value, float) and math.isfinite(node.value) and not set(node.text) & set(":_")
    return plain or _is_decimal(node)


def _is_plain(node: Node) -> bool:
    """Return whether YAML reads this value as it looks: no sexagesimal, octal, date or yes/no."""
    match node.value:
        case dict() | list() | str() | None:
            return True
        case bool():
            return node.text.lower() in ("true", "false")
    return _is_number(node)


_TYPES: Mapping[str, tuple[Callable[[Node], bool], str]] = {
    "bool": (lambda node: isinstance(node.value, bool), "true or false"),
    "dict": (lambda node: isinstance(node.value, dict), "a mapping"),
    "float": (_is_number, "a number"),
    "int": (_is_decimal, "a whole number"),
    "list": (lambda node: isinstance(node.value, list), "a list"),
    "path": (lambda node: isinstance(node.value, str), "text"),
    "raw": (_is_plain, "an unambiguous value"),
    "str": (lambda node: isinstance(node.value, str), "text"),
}


def _hint(node: Node, wanted: str) -> str:
    if node.value is None:
        return "delete the line to use the default"
    if isinstance(node.value, str):
        if wanted == "a list":
            return f"write [{shown(node.value)}]"
        return "write it without quotes" if re.fullmatch(r"[0-9.]+|true|false", node.value) else ""
    meant_as_text = wanted in ("text", _TYPES["raw"][1]) and not isinstance(node.value, (dict, list))
    return f'write "{shown(node.text)}" with the quotes' if meant_as_text else ""


def _check(option: Option, node: Node, key: str, report: Report, rule: Rule | None) -> None:
    """Check a value against its spec and against `rule`, the rule for its own or its parents' names."""

    def refuse(what: str, expected: str, hint: str = "") -> None:
        got = "a hidden value" if option.secret else node.describe()
        report(Problem(node.position, key, f"{what}, got {got}, expected {expected}", hint))

    fits, expected = _TYPES[option.type]
    if not fits(node):
        refuse("wrong type", expected, _hint(node, expected))
    elif option.choices and not isinstance(node.value, list) and node.value not in option.choices:
        near = did_you_mean(node.text, [str(choice) for choice in option.choices])
        refuse("bad value", "one of " + ", ".join(str(choice) for choice in option.choices), near)
    elif isinstance(node.value, dict):
        for name, wanted in option.options.items():
            if wanted.required and name not in node.value:
                refuse("incomplete", f'the key "{name}" in it')
        for name, value in node.value.items():
            _check_key(option, name, value, f"{key}.{shown(name)}", report, rule)
    elif isinstance(node.value, list):
        element = Option(
            option.name,
            option.role,
            option.elements,
            choices=option.choices,  # for a list, Ansible checks each element
            options=option.options,
            secret=option.secret,
        )
        for index, item in enumerate(node.value):
            _check(element, item, f"{key}[{index}]", report, rule)
    elif rule and isinstance(node.value, int | float if rule.number else str) and not rule.holds(node.value):
        refuse("bad value", rule.expected, rule.hint(node.value))


def _check_key(option: Option, name: Key, value: Node, key: str, report: Report, rule: Rule | None) -> None:
    if not option.options:
        if not re.fullmatch(FREE_KEY, name):
            expected = "a name of letters, digits, . _ / : * -"
            report(Problem(name.position, key, f'bad name, got "{shown(name)}", expected {expected}'))
        kind = "str" if rule and not rule.number else "raw"
        _check(Option(name, option.role, kind, secret=option.secret), value, key, report, rule)
    elif name in option.options:
        inner = option.options[name]
        _check(inner, value, key, report, rule_of(f"{option.name}.{name}", inner.number) or rule)
    else:
        report(Problem(name.position, key, f'unknown key "{shown(name)}"', did_you_mean(name, option.options)))


# --- reading the content --------------------------------------------------------------------------------------------


@cache
def load(content: Path | None = None) -> Schema:
    """Return the schema of the Ansible content at `content` (default: clusterctl's).

    Raises ClusterctlError for invalid content, which is a bug in clusterctl.
    """
    content = content or paths.content()
    try:
        variables = dict(CONNECTION)
        defaults: dict[str, Any] = {}
        for spec in sorted(content.glob("roles/*/meta/argument_specs.yml")):
            for entry in _yaml(spec)["argument_specs"].values():
                role = spec.parent.parent.name
                variables |= {name: _option(name, role, raw) for name, raw in entry.get("options", {}).items()}
        for file in (content / "playbooks/group_vars/all.yml", *sorted(content.glob("roles/*/defaults/main.yml"))):
            defaults |= (_yaml(file) or {}) if file.exists() else {}
        plays = bootstrap_plays.load(content)
        groups = bootstrap_plays.groups(plays)
        common = groups.pop("all", ())
        return Schema(groups, common, variables, defaults, bootstrap_plays.optional(plays, groups, common))
    except (OSError, yaml.YAMLError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise ClusterctlError(f"the content in {content} is damaged: {type(error).__name__}: {error}") from error


def _yaml(path: Path) -> Any:
    return yaml_text.load(path.read_bytes())


def _option(name: str, role: str, raw: Mapping[str, Any]) -> Option:
    description = raw.get("description", ())
    kind, elements = raw.get("type", "str"), raw.get("elements", "raw")
    if unknown := {kind, elements} - _TYPES.keys():
        raise ValueError(f"{role}: {name}: unknown type {unknown}")
    return Option(
        name,
        role,
        kind,
        elements,
        tuple(raw.get("choices", ())),
        raw.get("required", False),
        raw.get("no_log", False),
        (description,) if isinstance(description, str) else tuple(description),
        {key: _option(key, role, value) for key, value in raw.get("options", {}).items()},
    )
