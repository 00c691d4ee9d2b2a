"""Leave out nodes where a run has nothing to do, because an earlier run has proven it and nothing has changed since.

A node is left out if all of these hold:

- all that its roles read on this machine is as it was in its last good bootstrap: variables, the other files of the
  cluster's directory, and clusterctl with its roles (inputs.py)
- the node's own state is as it was before and after that bootstrap, which changed nothing there, by the digest of
  probe/state.py; and it still works
- nothing on the node differs from its records
- it is a worker to which Slurm gives jobs, and nothing keeps it out of service; or all workers are left out
- Prometheus reaches all of its exporters
- each of its roles is one of PROVEN: all that it can change is in this state, and it leaves nothing for a later run

Whatever is unknown runs. The proof of a host is deleted before Ansible contacts it, and stored after the run. Heads
and monitoring are configured with what is known of all nodes, so they are left out only together with all others. If
the run changes a head, the workers that it has left out have no proof until they have been tested with it.
"""

import json
import os
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.inventory import bootstrap_plays
from clusterctl.inventory.model import Host, Inventory
from clusterctl.inventory.schedulers import KUBERNETES, SLURM
from clusterctl.run import inputs, scheduler
from clusterctl.run.context import Site
from clusterctl.run.inputs import Inputs
from clusterctl.run.phases import Run
from clusterctl.util import files, paths
from clusterctl.util.errors import HeadFailed, InputError
from clusterctl.util.text import plural
from clusterctl.workspace import secrets

if TYPE_CHECKING:
    from clusterctl.nodes.contact import Facts

PROVEN: Mapping[str, str] = {
    "alert_drain": "node_state",
    "alertmanager": "node_state, and its programs",
    "apptainer": "whether users can have namespaces is in the digest",
    "base": "besides node_state it confirms a firewall that was changed",
    "blackbox_exporter": "node_state",
    "containerd": "node_state",
    "containers": "node_state",
    "dcgm_exporter": "reads the GPUs",
    "docker": "its group is in the digest",
    "enroot": "node_state",
    "filebeat": "node_state",
    "gpu_health": "node_state",
    "grafana": "node_state",
    "landing_page": "node_state",
    "mpi": "node_state",
    "munge": "node_state; the key is replaced by plays of their own",
    "mysqld_exporter": "node_state",
    "node_exporter": "node_state",
    "nvidia_cuda": "reads the GPUs",
    "nvidia_driver": "builds and loads the driver: packages, kernel, boot and GPUs are in the digest",
    "nvidia_container_toolkit": "SELinux's setting is in the digest",
    "package_cache": "SELinux's setting is in the digest; cached files are no state of the node",
    "packages": "node_state",
    "podman": "node_state",
    "prometheus": "node_state, and its programs",
    "pyxis": "the plugin is in the digest",
    "slurm_exporter": "node_state",
    "slurm_head": "databases and accounting are in the digest; new workers are not in service",
    "slurm_logins": "node_state",
    "slurm_worker": "besides node_state it reconfigures the controller after a change",
    "users": "accounts of the node and of Slurm are in the digest",
    "verify": "changes nothing that a run without failures has left",
}
"""Roles of which all that they change on a node is recorded or in the digest, and why: see test_unchanged.py."""

LASTING = (
    r"driver \S+ is already installed and is not changed",
    r"homes are not shared: .*",
    r"nvidia-peermem is not loaded: .*",
)
"""Notes about how a node is. Any other may be about something that is left for a later run."""

COPY = "/var/lib/clusterctl/recovery.tar"
"""A head's copy of the cluster's directory (role base)."""

_FILE = "unchanged.json"


@dataclass(frozen=True)
class Proof:
    """That a bootstrap was good on a host: what its roles may read here, the node's state after it, and when.

    `notes` are repeated by the runs that leave out the host.
    """

    inputs: str
    state: str
    at: str
    notes: tuple[str, ...] = ()


