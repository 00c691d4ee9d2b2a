"""How the cost of an unchanged bootstrap, of `plan` and of `status` grows with the cluster.

The nodes are a lab's own: containers with systemd, sshd, Slurm and node_exporter. Each size is the one before and more
workers, which a bootstrap adds; the containers of later sizes already run, with systemd and sshd.
"""

import os
import re
import time
from collections.abc import Sequence

from tests.bench import profile
from tests.bench.changes import SETTLING, roles_of
from tests.bench.grow import with_first, workers_of
from tests.bench.measure import CLUSTERCTL, BenchError, BenchLab, Cost, Document, load, median, say
from tests.cluster.lab import TestLab
from tests.cluster.leaving_out import decided

SIZES = (20, 60, 100)
"""Nodes, the head among them."""
ROUNDS = 3
LIMIT = 2400.0
"""Seconds for a bootstrap that plays all nodes; 60 new ones take 1040 on two cores."""

CALM = 300.0
"""Seconds to wait for a low load, at most."""

# Prints the largest memory of one process below it, in MB.
_PEAK = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[1:])
print("peak", resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10)
sys.exit(code)
"""


def main(sizes: Sequence[int] = SIZES, rounds: int = ROUNDS) -> Document:
    """Bootstrap a lab in steps; measure each size unchanged; return the figures and what each node more costs."""
    lab = BenchLab.of("scale", sizes[-1] - 1)
    say(f"Unchanged, by size: {', '.join(map(str, sizes))} nodes; {load()}")
    figures: Document = {}
    try:
        lab.fresh()
        text = lab.inventory.read_text()
        workers = workers_of(lab).values()
        for size in sizes:
            lab.inventory.write_text(with_first(text, workers, size - 1))
            began = time.monotonic()
            _settle(lab, TestLab(lab.name, size - 1))
            say(f"  {size:3} nodes, added and proven to be unchanged after {time.monotonic() - began:.0f} s; {load()}")
            _calm()
            figures[f"nodes_{size}"] = _unchanged(lab, size, rounds)
    finally:
        lab.down()
    figures |= _slopes(figures, sizes)
    return figures


def _settle(lab: BenchLab, nodes: TestLab) -> None:
    """Bootstrap until nothing is to do. Many nodes on few cores are slow, so that some may fail in the first runs."""
    reason: BenchError | None = None
    for _ in range(SETTLING):
        try:
            lab.clusterctl("bootstrap", limit=LIMIT)
        except BenchError as error:
            say(f"  once more: {error}")
            reason = error
        else:
            if decided(nodes) == sorted(nodes.nodes):
                return
    raise BenchError(f"after {SETTLING} runs something is left to do") from reason


def _calm() -> None:
    """Wait for a low load, as nodes have timers and reports to send after a bootstrap; the figures say the load."""
    until = time.monotonic() + CALM
    while os.getloadavg()[0] > (os.cpu_count() or 1) and time.monotonic() < until:
        time.sleep(5)


def _unchanged(lab: BenchLab, size: int, rounds: int) -> Document:
    """Measure the verbs where nothing is to do."""
    figures: Document = {}
    for verb in ("bootstrap", "plan", "status"):
        argv = (*CLUSTERCTL, *(("plan", "bootstrap") if verb == "plan" else (verb,)), lab.inventory)
        costs, peaks = list[Cost](), list[int]()
        for _ in range(rounds):
            cost, printed = lab.measure(argv[0], "-c", _PEAK, *argv, limit=LIMIT)
            if verb == "bootstrap" and (played := roles_of(profile.latest_run(lab.directory, verb))):
                raise BenchError(f"an unchanged run played {', '.join(played)}")
            costs.append(cost)
            peaks += map(int, re.findall(r"(?m)^peak (\d+)$", printed))
        cost = median(costs)
        say(f"  {size:3} nodes, {verb:9} {cost}, {max(peaks)} MB; {load()}")
        figures[verb] = {**cost.document(), "per_node": round(cost.controller / size, 3), "peak_mb": max(peaks)}
    return figures


def _slopes(figures: Document, sizes: Sequence[int]) -> Document:
    """Return what each node more costs, between the smallest and the largest size, and say what 1,000 nodes mean."""
    found: Document = {}
    first, last = sizes[0], sizes[-1]
    for verb in ("bootstrap", "plan", "status"):
        few, many = (figures[f"nodes_{size}"][verb] for size in (first, last))
        slope = {what: (many[what] - few[what]) / (last - first) for what in ("wall", "controller", "peak_mb")}
        thousand = {what: many[what] + (1000 - last) * each for what, each in slope.items()}
        found[f"slope_{verb}"] = {what: round(each, 4) for what, each in slope.items()}
        say(
            f"  {verb}: each node more {1000 * slope['controller']:.0f} ms of CPU here, {slope['peak_mb']:.2f} MB; "
            f"on a line, 1,000 nodes: {thousand['controller']:.0f} s of CPU, {thousand['peak_mb']:.0f} MB"
        )
    return found
