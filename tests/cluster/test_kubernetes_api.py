"""The files and programs of role kubernetes_head, with the real kubeadm, etcd and API server, without nodes."""

import base64
import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from clusterctl.lab import kit_recipe
from tests.cluster.control_plane import ADDRESS, KEY, ControlPlane, running
from tests.cluster.identity_provider import CLIENT, Provider
from tests.faults.injury import wait_until
from tests.labs import REPOSITORY
from tests.unit.test_kubernetes_certificates import pem

pytestmark = pytest.mark.kit("kubernetes")

ROLES = REPOSITORY / "roles"
PRIORITIES = {"urgent": {"value": 1000, "limited": True, "preempts": True}, "normal": {"value": 0, "default": True}}
TEAMS = {
    "vision": {"quota": {"pods": 5}, "priorities": {"urgent": {"pods": 1}}, "groups": ["vision"]},
    "speech": {"quota": {"requests.nvidia.com/gpu": "16"}},
}

CONFIGURATION = "--config=/etc/kubernetes/clusterctl/kubeadm.yaml"
ETCD = (
    "etcdctl",
    "--cacert=/etc/kubernetes/pki/etcd/ca.crt",
    "--cert=/etc/kubernetes/pki/etcd/healthcheck-client.crt",
    "--key=/etc/kubernetes/pki/etcd/healthcheck-client.key",
)


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Provider:
    """The identity provider of the control plane. A test starts its server."""
    return Provider(tmp_path_factory.mktemp("provider"), ADDRESS)


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory, provider: Provider) -> Iterator[ControlPlane]:
    """A running control plane, used by all tests in their order."""
    oidc = {"issuer": provider.issuer, "client": CLIENT, "groups_claim": "groups", "certificate": "provider.pem"}
    given = {"kubernetes_head_oidc": oidc, "kubernetes_quota_priorities": PRIORITIES}
    files = {"provider.pem": provider.certificate}
    with running(tmp_path_factory.mktemp("control-plane"), files, **given) as found:
        yield found


@pytest.fixture(scope="module")
def nodes(head: ControlPlane) -> ControlPlane:
    """Two workers that have just joined, as the kubelet registers them."""
    taints = [{"key": "clusterctl/new", "effect": "NoSchedule"}]
    for name in ("gpu01", "gpu02"):
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {"taints": taints}}
        head.run("kubectl", "create", "--filename=-", stdin=node)
    return head


@pytest.mark.proves("kubernetes", "kubeadm accepts its configuration, and asks for the kit's images.")
def test_kubeadm__configuration_of_the_role__is_valid(head: ControlPlane) -> None:
    assert head.run("kubeadm", "config", "validate", CONFIGURATION) == "ok\n"
    assert head.run("kubeadm", "config", "validate", "--config=/etc/kubernetes/clusterctl/join.yaml") == "ok\n"
    wanted = set(head.run("kubeadm", "config", "images", "list", CONFIGURATION).split())
    made = {f"{one.name}:{one.tag}" for recipe in kit_recipe.load(("kubernetes",)) for one in recipe.images}
    assert wanted <= made


@pytest.mark.proves("kubernetes", "Without a certificate, the API server answers about its health alone.")
def test_anonymous__asks__learns_only_of_health(head: ControlPlane) -> None:
    ask = ("curl", "--silent", "--insecure", "--output", "/dev/null", "--write-out", "%{http_code}")
    codes = {path: head.run(*ask, f"https://10.99.0.1:6443/{path}") for path in ("livez", "readyz", "api", "version")}
    assert codes == {"livez": "200", "readyz": "200", "api": "401", "version": "401"}


@pytest.mark.proves("kubernetes", "The objects of each role are accepted, and a second run changes none.")
@pytest.mark.parametrize(
    ("role", "variables"),
    [
        ("kubernetes_exporter", {}),
        ("kubernetes_network", {}),
        ("kubernetes_network", {"kubernetes_network_policies": True}),
        ("kubernetes_gpu", {"kubernetes_gpu_time_slices": 4, "kubernetes_gpu_mig_strategy": "mixed"}),
        ("kubernetes_quota", {}),
        ("kubernetes_quota", {"kubernetes_quota_priorities": PRIORITIES, "kubernetes_quota_teams": TEAMS}),
        ("kubernetes_storage", {}),
        ("kubernetes_storage", {"kubernetes_storage_class": "nfs"}),
    ],
)
def test_objects__of_a_role__are_applied_once(head: ControlPlane, role: str, variables: dict[str, object]) -> None:
    wanted = head.objects(role, **variables)
    planned = head.apply(role, wanted, check=True)
    assert planned
    assert head.apply(role, wanted) == planned
    assert head.apply(role, wanted) == []
    assert head.apply(role, wanted, check=True) == []


