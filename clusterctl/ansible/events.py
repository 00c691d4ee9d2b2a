"""Parse the JSON lines of clusterctl's Ansible callback into typed events.

plugins/callback/clusterctl_events.py writes them. Their text comes from nodes and is not trusted: a line that is not a
JSON object of a known kind is ignored, and a missing or invalid field gets its empty value.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_args

Status = Literal["ok", "changed", "failed", "skipped", "unreachable", "behind", "rescued", "waits", "runs"]
_STATUSES = frozenset(get_args(Status))
LOST: frozenset[Status] = frozenset({"failed", "unreachable"})
"""After one of these statuses nothing more runs on the host. After `behind` the host continues later."""


@dataclass(frozen=True)
class Change:
    """One change by a task: `file`, `/etc/munge/munge.key`, `content`, `changed`.

    `what` is text for people; code reads only the other fields. `action` is one of ACTIONS in
    plugins/module_utils/node_state/tools.py. `old` and `new` are a package's versions or a setting's values, or empty.
    """

    kind: str
    name: str
    what: str
    action: str = "changed"
    old: str = ""
    new: str = ""

    def as_dict(self) -> dict[str, str]:
        """Return the change as a dictionary with the keys of events."""
        keys = ("kind", "name", "action", "what", "from", "to")
        values = (self.kind, self.name, self.action, self.what, self.old, self.new)
        return dict(zip(keys, values, strict=True))


@dataclass(frozen=True)
class PlaybookStarted:
    """The names of all plays, and whether the run is in check mode.

    Ansible ends the run after a play in which every host failed.
    """

    plays: tuple[str, ...]
    check: bool = False


@dataclass(frozen=True)
class PlayStarted:
    """A play starts. `hosts` are those that its pattern matches (also failed ones), `roles` its roles, in order."""

    name: str
    pattern: str = ""
    hosts: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()


@dataclass(frozen=True)
class TaskStarted:
    """A task starts on the play's hosts; `role` is empty for a task of the play itself."""

    play: str
    role: str
    task: str
    path: str


@dataclass(frozen=True)
class HostStarted:
    """The task that began last is under way on a host. `at` is of `time.monotonic`, which all processes share.

    There is none for a task that waits for a node to come back: it has a limit of its own.
    """

    host: str
    at: float


@dataclass(frozen=True)
class Result:
    """The result of a task on one host.

    `waits`: a later task applies it, and then it has a second result, with `waited`. `runs`: it is applied in the
    background of other plays, and has a second result in a later play of the host. `rescued`: it failed, and a rescue
    block handles that. `behind`: it is so slow that the other hosts continue. The controller decides that
    (patience.py); to Ansible the host is unreachable.
    `path` is `file:line`, relative to the Ansible content; `versions` maps packages to their installed versions.
    `ended`: the seconds of a call in the background, all that it applied, which had ended before a play waited for it.
    """

    host: str
    role: str
    task: str
    path: str
    status: Status
    message: str = ""
    seconds: float = 0.0
    changes: tuple[Change, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    waited: bool = False
    ended: float | None = None


@dataclass(frozen=True)
class HostStats:
    """Ansible's own count of results on one host."""

    ok: int = 0
    changed: int = 0
    failed: int = 0
    unreachable: int = 0
    skipped: int = 0


@dataclass(frozen=True)
class Stats:
    """The counts of all hosts, after the last play."""

    hosts: Mapping[str, HostStats]


@dataclass(frozen=True)
class Stopped:
    """The run was stopped: the running tasks have ended, no other was started."""


@dataclass(frozen=True)
class Ended:
    """Ansible has ended the playbook, successfully or not."""


Event = PlaybookStarted | PlayStarted | TaskStarted | HostStarted | Result | Stats | Stopped | Ended


def parse(line: str) -> Event | None:
    """Return the event of one line; None for an empty, truncated or unknown line."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return None
    make = _MAKERS.get(str(data.get("event"))) if isinstance(data, dict) else None
    return make(data) if make else None


def _text(data: Mapping[str, Any], key: str) -> str:
    value = data.get(key)
    return value if isinstance(value, str) else ""


def _texts(data: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = data.get(key)
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()


def _number(data: Mapping[str, Any], key: str) -> float:
    value = data.get(key)
    return float(value) if isinstance(value, int | float) else 0.0


def _mapping(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = data.get(key)
    return value if isinstance(value, dict) else {}


def _play(data: Mapping[str, Any]) -> Event:
    return PlayStarted(_text(data, "name"), _text(data, "pattern"), _texts(data, "hosts"), _texts(data, "roles"))


def _task(data: Mapping[str, Any]) -> Event:
    return TaskStarted(_text(data, "play"), _text(data, "role"), _text(data, "task"), _text(data, "path"))


def _result(data: Mapping[str, Any]) -> Event | None:
    status = _text(data, "status")
    if status not in _STATUSES:
        return None
    changes = data.get("changes")
    return Result(
        host=_text(data, "host"),
        role=_text(data, "role"),
        task=_text(data, "task"),
        path=_text(data, "path"),
        status=cast(Status, status),
        message=_text(data, "message"),
        seconds=_number(data, "seconds"),
        changes=tuple(
            _change(change) for change in (changes if isinstance(changes, list) else ()) if isinstance(change, dict)
        ),
        versions={k: v for k, v in _mapping(data, "versions").items() if isinstance(v, str)},
        notes=_texts(data, "notes"),
        waited=data.get("waited") is True,
        ended=_number(data, "ended") if "ended" in data else None,
    )


def _change(data: Mapping[str, Any]) -> Change:
    texts = {key: _text(data, key) for key in ("kind", "name", "what", "action", "from", "to")}
    return Change(
        texts["kind"], texts["name"], texts["what"], texts["action"] or "changed", old=texts["from"], new=texts["to"]
    )


def _stats(data: Mapping[str, Any]) -> Event:
    keys = ("ok", "changed", "failed", "unreachable", "skipped")
    return Stats(
        {
            host: HostStats(**{key: int(_number(counts, key)) for key in keys})
            for host, counts in _mapping(data, "hosts").items()
            if isinstance(counts, dict)
        }
    )


_MAKERS: Mapping[str, Callable[[Mapping[str, Any]], Event | None]] = {
    "playbook": lambda data: PlaybookStarted(_texts(data, "plays"), data.get("check") is True),
    "play": _play,
    "task": _task,
    "started": lambda data: HostStarted(_text(data, "host"), _number(data, "at")),
    "result": _result,
    "stats": _stats,
    "stopped": lambda data: Stopped(),
    "end": lambda data: Ended(),
}
