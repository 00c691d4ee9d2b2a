"""What alerts do in a lab: which fire, and what they drain."""

import json

from tests.cluster.lab import TestLab, clusterctl


def causes(lab: TestLab) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = json.loads(lab.root("head1", "slurm-drain"))
    return found


def drained_by_alerts(lab: TestLab) -> dict[str, str]:
    return {node: of_node["alert"] for node, of_node in causes(lab).items() if "alert" in of_node}


def reason(lab: TestLab, node: str) -> str:
    return lab.root("head1", f"sinfo --noheader --Node --nodes={node} --format='%T %E'").strip()


def firing(lab: TestLab) -> set[tuple[str, str]]:
    """Return name and node of the alerts that fire, but for the one that always does."""
    done = clusterctl("status", str(lab.inventory), "--output", "json")
    return {(one["name"], one["node"]) for one in json.loads(done.stdout)["alerts"]["firing"]}
