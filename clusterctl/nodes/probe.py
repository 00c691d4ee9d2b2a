"""Find a node's hardware and state without changing anything, and print them as JSON. Runs on the node.

This file is sent over SSH to `python3 -`, followed by a call of `main`. It uses only the standard library of Python
3.6. hardware.py and preflight.py check its output.
"""
# Python 3.6 has neither list[str] nor str | None, and its pathlib lacks methods that ruff requires.
# ruff: noqa: PTH110, PTH112, PTH115, PTH119, PTH123, PTH207, PTH208, UP006, UP031, UP035, UP045

import base64
import configparser
import ctypes
import fcntl
import glob
import json
import os
import platform
import pwd
import re
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
import types
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

# The answer is the line with this prefix: a login shell may print other lines.
MARK = "clusterctl-probe:"
NETWORK_SECONDS = 5
MAX_JOBS = 1024  # of a node; shown, not counted
MAX_SOURCES = 16
MAX_OFFERED = 16
# Limits of differences and alerts: a node that was restored from another image differs in everything.
MAX_DRIFT = 500
MAX_ALERTS = 200
MAX_GPUS = 1024
# Packages, besides Slurm's, whose versions preflight checks for known vulnerabilities (advisories.py).
WATCHED = ("munge", "nvidia-container-toolkit", "nvidia-container-toolkit-base")

Facts = Dict[str, Any]


def read(path: str, default: str = "") -> str:
    """Return the stripped text of a small file, `default` if it cannot be read."""
    try:
        with open(path, errors="replace") as file:
            return file.read(1 << 20).strip()
    except OSError:
        return default


def number(path: str) -> Optional[int]:
    """Return the whole number in a file, None if it has none."""
    value = read(path)
    return int(value) if re.match(r"-?\d+$", value) else None


def output(*argv: str) -> str:
    """Return a program's output, empty if it is missing, fails or takes more than 10 seconds."""
    try:
        environment = dict(os.environ, LC_ALL="C")
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=10,
            env=environment,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""


def assignments(text: str) -> Dict[str, str]:
    """Return the NAME=value lines of a shell-like file; quotes around a value are dropped."""
    return {k: v.strip("\"'") for k, v in re.findall(r"^(\w+)=(.*)$", text, re.M)}


# --- hardware ---------------------------------------------------------------------------------------------------------


def operating_system() -> Facts:
    release = assignments(read("/etc/os-release"))
    distribution = release.get("ID", "unknown")
    likes = {distribution, *release.get("ID_LIKE", "").split()}
    family = "Debian" if "debian" in likes else "RedHat" if likes & {"rhel", "fedora", "centos"} else distribution
    return {
        "id": distribution,
        # Debian's next release has no number yet.
        "version": release.get("VERSION_ID", "testing" if distribution == "debian" else ""),
        "codename": release.get("VERSION_CODENAME", ""),
        "family": family,
        "architecture": platform.machine(),
        "kernel": platform.release(),
    }