@pytest.mark.proves("kubernetes", "A StorageClass with another policy replaces the old one.")
def test_objects__storage_class_with_fixed_fields__is_created_again(head: ControlPlane) -> None:
    wanted = head.objects("kubernetes_storage")
    (storage,) = (one for one in wanted if one["kind"] == "StorageClass")
    head.apply("kubernetes_storage", wanted)
    storage["reclaimPolicy"] = "Retain"
    planned = head.apply("kubernetes_storage", wanted, check=True)
    assert planned == [f"changed {storage['metadata']['name']}"]
    assert head.apply("kubernetes_storage", wanted) == planned
    assert head.get("storageclass", storage["metadata"]["name"])["reclaimPolicy"] == "Retain"
    assert head.apply("kubernetes_storage", wanted) == []


@pytest.mark.proves("kubernetes", "New nodes are cordoned and labelled; a second run changes none.")
def test_nodes__that_are_new__are_cordoned_and_labelled(nodes: ControlPlane) -> None:
    given = nodes.rendered.role("kubernetes_worker", "gpu01").value("__kubernetes_worker_nodes")
    given = {name: one for name, one in given.items() if not one["is_head"]}
    done = nodes.changes("kubernetes_nodes", {"nodes": given})
    assert {line.split()[1] for line in done if "cordoned" in line} == {"gpu01", "gpu02"}
    assert nodes.changes("kubernetes_nodes", {"nodes": given}) == []
    assert nodes.call("kubernetes_nodes", {})["version"] == "1.36.3"
    assert set(json.loads(nodes.run("kubernetes-drain"))) == {"gpu01", "gpu02"}
    assert nodes.run("kubernetes-drain", "new", "--in", "gpu01") == "gpu01 in\n"
    assert [one["spec"].get("unschedulable", False) for one in nodes.get("nodes")] == [False, True]
    assert nodes.get("node", "gpu01")["metadata"]["labels"]["clusterctl/gpu-model"] == "a100"


@pytest.mark.proves("kubernetes", "kube-proxy restarts once after the API's addresses changed.")
@pytest.mark.proves("kubernetes", "With two heads, CoreDNS has to run on different nodes.")
def test_system_pods__of_kubeadm__are_adapted_once(nodes: ControlPlane) -> None:
    def changes(*addresses: str, check: bool = False, is_new: bool = False) -> list[str]:
        given = {"addresses": addresses, "nodes": ["head1", "head2", "gpu01", "gpu02"], "is_new": is_new}
        return nodes.changes("kubernetes_system_pods", given, check=check)

    def template(kind: str, name: str) -> Any:
        return nodes.get(kind, name, "--namespace=kube-system")["spec"]["template"]

    assert changes(ADDRESS, is_new=True) == []
    assert changes(ADDRESS) == []
    planned = changes(ADDRESS, "10.99.0.2", check=True)
    assert planned == [f"changed kube-system/kube-proxy restart with the API's addresses {ADDRESS},10.99.0.2"]
    assert changes(ADDRESS, "10.99.0.2") == planned
    assert changes(ADDRESS, "10.99.0.2") == []
    assert template("daemonset", "kube-proxy")["metadata"]["annotations"] == {
        "clusterctl/api-addresses": f"{ADDRESS},10.99.0.2"
    }
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    for name in ("head1", "head2"):
        head = {"name": name, "labels": {"node-role.kubernetes.io/control-plane": ""}}
        nodes.run("kubectl", "create", "--filename=-", stdin={"apiVersion": "v1", "kind": "Node", "metadata": head})
        nodes.run("kubectl", "patch", "node", name, "--subresource=status", f"--patch={json.dumps(ready)}")
        wait_until(lambda: not nodes.get("node", name)["spec"].get("taints"))  # noqa: B023
    try:
        spread = ["changed kube-system/coredns restart its pods on different nodes"]
        assert changes(ADDRESS, "10.99.0.2", check=True) == spread
        assert changes(ADDRESS, "10.99.0.2") == spread
        assert changes(ADDRESS, "10.99.0.2") == []
    finally:
        nodes.run("kubectl", "delete", "node", "head1", "head2")
    (constraint,) = template("deployment", "coredns")["spec"]["topologySpreadConstraints"]
    assert (constraint["whenUnsatisfiable"], constraint["nodeTaintsPolicy"]) == ("DoNotSchedule", "Honor")


