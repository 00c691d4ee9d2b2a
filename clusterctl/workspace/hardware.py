"""Hardware records: discovered once, stored in hardware/<node>.json, compared with the node later.

A record is not trusted: it is decoded by type and whitelist at every read, and is never templated.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from clusterctl.inventory.rules import PROFILE
from clusterctl.util import files
from clusterctl.util.errors import InputError, Problem
from clusterctl.util.text import printable
from clusterctl.util.untrusted import (
    Malformed,
    address,
    decode,
    flag,
    interface,
    mapping,
    nested,
    number,
    optional,
    ranges,
    sequence,
    text,
)

SCHEMA = 1
DIRECTORY = "hardware"
# A kernel update or a crash kernel's reservation changes MemTotal by tens of MB; a lost module by far more.
MEMORY_TOLERANCE = 0.02
_WORD = r"[A-Za-z0-9][A-Za-z0-9._+~-]*"
_MAX_CPUS = 65536
_INSTANCES = sequence(text(PROFILE, "a MIG profile"), 64)


@dataclass(frozen=True)
class OperatingSystem:
    """The distribution from /etc/os-release; `family` is Ansible's os_family (Debian, RedHat) or the id."""

    id: Annotated[str, text(_WORD, "a distribution's id")]
    version: Annotated[str, text(rf"({_WORD})?", "a version")]
    codename: Annotated[str, text(rf"({_WORD})?", "a code name")]
    family: Annotated[str, text(_WORD, "a distribution's family")]
    architecture: Annotated[str, text(_WORD, "an architecture")]
    kernel: Annotated[str, text(_WORD, "a kernel's release")]


@dataclass(frozen=True)
class Cpu:
    """The topology as `slurmd -C` counts it: all CPUs that are online, independent of cpusets."""

    model: Annotated[str, text()]
    sockets: Annotated[int, number(1, 256)]
    cores_per_socket: Annotated[int, number(1, 4096)]
    threads_per_core: Annotated[int, number(1, 16)]
    cpus: Annotated[int, number(1, _MAX_CPUS)]


@dataclass(frozen=True)
class Gpu:
    """One GPU. `device` is its file, `cpus` the CPUs near it, `links` the GPUs (by index) connected by NVLink."""

    index: Annotated[int, number(0, 63)]
    model: Annotated[str, text()]
    type: Annotated[str, text(r"[a-z0-9][a-z0-9._-]*", "a short type")]
    memory_mb: Annotated[int, number(0, 1 << 21)]
    uuid: Annotated[str, text(r"(GPU-[0-9A-Fa-f-]+)?", "a GPU's UUID")]
    pci: Annotated[str, text(r"([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])?", "a PCI address")]
    device: Annotated[str, text(r"/dev/nvidia\d{1,3}", "/dev/nvidiaN")]
    cpus: Annotated[str | None, optional(ranges(0, _MAX_CPUS - 1))]
    links: Annotated[
        Mapping[str, str], mapping(text(r"\d{1,2}", "a GPU's index"), text(r"NV\d{1,2}", "NV and a count"), 64)
    ]
    pcie_generation: Annotated[int | None, optional(number(1, 16))]
    pcie_width: Annotated[int | None, optional(number(1, 64))]
    """The maximum number of lanes of the card; its slot may have fewer."""
    pcie_lanes: Annotated[int | None, optional(number(1, 64))]
    """The lanes in use; None in a record of an older clusterctl, until it is updated."""
    mig: Annotated[tuple[str, ...] | None, optional(_INSTANCES)]
    """The profiles of its MIG instances, None if MIG is off; the only part of a record that is updated."""


@dataclass(frozen=True)
class Nic:
    """A network interface; speed in Mbit/s, if the driver reports it."""

    name: Annotated[str, text(r"[A-Za-z0-9][A-Za-z0-9._@-]*", "an interface's name")]
    mac: Annotated[str, text(r"([0-9a-f]{2}(:[0-9a-f]{2}){5,19})?", "a MAC address")]
    speed_mbps: Annotated[int | None, optional(number(1, 10_000_000))]
    addresses: Annotated[tuple[str, ...], sequence(interface, 256)]


@dataclass(frozen=True)
class Disk:
    """A block device; size in units of 10^9 bytes."""

    name: Annotated[str, text(r"[A-Za-z0-9][A-Za-z0-9!._-]*", "a disk's name")]
    size_gb: Annotated[int, number(0, 1 << 24)]
    rotational: Annotated[bool, flag]


@dataclass(frozen=True)
class Cgroup:
    """The version of cgroups that limits jobs, and its writable controllers."""

    version: Annotated[int, number(1, 2)]
    controllers: Annotated[tuple[str, ...], sequence(text(r"[a-z_]+", "a controller"), 32)]


