"""What a bootstrap can change of a node in Kubernetes' API, and on a head of the cluster's objects: see state.py."""

import datetime
import json
import os
import re
from typing import Any, Dict, Iterator

from clusterctl.nodes.probe.common import Questions, UnhealthyError, read

_KUBELET, _ADMIN = "/etc/kubernetes/kubelet.conf", "/etc/kubernetes/admin.conf"
_IMAGES = "/var/lib/clusterctl/kubernetes-images.json"  # of module kubernetes_images
# The kinds of the parts' objects (templates of roles kubernetes_*). Users can have objects of the first kinds in their
# own namespaces, with the same label, so those of clusterctl are requested by the names in its records.
_BY_NAME = ("ConfigMap", "DaemonSet", "Deployment", "ServiceAccount")
_BY_LABEL = (
    "clusterroles",
    "clusterrolebindings",
    "csidrivers",
    "namespaces",
    "priorityclasses",
    "resourcequotas",
    "rolebindings",
    "roles",
    "runtimeclasses",
    "storageclasses",
    "validatingadmissionpolicies",
    "validatingadmissionpolicybindings",
)
_LABEL = "clusterctl/part"
_RECORD = "clusterctl-objects-"  # of a part: module kubernetes_objects
# What kubeadm makes, and roles change or need: version of the API, kind, name.
_OF_KUBEADM = [
    ["v1", "ConfigMap", "coredns"],
    ["v1", "ConfigMap", "kube-proxy"],
    ["v1", "ConfigMap", "kubeadm-config"],
    ["v1", "ConfigMap", "kubelet-config"],
    ["v1", "Service", "kube-dns"],
    ["apps/v1", "DaemonSet", "kube-proxy"],
    ["apps/v1", "Deployment", "coredns"],
]
# With it Kubernetes approves joins by itself: module kubernetes_control_plane deletes it.
_BINDING = "kubeadm:node-autoapprove-bootstrap"
# Namespaces with pods that each node has.
_OF_NODES = r"(kube|nvidia)(-.*)?|csi-nfs"
# Set by the server in any update: SERVERS of module kubernetes_objects.
_OF_SERVERS = ("creationTimestamp", "generation", "managedFields", "resourceVersion", "uid")
# A kubelet renews its lease each 10 s: https://kubernetes.io/docs/concepts/architecture/leases/.
_LEASE_S = 120
# A site's proxies do not reach the API (kubernetes/state.py of clusterctl).
_PREPARE = "unset http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY; export KUBERC=off; "
_PREPARE += 'kubectl() { command kubectl --cache-dir=/var/cache/clusterctl/kubectl --request-timeout=15s "$@"; }; '
# Prints the objects of the records on standard input, as kubectl needs them to get these.
_STUBS = """
import json, sys
kinds, more, prefix = json.loads(sys.argv[1])
found = [[version, kind, name, "kube-system"] for version, kind, name in more]
for item in json.load(sys.stdin)["items"]:
    if item["metadata"]["name"].startswith(prefix):
        known = json.loads(item["data"]["objects"])
        found += [[version, kind, name, place] for version, kind, place, name in known if kind in kinds]
stubs = [{"apiVersion": a, "kind": b, "metadata": {"name": c, "namespace": d}} for a, b, c, d in found]
print(json.dumps({"apiVersion": "v1", "kind": "List", "items": stubs}))
"""


def kubernetes_questions() -> Questions:
    """Return the questions about Kubernetes on this node, none without it. Raises ValueError.

    A kubelet may read its own node, its lease and the pods there:
    https://kubernetes.io/docs/reference/access-authn-authz/node/
    """
    found = []  # type: Questions
    if os.path.exists(_KUBELET):
        name, raw = _node_name(), "kubectl --kubeconfig=%s get --raw " % _KUBELET
        lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/" + name
        pods = "'/api/v1/pods?fieldSelector=spec.nodeName%%3D%s'" % name
        paths = ("/api/v1/nodes/" + name, lease, pods)
        command = _PREPARE + " && ".join(raw + path for path in paths)
        found.append(("its kubelet cannot read its node from Kubernetes' API", command, _node))
    if os.path.exists(_ADMIN):
        get = "kubectl --kubeconfig=%s get --output=json " % _ADMIN
        given = json.dumps([_BY_NAME, _OF_KUBEADM, _RECORD])
        commands = (
            "records=$(%s configmaps --namespace=kube-system)" % get,
            'printf %s "$records"',
            "printf %s \"$records\" | python3 -c '{}' '{}' | {} --filename=- --ignore-not-found".format(
                _STUBS, given, get
            ),
            get + "%s --all-namespaces --selector=%s" % (",".join(_BY_LABEL), _LABEL),
            get + "namespace/kube-system",
            get + "clusterrolebinding/%s --ignore-not-found" % _BINDING,
        )
        found.append(("Kubernetes does not answer", _PREPARE + " && ".join(commands), _objects))
    if os.path.exists(_IMAGES):
        found.append(("containerd does not answer", "ctr --namespace k8s.io images list --quiet", _imported))
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


