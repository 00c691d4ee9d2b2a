"""The module that converges Kubernetes objects, with an API of ours that keeps the rules of the real one."""

import copy
import itertools
import json
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail
from ansible.module_utils import kubectl as module_utils

import tests.unit.test_node_state  # noqa: F401 - lets the modules of the nodes be found
from tests.unit.test_role_plugins import plugin

MODULE = plugin("modules/kubernetes_objects")
ACTION = plugin("action/kubernetes_objects")

Data = dict[str, Any]
BUILT_IN = {"ConfigMap", "CustomResourceDefinition", "DaemonSet", "Deployment", "Namespace", "Secret"}
CLUSTER = {"CustomResourceDefinition", "Namespace", "Node"}


def an(kind: str, name: str, namespace: str = "", version: str = "v1", **more: Any) -> Data:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **more}


class Api:
    """A cluster's objects, and what kubectl answers about them."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, ...], Data] = {}
        self.calls: list[tuple[str, ...]] = []
        self.versions = itertools.count(1)
        for name in ("kube-system", "default"):
            self.add(an("Namespace", name))

    def add(self, item: Data) -> Data:
        item = copy.deepcopy(item)
        item["metadata"] |= {"resourceVersion": str(next(self.versions)), "uid": "x", "managedFields": []}
        self.objects[MODULE.identity(item)] = item
        return item

    def names(self) -> set[str]:
        return {f"{kind} {name}" for _, kind, namespace, name in self.objects if namespace != "kube-system"}

    def known(self, item: Data) -> bool:
        crds = [found for (_, kind, *_), found in self.objects.items() if kind == "CustomResourceDefinition"]
        defined = {(one["spec"]["group"], one["spec"]["names"]["kind"]) for one in crds}
        return item["kind"] in BUILT_IN or (item["apiVersion"].partition("/")[0], item["kind"]) in defined

    def placed(self, item: Data) -> Data:
        item = copy.deepcopy(item)
        if item["kind"] not in CLUSTER:
            item["metadata"].setdefault("namespace", "default")
        return item

    def kubectl(self, *argv: str, stdin: Any = None, check: bool = True, seconds: float = 0) -> tuple[int, str, str]:
        self.calls.append(argv)
        try:
            found = self.answer(argv, json.loads(json.dumps(stdin)))
        except module_utils.NodeError as error:
            if check:
                raise
            return 1, "", str(error)
        if isinstance(found, str):
            return 0, found, ""
        return 0, "" if not found else json.dumps(found[0] if len(found) == 1 else module_utils.as_list(found)), ""

    def answer(self, argv: tuple[str, ...], given: Any) -> Any:
        items = [] if given is None else given["items"] if given["kind"] == "List" else [given]
        for item in items:
            if not self.known(item):
                raise module_utils.NodeError(f'no matches for kind "{item["kind"]}" in version "{item["apiVersion"]}"')
        items = [self.placed(item) for item in items]
        match argv[0]:
            case "apply":
                return [self.applied(item, "--dry-run=server" in argv) for item in items]
            case "get" if items:
                return [self.objects[who] for who in map(MODULE.identity, items) if who in self.objects]
            case "get" if argv[1] in ("pods", "nodes"):
                found = [item for (_, kind, *_), item in self.objects.items() if kind == argv[1][:-1].capitalize()]
                return json.dumps({"kind": "List", "items": found})
            case "get":
                named = [("v1", "ConfigMap", "kube-system", name) for name in argv[2:] if not name.startswith("--")]
                return [self.objects[who] for who in named if who in self.objects]
            case "delete":
                whose = [MODULE.identity(item) for item in items] or [("v1", "ConfigMap", "kube-system", argv[2])]
                for who in whose:
                    self.objects.pop(who, None)
            case "wait":
                assert all(("Established" in argv[1], argv[3].startswith("crd/")))
        return ""

    def applied(self, item: Data, dry: bool) -> Data:
        namespace, who = item["metadata"].get("namespace"), MODULE.identity(item)
        if namespace and ("v1", "Namespace", "", namespace) not in self.objects:
            raise module_utils.NodeError(f'namespaces "{namespace}" not found')
        old = self.objects.get(who)
        if old and MODULE.plain(old) == MODULE.plain(item | {"metadata": old["metadata"] | item["metadata"]}):
            return old
        new = (old or {}) | item
        new["metadata"] = (old or {"metadata": {}})["metadata"] | item["metadata"]
        return copy.deepcopy(new) | {"status": {}} if dry else self.add(new)


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Api:
    found = Api()
    monkeypatch.setattr(module_utils, "kubectl", found.kubectl)
    monkeypatch.setattr(MODULE, "kubectl", found.kubectl)
    return found


def converge(*wanted: Data, check: bool = False, part: str = "demo_role") -> list[str]:
    """Return the changes of one call, as text."""
    MODULE.check_objects(list(wanted))
    [found] = MODULE.converge([given(part, *wanted)], check)
    if found.get("failed"):
        raise module_utils.NodeError(found["msg"])
    return [f"{one['action']} {one['kind']} {one['name']}" for one in found["changes"]]


def given(part: str, *wanted: Data, state: str = "present") -> Data:
    return {"part": part, "objects": list(wanted), "wait": 0, "state": state}


SETTINGS = an("ConfigMap", "settings", "demo", data={"a": "1"})
SPACE = an("Namespace", "demo")


def test_converge__twice__changes_once(api: Api) -> None:
    assert converge(SETTINGS, SPACE) == ["created Namespace demo", "created ConfigMap demo/settings"]
    assert converge(SETTINGS, SPACE) == []
    changed = SETTINGS | {"data": {"a": "2"}}
    assert converge(changed, SPACE) == ["changed ConfigMap demo/settings"]
    label = api.objects["v1", "ConfigMap", "demo", "settings"]["metadata"]["labels"]
    assert label == {"clusterctl/part": "demo_role"}


def test_converge__status_changed_by_a_controller__is_no_change(api: Api) -> None:
    daemons = an("DaemonSet", "demo", "default", "apps/v1", spec={"selector": {}})
    converge(daemons)
    found = api.objects["apps/v1", "DaemonSet", "default", "demo"]
    found |= {"status": {"numberReady": 3}}
    found["metadata"] |= {"resourceVersion": "999", "generation": 7}
    assert converge(daemons) == []


def test_converge__object_left_out__is_deleted(api: Api) -> None:
    converge(SPACE, SETTINGS, an("ConfigMap", "old", "demo"))
    assert converge(SPACE, SETTINGS, check=True) == ["removed ConfigMap demo/old"]
    assert "ConfigMap old" in api.names()
    assert converge(SPACE, SETTINGS) == ["removed ConfigMap demo/old"]
    assert api.names() == {"Namespace default", "Namespace kube-system", "Namespace demo", "ConfigMap settings"}
    assert converge(SPACE, SETTINGS) == []


def test_converge__object_with_another_label__is_not_deleted(api: Api) -> None:
    converge(SPACE, SETTINGS)
    api.objects["v1", "ConfigMap", "demo", "settings"]["metadata"]["labels"] = {"clusterctl/part": "other"}
    assert converge(SPACE) == []
    assert "ConfigMap settings" in api.names()


def test_converge__killed_after_the_apply__record_has_the_objects(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise an object that the next version of the part does not have would stay."""

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(MODULE.Part, "settle", killed)
    with pytest.raises(KeyboardInterrupt):
        converge(SPACE, SETTINGS)
    assert MODULE.Part("demo_role", False).recorded() == [MODULE.identity(one) for one in (SETTINGS, SPACE)]


