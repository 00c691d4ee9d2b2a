"""Shared directories that hosts mount: their defaults, units, and those of a host in the inventory.

Ansible's filters import `complete`; it names no variable of the inventory (see slurm_limits.py).
"""

from collections.abc import Mapping, Sequence
from typing import Any


def complete(
    given: Sequence[Mapping[str, Any]], options: Sequence[str], exports: Sequence[Mapping[str, Any]], server: str
) -> list[dict[str, Any]]:
    """Return the mounts of a host by path, each below another one after it: the server's exports, and those given.

    Each has `path`, `source`, `type`, `options` and `unit`, its name in systemd. A set-UID program or device file of a
    server would act as root on the node, so a mount has them only with the option `suid` or `dev`.
    """
    address = f"[{server}]" if ":" in server else server
    shared = [{"path": one["path"], "source": f"{address}:{one['path']}", "type": "nfs4"} for one in exports]
    mounts = [{"type": "nfs", "options": [*options], **one} for one in (*shared, *given)]
    complete = ({**one, "options": _safe(one["options"]), "unit": unit(one["path"])} for one in mounts)
    return sorted(complete, key=lambda one: str(one["path"]))


def _safe(options: Sequence[str]) -> list[str]:
    stated = {option for text in options for option in text.split(",")}
    return [*options, *(f"no{name}" for name in ("suid", "dev") if stated.isdisjoint((name, f"no{name}")))]


def unit(path: str) -> str:
    """Return the name of a path's mount unit: `systemd-escape --path --suffix=mount`."""
    parts = [part for part in path.split("/") if part]
    escaped = ["".join(map(_escape, part.encode())) for part in parts]
    return "-".join(escaped).replace(".", r"\x2e", escaped[0].startswith(".")) + ".mount"


def _escape(byte: int) -> str:
    character = chr(byte)
    return character if character.isascii() and (character.isalnum() or character in ":_.") else rf"\x{byte:02x}"
