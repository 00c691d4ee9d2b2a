"""Nodes that leave: what is still needed of them once the inventory no longer has them, until they are clean.

One file for each in `.clusterctl/leaving/`, so that a removal that was interrupted can be gone on with. From these a
small inventory is made for Ansible, of those nodes alone.
"""

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from clusterctl.inventory import hostrange
from clusterctl.inventory.model import JUMP, Host, Inventory, judge
from clusterctl.nodes import known_hosts, route
from clusterctl.run.context import Site
from clusterctl.util import files
from clusterctl.util.errors import InputError, Position, Problem
from clusterctl.util.text import printable
from clusterctl.workspace import home

FOLDER = "leaving"
GROUP = "leaving"


@dataclass(frozen=True)
class Node:
    """A node that leaves: its groups, its merged variables, and its lines of known_hosts."""

    name: str
    groups: tuple[str, ...]
    variables: dict[str, Any]
    keys: tuple[str, ...]

    @classmethod
    def of(cls, host: Host, inventory: Inventory) -> "Node":
        """Return what is to be kept of a host of the inventory."""
        lines = known_hosts.lines(inventory.directory / home.KNOWN_HOSTS, route.of(host).name)
        return cls(host.name, tuple(sorted(host.groups)), json.loads(json.dumps(dict(host.variables))), tuple(lines))

    def host(self, hosts: Sequence[Host]) -> Host:
        """Return it as a host again; `hosts` has the one through which SSH reaches it, if any."""
        given, jump = self.variables, self.variables.get(JUMP, self.name)
        key = given.get("ansible_ssh_private_key_file")
        return Host(
            name=self.name,
            address=given.get("ansible_host", self.name),
            port=given.get("ansible_port"),
            user=given.get("ansible_user"),
            private_key_file=Path(key).expanduser() if key else None,
            become=given.get("ansible_become", True),
            groups=frozenset(self.groups),
            variables=MappingProxyType(given),
            position=Position(Path(FOLDER), 1, 1),
            jump=next((host for host in hosts if host.name == jump), None) if jump != self.name else None,
        )


def _path(state: Path, name: str) -> Path:
    return state / FOLDER / f"{name}.json"


def load(inventory: Inventory, name: str) -> Node | None:
    """Return what was kept of a node whose removal has begun; None where there is nothing.

    Raises InputError where it is damaged, or says what no inventory may say: Ansible is to play it as one.
    """
    path = _path(inventory.directory / home.STATE, name)
    if not hostrange.is_host_name(name) or name in {host.name for host in inventory.hosts} or not path.exists():
        return None
    try:
        data = json.loads(files.read(path, inside=inventory.directory))
        groups, keys = (tuple(_line(item) for item in data[part]) for part in ("groups", "keys"))
        node = Node(name, groups, dict(data["variables"]), keys)
        if any(key.lstrip().startswith("@") for key in keys):  # known_hosts.lines keeps none of these
            raise ValueError("a host key has a marker")
        if data["name"] != name:
            raise ValueError("it is of another node")
        wrong = [f"{problem.key}: {problem.message}" for problem in judge(inventory, name, groups, node.variables)]
    except (files.UnfitError, ValueError, KeyError, TypeError, RecursionError) as error:
        wrong = [printable(str(error), 200)]
    if wrong:
        hint = f"delete it; {name} is then not cleaned"
        raise InputError([Problem(None, str(path), f"cannot be used: {text}", hint) for text in wrong])
    return node


def _line(text: object) -> str:
    if not isinstance(text, str) or not text.isprintable():
        raise ValueError("a group or a key is no line of text")
    return text


def unfinished(inventory: Inventory) -> list[str]:
    """Return the nodes whose removal has begun and not ended; one that was added again since is none of them."""
    found = (inventory.directory / home.STATE / FOLDER).glob("*.json")
    names = {path.stem for path in found if hostrange.is_host_name(path.stem)}
    return sorted(names - {host.name for host in inventory.hosts})


def save(state: Path, node: Node) -> None:
    """Keep a node's file, 0600."""
    files.make_private_directory(state / FOLDER)
    document = {"name": node.name, "groups": node.groups, "variables": node.variables, "keys": node.keys}
    files.write_atomically(_path(state, node.name), (json.dumps(document, indent=1) + "\n").encode(), replace=True)


def forget(state: Path, names: Collection[str]) -> None:
    """Drop the files of nodes that are clean."""
    for name in names:
        _path(state, name).unlink(missing_ok=True)
    for made in ("inventory.yaml", home.KNOWN_HOSTS):
        (state / FOLDER / made).unlink(missing_ok=True)


def forget_keys(path: Path, nodes: Iterable[Node], after: Inventory) -> None:
    """Take the nodes' lines out of known_hosts, but those that name a host of the inventory too."""
    kept = {line for host in after.hosts for line in known_hosts.lines(path, route.of(host).name)}
    known_hosts.remove(path, {line for node in nodes for line in node.keys} - kept)


def written(site: Site, nodes: Sequence[Node]) -> Site:
    """Return the nodes that leave as a site of their own, and write its inventory: they and nobody else.

    A plan writes it beside its copy of the cluster's directory, into a folder that is nobody's yet.
    """
    made = unwritten(site, nodes)
    folder = made.inventory.directory
    files.make_private_directory(folder)
    files.write_atomically(made.inventory.path, inventory_text(made, nodes).encode(), replace=True)
    keys = [*home.known_hosts(site.access.known_hosts), *(line for node in nodes for line in node.keys)]
    lines = "".join(f"{line}\n" for line in dict.fromkeys(keys))
    files.write_atomically(folder / home.KNOWN_HOSTS, lines.encode(), replace=True)
    return made


def unwritten(site: Site, nodes: Sequence[Node]) -> Site:
    """Return the same, and write nothing."""
    directory = site.inventory.directory
    folder = directory.with_name(f"{directory.name}-{FOLDER}") if site.options.planned else site.state / FOLDER
    hosts = tuple(node.host(site.inventory.hosts) for node in nodes)
    groups = MappingProxyType({GROUP: tuple(host.name for host in hosts)})
    inventory = replace(site.inventory, path=folder / "inventory.yaml", directory=folder, hosts=hosts, groups=groups)
    return replace(site, inventory=inventory, hosts=hosts, skipped=(), playbook="remove-node")


def inventory_text(site: Site, nodes: Sequence[Node]) -> str:
    """Return the text of that site's inventory."""
    jumps = {host.jump.name: dict(host.jump.variables) for host in site.hosts if host.jump}
    members = {node.name: node.variables for node in nodes}
    children: dict[str, Any] = {GROUP: {"hosts": {name: {} for name in members}}}
    for group in sorted({group for node in nodes for group in node.groups}):
        children[group] = {"hosts": {node.name: {} for node in nodes if group in node.groups}}
    document = {"all": {"hosts": {**jumps, **members}, "children": children}}
    return str(yaml.safe_dump(document, sort_keys=False))
