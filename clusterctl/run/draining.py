"""The phase that drains nodes and waits for their jobs and pods."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence

from clusterctl.inventory.schedulers import SLURM, Kind, nouns
from clusterctl.run import context, scheduler
from clusterctl.run.context import Site
from clusterctl.run.phases import Phase, Run, Step
from clusterctl.run.scheduler import Workload
from clusterctl.ui.screen import Screen
from clusterctl.util.errors import Interrupted, WorkersFailed
from clusterctl.util.text import fold, plural


class Drain(Phase):
    """Drain nodes for a cause, and with `wait` wait for their workloads.

    With `force` those that would not end are killed after confirmation. `minutes` limits the wait (None: no limit). If
    workloads remain, it raises WorkersFailed and the nodes stay drained.
    """

    def __init__(
        self,
        cause: str,
        nodes: Sequence[str],
        reason: str,
        *,
        wait: bool = True,
        force: bool = False,
        minutes: float | None = None,
        why: str = "",
        kinds: Mapping[Kind, Sequence[str]] | None = None,
    ) -> None:
        self.cause, self.nodes, self.reason = cause, nodes, reason
        self.wait, self.force, self.minutes = wait, force, minutes
        self.why = why
        """The reason that --print-command prints with the step."""
        self.kinds = kinds
        """The nodes by scheduler; None: by the inventory, if it still has them."""
        self.title = f"Drain {fold(nodes)}" + f" and wait for its {nouns(kinds or [SLURM])}s" * wait

    def should_run(self, run: Run) -> bool:
        return bool(self.nodes)

    def run(self, run: Run) -> None:
        with _connected(run.site, self.by_kind(run.site)) as drained:
            for controller, _, nodes in drained:
                controller.drain(self.cause, nodes, self.reason)
            for controller, kind, nodes in drained:
                self.finish(run, controller, kind, nodes)

    def by_kind(self, site: Site) -> Mapping[Kind, Sequence[str]]:
        """Return the nodes by scheduler."""
        return self.kinds if self.kinds is not None else scheduler.by_kind(site.inventory, self.nodes)

    def finish(self, run: Run, controller: scheduler.Scheduler, kind: Kind, nodes: Sequence[str]) -> None:
        """Kill workloads or wait for them after the drain, according to the options."""
        if self.wait and self.force and (found := controller.doomed(nodes)):
            self._confirm(run, found, kind)
            controller.cancel([one.id for one in found])
        if self.wait:
            self._wait(run, controller, kind, nodes)

    def _confirm(self, run: Run, found: Sequence[Workload], kind: Kind) -> None:
        for one in found:
            run.screen.say(f"  {one}")
        if not context.agree(run.screen, f"Kill {plural(len(found), kind.workload)}?", run.options.yes):
            hint = self._resume_hint(run.site)
            raise Interrupted(f"No {kind.workload} was killed; {fold(self.nodes)} stays drained ({hint}).")

    def _wait(self, run: Run, controller: scheduler.Scheduler, kind: Kind, nodes: Sequence[str]) -> None:
        seconds = None if self.minutes is None else self.minutes * 60
        try:
            remaining = controller.wait_until_empty(nodes, run.screen.say, seconds)
        except KeyboardInterrupt:
            stays = f"{fold(self.nodes)} stays drained ({self._resume_hint(run.site)})"
            raise Interrupted(f"Interrupted while {kind.workload}s were running; {stays}.") from None
        if remaining:
            jobs = "; ".join(str(one) for one in remaining[:5])
            jobs += f"; and {len(remaining) - 5} more" if len(remaining) > 5 else ""
            hint = self._resume_hint(run.site)
            raise WorkersFailed(
                f"{plural(len(remaining), kind.workload)} still on {fold(nodes)} after {self.minutes:g} min; {jobs}.\n"
                f"It stays drained, and nothing else was changed. The same command waits again ({hint})"
            )

    def _resume_hint(self, site: Site) -> str:
        commands = resume_commands(site, self.cause, self.by_kind(site))
        return f"to put {fold(self.nodes)} back into service instead, {commands}"

    def plan(self, run: Run) -> None:
        if self.wait:
            self.plan_workloads(run)

    def plan_workloads(self, run: Run) -> None:
        """Add the workloads on the nodes to the plan."""
        with _connected(run.site, self.by_kind(run.site)) as drained:
            for controller, _, nodes in drained:
                run.jobs += controller.workloads(nodes)

    def describe(self, run: Run) -> Iterator[Step]:
        why = f", {self.why}" if self.why else ""
        for kind, nodes in self.by_kind(run.site).items():
            where, commands = f"on {scheduler.head_of(run.site.inventory, kind).name}", scheduler.of(kind)
            yield f"{where}{why}: {commands.drain_command(self.cause, nodes, self.reason)}"
            if self.wait:
                yield where + commands.wait_step(nodes)


@contextlib.contextmanager
def _connected(
    site: Site, kinds: Mapping[Kind, Sequence[str]]
) -> Iterator[list[tuple[scheduler.Scheduler, Kind, Sequence[str]]]]:
    """Connect to the schedulers of nodes that are set up; yield each with its kind and its nodes."""
    with contextlib.ExitStack() as stack:
        found = []
        for kind, names in kinds.items():
            controller = stack.enter_context(scheduler.connect(site, kind))
            if controller.is_set_up():
                found.append((controller, kind, names))
        yield found


def resume_commands(site: Site, cause: str, kinds: Mapping[Kind, Sequence[str]]) -> str:
    """Return the commands that remove a cause of nodes, each with the head to type it on."""
    heads = {kind: scheduler.head_of(site.inventory, kind).name if len(kinds) > 1 else "the head" for kind in kinds}
    return "; ".join(
        f"on {heads[kind]}: {scheduler.of(kind).resume_command(cause, names)}" for kind, names in kinds.items()
    )


def wait_for_jobs(site: Site, screen: Screen, cause: str, nodes: Sequence[str], minutes: float | None) -> list[str]:
    """Drain the nodes of a batch and wait for their workloads; return the nodes that still have some after `minutes`.

    The nodes of a batch belong to one scheduler.
    """
    seconds, busy = None if minutes is None else minutes * 60, []
    for kind, names in scheduler.by_kind(site.inventory, nodes).items():
        try:
            with scheduler.connect(site, kind) as controller:
                controller.drain(cause, names, f"{cause} under way")
                remaining = controller.wait_until_empty(names, screen.say, seconds)
                left = [name for name in names if controller.workloads([name])] if remaining else []
        except KeyboardInterrupt:
            raise Interrupted(f"Interrupted while {kind.workload}s were running.") from None
        if left:
            count, more = plural(len(remaining), kind.workload), ", ..." * (len(remaining) > 1)
            screen.say(f"  {count} still on {fold(left)}: {remaining[0]}{more}")
        busy += left
    return busy