@pytest.mark.proves("secrets", "The token of a run that was killed after its node had joined is deleted.")
def test_nodes__with_a_token_that_is_left__lose_it(nodes: ControlPlane) -> None:
    given = nodes.rendered.role("kubernetes_worker", "gpu01").value("__kubernetes_worker_nodes")
    for node in ("gpu01", "gpu02"):  # the second one joins in another run
        nodes.run("kubernetes-join", node)
    assert nodes.changes("kubernetes_nodes", {"nodes": {"gpu01": given["gpu01"]}}) == []
    left = nodes.get("secrets", "--namespace=kube-system", "--field-selector=type=bootstrap.kubernetes.io/token")
    assert [base64.b64decode(one["data"]["description"]).decode() for one in left] == ["clusterctl: gpu02"]
    nodes.run("kubernetes-join", "--delete", "gpu02")


@pytest.mark.proves("kubernetes", "The signed certificate has the names of the approved request.")
def test_certificates__of_kubelets__are_approved_for_their_own_names(nodes: ControlPlane) -> None:
    """The API server itself takes the second block of the last request, and would sign it."""
    own, others = pem("gpu01", "10.99.0.11"), pem("kubernetes-api.aurora.cluster", "10.99.0.1")
    # A node chooses the names of its requests: the last one would have kubectl print its help instead.
    for name, text in (("own", own), ("others", others), ("both", f"x{own}{others}"), ("--help", own)):
        request = signing_request(name, text, "kubelet-serving", "server auth")
        nodes.run("kubectl", "create", "--filename=-", *as_user("system:node:gpu01", "system:nodes"), stdin=request)
    said = nodes.ask("kubernetes-certificates", "approve")
    assert said.returncode == 1
    assert "both: gpu01: the request cannot be read" in said.stderr
    assert "others: gpu01 asks for a certificate of" in said.stderr
    approved = {one["metadata"]["name"] for one in nodes.get("csr") if one["status"].get("conditions")}
    assert approved == {"own", "--help"}


def signing_request(name: str, text: str, signer: str, usage: str) -> dict[str, object]:
    """Return a CertificateSigningRequest of a kubelet."""
    request = base64.b64encode(text.encode()).decode()
    return {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": name},
        "spec": {"request": request, "signerName": f"kubernetes.io/{signer}", "usages": ["digital signature", usage]},
    }


def kubelets_request(name: str, node: str) -> dict[str, object]:
    """Return the request for the client certificate of a node's kubelet."""
    return signing_request(name, pem(name=f"system:node:{node}"), "kube-apiserver-client-kubelet", "client auth")


def ask_for(head: ControlPlane, name: str, node: str, *options: str) -> None:
    """Request the client certificate of a node's kubelet, as the user of kubectl's options."""
    head.run("kubectl", "create", "--filename=-", *options, stdin=kubelets_request(name, node))


def is_approved(head: ControlPlane, name: str) -> bool:
    """Return whether a request is approved and the certificate issued."""
    status = head.get("csr", name).get("status", {})
    return "certificate" in status and [one["type"] for one in status["conditions"]] == ["Approved"]


@pytest.mark.proves("kubernetes", "A join token gets the certificate of its own node, and of no other one.")
def test_token__of_a_worker__gets_its_own_certificate_alone(nodes: ControlPlane) -> None:
    (nodes.folder / "gpu01.conf").write_text(nodes.run("kubernetes-join", "gpu01"))
    (nodes.folder / "token").write_text(nodes.run("kubeadm", "token", "create").strip())
    watch = nodes.launch("watch", "kubernetes-certificates", "watch")
    with_token = f"--kubeconfig={nodes.folder}/gpu01.conf"
    ask_for(nodes, "join-of-another", "gpu02", with_token)
    ask_for(nodes, "join-of-a-head", "head1", with_token)
    place = (
        "--server=https://kubernetes-api.aurora.cluster:6443",
        "--certificate-authority=/etc/kubernetes/pki/ca.crt",
    )
    by_hand = f"--token={(nodes.folder / 'token').read_text()}"
    ask_for(nodes, "join-by-hand", "gpu01", "--kubeconfig=/dev/null", *place, by_hand)
    ask_for(nodes, "join-of-itself", "gpu01", with_token)
    wait_until(lambda: is_approved(nodes, "join-of-itself"))
    refused = ("join-of-another", "join-of-a-head", "join-by-hand")
    assert [nodes.get("csr", name).get("status", {}) for name in refused] == [{}, {}, {}]
    assert watch.poll() is None
    nodes.run("kubernetes-join", "--delete", "gpu01")
    assert watch.wait(60) == 0, "it does not end with the last token of a node"
    lines = (nodes.folder / "watch.log").read_text().splitlines()
    assert "approved join-of-itself" in lines
    assert [line for line in lines if "join-of-another: gpu01 asks for a certificate of system:node:gpu02" in line]
    said = nodes.ask("kubernetes-certificates", "approve").stderr
    assert "join-by-hand: the token" in said
    assert said.count("kubernetes-join did not make it") == 3
    nodes.run("kubectl", "delete", "csr", *refused)
    nodes.run("kubernetes-join", "--delete-all")


