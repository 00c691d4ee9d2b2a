"""Whether directories respond: a file server that is down blocks each process that looks at what it exports."""

import fcntl
import hashlib
import os
import re
import select
import time
from typing import Dict, List, Optional

from clusterctl.nodes.probe.common import HUNG, MAX_MOUNTS, NOT_MOUNTED, read

MOUNT_SECONDS = 5
_LOCKS = "/run/clusterctl"


def mounts(paths: List[str], mounted: str = "/proc/self/mounts", locks: str = _LOCKS) -> Dict[str, str]:
    """Return the state of each directory: empty if it responds, HUNG, NOT_MOUNTED, or the error.

    A process in the kernel cannot be killed, so a child looks at each one, and is left alone if it does not end in
    time. It keeps a lock, so that the next probe does not leave another one.
    """
    until = time.monotonic() + MOUNT_SECONDS
    lines = [line.split() for line in read(mounted).splitlines()]
    targets = {
        re.sub(r"\\([0-7]{3})", lambda found: chr(int(found.group(1), 8)), line[1]) for line in lines if line[1:]
    }
    children = [(path, _look(path, until, locks)) for path in paths[:MAX_MOUNTS]]
    states = {path: _answer(reader, until) for path, reader in children}
    return {path: state if state or path in targets else NOT_MOUNTED for path, state in states.items()}


def _look(path: str, until: float, locks: str) -> Optional[int]:
    """Start a child that looks at a directory; return where it answers, None if an earlier one still hangs."""
    lock = _lock(path, locks)
    while lock is not None:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError:
            if time.monotonic() > until:
                os.close(lock)
                return None
            time.sleep(0.1)
    reader, writer = os.pipe()
    if not os.fork():
        _answer_and_exit(path, writer)
    os.close(writer)
    if lock is not None:
        os.close(lock)  # the child keeps it
    return reader


def _lock(path: str, locks: str) -> Optional[int]:
    """Return an open file for the lock of a directory; None without root's rights."""
    try:
        os.makedirs(locks, mode=0o700, exist_ok=True)
        name = "mount-" + hashlib.sha256(path.encode()).hexdigest()[:16]
        return os.open(os.path.join(locks, name), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError:
        return None


def _answer_and_exit(path: str, writer: int) -> None:
    """Look at a directory, and write an empty line or the error. Nothing of the connection stays open."""
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
        os.setsid()
        os.statvfs(path)
        os.stat(path)
        answer = ""
    except OSError as error:
        answer = os.strerror(error.errno or 0)
    try:
        os.write(writer, answer.encode() + b"\n")
    finally:
        os._exit(0)


def _answer(reader: Optional[int], until: float) -> str:
    if reader is None:
        return HUNG
    ready = select.select([reader], [], [], max(until - time.monotonic(), 0))[0]
    answer = os.read(reader, 1 << 10).decode("utf-8", "replace").strip() if ready else HUNG
    os.close(reader)
    return answer


def responding(paths: List[str], states: Dict[str, str]) -> List[str]:
    """Return the paths that are not below a directory that does not respond."""
    hung = tuple(path + "/" for path, state in states.items() if state == HUNG)
    return [path for path in paths if not (path + "/").startswith(hung)]
