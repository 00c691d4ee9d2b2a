"""Backups of Kubernetes: the snapshot in an archive, its test, and what a restore accepts and puts in place."""

import errno
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils import cluster_backup, etcd_backup

import tests.unit.test_node_state  # noqa: F401 - lets the modules of the nodes be found
from tests.unit.test_role_plugins import plugin

BACKUP, RESTORE = plugin("modules/kubernetes_backup"), plugin("modules/kubernetes_restore")

# Of /etc/kubernetes/manifests/kube-apiserver.yaml, as kubeadm 1.36.3 writes it (cmd/kubeadm/app/phases/controlplane).
APISERVER = """\
spec:
  containers:
  - command:
    - kube-apiserver
    - --advertise-address=10.0.0.10
    - --audit-log-path=/var/log/kubernetes/audit.log
    - --client-ca-file=/etc/kubernetes/pki/ca.crt
    - --encryption-provider-config=/etc/kubernetes/clusterctl/encryption.yaml
    - --etcd-cafile=/etc/kubernetes/pki/etcd/ca.crt
    - --etcd-servers=https://127.0.0.1:2379
    - --secure-port=6443
    - '--tls-cipher-suites=a,b'
    image: registry.k8s.io/kube-apiserver:v1.36.3
    imagePullPolicy: IfNotPresent
"""


@pytest.fixture
def manifests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(etcd_backup, "MANIFESTS", tmp_path)
    (tmp_path / "kube-apiserver.yaml").write_text(APISERVER)
    (tmp_path / "etcd.yaml").write_text("spec: {}\n")
    return tmp_path


def test_image_of__component__is_in_its_manifest(manifests: Path) -> None:
    assert etcd_backup.image_of("kube-apiserver") == "registry.k8s.io/kube-apiserver:v1.36.3"
    with pytest.raises(etcd_backup.NodeError, match=r"etcd\.yaml has no image"):
        etcd_backup.image_of("etcd")


def test_options_of_apiserver__on_a_copy__reach_neither_etcd_nor_its_log(manifests: Path) -> None:
    """The copy must have the key of Secrets, and nothing of the running cluster."""
    assert etcd_backup.options_of_apiserver() == [
        "--client-ca-file=/etc/kubernetes/pki/ca.crt",
        "--encryption-provider-config=/etc/kubernetes/clusterctl/encryption.yaml",
        "--tls-cipher-suites=a,b",
    ]


