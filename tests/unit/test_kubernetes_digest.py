"""What of Kubernetes is in a node's digests, on what its API printed in a lab: nodes/probe/kubernetes.py."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from clusterctl.nodes import contact
from clusterctl.nodes.probe import kubernetes
from clusterctl.nodes.probe.common import UnhealthyError
from clusterctl.util import paths

SAMPLES = Path(__file__).parent.parent / "samples/kubernetes"
NODE, OBJECTS = ((SAMPLES / name).read_text() for name in ("own-node.json", "objects.json"))
RECORDED = datetime(2026, 11, 29, 13, 17, tzinfo=UTC)
"""When the kubelet of the sample had just renewed its lease."""
TEMPLATES = [*paths.content().glob("roles/kubernetes_*/templates/*.yaml.j2")]
Edit = Callable[[dict[str, Any]], Any]


@pytest.fixture(autouse=True)
def _then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let it be the time of the sample."""
    monkeypatch.setattr(kubernetes, "_now", lambda: RECORDED)


def edited(text: str, kind: str, name: str, edit: Edit) -> str:
    """Return the documents, with one object edited."""
    found = [*kubernetes._documents(text)]
    chosen = [item for item in found if (item.get("kind") or "Pod", item["metadata"]["name"]) == (kind, name)]
    assert chosen
    for item in chosen:  # a ConfigMap of kube-system may be there twice
        edit(item)
    return "\n".join(map(json.dumps, found))


def pod_of(name: str) -> str:
    found = [item["metadata"]["name"] for item in kubernetes._documents(NODE)]
    return str(next(pod for pod in found if pod.startswith(name)))


def not_ready(item: dict[str, Any]) -> None:
    for condition in item["status"]["conditions"]:
        condition["status"] = condition["status"] if condition["type"] != "Ready" else "False"


OF_NODE: dict[str, Edit] = {
    "a label": lambda node: node["metadata"]["labels"].pop("clusterctl/gpu-count"),
    "a label of others": lambda node: node["metadata"]["labels"].update(mine=""),
    "a taint": lambda node: node["spec"].update(taints=[{"key": "mine", "effect": "NoSchedule"}]),
    "a mark of kubernetes-drain": lambda node: node["metadata"]["annotations"].update({"clusterctl/drain.gpu": "Xid"}),
    "fewer GPUs": lambda node: node["status"]["allocatable"].update({"nvidia.com/gpu": "3"}),
}
SAME_NODE: dict[str, Edit] = {
    "less memory": lambda node: node["status"]["allocatable"].update({"memory": "1Ki"}),
    "an annotation of others": lambda node: node["metadata"]["annotations"].update(mine=""),
    "a heartbeat": lambda node: node["status"]["conditions"][0].update(lastHeartbeatTime="2026-11-30T00:00:00Z"),
    "a version": lambda node: node["metadata"].update(resourceVersion="1"),
}


@pytest.mark.parametrize("edit", OF_NODE.values(), ids=OF_NODE)
def test_node__with_another_label_or_taint__differs(edit: Edit) -> None:
    assert kubernetes._node(edited(NODE, "Node", "gpu01", edit)) != kubernetes._node(NODE)


@pytest.mark.parametrize("edit", SAME_NODE.values(), ids=SAME_NODE)
def test_node__with_what_changes_all_the_time__is_the_same(edit: Edit) -> None:
    assert edited(NODE, "Node", "gpu01", edit) != edited(NODE, "Node", "gpu01", lambda _: None)
    assert kubernetes._node(edited(NODE, "Node", "gpu01", edit)) == kubernetes._node(NODE)


@pytest.mark.parametrize(
    ("kind", "name", "edit"),
    [
        ("Node", "gpu01", not_ready),
        ("Node", "gpu01", lambda node: node["spec"].update(unschedulable=True)),
        ("Lease", "gpu01", lambda lease: lease["spec"].update(renewTime="2026-11-29T12:00:00.000000Z")),
        ("Pod", pod_of("kube-flannel"), not_ready),
        ("Pod", pod_of("nvidia-device-plugin"), not_ready),
    ],
)
def test_node__that_does_not_serve__is_refused(kind: str, name: str, edit: Edit) -> None:
    with pytest.raises(UnhealthyError):
        kubernetes._node(edited(NODE, kind, name, edit))


