"""What every node of Kubernetes gets: names, firewall, containerd, the kubelet's configuration, images."""

import io
import json
import os
import subprocess
import tarfile
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.systems.rendering import CONTENT, Cluster, Role, a_cluster
from tests.unit.test_role_plugins import plugin

CLUSTER = plugin("lookup/kubernetes_cluster")
ADDRESSES = plugin("lookup/node_addresses")
ARCHIVES = plugin("lookup/image_archives")
IMAGES = plugin("modules/kubernetes_images")
HEADS = ("head2", "head3")
ETCD = {
    "port": 2379,
    "protocol": "tcp",
    "to": "heads",
    "login": True,
    "purpose": "etcd",
    "privileged": False,
    "addresses": [],
    "role": "x",
}


def kubernetes(directory: Path, system: str = "debian-13", heads: tuple[str, ...] = HEADS, **variables: Any) -> Cluster:
    return a_cluster(directory, system, "kubernetes", heads, **variables)


def lines(role: Role, template: str) -> list[str]:
    text = role.render(role.path / "templates" / template)
    return [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]


# --- names and addresses ----------------------------------------------------------------------------------------------


@pytest.mark.proves("kubernetes", "The API has one name: of all heads, a load balancer or the site.")
@pytest.mark.parametrize(
    ("given", "name", "addresses"),
    [
        ("", "kubernetes-api.aurora.cluster", ["10.0.0.10", "10.0.0.12"]),
        ("10.0.0.99", "kubernetes-api.aurora.cluster", ["10.0.0.99"]),
        ("api.example.com", "api.example.com", []),
    ],
)
def test_api__by_what_is_given__has_a_name_that_stays(given: str, name: str, addresses: list[str]) -> None:
    assert CLUSTER.api(given, "aurora.cluster", ["10.0.0.10", "10.0.0.12"]) == (name, addresses)


def test_kubernetes_cluster__of_any_host__has_the_first_heads_values(tmp_path: Path) -> None:
    cluster = kubernetes(tmp_path)
    cluster.set("head1", kubernetes_node_api_port=7443)
    cluster.set("gpu01", kubernetes_node_api_port=8443)
    for host in cluster.hosts:
        found = cluster.role("base", host).value("lookup('kubernetes_cluster')")
        assert found["endpoint"] == "kubernetes-api.aurora.cluster:7443"
        assert found["heads"] == ["head1", "head2", "head3"]
        assert found["api_addresses"] == ["10.0.0.10", "10.0.0.12", "10.0.0.13"]
        assert (found["pod_network"], found["service_network"]) == ("10.244.0.0/16", "10.96.0.0/12")


def test_kubernetes_cluster__of_a_slurm_cluster__has_no_heads(tmp_path: Path) -> None:
    found = a_cluster(tmp_path, "debian-13").role("base", "gpu01").value("lookup('kubernetes_cluster')")
    assert (found["heads"], found["api_addresses"]) == ([], [])


def test_node_addresses__of_a_record__are_those_that_others_reach() -> None:
    nics = ["10.0.0.7/24", "fd00::7/64", "169.254.3.4/16", "fe80::1/64", "127.0.0.2/8", "0.0.0.0/0"]
    assert ADDRESSES.recorded({"nics": [{"addresses": nics}]}) == ["10.0.0.7", "fd00::7"]
    assert ADDRESSES.once(["10.0.0.7", "", "10.0.0.7"]) == ["10.0.0.7"]


@pytest.mark.proves("kubernetes", "Each node resolves the API to every head without DNS.")
@pytest.mark.parametrize("host", ["head2", "gpu01"])
def test_hosts__of_a_node__has_all_heads_and_the_api(tmp_path: Path, host: str) -> None:
    found = lines(kubernetes(tmp_path).role("base", host), "hosts.j2")
    assert {line for line in found if line.endswith("kubernetes-api.aurora.cluster")} == {
        f"10.0.0.{number} kubernetes-api.aurora.cluster" for number in (10, 12, 13)
    }
    assert len([line for line in found if line.endswith(" head2")]) == 1


