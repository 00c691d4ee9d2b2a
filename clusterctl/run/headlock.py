"""The cluster's lock on its head, for administrators at different machines.

A small program on the head, run over a connection of its own, holds flock(2) on a file in /run/clusterctl as long as it
hears from us: a line every few seconds. Where it hears nothing it keeps the lock for EXPIRY seconds more by the
head's own clock, since tasks of a run that was cut off may still go on, and then lets go. A later run of the same
controller's directory, which has the lock there too, takes it over at once.
"""

import hashlib
import json
import random
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
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
    said = os.read(0, 4096)
    if b"done" in said:
        break
    if said:
        heard = time.monotonic()
    else:
        listening = []
os.ftruncate(lock, 0)
"""
_MARK = "clusterctl-lock: "


def controller_of(state: Path) -> str:
    """Return the name by which the head knows this controller's directory: a random one, made once.

    A copy of the directory, here or on another machine, has another name, or the two would take each other's lock.
    Every user of the head can see it. InputError where the file is not what was made here: a directory may come from
    somebody else, and a link in it would lead to a file that is none of the head's business.
    """
    path = state / "id"
    with suppress(FileExistsError):
        files.write_atomically(path, f"{random.SystemRandom().getrandbits(128):032x}\n".encode())
    try:
        found = files.read(path, inside=state).strip()
    except files.UnfitError as error:
        raise InputError([Problem(None, str(path), str(error), "delete it: it is made anew")]) from None
    if not re.fullmatch(rb"[0-9a-f]{32}", found):
        raise InputError([Problem(None, str(path), "is damaged, expected 32 digits", "delete it: it is made anew")])
    machine = b""
    with suppress(OSError):
        machine = Path("/etc/machine-id").read_bytes()
    where = (found, machine, socket.gethostname().encode(), bytes(state.resolve()))
    return hashlib.sha256(b"\0".join(where)).hexdigest()[:32]


class HeadLock:
    """The lock while it is held. `lost` says who has it instead, which cannot be while the head hears from us.

    `missing` says why the head gave none: what else is wrong with it, preflight tells better.
    """

    def __init__(self, head: Host, access: Access, me: Holder, controller: str) -> None:
        self._head, self._access = head, access
        self._me = json.dumps({**asdict(me), "controller": controller})
        self._over = threading.Event()
        self._session: Session | None = None
        self._channel: paramiko.Channel | None = None
        self.lost = ""
        self.missing: ContactError | None = None

    def take(self) -> None:
        """Take the lock. Raises Locked naming who has it, ContactError where the head cannot be asked."""
        self._close()
        session = connect(self._head, self._access)
        try:
            channel = session.transport.open_session(timeout=_SECONDS)
            deadline = time.monotonic() + _SECONDS
            program = ["/usr/bin/python3", "-I", "-c", _PROGRAM, self._me, str(EXPIRY)]
            said = session.start(channel, program, root=True, deadline=deadline)
            answer = self._answer(channel, said, deadline)
        except (paramiko.SSHException, OSError, EOFError) as error:
            session.close()
            raise _failed(str(error) or f"no answer within {_SECONDS:.0f} s") from None
        except BaseException:
            session.close()
            raise
        if answer.startswith("held"):
            session.close()
            holder = holder_of(answer.removeprefix("held")) or "another run"
            raise Locked(f"The cluster is locked by {holder}.\nWait until it has ended, then give the command again.")
        self._session, self._channel = session, channel

    def _answer(self, channel: paramiko.Channel, said: bytes, deadline: float) -> str:
        while b"\n" not in said:
            channel.settimeout(max(0.1, deadline - time.monotonic()))
            chunk = channel.recv(1 << 12)
            said += chunk
            if not chunk or len(said) > 1 << 14:
                complaint = channel.recv_stderr(1 << 12).decode(errors="replace").strip().splitlines()
                raise _failed(complaint[-1] if complaint else "no answer")
        line = said.partition(b"\n")[0].decode(errors="replace")
        if not line.startswith(_MARK):
            raise _failed(line)
        return line.removeprefix(_MARK)

    def keep(self) -> None:
        """Let the head hear from us until `release`; a connection that breaks is made anew."""
        while not self._over.wait(HEARTBEAT):
            try:
                if self._channel is None:
                    self.take()
                    if self._over.is_set():  # the run ended meanwhile, and nobody else would give this one back
                        self._give_back()
                else:
                    self._channel.sendall(b"here\n")
            except Locked as error:
                self.lost = str(error)
                return
            except (ContactError, paramiko.SSHException, OSError, EOFError):
                self._close()  # the head may be on its way up again

    def release(self) -> None:
        """Give the lock back."""
        self._over.set()
        self._give_back()

    def _give_back(self) -> None:
        if channel := self._channel:  # `keep` may drop it at any moment
            with suppress(paramiko.SSHException, OSError, EOFError):
                channel.sendall(b"done\n")
                channel.shutdown_write()
                channel.status_event.wait(1.0)  # or a run that begins at once would meet it
        self._close()

    def _close(self) -> None:
        session, self._session, self._channel = self._session, None, None
        if session:
            session.close()


def _failed(found: str) -> ContactError:
    return ContactError(
        Failure.REPLY, f"cannot keep other runs out: {printable(found, 200)}", "see /run/clusterctl there"
    )


@contextmanager
def hold(head: Host, access: Access, me: Holder, state: Path) -> Iterator[HeadLock]:
    """Hold the lock on the head, or say what is missing for it. Raises Locked at once while another run has it."""
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
        beat.join(2)  # it may be about to take the lock once more
