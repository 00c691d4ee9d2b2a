"""Fill the variables of dashboards' queries as Grafana does, and ask a Prometheus for them."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.dashboards.pages import PAGES
from tests.dashboards.parts import Choice, Page, Panel
from tests.labs import REPOSITORY

Ask = Callable[[str, Mapping[str, str]], Any]
"""Ask Prometheus's API for a path below /api/v1 with parameters, and return `data` of its answer."""
KEPT = REPOSITORY / ".cache/panels"
"""Where tests keep the results of a lab, one file for each scheduler, from which scripts/pages draws the pages."""
INTERVAL = "30s"
"""Of rates: at least two scrapes."""


@dataclass(frozen=True)
class Result:
    """What Prometheus returned for a panel: for each query its series, with [[time, value], ...] as `values`."""

    panel: Panel
    expressions: list[str]
    series: list[list[dict[str, Any]]]


def filled(expression: str, values: Mapping[str, str], seconds: int) -> str:
    """Return an expression as Grafana sends it. Raises for a variable that has no value."""
    known = {"__rate_interval": INTERVAL, "__range": f"{seconds}s", **values}
    return re.sub(r"\$(\w+)", lambda found: known[found[1]], expression)


def choices(ask: Ask, choice: Choice, values: Mapping[str, str]) -> list[str]:
    """Return what a reader can choose: label_values(SELECTOR, LABEL) as Grafana evaluates it."""
    found = re.fullmatch(r"label_values\((.+), (\w+)\)", choice.query)
    assert found, choice.query
    return sorted(ask(f"label/{found[2]}/values", {"match[]": filled(found[1], values, 0)}))


def chosen(ask: Ask, page: Page, wanted: Mapping[str, str]) -> dict[str, str]:
    """Return the values of a page's variables: what is wanted, else all, or the first one offered."""
    values: dict[str, str] = {}
    for choice in page.choices:
        offered = choices(ask, choice, {name: value or ".*" for name, value in values.items()})
        assert offered, f"{page.name}: nothing to choose for {choice.name}"
        value = wanted.get(choice.name) or (".*" if choice.several else offered[0])
        assert choice.several or value in offered, f"{page.name}: {choice.name} {value} is not in {offered}"
        values[choice.name] = value
    return values


def results(ask: Ask, page: Page, wanted: Mapping[str, str], end: float, seconds: int) -> list[Result]:
    """Return what each panel of a page shows: a graph its period, a number or a table its end."""
    values = chosen(ask, page, wanted)
    found = []
    for panel in page.panels:
        expressions = [filled(query.expression, values, seconds) for query in panel.queries]
        series = []
        for expression in expressions:
            if panel.kind == "graph":
                period = {"start": str(end - seconds), "end": str(end), "step": str(max(5, seconds // 120))}
                answer = ask("query_range", {"query": expression, **period})["result"]
            else:
                answer = ask("query", {"query": expression, "time": str(end)})["result"]
                answer = [{**one, "values": [one["value"]]} for one in answer]
            series.append(answer)
        found.append(Result(panel, expressions, series))
    return found


def legend(pattern: str, labels: Mapping[str, str]) -> str:
    """Return a series' name, as Grafana makes it."""
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda found: labels.get(found[1], ""), pattern)


def values_of(series: Mapping[str, Any]) -> list[float]:
    return [float(value) for _, value in series["values"]]


def keep(scheduler: str, found: Mapping[str, list[Result]], end: float) -> None:
    """Keep the results of pages, asked for at `end`."""
    KEPT.mkdir(parents=True, exist_ok=True)
    pages = {name: [[one.expressions, one.series] for one in of_page] for name, of_page in found.items()}
    (KEPT / f"{scheduler}.json").write_text(json.dumps({"end": end, "pages": pages}))


def kept() -> Iterator[tuple[Path, Page, list[Result], float]]:
    """Yield the file, the page, its results and their time, of all pages that are still as they were asked for."""
    for path in sorted(KEPT.glob("*.json")):
        document = json.loads(path.read_text())
        for page in PAGES:
            parts = document["pages"].get(page.name, [])
            if len(parts) == len(page.panels):
                found = [Result(panel, *part) for panel, part in zip(page.panels, parts, strict=True)]
                yield path, page, found, document["end"]
