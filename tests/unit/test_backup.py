"""A backup's archive: what the head writes is what the controller reads, and damage does not pass for either."""

import contextlib
import dataclasses
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from pwd import getpwnam
from typing import Any

import pytest
from ansible.module_utils import cluster_backup
from ansible.module_utils.node_state import tools as node_tools
from ansible.parsing.vault import VaultLib, VaultSecret

from clusterctl.commands import backup, restore
from clusterctl.run import context, entry
from clusterctl.run.context import Options
from clusterctl.util import untrusted
from clusterctl.util.errors import InputError, Interrupted, PreflightError
from clusterctl.workspace import archive as sealed
from clusterctl.workspace import hardware, home, secrets

from .test_hardware import NOW, reply
from .test_role_plugins import plugin

RESTORE = plugin("modules/slurm_restore")
KEY = "k" * 44
MANIFEST: dict[str, Any] = {
    "version": 1,
    "cluster": "aurora-0a1b2c3d",
    "made": "2026-11-21T19:00:00Z",
    "slurm": "24.11.5",
    "running": ["7", "12"],
    "pending": 3,
    "database": "slurm_acct_db",
    "records": {"job": 12, "assoc": 5},
}


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The secrets of the cluster, whichever its directory."""
    monkeypatch.setattr(secrets, "values", lambda directory: {"backup_key": KEY})


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory that belongs to an unprivileged user, who takes the place of Slurm's."""
    if os.geteuid() != 0:
        pytest.skip("only root acts as another user")
    monkeypatch.setattr(cluster_backup, "USER", "nobody")
    with tempfile.TemporaryDirectory() as name:  # below pytest's own root alone may go
        user = getpwnam("nobody")
        os.chown(name, user.pw_uid, user.pw_gid)
        yield Path(name)


def archive(path: Path, **other: Any) -> Path:
    path.mkdir(exist_ok=True)
    (path / "slurmctld.tar.gz").write_bytes(bytes(range(256)) * 9)
    cluster_backup.seal(path / "archive.tar", MANIFEST | other, [path / "slurmctld.tar.gz"], KEY)
    return path / "archive.tar"


