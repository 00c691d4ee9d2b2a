"""What the prolog makes of the driver's answers, by a library that gives them."""

import json
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from clusterctl.util import paths
from tests.unit.test_role_plugins import plugin

SOURCE = """
int nvmlInit_v2(void) {{ return {init}; }}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **gpu) {{
    *gpu = (void *)(long)uuid[4];
    return uuid[4] == 'x' ? 6 : 0;
}}
int nvmlDeviceGetTemperature(void *gpu, int sensor, unsigned *value) {{ return (long)gpu == 'b' ? 15 : 0; }}
"""


@pytest.fixture
def prolog() -> ModuleType:
    return plugin("../roles/slurm_head/files/gpu_prolog")


def library(folder: Path, init: int = 0) -> str:
    (folder / "nvml.c").write_text(SOURCE.format(init=init))
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", folder / "nvml.so", folder / "nvml.c"], check=True)
    return str(folder / "nvml.so")


@pytest.mark.skipif(not shutil.which("gcc"), reason="the library is compiled here")
@pytest.mark.parametrize(
    ("uuids", "init", "why"),
    [
        (["GPU-a", "GPU-c"], 0, ""),
        (["GPU-a", "GPU-b"], 0, "GPU-b: 15"),  # NVML_ERROR_GPU_IS_LOST
        (["GPU-x"], 0, "GPU-x: 6"),  # NVML_ERROR_NOT_FOUND
        (["GPU-a"], 9, "nvmlInit: 9"),  # NVML_ERROR_DRIVER_NOT_LOADED
    ],
)
def test_missing__by_the_drivers_answers__says_why(
    tmp_path: Path, prolog: ModuleType, uuids: list[str], init: int, why: str
) -> None:
    assert prolog.missing(uuids, library(tmp_path, init)) == why


def test_missing__no_driver__says_why(tmp_path: Path, prolog: ModuleType) -> None:
    assert "no-such" in prolog.missing(["GPU-a"], str(tmp_path / "no-such.so"))


@pytest.mark.parametrize(
    ("given", "why", "told", "ended"),
    [
        (None, "lost", None, 0),
        ({"gpus": [], "skip": []}, "lost", None, 0),
        ({"gpus": [{"uuid": "GPU-a"}], "skip": ["driver"]}, "lost", None, 0),
        ({"gpus": [{"uuid": "GPU-a"}], "skip": []}, "", None, 0),
        ({"gpus": [{"uuid": "GPU-a"}], "skip": []}, "lost", "GPU 0: lost", 1),
        ({"gpus": [{"uuid": "GPU-a"}], "skip": []}, "lost", None, 0),  # the head could not be told
        ({"gpus": [{"uuid": "GPU-a"}], "skip": []}, "lost", "", 0),  # gpu-health finds nothing
    ],
)
def test_main__job_begins__where_nothing_is_found(
    tmp_path: Path,
    prolog: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, object] | None,
    why: str,
    told: str | None,
    ended: int,
) -> None:
    if given:
        (tmp_path / "given").write_text(json.dumps(given))
    (tmp_path / "state").write_text(json.dumps({"told": told}))
    for name, value in {"CONFIGURATION": "given", "STATE": "state"}.items():
        monkeypatch.setattr(prolog, name, str(tmp_path / value))
    monkeypatch.setattr(prolog, "HEALTH", "true")
    monkeypatch.setattr(prolog, "TASK_PROLOG", str(tmp_path / "task-prolog"))
    monkeypatch.setattr(prolog, "missing", lambda uuids: why)
    assert prolog.main() == ended


def test_task_prolog__missing__does_nothing(
    tmp_path: Path, prolog: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is started without a shell, as by Slurm."""
    program = tmp_path / "task-prolog"
    monkeypatch.setattr(prolog, "TASK_PROLOG", str(program))
    prolog.task_prolog()
    assert subprocess.run([program], check=True, capture_output=True).stdout == b""
    assert (program.stat().st_mode & 0o777, [*tmp_path.iterdir()]) == (0o755, [program])
    program.write_text("installed")
    prolog.task_prolog()
    assert program.read_text() == "installed"


def test_task_prolog__that_cannot_be_created__is_told(
    tmp_path: Path, prolog: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Slurm would drain the node for a Prolog that fails."""
    monkeypatch.setattr(prolog, "TASK_PROLOG", str(tmp_path / "none/task-prolog"))
    prolog.task_prolog()
    assert "cannot create" in capsys.readouterr().err


def test_mps__on_a_worker_that_is_not_set_up__lets_the_job_start_and_tells_it(
    tmp_path: Path, prolog: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Slurm would drain the node for a Prolog that fails, and nothing would resume it."""
    monkeypatch.setattr(prolog, "MPS", str(tmp_path / "job-mps"))
    monkeypatch.setattr(prolog, "TASK_PROLOG", str(tmp_path / "task-prolog"))
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "40")
    prolog.task_prolog()
    assert prolog.mps() == 0
    assert "bootstrap it" in capsys.readouterr().err
    shown = subprocess.run([prolog.TASK_PROLOG], check=True, capture_output=True, text=True).stdout
    assert shown.startswith("print MPS is not set up on this worker")


def test_unfit__while_the_check_hangs__ends_in_time(
    tmp_path: Path, prolog: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "health").write_text("#!/bin/sh\nexec sleep 9\n")
    (tmp_path / "health").chmod(0o755)
    monkeypatch.setattr(prolog, "HEALTH", str(tmp_path / "health"))
    monkeypatch.setattr(prolog, "HEALTH_SECONDS", 0.1)
    monkeypatch.setattr(prolog, "STATE", str(tmp_path / "none"))
    started: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen

    def kept(argv: list[str], **options: int) -> subprocess.Popen[bytes]:
        started.append(start(argv, **options))  # type: ignore[call-overload]
        return started[-1]

    monkeypatch.setattr(prolog.subprocess, "Popen", kept)
    assert prolog.unfit() is False
    assert started[0].poll() is None
    started[0].kill()
    started[0].wait()


def test_task_prolog__of_slurm_conf__is_made() -> None:
    """The file of the head and that of the role slurm_worker have the same path."""
    roles = paths.content() / "roles"
    path = plugin("../roles/slurm_head/files/gpu_prolog").TASK_PROLOG
    assert f"\nTaskProlog={path}\n" in (roles / "slurm_head/templates/slurm.conf.j2").read_text()
    assert path in (roles / "slurm_worker/vars/main.yml").read_text()


def test_within__a_call_that_hangs__is_told(prolog: ModuleType) -> None:
    assert prolog.within(0.1, subprocess.call, ["sleep", "2"]) == "the driver does not respond"


def test_program__of_the_head__is_executable_python() -> None:
    assert (paths.content() / "roles/slurm_head/files/gpu_prolog.py").read_text().startswith("#!/usr/bin/python3 -IS\n")
