"""Comparison of the manifests that tests/cluster/manifest.py makes of nodes."""

import re
from typing import Any

# What differs between two installations of the same packages on new nodes.
BY_CHANCE = frozenset(
    {
        "/etc/machine-id",
        "/etc/shadow",  # has the day on which each account was made
        # The package munge makes a random key before ours takes its place; it is kept, to be put back.
        "/var/lib/clusterctl/state/munge.json",
        "/var/lib/clusterctl/original/%2Fetc%2Fmunge%2Fmunge.key",
    }
)
# What kubeadm and a kubelet issue: keys, certificates, and kubeconfigs with them. Those of the authorities are ours.
ISSUED = re.compile(
    r"/etc/kubernetes/(pki/(etcd/)?(apiserver|front-proxy-client|healthcheck-client|peer|server)[a-z-]*\.(crt|key)"
    r"|(admin|super-admin|kubelet|controller-manager|scheduler)\.conf|clusterctl/joined\.crt)"
)


def differences(before: Any, after: Any, path: str = "") -> list[str]:
    """Name every leaf in which two manifests differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        keys = sorted(before.keys() | after.keys())
        return [line for key in keys for line in differences(before.get(key), after.get(key), f"{path}/{key}")]
    return [] if before == after else [f"{path}: {before} -> {after}"]


def comparable(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest with names for the numbers that the order of packages gives out, and without processes."""
    entries = [line.split(":") for line in manifest["users"]]
    users = {int(entry[2]): entry[0] for entry in entries if len(entry) == 7}
    groups = {int(entry[2]): entry[0] for entry in entries if len(entry) == 4}
    files = {
        path: [mode, users.get(uid, uid), groups.get(gid, gid), "" if ISSUED.fullmatch(path) else what]
        for path, (mode, uid, gid, what) in manifest["files"].items()
        if path not in BY_CHANCE and path not in ("/etc/passwd", "/etc/group", "/etc/gshadow")
    }
    # In place of the files: each account without its number. Sub-ids follow the order, too.
    accounts = sorted(":".join(field for place, field in enumerate(entry) if place not in (2, 3)) for entry in entries)
    active = {unit: values["ActiveState"] for unit, values in manifest["daemons"].items()}
    return {**manifest, "files": files, "users": accounts, "daemons": active}


def without(manifests: dict[str, Any], *paths: str) -> dict[str, Any]:
    """Return the manifests of nodes without these files."""
    return {
        node: {**manifest, "files": {path: what for path, what in manifest["files"].items() if path not in paths}}
        for node, manifest in manifests.items()
    }


def lasting(manifests: dict[str, Any]) -> dict[str, Any]:
    """The manifests of nodes that were rebooted or repaired: of daemons only whether they run."""
    return {
        node: {**manifest, "daemons": {unit: values["ActiveState"] for unit, values in manifest["daemons"].items()}}
        for node, manifest in manifests.items()
    }
