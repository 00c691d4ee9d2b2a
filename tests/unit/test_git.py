"""Which files count as changed."""

import pytest

from tests import git

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
