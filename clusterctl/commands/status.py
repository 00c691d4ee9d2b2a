"""How a cluster is: one read-only contact with every node at once, Slurm's own view from the head, and the last run.

Exit status: 0 all well; 4 something is out of service, a node differs from its record, or a critical alert fires; 5 the
head does not serve.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from clusterctl.commands import health
from clusterctl.inventory import services
from clusterctl.inventory.model import Host, Inventory
from clusterctl.inventory.services import Service
from clusterctl.nodes import advisories, contact
from clusterctl.nodes.contact import Alerts, Drift, Item
from clusterctl.nodes.remote import Access, connect, each
from clusterctl.nodes.session import ContactError, Failure
from clusterctl.run import pruning, runs
from clusterctl.run.runs import Run
from clusterctl.slurm.state import Slurm, ask_slurm
from clusterctl.util.text import fold
from clusterctl.workspace import hardware
from clusterctl.workspace.hardware import Hardware

HEALTHY, DEGRADED, HEAD_DOWN = 0, 4, 5
_HEALTH = {HEALTHY: "healthy", DEGRADED: "degraded", HEAD_DOWN: "head down"}
OUTDATED = 3 * 86400
"""Seconds after which security updates that come daily are late."""
ABSENT = "not installed"
UNRECORDED = "no hardware record yet"
MAX_HOMES = 16

_PROMETHEUS_AUTHORITY = "/etc/prometheus/tls/authority.pem"
_PROMETHEUS_PASSWORD = "/etc/prometheus/own-password"  # noqa: S105 - where it stands
_UNION = "packages"  # the role that installs what the others ask for


def _moved_up(item: Item) -> bool:
    """Tell whether an item is a package that is newer than a run has left it."""
    return bool(item.old and item.new and advisories.is_older(item.old, item.new))


@dataclass(frozen=True)
class NodeStatus:
    """One node: why it could not be asked, else its services by name and how it differs from its record."""

    name: str
    head: bool
    problem: str = ""
    slurm_worker: bool = False
    services: Mapping[str, str] = field(default_factory=dict)
    differences: tuple[str, ...] = ()
    release: str = ""
    drift: Drift | None = None
    topology: tuple[str, ...] = ()
    """How its GPUs are connected, a line for each; only where that was asked for."""
    unused: tuple[str, ...] = ()
    """Roles that are set up there and that no group gives it any more."""
    driver: str | None = None
    """The version of NVIDIA's driver."""
    updated: int | None = None
    """Seconds since its own security updates last succeeded, or were set up; None where it has none."""
    homes: Mapping[str, int] = field(default_factory=dict)
    """When each of some users' homes there was last changed, in nanoseconds since 1970."""

    @property
    def drifted(self) -> list[Item]:
        """Return how the node is not as it was left: each item once, `scope` being the role that owns it."""
        roles: dict[Item, list[str]] = {}
        for item in self.drift.items if self.drift else ():
            if self.updated is not None and _moved_up(item):
                continue  # by its own security updates
            roles.setdefault(replace(item, scope=""), []).append(pruning.ROLE_OF.get(item.scope, item.scope))
        drifted = []
        for item, owners in roles.items():
            mine = [role for role in dict.fromkeys(owners) if role != _UNION] or [_UNION]
            drifted.append(replace(item, scope=", ".join(mine)))
        return drifted

    @property
    def sound(self) -> bool:
        """Return whether the node answers, runs all it should and is as its records say."""
        drift = self.drifted or (self.drift and self.drift.error)
        return not (self.problem or self.failed or self.differences or drift)

    @property
    def failed(self) -> list[str]:
        """Return the services that do not run, each with its state."""
        return [f"{name} {state}" for name, state in self.services.items() if state != "active"]

    @property
    def vital(self) -> bool:
        """Return whether one of the services that fail is the scheduler's."""
        return any(state != "active" and name in services.scheduling() for name, state in self.services.items())


def _same(homes: Mapping[str, int], others: Mapping[str, int]) -> bool | None:
    """Tell whether two nodes have their homes from one file system, None where they have none in common.

    A local home has another age on each node. That of a user who works right now may differ anyhow.
    """
    common = homes.keys() & others.keys()
    return 2 * sum(_same_time(homes[path], others[path]) for path in common) >= len(common) if common else None


def _same_time(one: int, other: int) -> bool:
    """Tell whether two times in nanoseconds are one; a file system may keep whole seconds alone, as sshfs does.

    Local homes are made on all nodes within the same second.
    """
    seconds = 0 in (one % 10**9, other % 10**9) and one // 10**9 == other // 10**9
    return one == other or seconds


