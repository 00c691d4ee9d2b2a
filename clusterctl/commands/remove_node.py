"""`remove-node`: remove nodes from the cluster, whether they respond or not: workers, and heads of Kubernetes."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from clusterctl.inventory import schedulers
from clusterctl.inventory.model import Host, Inventory
from clusterctl.inventory.schedulers import Kind
from clusterctl.nodes.parallel import each
from clusterctl.nodes.remote import connect
from clusterctl.nodes.session import ContactError
from clusterctl.run import engine, membership, proofs, removals, scheduler
from clusterctl.run.context import Options, Site
from clusterctl.run.draining import Drain
from clusterctl.run.entry import ENTRY, keep_head
from clusterctl.run.membership import ConfirmChange, RequireResponse
from clusterctl.run.phases import Phase, Run, Step
from clusterctl.run.plays import Play
from clusterctl.run.scheduler import ControlPlane
from clusterctl.slurm import versions
from clusterctl.util.errors import Finding, InputError, PreflightError, Problem, WorkersFailed
from clusterctl.util.text import fold, plural
from clusterctl.workspace import edits, hardware, home
from clusterctl.workspace.edits import Change

_REASON = "it is being removed"
_RESOLVERS = "Every node has {} as a server of names and time: contacting all {{}} hosts. Pods continue."
_UNCLEANED = {
    schedulers.SLURM: "was not cleaned: it still has the cluster's munge key. Wipe it before you use it again.",
    schedulers.KUBERNETES: "was not cleaned: it still has credentials of Kubernetes. Wipe it before you use it again.",
}


def remove_node(options: Options, dead: bool, force: bool = False, minutes: float | None = None) -> int:
    """Drain nodes, wait for their jobs and pods, unregister them on a head, and clean them; return the exit code.

    With `dead` the nodes are not contacted. With `force` their jobs are cancelled. `minutes` limits the wait for jobs
    (None: no limit). After that the nodes stay drained and nothing is removed (exit code 4). The same command resumes
    an interrupted removal, even if the nodes are no longer in the inventory.
    Raises InputError for nodes that cannot be removed.
    """
    before = home.load(options.inventory)
    names = list(dict.fromkeys(options.nodes))
    workers = [host.name for host in before.workers]
    begun = {name: found for name in names if name not in workers and (found := removals.load(before, name))}
    present = [name for name in names if name not in begun]
    _require_removable(before, present, workers)
    change = edits.removing(before, options.inventory, present)
    nodes = {name: begun.get(name) or removals.Node.of(before.host(name), before) for name in names}
    stay = _staying(options, before, change, nodes)
    heads = [name for name in present if before.host(name).is_head]
    kinds = scheduler.by_kind(before, present)
    drain = Drain("remove-node", present, _REASON, force=force, minutes=minutes, kinds=kinds)
    phases = [
        ConfirmChange(change, f"Remove {fold(present)} from {before.cluster_name}?"),
        *ENTRY,
        RequireResponse(present, "cannot be cleaned"),
        *[RequireDead(present)] * (dead and not force),
        *[RequireQuorum(heads)] * bool(heads),
        MarkDown("remove-node", present, kinds) if dead else drain,
        *[LeaveQuorum([before.host(name) for name in heads], dead)] * bool(heads),
        RemoveFromDirectory(change, nodes, stay, dead),
        ConfigureRemaining(),
        Unregister(nodes),
        WarnUncleaned(before, nodes, begun) if dead else Clean(nodes),
        *[ReportSkipped()] * bool(options.skip_unreachable),
    ]
    try:
        reached = [] if dead or options.print_command else present
        options = replace(options, limit=",".join([*stay, *reached]))
        return engine.execute(options, phases, change.inventory if options.print_command else before)
    except PreflightError as error:
        error = membership.without_hint(error, present)
        raise PreflightError([_suggest_dead(problem, present) for problem in error.problems], error.hint) from None


def _staying(options: Options, before: Inventory, change: Change, nodes: Mapping[str, removals.Node]) -> Sequence[str]:
    """Return the remaining hosts whose configuration changes with the list of nodes.

    `nodes` are the removed ones, those of an interrupted removal too: they have left the inventory.
    """
    kinds = {name: schedulers.of_groups(node.groups) for name, node in nodes.items()}
    reason = ""
    if heads := [name for name, kind in kinds.items() if kind and kind.head in nodes[name].groups]:
        reason = _RESOLVERS.format(fold(heads))
    elif schedulers.SLURM in kinds.values() and versions.learns_by_restart(before):
        reason = membership.BY_RESTART
    if not reason:
        return change.inventory.informed
    stay = [host.name for host in change.inventory.hosts]
    options.screen().say(reason.format(len(stay)))
    return stay


class RequireQuorum(Phase):
    """Raise PreflightError if Kubernetes would lose its quorum without these heads."""

    title = "Check that the other heads are enough"
    changes_nodes = announced = False

    def __init__(self, heads: Sequence[str]) -> None:
        self.heads = heads

    def run(self, run: Run) -> None:
        for kind, names in scheduler.by_kind(run.site.inventory, self.heads).items():
            with _without(run.site, kind, names) as controller:
                problem = controller.removal_problem(names) if controller.is_set_up() else ""
            if problem:
                hint = "repair the other heads first, or replace the dead one: clusterctl replace-node"
                raise PreflightError([Finding(names[0], "quorum", problem, hint)])

    def plan(self, run: Run) -> None:
        self.run(run)


class LeaveQuorum(Phase):
    """Remove heads from the quorum, before the firewalls of the other heads exclude them.

    A head's API stops first. Without its member of etcd it would keep its clients' connections, and answer nothing.
    """

    def __init__(self, heads: Sequence[Host], dead: bool = False) -> None:
        self.heads, self.dead = heads, dead
        self.title = f"Remove {fold([host.name for host in heads])} from etcd"

    def run(self, run: Run) -> None:
        site = run.site
        for kind, names in scheduler.by_kind(site.inventory, [host.name for host in self.heads]).items():
            with _without(site, kind, names) as controller:
                if not controller.is_set_up():
                    continue
                for host in self.heads if not self.dead else ():
                    with scheduler.control_plane_of(kind).connect(host, site.access) as head:
                        head.stop_serving()
                controller.leave(names)

    def describe(self, run: Run) -> Iterator[Step]:
        for host in self.heads:
            if host.scheduler and not self.dead:
                stop = scheduler.control_plane_of(host.scheduler).stop_serving_command()
                yield f"on {host.name}, so that its clients use another head: {stop}"
            yield f"on another head: sudo /usr/local/sbin/kubernetes-etcd --remove {host.name}"


def _without(site: Site, kind: Kind, names: Sequence[str]) -> ControlPlane:
    """Connect to a control plane through a head that is not one of these."""
    return scheduler.control_plane(replace(site, skipped=(*site.skipped, *names)), kind)


class RequireDead(Phase):
    """Raise PreflightError for nodes that respond both to their scheduler and to SSH.

    A scheduler alone needs a minute or more to notice that a node is down.
    """

    title = "Check that the nodes are down"
    changes_nodes = announced = False

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names

    def should_run(self, run: Run) -> bool:
        return bool(self.names)

    def run(self, run: Run) -> None:
        from clusterctl.nodes.contact import UNREACHABLE

        access = run.site.access

        def is_responding(host: Host) -> bool:
            try:
                connect(host, access).close()
            except ContactError as error:
                return error.failure not in UNREACHABLE
            return True

        registered: list[Host] = []
        for kind, names in scheduler.by_kind(run.site.inventory, self.names).items():
            with scheduler.connect(replace(run.site, skipped=(*run.site.skipped, *names)), kind) as controller:
                known = [name for name in names if controller.is_set_up() and controller.hears_from(name)]
            registered += [run.site.inventory.host(name) for name in known]
        hint = "omit --dead to clean it as well, or use --force to remove it without cleaning"
        responding = each(registered, is_responding)
        if alive := [host for host in registered if responding[host.name]]:
            raise PreflightError([Finding(host.name, "dead", _responds(host), hint) for host in alive])


class MarkDown(Drain):
    """Drain nodes that do not respond, and mark them as down in the scheduler."""

    def __init__(self, cause: str, nodes: Sequence[str], kinds: Mapping[Kind, Sequence[str]]) -> None:
        super().__init__(cause, nodes, _REASON, wait=False, kinds=kinds)
        self.title = f"Mark {fold(nodes)} as down"

    def finish(self, run: Run, controller: scheduler.Scheduler, kind: Kind, nodes: Sequence[str]) -> None:
        controller.mark_down(nodes, f"{self.cause} --dead")

    def describe(self, run: Run) -> Iterator[Step]:
        yield from super().describe(run)
        for kind, nodes in self.by_kind(run.site).items():
            for command in scheduler.of(kind).mark_down_commands(nodes, f"{self.cause} --dead"):
                yield f"on {scheduler.head_of(run.site.inventory, kind).name}: {command}"

    def plan(self, run: Run) -> None:
        self.plan_workloads(run)


class RemoveFromDirectory(Phase):
    """Remove nodes from the inventory, the hardware records and known_hosts; keep what is needed to clean them."""

    title = "Remove the nodes from the cluster's directory"

    def __init__(
        self, change: Change, nodes: Mapping[str, removals.Node], stay: Sequence[str], dead: bool = False
    ) -> None:
        self.change, self.nodes, self.stay, self.dead = change, nodes, stay, dead

    def run(self, run: Run) -> None:
        for node in self.nodes.values():
            removals.save(run.site.state, node)
        before = run.site.inventory.heads
        removed = tuple(host for host in run.site.inventory.hosts if host.name in self.nodes)
        proofs.forget(replace(run.site, hosts=removed))
        self.plan(run)
        if run.site.inventory.heads != before:  # confirmed with the removal; the next run must not ask about it
            keep_head(run.site, run.screen)

    def plan(self, run: Run) -> None:
        directory = run.site.inventory.directory
        after = self.change.save(directory)
        for name in self.nodes:
            hardware.path_of(directory, name).unlink(missing_ok=True)
        removals.forget_keys(run.site.access.known_hosts, self.nodes.values(), after)
        self._limit_to_remaining(run, after)

    def _limit_to_remaining(self, run: Run, after: Inventory) -> None:
        remaining = tuple(host for host in after.hosts if host.name in self.stay)
        run.site = replace(run.site, inventory=after, hosts=remaining)

    def describe(self, run: Run) -> Iterator[Step]:
        site = run.site
        if not self.dead:
            yield from _describe_cleaning(site, list(self.nodes.values()))
        if self.change:
            yield f"change {self.change.path.parent}:\n{self.change.diff()}"
        yield shlex.join(["rm", "-f", *(str(hardware.path_of(site.inventory.directory, name)) for name in self.nodes)])
        yield f"remove the host keys of {fold(list(self.nodes))} from {site.access.known_hosts}"
        self._limit_to_remaining(run, self.change.inventory)


def _describe_cleaning(site: Site, nodes: Sequence[removals.Node]) -> Iterator[str]:
    """Yield the manual steps that create the directory from which the nodes are cleaned."""
    cleaning = removals.unwritten(site, nodes)
    folder = cleaning.inventory.directory
    copy = shlex.join(["cp", str(site.access.known_hosts), str(folder / home.KNOWN_HOSTS)])
    yield f"{shlex.join(['mkdir', '-p', str(folder)])} && {copy}"
    known = home.known_hosts(site.access.known_hosts)
    for line in sorted({line for node in nodes for line in node.keys} - {*known}):
        yield f"add to it: {line}"
    yield f"write {cleaning.inventory.path}:\n{removals.inventory_text(cleaning, nodes)}"


class ConfigureRemaining(Play):
    """Configure the remaining hosts. Skipped ones do not end the run: the nodes have left the inventory already."""

    def __init__(self) -> None:
        super().__init__("bootstrap", "Configure the remaining hosts")

    def site(self, run: Run) -> Site:
        hosts = tuple(host for host in run.site.hosts if host.name not in run.site.skipped)
        return replace(super().site(run), hosts=hosts, skipped=())


class ReportSkipped(Phase):
    """Raise WorkersFailed for skipped hosts, which do not know yet that the nodes are gone."""

    title = "Check that no host was skipped"
    changes_nodes = announced = False

    def run(self, run: Run) -> None:
        if run.site.skipped:
            run.resume_with = "bootstrap"
            raise WorkersFailed(f"{fold(run.site.skipped)} skipped; everything else is done.")


class Unregister(Phase):
    """Remove nodes from their schedulers."""

    def __init__(self, nodes: Mapping[str, removals.Node]) -> None:
        self.title = f"Unregister {fold(list(nodes))}"
        self.kinds: dict[Kind, list[str]] = {}
        for name, node in nodes.items():
            if kind := schedulers.of_groups(node.groups):
                self.kinds.setdefault(kind, []).append(name)

    def run(self, run: Run) -> None:
        for kind, names in self.kinds.items():
            with scheduler.connect(run.site, kind) as controller:
                controller.forget(names)

    def describe(self, run: Run) -> Iterator[Step]:
        for kind, names in self.kinds.items():
            yield f"on {scheduler.head_of(run.site.inventory, kind).name}: {scheduler.of(kind).forget_command(names)}"


class Clean(Play):
    """Uninstall everything on removed nodes."""

    def __init__(self, nodes: Mapping[str, removals.Node]) -> None:
        super().__init__("remove-node", f"Clean {fold(list(nodes))}")
        self.nodes = nodes

    def site(self, run: Run) -> Site:
        nodes = list(self.nodes.values())
        return (removals.unwritten if run.options.print_command else removals.written)(run.site, nodes)

    def run(self, run: Run) -> None:
        super().run(run)
        removals.forget(run.site.state, self.nodes)


class WarnUncleaned(Phase):
    """Warn about nodes that still have the cluster's secrets."""

    title = "List the nodes that were not cleaned"

    def __init__(
        self, before: Inventory, nodes: Mapping[str, removals.Node], begun: Mapping[str, removals.Node]
    ) -> None:
        self.nodes = nodes
        # Nodes that a run configured: their removal began earlier, or they have a hardware record.
        self.configured = [n for n in nodes if n in begun or hardware.path_of(before.directory, n).exists()]

    def run(self, run: Run) -> None:
        removals.forget(run.site.state, self.nodes)
        for kind, warning in _UNCLEANED.items():
            names = [name for name in self.configured if schedulers.of_groups(self.nodes[name].groups) is kind]
            if names:
                run.screen.say((f"  {fold(names)} ", "bold"), warning)


