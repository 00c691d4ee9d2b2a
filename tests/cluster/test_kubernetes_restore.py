"""A backup of Kubernetes' etcd, put back on the same head and on a new one while pods run. In order, on one lab."""

import gzip
import stat
import tarfile
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from clusterctl.workspace import secrets
from tests.cluster.kubernetes import BUSYBOX, RECIPES, Kubernetes, Manifest, deployment, pod
from tests.cluster.lab import clusterctl, fresh_as, podman
from tests.faults.injury import container, fails, wait_until
from tests.programs import described

pytestmark = [pytest.mark.long, pytest.mark.kit(*RECIPES)]

VALUE = uuid.uuid4().hex
# What a backup has to bring back as it was. Events and leases are of the moment.
KINDS = (
    "namespaces", "nodes", "deployments", "replicasets", "daemonsets", "pods", "services", "configmaps", "secrets",
    "serviceaccounts", "roles", "rolebindings", "clusterroles", "clusterrolebindings", "poddisruptionbudgets",
    "persistentvolumeclaims", "persistentvolumes", "storageclasses", "resourcequotas",
)  # fmt: skip
# As after a disk that failed: etcd's data is no more, and kubelet starts no etcd without it.
WIPE = """
systemctl stop kubelet
runtime='crictl --runtime-endpoint unix:///run/containerd/containerd.sock'
$runtime ps --quiet --name '^(etcd|kube-apiserver)$' | xargs --no-run-if-empty $runtime stop --timeout 1
find /var/lib/etcd -mindepth 1 -delete
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Kubernetes]:
    """A head and a worker with two pods that run through all that follows, a secret and a setting."""
    with fresh_as(Kubernetes, "kubernetes-restore", workers=1) as lab:
        lab.run("bootstrap")
        steady = deployment("steady", "exec sleep infinity", replicas=2, node="gpu01")
        lab.apply(steady, setting("kept"), {**setting("kept"), "kind": "Secret", "stringData": {"value": VALUE}})
        lab.wait(steady)
        yield lab


def setting(name: str) -> Manifest:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}


def objects(lab: Kubernetes) -> dict[tuple[str, str, str], str]:
    """Return the UIDs of all objects that count, by kind, namespace and name.

    A pod that kubelet has from a file, and only shows to the API, does not.
    """
    found = [one["metadata"] | {"kind": one["kind"]} for one in lab.get(",".join(KINDS), "--all-namespaces")]
    return {
        (one["kind"], one.get("namespace", ""), one["name"]): one["uid"]
        for one in found
        if "kubernetes.io/config.mirror" not in one.get("annotations", {})
    }


@pytest.fixture(scope="module")
def archive(lab: Kubernetes) -> Path:
    return Path(lab.run("backup")["backup"])


@pytest.fixture(scope="module")
def known(lab: Kubernetes, archive: Path) -> Mapping[tuple[str, str, str], str]:
    """The objects as the backup has them."""
    return objects(lab)


def parts(archive: Path) -> dict[str, bytes]:
    found = {}
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            file = tar.extractfile(member)
            assert file is not None
            data = file.read()
            found[member.name] = gzip.decompress(data) if member.name.endswith(".gz") else data
    return found


@pytest.mark.proves("backup", "A backup of Kubernetes has no secret and no key in plain text.")
def test_backup__of_etcd__has_no_secret_in_plain_text(
    lab: Kubernetes, archive: Path, known: Mapping[tuple[str, str, str], str]
) -> None:
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    content = parts(archive)
    assert sum(map(len, content.values())) > 100_000, "a snapshot is larger"
    directory = lab.inventory.parent
    keys = lab.root("head1", "cat /etc/kubernetes/pki/*.key /etc/kubernetes/pki/etcd/*.key").split("\n")
    private = {line for line in keys if len(line) == 64}
    assert len(private) > 5
    password = secrets.vault_password_file(directory).read_text().strip()
    for name, part in content.items():
        for secret in (VALUE, password, *secrets.values(directory).values(), *private):
            assert secret.encode() not in part, name
    assert ("Secret", "default", "kept") in known


def as_before(lab: Kubernetes, known: Mapping[tuple[str, str, str], str]) -> None:
    """See that the cluster has the backup's objects and no others, and that it works."""
    assert lab.ready() == dict.fromkeys(lab.nodes, True)
    found = objects(lab)
    assert {key: found.get(key) for key in known} == dict(known)
    assert ("ConfigMap", "default", "later") not in found
    assert lab.output(reader()) == f"{VALUE}\n"
    assert (lab.ledger(), lab.cordoned()) == ({}, set())


def reader() -> Manifest:
    """Return a pod that prints the secret: it is decrypted with the old key."""
    one = pod("reads", BUSYBOX, "echo $VALUE")
    of = {"secretKeyRef": {"name": "kept", "key": "value"}}
    one["spec"]["containers"][0]["env"] = [{"name": "VALUE", "valueFrom": of}]
    return one


def restored(lab: Kubernetes, archive: Path) -> None:
    done = clusterctl("restore", str(lab.inventory), str(archive), "--yes")
    assert done.returncode == 0, described(done)
    wait_until(lambda: lab.ready() == dict.fromkeys(lab.nodes, True))


@pytest.mark.proves("restore", "After a wipe of etcd a restore brings back the same objects; running pods continue.")
def test_restore__after_etcd_was_wiped__brings_the_same_objects(
    lab: Kubernetes, archive: Path, known: Mapping[tuple[str, str, str], str]
) -> None:
    lab.apply(setting("later"))
    steady = lab.containers("gpu01")
    lab.root("head1", WIPE)
    assert lab.ready() == {}
    restored(lab, archive)
    as_before(lab, known)
    assert lab.containers("gpu01").items() >= steady.items()
    lab.unchanged()


@pytest.mark.proves("restore", "A backup of another cluster or a damaged one is refused; Kubernetes is untouched.")
def test_restore__damaged_backup__is_refused(
    lab: Kubernetes, archive: Path, known: Mapping[tuple[str, str, str], str], tmp_path: Path
) -> None:
    whole, damaged = archive.read_bytes(), tmp_path / archive.name
    middle = len(whole.rstrip(b"\0")) // 2
    damaged.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    done = clusterctl("restore", str(lab.inventory), str(damaged), "--yes")
    assert done.returncode == 2, described(done)
    assert "is damaged" in done.stderr
    found = objects(lab)
    assert {key: found.get(key) for key in known} == dict(known)


@pytest.mark.proves("bootstrap", "`bootstrap` refuses a new head while workers have pods of the lost one.")
@pytest.mark.proves("restore", "A lost head of Kubernetes is restored on a new one; running pods continue.")
def test_restore__on_a_new_head__brings_the_same_objects(
    lab: Kubernetes, archive: Path, known: Mapping[tuple[str, str, str], str]
) -> None:
    steady = lab.containers("gpu01")
    podman("rm", "--force", "--volumes", "--time", "0", container(lab, "head1"))
    lab.up()
    assert "lost head" in fails(lab, 3)
    assert lab.root("head1", "ls -d /etc/kubernetes /var/lib/clusterctl 2>/dev/null || true") == ""
    restored(lab, archive)
    as_before(lab, known)
    assert lab.containers("gpu01").items() >= steady.items()
    lab.unchanged()
