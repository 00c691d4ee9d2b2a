"""Packages move while jobs run: `plan upgrade`, `upgrade`, pins, and what a failure half-way leaves."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import TestLab, clusterctl, podman
from tests.cluster.test_bootstrap import ALICE, differences
from tests.cluster.test_membership import AT_ONCE, CROWDED, JOBS, PATIENT, accounted, actual, states
from tests.faults.injury import container, gateway, in_service, wait_until
from tests.faults.repository import repository
from tests.labs import lab_name

WORKERS = ("gpu01", "gpu02")
# Each ends when its node may be emptied; those that come later find that it may.
JOB = r"""#!/bin/sh
echo begin >> /var/tmp/count.$SLURM_ARRAY_TASK_ID
until [ -e /tmp/enough ]; do sleep 1; done
echo end >> /var/tmp/count.$SLURM_ARRAY_TASK_ID
"""
# Debian's own packages of Slurm, with a higher version and nothing else.
RAISE = r"""
mkdir -p /tmp/raised/new; cd /tmp/raised
old=$(dpkg-query --show --showformat '${Version}' slurmctld)
ours=$(dpkg-query --show --showformat '${Package} ${source:Package}\n' | sed -n 's/ slurm-wlm$//p')
apt-get -qq download slurmd $ours
for package in *.deb; do
  dpkg-deb --raw-extract $package root
  sed -i "s/$old/$old+lab1/" root/DEBIAN/control
  dpkg-deb --root-owner-group -Zgzip -z1 --build root new/ >/dev/null
  rm -r root
done
"""
SOURCE, KEY, DIRECT = "sources.list.d/site.sources", "/etc/apt/keyrings/site.asc", "apt.conf.d/99site"
RAISED = "+lab1"


@pytest.fixture(scope="module")
def lab() -> Iterator[TestLab]:
    lab = TestLab(lab_name("upgrade"))
    lab.down()
    lab.up()
    lines = "".join(f"    {line}\n" for line in (CROWDED, PATIENT, f"cluster_no_proxy: [{gateway(lab)}]"))
    lab.inventory.write_text(lab.inventory.read_text().replace("  vars:\n", f"  vars:\n{lines}", 1))
    lab.run("bootstrap")
    yield lab
    lab.down()


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
            lab.ssh(node, "sudo", "tee", f"/etc/apt/{SOURCE}", stdin=lines)
            direct = f'Acquire::http::Proxy::{gateway(lab)} "DIRECT";\n'
            lab.ssh(node, "sudo", "tee", f"/etc/apt/{DIRECT}", stdin=direct)
        yield


@pytest.fixture(scope="module")
def jobs(lab: TestLab) -> str:
    """Fifty jobs that run and fifty that wait; the array's number."""
    submit = ["sbatch", "--parsable", f"--array=1-{JOBS}%{AT_ONCE}", "--mem=1M", "--chdir=/", "--output=none"]
    number = lab.ssh("head1", *ALICE, *submit, stdin=JOB).strip()
    wait_until(lambda: states(lab, number).count("RUNNING") == AT_ONCE)
    return number


def versions(lab: TestLab, node: str) -> dict[str, str]:
    """What is installed of Slurm."""
    shown = lab.root(node, r"dpkg-query --show --showformat '${Package} ${Version} ${source:Package}\n'")
    rows = [row.split() for row in shown.splitlines()]
    return {row[0]: row[1] for row in rows if row[-1] == "slurm-wlm"}


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
        if change["kind"] not in ("backup", "task")
    }


def emptied(lab: TestLab) -> None:
    """As soon as a worker is out of service let its jobs end, one worker after the other."""
    for node in WORKERS:
        wait_until(lambda node=node: in_service(lab)[node].startswith("drain"))  # type: ignore[misc]
        lab.root(node, "touch /tmp/enough")


def test_nothing_is_to_be_upgraded_without_anything_newer(lab: TestLab) -> None:
    before = lab.manifests()
    assert clusterctl("plan", "upgrade", str(lab.inventory)).returncode == 0
    summary = lab.run("upgrade")
    assert {name: host["changed"] for name, host in summary["hosts"].items()} == dict.fromkeys(lab.nodes, 0)
    assert differences(before, lab.manifests()) == []


def test_jobs_outlive_an_upgrade_that_does_what_its_plan_has_listed(lab: TestLab, newer: None, jobs: str) -> None:
    before = lab.manifests()
    said = clusterctl("plan", "upgrade", str(lab.inventory), "--output", "json")
    assert said.returncode == 10, said.stdout + said.stderr
    plan = json.loads(said.stdout)
    assert len(plan["jobs"]) == AT_ONCE
    assert {unit["unit"].split()[0] for unit in plan["restarts"]} == {
        "slurmctld.service", "slurmdbd.service", "slurmd.service"
    }  # fmt: skip
    assert differences(before, lab.manifests()) == []
    empty = threading.Thread(target=emptied, args=[lab])
    empty.start()
    summary = lab.run("upgrade")
    empty.join()
    assert summary["steps"] == [["head1"], ["gpu01"], ["gpu02"]]
    assert done(summary) == changes(plan)
    after = lab.manifests()
    for node in lab.nodes:
        assert all(version.endswith(RAISED) for version in versions(lab, node).values())
        listed = {name for host, _, name, _ in changes(plan) if host == node}
        moved = {name for kind, name in actual(before[node], after[node]) if kind != "path"}
        assert moved - {*versions(lab, node)} <= listed
    accounted(lab, jobs, WORKERS)
    assert {state.rstrip("*") for state in in_service(lab).values()} == {"idle"}
    assert json.loads(lab.root("head1", "slurm-drain")) == {}


def test_after_an_upgrade_a_bootstrap_changes_nothing(lab: TestLab) -> None:
    summary = lab.run("bootstrap")
    assert {name: host["changed"] for name, host in summary["hosts"].items()} == dict.fromkeys(lab.nodes, 0)
