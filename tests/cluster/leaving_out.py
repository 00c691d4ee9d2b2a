"""Which nodes a bootstrap would leave out now, without playing the others."""

from clusterctl.run import engine
from clusterctl.run.context import Options
from clusterctl.run.entry import CONTACT, NoteInputs, Preflight
from clusterctl.run.phases import Phase, Run
from tests.cluster.lab import TestLab


class Decision(Phase):
    """Has the hosts that a run leaves out, and ends before anything is played."""

    title, changes_nodes, announced = "Decide", False, False
    hosts: list[str]

    def run(self, run: Run) -> None:
        self.hosts = sorted(run.unchanged)


def decided(lab: TestLab) -> list[str]:
    """Return the hosts that a bootstrap would leave out now."""
    decision, preflight = Decision(), Preflight(proves=True, leaves_out=True)
    engine.execute(Options("bootstrap", lab.inventory), [NoteInputs(), *CONTACT, preflight, decision])
    return decision.hosts
