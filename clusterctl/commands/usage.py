"""Collect a cluster's usage: jobs from Slurm's accounting, GPUs of pods and how busy GPUs were from Prometheus.

Exit status: 0; 4 if Prometheus gave no answer, so that the report is not complete.
"""

import json
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from clusterctl.commands import usage_html, usage_page
from clusterctl.commands.usage_report import Day, Group, Node, Report, Usage
from clusterctl.inventory.model import Inventory
from clusterctl.inventory.schedulers import KUBERNETES, SLURM, Kind
from clusterctl.nodes import prometheus
from clusterctl.nodes.prometheus import Measures
from clusterctl.nodes.route import Access
from clusterctl.run import context
from clusterctl.run.context import Options
from clusterctl.slurm.accounting import Accounting, Sums, Tally
from clusterctl.ui.screen import Screen
from clusterctl.util import period as periods
from clusterctl.util.errors import InputError, Problem
from clusterctl.util.period import Period
from clusterctl.util.redaction import Redactor, throughout
from clusterctl.util.text import fold, plural
from clusterctl.workspace import hardware
from clusterctl.workspace.hardware import Hardware

COMPLETE, INCOMPLETE = 0, 4
DEFAULT_BY = "account"
_NEARLY_ALL = 0.98

# One series for each GPU: with pods that share a GPU, the exporter has one for each of them. Per cent of the time in
# which a kernel ran; DCGM has no value for a GPU that is divided into MIG instances.
_GPU = "max by (instance, gpu) (DCGM_FI_DEV_GPU_UTIL)"
_MEASURED = f"count by (instance) ({_GPU})"
_BY_NODE = {"node_busy": f"sum by (instance) ({_GPU}) / 100", "node_gpus": _MEASURED}


def _node_gpus(series: str) -> str:
    return f'sum by (instance) (label_replace({series}, "instance", "$1", "node", "(.+)"))'


# Slurm confines jobs to their GPUs, so a busy GPU is an allocated one, and the other allocated ones are idle. Only on
# nodes of which each GPU is measured.
_ALLOCATED = _node_gpus('slurm_node_gpus{use="allocated"}')
_ALL_MEASURED = f"({_MEASURED} == {_node_gpus('slurm_node_gpus')})"
_BUSY = f"(count by (instance) ({_GPU} > 0) or 0 * {_MEASURED})"
_OF_SLURM = {
    "node_allocated": f"{_ALLOCATED} and {_ALL_MEASURED}",
    "node_idle": f"clamp_min({_ALLOCATED} - {_BUSY}, 0) and {_ALL_MEASURED}",
}
# Watts of the GPUs that jobs hold, and their number. Slurm's numbers of GPUs are DCGM's only on nodes without MIG.
_POWER = "max by (node, gpu) (DCGM_FI_DEV_POWER_USAGE)"
_WITHOUT_MIG = f"(count by (node) ({_POWER}) == sum by (node) (max by (node, use) (slurm_node_gpus)))"


def _energy(by: str) -> dict[str, str]:
    """Return the queries of what GPUs use, by a label of their jobs; older metrics do not have it."""
    held = f'max by (node, gpu, {by}) (slurm_job_gpu{{{by}!=""}})'
    power = f"({held} * on (node, gpu) group_left () {_POWER} and on (node) {_WITHOUT_MIG})"
    return {"job_watts": f"sum by ({by}) {power}", "job_measured": f"count by ({by}) {power}"}


# Each head exports the same numbers.
_OF_POD = 'max by (instance, gpu, namespace) (DCGM_FI_DEV_GPU_UTIL{namespace!=""})'
_OF_KUBERNETES = {
    "up": "max(kubernetes_up)",
    "held": "sum by (namespace) (max by (namespace, resource) (kubernetes_namespace_gpus))",
    "pod_busy": f"sum by (namespace) ({_OF_POD}) / 100",
    "pod_gpus": f"count by (namespace) ({_OF_POD})",
    "pod_idle": f"count by (namespace) ({_OF_POD} == 0)",
}


