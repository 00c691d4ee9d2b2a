"""The errors that end a run, each with its exit code; `str()` is the whole message for the user."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from clusterctl.util.text import escape_controls, fold


@dataclass(frozen=True, order=True)
class Position:
    """A place in a file; line and column count from 1, as editors do."""

    path: Path
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}"


@dataclass(frozen=True)
class Problem:
    """One problem in the input: its position, its key, what is wrong, and a hint.

    `str()` is `file:line:col: key.path: what, got X, expected Y (did you mean Z?)`.
    """

    position: Position | None
    key: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        where = ": ".join(str(part) for part in (self.position, self.key) if part)
        text = f"{where}: {self.message}" if where else self.message
        return escape_controls(f"{text} ({self.hint})" if self.hint else text)


class ClusterctlError(Exception):
    """The base class. Raised itself, it means a bug in clusterctl (exit code 1)."""

    exit_code: ClassVar[int] = 1


class _ProblemsError(ClusterctlError):
    def __init__(self, problems: Sequence[object]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class InputError(_ProblemsError):
    """The input is not valid and no node was contacted. Has all problems, in the order of the files."""

    exit_code = 2


class PreflightError(_ProblemsError):
    """The nodes are not ready for the run; none was changed. `hint` is a way to continue without the failed nodes."""

    exit_code = 3

    def __init__(self, problems: Sequence[object], hint: str = "") -> None:
        super().__init__(problems)
        self.hint = hint


class WorkersFailed(ClusterctlError):  # noqa: N818 - named for what happened, like the others
    """Some workers failed; the other nodes are complete."""

    exit_code = 4


class HeadFailed(ClusterctlError):  # noqa: N818
    """The head failed; the later steps of the run were not started."""

    exit_code = 5


class Locked(ClusterctlError):  # noqa: N818
    """Another run holds the cluster's lock."""

    exit_code = 6


class Interrupted(ClusterctlError):  # noqa: N818
    """A signal ended the run, or the user did not confirm."""

    exit_code = 7


@dataclass(frozen=True)
class Finding:
    """One problem of a node, or a warning."""

    node: str
    check: str
    found: str
    hint: str = ""
    warning: bool = False

    def __str__(self) -> str:
        text = f"{self.node}: {self.check}: {self.found}"
        return f"{text} ({self.hint})" if self.hint else text


def together(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings that differ by their nodes alone as one, which names the nodes."""
    nodes: dict[tuple[str, str, str, bool], list[str]] = {}
    for one in findings:
        nodes.setdefault((one.check, one.found, one.hint, one.warning), []).append(one.node)
    return [Finding(fold(dict.fromkeys(names)), *rest) for rest, names in nodes.items()]