def _node(printed: str) -> Dict[str, Any]:
    """Return what concerns clusterctl of a node, and which pods it has.

    Raises UnhealthyError if the node is cordoned or not ready, or a pod of a DaemonSet is not ready.
    """
    node, lease, *pods = _documents(printed)
    metadata, spec, status = node["metadata"], node["spec"], node["status"]
    if spec.get("unschedulable"):
        raise UnhealthyError("it is cordoned")
    if not _is_true(status, "Ready") or _age(lease["spec"]["renewTime"]) > _LEASE_S:
        raise UnhealthyError("Kubernetes reports it as not ready")
    own = [pod for pod in pods if re.match("(%s)$" % _OF_NODES, pod["metadata"]["namespace"])]
    there = []
    for pod in own:
        owners = [one["kind"] + " " + one["name"] for one in pod["metadata"].get("ownerReferences") or []]
        if any(owner.startswith(("DaemonSet ", "Node ")) for owner in owners):
            if not _is_true(pod["status"], "Ready"):
                raise UnhealthyError("a pod of a DaemonSet or of the control plane is not ready on it")
            there.append(pod["metadata"]["name"] if owners[0].startswith("Node ") else owners[0])
    annotations = (metadata.get("annotations") or {}).items()
    content = [
        metadata.get("labels"),
        {key: value for key, value in annotations if key.startswith("clusterctl/")},
        sorted([one["key"], one.get("value", ""), one["effect"]] for one in spec.get("taints") or []),
        {key: value for key, value in (status.get("allocatable") or {}).items() if "/" in key},
        sorted(there),
    ]
    return {"node": content}


def _age(renewed: str) -> float:
    """Return how many seconds ago a time of the API was, such as 2026-11-29T12:00:00.123456Z."""
    at = datetime.datetime.strptime(renewed[:19], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=datetime.timezone.utc)
    return (_now() - at).total_seconds()


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc)


def _objects(printed: str) -> Dict[str, Any]:
    """Return the objects of clusterctl by their part, and those of kubeadm.

    Only what the records name is of clusterctl: users can give the label to other objects. Raises UnhealthyError if a
    Deployment is not available.
    """
    objects = [*_documents(printed)]
    known = {}
    for item in objects:
        if item["kind"] == "ConfigMap" and item["metadata"]["name"].startswith(_RECORD):
            part = item["metadata"]["name"][len(_RECORD) :].replace("-", "_")
            known.update({tuple(one): part for one in json.loads(item["data"]["objects"])})
            known["v1", "ConfigMap", "kube-system", item["metadata"]["name"]] = part
    of_kubeadm = {(version, kind, "kube-system", name) for version, kind, name in _OF_KUBEADM}
    of_kubeadm |= {("v1", "Namespace", "", "kube-system")}
    found = {}  # type: Dict[str, Dict[str, Any]]
    for item in objects:
        metadata = item["metadata"]
        who = (item["apiVersion"], item["kind"], metadata.get("namespace", ""), metadata["name"])
        if who in known or who in of_kubeadm or metadata["name"] == _BINDING:
            if item["kind"] == "Deployment" and not _is_available(item):
                raise UnhealthyError("a Deployment of the cluster is not available")
            kept = {key: value for key, value in item.items() if key != "status"}
            kept["metadata"] = {key: value for key, value in metadata.items() if key not in _OF_SERVERS}
            found.setdefault("objects of " + known.get(who, "kubeadm"), {})[" ".join(who)] = kept
    return found


def _is_true(status: Dict[str, Any], condition: str) -> bool:
    return any(one["type"] == condition and one["status"] == "True" for one in status.get("conditions") or [])


def _is_available(item: Dict[str, Any]) -> bool:
    """Return whether the controller has seen a Deployment, and all its pods are of the last version and ready."""
    status, wanted = item.get("status") or {}, item["spec"].get("replicas", 1)
    counts = [status.get(key, 0) for key in ("replicas", "updatedReplicas", "readyReplicas")]
    return status.get("observedGeneration", 0) >= item["metadata"].get("generation", 0) and set(counts) == {wanted}


def _imported(printed: str) -> Dict[str, Any]:
    """Return those of the images of archives that containerd has."""
    known = json.loads(read(_IMAGES))
    wanted = {image for one in known.values() for image in one.get("images") or []}
    return {"images": sorted(wanted.intersection(printed.split()))}
