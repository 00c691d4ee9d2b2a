"""The pods that kubeadm installs: kube-proxy has the API's addresses, and CoreDNS is on several nodes."""

import copy
from typing import Any

import pytest

import tests.unit.test_node_state  # noqa: F401 - lets the modules of the nodes be found
from tests.unit.test_role_plugins import plugin

PODS = plugin("modules/kubernetes_system_pods")
Data = dict[str, Any]
CONTROL_PLANE = "node-role.kubernetes.io/control-plane"


def node(name: str, ready: str = "True", *taints: str, **spec: Any) -> Data:
    head = name.startswith("head")
    keys = [CONTROL_PLANE, *taints] if head else list(taints)
    return {
        "metadata": {"name": name, "labels": {CONTROL_PLANE: ""} if head else {}},
        "spec": {"taints": [{"key": key, "effect": "NoSchedule"} for key in keys], **spec},
        "status": {"conditions": [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": ready}]},
    }


def workload(kind: str, name: str) -> Data:
    return {
        "kind": kind,
        "metadata": {"name": name, "namespace": "kube-system"},
        "spec": {"template": {"metadata": {"labels": {"k8s-app": name}}, "spec": {"containers": []}}},
    }


def merge(target: Data, patch: Data) -> None:
    """Apply a JSON merge patch without deletions."""
    for key, value in patch.items():
        if isinstance(value, dict) and isinstance(target.get(key), dict):
            merge(target[key], value)
        else:
            target[key] = copy.deepcopy(value)


class Api:
    """Nodes and workloads; a patch changes the workload, as the API server does."""

    def __init__(self) -> None:
        self.nodes = [node("head1"), node("head2"), node("head3"), node("gpu01")]
        self.workloads = {
            "kube-proxy": workload("DaemonSet", "kube-proxy"),
            "coredns": workload("Deployment", "coredns"),
        }
        self.annotations: Data = {}
        self.deleted: list[str] = []
        self.patches = 0

    def get(self, kind: str, *argv: str) -> list[Data]:
        if kind == "nodes":
            return copy.deepcopy(self.nodes)
        if kind == "namespace":
            return [{"metadata": {"name": "kube-system", "annotations": dict(self.annotations)}}]
        name, *options = argv
        assert options == ["--namespace=kube-system", "--ignore-not-found"]
        return [copy.deepcopy(self.workloads[name])] if name in self.workloads else []

    def kubectl(self, *argv: str, stdin: Any = None) -> tuple[int, str, str]:
        if argv[:-1] == ("annotate", "--overwrite", "namespace", "kube-system"):
            key, _, value = argv[-1].partition("=")
            self.annotations[key] = value
            return 0, "", ""
        if argv[:2] == ("delete", "pods"):
            selectors = ("--namespace=kube-system", "--selector=k8s-app=kube-proxy", "--wait=false")
            assert (*argv[2:4], argv[5]) == selectors
            self.deleted.append(argv[4].removeprefix("--field-selector=spec.nodeName="))
            return 0, "", ""
        command, kind, name, *options = argv
        assert command == "patch"
        assert kind == self.workloads[name]["kind"].lower()
        assert options == ["--namespace=kube-system", "--type=merge", "--patch-file=/dev/stdin"]
        merge(self.workloads[name], stdin)
        self.patches += 1
        return 0, "", ""

    def template(self, name: str) -> Data:
        found: Data = self.workloads[name]["spec"]["template"]
        return found


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Api:
    found = Api()
    monkeypatch.setattr(PODS, "get", found.get)
    monkeypatch.setattr(PODS, "kubectl", found.kubectl)
    return found


# --- kube-proxy -------------------------------------------------------------------------------------------------------

ALL = ["head1", "head2", "head3", "gpu01", "gpu02"]


def restart(addresses: list[str], nodes: list[str] = ALL, check: bool = False) -> tuple[list[str], list[str]]:
    pods = PODS.SystemPods(check)
    pods.restart_proxies(addresses, nodes, set(ALL) - set(nodes))
    return [f"{one['kind']} {one['name']}: {one['what']}" for one in pods.changes], pods.notes


@pytest.mark.proves("kubernetes", "kube-proxy restarts once when the API's addresses changed.")
def test_proxy__addresses_changed__restarts_once(api: Api) -> None:
    what = "DaemonSet kube-system/kube-proxy: restart with the API's addresses 10.0.0.1,10.0.0.2"
    assert restart(["10.0.0.2", "10.0.0.1"]) == ([what], [])
    assert api.template("kube-proxy")["metadata"]["annotations"] == {PODS.ADDRESSES: "10.0.0.1,10.0.0.2"}
    assert api.template("kube-proxy")["metadata"]["labels"] == {"k8s-app": "kube-proxy"}
    assert api.workloads["kube-proxy"]["spec"]["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": "100%"}
    assert restart(["10.0.0.1", "10.0.0.2"]) == ([], [])
    assert api.patches == 1
    assert len(restart(["10.0.0.10"])[0]) == 1


def test_proxy__upgrade_replaced_it__restarts_for_new_addresses(api: Api) -> None:
    """kubeadm has restarted it with the addresses of /etc/hosts."""
    restart(["10.0.0.10"])
    api.workloads["kube-proxy"] = workload("DaemonSet", "kube-proxy")
    assert restart(["10.0.0.10"]) == ([], [])
    assert len(restart(["10.0.0.11"])[0]) == 1


@pytest.mark.proves("kubernetes", "kube-proxy restarts although nodes that are being removed are still ready.")
def test_proxy__node_outside_the_inventory__is_ignored(api: Api) -> None:
    pods = PODS.SystemPods(False)
    pods.restart_proxies(["10.0.0.10"], ["head1", "gpu01"])
    assert (len(pods.changes), pods.notes) == (1, [])
    assert api.annotations == {PODS.ADDRESSES: "10.0.0.10"}


def test_proxy__new_cluster__starts_with_the_addresses(api: Api) -> None:
    pods = PODS.SystemPods(False)
    pods.restart_proxies(["10.0.0.10"], ALL, is_new=True)
    assert (api.patches, api.annotations) == (0, {PODS.ADDRESSES: "10.0.0.10"})
    assert restart(["10.0.0.10"]) == ([], [])


def test_proxy__killed_before_the_record__is_repeated(api: Api) -> None:
    restart(["10.0.0.10"])
    api.annotations.clear()
    before = copy.deepcopy(api.workloads)
    assert len(restart(["10.0.0.10"])[0]) == 1
    assert api.workloads == before, "the API server sees no change"


@pytest.mark.proves("kubernetes", "kube-proxy keeps its addresses until all ready nodes have the new ones.")
def test_proxy__node_without_the_new_addresses__is_waited_for(api: Api) -> None:
    assert restart(["10.0.0.1"], ["head1"]) == ([], []), "nothing is known to have changed"
    restart(["10.0.0.1"])
    note = "kube-proxy uses the API's former addresses until a bootstrap of all nodes"
    assert restart(["10.0.0.10"], ["head1", "head2", "head3"]) == ([], [note])
    assert api.patches == 1
    api.nodes[-1] = node("gpu01", "Unknown")
    assert len(restart(["10.0.0.10"], ["head1", "head2", "head3"])[0]) == 1, "a node that is down stops nothing"


@pytest.mark.proves("kubernetes", "kube-proxy of a node that was down restarts when the node has the addresses.")
def test_proxy__node_that_was_down__restarts_it_later(api: Api) -> None:
    api.nodes[-1:] = [node("gpu01", "Unknown"), node("gpu02", "False")]
    reached = ["head1", "head2", "head3"]
    restart(["10.0.0.10"], reached)
    assert api.annotations == {PODS.ADDRESSES: "10.0.0.10 without gpu01,gpu02"}
    assert restart(["10.0.0.10"], reached) == ([], [])
    what = "DaemonSet kube-system/kube-proxy: restart on gpu01"
    assert restart(["10.0.0.10"], [*reached, "gpu01"], check=True) == ([what], [])
    assert api.deleted == []
    assert restart(["10.0.0.10"], [*reached, "gpu01"]) == ([what], [])
    assert restart(["10.0.0.10"], [*reached, "gpu01"]) == ([], [])
    assert (api.deleted, api.annotations) == (["gpu01"], {PODS.ADDRESSES: "10.0.0.10 without gpu02"})
    restart(["10.0.0.10"])
    assert (api.deleted, api.annotations) == (["gpu01", "gpu02"], {PODS.ADDRESSES: "10.0.0.10"})
    assert api.patches == 1


def test_proxy__dry_run__only_reports(api: Api) -> None:
    assert len(restart(["10.0.0.10"], check=True)[0]) == 1
    assert (api.patches, api.annotations) == (0, {})


def test_proxy__name_in_dns_or_no_proxy__is_left(api: Api) -> None:
    assert restart([]) == ([], [])
    del api.workloads["kube-proxy"]
    assert restart(["10.0.0.10"]) == ([], [])
    assert api.patches == 0


# --- CoreDNS ----------------------------------------------------------------------------------------------------------


def spread(check: bool = False) -> list[str]:
    pods = PODS.SystemPods(check)
    pods.spread_dns()
    return [f"{one['kind']} {one['name']}: {one['what']}" for one in pods.changes]


@pytest.mark.proves("kubernetes", "With several heads the pods of CoreDNS are on different nodes.")
def test_dns__of_several_heads__is_spread_once(api: Api) -> None:
    assert spread() == ["Deployment kube-system/coredns: restart its pods on different nodes"]
    assert api.template("coredns")["spec"]["topologySpreadConstraints"] == [PODS.SPREAD]
    assert api.template("coredns")["spec"]["containers"] == []
    assert spread() == []
    assert api.patches == 1


def test_dns__upgrade_removed_the_constraint__is_spread_again(api: Api) -> None:
    spread()
    api.workloads["coredns"] = workload("Deployment", "coredns")
    assert len(spread()) == 1
    assert spread() == []


@pytest.mark.parametrize(
    ("others", "is_spread"),
    [
        ([node("gpu01")], False),
        ([node("head2", "Unknown"), node("head3", "False")], False),
        ([node("head2", unschedulable=True), node("head3", "True", "node.kubernetes.io/unreachable")], False),
        ([node("head2", unschedulable=True), node("head3")], True),
        ([node("head2", "Unknown"), node("head3")], True),
    ],
)
def test_dns__with_one_head_that_accepts_pods__is_left(api: Api, others: list[Data], is_spread: bool) -> None:
    """The pods would start on that head again, and nothing would move them later."""
    api.nodes = [node("head1"), *others]
    assert bool(spread()) is is_spread


def test_dns__constraints_of_an_operator__stay(api: Api) -> None:
    zones = {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"}
    api.template("coredns")["spec"]["topologySpreadConstraints"] = [zones]
    spread()
    assert api.template("coredns")["spec"]["topologySpreadConstraints"] == [zones, PODS.SPREAD]
    own = zones | {"maxSkew": 2, "topologyKey": "kubernetes.io/hostname"}
    api.template("coredns")["spec"]["topologySpreadConstraints"] = [own]
    assert spread() == []


def test_dns__dry_run_or_another_dns__changes_nothing(api: Api) -> None:
    assert len(spread(check=True)) == 1
    del api.workloads["coredns"]
    assert spread() == []
    assert api.patches == 0


def module(monkeypatch: pytest.MonkeyPatch, check: bool, has_api: bool) -> Data:
    """Run the module as Ansible does; return its result."""
    result: Data = {}

    class Module:
        def __init__(self, **_: Any) -> None:
            self.params = {"addresses": ["10.0.0.10"], "nodes": ALL, "others": [], "is_new": False}
            self.check_mode = check

        def exit_json(self, **given: Any) -> None:
            result.update(given)

    kubectl = PODS.kubectl
    answer = (0 if has_api else 1, "", "")
    monkeypatch.setattr(PODS, "AnsibleModule", Module)
    monkeypatch.setattr(
        PODS, "kubectl", lambda *argv, **more: answer if argv[0] == "version" else kubectl(*argv, **more)
    )
    PODS.main()
    return result


@pytest.mark.parametrize(("check", "has_api", "changes"), [(True, False, 0), (True, True, 2), (False, True, 2)])
def test_main__with_and_without_an_api__reports_the_changes(
    api: Api, monkeypatch: pytest.MonkeyPatch, check: bool, has_api: bool, changes: int
) -> None:
    found = module(monkeypatch, check, has_api)
    assert (len(found["changes"]), found["changed"]) == (changes, changes > 0)
    assert api.patches == (0 if check else changes)
