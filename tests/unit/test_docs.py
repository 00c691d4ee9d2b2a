"""The pages that people write: their links lead somewhere. Their words are plain, and so are those of the code."""

import io
import re
import tokenize
from pathlib import Path

import pytest

from tests.cluster import cis
from tests.labs import REPOSITORY

GENERATED = {"proof.md", "variables.md", "ports.md", "packages.md"}
PAGES = [
    *(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted(path for path in (REPOSITORY / "docs").rglob("*.md") if path.name not in GENERATED),
]
# What the field says instead: restart, check, repair, no limit, no user, unhealthy, add, remove, undo, continue, is in.
WORDS = re.compile(
    r"\b(anew|for ever|go(?:es)? on|judge[sd]?|mend(?:s|ed)?|nobody|sick|somebody|stands? in|lies in|lay out|"
    r"takes? (?:back|in|out)|taken (?:back|in|out)|tells?|told|whoever)\b",
    re.IGNORECASE,
)

# In the code also words of our own, and words that no technical text needs.
CODE_WORDS = re.compile(
    rf"{WORDS.pattern}|\b(anybody|for want of|lest|of ours|somebody else's|takes? (?:it|them|what)|theirs)\b",
    re.IGNORECASE,
)
CODE = ("clusterctl", "inventory", "playbooks", "plugins", "roles")
SUFFIXES = {"", ".c", ".h", ".py", ".service", ".sh", ".yaml", ".yml"}


def code() -> list[Path]:
    """Return the files of the code whose texts are checked."""
    found = (path for folder in CODE for path in (REPOSITORY / folder).rglob("*") if path.suffix in SUFFIXES)
    return sorted(path.relative_to(REPOSITORY) for path in found if path.is_file() and "__pycache__" not in path.parts)


def texts(path: Path) -> list[tuple[int, str]]:
    """Return the comments, docstrings and strings of a file, or all its lines if it is no Python, with their lines."""
    source = (REPOSITORY / path).read_text(encoding="utf-8")
    if path.suffix == ".py" or source.startswith("#!/usr/bin/python3"):
        kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        found = [(token.start[0], token.string) for token in tokens if token.type in kinds]
    else:
        found = [(number, re.sub(r"\{\{.*?\}\}", "", line)) for number, line in enumerate(source.splitlines(), 1)]
    # Not texts: names of accounts, a single name, names in an f-string of a Python before 3.12.
    names = re.compile(r"nobody nogroup|\{[^{}]*\}|^\"\w+\"$|stands in for", re.IGNORECASE)
    return [(number, names.sub("", text)) for number, text in found]


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


@pytest.mark.proves("code", "Comments and messages of the code use the field's words.")
def test_words__of_the_code__are_plain() -> None:
    files = code()
    assert len(files) > 200
    found = [f"{path}:{number}: {text}" for path in files for number, text in texts(path) if CODE_WORDS.search(text)]
    assert found == []


def test_readme__first_screen__shows_both_schedulers() -> None:
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    first, _, rest = text.partition("\n## Your own servers\n")
    assert all(word in "\n".join(first.splitlines()[:24]) for word in ("Slurm", "Kubernetes", "--kubernetes"))
    assert "--scheduler kubernetes" in rest.partition("\n## ")[0]
    assert {"kubernetes_head", "slurm_head"} <= set(re.findall(r"\b\w+_head\b", rest))
    tested = rest.partition("\n## What is tested, and where\n")[2]
    assert tested.count("\n| Kubernetes: ") == 2, "what runs in a lab, and what does not"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.name))
def test_pictures__of_a_page__are_there_and_load_nothing(page: Path) -> None:
    for path in re.findall(r'(?:src|srcset)="([^"]+)"', page.read_text(encoding="utf-8")):
        picture = page.parent / path
        if picture.suffix == ".png":
            assert picture.read_bytes().startswith(b"\x89PNG\r\n\x1a\n"), path
            continue
        text = picture.read_text(encoding="utf-8")
        assert not re.search(r"url\(\s*['\"]?http|href|@import|@font-face|<script|<image", text), path


def test_cis__page__is_written_from_its_items() -> None:
    assert (REPOSITORY / "docs/kubernetes-cis.md").read_text(encoding="utf-8") == cis.page()