@pytest.mark.proves("kubernetes", "Kubernetes approves a node's renewal and a head's join, and no other node's name.")
def test_certificates__without_a_token__are_approved_by_kubernetes(nodes: ControlPlane) -> None:
    """A head joins with the administrator's kubeconfig, which its kubelet's request has, too."""
    node = as_user("system:node:gpu01", "system:nodes")
    ask_for(nodes, "renewal", "gpu01", *node)
    ask_for(nodes, "head", "head2")
    for name in ("renewal", "head"):
        wait_until(lambda: is_approved(nodes, name))  # noqa: B023
    other = kubelets_request("renewal-of-another", "gpu02")
    said = nodes.ask("kubectl", "create", "--filename=-", *node, stdin=other).stderr
    assert "can only create a node CSR with CN=system:node:gpu01" in said


@pytest.mark.proves("kubernetes", "The binding that approves any node for any token is deleted once.")
def test_autoapproval__of_kubeadm__is_deleted_once(head: ControlPlane) -> None:
    head.run("kubeadm", "init", "phase", "bootstrap-token", CONFIGURATION)
    head.run("kubernetes-join", "--delete-all")
    script = "import sys, tests.unit.test_node_state; from tests.unit.test_role_plugins import plugin"
    script += "; print(plugin('modules/kubernetes_control_plane').delete_autoapproval(sys.argv[1] == 'check'))"
    done = [head.run(sys.executable, "-c", script, word).strip() for word in ("check", "check", "run", "run", "check")]
    assert done == ["True", "True", "True", "False", "False"]
    bindings = [one["metadata"]["name"] for one in head.get("clusterrolebindings")]
    assert [name for name in bindings if "autoapprove" in name] == ["kubeadm:node-autoapprove-certificate-rotation"]


@pytest.mark.proves("kubernetes", "A worker's token can do no more than join, and is deleted.")
def test_token__of_a_worker__authenticates_and_is_deleted(nodes: ControlPlane) -> None:
    discovery = json.loads(nodes.run("kubernetes-join", "gpu02"))
    assert discovery["clusters"][0]["cluster"]["server"] == "https://kubernetes-api.aurora.cluster:6443"
    assert [set(discovery["users"][0]["user"])] == [{"token"}]
    kind = "--field-selector=type=bootstrap.kubernetes.io/token"
    (secret,) = nodes.get("secrets", "--namespace=kube-system", kind)
    assert "usage-bootstrap-signing" not in secret["data"]
    nodes.run("kubernetes-join", "--delete", "gpu02")
    assert nodes.get("secrets", "--namespace=kube-system", kind) == []


@pytest.mark.proves("kubeconfig", "A person's rights end at the own namespace, and with the person's removal.")
def test_person__with_a_kubeconfig__is_confined(head: ControlPlane) -> None:
    path = head.folder / "ada.conf"
    path.write_text(head.run("kubernetes-user", "ada"))

    def may(*what: str) -> str:
        return head.ask("kubectl", "auth", "can-i", *what, KUBECONFIG=str(path)).stdout.strip()

    assert may("create", "pods", "--namespace=ada") == "yes"
    assert may("get", "pods", "--namespace=kube-system") == "no"
    assert may("create", "rolebindings", "--namespace=ada") == "no"
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "evil"},
        "spec": {"externalIPs": ["10.99.0.1"], "ports": [{"port": 53}]},
    }
    said = head.ask("kubectl", "create", "--filename=-", "--namespace=ada", stdin=service, KUBECONFIG=str(path))
    assert "Use of external IPs is denied by admission control" in said.stderr
    head.run("kubernetes-user", "--remove", "ada")
    assert may("create", "pods", "--namespace=ada") == "no"


