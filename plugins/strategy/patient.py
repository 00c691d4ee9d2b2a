"""Go through a play in step, but not at the pace of a host that is far slower than the others."""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import time
from collections import deque
from typing import Any, ClassVar

from ansible.plugins.strategy.linear import StrategyModule as LinearStrategy

try:
    from ansible._internal._task import HostTaskResult, UnifiedTaskResult
except ImportError:  # ansible-core before 2.21
    from ansible.executor.task_result import _RawTaskResult

DOCUMENTATION = """
    name: patient
    short_description: Ansible's linear strategy that leaves a slow host behind
    description:
      - A host is late in a task where it takes more than twice as long as is usual there, once half of the hosts are
        through. When it has been late for as many seconds in all as the environment variable C(CLUSTERCTL_PATIENCE)
        says, the others go on without it. To Ansible it is as a host that cannot be reached, with C(behind) in the
        result; the task that it was late with goes on to its end, and what that comes to is not heard any more.
      - Without that variable, and for the hosts listed in C(CLUSTERCTL_CRITICAL), this is the linear strategy.
    author: the clusterctl authors
"""

_LOOK = 0.5  # seconds between two looks at who is late


class _Results(deque[Any]):
    """The results that have come in, without those of hosts that were left behind."""

    def __init__(self, behind: dict[str, Any]) -> None:
        super().__init__()
        self._behind = behind

    def append(self, result: Any) -> None:
        if result.host.name not in self._behind:
            super().append(result)


class StrategyModule(LinearStrategy):
    # A run has a strategy for each of its plays; a host's lateness and what it still does outlast a play.
    _late: ClassVar[dict[str, float]] = {}
    _behind: ClassVar[dict[str, Any]] = {}  # host -> its worker process
    _entries: ClassVar[dict[tuple[str, str], Any]] = {}  # what Ansible needs in order to read their results

    def __init__(self, tqm: Any) -> None:
        self._patience = float(os.environ.get("CLUSTERCTL_PATIENCE") or "inf")
        self._critical = set(os.environ.get("CLUSTERCTL_CRITICAL", "").split(","))
        self._began: dict[str, tuple[Any, float]] = {}  # host -> the task under way there, and since when
        self._took: dict[str, list[float]] = {}  # task -> how long the hosts took that are through with it
        self._looked = 0.0
        super().__init__(tqm)
        self._results = _Results(self._behind)
        self._queued_task_cache.update(self._entries)

    def _queue_task(self, host: Any, task: Any, task_vars: Any, play_context: Any) -> None:
        super()._queue_task(host, task, task_vars, play_context)  # waits until there is a free worker
        self._began[host.name] = (task, time.monotonic())

    def _process_pending_results(self, iterator: Any, one_pass: bool = False, max_passes: int | None = None) -> Any:
        now = time.monotonic()
        if now - self._looked > _LOOK:
            self._looked = now
            for host, late in [(host, self._lateness(host, now)) for host in self._began]:
                if host not in self._critical and self._late.get(host, 0.0) + late > self._patience:
                    self._leave_behind(host)
        results = super()._process_pending_results(iterator, one_pass, max_passes)
        self._queued_task_cache.update(self._entries)  # the base class drops what it has an answer to
        now = time.monotonic()
        for host in [result.host.name for result in results if result.host.name in self._began]:
            self._late[host] = self._late.get(host, 0.0) + self._lateness(host, now)
            task, began = self._began.pop(host)
            self._took.setdefault(task._uuid, []).append(now - began)
        return results

    def _lateness(self, host: str, now: float) -> float:
        """Return for how many seconds the others have waited for what is under way on a host."""
        task, began = self._began[host]
        took = self._took.get(task._uuid, [])
        waiting = sum(other._uuid == task._uuid for other, _ in self._began.values())
        return max(0.0, now - began - 2 * statistics.median(took)) if took and len(took) >= waiting else 0.0

    def _leave_behind(self, host: str) -> None:
        """Put a result of ours in the place of the one that does not come, and the worker out of Ansible's reach.

        Ansible would end a worker with the play, and whatever it does on the node would go on there, unheard. This one
        ends by itself, and the callback waits for that at the end of the run.
        """
        numbers = [number for number, worker in enumerate(self._workers) if worker and worker._host.name == host]
        task, _ = self._began[host]
        entry = self._queued_task_cache[host, task._uuid]
        with self._results_lock:
            if not numbers or any(result.host.name == host for result in self._results):
                return  # it has come just now
            self._results.append(_result(entry["host"], task))
            self._behind[host] = self._workers[numbers[0]]
        self._entries[host, task._uuid] = entry
        self._workers[numbers[0]] = None
        _pass_on(self._behind[host])


def _result(host: Any, task: Any) -> Any:
    told = {"unreachable": True, "behind": True, "msg": "far slower than the others"}
    if "HostTaskResult" in globals():
        return HostTaskResult(host=host, task=task, utr=UnifiedTaskResult.from_action_result_dict(told))
    return _RawTaskResult(host=host, task=task, return_data=told, task_fields=task.dump_attrs())


def _pass_on(worker: Any) -> None:
    """Let a signal that ends Ansible end this worker, too, as it does those that Ansible knows of."""
    before = signal.getsignal(signal.SIGTERM)

    def handle(number: int, frame: Any) -> None:
        with contextlib.suppress(ValueError, OSError):
            worker.terminate()
        before(number, frame)

    signal.signal(signal.SIGTERM, handle)
