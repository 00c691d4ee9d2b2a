"""Kubernetes with three heads: a killed first run, a head that dies, another in its place, and haproxy."""

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import yaml

from tests.cluster.kubernetes import BUSYBOX, RECIPES, Kubernetes, api_url, deployment, members, pod, status_of, tokens
from tests.cluster.lab import fresh_as, podman
from tests.cluster.test_half_way import root_of
from tests.faults.injury import GUARD, begin, container, fails, wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800), pytest.mark.kit(*RECIPES)]

WITHIN = 30.0
"""Seconds in which the API must answer again by its address, after the head that had it is dead."""


class ThreeHeads(Kubernetes):
    """A lab with three heads."""

    heads = 3


@pytest.fixture(scope="module")
def lab() -> Iterator[ThreeHeads]:
    """Fresh nodes: three heads and a worker."""
    with fresh_as(ThreeHeads, "kubernetes-heads", workers=1) as lab:
        yield lab


@pytest.fixture(scope="module")
def cluster(lab: ThreeHeads) -> ThreeHeads:
    """The same lab, bootstrapped by a run that is killed within kubeadm's work on a head, and one more."""
    kubernetes = root_of(lab, "head1")[1] / "etc/kubernetes"
    run = begin(lab)
    wait_until(lambda: (kubernetes / "manifests/etcd.yaml").exists() or run.poll() is not None)
    assert run.poll() is None, "it ended before it could be killed"
    os.killpg(run.pid, signal.SIGKILL)
    run.wait(GUARD)
    assert (kubernetes / "clusterctl/started").exists()
    assert not (kubernetes / "clusterctl/complete").exists()
    lab.run("bootstrap")
    return lab


@pytest.mark.proves("bootstrap", "A bootstrap killed while heads are set up is completed by the same command.")
@pytest.mark.proves("kubernetes", "Three heads have one etcd of three members and one address of the API.")
def test_bootstrap__killed_while_heads_are_set_up__is_completed_by_the_same_command(cluster: ThreeHeads) -> None:
    assert cluster.ready() == dict.fromkeys(cluster.nodes, True)
    for head in cluster.head_names:
        assert members(cluster, head) == set(cluster.head_names)
    assert (cluster.ledger(), cluster.cordoned(), tokens(cluster)) == ({}, set(), [])
    # A head's kubelet asks the API server beside it: kubeadm's join phase kubelet-start.
    servers = {cluster.root(head, "sed -n 's/ *server: //p' /etc/kubernetes/admin.conf") for head in cluster.head_names}
    assert servers == {f"{api_url(cluster, 'gpu01')}\n"}
    cluster.unchanged()


@pytest.mark.proves("firewall", "etcd accepts connections of heads alone, and there with a certificate alone.")
def test_etcd__from_workers_and_heads__is_open_to_heads_alone(cluster: ThreeHeads) -> None:
    for port in (2379, 2380):
        url = f"{cluster.address('head2')}:{port}"
        connect = f"timeout 5 bash -c '</dev/tcp/{url.replace(':', '/')}' && echo open || echo closed"
        assert cluster.root("gpu01", f"{connect} 2>/dev/null") == "closed\n"
        assert cluster.root("head3", connect) == "open\n"
        assert status_of(cluster, "head3", f"https://{url}/version") == "000"


@dataclass
class Dead:
    """The head that had the API's address when it died, one that lives, and seconds until the API answered again.

    And the containers on the worker before that.
    """

    name: str
    survivor: str
    took: float
    containers: dict[str, tuple[str, ...]]


def address_of(cluster: ThreeHeads) -> str:
    """Return the API's address."""
    return str(yaml.safe_load(cluster.inventory.read_text())["all"]["vars"]["kubernetes_node_api_address"])


def holder_of(cluster: ThreeHeads) -> str:
    """Return the head that has the API's address."""
    address = f" {address_of(cluster)}/"
    (holder,) = (head for head in cluster.head_names if address in cluster.root(head, "ip -brief address"))
    return holder


