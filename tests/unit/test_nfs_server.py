"""Role nfs_server: whom it admits, and which directories it refuses."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.systems.rendering import VARIABLES, Cluster, a_cluster

INVENTORY = """\
all:
  vars: {cluster_name: aurora}
  children:
    slurm_head: {hosts: {head1: {ansible_host: 10.0.0.10}}}
    slurm_workers:
      hosts: {gpu01: {ansible_host: 192.0.2.11, cluster_address: 10.0.0.11}, gpu02: {ansible_host: gpu02}}
    login: {hosts: {login1: {ansible_host: 10.0.0.13}}}
    monitoring: {hosts: {metrics1: {ansible_host: 10.0.0.14}, files2: {ansible_host: 10.0.0.15}}}
    nfs_server: {hosts: {nfs1: {ansible_host: 10.0.0.16}}}
"""
# Root of gpu01 has reported an address of a host outside of the cluster.
FOREIGN = {"name": "eth9", "addresses": ["203.0.113.9/24"]}
MOUNTS = """
mkdir own part bound own/below
mount -t tmpfs none own
mkdir own/below
mount --bind part bound
"""


@pytest.mark.proves("storage", "The NFS server admits addresses of the inventory, not those that nodes report.")
@pytest.mark.parametrize(
    ("networks", "clients"),
    [([], ["10.0.0.10", "10.0.0.11", "10.0.0.13", "10.0.0.15"]), (["10.0.0.0/24"], ["10.0.0.0/24"])],
)
def test_clients__of_the_server__are_those_of_the_inventory(
    tmp_path: Path, networks: list[str], clients: list[str]
) -> None:
    a_cluster(tmp_path, "debian-13")
    (tmp_path / "inventory.yaml").write_text(INVENTORY)
    path = tmp_path / "hardware/gpu01.json"
    record = json.loads(path.read_text())
    record["nics"].insert(0, FOREIGN)
    path.write_text(json.dumps(record))
    variables = {**VARIABLES, "cluster_networks": networks, "nfs_client_mounts": []}
    cluster = Cluster(tmp_path / "inventory.yaml", "debian-13", variables)
    cluster.set("files2", nfs_client_mounts=[{"path": "/home", "source": "nfs1:/home"}])
    assert cluster.role("nfs_server", "nfs1").value("__nfs_server_clients") == clients


@pytest.mark.proves("storage", "An export that is no file system of its own is refused.")
def test_exports__on_a_disk_with_other_files__are_found(tmp_path: Path) -> None:
    look = a_cluster(tmp_path, "debian-13").role("nfs_server", "head1").value("__nfs_server_look")
    paths = [str(tmp_path / name) for name in ("own", "own/below", "part", "bound", "missing")]
    script = f'{MOUNTS}\nexec sh -uc "$0" sh "$@"'
    argv = ["unshare", "--map-root-user", "--mount", "sh", "-eu", "-c", script, look, *paths]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True, cwd=tmp_path)
    assert done.stdout.split() == paths[1:]
