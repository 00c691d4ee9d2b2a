"""A bootstrap of a cluster of Kubernetes, with logs and configured GPUs, leaves out nodes where nothing has changed.

What a person changes in Kubernetes' API, in the search engine of the logs, or of a GPU is noticed.
"""

from collections.abc import Iterator

import pytest

from tests.bench import counts
from tests.bench.ceilings import check
from tests.cluster import logs
from tests.cluster.kubernetes import ADMIN, RECIPES, Kubernetes
from tests.cluster.lab import fresh_as
from tests.cluster.leaving_out import decided
from tests.cluster.test_unchanged import ALL, add_dave, changes, left_out, roles_of
from tests.faults.injury import wait_until

pytestmark = pytest.mark.kit(*RECIPES, *logs.RECIPES)

LIMIT_W = 200
"""A power limit that a simulated A100 can have, in W."""


@pytest.fixture(scope="module")
def lab() -> Iterator[Kubernetes]:
    """A cluster with proofs: its second bootstrap has changed nothing."""
    with fresh_as(Kubernetes, "unchanged-kubernetes", *(f"--recipe={name}" for name in logs.RECIPES)) as made:
        logs.switch_on(made)
        made.switch_on("gpu_config")
        made.declare("gpu_config_power_limit: 85%")
        made.run("bootstrap")
        assert left_out(made.run("bootstrap")) == []
        wait_until(lambda: decided(made) == ALL)
        yield made


@pytest.mark.proves("costs", "A first bootstrap of Kubernetes, with logs, keeps a worker's calls within their ceiling.")
def test_bootstrap__from_nothing__keeps_a_workers_path_short(lab: Kubernetes) -> None:
    run = min((lab.inventory.parent / ".clusterctl" / "runs").glob("*-bootstrap"))
    # The first worker has three more, which are made on a head for all of them.
    calls = counts.calls(run)["gpu02"]
    check({"kubernetes_calls_worker": len(calls)}, str(calls))


@pytest.mark.proves("bootstrap", "Nodes of Kubernetes, of the logs and with configured GPUs are left out, too.")
def test_bootstrap__of_an_unchanged_cluster__leaves_out_all_nodes(lab: Kubernetes) -> None:
    kubeconfig = lab.inventory.parent / ".clusterctl/kubeconfig"
    kubeconfig.unlink()
    done = lab.run("bootstrap")
    assert (left_out(done), done["stages"]) == (ALL, [])
    assert kubeconfig.exists(), "it is read from a head that was left out"
    lab.unchanged()
    assert decided(lab) == ALL, "--full has changed nothing"


KUBECTL = f"kubectl --kubeconfig={ADMIN}"
URL = "$(python3 -c \"import json; print(json.load(open('/etc/clusterctl/log-store/configuration.json'))['url'])\")"
CURL = "cd /etc/clusterctl/log-store; curl --fail --silent --show-error --cacert authority.pem --cert certificate.pem"
ENGINE = f"{CURL} --key key.pem --output /root/answer"
COUNT = "clusterctl/gpu-count"
ON_WORKER = {
    "label": ("head1", f"{KUBECTL} label node gpu01 {COUNT}-", f"{KUBECTL} label node gpu01 {COUNT}=4"),
    "taint": ("head1", f"{KUBECTL} taint node gpu01 mine=1:NoSchedule", f"{KUBECTL} taint node gpu01 mine-"),
    "cordon": ("head1", f"{KUBECTL} cordon gpu01", f"{KUBECTL} uncordon gpu01"),
    "kubelet": ("gpu01", "systemctl stop kubelet", "systemctl start kubelet"),
    "network of pods": ("gpu01", "mv /opt/cni/bin /opt/cni/hidden", "mv /opt/cni/hidden /opt/cni/bin"),
    # Kubernetes waits longer each time, before it starts the container again.
    "pod that crashes": (
        "gpu01",
        "for n in 1 2 3; do until pkill -KILL flanneld; do sleep 1; done; sleep 2; done",
        "true",
    ),
    "join": (
        "gpu01",
        "mv /etc/kubernetes/clusterctl/joined.crt /root",
        "mv /root/joined.crt /etc/kubernetes/clusterctl",
    ),
    "power": ("gpu01", f"nvidia-smi --id=0 --power-limit={LIMIT_W}", "gpu-config"),
}
"""By what is changed of a worker: the node where, what is done, and what undoes it."""


