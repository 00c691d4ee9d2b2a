"""Run the site's own checks of a node: shell scripts of the inventory, and programs in a directory.

Exit status 0 means healthy. Otherwise the first line of the output is the reason to drain the node.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from gpu_node import ENVIRONMENT, read_text

DIRECTORY = Path("/etc/clusterctl/health.d")
LENGTH = 4096  # bytes of the output that are read


def problems(
    commands: dict[str, str], state: dict, seconds: float, directory: Path = DIRECTORY
) -> Iterator[tuple[str, bool]]:
    """Yield what each check that fails reports, and whether it drains. They run at once, within `seconds`.

    `state` has the processes that hang in the kernel: their checks are not started again.
    """
    programs = sorted(path for path in directory.glob("*") if path.is_file() and os.access(path, os.X_OK))
    argvs = [(name, ["/bin/sh", "-c", text]) for name, text in commands.items()]
    argvs += [(path.name, [str(path)]) for path in programs if is_of_root(path)]
    hung = {name: known for name, known in state.get("hung", {}).items() if identity(known[0]) == known}
    state["hung"] = hung
    running, deadline = [], time.monotonic() + seconds
    with contextlib.ExitStack() as files:
        for name, argv in argvs:
            if name in hung:
                yield f"{name}: process {hung[name][0]} does not end", True
                continue
            output = files.enter_context(tempfile.TemporaryFile())  # a pipe would stop a check that prints much
            try:
                running.append((name, start(argv, output.fileno()), output))
            except OSError as error:
                yield f"{name}: {error.strerror}", True
        for name, process, output in running:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                hung[name] = identity(process.pid)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                yield f"{name}: timed out after {seconds:g} s", True
            if process.returncode:
                output.seek(0)
                lines = [line.strip() for line in output.read(LENGTH).decode(errors="replace").splitlines()]
                yield f"{name}: {next(filter(None, lines), f'exit status {process.returncode}')}", True
    for path in programs:
        if not is_of_root(path):
            yield f"{path} was not run: users other than root can change it", False


def is_of_root(path: Path) -> bool:
    """Return whether only root can change a program."""
    status = path.stat()
    return status.st_uid == 0 and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def start(argv: list[str], output: int) -> subprocess.Popen[bytes]:
    """Start a check, whose output goes to this file."""
    return subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=ENVIRONMENT, start_new_session=True
    )


def identity(pid: int) -> list:
    """Return the number and the start of a process: another process may have the number later."""
    words = read_text(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return [pid, words[19]] if words else []
