"""Slurm's administrator commands on the head: jobs on nodes, drained nodes."""

import re
import secrets
import shlex
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass

from clusterctl.nodes.head_commands import HeadCommands
from clusterctl.slurm.state import STATES, parse_ledger, parse_states, sleep_of
from clusterctl.util.errors import HeadFailed
from clusterctl.util.text import duration, plural, printable

DRAIN = "/usr/local/sbin/slurm-drain"
POLL_SECONDS = 1.0


@dataclass(frozen=True)
class Job:
    """A job that holds a node."""

    number: str
    user: str
    name: str
    state: str
    nodes: str

    @property
    def id(self) -> str:
        """The job's number."""
        return self.number

    @property
    def is_evicted(self) -> bool:
        """Never: a job runs to its end."""
        return False

    def as_dict(self) -> dict[str, str]:
        """Return the job as a dictionary."""
        return asdict(self)

    def __str__(self) -> str:
        return f"job {self.number} of {self.user} ({self.name}, {self.state.lower()} on {self.nodes})"


def _down(node: str, reason: str) -> list[str]:
    return ["scontrol", "update", f"NodeName={node}", "State=DOWN", f"Reason=clusterctl: {reason}"]


def _wake(nodes: Sequence[str]) -> list[str]:
    return ["scontrol", "update", f"NodeName={','.join(nodes)}", "State=POWER_UP"]


_PARTITIONS = ("sinfo", "--noheader", "--all", "--format=%a")
_SERVING = {"IDLE", "MIXED", "ALLOCATED", "COMPLETING", "PLANNED", "RESERVED"}
"""The states of a node that gets jobs, while it is reserved only those of the reservation."""


