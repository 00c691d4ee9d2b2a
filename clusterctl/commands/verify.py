"""`verify`: test the cluster with jobs and queries."""

from collections.abc import Iterable

from clusterctl.nodes import people
from clusterctl.run import engine
from clusterctl.run.context import Options
from clusterctl.run.entry import ENTRY_OF_A_TEST
from clusterctl.run.phases import Phase, Run, Step
from clusterctl.run.plays import Play
from clusterctl.util.errors import WorkersFailed
from clusterctl.util.text import plural


class ComparePeople(Phase):
    """Compare the IDs of users on all nodes. Raises WorkersFailed if they differ."""

    title = "Compare the IDs of users"

    def run(self, run: Run) -> None:
        with run.screen.working("Comparing the IDs of users"):
            apart, known = people.compare(run.site.inventory, run.site.hosts, run.site.access)
        for problem in known.problems:
            run.screen.say(("  note  ", "yellow"), problem)
        if apart:
            raise WorkersFailed("\n".join(apart))
        run.screen.say(f"  {plural(len(run.site.hosts), 'node')} have the same IDs of users")

    def describe(self, run: Run) -> Iterable[Step]:
        return ("on each node: getent passwd NAME, for each user",)


def verify(options: Options) -> int:
    """Test services, GPU jobs, accounting, metrics and the IDs of users; return the exit code."""
    phases = [
        *ENTRY_OF_A_TEST,
        Play("verify", "Test the cluster"),
        ComparePeople(),
    ]
    return engine.execute(options, phases)
