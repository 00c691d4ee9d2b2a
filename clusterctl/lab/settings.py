"""The settings of a lab, and the state of its nodes."""

from collections.abc import Sequence
from dataclasses import dataclass

from clusterctl.lab import image


@dataclass(frozen=True)
class Settings:
    """The settings of a lab; stored in its directory, so that `up` without options keeps them."""

    name: str
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


@dataclass(frozen=True)
class Node:
    """One container of a lab."""

    name: str
    address: str
    distribution: image.Distribution
    gpus: int


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
