"""What is kept of nodes that leave, and what a plan makes of a run's events."""

import io
import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterctl.ansible.events import Change, PlayStarted, Result, TaskStarted
from clusterctl.ansible.outcome import Ledger
from clusterctl.ansible.run_directory import RunDirectory
from clusterctl.commands import add_node, remove_node, replace_node
from clusterctl.inventory import model as inventory
from clusterctl.nodes.remote import Access
from clusterctl.run import engine, membership, planning, preflight, proofs, record, removals, scheduler
from clusterctl.run.context import Options, Site
from clusterctl.run.draining import Drain
from clusterctl.run.inputs import HostInputs
from clusterctl.run.phases import Phase, Run
from clusterctl.run.planning import Plan
from clusterctl.run.proofs import Proof
from clusterctl.slurm.client import Job
from clusterctl.ui.screen import Screen
from clusterctl.util.errors import Finding, InputError, Interrupted, PreflightError
from clusterctl.workspace import edits, home

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


def without_gpu01(cluster: inventory.Inventory) -> inventory.Inventory:
    """The inventory with another node in the place of gpu01."""
    cluster.path.write_text(INVENTORY.replace("gpu01: {", "gpu09: {").replace("0.11", "0.19"))
    return inventory.load(cluster.path)


@pytest.mark.proves("remove-node", "A node that was removed from the inventory can still be reached for cleaning.")
def test_a_node_that_leaves_can_still_be_reached(cluster: inventory.Inventory) -> None:
    state = cluster.directory / home.STATE
    state.mkdir()
    removals.save(state, removals.Node.of(cluster.host("gpu01"), cluster))
    assert (state / "leaving/gpu01.json").stat().st_mode & 0o777 == 0o600
    assert removals.load(cluster, "gpu01") is None, "gpu01 is in that inventory"
    node = removals.load(without_gpu01(cluster), "gpu01")
    assert node == removals.Node.of(cluster.host("gpu01"), cluster)
    host = node.host([cluster.host("head1")])
    assert (host.address, host.port, host.user, host.become) == ("10.0.0.11", 2222, "admin", True)
    assert host.jump == cluster.host("head1")
    assert node.keys == (f"[10.0.0.11]:2222 {KEY}",)  # a pattern is somebody's own work
    assert removals.unfinished(cluster) == [], "gpu01 is in that inventory"
    removals.forget_keys(cluster.directory / "known_hosts", [node], cluster)
    assert len(home.known_hosts(cluster.directory / "known_hosts")) == 3, "gpu01 is in that inventory"
    after = without_gpu01(cluster)
    removals.forget_keys(cluster.directory / "known_hosts", [node], after)
    assert home.known_hosts(cluster.directory / "known_hosts") == [f"10.0.0.* {KEY}", f"10.0.0.10 {KEY}"]
    assert removals.unfinished(after) == ["gpu01"]
    removals.forget(state, ["gpu01"])
    assert removals.load(after, "gpu01") is None
    assert removals.unfinished(after) == []


@pytest.mark.proves("add-node", "Without `cluster_networks`, add-node says that it contacts every node, and why.")
@pytest.mark.parametrize(("networks", "limit"), [("cluster_networks: [10.0.0.0/24], ", "gpu02,head1"), ("", None)])
def test_limited__no_networks_named__is_all_nodes(tmp_path: Path, networks: str, limit: str | None) -> None:
    path = tmp_path / "inventory.yaml"
    path.write_text(INVENTORY.replace("{cluster_name", f"{{{networks}cluster_name"))
    told = io.StringIO()
    limited = membership.limited(Options("add-node", path), inventory.load(path), ["gpu02"], Screen(told))
    assert limited.limit == limit
    assert ("contacting all 3 hosts" in told.getvalue()) is (limit is None)


