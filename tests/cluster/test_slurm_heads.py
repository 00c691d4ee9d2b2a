"""Two heads of Slurm: the second one takes over with all jobs, and gives them back.

Both have a volume of this machine, which is simulated shared storage. The database of accounting is on the first head.
"""

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests.cluster.lab import ALICE, TestLab, clusterctl, fresh, podman
from tests.faults.injury import container, wait_until
from tests.programs import described

WORKER, CLIENT = "gpu01", "gpu02"
"""A lab has workers only; the second one becomes the login node, where alice works."""
TIMEOUT = 15  # seconds, SlurmctldTimeout
SAVED = 10  # seconds in which slurmctld has saved the state of jobs
RUNNING, PENDING = 50, 50
# Many jobs on the few cores of a worker.
PARTITION = {
    "name": "main",
    "default": True,
    "options": {"DefaultTime": "UNLIMITED", "OverSubscribe": "FORCE:32", "QOS": "many"},
}
QOS = {"name": "many", "options": {"MaxJobsPerUser": 1000}}
END, DRAIN = "/var/tmp/end", "/usr/local/sbin/slurm-drain"
SBATCH = "sbatch --parsable --mem=1M --chdir=/ --output=none"
# The first two hold the worker's GPUs, for which the jobs that wait have asked.
SUBMIT = f"""
for number in $(seq {RUNNING}); do
  gpu=; [ $number -gt 2 ] || gpu=--gres=gpu:1
  echo '#!/bin/sh
    until [ -e {END} ] || {{ [ -n "$SLURM_JOB_GPUS" ] && [ -e {END}-gpu ]; }}; do sleep 2; done' |
    {SBATCH} --job-name=runs $gpu
done
for number in $(seq {PENDING}); do
  {SBATCH} --job-name=waits --gres=gpu:1 --wrap "test -e {END}-gpu"
done
"""
WORKS = f"timeout 20 squeue --me --noheader > /dev/null 2>&1 && timeout 20 {SBATCH} --wrap true"


@dataclass(frozen=True)
class Job:
    """A job in the queue."""

    name: str
    state: str
    start: str


@pytest.fixture(scope="module")
def lab() -> Iterator[TestLab]:
    """A cluster of two heads, a worker with two GPUs and a login node, bootstrapped."""
    with fresh("heads", "--heads", "2", "--gpus", "2") as lab:
        text = lab.inventory.read_text()
        (moved,) = re.findall(rf"^        {CLIENT}: .*\n", text, re.MULTILINE)
        lab.inventory.write_text(text.replace(moved, "") + f"    login:\n      hosts:\n{moved}")
        lab.declare(
            f"slurm_head_conf_extra: {{SlurmctldTimeout: {TIMEOUT}}}",
            f"slurm_head_partitions: {json.dumps([PARTITION])}",
            f"slurm_head_qos: {json.dumps([QOS])}",
        )
        lab.run("bootstrap")
        # Slurm saves its limits, with which a back-up starts without slurmdbd, every five minutes, and then.
        lab.ssh("head1", "sudo", "scontrol", "reconfigure")
        yield lab


def queue(lab: TestLab) -> dict[str, Job]:
    """Return alice's jobs by number, as she sees them."""
    text = lab.ssh(CLIENT, *ALICE, "squeue", "--me", "--noheader", "--format=%i,%j,%T,%S")
    rows = [line.split(",") for line in text.splitlines()]
    return {number: Job(name, state, start if state == "RUNNING" else "") for number, name, state, start in rows}


def seconds_until(head: str, lab: TestLab, began: float) -> float:
    """Wait until a head is in control, and alice can read the queue and submit a job; return the seconds."""

    def works() -> bool:
        lines = lab.ssh(CLIENT, "sudo", "scontrol", "ping", check=False).splitlines()
        up = [line.split(" at ")[1].split()[0] for line in lines if line.endswith(" is UP")]
        return up[:1] == [head] and lab.ssh(CLIENT, *ALICE, "sh", "-s", stdin=WORKS, check=False).strip().isdecimal()

    wait_until(works)
    return time.monotonic() - began


def kill(lab: TestLab) -> float:
    """Kill the first head; return how many seconds the other one needs to take over."""
    began = time.monotonic()
    podman("kill", "--signal", "KILL", container(lab, "head1"))
    return seconds_until("head2", lab, began)


def start(lab: TestLab) -> float:
    """Start the first head again; return how many seconds it needs, with its boot, to have control."""
    began = time.monotonic()
    lab.up("--heads", "2")
    return seconds_until("head1", lab, began)


def standing_by(lab: TestLab) -> None:
    """Wait until the second head, which has given control back, was restarted and is a back-up again."""
    wait_until(lambda: lab.root("head2", "test -e /run/slurmctld/took-over || echo new") == "new\n")
    wait_until(lambda: lab.root("head2", "scontrol ping").count(" is UP") == 2)


def accounted(lab: TestLab, numbers: set[str]) -> dict[str, str]:
    """Return the state of jobs in accounting."""
    argv = ("sudo", "sacct", "--noheader", "--parsable2", "--delimiter=,", "--allocations", "--allusers")
    text = lab.ssh("head1", *argv, "--format=JobID,State", f"--jobs={','.join(sorted(numbers, key=int))}")
    return dict(line.split(",") for line in text.splitlines())


@pytest.mark.long
@pytest.mark.proves("heads", "A second bootstrap of two heads changes nothing.")
def test_bootstrap__of_two_heads_again__changes_nothing(lab: TestLab) -> None:
    lab.unchanged()
    assert lab.healthy()["slurm"]["controllers"] == {"head1": True, "head2": True}


