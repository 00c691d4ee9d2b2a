"""Past runs: what is kept of them, how one is chosen, and what is shown."""

import io
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from clusterctl.commands.logs import choose, replay, show_all
from clusterctl.run import lock, runs
from clusterctl.ui.screen import Screen
from clusterctl.util.errors import InputError

NOW = datetime(2026, 11, 21, 4, tzinfo=UTC)
FAILED = "20261121T010000Z-bootstrap"
CHECKED = "20261121T020000Z-bootstrap"
UNFIT = "20261121T020000Z-bootstrap-2"
GOOD = "20261121T030000Z-verify"
PLAN = "20261121T033000Z-plan"
FAILURE = {
    "event": "result",
    "host": "gpu01",
    "role": "munge",
    "task": "Converge munge",
    "path": "roles/munge/tasks/main.yml:5",
    "status": "failed",
    "message": "unit munge.service failed\x1b[2J",
}


def keep(directory: Path, name: str, *events: dict[str, Any], **summary: Any) -> Path:
    """Leave what a run leaves."""
    place = directory / ".clusterctl/runs" / name
    place.mkdir(parents=True)
    if summary:
        (place / "summary.json").write_text(json.dumps({"verb": name.split("-")[1], "error": None, **summary}))
    (place / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    (place / "ansible.log").write_text("TASK [munge]\nfatal: \x1b[31mno\n")
    return place


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    (tmp_path / "inventory.yaml").write_text("all: [broken\n")
    keep(tmp_path, FAILED, FAILURE, exit_code=4, error="gpu01 failed; everything else is done.", seconds=61.5)
    keep(tmp_path, CHECKED, check=True, limit="gpu01,gpu02", exit_code=0, seconds=9.0)
    keep(tmp_path, UNFIT, exit_code=3, error="gpu02: timeout: no answer", problems=["gpu02: timeout: no answer"])
    keep(tmp_path, GOOD, exit_code=0, seconds=3.0)
    keep(tmp_path, "notes")
    keep(tmp_path, "99991399T030000Z-verify", exit_code=0)
    (tmp_path / ".clusterctl/runs/20261121T040000Z-verify").symlink_to("/tmp")
    return tmp_path


@pytest.mark.proves("logs", "A narrow terminal breaks no word of the list of runs.")
@pytest.mark.parametrize("width", [40, 60, 79, 80, 120])
def test_show_all__by_width__breaks_lines_between_words(cluster: Path, width: int) -> None:
    keep(cluster, PLAN, planned="remove-node", nodes=["gpu01"], exit_code=7, error="interrupted by SIGINT; no task")
    text = io.StringIO()
    screen = Screen(text)
    screen._force_terminal, screen.width, screen.no_color = True, width, True
    show_all(screen, list(runs.past(cluster)), NOW)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text.getvalue()).splitlines()
    assert max(map(len, lines)) <= width
    words = " ".join(lines).split()
    for word in ("interrupted", "remove-node", "gpu01", "SIGINT", PLAN, FAILED):
        assert word in words or f"{word}:" in words, word


def logs(cluster: Path, *argv: str) -> "subprocess.CompletedProcess[str]":
    argv = (sys.executable, "-m", "clusterctl", "logs", str(cluster / "inventory.yaml"), *argv)
    return subprocess.run(argv, capture_output=True, text=True, check=False, env={"PATH": os.environ["PATH"]})


@pytest.mark.proves("logs", "Past runs are listed newest first, with options and result.")
def test_runs_are_listed_newest_first_and_nothing_else(cluster: Path) -> None:
    assert runs.names(cluster) == [GOOD, UNFIT, CHECKED, FAILED]
    found = [(run.verb, run.arguments, run.exit_code, run.age(NOW)) for run in runs.past(cluster)]
    assert found == [
        ("verify", "", 0, "60 min ago"),
        ("bootstrap", "", 3, "2 h ago"),
        ("bootstrap", "--check --limit gpu01,gpu02", 0, "2 h ago"),
        ("bootstrap", "", 4, "3 h ago"),
    ]
    keep(cluster, PLAN, exit_code=10, planned="add-node", nodes=["gpu03", "gpu04", "gpu05"], check=True)
    plan = runs.load(cluster, PLAN)
    assert (plan.arguments, plan.result, plan.succeeded) == ("add-node gpu[03-05]", "changes to make", True)
    assert not replace(plan, verb="bootstrap").succeeded
    results = [run.result for run in runs.past(cluster)][1:]
    assert results[1] == "nodes were not ready, nothing was changed: gpu02: timeout: no answer"
    assert results[3] == "gpu01 failed; everything else is done."


@pytest.mark.parametrize("content", ["", "{", "[]", '{"exit_code": true, "seconds": "x", "error": 3}', "[" * 100_000])
def test_a_summary_that_is_none_is_no_error(tmp_path: Path, content: str) -> None:
    assert runs.latest(tmp_path) is None
    (keep(tmp_path, GOOD) / "summary.json").write_text(content)
    latest = runs.latest(tmp_path)
    assert latest is not None
    assert (latest.exit_code, latest.seconds, latest.under_way) == (None, None, False)


