"""How the cost of an unchanged bootstrap, of `plan` and of `status` grows with the cluster.

The nodes are a lab's own: containers with systemd, sshd, Slurm and node_exporter. Workers are made from an image that
has their packages, because so many installations take an hour on two cores. They get a small part of the CPU if the
head wants it, and check their GPUs once an hour, as each host has cores of its own elsewhere. Each size is the one
before and more workers, which a bootstrap adds; the containers of later sizes already run, with systemd and sshd.
"""

import re
import statistics
import time
from collections.abc import Sequence

import yaml

from clusterctl.lab import image
from clusterctl.lab.lab import Lab
from clusterctl.lab.podman import podman
from clusterctl.lab.settings import Node, Settings
from clusterctl.util.errors import PreflightError
from tests.bench import profile
from tests.bench.changes import SETTLING, roles_of
from tests.bench.grow import with_first, workers_of
from tests.bench.measure import CLUSTERCTL, BenchError, BenchLab, Cost, Document, calm, load, median, say
from tests.cluster.lab import TestLab
from tests.cluster.leaving_out import decided

SIZES = (20, 60, 100)
"""Nodes, the head among them."""
ROUNDS = 3
LIMIT = 2400.0
"""Seconds for a bootstrap that plays all nodes; 60 new ones take 1040 on two cores."""

AT_ONCE = ("--forks", "16")
"""Nodes that work at the same time, as they share two cores: each has to answer in 40 s."""

_IMAGE = f"{image.REPOSITORY}:bench-worker"

# Runs clusterctl; prints the largest memory of a process in MB, and the CPU seconds of its own process. These are spent
# on one core, those of the others on all.
_MEASURED = """
import atexit, resource, runpy, sys

def report():
    own, others = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    print("\\npeak", max(own.ru_maxrss, others.ru_maxrss) >> 10, "own", own.ru_utime + own.ru_stime)

atexit.register(report)
runpy.run_module("clusterctl", run_name="__main__", alter_sys=True)
"""
_CORES = 16
"""Cores of a machine that drives 1,000 nodes."""


def main(sizes: Sequence[int] = SIZES, rounds: int = ROUNDS) -> Document:
    """Bootstrap a lab in steps; measure each size unchanged; return the figures and what each node more costs."""
    lab = BenchLab.of("scale", sizes[-1] - 1)
    say(f"Unchanged, by size: {', '.join(map(str, sizes))} nodes; {load()}")
    figures: Document = {}
    try:
        _start(lab)
        text = lab.inventory.read_text().replace("\n  vars:\n", "\n  vars:\n    gpu_health_interval: 3600\n", 1)
        workers = workers_of(lab).values()
        for size in sizes:
            lab.inventory.write_text(with_first(text, workers, size - 1))
            began = time.monotonic()
            _settle(lab, TestLab(lab.name, size - 1), rest=rounds > 1)  # else the figures are no measurement
            say(f"  {size:3} nodes, added and proven to be unchanged after {time.monotonic() - began:.0f} s; {load()}")
            figures[f"nodes_{size}"] = _unchanged(lab, size, rounds)
    finally:
        lab.down()
        podman("image", "rm", "--ignore", _IMAGE)
    figures |= _slopes(figures, sizes)
    return figures


class _Lab(Lab):
    """A lab whose workers have their packages from the start."""

    def _ensure_container(self, node: Node, settings: Settings, image_name: str) -> None:
        super()._ensure_container(node, settings, image_name if node.is_head else _IMAGE)


def _start(lab: BenchLab) -> None:
    """Have new nodes, the workers with their packages."""
    lab.down()
    _make_image()
    nodes, _ = _Lab(lab.name).up(Settings(lab.name, workers=lab.workers))
    for node in nodes:
        podman("update", "--cpu-shares", "4096" if node.is_head else "10", f"clusterctl-{lab.name}-{node.name}")


