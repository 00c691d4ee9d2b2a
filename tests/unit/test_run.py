"""A run of tests ends by its limits with the name of what hung, and its last lines are the failing test's own."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from clusterctl.lab import kit, kit_recipe
from clusterctl.lab.podman import LabError
from tests import git, ledger, programs, report, run
from tests.labs import REPOSITORY
from tests.programs import wait_until_shown

TESTS = """
import subprocess, sys, time
def test_passes():
    pass
def helper(text):
    __tracebackhide__ = True
    assert False, text
def test_fails():
    print("what it printed")
    helper("\\n".join(f"line {number} of the tool" for number in range(300)))
def test_fails_too():
    assert 1 == 2
def test_leaves_a_process():
    subprocess.Popen(["sleep", "1003"], start_new_session=True)
def test_hangs():
    subprocess.run([sys.executable, "-c", "import time; time.sleep(1000)"])
"""


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """A small suite with the project's own plugin and settings."""
    (tmp_path / "test_example.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    return tmp_path


def command(example: Path, *names: str, minutes: float = 5.0, seconds: float = 100) -> tuple[list[str], dict[str, str]]:
    """Return what runs it as scripts/test does, in a process and a directory of its own, and the environment.

    `minutes` is the limit of the run, `seconds` that of each test.
    """
    program = (
        "import sys, pathlib; from tests import run; run.DIRECTORY = pathlib.Path(sys.argv[1]);"
        "asked, rest = run.arguments(sys.argv[2:]); sys.exit(run.run(asked, rest))"
    )
    argv = [sys.executable, "-c", program, str(example / "record"), "-n", "1", f"--minutes={minutes}"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")} | {"PYTHONPATH": str(REPOSITORY)}
    argv += [f"{example}/test_example.py::test_{name}" for name in names]
    argv += [f"--rootdir={example}", "-c", f"{REPOSITORY}/pyproject.toml", f"--timeout={seconds}"]
    return argv, environment


def ran(example: Path, *names: str, **limits: float) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    argv, environment = command(example, *names, **limits)
    return subprocess.run(
        argv, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False, timeout=300
    )


def test_run__a_test_hangs__ends_by_its_limit_with_its_name(example: Path) -> None:
    done = ran(example, "passes", "hangs", seconds=5)
    assert done.returncode == 1
    assert "FAILED test_example.py::test_hangs" in done.stdout
    assert "Timeout" in done.stdout.split("--- test_example.py::test_hangs")[1]
    assert "1 passed, 1 failed, 0 skipped" in done.stdout


def test_run__its_own_limit__names_what_ran_and_what_was_left(example: Path) -> None:
    done = ran(example, "passes", "hangs", minutes=0.5)  # a busy machine needs a while to begin a test
    assert done.returncode == 1
    assert "ended by its limit of 0.5 minutes" in done.stdout
    assert "running for " in done.stdout
    assert done.stdout.rstrip().splitlines()[-1].endswith("test_example.py::test_hangs")
    sleepers = subprocess.run(["pgrep", "-f", "time.sleep[(]1000"], capture_output=True, text=True, check=False)
    assert sleepers.stdout == "", "the hanging test's own process outlived the run"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_run__is_asked_to_end__ends_its_tests_and_reports(example: Path, number: signal.Signals) -> None:
    argv, environment = command(example, "passes", "hangs")
    with subprocess.Popen(argv, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, text=True) as process:
        results = example / "record" / "results.jsonl"
        while not (results.exists() and "test_hangs" in results.read_text()):
            time.sleep(0.1)
        process.send_signal(number)
        out, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "interrupted after" in out
    assert out.rstrip().splitlines()[-1].endswith("test_example.py::test_hangs")
    sleepers = subprocess.run(["pgrep", "-f", "time.sleep[(]1000"], capture_output=True, text=True, check=False)
    assert sleepers.stdout == "", "the hanging test's own process outlived the run"


KIT = """
import pytest
@pytest.mark.kit("debian", "etcd")
def test_needs():
    pass
@pytest.mark.kit("debian", "flannel")
def test_needs_too():
    pass
def test_needs_none():
    pass
"""


@pytest.mark.proves("code", "`scripts/test` builds the parts of the kit that its tests need before the first test.")
@pytest.mark.parametrize(
    ("names", "needed"),
    [
        (("needs",), ["debian", "etcd"]),
        (("needs", "needs_too"), ["debian", "etcd", "flannel"]),
        (("needs_none",), []),
    ],
)
def test_needed_recipes__of_the_tests_that_run__are_those_of_their_markers(
    example: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], needed: list[str]
) -> None:
    (example / "test_example.py").write_text(KIT)
    monkeypatch.setattr(run, "DIRECTORY", example)
    rest = [f"{example}/test_example.py::test_{name}" for name in names]
    assert run.needed_recipes(
        *run.arguments([*rest, f"--rootdir={example}", "-c", f"{REPOSITORY}/pyproject.toml"])
    ) == (needed)


def test_build_kit__that_fails__is_said_and_the_tests_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    built: list[str] = []

    def build(recipes: list[kit_recipe.Recipe], say: Callable[[str], None]) -> None:
        built.extend(recipe.name for recipe in recipes)
        say("a step")
        raise LabError("no network")

    monkeypatch.setattr(kit, "build", build)
    run.build_kit([])
    assert built == []
    run.build_kit(["debian"])
    assert built == ["debian"]
    assert capsys.readouterr().out == "kit: a step\nkit: cannot be built: no network\n"


def test_run__tests_fail__the_last_lines_are_the_first_failure(example: Path) -> None:
    done = ran(example, "passes", "fails", "fails_too")
    assert done.returncode == 1
    last = done.stdout.split("--- test_example.py::test_fails\n")[1]
    assert "line 299 of the tool" in last
    assert "line 100 of the tool" not in last
    assert "what it printed" in last
    assert "def helper" not in last
    assert len(last.splitlines()) <= programs.LINES + programs.LINES // 2 + 4
    assert done.stdout.index("--- test_example.py::test_fails_too") < done.stdout.index(
        "--- test_example.py::test_fails\n"
    )


def test_run__all_pass__says_so_and_exits_0(example: Path) -> None:
    done = ran(example, "passes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed, 0 failed, 0 skipped" in done.stdout
    assert "the twenty longest tests" in done.stdout


def test_run__no_test_at_all__fails(example: Path) -> None:
    done = ran(example, "no_such_test")
    assert done.returncode == 1
    assert "0 passed" in done.stdout
    assert "pytest's arguments choose none" in done.stdout


def test_run__path_that_is_not_there__is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """With several processes pytest would say only that nothing ran."""
    for word in ("tests/unit/test_nope.py", "tests/unit/test_nope.py::test_a"):
        with pytest.raises(SystemExit):
            run.arguments([word])
        assert "tests/unit/test_nope.py: there is no such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["gpus"], "gpus: no such layer"),
        (["gpu", "tests/unit"], "do not go together"),
        (["--all", "gpu"], "--all takes no layers"),
        (["--remaining", "--long", "tests/unit"], "--remaining takes no layers"),
        (["--all", "--remaining"], "goes alone"),
        (["--budget", "90", "--remaining"], "--budget goes with a landing"),
        (["--budget", "90", "gpu"], "--budget goes with a landing"),
        (["--budget", "-1"], "got -1, expected 0 or more"),
    ],
)
def test_arguments__bad__are_refused(argv: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run.arguments(argv)
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ([], "landing"),
        (["--all"], "all"),
        (["--remaining"], "remaining"),
        (["gpu", "day2"], "gpu,day2"),
        (["lint", "unit"], "unit"),
        (["tests/unit/test_cli.py", "-k", "x"], ""),
    ],
)
def test_arguments__good__select(argv: list[str], expected: str) -> None:
    assert run.selection_of(*run.arguments(argv)) == expected