@pytest.mark.proves("logs", "A killed run is listed as killed, a current one as under way.")
def test_a_run_without_a_summary_goes_on_or_was_killed(tmp_path: Path) -> None:
    now = datetime.now(UTC).replace(microsecond=0)
    keep(tmp_path, f"{now + timedelta(seconds=2):%Y%m%dT%H%M%SZ}-bootstrap")
    assert [run.result for run in runs.past(tmp_path)] == ["did not end: it was killed, or its machine went down"]
    with lock.hold(tmp_path / ".clusterctl", "verify"):
        assert [run.under_way for run in runs.past(tmp_path)] == [False], "that is another run"
    with lock.hold(tmp_path / ".clusterctl", "bootstrap"):
        keep(tmp_path, f"{now - timedelta(days=1):%Y%m%dT%H%M%SZ}-bootstrap")
        assert next(run.result for run in runs.past(tmp_path)) == "under way"
        assert [run.under_way for run in runs.past(tmp_path)] == [True, False]


def test_a_run_is_chosen_by_name_prefix_or_last() -> None:
    names = [GOOD, UNFIT, CHECKED, FAILED]
    assert choose("last", names) == GOOD
    assert choose(FAILED, names) == FAILED
    assert choose("20261121T01", names) == FAILED
    assert choose(CHECKED, names) == CHECKED, "a whole name may begin another"
    for wanted, told in (
        ("20261121T02", "is a prefix of 2 runs"),
        ("20261121T010000Z-boostrap", f"did you mean {FAILED}?"),
        ("", "no run"),
        ("nonsense", "try last"),
    ):
        with pytest.raises(InputError, match=told):
            choose(wanted, names)
    with pytest.raises(InputError, match="there are none yet"):
        choose("last", [])


@pytest.mark.proves("logs", "`logs` lists all runs even if the inventory is not readable.")
def test_the_table_has_a_line_for_each_run(cluster: Path) -> None:
    done = logs(cluster)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == [GOOD, UNFIT, CHECKED, FAILED]
    assert lines[2].endswith("9.0 s       --check --limit gpu01,gpu02  ok")
    assert [line.split("  ")[-1] for line in lines] == ["ok", "nodes not ready", "ok", "gpu01 failed"]
    document = json.loads(logs(cluster, "--output", "json").stdout)
    assert [run["exit_code"] for run in document["runs"]] == [0, 3, 0, 4]


@pytest.mark.proves("logs", "A past run is shown with its failure or preflight problems.")
@pytest.mark.proves("logs", "`logs` shows a past run although the inventory names no node.")
def test_a_run_is_shown_as_it_ended(cluster: Path) -> None:
    failed = logs(cluster, FAILED)
    assert failed.returncode == 0
    for expected in (
        "after 1 min 02 s: gpu01 failed",
        "munge: Converge munge",
        "munge.service failed",
        "Hint:",
        "ansible.log",
    ):
        assert expected in failed.stdout
    assert "\x1b" not in failed.stdout
    unfit = logs(cluster, UNFIT).stdout
    assert "gpu02: timeout: no answer" in unfit
    assert "nothing was changed on any node" in unfit
    assert json.loads(logs(cluster, "last", "--output", "json").stdout)["run"] == GOOD
    assert logs(cluster, "last", "--full").stdout == "TASK [munge]\nfatal: [31mno\n"


@pytest.mark.proves("untrusted", "Names in recorded events send no control sequence to the terminal.")
def test_no_name_in_the_events_reaches_the_terminal_as_a_command(tmp_path: Path) -> None:
    (tmp_path / "inventory.yaml").write_text("")
    versions = {"\x1b[5mZ": "1"}
    good = FAILURE | {"status": "changed", "versions": versions, "message": ""}
    stats = {"event": "stats", "hosts": {"\x1b[2Jg": {"ok": 1}}}
    keep(tmp_path, GOOD, good, good | {"host": "gpu02"}, stats, {"event": "end"}, exit_code=0, seconds=3.0)
    ledger = replay(tmp_path / ".clusterctl/runs" / GOOD / "events.jsonl", 3.0)
    assert ledger.installed == {"munge": {"[5mZ": {"gpu01": "1", "gpu02": "1"}}}
    assert "\x1b" not in "".join(ledger.hosts)
    assert "\x1b" not in logs(tmp_path, GOOD).stdout


@pytest.mark.parametrize(
    ("argv", "told"),
    [(["lost"], "did you mean last?"), (["--full"], "needs a run"), (["2026112"], "is a prefix of 4 runs")],
)
def test_a_run_that_is_not_there_is_bad_input(cluster: Path, argv: list[str], told: str) -> None:
    done = logs(cluster, *argv)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr


def test_a_directory_that_leads_elsewhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "inventory.yaml").write_text("")
    (tmp_path / ".clusterctl").symlink_to("/tmp")
    assert logs(tmp_path).returncode == 2
    assert logs(tmp_path / "elsewhere").returncode == 2
