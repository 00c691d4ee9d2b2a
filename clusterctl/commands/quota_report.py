"""The quotas of a cluster as data. None: no limit, or Slurm has no such number."""

from dataclasses import asdict, dataclass, field
from typing import Any

from clusterctl.slurm.by_hand import ByHand


@dataclass(frozen=True)
class Wait:
    """A reason of Slurm's, the number of jobs that wait for it, and what it means; `meaning` may be empty."""

    reason: str
    jobs: int
    meaning: str = ""


@dataclass(frozen=True)
class Row:
    """An account, or a user in one.

    `share` is of the siblings' shares, `use` of the whole cluster's use; both from 0 to 1. Slurm's `level_fs` is the
    share divided by the part of the siblings' use: below 1, more was used than the share. It is None without use.
    `gpus`, `gpu_minutes`, `running` and `waiting` include the accounts below; `waits` are those of its own users.
    GPU-minutes decay with time as all use does.
    """

    account: str
    user: str
    parent: str
    depth: int
    shares: int | None
    share: float | None
    use: float | None
    level_fs: float | None
    gpus: int
    gpu_limit: int | None
    gpu_minutes: int
    gpu_minutes_limit: int | None
    running: int
    waiting: int
    waits: tuple[Wait, ...] = ()

    @property
    def name(self) -> str:
        """The name of the user, or of the account."""
        return self.user or self.account


@dataclass(frozen=True)
class Quota:
    """The quotas of a cluster: accounts, each followed by its users and the accounts below it."""

    cluster: str
    rows: tuple[Row, ...]
    by_hand: ByHand = field(default_factory=ByHand)
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return what `--output json` prints."""
        return {
            "cluster": self.cluster,
            "exit_code": 0,
            "accounts": [asdict(row) for row in self.rows if not row.user],
            "users": [asdict(row) for row in self.rows if row.user],
            "not_in_inventory": [*self.by_hand.objects, *self.by_hand.options],
            "differs": list(self.by_hand.changed),
            "not_in_slurm": list(self.by_hand.missing),
            "notes": list(self.notes),
        }