def test_dns_and_time__of_several_heads__are_on_each(tmp_path: Path) -> None:
    cluster = kubernetes(tmp_path)
    worker, head = cluster.role("base", "gpu01"), cluster.role("base", "head2")
    servers = [f"nameserver 10.0.0.{number}" for number in (10, 12, 13)]
    assert [line for line in lines(worker, "resolv.conf.j2") if "nameserver" in line] == servers
    assert lines(head, "resolv.conf.j2")[1:3] == ["nameserver 127.0.0.1", "nameserver 10.0.0.1"]
    assert "listen-address=10.0.0.12" in lines(head, "dnsmasq.conf.j2")
    assert "interface=cni0" in lines(head, "dnsmasq.conf.j2")
    assert "10.0.0.13 kubernetes-api.aurora.cluster" in lines(head, "dnsmasq.hosts.j2")
    time = lines(head, "chrony.conf.j2")
    assert {"server 10.0.0.10 iburst", "server 10.0.0.13 iburst", "local stratum 10 orphan"} <= {*time}
    assert "server 10.0.0.12 iburst" not in time
    assert "server 10.0.0.12 iburst minpoll 4 maxpoll 4" in lines(worker, "chrony.conf.j2")


# --- firewall ---------------------------------------------------------------------------------------------------------


@pytest.mark.proves("firewall", "Only Kubernetes' heads reach etcd: no worker, no pod, no other host.")
@pytest.mark.parametrize("host", ["head1", "head3"])
def test_firewall__port_of_the_heads__is_closed_to_all_others(tmp_path: Path, host: str) -> None:
    found = lines(kubernetes(tmp_path).role("base", host, __base_ports=[ETCD]), "firewall.nft.j2")
    accept = found.index('ip saddr { 10.0.0.10/32, 10.0.0.12/31 } tcp dport 2379 accept comment "etcd"')
    assert found[accept + 1] == 'iifname != "lo" tcp dport 2379 drop comment "etcd, to others"'
    open_to_more = [line for line in found if line.startswith("iifname") and "accept" in line]
    members = [line for line in found if "members of the cluster" in line]
    assert open_to_more and members
    assert accept < min(map(found.index, open_to_more + members[:1]))


@pytest.mark.proves("firewall", "Pods and services are open to members and named clients only.")
def test_firewall__of_a_kubernetes_node__forwards_for_members_and_clients(tmp_path: Path) -> None:
    role = kubernetes(tmp_path, kubernetes_node_client_networks=["203.0.113.0/24"]).role("base", "gpu01")
    found = lines(role, "firewall.nft.j2")
    forward = found[found.index("chain forward {") :]
    assert forward[2] == "ct state established,related accept"
    first = next(place for place, line in enumerate(forward) if "members of the cluster" in line)
    assert all("drop" in line and line.endswith(', to pods"') for line in forward[3:first])
    assert forward[first : first + 4] == [
        'ip saddr { 10.0.0.0/24, 10.244.0.0/16 } accept comment "members of the cluster"',
        'ip saddr { 203.0.113.0/24 } accept comment "clients of services"',
        'ct status dnat drop comment "services, to others"',
        'ip daddr { 10.244.0.0/16 } drop comment "pods, to others"',
    ]
    assert 'iifname "flannel*" accept comment "containers of this node"' in found
    assert "# firewalld: 10.244.0.0/16\n" in role.render(role.path / "templates/firewall.nft.j2")


