"""Filters for Slurm's power saving: how each worker is switched on and off, and which ones stay on."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError

_MAC = "[0-9a-f]{2}(:[0-9a-f]{2}){5}"  # InfiniBand's are longer


def ways(
    records: Mapping[str, Mapping[str, Any]],
    addresses: Mapping[str, str],
    bmcs: Mapping[str, str],
    macs: Mapping[str, str],
) -> dict[str, dict[str, str]]:
    """Return by worker its ``bmc``, or its ``mac`` with the ``interface`` address; nothing if neither is known.

    ``records`` are the hardware records of the workers; a given MAC address has precedence over the recorded one.
    """
    return {name: _way(records[name], addresses[name], bmcs[name], macs[name]) for name in records}


def _way(record: Mapping[str, Any], address: str, bmc: str, mac: str) -> dict[str, str]:
    if bmc:
        return {"bmc": bmc}
    found = {
        nic["mac"]: interface
        for nic in record["nics"]
        for interface in nic["addresses"]
        if ipaddress.ip_interface(interface).ip == _ip(address) and re.fullmatch(_MAC, nic["mac"])
    }
    recorded, interface = next(iter(found.items()), ("", ""))
    known = mac.lower() or recorded
    return {"mac": known, **({"interface": interface} if interface else {})} if known else {}


def _ip(address: str) -> Any:
    try:
        return ipaddress.ip_address(address)
    except ValueError:
        return None


def problems(ways_of: Mapping[str, Mapping[str, str]], awake: Collection[str], command: str) -> list[str]:
    """Return what is wrong with workers that could not be switched on again."""
    lacking = [name for name, way in ways_of.items() if not way and name not in awake]
    if command or not lacking:
        return []
    message = "the hardware record has no MAC address of the interface with the cluster_address of"
    return [
        f"{message} {', '.join(lacking)}, so it could not be woken: set slurm_head_power_mac or slurm_head_power_bmc"
    ]


def exceptions(
    entries: Iterable[str], groups: Mapping[str, Sequence[str]], workers: Collection[str], awake: Collection[str]
) -> list[str]:
    """Return the parts of ``SuspendExcNodes``: `GROUP:N` first, then the workers that always stay awake.

    Slurm 22.05 reads a part without a number only at the end, and later releases divide the value at each comma, so a
    part with a number must be one range (_parse_exc_nodes in src/slurmctld/power_save.c). Raises AnsibleFilterError.
    """
    counted, names = list[str](), set(awake)
    for entry in entries:
        name, _, number = entry.partition(":")
        members = [one for one in groups.get(name, [name]) if one in workers]
        if not number:
            names.update(members)
        elif members:
            counted.append(f"{_range(entry, sorted(members))}:{min(int(number), len(members))}")
    return [*counted, *sorted(names)]


def _range(entry: str, names: Sequence[str]) -> str:
    """Return sorted names as one range of Slurm."""
    first, last = names[0], names[-1]
    stem = first.rstrip("0123456789")
    low, high = first[len(stem) :], last[len(stem) :]
    if len(names) == 1:
        return first
    if low and high.isdigit() and list(names) == [f"{stem}{n:0{len(low)}}" for n in range(int(low), int(high) + 1)]:
        return f"{stem}[{low}-{high}]"
    found = ", ".join(names)
    raise AnsibleFilterError(f"slurm_head_sleep_except: {entry}: expected workers with names of one range, got {found}")


def word(text: str, what: str) -> str:
    """Return a value for FreeIPMI's configuration file, which has no escape for blanks, quotes, # and backslashes."""
    if not re.fullmatch(r"[^\s\"'#\\]{1,20}", text):
        raise AnsibleFilterError(f"{what}: expected at most 20 characters without blanks, quotes, # and backslashes")
    return text


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {
            "slurm_power": ways,
            "slurm_power_problems": problems,
            "slurm_power_exceptions": exceptions,
            "slurm_power_word": word,
        }