def test_what_the_head_writes_the_controller_reads(tmp_path: Path) -> None:
    path = archive(tmp_path)
    assert cluster_backup.unseal(path, KEY) == MANIFEST
    manifest = sealed.read(path, tmp_path)
    assert manifest.as_dict() == MANIFEST
    assert isinstance(manifest, sealed.SlurmManifest)
    assert manifest.release == "24.11"
    assert path.stat().st_mode & 0o777 == 0o600
    assert cluster_backup.take(path, "slurmctld.tar.gz", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == (tmp_path / "slurmctld.tar.gz").read_bytes()
    assert not cluster_backup.take(path, "drain.json", tmp_path / "none")


def test_read__archive_of_kubernetes__has_its_objects(tmp_path: Path) -> None:
    common = {key: MANIFEST[key] for key in ("version", "cluster", "made")}
    written = common | {"kubernetes": "1.36.3", "objects": {"Namespace": 5, "Secret": 1, "Node": 2}}
    (tmp_path / "etcd.db.gz").write_bytes(b"packed")
    cluster_backup.seal(tmp_path / "archive.tar", written, [tmp_path / "etcd.db.gz"], KEY)
    manifest = sealed.read(tmp_path / "archive.tar", tmp_path)
    assert manifest.as_dict() == written
    assert manifest.program == "Kubernetes 1.36.3"
    assert manifest.contents() == "8 objects, of them 5 namespaces, 0 deployments, 1 secret"


PASSWORD, LABEL = "correct horse battery staple", "aurora-0a1b2c3d"


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a head puts into a backup of the cluster's directory."""
    vault = VaultLib([(LABEL, VaultSecret(PASSWORD.encode()))])
    sealed = vault.encrypt(b"munge_key: secret\n", vault_id=LABEL)
    members = {
        f"vault/{LABEL}": f"{PASSWORD}\n".encode(),
        "aurora/inventory.yaml": b"all: {}\n",
        "aurora/group_vars/all.yml": b"a: 1\n",
        "aurora/secrets.yml": sealed,
    }
    with tarfile.open(tmp_path / "recovery.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in members.items():
            cluster_backup.add(tar, name, data)
    monkeypatch.setattr(cluster_backup, "RECOVERY", tmp_path / "recovery.tar")
    assert cluster_backup.label() == LABEL
    cluster_backup.copy_directory(tmp_path / "directory.tar")
    return tmp_path / "directory.tar"


@pytest.mark.proves("backup", "The directory in a backup has no vault password.")
def test_the_clusters_directory_is_copied_without_its_password(copy: Path) -> None:
    with tarfile.open(copy) as tar:
        assert tar.getnames() == ["aurora/inventory.yaml", "aurora/group_vars/all.yml", "aurora/secrets.yml"]
    cluster_backup.try_directory(copy)


@pytest.mark.proves("backup", "A copy whose secrets its password does not decrypt is no backup.")
@pytest.mark.parametrize(
    ("name", "data", "told"),
    [
        ("aurora/secrets.yml", b"munge_key: secret\n", "does not decrypt"),
        ("aurora/secrets.yml", b"$ANSIBLE_VAULT;1.2;AES256;x\n6161\n", "does not decrypt"),
        ("aurora/other.yml", b"", "does not decrypt"),
        ("aurora/notes", PASSWORD.encode(), "contains the vault password"),
    ],
)
def test_a_copy_whose_secrets_are_not_sealed_is_none(copy: Path, name: str, data: bytes, told: str) -> None:
    with tarfile.open(copy, "w", format=tarfile.USTAR_FORMAT) as tar:
        cluster_backup.add(tar, name, data)
    with pytest.raises(node_tools.NodeError, match=told):
        cluster_backup.try_directory(copy)


def test_a_file_that_was_altered_after_it_was_sealed_is_noticed(copy: Path) -> None:
    whole = copy.read_bytes()
    place = whole.index(b"$ANSIBLE_VAULT") + 60
    copy.write_bytes(whole[:place] + (b"1" if whole[place : place + 1] != b"1" else b"2") + whole[place + 1 :])
    with pytest.raises(node_tools.NodeError, match="does not decrypt"):
        cluster_backup.try_directory(copy)


@pytest.mark.proves("restore", "Files that differ between backup and directory are named.")
def test_what_differs_between_a_backups_directory_and_ours_is_named(tmp_path: Path, copy: Path) -> None:
    path, here = tmp_path / "archive.tar", tmp_path / "here"
    cluster_backup.seal(path, MANIFEST, [copy], KEY)
    here.mkdir()
    (here / "inventory.yaml").write_text("all: {}\n")
    (here / "secrets.yml").write_text("another's")
    assert sealed.differing(path, here) == ["group_vars/all.yml", "secrets.yml"]
    assert sorted(one.name for one in here.iterdir()) == ["inventory.yaml", "secrets.yml"]
    assert sealed.differing(archive(tmp_path / "old"), here) == []


def refused(path: Path) -> None:
    with pytest.raises(InputError, match="is damaged, or not a backup"):
        sealed.read(path, path.parent)
    with pytest.raises(node_tools.NodeError, match="is damaged or not a backup"):
        cluster_backup.unseal(path, KEY)


@pytest.mark.proves("restore", "A flipped bit in any sampled part of a backup is detected.")
def test_a_flipped_byte_is_noticed_wherever_it_is(tmp_path: Path) -> None:
    path = archive(tmp_path)
    whole = path.read_bytes()
    with tarfile.open(path) as tar:
        last = tar.getmembers()[-1]
    for place in [*range(0, last.offset, 61), last.offset, last.offset_data, last.offset_data + 63]:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        refused(path)


@pytest.mark.proves("restore", "A truncated archive or another file is refused as a backup.")
def test_an_archive_that_is_cut_off_or_none_at_all_is_refused(tmp_path: Path) -> None:
    path = archive(tmp_path)
    whole = path.read_bytes()
    end = len(whole.rstrip(b"\0"))
    for size in (0, 1, 512, 1000, end // 2, end - 600, end - 10):
        path.write_bytes(whole[:size])
        refused(path)
    path.write_bytes(b"x" * 20_000)
    refused(path)


@pytest.mark.proves("restore", "Values of a wrong type in a backup's manifest are refused.")
@pytest.mark.parametrize(
    "other",
    [
        {"cluster": "a b"},
        {"made": "yesterday"},
        {"slurm": "new"},
        {"running": ["7; rm"]},
        {"pending": -1},
        {"records": {"job": "many"}},
        {"version": 2},
    ],
    ids=str,
)
def test_what_an_archive_says_is_data(tmp_path: Path, other: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"is damaged, or not a backup|has version 2, expected 1"):
        sealed.read(archive(tmp_path, **other), tmp_path)


@pytest.mark.proves("restore", "A backup without this cluster's seal is refused.")
def test_an_archive_that_another_has_sealed_or_nobody_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "database.sql.gz").write_bytes(b"forged")
    cluster_backup.seal(tmp_path / "forged", MANIFEST, [tmp_path / "database.sql.gz"], "another's")
    refused(tmp_path / "forged")
    with tarfile.open(tmp_path / "old", "w") as tar:
        cluster_backup.add(tar, "manifest.json", json.dumps(MANIFEST).encode())
        cluster_backup.add(tar, "sha256", b"0" * 64)
    refused(tmp_path / "old")
    with pytest.raises(InputError, match="it is from an older clusterctl and has no seal"):
        sealed.read(tmp_path / "old", tmp_path)
    monkeypatch.setattr(secrets, "values", lambda directory: {})
    with pytest.raises(InputError, match="has no backup_key yet"):
        sealed.read(archive(tmp_path), tmp_path)


@pytest.mark.proves("restore", "A backup with a link or directory as a part is refused.")
@pytest.mark.parametrize("name", ["manifest.json", "slurmctld.tar.gz", "seal"])
@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.DIRTYPE])
def test_an_archive_of_links_and_directories_is_none(tmp_path: Path, name: str, kind: bytes) -> None:
    with tarfile.open(tmp_path / "forged", "w") as tar:
        for part in ("manifest.json", "slurmctld.tar.gz", "seal"):
            member = tarfile.TarInfo(part)
            member.type, member.linkname = kind if part == name else tarfile.REGTYPE, "elsewhere"
            tar.addfile(member)
    refused(tmp_path / "forged")


