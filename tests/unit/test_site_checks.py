"""The site's own checks of a node: what they report, and which programs are run."""

import os
from pathlib import Path

import pytest

from tests.unit.test_gpu_health import installed

SITE = installed("site_checks")


def found(directory: Path, seconds: float = 5.0, **commands: str) -> list[tuple[str, bool]]:
    return all_of(directory, commands, seconds)


def all_of(directory: Path, commands: dict[str, str], seconds: float = 5.0) -> list[tuple[str, bool]]:
    return list(SITE.problems(commands, {}, seconds, directory))


def add(directory: Path, name: str, text: str, mode: int = 0o755) -> None:
    (directory / name).write_text(text)
    (directory / name).chmod(mode)


def test_problems__of_checks_that_succeed__are_none(tmp_path: Path) -> None:
    add(tmp_path, "fine", "#!/bin/sh\necho all is well\n")
    add(tmp_path, "README", "not a program", 0o644)
    (tmp_path / "folder").mkdir()
    assert found(tmp_path, scratch="true", other="echo text") == []
    assert found(tmp_path / "missing") == []


@pytest.mark.skipif(os.geteuid() != 0, reason="a program that is run belongs to root")
def test_problems__of_checks_that_fail__are_their_first_lines(tmp_path: Path) -> None:
    add(tmp_path, "licence", "#!/bin/sh\necho >&2\necho '  no licence ' >&2\necho more\nexit 3\n")
    add(tmp_path, "quiet", "#!/bin/sh\nexit 4\n")
    add(tmp_path, "wrong", "no interpreter")
    assert found(tmp_path, scratch="echo full; false") == [
        ("wrong: Exec format error", True),
        ("scratch: full", True),
        ("licence: no licence", True),
        ("quiet: exit status 4", True),
    ]


def test_problems__of_a_check_that_does_not_end__are_its_timeout(tmp_path: Path) -> None:
    hung = {f"slow{number}": "sleep 60 & wait" for number in range(3)}
    assert all_of(tmp_path, {**hung, "fast": "false"}, 0.5) == [
        *((f"{name}: timed out after 0.5 s", True) for name in hung),
        ("fast: exit status 1", True),
    ]


def test_problems__of_a_program_that_users_can_change__are_advice(tmp_path: Path) -> None:
    add(tmp_path, "open", "#!/bin/sh\nexit 1\n", 0o775)
    assert found(tmp_path) == [(f"{tmp_path}/open was not run: users other than root can change it", False)]


def test_problems__of_a_check_that_hangs__do_not_start_it_again(tmp_path: Path) -> None:
    state = {"hung": {"slow": SITE.identity(os.getpid()), "gone": [os.getpid(), "1"]}}
    commands = {"slow": f"touch {tmp_path}/slow", "gone": f"touch {tmp_path}/gone"}
    reported = list(SITE.problems(commands, state, 5.0, tmp_path / "none"))
    assert reported == [(f"slow: process {os.getpid()} does not end", True)]
    assert [path.name for path in tmp_path.iterdir()] == ["gone"]
    assert [*state["hung"]] == ["slow"]


def test_problems__of_many_checks_that_print_much__are_all_there(tmp_path: Path) -> None:
    commands = {f"check{number:02}": "yes | head -c 300000; exit 1" for number in range(12)}
    assert all_of(tmp_path, commands) == [(f"{name}: y", True) for name in commands]
