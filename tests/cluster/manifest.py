"""Print, as JSON, what a node consists of: an independent witness of what a run changed. Runs on the node as root."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import subprocess

TREES = ["/etc", "/usr/local", "/opt", "/root", "/home", "/var/lib/clusterctl", "/var/spool/cron", "/usr/sbin"]
# These change by themselves on an untouched Debian node; NAME- is what the tools of shadow keep of the last version.
# The checks of the GPUs' health remember how far they have read the log.
VOLATILE = {"/etc/ld.so.cache", "/etc/mtab", "/etc/passwd-", "/etc/group-", "/etc/shadow-", "/etc/gshadow-"}
VOLATILE |= {"/var/lib/clusterctl/gpu-health.json"}
# Podman's helper for DHCP ends by itself once nobody has asked it for some minutes; its socket starts it.
LEAVING = {"netavark-dhcp-proxy.service"}


def lines(*argv: str) -> list[str]:
    return subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()


def describe(path: str) -> list[object]:
    status = os.lstat(path)
    kind = stat.S_IFMT(status.st_mode)
    what = ""
    if kind == stat.S_IFREG:
        with open(path, "rb") as file:
            what = hashlib.sha256(file.read()).hexdigest()
    elif kind == stat.S_IFLNK:
        what = os.readlink(path)
    return [oct(status.st_mode), status.st_uid, status.st_gid, what]


def files() -> dict[str, object]:
    found: dict[str, object] = {}
    for tree in TREES:
        for folder, folders, names in os.walk(tree):
            for name in folders + names:
                path = os.path.join(folder, name)
                if path not in VOLATILE and "/.ansible" not in path:
                    found[path] = describe(path)
    return found


def daemons() -> dict[str, object]:
    """PID and start time of the main process of every service that is enabled and stays."""
    found: dict[str, object] = {}
    for row in lines("systemctl", "list-unit-files", "--type=service", "--state=enabled", "--plain", "--no-legend"):
        unit = row.split()[0]
        wanted = "MainPID,ExecMainStartTimestampMonotonic,Type,ActiveState"
        if "@" not in unit and unit not in LEAVING:
            values = dict(line.split("=", 1) for line in lines("systemctl", "show", "-p", wanted, unit))
            if values.pop("Type", "oneshot") != "oneshot":
                found[unit] = values
    return found


print(
    json.dumps(
        {
            "files": files(),
            "packages": lines("dpkg-query", "--show", "--showformat", "${Package} ${Version} ${db:Status-Abbrev}\n"),
            "holds": lines("apt-mark", "showhold"),
            "units": lines("systemctl", "list-unit-files", "--plain", "--no-legend"),
            "daemons": daemons(),
            "users": lines("getent", "passwd") + lines("getent", "group"),
        }
    )
)
