"""A bootstrap leaves out the nodes where nothing has changed, and never one where something has."""

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterctl.run import proofs
from clusterctl.util.errors import Locked
from clusterctl.workspace.home import STATE
from tests.cluster.lab import TestLab, clusterctl, fresh_as
from tests.cluster.leaving_out import decided
from tests.cluster.members import Growing
from tests.faults.injury import begin, cloned, ended, wait_until
from tests.programs import described, output_of, signal_tree, start_for_test


@pytest.fixture(scope="module")
def lab() -> Iterator[Growing]:
    """A cluster with proofs: its second bootstrap has changed nothing, and Prometheus has reached all nodes since."""
    with fresh_as(Growing, "unchanged") as made:
        made.run("bootstrap")
        assert left_out(made.run("bootstrap")) == []
        wait_until(lambda: decided(made) == ALL)
        yield made


ALL = ["gpu01", "gpu02", "head1"]


def left_out(document: dict[str, Any]) -> list[str]:
    """Return the hosts that a run has left out; if it has changed a head, some were tested."""
    unplayed = {name for name, host in document["hosts"].items() if host["status"] == "unchanged"}
    assert unplayed <= {*document["unchanged"]}
    assert all(document["hosts"][name]["changed"] == 0 for name in document["unchanged"])
    return sorted(document["unchanged"])


def roles_of(document: dict[str, Any]) -> set[str]:
    """Return the roles that a run has played, besides its tests."""
    return {stage["role"] for stage in document["stages"]} - {"", "verify"}


def changes(document: dict[str, Any], node: str) -> set[tuple[str, str]]:
    return {(one["kind"], one["name"]) for one in document["hosts"][node]["changes"]}


@pytest.mark.proves("bootstrap", "A third bootstrap leaves out all nodes; --full plays them, and changes nothing.")
def test_bootstrap__of_an_unchanged_cluster__leaves_out_all_nodes(lab: TestLab) -> None:
    done = lab.run("bootstrap")
    assert left_out(done) == ALL
    assert done["stages"] == []
    assert any("homes are not shared" in one["note"] for one in done["notes"]), "a note is repeated"
    assert left_out(lab.run("plan bootstrap")) == decided(lab) == ALL
    page = clusterctl("bootstrap", str(lab.inventory))
    assert "3 nodes, all unchanged." in page.stdout, described(page)
    full = lab.run("bootstrap", "--full")
    assert left_out(full) == []
    assert {name: host["changed"] for name, host in full["hosts"].items()} == dict.fromkeys(lab.nodes, 0)
    assert left_out(lab.run("bootstrap")) == ALL


CHRONY, RECORD = "/etc/chrony/chrony.conf", "/var/lib/clusterctl/state/munge.json"
ACCOUNTS, OLD = "passwd shadow group gshadow", "/root/old"
BY_HAND = {
    "file": (f"echo '# mine' >> {CHRONY}", f"sed -i '/^# mine/d' {CHRONY}"),
    "unit": ("systemctl disable --now prometheus-node-exporter", "systemctl enable --now prometheus-node-exporter"),
    "user": (
        f"mkdir /root/old; cd /etc; cp -a {ACCOUNTS} /root/old; userdel alice",
        "mv /root/old/* /etc; rmdir /root/old",
    ),
    "record": (f"mv {RECORD} /root/record", f"mv /root/record {RECORD}"),
    "package": ("apt-get -q -y purge less", ""),
}
"""By what it changes: what is done to a node by hand, and what undoes it, where that is possible."""


@pytest.mark.proves("bootstrap", "A node that was changed by hand is repaired, and no other worker is played.")
def test_bootstrap__of_a_node_changed_by_hand__repairs_it_alone(lab: TestLab) -> None:
    for name, (damage, undo) in BY_HAND.items():
        lab.root("gpu01", damage)
        assert decided(lab) == ["gpu02"], name
        lab.root("gpu01", undo)
        if undo:
            wait_until(lambda: decided(lab) == ALL)
    for damage, _ in BY_HAND.values():
        lab.root("gpu01", damage)
    said = clusterctl("plan", "bootstrap", str(lab.inventory))
    assert re.search(r"^ +gpu01: to be configured ", said.stdout, re.MULTILINE), described(said)
    done = lab.run("bootstrap")
    assert left_out(done) == ["gpu02"]
    repaired = {("file", CHRONY), ("unit", "prometheus-node-exporter.service"), ("package", "less")}
    assert repaired <= changes(done, "gpu01")
    lab.root("gpu01", f"getent passwd alice; command -v less; test -e {RECORD}; ! grep mine {CHRONY}")
    assert left_out(lab.run("bootstrap")) == ["gpu02"]  # proves that nothing is left to repair
    assert decided(lab) == ALL


