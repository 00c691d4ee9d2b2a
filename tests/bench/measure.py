"""What something costs. Wall clock alone tells little on a machine that is busy with other things as well."""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.labs import REPOSITORY, lab_name, state_directory
from tests.programs import end, started, tail

CLUSTERCTL = (sys.executable, "-m", "clusterctl")
WORKERS = 2
LIMIT = 900.0
"""Seconds after which a command that is measured is stopped: it hangs. The slowest, on 20 nodes, takes 300."""

CALM = 300.0
"""Seconds to wait for a low load, at most."""

_GRACE = 90.0  # seconds from SIGTERM, on which clusterctl ends Ansible and a part takes its lab down, to SIGKILL


class BenchError(Exception):
    """Something that was to be measured failed; the text says what, and ends with its own last lines."""


@dataclass(frozen=True)
class Cost:
    """Seconds: on the wall; of CPU in the measured command and its children; of CPU in the lab's nodes meanwhile."""

    wall: float
    controller: float
    nodes: float = 0.0

    @property
    def cpu(self) -> float:
        return self.controller + self.nodes

    def __str__(self) -> str:
        text = f"{self.wall:6.1f} s wall, {self.controller:5.1f} s CPU here"
        return text + (f", {self.nodes:5.1f} s in the nodes" if self.nodes else "")

    def document(self) -> dict[str, float]:
        return {name: round(value, 2) for name, value in asdict(self).items()}


def run(
    *argv: str | Path,
    env: Mapping[str, str] | None = None,
    cwd: Path = REPOSITORY,
    code: int = 0,
    limit: float = LIMIT,
) -> tuple[Cost, str]:
    """Run a command to its end; return its cost and its output, both streams together.

    Raises BenchError if it ends with another exit code, or does not end within `limit` seconds.
    """
    words = [str(word) for word in argv]
    command = " ".join(words)
    before, began = os.times(), time.monotonic()
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
    with started(words, env={**os.environ, **(env or {})}, cwd=cwd, **pipes) as process:
        try:
            output, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            output, _ = end(process, limit=_GRACE)
            raise BenchError(f"{command} did not end within {limit:.0f} s:\n{tail(output)}") from None
    wall, after = time.monotonic() - began, os.times()
    if process.returncode != code:
        raise BenchError(f"{command} ended with {process.returncode}:\n{tail(output)}")
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return Cost(wall, spent), output


def bench_lab_name(part: str) -> str:
    """Return the name of the lab of a part; tests have labs of the same purposes, as `demo`."""
    return lab_name(f"bench-{part}")


@dataclass(frozen=True)
class BenchLab:
    """A lab of the bench's own, by name."""

    name: str
    workers: int = WORKERS
    options: tuple[str, ...] = ()
    """Further options of `lab up`."""

    @classmethod
    def of(cls, part: str, workers: int = WORKERS, options: tuple[str, ...] = ()) -> "BenchLab":
        return cls(bench_lab_name(part), workers, options)

    @property
    def directory(self) -> Path:
        return state_directory() / self.name

    @property
    def inventory(self) -> Path:
        return self.directory / "inventory.yaml"

    def fresh(self) -> None:
        """Have new nodes, and nothing known of them."""
        self.down()
        run(*CLUSTERCTL, "lab", "up", "--name", self.name, "--workers", str(self.workers), *self.options)

    def down(self) -> None:
        run(*CLUSTERCTL, "lab", "down", "--name", self.name)

    def clusterctl(self, verb: str, *options: str, limit: float = LIMIT) -> str:
        """Run a verb on the lab's inventory; return what it printed."""
        return run(*CLUSTERCTL, verb, self.inventory, *options, limit=limit)[1]

    def measure(
        self, *argv: str | Path, env: Mapping[str, str] | None = None, limit: float = LIMIT
    ) -> tuple[Cost, str]:
        """Run a command as `run` does, the nodes' CPU counted too."""
        before = self._cpu()
        cost, output = run(*argv, env=env, limit=limit)
        return Cost(cost.wall, cost.controller, self._cpu() - before), output

    def _cpu(self) -> float:
        """Return the CPU seconds that the nodes have used so far."""
        _, listing = run("podman", "ps", "--quiet", "--filter", f"label=clusterctl.lab={self.name}")
        _, told = run("podman", "stats", "--no-stream", "--format", "{{.CPUNano}}", *listing.split())
        return sum(map(int, told.split())) / 1e9


def median(costs: Sequence[Cost]) -> Cost:
    """Return the median of each part of costs."""
    parts = ("wall", "controller", "nodes")
    return Cost(*(float(statistics.median(getattr(cost, part) for cost in costs)) for part in parts))


def load() -> str:
    """Return the machine's load, for who reads the figures later."""
    return f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs"


def calm() -> None:
    """Wait until the load is low, or falls no longer: nodes have timers and reports to send after a bootstrap."""
    until, before = time.monotonic() + CALM, float("inf")
    while (os.cpu_count() or 1) < (now := os.getloadavg()[0]) < 0.97 * before and time.monotonic() < until:
        before = now
        time.sleep(20)


def say(text: str = "") -> None:
    print(text, flush=True)


Document = dict[str, Any]