@pytest.mark.proves("kubeconfig", "A person of the identity provider has the namespace of their own name alone.")
def test_person__of_the_identity_provider__is_confined(head: ControlPlane, provider: Provider) -> None:
    head.launch("provider", sys.executable, *provider.serve)
    head.run("kubernetes-user", "grace")
    connection = ["--server=https://kubernetes-api.aurora.cluster:6443"]
    connection += ["--certificate-authority=/etc/kubernetes/pki/ca.crt"]

    def ask(name: str, *argv: str) -> str:
        token = f"--token={provider.token(name, groups=['vision'])}"
        return head.ask("kubectl", *connection, token, *argv, KUBECONFIG="/dev/null").stdout.strip()

    # The API server retries every 10 s to read the keys of a provider that did not respond.
    wait_until(lambda: ask("grace", "auth", "whoami"))
    found = json.loads(ask("grace", "auth", "whoami", "--output=json"))["status"]["userInfo"]
    assert (found["username"], found["groups"]) == ("oidc:grace", ["oidc:vision", "system:authenticated"])
    assert ask("grace", "auth", "can-i", "create", "pods", "--namespace=grace") == "yes"
    assert ask("grace", "auth", "can-i", "get", "pods", "--namespace=kube-system") == "no"
    assert ask("alan", "auth", "can-i", "create", "pods", "--namespace=grace") == "no"
    head.run("kubernetes-user", "--remove", "grace")
    assert ask("grace", "auth", "can-i", "create", "pods", "--namespace=grace") == "no"


@pytest.mark.proves("kubernetes", "Secrets are encrypted in etcd.")
@pytest.mark.proves("backup", "etcd's snapshot is readable by root alone.")
def test_etcd__secrets__are_encrypted(head: ControlPlane) -> None:
    head.run("kubectl", "create", "secret", "generic", "hidden", "--from-literal=word=plain-text")
    stored = head.run(*ETCD, "get", "/registry/secrets/default/hidden", "--hex", "--print-value-only")
    text = bytes.fromhex(stored.replace("\\x", "").strip())
    assert text.startswith(b"k8s:enc:secretbox:v1:key1:")
    assert b"plain-text" not in text
    assert KEY not in head.run("cat", "/etc/kubernetes/manifests/kube-apiserver.yaml")
    snapshot = head.folder / "snapshot.db"
    head.run("kubernetes-etcd", "--snapshot", str(snapshot))
    assert snapshot.stat().st_mode & 0o777 == 0o600
    (member,) = json.loads(head.run("kubernetes-etcd"))
    assert (member["name"], member["healthy"]) == ("head1", True)


@pytest.mark.proves("kubernetes", "A head knows the networks and the endpoint of its cluster, which cannot change.")
def test_look__at_a_head__has_its_networks(head: ControlPlane) -> None:
    head.run("sh", "-c", "echo '{}' > /etc/kubernetes/clusterctl/complete")
    found = head.call("kubernetes_control_plane", {"step": "look", "name": "head1"})
    assert (found["state"], found["version"]) == ("complete", "1.36.3")
    assert found["fixed"] == {
        "pod_network": "10.244.0.0/16",
        "service_network": "10.96.0.0/12",
        "endpoint": "kubernetes-api.aurora.cluster:6443",
    }


@pytest.mark.proves("monitoring", "A head's metrics have its nodes, etcd and the expiry of its certificates.")
def test_metrics__of_a_head__are_written(nodes: ControlPlane) -> None:
    file = "/var/cache/clusterctl/kubernetes.prom"
    nodes.run("cp", str(ROLES / "node_exporter/files/metrics_file.py"), "/usr/local/lib/clusterctl")
    program = str(ROLES / "kubernetes_exporter/files/kubernetes-metrics")
    nodes.run("python3", program, file)
    text = nodes.run("cat", file)
    assert "kubernetes_up 1\n" in text
    assert 'kubernetes_node_state{node="gpu01",state="' in text
    assert "kubernetes_etcd_up 1\n" in text
    assert "etcd_server_has_leader 1.0\n" in text
    assert "etcd_server_quota_backend_bytes 8589934592.0\n" in text
    assert 'kubernetes_certificate_end_seconds{certificate="pki/apiserver.crt"} ' in text

    nodes.run("mv", "/etc/kubernetes/admin.conf", "/etc/kubernetes/admin.conf.away")
    try:
        nodes.run("python3", program, file)
        text = nodes.run("cat", file)
    finally:
        nodes.run("mv", "/etc/kubernetes/admin.conf.away", "/etc/kubernetes/admin.conf")
    assert "kubernetes_up 0\n" in text
    assert "kubernetes_node_state" not in text
    assert "kubernetes_etcd_up 1\n" in text


