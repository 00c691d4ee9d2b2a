"""Leave out nodes and roles that have nothing to do, because a run has proven it and nothing has changed since.

A node is left out if all of these hold:

- all that its roles read on this machine is as it was in its last good bootstrap: variables, secrets, the files that
  these name, the hosts that the node sees, and clusterctl with its roles (inputs.py)
- the node's own state is as it was after that bootstrap, by the digests of probe/state.py, and it still works
- nothing on the node differs from its records
- it is a worker to which Slurm gives jobs or Kubernetes pods, and nothing keeps it out of service; or all are left out
- Prometheus reaches all of its exporters
- each of its roles is one of effects.PROVEN: all that it can change is in this state, and it leaves nothing for a later
  run

If all that is to do concerns roles of effects.SEPARATE, only these are played: those that read a variable that has
changed (role_variables.py), that recorded a file that was edited, or that changed the node in the run of its proof.

Whatever is unknown runs. The proof of a host is deleted before Ansible contacts it, and stored after the run. Heads
and monitoring are configured with what is known of all nodes, so they are left out only together with all others. If
the run changes a head, or another kind of run did, the workers that were left out have no proof until they have been
tested with it. No host has a proof if another controller may have had the lock during the run.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast

from clusterctl.ansible import outcome
from clusterctl.inventory import bootstrap_plays
from clusterctl.inventory.model import Host
from clusterctl.inventory.schedulers import SLURM
from clusterctl.run import effects, inputs, proofs, pruning, role_variables, scheduler
from clusterctl.run.context import BASE_OF_HEADS, Site
from clusterctl.run.inputs import HostInputs, Inputs
from clusterctl.run.phases import Run
from clusterctl.run.proofs import Proof
from clusterctl.util import paths
from clusterctl.util.errors import HeadFailed, InputError
from clusterctl.util.text import plural
from clusterctl.workspace import secrets

if TYPE_CHECKING:
    from clusterctl.nodes.contact import Facts, Item

_OF_ALL_HEADS = "objects of "
"""How the names of parts begin that are the same on all heads, and are changed from one of them."""

_VERIFY = "verify"
NAMES = {BASE_OF_HEADS: "base on the head"}
"""For people: what is played by a tag that is no name of a role."""
LASTING: Mapping[str, str] = {
    r"driver \S+ is already installed and is not changed": "nvidia_driver",
    r"homes are not shared: .*": _VERIFY,
    r"nvidia-peermem is not loaded: .*": "nvidia_driver",
    r"the service was not asked from another node: there is no other": _VERIFY,
}
"""Notes about how a node is, with their roles. Any other may be about something that is left for a later run."""

_OF_BUSY_NODES = (
    r"(no test job was run|MPI was not tested): no node is free: .*"
    r"|other pods have all GPUs: the test pods requested none"
)
"""Notes of role verify about nodes whose jobs and pods use all they have: these work. They are not repeated."""
OF_ALL = "kube-proxy uses the API's former addresses until a bootstrap of all nodes"
"""A note about work for which all nodes have to be played (module kubernetes_system_pods)."""

COPY = "/var/lib/clusterctl/recovery.tar"
"""A head's copy of the cluster's directory (role base)."""

READ = "a host, group, hardware record, address, secret, image archive or file that its roles read changed"
PROGRAM = "clusterctl, Ansible or Python changed on this machine"
UNREAD = "the cluster's directory cannot be compared: it is unreadable, too large, or was edited during this run"
UNPROVEN = "no bootstrap from this machine has found it unchanged since the last run there"

_CHANGED = {
    "accounting": "its accounts in Slurm changed",
    "accounts": "its accounts changed",
    "boot": "it was rebooted",
    "database": "the users of its database changed",
    "devices": "its devices or GPUs changed",
    "images": "its imported images changed",
    "kernel": "its kernel or kernel modules changed",
    "login": "another user logs in for clusterctl",
    "machine": "its mounts or settings changed",
    "node": "its entry in Kubernetes changed",
    "packages": "its packages changed",
    "records": "clusterctl's records on it changed",
    "reservations": "its reservations in Slurm changed",
}
"""What is said of the parts of the state; of any other, that it changed."""


@dataclass(frozen=True)
class Decision:
    """What a run has to do: the hosts that it leaves out, with their proofs, and what it plays on the others."""

    left_out: Mapping[str, Proof]
    roles: frozenset[str] | None
    """The roles to play on the others, by their tags, without verify; None for all."""
    reasons: Mapping[str, list[str]]
    """Why hosts that were set up before are configured, each reason with its hosts. A head may be missing: it is
    configured if any other host is."""
    notes: Mapping[str, list[str]]
    """The notes that the run would repeat if it played all roles on all hosts, with their hosts."""


@dataclass(frozen=True)
class _Due:
    """What is due on a host: its roles, None for all, and why."""

    roles: frozenset[str] | None
    reason: str = ""


def expected_roles(site: Site) -> dict[str, frozenset[str]]:
    """Return by host the roles that a run has to play by its inputs alone; hosts that need all roles are missing."""
    known = proofs.load(site.state)
    now = inputs.of(site.inventory) if known else None
    if now is None:
        return {}
    hosts = [host for host in site.hosts if host.name in known and can_be_proven(host)]
    due = {host.name: _due(host, known[host.name], now.hosts[host.name]).roles for host in hosts}
    return {name: roles for name, roles in due.items() if roles is not None}


def can_be_proven(host: Host) -> bool:
    """Return whether a proof has all that a bootstrap can change on a host."""
    return _roles(host) <= effects.PROVEN.keys()


def _roles(host: Host) -> set[str]:
    plays = bootstrap_plays.load(paths.content())
    return {*bootstrap_plays.roles_of_host(plays, {"all", host.name, *host.groups})}


def decide(site: Site, now: Inputs | None, compared: Collection[str]) -> Decision:
    """Return what a run has to do, by its inputs and the answers of the hosts, of which some were compared."""
    known = proofs.load(site.state) if now else {}
    unreached, serving = _unreached(site), _in_service(site) if known else set[str]()
    due, reasons = dict[str, frozenset[str] | None](), dict[str, list[str]]()
    for host in site.hosts:
        found = _Due(None)
        if now is None or host.name not in known:
            found = _Due(None, (UNPROVEN if now else UNREAD) if _has_roles(site, host) else "")
        elif host.name in site.facts:
            facts, proof = site.facts[host.name], known[host.name]
            found = _due(host, proof, now.hosts[host.name], facts.drift.items if facts.drift else ())
            if host.name not in compared:
                found = _Due(None, found.reason or READ)
            elif reason := _unfit(site, host, proof, unreached, serving):
                found = _Due(None, reason)
        due[host.name] = found.roles
        if found.reason:
            reasons.setdefault(found.reason, []).append(host.name)
    good = {name for name, roles in due.items() if roles == frozenset()}
    if len(good) < len(site.inventory.hosts):
        good -= {*site.inventory.informed}
    to_play = [roles for name, roles in due.items() if name not in good]
    roles = None if None in to_play else frozenset[str]().union(*filter(None, to_play))
    heads = {host.name for host in site.inventory.hosts if host.is_head}
    if roles and "base" in roles and not any("base" in (due[name] or ()) for name in due.keys() - heads):
        roles = roles - {"base"} | {BASE_OF_HEADS}
    left_out = {host.name: known[host.name] for host in site.hosts if host.name in good}
    return Decision(left_out, roles, reasons, _notes(known, left_out, roles))


def _has_roles(site: Site, host: Host) -> bool:
    return host.name in site.facts and bool(site.facts[host.name].node.roles)


def _due(host: Host, proof: Proof, now: HostInputs, edited: Collection["Item"] = ()) -> _Due:
    """Return what to play on a host after changes of its inputs and of files that roles have recorded there."""
    content, own = paths.content(), _roles(host) - {_VERIFY}
    read = {name for name in proof.inputs.changed(now) if role_variables.readers(content, [name], own)}
    of_edited = {pruning.ROLE_OF.get(item.scope, item.scope) for item in edited}
    copy = {"base"} if proof.inputs.copy != now.copy else set()
    found = role_variables.readers(content, read, own, {*proof.pending, *of_edited, *copy})
    found |= own & {role for one in found & effects.FOLLOWERS.keys() for role in effects.FOLLOWERS[one]}
    reasons = {
        PROGRAM: proof.inputs.program != now.program,
        READ: proof.inputs.rest != now.rest,
        f"{_listed({name.partition(':')[0] for name in read})} changed": bool(read),
        "it differs from its records": bool(of_edited),
        f"{_listed(proof.pending)} changed it in the last run": bool(proof.pending),
        "its copy of the cluster's directory is not the latest": bool(copy),
    }
    reason = next((text for text, holds in reasons.items() if holds), "")
    is_same = proof.inputs.program == now.program and proof.inputs.rest == now.rest
    is_known = is_same and of_edited <= own and found <= effects.SEPARATE.keys()
    return _Due(frozenset(found) if is_known else None, reason)


def _unfit(site: Site, host: Host, proof: Proof, unreached: set[str] | None, serving: Collection[str]) -> str:
    """Return why a host needs all roles though its inputs are the same: its state, or a test; empty if it does not."""
    facts = site.facts[host.name]
    changed = [_CHANGED.get(part, f"{part} changed") for part in sorted(_differing(proof.state, facts.state))]
    is_worker = SLURM.workers in host.groups
    reasons = {
        facts.state_error or "its state is unknown": facts.state is None,
        ", ".join(changed): facts.state != proof.state,
        "its files and units could not be compared with its records": not is_compared(facts),
        "it is unknown which nodes Prometheus reaches": unreached is None,
        "Prometheus does not reach it": host.name in (unreached or ()),
        "slurmctld does not answer, a partition is not up, or no node is in service": is_worker and not serving,
        "it is not in service in Slurm": is_worker and host.name not in serving,
    }
    return next((text for text, holds in reasons.items() if holds), "")


def _listed(names: Collection[str]) -> str:
    """Return names, if there are many the first and the number of the others."""
    first = sorted(names)
    return " and ".join(first) if len(first) < 3 else f"{first[0]} and {len(first) - 1} others"


def _notes(
    known: Mapping[str, Proof], left_out: Collection[str], roles: Collection[str] | None
) -> dict[str, list[str]]:
    """Return the notes of proofs whose roles are not played: on hosts that are left out, or as other roles are."""
    found: dict[str, list[str]] = {}
    for name, proof in known.items():
        for note in proof.notes if name in left_out or roles is not None else ():
            if name in left_out or _role_of_note(note) not in {*(roles or ()), _VERIFY}:
                found.setdefault(note, []).append(name)
    return found


def _role_of_note(note: str) -> str | None:
    """Return the role of a LASTING note, None for another one."""
    return next((role for pattern, role in LASTING.items() if re.fullmatch(pattern, note)), None)


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


def is_compared(facts: "Facts") -> bool:
    """Return whether all is known that differs from a node's records."""
    return facts.drift is not None and facts.drift.error is None and not facts.drift.more


