"""When the directories of jobs may become their own: not under jobs that run."""

import os
from pathlib import Path

import pytest

from tests.unit.test_role_plugins import plugin

LOOK = plugin("modules/slurm_job_container")
WITH, WITHOUT = (
    "ClusterName=a\nJobContainerType=job_container/tmpfs\n",
    "ClusterName=a\n#JobContainerType=job_container/tmpfs\n",
)


@pytest.mark.proves("jobs", "Jobs' own directories wait for running jobs, whose steps would fail.")
@pytest.mark.parametrize(
    ("text", "squeue", "wanted", "use", "note"),
    [
        (None, "exit 1", True, True, ""),
        (WITH, "exit 1", True, True, ""),
        (WITHOUT, "exit 1", False, False, ""),
        (WITHOUT, "exit 0", True, True, ""),
        (WITH, "exit 0", False, False, ""),
        (
            WITHOUT,
            "echo 7; echo 12; echo 7",
            True,
            False,
            "get private directories yet, because jobs are running: 7, 12;",
        ),
        (WITH, "seq 6", False, True, "share the node's directories yet, because jobs are running: 1, 2, 3, 4, 5, ...;"),
        (WITHOUT, "exit 1", True, False, "because slurmctld does not respond"),
        (WITHOUT, None, True, False, "because slurmctld does not respond"),
    ],
)
def test_decide__by_jobs_that_run__keeps_or_changes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str | None,
    squeue: str | None,
    wanted: bool,
    use: bool,
    note: str,
) -> None:
    configuration = tmp_path / "slurm.conf"
    if text is not None:
        configuration.write_text(text)
    if squeue is not None:
        (tmp_path / "squeue").write_text(f"#!/bin/sh\n{squeue}\n")
        (tmp_path / "squeue").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found, told = LOOK.decide(configuration, wanted)
    assert found is use
    assert note in told
    assert bool(note) == bool(told)