@pytest.mark.parametrize("inner", ["aurora//etc/passwd", "aurora/../../x", None])
def test_a_copy_of_the_directory_that_is_none_is_refused(tmp_path: Path, inner: str | None) -> None:
    with tarfile.open(tmp_path / "archive", "w") as tar:
        if inner is None:
            member = tarfile.TarInfo("directory.tar")
            member.type, member.linkname = tarfile.SYMTYPE, "elsewhere"
            tar.addfile(member)
        else:
            copy = io.BytesIO()
            with tarfile.open(fileobj=copy, mode="w") as other:
                cluster_backup.add(other, inner, b"x")
            cluster_backup.add(tar, "directory.tar", copy.getvalue())
    with pytest.raises(InputError, match=r"is damaged: directory\.tar"):
        sealed.differing(tmp_path / "archive", tmp_path)


@pytest.mark.proves("backup", "A database table whose name is an SQL statement is refused.")
def test_a_table_whose_name_would_go_on_as_a_statement_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [["aurora-1_job_table"], ["user_table"]]
    monkeypatch.setattr(cluster_backup, "sql", lambda statement: found)
    assert cluster_backup.tables("slurm_acct_db") == ["aurora-1_job_table", "user_table"]
    found.append(["x`; DROP DATABASE mysql; -- _job_table"])
    with pytest.raises(node_tools.NodeError, match="has a table that is not Slurm's"):
        cluster_backup.tables("slurm_acct_db")


