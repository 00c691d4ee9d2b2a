"""The GPUs: by NVML where the driver runs, otherwise by PCI."""

import ctypes
import glob
import os
import re
from typing import Any, Dict, List, Optional, Tuple

from clusterctl.nodes.probe.common import MAX_GPUS, Facts, read
from clusterctl.nodes.probe.machine import in_container, ranges


class Pci(ctypes.Structure):
    """nvmlPciInfo_t of nvml.h."""

    _fields_ = [
        ("bus_id_legacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("pci_device_id", ctypes.c_uint),
        ("pci_subsystem_id", ctypes.c_uint),
        ("bus_id", ctypes.c_char * 32),
    ]


class Memory(ctypes.Structure):
    """nvmlMemory_t of nvml.h, in bytes."""

    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Nvml:
    """NVIDIA's management library; a call returns None if the library lacks the function or the GPU the feature."""

    MAX_LINKS = 18
    SWITCH = 2  # NVML_NVLINK_DEVICE_TYPE_SWITCH

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libnvidia-ml.so.1")  # OSError if no driver is installed
        code = self.library.nvmlInit_v2()
        if code != 0:
            self.library.nvmlErrorString.restype = ctypes.c_char_p
            raise OSError((self.library.nvmlErrorString(code) or b"").decode("utf-8", "replace") or "NVML: %d" % code)

    def call(self, name: str, *arguments: Any) -> bool:
        """Return whether the function exists and succeeded."""
        function = getattr(self.library, name, None)
        return function is not None and function(*arguments) == 0

    def text(self, name: str, *arguments: Any) -> Optional[str]:
        buffer = ctypes.create_string_buffer(256)
        return buffer.value.decode("utf-8", "replace") if self.call(name, *(*arguments, buffer, 256)) else None

    def value(self, name: str, *arguments: Any) -> Optional[int]:
        found = ctypes.c_uint()
        return found.value if self.call(name, *(*arguments, ctypes.byref(found))) else None

    def gpus(self) -> List[Facts]:
        found: List[Facts] = []
        switched: Dict[int, int] = {}
        for index in range(self.value("nvmlDeviceGetCount_v2") or 0):
            handle = ctypes.c_void_p()
            if not self.call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(handle)):
                continue
            minor = self.value("nvmlDeviceGetMinorNumber", handle)
            memory, pci = Memory(), Pci()
            self.call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
            self.call("nvmlDeviceGetPciInfo_v3", handle, ctypes.byref(pci))
            peers, switched[index] = self.links(handle)
            gpu = {
                "index": index,
                "model": self.text("nvmlDeviceGetName", handle) or "unknown",
                "memory_mb": memory.total >> 20,
                "uuid": self.text("nvmlDeviceGetUUID", handle) or "",
                "pci": pci.bus_id.decode("ascii", "replace"),
                "device": "/dev/nvidia%d" % (index if minor is None else minor),
                "cpus": self.near(handle),
                "links": peers,
                "pcie_generation": self.value("nvmlDeviceGetMaxPcieLinkGeneration", handle) or None,
                "pcie_width": self.value("nvmlDeviceGetMaxPcieLinkWidth", handle) or None,
                "pcie_lanes": self.value("nvmlDeviceGetCurrPcieLinkWidth", handle) or None,
                "mig": self.instances(handle),
            }
            found.append(gpu)
        self.name_links(found, switched)
        return found

    def instances(self, handle: ctypes.c_void_p) -> Optional[List[str]]:
        """Return the profiles of a GPU's MIG instances, None if MIG is off."""
        mode, pending = ctypes.c_uint(), ctypes.c_uint()
        if not self.call("nvmlDeviceGetMigMode", handle, ctypes.byref(mode), ctypes.byref(pending)) or not mode.value:
            return None
        found = []
        for index in range(self.value("nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
            instance = ctypes.c_void_p()
            if self.call("nvmlDeviceGetMigDeviceHandleByIndex", handle, index, ctypes.byref(instance)):
                found.append((self.text("nvmlDeviceGetName", instance) or "").rpartition(" ")[2])
        return sorted(found)

    def near(self, handle: ctypes.c_void_p) -> Optional[str]:
        """Return the CPUs near a GPU, None if NVML does not know them."""
        bits = 8 * ctypes.sizeof(ctypes.c_ulong)
        words = (ctypes.c_ulong * (max(os.cpu_count() or 1, 1024) // bits + 1))()
        if not self.call("nvmlDeviceGetCpuAffinity", handle, len(words), words):
            return None
        return ranges([n for n in range(len(words) * bits) if words[n // bits] >> n % bits & 1])

    def links(self, handle: ctypes.c_void_p) -> Tuple[Dict[str, int], int]:
        """Return how many NVLinks lead to each PCI address, and how many to a switch."""
        peers: Dict[str, int] = {}
        switched = 0
        for link in range(self.MAX_LINKS):
            if self.value("nvmlDeviceGetNvLinkState", handle, link) != 1:
                continue
            remote = Pci()
            if self.value("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link) == self.SWITCH:
                switched += 1
            elif self.call("nvmlDeviceGetNvLinkRemotePciInfo_v2", handle, link, ctypes.byref(remote)):
                address = remote.bus_id.decode("ascii", "replace").lower()
                peers[address] = peers.get(address, 0) + 1
        return peers, switched

    @staticmethod
    def name_links(gpus: List[Facts], switched: Dict[int, int]) -> None:
        """Replace PCI addresses by GPU indices, as `nvidia-smi topo -m` does; a switch connects all its GPUs."""
        index_of = {gpu["pci"].lower(): gpu["index"] for gpu in gpus}
        for gpu in gpus:
            joined = {index_of[pci]: count for pci, count in gpu["links"].items() if pci in index_of}
            for other, count in switched.items():
                width = min(count, switched[gpu["index"]])
                if other != gpu["index"] and width:
                    joined[other] = joined.get(other, 0) + width
            gpu["links"] = {str(other): "NV%d" % joined[other] for other in sorted(joined)}


def gpus() -> Tuple[List[Facts], Optional[str], Optional[str]]:
    """Return the GPUs that this node can use, the driver's version, and why NVML failed.

    Without NVML, GPUs that have a device file are described from the kernel driver's information.
    """
    try:
        nvml = Nvml()
    except OSError as error:
        return [bare_gpu(int(path[len("/dev/nvidia") :])) for path in gpu_devices()], driver_version(), str(error)
    found, version = nvml.gpus(), nvml.text("nvmlSystemGetDriverVersion")
    nvml.call("nvmlShutdown")
    return found, version, None


def gpu_devices() -> List[str]:
    found = [path for path in glob.glob("/dev/nvidia*") if re.match(r"/dev/nvidia\d+$", path)]
    return sorted(found, key=lambda path: int(path[len("/dev/nvidia") :]))


def bare_gpu(index: int) -> Facts:
    """Describe a GPU from the kernel driver's information, if there is any."""
    facts = {}
    for path in glob.glob("/proc/driver/nvidia/gpus/*/information"):
        lines = dict(line.split(":", 1) for line in read(path).splitlines() if ":" in line)
        if lines.get("Device Minor", "").strip() == str(index):
            facts = {key: value.strip() for key, value in lines.items()}
    return {
        "index": index,
        "model": facts.get("Model", "unknown"),
        "memory_mb": 0,
        "uuid": facts.get("GPU UUID", "") if "?" not in facts.get("GPU UUID", "") else "",
        "pci": facts.get("Bus Location", ""),
        "device": "/dev/nvidia%d" % index,
        "cpus": None,
        "links": {},
        "pcie_generation": None,
        "pcie_width": None,
        "pcie_lanes": None,
        "mig": None,
    }


def driver_version() -> Optional[str]:
    found = re.search(r"Kernel Module.*?\s(\d+\.\d[\d.]*)", read("/proc/driver/nvidia/version"))
    return found.group(1) if found else None


def pci_gpus(root: str = "") -> List[str]:
    """Return the device ids of NVIDIA's display and 3D controllers on the bus, with or without a driver.

    Return none in a container, which sees its host's.
    """
    if in_container(root):
        return []
    devices = sorted(glob.glob(root + "/sys/bus/pci/devices/*"))
    found = [d for d in devices if read(d + "/vendor") == "0x10de" and read(d + "/class")[:6] in ("0x0300", "0x0302")]
    return [read(d + "/device")[2:] for d in found][:MAX_GPUS]
