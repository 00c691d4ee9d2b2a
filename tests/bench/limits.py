"""What the promised limits of time come to: a silent node is named, a hung one noticed, a second run refused.

Beside them stands the least that such a command can cost.
"""

import statistics
import time
from pathlib import Path

from tests.bench.measure import CLUSTERCTL, BenchError, BenchLab, Document, load, run, say
from tests.cluster.lab import TestLab
from tests.faults.injury import begin, cut_off, ended, latest_run, silent, wait_until

ROUNDS = 3
LIMITS = {"silent": 15.0, "hung": 60.0, "refused": 2.0}


def main(rounds: int = ROUNDS) -> Document:
    """Measure each limit several times, of which the median counts; print and return the figures."""
    lab = BenchLab.of("limits")
    say(f"Limits: the median of {rounds} each, a head and {lab.workers} workers; {load()}")
    try:
        lab.fresh()
        lab.clusterctl("bootstrap")
        nodes = TestLab(lab.name, lab.workers)
        with cut_off(nodes, "gpu02"):
            silent = _median(rounds, 3, "bootstrap", lab.inventory)
        answered = _median(rounds, 0, "discover", lab.inventory)
        hung = statistics.median(_hung(nodes) for _ in range(rounds))
        refused, version = _refused(nodes, rounds), _median(rounds, 0, "--version")
    finally:
        lab.down()
    _told("a silent worker is named", silent, "silent", answered, "a preflight that all answer")
    _told("a hung worker is noticed", hung, "hung")
    _told("a second run is refused", refused, "refused", version, "--version")
    say(f"  {load()}")
    return {
        "limits": LIMITS,
        "silent": round(silent, 2),
        "all_answer": round(answered, 2),
        "hung": round(hung, 2),
        "refused": round(refused, 2),
        "version": round(version, 2),
    }


def _told(what: str, seconds: float, limit: str, least: float = 0.0, of: str = "") -> None:
    beside = f", {seconds / least:.1f} times {of} ({least:.1f} s)" if least else ""
    say(f"  {what:26} {seconds:6.1f} s, {seconds / LIMITS[limit]:.2f} of the limit of {LIMITS[limit]:.0f} s{beside}")


def _median(rounds: int, code: int, *argv: str | Path) -> float:
    return statistics.median(run(*CLUSTERCTL, *argv, code=code)[0].wall for _ in range(rounds))


def _hung(nodes: TestLab) -> float:
    """Return the seconds from when a worker stops in the midst of a run to when the run gives it up."""
    process = begin(nodes)
    with silent(nodes, "gpu02"):
        began = time.monotonic()
        events = latest_run(nodes) / "events.jsonl"
        wait_until(lambda: '"unreachable"' in events.read_text() or process.poll() is not None)
        seconds = time.monotonic() - began
        if process.poll() is not None:
            raise BenchError("the run ended without giving the worker up")
        ended(process, 4)
    return seconds


def _refused(nodes: TestLab, rounds: int) -> float:
    process = begin(nodes)
    seconds = _median(rounds, 6, "bootstrap", nodes.inventory)
    ended(process, 0)
    return seconds
