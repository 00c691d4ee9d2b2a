"""Role kubernetes_head: kubeadm's configuration, what the API server reads, and which head creates the cluster."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.systems import rendering
from tests.unit.test_node_state import action

Data = dict[str, Any]


@pytest.fixture
def heads(tmp_path: Path) -> Callable[..., rendering.Cluster]:
    """Return a function that makes a cluster of several heads and a worker."""

    def make(count: int = 1, system: str = "debian-13", **variables: Any) -> rendering.Cluster:
        hosts = {f"head{number}": f"10.0.0.{number}" for number in range(1, count + 1)} | {"gpu01": "10.0.0.11"}
        groups = {"kubernetes_head": [name for name in hosts if name != "gpu01"], "kubernetes_workers": ["gpu01"]}
        children = {
            group: {"hosts": {name: {"ansible_host": hosts[name]} for name in names}} for group, names in groups.items()
        }
        inventory = {"all": {"vars": {"cluster_name": "aurora", **variables}, "children": children}}
        (tmp_path / "hardware").mkdir()
        for name, address in hosts.items():
            record = rendering.record(name, 0, system)
            record["nics"][0] |= {"name": "enp1s0", "addresses": [f"{address}/24"]}
            (tmp_path / f"hardware/{name}.json").write_text(json.dumps(record), encoding="utf-8")
        rendering.seal(tmp_path)
        (tmp_path / "company.pem").write_text("-----BEGIN CERTIFICATE-----\n", encoding="utf-8")
        (tmp_path / "inventory.yaml").write_text(yaml.safe_dump(inventory), encoding="utf-8")
        return rendering.Cluster(tmp_path / "inventory.yaml", system, {})

    return make


def call(role: rendering.Role) -> Data:
    """Return the arguments of the call that configures a head."""
    return next(given for path, given in role.calls() if path.name == "main.yml")


def files(role: rendering.Role) -> dict[str, bytes | None]:
    return {item["dest"]: role.content(item) for item in call(role)["files"]}


def documents(role: rendering.Role) -> dict[str, Data]:
    """Return kubeadm's configuration by kind."""
    text = files(role)["/etc/kubernetes/clusterctl/kubeadm.yaml"]
    assert text
    return {one["kind"]: one for one in yaml.safe_load_all(text)}


def own(role: rendering.Role, name: str) -> Data:
    """Return a file that the API server reads."""
    found = yaml.safe_load(files(role)[f"/etc/kubernetes/clusterctl/{name}"] or b"")
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("count", [1, 3])
def test_files__of_a_head__are_valid_for_node_state(heads: Callable[..., rendering.Cluster], count: int) -> None:
    role = heads(count, kubernetes_node_api_address="10.0.0.100").role("kubernetes_head", "head1")
    action.normalise({"name": "kubernetes_head", **call(role)}, lambda how, name: f"{how} {name}")
    for item in call(role)["files"]:
        if item["dest"].endswith((".key", "encryption.yaml")):
            assert (item["mode"], item["secret"]) == ("0600", True)
        if item["dest"].startswith("/usr/local/sbin/"):
            assert item["mode"] == "0755"


@pytest.mark.parametrize("name", ["kubeadm.yaml", "join.yaml"])
def test_configuration__of_kubeadm__has_no_document_without_a_kind(
    heads: Callable[..., rendering.Cluster], name: str
) -> None:
    """Comments before a separator are a document for kubeadm: YAMLReader in k8s.io/apimachinery/pkg/util/yaml."""
    text = files(heads().role("kubernetes_head", "head1"))[f"/etc/kubernetes/clusterctl/{name}"] or b""
    parts = text.decode().split("---\n")
    assert len(parts) == {"kubeadm.yaml": 4, "join.yaml": 1}[name]
    assert all("\nkind: " in part for part in parts)


