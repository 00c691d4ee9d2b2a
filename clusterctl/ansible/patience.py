"""Decide which hosts a run leaves behind: those that the others have waited for too long.

The only inputs are the events of the run and the time.
"""

import statistics
from collections.abc import Collection

from clusterctl.ansible.events import LOST, Event, HostStarted, PlayStarted, Result, Stats, TaskStarted


class Patience:
    """The time that the other hosts have waited for each host, in seconds over the whole run.

    A host is late when it takes more than twice the median time of the hosts that have completed the task. Lateness
    counts once half of the hosts that started the task have completed it. With Ansible's linear strategy all hosts run
    the same task. A host that waits for a free fork has not started it and is not late.

    A call in the background that had ended before the play waited for it has a result without a start: the host has
    completed the task, and no play has waited for it.
    """

    def __init__(self, seconds: float | None, critical: Collection[str] = ()) -> None:
        self._limit = float("inf") if seconds is None else seconds
        self._critical = critical
        self._late: dict[str, float] = {}
        self._began: dict[str, float] = {}  # start of the current task on the hosts that have not completed it
        self._durations: list[float] = []  # seconds on the hosts that have completed it

    def add(self, event: Event) -> None:
        """Update the times with an event."""
        match event:
            case PlayStarted() | TaskStarted() | Stats():
                self._began.clear()
                self._durations.clear()
            case HostStarted():
                self._began[event.host] = event.at
            case Result() if event.host in self._began and (not event.waited or event.status in LOST):
                self._late[event.host] = self._late.get(event.host, 0.0) + self._lateness(event.seconds)
                del self._began[event.host]
                self._durations.append(event.seconds)
            case Result() if event.ended is not None and event.status not in LOST:
                self._durations.append(event.ended)

    def exhausted(self, now: float) -> list[str]:
        """Return the hosts that run a task and whose total lateness is over the limit."""
        return [
            host
            for host, began in self._began.items()
            if host not in self._critical and self._late.get(host, 0.0) + self._lateness(now - began) > self._limit
        ]

    def _lateness(self, duration: float) -> float:
        """Return how many seconds of the current task's `duration` on a host the others have waited."""
        if not self._durations or len(self._durations) < len(self._began):
            return 0.0
        return max(0.0, duration - 2 * statistics.median(self._durations))
