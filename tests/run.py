"""Run tests as scripts/test is asked to, within a limit of time, and report what ran, what failed and what did not run.

Without an argument: what a landing runs (tests/selection.py), with lint beside it. `--all`: everything; `--remaining`:
what of that has not passed since the files that it depends on changed. LAYER...: the layers of tests/layers.py,
or `lint`. A path below tests/, or an option that is none of these, goes to pytest as it is.
"""

import argparse
import contextlib
import datetime
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tests import git, ledger, programs, report
from tests.labs import REPOSITORY
from tests.layers import LAYERS
from tests.selection import LANDING_MINUTES

DIRECTORY = REPOSITORY / ".cache" / "tests"
COLLECTED = "collected"
"""The directory in it of a collection that runs no test: it says what of the kit the tests need."""
LIMIT_MINUTES = 80.0
"""After that a run is ended; CI's own limit is 90 minutes, and it would print nothing."""
GRACE = 60.0  # seconds that pytest has to end by itself
LINT = "lint"
NOTHING_COLLECTED = 5  # pytest's exit status (pytest.ExitCode)
TOKEN = "CLUSTERCTL_TEST_RUN"  # in the environment of all that a run starts
# Processes of containers and their networks: the package cache and the kit are for other labs, too.
PODMANS = ("aardvark-dns", "conmon", "netavark", "podman", "rootlessport", "runc")


