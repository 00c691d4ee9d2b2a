"""A digest of what a run can change on a node, besides what its records list, and of what its roles read there."""

import glob
import hashlib
import json
import os
import re
import subprocess
from typing import List, Optional

from clusterctl.nodes.probe.common import Facts, read

# Their content is part of the digest, as is that of the roles' records.
_CONTENTS = (
    "/etc/dnf/dnf.conf",
    "/etc/group",
    "/etc/os-release",
    "/etc/passwd",
    "/etc/yum.repos.d/redhat.repo",
    "/proc/driver/nvidia/version",
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
    "/proc/sys/kernel/random/boot_id",
    "/proc/sys/kernel/unprivileged_userns_clone",
    "/proc/sys/user/max_user_namespaces",
    "/sys/fs/selinux/booleans/container_use_devices",
)
_RECORDS = "/var/lib/clusterctl/state/*.json"
# Of these, size and time of change are: passwords, databases of packages, modules that were built for the kernel, what
# NVIDIA's own installer leaves, programs that are no packages, and plugins that were built for Slurm.
_STATUS = (
    "/etc/shadow",
    "/lib/modules/*/updates/**/*.ko*",
    "/usr/bin/nvidia-uninstall",
    "/usr/local/lib/alertmanager/*/bin/*",
    "/usr/local/lib/prometheus/*/bin/*",
    "/usr/local/lib/slurm/*",
    "/usr/lib/sysimage/rpm/rpmdb.sqlite*",
    "/var/lib/dpkg/status",
    "/var/lib/rpm/rpmdb.sqlite*",
)
_MODULES = r"(?m)^(nvidia\w*|nouveau|gdrdrv|ib_umad) "
# The output of these is part of the digest, where the file exists: what roles keep in the databases of a head.
_OUTPUTS = (
    (
        "/etc/slurm/slurmdbd.conf",
        "sacctmgr='sacctmgr --immediate --noheader --parsable2 show'; $sacctmgr cluster format=cluster"
        " && $sacctmgr account format=account,description && $sacctmgr user format=user,defaultaccount,adminlevel"
        " && $sacctmgr qos format=name,flags && $sacctmgr assoc format=cluster,account,user,parentname",
    ),
    (
        "/var/lib/clusterctl/state/slurm_head_database.json",
        # A run sets the password again, even if it is the same.
        "mariadb --batch --skip-column-names --execute"
        " \"SELECT user, host, JSON_REMOVE(priv, '$.password_last_changed') FROM mysql.global_priv ORDER BY 1, 2;"
        " SELECT * FROM mysql.db ORDER BY user, host, db;"
        ' SELECT schema_name FROM information_schema.schemata ORDER BY 1"',
    ),
)
# What role verify tests on a node. The last one exists only where a job or a pod can have GPUs.
_TESTS = (
    ("/usr/bin/munge", "munge --no-input | unmunge"),
    ("/usr/local/sbin/clusterctl-firewall", "/usr/local/sbin/clusterctl-firewall status"),
    ("/usr/local/sbin/gpu-health", "/usr/local/sbin/gpu-health"),
)


def state(found: List[Facts], driver: Optional[str]) -> Optional[str]:
    """Return the digest, in hexadecimal digits, of a node with these GPUs and this driver; None if it does not work."""
    if not all(_output(command) is not None for path, command in _TESTS if os.path.exists(path)):
        return None
    outputs = [_output(command) for path, command in _OUTPUTS if os.path.exists(path)]
    if None in outputs:
        return None
    parts = [outputs]  # type: List[object]
    for path in (*_CONTENTS, *sorted(glob.glob(_RECORDS))):
        try:
            with open(path, "rb") as file:
                parts.append((path, hashlib.sha256(file.read()).hexdigest()))
        except OSError:
            parts.append((path, None))
    for pattern in _STATUS:
        for path in sorted(glob.glob(pattern, recursive=True)):
            known = os.stat(path)
            parts.append((path, known.st_size, known.st_mtime_ns))
    parts.append([os.uname().release, os.uname().nodename])
    parts.append(sorted(re.findall(_MODULES, read("/proc/modules"))))
    # All devices with their drivers: a GPU that was added, removed or given to a virtual machine.
    parts.append([(one, os.path.realpath(one + "/driver")) for one in sorted(glob.glob("/sys/bus/pci/devices/*"))])
    parts.append([driver, [{key: gpu.get(key) for key in ("uuid", "device", "mig")} for gpu in found]])
    # Roles keep the access of the user who logs in.
    parts.append(os.environ.get("SUDO_USER"))
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _output(command: str) -> Optional[str]:
    """Return what a command printed, None if it failed."""
    try:
        done = subprocess.run(
            ["sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=30,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return None if done.returncode else done.stdout.decode("utf-8", "replace")
