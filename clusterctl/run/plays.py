"""The phase that plays a playbook, and what a play needs after it: nodes left behind, GPUs that a driver showed."""

from collections.abc import Iterator
from dataclasses import replace

from clusterctl.ansible import runner
from clusterctl.run import record
from clusterctl.run.context import Site
from clusterctl.run.phases import Phase, Run, Step
from clusterctl.ui.progress import Progress
from clusterctl.util.errors import ClusterctlError, WorkersFailed
from clusterctl.util.text import fold
from clusterctl.workspace import hardware

_DRIVER = "nvidia_driver"  # the role
PATIENCE = 60.0
"""How long the others wait for a node in a whole run, in seconds; what is left to do there is done afterwards."""


class Play(Phase):
    """Play a playbook for the hosts of the run."""

    def __init__(self, playbook: str, title: str, *, rest: str = "", patience: float | None = PATIENCE) -> None:
        self.playbook, self.title, self.patience = playbook, title, patience
        self.rest = rest
        """The playbook for nodes left behind, where this one would do again what it has done to the head."""

    def site(self, run: Run) -> Site:
        """Return where it is played."""
        return replace(run.site, playbook=self.playbook)

    def run(self, run: Run) -> None:
        error = play(run, self.site(run), rest=self.rest, patience=self.patience, more=not run.is_last)
        if isinstance(error, WorkersFailed) and self.rest:
            run.resume_with = self.rest  # what the verb does to the head is done
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
    """Play a site's playbook, then what is left to do on nodes; return what it failed with.

    `patience` is how long the others wait for a node, in seconds; None: as long as it takes. `more`: see Ledger.judge.
    """
    patience = None if site.options.check else patience
    error = _once(run, site, patience, more)
    if error is not None and not isinstance(error, WorkersFailed):
        return error
    if found := set(_found_gpus(site, run)) - run.played_again:
        run.played_again.update(found)
        run.screen.say((f"  {fold(run.ledger.ordered(found))}", "bold"), ", whose GPUs have a driver now:")
        # What failed there for want of the record is judged by this; the ledger still has who else failed.
        return play(run, site.only(found | run.ledger.behind()), rest=rest, more=more)
    if behind := run.ledger.behind():
        run.screen.say((f"  {fold(run.ledger.ordered(behind))}", "bold"), ", which the others did not wait for:")
        return play(run, site.only(behind, rest), rest=rest, more=more)
    return error


def _once(run: Run, site: Site, patience: float | None, more: bool) -> ClusterctlError | None:
    """Run Ansible once and show it; return what it failed with."""
    run.directory()  # or why it cannot be made, before Ansible starts
    error, trouble = watch(run, site, patience=patience, more=more)
    run.trouble = run.trouble or trouble
    return error


def watch(
    run: Run, site: Site, *, patience: float | None = None, more: bool = False
) -> tuple[ClusterctlError | None, OSError | None]:
    """Run Ansible and show it; return what it failed with, and what kept us from writing about it."""
    kept, screen, ledger, options = run.directory(), run.screen, run.ledger, site.options
    progress = Progress(screen, ledger, verbose=options.verbosity > 0, diff=options.diff)
    ansible = runner.Runner(
        site.command(),
        kept,
        critical=site.inventory.heads,
        patience=patience,
        lock=run.lock,
        become_password=site.access.sudo_password,
        redact=run.redact,
        notify=progress.stopping,
    )
    ledger.ended = False  # or a playbook that never begins would be judged by the end of the one before it
    with progress.running():
        for item in ansible.watch():
            if run.head_lock and run.head_lock.lost and not ansible.stopped:
                screen.say(f"Stopping, for another run has begun: {run.head_lock.lost}")
                ansible.stop()
            try:
                progress.show(item)
            except OSError:  # the terminal or the reader of our output is gone: come to an end in order
                screen.mute()
                ansible.stop()
    ledger.stopped |= ansible.stopped
    if ansible.trouble:
        ledger.why = f"stopped, for {record.full(ansible.trouble, kept)} takes no more: {ansible.trouble.strerror}"
    return ledger.judge(site.groups(), site.inventory.heads, site.skipped, more), ansible.trouble


def _found_gpus(site: Site, run: Run) -> list[str]:
    """Record the GPUs of nodes that had none before this run gave them a driver; returns the nodes to play again.

    Slurm and the metrics know GPUs by the record alone, and have to hear of it. How GPUs were divided in this run they
    know already; it is recorded for the runs that leave the node out. Role verify leaves a node to the second time
    whose driver came in this run, so one that shows no GPU with it is played again too.
    """
    ledger = run.ledger

    def given(name: str) -> bool:
        changes = ledger.hosts[name].changes if name in ledger.hosts else ()
        return any(
            (role == _DRIVER and change.kind == "kernel module") or change.action == "partitioned"
            for role, change in changes
        )

    hosts = [host for host in site.hosts if given(host.name)]
    if not hosts or site.options.check:
        return []
    from clusterctl.nodes import contact, remote
    from clusterctl.run import preflight

    unproven = {
        host.name
        for host in hosts
        if host.name not in ledger.lost()
        and not hardware.load(hardware.path_of(site.inventory.directory, host.name)).gpus
    }
    answers = remote.each(hosts, lambda host: contact.ask(host, site.access, {}))
    facts = {name: answer.facts for name, answer in answers.items() if answer.facts}
    return sorted(unproven | {path.stem for path in preflight.record(site.inventory, contact.Contact(facts))})
