"""The landing page as HTML. Every text is escaped where it becomes part of the page, by `tag`."""

from __future__ import annotations

import datetime
import html

MOST_ROWS = 100
WIDTH = 600  # of a bar, in the units of its picture
GLYPHS = {"critical": "!!", "warning": "!", "info": "i"}
INLINE, NEWLINE = ("a", "code", "span", "time"), "\n"
BARS = ("allocated", "idle", "unavailable")


class Markup(str):
    """Text that is HTML already."""


def escaped(text: object) -> Markup:
    return text if isinstance(text, Markup) else Markup(html.escape(str(text)))


def joined(parts: object) -> Markup:
    return Markup("".join(escaped(part) for part in parts))


def tag(name: str, *content: object, **attributes: object) -> Markup:
    """Return an element. An underscore in the name of an attribute is a hyphen, one at its end is left out."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"' for key, value in attributes.items()
    )
    return Markup(f"<{name}{given}>{joined(content)}</{name}>{'' if name in INLINE else NEWLINE}")


def table(caption: str, titles: list[str], rows: list[list[object]], numbers: int = 0) -> Markup:
    """Return a table whose first cells name their rows; the last `numbers` columns are numbers."""

    def kind(index: int) -> dict[str, str]:
        return {"class_": "number"} if index >= len(titles) - numbers else {}

    # With roles: a narrow window shows rows as blocks, which a browser does not treat as a table.
    head = [tag("th", title, scope="col", role="columnheader", **kind(at)) for at, title in enumerate(titles)]
    body = []
    for row in rows[:MOST_ROWS]:
        cells = [tag("td", cell, role="cell", data_title=titles[at], **kind(at)) for at, cell in enumerate(row[1:], 1)]
        body.append(tag("tr", tag("th", row[0], scope="row", role="rowheader"), *cells, role="row"))
    more = tag("p", f"and {len(rows) - MOST_ROWS} more") if len(rows) > MOST_ROWS else ""
    parts = [tag("thead", tag("tr", *head, role="row"), role="rowgroup"), tag("tbody", *body, role="rowgroup")]
    return joined([tag("table", tag("caption", caption), *parts, role="table"), more])


def section(title: str, *content: object) -> Markup:
    name = title.lower().replace(" ", "-")
    return tag("section", tag("h2", title, id=name), *content, aria_labelledby=name)


def listed(counts: dict) -> str:
    """Return counts as text, such as `3 running, 1 pending`."""
    return ", ".join(f"{number} {word}" for word, number in counts.items() if number) or "none"


def age(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0, seconds):.0f} s"


def moment(time: float, now: float) -> Markup:
    """Return a time and how long ago it was."""
    then = datetime.datetime.fromtimestamp(time, datetime.timezone.utc)
    stamp = tag("time", f"{then:%Y-%m-%d %H:%M} UTC", datetime=f"{then:%Y-%m-%dT%H:%M:%SZ}")
    return joined([stamp, " ", tag("span", f"({age(now - time)} ago)", class_="ago")])


def bar(title: str, gpus: dict) -> Markup:
    """Return a picture of GPUs by their use; the text beside it has the numbers."""
    total = sum(gpus.get(use, 0) for use in BARS) or 1
    parts, left = [], 0.0
    for use in BARS:
        width = WIDTH * gpus.get(use, 0) / total
        parts.append(tag("rect", x=f"{left:.1f}", y=0, width=f"{width:.1f}", height=16, class_=use))
        left += width
    shown = ", ".join(f"{gpus.get(use, 0)} {use}" for use in BARS)
    return tag(
        "svg",
        *parts,
        role="img",
        aria_label=f"GPUs of {title}: {shown}",
        viewBox=f"0 0 {WIDTH} 16",
        preserveAspectRatio="none",
    )


def facts(state: dict, now: float) -> Markup:
    """Return the totals."""
    rows: list[tuple[str, object]] = []
    of = (lambda one, word: f"{word} of {one['title']}") if len(state["schedulers"]) > 1 else (lambda _, word: word)
    for one in state["schedulers"]:
        if not one["up"]:
            continue
        rows.append((of(one, "Nodes"), listed(one["nodes"])))
        gpus = one["gpus"]
        words = joined(
            [tag("span", f"{gpus.get(use, 0)} {use}", class_=f"key {use}") for use in BARS]
            if sum(gpus.values())
            else ["none"]
        )
        rows.append((of(one, "GPUs"), joined([words, bar(one["title"], gpus) if sum(gpus.values()) else ""])))
        if one["name"] == "slurm":
            jobs: dict[str, int] = {"running": 0, "pending": 0}
            for partition in state["partitions"]:
                for word, number in partition["jobs"].items():
                    jobs[word] = jobs.get(word, 0) + number
            rows.append(("Jobs", listed(jobs)))
        else:
            rows.append(("Pods", listed(state["pods"])))
    counts: dict[str, int] = {}
    for one in state["alerts"]:
        counts[one["severity"] or "other"] = counts.get(one["severity"] or "other", 0) + 1
    rows.append(("Alerts", listed(counts)))
    for one in state["schedulers"]:
        made = state["backups"].get(one["name"])
        rows.append((of(one, "Last backup"), moment(made, now) if made else "none"))
    return tag("dl", *(tag("div", tag("dt", title), tag("dd", content)) for title, content in rows))


def alerts(state: dict, now: float) -> Markup:
    rows = []
    for one in state["alerts"]:
        word = one["severity"] or "other"
        # The sign, so that the colour is not all.
        mark = tag("span", f"{GLYPHS.get(word, '?')} {word}", class_=f"severity {word if word in GLYPHS else 'info'}")
        help_ = tag("code", one["runbook"]) if one["runbook"] else ""
        since = moment(one["since"], now) if one["since"] else ""
        rows.append([one["name"], mark, one["node"], joined([one["summary"], " ", help_]), since])
    titles = ["Alert", "Severity", "Node", "Summary", "Since"]
    return section("Alerts", table("Firing alerts", titles, rows))


def nodes(state: dict) -> Markup:
    rows = [[one["node"], ", ".join(one["states"]), "; ".join(one["reasons"]) or "-"] for one in state["out"]]
    return section("Nodes", table("Nodes out of service", ["Node", "State", "Reason"], rows))


def partitions(state: dict) -> Markup:
    titles = ["Partition", "Running", "Pending", "GPUs allocated", "GPUs idle", "GPUs unavailable"]
    rows = [
        [one["name"], *(one["jobs"].get(word, 0) for word in ("running", "pending"))]
        + [one["gpus"].get(use, 0) for use in BARS]
        for one in state["partitions"]
    ]
    caption = "Jobs and GPUs by partition. What is in several partitions counts in each."
    return section("Partitions", table(caption, titles, rows, numbers=5))


def links(pages: list[dict], host: str) -> Markup:
    """Return the links to the other pages. Those of this host have the name that the browser has for it."""
    found = []
    for one in pages:
        url = f"https://{host}:{one['port']}{one['path']}" if one["here"] and host else one["url"]
        parts: list[object] = [tag("a", one["title"], href=url, rel="noreferrer")]
        parts += [f" on {one['host']}"] if not one["here"] else []
        parts += [f": {one['purpose']}."]
        if one["secret"]:
            parts += [" User ", tag("code", one["user"]), ", password: "]
            parts += [tag("code", f"clusterctl secret show {one['secret']}")]
        found.append(tag("li", *parts))
    return section("Pages", tag("ul", *found) if found else tag("p", "none"))


def page(cluster: str, state: dict, pages: list[dict], now: float, host: str = "") -> str:
    """Return the page. `state` has only `problems` if Prometheus does not respond."""
    problems = list(state["problems"])
    known = "schedulers" in state
    critical = sum(one["severity"] == "critical" for one in state.get("alerts", ()))
    out = len(state.get("out", ()))
    word, kind = "All nodes are in service, and no alert fires.", "good"
    if out or state.get("alerts"):
        word = f"{out or 'No'} node{'s' * (out != 1)} out of service, {len(state['alerts']) or 'no'} firing alert"
        word += f"{'s' * (len(state['alerts']) != 1)}."
        kind = "warning"
    if critical or problems:
        kind = "critical"
    parts: list[object] = [tag("p", problem, class_="verdict critical") for problem in problems]
    if known:
        parts.append(tag("p", word, class_=f"verdict {kind}"))
        parts.append(section("Overview", facts(state, now)))
        parts.append(alerts(state, now) if state["alerts"] else "")
        parts.append(nodes(state) if state["out"] else "")
        parts.append(partitions(state) if state["partitions"] else "")
    parts.append(links(pages, host))
    time = datetime.datetime.fromtimestamp(now, datetime.timezone.utc)
    stamp = tag("time", f"{time:%Y-%m-%d %H:%M:%S} UTC", datetime=f"{time:%Y-%m-%dT%H:%M:%SZ}")
    switch = tag("label", Markup('<input type="checkbox" id="refresh" checked> '), "Refresh every 30 s")
    head = tag(
        "head",
        Markup('<meta charset="utf-8">\n<meta name="viewport" content="width=device-width, initial-scale=1">\n'),
        Markup('<meta name="color-scheme" content="light dark">\n'),
        tag("title", f"{cluster}: GPU cluster"),
        Markup('<link rel="stylesheet" href="/landing_page.css">\n<script src="/landing_page.js" defer></script>\n'),
    )
    body = tag(
        "body",
        tag("header", tag("h1", cluster), tag("p", "As of ", stamp, id="as-of"), tag("p", switch, hidden="")),
        tag("main", *parts),
        tag("p", id="stale", role="status"),
        tag("footer", "clusterctl"),
    )
    return f'<!DOCTYPE html>\n<html lang="en">\n{head}{body}</html>\n'
