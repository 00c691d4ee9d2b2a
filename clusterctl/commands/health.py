"""Whether the workers' GPUs are fit for jobs: what the program of role gpu_health finds on each node, all at once.

It is the program that Slurm runs regularly, which then has the head keep a node out of service. Here it only looks, or,
when asked for, makes the diagnosis that an XID of the hardware waits for.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Annotated

from rich.table import Table
from rich.text import Text

from clusterctl.inventory.model import Host
from clusterctl.nodes.remote import Access, connect, each
from clusterctl.nodes.session import ContactError, Session
from clusterctl.run import context, membership
from clusterctl.run.context import Options
from clusterctl.ui.screen import Screen, at_commas
from clusterctl.util.errors import InputError, Problem
from clusterctl.util.redaction import Redactor, throughout
from clusterctl.util.text import fold, plural, printable
from clusterctl.util.untrusted import Malformed, decode, flag, mapping, nested, number, sequence, text

HEALTHY, UNFIT = 0, 4
PROGRAM = "/usr/local/sbin/gpu-health"
# What the program waits for at most, and some more: the driver, a second look, resets, settings and a diagnosis.
SECONDS = 90.0
DIAGNOSIS_SECONDS = 1200.0
MAX_FINDINGS = 1024


@dataclass(frozen=True)
class Finding:
    """What a check has found; advice does not keep a node out of service."""

    check: Annotated[str, text("[a-z]+", "a check's name")]
    text: Annotated[str, text()]
    drains: Annotated[bool, flag]


_PART = text(r"(GPU|NIC)\d{1,3}", "a GPU or NIC of the topology")


@dataclass(frozen=True)
class Answer:
    """What the program says: checks made, how many GPUs are recorded, which ones answer, and how they are connected."""

    checks: Annotated[tuple[str, ...], sequence(text("[a-z]+", "a check's name"), 64)]
    recorded: Annotated[int, number(0, 64)]
    gpus: Annotated[tuple[str, ...], sequence(text(), 64)]
    findings: Annotated[tuple[Finding, ...], sequence(nested(Finding), MAX_FINDINGS)]
    topology: Annotated[
        Mapping[str, Mapping[str, str]],
        mapping(_PART, mapping(_PART, text(r"[A-Z]{2,4}\d{0,2}", "a link such as NV12 or PHB"), 128), 128),
    ]


@dataclass(frozen=True)
class Health:
    """A node's answer, or why there is none."""

    name: str
    problem: str = ""
    answer: Answer | None = None

    @property
    def topology(self) -> tuple[str, ...]:
        """Return how the GPUs are connected: a line for each, with what connects it to the others."""
        lines = []
        for part, links in self.answer.topology.items() if self.answer else ():
            same: dict[str, list[str]] = {}
            for other, link in links.items():
                same.setdefault(link, []).append(other)
            lines.append(f"{part}: " + ", ".join(f"{link} to {fold(others)}" for link, others in same.items()))
        return tuple(lines)

    @property
    def fit(self) -> bool:
        """Return whether the node answers and nothing keeps it from jobs."""
        return self.answer is not None and not self.of(drains=True)

    def of(self, drains: bool) -> list[str]:
        """Return what was found that drains, or that is advice."""
        return (
            [f"{one.check}: {one.text}" for one in self.answer.findings if one.drains == drains] if self.answer else []
        )


