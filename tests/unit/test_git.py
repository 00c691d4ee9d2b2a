"""Which files count as changed."""

import math
from pathlib import Path

import pytest

from tests import git
from tests.programs import output_of

SOURCE = '''"""What it is about."""
import pytest


@pytest.mark.proves("lab", "A promise.")
@pytest.mark.long
def test_a():
    """More."""
    assert 1 + 1 == 2  # a comment
'''


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("What it is about", "Another title", True),
        ("A promise.", "Another promise.", True),
        ('@pytest.mark.proves("lab", "A promise.")\n', "", True),
        ('    """More."""\n', "", True),
        ("a comment", "another", True),
        ("1 + 1 == 2", "1 + 2 == 3", False),
        ("@pytest.mark.long\n", "", False),
        ("test_a", "test_b", False),
    ],
)
def test_program__after_an_edit__is_the_same_where_it_does_the_same(old: str, new: str, same: bool) -> None:
    assert old in SOURCE
    assert (git.program(SOURCE) == git.program(SOURCE.replace(old, new))) is same


def test_changed_since__an_unknown_commit__is_unknown() -> None:
    assert git.changed_since("0" * 40) is None


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Three commits in a row, of which the last is checked out, then one that is not in it."""
    monkeypatch.setattr(git, "REPOSITORY", tmp_path)
    for name in ("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL"):
        monkeypatch.setenv(name, "x")

    def run(*argv: str) -> str:
        return output_of(["git", *argv], 60, cwd=tmp_path).strip()

    def commit(name: str) -> str:
        run("commit", "--quiet", "--allow-empty", "--message", name)
        return run("rev-parse", "HEAD")

    run("init", "--quiet", "--initial-branch=main")
    commits = [commit(name) for name in ("first", "second", "third")]
    run("checkout", "--quiet", "-b", "other", commits[0])
    commits.append(commit("aside"))
    run("checkout", "--quiet", "main")
    return commits


def test_commits_since__three_in_a_row__counts_the_later_ones(history: list[str]) -> None:
    assert [git.commits_since(commit) for commit in history[:3]] == [2, 1, 0]
    assert git.commits_since(history[0][:12]) == 2
    assert git.commits_since("0" * 40) == math.inf


def test_is_ancestor__commit_of_another_branch__is_none(history: list[str]) -> None:
    assert [git.is_ancestor(commit) for commit in (*history, "0" * 40)] == [True, True, True, False, False]


def test_is_whole__shallow_clone_or_none__is_not(
    history: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert git.is_whole()
    output_of(["git", "clone", "--quiet", "--depth=1", f"file://{tmp_path}", tmp_path / "shallow"], 60)
    monkeypatch.setattr(git, "REPOSITORY", tmp_path / "shallow")
    assert not git.is_whole()
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    (tmp_path / "none").mkdir()
    monkeypatch.setattr(git, "REPOSITORY", tmp_path / "none")
    assert not git.is_whole()
