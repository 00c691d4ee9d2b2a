#!/usr/bin/python
"""Ansible module: back up a Kubernetes head into one archive, which is kept if a test restore succeeds."""

from __future__ import annotations

import json
import tarfile
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.cluster_backup import (
    DIRECTORY,
    MONITORING,
    PROMETHEUS,
    VERSION,
    copy_directory,
    copy_monitoring,
    label,
    room,
    seal,
    size_of,
    try_directory,
    try_monitoring,
    unseal,
)
from ansible.module_utils.etcd_backup import KUBERNETES_ETCD, SNAPSHOT, clear, objects, pack, prove, unpack
from ansible.module_utils.kubectl import kubectl
from ansible.module_utils.node_state.tools import NodeError, change, run, sync

DOCUMENTATION = r"""
module: kubernetes_backup
author: the clusterctl authors
short_description: Back up a Kubernetes head, and check the backup with a test restore
description:
  - Saves a snapshot of etcd. The archive also has the head's copy of the cluster's directory, and Prometheus's
    configuration. The encrypted secrets in that directory include the source of the cluster's certificates, and the key
    of Secrets in etcd. The vault password is not in the archive. Runs on one head, as root.
  - Restores the snapshot for a test. A separate etcd and API server start on it, in a separate network, and must have
    all objects that the cluster had before and after the snapshot. They read the Secrets, so the key is tested, too.
  - If anything is missing, the module fails and keeps all earlier archives.
options:
  directory:
    description: Directory of the archives.
    type: path
    required: true
  keep:
    description: Number of this cluster's archives to keep.
    type: int
    required: true
  prometheus:
    description: Whether this host is the cluster's monitoring.
    type: bool
    required: true
  key:
    description: The cluster's secret that seals the archive; only its heads and its controllers have it.
    type: str
    required: true
attributes:
  check_mode:
    support: none
"""

EXAMPLES = r"""
- name: Back up
  kubernetes_backup:
    directory: /var/lib/clusterctl/backups
    keep: 7
    prometheus: true
    key: "{{ lookup('cluster_secret', 'backup_key') }}"
"""

RETURN = r"""
changes:
  description: The new archive and the deleted old ones; mappings with kind, name and what.
  type: list
  returned: always
notes:
  description: What the archive does not include, and problems of the included configuration.
  type: list
  elements: str
  returned: always
"""

ETCD = Path("/var/lib/etcd")
ATTEMPTS = 3
MOST = 10  # missing objects that an error lists


def release():
    """Return the version of the API server."""
    return json.loads(kubectl("version", "--output=json")[1])["serverVersion"]["gitVersion"].lstrip("v")


def missing(before, after, found):
    """Return the objects that the cluster had before and after the snapshot, and that the copy lacks."""
    return sorted((before & after) - found)


def save(workplace):
    """Save a snapshot, and test it; return the objects in it."""
    lacking = []
    for _ in range(ATTEMPTS):
        plain, packed = workplace / "etcd.db", workplace / SNAPSHOT
        for path in (plain, packed, workplace / "unpacked.db"):
            path.unlink(missing_ok=True)
        before = objects()
        run(KUBERNETES_ETCD, f"--snapshot={plain}")
        after = objects()
        pack(plain, packed)
        plain.unlink()
        unpack(packed, workplace / "unpacked.db")
        found = prove(workplace / "unpacked.db", workplace)
        (workplace / "unpacked.db").unlink()
        lacking = missing(before, after, found)
        if not lacking:
            return found
    listed = ", ".join(lacking[:MOST]) + ", ..." * (len(lacking) > MOST)
    raise NodeError(f"in the test restore, {len(lacking)} objects of the cluster are missing: {listed}")


def make(given):
    """Make and test an archive; return its path, its manifest and notes."""
    directory = Path(given["directory"])
    if not label():
        raise NodeError("this host is not a cluster's head: bootstrap's copy of the cluster's directory is missing")
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.chmod(0o700)
    workplace = directory / ".new"
    clear(workplace)  # from a killed run
    # The snapshot, plain and packed, the archive, and the restored data; then 64 MB for the rest.
    room((str(directory), 4 * size_of(ETCD) + (64 << 20)))
    workplace.mkdir(mode=0o700)
    try:
        made = datetime.now(timezone.utc)  # noqa: UP017 - the node's Python may be older
        found = save(workplace)
        copy_directory(workplace / DIRECTORY)
        try_directory(workplace / DIRECTORY)
        parts, notes = [workplace / SNAPSHOT, workplace / DIRECTORY], []
        if given["prometheus"] and (PROMETHEUS / "prometheus.yml").exists():
            copy_monitoring(workplace / MONITORING)
            wrong = try_monitoring(workplace / MONITORING, workplace)
            parts.append(workplace / MONITORING)
            notes += [f"Prometheus's configuration in the backup has errors, promtool: {wrong}"] * bool(wrong)
        else:
            notes.append("Prometheus is not set up on this host, and its configuration is not in the backup")
        manifest = {
            "version": VERSION,
            "cluster": label(),
            "made": made.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "kubernetes": release(),
            "objects": dict(sorted(Counter(one.partition("/")[0] for one in found).items())),
        }
        seal(workplace / "archive", manifest, parts, given["key"])
        unseal(workplace / "archive", given["key"])  # read back from the disk
        path = directory / f"{manifest['cluster']}-kubernetes-{made:%Y%m%dT%H%M%SZ}.tar"
        (workplace / "archive").rename(path)
        sync(directory)
        return path, manifest, notes
    finally:
        clear(workplace)


def prune(path, keep):
    """Remove this cluster's oldest archives beyond `keep`; names sort by time."""
    stem = path.name[: -len("20261121T190000Z.tar")]
    mine = sorted(
        other
        for other in path.parent.glob("*.tar")
        if other.name.startswith(stem) and len(other.name) == len(path.name)
    )
    for old in mine[:-keep]:
        old.unlink()
    return mine[:-keep]


def main():
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "directory": {"type": "path", "required": True},
            "keep": {"type": "int", "required": True},
            "prometheus": {"type": "bool", "required": True},
            "key": {"type": "str", "required": True, "no_log": True},
        },
    )
    try:
        path, manifest, notes = make(module.params)
        gone = prune(path, max(1, module.params["keep"]))
    except (NodeError, OSError, tarfile.TarError, ValueError, KeyError) as error:
        module.fail_json(msg=f"No backup was made; earlier backups are unchanged. {error}")
    changes = [change("backup", str(path), "created", json.dumps(manifest["objects"]))]
    changes += [change("old backup", str(old), "removed", "removed") for old in gone]
    module.exit_json(changed=True, changes=changes, notes=notes)


if __name__ == "__main__":
    main()