def secret_of_root(tmp_path: Path) -> Path:
    """A directory of root's with a file in it that root alone reads, below a directory where everybody may go."""
    folder = tmp_path / "private"
    folder.mkdir(mode=0o700)
    (folder / "recovery.tar").write_text("the vault's password")
    (folder / "recovery.tar").chmod(0o600)
    return folder


@pytest.mark.proves("backup", "Links and pipes of user slurm lead a backup to no other file.")
def test_a_backup_reads_the_state_as_slurms_user(slurm: Path) -> None:
    """Who owns the state could put a link to a directory of root's in it, or let it be one; or a pipe."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        private = secret_of_root(Path(name))
        state = slurm / "slurmctld"
        (state / "hash.0/job.8").mkdir(parents=True)
        (state / "job_state").write_text("now")
        (state / "hash.0/job.7").symlink_to(private)
        (state / "hash.0/job.8/link").symlink_to(private / "recovery.tar")
        os.mkfifo(state / "hash.0/job.8/pipe")
        (state / "hash.0/job.8/script").write_text("#!/bin/sh")
        for path in (state, *state.rglob("*")):
            os.chown(path, *getpwnam("nobody")[2:4], follow_symlinks=False)
        cluster_backup.pack(state, slurm / "packed")
        with tarfile.open(slurm / "packed") as tar:
            assert tar.getnames() == ["job_state", "hash.0/job.8/script"]
        (slurm / "other").symlink_to(private)
        with pytest.raises(PermissionError):
            cluster_backup.pack(slurm / "other", slurm / "packed")
    assert (os.geteuid(), os.getegid()) == (0, 0)


def packed(path: Path, *names: str) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name in names:
            cluster_backup.add(tar, name, b"text")
    return path


def test_a_state_is_laid_out_for_slurms_user(slurm: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"  # in a place of root's too
    cluster_backup.unpack(packed(tmp_path / "packed", "job_state", "hash.0/job.7/script"), state)
    found = {str(path.relative_to(tmp_path)): path.stat() for path in (state, *state.rglob("*"))}
    owner = getpwnam("nobody")[2:4]
    assert {(status.st_uid, status.st_gid) for status in found.values()} == {owner}
    assert {name: status.st_mode & 0o777 for name, status in found.items()} == {
        "state": 0o700,
        "state/job_state": 0o600,
        "state/hash.0": 0o700,
        "state/hash.0/job.7": 0o700,
        "state/hash.0/job.7/script": 0o600,
    }
    for name in ("../x", "/x", "hash.0/../../x"):
        with pytest.raises(node_tools.NodeError, match="does not belong in Slurm's state"):
            cluster_backup.unpack(packed(tmp_path / "packed", name), tmp_path / f"other{len(name)}")


class Racing:
    """Does something as soon as an archive that is unpacked has been opened, or its second file is asked for."""

    def __init__(self, opened: Callable[..., Any], at: int, act: Callable[[], None]) -> None:
        self.opened, self.at, self.act = opened, at, act

    @contextlib.contextmanager
    def __call__(self, *args: Any, **options: Any) -> Iterator[Any]:
        with self.opened(*args, **options) as tar:
            yield self.members(tar)

    def members(self, tar: tarfile.TarFile) -> Any:
        racing = self

        class Members:
            def __iter__(self) -> Iterator[tarfile.TarInfo]:
                for number, member in enumerate(tar):
                    if number == racing.at:
                        racing.act()
                    yield member

            def extractfile(self, member: tarfile.TarInfo) -> Any:
                return tar.extractfile(member)

        return Members()


@pytest.mark.proves("restore", "A link that user slurm plants during a restore leads root nowhere.")
@pytest.mark.parametrize("what", ["slurmctld.new", "slurmctld.new/hash.0"])
def test_a_link_that_slurms_user_plants_while_a_state_is_laid_out_leads_root_nowhere(
    slurm: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    with tempfile.TemporaryDirectory() as name:
        target = Path(name)  # of root's: nobody else may write there
        before = target.stat()

        def plant() -> None:
            (slurm / what).rename(slurm / "away")
            (slurm / what).symlink_to(target)

        archive = packed(slurm / "packed", "hash.0/job.7/script", "hash.0/evil", "job_state")
        monkeypatch.setattr(cluster_backup.tarfile, "open", Racing(tarfile.open, 1, plant))
        refusal = contextlib.nullcontext() if what == "slurmctld.new" else pytest.raises(PermissionError)
        with refusal:
            cluster_backup.unpack(archive, slurm / "slurmctld.new")
        assert list(target.iterdir()) == []
        assert (target.stat().st_uid, target.stat().st_mode) == (before.st_uid, before.st_mode)
    assert (os.geteuid(), os.getegid()) == (0, 0)


SINFO = """\
gpu01|idle|none
gpu02|drained*|fan's | $(touch "$PROOF") broken
gpu03|draining|clusterctl: health: ECC
--all|drained|x
half a line
"""


@pytest.mark.proves("restore", "Drains noted before a restore are applied with their exact reasons.")
def test_who_is_drained_at_a_restore_is_drained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RESTORE, "DRAINS", tmp_path / "drains")
    monkeypatch.setattr(RESTORE, "run", lambda *argv, check: (0, SINFO))
    RESTORE.note_drained()
    monkeypatch.setattr(RESTORE, "run", lambda *argv, check: (1, "Unable to contact slurm controller"))
    RESTORE.note_drained()  # by the same command once more, after it was killed
    (tmp_path / "scontrol").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "scontrol").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PROOF": str(tmp_path / "proof")}
    said = subprocess.run(
        ["sh", tmp_path / "drains"], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert said.stdout.splitlines() == [
        *("update", "NodeName=gpu02", "State=DRAIN", """Reason=fan's | $(touch "$PROOF") broken"""),
        *("update", "NodeName=gpu03", "State=DRAIN", "Reason=clusterctl: health: ECC"),
    ]
    assert not (tmp_path / "proof").exists()


