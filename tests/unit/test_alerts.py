"""The alerts and what is written of them: severity, summary and runbook of each. tests/systems tests when they fire."""

import re
from typing import Any

import pytest
import yaml

from tests.labs import REPOSITORY

DOCS = REPOSITORY / "docs"
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((REPOSITORY / "roles/prometheus/files/rules.yml").read_text())["groups"]
    for rule in group["rules"]
]
NAMES = [rule["alert"] for rule in RULES]
PARTS = ("Affects", "Check", "Fix", "clusterctl")


@pytest.mark.proves("monitoring", "Every alert has a severity, a summary and a runbook.")
@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_alert__of_the_rules__has_severity_summary_and_runbook(rule: dict[str, Any]) -> None:
    assert rule["labels"].keys() == {"severity"}
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
