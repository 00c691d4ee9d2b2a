#!/usr/bin/python3 -IS
"""Slurm's Prolog: sees in a few milliseconds, before each job, whether the driver still has all recorded GPUs.

Where one is missing or lost, gpu-health looks closely and has the head take the node out of service; then the job is
requeued, and begins on other nodes. Where gpu-health finds nothing the job begins.
"""

import ctypes
import json
import os
import subprocess
import sys
import threading

CONFIGURATION = "/etc/clusterctl/gpu-health.json"
STATE = "/var/lib/clusterctl/gpu-health.json"
HEALTH = "/usr/local/sbin/gpu-health"
SECONDS = 20.0  # for the driver to answer; gpu-health gives it longer
TEMPERATURE = 0  # nvmlTemperatureSensors_t: a value that only a GPU itself can tell


def missing(uuids, library="libnvidia-ml.so.1"):
    """Return why the driver has not all of these GPUs, empty where it has."""
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
    """Return what a function does, or that it does not come back: a call that hangs in the kernel cannot be ended."""
    answer = ["the driver does not answer"]
    call = threading.Thread(target=lambda: answer.__setitem__(0, function(*arguments)), daemon=True)
    call.start()
    call.join(seconds)
    return answer[0]


def unfit():
    """Let gpu-health look and tell the head; return whether the head keeps the node out of service for it.

    Where the head could not be told the job begins: a drain of Slurm's own is lifted by nobody, and gpu-health looks
    and tells again.
    """
    subprocess.call([HEALTH], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        with open(STATE) as file:
            return bool(json.load(file).get("told"))
    except (OSError, ValueError):
        return False


def main():
    """Return 0 where the job may begin."""
    try:
        with open(CONFIGURATION) as file:
            given = json.load(file)
    except FileNotFoundError:  # a worker that a run has not come to yet
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