def test_configuration__of_kubeadm__has_endpoint_version_and_networks(heads: Callable[..., rendering.Cluster]) -> None:
    cluster = heads(3, kubernetes_node_api_port=7443, kubernetes_node_pod_network="10.9.0.0/16")
    role = cluster.role("kubernetes_head", "head2", __kubernetes_head_found={"version": "1.36.9", "state": "new"})
    found = documents(role)
    assert list(found) == [
        "InitConfiguration",
        "ClusterConfiguration",
        "KubeletConfiguration",
        "KubeProxyConfiguration",
    ]
    assert found["InitConfiguration"]["localAPIEndpoint"] == {"advertiseAddress": "10.0.0.2", "bindPort": 7443}
    assert found["InitConfiguration"]["nodeRegistration"]["name"] == "head2"
    shared = found["ClusterConfiguration"]
    assert shared["controlPlaneEndpoint"] == "kubernetes-api.aurora.cluster:7443"
    assert shared["kubernetesVersion"] == "v1.36.9"  # that of the installed kubeadm, which an upgrade replaces
    assert shared["networking"]["podSubnet"] == "10.9.0.0/16"
    assert found["KubeletConfiguration"]["serverTLSBootstrap"] is True
    frequencies = [found["KubeletConfiguration"][f"nodeStatus{kind}Frequency"] for kind in ("Update", "Report")]
    assert frequencies == ["3s", "5m"]  # without the second one, each kubelet would send its status every 3 s
    joins = own(role, "join.yaml")
    assert joins["controlPlane"]["localAPIEndpoint"] == found["InitConfiguration"]["localAPIEndpoint"]


def test_configuration__shared_part__is_the_same_on_all_heads(heads: Callable[..., rendering.Cluster]) -> None:
    """kubeadm stores it once in the cluster: a difference would go back and forth between the heads."""
    cluster = heads(3, kubernetes_node_api_address="10.0.0.100")
    first, *others = (documents(cluster.role("kubernetes_head", f"head{number}")) for number in (1, 2, 3))
    for other in others:
        assert {**first, "InitConfiguration": None} == {**other, "InitConfiguration": None}


def test_options__of_the_components__can_be_changed_and_removed(heads: Callable[..., rendering.Cluster]) -> None:
    cluster = heads(
        kubernetes_head_apiserver_args={"profiling": None, "event-ttl": "2h", "feature-gates": "A=true"},
        kubernetes_head_proxy_config={"conntrack": {"min": 0}},
    )
    found = documents(cluster.role("kubernetes_head", "head1"))
    options = {one["name"]: one["value"] for one in found["ClusterConfiguration"]["apiServer"]["extraArgs"]}
    assert "profiling" not in options
    assert options["event-ttl"] == "2h"
    assert all(isinstance(value, str) for value in options.values()), "kubeadm's values are texts"
    assert (
        found["KubeProxyConfiguration"] | {"conntrack": {"min": 0}, "mode": "nftables"}
        == found["KubeProxyConfiguration"]
    )


@pytest.mark.proves("kubernetes", "Without authentication the API answers health probes and nothing else.")
def test_authentication__anonymous__is_for_probes_only(heads: Callable[..., rendering.Cluster]) -> None:
    role = heads().role("kubernetes_head", "head1")
    found = own(role, "authentication.yaml")
    assert [one["path"] for one in found["anonymous"]["conditions"]] == ["/livez", "/readyz", "/healthz"]
    assert found["jwt"] == []
    options = [one["name"] for one in documents(role)["ClusterConfiguration"]["apiServer"]["extraArgs"]]
    assert "authentication-config" in options
    assert "anonymous-auth" not in options  # kube-apiserver refuses both


def test_authentication__provider__has_a_prefix_and_its_certificate(heads: Callable[..., rendering.Cluster]) -> None:
    oidc = {"issuer": "https://id.example", "client": "k8s", "groups_claim": "groups", "certificate": "company.pem"}
    role = heads(kubernetes_head_oidc=oidc).role("kubernetes_head", "head1")
    (provider,) = own(role, "authentication.yaml")["jwt"]
    assert own(role, "users.json")["prefixes"] == ["", provider["claimMappings"]["username"]["prefix"]]
    certificate = "-----BEGIN CERTIFICATE-----\n"
    assert provider["issuer"] == {
        "url": "https://id.example",
        "audiences": ["k8s"],
        "certificateAuthority": certificate,
    }
    assert provider["claimMappings"] == {
        "username": {"claim": "sub", "prefix": "oidc:"},
        "groups": {"claim": "groups", "prefix": "oidc:"},
    }


@pytest.mark.proves("kubernetes", "Secrets are encrypted in etcd with a key of the cluster.")
def test_encryption__secrets__have_the_clusters_key(heads: Callable[..., rendering.Cluster]) -> None:
    (rule,) = own(heads().role("kubernetes_head", "head1"), "encryption.yaml")["resources"]
    first, last = rule["providers"]
    assert (rule["resources"], last) == (["secrets"], {"identity": {}})
    assert first["secretbox"]["keys"] == [{"name": "key1", "secret": rendering.SECRET}]


