"""Packages move while jobs run: `plan upgrade`, `upgrade`, pins, and what a failure half-way leaves."""

import json
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.lab import TestLab, clusterctl, podman, submit
from tests.cluster.members import AT_ONCE, Growing, accounted, go_on, states
from tests.cluster.test_plan import changed, listed
from tests.faults.injury import (
    begin,
    container,
    ended,
    fails,
    gateway,
    in_service,
    inventory_with,
    latest_run,
    stuck_file,
    wait_until,
    watched,
)
from tests.faults.repository import repository
from tests.manifests import differences

WORKERS = ("gpu01", "gpu02")
# Debian's own packages of Slurm, with a higher version and nothing else; made once.
RAISE = r"""
[ ! -e /tmp/raised/new ] || exit 0
rm -rf /tmp/raised; mkdir -p /tmp/raised/part; cd /tmp/raised
ours=$(dpkg-query --show --showformat '${Package} ${source:Package}\n' | sed -n 's/ slurm-wlm$//p')
apt-get -qq download slurmd libpam-slurm-adopt $ours hostname
for package in *.deb; do
  dpkg-deb --raw-extract $package root
  sed -i "s/$(dpkg-deb --field $package Version)/&+lab1/g" root/DEBIAN/control
  dpkg-deb --root-owner-group -Zgzip -z1 --build root part/ >/dev/null
  rm -r root
done
mv part new
"""
SOURCE, KEY = "/etc/apt/sources.list.d/site.sources", "/etc/apt/keyrings/site.asc"
RAISED = "+lab1"
PUT_RIGHT = "uid 0, was 64030, gid 0, was 64030"
OTHER = "hostname"


@pytest.fixture(scope="module")
def lab(members: Growing) -> Iterator[Growing]:
    """The last file that needs it takes it down."""
    yield members
    members.down()


