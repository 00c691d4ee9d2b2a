"""The alert rules, tested by promtool: each fires on what it is for, and not on what nearly is.

scripts/prepare unpacks promtool below .cache. Scenario prometheus runs the same tests with a node's promtool.
"""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.labs import REPOSITORY

RULES = REPOSITORY / "roles/prometheus/files/rules.yml"
FILES = sorted((REPOSITORY / "tests/alerts").glob("*.yml"))
ALERTS = [rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


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


@pytest.mark.parametrize("alert", ALERTS)
def test_alert__in_promtools_tests__fires_and_does_not(alert: str) -> None:
    """Without its cases no test of promtool fails. Watchdog always fires."""
    fires = {bool(case["exp_alerts"]) for case in cases(alert)}
    assert fires == ({True} if alert == "Watchdog" else {True, False})


def test_alerts__in_promtools_tests__are_those_of_the_rules() -> None:
    tests = [test for file in FILES for test in yaml.safe_load(file.read_text())["tests"]]
    assert {case["alertname"] for test in tests for case in test["alert_rule_test"]} == set(ALERTS)


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
    before, name, rule = RULES.read_text().partition(f"- alert: {alert}\n")
    assert old in rule.partition("- alert: ")[0]
    (tmp_path / "rules.yml").write_text(before + name + rule.replace(old, new, 1))
    (file,) = [file for file in FILES if f"alertname: {alert}" in file.read_text()]
    (tmp_path / file.name).write_text(file.read_text().replace("../../roles/prometheus/files/", ""))
    done = run_tests(tmp_path / file.name)
    assert done.returncode == 1
    assert f"alertname: {alert}, " in done.stdout + done.stderr
