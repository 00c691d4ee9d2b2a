"""Slurm's power saving: workers that exist, and all that a BMC needs."""

import re
from typing import TYPE_CHECKING

from clusterctl.inventory.document import Node, shown
from clusterctl.inventory.reading import Reading
from clusterctl.inventory.schedulers import SLURM
from clusterctl.inventory.slurm_policy import Given
from clusterctl.util.text import did_you_mean

if TYPE_CHECKING:
    from clusterctl.inventory.model import Inventory

AFTER, EXCEPT, COMMAND = "slurm_head_sleep_after", "slurm_head_sleep_except", "slurm_head_power_command"
BMC, BMC_USER, BMC_PASSWORD = "slurm_head_power_bmc", "slurm_head_power_bmc_user", "slurm_head_power_bmc_password"


def secrets(inventory: "Inventory") -> dict[str, str]:
    """Return the secret that IPMI needs, with the variable that needs it."""
    heads = inventory.in_group(SLURM.head)
    sleeps = any(head.variables.get(AFTER) and not head.variables.get(COMMAND) for head in heads)
    has_bmcs = any(host.variables.get(BMC) for host in inventory.in_group(SLURM.workers))
    return {BMC_PASSWORD: BMC} if sleeps and has_bmcs else {}


def check(reading: Reading, given: Given) -> None:
    """Refuse exceptions that are no workers, and BMCs without a user. `given` returns the values of a variable."""
    workers = [host for host in reading.hosts.values() if SLURM.workers in host.groups]
    below = [name for name, group in reading.groups.items() if SLURM.workers in (name, *group.lineage)]
    known = [*(host.name for host in workers), *below]
    for node in given(reading, EXCEPT):
        for entry in node.value if isinstance(node.value, list) else ():
            _check_entry(reading, entry, known)
    heads = [host for host in reading.hosts.values() if SLURM.head in host.groups]
    user = next((host.merged[BMC_USER] for host in heads if BMC_USER in host.merged), None)
    bmcs: dict[str, str] = {}
    for host in workers:
        bmc = host.merged.get(BMC)
        if bmc is None or not bmc.value:
            continue
        if user is None or not user.value:
            reading.refuse(bmc.position, BMC, f"needs {BMC_USER} for the head", f"set {BMC_USER} in all.vars")
        if (other := bmcs.setdefault(str(bmc.value), host.name)) != host.name:
            reading.refuse(bmc.position, BMC, f"got {shown(str(bmc.value))}, which {other} has too")


def _check_entry(reading: Reading, entry: Node, known: list[str]) -> None:
    name, colon, number = str(entry.value).partition(":")
    if name not in known:
        message = f'not a worker or a sub-group of {SLURM.workers}, got "{shown(name)}"'
        reading.refuse(entry.position, EXCEPT, message, did_you_mean(name, known))
    elif colon and not re.fullmatch("[1-9][0-9]{0,4}", number):
        reading.refuse(entry.position, EXCEPT, f'got "{shown(number)}" after the colon, expected a number from 1')
