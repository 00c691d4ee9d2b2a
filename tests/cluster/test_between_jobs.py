"""What a job leaves on a worker: the next job finds none of it, and what cannot be removed drains the worker.

What a job cannot leave by itself, because clusterctl confines it, is left by root in the user's name.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cluster import hung_mount
from tests.cluster.lab import ALICE, TestLab
from tests.cluster.members import states
from tests.cluster.slurm import HERE, POWER_LIMIT, declare, ended, submit_as
from tests.faults.injury import wait_until

START = "setsid {} < /dev/null > /dev/null 2>&1 &"
# As alice without a job: a process, files in shared memory. As root: other clocks and another limit of GPU 0.
LEFT = """
setsid runuser -u alice -- sleep 4242 < /dev/null > /dev/null 2>&1 &
runuser -u alice -- sh -c 'mkdir -p /dev/shm/d/e; echo 1 > /dev/shm/d/e/f; ln -s /etc /dev/shm/.link'
supported=$(nvidia-smi -i 0 --query-supported-clocks=mem,gr --format=csv,noheader,nounits | tail -n 1 | tr -d ' ')
nvidia-smi -i 0 -ac "$supported" > /dev/null
nvidia-smi -i 0 -pl 200 > /dev/null
"""
# What a job of another user finds. Own processes are those of the job.
FOUND = """
exec > /var/tmp/found
pgrep -u alice -a || :
ipcs -m | grep alice || :
nvidia-smi --query-gpu=clocks.applications.gr,clocks.default_applications.gr,power.limit --format=csv,noheader
"""


def causes(slurm: TestLab) -> dict[str, str]:
    found: dict[str, str] = json.loads(slurm.root("head1", "slurm-drain")).get("gpu01", {})
    return found


def node(slurm: TestLab) -> str:
    return slurm.root("head1", "sinfo --noheader --Node --partition=main --nodes=gpu01 --format=%T").strip()


def memory(slurm: TestLab) -> list[str]:
    """Return alice's files and objects in shared memory."""
    files = slurm.root("gpu01", "find /dev/shm -mindepth 1 -user alice").split()
    return files + slurm.root("gpu01", "ipcs -m | awk '$3 == \"alice\" {print $2}'").split()


def here(slurm: TestLab, user: str, script: str, *options: str) -> str:
    return submit_as(slurm, user, script, HERE, *options)


@contextmanager
def hung(slurm: TestLab) -> Iterator[None]:
    """Mount a file system that does not respond on the worker."""
    with open(hung_mount.__file__) as program:
        slurm.ssh("gpu01", "sudo", "tee", "/var/tmp/hung_mount.py", stdin=program.read())
    slurm.root("gpu01", "mkdir -p /mnt/hung; " + START.format("python3 /var/tmp/hung_mount.py /mnt/hung"))
    try:
        wait_until(lambda: "fuse" in slurm.root("gpu01", "findmnt -no FSTYPE /mnt/hung || :"))
        yield
    finally:
        slurm.root("gpu01", "pkill -f '^python3 /var/tmp/hung_mount.py'")
        slurm.root("gpu01", "umount /mnt/hung; rm /var/tmp/hung_mount.py; rmdir /mnt/hung")


@pytest.mark.proves("jobs", "The next job finds no process, shared memory or GPU setting of the last one.")
def test_next_job__after_one_that_left_things__finds_none(slurm: TestLab) -> None:
    leaves = here(slurm, "alice", "ipcmk -M 4096; until [ -e /var/tmp/left ]; do sleep 1; done", "--gres=gpu:1")
    wait_until(lambda: memory(slurm) != [])
    slurm.root("gpu01", LEFT)
    left = slurm.root("gpu01", "pgrep -f '^sleep 4242'; ls -A /dev/shm; ipcs -m | grep -c alice").split()
    assert left[1:] == [".link", "d", "1"]
    slurm.root("gpu01", "runuser -u alice -- touch /var/tmp/left")
    ended(slurm, leaves)
    assert memory(slurm) == []
    ended(slurm, here(slurm, "bob", FOUND, "--gres=gpu:1"))
    (clocks,) = slurm.root("gpu01", "cat /var/tmp/found; rm -f /var/tmp/found /var/tmp/left").splitlines()
    now, default, limit = clocks.split(", ")
    assert now == default
    assert float(limit.split()[0]) == float(POWER_LIMIT.split()[0])
    assert causes(slurm) == {}


@pytest.mark.proves("jobs", "What another job of the same user has on the worker stays.")
def test_cleanup__user_with_another_job__keeps_its_things(slurm: TestLab) -> None:
    """The second job, an allocation without a step, has no process of the user."""
    for script in ("sleep 4343", ""):
        if script:
            stays = here(slurm, "alice", f"{script} & ipcmk -M 4096; wait", "--gres=gpu:1")
        else:
            salloc = [*ALICE, "salloc", "--no-shell", "--mem=1M", HERE, "--chdir=/", "--job-name=empty", "--time=9"]
            slurm.ssh("head1", *salloc)
            stays = slurm.ssh("head1", *ALICE, "squeue", "--noheader", "--name=empty", "--format=%A").strip()
            slurm.ssh("head1", *ALICE, "srun", f"--jobid={stays}", "--chdir=/", "ipcmk", "-M", "4096")
        wait_until(lambda: memory(slurm) != [])
        ended(slurm, here(slurm, "alice", "ipcmk -M 4096; sleep 1"))
        assert states(slurm, stays)[:1] == ["RUNNING"]
        assert len(slurm.root("gpu01", "pgrep -u alice sleep || :").split()) == bool(script)
        assert len(memory(slurm)) == 2
        slurm.ssh("head1", *ALICE, "scancel", stays)
        wait_until(lambda: memory(slurm) == [])


