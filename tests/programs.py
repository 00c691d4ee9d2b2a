"""Programs that tests start: each has a time limit and is ended with its children; a failure shows its last lines."""

import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

END_LIMIT = 30.0  # seconds that a program has to end after SIGTERM; clusterctl stops Ansible in that time
# What a failure shows of an output: so many lines, of so many characters each.
LINES = 100
CHARACTERS = 2000


def tail(text: str | bytes | None, lines: int = LINES) -> str:
    """Return the last lines of an output, long ones cut, and how many lines were left out."""
    if isinstance(text, bytes):
        text = text.decode(errors="replace")
    rows = (text or "").rstrip().splitlines()
    left_out = [f"[{len(rows) - lines} earlier lines]"] if len(rows) > lines else []
    kept = (row if len(row) <= CHARACTERS else f"{row[:CHARACTERS]} ..." for row in rows[-lines:])
    return "\n".join([*left_out, *kept])


def described(done: subprocess.CompletedProcess[str]) -> str:
    """Return what an assertion shows of a program that ended: exit code, command line and last lines."""
    return f"exit {done.returncode}: {_command_line(done.args)}\n{tail(done.stdout)}\n{tail(done.stderr)}"


def _command_line(argv: Sequence[object]) -> str:
    return shlex.join(map(str, argv))


def start(argv: Sequence[Any], **options: Any) -> "subprocess.Popen[Any]":
    """Start a program in a process group of its own, without input unless the options give it one."""
    return subprocess.Popen(argv, **{"stdin": subprocess.DEVNULL, **options, "start_new_session": True})


_left_to_the_test: "list[subprocess.Popen[Any]]" = []


def start_for_test(argv: Sequence[Any], **options: Any) -> "subprocess.Popen[Any]":
    """Start a program that the test itself ends; if it fails before that, the end of the test does."""
    process = start(argv, **options)
    _left_to_the_test.append(process)
    return process


def end_of_test() -> None:
    """End what `start_for_test` started and still runs, so that it does not hold the next test's lab."""
    while _left_to_the_test:
        process = _left_to_the_test.pop()
        if process.poll() is None:
            end(process)


def wait_until_shown(process: "subprocess.Popen[Any]") -> None:
    """Wait until /proc has the arguments and the environment of a program: Popen returns shortly before that."""
    while not Path(f"/proc/{process.pid}/environ").read_bytes():
        time.sleep(0.01)


@contextmanager
def started(argv: Sequence[Any], **options: Any) -> Iterator["subprocess.Popen[Any]"]:
    """Start a program, and end it with its process group if it still runs at the end of the `with`."""
    with start(argv, **options) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                end(process)


@contextmanager
def conversation(argv: Sequence[Any], limit: float, **options: Any) -> Iterator["subprocess.Popen[Any]"]:
    """Start a program whose pipes the `with` reads and writes, and end it there at the latest.

    After `limit` seconds it is killed with its process group, so that no read waits longer, and the `with` ends with an
    AssertionError, whatever it made of the end of the output.
    """
    over = threading.Event()

    def kill() -> None:
        over.set()
        _signal(process, signal.SIGKILL)

    with started(argv, **options) as process:
        timer = threading.Timer(limit, kill)
        timer.start()
        try:
            yield process
        except Exception as error:
            if over.is_set():
                raise AssertionError(f"no end after {limit:g} s: {_command_line(argv)}") from error
            raise
        finally:
            timer.cancel()
    assert not over.is_set(), f"no end after {limit:g} s: {_command_line(argv)}"


def end(
    process: "subprocess.Popen[Any]", ask: signal.Signals = signal.SIGTERM, limit: float | None = None
) -> tuple[Any, Any]:
    """End the process group of a program: ask all of it, wait, kill what is left; return the output so far.

    `limit`: seconds that it has after `ask` (END_LIMIT). Ansible's workers have groups of their own. Ansible ends them
    when it is asked, and not when it is killed.
    """
    for number in (ask, signal.SIGKILL):
        deadline = time.monotonic() + (END_LIMIT if limit is None else limit)
        _signal(process, number)
        while _signal(process, 0) and time.monotonic() < deadline:
            _read(process)  # or the program could wait for a reader
            time.sleep(0.02)
    return _read(process)


def _signal(process: "subprocess.Popen[Any]", number: int) -> bool:
    """Send a signal to the process group; return whether there is still something in it."""
    process.poll()
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return False
    return True


def signal_tree(process: "subprocess.Popen[Any]", number: signal.Signals) -> None:
    """Send a signal to a process and all below it, as if it were sent to their whole machine."""
    parents = [tuple(map(int, line.split())) for line in output_of(["ps", "-eo", "pid=,ppid="], 60).splitlines()]
    tree = [process.pid]
    for pid in tree:
        tree += [child for child, parent in parents if parent == pid]
    for pid in tree:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _read(process: "subprocess.Popen[Any]") -> tuple[Any, Any]:
    """Return both outputs so far; a process of another group may keep them open."""
    try:
        return process.communicate(timeout=0.1)
    except subprocess.TimeoutExpired as expired:
        return expired.stdout, expired.stderr


def call(argv: Sequence[Any], limit: float, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program and capture its output; AssertionError with the output so far when it exceeds `limit` seconds."""
    text = options.pop("input", None)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    if text is not None:
        pipes["stdin"] = subprocess.PIPE
    with started(argv, **{**pipes, **options}) as process:
        try:
            out, err = process.communicate(text, timeout=limit)
        except subprocess.TimeoutExpired:
            out, err = end(process)
            message = f"no end after {limit:g} s: {_command_line(argv)}\n{tail(out)}\n{tail(err)}"
            raise AssertionError(message) from None
    return subprocess.CompletedProcess(list(argv), process.returncode, out or "", err or "")


def output_of(argv: Sequence[Any], limit: float, **options: Any) -> str:
    """Run a program that must succeed, as `call` does; return what it printed."""
    done = call(argv, limit, **options)
    assert done.returncode == 0, described(done)
    return done.stdout


def failure_of(argv: Sequence[Any], limit: float, **options: Any) -> str:
    """Run a program with its output where `options` send it; return what is wrong with its end, or nothing."""
    with started(argv, **options) as process:
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            return f"no end after {limit:g} s"
    return f"exit {status}" if status else ""
