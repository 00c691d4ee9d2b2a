"""How many nodes alerts may drain at the same time."""

from collections.abc import Iterator

import pytest

from tests.cluster.alerting import drained_by_alerts, firing
from tests.cluster.lab import TestLab, fresh
from tests.cluster.watched import SENSOR
from tests.faults.injury import wait_until

DRAIN_LIMIT = 2


@pytest.fixture(scope="module")
def lab() -> Iterator[TestLab]:
    with fresh("alert-limit", workers=5) as made:
        made.declare(f"alert_drain_limit: {DRAIN_LIMIT}", "prometheus_scrape_interval: 5s")
        made.run("bootstrap")
        yield made


@pytest.mark.proves("monitoring", "A sensor that is wrong on all nodes drains only as many as permitted.")
@pytest.mark.long
def test_sensor__that_is_wrong_everywhere__drains_two_nodes(lab: TestLab) -> None:
    lab.ssh("head1", "sudo", "tee", "/etc/prometheus/rules/site.yml", stdin=SENSOR)
    lab.root("head1", "systemctl reload prometheus")
    for node in lab.nodes[1:]:
        lab.ssh(node, "sudo", "tee", "/var/lib/clusterctl-metrics/site.prom", stdin="site_sensor_broken 1\n")
    refused = "journalctl --quiet --output=cat --unit=alert-drain --grep='stays in service despite SensorBroken'"
    wait_until(lambda: lab.root("head1", f"{refused} || true") != "")
    assert len(drained_by_alerts(lab)) == DRAIN_LIMIT
    # The metric is gone, and so is the alert: that heals nothing.
    for node in lab.nodes[1:]:
        lab.root(node, "rm /var/lib/clusterctl-metrics/site.prom")
    lab.root("head1", "rm /etc/prometheus/rules/site.yml; systemctl reload prometheus")
    wait_until(lambda: not firing(lab))
    assert len(drained_by_alerts(lab)) == DRAIN_LIMIT
    for node in drained_by_alerts(lab):
        lab.root("head1", f"slurm-drain alert --in {node}")
    metrics = "cat /var/lib/clusterctl-metrics/alert-drain.prom"
    wait_until(lambda: "cluster_alert_drain_refused 0\n" in lab.root("head1", metrics))
    lab.unchanged()
