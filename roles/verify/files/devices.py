"""Print the GPUs that a job may use on a node, as one line of JSON. Runs in the job, sent to python3 by srun.

Its arguments are users' home directories, whose last changes are also printed.

A simulated or unbound device that the job may open returns ENXIO or ENODEV; one that it may not open, EPERM.
"""

import errno
import glob
import json
import os
import shutil
import subprocess
import sys

OPENED = (errno.ENXIO, errno.ENODEV, errno.EBUSY)


def opening(path):
    """Return "open" if this process may open the device, else the error's name."""
    try:
        # A MIG instance's capability file is read-only.
        os.close(os.open(path, os.O_RDONLY if "/ci-" in path else os.O_RDWR))
    except OSError as error:
        return "open" if error.errno in OPENED else errno.errorcode.get(error.errno, str(error.errno))
    return "open"


def found():
    """Return the device files of all GPUs that a job can request; with MIG, those of the instances."""
    whole = glob.glob("/dev/nvidia[0-9]*")
    parts = {path: glob.glob(path.replace("/dev/nvidia", "/dev/nvidia-mig/gpu") + "/ci-*") for path in whole}
    return [one for path in whole for one in parts[path] or [path]]


def listed():
    """Return the number of GPUs, or MIG instances, that nvidia-smi lists; None if it is not installed."""
    if not shutil.which("nvidia-smi"):
        return None
    done = subprocess.run(["nvidia-smi", "-L"], stdout=subprocess.PIPE, universal_newlines=True, check=False)
    blocks = done.stdout.split("GPU ")[1:]
    return sum(max(1, block.count("  MIG ")) for block in blocks)


def changed(path):
    """Return the last change of a directory, in nanoseconds since 1970; None if it does not exist."""
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return None


answer = {
    "node": os.environ["SLURMD_NODENAME"],
    "job": os.environ["SLURM_JOB_ID"],
    "user": os.getuid(),
    "devices": {path: opening(path) for path in found()},
    "listed": listed(),
    "homes": {path: changed(path) for path in sys.argv[1:]},
}
print(json.dumps(answer))
