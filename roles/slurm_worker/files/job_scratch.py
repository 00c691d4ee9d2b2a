"""Give each Slurm job a directory on a local disk of this node, and delete it after the job.

The directory is BASE/JOBID, of the job's user alone. After the job it is renamed into BASE/.trash, where a service
deletes it with low priority, so that a big tree does not delay the next job. BASE is in the file CONFIGURATION. Only
root may write to BASE and .trash, or a user could put a link in place of a directory. That is tested on descriptors,
and all is done relative to them.

usage: job-scratch make     in Slurm's Prolog, with its environment
       job-scratch boot     before slurmd starts: remove what was left when the node went down
       job-scratch empty    for the service: delete what was removed
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

CONFIGURATION = Path("/etc/clusterctl/scratch")
BOOTED = Path("/run/clusterctl/scratch-boot")
OWNER = 0  # root, who alone may write to the directories
FIRST_UID = 1000  # of people, as in job_cleanup
SERVICE = "job-scratch.service"
TRASH, CHECK = ".trash", ".check"
MNT_DETACH = 2  # umount2(2)


class ScratchError(Exception):
    """A job cannot have a directory; the text says why."""


def base() -> Path | None:
    """Return the directory of all jobs' directories; None if this node has none."""
    try:
        return Path(CONFIGURATION.read_text().strip())
    except OSError:
        return None


@contextlib.contextmanager
def opened(path: Path, name: str = "") -> Iterator[int]:
    """Give a descriptor of the directory `path`, or of its entry `name`, which is created if it is missing.

    Raises ScratchError if anyone but root could write to one of them, and OSError, also for a link.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    handles = [os.open(path, flags)]
    try:
        require_own(handles[0], path)
        if name:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=handles[0])
            handles.append(os.open(name, flags, dir_fd=handles[0]))
            require_own(handles[1], path / name)
        yield handles[-1]
    finally:
        for handle in handles:
            os.close(handle)


def require_own(handle: int, path: Path) -> None:
    """Raise ScratchError if anyone but root can write to an open directory."""
    found = os.fstat(handle)
    if found.st_uid != OWNER or found.st_mode & 0o022:
        raise ScratchError(f"users can write to {path}; look for links in it, delete what is not root's, and bootstrap")


def require_space(handle: int, place: Path) -> None:
    """Raise ScratchError if users cannot write to the file system: root still could, to blocks that are reserved."""
    found = os.statvfs(handle)
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
        with opened(place) as directory:
            require_space(directory, place)
            os.mkdir(job, 0o700, dir_fd=directory)
            handle = os.open(job, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
            try:
                os.fchown(handle, uid, group_of(uid))
            finally:
                os.close(handle)
    except OSError as error:
        raise ScratchError(f"cannot create {place / job}: {error.strerror}") from None


def group_of(uid: int) -> int:
    """Return the user's group; -1 for a user whom the node does not know."""
    try:
        return pwd.getpwuid(uid).pw_gid
    except KeyError:
        return -1


def remove(job: str) -> bool:
    """Rename a job's directory into the trash; return whether there was one. Raises OSError and ScratchError."""
    place = base()
    if place is None:
        return False
    with opened(place) as directory:
        unmount(directory, job)
        try:
            os.stat(job, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            return False
        with opened(place, TRASH) as trash:
            os.rename(job, f"{job}.{time.time_ns()}", src_dir_fd=directory, dst_dir_fd=trash)
    return True


def unmount(directory: int, name: str) -> None:
    """Detach what is mounted at and below an entry of an open directory, such as file systems of users (FUSE).

    Root could not read them, and could not rename or delete the directories that they are mounted on. What cannot be
    detached is reported by that.
    """
    here = os.readlink(f"/proc/self/fd/{directory}")
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
        points = [re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), line.split(" ")[4]) for line in table]
    for point in reversed(points):  # the last one may hide others
        if f"{point}/".startswith(f"{here}/{name}/"):
            with contextlib.suppress(OSError):  # detached with the one above it
                detach(directory, point[len(here) + 1 :].split("/"))


def detach(directory: int, names: list[str]) -> None:
    """Unmount a mount point, without links on the way: the user may replace a directory. Raises OSError."""
    handle = os.dup(directory)
    try:
        for name in names:
            above, handle = handle, os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=handle)
            os.close(above)
        ctypes.CDLL(None).umount2(f"/proc/self/fd/{handle}".encode(), MNT_DETACH)
    finally:
        os.close(handle)


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
        with opened(place) as directory:
            require_space(directory, place)
            with contextlib.suppress(FileExistsError):
                os.mkdir(CHECK, 0o700, dir_fd=directory)
            os.rmdir(CHECK, dir_fd=directory)
        with opened(place, TRASH):
            pass
    except ScratchError as error:
        return [f"scratch: {error}"]
    except OSError as error:
        return [f"scratch: cannot write to {place}: {error.strerror}"]
    return []


def boot() -> None:
    """Remove the directories of all jobs, once after each boot: no job survives it. Raises OSError and ScratchError."""
    place = base()
    if place is None or BOOTED.exists():
        return
    if subprocess.call(["systemctl", "is-active", "--quiet", "slurmd.service"]):
        for name in os.listdir(place):
            if name.isdigit():
                remove(name)
    BOOTED.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    BOOTED.touch()
    start_emptying()


def empty() -> None:
    """Delete what is in the trash. rm follows no links, not even those that are made meanwhile, and leaves mounts.

    Raises OSError and ScratchError.
    """
    place = base()
    if place is None:
        return
    failed = set()
    with opened(place, TRASH) as trash:
        while left := sorted(set(os.listdir(trash)) - failed):
            for name in left:
                unmount(trash, name)
                delete = ["rm", "-rf", "--one-file-system", "--", f"./{name}"]
                if subprocess.call(delete, cwd=f"/proc/self/fd/{trash}"):
                    failed.add(name)
    if failed:
        raise ScratchError(f"cannot delete {', '.join(sorted(failed))} in {place / TRASH}")


def main(arguments: list[str]) -> None:
    """Run as the program job-scratch."""
    if arguments not in (["make"], ["boot"], ["empty"]):
        sys.exit("usage: job-scratch make|boot|empty")
    try:
        if arguments == ["make"]:
            make(os.environ["SLURM_JOB_ID"], int(os.environ["SLURM_JOB_UID"]))
            start_emptying()
        elif arguments == ["boot"]:
            boot()
        else:
            empty()
    except (OSError, ScratchError) as error:
        sys.exit(f"job-scratch: {error}")
