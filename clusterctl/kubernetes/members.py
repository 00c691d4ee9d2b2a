"""The members of etcd: which are healthy, and which can leave without the loss of the quorum."""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated

from clusterctl.util.text import fold, plural
from clusterctl.util.untrusted import Malformed, decode, flag, text

_MOST = 64


class QuorumError(Exception):
    """A change would leave etcd without a quorum; the text is a sentence without its full stop."""


@dataclass(frozen=True)
class Member:
    """A member of etcd. kubeadm names it after its node; one that was added and has not started has no name."""

    name: Annotated[str, text()]
    healthy: Annotated[bool, flag] = False
    learner: Annotated[bool, flag] = False
    """Whether it does not vote yet, and does not count for the quorum."""


def parse(answer: str) -> list[Member]:
    """Return the voting members from the output of `kubernetes-etcd`. Raises ValueError for invalid output."""
    found = json.loads(answer)
    if not isinstance(found, list) or len(found) > _MOST:
        raise Malformed(f"got no list of at most {_MOST} members")
    return [member for one in found if not (member := decode(Member, one)).learner]


def _quorum(count: int) -> int:
    return count // 2 + 1


def quorum_problem(members: Sequence[Member], down: Collection[str]) -> str:
    """Return why etcd would have no quorum while the nodes in `down` are down; empty if it would have one."""
    rest = [member for member in members if member.healthy and member.name not in down]
    if len(rest) >= _quorum(len(members)):
        return ""
    sick = [member.name or "a new one" for member in members if not member.healthy and member.name not in down]
    why = f"; {fold(sick)} is not healthy" if sick else ""
    return f"without {fold([*down])}, etcd would lose its quorum: {len(rest)} of {plural(len(members), 'member')}{why}"


def removal_order(members: Sequence[Member], names: Collection[str]) -> list[str]:
    """Return the nodes in the order of their removal, first those whose member is unhealthy.

    Raises QuorumError if one step loses the quorum: etcd commits a removal with the quorum of the members before it,
    and continues with that of the remaining ones.
    """
    left = list(members)
    order = sorted((member for member in members if member.name in names), key=lambda member: member.healthy)
    for member in order:
        before = sum(one.healthy for one in left)
        if before < _quorum(len(left)):
            raise QuorumError(f"etcd has no quorum: {before} of {plural(len(left), 'member')} respond")
        left.remove(member)
        healthy = sum(one.healthy for one in left)
        if not left:
            raise QuorumError(f"{member.name} has the last member of etcd")
        if healthy < _quorum(len(left)):
            rest = f"{healthy} of {plural(len(left), 'member')} would respond"
            raise QuorumError(f"without {member.name}, etcd would lose its quorum: {rest}")
    return [member.name for member in order]