@pytest.mark.proves("firewall", "Pods cannot connect to an NFS server, which would accept the address of their node.")
@pytest.mark.parametrize("host", ["head1", "gpu01"])
def test_firewall__nfs__is_closed_to_pods(tmp_path: Path, host: str) -> None:
    """Pods of other nodes are not known on the head: their own node has replaced their address."""
    found = lines(kubernetes(tmp_path).role("base", host), "firewall.nft.j2")
    start = found.index("chain forward {")
    pods, end = "ip saddr { 10.244.0.0/16 }", 'drop comment "NFS, if the first head exports the volumes, to pods"'
    first = next(place for place, line in enumerate(found) if place > start and "accept comment" in line)
    assert f"{pods} ip daddr != {{ 10.244.0.0/16 }} tcp dport 2049 {end}" in found[start:first]
    own = [index for index, line in enumerate(found[:start]) if line == f"{pods} tcp dport 2049 {end}"]
    assert len(own) == (host == "head1")
    accepted = [index for index, line in enumerate(found) if line.startswith("iifname") and line.endswith("accept")]
    assert not own or own[0] < min(accepted)


@pytest.mark.proves("firewall", "Pods reach no port of nodes, heads or Prometheus by the address of their node.")
def test_firewall__ports_that_trust_nodes__are_closed_to_pods(tmp_path: Path) -> None:
    found = lines(kubernetes(tmp_path).role("base", "gpu01"), "firewall.nft.j2")
    forward = found[found.index("chain forward {") :]
    pods = "ip saddr { 10.244.0.0/16 } ip daddr != { 10.244.0.0/16 }"
    for port in ("tcp dport 2379", "tcp dport 6822", "udp dport 8472", "tcp dport 9100"):
        assert [line for line in forward if line.startswith(f"{pods} {port} drop")], port
    assert 'ip saddr { 10.244.0.0/16 } udp dport 8472 drop comment "flannel\'s tunnels between nodes, to pods"' in found


@pytest.mark.proves("firewall", "Only heads can take the API's address from a head.")
def test_firewall__vrrp__is_from_heads(tmp_path: Path) -> None:
    cluster = kubernetes(tmp_path)
    found = lines(cluster.role("base", "head1"), "firewall.nft.j2")
    accept = found.index('ip saddr { 10.0.0.10/32, 10.0.0.12/31 } meta l4proto 112 accept comment "VRRP of keepalived"')
    assert found[accept + 1] == 'meta l4proto 112 drop comment "VRRP, to others"'
    assert accept < min(place for place, line in enumerate(found) if "members of the cluster" in line)
    assert not [line for line in lines(cluster.role("base", "gpu01"), "firewall.nft.j2") if "l4proto 112" in line]


def test_firewall__of_a_host_outside_kubernetes__forwards_as_before(tmp_path: Path) -> None:
    found = lines(a_cluster(tmp_path, "debian-13").role("base", "gpu01"), "firewall.nft.j2")
    assert "chain forward {" not in found
    assert not [line for line in found if "10.244" in line]


# --- containerd -------------------------------------------------------------------------------------------------------


@pytest.mark.proves("kubernetes", "containerd uses the pause image of the Kubernetes release, from the same registry.")
@pytest.mark.parametrize(("version", "pause"), [("1.35.4", "3.10.1"), ("1.36.3", "3.10.2")])
@pytest.mark.parametrize("containerd", ["", "2.2.*"])
def test_containerd__of_a_kubernetes_node__has_the_pause_image(
    tmp_path: Path, version: str, pause: str, containerd: str
) -> None:
    cluster = kubernetes(
        tmp_path, kubernetes_node_version=version, kubernetes_node_image_registry="registry.example/k8s"
    )
    options = {"restrict_oom_score_adj": True, "cdi_spec_dirs": ["/etc/cdi"], "max_container_log_line_size": 16384}
    role = cluster.role("containerd", "gpu01", containerd_version=containerd, containerd_cri_options=options)
    plugins = tomllib.loads(role.render(role.path / "templates/config.toml.j2"))["plugins"]
    runtime = plugins["io.containerd.cri.v1.runtime" if containerd else "io.containerd.grpc.v1.cri"]
    image = f"registry.example/k8s/pause:{pause}"
    if containerd:
        assert plugins["io.containerd.cri.v1.images"]["pinned_images"] == {"sandbox": image}
    else:
        assert runtime["sandbox_image"] == image
    assert runtime.items() >= (options | {"enable_cdi": True}).items()


