"""The lab of what is seen of a cluster: alerts, dashboards, logs and pages, with receivers and short intervals."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.cluster import gpus, logs
from tests.cluster.lab import ALICES, TestLab, clusterctl, fresh
from tests.programs import described

RECIPES = (*gpus.RECIPES, *logs.RECIPES)
"""What the lab needs of the kit."""
VARIABLES: dict[str, Any] = {
    "alertmanager_mail": {"server": "127.0.0.1:2525", "from": "cluster@example.org", "tls": False},
    "alertmanager_receivers": [
        {"type": "mail", "to": ["ops@example.org"]},
        {"type": "webhook", "url": "http://127.0.0.1:8098/hook", "token": True},
    ],
    "prometheus_scrape_interval": "5s",
    "slurm_exporter_interval": 5,
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
    """The lab, of empty nodes, with the users alice and bob; the secret of its webhook is not set."""
    with fresh("alerts", *(f"--recipe={name}" for name in RECIPES)) as made:
        made.switch_on("gpu_metrics")
        logs.switch_on(made)
        made.declare(*(f"{name}: {json.dumps(value)}" for name, value in VARIABLES.items()))
        text = made.inventory.read_text()
        made.inventory.write_text(text.replace(ALICES, f"{ALICES}      - {{name: bob, uid: 5002}}\n"))
        yield made


def set_hook_token(lab: TestLab) -> None:
    done = clusterctl("secret", "set", str(lab.inventory), "alertmanager_webhook_token", input="t0ken-of-the-hook\n")
    assert done.returncode == 0, described(done)


def ready(lab: TestLab) -> None:
    """Bootstrap the lab if no test has done so."""
    if not lab.root("head1", "ls /usr/local/sbin/landing-page 2>/dev/null || true"):
        set_hook_token(lab)
        lab.run("bootstrap")
