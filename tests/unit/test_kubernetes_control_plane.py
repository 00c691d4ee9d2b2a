"""The module that runs kubeadm on a head: what it does from each state that a killed call may have left."""

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.node_state import record as node_record

import tests.unit.test_node_state  # noqa: F401 - lets the modules of the nodes be found
from tests.unit.test_role_plugins import plugin

MODULE = plugin("modules/kubernetes_control_plane")
GIVEN = {
    "name": "head1",
    "address": "10.0.0.10",
    "port": 6443,
    "create": True,
    "ignore": ["NumCPU"],
    "step": "converge",
    "configured": "",
    "version": "",
}
CONFIGURATION = """\
---
kind: ClusterConfiguration
kubernetesVersion: v1.36.3
etcd:
  local:
    extraArgs:
    - name: quota-backend-bytes
      value: '1'
---
kind: KubeletConfiguration
"""


class Head:
    """A head's files, and a kubeadm that writes what the real one writes."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.calls, self.version = folder, list[str](), "v1.36.3"
        self.fails, self.killed, self.looks, self.now = "", "", 0, 0.0
        self.running: Callable[[int], list[dict[str, Any]]] = lambda _: [self.pod(name) for name in MODULE.STATIC_PODS]
        self.deleted: list[str] = []
        self.bindings: set[str] = set()
        for name in ("clusterctl/patches", "manifests", "pki/etcd", "store/state"):
            (folder / name).mkdir(parents=True)
        for name in MODULE.SHARED:
            (folder / "pki" / name).write_text(f"shared {name}")
        (folder / "clusterctl/kubeadm.yaml").write_text(CONFIGURATION)
        (folder / "clusterctl/patches/kube-apiserver+merge.yaml").write_text("metadata: {}\n")
        places = {
            "KUBERNETES": "",
            "PKI": "pki",
            "MANIFESTS": "manifests",
            "OWN": "clusterctl",
            "PATCHES": "clusterctl/patches",
            "CONFIGURATION": "clusterctl/kubeadm.yaml",
            "JOIN": "clusterctl/join.yaml",
            "STARTED": "clusterctl/started",
            "UPGRADING": "clusterctl/upgrading",
            "STAGED": "clusterctl/restore.db",
            "COMPLETE": "clusterctl/complete",
            "ETCD": "etcd",
        }
        for name, path in places.items():
            monkeypatch.setattr(MODULE, name, folder / path)
        monkeypatch.setattr(MODULE, "run", self.run)
        monkeypatch.setattr(MODULE, "installed", lambda: self.version.removeprefix("v"))
        monkeypatch.setattr(MODULE, "kubectl", self.kubectl)
        monkeypatch.setattr(MODULE, "get", self.get)
        monkeypatch.setattr(MODULE.shutil, "which", lambda _: "/usr/bin/kubeadm")
        monkeypatch.setattr(MODULE.time, "sleep", self.sleep)
        monkeypatch.setattr(MODULE.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(node_record, "STORE", folder / "store")

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def run(self, *argv: str, **_: Any) -> tuple[int, str]:
        words = " ".join(word for word in argv[1:] if not word.startswith("-"))
        if argv[0] == "crictl":
            return 0, ""
        if words == "config images list":
            return 0, "registry.k8s.io/pause:3.10.2\nregistry.k8s.io/etcd:3.6.8-0\n"
        self.calls.append(" ".join(argv[1:]).replace(str(self.folder), "/etc/kubernetes"))
        if words == self.fails:
            return (
                1,
                "[init] Using Kubernetes version\nerror: execution phase preflight: no\n\t[ERROR Mem]: too small\n",
            )
        if words in ("init", "join", "upgrade apply v1.37.0", "upgrade node"):
            self.write("admin.conf", "scheduler.conf", "pki/apiserver.crt", "pki/apiserver.key", "pki/etcd/peer.key")
            self.manifests(self.version, *MODULE.STATIC_PODS)
            (self.folder / "etcd/member").mkdir(parents=True, exist_ok=True)
        if words in ("init", "upgrade apply v1.37.0"):
            self.bindings |= {f"kubeadm:node-autoapprove-{what}" for what in ("bootstrap", "certificate-rotation")}
        if words == "init phase control-plane all":
            self.manifests(f"{self.version} and {(self.folder / 'clusterctl/kubeadm.yaml').read_text()}")
        if words == "init phase etcd local":
            self.manifests(self.version, "etcd")
        if words == "reset":
            for path in (
                *(self.folder / "pki").rglob("*"),
                *(self.folder / "manifests").glob("*"),
                *self.folder.glob("*.conf"),
            ):
                if path.is_file():
                    path.unlink()
        if words == self.killed:
            raise KeyboardInterrupt
        return 0, ""

    def write(self, *names: str) -> None:
        for name in names:
            (self.folder / name).write_text("derived")

    def manifests(self, text: str, *names: str) -> None:
        for name in names or MODULE.COMPONENTS:
            spec = {"metadata": {"labels": {"component": name}}, "spec": {"containers": [{"args": [text]}]}}
            content = f"# image: registry.k8s.io/{name}:{text.split()[0]}\n{json.dumps(spec)}\n"
            (self.folder / f"manifests/{name}.yaml").write_text(content)

    def manifest(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = yaml.safe_load((self.folder / f"manifests/{name}.yaml").read_text())
        return found

    def pod(self, name: str) -> dict[str, Any]:
        """Return the static pod that the kubelet runs from a manifest, with the fields that are added."""
        one = self.manifest(name)
        one["spec"] |= {"nodeName": "head1", "restartPolicy": "Always"}
        conditions = [{"type": "Ready", "status": "True"}]
        return {**one, "status": {"conditions": conditions, "containerStatuses": [{"containerID": name}]}}

    def kubectl(self, *argv: str, **_: Any) -> tuple[int, str, str]:
        if argv[:2] == ("get", "clusterrolebinding"):
            return 0, f"clusterrolebinding.rbac.authorization.k8s.io/{argv[2]}\n" * (argv[2] in self.bindings), ""
        if argv[:2] == ("delete", "clusterrolebinding"):
            self.bindings.remove(argv[2])
        elif argv[0] == "delete":
            self.deleted.append(" ".join(argv[1:]))
        if argv[0] == "label":
            return 0, json.dumps(self.manifest(Path(argv[2]).stem)), ""
        if argv[:2] == ("get", "pods"):
            self.looks += 1
            return 0, json.dumps({"kind": "List", "items": self.running(self.looks)}), ""
        return 0, "ok", ""

    def get(self, *_: str, **__: Any) -> list[dict[str, Any]]:
        return [{"data": {"ClusterConfiguration": "kind: ClusterConfiguration\nkubernetesVersion: v1.36.3\n"}}]

    def converge(self, **changes: Any) -> list[str]:
        """Return the changes of one call as text, and check the files that all heads share."""
        changes.setdefault("check", False)
        check = changes.pop("check")
        found = [f"{one['action']} {one['what'] or one['to']}" for one in MODULE.converge({**GIVEN, **changes}, check)]
        for name in MODULE.SHARED:
            assert (self.folder / "pki" / name).read_text() == f"shared {name}"
        return found


@pytest.fixture
def head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Head:
    return Head(tmp_path, monkeypatch)


INIT = "init --config=/etc/kubernetes/clusterctl/kubeadm.yaml --skip-phases=show-join-command --skip-token-print"
JOIN = [
    "init phase kubeconfig admin --config=/etc/kubernetes/clusterctl/kubeadm.yaml",
    "join --config=/etc/kubernetes/clusterctl/join.yaml --ignore-preflight-errors=NumCPU",
]


def test_converge__new_head__creates_the_cluster_once(head: Head) -> None:
    assert MODULE.look() == "new"
    assert head.converge() == ["created created"]
    assert head.calls == [f"{INIT} --ignore-preflight-errors=NumCPU"]
    assert MODULE.look() == "complete"
    assert not (head.folder / "clusterctl/started").exists()
    assert head.converge() == []
    assert len(head.calls) == 1


def test_create__token_of_kubeadm__is_deleted(head: Head) -> None:
    head.converge()
    assert len(head.deleted) == 1
    assert "type=bootstrap.kubernetes.io/token" in head.deleted[0]


RENEWALS = {"kubeadm:node-autoapprove-certificate-rotation"}


@pytest.mark.proves("kubernetes", "Kubernetes itself approves no token's certificate, after an upgrade neither.")
def test_converge__autoapproval_of_tokens__is_deleted(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    head.converge()
    assert head.bindings == RENEWALS
    found = [{"data": {"ClusterConfiguration": "kubernetesVersion: v1.36.3\n"}}]
    monkeypatch.setattr(MODULE, "get", lambda *_, **__: found)
    head.version = "v1.37.0"
    head.converge()
    assert head.calls[-1].startswith("upgrade apply")
    assert head.bindings == RENEWALS


def test_converge__autoapproval_of_an_older_cluster__is_deleted_once(head: Head) -> None:
    head.converge()
    head.bindings.add(MODULE.AUTOAPPROVAL)
    (head.folder / "manifests/etcd.yaml").unlink()
    planned = head.converge(check=True)
    assert planned == ["repaired created", "removed kubernetes-certificates approves joins"]
    assert MODULE.AUTOAPPROVAL in head.bindings
    assert head.converge() == planned
    assert head.bindings == RENEWALS
    assert head.converge() == head.converge(check=True) == []


def test_converge__api_does_not_answer_a_dry_run__is_no_error(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    head.converge()
    original = head.kubectl

    def refused(*argv: str, check: bool = True, **options: Any) -> tuple[int, str, str]:
        if argv[0] == "get" and check:
            raise MODULE.NodeError("connection refused")
        return (1, "", "connection refused") if argv[0] == "get" else original(*argv, **options)

    monkeypatch.setattr(MODULE, "kubectl", refused)
    assert head.converge(check=True) == []
    with pytest.raises(MODULE.NodeError, match="connection refused"):
        head.converge()


@pytest.mark.proves("kubernetes", "A killed `kubeadm init` is finished by the same command, without loss of data.")
def test_converge__killed_init__is_finished(head: Head) -> None:
    head.killed = "init"
    with pytest.raises(KeyboardInterrupt):
        head.converge()
    (head.folder / "admin.conf").write_text("half of a kubeconf")
    assert MODULE.look() == "init"
    head.killed = ""
    assert head.converge() == ["created created"]
    checks = head.calls[1].partition("--ignore-preflight-errors=")[2].split(",")
    assert {"NumCPU", "DirAvailable--var-lib-etcd", "Port-6443", "Port-2379"} <= set(checks)
    assert "FileAvailable--etc-kubernetes-manifests-kube-apiserver.yaml" in checks
    assert (head.folder / "admin.conf").read_text() == "derived"
    assert (head.folder / "etcd/member").exists()
    assert "reset" not in " ".join(head.calls)


def test_delete_derived__keeps_what_all_heads_share(head: Head) -> None:
    head.write("pki/apiserver.crt", "pki/etcd/server.key", "kubelet.conf", "manifests/etcd.yaml")
    MODULE.delete_derived()
    left = {str(path.relative_to(head.folder)) for path in head.folder.rglob("*") if path.is_file()}
    assert left == {f"pki/{name}" for name in MODULE.SHARED} | {
        "clusterctl/kubeadm.yaml",
        "clusterctl/patches/kube-apiserver+merge.yaml",
    }


def test_converge__further_head__joins_with_its_own_credentials(head: Head) -> None:
    assert head.converge(create=False) == ["created joined"]
    assert head.calls == JOIN
    assert head.converge(create=False) == []


def test_converge__killed_join__begins_with_an_empty_etcd(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    """etcd refuses a member that is added again with the data of its former life."""
    head.killed = "join"
    with pytest.raises(KeyboardInterrupt):
        head.converge(create=False)
    assert (MODULE.look(), (head.folder / "etcd/member").exists()) == ("join", True)
    head.killed, head.calls = "", []
    states: list[bool] = []
    original = head.run

    def watched(*argv: str, **options: Any) -> tuple[int, str]:
        states.append((head.folder / "etcd/member").exists())
        return original(*argv, **options)

    monkeypatch.setattr(MODULE, "run", watched)
    assert head.converge(create=False) == ["created joined"]
    assert head.calls[0].startswith("reset --force")
    assert "--skip-phases=remove-etcd-member" in head.calls[0]
    assert head.calls[1:] == JOIN
    assert states == [True, False, False]


def test_converge__killed_init_on_a_head_that_now_joins__is_reset(head: Head) -> None:
    (head.folder / "clusterctl/started").write_text('{"step": "init"}')
    head.converge(create=False)
    assert [call.split()[0] for call in head.calls] == ["reset", "init", "join"]


def test_fixed__files_of_kubeadm__has_networks_and_endpoint(head: Head) -> None:
    """The lines are those that kubeadm 1.36 writes (cmd/kubeadm/app/phases/controlplane/manifests.go)."""
    manifest = "    - --cluster-cidr=10.244.0.0/16\n    - --service-cluster-ip-range=10.96.0.0/12\n"
    (head.folder / "manifests/kube-controller-manager.yaml").write_text(manifest)
    (head.folder / "admin.conf").write_text("clusters:\n- cluster:\n    server: https://kubernetes-api.aurora:6443\n")
    assert MODULE.fixed() == {
        "pod_network": "10.244.0.0/16",
        "service_network": "10.96.0.0/12",
        "endpoint": "kubernetes-api.aurora:6443",
    }


@pytest.mark.parametrize("text", ["", "half", "[]", '{"step": "x"}'])
def test_look__damaged_marker__is_an_error(head: Head, text: str) -> None:
    """A guess could delete the data of etcd."""
    (head.folder / "clusterctl/started").write_text(text)
    with pytest.raises(MODULE.NodeError, match="started is damaged"):
        MODULE.look()


@pytest.mark.parametrize("path", ["manifests/kube-apiserver.yaml", "admin.conf", "etcd/member"])
def test_look__control_plane_of_another_tool__is_refused(head: Head, path: str) -> None:
    (head.folder / path).parent.mkdir(exist_ok=True)
    (head.folder / path).write_text("x")
    with pytest.raises(MODULE.NodeError, match=f"{path} exists, but clusterctl did not set up"):
        MODULE.look()


def test_converge__dry_run__runs_nothing(head: Head) -> None:
    assert head.converge(check=True) == ["created created"]
    assert head.converge(check=True, create=False) == ["created joined"]
    assert (head.calls, MODULE.look()) == ([], "new")


def test_converge__kubeadm_fails__shows_its_errors_and_resumes(head: Head) -> None:
    head.fails = "init"
    with pytest.raises(MODULE.NodeError) as caught:
        head.converge()
    assert str(caught.value) == "kubeadm init failed: error: execution phase preflight: no\n\t[ERROR Mem]: too small"
    assert MODULE.look() == "init"


def test_errors__of_kubeadm__have_no_token() -> None:
    token = "abcdef.0123456789abcdef"
    output = f"[bootstrap-token] Using token: {token}\nerror: {token}\nTo see the stack trace x\n"
    assert MODULE.errors(output) == "error: TOKEN"
    assert MODULE.errors("a\nb\n") == "a\nb"


@pytest.mark.proves("kubernetes", "A resumed restore stops a running etcd before it replaces its data.")
def test_converge__staged_snapshot__is_etcds_data_before_init(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed call repeats it. The kubelet may run etcd from its manifest then."""

    @contextlib.contextmanager
    def tool(image: str, name: str, _: Path) -> Iterator[str]:
        assert (image, name) == ("registry.k8s.io/etcd:3.6.8-0", "etcdutl")
        yield "etcdutl"

    def restored(_: str, snapshot: Path, data: Path, name: str, peer: str, *options: str) -> None:
        assert (snapshot.read_text(), name, peer) == ("snapshot", "head1", "https://10.0.0.10:2380")
        assert "--mark-compacted" in options
        assert list((head.folder / "manifests").iterdir()) == []
        (data / "member").mkdir(parents=True)
        (data / "member/db").write_text("restored")

    monkeypatch.setattr(MODULE, "STAGED", head.folder / "clusterctl/restore.db")
    monkeypatch.setattr(MODULE, "tool", tool)
    monkeypatch.setattr(MODULE, "restore", restored)
    MODULE.STAGED.write_text("snapshot")
    head.killed = "init"
    with pytest.raises(KeyboardInterrupt):
        head.converge()
    assert [call.split()[0] for call in head.calls] == ["init"]
    assert (head.folder / "etcd/member/db").read_text() == "restored"
    (head.folder / "etcd/member/db").write_text("half")
    head.killed, head.calls = "", []
    assert head.converge() == ["created created"]
    assert [call.split()[0] for call in head.calls] == ["reset", "init"]
    assert (head.folder / "etcd/member/db").read_text() == "restored"
    assert "DirAvailable--var-lib-etcd" in head.calls[-1]
    assert not MODULE.STAGED.exists()
    assert [path.name for path in (head.folder / "etcd").iterdir()] == ["member"]


