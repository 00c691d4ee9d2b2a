"""Parse the output of Slurm's commands about nodes and jobs."""

import json
import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from clusterctl.nodes.session import ContactError, Session
from clusterctl.util.text import printable

# Slurm's base states and flags of a node that is not in service.
_OUT_OF_SERVICE = frozenset(
    {"DOWN", "DRAIN", "DRAINED", "DRAINING", "ERROR", "FAIL", "FAILING", "FUTURE", "INVAL", "INVALID", "INVALID_REG"}
    | {"MAINTENANCE", "NOT_RESPONDING", "POWERED_DOWN", "POWERING_DOWN", "REBOOT_ISSUED", "UNKNOWN"}
)
# States of a node that power saving switches off and on: NOT_RESPONDING until it is back.
_ASLEEP = frozenset({"POWERED_DOWN", "POWERING_DOWN"})
_WAKING = frozenset({"POWERING_UP", "POWER_UP", "NOT_RESPONDING"})
# Bytes; enough for 5000 nodes or a queue of 100,000 jobs.
_MAX_SLURM_REPLY = 32 << 20
_SLURM_SECONDS = 15.0
_NO_SUCH_COMMAND = 127  # exit code of a shell; sudo prints a message and exits with 1
_LEDGER = "/usr/local/sbin/slurm-drain"
_UNCONFIGURED = (
    "resolve_ctls_from_dns_srv"  # in the errors of commands without a slurm.conf (src/common/fetch_config.c)
)
_OURS = "clusterctl: "  # prefix of the reasons that slurm-drain sets
_SLURM_USER = "slurm"  # the user of the reason if slurmctld drains a node itself
# If slurmd or slurmstepd does, the user is root and the reason one of these (src/slurmd of Slurm 24.11).
_SLURMD_REASONS = ("Job step not running", "Kill task failed", "SlurmdSpoolDir is full", "switch_g_job_postfini failed")
# sinfo, because in scontrol's lines text from the node precedes its state and may imitate it.
PING = ("scontrol", "ping")
STATES = ("sinfo", "--noheader", "--all", "--Node", "--Format=NodeList:65,StateComplete:200")


@dataclass(frozen=True)
class SlurmNode:
    """A node in slurmctld; GPUs by type. `by` is the user of the reason; `causes` are from the drain ledger."""

    state: tuple[str, ...]
    reason: str
    gpus: Mapping[str, int]
    allocated: Mapping[str, int]
    by: str = ""
    causes: Mapping[str, str] = field(default_factory=dict)

    @property
    def unhealthy(self) -> Mapping[str, int]:
        """The GPUs that are not allocated although the node is in service: none, Slurm drains the whole node."""
        return {}

    @property
    def sleep(self) -> str:
        """Return `asleep` or `waking` if power saving has switched the node off, empty if not."""
        return sleep_of(self.state)

    @property
    def in_service(self) -> bool:
        """Return whether jobs can start on the node; one that sleeps is woken for them."""
        return not (_OUT_OF_SERVICE - (_ASLEEP | _WAKING if self.sleep else frozenset())) & set(self.state)

    def why(self) -> list[str]:
        """Return why the node is not in service, one line for each cause."""
        causes = [f"{cause}: {reason}" for cause, reason in sorted(self.causes.items())]
        if self.in_service:
            return [f"in service, though the drain ledger has {cause}" for cause in causes]
        lines = []
        if not any(state.startswith("DRAIN") for state in self.state):
            lines.append(f"out of service for Slurm: {self.reason or '+'.join(self.state).lower()}")
        elif not self.reason.startswith(_OURS):
            automatic = self.by == _SLURM_USER or (self.by == "root" and self.reason in _SLURMD_REASONS)
            who = "Slurm itself" if automatic else f"an operator ({self.by or 'unknown'})"
            lines.append(f"drained by {who}: {self.reason or 'no reason given'}")
        elif not causes:
            lines.append(f"drained, but the drain ledger has no cause: {self.reason}")
        return lines + [f"drained by {cause}" for cause in causes]


@dataclass(frozen=True)
class Slurm:
    """The state of the head's slurmctld; jobs by state. `problem` is set if slurmctld failed.

    `ledger_problem` is set if the drain ledger cannot be read. `controllers` are those of two heads, and whether they
    respond; the first that does is in control.
    """

    nodes: Mapping[str, SlurmNode] = field(default_factory=dict)
    jobs: Mapping[str, int] = field(default_factory=dict)
    problem: str = ""
    ledger_problem: str = ""
    controllers: Mapping[str, bool] = field(default_factory=dict)

    @property
    def in_control(self) -> str:
        """The name of the controller that has the jobs; empty if none responds, or there is one head."""
        return next((name for name, responds in self.controllers.items() if responds), "")