def kept(cluster: inventory.Inventory, file: str = "gpu01", **other: Any) -> inventory.Inventory:
    """Leave gpu01's file, changed, as somebody may have committed it; return the inventory without gpu01."""
    node = removals.Node.of(cluster.host("gpu01"), cluster)
    document = {"name": "gpu01", "groups": node.groups, "variables": node.variables, "keys": node.keys, **other}
    folder = cluster.directory / home.STATE / removals.FOLDER
    folder.mkdir(parents=True)
    (folder / f"{file}.json").write_text(json.dumps(document))
    return without_gpu01(cluster)


def test_an_edit_is_judged_with_the_files_that_variables_name(tmp_path: Path) -> None:
    text = INVENTORY.replace("admin}", "admin, cluster_ca_certificates: [ca/site.pem]}")
    (tmp_path / "inventory.yaml").write_text(text)
    (tmp_path / "ca").mkdir()
    (tmp_path / "ca/site.pem").write_text("-----BEGIN CERTIFICATE-----\n")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "nowhere").symlink_to("/nonexistent")
    change = edits.changed(tmp_path / "inventory.yaml", text.replace("gpu02", "gpu03"))
    assert [host.name for host in change.inventory.hosts] == ["head1", "gpu01", "gpu03"]
    (tmp_path / "ca/site.pem").unlink()
    with pytest.raises(InputError, match=rf"{tmp_path}/inventory.yaml.*ca/site.pem"):
        edits.changed(tmp_path / "inventory.yaml", text)


def test_leaving__a_key_with_a_marker__is_refused(cluster: inventory.Inventory) -> None:
    """It would be a line of the known_hosts that Ansible is given to clean the node."""
    after = kept(cluster, keys=[f"@cert-authority * {KEY}"])
    with pytest.raises(InputError, match="a host key has a marker"):
        removals.load(after, "gpu01")


@pytest.mark.parametrize("content", ["", "[]", "{}", "[" * 100_000, '{"name": 1, "groups": null, "variables": {}}'])
def test_what_is_damaged_is_refused_with_its_path(cluster: inventory.Inventory, content: str) -> None:
    after = kept(cluster)
    (cluster.directory / home.STATE / "leaving/gpu01.json").write_text(content)
    with pytest.raises(InputError, match=r"leaving/gpu01\.json: cannot be used"):
        removals.load(after, "gpu01")


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"ansible_connection": "local"}, "ansible_connection: not allowed here"),
        ({"ansible_python_interpreter": "/tmp/x"}, "not allowed here"),
        ({"ansible_ssh_common_args": "-oProxyCommand=x"}, "not allowed here"),
        ({"ansible_host": "{{ lookup('pipe', 'id') }}"}, "a template"),
        ({"base_packages": ["{% x %}"]}, "a template"),
        ({"ansible_host": "-oProxyCommand=x"}, "expected an IP address"),
        ({"ansible_host": "10.0.0.10", "ansible_port": 22}, "duplicate address, got 10.0.0.10, which is also head1's"),
        ({"ansible_port": "22"}, "wrong type"),
        ({"ansible_ssh_private_key_file": "/dev/zero"}, "is not a regular file"),
        ({"cluster_ca_certificates": ["inventory.yaml"]}, "holds no certificate"),
        ({"cluster_jump_host": "elsewhere"}, 'no host "elsewhere"'),
        ({"cluster_name": None}, "wrong type"),
    ],
)
def test_a_node_that_leaves_says_nothing_that_an_inventory_may_not(
    cluster: inventory.Inventory, variables: dict[str, Any], told: str
) -> None:
    given = {"cluster_name": "aurora", "ansible_host": "10.0.0.11", **variables}
    after = kept(cluster, variables=given)
    with pytest.raises(InputError, match=rf"leaving/gpu01\.json: cannot be used: .*{re.escape(told)}"):
        removals.load(after, "gpu01")