@pytest.mark.long
@pytest.mark.proves("heads", "With two heads, all nodes get a new munge key, and a job continues.")
def test_munge_key__of_two_heads__is_replaced(lab: TestLab) -> None:
    job = lab.ssh(CLIENT, *ALICE, "sh", "-s", stdin=f"{SBATCH} --wrap 'until [ -e {END}-key ]; do sleep 1; done'")
    job = job.strip()
    wait_until(lambda: queue(lab)[job].state == "RUNNING")
    began = queue(lab)[job]
    nodes, key = ("head1", "head2", WORKER, CLIENT), "sha256sum /etc/munge/munge.key"
    (old,) = {lab.root(node, key) for node in nodes}
    done = clusterctl("secret", "rotate", str(lab.inventory), "munge_key")
    assert done.returncode == 0, described(done)
    (new,) = {lab.root(node, key) for node in nodes}
    assert new != old
    assert lab.healthy()["slurm"]["controllers"] == {"head1": True, "head2": True}
    assert queue(lab)[job] == began
    lab.root(WORKER, f"touch {END}-key")
    wait_until(lambda: accounted(lab, {job}) == {job: "COMPLETED"})


@pytest.mark.long
@pytest.mark.proves("heads", "While the back-up is down, jobs start and end; then it is a back-up again.")
def test_back_up__killed__is_not_needed(lab: TestLab) -> None:
    podman("kill", "--signal", "KILL", container(lab, "head2"))
    assert lab.ssh(CLIENT, *ALICE, "sh", "-s", stdin=f"{SBATCH} --wait --wrap true").strip().isdecimal()
    assert lab.run("status", expect=4)["slurm"]["controllers"] == {"head1": True, "head2": False}
    lab.up("--heads", "2")
    wait_until(lambda: lab.root("head1", "scontrol ping").count(" is UP") == 2)


@pytest.mark.long
@pytest.mark.proves("heads", "Head killed with 50 running and 50 pending jobs: none is lost, also back.")
def test_head__killed_with_100_jobs__back_up_has_all(
    lab: TestLab, record_property: Callable[[str, object], None]
) -> None:
    lab.ssh(CLIENT, *ALICE, "sh", "-es", stdin=SUBMIT)
    wait_until(lambda: sum(job.state == "RUNNING" for job in queue(lab).values()) == RUNNING)
    # Slurm requeues a job that is being started at that moment.
    wait_until(lambda: lab.root(WORKER, "pgrep -u alice -fc slurm_script || :").strip() == str(RUNNING))
    time.sleep(SAVED)
    before = queue(lab)
    assert sum(job.state == "PENDING" for job in before.values()) == PENDING

    over = kill(lab)
    after = queue(lab)
    assert {number: after.get(number) for number in before} == before
    status = lab.run("status", expect=4)
    assert status["slurm"]["controllers"] == {"head1": False, "head2": True}
    assert [node["name"] for node in status["nodes"] if node["problem"]] == ["head1"]
    assert {node["changed"] for node in lab.run("bootstrap", "--skip-unreachable", expect=4)["hosts"].values()} == {0}
    after = queue(lab)
    assert {number: after.get(number) for number in before} == before

    lab.ssh(WORKER, "sudo", "touch", f"{END}-gpu")  # now the jobs that wait start, under the back-up
    waiting = {number for number, job in before.items() if job.name == "waits"}
    wait_until(lambda: not waiting & queue(lab).keys())
    still = {number: job for number, job in queue(lab).items() if job.name == "runs"}
    assert len(still) == RUNNING - 2
    assert {number: before[number] for number in still} == still
    lab.ssh("head2", "sudo", DRAIN, "operator", "--out", WORKER, "--reason", "test")

    back = start(lab)
    after = queue(lab)
    assert {number: after.get(number) for number in still} == still
    assert json.loads(lab.ssh("head1", "sudo", DRAIN)) == {WORKER: {"operator": "test"}}
    lab.ssh("head1", "sudo", DRAIN, "operator", "--in", WORKER)

    lab.ssh(WORKER, "sudo", "touch", END)
    wait_until(lambda: set(accounted(lab, {*before}).values()) == {"COMPLETED"})
    assert accounted(lab, {*before}).keys() == before.keys()
    lab.unchanged()
    record_property(f"SlurmctldTimeout {TIMEOUT} s", f"taken over after {over:.0f} s, given back after {back:.0f} s")


@pytest.mark.long
@pytest.mark.proves("heads", "A back-up that gave control back takes over again without slurmdbd.")
def test_head__killed_again__back_up_takes_over_again(lab: TestLab) -> None:
    """Slurm's own back-up would not: it has forgotten the cluster's ID. The database is on the dead head."""
    standing_by(lab)
    kill(lab)
    assert lab.root("head2", "systemctl is-active slurmdbd || :") == "inactive\n"
    done = clusterctl("secret", "rotate", str(lab.inventory), "munge_key", "--skip-unreachable")
    assert done.returncode == 3, described(done)
    assert "both write the same queue" in " ".join(done.stderr.split())
    start(lab)


@pytest.mark.long
@pytest.mark.proves("heads", "A head whose state directory is not the other head's is refused.")
def test_bootstrap__head_without_the_shared_storage__is_refused(lab: TestLab) -> None:
    standing_by(lab)
    lab.root("head2", "mount -t tmpfs none /shared; mkdir -p /shared/slurm/clusterctl")
    try:
        done = clusterctl("bootstrap", str(lab.inventory), "--full")
        assert done.returncode == 5, described(done)
        assert "/shared/slurm is not the directory that head" in " ".join(done.stdout.split())
    finally:
        lab.root("head2", "umount /shared")
    assert lab.root("head2", "systemctl is-active slurmctld") == "active\n"
