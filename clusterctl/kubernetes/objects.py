"""Parse the nodes, and the fields of pods, that kubectl prints as JSON.

The texts in them are from nodes and users: they are cut, and control characters are removed. A missing or wrong field
is like an empty one, because the API adds and removes optional fields.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from clusterctl.util.text import printable

DRAIN = "clusterctl/drain."  # the prefix of an annotation of a node: each is a cause of its drain, with a reason
_MODEL = "clusterctl/gpu-model"  # a label of role kubernetes_worker, from the hardware record
_CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
_MIRROR = "kubernetes.io/config.mirror"  # the kubelet's copy of a static pod
_GPU = "nvidia.com/"
_REASON = 300  # characters; the scheduler's message has one part for each kind of node
_FINISHED = ("Succeeded", "Failed")
_STARTING = ("ContainerCreating", "PodInitializing")
_DAEMON_SET = "DaemonSet"
# The paths of what is needed of a pod. Its owner decides how large the rest is: environment, volumes, annotations.
_POD = {
    "namespace": ".metadata.namespace",
    "name": ".metadata.name",
    "deleted": ".metadata.deletionTimestamp",
    "owners": ".metadata.ownerReferences[?(@.controller==true)]",
    "mirror": rf".metadata.annotations.{_MIRROR.replace('.', chr(92) + '.')}",
    "node": ".spec.nodeName",
    "phase": ".status.phase",
    "requests": ".spec.containers[*].resources.requests",
    # The policies of those that have one, each before the resources, which all have.
    "init": ".spec.initContainers[*]['restartPolicy','resources']",
    "scheduled": '.status.conditions[?(@.type=="PodScheduled")]',
    "init_waiting": ".status.initContainerStatuses[*].state.waiting",
    "waiting": ".status.containerStatuses[*].state.waiting",
}
POD_OUTPUT = f"jsonpath-as-json={{range .items[*]}}{''.join(f'{{{path}}}' for path in _POD.values())}{{end}}"
"""The output of `kubectl get pods` that `pods` reads: for each path a list of JSON, empty for a missing field."""


@dataclass(frozen=True)
class KubernetesNode:
    """A node of the API server; GPUs by type."""

    ready: bool
    cordoned: bool = False
    is_head: bool = False
    problems: tuple[str, ...] = ()
    """Its conditions that are not good, each with its message."""
    causes: Mapping[str, str] = field(default_factory=dict)
    """The causes of its drain, each with its reason."""
    model: str = ""
    """The type of its GPUs."""
    gpus: Mapping[str, int] = field(default_factory=dict)
    allocated: Mapping[str, int] = field(default_factory=dict)
    unhealthy: Mapping[str, int] = field(default_factory=dict)
    """GPUs that the device plugin reports and does not allocate."""
    version: str = ""
    """The kubelet's."""
    machine_id: str = ""

    @property
    def state(self) -> tuple[str, ...]:
        """Its state in words, as kubectl prints it."""
        return ("ready" if self.ready else "not ready", *["cordoned"] * self.cordoned)

    @property
    def in_service(self) -> bool:
        return self.ready and not self.cordoned

    @property
    def is_healthy(self) -> bool:
        """Whether it is in service without a bad condition, such as a full disk."""
        return self.in_service and not self.problems

    def why(self) -> list[str]:
        """Return why the node is not in service or not healthy, one line for each cause."""
        causes = [f"{cause}: {reason}" for cause, reason in sorted(self.causes.items())]
        lines = list(self.problems)
        if self.cordoned and not causes:
            lines.append("cordoned by an operator")
        if not self.cordoned:
            return lines + [f"not cordoned, though the drain ledger has {cause}" for cause in causes]
        return lines + [f"drained by {cause}" for cause in causes]


