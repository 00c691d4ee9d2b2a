"""Run nvidia-smi and parse its output."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass

import gpu_node

# A PCI address without its function, such as 0000:3b:00.
PCI_ADDRESS = r"[0-9a-f]{1,8}:[0-9a-f]{2}:[0-9a-f]{2}"
# Columns of `nvidia-smi topo -m` with this name count. Older drivers call a NIC by its device, such as mlx5_0.
_COLUMN = r"(GPU|NIC)\d+"


@dataclass(frozen=True)
class MigInstance:
    """A MIG device: its profile, and the driver's numbers of its GPU instance and compute instance."""

    profile: str
    gpu_instance: int
    compute_instance: int


class Gpu:
    """One GPU of `nvidia-smi -q -x`. `index` is nvidia-smi's number, `profiles` has the profile of each MIG device."""

    def __init__(self, element: ET.Element, index: int = 0, profiles: dict[int, str] | None = None) -> None:
        self.element, self.index, self._profiles = element, index, profiles or {}
        self.bus, self.uuid = pci_address(element.get("id", "")), self.text("uuid")

    def text(self, path: str, element: ET.Element | None = None) -> str:
        """Return a value, empty where the GPU has none."""
        value = ((self.element if element is None else element).findtext(path) or "").strip()
        return "" if value in ("N/A", "[N/A]", "None") else value

    def number(self, *paths: str) -> float | None:
        """Return the first of these values that begins with a number, without its unit."""
        for path in paths:
            if found := re.match(r"-?\d+(\.\d+)?", self.text(path)):
                return float(found.group())
        return None

    def integer(self, *paths: str) -> int | None:
        """Return the first of these values that begins with a number, rounded."""
        value = self.number(*paths)
        return None if value is None else round(value)

    def power_limit(self, *kinds: str) -> float | None:
        """Return the first limit (W) that exists of requested, current, enforced, default, min, max.

        Drivers before 535 have the limits in another place and call the current one power_limit.
        """
        places = ("gpu_power_readings", "power_readings")
        names = [f"{kind}_power_limit" for kind in kinds] + ["power_limit"] * ("current" in kinds)
        return self.number(*(f"{place}/{name}" for place in places for name in names))

    def supported_clocks(self) -> dict[int, list[int]]:
        """Return the supported graphics clocks of each supported memory clock, in MHz."""
        found = {}
        for memory in self.element.iterfind("supported_clocks/supported_mem_clock"):
            graphics = memory.iterfind("supported_graphics_clock")
            clocks = [int(clock.text.split()[0]) for clock in graphics if clock.text]
            found[int(self.text("value", memory).split()[0])] = clocks
        return found

    def is_slowed_down(self, reason: str) -> bool:
        """Return whether the clocks are reduced for a reason; drivers before 535 have it in another place."""
        places = (
            f"clocks_event_reasons/clocks_event_reason_{reason}",
            f"clocks_throttle_reasons/clocks_throttle_reason_{reason}",
        )
        return any(self.text(place) == "Active" for place in places)

    def tags_with(self, value: re.Pattern[str]) -> list[str]:
        """Return the tags whose value matches, without those of processes: users choose their names."""
        parts = (part for part in self.element if "process" not in part.tag)
        return [one.tag for part in parts for one in part.iter() if value.search(one.text or "")]

    @property
    def is_mig_enabled(self) -> bool:
        """Whether MIG mode is on."""
        return self.text("mig_mode/current_mig") == "Enabled"

    @property
    def mig_instances(self) -> list[MigInstance]:
        """The MIG devices, in nvidia-smi's order."""
        return [
            MigInstance(self._profiles.get(int(self.text("index", device)), "?"),
                        int(self.text("gpu_instance_id", device)), int(self.text("compute_instance_id", device)))
            for device in self.element.iterfind("mig_devices/mig_device")
        ]  # fmt: skip


def read_gpus() -> list[Gpu]:
    """Return the node's GPUs with their MIG devices. Raises CommandError."""
    return parse_gpus(gpu_node.run("nvidia-smi", "-q", "-x"), gpu_node.run("nvidia-smi", "-L"))


