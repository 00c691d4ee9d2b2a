"""Work on nodes around their jobs: the head first, then the workers in batches.

A batch is drained, waited for, worked on, proven by a job and put back into service; what anything else keeps out of
service stays out. How far it came is kept nowhere but in the nodes' own state and in the head's drain ledger, so the
same command goes on.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from clusterctl.ansible.events import Result
from clusterctl.ansible.outcome import Ledger
from clusterctl.nodes import contact
from clusterctl.nodes.remote import each, forget_gateways
from clusterctl.run.converge import Site
from clusterctl.slurm.client import Head
from clusterctl.ui.screen import Screen
from clusterctl.util.errors import ClusterctlError, HeadFailed, InputError, Interrupted, Problem, WorkersFailed
from clusterctl.util.text import fold, plural
from clusterctl.workspace import hardware

WORKERS = "slurm_workers"
BATCH = "10%"
Play = Callable[[Site], ClusterctlError | None]


@dataclass(frozen=True)
class Pace:
    """How many workers are out at once (`3`, or `10%` of all and at least one), how many failures end it, and how many
    minutes a batch waits for its jobs (None: for ever).
    """

    batch: str = BATCH
    failures: int = 1
    minutes: float | None = None

    def check(self) -> None:
        """Raise InputError for a batch that cannot be meant."""
        found = re.fullmatch(r"([1-9]\d{0,4})(%?)", self.batch)
        if not found or (found[2] and int(found[1]) > 100):
            raise InputError(
                [Problem(None, "--batch", f"got {self.batch[:40]!r}, expected a number such as 4, or 10%")]
            )

    def size(self, workers: int) -> int:
        """Return how many of so many workers make a batch."""
        number = int(self.batch.rstrip("%"))
        return max(1, workers * number // 100) if self.batch.endswith("%") else number

    def flags(self) -> tuple[str, ...]:
        """Return the flags that ask for it, as they are typed."""
        given = ["--batch", self.batch] if self.batch != BATCH else []
        given += ["--max-failures", str(self.failures)] if self.failures != 1 else []
        return (*given, *(["--timeout", f"{self.minutes:g}"] if self.minutes is not None else []))


@dataclass
class Rolling:
    """One such work: a playbook for the nodes of each batch, under a cause of the drain ledger."""

    site: Site
    ledger: Ledger
    screen: Screen
    play: Play
    cause: str
    playbook: str
    pace: Pace
    variables: Mapping[str, Any] = field(default_factory=dict)
    divided: Collection[str] = ()
    """Nodes whose GPUs will be divided otherwise: the head has to know of it when their turn comes."""
    reboots: bool = False
    """Whether the playbook may reboot nodes, after which they have to be what their hardware records say."""
    failed: list[str] = field(default_factory=list)
    steps: list[list[str]] = field(default_factory=list)
    """What was begun, in order."""

    def over(self, due: Collection[str]) -> ClusterctlError | None:
        """Do it to these nodes; returns what it failed with. A head that fails ends it, and so do enough workers."""
        here = [host for host in self.site.hosts if host.name in due and host.name not in self.site.skipped]
        first = [host.name for host in here if WORKERS not in host.groups or host.name in self.site.critical()]
        workers = [host.name for host in here if host.name not in first]
        size = self.pace.size(len(self.site.inventory.in_group(WORKERS)))
        # A jump host's reboot would cut off those behind it, so it has a turn of its own.
        ways = {host.jump.name for host in here if host.jump}
        single = [[name for name in first if (name in ways) == way] for way in (True, False)]
        batches = [*filter(None, single), *(workers[at : at + size] for at in range(0, len(workers), size))]
        for at, names in enumerate(batches):
            if len(self.failed) >= self.pace.failures:
                break
            self.screen.say()
            self.screen.say((f"{self.cause} {at + 1} of {len(batches)}", "bold"), f"  {fold(names)}")
            self.steps.append(names)
            try:
                error = self._step(names)
            except (Interrupted, KeyboardInterrupt) as stop:
                error = stop if isinstance(stop, Interrupted) else Interrupted("Interrupted between two playbooks.")
            if isinstance(error, Interrupted):
                return Interrupted(f"{error}{self._still_out(names)}")
            if error:
                return error
        return self._outcome([name for names in batches[len(self.steps) :] for name in names])

    def _outcome(self, left: Sequence[str]) -> ClusterctlError | None:
        told = []
        if self.failed:
            out = self._workers(self.failed)
            told.append(f"{fold(self.failed)} failed" + (f", and {fold(out)} stays out of service" if out else ""))
        told += [f"not begun: {fold(left)}"] if left else []
        told += [f"{fold(self.site.skipped)} left out"] if self.site.skipped else []
        return WorkersFailed("; ".join(told) + ".") if told else None

    def _still_out(self, names: Sequence[str]) -> str:
        """Say who stays out of service for this; where the head cannot be asked, that is whom the batch has drained."""
        out = self._workers(names)
        with suppress(HeadFailed), Head.of(self.site.inventory.head, self.site.access) as head:
            out = head.out_for(self.cause)
        if not out:
            return ""
        stay, them = ("stays", "it") if len(out) == 1 else ("stay", "them")
        back = f"to have {them} back as now, on the head: sudo slurm-drain {self.cause} --in {','.join(out)}"
        return f" {fold(out)} {stay} drained, and the same command goes on there ({back})."

    def _workers(self, names: Collection[str]) -> list[str]:
        return [host.name for host in self.site.inventory.in_group(WORKERS) if host.name in names]

    def _step(self, names: Sequence[str]) -> ClusterctlError | None:
        out = self._workers(names)
        busy = self._drain(out) if out else []
        ready = [name for name in names if name not in busy]
        informed = [self.site.inventory.head.name] if {*ready} & {*self.divided} else []
        if error := self._play(self.playbook, list(dict.fromkeys([*informed, *ready])), self.variables):
            return error
        if self.reboots:
            self._compare(ready)
        good = [name for name in ready if name in out and name not in self.failed]
        if bad := [name for name in ready if name in out and name in self.failed]:
            with Head.of(self.site.inventory.head, self.site.access) as head:
                head.drain(self.cause, bad, f"the last {self.cause} failed there")
        if heads := [name for name in names if name in self.failed and name in self.site.critical()]:
            return HeadFailed(f"{fold(heads)}, the head, could not be done; nothing was begun after it.")
        if not good and not self.reboots:
            return None
        proof = {"verify_drain": True, "verify_cause": self.cause}
        return self._play("verify", list(dict.fromkeys([self.site.inventory.head.name, *good])), proof)

    def _compare(self, names: Sequence[str]) -> None:
        """Let workers have failed whose hardware is not what is recorded of it: a GPU that did not come back, say.

        Of one that has failed already this may be why. Of other hosts, which Slurm offers nobody, it is said.
        """
        forget_gateways()  # a jump host may have been rebooted
        hosts = [host for host in self.site.inventory.hosts if host.name in names]
        answers = each(hosts, lambda host: contact.ask(host, self.site.access, {}))
        for name, answer in answers.items():
            record = hardware.load(hardware.path_of(self.site.inventory.directory, name))
            told = hardware.compare(record, answer.facts.hardware) if answer.facts else []
            if not self._workers([name]):
                for line in told:
                    self.ledger.notes.setdefault(f"differs from its record: {line}", []).append(name)
                told = []
            if not answer.facts and name not in self.failed:
                told = [str(error) for error in answer.errors]
            if told:
                task = "Compare the hardware with its record"
                self.ledger.add(Result(name, self.playbook, task, "", "failed", "; ".join(told)))
                self.failed += [name] if name not in self.failed else []

    def _drain(self, names: Sequence[str]) -> list[str]:
        """Take nodes out of service and wait for their jobs; return those that still have some after the time."""
        seconds = None if self.pace.minutes is None else self.pace.minutes * 60
        try:
            with Head.of(self.site.inventory.head, self.site.access) as head:
                head.drain(self.cause, names, f"{self.cause} under way")
                left = head.wait_until_empty(names, self.screen.say, seconds)
                busy = [name for name in names if head.jobs([name])] if left else []
        except KeyboardInterrupt:
            raise Interrupted("Interrupted while jobs went on.") from None
        if busy:
            told = f"{plural(len(left), 'job')} still on {fold(busy)}: {left[0]}" + ", ..." * (len(left) > 1)
            self.screen.say(("  ", ""), told)
            self.failed += busy
        return busy

    def _play(self, playbook: str, names: Sequence[str], variables: Mapping[str, Any]) -> ClusterctlError | None:
        """Play it for these hosts; those that fail are noted, and an error is what nothing can go on after."""
        if not names:
            return None
        hosts = tuple(host for host in self.site.inventory.hosts if host.name in names)
        error = self.play(replace(self.site, hosts=hosts, skipped=(), playbook=playbook, variables=variables))
        lost = self.ledger.lost()
        self.failed += [name for name in names if name in lost and name not in self.failed]
        return None if isinstance(error, WorkersFailed) else error
