"""Kubernetes' preflight checks: what the kubelet and kubeadm need of nodes, a lost control plane, upgrades."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterctl.inventory import model as inventory
from clusterctl.kubernetes import checks
from clusterctl.nodes.contact import Answer, Facts
from clusterctl.nodes.probe import services as probe_services
from clusterctl.run import preflight
from clusterctl.slurm import checks as slurm_checks
from clusterctl.util.errors import Finding
from clusterctl.workspace.hardware import Hardware, Nic

from .test_hardware import node as recorded
from .test_preflight import facts

INVENTORY = """\
all:
  vars: {cluster_name: aurora}
  children:
    kubernetes_head: {hosts: {k1: {}, k2: {}, k3: {}}}
    kubernetes_workers: {hosts: {gpu01: {}, gpu02: {}}}
"""
BOTH = INVENTORY + "    slurm_head: {hosts: {head1: {}}}\n    slurm_workers: {hosts: {cpu01: {}}}\n"


def cluster(directory: Path, text: str = INVENTORY, **variables: Any) -> inventory.Inventory:
    """Return the inventory; `variables` are of all hosts."""
    (directory / "inventory.yaml").write_text(text)
    found = inventory.load(directory / "inventory.yaml")
    hosts = tuple(replace(host, variables={**host.variables, **variables}) for host in found.hosts)
    return replace(found, hosts=hosts)


def hardware(cgroups: int = 2, controllers: tuple[str, ...] = checks.CONTROLLERS, **other: Any) -> Hardware:
    one = recorded()
    return replace(one, cgroup=replace(one.cgroup, version=cgroups, controllers=controllers), memory_mb=64000, **other)


def found(one: inventory.Inventory, name: str, **node: Any) -> list[Finding]:
    """Return the findings of one host with this hardware and these facts."""
    swap = node.pop("swap_mb", 0)
    given = {name: SimpleNamespace(node=SimpleNamespace(swap_mb=swap))}
    return list(checks.nodes(one, given, {name: hardware(**node)}))  # type: ignore[arg-type]


def test_nodes__that_fit__have_no_findings(tmp_path: Path) -> None:
    one = cluster(tmp_path)
    assert [found(one, name) for name in ("k1", "gpu01")] == [[], []]


@pytest.mark.proves("preflight", "Swap and version 1 of cgroups are reported before the kubelet would fail on them.")
@pytest.mark.parametrize(
    ("node", "kubelet", "check"),
    [
        ({"swap_mb": 2048}, {}, "swap"),
        ({"swap_mb": 2048}, {"failSwapOn": True}, "swap"),
        ({"swap_mb": 2048}, {"failSwapOn": False}, ""),
        ({"cgroups": 1, "controllers": ()}, {}, "cgroups"),
        ({"cgroups": 1, "controllers": ()}, {"failCgroupV1": False}, ""),
        ({"controllers": ("cpu", "memory")}, {}, "cgroups"),
        ({"controllers": ("cpu", "cpuset", "io", "memory", "pids")}, {}, ""),
    ],
)
def test_node__on_which_the_kubelet_fails__is_reported(
    tmp_path: Path, node: dict[str, Any], kubelet: dict[str, Any], check: str
) -> None:
    one = cluster(tmp_path, kubernetes_node_kubelet_config=kubelet)
    assert [finding.check for finding in found(one, "gpu01", **node)] == [check] * bool(check)


@pytest.mark.proves("preflight", "The checks before a run read the kubelet's variable that the roles read.")
def test_node__accepted_only_in_the_heads_variable__is_reported(tmp_path: Path) -> None:
    one = cluster(tmp_path, kubernetes_head_kubelet_config={"failSwapOn": False, "failCgroupV1": False})
    findings = found(one, "gpu01", swap_mb=2048, cgroups=1, controllers=())
    assert sorted(finding.check for finding in findings) == ["cgroups", "swap"]


@pytest.mark.proves("preflight", "A name of a host with addresses of several networks is refused.")
@pytest.mark.parametrize(
    ("addresses", "variables", "message"),
    [
        (["10.0.0.11/24"], {}, ""),
        (["fd00::11/64", "10.0.0.11/24"], {}, ""),
        (["10.0.0.11/24", "192.168.0.11/24"], {}, "gpu01 is a name, and the node has 10.0.0.11, 192.168.0.11"),
        (["10.0.0.11/24", "192.168.0.11/24"], {"cluster_networks": ["192.168.0.0/24"]}, ""),
        (["10.0.0.11/24", "192.168.0.11/24"], {"cluster_address": "192.168.0.11"}, ""),
        (
            ["10.0.0.11/24"],
            {"cluster_networks": ["192.168.0.0/24"]},
            "the node has no IPv4 address in cluster_networks",
        ),
        (["fd00::11/64"], {}, "gpu01 is a name, and the node has no IPv4 address"),
        (["10.0.0.11/24", "10.244.1.0/32"], {}, ""),
        (["10.0.0.11/24", "10.1.0.99/32"], {"kubernetes_node_api_address": "10.1.0.99"}, ""),
        (["10.1.0.99/24"], {"kubernetes_node_api_address": "10.1.0.99"}, ""),
        (
            ["10.0.0.11/24", "10.1.0.99/32"],
            {"kubernetes_node_api_address": "api.example.com"},
            "the node has 10.0.0.11, ",
        ),
    ],
)
def test_address__of_a_host_with_a_name__must_be_certain(
    tmp_path: Path, addresses: list[str], variables: dict[str, Any], message: str
) -> None:
    one = cluster(tmp_path, **variables)
    nics = tuple(Nic(f"eth{at}", "", None, (address,)) for at, address in enumerate(addresses))
    findings = found(one, "gpu01", nics=nics)
    assert [finding.check for finding in findings] == ["address"] * bool(message)
    for finding in findings:
        assert message in finding.found
        assert "set cluster_networks" in finding.hint
        assert not finding.warning


def test_cgroups__of_an_older_release__may_have_version_1(tmp_path: Path) -> None:
    one = cluster(tmp_path, kubernetes_node_version="1.34.2")
    assert found(one, "gpu01", cgroups=1, controllers=()) == []


def test_head__that_is_too_small__is_reported(tmp_path: Path) -> None:
    one, small = cluster(tmp_path), replace(hardware(), memory_mb=1000)
    small = replace(small, cpu=replace(small.cpu, cpus=1))
    assert [finding.check for finding in checks.nodes(one, {}, {"k1": small})] == ["cpu", "memory"]
    assert list(checks.nodes(one, {}, {"gpu01": small})) == [], "a worker may be small"
    ignored = cluster(tmp_path, kubernetes_head_ignore_checks=["NumCPU", "Mem"])
    assert list(checks.nodes(ignored, {}, {"k1": small})) == []


def test_checks__of_slurms_hosts__are_none(tmp_path: Path) -> None:
    one = cluster(tmp_path, BOTH)
    for name in ("head1", "cpu01"):
        assert found(one, name, swap_mb=2048, cgroups=1, controllers=()) == []


@pytest.mark.proves("preflight", "A kubelet of another cluster is refused, and clusterctl's own is no finding.")
@pytest.mark.parametrize(
    ("host", "roles", "expected"),
    [
        ("gpu01", [], ["kubernetes"]),
        ("gpu01", ["kubernetes_node"], []),
        ("cpu01", [], ["found"]),
    ],
)
def test_kubelet__of_another_tool__is_reported(
    tmp_path: Path, host: str, roles: list[str], expected: list[str]
) -> None:
    one = cluster(tmp_path, BOTH).host(host)
    node = facts(lambda data: data["node"].update(before=["kubelet"], roles=roles), name=host)
    answer = Answer(node, (), ("debian", "13"))
    assert [finding.check for finding in preflight.evaluate(one, answer)] == expected


# --- a lost control plane ---------------------------------------------------------------------------------------------


def parts(**of: list[str]) -> dict[str, Facts]:
    def one(name: str, given: list[str]) -> Facts:
        return facts(lambda data: data["node"].update(kubernetes=given), name=name)

    return {name: one(name, given) for name, given in of.items()}


@pytest.mark.proves("bootstrap", "Heads without a control plane are refused while workers have joined one.")
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"k1": [], "k2": [], "k3": [], "gpu01": ["worker"]}, ["k1", "k2", "k3"]),
        ({"k1": [], "k2": [], "k3": [], "gpu01": []}, []),
        ({"k1": [], "k2": ["controller", "worker"], "k3": [], "gpu01": ["worker"]}, []),
        ({"k1": [], "k2": [], "gpu01": ["worker"]}, []),
    ],
)
def test_heads__that_are_all_empty__are_reported(
    tmp_path: Path, given: dict[str, list[str]], expected: list[str]
) -> None:
    one = cluster(tmp_path)
    findings = list(checks.lost_head(one, parts(**given), {}, False))
    assert [finding.node for finding in findings] == expected
    assert not any(finding.warning for finding in findings)
    assert all(finding.warning for finding in checks.lost_head(one, parts(**given), {}, True))


@pytest.mark.parametrize(("machine", "expected"), [("0" * 32, ["k1", "k2", "k3"]), ("", [])])
def test_heads__replaced_while_workers_are_not_contacted__are_reported(
    tmp_path: Path, machine: str, expected: list[str]
) -> None:
    found = parts(k1=[], k2=[], k3=[])
    records = {name: one.hardware for name, one in parts(k1=[], gpu01=[]).items()}
    if machine:
        records["k1"] = replace(records["k1"], machine_id=machine)
    assert [finding.node for finding in checks.lost_head(cluster(tmp_path), found, records, False)] == expected


def test_parts__of_a_node__are_those_that_kubeadm_completed(tmp_path: Path) -> None:
    assert probe_services.kubernetes(str(tmp_path)) == []
    (tmp_path / "etc/kubernetes/clusterctl").mkdir(parents=True)
    (tmp_path / "etc/kubernetes/kubelet.conf").write_text("")
    assert probe_services.kubernetes(str(tmp_path)) == ["worker"]
    (tmp_path / "etc/kubernetes/clusterctl/complete").write_text("")
    assert probe_services.kubernetes(str(tmp_path)) == ["controller", "worker"]


@pytest.mark.proves("bootstrap", "`--skip-unreachable` skips a head of Kubernetes only if the others are a majority.")
@pytest.mark.parametrize(
    ("down", "needed"), [({"k1"}, set()), ({"k3"}, set()), ({"k2", "k3"}, {"k1", "k2", "k3"}), ({"gpu01"}, set())]
)
def test_heads__of_kubernetes__can_be_skipped_while_others_are_enough(
    tmp_path: Path, down: set[str], needed: set[str]
) -> None:
    for text, slurm in ((INVENTORY, set[str]()), (BOTH, {"head1"})):
        one = cluster(tmp_path, text)
        answers = {host.name: Answer(None if host.name in down else facts()) for host in one.hosts}
        assert slurm_checks.needed_heads(one, answers) | checks.needed_heads(one, answers) == slurm | needed


# --- upgrades ---------------------------------------------------------------------------------------------------------


@pytest.mark.proves("upgrade", "Kubernetes is upgraded by one minor release at a time, within the version skew policy.")
@pytest.mark.parametrize(
    ("moves", "present", "expected"),
    [
        ({"k1": ("1.35.4-1.1", "1.36.3-1.1")}, {"k2": "1.35.4-1.1", "gpu01": "1.35.4-1.1"}, []),
        ({"k1": ("1.34.9-1.1", "1.36.3-1.1")}, {}, ["k1: kubeadm does not change Kubernetes from 1.34 to 1.36"]),
        ({"k1": ("1.36.3-1.1", "1.35.4-1.1")}, {}, ["k1: kubeadm does not change Kubernetes from 1.36 to 1.35"]),
        (
            {"gpu01": ("1.35.4-1.1", "1.36.3-1.1")},
            {"k1": "1.35.4-1.1"},
            ["gpu01: Kubernetes 1.36 is not compatible with the heads (accept 1.32 to 1.35)"],
        ),
        (
            {"k1": ("1.35.4-1.1", "1.36.3-1.1")},
            {"gpu01": "1.32.1-1.1"},
            ["gpu01: Kubernetes 1.32 is not compatible with the heads (accept 1.33 to 1.36)"],
        ),
        (
            {"k1": ("1.35.4-1.1", "1.36.3-1.1")},
            {"k2": "1.34.1-1.1"},
            ["k2: Kubernetes 1.34 is not compatible with the heads (accept 1.35 to 1.36)"],
        ),
        ({"k1": ("1.36.2-1.1", "1.36.3-1.1")}, {}, []),
    ],
)
def test_upgrade__of_a_release__follows_the_skew_policy(
    tmp_path: Path, moves: dict[str, tuple[str, str]], present: dict[str, str], expected: list[str]
) -> None:
    findings = checks.upgrade(cluster(tmp_path), moves, present)
    assert [f"{finding.node}: {finding.found}" for finding in findings] == expected
