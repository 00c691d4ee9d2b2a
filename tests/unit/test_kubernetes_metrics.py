"""The metrics of Kubernetes, from nodes and pods of tests/samples/kubernetes with single fields changed."""

from collections import Counter
from typing import Any

import pytest

from tests.unit.head_programs import load
from tests.unit.test_kubernetes_client import REPLICA, REQUESTS, WAITING, node, pod, wants

PROGRAM = load("kubernetes-metrics")
FILE = load("metrics_file")

GPUS: dict[str, Any] = {
    "status__capacity": {"nvidia.com/gpu": "4"},
    "status__allocatable": {"nvidia.com/gpu": "3"},
}


def written(nodes: list[dict[str, Any]], pods: list[dict[str, Any]]) -> list[str]:
    metrics: dict[str, Counter[Any]] = {name: Counter() for name in PROGRAM.DESCRIPTIONS}
    PROGRAM.count_nodes(nodes, pods, metrics)
    PROGRAM.count_pods(pods, metrics)
    return [line for line in FILE.render(metrics, PROGRAM.DESCRIPTIONS).splitlines() if not line.startswith("#")]


def ready(status: str) -> list[dict[str, str]]:
    return [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": status}]


def test_nodes__in_each_state__are_counted_by_the_most_important() -> None:
    found = written(
        [
            node("gpu01"),
            node("gpu02", spec__unschedulable=True),
            node("gpu03", status__conditions=ready("False"), spec__unschedulable=True),
            node("gpu04", status__conditions=ready("Unknown")),
            node("gpu05", status__conditions=[]),
        ],
        [],
    )
    states = dict(enumerate(["ready", "cordoned", "not_ready", "not_responding", "not_responding"], start=1))
    for number, state in states.items():
        assert f'kubernetes_node_state{{node="gpu0{number}",state="{state}"}} 1' in found
    assert 'kubernetes_nodes{state="not_responding"} 2' in found


def test_gpus__of_a_node__are_held_free_or_out_of_service() -> None:
    """One of the four is unhealthy; the finished pod holds none."""
    holds = pod(spec__containers=[wants("2")])
    finished = pod("done", spec__containers=[wants("1")], status__phase="Succeeded")
    found = written([node(**GPUS)], [holds, finished])
    assert 'kubernetes_gpus{resource="gpu",use="allocated"} 2' in found
    assert 'kubernetes_gpus{resource="gpu",use="idle"} 1' in found
    assert 'kubernetes_gpus{resource="gpu",use="unavailable"} 1' in found


def test_gpus__of_a_cordoned_node__are_not_idle() -> None:
    found = written([node(spec__unschedulable=True, **GPUS)], [pod(spec__containers=[wants("1")])])
    assert 'kubernetes_gpus{resource="gpu",use="allocated"} 1' in found
    assert 'kubernetes_gpus{resource="gpu",use="idle"} 0' in found
    assert 'kubernetes_gpus{resource="gpu",use="unavailable"} 3' in found


@pytest.mark.parametrize(("containers", "before", "expected"), REQUESTS)
def test_requested__gpus_of_a_pod__are_those_of_status(containers: list[Any], before: list[Any], expected: int) -> None:
    item = pod(spec__containers=containers, spec__initContainers=before)
    assert PROGRAM.requested(item)["nvidia.com/gpu"] == expected


def test_pods__that_wait_or_crash__are_reported() -> None:
    crash = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container"}}
    status = [{"name": "gradle", "restartCount": 7, "state": crash}]
    found = written([], [WAITING, REPLICA, pod("train", status__containerStatuses=status)])
    assert 'kubernetes_pods{namespace="default",phase="pending"} 1' in found
    assert 'kubernetes_pods{namespace="default",phase="running"} 2' in found
    assert 'kubernetes_pods_unschedulable{namespace="default"} 1' in found
    assert 'kubernetes_container_crashes{namespace="default",pod="train",container="gradle"} 7' in found


def test_escape__text_of_a_label__cannot_end_it() -> None:
    assert FILE.escape('a"b\\c\nd') == r"a\"b\\c\nd"
