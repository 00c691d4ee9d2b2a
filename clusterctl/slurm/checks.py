"""Slurm's preflight checks: compatible releases, package sources, confinement of jobs, a lost head."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import product
from typing import Any

from clusterctl.inventory import slurm_defaults, slurm_source
from clusterctl.inventory.model import Host, Inventory
from clusterctl.inventory.schedulers import LOGIN, SLURM
from clusterctl.nodes.contact import Answer, Facts
from clusterctl.slurm import versions
from clusterctl.util.errors import Finding
from clusterctl.util.text import upstream
from clusterctl.workspace import hardware
from clusterctl.workspace.hardware import Hardware

# The cgroup controller for each value of slurm_head_confine.
CONFINED_BY = {"cores": "cpuset", "devices": "devices", "memory": "memory", "swap": "swap"}
_RESTORE = "restore a backup: clusterctl restore; to start with an empty queue and empty accounting: --new-head"


def needed_heads(inventory: Inventory, answers: Mapping[str, Answer]) -> set[str]:
    """Return the heads that a run cannot skip: all of them, unless one of two responds."""
    heads = [host.name for host in inventory.in_group(SLURM.head)]
    return set() if any(name in answers and answers[name].facts for name in heads[:2]) and len(heads) > 1 else {*heads}


def releases(inventory: Inventory, known: Mapping[str, Hardware]) -> Iterator[Finding]:
    """Refuse an unknown release, another one on the back-up, and nodes that the head's release does not support."""
    if not (heads := inventory.in_group(SLURM.head)):
        return
    head, oldest = heads[0], versions.oldest()
    head_release = versions.of_node(head, known[head.name]) if head.name in known else None
    if head_release and head_release not in oldest:
        found = f"the planned Slurm is {head_release}, expected {', '.join(oldest)}"
        yield Finding(head.name, "slurm version", found, f"correct {versions.PIN}, or use a later clusterctl")
        return
    for worker in (*heads[1:], *inventory.in_group(SLURM.workers), *inventory.in_group(LOGIN)):
        release = versions.of_node(worker, known[worker.name]) if worker.name in known else None
        # A controller does not read the state of a later release.
        is_other_head = worker in heads and release != head_release
        if head_release and release and (is_other_head or not versions.work_together(head_release, release)):
            supported = head_release if is_other_head else f"{oldest[head_release]} to {head_release}"
            found = f"its Slurm {release} is not compatible with {head_release} on {head.name}, expected {supported}"
            system = known[head.name].os
            hint = f"install the same distribution on all nodes: {head.name} has {system.id} {system.version}"
            if any(host.variables.get(versions.PIN) for host in (head, worker)):
                hint = f"correct {versions.PIN}"
            yield Finding(worker.name, "slurm version", found, hint)


def offers(inventory: Inventory, facts: Mapping[str, Facts]) -> Iterator[Finding]:
    """Compare the version that a new worker without a pin would get with the head's: package sources change."""
    controllers, workers = (slurm_source.every(inventory, part) for part in slurm_source.DAEMONS)
    for head, worker in product(inventory.in_group(SLURM.head), inventory.in_group(SLURM.workers)):
        on_head, on_worker = (
            facts[host.name].node.slurm_packages if host.name in facts else None for host in (head, worker)
        )
        installed = on_head.installed if on_head else {}
        has = next((installed[name] for name in controllers if name in installed), None)
        if (
            not has
            or not on_worker
            or not on_worker.installed.keys().isdisjoint(workers)
            or not on_worker.offered
            or worker.variables.get(versions.PIN)
        ):
            continue
        candidate, release = on_worker.offered[0], versions.of_package(has)

        def is_compatible(version: str, release: str = release) -> bool:
            return versions.work_together(release, versions.of_package(version))

        if not is_compatible(candidate):
            other = next((version for version in on_worker.offered if is_compatible(version)), None)
            range_ = f"{versions.oldest().get(release, release)} to {release}"
            hint = (
                "run clusterctl upgrade first"
                if versions.of_package(candidate) > release
                else f"add a package source with {range_}"
            )
            if other:
                only = "" if versions.of_package(other) == release else " only for this host"
                hint = f'pin it{only}: slurm_head_version: "{upstream(other)}"'
            found = f"its package sources have {candidate}, which is not compatible with {has} on {head.name}"
            yield Finding(worker.name, "slurm version", found, hint)
        elif upstream(candidate) != upstream(has):
            found = f"its package sources have {candidate}, while {head.name} has {has}"
            yield Finding(worker.name, "slurm version", found, "the two are compatible", warning=True)


