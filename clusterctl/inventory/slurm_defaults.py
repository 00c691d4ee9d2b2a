"""What Slurm gives to jobs that ask for nothing, computed from the workers' records, and which records count for it.

One record that is far from the others, wrong or forged, must not set the defaults of every job in the cluster:
DefMemPerCPU=0 is no limit at all, and a default of some MB ends each job that names no memory.
"""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

Record = Mapping[str, Any]
"""A hardware record as plain mappings and lists (dataclasses.asdict of hardware.Hardware)."""

# A record counts if it is within this factor of the median. Servers of one cluster have 2 to 16 GB for each CPU.
FAR = 8
# Below this no server is: one of 96 GB with 288 threads has 341.
LEAST_MB_PER_CPU = 256
# Fewer cores than GPUs give a job no core for its GPU.
LEAST_CPUS_PER_GPU = 1


def real_memory(record: Record) -> int:
    """Return the memory (MB) that Slurm may give to jobs, never 0.

    A node that reports less than its configuration says is ``invalid`` and takes no job, and the same node reports
    a few MB less after a kernel update: 2 % and at least 512 MB stay outside, but never more than half.
    """
    total = int(record["memory_mb"])
    return max(total - max(512, total // 50), total // 2, 1)


def units(record: Record) -> list[str]:
    """Return the type of each GPU that a job can ask for: of one that MIG divides, its instances' profiles instead."""
    return [kind for gpu in record["gpus"] for kind in ([gpu["type"]] if gpu["mig"] is None else gpu["mig"])]


def mb_per_cpu(record: Record) -> float:
    """Return the memory (MB) that a node can give to each of its CPUs."""
    return real_memory(record) / int(record["cpu"]["cpus"])


def cpus_per_gpu(record: Record) -> float:
    """Return the CPUs that a node with GPUs can give to each of them."""
    return int(record["cpu"]["cpus"]) / len(units(record))


def bounds(values: Sequence[float], least: float) -> tuple[float, float]:
    """Return the least and the most that counts among some values, of which there must be one.

    What is below `least` counts only where all are. Of two that are far apart the lower one is the usual one: a default
    that is too low for one node is too high for none.
    """
    likely = [value for value in values if value >= least]
    middle = statistics.median_low(likely or values)
    return max(middle / FAR, least if likely else 0), middle * FAR


def whole_cpus_per_gpu(record: Record) -> int:
    """Return the CPUs in whole cores that a node can give to each GPU, or all where a GPU has less than a core.

    With CR_Core a job gets whole cores. Of 128 CPUs, two to a core, each of six GPUs would have 21: jobs get 22, and
    the last GPU finds no core.
    """
    cpus, threads = int(record["cpu"]["cpus"]) // len(units(record)), int(record["cpu"]["threads_per_core"])
    return cpus // threads * threads or cpus


def memory_per_cpu(records: Iterable[Record]) -> int:
    """Return the memory (MB, at least 1) per CPU that every usual node has for each CPU; 0 where there is no node."""
    if not (values := [mb_per_cpu(one) for one in records]):
        return 0
    low, _ = bounds(values, LEAST_MB_PER_CPU)
    return max(1, int(min(value for value in values if value >= low)))


def share(records: Iterable[Record]) -> tuple[int, float, float] | None:
    """Return the share of a GPU: whole CPUs that every usual node has for it, and the median CPUs for a GPU and a GB.

    None where no node has a GPU. A node that is unusual in its CPUs or its memory counts for neither.
    """
    if not (able := [(cpus_per_gpu(one), mb_per_cpu(one), whole_cpus_per_gpu(one)) for one in records if units(one)]):
        return None
    few, many = bounds([cpus for cpus, *_ in able], LEAST_CPUS_PER_GPU)
    little, much = bounds([memory for _, memory, _ in able], LEAST_MB_PER_CPU)
    usual = [one for one in able if few <= one[0] <= many and little <= one[1] <= much] or able
    cpus, memory, whole = zip(*usual, strict=True)
    return min(whole), statistics.median(cpus), 1024 / statistics.median(memory)


def low_memory(records: Mapping[str, Record]) -> Iterator[tuple[str, str]]:
    """Yield the nodes that have too little memory per CPU to count, each with what it has."""
    for name, value, usual in _low({name: mb_per_cpu(one) for name, one in records.items()}, LEAST_MB_PER_CPU):
        yield name, f"has {int(value)} MB of memory per CPU, and most workers have {int(usual)} MB"


def few_cpus(records: Mapping[str, Record]) -> Iterator[tuple[str, str]]:
    """Yield the nodes that have too few CPUs per GPU to count, each with what it has."""
    found = {name: cpus_per_gpu(one) for name, one in records.items() if units(one)}
    for name, value, usual in _low(found, LEAST_CPUS_PER_GPU):
        yield name, f"has {value:.2g} CPUs per GPU, and most workers have {usual:.2g}"


def _low(values: Mapping[str, float], least: float) -> Iterator[tuple[str, float, float]]:
    if values:
        low, high = bounds(list(values.values()), least)
        yield from ((name, value, high / FAR) for name, value in values.items() if value < low)
