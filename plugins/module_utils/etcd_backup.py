"""etcd's data in backups: snapshots, tools in the control plane's images, and a test of a restored snapshot."""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

from ansible.module_utils.cluster_backup import CHUNK
from ansible.module_utils.kubectl import KUBECONFIG, kubectl
from ansible.module_utils.node_state.tools import ENVIRONMENT, NodeError, clean, run, without_proxies

SNAPSHOT = "etcd.db.gz"
MANIFESTS = Path("/etc/kubernetes/manifests")
KUBERNETES_ETCD = "/usr/local/sbin/kubernetes-etcd"
SOCKET = "unix:///run/containerd/containerd.sock"
CRICTL = ("crictl", f"--runtime-endpoint={SOCKET}")
# kubeadm's arguments to delete a node's control plane. A member of etcd is removed by another head, which knows whether
# the others have a quorum. Without a kubeconfig, kubeadm does not wait for an API that may be down.
RESET = (
    "reset",
    "--force",
    "--cleanup-tmp-dir",
    "--kubeconfig=/dev/null",
    f"--cri-socket={SOCKET}",
    "--skip-phases=remove-etcd-member",
)
# Objects whose loss would be noticed; events and leases expire by themselves.
KINDS = (
    "namespaces,nodes,secrets,configmaps,services,persistentvolumes,persistentvolumeclaims,serviceaccounts,"
    "deployments.apps,daemonsets.apps,statefulsets.apps,jobs.batch,cronjobs.batch,"
    "roles.rbac.authorization.k8s.io,rolebindings.rbac.authorization.k8s.io,customresourcedefinitions.apiextensions.k8s.io"
)
LINES = 'jsonpath={range .items[*]}{.kind}/{.metadata.namespace}/{.metadata.name}{"\\n"}{end}'
PROOF_S = 180
# Starts etcd and an API server on the copy, in a network of their own, and prints the objects that the API server has.
# Arguments: etcd, its data, kube-apiserver, a directory for logs, two of kubectl; then options of kube-apiserver.
PROOF = """
ip link set lo up
ip address add 192.0.2.1/32 dev lo
etcd=$1 data=$2 apiserver=$3 place=$4 kinds=$5 lines=$6
shift 6
url=http://127.0.0.1:2379
"$etcd" --name proof --data-dir "$data" --listen-client-urls $url --advertise-client-urls $url \\
  --listen-peer-urls http://127.0.0.1:2380 --initial-advertise-peer-urls http://127.0.0.1:2380 \\
  --initial-cluster proof=http://127.0.0.1:2380 > "$place/etcd.log" 2>&1 &
"$apiserver" "$@" --etcd-servers=$url --bind-address=127.0.0.1 --advertise-address=192.0.2.1 --secure-port=6443 \\
  > "$place/apiserver.log" 2>&1 &
server=$!
until kubectl --server=https://127.0.0.1:6443 get --raw=/readyz > /dev/null 2>&1; do
  if ! kill -0 $server 2>/dev/null; then
    grep -hE '"level":"(fatal|panic|error)"|^[EF][0-9]{4}|^Error|failed' "$place"/*.log | tail -n 4 >&2
    exit 1
  fi
  sleep 0.2
done
kubectl --server=https://127.0.0.1:6443 get "$kinds" --all-namespaces --output="$lines"
"""
# Options of the API server that the copy must not have: etcd's certificates, the log of requests, addresses.
DROPPED = re.compile(r"--(etcd-|audit-|advertise-address=|bind-address=|secure-port=)")


def bump():
    """Return etcdutl's options by which no client has seen a later revision than etcd has after a restore.

    The milliseconds since 1970, so that it holds also if the same backup is restored again.
    https://etcd.io/docs/v3.6/op-guide/recovery/#restoring-with-revision-bump
    """
    return (f"--bump-revision={int(time.time() * 1000)}", "--mark-compacted")


def image_of(component):
    """Return the image of a component of this head."""
    found = re.search(r"^\s+image: (\S+)$", (MANIFESTS / f"{component}.yaml").read_text(), re.MULTILINE)
    if not found:
        raise NodeError(f"{MANIFESTS}/{component}.yaml has no image")
    return found.group(1)


