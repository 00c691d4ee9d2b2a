"""The lab alone: its first `up`, which builds its images, and then 3 and 20 nodes, until all answer over SSH."""

from tests.bench.demo import images_aside, refuse_other_labs
from tests.bench.measure import CLUSTERCTL, BenchLab, Document, load, run, say

SIZES = (3, 20)


def main() -> Document:
    """Measure `lab up` with the image to be built and with the image there; return the figures."""
    refuse_other_labs()
    with images_aside():
        return {"with_images": _up(SIZES[0], "with the images to be built"), **with_images(SIZES)}


def with_images(sizes: tuple[int, ...]) -> Document:
    """Measure `lab up` for each number of nodes, with the images there; return the figures."""
    say(f"Lab: until its nodes answer over SSH; {load()}")
    return {f"nodes_{size}": _up(size, "with the images there") for size in sizes}


def _up(size: int, how: str) -> dict[str, float]:
    lab = BenchLab.of("nodes", size - 1)
    lab.down()
    try:
        cost, _ = run(*CLUSTERCTL, "lab", "up", "--name", lab.name, "--workers", str(lab.workers))
    finally:
        lab.down()
    say(f"  {size:2} nodes {cost}, {how}; {load()}")
    return cost.document()
