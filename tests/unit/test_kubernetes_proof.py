"""The test of Kubernetes with pods: which workers it takes, what the pods ask for, and what their answers mean."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

import tests.unit.test_node_state  # noqa: F401 - lets the modules of the nodes be found
from tests.systems.rendering import CONTENT, a_cluster
from tests.unit.test_role_plugins import plugin

PROOF = plugin("modules/kubernetes_proof")
SCRIPT = (CONTENT / "roles/verify/files/pod.sh").read_text()
Data = dict[str, Any]

TWO: Data = {"resource": "nvidia.com/gpu", "count": 4, "request": 2}
GIVEN: Data = {
    "nodes": {"gpu01": TWO, "gpu02": TWO},
    "heads": ["head1"],
    "script": "true",
    "image": "registry.example/busybox:1",
    "domain": "cluster.local",
    "outside": "head1.aurora.cluster",
    "volume": False,
    "admit": [],
}
FINE = "inside ok\noutside ok\nservice ok\n"
SEES_TWO = "gpu /dev/nvidia0 open\ngpu /dev/nvidia3 open\n"


def node(name: str, ready: str = "True", gpus: int = 4, **spec: Any) -> Data:
    conditions = [{"type": "Ready", "status": ready, "message": "container runtime network not ready"}]
    allocatable = {"cpu": "2", "nvidia.com/gpu": str(gpus)}
    return {
        "metadata": {"name": name},
        "spec": spec,
        "status": {"conditions": conditions, "allocatable": allocatable},
    }


def ended(number: int, plain: str = FINE, gpu: str | None = SEES_TWO) -> Data:
    """A pod whose tests have ended, as `kubectl get pods -o json` prints it, in the parts that are read."""
    messages = {"plain": plain} | ({} if gpu is None else {"gpu": gpu})
    statuses: list[Data] = [{"name": "serve", "state": {"running": {}}}]
    statuses += [{"name": name, "state": {"terminated": {"message": text}}} for name, text in messages.items()]
    spec = {"containers": [{"name": one["name"]} for one in statuses], "nodeName": "x"}
    labels = {"clusterctl/proof": str(number)}
    return {
        "metadata": {"labels": labels},
        "spec": spec,
        "status": {"phase": "Running", "containerStatuses": statuses},
    }


def pending(number: int, message: str) -> Data:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    item = ended(number)
    return item | {
        "spec": {"containers": item["spec"]["containers"]},
        "status": {"phase": "Pending", "conditions": [condition]},
    }


class Cluster:
    """A cluster that answers kubectl and kubernetes-drain; `rounds` are the pods of each round of the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, nodes: list[Data], *rounds: list[Data]) -> None:
        self.nodes, self.rounds, self.causes = nodes, list(rounds), "{}"
        self.applied: list[list[Data]] = []
        self.drains: list[str] = []
        self.deleted = 0
        self.volumes: list[Data] = []
        self.stuck = False
        self.now = 0.0
        for name in ("get", "kubectl", "run"):
            monkeypatch.setattr(PROOF, name, getattr(self, name))
        monkeypatch.setattr(PROOF.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(PROOF.time, "sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def get(self, kind: str, *_: str) -> list[Data]:
        found = {"nodes": self.nodes, "persistentvolumes": self.volumes}
        return found[kind] if kind in found else self.rounds[len(self.applied) - 1]

    def kubectl(self, verb: str, *argv: str, stdin: Any = None, check: bool = True) -> tuple[int, str, str]:
        if verb == "apply":
            self.applied.append(stdin["items"])
            return 0, "", ""
        self.deleted += 1
        self.stuck = self.stuck and "--force" not in argv
        assert not (check and self.stuck), "kubectl fails"
        return int(self.stuck), "", ""

    def run(self, *argv: str) -> tuple[int, str]:
        self.drains += [" ".join(argv[1:])] if argv[1:] else []
        return 0, self.causes

    def pods(self, attempt: int = 0) -> list[Data]:
        return [one for one in self.applied[attempt] if one["kind"] == "Pod"]


NODES = [node("gpu01"), node("gpu02"), node("head1", gpus=0)]


@pytest.mark.proves("verify", "A pod sees exactly its GPUs, one without a request none; pods reach other nodes.")
def test_prove__workers_in_service__runs_a_pod_on_two(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, NODES, [ended(0), ended(1)])
    assert PROOF.prove(GIVEN) == {
        "msg": "test pods on gpu01, gpu02 saw exactly 2 GPUs, and reached each other through services",
        "notes": [],
        "down": {},
    }
    first, second = cluster.pods()
    for pod, peer, expected in ((first, 1, "gpu02"), (second, 0, "gpu01")):
        containers = {one["name"]: one for one in pod["spec"]["containers"]}
        environment = {one["name"]: one["value"] for one in containers["plain"]["env"]}
        assert environment["PEER"] == f"pod-{peer}.clusterctl-verify.svc.cluster.local"
        assert environment["EXPECTED"] == expected
        assert containers["gpu"]["resources"]["limits"] == {"nvidia.com/gpu": "2"}
        assert containers["plain"]["resources"]["limits"] == {}
    assert (cluster.drains, cluster.deleted) == ([], 2)


@pytest.mark.proves("verify", "A test pod left on a dead node does not stop the next test.")
def test_prove__pod_of_an_earlier_test_does_not_end__is_deleted_by_force(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, NODES, [ended(0), ended(1)])
    cluster.stuck = True
    assert PROOF.prove(GIVEN)["down"] == {}
    assert cluster.deleted == 4


def test_prove__volume_of_an_earlier_test_was_not_deleted__is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def volume(name: str, space: str = PROOF.NAMESPACE, policy: str = "Delete", created: str = "2026-01-01") -> Data:
        spec = {"claimRef": {"namespace": space}, "persistentVolumeReclaimPolicy": policy}
        return {"metadata": {"name": name, "creationTimestamp": f"{created}T00:00:00Z"}, "spec": spec}

    cluster = Cluster(monkeypatch, NODES, [ended(0), ended(1)])
    cluster.volumes = [
        volume("old"),
        volume("of-others", space="ada"),
        volume("of-a-site", policy="Retain"),
        volume("new", created="2200-01-01"),
        {"metadata": {"name": "free", "creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": {}},
    ]
    assert PROOF.prove(GIVEN)["notes"] == [
        "the volume old of an earlier test was not deleted: kubectl describe persistentvolume old"
    ]


@pytest.mark.parametrize(
    ("plain", "gpu", "fault"),
    [
        (FINE, "gpu /dev/nvidia0 open\n", "a container requested 2 GPUs and can open 1 (/dev/nvidia0)"),
        ("gpu /dev/nvidia0 open\n" + FINE, SEES_TWO, "a container requested 0 GPUs and can open 1 (/dev/nvidia0)"),
        (FINE, SEES_TWO + "gpu /dev/nvidia1 denied\n", "/dev/nvidia1 cannot be opened"),
        (
            "inside failed: kubernetes does not resolve\noutside ok\nservice ok\n",
            SEES_TWO,
            "inside failed: kubernetes does not resolve",
        ),
        ("", SEES_TWO, "the test pod printed nothing about inside, outside, service: its containers have not ended"),
    ],
)
def test_faults__of_a_pods_answers__are_found(plain: str, gpu: str, fault: str) -> None:
    assert PROOF.faults(ended(0, plain, gpu), 2) == [fault]


def test_faults__broken_answer__is_the_nodes() -> None:
    """The node's kubelet writes the answer."""
    found = PROOF.faults(ended(0, FINE, "gpu /dev/nvidia1\ngpu /dev/\x1b[31mnvidia0 open now\n" + SEES_TWO), 2)
    assert found == ["the test pod printed gpu /dev/nvidia1", "the test pod printed gpu /dev/nvidia0 open now"]


def test_faults__of_a_pod_that_cannot_start__have_the_reason() -> None:
    item = pending(0, "")
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}}
    item["status"]["containerStatuses"] = [{"name": "plain", "state": waiting}]
    (fault,) = PROOF.faults(item, 2)
    assert fault.endswith("ImagePullBackOff Back-off pulling image")


@pytest.mark.proves("kubernetes", "New workers enter service only after their own test pod.")
def test_prove__new_workers__are_admitted_if_they_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = ended(1, FINE, "gpu /dev/nvidia0 open\n")
    nodes = [node("gpu01", unschedulable=True), node("gpu02", unschedulable=True), node("gpu03")]
    cluster = Cluster(monkeypatch, nodes, [ended(0), bad])
    cluster.causes = '{"gpu01": {"new": "not proven yet"}, "gpu02": {"bootstrap": "x", "new": "y"}}'
    given = GIVEN | {"nodes": dict.fromkeys(("gpu01", "gpu02", "gpu03"), TWO), "admit": ["bootstrap", "new"]}
    found = PROOF.prove(given)
    assert (found["admitted"], list(found["down"])) == (["gpu01"], ["gpu02"])
    assert cluster.drains == ["bootstrap --in gpu01", "new --in gpu01"]
    tolerations = cluster.pods()[0]["spec"]["tolerations"]
    assert tolerations == [{"operator": "Exists", "effect": "NoSchedule"}], "the scheduler takes a cordoned node"


def test_prove__new_worker_with_unhealthy_gpus__is_faulty(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, [node("gpu01", unschedulable=True)])
    cluster.causes = '{"gpu01": {"new": "not proven yet", "health": "GPU 1: XID 79"}}'
    found = PROOF.prove(GIVEN | {"nodes": {"gpu01": TWO}, "admit": ["bootstrap", "new"]})
    assert found["down"] == {"gpu01": "no test pod was run, its GPUs are unhealthy: GPU 1: XID 79"}
    assert cluster.applied == []


def test_prove__worker_that_an_operator_cordoned__is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, [node("gpu01", unschedulable=True), node("gpu02", unschedulable=True)])
    cluster.causes = '{"gpu02": {"new": "not proven yet", "operator": "fan"}}'
    found = PROOF.prove(GIVEN | {"admit": ["bootstrap", "new"]})
    assert found == {"msg": "no worker is in service", "notes": [], "down": {}}
    assert cluster.drains == []


