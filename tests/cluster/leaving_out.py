"""Which nodes a bootstrap would leave out now, without playing the others."""

from clusterctl.run import engine
from clusterctl.run.context import Options
from clusterctl.run.entry import NoteInputs, Preflight, contact_phases
from clusterctl.run.phases import Phase, Run
from tests.cluster.lab import TestLab


class Decision(Phase):
    """Has the hosts that a run leaves out, and ends before anything is played."""

    title, changes_nodes, announced = "Decide", False, False
    hosts: list[str]

    def run(self, run: Run) -> None:
        self.hosts = sorted(run.unchanged)


def decided(lab: TestLab, forks: int | None = None) -> list[str]:
    """Return the hosts that a bootstrap would leave out now; `forks` is its option."""
    decision, preflight = Decision(), Preflight(proves=True, leaves_out=True)
    phases = [NoteInputs(), *contact_phases(leaves_out=True), preflight, decision]
    engine.execute(Options("bootstrap", lab.inventory, forks=forks), phases)
    return decision.hosts