def usage_command(options: Options, since: str, until: str | None, by: str | None, output: str) -> int:
    """Print the usage of a period as text, csv, json or html; return COMPLETE or INCOMPLETE. Raises InputError."""
    site = context.load(options)
    inventory = site.inventory
    _check(inventory, by)
    now = int(time.time())
    period = periods.parse(since, until, now)
    records = hardware.load_all(inventory.directory)
    site = context.authorise(site)
    screen = Screen(sys.stdout if output == "text" else sys.stderr)
    with screen.working(f"Summing up {period}"):
        found = collect(inventory, site.access, period, by or DEFAULT_BY, records)
    usage: Usage = throughout(found, Redactor([site.access.sudo_password or ""]).redact)
    if output == "text":
        usage_page.show(screen, usage)
    else:
        print(_document(usage, output, now), end="")
    return usage.exit_code


def _document(usage: Usage, output: str, now: int) -> str:
    if output == "json":
        return json.dumps(usage.as_dict(), indent=2) + "\n"
    return usage_page.table(usage) if output == "csv" else usage_html.page(usage, datetime.fromtimestamp(now, UTC))


def _check(inventory: Inventory, by: str | None) -> None:
    """Raise InputError for usage that this cluster cannot have."""
    if SLURM in inventory.schedulers:
        return
    if by:
        raise InputError([Problem(None, "--by", "is for Slurm; the usage of Kubernetes is by namespace")])
    if not inventory.in_group(prometheus.GROUP):
        message = "Kubernetes keeps no accounting, and the inventory has no group monitoring"
        raise InputError([Problem(None, str(inventory.path), message, "add the group, then run clusterctl bootstrap")])


def collect(inventory: Inventory, access: Access, period: Period, by: str, records: Mapping[str, Hardware]) -> Usage:
    """Return the usage of a period, with the jobs by user, account or partition. Raises HeadFailed without accounting.

    `records` are the hardware records by node.
    """
    tally = None
    if SLURM in inventory.schedulers:
        with Accounting.connect_any(inventory.in_group(SLURM.head), access) as head:
            tally = head.tally(period, by)
    measures = _measure(inventory, access, period, _energy(by))
    reports = []
    if tally:
        reports.append(of_slurm(tally, measures, capacity_of(inventory, SLURM, records), period))
    if KUBERNETES in inventory.schedulers:
        reports.append(of_kubernetes(measures, capacity_of(inventory, KUBERNETES, records), period))
    code = INCOMPLETE if measures and measures.error else COMPLETE
    return Usage(inventory.cluster_name, period, tuple(reports), code)


def _measure(inventory: Inventory, access: Access, period: Period, energy: Mapping[str, str]) -> Measures | None:
    """Return the sums of the first Prometheus that answers, or the first error; None without monitoring."""
    queries = dict(_BY_NODE)
    for kind, more in ((SLURM, {**_OF_SLURM, **energy}), (KUBERNETES, _OF_KUBERNETES)):
        queries |= more if kind in inventory.schedulers else {}
    first = None
    for host in inventory.in_group(prometheus.GROUP):
        measures = prometheus.measure(host, access, queries, period)
        if not measures.error:
            return measures
        first = first or measures
    return first


@dataclass(frozen=True)
class Capacity:
    """The GPUs, or MIG instances, in the hardware records of a scheduler's workers; and workers without a record."""

    nodes: tuple[str, ...]
    gpus: int
    unrecorded: tuple[str, ...] = ()


def capacity_of(inventory: Inventory, kind: Kind, records: Mapping[str, Hardware]) -> Capacity:
    """Return the capacity of a scheduler. A GPU that is divided counts as its instances, as the scheduler counts it."""
    names = tuple(host.name for host in inventory.in_group(kind.workers))
    gpus = sum(len(gpu.mig or ()) or 1 for name in names if name in records for gpu in records[name].gpus)
    return Capacity(names, gpus, tuple(name for name in names if name not in records))


# --- one scheduler ----------------------------------------------------------------------------------------------------


