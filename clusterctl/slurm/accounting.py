"""Read Slurm's accounting on the head, and sum up what jobs used in a period.

sacct is asked day by day: its memory, and this program's, depend on the jobs of one day. The names in its output are
from users' administrators and are not trusted: they are cut, and control characters are removed.
"""

import math
from array import array
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple

from clusterctl.nodes.head_commands import HeadCommands
from clusterctl.util.errors import HeadFailed
from clusterctl.util.period import Period
from clusterctl.util.text import printable

# Fields and options that Slurm has from 22.05 on: https://slurm.schedmd.com/archive/slurm-22.05.11/sacct.html
FIELDS = ("User", "Account", "Partition", "State", "Eligible", "Start", "End", "AllocTRES", "ConsumedEnergyRaw")
_SACCT = (
    "sacct",
    "--allusers",
    "--allocations",
    "--duplicates",  # each attempt of a requeued job
    "--noheader",
    "--parsable2",
    f"--format={','.join(FIELDS)}",
)
# sacct reads and prints local time, and %s the seconds since 1970.
_ENVIRONMENT = ("LC_ALL=C", "TZ=UTC0", "SLURM_TIME_FORMAT=%s")
_NO_SUCH_COMMAND = 127
# Slurm's values for "not set": NO_VAL and INFINITE with 32 and 64 bits (slurm/slurm.h). A job whose energy is not
# measured has 0 or one of them.
_NOT_SET = frozenset({0, 2**32 - 2, 2**32 - 1, 2**64 - 2, 2**64 - 1})
BY = ("user", "account", "partition")
_UNNAMED = "-"  # the user of a deleted account


class Job(NamedTuple):
    """One attempt of a job. Times in seconds since 1970, energy in J; None: unknown, or not yet."""

    user: str
    account: str
    partition: str
    state: str
    eligible: int | None
    start: int | None
    end: int | None
    gpus: int
    cpus: int
    nodes: int
    joules: int | None

    @property
    def is_waiting(self) -> bool:
        return self.state == "PENDING"

    @property
    def wait(self) -> int | None:
        """The seconds from when it could run until it ran."""
        return None if self.start is None or self.eligible is None else max(0, self.start - self.eligible)


def parse(line: str) -> Job:
    """Return the job in a line of sacct's output. Raises ValueError for another line."""
    values = line.split("|")
    if len(values) != len(FIELDS):
        raise ValueError("not a line of sacct")
    user, account, partition, state, eligible, start, end, tres, energy = values
    user, account, partition = (printable(name, 64) or _UNNAMED for name in (user, account, partition))
    times = _time(eligible), _time(start), _time(end)
    return Job(user, account, partition, state, *times, *_allocated(tres), _joules(energy))


def _time(text: str) -> int | None:
    """Return a time; it is Unknown or None for what has not happened."""
    return int(text) if text.isdecimal() else None


def _joules(text: str) -> int | None:
    value = int(text) if text.isdecimal() else 0
    return None if value in _NOT_SET else value


@lru_cache(1 << 14)
def _allocated(tres: str) -> tuple[int, int, int]:
    """Return the GPUs, CPUs and nodes in AllocTRES, such as `cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=64G,node=1`.

    `gres/gpu` counts all GPUs. A site that accounts only types has no such entry.
    """
    amounts = {
        name: int(value) for name, _, value in (one.partition("=") for one in tres.split(",")) if value.isdecimal()
    }
    typed = sum(value for name, value in amounts.items() if name.startswith("gres/gpu:"))
    return amounts.get("gres/gpu", typed), amounts.get("cpu", 0), amounts.get("node", 0)


