"""The processes of Slurm's jobs on a node, as the kernel shows them."""

from __future__ import annotations

import os
import re
from pathlib import Path

# A cgroup that Slurm made for a job: by the job's number, and from 26.05 on, on version 2, by its SLUID (13 digits to
# base 32 without I, L, O and U; src/common/sluid.c). Users can make groups below user.slice alone.
OF_A_JOB = re.compile(r"(?m)^\d+:[^:]*:(?![^\n]*/user\.slice/)[^\n]*/(?:job_\d+|s[0-9A-HJKMNP-TV-Z]{13})(?:/|$)")


def jobs(proc="/proc"):
    """The numbers of the jobs of Slurm that run here, by its steps."""
    found = set()
    for path in Path(proc).glob("[0-9]*/cmdline"):
        try:
            title = re.match(r"slurmstepd: \[(\d+)", path.read_text(errors="replace"))
            if title and is_slurmstepd(path.parent):
                found.add(title.group(1))
        except OSError:  # it has ended
            continue
    return sorted(found, key=int)


def is_slurmstepd(process):
    """Whether a process is Slurm's: root runs that program. Its title, and whose its files are, can be forged."""
    try:
        program = os.readlink(str(process / "exe"))  # noqa: PTH115 (Python 3.8)
    except OSError:  # the kernel's own have none
        return False
    # Debian calls it slurmstepd-wlm, and one that was replaced meanwhile is "(deleted)".
    ours = re.search(r"/slurmstepd[^/]*$", program)
    return bool(ours and re.search(r"(?m)^Uid:\s+0\s", (process / "status").read_text(errors="replace")))
