"""SIGKILL at any moment: the same command again ends in the state of a run that nobody disturbed."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests import programs
from tests.cluster.lab import TestLab, fresh, podman
from tests.faults.canary_site import kill_tree
from tests.faults.injury import GUARD, container
from tests.manifests import comparable, differences


@pytest.fixture(scope="module")
def lab() -> Iterator[TestLab]:
    """Fresh nodes: one head and one worker."""
    with fresh("killed", workers=1) as lab:
        yield lab


def renew(lab: TestLab) -> None:
    """Put new nodes in the place of the old ones: same names, addresses, host keys and cluster's directory."""
    podman("rm", "--force", "--volumes", "--time", "0", *(container(lab, node) for node in lab.nodes))
    lab.up()


def kill_after(lab: TestLab, seconds: float, all_of_it: bool) -> float | None:
    """Begin a run and kill it; return how long it took where it ended before that.

    Killed is clusterctl with its process group, whose Ansible is in another and comes to its own end; or `all_of_it`,
    as when the machine goes down.
    """
    argv = ["clusterctl", "bootstrap", str(lab.inventory)]
    began = time.monotonic()
    run = programs.start(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        said, _ = run.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        if all_of_it:
            kill_tree(run)
        else:
            os.killpg(run.pid, signal.SIGKILL)
        run.wait(GUARD)
        return None
    assert run.returncode == 0, said.decode()
    return time.monotonic() - began


def built_by_killed_runs(lab: TestLab, kills: int, seconds: float, chance: random.Random) -> dict[str, Any]:
    """Bring new nodes up by so many runs that are killed, then by one that is not; return the manifests.

    A run takes `seconds` at first. Where one has ended before its kill, later ones have as little to do.
    """
    renew(lab)
    while kills:
        point, all_of_it = round(chance.uniform(0.5, seconds), 2), chance.random() < 0.5
        took = kill_after(lab, point, all_of_it)
        killed = "killed with all below it" if all_of_it else "killed with its process group"
        print(f"after {point} s: {killed}" if took is None else f"ended by itself after {took:.2f} s")
        kills, seconds = (kills - 1, seconds) if took is None else (kills, took)
    lab.run("bootstrap")
    return lab.comparable_manifests()


@pytest.fixture(scope="module")
def undisturbed(lab: TestLab) -> tuple[dict[str, Any], float]:
    """The manifests after one run that nobody disturbs, and how long that took."""
    began = time.monotonic()
    lab.run("bootstrap")
    return lab.comparable_manifests(), time.monotonic() - began


@pytest.mark.proves("faults", "Three runs killed at random, then one more, reach the undisturbed state.")
@pytest.mark.proves("faults", "Runs are killed by process group or with all processes below them.")
def test_three_kills(lab: TestLab, undisturbed: tuple[dict[str, Any], float]) -> None:
    """At the same random parts of the way each time, so that a change is judged by itself."""
    check(lab, undisturbed, kills=3, seed=3)


@pytest.mark.proves("faults", "New nodes reach the undisturbed state after ten runs killed at random.")
@pytest.mark.long
@pytest.mark.parametrize("nodes", ["first", "second", "third"])
def test_ten_kills(lab: TestLab, undisturbed: tuple[dict[str, Any], float], nodes: str) -> None:
    """Ten for each of three sets of new nodes, others each time; KILLS_SEED=N makes the choices of a seed again."""
    check(lab, undisturbed, kills=10, seed=int(os.environ.get("KILLS_SEED") or random.SystemRandom().randrange(10**6)))


def check(lab: TestLab, undisturbed: tuple[dict[str, Any], float], kills: int, seed: int) -> None:
    expected, seconds = undisturbed
    print(f"seed {seed}; a run takes {seconds:.1f} s")
    after = built_by_killed_runs(lab, kills, seconds, random.Random(seed))  # noqa: S311 - when, not what
    assert differences(expected, after) == []


@pytest.mark.proves("faults", "The comparison of states detects a single changed byte.")
def test_the_comparison_sees_a_single_byte(lab: TestLab, undisturbed: tuple[dict[str, Any], float]) -> None:
    before = comparable(lab.manifest("gpu01"))
    lab.root("gpu01", "sed -i '1s/./#/' /etc/chrony/chrony.conf; echo >> /etc/chrony/chrony.conf")
    found = differences(before, comparable(lab.manifest("gpu01")))
    assert [line.split(":")[0] for line in found] == ["/files//etc/chrony/chrony.conf"]
    lab.run("bootstrap")
    assert differences(before, comparable(lab.manifest("gpu01"))) == []