def _of_head(inventory: Inventory) -> Mapping[str, Any]:
    """Return the variables of Slurm's head; none without Slurm."""
    return next((head.variables for head in inventory.in_group(SLURM.head)), {})


def probe_options(inventory: Inventory, host: Host, daemons: Sequence[str]) -> dict[str, list[str]]:
    """Return the options of probe.slurm_packages; empty for a host without Slurm.

    `daemons` are the package names of all sources.
    """
    if host.scheduler is not SLURM and LOGIN not in host.groups:
        return {}
    return {"daemons": list(daemons), "worker": slurm_source.names(inventory, host, "worker")}


def sources(inventory: Inventory, facts: Mapping[str, Facts]) -> Iterator[Finding]:
    """Refuse packages from another source than the inventory's, and a user slurm with another UID.

    Packages of two sources conflict. Munge's credentials carry UIDs, and Slurm's daemons accept only SlurmUser's UID
    (https://slurm.schedmd.com/quickstart_admin.html).
    """
    for host in (host for host in inventory.hosts if host.name in facts):
        found = facts[host.name].node.slurm_packages
        if not found:
            continue
        own = {name for part in slurm_source.DAEMONS for name in slurm_source.names(inventory, host, part)}
        if others := sorted(found.installed.keys() - own - {"munge"}):
            source = slurm_source.given(inventory, host, "slurm_head_source", "distribution")
            hint = "uninstall them, or correct slurm_head_source"
            yield Finding(host.name, "slurm source", f"has {', '.join(others)}, which are not from {source}", hint)
        number = slurm_source.given(inventory, host, "slurm_head_user_id", slurm_source.USER_ID)
        if found.user not in (None, number):
            hint = f"if all nodes have it, set slurm_head_user_id: {found.user}; otherwise remove the user"
            yield Finding(host.name, "slurm user", f"UID of the user slurm: got {found.user}, expected {number}", hint)


def confinement(inventory: Inventory, known: Mapping[str, Hardware]) -> Iterator[Finding]:
    """Compare slurm_head_confine with the cgroup controllers of each worker.

    Slurm supports version 2 of cgroups since 22.05, and confines devices there by a BPF program, which needs no
    controller (https://slurm.schedmd.com/cgroup_v2.html). There, the memory controller limits swap. Version 1 limits
    swap only with the kernel's option swapaccount=1, which is not recorded.
    """
    wanted = _of_head(inventory).get("slurm_head_confine", list(CONFINED_BY))
    for worker in inventory.in_group(SLURM.workers):
        if worker.name not in known:
            continue
        node = known[worker.name]
        offered = {*node.cgroup.controllers}
        if node.cgroup.version == 2:
            offered |= {"devices"} | ({"swap"} if "memory" in offered else set())
        release = versions.of_node(worker, node)
        hint = "enable the controller, see kernel-command-line(7)"
        if node.cgroup.version == 2 and release and release < "22.05":
            offered, hint = set(), f"its Slurm {release} supports only version 1 of cgroups"
        missing = [limit for limit in wanted if CONFINED_BY[limit] not in offered]
        if missing:
            rest = ", ".join(limit for limit in wanted if limit not in missing)
            found = (
                f"cannot confine jobs to their {', '.join(missing)}: cgroups (v{node.cgroup.version}) do not support it"
            )
            hint = f"{hint}; or do not confine jobs in the whole cluster: slurm_head_confine: [{rest}]"
            yield Finding(worker.name, "confinement", found, hint)


