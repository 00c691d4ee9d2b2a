"""README's first command, from a fresh clone, under a lab name of its own."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.lab import TestLab, podman
from tests.labs import REPOSITORY, lab_name
from tests.programs import output_of

DEMO_LIMIT = 800
"""Seconds for one run of the demo with its virtual environment: a hang, not a measurement."""


@pytest.fixture
def lab() -> Iterator[TestLab]:
    """The lab that the demo makes; its directory is beside those of all labs, for they share one lock."""
    lab = TestLab(lab_name("demo"))
    lab.down()
    try:
        yield lab
    finally:
        lab.down()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone of what is committed here: without the virtual environment and what git ignores."""
    output_of(["git", "clone", "--quiet", REPOSITORY, tmp_path / "clone"], DEMO_LIMIT)
    return tmp_path / "clone"


def demo(clone: Path, lab: TestLab, *options: str) -> str:
    """Run the demo as after a `git clone`, with nothing of this checkout's environment; return what it printed."""
    environment = {name: os.environ[name] for name in os.environ if not name.startswith(("ANSIBLE_", "PYT", "VIRTUAL"))}
    path = [place for place in os.environ["PATH"].split(os.pathsep) if ".venv" not in Path(place).parts]
    environment["PATH"] = os.pathsep.join(path)
    return output_of([clone / "scripts" / "demo", *options, lab.name], DEMO_LIMIT, cwd=clone.parent, env=environment)


def gpus_of_job(printed: str) -> dict[str, int]:
    """How many GPUs the demo's job shows on each node."""
    nodes = dict(re.findall(r"^(\d): (gpu\d\d)$", printed, re.MULTILINE))
    models = re.findall(r"^(\d): GPU \d+: NVIDIA A100", printed, re.MULTILINE)
    return {node: models.count(task) for task, node in nodes.items()}


@pytest.mark.proves("lab", "`scripts/demo` in a fresh clone runs a job on two nodes, twice.")
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_demo__fresh_clone_and_once_more__runs_a_job_on_two_nodes(clone: Path, lab: TestLab) -> None:
    for printed in (demo(clone, lab), demo(clone, lab)):
        assert gpus_of_job(printed) == {"gpu01": 2, "gpu02": 2}, printed
        (last,) = re.findall(r"^  (\S+/clusterctl lab down --name \S+)  ", printed, re.MULTILINE)
    # The command that it names at its end removes all of it.
    output_of(last.split(), DEMO_LIMIT, cwd=clone)
    assert f"clusterctl-{lab.name}-" not in podman("ps", "--all", "--format", "{{.Names}}")
    assert not lab.inventory.parent.exists()
