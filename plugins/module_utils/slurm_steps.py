"""Find the processes of Slurm's jobs on a node."""

from __future__ import annotations

import os
import re
from pathlib import Path

# A job's cgroup has the job's number in its name, or, since 26.05 with version 2, its SLUID (13 digits in base 32
# without I, L, O and U; src/common/sluid.c). Users can make groups only below user.slice.
OF_A_JOB = re.compile(r"(?m)^\d+:[^:]*:(?![^\n]*/user\.slice/)[^\n]*/(?:job_\d+|s[0-9A-HJKMNP-TV-Z]{13})(?:/|$)")


def jobs(proc="/proc"):
    """Return the numbers of Slurm's jobs that run here, from their steps."""
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
    """Return whether root runs slurmstepd in a process. Its title and the owner of its files can be forged."""
    try:
        program = os.readlink(str(process / "exe"))  # noqa: PTH115 (Python 3.8)
    except OSError:  # kernel threads have none
        return False
    # Debian's name is slurmstepd-wlm; a replaced program ends with "(deleted)".
    ours = re.search(r"/slurmstepd[^/]*$", program)
    return bool(ours and re.search(r"(?m)^Uid:\s+0\s", (process / "status").read_text(errors="replace")))
