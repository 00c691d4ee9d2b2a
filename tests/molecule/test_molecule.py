"""Every role alone, in containers of its own: check, converge, converge again without a change, verify."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.labs import REPOSITORY, lab_name, state_directory

HERE = Path(__file__).resolve().parent
SCENARIOS = sorted(path.parent.name for path in HERE.glob("*/molecule.yml"))
# CI plays these in whole clusters and uses them (tests/cluster/test_containers.py, _gpu_config, _gpu_metrics, _health,
# _runtimes); nvidia_driver finds a driver there and leaves it, as here, and has test_driver.py besides.
LONG = {
    "apptainer", "containerd", "containers", "dcgm_exporter", "docker", "gpu_config", "gpu_health",
    "nvidia_container_toolkit", "nvidia_driver", "podman",
}  # fmt: skip


@pytest.mark.parametrize(
    "scenario", [pytest.param(name, marks=[pytest.mark.long] if name in LONG else []) for name in SCENARIOS]
)
def test_role(scenario: str) -> None:
    lab = lab_name(scenario.replace("_", "-")[:22])  # a name has 30 characters at most
    directory = state_directory() / lab
    environment = {
        **os.environ,
        "CLUSTERCTL_TEST_LAB": lab,
        "CLUSTERCTL_TEST_LAB_DIRECTORY": str(directory),
        "MOLECULE_GLOB": str(HERE / "*" / "molecule.yml"),
        "ANSIBLE_CONFIG": "",
    }
    done = subprocess.run(
        ["molecule", "--base-config", str(HERE / "config.yml"), "test", "--scenario-name", scenario],
        cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        subprocess.run(["clusterctl", "lab", "down", "--name", lab], check=False, capture_output=True)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


# What they bring back is a whole cluster's, or its node's; or they need a vendor's repository.
OF_A_CLUSTER = {
    "enroot": "test_runtimes.py",
    "nvidia_cuda": "test_driver.py",
    "os_upgrade": "test_upgrade.py",
    "pyxis": "test_runtimes.py",
    "reboot": "test_upgrade.py",
    "restore": "test_backup.py",
}


def test_every_role_has_a_scenario() -> None:
    assert {path.name for path in (REPOSITORY / "roles").iterdir()} <= {*SCENARIOS, *OF_A_CLUSTER}
    assert all((REPOSITORY / "tests/cluster" / name).is_file() for name in OF_A_CLUSTER.values())