def test_converge__default_namespace__is_found_again(api: Api) -> None:
    bare = an("ConfigMap", "bare", data={})
    assert converge(bare) == ["created ConfigMap default/bare"]
    assert converge(bare) == []
    assert converge() == ["removed ConfigMap default/bare"]


CRD = an(
    "CustomResourceDefinition",
    "queues.example.org",
    version="apiextensions.k8s.io/v1",
    spec={"group": "example.org", "names": {"kind": "Queue"}},
)
QUEUE = an("Queue", "main", "demo", "example.org/v1", spec={"size": 1})


@pytest.mark.parametrize("check", [True, False])
def test_converge__kind_defined_in_the_part__comes_last(api: Api, check: bool) -> None:
    created = [
        "created Namespace demo",
        "created CustomResourceDefinition queues.example.org",
        "created Queue demo/main",
    ]
    assert converge(QUEUE, CRD, SPACE, check=check) == created
    assert ("Queue main" in api.names()) is not check
    if not check:
        assert ("wait", "--for=condition=Established", "--timeout=60s", "crd/queues.example.org") in api.calls
        assert converge(QUEUE, CRD, SPACE) == []
        assert converge() == [one.replace("created", "removed") for one in reversed(created)]


def test_converge__dry_run__writes_nothing(api: Api) -> None:
    before = copy.deepcopy(api.objects)
    assert converge(SPACE, SETTINGS, check=True) == ["created Namespace demo", "created ConfigMap demo/settings"]
    assert api.objects == before


