"""Check an inventory as a whole: complete schedulers, unique addresses, readable files."""

import ipaddress
import re
import stat
import zoneinfo
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from clusterctl.inventory import (
    addresses,
    alerting,
    directory,
    kubernetes_consistency,
    login_nodes,
    metrics,
    slurm_heads,
    slurm_mps,
    slurm_partitions,
    slurm_policy,
    slurm_power,
    slurm_reservations,
    slurm_rest,
    slurm_topology,
    storage,
)
from clusterctl.inventory.document import Node, shown
from clusterctl.inventory.reading import HostDraft, Reading
from clusterctl.inventory.schedulers import KINDS, LOGIN, SLURM, of_groups
from clusterctl.util import files, paths, yaml_text
from clusterctl.util.text import did_you_mean

JUMP = "cluster_jump_host"
SETTINGS = "gpu_config"
DIVISIONS = "gpu_config_mig_gpus"
WORKERS = SLURM.workers
_WHOLE = {
    "alertmanager_mail": ("server", "from"),
    "alertmanager_release": ("version", "sha256"),
    "prometheus_remote_write": ("url",),
    "prometheus_release": ("version", "sha256"),
    "slurm_head_repository": ("url", "key", "fingerprint"),
}
TOOLKITS, COMPAT = "nvidia_cuda_toolkits", "nvidia_cuda_compat"


def check(reading: Reading, whole: bool = True) -> None:
    """Report all inconsistencies to the reading. Missing values are reported only if groups and hosts are valid.

    `whole` is false for a reading that lacks groups of the inventory.
    """
    _files(reading)
    _time_zones(reading)
    slurm_partitions.check(reading, _given)
    _whole_or_empty(reading)
    _slurm_source(reading)
    _accounts(reading)
    alerting.check(reading)
    metrics.check(reading)
    slurm_policy.check(reading, _given)
    directory.check_accounts(reading, _given)
    slurm_reservations.check(reading, _given)
    storage.check(reading, _given)
    if reading.understood:
        _schedulers(reading)
        login_nodes.check_submission(reading)
        _membership(reading)
        _addresses(reading)
        _jumps(reading)
        _toolkits(reading)
        _divisions(reading)
        _unread(reading)
        _required(reading)
        if whole:
            login_nodes.check(reading)
            storage.check_groups(reading)
            directory.check(reading)
            slurm_rest.check(reading)
            _logging(reading)
            _package_cache(reading)
            slurm_partitions.check_nodes(reading, _given)
            slurm_topology.check(reading, _given)
            slurm_heads.check(reading)
            slurm_mps.check(reading)
            slurm_power.check(reading, _given)
            kubernetes_consistency.check(reading)


def _schedulers(reading: Reading) -> None:
    """Check that each scheduler has a head and workers, and each host one scheduler."""
    used = [kind for kind in KINDS if not kind.groups.isdisjoint(reading.groups)]
    if not used:
        hint = "known groups: " + ", ".join(reading.known.groups)
        reading.refuse(reading.top, "all.children", "no head and no workers", hint)
    for kind in used:
        heads, workers = (
            [host for host in reading.hosts.values() if group in host.groups] for group in (kind.head, kind.workers)
        )
        if not heads:
            reading.refuse(reading.top, f"all.children.{kind.head}", "no head, expected one host")
        if not workers:
            reading.refuse(reading.top, f"all.children.{kind.workers}", "no workers, expected at least one host")
    for host in reading.hosts.values():
        joined = [kind.name for kind in used if not kind.groups.isdisjoint(host.groups)]
        if len(joined) > 1:
            reading.refuse(host.position, host.name, f"in two schedulers, got {', '.join(joined)}, expected one")


