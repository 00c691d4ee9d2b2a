"""The phase that drains nodes and waits for their jobs."""

from collections.abc import Iterator, Sequence

from clusterctl.run import context, scheduler
from clusterctl.run.context import Site
from clusterctl.run.phases import Phase, Run, Step
from clusterctl.run.scheduler import Workload
from clusterctl.ui.screen import Screen
from clusterctl.util.errors import Interrupted, WorkersFailed
from clusterctl.util.text import fold, plural


class Drain(Phase):
    """Drain nodes for a cause, and with `wait` wait for their jobs.

    With `force` the jobs are killed after confirmation. `minutes` limits the wait (None: no limit). If jobs remain, it
    raises WorkersFailed and the nodes stay drained.
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
    ) -> None:
        self.cause, self.nodes, self.reason = cause, nodes, reason
        self.wait, self.force, self.minutes = wait, force, minutes
        self.why = why
        """The reason that --print-command prints with the step."""
        self.title = f"Drain {fold(nodes)}" + " and wait for its jobs" * wait

    def should_run(self, run: Run) -> bool:
        return bool(self.nodes)

    def run(self, run: Run) -> None:
        with scheduler.connect(run.site) as controller:
            if not controller.is_set_up():
                return
            controller.drain(self.cause, self.nodes, self.reason)
            self.finish(run, controller)

    def finish(self, run: Run, controller: scheduler.Scheduler) -> None:
        """Kill jobs or wait for them after the drain, according to the options."""
        if self.wait and self.force and (found := controller.workloads(self.nodes)):
            self._confirm(run, found)
            controller.cancel([one.id for one in found])
        if self.wait:
            self._wait(run, controller)

    def _confirm(self, run: Run, found: Sequence[Workload]) -> None:
        for one in found:
            run.screen.say(f"  {one}")
        if not context.agree(run.screen, f"Kill {plural(len(found), 'job')}?", run.options.yes):
            raise Interrupted(f"No job was killed; {fold(self.nodes)} stays drained ({self._resume_hint(run.site)}).")

    def _wait(self, run: Run, controller: scheduler.Scheduler) -> None:
        seconds = None if self.minutes is None else self.minutes * 60
        try:
            remaining = controller.wait_until_empty(self.nodes, run.screen.say, seconds)
        except KeyboardInterrupt:
            stays = f"{fold(self.nodes)} stays drained ({self._resume_hint(run.site)})"
            raise Interrupted(f"Interrupted while jobs were running; {stays}.") from None
        if remaining:
            jobs = "; ".join(str(one) for one in remaining[:5])
            jobs += f"; and {len(remaining) - 5} more" if len(remaining) > 5 else ""
            hint = self._resume_hint(run.site)
            raise WorkersFailed(
                f"{plural(len(remaining), 'job')} still on {fold(self.nodes)} after {self.minutes:g} min; {jobs}.\n"
                f"It stays drained, and nothing else was changed. The same command waits again ({hint})"
            )

    def _resume_hint(self, site: Site) -> str:
        command = scheduler.of(site.inventory).resume_command(self.cause, self.nodes)
        return f"to put {fold(self.nodes)} back into service instead, on the head: {command}"

    def plan(self, run: Run) -> None:
        if self.wait:
            with scheduler.connect(run.site) as controller:
                run.jobs += controller.workloads(self.nodes) if controller.is_set_up() else []

    def describe(self, run: Run) -> Iterator[Step]:
        where, kind = f"on {run.site.inventory.head.name}", scheduler.of(run.site.inventory)
        why = f", {self.why}" if self.why else ""
        yield f"{where}{why}: {kind.drain_command(self.cause, self.nodes, self.reason)}"
        if self.wait:
            yield f"{where}, until no job is listed: {kind.wait_command(self.nodes)}"


def wait_for_jobs(site: Site, screen: Screen, cause: str, nodes: Sequence[str], minutes: float | None) -> list[str]:
    """Drain the nodes of a batch and wait for their jobs; return the nodes that still have jobs after `minutes`."""
    seconds = None if minutes is None else minutes * 60
    try:
        with scheduler.connect(site) as controller:
            controller.drain(cause, nodes, f"{cause} under way")
            remaining = controller.wait_until_empty(nodes, screen.say, seconds)
            busy = [name for name in nodes if controller.workloads([name])] if remaining else []
    except KeyboardInterrupt:
        raise Interrupted("Interrupted while jobs were running.") from None
    if busy:
        count, more = plural(len(remaining), "job"), ", ..." * (len(remaining) > 1)
        screen.say(f"  {count} still on {fold(busy)}: {remaining[0]}{more}")
    return busy
