"""Every part of scripts/bench still runs. Each takes its smallest lab, once, so its figures mean nothing here."""

import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.__main__ import PARTS
from tests.bench.demo import images_aside
from tests.bench.measure import bench_lab_name, run
from tests.cluster.kubernetes import RECIPES
from tests.cluster.lab import TestLab, podman
from tests.labs import lab_name

KIT = {"kubernetes": RECIPES}
"""By part: recipes of the kit that are built before it."""
LIMIT = 780.0
"""Seconds after which a part hangs. The longest, two clusters from nothing, takes 280 on two busy cores."""

# By part: figures of its document, and a line of its output whose numbers are figures too.
FIGURES = {
    "input": (["python", "version", "refused", "validated", "ratio"], r"validating 20 hosts +([\d.]+) s"),
    "nodes": (["nodes_2.wall", "nodes_2.controller"], r" 2 nodes +([\d.]+) s wall, +([\d.]+) s CPU here"),
    "floor": (["ratio_wall", "ratio_cpu", "profile.ping.wall"], r"Ratio by wall clock: ([\d.]+) .* median ([\d.]+)"),
    "demo": (["warm.wall", "warm.controller"], r"warm +([\d.]+) s wall, +([\d.]+) s CPU here"),
    "rerun": (
        ["host_tasks", "ratio_wall", "ratio_controller", "bootstrap.nodes"],
        r"(\d+) host-tasks, (\d+) ms of CPU",
    ),
    "changes": (
        ["ratio_user", "controller_per_node", "peak_mb", "one user.host_tasks", "add-node.wall"],
        r"Ratio of one user to all played: ([\d.]+); unchanged ([\d.]+) CPU-s per node",
    ),
    "scale": (
        ["nodes_3.bootstrap.per_node", "nodes_2.plan.wall", "nodes_3.status.peak_mb"],
        r"bootstrap: each node more -?\d+ ms of CPU here, .* 1,000 nodes: -?(\d+) s of CPU",
    ),
    "bytes": (["ratio", "nodes_2.bytes"], r"Ratio of 3 nodes to 2: ([\d.]+)"),
    "pyinfra": (
        ["ratio_wall", "ratio_cpu", "controller_per_node", "edited.pyinfra.wall", "full.wall"],
        r"Ratio by wall clock: ([\d.]+), by CPU: ([\d.]+)",
    ),
    "limits": (
        ["silent", "all_answer", "hung", "refused", "version"],
        r"a hung worker is noticed +([\d.]+) s, ([\d.]+)",
    ),
    "grow": (
        ["workers_2.wall", "workers_3.wall", "ratio_wall", "ratio_controller", "ratio_by_hand", "ratio_cpu_by_hand"],
        r"Ratio by wall clock: ([\d.]+)",
    ),
    "status": (["ratio_wall"], r"Ratio to the ping: ([\d.]+) on the wall, ([\d.]+) of CPU"),
    "kubernetes": (
        ["ratio_wall", "ratio_cpu", "one_more.wall", "full.wall", "unchanged.wall", "profile.ping.wall"],
        r"Ratio by wall clock: ([\d.]+) .* median ([\d.]+)",
    ),
    "series": (
        ["worker_node_series", "worker_gpu_series", "total_series", "memory_bytes", "bytes_per_series"],
        r"Prometheus: (\d+) series, (\d+) MiB",
    ),
    "jobs": (["without", "with", "ratio"], r"without ([\d.]+) s, with ([\d.]+) s"),
    "ill": (["most", "intervals.hot"], r"hot +([\d.]+) s, ([\d.]+) intervals"),
}


@pytest.fixture
def lab_of_part(part: str) -> Iterator[None]:
    """The part takes its lab down itself; one that was killed may not have."""
    yield
    TestLab(bench_lab_name(part)).down()


@pytest.mark.proves("costs", "Each part of `scripts/bench` runs on a tiny lab and prints figures.")
@pytest.mark.long
@pytest.mark.parametrize(
    "part", [pytest.param(part, marks=pytest.mark.kit(*KIT[part]) if part in KIT else ()) for part in PARTS]
)
def test_bench__each_part_on_a_tiny_lab__prints_its_figures(part: str, lab_of_part: None, tmp_path: Path) -> None:
    output = tmp_path / "figures.json"
    _, printed = run(sys.executable, "-m", "tests.bench", "--tiny", part, "--output", output, limit=LIMIT)
    assert printed.endswith(f"Figures: {output}\n"), printed
    names, line = FIGURES[part]
    document = json.loads(output.read_text())[part]
    figures = {name: figure(document, name) for name in names}
    found = re.search(line, printed)
    assert found, printed
    figures |= {f"printed {number}": float(text) for number, text in enumerate(found.groups())}
    assert {name: value for name, value in figures.items() if not (math.isfinite(value) and value > 0)} == {}, printed


def figure(document: object, name: str) -> float:
    for key in name.split("."):
        assert isinstance(document, dict), name
        document = document[key]
    assert isinstance(document, int | float), name
    return float(document)


@pytest.mark.long
def test_images_aside__one_built_meanwhile__brings_the_old_one_back() -> None:
    repository = f"localhost/{lab_name('bench')}-image"
    old, new = (make_image(repository, "1", text) for text in ("old", "new"))
    podman("tag", old, f"{repository}:1")
    try:
        with images_aside([repository]):
            assert known(repository) == {}
            podman("tag", new, f"{repository}:2")
        assert known(repository) == {f"{repository}:1": old}
        assert known(f"{repository}-aside") == {}
    finally:
        podman("rmi", "--force", old, new)


def make_image(repository: str, tag: str, text: str) -> str:
    """Make an image of nothing but a comment; return its ID."""
    empty = subprocess.run(["tar", "--create", "--files-from=/dev/null"], capture_output=True, check=True).stdout
    argv = ["podman", "import", "--quiet", "--message", text, "-", f"{repository}:{tag}"]
    done = subprocess.run(argv, input=empty, capture_output=True, check=True, timeout=60)
    return done.stdout.decode().strip().removeprefix("sha256:")


def known(repository: str) -> dict[str, str]:
    """Return the images of a repository, by name."""
    rows = podman("images", "--no-trunc", "--format", "{{.Repository}}:{{.Tag}} {{.Id}}").splitlines()
    found = dict(row.replace("sha256:", "").split() for row in rows)
    return {name: image for name, image in found.items() if name.rpartition(":")[0] == repository}
