"""The metrics of Kubernetes, from nodes and pods of tests/samples/kubernetes with single fields changed."""

import sys
from collections import Counter
from pathlib import Path
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
    held: dict[str, Counter[str]] = {}
    PROGRAM.count_requests(pods, held, metrics)
    PROGRAM.count_nodes(nodes, held, metrics)
    PROGRAM.count_pods(pods, metrics)
    return lines(FILE.render(metrics, PROGRAM.DESCRIPTIONS))


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("#")]


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


@pytest.mark.proves("monitoring", "The GPUs that pods hold are counted by namespace.")
def test_gpus__of_pods__are_counted_by_namespace() -> None:
    pods = [
        pod(spec__containers=[wants("2")]),
        pod("other", spec__containers=[wants("1")]),
        pod("third", spec__containers=[wants("3")], metadata__namespace="physics"),
        pod("waiting", on="", spec__containers=[wants("4")]),
        pod("done", spec__containers=[wants("4")], status__phase="Failed"),
    ]
    found = [line for line in written([node(**GPUS)], pods) if "namespace_gpus" in line]
    assert found == [
        'kubernetes_namespace_gpus{namespace="default",resource="gpu"} 3',
        'kubernetes_namespace_gpus{namespace="physics",resource="gpu"} 3',
    ]


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


class Server:
    """An API server that has its pods on two pages, and the paths that it was asked for."""

    def __init__(self, nodes: list[dict[str, Any]], *pages: list[dict[str, Any]]) -> None:
        self.nodes, self.pages, self.paths = nodes, list(pages), list[str]()

    def raw(self, path: str) -> dict[str, Any]:
        self.paths.append(path)
        if path.startswith("/api/v1/nodes"):
            return {"items": self.nodes, "metadata": {}}
        if not self.pages:
            raise PROGRAM.kubernetes_api.KubernetesError("kubectl get: the provided continue parameter is too old")
        return {"items": self.pages.pop(0), "metadata": {"continue": "a+/=="} if len(self.paths) == 1 else {}}


def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server: Server) -> list[str]:
    """Run the program; return the lines of its file."""
    monkeypatch.setattr(PROGRAM.kubernetes_api, "raw", server.raw)
    monkeypatch.setattr(PROGRAM.kubernetes_api, "only_root", lambda _: None)
    monkeypatch.setattr(PROGRAM.control_plane_certificates, "periods", dict)
    monkeypatch.setattr(PROGRAM, "ETCD", (tmp_path / "none").as_uri())
    monkeypatch.setattr(sys, "argv", ["kubernetes-metrics", str(tmp_path / "kubernetes.prom")])
    PROGRAM.main()
    return lines((tmp_path / "kubernetes.prom").read_text(encoding="utf-8"))


@pytest.mark.proves("kubernetes", "Metrics count the pods of a large cluster page by page.")
def test_main__two_pages_of_pods__are_counted_together(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    one, other = (pod(name, spec__containers=[wants("1")]) for name in ("train-0", "train-1"))
    server = Server([node(**GPUS)], [one, WAITING], [other])
    found = run(monkeypatch, tmp_path, server)
    assert 'kubernetes_pods{namespace="default",phase="running"} 2' in found
    assert 'kubernetes_pods{namespace="default",phase="pending"} 1' in found
    assert 'kubernetes_gpus{resource="gpu",use="allocated"} 2' in found
    assert "kubernetes_up 1" in found
    first = "/api/v1/pods?fieldSelector=status.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed&limit=500"
    assert server.paths == [first, f"{first}&continue=a%2B%2F%3D%3D", "/api/v1/nodes?resourceVersion=0"]


def test_main__page_that_fails__leaves_no_partial_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = run(monkeypatch, tmp_path, Server([node()], [pod("train-0")]))
    assert "kubernetes_up 0" in found
    assert not any(line.startswith(("kubernetes_pods", "kubernetes_nodes")) for line in found)
    assert "the provided continue parameter is too old" in capsys.readouterr().err


def test_nodes__with_causes__have_each_with_its_reason_and_not_too_many() -> None:
    causes = {f"clusterctl/drain.c{number:02}": "x" for number in range(20)}
    found = written([node("gpu01", metadata__annotations={"clusterctl/known": "", **causes})], [])
    reasons = [line for line in found if line.startswith("kubernetes_node_reason")]
    assert reasons[0] == 'kubernetes_node_reason{node="gpu01",reason="c00: x"} 1'
    assert len(reasons) == PROGRAM.MOST_CAUSES
