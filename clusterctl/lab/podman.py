"""Run podman: argv lists, parsed JSON, errors with podman's last lines."""

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clusterctl.util.errors import ClusterctlError

# Programs that the lab runs on its host, and their Debian packages.
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
    """The lab cannot do what was requested: a program is missing, or podman failed."""

    exit_code = 2


def require_programs() -> None:
    """Raise LabError with the command that installs all missing programs."""
    missing = {package for name, package in PREREQUISITES.items() if shutil.which(name, path=search_path()) is None}
    missing |= {package for path, package in NETWORK_PROGRAMS.items() if not Path(path).exists()}
    if missing:
        command = " ".join(as_root(["apt-get", "install", "--no-install-recommends", *sorted(missing)]))
        raise LabError(f"the lab needs programs that are not installed; on Debian or Ubuntu:\n  {command}")


def search_path() -> str:
    """Return PATH with the system directories that an ordinary user's PATH lacks."""
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"])


def as_root(argv: Sequence[str]) -> list[str]:
    """Return the command, with sudo unless the user is root."""
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
    """Run a podman list command and return its parsed output; empty if podman prints nothing."""
    text = podman(*argv, "--format", "json").strip()
    return list(json.loads(text) or []) if text else []


def container_state(name: str) -> str:
    """Return podman's state of a container (running, exited, created, stopping …), empty if there is no container.

    Podman may report a dead container as running, after its processes were killed or the host restarted. Return
    `dead` for it.
    """
    done = run_as_root(["podman", "container", "inspect", "--format", "{{.State.Status}}", name], check=False)
    state = done.stdout.strip() if done.returncode == 0 else ""
    if state == "running" and run_as_root(["podman", "exec", name, "true"], check=False).returncode != 0:
        return "dead"
    return state


def remove_containers(*names: str) -> None:
    """Remove those containers that exist, in any state, and their volumes."""
    argv = ["rm", "--force", "--ignore", "--volumes", "--time", "0", *names]
    # If a container's processes were killed, the first attempt fails and updates podman's state.
    if run_as_root(["podman", *argv], check=False).returncode != 0:
        podman(*argv)


def remove_cgroups(*containers: str) -> None:
    """Remove the cgroups of removed nodes in the unified hierarchy of a host with version 1 (node/init)."""
    script = 'mount -t cgroup2 cgroup2 /mnt; for name; do find "/mnt/$name" -depth -type d -exec rmdir {} +; done'
    run_as_root(["unshare", "--mount", "sh", "-c", script, "sh", *containers], check=False)


def host_has_v1() -> bool:
    """Return whether this machine has version 1 of cgroups, alone or beside version 2."""
    return not Path("/sys/fs/cgroup/cgroup.controllers").exists()


def runtime_options() -> list[str]:
    """Return podman's option for the OCI runtime: runc on a host with cgroups version 1, which crun refuses."""
    return ["--runtime", "runc"] if host_has_v1() else []


# A host without CAP_SYS_RESOURCE refuses podman's default limits, which are larger.
LIMITS = ("--ulimit", "nofile=10000:10000", "--ulimit", "nproc=10000:10000")
