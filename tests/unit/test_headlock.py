"""The lock on the head: what of a cluster's directory the head is told, and that a run's end gives the lock back."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterctl.nodes.remote import Access
from clusterctl.run import headlock, lock
from clusterctl.util.errors import InputError

from .ssh_server import host


def test_the_name_of_a_directory_is_made_once_and_for_its_owner(tmp_path: Path) -> None:
    name = headlock.controller_of(tmp_path)
    assert len(name) == 32
    assert headlock.controller_of(tmp_path) == name
    assert (tmp_path / "id").stat().st_mode & 0o777 == 0o600


@pytest.mark.proves("faults", "A copy of a directory or another machine counts as another controller.")
def test_a_copy_of_a_directory_has_a_name_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the head would let each of them take over while the other is at work."""
    state = tmp_path / "one"
    state.mkdir()
    name = headlock.controller_of(state)
    copy = shutil.copytree(state, tmp_path / "two")
    assert headlock.controller_of(copy) != name
    monkeypatch.setattr("socket.gethostname", lambda: "another")
    assert headlock.controller_of(state) != name


def _key(path: Path) -> None:
    (path.parent.parent / "id_ed25519").write_text("-----BEGIN OPENSSH PRIVATE KEY-----")
    path.symlink_to(path.parent.parent / "id_ed25519")


@pytest.mark.proves("untrusted", "A link in place of the run's ID sends no file to the head.")
@pytest.mark.parametrize(
    ("make", "told"),
    [
        (_key, "is a link out of"),
        (os.mkfifo, "is not a regular file"),
        (Path.mkdir, "is a directory"),
        (lambda path: path.write_text("-----BEGIN OPENSSH PRIVATE KEY-----"), "is damaged"),
        (lambda path: path.write_text(""), "is damaged"),
    ],
)
def test_no_other_file_of_the_controller_is_told_to_the_head(tmp_path: Path, make: Any, told: str) -> None:
    """The head's users see it among the arguments of a process, and a directory may come from somebody else."""
    state = tmp_path / ".clusterctl"
    state.mkdir()
    make(state / "id")
    with pytest.raises(InputError, match=told) as refused:
        headlock.controller_of(state)
    assert "PRIVATE" not in str(refused.value)


class _Channel:
    """A channel that keeps what it was told."""

    closed = False

    def __init__(self) -> None:
        self.said, self.is_broken = b"", False
        self.status_event = threading.Event()
        self.status_event.set()

    def sendall(self, data: bytes) -> None:
        if self.is_broken:
            raise OSError("broken pipe")
        self.said += data

    def exit_status_ready(self) -> bool:
        return self.is_broken

    def shutdown_write(self) -> None:
        pass


def test_a_lock_that_comes_back_when_the_run_is_over_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection broke, and the one that replaces it stands only after `release`."""
    monkeypatch.setattr(headlock, "HEARTBEAT", 0.01)
    kept = headlock.HeadLock(host(22), Access(tmp_path), lock.this_run("verify"), "x")
    channel, begun, go_on = _Channel(), threading.Event(), threading.Event()

    def take() -> None:
        begun.set()
        assert go_on.wait(5)
        kept._channel = channel  # type: ignore[assignment]

    monkeypatch.setattr(kept, "take", take)
    beat = threading.Thread(target=kept.keep, daemon=True)
    beat.start()
    assert begun.wait(5)
    kept.release()
    go_on.set()
    beat.join(5)
    assert not beat.is_alive()
    assert channel.said == b"done\n"


@pytest.mark.proves("faults", "A run keeps the lock on the head for as long as it lasts.")
def test_keep__while_the_run_lasts__sends_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headlock, "HEARTBEAT", 0.01)
    kept = headlock.HeadLock(host(22), Access(tmp_path), lock.this_run("verify"), "x")
    channel = _Channel()
    kept._channel = channel  # type: ignore[assignment]
    beat = threading.Thread(target=kept.keep, daemon=True)
    beat.start()
    deadline = time.monotonic() + 5
    while channel.said.count(b"here\n") < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    kept.release()
    beat.join(5)
    assert channel.said.startswith(b"here\nhere\nhere\n")
    assert channel.said.endswith(b"done\n")


def test_keep__after_the_connection_broke__knows_that_another_run_may_have_had_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while it is not noticed yet, as by a process that was stopped for a while."""
    monkeypatch.setattr(headlock, "HEARTBEAT", 0.01)
    kept, taken = headlock.HeadLock(host(22), Access(tmp_path), lock.this_run("verify"), "x"), threading.Event()
    channel: Any = _Channel()
    another: Any = _Channel()
    kept._channel = channel
    assert kept.is_unbroken
    channel.is_broken = True
    assert not kept.is_unbroken

    def take() -> None:
        kept._channel = another
        taken.set()

    monkeypatch.setattr(kept, "take", take)
    beat = threading.Thread(target=kept.keep, daemon=True)
    beat.start()
    assert taken.wait(5)
    kept.release()
    beat.join(5)
    kept._channel = another
    assert (kept.lost, kept.is_unbroken) == ("", False)


@pytest.mark.proves("faults", "Kubernetes is locked on more than half of its heads, so two runs share one.")
@pytest.mark.parametrize(
    ("failing", "missing", "errors"),
    [
        ([], False, []),
        (["k1"], False, ["k1"]),
        (["k1", "k3"], True, ["k1", "k3"]),
    ],
)
def test_hold__several_heads__needs_more_than_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: list[str], missing: bool, errors: list[str]
) -> None:
    given_back: list[str] = []

    def take(one: headlock.HeadLock) -> None:
        if one.name in failing:
            raise headlock._failed("no answer")

    monkeypatch.setattr(headlock.HeadLock, "take", take)
    monkeypatch.setattr(headlock.HeadLock, "keep", lambda one: None)
    monkeypatch.setattr(headlock.HeadLock, "release", lambda one: given_back.append(one.name))
    heads = [replace(host(22), name=name, groups=frozenset({"kubernetes_head"})) for name in ("k1", "k2", "k3")]
    with headlock.hold(heads, Access(tmp_path), lock.this_run("verify"), tmp_path) as held:
        assert (held.missing is not None, list(held.errors), held.lost) == (missing, errors, "")
        for one in held.locks:
            one._channel = None if one.missing else _Channel()  # type: ignore[assignment]
        assert held.is_unbroken is not missing
        held.locks[1].lost = "another run"
        assert held.is_unbroken is (not failing)
        assert held.lost == ("another run" if failing else "")
    assert sorted(given_back) == [name for name in ("k1", "k2", "k3") if name not in failing]


EXPIRY = 2.0


def test_program_on_the_head__hears_nothing_more__lets_go(tmp_path: Path) -> None:
    program = headlock._PROGRAM.replace("/run/clusterctl", str(tmp_path))
    argv = [sys.executable, "-I", "-c", program, json.dumps({"controller": "x"}), str(EXPIRY)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as keeper:
        assert keeper.stdin and keeper.stdout
        assert keeper.stdout.readline() == b"clusterctl-lock: ours\n"
        begun = time.monotonic()
        while time.monotonic() < begun + EXPIRY + 0.5:
            keeper.stdin.write(b"here\n")
            keeper.stdin.flush()
            time.sleep(0.1)
        with (tmp_path / "cluster.lock").open() as other:
            with pytest.raises(BlockingIOError):
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            assert keeper.wait(30) == 0
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