def arguments(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return what is asked for, and what goes to pytest."""
    parser = argparse.ArgumentParser(
        prog="scripts/test",
        allow_abbrev=False,  # --al would start hours of tests
        description="Run tests. Without an argument: lint, the core, what changed, and what was proven longest ago.",
        epilog=f"Layers: {', '.join([*LAYERS, LINT])}. Other arguments, such as a path below tests/, go to pytest.",
    )
    parser.add_argument("layers", nargs="*", metavar="LAYER", help="only these layers")
    parser.add_argument("--all", action="store_true", help="everything, long tests included")
    parser.add_argument(
        "--remaining", action="store_true", help="of everything, what has not passed since its files changed"
    )
    parser.add_argument("--long", action="store_true", help="the long tests of the named layers or paths as well")
    parser.add_argument(
        "--budget",
        type=float,
        metavar="N",
        help=f"what a landing takes of test processes: N minutes, at the least the core ({LANDING_MINUTES:.0f})",
    )
    parser.add_argument("--list", action="store_true", help="print what would run, and why; run nothing")
    parser.add_argument(
        "--minutes",
        type=float,
        default=LIMIT_MINUTES,
        metavar="N",
        help=f"end the run after N minutes ({LIMIT_MINUTES:.0f})",
    )
    parser.add_argument("-n", "--processes", type=int, default=2, metavar="N", help="test processes (2)")
    asked, options = parser.parse_known_args(argv)
    names = [name for name in asked.layers if name in (*LAYERS, LINT)]
    for_pytest = {*options, *asked.layers} - {*names}
    rest = [word for word in argv if word in for_pytest]  # in their order: an option's value stands behind it
    if unknown := [word for word in rest if not word.startswith("-") and "/" not in word and rest[0] == word]:
        parser.error(f"{unknown[0]}: no such layer; choose from {', '.join([*LAYERS, LINT])}, or give a path")
    for word in rest:
        path = word.partition("::")[0]
        if not word.startswith("-") and "/" in path and not Path(path).exists():
            parser.error(f"{path}: there is no such file")
    if asked.budget is not None and asked.budget < 0:
        parser.error(f"--budget: got {asked.budget:g}, expected 0 or more")
    if names and rest:
        parser.error(f"layers ({' '.join(names)}) and pytest's arguments ({' '.join(rest)}) do not go together")
    whole = "--all" if asked.all else "--remaining" if asked.remaining else ""
    if asked.budget is not None and (whole or names or rest):
        parser.error("--budget goes with a landing, not with --all, --remaining, layers, paths or pytest arguments")
    if whole and (names or rest or (asked.all and asked.remaining)):
        parser.error(f"{whole} takes no layers, paths or pytest arguments, and goes alone")
    asked.layers = names
    return asked, rest


def selection_of(asked: argparse.Namespace, rest: Sequence[str]) -> str:
    """Return pytest's --select; empty where pytest's own arguments choose."""
    if rest:
        return ""
    if asked.all or asked.remaining:
        return "all" if asked.all else "remaining"
    return ",".join(name for name in asked.layers if name != LINT) if asked.layers else "landing"


def pytest_command(
    asked: argparse.Namespace, rest: Sequence[str], *, record: Path | None = None, collect: bool = False
) -> list[str]:
    """Return pytest's command line, of a run or of a collection."""
    argv = [sys.executable, "-m", "pytest", f"--record={record or DIRECTORY}"]
    if selected := selection_of(asked, rest):
        argv.append(f"--select={selected}")
    if asked.long:
        argv.append("--long")
    if asked.budget is not None:
        argv.append(f"--budget={asked.budget}")
    if asked.list or collect:
        return [*argv, "--collect-only", "--quiet", *rest]
    return [*argv, f"--numprocesses={asked.processes}", "--dist=loadfile", "--no-loadscope-reorder", *rest]


class Step:
    """A program in a process group of its own."""

    def __init__(self, argv: Sequence[str], log: Path | None = None) -> None:
        self._file = log.open("w") if log else None
        self.process = programs.start(
            argv,
            cwd=REPOSITORY,
            env=os.environ | {TOKEN: str(os.getpid())},
            stdout=self._file,
            stderr=self._file,
        )

    def end(self) -> None:
        """Ask it to end as Ctrl-C does, then kill it."""
        if self.process.poll() is None:
            programs.end(self.process, signal.SIGINT, GRACE)


def leftovers() -> dict[int, str]:
    """Return what tests of this run have started and not ended, by process id; podman's own processes may stay."""
    token, found = f"{TOKEN}={os.getpid()}".encode(), {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if token in (path / "environ").read_bytes().split(b"\0"):
                name = (path / "comm").read_text().strip()
                command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if name not in PODMANS:
                    found[int(path.name)] = command[:160]
    return found


def end_leftovers() -> list[str]:
    """End what outlived the tests, whatever session it is in; return the commands."""
    ended: dict[int, str] = {}
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid, command in leftovers().items():
            ended[pid] = command
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        for _ in range(50 if ended else 0):
            if not leftovers():
                break
            time.sleep(0.1)
    return list(ended.values())


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Refuse a second run in this checkout: both would use the same labs."""
    DIRECTORY.parent.mkdir(parents=True, exist_ok=True)
    with DIRECTORY.with_suffix(".lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            sys.exit(f"scripts/test already runs in this checkout (process {file.read().strip()})")
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def say(text: str = "") -> None:
    print(text, flush=True)


def section(title: str, lines: Iterable[str]) -> None:
    """Print a section, where there is anything in it."""
    found = list(lines)
    if found:
        say(f"\n== {title}")
        say("\n".join(found))


def run(asked: argparse.Namespace, rest: list[str]) -> int:
    """Run lint and the tests; return the exit code."""
    began, commit = time.monotonic(), git.clean_commit()
    for number in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C: CI's own limit, and a terminal that is closed
        signal.signal(number, signal.default_int_handler)
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    DIRECTORY.mkdir(parents=True)
    if asked.list:
        done = programs.call(pytest_command(asked, rest), asked.minutes * 60, cwd=REPOSITORY)
        if done.returncode:
            say(programs.described(done))
        elif rest:  # pytest chose, not tests/selection.py
            say(done.stdout.rstrip())
        selected = [f"{unit} ({why})" for unit, why in sorted(report.read(DIRECTORY).reasons.items())]
        section("would run", [*selected, *([LINT] if _lints(asked, rest) else [])])
        section("due, left for a later run", report.left_due(report.read(DIRECTORY)))
        section("would not run", report.not_run(report.read(DIRECTORY)))
        return done.returncode
    lint = Step(["scripts/lint"], DIRECTORY / "lint.log") if _lints(asked, rest) else None
    tests, ended_because = None, ""
    try:
        if asked.layers != [LINT]:
            build_kit(needed_recipes(asked, rest))
            tests = Step(pytest_command(asked, rest))
        for step in filter(None, (tests, lint)):
            step.process.wait(max(1.0, asked.minutes * 60 - (time.monotonic() - began)))
    except subprocess.TimeoutExpired:
        ended_because = f"ended by its limit of {asked.minutes:g} minutes"
    except KeyboardInterrupt:
        ended_because = "interrupted"
    at = time.time()
    for step in filter(None, (tests, lint)):
        step.end()
    section("processes that outlived the tests and were ended", end_leftovers())
    if ended_because:
        section("labs of ended tests, removed", remove_labs())
    return _report(lint, tests, ended_because, at, time.monotonic() - began, commit)


def needed_recipes(asked: argparse.Namespace, rest: Sequence[str]) -> list[str]:
    """Return the recipes of the kit that the tests of this run need, by a collection.

    Where pytest cannot collect there are none: the run itself says why.
    """
    place = DIRECTORY / COLLECTED
    place.mkdir()
    with contextlib.suppress(AssertionError):
        programs.call(pytest_command(asked, rest, record=place, collect=True), asked.minutes * 60, cwd=REPOSITORY)
    path = place / "kit.json"
    return list(json.loads(path.read_text())) if path.exists() else []


def build_kit(recipes: Sequence[str]) -> None:
    """Build what is missing of the kit, which may take longer than a test may.

    Tests that need what cannot be built fail with the reason.
    """
    if not recipes:
        return
    from clusterctl.lab import kit, kit_recipe
    from clusterctl.util.errors import ClusterctlError

    try:
        kit.build(kit_recipe.load(tuple(recipes)), lambda step: say(f"kit: {step}"))
    except ClusterctlError as error:
        say(f"kit: cannot be built: {error}")


def remove_labs() -> Iterable[str]:
    """Remove the labs of test processes that are no more; yield their names."""
    from tests.golden import remove_abandoned  # takes half a second, of which --help and --list have no need

    return remove_abandoned()


def _lints(asked: argparse.Namespace, rest: Sequence[str]) -> bool:
    """Return whether lint runs: with a landing and with everything, and where it is named."""
    return (not asked.layers and not rest) or LINT in asked.layers


def _report(
    lint: Step | None, tests: Step | None, ended_because: str, at: float, seconds: float, commit: str | None
) -> int:
    """Print what the run was, the cause of a failure last; return the exit code."""
    results = report.read(DIRECTORY)
    section("the twenty longest tests", report.longest(results))
    section("minutes by unit", report.by_unit(results))
    section("measured", report.measured(results))
    section("not run", report.not_run(results))
    section("due, left for a later run", report.left_due(results))
    if tests:
        section("the ledger", record(results, commit))
    passed, failed = len(results.passed), len(results.failed)
    skipped = sum(1 for outcome in results.outcomes.values() if outcome.skipped)
    if tests:
        say(f"\n{passed} passed, {failed} failed, {skipped} skipped")
    code = 0
    if lint and lint.process.returncode:
        code = 1
        section(f"lint failed (exit {lint.process.returncode})", [programs.tail((DIRECTORY / "lint.log").read_text())])
    elif lint:
        say("lint is clean")
    if tests and (failed or (not ended_because and (tests.process.returncode or not passed))):
        code = 1
        section(
            f"tests failed (pytest: exit {tests.process.returncode})",
            list(report.failures(results)) or [_nothing_ran(tests.process.returncode)],
        )
    if ended_because:
        code = 1
        section(
            f"{ended_because} after {report.minutes(seconds)}",
            list(report.unfinished(results, at)) or ["no test had begun"],
        )
    if code == 0:
        say(f"all passed in {report.minutes(seconds)}; docs/proof.md lists what each test proves")
    return code


def _nothing_ran(status: int) -> str:
    """Return why no test ran, by pytest's exit status."""
    if status == NOTHING_COLLECTED:
        return "no test is what was asked for: pytest's arguments choose none"
    return "no test ran; the cause is in pytest's output above"


def proven(results: report.Results, commit: str) -> dict[str, ledger.Entry]:
    """Return the entries of the units of which all tests passed, whether or not the run came to its end."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    new = {}
    for unit, nodeids in results.units.items():
        outcomes = [outcome for outcome in results.unit(unit) if outcome and outcome.ended and not outcome.failed]
        if len(outcomes) == len(nodeids):
            took = sum(outcome.seconds for outcome in outcomes) / 60
            new[unit] = ledger.Entry(commit, today, round(took, 1), all(outcome.skipped for outcome in outcomes))
    return new


def record(results: report.Results, commit: str | None) -> Iterable[str]:
    """Enter into the ledger what a commit has proven, and forget units that there are no more; return what was done.

    `commit` is what was checked out when the run began, None where the files differed from it.
    """
    if commit is None or commit != git.clean_commit():
        return ["is unchanged: the files were not those of one commit from beginning to end"]
    new = proven(results, commit)
    if not new:
        return []
    collected = {*results.reasons, *results.left}
    ledger.save({unit: entry for unit, entry in {**ledger.load(), **new}.items() if unit in collected})
    return [f"tests/ledger.json has new entries, of {commit}; commit it:", *ledger.rows(new)]


if __name__ == "__main__":
    asked, rest = arguments(sys.argv[1:])
    with alone():
        if not asked.list:
            section("labs of killed tests, removed", remove_labs())
        code = run(asked, rest)
    sys.exit(code)
