"""Says which GPUs a job may use on a node. Runs in the job, fed to python3 by srun; prints one line of JSON.

A simulated or unbound device that the job may open answers ENXIO or ENODEV; one that it may not, EPERM.
"""

import errno
import glob
import json
import os
import shutil
import subprocess

OPENED = (errno.ENXIO, errno.ENODEV, errno.EBUSY)


def opening(path):
    """Return "open" where this process may open the device, else the error's name."""
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError as error:
        return "open" if error.errno in OPENED else errno.errorcode.get(error.errno, str(error.errno))
    return "open"


def listed():
    """Return how many GPUs nvidia-smi lists, or None where it is not installed."""
    if not shutil.which("nvidia-smi"):
        return None
    done = subprocess.run(["nvidia-smi", "-L"], stdout=subprocess.PIPE, universal_newlines=True, check=False)
    return sum(line.startswith("GPU ") for line in done.stdout.splitlines())


answer = {
    "node": os.environ["SLURMD_NODENAME"],
    "job": os.environ["SLURM_JOB_ID"],
    "user": os.getuid(),
    "devices": {path: opening(path) for path in glob.glob("/dev/nvidia[0-9]*")},
    "listed": listed(),
}
print(json.dumps(answer))