def test_pack__and_unpack__give_the_same_snapshot(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"data" * 5000)
    etcd_backup.pack(tmp_path / "plain", tmp_path / "packed")
    assert (tmp_path / "packed").stat().st_size < 1000
    etcd_backup.unpack(tmp_path / "packed", tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == b"data" * 5000
    assert (tmp_path / "again").stat().st_mode & 0o777 == 0o600


class Images:
    """ctr, which mounts an image with one program."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
        self.calls: list[str] = []
        self.place = place
        monkeypatch.setattr(etcd_backup, "run", self.run)

    def run(self, *argv: str, **_: Any) -> tuple[int, str]:
        self.calls.append(" ".join(argv[2:-1]) if argv[0] == "ctr" else " ".join(argv))
        if argv[3] == "mount":
            program = Path(argv[-1]) / self.place
            program.parent.mkdir(parents=True, exist_ok=True)
            program.write_text("program")
        if argv[3] == "unmount":
            for path in sorted(Path(argv[-1]).rglob("*"), reverse=True):
                path.unlink() if path.is_file() else path.rmdir()
        return 0, ""


@pytest.mark.parametrize("place", ["usr/local/bin/etcdutl", "etcdutl"])
def test_tool__of_an_image__is_unmounted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    images = Images(monkeypatch, place)
    with pytest.raises(KeyboardInterrupt), etcd_backup.tool("etcd:3", "etcdutl", tmp_path) as path:
        assert Path(path).read_text() == "program"
        raise KeyboardInterrupt
    assert images.calls == ["images mount etcd:3", "images unmount --rm"]
    assert list(tmp_path.iterdir()) == []


def test_tool__not_in_the_image__is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Images(monkeypatch, "usr/bin/other")
    with (
        pytest.raises(etcd_backup.NodeError, match="the image etcd:3 has no etcdutl"),
        etcd_backup.tool("etcd:3", "etcdutl", tmp_path),
    ):
        pass


def test_clear__mounts_of_a_killed_call__are_unmounted_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the deletion would go through the mount."""
    images = Images(monkeypatch, "x")
    (tmp_path / "new/proof/image-etcd/bin").mkdir(parents=True)
    etcd_backup.clear(tmp_path / "new")
    assert images.calls == ["images unmount --rm"]
    assert not (tmp_path / "new").exists()


def test_restore__of_a_snapshot__makes_one_member(monkeypatch: pytest.MonkeyPatch) -> None:
    images = Images(monkeypatch, "x")
    etcd_backup.restore(
        "/x/etcdutl", "s.db", "/var/lib/etcd/.restore", "head1", "https://10.0.0.1:2380", *etcd_backup.bump()
    )
    (call,) = images.calls
    assert call.startswith("/x/etcdutl snapshot restore s.db --data-dir=/var/lib/etcd/.restore --name=head1 ")
    assert "--initial-cluster=head1=https://10.0.0.1:2380 --initial-advertise-peer-urls=https://10.0.0.1:2380" in call
    found = re.search(r" --bump-revision=(\d+) --mark-compacted$", call)
    assert found
    assert int(found[1]) > 1_700_000_000_000, "a second restore of the same backup must begin with a later revision"


# --- backup ---------------------------------------------------------------------------------------------------------


def test_missing__objects__are_those_of_both_moments() -> None:
    before, after = {"Node//a", "Secret/x/gone", "Secret/x/kept"}, {"Node//a", "Secret/x/kept", "Pod/x/new"}
    assert BACKUP.missing(before, after, {"Node//a"}) == ["Secret/x/kept"]
    assert BACKUP.missing(before, after, {"Node//a", "Secret/x/kept"}) == []


@pytest.mark.proves("backup", "A snapshot of etcd that lacks an object is not kept as a backup.")
def test_save__copy_without_an_object__is_repeated_and_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proofs: list[bytes] = []

    def snapshot(_: str, option: str) -> None:
        Path(option.partition("=")[2]).write_bytes(b"snapshot")

    def prove(path: Path, _: Path) -> set[str]:
        proofs.append(path.read_bytes())
        return {"Node//a"} | ({"Secret/x/y"} if len(proofs) == enough else set())

    monkeypatch.setattr(BACKUP, "run", snapshot)
    monkeypatch.setattr(BACKUP, "objects", lambda: {"Node//a", "Secret/x/y"})
    monkeypatch.setattr(BACKUP, "prove", prove)
    enough = 2
    assert BACKUP.save(tmp_path) == {"Node//a", "Secret/x/y"}
    assert gzip.decompress((tmp_path / "etcd.db.gz").read_bytes()) == b"snapshot"
    assert [path.name for path in tmp_path.iterdir()] == ["etcd.db.gz"]
    enough, proofs[:] = 9, []
    with pytest.raises(BACKUP.NodeError, match="1 objects of the cluster are missing: Secret/x/y"):
        BACKUP.save(tmp_path)
    assert proofs == [b"snapshot"] * 3


def test_make__archive__is_sealed_with_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def save(workplace: Path) -> set[str]:
        (workplace / "etcd.db.gz").write_bytes(b"packed")
        return {"Node//a", "Node//b", "Secret/x/y"}

    monkeypatch.setattr(BACKUP, "save", save)
    monkeypatch.setattr(BACKUP, "label", lambda: "aurora-0a1b2c3d")
    monkeypatch.setattr(BACKUP, "release", lambda: "1.36.3")
    monkeypatch.setattr(BACKUP, "copy_directory", lambda path: path.write_bytes(b"directory"))
    monkeypatch.setattr(BACKUP, "try_directory", lambda _: None)
    given = {"directory": str(tmp_path / "backups"), "keep": 2, "prometheus": False, "key": "k"}
    path, manifest, notes = BACKUP.make(given)
    assert manifest["objects"] == {"Node": 2, "Secret": 1}
    assert cluster_backup.unseal(path, "k") == manifest
    assert (tmp_path / "backups").stat().st_mode & 0o777 == 0o700
    assert len(notes) == 1
    with pytest.raises(cluster_backup.NodeError, match="its seal is not valid"):
        cluster_backup.unseal(path, "another")


# --- restore --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "version", "message"),
    [
        ({}, "1.36.9", ""),
        ({}, "1.37.0", ""),
        ({}, "1.35.4", "the backup is from Kubernetes 1.36.3, which 1.35.4"),
        ({}, "1.38.0", "cannot read"),
        ({"cluster": "borealis-0a1b2c3d"}, "1.36.3", "from another cluster, got borealis-0a1b2c3d, expected aurora"),
        ({"kubernetes": None}, "1.36.3", "from a head of Slurm"),
    ],
)
def test_refuse__backup__must_be_this_clusters_and_readable(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], version: str, message: str
) -> None:
    monkeypatch.setattr(RESTORE, "label", lambda: "")
    manifest = {"cluster": "aurora-0a1b2c3d", "kubernetes": "1.36.3"} | changes
    manifest = {key: value for key, value in manifest.items() if value is not None}
    if not message:
        RESTORE.refuse(manifest, "aurora", version)
        return
    with pytest.raises(RESTORE.NodeError, match=message):
        RESTORE.refuse(manifest, "aurora", version)


