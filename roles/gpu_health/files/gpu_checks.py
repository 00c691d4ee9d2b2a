"""The checks of gpu-health. Each compares one aspect of the node with its hardware record and yields findings."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID

import gpu_errors
import gpu_node
import nvidia_smi
import site_checks
from gpu_node import CommandError, read_text
from nvidia_smi import Gpu, nvlinks_of, pci_address

JOB_CLEANUP = Path("/usr/local/sbin/job-cleanup")  # role slurm_worker
PERSISTENCED_SOCKET = Path("/run/nvidia-persistenced/socket")
TIMEOUTS, DEFAULT_TIMEOUT = {"driver": 30}, 10  # in seconds; Slurm gives its HealthCheckProgram 60 s for all checks
REPEAT_SECONDS = 2  # a transient finding has to be there twice, with this time between
SLOW_SECONDS = 15  # after checks that took longer there is no time to repeat them; a transient finding is advice then

# Text of a driver that has lost a GPU, in place of a value (nvmlReturn_t 15 and 16), or could not read it (999).
LOST = re.compile(r"GPU is lost|GPU requires reset")
UNREADABLE = re.compile(r"Unknown Error|ERR!")
FAN = "fan_speed"

# Below fabric/health of `nvidia-smi -q -x`: the value, what is healthy besides N/A, and the text of a finding.
FABRIC_HEALTH = (
    ("summary", ("Healthy",), "health: {}"),
    ("bandwidth", ("Full",), "bandwidth: {}"),
    ("route_recovery_in_progress", ("False",), "route is being recovered"),
    ("route_unhealthy", ("False",), "route is unhealthy"),
    ("access_timeout_recovery", ("False",), "recovers from an access timeout"),
    ("incorrect_configuration", ("None",), "configuration: {}"),
)

Data = dict  # a JSON object


@dataclass(frozen=True)
class Finding:
    """The result of a check; advice does not drain. A transient one drains only if a second check finds it, too."""

    check: str
    text: str
    drains: bool = True
    transient: bool = False


def is_gpu_config_running(proc: Path = Path("/proc")) -> bool:
    """Return whether gpu-config runs, from its file or by the Ansible module, which starts it from standard input."""
    commands = [argv[1:3] for _, argv in gpu_node.root_processes(proc) if "--again" not in argv]
    return any(words == ["-", "--given"] or words[:1] == [str(gpu_node.GPU_CONFIG)] for words in commands)


class Checks:
    """One run of all checks. `gpus` is what the driver reports, filled by the check `driver`.

    `given` is the configuration with the hardware record, `state` what is kept between runs. `with_topology` reads the
    topology also where no NVLinks are recorded.
    """

    def __init__(self, given: Data, state: Data, with_topology: bool = False) -> None:
        self.given, self.state, self.with_topology = given, state, with_topology
        self.gpus: list[Gpu] = []
        self.driver_responds = False
        self.topology: dict[str, dict[str, str]] = {}
        self.records = {pci_address(gpu["pci"]): gpu for gpu in given["gpus"] if gpu["pci"]}

    def timeout(self, check: str) -> float:
        """Return how many seconds a check may take."""
        return float(self.given["timeouts"].get(check, TIMEOUTS.get(check, DEFAULT_TIMEOUT)))

    def name(self, place: str) -> str:
        """Return the name of a GPU by its PCI address; a switch has its own."""
        if gpu_errors.is_switch(place):
            return place
        return f"GPU {self.records[place]['index']}" if place in self.records else f"GPU at {place}"

    def recorded_gpus(self) -> Iterator[tuple[Gpu, Data]]:
        """Yield each GPU that the driver reports with its record."""
        return ((gpu, self.records[gpu.bus]) for gpu in self.gpus if gpu.bus in self.records)

    def driver(self) -> Iterator[Finding]:
        """The driver responds, if GPUs are recorded."""
        if not self.given["gpus"]:
            return
        status = read_text(Path(f"/proc/{self.state['stuck']}/status"))
        if re.search(r"^Name:\s+nvidia-smi$", status, re.MULTILINE) and re.search(r"^Uid:\s+0\s", status, re.MULTILINE):
            yield Finding("driver", "nvidia-smi hangs since an earlier check")
            return
        try:
            self.gpus = nvidia_smi.parse_gpus(gpu_node.run("nvidia-smi", "-q", "-x", seconds=self.timeout("driver")))
            self.driver_responds, self.state["stuck"] = True, 0
        except CommandError as error:
            self.state["stuck"] = error.pid
            yield Finding("driver", error.brief)

    def count(self) -> Iterator[Finding]:
        """Every recorded GPU is there."""
        if not self.driver_responds:
            return
        places, recorded = {gpu.bus for gpu in self.gpus}, self.given["gpus"]
        missing = {place: gpu["uuid"] for place, gpu in self.records.items() if place not in places}
        for place, uuid in missing.items():
            yield Finding("count", f"{self.name(place)} is missing ({uuid or place})")
        if not missing and len(self.gpus) < len(recorded):
            yield Finding("count", f"{len(self.gpus)} GPUs of {len(recorded)} that are recorded")
        if len(self.gpus) > len(recorded):
            yield Finding("count", f"{len(self.gpus)} GPUs, {len(recorded)} recorded", drains=False)
        for gpu in self.gpus:
            unreadable = gpu.tags_with(UNREADABLE)
            if gpu.tags_with(LOST) or {*unreadable} - {FAN}:
                # A value that could not be read once may be readable a moment later.
                is_transient = not gpu.tags_with(LOST)
                yield Finding("count", f"{self.name(gpu.bus)}: the driver has lost it", transient=is_transient)
            elif unreadable:
                yield Finding("count", f"{self.name(gpu.bus)}: its fan cannot be read", drains=False)

    def ecc(self) -> Iterator[Finding]:
        """No uncorrectable memory error since the last reset, and no pending repair of memory."""
        kinds = ("sram_uncorrectable", "sram_uncorrectable_parity", "sram_uncorrectable_secded", "dram_uncorrectable")
        volatile = [f"ecc_errors/volatile/{kind}" for kind in (*kinds, "double_bit/total")]
        pending = (
            "remapped_rows/remapped_row_pending",
            "retired_pages/pending_retirement",
            "retired_pages/pending_blacklist",
        )
        repairs = ("ecc_errors/channel_repair_pending", "ecc_errors/tpc_repair_pending")
        for gpu in self.gpus:
            errors = sum(gpu.number(place) or 0 for place in volatile)
            for is_so, text in (
                (errors > self.given["uncorrected_errors"], f"{errors:.0f} uncorrected ECC errors"),
                (any(gpu.text(place) == "Yes" for place in pending), "memory waits to be replaced by a reset"),
                (any(gpu.text(place) == "Yes" for place in repairs), "a part waits to be repaired by a reset"),
                (gpu.text("remapped_rows/remapped_row_failure") == "Yes", "no spare memory is left"),
                (gpu.text("ecc_errors/unrepairable_memory") == "Yes", "memory that cannot be repaired"),
                (gpu.text("ecc_errors/aggregate/sram_threshold_exceeded") == "Yes", "too many SRAM errors in its life"),
            ):
                if is_so:
                    yield Finding("ecc", f"{self.name(gpu.bus)}: {text}")

    def xid(self) -> Iterator[Finding]:
        """No hardware error was logged since the last diagnosis that passed."""
        kept = {
            kind: {place: codes for place, codes in self.state.get(kind, {}).items() if self.is_known(place)}
            for kind in ("xids", "unexplained")
        }
        failure = None
        try:
            for text, when in gpu_errors.read_lines(self.state, self.timeout("xid")):
                place, code = gpu_errors.parse_line(text, self.given["xids"]) or ("", "")
                if self.is_known(place):
                    is_new = code.isdecimal() and int(code) in gpu_errors.NEW_XIDS
                    is_new = is_new and int(code) not in self.given["xids"]
                    kept["unexplained" if is_new else "xids"].setdefault(place, {})[code] = when
        except CommandError as error:  # of the journal: lines of the kernel's own log were read before
            failure = error
        self.state.update(kept)
        for kind, places in kept.items():
            for place, codes in places.items():
                for code in sorted(codes, key=lambda code: (len(code), code)):
                    text = f"{self.name(place)}: {gpu_errors.describe(place, code)}"
                    yield Finding("xid", text, drains=kind == "xids")
        if failure:
            yield Finding("xid", f"check failed: {failure.brief}", drains=False)

    def is_known(self, place: str) -> bool:
        """Return whether a place is a recorded GPU or a switch: lines about others are not the driver's own."""
        return place in self.records or gpu_errors.is_switch(place)

    def pcie(self) -> Iterator[Finding]:
        """As many lanes as recorded are in use, under load at the generation that card and slot support.

        An idle link lowers its generation. A card may have more lanes than its slot.
        """
        for gpu, record in self.recorded_gpus():
            link = "pci/pci_gpu_link_info"
            width = gpu.number(f"{link}/link_widths/current_link_width")
            if width and record["lanes"] and width < record["lanes"]:
                yield Finding("pcie", f"{self.name(gpu.bus)}: {width:.0f} PCIe lanes, {record['lanes']} recorded")
            is_busy = (gpu.number("utilization/gpu_util") or 0) >= self.given["busy_percent"]
            now, most = gpu.number(f"{link}/pcie_gen/current_link_gen"), gpu.number(f"{link}/pcie_gen/max_link_gen")
            if is_busy and now and most and now < most:
                text = f"{self.name(gpu.bus)}: PCIe generation {now:.0f} under load, {most:.0f} is possible"
                yield Finding("pcie", text, transient=True)

    def nvlink(self) -> Iterator[Finding]:
        """Every GPU and every pair has its recorded NVLinks, except GPUs in MIG mode, which use none."""
        if not self.gpus or not (self.with_topology or any(gpu["links"] for gpu in self.given["gpus"])):
            return
        seconds = self.timeout("nvlink")
        self.topology = nvidia_smi.topology(gpu_node.run("nvidia-smi", "topo", "-m", seconds=seconds))
        if not any(gpu["links"] for gpu in self.given["gpus"]):
            return
        active = nvidia_smi.active_nvlinks(gpu_node.run("nvidia-smi", "nvlink", "-s", seconds=seconds))
        column = {gpu.bus: f"GPU{number}" for gpu, number in self.numbers("nvlink").items()}
        place_of = {str(gpu["index"]): place for place, gpu in self.records.items()}
        divided = {gpu.bus for gpu in self.gpus if gpu.is_mig_enabled}
        for gpu, record in self.recorded_gpus():
            if gpu.bus in divided or gpu.bus not in column:
                continue
            # Links to a switch serve all pairs, so a GPU has at least as many as its best pair.
            most = max((nvlinks_of(link) for link in record["links"].values()), default=0)
            if (count := active.get(gpu.uuid, 0)) < most:
                yield Finding("nvlink", f"{self.name(gpu.bus)}: {count} NVLinks, {most} recorded")
            for other, link in record["links"].items():
                peer = place_of.get(other, "")
                if peer not in column or peer in divided or record["index"] > int(other):
                    continue
                now = self.topology.get(column[gpu.bus], {}).get(column[peer], "none")
                if nvlinks_of(now) < nvlinks_of(link):
                    yield Finding("nvlink", f"{self.name(gpu.bus)} to {self.name(peer)}: {now}, {link} recorded")

    def numbers(self, check: str) -> dict[Gpu, int]:
        """Return nvidia-smi's number of each GPU; if one is lost, the others keep their numbers."""
        if self.records.keys() <= {gpu.bus for gpu in self.gpus}:
            return {gpu: number for number, gpu in enumerate(self.gpus)}
        numbers = nvidia_smi.gpu_numbers(gpu_node.run("nvidia-smi", "-L", seconds=self.timeout(check)))
        return {gpu: numbers[gpu.uuid] for gpu in self.gpus if gpu.uuid in numbers}

    def mig(self) -> Iterator[Finding]:
        """Every GPU has the MIG layout of gpu-config's settings, unless gpu-config is at work."""
        settings = json.loads(read_text(gpu_node.GPU_SETTINGS) or "{}")
        of_all, of_gpu = settings.get("mig", ""), settings.get("mig_gpus", {})
        if not (of_all or of_gpu) or len(self.gpus) != len(self.given["gpus"]) or is_gpu_config_running():
            return
        profiles = nvidia_smi.mig_profiles(gpu_node.run("nvidia-smi", "-L", seconds=self.timeout("mig")))
        for number, gpu in enumerate(self.gpus):
            expected = str(of_gpu.get(str(number), of_all)).replace(" ", "")
            layout = ",".join(profiles.get(number, {}).values()) or ("nothing" if gpu.is_mig_enabled else "none")
            if expected and sorted(expected.split(",")) != sorted(layout.split(",")):
                yield Finding("mig", f"{self.name(gpu.bus)}: MIG layout {layout}, expected {expected}", transient=True)

    def temperature(self) -> Iterator[Finding]:
        """No GPU is at its own threshold or slows down because of heat."""
        margin = self.given["temperature_margin"]
        for gpu in self.gpus:
            texts = []
            for what, now, limit in (
                ("", "gpu_temp", "gpu_temp_slow_threshold"),
                ("memory ", "memory_temp", "gpu_temp_max_mem_threshold"),
            ):
                at, most = gpu.number(f"temperature/{now}"), gpu.number(f"temperature/{limit}")
                if at is not None and most and at >= most - margin:
                    texts.append(f"{what}{at:.0f} C, it slows down at {most:.0f} C")
            # Newer drivers report the distance to the threshold, and the distance at which the GPU slows down.
            left = gpu.number("temperature/gpu_temp_tlimit")
            least = gpu.number("temperature/gpu_temp_slow_tlimit_threshold")
            if left is not None and least is not None and left <= least + margin:
                texts.append(f"{left:.0f} C from its limit, it slows down at {least:.0f} C")
            if gpu.is_slowed_down("hw_thermal_slowdown"):
                texts.append("slows down for heat")
            for text in texts:
                yield Finding("temperature", f"{self.name(gpu.bus)}: {text}", transient=True)

    def power(self) -> Iterator[Finding]:
        """No power supply slows down a GPU."""
        for gpu in self.gpus:
            if gpu.is_slowed_down("hw_power_brake_slowdown"):
                text = f"{self.name(gpu.bus)}: power brake: the node's supply asks it to slow down"
                yield Finding("power", text, transient=True)

    def fabric(self) -> Iterator[Finding]:
        """Fabric Manager runs where it is enabled, and every GPU on a fabric is set up and healthy."""
        unit = "nvidia-fabricmanager.service"
        argv = ("systemctl", "show", "--property=ActiveState,UnitFileState", unit)
        lines = gpu_node.run(*argv, seconds=self.timeout("fabric")).splitlines()
        states = dict(line.split("=", 1) for line in lines if "=" in line)
        if states.get("UnitFileState") == "enabled" and states.get("ActiveState") != "active":
            yield Finding("fabric", f"Fabric Manager is {states.get('ActiveState')}", transient=True)
        for gpu in self.gpus:
            name, state, status = self.name(gpu.bus), gpu.text("fabric/state"), gpu.text("fabric/status")
            if state and (state != "Completed" or status not in ("", "Success")):
                yield Finding("fabric", f"{name}: fabric {state.lower()}, {status or 'no status'}", transient=True)
            for place, healthy, text in FABRIC_HEALTH:
                if (value := gpu.text(f"fabric/health/{place}")) not in ("", *healthy):
                    yield Finding("fabric", f"{name}: fabric {text.format(value.lower())}", transient=True)
            # By then a GPU of a rack has been assigned to an NVLink domain; other GPUs have none.
            is_alone = gpu.text("fabric/clusterUuid") == str(UUID(int=0)) and state == "Completed"
            if is_alone and re.search(r"\bGB[23]00\b", gpu.text("product_name")):
                yield Finding("fabric", f"{name}: in no NVLink domain of its rack", drains=False)

    def infiniband(self, sys: Path = Path("/sys")) -> Iterator[Finding]:
        """Every InfiniBand interface that had a link when the node was recorded has one."""
        for interface in self.given["infiniband"]:
            device = sys / "class/net" / interface
            port = int(read_text(device / "dev_port") or 0) + 1
            states = [read_text(path) for path in device.glob(f"device/infiniband/*/ports/{port}/state")]
            if not any("ACTIVE" in state for state in states):
                state = states[0].partition(":")[2].strip().lower() if states else "missing"
                yield Finding("infiniband", f"{interface} is {state}")

    def reset(self) -> Iterator[Finding]:
        """The driver requests no reset or reboot."""
        for gpu in self.gpus:
            action = gpu.text("gpu_recovery_action")
            if action or gpu.text("gpu_reset_status/reset_required") == "Yes":
                # An action for a domain of several nodes does not affect this GPU.
                drains = not re.search(r"\bIMEX\b", action)
                yield Finding("reset", f"{self.name(gpu.bus)}: the driver asks for: {action or 'Reset'}", drains)

    def leftovers(self) -> Iterator[Finding]:
        """Nothing is left of ended jobs. Slurm's check retries to remove it, one by a person changes nothing."""
        if JOB_CLEANUP.exists():
            how = "--list" if self.with_topology else "--retry"
            try:
                output = gpu_node.run(str(JOB_CLEANUP), how, seconds=self.timeout("leftovers"))
                self.state["leftovers"] = output.splitlines()
            except CommandError as error:  # what an earlier check found may still be there
                yield Finding("leftovers", f"check failed: {error.brief}", drains=False)
            yield from (Finding("leftovers", line) for line in self.state.get("leftovers", []))

    def site(self) -> Iterator[Finding]:
        """The site's own commands and programs succeed."""
        for text, drains in site_checks.problems(self.given.get("commands", {}), self.state, self.timeout("site") - 1):
            yield Finding("site", text, drains)

    def advice(self, sys: Path = Path("/sys")) -> Iterator[Finding]:
        """What limits jobs, and was so when the node was recorded."""
        return (Finding("advice", text, drains=False) for text in self._advice(sys))

    def _advice(self, sys: Path) -> Iterator[str]:
        gpus, memory, cores = self.given["gpus"], self.given["memory_mb"], self.given["cores"]
        if (count := count_pci_gpus(sys)) > len(gpus):
            yield f"NVIDIA GPUs on the PCI bus: {count}, recorded: {len(gpus)}"
        for gpu in gpus:
            if gpu["lanes"] and gpu.get("width") and gpu["lanes"] < gpu["width"]:
                yield f"GPU {gpu['index']}: recorded with {gpu['lanes']} of its {gpu['width']} PCIe lanes"
        least = max(sum(gpu["memory_mb"] for gpu in gpus), self.given["least_memory_mb"])
        if gpus and memory < least:
            yield f"{memory} MB of memory, {least} MB are sensible with these GPUs"
        if gpus and cores < self.given["cores_per_gpu"] * len(gpus):
            yield f"{cores} cores for {len(gpus)} GPUs, {self.given['cores_per_gpu']} for each are sensible"
        for gpu in self.gpus:
            if PERSISTENCED_SOCKET.exists() and gpu.text("persistence_mode") == "Disabled":
                yield f"{self.name(gpu.bus)}: persistence mode is off, though nvidia-persistenced runs"
            limit, default = gpu.power_limit("current", "enforced"), gpu.power_limit("default")
            if limit and default and limit < default:
                yield f"{self.name(gpu.bus)}: limited to {limit:.0f} W of {default:.0f} W"

    def enabled(self) -> dict[str, Callable[[], Iterator[Finding]]]:
        """Return the checks that are not skipped, by name; the driver's first, as most others use its answer."""
        names = "driver count ecc xid pcie nvlink mig temperature power fabric infiniband reset leftovers site advice"
        return {name: getattr(self, name) for name in names.split() if name not in self.given["skip"]}

    def run(self, *skip: str) -> list[Finding]:
        """Run the checks and return their findings: first the driver's, then all others at once."""
        names = [name for name in self.enabled() if name not in skip]
        first = [name for name in names if name == "driver"]
        return [*self._run_together(first), *self._run_together([name for name in names if name not in first])]

    def _run_together(self, names: list[str]) -> list[Finding]:
        """Run checks in threads. A timeout of the driver's check drains, one of another check is only reported."""
        found: dict[str, list[Finding]] = {}
        threads = [threading.Thread(target=self._run_one, args=(name, found), daemon=True) for name in names]
        for thread in threads:
            thread.start()
        began = time.monotonic()
        for name, thread in zip(names, threads):
            thread.join(max(0.0, began + self.timeout(name) + 1 - time.monotonic()))
            found.setdefault(name, [Finding(name, f"timed out after {self.timeout(name):g} s", name == "driver")])
        return [finding for name in names for finding in found[name]]

    def _run_one(self, name: str, found: dict[str, list[Finding]]) -> None:
        """Store the findings of one check, unless it has timed out."""
        try:
            findings = list(self.enabled()[name]())
        except (CommandError, ValueError, KeyError, TypeError, OSError) as error:
            findings = [Finding(name, f"check failed: {getattr(error, 'brief', error)}", drains=False)]
        found.setdefault(name, findings)


def count_pci_gpus(sys: Path) -> int:
    """Return how many NVIDIA GPUs (class 0x03, display) the PCI bus has, with or without a driver."""
    devices = (sys / "bus/pci/devices").glob("*")
    return sum(
        1 for one in devices if read_text(one / "vendor") == "0x10de" and read_text(one / "class").startswith("0x03")
    )


def check_node(given: Data, state: Data, *skip: str, with_topology: bool = False) -> tuple[list[Finding], Checks]:
    """Run the checks, and again if a finding may be transient. Return the findings and the last run."""
    began = time.monotonic()
    first = Checks(given, state, with_topology)
    found = first.run(*skip)
    if not any(finding.transient for finding in found):
        return found, first
    if time.monotonic() - began > SLOW_SECONDS:
        return [replace(finding, drains=finding.drains and not finding.transient) for finding in found], first
    time.sleep(REPEAT_SECONDS)
    second = Checks(given, state, with_topology)
    again = second.run(*skip)
    lasting = {finding.check for finding in found if finding.transient}
    return [finding for finding in again if not finding.transient or finding.check in lasting], second
