"""Compute the result of a run from its events: per role, per host, and as an exit code.

Ansible's exit code is not sufficient: it is 0 for a misspelled group, and 4 has four different causes.
"""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from clusterctl.ansible.events import (
    LOST,
    Change,
    Ended,
    Event,
    PlaybookStarted,
    PlayStarted,
    Result,
    Stats,
    Stopped,
    TaskStarted,
)
from clusterctl.inventory import host_pattern
from clusterctl.inventory.bootstrap_plays import APPLY
from clusterctl.util.errors import ClusterctlError, HeadFailed, Interrupted, WorkersFailed
from clusterctl.util.text import fold


@dataclass
class Stage:
    """A role in a play, or the play's own tasks. A progress line shows one stage. Times are of `time.monotonic`."""

    play: str
    role: str
    total: int
    began: float
    ended: float | None = None
    task: str = ""
    answered: set[str] = field(default_factory=set)  # hosts with a result of the current task
    hosts: set[str] = field(default_factory=set)  # hosts with a result of any task
    busy: set[str] = field(default_factory=set)  # hosts where a task was not skipped
    changed: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    waiting: dict[str, int] = field(default_factory=dict)  # by host, how many tasks wait for one that applies them
    own: dict[str, float] = field(default_factory=dict)  # by host, seconds in a task of a later stage
    lent: dict[str, float] = field(default_factory=dict)  # by host, seconds of its tasks for earlier stages

    @property
    def label(self) -> str:
        return self.role or self.task

    def seconds(self, now: float) -> float:
        """Return how long the stage took, or takes until now, its part in a task of a later stage included."""
        passed = (self.ended if self.ended is not None else now) - self.began
        return max(0.0, passed + max(self.own.values(), default=0.0) - max(self.lent.values(), default=0.0))


@dataclass
class Host:
    """The result of a run on one host. `changed` counts tasks, as Ansible does."""

    ok: int = 0
    changed: int = 0
    failed: bool = False
    unreachable: bool = False
    behind: bool = False
    changes: list[tuple[str, Change]] = field(default_factory=list)  # (role, change)

    @property
    def status(self) -> str:
        if self.unreachable or self.failed:
            return "unreachable" if self.unreachable else "failed"
        return "behind" if self.behind else "ok"


