"""The interface to a cluster's scheduler. clusterctl/slurm/client.py implements it for Slurm."""

from collections.abc import Callable, Sequence
from typing import Protocol, Self

from clusterctl.inventory.model import Host, Inventory
from clusterctl.nodes.route import Access
from clusterctl.run.context import Site


class Workload(Protocol):
    """A workload on nodes, such as a Slurm job. Its text has the user and the nodes."""

    @property
    def id(self) -> str:
        """The scheduler's identifier."""

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

    def is_set_up(self) -> bool:
        """Return whether clusterctl has set up the scheduler on the head."""

    def drain(self, cause: str, nodes: Sequence[str], reason: str) -> None:
        """Drain nodes for a cause; running workloads continue."""

    def drained_for(self, cause: str) -> list[str]:
        """Return the nodes that are drained for a cause; they can have other causes too."""

    def drained(self) -> list[str]:
        """Return the nodes that are drained for any cause; none if the controller does not respond."""

    def workloads(self, nodes: Sequence[str]) -> Sequence[Workload]:
        """Return the workloads on these nodes; none for nodes that the scheduler does not know."""

    def wait_until_empty(
        self, nodes: Sequence[str], say: Callable[[str], None], seconds: float | None
    ) -> Sequence[Workload]:
        """Wait at most `seconds` (None: no limit) until the nodes have no workloads; return the remaining ones."""

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
    def wait_command(nodes: Sequence[str]) -> str: ...
    @staticmethod
    def resume_command(cause: str, nodes: Sequence[str]) -> str: ...
    @staticmethod
    def forget_command(nodes: Sequence[str]) -> str: ...


def of(inventory: Inventory) -> type[Scheduler]:
    """Return the scheduler for the inventory's groups."""
    from clusterctl.slurm.client import SlurmController  # its libraries are slow to load

    return SlurmController


def connect(site: Site) -> Scheduler:
    """Connect to the cluster's scheduler. Raises HeadFailed if that fails."""
    return of(site.inventory).connect(site.inventory.head, site.access)
