"""Kubernetes: what kubectl prints becomes nodes and pods, and what a drain, a removal and a head's outage need of them.

The outputs are from elsewhere (tests/samples/kubernetes/SOURCES); the tests change single fields of them.
"""

import copy
import json
import re
import time
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterctl.inventory.schedulers import KUBERNETES, SLURM
from clusterctl.kubernetes import client, members, objects, state
from clusterctl.kubernetes.client import KubernetesController
from clusterctl.kubernetes.members import Member, QuorumError
from clusterctl.kubernetes.objects import KubernetesNode, Pod
from clusterctl.run import scheduler
from clusterctl.slurm.client import SlurmController
from clusterctl.util.errors import HeadFailed
from tests.labs import REPOSITORY

SAMPLES = REPOSITORY / "tests/samples/kubernetes"
NODES = (SAMPLES / "nodes.json").read_text()
PODS = (SAMPLES / "pods.fields").read_text()
NODE = json.loads(NODES)["items"][0]
MIRROR, WAITING, REPLICA = json.loads((SAMPLES / "pods.json").read_text())["items"]


def listed(*items: dict[str, Any]) -> str:
    return json.dumps({"apiVersion": "v1", "items": items, "kind": "List"})


def printed(*pods: dict[str, Any]) -> str:
    """Return pods as `kubectl get pods` prints them with POD_OUTPUT."""

    def one(place: dict[str, Any], name: str) -> list[Any]:
        return [place[name]] if name in place else []

    def waiting(status: dict[str, Any], name: str) -> list[Any]:
        return [value for container in status.get(name, ()) for value in one(container["state"], "waiting")]

    lists = []
    for metadata, spec, status in ((pod["metadata"], pod["spec"], pod.get("status", {})) for pod in pods):
        before = spec.get("initContainers", ())
        lists += [
            *(one(metadata, name) for name in ("namespace", "name", "deletionTimestamp")),
            [owner for owner in metadata.get("ownerReferences", ()) if owner.get("controller") is True],
            one(metadata.get("annotations", {}), "kubernetes.io/config.mirror"),
            one(spec, "nodeName"),
            one(status, "phase"),
            [value for container in spec["containers"] for value in one(container.get("resources", {}), "requests")],
            [
                value
                for container in before
                for name in ("restartPolicy", "resources")
                for value in one(container, name)
            ],
            [condition for condition in status.get("conditions", ()) if condition["type"] == "PodScheduled"],
            *(waiting(status, name) for name in ("initContainerStatuses", "containerStatuses")),
        ]
    return "".join(f"{json.dumps(values, indent=4)}\n" for values in lists)


