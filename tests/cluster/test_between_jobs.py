"""What a job leaves on a worker: the next job finds none of it, and what cannot be removed drains the worker.

What a job cannot leave by itself, because clusterctl confines it, is left by root in the user's name.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cluster import hung_mount
from tests.cluster.lab import ALICE, ALICES, TestLab, fresh, submit
from tests.cluster.members import states
from tests.faults.injury import wait_until

LIMIT = "320 W"
START = "setsid {} < /dev/null > /dev/null 2>&1 &"
CHECKED = "test ! -e /var/tmp/full || { echo scratch is full; exit 1; }"
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


@pytest.fixture(scope="module")
def lab() -> Iterator[TestLab]:
    """A cluster of one worker with two GPUs, whose health Slurm checks every five seconds."""
    with fresh("between", "--gpus", "2", workers=1) as lab:
        lab.switch_on("gpu_config")
        lab.inventory.write_text(
            lab.inventory.read_text().replace(ALICES, f"{ALICES}      - {{name: bob, uid: 5002}}\n")
        )
        lab.declare(
            f"gpu_config_power_limit: {LIMIT}",
            f"gpu_health_commands: {json.dumps({'scratch': CHECKED})}",
            "slurm_head_health_interval: 5",
        )
        lab.run("bootstrap")
        yield lab


def finished(lab: TestLab, job: str) -> None:
    wait_until(lambda: states(lab, job) == ["COMPLETED"], lambda: f"job {job}: {states(lab, job)}")
    wait_until(lambda: lab.root("head1", f"squeue --noheader --jobs={job} 2>/dev/null || :") == "")


def causes(lab: TestLab) -> dict[str, str]:
    found: dict[str, str] = json.loads(lab.root("head1", "slurm-drain")).get("gpu01", {})
    return found


def node(lab: TestLab) -> str:
    return lab.root("head1", "sinfo --noheader --Node --nodes=gpu01 --format=%T").strip()


def memory(lab: TestLab) -> list[str]:
    """Return alice's files and objects in shared memory."""
    files = lab.root("gpu01", "find /dev/shm -mindepth 1 -user alice").split()
    return files + lab.root("gpu01", "ipcs -m | awk '$3 == \"alice\" {print $2}'").split()


def of_user(lab: TestLab, name: str, script: str, *options: str) -> str:
    argv = [*ALICE[:-1], name, "sbatch", "--parsable", "--mem=1M", "--chdir=/", "--output=none", "--time=9", *options]
    return lab.ssh("head1", *argv, stdin=f"#!/bin/sh\n{script}\n").strip()


@contextmanager
def hung(lab: TestLab) -> Iterator[None]:
    """Mount a file system that does not respond on the worker."""
    with open(hung_mount.__file__) as program:
        lab.ssh("gpu01", "sudo", "tee", "/var/tmp/hung_mount.py", stdin=program.read())
    lab.root("gpu01", "mkdir -p /mnt/hung; " + START.format("python3 /var/tmp/hung_mount.py /mnt/hung"))
    try:
        wait_until(lambda: "fuse" in lab.root("gpu01", "findmnt -no FSTYPE /mnt/hung || :"))
        yield
    finally:
        lab.root("gpu01", "pkill -f '^python3 /var/tmp/hung_mount.py'")
        lab.root("gpu01", "umount /mnt/hung; rm /var/tmp/hung_mount.py; rmdir /mnt/hung")


@pytest.mark.proves("jobs", "The next job finds no process, shared memory or GPU setting of the last one.")
def test_next_job__after_one_that_left_things__finds_none(lab: TestLab) -> None:
    leaves = submit(lab, "ipcmk -M 4096; until [ -e /var/tmp/left ]; do sleep 1; done", "--gres=gpu:1")
    wait_until(lambda: states(lab, leaves) == ["RUNNING"])
    lab.root("gpu01", LEFT)
    left = lab.root("gpu01", "pgrep -f '^sleep 4242'; ls -A /dev/shm; ipcs -m | grep -c alice").split()
    assert left[1:] == [".link", "d", "1"]
    lab.root("gpu01", "runuser -u alice -- touch /var/tmp/left")
    finished(lab, leaves)
    assert memory(lab) == []
    finished(lab, of_user(lab, "bob", FOUND, "--gres=gpu:1"))
    (clocks,) = lab.root("gpu01", "cat /var/tmp/found; rm -f /var/tmp/found /var/tmp/left").splitlines()
    now, default, limit = clocks.split(", ")
    assert now == default
    assert limit == "320.00 W"
    assert causes(lab) == {}


@pytest.mark.proves("jobs", "What another job of the same user has on the worker stays.")
def test_cleanup__user_with_another_job__keeps_its_things(lab: TestLab) -> None:
    """The second job, an allocation without a step, has no process of the user."""
    for script in ("sleep 4343", ""):
        if script:
            stays = submit(lab, f"{script} & ipcmk -M 4096; wait", "--gres=gpu:1")
        else:
            salloc = [*ALICE, "salloc", "--no-shell", "--mem=1M", "--chdir=/", "--job-name=empty", "--time=9"]
            lab.ssh("head1", *salloc)
            stays = lab.ssh("head1", *ALICE, "squeue", "--noheader", "--name=empty", "--format=%A").strip()
            lab.ssh("head1", *ALICE, "srun", f"--jobid={stays}", "--chdir=/", "ipcmk", "-M", "4096")
        wait_until(lambda: memory(lab) != [])
        finished(lab, submit(lab, "ipcmk -M 4096; sleep 1"))
        assert states(lab, stays)[:1] == ["RUNNING"]
        assert len(lab.root("gpu01", "pgrep -u alice sleep || :").split()) == bool(script)
        assert len(memory(lab)) == 2
        lab.ssh("head1", *ALICE, "scancel", stays)
        wait_until(lambda: memory(lab) == [])


