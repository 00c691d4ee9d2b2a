"""Run a playbook as a phase, then run it again for nodes that were left behind and nodes with new GPUs."""

from collections.abc import Iterator
from dataclasses import replace

from clusterctl.ansible import runner
from clusterctl.run import proofs, record
from clusterctl.run.context import Site
from clusterctl.run.phases import Phase, Run, Step
from clusterctl.ui.progress import Progress
from clusterctl.util.errors import ClusterctlError, WorkersFailed
from clusterctl.util.text import fold
from clusterctl.workspace import hardware

_DRIVER = "nvidia_driver"  # the role
PATIENCE = 60.0
"""How long the others wait for a node in a whole run, in seconds. The node's remaining tasks run afterwards."""


class Play(Phase):
    """Run a playbook on the hosts of the run."""

    def __init__(self, playbook: str, title: str, *, rest: str = "", patience: float | None = PATIENCE) -> None:
        self.playbook, self.title, self.patience = playbook, title, patience
        self.rest = rest
        """The playbook for nodes left behind, where this one would repeat its changes to the head."""

    def site(self, run: Run) -> Site:
        """Return the site of the run, with this playbook."""
        return replace(run.site, playbook=self.playbook)

    def run(self, run: Run) -> None:
        error = play(run, self.site(run), rest=self.rest, patience=self.patience, more=not run.is_last)
        if isinstance(error, WorkersFailed) and self.rest:
            run.resume_with = self.rest  # the verb's changes to the head are complete
        if error:
            raise error

    def plan(self, run: Run) -> None:
        if error := play(run, self.site(run), patience=None, more=not run.is_last):
            raise error

    def describe(self, run: Run) -> Iterator[Step]:
        yield self.site(run)


def play(
    run: Run, site: Site, *, rest: str = "", patience: float | None = None, more: bool = False
) -> ClusterctlError | None:
    """Run a site's playbook, then the remaining tasks on nodes. Return the error.

    `patience` is how long the others wait for a node, in seconds; None means no limit. `more`: see Ledger.error.
    """
    patience = None if site.options.check else patience
    error = _run_once(run, site, patience, more)
    if error is not None and not isinstance(error, WorkersFailed):
        return error
    if found := set(_record_new_gpus(site, run)) - run.played_again:
        run.played_again.update(found)
        run.screen.say(
            (f"  {fold(run.ledger.ordered(found))}", "bold"), ": new GPU driver, running the playbook again:"
        )
        # These nodes may have failed only because they had no record. The ledger keeps the failures of all others.
        return play(run, site.only(found | run.ledger.behind()), rest=rest, more=more)
    if behind := run.ledger.behind():
        run.screen.say((f"  {fold(run.ledger.ordered(behind))}", "bold"), ": left behind, running the remaining tasks:")
        return play(run, site.only(behind, rest), rest=rest, more=more)
    return error


def _run_once(run: Run, site: Site, patience: float | None, more: bool) -> ClusterctlError | None:
    """Run Ansible once and show its progress. Return the error."""
    run.directory()  # raises an error before Ansible starts if the directory cannot be created
    only_tests = (site.playbook or site.options.verb) == "verify"
    if not site.options.check and not only_tests:
        proofs.forget(site)
    error, trouble = watch(run, site, patience=patience, more=more)
    run.is_whole &= run.ledger.ended and not run.ledger.stopped and not run.ledger.plays_to_come
    if only_tests and (lost := run.ledger.lost()):
        proofs.forget(replace(site, hosts=tuple(host for host in site.hosts if host.name in lost)))
    run.trouble = run.trouble or trouble
    return error


def watch(
    run: Run, site: Site, *, patience: float | None = None, more: bool = False
) -> tuple[ClusterctlError | None, OSError | None]:
    """Run Ansible and show its progress. Return its error, and the error in writing the run directory."""
    directory, screen, ledger, options = run.directory(), run.screen, run.ledger, site.options
    progress = Progress(screen, ledger, verbose=options.verbosity > 0, diff=options.diff)
    ansible = runner.Runner(
        site.command(),
        directory,
        critical=site.inventory.heads,
        patience=patience,
        lock=run.lock,
        become_password=site.access.sudo_password,
        redact=run.redact,
        notify=progress.stopping,
        prepared=run.take_ansible(),
    )
    ledger.ended = False  # a playbook that never starts must not count as ended because the one before it ended
    with progress.running():
        for item in ansible.watch():
            if run.head_lock and run.head_lock.lost and not ansible.stopped:
                screen.say(f"Stopping: another run has started: {run.head_lock.lost}")
                ansible.stop()
            try:
                progress.show(item)
            except OSError:  # the terminal or the reader of the output is gone
                screen.mute()
                ansible.stop()
    ledger.stopped |= ansible.stopped
    if ansible.trouble:
        path = record.full(ansible.trouble, directory)
        ledger.why = f"stopped because {path} cannot be written: {ansible.trouble.strerror}"
    return ledger.error(site.groups(), site.inventory.heads, site.skipped, more), ansible.trouble


def _record_new_gpus(site: Site, run: Run) -> list[str]:
    """Record the GPUs of nodes that got a driver or a MIG layout in this run. Return the nodes to run again.

    Slurm and the metrics read GPUs from the record only, so nodes with new GPUs run again. A new MIG layout is already
    in Slurm's configuration; the record is for later runs without the node. Role verify skips a node whose driver was
    installed in this run. Such a node runs again even if it shows no GPU.
    """
    ledger = run.ledger

    def has_changed_gpus(name: str) -> bool:
        changes = ledger.hosts[name].changes if name in ledger.hosts else ()
        return any(
            (role == _DRIVER and change.kind == "kernel module") or change.action == "partitioned"
            for role, change in changes
        )

    hosts = [host for host in site.hosts if has_changed_gpus(host.name)]
    if not hosts or site.options.check:
        return []
    from clusterctl.nodes import contact, parallel
    from clusterctl.run import preflight

    without_gpus = {
        host.name
        for host in hosts
        if host.name not in ledger.lost()
        and not hardware.load(hardware.path_of(site.inventory.directory, host.name)).gpus
    }
    answers = parallel.each(hosts, lambda host: contact.ask(host, site.access, {}))
    facts = {name: answer.facts for name, answer in answers.items() if answer.facts}
    return sorted(without_gpus | {path.stem for path in preflight.record(site.inventory, contact.Contact(facts))})
