"""Changes by hand on nodes, and what `status`, `plan` and a run say of them."""

from collections.abc import Mapping
from typing import Any

from tests.cluster.lab import TestLab

ByHand = Mapping[str, tuple[str, str, tuple[str, str, str, str]]]
"""Each kind of change: the node, what is done to it, and what `status` reports: role, kind, name, how that begins."""


def inflict(lab: TestLab, by_hand: ByHand, *further: tuple[str, str]) -> None:
    """Change nodes by hand: `further` are nodes and scripts of changes that `status` does not see."""
    for node in lab.nodes:
        scripts = [script for where, script, _ in by_hand.values() if where == node]
        lab.root(node, "\n".join([*scripts, *(script for where, script in further if where == node)]))


def items(by_hand: ByHand) -> set[tuple[str, str, str]]:
    """Return node, kind and name of what is changed."""
    return {(node, kind, name) for node, _, (_, kind, name, _) in by_hand.values()}


def drift(document: Mapping[str, Any]) -> dict[tuple[str, str, str, str], str]:
    """Return what differs in a status, by node, role, kind and name."""
    return {
        (node["name"], item["role"], item["kind"], item["name"]): item["what"]
        for node in document["nodes"]
        for item in node["drift"]
    }


def reported(document: Mapping[str, Any], by_hand: ByHand) -> dict[tuple[str, str, str, str], str]:
    """See that a status reports each of the changes and nothing else; return its drift."""
    expected = {(node, *item[:3]): item[3] for node, _, item in by_hand.values()}
    found = drift(document)
    assert found.keys() == expected.keys(), "status reports each of them, and nothing else"
    assert {key: what for key, what in found.items() if not what.startswith(expected[key])} == {}
    return found


def changed(summary: Mapping[str, Any]) -> set[tuple[str, str, str]]:
    """Return node, kind and name of every item that a run or its plan reports as changed."""
    return {
        (node, change["kind"], change["name"]) for node, host in summary["hosts"].items() for change in host["changes"]
    }
