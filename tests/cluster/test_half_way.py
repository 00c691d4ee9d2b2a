"""A node dies in the midst of `reboot`, `backup`, `restore` and `upgrade --os`, and the same command mends that.

The tests share a lab, and leave it whole.
"""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests import programs
from tests.cluster.lab import TestLab, clusterctl, fresh, podman, submit
from tests.cluster.members import PATIENT
from tests.cluster.test_backup import COUNTER, counter, queue, records, wait_for
from tests.cluster.test_upgrade import KEY, SOURCE, started
from tests.faults.injury import begin, container, ended, gateway, in_service, latest_run, wait_until, watched
from tests.faults.repository import repository

pytestmark = pytest.mark.long

BACKUPS = "/var/lib/clusterctl/backups"
PODMAN_EXITS = Path("/run/libpod/exits")
# It is set up where it may be, so that a node can die meanwhile.
PROBE, MAY_GO = "half-way-probe", "/var/tmp/may-go"
CONTROL = """\
Package: {name}
Version: {version}
Architecture: all
Maintainer: nobody <nobody@example.org>
Description: takes its time
"""
POST_INSTALL = f"#!/bin/sh\ntouch /var/tmp/at-$1-$2\nuntil [ -e {MAY_GO} ]; do sleep 0.2; done\n"


@pytest.fixture(scope="module")
def lab() -> Iterator[TestLab]:
    with fresh("halfway") as lab:
        lab.declare(PATIENT, f"cluster_no_proxy: [{gateway(lab)}]", "reboot_timeout_seconds: 120")
        lab.run("bootstrap")
        yield lab


def root_of(lab: TestLab, node: str) -> tuple[int, Path]:
    """Return a node's first process as this machine numbers it, and where its files are here."""
    (pid,) = podman("inspect", "--format", "{{.State.Pid}}", container(lab, node)).split()
    return int(pid), Path(f"/proc/{pid}/root")


def cut_off_when(lab: TestLab, node: str, sign: Callable[[Path], object], run: "subprocess.Popen[str]") -> None:
    """Take a node's power away as soon as there is a sign among its files."""
    _, files = root_of(lab, node)
    known = "{{.Id}} {{.State.ConmonPid}} {{.State.Pid}}"
    identity, *processes = podman("inspect", "--format", known, container(lab, node)).split()
    wait_until(lambda: sign(files) or run.poll() is not None)
    for pid in processes:  # podman's monitor first, which would start the node again
        os.kill(int(pid), signal.SIGKILL)
    # The monitor writes this file, and without it podman says that the container runs: `lab up` would then replace it.
    # With another code than 0, podman would start the node again.
    (PODMAN_EXITS / identity).write_text("0")
    podman("container", "cleanup", container(lab, node))


def switched_off(lab: TestLab, node: str) -> AbstractContextManager[None]:
    """Switch a node off for good as soon as its system has gone down."""
    before, _ = root_of(lab, node)

    def look() -> None:
        if root_of(lab, node)[0] != before:
            podman("stop", "--time", "0", container(lab, node))

    return watched(look)


def whole(lab: TestLab) -> None:
    """All workers are in service, nothing keeps one out, and there is nothing to do."""
    wait_until(lambda: {state.rstrip("*") for state in in_service(lab).values()} == {"idle"})
    assert json.loads(lab.root("head1", "slurm-drain")) == {}
    lab.unchanged()


@pytest.mark.proves("reboot", "A node that does not return is rebooted by the same command later.")
@pytest.mark.proves("reboot", "A worker that does not return stops the reboot before the next.")
@pytest.mark.proves("reboot", "After a resumed reboot no node stays drained, and a bootstrap changes nothing.")
@pytest.mark.parametrize("node", ["gpu01", "head1"])
def test_a_node_that_does_not_come_back_is_rebooted_by_the_same_command(lab: TestLab, node: str) -> None:
    """Its system goes down, and nobody switches it on again."""
    names = (node, "gpu02")
    before = {name: started(lab, name) for name in lab.nodes}
    with switched_off(lab, node):
        said = ended(begin(lab, "reboot", *names), 5 if node == "head1" else 4)
    if node == "gpu01":
        assert "gpu01 failed, and gpu01 stays drained; not started: gpu02" in said
        assert "reboot" in json.loads(lab.root("head1", "slurm-drain"))["gpu01"]
    assert started(lab, "gpu02") == before["gpu02"]
    lab.up()
    summary = lab.run("reboot", *names)
    assert summary["steps"] == [[name] for name in names]
    assert started(lab, "gpu02") != before["gpu02"]
    whole(lab)


