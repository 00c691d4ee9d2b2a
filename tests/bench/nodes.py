"""The lab alone: its first `up`, which builds its images, and then 3 and 20 nodes, until all answer over SSH."""

from tests.bench.demo import images_aside, refuse_other_labs
from tests.bench.measure import CLUSTERCTL, BenchLab, Document, load, run, say

SIZES = (3, 20)


def main() -> Document:
    """Measure `lab up` with the image to be built and with the image there; return the figures."""
    refuse_other_labs()
    say(f"Lab: until its nodes answer over SSH; {load()}")
    figures: Document = {}
    with images_aside():
        figures["with_images"] = _up(SIZES[0], "with the images to be built")
        for size in SIZES:
            figures[f"nodes_{size}"] = _up(size, "with the images there")
    return figures


def _up(size: int, how: str) -> dict[str, float]:
    lab = BenchLab.of("nodes", size - 1)
    lab.down()
    try:
        cost, _ = run(*CLUSTERCTL, "lab", "up", "--name", lab.name, "--workers", str(lab.workers))
    finally:
        lab.down()
    say(f"  {size:2} nodes {cost}, {how}; {load()}")
    return cost.document()