@pytest.mark.parametrize(
    "other",
    [
        {"name": "../../../target"},
        {"name": "gpu07"},
        {"groups": ["slurm_workers", "localhost\n"]},
        {"groups": ["slurm_workers", "all"]},
        {"groups": ["slurm_head"]},
        {"groups": ["a100"]},
        {"groups": "slurm_workers"},
        {"groups": []},
        {"keys": [f"10.0.0.11 {KEY}\n* {KEY}"]},
        {"keys": [1]},
        {"variables": []},
    ],
)
def test_a_node_that_leaves_is_the_one_that_its_file_is_named_for(
    cluster: inventory.Inventory, other: dict[str, Any]
) -> None:
    with pytest.raises(InputError, match=r"leaving/gpu01\.json: cannot be used"):
        removals.load(kept(cluster, **other), "gpu01")


def test_a_node_that_leaves_keeps_the_groups_below_the_workers(cluster: inventory.Inventory) -> None:
    node = removals.load(kept(cluster, groups=["a100", "slurm_workers"]), "gpu01")
    assert node
    assert node.groups == ("a100", "slurm_workers")


def test_a_node_that_leaves_may_be_in_a_partition_of_others(cluster: inventory.Inventory) -> None:
    partitions = [{"name": "a", "nodes": ["gpu01", "a100", "gpu02"]}]
    given = {"cluster_name": "aurora", "ansible_host": "10.0.0.11", "slurm_head_partitions": partitions}
    node = removals.load(kept(cluster, variables=given), "gpu01")
    assert node
    assert node.variables["slurm_head_partitions"] == partitions


@pytest.mark.parametrize("name", ["--yes", "../gpu01", "gpu01;id", "all", "GPU01"])
def test_a_name_leads_nowhere_else(cluster: inventory.Inventory, name: str) -> None:
    after = kept(cluster)
    (cluster.directory / home.STATE / "leaving/gpu01.json").rename(cluster.directory / home.STATE / "gpu01.json")
    (cluster.directory / home.STATE / "leaving" / f"{name}.json").write_text("{}")
    assert removals.load(after, name) is None
    assert removals.unfinished(after) == []


@pytest.mark.proves("log_stack", "A host that only stores logs learns of added and removed nodes.")
def test_informed__with_a_host_of_logs_alone__has_it(cluster: inventory.Inventory) -> None:
    cluster.path.write_text(INVENTORY + "    logging: {hosts: {logs1: {ansible_host: 10.0.0.20}}}\n")
    assert inventory.load(cluster.path).informed == ("head1", "logs1")


@pytest.mark.proves("remove-node", "A host that stores metrics or logs is not removed.")
@pytest.mark.parametrize("group", ["monitoring", "logging"])
def test_host__with_metrics_or_logs__is_not_removed(cluster: inventory.Inventory, group: str) -> None:
    cluster.path.write_text(INVENTORY + f"    {group}: {{hosts: {{gpu01: {{}}}}}}\n")
    with pytest.raises(InputError, match=f"gpu01 is also in {group}"):
        remove_node._require_removable(inventory.load(cluster.path), ["gpu01"], ["gpu01", "gpu02"])


def removal(cluster: inventory.Inventory) -> edits.Change:
    """What remove-node gpu01 writes."""
    return edits.removing(cluster, cluster.path, ["gpu01"])


def test_a_node_takes_its_own_files_with_it_and_no_others(cluster: inventory.Inventory) -> None:
    own = cluster.directory / "host_vars/gpu01"
    own.mkdir(parents=True)
    (own / "net.yml").write_text("cluster_address: 10.1.0.11\n")
    change = removal(cluster)
    assert change.gone == (own / "net.yml",)
    assert change.diff().endswith(f"--- {own / 'net.yml'}\n+++ /dev/null\n@@ -1 +0,0 @@\n-cluster_address: 10.1.0.11\n")
    (own / ".mine").write_text("\x1b]0;x\x07")
    with pytest.raises(InputError, match='host_vars/gpu01: no host "gpu01"'):  # it would stand there for nobody
        removal(cluster)
    (own / ".mine").unlink()
    change.save(cluster.directory)
    assert not own.exists()
    assert "gpu01" not in cluster.path.read_text()


