"""Slurm's heads: one, or a primary and a back-up with the same state on shared storage."""

import re
from typing import TYPE_CHECKING

from clusterctl.inventory.document import shown
from clusterctl.inventory.reading import HostDraft, Reading
from clusterctl.inventory.schedulers import SLURM

if TYPE_CHECKING:
    from clusterctl.inventory.model import Inventory

STATE = "slurm_head_state_directory"
DATABASE, DATABASE_PASSWORD = "slurm_head_database_host", "slurm_head_database_host_password"
_EXTRA = "slurm_head_conf_extra"
_OURS = ("accountingstoragebackuphost", "accountingstoragehost", "slurmctldhost", "statesavelocation")
"""Options of slurm.conf that must agree with the two heads."""
# Of the head itself: the system's, those that one head uses without the variable, and homes, which daemons do not see.
_LOCAL = re.compile(
    r"/(?:|dev|etc|proc|run|sys|tmp|usr|var|var/tmp|var/lib|(?:home|root|var/lib/slurm|var/lib/clusterctl)(?:/.*)?)"
)
_PATH = re.compile(r"(?:/[A-Za-z0-9_][A-Za-z0-9._-]*)+|/")


def secrets(inventory: "Inventory") -> dict[str, str]:
    """Return the secret that a database elsewhere needs, with the variable that needs it."""
    elsewhere = {host.variables.get(DATABASE, "localhost") for host in inventory.in_group(SLURM.head)} - {"localhost"}
    return {DATABASE_PASSWORD: DATABASE} if elsewhere else {}


def check(reading: Reading) -> None:
    """Refuse more than two heads, and two that would not have the same state.

    Slurm's back-up takes over with what it reads in the directory: with another one, all jobs would be lost.
    """
    heads = [host for host in reading.hosts.values() if SLURM.head in host.groups]
    for host in {id(host.merged[STATE]): host for host in heads if STATE in host.merged}.values():
        _check_path(reading, host)
    if len(heads) < 2:
        return
    if len(heads) > 2:
        names = ", ".join(host.name for host in heads)
        message = f"more than two heads, got {names}, expected a primary and a back-up"
        reading.refuse(heads[2].position, f"all.children.{SLURM.head}", message)
        return
    if missing := [host for host in heads if not host.get(STATE, "")]:
        message = f"two heads need {STATE}, which {missing[0].name} does not have"
        hint = f"mount one storage on both, and set {STATE} in all.vars to a directory there"
        reading.refuse(heads[1].position, f"all.children.{SLURM.head}", message, hint)
    for name in (STATE, DATABASE):
        first, second = (host.get(name, "") for host in heads)
        if first != second and not (name == STATE and missing):
            message = f"differs between the heads, got {shown(str(first))!r} and {shown(str(second))!r}"
            reading.refuse(heads[1].place(name), name, message, "set it in all.vars")
    for host in heads:
        extra = host.merged.get(_EXTRA)
        for key in extra.value if extra and isinstance(extra.value, dict) else ():
            if str(key).lower() in _OURS:
                message = f"two heads have their own {shown(str(key))}, got another one for {host.name}"
                reading.refuse(
                    key.position, f"{_EXTRA}.{shown(str(key))}", message, f"remove it; {STATE} has the state"
                )


def _check_path(reading: Reading, host: HostDraft) -> None:
    """Refuse a directory that another head cannot have, or that a file of a node would read as something else."""
    node = host.merged[STATE]
    path = node.value
    if not isinstance(path, str) or not path:
        return  # its type was refused, or it is not set
    if not _PATH.fullmatch(path):
        reading.refuse(node.position, STATE, f'bad path, got "{shown(path)}", expected one such as /shared/slurm')
    elif _LOCAL.fullmatch(path):
        message = f"belongs to the head itself, got {shown(path)}, expected a directory that all heads mount"
        reading.refuse(node.position, STATE, message, "for example /shared/slurm")
