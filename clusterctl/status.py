"""How a cluster is: one read-only contact with every node at once, Slurm's own view from the head, and the last run.

Exit status: 0 all well; 4 something is out of service, or a node differs from its record; 5 the head does not serve.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from clusterctl import contact, converge, files, hardware
from clusterctl.hardware import Hardware
from clusterctl.inventory import Host, Inventory
from clusterctl.outcome import fold
from clusterctl.remote import Access, ContactError, Session, connect, each
from clusterctl.report import Screen
from clusterctl.runner import RUN_NAME
from clusterctl.untrusted import printable

HEALTHY, DEGRADED, HEAD_DOWN = 0, 4, 5
ABSENT = "not installed"

# Units by group; either name of one with a bar will do, for distributions differ.
_SERVICES: Mapping[str, Sequence[str]] = {
    "all": ("chrony|chronyd", "prometheus-node-exporter"),
    "slurm_head": ("munge", "slurmctld", "slurmdbd", "dnsmasq", "slurm-metrics.timer"),
    "slurm_workers": ("munge", "slurmd"),
    "monitoring": ("prometheus",),
}
# Without these on the head nothing is scheduled.
_SCHEDULER = frozenset({"munge", "slurmctld", "slurmdbd", "mariadb"})
# Slurm's base states and flags that take a node out of service.
_OUT_OF_SERVICE = frozenset(
    {"DOWN", "DRAIN", "DRAINED", "DRAINING", "ERROR", "FAIL", "FAILING", "FUTURE", "INVAL", "INVALID", "INVALID_REG"}
    | {"MAINTENANCE", "NOT_RESPONDING", "POWERED_DOWN", "POWERING_DOWN", "REBOOT_ISSUED", "UNKNOWN"}
)
# 5000 nodes at some KB each; a queue of 100,000 jobs at some bytes each.
_MAX_SLURM_REPLY = 32 << 20
_SLURM_SECONDS = 15.0
_NO_SUCH_COMMAND = 127  # of a shell; sudo says it in words and ends with 1


@dataclass(frozen=True)
class SlurmNode:
    """A node as slurmctld sees it; GPUs by type."""

    state: tuple[str, ...]
    reason: str
    gpus: Mapping[str, int]
    allocated: Mapping[str, int]

    @property
    def in_service(self) -> bool:
        return not _OUT_OF_SERVICE & set(self.state)


@dataclass(frozen=True)
class Slurm:
    """What the head's slurmctld says; jobs by state. `problem` is set where it says nothing."""

    nodes: Mapping[str, SlurmNode] = field(default_factory=dict)
    jobs: Mapping[str, int] = field(default_factory=dict)
    problem: str = ""


@dataclass(frozen=True)
class NodeStatus:
    """One node: why it could not be asked, else its services by name and how it differs from its record."""

    name: str
    head: bool
    problem: str = ""
    slurm_worker: bool = False
    services: Mapping[str, str] = field(default_factory=dict)
    differences: tuple[str, ...] = ()

    @property
    def failed(self) -> list[str]:
        """Return the services that do not run, each with its state."""
        return [f"{name} {state}" for name, state in self.services.items() if state != "active"]

    @property
    def vital(self) -> bool:
        """Return whether one of the services that fail is the scheduler's."""
        return any(state != "active" and name in _SCHEDULER for name, state in self.services.items())


@dataclass(frozen=True)
class Status:
    """The whole cluster; `last_run` is None before the first."""

    cluster: str
    nodes: tuple[NodeStatus, ...]
    slurm: Slurm | None
    last_run: Mapping[str, Any] | None

    @property
    def exit_code(self) -> int:
        """Return HEALTHY, DEGRADED or HEAD_DOWN."""
        slurm = self.slurm or Slurm()
        if slurm.problem or any(node.head and (node.problem or node.vital) for node in self.nodes):
            return HEAD_DOWN
        degraded = any(node.problem or node.failed or node.differences for node in self.nodes) or self.strangers
        return DEGRADED if degraded or not all(node.in_service for node in slurm.nodes.values()) else HEALTHY

    @property
    def strangers(self) -> list[str]:
        """Return the workers of the inventory that Slurm does not know."""
        known = self.slurm.nodes if self.slurm else {}
        return [node.name for node in self.nodes if node.slurm_worker and node.name not in known]

    def gpus(self) -> dict[str, dict[str, int]]:
        """Return, by type, how many GPUs there are, are allocated, are idle, and are on nodes out of service."""
        found: dict[str, dict[str, int]] = {}
        for node in self.slurm.nodes.values() if self.slurm else ():
            for kind, count in node.gpus.items():
                sums = found.setdefault(kind, {"total": 0, "allocated": 0, "idle": 0, "out_of_service": 0})
                allocated = min(node.allocated.get(kind, 0), count)
                sums["total"] += count
                sums["allocated"] += allocated
                sums["idle" if node.in_service else "out_of_service"] += count - allocated
        return found

    def as_dict(self) -> dict[str, Any]:
        """Return what `--output json` prints."""
        return {
            "cluster": self.cluster,
            "exit_code": self.exit_code,
            "nodes": [asdict(node) for node in self.nodes],
            "slurm": asdict(self.slurm) if self.slurm else None,
            "gpus": self.gpus(),
            "last_run": self.last_run,
        }


