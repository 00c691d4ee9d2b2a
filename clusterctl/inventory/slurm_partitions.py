"""Slurm's partitions and options of slurm.conf: names that Slurm knows, values that it reads, and workers."""

from pathlib import Path

from clusterctl.inventory import rules
from clusterctl.inventory.document import Node, shown
from clusterctl.inventory.reading import Reading
from clusterctl.inventory.schedulers import SLURM
from clusterctl.inventory.slurm_policy import Given
from clusterctl.util import yaml_text
from clusterctl.util.text import did_you_mean

PARTITIONS = "slurm_head_partitions"
_LIMITS = ("defaulttime", "maxtime")  # options of a partition


def check(reading: Reading, given: Given) -> None:
    """Refuse options that no release of Slurm knows, and limits and types of GPUs that it cannot read.

    `given` returns the values of a variable.
    """
    _check_options(reading, given)
    _check_time_limits(reading, given)
    _check_gpu_types(reading, given)


def check_nodes(reading: Reading, given: Given) -> None:
    """Check that the nodes of partitions are workers or sub-groups of them; `given` returns values of a variable."""
    workers = [host.name for host in reading.hosts.values() if SLURM.workers in host.groups]
    below = [name for name, group in reading.groups.items() if name == SLURM.workers or SLURM.workers in group.lineage]
    for node in given(reading, PARTITIONS):
        for nodes in _of_partitions(node, "nodes"):
            for item in nodes.value if isinstance(nodes.value, list) else [nodes]:
                if isinstance(item.value, str) and item.value not in [*workers, *below]:
                    near = did_you_mean(item.value, [*workers, *below])
                    message = f'not a worker or a sub-group of {SLURM.workers}, got "{shown(item.value)}"'
                    reading.refuse(item.position, f"{PARTITIONS}.nodes", message, near)


def _check_options(reading: Reading, given: Given) -> None:
    """Refuse options that no release of Slurm knows; slurmctld checks the file on the head before it is installed."""
    known = yaml_text.load((Path(__file__).parent / "slurm_options.yaml").read_text(encoding="utf-8"))
    for variable, names in known.items():
        allowed = {name.lower() for name in names}
        for node in given(reading, variable):
            for options in [node, *_of_partitions(node, "options")]:
                for key in options.value if isinstance(options.value, dict) else ():
                    if key.lower() not in allowed:
                        near = did_you_mean(key, names)
                        message = f'unknown option of Slurm, got "{shown(key)}"'
                        reading.refuse(key.position, f"{variable}.{shown(key)}", message, near)


def _check_time_limits(reading: Reading, given: Given) -> None:
    """Refuse time limits of partitions that Slurm cannot read."""
    for node in given(reading, PARTITIONS):
        for options in _of_partitions(node, "options"):
            for key, value in options.value.items() if isinstance(options.value, dict) else ():
                fits = isinstance(value.value, str | int) and rules.TIME_LIMIT.fullmatch(str(value.value))
                if key.lower() in _LIMITS and not fits:
                    message = f"got {value.describe()}, expected a time limit such as 1-12:00:00"
                    reading.refuse(value.position, f"{PARTITIONS}.{shown(key)}", message)


def _check_gpu_types(reading: Reading, given: Given) -> None:
    """Refuse types of GPUs in partitions that are not text. Which types there are is known after discovery."""
    for node in given(reading, PARTITIONS):
        for value in _of_partitions(node, "gpu"):
            for item in value.value if isinstance(value.value, list) else [value]:
                if not isinstance(item.value, str):
                    message = f"got {item.describe()}, expected a type of GPU such as h100, or a list of types"
                    reading.refuse(item.position, f"{PARTITIONS}.gpu", message)


def _of_partitions(node: Node, field: str) -> list[Node]:
    """Return the values of a field of all partitions."""
    partitions = node.value if isinstance(node.value, list) else []
    fields = [item for part in partitions if isinstance(part.value, dict) for item in part.value.items()]
    return [value for key, value in fields if key == field]