def test_node__without_a_pod_of_a_daemonset__differs_and_users_pods_do_not_matter() -> None:
    users = {"namespace": "vision", "ownerReferences": [{"kind": "DaemonSet", "name": "own"}]}

    def of_users(item: dict[str, Any]) -> None:
        item["metadata"].update(users)
        not_ready(item)

    assert kubernetes._node(edited(NODE, "Pod", pod_of("kube-flannel"), of_users)) != kubernetes._node(NODE)


OF_OBJECTS: dict[tuple[str, str], Edit] = {
    ("ClusterRole", "flannel"): lambda item: item["rules"].pop(),
    ("ConfigMap", "kube-flannel-cfg"): lambda item: item["data"].update({"net-conf.json": "{}"}),
    ("ConfigMap", "clusterctl-objects-kubernetes-quota"): lambda item: item["data"].update(objects="[]"),
    ("ConfigMap", "coredns"): lambda item: item["data"].update(Corefile=""),
    ("DaemonSet", "kube-flannel-ds"): lambda item: item["metadata"]["labels"].pop("clusterctl/part"),
    ("Deployment", "coredns"): lambda item: item["spec"]["template"]["spec"].update(topologySpreadConstraints=[]),
    ("Namespace", "kube-system"): lambda item: item["metadata"]["annotations"].clear(),
    ("ResourceQuota", "clusterctl"): lambda item: item["spec"]["hard"].update(pods="8"),
    ("StorageClass", "local"): lambda item: item.update(reclaimPolicy="Retain"),
}


@pytest.mark.parametrize("name", OF_OBJECTS, ids=map(" ".join, OF_OBJECTS))
def test_objects__that_were_edited__differ(name: tuple[str, str]) -> None:
    assert kubernetes._objects(edited(OBJECTS, *name, OF_OBJECTS[name])) != kubernetes._objects(OBJECTS)


@pytest.mark.parametrize("key", kubernetes._OF_SERVERS)
def test_objects__with_what_servers_write__are_the_same(key: str) -> None:
    text = edited(OBJECTS, "ClusterRole", "flannel", lambda item: item["metadata"].update({key: "another"}))
    assert kubernetes._objects(text) == kubernetes._objects(OBJECTS)


@pytest.mark.parametrize(
    "edit",
    [
        lambda item: item["status"].update(readyReplicas=1),
        lambda item: item["status"].pop("readyReplicas"),
        lambda item: item["metadata"].update(generation=99),
    ],
)
def test_objects__with_a_deployment_that_does_not_serve__are_refused(edit: Edit) -> None:
    with pytest.raises(UnhealthyError, match="Deployment"):
        kubernetes._objects(edited(OBJECTS, "Deployment", "coredns", edit))


def test_objects__of_others__do_not_matter() -> None:
    found = [*kubernetes._documents(OBJECTS)]
    metadata = {"name": "leader", "namespace": "kube-system"}
    found.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"at": "1"}})
    assert kubernetes._objects("\n".join(map(json.dumps, found))) == kubernetes._objects(OBJECTS)


@pytest.mark.parametrize("text", ["", "3", "{", '{"kind": "Node"}'])
def test_node__of_output_that_is_none__is_refused(text: str) -> None:
    with pytest.raises((ValueError, KeyError)):
        kubernetes._node(text)