@dataclass(frozen=True)
class Hardware:
    """One node's record; `recorded` is UTC, memory_mb is MemTotal in MiB without a margin.

    `resolver` is the program that writes the node's resolv.conf, `plain` if there is none.
    """

    schema: Annotated[int, number(SCHEMA, SCHEMA)]
    name: Annotated[str, text(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?", "a host's name")]
    recorded: Annotated[str, text(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "a time like 2026-11-21T01:00:00Z")]
    os: Annotated[OperatingSystem, nested(OperatingSystem)]
    cpu: Annotated[Cpu, nested(Cpu)]
    memory_mb: Annotated[int, number(1, 1 << 28)]
    gpus: Annotated[tuple[Gpu, ...], sequence(nested(Gpu), 64)]
    driver_version: Annotated[str | None, optional(text(_WORD, "a version"))]
    nics: Annotated[tuple[Nic, ...], sequence(nested(Nic), 256)]
    disks: Annotated[tuple[Disk, ...], sequence(nested(Disk), 1024)]
    cgroup: Annotated[Cgroup, nested(Cgroup)]
    nameservers: Annotated[tuple[str, ...], sequence(address, 8)]
    resolver: Annotated[str, text("plain|resolved|networkmanager", "plain, resolved or networkmanager")]
    cloud_init: Annotated[bool, flag]
    machine_id: Annotated[str, text(r"([0-9a-f]{32})?", "a machine id")]

    def __post_init__(self) -> None:
        """Raise Malformed if GPUs share a value that must be unique."""
        for what in ("index", "device", "uuid", "pci"):
            known = [value for gpu in self.gpus if (value := getattr(gpu, what)) != ""]
            if twice := [value for value in known if known.count(value) > 1]:
                raise Malformed(f"gpus: got the {what} {twice[0]} twice, expected a unique one for each GPU")


def gpu_type(model: str) -> str:
    """Return the short Slurm type of a GPU: `NVIDIA A100-SXM4-80GB` is `a100`, an unknown model its slug.

    Both are a part of the model in the form of Slurm's NVML plugin (lower case, underscores for spaces), as Slurm
    requires for a Type in gres.conf.
    """
    name = re.sub(r"\b(nvidia|tesla|geforce|quadro|graphics device)\b", " ", model.lower())
    # Data centre products have one word of letters and digits; RTX cards need the whole name (rtx_a6000, rtx_4090).
    known = re.search(r"\b(?:gb?|gh)?(?:[abhlkvp]\d{1,3}[sgx]?|t4g?)\b", name)
    if known and "rtx" not in name:
        return known.group()
    return re.sub(r"[^a-z0-9.-]+", "_", name).strip("_.-")[:32].strip("_.-") or "unknown"


def from_reply(name: str, reply: object, recorded: datetime) -> Hardware:
    """Build the record of `name` from the output of the probe. Raises Malformed with the field."""
    if not isinstance(reply, Mapping):
        raise Malformed("hardware: expected an object")
    gpus = reply.get("gpus")
    if isinstance(gpus, list):
        gpus = [_typed(gpu) for gpu in gpus]
    stamp = recorded.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return decode(Hardware, {**reply, "gpus": gpus, "schema": SCHEMA, "name": name, "recorded": stamp})


def _typed(gpu: object) -> object:
    """Add the type to a GPU; leave invalid values to the readers."""
    if isinstance(gpu, Mapping) and isinstance(model := gpu.get("model"), str):
        return {**gpu, "type": gpu_type(printable(model))}
    return gpu


def path_of(directory: Path, name: str) -> Path:
    """Return the path of the record of node `name` in the cluster's directory."""
    return directory / DIRECTORY / f"{name}.json"


def _refuse(path: Path, message: str) -> InputError:
    rebuild = f"delete {path} and run `clusterctl bootstrap`: it records the node again"
    return InputError([Problem(None, str(path), message, rebuild)])


def load(path: Path) -> Hardware:
    """Read one record. Raises InputError with its path and how to rebuild it."""
    try:
        data = json.loads(files.read(path, inside=path.parent.parent))
        if isinstance(data, dict) and isinstance(schema := data.get("schema"), int) and schema > SCHEMA:
            raise _refuse(path, f"written by a newer clusterctl (schema {schema}, this one reads {SCHEMA})")
        record = decode(Hardware, data)
    except files.UnfitError as error:
        raise _refuse(path, str(error)) from None
    except (ValueError, RecursionError) as error:
        raise _refuse(path, f"not a hardware record: {error}") from None
    if record.name != path.stem:
        raise _refuse(path, f"the record of {record.name}, expected that of {path.stem}")
    return record


def load_all(directory: Path, read: Callable[[Path], Hardware] = load) -> dict[str, Hardware]:
    """Read all records of the cluster's directory, by node name, each by `read`.

    Raises one InputError with every invalid file.
    """
    records: dict[str, Hardware] = {}
    problems: list[object] = []
    try:
        found = files.listing(directory / DIRECTORY)
    except files.UnfitError as error:
        raise InputError([Problem(None, str(directory / DIRECTORY), str(error))]) from None
    for path in (path for path in found if path.suffix == ".json"):
        try:
            records[path.stem] = read(path)
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    return records


def written(record: Hardware) -> str:
    """Return the text of a record's file."""
    return json.dumps(asdict(record), indent=2) + "\n"


def save(directory: Path, record: Hardware) -> Path:
    """Write the record into the cluster's directory atomically, with mode 0644: it can be committed to git."""
    path = path_of(directory, record.name)
    path.parent.mkdir(mode=0o755, exist_ok=True)
    files.write_atomically(path, written(record).encode(), mode=0o644, replace=True)
    return path


def learned(record: Hardware, layouts: object) -> Hardware:
    """Return the record with the node's coming MIG layouts, by GPU index: `none`, or profiles.

    The layouts come from a node and are not trusted: invalid ones are ignored.
    """
    reported = layouts if isinstance(layouts, Mapping) else {}

    def divided(gpu: Gpu) -> Gpu:
        layout = reported.get(str(gpu.index))
        if layout == "none":
            return replace(gpu, mig=None)
        try:
            names = _INSTANCES(layout.split(","), "layout") if isinstance(layout, str) else ()
        except Malformed:
            return gpu
        return replace(gpu, mig=tuple(sorted(names))) if names else gpu

    return replace(record, gpus=tuple(map(divided, record.gpus)))


def renewed(record: Hardware, reality: Hardware) -> Hardware | None:
    """Return the record with the current MIG layouts, and with fields that an older clusterctl did not record.

    None if the record is up to date.
    """
    now = {gpu.uuid: gpu for gpu in reality.gpus if gpu.uuid}

    def seen(old: Gpu) -> Gpu:
        new = now.get(old.uuid, old)
        return replace(old, mig=new.mig, pcie_lanes=new.pcie_lanes if old.pcie_lanes is None else old.pcie_lanes)

    gpus = tuple(map(seen, record.gpus))
    return replace(record, gpus=gpus) if gpus != record.gpus else None


def compare(record: Hardware, reality: Hardware) -> list[str]:
    """Return a line for each difference between a node and its record.

    Without what changes in normal operation: addresses, kernel, driver, disks, MIG layouts.
    """
    differences = []

    def differ(what: str, recorded: Any, found: Any) -> None:
        if recorded != found:
            differences.append(f"{what}: recorded {recorded or 'none'}, found {found or 'none'}")

    differ("operating system", f"{record.os.id} {record.os.version}", f"{reality.os.id} {reality.os.version}")
    differ("architecture", record.os.architecture, reality.os.architecture)
    differ("CPUs", _shape(record.cpu), _shape(reality.cpu))
    if abs(reality.memory_mb - record.memory_mb) > MEMORY_TOLERANCE * record.memory_mb:
        differ("memory", f"{record.memory_mb} MB", f"{reality.memory_mb} MB")
    if len(record.gpus) != len(reality.gpus):
        differ("GPUs", len(record.gpus), len(reality.gpus))
        missing = {gpu.uuid: gpu for gpu in record.gpus}.keys() - {gpu.uuid for gpu in reality.gpus}
        differences += [
            f"GPU {gpu.index} ({gpu.model}, {gpu.pci}) is missing" for gpu in record.gpus if gpu.uuid in missing
        ]
    else:
        for old, new in zip(record.gpus, reality.gpus, strict=True):
            differ(f"GPU {old.index} model", old.model, new.model)
            differ(f"GPU {old.index} memory", f"{old.memory_mb} MB", f"{new.memory_mb} MB")
            differ(f"GPU {old.index} device", old.device, new.device)
            differ(f"GPU {old.index} UUID", old.uuid, new.uuid)
    differ("resolver", record.resolver, reality.resolver)
    differ("cgroup version", record.cgroup.version, reality.cgroup.version)
    differ(
        "cgroup controllers",
        ", ".join(sorted(record.cgroup.controllers)),
        ", ".join(sorted(reality.cgroup.controllers)),
    )
    return differences


def _shape(cpu: Cpu) -> str:
    return f"{cpu.cpus} ({cpu.sockets} x {cpu.cores_per_socket} cores x {cpu.threads_per_core} threads)"


def of_system(table: Mapping[str, str], node: Hardware) -> str | None:
    """Return a node's entry in a table by system: ubuntu-24.04, debian-13 or, for a family, redhat-9.6, redhat-9."""
    versions = node.os.version, node.os.version.split(".")[0]
    keys = [f"{system}-{version}" for system in (node.os.id, node.os.family.lower()) for version in versions]
    return next((table[key] for key in keys if key in table), None)
