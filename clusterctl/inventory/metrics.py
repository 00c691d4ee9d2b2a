"""Metrics: how long they are kept, and where they are sent."""

import re
from typing import TYPE_CHECKING

from clusterctl.inventory.document import Node, shown
from clusterctl.inventory.reading import Reading
from clusterctl.util import files

if TYPE_CHECKING:
    from clusterctl.inventory.model import Inventory

REMOTE_WRITE, SIZE = "prometheus_remote_write", "prometheus_retention_size"
# A share that fills the disk itself would raise DiskNearlyFull, which fires below 10 % of free space.
LARGEST_SHARE = 80  # per cent


def secrets(inventory: "Inventory") -> dict[str, str]:
    """Return the secrets that remote write needs, each with the variable that needs it."""
    found = {}
    for host in inventory.in_group("monitoring"):
        given = host.variables.get(REMOTE_WRITE, {})
        if given.get("user"):
            found["prometheus_remote_write_password"] = f"{REMOTE_WRITE}.user"
        if given.get("token"):
            found["prometheus_remote_write_token"] = f"{REMOTE_WRITE}.token"
    return found


def check(reading: Reading) -> None:
    """Refuse a login without TLS or twice, an authority that cannot be read, and a size that is none."""
    for host in reading.hosts.values():
        size, remote = host.merged.get(SIZE), host.merged.get(REMOTE_WRITE)
        if size and isinstance(size.value, str):
            _check_size(reading, size)
        if remote and isinstance(remote.value, dict):
            _check_remote(reading, {str(key): value for key, value in remote.value.items()})


def _check_size(reading: Reading, size: Node) -> None:
    share = re.fullmatch(r"(\d{1,3})%", str(size.value))
    if share and not 1 <= int(share[1]) <= LARGEST_SHARE:
        message = f"got {size.describe()}, expected 1% to {LARGEST_SHARE}%: other programs need space too"
        reading.refuse(size.position, SIZE, message)
    elif not share and not re.fullmatch(r"[1-9]\d*([KMGTPE]?B)", str(size.value)):
        reading.refuse(
            size.position, SIZE, f"got {size.describe()}, expected a size such as 20GB, or a share such as 20%"
        )


def _check_remote(reading: Reading, fields: dict[str, Node]) -> None:
    url, login = fields.get("url"), [key for key in ("user", "token") if key in fields and fields[key].value]
    if url and not re.match(r"https?://", str(url.value)):
        reading.refuse(url.position, f"{REMOTE_WRITE}.url", f"got {url.describe()}, expected a URL of https or http")
    elif url and login and not str(url.value).startswith("https://"):
        reading.refuse(url.position, f"{REMOTE_WRITE}.url", "sends a login, expected a URL of https")
    if len(login) > 1:
        message = "has no effect beside user, expected one of them"
        reading.refuse(fields["token"].position, f"{REMOTE_WRITE}.token", message)
    if authority := fields.get("authority"):
        directory, where = reading.path.parent, f"{REMOTE_WRITE}.authority"
        try:
            found = b"-----BEGIN CERTIFICATE-----" in files.read(directory / str(authority.value), inside=directory)
            wrong = "" if found else "holds no certificate in PEM form"
        except files.UnfitError as error:
            wrong = str(error)
        if wrong:
            reading.refuse(authority.position, where, f'the file "{shown(str(authority.value))}" {wrong}')
