"""Slurm 26.05, which Debian's next release carries: a cluster comes to it from 24.11 with jobs, and lives on it."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.cluster.lab import CALL_LIMIT, TestLab, clusterctl, fresh_as, submit
from tests.cluster.members import Growing, of_jobs, states
from tests.cluster.test_first_hour import MPI, PROGRAM
from tests.cluster.test_shapes import works
from tests.faults.injury import in_service, wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

OLD, NEW = "24.11", "26.05"
# Debian 13's Slurm on Debian's next release: the site's own pin.
OLDER_SOURCE = f"""
cat > /etc/apt/sources.list.d/older.list <<END
deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian trixie main
END
cat > /etc/apt/preferences.d/older <<END
Package: *
Pin: release n=trixie
Pin-Priority: 100

Package: slurm* libslurm* libpam-slurm*
Pin: version {OLD}.*
Pin-Priority: 1001
END
"""
COMPILE_AND_RUN = f"""
srun --chdir=/ sh -c 'mpicc -x c - -o /var/tmp/ring' <<'END'
{PROGRAM}
END
mpirun --map-by ppr:1:node --np 2 /var/tmp/ring
"""
UNTIL_ENOUGH = "until [ -e /var/tmp/enough ]; do sleep 1; done"


@pytest.fixture(scope="module")
def lab() -> Iterator[Growing]:
    """A cluster of one worker on Debian's next release with Slurm 24.11, and one more node."""
    with fresh_as(Growing, "releases", "--os", "debian-testing", "--gpus", "2", workers=1) as lab:
        for node in ("head1", "gpu01"):
            lab.root(node, OLDER_SOURCE)
        lab.declare(f'slurm_head_version: "{OLD}.*"')
        lab.run("bootstrap")
        yield lab


def release(lab: TestLab, node: str) -> str:
    """Return the release of Slurm's programs on a node, which also shows that they take the configuration."""
    found = re.search(r"\d+\.\d+", lab.ssh(node, "sinfo", "--noheader", "--format=%T", "&&", "sinfo", "--version"))
    assert found is not None
    return found[0]


@pytest.mark.proves("upgrade", "A cluster moves from Slurm 24.11 to 26.05 while jobs run.")
def test_upgrade__from_24_11_to_26_05__jobs_go_on(lab: Growing) -> None:
    """The head first; meanwhile the worker's slurmd and its clients are the older ones, with the newer head's files."""
    assert (release(lab, "head1"), release(lab, "gpu01")) == (OLD, OLD)
    job = submit(lab, UNTIL_ENOUGH, "--nodelist=gpu01", "--gres=gpu:1")
    wait_until(lambda: states(lab, job) == ["RUNNING"])
    waiting = submit(lab, "true", "--hold")
    for node in ("head1", "gpu01"):
        lab.root(node, "rm /etc/apt/preferences.d/older")
    text = lab.inventory.read_text()
    lab.inventory.write_text(text.replace(f'"{OLD}.*"', f'"{NEW}.*"'))
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(clusterctl, "upgrade", str(lab.inventory), limit=CALL_LIMIT)
        try:
            # While the head's packages are replaced sinfo may not find its own plugins.
            ask = ("sinfo", "--noheader", "--Node", "--nodes=gpu01", "--format=%T")
            wait_until(lambda: lab.ssh("head1", *ask, check=False).strip() in ("draining", "drained"))
            assert (release(lab, "head1"), release(lab, "gpu01")) == (NEW, OLD)
            assert states(lab, job) == ["RUNNING"]
        finally:
            lab.root("gpu01", "touch /var/tmp/enough")
        done = running.result()
    assert done.returncode == 0, done.stdout + done.stderr
    wait_until(lambda: states(lab, job) == ["COMPLETED"])
    assert of_jobs(lab, job, "Restarts") == ["0"]
    assert release(lab, "gpu01") == NEW
    lab.root("head1", f"scontrol release {waiting}")
    wait_until(lambda: states(lab, waiting) == ["COMPLETED"])
    lab.run("bootstrap")  # what had to wait for jobs that ran
    lab.unchanged()
    lab.healthy()


@pytest.mark.proves("add-node", "A node joins and leaves a cluster with Slurm 26.05.")
def test_membership__with_26_05__a_node_joins_and_leaves(lab: Growing) -> None:
    lab.add()
    assert release(lab, lab.last) == NEW
    works(TestLab(lab.name, lab.workers + 1))
    lab.verb("remove-node", lab.last, "--yes")
    assert lab.last not in in_service(lab)
    lab.unchanged()


@pytest.mark.proves("jobs", "An MPI program runs on two nodes with Slurm 26.05, whose package has no PMIx.")
def test_mpi__with_26_05__mpirun_starts_it_on_two_nodes(lab: Growing) -> None:
    """The bootstrap's own proof runs one, and so does a user's job; homes are not shared, so each node compiles."""
    lab.add()
    lab.inventory.write_text(lab.inventory.read_text() + MPI)
    lab.run("bootstrap")
    job = submit(lab, COMPILE_AND_RUN, "--nodes=2", "--ntasks-per-node=1", "--mem=500M", "--output=/var/tmp/ring.out")
    wait_until(lambda: states(lab, job)[0] not in ("PENDING", "RUNNING"))
    told = lab.root("gpu01", "cat /var/tmp/ring.out")
    assert sorted(told.splitlines()) == ["0 of 2 on gpu01, 1", f"1 of 2 on {lab.last}, 1"]
    lab.verb("remove-node", lab.last, "--yes")


@pytest.mark.proves("restore", "Queue and accounting of Slurm 26.05 are restored while a job runs.")
def test_restore__with_26_05__keeps_the_job_that_runs(lab: Growing) -> None:
    lab.root("gpu01", "rm -f /var/tmp/enough")
    job = submit(lab, UNTIL_ENOUGH, "--nodelist=gpu01")
    wait_until(lambda: states(lab, job) == ["RUNNING"])
    archive = lab.run("backup")["backup"]
    later = submit(lab, "true", "--hold")
    done = clusterctl("restore", str(lab.inventory), str(archive), "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert states(lab, job) == ["RUNNING"]
    lab.root("gpu01", "touch /var/tmp/enough")
    wait_until(lambda: states(lab, job) == ["COMPLETED"])
    assert later not in lab.root("head1", "squeue --noheader --format=%A").split()
    lab.healthy()


@pytest.mark.proves("jobs", "SSH needs a job, and jobs have their own GPUs, with Slurm 26.05.")
def test_confinement__with_26_05__is_as_before(lab: Growing) -> None:
    within = lab.ssh("head1", "sudo", "-u", "alice", "srun", "--chdir=/", "--gres=gpu:1", "nvidia-smi", "-L")
    assert within.count("GPU 0:") == 1
    assert "GPU 1:" not in within
    group = lab.ssh("head1", "sudo", "-u", "alice", "srun", "--chdir=/", "cat", "/proc/self/cgroup")
    assert re.search(r"slurmstepd\.scope/s[0-9A-Z]{13}/step_0", group), "named by its SLUID"
    assert "pam_slurm_adopt" in lab.root("gpu01", "cat /etc/pam.d/sshd")


@pytest.mark.proves("bootstrap", "A cluster is built from nothing with Slurm 26.05.")
def test_bootstrap__from_nothing_with_26_05__runs_jobs() -> None:
    with fresh_as(Growing, "newest", "--os", "debian-testing", "--gpus", "2", workers=1) as lab:
        lab.run("bootstrap")
        assert (release(lab, "head1"), release(lab, "gpu01")) == (NEW, NEW)
        works(lab)
        lab.unchanged()
        lab.healthy()