def left_over(lab: TestLab) -> str:
    """What a backup and a restore make for themselves, where it is still there."""
    return lab.root("head1", f"ls -Ad {BACKUPS}/.* | grep -v '/[.]*$' || true; ls -d /var/lib/slurm/*.new || true; "
                             "ls /etc/systemd/system/slurmctld.service.d/restore.conf || true; "
                             "mariadb -BN -e 'SHOW DATABASES LIKE \"clusterctl%\"'")  # fmt: skip


@pytest.mark.proves("backup", "A backup interrupted by the head's death leaves the earlier one unchanged.")
@pytest.mark.proves("backup", "The same command repeats an interrupted backup and leaves nothing behind.")
@pytest.mark.proves("backup", "After a repeated backup a bootstrap changes nothing.")
@pytest.mark.parametrize("sign", [f"{BACKUPS}/.new/state", "/var/lib/mysql/clusterctl_backup_check"])
def test_a_head_that_dies_while_it_is_backed_up_is_by_the_same_command(lab: TestLab, sign: str) -> None:
    """In the midst of the state, and of the database; the backup from before is there as it was."""
    earlier = Path(lab.run("backup")["backup"])
    there = lab.root("head1", f"cd {BACKUPS} && sha256sum *.tar")
    run = begin(lab, "backup")
    cut_off_when(lab, "head1", lambda files: (files / sign[1:]).exists(), run)
    ended(run, 5)
    lab.up()
    assert lab.root("head1", f"cd {BACKUPS} && sha256sum *.tar") == there
    assert sorted(earlier.parent.glob("*.tar"))[-1] == earlier
    assert Path(lab.run("backup")["backup"]) > earlier
    assert left_over(lab) == ""
    whole(lab)


@pytest.fixture
def jobs(lab: TestLab) -> Iterator[dict[str, str]]:
    """One job that goes on, one that ends after the backup, and one that waits for both nodes."""
    for node in lab.nodes[1:]:
        lab.root(node, "rm -f /var/tmp/end /var/tmp/counter /var/tmp/begun")
    found = {"runs": submit(lab, COUNTER, "--nodelist=gpu01")}
    script = "echo begun >> /var/tmp/begun; until test -e /var/tmp/end; do sleep 0.2; done"
    found["ends"] = submit(lab, script, "--nodelist=gpu02")
    for name in ("runs", "ends"):
        wait_for(lab, found[name], "RUNNING")
    found["waits"] = submit(lab, "true", "--nodelist=gpu[01-02]", "--exclusive")
    yield found
    lab.ssh("gpu01", "touch", "/var/tmp/end")
    for name in ("runs", "waits"):
        wait_for(lab, found[name], "COMPLETED")


def restored(lab: TestLab, jobs: dict[str, str], pid: str) -> None:
    """What ran still does, what waited waits, and what had ended is over, and has begun but once."""
    wait_until(lambda: queue(lab) == {jobs["runs"]: "RUNNING", jobs["waits"]: "PENDING"})
    assert counter(lab)[1] == pid
    assert records(lab, jobs["ends"])[jobs["ends"]]["State"].startswith("CANCELLED")
    assert lab.root("gpu02", "cat /var/tmp/begun") == "begun\n"


@pytest.mark.proves("restore", "The same command completes a restore that the head's death interrupted.")
@pytest.mark.proves("restore", "An interrupted restore runs no ended job a second time.")
@pytest.mark.proves("restore", "A completed restore leaves nothing of its own; a bootstrap then changes nothing.")
@pytest.mark.parametrize("sign", ["var/lib/mysql/slurm_acct_db_before_*", "var/lib/slurm/slurmctld.before-*"])
def test_a_head_that_dies_while_it_is_restored_is_by_the_same_command(
    lab: TestLab, jobs: dict[str, str], sign: str
) -> None:
    """As soon as the accounting, or the state, has taken its place: nothing is run a second time meanwhile."""
    archive = lab.run("backup")["backup"]
    lab.ssh("gpu02", "touch", "/var/tmp/end")
    wait_for(lab, jobs["ends"], "COMPLETED")
    wait_until(lambda: Path(f"/proc/{root_of(lab, 'gpu01')[0]}/root/var/tmp/counter").exists())
    pid, before = counter(lab)[1], set(root_of(lab, "head1")[1].glob(sign))
    run = begin(lab, "restore", archive, "--yes")
    cut_off_when(lab, "head1", lambda files: set(files.glob(sign)) - before, run)
    ended(run, 5)
    lab.up()
    if "slurmctld" in sign:
        restored(lab, jobs, pid)
    lab.run("restore", archive, "--yes")
    restored(lab, jobs, pid)
    assert left_over(lab) == ""
    lab.unchanged()


