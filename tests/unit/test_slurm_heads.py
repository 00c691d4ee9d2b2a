"""Two heads of Slurm: which one is in control, what each runs, and that both must have one directory."""

import re
import subprocess
from dataclasses import replace
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

from clusterctl.inventory import model, services, slurm_heads
from clusterctl.nodes.route import Access
from clusterctl.run import headlock, lock
from clusterctl.slurm.state import Slurm, parse_ping
from clusterctl.util import paths
from tests.systems.rendering import SECRET, a_cluster

from .ssh_server import host

FILES = paths.content() / "roles/slurm_head/files"
INVENTORY = """\
all:
  vars: {cluster_name: aurora, slurm_head_database_host: %s}
  children:
    slurm_head: {hosts: {head1: {ansible_host: 10.0.0.10}}}
    slurm_workers: {hosts: {gpu01: {ansible_host: 10.0.0.11}}}
"""
PING = (
    "Slurmctld(primary) at head1 is {}\nSlurmctld(backup) at head2 is {}\n** RESTORE SLURMCTLD DAEMON TO SERVICE **\n"
)


@pytest.mark.parametrize(
    ("first", "second", "in_control"), [("UP", "UP", "head1"), ("DOWN", "UP", "head2"), ("DOWN", "DOWN", "")]
)
@pytest.mark.proves("heads", "In control is the first controller that responds.")
def test_control__of_two_heads__is_the_first_that_responds(
    tmp_path: Path, first: str, second: str, in_control: str
) -> None:
    ping = PING.format(first, second)
    assert Slurm(controllers=parse_ping(ping)).in_control == in_control
    (tmp_path / "scontrol").write_text(f"#!/bin/sh\ncat <<'E'\n{ping}E\n")
    (tmp_path / "scontrol").chmod(0o755)
    for head in ("head1", "head2"):
        argv = ["env", f"PATH={tmp_path}:/usr/bin:/bin", "sh", str(FILES / "slurm-in-control"), head]
        assert (subprocess.run(argv, check=False, timeout=30).returncode == 0) is (head == in_control)


def test_ping__of_one_head_or_of_an_error__names_what_there_is() -> None:
    assert parse_ping("Slurmctld(primary) at head1 is UP\n") == {"head1": True}
    assert parse_ping("scontrol: error: x at head1 is UP\n") == {}


@pytest.mark.proves("heads", "A back-up has no slurmdbd while the database is on the first head.")
def test_services__of_a_back_up__depend_on_the_database() -> None:
    backup = replace(host(22), groups=frozenset({"slurm_head"}), is_backup=True, variables={})
    own = {one.names[0] for one in services.of_host(backup)}
    assert "slurmctld" in own
    assert own.isdisjoint({"slurmdbd", "mariadb"})
    elsewhere = replace(backup, variables={"slurm_head_database_host": "10.0.0.9"})
    assert {one.names[0] for one in services.of_host(elsewhere)} - own == {"slurmdbd"}


@pytest.mark.proves("heads", "One of two heads is enough for the cluster's lock.")
@pytest.mark.parametrize(("failing", "missing"), [(["h1"], False), (["h2"], False), (["h1", "h2"], True)])
def test_hold__one_of_two_heads__is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: list[str], missing: bool
) -> None:
    def take(one: headlock.HeadLock) -> None:
        if one.name in failing:
            raise headlock._failed("no answer")

    monkeypatch.setattr(headlock.HeadLock, "take", take)
    monkeypatch.setattr(headlock.HeadLock, "keep", lambda one: None)
    monkeypatch.setattr(headlock.HeadLock, "release", lambda one: None)
    heads = [replace(host(22), name=name, groups=frozenset({"slurm_head"})) for name in ("h1", "h2")]
    with headlock.hold(heads, Access(tmp_path), lock.this_run("verify"), tmp_path) as held:
        assert (held.missing is not None) is missing


def shared(*argv: object) -> tuple[int, str]:
    done = subprocess.run(
        ["sh", str(FILES / "shared-state"), *map(str, argv)], capture_output=True, text=True, check=False, timeout=30
    )
    return done.returncode, (done.stdout + done.stderr).strip()


@pytest.mark.proves("heads", "Heads with different directories are refused, also with a copy.")
def test_shared_state__another_directory__is_refused(tmp_path: Path) -> None:
    (tmp_path / "clusterctl").mkdir()
    (tmp_path / "clusterctl/seen-head1").write_text("0123")
    assert shared("check", tmp_path, "head1", "0123") == (0, "")
    code, said = shared("check", tmp_path, "head1", "4567")
    assert code == 1
    assert "is not the directory that head1 has" in said
    assert shared("check", tmp_path) == (0, "")
    (tmp_path / "slurmctld").mkdir()
    (tmp_path / "slurmctld/clustername").touch()
    code, said = shared("check", tmp_path)
    assert code == 1
    assert "both heads are needed to set up this one" in said


@pytest.mark.parametrize("kind", ["write"])
def test_shared_state__on_the_disk_of_the_head__is_refused(kind: str) -> None:
    code, said = shared(kind, "/no-such-storage/slurm", "head1")
    assert code == 1
    assert re.search("not on mounted storage: mount the storage there, before slurmctld starts", said)


@pytest.fixture
def drain() -> ModuleType:
    loader = SourceFileLoader("slurm_drain", str(FILES / "slurm-drain"))
    module = module_from_spec(spec_from_loader("slurm_drain", loader))  # type: ignore[arg-type]
    loader.exec_module(module)
    return module


@pytest.mark.proves("heads", "The shared drain ledger begins with that of the only head.")
def test_ledger__that_two_heads_share__begins_with_that_of_one(
    drain: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "drain.json").write_text('{"version": 1, "nodes": {"gpu01": {"operator": "x"}}}')
    monkeypatch.setattr(drain, "ALONE", tmp_path)
    monkeypatch.setattr(drain, "FOLDER", tmp_path / "shared")
    monkeypatch.setattr(drain, "LEDGER", tmp_path / "shared/drain.json")
    monkeypatch.setattr(drain, "LOCK", tmp_path / "shared/drain.lock")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("sys.argv", ["slurm-drain"])
    with pytest.raises(SystemExit, match="mount the directory that the heads share"):
        drain.main()
    (tmp_path / "shared").mkdir()
    assert drain.load() == ({"gpu01": {"operator": "x"}}, set())
    drain.save({}, set())
    assert drain.load() == ({}, set())


# --- a database elsewhere ---------------------------------------------------------------------------------------------


def test_database__elsewhere__needs_a_password_that_a_person_sets(tmp_path: Path) -> None:
    needed = {slurm_heads.DATABASE_PASSWORD: slurm_heads.DATABASE}
    for server, expected in (("localhost", {}), ("10.0.0.9", needed)):
        (tmp_path / "inventory.yaml").write_text(INVENTORY % server)
        assert slurm_heads.secrets(model.load(tmp_path / "inventory.yaml")) == expected


@pytest.mark.parametrize(("given", "storage"), [("localhost", SECRET), ("10.0.0.9", f'"{SECRET}"')])
def test_slurmdbd_conf__of_a_database__has_its_password(tmp_path: Path, given: str, storage: str) -> None:
    role = a_cluster(tmp_path, "debian-13").role("slurm_head", "head1", slurm_head_database_host=given)
    lines = role.render(role.path / "templates/slurmdbd.conf.j2").splitlines()
    assert [line for line in lines if line.startswith("Storage")][1:] == [
        f"StorageHost={given}",
        "StorageUser=slurm",
        f"StoragePass={storage}",
        "StorageLoc=slurm_acct_db",
    ]
