"""`status`: print nodes, problems and totals, once or repeatedly until Ctrl-C."""

import json
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from rich.table import Table
from rich.text import Text

from clusterctl.commands import status_kubernetes
from clusterctl.commands.status import collect
from clusterctl.commands.status_report import (
    ABSENT,
    DEGRADED,
    HEAD_DOWN,
    HEALTHY,
    OUTDATED,
    UNRECORDED,
    NodeStatus,
    Status,
)
from clusterctl.kubernetes.objects import KubernetesNode
from clusterctl.nodes.contact import Alert
from clusterctl.run import context, pruning, removals
from clusterctl.run.context import Options, Site
from clusterctl.slurm.state import SlurmNode
from clusterctl.ui.screen import Screen, at_commas
from clusterctl.util.errors import InputError, Problem
from clusterctl.util.redaction import throughout
from clusterctl.util.text import fold, plural, printable, roughly
from clusterctl.workspace import secrets

MAX_NOTES = 40  # lines; more do not fit on a page, and JSON has all of them
_MAX_APART = 8  # packages
_WORDS = {HEALTHY: "healthy", DEGRADED: "degraded", HEAD_DOWN: "the head or its scheduler is down"}
_COLOURS = {HEALTHY: "green", DEGRADED: "yellow", HEAD_DOWN: "red"}


def status_command(options: Options, every: float | None = None, topology: bool = False) -> int:
    """Print the cluster's status as text or JSON and return the exit status.

    With `every`, refresh after that many seconds until Ctrl-C. With `topology`, also GPUs' links. Raises InputError.
    """
    if every is not None:
        _require_terminal(options.json)
    site = context.authorise(context.load(options))
    inventory = site.inventory
    key, secrets_problem, redact = _secrets(site)

    def ask() -> Status:
        status = collect(inventory, site.access, key, secrets_problem, topology=topology)
        status = replace(status, leaving=_leaving(site), given=str(site.options.given))
        return throughout(status, redact)  # type: ignore[no-any-return]

    screen = Screen(sys.stderr if options.json else sys.stdout)
    with screen.working(f"Checking {plural(len(inventory.hosts), 'node')}"):
        status = ask()
    if every is not None:
        watch(screen, status, ask, every)
        return HEALTHY
    if options.json:
        print(json.dumps({**status.as_dict(), "notes": [asdict(note) for note in fold_notes(status)]}, indent=2))
    else:
        show(screen, status, datetime.now(UTC))
    return status.exit_code


def _leaving(site: Site) -> dict[str, str]:
    """Return the nodes whose removal is not finished, with the command that resumes all of them."""
    names = removals.unfinished(site.inventory)
    return dict.fromkeys(names, shlex.join(["clusterctl", "remove-node", str(site.options.given), *names]))


def _require_terminal(as_json: bool) -> None:
    if as_json:
        raise InputError([Problem(None, "--watch", "cannot be given with --output json", "repeat the command instead")])
    if not sys.stdout.isatty():
        raise InputError([Problem(None, "--watch", "there is no terminal to draw on", "repeat the command instead")])


def _secrets(site: Site) -> tuple[str | None, str, Callable[[str], str]]:
    """Return the key of the recorded hashes of secrets, the reason if there is none, and a function that redacts."""
    directory = site.inventory.directory
    try:
        key = secrets.values(directory).get("record_key")
        return (
            key,
            "" if key else "there is no record_key yet",
            secrets.redactor(directory, site.access.sudo_password).redact,
        )
    except InputError as error:
        return None, str(error), lambda text: text


# --- one page ---------------------------------------------------------------------------------------------------------


def show(screen: Screen, status: Status, now: datetime) -> None:
    """Print the status: one line for each set of equal nodes, then problems, then totals."""
    _nodes(screen, status)
    notes = fold_notes(status)
    if notes:
        screen.say("")
        _columns(screen, [(fold(note.names), str(note)) for note in notes[:MAX_NOTES]])
        if len(notes) > MAX_NOTES:
            screen.say(f"and {plural(len(notes) - MAX_NOTES, 'more line')}; --output json has all")
    if connected := [(node.name, line) for node in status.nodes for line in node.topology]:
        screen.say("")
        _columns(screen, _folded(connected))
    if status.alerts and status.alerts.firing:
        screen.say("")
        _alerts(screen, status, now)
    screen.say("")
    for name, text, style in _totals(status, now):
        screen.say((f"{name:<10}", "dim"), (text, style))


