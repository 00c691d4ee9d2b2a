"""The interface to a cluster's schedulers: clusterctl/slurm/client.py and clusterctl/kubernetes/client.py implement it.

A cluster can have both. A verb works through its nodes by kind.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Protocol, Self, cast

from clusterctl.inventory.model import Host, Inventory
from clusterctl.inventory.schedulers import SLURM, Kind
from clusterctl.nodes.route import Access
from clusterctl.run.context import Site
from clusterctl.util.errors import HeadFailed


class Workload(Protocol):
    """A workload on nodes: a job of Slurm, a pod of Kubernetes. Its text has its owner and its nodes."""

    @property
    def id(self) -> str:
        """The scheduler's identifier."""

    @property
    def is_evicted(self) -> bool:
        """Whether a drain ends it, and its controller starts another one; a drain waits for all others."""

    def as_dict(self) -> dict[str, str]:
        """Return the workload for `--output json`."""


class Scheduler(Protocol):
    """A connection to a scheduler's controller. A command that fails there raises HeadFailed.

    A node is drained for a cause and can have several causes. Each part of clusterctl drains and resumes with its own
    cause. A node is resumed when it has no cause left.
    """

    @classmethod
    def connect(cls, head: Host, access: Access) -> Self:
        """Connect to the controller on the head."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...

    def close(self) -> None:
        """End the connection."""

    def is_set_up(self) -> bool:
        """Return whether clusterctl has set up the scheduler on the head."""

    def drain(self, cause: str, nodes: Sequence[str], reason: str) -> None:
        """Drain nodes for a cause; running workloads continue."""

    def resume(self, cause: str, nodes: Sequence[str]) -> None:
        """Remove a cause of nodes; a node without another cause is in service again."""

    def drained_for(self, cause: str) -> list[str]:
        """Return the nodes that are drained for a cause; they can have other causes too."""

    def drained(self) -> list[str]:
        """Return the nodes that are drained for any cause; none if the controller does not respond."""

    def workloads(self, nodes: Sequence[str]) -> Sequence[Workload]:
        """Return the workloads on these nodes; none for nodes that the scheduler does not know."""

    def wait_until_empty(
        self, nodes: Sequence[str], say: Callable[[str], None], seconds: float | None
    ) -> Sequence[Workload]:
        """Wait at most `seconds` (None: no limit) until the nodes have no workloads; return the remaining ones.

        Kubernetes' pods run on, so they are evicted meanwhile, unless nothing would start them on another node.
        """

    def doomed(self, nodes: Sequence[str]) -> Sequence[Workload]:
        """Return the workloads that `--force` kills, after those that can run on other nodes have been moved."""

    def cancel(self, ids: Sequence[str]) -> None:
        """Cancel workloads."""

    def hears_from(self, node: str) -> bool:
        """Return whether the controller has recently received messages from a node."""

    def mark_down(self, nodes: Sequence[str], reason: str) -> None:
        """Mark nodes as down, so that the scheduler starts their workloads on other nodes."""

    def forget(self, nodes: Sequence[str]) -> None:
        """Delete the scheduler's records of removed nodes."""

    # The commands that an operator types on the head instead.
    @staticmethod
    def drain_command(cause: str, nodes: Sequence[str], reason: str) -> str: ...
    @staticmethod
    def mark_down_commands(nodes: Sequence[str], reason: str) -> list[str]: ...
    @staticmethod
    def wait_step(nodes: Sequence[str]) -> str: ...
    @staticmethod
    def resume_command(cause: str, nodes: Sequence[str]) -> str: ...
    @staticmethod
    def forget_command(nodes: Sequence[str]) -> str: ...


class ControlPlane(Scheduler, Protocol):
    """A scheduler with several heads, which keep their state together and need a majority of them."""

    def require_spare(self, heads: Sequence[str]) -> None:
        """Raise HeadFailed if the cluster would lose its quorum while these heads are down."""

    def removal_problem(self, nodes: Sequence[str]) -> str:
        """Return why heads among these nodes cannot be removed without the loss of the quorum; empty if they can."""

    def stop_serving(self) -> None:
        """Stop the API of the connected head; its clients then use another head."""

    def leave(self, nodes: Sequence[str]) -> None:
        """Remove heads among these nodes from the quorum. Raises HeadFailed if it would be lost."""

    def is_other_machine(self, node: str, machine_id: str) -> bool:
        """Return whether a node was registered by another machine than the one with this machine id."""

    def wait_for_head(self, head: str, seconds: float) -> str:
        """Wait until a head serves again; return what is wrong with it after `seconds`."""

    @staticmethod
    def stop_serving_command() -> str: ...


def of(kind: Kind) -> type[Scheduler]:
    """Return the implementation of a kind."""
    if kind is SLURM:
        from clusterctl.slurm.client import SlurmController  # its libraries are slow to load

        return SlurmController
    from clusterctl.kubernetes.client import KubernetesController

    return KubernetesController


def all_of(inventory: Inventory) -> tuple[Kind, ...]:
    """Return the kinds of schedulers that an inventory has."""
    return inventory.schedulers


def by_kind(inventory: Inventory, nodes: Collection[str]) -> dict[Kind, list[str]]:
    """Return the nodes of each scheduler, in the order of `nodes`; hosts outside all schedulers are left out."""
    kinds = {host.name: host.scheduler for host in inventory.hosts}
    found: dict[Kind, list[str]] = {}
    for name in nodes:
        if kind := kinds.get(name):
            found.setdefault(kind, []).append(name)
    return found


def head_of(inventory: Inventory, kind: Kind) -> Host:
    """Return the first head of a scheduler."""
    return inventory.in_group(kind.head)[0]


def connect(site: Site, kind: Kind) -> Scheduler:
    """Connect to a scheduler through the first of its heads that responds. Raises HeadFailed if none does.

    A head that is not set up is returned only if no other one is: it was reinstalled, or the cluster is new.
    """
    heads = [host for host in site.inventory.in_group(kind.head) if host.name not in site.skipped]
    heads = heads or list(site.inventory.in_group(kind.head))
    failures, new = list[HeadFailed](), list[Scheduler]()
    for head in heads:
        try:
            found = of(kind).connect(head, site.access)
            if len(heads) == 1 or found.is_set_up():
                for other in new:
                    other.close()
                return found
        except HeadFailed as error:
            failures.append(error)
            continue
        new.append(found)
    for other in new[1:]:
        other.close()
    if new:
        return new[0]
    raise failures[0]


def control_plane(site: Site, kind: Kind) -> ControlPlane:
    """Connect to a scheduler that has several heads."""
    return cast(ControlPlane, connect(site, kind))


def control_plane_of(kind: Kind) -> type[ControlPlane]:
    """Return the implementation of a kind that has several heads."""
    return cast(type[ControlPlane], of(kind))
