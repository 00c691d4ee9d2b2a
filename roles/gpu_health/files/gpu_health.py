#!/usr/bin/python3
"""Judges whether this node's GPUs are fit for jobs, and has the head keep the node out of service while they are not.

It asks nvidia-smi, the kernel's log, the kernel's lines in the journal and /sys, and compares them with what the role
has written down of this node. What it finds either drains or is advice. An XID of the hardware drains until the GPU was
reset, or the node restarted, and a diagnosis has passed: the log alone does not say that a GPU is well again.

usage: gpu-health              as Slurm's HealthCheckProgram: look, and tell the head
       gpu-health --json       only look, and print what was found
       gpu-health --diagnose   reset GPUs with an XID of the hardware, and forget these XIDs if all is well then
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import json
import os
import random
import re
import shutil
import socket
import stat
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID

CONFIGURATION = Path("/etc/clusterctl/gpu-health.json")
KEY = Path("/etc/clusterctl/gpu-health.key")
STATE = Path("/var/lib/clusterctl/gpu-health.json")
STOPPED = Path("/run/clusterctl/gpu-health.stopped")
LOCK = Path("/run/clusterctl/gpu-health.lock")
KERNEL_LOG, BOOT = Path("/dev/kmsg"), Path("/proc/sys/kernel/random/boot_id")
PERSISTENCED = Path("/run/nvidia-persistenced/socket")
RECORD_BYTES = 8192  # what the kernel asks a reader to have room for
FACILITY = 8  # a priority below it is of facility 0, the kernel's own
# Shared by looks. A diagnosis has it alone, and so has role nvidia_driver while it exchanges the driver.
DIAGNOSES = Path("/run/clusterctl/gpu-health.diagnosis")
# Of role gpu_config, where the node has it: what is set at every boot, and which clocks are locked now.
CONFIGURES = Path("/usr/local/sbin/gpu-config")
SETTINGS = Path("/etc/clusterctl/gpu-config.json")
LOCKED = Path("/run/clusterctl/gpu-config.json")
VERSION = 1
# Slurm gives its HealthCheckProgram 60 s for all.
SECONDS = {"driver": 30}
OTHERWISE = 10
REPORT_SECONDS = 10
# Root's own, by which the head tells it from users.
PORTS = range(600, 1024)
# What comes and goes has to be there twice, so many seconds apart.
AGAIN_SECONDS = 2
# After a look that took longer there is no time for a second one; what may be over is advice then.
SLOW_SECONDS = 15
DIAGNOSIS_SECONDS = 300
# They keep GPUs open, which then cannot be reset. The exporter's last XID is over with its GPU's reset, too.
DCGM = "nvidia-dcgm.service"
HOLDERS = ("nvidia-dcgm-exporter.service", DCGM, "nvidia-persistenced.service")
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}

# What NVIDIA's catalog calls the XIDs that drain by default,
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
# NVLink 5: a word in the line says whether one is fatal, not the number. Before it the line may name a process, whose
# name its user chooses: the last such word counts.
NVLINK_XIDS = range(144, 151)
SEVERITY = re.compile(r".*\b(Nonfatal|Fatal)\s+XC\d+\s+i\d+\s+Link\b", re.S)
# The driver has them, the catalog says nothing yet of what is to be done (open-gpu-kernel-modules 595, nverror.h).
NEW_XIDS = (167, 168, 169, 171, 172, 173, 175)

# Lines of the kernel's log. Users choose the first 15 characters of some, the name of a process that crashed, and the
# end of them; a "[" follows the name. So a line of the driver's has its whole address where no such name reaches.
PLACE = r"[0-9a-f]{1,8}:[0-9a-f]{2}:[0-9a-f]{2}"
# Behind the place may stand which MIG instance it was.
XID = re.compile(rf"NVRM: Xid \((?:PCI:)?({PLACE})(?:\.[0-7])?(?: [^)\[]*)?\): (\d+),(.*)", re.I | re.S)
SXID = re.compile(rf"(nvidia-nvswitch\d+): SXid \(PCI:{PLACE}(?:\.[0-7])?\): (\d+), Fatal\b", re.I)
DEAD = re.compile(
    rf"NVRM: (?:The NVIDIA )?GPU (?:at )?(?:PCI:)?({PLACE})(?:\.[0-7])?"
    r"(?:: RmInitAdapter failed|[^\[]*\bfallen off the bus)",
    re.I | re.S,
)
NO_START = "start"  # in the place of an XID's number: the driver could not start the GPU

# What a driver that has lost a GPU writes in the place of a value (nvmlReturn_t 15 and 16), and for a value that it
# could not read (999).
LOST = re.compile(r"GPU is lost|GPU requires reset")
UNREADABLE = re.compile(r"Unknown Error|ERR!")
FAN = "fan_speed"

# Below fabric/health of `nvidia-smi -q -x`: the place, what is well besides N/A, and what is said of anything else.
HEALTH_OF_FABRIC = (
    ("summary", ("Healthy",), "health: {}"),
    ("bandwidth", ("Full",), "bandwidth: {}"),
    ("route_recovery_in_progress", ("False",), "route is being recovered"),
    ("route_unhealthy", ("False",), "route is unhealthy"),
    ("access_timeout_recovery", ("False",), "recovers from an access timeout"),
    ("incorrect_configuration", ("None",), "configuration: {}"),
)

Data = dict  # as JSON has it


@dataclass(frozen=True)
class Finding:
    """What a check has found; advice does not drain. What is `passing` may be over at the second look."""

    check: str
    text: str
    drains: bool = True
    passing: bool = False


class Silent(Exception):
    """A program that was asked has failed, is missing or did not answer in time; `pid` is of one that may live on."""

    def __init__(self, text: str, pid: int = 0) -> None:
        super().__init__(text)
        self.pid = pid


# --- asking -----------------------------------------------------------------------------------------------------------


def ask(*argv: str, seconds: float = OTHERWISE, failing: bool = False) -> str:
    """Return what a program prints; raises Silent with its own words. One that cannot be killed is left behind.

    `failing`: what it prints counts whatever its exit status is.
    """
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT, text=True,
            errors="replace",
        )  # fmt: skip
    except OSError as error:
        raise Silent(f"{argv[0]}: {error.strerror}") from None
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        raise Silent(f"{argv[0]} does not answer within {seconds:g} s", process.pid) from None
    if process.returncode and not (failing and out.strip()):
        lines = (line.strip() for line in (err + "\n" + out).splitlines())
        words = (line for line in lines if line and not line.startswith("<"))  # of XML that it had begun
        raise Silent(f"{argv[0]}: {next(words, f'ended with {process.returncode}')}")
    return out


def read(path: Path) -> str:
    """Return the text of a small file, empty where there is none."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def bus(text: str) -> str:
    """Return a GPU's place on the PCI bus in the kernel log's form, 0000:3b:00, of any of NVIDIA's."""
    found = re.match(rf"(?:PCI:)?({PLACE})", text, re.IGNORECASE)
    domain, _, rest = found.group(1).lower().partition(":") if found else ("", "", "")
    return f"{domain.lstrip('0').zfill(4)}:{rest}" if found else text


