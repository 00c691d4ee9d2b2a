"""The alerts: severity, summary and runbook of each; and by promtool when each fires, and that a near miss does not.

scripts/prepare unpacks promtool below .cache. Scenario prometheus runs the same tests with a node's promtool.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.labs import REPOSITORY

DOCS = REPOSITORY / "docs"
FILE = REPOSITORY / "roles/prometheus/files/rules.yml"
FILES = sorted((REPOSITORY / "tests/alerts").glob("*.yml"))
RULES: list[dict[str, Any]] = [rule for group in yaml.safe_load(FILE.read_text())["groups"] for rule in group["rules"]]
NAMES = [rule["alert"] for rule in RULES]
# Those of broken hardware: GPUs that compute wrongly or not at all.
DRAINING = {"GpuDoubleBitError", "GpuLost", "GpuRowRemapFailed", "GpuXid", "NvswitchSxid"}
PARTS = ("Affects", "Check", "Fix", "clusterctl")


@pytest.mark.proves("monitoring", "Every alert has a severity, a summary and a runbook.")
@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_alert__of_the_rules__has_severity_summary_and_runbook(rule: dict[str, Any]) -> None:
    assert rule["labels"].keys() <= {"severity", "action"}
    assert rule["labels"].get("action") == ("drain" if rule["alert"] in DRAINING else None)
    expected = {"none"} if rule["alert"] == "Watchdog" else {"critical", "warning", "info"}
    assert rule["labels"]["severity"] in expected
    assert rule["annotations"].keys() == {"summary", "runbook"}
    assert not re.search(r"\w[.] |[.]$|\n", rule["annotations"]["summary"]), "one sentence, without a full stop"
    assert rule["annotations"]["runbook"] == f"clusterctl docs runbooks/{rule['alert']}"


def test_runbooks__of_the_alerts__are_all_there_and_no_others() -> None:
    assert len(NAMES) == len(set(NAMES))
    assert sorted(path.stem for path in (DOCS / "runbooks").iterdir()) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_runbook__of_an_alert__has_its_parts_and_is_short(name: str) -> None:
    text = (DOCS / f"runbooks/{name}.md").read_text(encoding="utf-8")
    assert text.startswith(f"# {name}\n\n")
    assert tuple(re.findall(r"(?m)^\*\*(\w+)\.\*\*", text)) == PARTS
    assert len(text.splitlines()) <= 25
    (commands,) = re.findall(r"(?s)```console\n(.*?)```", text)
    assert all(re.match(r"(\w+)?\$ \S", line) for line in commands.splitlines())


def test_table__of_the_alerts__is_complete() -> None:
    rows = re.findall(r"(?m)^\| \[(\w+)\]\(runbooks/(\w+)[.]md\) \| (\w+) \| ", (DOCS / "monitoring.md").read_text())
    assert rows == [(rule["alert"], rule["alert"], rule["labels"]["severity"]) for rule in RULES]


def promtool() -> str:
    """Return the program, or skip where it is missing."""
    folder = REPOSITORY / ".cache/programs/usr/bin"
    found = shutil.which("promtool", path=f"{folder}:{os.environ['PATH']}")
    if not found:
        pytest.skip("promtool is missing: scripts/prepare dev")
    return found


def run_tests(file: Path) -> subprocess.CompletedProcess[str]:
    argv = [promtool(), "test", "rules", str(file)]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=300)


def cases(alert: str) -> list[dict[str, Any]]:
    """Return the cases of an alert in all files."""
    tests = [test for file in FILES for test in yaml.safe_load(file.read_text())["tests"]]
    return [case for test in tests for case in test["alert_rule_test"] if case["alertname"] == alert]


@pytest.mark.proves("monitoring", "Every alert passes promtool's tests: it fires, and a near miss does not.")
@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.stem))
def test_alerts__of_a_file__pass_promtools_tests(file: Path) -> None:
    done = run_tests(file)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("alert", NAMES)
def test_alert__in_promtools_tests__fires_and_does_not(alert: str) -> None:
    """Without its cases no test of promtool fails. Watchdog always fires."""
    fires = {bool(case["exp_alerts"]) for case in cases(alert)}
    assert fires == ({True} if alert == "Watchdog" else {True, False})


def test_alerts__in_promtools_tests__are_those_of_the_rules() -> None:
    tests = [test for file in FILES for test in yaml.safe_load(file.read_text())["tests"]]
    assert {case["alertname"] for test in tests for case in test["alert_rule_test"]} == set(NAMES)


@pytest.mark.parametrize(
    ("alert", "old", "new"),
    [
        ("DiskFullWithin24h", "< 0.40", "< 0.90"),
        ("GpuPowerBrake", "/ 128", "/ 64"),
        ("GpuOtherXid", "!= 31", ""),
        ("SlurmQueueStuck", "< 1800", "< 60"),
        ("ScrapeGap", " and up)", ")"),
    ],
)
def test_alert__whose_rule_is_wrong__fails_its_test(tmp_path: Path, alert: str, old: str, new: str) -> None:
    """The tests can fail: each of these rules fires on a near miss, or not at all."""
    before, name, rule = FILE.read_text().partition(f"- alert: {alert}\n")
    assert old in rule.partition("- alert: ")[0]
    (tmp_path / "rules.yml").write_text(before + name + rule.replace(old, new, 1))
    (file,) = [file for file in FILES if f"alertname: {alert}" in file.read_text()]
    (tmp_path / file.name).write_text(file.read_text().replace("../../roles/prometheus/files/", ""))
    done = run_tests(tmp_path / file.name)
    assert done.returncode == 1
    assert f"alertname: {alert}, " in done.stdout + done.stderr


# --- recording rules --------------------------------------------------------------------------------------------------

RECORDS = REPOSITORY / "roles/prometheus/files/records.yml"
RECORD_TESTS = REPOSITORY / "tests/alerts/records/records.yml"


def records() -> list[str]:
    return [rule["record"] for group in yaml.safe_load(RECORDS.read_text())["groups"] for rule in group["rules"]]


@pytest.mark.proves("monitoring", "Every recording rule passes promtool's tests.")
def test_records__of_two_nodes__pass_promtools_tests() -> None:
    done = run_tests(RECORD_TESTS)
    assert done.returncode == 0, done.stdout + done.stderr
    asked = [
        case["expr"] for test in yaml.safe_load(RECORD_TESTS.read_text())["tests"] for case in test["promql_expr_test"]
    ]
    assert sorted(re.sub(r"{.*", "", expression) for expression in asked) == sorted(records())
    assert all(re.fullmatch(r"(instance|cluster|partition):\w+:(avg|sum|ratio)", name) for name in records())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("max by (instance, gpu) (DCGM_FI_DEV_POWER_USAGE)", "DCGM_FI_DEV_POWER_USAGE"),
        ('"allocated|idle"', '".+"'),
        (" > 0)", ")"),
    ],
)
def test_record__whose_rule_is_wrong__fails_its_test(tmp_path: Path, old: str, new: str) -> None:
    assert old in RECORDS.read_text()
    (tmp_path / "records.yml").write_text(RECORDS.read_text().replace(old, new))
    (tmp_path / "test.yml").write_text(RECORD_TESTS.read_text().replace("../../../roles/prometheus/files/", ""))
    assert run_tests(tmp_path / "test.yml").returncode == 1