def test_converge__error_of_the_api__is_not_a_change(api: Api) -> None:
    with pytest.raises(module_utils.NodeError, match='namespaces "demo" not found'):
        converge(SETTINGS)


def test_remove__after_converge__leaves_nothing(api: Api) -> None:
    before = set(api.objects)
    converge(SPACE, SETTINGS)
    [removed] = MODULE.converge([given("demo_role", state="absent")], False)
    assert set(api.objects) == before
    assert [one["action"] for one in removed["changes"]] == ["removed", "removed"]


def test_converge__several_parts__is_as_one_after_another_with_fewer_calls(api: Api) -> None:
    parts = [given("one", SPACE, SETTINGS), given("two", an("ConfigMap", "other", "demo")), given("three", QUEUE, CRD)]
    results = MODULE.converge(parts, False)
    together = len(api.calls)
    assert [len(one["changes"]) for one in results] == [2, 1, 2]
    assert [MODULE.Part(name, False).recorded() for name in ("one", "two", "three")] == [
        sorted(MODULE.identity(item) for item in one["objects"]) for one in parts
    ]
    alone = Api()
    with pytest.MonkeyPatch.context() as patch:
        for place in (module_utils, MODULE):
            patch.setattr(place, "kubectl", alone.kubectl)
        assert [MODULE.converge([one], False)[0]["changes"] for one in parts] == [one["changes"] for one in results]
    assert {who: MODULE.plain(item) for who, item in alone.objects.items()} == {
        who: MODULE.plain(item) for who, item in api.objects.items()
    }
    assert together < len(alone.calls)
    assert [one["changed"] for one in MODULE.converge(parts, False)] == [False, False, False]


def test_converge__a_part_that_fails__ends_the_others_and_is_named(api: Api) -> None:
    parts = [given("one", SPACE), given("two", an("ConfigMap", "x", "nowhere")), given("three", SETTINGS)]
    results = MODULE.converge(parts, False)
    assert [one.get("msg") for one in results] == [None, 'two: namespaces "nowhere" not found']
    assert "ConfigMap settings" not in api.names()
    assert MODULE.Part("one", False).recorded() == [MODULE.identity(SPACE)]


def test_note__secret__is_hidden_in_the_difference() -> None:
    part = MODULE.Part("demo", True)
    part.note(None, an("Secret", "key", "demo", data={"key": "c2VjcmV0"}))
    assert "c2VjcmV0" not in json.dumps(part.diff)
    assert part.diff[0]["after_header"] == "Secret demo/key"


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ([{"kind": "Pod"}], "no apiVersion or kind"),
        ([an("Pod", "")], "a Pod has no name"),
        ([SETTINGS, SETTINGS], "ConfigMap demo/settings is given twice"),
    ],
)
def test_check_objects__invalid__is_an_error(wanted: list[Data], message: str) -> None:
    with pytest.raises(module_utils.NodeError, match=message):
        MODULE.check_objects(wanted)


