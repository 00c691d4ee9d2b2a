"""Read the past runs in `.clusterctl/runs`. The files are untrusted, as all files of the directory."""

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

_MAX_SUMMARY = 256 << 20  # bytes; enough for 500 nodes with some hundred changes each
_NOT_READY, _CHANGES = 3, 10
_MAX_NODES = 5000
_BUILDS = ("bootstrap", "restore", "add-node", "remove-node", "replace-node", "upgrade", "reboot")
"""Verbs that set up a whole cluster, or need a cluster that is set up."""


@dataclass(frozen=True)
class Run:
    """One run. A run without an exit code was killed or is under way.

    `check`, `limit`, `planned` (the verb after `plan` or `secret`) and `nodes` are from its command line.
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
    def arguments(self) -> str:
        """Return the arguments of the run without its verb, about as typed."""
        words = [self.planned] if self.planned else ["--check"] * self.check
        words += [fold(self.nodes)] if self.nodes else []
        return " ".join([*words, *[f"--limit {shlex.quote(self.limit)}"] * bool(self.limit)])

    @property
    def succeeded(self) -> bool:
        """Return whether the run succeeded; a plan with changes did."""
        return self.exit_code == 0 or (self.verb == "plan" and self.exit_code == _CHANGES)

    @property
    def result(self) -> str:
        """Return the result as text."""
        if self.exit_code is None:
            return "under way" if self.under_way else "did not end: it was killed, or its machine went down"
        if self.succeeded:
            return "ok" if self.exit_code == 0 else "changes to make"
        if self.exit_code == _NOT_READY:
            return f"nodes were not ready, nothing was changed: {self.error}"
        return self.error or f"exit {self.exit_code}"

    @property
    def verdict(self) -> str:
        """Return the result in a few words, for a table."""
        if self.exit_code is None:
            return "under way" if self.under_way else "killed"
        if self.exit_code == _NOT_READY:
            return "nodes not ready"
        if self.succeeded:
            return self.result
        return printable(self.error.partition(";")[0], 60) or f"exit {self.exit_code}"

    def age(self, now: datetime) -> str:
        """Return the time since the run began, in one unit: `12 s ago`, `3 days ago`."""
        return f"{roughly((now - self.began).total_seconds())} ago"

    def as_dict(self) -> dict[str, Any]:
        """Return the run for `--output json`."""
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
    """Return the directory that has the runs of the cluster in `directory`."""
    return directory / home.STATE / "runs"


def names(directory: Path) -> list[str]:
    """Return the names of all runs, newest first."""
    try:
        found = [path for path in files.listing(folder(directory)) if path.is_dir() and not path.is_symlink()]
    except files.UnfitError:
        return []
    # If runs begin in the same second, the first has no number and the later ones have 2, 3, ... 10.
    keys = [(match[1], int((match[3] or "-1")[1:]), path.name) for path in found if (match := _match(path.name))]
    return [name for _, _, name in sorted(keys, reverse=True)]


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
    """Return whether a run has set up the cluster, on all nodes or on all except some workers."""
    return any(not run.check and run.verb in _BUILDS and run.exit_code in (0, 4) for run in past(directory))


def load(directory: Path, name: str) -> Run:
    """Return the run with this name, one of `names`. Raises ValueError for another name."""
    match = _match(name)
    began = _time(match[1]) if match else None
    if match is None or began is None:
        raise ValueError(name)
    kept = summary(directory, name)
    if kept is None:
        return Run(name, match[2], began, under_way=_is_under_way(directory, match[2], began))
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
    """Return the summary of a run; None if it does not exist or is not readable."""
    try:
        data = json.loads(files.read(folder(directory) / name / "summary.json", _MAX_SUMMARY, directory))
    except (files.UnfitError, ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def _is_under_way(directory: Path, verb: str, began: datetime) -> bool:
    """Return whether this run holds the lock. Only reads the file: trying the lock could make another run fail."""
    try:
        content = files.read(directory / home.STATE / "lock", inside=directory).decode(errors="replace")
    except files.UnfitError:
        return False
    holder = lock.holder_of(content)
    started = _time(re.sub("[-:]", "", holder.start)) if holder else None
    if holder is None or started is None or holder.is_gone():
        return False
    return holder.verb == verb and started <= began
