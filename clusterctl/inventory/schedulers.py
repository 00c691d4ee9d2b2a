"""The kinds of schedulers: the names of their groups and of what they run.

A kind's name is the prefix of its groups and roles, so the other scheduler is the other prefix.
"""

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """One kind of scheduler."""

    name: str
    """The prefix of its groups: `slurm_head`, `slurm_workers`."""
    title: str
    workload: str
    """The noun for what runs on its nodes."""
    has_quorum: bool = False
    """Whether its heads keep its state together, which needs a majority of them. Otherwise one head is enough."""

    @property
    def head(self) -> str:
        """The group of its heads."""
        return f"{self.name}_head"

    @property
    def workers(self) -> str:
        """The group of its workers."""
        return f"{self.name}_workers"

    @property
    def groups(self) -> frozenset[str]:
        """Both groups."""
        return frozenset({self.head, self.workers})


SLURM = Kind("slurm", "Slurm", "job")
KUBERNETES = Kind("kubernetes", "Kubernetes", "pod", has_quorum=True)
LOGIN = "login"
"""The group of Slurm's login nodes."""
KINDS = (SLURM, KUBERNETES)
"""All kinds. The head of the first one in an inventory has the cluster's lock, names and time."""


def of_groups(groups: Collection[str]) -> Kind | None:
    """Return the kind of a host in these groups; None for a host outside all schedulers."""
    return next((kind for kind in KINDS if not kind.groups.isdisjoint(groups)), None)


def named(name: str) -> Kind:
    """Return the kind with that name. Raises KeyError."""
    return {kind.name: kind for kind in KINDS}[name]


def nouns(kinds: Collection[Kind]) -> str:
    """Return the noun for the workloads of these kinds: `job`, `pod`, or `workload` for several kinds."""
    words = {kind.workload for kind in kinds}
    return words.pop() if len(words) == 1 else "workload"
