"""Pages, code and plays: links lead to existing headings, and texts use plain technical English."""

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.labs import REPOSITORY

GENERATED = {"proof.md", "variables.md", "ports.md", "packages.md"}
PAGES = [
    *(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted(path for path in (REPOSITORY / "docs").glob("*.md") if path.name not in GENERATED),
]
# Plain words: restart, validate, fix, no user, unhealthy, is in, list, remove, add, print, anyone, continue, no limit.
WORDS = re.compile(
    r"\b(anew|for ever|go(?:es)? on|judge[sd]?|mend(?:s|ed)?|nobody|sick|somebody|stands? in|lies in|lay out|"
    r"takes? (?:back|in|out)|taken (?:back|in|out)|tells?|told|whoever)\b",
    re.IGNORECASE,
)
CODE_WORDS = re.compile(
    WORDS.pattern
    + r"|\b(anybody|for want of|go(?:ne|ing) on|went on|it is for \w+ to|judging|unjudged|lest|lies on|mending|of ours|"
    r"theirs|took (?:back|in|out))\b",
    re.IGNORECASE,
)
# Directories whose comments, docstrings and string literals use plain words. Add one as a line of its own.
CODE = (
    "clusterctl/cli",
    "clusterctl/commands",
    "clusterctl/run",
    "inventory",
    "playbooks",
)
SUFFIXES = (".py", ".yaml", ".yml")
CODE_NAME = re.compile(r"`[^`]*`|\w+\.\w+")
# Parts of lines that are not rewritten yet.
PENDING = (
    "for want of the record",
    "would be judged by the end",
    "nobody publishes for its system",
)


def headings(page: Path) -> set[str]:
    """The anchors of a page, as forges make them."""
    found = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^a-z0-9 -]", "", text.lower()).strip().replace(" ", "-") for text in found}


@pytest.mark.proves("code", "Links between the pages lead to pages and headings that exist.")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.name))
def test_links__of_a_page__lead_somewhere(page: Path) -> None:
    for path, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", page.read_text(encoding="utf-8")):
        if not path.startswith("http"):
            target = page.parent / path if path else page
            assert target.exists(), path
            assert not anchor or anchor in headings(target), f"{path}#{anchor}"


@pytest.mark.proves("code", "Pages for people use the field's words.")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.name))
def test_words__of_a_page__are_plain(page: Path) -> None:
    text = re.sub(r"(?s)```.*?```|`[^`]*`", "", page.read_text(encoding="utf-8"))
    found = [line for line in text.splitlines() if WORDS.search(line)]
    assert found == []


@pytest.mark.proves("code", "Names of plays and tasks use the field's words.")
def test_words__of_plays_and_tasks__are_plain() -> None:
    files = [*(REPOSITORY / "playbooks").glob("*.yml"), *(REPOSITORY / "roles").glob("*/tasks/*.yml")]
    names = [name for file in files for name in re.findall(r"(?m)^\s*- name: (.*)$", file.read_text(encoding="utf-8"))]
    assert len(names) > 150
    assert [name for name in names if WORDS.search(name)] == []


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of the comments and string literals of a Python file, or of the comments of a YAML file."""
    if path.suffix == ".py":
        kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
        for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
            if token.type in kinds:
                yield from enumerate(token.string.splitlines(), token.start[0])
    else:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            yield number, line.partition("#")[2]


@pytest.mark.proves("code", "Comments, docstrings and messages use the field's words.")
@pytest.mark.parametrize("directory", CODE)
def test_words__of_comments_and_strings__are_plain(directory: str) -> None:
    paths = [path for path in (REPOSITORY / directory).rglob("*") if path.suffix in SUFFIXES]
    lines = [(path.relative_to(REPOSITORY), number, text) for path in paths for number, text in texts(path)]
    assert len(lines) > 5
    found = [
        f"{path}:{number}: {text.strip()}"
        for path, number, text in lines
        if CODE_WORDS.search(CODE_NAME.sub("", text)) and not any(part in text for part in PENDING)
    ]
    assert found == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.name))
def test_pictures__of_a_page__are_there_and_load_nothing(page: Path) -> None:
    for path in re.findall(r'(?:src|srcset)="([^"]+)"', page.read_text(encoding="utf-8")):
        text = (page.parent / path).read_text(encoding="utf-8")
        assert not re.search(r"url\(\s*['\"]?http|href|@import|@font-face|<script|<image", text), path