@pytest.mark.proves("remove-node", "remove-node deletes no file behind a link.")
@pytest.mark.parametrize("linked", ["host_vars", "host_vars/gpu01"])
def test_no_file_behind_a_link_is_deleted(cluster: inventory.Inventory, tmp_path: Path, linked: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "gpu01").mkdir(parents=True)
    for place in (elsewhere, elsewhere / "gpu01"):
        (place / ".hidden").touch()
        (place / "gpu01.yml").touch()
    link = cluster.directory / linked
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(elsewhere)
    with pytest.raises(InputError, match=f"{linked}: is a link, expected a directory"):
        edits.own_files(cluster, ["gpu01"])


def a_run(cluster: inventory.Inventory, verb: str = "remove-node", **options: Any) -> Run:
    """A run of the cluster that has contacted nobody."""
    asked = Options(verb, cluster.path, **options)
    site = Site(asked, cluster, cluster.hosts, Access(cluster.directory / "known_hosts"))
    return Run(site, Screen(io.StringIO()))


def test_the_proof_of_a_removed_node_is_deleted(cluster: inventory.Inventory) -> None:
    run = a_run(cluster)
    run.site.state.mkdir()
    proof = Proof(HostInputs({}, "", ""), {}, "2026-11-29 12:00 UTC")
    proofs.save(run.site.state, {"gpu01": proof, "head1": proof})
    node = removals.Node.of(cluster.host("gpu01"), cluster)
    remove_node.RemoveFromDirectory(removal(cluster), {"gpu01": node}, ["head1"]).run(run)
    assert [*proofs.load(run.site.state)] == ["head1"]


@pytest.mark.proves("plan", "A plan edits a copy of the inventory only.")
def test_a_plan_writes_into_its_copy_alone(cluster: inventory.Inventory, tmp_path: Path) -> None:
    """Where the inventory is a link, too."""
    real = tmp_path / "elsewhere.yaml"
    cluster.path.rename(real)
    cluster.path.symlink_to(real)
    node = removals.Node.of(cluster.host("gpu01"), cluster)
    (tmp_path / "hardware").mkdir()
    (tmp_path / "hardware/gpu01.json").touch()
    with planning.on_a_copy(a_run(cluster, planned="remove-node").site) as site:
        run = Run(site, Screen(io.StringIO()))
        remove_node.RemoveFromDirectory(removal(cluster), {"gpu01": node}, ["head1"]).plan(run)
        assert "gpu01" not in (site.inventory.directory / "inventory.yaml").read_text()
        assert not (site.inventory.directory / "hardware/gpu01.json").exists()
        assert [host.name for host in run.site.hosts] == ["head1"]
    assert real.read_text() == INVENTORY
    assert (tmp_path / "hardware/gpu01.json").exists()
    assert "[10.0.0.11]:2222" in (tmp_path / "known_hosts").read_text()
    assert list((tmp_path / home.STATE).iterdir()) == []


def test_a_plan_cleans_from_a_folder_that_nobody_has_put_anything_into(
    cluster: inventory.Inventory, tmp_path: Path
) -> None:
    trap = tmp_path / "trap"
    trap.mkdir()
    (cluster.directory / "leaving").symlink_to(trap)
    node = removals.Node.of(cluster.host("gpu01"), cluster)
    with planning.on_a_copy(a_run(cluster, planned="remove-node").site) as site:
        made = removals.written(site, [node])
        assert made.inventory.path.exists()
        # What a plan names of its own run is where it is kept: the copy is gone by the time that it is read.
        assert record.full(OSError(28, "", str(site.state / "runs/x")), RunDirectory(site.state)) == str(
            cluster.directory / home.STATE / "runs/x"
        )
        assert not made.inventory.path.is_relative_to(cluster.directory)
    assert list(trap.iterdir()) == []