def test_admission__pod_security__is_baseline_but_for_the_system(heads: Callable[..., rendering.Cluster]) -> None:
    (plugin,) = own(heads().role("kubernetes_head", "head1"), "admission.yaml")["plugins"]
    assert plugin["configuration"]["defaults"]["enforce"] == "baseline"
    assert plugin["configuration"]["exemptions"] == {"namespaces": ["kube-system"]}


def test_patch__admission_changes__restarts_the_api_server(heads: Callable[..., rendering.Cluster]) -> None:
    """It reads the file only when it starts; the digest is in its manifest."""
    cluster, name = heads(), "patches/kube-apiserver+merge.yaml"
    role = cluster.role("kubernetes_head", "head1", kubernetes_head_pod_security="restricted")
    assert own(role, name) != own(cluster.role("kubernetes_head", "head1"), name)


def test_nodes__for_certificates__are_those_of_the_inventory(heads: Callable[..., rendering.Cluster]) -> None:
    found = own(heads(3).role("kubernetes_head", "head2"), "nodes.json")
    assert (found["name"], found["port"], found["heads"]["head3"]) == ("head2", 6443, "10.0.0.3")
    assert found["nodes"]["gpu01"] == {"names": ["gpu01", "gpu01.aurora.cluster"], "addresses": ["10.0.0.11"]}
    assert set(found["nodes"]) == {"head1", "head2", "head3", "gpu01"}


@pytest.mark.proves("plan", "A plan reports which heads restart their control plane for a changed configuration.")
@pytest.mark.parametrize(
    ("kind", "path", "edited", "expected"),
    [
        ("file", "kubeadm.yaml", [], "changed"),
        ("file", "kubeadm.yaml", ["kubeadm.yaml"], "restored"),
        ("file", "kubeadm.yaml", ["join.yaml"], "changed"),
        ("file", "patches/kube-apiserver+merge.yaml", [], "changed"),
        ("file", "join.yaml", [], ""),
        ("directory", "patches", [], ""),
    ],
)
def test_configured__by_the_changed_files__is_given_to_the_module(
    heads: Callable[..., rendering.Cluster], kind: str, path: str, edited: list[str], expected: str
) -> None:
    directory = "/etc/kubernetes/clusterctl"
    changes = [{"kind": kind, "name": f"{directory}/{path}", "action": "changed"}]
    configured = {"changes": changes, "edited": [f"{directory}/{name}" for name in edited]}
    role = heads().role("kubernetes_head", "head1", __kubernetes_head_configured=configured)
    assert role.value("__kubernetes_head_wanted")["configured"] == expected


@pytest.mark.proves("plan", "A plan of an upgrade reports the old and new version of each control plane.")
@pytest.mark.parametrize(
    ("check", "moves", "expected"), [(True, True, "1.37.1"), (True, False, ""), (False, True, ""), (False, False, "")]
)
def test_version__of_an_upgrade__is_known_in_check_mode(
    heads: Callable[..., rendering.Cluster], check: bool, moves: bool, expected: str
) -> None:
    """In check mode the old kubeadm is still installed."""
    known = {"ansible_check_mode": check, "upgrade_roles": ["kubernetes_node"] if moves else []}
    found = {"version": "1.36.3", "state": "complete"}
    role = heads(kubernetes_node_version="1.37.1").role(
        "kubernetes_head", "head1", __kubernetes_head_found=found, **known
    )
    assert role.value("__kubernetes_head_wanted")["version"] == expected
    assert documents(role)["ClusterConfiguration"]["kubernetesVersion"] == f"v{expected or '1.36.3'}"


# --- the API's address ----------------------------------------------------------------------------------------------

KEEPALIVED = "/etc/keepalived/keepalived.conf"


