"""Nodes that are being removed: the data that is needed to clean them after they have left the inventory.

Each node has a file in `.clusterctl/leaving/`, so that an interrupted removal can be resumed. An inventory of only
these nodes is built from the files for Ansible.
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
from clusterctl.inventory.schedulers import SLURM
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
    """A node that is being removed: its groups, its merged variables, and its lines of known_hosts."""

    name: str
    groups: tuple[str, ...]
    variables: dict[str, Any]
    keys: tuple[str, ...]

    @classmethod
    def of(cls, host: Host, inventory: Inventory) -> "Node":
        """Return the node for a host of the inventory."""
        lines = known_hosts.lines(inventory.directory / home.KNOWN_HOSTS, route.of(host).name)
        return cls(host.name, tuple(sorted(host.groups)), json.loads(json.dumps(dict(host.variables))), tuple(lines))

    def host(self, hosts: Sequence[Host]) -> Host:
        """Return the node as a host; `hosts` contains its jump host, if it has one."""
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
    """Return a node whose removal has begun; None if there is no file for it.

    Raises InputError if the file is damaged or would not be valid in an inventory, because Ansible uses it as one.
    """
    path = _path(inventory.directory / home.STATE, name)
    if not hostrange.is_host_name(name) or name in {host.name for host in inventory.hosts} or not path.exists():
        return None
    try:
        data = json.loads(files.read(path, inside=inventory.directory))
        groups, keys = (tuple(_line(item) for item in data[part]) for part in ("groups", "keys"))
        node = Node(name, groups, dict(data["variables"]), keys)
        if any(key.lstrip().startswith("@") for key in keys):  # known_hosts.lines never returns such a line
            raise ValueError("a host key has a marker")
        if data["name"] != name:
            raise ValueError("it is the file of another node")
        if SLURM.head in groups:
            raise ValueError("heads of Slurm are not removed")
        problems = [f"{problem.key}: {problem.message}" for problem in judge(inventory, name, groups, node.variables)]
    except (files.UnfitError, ValueError, KeyError, TypeError, RecursionError) as error:
        problems = [printable(str(error), 200)]
    if problems:
        hint = f"delete it; {name} is then not cleaned"
        raise InputError([Problem(None, str(path), f"cannot be used: {text}", hint) for text in problems])
    return node


def _line(text: object) -> str:
    if not isinstance(text, str) or not text.isprintable():
        raise ValueError("a group or a key is not a line of text")
    return text


def unfinished(inventory: Inventory) -> list[str]:
    """Return the nodes whose removal has begun and not ended, without nodes that were added again."""
    found = (inventory.directory / home.STATE / FOLDER).glob("*.json")
    names = {path.stem for path in found if hostrange.is_host_name(path.stem)}
    return sorted(names - {host.name for host in inventory.hosts})


def save(state: Path, node: Node) -> None:
    """Write a node's file with mode 0600."""
    files.make_private_directory(state / FOLDER)
    document = {"name": node.name, "groups": node.groups, "variables": node.variables, "keys": node.keys}
    files.write_atomically(_path(state, node.name), (json.dumps(document, indent=1) + "\n").encode(), replace=True)


def forget(state: Path, names: Collection[str]) -> None:
    """Delete the files of cleaned nodes, and the inventory that was built from them."""
    for name in names:
        _path(state, name).unlink(missing_ok=True)
    for file in ("inventory.yaml", home.KNOWN_HOSTS):
        (state / FOLDER / file).unlink(missing_ok=True)


def forget_keys(path: Path, nodes: Iterable[Node], after: Inventory) -> None:
    """Remove the nodes' lines from known_hosts, except lines that also apply to a host of the inventory."""
    kept = {line for host in after.hosts for line in known_hosts.lines(path, route.of(host).name)}
    known_hosts.remove(path, {line for node in nodes for line in node.keys} - kept)


def written(site: Site, nodes: Sequence[Node]) -> Site:
    """Return a site of only the nodes that are being removed, and write its inventory.

    A plan writes the inventory to a new folder beside its copy of the cluster's directory.
    """
    cleaning = unwritten(site, nodes)
    folder = cleaning.inventory.directory
    files.make_private_directory(folder)
    files.write_atomically(cleaning.inventory.path, inventory_text(cleaning, nodes).encode(), replace=True)
    keys = [*home.known_hosts(site.access.known_hosts), *(line for node in nodes for line in node.keys)]
    lines = "".join(f"{line}\n" for line in dict.fromkeys(keys))
    files.write_atomically(folder / home.KNOWN_HOSTS, lines.encode(), replace=True)
    return cleaning


def unwritten(site: Site, nodes: Sequence[Node]) -> Site:
    """Return the same site as `written`, but write no file."""
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