def _load(state: Path) -> dict[str, Proof]:
    """Return the proofs by host, none if the file is missing or damaged."""
    try:
        found = json.loads(files.read(state / _FILE, inputs.LIMIT, state))
        return {str(name): _proof(**one) for name, one in found.items()}
    except (files.UnfitError, ValueError, TypeError, AttributeError, KeyError, RecursionError):
        return {}


def _proof(inputs: str, state: str, at: str, notes: list[str]) -> Proof:
    return Proof(str(inputs), str(state), str(at), tuple(str(note) for note in notes))


def _save(state: Path, proofs: Mapping[str, Proof]) -> None:
    with files.writing(state):
        data = json.dumps({name: asdict(proof) for name, proof in proofs.items()}, indent=1, sort_keys=True)
        files.write_atomically(state / _FILE, f"{data}\n".encode(), replace=True)


def forget(site: Site) -> None:
    """Delete the proofs of the hosts that a playbook will change. Raises InputError if they cannot be deleted."""
    known, hosts = _load(site.state), {host.name for host in site.hosts}
    kept = {name: proof for name, proof in known.items() if name not in hosts}
    if kept != known or (not known and os.path.lexists(site.state / _FILE)):  # one that cannot be read may be, later
        _save(site.state, kept)


def restore(site: Site, proofs: Mapping[str, Proof]) -> None:
    """Store proofs that were deleted again: what they say is still so."""
    if proofs:
        with suppress(InputError):  # a full disk is no error: the run itself was good
            _save(site.state, _load(site.state) | {**proofs})


def candidates(site: Site) -> frozenset[str]:
    """Return the hosts that may be left out, before they are contacted."""
    known = _load(site.state) if _is_possible(site.inventory) else {}
    now = inputs.of(site.inventory) if known else None
    if now is None:
        return frozenset()
    return frozenset(
        host.name
        for host in site.hosts
        if host.name in known
        and known[host.name].inputs == now.hosts[host.name]
        and can_be_proven(site.inventory, host)
    )


def _is_possible(inventory: Inventory) -> bool:
    """Return whether hosts of an inventory can be proven: Slurm's controller knows which serve; see inputs.py."""
    return SLURM in inventory.schedulers and KUBERNETES not in inventory.schedulers


def can_be_proven(inventory: Inventory, host: Host) -> bool:
    """Return whether a proof has all that a bootstrap can change on a host: a host of Slurm with PROVEN roles."""
    if not _is_possible(inventory):
        return False
    plays = bootstrap_plays.load(paths.content())
    return {*bootstrap_plays.roles_of_host(plays, {"all", host.name, *host.groups})} <= PROVEN.keys()


def of(site: Site, now: Inputs | None, possible: Collection[str]) -> dict[str, Proof]:
    """Return the proofs of those hosts where nothing has changed, by their answers and by the inputs of the run."""
    known = _load(site.state) if possible and now else {}
    found = {
        name: known[name]
        for name in possible
        if name in site.facts
        and now
        and known[name].inputs == now.hosts[name]
        and known[name].state == site.facts[name].state
        and is_as_recorded(site.facts[name])
    }
    unreached = _unreached(site)
    if not found or unreached is None:
        return {}
    workers = {host.name for host in site.hosts if SLURM.workers in host.groups}
    good = {name for name in found if name not in unreached} & (_in_service(site) | (found.keys() - workers))
    if len(good) < len(site.inventory.hosts):
        good &= workers - {*site.inventory.informed}
    return {host.name: found[host.name] for host in site.hosts if host.name in good}