def cpu(base: str = "/sys/devices/system/cpu") -> Facts:
    """Count CPUs as slurmd -C does: all that are online, even if a cpuset allows fewer."""
    online = members(read(base + "/online")) or list(range(os.cpu_count() or 1))
    cores, sockets = set(), set()
    for index in online:
        topology = "%s/cpu%d/topology/" % (base, index)
        socket_id = number(topology + "physical_package_id")
        core = read(topology + "core_cpus_list") or read(topology + "thread_siblings_list") or str(index)
        cores.add((socket_id, core))
        sockets.add(socket_id)
    model = re.search(r"^(?:model name|Processor)\s*:\s*(.+)$", read("/proc/cpuinfo"), re.M)
    return {
        "model": model.group(1) if model else "unknown",
        "sockets": len(sockets),
        "cores_per_socket": max(1, len(cores) // len(sockets)),
        "threads_per_core": max(1, len(online) // len(cores)),
        "cpus": len(online),
    }


def members(listed: str) -> List[int]:
    """Return the numbers in a list such as 0-3,8."""
    pairs = re.findall(r"(\d+)(?:-(\d+))?", listed)
    return [n for low, high in pairs for n in range(int(low), int(high or low) + 1)]


def ranges(numbers: Iterable[int]) -> Optional[str]:
    """Return sorted numbers as such a list, None if there are none."""
    parts: List[List[int]] = []
    for n in numbers:
        if parts and parts[-1][1] == n - 1:
            parts[-1][1] = n
        else:
            parts.append([n, n])
    return ",".join(str(a) if a == b else "%d-%d" % (a, b) for a, b in parts) or None


def memory_mb(key: str) -> int:
    """Return a field of /proc/meminfo in MiB."""
    found = re.search(r"^%s:\s+(\d+) kB" % key, read("/proc/meminfo"), re.M)
    return int(found.group(1)) // 1024 if found else 0


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


def nics() -> List[Facts]:
    addresses = {}
    try:
        for link in json.loads(output("ip", "-json", "address") or "[]"):
            addresses[link.get("ifname")] = [
                "%s/%d" % (a["local"], a["prefixlen"]) for a in link.get("addr_info", []) if a.get("scope") == "global"
            ]
    except (ValueError, KeyError, TypeError, AttributeError):
        addresses = {}
    found = []
    for name in sorted(os.listdir("/sys/class/net")):
        # Interfaces of containers, and their bridges, change with the containers that run.
        if re.match(r"lo$|veth|docker|podman|cni|cali|flannel|virbr|tap|tun|dummy|bonding_masters", name):
            continue
        # Ethernet and InfiniBand; tunnels have other types (ARPHRD_ in linux/if_arp.h) and no MAC address.
        if number("/sys/class/net/%s/type" % name) not in (1, 32):
            continue
        speed = number("/sys/class/net/%s/speed" % name)
        found.append(
            {
                "name": name,
                "mac": read("/sys/class/net/%s/address" % name).lower(),
                "speed_mbps": speed if speed and speed > 0 else None,
                "addresses": addresses.get(name) or first_address(name),
            }
        )
    return found


def first_address(name: str) -> List[str]:
    """Return an interface's first IPv4 address and mask from the kernel, without `ip` (SIOCGIFADDR, SIOCGIFNETMASK)."""
    request = struct.pack("256s", name.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        try:
            local, mask = (fcntl.ioctl(handle.fileno(), code, request)[20:24] for code in (0x8915, 0x891B))
        except OSError:
            return []
    return ["%s/%d" % (socket.inet_ntoa(local), bin(struct.unpack("!I", mask)[0]).count("1"))]


def disks() -> List[Facts]:
    found = []
    for name in sorted(os.listdir("/sys/block")):
        size = (number("/sys/block/%s/size" % name) or 0) * 512
        if not size or re.match(r"loop|ram|zram|sr|fd|dm-|md|nbd|zd", name):
            continue
        rotational = read("/sys/block/%s/queue/rotational" % name) == "1"
        found.append({"name": name, "size_gb": size // 10**9, "rotational": rotational})
    return found


def cgroup() -> Facts:
    """Return the hierarchy in use: v2 if it is mounted at the top, else v1 (hybrid is v1 for a job's limits)."""
    controllers = set()
    for line in read("/proc/self/mounts").splitlines():
        _, target, kind, options = line.split()[:4]
        if kind == "cgroup2" and target == "/sys/fs/cgroup":
            # v2 controls devices by a BPF program, so it lists no controller for them.
            return {"version": 2, "controllers": sorted([*read(target + "/cgroup.controllers").split(), "devices"])}
        if kind == "cgroup" and "rw" in options.split(","):
            controllers.update(options.split(","))
    enabled = re.findall(r"^(\w+)\s+\d+\s+\d+\s+1$", read("/proc/cgroups"), re.M)
    return {"version": 1, "controllers": sorted(controllers & set(enabled))}


def resolver(root: str = "") -> str:
    """Return which program writes /etc/resolv.conf."""
    try:
        target = os.readlink(root + "/etc/resolv.conf")
    except OSError:
        target = ""
    if "systemd/resolve" in target:
        return "resolved"
    return "networkmanager" if os.path.exists(root + "/run/NetworkManager/resolv.conf") else "plain"


def nameservers(root: str = "") -> List[str]:
    """Return the name servers of the network, also behind systemd-resolved's own address."""
    path = "/run/systemd/resolve/resolv.conf" if resolver(root) == "resolved" else "/etc/resolv.conf"
    return re.findall(r"^nameserver\s+([^\s%]+)", read(root + path), re.M)[:8]


def hardware(found: List[Facts], driver: Optional[str]) -> Facts:
    return {
        "os": operating_system(),
        "cpu": cpu(),
        "memory_mb": memory_mb("MemTotal"),
        "gpus": found,
        "driver_version": driver,
        "nics": nics(),
        "disks": disks(),
        "cgroup": cgroup(),
        "nameservers": nameservers(),
        "resolver": resolver(),
        "cloud_init": os.path.exists("/etc/cloud/cloud.cfg"),
        "machine_id": read("/etc/machine-id"),
    }


# --- where packages come from -----------------------------------------------------------------------------------------


def apt_sources(etc: str = "/etc/apt") -> List[Tuple[str, str]]:
    """Return (URI, suite) of every enabled binary source, in both of apt's notations."""
    found = []
    for path in [etc + "/sources.list", *sorted(glob.glob(etc + "/sources.list.d/*.list"))]:
        for line in read(path).splitlines():
            words = re.sub(r"\[[^]]*\]", "", line.split("#")[0]).split()
            if len(words) >= 3 and words[0] == "deb":
                found.append((words[1], words[2]))
    for path in sorted(glob.glob(etc + "/sources.list.d/*.sources")):
        text = re.sub(r"^#.*\n?", "", read(path), flags=re.M)
        for stanza in re.split(r"\n\s*\n", text):
            fields = {k.lower(): v.split() for k, v in re.findall(r"^([\w-]+):((?:.*)(?:\n[ \t].*)*)", stanza, re.M)}
            if "deb" in fields.get("types", []) and fields.get("enabled", ["yes"]) != ["no"]:
                found += [(uri, suite) for uri in fields.get("uris", []) for suite in fields.get("suites", [])]
    return found


def apt_urls() -> List[List[str]]:
    """Return a list of URLs for each source; one of them must answer."""
    architecture = output("dpkg", "--print-architecture").strip()
    found = []
    for uri, suite in apt_sources():
        suite = suite.replace("$(ARCH)", architecture)
        base = uri.rstrip("/") + ("/" + suite.strip("./") if suite.endswith("/") else "/dists/" + suite)
        if uri.startswith(("http://", "https://")):
            found.append([base.rstrip("/") + "/InRelease", base.rstrip("/") + "/Release"])
        elif uri.startswith("mirror+http"):
            found.append([uri[len("mirror+") :]])
    return found


def dnf_urls(etc: str = "/etc") -> List[List[str]]:
    """Return a list of URLs for each enabled repository whose variables are known; one of them must answer."""
    release = operating_system()["version"]
    variables = {"basearch": platform.machine(), "arch": platform.machine()}
    variables.update(releasever=release.split(".")[0], releasever_major=release.split(".")[0])
    variables["releasever_minor"] = release.partition(".")[2]
    for path in glob.glob(etc + "/dnf/vars/*"):
        variables[os.path.basename(path)] = read(path)
    found = []
    for path in sorted(glob.glob(etc + "/yum.repos.d/*.repo")):
        parser = configparser.RawConfigParser(strict=False)
        try:
            parser.read(path)
        except configparser.Error:
            continue
        for section in parser.sections():
            repo = dict(parser.items(section))
            # Red Hat's repositories accept only the subscription's certificate.
            if repo.get("enabled", "1").lower() not in ("1", "yes", "true", "on") or "sslclientcert" in repo:
                continue
            urls = [u.rstrip("/") + "/repodata/repomd.xml" for u in re.split(r"[\s,]+", repo.get("baseurl", "")) if u]
            urls = urls or [repo[key] for key in ("mirrorlist", "metalink") if key in repo]
            urls = [re.sub(r"\$\{?(\w+)\}?", lambda m: variables.get(m.group(1), m.group()), url) for url in urls]
            urls = [url for url in urls if url.startswith("http") and "$" not in url]
            if urls:
                found.append(urls)
    return found


def package_proxies(proxy: str) -> Dict[str, str]:
    """Return the package manager's proxy by scheme: the given one, else the configured one."""
    if proxy:
        return {"http": proxy, "https": proxy}
    found = {}
    for scheme, value in re.findall(r'^Acquire::(https?)::Proxy "(.+)";', output("apt-config", "dump"), re.M):
        found[scheme] = value
    if "http" in found:
        found.setdefault("https", found["http"])
    for path in ("/etc/dnf/dnf.conf", "/etc/yum.conf"):
        line = re.search(r"^proxy\s*=\s*(http\S+)", read(path), re.M)
        if line and not found:
            found = {"http": line.group(1), "https": line.group(1)}
    return {scheme: value for scheme, value in found.items() if value.upper() != "DIRECT"}


def fetch(opener: urllib.request.OpenerDirector, urls: List[str]) -> Optional[str]:
    """Return None if one of the URLs answers, else the error of the first.

    A server error (5xx) is retried twice: proxies return one when many nodes request a new file at once.
    """
    problems: Dict[str, str] = {}
    for attempt in range(3):
        time.sleep(attempt)
        for url in urls if not attempt else [url for url in urls if problems[url].startswith("HTTP 5")]:
            try:
                with opener.open(url, timeout=NETWORK_SECONDS) as answer:
                    answer.read(1024)
                return None
            except urllib.error.HTTPError as error:
                problems[url] = "HTTP %d %s" % (error.code, error.reason)
            except urllib.error.URLError as error:
                problems[url] = str(error.reason)
            except (OSError, ValueError, ssl.SSLError) as error:
                problems[url] = str(error) or type(error).__name__
        if not any(problem.startswith("HTTP 5") for problem in problems.values()):
            break
    return problems[urls[0]]


def resolve(name: str) -> Optional[str]:
    """Return None if a name resolves, else the resolver's error."""
    try:
        socket.getaddrinfo(name, None)
    except OSError as error:
        return error.strerror or str(error)
    return None


def mirror_urls(mirrors: Dict[str, str]) -> List[List[str]]:
    """Return the URL of the inventory's mirror of this distribution, if any: it replaces the node's sources."""
    release = operating_system()
    base = mirrors.get(release["id"], "").rstrip("/")
    if not base:
        return []
    return [[base + "/dists/" + release["codename"] + "/InRelease"] if release["family"] == "Debian" else [base + "/"]]


def network(options: Facts) -> Facts:
    """Test all package sources and the resolution of the first name in parallel, with a time limit."""
    sources = mirror_urls(options.get("mirrors") or {}) or (apt_urls() if shutil.which("apt-get") else dnf_urls())
    os.environ["no_proxy"] = ",".join(options.get("no_proxy") or [])
    proxies = package_proxies(options.get("proxy") or "")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler(proxies))
    first_step = proxies.get("http") or (sources[0][0] if sources else "")
    name = urllib.parse.urlsplit(first_step if "//" in first_step else "//" + first_step).hostname or ""
    numeric = re.match(r"[\d.]+$|[0-9a-fA-F:]+$", name)
    late = "no answer within %d seconds" % (NETWORK_SECONDS + 3)
    errors: Dict[str, Optional[str]] = {}

    def start(key: str, function: Callable[..., Optional[str]], *arguments: Any) -> threading.Thread:
        errors[key] = late
        thread = threading.Thread(target=lambda: errors.update({key: function(*arguments)}), daemon=True)
        thread.start()
        return thread

    threads = [start(urls[0], fetch, opener, urls) for urls in sources[:MAX_SOURCES]]
    if name and not numeric:
        threads.append(start("name", resolve, name))
    deadline = time.monotonic() + NETWORK_SECONDS + 3
    for thread in threads:
        thread.join(max(0, deadline - time.monotonic()))
    answers = dict(errors)  # a copy: a late thread must not change the output
    return {
        "name": name,
        "name_error": answers.pop("name", None),
        "proxy": without_password(first_step) if proxies else None,
        "sources": [{"url": without_password(url), "error": error} for url, error in answers.items()],
    }


def without_password(url: str) -> str:
    return re.sub(r"//[^/@]*@", "//", url)


def lock_holder() -> Optional[str]:
    """Return the process that holds the package manager's lock, without locking it (F_GETLK)."""
    for path in (
        "/var/lib/dpkg/lock-frontend",
        "/var/lib/dpkg/lock",
        "/var/lib/apt/lists/lock",
        "/var/lib/rpm/.rpm.lock",
    ):
        try:
            with open(path, "rb") as file:
                # struct flock of 64-bit Linux: type, whence, start, length, pid.
                query = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
                kind, _, _, _, pid = struct.unpack("hhqqi4x", fcntl.fcntl(file.fileno(), fcntl.F_GETLK, query))
        except OSError:
            continue
        if kind != fcntl.F_UNLCK:
            command = read("/proc/%d/cmdline" % pid).replace("\0", " ").strip() or "a hidden process"
            return "pid %d (%s) on %s" % (pid, command[:80], path)
    return None


# --- other state that a run needs -------------------------------------------------------------------------------------


def in_container(root: str = "") -> bool:
    return any(os.path.exists(root + path) for path in ("/run/.containerenv", "/.dockerenv", "/run/systemd/container"))


def firmware(root: str, *names: str) -> List[bytes]:
    """Return the firmware's variables with these names (patterns), and shim's tables beside them."""
    found = []
    for name in names:
        for path in sorted(glob.glob(root + "/sys/firmware/efi/*/" + name)):
            try:
                with open(path, "rb") as file:
                    found.append(file.read())
            except OSError:
                continue
    return found


def secure_boot(root: str = "") -> Optional[bool]:
    """Return whether firmware and shim enforce signatures (`mokutil --sb-state`), None without Secure Boot."""
    states = firmware(root, "SecureBoot-*")
    if not states:
        return None
    # Same rule as nvidia_kernel.py, which the role uses.
    off = any(value[-1:] == b"\1" for value in firmware(root, "MokSBStateRT*"))
    return any(value[-1:] == b"\1" for value in states) and not off


def key_enrolled(root: str = "") -> bool:
    """Return whether firmware or shim trust dkms's signing key (dkms(8); on Ubuntu it is shim-signed's key)."""
    settings = [root + "/etc/dkms/framework.conf", *sorted(glob.glob(root + "/etc/dkms/framework.conf.d/*.conf"))]
    lines = "\n".join(read(path) for path in settings)
    named = re.findall(r"(?m)^\s*mok_certificate=[\"']?(/[^\"'\s$]+)", lines)
    ubuntu = assignments(read(root + "/etc/os-release")).get("ID") == "ubuntu"
    usual = "/var/lib/shim-signed/mok/MOK.der" if ubuntu else "/var/lib/dkms/mok.pub"
    try:
        with open(root + [usual, *named][-1], "rb") as file:
            certificate = file.read()
    except OSError:
        return False
    return bool(certificate) and any(certificate in value for value in firmware(root, "MokListRT*", "db-*"))


def services(names: List[str]) -> Dict[str, str]:
    """Return systemd's state of each known unit."""
    shown = output("systemctl", "show", "--property=Id,LoadState,ActiveState", *names) if names else ""
    units = [assignments(block) for block in shown.split("\n\n")]
    known = [unit for unit in units if unit.get("LoadState") not in (None, "not-found")]
    return {unit["Id"].replace(".service", ""): unit.get("ActiveState", "unknown") for unit in known}


def head_of() -> Optional[str]:
    """Return the label of the cluster whose head this is: the first name in its copy of the cluster's directory."""
    try:
        with open("/var/lib/clusterctl/recovery.tar", "rb") as file:
            return file.read(100).rstrip(b"\0").decode("ascii", "replace").replace("vault/", "")
    except OSError:
        return None


def slurm(root: str = "") -> List[str]:
    """Return Slurm's past roles of this node: "controller" if it has state, "worker" if it has a cached config."""
    configuration = read(root + "/etc/slurm/slurm.conf")
    found = []
    for what, option, default, sign in (
        ("controller", "StateSaveLocation", "/var/lib/slurm/slurmctld", "clustername"),
        ("worker", "SlurmdSpoolDir", "/var/lib/slurm/slurmd", "conf-cache/slurm.conf"),
    ):
        named = re.search(r"^%s\s*=\s*(/\S+)" % option, configuration, re.M | re.I)
        if os.path.exists(root + (named.group(1) if named else default) + "/" + sign):
            found.append(what)
    return found


def installed_packages(names: Iterable[str]) -> Dict[str, str]:
    """Return the installed versions of these packages from dpkg, or else rpm."""
    # Both fail for an unknown name, so list all packages.
    listed = output("dpkg-query", "--show", "--showformat=${Package} ${Version} ${db:Status-Status}\\n")
    listed = listed or output("rpm", "--query", "--all", "--queryformat", "%{NAME} %{VERSION}-%{RELEASE} installed\\n")
    found = (line.split() for line in listed.splitlines())
    return {one[0]: one[1] for one in found if len(one) == 3 and one[0] in names and one[2] == "installed"}


def slurm_packages(options: Facts) -> Facts:
    """Return the installed versions of Slurm's daemons and munge, the available ones of slurmd, and slurm's UID.

    `options` has the package names of the `daemons` of all sources, and of the `worker` in this node's source. The
    installation candidate comes first. Only apt has that in its index; a new node of the RHEL family has no repository
    with Slurm yet.
    """
    policy = output("apt-cache", "policy", *options["worker"]) if shutil.which("apt-cache") else ""
    tables = re.findall(r"(?m)^[a-z0-9][a-z0-9+.-]*:\n((?: .*\n)+)", policy)
    table = next((one for one in tables if re.search(r"(?m)^  Candidate: \d", one)), "")
    offered = re.findall(r"(?m)^(?:  Candidate:| \*\*\*|    ) (\d\S*)(?: -?\d+)?$", table)
    try:
        user = pwd.getpwnam("slurm").pw_uid  # type: Optional[int]
    except KeyError:
        user = None
    return {
        "installed": installed_packages({*options["daemons"], "munge"}),
        "offered": list(dict.fromkeys(offered))[:MAX_OFFERED],
        "user": user,
    }


def security_updates(root: str = "") -> Optional[int]:
    """Return the age in seconds of the last successful security update, or of its setup; None: not set up.

    The stamps are from apt's daily script, after unattended-upgrade succeeded, and from dnf-automatic's timer.
    """
    for settings, stamp in (
        ("/etc/apt/apt.conf.d/60clusterctl-security", "/var/lib/apt/periodic/upgrade-stamp"),
        ("/etc/dnf/automatic.conf", "/var/lib/systemd/timers/stamp-dnf-automatic.timer"),
    ):
        found = [path for path in (root + settings, root + stamp) if os.path.exists(path)]
        if os.path.exists(root + settings):
            return max(0, int(time.time() - max(os.path.getmtime(path) for path in found)))  # noqa: PTH204
    return None


def jobs(proc: str = "/proc") -> List[str]:
    """Return the jobs that run here: those with a slurmstepd, independent of the controller."""
    processes = filter(is_slurmstepd, glob.glob(proc + "/[0-9]*"))
    titles = (re.match(r"slurmstepd: \[(\d+)", read(path + "/cmdline")) for path in processes)
    return sorted({title.group(1) for title in titles if title}, key=int)[:MAX_JOBS]


def is_slurmstepd(process: str) -> bool:
    """Return whether root runs slurmstepd in a process. Its title and the owner of its files can be forged."""
    try:
        program = os.readlink(process + "/exe")
    except OSError:  # it has ended, or is a kernel thread
        return False
    # Debian's name is slurmstepd-wlm; a replaced program ends with "(deleted)".
    matches = re.search(r"/slurmstepd[^/]*$", program)
    return bool(matches and re.search(r"^Uid:\s+0\s", read(process + "/status"), re.M))


def before() -> List[str]:
    """Return what a run would replace or conflict with: Slurm, Kubernetes, containers, NVIDIA's installer."""
    running = [
        name for name, state in services(["slurmctld", "slurmd", "slurmdbd", "kubelet"]).items() if state == "active"
    ]
    containers = output("docker", "ps", "--quiet").split() if os.path.exists("/run/docker.sock") else []
    return (
        ["slurm.conf"] * os.path.exists("/etc/slurm/slurm.conf")
        + sorted(running)
        + ["containers"] * bool(containers)
        + ["nvidia-uninstall"] * os.path.exists("/usr/bin/nvidia-uninstall")
    )


def firewall(root: str = "") -> Optional[str]:
    """Return a firewall that blocks what clusterctl's accepts; clusterctl-firewall configures firewalld itself."""
    enabled = re.search("^ENABLED=yes", read(root + "/etc/ufw/ufw.conf"), re.M)
    return "ufw" if os.path.exists(root + "/usr/sbin/ufw") and enabled else None


def node(options: Facts, nvml_error: Optional[str]) -> Facts:
    places = ("/", "/var", "/tmp")  # noqa: S108 - read, not written
    free = {path: shutil.disk_usage(path).free >> 20 for path in places if os.path.isdir(path)}
    return {
        "hostname": socket.gethostname(),
        "root": os.geteuid() == 0,
        "free_mb": free,
        "memory_available_mb": memory_mb("MemAvailable"),
        "pci_gpus": pci_gpus(),
        "nvml_error": nvml_error,
        "container": in_container(),
        "secure_boot": secure_boot(),
        "key_enrolled": key_enrolled(),
        "network": network(options["network"]) if options.get("network") is not None else None,
        "lock_holder": lock_holder(),
        "roles": sorted(os.path.basename(path)[:-5] for path in glob.glob("/var/lib/clusterctl/state/*.json")),
        "cluster": head_of(),
        "before": before(),
        "slurm": slurm(),
        "security_updates": security_updates(),
        "slurm_packages": slurm_packages(options["slurm"]) if options.get("slurm") else None,
        "watched_packages": installed_packages(WATCHED) if options.get("network") is not None else {},
        "jobs": jobs(),
        "firewall": firewall(),
        "services": services(options.get("services") or []),
        "homes": homes(options.get("homes") or []),
    }


def homes(paths: List[str]) -> Dict[str, int]:
    """Return the last change of each directory in ns since 1970; none of them if a dead file server blocks stat."""
    # `true`: stat fails for a missing directory.
    found = output("sh", "-c", 'stat --printf="%.9Y %n\\n" -- "$@"; true', "sh", *paths) if paths else ""
    lines = (line.split(" ", 1) for line in found.splitlines())
    return {path: int(re.sub(r"\D", "", changed)) for changed, path in lines if path in paths}


# --- only for status --------------------------------------------------------------------------------------------------


def drift(options: Facts) -> Facts:
    """Compare the node with its records, by the source of the modules that record them.

    `modules` has the source by name, each after its imports; `key` is the key of the secrets' hashes, or None.
    """
    found: Facts = {"error": None, "items": [], "more": 0, "versions": {}}
    package = "ansible.module_utils.node_state"
    try:
        for name in ("ansible", "ansible.module_utils", package):
            sys.modules[name] = types.ModuleType(name)
        for name, source in options["modules"].items():
            module = types.ModuleType(package + "." + name)
            sys.modules[module.__name__] = module
            exec(compile(source, name + ".py", "exec"), module.__dict__)  # noqa: S102 - clusterctl's own source
        record, packages, differ = (sys.modules[package + "." + name] for name in ("record", "packages", "drift"))
        call = record.Call(None, record_key=options["key"])
        items, found["versions"] = differ.compare(call, lambda: packages.package_manager("auto", []))
        found["items"], found["more"] = items[:MAX_DRIFT], max(0, len(items) - MAX_DRIFT)
    except SyntaxError:
        found["error"] = "its Python is %s, expected 3.8 or newer" % platform.python_version()
    except Exception as error:
        found["error"] = str(error) or type(error).__name__
    return found


def alerts(options: Facts) -> Facts:
    """Return the firing alerts of the Prometheus at `url`, the most severe first; `password_file` has the password.

    The password is sent only to a server whose certificate is from the CA in the file `authority`.
    """
    found: Facts = {"error": None, "firing": [], "more": 0}
    try:
        with open(options["password_file"]) as file:
            login = "%s:%s" % (options["user"], file.read(1024).strip())
        header = {"Authorization": "Basic " + base64.b64encode(login.encode()).decode()}
        request = urllib.request.Request(options["url"] + "/api/v1/alerts", headers=header)  # noqa: S310
        trusted = urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=options["authority"]))
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), trusted)
        with opener.open(request, timeout=NETWORK_SECONDS) as answer:
            listed = json.loads(answer.read(16 << 20).decode("utf-8", "replace"))["data"]["alerts"]
        firing = [one for one in listed if one.get("state") == "firing"]
        order = {"critical": 0, "warning": 1}
        firing.sort(key=lambda one: (order.get(one["labels"].get("severity"), 2), one["labels"].get("alertname", "")))
        for one in firing[:MAX_ALERTS]:
            labels = one["labels"]
            alert = {"name": labels.get("alertname", "?"), "severity": labels.get("severity", "none")}
            alert["node"] = labels.get("node") or labels.get("instance", "")
            alert.update(since=one.get("activeAt", ""), summary=one.get("annotations", {}).get("summary", ""))
            found["firing"].append(alert)
        found["more"] = max(0, len(firing) - MAX_ALERTS)
    except urllib.error.HTTPError as error:
        found["error"] = "Prometheus returned HTTP %d %s" % (error.code, error.reason)
    except urllib.error.URLError as error:
        found["error"] = "Prometheus does not answer: %s" % error.reason
    except FileNotFoundError:
        found["error"] = "Prometheus is not set up yet"
    except Exception as error:
        found["error"] = "Prometheus's answer cannot be read (%s)" % type(error).__name__
    return found


def main(options: Facts) -> None:
    """Print the answer.

    All options are optional. `network`, with the inventory's `proxy`, `no_proxy` and `mirrors`, tests the package
    sources. `services` has the units whose state is needed. `drift` and `alerts` have the options of these functions.
    """
    started = time.time()
    found, driver, nvml_error = gpus()
    answer = {"hardware": hardware(found, driver), "node": node(options, nvml_error), "started": started}
    for name, function in (("drift", drift), ("alerts", alerts)):
        answer[name] = function(options[name]) if options.get(name) else None
    answer["ended"] = time.time()
    print("\n" + MARK + json.dumps(answer), flush=True)
