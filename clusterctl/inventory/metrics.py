"""Metrics that are sent to another system: what its address and login must be."""

import re
from typing import TYPE_CHECKING

from clusterctl.inventory.document import Node
from clusterctl.inventory.reading import Reading

if TYPE_CHECKING:
    from clusterctl.inventory.model import Inventory

REMOTE_WRITE = "prometheus_remote_write"


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
    """Refuse a login without TLS or twice."""
    for host in reading.hosts.values():
        remote = host.merged.get(REMOTE_WRITE)
        if remote and isinstance(remote.value, dict):
            _check_remote(reading, {str(key): value for key, value in remote.value.items()})


def _check_remote(reading: Reading, fields: dict[str, Node]) -> None:
    url, login = fields.get("url"), [key for key in ("user", "token") if key in fields and fields[key].value]
    if url and not re.match(r"https?://", str(url.value)):
        reading.refuse(url.position, f"{REMOTE_WRITE}.url", f"got {url.describe()}, expected a URL of https or http")
    elif url and login and not str(url.value).startswith("https://"):
        reading.refuse(url.position, f"{REMOTE_WRITE}.url", "sends a login, expected a URL of https")
    if len(login) > 1:
        message = "has no effect beside user, expected one of them"
        reading.refuse(fields["token"].position, f"{REMOTE_WRITE}.token", message)
