"""A whole cluster that loses its power, head included; and the snapshots by which tests restore one."""

import secrets
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.cluster.lab import TestLab, clusterctl, podman, submit
from tests.faults.injury import GUARD, container, disturbed, in_service, wait_until
from tests.golden import Golden
from tests.labs import REPOSITORY


@pytest.fixture(scope="module")
def lab(golden: Golden) -> Iterator[TestLab]:
    with golden.taken() as lab:
        lab.remember()
        yield lab


def is_whole(lab: TestLab) -> None:
    """See that a cluster is healthy, without drift or any other change, and that a job on both workers ends well."""
    document = lab.healthy()
    assert {node["name"]: node["drift"] for node in document["nodes"]} == {name: [] for name in lab.nodes}
    assert disturbed(lab) == []
    job = submit(lab, "srun --gres=gpu:4 true", "--nodes=2", "--gres=gpu:4")
    ask = ("sudo", "sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={job}", "--format=State")
    wait_until(lambda: lab.ssh("head1", *ask).strip() not in ("", "PENDING", "RUNNING"))
    assert lab.ssh("head1", *ask).strip() == "COMPLETED"


@pytest.mark.proves("faults", "After a power cut of all nodes the cluster is healthy and runs jobs.")
def test_power_cut__nodes_start_again__cluster_is_whole(lab: TestLab, golden: Golden) -> None:
    podman("kill", "--signal", "KILL", *(container(lab, node) for node in lab.nodes))
    lab.up()
    golden.wait()
    is_whole(lab)


@pytest.mark.proves("bootstrap", "A worker that rebooted by itself is tested and in service after one bootstrap.")
def test_worker__that_rebooted_by_itself__is_in_service_after_a_bootstrap(lab: TestLab) -> None:
    """Containers have the host's uptime, so slurmd says here that its node was just booted (slurmd(8), -b)."""
    folder = "/run/systemd/system/slurmd.service.d"
    lines = r"[Service]\nExecStart=\nExecStart=/usr/sbin/slurmd --systemd -b \$SLURMD_OPTIONS\n"
    lab.root("gpu01", f'mkdir -p {folder}; printf "{lines}" > {folder}/booted.conf; systemctl daemon-reload')
    lab.root("gpu01", f"systemctl restart slurmd; rm -r {folder}; systemctl daemon-reload")
    wait_until(lambda: in_service(lab)["gpu01"] == "down")
    assert lab.root("head1", "sinfo --noheader --nodes=gpu01 --format=%E").strip() == "Node unexpectedly rebooted"
    lab.run("bootstrap")
    wait_until(lambda: in_service(lab)["gpu01"] == "idle")
    is_whole(lab)


@pytest.mark.proves("lab", "A cluster restored from the tests' snapshot is healthy and without drift.")
def test_restored_cluster__after_power_cut__is_healthy_without_drift(lab: TestLab, golden: Golden) -> None:
    """One node is gone, the other two die with changes that a person has made there, and in the inventory."""
    podman("rm", "--force", "--volumes", "--time", "0", container(lab, "gpu02"))
    lab.root("head1", "echo '# by hand' >> /etc/slurm/slurm.conf; rm -r /var/lib/slurm/slurmctld")
    lab.root("gpu01", "touch /var/lib/containers/leftover; rm -r /etc/munge; mkdir /etc/munge")
    lab.declare("cluster_timezone: Europe/Berlin")
    podman("kill", "--signal", "KILL", container(lab, "head1"), container(lab, "gpu01"))
    golden.restore()
    assert "leftover" not in lab.root("gpu01", "ls /var/lib/containers")
    is_whole(lab)
    lab.unchanged()


@pytest.mark.proves("lab", "`lab ssh` runs a command on a node and returns its exit code.")
@pytest.mark.parametrize("code", [0, 3])
def test_lab_ssh__command__runs_there_and_gives_its_exit_code(lab: TestLab, code: int) -> None:
    done = clusterctl("lab", "ssh", "--name", lab.name, "gpu01", "--", f"cat /etc/hostname; exit {code}")
    assert (done.returncode, done.stdout) == (code, "gpu01\n")


# --- snapshots --------------------------------------------------------------------------------------------------------


class Small(Golden):
    """A lab whose nodes have but one file of their own."""

    def build(self) -> None:
        self.token = f"token-{secrets.token_hex(8)}"
        for node in self.lab.nodes:
            self.lab.root(node, f"mkdir -p /etc/golden; touch /etc/golden/{self.token} /var/lib/docker/{self.token}")

    def wait(self) -> None:
        for node in self.lab.nodes:
            wait_until(lambda node=node: self.lab.ssh(node, "hostname", check=False) == f"{node}\n")  # type: ignore[misc]

    def tokens(self) -> dict[str, list[str]]:
        return {node: self.lab.root(node, "cd /; ls etc/golden var/lib/docker").split() for node in self.lab.nodes}


class Stuck(Small):
    """Its snapshot never ends: the nodes are stopped and copied, the cluster's directory is not."""

    def _save_directory(self) -> None:
        print("copied", flush=True)
        time.sleep(GUARD)


def test_golden__snapshot_interrupted__next_use_starts_clean() -> None:
    golden = Small("gold-small", workers=1)
    code = "from tests.cluster.test_power_cut import Stuck; Stuck('gold-small', workers=1).make()"
    try:
        with subprocess.Popen(
            [sys.executable, "-c", code], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
        ) as saving:
            assert saving.stdout
            assert "copied\n" in saving.stdout  # reads until then
            saving.kill()
        ours = ["--filter", f"label=clusterctl.lab={golden.lab.name}", "--filter", "status=exited"]
        stopped = podman("ps", "--all", *ours, "--format", "{{.Names}}").split()
        assert sorted(stopped) == sorted(container(golden.lab, node) for node in golden.lab.nodes)
        assert [*golden.folder.iterdir()]
        assert not golden.exists()

        golden.ready()
        once = ["etc/golden:", golden.token, "var/lib/docker:", golden.token]
        expected = dict.fromkeys(golden.lab.nodes, once)
        assert golden.tokens() == expected
        golden.lab.root("gpu01", "rm /etc/golden/*; echo > /etc/golden/other")
        golden.ready()
        assert golden.tokens() == expected
    finally:
        golden.remove()
    assert not golden.folder.exists()