@pytest.fixture(scope="module")
def dead(cluster: ThreeHeads) -> Dead:
    """Kill the head that has the API's address."""
    one = deployment("steady", "exec sleep infinity", replicas=2, node="gpu01")
    cluster.apply(one)
    cluster.wait(one)
    containers = cluster.containers("gpu01")
    holder = holder_of(cluster)
    url = f"{api_url(cluster, 'gpu01')}/readyz"
    podman("stop", "--time", "0", container(cluster, holder))
    began = time.monotonic()
    wait_until(lambda: status_of(cluster, "gpu01", url, "--connect-timeout", "1") == "200")
    took = time.monotonic() - began
    return Dead(holder, next(head for head in cluster.head_names if head != holder), took, containers)


def undisturbed(cluster: ThreeHeads, dead: Dead) -> None:
    """See that no container on the worker was restarted or replaced since before the head died."""
    names = [name for name, *_ in dead.containers.values()]
    assert len([name for name in names if name.startswith("steady-")]) == 2, names
    now = cluster.containers("gpu01", head=dead.survivor)
    assert {uid: now.get(uid) for uid in dead.containers} == dead.containers


@pytest.mark.proves("kubernetes", "With the head dead that had the API's address, it answers there within 30 s.")
@pytest.mark.proves("kubernetes", "With one of three heads dead, running pods continue and new ones start.")
def test_head__dies__the_api_answers_by_the_same_address(cluster: ThreeHeads, dead: Dead) -> None:
    assert dead.took < WITHIN
    printed = cluster.output(pod("after", BUSYBOX, "echo works", node="gpu01"), head=dead.survivor)
    assert printed == "works\n"
    wait_until(lambda: cluster.ready(dead.survivor).get(dead.name) is False)
    undisturbed(cluster, dead)
    found = {one["name"]: one["problem"] for one in cluster.run("status", expect=4)["nodes"]}
    assert [name for name, problem in found.items() if problem] == [dead.name]


@pytest.mark.proves("remove-node", "A head without which an even number would stay is not removed.")
def test_remove_node__one_of_three_heads__is_refused(cluster: ThreeHeads, dead: Dead) -> None:
    text = cluster.inventory.read_text()
    other = next(head for head in reversed(cluster.head_names) if head not in (dead.name, dead.survivor))
    said = fails(cluster, 2, other, "--yes", verb="remove-node")
    assert "2 heads would stay, expected an odd number" in said
    assert cluster.inventory.read_text() == text
    assert members(cluster, dead.survivor) == set(cluster.head_names)
    assert cluster.ready(dead.survivor)[other]


@pytest.fixture(scope="module")
def replaced(cluster: ThreeHeads, dead: Dead) -> ThreeHeads:
    """Put a new head in the place of the dead one; no pod is another then."""
    before = cluster.kubectl("get", "pods", "--output=jsonpath={.items[*].metadata.uid}", head=dead.survivor)
    podman("rm", "--force", "--volumes", "--time", "0", container(cluster, dead.name))
    cluster.up()
    fails(cluster, 0, dead.name, "--accept-new-host-keys", verb="replace-node")
    wait_until(lambda: cluster.ready(dead.survivor) == dict.fromkeys(cluster.nodes, True))
    assert cluster.kubectl("get", "pods", "--output=jsonpath={.items[*].metadata.uid}") == before
    undisturbed(cluster, dead)
    return cluster


@pytest.mark.proves("replace-node", "A dead head is replaced by a new one under its name; no pod restarts.")
def test_replace_node__of_the_dead_head__makes_three_again(replaced: ThreeHeads) -> None:
    cluster = replaced
    for head in cluster.head_names:
        assert members(cluster, head) == set(cluster.head_names)
    assert (cluster.ledger(), cluster.cordoned(), tokens(cluster)) == ({}, set(), [])
    cluster.unchanged()


@pytest.mark.proves("kubernetes", "Each of three heads serves the API by itself.")
def test_heads__each_alone__serve_the_api(replaced: ThreeHeads) -> None:
    """The new one, too."""
    for head in replaced.head_names:
        ask = ("get", "--raw=/readyz", f"--server=https://{replaced.address(head)}:6443")
        assert replaced.kubectl(*ask, head=head).strip() == "ok"


# --- haproxy at the address -------------------------------------------------------------------------------------------

SHARED = "kubernetes_head_haproxy: true"
CONNECTIONS = 60
"""More than the heads' own connections can differ by."""


