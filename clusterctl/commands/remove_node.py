"""`remove-node`: take workers out of the cluster, whether they answer or not."""

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

    With `dead` they are not contacted. With `force` their jobs are cancelled instead of waited for. `minutes` is how
    long jobs are waited for, None: as long as it takes; after that the nodes stay drained and nothing is removed (exit
    code 4). The same command resumes a removal that was interrupted, though the inventory no longer has the nodes.
    Raises InputError for nodes that cannot be removed.
    """
    before = home.load(options.inventory)
    names = list(dict.fromkeys(options.nodes))
    workers = [host.name for host in before.workers]
    begun = {name: found for name in names if name not in workers and (found := removals.load(before, name))}
    present = [name for name in names if name not in begun]
    _removable(before, present, workers)
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
        Play("bootstrap", "Configure the hosts that stay"),
        Unregister(names),
        WarnUncleaned(before, names, begun) if dead else Clean(nodes),
    ]
    try:
        reached = [] if dead or options.print_command else present
        options = replace(options, limit=",".join([*stay, *reached]))
        return engine.execute(options, phases, change.inventory if options.print_command else before)
    except PreflightError as error:
        raise PreflightError([_or_dead(problem, present) for problem in error.problems]) from None


def _staying(options: Options, before: Inventory, change: Change) -> Sequence[str]:
    """Return the hosts that have to know that nodes left."""
    if not membership.learns_by_restart(before):
        return change.inventory.informed
    stay = [host.name for host in change.inventory.hosts]
    options.screen().say(membership.BY_RESTART.format(len(stay)))
    return stay


class RequireDead(Phase):
    """Refuse nodes that are there: Slurm has heard from them, and something answers our SSH. PreflightError.

    Slurm alone would take minutes to notice that a node is gone.
    """

    title = "Require that the nodes are down"
    changes_nodes = announced = False

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names

    def should_run(self, run: Run) -> bool:
        return bool(self.names)

    def run(self, run: Run) -> None:
        from clusterctl.run.preflight import UNREACHABLE

        access = run.site.access

        def answers(host: Host) -> bool:
            try:
                connect(host, access).close()
            except ContactError as error:
                return error.failure not in UNREACHABLE
            return True

        hosts = [run.site.inventory.host(name) for name in self.names]
        with scheduler.connect(run.site) as controller:
            heard = [host for host in hosts if controller.is_set_up() and controller.hears_from(host.name)]
        hint = "leave out --dead, and it is cleaned as well; --force removes it as it is"
        if alive := [name for name, answer in each(heard, answers).items() if answer]:
            raise PreflightError([Finding(name, "dead", "it answers, and Slurm hears from it", hint) for name in alive])


class MarkDown(Drain):
    """Drain nodes that do not answer, and tell the scheduler that they are gone."""

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
    """Take nodes out of the inventory, the hardware records and known_hosts; what cleaning them needs is kept."""

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
        self._leave(run, after)

    def _leave(self, run: Run, after: Inventory) -> None:
        left = tuple(host for host in after.hosts if host.name in self.stay)
        run.site = replace(run.site, inventory=after, hosts=left)

    def describe(self, run: Run) -> Iterator[Step]:
        site = run.site
        if not self.dead:
            yield from _describe_cleaning(site, list(self.nodes.values()))
        if self.change:
            yield f"change {self.change.path.parent}:\n{self.change.diff()}"
        yield shlex.join(["rm", "-f", *(str(hardware.path_of(site.inventory.directory, name)) for name in self.nodes)])
        yield f"take the host keys of {fold(list(self.nodes))} out of {site.access.known_hosts}"
        self._leave(run, self.change.inventory)


def _describe_cleaning(site: Site, nodes: Sequence[removals.Node]) -> Iterator[str]:
    """Yield how a person makes the directory of which the nodes are cleaned, before the cluster forgets them."""
    cleaning = removals.unwritten(site, nodes)
    folder = cleaning.inventory.directory
    copy = shlex.join(["cp", str(site.access.known_hosts), str(folder / home.KNOWN_HOSTS)])
    yield f"{shlex.join(['mkdir', '-p', str(folder)])} && {copy}"
    known = home.known_hosts(site.access.known_hosts)
    for line in sorted({line for node in nodes for line in node.keys} - {*known}):
        yield f"add to it: {line}"
    yield f"write {cleaning.inventory.path}:\n{removals.inventory_text(cleaning, nodes)}"


class Unregister(Phase):
    """Drop what the scheduler keeps of nodes."""

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
    """Uninstall everything on nodes that left."""

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
    """Say which nodes still have the cluster's secrets."""

    title = "Name the nodes that were not cleaned"

    def __init__(self, before: Inventory, names: Sequence[str], begun: Mapping[str, removals.Node]) -> None:
        self.names = names
        # Those that a run has been on: an earlier removal began there, or there is a record of their hardware.
        self.reached = [n for n in names if n in begun or hardware.path_of(before.directory, n).exists()]

    def run(self, run: Run) -> None:
        removals.forget(run.site.state, self.names)
        if self.reached:
            warning = "was not cleaned: it still has the cluster's munge key. Wipe it before it is used again."
            run.screen.say((f"  {fold(self.reached)} ", "bold"), warning)


def _or_dead(problem: object, names: Sequence[str]) -> object:
    """Add to what preflight has against a node that is to be removed what helps if it is gone already."""
    if not isinstance(problem, Finding) or problem.node not in names or problem.warning:
        return problem
    return replace(problem, hint=f"{problem.hint}; if it is gone for good: --dead".removeprefix("; "))


def _removable(before: Inventory, names: Sequence[str], workers: Sequence[str]) -> None:
    """Refuse (InputError) who cannot be removed: strangers, heads, hosts with another task, and the last worker."""
    hosts = {host.name: host for host in before.hosts}
    problems = membership.unknown([name for name in names if name not in hosts], workers)
    for host in (hosts[name] for name in names if name in hosts):
        if head := next((group for group in sorted(host.groups) if group.endswith("_head")), ""):
            problems.append(Problem(None, "NODE", f"{host.name} is the head ({head})", "a cluster has one"))
        elif others := sorted(group for group in host.groups if group in ("monitoring",)):
            hint = "give that to another host in the inventory first, and bootstrap"
            problems.append(Problem(None, "NODE", f"{host.name} is in {', '.join(others)} too", hint))
    if not problems and names and not {*workers} - {*names}:
        problems.append(Problem(None, "NODE", "these are all the workers", "a cluster needs one"))
    if problems:
        raise InputError(problems)