@pytest.mark.proves("restore", "The bootstrap that the restore prints adds a worker that died meanwhile.")
@pytest.mark.proves("restore", "A bootstrap changes nothing once a worker that died meanwhile was added.")
def test_a_worker_that_dies_during_a_restore_is_taken_in_by_the_bootstrap_that_is_named(
    lab: TestLab, jobs: dict[str, str]
) -> None:
    """A restore once more would forget what has run since."""
    archive = lab.run("backup")["backup"]
    lab.ssh("gpu02", "touch", "/var/tmp/end")
    wait_for(lab, jobs["ends"], "COMPLETED")
    pid = counter(lab)[1]
    run = begin(lab, "restore", archive, "--yes")
    log = latest_run(lab) / "events.jsonl"
    wait_until(lambda: '"host": "gpu02", "role": "packages"' in log.read_text() or run.poll() is not None)
    podman("kill", container(lab, "gpu02"))
    assert f"clusterctl bootstrap {lab.inventory}" in ended(run, 4)
    lab.up()
    lab.run("bootstrap")
    restored(lab, jobs, pid)
    lab.unchanged()


@pytest.fixture(scope="module")
def probes(lab: TestLab, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three versions of the package; all nodes have the first."""
    folder = tmp_path_factory.mktemp("probes")
    made = []
    for version in ("1", "2", "3"):
        about = folder / f"root{version}" / "DEBIAN"
        about.mkdir(parents=True)
        (about / "control").write_text(CONTROL.format(name=PROBE, version=version))
        (about / "postinst").write_text(POST_INSTALL)
        (about / "postinst").chmod(0o755)
        made.append(folder / version / f"{PROBE}.deb")
        made[-1].parent.mkdir()
        argv = ["dpkg-deb", "--root-owner-group", "--build", str(about.parent), str(made[-1])]
        programs.output_of(argv, 60)
    for node in lab.nodes:
        podman("cp", str(made[0]), f"{container(lab, node)}:/root/")
        lab.root(node, f"touch {MAY_GO}; dpkg --install /root/{PROBE}.deb")
    return made


@contextmanager
def offered(lab: TestLab, package: Path) -> Iterator[None]:
    """Let all nodes have a source of packages with this one."""
    with repository(gateway(lab), packages=package.parent) as (url, public):
        lines = f"Types: deb\nURIs: {url}\nSuites: ./\nSigned-By: {KEY}\n"
        for node in lab.nodes:
            lab.ssh(node, "sudo", "tee", KEY, stdin=public)
            lab.ssh(node, "sudo", "tee", SOURCE, stdin=lines)
        try:
            yield
        finally:
            for node in lab.nodes:
                lab.root(node, f"rm {KEY} {SOURCE}")


@pytest.mark.proves("upgrade", "The same `upgrade --os` continues after a node died with a half-installed package.")
@pytest.mark.proves("upgrade", "After a resumed `upgrade --os` a bootstrap changes nothing.")
@pytest.mark.parametrize(("node", "version"), [("head1", "2"), ("gpu01", "3")])
def test_a_node_that_dies_while_its_system_is_upgraded_is_by_the_same_command(
    lab: TestLab, probes: list[Path], node: str, version: str
) -> None:
    """In the midst of a package that is unpacked and not yet set up; those after it were not begun."""

    def versions() -> set[str]:
        shown = f"dpkg-query --show --showformat '${{db:Status-Abbrev}} ${{Version}}' {PROBE}"
        return {lab.root(name, shown) for name in lab.nodes}

    before = versions()
    with offered(lab, probes[int(version) - 1]):
        lab.root(node, f"rm {MAY_GO}; rm -f /var/tmp/at-*")
        run = begin(lab, "upgrade", "--os")
        cut_off_when(lab, node, lambda files: [*files.glob("var/tmp/at-configure-*")], run)
        said = ended(run, 5 if node == "head1" else 4)
        lab.up()
        lab.root(node, f"touch {MAY_GO}")
        if node == "gpu01":
            assert "gpu01 failed, and gpu01 stays drained; not started: gpu02" in said
        assert before <= versions()
        lab.run("upgrade", "--os")
        assert versions() == {f"ii  {version}"}
        assert clusterctl("plan", "upgrade", str(lab.inventory), "--os").returncode == 0
    whole(lab)
