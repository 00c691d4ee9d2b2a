"""From a fault of a GPU to its node being out of service, in the intervals at which Slurm has GPUs checked."""

import json
import time

from tests.bench.measure import CLUSTERCTL, BenchError, BenchLab, Document, load, run, say

INTERVAL = 20
FAULTS = (
    ("hot",), ("power-brake",), ("pcie-width",), ("ecc",), ("row-remap",), ("nvlink-down",), ("gpu-lost",),
    ("gpu-xid", "119"),
)  # fmt: skip
_NODE = "gpu01"
_TRIES = 6  # intervals after which nothing is to be expected any more


def main(faults: tuple[tuple[str, ...], ...] = FAULTS, interval: int = INTERVAL) -> Document:
    """Bring one fault after the other on a node and mend it again; print and return how long each took to be told."""
    lab = BenchLab.of("ill", 2)
    say(f"A GPU falls ill; {load()}")
    ratios = {}
    try:
        lab.fresh()
        text = lab.inventory.read_text()
        lab.inventory.write_text(text.replace("  vars:\n", f"  vars:\n    slurm_head_health_interval: {interval}\n", 1))
        lab.clusterctl("bootstrap")
        for fault in faults:
            _fault(lab, *fault)
            took, reason = _until(lab, _TRIES * interval, out=True)
            ratios[" ".join(fault)] = round(took / interval, 2)
            say(f"  {' '.join(fault):12}  {took:4.1f} s, {took / interval:.2f} intervals: {reason}")
            _fault(lab, "clear")
            lab.clusterctl("health", _NODE, "--diagnose")
            _until(lab, _TRIES * interval, out=False)
    finally:
        lab.down()
    say(f"  Intervals of {interval} s, at most: {max(ratios.values()):.2f}")
    return {"interval": interval, "intervals": ratios, "most": max(ratios.values())}


def _fault(lab: BenchLab, *what: str) -> None:
    run(*CLUSTERCTL, "lab", "fault", "--name", lab.name, _NODE, *what)


def _until(lab: BenchLab, limit: float, *, out: bool) -> tuple[float, str]:
    """Wait until the drain ledger has the node out for its health, or in; return the seconds and why it is out."""
    begin = time.monotonic()
    while (took := time.monotonic() - begin) < limit:
        _, told = run("podman", "exec", f"clusterctl-{lab.name}-head1", "slurm-drain", limit=60)
        reason = json.loads(told).get(_NODE, {}).get("health", "")
        if bool(reason) == out:
            return took, reason
        time.sleep(0.2)
    raise BenchError(f"{_NODE} is {'in' if out else 'out of'} service after {limit:.0f} s")
