"""Plan a verb: run its plays in Ansible's check mode, on a copy of the cluster's directory.

So the inventory, the hardware records and the secrets stay unchanged, even if a plan adds nodes, finds new ones, or is
the first run on a cluster. Exit code: 0 if nothing would change, 10 if something would change.
"""

import itertools
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.table import Table

from clusterctl.ansible.events import Change
from clusterctl.ansible.outcome import Ledger
from clusterctl.inventory.schedulers import SLURM, Kind, nouns
from clusterctl.run.context import Site
from clusterctl.run.scheduler import Workload
from clusterctl.ui.screen import Screen, at_commas
from clusterctl.util import files
from clusterctl.util.text import fold
from clusterctl.workspace import home, secrets

NOTHING, CHANGES = 0, 10
_REBOOT = "reboot"  # the role
_RESTARTS = ("restarted", "reloaded")
_CONTROL_PLANE = "control plane"  # the kind of a change; see plugins/modules/kubernetes_control_plane.py


@dataclass
class Plan:
    """Changes by role and item with their hosts, restarts of units, reboots of nodes, and jobs to wait for."""

    changes: dict[tuple[str, Change], list[str]] = field(default_factory=dict)
    restarts: dict[str, list[str]] = field(default_factory=dict)
    reboots: list[str] = field(default_factory=list)
    jobs: list[Workload] = field(default_factory=list)
    workload: str = SLURM.workload
    """The noun for the jobs: `job`, `pod`, or `workload` for both."""

    @classmethod
    def of(cls, ledger: Ledger, jobs: Sequence[Workload] = (), kinds: Sequence[Kind] = (SLURM,)) -> "Plan":
        """Build a plan from the ledger of a run in check mode, for a cluster with these schedulers."""
        plan = cls(jobs=list(jobs), workload=nouns(kinds))
        for name in ledger.ordered(ledger.hosts):
            for role, change in ledger.hosts[name].changes:
                if role == _REBOOT or change.action == "rebooted":
                    plan.reboots.append(name)
                    continue
                plan.changes.setdefault((role, change), []).append(name)
                if change.kind == "unit" and change.action in _RESTARTS:
                    plan.restarts.setdefault(f"{change.name} {change.what}", []).append(name)
                if change.kind == _CONTROL_PLANE and change.action in ("changed", "upgraded"):
                    restarted = plan.restarts.setdefault("Kubernetes' control plane restarted", [])
                    restarted += [name] if name not in restarted else []
        return plan

    @property
    def exit_code(self) -> int:
        """CHANGES if something would change, otherwise NOTHING."""
        return CHANGES if self.changes or self.reboots else NOTHING

    def moved(self) -> set[str]:
        """Return the hosts on which something would change."""
        return {*self.reboots, *(host for hosts in self.changes.values() for host in hosts)}

    def as_dict(self) -> dict[str, Any]:
        """Return the plan for `--output json`."""
        changes = self.changes.items()
        return {
            "changes": [{"role": role, **change.as_dict(), "hosts": hosts} for (role, change), hosts in changes],
            "restarts": [{"unit": unit, "hosts": hosts} for unit, hosts in self.restarts.items()],
            "reboots": self.reboots,
            "jobs": [job.as_dict() for job in self.jobs],
        }

    def show(self, screen: Screen) -> None:
        """Print the plan by role, each item once with its hosts; on a terminal each wraps within its column."""
        screen.say()
        rows = [
            (role, f"{change.kind} {change.name}" + f": {change.what}" * bool(change.what), fold(hosts))
            for (role, change), hosts in sorted(self.changes.items(), key=lambda item: item[0][0])
        ]
        hosts_width = min(max((len(hosts) for *_, hosts in rows), default=0), max(16, screen.width // 4))
        width = min(max((len(text) for _, text, _ in rows), default=0), screen.width - hosts_width - 9)
        for role, items in itertools.groupby(rows, key=lambda row: row[0]):
            screen.say((f"  {role or 'the playbook'}", "bold"))
            if not screen.is_terminal:
                for _, text, hosts in items:
                    screen.say(f"    ~ {text}  {hosts}")
                continue
            table = Table.grid(padding=(0, 2, 0, 0))
            table.add_column(width=5, style="yellow")
            table.add_column(width=width, overflow="fold")
            table.add_column(width=hosts_width, overflow="fold", style="dim")
            for _, text, hosts in items:
                table.add_row("    ~", text, at_commas(hosts, hosts_width))
            screen.print(table)
        screen.say(*([] if rows or self.reboots else ["  Nothing would change."]))
        # Drop the reason in brackets: the list above has it.
        restarts = [f"{unit.partition(' (')[0]} on {fold(hosts)}" for unit, hosts in self.restarts.items()]
        if any(change.name.startswith("/etc/slurm/") for _, change in self.changes):
            restarts.append("slurmd on each worker reads the new configuration and restarts itself; jobs continue")
        jobs = [f"{'to evict' if job.is_evicted else 'to wait for'}: {job}" for job in self.jobs[:10]]
        jobs += [f"and {len(self.jobs) - 10} more"] if len(self.jobs) > 10 else []
        _field(screen, "Services", restarts or ["no running service is restarted or reloaded"])
        _field(screen, "Reboots", [fold(self.reboots) or "none"])
        _field(screen, f"{self.workload.capitalize()}s", jobs or [f"no running {self.workload} is affected"])


def _field(screen: Screen, name: str, lines: Sequence[str]) -> None:
    for number, line in enumerate(lines):
        screen.hang((f"  {'' if number else name:<10}", "dim"), line)


@contextmanager
def on_a_copy(site: Site) -> Iterator[Site]:
    """Yield the site on a private copy of the cluster's directory, in check mode.

    In the copy, `.clusterctl` is a link to the real one, for the lock and the run's directory.
    """
    with tempfile.TemporaryDirectory(prefix="clusterctl-plan-") as parent:
        real = site.inventory.directory
        copy = Path(parent).resolve() / real.name  # keep the name: the head's copy of the directory contains it
        shutil.copytree(real, copy, symlinks=True, ignore=shutil.ignore_patterns(home.STATE, ".git"))
        files.make_private_directory(real / home.STATE)
        (copy / home.STATE).symlink_to(real / home.STATE)
        path = copy / site.inventory.path.name
        if path.is_symlink():  # replace a link by a copy: the plan must not write to its target
            path.unlink()
            path.write_bytes(site.inventory.path.read_bytes())
        fresh = not (copy / secrets.FILE).exists()
        try:
            yield replace(
                site,
                options=replace(site.options, check=True),
                inventory=replace(site.inventory, path=path, directory=copy),
                access=replace(site.access, known_hosts=copy / home.KNOWN_HOSTS),
            )
        finally:
            if fresh and (copy / secrets.FILE).exists():  # the plan generated secrets for a cluster without any
                secrets.forget(copy)
