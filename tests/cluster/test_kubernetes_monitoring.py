"""What is seen of a Kubernetes cluster, and what follows: panels of dashboards, and alerts that cordon nodes."""

from collections.abc import Iterator

import pytest

from tests.cluster.kubernetes import BUSYBOX, RECIPES, Kubernetes, pod
from tests.cluster.lab import clusterctl, fresh_as
from tests.cluster.panels import asker, now, shown, without_data
from tests.cluster.test_gpu_metrics import query
from tests.cluster.watched import SENSOR
from tests.dashboards.asking import keep, values_of
from tests.faults.injury import wait_until

RECIPES_HERE = (*RECIPES, "dcgm-exporter-simulated")
pytestmark = pytest.mark.kit(*RECIPES_HERE)

LIMIT = 2
PAGES = ("alerts", "cluster", "gpu", "kubernetes", "node", "storage")
NO_DATA = {("storage", "InfiniBand")}
"""A container has none."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Kubernetes]:
    """A lab of one head and three workers, with metrics of GPUs and short intervals, bootstrapped."""
    with fresh_as(
        Kubernetes, "kubernetes-monitoring", *(f"--recipe={name}" for name in RECIPES_HERE), workers=3
    ) as lab:
        lab.switch_on("gpu_metrics")
        lab.declare("prometheus_scrape_interval: 5s", "gpu_health_interval: 10", f"alert_drain_limit: {LIMIT}")
        lab.run("bootstrap")
        yield lab


def drained(cluster: Kubernetes) -> dict[str, str]:
    return {node: causes["alert"] for node, causes in cluster.ledger().items() if "alert" in causes}


def firing(cluster: Kubernetes) -> set[str]:
    """Return the alerts that fire, but for the one that always does."""
    return {
        one["labels"]["alertname"]
        for one in asker(cluster)("alerts", {})["alerts"]
        if one["state"] == "firing" and one["labels"]["alertname"] != "Watchdog"
    }


@pytest.mark.proves("monitoring", "Every query of the dashboards of a Kubernetes cluster returns data with pods.")
def test_panels__of_kubernetes__all_have_data_and_show_its_pods(cluster: Kubernetes) -> None:
    for node in cluster.nodes:
        cluster.root(node, "systemctl start update-metrics")  # counts security updates, once a day otherwise
    one = pod("busy", BUSYBOX, "while :; do :; done", gpus=2, node="gpu01")
    cluster.apply(one)
    wait_until(lambda: len(query(cluster, 'DCGM_FI_DEV_GPU_UTIL{pod="busy"}')) == 2)
    assert clusterctl("lab", "fault", "--name", cluster.name, "gpu01", "busy", "--gpu", "0").returncode == 0
    wait_until(lambda: without_data(shown(cluster, PAGES)) == NO_DATA, lambda: str(without_data(shown(cluster, PAGES))))
    found = shown(cluster, PAGES)
    keep("kubernetes", found, now(cluster))
    held = [one for one in found["kubernetes"] if one.panel.title == "GPUs held, by namespace"]
    ends = {series["metric"]["namespace"]: values_of(series)[-1] for series in held[0].series[0]}
    assert ends["default"] == 2
    cluster.delete(one)


@pytest.mark.proves("monitoring", "An XID of a Kubernetes node raises its alert, and cordons it with that reason.")
@pytest.mark.proves("monitoring", "A passed diagnosis uncordons a node that an alert cordoned, not an operator's.")
def test_xid__of_a_gpu__cordons_its_node_until_the_diagnosis(cluster: Kubernetes) -> None:
    cluster.kubectl("cordon", "gpu02")
    for node in ("gpu01", "gpu02"):
        done = clusterctl("lab", "fault", "--name", cluster.name, node, "gpu-xid", "79", "--gpu", "1")
        assert done.returncode == 0, done.stderr
    wait_until(lambda: {"gpu01", "gpu02"} <= drained(cluster).keys(), lambda: str(cluster.ledger()))
    assert drained(cluster)["gpu01"].startswith("Gpu")
    assert cluster.cordoned() == {"gpu01", "gpu02"}
    assert "alert: Gpu" in clusterctl("status", str(cluster.inventory)).stdout
    for node in ("gpu01", "gpu02"):
        assert clusterctl("lab", "fault", "--name", cluster.name, node, "clear").returncode == 0
    assert cluster.run("health", "gpu01", "gpu02", "--diagnose")["exit_code"] == 0
    wait_until(lambda: cluster.ledger() == {}, lambda: str(cluster.ledger()))
    wait_until(lambda: not firing(cluster), lambda: str(firing(cluster)))
    assert cluster.ledger() == {}, "an alert that had not ended yet has cordoned it again"
    assert cluster.cordoned() == {"gpu02"}
    cluster.kubectl("uncordon", "gpu02")


@pytest.mark.proves("monitoring", "A sensor that is wrong on all Kubernetes nodes cordons only as many as permitted.")
def test_sensor__that_is_wrong_everywhere__cordons_two_nodes(cluster: Kubernetes) -> None:
    cluster.ssh("head1", "sudo", "tee", "/etc/prometheus/rules/site.yml", stdin=SENSOR)
    cluster.root("head1", "systemctl reload prometheus")
    for node in cluster.worker_names:
        cluster.ssh(node, "sudo", "tee", "/var/lib/clusterctl-metrics/site.prom", stdin="site_sensor_broken 1\n")
    refused = (
        "journalctl --quiet --output=cat --unit=alert-drain --grep='stays in service despite SensorBroken' || true"
    )
    wait_until(lambda: cluster.root("head1", refused) != "")
    assert len(drained(cluster)) == LIMIT
    assert cluster.cordoned() == drained(cluster).keys()
    for node in cluster.worker_names:
        cluster.root(node, "rm /var/lib/clusterctl-metrics/site.prom")
    cluster.root("head1", "rm /etc/prometheus/rules/site.yml; systemctl reload prometheus")
    wait_until(lambda: not firing(cluster), lambda: str(firing(cluster)))
    assert len(drained(cluster)) == LIMIT, "the end of an alert heals nothing"
    for node in drained(cluster):
        cluster.root("head1", f"kubernetes-drain alert --in {node}")
    cluster.unchanged()