def status_command(options: converge.Options) -> int:
    """Print the cluster's status as text or JSON and return the exit status. Raises InputError, as `load` does."""
    site = converge.authorise(converge.load(options))
    inventory = site.inventory
    screen = Screen(sys.stderr if options.json else sys.stdout)
    with screen.working(f"Asking {len(inventory.hosts)} nodes"):
        status = collect(inventory, site.access)
    if options.json:
        print(json.dumps(status.as_dict(), indent=2))
    else:
        show(screen, status)
    return status.exit_code


# --- asking -----------------------------------------------------------------------------------------------------------


def collect(inventory: Inventory, access: Access) -> Status:
    """Ask every node at once. Raises InputError for a hardware record that cannot be used."""
    records = hardware.load_all(inventory.directory)
    answers = each(inventory.hosts, lambda host: _ask(host, access, records.get(host.name)))
    slurm = next((said for _, said in answers.values() if said), None)
    if slurm is None and inventory.in_group("slurm_head"):
        slurm = Slurm(problem="the head does not answer")
    nodes = tuple(node for node, _ in answers.values())
    return Status(inventory.cluster_name, nodes, slurm, last_run(inventory.directory))


def services_of(host: Host) -> list[str]:
    """Return the units that a host of these groups runs, alternatives with a bar between."""
    names = [name for group, units in _SERVICES.items() if group == "all" or group in host.groups for name in units]
    if "slurm_head" in host.groups and host.variables.get("slurm_head_database_host", "localhost") == "localhost":
        names.append("mariadb")
    return list(dict.fromkeys(names))


def _ask(host: Host, access: Access, recorded: Hardware | None) -> tuple[NodeStatus, Slurm | None]:
    head = any(group.endswith("_head") for group in host.groups)
    worker = "slurm_workers" in host.groups
    wanted = services_of(host)
    try:
        with connect(host, access) as session:
            answer = contact.converse(host, session, {"services": [n for name in wanted for n in name.split("|")]})
            if answer.facts is None or answer.errors:
                return NodeStatus(host.name, head, str(answer.errors[0]), worker), None
            slurm = ask_slurm(session) if "slurm_head" in host.groups else None
    except ContactError as error:
        return NodeStatus(host.name, head, error.found, worker), None
    states = answer.facts.node.services
    services = {
        next((n for n in name.split("|") if n in states), name.split("|")[0]): next(
            (states[n] for n in name.split("|") if n in states), ABSENT
        )
        for name in wanted
    }
    differences = hardware.compare(recorded, answer.facts.hardware) if recorded else ["no hardware record yet"]
    return NodeStatus(host.name, head, "", worker, services, tuple(differences)), slurm


def ask_slurm(session: Session) -> Slurm:
    """Ask the slurmctld of the node at the other end for its nodes and jobs."""
    try:
        found, nodes, error = _slurm(session, "scontrol", "--oneliner", "--details", "show", "nodes")
        if found != 0:
            absent = found == _NO_SUCH_COMMAND or "command not found" in error
            told = "not on the head yet" if absent else _first_line(error)
            return Slurm(problem=told or f"scontrol ended with {found}")
        found, jobs, error = _slurm(session, "squeue", "--noheader", "--all", "--format=%T")
        if found != 0:
            return Slurm(problem=_first_line(error) or f"squeue ended with {found}")
    except ContactError as problem:
        return Slurm(problem=problem.found)
    return Slurm(parse_nodes(nodes), dict(Counter(printable(line, 32) for line in jobs.split())))


def _slurm(session: Session, *argv: str) -> tuple[int, str, str]:
    return session.run(argv, root=True, timeout=_SLURM_SECONDS, limit=_MAX_SLURM_REPLY)


def _first_line(said: str) -> str:
    return next((printable(line, 200) for line in said.splitlines() if line.strip()), "")


def parse_nodes(answer: str) -> dict[str, SlurmNode]:
    """Return Slurm's nodes from its one-line listing; what is no node's line is passed over.

    (Releases before 23.02 list nodes in no other form that a program can read.)
    """
    found = {}
    for line in answer.splitlines():
        fields: dict[str, str] = {}
        for key, value in re.findall(r"(?:^|\s)([A-Za-z_]+)=(\S*)", line[:100_000]):
            fields.setdefault(key, value)
        if "NodeName" not in fields or "State" not in fields:
            continue
        reason = re.search(r"\sReason=(.*?)(?:\s\[\S+\])?(?:\s[A-Z][A-Za-z]*=.*)?$", line.rstrip())
        # An asterisk is how older releases write NOT_RESPONDING.
        states = fields["State"].replace("*", "+NOT_RESPONDING").split("+")
        found[printable(fields["NodeName"], 64)] = SlurmNode(
            tuple(printable(state, 32).upper() for state in states),
            printable(reason.group(1), 200) if reason else "",
            count_gpus(fields.get("Gres", "")),
            count_gpus(fields.get("GresUsed", "")),
        )
    return found


