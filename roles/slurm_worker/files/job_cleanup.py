"""Remove what an ended Slurm job left on this node: processes, shared memory, scratch, changed settings of its GPUs.

Slurm's Epilog (job-epilog, which workers fetch from the head) starts this program as root. A job is recorded until it
is cleaned up. If something is left, gpu-health reports it, the head drains the node, and each later check retries.

usage: job-cleanup            in the Epilog, with its environment
       job-cleanup --retry    for gpu-health: clean up after all recorded jobs; print what is left
       job-cleanup --list     print what is left, and change nothing
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import gpu_node
import job_mps
import job_scratch
from gpu_node import Deadline, NodeError, read_text
from job_processes import Job, kill_left, requires_job, ticks, user_processes

# Nothing of a job survives a reboot, and no user can fill this file system.
STATE = Path("/run/clusterctl/job-cleanup.json")
LOCK = Path("/run/clusterctl/job-cleanup.lock")
HEALTH = "/usr/local/sbin/gpu-health"
# What gpu-config has set, and the program that sets it again.
GPU_RECORD = Path("/var/lib/clusterctl/gpu-config.json")
GPU_CONFIG = ("/usr/local/sbin/gpu-config", "--again")
FIRST_UID = 1000  # of people; lower ones are the system's
MEMORY = ("/dev/shm", "/dev/mqueue")  # noqa: S108 - POSIX shared memory and message queues
# Tables below /proc/sysvipc: ipcrm's option, columns of owner and creator (ipc/shm.c, msg.c and sem.c of Linux).
SYSV = {"shm": ("-m", 7, 9), "msg": ("-q", 7, 9), "sem": ("-s", 4, 6)}
EPILOG_SECONDS = 200  # PrologEpilogTimeout in slurm.conf
KILL_SECONDS, RETRY_SECONDS = 10.0, 2.0  # for processes to end after SIGKILL
ALL_SECONDS = 7.0  # for a retry of all jobs: gpu-health waits 10 s
# For MPS daemons to end, and the part of ALL_SECONDS in which those that jobs need start again. One that hangs was
# stopped before.
MPS_SECONDS, MPS_LEFT_SECONDS, MPS_RETRY_SECONDS = 45.0, 1.0, 5.0
NVML_SECONDS = 20.0
GPU_CONFIG_SECONDS = 40.0
GRAPHICS_CLOCK, MEMORY_CLOCK = 0, 2  # nvmlClockType_t


# --- shared memory ----------------------------------------------------------------------------------------------------


def memory_files(job: Job, deadline: Deadline, action: str = "-print") -> list[str]:
    """Return the user's files in shared memory from before the job's end, or delete them.

    A directory with files of other users is not one of them.
    """
    places = [place for place in MEMORY if os.path.isdir(place)]
    which = ("-mindepth", "1", "-xdev", "-depth", "-uid", str(job["uid"]), "-not", "-newermt", f"@{job['ended'] + 1}")
    empty = ("(", "-not", "-type", "d", "-o", "-empty", ")")
    return deadline.run("find", *places, *which, *empty, action).splitlines() if places else []


def sysv_objects(uid: int, tables: Path = Path("/proc/sysvipc")) -> dict[str, str]:
    """Return the numbers of the user's System V objects, with ipcrm's option, by a name for messages."""
    found = {}
    for table, (option, *owners) in SYSV.items():
        for words in map(str.split, read_text(tables / table).splitlines()[1:]):
            if str(uid) in (words[column] for column in owners):
                found[f"{table} {words[1]}"] = option + words[1]
    return found


def has_jobs(job: Job, deadline: Deadline) -> bool:
    """Return whether the user has a job on this node that has not ended. Raises NodeError if Slurm does not answer."""
    states = "--states=CONFIGURING,RUNNING,SIGNALING,STOPPED,SUSPENDED"
    argv = ("--noheader", "--format=%A", states, f"--nodelist={job['node']}", f"--user={job['uid']}")
    return deadline.run("squeue", *argv).strip() != ""


def free_memory(job: Job, deadline: Deadline) -> list[str]:
    """Remove the user's shared memory, if the user has nothing else here; return what cannot be removed."""
    objects = sysv_objects(job["uid"])
    if not (objects or memory_files(job, deadline)) or user_processes(job["uid"]) or has_jobs(job, deadline):
        return []
    memory_files(job, deadline, "-delete")
    for option in objects.values():
        with contextlib.suppress(gpu_node.CommandError):  # it may have gone meanwhile
            deadline.run("ipcrm", option)
    left = [*memory_files(job, deadline), *sorted(objects.keys() & sysv_objects(job["uid"]))]
    return [f"cannot remove {name}" for name in left[:1]]