class Gpu:
    """One GPU as `nvidia-smi -q -x` describes it."""

    def __init__(self, element: ET.Element) -> None:
        self.element, self.bus = element, bus(element.get("id", ""))

    def text(self, path: str) -> str:
        """Return a value, empty where the GPU has none."""
        found = (self.element.findtext(path) or "").strip()
        return "" if found in ("N/A", "[N/A]", "None") else found

    def number(self, *paths: str) -> float | None:
        """Return the number that the first of these values begins with which is one."""
        for path in paths:
            if found := re.match(r"-?\d+(\.\d+)?", self.text(path)):
                return float(found.group())
        return None

    def active(self, reason: str) -> bool:
        """Tell whether the clocks are held back for a reason; drivers before 535 name the place otherwise."""
        places = (
            f"clocks_event_reasons/clocks_event_reason_{reason}",
            f"clocks_throttle_reasons/clocks_throttle_reason_{reason}",
        )
        return any(self.text(place) == "Active" for place in places)

    def values(self, kind: re.Pattern[str]) -> list[str]:
        """Return the tags of the values that are of a kind; the names of processes, which users choose, are none."""
        parts = (part for part in self.element if "process" not in part.tag)
        return [one.tag for part in parts for one in part.iter() if kind.search(one.text or "")]


def parse(answer: str) -> list[Gpu]:
    """Return the GPUs of what `nvidia-smi -q -x` prints; raises Silent where that is no such document.

    It prints the names of processes as they are. Characters that XML does not have would make it unreadable.
    """
    clean = re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "?", answer)
    try:
        return [Gpu(element) for element in ET.fromstring(clean).iter("gpu")]  # noqa: S314 - of the driver's own program
    except ET.ParseError as error:
        raise Silent(f"nvidia-smi: not its XML: {error}") from None


# Older drivers call a NIC by its device, such as mlx5_0.
PART = r"(GPU|NIC)\d+"


def topology(answer: str) -> dict[str, dict[str, str]]:
    """Return the matrix of `nvidia-smi topo -m`: what connects one GPU or NIC with the others, such as NV12 or PHB."""
    rows = [line.split("\t") for line in re.sub(r"\x1b\[[0-9;]*m", "", answer).splitlines()]
    titles = next(([cell.strip() for cell in row] for row in rows if "GPU0" in (cell.strip() for cell in row[1:])), [])
    found = {}
    for row in rows:
        name = row[0].strip()
        if name in titles[1:] and re.fullmatch(PART, name):
            cells = dict(zip(titles[1:], (cell.strip() for cell in row[1:])))
            found[name] = {other: link for other, link in cells.items() if re.fullmatch(PART, other) and link != "X"}
    return found


def active(answer: str) -> dict[str, int]:
    """Return how many NVLinks of each GPU are up, by its UUID, of what `nvidia-smi nvlink -s` prints.

    Where a GPU is lost its numbers are not those of `-L` and `topo -m` (seen with nvidia-smi 550).
    """
    found = re.findall(r"^GPU \d+: .*\(UUID: (\S+)\).*\n((?:[ \t]+.*\n?)*)", answer, re.MULTILINE)
    return {uuid: len(re.findall(r"Link \d+: [\d.]+ GB/s", links)) for uuid, links in found}


def below(answer: str) -> dict[int, str]:
    """Return the lines below each GPU's own, by its number, as nvidia-smi lists them."""
    found = re.findall(r"^GPU (\d+):.*\n((?:[ \t]+.*\n?)*)", answer, re.MULTILINE)
    return {int(number): lines for number, lines in found}


def real_uid(process: Path) -> int:
    """Return whose a process is. The owner of its files does not say it: that may be root (prctl(2), DUMPABLE)."""
    found = re.search(r"^Uid:\s+(\d+)", (process / "status").read_text(), re.MULTILINE)
    return int(found.group(1)) if found else -1


def configuring(proc: Path = Path("/proc")) -> bool:
    """Tell whether gpu-config is at work, which the role has Python read from its standard input."""
    for path in proc.glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")[1:3]
            if real_uid(path.parent) == 0 and (words == [b"-", b"--given"] or words[:1] == [bytes(CONFIGURES)]):
                return True
        except OSError:
            continue
    return False


# --- the checks -------------------------------------------------------------------------------------------------------


def each(name: str, *found: tuple[object, str]) -> Iterator[str]:
    """Yield what is so of a GPU, its name first."""
    return (f"{name}: {text}" for holds, text in found if holds)


