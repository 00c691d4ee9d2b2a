"""A cluster from nothing by the wheel, under the newest Python of this machine and the newest ansible-core for it."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.lab import ALICE, CALL_LIMIT, TestLab, fresh
from tests.programs import output_of
from tests.pythons import install_wheel


@pytest.fixture
def lab() -> Iterator[TestLab]:
    with fresh("newer") as lab:
        yield lab


@pytest.mark.proves("systems", "The newest Python and ansible-core build a cluster from nothing.")
@pytest.mark.long
def test_newest_python__bootstrap_from_nothing__builds_the_cluster(lab: TestLab, tmp_path: Path) -> None:
    """The checkout's own Python and Ansible then have nothing to change."""
    installed = install_wheel(tmp_path)
    if installed.python < (3, 12):
        pytest.skip(f"ansible-core 2.20 needs Python 3.12, and the newest here is {sys.version.split()[0]}")
    assert installed.ansible >= (2, 20), str(installed)
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(Path.home())}
    argv = [installed.program, "bootstrap", lab.inventory, "--output", "json"]
    summary = json.loads(output_of(argv, CALL_LIMIT, cwd=tmp_path, env=environment))
    changed = {name: host["changed"] for name, host in summary["hosts"].items()}
    assert set(changed) == set(lab.nodes)
    assert all(changed.values()), f"every node was empty before: {changed}"
    job = ("srun", "--nodes=2", "--gres=gpu:2", "--label", "nvidia-smi", "-L")
    gpus = lab.ssh("head1", *ALICE, *job).splitlines()
    assert sorted(line.split(":")[0] for line in gpus if "A100-SXM4-80GB" in line) == ["0", "0", "1", "1"], gpus
    lab.unchanged()
