"""Where jobs are placed: near each other by switches, a GPU for each task, several jobs on one GPU by shards."""

import json
import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.lab import TestLab, fresh, submit
from tests.cluster.members import of_jobs, states
from tests.faults.injury import fails, wait_until

SWITCHES: list[dict[str, Any]] = [
    {"name": "leaf1", "nodes": ["rack1"]},
    {"name": "leaf2", "nodes": ["gpu02"]},
    {"name": "spine", "switches": ["leaf1", "leaf2"]},
]
PLACED: dict[str, Any] = {
    "slurm_head_topology": {"switches": SWITCHES},
    "slurm_head_shards": 2,
    # Twice the jobs that the lab's few cores would let start at once.
    "slurm_head_partitions": [{"name": "main", "default": True, "options": {"OverSubscribe": "FORCE:8"}}],
}
RACK = "      children:\n        rack1:\n          hosts:\n    "
WAITS = "until [ -e /var/tmp/enough ]; do sleep 1; done"
WAIT = 20  # seconds that a job waits for one switch


def declare(lab: TestLab, **changed: Any) -> None:
    directory = lab.inventory.parent / "group_vars"
    directory.mkdir(exist_ok=True)
    (directory / "all.yml").write_text(json.dumps(PLACED | changed))


def topology(lab: TestLab) -> dict[str, dict[str, str]]:
    """Return the switches or blocks of `scontrol show topology` by name."""
    lines = lab.root("head1", "scontrol --oneliner show topology").splitlines()
    # SwitchName, BlockName, and AggregatedBlock for groups of blocks.
    named = [line.split(" ", 1) for line in lines]
    return {name.split("=")[1]: dict(word.split("=", 1) for word in rest.split()) for name, rest in named}


def ended(lab: TestLab, *jobs: str) -> None:
    def found() -> list[str]:
        return [state for job in jobs for state in states(lab, job)]

    wait_until(lambda: found() == ["COMPLETED"] * len(jobs), lambda: f"{jobs}: {found()}")


def reason(lab: TestLab, job: str) -> str:
    return lab.root("head1", f"squeue --noheader --jobs={job} --format=%r").strip()


def running(lab: TestLab, job: str) -> None:
    wait_until(lambda: states(lab, job) == ["RUNNING"], lambda: f"{job}: {states(lab, job)} {reason(lab, job)}")


@pytest.fixture(scope="module")
def lab() -> Iterator[TestLab]:
    """A cluster of two workers with two GPUs each, the first in a rack, each below a switch of its own."""
    with fresh("placement", "--gpus", "2", workers=2) as lab:
        text = lab.inventory.read_text()
        (first,) = (line for line in text.splitlines(keepends=True) if line.startswith("        gpu01:"))
        (second,) = (line for line in text.splitlines(keepends=True) if line.startswith("        gpu02:"))
        lab.inventory.write_text(text.replace(first, "").replace(second, f"{second}{RACK}{first}"))
        declare(lab)
        lab.run("bootstrap")
        yield lab


@pytest.mark.proves("jobs", "Slurm has the switches of the inventory; a second bootstrap changes nothing.")
def test_topology__of_racks_and_switches__is_slurms(lab: TestLab) -> None:
    assert {name: (one["Level"], one["Nodes"]) for name, one in topology(lab).items()} == {
        "leaf1": ("0", "gpu01"),
        "leaf2": ("0", "gpu02"),
        "spine": ("1", "gpu[01-02]"),
    }
    assert "topology/tree" in lab.root("gpu01", "scontrol show config | grep ^TopologyPlugin")
    lab.root("gpu02", "test -s /var/lib/slurm/slurmd/conf-cache/topology.conf")
    lab.unchanged()


@pytest.mark.proves("jobs", "Nodes below one switch are waited for as long as the job asks.")
def test_job__on_two_nodes_below_one_switch__waits_for_them(lab: TestLab) -> None:
    def waited(nodes: int, *options: str) -> int:
        job = submit(lab, "true", f"--nodes={nodes}", *options)
        ended(lab, job)
        submitted, started = (f"$(date -d {of_jobs(lab, job, field)[0]} +%s)" for field in ("Submit", "Start"))
        return int(lab.root("head1", f"echo $(({started} - {submitted}))"))

    near = f"--switches=1@0:{WAIT}"
    assert waited(1, near) < WAIT
    assert waited(2) < WAIT
    assert waited(2, near) >= WAIT


