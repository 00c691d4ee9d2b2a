"""Read a node's NVIDIA GPUs and their kernel modules, and find why a module could not be built.

Functions have the root of the file system as an argument, so that tests can use a directory.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from ansible.module_utils import slurm_steps
from ansible.module_utils.node_state.tools import NodeError, run

VENDOR = "0x10de"
# PCI classes: display and 3D controllers; the NVSwitch chips of HGX boards up to Hopper are bridges of class "other".
GPU_CLASSES = ("0x0300", "0x0302")
NVSWITCH_CLASS = "0x0680"
# InfiniBand functions of the NVLink switches of HGX boards since Blackwell are marked in their product data.
SWITCH_MARK = b"SW_MNG"
# In the order in which they can be unloaded.
MODULES = ("gdrdrv", "nvidia_peermem", "nvidia_uvm", "nvidia_drm", "nvidia_modeset", "nvidia")
_VERSION = r"\d+\.\d+(?:\.\d+)?"
ANSWER_LIMIT_S = 60
ASK = """
import ctypes
library, version = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.create_string_buffer(80)
if library.nvmlInit_v2() == 0 and library.nvmlSystemGetDriverVersion(version, 80) == 0:
    print(version.value.decode("ascii", "replace"))
"""
# nvmlPciInfo_t of nvml.h: 16 characters, five numbers, and the address at 36.
ASK_MODES = """
import ctypes
library = ctypes.CDLL("libnvidia-ml.so.1")
count, handle, mode = ctypes.c_uint(), ctypes.c_void_p(), ctypes.c_uint()
pci = ctypes.create_string_buffer(96)
if library.nvmlInit_v2() or library.nvmlDeviceGetCount_v2(ctypes.byref(count)):
    raise SystemExit(1)
for index in range(count.value):
    if library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)):
        continue
    if library.nvmlDeviceGetPciInfo_v3(handle, pci) or library.nvmlDeviceGetPersistenceMode(handle, ctypes.byref(mode)):
        continue
    print(pci.raw[36:68].split(bytes(1))[0].decode("ascii", "replace"), "on" if mode.value else "off")
"""


def text(path):
    """Return the stripped text of a small file, empty if it cannot be read."""
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""


def in_container(root="/"):
    """Return whether the kernel belongs to another system, so that no module can be loaded."""
    return any(Path(root, path).exists() for path in ("run/.containerenv", ".dockerenv", "run/systemd/container"))


def pci(root="/"):
    """Return (device ids of the GPUs by address; "nvswitch", "nvlink5" or "" for their fabric)."""
    gpus, fabric = [], ""
    for device in sorted(Path(root, "sys/bus/pci/devices").glob("*")):
        vendor, kind = text(device / "vendor"), text(device / "class")[:6]
        if vendor == VENDOR and kind in GPU_CLASSES:
            gpus.append(text(device / "device")[2:])
        elif vendor == VENDOR and kind == NVSWITCH_CLASS:
            fabric = "nvswitch"
        elif vendor == "0x15b3" and SWITCH_MARK in product_data(device):
            fabric = fabric or "nvlink5"
    return gpus, fabric


def product_data(device):
    try:
        return (device / "vpd").read_bytes()[:4096]
    except OSError:
        return b""


def loaded(root="/"):
    """Return (version of the loaded driver, whether its modules are open); ("", False) if there is none."""
    told = text(Path(root, "proc/driver/nvidia/version"))
    found = re.search(rf"Kernel Module.*?\s({_VERSION})\s", told + " ")
    return (found.group(1), "Open Kernel Module" in told) if found else ("", False)


def answers():
    """Return the version of the driver that responds to its library; empty if none does."""
    return (asked(ASK) or "").strip()


def asked(program):
    """Return the output of a program that uses the driver; None if it fails or the driver does not respond.

    The program is a separate process. It is left running if it hangs in the kernel, because it cannot be killed.
    """
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen((sys.executable, "-I", "-c", program), text=True, **streams)
    try:
        said = process.communicate(timeout=ANSWER_LIMIT_S)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        return None
    return None if process.returncode else said


def without_persistence():
    """Return the PCI addresses of GPUs without persistence mode; None if the driver does not respond."""
    said = asked(ASK_MODES)
    return None if said is None else re.findall(r"(?m)^(\S+) off$", said)


def in_use(root="/"):
    """Return the driver's modules that are used by a process or another module, not only by each other.

    nvidia_modeset is not checked: its users also use the driver itself, and nvidia_drm's use ends with nvidia_drm.
    """
    found = []
    for module in (module for module in MODULES if module != "nvidia_modeset"):
        place = Path(root, "sys/module", module)
        ours = [path for path in place.glob("holders/*") if path.name in MODULES]
        if int(text(place / "refcnt") or 0) > len(ours):
            found.append(module)
    return found


def peer_memory(kernel, root="/"):
    """Return whether a kernel's ib_core supports memory of other devices, as in MLNX_OFED and DOCA, not in Linux."""
    return "ib_register_peer_memory_client" in text(Path(root, "lib/modules", kernel, "modules.symbols"))