@pytest.mark.proves("bootstrap", "A file that was edited is repaired by its role alone.")
def test_bootstrap__of_an_edited_file__plays_its_role_alone(lab: TestLab) -> None:
    lab.root("gpu01", f"echo '# mine' >> {CHRONY}")
    done = lab.run("bootstrap")
    assert (left_out(done), roles_of(done)) == (["gpu02"], {"base"})
    assert changes(done, "gpu01") == {("file", CHRONY), ("unit", "chrony.service")}
    assert any(stage["role"] == "verify" and "gpu01" in stage["hosts"] for stage in done["stages"])
    again = lab.run("bootstrap")
    assert (left_out(again), roles_of(again)) == (["gpu02"], {"base"})
    assert decided(lab) == ALL


DAVE = "{name: dave, uid: 10077}"


def add_dave(lab: TestLab) -> None:
    """Add a user to the inventory."""
    text = lab.inventory.read_text()
    lab.inventory.write_text(re.sub(r"(?m)^( +)users_accounts:\n", rf"\g<0>\g<1>  - {DAVE}\n", text))
    assert "dave" in lab.inventory.read_text()


UPDATE = r"sed -i '/^Package: chrony$/,/^$/ s/^\(Version: .*\)/\1+1/' /var/lib/dpkg/status"


@pytest.mark.proves("bootstrap", "An update of a package plays the role that names it, once.")
def test_bootstrap__of_an_updated_package__plays_its_role_once(lab: TestLab) -> None:
    """Simulated: dpkg has a newer version of the same files."""
    wait_until(lambda: decided(lab) == ALL)
    lab.root("gpu01", UPDATE)
    done = lab.run("bootstrap")
    assert (left_out(done), roles_of(done)) == (["gpu02"], {"base", "packages"})  # packages has those of all roles
    assert done["hosts"]["gpu01"]["changed"] == 0
    wait_until(lambda: decided(lab) == ALL)


@pytest.mark.proves("bootstrap", "A new user plays only the roles that read the users, and can run jobs.")
def test_bootstrap__of_a_new_user__plays_the_roles_of_users(lab: TestLab) -> None:
    add_dave(lab)
    plan = lab.run("plan bootstrap", expect=10)
    done = lab.run("bootstrap")
    concerned = {"base", "slurm_logins", "users"}
    assert roles_of(plan) == roles_of(done) == concerned
    assert left_out(plan) == left_out(done) == []
    assert {node for stage in done["stages"] if stage["role"] == "base" for node in stage["hosts"]} == {"head1"}
    for node in lab.nodes:
        lab.root(node, "id -u dave")
    assert "dave" in lab.root("head1", "cd /; runuser -u dave -- srun id -un")
    again = lab.run("bootstrap")
    assert roles_of(again) <= concerned
    assert {name: host["changed"] for name, host in again["hosts"].items()} == dict.fromkeys(lab.nodes, 0)
    assert decided(lab) == ALL
    lab.unchanged()


@pytest.mark.proves("bootstrap", "A variable of all nodes that changes plays all nodes.")
def test_bootstrap__of_a_changed_inventory__plays_all(lab: TestLab) -> None:
    lab.declare("cluster_timezone: Europe/Berlin")
    done = lab.run("bootstrap")
    assert left_out(done) == []
    assert roles_of(done) == {"base", "filebeat", "packages"}
    for node in lab.nodes:
        assert "Berlin" in lab.root(node, "readlink /etc/localtime")
    assert left_out(lab.run("bootstrap")) == []
    assert decided(lab) == ALL


@pytest.mark.proves("bootstrap", "A variable of one node that changes plays that node, and the head.")
def test_bootstrap__of_a_variable_of_one_node__plays_it_alone(lab: TestLab) -> None:
    file = lab.inventory.parent / "host_vars/gpu01.yml"
    file.parent.mkdir(exist_ok=True)
    for text, zone in (("cluster_timezone: Asia/Tokyo\n", "Tokyo"), ("{}\n", "Berlin")):
        file.write_text(text)
        done = lab.run("bootstrap")
        assert left_out(done) == ["gpu02"]
        assert done["hosts"]["gpu02"]["status"] == "unchanged", "it was not even tested"
        assert changes(done, "head1") == {("file", "/var/lib/clusterctl/recovery.tar")}
        assert zone in lab.root("gpu01", "readlink /etc/localtime")
    assert left_out(lab.run("bootstrap")) == ["gpu02"]
    assert decided(lab) == ALL