def test_arguments__of_pytest__keep_their_order() -> None:
    words = ["-k", "munge or base", "tests/unit/test_roles.py", "-x"]
    assert run.arguments([*words[:2], "--minutes", "5", *words[2:]])[1] == words


def test_arguments__a_shortened_option__is_not_taken_for_all() -> None:
    asked, rest = run.arguments(["--al"])
    assert not asked.all
    assert rest == ["--al"]  # pytest refuses it


@pytest.mark.parametrize("minutes", ["90", "0"])
def test_arguments__budget__reaches_the_selection(minutes: str) -> None:
    assert f"--budget={minutes}.0" in run.pytest_command(*run.arguments(["--budget", minutes]))


def test_proven__a_run_that_was_ended__counts_the_units_that_passed_as_a_whole() -> None:
    units = {"whole": ["a"], "failed": ["b"], "half": ["c", "d"], "running": ["e"]}
    ended = {"a": "", "b": "AssertionError", "c": ""}
    outcomes = {name: report.Outcome(name, seconds=60.0, ended=True, failed=text) for name, text in ended.items()}
    results = report.Results({**outcomes, "e": report.Outcome("e", began=1.0)}, units=units)
    assert {unit: (entry.commit, entry.minutes) for unit, entry in run.proven(results, "abc").items()} == {
        "whole": ("abc", 1.0)
    }


