"""`upgrade`, `plan upgrade` and `reboot`: packages move to what the inventory or their sources say, around the jobs.

A rehearsal in Ansible's check mode finds what would move, and on which nodes; the others are left alone.
"""

import re
import shlex
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

from clusterctl.ansible.outcome import Ledger
from clusterctl.commands import backup, plan
from clusterctl.commands.plan import Plan
from clusterctl.inventory import schema, slurm_source
from clusterctl.run import converge
from clusterctl.run.converge import Options, Site, Work
from clusterctl.run.rolling import WORKERS, Pace, Rolling
from clusterctl.slurm.client import DRAIN, Head, Job
from clusterctl.ui.screen import Screen
from clusterctl.util.errors import ClusterctlError, InputError, PreflightError, Problem, WorkersFailed
from clusterctl.util.text import did_you_mean, fold, printable
from clusterctl.workspace import home

REBOOT = "reboot"
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
        return "upgrade-os" if self.system else "upgrade"

    @property
    def cause(self) -> str:
        """The cause for which nodes are out of service meanwhile: one kind does not mend what failed in the other."""
        return self.playbook

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


def upgrade(options: Options, what: What, pace: Pace) -> int:
    """Move packages: backup, the head, then the workers in batches. Returns the exit status."""
    pace.check()
    variables, known = what.variables(), home.load(options.inventory)
    if options.print_command:
        backed_up = shlex.join(["clusterctl", "backup", str(options.given)])
        site = converge.load(options, known)
        return _print(replace(site, playbook=what.playbook, variables=variables), what.cause, backed_up)
    told: dict[str, Any] = {}

    def finish(
        site: Site, ledger: Ledger, screen: Screen, play: Callable[[Site], ClusterctlError | None]
    ) -> ClusterctlError | None:
        there = tuple(host for host in site.hosts if host.name not in site.skipped)
        screen.say()
        screen.say(("rehearsal", "bold"), "  what would change, and where")
        rehearsal = replace(site, options=replace(site.options, check=True), hosts=there, skipped=())
        if error := play(replace(rehearsal, playbook=what.playbook, variables=variables)):
            lost = fold(ledger.ordered(ledger.lost()))
            untouched = WorkersFailed(f"{lost} cannot say what would change; nothing was changed on any node.")
            return untouched if isinstance(error, WorkersFailed) else error
        found = Plan.of(ledger, _affected(site, ledger))
        with Head.of(site.inventory.head, site.access) as head:
            due = {*_moved(found), *head.out_for(what.cause)}
        reboots = what.system or bool(found.reboots)
        rolling = Rolling(site, ledger, screen, play, what.cause, what.playbook, pace, variables, reboots=reboots)
        changes = found.changes.items()
        rolling.divided = {host for (_, one), hosts in changes if one.action == "partitioned" for host in hosts}
        if not due:
            return rolling.over(())
        found.show(screen)
        error = backup.make(site, ledger, screen, play) or rolling.over(due)
        told.update({"planned": found.as_dict(), "steps": rolling.steps, "failed": rolling.failed})
        return error

    return converge.run(options, known, Work(_begun, finish, told=told, plays=False))


def preview(options: Options, what: What) -> int:
    """Show what an upgrade would change, and whose jobs it would wait for; returns the exit status."""
    variables = what.variables()

    def begun(site: Site, screen: Screen) -> Site:
        return replace(_begun(site, screen), playbook=what.playbook, variables=variables)

    return plan.preview(options, home.load(options.inventory), begun=begun, affected=_affected)


def reboot(options: Options, pace: Pace) -> int:
    """Reboot nodes around their jobs, and prove that they came back as they were. Returns the exit status."""
    pace.check()
    known = home.load(options.inventory)
    names = [host.name for host in known.hosts]
    if unknown := [name for name in options.nodes if name not in names]:
        told = [(f'no host "{printable(name, 64)}"', did_you_mean(name, names)) for name in unknown]
        raise InputError([Problem(None, "NODE", what, hint) for what, hint in told])
    if options.print_command:
        return _print(converge.load(replace(options, limit=",".join(options.nodes)), known), REBOOT)
    told_of: dict[str, Any] = {}

    def finish(
        site: Site, ledger: Ledger, screen: Screen, play: Callable[[Site], ClusterctlError | None]
    ) -> ClusterctlError | None:
        rolling = Rolling(site, ledger, screen, play, REBOOT, REBOOT, pace, reboots=True)
        error = rolling.over(options.nodes)
        told_of.update({"steps": rolling.steps, "failed": rolling.failed})
        return error

    limit = ",".join(dict.fromkeys([known.head.name, *options.nodes]))
    work = Work(_begun, finish, told=told_of, plays=False)
    return converge.run(replace(options, limit=limit), known, work)


def _print(site: Site, cause: str, *first: str) -> int:
    """Print the plain command, which changes all nodes at once, and what keeps jobs out of its way."""
    workers = ",".join(host.name for host in site.hosts if WORKERS in host.groups)
    if not workers:
        return converge.print_command(site, first=first)
    on_head = f"on {site.inventory.head.name}"
    drain = shlex.join([DRAIN, cause, "--out", workers, "--reason", f"{cause} under way"])
    wait = f"{on_head}, until no job is listed: squeue --nodelist={workers}"
    back = f"{on_head}, for those that are well: sudo {shlex.join([DRAIN, cause, '--in', workers])}"
    return converge.print_command(site, first=[*first, f"{on_head}: sudo {drain}", wait], after=[back])


def _begun(site: Site, screen: Screen) -> Site:
    """Refuse (PreflightError) nodes that were never set up: they are no upgrade's."""
    from clusterctl.util.errors import Finding

    findings = []
    for host in site.hosts:
        part = "controller" if host.name in site.critical() else "worker" if WORKERS in host.groups else ""
        if part and host.name in site.facts and part not in site.facts[host.name].node.slurm:
            verb = "bootstrap" if part == "controller" else "add-node"
            findings.append(Finding(host.name, "upgrade", "was never set up", f"clusterctl {verb} first"))
    if findings:
        raise PreflightError(findings)
    return site


def _affected(site: Site, ledger: Ledger) -> list[Job]:
    """Return the jobs on the workers that a rehearsal would change; PreflightError for a change that cannot be."""
    found = Plan.of(ledger)
    _require_window(site, found, ledger)
    workers = [host.name for host in site.inventory.in_group(WORKERS) if host.name in _moved(found)]
    if not workers:
        return []
    with Head.of(site.inventory.head, site.access) as head:
        return head.jobs(workers)


def _moved(found: Plan) -> set[str]:
    return {*found.reboots, *(host for hosts in found.changes.values() for host in hosts)}


def _require_window(site: Site, found: Plan, ledger: Ledger) -> None:
    """Refuse (PreflightError) a Slurm that could not read the head's state, or not talk to a worker.

    Until the last batch the new head talks to old workers, so their versions count as well; so do those that stay.
    """
    from clusterctl.run.preflight import slurm_tables
    from clusterctl.util.errors import Finding

    _, oldest = slurm_tables()
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
            if wrong := [release for release in (to, was) if not oldest[new] <= release <= new]:
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