@pytest.mark.parametrize(("scheduler", "labelled"), [("slurm", True), ("kubernetes", False)])
def test_containerd__with_selinux__labels_no_pods_of_kubernetes(tmp_path: Path, scheduler: str, labelled: bool) -> None:
    role = a_cluster(tmp_path, "rocky-9", scheduler).role("containerd", "gpu01")
    role.variables["ansible_facts"]["selinux"] = {"status": "enabled"}
    text = role.render(role.path / "templates/config.toml.j2")
    assert f"enable_selinux = {str(labelled).lower()}\n" in text
    assert ("sandbox" in text) is not labelled


# --- the role's own files ---------------------------------------------------------------------------------------------


JOINED = ("/etc/kubernetes/kubelet.conf", "Kubernetes v1.36.3")


def node(directory: Path, system: str = "debian-13", looked: tuple[str, ...] = (), **known: Any) -> Role:
    cluster = kubernetes(directory, system, ())
    return cluster.role("kubernetes_node", "gpu01", __kubernetes_node_look={"stdout_lines": [*looked]}, **known)


@pytest.mark.proves("kubernetes", "Packages are pinned and held, from the repository of their minor release.")
@pytest.mark.parametrize(
    ("system", "url", "key", "environment"),
    [
        ("ubuntu-24.04", "v1.35/deb/", "v1.35/deb/Release.key", "/etc/default/kubelet"),
        ("rocky-9", "v1.35/rpm/", "v1.35/rpm/repodata/repomd.xml.key", "/etc/sysconfig/kubelet"),
    ],
)
def test_packages__of_each_family__are_of_one_minor_release(
    tmp_path: Path, system: str, url: str, key: str, environment: str
) -> None:
    mirror = "https://mirror.example/k8s"
    role = node(tmp_path, system, kubernetes_node_version="1.35.4", kubernetes_node_repository_url=mirror)
    (source,) = role.value("__kubernetes_node_repositories")
    assert (source["url"], source["key"]) == (f"{mirror}/{url}", f"{mirror}/{key}")
    wanted = {one.pop("name"): one for one in role.value("__kubernetes_node_wanted")}
    assert wanted["kubelet"] == wanted["kubeadm"] == wanted["kubectl"] == {"version": "1.35.4", "hold": True}
    assert wanted["kubernetes-cni"] == wanted["cri-tools"] == {"hold": True}
    files = {one["dest"]: one for one in role.value("__kubernetes_node_files")}
    assert files[environment]["content"] == (
        'KUBELET_EXTRA_ARGS="--config-dir=/etc/kubernetes/kubelet.conf.d --node-ip=10.0.0.11"\n'
    )


@pytest.mark.proves("kubernetes", "RHEL 10 gets the package with br_netfilter for the running kernel.")
@pytest.mark.parametrize(
    ("system", "kernel", "package"),
    [
        ("almalinux-10", "6.12.0-55.32.1.el10_0.x86_64", ("kernel-modules-extra", "6.12.0-55.32.1.el10_0")),
        ("centos-10", "6.12.0-140.el10.x86_64", ("kernel-modules-extra", "6.12.0-140.el10")),
        ("rhel-10", "6.12.0-55.32.1.el10_0.aarch64+64k", ("kernel-64k-modules-extra", "6.12.0-55.32.1.el10_0")),
        ("rhel-10", "6.15.4-1.el10.elrepo.x86_64", None),
        ("rhel-10", "", None),
        ("rocky-9", "5.14.0-570.42.2.el9_6.x86_64", None),
        ("debian-13", "6.12.48+deb13-amd64", None),
    ],
)
def test_modules__of_the_running_kernel__are_installed_on_rhel_10(
    tmp_path: Path, system: str, kernel: str, package: tuple[str, str] | None
) -> None:
    """A container has no kernel of its own. Role nvidia_driver holds the package with its kernel."""
    looked = (f"Linux {kernel}",) if kernel else ()
    role = node(tmp_path, system, (*looked, *JOINED))
    wanted = [one for one in role.value("__kubernetes_node_wanted") if "modules" in one["name"]]
    assert wanted == ([{"name": package[0], "version": package[1]}] if package else [])
    assert role.value("__kubernetes_node_swaps") == []


