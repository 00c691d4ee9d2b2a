"""Slurm's topology: switches or blocks that exist, each worker in one of them, switches that form a tree."""

from collections.abc import Callable, Iterator, Mapping

from clusterctl.inventory.document import Node, shown
from clusterctl.inventory.reading import Reading
from clusterctl.inventory.schedulers import SLURM
from clusterctl.inventory.slurm_limits import ordered
from clusterctl.util.text import did_you_mean

TOPOLOGY = "slurm_head_topology"
SWITCHES, BLOCKS, SIZES = "switches", "blocks", "block_sizes"
_ONE = {SWITCHES: "switch", BLOCKS: "block"}
Given = Callable[[Reading, str], list[Node]]
Entry = Mapping[str, Node]


def check(reading: Reading, given: Given) -> None:
    """Refuse a topology that Slurm cannot read, or in which a worker has no place or two.

    `given` returns the values of a variable. Slurm starts no job on a worker that no switch or block has.
    """
    workers = [host for host in reading.hosts.values() if SLURM.workers in host.groups]
    members = {host.name: {host.name} for host in workers}
    for name, group in reading.groups.items():
        if name == SLURM.workers or SLURM.workers in group.lineage:
            members[name] = {host.name for host in workers if name in host.groups}
    for node in given(reading, TOPOLOGY):
        fields = _fields(node)
        if not fields:
            continue
        kinds = [kind for kind in _ONE if kind in fields and fields[kind].value]
        if len(kinds) != 1:
            message = f"has {' and '.join(kinds) or 'neither switches nor blocks'}, expected either switches or blocks"
            reading.refuse(node.position, TOPOLOGY, message)
            continue
        entries = [_fields(one) for one in _items(fields[kinds[0]])]
        _check_names(reading, kinds[0], entries)
        if kinds == [SWITCHES]:
            _check_switches(reading, entries)
        _check_sizes(reading, kinds[0], fields, node)
        _check_places(reading, kinds[0], entries, members, node)


def _fields(node: Node) -> dict[str, Node]:
    return {str(key): value for key, value in node.value.items()} if isinstance(node.value, dict) else {}


def _items(node: Node | None) -> list[Node]:
    return node.value if node and isinstance(node.value, list) else []


def _name(entry: Entry) -> str:
    return str(entry["name"].value) if "name" in entry else ""


def _check_names(reading: Reading, kind: str, entries: list[dict[str, Node]]) -> None:
    seen = set()
    for index, one in enumerate(entries):
        if _name(one) in seen:
            message = f"duplicate name, got {shown(_name(one))}"
            reading.refuse(one["name"].position, f"{TOPOLOGY}.{kind}[{index}].name", message)
        seen.add(_name(one))


def _check_switches(reading: Reading, entries: list[dict[str, Node]]) -> None:
    """Check that a switch has either nodes or switches, and that no switch is below itself."""
    names = [_name(one) for one in entries]
    for index, one in enumerate(entries):
        where = f"{TOPOLOGY}.{SWITCHES}[{index}]"
        if "name" in one and bool(_items(one.get("nodes"))) == bool(_items(one.get(SWITCHES))):
            reading.refuse(one["name"].position, where, f"{shown(_name(one))}: expected either nodes or switches")
        for item in _items(one.get(SWITCHES)):
            if item.value not in names:
                message = f'no switch "{shown(str(item.value))}"'
                reading.refuse(item.position, f"{where}.{SWITCHES}", message, did_you_mean(str(item.value), names))
    below = {_name(one): {str(item.value) for item in _items(one.get(SWITCHES))} for one in entries}
    placed = ordered(below)
    for index, one in enumerate(entries):
        if _name(one) not in placed and "name" in one:
            message = f"the switches of {shown(_name(one))} form a circle"
            reading.refuse(one["name"].position, f"{TOPOLOGY}.{SWITCHES}[{index}]", message)


def _check_sizes(reading: Reading, kind: str, fields: Entry, node: Node) -> None:
    """Check sizes of blocks: the first, and multiples of it by a power of two (topology.conf(5))."""
    sizes = _items(fields.get(SIZES))
    if (kind == BLOCKS) != bool(sizes):
        message = f"needs {SIZES}" if kind == BLOCKS else f"{SIZES} has no effect for {SWITCHES}"
        reading.refuse(node.position, TOPOLOGY, message)
        return
    numbers = [size.value for size in sizes if isinstance(size.value, int) and size.value > 0]
    if len(numbers) < len(sizes):
        return  # a type or range was refused
    for index, number in enumerate(numbers[1:], 1):
        times, rest = divmod(number, numbers[0])
        if rest or times & (times - 1) or number <= numbers[index - 1]:
            expected = f"{numbers[0]} times a larger power of two than before"
            reading.refuse(sizes[index].position, f"{TOPOLOGY}.{SIZES}[{index}]", f"got {number}, expected {expected}")


def _check_places(
    reading: Reading, kind: str, entries: list[dict[str, Node]], members: Mapping[str, set[str]], node: Node
) -> None:
    """Check that names are workers or groups of them, and that each worker is in one switch or block."""
    one, places = _ONE[kind], dict[str, str]()
    for key, entry, item in _nodes(kind, entries):
        name = str(item.value)
        if name not in members:
            message = f'not a worker or a sub-group of {SLURM.workers}, got "{shown(name)}"'
            reading.refuse(item.position, key, message, did_you_mean(name, members))
            continue
        for worker in sorted(members[name]):
            if places.setdefault(worker, entry) != entry:
                message = f"{worker} is in the {one} {shown(places[worker])} too, expected one {one}"
                reading.refuse(item.position, key, message)
    if missing := sorted({name for names in members.values() for name in names} - places.keys()):
        first = ", ".join(missing[:5]) + f" and {len(missing) - 5} others" * (len(missing) > 5)
        hint = f"add the names, or their group, to the nodes of a {one}"
        reading.refuse(node.position, TOPOLOGY, f"no {one} has {first}, where Slurm would start no job", hint)


def _nodes(kind: str, entries: list[dict[str, Node]]) -> Iterator[tuple[str, str, Node]]:
    """Yield the key for messages, the name of the switch or block, and each item of its nodes."""
    for index, one in enumerate(entries):
        for item in _items(one.get("nodes")):
            yield f"{TOPOLOGY}.{kind}[{index}].nodes", _name(one), item
