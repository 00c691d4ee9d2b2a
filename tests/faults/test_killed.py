"""SIGKILL at any moment: the same command again ends in the state of a run that nobody disturbed."""

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from tests import programs
from tests.cluster.lab import TestLab, fresh, podman
from tests.faults.injury import GUARD, container, wait_until
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
            programs.signal_tree(run, signal.SIGKILL)
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
    check(lab, undisturbed, kills=10, seed=new_seed())


def check(lab: TestLab, undisturbed: tuple[dict[str, Any], float], kills: int, seed: int) -> None:
    expected, seconds = undisturbed
    print(f"a run takes {seconds:.1f} s")
    after = built_by_killed_runs(lab, kills, seconds, random.Random(seed))  # noqa: S311 - when, not what
    assert differences(expected, after) == []


ZONES = ("Etc/UTC", "Europe/Berlin", "Asia/Tokyo")
ACCOUNTS = "    users_accounts:\n      - {name: alice, uid: 5001}\n"
ALICE, DAVE = {"name": "alice", "uid": 5001}, {"name": "dave", "uid": 10077}
EDITED = ("/etc/chrony/chrony.conf", "/etc/default/munge", "/etc/default/prometheus-node-exporter")


class Site:
    """What an operator changes between the runs of one cluster: variables of all nodes, of one, and a file by hand."""

    changes: ClassVar[tuple[str, ...]] = ("zone", "zone of one", "user", "Slurm", "port", "file")

    def __init__(self, lab: TestLab, chance: random.Random) -> None:
        self.lab, self.chance = lab, chance
        self.of_all: dict[str, Any] = {"users_accounts": [ALICE]}
        self.of_one: dict[str, Any] = {}
        text = lab.inventory.read_text()
        assert ACCOUNTS in text
        lab.inventory.write_text(text.replace(ACCOUNTS, ""))
        self.write()

    def write(self) -> None:
        for name, variables in (("group_vars/all.yml", self.of_all), ("host_vars/gpu01.yml", self.of_one)):
            path = self.lab.inventory.parent / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(variables))

    def change(self) -> str:
        """Change one thing at random, or back again; return what."""
        what: str = self.chance.choice(self.changes)
        self.make(what, pick=self.chance.random() < 0.5)
        self.write()
        return what

    def make(self, what: str, *, pick: bool) -> None:
        match what:
            case "zone":
                self.of_all["cluster_timezone"] = self.chance.choice(ZONES)
            case "zone of one":
                self.of_one["cluster_timezone"] = self.chance.choice(ZONES)
            case "user":
                self.of_all["users_accounts"] = [ALICE, DAVE] if pick else [ALICE]
            case "Slurm":  # of a role that others depend on
                self.of_all["slurm_head_conf_extra"] = {"KillWait": 31} if pick else {}
            case "port":  # which Prometheus reads of its own host, so that all nodes have it
                self.of_all["node_exporter_port"] = 9190 if pick else 9100
            case "file":
                self.lab.root(self.chance.choice(self.lab.nodes), f"echo '# mine' >> {self.chance.choice(EDITED)}")


def nothing_left(lab: TestLab, done: dict[str, Any]) -> None:
    """See by a plan of all roles that a run has left nothing to do."""
    hosts = lab.run("plan bootstrap", "--full")["hosts"]
    left = {name: host["changes"] for name, host in hosts.items() if host["changed"]}
    assert (left, sorted(hosts)) == ({}, sorted(lab.nodes)), f"left out: {done['unchanged']}, {done['only_roles']}"


def new_seed() -> int:
    """Return KILLS_SEED, or another number each time, and print it."""
    seed = int(os.environ.get("KILLS_SEED") or random.SystemRandom().randrange(10**6))
    print(f"seed {seed}")
    return seed


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """A finished cluster of one head and one worker, for changes."""
    with fresh("killed-changes", workers=1) as lab:
        made = Site(lab, random.Random(new_seed()))  # noqa: S311 - when, not what
        lab.run("bootstrap")
        yield made


@pytest.mark.proves("faults", "Of 100 killed runs none makes a later bootstrap leave out what was not done.")
@pytest.mark.long
@pytest.mark.parametrize("part", range(20))
def test_five_kills_between_changes(site: Site, part: int) -> None:
    five_kills(site)


def five_kills(site: Site) -> None:
    """Change a cluster with proofs, and kill the run, up to five times; then one run has to do all of it.

    `plan bootstrap --full` plays all roles, so it finds what that run has left out wrongly.
    """
    kills = 0
    while kills < 5:
        wait_until(lambda: site.lab.run("bootstrap")["stages"] == [])
        for _ in range(site.chance.choice((1, 2, 5))):
            what, point = site.change(), round(site.chance.uniform(0.5, 12.0), 2)
            took = kill_after(site.lab, point, site.chance.random() < 0.5)
            kills += took is None
            print(f"{what}: " + (f"killed after {point} s" if took is None else f"ended after {took:.2f} s"))
        nothing_left(site.lab, site.lab.run("bootstrap"))


@pytest.mark.proves("faults", "The comparison of states detects a single changed byte.")
def test_the_comparison_sees_a_single_byte(lab: TestLab, undisturbed: tuple[dict[str, Any], float]) -> None:
    before = comparable(lab.manifest("gpu01"))
    lab.root("gpu01", "sed -i '1s/./#/' /etc/chrony/chrony.conf; echo >> /etc/chrony/chrony.conf")
    found = differences(before, comparable(lab.manifest("gpu01")))
    assert [line.split(":")[0] for line in found] == ["/files//etc/chrony/chrony.conf"]
    lab.run("bootstrap")
    assert differences(before, comparable(lab.manifest("gpu01"))) == []
