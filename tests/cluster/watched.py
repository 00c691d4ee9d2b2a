"""The lab of what is seen of a cluster: alerts, logs and pages, with receivers, GPU metrics and short intervals."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.cluster import gpus, logs
from tests.cluster.lab import TestLab, clusterctl, fresh
from tests.programs import described

RECIPES = (*gpus.RECIPES, *logs.RECIPES)
"""What the lab needs of the kit."""
DRAIN_LIMIT = 2
VARIABLES: dict[str, Any] = {
    "alert_drain_limit": DRAIN_LIMIT,
    "alertmanager_mail": {"server": "127.0.0.1:2525", "from": "cluster@example.org", "tls": False},
    "alertmanager_receivers": [
        {"type": "mail", "to": ["ops@example.org"]},
        {"type": "webhook", "url": "http://127.0.0.1:8098/hook", "token": True},
    ],
    "prometheus_scrape_interval": "5s",
    "slurm_head_health_interval": gpus.INTERVAL,
}
# A site's own alert, of a metric that a node's administrator writes.
SENSOR = """
groups:
  - name: site
    rules:
      - alert: SensorBroken
        expr: site_sensor_broken == 1
        labels: {severity: warning, action: drain}
        annotations: {summary: "the sensor of {{ $labels.instance }} is broken"}
"""


@contextmanager
def watched_lab() -> Iterator[TestLab]:
    """The lab, of empty nodes; the secret of its webhook is not set."""
    with fresh("alerts", *(f"--recipe={name}" for name in RECIPES), workers=5) as made:
        made.switch_on("gpu_metrics")
        logs.switch_on(made)
        made.declare(*(f"{name}: {json.dumps(value)}" for name, value in VARIABLES.items()))
        yield made


def set_hook_token(lab: TestLab) -> None:
    done = clusterctl("secret", "set", str(lab.inventory), "alertmanager_webhook_token", input="t0ken-of-the-hook\n")
    assert done.returncode == 0, described(done)


def ready(lab: TestLab) -> None:
    """Bootstrap the lab if no test has done so."""
    if not lab.root("head1", "ls /usr/local/sbin/landing-page 2>/dev/null || true"):
        set_hook_token(lab)
        lab.run("bootstrap")
