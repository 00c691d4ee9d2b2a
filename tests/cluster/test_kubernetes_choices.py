"""Kubernetes by other choices than the defaults, on one lab, from one release to the next, and with heads that leave.

Three heads without an address of their own, flannel without a tunnel, NetworkPolicies, the older release.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cluster.kubernetes import (
    BUSYBOX,
    PORT,
    RECIPES,
    Manifest,
    deployment,
    members,
    pod,
    tokens,
    website,
)
from tests.cluster.lab import clusterctl, fresh_as, podman
from tests.cluster.test_kubernetes_heads import ThreeHeads
from tests.cluster.test_kubernetes_upgrade import NEW, OLD, PREVIOUS, every, pin, versions
from tests.faults.injury import container, wait_until
from tests.programs import described

POLICIES = "kube-network-policies"

pytestmark = [pytest.mark.long, pytest.mark.timeout(2400), pytest.mark.kit(*RECIPES, PREVIOUS, POLICIES)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThreeHeads]:
    with fresh_as(ThreeHeads, "kubernetes-choices", "--recipe", PREVIOUS, "--recipe", POLICIES) as lab:
        lines = lab.inventory.read_text().splitlines(keepends=True)
        lab.inventory.write_text("".join(line for line in lines if "kubernetes_node_api_address:" not in line))
        lab.declare("kubernetes_network_backend: host-gw", "kubernetes_network_policies: true")
        if not has_nft_queue(lab):
            lab.declare("kubernetes_network_policies_check: false")
        pin(lab, OLD)
        lab.run("bootstrap")
        yield lab


@pytest.mark.proves("kubernetes", "Without an address of their own, heads are reached by a name with all addresses.")
def test_bootstrap__heads_without_an_address__are_found_by_name(cluster: ThreeHeads) -> None:
    assert cluster.ready() == dict.fromkeys(cluster.nodes, True)
    assert versions(cluster) == every(cluster, OLD)
    for node in ("gpu01", "head2"):
        found = cluster.root(node, f"getent ahostsv4 kubernetes-api.{cluster.name}.cluster").split()
        assert {*found} >= {cluster.address(head) for head in cluster.head_names}
    cluster.unchanged()


@pytest.mark.proves("kubernetes", "flannel's backend host-gw routes pods by their nodes' addresses.")
def test_routes__with_host_gw__go_to_the_nodes(cluster: ThreeHeads) -> None:
    network = cluster.get("node", "gpu02")["spec"]["podCIDR"]
    assert f"{network} via {cluster.address('gpu02')} " in cluster.root("gpu01", "ip route")
    assert "flannel" not in cluster.root("gpu01", "ip -brief link")


def has_nft_queue(lab: ThreeHeads) -> bool:
    """Return whether this machine's kernel has what kube-network-policies adds rules with."""
    rule = "table inet seen { chain queued { type filter hook forward priority 0; queue num 98 bypass; }; }"
    return lab.root("gpu01", f"echo '{rule}' | nft --check --file - 2>/dev/null && echo yes || true") == "yes\n"


@pytest.mark.proves("kubernetes", "A kernel on which NetworkPolicies would have no effect is refused.")
def test_bootstrap__kernel_without_nft_queue__is_refused(cluster: ThreeHeads) -> None:
    if has_nft_queue(cluster):
        pytest.skip("this machine's kernel has nft_queue")
    text = cluster.inventory.read_text()
    cluster.inventory.write_text(
        text.replace("kubernetes_network_policies_check: false", "kubernetes_network_policies_check: true")
    )
    try:
        done = clusterctl("plan", "bootstrap", str(cluster.inventory))
    finally:
        cluster.inventory.write_text(text)
    assert done.returncode not in (0, 10), described(done)
    assert "The kernel has no nft_queue" in done.stdout
    assert cluster.ready() == dict.fromkeys(cluster.nodes, True)


@contextmanager
def queued(lab: ThreeHeads) -> Iterator[None]:
    """Pass new connections to kube-network-policies by xtables' rules where the kernel lacks nft_queue for its own."""
    rule = "FORWARD -m conntrack --ctstate NEW -j NFQUEUE --queue-num 98 --queue-bypass"
    nodes = () if has_nft_queue(lab) else lab.worker_names
    for node in nodes:
        lab.root(node, f"apt-get -qq -y install iptables >/dev/null 2>&1; iptables-nft -I {rule}")
    try:
        yield
    finally:
        for node in nodes:
            lab.root(node, f"iptables-nft -D {rule}")


