"""What a user waits until a bad inventory is refused, with the least that a start can cost as the yardstick."""

import statistics
import sys
import tempfile
from pathlib import Path

from tests.bench.measure import CLUSTERCTL, Document, load, run, say

HOSTS = 500
ROUNDS = 5
LIMIT = 120.0
"""Seconds after which a start hangs."""

_INVENTORY = """\
all:
  vars: {{cluster_name: aurora, cluster_networks: [10.0.0.0/16]}}
  children:
    slurm_head: {{hosts: {{head1: {{ansible_host: 10.0.0.1}}}}}}
    slurm_workers:
      children:
        h100:
          hosts:
{hosts}
    monitoring: {{hosts: {{head1: {{}}}}}}
"""


def main(number: int = HOSTS, rounds: int = ROUNDS) -> Document:
    """Measure each command several times with this number of hosts; print and return the medians."""
    say(f"Bad input: the median of {rounds} starts each; {load()}")
    with tempfile.TemporaryDirectory(prefix="clusterctl-bench-") as name:
        large, bad = Path(name, "large.yaml"), Path(name, "bad.yaml")
        hosts = (f"gpu{i:03}: {{ansible_host: 10.0.{1 + i // 250}.{1 + i % 250}}}" for i in range(number))
        large.write_text(_INVENTORY.format(hosts="\n".join(" " * 12 + host for host in hosts)))
        bad.write_text(large.read_text().replace("slurm_workers", "slurm_wokers"))
        figures = {
            "python": _median(rounds, 0, sys.executable, "-c", "pass"),
            "version": _median(rounds, 0, *CLUSTERCTL, "--version"),
            "refused": _median(rounds, 2, *CLUSTERCTL, "bootstrap", str(bad)),
            "validated": _median(rounds, 0, *CLUSTERCTL, "validate", str(large)),
        }
    ratio = figures["refused"] / figures["version"]
    say(f"  python -c pass                    {figures['python']:6.2f} s")
    say(f"  clusterctl --version              {figures['version']:6.2f} s")
    say(f"  refusing {number} hosts with a typo    {figures['refused']:6.2f} s, {ratio:.1f} times --version")
    say(f"  validating {number} hosts              {figures['validated']:6.2f} s")
    return {"hosts": number, **{what: round(wall, 3) for what, wall in figures.items()}, "ratio": round(ratio, 2)}


def _median(rounds: int, code: int, *argv: str) -> float:
    return statistics.median(run(*argv, code=code, limit=LIMIT)[0].wall for _ in range(rounds))