def test_report__results_that_were_cut_off__are_read_as_far_as_they_go(tmp_path: Path) -> None:
    rows = [
        {"time": 1.0, "test": "a::b", "event": "start"},
        {"time": 2.0, "test": "a::b", "event": "call", "outcome": "passed", "seconds": 1.0, "text": ""},
        {
            "time": 2.0,
            "test": "a::b",
            "event": "teardown",
            "outcome": "passed",
            "seconds": 0.0,
            "text": "",
            "measured": ["x: 1 s"],
        },
        {"time": 2.0, "test": "a::b", "event": "end"},
        {"time": 3.0, "test": "a::c", "event": "start"},
    ]
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"time": 4, "te')
    (tmp_path / "selection.json").write_text(
        json.dumps({"reasons": {"a": "named"}, "left": ["z"], "due": {}, "units": {"a": ["a::b", "a::c", "a::d"]}})
    )
    results = report.read(tmp_path)
    assert [outcome.nodeid for outcome in results.passed] == ["a::b"]
    assert list(report.unfinished(results, now=63.0)) == ["running for 1.0 min: a::c", "not begun: a (1 of 3 tests)"]
    assert list(report.by_unit(results)) == ["    1.0 s  a (2 of 3 tests; named)"]
    assert list(report.measured(results)) == ["a::b: x: 1 s"]


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> dict[str, ledger.Entry]:
    """A ledger of two units, one of which has no tests any more."""
    entries = {unit: ledger.Entry("c0", "2026-01-01", 1.0) for unit in ("a", "gone")}

    def save(new: Mapping[str, ledger.Entry]) -> None:
        entries.clear()
        entries.update(new)

    monkeypatch.setattr(ledger, "load", lambda: dict(entries))
    monkeypatch.setattr(ledger, "save", save)
    return entries


RESULTS = report.Results(
    outcomes={
        "b::x": report.Outcome("b::x", seconds=60.0, ended=True),
        "c::x": report.Outcome("c::x", ended=True),
        "c::y": report.Outcome("c::y", ended=True, failed="no"),
        "d::x": report.Outcome("d::x", ended=True),
    },
    reasons=dict.fromkeys("bcd", "named"),
    left=["a"],
    units={"b": ["b::x"], "c": ["c::x", "c::y"], "d": ["d::x", "d::y"]},
)


def test_record__units_that_passed_whole__are_entered_and_lost_ones_removed(
    kept: dict[str, ledger.Entry], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(git, "clean_commit", lambda: "c1")
    assert len([*run.record(RESULTS, "c1")]) == 2  # one failed, one did not run to its end
    assert {unit: entry.commit for unit, entry in kept.items()} == {"a": "c0", "b": "c1"}
    assert kept["b"].minutes == 1.0


@pytest.mark.parametrize(("began", "ends"), [(None, None), ("c1", None), ("c1", "c2"), (None, "c1")])
def test_record__files_of_no_commit_or_edited_meanwhile__enters_nothing(
    began: str | None, ends: str | None, kept: dict[str, ledger.Entry], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(git, "clean_commit", lambda: ends)
    assert "is unchanged" in "".join(run.record(RESULTS, began))
    assert set(kept) == {"a", "gone"}


def test_run__a_process_outlives_its_test__is_ended(example: Path) -> None:
    done = ran(example, "leaves_a_process")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "processes that outlived the tests and were ended\nsleep 1003" in done.stdout
    assert subprocess.run(["pgrep", "-f", "sleep 1003"], capture_output=True, check=False).returncode == 1


def test_leftovers__podmans_own_processes__are_left(tmp_path: Path) -> None:
    program = tmp_path / "conmon"
    program.write_text("#!/bin/sh\nread line\n")
    program.chmod(0o755)
    environment = os.environ | {run.TOKEN: str(os.getpid())}
    with (
        subprocess.Popen([program], stdin=subprocess.PIPE, env=environment) as podmans,
        subprocess.Popen(["cat"], stdin=subprocess.PIPE, env=environment) as other,
    ):
        wait_until_shown(podmans)
        wait_until_shown(other)
        assert run.leftovers() == {other.pid: "cat "}
        podmans.communicate(b"\n")
        other.communicate()