# --- GPUs -------------------------------------------------------------------------------------------------------------


def restore_gpus(job: Job, deadline: Deadline) -> list[str]:
    """Set again what gpu-config has set, and reset the clocks of the job's GPUs; return what remains changed."""
    if not job["gpus"]:
        return []
    try:
        settings = json.loads(read_text(GPU_RECORD) or "{}")
    except ValueError:
        settings = {}
    left = []
    if not settings.get("application_clocks"):
        left += in_child(deadline.within(NVML_SECONDS), reset_clocks, job["gpus"])
    if settings:
        left += deadline.run(*GPU_CONFIG, seconds=GPU_CONFIG_SECONDS).splitlines()
    if not left:
        job["gpus"] = []  # another job may have them when the rest is retried
    return left


def in_child(seconds: float, function: Callable[[list[int]], list[str]], numbers: list[int]) -> list[str]:
    """Return the result of a function, which a child process calls. Raises NodeError after a time limit.

    A call of the driver may hang in the kernel. Then this process could not end either, with a thread in the call.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            os.write(writer, json.dumps(function(numbers)).encode())
        os._exit(0)
    os.close(writer)
    if not select.select([reader], [], [], seconds)[0]:
        os.kill(child, signal.SIGKILL)
        raise NodeError("the driver does not respond")
    answer = os.read(reader, 1 << 16)
    os.close(reader)
    os.waitpid(child, 0)
    return json.loads(answer) if answer else []


def reset_clocks(numbers: list[int], library: str = "libnvidia-ml.so.1") -> list[str]:
    """Reset the application clocks of a job's GPUs that differ from the default; return what could not be reset.

    A user may change them where an administrator has allowed it. `numbers` are of SLURM_JOB_GPUS: positions among the
    devices of gres.conf, which are those of the driver only if all GPUs are of one model, undivided and there.
    """
    try:
        nvml = ctypes.CDLL(library)
    except OSError:
        return []
    gpus = gpus_in_order(nvml)
    left = []
    for number in numbers if gpus and max(numbers) < len(gpus) else ():
        if are_clocks_changed(nvml, gpus[number]):
            code = nvml.nvmlDeviceResetApplicationsClocks(gpus[number])
            if code or are_clocks_changed(nvml, gpus[number]):
                left.append(f"application clocks of GPU {number} (NVML: {code})")
    return left


def gpus_in_order(nvml: ctypes.CDLL) -> list[ctypes.c_void_p]:
    """Return the node's GPUs, none if they differ, are divided, or have other numbers than their device files."""
    count, gpus, names = ctypes.c_uint(), [], set()
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return []
    for index in range(count.value):
        gpu, minor, mig, pending = ctypes.c_void_p(), ctypes.c_uint(), ctypes.c_uint(), ctypes.c_uint()
        name = ctypes.create_string_buffer(96)
        if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(gpu)):
            return []
        if nvml.nvmlDeviceGetMinorNumber(gpu, ctypes.byref(minor)) or minor.value != index:
            return []
        if not nvml.nvmlDeviceGetMigMode(gpu, ctypes.byref(mig), ctypes.byref(pending)) and mig.value:
            return []
        nvml.nvmlDeviceGetName(gpu, name, len(name))
        names.add(name.value)
        gpus.append(gpu)
    return gpus if len(names) == 1 else []


def are_clocks_changed(nvml: ctypes.CDLL, gpu: ctypes.c_void_p) -> bool:
    """Return whether the application clocks of a GPU differ from the default; not if it has none."""
    now, default = ctypes.c_uint(), ctypes.c_uint()
    for clock in (GRAPHICS_CLOCK, MEMORY_CLOCK):
        if nvml.nvmlDeviceGetApplicationsClock(gpu, clock, ctypes.byref(now)):
            return False
        if nvml.nvmlDeviceGetDefaultApplicationsClock(gpu, clock, ctypes.byref(default)):
            return False
        if now.value != default.value:
            return True
    return False


# --- jobs -------------------------------------------------------------------------------------------------------------


def ended_job() -> Job:
    """Return the job of the Epilog's environment. Times are in seconds since 1970, and in ticks since the boot."""
    numbers = os.environ.get("SLURM_JOB_GPUS", "").split(",")
    return {
        "id": os.environ["SLURM_JOB_ID"],
        "uid": int(os.environ["SLURM_JOB_UID"]),
        "user": os.environ.get("SLURM_JOB_USER", ""),
        "node": os.environ.get("SLURMD_NODENAME", ""),
        "gpus": [int(number) for number in numbers if number.isdecimal()],
        "scratch": scratch_of(os.environ["SLURM_JOB_ID"]),
        "ended": int(time.time()),
        "tick": ticks(),
        "needs_job": requires_job(os.environ.get("SLURM_JOB_USER", "")),
        "failed": 0,
        "left": "",
    }


