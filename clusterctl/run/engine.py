"""Run a verb's list of phases, plan it (`plan VERB`), or print what a person does instead (`--print-command`)."""

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
    """Run a verb's phases, plan them, or print their commands, as the options ask; return the exit code.

    `inventory` is the one that the first phases contact, where the file has another. Raises ClusterctlError where the
    run ends before Ansible begins.
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
    return record.show(run, error, closing) if closing else 0  # other runs may begin meanwhile


def _all(run: Run, phases: Sequence[Phase]) -> ClusterctlError | None:
    """Run the phases in order; return what ended them, or raise it where no node may have been changed yet."""
    began, error, done = time.monotonic(), None, list[dict[str, Any]]()
    due = list(phases)
    titled = sum(phase.announced for phase in phases) > 1 and not run.options.planned
    while due and error is None:
        phase, started = due.pop(0), time.monotonic()
        run.is_last = not due
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
            error = Interrupted(f"Nobody reads the output; stopped {_when(run, phase)}.")
        done.append(_result(phase, "failed" if error else "ok", time.monotonic() - started))
    run.told["phases"] = done + [_result(phase, "not begun") for phase in due]
    if error and run.kept is None:
        record.keep_refusal(run, error, time.monotonic() - began)
        raise error
    return error


def _when(run: Run, phase: Phase) -> str:
    if run.kept is None:
        return "before any node was changed"
    between = "between two playbooks; nothing is under way any more"
    return between if run.ledger.results else f"in the phase: {phase.title}"


def _result(phase: Phase, result: str, seconds: float = 0.0) -> dict[str, Any]:
    return {"title": phase.title, "result": result, "seconds": round(seconds, 1)}


def _print(run: Run, phases: Sequence[Phase]) -> int:
    """Print each plain command, and on stderr in words what is to be done before, between and after them."""
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
