"""Roles in containers, by molecule: check mode on empty nodes, converge, converge again without a change, verify.

Three scenarios are ordinary tests, which run when layer `roles` is touched (tests/layers.py). What each role gets there
is in tests/unit/test_scenarios.py.

- `node_state`: the module alone, with apt and dnf.
- `node`: base, munge and node_exporter, then removal. Role removal is converged once, in verify. It gets neither check
  mode nor idempotence: on an empty node and in a second run it has nothing to undo.
- `slurm`: a cluster of one worker by playbooks/bootstrap.yml, thus its roles in the product's order. Role packages is
  verified before the others come. Role verify gets no check mode: no cluster is there yet. Roles backup and restore are
  converged in verify. They get neither check mode nor idempotence: a backup and a restore are always a change.
  nvidia_driver, nvidia_cuda and gpu_health come with the playbook. The lab has a driver, and the first two leave it as
  it is; the scenarios that verify the three are `long`. So is the one that verifies prometheus.

All other scenarios are `long`: each role alone, and `gpu` and `runtimes` with several roles each.
"""

import os
from pathlib import Path

import pytest

from tests.cluster.kubernetes import RECIPES
from tests.cluster.lab import TestLab
from tests.labs import REPOSITORY, lab_name, state_directory
from tests.programs import failure_of, tail

HERE = Path(__file__).resolve().parent
LOGS = REPOSITORY / ".cache" / "tests"
SCENARIOS = sorted(path.parent.name for path in HERE.glob("*/molecule.yml"))
ORDINARY = ("node_state", "node", "slurm")

# Seconds. A scenario has less than the 15 minutes of a test. At the limit of a task Ansible itself names the task.
SCENARIO_LIMIT = 13 * 60
TASK_LIMIT = 5 * 60


def marks(scenario: str) -> list[pytest.MarkDecorator]:
    """Return the marks of a scenario: when it runs, and whether the kit is built before."""
    found = [] if scenario in ORDINARY else [pytest.mark.long]
    return [*found, pytest.mark.kit(*RECIPES)] if scenario.startswith("kubernetes") else found


def settings(lab: str, state: Path) -> dict[str, str]:
    """Return molecule's environment for a scenario on this lab; `state` is an empty directory of its own.

    Molecule skips the steps that it finds done there.
    """
    return {
        **os.environ,
        "CLUSTERCTL_TEST_LAB": lab,
        "CLUSTERCTL_TEST_LAB_DIRECTORY": str(state_directory() / lab),
        "CLUSTERCTL_TEST_TASK_LIMIT": str(TASK_LIMIT),
        "MOLECULE_GLOB": str(HERE / "*" / "molecule.yml"),
        "MOLECULE_EPHEMERAL_DIRECTORY": str(state),
        "ANSIBLE_CONFIG": "",
        "NO_COLOR": "1",
        "PYTHONUNBUFFERED": "1",
    }


def command(scenario: str) -> list[str]:
    """Return molecule's command line for a scenario, which leaves its lab: the log ends with the task that failed."""
    options = ["--destroy=never", "--no-command-borders", "--scenario-name", scenario]
    return ["molecule", "--base-config", str(HERE / "config.yml"), "test", *options]


