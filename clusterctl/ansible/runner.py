"""Run a playbook: give Ansible its command, watch it, and stop it.

Its output and the events of clusterctl's callback arrive through two pipes. Their content comes from nodes. Each line
is therefore cut to a maximum size, stripped of control characters and redacted before it is written or shown.
"""

import contextlib
import json
import os
import select
import selectors
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from clusterctl.ansible import connections, events, process
from clusterctl.ansible.patience import Patience
from clusterctl.ansible.run_directory import RunDirectory
from clusterctl.util import redaction
from clusterctl.util.text import strip_controls

_TICK = 0.25  # seconds; longest wait for output before the clock is checked again
_GRACE = 3.0  # seconds that Ansible has to end after the second signal
_CHECK = 0.5  # seconds between two checks for hosts to leave behind
_PAUSED = 5.0  # seconds without a check after which this process itself was paused, for example by a stopped terminal
# Longest line, in bytes. The callback limits the texts in an event, so an event is never cut here.
_LOG_LINE, _EVENT_LINE = 1 << 16, 1 << 22
# Fields of an event that are not redacted: no node sets them, and a password could equal one of their values.
_UNREDACTED = ("event", "host", "status")


@dataclass(frozen=True)
class Command:
    """An `ansible-playbook` command. An empty `limit` means all hosts of the playbook, empty `tags` all roles.

    `user` is the login user where the inventory sets none. `variables` are the verb's parameters, never the cluster's
    configuration.
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
    tags: tuple[str, ...] = ()

    def argv(self) -> list[str]:
        """Return the arguments of `ansible-playbook`."""
        argv = ["-i", str(self.inventory)]
        # The user that preflight logs in as, where the inventory sets none. Without it Ansible calls sudo as root.
        argv += ["--user", self.user] if self.user else []
        argv += ["--vault-password-file", str(self.vault_password_file)] if self.vault_password_file else []
        argv.append(str(self.playbook))
        argv += ["--become-password-file", str(self.become_password_file)] if self.become_password_file else []
        argv += ["--ask-become-pass"] if self.ask_become_pass else []
        argv += ["--limit", ",".join(self.limit)] if self.limit else []
        argv += ["--tags", ",".join(self.tags)] if self.tags else []
        argv += ["--check"] if self.check else []
        argv += ["--diff"] if self.diff else []
        argv += ["--forks", str(self.forks)] if self.forks else []
        argv += ["--extra-vars", json.dumps(dict(self.variables))] if self.variables else []
        return argv + (["-" + "v" * self.verbosity] if self.verbosity else [])

    def __str__(self) -> str:
        """Return the command, quoted for a shell."""
        assignments = [f"{name}={shlex.quote(value)}" for name, value in process.settings().items()]
        return " ".join([*assignments, shlex.join([*_ansible_playbook(), *self.argv()])])


def _ansible_playbook() -> list[str]:
    """Return the command of the Ansible in this Python environment, independent of PATH."""
    program = Path(sys.executable).with_name("ansible-playbook")
    return [str(program)] if program.exists() else [sys.executable, "-P", "-m", "ansible", "playbook"]


@dataclass(frozen=True)
class Output:
    """A line of Ansible's output, redacted and without control characters."""

    text: str


