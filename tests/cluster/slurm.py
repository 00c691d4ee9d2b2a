"""A Slurm cluster that has all of it: accounts, limits and QOS, switches and shards, checks between jobs.

The files of the layer `slurm` share the lab. A test that declares something else declares this again at its end.
"""

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.cluster.lab import ALICES, TestLab, fresh
from tests.cluster.members import states
from tests.faults.injury import wait_until

HERE = "--nodelist=gpu01"
WAITS = "until [ -e /var/tmp/enough ]; do sleep 1; done"
POWER_LIMIT = "320 W"
SACCTMGR = "sacctmgr --immediate --noheader --parsable2"
USE = "use"
"""Name of a job of alice's, which gives her more use than bob has."""
PARTITIONS: list[dict[str, Any]] = [
    {"name": "main", "default": True},
    # Twice the jobs that the lab's few cores would let start at once.
    {"name": "crowded", "options": {"OverSubscribe": "FORCE:8"}},
    {"name": "small", "options": {"QOS": "small"}},
    {"name": "a100s", "gpu": "a100"},
]
SWITCHES: list[dict[str, Any]] = [
    {"name": "leaf1", "nodes": ["rack1"]},
    {"name": "leaf2", "nodes": ["gpu02"]},
    {"name": "spine", "switches": ["leaf1", "leaf2"]},
]
CHECKED = "test ! -e /var/tmp/full || { echo scratch is full; exit 1; }"
VARIABLES: dict[str, Any] = {
    "users_accounts": [
        {"name": "alice", "uid": 5001, "slurm_account": "vision"},
        {"name": "bob", "uid": 5002, "slurm_account": "robots", "slurm_options": {"MaxSubmitJobs": 9}},
        {"name": "carol", "uid": 5003, "slurm_account": "students"},
    ],
    "slurm_head_accounts": [
        {"name": "root", "options": {"QOS": ["normal", "scavenger", "urgent"]}},
        {"name": "students", "parent": "science", "options": {"MaxTRESPerJob": {"gres/gpu": 1}}},
        {"name": "vision", "parent": "science"},
        {
            "name": "robots",
            "parent": "science",
            "description": "Robots",
            "options": {"MaxTRESMinsPerJob": {"gres/gpu": 600}},
        },
        {"name": "science", "options": {"MaxWall": "1-00:00:00"}},
    ],
    "slurm_head_qos": [
        {"name": "urgent", "options": {"Priority": 100, "Preempt": ["scavenger"]}},
        {"name": "scavenger", "options": {"UsageFactor": 0.5}},
        {"name": "small", "options": {"MaxTRESPerJob": {"gres/gpu": 1}}},
    ],
    "slurm_head_partitions": PARTITIONS,
    "slurm_head_topology": {"switches": SWITCHES},
    "slurm_head_shards": 2,
    "slurm_head_health_interval": 5,
    "slurm_head_conf_extra": {"PriorityCalcPeriod": 1},  # minutes until a job's use changes the order of others
    "gpu_config_power_limit": POWER_LIMIT,
    "gpu_health_commands": {"scratch": CHECKED},
}
_RACK = "      children:\n        rack1:\n          hosts:\n    "


@contextmanager
def slurm_lab() -> Iterator[TestLab]:
    """The lab, bootstrapped: two workers with two GPUs each, the first in a rack, and the job USE."""
    with fresh("policy", "--gpus", "2", workers=2) as lab:
        lab.switch_on("gpu_config")
        lines = {line.strip().split(":")[0]: line for line in lab.inventory.read_text().splitlines(keepends=True)
                 if "ansible_host" in line}  # fmt: skip
        first, second = lines["gpu01"], lines["gpu02"]
        text = lab.inventory.read_text().replace(f"    users_accounts:\n{ALICES}", "")
        lab.inventory.write_text(text.replace(first, "").replace(second, f"{second}{_RACK}{first}"))
        declare(lab)
        lab.run("bootstrap")
        submit_as(lab, "alice", "sleep 20", "--exclusive", "--nodelist=gpu02", f"--job-name={USE}")
        yield lab


def declare(lab: TestLab, **changed: Any) -> None:
    """Give the inventory VARIABLES, with these instead of those of the same name."""
    directory = lab.inventory.parent / "group_vars"
    directory.mkdir(exist_ok=True)
    (directory / "all.yml").write_text(json.dumps(VARIABLES | changed))


def submit_as(lab: TestLab, user: str, script: str, *options: str) -> str:
    """Submit a job of a user's; return its number, or what sbatch says to its refusal."""
    argv = ["runuser", "-u", user, "--", "sbatch", "--parsable", "--mem=1M", "--output=none", "--time=20", *options]
    return lab.root("head1", f"cd /; {shlex.join(argv)} --wrap={shlex.quote(script)} 2>&1 || :").strip()


def crowd(lab: TestLab, script: str, *options: str) -> str:
    """Submit a job of alice's that shares the cores of its node with others."""
    return submit_as(lab, "alice", script, "--partition=crowded", *options)


def running(lab: TestLab, job: str) -> None:
    """Wait until a job runs."""
    reason = f"squeue --noheader --jobs={job} --format=%r"
    wait_until(
        lambda: states(lab, job) == ["RUNNING"], lambda: f"{job}: {states(lab, job)} {lab.root('head1', reason)}"
    )


def ended(lab: TestLab, *jobs: str) -> None:
    """Wait until jobs are completed, and cleaned up after."""

    def found() -> list[str]:
        return [state for job in jobs for state in states(lab, job)]

    wait_until(lambda: found() == ["COMPLETED"] * len(jobs), lambda: f"{jobs}: {found()}")
    left = f"squeue --noheader --jobs={','.join(jobs)} 2>/dev/null || :"
    wait_until(lambda: lab.root("head1", left) == "", lambda: lab.root("head1", left))


def topology(lab: TestLab) -> dict[str, dict[str, str]]:
    """Return the switches or blocks of `scontrol show topology` by name."""
    lines = lab.root("head1", "scontrol --oneliner show topology").splitlines()
    # SwitchName, BlockName, and AggregatedBlock for groups of blocks.
    named = [line.split(" ", 1) for line in lines]
    return {name.split("=")[1]: dict(word.split("=", 1) for word in rest.split()) for name, rest in named}
