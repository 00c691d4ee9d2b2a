"""`upgrade`: upgrade packages to the versions in the inventory or in their repositories, around running jobs.

A run in Ansible's check mode finds the changes and their nodes. Nodes without changes are not touched.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

from clusterctl.ansible.outcome import Ledger
from clusterctl.commands.backup import MakeBackup
from clusterctl.inventory import schema, slurm_source
from clusterctl.inventory.model import Host
from clusterctl.inventory.schedulers import KUBERNETES, SLURM
from clusterctl.kubernetes import checks as kubernetes_checks
from clusterctl.nodes.contact import Node
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

_RELEASE = re.compile(r"(?:\d+:)?(\d+\.\d+)")  # Slurm's release at the start of a package version
_WITHOUT_PACKAGES = ("containers", "packages", "verify")


@dataclass(frozen=True)
class What:
    """What to upgrade: the packages of clusterctl's roles, or of the roles in `only`; with `system` all other packages.

    After a `system` upgrade, nodes that need a reboot are rebooted, unless `stay` is set.
    """

    only: tuple[str, ...] = ()
    system: bool = False
    stay: bool = False

    @property
    def playbook(self) -> str:
        """The playbook. It is also the drain cause, so each kind of upgrade resumes only the nodes it drained."""
        return "upgrade-os" if self.system else "upgrade"

    def flags(self) -> tuple[str, ...]:
        """Return the flags as typed."""
        roles = [word for role in self.only for word in ("--only", role)]
        return (*roles, *["--os"] * self.system, *["--no-reboot"] * self.stay)

    def variables(self) -> dict[str, Any]:
        """Return the variables of the playbook. Raises InputError for invalid options."""
        known = roles()
        problems = []
        for role in (role for role in self.only if role not in known):
            hint = did_you_mean(role, known) or ", ".join(sorted(known))
            problems.append(Problem(None, "--only", f'no role "{printable(role, 64)}"', hint))
        if self.only and self.system:
            problems.append(Problem(None, "--os", "upgrades the packages that no role has", "omit --only"))
        if self.stay and not self.system:
            problems.append(Problem(None, "--no-reboot", "needs --os: no other upgrade reboots nodes"))
        if problems:
            raise InputError(problems)
        return {"upgrade_roles": list(self.only)} if self.only else {"os_upgrade_reboot": False} if self.stay else {}


def roles() -> set[str]:
    """Return the roles that have packages."""
    known = schema.load()
    return {role for names in (known.common, *known.groups.values()) for role in names} - {*_WITHOUT_PACKAGES}


def upgrade(options: Options, what: What, pace: Pace | None = None) -> int:
    """Back up, then upgrade packages on the head and on the workers in batches; return the exit code."""
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
    """Raise PreflightError for nodes that were never configured: they need bootstrap or add-node.

    With `--skip-unreachable` such workers are skipped instead.
    """

    title = "Check that the nodes are configured"
    changes_nodes = announced = False

    def run(self, run: Run) -> None:
        site = run.site
        findings = []
        for host in site.hosts:
            part = "controller" if host.is_head else "worker" if host.is_worker else ""
            if part and host.name in site.facts and part not in _parts(host, site.facts[host.name].node):
                verb = "bootstrap" if part == "controller" else f"add-node {host.name}"
                findings.append(Finding(host.name, "upgrade", "was never configured", f"clusterctl {verb}"))
        workers = {host.name for host in site.hosts if not host.is_head}
        refused = [finding for finding in findings if not (run.options.skip_unreachable and finding.node in workers)]
        if refused:
            alone = {finding.node for finding in refused} <= workers
            hint = "With --skip-unreachable the run continues without these workers." if alone else ""
            raise PreflightError(findings, hint)
        for finding in findings:
            run.screen.say((f"  {finding.node}", "bold"), f"  skipped: {finding.found} ({finding.hint})")
        run.site = replace(site, skipped=(*site.skipped, *(finding.node for finding in findings)))

    def plan(self, run: Run) -> None:
        self.run(run)


def _parts(host: Host, node: Node) -> tuple[str, ...]:
    """Return the parts of its scheduler that a host has been set up as: "controller", "worker"."""
    return node.kubernetes if host.scheduler is KUBERNETES else node.slurm


class Rehearse(Phase):
    """Find in Ansible's check mode what would change, and on which nodes.

    Raises PreflightError for an upgrade of Slurm that is not possible.
    """

    title = "Check mode: find what would change"
    changes_nodes = False

    def __init__(self, rolling: Rolling, reboots: bool) -> None:
        self.rolling, self.reboots = rolling, reboots

    def run(self, run: Run) -> None:
        found = self._rehearse(run)
        due = found.moved()
        for kind in scheduler.all_of(run.site.inventory):
            with scheduler.connect(run.site, kind) as controller:
                due.update(controller.drained_for(self.rolling.cause))
        self.rolling.due = due
        self.rolling.reboots = self.reboots or bool(found.reboots)
        changes = found.changes.items()
        self.rolling.divided = {host for (_, one), hosts in changes if one.action == "partitioned" for host in hosts}
        if self.rolling.due:
            found.show(run.screen)
            run.summary["planned"] = found.as_dict()

    def plan(self, run: Run) -> None:
        run.jobs += self._rehearse(run).jobs

    def _rehearse(self, run: Run) -> Plan:
        site = run.site
        hosts = tuple(host for host in site.hosts if host.name not in site.skipped)
        check = replace(
            site,
            options=replace(site.options, check=True),
            hosts=hosts,
            skipped=(),
            playbook=self.rolling.playbook,
            variables=self.rolling.variables,
        )
        if error := play(run, check, more=True):
            if isinstance(error, WorkersFailed) and not run.options.planned:
                lost = fold(run.ledger.ordered(run.ledger.lost()))
                raise WorkersFailed(f"Check mode failed on {lost}; nothing was changed on any node.")
            raise error
        found = Plan.of(run.ledger, kinds=site.inventory.schedulers)
        _require_window(site, found, run.ledger)
        workers = [host.name for host in site.inventory.workers if host.name in found.moved()]
        for kind, names in scheduler.by_kind(site.inventory, workers).items():
            with scheduler.connect(site, kind) as controller:
                found.jobs += controller.workloads(names)
        return found


def _require_window(site: Site, found: Plan, ledger: Ledger) -> None:
    """Raise PreflightError for an upgrade that Slurm or Kubernetes does not support."""
    findings = [*_slurm_findings(site, found, ledger), *_kubernetes_findings(site, found, ledger)]
    if findings:
        raise PreflightError(findings)


def _slurm_findings(site: Site, found: Plan, ledger: Ledger) -> Iterator[Finding]:
    """Yield a Slurm that cannot read the head's state or cannot communicate with a worker.

    Until the last batch the new head communicates with old workers, so old versions are checked too. Hosts that are not
    upgraded are checked as well.
    """
    if SLURM not in scheduler.all_of(site.inventory):
        return
    oldest = versions.oldest()
    daemons = {name for part in slurm_source.DAEMONS for name in slurm_source.every(site.inventory, part)}
    moves = list(_slurm_moves(found, daemons))
    moved = {host for host, *_ in moves}
    installed = _installed(ledger, daemons, _RELEASE) if moved else ()
    moves += [(host, release, release) for host, release in installed if host not in moved]
    head = scheduler.head_of(site.inventory, SLURM).name
    new = next((release for host, release, _ in moves if host == head), None)
    if new and new not in oldest:
        message = f"Slurm {new} is not known to this version of clusterctl"
        yield Finding(head, "slurm version", message, "use a later clusterctl")
    elif new:
        for host, to, was in moves:
            if wrong := [release for release in (to, was) if not versions.work_together(new, release)]:
                message = f"Slurm {wrong[0]} is not compatible with {new} on the head (accepts {oldest[new]} to {new})"
                yield Finding(host, "slurm version", message, "upgrade in smaller steps: slurm_head_version")


def _kubernetes_findings(site: Site, found: Plan, ledger: Ledger) -> Iterator[Finding]:
    """Yield a change of Kubernetes' release that kubeadm or the version skew policy refuses."""
    moves = {
        host: (change.old, change.new)
        for (_, change), hosts in found.changes.items()
        if change.kind == "package" and change.name == kubernetes_checks.DAEMON
        for host in hosts
    }
    if moves:
        present = dict(_installed(ledger, {kubernetes_checks.DAEMON}, re.compile("(.*)")))
        yield from kubernetes_checks.upgrade(site.inventory, moves, present)


def _slurm_moves(found: Plan, daemons: Collection[str]) -> Iterator[tuple[str, str, str]]:
    """Yield host, new and old release of each Slurm daemon that would be upgraded."""
    for (_, change), hosts in found.changes.items():
        new, old = (_RELEASE.match(version) for version in (change.new, change.old))
        if change.kind == "package" and change.name in daemons and new and old:
            yield from ((host, new[1], old[1]) for host in hosts)


def _installed(ledger: Ledger, names: Collection[str], release: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    """Yield host and release of each of these packages that check mode found installed."""
    for packages in ledger.installed.values():
        for name, hosts in packages.items():
            for host, version in hosts.items() if name in names else ():
                if found := release.match(version):
                    yield host, found[1]