class Slurm:
    """A controller that does as it is told; gpu01 has a job."""

    def __init__(self, *jobs: Job) -> None:
        self.jobs, self.done = list(jobs), list[str]()

    def __enter__(self) -> "Slurm":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def is_set_up(self) -> bool:
        return True

    def workloads(self, nodes: list[str]) -> list[Job]:
        return self.jobs

    doomed = workloads

    def drain(self, cause: str, nodes: list[str], reason: str) -> None:
        self.done.append(f"drain {cause} {','.join(nodes)}: {reason}")

    def wait_until_empty(self, nodes: list[str], say: object, seconds: float | None) -> list[Job]:
        self.done.append(f"wait {','.join(nodes)}")
        return []

    def cancel(self, ids: list[str]) -> None:
        self.done.append(f"cancel {','.join(ids)}")


@pytest.mark.proves("replace-node", "A replaced node is drained before the run that proves it.")
@pytest.mark.proves("remove-node", "A node is drained before its jobs are waited for.")
@pytest.mark.parametrize(
    ("verb", "steps"),
    [
        ("replace-node", ["drain bootstrap gpu01: not proven yet"]),
        ("remove-node", ["drain remove-node gpu01: it is being removed", "wait gpu01"]),
    ],
)
def test_node__removed_or_replaced__is_drained_first(
    cluster: inventory.Inventory, monkeypatch: pytest.MonkeyPatch, verb: str, steps: list[str]
) -> None:
    slurm, phases = Slurm(), list[Phase]()
    monkeypatch.setattr(scheduler, "connect", lambda site, kind: slurm)
    monkeypatch.setattr(engine, "execute", lambda options, found, known: phases.extend(found))
    options = Options(verb, cluster.path, nodes=("gpu01",))
    if verb == "replace-node":
        replace_node.replace_node(options)
    else:
        remove_node.remove_node(options, dead=False)
    (at,) = [at for at, phase in enumerate(phases) if isinstance(phase, Drain)]
    phases[at].run(a_run(cluster, verb))
    assert slurm.done == steps
    assert not [phase for phase in phases[:at] if phase.changes_nodes]


def changed(host: str, task: str, *changes: Change) -> Result:
    return Result(host, "base", task, "", "changed", changes=changes)


def test_a_plan_lists_each_item_once_with_its_hosts() -> None:
    ledger = Ledger()
    ledger.add(PlayStarted("Set up", "all", ("head1", "gpu01"), ("base",)))
    ledger.add(TaskStarted("Set up", "base", "Converge", ""))
    item = Change("file", "/etc/hosts", "content")
    munge = Change("unit", "munge.service", "enabled, restarted (x changed)", "restarted")
    chrony = Change("unit", "chrony.service", "restarted, as it says", "started")  # the words decide nothing
    ledger.add(changed("gpu01", "Converge", item, munge))
    ledger.add(changed("head1", "Converge", item, chrony))
    ledger.add(changed("head1", "Enter the users"))
    plan = Plan.of(ledger)
    assert plan.changes == {
        ("base", item): ["head1", "gpu01"],
        ("base", chrony): ["head1"],
        ("base", Change("task", "Enter the users", "")): ["head1"],
        ("base", munge): ["gpu01"],
    }
    assert plan.restarts == {"munge.service enabled, restarted (x changed)": ["gpu01"]}


def shown(plan: Plan) -> list[str]:
    """A plan's lines on a terminal of 80 columns."""
    text = io.StringIO()
    screen = Screen(text)
    screen._force_terminal, screen.width, screen.height, screen.no_color = True, 80, 50, True
    plan.show(screen)
    return re.sub(r"\x1b\[[0-9;]*m", "", text.getvalue()).splitlines()


