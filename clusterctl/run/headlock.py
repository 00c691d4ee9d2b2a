"""The cluster's lock on its head, against runs from other machines.

A small program on the head holds flock(2) on a file in /run/clusterctl. It runs over its own SSH connection and reads a
heartbeat line every few seconds. Without a heartbeat it keeps the lock for EXPIRY more seconds of the head's clock,
because tasks of a disconnected run may still be running. Then it releases the lock. A later run from the same
controller and directory, which holds that directory's lock too, takes the lock over immediately.

A cluster of Kubernetes with several heads is locked on all that respond, if these are more than half: so two runs have
a head in common, also if each reaches others. Of Slurm's two heads one is enough: two runs exclude each other unless
each reaches only the head that the other one does not.
"""

import hashlib
import json
import random
import re
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import paramiko

from clusterctl.inventory.model import Host
from clusterctl.nodes.remote import Access, connect
from clusterctl.nodes.session import ContactError, Failure, Session
from clusterctl.run.lock import Holder, holder_of
from clusterctl.util import files
from clusterctl.util.errors import InputError, Locked, Problem
from clusterctl.util.text import printable

HEARTBEAT = 5.0
EXPIRY = 60.0
_SECONDS = 10.0

_PROGRAM = r"""
import fcntl, json, os, select, signal, sys, time
me, expiry = json.loads(sys.argv[1]), float(sys.argv[2])
for number in (signal.SIGHUP, signal.SIGPIPE):
    signal.signal(number, signal.SIG_IGN)
os.makedirs("/run/clusterctl", mode=0o700, exist_ok=True)
lock = os.open("/run/clusterctl/cluster.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
patience = time.monotonic() + 3
while True:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        break
    except BlockingIOError:
        try:
            holder = json.loads(os.pread(lock, 4096, 0))
        except ValueError:
            holder = {}
        if holder.get("controller") == me["controller"]:
            os.kill(holder["keeper"], signal.SIGTERM)
        elif holder or time.monotonic() > patience:
            print("clusterctl-lock: held " + json.dumps(holder), flush=True)
            sys.exit(0)
    if time.monotonic() > patience + 3:
        sys.exit("the lock of an earlier run cannot be taken over")
    time.sleep(0.05)
os.ftruncate(lock, 0)
os.pwrite(lock, json.dumps(dict(me, keeper=os.getpid())).encode(), 0)
print("clusterctl-lock: ours", flush=True)
heard = time.monotonic()
listening = [0]
while time.monotonic() < heard + expiry:
    if not select.select(listening, [], [], max(0, heard + expiry - time.monotonic()))[0]:
        continue
    data = os.read(0, 4096)
    if b"done" in data:
        break
    if data:
        heard = time.monotonic()
    else:
        listening = []
os.ftruncate(lock, 0)
"""
_MARK = "clusterctl-lock: "


def controller_of(state: Path) -> str:
    """Return the identifier of this controller and directory on the head, from a random number that is created once.

    A copy of the directory, on this or another machine, has another identifier. Otherwise both would take over each
    other's lock. Every user of the head can read it.
    Raises InputError if the file is not valid: the directory may come from another person, and a link in it could
    expose another file to the head.
    """
    path, hint = state / "id", "delete it; the next run creates it again"
    with suppress(FileExistsError):
        files.write_atomically(path, f"{random.SystemRandom().getrandbits(128):032x}\n".encode())
    try:
        found = files.read(path, inside=state).strip()
    except files.UnfitError as error:
        raise InputError([Problem(None, str(path), str(error), hint)]) from None
    if not re.fullmatch(rb"[0-9a-f]{32}", found):
        raise InputError([Problem(None, str(path), "is damaged, expected 32 digits", hint)])
    machine = b""
    with suppress(OSError):
        machine = Path("/etc/machine-id").read_bytes()
    where = (found, machine, socket.gethostname().encode(), bytes(state.resolve()))
    return hashlib.sha256(b"\0".join(where)).hexdigest()[:32]


