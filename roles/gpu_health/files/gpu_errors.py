"""Hardware errors of GPUs and NVSwitches in the kernel's log and the journal: XIDs, SXids, GPUs that do not start."""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import gpu_node
from nvidia_smi import PCI_ADDRESS, pci_address

KERNEL_LOG, BOOT = Path("/dev/kmsg"), Path("/proc/sys/kernel/random/boot_id")
RECORD_BYTES = 8192  # the buffer that the kernel requires of a reader
FACILITY = 8  # a priority below it is of facility 0, the kernel's own

# The XIDs that drain by default, by NVIDIA's catalog,
# https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html
MEANINGS = {
    46: "GPU stopped processing",
    48: "double-bit ECC error",
    54: "auxiliary power is not connected",
    62: "internal micro-controller halt",
    63: "memory row or page to be replaced at the next reset",
    64: "memory row or page could not be replaced",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    92: "high rate of single-bit ECC errors",
    95: "uncontained ECC error",
    109: "context switch timeout",
    110: "security fault",
    119: "the GPU's own processor does not answer",
    120: "error of the GPU's own processor",
    136: "link training failed",
    140: "unrecovered ECC error",
    143: "GPU could not be initialised",
    151: "key rotation error",
    155: "NVLink error reported by software",
    156: "resource retirement",
    158: "fatal timeout",
}
# NVLink 5: a word in the line decides whether one is fatal, not the number. Before it the line may have the name of a
# process, which its user chooses: the last such word counts.
NVLINK_XIDS = range(144, 151)
SEVERITY = re.compile(r".*\b(Nonfatal|Fatal)\s+XC\d+\s+i\d+\s+Link\b", re.S)
# The driver has them (open-gpu-kernel-modules 595, nverror.h), the catalog does not say yet what to do.
NEW_XIDS = (167, 168, 169, 171, 172, 173, 175)

# Lines of the kernel's log. Users choose the first 15 characters of some (the name of a process that crashed) and the
# end of them; a "[" follows the name. So each pattern requires the whole address where no such name reaches.
# The name of a MIG instance may follow the address.
XID = re.compile(rf"NVRM: Xid \((?:PCI:)?({PCI_ADDRESS})(?:\.[0-7])?(?: [^)\[]*)?\): (\d+),(.*)", re.I | re.S)
SXID = re.compile(rf"(nvidia-nvswitch\d+): SXid \(PCI:{PCI_ADDRESS}(?:\.[0-7])?\): (\d+), Fatal\b", re.I)
DEAD = re.compile(
    rf"NVRM: (?:The NVIDIA )?GPU (?:at )?(?:PCI:)?({PCI_ADDRESS})(?:\.[0-7])?"
    r"(?:: RmInitAdapter failed|[^\[]*\bfallen off the bus)",
    re.I | re.S,
)
NO_START = "start"  # the code of a GPU that the driver could not start


def read_lines(state: dict, seconds: float) -> Iterator[tuple[str, float]]:
    """Yield text and time (seconds since 1970) of each kernel line since the last check. Remembers the position.

    Raises CommandError.
    """
    yield from _kernel_log(state)
    yield from _journal(state, seconds)


def _kernel_log(state: dict) -> Iterator[tuple[str, float]]:
    """Yield the new lines of the kernel's own log.

    A user who floods the journal rotates old lines out there, but not here. What programs write into this log has a
    facility of their own (Linux, Documentation/ABI/testing/dev-kmsg).
    """
    boot, before = gpu_node.read_text(BOOT), state.get("kernel")
    last = before["number"] if before and before["boot"] == boot else -1
    # A state of a version that only read the journal: a diagnosis may have cleared the present lines.
    is_cleared = not before and state["cursor"]
    for record in kernel_records():
        head, _, text = record.partition(";")
        priority, number, microseconds = (int(field) for field in head.split(",")[:3])
        if number <= last:
            continue
        state["kernel"] = {"boot": boot, "number": number}
        if priority < FACILITY and not is_cleared:
            yield text.partition("\n")[0], time.time() - time.monotonic() + microseconds / 1e6


def kernel_records() -> Iterator[str]:
    """Yield all records of the kernel's log; none where it is no device, as in the lab, whose journal reads a pipe."""
    try:
        log = os.open(KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return
    try:
        while stat.S_ISCHR(os.fstat(log).st_mode):
            with contextlib.suppress(BrokenPipeError):  # lines were overwritten: the next read returns the oldest
                yield os.read(log, RECORD_BYTES).decode(errors="replace")
    except BlockingIOError:  # the end of the log
        return
    finally:
        os.close(log)


def _journal(state: dict, seconds: float) -> Iterator[tuple[str, float]]:
    """Yield the new kernel lines of the journal.

    journald sets the transport itself, so no user can forge it; users can choose parts of the text.
    """
    end = gpu_node.run("journalctl", "--lines=1", "--output=json", seconds=seconds)
    begin = f"--after-cursor={state['cursor']}" if state["cursor"] else "--boot"
    argv = ["journalctl", "--quiet", "--output=json", "--output-fields=MESSAGE", "_TRANSPORT=kernel"]
    try:
        log = gpu_node.run(*argv, begin, seconds=seconds)
    except gpu_node.CommandError as error:
        if not state["cursor"] or "cursor" not in error.brief:
            raise
        log = gpu_node.run(*argv, "--boot", seconds=seconds)
    lines = log.splitlines()
    for line in lines:
        if re.search(r'NVRM: |SXid|"MESSAGE" ?: ?\[', line):
            entry = json.loads(line)
            yield message_of(entry), int(entry["__REALTIME_TIMESTAMP"]) / 1e6
    # The last line that was read, not the end of the journal: a line must not be read again after a diagnosis.
    cursor = re.search(r'"__CURSOR"\s*:\s*"([^"]+)"', lines[-1] if lines else end)
    state["cursor"] = cursor.group(1) if cursor else state["cursor"]


def message_of(entry: dict) -> str:
    """Return the text of a journal entry; one that is not UTF-8 is a list of bytes (systemd.io, JSON format)."""
    message = entry.get("MESSAGE")
    return bytes(message).decode(errors="replace") if isinstance(message, list) else str(message)


def parse_line(text: str, xids: list[int]) -> tuple[str, str] | None:
    """Return the PCI address (or the switch) and the code of the hardware error in a kernel line.

    `xids` are the configured ones; fatal NVLink 5 errors and new XIDs count as well.
    """
    if found := XID.match(text):
        number, rest = int(found.group(2)), found.group(3)
        severity = SEVERITY.match(rest) if number in NVLINK_XIDS else None
        is_fatal = severity is not None and severity.group(1) == "Fatal"
        counts = is_fatal or number in xids or number in NEW_XIDS
        return (pci_address(found.group(1)), str(number)) if counts else None
    if found := SXID.match(text):
        return found.group(1).lower(), found.group(2)
    found = DEAD.match(text)
    return (pci_address(found.group(1)), NO_START) if found else None


def is_switch(place: str) -> bool:
    """Return whether a place is an NVSwitch and no PCI address."""
    return place.startswith("nvidia-nvswitch")


def describe(place: str, code: str) -> str:
    """Return what a hardware error is, in a few words."""
    if is_switch(place):
        return f"SXid {code}, fatal"
    if code == NO_START:
        return "the driver could not start it"
    number = int(code)
    what = MEANINGS.get(number, "an error of the hardware")
    what = "fatal NVLink error" if number in NVLINK_XIDS else "not in NVIDIA's catalog" if number in NEW_XIDS else what
    return f"XID {code}, {what}"
