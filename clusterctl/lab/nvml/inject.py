"""Change the state of a node's simulated GPUs and report it as the driver does. Runs on the node, as root.

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
from pathlib import Path

RUN, KEPT = Path("/run/simulated-nvml"), Path("/var/lib/simulated-nvml")
# The pipe from which the node's journal reads the kernel's log. On a node of Kubernetes kubelet reads the other one.
KMSG = "/dev/kmsg.journal" if Path("/dev/kmsg.journal").exists() else "/dev/kmsg"
READ = Path("/run/systemd/journal/kernel-seqnum")
ERROR = 3  # the kernel's level of these lines


def rewrite(path: Path, dropped: list[str], added: list[str]) -> None:
    lines = [line for line in path.read_text().splitlines() if not line.startswith(tuple(dropped))]
    new = path.with_suffix(".new")
    new.write_text("".join(line + "\n" for line in lines + added))
    new.rename(path)


def expected() -> int:
    """Return the serial number of the next kernel line that the journal reads."""
    try:
        return int(struct.unpack("Q", READ.read_bytes()[:8])[0])
    except FileNotFoundError:
        return 0


def kernel(line: str) -> None:
    """Write a line to the pipe from which the node's journal reads the kernel's log; wait until it is read."""
    pipe = os.open(KMSG, os.O_WRONLY | os.O_NONBLOCK)
    if not stat.S_ISFIFO(os.fstat(pipe).st_mode):
        sys.exit(KMSG + " is not the node's own pipe; nothing was written")
    serial = expected()
    os.write(pipe, b"%d,%d,%d,-;%s\n" % (ERROR, serial, time.monotonic_ns() // 1000, line.encode()))
    os.close(pipe)
    deadline = time.monotonic() + 10
    while expected() == serial and time.monotonic() < deadline:
        time.sleep(0.01)


request = json.loads(sys.argv[1])
os.umask(0o022)
with (RUN / "lock").open("a") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    rewrite(RUN / "state", request["drop"], request["state"])
    rewrite(KEPT / "state", request["drop"], request["kept"])
    with (RUN / "events").open("a") as events:
        events.writelines(line + "\n" for line in request["events"])
for text in request["kernel"]:
    kernel(text)
