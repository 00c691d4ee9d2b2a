"""Common functions of node_state: run tools, describe errors, hold locks, replace files atomically."""

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
import traceback
from pathlib import Path

STORE = Path("/var/lib/clusterctl")
RUN = Path("/run/clusterctl")
LOCK_WAIT_S = 300
# For what a run has left behind, a download over a slow line perhaps. ansible.cfg gives a task 3600 s.
NODE_WAIT_S = 3300
TEXT_LIMIT = 4096
ENVIRONMENT = {
    "LC_ALL": "C.UTF-8",
    "DEBIAN_FRONTEND": "noninteractive",
    "APT_LISTCHANGES_FRONTEND": "none",
    "NEEDRESTART_SUSPEND": "1",
    "UCF_FORCE_CONFFOLD": "1",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
}
WITHOUT_PROXIES = ("kubeadm", "kubectl")  # package managers may need a proxy


ACTIONS = (
    "built", "changed", "created", "held", "installed", "loaded", "partitioned", "released", "reloaded", "removed",
    "repaired", "replaced", "restarted", "restored", "rebooted", "ran", "started", "stopped", "upgraded",
)  # fmt: skip
"""The actions of a change: `upgraded` is a package with another version, `partitioned` a GPU's MIG layout."""


def change(kind, name, action, what="", old="", new=""):
    """Return one change for Ansible's result. `what` is text for people; `old` and `new` are versions or values."""
    if action not in ACTIONS:
        raise ValueError(action)
    return {"kind": kind, "name": name, "action": action, "what": what, "from": str(old or ""), "to": str(new or "")}


class NodeError(Exception):
    """An error message for the user, with the item."""


def said(error):
    """Return the message of an operating system's error, with the path that it is about."""
    return f"{error.filename or 'this node'}: {error.strerror}"


def attempt(what):
    """Return ({}, what it returns) or ({failed, msg}, None)."""
    try:
        return {}, what()
    except NodeError as error:
        msg = clean(str(error))
    except OSError as error:
        msg = said(error)
    except Exception as error:
        msg = f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-4)}"
    return {"failed": True, "msg": msg}, None


def clean(text, limit=TEXT_LIMIT):
    """Return a tool's output for a result: no control characters, at most the last `limit` characters."""
    text = re.sub(r"\x1b\[[0-9;?]*[ -/]*[@-~]", "", text).replace("\r", "\n")
    text = "".join(character for character in text if character in "\n\t" or character.isprintable())
    return text if len(text) <= limit else "[…]" + text[-limit:]


def complaint(output, lines=15):
    """Return the error lines of a tool's output: those of apt and dpkg with their details, or else the last lines."""
    kept, errors = [line for line in clean(output, 1 << 16).splitlines() if line.strip()], []
    for at, line in enumerate(kept):
        more = line.startswith(" ") and errors and errors[-1] == kept[at - 1]
        errors += [line] if more or re.match(r"[EW]:|Err:|dpkg: error|[Ee]rrors?[: ]", line) else []
    return clean("\n".join((errors or kept)[-lines:]))


def seconds(text):
    """Convert systemd's time span ("1min 30s", "infinity") to seconds, at most ten minutes."""
    units = {"us": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "h": 3600}
    spans = [float(number) * units.get(unit, 600) for number, unit in re.findall(r"([\d.]+)([a-z]+)", text)]
    return min(600.0, sum(spans)) if spans else 600.0


def without_proxies(environment):
    """Return an environment without a site's proxies, such as pam_env sets from /etc/environment.

    kubectl would ask them for the API, and kubeadm copies them into the manifests of static pods (GetProxyEnvVars).
    """
    return {name: value for name, value in environment.items() if not name.lower().endswith("_proxy")}


