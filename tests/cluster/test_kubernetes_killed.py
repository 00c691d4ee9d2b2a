"""SIGKILL at any moment of a bootstrap of Kubernetes: the same command again ends in the undisturbed state."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.kubernetes import BUSYBOX, RECIPES, Kubernetes, pod, tokens
from tests.cluster.lab import fresh_as
from tests.faults.test_killed import check
from tests.faults.test_killed import undisturbed as undisturbed  # a fixture

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600), pytest.mark.kit(*RECIPES)]


@pytest.fixture(scope="module")
def lab() -> Iterator[Kubernetes]:
    """Fresh nodes: one head and one worker."""
    with fresh_as(Kubernetes, "kubernetes-killed", workers=1) as lab:
        yield lab


@pytest.mark.proves("faults", "Three runs killed at random, then one more, reach Kubernetes' undisturbed state.")
def test_three_kills__of_a_bootstrap__end_in_the_undisturbed_state(
    lab: Kubernetes, undisturbed: tuple[dict[str, Any], float]
) -> None:
    """At the same random parts of the way each time, so that a change is judged by itself."""
    check(lab, undisturbed, kills=3, seed=3)
    assert lab.ready() == dict.fromkeys(lab.nodes, True)
    assert (lab.ledger(), lab.cordoned(), tokens(lab)) == ({}, set(), [])
    assert lab.output(pod("after", BUSYBOX, "echo works", node="gpu01")) == "works\n"
    lab.unchanged()