@pytest.mark.proves("jobs", "What cannot be removed drains the worker with the cause, until it is gone.")
@pytest.mark.proves("status", "`status` lists what a job has left on a drained worker.")
def test_cleanup__process_that_cannot_be_killed__drains(lab: TestLab) -> None:
    with hung(lab):
        lab.root("gpu01", START.format("runuser -u alice -- ls /mnt/hung"))
        job = submit(lab, "sleep 1")
        wait_until(lambda: "health" in causes(lab))
        (process,) = lab.root("gpu01", "pgrep -u alice -x ls").split()
        assert causes(lab)["health"] == f"job {job} of alice: process {process} does not end"
        assert node(lab).startswith("drain")
        assert "does not end" in json.dumps(lab.run("status", expect=4))
    wait_until(lambda: causes(lab) == {})
    wait_until(lambda: node(lab) == "idle")
    assert lab.root("gpu01", "cat /run/clusterctl/job-cleanup.json") == "{}"


@pytest.mark.long
@pytest.mark.proves("jobs", "A worker that Slurm drains for a job's hung process is resumed when that ends.")
def test_cleanup__job_that_cannot_be_killed__drains_until_it_ends(lab: TestLab) -> None:
    """Slurm waits for a minute, and then drains the node for a reason that nothing would remove."""
    with hung(lab):
        job = submit(lab, "ls /mnt/hung")
        wait_until(lambda: lab.root("gpu01", "pgrep -u alice -x ls || :") != "")
        (process,) = lab.root("gpu01", "pgrep -u alice -x ls").split()
        lab.ssh("head1", *ALICE, "scancel", job)
        wait_until(lambda: "Kill task failed" in lab.root("head1", "sinfo --noheader --list-reasons --format=%E"))
        wait_until(lambda: causes(lab).get("health") == f"job {job} of alice: process {process} does not end")
    wait_until(lambda: node(lab) == "idle")
    assert causes(lab) == {}


@pytest.mark.proves("health", "A check of the site drains a worker with its own words, until it succeeds.")
@pytest.mark.proves("health", "A program in health.d that users can change is not run, but reported.")
def test_health__checks_of_the_site__drain(lab: TestLab) -> None:
    lab.root("gpu01", "touch /var/tmp/full")
    wait_until(lambda: causes(lab).get("health") == "scratch: scratch is full")
    lab.root("gpu01", "rm /var/tmp/full")
    wait_until(lambda: causes(lab) == {})
    program = "#!/bin/sh\n[ ! -e /var/tmp/slow ] || sleep 60\necho 'no licence' >&2\nexit 3\n"
    lab.ssh("gpu01", "sudo", "tee", "/etc/clusterctl/health.d/licence", stdin=program)
    lab.root("gpu01", "chmod 0755 /etc/clusterctl/health.d/licence")
    try:
        wait_until(lambda: causes(lab).get("health") == "licence: no licence")
        lab.root("gpu01", "touch /var/tmp/slow")
        wait_until(lambda: causes(lab).get("health") == "licence: timed out after 9 s")
        lab.root("gpu01", "chmod 0775 /etc/clusterctl/health.d/licence")
        wait_until(lambda: causes(lab) == {})
        (found,) = (one for one in lab.run("health")["nodes"] if one["name"] == "gpu01")
        texts = [one["text"] for one in found["answer"]["findings"] if one["check"] == "site"]
        assert texts == ["/etc/clusterctl/health.d/licence was not run: users other than root can change it"]
    finally:
        lab.root("gpu01", "rm -f /etc/clusterctl/health.d/licence /var/tmp/slow")


@pytest.mark.long
@pytest.mark.proves("jobs", "Without confinement, too, a job's processes and shared files end with it.")
def test_cleanup__of_jobs_that_are_not_confined__ends_their_processes(lab: TestLab) -> None:
    before = lab.inventory.read_text()
    lab.inventory.write_text(re.sub("(?m)^    slurm_head_confine: .*$", "    slurm_head_confine: []", before))
    lab.declare("slurm_head_private_directories: []")
    lab.run("bootstrap")
    daemon = "setsid sleep {} < /dev/null > /dev/null 2>&1 &"
    try:
        stays = submit(lab, f"{daemon.format(4444)} sleep 900")
        wait_until(lambda: states(lab, stays) == ["RUNNING"])
        ends = submit(lab, f"echo 1 > /dev/shm/of-$SLURM_JOB_ID; {daemon.format(4545)} sleep 1")
        finished(lab, ends)
        assert lab.root("gpu01", "pgrep -fa '^sleep 4545' || :") == ""
        assert len(lab.root("gpu01", "pgrep -f '^sleep 4444'").split()) == 1
        assert memory(lab) == [f"/dev/shm/of-{ends}"]
        lab.ssh("head1", *ALICE, "scancel", stays)
        wait_until(lambda: memory(lab) == [] and lab.root("gpu01", "pgrep -u alice || :") == "")
    finally:
        lab.inventory.write_text(before)
        lab.run("bootstrap")
    lab.unchanged()


@pytest.mark.proves("bootstrap", "A second run with clean-up and checks of the site changes nothing.")
def test_bootstrap__second_run__changes_nothing(lab: TestLab) -> None:
    lab.unchanged()