@pytest.mark.proves("restore", "A restore adds the backup's drain causes to the current ones.")
def test_the_causes_of_a_backup_are_added_to_todays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RESTORE, "DRAINED", tmp_path / "drain.json")
    monkeypatch.setattr(RESTORE, "exclusive", lambda path, notes: contextlib.nullcontext())
    now = {"gpu01": {"health": "ECC"}, "gpu02": {"upgrade": "today"}}
    (tmp_path / "drain.json").write_text(json.dumps({"version": 1, "nodes": now}))
    RESTORE.add_causes({"gpu02": {"upgrade": "then", "verify": "bandwidth"}, "gpu03": {"bootstrap": "new"}}, [])
    assert RESTORE.causes(tmp_path / "drain.json") == {
        "gpu01": {"health": "ECC"},
        "gpu02": {"upgrade": "today", "verify": "bandwidth"},
        "gpu03": {"bootstrap": "new"},
    }
    assert RESTORE.causes(tmp_path / "none") == {}


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"version": 2, "nodes": {}}', '{"version": 1}', '{"version": 1, "nodes": {"-x": {}}}',
     '{"version": 1, "nodes": {"gpu01": {"health": 7}}}', '{"version": 1, "nodes": {"gpu01": "health"}}'],
)  # fmt: skip
def test_a_drain_ledger_of_another_shape_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "drain.json").write_text(text)
    with pytest.raises(node_tools.NodeError, match="is damaged"):
        RESTORE.causes(tmp_path / "drain.json")