class SlurmController(HeadCommands):
    """Slurm on the head, over a connection; run/scheduler.py documents the methods.

    A command that fails raises HeadFailed with its output.
    """

    def is_set_up(self) -> bool:
        """Return whether clusterctl has set up Slurm on the head."""
        return self._try("test", "-x", DRAIN)[0] == 0

    def drain(self, cause: str, nodes: Sequence[str], reason: str) -> None:
        """Drain nodes for this cause."""
        self._run(DRAIN, cause, "--out", ",".join(nodes), "--reason", reason)

    def drained_for(self, cause: str) -> list[str]:
        """Return the nodes that are drained for this cause, and perhaps others."""
        return [node for node, causes in parse_ledger(self._run(DRAIN)).items() if cause in causes]

    def resume(self, cause: str, nodes: Sequence[str]) -> None:
        """Remove a cause of nodes."""
        self._run(DRAIN, cause, "--in", ",".join(nodes))

    def forget(self, nodes: Sequence[str]) -> None:
        """Delete all causes of removed nodes."""
        if self.is_set_up():
            self._run(DRAIN, "--forget", ",".join(nodes))

    def hears_from(self, node: str) -> bool:
        """Return whether slurmctld has heard from a node recently; False for an unknown node."""
        status, out, _ = self._try(*STATES, f"--nodes={node}")
        words = parse_states(out).get(node, ()) if status == 0 else ()
        return bool(words) and not {"DOWN", "NOT_RESPONDING", "UNKNOWN", "FUTURE", "POWERED_DOWN"} & {*words}

    def sleeping(self, nodes: Collection[str]) -> dict[str, str]:
        """Return those of these nodes that power saving has switched off: `asleep`, or `waking`; none without Slurm."""
        status, out, _ = self._try(*STATES)
        states = parse_states(out) if status == 0 else {}
        return {name: sleep for name in nodes if (sleep := sleep_of(states.get(name, ())))}

    def wake(self, nodes: Sequence[str], seconds: float) -> None:
        """Wake nodes and wait at most so long until slurmctld hears from them; a node that does not wake is then down.

        Slurm ignores the command for a node that is still shutting down.
        """
        deadline = time.monotonic() + seconds
        while (sleep := self.sleeping(nodes)) and time.monotonic() < deadline:
            if asleep := [name for name, what in sleep.items() if what == "asleep"]:
                self._run(*_wake(asleep))
            time.sleep(POLL_SECONDS)

    def keep_awake(self, nodes: Collection[str]) -> None:
        """Let the idle time of idle nodes begin again.

        Only the state IDLE sets it in all releases (update_node in src/slurmctld/node_mgr.c). It would also end a
        drain, so it is only for nodes without any other state.
        """
        states = parse_states(self._run(*STATES))
        if idle := [name for name in nodes if states.get(name) == ("IDLE",)]:
            self._try("scontrol", "update", f"NodeName={','.join(idle)}", "State=IDLE")  # one may have a job now

    def power_saving(self) -> dict[str, int]:
        """Return the seconds of SuspendTime, SuspendTimeout and ResumeTimeout; those that are off are left out."""
        shown = self._run("scontrol", "show", "config")
        found = re.findall(r"(?m)^(SuspendTime|SuspendTimeout|ResumeTimeout)\s*= (\d+) sec", shown)
        return {name: int(value) for name, value in found}

    def in_service(self) -> set[str]:
        """Return the nodes that get jobs: slurmctld hears from them, and the ledger has them without a cause.

        If a partition is not up, none is returned: the state of its nodes does not show it.
        """
        if {*self._run(*_PARTITIONS).split()} != {"up"}:
            return set()
        states, ledger = parse_states(self._run(*STATES)), parse_ledger(self._run(DRAIN, "--all"))
        return {name for name, words in states.items() if words and {*words} <= _SERVING and ledger.get(name) == {}}

    def drained(self) -> list[str]:
        """Return the nodes that are drained for any reason; none if slurmctld does not answer."""
        status, out, _ = self._try(*STATES)
        states = parse_states(out) if status == 0 else {}
        return sorted(name for name, words in states.items() if any(word.startswith("DRAIN") for word in words))

    def mark_down(self, nodes: Sequence[str], reason: str) -> None:
        """Mark nodes as down: their jobs end as NODE_FAIL or are requeued."""
        for node in nodes:
            if self._try("scontrol", "--oneliner", "show", "node", node)[0] == 0:
                self._run(*_down(node, reason))

    def workloads(self, nodes: Sequence[str]) -> list[Job]:
        """Return the jobs that hold one of these nodes; unknown nodes have none."""
        # A job's name may have line breaks: a line without the mark continues a name.
        mark = secrets.token_hex(16)
        status, out, err = self._try(
            "squeue", "--all", "--noheader", f"--nodelist={','.join(nodes)}", f"--format={mark} %i|%u|%T|%N|%j"
        )
        if status:
            if "Invalid node name" in err or "invalid node" in err.lower():
                return []
            raise HeadFailed(f"{self._name}: squeue: {printable(err.strip(), 200)}")
        rows = (line.removeprefix(f"{mark} ").split("|", 4) for line in out.split("\n") if line.startswith(f"{mark} "))
        cells = ([printable(text, 64) for text in row] for row in rows if len(row) == 5)
        return [Job(number, user, name, state, where) for number, user, state, where, name in cells]

    def doomed(self, nodes: Sequence[str]) -> list[Job]:
        """Return the jobs that --force kills."""
        return self.workloads(nodes)

    def cancel(self, ids: Sequence[str]) -> None:
        """Cancel jobs."""
        self._run("scancel", *[one for one in ids if re.fullmatch(r"[\d_]+", one)])

    def wait_until_empty(self, nodes: Sequence[str], say: Callable[[str], None], seconds: float | None) -> list[Job]:
        """Wait at most `seconds` until no job is left on these nodes; report progress; return the remaining jobs."""
        started, reported = time.monotonic(), -1
        while True:
            jobs = self.workloads(nodes)
            waited = time.monotonic() - started
            if not jobs or (seconds is not None and waited >= seconds):
                return jobs
            if len(jobs) != reported:
                reported = len(jobs)
                limit = "" if seconds is None else f", at most {duration(seconds)}"
                say(f"  waiting for {plural(reported, 'job')} to end{limit}: {jobs[0]}" + ", ..." * (reported > 1))
            time.sleep(POLL_SECONDS if seconds is None else min(POLL_SECONDS, max(0.05, seconds - waited)))

    @staticmethod
    def drain_command(cause: str, nodes: Sequence[str], reason: str) -> str:
        """Return the command that drains nodes."""
        return "sudo " + shlex.join([DRAIN, cause, "--out", ",".join(nodes), "--reason", reason])

    @staticmethod
    def wake_command(nodes: Sequence[str]) -> str:
        """Return the command that wakes nodes."""
        return "sudo " + shlex.join(_wake(nodes))

    @staticmethod
    def mark_down_commands(nodes: Sequence[str], reason: str) -> list[str]:
        """Return the commands that mark nodes as down."""
        return ["sudo " + shlex.join(_down(node, reason)) for node in nodes]

    @staticmethod
    def wait_step(nodes: Sequence[str]) -> str:
        """Return the command that lists the remaining jobs."""
        return f", until no job is listed: squeue --nodelist={','.join(nodes)}"

    @staticmethod
    def resume_command(cause: str, nodes: Sequence[str]) -> str:
        """Return the command that removes a cause."""
        return "sudo " + shlex.join([DRAIN, cause, "--in", ",".join(nodes)])

    @staticmethod
    def forget_command(nodes: Sequence[str]) -> str:
        """Return the command that deletes all causes of removed nodes."""
        return "sudo " + shlex.join([DRAIN, "--forget", ",".join(nodes)])