def _logging(reading: Reading) -> None:
    """Check that one host has the logs: roles elasticsearch and logging set up one engine, not a cluster of engines."""
    members = [host.name for host in reading.hosts.values() if "logging" in host.groups]
    if len(members) > 1:
        reading.refuse(reading.top, "all.children.logging", f"has {', '.join(members)}, expected one host")
    for name in members:
        host = reading.hosts[name]
        version = host.merged.get("elasticsearch_version")
        if host.get("logging_engine", "elasticsearch") != "elasticsearch" or version is None:
            continue
        for feature in ("kibana_enabled", "logstash_senders"):
            if str(version.value).startswith("7.") and host.get(feature, feature == "kibana_enabled"):
                hint = f"set {feature}: {'false' if feature == 'kibana_enabled' else '[]'}"
                reading.refuse(
                    version.position, "elasticsearch_version", f"{version.value} has no login for {feature}", hint
                )


def _package_cache(reading: Reading) -> None:
    """Check that one host has the package cache: the other nodes have one URL for each package server."""
    members = [host.name for host in reading.hosts.values() if "package_cache" in host.groups]
    if len(members) > 1:
        reading.refuse(reading.top, "all.children.package_cache", f"has {', '.join(members)}, expected one host")


def _membership(reading: Reading) -> None:
    for host in reading.hosts.values():
        if not host.groups:
            reading.refuse(host.position, host.name, "is in no group, so nothing would be installed on it")
        if host.name in reading.groups:
            reading.refuse(host.position, host.name, "a host has the same name as a group")


def _addresses(reading: Reading) -> None:
    """Check that addresses are unique, or a server would be configured twice. SSH ports may differ (NAT)."""
    reached: dict[object, HostDraft] = {}
    known_as: dict[object, HostDraft] = {}
    for host in reading.hosts.values():
        address = _address(host.get("ansible_host", host.name))
        port = str(host.get("ansible_port", 22))
        first = reached.setdefault((address, port), host)
        if first is not host:
            message = f"duplicate address, got {address}, which is also {first.name}'s"
            reading.refuse(host.place("ansible_host"), f"{host.name}.ansible_host", message)
            continue
        address = _address(host.get("cluster_address", address))
        if ":" in address:
            hint = "set cluster_address to its IPv4 address; ansible_host can stay IPv6"
            key, title = f"{host.name}.cluster_address", (of_groups(host.groups) or SLURM).title
            reading.refuse(host.place("cluster_address"), key, f"{title} uses IPv4 only, got {address}", hint)
        first = known_as.setdefault(address, host)
        if first is not host:
            message = f"duplicate address inside the cluster, got {address}, which is also {first.name}'s"
            hint = "set a different cluster_address for each"
            reading.refuse(host.place("cluster_address"), f"{host.name}.cluster_address", message, hint)


def _jumps(reading: Reading) -> None:
    """Check that a jump host is in the inventory, so that its key is known, and is reached directly."""
    for host in reading.hosts.values():
        name, at, key = host.get(JUMP, host.name), host.place(JUMP), JUMP
        if not isinstance(name, str):
            continue  # its type was refused
        if name not in reading.hosts:
            reading.refuse(at, key, f'no host "{shown(name)}"', did_you_mean(name, reading.hosts))
        elif name != host.name and (further := reading.hosts[name].get(JUMP, name)) != name:
            reading.refuse(
                at, key, f"{name} is behind the jump host {further}, expected a host that is reached directly"
            )


def _toolkits(reading: Reading) -> None:
    """Check CUDA's minimum driver where the inventory has both."""
    table = yaml_text.load((paths.content() / "roles/nvidia_cuda/vars/main.yml").read_text())["__nvidia_cuda_oldest"]
    for host in reading.hosts.values():
        driver = host.get("nvidia_driver_version", "") or host.get("nvidia_driver_branch", "")
        if TOOLKITS not in host.merged or not re.match("[0-9]{3}", str(driver)):
            continue
        bridged = [item.value for item, _ in _texts(host.merged[COMPAT], COMPAT)] if COMPAT in host.merged else []
        for item, key in _texts(host.merged[TOOLKITS], TOOLKITS):
            least = table.get(str(item.value).partition(".")[0])
            if least and int(str(driver)[:3]) < int(least[:3]) and item.value not in bridged:
                hint = f"set a newer driver branch, or add the toolkit to {COMPAT}"
                message = f"CUDA {item.value} needs driver {least} or newer, got {driver} for {host.name}"
                reading.refuse(item.position, key, message, hint)