# --- changes --------------------------------------------------------------------------------------------------------

APPLIED = "changed applies kubeadm.yaml and patches, which changed since they were last applied"
PHASES = ["certs apiserver", "upload-config kubeadm", "upload-config kubelet", "etcd local", "control-plane all"]


def phases(head: Head) -> list[str]:
    return [re.sub(" --.*", "", call).removeprefix("init phase ") for call in head.calls[1:]]


@pytest.mark.proves(
    "kubernetes", "A changed configuration of all kubelets reaches the nodes that join or are upgraded."
)
def test_converge__changed_configuration__is_applied_once(head: Head) -> None:
    head.converge()
    changed = CONFIGURATION.replace("kind: KubeletConfiguration", "kind: KubeletConfiguration\nmaxPods: 50")
    (head.folder / "clusterctl/kubeadm.yaml").write_text(changed)
    assert head.converge(check=True) == [APPLIED]
    assert head.converge() == [APPLIED]
    assert phases(head) == [name for name in PHASES if name != "etcd local"]
    assert head.converge() == []


def test_converge__dry_run_before_files_are_written__reports_the_change(head: Head) -> None:
    head.converge()
    assert head.converge(check=True, configured="changed") == [APPLIED]
    assert head.converge(check=True) == []
    assert head.converge(configured="changed") == [], "a run compares the files themselves"
    assert len(head.calls) == 1


