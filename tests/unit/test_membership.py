"""What is kept of nodes that leave, and what a plan makes of a run's events."""

import io
import os
import re
from pathlib import Path

import pytest

from clusterctl import home, inventory, leaving, membership
from clusterctl.errors import InputError
from clusterctl.events import Change, PlayStarted, Result, TaskStarted
from clusterctl.outcome import Ledger
from clusterctl.plan import Plan
from clusterctl.screen import Screen
from clusterctl.slurm import Job

INVENTORY = """\
all:
  vars: {cluster_name: aurora, ansible_user: admin}
  children:
    slurm_head: {hosts: {head1: {ansible_host: 10.0.0.10}}}
    slurm_workers:
      hosts: {gpu01: {ansible_host: 10.0.0.11, ansible_port: 2222, cluster_jump_host: head1}, gpu02: {}}
"""
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIqpVRRIBFTLB+lYf7Dd9yXW4ZZwMdBcZv5FwUv8mTzT"


@pytest.fixture
def cluster(tmp_path: Path) -> inventory.Inventory:
    (tmp_path / "inventory.yaml").write_text(INVENTORY)
    (tmp_path / "known_hosts").write_text(f"[10.0.0.11]:2222 {KEY}\n10.0.0.* {KEY}\n10.0.0.10 {KEY}\n")
    return inventory.load(tmp_path / "inventory.yaml")


def test_a_node_that_leaves_can_still_be_reached(cluster: inventory.Inventory) -> None:
    state = cluster.directory / home.STATE
    state.mkdir()
    leaving.save(state, leaving.Node.of(cluster.host("gpu01"), cluster))
    assert (state / "leaving/gpu01.json").stat().st_mode & 0o777 == 0o600
    node = leaving.load(state, "gpu01")
    assert node
    host = node.host([cluster.host("head1")])
    assert (host.address, host.port, host.user, host.become) == ("10.0.0.11", 2222, "admin", True)
    assert host.jump == cluster.host("head1")
    assert node.keys == (f"[10.0.0.11]:2222 {KEY}",)  # a pattern is somebody's own work
    assert leaving.unfinished(cluster) == [], "gpu01 is in that inventory"
    leaving.forget_keys(cluster.directory / "known_hosts", [node], cluster)
    assert len(home.known_hosts(cluster.directory / "known_hosts")) == 3, "gpu01 is in that inventory"
    (cluster.directory / "inventory.yaml").write_text(INVENTORY.replace("gpu01: {", "gpu09: {").replace("0.11", "0.19"))
    after = inventory.load(cluster.directory / "inventory.yaml")
    leaving.forget_keys(cluster.directory / "known_hosts", [node], after)
    assert home.known_hosts(cluster.directory / "known_hosts") == [f"10.0.0.* {KEY}", f"10.0.0.10 {KEY}"]
    assert leaving.unfinished(after) == ["gpu01"]
    leaving.forget(state, ["gpu01"])
    assert leaving.load(state, "gpu01") is None
    assert leaving.unfinished(after) == []


def test_an_edit_is_judged_with_the_files_that_variables_name(tmp_path: Path) -> None:
    text = INVENTORY.replace("admin}", "admin, cluster_ca_certificates: [ca/site.pem]}")
    (tmp_path / "inventory.yaml").write_text(text)
    (tmp_path / "ca").mkdir()
    (tmp_path / "ca/site.pem").write_text("-----BEGIN CERTIFICATE-----\n")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "nowhere").symlink_to("/nonexistent")
    change = membership.changed(tmp_path / "inventory.yaml", text.replace("gpu02", "gpu03"))
    assert [host.name for host in change.inventory.hosts] == ["head1", "gpu01", "gpu03"]
    (tmp_path / "ca/site.pem").unlink()
    with pytest.raises(InputError, match=rf"{tmp_path}/inventory.yaml.*ca/site.pem"):
        membership.changed(tmp_path / "inventory.yaml", text)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"name": 1, "groups": null, "variables": {}, "keys": []}'])
def test_what_is_damaged_is_refused_with_its_path(tmp_path: Path, content: str) -> None:
    (tmp_path / "leaving").mkdir()
    (tmp_path / "leaving/gpu01.json").write_text(content)
    with pytest.raises(InputError, match=r"leaving/gpu01\.json: cannot be used"):
        leaving.load(tmp_path, "gpu01")


def test_a_name_leads_nowhere_else(tmp_path: Path) -> None:
    (tmp_path / "gpu01.json").write_text("{}")
    assert leaving.load(tmp_path, "../gpu01") is None


def changed(host: str, task: str, *changes: Change) -> Result:
    return Result(host, "base", task, "", "changed", changes=changes)


def test_a_plan_lists_each_item_once_with_its_hosts() -> None:
    ledger = Ledger()
    ledger.add(PlayStarted("Set up", "all", ("head1", "gpu01"), ("base",)))
    ledger.add(TaskStarted("Set up", "base", "Converge", ""))
    item = Change("file", "/etc/hosts", "content")
    ledger.add(changed("gpu01", "Converge", item, Change("unit", "munge.service", "enabled, restarted (x changed)")))
    ledger.add(changed("head1", "Converge", item, Change("unit", "chrony.service", "started")))
    ledger.add(changed("head1", "Enter the users"))
    plan = Plan.of(ledger)
    assert plan.changes == {
        ("base", "file", "/etc/hosts", "content"): ["head1", "gpu01"],
        ("base", "unit", "chrony.service", "started"): ["head1"],
        ("base", "task", "Enter the users", ""): ["head1"],
        ("base", "unit", "munge.service", "enabled, restarted (x changed)"): ["gpu01"],
    }
    assert plan.restarts == {"munge.service enabled, restarted (x changed)": ["gpu01"]}


def shown(plan: Plan) -> list[str]:
    """A plan's lines on a terminal of 80 columns."""
    text = io.StringIO()
    screen = Screen(text)
    screen._force_terminal, screen.width, screen.height, screen.no_color = True, 80, 50, True
    plan.show(screen)
    return re.sub(r"\x1b\[[0-9;]*m", "", text.getvalue()).splitlines()


def test_a_plan_keeps_a_name_whole_beside_what_fills_its_line() -> None:
    versions = "version 24.11.5-4+deb13u1+lab1, was 24.11.5-4+deb13u1"
    plan = Plan({("slurm_worker", "package", "slurmd", versions): ["gpu01", "gpu02", "gpu03"]})
    assert sum(line.endswith(" gpu[01-03]") for line in shown(plan)) == 1


def test_a_plan_breaks_no_line_within_a_word_or_a_name() -> None:
    hosts = [f"gpu{number:02}" for number in (1, 2, 3, 5, 7, 9, 11, 13)]
    what = "enabled, restarted (/etc/prometheus/prometheus.yml, package prometheus changed)"
    plan = Plan({("prometheus", "unit", "prometheus.service", what): hosts}, {f"prometheus.service {what}": hosts})
    plan.jobs.append(Job("57", "alice", "train", "RUNNING", "gpu03"))
    lines = shown(plan)
    assert all(len(line) <= 80 for line in lines)
    words = " ".join(lines).split()
    for word in ("(/etc/prometheus/prometheus.yml,", "gpu[01-03,05,07,09,", "prometheus.service:", "gpu03)"):
        assert word in words