@pytest.mark.parametrize(
    ("nodes", "fault"),
    [
        ([], "it is no node of the cluster: journalctl --unit kubelet"),
        ([node("gpu01", ready="False")], "it is not ready: container runtime network not ready"),
        ([node("gpu01", ready="Unknown")], "it is not ready: container runtime network not ready"),
        ([node("gpu01", gpus=3)], "it offers 3 nvidia.com/gpu, expected 4: "),
    ],
)
def test_prove__worker_that_cannot_run_pods__is_down(
    monkeypatch: pytest.MonkeyPatch, nodes: list[Data], fault: str
) -> None:
    Cluster(monkeypatch, nodes)
    found = PROOF.prove(GIVEN | {"nodes": {"gpu01": TWO}})
    assert found["down"]["gpu01"].startswith(fault)


def test_prove__one_worker__asks_a_pod_on_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, [node("gpu01"), node("head1")], [ended(0), ended(1, gpu=None)])
    found = PROOF.prove(GIVEN | {"nodes": {"gpu01": TWO}})
    assert (found["down"], found["notes"]) == ({}, [])
    assert [pod["spec"]["affinity"]["nodeAffinity"] for pod in cluster.pods()][1] == {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["head1"]}]},
            ]
        }
    }


@pytest.mark.proves("verify", "A worker that cannot reach a faulty one is not faulty itself.")
def test_prove__peer_is_faulty__tests_the_other_again(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = ended(0, "inside ok\noutside ok\nservice failed: no answer from 10.96.3.4\n")
    broken = ended(1, FINE, "")
    cluster = Cluster(monkeypatch, NODES, [silent, broken], [ended(0), ended(1, gpu=None)])
    found = PROOF.prove(GIVEN)
    assert list(found["down"]) == ["gpu02"]
    again = [pod["spec"]["containers"][0]["env"] for pod in cluster.pods(1)]
    assert [next(one["value"] for one in env if one["name"] == "NODE") for env in again] == ["gpu01", "head1"]


def test_prove__other_node_is_down__asks_one_that_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that was stopped a moment ago is still ready in the API."""
    silent = ended(0, "inside ok\noutside ok\nservice failed: no answer from 10.96.3.4\n")
    nodes = [node("gpu01"), node("gpu02"), node("gpu03")]
    cluster = Cluster(monkeypatch, nodes, [silent, pending(1, "")], [ended(0), ended(1, gpu=None)])
    assert PROOF.prove(GIVEN | {"nodes": {"gpu01": TWO}, "heads": []})["down"] == {}
    peers = [{one["name"]: one["value"] for one in cluster.pods(n)[0]["spec"]["containers"][0]["env"]} for n in (0, 1)]
    assert [one["EXPECTED"] for one in peers] == ["gpu02", "gpu03"]


def test_prove__all_gpus_occupied__requests_none(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = pending(0, "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) didn't match affinity.")
    cluster = Cluster(monkeypatch, NODES, [busy, ended(1)], [ended(0, gpu=None), ended(1, gpu=None)])
    found = PROOF.prove(GIVEN)
    assert (found["down"], found["notes"]) == ({}, ["other pods have all GPUs: the test pods requested none"])
    assert [len(pod["spec"]["containers"]) for pod in cluster.pods(1)] == [2, 2]


def test_objects__with_a_volume__write_and_read_one(monkeypatch: pytest.MonkeyPatch) -> None:
    found = PROOF.objects(["gpu01", "gpu02"], GIVEN["nodes"], GIVEN | {"volume": True}, with_gpus=True)
    first, second = [one for one in found if one["kind"] == "Pod"]
    assert [one["name"] for one in first["spec"]["initContainers"]] == ["write"]
    assert "initContainers" not in second["spec"]
    assert sum(one["kind"] == "PersistentVolumeClaim" for one in found) == 1


@pytest.mark.proves("verify", "The test pods are admitted by the strictest Pod Security Standard.")
def test_objects__of_the_test__are_restricted() -> None:
    """https://kubernetes.io/docs/concepts/security/pod-security-standards/, "Restricted"."""
    found = PROOF.objects(["gpu01"], GIVEN["nodes"], GIVEN | {"volume": True}, with_gpus=True)
    assert found[0]["metadata"]["labels"] == {"pod-security.kubernetes.io/enforce": "restricted"}
    (pod,) = [one["spec"] for one in found if one["kind"] == "Pod"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in [*pod["containers"], *pod["initContainers"]]:
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert all({*volume} <= {"name", "emptyDir", "persistentVolumeClaim"} for volume in pod["volumes"])


# --- the script in the pods -------------------------------------------------------------------------------------------

# What the two kinds of busybox's nslookup print (networking/nslookup.c of busybox 1.37.0, with and without
# FEATURE_NSLOOKUP_BIG).
BIG = "Server:\t\t10.96.0.10\nAddress:\t10.96.0.10:53\n\nName:\tx.svc.cluster.local\nAddress: 10.96.3.4\n\n"
SMALL = (
    "Server:    10.96.0.10\nAddress 1: 10.96.0.10 kube-dns.kube-system.svc.cluster.local\n\n"
    "Name:      x.svc.cluster.local\nAddress 1: 10.96.3.4 x.svc.cluster.local\n"
)
NONE = "Server:\t\t10.96.0.10\nAddress:\t10.96.0.10:53\n\n** server can't find x: NXDOMAIN\n"


def script(folder: Path, mode: str, lookup: str, page: str = "gpu02") -> str:
    """Run the script with programs that answer as busybox's, and return what it leaves for the pod's status."""
    (folder / "nslookup").write_text(f"#!/bin/sh\ncat <<'END'\n{lookup}END\n")
    (folder / "wget").write_text(
        f"#!/bin/sh\ncase $* in *'http://10.96.3.4:8080/'*) echo {page} ;; *) exit 1 ;; esac\n"
    )
    for name in ("nslookup", "wget"):
        (folder / name).chmod(0o755)
    text = (
        SCRIPT.replace("/dev/termination-log", str(folder / "log"))
        .replace("LIMIT=30", "LIMIT=0")
        .replace("LIMIT=120", "LIMIT=0")
    )
    text = text.replace("/dev/nvidia", str(folder / "nvidia"))
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "NODE": "gpu01", "INSIDE": "x", "OUTSIDE": "y"}
    environment |= {"PEER": "z", "EXPECTED": "gpu02"}
    subprocess.run(["sh", "-c", text, "sh", mode], env=environment, check=True, timeout=60)
    return (folder / "log").read_text()


@pytest.mark.parametrize("lookup", [BIG, SMALL])
def test_script__names_and_service_work__says_so(tmp_path: Path, lookup: str) -> None:
    assert script(tmp_path, "reach", lookup) == FINE


def test_script__wrong_pod_answers__is_reported(tmp_path: Path) -> None:
    found = script(tmp_path, "reach", BIG, page="gpu07").splitlines()
    assert found == ["inside ok", "outside ok", "service failed: gpu07 answered instead of gpu02"]


def test_script__no_name_resolves__is_reported(tmp_path: Path) -> None:
    assert script(tmp_path, "reach", NONE).splitlines() == [
        "inside failed: x does not resolve",
        "outside failed: y does not resolve",
        "service failed: z does not resolve",
    ]


def test_script__devices__are_open_or_denied(tmp_path: Path) -> None:
    """A user that is not root opens one of two files; root opens both."""
    (tmp_path / "nvidia0").touch()
    (tmp_path / "nvidia1").touch(mode=0o000)
    (tmp_path / "nvidiactl").touch()
    second = "open" if os.getuid() == 0 else "denied"
    assert script(tmp_path, "look", BIG).splitlines() == [
        f"gpu {tmp_path}/nvidia0 open",
        f"gpu {tmp_path}/nvidia1 {second}",
    ]


@pytest.mark.parametrize("scheduler", ["slurm", "kubernetes"])
def test_verify__of_each_scheduler__asks_its_own_head(scheduler: str, tmp_path: Path) -> None:
    role = a_cluster(tmp_path, "debian-13", scheduler).role("verify", "head1", verify_drain=True)
    assert role.value("__verify_heads") == ["head1"]
    heads = {"slurm": "__verify_head", "kubernetes": "__verify_kubernetes_head"}
    assert {name: role.value(variable) for name, variable in heads.items()} == {
        name: "head1" if name == scheduler else "" for name in heads
    }
    if scheduler == "kubernetes":
        assert role.value("__verify_kubernetes_drain")[:2] == ["/usr/local/sbin/kubernetes-drain", "bootstrap"]
        assert role.value("__verify_pod_nodes") == {"gpu01": TWO}
