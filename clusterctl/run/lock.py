"""The lock of a cluster's directory: `.clusterctl/lock`, which also contains its holder.

The lock is `flock(2)`, so the kernel releases it when its holder ends. Ansible inherits the open file: if clusterctl is
killed, the lock is held until Ansible's running task has ended, and `hold` waits for that. headlock.py has the lock
against runs from other machines.
"""

import errno
import fcntl
import getpass
import json
import os
import socket
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from clusterctl.util.errors import Locked
from clusterctl.util.text import strip_controls


@dataclass(frozen=True)
class Holder:
    """The holder of the lock. `start` is in UTC, ISO 8601."""

    user: str
    host: str
    pid: int
    start: str
    verb: str

    def __str__(self) -> str:
        return f"clusterctl {self.verb} of {self.user} on {self.host} (process {self.pid}, since {self.start})"

    def is_gone(self) -> bool:
        """Return whether the process is known to have ended; always false for another machine's process."""
        if self.host != socket.gethostname():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass
        return False


def this_run(verb: str) -> Holder:
    """Return this process as a holder that starts now."""
    return Holder(_user(), socket.gethostname(), os.getpid(), f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", verb)


@contextmanager
def hold(
    directory: Path, verb: str, *, orphan_seconds: float = 600, say: Callable[[str], None] = lambda text: None
) -> Iterator[int]:
    """Hold the cluster's lock; yield the file descriptor that Ansible inherits.

    Raises `Locked` with the holder immediately while another run is alive. If its clusterctl was killed and only its
    Ansible is left, waits up to `orphan_seconds` until its task has ended, and reports that once.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = directory / "lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    with os.fdopen(descriptor, "r+", encoding="utf-8", errors="replace") as file:
        _take(file, orphan_seconds, say)
        me = this_run(verb)
        file.seek(0)
        file.truncate()
        file.write(json.dumps(asdict(me)))
        file.flush()
        # The file stays afterwards: removing it would let two runs hold locks on two files of one name.
        yield descriptor


def _take(file: IO[str], orphan_seconds: float, say: Callable[[str], None]) -> None:
    began, reported = time.monotonic(), False
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            holder = _read(file)
        orphan = holder is not None and holder.is_gone()
        waited = time.monotonic() - began
        # A holder that has just taken the lock may not have written the file yet: it is empty or has the last holder.
        if waited >= (orphan_seconds if orphan else 1.0 if holder is None else 0.0):
            owner = f"the remaining processes of {holder}" if orphan else str(holder or "another run")
            raise Locked(f"The cluster is locked by {owner}.\nWait until it has ended, then repeat the command.")
        if orphan and waited > 0.3 and not reported:
            say(f"{holder} was killed; waiting for its running task to end")
            reported = True
        time.sleep(0.1)


def _read(file: IO[str]) -> Holder | None:
    file.seek(0)
    return holder_of(file.read(4096))


def holder_of(content: str) -> Holder | None:
    """Parse the content of a lock file; return None if it is invalid."""
    try:
        data = json.loads(content)
        text = {key: str(data[key])[:128] for key in ("user", "host", "start", "verb")}
        return Holder(pid=int(data["pid"]), **{k: strip_controls(v, keep="") for k, v in text.items()})
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the user id has no name
        return f"uid {os.getuid()}"
