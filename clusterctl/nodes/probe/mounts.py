"""Whether directories respond and have what is declared: a file server that is down blocks each process that looks."""

import fcntl
import glob
import hashlib
import os
import re
import select
import time
from typing import Dict, List, Optional, Sequence, Tuple

from clusterctl.nodes.probe.common import FORMER, HIDES, HUNG, MAX_MOUNTS, NOT_MOUNTED, OTHER, read

MOUNT_SECONDS = 5
_LOCKS = "/run/clusterctl"
_TABLE = "/proc/self/mounts"
_UNITS = "/etc/systemd/system"
_MARK = "# Of role nfs_client"
_NFS = ("nfs", "nfs4")
_MAX_NAMES = 3  # of files


def mounts(wanted: Dict[str, Sequence[str]], table: str = _TABLE, locks: str = _LOCKS) -> Dict[str, str]:
    """Return the state of each directory of `wanted`, which has its source and type; no source: whatever is there.

    The state is empty if it responds, HUNG, NOT_MOUNTED, the error, or one with names (see common.py).

    A process in the kernel cannot be killed, so a child looks at each one, and is left alone if it does not end in
    time. It keeps a lock, so that the next probe does not leave another one.
    """
    until = time.monotonic() + MOUNT_SECONDS
    children = [(path, _look(path, wanted[path], table, until, locks)) for path in sorted(wanted)[:MAX_MOUNTS]]
    return {path: _answer(reader, until) for path, reader in children}


def mounted(lines: List[str], path: str) -> Optional[Tuple[str, str]]:
    """Return source and type of what is mounted at a path, by lines of /proc/self/mounts; None if nothing is."""
    words = [line.split() for line in lines]
    found = [(_plain(one[0]), one[2]) for one in words if one[2:] and _plain(one[1]) == path]
    return found[-1] if found else None


def _plain(word: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found.group(1), 8)), word)


def unlike(found: Tuple[str, str], wanted: Sequence[str], is_ours: bool) -> str:
    """Return what is wrong with a mount: empty, OTHER or FORMER.

    `is_ours`: role nfs_client has a unit for it, so another source is that of before a change. Other types than NFS
    are compared only with local disks: their programs may mount with another type, and write the source otherwise.
    """
    kind = found[1][5:] if found[1].startswith("fuse.") else found[1]
    if wanted[1] not in _NFS:
        return OTHER if found[0].startswith("/dev/") and kind != wanted[1] and wanted[0][:1] != "/" else ""
    if kind not in _NFS:
        return OTHER
    if found[0].rstrip("/") == wanted[0].rstrip("/"):
        return ""
    return FORMER if is_ours else OTHER


def _has_unit(path: str) -> bool:
    texts = [read(name).splitlines() for name in glob.glob(os.path.join(_UNITS, "*.mount"))]
    return any(_MARK in lines and "Where=" + path in lines for lines in texts)


def _state(path: str, wanted: Sequence[str], table: str) -> str:
    """Return the state of a directory that responds. Raises OSError."""
    os.statvfs(path)
    os.stat(path)
    found = mounted(read(table).splitlines(), path)
    if not wanted[0]:
        return ""
    if found:
        what = unlike(found, wanted, _has_unit(path))
        return what and what + found[0]
    names = sorted(os.listdir(path))[:_MAX_NAMES]
    return HIDES + ", ".join(ascii(name)[1:-1][:60] for name in names) if names else NOT_MOUNTED


def _look(path: str, wanted: Sequence[str], table: str, until: float, locks: str) -> Optional[int]:
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
        _answer_and_exit(path, wanted, table, writer)
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


def _answer_and_exit(path: str, wanted: Sequence[str], table: str, writer: int) -> None:
    """Look at a directory, and write a line with its state or the error. Nothing of the connection stays open."""
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
        os.setsid()
        answer = _state(path, wanted, table)
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