def of_slurm(tally: Tally, measures: Measures | None, capacity: Capacity, period: Period) -> Report:
    """Return the report of Slurm's jobs."""
    hours = capacity.gpus * period.hours
    groups = _sorted(_of_sums(name, sums, hours, measures) for name, sums in tally.groups.items())
    nodes = tuple(_nodes(measures, capacity.nodes, "node_idle"))
    total = replace(_of_sums("Total", tally.total, hours), **_of_nodes(measures, capacity.nodes))
    if known := [group.gpu_energy_joules for group in groups if group.gpu_energy_joules is not None]:
        total = replace(total, gpu_energy_joules=sum(known))
    allocated = _hours(measures, "node_allocated", capacity.nodes)
    if measures and allocated:
        total = replace(total, idle_gpu_hours=_hours(measures, "node_idle", capacity.nodes))
    days = [
        Day(day, seconds / 3600, _ratio(measures, "node_busy", "node_gpus", capacity.nodes, index))
        for index, (day, seconds) in enumerate(tally.days.items())
    ]
    notes = [
        *_capacity_notes(capacity),
        *_energy_notes(tally.total),
        *_gpu_energy_notes(measures, tally),
        *_measure_notes(measures, nodes, capacity, period),
    ]
    if nodes and not allocated:
        notes.append("idle but allocated: Prometheus has no counts of this period of nodes without MIG")
    if tally.unreadable:
        notes.append(f"jobs: {plural(tally.unreadable, 'line')} of sacct could not be read")
    return Report(
        scheduler=SLURM.name,
        by=tally.by,
        gpus=capacity.gpus,
        capacity_gpu_hours=hours,
        groups=groups,
        total=total,
        days=tuple(days),
        nodes=nodes,
        measured_gpu_hours=_hours(measures, "node_gpus", capacity.nodes),
        idle_of_gpu_hours=allocated,
        notes=tuple(notes),
    )


def of_kubernetes(measures: Measures | None, capacity: Capacity, period: Period) -> Report:
    """Return the report of the GPUs that pods held, by namespace."""
    hours = capacity.gpus * period.hours
    found = measures or Measures("the inventory has no group monitoring")
    groups = _sorted(_of_namespace(found, name, hours) for name in found.labels("held"))
    nodes = tuple(_nodes(found, capacity.nodes, ""))
    held = found.hours("held")
    total = Group("Total", held, held / hours if hours else None, **_of_nodes(found, capacity.nodes))
    allocated = found.hours("pod_gpus")
    if allocated:
        total = replace(total, idle_gpu_hours=found.hours("pod_idle"))
    days = [
        Day(part.day, found.hours("held", day=index), _ratio(found, "node_busy", "node_gpus", capacity.nodes, index))
        for index, part in enumerate(period.days())
    ]
    notes = [*_capacity_notes(capacity), *_measure_notes(found, nodes, capacity, period)]
    if not found.error and (counted := found.hours("up")) < _NEARLY_ALL * period.hours:
        notes.append(f"GPUs of pods: counted in {counted:.1f} of {period.hours:.1f} h; the rest is unknown")
    return Report(
        scheduler=KUBERNETES.name,
        by="namespace",
        gpus=capacity.gpus,
        capacity_gpu_hours=hours,
        groups=groups,
        total=total,
        days=tuple(days),
        nodes=nodes,
        measured_gpu_hours=_hours(found, "node_gpus", capacity.nodes),
        idle_of_gpu_hours=allocated or None,
        notes=tuple(notes),
    )


def _of_sums(name: str, sums: Sums, capacity_hours: float, measures: Measures | None = None) -> Group:
    hours = sums.gpu_seconds / 3600
    is_measured = measures is not None and name in measures.labels("job_watts")
    return Group(
        name=name,
        gpu_hours=hours,
        share=hours / capacity_hours if capacity_hours else None,
        jobs=sums.jobs,
        cpu_hours=sums.cpu_seconds / 3600,
        node_hours=sums.node_seconds / 3600,
        wait_median_seconds=sums.wait(0.5),
        wait_p95_seconds=sums.wait(0.95),
        waiting=sums.waiting,
        energy_joules=sums.joules if sums.measured else None,
        energy_jobs=sums.measured,
        gpu_energy_joules=measures.hours("job_watts", name) * 3600 if measures and is_measured else None,
    )