@pytest.mark.proves("bootstrap", "A node that is out of service or fails a test is not left out.")
@pytest.mark.parametrize(
    ("node", "fault", "repair"),
    [
        ("head1", "scontrol update NodeName=gpu02 State=DOWN Reason=test",
         "scontrol update NodeName=gpu02 State=RESUME"),
        ("head1", "slurm-drain test --out gpu02 --reason test", "slurm-drain test --in gpu02"),
        ("head1", "scontrol update NodeName=gpu02 State=DRAIN Reason=mine",
         "scontrol update NodeName=gpu02 State=UNDRAIN"),
        ("gpu02", "mv /run/munge/munge.socket.2 /run/munge/hidden", "mv /run/munge/hidden /run/munge/munge.socket.2"),
        ("gpu02", "nft 'add table inet mine; add chain inet mine input { type filter hook input priority -9; };"
         " add rule inet mine input tcp dport 9100 drop'", "nft delete table inet mine"),
    ],
    ids=["down", "drained", "drained by hand", "munge", "metrics"],
)  # fmt: skip
def test_bootstrap__of_a_node_that_does_not_serve__plays_it(lab: TestLab, node: str, fault: str, repair: str) -> None:
    lab.root(node, fault)
    try:
        wait_until(lambda: decided(lab) == ["gpu01"])  # Prometheus notices at its next scrape
    finally:
        lab.root(node, repair)
    wait_until(lambda: decided(lab) == ALL)


@pytest.mark.proves("bootstrap", "Rules of the firewall that were flushed by hand are loaded again.")
@pytest.mark.parametrize(
    "fault",
    [
        "nft flush ruleset",
        "nft flush chain inet clusterctl output",
        "nft 'chain inet clusterctl input { policy accept; }'; nft flush chain inet clusterctl input",
        "nft insert rule inet clusterctl input accept",
    ],
)
def test_bootstrap__of_a_flushed_firewall__loads_its_rules_again(lab: TestLab, fault: str) -> None:
    """Its table alone would not show it, nor would the file of the rules or the unit."""
    firewall = "clusterctl-firewall status"
    lab.root("gpu02", firewall)
    lab.root("gpu02", fault)
    assert decided(lab) == ["gpu01"]
    done = lab.run("bootstrap")
    lab.root("gpu02", firewall)
    assert ("file", "/etc/clusterctl/firewall.nft") in changes(done, "gpu02")
    assert changes(lab.run("bootstrap"), "gpu02") == set()
    wait_until(lambda: decided(lab) == ALL)


@pytest.mark.proves("bootstrap", "Nodes that --limit names are played, with --full all.")
def test_bootstrap__of_nodes_that_are_named__plays_them(lab: TestLab) -> None:
    assert left_out(lab.run("plan bootstrap", "--limit", "gpu01")) == []
    assert left_out(lab.run("plan bootstrap", "--full")) == []


SQL = "mariadb --skip-column-names --execute"
ON_HEAD = {
    "unit": ("systemctl stop prometheus-alertmanager", "systemctl start prometheus-alertmanager", ["gpu01", "gpu02"]),
    "metrics": ("systemctl stop prometheus", "systemctl start prometheus", []),  # what it reaches is unknown
    "controller": ("systemctl stop slurmctld", "systemctl start slurmctld", []),  # which nodes serve is unknown
    "database": (
        "mariadb -e \"CREATE USER ''@localhost\"",
        "mariadb -e \"DROP USER ''@localhost\"",
        ["gpu01", "gpu02"],
    ),
    "accounting": ("sacctmgr --immediate delete user alice", "", ["gpu01", "gpu02"]),
}


@pytest.mark.proves("bootstrap", "What was changed by hand on a head, in its databases too, is repaired.")
def test_bootstrap__of_a_head_changed_by_hand__repairs_it_alone(lab: TestLab) -> None:
    for name, (damage, undo, rest) in ON_HEAD.items():
        lab.root("head1", damage)
        assert decided(lab) == rest, name
        lab.root("head1", undo)
        if undo:
            wait_until(lambda: decided(lab) == ALL)
    for name in ("unit", "database"):
        lab.root("head1", ON_HEAD[name][0])
    assert left_out(lab.run("bootstrap")) == ["gpu01", "gpu02"]
    lab.root("head1", "systemctl is-active prometheus-alertmanager; sacctmgr --noheader show user alice | grep alice")
    assert lab.root("head1", f"{SQL} \"SHOW GRANTS FOR ''@localhost\"", check=False) == ""
    assert left_out(lab.run("bootstrap")) == ["gpu01", "gpu02"]
    assert decided(lab) == ALL


def is_tested(document: dict[str, Any], node: str) -> bool:
    return any(stage["role"] == "verify" and node in stage["hosts"] for stage in document["stages"])