@pytest.mark.proves("bootstrap", "A worker of Kubernetes that was changed by hand is played, and no other.")
@pytest.mark.parametrize("name", ON_WORKER)
def test_bootstrap__of_a_worker_changed_by_hand__plays_it_alone(lab: Kubernetes, name: str) -> None:
    node, damage, undo = ON_WORKER[name]
    lab.root(node, damage)
    try:
        wait_until(lambda: decided(lab) == ["gpu02"])
    finally:
        lab.root(node, undo)
    wait_until(lambda: decided(lab) == ALL)


BINDING = "clusterrolebinding kubeadm:node-autoapprove-bootstrap"
MAP = "configmap --namespace=kube-flannel kube-flannel-cfg"
DNS = f"{KUBECTL} scale deployment --namespace=kube-system coredns"
ON_HEAD = {
    "label of a part": (
        f"{KUBECTL} label {MAP} clusterctl/part-",
        f"{KUBECTL} label {MAP} clusterctl/part=kubernetes_network",
    ),
    "binding": (f"{KUBECTL} create {BINDING} --clusterrole=view --user=x", f"{KUBECTL} delete {BINDING}"),
    "service": (
        f"{KUBECTL} annotate service --namespace=kube-system kube-dns mine=",
        f"{KUBECTL} annotate service --namespace=kube-system kube-dns mine-",
    ),
    "replicas": (f"{DNS} --replicas=3", f"{DNS} --replicas=2"),
    "mode": ("chmod 640 /etc/kubernetes/clusterctl/complete", "chmod 600 /etc/kubernetes/clusterctl/complete"),
    "engine": ("systemctl stop opensearch", "systemctl start opensearch"),
}
"""By what is changed on a head: what is done, and what undoes it."""


@pytest.mark.proves("bootstrap", "A head whose objects in Kubernetes were changed by hand is played.")
@pytest.mark.parametrize("name", ON_HEAD)
def test_bootstrap__of_a_head_changed_by_hand__plays_it(lab: Kubernetes, name: str) -> None:
    damage, undo = ON_HEAD[name]
    lab.root("head1", damage)
    try:
        wait_until(lambda: decided(lab) == ["gpu01", "gpu02"])
    finally:
        lab.root("head1", undo)
    wait_until(lambda: decided(lab) == ALL)


@pytest.mark.proves("bootstrap", "Objects in Kubernetes and in the logs' engine that were removed are created again.")
def test_bootstrap__of_removed_objects__creates_them(lab: Kubernetes) -> None:
    lab.kubectl("delete", "clusterrole", "flannel")
    lab.root("head1", f"{ENGINE} --request DELETE {URL}/_ingest/pipeline/clusterlog-gpu")
    lab.kubectl("label", "node", "gpu01", f"{COUNT}-")
    done = lab.run("bootstrap")
    assert left_out(done) == ["gpu02"]
    lab.kubectl("get", "clusterrole", "flannel")
    lab.root("head1", f"{ENGINE} {URL}/_ingest/pipeline/clusterlog-gpu")
    assert lab.get("node", "gpu01")["metadata"]["labels"][COUNT] == "4"
    assert {("ClusterRole", "flannel"), ("node", "gpu01")} <= changes(done, "head1") | changes(done, "gpu01")
    lab.run("bootstrap")
    assert decided(lab) == ALL


@pytest.mark.proves("bootstrap", "A new user of a cluster of Kubernetes plays only the role of users.")
def test_bootstrap__of_a_new_user__plays_the_role_of_users(lab: Kubernetes) -> None:
    add_dave(lab)
    plan = lab.run("plan bootstrap", expect=10)
    done = lab.run("bootstrap")
    assert roles_of(plan) == roles_of(done) == {"base", "users"}
    order = [sorted(stage["hosts"]) for stage in done["stages"] if stage["role"] == "users"]
    assert order == [["head1"], ["gpu01", "gpu02"]], "the head is first"
    for node in lab.nodes:
        lab.root(node, "id -u dave")
    again = lab.run("bootstrap")
    assert {name: host["changed"] for name, host in again["hosts"].items()} == dict.fromkeys(lab.nodes, 0)
    assert decided(lab) == ALL
    lab.unchanged()


@pytest.mark.proves("bootstrap", "A new team plays only the role of quotas, on the head.")
def test_bootstrap__of_a_new_team__plays_the_role_of_quotas(lab: Kubernetes) -> None:
    lab.declare('kubernetes_quota_teams: {vision: {quota: {pods: "7"}}}')
    done = lab.run("bootstrap")
    assert (left_out(done), roles_of(done)) == (["gpu01", "gpu02"], {"base", "kubernetes_quota"})
    assert lab.get("namespace", "vision")["metadata"]["name"] == "vision"
    lab.run("bootstrap")
    assert decided(lab) == ALL