def _divisions(reading: Reading) -> None:
    """Check that keys are indices of GPUs."""
    for node in _given(reading, DIVISIONS):
        for name in node.value if isinstance(node.value, dict) else ():
            if not re.fullmatch("[0-9]|[1-5][0-9]|6[0-3]", name):
                message = f'bad key, got "{shown(name)}", expected a GPU\'s index such as 0'
                reading.refuse(name.position, f"{DIVISIONS}.{shown(name)}", message)


def _unread(reading: Reading) -> None:
    """Refuse GPU settings for workers that are not in the group which applies them."""
    for host in reading.hosts.values():
        named = [name for name in host.merged if name.startswith(f"{SETTINGS}_")]
        kind = of_groups(host.groups)
        if named and SETTINGS not in host.groups and kind and kind.workers in host.groups:
            hint = f"all.children.{SETTINGS}: {{children: {{{kind.workers}: {{}}}}}}"
            reading.refuse(
                host.merged[named[0]].position, named[0], f"{host.name} is not in the group {SETTINGS}", hint
            )


def _time_zones(reading: Reading) -> None:
    """Check names of time zones against this machine's database, if it has one."""
    folders = [Path(folder) for folder in zoneinfo.TZPATH if Path(folder, "Etc/UTC").is_file()]
    for node in _given(reading, "cluster_timezone"):
        name = node.value
        if not isinstance(name, str):
            continue  # its type was refused
        if folders and not any(Path(folder, name).is_file() and ".." not in Path(name).parts for folder in folders):
            near = did_you_mean(name, zoneinfo.available_timezones())
            reading.refuse(node.position, "cluster_timezone", f'no time zone "{shown(name)}"', near)


def _whole_or_empty(reading: Reading) -> None:
    """Refuse incomplete mappings that are not empty; required keys in argument specs would refuse empty ones too."""
    for name, keys in _WHOLE.items():
        for node in _given(reading, name):
            missing = [key for key in keys if isinstance(node.value, dict) and node.value and key not in node.value]
            for key in missing:
                reading.refuse(node.position, name, f'incomplete, expected the key "{key}" in it')


def _slurm_source(reading: Reading) -> None:
    """Refuse another source of Slurm without its release, which decides the valid options and nodes.

    Hosts without a source inherit the head's source, but not its release.
    """
    refused = set()
    members = [host for host in reading.hosts.values() if host.groups & {"slurm_head", WORKERS, LOGIN}]
    of_head = next((host.merged for host in members if "slurm_head" in host.groups), {})
    for host in members:
        names = ("slurm_head_source", "slurm_head_repository")
        source, repository = (host.merged.get(name) or of_head.get(name) for name in names)
        foreign = source if source is not None and source.value != "distribution" else repository
        version = host.merged.get("slurm_head_version")
        if foreign is None or not foreign.value or (version is not None and version.value) or id(foreign) in refused:
            continue
        refused.add(id(foreign))  # many hosts may share it
        name = "slurm_head_source" if foreign is source else "slurm_head_repository"
        hint = 'set it in all.vars for all hosts, for example slurm_head_version: "25.11.*"'
        message = f"needs slurm_head_version for {host.name}, the release in that source"
        reading.refuse(foreign.position, name, message, hint)


