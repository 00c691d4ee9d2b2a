"""What runs need of a cluster's scheduler. Slurm is one implementation of it: clusterctl/slurm/client.py."""

from collections.abc import Callable, Sequence
from typing import Protocol, Self

from clusterctl.inventory.model import Host, Inventory
from clusterctl.nodes.route import Access
from clusterctl.run.context import Site


class Workload(Protocol):
    """What runs on nodes and is waited for: a job of Slurm. As text it says whose it is and where."""

    @property
    def id(self) -> str:
        """What the scheduler calls it."""

    def as_dict(self) -> dict[str, str]:
        """Return it as plain data for `--output json`."""


class Scheduler(Protocol):
    """A scheduler's controller, while there is a connection to it. A command that fails there raises HeadFailed.

    A node is drained for a cause, one of several perhaps. Each part of clusterctl drains for its own cause and resumes
    by it, and a node is in service again when no cause is left.
    """

    @classmethod
    def connect(cls, head: Host, access: Access) -> Self:
        """Connect to the controller on the head."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...

    def is_set_up(self) -> bool:
        """Return whether clusterctl has set the scheduler up there."""

    def drain(self, cause: str, nodes: Sequence[str], reason: str) -> None:
        """Take nodes out of service for a cause; what runs there goes on."""

    def drained_for(self, cause: str) -> list[str]:
        """Return the nodes that are out of service for a cause, among others perhaps."""

    def drained(self) -> list[str]:
        """Return the nodes that are out of service, whatever for; none where the controller does not answer."""

    def workloads(self, nodes: Sequence[str]) -> Sequence[Workload]:
        """Return what runs on these nodes; on nodes that the scheduler does not know nothing does."""

    def wait_until_empty(
        self, nodes: Sequence[str], say: Callable[[str], None], seconds: float | None
    ) -> Sequence[Workload]:
        """Wait until nothing runs on these nodes, at most so many seconds; return what is left."""

    def cancel(self, ids: Sequence[str]) -> None:
        """End workloads."""

    def hears_from(self, node: str) -> bool:
        """Return whether the controller has lately heard from a node."""

    def mark_down(self, nodes: Sequence[str], reason: str) -> None:
        """Tell the scheduler that nodes are gone, so that it starts elsewhere what ran there."""

    def forget(self, nodes: Sequence[str]) -> None:
        """Drop what is kept of nodes that left the cluster."""

    # What a person types on the head instead.
    @staticmethod
    def drain_command(cause: str, nodes: Sequence[str], reason: str) -> str: ...
    @staticmethod
    def mark_down_commands(nodes: Sequence[str], reason: str) -> list[str]: ...
    @staticmethod
    def wait_command(nodes: Sequence[str]) -> str: ...
    @staticmethod
    def resume_command(cause: str, nodes: Sequence[str]) -> str: ...
    @staticmethod
    def forget_command(nodes: Sequence[str]) -> str: ...


def of(inventory: Inventory) -> type[Scheduler]:
    """Return the scheduler that the inventory's groups choose."""
    from clusterctl.slurm.client import SlurmController  # its libraries are slow to load

    return SlurmController


def connect(site: Site) -> Scheduler:
    """Connect to the cluster's scheduler; HeadFailed where that cannot be."""
    return of(site.inventory).connect(site.inventory.head, site.access)
