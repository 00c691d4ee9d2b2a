"""The hardware, the system and its firmware."""

import fcntl
import glob
import json
import os
import platform
import re
import socket
import struct
from typing import Iterable, List, Optional

from clusterctl.nodes.probe.common import Facts, assignments, number, output, read


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
