"""Other distributions than Debian 13, and what is refused before a node is touched."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl.lab.lab import INOTIFY_PER_NODE
from tests.cluster.lab import ALICE, TestLab, clusterctl
from tests.faults.test_more_faults import finished
from tests.labs import lab_name


@pytest.fixture(scope="module")
def debian_12() -> Iterator[TestLab]:
    lab = TestLab(lab_name("debian12"))
    lab.down()
    lab.up("--os", "debian-12")
    yield lab
    lab.down()


def test_a_cluster_of_debian_12_alone(debian_12: TestLab) -> None:
    """Its Slurm learns of a node only by a restart of its daemons everywhere, which a running job outlives."""
    text = debian_12.inventory.read_text()
    (line,) = (line for line in text.splitlines(keepends=True) if "gpu02" in line)
    debian_12.inventory.write_text(text.replace(line, ""))
    debian_12.run("bootstrap")
    job = debian_12.ssh("head1", *ALICE, "sbatch", "--parsable", "--chdir=/", "--output=none", "--wrap='sleep 60'")
    before = slurmd(debian_12)
    address = line.split("ansible_host: ")[1].split("}")[0]
    done = clusterctl("add-node", str(debian_12.inventory), "gpu02", "--address", address, "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all 3 hosts are contacted" in done.stdout
    assert slurmd(debian_12) != before
    debian_12.unchanged()
    assert debian_12.healthy()["gpus"]["a100"]["idle"] == 8
    assert finished(debian_12, job) == "COMPLETED"


def slurmd(lab: TestLab) -> str:
    return lab.ssh("gpu01", "systemctl", "show", "--property=MainPID", "slurmd")


@pytest.fixture(scope="module")
def mixed() -> Iterator[TestLab]:
    lab = TestLab(lab_name("mixed"), workers=1)
    lab.down()
    lab.up("--worker-os", "debian-12")
    yield lab
    lab.down()


def refused(lab: TestLab, *fragments: str) -> None:
    """Bootstrap must end with exit 3, name these things, and leave every node as it was."""
    before = lab.manifests()
    done = clusterctl("bootstrap", str(lab.inventory))
    text = done.stdout + done.stderr
    assert done.returncode == 3, text
    assert "Traceback" not in text
    for fragment in fragments:
        assert fragment in text
    assert lab.manifests() == before


def test_slurm_versions_that_cannot_talk_are_refused(mixed: TestLab) -> None:
    refused(mixed, "gpu01", "22.05", "24.11")


def test_an_unsupported_system_is_refused(mixed: TestLab) -> None:
    mixed.root(
        "gpu01",
        "rm /etc/os-release; printf 'ID=slackware\\nVERSION_ID=15\\n' > /etc/os-release",
    )
    try:
        refused(mixed, "gpu01", "slackware", "Debian 12")
    finally:
        mixed.root("gpu01", "rm /etc/os-release; ln -s ../usr/lib/os-release /etc/os-release")


def edited(lab: TestLab, tmp_path: Path, old: str, new: str) -> subprocess.CompletedProcess[str]:
    text = lab.inventory.read_text()
    assert old in text
    (tmp_path / "inventory.yaml").write_text(text.replace(old, new))
    return clusterctl("bootstrap", str(tmp_path / "inventory.yaml"))


def test_a_misspelled_group_is_refused(mixed: TestLab, tmp_path: Path) -> None:
    done = edited(mixed, tmp_path, "slurm_workers:", "slurm_wokers:")
    assert done.returncode == 2
    assert "slurm_workers" in done.stderr
    assert "inventory.yaml:" in done.stderr


def test_an_unknown_variable_is_refused(mixed: TestLab, tmp_path: Path) -> None:
    done = edited(mixed, tmp_path, "cluster_networks:", "cluster_netwroks:")
    assert done.returncode == 2
    assert "cluster_networks" in done.stderr


def test_podman_missing_is_said_with_the_command_that_helps() -> None:
    # podman is hidden from this one process by a mount of its own over the program.
    script = 'mount --bind /dev/null "$(command -v podman)" && exec clusterctl lab up --name none'
    done = subprocess.run(["unshare", "--mount", "bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "apt-get install --no-install-recommends podman" in done.stderr


def test_more_nodes_than_the_machine_can_watch_are_refused() -> None:
    workers = int(Path("/proc/sys/fs/inotify/max_user_instances").read_text()) // INOTIFY_PER_NODE
    if workers > 200:
        pytest.skip("this machine allows inotify instances for more nodes than a lab may have")
    lab = TestLab(lab_name("crowd"))
    try:
        done = clusterctl("lab", "up", "--name", lab.name, "--workers", str(workers))
        assert done.returncode == 2, done.stdout + done.stderr
        assert "sysctl fs.inotify.max_user_instances=" in done.stderr
        assert (
            lab.name not in subprocess.run(["podman", "ps", "--all"], capture_output=True, text=True, check=True).stdout
        )
    finally:
        lab.down()