def health_command(options: Options, diagnose: bool) -> int:
    """Print the health of the workers that are named, of all where none is, and return HEALTHY or UNFIT.

    Raises InputError for names that no worker has.
    """
    site = context.load(options)
    workers = site.inventory.workers
    names = [host.name for host in workers]
    if unknown := [name for name in options.nodes if name not in names]:
        raise InputError(membership.unknown(unknown, names))
    if diagnose and not options.nodes:
        raise InputError([Problem(None, "--diagnose", "names no node", "it may reset GPUs: name the nodes")])
    site = context.authorise(site)
    chosen = [host for host in workers if not options.nodes or host.name in options.nodes]
    screen = Screen(sys.stderr if options.json else sys.stdout)
    with screen.working(f"{'Diagnosing' if diagnose else 'Checking'} {plural(len(chosen), 'node')}"):
        found = each(chosen, lambda host: of_host(host, site.access, diagnose))
    redact = Redactor([site.access.sudo_password or ""]).redact
    healths: list[Health] = throughout(list(found.values()), redact)
    code = HEALTHY if all(health.fit for health in healths) else UNFIT
    if options.json:
        nodes = [asdict(health) | {"fit": health.fit} for health in healths]
        print(json.dumps({"cluster": site.inventory.cluster_name, "exit_code": code, "nodes": nodes}, indent=2))
    else:
        show(screen, healths)
    return code


def of_host(host: Host, access: Access, diagnose: bool = False) -> Health:
    """Connect to a node and ask it."""
    try:
        with connect(host, access) as session:
            return replace(ask(session, diagnose), name=host.name)
    except ContactError as error:
        return Health(host.name, error.found)


def ask(session: Session, diagnose: bool = False) -> Health:
    """Run the program on the node at the other end; never raises for what it says."""
    argv = [PROGRAM, "--diagnose" if diagnose else "--json"]
    status, out, err = session.run(argv, root=True, timeout=DIAGNOSIS_SECONDS if diagnose else SECONDS)
    if status:
        said = next((printable(line, 200) for line in reversed(err.splitlines()) if line.strip()), "")
        absent = status == 127 or "not found" in said
        return Health("", "not set up yet: bootstrap" if absent else f"gpu-health ended with {status}: {said}")
    try:
        return Health("", "", decode(Answer, json.loads(out)))
    except (ValueError, RecursionError) as error:
        told = str(error) if isinstance(error, Malformed) else "it is no JSON"
        return Health("", f"the answer of gpu-health is no answer: {told}")


# --- on the screen ----------------------------------------------------------------------------------------------------


def show(screen: Screen, healths: list[Health]) -> None:
    """Print nodes that are alike in one line, and below what was found, each once with all nodes that it is true of."""
    rows: dict[tuple[tuple[str, str], ...], list[str]] = {}
    notes: dict[str, list[str]] = {}
    for health in healths:
        rows.setdefault(tuple(_cells(screen, health)), []).append(health.name)
        for note in _notes(health):
            notes.setdefault(note, []).append(health.name)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("", "Node", "GPUs", "Health"):
        table.add_column(title, overflow="fold")
    for (mark, *cells), names in rows.items():
        table.add_row(Text(*mark), at_commas(fold(names), screen.width // 3), *(Text(*cell) for cell in cells))
    screen.print(table)
    if notes:
        screen.say("")
    for note, names in notes.items():
        screen.hang((f"{fold(names)}: ", "bold"), note)


def _cells(screen: Screen, health: Health) -> Iterator[tuple[str, str]]:
    """Yield the cells of a node's line beside its name, each with its style."""
    yield (screen.glyphs["done"], "green") if health.fit else (screen.glyphs["failed"], "red")
    if health.answer is None:
        yield from (("-", ""), ("no answer", "red"))
        return
    models = sorted(set(health.answer.gpus))
    here = f"{len(health.answer.gpus)}/{health.answer.recorded}"
    yield f"{here} {', '.join(models)}".strip() if health.answer.recorded else "none", ""
    bad, advice = len(health.of(drains=True)), len(health.of(drains=False))
    if bad:
        yield plural(bad, "problem"), "red"
    else:
        yield "fit for jobs" + (f", {advice} to note" if advice else ""), "green"


def _notes(health: Health) -> Iterator[str]:
    if health.problem:
        yield health.problem
    yield from health.of(drains=True)
    yield from health.of(drains=False)