@contextlib.contextmanager
def unfinished() -> Iterator[dict[str, Job]]:
    """Give the jobs that are not cleaned up, by number, to read and change."""
    LOCK.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        jobs = gpu_node.read_json(STATE, {})
        yield jobs
        gpu_node.write_json(STATE, jobs)


def scratch_of(number: str) -> list[int]:
    """Return which directory on a local disk a job has: device and inode, empty if it has none."""
    place = job_scratch.base()
    try:
        found = os.lstat(place / number) if place else None
    except OSError:
        return []
    return [found.st_dev, found.st_ino] if found else []


def remove_scratch(job: Job) -> list[str]:
    """Remove the job's directory on a local disk; return what cannot be removed. A service deletes its files.

    If the job was requeued, the Prolog has removed the directory, and the one with its number is in use again.
    """
    if not job.get("scratch") or scratch_of(job["id"]) != job["scratch"]:
        return []
    try:
        job_scratch.remove(job["id"])
    except (OSError, job_scratch.ScratchError) as error:
        return [f"cannot remove its scratch directory: {getattr(error, 'strerror', error)}"]
    job["scratch"] = []  # a later directory may have the same inode
    job_scratch.start_emptying()
    return []


def clean(job: Job, seconds: float, mps_seconds: float, deadline: Deadline) -> None:
    """Clean up after a job, with this time for its processes and for MPS to end; record what is left.

    What fails is retried, and is left only when it has failed twice.
    """
    try:
        running = kill_left(job, deadline.within(seconds))
        left = [f"process {pid} does not end" for pid in running[:1]]
        left += [f"{len(running) - 1} more do not end"] if len(running) > 1 else []
        left += job_mps.end(job["id"], job["tick"], deadline.within(mps_seconds))
        left += [*remove_scratch(job), *restore_gpus(job, deadline), *free_memory(job, deadline)]
        job["left"], job["failed"] = "; ".join(left), 0
    except (NodeError, OSError) as error:
        job["failed"] += 1
        job["left"] = job["left"] or (f"clean-up failed: {error}" if job["failed"] > 1 else "")
    with unfinished() as jobs:
        jobs[job["id"]] = job
        if not (job["left"] or job["failed"]):
            del jobs[job["id"]]


def retry(deadline: Deadline) -> None:
    """Clean up after all recorded jobs, but not after one that has just ended: its Epilog still runs."""
    with unfinished() as jobs:
        due = [job for job in jobs.values() if job["left"] or time.time() - job["ended"] > EPILOG_SECONDS]
    for job in due:
        clean(job, RETRY_SECONDS, MPS_LEFT_SECONDS, deadline)


def after_job() -> None:
    """Clean up after the job of the environment, and have the node drained if something is left."""
    job = ended_job()
    if job["uid"] < FIRST_UID:
        job_mps.end(job["id"], job["tick"], MPS_SECONDS)
        return
    with unfinished() as jobs:
        is_reported = any(other["left"] for other in jobs.values())
        jobs[job["id"]] = job
    clean(job, KILL_SECONDS, MPS_SECONDS, Deadline(EPILOG_SECONDS / 2))
    if job["left"] and not is_reported:
        gpu_node.run(HEALTH, seconds=EPILOG_SECONDS / 3)


def main(arguments: list[str]) -> None:
    """Run as the program job-cleanup."""
    if os.geteuid() != 0:
        sys.exit("job-cleanup: only root can clean up")
    if arguments in (["--retry"], ["--list"]):
        if arguments == ["--retry"]:
            deadline = Deadline(ALL_SECONDS)
            for line in job_mps.retry(MPS_RETRY_SECONDS):
                print(line)
            retry(deadline)
            job_scratch.start_emptying()
        with unfinished() as jobs:
            for job in jobs.values():
                if job["left"]:
                    print(f"job {job['id']} of {job['user']}: {job['left']}")
        for line in [*job_mps.problems(), *job_scratch.problems()]:
            print(line)
        return
    try:
        after_job()
    except (NodeError, OSError, KeyError, ValueError) as error:
        # Exit status 0: Slurm's own drain would never be removed.
        print(f"job-cleanup: {error}", file=sys.stderr)