@pytest.mark.proves("monitoring", "Prometheus' certificate reads the API server's metrics, and nothing else.")
def test_metrics__with_the_certificate_of_prometheus__are_all_it_reads(head: ControlPlane) -> None:
    head.apply("kubernetes_exporter", head.objects("kubernetes_exporter"))
    role = head.rendered.role("prometheus", "head1")
    for name, content in role.value("__prometheus_kubernetes_issued").items():
        (head.folder / f"{name}.pem").write_text(content)
    curl = ["curl", "--silent", "--cacert", str(head.folder / "authority.pem")]
    curl += ["--cert", str(head.folder / "certificate.pem"), "--key", str(head.folder / "key.pem")]
    names = set(re.findall(r"(?m)^[a-z_]+", head.run(*curl, f"https://{ADDRESS}:6443/metrics")))
    for expression in role.value("__prometheus_kubernetes_metrics"):
        if expression.startswith(("apiserver_", "process_", "kubernetes_")):
            assert any(re.fullmatch(expression, name) for name in names), expression
    for path in ("api/v1/secrets", "api/v1/pods", "logs/"):
        assert '"code": 403' in head.run(*curl, f"https://{ADDRESS}:6443/{path}"), path


def refusal(head: ControlPlane, namespace: str, name: str, who: Sequence[str] = (), **spec: object) -> str:
    """Return why a pod is refused; empty if it is created. `who` are kubectl's options for another user."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"containers": [{"name": "main", "image": "none"}], **spec},
    }
    return head.ask("kubectl", "create", "--filename=-", *who, stdin=pod).stderr


@pytest.mark.proves("kubernetes", "A person cannot create pods of the system's priority classes.")
@pytest.mark.parametrize("name", ["system-node-critical", "system-cluster-critical"])
def test_priority__of_the_system__is_for_its_namespaces(head: ControlPlane, name: str) -> None:
    head.apply("kubernetes_quota", head.objects("kubernetes_quota"))
    head.ask("kubectl", "create", "namespace", "drivers")
    head.run("kubectl", "label", "--overwrite", "namespace", "drivers", "pod-security.kubernetes.io/enforce=privileged")
    spaces = ("default", "kube-system", "drivers")
    wait_until(lambda: all(head.get("serviceaccounts", f"--namespace={space}") for space in spaces))
    said = "only kube-system and namespaces with"
    # The API server reads a new policy some seconds later.
    wait_until(lambda: said in refusal(head, "default", f"early-{time.monotonic_ns()}", priorityClassName=name))
    assert refusal(head, "kube-system", name, priorityClassName=name) == ""
    assert refusal(head, "drivers", name, priorityClassName=name) == ""
    assert refusal(head, "default", f"plain-{name}") == ""


def as_user(name: str, *groups: str) -> list[str]:
    """Return kubectl's options to impersonate a user."""
    return [f"--as={name}", *(f"--as-group={group}" for group in (*groups, "system:authenticated"))]


def limit(head: ControlPlane, role: str) -> None:
    """Apply the objects of a role, and wait until the API server has read its policies."""
    wanted = head.objects(role)
    head.apply(role, wanted)
    kind = "validatingadmissionpolicies"
    names = [one["metadata"]["name"] for one in wanted if one["kind"] == "ValidatingAdmissionPolicy"]
    for name in names:
        wait_until(lambda: head.get(kind, name).get("status", {}).get("observedGeneration"))  # noqa: B023
        assert head.get(kind, name)["status"].get("typeChecking", {}) == {}, name


VOLUMES: tuple[dict[str, Any], ...] = (
    {"configMap": {"name": "one"}},
    {"downwardAPI": {"items": []}},
    {"emptyDir": {}},
    {"ephemeral": {"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"],
                                                    "resources": {"requests": {"storage": "1Mi"}}}}}},
    {"persistentVolumeClaim": {"claimName": "one"}},
    {"projected": {"sources": []}},
    {"secret": {"secretName": "one"}},
)  # fmt: skip


