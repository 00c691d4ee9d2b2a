"""The inventory as frozen dataclasses, checked against a closed schema; all problems are reported together.

This package opens no connection and starts no program. Variables are merged as Ansible merges them with clusterctl's
ansible.cfg: all, groups (parents first), group_vars/all, group_vars of groups, host, host_vars.
"""

import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from clusterctl.inventory import consistency, schedulers, schema
from clusterctl.inventory.document import Node, parse, shown
from clusterctl.inventory.reading import HostDraft, Reading, TooMuchError
from clusterctl.inventory.schedulers import KINDS, Kind
from clusterctl.inventory.schema import Schema
from clusterctl.util.errors import InputError, Position, Problem
from clusterctl.util.text import did_you_mean

__all__ = ["JUMP", "Host", "Inventory", "Position", "Problem", "judge", "load"]

JUMP = consistency.JUMP
LISTING = ("logging", "monitoring", "nfs_server", "package_cache")
"""Groups whose roles list all nodes of the cluster, besides the heads'."""
_NAME = "cluster_name"
_REACHED = ("ansible_host", "ansible_port", "cluster_address", JUMP)


@dataclass(frozen=True)
class Host:
    """One server: its address, its groups (parents and sub-groups, not `all`), its merged variables.

    If port or user is None, ssh's configuration decides.
    """

    name: str
    address: str
    port: int | None
    user: str | None
    private_key_file: Path | None
    become: bool
    groups: frozenset[str]
    variables: Mapping[str, Any]
    position: Position
    jump: "Host | None" = None
    """The jump host; None for a direct connection, or if ssh's configuration decides."""
    is_backup: bool = False
    """Whether the host is a further head of its scheduler, not the first."""

    @property
    def is_head(self) -> bool:
        """Whether the host is the head of a scheduler."""
        return any(group.endswith("_head") for group in self.groups)

    @property
    def is_worker(self) -> bool:
        """Whether the host runs jobs or pods."""
        return any(kind.workers in self.groups for kind in KINDS)

    @property
    def scheduler(self) -> Kind | None:
        """The scheduler that the host belongs to, as a head or a worker."""
        return schedulers.of_groups(self.groups)


@dataclass(frozen=True)
class Inventory:
    """A whole cluster: hosts in the order of the file, group name to host names, and the variables of `all`."""

    path: Path
    directory: Path
    cluster_name: str
    hosts: tuple[Host, ...]
    groups: Mapping[str, tuple[str, ...]]
    variables: Mapping[str, Any]

    @cached_property
    def _by_name(self) -> dict[str, Host]:
        return {host.name: host for host in self.hosts}

    @cached_property
    def _by_group(self) -> dict[str, tuple[Host, ...]]:
        found: dict[str, list[Host]] = {"all": [*self.hosts]}
        for host in self.hosts:
            for group in host.groups:
                found.setdefault(group, []).append(host)
        return {group: tuple(hosts) for group, hosts in found.items()}

    def host(self, name: str) -> Host:
        """Return the host `name`. Raises InputError with the nearest name."""
        if name in self._by_name:
            return self._by_name[name]
        near = did_you_mean(name, [host.name for host in self.hosts])
        raise InputError([Problem(None, str(self.path), f'no host "{shown(name)}"', near)])

    def in_group(self, group: str) -> tuple[Host, ...]:
        """Return the hosts of a group and its sub-groups; none if the group does not exist."""
        return self._by_group.get(group, ())

    @property
    def schedulers(self) -> tuple[Kind, ...]:
        """The schedulers that the inventory has."""
        return tuple(kind for kind in KINDS if self.in_group(kind.head))

    @property
    def head(self) -> Host:
        """The cluster's head, which has its lock, names and time: the first head of the first scheduler.

        `load` checks that there is one. Role base has the same rule (roles/base/vars/main.yml).
        """
        return next(host for kind in KINDS for host in self.in_group(kind.head))

    @property
    def locked_heads(self) -> tuple[Host, ...]:
        """The hosts with the cluster's lock: the heads of its first scheduler."""
        return self.in_group(self.schedulers[0].head)

    @property
    def heads(self) -> frozenset[str]:
        """The hosts whose failure ends a run."""
        return frozenset(host.name for host in self.hosts if host.is_head)

    @property
    def workers(self) -> tuple[Host, ...]:
        """The hosts that run jobs or pods."""
        return tuple(host for host in self.hosts if host.is_worker)

    @cached_property
    def informed(self) -> tuple[str, ...]:
        """The hosts that have the list of the cluster's nodes: all heads and the hosts of LISTING."""
        listing = [host.name for group in LISTING for host in self.in_group(group)]
        return tuple(dict.fromkeys([host.name for host in self.hosts if host.is_head] + listing))


