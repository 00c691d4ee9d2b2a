"""The status of a cluster as it was collected: nodes, the schedulers' state, alerts, and what follows from them.

Exit status: 0 healthy; 4 a node is out of service or differs from its record, or a critical alert fires; 5 the head or
its scheduler is down.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from clusterctl.inventory import services
from clusterctl.kubernetes.objects import KubernetesNode
from clusterctl.kubernetes.state import Kubernetes
from clusterctl.nodes import advisories
from clusterctl.nodes.contact import Alerts, Drift, Item
from clusterctl.run import pruning
from clusterctl.run.runs import Run
from clusterctl.slurm.state import Slurm, SlurmNode

HEALTHY, DEGRADED, HEAD_DOWN = 0, 4, 5
_HEALTH = {HEALTHY: "healthy", DEGRADED: "degraded", HEAD_DOWN: "head down"}
OUTDATED = 3 * 86400
"""Seconds after which the daily security updates are reported as late."""
ABSENT = "not installed"
UNRECORDED = "no hardware record yet"

_UNION = "packages"  # the role that installs the packages of all roles


def _is_upgraded(item: Item) -> bool:
    """Return whether an item is a package that is newer than the last run recorded it."""
    return bool(item.old and item.new and advisories.is_older(item.old, item.new))


@dataclass(frozen=True)
class NodeStatus:
    """One node: the contact problem, or its services by name and its differences from the record."""

    name: str
    head: bool
    problem: str = ""
    slurm_worker: bool = False
    services: Mapping[str, str] = field(default_factory=dict)
    differences: tuple[str, ...] = ()
    release: str = ""
    drift: Drift | None = None
    topology: tuple[str, ...] = ()
    """One line for each GPU with its links; only with --topology."""
    unused: tuple[str, ...] = ()
    """Roles that are installed on the node but not in any of its groups."""
    driver: str | None = None
    """The version of NVIDIA's driver."""
    updated: int | None = None
    """Seconds since the node's security updates last succeeded or were set up; None without security updates."""
    homes: Mapping[str, int] = field(default_factory=dict)
    """Time of the last change of some home directories, in nanoseconds since 1970."""
    kubernetes: bool = False
    """Whether it is a node of Kubernetes: a head or a worker."""
    mounts: tuple[str, ...] = ()
    """What is wrong with its shared directories."""
    sleep: str = ""
    """`asleep` or `waking` if Slurm's power saving has switched the node off. Nothing else is known of it then."""

    @property
    def drifted(self) -> list[Item]:
        """Return the items that differ from the last run's record: each item once, with its roles in `scope`."""
        roles: dict[Item, list[str]] = {}
        for item in self.drift.items if self.drift else ():
            if self.updated is not None and _is_upgraded(item):
                continue  # the node's security updates upgraded it
            roles.setdefault(replace(item, scope=""), []).append(pruning.ROLE_OF.get(item.scope, item.scope))
        drifted = []
        for item, owners in roles.items():
            named = [role for role in dict.fromkeys(owners) if role != _UNION] or [_UNION]
            drifted.append(replace(item, scope=", ".join(named)))
        return drifted

    @property
    def is_healthy(self) -> bool:
        """Return whether the node responds, runs all its services and matches its records."""
        drift = self.drifted or (self.drift and self.drift.error)
        return not (self.problem or self.failed or self.differences or self.mounts or drift)

    @property
    def failed(self) -> list[str]:
        """Return the services that are not running, each with its state."""
        return [f"{name} {state}" for name, state in self.services.items() if state != "active"]

    @property
    def scheduling_failed(self) -> bool:
        """Return whether a service of the scheduler is not running."""
        return any(state != "active" and name in services.scheduling() for name, state in self.services.items())


def _have_shared_homes(homes: Mapping[str, int], others: Mapping[str, int]) -> bool | None:
    """Return whether two nodes mount their homes from one file system; None without a home in common.

    A local home has another time of change on each node. The home of an active user may differ on shared storage too,
    so half of the homes are enough.
    """
    common = homes.keys() & others.keys()
    return 2 * sum(_is_same_time(homes[path], others[path]) for path in common) >= len(common) if common else None


def _is_same_time(one: int, other: int) -> bool:
    """Return whether two times in nanoseconds are equal. Some file systems, such as sshfs, store whole seconds.

    Whole seconds count only if one time has no fraction: local homes are created on all nodes within one second.
    """
    seconds = 0 in (one % 10**9, other % 10**9) and one // 10**9 == other // 10**9
    return one == other or seconds


