"""Which workers are reported as too far below the others to count for the defaults that jobs get."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterctl.inventory import slurm_defaults
from clusterctl.slurm import checks
from clusterctl.workspace.hardware import Hardware

from .ssh_server import host, inventory
from .test_hardware import gpu
from .test_preflight import facts

OWN = {"name": "small", "nodes": ["gpu04"], "options": {"defmempercpu": 4, "DefCpuPerGPU": 1}}
LITTLE = "has 4 MB of memory per CPU, and most workers have 3942 MB: DefMemPerCPU ignores this node"
FEW = "has 0.25 CPUs per GPU, and most workers have 32: DefCpuPerGPU ignores this node"


def cluster(tmp_path: Path, **variables: Any) -> Any:
    """Return a head with these variables and four workers."""
    hosts = [host(22, None, "head1", "slurm_head"), *(host(22, None, f"gpu0{number}") for number in (1, 2, 3, 4))]
    return inventory(tmp_path, replace(hosts[0], variables=variables), *hosts[1:])


def worker(name: str, memory_mb: int = 515_000, cpus: int = 128, gpus: int = 4) -> Hardware:
    def has(data: dict[str, Any]) -> None:
        cpu = {"sockets": 1, "cores_per_socket": cpus, "threads_per_core": 1, "cpus": cpus}
        data["hardware"].update(
            memory_mb=memory_mb,
            cpu=data["hardware"]["cpu"] | cpu,
            gpus=[{**gpu(number), "links": {}} for number in range(gpus)],
        )

    return facts(has, name).hardware


USUAL = {name: worker(name) for name in ("gpu01", "gpu02", "gpu03")}


@pytest.mark.proves("preflight", "A worker whose record is far below the others' is reported.")
@pytest.mark.parametrize(
    ("odd", "variables", "found"),
    [
        (worker("gpu04"), {}, []),
        (worker("gpu04", memory_mb=65_000), {}, []),
        (worker("gpu04", memory_mb=1 << 28), {}, []),
        (worker("gpu04", memory_mb=1024), {}, [LITTLE]),
        (worker("gpu04", memory_mb=16, cpus=1, gpus=0), {}, [LITTLE.replace("4 MB", "8 MB", 1)]),
        (worker("gpu04", memory_mb=4096, cpus=1), {}, [FEW]),
        (worker("gpu04", memory_mb=4096, cpus=1), {"slurm_head_gpu_share": False}, []),
        (worker("gpu04", memory_mb=4096, cpus=1, gpus=0), {}, []),
        (worker("gpu04", memory_mb=1024), {"slurm_head_conf_extra": {"DefMemPerCPU": 100}}, []),
        (worker("gpu04", memory_mb=1024), {"slurm_head_partitions": [OWN]}, []),
        (worker("gpu04", memory_mb=1024), {"slurm_head_partitions": [OWN, {"name": "all"}]}, [LITTLE]),
        (worker("gpu04", memory_mb=1024), {"slurm_head_partitions": [{"name": "a", "gpu": "a100"}]}, [LITTLE]),
        (worker("gpu04", memory_mb=1024), {"slurm_head_partitions": [{"name": "h", "gpu": ["h100"]}]}, []),
    ],
)
def test_slurm_defaults__worker_far_below_the_others__is_reported(
    tmp_path: Path, odd: Hardware, variables: dict[str, Any], found: list[str]
) -> None:
    findings = list(checks.job_defaults(cluster(tmp_path, **variables), {**USUAL, "gpu04": odd}))
    assert [(one.node, one.found, one.warning) for one in findings] == [("gpu04", text, True) for text in found]
    assert all("slurm_head_partitions, or correct hardware/gpu04.json" in one.hint for one in findings)


@pytest.mark.proves("preflight", "A partition of GPUs that no worker has is reported, with the types there are.")
@pytest.mark.parametrize(
    ("partition", "found"),
    [
        ({"gpu": "a100"}, []),
        ({"gpu": "A100", "nodes": ["gpu02"]}, []),
        ({}, []),
        ({"gpu": []}, []),
        ({"gpu": "a10"}, ["a10, they have a100; the partition is left out"]),
        ({"gpu": ["a100", "h100"]}, ["h100, they have a100"]),
        ({"gpu": "a100", "nodes": ["gpu04"]}, ["a100; the partition is left out"]),
    ],
)
def test_partition_gpus__of_an_unknown_type__are_reported(
    tmp_path: Path, partition: dict[str, Any], found: list[str]
) -> None:
    given = cluster(tmp_path, slurm_head_partitions=[{"name": "p", **partition}])
    findings = list(checks.partition_gpus(given, {**USUAL, "gpu04": worker("gpu04", gpus=0)}))
    begin = "partition p: none of its workers has a GPU of type "
    assert [(one.node, one.found, one.warning) for one in findings] == [("head1", begin + text, True) for text in found]


def test_slurm_defaults__no_worker_is_known__reports_nothing(tmp_path: Path) -> None:
    assert list(checks.job_defaults(cluster(tmp_path), {})) == []


def test_bounds__one_value__is_within_them() -> None:
    low, high = slurm_defaults.bounds([4000], 256)
    assert low <= 4000 <= high
    assert slurm_defaults.bounds([0, 0], 1)[0] == 0
