"""Slurm as an administrator uses it on the head: jobs on nodes, and who is out of service."""

import re
import secrets
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from clusterctl.inventory.model import Host
from clusterctl.nodes.remote import Access, connect
from clusterctl.nodes.session import ContactError, Session
from clusterctl.slurm.state import STATES, parse_ledger, parse_states
from clusterctl.util.errors import HeadFailed
from clusterctl.util.text import duration, plural, printable

DRAIN = "/usr/local/sbin/slurm-drain"
SECONDS = 30.0
POLL_SECONDS = 1.0
MAX_REPLY = 32 << 20  # 100,000 jobs at some bytes each


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
        """The number, as the scheduler knows the job."""
        return self.number

    def as_dict(self) -> dict[str, str]:
        """Return it as plain data."""
        return asdict(self)

    def __str__(self) -> str:
        return f"job {self.number} of {self.user} ({self.name}, {self.state.lower()} on {self.nodes})"


def _down(node: str, reason: str) -> list[str]:
    return ["scontrol", "update", f"NodeName={node}", "State=DOWN", f"Reason=clusterctl: {reason}"]


class SlurmController:
    """Slurm on the head at the other end of a connection (run/scheduler.py says what each method is for).

    A command that fails there is a HeadFailed with its own words.
    """

    def __init__(self, session: Session, name: str) -> None:
        self._session, self._name = session, name

    @classmethod
    def connect(cls, head: Host, access: Access) -> "SlurmController":
        """Connect to the head of a cluster."""
        try:
            return cls(connect(head, access), head.name)
        except ContactError as error:
            raise HeadFailed(f"{head.name}: {error}") from None

    def __enter__(self) -> "SlurmController":
        return self

    def __exit__(self, *error: object) -> None:
        self._session.close()

    def _try(self, *argv: str) -> tuple[int, str, str]:
        try:
            return self._session.run(argv, root=True, timeout=SECONDS, limit=MAX_REPLY)
        except ContactError as error:
            raise HeadFailed(f"{self._name}: {argv[0]}: {error}") from None

    def _run(self, *argv: str) -> str:
        status, out, err = self._try(*argv)
        if status:
            said = printable((err.strip() or out.strip()).splitlines()[-1] if err.strip() or out.strip() else "", 200)
            raise HeadFailed(f"{self._name}: {argv[0].rpartition('/')[2]} ended with {status}: {said}")
        return out

    def is_set_up(self) -> bool:
        """Tell whether clusterctl has set Slurm up there."""
        return self._try("test", "-x", DRAIN)[0] == 0

    def drain(self, cause: str, nodes: Sequence[str], reason: str) -> None:
        """Take nodes out of service for this cause."""
        self._run(DRAIN, cause, "--out", ",".join(nodes), "--reason", reason)

    def drained_for(self, cause: str) -> list[str]:
        """Return the nodes that are out of service for this cause, among others perhaps."""
        return [node for node, causes in parse_ledger(self._run(DRAIN)).items() if cause in causes]

    def forget(self, nodes: Sequence[str]) -> None:
        """Drop all causes of nodes that left the cluster."""
        if self.is_set_up():
            self._run(DRAIN, "--forget", ",".join(nodes))

    def hears_from(self, node: str) -> bool:
        """Tell whether slurmctld has lately heard from a node; of one that it does not know it has not."""
        status, out, _ = self._try(*STATES, f"--nodes={node}")
        words = parse_states(out).get(node, ()) if status == 0 else ()
        return bool(words) and not {"DOWN", "NOT_RESPONDING", "UNKNOWN", "FUTURE", "POWERED_DOWN"} & {*words}

    def drained(self) -> list[str]:
        """Return the nodes that are drained, whatever for; none where slurmctld does not answer."""
        status, out, _ = self._try(*STATES)
        states = parse_states(out) if status == 0 else {}
        return sorted(name for name, words in states.items() if any(word.startswith("DRAIN") for word in words))

    def mark_down(self, nodes: Sequence[str], reason: str) -> None:
        """Tell Slurm that nodes are gone: what ran there ends as NODE_FAIL, or is put back into the queue."""
        for node in nodes:
            if self._try("scontrol", "--oneliner", "show", "node", node)[0] == 0:
                self._run(*_down(node, reason))

    def workloads(self, nodes: Sequence[str]) -> list[Job]:
        """Return the jobs that hold one of these nodes; nodes that Slurm does not know have none."""
        # A name is its user's own text, line breaks included: what does not begin with our mark is the rest of one.
        mark = secrets.token_hex(16)
        status, out, err = self._try(
            "squeue", "--all", "--noheader", f"--nodelist={','.join(nodes)}", f"--format={mark} %i|%u|%T|%N|%j"
        )
        if status:
            if "Invalid node name" in err or "invalid node" in err.lower():
                return []
            raise HeadFailed(f"{self._name}: squeue: {printable(err.strip(), 200)}")
        rows = (line.removeprefix(f"{mark} ").split("|", 4) for line in out.split("\n") if line.startswith(f"{mark} "))
        told = ([printable(text, 64) for text in row] for row in rows if len(row) == 5)
        return [Job(number, user, name, state, where) for number, user, state, where, name in told]

    def cancel(self, ids: Sequence[str]) -> None:
        """Cancel jobs."""
        self._run("scancel", *[one for one in ids if re.fullmatch(r"[\d_]+", one)])

    def wait_until_empty(self, nodes: Sequence[str], say: Callable[[str], None], seconds: float | None) -> list[Job]:
        """Wait until no job is left on these nodes, at most so many seconds, and say so; return those left."""
        began, said = time.monotonic(), -1
        while True:
            jobs = self.workloads(nodes)
            waited = time.monotonic() - began
            if not jobs or (seconds is not None and waited >= seconds):
                return jobs
            if len(jobs) != said:
                said = len(jobs)
                limit = "" if seconds is None else f", at most {duration(seconds)}"
                say(f"  waiting for {plural(said, 'job')} to end{limit}: {jobs[0]}" + ", ..." * (said > 1))
            time.sleep(POLL_SECONDS if seconds is None else min(POLL_SECONDS, max(0.05, seconds - waited)))

    @staticmethod
    def drain_command(cause: str, nodes: Sequence[str], reason: str) -> str:
        """Return the command that drains nodes."""
        return "sudo " + shlex.join([DRAIN, cause, "--out", ",".join(nodes), "--reason", reason])

    @staticmethod
    def mark_down_commands(nodes: Sequence[str], reason: str) -> list[str]:
        """Return the commands that tell Slurm that nodes are gone."""
        return ["sudo " + shlex.join(_down(node, reason)) for node in nodes]

    @staticmethod
    def wait_command(nodes: Sequence[str]) -> str:
        """Return the command that lists nothing once no job is left."""
        return f"squeue --nodelist={','.join(nodes)}"

    @staticmethod
    def resume_command(cause: str, nodes: Sequence[str]) -> str:
        """Return the command that drops a cause."""
        return "sudo " + shlex.join([DRAIN, cause, "--in", ",".join(nodes)])

    @staticmethod
    def forget_command(nodes: Sequence[str]) -> str:
        """Return the command that drops all causes of nodes that left."""
        return "sudo " + shlex.join([DRAIN, "--forget", ",".join(nodes)])
