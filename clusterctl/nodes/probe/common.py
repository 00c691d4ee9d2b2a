"""What all parts of the probe use: limits, and ways to read files and programs."""

import os
import re
import subprocess
from typing import Any, Callable, Dict, List, Optional, Tuple

# The answer is the line with this prefix: a login shell may print other lines.
MARK = "clusterctl-probe:"
NETWORK_SECONDS = 5
MAX_JOBS = 1024  # of a node; shown, not counted
MAX_SOURCES = 16
MAX_OFFERED = 16
# Limits of differences and alerts: a node that was restored from another image differs in everything.
MAX_DRIFT = 500
MAX_ALERTS = 200
MAX_SERIES = 1 << 13  # nodes, or namespaces
MAX_TARGETS = 1 << 13
MAX_GPUS = 1024
MAX_RECORDS = 256
MAX_MOUNTS = 64
# States of a directory.
HUNG, NOT_MOUNTED = "does not respond", "not mounted"
# With names of files after HIDES, and what is mounted after the others.
HIDES, OTHER, FORMER = "not mounted, files: ", "other file system: ", "until the next reboot: "
MAX_PEOPLE = 1 << 14
MAX_DIRECTORY = MAX_PEOPLE << 9  # bytes of slurm-directory's record
# For an answer about people, and how many more each further second is enough for: a directory is asked for one by one.
PEOPLE_SECONDS, PEOPLE_OF_A_SECOND = 15, 50
# Packages, besides Slurm's, whose versions preflight checks for known vulnerabilities (advisories.py).
WATCHED = ("munge", "nvidia-container-toolkit", "nvidia-container-toolkit-base")
Facts = Dict[str, Any]
Questions = List[Tuple[str, str, Callable[[str], Facts]]]
"""What the state of a node is read from: a text for the case that the command fails, the command, and a function that
makes parts of the state from its output. The function raises UnhealthyError or ValueError."""


class UnhealthyError(Exception):
    """The state of a node has no digests, because something on it does not work; the text says what."""


def read(path: str, default: str = "", size: int = 1 << 20) -> str:
    """Return the stripped text of a file of at most `size` characters, `default` if it cannot be read."""
    try:
        with open(path, errors="replace") as file:
            return file.read(size).strip()
    except OSError:
        return default


def number(path: str) -> Optional[int]:
    """Return the whole number in a file, None if it has none."""
    value = read(path)
    return int(value) if re.match(r"-?\d+$", value) else None


def output(*argv: str) -> str:
    """Return a program's output, empty if it is missing, fails or takes more than 10 seconds.

    Its process is not waited for then: one that waits for a file server cannot be killed.
    """
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=dict(os.environ, LC_ALL="C"),
        )
    except OSError:
        return ""
    try:
        stdout = process.communicate(timeout=10)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        return ""
    return stdout.decode("utf-8", "replace") if process.returncode == 0 else ""


def assignments(text: str) -> Dict[str, str]:
    """Return the NAME=value lines of a shell-like file; quotes around a value are dropped."""
    return {k: v.strip("\"'") for k, v in re.findall(r"^(\w+)=(.*)$", text, re.M)}
