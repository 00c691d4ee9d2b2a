"""What is kept of past runs in `.clusterctl/runs`: read only, and believed no more than any other file there."""

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from clusterctl.ansible.run_directory import NAME
from clusterctl.run import lock
from clusterctl.util import files
from clusterctl.util.text import fold, printable, roughly
from clusterctl.workspace import home

_MAX_SUMMARY = 256 << 20  # of 500 nodes, each with some hundred changes
_NOT_READY, _CHANGES = 3, 10
_MAX_NODES = 5000
_BUILDS = ("bootstrap", "restore", "add-node", "remove-node", "replace-node", "upgrade", "reboot")
"""Verbs that go to a whole cluster, or to one that is there already."""


@dataclass(frozen=True)
class Run:
    """One run. Without an exit code it was killed, or is under way.

    `check`, `limit`, `planned` (the verb that a plan is of, or what `secret` did) and `nodes`: what it was asked for.
    """

    name: str
    verb: str
    began: datetime
    check: bool = False
    limit: str = ""
    planned: str = ""
    nodes: tuple[str, ...] = ()
    exit_code: int | None = None
    error: str = ""
    seconds: float | None = None
    under_way: bool = False

    @property
    def asked(self) -> str:
        """Return what tells it from others of its verb, about as it is typed."""
        words = [self.planned] if self.planned else ["--check"] * self.check
        words += [fold(self.nodes)] if self.nodes else []
        return " ".join([*words, *[f"--limit {shlex.quote(self.limit)}"] * bool(self.limit)])

    @property
    def well(self) -> bool:
        """Return whether it did what it was to do."""
        return self.exit_code == 0 or (self.verb == "plan" and self.exit_code == _CHANGES)

    @property
    def result(self) -> str:
        """Return what became of it, in words."""
        if self.exit_code is None:
            return "under way" if self.under_way else "did not end: it was killed, or its machine went down"
        if self.well:
            return "ok" if self.exit_code == 0 else "changes to make"
        if self.exit_code == _NOT_READY:
            return f"nodes were not ready, nothing was changed: {self.error}"
        return self.error or f"exit {self.exit_code}"

    @property
    def verdict(self) -> str:
        """Return the same in a few words, for a line among others."""
        if self.exit_code is None:
            return "under way" if self.under_way else "killed"
        if self.exit_code == _NOT_READY:
            return "nodes not ready"
        return self.result if self.well else printable(self.error.partition(";")[0], 60) or f"exit {self.exit_code}"

    def age(self, now: datetime) -> str:
        """Return how long ago it began, in one unit: `12 s ago`, `3 days ago`."""
        return f"{roughly((now - self.began).total_seconds())} ago"

    def as_dict(self) -> dict[str, Any]:
        """Return what `--output json` prints of it."""
        return {
            "run": self.name,
            "verb": self.verb,
            "began": f"{self.began:%Y-%m-%dT%H:%M:%SZ}",
            "check": self.check,
            "limit": self.limit or None,
            "planned": self.planned or None,
            "nodes": list(self.nodes),
            "exit_code": self.exit_code,
            "error": self.error or None,
            "result": self.result,
            "seconds": self.seconds,
            "under_way": self.under_way,
        }


def folder(directory: Path) -> Path:
    """Return where the runs of the cluster in `directory` are kept."""
    return directory / home.STATE / "runs"


def names(directory: Path) -> list[str]:
    """Return the names of all runs, newest first."""
    try:
        found = [path for path in files.listing(folder(directory)) if path.is_dir() and not path.is_symlink()]
    except files.UnfitError:
        return []
    # Of two in one second the later one has a number: without it first, then 2, 3, ... 10.
    kept = [(match[1], int((match[3] or "-1")[1:]), path.name) for path in found if (match := _match(path.name))]
    return [name for _, _, name in sorted(kept, reverse=True)]


def _match(name: str) -> re.Match[str] | None:
    match = NAME.fullmatch(name)
    return match if match and _time(match[1]) else None


def _time(text: str) -> datetime | None:
    try:
        return datetime.strptime(text, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        return None


def past(directory: Path) -> Iterator[Run]:
    """Yield all runs, newest first."""
    yield from (load(directory, name) for name in names(directory))


def latest(directory: Path) -> Run | None:
    """Return the newest run; None before the first."""
    return next(past(directory), None)


def built(directory: Path) -> bool:
    """Tell whether a run has set the cluster up, on all nodes or on all but some workers."""
    return any(not run.check and run.verb in _BUILDS and run.exit_code in (0, 4) for run in past(directory))


def load(directory: Path, name: str) -> Run:
    """Return the run of this name, which is one of `names`."""
    match = _match(name)
    began = _time(match[1]) if match else None
    if match is None or began is None:
        raise ValueError(name)
    kept = summary(directory, name)
    if kept is None:
        return Run(name, match[2], began, under_way=_goes_on(directory, match[2], began))
    code, seconds, nodes = kept.get("exit_code"), kept.get("seconds"), kept.get("nodes")
    return Run(
        name,
        match[2],
        began,
        check=kept.get("check") is True,
        limit=printable(str(kept.get("limit") or ""), 400),
        planned=printable(str(kept.get("planned") or kept.get("subverb") or ""), 40),
        nodes=tuple(printable(str(name), 64) for name in nodes[:_MAX_NODES]) if isinstance(nodes, list) else (),
        exit_code=code if isinstance(code, int) and not isinstance(code, bool) else None,
        error=printable(" ".join(str(kept.get("error") or "").split()), 400),
        seconds=float(seconds) if isinstance(seconds, int | float) and not isinstance(seconds, bool) else None,
    )


def summary(directory: Path, name: str) -> dict[str, Any] | None:
    """Return the summary that the run left; None where there is none, or none that can be read."""
    try:
        data = json.loads(files.read(folder(directory) / name / "summary.json", _MAX_SUMMARY, directory))
    except (files.UnfitError, ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def _goes_on(directory: Path, verb: str, began: datetime) -> bool:
    """Tell whether the run that holds the lock is this one. The lock is not tried: that could turn a run away."""
    try:
        said = files.read(directory / home.STATE / "lock", inside=directory).decode(errors="replace")
    except files.UnfitError:
        return False
    holder = lock.holder_of(said)
    started = _time(re.sub("[-:]", "", holder.start)) if holder else None
    if holder is None or started is None or holder.is_gone():
        return False
    return holder.verb == verb and started <= began