def _make_image() -> None:
    """Set up one worker, install its packages on another one that is in no cluster, and keep that as an image.

    Their services are disabled: slurmd without its cluster would end and be started again.
    """
    lab = BenchLab.of("scale-image", 2)
    first, second = (f"clusterctl-{lab.name}-gpu{number:02}" for number in (1, 2))
    try:
        lab.fresh()
        lab.inventory.write_text(with_first(lab.inventory.read_text(), workers_of(lab).values(), 1))
        lab.clusterctl("bootstrap")
        listed = podman("exec", first, "dpkg-query", "--show", "--showformat", r"${Package}\n")
        proxy = yaml.safe_load(lab.inventory.read_text())["all"]["vars"]["cluster_package_proxy"]
        script = (
            "printf '#!/bin/sh\\nexit 101\\n' >/usr/sbin/policy-rc.d; chmod +x /usr/sbin/policy-rc.d; "
            "enabled() { systemctl list-unit-files --state=enabled --plain --no-legend | cut -d' ' -f1 | sort; }; "
            "enabled >/root/enabled; "
            'apt-get -qq update; apt-get -qq -y --no-install-recommends install "$@" >/dev/null; '
            "enabled | comm -13 /root/enabled - | xargs systemctl --quiet disable; "
            "rm /root/enabled /usr/sbin/policy-rc.d; : >/etc/machine-id"
        )
        env = ("--env", "DEBIAN_FRONTEND=noninteractive", "--env", f"http_proxy={proxy}")
        podman("exec", *env, second, "sh", "-euc", script, "sh", *listed.split())
        podman("commit", "--quiet", second, _IMAGE)
    finally:
        lab.down()


def _settle(lab: BenchLab, nodes: TestLab, *, rest: bool) -> None:
    """Bootstrap until nothing is to do, if `rest` waiting for a low load before that is asked.

    Many nodes on few cores are slow, so that some may fail in the first runs, or not answer in time after them.
    """
    reason: Exception | None = None
    for number in range(SETTLING):
        try:
            # The first run finds Slurm's packages that it has not installed.
            lab.clusterctl("bootstrap", *AT_ONCE, *["--adopt"] * (number == 0), limit=LIMIT)
            if rest:
                calm()
            if decided(nodes, int(AT_ONCE[1])) == sorted(nodes.nodes):
                return
        except (BenchError, PreflightError) as error:
            say(f"  once more: {error}")
            reason = error
    raise BenchError(f"after {SETTLING} runs something is left to do") from reason


def _unchanged(lab: BenchLab, size: int, rounds: int) -> Document:
    """Measure the verbs where nothing is to do."""
    figures: Document = {}
    for verb in ("bootstrap", "plan", "status"):
        words = ("plan", "bootstrap") if verb == "plan" else (verb,)
        argv = (CLUSTERCTL[0], "-c", _MEASURED, *words, lab.inventory, *([] if verb == "status" else AT_ONCE))
        costs, peaks, own = list[Cost](), list[int](), list[float]()
        for _ in range(rounds):
            cost, printed = lab.measure(*argv, limit=LIMIT)
            if verb == "bootstrap" and (played := roles_of(profile.latest_run(lab.directory, verb))):
                raise BenchError(f"an unchanged run played {', '.join(played)}")
            costs.append(cost)
            [(peak, seconds)] = re.findall(r"(?m)^peak (\d+) own ([\d.]+)$", printed)
            peaks.append(int(peak))
            own.append(float(seconds))
        cost, of_one = median(costs), statistics.median(own)
        say(f"  {size:3} nodes, {verb:9} {cost}, {of_one:.1f} s of it in one process, {max(peaks)} MB; {load()}")
        per_node = round(cost.controller / size, 3)
        figures[verb] = {**cost.document(), "own": round(of_one, 2), "per_node": per_node, "peak_mb": max(peaks)}
    return figures


def _slopes(figures: Document, sizes: Sequence[int]) -> Document:
    """Return what each node more costs, between the smallest and the largest size, and say what 1,000 nodes mean."""
    found: Document = {}
    first, last = sizes[0], sizes[-1]
    for verb in ("bootstrap", "plan", "status"):
        few, many = (figures[f"nodes_{size}"][verb] for size in (first, last))
        slope = {what: (many[what] - few[what]) / (last - first) for what in ("wall", "controller", "own", "peak_mb")}
        thousand = {what: many[what] + (1000 - last) * each for what, each in slope.items()}
        found[f"slope_{verb}"] = {what: round(each, 4) for what, each in slope.items()}
        least = thousand["own"] + (thousand["controller"] - thousand["own"]) / _CORES
        say(
            f"  {verb}: each node more {1000 * slope['controller']:.0f} ms of CPU here, {slope['peak_mb']:.2f} MB; "
            f"on a line, 1,000 nodes: {thousand['controller']:.0f} s of CPU, {thousand['peak_mb']:.0f} MB; "
            f"{thousand['own']:.0f} s of it in one process: on {_CORES} cores at least {least:.0f} s"
        )
    return found