def _of_namespace(measures: Measures, name: str, capacity_hours: float) -> Group:
    held = measures.hours("held", name)
    measured = measures.hours("pod_gpus", name)
    return Group(
        name=name,
        gpu_hours=held,
        share=held / capacity_hours if capacity_hours else None,
        utilisation=measures.hours("pod_busy", name) / measured if measured else None,
        idle_gpu_hours=measures.hours("pod_idle", name) if measured else None,
    )


def _sorted(groups: Iterator[Group]) -> tuple[Group, ...]:
    """Return groups, those with the most GPU-hours first."""
    return tuple(sorted(groups, key=lambda one: (-one.gpu_hours, -(one.cpu_hours or 0), one.name)))


# --- from Prometheus --------------------------------------------------------------------------------------------------


def _hours(measures: Measures | None, query: str, nodes: Collection[str], day: int | None = None) -> float | None:
    """Return the sum of a query over these nodes in hours; None without values."""
    known = [name for name in nodes if measures and measures.measured_hours(query, name, day)]
    return sum(measures.hours(query, name, day) for name in known) if measures and known else None


def _ratio(measures: Measures | None, part: str, whole: str, nodes: Collection[str], day: int | None) -> float | None:
    hours = _hours(measures, whole, nodes, day)
    return (_hours(measures, part, nodes, day) or 0) / hours if hours else None


def _of_nodes(measures: Measures | None, nodes: Collection[str]) -> dict[str, Any]:
    return {"utilisation": _ratio(measures, "node_busy", "node_gpus", nodes, None)}


def _nodes(measures: Measures | None, names: Collection[str], idle: str) -> Iterator[Node]:
    """Yield the nodes whose GPUs were measured."""
    for name in names:
        if (busy := _ratio(measures, "node_busy", "node_gpus", [name], None)) is not None:
            yield Node(name, busy, _hours(measures, idle, [name]))


# --- what is not known ------------------------------------------------------------------------------------------------


def _capacity_notes(capacity: Capacity) -> Iterator[str]:
    if capacity.unrecorded:
        yield f"capacity: {fold(capacity.unrecorded)} without a hardware record (clusterctl discover)"
    elif not capacity.gpus:
        yield "share of the capacity: the hardware records have no GPU"


def _energy_notes(total: Sums) -> Iterator[str]:
    if total.jobs and not total.measured:
        yield "energy: Slurm measured it for no job (AcctGatherEnergyType)"
    elif total.measured < total.jobs:
        yield f"energy: measured for {total.measured} of {plural(total.jobs, 'job')}; the others are not in the sums"


def _gpu_energy_notes(measures: Measures | None, tally: Tally) -> Iterator[str]:
    if measures and (found := sum(measures.hours("job_measured", name) for name in tally.groups)):
        of_jobs = f"{found:.1f} of {tally.total.gpu_seconds / 3600:.1f} GPU-hours of jobs"
        yield f"GPU energy: measured for {of_jobs}; CPUs, memory, fans and GPUs without a job are not in it"


def _measure_notes(
    measures: Measures | None, nodes: Collection[Node], capacity: Capacity, period: Period
) -> Iterator[str]:
    if measures is None:
        yield "utilisation: the inventory has no group monitoring"
    elif measures.error:
        yield f"utilisation: {measures.error}"
    elif not nodes:
        yield "utilisation: Prometheus has no GPU metrics of this period (group gpu_metrics)"
    else:
        hours = _hours(measures, "node_gpus", capacity.nodes) or 0
        whole = capacity.gpus * period.hours
        if hours < _NEARLY_ALL * whole:
            yield f"utilisation: measured for {hours:.1f} of {whole:.1f} GPU-hours; the rest is unknown"
