"""podman as a person would call it: argv lists, JSON answers, errors with podman's own last line."""

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clusterctl.util.errors import ClusterctlError

# What the lab runs on its host, and the Debian package that brings it.
PREREQUISITES = {
    "podman": "podman",
    "runc": "runc",
    "mmdebstrap": "mmdebstrap",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "iptables": "iptables",
}
NETWORK_PROGRAMS = {
    "/usr/lib/podman/netavark": "netavark",
    "/usr/lib/podman/aardvark-dns": "aardvark-dns",
    "/usr/share/keyrings/debian-archive-keyring.gpg": "debian-archive-keyring",
}


class LabError(ClusterctlError):
    """The lab cannot do what was asked: a program is missing, or podman refused."""

    exit_code = 2


def require_programs() -> None:
    """Raise LabError naming every missing program at once, with the command that installs them."""
    missing = {package for name, package in PREREQUISITES.items() if shutil.which(name, path=search_path()) is None}
    missing |= {package for path, package in NETWORK_PROGRAMS.items() if not Path(path).exists()}
    if missing:
        command = " ".join(as_root(["apt-get", "install", "--no-install-recommends", *sorted(missing)]))
        raise LabError(f"the lab needs programs that are not installed; on Debian or Ubuntu:\n  {command}")


def search_path() -> str:
    """PATH with the system directories that an ordinary user's PATH leaves out."""
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"])


def as_root(argv: Sequence[str]) -> list[str]:
    """Return the command as root runs it, or as sudo does for anybody else."""
    return list(argv) if os.geteuid() == 0 else ["sudo", *argv]


def run_as_root(
    argv: Sequence[str], *, stdin: str | None = None, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run a program as root (with sudo where needed); raise LabError with its last lines when it fails."""
    done = subprocess.run(
        as_root(argv), input=stdin, capture_output=True, text=True, check=False, errors="replace",
        env={**os.environ, "PATH": search_path()},
    )  # fmt: skip
    if check and done.returncode != 0:
        tail = "\n  ".join((done.stderr or done.stdout).strip().splitlines()[-8:])
        raise LabError(f"{' '.join(argv[:3])} … failed with exit code {done.returncode}:\n  {tail}")
    return done


def podman(*argv: str, stdin: str | None = None, check: bool = True) -> str:
    """Run podman and return its standard output."""
    return run_as_root(["podman", *argv], stdin=stdin, check=check).stdout


def podman_json(*argv: str) -> list[dict[str, Any]]:
    """Run a podman listing and return it parsed; an empty list where podman prints nothing."""
    text = podman(*argv, "--format", "json").strip()
    return list(json.loads(text) or []) if text else []


def container_state(name: str) -> str:
    """Return podman's word for a container's state (running, exited, created, stopping …), empty where there is none.

    A container that podman calls running may be dead: after its processes were killed, or the host was restarted.
    `dead` is returned for it.
    """
    done = run_as_root(["podman", "container", "inspect", "--format", "{{.State.Status}}", name], check=False)
    state = done.stdout.strip() if done.returncode == 0 else ""
    if state == "running" and run_as_root(["podman", "exec", name, "true"], check=False).returncode != 0:
        return "dead"
    return state


def remove_containers(*names: str) -> None:
    """Remove containers and their volumes, in whatever state they are, those that exist."""
    argv = ["rm", "--force", "--ignore", "--volumes", "--time", "0", *names]
    # Of one whose processes were killed podman learns in the first attempt, which fails.
    if run_as_root(["podman", *argv], check=False).returncode != 0:
        podman(*argv)


def remove_cgroups(*containers: str) -> None:
    """Remove what nodes that are no more leave of the unified hierarchy of a host with version 1 (node/init)."""
    script = 'mount -t cgroup2 cgroup2 /mnt; for name; do find "/mnt/$name" -depth -type d -exec rmdir {} +; done'
    run_as_root(["unshare", "--mount", "sh", "-c", script, "sh", *containers], check=False)


def host_has_v1() -> bool:
    """Return whether this machine has version 1 of cgroups, be it beside version 2."""
    return not Path("/sys/fs/cgroup/cgroup.controllers").exists()


def runtime_options() -> list[str]:
    """The OCI runtime to name: runc where the host's cgroups are not the unified hierarchy, which crun refuses."""
    return ["--runtime", "runc"] if host_has_v1() else []


# A host without CAP_SYS_RESOURCE refuses podman's own, larger limits.
LIMITS = ("--ulimit", "nofile=10000:10000", "--ulimit", "nproc=10000:10000")