def _accounts(reading: Reading) -> None:
    """Refuse accounts with the same name or UID, and what only concerns accounts that leave."""
    for node in _given(reading, "users_accounts"):
        taken: set[tuple[str, object]] = set()
        accounts = node.value if isinstance(node.value, list) else []
        for index, account in enumerate(accounts):
            fields = account.value.items() if isinstance(account.value, dict) else ()
            by_name = {str(key): value for key, value in fields}
            if "jobs" in by_name and ("state" not in by_name or by_name["state"].value != "absent"):
                message = "has an effect only with state: absent"
                reading.refuse(by_name["jobs"].position, f"users_accounts[{index}].jobs", message)
            for key, value in by_name.items():
                if key in ("name", "uid") and isinstance(value.value, str | int):
                    if (key, value.value) in taken:
                        message = f"duplicate {key}, got {shown(str(value.value))}, which another account has"
                        reading.refuse(value.position, f"users_accounts[{index}].{key}", message)
                    taken.add((key, value.value))


def _given(reading: Reading, name: str) -> list[Node]:
    """Return a variable's values, each once: many hosts may share one."""
    nodes = [host.merged[name] for host in reading.hosts.values() if name in host.merged]
    return list({id(node): node for node in nodes}.values())


def _required(reading: Reading) -> None:
    for name in reading.known.required():
        if any(name not in host.merged for host in reading.hosts.values()):
            reading.refuse(reading.top, f"all.vars.{name}", "missing, expected a value")


def _address(value: object) -> str:
    """Return the canonical form of an address."""
    text = str(value)
    return str(ipaddress.ip_address(text)) if addresses.is_ip(text) else text.lower()


# --- files in variables ---------------------------------------------------------------------------------------------


def _files(reading: Reading) -> None:
    refused = {problem.position for problem in reading.problems}
    named = ((name, node) for host in reading.hosts.values() for name, node in host.merged.items())
    for name, node in {id(node): (name, node) for name, node in named}.values():  # many hosts may share one
        parts = {name: node, **{f"{name}.{key}": value for key, value in _fields(node)}}
        for part, check_file in ((one, check) for one in parts for end, check in _CHECKS.items() if one.endswith(end)):
            for item, key in _texts(parts[part], part):
                if item.position not in refused and (message := check_file(reading, item)):
                    reading.refuse(item.position, key, f'the file "{shown(str(item.value))}" {message}')


def _fields(node: Node) -> list[tuple[object, Node]]:
    return list(node.value.items()) if isinstance(node.value, dict) else []


def _texts(node: Node, key: str) -> Iterator[tuple[Node, str]]:
    if isinstance(node.value, str):
        yield node, key
    for index, item in enumerate(node.value if isinstance(node.value, list) else ()):
        yield from _texts(item, f"{key}[{index}]")


def _key_file(_: Reading, node: Node) -> str:
    """Check the mode early: SSH refuses such a key later, and Ansible then reports only an unreachable host."""
    try:
        path = Path(str(node.value)).expanduser()
        files.read(path)
        mode = stat.S_IMODE(path.stat().st_mode)
    except files.UnfitError as error:
        return str(error)
    except (OSError, RuntimeError) as error:  # unknown home directory
        return f"cannot be read: {error}"
    return f"is accessible to others, got mode {mode:04o}, expected 0600" if mode & 0o077 else ""


def _certificate(reading: Reading, node: Node) -> str:
    directory = reading.path.parent
    try:
        content = files.read(directory / str(node.value), inside=directory)
    except files.UnfitError as error:
        return str(error)
    if b"PRIVATE KEY-----" in content:
        return "holds a private key, which every user of the nodes could read"
    return "" if b"-----BEGIN CERTIFICATE-----" in content else "holds no certificate in PEM form"


# By the suffix of the name of a variable, or of a field.
_CHECKS: Mapping[str, Callable[[Reading, Node], str]] = {
    "ansible_ssh_private_key_file": _key_file,
    "cluster_ca_certificates": _certificate,
    "kubernetes_head_oidc.certificate": _certificate,
    "sssd_ca_certificates": _certificate,
    f"{metrics.REMOTE_WRITE}.authority": _certificate,
}
