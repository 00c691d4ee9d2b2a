"""`remove-node`: remove workers from the cluster, whether they respond or not."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from clusterctl.inventory.model import Host, Inventory
from clusterctl.nodes.remote import connect, each
from clusterctl.nodes.session import ContactError
from clusterctl.run import engine, membership, removals, scheduler
from clusterctl.run.context import Options, Site
from clusterctl.run.draining import Drain
from clusterctl.run.entry import ENTRY
from clusterctl.run.membership import ConfirmChange
from clusterctl.run.phases import Phase, Run, Step
from clusterctl.run.plays import Play
from clusterctl.util.errors import Finding, InputError, PreflightError, Problem
from clusterctl.util.text import fold
from clusterctl.workspace import edits, hardware, home
from clusterctl.workspace.edits import Change

_REASON = "it is being removed"


def remove_node(options: Options, dead: bool, force: bool = False, minutes: float | None = None) -> int:
    """Drain workers, wait for their jobs, unregister them on the head, and clean them; return the exit code.

    With `dead` the workers are not contacted. With `force` their jobs are cancelled. `minutes` limits the wait for jobs
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
    stay = _staying(options, before, change)
    drain = Drain("remove-node", present, _REASON, force=force, minutes=minutes)
    phases = [
        ConfirmChange(change, f"Remove {fold(present)} from {before.cluster_name}?"),
        *ENTRY,
        *[RequireDead(present)] * (dead and not force),
        MarkDown("remove-node", present) if dead else drain,
        RemoveFromDirectory(change, nodes, stay, dead),
        Play("bootstrap", "Configure the remaining hosts"),
        Unregister(names),
        WarnUncleaned(before, names, begun) if dead else Clean(nodes),
    ]
    try:
        reached = [] if dead or options.print_command else present
        options = replace(options, limit=",".join([*stay, *reached]))
        return engine.execute(options, phases, change.inventory if options.print_command else before)
    except PreflightError as error:
        raise PreflightError([_suggest_dead(problem, present) for problem in error.problems]) from None


def _staying(options: Options, before: Inventory, change: Change) -> Sequence[str]:
    """Return the remaining hosts whose configuration changes with the list of nodes."""
    if not membership.learns_by_restart(before):
        return change.inventory.informed
    stay = [host.name for host in change.inventory.hosts]
    options.screen().say(membership.BY_RESTART.format(len(stay)))
    return stay


class RequireDead(Phase):
    """Raise PreflightError for nodes that respond both to Slurm and to SSH.

    Slurm alone needs minutes to notice that a node is down.
    """

    title = "Check that the nodes are down"
    changes_nodes = announced = False

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names

    def should_run(self, run: Run) -> bool:
        return bool(self.names)

    def run(self, run: Run) -> None:
        from clusterctl.run.preflight import UNREACHABLE

        access = run.site.access

        def is_responding(host: Host) -> bool:
            try:
                connect(host, access).close()
            except ContactError as error:
                return error.failure not in UNREACHABLE
            return True

        hosts = [run.site.inventory.host(name) for name in self.names]
        with scheduler.connect(run.site) as controller:
            registered = [host for host in hosts if controller.is_set_up() and controller.hears_from(host.name)]
        hint = "omit --dead to clean it as well, or use --force to remove it without cleaning"
        if alive := [name for name, responds in each(registered, is_responding).items() if responds]:
            found = "it responds to SSH and to Slurm"
            raise PreflightError([Finding(name, "dead", found, hint) for name in alive])


class MarkDown(Drain):
    """Drain nodes that do not respond, and mark them as down in the scheduler."""

    def __init__(self, cause: str, nodes: Sequence[str]) -> None:
        super().__init__(cause, nodes, _REASON, wait=False)
        self.title = f"Mark {fold(nodes)} as down"

    def finish(self, run: Run, controller: scheduler.Scheduler) -> None:
        controller.mark_down(self.nodes, f"{self.cause} --dead")

    def describe(self, run: Run) -> Iterator[Step]:
        yield from super().describe(run)
        kind = scheduler.of(run.site.inventory)
        for command in kind.mark_down_commands(self.nodes, f"{self.cause} --dead"):
            yield f"on {run.site.inventory.head.name}: {command}"

    def plan(self, run: Run) -> None:
        with scheduler.connect(run.site) as controller:
            run.jobs += controller.workloads(self.nodes) if controller.is_set_up() else []


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
        self.plan(run)

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


class Unregister(Phase):
    """Remove nodes from the scheduler."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self.title = f"Unregister {fold(names)}"

    def run(self, run: Run) -> None:
        with scheduler.connect(run.site) as controller:
            controller.forget(self.names)

    def describe(self, run: Run) -> Iterator[Step]:
        head = run.site.inventory.head.name
        yield f"on {head}: {scheduler.of(run.site.inventory).forget_command(self.names)}"


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

    def __init__(self, before: Inventory, names: Sequence[str], begun: Mapping[str, removals.Node]) -> None:
        self.names = names
        # Nodes that a run configured: their removal began earlier, or they have a hardware record.
        self.configured = [n for n in names if n in begun or hardware.path_of(before.directory, n).exists()]

    def run(self, run: Run) -> None:
        removals.forget(run.site.state, self.names)
        if self.configured:
            warning = "was not cleaned: it still has the cluster's munge key. Wipe it before you use it again."
            run.screen.say((f"  {fold(self.configured)} ", "bold"), warning)


def _suggest_dead(problem: object, names: Sequence[str]) -> object:
    """Add --dead to the hint of a preflight error about a node that is to be removed."""
    if not isinstance(problem, Finding) or problem.node not in names or problem.warning:
        return problem
    return replace(problem, hint=f"{problem.hint}; if it is permanently down: --dead".removeprefix("; "))


def _require_removable(before: Inventory, names: Sequence[str], workers: Sequence[str]) -> None:
    """Raise InputError for unknown nodes, heads, hosts with another task, and the last worker."""
    hosts = {host.name: host for host in before.hosts}
    problems = membership.unknown([name for name in names if name not in hosts], workers)
    for host in (hosts[name] for name in names if name in hosts):
        if head := next((group for group in sorted(host.groups) if group.endswith("_head")), ""):
            problems.append(Problem(None, "NODE", f"{host.name} is the head ({head})", "a cluster needs its head"))
        elif others := sorted(group for group in host.groups if group in ("monitoring",)):
            hint = "move the group to another host in the inventory first, then bootstrap"
            problems.append(Problem(None, "NODE", f"{host.name} is also in {', '.join(others)}", hint))
    if not problems and names and not {*workers} - {*names}:
        problems.append(Problem(None, "NODE", "these are all the workers", "a cluster needs at least one"))
    if problems:
        raise InputError(problems)
