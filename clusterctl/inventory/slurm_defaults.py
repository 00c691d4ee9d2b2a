"""Compute Slurm's default limits of jobs from the workers' records.

One record that differs much from the others, wrong or forged, must not set the defaults of all jobs in the cluster:
DefMemPerCPU=0 is no limit, and a default of a few MB ends each job without a memory request.
"""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

Record = Mapping[str, Any]
"""A hardware record as mappings and lists (dataclasses.asdict of hardware.Hardware)."""

# A record is used if it is within this factor of the median. Servers of one cluster have 2 to 16 GB for each CPU.
FAR = 8
# No server has less: 96 GB with 288 threads are 341 MB for each CPU.
LEAST_MB_PER_CPU = 256
# With fewer CPUs than GPUs, a job has no CPU for its GPU.
LEAST_CPUS_PER_GPU = 1


def real_memory(record: Record) -> int:
    """Return the memory (MB) that Slurm may give to jobs, never 0.

    A node that reports less than its configuration is ``invalid`` and runs no job, and a node reports a few MB less
    after a kernel update. So 2 %, at least 512 MB, are reserved, but never more than half.
    """
    total = int(record["memory_mb"])
    return max(total - max(512, total // 50), total // 2, 1)


def units(record: Record) -> list[str]:
    """Return the type of each GPU that a job can request; for a GPU with MIG, the profiles of its instances."""
    return [kind for gpu in record["gpus"] for kind in ([gpu["type"]] if gpu["mig"] is None else gpu["mig"])]


def has_gpu(record: Record, types: str | Iterable[str]) -> bool:
    """Return whether a node has a GPU, or an instance of one, of one of these types; always for no types."""
    wanted = {one.lower() for one in ([types] if isinstance(types, str) else types)}
    return not wanted or not wanted.isdisjoint(kind.lower() for kind in units(record))


def mb_per_cpu(record: Record) -> float:
    """Return a node's memory (MB) for each CPU."""
    return real_memory(record) / int(record["cpu"]["cpus"])


def cpus_per_gpu(record: Record) -> float:
    """Return a node's CPUs for each GPU; it must have GPUs."""
    return int(record["cpu"]["cpus"]) / len(units(record))


def bounds(values: Sequence[float], least: float) -> tuple[float, float]:
    """Return the lowest and highest usable value; `values` must not be empty.

    Values below `least` are used only if all are below. The median of two values is the lower one: a default that is
    too low for one node is not too high for any.
    """
    likely = [value for value in values if value >= least]
    middle = statistics.median_low(likely or values)
    return max(middle / FAR, least if likely else 0), middle * FAR


def whole_cpus_per_gpu(record: Record) -> int:
    """Return a node's CPUs for each GPU, rounded down to whole cores unless that is less than a core.

    With CR_Core a job gets whole cores. With 128 CPUs, two per core, and six GPUs, each GPU would have 21 CPUs: jobs
    get 22, and no core is left for the last GPU.
    """
    cpus, threads = int(record["cpu"]["cpus"]) // len(units(record)), int(record["cpu"]["threads_per_core"])
    return cpus // threads * threads or cpus


def memory_per_cpu(records: Iterable[Record]) -> int:
    """Return the memory (MB, at least 1) that every usual node has for each CPU; 0 if there is no node."""
    if not (values := [mb_per_cpu(one) for one in records]):
        return 0
    low, _ = bounds(values, LEAST_MB_PER_CPU)
    return max(1, int(min(value for value in values if value >= low)))


def share(records: Iterable[Record]) -> tuple[int, float, float] | None:
    """Return a GPU's share: the whole CPUs that every usual node has for it, and the median CPUs for a GPU and a GB.

    None if no node has a GPU. A node with unusual CPUs or memory is not used for either.
    """
    if not (able := [(cpus_per_gpu(one), mb_per_cpu(one), whole_cpus_per_gpu(one)) for one in records if units(one)]):
        return None
    few, many = bounds([cpus for cpus, *_ in able], LEAST_CPUS_PER_GPU)
    little, much = bounds([memory for _, memory, _ in able], LEAST_MB_PER_CPU)
    usual = [one for one in able if few <= one[0] <= many and little <= one[1] <= much] or able
    cpus, memory, whole = zip(*usual, strict=True)
    return min(whole), statistics.median(cpus), 1024 / statistics.median(memory)


def low_memory(records: Mapping[str, Record]) -> Iterator[tuple[str, str]]:
    """Yield the nodes whose memory per CPU is too low to be used, with a description."""
    for name, value, usual in _low({name: mb_per_cpu(one) for name, one in records.items()}, LEAST_MB_PER_CPU):
        yield name, f"has {int(value)} MB of memory per CPU, and most workers have {int(usual)} MB"


def few_cpus(records: Mapping[str, Record]) -> Iterator[tuple[str, str]]:
    """Yield the nodes whose CPUs per GPU are too few to be used, with a description."""
    found = {name: cpus_per_gpu(one) for name, one in records.items() if units(one)}
    for name, value, usual in _low(found, LEAST_CPUS_PER_GPU):
        yield name, f"has {value:.2g} CPUs per GPU, and most workers have {usual:.2g}"


def _low(values: Mapping[str, float], least: float) -> Iterator[tuple[str, float, float]]:
    if values:
        low, high = bounds(list(values.values()), least)
        yield from ((name, value, high / FAR) for name, value in values.items() if value < low)