@pytest.mark.proves("plan", "A plan lists the heads whose control plane restarts, each once.")
def test_plan__changed_and_upgraded_control_planes__are_restarts() -> None:
    ledger = Ledger()
    ledger.add(PlayStarted("Set up", "all", ("head1", "head2", "head3"), ("kubernetes_head",)))
    ledger.add(TaskStarted("Set up", "kubernetes_head", "Set up the first head", ""))
    kind, what = "control plane", "version 1.37.1, was 1.36.3"
    upgraded = Change(kind, "head1", what, "upgraded", "1.36.3", "1.37.1")
    ledger.add(changed("head1", "Set up", upgraded, Change(kind, "head1", "applies kubeadm.yaml", "changed")))
    ledger.add(changed("head2", "Set up", Change(kind, "head2", "applies kubeadm.yaml", "changed")))
    ledger.add(changed("head3", "Set up", Change(kind, "head3", "joined", "created")))
    lines = shown(Plan.of(ledger))
    assert [line for line in lines if "restarted" in line] == [
        "  Services  Kubernetes' control plane restarted on head1, head2"
    ]
    assert any(what in line for line in lines)


def test_a_plan_of_nothing_says_so() -> None:
    assert "  Nothing would change." in shown(Plan())
    assert "  Nothing would change." not in shown(Plan(reboots=["gpu01"]))