@pytest.mark.proves("plan", "kubeadm.yaml that was changed by hand is only restored: nothing restarts.")
def test_converge__dry_run_after_a_change_by_hand__reports_nothing(head: Head) -> None:
    """Before a run comes here, node_state has restored the file."""
    head.converge()
    path = head.folder / "clusterctl/kubeadm.yaml"
    path.write_text(CONFIGURATION + "# by hand\n")
    assert head.converge(check=True, configured="restored") == []
    assert head.converge(check=True, configured="changed") == [APPLIED], "the inventory changed, too"
    path.write_text(CONFIGURATION)
    assert head.converge() == []


def test_converge__dry_run_before_kubeadm_is_upgraded__reports_the_upgrade(head: Head) -> None:
    head.converge()
    assert head.converge(check=True, version="1.37.0") == ["upgraded version 1.37.0, was 1.36.3"]
    assert head.converge(check=True, version="1.36.3") == []
    assert head.converge(version="1.37.0") == [], "a run has the installed kubeadm"
    assert len(head.calls) == 1


def test_converge__open_directory_of_etcd__is_closed(head: Head) -> None:
    head.converge()
    (head.folder / "etcd").chmod(0o755)
    assert head.converge(check=True) == head.converge() == ["changed mode 0700"]
    assert (head.folder / "etcd").stat().st_mode & 0o777 == 0o700


