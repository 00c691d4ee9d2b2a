"""`bootstrap`: build the cluster and repair what differs from the inventory."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from clusterctl.ansible import outcome
from clusterctl.commands.kubeconfig import StoreKubeconfig
from clusterctl.inventory.model import Host
from clusterctl.inventory.schedulers import KUBERNETES
from clusterctl.run import engine, proofs, pruning, scheduler, unchanged
from clusterctl.run.context import Options, Site
from clusterctl.run.entry import NoteInputs, Preflight, contact_phases
from clusterctl.run.phases import Phase, Run, Step
from clusterctl.run.plays import PATIENCE, Play, play
from clusterctl.util.errors import ClusterctlError, WorkersFailed
from clusterctl.util.text import fold


class Configure(Play):
    """Configure the nodes that were not left out, and record what the next run has to do."""

    def __init__(self) -> None:
        super().__init__("bootstrap", "Configure all nodes")

    def site(self, run: Run) -> Site:
        return replace(super().site(run), roles=run.roles)

    def run(self, run: Run) -> None:
        if not run.site.hosts:
            return
        whole = replace(run.site, hosts=run.site.inventory.hosts)
        tested = proofs.are_tested(run.site.state)
        if run.unchanged:
            proofs.forget(whole)  # until it is known that they need no test
        failed: ClusterctlError | None = None
        try:
            super().run(run)
        except WorkersFailed as raised:
            failed = raised
        unchanged.prove(run)
        problem: ClusterctlError | None = None
        informed = [name for name in run.site.inventory.informed if name in run.ledger.hosts]
        changed = [name for name in informed if _concerns_others(run.ledger.hosts[name])]
        if run.unchanged and (changed or not tested):
            names = fold(changed or informed)
            run.screen.say(f"{names} may have changed since all nodes were tested, so those left out are tested:")
            problem = play(run, replace(whole, playbook="verify"))
        if unchanged.OF_ALL not in run.ledger.notes and (problem is None or isinstance(problem, WorkersFailed)):
            good = {name: run.unchanged[name] for name in run.unchanged.keys() - run.ledger.lost()}
            proofs.add(whole, good, tested=run.is_whole and not run.options.limit)
        if error := failed or problem:
            raise error

    def plan(self, run: Run) -> None:
        if run.site.hosts:
            super().plan(run)


def _concerns_others(host: outcome.Host) -> bool:
    """Return whether a run changed more of a host than its copy of the cluster's directory."""
    changes = {change.name for _, change in host.changes}
    return bool(changes - {unchanged.COPY}) or (host.changed > 0 and not changes)


class UninstallUnused(Phase):
    """Uninstall the roles of groups that hosts have left, on hosts without jobs.

    Raises WorkersFailed with the hosts that have jobs.
    """

    title = "Uninstall unused roles"

    def run(self, run: Run) -> None:
        nodes = {name: found.node for name, found in run.site.facts.items()}
        due = [
            host
            for host in run.site.hosts
            if host.name in nodes and pruning.optional().intersection(pruning.unused(host, nodes[host.name].roles))
        ]
        pods = _with_pods(run.site, due)
        busy = [host.name for host in due if nodes[host.name].jobs or host.name in pods]
        idle = tuple(host for host in due if host.name not in busy)
        if not due:
            run.screen.say("  Nothing to uninstall.")
        if idle and (error := play(run, replace(run.site, hosts=idle, playbook="prune"), patience=PATIENCE)):
            raise error
        if busy:
            what = "Jobs or pods" if pods else "Jobs"
            raise WorkersFailed(f"{what} are running on {fold(busy)}; nothing was uninstalled there. Drain it first.")

    def describe(self, run: Run) -> Iterator[Step]:
        yield replace(run.site, playbook="prune")


def _with_pods(site: Site, hosts: Sequence[Host]) -> set[str]:
    """Return the hosts with pods; Slurm's jobs are known from the nodes themselves."""
    names = [host.name for host in hosts if host.scheduler is KUBERNETES]
    if not names:
        return set()
    with scheduler.connect(site, KUBERNETES) as controller:
        found = controller.workloads(names) if controller.is_set_up() else []
    return {one.as_dict()["node"] for one in found}


def bootstrap(options: Options, prune: bool = False, full: bool = False) -> int:
    """Build the cluster; with `prune`, uninstall roles that no group of a host has. Return the exit code.

    Nodes and roles with nothing to do are left out, unless `full`, `prune`, --adopt, --new-head or --limit is given.
    """
    leaves_out = not (full or prune or options.adopt or options.new_head or options.limit)
    phases = [
        NoteInputs(),
        *contact_phases(leaves_out=leaves_out),
        Preflight(proves=not options.limit, leaves_out=leaves_out),
        Configure(),
        StoreKubeconfig(),
        *[UninstallUnused()] * prune,
    ]
    return engine.execute(options, phases)