def is_as_recorded(facts: "Facts") -> bool:
    """Return whether nothing on a node differs from its records; False if they were not compared."""
    return facts.drift is not None and is_compared(facts) and not facts.drift.items


def _in_service(site: Site) -> set[str]:
    """Return the nodes to which Slurm gives jobs; none if slurmctld does not answer or a partition is not up."""
    from clusterctl.slurm.client import SlurmController  # its libraries are slow to load

    if SLURM not in site.inventory.schedulers:
        return set()
    with suppress(HeadFailed), scheduler.connect(site, SLURM) as controller:
        return cast(SlurmController, controller).in_service()
    return set()


def without(site: Site, names: Collection[str]) -> Site:
    """Return the site without these hosts."""
    return replace(site, hosts=tuple(host for host in site.hosts if host.name not in names))


def changed_roles(host: outcome.Host) -> set[str] | None:
    """Return the roles that changed a host in a run; None if that is not known of all changes."""
    roles = {role for role, _ in host.changes}
    return roles if roles or not host.changed else None


def prove(run: Run) -> None:
    """Store a proof for each host that this run left healthy, and that only SEPARATE roles or none have changed.

    None is stored after --limit, in check mode, if a playbook did not run to its end, if the inputs changed meanwhile,
    if the lock on the head may have been lost, or with the note OF_ALL; for a host none if its state changed in a part
    that no role reported, or with a note that is not LASTING.
    """
    from clusterctl.nodes import contact, parallel, remote

    inputs.forget_program()  # it may have changed since the run began
    site, now = run.site, inputs.of(run.site.inventory)
    # If files have changed meanwhile, it is not known what the run has read.
    if now is None or now != run.inputs or site.options.limit or site.options.check or not run.is_whole:
        return
    if OF_ALL in run.ledger.notes:
        return
    results = run.ledger.hosts
    notes = {note: names for note, names in run.ledger.notes.items() if not re.fullmatch(_OF_BUSY_NODES, note)}
    noted = {name for note, names in notes.items() if not _role_of_note(note) for name in names}
    good = [
        host
        for host in site.hosts
        if host.name in results and results[host.name].status == "ok" and host.name not in noted
        and _are_separate(changed_roles(results[host.name]))
        and host.name in site.facts and can_be_proven(host)
    ]  # fmt: skip
    if not good:
        return
    with suppress(InputError), run.screen.working(f"Recording the state of {plural(len(good), 'node')}"):
        key = secrets.values(site.inventory.directory).get("record_key")
        options = {"state": True, **contact.drift_options(key)}
        answers = parallel.each(good, lambda host: contact.ask(host, site.access, options), site.options.forks)
        remote.forget_gateways()
        at, found = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC", {}
        hosts = {host.name: host for host in good}
        shared = {part for one in results.values() for part in _changeable(one) if part.startswith(_OF_ALL_HEADS)}
        for name, answer in answers.items():
            roles, before, after = changed_roles(results[name]) or set(), site.facts[name], answer.facts
            expected = _changeable(results[name]) | shared | {"records"}
            if after is None or not is_as_recorded(after) or not _differing(before.state, after.state) <= expected:
                continue
            pending = roles | _writers(_differing(before.records, after.records), before)
            if pending <= _roles(hosts[name]):
                of_host = tuple(note for note, names in notes.items() if name in names)
                found[name] = Proof(now.hosts[name], after.state or {}, at, of_host, tuple(sorted(pending)))
        if run.head_lock and not run.head_lock.is_unbroken:
            return
        proofs.add(site, found)


def _writers(scopes: Collection[str], before: "Facts") -> set[str]:
    """Return the roles whose records changed, except those that recorded what had differed before the run.

    A role can record the work of another one, or a newer version, and report no change. Another controller may also
    have configured the host meanwhile. So these roles have to be played again.
    """
    drifted = {item.scope for item in before.drift.items} if before.drift else set()
    return {pruning.ROLE_OF.get(scope, scope) for scope in scopes if scope not in drifted}


def _are_separate(roles: Iterable[str] | None) -> bool:
    return roles is not None and {*roles} <= effects.SEPARATE.keys()


def _changeable(host: outcome.Host) -> set[str]:
    """Return the parts of a state, besides its records, that can differ by what a run changed on a host."""
    found = set[str]()
    for role, change in host.changes:
        found |= {*effects.PARTS_OF.get(role, ()), *(["packages"] if change.kind == "package" else [])}
    return found


def _differing(before: Mapping[str, str] | None, after: Mapping[str, str] | None) -> set[str]:
    """Return the names whose digests differ; one of its own if there are no digests."""
    if not before or not after:
        return {"all"}
    return {part for part in before.keys() | after.keys() if before.get(part) != after.get(part)}