@pytest.mark.parametrize(
    ("variables", "moves"),
    [
        ({}, False),
        ({"kubernetes_node_api_address": "10.0.0.1"}, False),
        ({"kubernetes_node_api_address": "api.example.org"}, False),
        ({"kubernetes_node_api_address": "10.0.0.100"}, True),
        ({"kubernetes_node_api_address": "10.0.0.100", "kubernetes_head_keepalived": False}, False),
    ],
)
def test_keepalived__for_an_address_of_no_head__is_set_up(
    heads: Callable[..., rendering.Cluster], variables: Data, moves: bool
) -> None:
    role = heads(3, **variables).role("kubernetes_head", "head2")
    text = files(role)[KEEPALIVED]
    assert (text is not None) is moves
    assert ("keepalived" in call(role)["packages"]) is moves
    assert ("keepalived" in [unit["name"] for unit in call(role)["units"]]) is moves
    if text:
        lines = [line.strip() for line in text.decode().splitlines()]
        assert {
            "interface enp1s0",
            "unicast_src_ip 10.0.0.2",
            "10.0.0.1",
            "10.0.0.3",
            "10.0.0.100",
            "priority 149",
        } <= {*lines}
        assert "10.0.0.100" in documents(role)["ClusterConfiguration"]["apiServer"]["certSANs"]


@pytest.mark.proves("kubernetes", "With SELinux, keepalived's check runs outside of keepalived's domain.")
@pytest.mark.parametrize("address", ["", "10.0.0.100"])
def test_keepalived__check__is_in_the_directory_of_unconfined_programs(
    heads: Callable[..., rendering.Cluster], address: str
) -> None:
    """The path is that of keepalived.fc in fedora-selinux/selinux-policy."""
    role = heads(3, "rocky-9", kubernetes_node_api_address=address).role("kubernetes_head", "head2")
    found = {item["dest"]: item for item in call(role)["files"] if item["dest"].startswith("/usr/libexec/keepalived/")}
    ((path, item),) = found.items()
    text = role.content(item)
    if not address:
        assert (item["state"], text) == ("absent", None)
        return
    assert f"  script {path}\n".encode() in (files(role)[KEEPALIVED] or b"")
    assert text is not None and text.startswith(b"#!/bin/sh\n")
    assert b" https://10.0.0.2:6443/readyz\n" in text
    assert item["mode"] == "0755"


@pytest.mark.proves("kubernetes", "Two clusters in one network can have different virtual routers.")
@pytest.mark.parametrize(("number", "is_valid"), [(1, True), (255, True), (0, False), (256, False)])
def test_keepalived__virtual_router__has_the_number_of_the_inventory(
    heads: Callable[..., rendering.Cluster], number: int, is_valid: bool
) -> None:
    known = {"kubernetes_node_api_address": "10.0.0.100", "kubernetes_head_virtual_router_id": number}
    role = heads(1, **known).role("kubernetes_head", "head1", ansible_play_hosts=["head1"])
    assert f"  virtual_router_id {number}\n".encode() in (files(role)[KEEPALIVED] or b"")
    refused = [one for one in role.value("__kubernetes_head_problems") if "expected 1 to 255" in one]
    assert refused == [] if is_valid else refused


def test_keepalived__one_head__has_no_peers(heads: Callable[..., rendering.Cluster]) -> None:
    text = files(heads(1, kubernetes_node_api_address="10.0.0.100").role("kubernetes_head", "head1"))[KEEPALIVED]
    assert text
    assert b"unicast_" not in text.replace(b"check_unicast_src", b"")


# --- which head creates the cluster ---------------------------------------------------------------------------------


@pytest.mark.proves("kubernetes", "A new head never creates a second cluster while another head may have the first.")
@pytest.mark.parametrize(
    ("states", "creates", "joins", "is_refused"),
    [
        (["new", "new", "new"], "head1", ["head2", "head3"], False),
        (["new", "init", "new"], "head2", ["head1", "head3"], False),
        (["complete", "complete", "complete"], "", [], False),
        (["new", "complete", "complete"], "", ["head1"], False),
        (["new", "complete", None], "", ["head1"], False),
        (["complete", None, "join"], "", ["head3"], False),
        (["init", "complete", "new"], "", ["head1", "head3"], False),
        (["new", None, None], "head1", [], True),
        (["new", "new", None], "head1", ["head2"], True),
        (["init", None, "new"], "head1", ["head3"], True),
    ],
)
def test_first__by_the_states_of_the_heads__creates_or_the_others_join(
    heads: Callable[..., rendering.Cluster], states: list[str | None], creates: str, joins: list[str], is_refused: bool
) -> None:
    """None is a head that does not respond or is not in the run."""
    cluster, play = heads(3), []
    for number, state in enumerate(states, 1):
        if state:
            play.append(f"head{number}")
            cluster.set(f"head{number}", __kubernetes_head_found={"state": state, "version": "1.36.3"})
    roles = {name: cluster.role("kubernetes_head", name, ansible_play_hosts=play) for name in play}
    found = {name: role.value("__kubernetes_head_wanted") for name, role in roles.items()}
    assert [name for name in play if found[name]["create"]] == [creates] * bool(creates)
    for role in roles.values():
        assert role.value("__kubernetes_head_new") == joins
        assert bool(role.value("__kubernetes_head_problems")) is is_refused


