"""Run a playbook: the only place where Ansible is started, watched and stopped.

Ansible is a child in a session of its own, so a terminal's Ctrl-C reaches clusterctl alone. Its output and our
callback's events come back through two pipes. What is in them comes from nodes: lines are cut to a size, control
characters dropped and secrets redacted, before anything is written or shown.
"""

import contextlib
import json
import os
import select
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from clusterctl.ansible import connections, events
from clusterctl.ansible.patience import Patience
from clusterctl.ansible.run_directory import RunDirectory
from clusterctl.util import paths, redaction
from clusterctl.util.text import strip_controls

_TICK = 0.25  # seconds between two looks at the clock while nothing happens
_GRACE = 3.0  # seconds that Ansible has to end after the second signal
_LOOK = 0.5  # seconds between two looks for hosts to leave behind
_HELD_UP = 5.0  # seconds without a look after which this process was held up itself, by a stopped terminal perhaps
# No line is longer, in bytes. An event's own texts are cut by the callback, so that a whole one has room.
_LOG_LINE, _EVENT_LINE = 1 << 16, 1 << 22
_OURS = ("event", "host", "status")  # of an event: words that no node chooses, and that a password might be


@dataclass(frozen=True)
class Command:
    """An `ansible-playbook` command. `limit` names hosts; empty means all that the playbook names.

    `user` logs in where the inventory names nobody. `variables` say what a verb is to do, never what a cluster is.
    """

    playbook: Path
    inventory: Path
    vault_password_file: Path | None = None
    limit: tuple[str, ...] = ()
    check: bool = False
    diff: bool = False
    forks: int | None = None
    verbosity: int = 0
    user: str = ""
    become_password_file: Path | None = None
    ask_become_pass: bool = False
    variables: Mapping[str, Any] = field(default_factory=dict)

    def argv(self) -> list[str]:
        argv = [*_ansible_playbook(), "-i", str(self.inventory)]
        # Where the inventory names no user: who preflight logs in as. Ansible needs it said, or root would call sudo.
        argv += ["--user", self.user] if self.user else []
        argv.append(str(self.playbook))
        argv += ["--become-password-file", str(self.become_password_file)] if self.become_password_file else []
        argv += ["--ask-become-pass"] if self.ask_become_pass else []
        argv += ["--limit", ",".join(self.limit)] if self.limit else []
        argv += ["--check"] if self.check else []
        argv += ["--diff"] if self.diff else []
        argv += ["--forks", str(self.forks)] if self.forks else []
        argv += ["--extra-vars", json.dumps(dict(self.variables))] if self.variables else []
        return argv + (["-" + "v" * self.verbosity] if self.verbosity else [])

    def settings(self) -> dict[str, str]:
        """Return the environment that decides what the run does; everything else is the cluster's directory."""
        settings = {"ANSIBLE_CONFIG": str(paths.content() / "ansible.cfg")}
        if self.vault_password_file:
            settings["ANSIBLE_VAULT_PASSWORD_FILE"] = str(self.vault_password_file)
        return settings

    def __str__(self) -> str:
        """Return the plain command, quoted so that it can be pasted into a shell."""
        assignments = [f"{name}={shlex.quote(value)}" for name, value in self.settings().items()]
        return " ".join([*assignments, shlex.join(self.argv())])


def _ansible_playbook() -> list[str]:
    """Find Ansible in our own environment, whatever PATH says."""
    program = Path(sys.executable).with_name("ansible-playbook")
    return [str(program)] if program.exists() else [sys.executable, "-P", "-m", "ansible", "playbook"]


