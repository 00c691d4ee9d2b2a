"""What a verb would do: its playbook in Ansible's check mode, on a copy of the cluster's directory.

So the inventory, the hardware records and the secrets stay as they are, though a plan may add nodes, meet new ones, or
be the first that a cluster sees. Exit status: 0 where nothing would change, 10 where something would.
"""

import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from clusterctl.ansible.events import Change
from clusterctl.ansible.outcome import Ledger
from clusterctl.inventory.model import Inventory
from clusterctl.run import converge
from clusterctl.run.converge import Options, Site, Work
from clusterctl.slurm.client import Job
from clusterctl.ui.screen import Screen, at_commas
from clusterctl.util import files
from clusterctl.util.errors import ClusterctlError
from clusterctl.util.text import fold
from clusterctl.workspace import home, secrets

if TYPE_CHECKING:
    from clusterctl.commands import membership

NOTHING, CHANGES = 0, 10
_REBOOT = "reboot"  # the role
_RESTARTS = ("restarted", "reloaded")


@dataclass
class Plan:
    """What would change, by role and item with its hosts; units and nodes that would start anew; jobs waited for."""

    changes: dict[tuple[str, Change], list[str]] = field(default_factory=dict)
    restarts: dict[str, list[str]] = field(default_factory=dict)
    reboots: list[str] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)

    @classmethod
    def of(cls, ledger: Ledger, jobs: Sequence[Job] = ()) -> "Plan":
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

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data for `--output json`."""
        changes = self.changes.items()
        return {
            "changes": [{"role": role, **change.as_dict(), "hosts": hosts} for (role, change), hosts in changes],
            "restarts": [{"unit": unit, "hosts": hosts} for unit, hosts in self.restarts.items()],
            "reboots": self.reboots,
            "jobs": [vars(job) for job in self.jobs],
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


def bootstrap(options: Options) -> int:
    """Plan a bootstrap; returns the exit status."""
    return preview(options, home.load(options.inventory))


def preview(
    options: Options,
    before: Inventory,
    change: "membership.Change | None" = None,
    leave: Callable[[Site, Path], tuple[Site, list[Job]]] | None = None,
    clean: Callable[[Site, Path], Site] | None = None,
    begun: Callable[[Site, Screen], Site] = lambda site, screen: replace(site, playbook="bootstrap"),
    affected: Callable[[Site, Ledger], list[Job]] = lambda site, ledger: [],
) -> int:
    """Show what a run would change, after this change of the inventory; returns the exit status.

    Where nodes are to leave, `leave` gives the site without them and the jobs that hold them, and `clean` the site that
    they are, with an inventory in a directory. `begun` is as a Work's; `affected` finds the jobs that would be waited
    for.
    """
    jobs: list[Job] = []
    told: dict[str, Any] = {}
    with _copy(before, change) as directory:

        def begin(site: Site, screen: Screen) -> Site:
            if leave:
                site, found = leave(site, directory)
                jobs.extend(found)
            return begun(site, screen)

        def finish(
            site: Site, ledger: Ledger, screen: Screen, play: Callable[[Site], ClusterctlError | None]
        ) -> ClusterctlError | None:
            jobs.extend(affected(site, ledger))
            return play(clean(site, directory)) if clean else None

        def conclude(ledger: Ledger, screen: Screen) -> int:
            plan = Plan.of(ledger, jobs)
            plan.show(screen)
            screen.say()
            told.update(plan.as_dict())
            return CHANGES if plan.changes or plan.reboots else NOTHING

        contacted = change.inventory if change and not leave else before  # who leaves is there yet
        contacted = replace(contacted, path=directory / before.path.name, directory=directory)
        return converge.run(replace(options, check=True), contacted, Work(begin, finish, conclude, told))


@contextmanager
def _copy(inventory: Inventory, change: "membership.Change | None") -> Iterator[Path]:
    """Give a private copy of the cluster's directory, after the change, which has the real one's `.clusterctl`."""
    with tempfile.TemporaryDirectory(prefix="clusterctl-plan-") as place:
        directory = inventory.directory
        made = Path(place).resolve() / directory.name  # which stands in the head's copy of it
        shutil.copytree(directory, made, symlinks=True, ignore=shutil.ignore_patterns(home.STATE, ".git"))
        files.make_private_directory(directory / home.STATE)
        (made / home.STATE).symlink_to(directory / home.STATE)
        path = made / inventory.path.name
        if change:
            path.unlink()  # where it is a link, what it leads to is nobody's copy
            path.write_text(change.new)
            files.discard(made / gone.relative_to(directory) for gone in change.gone)
        fresh = not (made / secrets.FILE).exists()
        try:
            yield made
        finally:
            if fresh and (made / secrets.FILE).exists():  # those of a cluster that does not exist yet
                secrets.forget(made)