class Ledger:
    """The result of a run so far. `add` updates it with each event."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.began = clock()
        self.stages: list[Stage] = []
        self.hosts: dict[str, Host] = {}
        self.failures: list[Result] = []
        self.notes: dict[str, list[str]] = {}  # note -> hosts
        self.installed: dict[str, dict[str, dict[str, str]]] = {}  # role -> package -> host -> version
        self.roles: dict[str, list[str]] = {}  # role -> hosts that ran it without a failure
        self.empty_plays: list[PlayStarted] = []
        self.plays_to_come: list[str] = []
        self.plays = 0  # of the current playbook
        self.results = 0
        self.stopped = False  # the caller sets it too: Ansible reports no event when it is killed
        self.why = "interrupted"
        self.orderly = False
        self.ended = False
        self._play = PlayStarted("")
        self._held: list[Stage] = []  # stages with tasks that wait, or continue in the background
        self._running: set[str] = set()  # hosts with a call in the background
        self._was_check = False  # whether the playbook before ran in check mode
        self._before: dict[str, int] = {}  # changes of a host by earlier playbooks
        self._left: set[str] = set()  # hosts that failed or were unreachable in the current playbook
        self._order: dict[str, int] = {}

    @property
    def stage(self) -> Stage | None:
        """Return the current stage, None between stages."""
        return self.stages[-1] if self.stages and self.stages[-1].ended is None else None

    def seconds(self) -> float:
        return self._clock() - self.began

    def _forget(self) -> None:
        """Discard all results, which are of a run in check mode. The start time stays."""
        began = self.began
        self.__init__(self._clock)  # type: ignore[misc]
        self.began = began

    def lost(self) -> set[str]:
        """Return the hosts that failed or were unreachable. No further task runs on them."""
        return {name for name, host in self.hosts.items() if host.failed or host.unreachable}

    def behind(self) -> set[str]:
        """Return the hosts that were left behind. Their remaining tasks have not run yet."""
        return {name for name, host in self.hosts.items() if host.status == "behind"}

    def ordered(self, hosts: Collection[str]) -> list[str]:
        """Return hosts in the order of the inventory."""
        return sorted(hosts, key=lambda name: (self._order.get(name, len(self._order)), name))

    def order(self, hosts: Collection[str]) -> None:
        """Set the order of hosts, some of which may not be played."""
        for name in hosts:
            self._order.setdefault(name, len(self._order))

    def add(self, event: Event) -> list[Stage]:
        """Update the result with an event. Return the stages that it ended."""
        match event:
            case PlaybookStarted():  # a run may have several, one after the other
                if self._was_check and not event.check:
                    self._forget()
                self._was_check = event.check
                self.plays_to_come, self.empty_plays, self.ended = list(event.plays), [], False
                self.plays = len(event.plays)
                self._before = {name: host.changed for name, host in self.hosts.items()}
                self._left.clear()
                for host in self.hosts.values():
                    host.behind = False
            case PlayStarted():
                ended = self._close()
                if event.name in self.plays_to_come:
                    self.plays_to_come.remove(event.name)
                self._play = event
                self.order(event.hosts)
                if not event.hosts:
                    self.empty_plays.append(event)
                return ended
            case TaskStarted():
                return self._task(event)
            case Result():
                self._result(event)
            case Stats():
                self._stats(event)
            case Stopped():
                self.stopped = self.orderly = True
                return self._close(run_ends=True)
            case Ended():
                self.ended = True
                return self._close(run_ends=True)
        return []

    @property
    def awaited(self) -> Stage | None:
        """Return a stage with calls in the background, if the current play has none of its own yet."""
        running = (one for one in self._held if self._running & one.waiting.keys())
        return next(running, None) if self.stage is None else None

    def _close(self, run_ends: bool = False) -> list[Stage]:
        """End the current stage; return what has ended, without stages with tasks that still wait."""
        stage = self.stage
        if stage:
            stage.ended = self._clock()
            self._held.append(stage)
        awaited = {host for one in self._held for host in one.waiting} - self._left - self.behind()
        if run_ends:
            self._running.clear()
            awaited.clear()
        held = [one for one in self._held if awaited & one.waiting.keys()]
        ended, self._held = [one for one in self._held if one not in held], held
        for one in ended:
            if one.role:
                earlier = self.roles.get(one.role, [])
                self.roles[one.role] = self.ordered({*earlier, *one.busy} - one.failed - set(one.waiting))
        self.roles.pop(APPLY, None)
        return [one for one in ended if one.role != APPLY]  # for people it is no stage of its own

    def _task(self, event: TaskStarted) -> list[Stage]:
        stage, ended = self.stage, list[Stage]()
        awaited = self._running & {*self._play.hosts}
        earlier = (one for one in self._held if one.role == event.role and one.play != event.play)
        if any(awaited & one.waiting.keys() for one in earlier):
            return ended  # it continued in the background, and this play waits for it
        if stage is None or stage.role != event.role:
            ended = self._close()
            total = len(set(self._play.hosts) - self._left - self.behind())
            stage = Stage(event.play, event.role, total, self._clock())
            self.stages.append(stage)
        stage.task = event.task
        stage.answered.clear()
        return ended

    def _result(self, result: Result) -> None:
        self.results += 1
        host = self.hosts.setdefault(result.host, Host())
        host.ok += result.status == "ok"
        host.changed += result.status == "changed"
        host.failed |= result.status == "failed"
        host.unreachable |= result.status == "unreachable"
        host.behind |= result.status == "behind"
        # Only node_state lists its changes. Other modules report only that they changed something.
        changes = result.changes or ((Change("task", result.task, ""),) if result.status == "changed" else ())
        host.changes.extend((result.role, change) for change in changes)
        if result.status in LOST:
            self._left.add(result.host)
            self.failures.append(result)
        for note in result.notes:
            hosts = self.notes.setdefault(note, [])
            if result.host not in hosts:
                hosts.append(result.host)
        for package, version in result.versions.items():
            self.installed.setdefault(result.role, {}).setdefault(package, {})[result.host] = version
        now = stage = self.stage
        if result.waited or result.host in self._running:
            stages = [one for one in (*self._held, now) if one and one.role == result.role]
            stages = [one for one in stages if result.waited or one.play != self._play.name]
            stage = next((one for one in stages if result.host in one.waiting), now)
        came = stage is not now
        if (came and not result.waited) or result.status in (*LOST, "behind"):
            self._running.discard(result.host)
        if not stage or result.status == "behind" or (not result.waited and stage.role != result.role):
            return
        if now:
            now.answered.add(result.host)
        if result.status in ("waits", "runs"):
            stage.waiting[result.host] = stage.waiting.get(result.host, 0) + 1
            if result.status == "runs":
                self._running.add(result.host)
            return
        if result.waited or came:
            stage.waiting[result.host] = stage.waiting.get(result.host, 0) - 1
            if stage.waiting[result.host] <= 0:
                del stage.waiting[result.host]
            stage.own[result.host] = stage.own.get(result.host, 0.0) + result.seconds
            if now and result.waited and result.host not in self._running:
                now.lent[result.host] = now.lent.get(result.host, 0.0) + result.seconds
        stage.hosts.add(result.host)
        if result.status != "skipped":
            stage.busy.add(result.host)
        if result.status == "changed":
            stage.changed.add(result.host)
        if result.status in LOST:
            stage.failed.add(result.host)

    def _stats(self, event: Stats) -> None:
        """Replace the counts by Ansible's final ones. A rescue in a playbook, or a bug, makes them differ."""
        for name, count in event.hosts.items():
            host = self.hosts.setdefault(name, Host())
            host.failed, host.unreachable = count.failed > 0, count.unreachable > host.behind
            # A task that applies what several roles describe is one to Ansible, and none if its last one fails.
            host.changed = max(host.changed, self._before.get(name, 0) + count.changed)
        self.failures = [result for result in self.failures if self.hosts[result.host].status != "ok"]

    def error(
        self,
        groups: Mapping[str, Collection[str]],
        critical: Collection[str],
        skipped: Collection[str] = (),
        more: bool = False,
    ) -> ClusterctlError | None:
        """Return the error of the run, None if it succeeded.

        `groups` has the hosts of the run by group. A run stops when one of the `critical` hosts, the heads, fails.
        `skipped` are hosts that the run skipped because they were unreachable. `more`: other playbooks follow, so a
        stop counts although it came too late to end this one.
        """
        lost = self.lost()
        if not self.ended and not self.stopped:
            return ClusterctlError("Ansible ended without finishing the playbook.")
        if heads := sorted(lost & set(critical)):
            return HeadFailed(f"the head {fold(heads)} failed; the run stopped.")
        if not self.ended or (self.stopped and (more or self.behind())):
            orderly = (self.orderly or (more and self.ended)) and not self.behind()
            running = "no task is running" if orderly else "a task may still be running on a node"
            left = f"; {fold(self.ordered(behind))} was left behind" if (behind := self.behind()) else ""
            return Interrupted(f"{self.why}{left}; {running}.")
        if lost or skipped:
            rest = f"not run: {', '.join(self.plays_to_come)}" if self.plays_to_come else "everything else is done"
            parts = [f"{fold(sorted(lost))} failed"] if lost else []
            parts += [f"{fold(skipped)} skipped"] if skipped else []
            return WorkersFailed(f"{', '.join(parts)}; {rest}.")
        certain = [play for play in self.empty_plays if not host_pattern.is_decided_by_run(play.pattern)]
        if missed := [play.name for play in certain if host_pattern.select(play.pattern, groups)]:
            return ClusterctlError(f"Ansible found no hosts for {', '.join(missed)}, although the inventory has some.")
        if not self.results:
            return ClusterctlError("Ansible ran no task.")
        return None

    def summary(self) -> dict[str, Any]:
        """Return the run as plain data for summary.json and `--output json`."""
        return {
            "seconds": round(self.seconds(), 1),
            "hosts": {
                name: {
                    "status": host.status,
                    "ok": host.ok,
                    "changed": host.changed,
                    "changes": [{"role": role, **change.as_dict()} for role, change in host.changes],
                }
                for name, host in self.hosts.items()
            },
            "stages": [
                {
                    "play": stage.play,
                    "role": stage.role,
                    "hosts": sorted(stage.hosts),
                    "changed": sorted(stage.changed),
                    "failed": sorted(stage.failed),
                    "seconds": round(stage.seconds(self._clock()), 1),
                }
                for stage in self.stages
                if stage.role != APPLY
            ],
            "roles": {
                role: {"hosts": hosts, "versions": self.installed.get(role, {})}
                for role, hosts in self.roles.items()
                if hosts
            },
            "failures": [
                {
                    "host": r.host,
                    "role": r.role,
                    "task": r.task,
                    "path": r.path,
                    "status": r.status,
                    "message": r.message,
                }
                for r in self.failures
            ],
            "notes": [{"note": note, "hosts": hosts} for note, hosts in self.notes.items()],
        }
