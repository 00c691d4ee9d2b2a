"""The settings of a lab, and the state of its nodes."""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from clusterctl.lab import image

# Places in the lab's network. Further heads are below the first one, because workers are above it.
_FIRST_HOST, _API = 10, 250
SHARED = "/shared"
"""Where two heads of Slurm have the same directory."""


class Scheduler(StrEnum):
    """What a lab's cluster schedules work with."""

    slurm = "slurm"
    kubernetes = "kubernetes"


@dataclass(frozen=True)
class Settings:
    """The settings of a lab; stored in its directory, so that `up` without options keeps them."""

    name: str
    scheduler: str = Scheduler.slurm.value
    heads: int = 1
    os: str = "debian-13"
    worker_os: str = ""  # of workers; empty: as `os`
    workers: int = 2
    gpus: int = 4
    gpu_model: str = "a100-sxm4-80gb"
    cgroups: int = 2  # version
    mirror: str = image.DEBIAN_MIRROR
    kit: bool = False  # whether its inventory points at the kit
    recipes: Sequence[str] = ()  # of the kit; empty: all
    subnet: str = ""

    @property
    def api_address(self) -> str:
        """The address of Kubernetes' API in a lab of several heads, which none of them has for itself."""
        return str(ipaddress.ip_network(self.subnet)[_API])

    def nodes(self) -> list["Node"]:
        """Return the nodes that these settings describe, heads first."""
        network = ipaddress.ip_network(self.subnet)
        head, worker = image.choose(self.os), image.choose(self.worker_os or self.os)
        heads = [
            Node(f"head{number + 1}", str(network[_FIRST_HOST - number]), head, 0, is_head=True)
            for number in range(self.heads)
        ]
        workers = [
            Node(f"gpu{number:02}", str(network[_FIRST_HOST + number]), worker, self.gpus)
            for number in range(1, self.workers + 1)
        ]
        return heads + workers


@dataclass(frozen=True)
class Node:
    """One container of a lab."""

    name: str
    address: str
    distribution: image.Distribution
    gpus: int
    is_head: bool = False


@dataclass(frozen=True)
class NodeStatus:
    """One node in the output of `lab status`."""

    name: str
    address: str
    state: str  # running, stopped, missing
    os: str
    gpus: str


def gpu_models() -> list[str]:
    """Return the names of the GPU models that can be simulated."""
    return sorted(path.stem for path in (image.HERE / "nvml" / "profiles").iterdir() if path.is_file())