def _nodes(screen: Screen, status: Status) -> None:
    rows: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for node in status.nodes:
        rows.setdefault(tuple(_cells(screen, node, status.of_scheduler(node.name))), []).append(node.name)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    scheduler = "Slurm" if not status.kubernetes else "Scheduler" if status.slurm else "Kubernetes"
    for title in ("", "Node", "Services", scheduler, "GPUs"):
        table.add_column(title, overflow="fold")
    for (mark, *cells), names in rows.items():
        table.add_row(Text(*mark), at_commas(fold(names), _names_width(screen)), *(Text(*cell) for cell in cells))
    screen.print(table)


def _cells(screen: Screen, node: NodeStatus, at: SlurmNode | KubernetesNode | None) -> Iterator[tuple[str, str]]:
    """Yield the cells of a node's line except its name, each with its style; nodes with equal cells share a line."""
    colour = "red" if node.problem or node.failed else "green" if node.is_healthy else "yellow"
    yield screen.glyphs["done" if node.is_healthy else "failed"], colour
    if node.problem or node.sleep:
        yield ("no contact", "red") if node.problem else (node.sleep, "dim")
    else:
        unconfigured = set(node.services.values()) == {ABSENT}
        failed = "not set up" if unconfigured else ", ".join(node.failed)
        yield (failed, "red") if failed else (f"{len(node.services)} active", "")
    style = "" if not at or at.in_service else "yellow"
    yield "-" if at is None else "+".join(at.state).lower(), style
    pairs = at.gpus.items() if at else ()
    yield ", ".join(f"{at.allocated.get(kind, 0)}/{n} {kind}" for kind, n in pairs) if at and pairs else "-", ""


@dataclass(frozen=True)
class Note:
    """A line of the page with the names it applies to, and the command that helps, if any."""

    names: tuple[str, ...]
    text: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.text} ({self.remedy})" if self.remedy else self.text


def fold_notes(status: Status) -> list[Note]:
    """Return the notes, each once with all its nodes, and with one command for all of them."""
    notes: dict[tuple[str, str], list[str]] = {}
    for name, text, remedy in _notes(status):
        notes.setdefault((text, remedy), []).append(name)
    return [Note(tuple(names), text, _command(remedy, status, names)) for (text, remedy), names in notes.items()]


