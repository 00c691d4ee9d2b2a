"""The members of etcd: which are healthy, and which can leave without the loss of the quorum."""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated

from clusterctl.util.text import fold, plural
from clusterctl.util.untrusted import decode, flag, nested, number, optional, sequence, text

# kubeadm's image of etcd has etcdctl, and its static pod mounts these files (cmd/kubeadm/app/phases/etcd/local.go).
_PKI = "/etc/kubernetes/pki/etcd"
ETCDCTL = (
    "etcdctl",
    "--endpoints=https://127.0.0.1:2379",
    f"--cacert={_PKI}/ca.crt",
    f"--cert={_PKI}/server.crt",
    f"--key={_PKI}/server.key",
)
LIST = ("member", "list", "--write-out=json")
HEALTH = ("endpoint", "health", "--cluster", "--write-out=json")
_MOST = 64


class QuorumError(Exception):
    """A change would leave etcd without a quorum; the text is a sentence without its full stop."""


@dataclass(frozen=True)
class Member:
    """A member of etcd. kubeadm names it after its node."""

    id: int
    name: str
    healthy: bool = False


@dataclass(frozen=True)
class _Member:
    # A member that was added and has not started has no name yet.
    ID: Annotated[int, number(0, 1 << 64)]
    name: Annotated[str | None, optional(text())]
    clientURLs: Annotated[tuple[str, ...] | None, optional(sequence(text(), _MOST))]  # noqa: N815 - etcd's key
    isLearner: Annotated[bool | None, optional(flag)]  # noqa: N815


@dataclass(frozen=True)
class _Members:
    members: Annotated[tuple[_Member, ...], sequence(nested(_Member), _MOST)]


@dataclass(frozen=True)
class _Endpoint:
    endpoint: Annotated[str, text()]
    health: Annotated[bool, flag]


def parse(listed: str, health: str) -> list[Member]:
    """Return the voting members from the output of LIST and HEALTH. Raises ValueError for invalid output.

    HEALTH exits with 1 and prints the same JSON if a member is not healthy.
    """
    found = decode(_Members, json.loads(listed)).members
    endpoints = [decode(_Endpoint, one) for one in json.loads(health)]
    healthy = {one.endpoint for one in endpoints if one.health}
    return [
        Member(one.ID, one.name or "", not healthy.isdisjoint(one.clientURLs or ()))
        for one in found
        if not one.isLearner
    ]


def _quorum(count: int) -> int:
    return count // 2 + 1


def quorum_problem(members: Sequence[Member], down: Collection[str]) -> str:
    """Return why etcd would have no quorum while the nodes in `down` are down; empty if it would have one."""
    rest = [member for member in members if member.healthy and member.name not in down]
    if len(rest) >= _quorum(len(members)):
        return ""
    sick = [member.name for member in members if not member.healthy and member.name not in down]
    why = f"; {fold(sick)} is not healthy" if sick else ""
    return f"without {fold([*down])}, etcd would lose its quorum: {len(rest)} of {plural(len(members), 'member')}{why}"


def removal_order(members: Sequence[Member], names: Collection[str]) -> list[Member]:
    """Return the members to remove, the unhealthy ones first. Raises QuorumError if one step loses the quorum.

    etcd commits the removal with the quorum of the members before it, and continues with that of the remaining ones.
    """
    left = list(members)
    order = sorted((member for member in members if member.name in names), key=lambda member: member.healthy)
    for member in order:
        before = sum(one.healthy for one in left)
        if before < _quorum(len(left)):
            raise QuorumError(f"etcd has no quorum: {before} of {plural(len(left), 'member')} respond")
        left.remove(member)
        healthy = sum(one.healthy for one in left)
        if not left or healthy < _quorum(len(left)):
            rest = f"{healthy} of {plural(len(left), 'member')} would respond"
            raise QuorumError(f"without {member.name}, etcd would lose its quorum: {rest}")
    return order