def firmware(root, *names):
    """Return the contents of the firmware's variables with these names (patterns), and of shim's tables beside them."""
    found = []
    for folder in ("efivars", "mok-variables"):
        for name in names:
            for path in sorted(Path(root, "sys/firmware/efi", folder).glob(name)):
                try:
                    found.append(path.read_bytes())
                except OSError:
                    continue
    return found


def secure_boot(root="/"):
    """Return whether firmware and shim enforce signatures, also of kernel modules (`mokutil --sb-state`)."""
    on = any(value[-1:] == b"\1" for value in firmware(root, "SecureBoot-*"))
    return on and not any(value[-1:] == b"\1" for value in firmware(root, "MokSBStateRT*"))


def signing_certificate(root="/"):
    """Return the path of the certificate of dkms's signing key (dkms(8)); on Ubuntu it is shim-signed's."""
    settings = [Path(root, "etc/dkms/framework.conf"), *sorted(Path(root, "etc/dkms/framework.conf.d").glob("*.conf"))]
    named = re.findall(r"(?m)^\s*mok_certificate=[\"']?(/[^\"'\s$]+)", "\n".join(map(text, settings)))
    ubuntu = re.search(r"(?m)^ID=\"?ubuntu", text(Path(root, "etc/os-release")))
    usual = "/var/lib/shim-signed/mok/MOK.der" if ubuntu else "/var/lib/dkms/mok.pub"
    return [usual, *named][-1].lstrip("/")


def key_enrolled(root="/"):
    """Return whether the firmware or shim trusts dkms's signing key."""
    try:
        certificate = Path(root, signing_certificate(root)).read_bytes()
    except OSError:
        return False
    return bool(certificate) and any(certificate in value for value in firmware(root, "MokListRT*", "db-*"))


def holders(units=(), jobs=True, proc="/proc"):
    """Return descriptions of the processes that have a GPU's device file open, except those of these services.

    Without `jobs`, processes of Slurm's jobs are also left out.
    """
    found = {}
    for link in Path(proc).glob("[0-9]*/fd/*"):
        try:
            if re.match(r"/dev/nvidia", os.readlink(link)):  # noqa: PTH115 (Python 3.8)
                pid = link.parts[-3]
                group = text(Path(proc, pid, "cgroup"))
                ends = not jobs and slurm_steps.OF_A_JOB.search(group)
                if not ends and not set(units).intersection(re.split("[/\n]", group)):
                    found[int(pid)] = text(Path(proc, pid, "comm"))
        except OSError:
            continue
    return [f"{name} ({pid})" for pid, name in sorted(found.items())]


def sources(packages):
    """Return dkms's (name, version) of each module in these packages, in order."""
    listing, found = ("dpkg", "-L") if Path("/usr/bin/dpkg").exists() else ("rpm", "-ql"), []
    for line in run(*listing, *packages, check=False)[1].splitlines():
        if re.fullmatch(r"/usr/src/[^/]+/dkms.conf", line):
            told = dict(re.findall(r'(?m)^\s*(PACKAGE_NAME|PACKAGE_VERSION)="?([^"\s]+)', text(line)))
            if len(told) == 2:
                found.append((told["PACKAGE_NAME"], told["PACKAGE_VERSION"]))
    return found


def source(packages):
    """Return dkms's (name, version) of the driver's module in these packages. Raises NodeError if none has it."""
    for found in sources(packages):
        return found
    raise NodeError(f"none of {', '.join(packages)} contains a kernel module for dkms")


def signed_module(kernel):
    """Return the version of the driver's module that a package has installed for a kernel, empty if none has."""
    status, said = run("modinfo", "-k", kernel, "-F", "version", "nvidia", check=False)
    version = re.search(_VERSION, said)
    return version.group(0) if version and not status else ""


def state(name, version, kernel):
    """Return dkms's state of a module for a kernel: "", "added", "built" or "installed"."""
    told = run("dkms", "status", "-m", name, "-v", version, "-k", kernel, check=False)[1]
    for word in ("installed", "built"):
        if re.search(rf"{re.escape(kernel)}.*: {word}", told):
            return word
    return "added" if "added" in run("dkms", "status", "-m", name, "-v", version, check=False)[1] else ""


def complaint(log):
    """Return the error line of a build's log: the compiler's first error, else make's, else the last line.

    Paths are shortened to those below the sources. The file that includes a kernel's header is only in the log.
    """
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    for pattern in (r"(?:fatal )?error: ", r"undefined!|undefined reference|No rule to make", r"\*\*\* "):
        for line in lines:
            if re.search(pattern, line):
                return re.sub(r"^.*?/build/", "", line)[:300]
    return lines[-1][:300] if lines else ""
