"""Units, the schedulers' daemons, Slurm's jobs, and homes."""

import glob
import os
import re
from typing import Dict, List, Optional

from clusterctl.nodes.probe.common import MAX_JOBS, assignments, output, read


def services(names: List[str]) -> Dict[str, str]:
    """Return systemd's state of each known unit."""
    shown = output("systemctl", "show", "--property=Id,LoadState,ActiveState", *names) if names else ""
    units = [assignments(block) for block in shown.split("\n\n")]
    known = [unit for unit in units if unit.get("LoadState") not in (None, "not-found")]
    return {unit["Id"].replace(".service", ""): unit.get("ActiveState", "unknown") for unit in known}


def head_of() -> Optional[str]:
    """Return the label of the cluster whose head this is: the first name in its copy of the cluster's directory."""
    try:
        with open("/var/lib/clusterctl/recovery.tar", "rb") as file:
            return file.read(100).rstrip(b"\0").decode("ascii", "replace").replace("vault/", "")
    except OSError:
        return None


def slurm(root: str = "") -> List[str]:
    """Return Slurm's past roles of this node: "controller" if it has state, "worker" if it has a cached config."""
    configuration = read(root + "/etc/slurm/slurm.conf")
    found = []
    for what, option, default, sign in (
        ("controller", "StateSaveLocation", "/var/lib/slurm/slurmctld", "clustername"),
        ("worker", "SlurmdSpoolDir", "/var/lib/slurm/slurmd", "conf-cache/slurm.conf"),
    ):
        named = re.search(r"^%s\s*=\s*(/\S+)" % option, configuration, re.M | re.I)
        if os.path.exists(root + (named.group(1) if named else default) + "/" + sign):
            found.append(what)
    return found


def kubernetes(root: str = "") -> List[str]:
    """Return Kubernetes' parts of this node: "controller" if it is a complete head, "worker" if its kubelet has joined.

    Role kubernetes_head writes the mark when kubeadm has ended, kubeadm the kubelet's credentials when it has joined.
    """
    marks = (("controller", "/etc/kubernetes/clusterctl/complete"), ("worker", "/etc/kubernetes/kubelet.conf"))
    return [part for part, path in marks if os.path.exists(root + path)]


def jobs(proc: str = "/proc") -> List[str]:
    """Return the jobs that run here: those with a slurmstepd, independent of the controller."""
    processes = filter(is_slurmstepd, glob.glob(proc + "/[0-9]*"))
    titles = (re.match(r"slurmstepd: \[(\d+)", read(path + "/cmdline")) for path in processes)
    return sorted({title.group(1) for title in titles if title}, key=int)[:MAX_JOBS]


def is_slurmstepd(process: str) -> bool:
    """Return whether root runs slurmstepd in a process. Its title and the owner of its files can be forged."""
    try:
        program = os.readlink(process + "/exe")
    except OSError:  # it has ended, or is a kernel thread
        return False
    # Debian's name is slurmstepd-wlm; a replaced program ends with "(deleted)".
    matches = re.search(r"/slurmstepd[^/]*$", program)
    return bool(matches and re.search(r"^Uid:\s+0\s", read(process + "/status"), re.M))


def before() -> List[str]:
    """Return what a run would replace or conflict with: Slurm, Kubernetes, containers, NVIDIA's installer."""
    running = [
        name for name, state in services(["slurmctld", "slurmd", "slurmdbd", "kubelet"]).items() if state == "active"
    ]
    containers = output("docker", "ps", "--quiet").split() if os.path.exists("/run/docker.sock") else []
    return (
        ["slurm.conf"] * os.path.exists("/etc/slurm/slurm.conf")
        + sorted(running)
        + ["containers"] * bool(containers)
        + ["nvidia-uninstall"] * os.path.exists("/usr/bin/nvidia-uninstall")
    )


def firewall(root: str = "") -> Optional[str]:
    """Return a firewall that blocks what clusterctl's accepts; clusterctl-firewall configures firewalld itself."""
    enabled = re.search("^ENABLED=yes", read(root + "/etc/ufw/ufw.conf"), re.M)
    return "ufw" if os.path.exists(root + "/usr/sbin/ufw") and enabled else None


def homes(paths: List[str]) -> Dict[str, int]:
    """Return the last change of each directory in ns since 1970; none of them if a dead file server blocks stat."""
    # `true`: stat fails for a missing directory.
    found = output("sh", "-c", 'stat --printf="%.9Y %n\\n" -- "$@"; true', "sh", *paths) if paths else ""
    lines = (line.split(" ", 1) for line in found.splitlines())
    return {path: int(re.sub(r"\D", "", changed)) for changed, path in lines if path in paths}
