"""Collect the status of a cluster: a read-only contact with all nodes at once, the schedulers, and the last run."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from clusterctl.commands import health
from clusterctl.commands.status_report import ABSENT, HEAD_DOWN, UNRECORDED, NodeStatus, Status
from clusterctl.inventory import services
from clusterctl.inventory.model import Host, Inventory
from clusterctl.inventory.schedulers import KUBERNETES, SLURM
from clusterctl.kubernetes.state import Kubernetes, ask_kubernetes
from clusterctl.nodes import contact, people, prometheus
from clusterctl.nodes.contact import Alerts, PeopleIds
from clusterctl.nodes.parallel import each
from clusterctl.nodes.remote import Access, connect
from clusterctl.nodes.session import ContactError, Failure
from clusterctl.run import mount_checks, pruning, runs
from clusterctl.slurm.state import Slurm, ask_slurm
from clusterctl.util.text import fold
from clusterctl.workspace import hardware
from clusterctl.workspace.hardware import Hardware

MAX_HOMES = 16


@dataclass(frozen=True)
class _Answer:
    """The result of one contact. Only the hosts that run a scheduler or Prometheus report those parts."""

    node: NodeStatus
    slurm: Slurm | None = None
    alerts: Alerts | None = None
    kubernetes: Kubernetes | None = None
    people: PeopleIds | None = None


def collect(
    inventory: Inventory, access: Access, key: str | None = None, secrets_problem: str = "", topology: bool = False
) -> Status:
    """Collect the status of all nodes at once, with `topology` also the links of their GPUs.

    `key` is the key of the recorded hashes of secrets. Without it files with secrets are not compared, and
    `secrets_problem` is the reason. Raises InputError for an invalid hardware record.
    """
    records = hardware.load_all(inventory.directory)
    known, failed = people.directory(inventory, access)
    today = datetime.now(UTC).date()
    names = {host.name: people.asked(host, known, today) for host in inventory.hosts}
    first = next((host.name for host in inventory.in_group(KUBERNETES.head)), "")  # all heads have the same state
    several = len(inventory.in_group(SLURM.head)) > 1

    def ask(host: Host) -> _Answer:
        if error := failed.get(host.name):
            return _Answer(replace(_unknown(host), problem=_with_hint(error, access)))
        wanted = mount_checks.of_host(inventory, host)
        options = _options(host, key) | {"people": names[host.name], "mounts": wanted}
        recorded = records.get(host.name)
        return _ask(host, access, recorded, options, topology, wanted, api=host.name == first, several=several)

    by_name = each(inventory.hosts, ask)
    answers = by_name.values()
    slurms = sorted((answer.slurm for answer in answers if answer.slurm), key=lambda one: bool(one.problem))
    slurm = next(iter(slurms), None)
    if slurm is None and inventory.in_group(SLURM.head):
        slurm = Slurm(problem="the head does not respond")
    alerts = [answer.alerts for answer in answers if answer.alerts]
    if not alerts and (monitoring := inventory.in_group(prometheus.GROUP)):
        alerts = [Alerts(f"{fold([host.name for host in monitoring])} does not respond")]
    nodes = tuple(_known(answer.node, slurm) for answer in answers)
    found_people = {name: answer.people for name, answer in by_name.items() if answer.people}
    recorded = any(node.drift and node.drift.versions for node in nodes)
    found = Status(
        inventory.cluster_name,
        nodes,
        slurm,
        runs.latest(inventory.directory),
        alerts[0] if alerts else None,
        secrets_problem if recorded else "",
        kubernetes=_kubernetes(inventory, access, [answer.kubernetes for answer in answers if answer.kubernetes]),
        people_apart=tuple(people.differences(names, found_people, known)),
        directory=known.problems,
    )
    return replace(found, built=found.exit_code != HEAD_DOWN or runs.built(inventory.directory))


def _known(node: NodeStatus, slurm: Slurm | None) -> NodeStatus:
    """Return what is known of a node; one that sleeps is expected not to respond."""
    sleep = slurm.nodes[node.name].sleep if slurm and node.name in slurm.nodes else ""
    return NodeStatus(node.name, node.head, slurm_worker=node.slurm_worker, sleep=sleep) if sleep else node


def _kubernetes(inventory: Inventory, access: Access, found: Sequence[Kubernetes]) -> Kubernetes | None:
    """Return the state that the first head reported, or else that of the next head whose API responds."""
    heads = inventory.in_group(KUBERNETES.head)
    answers = list(found)
    for head in heads[1:] if not any(not one.problem for one in found) else ():
        try:
            with connect(head, access) as session:
                answers.insert(0, ask_kubernetes(session))
        except ContactError:
            continue
        if not answers[0].problem:
            break
    return next(iter(answers), Kubernetes(problem="no head responds")) if heads else None


def homes_of(host: Host) -> list[str]:
    """Return the homes of some users of the inventory, as role users creates them."""
    folder = host.variables.get("users_home", "/home")
    users = [user for user in host.variables.get("users_accounts", ()) if user.get("state") != "absent"]
    return [str(user.get("home", f"{folder}/{user['name']}")) for user in users[:MAX_HOMES]]


def _options(host: Host, key: str | None) -> dict[str, Any]:
    """Return the probe's options, except people and mounts."""
    options: dict[str, Any] = {
        "services": [name for one in services.of_host(host) for name in one.names],
        **contact.drift_options(key),
        "homes": homes_of(host),
    }
    if prometheus.GROUP in host.groups:
        options["alerts"] = prometheus.access(host)
    return options