def test_the_state_of_a_controller_that_writes_is_copied_whole(slurm: Path) -> None:
    """In the moment between two renames a file is there under its other name alone."""
    source = slurm / "slurmctld"
    (source / "hash.7/job.7").mkdir(parents=True)
    for name, text in {
        "job_state": "now",
        "job_state.old": "before",
        "job_state.new": "half",
        "node_state.old": "only",
        "hash.7/job.7/script": "#!/bin/sh",
    }.items():
        (source / name).write_text(text)
    (source / "link").symlink_to("/etc/passwd")
    cluster_backup.pack(source, slurm / "packed")
    with tarfile.open(slurm / "packed") as tar:
        names = tar.getnames()
        told = {name: tar.extractfile(name).read().decode() for name in names}  # type: ignore[union-attr]
    assert told == {"job_state": "now", "node_state": "only", "hash.7/job.7/script": "#!/bin/sh"}
    assert names.index("job_state") < names.index("hash.7/job.7/script")


def test_an_empty_queue_is_one() -> None:
    assert cluster_backup.jobs("\n") == {}
    assert cluster_backup.jobs("7 RUNNING\n12 PENDING\n") == {"7": "RUNNING", "12": "PENDING"}


@pytest.mark.proves("restore", "Who declines gets exit 7, and nothing is put back.")
def test_restore__declined__ends_with_7_and_puts_nothing_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for stream in (sys.stdin, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda *_: "n")
    monkeypatch.setattr(secrets, "label", lambda directory: MANIFEST["cluster"])
    monkeypatch.setattr(secrets, "check", lambda *_: None)
    for name in ("_require_readable", "_show"):
        monkeypatch.setattr(restore, name, lambda *_: None)
    for name in ("_ended", "_rows"):
        monkeypatch.setattr(restore, name, lambda *_: [])
    for phase in ("EnsureSecrets", "CheckHostKeys", "ConfirmHead", "LockHead", "Preflight"):
        monkeypatch.setattr(getattr(entry, phase), "run", lambda *_: None)
    directory = tmp_path / "aurora"
    (directory / home.STATE).mkdir(parents=True)
    (directory / secrets.FILE).touch(0o600)
    (directory / "inventory.yaml").write_text(
        "all:\n  vars: {cluster_name: aurora}\n  children:\n"
        "    slurm_head: {hosts: {head1: {ansible_host: 10.0.0.10}}}\n"
        "    slurm_workers: {hosts: {gpu01: {ansible_host: 10.0.0.11}}}\n"
    )
    with pytest.raises(Interrupted, match="Nothing was restored, and no node was changed") as caught:
        restore.restore(Options("restore", directory), archive(tmp_path / "kept"))
    assert caught.value.exit_code == 7
    assert not (directory / home.STATE / restore.REQUEST).exists()


KUBERNETES = {key: MANIFEST[key] for key in ("version", "cluster", "made")} | {
    "kubernetes": "1.36.3",
    "objects": {"Namespace": 5},
}


def heads_of(directory: Path, *heads: str, scheduler: str = "kubernetes") -> Path:
    """Write an inventory with these heads and one worker."""
    listed = ", ".join(f"{name}: {{ansible_host: 10.0.0.{number}}}" for number, name in enumerate(heads, 1))
    directory.mkdir(exist_ok=True)
    (directory / secrets.FILE).touch(0o600)
    (directory / "inventory.yaml").write_text(
        "all:\n  vars: {cluster_name: aurora}\n  children:\n"
        f"    {scheduler}_head: {{hosts: {{{listed}}}}}\n"
        f"    {scheduler}_workers: {{hosts: {{gpu01: {{ansible_host: 10.0.0.11}}}}}}\n"
    )
    return directory


