"""docs/operations.md has each verb, options that exist, and output that tests/recordings.py records."""

import re
from collections.abc import Iterator

import pytest
import typer

from clusterctl.cli.app import app
from clusterctl.cli.groups import _SECTIONS
from tests.labs import REPOSITORY
from tests.recordings import BLOCK, PAGE, RECORDINGS, SHOWN_NETWORK, abridged, written

TEXT = PAGE.read_text(encoding="utf-8")
PROSE = BLOCK.sub("", TEXT)
VERBS = [verb for verbs in _SECTIONS.values() for verb in verbs]
ANSIBLE_OPTIONS = {"--extra-vars"}


def options(verb: str) -> set[str]:
    """Return the options of a verb, and of the verbs below it."""

    def of(command: object) -> Iterator[str]:
        for parameter in getattr(command, "params", ()):
            yield from (*parameter.opts, *parameter.secondary_opts)
        for below in getattr(command, "commands", {}).values():
            yield from of(below)

    group = typer.main.get_command(app)
    command = group.get_command(None, verb)  # type: ignore[attr-defined]
    return {"--help", *of(command)}


def named_options() -> Iterator[tuple[str, str]]:
    """Yield (verb, option) of each option on the page; the verb is empty where any may be meant."""
    section = ""
    for part in re.split(r"(?m)^(?=#+ )", TEXT):
        title = re.match(r"(#+) (.*)", part)
        if title and len(title[1]) < 4:
            section = title[2] if title[2] in VERBS else ""
        for match in BLOCK.finditer(part):
            words = match["command"].partition("#")[0].split()
            yield from ((words[1], word) for word in words if word.startswith("-"))
        for code in re.findall(r"`([^`]+)`", BLOCK.sub("", part)):
            words = code.removeprefix("clusterctl ").split()
            if words[0] in VERBS or words[0].startswith("-"):  # not of another program
                verb = words[0] if words[0] in VERBS else section
                yield from ((verb, word) for word in words if word.startswith("-"))


@pytest.mark.proves("code", "docs/operations.md has one section for each verb, in the order of --help.")
def test_sections__of_the_page__are_the_verbs_of_the_help() -> None:
    titles = re.findall(r"(?m)^(##|###) (.*)$", PROSE)
    at = [text for _, text in titles].index(next(iter(_SECTIONS)))
    listed = [text for _, text in titles[at:]]
    assert listed[: len(VERBS) + len(_SECTIONS)] == [name for title in _SECTIONS for name in (title, *_SECTIONS[title])]


@pytest.mark.proves("code", "Options on docs/operations.md exist.")
def test_options__of_the_page__exist() -> None:
    known = {verb: options(verb) for verb in VERBS}
    anywhere = {"--version", *ANSIBLE_OPTIONS}.union(*known.values())
    found = list(named_options())
    assert len(found) > 40
    assert [one for one in found if one[1] not in (known[one[0]] if one[0] else anywhere)] == []


@pytest.mark.proves("code", "Messages that docs/operations.md quotes are the program's.")
def test_messages__of_the_page__are_in_the_sources() -> None:
    files = [*REPOSITORY.glob("clusterctl/**/*.py"), *REPOSITORY.glob("roles/*/tasks/*.yml")]
    sources = "\n".join(path.read_text(encoding="utf-8") for path in files)
    tables = re.findall(r"(?m)^\| (?:message|check|what happens) \|.*\n\|[-|]*\|\n((?:\|.*\n)+)", PROSE)
    rows = [row.split("|")[1] for table in tables for row in table.splitlines()]
    quoted = [text for row in rows for text in re.findall(r"`([^`]+)`", row) if not text.startswith("--")]
    assert len(quoted) > 20
    assert [text for text in quoted if text not in sources] == []


@pytest.mark.proves("code", "Each output on docs/operations.md is recorded from a lab.")
def test_blocks__of_the_page__are_the_recordings() -> None:
    blocks = {match["command"]: match["output"] for match in BLOCK.finditer(TEXT)}
    assert sorted(blocks) == sorted(one.command for one in RECORDINGS)
    assert [command for command, output in blocks.items() if not output.strip()] == []


@pytest.mark.proves("code", "docs/operations.md has neutral addresses and paths.")
def test_outputs__of_the_page__show_no_machine() -> None:
    addresses = re.findall(r"\b\d+\.\d+\.\d+\.\d+\b", "".join(match["output"] for match in BLOCK.finditer(TEXT)))
    assert [address for address in addresses if not address.startswith((SHOWN_NETWORK, "127."))] == []
    assert not re.search(r"(/root|/work|/tmp|\.cache)/", TEXT)
    assert str(REPOSITORY) not in TEXT


def test_written__a_recorded_command__has_its_new_output() -> None:
    page = "a\n```console\n$ clusterctl status\nold\n```\nb\n```console\n$ clusterctl logs\nkept\n```\n"
    new = "a\n```console\n$ clusterctl status\nnew\n\nend\n```\nb\n```console\n$ clusterctl logs\nkept\n```\n"
    assert written(page, {"clusterctl status": "new\n\nend"}) == new
    assert written(new, {}) == new


def test_abridged__lines_between_two_patterns__are_cut() -> None:
    shown = ["a", "b", "c", "d", "e"]
    assert abridged(shown, [("^a", "^d")]) == ["a", "...", "d", "e"]
    assert abridged(shown, [("^c", "^e"), ("^x", "^e"), ("^a", "^x")]) == shown, "a single line, and no match"
