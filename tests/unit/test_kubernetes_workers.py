"""Workers of Kubernetes: their labels, taints and GPU settings, how they join, and their CNI configuration."""

import hashlib
import importlib.machinery
import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleFilterError

import tests.unit.test_node_state  # noqa: F401 - lets the modules of the nodes be found
from tests.systems.rendering import CONTENT, a_cluster
from tests.unit.test_role_plugins import plugin

FILTERS = plugin("filter/kubernetes_workers")
NODES = plugin("modules/kubernetes_nodes")
JOIN = plugin("modules/kubernetes_join")
Data = dict[str, Any]

WHOLE = {"label": "slices-1.mig-none", "name": "nvidia-device-plugin", "slices": 1, "mig": "none"}
# As nvidia-smi shows an A100-SXM4-80GB: 81920 MiB; the pairs of a server with NVSwitches.
GPU: Data = {"type": "a100", "memory_mb": 81920, "links": {"1": "NV12"}, "mig": None}


def gpus(*layouts: list[str] | None, **more: Any) -> Data:
    return {"gpus": [GPU | {"mig": layout} | more for layout in layouts]}


# --- labels and GPU settings ------------------------------------------------------------------------------------------


@pytest.mark.proves("kubernetes", "Workers have labels of their sub-groups and their recorded GPUs.")
def test_labels__of_a_worker_with_gpus__are_of_its_record() -> None:
    found = FILTERS.labels(gpus(None, None), ["a100", "rack1"], WHOLE, {"topology.kubernetes.io/zone": "west"})
    assert found == {
        "node-role.kubernetes.io/worker": "",
        "clusterctl/group.a100": "",
        "clusterctl/group.rack1": "",
        "nvidia.com/gpu.present": "true",
        "clusterctl/gpu-model": "a100",
        "clusterctl/gpu-count": "2",
        "clusterctl/gpu-memory-gib": "80",
        "clusterctl/gpu-nvlink": "true",
        "clusterctl/gpu-plugin": "slices-1.mig-none",
        "topology.kubernetes.io/zone": "west",
    }


@pytest.mark.parametrize("record", [{}, {"gpus": []}])
def test_labels__of_a_worker_without_gpus__have_none(record: Data) -> None:
    assert FILTERS.labels(record, [], WHOLE, {}) == {"node-role.kubernetes.io/worker": ""}


def test_labels__different_gpus__name_the_smallest_memory() -> None:
    record = {"gpus": [GPU, GPU | {"type": "l40s", "memory_mb": 46068, "links": {}}]}
    found = FILTERS.labels(record, [], WHOLE, {})
    assert (found["clusterctl/gpu-model"], found["clusterctl/gpu-memory-gib"]) == ("a100.l40s", "44")


@pytest.mark.parametrize("group", ["x" * 58, "a_", "rack 1"])
def test_labels__group_that_cannot_be_a_label__is_refused(group: str) -> None:
    with pytest.raises(AnsibleFilterError, match="cannot be a label"):
        FILTERS.labels({}, [group], WHOLE, {})


def test_variants__of_groups_with_other_settings__have_a_plugin_each() -> None:
    hostvars: Data = {
        "gpu01": {},
        "gpu02": {"kubernetes_gpu_time_slices": 4},
        "gpu03": {"kubernetes_gpu_mig_strategy": "mixed"},
        "gpu04": {},
        "cpu01": {"kubernetes_gpu_time_slices": 8},
    }
    records = {name: gpus(None) for name in hostvars} | {"cpu01": {"gpus": []}}
    found = FILTERS.variants([*hostvars, "unrecorded"], records, hostvars, 1, "none")
    assert [one["name"] for one in found] == [
        "nvidia-device-plugin-1-mixed",
        "nvidia-device-plugin",
        "nvidia-device-plugin-4-none",
    ]
    assert found[1] == WHOLE


@pytest.mark.parametrize("given", [{"kubernetes_gpu_time_slices": 0}, {"kubernetes_gpu_mig_strategy": "all"}])
def test_variant__of_a_wrong_setting__is_refused(given: Data) -> None:
    with pytest.raises(AnsibleFilterError, match=next(iter(given))):
        FILTERS.variant(given, 1, "none")