@dataclass(frozen=True)
class Status:
    """The whole cluster. `last_run` is None before the first run, `alerts` is None without monitoring.

    `secrets_problem`: the reason why files with secrets were not compared.
    `leaving`: the nodes whose removal is not finished, each with the command that resumes it.
    `given`: the inventory as typed.
    `people_apart`: people with different IDs, and nodes that do not resolve people, a line for each.
    `directory`: what Slurm's head cannot do with the directory of people, which stops no job.
    `built`: whether a run from this directory has set up the cluster; looked up only if the exit code is HEAD_DOWN.
    """

    cluster: str
    nodes: tuple[NodeStatus, ...]
    slurm: Slurm | None
    last_run: Run | None
    alerts: Alerts | None = None
    secrets_problem: str = ""
    leaving: Mapping[str, str] = field(default_factory=dict)
    given: str = "INVENTORY"
    built: bool = True
    kubernetes: Kubernetes | None = None
    people_apart: tuple[str, ...] = ()
    directory: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """Return HEALTHY, DEGRADED or HEAD_DOWN."""
        slurm, kubernetes = self.slurm or Slurm(), self.kubernetes or Kubernetes()
        if slurm.problem or kubernetes.problem or any(map(self._is_lost_head, self.nodes)):
            return HEAD_DOWN
        alerts = self.alerts or Alerts()
        alarmed = alerts.error or any(alert.severity == "critical" for alert in alerts.firing)
        healthy = all(node.is_healthy for node in self.nodes) and all(node.in_service for node in slurm.nodes.values())
        healthy = healthy and all(node.is_healthy for node in kubernetes.nodes.values())
        healthy = healthy and all(slurm.controllers.values())
        missing = self.unregistered or self.unjoined or self.people_apart
        return HEALTHY if healthy and not (alarmed or missing or self.leaving) else DEGRADED

    def _is_lost_head(self, node: NodeStatus) -> bool:
        """Return whether a head does not serve, and no other one does in its place."""
        api = node.kubernetes and self.kubernetes is not None and not self.kubernetes.problem
        other = not node.kubernetes and self.slurm is not None and bool(self.slurm.in_control)
        return node.head and not (api or other) and bool(node.problem or node.scheduling_failed)

    @property
    def unregistered(self) -> list[str]:
        """Return the workers of the inventory that are not registered in Slurm."""
        known = self.slurm.nodes if self.slurm else {}
        return [node.name for node in self.nodes if node.slurm_worker and node.name not in known]

    @property
    def unjoined(self) -> list[str]:
        """Return the hosts of the inventory that have not joined Kubernetes."""
        known = self.kubernetes.nodes if self.kubernetes else {}
        return [node.name for node in self.nodes if node.kubernetes and node.name not in known]

    def of_scheduler(self, name: str) -> SlurmNode | KubernetesNode | None:
        """Return the state of a node in its scheduler; None for a host outside all schedulers."""
        slurm = self.slurm.nodes.get(name) if self.slurm else None
        return slurm or (self.kubernetes.nodes.get(name) if self.kubernetes else None)

    def versions_apart(self) -> dict[str, dict[str, list[str]]]:
        """Return packages with several versions on nodes of one OS release: package to version to nodes."""
        found: dict[tuple[str, str], dict[str, list[str]]] = {}
        for node in self.nodes:
            for package, version in (node.drift.versions if node.drift else {}).items():
                found.setdefault((node.release, package), {}).setdefault(version, []).append(node.name)
        apart: dict[str, dict[str, list[str]]] = {}
        for (_, package), versions in sorted(found.items()):
            if len(versions) > 1:
                apart.setdefault(package, {}).update(versions)
        return apart

    def homes_apart(self) -> list[str] | None:
        """Return Slurm's workers that do not share the head's homes; None if that is unknown."""
        heads = (node.homes for node in self.nodes if node.head and not node.kubernetes)
        head = next(filter(None, heads), {})
        workers = [node for node in self.nodes if node.slurm_worker and not node.head]
        shared = {node.name: _have_shared_homes(head, node.homes) for node in workers}
        known = any(same is not None for same in shared.values())
        return [name for name, same in shared.items() if same is False] if known else None

    def unsafe(self) -> dict[str, list[str]]:
        """Return the known vulnerabilities of the nodes' packages, each with the affected nodes."""
        found: dict[str, list[str]] = {}
        for node in self.nodes:
            packages = advisories.unsafe(node.release, node.drift.versions if node.drift else {})
            for one in (*packages, *advisories.unsafe_driver(node.driver)):
                found.setdefault(str(one), []).append(node.name)
        return found

    def gpus(self) -> dict[str, dict[str, int]]:
        """Return for each GPU type the number in total, allocated, idle, and on nodes out of service."""
        found: dict[str, dict[str, int]] = {}
        slurm = self.slurm.nodes.values() if self.slurm else ()
        kubernetes = self.kubernetes.nodes.values() if self.kubernetes else ()
        for node in (*slurm, *kubernetes):
            for kind, count in node.gpus.items():
                sums = found.setdefault(kind, {"total": 0, "allocated": 0, "idle": 0, "out_of_service": 0})
                allocated = min(node.allocated.get(kind, 0), count)
                unhealthy = min(node.unhealthy.get(kind, 0), count - allocated)
                sums["total"] += count
                sums["allocated"] += allocated
                sums["out_of_service"] += unhealthy
                sums["idle" if node.in_service else "out_of_service"] += count - allocated - unhealthy
        return found

    def as_dict(self) -> dict[str, Any]:
        """Return what `--output json` prints."""
        return {
            "cluster": self.cluster,
            "exit_code": self.exit_code,
            "health": _HEALTH[self.exit_code],
            "nodes": [self._node(node) for node in self.nodes],
            "slurm": asdict(self.slurm) if self.slurm else None,
            "kubernetes": asdict(self.kubernetes) if self.kubernetes else None,
            "gpus": self.gpus(),
            "alerts": asdict(self.alerts) if self.alerts else None,
            "versions_apart": self.versions_apart(),
            "unsafe": self.unsafe(),
            "homes_apart": self.homes_apart(),
            "people_apart": list(self.people_apart),
            "directory": list(self.directory),
            "secrets_unjudged": self.secrets_problem or None,
            "leaving": dict(self.leaving),
            "last_run": self.last_run.as_dict() if self.last_run else None,
        }

    @staticmethod
    def _node(node: NodeStatus) -> dict[str, Any]:
        """Return a node for JSON: drift by role, without package versions."""
        drift = node.drift or Drift(None, (), 0, {})
        return {
            **asdict(node),
            "drift": [{"role": i.scope, "kind": i.kind, "name": i.name, "what": i.what} for i in node.drifted],
            "drift_more": drift.more,
            "drift_error": drift.error,
        }


# --- contact with the nodes -------------------------------------------------------------------------------------------
