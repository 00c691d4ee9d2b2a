"""The module that exchanges munge's key: what it stages, which staged key it uses, and what its process does when."""

import os
import pwd
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tests.unit.test_node_state  # noqa: F401 - lets the modules of the nodes be found
from tests.unit.test_role_plugins import plugin

MODULE = plugin("modules/munge_key")
OLD, NEW = b"old" * 40, b"new" * 40


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The key and the staged key of a node on which no exchange is under way."""
    key, staged = tmp_path / "munge.key", tmp_path / "munge.key.next"
    monkeypatch.setattr(MODULE, "KEY", key)
    monkeypatch.setattr(MODULE, "STAGED", staged)
    monkeypatch.setattr(MODULE, "wait_for_exchange", lambda: "inactive")
    monkeypatch.setattr(MODULE, "getpwnam", lambda _: pwd.getpwuid(os.getuid()))
    return key, staged


@pytest.mark.parametrize(("has", "staged"), [(None, False), (NEW, False), (OLD, True)])
def test_stage__key_of_the_node__decides(files: tuple[Path, Path], has: bytes | None, staged: bool) -> None:
    key, second = files
    second.write_bytes(b"of an interrupted rotation")
    if has is not None:
        key.write_bytes(has)
    assert MODULE.stage(NEW) is staged
    assert second.exists() is staged
    if staged:
        assert (second.read_bytes(), second.stat().st_mode & 0o777) == (NEW, 0o400)
    assert not key.exists() if has is None else key.read_bytes() == has


def test_schedule__staged_key_is_another__does_nothing(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MODULE, "run", lambda *_: pytest.fail("it was scheduled"))
    assert MODULE.schedule(NEW, 0, []) is False
    files[1].write_bytes(OLD)
    assert MODULE.schedule(NEW, 0, []) is False


def test_wait__key_is_another__is_an_error(files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "run", lambda *_, **__: (0, "os.replace: No space left on device"))
    assert MODULE.wait(NEW) is False  # a node that has no key
    files[0].write_bytes(OLD)
    with pytest.raises(MODULE.NodeError, match=r"was not exchanged.*\n.*No space left"):
        MODULE.wait(NEW)
    files[0].write_bytes(NEW)
    assert MODULE.wait(NEW) is False


SYSTEMCTL = """#!/bin/sh
echo "$(cat {key}) $*" >> {log}
case "$*" in *is-active*) [ {active} = yes ] ;; "restart munge") [ {munge} = well ] ;; esac
"""


@pytest.mark.parametrize(
    ("active", "munge", "expected"),
    [
        (
            "yes",
            "well",
            ["old --quiet is-active slurmctld", "old stop slurmctld", "new restart munge", "new start slurmctld"],
        ),
        ("no", "well", ["old --quiet is-active slurmctld", "new restart munge"]),
        (
            "yes",
            "ill",
            ["old --quiet is-active slurmctld", "old stop slurmctld", "new restart munge", "new start slurmctld"],
        ),
    ],
)
def test_exchange__unit_is_active_or_not__is_left_as_it_was(
    tmp_path: Path, active: str, munge: str, expected: list[str]
) -> None:
    """The process itself, with a systemctl that notes which key is there when it is called."""
    key, staged, log, program = (tmp_path / name for name in ("key", "staged", "log", "systemctl"))
    key.write_text("old")
    staged.write_text("new")
    program.write_text(SYSTEMCTL.format(key=key, log=log, active=active, munge=munge))
    program.chmod(0o755)
    at = int(time.time()) + 1
    argv = [sys.executable, "-c", MODULE.EXCHANGE, str(staged), str(key), str(at), "slurmctld"]
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(argv, env=environment, capture_output=True, check=False, timeout=60)
    assert (done.returncode == 0) is (munge == "well")
    assert time.time() >= at
    assert log.read_text().splitlines() == expected
    assert (key.read_text(), staged.exists()) == ("new", False)
