"""Collect what a vendor asks for about a broken server. Runs on the node as `python3 -`, and prints JSON.

It uses only the standard library, and runs on Python 3.8 and newer.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

LARGEST = 32 << 20  # bytes of one file; later ones are cut
_KERNEL = "NVRM|nvidia|NVSwitch|SXid|Xid|mlx5|EDAC|mce:|MCE|Hardware Error|AER|pcieport|Machine check"
# File in the bundle: its command, and the seconds that it may take.
COMMANDS = {
    "nvidia-smi.txt": (["nvidia-smi", "-q"], 120),
    "nvidia-smi-topology.txt": (["nvidia-smi", "topo", "-m"], 60),
    "nvidia-smi-nvlink-errors.txt": (["nvidia-smi", "nvlink", "-e"], 60),
    "gpu-health.json": (["/usr/local/sbin/gpu-health", "--json"], 120),
    "dcgm-discovery.txt": (["dcgmi", "discovery", "-l"], 60),
    "kernel-errors.txt": (
        ["journalctl", "--quiet", "--no-pager", "--dmesg", "--boot=all", "-o", "short-iso", "-g", _KERNEL],
        120,
    ),
    "dmesg.txt": (["dmesg", "--time-format=iso"], 60),
    "serial-numbers.txt": (["dmidecode"], 60),
    "pci.txt": (["lspci", "-nnvvv"], 120),
    "modules.txt": (["lsmod"], 30),
    "driver-module.txt": (["modinfo", "nvidia"], 30),
    "packages-deb.txt": (["dpkg-query", "--list", "*nvidia*", "*dcgm*", "*cuda*", "linux-image*"], 60),
    "packages-rpm.txt": (["rpm", "-qa", "--last"], 120),
    "system.txt": (["uname", "-a"], 30),
    "os-release.txt": (["cat", "/etc/os-release"], 30),
    "fabric-manager.txt": (["journalctl", "--quiet", "--no-pager", "-n", "5000", "-u", "nvidia-fabricmanager"], 60),
    "bmc-events.txt": (["ipmitool", "sel", "elist"], 120),
    "bmc-sensors.txt": (["ipmitool", "sensor"], 120),
    "failed-units.txt": (["systemctl", "--no-pager", "--failed"], 30),
}
BUG_REPORT = "nvidia-bug-report.sh"
BUG_REPORT_SECONDS = 600


def run(argv: Sequence[str], seconds: float, folder: str = "/") -> tuple[str, bytes]:
    """Run a command in a folder; return how it ended, in words, and its output."""
    if not shutil.which(argv[0]):
        return "not installed", b""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=seconds,
            env=dict(os.environ, LC_ALL="C"),
            cwd=folder,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return f"no end within {seconds} s", error.output or b""
    except OSError as error:
        return str(error), b""
    return f"exit code {done.returncode}", done.stdout


def bug_report() -> tuple[str, bytes]:
    """Return how NVIDIA's own report ended, and the report, compressed with gzip."""
    with tempfile.TemporaryDirectory() as folder:
        how, _ = run([BUG_REPORT, "--output-file", f"{folder}/report"], BUG_REPORT_SECONDS, folder)
        report = next(Path(folder).glob("report*"), None)
        return how, report.read_bytes()[:LARGEST] if report else b""


def main() -> None:
    """Print {"files": {name: content in base64}, "commands": [[name, command, how it ended]]}."""
    files, commands = {}, []
    for name, (argv, seconds) in COMMANDS.items():
        how, output = run(argv, seconds)
        commands.append([name, " ".join(argv), how])
        if output:
            files[name] = output[:LARGEST]
    how, report = bug_report()
    commands.append(["nvidia-bug-report.log.gz", BUG_REPORT, how])
    if report:
        files["nvidia-bug-report.log.gz"] = report
    coded = {name: base64.b64encode(content).decode() for name, content in files.items()}
    json.dump({"files": coded, "commands": commands}, sys.stdout)


if __name__ == "__main__":
    main()
