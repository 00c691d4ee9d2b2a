"""What gpu-health and gpu-config share: commands, processes, services and state files of the node.

Both roles install this module and nvidia_smi.py in /usr/local/lib/clusterctl, so keep old callers working.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
GPU_CONFIG = Path("/usr/local/sbin/gpu-config")
# The settings that gpu-config applies at every boot.
GPU_SETTINGS = Path("/etc/clusterctl/gpu-config.json")
# The clocks that gpu-config has locked. The driver does not report them and forgets them when it is reloaded.
CLOCK_LOCKS = Path("/run/clusterctl/gpu-config.json")
# These services keep GPUs open without computing. They are stopped for a reset, and for changes of ECC and MIG. kubelet
# is first: it would start the device plugin again. One that clusterctl has not configured is left alone.
KUBELET = "kubelet.service"
IS_KUBERNETES = Path("/etc/kubernetes/kubelet.conf.d/60-clusterctl.conf").exists()  # role kubernetes_node
DCGM = "nvidia-dcgm.service"
PERSISTENCED = "nvidia-persistenced.service"
GPU_SERVICES = (*[KUBELET] * IS_KUBERNETES, "nvidia-dcgm-exporter.service", DCGM, PERSISTENCED)
# NVIDIA's device plugin for Kubernetes, the program of a container.
DEVICE_PLUGIN = "nvidia-device-plugin"
PLUGIN_SECONDS = 10


class NodeError(Exception):
    """Something on the node is not as required; the text is for the operator."""


class CommandError(NodeError):
    """A command failed, is missing or timed out.

    `brief` has the program and the first line of its output; `pid` is that of a process that may still run.
    """

    def __init__(self, argv: tuple[str, ...], lines: list[str], pid: int = 0) -> None:
        super().__init__(f"{' '.join(argv)}: {'; '.join(lines)[:300]}")
        self.brief, self.pid = f"{argv[0]}: {lines[0]}", pid


def run(*argv: str, seconds: float = 60, accept_failure: bool = False) -> str:
    """Run a command and return its standard output. Raises CommandError.

    A process that cannot be killed is left behind: it may hang in the kernel. `accept_failure`: return the output, if
    there is any, whatever the exit status.
    """
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT, text=True,
            errors="replace",
        )  # fmt: skip
    except OSError as error:
        raise CommandError(argv, [error.strerror]) from None
    try:
        stdout, stderr = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        raise CommandError(argv, [f"no response within {seconds:g} s"], process.pid) from None
    if process.returncode and not (accept_failure and stdout.strip()):
        lines = [line.strip() for line in f"{stderr}\n{stdout}".splitlines()]
        lines = [line for line in lines if line and not line.startswith("<")]  # an XML document that breaks off
        raise CommandError(argv, lines or [f"exit status {process.returncode}"])
    return stdout


class Deadline:
    """The time at which the program has to end."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds

    def within(self, seconds: float) -> float:
        """Return these seconds, or fewer if less time is left. Raises NodeError if no time is left."""
        left = self._until - time.monotonic()
        if left <= 0:
            raise NodeError("no time is left")
        return min(seconds, left)

    def run(self, *argv: str, seconds: float = 30.0) -> str:
        """Return a command's output. Raises NodeError if it fails, or does not end in this time."""
        return run(*argv, seconds=self.within(seconds))


def systemd_property(unit: str, name: str) -> str:
    """Return a property of a unit, empty where systemd does not run."""
    try:
        return run("systemctl", "show", f"--property={name}", "--value", unit).strip()
    except CommandError:
        return ""


def root_processes(proc: Path = Path("/proc")) -> Iterator[tuple[Path, list[str]]]:
    """Yield the /proc directory and the arguments of each process whose real user is root.

    The owner of the files does not identify the user: it can be root for a user's process (prctl(2), PR_SET_DUMPABLE).
    """
    for path in proc.glob("[0-9]*"):
        try:
            argv = (path / "cmdline").read_text(errors="replace").split("\0")
            if argv[0] and re.search(r"^Uid:\s+0\s", (path / "status").read_text(errors="replace"), re.MULTILINE):
                yield path, argv
        except OSError:  # the process has ended
            continue


def end_device_plugin(proc: Path = Path("/proc")) -> None:
    """End Kubernetes' device plugin while kubelet is stopped. Raises CommandError.

    It keeps the GPUs open. A GPU that it found unhealthy stays so until its next start (ListAndWatch in
    internal/plugin/server.go of NVIDIA/k8s-device-plugin v0.19.3). kubelet starts it again.
    """
    deadline = time.monotonic() + PLUGIN_SECONDS
    while found := [path for path, argv in root_processes(proc) if Path(argv[0]).name == DEVICE_PLUGIN]:
        if time.monotonic() > deadline:
            raise CommandError((DEVICE_PLUGIN,), [f"process {found[0].name} does not end"])
        for path in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(path.name), signal.SIGTERM)
        time.sleep(0.2)


def read_text(path: Path) -> str:
    """Return the text of a small file without surrounding space, empty where it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def read_json(path: Path, default: object) -> object:
    """Return the content of a JSON file, the default where it cannot be read."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return default


def write_json(path: Path, data: object) -> None:
    """Replace a JSON file that only root may read; create its directory."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace_file(path, json.dumps(data), 0o600)


def replace_file(path: Path, text: str, mode: int) -> None:
    """Replace a file atomically; a link at the temporary name is not followed."""
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode), "w") as file:
        os.fchmod(file.fileno(), mode)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
