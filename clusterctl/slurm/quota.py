"""Read the shares, limits and use of Slurm's accounts, and what their jobs wait for, on the head.

slurmctld has the numbers that its limits are compared with: `scontrol show assoc_mgr`. Its output has the same fields
in the releases from 22.05 to 26.05, except that later ones have `Lineage` instead of `Lft`, and `Comment` at the end
(src/scontrol/info_assoc_mgr.c of github.com/SchedMD/slurm). Names in it are not trusted.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from clusterctl.nodes.head_commands import HeadCommands
from clusterctl.util.errors import HeadFailed
from clusterctl.util.text import plural, printable

ROOT = "root"
ASSOCIATIONS = ("scontrol", "--oneliner", "show", "assoc_mgr", "flags=assoc")
# Account, user, QOS, state and reason. The name of a job may contain anything, and is not read. Each task of an array
# is a job, as in Slurm's limits.
JOBS = (
    "squeue",
    "--all",
    "--array",
    "--noheader",
    "--states=PENDING,RUNNING,SUSPENDED",
    "--format=%a|%u|%q|%T|%r",
)
# Source: job_state_string in src/common; the flags of a job that runs or is suspended have these names.
_RUNNING = {"RUNNING", "SUSPENDED", "STOPPED", "CONFIGURING", "COMPLETING", "RESIZING", "SIGNALING", "STAGE_OUT"}
_USES_PARENT = 0x7FFFFFFF  # SLURMDB_FS_USE_PARENT: the account has no share of its own
_MOST_NAME, _MOST_REASON = 64, 80  # characters
_LINE = re.compile(
    r"ClusterName=.*? Account=(?P<account>.*?) UserName=(?P<user>.*?)(?:\(\d+\))? Partition=(?P<partition>.*?) "
    r"Priority=\d+ ID=\d+ SharesRaw/Norm/Level/Factor=(?P<shares>\d+)/[^/]*/(?P<level>\d+)/\S* "
    r"UsageRaw/Norm/Efctv=(?P<usage>\d+(?:\.\d+)?)/\S+ ParentAccount=(?P<parent>.*?)(?:\(\d+\))? "
    r"(?:Lft|Lineage)=.*? DefAssoc=(?:Yes|No) (?P<limits>GrpJobs=.*?)(?: Comment=.*)?"
)
_LIMIT = re.compile(r"(?P<most>\d+|N)(?:\((?P<used>\d+)(?:\.\d+)?\))?")


class Limit(NamedTuple):
    """A limit of an association, and what is used of it; None: no limit, or not counted."""

    most: int | None
    used: int | None = None


@dataclass(frozen=True)
class Association:
    """An account, or a user in one. `usage` decays with time; its unit is billing-seconds.

    `limits` are by Slurm's name and the resource: `GrpJobs`, `GrpTRES:gres/gpu`. A group limit counts the jobs of the
    accounts below. Other limits are those that apply, also if they are inherited from a parent.
    """

    account: str
    user: str
    partition: str
    parent: str
    shares: int | None
    level_shares: int
    usage: float
    limits: Mapping[str, Limit] = field(default_factory=dict)


class Job(NamedTuple):
    """A job that runs or waits."""

    account: str
    user: str
    qos: str
    is_running: bool
    reason: str


@dataclass(frozen=True)
class State:
    """What slurmctld has of associations and jobs; `unreadable` is the number of lines in another form."""

    associations: tuple[Association, ...]
    jobs: Mapping[Job, int]
    unreadable: int = 0


def parse_associations(output: str) -> Iterator[Association | None]:
    """Yield the associations that scontrol printed, None for a line in another form."""
    for line in output.split("\n"):
        if not line.startswith("ClusterName="):
            continue
        if not (match := _LINE.fullmatch(line)):
            yield None
            continue
        shares = int(match["shares"])
        yield Association(
            account=printable(match["account"], _MOST_NAME),
            user=printable(match["user"], _MOST_NAME),
            partition=printable(match["partition"], _MOST_NAME),
            parent=printable(match["parent"], _MOST_NAME),
            shares=None if shares == _USES_PARENT else shares,
            level_shares=int(match["level"]),
            usage=float(match["usage"]),
            limits=dict(_limits(match["limits"])),
        )


def _limits(text: str) -> Iterator[tuple[str, Limit]]:
    for word in text.split(" "):
        name, _, value = word.partition("=")
        # One value, or one for each resource: `GrpJobs=N(3)`, `GrpTRES=cpu=N(24),gres/gpu=12(8)`.
        for part in value.split(","):
            resource, _, number = part.rpartition("=")
            if match := _LIMIT.fullmatch(number):
                most = None if match["most"] == "N" else int(match["most"])
                used = None if match["used"] is None else int(match["used"])
                yield f"{name}:{printable(resource, _MOST_NAME)}" if resource else name, Limit(most, used)


def parse_jobs(output: str) -> Iterator[Job | None]:
    """Yield the jobs that squeue printed, None for a line in another form."""
    for line in output.split("\n"):
        if not line:
            continue
        words = line.split("|", 4)
        if len(words) < 5 or not words[3].isupper():
            yield None
            continue
        account, user, qos = (printable(word, _MOST_NAME) for word in words[:3])
        if words[3] in _RUNNING:
            yield Job(account, user, qos, is_running=True, reason="")
            continue
        # The reason may be a description: "ReqNodeNotAvail, UnavailableNodes:gpu[01-02]".
        reason = printable(words[4].partition(",")[0].replace("_", " "), _MOST_REASON)
        yield Job(account, user, qos, is_running=False, reason=reason)


class QuotaReader(HeadCommands):
    """slurmctld's associations and queue, and slurmdbd's accounts and QOS."""

    seconds = 120.0
    limit = 64 << 20  # bytes; half a million jobs

    def state(self) -> State:
        """Return the associations and jobs. Raises HeadFailed."""
        found = [*parse_associations(self._read(*ASSOCIATIONS))]
        jobs = Counter(parse_jobs(self._read(*JOBS)))
        if not (known := tuple(one for one in found if one)):
            raise HeadFailed(
                f"{self._name}: slurmctld has no accounts (is slurmdbd running? clusterctl status); "
                "AccountingStorageType in slurm_head_conf_extra can disable accounting"
            )
        unreadable = len(found) - len(known) + jobs[None]
        return State(known, {job: count for job, count in jobs.items() if job}, unreadable)

    def sacctmgr(self, *words: str) -> str:
        """Return what `sacctmgr show` prints. Raises HeadFailed."""
        return self._read("sacctmgr", "--immediate", "--noheader", "--parsable2", "show", *words)

    def _read(self, *argv: str) -> str:
        status, out, err = self._try("env", "LC_ALL=C", *argv)
        if status == 127:
            raise HeadFailed(f"{self._name}: Slurm is not installed on the head yet: run clusterctl bootstrap")
        if status:
            line = next((printable(line, 200) for line in (err or out).splitlines() if line.strip()), "")
            hint = "is slurmdbd running?" if argv[0] == "sacctmgr" else "is slurmctld running?"
            raise HeadFailed(
                f"{self._name}: {argv[0]} failed with exit code {status}: {line} ({hint} clusterctl status)"
            )
        return out


# --- reasons ----------------------------------------------------------------------------------------------------------

EXPLANATIONS = {
    "BadConstraints": "no node can run it",
    "BeginTime": "begins later, as requested",
    "Dependency": "waits for another job",
    "DependencyNeverSatisfied": "the job that it depends on failed; delete it: scancel",
    "InvalidAccount": "its account or user was deleted in Slurm",
    "InvalidQOS": "its QOS was deleted, or is not permitted",
    "JobArrayTaskLimit": "the array's own limit of tasks",
    "JobHeldAdmin": "held by an administrator: scontrol release",
    "JobHeldUser": "held by its user: scontrol release",
    "JobHoldMaxRequeue": "requeued too often: scontrol release",
    "Licenses": "no license is free",
    "None": "not evaluated yet",
    "PartitionConfig": "its partition does not permit it",
    "PartitionDown": "its partition starts no jobs",
    "PartitionInactive": "its partition starts no jobs",
    "PartitionNodeLimit": "a limit of its partition, or too few nodes in service",
    "PartitionTimeLimit": "over the time limit of its partition",
    "Priority": "behind jobs with a higher priority",
    "ReqNodeNotAvail": "a node that it needs is down, drained or reserved",
    "Reservation": "its reservation has not begun",
    "Resources": "next in its partition; waits for free resources",
}
_SINGLE = {
    "AssocGrpJobsLimit": "GrpJobs",
    "AssocGrpSubmitJobsLimit": "GrpSubmitJobs",
    "AssocGrpWallLimit": "GrpWall",
    "AssocMaxJobsLimit": "MaxJobs",
    "AssocMaxSubmitJobLimit": "MaxSubmitJobs",
    "AssocMaxWallDurationPerJobLimit": "MaxWallPJ",
}
# Source: job_state_reason_string in src/common/slurm_protocol_defs.c, from 24.05 in job_state_reason.c.
_OF_RESOURCE = re.compile(
    r"Assoc(?P<scope>Grp|Max)(?P<what>Cpu|CPU|Mem|Node|GRES|Energy|License|BB|Billing)"
    r"(?P<kind>Minutes|RunMinutes|PerJob|PerNode|MinutesPerJob|)(?:Limit)?"
)
_KINDS = {
    ("Grp", ""): "GrpTRES",
    ("Grp", "Minutes"): "GrpTRESMins",
    ("Grp", "RunMinutes"): "GrpTRESRunMins",
    ("Max", "PerJob"): "MaxTRESPJ",
    ("Max", "PerNode"): "MaxTRESPN",
    ("Max", "MinutesPerJob"): "MaxTRESMinsPJ",
}
_RESOURCES = {"CPU": "cpu", "Cpu": "cpu", "GRES": "gres/", "License": "license/", "BB": "bb/"}
_NOUNS = {
    "GrpJobs": "running job",
    "GrpSubmitJobs": "job",
    "GrpWall": "minute",
    "MaxJobs": "running job",
    "MaxSubmitJobs": "job",
    "MaxWallPJ": "minute",
}
_UNITS = {
    "GrpWall": "{} of jobs",
    "MaxJobs": "{} of a user",
    "MaxSubmitJobs": "{} of a user",
    "MaxWallPJ": "{} per job",
    "GrpTRESMins": "{}-minutes",
    "GrpTRESRunMins": "{}-minutes of running jobs",
    "MaxTRESPJ": "{} per job",
    "MaxTRESPN": "{} per node",
    "MaxTRESMinsPJ": "{}-minutes per job",
}


def limits_of(reason: str, association: Association) -> dict[str, int]:
    """Return the limits of an association that a reason can be about, by name."""
    if reason in _SINGLE:
        found = {_SINGLE[reason]: association.limits.get(_SINGLE[reason], Limit(None))}
    elif match := _OF_RESOURCE.fullmatch(reason):
        kind = _KINDS.get((match["scope"], match["kind"]))
        prefix = f"{kind}:{_RESOURCES.get(match['what'], match['what'].lower())}"
        found = {name: limit for name, limit in association.limits.items() if name.startswith(prefix)}
    else:
        return {}
    return {name: limit.most for name, limit in found.items() if limit.most is not None}


def is_of_group(name: str) -> bool:
    """Return whether a limit counts all jobs of an account, also of those below."""
    return name.startswith("Grp")


def described(name: str, most: int) -> str:
    """Return a limit in words: `64 GPUs`, `600000 GPU-minutes`."""
    kind, _, resource = name.partition(":")
    unit = _UNITS.get(kind, "{}")
    if not resource:
        return unit.format(plural(most, _NOUNS[kind]))
    _, _, of_type = resource.partition("gres/gpu")
    if resource.startswith("gres/gpu") or resource in ("cpu", "node"):
        noun = f"{of_type[1:]} GPU".strip() if "gpu" in resource else {"cpu": "CPU", "node": "node"}[resource]
        return unit.format(f"{most} {noun}" if "-minutes" in unit else plural(most, noun))
    return unit.format(f"{most} {'MB' if resource == 'mem' else resource}")


def explained(job: Job) -> str:
    """Return the explanation of a waiting job's reason, apart from limits of its account; empty if there is none."""
    if job.reason.startswith("QOS") or re.fullmatch(r"Max\w+PerAccount", job.reason):
        return f"limit of QOS {job.qos} or of its partition's QOS"
    return EXPLANATIONS.get(job.reason, "")
