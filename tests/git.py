"""What git says of this checkout."""

import subprocess
from collections.abc import Collection

from tests.labs import REPOSITORY

# A run writes these itself.
WRITTEN = ("tests/ledger.json", "docs/proof.md")


def _git(*argv: str) -> list[str] | None:
    """Return the lines of a git command's output, or None where it failed."""
    done = subprocess.run(
        ["git", *argv],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )
    return done.stdout.splitlines() if done.returncode == 0 else None


def changed_since(commit: str) -> Collection[str] | None:
    """Return the paths that differ from a commit's, new files included; None where this clone has no such commit."""
    changed = _git("diff", "--name-only", "--no-renames", commit, "--")
    return None if changed is None else {*changed, *(_git("ls-files", "--others", "--exclude-standard") or [])}


def clean_commit() -> str | None:
    """Return the commit that is checked out, or None where the files differ from it."""
    head = _git("rev-parse", "--short=12", "HEAD")
    return head[0] if head and not set(changed_since("HEAD") or ()) - set(WRITTEN) else None
