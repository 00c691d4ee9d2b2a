"""Compare the IDs of people on all nodes: those in the inventory, and those of a directory who have Slurm accounts."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any

from clusterctl.inventory.directory import SSSD
from clusterctl.inventory.model import Host, Inventory
from clusterctl.inventory.schedulers import SLURM
from clusterctl.nodes import contact
from clusterctl.nodes.contact import PeopleIds
from clusterctl.nodes.head_commands import HeadCommands
from clusterctl.nodes.parallel import each
from clusterctl.nodes.probe.common import MAX_DIRECTORY, MAX_PEOPLE
from clusterctl.nodes.remote import Access, connect
from clusterctl.nodes.session import ContactError
from clusterctl.util.errors import HeadFailed
from clusterctl.util.text import fold
from clusterctl.util.untrusted import Malformed, decode, flag, mapping, nested, number, sequence, text

_RECORD = "/var/lib/clusterctl/slurm-directory.json"
_READ = ("sh", "-c", f"if [ -e {_RECORD} ]; then head -c {MAX_DIRECTORY} {_RECORD}; fi")
SAMPLE = 64
"""So many people of a directory does `status` ask each node for: each can be a search of the directory."""
NAME = "[a-z_][a-z0-9_.-]{0,31}"


@dataclass(frozen=True)
class Person:
    """A person of a directory who has an association with an account in Slurm."""

    account: Annotated[str, text()]
    group: Annotated[str, text()]
    uid: Annotated[int, number(0, 1 << 32)]


@dataclass(frozen=True)
class Directory:
    """The record of slurm-directory on the head: people of a directory by name, and what it could not do."""

    people: Annotated[Mapping[str, Person], mapping(text(NAME, "a user name"), nested(Person), MAX_PEOPLE)]
    problems: Annotated[tuple[str, ...], sequence(text(), MAX_PEOPLE)]
    online: Annotated[bool, flag] = True
    """Whether a server of the directory responded. Otherwise a node does not know whom it has not met before."""


_NOBODY = Directory({}, ())


def directory(inventory: Inventory, access: Access) -> tuple[Directory, dict[str, ContactError]]:
    """Return what the first head that responds knows of the directory; nothing without one, problems if none does.

    If a head cannot be contacted, the error is there by its name: a second contact would only take as long again.
    """
    heads = [host for host in inventory.in_group(SLURM.head) if SSSD in host.groups]
    failed: dict[str, ContactError] = {}
    problems: list[str] = []
    answered = False
    for head in heads:  # each has the record of both, unless it was reinstalled
        try:
            with connect(head, access) as session:
                found = read(head, HeadCommands(session, head.name))
            if found is not _NOBODY:
                return found, failed
            answered = True
        except ContactError as error:
            failed[head.name] = error
            problems.append(f"people of the directory are not known: {head.name}: {error}")
        except HeadFailed as error:
            problems.append(f"people of the directory are not known: {error}")
    return _NOBODY if answered else Directory({}, tuple(problems)), failed


def read(head: Host, commands: HeadCommands) -> Directory:
    """Return the same over a connection to the head. Raises HeadFailed."""
    printed = commands.output(*_READ) if SSSD in head.groups else ""
    try:
        return decode(Directory, json.loads(printed)) if printed else _NOBODY
    except (Malformed, ValueError, RecursionError):
        return Directory({}, (f"{head.name}: {_RECORD} is not valid",))


def declared(host: Host) -> list[str]:
    """Return the people that the inventory lists for a host."""
    users = host.variables.get("users_accounts", ())
    return [str(user["name"]) for user in users if user.get("state") != "absent"][:MAX_PEOPLE]


def asked(host: Host, known: Directory, day: date | None = None) -> list[str]:
    """Return the people whose IDs a host is asked for: all, or of a directory with more people the SAMPLE of a day.

    The samples of one day after another have all people in turn.
    """
    of_directory = sorted(known.people) if SSSD in host.groups else []
    if day and len(of_directory) > SAMPLE:
        first = day.toordinal() * SAMPLE % len(of_directory)
        of_directory = (of_directory * 2)[first : first + SAMPLE]
    return list(dict.fromkeys([*declared(host), *of_directory]))[:MAX_PEOPLE]


def differences(
    names: Mapping[str, Sequence[str]], found: Mapping[str, PeopleIds], known: Directory = _NOBODY
) -> list[str]:
    """Return a line for each person with other IDs on some nodes, and for each node that does not resolve people.

    `names` are the people that each node was asked for. A person whom no node knows is not set up yet.
    """
    lines = [f"{node}: {ids.error}" for node, ids in found.items() if ids.error]
    answers: dict[str, dict[str, list[str]]] = {}
    for node, ids in found.items():
        for name in names[node] if not ids.error else ():
            answers.setdefault(name, {}).setdefault(ids.ids.get(name, ""), []).append(node)
    for name, nodes in sorted(answers.items()):
        if name in known.people and not known.online:
            nodes.pop("", None)
        if len(nodes) > 1:
            parts = [f"{one} on {fold(nodes[one])}" if one else f"none on {fold(nodes[one])}" for one in nodes]
            lines.append(f"{name} has different IDs (UID:GID): {'; '.join(parts)}")
    return lines


def compare(inventory: Inventory, hosts: Iterable[Host], access: Access) -> tuple[list[str], Directory]:
    """Ask these hosts for the IDs of people; return what differs. A host that does not respond is left out."""
    hosts = [*hosts]
    known, failed = directory(inventory, access)
    names = {host.name: asked(host, known) for host in hosts}
    options: dict[str, Any] = {name: {"people": people} for name, people in names.items()}
    responding = [host for host in hosts if host.name not in failed]
    answers = each(responding, lambda host: contact.ask(host, access, options[host.name]))
    found = {name: answer.facts.node.people for name, answer in answers.items() if answer.facts}
    return differences(names, found, known), known
