"""Filters that turn hardware records into Slurm's configuration."""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError

from clusterctl.inventory import slurm_defaults, slurm_limits
from clusterctl.inventory.slurm_defaults import Record, memory_per_cpu, real_memory, units


def release(record: Record, table: Mapping[str, str], pin: str = "") -> str:
    """Return the Slurm release of a pin, or else of the node's distribution, empty if the table has none.

    The table's keys are ``<id>-<version>``, ``<id>-<major version>`` or, for a family, ``<family>-<major version>``.
    """
    if found := re.match(r"(?:\d+:)?(\d+\.\d+)", pin):
        return found[1]
    system = record["os"]
    version = str(system["version"])
    major = version.partition(".")[0]
    keys = (f"{system['id']}-{version}", f"{system['id']}-{major}", f"{system['family'].lower()}-{major}")
    return next((table[key] for key in keys if key in table), "")


def node(record: Record, shards: int = 0, mps: int = 0) -> dict[str, Any]:
    """Return the hardware of a node as options of a ``NodeName`` line, with these parts of each GPU."""
    cpu = record["cpu"]
    options: dict[str, Any] = {"CPUs": cpu["cpus"]}
    if cpu["sockets"] * cpu["cores_per_socket"] * cpu["threads_per_core"] == cpu["cpus"]:
        options |= {
            "Sockets": cpu["sockets"],
            "CoresPerSocket": cpu["cores_per_socket"],
            "ThreadsPerCore": cpu["threads_per_core"],
        }
    options["RealMemory"] = real_memory(record)
    if count := Counter(units(record)):
        options["Gres"] = ",".join(f"gpu:{kind}:{number}" for kind, number in sorted(count.items()))
        # Without the type of its GPUs, a back-up that takes over would set the node INVAL, because it recovers the
        # node's own parts, which have it (read_slurm_conf(2) in src/slurmctld/backup.c of 24.11, seen with 24.11.5).
        whole = sorted(Counter(kind for _, kind in _whole(record)).items())
        for name, parts in (("shard", shards), ("mps", mps)):
            for kind, number in whole if parts else ():
                options["Gres"] += f",{name}:{kind}:{parts * number}"
    return options


def _whole(record: Record) -> list[tuple[str, str]]:
    """Return device file and type of the GPUs without MIG, the only ones that are shared."""
    return [(str(gpu["device"]), str(gpu["type"])) for gpu in record["gpus"] if gpu["mig"] is None]


def gpu_types(records: Iterable[Record]) -> list[str]:
    """Return the types of all GPUs, sorted."""
    return sorted({kind for record in records for kind in units(record)})


def with_gpu(names: Iterable[str], records: Mapping[str, Record], types: str | Sequence[str]) -> list[str]:
    """Return the nodes with a GPU of one of these types; all nodes if there are no types."""
    return [name for name in names if slurm_defaults.has_gpu(records[name], types)]


def _ranges(numbers: Iterable[str]) -> str:
    """Fold numbers of one width into ``0-3,7``."""
    ordered = sorted(numbers, key=int)
    parts = []
    for _, run in itertools.groupby(enumerate(ordered), lambda item: int(item[1]) - item[0]):
        members = [number for _, number in run]
        parts.append(members[0] if len(members) == 1 else f"{members[0]}-{members[-1]}")
    return ",".join(parts)


def hostlist(names: Iterable[str]) -> str:
    """Fold names into Slurm's notation: ``gpu01``, ``gpu02`` and ``login`` become ``gpu[01-02],login``."""
    bundles: dict[tuple[str, int], list[str]] = {}
    for name in sorted(set(names)):
        match = re.fullmatch(r"(.*?)(\d+)", name)
        stem, number = (match[1], match[2]) if match else (name, "")
        bundles.setdefault((stem, len(number)), []).append(number)
    return ",".join(
        stem + (numbers[0] if len(numbers) == 1 else f"[{_ranges(numbers)}]") for (stem, _), numbers in bundles.items()
    )


def _cores(cpus: str | None, record: Record) -> str:
    """Return the cores near a GPU in Slurm's numbering, empty if Linux's numbering does not show them.

    Slurm numbers cores by socket. So does Linux on most machines, with all second threads after all first threads: a
    GPU's CPUs then are one run of cores and the same run of second threads. Otherwise the numbering is different.
    """
    layout = record["cpu"]
    total = layout["sockets"] * layout["cores_per_socket"]
    numbers: set[int] = set()
    for part in (cpus or "").split(","):
        first, _, last = part.partition("-")
        if first:
            numbers |= set(range(int(first), int(last or first) + 1))
    cores = sorted({number % total for number in numbers})
    siblings = {core + thread * total for core in cores for thread in range(layout["threads_per_core"])}
    if not cores or len(cores) == total or numbers != siblings or cores[-1] - cores[0] + 1 != len(cores):
        return ""
    return _ranges(map(str, cores))