def test_kubelet__of_a_node__has_what_differs_between_nodes(tmp_path: Path) -> None:
    given = {"maxPods": 50, "evictionHard": {"memory.available": "1Gi"}, "cgroupDriver": None}
    role = node(tmp_path, kubernetes_node_kubelet_config=given)
    assert yaml.safe_load(role.render(role.path / "templates/kubelet.conf.j2")) == {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "resolvConf": "/etc/kubernetes/resolv.conf",
        **given,
    }
    assert lines(role, "resolv.conf.j2") == ["search aurora.cluster", "nameserver 10.0.0.10"]


NO_CPUS = '{"policyName":"none","defaultCpuSet":"","checksum":1353318690}'
CPUS = (
    '{"policyName":"static","defaultCpuSet":"0,2-12","entries":{"235148fe-393f-47a8-a17d-bd55bc1a836b":'
    '{"cgroup1-0":"1,13"}},"checksum":1552716370}'
)
NO_MEMORY = '{"policyName":"None","machineState":{},"checksum":4236770233}'
STATIC = {"cpuManagerPolicy": "static", "memoryManagerPolicy": "Static"}


@pytest.mark.proves("kubernetes", "After a change of the CPU or memory policy, the kubelet's old state is deleted.")
@pytest.mark.parametrize(
    ("cluster", "own", "cpus", "memory", "deleted"),
    [
        ("", {}, NO_CPUS, NO_MEMORY, ""),
        ("", STATIC, NO_CPUS, NO_MEMORY, "cpu memory"),
        ("", {"cpuManagerPolicy": "static"}, CPUS, NO_MEMORY, ""),
        ("", {}, CPUS, NO_MEMORY, "cpu"),
        ("cpuManagerPolicy: static\n", {}, CPUS, NO_MEMORY, ""),
        ("cpuManagerPolicy: static\n", {"cpuManagerPolicy": None}, CPUS, NO_MEMORY, "cpu"),
        ("cpuManagerPolicy: 'static'\n", {"cpuManagerPolicyOptions": {"full-pcpus-only": "true"}}, CPUS, NO_MEMORY, ""),
        ("", STATIC, "", NO_MEMORY, "memory"),
        ("", STATIC, None, None, ""),
    ],
)
def test_kubelet__with_another_policy__loses_the_old_state(
    tmp_path: Path, cluster: str, own: dict[str, Any], cpus: str | None, memory: str | None, deleted: str
) -> None:
    """A state that has no policy is kept: an administrator has to look at it."""
    role = node(tmp_path, kubernetes_node_kubelet_config=own)
    kubelet, drop_ins = (tmp_path / name for name in ("kubelet", "drop-ins"))
    for directory in (kubelet, drop_ins):
        directory.mkdir()
    (kubelet / "config.yaml").write_text(f"apiVersion: kubelet.config.k8s.io/v1beta1\n{cluster}", encoding="utf-8")
    (drop_ins / "60-clusterctl.conf").write_text(role.render(role.path / "templates/kubelet.conf.j2"), encoding="utf-8")
    states = {"cpu": kubelet / "cpu_manager_state", "memory": kubelet / "memory_manager_state"}
    for state, content in zip(states.values(), (cpus, memory), strict=True):
        if content is not None:
            state.write_text(content, encoding="utf-8")
    before = {name for name, state in states.items() if state.exists()}
    program = ["sh", str(role.path / "files/kubelet-state"), str(kubelet), str(drop_ins)]
    output = subprocess.run(program, check=True, capture_output=True, text=True).stdout
    assert {name for name, state in states.items() if state.exists()} == before - {*deleted.split()}
    assert len(output.splitlines()) == len(deleted.split())


