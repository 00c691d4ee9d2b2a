"""Slurm's reservations: options that Slurm has, in a form that it reads, and nodes and partitions that exist."""

from clusterctl.inventory.document import Node, shown
from clusterctl.inventory.reading import Reading
from clusterctl.inventory.schedulers import SLURM
from clusterctl.inventory.slurm_limits import reservations
from clusterctl.inventory.slurm_policy import Given, entries_of
from clusterctl.util.text import did_you_mean

RESERVATIONS, PARTITIONS = "slurm_head_reservations", "slurm_head_partitions"


def check(reading: Reading, given: Given) -> None:
    """Refuse names that are there twice, options that Slurm cannot read, and nodes and partitions that do not exist.

    Users and accounts may be in Slurm without being in the inventory. `given` returns the values of a variable.
    """
    named = [one["name"] for node in given(reading, PARTITIONS) for one in entries_of(node) if "name" in one]
    partitions = {str(name.value) for name in named} or {"main"}
    for node in given(reading, RESERVATIONS):
        names = set[str]()
        for index, one in enumerate(entries_of(node)):
            if "name" in one and str(one["name"].value) in names:
                name = shown(str(one["name"].value))
                reading.refuse(one["name"].position, f"{RESERVATIONS}.name", f"duplicate name, got {name}")
            names |= {str(one["name"].value)} if "name" in one else set()
            if "options" in one and isinstance(one["options"].value, dict):
                _check_options(reading, f"{RESERVATIONS}[{index}].options", one["options"], partitions)


def _check_options(reading: Reading, where: str, options: Node, partitions: set[str]) -> None:
    module, flat, is_valid = reservations(), dict[str, str](), True
    for key, node in options.value.items() if isinstance(options.value, dict) else ():
        of_key = f"{where}.{shown(key)}"
        if key.lower() not in {name.lower() for name in module.OPTIONS}:
            message = f'unknown option of scontrol, got "{shown(key)}"'
            reading.refuse(key.position, of_key, message, did_you_mean(key, module.OPTIONS))
            is_valid = False
            continue
        try:
            one = module.flatten({str(key): node.plain()})
        except module.OptionError:
            reading.refuse(node.position, of_key, f"got {node.describe()}, expected {module.expected(key)}")
            is_valid = False
            continue
        if one.keys() & flat.keys():
            reading.refuse(key.position, of_key, "is there twice; scontrol does not distinguish case")
        flat |= one
        _check_names(reading, of_key, node, one, partitions)
    problem = module.conflict(flat) if is_valid else None
    if problem:
        reading.refuse(options.position, where, problem)


def _check_names(reading: Reading, where: str, node: Node, one: dict[str, str], partitions: set[str]) -> None:
    """Refuse nodes and partitions that do not exist."""
    workers = [host.name for host in reading.hosts.values() if SLURM.workers in host.groups]
    below = [name for name, group in reading.groups.items() if SLURM.workers in (name, *group.lineage)]
    nodes, known = one.get("Nodes", "ALL"), [*workers, *below]
    for name in nodes.split(",") if nodes != "ALL" and reading.understood else ():
        if name not in known:
            message = f'not a worker or a sub-group of {SLURM.workers}, got "{shown(name)}"'
            reading.refuse(node.position, where, message, did_you_mean(name, known))
    partition = one.get("PartitionName")
    if partition is not None and partition not in partitions:
        message = f'got "{shown(partition)}", which is not in {PARTITIONS}'
        reading.refuse(node.position, where, message, did_you_mean(partition, sorted(partitions)))