@pytest.mark.proves("bootstrap", "After a run for the head alone the next one tests all workers.")
def test_bootstrap__after_one_of_the_head_alone__tests_all_workers(lab: TestLab) -> None:
    lab.root("head1", "echo '# mine' >> /etc/slurm/slurm.conf")
    assert not is_tested(lab.run("bootstrap", "--limit", "head1"), "gpu02")
    done = lab.run("bootstrap")
    assert (left_out(done), is_tested(done, "gpu02")) == (["gpu01", "gpu02"], True)
    assert decided(lab) == ALL


@pytest.mark.proves("bootstrap", "If the head was repaired, the workers that were left out are tested with it.")
def test_bootstrap__that_repairs_the_head__tests_all_workers(lab: TestLab) -> None:
    lab.root("head1", "echo '# mine' >> /etc/slurm/slurm.conf")
    done = lab.run("bootstrap")
    assert left_out(done) == ["gpu01", "gpu02"]
    assert ("file", "/etc/slurm/slurm.conf") in changes(done, "head1")
    assert is_tested(done, "gpu02"), done["stages"]


@pytest.mark.proves("bootstrap", "After a killed run no node is left out that it may have changed.")
def test_bootstrap__after_a_killed_run__plays_what_it_began(lab: TestLab) -> None:
    """The inventory is then as before the killed run: its inputs alone would be those of the proof."""
    text = lab.inventory.read_text()
    assert decided(lab) == ["gpu01", "gpu02"], "the head was repaired by the test before"
    lab.inventory.write_text(text.replace("Europe/Berlin", "Asia/Tokyo"))
    running = start_for_test(["clusterctl", "bootstrap", str(lab.inventory)])
    wait_until(lambda: "Tokyo" in lab.root("gpu01", "readlink /etc/localtime"))
    running.kill()
    running.wait(60)
    lab.inventory.write_text(text)
    done = lab.run("bootstrap")
    assert left_out(done) == []
    assert "Berlin" in lab.root("gpu01", "readlink /etc/localtime")
    lab.unchanged()


@pytest.mark.proves("bootstrap", "A run that is paused while another controller runs stores no proof.")
def test_bootstrap__paused_while_another_controller_runs__stores_no_proof(lab: TestLab, tmp_path: Path) -> None:
    """A laptop is closed meanwhile: the head releases the lock, and a clone of the directory changes all nodes."""
    other = cloned(lab, tmp_path / "clone")
    (other.parent / "group_vars").mkdir()
    (other.parent / "group_vars/all.yml").write_text("cluster_timezone: Asia/Tokyo\n")
    wait_until(lambda: decided(lab) == ALL)
    lab.root("gpu01", f"echo '# mine' >> {CHRONY}")
    paused = begin(lab)
    signal_tree(paused, signal.SIGSTOP)
    try:
        wait_until(lambda: clusterctl("bootstrap", str(other)).returncode != Locked.exit_code)
    finally:
        signal_tree(paused, signal.SIGCONT)
    assert "Tokyo" in lab.root("gpu02", "readlink /etc/localtime")
    ended(paused, 0)
    assert "gpu01" not in proofs.load(lab.inventory.parent / STATE)
    assert left_out(lab.run("bootstrap")) == []
    for node in lab.nodes:
        assert "Tokyo" not in lab.root(node, "readlink /etc/localtime")
    lab.unchanged()


@pytest.mark.proves("bootstrap", "Another secret plays only the roles that name it.")
def test_bootstrap__of_another_secret__plays_the_roles_that_name_it(lab: Growing) -> None:
    wait_until(lambda: decided(lab) == ALL)
    argv = ["clusterctl", "secret", "set", str(lab.inventory), "alertmanager_slack_url"]
    output_of(argv, 60, input="https://hooks.example/services/1\n")
    done = lab.run("bootstrap")
    assert left_out(done) == ["gpu01", "gpu02"]
    assert (done["only_roles"], roles_of(done)) == (["alertmanager", "base"], {"alertmanager", "base"})


@pytest.mark.proves("bootstrap", "After add-node, a bootstrap plays the new node and the heads, and no other worker.")
def test_bootstrap__after_a_node_was_added__plays_no_other_worker(lab: Growing) -> None:
    lab.root("gpu01", "touch /var/lib/dpkg/status")  # as an update of a package does that no role names
    lab.add()
    done = lab.run("bootstrap")
    assert left_out(done) == ["gpu01", "gpu02"]
    assert {name: done["hosts"][name]["changed"] for name in ("gpu03", "head1")} == {"gpu03": 0, "head1": 0}
    wait_until(lambda: decided(lab) == sorted([*ALL, "gpu03"]))
