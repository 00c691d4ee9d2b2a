"""Ansible's process: started before its command is known, so that it loads its code while the nodes are asked.

It is a child in a session of its own, so a terminal's Ctrl-C reaches only clusterctl.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from clusterctl.ansible import connections
from clusterctl.util import paths

AGE_S = 600
"""A process that has waited longer is not used: the code on the disk may be newer than what it has loaded."""


def settings() -> dict[str, str]:
    """Return the environment variables that the result of a run depends on."""
    return {"ANSIBLE_CONFIG": str(paths.content() / "ansible.cfg")}


def environment(private: Path) -> dict[str, str]:
    """Return Ansible's environment: the caller's without ANSIBLE_* variables, plus the settings of the run.

    `private` is the run's own directory. As ANSIBLE_HOME it excludes plugins and collections of ~/.ansible.
    """
    own = {
        **settings(),
        "ANSIBLE_HOME": str(private),
        **connections.settings(private),
        "LC_ALL": "C.UTF-8",  # Ansible requires UTF-8, and hints match the tools' English messages
        "PYTHONUNBUFFERED": "1",  # keeps the log complete up to the moment
        "SSH_ASKPASS_REQUIRE": "never",  # a password dialog would block the run without a message
    }
    return {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")} | own


class Process:
    """A process of Ansible, the pipes for its output and its events, and the directory of its connections.

    `lock` is the descriptor of the directory's lock, which it inherits: the lock is held while a task runs.
    """

    def __init__(self, inventory: Path, lock: int | None = None) -> None:
        self._began = time.monotonic()
        self.private = connections.private_directory()
        self.log, log = os.pipe()
        self.events, self._events = os.pipe()
        self.child = subprocess.Popen(
            [sys.executable, "-P", "-m", "clusterctl.ansible.ansible_playbook", str(inventory)],
            env=environment(self.private),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=[self._events, *([lock] if lock is not None else [])],
        )
        for sink in (log, self._events):
            os.close(sink)

    def begin(self, argv: Sequence[str], variables: Mapping[str, str], password: str | None = None) -> None:
        """Run a command, with these variables in its environment; it reads the password from standard input."""
        known = {**variables, "CLUSTERCTL_EVENTS": f"/dev/fd/{self._events}"}
        text = json.dumps({"argv": list(argv), "environment": known}) + "\n" + (f"{password}\n" if password else "")
        with contextlib.suppress(BrokenPipeError), self.child.stdin or contextlib.nullcontext() as stdin:
            if stdin:
                stdin.write(text.encode())

    def is_ready(self) -> bool:
        """Return whether the process still waits, with code that is not older than AGE_S."""
        return self.child.poll() is None and time.monotonic() - self._began < AGE_S

    def close(self) -> None:
        """Kill the process with all its descendants, and close its connections."""
        try:
            if self.child.stdin and not self.child.stdin.closed:  # it waits, and has no descendants
                self.child.stdin.close()
                self.child.kill()
                self.child.wait()
            kill_tree(self.child)
        finally:
            for source in (self.log, self.events):
                os.close(source)
            connections.close(self.private / "cp")
            shutil.rmtree(self.private, ignore_errors=True)


def kill_tree(process: "subprocess.Popen[bytes]") -> None:
    """Kill Ansible and all its descendants. Each worker has its own session, so no process group has all of them."""
    if process.poll() is not None:
        return
    table = ""
    with contextlib.suppress(OSError):  # without ps, Ansible alone is killed
        table = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=False).stdout
    children: dict[int, list[int]] = {}
    for line in table.splitlines():
        child, parent = map(int, line.split())
        children.setdefault(parent, []).append(child)
    tree = [process.pid]
    for pid in tree:
        tree += children.get(pid, [])
    for pid in tree:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
