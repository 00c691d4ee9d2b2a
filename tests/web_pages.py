"""The landing page and the page of `clusterctl usage` in Chromium, on a phone and a desktop, light and dark.

Started by scripts/pages. Each page must pass axe-core, fit the width of its window, and log no error. The data are of
the unit tests. Beside them, the dashboards of Grafana are drawn, from the results that tests/cluster/test_dashboards.py
and test_kubernetes_monitoring.py have kept. With --docs, the pictures of docs/ are made again.
"""

import argparse
import http.client
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Route, sync_playwright

from clusterctl.commands import usage, usage_html
from clusterctl.commands.usage_report import Usage
from tests.dashboards.asking import kept
from tests.dashboards.drawing import COLUMN, GAP, page_html
from tests.dashboards.parts import WIDTH
from tests.labs import REPOSITORY
from tests.unit import landing, test_usage
from tests.unit.head_programs import load
from tests.unit.test_slurm_accounting import PERIOD

PROGRAM = load("landing-page")
FILES = REPOSITORY / "roles/landing_page/files"
FOLDER = REPOSITORY / "docs/pictures"
ORIGIN = "https://head1.example.org:9443"
WINDOWS = {"phone": (360, 740), "desktop": (1200, 800)}
THEMES = ("light", "dark")
IN_DOCS = (900, 608)  # of the landing page
# What is wider than its window, by tag and class, and what is scrolled although the window is a phone.
TOO_WIDE = """() => {
  const found = [];
  if (document.documentElement.scrollWidth > window.innerWidth) found.push("the page");
  for (const one of document.querySelectorAll("*")) {
    const style = getComputedStyle(one);
    if (["auto", "scroll"].includes(style.overflowX) && one.scrollWidth > one.clientWidth + 1) {
      found.push(`${one.tagName.toLowerCase()}.${one.className}: ${one.innerText.slice(0, 30)}`);
    }
  }
  return found;
}"""


@dataclass(frozen=True)
class Shown:
    """One page: its name, its HTML, and the headers of its server."""

    name: str
    html: str
    headers: dict[str, str]


def example() -> Any:
    """Return the state of a cluster with two nodes out of service, in the form of landing_state."""
    one = landing.one
    states = {f"gpu{n:02}": "mixed" if n % 3 else "idle" for n in range(1, 17)} | {
        "gpu05": "drained",
        "gpu11": "not_responding",
    }
    gpus = {"allocated": 71, "idle": 41, "unavailable": 16}
    return landing.state(
        alerts=[
            landing.alert("GpuXid", "critical", "gpu05", "GPU 3 of gpu05 had XID 79 (GPU has fallen off the bus)"),
            landing.alert("NodeDown", "critical", "gpu11", "gpu11 does not respond"),
            landing.alert("SecurityUpdatesPending", "warning", "head1", "head1 lacks 3 security updates for 2 days"),
        ],
        reporting=[one(float(name != "gpu11"), instance=name) for name in ("head1", *states)],
        slurm_states=[one(1, node=node, state=state) for node, state in states.items()],
        slurm_reasons=[
            one(1, node="gpu05", reason="clusterctl: alert: GpuXid: GPU 3 of gpu05 had XID 79"),
            one(1, node="gpu11", reason="Not responding"),
        ],
        slurm_gpus=[one(number, use=use) for use, number in gpus.items()],
        jobs=[
            one(18, partition="main", state="running"),
            one(7, partition="main", state="pending"),
            one(3, partition="interactive", state="running"),
        ],
        partition_gpus=[
            *(one(number, partition="main", use=use) for use, number in gpus.items()),
            *(one(number, partition="interactive", use=use) for use, number in (("allocated", 3), ("idle", 5))),
        ],
    )


def crowded() -> Any:
    """Return a state with long words and all of them at once."""
    one, long = landing.one, "a-partition-with-a-name-of-nearly-sixty-characters-in-one-word"
    return landing.state(
        alerts=[*landing.ALERTS, *(landing.alert(f"Alert{n}", "info", f"gpu{n:03}", "x" * 90) for n in range(40))],
        slurm_reasons=[one(1, node="gpu02", reason="y" * 100)],
        jobs=[one(123456, partition=long, state=state) for state in ("running", "pending", "other")],
        partition_gpus=[one(1234, partition=long, use=use) for use in ("allocated", "idle", "unavailable")],
        kubernetes_up=[one(0)],
        kubernetes_gpus=[one(8, use="idle")],
    )


