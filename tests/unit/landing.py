"""A cluster for tests of the landing page, in the form of Prometheus's API, with texts that are not to be trusted."""

from types import ModuleType
from typing import Any

from tests.unit.head_programs import load

STATE: ModuleType = load("landing_state")
PAGE: ModuleType = load("landing_page")
EVIL = '"><script>alert(1)</script>'
NOW = 1795752000.0  # 2026-11-27
PAGES = [
    {
        "name": "prometheus",
        "title": "Prometheus",
        "purpose": "metrics, queries and alert rules",
        "host": "head1",
        "url": "https://10.0.0.10:9090/",
        "port": 9090,
        "path": "/",
        "user": "admin",
        "secret": "prometheus_password",
        "here": True,
    },
    {
        "name": "jupyter",
        "title": "JupyterHub",
        "purpose": "notebooks",
        "host": "head2",
        "url": "https://10.0.0.11:8000/hub",
        "port": 8000,
        "path": "/hub",
        "user": "",
        "secret": "",
        "here": False,
    },
]


def one(value: float, **labels: str) -> dict[str, Any]:
    """Return a series of an instant query's answer (prometheus.io/docs/prometheus/latest/querying/api)."""
    return {"metric": labels, "value": [NOW, str(value)]}


ANSWERS: dict[str, list[dict[str, Any]]] = {
    "reporting": [one(1, instance="head1"), one(1, instance="gpu01"), one(0, instance="gpu03")],
    "slurm_up": [one(1)],
    "slurm_states": [
        one(1, node="gpu01", state="mixed"),
        one(1, node="gpu02", state="drained"),
        one(1, node="gpu03", state="not_responding"),
        one(1, node="gpu04", state="idle"),
    ],
    "slurm_reasons": [
        one(1, node="gpu02", reason=f"clusterctl: alert: GpuXid: GPU 1 of gpu02 had XID 79 {EVIL}"),
        one(1, node="gpu04", reason="an old one"),
    ],
    "slurm_gpus": [one(3, use="allocated"), one(5, use="idle"), one(8, use="unavailable")],
    "jobs": [
        one(2, partition="main", state="running"),
        one(1, partition="main", state="pending"),
        one(1, partition="main", state="completing"),
    ],
    "partition_gpus": [
        one(3, partition="main", use="allocated"),
        one(5, partition="main", use="idle"),
        one(8, partition="main", use="unavailable"),
    ],
    "kubernetes_up": [],
    "kubernetes_states": [],
    "kubernetes_reasons": [],
    "kubernetes_gpus": [],
    "pods": [],
    "backups": [one(NOW - 7200, scheduler="slurm")],
}


def alert(name: str, severity: str, node: str, summary: str, state: str = "firing") -> dict[str, Any]:
    """Return an alert of /api/v1/alerts."""
    return {
        "labels": {"alertname": name, "severity": severity, "node": node},
        "annotations": {"summary": summary, "runbook": f"clusterctl docs runbooks/{name}"},
        "state": state,
        "activeAt": "2026-11-27T00:38:18.123456789Z",
        "value": "1e+00",
    }


ALERTS = [
    alert("Watchdog", "none", "", "always"),
    alert("GpuTemperatureHigh", "warning", "gpu01", "GPU 2 of gpu01 is at 91 °C"),
    alert("GpuXid", "critical", "gpu02", f"GPU 1 of gpu02 had XID 79 {EVIL}"),
    alert("DiskFull", "warning", "gpu04", "soon", state="pending"),
]


def state(alerts: Any = ALERTS, **changed: list[dict[str, Any]]) -> Any:
    series = {name: STATE.series_of({"result": result}) for name, result in (ANSWERS | changed).items()}
    return STATE.state(series, alerts)


def page(**changed: list[dict[str, Any]]) -> str:
    made: str = PAGE.page("aurora", state(**changed), PAGES, NOW, "head1.example.org")
    return made