@dataclass(frozen=True)
class Status:
    """The whole cluster; `last_run` is None before the first, `alerts` where nothing watches.

    `unjudged` says why the content of files that are secret was not compared. `leaving` are nodes whose removal has
    stopped half-way, each with the command that goes on. `given` is the inventory as it was typed. `built` says
    whether a run from this directory has ever set the cluster up; it is looked up only where the head does not serve.
    """

    cluster: str
    nodes: tuple[NodeStatus, ...]
    slurm: Slurm | None
    last_run: Run | None
    alerts: Alerts | None = None
    unjudged: str = ""
    leaving: Mapping[str, str] = field(default_factory=dict)
    given: str = "INVENTORY"
    built: bool = True

    @property
    def exit_code(self) -> int:
        """Return HEALTHY, DEGRADED or HEAD_DOWN."""
        slurm = self.slurm or Slurm()
        if slurm.problem or any(node.head and (node.problem or node.vital) for node in self.nodes):
            return HEAD_DOWN
        alerts = self.alerts or Alerts()
        alarmed = alerts.error or any(alert.severity == "critical" for alert in alerts.firing)
        sound = all(node.sound for node in self.nodes) and all(node.in_service for node in slurm.nodes.values())
        return HEALTHY if sound and not (alarmed or self.strangers or self.leaving) else DEGRADED

    @property
    def strangers(self) -> list[str]:
        """Return the workers of the inventory that Slurm does not know."""
        known = self.slurm.nodes if self.slurm else {}
        return [node.name for node in self.nodes if node.slurm_worker and node.name not in known]

    def versions_apart(self) -> dict[str, dict[str, list[str]]]:
        """Return the packages that nodes of one release have in several versions: package to version to nodes."""
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
        """Return the workers whose homes are not those of the head; None where nothing tells."""
        head = next((node.homes for node in self.nodes if node.head), {})
        told = {node.name: _same(head, node.homes) for node in self.nodes if node.slurm_worker and not node.head}
        known = any(same is not None for same in told.values())
        return [name for name, same in told.items() if same is False] if known else None

    def unsafe(self) -> dict[str, list[str]]:
        """Return what is known of holes in the nodes' packages: each hole with the nodes that have it."""
        found: dict[str, list[str]] = {}
        for node in self.nodes:
            packages = advisories.unsafe(node.release, node.drift.versions if node.drift else {})
            for one in (*packages, *advisories.unsafe_driver(node.driver)):
                found.setdefault(str(one), []).append(node.name)
        return found

    def gpus(self) -> dict[str, dict[str, int]]:
        """Return, by type, how many GPUs there are, are allocated, are idle, and are on nodes out of service."""
        found: dict[str, dict[str, int]] = {}
        for node in self.slurm.nodes.values() if self.slurm else ():
            for kind, count in node.gpus.items():
                sums = found.setdefault(kind, {"total": 0, "allocated": 0, "idle": 0, "out_of_service": 0})
                allocated = min(node.allocated.get(kind, 0), count)
                sums["total"] += count
                sums["allocated"] += allocated
                sums["idle" if node.in_service else "out_of_service"] += count - allocated
        return found

    def as_dict(self) -> dict[str, Any]:
        """Return what `--output json` prints."""
        return {
            "cluster": self.cluster,
            "exit_code": self.exit_code,
            "health": _HEALTH[self.exit_code],
            "nodes": [self._node(node) for node in self.nodes],
            "slurm": asdict(self.slurm) if self.slurm else None,
            "gpus": self.gpus(),
            "alerts": asdict(self.alerts) if self.alerts else None,
            "versions_apart": self.versions_apart(),
            "unsafe": self.unsafe(),
            "homes_apart": self.homes_apart(),
            "secrets_unjudged": self.unjudged or None,
            "leaving": dict(self.leaving),
            "last_run": self.last_run.as_dict() if self.last_run else None,
        }

    @staticmethod
    def _node(node: NodeStatus) -> dict[str, Any]:
        """Return a node as JSON has it: drift by role, without the versions that are the same everywhere."""
        drift = node.drift or Drift(None, (), 0, {})
        return {
            **asdict(node),
            "drift": [{"role": i.scope, "kind": i.kind, "name": i.name, "what": i.what} for i in node.drifted],
            "drift_more": drift.more,
            "drift_error": drift.error,
        }


