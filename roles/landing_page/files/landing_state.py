"""The state of the cluster, as Prometheus knows it. Texts of alerts and nodes are not trusted: they are escaped."""

from __future__ import annotations

import base64
import datetime
import http.client
import json
import ssl
import urllib.parse

SECONDS = 10  # for one answer of Prometheus
LARGEST = 16 << 20  # bytes of an answer: 500 nodes are half a MiB
# Heads of Kubernetes all export the same. A node in two of Slurm's partitions counts in both.
QUERIES = {
    "reporting": 'up{job="node"}',
    "slurm_up": "max(slurm_up)",
    "slurm_states": "max by (node, state) (slurm_node_state)",
    "slurm_reasons": "max by (node, reason) (slurm_node_reason)",
    "slurm_gpus": "sum by (use) (slurm_node_gpus)",
    "jobs": "sum by (partition, state) (slurm_jobs)",
    "partition_gpus": "sum by (partition, use) (slurm_gpus)",
    "kubernetes_up": "max(kubernetes_up)",
    "kubernetes_states": "max by (node, state) (kubernetes_node_state)",
    "kubernetes_reasons": "max by (node, reason) (kubernetes_node_reason)",
    "kubernetes_gpus": "sum by (use) (max by (resource, use) (kubernetes_gpus))",
    "pods": "sum by (phase) (max by (namespace, phase) (kubernetes_pods))",
    "backups": "max by (scheduler) (cluster_backup_seconds)",
}
SCHEDULERS = {"slurm": "Slurm", "kubernetes": "Kubernetes"}
IN_SERVICE = ("allocated", "completing", "idle", "mixed", "planned", "ready", "reserved")
USES = ("allocated", "idle", "unavailable")
SEVERITIES = ("critical", "warning", "info")


class Prometheus:
    """The API of Prometheus. Its methods raise OSError, ValueError or http.client.HTTPException."""

    def __init__(self, url: str, user: str, password: str, authority: str) -> None:
        self.place = urllib.parse.urlsplit(url)
        login = base64.b64encode(f"{user}:{password}".encode()).decode()
        self.header = {"Authorization": f"Basic {login}"}
        self.context = ssl.create_default_context(cafile=authority)

    def read(self) -> tuple[dict, list]:
        """Return the series of each query, and the alerts, over one connection."""
        line = http.client.HTTPSConnection(self.place.hostname, self.place.port, timeout=SECONDS, context=self.context)
        try:
            series = {name: series_of(self.ask(line, "query", query=query)) for name, query in QUERIES.items()}
            return series, self.ask(line, "alerts")["alerts"]
        finally:
            line.close()

    def ask(self, line: http.client.HTTPSConnection, what: str, **given: str) -> dict:
        line.request("GET", f"/api/v1/{what}?{urllib.parse.urlencode(given)}", headers=self.header)
        answer = line.getresponse()
        body = answer.read(LARGEST)
        if answer.status != 200:
            raise OSError(f"Prometheus returned HTTP {answer.status}")
        return json.loads(body)["data"]


def series_of(data: dict) -> list[tuple[dict, float]]:
    """Return labels and value of each series of an answer."""
    return [(one["metric"], float(one["value"][1])) for one in data["result"]]


def state(series: dict, alerts: list) -> dict:
    """Return what the page shows, from the answers of Prometheus."""
    found: dict = {"schedulers": [], "problems": [], "out": out_of_service(series), "alerts": firing(alerts)}
    for name, title in SCHEDULERS.items():
        up = [value for _, value in series[f"{name}_up"]]
        if not up:
            continue
        if not max(up):
            found["problems"].append(f"{title} does not respond; its figures are missing.")
        states = {labels["node"]: labels["state"] for labels, _ in series[f"{name}_states"]}
        gpus = dict.fromkeys(USES, 0)
        gpus.update({labels["use"]: int(value) for labels, value in series[f"{name}_gpus"]})
        found["schedulers"].append(
            {"name": name, "title": title, "up": bool(max(up)), "nodes": count(states.values()), "gpus": gpus}
        )
    found["partitions"] = partitions(series)
    found["pods"] = {labels["phase"]: int(value) for labels, value in series["pods"]}
    found["backups"] = {labels["scheduler"]: value for labels, value in series["backups"]}
    return found


def count(states: object) -> dict[str, int]:
    """Return the number of nodes in each state, those in service as one, first."""
    found: dict[str, int] = {"in service": 0}
    for one in states:
        word = "in service" if one in IN_SERVICE else one.replace("_", " ")
        found[word] = found.get(word, 0) + 1
    return found


def out_of_service(series: dict) -> list[dict]:
    """Return node, state and reasons of each host that is out of service or whose metrics are missing."""
    found: dict[str, dict] = {}
    for name in SCHEDULERS:
        for labels, _ in series[f"{name}_states"]:
            if labels["state"] not in IN_SERVICE:
                one = found.setdefault(labels["node"], {"states": [], "reasons": []})
                one["states"].append(labels["state"].replace("_", " "))
        for labels, _ in series[f"{name}_reasons"]:
            # Slurm keeps the reason of a node that is back in service.
            if labels["node"] in found:
                found[labels["node"]]["reasons"].append(labels["reason"])
    for labels, value in series["reporting"]:
        if not value:
            one = found.setdefault(labels["instance"], {"states": [], "reasons": []})
            one["states"].append("no metrics")
    return [{"node": node, **one} for node, one in sorted(found.items())]


def partitions(series: dict) -> list[dict]:
    """Return the jobs and GPUs of each of Slurm's partitions."""
    found: dict[str, dict] = {}
    for labels, value in series["jobs"]:
        jobs = found.setdefault(labels["partition"], {"jobs": {}, "gpus": {}})["jobs"]
        word = labels["state"] if labels["state"] in ("running", "pending") else "other"
        jobs[word] = jobs.get(word, 0) + int(value)
    for labels, value in series["partition_gpus"]:
        found.setdefault(labels["partition"], {"jobs": {}, "gpus": {}})["gpus"][labels["use"]] = int(value)
    return [{"name": name, **one} for name, one in sorted(found.items())]


def firing(alerts: list) -> list[dict]:
    """Return the firing alerts, the most severe first; one that always fires has severity none."""
    found = []
    for one in alerts:
        labels, notes = one.get("labels", {}), one.get("annotations", {})
        severity = labels.get("severity", "")
        if one.get("state") != "firing" or severity == "none":
            continue
        found.append(
            {
                "severity": severity,
                "name": labels.get("alertname", ""),
                "node": labels.get("node") or labels.get("instance", ""),
                "since": seconds(one.get("activeAt", "")),
                "summary": notes.get("summary", ""),
                "runbook": notes.get("runbook", ""),
            }
        )
    rank = {name: number for number, name in enumerate(SEVERITIES)}
    return sorted(found, key=lambda one: (rank.get(one["severity"], len(rank)), one["name"], one["node"]))


def seconds(text: str) -> float:
    """Return a time of Prometheus, such as 2026-11-27T05:38:18.123456789Z, in seconds since 1970; 0 if it has none."""
    try:
        return datetime.datetime.strptime(f"{text[:19]}+0000", "%Y-%m-%dT%H:%M:%S%z").timestamp()
    except ValueError:
        return 0.0