def reasons(site: Site, now: Inputs | None, left_out: Collection[str]) -> dict[str, list[str]]:
    """Return why hosts that have a proof are played, each reason with its hosts.

    A head that is played only because other nodes are is not among them.
    """
    known = _load(site.state) if now else {}
    unreached, found = _unreached(site), dict[str, list[str]]()
    for host in site.hosts:
        if not now or host.name not in known or host.name not in site.facts or host.name in left_out:
            continue
        facts, proof = site.facts[host.name], known[host.name]
        possible = {
            "what its roles read on this machine has changed": proof.inputs != now.hosts[host.name],
            "munge, the firewall, a GPU or a head's database does not work": facts.state is None,
            "the node has changed": facts.state != proof.state,
            "it differs from its records": not is_as_recorded(facts),
            "it is unknown which nodes Prometheus reaches": unreached is None,
            "Prometheus does not reach it": host.name in (unreached or ()),
            "Slurm gives it no jobs": host.name not in site.inventory.informed and SLURM.workers in host.groups,
        }
        if reason := next((text for text, holds in possible.items() if holds), ""):
            found.setdefault(reason, []).append(host.name)
    return found


def _unreached(site: Site) -> set[str] | None:
    """Return the hosts without a target, or with one that is down; None if it is unknown which these are."""
    from clusterctl.nodes import prometheus  # its libraries are slow to load

    names = {host.name for host in site.inventory.hosts}
    found = set[str]()
    for host in site.inventory.in_group(prometheus.GROUP):
        facts = site.facts.get(host.name)
        if facts is None or not facts.targets:
            return None
        down = {name for name, is_up in facts.targets.items() if not is_up}
        if not down <= names:  # a target that is no host of the inventory, such as a page
            return None
        found |= down | (names - facts.targets.keys())
    return found


def is_as_recorded(facts: "Facts") -> bool:
    """Return whether nothing on a node differs from its records; False if they were not compared."""
    drift = facts.drift
    return drift is not None and drift.error is None and not drift.items and not drift.more


def _in_service(site: Site) -> set[str]:
    """Return the nodes that Slurm gives jobs; none if its controller does not answer."""
    from clusterctl.slurm.client import SlurmController  # its libraries are slow to load

    with suppress(HeadFailed), SlurmController.connect(scheduler.head_of(site.inventory, SLURM), site.access) as head:
        return head.in_service()
    return set()


def without(site: Site, names: Collection[str]) -> Site:
    """Return the site without these hosts."""
    return replace(site, hosts=tuple(host for host in site.hosts if host.name not in names))


def prove(run: Run) -> None:
    """Store the proof that the next run has nothing to do, for each host on which this one had nothing to do.

    A host that has changed meanwhile has no proof, nor has one with a note that is not LASTING. Without the head no job
    has tested a node, and there are none.
    """
    from clusterctl.nodes import contact, remote

    site, now = run.site, inputs.of(run.site.inventory)
    # If files have changed meanwhile, it is not known what the run has read.
    if now is None or now != run.inputs or site.options.limit or site.options.check or not run.is_whole:
        return
    results = run.ledger.hosts
    left = [note for note in run.ledger.notes if not any(re.fullmatch(one, note) for one in LASTING)]
    noted = {name for note in left for name in run.ledger.notes[note]}
    good = [
        host
        for host in site.hosts
        if host.name in results and results[host.name].status == "ok" and not results[host.name].changed
        and host.name not in noted
        and host.name in site.facts and can_be_proven(site.inventory, host)
    ]  # fmt: skip
    if not good:
        return
    with suppress(InputError), run.screen.working(f"Recording the state of {plural(len(good), 'node')}"):
        key = secrets.values(site.inventory.directory).get("record_key")
        options = {"state": True, **contact.drift_options(key)}
        answers = remote.each(good, lambda host: contact.ask(host, site.access, options))
        remote.forget_gateways()
        at, proofs = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC", {}
        for name, answer in answers.items():
            before = site.facts[name].state
            if before and answer.facts and answer.facts.state == before and is_as_recorded(answer.facts):
                notes = tuple(note for note, names in run.ledger.notes.items() if name in names)
                proofs[name] = Proof(now.hosts[name], before, at, notes)
        restore(site, proofs)