class Runner:
    """One run of Ansible. The caller iterates over `watch()` to its end.

    After the first SIGINT, SIGTERM or SIGHUP the running tasks complete and no other task starts. The second signal
    ends Ansible immediately. `stop()` has the effect of a signal. No task starts after a failure on a `critical` host
    either. Ansible itself would continue with the other hosts in the next play.

    A host is left behind when the others have waited for it for `patience` seconds in total. Its connections are closed
    and it gets no new one. Ansible reports it as unreachable; the result here is `behind`. Its running task continues
    on the node.
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
        prepared: process.Process | None = None,
    ) -> None:
        self._command, self._directory, self._lock = command, directory, lock
        self._become_password = become_password
        self._patience, self._checked_at = Patience(patience, critical), 0.0
        self._behind: set[str] = set()
        self._critical, self._redact, self._notify = critical, redact, notify
        self._prepared = prepared
        self._process: subprocess.Popen[bytes] | None = None
        self._stop_file = directory.path / "stop"
        self._stops = 0
        self._killed_at: float | None = None
        self.trouble: OSError | None = None  # the first error in writing the run directory

    @property
    def stopped(self) -> bool:
        return self._stops > 0

    def stop(self) -> None:
        """Stop the run: the first call after the running tasks, the second call immediately."""
        self._stops += 1
        self._notify(self._stops > 1)
        if self._stops == 1:
            try:
                self._stop_file.touch(mode=0o600)
            except OSError as error:  # a full disk must not prevent the stop
                self.trouble = error
                self._terminate()
        elif self._stops == 2:
            self._terminate()

    def _terminate(self) -> None:
        if self._process and self._killed_at is None:
            self._killed_at = time.monotonic()
            # Ansible forwards the signal to its workers. Each leads a session that also has its ssh.
            self._process.send_signal(signal.SIGTERM)

    def watch(self) -> Iterator[events.Event | Output | None]:
        """Run Ansible and yield its events and lines; yield None a few times a second for a clock.

        Closing the iterator before its end kills Ansible.
        """
        ansible = self._prepared or process.Process(self._command.inventory, self._lock)
        try:
            with _signals(self.stop), contextlib.ExitStack() as stack:
                yield from self._watch(ansible, stack)
        finally:
            try:
                self._stop_file.unlink(missing_ok=True)
            finally:
                ansible.close()

    def _watch(self, ansible: process.Process, stack: contextlib.ExitStack) -> Iterator[events.Event | Output | None]:
        log = _Pipe(ansible.log, self._directory.open(self._directory.log), False, stack)
        event_pipe = _Pipe(ansible.events, self._directory.open(self._directory.events), True, stack)
        channel = {"CLUSTERCTL_STOP": str(self._stop_file), "CLUSTERCTL_CRITICAL": ",".join(sorted(self._critical))}
        argv = [*self._command.argv(), "--extra-vars", json.dumps(connections.variables(ansible.private))]
        password = None
        if self._command.ask_become_pass:  # clusterctl has asked already and passes the answer on through stdin only
            argv = [word for word in argv if word != "--ask-become-pass"] + ["--become-password-file", "-"]
            password = self._become_password
        child = self._process = ansible.child
        ansible.begin(argv, channel, password)
        if self._stops > 1:
            self._terminate()
        with selectors.DefaultSelector() as selector:
            for pipe in (log, event_pipe):
                selector.register(pipe.source, selectors.EVENT_READ, pipe)
            while child.poll() is None:
                if not selector.get_map():
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        child.wait(_TICK)
                for key, _ in selector.select(_TICK) if selector.get_map() else ():
                    yield from self._read(key.data)
                    if key.data.at_end:
                        selector.unregister(key.data.source)
                if self._killed_at is not None and time.monotonic() - self._killed_at > _GRACE:
                    process.kill_tree(child)
                if not event_pipe.has_more():
                    self._leave_behind(ansible.private)
                yield None
        for pipe in (log, event_pipe):
            # Do not wait for the end of the pipe: a grandchild may keep it open for long.
            while pipe.has_more():
                yield from self._read(pipe)
            yield from self._process_lines(pipe, pipe.rest())

    def _leave_behind(self, private: Path) -> None:
        """Close the connections of hosts that have exhausted the patience of the others.

        A host that is about to connect has no socket yet. The next check closes it.
        """
        now = time.monotonic()
        since = now - self._checked_at
        if since < _CHECK:
            return
        self._checked_at = now
        if since > _PAUSED:  # results that arrived meanwhile may be unread
            return
        for host in self._patience.exhausted(now):
            self._behind.add(host)
            connections.cut(private, host)

    def _read(self, pipe: "_Pipe") -> Iterator[events.Event | Output]:
        yield from self._process_lines(pipe, pipe.read())

    def _process_lines(self, pipe: "_Pipe", lines: list[str]) -> Iterator[events.Event | Output]:
        """Clean, redact and store the lines, and yield them as events or output."""
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
                data = self._correct_status(json.loads(line))
                unredacted = {key: data[key] for key in _UNREDACTED if isinstance(data, dict) and key in data}
                return json.dumps({**redaction.throughout(data, self._redact), **unredacted}, ensure_ascii=False)
        return self._redact(line)

    def _correct_status(self, data: Any) -> Any:
        """Return an event's data, with status `behind` for a host whose connections this run has closed."""
        if isinstance(data, dict) and data.get("status") == "unreachable" and data.get("host") in [*self._behind]:
            return {**data, "status": "behind", "message": "much slower than the other hosts"}
        return data


class _Pipe:
    """A pipe from Ansible, and the file that stores its lines."""

    def __init__(self, source: int, target: int, is_events: bool, stack: contextlib.ExitStack) -> None:
        self.is_events, self.source = is_events, source
        self.at_end = False
        self._target = target
        self._limit = _EVENT_LINE if is_events else _LOG_LINE
        self._line = bytearray()
        self._cut = 0  # bytes of the line over the limit
        os.set_blocking(self.source, False)
        stack.callback(os.close, target)

    def has_more(self) -> bool:
        return not self.at_end and bool(select.select([self.source], [], [], 0)[0])

    def read(self) -> list[str]:
        """Return the lines that are complete."""
        data = os.read(self.source, 1 << 16)
        self.at_end = not data
        *ends, begin = data.split(b"\n")
        lines = [self._end(part) for part in ends]
        self._add(begin)
        return lines

    def rest(self) -> list[str]:
        """Return the last line if it has no line end."""
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
    """Call `stop` on SIGINT, SIGTERM and SIGHUP. An ignored SIGHUP, as under nohup, stays ignored."""

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