# --- workloads ------------------------------------------------------------------------------------------------------


def daemon_set(**status: int) -> Data:
    """A DaemonSet of three nodes, as the API returns it."""
    found = an("DaemonSet", "flannel", "demo", "apps/v1", spec={"selector": {"matchLabels": {"app": "flannel"}}})
    found["metadata"]["generation"] = 2
    counts = {"observedGeneration": 2, "desiredNumberScheduled": 3, "updatedNumberScheduled": 3, "numberReady": 3}
    return found | {"status": counts | status}


def pod(node: str, ready: bool = True, **waiting: str) -> Data:
    states = [{"state": {"waiting": waiting}}] if waiting else []
    conditions = [{"type": "Ready", "status": str(ready)}]
    status = {"phase": "Running" if ready else "Pending", "conditions": conditions, "containerStatuses": states}
    return an("Pod", f"flannel-{node}", "demo", spec={"nodeName": node}, status=status)


@pytest.mark.parametrize(
    ("status", "ready"),
    [
        ({}, True),
        ({"numberReady": 2}, False),
        ({"updatedNumberScheduled": 1}, False),
        ({"observedGeneration": 1}, False),
    ],
)
def test_is_ready__daemon_set__needs_the_last_version_everywhere(status: dict[str, int], ready: bool) -> None:
    assert MODULE.is_ready(daemon_set(**status)) is ready


def test_is_ready__deployment__needs_all_replicas() -> None:
    found = an("Deployment", "demo", "demo", "apps/v1", spec={"replicas": 2}, status={"observedGeneration": 0})
    assert not MODULE.is_ready(found)
    found["status"] |= {"updatedReplicas": 2, "readyReplicas": 2, "replicas": 3}
    assert not MODULE.is_ready(found)  # one of the old version still runs
    found["status"]["replicas"] = 2
    assert MODULE.is_ready(found)


@pytest.mark.parametrize(
    ("status", "pods", "silent", "why"),
    [
        ({"observedGeneration": 1}, [pod("a"), pod("b")], set(), "its controller has not seen the change yet"),
        ({"numberReady": 2}, [pod("a"), pod("b"), pod("dead", ready=False)], {"dead"}, ""),
        (
            {"numberReady": 1},
            [
                pod("a"),
                pod("b", ready=False, reason="ImagePullBackOff", message="no such host"),
                pod("dead", ready=False),
            ],
            {"dead"},
            "flannel-b on b: ImagePullBackOff no such host",
        ),
        ({"numberReady": 0}, [], set(), "pods are missing or have an older version"),
        (
            {"updatedNumberScheduled": 1},
            [pod("a"), pod("b"), pod("c")],
            set(),
            "pods are missing or have an older version",
        ),
    ],
    ids=["unseen", "only-a-dead-node", "a-pod-that-fails", "no-pods", "older-version"],
)
def test_lateness__of_a_workload__says_why(
    status: dict[str, int], pods: list[Data], silent: set[str], why: str
) -> None:
    assert MODULE.lateness(daemon_set(**status), pods, silent, False) == why


@pytest.mark.parametrize(("cordoned", "why"), [(True, ""), (False, "flannel-c on no node: Unschedulable")])
def test_lateness__pod_of_a_drained_head__is_excused(cordoned: bool, why: str) -> None:
    """A head is upgraded while it is cordoned: its evicted pod may have no other node."""
    waits = pod("c", ready=False)
    del waits["spec"]["nodeName"]
    waits["status"] = {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}
    found = MODULE.lateness(daemon_set(numberReady=2), [pod("a"), pod("b"), waits], set(), cordoned)
    assert found == why