class Look:
    """One look at the node. Each check yields findings; those that need the driver's answer have it in `gpus`.

    `shown` asks for the topology where no NVLinks are recorded, too.
    """

    def __init__(self, given: Data, state: Data, shown: bool = False) -> None:
        self.given, self.state, self.shown = given, state, shown
        self.gpus: list[Gpu] = []
        self.answered = False
        self.topology: dict[str, dict[str, str]] = {}
        self.index = {bus(gpu["pci"]): gpu["index"] for gpu in given["gpus"] if gpu["pci"]}

    def seconds(self, check: str) -> float:
        """Return how long a check may take."""
        return float(self.given["timeouts"].get(check, SECONDS.get(check, OTHERWISE)))

    def name(self, place: str) -> str:
        """Return how a GPU is called, by its place on the bus; a switch by its own name."""
        if place.startswith("nvidia-nvswitch"):
            return place
        return f"GPU {self.index[place]}" if place in self.index else f"GPU at {place}"

    def recorded(self) -> Iterator[tuple[Gpu, Data]]:
        """Yield each GPU that answers with its record."""
        records = {bus(gpu["pci"]): gpu for gpu in self.given["gpus"]}
        return ((gpu, records[gpu.bus]) for gpu in self.gpus if gpu.bus in records)

    def driver(self) -> Iterator[Finding]:
        """Ask the driver for all that it knows; it has to answer where GPUs are recorded."""
        if not self.given["gpus"]:
            return
        stuck = read(Path(f"/proc/{self.state['stuck']}/status"))
        if re.search(r"^Name:\s+nvidia-smi$", stuck, re.MULTILINE) and re.search(r"^Uid:\s+0\s", stuck, re.MULTILINE):
            yield Finding("driver", "nvidia-smi hangs since an earlier look")
            return
        try:
            self.gpus = parse(ask("nvidia-smi", "-q", "-x", seconds=self.seconds("driver")))
            self.answered, self.state["stuck"] = True, 0
        except Silent as error:
            self.state["stuck"] = error.pid
            yield Finding("driver", str(error))

    def count(self) -> Iterator[Finding]:
        """Every GPU of the record is there."""
        if not self.answered:
            return
        places = {gpu.bus for gpu in self.gpus}
        missing = {bus(gpu["pci"]): gpu["uuid"] for gpu in self.given["gpus"] if gpu["pci"]}
        missing = {place: uuid for place, uuid in missing.items() if place not in places}
        for place, uuid in missing.items():
            yield Finding("count", f"{self.name(place)} is missing ({uuid or place})")
        if not missing and len(self.gpus) < len(self.given["gpus"]):
            yield Finding("count", f"{len(self.gpus)} GPUs of {len(self.given['gpus'])} that are recorded")
        if len(self.gpus) > len(self.given["gpus"]):
            yield Finding("count", f"{len(self.gpus)} GPUs, {len(self.given['gpus'])} recorded", drains=False)
        for gpu in self.gpus:
            unreadable = gpu.values(UNREADABLE)
            if gpu.values(LOST) or {*unreadable} - {FAN}:
                # What could not be read once may be there a moment later.
                yield Finding("count", f"{self.name(gpu.bus)}: the driver has lost it", passing=not gpu.values(LOST))
            elif unreadable:
                yield Finding("count", f"{self.name(gpu.bus)}: its fan cannot be read", drains=False)

    def ecc(self) -> Iterator[Finding]:
        """No memory error since the last reset that could not be corrected, and no memory that waits to be replaced."""
        for gpu in self.gpus:
            kinds = (
                "sram_uncorrectable",
                "sram_uncorrectable_parity",
                "sram_uncorrectable_secded",
                "dram_uncorrectable",
            )
            places = [f"ecc_errors/volatile/{kind}" for kind in (*kinds, "double_bit/total")]
            errors = sum(gpu.number(place) or 0 for place in places)
            pending = (
                "remapped_rows/remapped_row_pending",
                "retired_pages/pending_retirement",
                "retired_pages/pending_blacklist",
            )
            repairs = ("ecc_errors/channel_repair_pending", "ecc_errors/tpc_repair_pending")
            for text in each(
                self.name(gpu.bus),
                (errors > self.given["uncorrected_errors"], f"{errors:.0f} uncorrected ECC errors"),
                (any(gpu.text(place) == "Yes" for place in pending), "memory waits to be replaced by a reset"),
                (any(gpu.text(place) == "Yes" for place in repairs), "a part waits to be repaired by a reset"),
                (gpu.text("remapped_rows/remapped_row_failure") == "Yes", "no spare memory is left"),
                (gpu.text("ecc_errors/unrepairable_memory") == "Yes", "memory that cannot be repaired"),
                (gpu.text("ecc_errors/aggregate/sram_threshold_exceeded") == "Yes", "too many SRAM errors in its life"),
            ):
                yield Finding("ecc", text)

    def xid(self) -> Iterator[Finding]:
        """The driver has logged no error of the hardware since the last diagnosis that passed."""
        kept = {
            kind: {place: codes for place, codes in self.state.get(kind, {}).items() if self.is_known(place)}
            for kind in ("xids", "unexplained")
        }
        for place, code, when in self.new_xids():
            new = code.isdecimal() and int(code) in NEW_XIDS and int(code) not in self.given["xids"]
            kept["unexplained" if new else "xids"].setdefault(place, {})[code] = when
        self.state.update(kept)
        for kind, places in kept.items():
            for place, codes in places.items():
                for code in sorted(codes, key=lambda code: (len(code), code)):
                    yield Finding("xid", f"{self.name(place)}: {meaning(place, code)}", drains=kind == "xids")

    def is_known(self, place: str) -> bool:
        """Tell whether a place is that of a recorded GPU, or a switch: no other line is the driver's own."""
        return place in self.index or place.startswith("nvidia-nvswitch")

    def new_xids(self) -> Iterator[tuple[str, str, float]]:
        """Yield place, code and time of each error of the hardware since the last look; remember where that ended."""
        for text, when in [*self.kernel_log(), *self.journal()]:
            for place, code in self.errors(text):
                if self.is_known(place):
                    yield place, code, when

    def kernel_log(self) -> Iterator[tuple[str, float]]:
        """Yield text and time (seconds since 1970) of what the kernel's own log has had since the last look.

        A user who fills the journal turns out old lines there, but not here. What programs write into this log has a
        facility of their own (Linux, Documentation/ABI/testing/dev-kmsg).
        """
        boot, before = read(BOOT).strip(), self.state.get("kernel")
        last = before["number"] if before and before["boot"] == boot else -1
        # A state that knew the journal alone: what stands here by now may have been settled by a diagnosis.
        settled = not before and self.state["cursor"]
        for record in kernel_records():
            head, _, text = record.partition(";")
            priority, number, microseconds = (int(field) for field in head.split(",")[:3])
            if number <= last:
                continue
            self.state["kernel"] = {"boot": boot, "number": number}
            if priority < FACILITY and not settled:
                yield text.partition("\n")[0], time.time() - time.monotonic() + microseconds / 1e6

    def journal(self) -> Iterator[tuple[str, float]]:
        """Yield text and time (seconds since 1970) of the kernel's lines in the journal since the last look.

        Their way is journald's own word, whatever name a user gives his; of what they say users choose parts, too.
        """
        seconds = self.seconds("xid")
        end = ask("journalctl", "--lines=1", "--output=json", seconds=seconds)
        begin = f"--after-cursor={self.state['cursor']}" if self.state["cursor"] else "--boot"
        argv = ["journalctl", "--quiet", "--output=json", "--output-fields=MESSAGE", "_TRANSPORT=kernel"]
        try:
            log = ask(*argv, begin, seconds=seconds)
        except Silent as error:
            if not self.state["cursor"] or "cursor" not in str(error):
                raise
            log = ask(*argv, "--boot", seconds=seconds)
        lines = log.splitlines()
        for line in lines:
            if not re.search(r'NVRM: |SXid|"MESSAGE" ?: ?\[', line):
                continue
            entry = json.loads(line)
            yield message(entry), int(entry["__REALTIME_TIMESTAMP"]) / 1e6
        # What has come meanwhile was read too: read again, it would undo a diagnosis.
        cursor = re.search(r'"__CURSOR"\s*:\s*"([^"]+)"', lines[-1] if lines else end)
        self.state["cursor"] = cursor.group(1) if cursor else self.state["cursor"]

    def errors(self, text: str) -> Iterator[tuple[str, str]]:
        """Yield place and code of the error of the hardware that a line of the kernel's is about."""
        if found := XID.match(text):
            number, said = int(found.group(2)), found.group(3)
            severity = SEVERITY.match(said) if number in NVLINK_XIDS else None
            if (severity and severity.group(1) == "Fatal") or number in self.given["xids"] or number in NEW_XIDS:
                yield bus(found.group(1)), str(number)
        elif found := SXID.match(text):
            yield found.group(1).lower(), found.group(2)
        elif found := DEAD.match(text):
            yield bus(found.group(1)), NO_START

    def pcie(self) -> Iterator[Finding]:
        """All lanes are in use that were when it was recorded, at the generation that card and slot can do under load.

        Idle, the generation falls. A card may have more lanes than its slot.
        """
        for gpu, record in self.recorded():
            link = "pci/pci_gpu_link_info"
            width = gpu.number(f"{link}/link_widths/current_link_width")
            if width and record["lanes"] and width < record["lanes"]:
                yield Finding("pcie", f"{self.name(gpu.bus)}: {width:.0f} PCIe lanes, {record['lanes']} recorded")
            busy = (gpu.number("utilization/gpu_util") or 0) >= self.given["busy_percent"]
            now, most = gpu.number(f"{link}/pcie_gen/current_link_gen"), gpu.number(f"{link}/pcie_gen/max_link_gen")
            if busy and now and most and now < most:
                text = f"{self.name(gpu.bus)}: PCIe generation {now:.0f} under load, {most:.0f} is possible"
                yield Finding("pcie", text, passing=True)

    def nvlink(self) -> Iterator[Finding]:
        """Every GPU, and every pair of them, has the NVLinks of the record, but those that MIG divides use none."""
        if not self.gpus or not (self.shown or any(gpu["links"] for gpu in self.given["gpus"])):
            return
        self.topology = topology(ask("nvidia-smi", "topo", "-m", seconds=self.seconds("nvlink")))
        if not any(gpu["links"] for gpu in self.given["gpus"]):
            return
        links = active(ask("nvidia-smi", "nvlink", "-s", seconds=self.seconds("nvlink")))
        position = {gpu.bus: f"GPU{number}" for gpu, number in self.numbers("nvlink").items()}
        known = {str(gpu["index"]): bus(gpu["pci"]) for gpu in self.given["gpus"]}
        divided = {gpu.bus for gpu in self.gpus if gpu.text("mig_mode/current_mig") == "Enabled"}
        for gpu, record in self.recorded():
            if gpu.bus in divided or gpu.bus not in position:
                continue
            # Those to a switch serve all pairs, so a GPU has at least as many as its best pair.
            most = max((count(link) for link in record["links"].values()), default=0)
            if (here := links.get(gpu.text("uuid"), 0)) < most:
                yield Finding("nvlink", f"{self.name(gpu.bus)}: {here} NVLinks, {most} recorded")
            for other, link in record["links"].items():
                there = known.get(other, "")
                if there not in position or there in divided or record["index"] > int(other):
                    continue
                now = self.topology.get(position[gpu.bus], {}).get(position[there], "none")
                if count(now) < count(link):
                    yield Finding("nvlink", f"{self.name(gpu.bus)} to {self.name(there)}: {now}, {link} recorded")

    def numbers(self, check: str) -> dict[Gpu, int]:
        """Return nvidia-smi's number of each GPU; where one is lost, the others keep theirs."""
        if not any(place not in {gpu.bus for gpu in self.gpus} for place in self.index):
            return {gpu: number for number, gpu in enumerate(self.gpus)}
        listing = ask("nvidia-smi", "-L", seconds=self.seconds(check))
        known = {uuid: int(number) for number, uuid in re.findall(r"^GPU (\d+): .*\(UUID: (\S+)\)", listing, re.M)}
        return {gpu: known[gpu.text("uuid")] for gpu in self.gpus if gpu.text("uuid") in known}

    def mig(self) -> Iterator[Finding]:
        """Every GPU is divided as gpu-config keeps it, unless it is just being divided."""
        kept = json.loads(read(SETTINGS) or "{}")
        whole, parts = kept.get("mig", ""), kept.get("mig_gpus", {})
        if not (whole or parts) or len(self.gpus) != len(self.given["gpus"]) or configuring():
            return
        listing = below(ask("nvidia-smi", "-L", seconds=self.seconds("mig")))
        for number, gpu in enumerate(self.gpus):
            asked = str(parts.get(str(number), whole)).replace(" ", "")
            found = re.findall(r"^\s+MIG (\S+)\s+Device", listing.get(number, ""), re.MULTILINE)
            now = ",".join(found) or ("nothing" if gpu.text("mig_mode/current_mig") == "Enabled" else "none")
            if asked and sorted(asked.split(",")) != sorted(now.split(",")):
                yield Finding("mig", f"{self.name(gpu.bus)}: MIG layout {now}, asked for is {asked}", passing=True)

    def temperature(self) -> Iterator[Finding]:
        """No GPU is at its own threshold, or slows down for heat."""
        for gpu in self.gpus:
            margin = self.given["temperature_margin"]
            for what, now, limit in (
                ("", "gpu_temp", "gpu_temp_slow_threshold"),
                ("memory ", "memory_temp", "gpu_temp_max_mem_threshold"),
            ):
                at, most = gpu.number(f"temperature/{now}"), gpu.number(f"temperature/{limit}")
                if at is not None and most and at >= most - margin:
                    text = f"{self.name(gpu.bus)}: {what}{at:.0f} C, it slows down at {most:.0f} C"
                    yield Finding("temperature", text, passing=True)
            # Newer drivers give the distance to the threshold instead, and at which distance it slows down.
            left, least = (
                gpu.number("temperature/gpu_temp_tlimit"),
                gpu.number("temperature/gpu_temp_slow_tlimit_threshold"),
            )
            if left is not None and least is not None and left <= least + margin:
                text = f"{self.name(gpu.bus)}: {left:.0f} C from its limit, it slows down at {least:.0f} C"
                yield Finding("temperature", text, passing=True)
            if gpu.active("hw_thermal_slowdown"):
                yield Finding("temperature", f"{self.name(gpu.bus)}: slows down for heat", passing=True)

    def power(self) -> Iterator[Finding]:
        """No power supply brakes a GPU."""
        for gpu in self.gpus:
            if gpu.active("hw_power_brake_slowdown"):
                yield Finding(
                    "power", f"{self.name(gpu.bus)}: power brake: the node's supply asks it to slow down", passing=True
                )

    def fabric(self) -> Iterator[Finding]:
        """Fabric Manager runs where it is to, and has set up every GPU that is on its switches."""
        unit = "nvidia-fabricmanager.service"
        shown = ask("systemctl", "show", "--property=ActiveState,UnitFileState", unit, seconds=self.seconds("fabric"))
        states = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
        if states.get("UnitFileState") == "enabled" and states.get("ActiveState") != "active":
            yield Finding("fabric", f"Fabric Manager is {states.get('ActiveState')}", passing=True)
        for gpu in self.gpus:
            state, status = gpu.text("fabric/state"), gpu.text("fabric/status")
            if state and (state != "Completed" or status not in ("", "Success")):
                yield Finding(
                    "fabric", f"{self.name(gpu.bus)}: fabric {state.lower()}, {status or 'no status'}", passing=True
                )
            for place, well, text in HEALTH_OF_FABRIC:
                if (said := gpu.text(f"fabric/health/{place}")) not in ("", *well):
                    yield Finding("fabric", f"{self.name(gpu.bus)}: fabric {text.format(said.lower())}", passing=True)
            # A GPU of a rack has been given its place in an NVLink domain by then, others have none.
            alone = gpu.text("fabric/clusterUuid") == str(UUID(int=0)) and state == "Completed"
            if alone and re.search(r"\bGB[23]00\b", gpu.text("product_name")):
                yield Finding("fabric", f"{self.name(gpu.bus)}: in no NVLink domain of its rack", drains=False)

    def infiniband(self, sys: Path = Path("/sys")) -> Iterator[Finding]:
        """Every InfiniBand interface that had a link when the node was recorded has one."""
        for interface in self.given["infiniband"]:
            device = sys / "class/net" / interface
            port = int(read(device / "dev_port") or 0) + 1
            states = [read(path) for path in device.glob(f"device/infiniband/*/ports/{port}/state")]
            if not any("ACTIVE" in state for state in states):
                found = states[0].partition(":")[2].strip().lower() if states else "missing"
                yield Finding("infiniband", f"{interface} is {found}")

    def reset(self) -> Iterator[Finding]:
        """The driver asks for no reset or reboot."""
        for gpu in self.gpus:
            action = gpu.text("gpu_recovery_action")
            if action or gpu.text("gpu_reset_status/reset_required") == "Yes":
                # That of a domain of several nodes is not this GPU's, which may work on.
                drains = not re.search(r"\bIMEX\b", action)
                yield Finding("reset", f"{self.name(gpu.bus)}: the driver asks for: {action or 'Reset'}", drains)

    def advice(self, sys: Path = Path("/sys")) -> Iterator[Finding]:
        """What makes jobs slower than the GPUs, and was so when the node was recorded."""
        gpus, memory, cores = self.given["gpus"], self.given["memory_mb"], self.given["cores"]
        if (there := on_the_bus(sys)) > len(gpus):
            yield Finding("advice", f"NVIDIA GPUs on the PCI bus: {there}, recorded: {len(gpus)}", drains=False)
        for gpu in gpus:
            if gpu["lanes"] and gpu.get("width") and gpu["lanes"] < gpu["width"]:
                text = f"GPU {gpu['index']}: recorded with {gpu['lanes']} of its {gpu['width']} PCIe lanes"
                yield Finding("advice", text, drains=False)
        wanted = max(sum(gpu["memory_mb"] for gpu in gpus), self.given["least_memory_mb"])
        if gpus and memory < wanted:
            yield Finding("advice", f"{memory} MB of memory, {wanted} MB are sensible with these GPUs", drains=False)
        if gpus and cores < self.given["cores_per_gpu"] * len(gpus):
            text = f"{cores} cores for {len(gpus)} GPUs, {self.given['cores_per_gpu']} for each are sensible"
            yield Finding("advice", text, drains=False)
        for gpu in self.gpus:
            if PERSISTENCED.exists() and gpu.text("persistence_mode") == "Disabled":
                text = f"{self.name(gpu.bus)}: persistence mode is off, though nvidia-persistenced runs"
                yield Finding("advice", text, drains=False)
            places = [[f"{place}/{kind}_power_limit" for place in ("gpu_power_readings", "power_readings")]
                      for kind in ("current", "enforced", "default")]  # fmt: skip
            limit, usual = gpu.number(*places[0], *places[1]), gpu.number(*places[2])
            if limit and usual and limit < usual:
                text = f"{self.name(gpu.bus)}: limited to {limit:.0f} W of {usual:.0f} W"
                yield Finding("advice", text, drains=False)

    def checks(self) -> dict[str, Callable[[], Iterator[Finding]]]:
        """Return the checks by name, the driver's first: most others judge its answer."""
        made = (self.driver, self.count, self.ecc, self.xid, self.pcie, self.nvlink, self.mig, self.temperature,
                self.power, self.fabric, self.infiniband, self.reset, self.advice)  # fmt: skip
        return {check.__name__: check for check in made if check.__name__ not in self.given["skip"]}

    def run(self, *without: str) -> list[Finding]:
        """Return what all checks find, each in its own time."""
        names = [name for name in self.checks() if name not in without]
        first = [name for name in names if name == "driver"]
        return [*self.within_time(first), *self.within_time([name for name in names if name not in first])]

    def within_time(self, names: list[str]) -> list[Finding]:
        """Return what these checks find, all at once. That the driver is late drains; that another is, is told."""
        found: dict[str, list[Finding]] = {}
        threads = [threading.Thread(target=self.one, args=(name, found), daemon=True) for name in names]
        for thread in threads:
            thread.start()
        began = time.monotonic()
        for name, thread in zip(names, threads):
            thread.join(max(0.0, began + self.seconds(name) + 1 - time.monotonic()))
            found.setdefault(name, [Finding(name, f"not judged within {self.seconds(name):g} s", name == "driver")])
        return [finding for name in names for finding in found[name]]

    def one(self, name: str, found: dict[str, list[Finding]]) -> None:
        """Put down what one check finds, unless it is too late."""
        try:
            done = list(self.checks()[name]())
        except (Silent, ValueError, KeyError, TypeError, OSError) as error:
            done = [Finding(name, f"not judged: {error}", drains=False)]
        found.setdefault(name, done)