@pytest.mark.proves("jobs", "What cannot be removed drains the worker with the cause, until it is gone.")
@pytest.mark.proves("status", "`status` lists what a job has left on a drained worker.")
def test_cleanup__process_that_cannot_be_killed__drains(slurm: TestLab) -> None:
    with hung(slurm):
        slurm.root("gpu01", START.format("runuser -u alice -- ls /mnt/hung"))
        job = here(slurm, "alice", "sleep 1")
        wait_until(lambda: "health" in causes(slurm))
        (process,) = slurm.root("gpu01", "pgrep -u alice -x ls").split()
        assert causes(slurm)["health"] == f"job {job} of alice: process {process} does not end"
        assert node(slurm).startswith("drain")
        assert "does not end" in json.dumps(slurm.run("status", expect=4))
    wait_until(lambda: causes(slurm) == {})
    wait_until(lambda: node(slurm) == "idle")
    assert slurm.root("gpu01", "cat /run/clusterctl/job-cleanup.json") == "{}"


@pytest.mark.long
@pytest.mark.proves("jobs", "A worker that Slurm drains for a job's hung process is resumed when that ends.")
def test_cleanup__job_that_cannot_be_killed__drains_until_it_ends(slurm: TestLab) -> None:
    """Slurm waits for a minute, and then drains the node for a reason that nothing would remove."""
    with hung(slurm):
        job = here(slurm, "alice", "ls /mnt/hung")
        wait_until(lambda: slurm.root("gpu01", "pgrep -u alice -x ls || :") != "")
        (process,) = slurm.root("gpu01", "pgrep -u alice -x ls").split()
        slurm.ssh("head1", *ALICE, "scancel", job)
        wait_until(lambda: "Kill task failed" in slurm.root("head1", "sinfo --noheader --list-reasons --format=%E"))
        wait_until(lambda: causes(slurm).get("health") == f"job {job} of alice: process {process} does not end")
    wait_until(lambda: node(slurm) == "idle")
    assert causes(slurm) == {}


@pytest.mark.long
@pytest.mark.proves("health", "A check of the site drains a worker with its own words, until it succeeds.")
@pytest.mark.proves("health", "A program in health.d that users can change is not run, but reported.")
def test_health__checks_of_the_site__drain(slurm: TestLab) -> None:
    slurm.root("gpu01", "touch /var/tmp/full")
    wait_until(lambda: causes(slurm).get("health") == "scratch: scratch is full")
    slurm.root("gpu01", "rm /var/tmp/full")
    wait_until(lambda: causes(slurm) == {})
    program = "#!/bin/sh\n[ ! -e /var/tmp/slow ] || sleep 60\necho 'no licence' >&2\nexit 3\n"
    slurm.ssh("gpu01", "sudo", "tee", "/etc/clusterctl/health.d/licence", stdin=program)
    slurm.root("gpu01", "chmod 0755 /etc/clusterctl/health.d/licence")
    try:
        wait_until(lambda: causes(slurm).get("health") == "licence: no licence")
        slurm.root("gpu01", "touch /var/tmp/slow")
        wait_until(lambda: causes(slurm).get("health") == "licence: timed out after 9 s")
        slurm.root("gpu01", "chmod 0775 /etc/clusterctl/health.d/licence")
        wait_until(lambda: causes(slurm) == {})
        (found,) = (one for one in slurm.run("health")["nodes"] if one["name"] == "gpu01")
        texts = [one["text"] for one in found["answer"]["findings"] if one["check"] == "site"]
        assert texts == ["/etc/clusterctl/health.d/licence was not run: users other than root can change it"]
    finally:
        slurm.root("gpu01", "rm -f /etc/clusterctl/health.d/licence /var/tmp/slow")


@pytest.mark.long
@pytest.mark.proves("jobs", "Without confinement, too, a job's processes and shared files end with it.")
def test_cleanup__of_jobs_that_are_not_confined__ends_their_processes(slurm: TestLab) -> None:
    before = slurm.inventory.read_text()
    slurm.inventory.write_text(re.sub("(?m)^    slurm_head_confine: .*$", "    slurm_head_confine: []", before))
    declare(slurm, slurm_head_private_directories=[])
    slurm.run("bootstrap")
    daemon = "setsid sleep {} < /dev/null > /dev/null 2>&1 &"
    try:
        stays = here(slurm, "alice", f"{daemon.format(4444)} sleep 900")
        wait_until(lambda: states(slurm, stays) == ["RUNNING"])
        ends = here(slurm, "alice", f"echo 1 > /dev/shm/of-$SLURM_JOB_ID; {daemon.format(4545)} sleep 1")
        ended(slurm, ends)
        assert slurm.root("gpu01", "pgrep -fa '^sleep 4545' || :") == ""
        assert len(slurm.root("gpu01", "pgrep -f '^sleep 4444'").split()) == 1
        assert memory(slurm) == [f"/dev/shm/of-{ends}"]
        slurm.ssh("head1", *ALICE, "scancel", stays)
        wait_until(lambda: memory(slurm) == [] and slurm.root("gpu01", "pgrep -u alice || :") == "")
    finally:
        slurm.inventory.write_text(before)
        declare(slurm)
        slurm.run("bootstrap")
    slurm.unchanged()


@pytest.mark.long
@pytest.mark.proves("bootstrap", "With limits, placement and clean-up, a second run changes nothing.")
def test_bootstrap__second_run__changes_nothing(slurm: TestLab) -> None:
    slurm.unchanged()