@contextlib.contextmanager
def environment(values):
    """Run tools with these variables in addition."""
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def run(*argv, check=True, timeout=None, pass_fds=(), both=False):
    """Run a tool; return (exit status, output). Raises NodeError if it fails, unless `check` is off.

    The output is its standard output, followed by its standard error if it failed or with `both`: warnings of the
    loader about /etc/ld.so.preload must not be in it. Files are used instead of pipes, because a daemon that keeps a
    pipe open would block.
    """
    with tempfile.TemporaryFile() as printed, tempfile.TemporaryFile() as complained:
        streams = {"stdin": subprocess.DEVNULL, "stdout": printed, "stderr": complained, "pass_fds": pass_fds}
        environment = {**os.environ, **ENVIRONMENT}
        if argv[0] in WITHOUT_PROXIES:
            environment = without_proxies(environment)
        try:
            status = subprocess.run(argv, check=False, env=environment, timeout=timeout, **streams).returncode
        except subprocess.TimeoutExpired:
            raise NodeError(f"{argv[0]} timed out after {timeout} s") from None
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
    """Return the comparable version of a kernel's name: 6.12.48+deb13-amd64, 5.14.0-570.62.1.el9_6.x86_64."""
    return [int(number) for number in re.findall(r"\d+", re.match(r"[\d.]*(-[\d.]+)?", kernel)[0])]


@contextlib.contextmanager
def about(label, name):
    """Add the item to an error, and a hint for errors of the filesystem."""
    try:
        yield
    except OSError as error:
        place = Path(os.path.realpath(name))
        while not place.is_mount():
            place = place.parent
        causes = dict.fromkeys((errno.ENOSPC, errno.EROFS, errno.EDQUOT), f" (filesystem {place})")
        causes[errno.EBUSY] = "; it is a mount point and cannot be replaced"
        causes[errno.EPERM] = "; check with lsattr whether it is immutable"
        raise NodeError(f"{label} {name}: {error.strerror}{causes.get(error.errno, '')}") from None
    except NodeError as error:
        raise NodeError(f"{label} {name}: {error}") from None


def successor(path):
    """Return the path of the new content of `path`: a hidden name in the same directory."""
    new = Path(path).with_name(f".{Path(path).name[:200]}.clusterctl-new")
    new.unlink(missing_ok=True)
    return new


def sync(folder):
    """Make a rename or removal in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(descriptor)
    os.close(descriptor)


def write(path, data, uid=0, gid=0, mode=0o600, accept=None):
    """Replace a file atomically and durably, after `accept(its new file)`."""
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
    """Store a file below STORE with mode 0600, under any umask."""
    with about("record", str(path)):
        for folder in (STORE, path.parent):
            if not folder.is_dir():
                folder.mkdir(mode=0o700)
        write(path, data)


def wait_until_free(what, holder, notes, limit=LOCK_WAIT_S):
    """Wait until `holder()` returns None instead of a process. Raises NodeError after `limit` seconds."""
    started, seen = time.monotonic(), None
    while True:
        who, waited = holder(), time.monotonic() - started
        if who is None:
            if seen:
                notes.append(f"waited {waited:.0f} s for {what}, held by {seen}")
            return
        if waited >= limit:
            raise NodeError(f"{what} is still held by {who} after {waited:.0f} s. Run again when it has ended.")
        seen = who
        time.sleep(min(0.5, limit))


def process(pid):
    """Describe a process for people: pid and command, truncated."""
    try:
        argv = Path(f"/proc/{pid}/cmdline").read_bytes()[:4096].replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        argv = "gone"
    command = clean(" ".join(argv.split()))
    return f"pid {pid} ({command if len(command) <= 200 else command[:200] + '[…]'})"


def lock_holder(paths):
    """Return the process that holds a POSIX lock, as dpkg and rpm use it, on one of `paths`, or None."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError), Path(path).open("rb") as handle:
            asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind, _, _, _, pid = struct.unpack("hhqqi4x", fcntl.fcntl(handle, fcntl.F_GETLK, asked))
            if kind != fcntl.F_UNLCK:
                return process(pid)
    return None


@contextlib.contextmanager
def exclusive(path, notes, **limit):
    """Hold a lock file of clusterctl; yield its descriptor. Wait for a process of an earlier run that holds it."""

    def holder():
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(descriptor, 20, 0).decode().strip()
            return process(pid) if pid else "another process"
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
