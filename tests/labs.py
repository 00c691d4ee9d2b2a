"""Names of the labs that tests make: one set for each checkout, so that two clones can be tested side by side."""

import fcntl
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

REPOSITORY = Path(__file__).resolve().parent.parent
PREFIX = f"t{hashlib.sha256(str(REPOSITORY).encode()).hexdigest()[:6]}-"
WARM = "warm"
"""The purpose of the lab that scripts/role keeps from one call to the next."""

_marks: dict[str, IO[str]] = {}  # by name: the open files whose locks mark labs as used by this process


def lab_name(purpose: str) -> str:
    """Return the name of this checkout's test lab for a purpose, and mark it as used until this process ends."""
    name = f"{PREFIX}{purpose}"
    if name not in _marks:
        _marks[name] = _open_mark(name)
        fcntl.flock(_marks[name], fcntl.LOCK_SH)
    return name


def release(name: str) -> None:
    """Mark a test lab as no longer used by this process."""
    if mark := _marks.pop(name, None):
        mark.close()


def abandoned() -> Iterator[str]:
    """Yield the purposes of this checkout's labs and snapshots that no process uses: a killed one left them."""
    for path in sorted({*state_directory().glob(f"{PREFIX}*"), *snapshots_directory().glob(f"{PREFIX}*")}):
        purpose = path.name.removeprefix(PREFIX)
        if purpose != WARM and not _is_used(path.name):
            yield purpose


def _is_used(name: str) -> bool:
    with _open_mark(name) as mark:
        try:
            fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _open_mark(name: str) -> IO[str]:
    directory = state_directory().parent / "in-use"
    directory.mkdir(parents=True, exist_ok=True)
    return (directory / name).open("w")


def process_name() -> str:
    """Return the name of this process of xdist, or `main` where the tests have one process."""
    return os.environ.get("PYTEST_XDIST_WORKER", "main")


def state_directory() -> Path:
    """Return the directory that holds the labs' directories."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "clusterctl" / "labs"


def snapshots_directory() -> Path:
    """Return the directory that holds the snapshots of golden labs."""
    return state_directory().parent / "golden"
