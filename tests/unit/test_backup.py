"""A backup's archive: what the head writes is what the controller reads, and damage does not pass for either."""

import tarfile
from pathlib import Path
from typing import Any

import ansible.module_utils
import pytest
from ansible.parsing.vault import VaultLib, VaultSecret

from clusterctl import backup, paths
from clusterctl.errors import InputError

ansible.module_utils.__path__.append(str(paths.content() / "playbooks/module_utils"))
from ansible.module_utils import cluster_backup, node_tools  # noqa: E402

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


def archive(path: Path, **other: Any) -> Path:
    path.mkdir(exist_ok=True)
    (path / "slurmctld.tar.gz").write_bytes(bytes(range(256)) * 9)
    cluster_backup.seal(path / "archive.tar", MANIFEST | other, [path / "slurmctld.tar.gz"])
    return path / "archive.tar"


def test_what_the_head_writes_the_controller_reads(tmp_path: Path) -> None:
    path = archive(tmp_path)
    assert cluster_backup.unseal(path) == MANIFEST
    manifest = backup.read(path)
    assert backup._plain(manifest) == MANIFEST
    assert manifest.release == "24.11"
    assert path.stat().st_mode & 0o777 == 0o600
    assert cluster_backup.take(path, "slurmctld.tar.gz", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == (tmp_path / "slurmctld.tar.gz").read_bytes()
    assert not cluster_backup.take(path, "drain.json", tmp_path / "none")


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


def test_the_clusters_directory_is_copied_without_its_password(copy: Path) -> None:
    with tarfile.open(copy) as tar:
        assert tar.getnames() == ["aurora/inventory.yaml", "aurora/group_vars/all.yml", "aurora/secrets.yml"]
    cluster_backup.try_directory(copy)


@pytest.mark.parametrize(
    ("name", "data", "told"),
    [
        ("aurora/secrets.yml", b"munge_key: secret\n", "does not open"),
        ("aurora/secrets.yml", b"$ANSIBLE_VAULT;1.2;AES256;x\n6161\n", "does not open"),
        ("aurora/other.yml", b"", "does not open"),
        ("aurora/notes", PASSWORD.encode(), "holds the password"),
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
    with pytest.raises(node_tools.NodeError, match="does not open"):
        cluster_backup.try_directory(copy)


def test_what_differs_between_a_backups_directory_and_ours_is_named(tmp_path: Path, copy: Path) -> None:
    path, here = tmp_path / "archive.tar", tmp_path / "here"
    cluster_backup.seal(path, MANIFEST, [copy])
    here.mkdir()
    (here / "inventory.yaml").write_text("all: {}\n")
    (here / "secrets.yml").write_text("another's")
    assert backup.differing(path, here) == ["group_vars/all.yml", "secrets.yml"]
    assert sorted(one.name for one in here.iterdir()) == ["inventory.yaml", "secrets.yml"]
    assert backup.differing(archive(tmp_path / "old"), here) == []


def refused(path: Path) -> None:
    with pytest.raises(InputError, match="is damaged, or no backup"):
        backup.read(path)
    with pytest.raises(node_tools.NodeError, match="is damaged or no backup"):
        cluster_backup.unseal(path)


def test_a_flipped_byte_is_noticed_wherever_it_is(tmp_path: Path) -> None:
    path = archive(tmp_path)
    whole = path.read_bytes()
    with tarfile.open(path) as tar:
        last = tar.getmembers()[-1]
    for place in [*range(0, last.offset, 61), last.offset, last.offset_data, last.offset_data + 63]:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        refused(path)


def test_an_archive_that_is_cut_off_or_none_at_all_is_refused(tmp_path: Path) -> None:
    path = archive(tmp_path)
    whole = path.read_bytes()
    end = len(whole.rstrip(b"\0"))
    for size in (0, 1, 512, 1000, end // 2, end - 600, end - 10):
        path.write_bytes(whole[:size])
        refused(path)
    path.write_bytes(b"x" * 20_000)
    refused(path)


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
    with pytest.raises(InputError, match=r"is damaged, or no backup|is of version 2, expected 1"):
        backup.read(archive(tmp_path, **other))


def test_the_state_of_a_controller_that_writes_is_copied_whole(tmp_path: Path) -> None:
    """In the moment between two renames a file is there under its other name alone."""
    source = tmp_path / "slurmctld"
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
    cluster_backup.pack(source, tmp_path / "packed")
    with tarfile.open(tmp_path / "packed") as tar:
        names = tar.getnames()
        told = {name: tar.extractfile(name).read().decode() for name in names}  # type: ignore[union-attr]
    assert told == {"job_state": "now", "node_state": "only", "hash.7/job.7/script": "#!/bin/sh"}
    assert names.index("job_state") < names.index("hash.7/job.7/script")


def test_an_empty_queue_is_one() -> None:
    assert cluster_backup.jobs("\n") == {}
    assert cluster_backup.jobs("7 RUNNING\n12 PENDING\n") == {"7": "RUNNING", "12": "PENDING"}


def test_the_newest_are_kept_of_one_cluster(tmp_path: Path) -> None:
    days = [f"aurora-0a1b2c3d-202611{day:02}T190000Z.tar" for day in (3, 21, 1, 30)]
    others = ["borealis-0a1b2c3d-20261101T190000Z.tar", "aurora-0a1b2c3d-20261101T190000Z.tar.new", "notes"]
    for name in (*days, *others):
        (tmp_path / name).touch()
    backup._prune(tmp_path / days[3], 2)
    assert {path.name for path in tmp_path.iterdir()} == {days[1], days[3], *others}