def test_converge__changed_options_of_etcd__restart_it_too(head: Head) -> None:
    head.converge()
    (head.folder / "clusterctl/kubeadm.yaml").write_text(CONFIGURATION.replace("value: '1'", "value: '2'"))
    head.converge()
    assert phases(head) == PHASES


def test_converge__changed_patch__is_a_changed_configuration(head: Head) -> None:
    head.converge()
    (head.folder / "clusterctl/patches/kube-apiserver+merge.yaml").write_text("metadata: {annotations: {a: b}}\n")
    assert head.converge() == [APPLIED]


def test_converge__killed_while_it_changes__is_repeated(head: Head) -> None:
    head.converge()
    (head.folder / "clusterctl/kubeadm.yaml").write_text(CONFIGURATION + "maxPods: 50\n")
    head.killed = "init phase certs apiserver"
    with pytest.raises(KeyboardInterrupt):
        head.converge()
    head.killed = ""
    assert head.converge() == [APPLIED]


def test_wait__component_stays_as_it_was__is_an_error(head: Head) -> None:
    head.converge()
    old = [head.pod(name) for name in MODULE.STATIC_PODS]
    head.running = lambda _: old
    MODULE.wait(GIVEN)
    head.manifests("v1.36.3 changed", "kube-scheduler")
    with pytest.raises(MODULE.NodeError, match=r"^kube-scheduler did not become ready in 300 s"):
        MODULE.wait(GIVEN)


