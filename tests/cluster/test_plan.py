"""A run changes what its plan has listed, judged by manifests that share nothing with the product."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.lab import HERE, TestLab, clusterctl
from tests.manifests import differences

# Changes: lines of the inventory and what takes their place, or what is done on nodes.
CHANGES: dict[str, Any] = {
    "time zone, a user, metrics' interval": {
        "cluster_name: ": "cluster_timezone: Asia/Tokyo\n    slurm_exporter_interval: 20\n    cluster_name: ",
        "- {name: alice,": "- {name: dora, uid: 5004}\n      - {name: alice,",
    },
    "by hand": {"gpu01": "echo >> /etc/chrony/chrony.conf; systemctl disable --quiet munge",
                "gpu02": "apt-get -qq remove -y prometheus-node-exporter; chmod 0600 /etc/hosts"},
}  # fmt: skip
Item = tuple[str, str, str]
"""Node, kind and name."""
NONE: frozenset[Item] = frozenset()
# Our own records; what enables a unit; what a package brings and takes with it.
CARRIED = "/var/lib/clusterctl/(state|original|drain)|/etc/systemd/system/.*[.]wants|/etc/(init|rc.)[.]d/"
# What the manifest looks at.
(_trees,) = re.findall(r"^TREES = (\[.*\])$", (HERE / "manifest.py").read_text(), re.MULTILINE)
SEEN = tuple(f"{tree}/" for tree in json.loads(_trees))
ACCOUNTS = {f"/etc/{name}" for name in ("passwd", "group", "shadow", "gshadow", "subuid", "subgid")}


def planned(lab: TestLab, verb: str = "bootstrap") -> set[Item]:
    """All that the plan of a verb lists."""
    done = clusterctl("plan", verb, str(lab.inventory), "--output", "json")
    assert done.returncode == 10, done.stdout + done.stderr
    document = json.loads(done.stdout)
    assert Path(document["log"]).is_file(), "in the cluster's directory, not in the copy that was planned on"
    return listed(document)


def listed(plan: dict[str, Any]) -> set[Item]:
    """All that a plan lists and a manifest can show; what is a command or a task shows by its effects."""
    kinds = {"file": "path", "directory": "path", "user": "account", "group": "account"}
    found = {
        (host, kinds.get(change["kind"], change["kind"]), change["name"])
        for change in plan["changes"]
        if change["kind"] not in ("command", "task")
        for host in change["hosts"]
    }
    return {(host, kind, name) for host, kind, name in found if kind != "path" or name.startswith(SEEN)}


def accounts(manifest: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What is said of each user and group; that a user is in a group is said of the user."""
    for line in manifest["users"]:
        name, *rest = line.split(":")
        if len(rest) == 3:
            yield name, rest[1]
            yield from ((member, name) for member in rest[2].split(",") if member)
        else:
            yield name, line


def actual(before: dict[str, Any], after: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Kind and name of all that differs between two manifests of a node."""
    for kind in ("packages", "units"):
        for line in {*before[kind]} ^ {*after[kind]}:
            yield {"packages": "package", "units": "unit"}[kind], re.split("[ ]", line)[0]
    for name, _ in {*accounts(before)} ^ {*accounts(after)}:
        yield "account", name
    for path in before["files"].keys() | after["files"].keys():
        if before["files"].get(path) == after["files"].get(path) or path.removesuffix("-") in ACCOUNTS:
            continue
        if path.startswith("/home/"):
            yield "account", path.split("/")[2]
        elif not re.match(CARRIED, path):
            yield "path", path
    for unit in before["daemons"].keys() | after["daemons"].keys():
        if before["daemons"].get(unit) != after["daemons"].get(unit):
            yield "unit", unit


def changed(before: dict[str, Any], after: dict[str, Any]) -> set[Item]:
    """All that differs between two manifests of each of these nodes."""
    return {(node, *item) for node in before for item in actual(before[node], after[node])}


def edit(lab: TestLab, old: str, new: str) -> None:
    """Let the inventory say something else, once."""
    text = lab.inventory.read_text()
    assert old in text
    lab.inventory.write_text(text.replace(old, new, 1))


def done_as_planned(lab: TestLab, plan: set[Item], before: dict[str, Any], in_words: frozenset[Item] = NONE) -> None:
    """See that a run changes what is planned and nothing else, but for what the plan says in words."""
    lab.run("bootstrap")
    seen = changed(before, lab.manifests()) - in_words
    assert seen <= plan
    # A unit that reads its configuration again has the same process.
    assert {item for item in plan - seen if item[1] != "unit"} == set()


@pytest.fixture(scope="module")
def lab(whole: TestLab) -> Iterator[TestLab]:
    """The last file that needs it takes it down."""
    yield whole
    # No GPU had a fault there, whatever was done to the nodes. test_backup.py asserts it of the head before this one.
    assert whole.alarms() == ""
    whole.down()


@pytest.mark.proves("plan", "A run changes what its plan lists and nothing else, judged by independent manifests.")
@pytest.mark.proves("plan", "A plan changes no node.")
@pytest.mark.proves("health", "No health check drains a node in a lab's tests since its head was installed.")
@pytest.mark.parametrize("what", CHANGES)
def test_a_run_changes_what_the_plan_has_listed(lab: TestLab, what: str) -> None:
    """A fifth change, of Slurm's own configuration, is in test_membership.py, and an upgrade in test_upgrade.py."""
    for where, change in CHANGES[what].items():
        if where in lab.nodes:
            lab.root(where, change)
        else:
            edit(lab, where, change)
    before = lab.manifests()
    plan = planned(lab)
    if what == "by hand":  # it has most kinds of item
        assert differences(before, lab.manifests()) == []
    done_as_planned(lab, plan, before)
