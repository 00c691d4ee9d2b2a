"""What preflight checks of Slurm: releases that work together, package sources, confinement of jobs, a lost head."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import product

from clusterctl.inventory import slurm_defaults, slurm_source
from clusterctl.inventory.model import Host, Inventory
from clusterctl.nodes.contact import Facts
from clusterctl.slurm import versions
from clusterctl.util.errors import Finding
from clusterctl.util.text import upstream
from clusterctl.workspace import hardware
from clusterctl.workspace.hardware import Hardware

# The cgroup controller by which Slurm confines jobs to each thing of slurm_head_confine.
CONFINED_BY = {"cores": "cpuset", "devices": "devices", "memory": "memory", "swap": "swap"}
_RESTORE = "put a backup back: clusterctl restore; to begin with an empty queue and empty accounting: --new-head"


def releases(inventory: Inventory, known: Mapping[str, Hardware]) -> Iterator[Finding]:
    """Refuse a release that is not known here, and workers that the head's release does not take."""
    head, oldest = inventory.head, versions.oldest()
    ours = versions.of_node(head, known[head.name]) if head.name in known else None
    if ours and ours not in oldest:
        found = f"is to have Slurm {ours}, and known here are {', '.join(oldest)}"
        yield Finding(head.name, "slurm version", found, f"correct {versions.PIN}, or use a later clusterctl")
        return
    for worker in inventory.workers:
        theirs = versions.of_node(worker, known[worker.name]) if worker.name in known else None
        if ours and theirs and not versions.work_together(ours, theirs):
            found = f"its Slurm {theirs} cannot talk to the {ours} of {head.name}, which takes {oldest[ours]} to {ours}"
            system = known[head.name].os
            hint = f"give all the same distribution: {head.name} has {system.id} {system.version}"
            if any(host.variables.get(versions.PIN) for host in (head, worker)):
                hint = f"correct {versions.PIN}"
            yield Finding(worker.name, "slurm version", found, hint)


def offers(inventory: Inventory, facts: Mapping[str, Facts]) -> Iterator[Finding]:
    """Hold what a new worker gets where nothing is pinned against what the head has, for package sources move on."""
    controllers, workers = (slurm_source.every(inventory, part) for part in slurm_source.DAEMONS)
    for head, worker in product(inventory.in_group("slurm_head"), inventory.workers):
        here, there = (facts[host.name].node.slurm_packages if host.name in facts else None for host in (head, worker))
        has = next((here.installed[name] for name in controllers if name in here.installed), None) if here else None
        if (
            not has
            or not there
            or not there.installed.keys().isdisjoint(workers)
            or not there.offered
            or worker.variables.get(versions.PIN)
        ):
            continue
        comes, ours = there.offered[0], versions.of_package(has)

        def fits(version: str, ours: str = ours) -> bool:
            return versions.work_together(ours, versions.of_package(version))

        if not fits(comes):
            other = next((version for version in there.offered if fits(version)), None)
            range_ = f"{versions.oldest().get(ours, ours)} to {ours}"
            hint = (
                "clusterctl upgrade comes first"
                if versions.of_package(comes) > ours
                else f"it needs a source of {range_}"
            )
            if other:
                alone = "" if versions.of_package(other) == ours else ", for it alone"
                hint = f'pin it{alone}: slurm_head_version: "{upstream(other)}"'
            found = f"its package sources bring {comes}, which cannot talk to the {has} of {head.name}"
            yield Finding(worker.name, "slurm version", found, hint)
        elif upstream(comes) != upstream(has):
            found = f"its package sources bring {comes}, while {head.name} has {has}"
            yield Finding(worker.name, "slurm version", found, "the two go together", warning=True)


def probe_options(inventory: Inventory, host: Host, daemons: Sequence[str]) -> dict[str, list[str]]:
    """Return what the probe is to look for of Slurm's packages (probe.slurm_packages); nothing on other hosts.

    `daemons` are those of all sources.
    """
    if not {"slurm_head", "slurm_workers"} & set(host.groups):
        return {}
    return {"daemons": list(daemons), "worker": slurm_source.names(inventory, host, "worker")}


