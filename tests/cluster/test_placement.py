"""Where jobs are placed: near each other by switches, a GPU for each task, several jobs on one GPU by shards."""

import shlex

import pytest

from tests.cluster.lab import TestLab
from tests.cluster.members import of_jobs, states
from tests.cluster.slurm import HERE, SWITCHES, WAITS, crowd, declare, ended, running, topology
from tests.faults.injury import fails, wait_until

WAIT = 20  # seconds that a job waits for one switch


def reason(slurm: TestLab, job: str) -> str:
    return slurm.root("head1", f"squeue --noheader --jobs={job} --format=%r").strip()


@pytest.mark.proves("jobs", "Slurm has the switches of the inventory.")
def test_topology__of_racks_and_switches__is_slurms(slurm: TestLab) -> None:
    assert {name: (one["Level"], one["Nodes"]) for name, one in topology(slurm).items()} == {
        "leaf1": ("0", "gpu01"),
        "leaf2": ("0", "gpu02"),
        "spine": ("1", "gpu[01-02]"),
    }
    assert "topology/tree" in slurm.root("gpu01", "scontrol show config | grep ^TopologyPlugin")
    slurm.root("gpu02", "test -s /var/lib/slurm/slurmd/conf-cache/topology.conf")


@pytest.mark.long
@pytest.mark.proves("jobs", "Nodes below one switch are waited for as long as the job asks.")
def test_job__on_two_nodes_below_one_switch__waits_for_them(slurm: TestLab) -> None:
    def waited(nodes: int, *options: str) -> int:
        job = crowd(slurm, "true", f"--nodes={nodes}", *options)
        ended(slurm, job)
        submitted, started = (f"$(date -d {of_jobs(slurm, job, field)[0]} +%s)" for field in ("Submit", "Start"))
        return int(slurm.root("head1", f"echo $(({started} - {submitted}))"))

    near = f"--switches=1@0:{WAIT}"
    assert waited(1, near) < WAIT
    assert waited(2) < WAIT
    assert waited(2, near) >= WAIT


@pytest.mark.proves("jobs", "With --gpu-bind each task of a job has a GPU of its own.")
def test_gpu_bind__of_two_tasks__gives_each_its_own(slurm: TestLab) -> None:
    # Where a task has the only GPU that it may open, that is its number 0. In a lab, others give another error.
    denied = "(: < /dev/nvidia$gpu) 2>&1 | grep -q 'not permitted'"
    opened = f"for gpu in 0 1; do {denied} || echo $CUDA_VISIBLE_DEVICES:$gpu; done | xargs"

    def bound(*options: str) -> list[str]:
        script = f"srun {' '.join(options)} sh -c {shlex.quote(opened)} > /var/tmp/bound"
        ended(slurm, crowd(slurm, script, HERE, "--ntasks=2", "--gres=gpu:2"))
        return sorted(slurm.root("gpu01", "cat /var/tmp/bound").splitlines())

    assert bound() == ["0,1:0 0,1:1"] * 2
    assert bound("--gpu-bind=single:1") == ["0:0", "0:1"]
    assert bound("--gpus-per-task=1") == ["0:0", "0:1"]


@pytest.mark.proves("jobs", "Two jobs share a GPU by shards, a third waits; a whole GPU is not.")
def test_shards__of_one_gpu__let_two_jobs_run_and_a_third_wait(slurm: TestLab) -> None:
    script = f"echo $CUDA_VISIBLE_DEVICES $SLURM_JOB_GPUS > /var/tmp/shard.$SLURM_JOB_ID; {WAITS}"
    there = "--nodelist=gpu02"
    slurm.root("gpu02", "rm -f /var/tmp/enough")
    whole = crowd(slurm, WAITS, there, "--gres=gpu:1")
    running(slurm, whole)
    shares = [crowd(slurm, script, there, "--gres=shard:1") for _ in range(2)]
    for job in shares:
        running(slurm, job)
    third = crowd(slurm, script, there, "--gres=shard:1")
    wait_until(lambda: reason(slurm, third) == "Resources", lambda: reason(slurm, third))
    assert states(slurm, third) == ["PENDING"]
    one, other = (slurm.root("gpu02", f"cat /var/tmp/shard.{job}").split() for job in shares)
    assert one == other
    used = slurm.root("head1", "scontrol --details show node gpu02 | grep GresUsed")
    assert "shard:" in used
    assert "(0/2,2/2)" in used or "(2/2,0/2)" in used
    slurm.root("gpu02", "touch /var/tmp/enough")
    ended(slurm, whole, *shares, third)
    assert "gres/shard=1" in of_jobs(slurm, third, "AllocTRES")[0]


@pytest.mark.proves("bootstrap", "A worker that no switch has is refused before any node is contacted.")
def test_bootstrap__of_a_worker_in_no_switch__is_refused(slurm: TestLab) -> None:
    declare(slurm, slurm_head_topology={"switches": SWITCHES[:1]})
    try:
        assert "no switch has gpu02" in fails(slurm, 2)
    finally:
        declare(slurm)
