"""The lock: one run at a time, and never one that nobody holds."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from clusterctl.run import lock
from clusterctl.util.errors import Locked

# Holds the lock until its standard input ends; `spawn` leaves behind a child that has inherited it, as Ansible does.
HOLD = """
import subprocess, sys
from pathlib import Path
from clusterctl.run import lock
with lock.hold(Path(sys.argv[1]), "bootstrap") as descriptor:
    if "spawn" in sys.argv:
        subprocess.Popen(["cat"], pass_fds=[descriptor], stdin=0)
    print("held", flush=True)
    sys.stdin.read() if "spawn" not in sys.argv else sys.stdout.flush() or __import__("time").sleep(600)
"""


def holder(directory: Path, *arguments: str) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(directory), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert process.stdout.readline() == "held\n"
    return process


def end(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.communicate()


@pytest.mark.proves("faults", "A second run is refused with user, host, process and start of the first.")
def test_a_second_run_is_refused_and_told_who_holds_the_lock(tmp_path: Path) -> None:
    process = holder(tmp_path)
    try:
        with pytest.raises(Locked) as refused, lock.hold(tmp_path, "bootstrap"):
            pass
    finally:
        end(process)
    told = json.loads((tmp_path / "lock").read_text())
    for part in (told["user"], told["host"], str(process.pid), told["start"], "bootstrap"):
        assert part in str(refused.value)
    assert refused.value.exit_code == 6


@pytest.mark.proves("faults", "The lock of a killed run is free.")
def test_the_lock_of_a_killed_run_is_free(tmp_path: Path) -> None:
    end(holder(tmp_path))
    with lock.hold(tmp_path, "verify"):
        assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()


def test_what_is_left_of_a_killed_run_is_waited_for(tmp_path: Path) -> None:
    process = holder(tmp_path, "spawn")
    process.send_signal(signal.SIGKILL)
    process.wait()
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        assert process.stdin
        process.stdin.close()  # and so its child comes to an end

    with lock.hold(tmp_path, "bootstrap", say=say):
        pass
    assert len(said) == 1
    assert f"process {process.pid}" in said[0]


def test_the_wait_for_what_is_left_has_an_end(tmp_path: Path) -> None:
    process = holder(tmp_path, "spawn")
    process.send_signal(signal.SIGKILL)
    process.wait()
    try:
        with (
            pytest.raises(Locked, match="the remaining processes of"),
            lock.hold(tmp_path, "bootstrap", orphan_seconds=0.2),
        ):
            pass
    finally:
        process.communicate()


def test_an_unreadable_lock_file_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "lock").write_bytes(b"\xff\x00 not JSON")
    with lock.hold(tmp_path, "bootstrap"):
        pass


def test_the_files_are_private_under_any_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with lock.hold(tmp_path / "state", "bootstrap"):
            pass
    finally:
        os.umask(before)
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "state/lock").stat().st_mode & 0o777 == 0o600


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="lock"), lock.hold(tmp_path, "bootstrap"):
        pass
    assert not (tmp_path / "elsewhere").exists()


def test_a_holder_shows_no_control_characters(tmp_path: Path) -> None:
    process = holder(tmp_path)
    try:
        data = json.loads((tmp_path / "lock").read_text())
        (tmp_path / "lock").write_text(json.dumps(data | {"user": "eve\x1b[2Jil\n"}))
        with pytest.raises(Locked, match=r"eve\[2Jil on"), lock.hold(tmp_path, "bootstrap"):
            pass
    finally:
        end(process)


def test_a_lock_that_is_no_file_is_an_error_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "lock")
    with pytest.raises(OSError, match="not a regular file"), lock.hold(tmp_path, "verify"):
        pass
