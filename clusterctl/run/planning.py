"""What a verb would change: its plays in Ansible's check mode, on a copy of the cluster's directory.

So the inventory, the hardware records and the secrets stay as they are, though a plan may add nodes, meet new ones, or
be the first that a cluster sees. Exit code: 0 where nothing would change, 10 where something would.
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
from clusterctl.run.context import Site
from clusterctl.run.scheduler import Workload
from clusterctl.ui.screen import Screen, at_commas
from clusterctl.util import files
from clusterctl.util.text import fold
from clusterctl.workspace import home, secrets

NOTHING, CHANGES = 0, 10
_REBOOT = "reboot"  # the role
_RESTARTS = ("restarted", "reloaded")


@dataclass
class Plan:
    """What would change, by role and item with its hosts; units and nodes that would start anew; jobs waited for."""

    changes: dict[tuple[str, Change], list[str]] = field(default_factory=dict)
    restarts: dict[str, list[str]] = field(default_factory=dict)
    reboots: list[str] = field(default_factory=list)
    jobs: list[Workload] = field(default_factory=list)

    @classmethod
    def of(cls, ledger: Ledger, jobs: Sequence[Workload] = ()) -> "Plan":
        """Read a plan from a run in check mode."""
        plan = cls(jobs=list(jobs))
        for name in ledger.ordered(ledger.hosts):
            for role, change in ledger.hosts[name].changes:
                if role == _REBOOT or change.action == "rebooted":
                    plan.reboots.append(name)
                    continue
                plan.changes.setdefault((role, change), []).append(name)
                if change.kind == "unit" and change.action in _RESTARTS:
                    plan.restarts.setdefault(f"{change.name} {change.what}", []).append(name)
        return plan

    @property
    def exit_code(self) -> int:
        """Whether something would change, as an exit code."""
        return CHANGES if self.changes or self.reboots else NOTHING

    def moved(self) -> set[str]:
        """Return the hosts on which something would change."""
        return {*self.reboots, *(host for hosts in self.changes.values() for host in hosts)}

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data for `--output json`."""
        changes = self.changes.items()
        return {
            "changes": [{"role": role, **change.as_dict(), "hosts": hosts} for (role, change), hosts in changes],
            "restarts": [{"unit": unit, "hosts": hosts} for unit, hosts in self.restarts.items()],
            "reboots": self.reboots,
            "jobs": [job.as_dict() for job in self.jobs],
        }

    def show(self, screen: Screen) -> None:
        """Print it: role by role, each item once with its hosts; on a terminal each wraps within its column."""
        screen.say()
        rows = [
            (role, f"{change.kind} {change.name}" + f": {change.what}" * bool(change.what), fold(hosts))
            for (role, change), hosts in sorted(self.changes.items(), key=lambda item: item[0][0])
        ]
        hosts_width = min(max((len(hosts) for *_, hosts in rows), default=0), max(16, screen.width // 4))
        width = min(max((len(told) for _, told, _ in rows), default=0), screen.width - hosts_width - 9)
        for role, items in itertools.groupby(rows, key=lambda row: row[0]):
            screen.say((f"  {role or 'the playbook'}", "bold"))
            if not screen.is_terminal:
                for _, told, hosts in items:
                    screen.say(f"    ~ {told}  {hosts}")
                continue
            table = Table.grid(padding=(0, 2, 0, 0))
            table.add_column(width=5, style="yellow")
            table.add_column(width=width, overflow="fold")
            table.add_column(width=hosts_width, overflow="fold", style="dim")
            for _, told, hosts in items:
                table.add_row("    ~", told, at_commas(hosts, hosts_width))
            screen.print(table)
        screen.say(*([] if rows or self.reboots else ["  Nothing would change."]))
        # Why, stands above.
        restarts = [f"{unit.partition(' (')[0]} on {fold(hosts)}" for unit, hosts in self.restarts.items()]
        if any(change.name.startswith("/etc/slurm/") for _, change in self.changes):
            restarts.append("each worker's slurmd takes the new configuration and starts itself anew, its jobs go on")
        jobs = [f"would be waited for: {job}" for job in self.jobs[:10]]
        jobs += [f"and {len(self.jobs) - 10} more"] if len(self.jobs) > 10 else []
        _field(screen, "Services", restarts or ["none that runs is restarted or reloaded"])
        _field(screen, "Reboots", [fold(self.reboots) or "none"])
        _field(screen, "Jobs", jobs or ["no running job is affected"])


def _field(screen: Screen, name: str, lines: Sequence[str]) -> None:
    for number, line in enumerate(lines):
        screen.hang((f"  {'' if number else name:<10}", "dim"), line)


@contextmanager
def on_a_copy(site: Site) -> Iterator[Site]:
    """Give the site on a private copy of the cluster's directory, in check mode.

    The copy has the real directory's `.clusterctl`, for the lock and the run's directory.
    """
    with tempfile.TemporaryDirectory(prefix="clusterctl-plan-") as place:
        real = site.inventory.directory
        made = Path(place).resolve() / real.name  # which stands in the head's copy of it
        shutil.copytree(real, made, symlinks=True, ignore=shutil.ignore_patterns(home.STATE, ".git"))
        files.make_private_directory(real / home.STATE)
        (made / home.STATE).symlink_to(real / home.STATE)
        path = made / site.inventory.path.name
        if path.is_symlink():  # what it leads to is nobody's copy
            path.unlink()
            path.write_bytes(site.inventory.path.read_bytes())
        fresh = not (made / secrets.FILE).exists()
        try:
            yield replace(
                site,
                options=replace(site.options, check=True),
                inventory=replace(site.inventory, path=path, directory=made),
                access=replace(site.access, known_hosts=made / home.KNOWN_HOSTS),
            )
        finally:
            if fresh and (made / secrets.FILE).exists():  # those of a cluster that does not exist yet
                secrets.forget(made)