def test_responds__node_without_network__does() -> None:
    def node(status: str) -> Data:
        return an("Node", "a", status={"conditions": [{"type": "Ready", "status": status}]})

    assert MODULE.responds(node("False"))
    assert not MODULE.responds(node("Unknown"))
    assert not MODULE.responds(an("Node", "new"))


def test_troubles__many_pods__are_counted() -> None:
    listed = MODULE.troubles([pod(f"n{number}", ready=False) for number in range(5)])
    assert listed.endswith("flannel-n2 on n2: Pending; and 2 more")


def test_wait__workload_not_ready__names_it(api: Api) -> None:
    part = MODULE.Part("demo", False)
    part.applied = [api.add(daemon_set(numberReady=2)), an("ConfigMap", "x", "demo")]
    with pytest.raises(module_utils.NodeError, match="not ready after 0 s: DaemonSet demo/flannel: pods are missing"):
        part.wait(0)
    part.applied = [api.add(daemon_set())]
    part.wait(0)


def test_documents__yaml__are_objects() -> None:
    text = "---\nkind: A\n---\n# nothing\n---\nkind: List\nitems: [{kind: B}, {kind: C}]\n"
    assert [one["kind"] for one in ACTION.documents("x", text)] == ["A", "B", "C"]
    for bad in ("- a\n", "a: [\n"):
        with pytest.raises(AnsibleActionFail, match="x"):
            ACTION.documents("x", bad)


def test_items__of_kubectls_output__are_a_list() -> None:
    """One object is printed alone, several as a List, none as nothing: `kubectl get -o json` of kubectl 1.36."""
    assert module_utils.items("") == []
    assert module_utils.items('{"kind": "Node"}') == [{"kind": "Node"}]
    assert module_utils.items('{"kind": "List", "items": [{"kind": "Node"}]}') == [{"kind": "Node"}]
    assert module_utils.items('{"kind": "NodeList", "items": []}') == []


def test_warning__about_pods__is_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def event(uid: str, at: str, message: str) -> Data:
        return {"involvedObject": {"uid": uid}, "lastTimestamp": at, "message": message}

    events = [
        event("one", "2026-11-26T05:20:00Z", 'failed to find plugin "bridge"\nin path'),
        event("one", "2026-11-26T05:10:00Z", "an older one"),
        event("other", "2026-11-26T05:30:00Z", "about another pod"),
    ]
    monkeypatch.setattr(MODULE, "kubectl", lambda *_, **__: (0, json.dumps({"kind": "List", "items": events}), ""))
    pods = [{"metadata": {"uid": "one", "namespace": "demo"}}]
    assert MODULE.warning(pods) == ' (failed to find plugin "bridge" in path)'
    assert MODULE.warning([{"metadata": {"uid": "none", "namespace": "demo"}}]) == ""
    monkeypatch.setattr(MODULE, "kubectl", lambda *_, **__: (1, "", "no connection"))
    assert MODULE.warning(pods) == ""


def test_lateness__head_with_an_older_pod__waits_though_workers_are_excluded() -> None:
    """A worker's pod is not waited for; that of a head must run the new version."""
    item = daemon_set(updatedNumberScheduled=1)
    item["metadata"]["annotations"] = {"deprecated.daemonset.template.generation": "2"}
    old, new = pod("head1"), pod("head1")
    for one, generation in ((old, "1"), (new, "2")):
        one["metadata"]["labels"] = {"pod-template-generation": generation}
    worker = pod("gpu01", ready=False)
    assert MODULE.lateness(item, [old, worker], {"gpu01"}, False) == "pods are missing or have an older version"
    assert MODULE.lateness(item, [new, worker], {"gpu01"}, False) == ""


def test_is_head__by_the_label_of_kubeadm() -> None:
    assert MODULE.is_head(an("Node", "head1") | {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}})
    assert not MODULE.is_head(an("Node", "gpu01"))
