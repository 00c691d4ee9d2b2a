"""Idle workers sleep: Slurm switches them off and on, a job or a run wakes them, and nothing reports them as broken."""

import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cluster.lab import TestLab, clusterctl, fresh, podman, submit
from tests.faults.injury import container, fails, wait_until
from tests.programs import described

WORKERS = ("gpu01", "gpu02")
REQUESTS = "/var/lib/lab-power"
COMMAND = "/usr/local/sbin/lab-power"
PROGRAM = f"""
install -d -m 1777 {REQUESTS}
printf '#!/bin/sh\\n: > "{REQUESTS}/$2.$1"\\n' > {COMMAND}
chmod 0755 {COMMAND}
"""
# Containers have the host's uptime, so slurmd must say that its node was just booted (slurmd(8), -b).
BOOTED = """
folder=/etc/systemd/system/slurmd.service.d
install -d $folder
printf '[Service]\\nExecStart=\\nExecStart=/usr/sbin/slurmd --systemd -b $SLURMD_OPTIONS\\n' > $folder/lab.conf
systemctl daemon-reload
"""
SETTINGS = (
    "slurm_head_sleep_after: 60",
    "slurm_head_suspend_timeout: 20",
    "slurm_head_resume_timeout: 120",
    f"slurm_head_power_command: {COMMAND}",
)
ALARM = 100.0  # seconds: longer than the alerts NodeDown and ExporterDown wait, and a scrape


class Bmc:
    """A simulated BMC of all workers: it stops and starts their containers as the head's program asks."""

    def __init__(self, lab: TestLab) -> None:
        self.lab = lab
        self.broken: set[str] = set()
        """The workers that it does not switch on."""
        self.served: list[tuple[str, str]] = []
        self.problems: list[BaseException] = []
        self._over = threading.Event()

    @contextmanager
    def serving(self) -> Iterator["Bmc"]:
        thread = threading.Thread(target=self._work)
        thread.start()
        try:
            yield self
        finally:
            self._over.set()
            thread.join()
        assert self.problems == []

    def _work(self) -> None:
        head = container(self.lab, "head1")
        while not self._over.wait(1.0):
            try:
                for request in podman("exec", head, "ls", REQUESTS).split():
                    podman("exec", head, "rm", f"{REQUESTS}/{request}")
                    self._serve(*request.split("."))
            except AssertionError as problem:
                self.problems.append(problem)

    def _serve(self, node: str, action: str) -> None:
        self.served.append((node, action))
        if action == "suspend":
            podman("stop", "--time", "20", container(self.lab, node))
        elif node not in self.broken:
            podman("start", container(self.lab, node))

    def is_on(self, node: str) -> bool:
        return podman("inspect", "--format", "{{.State.Running}}", container(self.lab, node)).strip() == "true"


@pytest.fixture(scope="module")
def lab() -> Iterator[TestLab]:
    """A cluster of a head and two workers, bootstrapped; workers sleep after a minute."""
    with fresh("sleep") as lab:
        lab.root("head1", PROGRAM)
        lab.declare(*SETTINGS)
        lab.run("bootstrap")
        for node in WORKERS:
            lab.root(node, BOOTED)
        yield lab


@pytest.fixture(scope="module")
def bmc(lab: TestLab) -> Iterator[Bmc]:
    with Bmc(lab).serving() as bmc:
        yield bmc


def state(lab: TestLab, node: str) -> set[str]:
    argv = ("sudo", "sinfo", "--noheader", "--Node", f"--nodes={node}", "--Format=StateComplete:200")
    return {*lab.ssh("head1", *argv).strip().upper().split("+")}


def is_asleep(lab: TestLab, bmc: Bmc, node: str) -> bool:
    return "POWERED_DOWN" in state(lab, node) and not bmc.is_on(node)


def wait_for_sleep(lab: TestLab, bmc: Bmc, *nodes: str) -> None:
    wait_until(lambda: all(is_asleep(lab, bmc, node) for node in nodes or WORKERS), lambda: str(bmc.served))


def status(lab: TestLab) -> "subprocess.CompletedProcess[str]":
    return clusterctl("status", str(lab.inventory))


def outcome(lab: TestLab, job: str) -> str:
    argv = ("sudo", "sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={job}", "--format=State,NodeList")
    return lab.ssh("head1", *argv).strip()


@pytest.mark.long
@pytest.mark.proves("power", "An idle worker is switched off; status and health are well, and no alert fires.")
def test_sleep__idle_workers__are_off_and_the_cluster_healthy(lab: TestLab, bmc: Bmc) -> None:
    wait_for_sleep(lab, bmc)
    time.sleep(ALARM)
    document = lab.run("status")
    assert {node["name"]: node["sleep"] for node in document["nodes"]} == {
        "head1": "", "gpu01": "asleep", "gpu02": "asleep",
    }  # fmt: skip
    assert [alert for alert in document["alerts"]["firing"] if alert["node"] in WORKERS] == []
    assert document["alerts"]["error"] is None
    done = status(lab)
    assert done.returncode == 0, described(done)
    assert "asleep" in done.stdout
    assert "no contact" not in done.stdout
    found = lab.run("health")["nodes"]
    assert [(node["fit"], node["sleep"], node["problem"]) for node in found] == [(True, "asleep", "")] * 2
    assert "cannot be diagnosed" in described(clusterctl("health", str(lab.inventory), "gpu01", "--diagnose"))