@contextlib.contextmanager
def tool(image, name, place):
    """Mount an image below a directory; yield the path of one of its programs.

    The programs are static, so they run on the host; only images have etcd's tools in the version of the server.
    """
    target = place / f"image-{name}"
    unmount(target)
    target.mkdir(mode=0o700)
    run("ctr", "--namespace=k8s.io", "images", "mount", image, str(target))
    try:
        paths = [target / folder / name for folder in ("usr/local/bin", "usr/bin", "bin", ".")]
        found = [path for path in paths if path.is_file()]
        if not found:
            raise NodeError(f"the image {image} has no {name}")
        yield str(found[0])
    finally:
        unmount(target)


def unmount(target):
    """Unmount an image, and delete its directory: a killed call may have left both."""
    if target.exists():
        run("ctr", "--namespace=k8s.io", "images", "unmount", "--rm", str(target), check=False)
        target.rmdir()


def clear(workplace):
    """Delete a directory with mounted images, of a killed call."""
    for target in workplace.rglob("image-*"):
        unmount(target)
    shutil.rmtree(workplace, ignore_errors=True)


def pack(source, target):
    """Compress a snapshot."""
    with Path(source).open("rb") as plain, gzip.open(target, "wb", compresslevel=1) as packed:
        shutil.copyfileobj(plain, packed, CHUNK)


def unpack(source, target):
    """Write the snapshot of an archive to a new file that only root can read."""
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as plain, gzip.open(source, "rb") as packed:
        shutil.copyfileobj(packed, plain, CHUNK)
        plain.flush()
        os.fsync(plain.fileno())


def restore(etcdutl, snapshot, data, name, peer, *options):
    """Make the data of a cluster with one member from a snapshot. etcdutl checks the snapshot's digest."""
    cluster = [f"--name={name}", f"--initial-cluster={name}={peer}", f"--initial-advertise-peer-urls={peer}"]
    run(etcdutl, "snapshot", "restore", str(snapshot), f"--data-dir={data}", *cluster, *options)


def options_of_apiserver():
    """Return the options of this head's API server that one on a copy gets, too."""
    text = (MANIFESTS / "kube-apiserver.yaml").read_text()
    found = re.findall(r"^\s+- ['\"]?(--[^'\"\n]+)['\"]?$", text, re.MULTILINE)
    return [option for option in found if not DROPPED.match(option)]


def objects():
    """Return the cluster's objects, each as kind, namespace and name."""
    return set(kubectl("get", KINDS, "--all-namespaces", f"--output={LINES}")[1].split())


def prove(snapshot, workplace):
    """Start etcd and an API server on a copy of a snapshot; return the objects that it has.

    The API server has the head's certificates and encryption key, so a Secret that they cannot decrypt is an error.
    """
    place = workplace / "proof"
    place.mkdir(mode=0o700)
    etcd, apiserver = image_of("etcd"), image_of("kube-apiserver")
    with tool(etcd, "etcdutl", place) as etcdutl:
        restore(etcdutl, snapshot, place / "data", "proof", "http://127.0.0.1:2380")
    with tool(etcd, "etcd", place) as server, tool(apiserver, "kube-apiserver", place) as api:
        given = [server, str(place / "data"), api, str(place), KINDS, LINES, *options_of_apiserver()]
        argv = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "sh", "-euc", PROOF, "proof", *given]
        own = {"KUBECONFIG": KUBECONFIG, "KUBERC": "off", "HOME": str(place)}
        environment = {**without_proxies(os.environ), **ENVIRONMENT, **own}
        try:
            done = subprocess.run(
                argv,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=PROOF_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise NodeError(f"the API server does not start on the copy of etcd's data in {PROOF_S} s") from None
    shutil.rmtree(place)
    if done.returncode:
        raise NodeError(f"the API server does not start on the copy of etcd's data: {clean(done.stderr)}")
    return set(done.stdout.split())
