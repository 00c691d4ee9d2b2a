"""`status` of a cluster with Kubernetes: alone or beside Slurm, with one head or several."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterctl.commands import status
from clusterctl.commands.status_report import DEGRADED, HEAD_DOWN, HEALTHY, NodeStatus, Status
from clusterctl.inventory import model as inventory
from clusterctl.kubernetes.objects import KubernetesNode, Pod
from clusterctl.kubernetes.state import Kubernetes
from clusterctl.nodes.remote import Access
from clusterctl.nodes.session import ContactError, Failure
from clusterctl.slurm.state import Slurm, SlurmNode

from .test_status import page

READY = KubernetesNode(True, gpus={"a100": 4}, allocated={"a100": 2})
CONTROL = KubernetesNode(True, is_head=True)
K1, K2, K3 = (NodeStatus(f"k{n}", True, services={"kubelet": "active"}, kubernetes=True) for n in (1, 2, 3))
GPU01 = NodeStatus("gpu01", False, services={"kubelet": "active"}, kubernetes=True)


def cluster(*nodes: NodeStatus, known: dict[str, KubernetesNode] | None = None, **state: Any) -> Status:
    hosts = nodes or (K1, GPU01)
    default = {one.name: CONTROL if one.head else READY for one in hosts}
    return Status("aurora", hosts, None, None, kubernetes=Kubernetes(known or default, **state))


def test_page__of_a_healthy_cluster__has_nodes_gpus_and_pods() -> None:
    one = cluster(pods={"Running": 12, "Pending": 1})
    assert one.exit_code == HEALTHY
    shown = page(one)
    assert "Node   Services  Kubernetes  GPUs" in shown
    assert "gpu01  1 active  ready       2/4 a100" in shown
    assert "GPUs      4 a100: 2 allocated, 2 idle\n" in shown
    assert "Pods      1 pending, 12 running\n" in shown
    assert "Jobs" not in shown
    assert "Cluster   aurora: healthy" in shown


@pytest.mark.proves("status", "`status` shows nodes of Slurm and of Kubernetes in one table.")
def test_page__of_both_schedulers__has_one_table() -> None:
    slurm = Slurm({"cpu01": SlurmNode(("IDLE",), "", {"a100": 1}, {})}, {"RUNNING": 1})
    head = NodeStatus("head1", True, services={"slurmctld": "active"})
    worker = NodeStatus("cpu01", False, services={"slurmd": "active"}, slurm_worker=True)
    one = replace(cluster(K1, GPU01), slurm=slurm)
    one = replace(one, nodes=(head, worker, *one.nodes))
    shown = page(one)
    assert "Node   Services  Scheduler  GPUs" in shown
    assert "cpu01  1 active  idle       0/1 a100" in shown
    assert "gpu01  1 active  ready      2/4 a100" in shown
    assert "GPUs      5 a100: 2 allocated, 3 idle\n" in shown
    assert "Jobs      1 running\n" in shown
    assert "Pods      none\n" in shown


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (
            replace(READY, cordoned=True),
            "gpu01: cordoned by an operator (on a head: sudo kubectl --kubeconfig=/etc/kubernetes/admin.conf "
            "uncordon gpu01)",
        ),
        (
            replace(READY, cordoned=True, causes={"health": "XID 79"}),
            "gpu01: drained by health: XID 79 (clusterctl health INVENTORY gpu01 --diagnose)",
        ),
        (
            replace(READY, cordoned=True, causes={"new": "not proven yet"}),
            "gpu01: drained by new: not proven yet (clusterctl bootstrap INVENTORY)",
        ),
        (
            replace(READY, cordoned=True, causes={"mine": "x"}),
            "(on a head: sudo /usr/local/sbin/kubernetes-drain mine --in gpu01)",
        ),
        (
            replace(READY, causes={"health": "x"}),
            "gpu01: not cordoned, though the drain ledger has health: x "
            "(on a head: sudo /usr/local/sbin/kubernetes-drain health --in gpu01)",
        ),
        (
            replace(READY, ready=False, problems=("not ready: the kubelet stopped",)),
            "gpu01: not ready: the kubelet stopped (clusterctl bootstrap INVENTORY)",
        ),
        (replace(READY, problems=("DiskPressure: the disk is full",)), "gpu01: DiskPressure: the disk is full\n"),
        (
            replace(READY, unhealthy={"a100": 1}),
            "gpu01: 1 of its a100 GPUs cannot be allocated (clusterctl health INVENTORY gpu01)",
        ),
        (replace(READY, cordoned=True, causes={"{x}; id": "x"}), "gpu01: drained by {x}; id: x\n"),
    ],
)
def test_page__node_out_of_service__has_its_remedy(node: KubernetesNode, expected: str) -> None:
    one = cluster(known={"k1": CONTROL, "gpu01": node})
    assert expected in page(one).replace("\n       ", " ")
    assert one.exit_code == (DEGRADED if not node.is_healthy else HEALTHY)


def test_gpus__out_of_service_or_unhealthy__are_not_idle() -> None:
    sick = replace(READY, unhealthy={"a100": 1})
    assert cluster(known={"k1": CONTROL, "gpu01": sick}).gpus() == {
        "a100": {"total": 4, "allocated": 2, "idle": 1, "out_of_service": 1}
    }
    away = replace(READY, cordoned=True)
    assert cluster(known={"k1": CONTROL, "gpu01": away}).gpus() == {
        "a100": {"total": 4, "allocated": 2, "idle": 0, "out_of_service": 2}
    }


@pytest.mark.proves("status", "`status` shows the pods that wait, each reason once.")
def test_page__pods_that_wait__are_folded_by_reason() -> None:
    reason = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    waiting = tuple(Pod("ml", f"train-{n}", phase="Pending", reason=reason) for n in range(5))
    other = Pod("web", "a", phase="Pending", reason="ImagePullBackOff: no such image")
    shown = page(cluster(waiting=(*waiting, other)), 200)
    assert f"pods  ml/train-0, ml/train-1, ml/train-2 and 2 more wait: {reason}" in shown
    assert "pods  web/a waits: ImagePullBackOff: no such image" in shown


def test_page__host_that_has_not_joined__says_so() -> None:
    one = cluster(K1, GPU01, known={"k1": CONTROL})
    assert (one.exit_code, one.unjoined) == (DEGRADED, ["gpu01"])
    assert "gpu01: has not joined Kubernetes (clusterctl bootstrap INVENTORY)\n" in page(one)


def test_page__node_that_is_not_in_the_inventory__says_how_to_delete_it() -> None:
    """As after a restore of a backup in which a removed node still was."""
    one = cluster(K1, known={"k1": CONTROL, "gone": CONTROL})
    command = "on a head: sudo /usr/local/sbin/kubernetes-drain --forget gone"
    assert f"gone: is in Kubernetes, and not in the inventory ({command})\n" in page(one)


@pytest.mark.proves("status", "With one of three heads down the cluster is degraded, not down.")
@pytest.mark.parametrize(
    ("nodes", "problem", "expected"),
    [
        ((K1, K2, K3), "", HEALTHY),
        ((K1, K2, replace(K3, problem="timeout")), "", DEGRADED),
        ((replace(K1, services={"kubelet": "failed"}), K2, K3), "", DEGRADED),
        ((K1, K2, K3), "The connection to the server was refused", HEAD_DOWN),
    ],
)
def test_exit_code__with_several_heads__depends_on_the_api(
    nodes: tuple[NodeStatus, ...], problem: str, expected: int
) -> None:
    assert cluster(*nodes, problem=problem).exit_code == expected


def test_page__without_the_api__says_why() -> None:
    one = cluster(problem="The connection to the server was refused")
    shown = page(one)
    assert "kubernetes: The connection to the server was refused" in shown
    assert "has not joined" not in shown
    assert "Pods" not in shown


def test_json__of_the_status__has_both_schedulers() -> None:
    found = json.loads(json.dumps(cluster().as_dict()))
    assert found["slurm"] is None
    assert found["kubernetes"]["nodes"]["gpu01"]["gpus"] == {"a100": 4}
    assert found["nodes"][1]["kubernetes"] is True


# --- which head is asked ----------------------------------------------------------------------------------------------

THREE = """\
all:
  vars: {cluster_name: aurora}
  children:
    kubernetes_head: {hosts: {k1: {}, k2: {}, k3: {}}}
    kubernetes_workers: {hosts: {gpu01: {}}}
