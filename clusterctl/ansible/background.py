"""Calls that continue while the next plays set up other hosts.

Ansible ends a task when its slowest host has ended it, and a play when its last task has ended. A call in the
background is the last one of its host in a play: the next plays of other hosts begin meanwhile, and the first play of
the same host waits for it, or the first task that contacts the host in a play with `__calls_continue`.
"""

import contextlib
import os
import pickle
import resource
import signal
from collections.abc import Callable, Iterator
from multiprocessing import connection
from multiprocessing.reduction import ForkingPickler
from types import FrameType
from typing import Any

from ansible.executor.process.worker import WorkerProcess
from ansible.executor.task_queue_manager import FinalQueue

from clusterctl.ansible import waiting

AVAILABLE = hasattr(os, "memfd_create")  # Linux
STATE = "background"
"""The state of a stand-in for a call that continues, and the key of its result."""
ACTIONS = frozenset({"node_state", "slurm_job_proof"})
"""The actions with an argument `in_background`."""
CONTINUE = "__calls_continue"
"""The variable of a play that begins although calls continue: a task that contacts the host of one waits for it."""


class Kept(FinalQueue):  # type: ignore[misc]
    """What the process of a call sends to Ansible, kept in memory until it has ended.

    A full pipe would stop the process, as it is read only when another play needs the result.
    """

    def __init__(self) -> None:
        """Open the memory, which the process inherits."""
        self._file = os.fdopen(os.memfd_create("clusterctl"), "w+b")

    def put(self, item: Any) -> None:
        """Add a message, in the process of the call."""
        self._file.write(ForkingPickler.dumps(item))
        self._file.flush()

    def messages(self) -> Iterator[Any]:
        """Yield all messages, after the process has ended, and free the memory."""
        with self._file:
            end = self._file.seek(0, os.SEEK_END)
            self._file.seek(0)
            while self._file.tell() < end:
                yield pickle.load(self._file)  # noqa: S301 - its own process has written it


class Call:
    """A task of one host: what Ansible's strategy keeps of it, its process, and what that sends."""

    def __init__(self, given: dict[str, Any], process: WorkerProcess, kept: Kept) -> None:
        """Keep what `given` has for the strategy: the host and the task, with its variables."""
        self.given, self.host, self.task = given, given["host"], given["task"]
        self.process = process
        self.exit_code: int | None = None
        self.messages: list[Any] = []
        self._kept = kept

    def start(self) -> None:
        """Start the process, and end it by the signals that end Ansible."""
        pass_signals_on()
        allow_descriptors()
        process, CALLS[self.host.name] = self.process, self
        waiting.in_background = True  # the process inherits it
        try:
            process.start()
        except BaseException:
            del CALLS[self.host.name]
            raise
        finally:
            waiting.in_background = False
        process.worker_queue = None  # for questions to the user: two descriptors

    def has_ended(self) -> bool:
        """Return whether the process has ended. Then its descriptors are closed, as there may be many calls."""
        if self.process and not self.process.is_alive():
            self.exit_code = self.process.exitcode
            self.messages = list(self._kept.messages()) if self.exit_code == 0 else []
            self.process.close()
            self.process = None
        return self.process is None


def stand_in(task: Any) -> Any:
    """Return a copy of the task of a call that continues. Its result is that of the task meanwhile."""
    own = task.copy(exclude_parent=True, exclude_tasks=True)
    own.action, own.args, own.register = "node_state", {"state": STATE, "of": task.action}, None
    own.when, own.changed_when, own.failed_when = [], [], []
    return own


def begun(action: str) -> dict[str, Any]:
    """Return the result of a stand-in for a call of this action, whose process has what waits."""
    facts: dict[str, list[Any]] = {waiting.fact(action): []} if action in waiting.ACTIONS else {}
    return {"changed": False, STATE: True, "ansible_facts": facts}


CALLS: dict[str, Call] = {}
"""The calls of this run that no play has waited for, by host."""


def running() -> list[WorkerProcess]:
    """Return the processes that have not ended."""
    return [call.process for call in CALLS.values() if not call.has_ended()]


def wait() -> None:
    """Wait until a process ends, for 50 ms at most."""
    connection.wait([process.sentinel for process in running()], timeout=0.05)


def allow_descriptors() -> None:
    """Allow as many open files as the system does: a call has some of its own, besides those of Ansible's forks."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def pass_signals_on() -> None:
    """End the calls by the signals that end Ansible: each leads a session of its own."""
    for number in (signal.SIGTERM, signal.SIGINT):
        before = signal.getsignal(number)
        if getattr(before, "__name__", "") != "pass_on" and callable(before):
            signal.signal(number, _passing_on(before))


def _passing_on(before: Callable[[int, FrameType | None], Any]) -> Callable[[int, FrameType | None], None]:
    def pass_on(number: int, frame: FrameType | None) -> None:
        for call in CALLS.values():
            if call.process and call.process.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(call.process.pid, number)
        before(number, frame)

    return pass_on
