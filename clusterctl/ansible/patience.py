"""Decide which hosts a run leaves behind: those that have held up the others for too long.

It starts, reads and ends nothing: it is given the events of a run, and the time.
"""

import statistics
from collections.abc import Collection

from clusterctl.ansible.events import Event, HostStarted, PlayStarted, Result, Stats, TaskStarted


class Patience:
    """How long the others have waited for each host, in seconds over the whole run.

    A host is late in a task where it takes more than twice the median time of the hosts that have completed it, once
    those are half of the hosts where it began. All of a task's hosts are in step (Ansible's linear strategy), so one
    task is under way at a time. Nobody waits for a host that has no free fork yet: it has not started.
    """

    def __init__(self, seconds: float | None, critical: Collection[str] = ()) -> None:
        self._limit = float("inf") if seconds is None else seconds
        self._critical = critical
        self._late: dict[str, float] = {}
        self._began: dict[str, float] = {}  # of the task under way, where it is not completed
        self._took: list[float] = []  # seconds on the hosts that have completed it

    def add(self, event: Event) -> None:
        """Take an event in."""
        match event:
            case PlayStarted() | TaskStarted() | Stats():
                self._began.clear()
                self._took.clear()
            case HostStarted():
                self._began[event.host] = event.at
            case Result() if event.host in self._began:
                took = event.seconds
                self._late[event.host] = self._late.get(event.host, 0.0) + self._lateness(took)
                del self._began[event.host]
                self._took.append(took)

    def exhausted(self, now: float) -> list[str]:
        """Return the hosts where a task is under way and that the others have waited for long enough."""
        return [
            host
            for host, began in self._began.items()
            if host not in self._critical and self._late.get(host, 0.0) + self._lateness(now - began) > self._limit
        ]

    def _lateness(self, took: float) -> float:
        """Return for how many of the seconds that the task under way took on a host the others waited for it."""
        if not self._took or len(self._took) < len(self._began):
            return 0.0
        return max(0.0, took - 2 * statistics.median(self._took))