@dataclass(frozen=True)
class Pod:
    """A pod. `controller` is the kind and name of what starts it again, empty if nothing does."""

    namespace: str
    name: str
    node: str = ""
    phase: str = ""
    controller: str = ""
    gpus: Mapping[str, int] = field(default_factory=dict)
    """The GPUs that it requests, by resource."""
    reason: str = ""
    """Why it waits."""
    is_mirror: bool = False
    is_ending: bool = False

    @property
    def id(self) -> str:
        """Its namespace and name."""
        return f"{self.namespace}/{self.name}"

    @property
    def is_evicted(self) -> bool:
        """Whether its controller starts another pod in its place. A Job's pod begins its work again."""
        return bool(self.controller)

    @property
    def is_finished(self) -> bool:
        return self.phase in _FINISHED

    @property
    def is_workload(self) -> bool:
        """Whether a drain waits for it: not for the kubelet's own pods, and not for those that each node has."""
        return not (self.is_finished or self.is_mirror or self.controller.startswith(f"{_DAEMON_SET}/"))

    @property
    def is_stuck(self) -> bool:
        """Whether it waits for more than its images and volumes."""
        return bool(self.reason) and self.reason not in _STARTING

    def as_dict(self) -> dict[str, str]:
        """Return the pod as a dictionary."""
        return {"pod": self.id, "node": self.node, "phase": self.phase, "controller": self.controller}

    def __str__(self) -> str:
        owner = self.controller or "no controller restarts it"
        why = f": {self.reason}" if self.reason else ""
        return f"pod {self.id} ({owner}, {self.phase.lower()} on {self.node or 'no node'}{why})"


def nodes(answer: str) -> dict[str, KubernetesNode]:
    """Return the nodes in the output of `kubectl get nodes --output=json`, without their allocated GPUs."""
    return {name: _node(item) for item in _items(answer) if (name := _text(item, "metadata", "name"))}


def pods(answer: str) -> list[Pod]:
    """Return the pods in the output of `kubectl get pods` with POD_OUTPUT. Raises ValueError if it is not that."""
    lists, names = _lists(answer), tuple(_POD)
    if len(lists) % len(names):
        raise ValueError(f"got {len(lists)} lists, expected {len(names)} for each pod")
    found = [dict(zip(names, lists[at:], strict=False)) for at in range(0, len(lists), len(names))]
    return [_pod(fields) for fields in found if _only(fields["name"])]


def allocated(pods_of_node: Sequence[Pod], model: str) -> dict[str, int]:
    """Return the GPUs by type that pods hold on their node, which has GPUs of this model."""
    counts: Counter[str] = Counter()
    for pod in pods_of_node:
        for resource, count in pod.gpus.items() if not pod.is_finished else ():
            counts[type_of(resource, model)] += count
    return dict(counts)


def type_of(resource: str, model: str) -> str:
    """Return the type of a GPU resource: its model, with the MIG profile or the kind of sharing if it has one."""
    name = resource.removeprefix(_GPU)
    return model or "gpu" if name == "gpu" else f"{model or 'gpu'} {name.removeprefix('gpu.')}"


# --- nodes ------------------------------------------------------------------------------------------------------------


def _node(item: Mapping[str, Any]) -> KubernetesNode:
    labels, annotations = (_map(item, "metadata", key) for key in ("labels", "annotations"))
    conditions = {_text(one, "type"): one for one in _list(item, "status", "conditions")}
    model = printable(str(labels.get(_MODEL, "")), 64)
    capacity, allocatable = (_gpus(_map(item, "status", key)) for key in ("capacity", "allocatable"))
    # A device that fails stays in the capacity and leaves the allocatable ones.
    unhealthy = {name: count - allocatable.get(name, 0) for name, count in capacity.items()}
    return KubernetesNode(
        ready=_text(conditions.get("Ready"), "status") == "True",
        cordoned=_value(item, "spec", "unschedulable") is True,
        is_head=_CONTROL_PLANE in labels,
        problems=tuple(_problems(conditions)),
        causes={
            printable(key.removeprefix(DRAIN), 64): printable(str(reason), 200)
            for key, reason in annotations.items()
            if isinstance(key, str) and key.startswith(DRAIN)
        },
        model=model,
        gpus={type_of(name, model): count for name, count in capacity.items()},
        unhealthy={type_of(name, model): count for name, count in unhealthy.items() if count > 0},
        version=_text(item, "status", "nodeInfo", "kubeletVersion"),
        machine_id=_text(item, "status", "nodeInfo", "machineID"),
    )