def load(path: Path, known: Schema | None = None) -> Inventory:
    """Return the inventory in `path` with its group_vars/ and host_vars/, checked by `known` (default: clusterctl's).

    Raises InputError with all problems (at most MAX_PROBLEMS) in the order of the files.
    """
    # Ansible passes the path to OpenSSH in quotes, where these characters are special.
    if bad := re.search(r"""["'\\%$`\x00-\x1f]""", str(path.absolute().parent.resolve())):
        what = f"the directory's name holds {bad[0]!a}, expected none of \" ' \\ % $ ` and control characters"
        raise InputError([Problem(None, str(path), what)])
    reading = Reading(path, known or schema.load())
    try:
        reading.read()
        consistency.check(reading)
    except TooMuchError:
        rest = Problem(None, str(path), "too many problems, the rest was not checked")
        raise InputError([*reading.problems, rest]) from None
    if reading.problems:
        raise InputError(reading.sorted())
    return _finished(reading)


def judge(inventory: Inventory, name: str, groups: Collection[str], variables: Mapping[str, Any]) -> list[Problem]:
    """Check a host that is not in the inventory by the same schema; return the problems.

    `groups` and `variables` are as in a Host: all groups in one list, merged variables.
    """
    reading = Reading(inventory.path, schema.load())
    own = {key: value for key, value in variables.items() if key != _NAME}
    children: dict[str, Any] = {group: {"hosts": {name: {}}} for group in groups if group in reading.known.groups}
    below: dict[str, Any] = {group: {"hosts": {name: {}}} for group in groups if group not in children}
    if below:
        workers = next((group for group in children if group.endswith("_workers")), "ungrouped")
        children.setdefault(workers, {})["children"] = below
    document = {"vars": {_NAME: variables.get(_NAME)}, "hosts": {name: own}, "children": children}
    with suppress(TooMuchError):
        if root := parse(yaml.safe_dump(document), inventory.path, reading.report):
            reading.group(reading.groups["all"], root, "all")
        for host in reading.hosts.values():
            host.merged = reading.merge(host)
        shared = {*_REACHED, *reading.known.required()}
        others = {  # they were checked before
            host.name: HostDraft(
                host.name,
                host.position,
                set(host.groups),
                merged={key: Node(host.position, value) for key, value in host.variables.items() if key in shared},
            )
            for host in inventory.hosts
        }
        reading.hosts = others | reading.hosts
        consistency.check(reading, whole=False)
    return reading.problems


def _finished(reading: Reading) -> Inventory:
    everything = reading.groups["all"]
    variables = _plain(everything.inline | everything.files)
    named = {draft.name: _host(draft) for draft in reading.hosts.values()}
    hosts = tuple(
        replace(host, jump=named[jump]) if (jump := host.variables.get(JUMP, host.name)) != host.name else host
        for host in named.values()
    )
    first = {kind: next((host.name for host in hosts if kind.head in host.groups), "") for kind in KINDS}
    hosts = tuple(replace(h, is_backup=h.is_head and h.name not in first.values()) for h in hosts)
    members: dict[str, list[str]] = {name: [] for name in reading.groups if name != "all"}
    for host in hosts:
        for group in host.groups:
            members[group].append(host.name)
    return Inventory(
        path=reading.path,
        directory=reading.path.parent.resolve(),
        cluster_name=str(variables[_NAME]),
        hosts=hosts,
        groups=MappingProxyType({name: tuple(names) for name, names in members.items()}),
        variables=variables,
    )


def _host(draft: HostDraft) -> Host:
    key = draft.get("ansible_ssh_private_key_file", None)
    return Host(
        name=draft.name,
        address=draft.get("ansible_host", draft.name),
        port=draft.get("ansible_port", None),
        user=draft.get("ansible_user", None),
        private_key_file=Path(key).expanduser() if key else None,
        become=draft.get("ansible_become", True),
        groups=frozenset(draft.groups),
        variables=_plain(draft.merged),
        position=draft.position,
    )


def _plain(values: Mapping[str, Node]) -> Mapping[str, Any]:
    return MappingProxyType({name: node.plain() for name, node in values.items()})
