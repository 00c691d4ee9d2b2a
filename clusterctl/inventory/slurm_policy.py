"""Slurm's accounts, QOS and limits: options that Slurm has, in a form that it reads, and names that are declared."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from clusterctl.inventory.document import Node, shown
from clusterctl.inventory.reading import Reading
from clusterctl.inventory.slurm_limits import ROOT, limits, ordered, parents_first
from clusterctl.util.text import did_you_mean

ACCOUNTS, QOS, USERS = "slurm_head_accounts", "slurm_head_qos", "users_accounts"
NORMAL = "normal"  # Slurm's own QOS
_OPTIONS = {ACCOUNTS: "options", QOS: "options", USERS: "slurm_options"}
_NAMES_OF_QOS = ("qos", "defaultqos", "preempt")  # options whose values are names of QOS
Given = Callable[[Reading, str], list[Node]]
Entry = Mapping[str, Node]


def check(reading: Reading, given: Given) -> None:
    """Refuse options that Slurm cannot read, and names of accounts and QOS that are not declared.

    `given` returns the values of a variable.
    """
    lists = {variable: [entries_of(node) for node in given(reading, variable)] for variable in _OPTIONS}
    accounts, qos = ({name for one in lists[variable] for name in _names(one)} for variable in (ACCOUNTS, QOS))
    for variable, field in _OPTIONS.items():
        for entries in lists[variable]:
            for index, one in enumerate(entries):
                where = f"{variable}[{index}]"
                _check_options(reading, variable, f"{where}.{field}", one.get(field), {NORMAL, *qos})
                if variable == ACCOUNTS and "parent" in one:
                    _check_names(reading, f"{where}.parent", one["parent"], {ROOT, *accounts}, ACCOUNTS)
            if variable != USERS:
                _check_entries(reading, variable, entries)


def entries_of(node: Node) -> list[Entry]:
    """Return the entries of a list of mappings."""
    entries = [one.value for one in node.value if isinstance(one.value, dict)] if isinstance(node.value, list) else []
    return [{str(key): value for key, value in entry.items()} for entry in entries]


def _names(entries: list[Entry]) -> list[str]:
    """Return the names in lower case, as Slurm stores them."""
    return [str(one["name"].value).lower() for one in entries if "name" in one]


def _check_entries(reading: Reading, variable: str, entries: list[Entry]) -> None:
    """Refuse names that are there twice, accounts that are each other's parents, and QOS that preempt each other."""
    names = _names(entries)
    for name, one in zip(names, (one for one in entries if "name" in one), strict=True):
        if names.count(name) > 1:
            message = f"duplicate name, got {shown(name)}; Slurm does not distinguish case"
            reading.refuse(one["name"].position, f"{variable}.name", message)
            return
    named = [one for one in entries if "name" in one]
    if variable == ACCOUNTS:
        placed = _names_of(parents_first([{key: value.plain() for key, value in one.items()} for one in named]))
    else:
        placed = ordered({name: _preempted(one) for name, one in zip(names, named, strict=True)})
    for name, one in zip(names, named, strict=True):
        if name == ROOT and "parent" in one and variable == ACCOUNTS:
            reading.refuse(one["parent"].position, f"{variable}.parent", "root has no parent")
        elif name not in placed:
            what = "parents" if variable == ACCOUNTS else "preempted QOS"
            reading.refuse(one["name"].position, variable, f"the {what} of {shown(name)} form a circle")


def _names_of(accounts: Sequence[Mapping[str, Any]]) -> list[str]:
    return [str(one["name"]).lower() for one in accounts]


def _preempted(qos: Entry) -> set[str]:
    options = qos["options"].plain() if "options" in qos else None
    given = [value for key, value in options.items() if key.lower() == "preempt"] if isinstance(options, dict) else []
    return {str(name).strip().lower() for value in given for name in _list_of(value)}


def _list_of(value: object) -> list[object]:
    return value if isinstance(value, list) else [*str(value).split(",")]


def _check_options(reading: Reading, variable: str, where: str, options: Node | None, qos: set[str]) -> None:
    module = limits()
    kinds = module.OF_QOS if variable == QOS else module.OF_ASSOCIATION
    given: set[str] = set()
    for key, node in options.value.items() if options and isinstance(options.value, dict) else ():
        of_key = f"{where}.{shown(key)}"
        if key.lower() in given:
            reading.refuse(key.position, of_key, "is there twice; sacctmgr does not distinguish case")
        given.add(key.lower())
        if key.lower() not in {name.lower() for name in kinds}:
            message = f'unknown option of sacctmgr, got "{shown(key)}"'
            reading.refuse(key.position, of_key, message, did_you_mean(key, kinds))
            continue
        try:
            module.flatten(kinds, {str(key): node.plain()})
        except module.OptionError:
            reading.refuse(node.position, of_key, f"got {node.describe()}, expected {module.expected(kinds, key)}")
        else:
            if key.lower() in _NAMES_OF_QOS:
                _check_names(reading, of_key, node, qos, QOS)


def _check_names(reading: Reading, where: str, node: Node, known: set[str], variable: str) -> None:
    for name in _list_of(node.plain()):
        if str(name).strip().lower() not in known:
            message = f'got "{shown(str(name))}", which is not in {variable}'
            reading.refuse(node.position, where, message, did_you_mean(str(name), sorted(known)))