def _problems(conditions: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield each condition that is not good: Ready should be True, all others False."""
    if "Ready" not in conditions:
        yield "not ready: the kubelet has not reported yet"
    for kind, one in conditions.items():
        status = _text(one, "status")
        if kind == "Ready" and status != "True":
            yield f"not ready: {_text(one, 'message', limit=_REASON) or _text(one, 'reason')}"
        elif kind != "Ready" and status == "True":
            yield f"{kind}: {_text(one, 'message', limit=_REASON)}"


def _gpus(resources: Mapping[str, Any]) -> dict[str, int]:
    """Return the counts of NVIDIA's resources above 0; such a quantity is a whole number, for large ones `1k`."""
    found = {}
    for name, quantity in resources.items():
        number = re.fullmatch(r"(\d{1,6})(k?)", str(quantity))
        if isinstance(name, str) and name.startswith(_GPU) and number:
            found[printable(name, 64)] = int(number[1]) * (1000 if number[2] else 1)
    return {name: count for name, count in found.items() if count}


# --- pods -------------------------------------------------------------------------------------------------------------


def _pod(fields: Mapping[str, list[Any]]) -> Pod:
    # The owner of a mirror pod is its node.
    owner = next(iter(fields["owners"]), None)
    return Pod(
        namespace=_only(fields["namespace"]),
        name=_only(fields["name"], limit=253),
        node=_only(fields["node"]),
        phase=_only(fields["phase"]) or "Unknown",
        controller=f"{_text(owner, 'kind')}/{_text(owner, 'name', limit=253)}" if owner else "",
        gpus=_requested(fields["requests"], fields["init"]),
        reason=_reason(fields),
        is_mirror=bool(fields["mirror"]),
        is_ending=bool(_only(fields["deleted"])),
    )


def _requested(requests: Sequence[Any], init: Sequence[Any]) -> dict[str, int]:
    """Return the GPUs that a pod requests, as the scheduler counts them.

    The containers run at the same time; init containers run before them one by one, except restartable ones, which
    stay (AggregateContainerRequests in k8s.io/component-helpers/resource).
    """
    total: Counter[str] = Counter()
    peak: Counter[str] = Counter()
    staying: Counter[str] = Counter()
    for one in requests:
        total.update(_gpus(_map({"requests": one}, "requests")))
    policy: object = None
    for one in init:
        if not isinstance(one, Mapping):
            policy = one
            continue
        wanted = Counter(_gpus(_map(one, "requests")))
        if policy == "Always":
            total.update(wanted)
            staying.update(wanted)
            wanted = staying.copy()
        else:
            wanted.update(staying)
        peak |= wanted
        policy = None
    return dict(total | peak)


def _reason(fields: Mapping[str, list[Any]]) -> str:
    """Return why a pod waits: for a node, or a container of it that does not start."""
    for one in fields["scheduled"]:
        if _text(one, "status") == "False":
            message = _text(one, "message", limit=_REASON).partition(" preemption:")[0]
            return message or _text(one, "reason")
    for one in (*fields["init_waiting"], *fields["waiting"]):
        reason, message = (_text(one, part, limit=_REASON) for part in ("reason", "message"))
        if reason:
            return reason if reason in _STARTING or not message else f"{reason}: {message}"
    return ""


# --- fields -----------------------------------------------------------------------------------------------------------


def _items(answer: str) -> list[Mapping[str, Any]]:
    """Return the objects of a list. Raises ValueError if the output is not one."""
    data = json.loads(answer)
    if not isinstance(data, dict) or not isinstance(data.get("items"), list):
        raise ValueError("got no list of objects")
    return _list(data, "items")


def _lists(answer: str) -> list[list[Any]]:
    """Return the lists of JSON that follow each other in a text. Raises ValueError for another text."""
    decoder, found, text = json.JSONDecoder(), list[list[Any]](), answer.rstrip()
    at = 0
    while at < len(text):
        start = text.find("[", at)
        if start < 0 or text[at:start].strip():
            raise ValueError("got no lists of fields")
        one, at = decoder.raw_decode(text, start)
        found.append(one)
    return found


def _only(values: Sequence[Any], limit: int = 64) -> str:
    """Return the text of a field that has at most one value."""
    return printable(values[0], limit) if values and isinstance(values[0], str) else ""


def _value(data: object, *keys: str) -> Any:
    for key in keys:
        data = data.get(key) if isinstance(data, Mapping) else None
    return data


def _text(data: object, *keys: str, limit: int = 64) -> str:
    value = _value(data, *keys)
    return printable(value, limit) if isinstance(value, str) else ""


def _map(data: object, *keys: str) -> Mapping[str, Any]:
    value = _value(data, *keys)
    return value if isinstance(value, Mapping) else {}


def _list(data: object, *keys: str) -> list[Mapping[str, Any]]:
    value = _value(data, *keys)
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []
