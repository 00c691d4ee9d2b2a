"""Work on nodes around their jobs: the head first, then the workers in batches.

A batch is drained, waited for, worked on, proven by a job and put back into service; what anything else keeps out of
service stays out. How far it came is kept nowhere but in the nodes' own state and in the head's drain ledger, so the
same command goes on.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from clusterctl.ansible.events import Result
from clusterctl.nodes import contact
from clusterctl.nodes.remote import each, forget_gateways
from clusterctl.run import scheduler
from clusterctl.run.context import Site
from clusterctl.run.draining import wait_for_jobs
from clusterctl.run.phases import Phase, Run, Step
from clusterctl.run.plays import play
from clusterctl.util.errors import ClusterctlError, HeadFailed, InputError, Interrupted, Problem, WorkersFailed
from clusterctl.util.text import fold
from clusterctl.workspace import hardware

BATCH = "10%"


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


class Rolling(Phase):
    """Play a playbook for nodes, the head first and then the workers in batches, under a cause of the drain ledger."""

    def __init__(
        self, title: str, cause: str, playbook: str, pace: Pace, due: Collection[str] = (), *, reboots: bool = False
    ) -> None:
        self.title, self.cause, self.playbook, self.pace = title, cause, playbook, pace
        self.due = due
        """The hosts."""
        self.reboots = reboots
        """Whether the playbook may reboot nodes, after which they have to be what their hardware records say."""
        self.variables: Mapping[str, Any] = {}
        """What the playbook is asked to do."""
        self.divided: Collection[str] = ()
        """Nodes whose GPUs will be divided otherwise: the head has to know of it when their turn comes."""
        self.failed: list[str] = []
        self.steps: list[list[str]] = []
        """What was begun, in order."""

    def run(self, run: Run) -> None:
        try:
            if error := self.over(run):
                raise error
        finally:
            run.told |= {"steps": self.steps, "failed": self.failed}

    def describe(self, run: Run) -> Iterator[Step]:
        """The plain command changes all nodes at once; before it their jobs are waited for."""
        workers = [host.name for host in run.site.hosts if host.is_worker]
        where, kind = f"on {run.site.inventory.head.name}", scheduler.of(run.site.inventory)
        if workers:
            yield f"{where}: {kind.drain_command(self.cause, workers, f'{self.cause} under way')}"
            yield f"{where}, until no job is listed: {kind.wait_command(workers)}"
        yield replace(run.site, playbook=self.playbook, variables=self.variables)
        if workers:
            yield f"{where}, for those that are healthy: {kind.resume_command(self.cause, workers)}"

    def over(self, run: Run) -> ClusterctlError | None:
        """Do it to the hosts; return what it failed with. A head that fails ends it, and so do enough workers."""
        site = run.site
        here = [host for host in site.hosts if host.name in self.due and host.name not in site.skipped]
        first = [host.name for host in here if not host.is_worker or host.is_head]
        workers = [host.name for host in here if host.name not in first]
        size = self.pace.size(len(site.inventory.workers))
        # A jump host's reboot would cut off those behind it, so it has a turn of its own.
        ways = {host.jump.name for host in here if host.jump}
        single = [[name for name in first if (name in ways) == way] for way in (True, False)]
        batches = [*filter(None, single), *(workers[at : at + size] for at in range(0, len(workers), size))]
        for at, names in enumerate(batches):
            if len(self.failed) >= self.pace.failures:
                break
            run.screen.say()
            run.screen.say((f"{self.cause} {at + 1} of {len(batches)}", "bold"), f"  {fold(names)}")
            self.steps.append(names)
            try:
                error = self._step(run, names)
            except (Interrupted, KeyboardInterrupt) as stop:
                error = stop if isinstance(stop, Interrupted) else Interrupted("Interrupted between two playbooks.")
            if isinstance(error, Interrupted):
                return Interrupted(f"{error}{self._still_out(site, names)}")
            if error:
                return error
        return self._outcome(site, [name for names in batches[len(self.steps) :] for name in names])

    def _outcome(self, site: Site, left: Sequence[str]) -> ClusterctlError | None:
        told = []
        if self.failed:
            out = _workers(site, self.failed)
            told.append(f"{fold(self.failed)} failed" + (f", and {fold(out)} stays out of service" if out else ""))
        told += [f"not begun: {fold(left)}"] if left else []
        told += [f"{fold(site.skipped)} left out"] if site.skipped else []
        return WorkersFailed("; ".join(told) + ".") if told else None

    def _still_out(self, site: Site, names: Sequence[str]) -> str:
        """Say who stays out of service for this; where the head cannot be asked, that is whom the batch has drained."""
        out = _workers(site, names)
        with suppress(HeadFailed), scheduler.connect(site) as controller:
            out = controller.drained_for(self.cause)
        if not out:
            return ""
        stay, them = ("stays", "it") if len(out) == 1 else ("stay", "them")
        back = scheduler.of(site.inventory).resume_command(self.cause, out)
        return (
            f" {fold(out)} {stay} drained; the same command resumes there (to resume {them} now, on the head: {back})."
        )

    def _step(self, run: Run, names: Sequence[str]) -> ClusterctlError | None:
        site, head = run.site, run.site.inventory.head.name
        out = _workers(site, names)
        busy = wait_for_jobs(site, run.screen, self.cause, out, self.pace.minutes) if out else []
        self.failed += busy
        ready = [name for name in names if name not in busy]
        informed = [head] if {*ready} & {*self.divided} else []
        if error := self._play(run, self.playbook, list(dict.fromkeys([*informed, *ready])), self.variables):
            return error
        if self.reboots:
            self._compare(run, ready)
        good = [name for name in ready if name in out and name not in self.failed]
        if bad := [name for name in ready if name in out and name in self.failed]:
            with scheduler.connect(site) as controller:
                controller.drain(self.cause, bad, f"the last {self.cause} failed there")
        if heads := [name for name in names if name in self.failed and name in site.inventory.heads]:
            return HeadFailed(f"{fold(heads)}, the head, failed; nothing was begun after it.")
        if not good and not self.reboots:
            return None
        proof = {"verify_drain": True, "verify_cause": self.cause}
        return self._play(run, "verify", list(dict.fromkeys([head, *good])), proof)

    def _compare(self, run: Run, names: Sequence[str]) -> None:
        """Let workers have failed whose hardware is not what is recorded of it: a GPU that did not come back, say.

        Of one that has failed already this may be why. Of other hosts, which Slurm offers nobody, it is said.
        """
        forget_gateways()  # a jump host may have been rebooted
        hosts = [host for host in run.site.inventory.hosts if host.name in names]
        answers = each(hosts, lambda host: contact.ask(host, run.site.access, {}))
        for name, answer in answers.items():
            record = hardware.load(hardware.path_of(run.site.inventory.directory, name))
            told = hardware.compare(record, answer.facts.hardware) if answer.facts else []
            if not _workers(run.site, [name]):
                for line in told:
                    run.ledger.notes.setdefault(f"differs from its record: {line}", []).append(name)
                told = []
            if not answer.facts and name not in self.failed:
                told = [str(error) for error in answer.errors]
            if told:
                task = "Compare the hardware with its record"
                run.ledger.add(Result(name, self.playbook, task, "", "failed", "; ".join(told)))
                self.failed += [name] if name not in self.failed else []

    def _play(
        self, run: Run, playbook: str, names: Sequence[str], variables: Mapping[str, Any]
    ) -> ClusterctlError | None:
        """Play it for these hosts; those that fail are noted, and an error is what nothing can continue after."""
        if not names:
            return None
        hosts = tuple(host for host in run.site.inventory.hosts if host.name in names)
        site = replace(run.site, hosts=hosts, skipped=(), playbook=playbook, variables=variables)
        error = play(run, site, more=True)
        lost = run.ledger.lost()
        self.failed += [name for name in names if name in lost and name not in self.failed]
        return None if isinstance(error, WorkersFailed) else error


def _workers(site: Site, names: Collection[str]) -> list[str]:
    return [host.name for host in site.inventory.workers if host.name in names]
