"""`health`: run the program of role gpu_health on all workers at once and print its findings.

Slurm runs the same program periodically, and then the head drains unhealthy nodes. Here the program only reports. With
--diagnose it also runs the diagnosis that a hardware XID requires.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated

from rich.table import Table
from rich.text import Text

from clusterctl.inventory.model import Host
from clusterctl.nodes.parallel import each
from clusterctl.nodes.remote import Access, connect
from clusterctl.nodes.session import ContactError, Session
from clusterctl.run import context
from clusterctl.run.context import Options, Site
from clusterctl.ui.screen import Screen, at_commas
from clusterctl.util.errors import InputError, Problem
from clusterctl.util.redaction import Redactor, throughout
from clusterctl.util.text import fold, plural, printable
from clusterctl.util.untrusted import Malformed, decode, flag, mapping, nested, number, sequence, text

HEALTHY, UNFIT = 0, 4
PROGRAM = "/usr/local/sbin/gpu-health"
# The program's own timeouts plus a margin: driver, second check, resets, settings and diagnosis.
SECONDS = 90.0
DIAGNOSIS_SECONDS = 1200.0
MAX_FINDINGS = 1024


@dataclass(frozen=True)
class Finding:
    """A finding of a check. Advice (`drains` is false) does not drain the node."""

    check: Annotated[str, text("[a-z]+", "a check's name")]
    text: Annotated[str, text()]
    drains: Annotated[bool, flag]


_PART = text(r"(GPU|NIC)\d{1,3}", "a GPU or NIC of the topology")


@dataclass(frozen=True)
class Answer:
    """The program's output: checks done, number of recorded GPUs, GPUs that respond, and the links between them."""

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
    """A node's answer, or the reason why there is none."""

    name: str
    problem: str = ""
    answer: Answer | None = None
    sleep: str = ""
    """`asleep` or `waking` if Slurm's power saving has switched the node off; then it is not expected to respond."""

    @property
    def topology(self) -> tuple[str, ...]:
        """Return one line for each GPU or NIC, with its links to the others."""
        lines = []
        for part, links in self.answer.topology.items() if self.answer else ():
            same: dict[str, list[str]] = {}
            for other, link in links.items():
                same.setdefault(link, []).append(other)
            lines.append(f"{part}: " + ", ".join(f"{link} to {fold(others)}" for link, others in same.items()))
        return tuple(lines)

    @property
    def fit(self) -> bool:
        """Return whether the node responds and has no finding that drains it, or sleeps."""
        return bool(self.sleep) or (self.answer is not None and not self.of(drains=True))

    def of(self, drains: bool) -> list[str]:
        """Return the findings that drain the node, or with `drains` false the advice."""
        return (
            [f"{one.check}: {one.text}" for one in self.answer.findings if one.drains == drains] if self.answer else []
        )


def health_command(options: Options, diagnose: bool) -> int:
    """Print the health of the named workers (default: all), and return HEALTHY or UNFIT.

    Raises InputError for names that are not workers.
    """
    site = context.load(options)
    workers = site.inventory.workers
    names = [host.name for host in workers]
    if unknown := [name for name in options.nodes if name not in names]:
        from clusterctl.run import membership  # it is slow to load, and `status` needs this module

        raise InputError(membership.unknown(unknown, names))
    if diagnose and not options.nodes:
        raise InputError([Problem(None, "--diagnose", "names no node", "it may reset GPUs: list the nodes")])
    site = context.authorise(site)
    chosen = [host for host in workers if not options.nodes or host.name in options.nodes]
    screen = Screen(sys.stderr if options.json else sys.stdout)
    with screen.working(f"{'Diagnosing' if diagnose else 'Checking'} {plural(len(chosen), 'node')}"):
        found = each(chosen, lambda host: of_host(host, site.access, diagnose))
        found |= _sleeping(site, [name for name, health in found.items() if health.answer is None], diagnose)
    redact = Redactor([site.access.sudo_password or ""]).redact
    healths: list[Health] = throughout(list(found.values()), redact)
    code = HEALTHY if all(health.fit for health in healths) else UNFIT
    if options.json:
        nodes = [asdict(health) | {"fit": health.fit} for health in healths]
        print(json.dumps({"cluster": site.inventory.cluster_name, "exit_code": code, "nodes": nodes}, indent=2))
    else:
        show(screen, healths)
    return code


def _sleeping(site: Site, silent: Sequence[str], diagnose: bool) -> dict[str, Health]:
    """Return what holds of those of these nodes that sleep; a sleeping node that is to be diagnosed is a problem."""
    from clusterctl.run import sleeping  # it is slow to load, and `status` needs this module

    found = sleeping.asleep(site, silent)
    return {
        name: Health(name, f"{sleep}, cannot be diagnosed") if diagnose else Health(name, sleep=sleep)
        for name, sleep in found.items()
    }


def of_host(host: Host, access: Access, diagnose: bool = False) -> Health:
    """Connect to a node and run the program there."""
    try:
        with connect(host, access) as session:
            return replace(ask(session, diagnose), name=host.name)
    except ContactError as error:
        return Health(host.name, error.found)


def ask(session: Session, diagnose: bool = False) -> Health:
    """Run the program on the connected node. Invalid output is returned as a problem, never raised."""
    argv = [PROGRAM, "--diagnose" if diagnose else "--json"]
    status, out, err = session.run(argv, root=True, timeout=DIAGNOSIS_SECONDS if diagnose else SECONDS)
    if status:
        stderr = next((printable(line, 200) for line in reversed(err.splitlines()) if line.strip()), "")
        absent = status == 127 or "not found" in stderr
        return Health("", "not set up yet: bootstrap" if absent else f"gpu-health exited with {status}: {stderr}")
    try:
        return Health("", "", decode(Answer, json.loads(out)))
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, Malformed) else "not JSON"
        return Health("", f"gpu-health printed invalid output: {reason}")


# --- on the screen ----------------------------------------------------------------------------------------------------


def show(screen: Screen, healths: list[Health]) -> None:
    """Print one line for each set of equal nodes, then each finding once with all its nodes."""
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
    """Yield the cells of a node's line except its name, each with its style."""
    yield (screen.glyphs["done"], "green") if health.fit else (screen.glyphs["failed"], "red")
    if health.answer is None:
        yield from (("-", ""), (health.sleep, "dim") if health.sleep else ("no answer", "red"))
        return
    models = sorted(set(health.answer.gpus))
    responding = f"{len(health.answer.gpus)}/{health.answer.recorded}"
    yield f"{responding} {', '.join(models)}".strip() if health.answer.recorded else "none", ""
    bad, advice = len(health.of(drains=True)), len(health.of(drains=False))
    if bad:
        yield plural(bad, "problem"), "red"
    else:
        yield "fit for jobs" + (f", {plural(advice, 'note')}" if advice else ""), "green"


def _notes(health: Health) -> Iterator[str]:
    if health.problem:
        yield health.problem
    yield from health.of(drains=True)
    yield from health.of(drains=False)