class HeadLock:
    """The lock on a head. `lost` is the message about another run that took it after heartbeats failed.

    `missing` is the contact error for which the lock could not be taken; preflight reports the details.
    """

    def __init__(self, head: Host, access: Access, me: Holder, controller: str) -> None:
        self._head, self._access, self.name = head, access, head.name
        self._me = json.dumps({**asdict(me), "controller": controller})
        self._over = threading.Event()
        self._session: Session | None = None
        self._channel: paramiko.Channel | None = None
        self.lost = ""
        self.missing: ContactError | None = None
        self._was_taken_again = False

    @property
    def is_unbroken(self) -> bool:
        """Whether no other run can have had the lock since it was taken, as far as is known here."""
        channel = self._channel
        has_it = channel is not None and not channel.closed and not channel.exit_status_ready()
        return has_it and not (self.lost or self._was_taken_again)

    def take(self) -> None:
        """Take the lock. Raises Locked with its holder, ContactError if the head cannot be reached."""
        self._close()
        session = connect(self._head, self._access)
        try:
            channel = session.transport.open_session(timeout=_SECONDS)
            deadline = time.monotonic() + _SECONDS
            program = ["/usr/bin/python3", "-I", "-c", _PROGRAM, self._me, str(EXPIRY)]
            output = session.start(channel, program, root=True, deadline=deadline)
            answer = self._read_answer(channel, output, deadline)
        except (paramiko.SSHException, OSError, EOFError) as error:
            session.close()
            raise _failed(str(error) or f"no answer within {_SECONDS:.0f} s") from None
        except BaseException:
            session.close()
            raise
        if answer.startswith("held"):
            session.close()
            holder = holder_of(answer.removeprefix("held")) or "another run"
            raise Locked(f"The cluster is locked by {holder}.\nWait until it has ended, then repeat the command.")
        self._session, self._channel = session, channel

    def _read_answer(self, channel: paramiko.Channel, output: bytes, deadline: float) -> str:
        while b"\n" not in output:
            channel.settimeout(max(0.1, deadline - time.monotonic()))
            chunk = channel.recv(1 << 12)
            output += chunk
            if not chunk or len(output) > 1 << 14:
                stderr = channel.recv_stderr(1 << 12).decode(errors="replace").strip().splitlines()
                raise _failed(stderr[-1] if stderr else "no answer")
        line = output.partition(b"\n")[0].decode(errors="replace")
        if not line.startswith(_MARK):
            raise _failed(line)
        return line.removeprefix(_MARK)

    def keep(self) -> None:
        """Send heartbeats to the head until `release`; reconnect if the connection breaks."""
        while not self._over.wait(HEARTBEAT):
            try:
                if self._channel is None:
                    self._was_taken_again = True
                    self.take()
                    self.lost = ""
                    if self._over.is_set():  # `release` ran before this lock was taken and could not release it
                        self._give_back()
                else:
                    self._channel.sendall(b"here\n")
            except Locked as error:
                self.lost = str(error)
            except (ContactError, paramiko.SSHException, OSError, EOFError):
                self._close()  # the head may be rebooting

    def release(self) -> None:
        """Release the lock."""
        self._over.set()
        self._give_back()

    def _give_back(self) -> None:
        if channel := self._channel:  # `keep` may set it to None at any time
            with suppress(paramiko.SSHException, OSError, EOFError):
                channel.sendall(b"done\n")
                channel.shutdown_write()
                channel.status_event.wait(1.0)  # or the next run may find the lock still held
        self._close()

    def _close(self) -> None:
        session, self._session, self._channel = self._session, None, None
        if session:
            session.close()


def _failed(found: str) -> ContactError:
    message = f"cannot lock the cluster against other runs: {printable(found, 200)}"
    return ContactError(Failure.REPLY, message, "see /run/clusterctl there")


@dataclass(frozen=True)
class ClusterLock:
    """The locks on the heads of a cluster, one or several; `needed` is how many of them a run must have."""

    locks: tuple[HeadLock, ...]
    needed: int

    @property
    def lost(self) -> str:
        """The message about another run, if it has taken so many locks that too few are left."""
        gone = [one for one in self.locks if one.lost or one.missing]
        return next((one.lost for one in gone if one.lost), "") if len(self.locks) - len(gone) < self.needed else ""

    @property
    def is_unbroken(self) -> bool:
        """Whether no other run can have had more than half of the locks since they were taken."""
        return 2 * sum(one.is_unbroken for one in self.locks) > len(self.locks)

    @property
    def missing(self) -> ContactError | None:
        """The contact error of a head, unless enough heads are locked."""
        failed = [one.missing for one in self.locks if one.missing]
        return failed[0] if len(self.locks) - len(failed) < self.needed else None

    @property
    def errors(self) -> dict[str, ContactError]:
        """The contact errors by head."""
        return {one.name: one.missing for one in self.locks if one.missing}


@contextmanager
def hold(heads: Sequence[Host], access: Access, me: Holder, state: Path) -> Iterator[ClusterLock]:
    """Hold the lock on the heads of a scheduler; on too many contact errors, yield with `missing` set.

    Raises Locked immediately while another run has the lock.
    """
    kind = heads[0].scheduler
    needed = len(heads) // 2 + 1 if kind and kind.has_quorum else 1
    with ExitStack() as stack:
        yield ClusterLock(tuple(stack.enter_context(_held(head, access, me, state)) for head in heads), needed)


@contextmanager
def _held(head: Host, access: Access, me: Holder, state: Path) -> Iterator[HeadLock]:
    lock = HeadLock(head, access, me, controller_of(state))
    try:
        lock.take()
    except ContactError as error:
        lock.missing = error
        yield lock
        return
    beat = threading.Thread(target=lock.keep, daemon=True)
    beat.start()
    try:
        yield lock
    finally:
        lock.release()
        beat.join(2)  # the thread may be taking the lock again