@pytest.mark.proves("kubernetes", "States of other policies are deleted before each start of the kubelet.")
def test_kubelet__before_each_start__loses_states_of_other_policies(tmp_path: Path) -> None:
    """Not only after a change of the role's file: kubeadm writes the cluster's configuration in joins and upgrades."""
    files = {one["dest"]: one for one in node(tmp_path).value("__kubernetes_node_files")}
    unit = files["/etc/systemd/system/kubelet.service.d/clusterctl.conf"]["content"].splitlines()
    section, _, program = unit[-1].partition("=-")
    assert unit[:-1] == ["[Service]"]
    assert section == "ExecStartPre"
    assert (files[program]["copy"], files[program]["mode"]) == ("kubelet-state", "0755")


@pytest.mark.proves("kubernetes", "Swap, cgroup version 1 and an old containerd are refused before the kubelet starts.")
@pytest.mark.parametrize(
    ("known", "problem"),
    [
        ({}, ""),
        ({"looked": ("/dev/dm-1 partition 8388604 0 -2",)}, "swap, which is on /dev/dm-1"),
        ({"looked": ("/swap.img file 9 0 -2",), "kubernetes_node_kubelet_config": {"failSwapOn": False}}, ""),
        ({"__kubernetes_node_cgroups": 1}, "cgroup version 1"),
        ({"__kubernetes_node_cgroups": 1, "kubernetes_node_kubelet_config": {"failCgroupV1": False}}, ""),
        ({"kubernetes_node_version": "1.36.*"}, 'is "1.36.*", expected a release such as 1.36.3'),
        ({"kubernetes_node_version": ""}, "expected a release"),
        ({"looked": JOINED, "kubernetes_node_version": "1.35.9"}, ""),
        ({"looked": JOINED, "kubernetes_node_version": "1.36.10", "upgrade_roles": ["all"]}, ""),
        (
            {"looked": JOINED, "kubernetes_node_version": "1.35.9", "upgrade_roles": ["all"]},
            "Kubernetes 1.36.3 runs here, and kubernetes_node_version is 1.35.9: it cannot return to an older release",
        ),
        ({"kubernetes_node_version": "1.38.0", "__kubernetes_node_runtime": "1.7.24~ds1-6"}, "needs containerd 2"),
        ({"kubernetes_node_version": "1.38.0", "__kubernetes_node_runtime": "2.3.6-1.el9"}, ""),
        ({"kubernetes_node_version": "1.37.1", "__kubernetes_node_runtime": "1.7.24~ds1-6"}, ""),
    ],
)
def test_problems__of_a_host__say_what_to_change(tmp_path: Path, known: dict[str, Any], problem: str) -> None:
    found = node(tmp_path, **known).value("__kubernetes_node_problems")
    assert len(found) == bool(problem)
    assert problem in "".join(found)


def test_runtime__of_the_packages_that_were_installed__is_containerds(tmp_path: Path) -> None:
    installed = {"versions": {"apparmor": "4.1.0-1", "containerd": "1.7.24~ds1-6"}}
    assert node(tmp_path, __containerd_converged=installed).value("__kubernetes_node_runtime") == "1.7.24~ds1-6"
    assert node(tmp_path / "..", __containerd_converged={}).value("__kubernetes_node_runtime") == ""


def test_runtime__whose_call_waits__is_that_of_the_early_installation(tmp_path: Path) -> None:
    known: dict[str, Any] = {
        "__containerd_converged": {"changed": False},
        "__base_converged": {"applied": [{"versions": {"containerd": "2.1-1"}}, {"versions": {"chrony": "4.6.1-3"}}]},
    }
    assert node(tmp_path, **known).value("__kubernetes_node_runtime") == "2.1-1"


