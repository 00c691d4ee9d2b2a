"""What every part of node_state stands on: running tools, naming errors, holding locks, replacing files in one step."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import struct
import subprocess
import tempfile
import time
from pathlib import Path

STORE = Path("/var/lib/clusterctl")
RUN = Path("/run/clusterctl")
LOCK_WAIT_S = 300
# For what a run has left behind, a download over a slow line perhaps. ansible.cfg gives a task 3600 s.
NODE_WAIT_S = 1800
TEXT_LIMIT = 4096
ENVIRONMENT = {
    "LC_ALL": "C.UTF-8",
    "DEBIAN_FRONTEND": "noninteractive",
    "APT_LISTCHANGES_FRONTEND": "none",
    "NEEDRESTART_SUSPEND": "1",
    "UCF_FORCE_CONFFOLD": "1",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
}


ACTIONS = (
    "built", "changed", "created", "held", "installed", "loaded", "partitioned", "released", "reloaded", "removed",
    "repaired", "replaced", "restarted", "restored", "rebooted", "ran", "started", "stopped", "upgraded",
)  # fmt: skip
"""What a change can be: `upgraded` is a package that moved to another version, `partitioned` a GPU's MIG layout."""


def change(kind, name, action, what="", old="", new=""):
    """One change as a result of Ansible has it. `what` is for people alone; `old` and `new` are versions or values."""
    if action not in ACTIONS:
        raise ValueError(action)
    return {"kind": kind, "name": name, "action": action, "what": what, "from": str(old or ""), "to": str(new or "")}


class NodeError(Exception):
    """What the user reads; it names the item."""


def clean(text, limit=TEXT_LIMIT):
    """Text of a tool, fit for a result: no control characters, at most `limit` characters, its end if it has more."""
    text = re.sub(r"\x1b\[[0-9;?]*[ -/]*[@-~]", "", text).replace("\r", "\n")
    text = "".join(character for character in text if character in "\n\t" or character.isprintable())
    return text if len(text) <= limit else "[…]" + text[-limit:]


def complaint(output, lines=15):
    """What of a tool's output says what went wrong: apt's and dpkg's own and what belongs to them, or the last."""
    kept, told = [line for line in clean(output, 1 << 16).splitlines() if line.strip()], []
    for at, line in enumerate(kept):
        more = line.startswith(" ") and told and told[-1] == kept[at - 1]
        told += [line] if more or re.match(r"[EW]:|Err:|dpkg: error|[Ee]rrors?[: ]", line) else []
    return clean("\n".join((told or kept)[-lines:]))


def seconds(text):
    """systemd's time span ("1min 30s", "infinity") in seconds, at most ten minutes."""
    units = {"us": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "h": 3600}
    spans = [float(number) * units.get(unit, 600) for number, unit in re.findall(r"([\d.]+)([a-z]+)", text)]
    return min(600.0, sum(spans)) if spans else 600.0


def run(*argv, check=True, timeout=None, pass_fds=(), both=False):
    """Run a tool; (exit status, what it printed). NodeError if it fails, unless `check` is off.

    That is its standard output, and its standard error after it if it failed or `both` are asked for: a loader that
    complains of /etc/ld.so.preload is no part of an answer. They go to files and not to pipes: a daemon that keeps them
    open blocks nobody.
    """
    with tempfile.TemporaryFile() as printed, tempfile.TemporaryFile() as complained:
        streams = {"stdin": subprocess.DEVNULL, "stdout": printed, "stderr": complained, "pass_fds": pass_fds}
        environment = {**os.environ, **ENVIRONMENT}
        try:
            status = subprocess.run(argv, check=False, env=environment, timeout=timeout, **streams).returncode
        except subprocess.TimeoutExpired:
            raise NodeError(f"{argv[0]} was still running after {timeout} s") from None
        except OSError as error:
            raise NodeError(f"cannot run {argv[0]}: {error.strerror}") from None
        output = ""
        for sink in (printed, complained) if both or status != 0 else (printed,):
            sink.seek(0)
            output += sink.read().decode("utf-8", "replace")
    if check and status != 0:
        raise NodeError(f"{' '.join(argv[:2])} ended with {status}\n{complaint(output)}")
    return status, output


