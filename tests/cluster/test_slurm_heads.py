"""Two heads of Slurm: the second one takes over with all jobs, and gives them back.

Both have a volume of this machine, which is simulated shared storage.
"""

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.cluster.lab import ALICE, TestLab, fresh, podman
from tests.cluster.members import states
from tests.faults.injury import container, wait_until

WORKER, CLIENT = "gpu01", "gpu02"
"""A lab has workers only; the second one becomes the login node, where alice works."""
TIMEOUT = 15  # seconds, SlurmctldTimeout
RUNNING, PENDING = 50, 50
SHARED = ("OverSubscribe", "FORCE:32")
"""Many jobs on the few cores of a worker."""
END = "/var/tmp/end"
# The first two hold the worker's GPUs, for which the jobs that wait have asked.
SUBMIT = f"""
for number in $(seq {RUNNING}); do
  gpu=; [ $number -gt 2 ] || gpu=--gres=gpu:1
  echo '#!/bin/sh
    until [ -e {END} ] || {{ [ -n "$SLURM_JOB_GPUS" ] && [ -e {END}-gpu ]; }}; do sleep 2; done' |
    sbatch --parsable --mem=1M --chdir=/ --output=none --job-name=runs $gpu
done
for number in $(seq {PENDING}); do
  sbatch --parsable --mem=1M --chdir=/ --output=none --job-name=waits --gres=gpu:1 --wrap "until [ -e {END}-gpu ]; do sleep 1; done"
done
"""


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
        options = {"DefaultTime": "UNLIMITED", SHARED[0]: SHARED[1]}
        lab.declare(
            f"slurm_head_conf_extra: {{SlurmctldTimeout: {TIMEOUT}}}",
            f"slurm_head_partitions: {json.dumps([{'name': 'main', 'default': True, 'options': options}])}",
        )
        lab.run("bootstrap")
        yield lab


def queue(lab: TestLab) -> dict[str, Job]:
    """Return alice's jobs by number, as she sees them."""
    text = lab.ssh(CLIENT, *ALICE, "squeue", "--me", "--noheader", "--format=%i,%j,%T,%S")
    rows = [line.split(",") for line in text.splitlines()]
    return {number: Job(name, state, start if state == "RUNNING" else "") for number, name, state, start in rows}


def answers(lab: TestLab) -> bool:
    """Return whether the queue can be read on the worker, and a job be submitted there."""
    look = (
        "timeout 20 squeue --me --noheader >/dev/null 2>&1 && timeout 20 sbatch --parsable --hold --chdir=/ --wrap true"
    )
    return lab.ssh(CLIENT, *ALICE, "sh", "-s", stdin=look, check=False).strip().isdecimal()


def in_control(lab: TestLab) -> str:
    """Return the head in control, as Slurm says on the worker."""
    lines = lab.ssh(CLIENT, "sudo", "scontrol", "ping", check=False).splitlines()
    return next((line.split(" at ")[1].split()[0] for line in lines if line.endswith(" is UP")), "")


def seconds_until(condition: str, lab: TestLab, began: float) -> float:
    """Wait until a head is in control and alice can work; return the seconds since `began`."""
    wait_until(lambda: in_control(lab) == condition and answers(lab))
    return time.monotonic() - began


def accounted(lab: TestLab, numbers: set[str]) -> dict[str, str]:
    """Return the state of jobs in accounting."""
    argv = ("sudo", "sacct", "--noheader", "--parsable2", "--allocations", "--allusers", "--format=JobID,State")
    text = lab.ssh("head1", *argv, f"--jobs={','.join(sorted(numbers, key=int))}")
    return dict(line.split("|") for line in text.splitlines())


def ledger(lab: TestLab, head: str, *arguments: str) -> dict[str, dict[str, str]]:
    text = lab.ssh(head, "sudo", "/usr/local/sbin/slurm-drain", *arguments)
    return json.loads(text) if not arguments else {}


@pytest.mark.long
@pytest.mark.proves("heads", "A second bootstrap of two heads changes nothing.")
def test_bootstrap__of_two_heads_again__changes_nothing(lab: TestLab) -> None:
    lab.unchanged()
    assert lab.healthy()["slurm"]["controllers"] == {"head1": True, "head2": True}


@pytest.mark.long
@pytest.mark.proves("heads", "Head killed with 50 running and 50 pending jobs: none is lost, also back.")
def test_head__killed_with_100_jobs__back_up_has_all_of_them(lab: TestLab, capsys: pytest.CaptureFixture[str]) -> None:
    lab.ssh(CLIENT, *ALICE, "sh", "-es", stdin=SUBMIT)
    wait_until(lambda: sum(job.state == "RUNNING" for job in queue(lab).values()) == RUNNING)
    before = queue(lab)
    assert sum(job.state == "PENDING" for job in before.values()) == PENDING

    began = time.monotonic()
    podman("kill", "--signal", "KILL", container(lab, "head1"))
    over = seconds_until("head2", lab, began)
    after = queue(lab)
    assert {number: after.get(number) for number in before} == before
    assert_verbs_work(lab)

    lab.ssh(WORKER, "sudo", "touch", f"{END}-gpu")  # now the jobs that wait start, under the back-up
    waiting = {number for number, job in before.items() if job.name == "waits"}
    wait_until(lambda: not waiting & queue(lab).keys())
    still = {number: job for number, job in queue(lab).items() if job.name == "runs"}
    assert len(still) == RUNNING - 2
    assert {number: before[number] for number in still} == still

    began = time.monotonic()
    lab.up("--heads", "2")
    back = seconds_until("head1", lab, began)
    assert {number: queue(lab).get(number) for number in still} == still
    lab.ssh(WORKER, "sudo", "touch", END)
    wait_until(lambda: set(accounted(lab, {*before}).values()) == {"COMPLETED"})
    assert accounted(lab, {*before}).keys() == before.keys()
    lab.run("bootstrap")
    lab.unchanged()
    with capsys.disabled():
        print(
            f"\n  SlurmctldTimeout {TIMEOUT} s: head2 took over after {over:.0f} s, head1 after {back:.0f} s", end=" "
        )


def assert_verbs_work(lab: TestLab) -> None:
    """See what verbs do while the first head is dead."""
    status = lab.run("status", expect=4)
    assert status["slurm"]["controllers"] == {"head1": False, "head2": True}
    assert next(node for node in status["nodes"] if node["name"] == "head1")["problem"]
    assert states(lab)