@pytest.mark.proves("roles", "The roles of each scenario converge in containers and pass its checks.")
@pytest.mark.proves(
    "roles", "Check mode runs, and a second converge changes nothing, except backup, removal and verify."
)
@pytest.mark.proves(
    "node_state", "Each kind of item that is absent, wrong or half done is repaired.", only=["node_state"]
)
@pytest.mark.proves("node_state", "A call killed at several points is completed by the next.", only=["node_state"])
@pytest.mark.proves("node_state", "A killed dpkg is repaired by the next call.", only=["node_state"])
@pytest.mark.proves("node_state", "A held dpkg lock is waited for, and its holder reported.", only=["node_state"])
@pytest.mark.proves(
    "node_state", "With dnf, drift of version, hold and package is reported and repaired.", only=["node_state"]
)
@pytest.mark.proves(
    "node_state", "apt and dnf move pinned packages up and down; dnf by epoch too.", only=["node_state"]
)
@pytest.mark.proves("node_state", "With dnf, what is listed moves, what is held back stays.", only=["node_state"])
@pytest.mark.proves("node_state", "A full or read-only file system is reported by its name.", only=["node_state"])
@pytest.mark.proves("node_state", "A unit that does not start is reported with its last words.", only=["node_state"])
@pytest.mark.proves("node_state", "Undoing all items restores the node as it was before.", only=["node_state"])
@pytest.mark.proves("verify", "A node stays drained until our job proves exactly its GPUs.", only=["slurm", "verify"])
@pytest.mark.proves("verify", "An operator's drain is reported and kept.", only=["slurm", "verify"])
@pytest.mark.proves("backup", "A role backup keeps as many as asked, readable by root only.", only=["backup", "slurm"])
@pytest.mark.proves(
    "restore", "A restore recovers a removed account; a damaged archive is refused.", only=["backup", "slurm"]
)
@pytest.mark.proves("jobs", "A job can open two of four GPUs and not the others.", only=["slurm", "slurm_worker"])
@pytest.mark.proves(
    "jobs", "slurmctld's own check refuses unknown options and bad values.", only=["slurm", "slurm_head"]
)
@pytest.mark.proves(
    "firewall", "Rules that lock out the controller are reverted after their time limit.", only=["base", "node"]
)
@pytest.mark.proves("firewall", "Unconfirmed rules do not survive a restart of the firewall.", only=["base", "node"])
@pytest.mark.proves("firewall", "Tables of other programs stay as they are.", only=["base", "node"])
@pytest.mark.proves("packages", "Installing packages in advance starts no service.", only=["packages", "slurm"])
@pytest.mark.proves(
    "roles",
    "Removing a worker's roles leaves no clusterctl file; munge, chrony and firewall stop.",
    only=["node", "removal"],
)
@pytest.mark.proves("monitoring", "Each alert rule passes the tests of a node's own promtool.", only=["prometheus"])
@pytest.mark.proves(
    "monitoring", "Without the group monitoring no daemon drains nodes because of alerts.", only=["alert_drain"]
)
@pytest.mark.proves("monitoring", "The logs' store has one alert, not one for each node.", only=["alertmanager"])
@pytest.mark.proves(
    "monitoring", "The database's exporter runs without MariaDB and reports that.", only=["mysqld_exporter"]
)
@pytest.mark.proves(
    "monitoring", "Prometheus scrapes every host and refuses access without its password.", only=["prometheus"]
)
@pytest.mark.proves("gpu", "Each GPU setting is set, restored after a reset, and undone.", only=["gpu", "gpu_config"])
@pytest.mark.proves(
    "gpu", "Each unsupported GPU setting is refused with the card's choices.", only=["gpu", "gpu_config"]
)
@pytest.mark.proves(
    "health", "After a diagnosis reset the GPU has its layout and power limit again.", only=["gpu", "gpu_health"]
)
@pytest.mark.proves(
    "health", "A lost MIG instance becomes a health cause in the drain ledger.", only=["gpu", "gpu_health"]
)
@pytest.mark.proves(
    "driver", "A working driver is left as it is, and the role reports that.", only=["gpu", "nvidia_driver"]
)
@pytest.mark.proves(
    "driver", "A CUDA toolkit that the driver does not support is refused.", only=["gpu", "nvidia_driver"]
)
@pytest.mark.proves(
    "containers", "skopeo, with podman's library, asks the mirror first.", only=["containers", "runtimes"]
)
@pytest.mark.proves(
    "containers", "containerd is configured with the registry mirror of the inventory.", only=["containers", "runtimes"]
)
@pytest.mark.proves(
    "containers", "Docker runs a container and refuses to listen on the network.", only=["docker", "runtimes"]
)
@pytest.mark.proves("containers", "containerd runs a container and has CDI enabled.", only=["containerd", "runtimes"])
@pytest.mark.proves("containers", "Apptainer runs a container as an ordinary user.", only=["apptainer"])
@pytest.mark.proves("containers", "podman runs a container as an ordinary user.", only=["podman", "runtimes"])
@pytest.mark.proves("packages", "A package by URL without the expected SHA-256 is refused.", only=["apptainer"])
@pytest.mark.proves(
    "containers",
    "The CDI description is written again when the driver changes.",
    only=["nvidia_container_toolkit", "runtimes"],
)
@pytest.mark.proves(
    "containers",
    "Toolkit versions that let containers escape are refused; nothing is installed.",
    only=["nvidia_container_toolkit", "runtimes"],
)
@pytest.mark.proves(
    "packages",
    "The toolkit's source with another key's fingerprint is refused; nothing is installed.",
    only=["nvidia_container_toolkit", "runtimes"],
)
@pytest.mark.proves(
    "packages", "With apt and dnf an administrator's own upgrade leaves a held package.", only=["node_state"]
)
@pytest.mark.proves(
    "packages",
    "The toolkit of the lab's kit installs in its pinned version and is held.",
    only=["nvidia_container_toolkit", "runtimes"],
)
@pytest.mark.parametrize("scenario", [pytest.param(name, marks=marks(name)) for name in SCENARIOS])
def test_role(scenario: str, tmp_path: Path) -> None:
    lab = TestLab(lab_name(f"m-{scenario.replace('_', '-')[:20]}"))  # a name has 30 characters at most
    log = LOGS / f"molecule-{scenario}.log"
    LOGS.mkdir(parents=True, exist_ok=True)
    lab.down()
    try:
        with log.open("w") as output:
            failure = failure_of(
                command(scenario), SCENARIO_LIMIT,
                cwd=REPOSITORY, env=settings(lab.name, tmp_path), stdout=output, stderr=output,
            )  # fmt: skip
        if failure:
            text = tail(log.read_text(errors="replace"))
            pytest.fail(f"scenario {scenario}: {failure}; the whole output: {log}\n{text}", pytrace=False)
    finally:
        lab.down()