def count_gpus(gres: str) -> dict[str, int]:
    """Count the GPUs by type in a GRES such as `gpu:a100:4(S:0-1),gpu:2`; those without a type are called gpu."""
    found: Counter[str] = Counter()
    for kind, count in re.findall(
        r"(?:^|,)gpu(?::([a-z0-9][\w.-]*?))?:(\d{1,4})(?![\w.-])", gres[:10_000].replace(":(null)", "")
    ):
        found[kind or "gpu"] += int(count)
    return dict(found)


def last_run(directory: Path) -> dict[str, Any] | None:
    """Return verb, time and outcome of the cluster's newest run; one that left no summary was killed, or goes on."""
    runs = sorted(path for path in (directory / ".clusterctl/runs").glob("*") if RUN_NAME.fullmatch(path.name))
    if not runs:
        return None
    began, _, verb = runs[-1].name.partition("-")
    found: dict[str, Any] = {"began": began, "verb": verb, "exit_code": None, "error": "it did not end, or goes on"}
    try:
        summary = json.loads(files.read(runs[-1] / "summary.json", inside=directory))
        found |= {key: summary[key] for key in ("verb", "exit_code", "error")}
    except (files.UnfitError, ValueError, RecursionError, KeyError, TypeError):
        return found
    return found


# --- showing ----------------------------------------------------------------------------------------------------------


def show(screen: Screen, status: Status) -> None:
    """Print the status: a line for each node, what is wrong with it below, then sums."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("Node", "Services", "Slurm", "GPUs"):
        table.add_column(title, overflow="fold")
    for node in status.nodes:
        table.add_row(*_row(screen, node, status.slurm.nodes.get(node.name) if status.slurm else None))
    screen.print(table)
    notes = list(_notes(status))
    if notes:
        screen.say("")
    for text in dict.fromkeys(text for _, text in notes):
        screen.say((f"{fold([name for name, said in notes if said == text])}: ", "bold"), text)
    screen.say("")
    for line in _sums(status):
        screen.say(line)


def _row(screen: Screen, node: NodeStatus, slurm: SlurmNode | None) -> Iterator[Text]:
    well = not (node.problem or node.failed)
    mark = screen.glyphs["done" if well else "failed"]
    yield Text.assemble((mark, "green" if well else "red"), f" {node.name}")
    if node.problem:
        yield Text("no contact", "red")
    else:
        bare = set(node.services.values()) == {ABSENT}
        failed = "not set up" if bare else ", ".join(node.failed)
        yield Text(failed, "red") if failed else Text(f"{len(node.services)} active")
    yield Text(
        "-" if slurm is None else "+".join(slurm.state).lower(), "" if not slurm or slurm.in_service else "yellow"
    )
    pairs = slurm.gpus.items() if slurm else ()
    used = ", ".join(f"{slurm.allocated.get(kind, 0)}/{n} {kind}" for kind, n in pairs) if slurm else ""
    yield Text(used or "-")


def _notes(status: Status) -> Iterator[tuple[str, str]]:
    for node in status.nodes:
        if node.problem:
            yield node.name, node.problem
        for difference in node.differences:
            yield node.name, difference
        slurm = status.slurm.nodes.get(node.name) if status.slurm else None
        if slurm and slurm.reason and not slurm.in_service:
            yield node.name, f"out of service for Slurm: {slurm.reason}"
    if status.slurm and status.slurm.problem:
        yield "slurm", status.slurm.problem
    elif status.slurm:
        yield from ((name, "not known to Slurm: bootstrap adds it") for name in status.strangers)


def _sums(status: Status) -> Iterator[str]:
    for kind, sums in status.gpus().items():
        out = f", {sums['out_of_service']} out of service" if sums["out_of_service"] else ""
        yield f"GPUs      {sums['total']} {kind}: {sums['allocated']} allocated, {sums['idle']} idle{out}"
    if status.slurm and not status.slurm.problem:
        jobs = ", ".join(f"{count} {state.lower()}" for state, count in sorted(status.slurm.jobs.items()))
        yield f"Jobs      {jobs or 'none'}"
    if run := status.last_run:
        outcome = "ok" if run["exit_code"] == 0 else run["error"] or f"exit {run['exit_code']}"
        yield f"Last run  {printable(str(run['verb']), 32)} {run['began']}: {printable(str(outcome), 200)}"
    word = {HEALTHY: "healthy", DEGRADED: "degraded", HEAD_DOWN: "the head does not serve"}[status.exit_code]
    yield f"Cluster   {status.cluster}: {word}"