def gres(records: Mapping[str, Record]) -> list[str]:
    """Return the lines of ``gres.conf`` for nodes by name: equal nodes share lines, equal GPUs of a node share a line.

    A MIG instance has its own line, with its GPU's device file and its own two device files, named by role gpu_config.
    """
    nodes: dict[tuple[str, ...], list[str]] = {}
    for name, record in records.items():
        bundles: dict[tuple[str, str], list[str]] = {}
        parts: list[tuple[str, list[str], str]] = []
        for gpu in record["gpus"]:
            match = re.fullmatch(r"/dev/nvidia(\d+)", gpu["device"])
            if not match:
                raise AnsibleFilterError(f"{name}: {gpu['device']!r} is not a device file of a GPU")
            if gpu["mig"] is None:
                bundles.setdefault((gpu["type"], _cores(gpu["cpus"], record)), []).append(match[1])
            else:
                parts.append((match[1], gpu["mig"], _cores(gpu["cpus"], record)))
        lines = []
        for (kind, cores), devices in bundles.items():
            file = devices[0] if len(devices) == 1 else f"[{_ranges(devices)}]"
            lines.append(f"Name=gpu Type={kind} File=/dev/nvidia{file}" + (f" Cores={cores}" if cores else ""))
        for device, profiles, cores in parts:
            for kind, number in Counter(profiles).items():
                for nth in range(number):
                    own = ",".join(f"/dev/nvidia-mig/gpu{device}/{part}-{kind}-{nth}" for part in ("gi", "ci"))
                    line = f"Name=gpu Type={kind} MultipleFiles=/dev/nvidia{device},{own}"
                    lines.append(line + (f" Cores={cores}" if cores else ""))
        nodes.setdefault(tuple(lines), []).append(name)
    return [f"NodeName={hostlist(names)} {line}" for lines, names in nodes.items() for line in lines]


def shared(records: Mapping[str, Record], numbers: Mapping[str, int], name: str) -> list[str]:
    """Return the lines of ``gres.conf`` for ``shard`` or ``mps``: one for each GPU, as in https://slurm.schedmd.com/gres.html.

    They name device files, because Slurm would otherwise divide a node's parts among MIG instances too. Lines of
    another type than in ``slurm.conf`` would not count (_match_type in src/interfaces/gres.c).
    """
    nodes: dict[tuple[int, tuple[tuple[str, str], ...]], list[str]] = {}
    for host, record in records.items():
        if numbers[host] and (gpus := tuple(_whole(record))):
            nodes.setdefault((numbers[host], gpus), []).append(host)
    return [
        f"NodeName={hostlist(names)} Name={name} Type={kind} Count={number} File={device}"
        for (number, gpus), names in nodes.items()
        for device, kind in gpus
    ]


def in_order(record: Record, source: str) -> list[dict[str, str]]:
    """Return the device files and UUIDs of a node's GPUs in Slurm's order, which SLURM_JOB_GPUS counts by, without MIG.

    That is the order of device files, and with AutoDetect (`source` is ``driver``) that of PCI addresses, as the driver
    has it: _merge_system_gres_conf in src/plugins/gres/gpu/gres_gpu.c.
    """

    def place(gpu: Mapping[str, Any]) -> int:
        return int(gpu["index"] if source == "driver" else re.sub(r"\D", "", gpu["device"]))

    return [{"device": str(gpu["device"]), "uuid": str(gpu["uuid"])} for gpu in sorted(record["gpus"], key=place)]


def divided(records: Mapping[str, Record], numbers: Mapping[str, int]) -> list[str]:
    """Return the nodes that have a number and a GPU with MIG."""
    return [name for name, number in numbers.items() if number and any(gpu["mig"] for gpu in records[name]["gpus"])]


def topology(given: Mapping[str, Any], groups: Mapping[str, Sequence[str]], workers: Sequence[str]) -> list[str]:
    """Return the lines of ``topology.conf``; `workers` are the nodes of slurm.conf.

    A switch or block without any of these is left out, because Slurm does not start with it.
    """
    if given.get("blocks"):
        filled = {one["name"]: _connected(one, groups, workers) for one in given["blocks"]}
        lines = [f"BlockName={name} Nodes={hostlist(nodes)}" for name, nodes in filled.items() if nodes]
        return [*lines, "BlockSizes=" + ",".join(map(str, given["block_sizes"]))]
    switches = given.get("switches", [])
    leaves = {one["name"]: _connected(one, groups, workers) for one in switches}
    used = {name for name, nodes in leaves.items() if nodes}
    while above := {one["name"] for one in switches if not used.isdisjoint(one.get("switches", []))} - used:
        used |= above
    lines = []
    for one in switches:
        children = [name for name in one.get("switches", []) if name in used]
        below = f"Switches={hostlist(children)}" if children else f"Nodes={hostlist(leaves[one['name']])}"
        lines += [f"SwitchName={one['name']} {below}"] * (one["name"] in used)
    return lines