def numbers(kernel):
    """The version of a kernel's name, to compare: of 6.12.48+deb13-amd64 and 5.14.0-570.62.1.el9_6.x86_64."""
    return [int(number) for number in re.findall(r"\d+", re.match(r"[\d.]*(-[\d.]+)?", kernel)[0])]


@contextlib.contextmanager
def about(label, name):
    """Make an error name the item, and the filesystem where that is the cause."""
    try:
        yield
    except OSError as error:
        place = Path(os.path.realpath(name))
        while not place.is_mount():
            place = place.parent
        told = dict.fromkeys((errno.ENOSPC, errno.EROFS, errno.EDQUOT), f" (filesystem {place})")
        told[errno.EBUSY] = "; it is a mount point, so it cannot be replaced"
        told[errno.EPERM] = "; is it immutable (lsattr)?"
        raise NodeError(f"{label} {name}: {error.strerror}{told.get(error.errno, '')}") from None
    except NodeError as error:
        raise NodeError(f"{label} {name}: {error}") from None


def successor(path):
    """Where the next content of `path` is prepared: in its folder, under a name that no reader takes for its own."""
    new = Path(path).with_name(f".{Path(path).name[:200]}.clusterctl-new")
    new.unlink(missing_ok=True)
    return new


def sync(folder):
    """Let a rename or removal in `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(descriptor)
    os.close(descriptor)


def write(path, data, uid=0, gid=0, mode=0o600, accept=None):
    """Replace a file in one step: complete, on disk and accepted by `accept(its new file)`, or not at all."""
    new = successor(path)
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as handle:
            handle.write(data)
            handle.flush()
            os.fchown(handle.fileno(), uid, gid)
            os.fchmod(handle.fileno(), mode)
            os.fsync(handle.fileno())
        if accept:
            accept(str(new))
        new.rename(path)
    finally:
        new.unlink(missing_ok=True)
    sync(new.parent)


def store(path, data):
    """Keep something of ours below STORE: for root alone, whatever the umask."""
    with about("record", str(path)):
        for folder in (STORE, path.parent):
            if not folder.is_dir():
                folder.mkdir(mode=0o700)
        write(path, data)


def wait_until_free(what, holder, notes, limit=LOCK_WAIT_S):
    """Wait until `holder()` is None; it names the process that is waited for. NodeError after `limit` seconds."""
    started, seen = time.monotonic(), None
    while True:
        who, waited = holder(), time.monotonic() - started
        if who is None:
            if seen:
                notes.append(f"waited {waited:.0f} s for {what}, held by {seen}")
            return
        if waited >= limit:
            raise NodeError(f"{what} is held by {who}, after {waited:.0f} s still. Run again when it has ended.")
        seen = who
        time.sleep(min(0.5, limit))


def process(pid):
    """A process as a person knows it: pid and command, the beginning of a long one."""
    try:
        told = Path(f"/proc/{pid}/cmdline").read_bytes()[:4096].replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        told = "gone"
    command = clean(" ".join(told.split()))
    return f"pid {pid} ({command if len(command) <= 200 else command[:200] + '[…]'})"


def lock_holder(paths):
    """The process that holds a POSIX lock on one of `paths`, or None. (dpkg and rpm use those; flock sees nothing.)"""
    for path in paths:
        with contextlib.suppress(FileNotFoundError), Path(path).open("rb") as handle:
            asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind, _, _, _, pid = struct.unpack("hhqqi4x", fcntl.fcntl(handle, fcntl.F_GETLK, asked))
            if kind != fcntl.F_UNLCK:
                return process(pid)
    return None


@contextlib.contextmanager
def exclusive(path, notes, **limit):
    """Hold a lock file of ours; yields its descriptor. A holder that outlived an earlier run is waited for."""

    def holder():
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            told = os.pread(descriptor, 20, 0).decode().strip()
            return process(told) if told else "another process"
        return None

    RUN.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        wait_until_free(path, holder, notes, **limit)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
        yield descriptor
    finally:
        os.close(descriptor)


def alone_on_node(notes):
    """Keep out other modules that change this node: one may outlive a run that was killed or left the node behind."""
    return exclusive(RUN / "node_state.lock", notes, limit=NODE_WAIT_S)
