"""A cluster from nothing by the wheel, under the newest Python of this machine and the newest ansible-core for it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.lab import ALICE, TestLab
from tests.labs import lab_name
from tests.pythons import install_wheel

BOOTSTRAP_LIMIT = 900
"""Seconds for a bootstrap from nothing: a hang, not a measurement."""


@pytest.fixture
def lab() -> Iterator[TestLab]:
    lab = TestLab(lab_name("newer"))
    lab.down()
    try:
        lab.up()
        yield lab
    finally:
        lab.down()


@pytest.mark.proves("systems", "The newest Python and ansible-core build a cluster from nothing.")
@pytest.mark.long
def test_newest_python__bootstrap_from_nothing__builds_the_cluster(lab: TestLab, tmp_path: Path) -> None:
    """The checkout's own Python and Ansible then have nothing to change."""
    installed = install_wheel(tmp_path)
    if installed.python < (3, 12):
        pytest.skip(f"ansible-core 2.20 needs Python 3.12, and the newest here is {sys.version.split()[0]}")
    assert installed.ansible >= (2, 20), str(installed)
    done = subprocess.run(
        [installed.program, "bootstrap", lab.inventory, "--output", "json"],
        cwd=tmp_path, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=BOOTSTRAP_LIMIT,
        env={"PATH": "/usr/bin:/bin", "HOME": str(Path.home())},
    )  # fmt: skip
    assert done.returncode == 0, f"{installed} fails\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}"
    changed = {name: host["changed"] for name, host in json.loads(done.stdout)["hosts"].items()}
    assert set(changed) == set(lab.nodes)
    assert all(changed.values()), f"every node was empty before: {changed}"
    job = ("srun", "--nodes=2", "--gres=gpu:2", "--label", "nvidia-smi", "-L")
    gpus = lab.ssh("head1", *ALICE, *job).splitlines()
    assert sorted(line.split(":")[0] for line in gpus if "A100-SXM4-80GB" in line) == ["0", "0", "1", "1"], gpus
    lab.unchanged()
