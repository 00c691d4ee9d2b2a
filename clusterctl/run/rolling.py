"""Play a playbook on nodes around their jobs and pods: first on the heads, then on the workers in batches.

For each batch: drain, wait for workloads, play, test with a workload, resume. A node with another drain cause stays
drained. Kubernetes' heads are drained too, one by one, and each must serve again before the next one.
The progress is stored only in the state of the nodes and in the drain ledger on the head. So the same command resumes
the run.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from clusterctl.ansible.events import Result
from clusterctl.inventory.model import Host
from clusterctl.inventory.schedulers import SLURM
from clusterctl.nodes import contact
from clusterctl.nodes.parallel import each
from clusterctl.nodes.remote import forget_gateways
from clusterctl.run import scheduler
from clusterctl.run.context import Site
from clusterctl.run.draining import resume_commands, wait_for_jobs
from clusterctl.run.phases import Phase, Run, Step
from clusterctl.run.plays import play
from clusterctl.util.errors import ClusterctlError, HeadFailed, InputError, Interrupted, Problem, WorkersFailed
from clusterctl.util.text import fold
from clusterctl.workspace import hardware

BATCH = "10%"
HEAD_SECONDS = 300.0
"""How long a head may need until it serves again after its playbook."""


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
        workers = scheduler.by_kind(run.site.inventory, [host.name for host in run.site.hosts if host.is_worker])
        steps = [(f"on {scheduler.head_of(run.site.inventory, kind).name}", kind, workers[kind]) for kind in workers]
        for where, kind, names in steps:
            yield f"{where}: {scheduler.of(kind).drain_command(self.cause, names, f'{self.cause} under way')}"
            yield where + scheduler.of(kind).wait_step(names)
        yield replace(run.site, playbook=self.playbook, variables=self.variables)
        for where, kind, names in steps:
            yield f"{where}, for those that are healthy: {scheduler.of(kind).resume_command(self.cause, names)}"

    def over(self, run: Run) -> ClusterctlError | None:
        """Process all hosts and return the error. Stops at a failed head, and at `pace.failures` failed workers."""
        site, batches = run.site, self._batches(run.site)
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

    def _batches(self, site: Site) -> list[list[str]]:
        """Return the batches in order: hosts without jobs, Kubernetes' heads one by one, workers by scheduler."""
        hosts = [host for host in site.hosts if host.name in self.due and host.name not in site.skipped]
        heads = [host.name for host in hosts if _is_drained_head(host)]
        first = [host.name for host in hosts if (not host.is_worker or host.is_head) and host.name not in heads]
        # The reboot of a jump host disconnects the hosts behind it, so jump hosts are a batch of their own.
        jumps = {host.jump.name for host in hosts if host.jump}
        # Of Slurm's two heads one controls the jobs while the other one is changed.
        pair = [host.name for host in reversed(site.inventory.in_group(SLURM.head)) if host.name in first]
        pair = pair if len(pair) > 1 else []
        single = [[one for one in first if one not in pair and (one in jumps) == jump] for jump in (True, False)]
        batches = [*filter(None, single), *([name] for name in (*pair, *heads))]
        rest = [host.name for host in hosts if host.name not in (*first, *heads)]
        for kind, workers in scheduler.by_kind(site.inventory, rest).items():
            size = self.pace.size(len(site.inventory.in_group(kind.workers)))
            batches += [workers[at : at + size] for at in range(0, len(workers), size)]
        return batches

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
        drained: list[str] = []
        for kind in scheduler.all_of(site.inventory):
            found = [name for name in _drained(site, names) if site.inventory.host(name).scheduler is kind]
            with suppress(HeadFailed), scheduler.connect(site, kind) as controller:
                found = controller.drained_for(self.cause)
            drained += found
        if not drained:
            return ""
        stay, them = ("stays", "it") if len(drained) == 1 else ("stay", "them")
        commands = resume_commands(site, self.cause, scheduler.by_kind(site.inventory, drained))
        return f" {fold(drained)} {stay} drained; the same command continues there (to resume {them} now, {commands})."

    def _step(self, run: Run, names: Sequence[str]) -> ClusterctlError | None:
        """Process one batch; return an error that ends the run."""
        site = run.site
        workers, drained = _workers(site, names), _drained(site, names)
        if lost := self._require_spare(site, names):
            return lost
        busy = wait_for_jobs(site, run.screen, self.cause, drained, self.pace.minutes) if drained else []
        self.failed += busy
        ready = [name for name in names if name not in busy]
        controllers = site.inventory.in_group(SLURM.head) or (site.inventory.head,)
        informed = [host.name for host in controllers if {*ready} & {*self.divided} and host.name not in site.skipped]
        if error := self._play(run, self.playbook, list(dict.fromkeys([*informed, *ready])), self.variables):
            return error
        if self.reboots:
            self._compare(run, ready)
        succeeded = [name for name in ready if name in workers and name not in self.failed]
        failed = [name for name in ready if name in workers and name in self.failed]
        for kind, nodes in scheduler.by_kind(site.inventory, failed).items():
            with scheduler.connect(site, kind) as controller:
                controller.drain(self.cause, nodes, f"the last {self.cause} failed there")
        if heads := [name for name in names if name in self.failed and name in site.inventory.heads]:
            return HeadFailed(f"{fold(heads)}, the head, failed; nothing was started after it.")
        if unfit := self._resume_heads(site, [name for name in drained if name not in workers]):
            return unfit
        if not succeeded and not self.reboots:
            return None
        variables = {"verify_drain": True, "verify_cause": self.cause}
        return self._play(run, "verify", list(dict.fromkeys([*_testers(site, names), *succeeded])), variables)

    def _require_spare(self, site: Site, names: Sequence[str]) -> HeadFailed | None:
        """Return an error if the control plane would lose its quorum while these hosts are down."""
        heads = [name for name in names if _is_drained_head(site.inventory.host(name))]
        try:
            for kind, nodes in scheduler.by_kind(site.inventory, heads).items():
                with scheduler.control_plane(site, kind) as controller:
                    controller.require_spare(nodes)
        except HeadFailed as error:
            return error
        return None

    def _resume_heads(self, site: Site, names: Sequence[str]) -> HeadFailed | None:
        """Wait until these heads serve again, and resume them; role verify resumes workers only."""
        for kind, nodes in scheduler.by_kind(site.inventory, names).items():
            with scheduler.control_plane(site, kind) as controller:
                for name in nodes:
                    if problem := controller.wait_for_head(name, HEAD_SECONDS):
                        self.failed.append(name)
                        return HeadFailed(f"{name}, a head, does not serve: {problem}; nothing was started after it.")
                controller.resume(self.cause, nodes)
        return None

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
        if silent := [name for name in run.site.skipped if name in run.site.inventory.heads]:
            variables = {**variables, "kubernetes_silent_heads": silent}  # role kubernetes_worker asks another one
        site = replace(run.site, hosts=hosts, skipped=(), playbook=playbook, variables=variables)
        error = play(run, site, more=True)
        lost = run.ledger.lost()
        self.failed += [name for name in names if name in lost and name not in self.failed]
        return None if isinstance(error, WorkersFailed) else error


def _workers(site: Site, names: Collection[str]) -> list[str]:
    return [host.name for host in site.inventory.workers if host.name in names]


def _is_drained_head(host: Host) -> bool:
    """Return whether a host is a head that runs pods, such as those of the cluster's DNS."""
    kind = host.scheduler
    return kind is not None and kind.has_quorum and kind.head in host.groups


def _drained(site: Site, names: Collection[str]) -> list[str]:
    """Return the hosts that are drained before they change: workers, and Kubernetes' heads."""
    return [h.name for h in site.inventory.hosts if h.name in names and (h.is_worker or _is_drained_head(h))]


def _testers(site: Site, names: Collection[str]) -> list[str]:
    """Return the heads that role verify needs to test these hosts: the cluster's and one of each scheduler."""
    heads = [site.inventory.in_group(kind.head) for kind in scheduler.by_kind(site.inventory, names)]
    present = [[host.name for host in hosts if host.name not in site.skipped] for hosts in heads]
    first = [site.inventory.head.name] if site.inventory.head.name not in site.skipped else []
    return [*first, *(hosts[0] for hosts in present if hosts)]
