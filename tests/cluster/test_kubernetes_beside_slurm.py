"""Both schedulers in one inventory: each has hosts of its own; users, names, metrics and status are shared."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.cluster.kubernetes import RECIPES, Kubernetes, pod
from tests.cluster.lab import ALICE, clusterctl, fresh_as
from tests.cluster.test_gpu_metrics import query
from tests.faults.injury import wait_until
from tests.manifests import differences

EXPORTER = "dcgm-exporter-simulated"
"""It finds the pods in the kubelet's checkpoint; NVIDIA's asks the kubelet's API of pod resources."""

pytestmark = [pytest.mark.kit(*RECIPES, EXPORTER), pytest.mark.long]

GROUPS = {
    "kubernetes_head": "head1",
    "kubernetes_workers": "gpu01",
    "slurm_head": "gpu02",
    "slurm_workers": "gpu03",
    "gpu_metrics": "gpu01",
}
SEEN = "nvidia-smi -L"


def arrange(lab: Kubernetes, groups: dict[str, str]) -> None:
    """Let a lab's inventory have one host in each group."""
    inventory = yaml.safe_load(lab.inventory.read_text())["all"]
    hosts = {
        name: found
        for group in ("kubernetes_head", "kubernetes_workers")
        for name, found in inventory["children"].pop(group)["hosts"].items()
    }
    inventory["children"] |= {group: {"hosts": {name: dict(hosts[name])}} for group, name in groups.items()}
    inventory["vars"]["slurm_head_confine"] = ["devices"]  # what a container can confine with either version of cgroups
    lab.inventory.write_text(yaml.safe_dump({"all": inventory}, sort_keys=False))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Kubernetes]:
    """A lab whose hosts are divided among both schedulers, bootstrapped."""
    with fresh_as(Kubernetes, "kubernetes-and-slurm", "--recipe", EXPORTER, workers=3) as lab:
        arrange(lab, GROUPS)
        lab.run("bootstrap")
        yield lab


@pytest.mark.proves("kubernetes", "One inventory with both schedulers becomes a healthy cluster of each.")
@pytest.mark.proves("verify", "`verify` and `status` include the nodes of both schedulers.")
def test_bootstrap__both_schedulers__each_has_its_nodes(cluster: Kubernetes) -> None:
    assert {host["status"] for host in cluster.run("verify")["hosts"].values()} == {"ok"}
    status = cluster.healthy()
    assert {*status["kubernetes"]["nodes"]} == {"head1", "gpu01"}
    assert {*status["slurm"]["nodes"]} == {"gpu03"}


@pytest.mark.proves("bootstrap", "A second run on both schedulers changes nothing.")
def test_second_run__both_schedulers__changes_nothing(cluster: Kubernetes) -> None:
    before, pods = cluster.manifests(), cluster.containers(*cluster.nodes)
    cluster.unchanged()
    assert differences(before, cluster.manifests()) == []
    assert cluster.containers(*cluster.nodes) == pods


@pytest.mark.proves("kubernetes", "Beside each other, a pod and a job have GPUs of their scheduler's own nodes.")
def test_pod_and_job__beside_each_other__have_their_own_gpus(cluster: Kubernetes) -> None:
    of_pod = re.findall(r"UUID: (\S+)\)", cluster.output(pod("one", cluster.image, SEEN, gpus=1, node="gpu01")))
    of_job = re.findall(r"UUID: (\S+)\)", cluster.ssh("gpu02", *ALICE, "srun", "--chdir=/", "--gpus=1", *SEEN.split()))
    assert len(of_pod) == len(of_job) == 1
    assert of_pod[0] in cluster.root("gpu01", SEEN)
    assert of_job[0] in cluster.root("gpu03", SEEN)
    assert cluster.gpus("gpu01") == 4


@pytest.mark.proves("kubernetes", "Hosts of both schedulers have the same users.")
def test_users__on_hosts_of_both__are_the_same(cluster: Kubernetes) -> None:
    assert {cluster.root(node, "id alice") for node in cluster.nodes} == {cluster.root("head1", "id alice")}


