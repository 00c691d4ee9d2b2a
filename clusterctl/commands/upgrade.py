"""`upgrade`: packages move to what the inventory or their sources say, around the jobs.

A rehearsal in Ansible's check mode finds what would move, and on which nodes; the others are left alone.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

from clusterctl.ansible.outcome import Ledger
from clusterctl.commands.backup import MakeBackup
from clusterctl.inventory import schema, slurm_source
from clusterctl.run import engine, scheduler
from clusterctl.run.context import Options, Site
from clusterctl.run.entry import ENTRY
from clusterctl.run.phases import Phase, Run
from clusterctl.run.planning import Plan
from clusterctl.run.plays import play
from clusterctl.run.rolling import Pace, Rolling
from clusterctl.slurm import versions
from clusterctl.util.errors import Finding, InputError, PreflightError, Problem, WorkersFailed
from clusterctl.util.text import did_you_mean, fold, printable

_RELEASE = re.compile(r"(?:\d+:)?(\d+\.\d+)")  # Slurm's, at the beginning of a package's version
_NONE_OF_THEIR_OWN = ("containers", "packages", "verify")


@dataclass(frozen=True)
class What:
    """What an upgrade is of: the packages of our roles, or of those in `only`; or with `system` all others.

    After those a node is rebooted that has to be, unless `stay` says not to.
    """

    only: tuple[str, ...] = ()
    system: bool = False
    stay: bool = False

    @property
    def playbook(self) -> str:
        """The playbook, and the cause for which nodes are drained meanwhile: each kind resumes its own."""
        return "upgrade-os" if self.system else "upgrade"

    def flags(self) -> tuple[str, ...]:
        """Return its flags as they are typed."""
        roles = [word for role in self.only for word in ("--only", role)]
        return (*roles, *["--os"] * self.system, *["--no-reboot"] * self.stay)

    def variables(self) -> dict[str, Any]:
        """Return what the playbook is told of it; InputError for what cannot be meant."""
        known = roles()
        told = [
            (f'no role "{printable(role, 64)}"', did_you_mean(role, known)) for role in self.only if role not in known
        ]
        problems = [Problem(None, "--only", what, hint or ", ".join(sorted(known))) for what, hint in told]
        if self.only and self.system:
            problems.append(Problem(None, "--os", "is of the packages that are no role's", "leave out --only"))
        if self.stay and not self.system:
            problems.append(Problem(None, "--no-reboot", "goes with --os: nothing else reboots"))
        if problems:
            raise InputError(problems)
        return {"upgrade_roles": list(self.only)} if self.only else {"os_upgrade_reboot": False} if self.stay else {}


def roles() -> set[str]:
    """Return the roles that have packages of their own."""
    known = schema.load()
    return {role for mine in (known.common, *known.groups.values()) for role in mine} - {*_NONE_OF_THEIR_OWN}


def upgrade(options: Options, what: What, pace: Pace | None = None) -> int:
    """Move packages: backup, the head, then the workers in batches; return the exit code."""
    pace = pace or Pace()
    pace.check()
    rolling = Rolling("Upgrade the nodes", what.playbook, what.playbook, pace)
    rolling.variables = what.variables()
    phases = [
        *ENTRY,
        RequireSetUp(),
        Rehearse(rolling, what.system),
        MakeBackup(lambda: bool(rolling.due)),
        rolling,
    ]
    return engine.execute(options, phases)


class RequireSetUp(Phase):
    """Refuse nodes that were never set up: they are for bootstrap and add-node. PreflightError.

    With `--skip-unreachable` workers of that kind are left out instead.
    """

    title = "Require nodes that are set up"
    changes_nodes = announced = False

    def run(self, run: Run) -> None:
        site = run.site
        findings = []
        for host in site.hosts:
            part = "controller" if host.is_head else "worker" if host.is_worker else ""
            if part and host.name in site.facts and part not in site.facts[host.name].node.slurm:
                verb = "bootstrap" if part == "controller" else f"add-node {host.name}"
                findings.append(Finding(host.name, "upgrade", "was never set up", f"clusterctl {verb}"))
        workers = {host.name for host in site.hosts if not host.is_head}
        refused = [finding for finding in findings if not (run.options.skip_unreachable and finding.node in workers)]
        if refused:
            alone = {finding.node for finding in refused} <= workers
            hint = "With --skip-unreachable it continues without these workers." if alone else ""
            raise PreflightError(findings, hint)
        for finding in findings:
            run.screen.say((f"  {finding.node}", "bold"), f"  left out: {finding.found} ({finding.hint})")
        run.site = replace(site, skipped=(*site.skipped, *(finding.node for finding in findings)))

    def plan(self, run: Run) -> None:
        self.run(run)


class Rehearse(Phase):
    """Find what would change, and on which nodes, in Ansible's check mode.

    PreflightError for a move of Slurm that cannot be made.
    """

    title = "Rehearse: what would change, and where"
    changes_nodes = False

    def __init__(self, rolling: Rolling, reboots: bool) -> None:
        self.rolling, self.reboots = rolling, reboots

    def run(self, run: Run) -> None:
        found = self._rehearse(run)
        with scheduler.connect(run.site) as controller:
            self.rolling.due = {*found.moved(), *controller.drained_for(self.rolling.cause)}
        self.rolling.reboots = self.reboots or bool(found.reboots)
        changes = found.changes.items()
        self.rolling.divided = {host for (_, one), hosts in changes if one.action == "partitioned" for host in hosts}
        if self.rolling.due:
            found.show(run.screen)
            run.told["planned"] = found.as_dict()

    def plan(self, run: Run) -> None:
        run.jobs += self._rehearse(run).jobs

    def _rehearse(self, run: Run) -> Plan:
        site = run.site
        there = tuple(host for host in site.hosts if host.name not in site.skipped)
        check = replace(
            site,
            options=replace(site.options, check=True),
            hosts=there,
            skipped=(),
            playbook=self.rolling.playbook,
            variables=self.rolling.variables,
        )
        if error := play(run, check, more=True):
            if isinstance(error, WorkersFailed) and not run.options.planned:
                lost = fold(run.ledger.ordered(run.ledger.lost()))
                raise WorkersFailed(f"{lost} cannot say what would change; nothing was changed on any node.")
            raise error
        found = Plan.of(run.ledger)
        _require_window(site, found, run.ledger)
        workers = [host.name for host in site.inventory.workers if host.name in found.moved()]
        if workers:
            with scheduler.connect(site) as controller:
                found.jobs = list(controller.workloads(workers))
        return found


def _require_window(site: Site, found: Plan, ledger: Ledger) -> None:
    """Refuse (PreflightError) a Slurm that could not read the head's state, or not talk to a worker.

    Until the last batch the new head talks to old workers, so their versions count as well; so do those that stay.
    """
    oldest = versions.oldest()
    daemons = {name for part in slurm_source.DAEMONS for name in slurm_source.every(site.inventory, part)}
    moves = list(_slurm_moves(found, daemons))
    moved = {host for host, *_ in moves}
    moves += [(host, is_at, is_at) for host, is_at in _slurm_here(ledger, daemons) if moved and host not in moved]
    head = site.inventory.head.name
    new = next((release for host, release, _ in moves if host == head), None)
    findings = []
    if new and new not in oldest:
        findings.append(Finding(head, "slurm version", f"{new} is not known here", "use a later clusterctl"))
    elif new:
        for host, to, was in moves:
            if wrong := [release for release in (to, was) if not versions.work_together(new, release)]:
                told = f"Slurm {wrong[0]} and the head's {new}, which takes {oldest[new]} to {new}, do not go together"
                findings.append(Finding(host, "slurm version", told, "upgrade in smaller steps: slurm_head_version"))
    if findings:
        raise PreflightError(findings)


def _slurm_moves(found: Plan, daemons: Collection[str]) -> Iterator[tuple[str, str, str]]:
    """Yield host, new and old release of each Slurm daemon that would move."""
    for (_, change), hosts in found.changes.items():
        new, old = (_RELEASE.match(version) for version in (change.new, change.old))
        if change.kind == "package" and change.name in daemons and new and old:
            yield from ((host, new[1], old[1]) for host in hosts)


def _slurm_here(ledger: Ledger, daemons: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield host and release of each Slurm daemon that a rehearsal has found installed."""
    for packages in ledger.installed.values():
        for name, hosts in packages.items():
            for host, version in hosts.items() if name in daemons else ():
                if found := _RELEASE.match(version):
                    yield host, found[1]