def _connected(one: Mapping[str, Any], groups: Mapping[str, Sequence[str]], workers: Sequence[str]) -> set[str]:
    """Return the nodes of a switch or block that are in slurm.conf."""
    return {host for name in one.get("nodes", []) for host in groups.get(name, [name])}.intersection(workers)


def topology_problems(
    given: Mapping[str, Any], groups: Mapping[str, Sequence[str]], workers: Sequence[str], lowest: str
) -> list[str]:
    """Return why a Slurm of this release would not start with the topology.

    BlockSizes replaced BlockLevels in 24.05. Until 25.05 slurmctld ends if a block has fewer nodes than its first
    number (src/plugins/topology/block/block_record.c).
    """
    if not (blocks := given.get("blocks")):
        return []
    if lowest < "24.05":
        return [f"blocks in slurm_head_topology need Slurm 24.05 on all nodes, got {lowest}"]
    least = given["block_sizes"][0]
    sizes = {one["name"]: len(_connected(one, groups, workers)) for one in blocks} if lowest < "25.05" else {}
    return [
        f"block {name} has {size} nodes with a hardware record, and Slurm {lowest} needs {least} (block_sizes)"
        for name, size in sizes.items()
        if 0 < size < least
    ]


def seconds(limit: str) -> float:
    """Return a time limit of slurm.conf(5) in seconds; any other text is no limit.

    MINUTES, MINUTES:SECONDS, HOURS:MINUTES:SECONDS, DAYS-HOURS, DAYS-HOURS:MINUTES or DAYS-HOURS:MINUTES:SECONDS.
    """
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", limit.strip())
    if not match:
        return math.inf
    days, *rest = (int(part or 0) for part in match.groups())
    if match[1] is None and match[4] is None:
        rest = [0, *rest[:2]]  # without days or hours
    hours, minutes, last = rest
    return ((days * 24 + hours) * 60 + minutes) * 60 + last


def partition(
    records: Sequence[Record],
    given: Mapping[str, Any],
    default_time: str,
    share: bool,
    mb_per_cpu: int = 0,
    shards: Sequence[int] = (),
    mps: Sequence[int] = (),
) -> dict[str, Any]:
    """Return the options of a partition of these nodes; given options are not changed.

    With `share`, a GPU counts as its share of a node. A job without a request for cores gets that many cores for each
    GPU. It is billed for the largest of its shares (PriorityFlags=MAX_TRES), so one core and all GPUs cost as much as
    all GPUs. Records that differ much from the others are not used for this (slurm_defaults.py).
    A default time above a partition's own limit is left out, because Slurm would refuse every job without a limit.
    `mb_per_cpu` is the whole cluster's DefMemPerCPU. A partition whose nodes have more gets its own, so that a job's
    memory follows its cores, and its cores follow its GPUs. DefMemPerGPU would give all memory to a job without GPUs:
    Slurm accepts only one of DefMemPerCPU, DefMemPerGPU and DefMemPerNode (slurm.conf(5)).
    `shards` and `mps` are the nodes' parts of each GPU. One costs its part of a GPU, by the smallest number.
    """
    records = list(records)
    known = {name.lower(): value for name, value in given.items()}
    limited = seconds(str(known.get("maxtime", ""))) < seconds(default_time)
    options: dict[str, Any] = {"DefaultTime": default_time} if default_time and not limited else {}
    own_mb = memory_per_cpu(records)
    if 0 < mb_per_cpu < own_mb and known.keys().isdisjoint(("defmempercpu", "defmempergpu", "defmempernode")):
        options["DefMemPerCPU"] = own_mb
    if share and (found := slurm_defaults.share(records)):
        cores, per_gpu, per_gb = found
        if cores:
            options["DefCpuPerGPU"] = cores
        weights = {"CPU": 1.0, "Mem": per_gb, "GRES/gpu": per_gpu}
        for name, numbers in (("shard", shards), ("mps", mps)):
            if parts := [number for number, record in zip(numbers, records, strict=False) if number and _whole(record)]:
                weights[f"GRES/{name}"] = per_gpu / min(parts)
        options["TRESBillingWeights"] = ",".join(
            f"{name}={weight:.3f}{'G' if name == 'Mem' else ''}" for name, weight in weights.items()
        )
    return {name: value for name, value in options.items() if name.lower() not in known} | dict(given)