"""


class Line:
    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> str:
        return self.name

    def __exit__(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    ("first", "others", "expected", "asked"),
    [
        (Kubernetes({"a": CONTROL}), {}, {"a"}, []),
        (Kubernetes(problem="refused"), {"k2": Kubernetes({"b": CONTROL})}, {"b"}, ["k2"]),
        (None, {"k3": Kubernetes({"c": CONTROL})}, {"c"}, ["k2", "k3"]),
        (None, {}, set(), ["k2", "k3"]),
    ],
)
def test_api__of_the_first_head_that_responds__is_asked(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    first: Kubernetes | None,
    others: dict[str, Kubernetes],
    expected: set[str],
    asked: list[str],
) -> None:
    (tmp_path / "inventory.yaml").write_text(THREE)
    known = inventory.load(tmp_path / "inventory.yaml")
    contacted: list[str] = []

    def connect(host: inventory.Host, access: Access) -> Line:
        contacted.append(host.name)
        if host.name not in others:
            raise ContactError(Failure.SILENT, "no answer")
        return Line(host.name)

    monkeypatch.setattr(status, "connect", connect)
    monkeypatch.setattr(status, "ask_kubernetes", lambda name: others[name])
    found = status._kubernetes(known, Access(tmp_path / "known_hosts"), [first] if first else [])
    assert found is not None
    assert {*found.nodes} == expected
    assert bool(found.problem) is (not expected)
    assert contacted == asked
