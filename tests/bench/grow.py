"""One more worker for a small cluster and for one of 20 nodes: the cost must not grow with the cluster.

Afterwards as many workers are added to the large one by hand (floor.sh), the reference for the speed of the machine.
Before each the nodes come to rest after the last run: here they share a few cores, elsewhere each has cores of its own.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from tests.bench import against_floor
from tests.bench.measure import CLUSTERCTL, BenchError, BenchLab, Document, calm, load, median, say

SIZES = (5, 19)
"""Workers of the two clusters in the end. With its head the large one has 20 nodes."""
ROUNDS = 3


@dataclass(frozen=True)
class Worker:
    """A worker in a lab's inventory: its line, and its address."""

    line: str
    address: str


def workers_of(lab: BenchLab) -> dict[str, Worker]:
    """Return the workers of a lab by name, as its inventory has them. Raises BenchError if they share a line."""
    found = re.findall(r"( *(gpu\d+): {ansible_host: (.*)}\n)", lab.inventory.read_text())
    if len(found) != lab.workers:
        raise BenchError(f"{lab.inventory} does not have each worker on a line of its own")
    return {name: Worker(line, address) for line, name, address in found}


def with_first(text: str, workers: Iterable[Worker], number: int) -> str:
    """Return the text of an inventory with only so many of its workers, the first."""
    others = {worker.line for worker in [*workers][number:]}
    return "".join(line for line in text.splitlines(True) if line not in others)


def main(sizes: tuple[int, int] = SIZES, rounds: int = ROUNDS) -> Document:
    """Add the last workers of a small cluster, then of a large one of which that is a part; return the figures."""
    say(f"One more worker; {load()}")
    figures: Document = {}
    lab = BenchLab.of("grow", sizes[-1] + rounds)
    try:
        lab.fresh()
        text = lab.inventory.read_text()
        known = [*workers_of(lab).items()]

        def list_workers(number: int) -> None:
            lab.inventory.write_text(with_first(text, dict(known).values(), number))

        for workers in sizes:
            list_workers(workers - rounds)
            lab.clusterctl("bootstrap")
            costs = []
            for name, worker in known[workers - rounds : workers]:
                calm()
                argv = ("add-node", lab.inventory, name, "--address", worker.address, "--yes")
                cost, _ = lab.measure(*CLUSTERCTL, *argv)
                say(f"  {name}  {cost}; {load()}")
                costs.append(cost)
                if "nothing to change" not in lab.clusterctl("bootstrap"):
                    raise BenchError("the bootstrap after add-node had something to change")
            figures[f"workers_{workers}"] = median(costs).document()
            say(f"  {workers:2} workers at the end, median: {median(costs)}")
        tool, costs = median(costs), []
        list_workers(len(known))
        against_floor.find_out(lab)  # all at once: it refuses a node with a slurmd of floor.sh
        for number, (name, _) in enumerate(known[sizes[-1] :], sizes[-1] + 1):
            list_workers(number)
            calm()
            cost, account = against_floor.join_by_hand(lab, name)
            say(f"  {name}  {cost} by hand; {load()}")
            costs.append(cost)
        say(account.rstrip())
    finally:
        lab.down()
    hand = median(costs)
    figures["by_hand"] = hand.document()
    for what in ("wall", "controller"):
        small, large = (figures[f"workers_{workers}"][what] for workers in sizes)
        figures[f"ratio_{what}"] = round(large / small, 2)
    figures["ratio_by_hand"] = round(tool.wall / hand.wall, 2)
    figures["ratio_cpu_by_hand"] = round(tool.cpu / hand.cpu, 2)
    say(f"  Ratio by wall clock: {figures['ratio_wall']:.2f}; by CPU here: {figures['ratio_controller']:.2f}")
    ratio, of_cpu = figures["ratio_by_hand"], figures["ratio_cpu_by_hand"]
    say(f"  By hand, median: {hand}; ratio: {ratio:.2f}, of all CPU {of_cpu:.2f}")
    return figures
