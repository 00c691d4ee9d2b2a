#!/usr/bin/python
"""Ansible module: put a backup of etcd in place, for the head that creates the cluster again."""

from __future__ import annotations

import re
import shutil
import tarfile
import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.cluster_backup import label, room, size_of, take, unseal
from ansible.module_utils.etcd_backup import CRICTL, RESET, SNAPSHOT, unpack
from ansible.module_utils.kubeadm import installed
from ansible.module_utils.node_state.tools import NodeError, change, run

DOCUMENTATION = r"""
module: kubernetes_restore
author: the clusterctl authors
short_description: Restore Kubernetes' objects from a backup
description:
  - V(stage) puts the snapshot of the archive where module kubernetes_control_plane finds it, on the head that creates
    the cluster again.
  - V(delete) deletes the control plane of this head. Its data of etcd is kept under the time of the restore; only the
    three newest of them are kept.
  - Role kubernetes_head then starts the control plane with the snapshot's data. Further heads join it. Workers continue
    to run their pods, and reconnect, because the certificates follow from the cluster's secret and stay the same.
  - Refuses an archive that is damaged, not sealed by this cluster, from another cluster, or from a newer Kubernetes.
options:
  step:
    description: What to do, first V(stage) on one head, then V(delete) on all.
    type: str
    choices: [stage, delete]
    required: true
  archive:
    description: The backup, on this host.
    type: path
  cluster:
    description: Name of the cluster.
    type: str
    required: true
  version:
    description: Version that this head will run. If kubeadm is installed, its own version counts, which a run keeps.
    type: str
  key:
    description: The cluster's secret that seals its archives.
    type: str
attributes:
  check_mode:
    support: none
"""

EXAMPLES = r"""
- name: Extract the backup
  kubernetes_restore:
    step: stage
    archive: /var/lib/clusterctl/backups/aurora-0a1b2c3d-20261121T190000Z.tar
    cluster: aurora
    version: 1.36.3
    key: "{{ lookup('cluster_secret', 'backup_key') }}"
"""

RETURN = r"""
changes:
  description: What was replaced; mappings with kind, name and what.
  type: list
  returned: always
"""

OWN = Path("/etc/kubernetes/clusterctl")
STAGED = OWN / "restore.db"
ETCD = Path("/var/lib/etcd")
KEPT = 3


def refuse(manifest, cluster, version):
    """Check that the backup is from this cluster, and that this Kubernetes can read it."""
    if "kubernetes" not in manifest:
        raise NodeError("the backup is from a head of Slurm")
    theirs, _, _ = manifest["cluster"].rpartition("-")
    if theirs != cluster or manifest["cluster"] != (label() or manifest["cluster"]):
        raise NodeError(f"the backup is from another cluster, got {manifest['cluster']}, expected {label() or cluster}")
    made, ours = ([int(part) for part in text.split(".")[:2]] for text in (manifest["kubernetes"], version))
    # An API server reads objects of the release before it: https://kubernetes.io/releases/version-skew-policy/
    if not made <= ours <= [made[0], made[1] + 1]:
        raise NodeError(
            f"the backup is from Kubernetes {manifest['kubernetes']}, which {version} on this head cannot read"
        )


def stage(archive, workplace):
    """Put the snapshot of an archive in place."""
    take(archive, SNAPSHOT, workplace / SNAPSHOT)
    OWN.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = OWN / ".restore.db.new"
    new.unlink(missing_ok=True)
    unpack(workplace / SNAPSHOT, new)
    new.rename(STAGED)


def put_aside(now):
    """Delete this head's control plane, and keep its data of etcd; return the path of the data."""
    if shutil.which("kubeadm") and (OWN / "complete").exists():
        aside = ETCD.with_name(f"etcd.before-{now}")
        room((str(ETCD.parent), size_of(ETCD)))
        run("systemctl", "stop", "kubelet")
        try:
            # Without the kubelet, nothing starts a stopped container again. etcd must not write during the copy.
            containers = run(*CRICTL, "ps", "--quiet", "--name=^etcd$")[1].split()
            if containers:
                run(*CRICTL, "stop", "--timeout=30", *containers)
            if (ETCD / "member").exists():
                aside.mkdir(mode=0o700)
                shutil.copytree(ETCD / "member", aside / "member")
        except (NodeError, OSError):
            shutil.rmtree(aside, ignore_errors=True)
            run("systemctl", "start", "kubelet")
            raise
        run("kubeadm", *RESET)
        shutil.rmtree(ETCD / "member", ignore_errors=True)
        for name in ("complete", "started"):
            (OWN / name).unlink(missing_ok=True)
        return str(aside) if aside.exists() else ""
    return ""


def prune():
    """Delete the former data of earlier restores, except the newest."""
    old = re.compile(r"etcd\.before-\d{8}T\d{6}Z")
    for path in sorted(path for path in ETCD.parent.iterdir() if old.fullmatch(path.name))[:-KEPT]:
        shutil.rmtree(path)


def accept(given):
    """Check the archive and stage its snapshot; return the changes."""
    archive = Path(given["archive"])
    manifest = unseal(archive, given["key"])
    refuse(manifest, given["cluster"], installed() or given["version"])
    workplace = archive.parent / ".restore"
    shutil.rmtree(workplace, ignore_errors=True)  # from a killed run
    workplace.mkdir(mode=0o700)
    try:
        room((str(archive.parent), 2 * archive.stat().st_size))
        stage(archive, workplace)
    finally:
        shutil.rmtree(workplace, ignore_errors=True)
    return [change("etcd", given["cluster"], "restored", f"as of {manifest['made']}")]


def delete(given):
    """Delete this head's control plane; return the changes."""
    aside = put_aside(time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()))
    prune()
    what = f"its former data is {aside}"
    return [change("control plane", given["cluster"], "removed", what)] if aside else []


def main():
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "step": {"type": "str", "choices": ["stage", "delete"], "required": True},
            "archive": {"type": "path"},
            "cluster": {"type": "str", "required": True},
            "version": {"type": "str"},
            "key": {"type": "str", "no_log": True},
        },
        required_if=[("step", "stage", ("archive", "version", "key"))],
    )
    steps = {"stage": accept, "delete": delete}
    try:
        changes = steps[module.params["step"]](module.params)
    except (NodeError, OSError, tarfile.TarError, ValueError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=bool(changes), changes=changes)


if __name__ == "__main__":
    main()
