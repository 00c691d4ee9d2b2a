"""What a bootstrap costs by what has changed: nothing, one user, one variable of one node, one file, one new node."""

import json
import resource
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from tests.bench import profile
from tests.bench.grow import workers_of
from tests.bench.measure import CLUSTERCTL, BenchError, BenchLab, Cost, Document, load, median, say
from tests.cluster.lab import TestLab
from tests.cluster.leaving_out import decided

ROUNDS = 3
SETTLING = 6
"""Runs after which nothing is left to do; Prometheus scrapes meanwhile."""
_USER = "      - {name: dave, uid: 10077}\n"
_CHRONY = "/etc/chrony/chrony.conf"


@dataclass(frozen=True)
class Run:
    """The cost of a run, how many tasks it ran on hosts, and the roles."""

    cost: Cost
    tasks: int
    roles: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.cost}, {self.tasks} host-tasks, roles: {', '.join(self.roles) or 'none'}"

    def document(self) -> Document:
        return {**self.cost.document(), "host_tasks": self.tasks, "roles": list(self.roles)}


def main(workers: int, rounds: int = ROUNDS) -> Document:
    """Measure each change on a lab of a head and workers, of which the last one is added; return the figures."""
    lab = BenchLab.of("changes", workers)
    say(f"By what has changed: a head and {workers - 1} workers, then one more; {load()}")
    figures: Document = {"nodes": workers}
    try:
        lab.fresh()
        lines = workers_of(lab)
        (name, last) = [*lines.items()][-1]
        lab.inventory.write_text(lab.inventory.read_text().replace(last.line, ""))
        nodes = TestLab(lab.name, workers - 1)
        for title in ("first bootstrap", "second bootstrap, all played"):
            figures[title] = _shown(title, _run(lab)).document()
        settle(lab, nodes)
        unchanged = [_run(lab) for _ in range(rounds)]
        if any(run.roles for run in unchanged):
            raise BenchError(f"an unchanged run played {unchanged}")
        figures["unchanged"] = _shown(
            "unchanged, median", replace(unchanged[0], cost=median([run.cost for run in unchanged]))
        ).document()
        figures["peak_mb"] = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10
        for verb in ("status", "plan"):
            argv = ("plan", "bootstrap", lab.inventory) if verb == "plan" else (verb, lab.inventory)
            cost, _ = lab.measure(*CLUSTERCTL, *argv)
            say(f"  {verb}, unchanged: {cost}")
            figures[verb] = cost.document()
        for title, change in _changes(lab, nodes).items():
            change()
            figures[title] = _shown(title, _run(lab)).document()
            figures[f"after {title}"] = _shown(f"the run after {title}", _run(lab)).document()
            settle(lab, nodes)
        options = ("add-node", lab.inventory, name, "--address", last.address, "--yes")
        cost, _ = lab.measure(*CLUSTERCTL, *options)
        say(f"  one more node: {cost}; {load()}")
        figures["add-node"] = cost.document() | {
            "seconds_by_role": _seconds(profile.latest_run(lab.directory, "add-node"))
        }
        title = "the bootstrap after it"
        figures[title] = _shown(title, _run(lab)).document()
    finally:
        lab.down()
    figures["controller_per_node"] = round(figures["unchanged"]["controller"] / workers, 3)
    ratio = round(figures["one user"]["wall"] / figures["second bootstrap, all played"]["wall"], 2)
    figures["ratio_user"], per_node = ratio, figures["controller_per_node"]
    say(f"  Ratio of one user to all played: {ratio}; unchanged {per_node} CPU-s per node here")
    return figures


def _changes(lab: BenchLab, nodes: TestLab) -> dict[str, Callable[[], object]]:
    """Return by title what changes a cluster."""
    own = lab.directory / "host_vars" / f"{nodes.nodes[-1]}.yml"

    def user() -> None:
        lab.inventory.write_text(lab.inventory.read_text().replace("users_accounts:\n", f"users_accounts:\n{_USER}"))

    def variable() -> None:
        own.parent.mkdir(exist_ok=True)
        own.write_text("cluster_timezone: Asia/Tokyo\n")

    return {
        "one user": user,
        "one variable of one node": variable,
        "one edited file": lambda: nodes.root(nodes.nodes[-1], f"echo '# edited' >> {_CHRONY}"),
    }


def _run(lab: BenchLab) -> Run:
    cost, _ = lab.measure(*CLUSTERCTL, "bootstrap", lab.inventory)
    directory = profile.latest_run(lab.directory, "bootstrap")
    return Run(cost, profile.host_tasks(directory) if (directory / "events.jsonl").exists() else 0, roles_of(directory))


def roles_of(directory: Path) -> tuple[str, ...]:
    """Return the roles that a run has played; none if it has left out all nodes."""
    stages = json.loads((directory / "summary.json").read_text())["stages"]
    return tuple(dict.fromkeys(stage["role"] for stage in stages if stage["role"]))


def _seconds(directory: Path) -> dict[str, float]:
    """Return how long each role took in a run."""
    found: dict[str, float] = {}
    for stage in json.loads((directory / "summary.json").read_text())["stages"]:
        found[stage["role"]] = round(found.get(stage["role"], 0.0) + stage["seconds"], 1)
    return found


def settle(lab: BenchLab, nodes: TestLab) -> None:
    """Bootstrap until nothing is to do: a changed node is played once more, and Prometheus has to reach all.

    Raises BenchError if some runs are not enough, or one fails.
    """
    for _ in range(SETTLING):
        lab.clusterctl("bootstrap")
        if decided(nodes) == sorted(nodes.nodes):
            return
    raise BenchError(f"after {SETTLING} runs something is left to do")


def _shown(title: str, run: Run) -> Run:
    say(f"  {title}: {run}; {load()}")
    return run