def test_system_pods__addresses_of_the_api__are_on_the_nodes_of_this_run(
    heads: Callable[..., rendering.Cluster],
) -> None:
    cluster = heads(3)
    cluster.set("head1", __base_converged={"changed": True, "changes": []})
    cluster.set("head3", __base_converged={"failed": True})
    cluster.set("gpu01", __base_converged={"changed": False, "failed": False, "changes": []})
    role = cluster.role("kubernetes_head", "head1")
    assert role.value("__kubernetes_head_system_pods") == {
        "addresses": ["10.0.0.1", "10.0.0.2", "10.0.0.3"],
        "nodes": ["head1", "gpu01"],
        "others": ["head2", "head3"],
    }


@pytest.mark.proves("kubernetes", "A changed pod network, service network or endpoint of a cluster is refused.")
@pytest.mark.parametrize(
    ("variable", "value", "problem"),
    [
        ("pod_network", "10.9.0.0/16", "the pod network 10.244.0.0/16, and the inventory 10.9.0.0/16"),
        ("service_network", "10.9.0.0/16", "the service network 10.96.0.0/12, and the inventory 10.9.0.0/16"),
        ("api_port", 7443, "6443, and the inventory kubernetes-api.aurora.cluster:7443"),
        ("api_address", "10.0.0.100", ""),
    ],
)
def test_problems__changed_network_of_a_cluster__is_refused(
    heads: Callable[..., rendering.Cluster], variable: str, value: object, problem: str
) -> None:
    """The name of the API stays if it gets an address of its own."""
    found = {
        "state": "complete",
        "version": "1.36.3",
        "fixed": {
            "pod_network": "10.244.0.0/16",
            "service_network": "10.96.0.0/12",
            "endpoint": "kubernetes-api.aurora.cluster:6443",
        },
    }
    cluster = heads(1, **{f"kubernetes_node_{variable}": value})
    cluster.set("head1", __kubernetes_head_found=found)
    role = cluster.role("kubernetes_head", "head1", ansible_play_hosts=["head1"])
    problems = role.value("__kubernetes_head_problems")
    assert len(problems) == bool(problem)
    assert problem in "".join(problems)


@pytest.mark.parametrize(
    ("kubelet", "ignored"),
    [({}, ["NumCPU"]), ({"failCgroupV1": False, "failSwapOn": False}, ["NumCPU", "SystemVerification", "Swap"])],
)
def test_ignored_checks__follow_the_kubelets_configuration(
    heads: Callable[..., rendering.Cluster], kubelet: Data, ignored: list[str]
) -> None:
    cluster = heads(kubernetes_node_kubelet_config=kubelet, kubernetes_head_ignore_checks=["NumCPU"])
    assert cluster.role("kubernetes_head", "head1").value("__kubernetes_head_wanted")["ignore"] == ignored


def test_modules__that_the_programs_import__are_installed() -> None:
    folder = rendering.CONTENT / "roles/kubernetes_head/files"
    variables = rendering.load(folder.parent / "vars/main.yml")
    programs, modules = variables["__kubernetes_head_programs"], variables["__kubernetes_head_modules"]
    named = {path.name for path in folder.iterdir() if path.suffix in ("", ".py")}
    assert named == {*programs, *modules}
    for name in programs:
        compile((folder / name).read_text(), name, "exec")
        assert (folder / name).read_text().startswith("#!/usr/bin/python3\n")


@pytest.mark.proves("remove-node", "Each role of a head or worker of Kubernetes that is removed can be undone.")
@pytest.mark.parametrize("host", ["head1", "gpu01"])
def test_removal__of_a_host__has_the_tasks_of_each_role(heads: Callable[..., rendering.Cluster], host: str) -> None:
    roles = heads(3).role("removal", host).value("__removal_roles")
    assert "kubernetes_node" in roles
    lacking = [name for name in roles if not (rendering.CONTENT / f"roles/{name}/tasks/remove.yml").is_file()]
    assert lacking == []
