"""What a cluster's runs cost, in counts with a ceiling each (tests/costs.yml). No second is measured here."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.bench import counts, profile
from tests.bench.ceilings import check
from tests.bench.counts import Traffic
from tests.cluster.lab import TestLab
from tests.cluster.leaving_out import decided
from tests.faults.injury import wait_until
from tests.golden import Golden

HEAD = "head1"


@dataclass(frozen=True)
class Counted:
    """A command's counts: of its run directory, of what it sent to each node, of the processes that it started."""

    run: Path
    traffic: Mapping[str, Traffic]
    started: Counter[str]


@pytest.fixture(scope="module")
def lab(golden: Golden) -> Iterator[TestLab]:
    """The golden lab of a head and two workers, with the run that bootstrapped it from nothing."""
    with golden.taken() as lab:
        yield lab


def bootstrap(lab: TestLab, *options: str) -> Counted:
    with counts.traffic(lab) as traffic:
        started = counts.started("bootstrap", str(lab.inventory), *options)
    counted = Counted(profile.latest_run(lab.inventory.parent, "bootstrap"), traffic, started)
    statuses = Counter(event["status"] for event in events(counted.run) if event["event"] == "result")
    assert not statuses["changed"], statuses
    return counted


def events(run: Path) -> list[dict[str, Any]]:
    """Return the events of a run; a run that leaves out all nodes has no file of them."""
    return list(profile.events(run)) if (run / "events.jsonl").exists() else []


@pytest.fixture(scope="module")
def proven(lab: TestLab) -> Counted:
    """A bootstrap of a cluster that is as it should be. The one before has proven that, so all nodes are left out.

    The lab's nodes have just started, and Prometheus has to reach them first.
    """
    lab.run("bootstrap")
    wait_until(lambda: decided(lab) == sorted(lab.nodes))
    return bootstrap(lab)


@pytest.fixture(scope="module")
def unchanged(lab: TestLab, proven: Counted) -> Counted:
    """One that leaves out none."""
    return bootstrap(lab, "--full")


def of_workers(counts_by_host: Mapping[str, int]) -> int:
    """Return the highest count of a worker."""
    return max(count for host, count in counts_by_host.items() if host != HEAD)


def path_of(run: Path) -> str:
    """Return the tasks that the worker with the most of them went through, a line each."""
    workers = {host: sum(found.values()) for host, found in counts.tasks(run).items() if host != HEAD}
    longest = max(workers, key=lambda host: workers[host])
    events = (e for e in profile.events(run) if e["event"] == "result" and e["host"] == longest)
    return f"The path of {longest}:\n" + "\n".join(f"  {e['status']:9} {e['role']}: {e['task']}" for e in events)


@pytest.mark.proves("costs", "A bootstrap from nothing keeps its tasks within their ceilings.")
def test_bootstrap__from_nothing__keeps_a_workers_path_short(lab: TestLab) -> None:
    run = min((lab.inventory.parent / ".clusterctl" / "runs").glob("*-bootstrap"))
    assert {e["host"] for e in profile.events(run) if e.get("status") == "changed"} == set(lab.nodes)
    tasks = counts.tasks(run)
    check(
        {
            "bootstrap_tasks_worker": of_workers({host: found["run"] for host, found in tasks.items()}),
            "bootstrap_skipped_worker": of_workers({host: found["skipped"] for host, found in tasks.items()}),
            "bootstrap_tasks_head": tasks[HEAD]["run"],
            "bootstrap_calls_worker": of_workers({host: len(found) for host, found in counts.calls(run).items()}),
        },
        path_of(run),
    )


@pytest.mark.proves("costs", "A run that leaves out all nodes has one connection to each worker.")
def test_bootstrap__proven__asks_each_worker_once(lab: TestLab, proven: Counted) -> None:
    assert not events(proven.run)
    opened = {node: traffic.connections for node, traffic in proven.traffic.items()}
    sent = {node: traffic.bytes for node, traffic in proven.traffic.items()}
    check(
        {
            "proven_connections_worker": of_workers(opened),
            "proven_connections_head": opened[HEAD],
            "proven_kilobytes_worker": round(of_workers(sent) / 1000),
            "proven_processes": proven.started.total(),
        },
        str(proven.started),
    )


@pytest.mark.proves("costs", "An unchanged run keeps its tasks within their ceilings.")
def test_bootstrap__unchanged__runs_few_tasks(lab: TestLab, unchanged: Counted) -> None:
    tasks = counts.tasks(unchanged.run)
    assert set(tasks) == set(lab.nodes)
    check(
        {
            "unchanged_tasks_worker": of_workers({host: found["run"] for host, found in tasks.items()}),
            "unchanged_tasks_head": tasks[HEAD]["run"],
            "unchanged_tasks_all": sum(found["run"] for found in tasks.values()),
        },
        path_of(unchanged.run),
    )


@pytest.mark.proves("costs", "An unchanged run keeps the bytes sent per node within their ceilings.")
def test_bootstrap__unchanged__sends_few_bytes(unchanged: Counted) -> None:
    sent = {node: traffic.bytes for node, traffic in unchanged.traffic.items()}
    check(
        {
            "unchanged_kilobytes_worker": round(of_workers(sent) / 1000),
            "unchanged_kilobytes_head": round(sent[HEAD] / 1000),
        }
    )


@pytest.mark.proves("costs", "An unchanged run keeps its connections per node within their ceilings.")
def test_bootstrap__unchanged__opens_few_connections(unchanged: Counted) -> None:
    opened = {node: traffic.connections for node, traffic in unchanged.traffic.items()}
    check({"unchanged_connections_worker": of_workers(opened), "unchanged_connections_head": opened[HEAD]})


@pytest.mark.proves("costs", "An unchanged run keeps the processes it starts within their ceiling.")
def test_bootstrap__unchanged__starts_few_processes(unchanged: Counted) -> None:
    check({"unchanged_processes": unchanged.started.total()}, str(unchanged.started))


@pytest.mark.proves("costs", "`status` keeps connections, bytes and processes within their ceilings.")
def test_status__healthy__asks_each_node_once(lab: TestLab) -> None:
    with counts.traffic(lab) as traffic:
        started = counts.started("status", str(lab.inventory))
    opened = {node: found.connections for node, found in traffic.items()}
    sent = {node: found.bytes for node, found in traffic.items()}
    check(
        {
            "status_connections_worker": of_workers(opened),
            "status_connections_head": opened[HEAD],
            "status_kilobytes_worker": round(of_workers(sent) / 1000),
            "status_processes": started.total(),
        },
        str(started),
    )


@pytest.mark.proves("costs", "`lab ssh` keeps the processes it starts within their ceiling.")
def test_lab_ssh__one_command__starts_few_processes(lab: TestLab) -> None:
    started = counts.started("lab", "ssh", "--name", lab.name, HEAD, "--", "true")
    check({"lab_ssh_processes": started.total()}, str(started))