def _suggest_dead(problem: object, names: Sequence[str]) -> object:
    """Add --dead to the hint of a preflight error about a node that is to be removed."""
    if not isinstance(problem, Finding) or problem.node not in names or problem.warning:
        return problem
    return replace(problem, hint=f"{problem.hint}; if it is permanently down: --dead".removeprefix("; "))


def _needed(before: Inventory, host: Host, names: Sequence[str]) -> tuple[str, str] | None:
    """Return message and hint if a host is a head that has to stay, or that would leave too few or an even number."""
    kind = host.scheduler
    if kind is None or kind.head not in host.groups:
        return None
    heads = [head.name for head in before.in_group(kind.head)]
    if len(heads) > 1 and not kind.has_quorum:
        hint = (
            f"first run there: sudo systemctl disable --now slurmctld; then delete it from {kind.head}, and bootstrap"
        )
        return f"{host.name} is one of two heads ({kind.head}), which only a bootstrap changes", hint
    left = [name for name in heads if name not in names]
    if len(heads) == 1:
        return f"{host.name} is the head ({kind.head})", "a cluster needs its head"
    if not left:
        return "these are all the heads", "a cluster needs at least one"
    hint = "remove another one too, or replace a dead one: clusterctl replace-node"
    return (f"{plural(len(left), 'head')} would stay, expected an odd number", hint) if len(left) % 2 == 0 else None


def _responds(host: Host) -> str:
    return f"it responds to SSH and to {host.scheduler.title if host.scheduler else 'its scheduler'}"


def _require_removable(before: Inventory, names: Sequence[str], workers: Sequence[str]) -> None:
    """Raise InputError for unknown nodes, heads that are needed, hosts with another task, and the last worker."""
    hosts = {host.name: host for host in before.hosts}
    problems = membership.unknown([name for name in names if name not in hosts], workers)
    for host in (hosts[name] for name in names if name in hosts):
        if needed := _needed(before, host, names):
            problems.append(Problem(None, "NODE", *needed))
        elif others := sorted(group for group in host.groups if group in ("logging", "monitoring")):
            hint = "move the group to another host in the inventory first, then bootstrap"
            problems.append(Problem(None, "NODE", f"{host.name} is also in {', '.join(others)}", hint))
    for kind in scheduler.by_kind(before, names) if not problems else ():
        if not {host.name for host in before.in_group(kind.workers)} - {*names}:
            problems.append(Problem(None, "NODE", "these are all the workers", "a cluster needs at least one"))
    if problems:
        raise InputError(problems)
