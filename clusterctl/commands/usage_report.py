"""The usage of a period as data. None: not known, or the scheduler has no such number."""

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from clusterctl.util.period import Period


@dataclass(frozen=True)
class Group:
    """What a user, an account, a partition or a namespace used; `share` and `utilisation` are from 0 to 1.

    `share` is of the capacity, `idle_gpu_hours` are allocated GPUs that computed nothing. Waits are those of the jobs
    that began; `waiting` is the number of jobs that still wait. `energy_jobs` is the number of jobs in `energy_joules`.
    `gpu_energy_joules` is what GPUs used while they were allocated, without the rest of their nodes.
    """

    name: str
    gpu_hours: float
    share: float | None = None
    jobs: int | None = None
    cpu_hours: float | None = None
    node_hours: float | None = None
    wait_median_seconds: int | None = None
    wait_p95_seconds: int | None = None
    waiting: int | None = None
    energy_joules: float | None = None
    energy_jobs: int | None = None
    gpu_energy_joules: float | None = None
    utilisation: float | None = None
    idle_gpu_hours: float | None = None


@dataclass(frozen=True)
class Day:
    """One day of UTC: the GPU-hours that were allocated, and how busy all measured GPUs were."""

    day: str
    gpu_hours: float
    utilisation: float | None


@dataclass(frozen=True)
class Node:
    """How busy a node's GPUs were, and the GPU-hours in which they were allocated and idle."""

    name: str
    utilisation: float
    idle_gpu_hours: float | None


@dataclass(frozen=True)
class Report:
    """The usage of one scheduler.

    `total.utilisation` is that of all measured GPUs, allocated or not, over `measured_gpu_hours`. The idle GPU-hours
    are a part of `idle_of_gpu_hours`, the allocated GPU-hours of which it is known whether they were idle.
    """

    scheduler: str
    by: str
    gpus: int
    capacity_gpu_hours: float
    groups: tuple[Group, ...]
    total: Group
    days: tuple[Day, ...]
    nodes: tuple[Node, ...] = ()
    measured_gpu_hours: float | None = None
    idle_of_gpu_hours: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Usage:
    """The usage of a cluster in a period, by scheduler."""

    cluster: str
    period: Period
    reports: tuple[Report, ...]
    exit_code: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return what `--output json` prints."""
        since, until = (
            f"{datetime.fromtimestamp(time, UTC):%Y-%m-%dT%H:%M:%SZ}" for time in (self.period.since, self.period.until)
        )
        return {
            "cluster": self.cluster,
            "exit_code": self.exit_code,
            "since": since,
            "until": until,
            "hours": self.period.hours,
            "reports": [asdict(report) for report in self.reports],
        }