def _folded(lines: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return each text once, with all its nodes."""
    notes: dict[str, list[str]] = {}
    for name, text in lines:
        notes.setdefault(text, []).append(name)
    return [(fold(names), text) for text, names in notes.items()]


# Templates of the commands that help; `_command` fills in the inventory and the nodes.
_BOOTSTRAP = "clusterctl bootstrap {inventory}"
_UPGRADE = "clusterctl upgrade {inventory}"
_RESUME = "on the head: sudo scontrol update nodename={hostlist} state=resume"
_ADMIT = "on the head: sudo /usr/local/sbin/slurm-drain {cause} --in {{commas}}"
_ACCEPT_HARDWARE = "if that is right: rm {directory}/hardware/{braces}.json && clusterctl bootstrap {inventory}"
CAUSES = {
    "alert": "clusterctl health {inventory} {braces} --diagnose",
    "bootstrap": _BOOTSTRAP,
    "new": _BOOTSTRAP,
    "health": "clusterctl health {inventory} {braces} --diagnose",
    "reboot": "clusterctl reboot {inventory} {braces}",
    "remove-node": "clusterctl remove-node {inventory} {braces}",
    "upgrade": _UPGRADE,
    "upgrade-os": f"{_UPGRADE} --os",
}
"""The command that ends each drain cause that clusterctl uses."""
# States in which no job starts on a node (sinfo(1), NODE STATE CODES): requested ones, and ones that a bootstrap ends.
_REQUESTED = frozenset({"MAINTENANCE", "FUTURE", "POWERED_DOWN", "POWERING_DOWN", "REBOOT_ISSUED"})
_ENDED_BY_BOOTSTRAP = frozenset({"DOWN", "NOT_RESPONDING", "INVAL", "INVALID", "INVALID_REG", "UNKNOWN"})


def _command(remedy: str, status: Status, names: Sequence[str]) -> str:
    """Return a remedy for these nodes, ready to be typed."""
    given = Path(status.given)
    directory = given if given.suffix not in (".yaml", ".yml") else given.parent
    return remedy.format(
        inventory=shlex.quote(status.given),
        directory=shlex.quote(str(directory)),
        braces=braces(names),
        commas=",".join(names),
        spaces=" ".join(names),
        hostlist=shlex.quote(fold(names).replace(", ", ",")),
    )


def braces(names: Sequence[str]) -> str:
    """Return names in shell brace expansion: `gpu[01-03,07], head1` becomes `gpu{{01..03},07} head1`."""

    def expansion(found: re.Match[str]) -> str:
        parts = [f"{{{part.replace('-', '..')}}}" if "-" in part else part for part in found[1].split(",")]
        return parts[0] if len(parts) == 1 else f"{{{','.join(parts)}}}"

    return re.sub(r"\[([\d,-]+)\]", expansion, fold(names)).replace(", ", " ")


def _remedy(at: SlurmNode | KubernetesNode, line: str) -> str:
    """Return the command that puts a node back into service, for a line of its `why`."""
    if isinstance(at, KubernetesNode):
        return status_kubernetes.remedy(at, line, CAUSES, _BOOTSTRAP)
    prefix = line.partition(": ")[0]
    cause = prefix.rpartition(" ")[2]
    is_recorded = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]*", cause) and cause in at.causes
    if prefix == f"drained by {cause}" and is_recorded:
        return CAUSES.get(cause, _ADMIT.format(cause=cause))
    if prefix.startswith("in service, though") and is_recorded:
        return _ADMIT.format(cause=cause)
    states = {*at.state}
    if prefix.startswith("drained") or states & {"FAIL", "FAILING"}:
        return _RESUME
    return _BOOTSTRAP if states & _ENDED_BY_BOOTSTRAP and not states & _REQUESTED else ""


def _notes(status: Status) -> Iterator[tuple[str, str, str]]:
    """Yield the name, the text and the remedy of each note."""
    for node in status.nodes:
        if node.problem:
            yield node.name, node.problem, ""
        yield from ((node.name, text, "") for text in node.mounts)
        for difference in node.differences:
            yield node.name, difference, _BOOTSTRAP if difference == UNRECORDED else _ACCEPT_HARDWARE
        if at := status.of_scheduler(node.name):
            yield from ((node.name, line, _remedy(at, line)) for line in at.why())
    yield from status_kubernetes.notes(status, _BOOTSTRAP)
    if status.slurm and status.slurm.problem:
        yield "slurm", status.slurm.problem, ""
    elif status.slurm:
        yield from ((name, "not known to Slurm", _BOOTSTRAP) for name in status.unregistered)
        silent = [name for name, responds in status.slurm.controllers.items() if not responds]
        yield from (
            (name, f"its slurmctld does not respond; {status.slurm.in_control} is in control", "") for name in silent
        )
    for name, command in status.leaving.items():
        yield name, f"its removal is not finished: {command}", ""
    if status.slurm and status.slurm.ledger_problem:
        yield "slurm", f"drain causes unknown: {status.slurm.ledger_problem}", ""
    yield from (("people", line, "") for line in (*status.people_apart, *status.directory))
    for node in status.nodes:
        if node.drift and node.drift.error:
            yield node.name, f"could not be compared with its record: {node.drift.error}", ""
        for item in node.drifted:
            kind = "" if item.kind == "pending" else f"{item.kind} "
            yield node.name, f"{item.scope}: {kind}{item.name}: {item.what}", _BOOTSTRAP
        if node.drift and node.drift.more:
            yield node.name, f"{plural(node.drift.more, 'more item')} not as recorded", _BOOTSTRAP
    for node in status.nodes:
        for text, hint in pruning.explain(node.unused):
            yield node.name, text, hint.replace(pruning.COMMAND, f"{_BOOTSTRAP} --prune")
    if status.alerts and status.alerts.error:
        yield "alerts", f"unknown: {status.alerts.error}", ""
    if status.secrets_problem:
        yield "secrets", f"files with secrets were not compared: {status.secrets_problem}", ""
    for node in status.nodes:
        if node.updated is not None and node.updated > OUTDATED:
            how = "journalctl -u apt-daily-upgrade -u dnf-automatic"
            yield node.name, f"no security updates for {node.updated // 86400} days", how
    for advisory, names in status.unsafe().items():
        yield "security", f"{advisory}: {_few(names, len(status.nodes))}", _UPGRADE
    apart = status.versions_apart()
    for package, versions in list(apart.items())[:_MAX_APART]:
        # Most nodes first; `_few` lists the names of the few that differ.
        counted = [(len(nodes), f"{one} on {_few(nodes, len(status.nodes))}") for one, nodes in versions.items()]
        yield "versions", f"{package} " + "; ".join(text for _, text in sorted(counted, reverse=True)), ""
    if len(apart) > _MAX_APART:
        yield "versions", f"{plural(len(apart) - _MAX_APART, 'more package')} differ; --output json has all", ""


def _few(nodes: list[str], all_nodes: int) -> str:
    return fold(nodes) if len(nodes) <= max(2, all_nodes // 2) else plural(len(nodes), "node")


def _columns(screen: Screen, rows: list[tuple[str, str]]) -> None:
    """Print names and texts; on a terminal each wraps within its column."""
    if not screen.is_terminal:
        for names, text in rows:
            screen.say(f"{names}: {text}")
        return
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(max_width=_names_width(screen), overflow="fold")
    table.add_column(overflow="fold")
    for names, text in rows:
        table.add_row(Text(at_commas(names, _names_width(screen)), "bold"), text)
    screen.print(table)


def _names_width(screen: Screen) -> int:
    return max(16, screen.width // 3)


def _alerts(screen: Screen, status: Status, now: datetime) -> None:
    alerts = status.alerts
    if not alerts:
        return
    same: dict[tuple[str, str], list[Alert]] = {}
    for alert in alerts.firing:
        same.setdefault((alert.severity, alert.name), []).append(alert)
    for (severity, name), group in same.items():
        nodes = fold(list(dict.fromkeys(alert.node for alert in group if alert.node)))
        summaries = dict.fromkeys(alert.summary for alert in group if alert.summary) if len(group) <= 3 else ()
        parts = [name, f"on {nodes}" * bool(nodes), _since(group, now)]
        line = " ".join(filter(None, parts)) + (f": {'; '.join(summaries)}" if summaries else "")
        screen.say((f"{severity:<10}", "red" if severity == "critical" else "yellow"), line)
    if alerts.more:
        screen.say(f"and {plural(alerts.more, 'more alert')}")


def _since(group: list[Alert], now: datetime) -> str:
    """Return when the oldest of these alerts began."""
    times = []
    for alert in group:
        with suppress(ValueError):  # Prometheus writes nanoseconds; Python drops the digits it cannot store
            times.append(datetime.fromisoformat(alert.since))
    began = min((time for time in times if time.tzinfo), default=None)
    if began is None:
        return ""
    return f"since {began.astimezone(UTC):%Y-%m-%d %H:%M} UTC ({roughly((now - began).total_seconds())})"


def _totals(status: Status, now: datetime) -> Iterator[tuple[str, str, str]]:
    for kind, sums in status.gpus().items():
        out = f", {sums['out_of_service']} out of service" if sums["out_of_service"] else ""
        yield "GPUs", f"{sums['total']} {kind}: {sums['allocated']} allocated, {sums['idle']} idle{out}", ""
    if status.slurm and not status.slurm.problem:
        jobs = ", ".join(f"{count} {state.lower()}" for state, count in sorted(status.slurm.jobs.items())) or "none"
        yield "Jobs", jobs + f"; {status.slurm.in_control} is in control" * bool(status.slurm.in_control), ""
    if status.kubernetes and not status.kubernetes.problem:
        yield "Pods", status_kubernetes.pods(status.kubernetes), ""
    apart = status.homes_apart()
    if apart is not None:
        text = f"not shared: files that a job writes to its home directory stay on {_few(apart, len(status.nodes))}"
        yield "Homes", text if apart else "shared", ""
    if status.alerts and not status.alerts.error and not status.alerts.firing:
        yield "Alerts", "none", ""
    if run := status.last_run:
        arguments = f" {run.arguments}" if run.arguments else ""
        yield "Last run", f"{run.verb}{arguments}, {run.age(now)}: {printable(run.result, 1000)}", ""
    word = _WORDS[status.exit_code]
    under_way = status.last_run and status.last_run.under_way
    if status.exit_code == HEAD_DOWN and not status.built and not under_way:
        word = f"not built yet by a run from this directory: {_command(_BOOTSTRAP, status, ())}"
    yield "Cluster", f"{status.cluster}: {word}", _COLOURS[status.exit_code]


# --- --watch ----------------------------------------------------------------------------------------------------------


def watch(screen: Screen, status: Status, ask: Callable[[], Status], every: float) -> None:
    """Refresh the page until Ctrl-C; the last page stays on the screen."""
    try:
        with screen.screen():
            while True:
                draw(screen, status, every, datetime.now(UTC))
                time.sleep(every)
                status = ask()
    except KeyboardInterrupt:
        show(screen, status, datetime.now(UTC))


def draw(screen: Screen, status: Status, every: float, now: datetime) -> None:
    """Draw a page over the last one, in one write and line by line, so that the screen does not flicker."""
    with screen.capture() as page:
        screen.say((f"Every {every:g} s; {now.astimezone():%H:%M:%S}; Ctrl-C ends", "dim"), cut=True)
        show(screen, status, now)
    lines, height = page.get().splitlines(), max(2, screen.height)
    if len(lines) > height:
        rest = plural(len(lines) - height + 1, "more line")
        lines = [*lines[: height - 1], f"{screen.glyphs['more']} {rest}; the window is too small"]
    screen.file.write("\x1b[H" + "\x1b[K\n".join(lines) + "\x1b[K\x1b[J")
    screen.file.flush()