# --- asking -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Answer:
    """What one contact brought; of Slurm and of Prometheus only those hosts know that run them."""

    node: NodeStatus
    slurm: Slurm | None = None
    alerts: Alerts | None = None


def collect(
    inventory: Inventory, access: Access, key: str | None = None, unjudged: str = "", topology: bool = False
) -> Status:
    """Ask every node at once, for the topology of its GPUs where that is wanted. Raises InputError for a bad record.

    `key` is the one of the secrets' recorded hashes; without it their content is not judged, and `unjudged` says why.
    """
    records = hardware.load_all(inventory.directory)
    answers = each(inventory.hosts, lambda host: _ask(host, access, records.get(host.name), key, topology)).values()
    slurm = next((answer.slurm for answer in answers if answer.slurm), None)
    if slurm is None and inventory.in_group("slurm_head"):
        slurm = Slurm(problem="the head does not answer")
    alerts = [answer.alerts for answer in answers if answer.alerts]
    if not alerts and (watchers := inventory.in_group("monitoring")):
        alerts = [Alerts(f"{fold([host.name for host in watchers])} does not answer")]
    nodes = tuple(answer.node for answer in answers)
    recorded = any(node.drift and node.drift.versions for node in nodes)
    found = Status(
        inventory.cluster_name,
        nodes,
        slurm,
        runs.latest(inventory.directory),
        alerts[0] if alerts else None,
        unjudged if recorded else "",
    )
    return replace(found, built=found.exit_code != HEAD_DOWN or runs.built(inventory.directory))


def homes_of(host: Host) -> list[str]:
    """Return the homes of some of the inventory's users, as role users makes them."""
    folder = host.variables.get("users_home", "/home")
    users = [user for user in host.variables.get("users_accounts", ()) if user.get("state") != "absent"]
    return [str(user.get("home", f"{folder}/{user['name']}")) for user in users[:MAX_HOMES]]


def _options(host: Host, wanted: Sequence[Service], key: str | None) -> dict[str, Any]:
    """Return what the probe is asked there. The key goes to root by standard input and stands nowhere else."""
    options: dict[str, Any] = {
        "services": [name for one in wanted for name in one.names],
        "drift": {"modules": dict(contact.drift_modules()), "key": key},
        "homes": homes_of(host),
    }
    if "monitoring" in host.groups:
        address = str(host.variables.get("cluster_address", host.address))
        address = f"[{address}]" if ":" in address else address
        options["alerts"] = {
            "url": f"https://{address}:{host.variables.get('prometheus_port', 9090)}",
            "user": str(host.variables.get("prometheus_user", "admin")),
            "password_file": _PROMETHEUS_PASSWORD,
            "authority": _PROMETHEUS_AUTHORITY,
        }
    return options


def _ask(host: Host, access: Access, recorded: Hardware | None, key: str | None, topology: bool) -> _Answer:
    head = host.is_head
    worker = host.is_worker
    wanted = services.of_host(host)
    try:
        with connect(host, access) as session:
            answer = contact.converse(host, session, _options(host, wanted, key))
            if answer.facts is None or answer.errors:
                return _Answer(NodeStatus(host.name, head, str(answer.errors[0]), worker))
            slurm = ask_slurm(session) if "slurm_head" in host.groups else None
            connected = health.ask(session).topology if topology and worker else ()
    except ContactError as error:
        return _Answer(NodeStatus(host.name, head, _advised(error, access), worker))
    facts, states = answer.facts, answer.facts.node.services
    # Of the names on different systems the node has one.
    here = [next((name for name in one.names if name in states), one.names[0]) for one in wanted]
    differences = hardware.compare(recorded, facts.hardware) if recorded else [UNRECORDED]
    release = f"{facts.hardware.os.id} {facts.hardware.os.version}"
    unused = tuple(pruning.unused(host, facts.node.roles))
    node = NodeStatus(
        host.name,
        head,
        "",
        worker,
        {name: states.get(name, ABSENT) for name in here},
        tuple(differences),
        release,
        facts.drift,
        connected,
        unused,
        facts.hardware.driver_version,
        facts.node.security_updates,
        facts.node.homes,
    )
    return _Answer(node, slurm, facts.alerts)


def _advised(error: ContactError, access: Access) -> str:
    """Return why there is no contact, and what helps; a new host key is recorded by another verb than this one."""
    if error.failure is not Failure.HOST_KEY_UNKNOWN:
        return str(error)
    given = str(access.given or access.known_hosts.parent)
    return f"{error.found} ({shlex.join(['clusterctl', 'discover', given])})"