def job_defaults(inventory: Inventory, known: Mapping[str, Hardware]) -> Iterator[Finding]:
    """Warn of workers whose memory or CPUs are too few to be used for the jobs' default limits.

    Defaults that the inventory sets do not depend on records.
    """
    head = _of_head(inventory)
    everywhere = {name.lower() for name in head.get("slurm_head_conf_extra", {})}
    names = [host.name for host in inventory.in_group(SLURM.workers) if host.name in known]
    workers = {name: asdict(known[name]) for name in names}
    little = dict(slurm_defaults.low_memory(workers))
    found: dict[tuple[str, str], str] = {}
    for partition in head.get("slurm_head_partitions", [{}]):
        given = everywhere | {name.lower() for name in partition.get("options", {})}
        members = _members(inventory, partition)
        if types := partition.get("gpu"):
            members = {name for name in members & workers.keys() if slurm_defaults.has_gpu(workers[name], types)}
        if not given & {"defmempercpu", "defmempernode"}:
            found |= {(name, text): "DefMemPerCPU" for name, text in little.items() if name in members}
        if head.get("slurm_head_gpu_share", True) and "defcpupergpu" not in given:
            inside = {name: record for name, record in workers.items() if name in members}
            found |= dict.fromkeys(slurm_defaults.few_cpus(inside), "DefCpuPerGPU")
    for (name, text), option in found.items():
        hint = f"set {option} for its partition in slurm_head_partitions, or correct {hardware.DIRECTORY}/{name}.json"
        yield Finding(name, "slurm defaults", f"{text}: {option} ignores this node", hint, warning=True)


def partition_gpus(inventory: Inventory, known: Mapping[str, Hardware]) -> Iterator[Finding]:
    """Warn of types of GPUs in partitions that none of their workers has."""
    for head in inventory.in_group(SLURM.head):
        for partition in head.variables.get("slurm_head_partitions", []):
            given = partition.get("gpu") or []
            members = _members(inventory, partition) & known.keys()
            records = {name: asdict(known[name]) for name in members}
            present = sorted({kind for record in records.values() for kind in slurm_defaults.units(record)})
            for wanted in [given] if isinstance(given, str) else given:
                if any(slurm_defaults.has_gpu(record, wanted) for record in records.values()):
                    continue
                found = f"partition {partition['name']}: none of its workers has a GPU of type {wanted}"
                found += f", they have {', '.join(present)}" if present else ""
                if not any(slurm_defaults.has_gpu(record, given) for record in records.values()):
                    found += "; the partition is left out"
                hint = "correct gpu in slurm_head_partitions, or add such a worker"
                yield Finding(head.name, "slurm partitions", found, hint, warning=True)


def _members(inventory: Inventory, partition: Mapping[str, Any]) -> set[str]:
    """Return the names of the workers that a partition's `nodes` selects."""
    workers = {host.name for host in inventory.in_group(SLURM.workers)}
    parts = partition.get("nodes") or [SLURM.workers]
    return workers & {name for part in parts for name in (part, *(host.name for host in inventory.in_group(part)))}


def lost_head(
    inventory: Inventory, facts: Mapping[str, Facts], records: Mapping[str, Hardware], wanted: bool
) -> Iterator[Finding]:
    """Yield a head without Slurm's state in a cluster whose workers have had a controller.

    A new slurmctld does not know the running jobs; the workers end them when they register. Role slurm_head
    sees that two heads have one state.
    """
    heads = inventory.in_group(SLURM.head)
    if any(head.name in facts and "controller" in facts[head.name].node.slurm for head in heads):
        return
    for head in heads:
        if head.name not in facts:
            continue
        workers = [host.name for host in inventory.in_group(SLURM.workers)]
        serving = [name for name in workers if name in facts and "worker" in facts[name].node.slurm]
        uncontacted = [name for name in workers if name not in facts and name in records]
        # If the head's machine was replaced, workers that this run does not contact count as having had a controller.
        replaced = head.name in records and records[head.name].machine_id != facts[head.name].hardware.machine_id
        if not serving and not (uncontacted and replaced):
            continue
        running = {job for name in serving for job in facts[name].node.jobs}
        had = serving or uncontacted
        found = f"has no Slurm state, but {had[0]}{' and others have' * (len(had) > 1) or ' has'} had a controller"
        found += f"; a new controller would end its {len(running)} running jobs" * bool(running)
        hint = "the queue and the accounting start empty" if wanted else _RESTORE
        yield Finding(head.name, "lost head", found, hint, warning=wanted)
