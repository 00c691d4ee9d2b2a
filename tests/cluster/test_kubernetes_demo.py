"""README's command for Kubernetes, from a fresh clone, under a lab name of its own."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.kubernetes import RECIPES, Kubernetes
from tests.cluster.lab import podman
from tests.cluster.test_demo import DEMO_LIMIT, demo
from tests.labs import REPOSITORY, lab_name
from tests.programs import output_of

pytestmark = [pytest.mark.long, pytest.mark.kit(*RECIPES)]


@pytest.fixture
def lab() -> Iterator[Kubernetes]:
    """The lab that the demo makes."""
    lab = Kubernetes(lab_name("kubernetes-demo"))
    lab.down()
    try:
        yield lab
    finally:
        lab.down()


@pytest.mark.proves("lab", "`scripts/demo --kubernetes` in a fresh clone runs a pod with two GPUs, twice.")
@pytest.mark.timeout(1800)
def test_demo__of_kubernetes__runs_a_pod_with_gpus(lab: Kubernetes, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    output_of(["git", "clone", "--quiet", REPOSITORY, clone], DEMO_LIMIT)
    for printed in (demo(clone, lab, "--kubernetes"), demo(clone, lab, "--kubernetes")):
        assert len(re.findall(r"^GPU \d: NVIDIA A100-SXM4-80GB \(UUID: GPU-\S+\)$", printed, re.MULTILINE)) == 2, (
            printed
        )
        (last,) = re.findall(r"^  (\S+/clusterctl lab down --name \S+)  ", printed, re.MULTILINE)
    output_of(last.split(), DEMO_LIMIT, cwd=clone)
    assert f"clusterctl-{lab.name}-" not in podman("ps", "--all", "--format", "{{.Names}}")