def pages() -> Iterator[Shown]:
    """Yield the pages that are checked."""
    states: dict[str, Any] = {
        "landing": example(),
        "landing-crowded": crowded(),
        "landing-healthy": landing.state(alerts=[], slurm_states=[], reporting=[]),
        "landing-unknown": {"problems": ["Prometheus does not respond: the cluster's state is not known."]},
    }
    for name, state in states.items():
        html = landing.PAGE.page("aurora", state, landing.PAGES, landing.NOW, "head1.example.org")
        yield Shown(name, html, {**PROGRAM.HEADERS})
    both = (*test_usage.of_slurm().reports, usage.of_kubernetes(test_usage.MEASURES, test_usage.CAPACITY, PERIOD))
    for name, reports in {"usage": both, "usage-short": (replace(both[0], groups=(), nodes=()),)}.items():
        html = usage_html.page(Usage("aurora", PERIOD, reports), datetime(2026, 11, 25, 14, 30, tzinfo=UTC))
        yield Shown(name, html, {})


def serve(page: Page, shown: Shown) -> None:
    """Answer the page's requests as its server does, with the headers that forbid content from elsewhere."""

    def answer(route: Route) -> None:
        path = route.request.url.removeprefix(ORIGIN)
        if path == "/":
            route.fulfill(body=shown.html, content_type="text/html; charset=utf-8", headers=shown.headers)
        elif path in PROGRAM.FILES:
            body = (FILES / path[1:]).read_text()
            route.fulfill(body=body, headers={**shown.headers, "Content-Type": PROGRAM.FILES[path]})
        elif path == "/favicon.ico":
            route.fulfill(status=http.client.NO_CONTENT)
        else:
            route.abort()

    page.route("**/*", answer)


@contextmanager
def opened(browser: Browser, shown: Shown, size: tuple[int, int], theme: Any) -> Iterator[tuple[Page, list[str]]]:
    """Open a page in a window; yield it and the errors that it logs."""
    width, height = size
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme)
    page = context.new_page()
    found: list[str] = []
    page.on("console", lambda one: found.append(f"console: {one.text}") if one.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: found.append(f"script: {error}"))
    serve(page, shown)
    page.goto(f"{ORIGIN}/")
    yield page, found
    context.close()


def problems_of(page: Page) -> list[str]:
    """Return what axe-core finds, and what is wider than its window."""
    found = []
    for one in Axe().run(page).response["violations"]:
        nodes = "; ".join(str(node["html"])[:120] for node in one["nodes"][:3])
        found.append(f"axe: {one['id']} ({one['impact']}): {one['help']}: {nodes}")
    found += [f"wider than its window: {what}" for what in page.evaluate(TOO_WIDE)]
    return found


def draw_dashboards(browser: Browser, folder: Path, docs: bool) -> list[str]:
    """Draw the dashboards of which results were kept; return their pictures."""
    drawn = []
    for path, dashboard, found, end in kept():
        text, height = page_html(dashboard, found, end)
        page = browser.new_page(viewport={"width": WIDTH * COLUMN + GAP, "height": height})
        page.set_content(text)
        # The documentation has one picture of each page, of Slurm's lab where it has that page.
        if docs and (path.stem == "slurm" or dashboard.scheduler == path.stem):
            page.screenshot(path=FOLDER / f"dashboard-{dashboard.name}.png")
        drawn.append(f"dashboard-{dashboard.name}-{path.stem}.png")
        page.screenshot(path=folder / drawn[-1])
        page.close()
    return drawn


def main() -> int:
    """Check all pages; print what is wrong and return 1 if anything is."""
    parser = argparse.ArgumentParser(prog="scripts/pages", description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("folder", nargs="?", type=Path, default=REPOSITORY / ".cache/pages", help="for the pictures")
    parser.add_argument("--docs", action="store_true", help="also make the pictures of docs/")
    given = parser.parse_args()
    folder: Path = given.folder
    folder.mkdir(parents=True, exist_ok=True)
    problems: dict[str, list[str]] = {}
    with sync_playwright() as playwright:
        # Its sandbox needs a user other than root.
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", chromium_sandbox=False)
        for shown, (window, size), theme in product(pages(), WINDOWS.items(), THEMES):
            name = f"{shown.name}-{window}-{theme}"
            with opened(browser, shown, size, theme) as (page, errors):
                if found := problems_of(page) + errors:
                    problems[name] = found
                page.screenshot(path=folder / f"{name}.png", full_page=True)
        for theme in THEMES if given.docs else ():
            with opened(browser, next(pages()), IN_DOCS, theme) as (page, _):
                page.screenshot(path=FOLDER / f"landing-{theme}.png")
        drawn = draw_dashboards(browser, folder, given.docs)
        browser.close()
    print(f"dashboards drawn: {', '.join(drawn) or 'none; run tests/cluster/test_dashboards.py first'}")
    print(json.dumps(problems, indent=2) if problems else f"no problem; the pictures are in {folder}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