@pytest.mark.proves("jobs", "With --gpu-bind each task of a job has a GPU of its own.")
def test_gpu_bind__of_two_tasks__gives_each_its_own(lab: TestLab) -> None:
    # Where a task has the only GPU that it may open, that is its number 0. In a lab, others give another error.
    denied = "(: < /dev/nvidia$gpu) 2>&1 | grep -q 'not permitted'"
    opened = f"for gpu in 0 1; do {denied} || echo $CUDA_VISIBLE_DEVICES:$gpu; done | xargs"

    def bound(*options: str) -> list[str]:
        script = f"srun {' '.join(options)} sh -c {shlex.quote(opened)} > /var/tmp/bound"
        ended(lab, submit(lab, script, "--nodelist=gpu01", "--ntasks=2", "--gres=gpu:2"))
        return sorted(lab.root("gpu01", "cat /var/tmp/bound").splitlines())

    assert bound() == ["0,1:0 0,1:1"] * 2
    assert bound("--gpu-bind=single:1") == ["0:0", "0:1"]
    assert bound("--gpus-per-task=1") == ["0:0", "0:1"]


@pytest.mark.proves("jobs", "Two jobs share a GPU by shards, a third waits; a whole GPU is not.")
def test_shards__of_one_gpu__let_two_jobs_run_and_a_third_wait(lab: TestLab) -> None:
    script = f"echo $CUDA_VISIBLE_DEVICES $SLURM_JOB_GPUS > /var/tmp/shard.$SLURM_JOB_ID; {WAITS}"
    here = "--nodelist=gpu02"
    lab.root("gpu02", "rm -f /var/tmp/enough")
    whole = submit(lab, WAITS, here, "--gres=gpu:1")
    running(lab, whole)
    shares = [submit(lab, script, here, "--gres=shard:1") for _ in range(2)]
    for job in shares:
        running(lab, job)
    third = submit(lab, script, here, "--gres=shard:1")
    wait_until(lambda: reason(lab, third) == "Resources", lambda: reason(lab, third))
    assert states(lab, third) == ["PENDING"]
    one, other = (lab.root("gpu02", f"cat /var/tmp/shard.{job}").split() for job in shares)
    assert one == other
    used = lab.root("head1", "scontrol --details show node gpu02 | grep GresUsed")
    assert "shard:" in used
    assert "(0/2,2/2)" in used or "(2/2,0/2)" in used
    lab.root("gpu02", "touch /var/tmp/enough")
    ended(lab, whole, *shares, third)
    assert "gres/shard=1" in of_jobs(lab, third, "AllocTRES")[0]


@pytest.mark.proves("bootstrap", "Other switches and shards reach Slurm while a job with a GPU runs on.")
def test_bootstrap__of_another_topology__is_slurms_and_keeps_jobs(lab: TestLab) -> None:
    lab.root("gpu01", "rm -f /var/tmp/enough")
    job = submit(lab, WAITS, "--nodelist=gpu01", "--gres=gpu:1")
    running(lab, job)
    blocks = [{"name": "nvl1", "nodes": ["rack1"]}, {"name": "nvl2", "nodes": ["gpu02"]}]
    declare(lab, slurm_head_topology={"blocks": blocks, "block_sizes": [1, 2]}, slurm_head_shards=4)
    lab.run("bootstrap")
    found = {name: one["Nodes"] for name, one in topology(lab).items()}
    assert found == {"nvl1": "gpu01", "nvl2": "gpu02", "nvl[1-2]": "gpu[01-02]"}
    wait_until(lambda: "gres/shard=8" in lab.root("head1", "scontrol show node gpu01 | grep CfgTRES="))
    assert states(lab, job) == ["RUNNING"]
    lab.root("gpu01", "touch /var/tmp/enough")
    ended(lab, job, submit(lab, "true", "--nodes=2", "--gres=shard:4"))
    lab.unchanged()


@pytest.mark.proves("bootstrap", "A worker that no switch has is refused before any node is contacted.")
def test_bootstrap__of_a_worker_in_no_switch__is_refused(lab: TestLab) -> None:
    declare(lab, slurm_head_topology={"switches": SWITCHES[:1]})
    assert "no switch has gpu02" in fails(lab, 2)


@pytest.mark.proves("bootstrap", "Without the variables Slurm has no topology and no shards again.")
def test_bootstrap__without_topology_and_shards__removes_both(lab: TestLab) -> None:
    declare(lab, slurm_head_topology={}, slurm_head_shards=0)
    lab.run("bootstrap")
    lab.root("head1", "test ! -e /etc/slurm/topology.conf")
    assert "topology/default" in lab.root("head1", "scontrol show config | grep ^TopologyPlugin")
    wait_until(lambda: "shard" not in lab.root("head1", "scontrol show node gpu01 | grep Gres="))
    ended(lab, submit(lab, "true", "--nodes=2", "--gres=gpu:2"))
    lab.unchanged()
