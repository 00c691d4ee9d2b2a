"""Bytes that a first bootstrap fetches from outside where the head has the package cache: few nodes, and many.

What is outside is the server that fetches packages for all labs. Its log has each answer with its bytes, but not for
which lab, so no other lab may install anything meanwhile.
"""

from collections.abc import Sequence

from clusterctl.lab import cache
from tests.bench.measure import BenchLab, Document, load, run, say

SIZES = (3, 20)
"""Nodes, the head among them."""
LOG = "/var/log/apt-cacher-ng/apt-cacher.log"
_GROUP = "    package_cache: {hosts: {head1: {}}}\n"


def main(sizes: Sequence[int] = SIZES) -> Document:
    """Bootstrap a new lab of each size with the package cache; return the bytes and their ratio."""
    say(f"Bytes from outside of a first bootstrap with the package cache; {load()}")
    figures: Document = {}
    for size in sizes:
        lab = BenchLab.of("bytes", size - 1)
        try:
            lab.fresh()
            lab.inventory.write_text(lab.inventory.read_text() + _GROUP)
            before = _sent()
            lab.clusterctl("bootstrap")
            fetched = _sent() - before
        finally:
            lab.down()
        say(f"  {size:3} nodes  {fetched / 1e6:7.1f} MB; {load()}")
        figures[f"nodes_{size}"] = {"bytes": fetched}
    few, many = (figures[f"nodes_{size}"]["bytes"] for size in (sizes[0], sizes[-1]))
    figures["ratio"] = round(many / few, 3)
    say(f"  Ratio of {sizes[-1]} nodes to {sizes[0]}: {figures['ratio']:.3f}")
    return figures


def _sent() -> int:
    """Return the bytes of all answers so far."""
    # It writes what it keeps in memory when it opens its log again.
    run("podman", "exec", cache.NAME, "sh", "-c", "kill -USR1 1; sleep 1")
    _, text = run("podman", "exec", cache.NAME, "cat", LOG)
    return sum(int(line.split("|")[2]) for line in text.splitlines() if line.split("|")[1] == "O")
