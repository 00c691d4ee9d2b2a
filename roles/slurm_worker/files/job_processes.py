"""The processes that an ended Slurm job left on this node."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from pathlib import Path

from gpu_node import NodeError, read_text, run

# Only these users can log in without a job; role slurm_logins writes the file. Without it, all users can.
ADMINISTRATORS = Path("/etc/security/clusterctl-administrators.conf")
GROUP_SECONDS = 5.0
# Other jobs of the user may need the user's MPS daemon, which job_mps ends. Only root can make this cgroup.
MPS = re.compile(r":/system\.slice/job-mps-[0-9]+\.service(/|$)", re.M)
Job = dict  # what job_cleanup records of a job


def ticks() -> int:
    """Return the time since the boot in ticks, as /proc/PID/stat has it of a process's start."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def status_of(entry: Path) -> dict[str, str]:
    """Return the fields of a process's status that are needed: real UID, parent, state."""
    found = dict(line.split(":", 1) for line in read_text(entry / "status").splitlines() if ":" in line)
    words = {name: found.get(name, "").split() for name in ("Uid", "PPid", "State")}
    return {name: text[0] if text else "" for name, text in words.items()}


def user_processes(uid: int, proc: Path = Path("/proc")) -> list[int]:
    """Return the numbers of a user's processes, by the real UID: slurmstepd takes the effective one at times."""
    numbers = (int(entry.name) for entry in proc.iterdir() if entry.name.isdigit())
    return [pid for pid in numbers if is_of_user(pid, uid, proc)]


def is_of_user(pid: int, uid: int, proc: Path = Path("/proc")) -> bool:
    """Return whether a process is the user's: no zombie, not of MPS, not started by Slurm for the user (sbcast)."""
    status = status_of(proc / str(pid))
    if status["Uid"] != str(uid) or status["State"] in ("Z", "X"):
        return False
    if MPS.search(read_text(proc / str(pid) / "cgroup")):
        return False
    return not (is_slurm(proc / str(pid)) and is_slurm(proc / status["PPid"], of_root=True))


def is_slurm(entry: Path, of_root: bool = False) -> bool:
    """Return whether a process runs slurmd or slurmstepd of the system, and `of_root`: as root."""
    with contextlib.suppress(OSError):
        name = os.path.basename(os.readlink(str(entry / "exe")))
        if re.match(r"slurm(step)?d\b", name) and os.stat(str(entry / "exe")).st_uid == 0:
            return not of_root or status_of(entry)["Uid"] == "0"
    return False


def job_of(cgroup: str) -> str:
    """Return the job whose cgroup this is, as in /proc/PID/cgroup with version 1 or 2, empty if it is none's."""
    found = re.search(r":/system\.slice/[^/]*slurmstepd\.scope/job_(\d+)(?:/|$)", cgroup, re.M)
    found = found or re.search(r":(?:/[^/\n]+)*?/slurm[^/]*/uid_\d+/job_(\d+)(?:/|$)", cgroup, re.M)
    return found[1] if found else ""


def is_left(pid: int, job: Job, proc: Path = Path("/proc")) -> bool:
    """Return whether a process is left from a job that has ended at job["tick"].

    A user who may be here only with a job has no other processes than those of jobs. For other users, it must be in the
    cgroup of the job, or have its environment and be in no login session: `salloc` gives it to a shell of the user.
    """
    words = read_text(proc / str(pid) / "stat").rpartition(")")[2].split()
    if len(words) < 20 or int(words[19]) > job["tick"]:
        return False  # of a job that was requeued and has the same number, or of a new session
    cgroup = read_text(proc / str(pid) / "cgroup")
    owner = job_of(cgroup)
    if owner or job["needs_job"]:
        return owner in ("", job["id"])
    if ":/user.slice/" in cgroup:
        return False
    return f"SLURM_JOB_ID={job['id']}" in read_text(proc / str(pid) / "environ").split("\0")


def requires_job(user: str, file: Path = ADMINISTRATORS) -> bool:
    """Return whether a user can be on this node only while a job runs here.

    Not if the user's groups are unknown, because the directory of users does not respond.
    """
    admitted = {word for line in read_text(file).splitlines() if line.startswith("+") for word in line.split()}
    try:
        groups = run("id", "-Gn", "--", user, seconds=GROUP_SECONDS).split()
    except NodeError:
        return False
    return bool(admitted) and admitted.isdisjoint({user, *(f"({name})" for name in groups)})


def kill_left(job: Job, seconds: float) -> list[int]:
    """Kill what a job left; return the numbers of the processes that do not end in this time."""
    until = time.monotonic() + seconds
    while True:
        left = [pid for pid in user_processes(job["uid"]) if is_left(pid, job)]
        if not left or time.monotonic() > until:
            return left
        for pid in left:
            kill(pid, job)
        time.sleep(0.05)


def kill(pid: int, job: Job) -> None:
    """Kill a process, unless it has ended and another one has its number now."""
    with contextlib.suppress(OSError):
        handle = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else -1  # Python 3.9
        try:
            if not is_of_user(pid, job["uid"]) or not is_left(pid, job):
                return
            if handle < 0:
                os.kill(pid, signal.SIGKILL)
            else:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            if handle >= 0:
                os.close(handle)
