"""Wake the workers that Slurm's power saving has switched off, and keep the workers of a run awake until it ends."""

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from clusterctl.inventory.model import Host
from clusterctl.inventory.schedulers import SLURM
from clusterctl.inventory.slurm_power import AFTER
from clusterctl.nodes.parallel import each
from clusterctl.run import scheduler
from clusterctl.run.context import Site
from clusterctl.run.phases import Phase, Run, Step
from clusterctl.util.errors import Finding, HeadFailed, PreflightError
from clusterctl.util.text import duration, fold

if TYPE_CHECKING:
    from clusterctl.nodes.contact import Answer
    from clusterctl.slurm.client import SlurmController

_MARGIN = 30.0
"""Seconds between Slurm's time limit for a node and the end of the wait for it."""
_REPEAT = 15.0
"""Seconds after which nodes are kept awake again: a quarter of the shortest slurm_head_sleep_after."""


class WakeUp(Phase):
    """Wake sleeping workers of the run and keep all its workers awake until its end.

    A worker that does not wake is reported by the checks of the nodes, like any other that does not respond. A plan
    wakes no node and leaves out those that sleep.
    """

    title = "Wake sleeping workers"
    changes_nodes = announced = False

    def should_run(self, run: Run) -> bool:
        return _saves_power(run.site) and bool(_workers(run.site))

    def run(self, run: Run) -> None:
        names = _workers(run.site)
        # Also if Slurm has no power saving yet: it counts the time before the run that switches it on.
        run.stack.enter_context(KeepAwake(run.site, names))
        rouse(run, names)

    def plan(self, run: Run) -> None:
        names = _workers(run.site)
        try:
            with _connect(run.site) as controller:
                asleep = [*controller.sleeping(names)]
        except HeadFailed:  # reported by the checks of the nodes
            return
        if not asleep:
            return
        if named := [name for name in asleep if name in run.options.nodes]:
            command = _controller().wake_command(named)
            hint = f"wake it first: on {run.site.inventory.in_group(SLURM.head)[0].name}: {command}"
            raise PreflightError([Finding(name, "asleep", "sleeps, and a plan wakes no node", hint) for name in named])
        run.screen.say((f"  {fold(asleep)}", "bold"), ": asleep, left out of this plan; a run wakes it first")
        run.site = replace(run.site, hosts=tuple(host for host in run.site.hosts if host.name not in asleep))

    def describe(self, run: Run) -> Iterator[Step]:
        head = run.site.inventory.in_group(SLURM.head)[0].name
        yield f"on {head}, for workers that sleep: {_controller().wake_command(_workers(run.site))}"


def asleep(site: Site, names: Collection[str]) -> dict[str, str]:
    """Return those of these workers that power saving has switched off, with `asleep` or `waking`; none without it."""
    workers = [name for name in _workers(site) if name in names]
    if workers and _saves_power(site):
        with suppress(HeadFailed), _connect(site) as controller:  # a head that fails is reported elsewhere
            return controller.sleeping(workers)
    return {}


def rouse(run: Run, names: Sequence[str]) -> Collection[str]:
    """Wake those of these hosts that Slurm has asleep, and wait for them; return them. None without Slurm."""
    workers = [name for name in _workers(run.site) if name in names]
    if not workers:
        return ()
    with suppress(HeadFailed), _connect(run.site) as controller:  # a head that fails is reported elsewhere
        asleep = [*controller.sleeping(workers)]
        if not asleep:
            return ()
        times = controller.power_saving()
        seconds = times.get("SuspendTimeout", 0) + times.get("ResumeTimeout", 0) + _MARGIN
        run.screen.say((f"  {fold(asleep)}", "bold"), f": asleep, to be woken in at most {duration(seconds)}")
        try:
            with run.screen.working(f"Waking {fold(asleep)}"):
                controller.wake(asleep, seconds)
        except HeadFailed as error:
            run.screen.say((f"  {fold(asleep)}", "bold"), f": could not be woken: {error}")
        return asleep
    return ()


def ask_awake(
    hosts: Sequence[Host],
    ask: "Callable[[Host], Answer]",
    at_once: int | None = None,
    rouse: Callable[[Sequence[str]], Collection[str]] | None = None,
) -> "dict[str, Answer]":
    """Ask all hosts. `rouse` is called with those that do not respond, and returns those that it woke, to ask again."""
    answers = each(hosts, ask, at_once)
    silent = [host.name for host in hosts if answers[host.name].is_unreachable]
    woken = rouse(silent) if rouse and silent else ()
    return answers | each([host for host in hosts if host.name in woken], ask, at_once)


class KeepAwake:
    """Keep workers awake from a thread, as a context manager. A head that fails is asked again later."""

    def __init__(self, site: Site, names: Sequence[str]) -> None:
        self._site, self._names = site, names
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._over.is_set():
            with suppress(HeadFailed), _connect(self._site) as controller:
                controller.keep_awake(self._names)
                while not self._over.wait(_REPEAT):
                    controller.keep_awake(self._names)
            self._over.wait(_REPEAT)


def _saves_power(site: Site) -> bool:
    return any(head.variables.get(AFTER) for head in site.inventory.in_group(SLURM.head))


def _workers(site: Site) -> list[str]:
    return [host.name for host in site.hosts if SLURM.workers in host.groups]


def _connect(site: Site) -> "SlurmController":
    return cast("SlurmController", scheduler.connect(site, SLURM))


def _controller() -> "type[SlurmController]":
    return cast("type[SlurmController]", scheduler.of(SLURM))