class Head:
    """A head with an archive, and a control plane or none."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.calls, self.kubeadm = folder, list[str](), True
        self.version = "1.36.3"
        self.own, self.etcd = folder / "clusterctl", folder / "lib/etcd"
        self.etcd.mkdir(parents=True)
        monkeypatch.setattr(RESTORE, "OWN", self.own)
        monkeypatch.setattr(RESTORE, "STAGED", self.own / "restore.db")
        monkeypatch.setattr(RESTORE, "ETCD", self.etcd)
        monkeypatch.setattr(RESTORE, "label", lambda: "")
        monkeypatch.setattr(RESTORE, "run", self.run)
        monkeypatch.setattr(RESTORE, "installed", lambda: self.version if self.kubeadm else "")
        monkeypatch.setattr(RESTORE.shutil, "which", lambda _: self.kubeadm or None)
        (folder / "etcd.db.gz").write_bytes(gzip.compress(b"snapshot"))
        self.archive = folder / "backups/x.tar"
        self.archive.parent.mkdir()
        manifest = {"version": 1, "cluster": "aurora-1", "made": "2026-11-25T00:00:00Z", "kubernetes": "1.36.3"}
        cluster_backup.seal(self.archive, manifest, [folder / "etcd.db.gz"], "k")

    def set_up(self) -> None:
        (self.etcd / "member").mkdir()
        (self.etcd / "member/db").write_text("old")
        self.own.mkdir(exist_ok=True)
        (self.own / "complete").write_text("{}")

    def run(self, *argv: str, **_: Any) -> tuple[int, str]:
        self.calls.append(" ".join(word for word in argv if not word.startswith("--")))
        return 0, "c1\n" if "ps" in argv else ""

    def stage(self, key: str = "k", pin: str = "1.36.3") -> list[str]:
        given = {"archive": str(self.archive), "cluster": "aurora", "version": pin, "key": key}
        return [one["action"] for one in RESTORE.accept(given)]

    def delete(self) -> list[str]:
        return [one["action"] for one in RESTORE.delete({"cluster": "aurora"})]


@pytest.fixture
def head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Head:
    return Head(tmp_path, monkeypatch)


def test_restore__on_a_new_head__stages_the_snapshot(head: Head) -> None:
    head.kubeadm = False
    assert (head.stage(), head.delete()) == (["restored"], [])
    assert (head.own / "restore.db").read_bytes() == b"snapshot"
    assert (head.own / "restore.db").stat().st_mode & 0o777 == 0o600
    assert head.calls == []
    assert [path.name for path in head.archive.parent.iterdir()] == ["x.tar"]


@pytest.mark.proves("restore", "A backup is checked against the installed Kubernetes, not against the inventory's.")
@pytest.mark.parametrize(
    ("installed", "pin", "readable"),
    [("1.36.3", "1.38.0", True), ("1.35.4", "1.36.3", False), ("", "1.36.3", True), ("", "1.35.4", False)],
)
def test_restore__installed_release__decides(head: Head, installed: str, pin: str, readable: bool) -> None:
    head.kubeadm, head.version = bool(installed), installed
    if readable:
        assert head.stage(pin=pin) == ["restored"]
        return
    with pytest.raises(RESTORE.NodeError, match=r"which 1\.35\.4 on this head cannot read"):
        head.stage(pin=pin)


@pytest.mark.proves("restore", "etcd's data that a restore replaces is kept on the head.")
def test_restore__on_a_head_with_a_cluster__keeps_its_data(head: Head) -> None:
    head.set_up()
    assert (head.stage(), head.calls) == (["restored"], []), "nothing is deleted before the backup was accepted"
    assert head.delete() == ["removed"]
    (aside,) = head.etcd.parent.glob("etcd.before-*")
    assert ((aside / "member/db").read_text(), aside.stat().st_mode & 0o777) == ("old", 0o700)
    assert head.calls[:3] == ["systemctl stop kubelet", "crictl ps", "crictl stop c1"]
    assert head.calls[3] == "kubeadm reset"
    assert not (head.own / "complete").exists()
    assert not (head.etcd / "member").exists()


def test_restore__further_head__only_loses_its_control_plane(head: Head) -> None:
    head.set_up()
    assert head.delete() == ["removed"]
    assert not (head.own / "restore.db").exists()
    assert head.delete() == []


def test_delete__disk_is_full__starts_the_kubelet_again(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    head.set_up()

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(RESTORE.shutil, "copytree", full)
    with pytest.raises(OSError, match="No space left"):
        head.delete()
    assert head.calls[-1] == "systemctl start kubelet"
    assert (head.etcd / "member/db").read_text() == "old"
    assert list(head.etcd.parent.glob("etcd.before-*")) == []


def test_restore__archive_of_another_key__changes_nothing(head: Head) -> None:
    head.set_up()
    with pytest.raises(RESTORE.NodeError, match="its seal is not valid"):
        head.stage(key="another")
    assert (head.calls, json.loads((head.own / "complete").read_text())) == ([], {})


def test_prune__former_data__keeps_the_newest_three(head: Head) -> None:
    for day in range(1, 6):
        (head.etcd.parent / f"etcd.before-2026110{day}T000000Z").mkdir()
    RESTORE.prune()
    left = sorted(path.name for path in head.etcd.parent.iterdir())
    assert left == ["etcd", *(f"etcd.before-2026110{day}T000000Z" for day in (3, 4, 5))]