@pytest.mark.proves("upgrade", "A head's upgrade ends when its static pods do not restart any more.")
def test_wait__containers_that_restart__ends_when_they_are_steady(head: Head) -> None:
    head.converge()
    head.looks = 0

    def running(look: int) -> list[dict[str, Any]]:
        """The API server does not answer from the 5th to the 7th look, and has another container then."""
        found = [head.pod(name) for name in MODULE.STATIC_PODS]
        found[1]["status"]["containerStatuses"][0]["containerID"] += str(look > 4)
        return [] if look in range(5, 8) else found

    head.running = running
    MODULE.wait(GIVEN)
    assert head.looks == 8 + MODULE.STEADY_S


def test_matches__object_of_the_api__has_the_manifests_fields_and_others(head: Head) -> None:
    head.converge()
    wanted, there = head.manifest("etcd"), head.pod("etcd")
    assert MODULE.matches(there, wanted)
    there["spec"]["containers"].append({"args": []})
    assert not MODULE.matches(there, wanted)
    there = head.pod("etcd")
    there["spec"]["containers"][0]["args"] = []
    assert not MODULE.matches(there, wanted)


@pytest.mark.proves("bootstrap", "A static pod's manifest that was changed or removed by hand is repaired.")
@pytest.mark.parametrize(("component", "phase"), [("kube-scheduler", "control-plane all"), ("etcd", "etcd local")])
@pytest.mark.parametrize("way", ["edited", "removed", "mode"])
def test_converge__manifest_changed_by_hand__is_repaired(head: Head, component: str, phase: str, way: str) -> None:
    head.converge()
    assert head.converge() == []
    path = head.folder / f"manifests/{component}.yaml"
    path.chmod(0o600)
    MODULE.record()
    if way == "edited":
        path.write_text(path.read_text() + "# by hand\n")
    elif way == "removed":
        path.unlink()
    else:
        path.chmod(0o644)
    words = {"edited": "content", "removed": "created", "mode": "mode 0600, was 0644"}[way]
    for check in (True, False):
        assert head.converge(check=check) == [f"repaired {words}"]
    assert phases(head) == [phase]
    assert path.stat().st_mode & 0o777 == 0o600
    assert head.converge() == []