def test_objects__of_a_person_with_the_label__do_not_matter() -> None:
    """Else a person could let each bootstrap play the head."""
    found = [*kubernetes._documents(OBJECTS)]
    metadata = {"name": "mine", "namespace": "vision", "labels": {"clusterctl/part": "kubernetes_quota"}}
    found.append({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": {"replicas": 1}})
    assert kubernetes._objects("\n".join(map(json.dumps, found))) == kubernetes._objects(OBJECTS)


def test_objects__of_parts__are_apart() -> None:
    """A run that changes a role's objects has a proof if no other ones have changed."""
    before, name = kubernetes._objects(OBJECTS), ("ResourceQuota", "clusterctl")
    after = kubernetes._objects(edited(OBJECTS, *name, OF_OBJECTS[name]))
    assert {part for part in before if before[part] != after[part]} == {"objects of kubernetes_quota"}
    assert {"objects of kubernetes_network", "objects of kubeadm"} <= before.keys()


def test_parts__of_all_roles__are_in_the_answer_of_a_node() -> None:
    roles = [path.name for path in paths.content().glob("roles/kubernetes_*")]
    parts = {f"objects of {name}": "a" * 64 for name in [*roles, "kubeadm"]}
    assert contact._DIGESTS(dict.fromkeys(("accounts", "node"), "b" * 64) | parts, "state")


def test_kinds__of_all_templates__are_asked_for() -> None:
    """Else an object that was edited would not be noticed. The plural of `kubectl get`."""
    found = [kind for path in TEMPLATES for kind in re.findall(r"^(?:- )?kind: (\w+)$", path.read_text(), re.MULTILINE)]
    kinds = {kind.lower() for kind in {*found} - {*kubernetes._BY_NAME}}
    irregular = {"priorityclass": "es", "runtimeclass": "es", "storageclass": "es"}
    plurals = {kind.removesuffix("y") + ("ies" if kind[-1] == "y" else irregular.get(kind, "s")) for kind in kinds}
    assert len(found) > 30
    assert {*kubernetes._BY_NAME} <= {*found}
    assert plurals == {*kubernetes._BY_LABEL}


def test_stubs__of_the_records__are_what_kubectl_gets() -> None:
    given = json.dumps([["ConfigMap", "Deployment"], [["v1", "Service", "kube-dns"]], "clusterctl-objects-"])
    known = [["v1", "ConfigMap", "kube-flannel", "cfg"], ["v1", "Namespace", "", "kube-flannel"]]
    records = [
        {"metadata": {"name": "clusterctl-objects-kubernetes-network"}, "data": {"objects": json.dumps(known)}},
        {"metadata": {"name": "coredns"}, "data": {"Corefile": ""}},
    ]
    done = subprocess.run(
        [sys.executable, "-c", kubernetes._STUBS, given],
        input=json.dumps({"items": records}),
        capture_output=True,
        text=True,
        check=True,
    )
    assert [
        (one["kind"], one["metadata"]["namespace"], one["metadata"]["name"]) for one in json.loads(done.stdout)["items"]
    ] == [
        ("Service", "kube-system", "kube-dns"),
        ("ConfigMap", "kube-flannel", "cfg"),
    ]
    assert "'" not in kubernetes._STUBS, "it stands between these"


def test_namespaces__of_pods_of_each_node__are_known() -> None:
    spaces = set()
    for path in TEMPLATES:
        text = path.read_text()
        if "kind: DaemonSet" in text:
            spaces |= {*re.findall(r"namespace: *([a-z-]+)", text)}
    assert spaces == {"csi-nfs", "kube-flannel", "kube-network-policies", "nvidia-device-plugin"}
    assert all(re.fullmatch(kubernetes._OF_NODES, space) for space in {*spaces, "kube-system"})
    assert not any(re.fullmatch(kubernetes._OF_NODES, space) for space in ("vision", "default", "kubeflows"))


def test_servers__fields__are_those_of_the_module() -> None:
    text = (paths.content() / "plugins/modules/kubernetes_objects.py").read_text()
    (of_servers,) = re.findall(r"^SERVERS = \((.*)\)$", text, re.MULTILINE)
    assert re.findall(r"\w+", of_servers) == [*kubernetes._OF_SERVERS]


def test_imported__images_of_archives__are_those_that_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = tmp_path / "images.json"
    record.write_text(
        json.dumps({"a.tar": {"sha256": "a", "images": ["docker.io/library/a:1", "docker.io/library/b:1"]}})
    )
    monkeypatch.setattr(kubernetes, "_IMAGES", str(record))
    assert kubernetes._imported("docker.io/library/a:1\nother:2\n") == {"images": ["docker.io/library/a:1"]}


def test_name__of_a_node__is_the_one_with_which_it_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = 'KUBELET_KUBEADM_ARGS="--hostname-override=gpu-7 --pod-infra-container-image=x"'
    for text, name in ((flags, "gpu-7"), ("", os.uname().nodename.lower())):
        monkeypatch.setattr(kubernetes, "read", lambda _path, text=text: text)
        assert kubernetes._node_name() == name
    monkeypatch.setattr(kubernetes, "read", lambda _path: "--hostname-override=a;id")
    with pytest.raises(ValueError, match="name"):
        kubernetes._node_name()
