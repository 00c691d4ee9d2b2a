"""A program that crashes at once, under any name: what the kernel says of it has that name at its begin and end."""

import base64
import json
import os
import struct
import time

from clusterctl.lab.podman import run_as_root
from tests.cluster.lab import TestLab, podman
from tests.faults.injury import container
from tests.labs import REPOSITORY

_BASE = 0x400000
_CODE = bytes.fromhex("31c0c60001")  # xor eax, eax; mov byte [rax], 1
_SIZE = 0x78 + len(_CODE)
PROGRAM = (
    struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 2, 62, 1, _BASE + 0x78, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    + struct.pack("<IIQQQQQQ", 1, 5, 0, _BASE, _BASE, _SIZE, _SIZE, 0x1000)
    + _CODE
)
"""A static ELF file for x86-64 that writes to address 0."""

START = """
import base64, os, subprocess, sys
path = "/tmp/" + sys.argv[1]
with open(path, "wb") as file:
    file.write(base64.b64decode(sys.argv[2]))
os.chmod(path, 0o755)
subprocess.run([path], user="nobody")
os.remove(path)
"""


def crashed(lab: TestLab, node: str, name: str) -> str:
    """Let a user's program of this name crash on a node; return the line of this machine's kernel about it."""
    log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    try:
        os.lseek(log, 0, os.SEEK_END)
        argv = ["podman", "exec", container(lab, node), "python3", "-c", START]
        run_as_root([*argv, name, base64.b64encode(PROGRAM).decode()])
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            try:
                text = os.read(log, 8192).decode().partition(";")[2].partition("\n")[0]
            except BlockingIOError:
                time.sleep(0.1)
                continue
            if text.startswith(f"{name[:15]}[") and " segfault at " in text:
                return text
    finally:
        os.close(log)
    raise AssertionError(f"the kernel has said nothing of {name}")


def kernel_says(lab: TestLab, node: str, *lines: str) -> None:
    """Have a node's journal read lines as its kernel's; in the lab it does not read those of this machine."""
    asked = json.dumps({"drop": [], "state": [], "kept": [], "events": [], "kernel": lines})
    script = (REPOSITORY / "clusterctl/lab/nvml/inject.py").read_text()
    podman("exec", container(lab, node), "python3", "-c", script, asked)