def ask_slurm(session: Session, several: bool = False) -> Slurm:
    """Return the nodes and jobs of the cluster of the connected head; with `several` heads, also their controllers."""
    try:
        _, pinged, _ = _slurm(session, *PING) if several else (0, "", "")
        found, nodes, error = _slurm(session, "scontrol", "--oneliner", "--details", "show", "nodes")
        if found != 0:
            absent = found == _NO_SUCH_COMMAND or "command not found" in error
            problem = "Slurm is not installed on the head yet" if absent else _first_line(error)
            return Slurm(problem=problem or f"scontrol failed with exit code {found}")
        found, states, error = _slurm(session, *STATES)
        if found != 0:
            return Slurm(problem=_first_line(error) or f"sinfo failed with exit code {found}")
        found, jobs, error = _slurm(session, "squeue", "--noheader", "--all", "--format=%T")
        if found != 0:
            return Slurm(problem=_first_line(error) or f"squeue failed with exit code {found}")
        found, ledger, error = _slurm(session, _LEDGER)
    except ContactError as problem:
        return Slurm(problem=problem.found)
    counts = dict(Counter(printable(line, 32) for line in jobs.split()))
    causes = parse_ledger(ledger) if found == 0 else {}
    known = {
        name: replace(node, causes=causes.get(name, {}))
        for name, node in parse_nodes(nodes, parse_states(states)).items()
    }
    damaged = "" if found == 0 else _first_line(error) or f"{_LEDGER} failed with exit code {found}"
    return Slurm(known, counts, ledger_problem=damaged, controllers=parse_ping(pinged))


def parse_ping(answer: str) -> dict[str, bool]:
    """Return whether each controller responds, in the order of slurm.conf, from the output of PING."""
    lines = re.findall(r"^Slurmctld\([^)]*\) at (\S+) is (UP|DOWN)\s*$", answer[:10_000], re.MULTILINE)
    return {printable(name, 64): state == "UP" for name, state in lines}


def _slurm(session: Session, *argv: str) -> tuple[int, str, str]:
    return session.run(argv, root=True, timeout=_SLURM_SECONDS, limit=_MAX_SLURM_REPLY)


def _first_line(output: str) -> str:
    """Return the first line of a Slurm command's error."""
    if _UNCONFIGURED in output:
        return "Slurm is not set up on the head: no slurm.conf"
    return next((printable(line, 200) for line in output.splitlines() if line.strip()), "")


def sleep_of(state: Collection[str]) -> str:
    """Return `asleep` or `waking` for the states of a node that power saving has switched off, else empty.

    A node that did not wake is down (power_save.c in src/slurmctld of Slurm 24.11).
    """
    if "DOWN" in state or not {"POWERING_UP", *_ASLEEP} & {*state}:
        return ""
    return "waking" if {"POWERING_UP", "POWER_UP"} & {*state} else "asleep"


def parse_states(answer: str) -> dict[str, tuple[str, ...]]:
    """Return the states, in capitals, of each node in a partition from the output of STATES."""
    rows = (line.split() for line in answer.splitlines())
    return {printable(row[0], 64): _words(row[1]) for row in rows if len(row) == 2}


def _words(state: str) -> tuple[str, ...]:
    # Older releases print NOT_RESPONDING as an asterisk.
    return tuple(printable(state, 200).upper().replace("*", "+NOT_RESPONDING").split("+"))


def parse_nodes(answer: str, states: Mapping[str, tuple[str, ...]] | None = None) -> dict[str, SlurmNode]:
    """Return the nodes in the output of scontrol --oneliner; other lines are ignored.

    `states` are from sinfo, which does not list nodes without a partition. Releases before 23.02 have no other output
    that a program can parse.
    """
    found = {}
    for line in answer.splitlines():
        fields: dict[str, str] = {}
        for key, value in re.findall(r"(?:^|\s)([A-Za-z_]+)=(\S*)", line[:100_000]):
            fields.setdefault(key, value)
        if "NodeName" not in fields or "State" not in fields:
            continue
        reason = re.search(r"\sReason=(.*?)\s\[([^\s@\]]+)@[^\s\]]+\](?:\s[A-Z]\w*=|$)", line.rstrip())
        reason = reason or re.search(r"\sReason=(.*?)()(?:\s[A-Z][A-Za-z]*=.*)?$", line.rstrip())
        name = printable(fields["NodeName"], 64)
        found[name] = SlurmNode(
            (states or {}).get(name) or _words(fields["State"]),
            printable(reason.group(1), 200) if reason else "",
            count_gpus(fields.get("Gres", "")),
            count_gpus(fields.get("GresUsed", "")),
            printable(reason.group(2), 64) if reason else "",
        )
    return found


def parse_ledger(answer: str) -> dict[str, dict[str, str]]:
    """Return the causes in the drain ledger by node; invalid entries are ignored."""
    try:
        data = json.loads(answer)
    except (ValueError, RecursionError):
        return {}
    return {
        printable(node, 64): {printable(cause, 64): printable(str(reason), 200) for cause, reason in causes.items()}
        for node, causes in (data.items() if isinstance(data, dict) else ())
        if isinstance(causes, dict)
    }


def count_gpus(gres: str) -> dict[str, int]:
    """Count the GPUs by type in a GRES such as `gpu:a100:4(S:0-1),gpu:2`; those without a type are called gpu."""
    found: Counter[str] = Counter()
    for kind, count in re.findall(
        r"(?:^|,)gpu(?::([a-z0-9][\w.-]*?))?:(\d{1,4})(?![\w.-])", gres[:10_000].replace(":(null)", "")
    ):
        found[kind or "gpu"] += int(count)
    return dict(found)
