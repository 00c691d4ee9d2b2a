"""Run a verb's list of phases, plan it (`plan VERB`), or print the equivalent commands (`--print-command`)."""

import contextlib
import sys
import time
from collections.abc import Sequence
from typing import Any

from clusterctl.inventory.model import Inventory
from clusterctl.run import context, planning, record
from clusterctl.run.context import Options, Site
from clusterctl.run.phases import Phase, Run, Step
from clusterctl.util.errors import ClusterctlError, Interrupted


def execute(options: Options, phases: Sequence[Phase], inventory: Inventory | None = None) -> int:
    """Run a verb's phases, plan them, or print their commands, according to the options; return the exit code.

    `inventory` is what the first phases use if the file differs from it. Raises ClusterctlError if the run ends before
    the first phase that may change nodes.
    """
    site = context.load(options, inventory)
    if options.print_command:
        return _print(Run(site, options.screen()), phases)
    with contextlib.ExitStack() as stack:
        if options.planned:
            site = stack.enter_context(planning.on_a_copy(site))
        run = Run(site, options.screen(), stack)
        run.screen.say((site.inventory.cluster_name, "bold"), f"  {options.verb}", cut=True)
        error = _all(run, phases)
        closing = record.write(run, error) if run.kept else None
    return record.show(run, error, closing) if closing else 0  # the locks are released before the page is printed


def _all(run: Run, phases: Sequence[Phase]) -> ClusterctlError | None:
    """Run the phases in order. Return the error that ended them, or raise it if no node can have changed yet."""
    began, error, done = time.monotonic(), None, list[dict[str, Any]]()
    pending = list(phases)
    titled = sum(phase.announced for phase in phases) > 1 and not run.options.planned
    while pending and error is None:
        phase, started = pending.pop(0), time.monotonic()
        run.is_last = not pending
        try:
            if not phase.should_run(run):
                continue
            if phase.changes_nodes:
                run.directory()
            if phase.announced and titled:
                run.screen.say((phase.title, "bold"))
            (phase.plan if run.options.planned else phase.run)(run)
        except ClusterctlError as raised:
            error = raised
        except KeyboardInterrupt:
            error = Interrupted(f"Interrupted {_when(run, phase)}.")
        except BrokenPipeError:
            run.screen.mute()
            error = Interrupted(f"The output was closed; stopped {_when(run, phase)}.")
        done.append(_result(phase, "failed" if error else "ok", time.monotonic() - started))
    # A phase that does not concern this cluster would not have begun either.
    run.summary["phases"] = done + [_result(phase, "not begun") for phase in pending if phase.should_run(run)]
    if error and run.kept is None:
        record.keep_refusal(run, error, time.monotonic() - began)
        raise error
    return error


def _when(run: Run, phase: Phase) -> str:
    if run.kept is None:
        return "before any node was changed"
    between = "between two playbooks; no task is running"
    return between if run.ledger.results else f"in the phase: {phase.title}"


def _result(phase: Phase, result: str, seconds: float = 0.0) -> dict[str, Any]:
    return {"title": phase.title, "result": result, "seconds": round(seconds, 1)}


def _print(run: Run, phases: Sequence[Phase]) -> int:
    """Print each plain command on stdout, and the steps before, between and after them on stderr."""
    steps = [step for phase in phases if phase.should_run(run) for step in phase.describe(run)]
    last = max((at for at, step in enumerate(steps) if isinstance(step, Site)), default=-1)
    first = min((at for at, step in enumerate(steps) if isinstance(step, Site)), default=len(steps))
    heading = ""
    for at, step in enumerate(steps):
        if isinstance(step, Site):
            print(step.command(), flush=True)
            heading = ""
            continue
        where = "Before it" if at < first else "After it" if at > last else "Then"
        if where != heading:
            heading = where
            print(f"{heading}:", file=sys.stderr)
        _print_words(step)
    return 0


def _print_words(step: Step) -> None:
    lines = f"- {str(step).rstrip()}".replace("\n", "\n    ").splitlines()
    print(*(f"  {line.rstrip()}" for line in lines), sep="\n", file=sys.stderr, flush=True)