def parse_gpus(document: str, listing: str = "") -> list[Gpu]:
    """Return the GPUs of `nvidia-smi -q -x`, with the numbers and MIG profiles of `nvidia-smi -L`. Raises CommandError.

    The order of the document is the number, unless a GPU is lost: then the others keep their numbers.
    """
    # Names of processes are unescaped. Characters that are not allowed in XML would make the document unreadable.
    clean = re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "?", document)
    try:
        elements = list(ET.fromstring(clean).iter("gpu"))  # noqa: S314 - written by the driver's own program
    except ET.ParseError as error:
        raise gpu_node.CommandError(("nvidia-smi", "-q", "-x"), [f"invalid XML: {error}"]) from None
    numbers, profiles = gpu_numbers(listing), mig_profiles(listing)
    indices = [numbers.get((one.findtext("uuid") or "").strip(), place) for place, one in enumerate(elements)]
    return [Gpu(element, index, profiles.get(index)) for index, element in zip(indices, elements)]


def gpu_numbers(listing: str) -> dict[str, int]:
    """Return the number of each GPU in `nvidia-smi -L`, by UUID."""
    return {uuid: int(number) for number, uuid in re.findall(r"^GPU (\d+): .*\(UUID: (\S+)\)", listing, re.MULTILINE)}


def mig_profiles(listing: str) -> dict[int, dict[int, str]]:
    """Return the profiles in `nvidia-smi -L`, by the number of the GPU and of the MIG device."""
    found: dict[int, dict[int, str]] = {}
    gpu = -1
    for line in listing.splitlines():
        if head := re.match(r"GPU (\d+):", line):
            gpu = int(head.group(1))
        elif device := re.match(r"\s+MIG (\S+)\s+Device\s+(\d+):", line):
            found.setdefault(gpu, {})[int(device.group(2))] = device.group(1)
    return found


def mig_placements(profiles: str, placements: str) -> dict[str, list[range]]:
    """Return the memory slices that an instance of each profile can occupy, from `mig -lgip` and `mig -lgipp`."""
    rows = re.findall(r"Profile ID\s+(\d+)\s+Placements?\s*:\s*\{([\d,\s]*)\}:(\d+)", placements)
    slices = {
        int(number): [range(int(start), int(start) + int(size)) for start in re.findall(r"\d+", starts)]
        for number, starts, size in rows
    }
    names = re.findall(r"^\|\s+\d+\s+MIG (\S+)\s+(\d+)\s+\d+/\d+", profiles, re.MULTILINE)
    return {name: slices.get(int(number), []) for name, number in names}


def topology(matrix: str) -> dict[str, dict[str, str]]:
    """Return `nvidia-smi topo -m`: what connects each GPU or NIC with the others, such as NV12 or PHB."""
    rows = [line.split("\t") for line in re.sub(r"\x1b\[[0-9;]*m", "", matrix).splitlines()]
    titles = next(([cell.strip() for cell in row] for row in rows if "GPU0" in (cell.strip() for cell in row[1:])), [])
    found = {}
    for row in rows:
        name = row[0].strip()
        if name in titles[1:] and re.fullmatch(_COLUMN, name):
            cells = dict(zip(titles[1:], (cell.strip() for cell in row[1:])))
            found[name] = {other: link for other, link in cells.items() if re.fullmatch(_COLUMN, other) and link != "X"}
    return found


def active_nvlinks(status: str) -> dict[str, int]:
    """Return how many NVLinks of each GPU are up in `nvidia-smi nvlink -s`, by UUID.

    Where a GPU is lost, its GPU numbers differ from those of `-L` and `topo -m` (seen with nvidia-smi 550).
    """
    found = re.findall(r"^GPU \d+: .*\(UUID: (\S+)\).*\n((?:[ \t]+.*\n?)*)", status, re.MULTILINE)
    return {uuid: len(re.findall(r"Link \d+: [\d.]+ GB/s", links)) for uuid, links in found}


def nvlinks_of(connection: str) -> int:
    """Return the number of NVLinks of a connection in the topology, such as 12 for NV12."""
    return int(connection[2:]) if re.fullmatch(r"NV\d+", connection) else 0


def pci_address(text: str) -> str:
    """Return any of NVIDIA's forms of a PCI address in that of the kernel's log, such as 0000:3b:00."""
    found = re.match(rf"(?:PCI:)?({PCI_ADDRESS})", text, re.IGNORECASE)
    domain, _, rest = found.group(1).lower().partition(":") if found else ("", "", "")
    return f"{domain.lstrip('0').zfill(4)}:{rest}" if found else text
