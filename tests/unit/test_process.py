"""Ansible's process, started before its command is known: real processes of this machine."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from clusterctl.ansible import process, runner
from clusterctl.ansible.run_directory import RunDirectory
from clusterctl.run.phases import Run

from .test_background import eventually

INVENTORY = "all: {hosts: {here: {ansible_connection: local}}}"
PLAYBOOK = """
- {name: Say it, hosts: all, gather_facts: false, tasks: [{name: Who, ansible.builtin.command: "sh -c 'echo $PPID'"}]}
"""
STARTS = """
import sys
from pathlib import Path
from clusterctl.ansible import process
started = process.Process(Path(sys.argv[1]))
print(started.child.pid, started.private, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    (tmp_path / "inventory.yaml").write_text(INVENTORY)
    (tmp_path / "play.yml").write_text(PLAYBOOK)
    return tmp_path / "inventory.yaml"


def test_process__that_waits__runs_the_command(inventory: Path) -> None:
    waiting = process.Process(inventory)
    kept = RunDirectory.create(inventory.parent, "bootstrap")
    run = runner.Runner(runner.Command(inventory.with_name("play.yml"), inventory), kept, prepared=waiting)
    for _ in run.watch():
        pass
    assert waiting.child.returncode == 0
    assert "here                       : ok=1" in kept.log.read_text()
    assert '"event": "end"' in kept.events.read_text()
    assert not waiting.private.exists()


@pytest.mark.parametrize(("task", "code"), [("ansible.builtin.fail: {}", 2), ("ansible.builtin.unknown: {}", 4)])
def test_process__whose_run_fails__has_ansibles_code(inventory: Path, task: str, code: int) -> None:
    playbook = inventory.with_name("play.yml")
    playbook.write_text(f"- hosts: all\n  gather_facts: false\n  tasks:\n    - {{{task}}}\n")
    waiting = process.Process(inventory)
    kept = RunDirectory.create(inventory.parent, "bootstrap")
    for _ in runner.Runner(runner.Command(playbook, inventory), kept, prepared=waiting).watch():
        pass
    assert waiting.child.returncode == code, kept.log.read_text()
    assert "ERROR" in kept.log.read_text() or "FAILED" in kept.log.read_text()


def test_process__where_the_program_is_elsewhere__runs_the_command(
    inventory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by `pip install --user`; the printed command then calls the module."""
    monkeypatch.setattr(runner, "_ansible_playbook", lambda: [sys.executable, "-P", "-m", "ansible", "playbook"])
    command = runner.Command(inventory.with_name("play.yml"), inventory)
    kept = RunDirectory.create(inventory.parent, "bootstrap")
    run = runner.Runner(command, kept)
    for _ in run.watch():
        pass
    assert "here                       : ok=1" in kept.log.read_text()
    assert f"{sys.executable} -P -m ansible playbook -i {inventory}" in str(command)


def test_process__waits_without_ps__is_ended(inventory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = process.Process(inventory)
    monkeypatch.setenv("PATH", "/nowhere")
    waiting.close()
    assert waiting.child.returncode == -signal.SIGKILL
    assert not waiting.private.exists()


@pytest.mark.parametrize("why", ["killed", "old", "ready"])
def test_run__process_that_is_gone_or_old__is_not_taken(
    inventory: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    waiting = process.Process(inventory)
    run = Run(cast(Any, None), cast(Any, None), ansible=waiting)
    if why == "killed":
        waiting.child.kill()
        waiting.child.wait()
    if why == "old":
        monkeypatch.setattr(process, "AGE_S", 0)
    assert run.take_ansible() is (waiting if why == "ready" else None)
    assert run.ansible is None
    assert waiting.private.exists() is (why == "ready")
    if why == "ready":
        waiting.close()


def test_process__without_a_command__is_ended(inventory: Path) -> None:
    waiting = process.Process(inventory)
    waiting.close()
    assert waiting.child.returncode == -signal.SIGKILL
    assert not waiting.private.exists()


@pytest.mark.proves("faults", "Ansible that waits for its command ends with a clusterctl that is killed.")
def test_process__that_waits__ends_with_its_parent(inventory: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", STARTS, str(inventory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout
    pid, private = parent.stdout.readline().split()
    command = Path("/proc", pid, "cmdline")
    assert str(inventory) in command.read_text()
    parent.kill()
    parent.communicate()
    eventually(lambda: not command.exists() or not command.read_text())
    process.Process(inventory).close()  # a later run sweeps up
    assert not Path(private).exists()


def test_process__with_ansibles_variables__has_none_of_them(inventory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANSIBLE_CONFIG", "/nowhere")
    monkeypatch.setenv("ANSIBLE_DEBUG", "1")
    waiting = process.Process(inventory)
    try:
        words = Path("/proc", str(waiting.child.pid), "environ").read_text().split("\0")
    finally:
        waiting.close()
    found = {word.partition("=")[0] for word in words if word.startswith("ANSIBLE_")}
    assert found == {"ANSIBLE_CONFIG", "ANSIBLE_HOME", "ANSIBLE_SSH_CONTROL_PATH_DIR", "ANSIBLE_SSH_EXECUTABLE"}
    assert "ANSIBLE_CONFIG=/nowhere" not in words
    assert os.environ["ANSIBLE_CONFIG"] == "/nowhere"