def environment(command: Command, private: Path) -> dict[str, str]:
    """Return Ansible's whole environment: the caller's without any ANSIBLE_* variable, then ours.

    `private` is this run's own directory: as ANSIBLE_HOME it also keeps out plugins and collections of ~/.ansible.
    """
    ours = {
        **command.settings(),
        "ANSIBLE_HOME": str(private),
        **connections.settings(private),
        "LC_ALL": "C.UTF-8",  # Ansible insists on UTF-8, and hints look for the tools' English words
        "PYTHONUNBUFFERED": "1",  # so that the log is whole up to the moment
        "SSH_ASKPASS_REQUIRE": "never",  # no window may ask for what this run cannot show
    }
    return {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")} | ours


@dataclass(frozen=True)
class Output:
    """A line of Ansible's own output, redacted and without control characters."""

    text: str


class Runner:
    """One run of Ansible. Iterate over `watch()` to its end, whatever happens meanwhile.

    The first SIGINT, SIGTERM or SIGHUP lets the tasks under way end and no other begin; the second ends Ansible at
    once. `stop()` is the first one by hand. After a failure on one of the `critical` hosts no other task begins either:
    Ansible itself would go on with the other hosts in the next play.

    A host that the others have waited for as long as `patience` (seconds, in all) is left behind: its connections are
    closed and it gets no other. To Ansible it is unreachable; its result here is `behind`. What is under way there
    continues to its end on the node.
    """

    def __init__(
        self,
        command: Command,
        directory: RunDirectory,
        *,
        critical: Collection[str] = (),
        patience: float | None = None,
        lock: int | None = None,
        become_password: str | None = None,
        redact: Callable[[str], str] = lambda text: text,
        notify: Callable[[bool], None] = lambda at_once: None,
    ) -> None:
        self._command, self._directory, self._lock = command, directory, lock
        self._become_password = become_password
        self._patience, self._looked = Patience(patience, critical), 0.0
        self._behind: set[str] = set()
        self._critical, self._redact, self._notify = critical, redact, notify
        self._process: subprocess.Popen[bytes] | None = None
        self._stop_file = directory.path / "stop"
        self._stops = 0
        self._killed_at: float | None = None
        self.trouble: OSError | None = None  # what kept us from writing the run directory

    @property
    def stopped(self) -> bool:
        return self._stops > 0

    def stop(self) -> None:
        """Ask for an end: the first time after the tasks under way, the second time at once."""
        self._stops += 1
        self._notify(self._stops > 1)
        if self._stops == 1:
            try:
                self._stop_file.touch(mode=0o600)
            except OSError as error:  # a full disk must not keep us from stopping
                self.trouble = error
                self._terminate()
        elif self._stops == 2:
            self._terminate()

    def _terminate(self) -> None:
        if self._process and self._killed_at is None:
            self._killed_at = time.monotonic()
            # Ansible passes it on to its workers, each the leader of a session that also holds its ssh.
            self._process.send_signal(signal.SIGTERM)

    def watch(self) -> Iterator[events.Event | Output | None]:
        """Run, and yield events and lines as they come; None a few times a second for who shows a clock.

        Closing the iterator before its end kills Ansible.
        """
        private = connections.private_directory()
        try:
            with _signals(self.stop), contextlib.ExitStack() as stack:
                yield from self._watch(private, stack)
        finally:
            self._stop_file.unlink(missing_ok=True)
            connections.close(private / "cp")
            shutil.rmtree(private, ignore_errors=True)

    def _watch(self, private: Path, stack: contextlib.ExitStack) -> Iterator[events.Event | Output | None]:
        log = _Pipe(self._directory.open(self._directory.log), False, stack)
        told = _Pipe(self._directory.open(self._directory.events), True, stack)
        channel = {
            "CLUSTERCTL_EVENTS": f"/dev/fd/{told.sink}",
            "CLUSTERCTL_STOP": str(self._stop_file),
            "CLUSTERCTL_CRITICAL": ",".join(sorted(self._critical)),
        }
        argv = [*self._command.argv(), "--extra-vars", json.dumps(connections.variables(private))]
        if self._command.ask_become_pass:  # we have asked: Ansible reads the answer, which stands on no disk
            argv = [word for word in argv if word != "--ask-become-pass"] + ["--become-password-file", "-"]
        process = self._process = subprocess.Popen(
            argv,
            env=environment(self._command, private) | channel,
            stdin=subprocess.PIPE,
            stdout=log.sink,
            stderr=log.sink,
            start_new_session=True,
            pass_fds=[told.sink, *([self._lock] if self._lock is not None else [])],
        )
        stack.callback(_kill_tree, process)
        with process.stdin or contextlib.nullcontext() as answer, contextlib.suppress(BrokenPipeError):
            if answer and self._command.ask_become_pass:
                answer.write(f"{self._become_password}\n".encode())
        for pipe in (log, told):
            os.close(pipe.sink)
        if self._stops > 1:
            self._terminate()
        with selectors.DefaultSelector() as selector:
            for pipe in (log, told):
                selector.register(pipe.source, selectors.EVENT_READ, pipe)
            while process.poll() is None:
                if not selector.get_map():
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(_TICK)
                for key, _ in selector.select(_TICK) if selector.get_map() else ():
                    yield from self._read(key.data)
                    if key.data.at_end:
                        selector.unregister(key.data.source)
                if self._killed_at is not None and time.monotonic() - self._killed_at > _GRACE:
                    _kill_tree(process)
                if not told.has_more():
                    self._leave_behind(private)
                yield None
        for pipe in (log, told):
            # Only what is there by now: a grandchild may hold the other end open for long.
            while pipe.has_more():
                yield from self._read(pipe)
            yield from self._made(pipe, pipe.rest())

    def _leave_behind(self, private: Path) -> None:
        """Cut off the hosts that the others have waited for long enough.

        A host that is just about to connect has no socket yet, and is asked for again at the next look.
        """
        now = time.monotonic()
        since = now - self._looked
        if since < _LOOK:
            return
        self._looked = now
        if since > _HELD_UP:  # so what has ended meanwhile may not have been read yet
            return
        for host in self._patience.exhausted(now):
            self._behind.add(host)
            connections.cut(private, host)

    def _read(self, pipe: "_Pipe") -> Iterator[events.Event | Output]:
        yield from self._made(pipe, pipe.read())

    def _made(self, pipe: "_Pipe", lines: list[str]) -> Iterator[events.Event | Output]:
        """Clean, redact and keep the lines, and yield what they are."""
        lines = [self._clean(strip_controls(line), pipe.is_events) for line in lines]
        try:
            pipe.keep(lines)
        except OSError as error:
            if self.trouble is None:
                self.trouble = error
                self.stop()
        for line in lines:
            item = events.parse(line) if pipe.is_events else Output(line)
            if item and not isinstance(item, Output):
                self._patience.add(item)
            if item:
                yield item

    def _clean(self, line: str, is_event: bool) -> str:
        if is_event:
            with contextlib.suppress(ValueError, RecursionError):
                data = self._as_left_behind(json.loads(line))
                ours = {key: data[key] for key in _OURS if isinstance(data, dict) and key in data}
                return json.dumps({**redaction.throughout(data, self._redact), **ours}, ensure_ascii=False)
        return self._redact(line)

    def _as_left_behind(self, data: Any) -> Any:
        """Return an event's data, with the right status where we ourselves have made the host unreachable."""
        if isinstance(data, dict) and data.get("status") == "unreachable" and data.get("host") in [*self._behind]:
            return {**data, "status": "behind", "message": "far slower than the others"}
        return data


class _Pipe:
    """A pipe from Ansible to us, and the file in which we keep what comes through it."""

    def __init__(self, target: int, is_events: bool, stack: contextlib.ExitStack) -> None:
        self.is_events = is_events
        self.source, self.sink = os.pipe()
        self.at_end = False
        self._target = target
        self._limit = _EVENT_LINE if is_events else _LOG_LINE
        self._line = bytearray()
        self._cut = 0  # bytes of the line that are over the limit
        os.set_blocking(self.source, False)
        stack.callback(os.close, self.source)
        stack.callback(os.close, target)

    def has_more(self) -> bool:
        return not self.at_end and bool(select.select([self.source], [], [], 0)[0])

    def read(self) -> list[str]:
        """Return the lines that are complete by now."""
        data = os.read(self.source, 1 << 16)
        self.at_end = not data
        *ends, begin = data.split(b"\n")
        lines = [self._end(part) for part in ends]
        self._add(begin)
        return lines

    def rest(self) -> list[str]:
        """Return the last line if it has no end."""
        return [self._end(b"")] if self._line else []

    def _add(self, part: bytes) -> None:
        room = self._limit - len(self._line)
        self._line += part[:room]
        self._cut += max(0, len(part) - room)

    def _end(self, part: bytes) -> str:
        self._add(part)
        line = self._line.decode(errors="replace") + f" [cut: {self._cut} bytes more]" * (self._cut > 0)
        self._line, self._cut = bytearray(), 0
        return line

    def keep(self, lines: list[str]) -> None:
        data = "".join(line + "\n" for line in lines).encode()
        while data:
            data = data[os.write(self._target, data) :]


@contextlib.contextmanager
def _signals(stop: Callable[[], None]) -> Iterator[None]:
    """Let SIGINT, SIGTERM and SIGHUP (unless it is ignored, as under nohup) ask for an end."""

    def handle(number: int, frame: FrameType | None) -> None:
        stop()

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _kill_tree(process: "subprocess.Popen[bytes]") -> None:
    """Kill Ansible and all below it; its workers are in sessions of their own, so no process group has them all."""
    if process.poll() is not None:
        return
    table = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=False).stdout
    children: dict[int, list[int]] = {}
    for line in table.splitlines():
        child, parent = map(int, line.split())
        children.setdefault(parent, []).append(child)
    doomed = [process.pid]
    for pid in doomed:
        doomed += children.get(pid, [])
    for pid in doomed:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
