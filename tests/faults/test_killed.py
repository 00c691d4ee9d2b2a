"""SIGKILL at any moment: the same command again ends in the state of a run that nobody disturbed."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.conftest import TestLab, podman
from tests.cluster.test_bootstrap import differences
from tests.faults.injury import GUARD, container, converges
from tests.labs import lab_name

# What differs between two installations of the same packages on new nodes, without any kill.
BY_CHANCE = frozenset(
    {
        "/etc/machine-id",
        "/etc/shadow",  # has the day on which each account was made
        # The package munge makes a random key before ours takes its place; it is kept, to be put back.
        "/var/lib/clusterctl/state/munge.json",
        "/var/lib/clusterctl/original/%2Fetc%2Fmunge%2Fmunge.key",
    }
)


@pytest.fixture(scope="module")
def lab() -> Iterator[TestLab]:
    """Fresh nodes: one head and one worker."""
    lab = TestLab(lab_name("killed"), workers=1)
    lab.down()
    lab.up()
    yield lab
    lab.down()


def comparable(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest with names for the numbers that the order of packages gives out, and without processes."""
    entries = [line.split(":") for line in manifest["users"]]
    users = {int(entry[2]): entry[0] for entry in entries if len(entry) == 7}
    groups = {int(entry[2]): entry[0] for entry in entries if len(entry) == 4}
    files = {
        path: [mode, users.get(uid, uid), groups.get(gid, gid), what]
        for path, (mode, uid, gid, what) in manifest["files"].items()
        if path not in BY_CHANCE and path not in ("/etc/passwd", "/etc/group", "/etc/gshadow")
    }
    # In place of the files: who there is, with what beyond the number. Sub-ids follow the order, too.
    accounts = sorted(":".join(field for place, field in enumerate(entry) if place not in (2, 3)) for entry in entries)
    active = {unit: values["ActiveState"] for unit, values in manifest["daemons"].items()}
    return {**manifest, "files": files, "users": accounts, "daemons": active}


def renew(lab: TestLab) -> None:
    """Put new nodes in the place of the old ones: same names, addresses, host keys and cluster's directory."""
    podman("rm", "--force", "--volumes", "--time", "0", *(container(lab, node) for node in lab.nodes))
    lab.up()


def kill_after(lab: TestLab, seconds: float) -> None:
    """Begin a run and kill clusterctl and its process group. Its Ansible is in another, and comes to its own end."""
    argv = ["clusterctl", "bootstrap", str(lab.inventory)]
    pipes: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "stdin": subprocess.DEVNULL}
    run = subprocess.Popen(argv, start_new_session=True, **pipes)
    try:
        run.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(run.pid, signal.SIGKILL)
        run.wait(GUARD)


def disturbed(lab: TestLab, points: list[float]) -> dict[str, Any]:
    """Bring new nodes up by runs that are killed after these seconds, then one that is not; return the manifests."""
    renew(lab)
    for seconds in points:
        kill_after(lab, seconds)
    converges(lab)
    return {node: comparable(manifest) for node, manifest in lab.manifests().items()}


@pytest.fixture(scope="module")
def undisturbed(lab: TestLab) -> tuple[dict[str, Any], float]:
    """The manifests after one run that nobody disturbs, and how long that took."""
    began = time.monotonic()
    lab.run("bootstrap")
    return {node: comparable(manifest) for node, manifest in lab.manifests().items()}, time.monotonic() - began


def test_three_kills(lab: TestLab, undisturbed: tuple[dict[str, Any], float]) -> None:
    """At the same random parts of the way each time, so that a change is judged by itself."""
    check(lab, undisturbed, kills=3, chance=random.Random(3))  # noqa: S311 - when, not what


@pytest.mark.long
def test_a_hundred_kills(lab: TestLab, undisturbed: tuple[dict[str, Any], float]) -> None:
    for _ in range(25):
        check(lab, undisturbed, kills=4, chance=random.Random())  # noqa: S311 - when, not what


def check(lab: TestLab, undisturbed: tuple[dict[str, Any], float], kills: int, chance: random.Random) -> None:
    expected, seconds = undisturbed
    points = [round(chance.uniform(0.5, seconds), 2) for _ in range(kills)]
    assert differences(expected, disturbed(lab, points)) == [], f"killed after {points} s"


def test_the_comparison_sees_a_single_byte(lab: TestLab, undisturbed: tuple[dict[str, Any], float]) -> None:
    before = comparable(lab.manifest("gpu01"))
    lab.root("gpu01", "sed -i '1s/./#/' /etc/chrony/chrony.conf; echo >> /etc/chrony/chrony.conf")
    found = differences(before, comparable(lab.manifest("gpu01")))
    assert [line.split(":")[0] for line in found] == ["/files//etc/chrony/chrony.conf"]
    converges(lab)
