"""One run at a time on a cluster's directory: `.clusterctl/lock`, which also says who holds it.

The lock is `flock(2)`, so the kernel lets go of it whatever becomes of its holder. A run's Ansible inherits the open
file: should clusterctl be killed, the lock stands until Ansible's task under way has ended, and `hold` waits for that.
For administrators at different machines there is one on the head too: headlock.py.
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
    """Who holds the lock. `start` is in UTC, ISO 8601."""

    user: str
    host: str
    pid: int
    start: str
    verb: str

    def __str__(self) -> str:
        return f"clusterctl {self.verb} of {self.user} on {self.host} (process {self.pid}, since {self.start})"

    def is_gone(self) -> bool:
        """Tell whether the process is known to have ended; of another machine's nothing is known."""
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
    """Return what this process, begun now, is to be called by others."""
    return Holder(_user(), socket.gethostname(), os.getpid(), f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", verb)


@contextmanager
def hold(
    directory: Path, verb: str, *, orphan_seconds: float = 600, say: Callable[[str], None] = lambda text: None
) -> Iterator[int]:
    """Hold the cluster's lock; gives the file descriptor that Ansible is to inherit.

    Raises `Locked` at once, naming the holder, while another run is alive. If its clusterctl was killed and only its
    Ansible is left, waits up to `orphan_seconds` for that to end its task, and says so once.
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
    began, said = time.monotonic(), False
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            holder = _read(file)
        orphan = holder is not None and holder.is_gone()
        waited = time.monotonic() - began
        # Who has only just taken the lock may not have written its name yet, or the last one's still stands there.
        if waited >= (orphan_seconds if orphan else 1.0 if holder is None else 0.0):
            left = f"what is left of {holder}" if orphan else str(holder or "another run")
            raise Locked(f"The cluster is locked by {left}.\nWait until it has ended, then give the command again.")
        if orphan and waited > 0.3 and not said:
            say(f"{holder} was killed; waiting for its task under way to end")
            said = True
        time.sleep(0.1)


def _read(file: IO[str]) -> Holder | None:
    file.seek(0)
    return holder_of(file.read(4096))


def holder_of(said: str) -> Holder | None:
    """Read a holder from what a lock's file says; None where that is not one."""
    try:
        data = json.loads(said)
        text = {key: str(data[key])[:128] for key in ("user", "host", "start", "verb")}
        return Holder(pid=int(data["pid"]), **{k: strip_controls(v, keep="") for k, v in text.items()})
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # an id without a name
        return f"uid {os.getuid()}"