@pytest.mark.proves("monitoring", "One Prometheus has the metrics of both schedulers.")
def test_metrics__of_both__are_in_one_prometheus(cluster: Kubernetes) -> None:
    expected = {"kubernetes_node_state": {"head1"}, "slurm_nodes": {"gpu02"}}  # the exporters on the schedulers' heads

    def found() -> dict[str, set[str]]:
        return {metric: {one["metric"]["instance"] for one in query(cluster, metric)} for metric in expected}

    wait_until(lambda: found() == expected, lambda: f"{found()}")
    nodes = {one["metric"]["node"] for one in query(cluster, "kubernetes_node_state")}
    assert nodes == {"head1", "gpu01"}
    up = {one["metric"]["instance"] for one in query(cluster, 'up{job="node"} == 1')}
    assert up == {*cluster.nodes}


@pytest.mark.proves("monitoring", "GPU metrics have the namespace, pod and container that hold the GPU.")
def test_gpu_metrics__while_a_pod_has_a_gpu__have_its_name(cluster: Kubernetes) -> None:
    metric = 'DCGM_FI_DEV_GPU_TEMP{instance="gpu01"}'
    one = pod("measured", cluster.image, f"{SEEN}; exec sleep 600", gpus=1, node="gpu01")

    def held() -> dict[str, tuple[str, ...]]:
        """Return namespace, pod and container of each GPU that a pod has, by the GPU's UUID."""
        found = [series["metric"] for series in query(cluster, metric)]
        names = {of["UUID"]: tuple(of.get(key, "") for key in ("namespace", "pod", "container")) for of in found}
        return {uuid: labels for uuid, labels in names.items() if any(labels)}

    wait_until(lambda: len(query(cluster, metric)) == 4, lambda: f"{query(cluster, metric)}")
    wait_until(lambda: held() == {}, lambda: f"{held()}")  # pods of earlier tests
    with cluster.running(one):
        wait_until(lambda: "UUID" in cluster.logs(one))
        (uuid,) = re.findall(r"UUID: (\S+)\)", cluster.logs(one))
        wait_until(lambda: held() == {uuid: ("default", "measured", "main")}, lambda: f"{uuid}: {held()}")
    wait_until(lambda: held() == {}, lambda: f"{held()}")


@pytest.mark.proves("usage", "Usage has both schedulers: jobs by account, GPUs of pods by namespace.")
def test_usage__of_both__is_by_account_and_namespace(cluster: Kubernetes) -> None:
    def reports() -> dict[str, dict[str, Any]]:
        return {report["scheduler"]: report for report in cluster.run("usage", "--since", "10m")["reports"]}

    def held() -> dict[str, float]:
        return {group["name"]: group["gpu_hours"] for group in reports()["kubernetes"]["groups"]}

    with cluster.running(pod("held", cluster.image, "exec sleep 600", gpus=1, node="gpu01")):
        wait_until(lambda: held().get("default", 0) >= 30 / 3600, lambda: f"{held()}")
        found = reports()
    assert {name: (report["by"], report["gpus"]) for name, report in found.items()} == {
        "slurm": ("account", 4),
        "kubernetes": ("namespace", 4),
    }
    (default,) = [group for group in found["kubernetes"]["groups"] if group["name"] == "default"]
    assert default["gpu_hours"] <= 10 / 60
    assert default["utilisation"] == 0, "the simulated GPU computes nothing"
    assert [node["name"] for node in found["kubernetes"]["nodes"]] == ["gpu01"]


@pytest.mark.proves("inventory", "A host in both schedulers is refused, and nothing changes.")
def test_host__in_both_schedulers__is_refused(cluster: Kubernetes) -> None:
    before = cluster.inventory.read_text()
    arranged = yaml.safe_load(before)
    arranged["all"]["children"]["slurm_workers"]["hosts"]["gpu01"] = {}
    cluster.inventory.write_text(yaml.safe_dump(arranged, sort_keys=False))
    try:
        done = clusterctl("bootstrap", str(cluster.inventory))
    finally:
        cluster.inventory.write_text(before)
    assert done.returncode == 2, done.stderr
    assert "gpu01: in two schedulers, got slurm, kubernetes, expected one" in done.stderr