@pytest.mark.parametrize("role", ["containerd", "docker"])
@pytest.mark.parametrize(("status", "brought"), [("enabled", True), ("disabled", False), (None, True)])
def test_apparmor__by_the_kernel__is_brought(tmp_path: Path, role: str, status: str | None, brought: bool) -> None:
    """Facts without an answer count as a kernel that has it."""
    cluster = a_cluster(tmp_path, "debian-13", "kubernetes")
    facts = cluster.role(role, "gpu01").value("ansible_facts") | ({"apparmor": {"status": status}} if status else {})
    found = cluster.role(role, "gpu01", ansible_facts=facts).value(f"__{role}_all")
    assert ("apparmor" in found) is brought


@pytest.mark.proves("kubernetes", "A head's kubelet is not upgraded before the API.")
@pytest.mark.parametrize(
    ("host", "joined", "roles", "upgraded"),
    [
        ("gpu01", True, ["all"], True),
        ("gpu01", True, ["kubernetes_node"], True),
        ("gpu01", True, ["munge"], False),
        ("head1", False, ["all"], True),
        ("head1", True, ["all"], False),
    ],
)
def test_upgrade__of_a_running_head__is_left_to_its_role(
    tmp_path: Path, host: str, joined: bool, roles: list[str], upgraded: bool
) -> None:
    look = {"stdout_lines": ["/etc/kubernetes/kubelet.conf"] * joined}
    role = kubernetes(tmp_path).role("kubernetes_node", host, __kubernetes_node_look=look, upgrade_roles=roles)
    assert (role.value("__kubernetes_node_moves and not __kubernetes_node_leads")) is upgraded
    assert role.value("__kubernetes_node_moves and __kubernetes_node_leads") is (joined and host == "head1")
    assert [unit["state"] for unit in role.value("__kubernetes_node_units")] == ["started" if joined else "stopped"]


# --- removal ----------------------------------------------------------------------------------------------------------


@pytest.mark.proves("kubernetes", "A removed node has no routes to the pods of other nodes.")
@pytest.mark.parametrize(
    ("network", "flushed"),
    [
        ("10.244.0.0/16", "10.244.0.0/16"),
        ("0.0.0.0/0", ""),
        ("10.244.0.0", ""),
        ("10.244.0.0/16; reboot", ""),
        ("fd00::/48", ""),
        ("", ""),
    ],
)
def test_leave__after_host_gw__flushes_the_routes_to_pods(tmp_path: Path, network: str, flushed: str) -> None:
    programs, root, calls = tmp_path / "programs", tmp_path / "root", tmp_path / "calls"
    for directory in (programs, root / "run/flannel", root / "etc/kubernetes/pki", root / "sys/class/net/cni0"):
        directory.mkdir(parents=True)
    (root / "run/flannel/subnet.env").write_text(
        f"FLANNEL_NETWORK={network}\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1500\nFLANNEL_IPMASQ=true\n"
    )
    answers = {"ip": 'case "$*" in *show*) echo 10.244.2.0/24 via 10.0.0.12 dev eth0 ;; esac', "nft": "exit 1"}
    for name, text in answers.items():
        (programs / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {calls}\n{text}\n')
        (programs / name).chmod(0o755)
    environment = {"PATH": f"{programs}:{os.environ['PATH']}"}
    program = ["sh", str(CONTENT / "roles/kubernetes_node/files/leave"), str(root)]
    output = subprocess.run(program, env=environment, check=True, capture_output=True, text=True).stdout
    made = [line for line in calls.read_text().splitlines() if line.startswith("ip") and "show" not in line]
    assert made == ["ip link delete cni0", *[f"ip -4 route flush root {flushed}"] * bool(flushed)]
    assert output.splitlines() == ["cni0", *[f"routes to {flushed}"] * bool(flushed)]
    assert not (root / "run/flannel").exists()
    assert not (root / "etc/kubernetes/pki").exists()


def test_leave__at_a_site_with_proxies__runs_kubeadm_without_them(tmp_path: Path) -> None:
    programs, root = tmp_path / "programs", tmp_path / "root"
    (root / "etc/kubernetes").mkdir(parents=True)
    (root / "etc/kubernetes/kubelet.conf").touch()
    programs.mkdir()
    for name, text in {"kubeadm": f"env > {tmp_path}/environment", "nft": "exit 1"}.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    proxies = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://proxy.example:3128")
    program = ["sh", str(CONTENT / "roles/kubernetes_node/files/leave"), str(root)]
    environment = {"PATH": f"{programs}:{os.environ['PATH']}", "KEPT": "a value", **proxies}
    subprocess.run(program, env=environment, check=True)
    found = (tmp_path / "environment").read_text()
    assert "KEPT=a value\n" in found
    assert "proxy.example" not in found


# --- images from a directory ------------------------------------------------------------------------------------------


def test_archives__of_a_directory__have_their_hashes(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no image archives"):
        ARCHIVES.archives(tmp_path)
    (tmp_path / "pause.tar").write_bytes(b"x")
    (tmp_path / "notes.txt").write_bytes(b"y")
    digest = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"
    assert ARCHIVES.archives(tmp_path) == {"pause.tar": digest}
    (tmp_path / "a b.tar").write_bytes(b"x")
    with pytest.raises(ValueError, match="bad file name 'a b"):
        ARCHIVES.archives(tmp_path)


def archive(path: Path, **parts: Any) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, content in parts.items():
            text = json.dumps(content).encode()
            member = tarfile.TarInfo(f"{name}.json")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text))
    return path


