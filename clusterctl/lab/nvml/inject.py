"""Changes the state of a node's simulated GPUs and tells of it as the driver would. Runs on the node, as root.

inject.py JSON: lists `drop` (beginnings of lines), `state` and `kept` (lines of the two state files), `events` (lines
of the list that NVML delivers) and `kernel` (lines of the kernel's log).
"""

import fcntl
import json
import os
import stat
import struct
import sys
import time

RUN, KEPT = "/run/simulated-nvml", "/var/lib/simulated-nvml"
KMSG, READ = "/dev/kmsg", "/run/systemd/journal/kernel-seqnum"
ERROR = 3  # the kernel's level of these lines


def rewrite(path, dropped, added):
    with open(path) as file:
        lines = [line for line in file.read().splitlines() if not line.startswith(tuple(dropped))]
    with open(path + ".new", "w") as file:
        file.writelines(line + "\n" for line in lines + added)
    os.rename(path + ".new", path)


def expected():
    """Return the serial number of the kernel's line that the journal will read next."""
    try:
        with open(READ, "rb") as file:
            return struct.unpack("Q", file.read(8))[0]
    except FileNotFoundError:
        return 0


def kernel(line):
    """Write a line where the node's journal reads its kernel's: a pipe of the node's own, in the lab. Wait for it."""
    pipe = os.open(KMSG, os.O_WRONLY | os.O_NONBLOCK)
    if not stat.S_ISFIFO(os.fstat(pipe).st_mode):
        sys.exit(KMSG + " is not the node's own, so nothing is written there")
    serial = expected()
    os.write(pipe, b"%d,%d,%d,-;%s\n" % (ERROR, serial, time.monotonic_ns() // 1000, line.encode()))
    os.close(pipe)
    deadline = time.monotonic() + 10
    while expected() == serial and time.monotonic() < deadline:
        time.sleep(0.01)


asked = json.loads(sys.argv[1])
os.umask(0o022)
with open(RUN + "/lock", "a") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    rewrite(RUN + "/state", asked["drop"], asked["state"])
    rewrite(KEPT + "/state", asked["drop"], asked["kept"])
    with open(RUN + "/events", "a") as events:
        events.writelines(line + "\n" for line in asked["events"])
for text in asked["kernel"]:
    kernel(text)