def tolerating(**toleration: str) -> dict[str, object]:
    return {"tolerations": [{"operator": "Exists", **toleration}]}


NFS = {"name": "v", "nfs": {"server": "head1", "path": "/srv"}}
CSI = {"name": "v", "csi": {"driver": "nfs.csi.k8s.io", "volumeAttributes": {"server": "head1"}}}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "nfs": ({"volumes": [NFS]}, "need a PersistentVolumeClaim"),
    "csi": ({"volumes": [CSI]}, "need a PersistentVolumeClaim"),
    "placed": ({"nodeName": "gpu01"}, "goes past the scheduler"),
    "all": (tolerating(), "cannot tolerate"),
    "heads": (tolerating(key="node-role.kubernetes.io/control-plane"), "cannot tolerate"),
    "new": (tolerating(key="clusterctl/new"), "cannot tolerate"),
    "cordoned": (tolerating(key="node.kubernetes.io/unschedulable"), "cannot tolerate"),
}


@pytest.mark.proves(
    "kubernetes", "Persons' pods mount no servers' volumes, and run neither on heads nor on cordoned nodes."
)
def test_pods__of_persons__are_limited(head: ControlPlane) -> None:
    limit(head, "kubernetes_quota")
    head.run("kubernetes-user", "eve")
    wait_until(lambda: head.get("serviceaccounts", "--namespace=eve"))
    eve = as_user("eve")
    controller = as_user("system:serviceaccount:kube-system:replicaset-controller", "system:serviceaccounts")
    daemons = as_user("system:serviceaccount:kube-system:daemon-set-controller", "system:serviceaccounts")
    wait_until(lambda: "goes past" in refusal(head, "eve", f"early-{time.monotonic_ns()}", eve, nodeName="gpu01"))
    for name, (spec, why) in REFUSED.items():
        for who in (eve, controller):
            assert why in refusal(head, "eve", name, who, **spec), name
        assert refusal(head, "eve", name, **spec) == "", f"an administrator may: {name}"
    unschedulable = REFUSED["cordoned"][0]
    assert refusal(head, "eve", "daemon", daemons, **unschedulable) == ""
    assert "cannot tolerate" in refusal(head, "eve", "daemon-2", daemons, **REFUSED["heads"][0])
    volumes = [{"name": f"v{number}", **one} for number, one in enumerate(VOLUMES)]
    assert refusal(head, "eve", "good", eve, volumes=volumes, **tolerating(key="nvidia.com/gpu")) == ""
    patch = json.dumps([{"op": "add", "path": "/spec/tolerations/-", "value": {"operator": "Exists"}}])
    changed = ("kubectl", "patch", "pod", "--namespace=eve", "--type=json", f"--patch={patch}", *eve)
    assert "cannot tolerate" in head.ask(*changed, "good").stderr
    for name in ("good", "daemon"):
        head.run("kubectl", "label", "pod", "--namespace=eve", name, "a=b", *eve)
    head.run("kubernetes-user", "--remove", "eve")


@pytest.mark.proves("kubernetes", "A kubelet cannot change clusterctl's labels and drains, nor uncordon its node.")
def test_kubelet__with_its_own_node__changes_nothing_of_clusterctl(nodes: ControlPlane) -> None:
    limit(nodes, "kubernetes_quota")
    kubelet = as_user("system:node:gpu02", "system:nodes")

    def says(*argv: str) -> str:
        return nodes.ask("kubectl", *argv, *kubelet).stderr

    wait_until(lambda: "labels of clusterctl" in says("label", "node", "gpu02", f"clusterctl/{time.monotonic_ns()}="))
    assert says("label", "node", "gpu02", "example.com/rack=7") == ""
    nodes.run("kubectl", "label", "node", "gpu02", "clusterctl/group.a=", "example.com/rack=8", "--overwrite")
    assert "labels of clusterctl" in says("label", "node", "gpu02", "clusterctl/group.a-")
    assert "labels of clusterctl" in says("label", "node", "gpu02", "clusterctl/group.a=x", "--overwrite")
    assert "annotations of clusterctl" in says("annotate", "node", "gpu02", "clusterctl/drain.x=y")
    nodes.run("kubectl", "cordon", "gpu02")
    assert "cannot cordon or uncordon" in says("uncordon", "gpu02")
    new: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "gpu04", "labels": {"clusterctl/group.a": ""}},
    }
    register = ("kubectl", "create", "--filename=-", *as_user("system:node:gpu04", "system:nodes"))
    assert "labels of clusterctl" in nodes.ask(*register, stdin=new).stderr
    del new["metadata"]["labels"]
    nodes.run(*register, stdin=new)
    nodes.run("kubectl", "delete", "node", "gpu04")