def test_names__in_archives_of_each_kind__are_those_that_containerd_has(tmp_path: Path) -> None:
    """manifest.json is of `docker save` and `podman save`, index.json of `ctr images export` and of newer docker."""
    docker = [{"Config": "c.json", "RepoTags": ["busybox:1.37", "rancher/mirrored:1"], "Layers": []}]
    assert IMAGES.names_in(archive(tmp_path / "docker.tar", manifest=docker)) == [
        "docker.io/library/busybox:1.37",
        "docker.io/rancher/mirrored:1",
    ]
    own = {
        "io.containerd.image.name": "registry.k8s.io/pause:3.10.2",
        "org.opencontainers.image.ref.name": "3.10.2",
    }
    both = {
        "manifest": [{"RepoTags": ["registry.k8s.io/pause:3.10.2"]}],
        "index": {"schemaVersion": 2, "manifests": [{"annotations": own}]},
    }
    assert IMAGES.names_in(archive(tmp_path / "both.tar", **both)) == ["registry.k8s.io/pause:3.10.2"]
    nameless = {"manifests": [{"annotations": {"org.opencontainers.image.ref.name": "3.10.2"}}, {}]}
    with pytest.raises(ValueError, match="no image with a name and a tag"):
        IMAGES.names_in(archive(tmp_path / "oci.tar", index=nameless))


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("localhost/tool:1", "localhost/tool:1"),
        ("registry:5000/tool:1", "registry:5000/tool:1"),
        ("ghcr.io/a/b:1", "ghcr.io/a/b:1"),
        ("a/b:1", "docker.io/a/b:1"),
    ],
)
def test_full__name_of_an_image__has_its_registry(name: str, full: str) -> None:
    assert IMAGES.full(name) == full


@pytest.mark.proves("kubernetes", "Images of a directory are imported once, and again if one was deleted or replaced.")
def test_missing__archives__are_new_changed_or_deleted_ones() -> None:
    record = {name: {"sha256": "1", "images": [f"r/{name}:1"]} for name in ("kept", "changed", "deleted")}
    wanted = {"kept": "1", "changed": "2", "deleted": "1", "new": "1"}
    assert IMAGES.missing(wanted, record, ["r/kept:1", "r/changed:1", "other:1"]) == ["changed", "deleted", "new"]
    assert IMAGES.missing({"damaged": "1"}, {"damaged": {"sha256": "1"}}, []) == ["damaged"]