@pytest.fixture(scope="module")
def newer(lab: TestLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The nodes have a source that offers a newer Slurm."""
    folder: Path = tmp_path_factory.mktemp("packages") / "new"
    lab.root("head1", RAISE)
    podman("cp", f"{container(lab, 'head1')}:/tmp/raised/new", str(folder))
    with repository(gateway(lab), packages=folder) as (url, public):
        lines = f"Types: deb\nURIs: {url}\nSuites: ./\nSigned-By: {KEY}\n"
        for node in lab.nodes:
            lab.ssh(node, "sudo", "tee", KEY, stdin=public)
            lab.ssh(node, "sudo", "tee", SOURCE, stdin=lines)
        yield


def versions(lab: TestLab, node: str) -> dict[str, str]:
    """What is installed of Slurm, less its library, which moves when a package needs a newer one."""
    shown = lab.root(node, r"dpkg-query --show --showformat '${Package} ${Version} ${source:Package}\n'")
    rows = [row.split() for row in shown.splitlines()]
    return {row[0]: row[1] for row in rows if row[-1] == "slurm-wlm" and not row[0].startswith("libslurm")}


def changes(document: dict[str, Any]) -> set[tuple[str, str, str, str]]:
    """Host, kind, name and what of all that a plan lists."""
    return {
        (host, change["kind"], change["name"], change["what"])
        for change in document["changes"]
        for host in change["hosts"]
    }


def done(summary: dict[str, Any]) -> set[tuple[str, str, str, str]]:
    """The same of what a run says that it did, but its backup and that nodes are in service again."""
    return {
        (host, change["kind"], change["name"], change["what"])
        for host, result in summary["hosts"].items()
        for change in result["changes"]
        if change["role"] != "backup" and change["kind"] != "task"
    }


def emptied(lab: TestLab) -> AbstractContextManager[None]:
    """Meanwhile let the jobs of each worker end as soon as it is out of service."""

    def look() -> None:
        for node in drained(lab):
            lab.root(node, "touch /var/tmp/enough")

    return watched(look)


def drained(lab: TestLab) -> set[str]:
    """The workers that Slurm has as draining or drained; none while its controller is restarted and does not answer."""
    rows = lab.ssh("head1", "sinfo", "--noheader", "--Node", "--format=%N=%T", check=False).split()
    return {node for node, state in (row.split("=") for row in rows) if state.startswith("drain")}


def started(lab: TestLab, node: str) -> str:
    """When a node's first process began; its kernel is the host's."""
    return lab.root(node, "awk '{print $22}' /proc/1/stat")


@pytest.mark.proves("jobs", "Fifty running jobs survive a killed slurmctld and a stopped database.")
@pytest.mark.proves("jobs", "A job that ends while the database is stopped is accounted for later.")
def test_jobs_outlive_slurmctlds_sudden_end_and_the_databases_absence(lab: Growing, jobs: str) -> None:
    """Meanwhile a job begins and ends, of which accounting hears once there is a database, and packages are made."""
    # slurmctld saves its state some seconds after a change; what it has not saved a sudden end takes with it.
    now = int(lab.root("head1", f"scontrol update jobid={jobs} comment=saved; date +%s"))
    wait_until(lambda: int(lab.root("head1", "stat --format=%Y /var/lib/slurm/slurmctld/job_state")) > now)
    lab.root("head1", "systemctl kill --signal KILL slurmctld")
    wait_until(lambda: lab.root("head1", "scontrol ping", check=False).count("is UP"))
    lab.root("head1", "systemctl stop mariadb")
    try:
        lab.root("head1", "if sacct --allusers; then exit 1; fi")
        number = submit(lab, "true")
        wait_until(lambda: number not in lab.ssh("head1", "sudo", "squeue", "--noheader", "--format=%i").split())
        lab.root("head1", RAISE)
    finally:
        lab.root("head1", "systemctl start mariadb")
    go_on(lab, jobs)
    wait_until(lambda: states(lab, number) == ["COMPLETED"])


@pytest.mark.proves("upgrade", "Slurm moves to a newer signed version while fifty jobs run.")
@pytest.mark.proves("jobs", "A hundred jobs survive membership changes, a new configuration and an upgrade.")
@pytest.mark.proves("upgrade", "Each job starts once, ends once and is accounted for without a restart.")
@pytest.mark.proves(
    "upgrade", "An upgrade changes exactly what its plan lists, judged by manifests, besides its backup."
)
@pytest.mark.proves("plan", "`plan upgrade` lists the restarted services and changes nothing.")
def test_jobs_outlive_an_upgrade_that_does_what_its_plan_has_listed(lab: Growing, newer: None, jobs: str) -> None:
    before = lab.manifests()
    said = clusterctl("plan", "upgrade", str(lab.inventory), "--output", "json")
    assert said.returncode == 10, said.stdout + said.stderr
    plan = json.loads(said.stdout)
    assert len(plan["jobs"]) == AT_ONCE
    assert {unit["unit"].split()[0] for unit in plan["restarts"]} == {
        "slurmctld.service", "slurmdbd.service", "slurmd.service"
    }  # fmt: skip
    assert differences(before, lab.manifests()) == []
    with emptied(lab):
        summary = lab.run("upgrade")
    assert summary["steps"] == [["head1"], ["gpu01"], ["gpu02"]]
    # What Debian's slurmd does to its folder at each installation no plan can know; the role puts it right again.
    assert done(summary) - changes(plan) <= {
        (node, "directory", "/var/lib/slurm/slurmd", PUT_RIGHT) for node in WORKERS
    }
    assert changes(plan) <= done(summary)
    for node in lab.nodes:
        assert all(version.endswith(RAISED) for version in versions(lab, node).values())
    seen, expected = changed(before, lab.manifests()), listed(plan)
    (archive,) = (change["name"] for change in summary["hosts"]["head1"]["changes"] if change["kind"] == "backup")
    backup = {("head1", "path", archive), ("head1", "path", str(Path(archive).parent))}
    assert seen - expected == backup, "beside its backup nothing changes that its plan has not listed"
    assert {item for item in expected - seen if item[1] != "unit"} == set()
    accounted(lab, jobs, WORKERS)
    assert {state.rstrip("*") for state in in_service(lab).values()} == {"idle"}
    assert json.loads(lab.root("head1", "slurm-drain")) == {}


@pytest.mark.proves("upgrade", "A bootstrap after an upgrade changes nothing.")
def test_after_an_upgrade_a_bootstrap_changes_nothing(lab: Growing) -> None:
    lab.unchanged()
    assert clusterctl("plan", "upgrade", str(lab.inventory)).returncode == 0


@pytest.mark.proves("upgrade", "An upgrade with nothing newer changes nothing.")
@pytest.mark.long
def test_an_upgrade_without_anything_newer_changes_nothing(lab: Growing) -> None:
    before = lab.manifests()
    lab.unchanged("upgrade")
    assert differences(before, lab.manifests()) == []


@pytest.fixture
def pinned(lab: Growing) -> Iterator[str]:
    """Slurm is pinned to the version that Debian has, which is older than what is installed; the version."""
    older = versions(lab, "head1")["slurmctld"].removesuffix(RAISED)
    with inventory_with(lab, f'slurm_head_version: "{older}"'):
        yield older
    lab.run("bootstrap")  # the head's copy of the cluster's directory has the pin


@pytest.mark.proves("upgrade", "A worker that dies in its batch stops the next batch; exit 4.")
@pytest.mark.proves("upgrade", "The same command continues with both workers and leaves out the finished head.")
@pytest.mark.proves("upgrade", "A lower pin moves packages down; until `upgrade` nothing moves.")
@pytest.mark.proves("upgrade", "A drained worker is upgraded and keeps the operator's drain.")
@pytest.mark.long
def test_a_worker_that_dies_in_its_batch_stops_the_next_and_the_same_command_goes_on(
    lab: Growing, newer: None, pinned: str
) -> None:
    """Downwards, as the pin says; till then nothing moves. What an operator drained is moved and stays drained."""
    said = fails(lab, 0)
    assert f"slurmctld {pinned}{RAISED} is pinned to {pinned}: see clusterctl upgrade" in said
    assert versions(lab, "head1")["slurmctld"] == pinned + RAISED
    lab.root("head1", "scontrol update NodeName=gpu02 State=DRAIN Reason=ops")
    run = begin(lab, "upgrade")
    log = latest_run(lab) / "events.jsonl"
    # A rehearsal comes first, then the backup.
    wait_until(lambda: '"host": "gpu01", "role": "munge"' in log.read_text().partition('"role": "backup"')[2])
    podman("kill", container(lab, "gpu01"))
    said = ended(run, 4)
    assert "gpu01 failed, and gpu01 stays drained; not started: gpu02" in said
    assert versions(lab, "head1")["slurmctld"] == pinned
    assert versions(lab, "gpu02")["slurmd"] == pinned + RAISED
    text = lab.inventory.read_text()
    lab.up()
    assert lab.inventory.read_text() == text
    summary = lab.run("upgrade")
    assert summary["steps"] == [["gpu01"], ["gpu02"]], summary["planned"]
    assert {*versions(lab, "gpu01").values(), *versions(lab, "gpu02").values()} == {pinned}
    assert in_service(lab) == {"gpu01": "idle", "gpu02": "drained"}
    assert "ops" in lab.ssh("head1", "sinfo", "--list-reasons")
    assert json.loads(lab.root("head1", "slurm-drain")) == {}
    lab.root("head1", "scontrol update NodeName=gpu02 State=UNDRAIN")
    lab.unchanged()


@pytest.mark.proves("upgrade", "`upgrade --os` upgrades the system's other packages and leaves Slurm's.")
@pytest.mark.proves("upgrade", "`upgrade --os` reboots exactly the node that requests it.")
@pytest.mark.proves("upgrade", "`upgrade --os` reports exactly the changes of its plan.")
@pytest.mark.proves("upgrade", "`upgrade --os --no-reboot` upgrades and reboots nothing.")
@pytest.mark.long
def test_the_rest_of_the_system_is_upgraded_and_rebooted_where_it_asks_for_it(lab: Growing, newer: None) -> None:
    """A package of the system with a raised version comes; Slurm, of which there is a newer one too, stays."""
    here = {node: versions(lab, node) for node in lab.nodes}
    before = {node: started(lab, node) for node in lab.nodes}
    lab.root("gpu02", "touch /run/reboot-required")
    said = clusterctl("plan", "upgrade", str(lab.inventory), "--os", "--no-reboot", "--output", "json")
    assert said.returncode == 10, said.stdout + said.stderr
    plan = json.loads(said.stdout)
    assert {name for _, _, name, _ in changes(plan)} >= {OTHER}
    assert done(lab.run("upgrade", "--os", "--no-reboot")) == changes(plan)
    assert {node: started(lab, node) for node in lab.nodes} == before

    said = clusterctl("plan", "upgrade", str(lab.inventory), "--os", "--output", "json")
    assert said.returncode == 10, said.stdout + said.stderr
    assert json.loads(said.stdout)["reboots"] == ["gpu02"]
    lab.run("upgrade", "--os")
    assert {node: versions(lab, node) for node in lab.nodes} == here
    assert {node for node in lab.nodes if started(lab, node) != before[node]} == {"gpu02"}
    for node in lab.nodes:
        assert lab.root(node, f"dpkg-query --show --showformat '${{Version}}' {OTHER}").endswith(RAISED)
    assert clusterctl("plan", "upgrade", str(lab.inventory), "--os").returncode == 0
    lab.unchanged()


@pytest.mark.proves("upgrade", "A head that cannot be upgraded stops the run; workers stay unchanged; exit 5.")
@pytest.mark.long
def test_a_head_that_cannot_be_upgraded_stops_it_before_a_worker(lab: Growing, newer: None) -> None:
    before = {node: lab.manifest(node) for node in WORKERS}
    with stuck_file(lab, "head1"):
        fails(lab, 5, verb="upgrade")
    assert differences(before, {node: lab.manifest(node) for node in WORKERS}) == []
    assert set(in_service(lab).values()) == {"idle"}


@pytest.mark.proves("upgrade", "`--batch 2` drains and upgrades two workers at once.")
@pytest.mark.long
def test_upgrade__batch_of_two__moves_both_workers_at_once(lab: Growing, newer: None) -> None:
    """Also after a run that had failed on the head: the same command goes on."""
    assert not any(versions(lab, node)["slurmd"].endswith(RAISED) for node in WORKERS), "there is something to move"
    seen: list[set[str]] = []
    with watched(lambda: seen.append(drained(lab))):
        summary = lab.run("upgrade", "--batch", "2")
    assert summary["steps"] == [["head1"], [*WORKERS]]
    assert {*WORKERS} in seen, "both are out of service at the same time"
    assert moves(lab, "slurmd") == [{*WORKERS}], "one playbook moved both"
    assert {version.endswith(RAISED) for node in WORKERS for version in versions(lab, node).values()} == {True}
    assert set(in_service(lab).values()) == {"idle"}
    lab.unchanged()


@pytest.mark.proves("upgrade", "`--max-failures 2` continues with the other worker after one fails; exit 4.")
@pytest.mark.long
def test_upgrade__one_failure_is_allowed__moves_the_other_worker(lab: Growing, newer: None, pinned: str) -> None:
    """Downwards, as the pin says; the same command then moves the one that failed."""
    assert all(versions(lab, node)["slurmd"] == pinned + RAISED for node in WORKERS), "there is something to move"
    with stuck_file(lab, "gpu01"):
        said = fails(lab, 4, "--max-failures", "2", verb="upgrade")
        assert "gpu01 failed" in said
        assert "not started" not in said
        assert versions(lab, "gpu02")["slurmd"] == pinned
        assert in_service(lab) == {"gpu01": "drained", "gpu02": "idle"}
    summary = lab.run("upgrade", "--max-failures", "2")
    assert "gpu01" in [node for step in summary["steps"] for node in step]
    assert {*versions(lab, "gpu01").values(), *versions(lab, "gpu02").values()} == {pinned}
    assert set(in_service(lab).values()) == {"idle"}
    lab.unchanged()


def moves(lab: TestLab, package: str) -> list[set[str]]:
    """The hosts on which each playbook of the last run moved a package, rehearsals left out."""
    playbooks: list[set[str]] = []
    for line in (latest_run(lab) / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "playbook":
            rehearsal = event["check"]
            playbooks.append(set())
        elif event["event"] == "result" and not rehearsal:
            playbooks[-1] |= {event["host"] for change in event["changes"] if change["name"] == package}
    return [hosts for hosts in playbooks if hosts]


@pytest.mark.proves("reboot", "Head and an empty worker are rebooted while another worker's job runs.")
@pytest.mark.long
def test_nodes_are_rebooted_around_their_jobs(lab: Growing) -> None:
    """The head too, while a job runs elsewhere."""
    number = submit(lab, "until [ -e /var/tmp/go ]; do sleep 1; done", "--nodelist=gpu02")
    wait_until(lambda: "RUNNING" in states(lab, number))
    before = {node: started(lab, node) for node in lab.nodes}
    summary = lab.run("reboot", "head1", "gpu01")
    assert summary["steps"] == [["head1"], ["gpu01"]]
    assert {node for node in lab.nodes if started(lab, node) != before[node]} == {"head1", "gpu01"}
    assert states(lab, number) == ["RUNNING"]
    lab.root("gpu02", "touch /var/tmp/go")
    wait_until(lambda: states(lab, number) == ["COMPLETED"])
    assert set(in_service(lab).values()) == {"idle"}
    lab.unchanged()


@pytest.mark.proves("reboot", "A node that comes back with fewer GPUs stays drained; exit 4.")
@pytest.mark.long
def test_a_node_that_comes_back_with_a_gpu_less_stays_out(lab: Growing) -> None:
    (place,) = (path for path in lab.inventory.parent.rglob("gpu01/simulated-nvml.conf"))
    whole = place.read_text()
    try:
        place.write_text(re.sub(r"(?m)^gpus=\d+", "gpus=1", whole))
        said = fails(lab, 4, "gpu01", verb="reboot")
        assert "GPU" in said
        assert in_service(lab)["gpu01"] == "drained"
        assert "reboot" in json.loads(lab.root("head1", "slurm-drain"))["gpu01"]
    finally:
        place.write_text(whole)
    lab.run("reboot", "gpu01")
    assert set(in_service(lab).values()) == {"idle"}
