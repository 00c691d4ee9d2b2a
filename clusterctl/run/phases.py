"""A verb is a list of phases. Here is what a phase is, and what the phases of a run share; engine.py runs the list."""

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from clusterctl.ansible.outcome import Ledger
from clusterctl.ansible.run_directory import RunDirectory
from clusterctl.run.context import Options, Site
from clusterctl.ui.screen import Screen
from clusterctl.util import files

if TYPE_CHECKING:
    from clusterctl.run.headlock import HeadLock

Step = str | Site
"""What a person does instead of a phase: something in words, or the plain command for a site."""


@dataclass
class Run:
    """What the phases of one run share."""

    site: Site
    """The cluster as it is now; phases replace it."""
    screen: Screen
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    """What is undone when the run is over, locks among it."""
    ledger: Ledger = field(default_factory=Ledger)
    """What came of the plays."""
    lock: int = -1
    """The descriptor of the directory's lock, which Ansible inherits."""
    head_lock: "HeadLock | None" = None
    kept: RunDirectory | None = None
    """The run's directory, once it is made."""
    redact: Callable[[str], str] = str
    """Takes the secrets out of text: those that there were when the run's directory was made, old ones and new ones."""
    trouble: OSError | None = None
    """What kept us from writing about a play."""
    told: dict[str, Any] = field(default_factory=dict)
    """What phases have for the summary."""
    jobs: list[Any] = field(default_factory=list)
    """In a plan: the jobs that would be waited for."""
    resume_with: str = ""
    """The verb that resumes, where that is no longer this one."""
    is_last: bool = True
    """Whether no phase comes after the one that runs."""
    played_again: set[str] = field(default_factory=set)
    """Nodes that were played again for GPUs that a new driver brought to light."""

    @property
    def options(self) -> Options:
        return self.site.options

    def directory(self) -> RunDirectory:
        """Return the run's directory, which the first phase makes that may change nodes."""
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
    """Whether it may change nodes. Before the first that does, the run's directory is made."""
    announced = True
    """Whether its title is printed, where a verb has several such phases."""

    def should_run(self, run: Run) -> bool:
        """Return whether there is something to do."""
        return True

    def run(self, run: Run) -> None:
        """Do it."""
        raise NotImplementedError

    def plan(self, run: Run) -> None:
        """Do what a plan needs of it; no node and no file of the cluster's directory may change."""

    def describe(self, run: Run) -> Iterable[Step]:
        """Return what a person does instead; contacts nobody."""
        return ()
