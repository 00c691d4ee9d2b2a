"""One more worker for a small cluster and for a larger one: the cost must not grow with the cluster."""

import re

from tests.bench.measure import CLUSTERCTL, BenchError, BenchLab, Document, load, run, say

SIZES = (3, 12)


def main() -> Document:
    """Add the last worker of two labs to a finished cluster of the others; print and return the figures."""
    say(f"One more worker; {load()}")
    figures: Document = {}
    for workers in SIZES:
        figures[f"workers_{workers}"] = _add(workers)
    small, large = (figures[f"workers_{workers}"]["wall"] for workers in SIZES)
    figures["ratio_wall"] = round(large / small, 2)
    say(f"  Ratio by wall clock: {large / small:.2f}")
    return figures


def _add(workers: int) -> dict[str, float]:
    lab = BenchLab.of("grow", workers)
    try:
        lab.fresh()
        text = lab.inventory.read_text()
        last = re.search(rf" *gpu{workers:02}: {{ansible_host: (.*)}}\n", text)
        if not last:
            raise BenchError(f"{lab.inventory} has no gpu{workers:02} on a line of its own")
        lab.inventory.write_text(text.replace(last[0], ""))
        lab.clusterctl("bootstrap")
        name = f"gpu{workers:02}"
        cost, _ = lab.measure(*CLUSTERCTL, "add-node", lab.inventory, name, "--address", last[1], "--yes")
        say(f"  the {workers:2}th worker  {cost}; {load()}")
        changed = re.search("nothing to change", run(*CLUSTERCTL, "bootstrap", lab.inventory)[1])
        if not changed:
            raise BenchError("the bootstrap after add-node had something to change")
    finally:
        lab.down()
    return cost.document()
