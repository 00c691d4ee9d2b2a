"""The identities of the heads that last received the cluster's secrets, stored on this machine.

A run copies everything that a replacement head needs to each head, including the vault password. Anyone who can write
the cluster's directory could enter another machine there, with its address, host key and hardware record.
"""

import json
from collections.abc import Iterator, Mapping
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
    """A head's name in the inventory, SSH route, fingerprints of its host keys, and recorded machine id."""

    name: Annotated[str, text()]
    way: Annotated[str, text()]
    keys: Annotated[tuple[str, ...], sequence(text(), 64)]
    machine: Annotated[str, text()]


def of(inventory: Inventory, access: route.Access) -> dict[str, Head]:
    """Return the heads' current identities in the cluster's directory. Raises InputError as `hardware.load`."""
    return {host.name: _identity(host, inventory, access) for host in inventory.hosts if host.is_head}


def _identity(host: Host, inventory: Inventory, access: route.Access) -> Head:
    record = hardware.path_of(inventory.directory, host.name)
    machine = hardware.load(record).machine_id if record.exists() else ""
    keys, _ = known_hosts.keys(access.known_hosts, route.of(host).name)
    return Head(host.name, _way(host), tuple(sorted(key.fingerprint for key in keys)), machine)


def _way(host: Host) -> str:
    own = f"{host.address} port {host.port or 'of ssh'}"
    return f"{own}, by {_way(host.jump)}" if host.jump else own


def load(directory: Path) -> dict[str, Head]:
    """Return the stored identities of the heads; none if there are none or they cannot be read."""
    for path in (secrets.head_file(directory), secrets.old_head_file(directory)):
        try:
            data = json.loads(files.read(path))
            # Earlier releases stored the only head.
            found = [decode(Head, one) for one in (data if isinstance(data, list) else [data])]
            return {head.name: head for head in found}
        except (files.UnfitError, OSError, ValueError, Malformed):
            continue
    return {}


def save(directory: Path, heads: Mapping[str, Head]) -> None:
    """Store the heads' identities. Raises OSError."""
    path = secrets.head_file(directory)
    files.make_private_directory(path.parent)
    files.write_atomically(path, (json.dumps(list(map(asdict, heads.values()))) + "\n").encode(), replace=True)
    secrets.old_head_file(directory).unlink(missing_ok=True)


def changes(before: Mapping[str, Head], now: Mapping[str, Head]) -> Iterator[tuple[str, str]]:
    """Yield a head's name and a line for each difference; a key that is no longer recorded is none."""
    gone = [head for name, head in before.items() if name not in now]
    for name, head in now.items():
        # An only head with a new name takes the place of the old one.
        old = before.get(name) or (gone[0] if len(gone) == len(now) == 1 else None)
        if old is None:
            yield name, f"it is a further head: {head.way}, host key {', '.join(head.keys) or 'not recorded'}"
        else:
            yield from ((name, line) for line in _differences(old, head))


def _differences(before: Head, now: Head) -> Iterator[str]:
    if before.name != now.name:
        yield f"its name: {before.name} before, {now.name} now"
    if before.way != now.way:
        yield f"its address: {before.way} before, {now.way} now"
    if new := [key for key in now.keys if key not in before.keys]:
        yield f"its host key: {', '.join(before.keys) or 'none'} before, {', '.join(new)} now"
    if before.machine and now.machine and before.machine != now.machine:
        yield f"its machine id: {before.machine} before, {now.machine} now"
