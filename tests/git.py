"""What git says of this checkout."""

import ast
import math
from collections.abc import Collection

from tests import programs
from tests.labs import REPOSITORY

# A run writes these itself.
WRITTEN = ("tests/ledger.json", "docs/proof.md")


def _git(*argv: str) -> list[str] | None:
    """Return the lines of a git command's output, or None where it failed."""
    done = programs.call(["git", *argv], 60, cwd=REPOSITORY)
    return done.stdout.splitlines() if done.returncode == 0 else None


def changed_since(commit: str) -> Collection[str] | None:
    """Return the paths that differ from a commit's, new files included; None where this clone has no such commit.

    A test file that does the same is left out: only its comments, docstrings or promises differ.
    """
    changed = _differing(commit)
    return None if changed is None else {path for path in changed if not _does_the_same(commit, path)}


def commits_since(commit: str) -> float:
    """Return how many commits the checked out one has beyond this one; infinity where this clone has no such commit."""
    count = _git("rev-list", "--count", f"{commit}..HEAD", "--")
    return math.inf if count is None else int(count[0])


def is_ancestor(commit: str) -> bool:
    """Return whether the checked out commit is this one or comes from it."""
    return _git("merge-base", "--is-ancestor", commit, "HEAD") is not None


def is_whole() -> bool:
    """Return whether this is a clone with all of its history."""
    return _git("rev-parse", "--is-shallow-repository") == ["false"]


def clean_commit() -> str | None:
    """Return the commit that is checked out, or None where the files differ from it."""
    head = _git("rev-parse", "--short=12", "HEAD")
    return head[0] if head and not (_differing("HEAD") or set()) - set(WRITTEN) else None


def _differing(commit: str) -> set[str] | None:
    changed = _git("diff", "--name-only", "--no-renames", commit, "--")
    return None if changed is None else {*changed, *(_git("ls-files", "--others", "--exclude-standard") or [])}


def _does_the_same(commit: str, path: str) -> bool:
    if not (path.startswith("tests/") and path.endswith(".py")):
        return False
    old, new = _git("show", f"{commit}:{path}"), REPOSITORY / path
    return old is not None and new.exists() and program("\n".join(old)) == program(new.read_text())


def program(source: str) -> str:
    """Return what a Python file does: its syntax tree without comments, docstrings and `proves` markers."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            node.decorator_list = [one for one in node.decorator_list if "pytest.mark.proves(" not in ast.unparse(one)]
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            node.body = node.body[ast.get_docstring(node) is not None :]
    return ast.dump(tree)