@pytest.mark.parametrize(("cluster", "call"), [("v1.36.3", "upgrade apply v1.37.0 --yes"), ("v1.37.0", "upgrade node")])
def test_converge__newer_kubeadm__upgrades(
    head: Head, monkeypatch: pytest.MonkeyPatch, cluster: str, call: str
) -> None:
    """The first head upgrades the cluster's configuration, too, each other one only itself."""
    head.converge()
    found = [{"data": {"ClusterConfiguration": f"kubernetesVersion: {cluster}\n"}}]
    monkeypatch.setattr(MODULE, "get", lambda *_, **__: found)
    head.version = "v1.37.0"
    assert head.converge() == ["upgraded version 1.37.0, was 1.36.3"]
    assert head.calls[1].startswith(f"{call} --patches=/etc/kubernetes/clusterctl/patches")
    assert head.converge() == []


@pytest.mark.proves("upgrade", "A killed upgrade of Kubernetes' control plane is repeated to its end.")
def test_converge__upgrade_was_killed__repeats_it(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    """kubeadm has changed the API server's manifest and the cluster's configuration already."""
    head.converge()
    head.version, head.killed = "v1.37.0", "upgrade apply v1.37.0"
    with pytest.raises(KeyboardInterrupt):
        head.converge()
    head.killed = ""
    monkeypatch.setattr(
        MODULE, "get", lambda *_, **__: [{"data": {"ClusterConfiguration": "kubernetesVersion: v1.37.0\n"}}]
    )
    assert head.converge() == ["upgraded version 1.37.0"]
    assert head.calls[1] == head.calls[2]
    assert head.converge() == []


def test_converge__older_kubeadm__is_left(head: Head) -> None:
    head.converge()
    head.version = "v1.35.9"
    assert head.converge() == []


def test_numbers__of_versions__are_compared_as_numbers() -> None:
    assert MODULE.numbers("1.36.10") > MODULE.numbers("1.36.9")


def test_remove__head__leaves_nothing(head: Head) -> None:
    assert MODULE.remove(GIVEN, False) == []
    head.converge()
    assert [one["action"] for one in MODULE.remove(GIVEN, True)] == ["removed"]
    assert MODULE.look() == "complete"
    MODULE.remove(GIVEN, False)
    assert not (head.folder / "etcd").exists()
    assert MODULE.look() == "new"
