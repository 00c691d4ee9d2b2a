"""The line about Slurm's queue in the message of the day of login nodes."""

import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from tests.unit.test_role_plugins import plugin

# As scontrol prints nodes, without fields that do not matter.
NODES = """\
NodeName=gpu01 State=MIXED ThreadsPerCore=1 CfgTRES=cpu=8,gres/gpu=8,gres/gpu:a100=8 AllocTRES=cpu=3,mem=3M,gres/gpu=3
NodeName=gpu02 State=IDLE+DRAIN ThreadsPerCore=1 CfgTRES=cpu=8,mem=1G,billing=8,gres/gpu=8,gres/gpu:a100=8 AllocTRES=
NodeName=cpu01 State=IDLE ThreadsPerCore=1 CfgTRES=cpu=8,mem=1G,billing=8 AllocTRES=
"""


@pytest.fixture
def queue_line() -> ModuleType:
    return plugin("../roles/login/files/queue_line")


@pytest.mark.parametrize(
    ("jobs", "nodes", "line"),
    [
        ("RUNNING\n" * 12 + "PENDING\n" * 3, NODES, "aurora: 12 jobs run, 3 wait; 5 of 16 GPUs are free"),
        ("RUNNING\nPENDING\n", NODES.splitlines()[2], "aurora: 1 job runs, 1 waits"),
        (
            "",
            NODES.splitlines()[0].replace("=8", "=1").replace("gpu=3", "gpu=1"),
            "aurora: 0 jobs run, 0 wait; 0 of 1 GPU is free",
        ),
        (
            "",
            NODES.splitlines()[0].replace("MIXED", "MIXED+NOT_RESPONDING"),
            "aurora: 0 jobs run, 0 wait; 0 of 8 GPUs are free",
        ),
    ],
)
def test_describe__of_a_queue__counts_jobs_and_free_gpus(
    queue_line: ModuleType, jobs: str, nodes: str, line: str
) -> None:
    assert queue_line.describe("aurora", jobs, nodes) == line


@pytest.mark.parametrize("error", [subprocess.TimeoutExpired("squeue", 20), FileNotFoundError("squeue")])
def test_main__without_an_answer__says_so(
    queue_line: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(_argv: list[str]) -> str:
        raise error

    monkeypatch.setattr(queue_line, "run", fail)
    monkeypatch.setattr(queue_line, "NEW", str(tmp_path / "new"))
    queue_line.main("aurora", str(tmp_path / "motd.d/line"))
    assert (tmp_path / "motd.d/line").read_text() == "aurora: Slurm's controller does not respond\n"
