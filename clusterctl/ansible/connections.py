"""The SSH connections of one run of Ansible: where their control sockets are, and how they are closed."""

import contextlib
import hashlib
import os
import shutil
import socket
import struct
import tempfile
from pathlib import Path

_SSH = Path(__file__).with_name("ssh")
_LEFT_BEHIND = "left-behind"  # beside a host's control sockets; that ssh looks for it
# The host of the task or, if that is delegated, its delegate: inventory_hostname would be the task's own. The name of
# a socket is Ansible's, and depends on address, port and user. A hash, because the path has a limit.
_HOST = "{{ (inventory_hostname_short | hash('sha256'))[:10] }}"
# A socket's path has at most 107 characters: our directory adds 36 to the base, jump-%C 45, ssh's own suffix 17.
_SOCKET_PATH = 10


def private_directory() -> Path:
    """Make this run's own directory, 0700, with a path short enough for control sockets; sweep up after killed runs."""
    base = Path(tempfile.gettempdir())
    base = base if len(str(base)) < _SOCKET_PATH else Path("/tmp")  # noqa: S108
    for stale in base.glob("clusterctl-run-*"):
        pid = stale.name.split("-")[2]
        with contextlib.suppress(OSError):  # another run sweeps, too
            if pid.isdigit() and not Path("/proc", pid).exists() and stale.lstat().st_uid == os.getuid():
                shutil.rmtree(stale, ignore_errors=True)
    path = Path(tempfile.mkdtemp(prefix=f"clusterctl-run-{os.getpid()}-", dir=base))
    (path / "cp").mkdir(mode=0o700)
    return path


def settings(private: Path) -> dict[str, str]:
    """Return the part of Ansible's environment that decides how it connects."""
    return {"ANSIBLE_SSH_CONTROL_PATH_DIR": str(private / "cp"), "ANSIBLE_SSH_EXECUTABLE": str(_SSH)}


def variables(private: Path) -> dict[str, str]:
    """Return variables for Ansible: each host has a directory of its own for its sockets."""
    return {"ansible_control_path_dir": f"{private}/cp/{_HOST}"}


def sockets(private: Path, host: str) -> Path:
    """Return the directory of a host's control sockets."""
    return private / "cp" / hashlib.sha256(host.encode()).hexdigest()[:10]


def cut(private: Path, host: str) -> None:
    """Close a host's connections, and refuse it another one in this run; only an upload by sftp may still open one."""
    directory = sockets(private, host)
    directory.mkdir(mode=0o700, exist_ok=True)
    (directory / _LEFT_BEHIND).touch()
    close(directory)


def close(directory: Path) -> None:
    """End ssh's connection masters with sockets below a directory, which would outlive the run by ControlPersist.

    Speaks OpenSSH's PROTOCOL.mux (a hello, then MUX_C_TERMINATE): one `ssh -O exit` per node takes seconds for many.
    """
    hello, terminate = struct.pack(">III", 8, 0x00000001, 4), struct.pack(">III", 8, 0x10000005, 0)
    for path in directory.rglob("*"):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as master:
            master.settimeout(1)
            master.connect(str(path))
            master.sendall(hello + terminate)
            master.recv(64)
