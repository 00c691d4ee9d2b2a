"""Says which GPUs a job may use on a node. Runs in the job, fed to python3 by srun; prints one line of JSON.

Its arguments are users' homes, of which it says when they were last changed.

A simulated or unbound device that the job may open answers ENXIO or ENODEV; one that it may not, EPERM.
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
    """Return "open" where this process may open the device, else the error's name."""
    try:
        # What grants access to a MIG instance is only read.
        os.close(os.open(path, os.O_RDONLY if "/ci-" in path else os.O_RDWR))
    except OSError as error:
        return "open" if error.errno in OPENED else errno.errorcode.get(error.errno, str(error.errno))
    return "open"


def found():
    """Return the device files that each stand for a GPU that a job can ask for: of a divided one its instances'."""
    whole = glob.glob("/dev/nvidia[0-9]*")
    parts = {path: glob.glob(path.replace("/dev/nvidia", "/dev/nvidia-mig/gpu") + "/ci-*") for path in whole}
    return [one for path in whole for one in parts[path] or [path]]


def listed():
    """Return how many GPUs nvidia-smi lists, MIG instances in place of theirs, or None where it is not installed."""
    if not shutil.which("nvidia-smi"):
        return None
    done = subprocess.run(["nvidia-smi", "-L"], stdout=subprocess.PIPE, universal_newlines=True, check=False)
    blocks = done.stdout.split("GPU ")[1:]
    return sum(max(1, block.count("  MIG ")) for block in blocks)


def changed(path):
    """Return when a directory was last changed, in nanoseconds since 1970; None where there is none."""
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