def changed(item: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return an object with other fields; `a__b` is the field b of a."""
    item = copy.deepcopy(item)
    for name, value in fields.items():
        *above, last = name.split("__")
        place = item
        for key in above:
            place = place.setdefault(key, {})
        place[last] = value
    return item


def node(name: str = "gpu01", **fields: Any) -> dict[str, Any]:
    return changed(NODE, metadata__name=name, metadata__labels={"clusterctl/gpu-model": "a100"}, **fields)


def pod(name: str = "train-0", on: str = "gpu01", kind: str = "ReplicaSet", **fields: Any) -> dict[str, Any]:
    owner = [{"kind": kind, "name": "train", "controller": True}] if kind else []
    return changed(REPLICA, metadata__name=name, metadata__ownerReferences=owner, spec__nodeName=on, **fields)


def wants(count: str, **more: Any) -> dict[str, Any]:
    return {
        "name": "c",
        "resources": {"limits": {"nvidia.com/gpu": count}, "requests": {"nvidia.com/gpu": count}},
        **more,
    }


# --- objects ----------------------------------------------------------------------------------------------------------


def test_nodes__as_kubectl_prints_them__are_read() -> None:
    found = objects.nodes(NODES)
    assert list(found) == ["controlplane"]
    one = found["controlplane"]
    assert (one.ready, one.cordoned, one.is_head, one.problems) == (True, False, True, ())
    assert (one.version, one.machine_id) == ("v1.30.0", "2e42ca3b57184b5f966a8ae586de128a")
    assert (one.in_service, one.state, one.why()) == (True, ("ready",), [])


def test_pods__as_kubectl_prints_them__are_read() -> None:
    mirror, waiting, replica, large = objects.pods(PODS)
    assert (mirror.id, mirror.is_mirror, mirror.is_workload) == ("kube-system/kube-apiserver-minikube", True, False)
    assert (waiting.node, waiting.phase, waiting.reason) == (
        "",
        "Pending",
        "0/5 nodes are available: 5 Insufficient memory.",
    )
    assert (waiting.is_stuck, waiting.is_workload) == (True, True)
    assert replica.controller == "ReplicaSet/gradle-deployment-5654f49c5f"
    assert (replica.phase, replica.reason, replica.is_stuck) == ("Running", "", False)
    assert str(replica).startswith("pod default/gradle-deployment-5654f49c5f-dw8zl (ReplicaSet/gradle-deployment")
    assert (large.controller, large.is_ending, large.is_mirror) == ("Job/train", True, False)
    assert (large.gpus, large.reason) == ({"nvidia.com/gpu": 4}, 'CrashLoopBackOff: back-off } ] "1m"')


@pytest.mark.proves("status", "The controller gets only the fields of pods that it reads, however large they are.")
def test_pods__with_large_environments__are_small_in_the_output() -> None:
    """The last pod of the sample has 9 kB of environment, and an annotation with all that JSON has to escape."""
    assert len(PODS) < 3000
    assert "env" not in objects.POD_OUTPUT
    assert PODS.startswith(printed(MIRROR, WAITING, REPLICA)), "the other tests print pods as kubectl does"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("[]", "got 1 lists, expected 12 for each pod"),
        ('{"items": []}', "got no lists of fields"),
        ("[] x []", "got no lists of fields"),
        ("[" * 2, "Expecting value"),
    ],
)
def test_pods__in_another_form__are_refused(answer: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        objects.pods(answer)
    assert objects.pods("") == []


@pytest.mark.proves("status", "Pods of DaemonSets, mirror pods and finished pods are not workloads.")
@pytest.mark.parametrize(
    ("fields", "is_workload"),
    [({}, True), ({"kind": ""}, True), ({"kind": "Job"}, True), ({"kind": "DaemonSet"}, False)],
)
def test_pod__by_its_controller__is_a_workload(fields: dict[str, str], is_workload: bool) -> None:
    assert objects.pods(printed(pod(**fields)))[0].is_workload is is_workload
    for phase in ("Succeeded", "Failed"):
        assert not objects.pods(printed(pod(**fields, status__phase=phase)))[0].is_workload


@pytest.mark.proves("status", "`status` distinguishes cordons by an operator and by clusterctl.")
@pytest.mark.parametrize(
    ("cordoned", "causes", "expected"),
    [
        (False, {}, []),
        (True, {}, ["cordoned by an operator"]),
        (True, {"health": "XID 79"}, ["drained by health: XID 79"]),
        (True, {"upgrade": "x", "health": "y"}, ["drained by health: y", "drained by upgrade: x"]),
        (False, {"health": "y"}, ["not cordoned, though the drain ledger has health: y"]),
    ],
)
def test_node__that_is_cordoned__says_by_whom(cordoned: bool, causes: dict[str, str], expected: list[str]) -> None:
    annotations = {f"clusterctl/drain.{cause}": reason for cause, reason in causes.items()} | {"clusterctl/known": ""}
    one = node(spec__unschedulable=cordoned, metadata__annotations=annotations)
    found = objects.nodes(listed(one))["gpu01"]
    assert (found.causes, found.why(), found.in_service) == (causes, expected, not cordoned)


@pytest.mark.parametrize(
    ("kind", "status", "message", "ready", "expected"),
    [
        ("Ready", "Unknown", "Kubelet stopped posting node status.", False, "not ready: Kubelet stopped posting node"),
        ("Ready", "False", "container runtime is down", False, "not ready: container runtime is down"),
        ("DiskPressure", "True", "kubelet has disk pressure", True, "DiskPressure: kubelet has disk pressure"),
    ],
)
def test_node__with_a_bad_condition__says_which(
    kind: str, status: str, message: str, ready: bool, expected: str
) -> None:
    conditions = [
        {**one, "status": status, "message": message} if one["type"] == kind else one
        for one in NODE["status"]["conditions"]
    ]
    found = objects.nodes(listed(node(status__conditions=conditions)))["gpu01"]
    assert (found.ready, len(found.problems)) == (ready, 1)
    assert found.why()[0].startswith(expected)


def test_node__that_never_reported__is_not_ready() -> None:
    found = objects.nodes(listed(node(status={})))["gpu01"]
    assert (found.ready, found.why()) == (False, ["not ready: the kubelet has not reported yet"])


REQUESTS: list[tuple[list[Any], list[Any], int]] = [
    ([wants("2")], [], 2),
    ([wants("1"), wants("1")], [], 2),
    ([wants("1")], [wants("4"), wants("2")], 4),
    ([wants("1")], [wants("2", restartPolicy="Always"), wants("1")], 3),
    ([wants("1")], [wants("1", restartPolicy="Always"), wants("3")], 4),
    ([{"name": "c", "resources": {}}], [], 0),
]
"""Containers, init containers, and the GPUs that the pod needs at once. The metrics count the same."""


@pytest.mark.proves("status", "GPUs of pods are counted as the scheduler counts them.")
@pytest.mark.parametrize(("containers", "before", "expected"), REQUESTS)
def test_gpus__of_a_pod__are_what_its_containers_need_at_once(
    containers: list[Any], before: list[Any], expected: int
) -> None:
    found = objects.pods(printed(pod(spec__containers=containers, spec__initContainers=before)))[0]
    assert found.gpus.get("nvidia.com/gpu", 0) == expected


def test_gpus__of_nodes__are_counted_by_type() -> None:
    sizes = {"nvidia.com/gpu": "4", "nvidia.com/mig-1g.10gb": "7", "nvidia.com/gpu.shared": "0", "cpu": "36"}
    healthy = {**sizes, "nvidia.com/gpu": "3"}
    pods = printed(
        pod("a", spec__containers=[wants("2")]),
        pod("b", spec__containers=[wants("1")], status__phase="Succeeded"),
        pod("c", "", spec__containers=[wants("8")], status__phase="Pending"),
    )
    one = node(status__capacity=sizes, status__allocatable=healthy)
    found = state.state(listed(one), pods).nodes["gpu01"]
    assert found.gpus == {"a100": 4, "a100 mig-1g.10gb": 7}
    assert (found.allocated, found.unhealthy) == ({"a100": 2}, {"a100": 1})


@pytest.mark.parametrize(
    ("resource", "model", "expected"),
    [
        ("nvidia.com/gpu", "a100", "a100"),
        ("nvidia.com/gpu", "", "gpu"),
        ("nvidia.com/gpu.shared", "t4", "t4 shared"),
        ("nvidia.com/mig-3g.40gb", "h100", "h100 mig-3g.40gb"),
    ],
)
def test_type__of_a_resource__is_the_model(resource: str, model: str, expected: str) -> None:
    assert objects.type_of(resource, model) == expected


@pytest.mark.proves("status", "`status` shows the pods that wait, and why.")
def test_state__of_pods_that_wait__has_the_reasons() -> None:
    def waits(reason: str, message: str = "") -> list[dict[str, Any]]:
        return [{"state": {"waiting": {"reason": reason, "message": message}}}]

    found = state.state(
        NODES,
        printed(
            changed(WAITING, metadata__name="a"),
            changed(WAITING, metadata__name="b"),
            pod("c", status__phase="Pending", status__containerStatuses=waits("ImagePullBackOff", "no such image")),
            pod("d", status__phase="Pending", status__containerStatuses=waits("ContainerCreating")),
            pod("e", status__containerStatuses=waits("CrashLoopBackOff")),
            MIRROR,
        ),
    )
    assert found.pods == {"Pending": 4, "Running": 1}, "without the mirror pod"
    assert state.reasons(found.waiting) == {
        "0/5 nodes are available: 5 Insufficient memory.": ["default/a", "default/b"],
        "ImagePullBackOff: no such image": ["default/c"],
        "CrashLoopBackOff": ["default/e"],
    }


def test_reason__of_the_scheduler__is_without_its_preemption() -> None:
    said = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu. preemption: 0/3 nodes are available: 3 No victims."
    conditions = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}]
    found = objects.pods(printed(changed(WAITING, status__conditions=conditions)))[0]
    assert found.reason == "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["metadata", "name", "spec", "status", "conditions", "capacity", "labels", "annotations"])
            | st.sampled_from(
                ["type", "containers", "initContainers", "resources", "requests", "ownerReferences", "x"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@pytest.mark.proves("untrusted", "No output of kubectl ends `status`.")
@settings(max_examples=150, deadline=None)
@given(_JSON, st.lists(st.lists(_JSON, max_size=3), min_size=12, max_size=12))
def test_objects__of_any_shape__are_read_or_left_out(item: Any, fields: list[list[Any]]) -> None:
    for found in objects.nodes(listed(item)).values():
        assert all(line.isprintable() for line in found.why())
    for one in objects.pods("".join(map(json.dumps, fields))):
        assert str(one).isprintable()


@pytest.mark.parametrize("answer", ["", "{", "[]", "null", '{"items": 3}'])
def test_objects__that_are_no_list__are_refused(answer: str) -> None:
    with pytest.raises(ValueError, match=r"list of objects|Expecting"):
        objects.nodes(answer)


def test_text__with_control_characters__is_printable() -> None:
    found = objects.nodes(
        listed(node(metadata__annotations={"clusterctl/drain.a\x1b[2J": "b\nc"}, spec__unschedulable=True))
    )
    assert found["gpu01"].why() == ["drained by a[2J: bc"]


# --- the session ------------------------------------------------------------------------------------------------------


class Session:
    """A head's answers by the first words of a command; keeps what was run."""

    def __init__(self, **answers: Any) -> None:
        self.answers, self.ran, self.bodies, self.limits = answers, list[str](), list[Any](), list[float]()
        self.unset = list[set[str]]()

    def run(
        self, argv: tuple[str, ...], stdin: str = "", timeout: float = 0, unset: Sequence[str] = (), **_: Any
    ) -> tuple[int, str, str]:
        self.limits.append(timeout)
        self.unset.append({*unset})
        words = [word for word in argv if word not in state.KUBECTL]
        line = " ".join(words)
        self.ran.append(line)
        self.bodies += [json.loads(stdin)] if stdin else []
        for name, answer in self.answers.items():
            if line.replace("-", "_").replace(" ", "_").find(name) >= 0:
                found = answer(line) if callable(answer) else answer
                return found if isinstance(found, tuple) else (0, found, "")
        return 0, "", ""

    def close(self) -> None:
        pass


def controller(**answers: Any) -> tuple[KubernetesController, Session]:
    session = Session(**answers)
    return KubernetesController(session, "k1"), session  # type: ignore[arg-type]


def test_ask__of_a_head__is_its_state_or_the_problem() -> None:
    good = Session(get_nodes=NODES, get_pods=PODS)
    assert list(state.ask_kubernetes(good).nodes) == ["controlplane"]  # type: ignore[arg-type]
    refused = (
        'E1126 memcache.go:265] "Unhandled Error" err="couldn\'t get current server API group list"\n'
        "The connection to the server 10.0.0.1:6443 was refused - did you specify the right host or port?\n"
    )
    for answer, expected in [
        ((1, "", refused), "The connection to the server 10.0.0.1:6443 was refused - did you specify"),
        ((127, "", "sh: kubectl: not found"), "Kubernetes is not installed on the head yet"),
        ((1, "", "sudo: kubectl: command not found"), "Kubernetes is not installed on the head yet"),
        ((1, "", ""), "kubectl failed with exit code 1"),
        ((0, "no JSON", ""), "kubectl printed invalid output"),
    ]:
        found = state.ask_kubernetes(Session(get_nodes=answer))  # type: ignore[arg-type]
        assert found.problem.startswith(expected)


@pytest.mark.proves("kubernetes", "kubectl over SSH does not use the proxies of the site.")
def test_commands__on_a_head__have_no_proxies() -> None:
    head, session = controller(get_nodes=NODES)
    head.nodes()
    head.drain("verify", ["gpu01"], "a reason")
    status = Session(get_nodes=NODES, get_pods=PODS)
    state.ask_kubernetes(status)  # type: ignore[arg-type]
    commands = [*session.unset, *status.unset]
    assert len(commands) == 4
    for unset in commands:
        assert {"http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"} <= unset


def test_workloads__of_nodes__are_their_pods() -> None:
    pods = printed(pod("a"), pod("b", kind="DaemonSet"), pod("c", on="gpu02"), MIRROR)
    head, session = controller(get_pods=pods)
    assert [one.id for one in head.workloads(["gpu01"])] == ["default/a"]
    assert session.ran == [
        f"get pods --all-namespaces --output={objects.POD_OUTPUT} --field-selector=spec.nodeName=gpu01"
    ]
    head, session = controller(get_pods=pods)
    many = [f"gpu{n:02}" for n in range(1, 30)]
    assert [one.id for one in head.workloads(many)] == ["default/a", "default/c"]
    assert session.ran == [f"get pods --all-namespaces --output={objects.POD_OUTPUT}"], "one request for many nodes"


@pytest.mark.proves("remove-node", "Pods are evicted by the API, which respects disruption budgets.")
@pytest.mark.proves("remove-node", "A pod that no controller starts again is waited for, not evicted.")
def test_wait__for_pods__evicts_those_with_a_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = [
        printed(pod("a"), pod("b"), pod("alone", kind="")),
        printed(pod("b"), pod("alone", kind="")),
        printed(pod("alone", kind="")),
        printed(),
    ]
    monkeypatch.setattr(client, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    budget = "Error from server (TooManyRequests): Cannot evict pod as it would violate the pod's disruption budget."
    refusals = [(1, "", budget), (0, "", "")]
    head, session = controller(
        get_pods=lambda line: rounds.pop(0),
        create=lambda line: refusals.pop(0) if "pods/b/" in line else (0, "", ""),
    )
    said: list[str] = []
    assert head.wait_until_empty(["gpu01"], said.append, None) == []
    evictions = [line.partition("--raw=")[2] for line in session.ran if "--raw" in line]
    assert evictions == [f"/api/v1/namespaces/default/pods/{name}/eviction" for name in ("a", "b", "b")]
    assert session.bodies[0] == {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": "a", "namespace": "default"},
    }
    assert "a disruption budget holds 1 pod" in said[0]
    assert "1 pod without a controller, not evicted" in said[0]
    assert said[0].startswith("  waiting for 3 pods to end: pod default/a (ReplicaSet/train, running on gpu01), ...")


def test_wait__that_times_out__returns_the_pods_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    budget = "Error from server (TooManyRequests): Cannot evict pod as it would violate the pod's disruption budget."
    head, session = controller(get_pods=printed(pod("a")), create=(1, "", budget))
    (left,) = head.wait_until_empty(["gpu01"], lambda text: None, 0.05)
    assert "Cannot evict pod as it would violate the pod's disruption budget" in str(left)
    head, session = controller(get_pods=printed(pod("a")))
    assert [one.id for one in head.wait_until_empty(["gpu01"], lambda text: None, 0)] == ["default/a"]
    assert not any("--raw" in line for line in session.ran), "nothing is evicted if nothing may be waited for"


def test_eviction__that_the_server_delays__is_retried_later() -> None:
    head, _ = controller(get_pods=printed(pod("a")), timeout_10_create=(124, "", ""))
    (left,) = head.doomed(["gpu01"])
    assert left.reason == "the API server delays its eviction"


def test_eviction__of_a_pod_that_is_gone_or_ending__is_no_problem() -> None:
    gone = (1, "", 'Error from server (NotFound): pods "a" not found')
    ending = pod("b", metadata__deletionTimestamp="2026-11-25T21:00:00Z")
    head, session = controller(get_pods=printed(pod("a"), ending), create=gone)
    assert head.doomed(["gpu01"]) == []
    assert [line.partition("--raw=")[2] for line in session.ran if "--raw" in line] == [
        "/api/v1/namespaces/default/pods/a/eviction"
    ]


@pytest.mark.proves("remove-node", "`--force` kills only pods that an eviction leaves, after they were listed.")
def test_force__of_a_drain__is_for_pods_that_eviction_leaves() -> None:
    budget = "Error from server (TooManyRequests): Cannot evict pod as it would violate the pod's disruption budget."
    pods = printed(pod("a"), pod("held"), pod("alone", kind=""))
    head, session = controller(
        get_pods=pods, create=lambda line: (1, "", budget) if "pods/held/" in line else (0, "", "")
    )
    assert [one.id for one in head.doomed(["gpu01"])] == ["default/held", "default/alone"]
    head.cancel(["default/held", "default/alone", "other/x"])
    assert session.ran[-2:] == [
        "delete pods --namespace=default --wait=false --ignore-not-found held alone",
        "delete pods --namespace=other --wait=false --ignore-not-found x",
    ]


def test_drain_and_resume__of_nodes__use_the_ledger() -> None:
    ledger = listed(
        node("gpu01", metadata__annotations={"clusterctl/drain.upgrade": "x"}, spec__unschedulable=True),
        node("gpu02", spec__unschedulable=True),
    )
    head, session = controller(get_nodes=ledger)
    head.drain("upgrade", ["gpu01", "gpu02"], "under way")
    head.resume("upgrade", ["gpu01"])
    assert session.ran == [
        "/usr/local/sbin/kubernetes-drain upgrade --out gpu01,gpu02 --reason under way",
        "/usr/local/sbin/kubernetes-drain upgrade --in gpu01",
    ]
    assert head.drained_for("upgrade") == ["gpu01"]
    assert head.drained() == ["gpu01", "gpu02"]
    assert [head.hears_from(name) for name in ("gpu01", "gpu09")] == [True, False]


@pytest.mark.proves("kubernetes", "The time limit of a drain grows with its number of nodes.")
def test_limit__of_a_drain__grows_with_the_nodes() -> None:
    head, session = controller(get_nodes=HEADS)
    names = [f"gpu{number}" for number in range(50)]
    head.drain("upgrade", names, "under way")
    head.resume("upgrade", names[:1])
    head.forget(names[:10])
    limits = [limit for line, limit in zip(session.ran, session.limits, strict=True) if line.startswith("/usr")]
    assert limits == [280, 35, 80]
    head.nodes()
    assert session.limits[-1] == 30


def test_drained__without_an_answer__is_none() -> None:
    head, _ = controller(get_nodes=(1, "", "The connection was refused"))
    assert head.drained() == []
    with pytest.raises(HeadFailed, match="k1: kubectl failed: The connection was refused"):
        head.drained_for("upgrade")


def test_mark_down__of_nodes__taints_those_that_exist() -> None:
    head, session = controller(taint_nodes__overwrite_gpu02=(1, "", 'Error from server (NotFound): nodes "gpu02"'))
    head.mark_down(["gpu01", "gpu02"], "x")
    taint = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
    assert session.ran == [f"taint nodes --overwrite {name} {taint}" for name in ("gpu01", "gpu02")]
    head, _ = controller(taint=(1, "", "The connection was refused"))
    with pytest.raises(HeadFailed, match="kubectl taint failed: The connection was refused"):
        head.mark_down(["gpu01"], "x")


def test_machine__of_a_node__differs_after_a_replacement() -> None:
    head, _ = controller(get_nodes=NODES)
    assert head.is_other_machine("controlplane", "0" * 32)
    assert not head.is_other_machine("controlplane", "2e42ca3b57184b5f966a8ae586de128a")
    assert not head.is_other_machine("gpu09", "0" * 32), "there is no such node"


# --- heads ------------------------------------------------------------------------------------------------------------

# As `kubernetes-etcd` of role kubernetes_head prints it.
ETCD = json.dumps(
    [
        {"id": "1", "name": "k1", "learner": False, "clients": [], "peers": [], "healthy": True, "bytes": 20480},
        {"id": "2", "name": "k2", "learner": False, "clients": [], "peers": [], "healthy": True, "bytes": 20480},
        {"id": "3", "name": "k3", "learner": False, "clients": [], "peers": [], "healthy": False, "bytes": 0},
        {"id": "4", "name": "", "learner": True, "clients": [], "peers": [], "healthy": False, "bytes": 0},
    ]
)
HEADS = listed(*(changed(NODE, metadata__name=name) for name in ("k1", "k2", "k3")), node("gpu01"))


def of(*healthy: bool) -> list[Member]:
    return [Member(f"k{number}", one) for number, one in enumerate(healthy, 1)]


def test_members__as_the_program_prints_them__are_the_voters() -> None:
    assert members.parse(ETCD) == of(True, True, False)
    for bad in ("", "{}", '[{"name": 3}]', "[null]"):
        with pytest.raises(ValueError, match=r"members|name|the document|Expecting"):
            members.parse(bad)


@pytest.mark.proves("remove-node", "A head is not removed if etcd would lose its quorum.")
@pytest.mark.parametrize(
    ("healthy", "names", "expected"),
    [
        ((True, True, True), ["k3"], ["k3"]),
        ((True, True, True), ["k2", "k3"], ["k2", "k3"]),
        ((True, True, False), ["k3"], ["k3"]),
        ((True, True, False), ["k2", "k3"], ["k3", "k2"]),
        ((True, True, False), ["k2"], "without k2, etcd would lose its quorum: 1 of 2 members would respond"),
        ((True, False, False), ["k2", "k3"], "etcd has no quorum: 1 of 3 members respond"),
        ((True,), ["k1"], "k1 has the last member of etcd"),
        ((True, True, True, True, False), ["k1", "k2"], ["k1", "k2"]),
    ],
)
def test_removal__of_heads__keeps_the_quorum_at_each_step(
    healthy: tuple[bool, ...], names: list[str], expected: list[str] | str
) -> None:
    if isinstance(expected, list):
        assert members.removal_order(of(*healthy), names) == expected
        return
    with pytest.raises(QuorumError) as caught:
        members.removal_order(of(*healthy), names)
    assert str(caught.value) == expected


@pytest.mark.parametrize(
    ("healthy", "down", "problem"),
    [
        ((True, True, True), ["k1"], ""),
        ((True, True, False), ["k3"], ""),
        ((True, True, False), ["k1"], "without k1, etcd would lose its quorum: 1 of 3 members; k3 is not healthy"),
        ((True, True, True), ["k1", "k2"], "without k1, k2, etcd would lose its quorum: 1 of 3 members"),
    ],
)
def test_outage__of_heads__must_leave_a_quorum(healthy: tuple[bool, ...], down: list[str], problem: str) -> None:
    assert members.quorum_problem(of(*healthy), down) == problem


def test_head__of_several__is_removed_through_the_program() -> None:
    head, session = controller(get_nodes=HEADS, kubernetes_etcd=lambda line: "" if "--remove" in line else ETCD)
    assert head.removal_problem(["k3", "gpu01"]) == ""
    assert head.removal_problem(["k2"]) == "without k2, etcd would lose its quorum: 1 of 2 members would respond"
    with pytest.raises(HeadFailed, match="k1: without k2, etcd would lose its quorum"):
        head.leave(["k2"])
    session.ran.clear()
    head.forget(["k3", "gpu01"])
    assert [line for line in session.ran if line.startswith("/usr")] == [
        "/usr/local/sbin/kubernetes-etcd",
        "/usr/local/sbin/kubernetes-etcd --remove k3",
        "/usr/local/sbin/kubernetes-drain --forget k3,gpu01",
    ]


def test_worker__that_is_removed__needs_no_etcd() -> None:
    head, session = controller(get_nodes=HEADS)
    head.forget(["gpu01"])
    assert not any("etcd" in line for line in session.ran)
    head, session = controller(test=(1, "", ""))
    head.forget(["gpu01"])
    assert session.ran == ["test -e /etc/kubernetes/clusterctl/complete"], "nothing was set up"


def test_spare__for_a_single_head__is_not_needed() -> None:
    head, _ = controller(kubernetes_etcd=json.dumps([{"name": "k1", "healthy": True, "learner": False}]))
    head.require_spare(["k1"])
    head, _ = controller(kubernetes_etcd=ETCD)
    head.require_spare(["k3"])
    with pytest.raises(HeadFailed, match="without k2, etcd would lose its quorum"):
        head.require_spare(["k2"])


def test_head__that_was_changed__is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    answers = [(1, "", "The connection was refused"), (0, HEADS, ""), (0, HEADS, "")]
    states = [json.dumps([{"name": "k1", "healthy": False, "learner": False}]), ETCD]
    head, _ = controller(get_nodes=lambda line: answers.pop(0), kubernetes_etcd=lambda line: states.pop(0))
    assert head.wait_for_head("k1", 60) == ""
    head, _ = controller(get_nodes=HEADS, kubernetes_etcd=ETCD)
    assert head.wait_for_head("k3", 0) == "its member of etcd is not healthy"
    assert head.wait_for_head("k9", 0) == "its node is not ready"


# --- the commands that an operator types ------------------------------------------------------------------------------


def test_commands__of_an_operator__are_those_of_the_scheduler() -> None:
    kind = scheduler.of(KUBERNETES)
    assert kind is KubernetesController
    assert scheduler.of(SLURM) is SlurmController
    assert kind.drain_command("upgrade", ["gpu01"], "a b") == (
        "sudo /usr/local/sbin/kubernetes-drain upgrade --out gpu01 --reason 'a b'"
    )
    assert kind.resume_command("upgrade", ["gpu01", "gpu02"]) == (
        "sudo /usr/local/sbin/kubernetes-drain upgrade --in gpu01,gpu02"
    )
    assert kind.wait_step(["gpu01"]).startswith(": sudo kubectl --kubeconfig=/etc/kubernetes/admin.conf")
    assert kind.wait_step(["gpu01"]).endswith(" drain --ignore-daemonsets --delete-emptydir-data gpu01")
    assert kind.forget_command(["gpu01"]) == "sudo /usr/local/sbin/kubernetes-drain --forget gpu01"
    assert kind.mark_down_commands(["gpu01"], "x")[0].endswith(
        "taint nodes --overwrite gpu01 node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
    )


def test_node__as_a_dataclass__is_plain_data() -> None:
    assert KubernetesNode(True).state == ("ready",)
    assert KubernetesNode(False, cordoned=True).state == ("not ready", "cordoned")
    assert Pod("a", "b", "gpu01", "Running").as_dict() == {
        "pod": "a/b",
        "node": "gpu01",
        "phase": "Running",
        "controller": "",
    }