def test_configuration__with_time_slices__refuses_two_of_one_pod() -> None:
    assert "sharing" not in FILTERS.configuration(WHOLE)
    found = FILTERS.configuration(WHOLE | {"slices": 4})["sharing"]["timeSlicing"]
    assert found == {"failRequestsGreaterThanOne": True, "resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}


@pytest.mark.proves("kubernetes", "The test pod requests what whole, shared and MIG GPUs offer.")
@pytest.mark.parametrize(
    ("record", "slices", "mig", "resource", "count", "asked"),
    [
        (gpus(None, None, None, None), 1, "none", "nvidia.com/gpu", 4, 2),
        (gpus(None), 1, "none", "nvidia.com/gpu", 1, 1),
        (gpus(None, None), 4, "none", "nvidia.com/gpu", 8, 1),
        (gpus(["1g.10gb"] * 7, ["1g.10gb"] * 7), 1, "single", "nvidia.com/gpu", 14, 1),
        (gpus(["1g.10gb+me", "3g.40gb"]), 1, "mixed", "nvidia.com/mig-1g.10gb.me", 1, 1),
        (gpus(["3g.40gb"], None), 1, "mixed", "nvidia.com/gpu", 1, 1),
        ({"gpus": []}, 1, "none", "", 0, 0),
    ],
)
def test_proof__of_a_worker__requests_what_it_offers(
    record: Data, slices: int, mig: str, resource: str, count: int, asked: int
) -> None:
    settings = WHOLE | {"slices": slices, "mig": mig}
    assert FILTERS.proof(record, settings) == {"resource": resource, "count": count, "request": asked}


@pytest.mark.parametrize(
    ("layouts", "mig", "refused"),
    [
        ([None, None], "none", False),
        ([["1g.10gb"]], "none", True),
        ([["1g.10gb"] * 7, ["1g.10gb"] * 7], "single", False),
        ([["1g.10gb"], ["3g.40gb"]], "single", True),
        ([["1g.10gb"], None], "single", True),
        ([["1g.10gb"], None], "mixed", False),
        ([None], "single", False),
    ],
)
def test_problems__of_layouts_and_strategy__are_found(layouts: list[Any], mig: str, refused: bool) -> None:
    assert bool(FILTERS.problems(gpus(*layouts), WHOLE | {"mig": mig})) is refused


# --- labels and taints in the cluster ---------------------------------------------------------------------------------


def node(name: str = "gpu01", *, labels: Data | None = None, ours: tuple[str, ...] = (), **more: Any) -> Data:
    """A node as `kubectl get nodes --show-managed-fields -o json` prints it, in the parts that are read."""
    fields: Data = {"f:metadata": {"f:labels": {"f:" + key: {} for key in ours}}}
    kubelet = {"manager": "kubelet", "operation": "Update", "fieldsV1": {"f:metadata": {"f:labels": {".": {}}}}}
    managed = [kubelet, {"manager": "clusterctl-labels", "operation": "Apply", "fieldsV1": fields}]
    annotations = more.pop("annotations", {"clusterctl/known": ""})
    metadata = {"name": name, "labels": labels or {}, "annotations": annotations, "managedFields": managed}
    ready = {"conditions": [{"type": "Ready", "status": more.get("ready", "True")}]}
    return {"metadata": metadata, "spec": {"taints": more.get("taints", [])}, "status": ready}


def taint(key: str, effect: str = "NoSchedule") -> Data:
    return {"key": key, "effect": effect}


class Head:
    """What kubectl and kubernetes-drain are asked on the head."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.applied: list[Data] = []
        self.files: Data = {}
        self.fails = ""
        monkeypatch.setattr(NODES, "kubectl", self.kubectl)
        monkeypatch.setattr(NODES, "run", self.run)

    def kubectl(self, *argv: str, stdin: Any = None) -> tuple[int, str, str]:
        self.calls.append(" ".join(argv))
        self.applied += [] if stdin is None else stdin.get("items", [stdin])
        return 0, "", ""

    def run(self, *argv: str) -> tuple[int, str]:
        self.calls.append(" ".join(argv))
        if self.fails and argv[0].endswith(self.fails):
            raise NODES.NodeError("it failed")
        return 0, json.dumps(self.files) if "--each" in argv else "gpu01 out: new\n"


def converge(nodes: list[Data], check: bool = False, **given: Data) -> list[str]:
    workers = NODES.Workers(check)
    wanted = {name: {"labels": {}, "taints": [], "is_head": False} | one for name, one in given.items()}
    workers.converge({one["metadata"]["name"]: one for one in nodes}, wanted)
    return [f"{one['name']}: {one['what']}" for one in workers.changes]


@pytest.mark.proves("kubernetes", "Labels that the inventory no longer has are removed; others stay.")
def test_converge__label_of_a_group_that_was_left__is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    head = Head(monkeypatch)
    old = {"clusterctl/group.rack1": "", "clusterctl/group.rack2": "", "beta.kubernetes.io/os": "linux"}
    now = node(labels=old, ours=("clusterctl/group.rack1", "clusterctl/group.rack2"))
    assert converge([now], gpu01={"labels": {"clusterctl/group.rack2": ""}}) == [
        "gpu01: labels: clusterctl/group.rack1 removed"
    ]
    assert [one["metadata"] for one in head.applied] == [{"name": "gpu01", "labels": {"clusterctl/group.rack2": ""}}]
    assert head.calls == ["apply --server-side --field-manager=clusterctl-labels --force-conflicts --filename=-"]


def test_converge__nothing_to_do__asks_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    head = Head(monkeypatch)
    assert converge([node(labels={"a": "b", "c": "d"}, ours=("a",))], gpu01={"labels": {"a": "b"}}) == []
    assert head.calls == []


@pytest.mark.proves("kubernetes", "A new worker is cordoned before pods can run on it.")
def test_converge__new_worker__is_cordoned_before_its_taint_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    head = Head(monkeypatch)
    new = node(annotations={}, taints=[taint("clusterctl/new"), taint("node.kubernetes.io/not-ready", "NoExecute")])
    wanted = {"labels": {"a": "b"}, "taints": ["nvidia.com/gpu"]}
    assert converge([new], gpu01=wanted) == [
        "gpu01: cordoned: not proven yet",
        "gpu01: labels: a=b, clusterctl/tainted=",
        "gpu01: taint nvidia.com/gpu:NoSchedule",
    ]
    assert head.calls == [
        "/usr/local/sbin/kubernetes-drain new --out gpu01 --reason not proven yet",
        "apply --server-side --field-manager=clusterctl-labels --force-conflicts --filename=-",
        "taint nodes gpu01 nvidia.com/gpu:NoSchedule --overwrite",
        "taint nodes gpu01 clusterctl/new:NoSchedule- --overwrite",
    ]


def test_converge__new_worker_with_a_report_on_its_health__is_cordoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """The report of healthy GPUs entered it into the ledger before this step: the taint shows that it is new."""
    head = Head(monkeypatch)
    converge([node(taints=[taint("clusterctl/new")]), node("gpu02", annotations={})], gpu01={}, gpu02={})
    assert head.calls[:2] == [
        "/usr/local/sbin/kubernetes-drain new --out gpu01 --reason not proven yet",
        "/usr/local/sbin/kubernetes-drain new --new --out gpu02 --reason not proven yet",
    ]


@pytest.mark.parametrize(("ready", "removed"), [("True", True), ("Unknown", False)])
def test_converge__node_that_was_off__loses_the_taint_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch, ready: str, removed: bool
) -> None:
    head = Head(monkeypatch)
    converge([node(ready=ready, taints=[taint(NODES.OFF, "NoExecute")])], gpu01={})
    assert (f"taint nodes gpu01 {NODES.OFF}:NoExecute- --overwrite" in head.calls) is removed


@pytest.mark.parametrize(("labels", "removed"), [({"clusterctl/tainted": ""}, True), ({}, False)])
def test_converge__taint_of_gpus__is_removed_only_if_it_is_ours(
    monkeypatch: pytest.MonkeyPatch, labels: Data, removed: bool
) -> None:
    head = Head(monkeypatch)
    converge([node(labels=labels, ours=tuple(labels), taints=[taint("nvidia.com/gpu")])], gpu01={})
    assert ("taint nodes gpu01 nvidia.com/gpu:NoSchedule- --overwrite" in head.calls) is removed


def test_converge__head_that_is_a_worker__accepts_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    head = Head(monkeypatch)
    alone = node("head1", taints=[taint("node-role.kubernetes.io/control-plane")])
    assert converge([alone], head1={"is_head": True}) == [
        "head1: taint node-role.kubernetes.io/control-plane:NoSchedule removed"
    ]
    assert converge([alone], head1={"is_head": False}) == []
    assert len(head.calls) == 1


def test_converge__dry_run__only_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    head = Head(monkeypatch)
    found = converge([node(annotations={}, taints=[taint("clusterctl/new")])], check=True, gpu01={"labels": {"a": "b"}})
    assert found == ["gpu01: cordoned: not proven yet", "gpu01: labels: a=b"]
    assert head.calls == []


def test_replace__node_that_joins_again__is_cordoned_and_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """kubeadm refuses the name of a node that is ready (cmd/kubeadm/app/cmd/phases/join/kubelet.go)."""
    head = Head(monkeypatch)
    head.files = {"gpu01": {"kind": "Config"}}
    answer = NODES.Workers(False).admit(["gpu01"], ["gpu01", "gpu02"])
    assert answer == {"gpu01": {"discovery": '{"kind": "Config"}'}}
    drained, patched, made = head.calls
    assert made == "/usr/local/sbin/kubernetes-join --each gpu01"
    assert drained == "/usr/local/sbin/kubernetes-drain new --out gpu01 --reason not proven yet"
    assert patched.startswith("patch node gpu01 --subresource=status")
    (condition,) = head.applied[0]["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("Ready", "Unknown")


@pytest.mark.proves("kubernetes", "What keeps one worker from joining keeps no other.")
def test_admit__problem_of_one_node__is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    head = Head(monkeypatch)
    head.files, head.fails = {"gpu02": {}}, "kubernetes-drain"
    answer = NODES.Workers(False).admit(["gpu01", "gpu02", "gpu03"], ["gpu01"])
    assert answer["gpu01"] == {"problem": "it failed"}
    assert answer["gpu02"] == {"discovery": "{}"}
    assert answer["gpu03"]["problem"].startswith("it is not among the nodes that the head knows")
    assert head.calls[1:] == ["/usr/local/sbin/kubernetes-join --each gpu02,gpu03"]
    head.fails = "kubernetes-join"
    assert NODES.Workers(False).admit(["gpu02"], []) == {"gpu02": {"problem": "it failed"}}
    assert NODES.Workers(True).admit(["gpu02"], []) == {}


def test_forget__fails__is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    head = Head(monkeypatch)
    workers = NODES.Workers(False)
    workers.forget(["gpu02", "gpu01"])
    assert (head.calls, workers.notes) == (["/usr/local/sbin/kubernetes-join --delete gpu01,gpu02"], [])
    head.fails = "kubernetes-join"
    workers.forget(["gpu01"])
    assert workers.notes == ["tokens of nodes were not deleted, and expire in some minutes: it failed"]


# --- join -------------------------------------------------------------------------------------------------------------


class Host:
    """A worker's files, and a kubeadm that writes what the real one does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.folder, self.fails, self.version = folder, "", "1.36.3"
        self.calls: list[Any] = []
        self.token = folder / "run/discovery.conf"
        self.configuration = {"discovery": {"file": {"kubeConfigPath": str(self.token)}}}
        kubernetes = folder / "kubernetes"
        for parent in (kubernetes / "clusterctl", folder / "run", folder / "state"):
            parent.mkdir(parents=True)
        self.authority = kubernetes / "pki/ca.crt"
        for name, path in (
            ("AUTHORITY", self.authority),
            ("JOINED", kubernetes / "clusterctl/joined.crt"),
            ("CONFIGURATION", folder / "run/join.json"),
            ("VERSION", folder / "state/version"),
            ("LEFT", (self.authority, kubernetes / "kubelet.conf")),
        ):
            monkeypatch.setattr(JOIN, name, path)
        monkeypatch.setattr(JOIN, "run", self.run)
        monkeypatch.setattr(JOIN, "installed", lambda: self.version)

    def run(self, *argv: str) -> tuple[int, str]:
        self.calls.append(" ".join(argv if argv[1] == "upgrade" else argv[:2]))
        if argv[1] == self.fails:
            raise JOIN.NodeError("kubeadm join ended with 1")
        if argv[:2] == ("kubeadm", "join"):
            assert (self.token.read_text(), self.token.stat().st_mode & 0o777) == ("token", 0o600)
            assert json.loads((self.folder / "run/join.json").read_text()) == self.configuration
            self.authority.parent.mkdir(exist_ok=True)
            self.authority.write_text("authority")
        if argv[:2] == ("kubeadm", "reset"):
            self.authority.unlink(missing_ok=True)
        return 0, ""


HASH = hashlib.sha256(b"authority").hexdigest()


@pytest.mark.proves("kubernetes", "A join leaves no token on the worker, also if it fails.")
@pytest.mark.parametrize("fails", ["", "join"])
def test_join__in_any_case__deletes_the_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fails: str) -> None:
    host = Host(monkeypatch, tmp_path)
    host.fails = fails
    if fails:
        with pytest.raises(JOIN.NodeError):
            JOIN.join("token", host.configuration, check=False)
    else:
        JOIN.join("token", host.configuration, check=False)
    assert list((tmp_path / "run").iterdir()) == []
    assert JOIN.has_joined(HASH) is (not fails)
    assert not JOIN.has_joined("")
    assert not JOIN.has_joined(hashlib.sha256(b"another cluster").hexdigest())