def override(text: str, options: Mapping[str, Any]) -> str:
    """Return a configuration with changed options: replaced in place, or added at the end.

    Slurm's option names are case-insensitive. ``None`` removes an option. Nodes and partitions are not options.
    """
    wanted = {}
    for name, value in options.items():
        if not re.fullmatch("[A-Za-z][A-Za-z0-9]*", str(name)) or re.search(r"[\n\r#]", str(value)):
            raise AnsibleFilterError(f"{name}={value!r} cannot be a line of a Slurm configuration")
        if str(name).lower() in ("nodename", "nodeset", "partitionname"):
            raise AnsibleFilterError(f"{name} is not an option: nodes come from the inventory")
        written = ("NO", "YES")[value] if isinstance(value, bool) else value
        wanted[str(name).lower()] = None if value is None else f"{name}={written}"
    lines = []
    for line in text.splitlines():
        name = line.partition("=")[0].strip().lower()
        if name in wanted:
            line = wanted.pop(name)
        if line is not None:
            lines.append(line)
    rest = [line for line in wanted.values() if line is not None]
    return "\n".join(lines + rest) + "\n"


def mysql_native_password(password: str) -> str:
    """Return MariaDB's hash of a password, so that the password itself is not sent.

    The hash does not open the database: a client needs the inner SHA-1.
    """
    inner = hashlib.sha1(password.encode(), usedforsecurity=False).digest()
    return "*" + hashlib.sha1(inner, usedforsecurity=False).hexdigest().upper()


def quoted(text: str, what: str) -> str:
    """Return a value for a file of Slurm's, whose parser strips comments and escapes also inside quotes."""
    if not re.fullmatch(r'[^"\x00-\x1f]+', text):
        raise AnsibleFilterError(f"{what}: expected no double quote and no control character, which Slurm cannot read")
    return '"' + re.sub(r"[\\#]", r"\\\g<0>", text) + '"'


def options_of_qos(qos: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the options that any of these QOS has, with a value."""
    return sorted({key.partition(":")[0] for options in _options(qos, of_qos=True) for key in options})


def limit_problems(
    accounts: Sequence[Mapping[str, Any]], qos: Sequence[Mapping[str, Any]], types: Sequence[str]
) -> list[str]:
    """Return messages about limits of GPUs that no worker has: Slurm does not count them, and sacctmgr refuses them."""
    given = [*_options(accounts), *_options(qos, of_qos=True)]
    limited = {key.partition(":")[2] for options in given for key in options if ":gres/gpu" in key}
    known = {"gres/gpu", *(f"gres/gpu:{kind.lower()}" for kind in types)} if types else set()
    there = f"the workers have {', '.join(types)}" if types else "no worker has a GPU"
    return [f"a limit is for {name}, but {there}" for name in sorted(limited - known)]


def reservations(
    declared: Sequence[Mapping[str, Any]], groups: Mapping[str, Sequence[str]], records: Mapping[str, Record]
) -> list[dict[str, Any]]:
    """Return reservations with the nodes of sub-groups, without nodes that have no record: Slurm does not know them.

    A reservation without a node that Slurm knows is left out.
    """
    found: list[dict[str, Any]] = []
    for one in declared:
        options = dict(one["options"])
        name = next((key for key in options if key.lower() == "nodes"), None)
        if name and str(options[name]).upper() != "ALL":
            given = options[name] if isinstance(options[name], list) else str(options[name]).split(",")
            nodes = [node for part in given for node in groups.get(str(part).strip(), [str(part).strip()])]
            options[name] = [node for node in nodes if node in records]
        if not name or options[name]:
            found.append({"name": one["name"], "options": options})
    return found


def _options(entries: Sequence[Mapping[str, Any]], of_qos: bool = False) -> list[dict[str, str]]:
    limits = slurm_limits.limits()
    kinds = limits.OF_QOS if of_qos else limits.OF_ASSOCIATION
    try:
        return [limits.flatten(kinds, one.get("options", {})) for one in entries]
    except limits.OptionError as error:
        raise AnsibleFilterError(str(error)) from None


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by the names that templates use."""
        return {
            "mysql_native_password": mysql_native_password,
            "slurm_gpu_types": gpu_types,
            "slurm_gres": gres,
            "slurm_gpus": units,
            "slurm_hostlist": hostlist,
            "slurm_limit_problems": limit_problems,
            "slurm_memory_per_cpu": memory_per_cpu,
            "slurm_node": node,
            "slurm_options_of_qos": options_of_qos,
            "slurm_override": override,
            "slurm_partition": partition,
            "slurm_quoted": quoted,
            "slurm_release": release,
            "slurm_reservations": reservations,
            "slurm_with_gpu": with_gpu,
            "slurm_divided": divided,
            "slurm_gpus_in_order": in_order,
            "slurm_shared": shared,
            "slurm_topology": topology,
            "slurm_topology_problems": topology_problems,
        }
