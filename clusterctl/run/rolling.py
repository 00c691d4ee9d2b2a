"""Play a playbook on nodes around their jobs: first on the head, then on the workers in batches.

For each batch: drain, wait for jobs, play, test with a job, resume. A node with another drain cause stays drained.
The progress is stored only in the state of the nodes and in the drain ledger on the head. So the same command resumes
the run.
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
    """The options of a rolling run.

    `batch`: workers out of service at the same time (`3`, or `10%` of all, at least one). `failures`: failed workers
    after which the run stops. `minutes`: how long a batch waits for its jobs (None: no limit).
    """

    batch: str = BATCH
    failures: int = 1
    minutes: float | None = None

    def check(self) -> None:
        """Raise InputError for an invalid batch."""
        found = re.fullmatch(r"([1-9]\d{0,4})(%?)", self.batch)
        if not found or (found[2] and int(found[1]) > 100):
            raise InputError(
                [Problem(None, "--batch", f"got {self.batch[:40]!r}, expected a number such as 4, or 10%")]
            )

    def size(self, workers: int) -> int:
        """Return the number of workers in a batch, for a cluster with that many workers."""
        number = int(self.batch.rstrip("%"))
        return max(1, workers * number // 100) if self.batch.endswith("%") else number

    def flags(self) -> tuple[str, ...]:
        """Return the flags as typed, without defaults."""
        given = ["--batch", self.batch] if self.batch != BATCH else []
        given += ["--max-failures", str(self.failures)] if self.failures != 1 else []
        return (*given, *(["--timeout", f"{self.minutes:g}"] if self.minutes is not None else []))


class Rolling(Phase):
    """Play a playbook first on the head and then on the workers in batches, drained for a cause of the ledger."""

    def __init__(
        self, title: str, cause: str, playbook: str, pace: Pace, due: Collection[str] = (), *, reboots: bool = False
    ) -> None:
        self.title, self.cause, self.playbook, self.pace = title, cause, playbook, pace
        self.due = due
        """The hosts to play on."""
        self.reboots = reboots
        """Whether the playbook may reboot nodes. Afterwards their hardware must match its record."""
        self.variables: Mapping[str, Any] = {}
        """Extra variables of the playbook."""
        self.divided: Collection[str] = ()
        """Nodes whose MIG layout will change: the head is configured in the same step."""
        self.failed: list[str] = []
        self.steps: list[list[str]] = []
        """The batches that were started, in order."""

    def run(self, run: Run) -> None:
        try:
            if error := self.over(run):
                raise error
        finally:
            run.summary |= {"steps": self.steps, "failed": self.failed}

    def describe(self, run: Run) -> Iterator[Step]:
        """Yield the manual steps: drain all workers and wait for their jobs, then change all nodes at once."""
        workers = [host.name for host in run.site.hosts if host.is_worker]
        where, kind = f"on {run.site.inventory.head.name}", scheduler.of(run.site.inventory)
        if workers:
            yield f"{where}: {kind.drain_command(self.cause, workers, f'{self.cause} under way')}"
            yield f"{where}, until no job is listed: {kind.wait_command(workers)}"
        yield replace(run.site, playbook=self.playbook, variables=self.variables)
        if workers:
            yield f"{where}, for those that are healthy: {kind.resume_command(self.cause, workers)}"

    def over(self, run: Run) -> ClusterctlError | None:
        """Process all hosts and return the error. Stops at a failed head, and at `pace.failures` failed workers."""
        site = run.site
        hosts = [host for host in site.hosts if host.name in self.due and host.name not in site.skipped]
        first = [host.name for host in hosts if not host.is_worker or host.is_head]
        workers = [host.name for host in hosts if host.name not in first]
        size = self.pace.size(len(site.inventory.workers))
        # The reboot of a jump host disconnects the hosts behind it, so jump hosts are a batch of their own.
        jumps = {host.jump.name for host in hosts if host.jump}
        single = [[name for name in first if (name in jumps) == is_jump] for is_jump in (True, False)]
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
                return Interrupted(f"{error}{self._drained_note(site, names)}")
            if error:
                return error
        return self._outcome(site, [name for names in batches[len(self.steps) :] for name in names])

    def _outcome(self, site: Site, pending: Sequence[str]) -> ClusterctlError | None:
        parts = []
        if self.failed:
            drained = _workers(site, self.failed)
            parts.append(f"{fold(self.failed)} failed" + (f", and {fold(drained)} stays drained" if drained else ""))
        parts += [f"not started: {fold(pending)}"] if pending else []
        parts += [f"{fold(site.skipped)} skipped"] if site.skipped else []
        return WorkersFailed("; ".join(parts) + ".") if parts else None

    def _drained_note(self, site: Site, names: Sequence[str]) -> str:
        """Return a note about nodes that stay drained. If the head does not respond, these are the batch's workers."""
        drained = _workers(site, names)
        with suppress(HeadFailed), scheduler.connect(site) as controller:
            drained = controller.drained_for(self.cause)
        if not drained:
            return ""
        stay, them = ("stays", "it") if len(drained) == 1 else ("stay", "them")
        command = scheduler.of(site.inventory).resume_command(self.cause, drained)
        return (
            f" {fold(drained)} {stay} drained; the same command continues there "
            f"(to resume {them} now, on the head: {command})."
        )

    def _step(self, run: Run, names: Sequence[str]) -> ClusterctlError | None:
        """Process one batch; return an error that ends the run."""
        site, head = run.site, run.site.inventory.head.name
        workers = _workers(site, names)
        busy = wait_for_jobs(site, run.screen, self.cause, workers, self.pace.minutes) if workers else []
        self.failed += busy
        ready = [name for name in names if name not in busy]
        informed = [head] if {*ready} & {*self.divided} else []
        if error := self._play(run, self.playbook, list(dict.fromkeys([*informed, *ready])), self.variables):
            return error
        if self.reboots:
            self._compare(run, ready)
        succeeded = [name for name in ready if name in workers and name not in self.failed]
        if failed := [name for name in ready if name in workers and name in self.failed]:
            with scheduler.connect(site) as controller:
                controller.drain(self.cause, failed, f"the last {self.cause} failed there")
        if heads := [name for name in names if name in self.failed and name in site.inventory.heads]:
            return HeadFailed(f"{fold(heads)}, the head, failed; nothing was started after it.")
        if not succeeded and not self.reboots:
            return None
        variables = {"verify_drain": True, "verify_cause": self.cause}
        return self._play(run, "verify", list(dict.fromkeys([head, *succeeded])), variables)

    def _compare(self, run: Run, names: Sequence[str]) -> None:
        """Mark workers as failed if their hardware differs from its record, for example without one of its GPUs.

        For a worker that has already failed, the difference is added as a possible reason. For other hosts, on which
        no jobs run, it is only a note.
        """
        forget_gateways()  # a jump host may have been rebooted
        hosts = [host for host in run.site.inventory.hosts if host.name in names]
        answers = each(hosts, lambda host: contact.ask(host, run.site.access, {}))
        for name, answer in answers.items():
            record = hardware.load(hardware.path_of(run.site.inventory.directory, name))
            problems = hardware.compare(record, answer.facts.hardware) if answer.facts else []
            if not _workers(run.site, [name]):
                for line in problems:
                    run.ledger.notes.setdefault(f"differs from its record: {line}", []).append(name)
                problems = []
            if not answer.facts and name not in self.failed:
                problems = [str(error) for error in answer.errors]
            if problems:
                task = "Compare the hardware with its record"
                run.ledger.add(Result(name, self.playbook, task, "", "failed", "; ".join(problems)))
                self.failed += [name] if name not in self.failed else []

    def _play(
        self, run: Run, playbook: str, names: Sequence[str], variables: Mapping[str, Any]
    ) -> ClusterctlError | None:
        """Play a playbook on these hosts and record the failed ones; return only an error that ends the run."""
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