@pytest.mark.parametrize(
    ("scheduler", "manifest", "why"),
    [
        ("kubernetes", KUBERNETES, ""),
        ("slurm", KUBERNETES, "Kubernetes 1.36.3, but the inventory has no group kubernetes_head"),
        ("kubernetes", MANIFEST, "Slurm 24.11.5, but the inventory has no group slurm_head"),
    ],
)
def test_manifest__of_the_other_scheduler__is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheduler: str, manifest: dict[str, Any], why: str
) -> None:
    monkeypatch.setattr(secrets, "label", lambda directory: MANIFEST["cluster"])
    monkeypatch.setattr(secrets, "check", lambda *_: None)
    inventory = home.load(heads_of(tmp_path / "aurora", "head1", scheduler=scheduler) / "inventory.yaml")
    (tmp_path / "part").write_bytes(b"x")
    cluster_backup.seal(tmp_path / "archive.tar", manifest, [tmp_path / "part"], KEY)
    if not why:
        assert restore._manifest(inventory, tmp_path / "archive.tar").as_dict() == manifest
        return
    with pytest.raises(InputError) as caught:
        restore._manifest(inventory, tmp_path / "archive.tar")
    assert why in str(caught.value)


def test_heads__of_several__is_the_first_that_responded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each head has all of etcd's data, so a dead one does not prevent a backup."""
    monkeypatch.setattr(secrets, "check", lambda *_: None)
    site = context.load(Options("backup", heads_of(tmp_path / "aurora", "head1", "head2", "head3")))
    assert [head.name for head in backup._heads(site)] == ["head1"]
    assert [head.name for head in backup._heads(dataclasses.replace(site, skipped=("head1",)))] == ["head2"]


@pytest.mark.proves("backup", "Only the newest backups of a cluster are kept; other files stay.")
def test_the_newest_are_kept_of_one_cluster(tmp_path: Path) -> None:
    days = [f"aurora-0a1b2c3d-202611{day:02}T190000Z.tar" for day in (3, 21, 1, 30)]
    others = [
        "aurora-0a1b2c3d-kubernetes-20261101T190000Z.tar",
        "borealis-0a1b2c3d-20261101T190000Z.tar",
        "aurora-0a1b2c3d-20261101T190000Z.tar.new",
        "notes",
    ]
    for name in (*days, *others):
        (tmp_path / name).touch()
    backup._prune(tmp_path / days[3], 2)
    assert {path.name for path in tmp_path.iterdir()} == {days[1], days[3], *others}


@pytest.mark.proves("restore", "A backup is held against the release that the head is pinned to.")
@pytest.mark.parametrize(
    ("pin", "made_by", "told"),
    [
        ("", "24.11.5", ""),
        ("", "25.11.2", "is from Slurm 25.11.2; Slurm 24.11 on the head reads 23.02 to 24.11"),
        ("25.11.*", "25.11.2", ""),
        ("25.11.*", "24.11.5", ""),
        ("25.11.*", "22.05.8", "correct slurm_head_version"),
    ],
)
def test_fits__release_of_the_backup__is_read_by_the_pinned_head(
    tmp_path: Path, pin: str, made_by: str, told: str
) -> None:
    (tmp_path / "inventory.yaml").write_text(
        f"all:\n  vars: {{cluster_name: aurora, slurm_head_version: '{pin}'}}\n  children:\n"
        "    slurm_head: {hosts: {head1: {}}}\n    slurm_workers: {hosts: {gpu01: {}}}\n"
    )
    (tmp_path / "hardware").mkdir()
    system = {"os": {**reply()["os"], "id": "debian", "version": "13", "family": "Debian"}}
    hardware.save(tmp_path, hardware.from_reply("head1", {**reply(), **system}, NOW))
    site = context.load(Options("restore", tmp_path))
    manifest = untrusted.decode(sealed.SlurmManifest, {**MANIFEST, "slurm": made_by})
    with contextlib.nullcontext() if not told else pytest.raises(PreflightError, match=told):
        restore._require_readable(site, manifest)
