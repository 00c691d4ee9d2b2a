"""Phase, the base class of a verb's phases, and Run, the state that the phases of a run share. engine.py runs them."""

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from clusterctl.ansible.outcome import Ledger
from clusterctl.ansible.run_directory import RunDirectory
from clusterctl.run.context import Options, Site
from clusterctl.ui.screen import Screen
from clusterctl.util import files

if TYPE_CHECKING:
    from clusterctl.ansible.process import Process
    from clusterctl.run.headlock import ClusterLock
    from clusterctl.run.inputs import Inputs
    from clusterctl.run.proofs import Proof

Step = str | Site
"""A manual step in place of a phase: a text, or the plain command for a site."""


@dataclass
class Run:
    """The state that the phases of one run share."""

    site: Site
    """The cluster in its current state; phases replace it."""
    screen: Screen
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    """Context managers to close at the end of the run, such as locks."""
    ledger: Ledger = field(default_factory=Ledger)
    """The results of the plays."""
    lock: int = -1
    """The descriptor of the directory's lock, which Ansible inherits."""
    ansible: "Process | None" = None
    """The process of Ansible that waits for its command."""
    head_lock: "ClusterLock | None" = None
    kept: RunDirectory | None = None
    """The run's directory, once it is created."""
    redact: Callable[[str], str] = str
    """Redacts the secrets, old and new, that existed when the run's directory was created."""
    trouble: OSError | None = None
    """The error that stopped the writing of the log of a play."""
    summary: dict[str, Any] = field(default_factory=dict)
    """Fields that phases add to the summary."""
    jobs: list[Any] = field(default_factory=list)
    """In a plan: the jobs that the run would wait for."""
    resume_with: str = ""
    """The verb that resumes the run, if it differs from this verb."""
    is_last: bool = True
    """Whether the running phase is the last one."""
    variables: str | None = None
    """A digest of the files with variables, when the inventory was read."""
    inputs: "Inputs | None" = None
    """Digests of what the run reads on this machine, when it began."""
    expected_roles: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """By host the roles to play by the inputs alone, before the host is contacted; those that need all are missing."""
    unchanged: Mapping[str, "Proof"] = field(default_factory=dict)
    """The nodes that were left out because nothing has changed, with the proofs."""
    roles: frozenset[str] | None = None
    """The roles that a bootstrap plays besides its tests, by their tags; None for all."""
    is_whole: bool = True
    """Whether each playbook ran to its end. If all hosts of a play fail, Ansible runs no further play on any host."""
    played_again: set[str] = field(default_factory=set)
    """Nodes that were played again because a new driver found their GPUs."""

    @property
    def options(self) -> Options:
        return self.site.options

    def take_ansible(self) -> "Process | None":
        """Return the process of Ansible if it still waits, which then belongs to the caller."""
        if self.ansible and not self.ansible.is_ready():
            self.close_ansible()
        taken, self.ansible = self.ansible, None
        return taken

    def close_ansible(self) -> None:
        """End the process of Ansible that waits, if it was not taken."""
        waiting, self.ansible = self.ansible, None
        if waiting:
            waiting.close()

    def directory(self) -> RunDirectory:
        """Return the run's directory. The first phase that may change nodes creates it."""
        if self.kept is None:
            redactor = self.site.redactor(needed=True)
            with files.writing(self.site.state):
                self.kept = RunDirectory.create(self.site.state, self.options.verb)
            self.redact = redactor.redact
        return self.kept


class Phase:
    """One phase of a verb. A ClusterctlError ends the run."""

    title = ""
    changes_nodes = True
    """Whether the phase may change nodes. The run's directory is created before the first such phase."""
    announced = True
    """Whether the title is printed, if a verb has several such phases."""

    def should_run(self, run: Run) -> bool:
        """Return whether there is something to do."""
        return True

    def run(self, run: Run) -> None:
        """Run the phase."""
        raise NotImplementedError

    def plan(self, run: Run) -> None:
        """Do the part that a plan needs; change no node and no file of the cluster's directory."""

    def describe(self, run: Run) -> Iterable[Step]:
        """Return the equivalent manual steps; contact no node."""
        return ()
