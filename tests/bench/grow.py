"""One more worker for a small cluster and for a larger one: the cost must not grow with the cluster."""

import re

from tests.bench.measure import CLUSTERCTL, BenchError, BenchLab, Document, load, say

SIZES = (3, 12)


def main(sizes: tuple[int, int] = SIZES) -> Document:
    """Add the last worker of a small cluster, then of a large one of which that is a part; return the figures."""
    say(f"One more worker; {load()}")
    figures: Document = {}
    lab = BenchLab.of("grow", sizes[-1])
    try:
        lab.fresh()
        text = lab.inventory.read_text()
        lines = dict(re.findall(r"( *gpu\d\d: {ansible_host: (.*)}\n)", text))
        if len(lines) != lab.workers:
            raise BenchError(f"{lab.inventory} does not have each worker on a line of its own")
        for workers in sizes:
            given = list(lines)[: workers - 1]
            lab.inventory.write_text(
                "".join(part for part in text.splitlines(True) if part in given or part not in lines)
            )
            lab.clusterctl("bootstrap")
            name = f"gpu{workers:02}"
            address = lines[list(lines)[workers - 1]]
            cost, _ = lab.measure(*CLUSTERCTL, "add-node", lab.inventory, name, "--address", address, "--yes")
            say(f"  worker {workers:2}  {cost}; {load()}")
            figures[f"workers_{workers}"] = cost.document()
            if "nothing to change" not in lab.clusterctl("bootstrap"):
                raise BenchError("the bootstrap after add-node had something to change")
    finally:
        lab.down()
    for what in ("wall", "controller"):
        small, large = (figures[f"workers_{workers}"][what] for workers in sizes)
        figures[f"ratio_{what}"] = round(large / small, 2)
    say(f"  Ratio by wall clock: {figures['ratio_wall']:.2f}; by CPU here: {figures['ratio_controller']:.2f}")
    return figures