@pytest.mark.long
@pytest.mark.proves("power", "A plan wakes no worker and leaves out those that sleep.")
def test_plan__workers_asleep__wakes_none(lab: TestLab, bmc: Bmc) -> None:
    wait_for_sleep(lab, bmc)
    done = clusterctl("plan", "bootstrap", str(lab.inventory))
    assert done.returncode == 0, described(done)
    assert "gpu01, gpu02: asleep, left out of this plan" in done.stdout
    done = clusterctl("plan", "remove-node", str(lab.inventory), "gpu01")
    assert done.returncode == 3, described(done)
    assert "a plan wakes no node" in done.stderr + done.stdout
    assert [bmc.is_on(node) for node in WORKERS] == [False, False]


@pytest.mark.long
@pytest.mark.proves("power", "Bootstrap wakes sleeping workers, keeps them awake and changes nothing.")
def test_bootstrap__workers_asleep__wakes_them_and_changes_nothing(lab: TestLab, bmc: Bmc) -> None:
    wait_for_sleep(lab, bmc)
    lab.unchanged()
    lab.run("bootstrap")
    assert [bmc.is_on(node) for node in WORKERS] == [True, True]


@pytest.mark.long
@pytest.mark.proves("power", "A user's job wakes one sleeping worker and runs there.")
def test_job__of_a_user__wakes_one_worker(lab: TestLab, bmc: Bmc) -> None:
    wait_for_sleep(lab, bmc)
    job = submit(lab, "hostname", "--nodelist=gpu02")
    wait_until(lambda: outcome(lab, job).startswith("COMPLETED"))
    assert outcome(lab, job) == "COMPLETED|gpu02"
    assert not bmc.is_on("gpu01")


@pytest.mark.long
@pytest.mark.proves("power", "A worker that does not wake is down and reported, and its job runs later.")
def test_worker__that_does_not_wake__is_down_and_reported(lab: TestLab, bmc: Bmc) -> None:
    wait_for_sleep(lab, bmc)
    bmc.broken.add("gpu01")
    job = submit(lab, "hostname", "--nodelist=gpu01")
    wait_until(lambda: "DOWN" in state(lab, "gpu01"))
    done = status(lab)
    assert done.returncode == 4, described(done)
    assert "ResumeTimeout reached" in done.stdout
    assert "gpu01: did not respond in 120 s" in lab.root("head1", "journalctl --quiet --output=cat -t slurm-power")
    assert "gpu01" in fails(lab, 3)
    bmc.broken.clear()
    podman("start", container(lab, "gpu01"))
    wait_until(lambda: "POWERED_DOWN" not in state(lab, "gpu01"))
    lab.run("bootstrap")
    wait_until(lambda: outcome(lab, job).startswith("COMPLETED"))


@pytest.mark.long
@pytest.mark.proves("power", "Without the variable no worker sleeps, and sleeping ones are woken.")
def test_sleep__variable_removed__workers_stay_on(lab: TestLab, bmc: Bmc) -> None:
    wait_for_sleep(lab, bmc)
    text = lab.inventory.read_text()
    for line in SETTINGS:
        text = text.replace(f"    {line}\n", "")
    lab.inventory.write_text(text)
    lab.run("bootstrap")
    lab.unchanged()
    assert [bmc.is_on(node) for node in WORKERS] == [True, True]
    assert "Suspend" not in lab.root("head1", "cat /etc/slurm/slurm.conf")
    assert lab.root("head1", "ls /usr/local/sbin /etc/slurm | grep -E 'suspend|resume|power[.]' || true") == ""
    asked = len(bmc.served)
    time.sleep(ALARM)  # longer than they had before they slept
    assert [state(lab, node) for node in WORKERS] == [{"IDLE"}, {"IDLE"}]
    assert len(bmc.served) == asked
    lab.healthy()


@pytest.mark.long
@pytest.mark.proves("power", "The run that switches power saving on is not disturbed by it.")
def test_sleep__variable_set_on_idle_workers__does_not_disturb_the_run(lab: TestLab, bmc: Bmc) -> None:
    """They have been idle for longer than the variable says."""
    asked = len(bmc.served)
    lab.declare(*SETTINGS)
    lab.run("bootstrap")
    assert len(bmc.served) == asked
    wait_for_sleep(lab, bmc)


@pytest.mark.long
@pytest.mark.proves("power", "A sleeping worker is woken, cleaned and removed.")
def test_remove_node__worker_asleep__is_woken_and_cleaned(lab: TestLab, bmc: Bmc) -> None:
    wait_for_sleep(lab, bmc)
    lab.run("remove-node", "gpu02", "--yes")
    assert "gpu02" not in lab.root("head1", "cat /etc/slurm/slurm.conf /etc/slurm/power.json")
    digest = ("sha256sum", "/etc/munge/munge.key")  # of the package's own key, or of the cluster's
    assert podman("exec", container(lab, "gpu02"), *digest) != lab.root("head1", " ".join(digest))
    assert not bmc.is_on("gpu01")
