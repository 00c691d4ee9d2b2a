"""What a worker cannot have beside NVIDIA's Multi-Process Service (MPS), and what starts it."""

from collections.abc import Iterator, Mapping

from clusterctl.inventory.document import Key, Node
from clusterctl.inventory.reading import HostDraft, Reading
from clusterctl.inventory.schedulers import SLURM

MPS, SHARDS = "slurm_head_mps", "slurm_head_shards"
SETTINGS, MODE, DIVISION, DIVISIONS = "gpu_config", "gpu_config_compute_mode", "gpu_config_mig", "gpu_config_mig_gpus"
OPTIONS = "slurm_head_conf_extra"
_STARTS = ("prolog", "epilog", "taskprolog", "grestypes")


def check(reading: Reading) -> None:
    """Refuse MPS where Slurm, the driver or another variable prevents it: a job would share a GPU without a limit."""
    heads = [host for host in reading.hosts.values() if SLURM.head in host.groups]
    users = [host for host in reading.hosts.values() if SLURM.workers in host.groups and _given(host, heads, MPS)]
    for host in users:
        for node, name, message, hint in _conflicts(host, heads):
            reading.refuse(node.position, name, message, hint)
    for head in heads if users else ():
        for key, node in _items(head.merged.get(OPTIONS)).items():
            if str(key).lower() in _STARTS:
                message = f"{key} replaces what {MPS} needs"
                reading.refuse(node.position, OPTIONS, message, f"remove {key}, or set {MPS}: 0")


def _conflicts(host: HostDraft, heads: list[HostDraft]) -> Iterator[tuple[Node, str, str, str]]:
    """Yield the place, name and text of what the worker has beside MPS, and a remedy."""
    if shards := _given(host, heads, SHARDS):
        # A GPU in Slurm has one GRES that shares it: alt_gres in src/interfaces/gres.c.
        yield shards, SHARDS, f"{host.name} has {MPS} too, expected one of them", f"set {SHARDS}: 0 for {host.name}"
    if SETTINGS not in host.groups:
        return
    if mode := _set(host, MODE, "default"):
        text = f"is {mode.value} on {host.name}, where MPS needs one server for each user"
        yield mode, MODE, text, f"remove it, or set {MPS}: 0 for {host.name}"
    single = (one for one in _items(host.merged.get(DIVISIONS)).values() if one.value != "none")
    for node in filter(None, (_set(host, DIVISION, "none"), *single)):
        yield node, DIVISION, f"{host.name} has {MPS}, expected no MIG", f"set {MPS}: 0 for {host.name}"


def _given(host: HostDraft, heads: list[HostDraft], name: str) -> Node | None:
    """Return a worker's value of a variable that counts from the head for all workers; None for 0."""
    node = next((one.merged[name] for one in (host, *heads[:1]) if name in one.merged), None)
    return node if node and node.value else None


def _set(host: HostDraft, name: str, neutral: str) -> Node | None:
    node = host.merged.get(name)
    return node if node and node.value not in ("", neutral) else None


def _items(node: Node | None) -> Mapping[Key, Node]:
    return node.value if node and isinstance(node.value, dict) else {}