def sources(inventory: Inventory, facts: Mapping[str, Facts]) -> Iterator[Finding]:
    """Refuse packages of another source than the inventory's, and a user slurm of another number.

    Both kinds of packages conflict. Munge's credentials carry UIDs, and Slurm's daemons take that of SlurmUser alone
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
            hint = f"if all nodes have it: slurm_head_user_id: {found.user}; else remove the user"
            yield Finding(host.name, "slurm user", f"the user slurm has the number {found.user}, not {number}", hint)


def confinement(inventory: Inventory, known: Mapping[str, Hardware]) -> Iterator[Finding]:
    """Hold what jobs are to be confined to against what each worker's kernel offers.

    Slurm knows version 2 of cgroups since 22.05, and confines devices there by a BPF program, which needs no controller
    (https://slurm.schedmd.com/cgroup_v2.html). Swap is the memory controller's there; version 1 counts it only where
    the kernel was started with swapaccount=1, which no record tells.
    """
    wanted = inventory.head.variables.get("slurm_head_confine", list(CONFINED_BY))
    for worker in inventory.workers:
        if worker.name not in known:
            continue
        node = known[worker.name]
        offered = {*node.cgroup.controllers}
        if node.cgroup.version == 2:
            offered |= {"devices"} | ({"swap"} if "memory" in offered else set())
        release = versions.of_node(worker, node)
        hint = "enable it there, see kernel-command-line(7)"
        if node.cgroup.version == 2 and release and release < "22.05":
            offered, hint = set(), f"its Slurm {release} knows version 1 of cgroups alone"
        missing = [limit for limit in wanted if CONFINED_BY[limit] not in offered]
        if missing:
            rest = ", ".join(limit for limit in wanted if limit not in missing)
            found = (
                f"cannot confine jobs to their {', '.join(missing)}: cgroups (v{node.cgroup.version}) do not offer it"
            )
            hint = f"{hint}; or confine no job of the cluster so: slurm_head_confine: [{rest}]"
            yield Finding(worker.name, "confinement", found, hint)


def job_defaults(inventory: Inventory, known: Mapping[str, Hardware]) -> Iterator[Finding]:
    """Report workers whose records are too far below the others' to count for the defaults that jobs get.

    A default that the inventory sets follows no record.
    """
    head = inventory.head.variables
    everywhere = {name.lower() for name in head.get("slurm_head_conf_extra", {})}
    names = [host.name for host in inventory.workers if host.name in known]
    workers = {name: asdict(known[name]) for name in names}
    little = dict(slurm_defaults.low_memory(workers))
    found: dict[tuple[str, str], str] = {}
    for partition in head.get("slurm_head_partitions", [{}]):
        given = everywhere | {name.lower() for name in partition.get("options", {})}
        members = {
            name
            for part in partition.get("nodes", ["slurm_workers"])
            for name in (part, *(host.name for host in inventory.in_group(part)))
        }
        if not given & {"defmempercpu", "defmempernode"}:
            found |= {(name, text): "DefMemPerCPU" for name, text in little.items() if name in members}
        if head.get("slurm_head_gpu_share", True) and "defcpupergpu" not in given:
            inside = {name: record for name, record in workers.items() if name in members}
            found |= dict.fromkeys(slurm_defaults.few_cpus(inside), "DefCpuPerGPU")
    for (name, text), option in found.items():
        hint = f"set {option} for its partition in slurm_head_partitions, or correct {hardware.DIRECTORY}/{name}.json"
        yield Finding(name, "slurm defaults", f"{text}: {option} does not follow it", hint, warning=True)


def lost_head(
    inventory: Inventory, facts: Mapping[str, Facts], records: Mapping[str, Hardware], wanted: bool
) -> Iterator[Finding]:
    """Yield a head without Slurm's state in a cluster whose workers have had a controller.

    One that starts there knows none of the jobs that run, and has the workers end them as they register.
    """
    for head in inventory.in_group("slurm_head"):
        if head.name not in facts or "controller" in facts[head.name].node.slurm:
            continue
        workers = [host.name for host in inventory.workers]
        serving = [name for name in workers if name in facts and "worker" in facts[name].node.slurm]
        unasked = [name for name in workers if name not in facts and name in records]
        # Of workers that this run does not ask, it is known only that they were there before this machine was.
        exchanged = head.name in records and records[head.name].machine_id != facts[head.name].hardware.machine_id
        if not serving and not (unasked and exchanged):
            continue
        running = {job for name in serving for job in facts[name].node.jobs}
        had = serving or unasked
        found = (
            f"has no state of Slurm's, while {had[0]}{' and others have' * (len(had) > 1) or ' has'} had a controller"
        )
        found += f"; {len(running)} of its jobs run, which a new one would end" * bool(running)
        hint = "the queue and the accounting begin anew" if wanted else _RESTORE
        yield Finding(head.name, "lost head", found, hint, warning=wanted)
