"""A part of Kubernetes' own conformance tests, by its own program, on a lab's cluster."""

import re
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl.lab import kit, kit_recipe
from tests.cluster.kubernetes import RECIPES, Kubernetes, kubeconfig
from tests.cluster.lab import HERE, fresh_as
from tests.programs import described

TESTS = "kubernetes-e2e"
NAMES = [line for line in (HERE / "e2e.txt").read_text().splitlines() if line and not line.startswith("#")]
LIMIT = 3000
"""Seconds; all tests take about half of it on two cores."""

pytestmark = [pytest.mark.kit(*RECIPES, TESTS), pytest.mark.long, pytest.mark.timeout(4000)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Kubernetes]:
    with fresh_as(Kubernetes, "kubernetes-e2e", "--recipe", TESTS) as lab:
        lab.run("bootstrap")
        yield lab


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Extract the kit's program of Kubernetes' tests."""
    folder = tmp_path_factory.mktemp("e2e")
    made = kit.build(kit_recipe.load((TESTS,)), lambda _: None)
    (archive,) = made.results[TESTS].glob("*+conformance.tar")
    subprocess.run(["tar", "--extract", f"--file={archive}", f"--directory={folder}"], check=True)
    return folder / "usr/local/bin/e2e.test"


@pytest.mark.proves(
    "kubernetes",
    "A listed part of Kubernetes' conformance tests passes: networking, DNS, volumes, scheduling, Jobs, accounts.",
)
def test_conformance__of_the_listed_tests__passes(cluster: Kubernetes, program: Path, tmp_path: Path) -> None:
    kubeconfig(cluster, "--output", str(tmp_path / "admin.conf"))
    focus = "|".join(f"{re.escape(name)}$" for name in NAMES)  # the suite's name comes first
    argv = [str(program), f"--kubeconfig={tmp_path}/admin.conf", "--provider=skeleton", f"--ginkgo.focus={focus}",
            f"--report-dir={tmp_path}", "--disable-log-dump", "--ginkgo.no-color",
            "--non-blocking-taints=node-role.kubernetes.io/control-plane"]  # fmt: skip
    done = subprocess.run(argv, text=True, capture_output=True, timeout=LIMIT, check=False, cwd=tmp_path)
    reports = [ET.parse(path) for path in tmp_path.glob("junit*.xml")]  # noqa: S314 - written by the program above
    cases = {case.get("name", ""): case for report in reports for case in report.iter("testcase")}
    passed = [name for name, case in cases.items() if case.get("status") == "passed"]
    # The report's names begin with the kind of the node, and may end with labels.
    assert [name for name in NAMES if not any(name in one for one in passed)] == [], described(done)
    assert done.returncode == 0, described(done)