def test_main__problem_on_the_head__fails_without_a_join(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    host = Host(monkeypatch, tmp_path)

    class Module:
        def __init__(self, argument_spec: Data, **_: Any) -> None:
            given = {"state": "joined", "problem": "it failed", "configuration": host.configuration}
            self.params = {name: option.get("default") for name, option in argument_spec.items()} | given
            self.check_mode = False

        def fail_json(self, msg: str) -> None:
            raise SystemExit(msg)

    monkeypatch.setattr(JOIN, "AnsibleModule", Module)
    monkeypatch.setattr(JOIN, "RUN", tmp_path / "run")
    monkeypatch.setattr(JOIN, "LOCK", tmp_path / "run/lock")
    with pytest.raises(SystemExit, match="it failed"):
        JOIN.main()
    assert host.calls == []


def test_reset__after_an_incomplete_join__undoes_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    host = Host(monkeypatch, tmp_path)
    assert JOIN.reset(check=False) == []
    host.authority.parent.mkdir()
    host.authority.write_text("authority")
    assert len(JOIN.reset(check=True)) == 1
    assert host.calls == []
    assert len(JOIN.reset(check=False)) == 1
    assert (host.calls, JOIN.reset(check=False)) == (["kubeadm reset"], [])


@pytest.mark.proves("kubernetes", "An upgraded worker gets the cluster's configuration of the kubelet once.")
def test_look__kubeadm_was_upgraded__upgrades_the_configuration(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    host = Host(monkeypatch, tmp_path)
    JOIN.join("token", host.configuration, check=False)
    assert JOIN.look(HASH, ["Swap"], check=False) == []
    host.version, host.calls = "1.36.4", []
    assert JOIN.look("another cluster", [], check=False) == []
    (change,) = JOIN.look(HASH, ["Swap"], check=True)
    assert (change["from"], change["to"]) == ("v1.36.3", "v1.36.4")
    assert JOIN.look(HASH, ["Swap"], check=False) == [change]
    assert host.calls == [
        "kubeadm upgrade node --ignore-preflight-errors=Swap",
        "systemctl restart",
    ]
    assert JOIN.look(HASH, ["Swap"], check=False) == []


# --- the network of pods ----------------------------------------------------------------------------------------------


def program(role: str, name: str) -> ModuleType:
    path = str(CONTENT / f"roles/{role}/files/{name}")
    loader = importlib.machinery.SourceFileLoader(name.replace("-", "_"), path)
    specification = importlib.util.spec_from_loader(loader.name, loader)
    assert specification is not None
    module = importlib.util.module_from_spec(specification)
    loader.exec_module(module)
    return module


CNI = program("kubernetes_network", "kubernetes-network")
# pkg/subnet/subnet.go of flannel-io/flannel v0.28.4, WriteSubnetFile; the subnet has the first usable address.
SUBNET = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.3.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"


@pytest.mark.proves("kubernetes", "Pods of a node get addresses of the subnet that flannel has for it.")
def test_network__with_flannels_subnet__is_configured_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    subnet, target = tmp_path / "subnet.env", tmp_path / "net.d/10-flannel.conflist"
    monkeypatch.setattr(CNI, "SUBNET", subnet)
    monkeypatch.setattr(CNI, "TARGET", target)
    CNI.converge()
    assert not target.parent.exists()
    subnet.write_text(SUBNET)
    CNI.converge()
    found = json.loads(target.read_text())
    bridge, ports = found["plugins"]
    assert bridge["ipam"]["ranges"] == [[{"subnet": "10.244.3.0/24"}]]
    assert bridge["ipam"]["routes"] == [{"dst": "10.244.0.0/16"}]
    assert (bridge["mtu"], ports["type"], found["cniVersion"]) == (1450, "portmap", "1.0.0")
    before = target.stat()
    CNI.converge()
    assert target.stat().st_mtime_ns == before.st_mtime_ns
    assert target.stat().st_mode & 0o777 == 0o600
    assert list(target.parent.iterdir()) == [target]


# --- manifests --------------------------------------------------------------------------------------------------------

ROLES = ("kubernetes_network", "kubernetes_gpu", "kubernetes_storage")


def objects(folder: Path, role: str, **known: Any) -> list[Data]:
    """Return the objects that a role applies."""
    found = a_cluster(folder, "debian-13", "kubernetes").role(role, "head1", **known)
    texts = [found.render(found.path / "templates" / name) for name in found.value(f"__{role}_templates")]
    return [document for text in texts for document in yaml.safe_load_all(text) if document]


def by_kind(found: list[Data], kind: str) -> list[Data]:
    return [one for one in found if one["kind"] == kind]


def pods(found: list[Data]) -> list[Data]:
    return [one["spec"]["template"]["spec"] for one in found if one["kind"] in ("DaemonSet", "Deployment")]


def test_network__none__applies_no_objects(tmp_path: Path) -> None:
    assert objects(tmp_path, "kubernetes_network", kubernetes_network_plugin="none") == []


@pytest.mark.proves("kubernetes", "Flannel has the inventory's pod network, backend and the nodes' own addresses.")
def test_network__flannel__has_the_networks_of_the_inventory(tmp_path: Path) -> None:
    found = objects(tmp_path, "kubernetes_network", kubernetes_network_backend="host-gw")
    (settings,) = by_kind(found, "ConfigMap")
    expected = {"Network": "10.244.0.0/16", "EnableNFTables": True, "Backend": {"Type": "host-gw"}}
    assert json.loads(settings["data"]["net-conf.json"]) == expected
    (pod,) = pods(found)
    (container,) = pod["containers"]
    assert "--iface=$(NODE_IP)" in container["args"]
    assert container["image"] == "ghcr.io/flannel-io/flannel:v0.28.4"
    assert not by_kind(found, "NetworkPolicy")


def test_network__with_policies__has_their_controller_from_the_registry(tmp_path: Path) -> None:
    found = objects(tmp_path, "kubernetes_network", kubernetes_network_policies=True)
    images = [one["image"] for pod in pods(found) for one in pod["containers"]]
    source = (CONTENT / "roles/kubernetes_network/templates/network-policies.yaml.j2").read_text().partition("\n")[0]
    assert images[1] == f"registry.k8s.io/networking/kube-network-policies:{source.split(' for ')[1].split('. ')[0]}"


@pytest.mark.proves("kubernetes", "Each set of GPU settings has its own device plugin on its own workers.")
def test_gpu__of_workers_with_time_slices__has_their_configuration(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path, "debian-13", "kubernetes")
    cluster.set("gpu01", kubernetes_gpu_time_slices=4)
    role = cluster.role("kubernetes_gpu", "head1")
    found = list(yaml.safe_load_all(role.render(role.path / "templates/device-plugin.yaml.j2")))
    (plugin_of,) = by_kind(found, "DaemonSet")
    assert plugin_of["metadata"]["name"] == "nvidia-device-plugin-4-none"
    selector = plugin_of["spec"]["template"]["spec"]["nodeSelector"]
    assert selector == {"clusterctl/gpu-plugin": "slices-4.mig-none"}
    labelled = cluster.role("kubernetes_worker", "gpu01").value("__kubernetes_worker_nodes")["gpu01"]["labels"]
    assert selector.items() <= labelled.items()
    (settings,) = by_kind(found, "ConfigMap")
    assert json.loads(settings["data"]["config.yaml"])["sharing"]["timeSlicing"]["resources"][0]["replicas"] == 4


@pytest.mark.proves("kubernetes", "The device plugin and gpu_health know the same XIDs.")
def test_gpu__xids_of_the_plugin__are_those_of_the_health_check(tmp_path: Path) -> None:
    """A GPU that the plugin alone finds unhealthy would stay so: gpu_health would have nothing to diagnose."""
    (container,) = pods(objects(tmp_path, "kubernetes_gpu", gpu_health_xids=[79, 109]))[0]["containers"]
    given = {one["name"]: one["value"] for one in container["env"]}
    assert given["DP_ENABLE_HEALTHCHECKS"] == "79,109"
    ignored = given["DP_DISABLE_HEALTHCHECKS"].split(",")
    assert {"78", "80", "94", "200"} <= {*ignored}
    assert not {"79", "109", "0"} & {*ignored}


def test_gpu__without_gpus_in_the_cluster__has_no_plugin(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path, "debian-13", "kubernetes")
    path = tmp_path / "hardware/gpu01.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"gpus": []}))
    assert cluster.role("kubernetes_gpu", "head1").value("__kubernetes_gpu_templates") == []
    given = cluster.role("kubernetes_worker", "gpu01").value("__kubernetes_worker_nodes")["gpu01"]
    assert (given["labels"], given["taints"]) == ({"node-role.kubernetes.io/worker": ""}, [])


@pytest.mark.proves("kubernetes", "A head exports volumes only for the class nfs without another server.")
@pytest.mark.parametrize(
    ("known", "state"),
    [
        ({"kubernetes_storage_class": "nfs"}, "present"),
        ({"kubernetes_storage_class": "nfs", "kubernetes_storage_nfs_export": "nas:/volumes"}, "absent"),
        ({"kubernetes_storage_class": "local"}, "absent"),
        ({"kubernetes_storage_class": "none"}, "absent"),
    ],
)
def test_storage__class_that_changes__ends_the_export(tmp_path: Path, known: Data, state: str) -> None:
    role = a_cluster(tmp_path, "debian-13", "kubernetes").role("kubernetes_storage", "head1", **known)
    (call,) = (given for path, given in role.calls() if path.name == "main.yml")
    assert call["state"] == state
    units = [one["name"] for one in call["units"]]
    assert (units, call["packages"]) == (["nfs-server"], ["nfs-kernel-server"])


@pytest.mark.proves("kubernetes", "Pods of the system run on tainted nodes, in namespaces that admit them.")
@pytest.mark.parametrize("role", ROLES)
def test_objects__of_the_system__can_run_where_they_have_to(role: str, tmp_path: Path) -> None:
    more = {"kubernetes_network_policies": True, "kubernetes_storage_class": "nfs"}
    found = objects(tmp_path, role, **more)
    admitting = {
        one["metadata"]["name"]
        for one in by_kind(found, "Namespace")
        if one["metadata"]["labels"].get("pod-security.kubernetes.io/enforce") == "privileged"
    }
    for one in found:
        if one["kind"] in ("DaemonSet", "Deployment"):
            assert one["metadata"]["namespace"] in admitting
            tolerations = one["spec"]["template"]["spec"]["tolerations"]
            # A Deployment's pod would come back to a head that is being drained, if it tolerated a cordon.
            needed = {"operator": "Exists", "effect": "NoSchedule"}
            if one["kind"] == "Deployment":
                needed["key"] = "node-role.kubernetes.io/control-plane"
            assert needed in tolerations
            labels = one["spec"]["template"]["metadata"]["labels"]
            assert one["spec"]["selector"]["matchLabels"].items() <= labels.items()
            for container in one["spec"]["template"]["spec"]["containers"]:
                assert ":v" in container["image"], "images have a version"


@pytest.mark.proves("add-node", "A worker whose kubelet would be newer than the API server does not join.")
@pytest.mark.parametrize(
    ("wanted", "has", "is_newer"),
    [("1.36.3", "1.36.9", False), ("1.36.3", "1.35.9", True), ("1.10.0", "1.9.0", True), ("1.36.3", "", False)],
)
def test_worker__newer_than_the_api__is_refused(tmp_path: Path, wanted: str, has: str, is_newer: bool) -> None:
    cluster = a_cluster(tmp_path, "debian-13", "kubernetes", kubernetes_node_version=wanted)
    role = cluster.role("kubernetes_worker", "gpu01", __kubernetes_worker_cluster={"version": has})
    assert role.value("__kubernetes_worker_is_newer") is is_newer


@pytest.mark.parametrize(
    ("silent", "converged", "asked"), [([], [], "head1"), (["head1"], [], "head2"), ([], ["head3"], "head3")]
)
def test_head__that_a_worker_asks__responds(
    tmp_path: Path, silent: list[str], converged: list[str], asked: str
) -> None:
    cluster = a_cluster(tmp_path, "debian-13", "kubernetes", ["head2", "head3"])
    for name in converged:
        cluster.set(name, __base_converged={})
    role = cluster.role("kubernetes_worker", "gpu01", kubernetes_silent_heads=silent)
    assert role.value("__kubernetes_worker_head") == asked


@pytest.mark.parametrize(
    ("seen", "registered", "joining"),
    [
        ({"joined": True}, ["gpu01"], []),
        ({"joined": False}, ["gpu01"], ["gpu01"]),
        ({"joined": True}, [], ["gpu01"]),
        ({"joined": False}, [], ["gpu01"]),
        ({"skipped": True}, [], ["gpu01"]),
        ({"failed": True}, [], []),
        (None, [], []),
    ],
)
def test_worker__joining__is_one_that_is_no_node_or_incomplete(
    tmp_path: Path, seen: Data | None, registered: list[str], joining: list[str]
) -> None:
    """A head has joined as a head. A worker that failed before has no result."""
    cluster = a_cluster(tmp_path, "debian-13", "kubernetes")
    for name in ("head1", "gpu01") if seen is not None else ():
        cluster.set(name, __kubernetes_worker_seen=seen)
    known = {"__kubernetes_worker_cluster": {"registered": registered}}
    assert cluster.role("kubernetes_worker", "gpu01", **known).value("__kubernetes_worker_joining") == joining


@pytest.mark.parametrize(
    ("result", "left"),
    [({"joined": True}, []), ({"failed": True}, ["gpu01"]), ({"unreachable": True}, ["gpu01"]), (None, ["gpu01"])],
)
def test_worker__that_has_not_joined__its_token_is_deleted(
    tmp_path: Path, result: Data | None, left: list[str]
) -> None:
    cluster = a_cluster(tmp_path, "debian-13", "kubernetes")
    joins = {} if result is None else {"__kubernetes_worker_join": result}
    cluster.set("gpu01", __kubernetes_worker_seen={"joined": False}, **joins)
    known: Data = {"__kubernetes_worker_cluster": {"registered": []}}
    assert cluster.role("kubernetes_worker", "gpu01", **known).value("__kubernetes_worker_left") == left


def test_worker__with_a_problem_on_the_head__has_it_alone(tmp_path: Path) -> None:
    prepared = {"joining": {"gpu01": {"problem": "why"}, "gpu02": {"discovery": "secret"}}}
    cluster = a_cluster(tmp_path, "debian-13", "kubernetes")
    role = cluster.role("kubernetes_worker", "gpu01", __kubernetes_worker_prepared=prepared)
    assert role.value("__kubernetes_worker_ticket") == {"problem": "why"}


def test_worker__joins_with_a_taint_and_a_file_in_memory(tmp_path: Path) -> None:
    role = a_cluster(tmp_path, "debian-13", "kubernetes").role("kubernetes_worker", "gpu01")
    found = role.value("__kubernetes_worker_configuration")
    assert found["nodeRegistration"]["name"] == "gpu01"
    assert found["nodeRegistration"]["taints"] == [{"key": NODES.NEW, "effect": "NoSchedule"}]
    assert found["discovery"]["file"]["kubeConfigPath"].startswith("/run/")


def test_worker__whose_kubelet_accepts_swap_and_version_1__joins(tmp_path: Path) -> None:
    accepting = {"kubernetes_node_kubelet_config": {"failSwapOn": False, "failCgroupV1": False}}
    role = a_cluster(tmp_path, "debian-13", "kubernetes").role("kubernetes_worker", "gpu01", **accepting)
    assert role.value("__kubernetes_worker_ignore") == ["SystemVerification", "Swap"]


@pytest.mark.proves("kubernetes", "A timer checks the GPUs of Kubernetes' workers; Slurm does that itself.")
@pytest.mark.parametrize("scheduler", ["slurm", "kubernetes"])
def test_health__of_a_worker__is_checked_by_the_scheduler_or_a_timer(scheduler: str, tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path, "debian-13", scheduler)
    (call,) = [given for _, given in cluster.role("gpu_health", "gpu01").calls() if given.get("files")]
    timer = next(one for one in call["files"] if one["dest"].endswith(".timer"))
    timed = scheduler == "kubernetes"
    assert (timer.get("state") != "absent", call["units"] != []) == (timed, timed)
    units = cluster.role("verify", "gpu01").value("query('role_services')")
    assert ("gpu-health.timer" in units) is timed


def test_health__of_a_worker__goes_to_all_heads_of_its_scheduler(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path, "debian-13", "kubernetes")
    cluster.set("head1", kubernetes_gpu_health_port=7000)
    role = cluster.role("gpu_health", "gpu01")
    given = role.value("__gpu_health_given")
    assert (given["heads"], given["port"], given["node"]) == (["10.0.0.10"], 7000, "gpu01")
