"""What holds for all tests: which of them run, in which order and process, and what is written down of each."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests import git, ledger, programs, selection
from tests.scheduling import ByLab, order, scope_of
from tests.selection import Selection, Test

# The helpers of tests, too, are to show the values that an assert has seen.
pytest.register_assert_rewrite("tests.cluster", "tests.faults")

LANDING, EVERYTHING, REMAINING = "landing", "all", "remaining"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("clusterctl")
    group.addoption("--select", default="", help="landing, all, remaining, or layers with commas (tests/layers.py)")
    group.addoption("--long", action="store_true", help="the tests that are marked long as well")
    group.addoption("--budget", type=float, default=selection.LANDING_MINUTES, help="minutes of a landing")
    group.addoption("--record", default="", help="directory for selection.json and results.jsonl (tests/run.py)")


def pytest_configure(config: pytest.Config) -> None:
    """Let the fuzz tests try the same examples each time, so that a change is checked by itself; long ones try new.

    And let the programs under test hear Ctrl-C: a shell starts what runs behind it with SIGINT ignored, and that is
    inherited.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    settings.register_profile("same", derandomize=True)
    settings.load_profile("same")
    if config.getoption("--record") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Results(Path(config.getoption("--record"))))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Let tests that share a lab share a process; xdist itself decides where no whole files are asked for."""
    return ByLab(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep what is asked for, the longest scopes first; those who share a lab in its order."""
    tests = {
        item: Test(item.nodeid, item.get_closest_marker("long") is not None, scope_of(item.nodeid)) for item in items
    }
    known = ledger.load()
    chosen = _chosen(config, list(tests.values()), known)
    if chosen is None:
        keep = [item for item in items if not tests[item].long or _long_asked(config, item.nodeid)]
    else:
        keep = [item for item in items if tests[item].unit in chosen.reasons]
        if config.getoption("--record") and os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0":
            _write_selection(Path(config.getoption("--record")), chosen, [tests[item] for item in keep])
    if config.getoption("--record"):
        _write_recipes(Path(config.getoption("--record")), keep)
    if gone := [item for item in items if item not in set(keep)]:
        config.hook.pytest_deselected(items=gone)
    key = order([tests[item] for item in keep], known)
    items[:] = sorted(keep, key=lambda item: key[item.nodeid])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown() -> None:
    programs.end_of_test()


def _long_asked(config: pytest.Config, nodeid: str) -> bool:
    """Tell whether a `long` test is asked for: by --long, or by its own name."""
    named = tuple(argument for argument in config.args if "::" in argument)
    return config.getoption("--long") or nodeid.startswith(named)


def _chosen(config: pytest.Config, tests: list[Test], known: dict[str, ledger.Entry]) -> Selection | None:
    asked = config.getoption("--select")
    if asked == LANDING:
        return selection.landing(tests, known, git.changed_since, git.commits_since, config.getoption("--budget"))
    if asked == EVERYTHING:
        return selection.everything(tests)
    if asked == REMAINING:
        return selection.remaining(tests, known, git.changed_since, git.commits_since)
    return selection.layers(tests, asked.split(","), config.getoption("--long")) if asked else None


def _write_selection(directory: Path, chosen: Selection, tests: list[Test]) -> None:
    units: dict[str, list[str]] = {}
    for test in tests:
        units.setdefault(test.unit, []).append(test.nodeid)
    document = {"reasons": chosen.reasons, "left": chosen.left, "due": chosen.due, "units": units}
    (directory / "selection.json").write_text(json.dumps(document))


def _write_recipes(directory: Path, items: list[pytest.Item]) -> None:
    """Write down which recipes of the kit these tests need (tests/run.py); all processes write the same."""
    recipes = {recipe for item in items for mark in item.iter_markers("kit") for recipe in mark.args}
    path = directory / f"kit.json.{os.getpid()}"
    path.write_text(json.dumps(sorted(recipes)))
    path.rename(directory / "kit.json")


class Results:
    """Writes each test's start and end down as it comes, so that they are there however the run ends."""

    def __init__(self, directory: Path) -> None:
        self._file = (directory / "results.jsonl").open("a", buffering=1)

    def _write(self, **row: object) -> None:
        self._file.write(json.dumps({"time": time.time(), **row}) + "\n")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write(test=nodeid, event="start")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        text = report.longreprtext if report.outcome == "failed" else ""
        if report.outcome == "skipped" and isinstance(report.longrepr, tuple):
            text = str(report.longrepr[2])
        self._write(
            test=report.nodeid, event=report.when, outcome=report.outcome, seconds=report.duration, text=text,
            output="\n".join(content for _, content in report.sections) if text else "",
            # The reports of set-up and call have the properties, too.
            measured=[f"{name}: {value}" for name, value in report.user_properties if report.when == "teardown"],
        )  # fmt: skip

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._write(test=nodeid, event="end")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write(test=report.nodeid, event="collect", outcome="failed", seconds=0.0, text=report.longreprtext)
