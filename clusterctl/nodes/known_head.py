"""The identity of the head that last received the cluster's secrets, stored on this machine.

A run copies everything that a replacement head needs to the head, including the vault password. Anyone who can write
the cluster's directory could enter another machine there, with its address, host key and hardware record.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from clusterctl.inventory.model import Host, Inventory
from clusterctl.nodes import known_hosts, route
from clusterctl.util import files
from clusterctl.util.untrusted import Malformed, decode, sequence, text
from clusterctl.workspace import hardware, secrets


@dataclass(frozen=True)
class Head:
    """The head's name in the inventory, SSH route, fingerprints of its host keys, and recorded machine id."""

    name: Annotated[str, text()]
    way: Annotated[str, text()]
    keys: Annotated[tuple[str, ...], sequence(text(), 64)]
    machine: Annotated[str, text()]


def of(inventory: Inventory, access: route.Access) -> Head:
    """Return the head's current identity in the cluster's directory. Raises InputError as `hardware.load`."""
    head = inventory.head
    record = hardware.path_of(inventory.directory, head.name)
    machine = hardware.load(record).machine_id if record.exists() else ""
    keys, _ = known_hosts.keys(access.known_hosts, route.of(head).name)
    return Head(head.name, _way(head), tuple(sorted(key.fingerprint for key in keys)), machine)


def _way(host: Host) -> str:
    own = f"{host.address} port {host.port or 'of ssh'}"
    return f"{own}, by {_way(host.jump)}" if host.jump else own


def load(directory: Path) -> Head | None:
    """Return the stored identity of the head; None if there is none or it cannot be read."""
    for path in (secrets.head_file(directory), secrets.old_head_file(directory)):
        try:
            return decode(Head, json.loads(files.read(path)))
        except (files.UnfitError, OSError, ValueError, Malformed):
            continue
    return None


def save(directory: Path, head: Head) -> None:
    """Store the head's identity. Raises OSError."""
    path = secrets.head_file(directory)
    files.make_private_directory(path.parent)
    files.write_atomically(path, (json.dumps(asdict(head)) + "\n").encode(), replace=True)
    secrets.old_head_file(directory).unlink(missing_ok=True)


def changes(before: Head, now: Head) -> Iterator[str]:
    """Yield a line for each difference; a key that is no longer recorded is none."""
    if before.name != now.name:
        yield f"its name: {before.name} before, {now.name} now"
    if before.way != now.way:
        yield f"its address: {before.way} before, {now.way} now"
    if new := [key for key in now.keys if key not in before.keys]:
        yield f"its host key: {', '.join(before.keys) or 'none'} before, {', '.join(new)} now"
    if before.machine and now.machine and before.machine != now.machine:
        yield f"its machine id: {before.machine} before, {now.machine} now"
