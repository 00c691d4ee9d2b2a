"""What a bootstrap can change of a node in Kubernetes' API, and on a head of the cluster's objects: see state.py."""

import json
import os
import re
from typing import Any, Callable, Dict, Iterator, List, Tuple

from clusterctl.nodes.probe.common import read

_KUBELET, _ADMIN = "/etc/kubernetes/kubelet.conf", "/etc/kubernetes/admin.conf"
_IMAGES = "/var/lib/clusterctl/kubernetes-images.json"  # of module kubernetes_images
# What the objects of all parts are: templates of roles kubernetes_*.
_KINDS = (
    "clusterroles",
    "clusterrolebindings",
    "configmaps",
    "csidrivers",
    "daemonsets",
    "deployments",
    "namespaces",
    "priorityclasses",
    "resourcequotas",
    "rolebindings",
    "roles",
    "runtimeclasses",
    "serviceaccounts",
    "storageclasses",
    "validatingadmissionpolicies",
    "validatingadmissionpolicybindings",
)
# What kubeadm makes, and roles change.
_SYSTEM = (
    r"coredns|kube-proxy|kube-system|kubeadm-config|kubelet-config|kubeadm:node-autoapprove-bootstrap|clusterctl-.*"
)
# Namespaces of the pods that each node has.
_PARTS_OF_NODES = r"(kube|nvidia)(-.*)?|csi-nfs"
# Set by the server in any update: SERVERS of module kubernetes_objects.
_OF_SERVERS = ("creationTimestamp", "generation", "managedFields", "resourceVersion", "uid")
# A site's proxies do not reach the API (kubernetes/state.py of clusterctl).
_PREPARE = "unset http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY; export KUBERC=off; "
_PREPARE += 'kubectl() { command kubectl --cache-dir=/var/cache/clusterctl/kubectl --request-timeout=15s "$@"; }; '


Questions = Dict[str, Tuple[str, Callable[[str], Any]]]
"""By part of the state: the command to run, and what makes the part of its output, or raises ValueError."""


def kubernetes_questions() -> Questions:
    """Return the questions about Kubernetes on this node, none without it. Raises ValueError.

    A kubelet may read its own node and the pods there:
    https://kubernetes.io/docs/reference/access-authn-authz/node/
    """
    found = {}  # type: Questions
    if os.path.exists(_KUBELET):
        name = _node_name()
        raw = "kubectl --kubeconfig=%s get --raw " % _KUBELET
        pods = "'/api/v1/pods?fieldSelector=spec.nodeName%%3D%s'" % name
        found["node"] = (_PREPARE + raw + "/api/v1/nodes/%s && " % name + raw + pods, _node)
    if os.path.exists(_ADMIN):
        get = "kubectl --kubeconfig=%s get --output=json " % _ADMIN
        own = "%s --all-namespaces --selector=clusterctl/part" % ",".join(_KINDS)
        system = "configmaps,daemonsets,deployments --namespace=kube-system"
        one = "namespace/kube-system clusterrolebinding/kubeadm:node-autoapprove-bootstrap --ignore-not-found"
        commands = ("".join([get, what]) for what in (own, system, one))
        found["objects"] = (_PREPARE + " && ".join(commands), _objects)
    if os.path.exists(_IMAGES):
        found["images"] = ("ctr --namespace k8s.io images list --quiet", _imported)
    return found


def _node_name() -> str:
    """Return the name with which kubeadm has registered this node: it passes one that is not the host's."""
    given = re.search(r"--hostname-override=([^\s\"]+)", read("/var/lib/kubelet/kubeadm-flags.env"))
    name = given.group(1) if given else os.uname().nodename.lower()
    if not re.match(r"[a-z0-9.-]+$", name):
        raise ValueError("the name of the node is not valid")
    return name


def _documents(text: str) -> Iterator[Dict[str, Any]]:
    """Yield the objects in the JSON documents of a text, those of a list one by one. Raises ValueError."""
    decoder, rest = json.JSONDecoder(), text.strip()
    while rest:
        one, end = decoder.raw_decode(rest)
        if not isinstance(one, dict):
            raise ValueError("a document is no object")
        for item in one.get("items", [one]):
            yield item
        rest = rest[end:].strip()


def _node(printed: str) -> List[Any]:
    """Return what concerns clusterctl of a node, and which pods it has. Raises ValueError if it does not serve."""
    node, *pods = _documents(printed)
    metadata, spec, status = node["metadata"], node["spec"], node["status"]
    if not _is_true(status, "Ready") or spec.get("unschedulable"):
        raise ValueError("the node does not serve")
    own = [pod for pod in pods if re.match("(%s)$" % _PARTS_OF_NODES, pod["metadata"]["namespace"])]
    there = []
    for pod in own:
        owners = [one["kind"] + " " + one["name"] for one in pod["metadata"].get("ownerReferences") or []]
        if any(owner.startswith(("DaemonSet ", "Node ")) for owner in owners):
            if not _is_true(pod["status"], "Ready"):
                raise ValueError("a pod of the node does not serve")
            there.append(pod["metadata"]["name"] if owners[0].startswith("Node ") else owners[0])
    return [
        metadata.get("labels"),
        {key: value for key, value in (metadata.get("annotations") or {}).items() if key.startswith("clusterctl/")},
        sorted([one["key"], one.get("value", ""), one["effect"]] for one in spec.get("taints") or []),
        {key: value for key, value in (status.get("allocatable") or {}).items() if "/" in key},
        sorted(there),
    ]


def _objects(printed: str) -> List[Any]:
    """Return the objects of clusterctl and kubeadm. Raises ValueError if a Deployment does not serve."""
    found = {}
    for item in _documents(printed):
        metadata = item["metadata"]
        if "clusterctl/part" in (metadata.get("labels") or {}) or re.match("(%s)$" % _SYSTEM, metadata["name"]):
            if item["kind"] == "Deployment" and not _is_available(item):
                raise ValueError("a deployment does not serve")
            kept = {key: value for key, value in item.items() if key != "status"}
            kept["metadata"] = {key: value for key, value in metadata.items() if key not in _OF_SERVERS}
            found[" ".join([item["kind"], metadata.get("namespace", ""), metadata["name"]])] = kept
    return sorted(found.items())


def _is_true(status: Dict[str, Any], condition: str) -> bool:
    return any(one["type"] == condition and one["status"] == "True" for one in status.get("conditions") or [])


def _is_available(item: Dict[str, Any]) -> bool:
    """Return whether the controller has seen a Deployment, and all its pods are of the last version and ready."""
    status, wanted = item.get("status") or {}, item["spec"].get("replicas", 1)
    counts = [status.get(key, 0) for key in ("replicas", "updatedReplicas", "readyReplicas")]
    return status.get("observedGeneration", 0) >= item["metadata"].get("generation", 0) and set(counts) == {wanted}


def _imported(printed: str) -> List[str]:
    """Return those of the images of archives that containerd has."""
    known = json.loads(read(_IMAGES))
    wanted = {image for one in known.values() for image in one.get("images") or []}
    return sorted(wanted.intersection(printed.split()))
