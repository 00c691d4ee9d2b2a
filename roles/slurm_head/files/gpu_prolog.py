#!/usr/bin/python3 -IS
"""Slurm's Prolog: check in a few milliseconds that the driver has all recorded GPUs, make the job's scratch, start MPS.

If one is missing or lost, gpu-health runs a full check and makes the head drain the node; then the job is requeued and
starts on other nodes. If gpu-health finds no problem, the job starts.
"""

import contextlib
import ctypes
import json
import os
import subprocess
import sys
import threading

CONFIGURATION = "/etc/clusterctl/gpu-health.json"
STATE = "/var/lib/clusterctl/gpu-health.json"
HEALTH = "/usr/local/sbin/gpu-health"
SCRATCH = "/usr/local/sbin/job-scratch"  # role slurm_worker
MPS = "/usr/local/sbin/job-mps"  # of role slurm_worker, on workers that have gres/mps
TASK_PROLOG = "/usr/local/sbin/task-prolog"  # of role slurm_worker; slurm.conf has the path
SECONDS = 20.0  # for the driver to respond; gpu-health waits longer
HEALTH_SECONDS = 60.0  # for a report: slurmd waits PrologEpilogTimeout for all of this program
# As role slurm_worker's on a worker without MPS. Slurm gives the variable only to a task with a part of a GPU, and
# writes what follows `print` to the task's output. It starts the program without a shell.
PLACEHOLDER = """\
#!/bin/sh
[ -z "$CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" ] || echo "print MPS is not set up on this worker: no limit on the shared GPU"
"""
TEMPERATURE = 0  # nvmlTemperatureSensors_t: a value that only the GPU itself has


def missing(uuids, library="libnvidia-ml.so.1"):
    """Return why the driver does not have all these GPUs, empty if it has."""
    try:
        nvml = ctypes.CDLL(library)
    except OSError as error:
        return str(error)
    code = nvml.nvmlInit_v2()
    if code:
        return "nvmlInit: %d" % code
    for uuid in uuids:
        gpu, value = ctypes.c_void_p(), ctypes.c_uint()
        code = nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(gpu))
        code = code or nvml.nvmlDeviceGetTemperature(gpu, TEMPERATURE, ctypes.byref(value))
        if code:
            return "%s: %d" % (uuid, code)
    return ""


def within(seconds, function, *arguments):
    """Return a function's result, or an error after a time limit: a call that hangs in the kernel cannot be ended."""
    answer = ["the driver does not respond"]
    call = threading.Thread(target=lambda: answer.__setitem__(0, function(*arguments)), daemon=True)
    call.start()
    call.join(seconds)
    return answer[0]


def unfit():
    """Run gpu-health, which reports to the head; return whether the head has drained the node for it.

    If the report fails, the job starts: Slurm's own drain would never be removed, and gpu-health reports again later.
    """
    check = subprocess.Popen([HEALTH], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    with contextlib.suppress(subprocess.TimeoutExpired):  # it ends and reports later, or hangs in the kernel
        check.wait(HEALTH_SECONDS)
    try:
        with open(STATE) as file:
            return bool(json.load(file).get("told"))
    except (OSError, ValueError):
        return False


def scratch():
    """Give the job its directory on a local disk; return 0 if it has it, or if this worker has none.

    After a failure gpu-health reports it, and the head drains the node before Slurm would do that.
    """
    if not os.access(SCRATCH, os.X_OK) or not subprocess.call([SCRATCH, "make"]):
        return 0
    unfit()
    return subprocess.call([SCRATCH, "make"])


def mps():
    """Start MPS for a job with a part of a GPU; return 0 if the job has it, or does not need it.

    Without it the job's programs would share the GPU without any limit. A failure drains as one of scratch. On a worker
    that no run has set up for MPS yet the job starts, and task-prolog prints that: Slurm's own drain would stay.
    """
    if os.access(MPS, os.X_OK):
        if not subprocess.call([MPS, "start"]):
            return 0
        unfit()
        return subprocess.call([MPS, "start"])
    if "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" in os.environ:
        print("gpu-prolog: no run has set up MPS on this worker: bootstrap it", file=sys.stderr)
    return 0


def task_prolog():
    """Create a program that only prints what a job does not have, if there is none: without it no task starts.

    The head names it in slurm.conf before a run has brought it to all workers, and does not send it as this one.
    """
    if os.path.exists(TASK_PROLOG):
        return
    new = "%s.%d" % (TASK_PROLOG, os.getpid())
    try:
        with open(new, "w") as file:
            file.write(PLACEHOLDER)
        os.chmod(new, 0o755)  # noqa: S103 - run by all users
        os.link(new, TASK_PROLOG)  # not over one that a run has installed meanwhile
        os.unlink(new)
    except FileExistsError:
        os.unlink(new)
    except OSError as error:
        print("gpu-prolog: cannot create %s: %s" % (TASK_PROLOG, error.strerror), file=sys.stderr)


def main():
    """Return 0 if the job may start."""
    task_prolog()
    return gpus() or scratch() or mps()


def gpus():
    """Return 0 if the driver has all GPUs, or if the node is not drained for it."""
    try:
        with open(CONFIGURATION) as file:
            given = json.load(file)
    except FileNotFoundError:  # a worker that no run has configured yet
        return 0
    uuids = [gpu["uuid"] for gpu in given["gpus"]]
    if not uuids or "driver" in given["skip"]:
        return 0
    why = within(SECONDS, missing, uuids)
    if not why or not unfit():
        return 0
    print("gpu-prolog: %s" % why, file=sys.stderr)
    return 1


if __name__ == "__main__":
    ended = main()
    sys.stderr.flush()
    os._exit(ended)