def policy(name: str, **spec: object) -> Manifest:
    """Return a NetworkPolicy of the pods of `site`."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name},
        "spec": {"podSelector": {"matchLabels": {"app": "site"}}, "policyTypes": ["Ingress"], **spec},
    }


@pytest.mark.proves("kubernetes", "With kubernetes_network_policies a NetworkPolicy holds on one node and between two.")
def test_network_policy__of_a_deployment__lets_in_whom_it_names(cluster: ThreeHeads) -> None:
    site, service = website("site", node="gpu01")

    def asks(name: str, node: str) -> str:
        """Return what a pod of this name gets from the site."""
        url = f"http://site.default.svc.cluster.local:{PORT}/"
        return cluster.output(pod(name, BUSYBOX, f"wget -q -T 5 -O - {url} 2>/dev/null || echo refused", node=node))

    friends = [{"from": [{"podSelector": {"matchLabels": {"app": "friend"}}}]}]
    with queued(cluster), cluster.running(site, service):
        wait_until(lambda: all(asks("stranger", node).startswith("site-") for node in cluster.worker_names))
        with cluster.running(policy("friends", ingress=friends)):
            wait_until(lambda: {asks("stranger", node) for node in cluster.worker_names} == {"refused\n"})
            for node in cluster.worker_names:
                assert asks("friend", node).startswith("site-")


@pytest.mark.proves("kubernetes", "Without the first of three heads, which have no address, workers start pods.")
def test_first_head__dies__workers_ask_another(cluster: ThreeHeads) -> None:
    one = deployment("steady", "exec sleep infinity", replicas=2)
    cluster.apply(one)
    cluster.wait(one)

    def running() -> dict[str, tuple[str, ...]]:
        """Return the deployment's containers; pods of an earlier test may still end."""
        found = cluster.containers(*cluster.worker_names, head="head2")
        return {uid: names for uid, names in found.items() if names[0].startswith("steady")}

    before = running()
    assert len(before) == 2
    podman("stop", "--time", "0", container(cluster, "head1"))
    try:
        wait_until(lambda: cluster.ready("head2").get("head1") is False)
        for node in cluster.worker_names:
            printed = cluster.output(pod("after", BUSYBOX, "echo works", node=node), head="head2")
            assert printed == "works\n"
    finally:
        cluster.up()
    wait_until(lambda: cluster.ready("head2") == dict.fromkeys(cluster.nodes, True))
    assert running() == before
    cluster.run("bootstrap")
    cluster.healthy()


@pytest.mark.proves("upgrade", "Three heads are upgraded one by one, then the workers.")
def test_upgrade__of_three_heads__goes_one_by_one(cluster: ThreeHeads) -> None:
    pin(cluster, NEW)
    assert cluster.run("upgrade", limit=2100)["steps"] == [[node] for node in cluster.nodes]
    assert versions(cluster) == every(cluster, NEW)
    for head in cluster.head_names:
        assert members(cluster, head) == set(cluster.head_names)
    assert (cluster.ledger(), cluster.cordoned(), tokens(cluster)) == ({}, set(), [])
    cluster.unchanged()


@pytest.mark.proves("remove-node", "Two of three heads are removed; etcd has one member, workers' pods run on.")
def test_remove_node__two_of_three_heads__leaves_one(cluster: ThreeHeads) -> None:
    # kube-proxy restarts, because the API's addresses change. A pod of CoreDNS may come from a head.
    pods = cluster.containers(*cluster.worker_names)
    before = {uid: one for uid, one in pods.items() if not one[0].startswith("kube-proxy")}
    cluster.run("remove-node", "head2", "head3", "--yes")
    assert members(cluster, "head1") == {"head1"}
    assert cluster.ready() == dict.fromkeys(("head1", *cluster.worker_names), True)
    now = cluster.containers(*cluster.worker_names)
    assert {uid: now.get(uid) for uid in before} == before
    for head in ("head2", "head3"):
        found = cluster.inside(head, "sh", "-c", "find /etc/kubernetes /var/lib/etcd -type f; pgrep -l etcd; true")
        assert not found.strip(), found
    hosts = cluster.run("bootstrap")["hosts"]
    changes = {name: host["changes"] for name, host in hosts.items() if host["changed"]}
    assert changes == {}, changes
    assert set(hosts) == {"head1", *cluster.worker_names}
    cluster.healthy()
