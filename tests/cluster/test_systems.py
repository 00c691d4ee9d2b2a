"""Other distributions than Debian 13, and what is refused before a node is touched."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl.lab.lab import INOTIFY_PER_NODE
from clusterctl.lab.settings import Scheduler
from tests.cluster.lab import TestLab, clusterctl, fresh, podman, submit
from tests.faults.injury import wait_until
from tests.faults.test_more_faults import finished
from tests.labs import lab_name

# Writes its process and the time of each of its counts, until it is told to end.
COUNTER = 'until test -e /var/tmp/end; do echo "$$ $(date +%s)" >> /var/tmp/counts; sleep 0.5; done'


@pytest.fixture(scope="module")
def debian_12() -> Iterator[TestLab]:
    with fresh("debian12", "--os", "debian-12") as lab:
        yield lab


@pytest.mark.proves("systems", "A Debian 12 cluster is healthy, and an unchanged run changes nothing.")
@pytest.mark.proves("add-node", "With Slurm 22.05 add-node restarts slurmctld and the other worker's slurmd.")
@pytest.mark.proves("jobs", "A job's process continues through a restart of Slurm 22.05's daemons.")
@pytest.mark.proves("status", "A Debian 12 cluster shows no drift.")
def test_a_cluster_of_debian_12_alone(debian_12: TestLab) -> None:
    """Its Slurm learns of a node only by a restart of its daemons everywhere, which a running job outlives."""
    text = debian_12.inventory.read_text()
    (line,) = (line for line in text.splitlines(keepends=True) if "gpu02" in line)
    debian_12.inventory.write_text(text.replace(line, ""))
    debian_12.run("bootstrap")
    job = submit(debian_12, COUNTER)
    wait_until(lambda: counts(debian_12))
    address = line.split("ansible_host: ")[1].split("}")[0]
    done = clusterctl("add-node", str(debian_12.inventory), "gpu02", "--address", address, "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "contacting all 3 hosts" in done.stdout
    restarts = [started(debian_12, "head1", "slurmctld"), started(debian_12, "gpu01", "slurmd")]
    wait_until(lambda: counts(debian_12)[-1][1] > max(restarts))
    found = counts(debian_12)
    assert found[0][1] < min(restarts), "the job had begun before any daemon was restarted"
    assert len({process for process, _ in found}) == 1, "it is the same process that counts after the restarts"
    debian_12.unchanged()
    assert debian_12.healthy()["gpus"]["a100"]["idle"] == 8
    debian_12.root("gpu01", "touch /var/tmp/end")
    assert finished(debian_12, job) == "COMPLETED"


def counts(lab: TestLab) -> list[tuple[str, int]]:
    """What the job on gpu01 has written: its process, and when, in seconds since 1970."""
    lines = lab.root("gpu01", "! test -e /var/tmp/counts || head -n -1 /var/tmp/counts").splitlines()
    return [(process, int(seconds)) for process, seconds in (line.split() for line in lines)]


def started(lab: TestLab, node: str, unit: str) -> int:
    """When a unit's main process was started, in seconds since 1970."""
    shown = lab.root(node, f"systemctl show --timestamp=unix --property=ExecMainStartTimestamp {unit}")
    return int(shown.strip().partition("=@")[2])


@pytest.fixture(scope="module")
def mixed() -> Iterator[TestLab]:
    with fresh("mixed", "--worker-os", "debian-12", workers=1) as lab:
        yield lab


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


@pytest.mark.proves("preflight", "A Debian 12 worker under a Debian 13 head is refused; nothing changes.")
def test_slurm_versions_that_cannot_talk_are_refused(mixed: TestLab) -> None:
    refused(mixed, "gpu01", "22.05", "24.11")


@pytest.mark.proves("preflight", "An unsupported system is refused, and no node changes.")
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


@pytest.mark.proves("inventory", "A misspelled group is refused with the nearest name; exit 2.")
def test_a_misspelled_group_is_refused(mixed: TestLab, tmp_path: Path) -> None:
    done = edited(mixed, tmp_path, "slurm_workers:", "slurm_wokers:")
    assert done.returncode == 2
    assert "slurm_workers" in done.stderr
    assert "inventory.yaml:" in done.stderr


@pytest.mark.proves("inventory", "An unknown variable is refused with the nearest name; exit 2.")
def test_an_unknown_variable_is_refused(mixed: TestLab, tmp_path: Path) -> None:
    done = edited(mixed, tmp_path, "cluster_networks:", "cluster_netwroks:")
    assert done.returncode == 2
    assert "cluster_networks" in done.stderr


@pytest.mark.proves("lab", "Without podman `lab up` prints the command that installs it; exit 2.")
def test_podman_missing_is_said_with_the_command_that_helps() -> None:
    # podman is hidden from this one process by a mount of its own over the program.
    script = 'mount --bind /dev/null "$(command -v podman)" && exec clusterctl lab up --name none'
    argv = ["unshare", "--mount", "bash", "-c", script]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "apt-get install --no-install-recommends podman" in done.stderr


@pytest.mark.proves("lab", "More nodes than the machine can watch are refused before any is created.")
def test_more_nodes_than_the_machine_can_watch_are_refused() -> None:
    workers = int(Path("/proc/sys/fs/inotify/max_user_instances").read_text()) // INOTIFY_PER_NODE[Scheduler.slurm]
    if workers > 200:
        pytest.skip("this machine allows inotify instances for more nodes than a lab may have")
    lab = TestLab(lab_name("crowd"))
    try:
        done = clusterctl("lab", "up", "--name", lab.name, "--workers", str(workers))
        assert done.returncode == 2, done.stdout + done.stderr
        assert "sysctl fs.inotify.max_user_instances=" in done.stderr
        assert lab.name not in podman("ps", "--all")
    finally:
        lab.down()