@pytest.mark.proves("add-node", "A new node that does not answer is not written into the inventory.")
def test_add_node__new_node_is_skipped__is_refused_and_not_written(
    cluster: inventory.Inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The inventory is written after all nodes were checked."""
    monkeypatch.setattr(add_node, "ENTRY", ())
    monkeypatch.setattr(membership.ConfirmChange, "run", lambda self, run: setattr(run, "site", skipping(run.site)))

    def skipping(site: Site) -> Site:
        return replace(site, skipped=("gpu09",))

    before = cluster.path.read_text()
    options = Options("add-node", cluster.path, nodes=("gpu09",), skip_unreachable=True, yes=True)
    with pytest.raises(PreflightError, match="gpu09: node: was skipped for the reason above and cannot be added"):
        add_node.add_node(options, ["10.0.0.19"], "slurm_workers")
    assert cluster.path.read_text() == before


class Unexpected(Phase):
    """A phase that must not be reached."""

    def run(self, run: Run) -> None:
        pytest.fail("it went on")


@pytest.fixture
def answers_no(monkeypatch: pytest.MonkeyPatch) -> None:
    """A person on a terminal who declines."""
    for stream in (sys.stdin, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda *_: "n")


@pytest.mark.usefixtures("answers_no")
@pytest.mark.proves("add-node", "Who declines a change of the inventory gets exit 7, and nothing changes.")
@pytest.mark.parametrize("verb", ["add-node", "remove-node"])
def test_question__declined__ends_with_7_and_no_change(
    cluster: inventory.Inventory, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    for verb_module in (add_node, remove_node):
        monkeypatch.setattr(verb_module, "ENTRY", (Unexpected(),))
    before = cluster.path.read_text()
    with pytest.raises(Interrupted, match="was not changed, and no node was changed") as caught:
        if verb == "add-node":
            add_node.add_node(Options(verb, cluster.path, nodes=("gpu09",)), ["10.0.0.19"], "slurm_workers")
        else:
            remove_node.remove_node(Options(verb, cluster.path, nodes=("gpu01",)), dead=False)
    assert caught.value.exit_code == 7
    assert cluster.path.read_text() == before


@pytest.mark.usefixtures("answers_no")
@pytest.mark.proves("remove-node", "Who declines to kill jobs gets exit 7, and the jobs go on.")
def test_force__declined__kills_no_job(cluster: inventory.Inventory, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm(Job("57", "alice", "train", "RUNNING", "gpu01"))
    monkeypatch.setattr(scheduler, "connect", lambda site, kind: slurm)
    with pytest.raises(
        Interrupted,
        match=r"No job was killed; gpu01 stays drained \(to put gpu01 back into service instead, on the head",
    ) as caught:
        Drain("remove-node", ["gpu01"], "why", force=True).run(a_run(cluster))
    assert (caught.value.exit_code, slurm.done) == (7, ["drain remove-node gpu01: why"])


def test_force__agreed__kills_the_jobs_and_waits(cluster: inventory.Inventory, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm(Job("57", "alice", "train", "RUNNING", "gpu01"))
    monkeypatch.setattr(scheduler, "connect", lambda site, kind: slurm)
    Drain("remove-node", ["gpu01"], "why", force=True).run(a_run(cluster, yes=True))
    assert slurm.done == ["drain remove-node gpu01: why", "cancel 57", "wait gpu01"]


@pytest.mark.proves("add-node", "--skip-unreachable is not suggested where a new node does not answer.")
@pytest.mark.parametrize(("silent", "hint"), [("gpu09", ""), ("gpu02", preflight.WITHOUT_THEM)])
def test_add_node__does_not_answer__is_not_told_to_skip_it(
    cluster: inventory.Inventory, monkeypatch: pytest.MonkeyPatch, silent: str, hint: str
) -> None:
    class Silent(Phase):
        changes_nodes = False

        def run(self, run: Run) -> None:
            raise PreflightError([Finding(silent, "timeout", "no answer")], preflight.WITHOUT_THEM)

    monkeypatch.setattr(add_node, "ENTRY", (Silent(),))
    options = Options("add-node", cluster.path, nodes=("gpu09",), skip_unreachable=False, yes=True)
    with pytest.raises(PreflightError, match=silent) as caught:
        add_node.add_node(options, ["10.0.0.19"], "slurm_workers")
    assert caught.value.hint == hint


@pytest.mark.proves("add-node", "A node that is a member already is reported before it is set up again.")
@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        (("gpu01",), "gpu01 is already in the inventory; the run configures it again.\n"),
        (("gpu01", "gpu02"), "gpu01, gpu02 are already in the inventory; the run configures them again.\n"),
        (("gpu09", "gpu02"), "gpu02 is already in the inventory; the run configures it again.\n"),
        (("gpu09",), ""),
    ],
)
def test_add_node__of_a_member__is_said_before_the_run(
    cluster: inventory.Inventory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    nodes: tuple[str, ...],
    told: str,
) -> None:
    monkeypatch.setattr(engine, "execute", lambda options, phases, known: 0)
    add_node.add_node(Options("add-node", cluster.path, nodes=nodes), (), "slurm_workers")
    said = capsys.readouterr().out
    assert said.startswith(told)
    assert ("already in the inventory" in said) is bool(told)


def test_a_plan_keeps_a_name_whole_beside_what_fills_its_line() -> None:
    versions = "version 24.11.5-4+deb13u1+lab1, was 24.11.5-4+deb13u1"
    plan = Plan({("slurm_worker", Change("package", "slurmd", versions)): ["gpu01", "gpu02", "gpu03"]})
    assert sum(line.endswith(" gpu[01-03]") for line in shown(plan)) == 1


REBOOT = Change("reboot", "gpu01", "in use", "rebooted")


def test_a_plan_announces_what_a_role_needs_a_reboot_for() -> None:
    ledger = Ledger()
    ledger.add(Result("gpu01", "nvidia_driver", "Load", "", "changed", changes=(REBOOT,)))
    ledger.add(Result("gpu02", "reboot", "Reboot", "", "changed"))
    plan = Plan.of(ledger)
    assert (plan.reboots, plan.changes) == (["gpu01", "gpu02"], {})


def test_a_plan_breaks_no_line_within_a_word_or_a_name() -> None:
    hosts = [f"gpu{number:02}" for number in (1, 2, 3, 5, 7, 9, 11, 13)]
    what = "enabled, restarted (/etc/prometheus/prometheus.yml, package prometheus changed)"
    plan = Plan(
        {("prometheus", Change("unit", "prometheus.service", what)): hosts}, {f"prometheus.service {what}": hosts}
    )
    plan.jobs.append(Job("57", "alice", "train", "RUNNING", "gpu03"))
    lines = shown(plan)
    assert all(len(line) <= 80 for line in lines)
    words = " ".join(lines).split()
    for word in ("(/etc/prometheus/prometheus.yml,", "gpu[01-03,05,07,09,", "prometheus.service:", "gpu03)"):
        assert word in words