def _ask(
    host: Host,
    access: Access,
    recorded: Hardware | None,
    options: dict[str, Any],
    topology: bool,
    mounts: mount_checks.Wanted,
    *,
    api: bool,
    several: bool,
) -> _Answer:
    """Contact a host; with `api` also ask Kubernetes' API there, with `several` heads of Slurm which is in control."""
    known = _unknown(host)
    wanted = services.of_host(host)
    try:
        with connect(host, access) as session:
            answer = contact.converse(host, session, options)
            if answer.facts is None or answer.errors:
                return _Answer(replace(known, problem=str(answer.errors[0])))
            slurm = ask_slurm(session, several) if SLURM.head in host.groups else None
            kubernetes = ask_kubernetes(session) if api else None
            connected = health.ask(session).topology if topology and host.is_worker else ()
    except ContactError as error:
        return _Answer(replace(known, problem=_with_hint(error, access)))
    facts, states = answer.facts, answer.facts.node.services
    # A service has different names on different systems; a node has one of them.
    names = [next((name for name in one.names if name in states), one.names[0]) for one in wanted]
    differences = hardware.compare(recorded, facts.hardware) if recorded else [UNRECORDED]
    release = f"{facts.hardware.os.id} {facts.hardware.os.version}"
    unused = tuple(pruning.unused(host, facts.node.roles))
    node = replace(
        known,
        services={name: states.get(name, ABSENT) for name in names},
        differences=tuple(differences),
        release=release,
        drift=facts.drift,
        topology=connected,
        unused=unused,
        driver=facts.hardware.driver_version,
        updated=facts.node.security_updates,
        homes=facts.node.homes,
        mounts=tuple(text for text, _ in mount_checks.problems(mounts, facts.node.mounts)),
    )
    return _Answer(node, slurm, facts.alerts, kubernetes, facts.node.people)


def _unknown(host: Host) -> NodeStatus:
    """Return what the inventory alone says of a node."""
    is_worker = SLURM.workers in host.groups
    return NodeStatus(host.name, host.is_head, slurm_worker=is_worker, kubernetes=host.scheduler is KUBERNETES)


def _with_hint(error: ContactError, access: Access) -> str:
    """Return the contact error with its hint; for an unknown host key the hint is the `discover` command."""
    if error.failure is not Failure.HOST_KEY_UNKNOWN:
        return str(error)
    given = str(access.given or access.known_hosts.parent)
    return f"{error.found} ({shlex.join(['clusterctl', 'discover', given])})"