@dataclass
class Sums:
    """What the jobs of a group used. Only the part of a job in the period counts."""

    jobs: int = 0
    waiting: int = 0
    gpu_seconds: int = 0
    cpu_seconds: int = 0
    node_seconds: int = 0
    joules: float = 0.0
    measured: int = 0
    """The number of jobs whose energy is known."""
    waits: "array[int]" = field(default_factory=lambda: array("Q"))
    """The seconds that the jobs waited that began in the period."""

    def wait(self, share: float) -> int | None:
        """Return the time within which this share of the jobs began to run; None without jobs."""
        return sorted(self.waits)[math.ceil(share * len(self.waits)) - 1] if self.waits else None


class Tally:
    """The sums of a period, by user, account or partition; GPU-seconds also by day."""

    def __init__(self, period: Period, by: str) -> None:
        self.period, self.by = period, by
        self.groups: dict[str, Sums] = defaultdict(Sums)
        self.total = Sums()
        self.days: dict[str, int] = {}
        self.unreadable = 0
        """The number of lines that are none of sacct's."""

    def add(self, part: Period, output: str) -> None:
        """Add what sacct printed for a part of the period."""
        self.days.setdefault(part.day, 0)
        for line in output.split("\n"):
            if not line:
                continue
            try:
                job = parse(line)
            except ValueError:
                self.unreadable += 1
            else:
                for sums in (self.groups[getattr(job, self.by)], self.total) if self._counts(job, part) else ():
                    self._add(sums, job, part)

    def _counts(self, job: Job, part: Period) -> bool:
        """Return whether a job waits now, or ran in this part. One that was cancelled before has no nodes."""
        if job.is_waiting:
            return part.until == self.period.until
        if job.start is None or not job.nodes:
            return False
        return part.since <= job.start < part.until or part.overlap(job.start, self._end(job)) > 0

    def _end(self, job: Job) -> int:
        return self.period.until if job.end is None else job.end

    def _add(self, sums: Sums, job: Job, part: Period) -> None:
        if job.is_waiting or job.start is None:
            sums.waiting += 1
            return
        end = self._end(job)
        seconds = part.overlap(job.start, end)
        sums.gpu_seconds += seconds * job.gpus
        sums.cpu_seconds += seconds * job.cpus
        sums.node_seconds += seconds * job.nodes
        if sums is self.total:
            self.days[part.day] += seconds * job.gpus
        if job.joules is not None and end > job.start:
            sums.joules += job.joules * seconds / (end - job.start)
        if not part.since <= max(job.start, self.period.since) < part.until:
            return  # counted in an earlier part
        sums.jobs += 1
        sums.measured += job.joules is not None
        if job.wait is not None and job.start >= self.period.since:
            sums.waits.append(job.wait)


class Accounting(HeadCommands):
    """sacct on the head."""

    seconds = 120.0  # for the jobs of one day
    limit = 128 << 20  # bytes; a million jobs in one day

    def tally(self, period: Period, by: str) -> Tally:
        """Return the sums of a period. Raises HeadFailed."""
        tally = Tally(period, by)
        for part in period.days():
            tally.add(part, self._jobs(part))
        return tally

    def _jobs(self, part: Period) -> str:
        first, last = (f"{datetime.fromtimestamp(time, UTC):%Y-%m-%dT%H:%M:%S}" for time in (part.since, part.until))
        status, out, err = self._try("env", *_ENVIRONMENT, *_SACCT, f"--starttime={first}", f"--endtime={last}")
        if status:
            raise HeadFailed(f"{self._name}: {_problem(status, err)}")
        return out


def _problem(status: int, err: str) -> str:
    """Return why sacct failed: its first line has the cause, and `env` reports a missing program."""
    line = next((printable(line, 200) for line in err.splitlines() if line.strip()), "")
    if status == _NO_SUCH_COMMAND:
        return "Slurm is not installed on the head yet: run clusterctl bootstrap"
    if "accounting storage is disabled" in err.lower():
        return "Slurm keeps no accounting: AccountingStorageType in slurm_head_conf_extra disables it"
    return f"sacct failed with exit code {status}: {line} (is slurmdbd running? clusterctl status)"