@pytest.fixture(scope="module")
def shared(replaced: ThreeHeads) -> ThreeHeads:
    """Share the connections to the address between the heads of a cluster that is set up."""
    before = {node: api_url(replaced, node) for node in replaced.nodes}
    replaced.declare(SHARED)
    replaced.run("bootstrap")
    assert {node: api_url(replaced, node) for node in replaced.nodes} == before
    return replaced


def accepted(cluster: ThreeHeads, holder: str) -> dict[str, int]:
    """Return how many connections the head with the address has to each head's API server."""
    found = cluster.root(holder, "ss --no-header --tcp --numeric state established dport = :6443").split()
    return {head: found.count(f"{cluster.address(head)}:6443") for head in cluster.head_names}


@pytest.mark.proves("kubernetes", "With haproxy, connections to the API's address reach the API servers of all heads.")
def test_haproxy__connections_to_the_address__reach_all_heads(shared: ThreeHeads) -> None:
    for head in shared.head_names:
        assert shared.root(head, "systemctl is-active haproxy keepalived").split() == ["active", "active"]
    holder, address = holder_of(shared), address_of(shared)
    wait_until(lambda: status_of(shared, "gpu01", f"https://{address}:6443/readyz") == "200")
    before = accepted(shared, holder)
    opened = f"for at in $(seq {CONNECTIONS}); do exec {{fd}}<>/dev/tcp/{address}/6443; done"
    # systemd keeps the connections open after the command.
    hold = f"systemd-run --quiet --unit=connections bash -c '{opened}; sleep 60'"
    shared.root("gpu01", hold.replace("$", "$$"))
    try:
        wait_until(lambda: sum(accepted(shared, holder).values()) >= sum(before.values()) + CONNECTIONS)
        now = accepted(shared, holder)
    finally:
        shared.root("gpu01", "systemctl stop connections")
    assert [head for head in shared.head_names if now[head] <= before[head]] == [], (before, now)
    clients = shared.root(holder, "journalctl --unit haproxy --output cat --no-pager")
    assert clients.count(f"{shared.address('gpu01')}:") >= CONNECTIONS, "the client's address is nowhere else"
    shared.unchanged()


@pytest.mark.proves("kubernetes", "With haproxy, the address answers on a head whose own API server is down.")
def test_haproxy__api_server_of_its_head_ends__the_address_answers(shared: ThreeHeads) -> None:
    holder, address = holder_of(shared), address_of(shared)
    manifest, aside = "/etc/kubernetes/manifests/kube-apiserver.yaml", "/root/kube-apiserver.yaml"
    shared.root(holder, f"mv {manifest} {aside}")
    try:
        wait_until(lambda: status_of(shared, "gpu01", f"https://{shared.address(holder)}:6443/readyz") == "000")
        answers = []
        for _ in range(10):  # longer than keepalived needs to move the address
            answers.append(status_of(shared, "gpu01", f"https://{address}:6443/readyz"))
            time.sleep(1)
        assert answers == ["200"] * 10
        assert holder_of(shared) == holder
    finally:
        shared.root(holder, f"mv {aside} {manifest}")
    wait_until(lambda: status_of(shared, "gpu01", f"https://{shared.address(holder)}:6443/readyz") == "200")


@pytest.mark.proves("kubernetes", "Without haproxy again, nothing of it is left, and the address answers as before.")
def test_haproxy__turned_off__is_removed(shared: ThreeHeads) -> None:
    shared.inventory.write_text(shared.inventory.read_text().replace(f"    {SHARED}\n", ""))
    shared.run("bootstrap")
    for head in shared.head_names:
        left = "ls /etc/haproxy/haproxy.cfg /etc/haproxy/kubernetes-ca.crt /usr/sbin/haproxy 2>/dev/null; pgrep haproxy"
        assert shared.root(head, f"{{ {left}; }} || true") in (
            "",
            "/etc/haproxy/haproxy.cfg\n",
        )  # the package's own, not purged
        assert "permit-port-sharing" not in shared.root(head, "cat /etc/kubernetes/manifests/kube-apiserver.yaml")
    wait_until(lambda: status_of(shared, "gpu01", f"https://{address_of(shared)}:6443/readyz") == "200")
    shared.unchanged()