@pytest.mark.proves("kubernetes", "flannel's token changes flannel's annotations of its own node, and nothing else.")
def test_flannel__with_its_token__changes_only_its_own_annotations(nodes: ControlPlane) -> None:
    limit(nodes, "kubernetes_network")
    address = {"metadata": {"annotations": {"flannel.alpha.coreos.com/public-ip": "10.99.0.12"}}}

    bound = ("--bound-object-kind=Node", "--bound-object-name=gpu02")
    token = nodes.run("kubectl", "create", "token", "flannel", "--namespace=kube-flannel", *bound).strip()

    def says(node: str, patch: object) -> str:
        """Return the API's message about a patch with the token of flannel's pod on gpu02; empty if it is done."""
        curl = ["curl", "--silent", "--request", "PATCH", "--cacert", "/etc/kubernetes/pki/ca.crt", "--data", "@-"]
        curl += [
            "--header",
            "Content-Type: application/strategic-merge-patch+json",
            "--header",
            f"Authorization: Bearer {token}",
        ]
        found = json.loads(nodes.run(*curl, f"https://{ADDRESS}:6443/api/v1/nodes/{node}/status", stdin=patch))
        return str(found.get("message", ""))

    wait_until(lambda: "only the node on which it runs" in says("gpu01", address))
    assert says("gpu02", address) == ""
    ready = {"type": "NetworkUnavailable", "status": "False", "reason": "FlannelIsUp"}
    assert says("gpu02", {"status": {"conditions": [ready]}}) == ""
    assert "its own annotations" in says("gpu02", {"metadata": {"annotations": {"clusterctl/drain.x": "y"}}})
    forged: list[object] = [
        {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}},
        {"status": {"addresses": [{"type": "InternalIP", "address": "10.99.0.11"}]}},
        {"status": {"conditions": [{"type": "Ready", "status": "False"}]}},
        {"status": {"allocatable": {"nvidia.com/gpu": "9"}}},
    ]
    for patch in forged:
        assert "only the condition" in says("gpu02", patch), patch


@pytest.mark.proves("kubernetes", "Only teams with a quota for a limited priority class can use it.")
@pytest.mark.proves(
    "kubernetes", "A team that left the inventory keeps its namespace and quotas; its groups lose access."
)
def test_teams__in_the_inventory__share_by_quotas(head: ControlPlane) -> None:
    def apply(**variables: object) -> list[str]:
        return head.apply("kubernetes_quota", head.objects("kubernetes_quota", **variables))

    apply(kubernetes_quota_priorities=PRIORITIES, kubernetes_quota_teams=TEAMS)
    wait_until(lambda: head.get("serviceaccounts", "--namespace=vision") != [])
    wait_until(lambda: head.get("resourcequota", "clusterctl-urgent", "--namespace=vision")["status"].get("hard"))
    wait_until(lambda: head.get("serviceaccounts", "--namespace=speech") != [])
    assert refusal(head, "vision", "first", priorityClassName="urgent") == ""
    assert "exceeded quota: clusterctl-urgent" in refusal(head, "vision", "second", priorityClassName="urgent")
    assert "insufficient quota to match these scopes" in refusal(head, "speech", "first", priorityClassName="urgent")
    assert refusal(head, "speech", "second") == ""
    assert head.get("pod", "second", "--namespace=speech")["spec"]["priorityClassName"] == "normal"

    lower = {**PRIORITIES, "urgent": {**PRIORITIES["urgent"], "value": 500}}
    changed = apply(kubernetes_quota_priorities=lower, kubernetes_quota_teams={"speech": TEAMS["speech"]})
    assert sorted(changed) == [
        "changed urgent",
        "removed vision/clusterctl",  # the RoleBinding
    ]
    assert head.get("pod", "first", "--namespace=vision")["spec"]["priority"] == 1000
    assert "exceeded quota: clusterctl-urgent" in refusal(head, "vision", "third", priorityClassName="urgent")

    other = {"urgent": lower["urgent"], "standard": {"value": 0, "default": True}}
    changed = apply(kubernetes_quota_priorities=other, kubernetes_quota_teams={"speech": TEAMS["speech"]})
    assert changed == ["removed normal", "created standard"]