def on_the_bus(sys: Path) -> int:
    """Return how many GPUs of NVIDIA the PCI bus has (class 0x03, display), whether or not a driver has them."""
    devices = (sys / "bus/pci/devices").glob("*")
    return sum(1 for one in devices if read(one / "vendor") == "0x10de" and read(one / "class").startswith("0x03"))


def kernel_records() -> Iterator[str]:
    """Yield all that the kernel's log holds; nothing where it is none, as in the lab, whose journal reads a pipe."""
    try:
        log = os.open(KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return
    try:
        while stat.S_ISCHR(os.fstat(log).st_mode):
            with contextlib.suppress(BrokenPipeError):  # lines were overwritten meanwhile: the next is the oldest
                yield os.read(log, RECORD_BYTES).decode(errors="replace")
    except BlockingIOError:  # that was the last one
        return
    finally:
        os.close(log)


def message(entry: Data) -> str:
    """Return the text of a line in the journal; what is not UTF-8 is a list of bytes (systemd.io, JSON format)."""
    said = entry.get("MESSAGE")
    return bytes(said).decode(errors="replace") if isinstance(said, list) else str(said)


def meaning(place: str, code: str) -> str:
    """Return what an error of the hardware is, in few words."""
    if place.startswith("nvidia-nvswitch"):
        return f"SXid {code}, fatal"
    if code == NO_START:
        return "the driver could not start it"
    number = int(code)
    what = MEANINGS.get(number, "an error of the hardware")
    what = "fatal NVLink error" if number in NVLINK_XIDS else "not in NVIDIA's catalog" if number in NEW_XIDS else what
    return f"XID {code}, {what}"


def count(link: str) -> int:
    """Return how many NVLinks a cell such as NV12 names."""
    return int(link[2:]) if re.fullmatch(r"NV\d+", link) else 0


def look(given: Data, state: Data, *without: str, shown: bool = False) -> tuple[list[Finding], Look]:
    """Look, and once more where what was found may be over in a moment."""
    began = time.monotonic()
    first = Look(given, state, shown)
    found = first.run(*without)
    if not any(finding.passing for finding in found):
        return found, first
    if time.monotonic() - began > SLOW_SECONDS:
        return [replace(finding, drains=finding.drains and not finding.passing) for finding in found], first
    time.sleep(AGAIN_SECONDS)
    second = Look(given, state, shown)
    again = second.run(*without)
    lasting = {finding.check for finding in found if finding.passing}
    return [finding for finding in again if not finding.passing or finding.check in lasting], second


# --- what is kept, and what is said -----------------------------------------------------------------------------------


def load() -> Data:
    """Return what was kept of the last look. Of nothing that can be read it begins anew, with all that was logged."""
    fresh = {"version": VERSION, "cursor": "", "xids": {}, "told": None, "stuck": 0}
    try:
        state = json.loads(STATE.read_text())
    except (OSError, ValueError):
        return fresh
    return state if isinstance(state, dict) and state.get("version") == VERSION else fresh


def save(path: Path, data: Data) -> None:
    """Replace what is kept there, whole or not at all."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "w") as file:
        json.dump(data, file)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def publish(given: Data, state: Data, found: list[Finding]) -> None:
    """Have node_exporter, on a node that has it, tell which XIDs wait for a diagnosis, and which checks drain it."""
    file, gpus = Path(given["textfiles"]) / "gpu-health.prom", {bus(gpu["pci"]): gpu["index"] for gpu in given["gpus"]}
    lines = [
        f'cluster_node_nvswitch_sxid{{switch="{place}",sxid="{code}"}} 1\n'
        if place.startswith("nvidia-nvswitch")
        else f'cluster_node_gpu_xid{{gpu="{gpus.get(place, place)}",xid="{code}"}} 1\n'
        for place, codes in state["xids"].items()
        for code in codes
    ]
    checks = sorted({one.check for one in found if one.drains})
    lines += [f'cluster_node_gpu_unfit{{check="{check}"}} 1\n' for check in checks]
    if not lines:
        file.unlink(missing_ok=True)
    elif file.parent.is_dir():
        new = file.with_suffix(".new")
        new.unlink(missing_ok=True)
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644), "w") as out:
            os.fchmod(out.fileno(), 0o644)
            out.write("".join(lines))
        new.replace(file)


def reason(found: list[Finding]) -> str:
    """Return why the node is to be out of service, in one short line of ASCII; empty where it is well."""
    bad = list(dict.fromkeys(finding.text for finding in found if finding.drains))
    more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
    text = "".join(c if " " <= c <= "~" else "?" for c in " ".join(bad[0].split())) if bad else ""
    return text[: 100 - len(more)] + more


def tell(given: Data, text: str) -> None:
    """Tell the head; raises OSError or ValueError where it does not keep it. Many nodes may do so at once."""
    deadline = time.monotonic() + REPORT_SECONDS
    turn = 0.5 + int(hashlib.sha256(given["node"].encode()).hexdigest(), 16) % 100 / 100
    while True:
        try:
            answer = say(given, text)
            break
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(turn)
    if answer != "kept":
        raise ValueError("the head did not keep it; its journal says why (slurm-health)")


def say(given: Data, text: str) -> str:
    """Say it once, sealed with this node's key, and return what the head answers."""
    head, own = (given["head"], given["port"]), ("", random.choice(PORTS))  # noqa: S311 - any that is free
    with socket.create_connection(head, REPORT_SECONDS / 2, own) as line, line.makefile("rw") as file:
        challenge = file.readline(128).strip()
        if not challenge:
            raise ConnectionResetError("the head has no time")
        said = f"{challenge} {given['node']} {text}".encode()
        seal = hmac.new(KEY.read_text().strip().encode(), said, hashlib.sha256).hexdigest()
        print(given["node"], seal, text, file=file, flush=True)
        return file.readline(128).strip()


def report(given: Data, state: Data, text: str) -> None:
    """Tell the head what it may not know, as `tell` does. What is wrong is said every time: the node may be back."""
    if text or state["told"] != text:
        state["told"] = None
        save(STATE, state)  # first: an answer that comes too late leaves open what the head keeps
        tell(given, text)
        state["told"] = text


def started() -> float:
    """Return when this system has started, in seconds since 1970: the first process, for a node may be a container."""
    ticks = int(Path("/proc/1/stat").read_text().rpartition(")")[2].split()[19])
    booted = re.search(r"^btime (\d+)", Path("/proc/stat").read_text(), re.MULTILINE)
    return int(booted.group(1) if booted else 0) + ticks / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def switched(verb: str, back: str, *units: str) -> Iterator[list[Finding]]:
    """Stop those of these services that run, or start those that do not, and put them back as they were.

    Yields what there will be to say of that. Those that do not start again are tried once more at the next look.
    """
    shown = ask("systemctl", "list-units", "--plain", "--no-legend", "--state=active", *units, seconds=OTHERWISE)
    running = {line.split()[0] for line in shown.splitlines()}
    changed = [unit for unit in units if (unit in running) == (verb == "stop")]
    if verb == "stop":
        STOPPED.write_text(" ".join(changed))
    found: list[Finding] = []
    try:
        for unit in changed:
            ask("systemctl", verb, unit, seconds=DIAGNOSIS_SECONDS)
        yield found
    finally:
        failed = put_back(back, changed)
        if verb == "stop":
            STOPPED.write_text(" ".join(failed))
        found += [Finding("diagnosis", str(error)) for error in failed.values()]


def put_back(verb: str, units: list[str]) -> dict[str, Silent]:
    """Start or stop these services, the last one first; return those with which that has failed, and how."""
    failed = {}
    for unit in reversed(units):
        try:
            ask("systemctl", verb, unit, seconds=DIAGNOSIS_SECONDS)
        except Silent as error:
            failed[unit] = error
    return failed


def together(given: Data, places: list[str], gpus: list[Gpu]) -> list[list[str]]:
    """Return which GPUs are reset by one command: before Ampere all that NVLink joins (nvidia-smi(1), --gpu-reset)."""
    if not any(gpu.text("product_architecture") in ("Pascal", "Volta", "Turing") for gpu in gpus):
        return [[place] for place in places]
    place_of = {str(gpu["index"]): bus(gpu["pci"]) for gpu in given["gpus"]}
    peers = {bus(gpu["pci"]): {place_of[other] for other in gpu["links"] if other in place_of} for gpu in given["gpus"]}
    groups: list[list[str]] = []
    for place in places:
        if any(place in group for group in groups):
            continue
        group = [place]
        for one in group:  # it grows meanwhile
            group += sorted(peers.get(one, set()) - {*group})
        groups.append(group)
    return groups


def reset(given: Data, groups: list[list[str]]) -> list[Finding]:
    """Reset the GPUs at these places, each group at once; return what is not as before.

    Raises Silent where one could not be reset.
    """
    names = {bus(gpu["pci"]): gpu["uuid"] or gpu["pci"] for gpu in given["gpus"]}
    with switched("stop", "start", *HOLDERS) as found:
        for group in groups:
            which = ",".join(names.get(place, f"{place}.0") for place in group)
            ask("nvidia-smi", "--gpu-reset", "-i", which, seconds=DIAGNOSIS_SECONDS)
    return found


def run_dcgm() -> list[Finding]:
    """Have DCGM try the GPUs for some seconds; what fails drains. A diagnosis that cannot start is no verdict."""
    try:
        with switched("start", "stop", DCGM) as left:
            answer = ask("dcgmi", "diag", "-r", "1", "-j", seconds=DIAGNOSIS_SECONDS, failing=True)
        tests = list(results(json.loads(answer[answer.find("{") :])))
    except Silent as error:
        return [Finding("diagnosis", f"DCGM could not look: {error}", drains=False)]
    except ValueError:
        tests = []
    if not any(status in ("pass", "fail") for _, status, _ in tests):
        return [*left, Finding("diagnosis", f"DCGM could not look: {answer.strip()[:200]}", drains=False)]
    failed: dict[str, bool] = {}
    for name, status, of_settings in tests:
        if status == "fail":
            failed[name] = failed.get(name, False) or not of_settings
    return [*left, *(Finding("diagnosis", f"DCGM: {name} has failed", drains) for name, drains in failed.items())]


def results(answer: object, name: str = "a test") -> Iterator[tuple[str, str, bool]]:
    """Yield each result in what `dcgmi diag -j` prints: the test's name, its status, whether only a setting is wrong.

    DCGM 3 and 4 nest them differently. A setting is what DCGM gives the severity 5 (DCGM_ERROR_CONFIG), such as
    persistence mode that is off.
    """
    if isinstance(answer, list):
        for item in answer:
            yield from results(item, name)
    elif isinstance(answer, dict):
        name = str(answer.get("name", name))
        for item in answer.get("results") or ():
            if isinstance(item, dict) and isinstance(item.get("status"), str):
                said = [one for one in item.get("warnings") or () if isinstance(one, dict)]
                yield name, item["status"].lower(), bool(said) and all(one.get("error_severity") == 5 for one in said)
        for item in answer.values():
            yield from results(item, name)


def configure(given: Data, places: list[str]) -> list[Finding]:
    """Have gpu-config set again what the reset has made the GPUs at these places forget; return why it could not."""
    if not CONFIGURES.exists():
        return []
    try:
        if LOCKED.exists():
            kept = json.loads(LOCKED.read_text())
            for gpu in given["gpus"]:
                if bus(gpu["pci"]) in places:
                    kept["locks"].pop(gpu["uuid"], None)
            save(LOCKED, kept)
        argv = (str(CONFIGURES), "--given", SETTINGS.read_text(), "--drained")
        wrong = json.loads(ask(*argv, seconds=DIAGNOSIS_SECONDS))["notes"]
    except (Silent, OSError, ValueError, KeyError, TypeError) as error:
        wrong = [error]
    return [Finding("diagnosis", f"reset, and not yet as asked again: {what}") for what in wrong]


def diagnose(given: Data, state: Data) -> tuple[list[Finding], Look]:
    """Reset what needs it, look, and forget the XIDs of the hardware if all is well. Raises as `tell`."""
    first = Look(given, state)
    first.run()  # what has been logged since the last look
    places = [place for place, codes in state["xids"].items() if max(codes.values()) > started()]
    wrong = []
    if switches := [place for place in places if place not in first.index]:
        text = f"{' and '.join(switches)} had a fatal error, so the node has to be rebooted"
        return [Finding("diagnosis", text)], first
    if places:
        report(given, state, "a diagnosis is under way")  # no job starts on them meanwhile
        groups = together(given, places, first.gpus)
        try:
            wrong = reset(given, groups)
        except Silent as error:
            text = f"GPU at {' or '.join(places)} could not be reset, so the node has to be rebooted: {error}"
            return [Finding("diagnosis", text)], first
        wrong += configure(given, [place for group in groups for place in group])
    found, seen = look(given, state, "xid", shown=True)
    found = wrong + found
    if not any(finding.drains for finding in found) and shutil.which("dcgmi", path=ENVIRONMENT["PATH"]):
        found += run_dcgm()
    if not any(finding.drains for finding in found):
        state.update(xids={}, unexplained={})
    return found, seen


def main(arguments: list[str]) -> int:
    """Do what the command line asks for, alone; return the exit status: 1 where the head could not be told."""
    if os.geteuid() != 0:
        sys.exit("gpu-health: only root may ask the GPUs all of this")
    os.umask(0o077)
    given = json.loads(CONFIGURATION.read_text())
    LOCK.parent.mkdir(mode=0o700, exist_ok=True)
    with open(DIAGNOSES, "w") as diagnoses, open(LOCK, "w") as lock:
        try:
            # A diagnosis may have slurmd start anew, which looks first: neither may wait for the other.
            here = fcntl.LOCK_EX if arguments == ["--diagnose"] else fcntl.LOCK_SH
            fcntl.flock(diagnoses, here | (0 if arguments else fcntl.LOCK_NB))
        except BlockingIOError:
            return 0
        fcntl.flock(lock, fcntl.LOCK_EX)
        for failed in put_back("start", read(STOPPED).split()).values():  # by a diagnosis, which may have been killed
            print(f"gpu-health: {failed}", file=sys.stderr)
        STOPPED.unlink(missing_ok=True)
        state = load()
        status, found = 0, []
        try:
            if arguments == ["--diagnose"]:
                found, seen = diagnose(given, state)
            else:
                found, seen = look(given, state, shown=bool(arguments))
            if arguments != ["--json"]:
                report(given, state, reason(found))
        except (OSError, ValueError) as error:
            print(f"gpu-health: {given['head']} could not be told: {error}", file=sys.stderr)
            status = 1
        save(STATE, state)
        publish(given, state, found)
    if arguments and not status:
        answer = {"version": VERSION, "checks": list(seen.checks()), "recorded": len(given["gpus"])}
        answer["gpus"] = [gpu.text("product_name") for gpu in seen.gpus]
        answer["findings"] = [{"check": one.check, "text": one.text, "drains": one.drains} for one in found]
        print(json.dumps({**answer, "topology": seen.topology}))
    return status


if __name__ == "__main__":
    ended = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(ended)  # a check that hangs in the kernel would hold a thread, and this program, for ever
