"""Give each Slurm job a directory on a local disk of this node, and delete it after the job.

The directory is BASE/JOBID, of the job's user alone. After the job it is renamed into BASE/.trash, where a service
deletes it with low priority, so that a big tree does not delay the next job. BASE is in the file CONFIGURATION. Only
root can write to BASE, so no user can put a link in place of a directory.

usage: job-scratch make     in Slurm's Prolog, with its environment
       job-scratch boot     before slurmd starts: remove what was left when the node went down
       job-scratch empty    for the service: delete what was removed
"""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import time
from pathlib import Path

CONFIGURATION = Path("/etc/clusterctl/scratch")
BOOTED = Path("/run/clusterctl/scratch-boot")
FIRST_UID = 1000  # of people, as in job_cleanup
SERVICE = "job-scratch.service"
TRASH, CHECK = ".trash", ".check"


class ScratchError(Exception):
    """A job cannot have a directory; the text says why."""


def base() -> Path | None:
    """Return the directory of all jobs' directories; None if this node has none."""
    try:
        return Path(CONFIGURATION.read_text().strip())
    except OSError:
        return None


def require_space(place: Path) -> None:
    """Raise ScratchError if users cannot write to the file system: root still could, to blocks that are reserved."""
    found = os.statvfs(place)
    if not found.f_bavail:
        raise ScratchError(f"{place} is full")
    if found.f_files and not found.f_favail:
        raise ScratchError(f"{place} has no free inodes")


def make(job: str, uid: int) -> None:
    """Create a job's directory, empty also for a job that was requeued. Raises ScratchError."""
    place = base()
    if place is None or uid < FIRST_UID:
        return
    try:
        remove(job)
        require_space(place)
        os.mkdir(place / job, 0o700)
        os.chown(place / job, uid, group_of(uid))
    except OSError as error:
        raise ScratchError(f"cannot create {place / job}: {error.strerror}") from None


def group_of(uid: int) -> int:
    """Return the user's group; -1 for a user whom the node does not know."""
    try:
        return pwd.getpwuid(uid).pw_gid
    except KeyError:
        return -1


def remove(job: str) -> bool:
    """Rename a job's directory into the trash; return whether there was one. Raises OSError."""
    place = base()
    if place is None or not (place / job).is_dir():
        return False
    trash = place / TRASH
    trash.mkdir(mode=0o700, exist_ok=True)
    (place / job).rename(trash / f"{job}.{time.time_ns()}")
    return True


def start_emptying() -> None:
    """Start the service that deletes what is in the trash, and do not wait for it."""
    place = base()
    if place is not None and (place / TRASH).is_dir() and any((place / TRASH).iterdir()):
        subprocess.call(["systemctl", "start", "--no-block", SERVICE])


def problems() -> list[str]:
    """Return why jobs cannot have directories now; empty if they can."""
    place = base()
    if place is None:
        return []
    try:
        require_space(place)
        (place / CHECK).mkdir(mode=0o700, exist_ok=True)
        (place / CHECK).rmdir()
    except ScratchError as error:
        return [f"scratch: {error}"]
    except OSError as error:
        return [f"scratch: cannot write to {place}: {error.strerror}"]
    return []


def boot() -> None:
    """Remove the directories of all jobs, once after each boot: no job survives it."""
    place = base()
    if place is None or BOOTED.exists():
        return
    if subprocess.call(["systemctl", "is-active", "--quiet", "slurmd.service"]):
        for entry in place.iterdir():
            if entry.name.isdigit():
                remove(entry.name)
    BOOTED.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    BOOTED.touch()
    start_emptying()


def empty() -> None:
    """Delete what is in the trash. rm follows no links, not even those that are made meanwhile, and leaves mounts."""
    place = base()
    if place is None:
        return
    failed = set()
    while left := sorted(set(os.listdir(place / TRASH)) - failed):
        for name in left:
            if subprocess.call(["rm", "-rf", "--one-file-system", "--", str(place / TRASH / name)]):
                failed.add(name)
    if failed:
        sys.exit(f"job-scratch: cannot delete {', '.join(sorted(failed))} in {place / TRASH}")


def main(arguments: list[str]) -> None:
    """Run as the program job-scratch."""
    if arguments == ["make"]:
        try:
            make(os.environ["SLURM_JOB_ID"], int(os.environ["SLURM_JOB_UID"]))
        except ScratchError as error:
            sys.exit(f"job-scratch: {error}")
        start_emptying()
    elif arguments == ["boot"]:
        boot()
    elif arguments == ["empty"]:
        empty()
    else:
        sys.exit("usage: job-scratch make|boot|empty")
