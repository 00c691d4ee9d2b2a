"""What must hold for an inventory as a whole: schedulers complete, addresses unique, files that it names usable."""

import ipaddress
import re
import stat
import zoneinfo
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import yaml

from clusterctl.inventory import rules
from clusterctl.inventory.document import Node, shown
from clusterctl.inventory.reading import HostDraft, Reading
from clusterctl.util import files, paths
from clusterctl.util.text import did_you_mean

JUMP = "cluster_jump_host"
SETTINGS = "gpu_config"
DIVISIONS = "gpu_config_mig_gpus"
WORKERS = "slurm_workers"
PARTITIONS = "slurm_head_partitions"
_WHOLE = {"slurm_head_repository": ("url", "key", "fingerprint"), "prometheus_release": ("version", "sha256")}
_LIMITS = ("defaulttime", "maxtime")  # options of a partition
TOOLKITS, COMPAT = "nvidia_cuda_toolkits", "nvidia_cuda_compat"


def check(reading: Reading, whole: bool = True) -> None:
    """Report all that does not fit together to the reading; what is missing only where groups and hosts are clear.

    A reading that is not `whole` lacks groups of the inventory.
    """
    _files(reading)
    _time_zones(reading)
    _slurm_options(reading)
    _time_limits(reading)
    _whole_or_empty(reading)
    _slurm_source(reading)
    _accounts(reading)
    if reading.understood:
        _schedulers(reading)
        _submission(reading)
        _membership(reading)
        _addresses(reading)
        _jumps(reading)
        _toolkits(reading)
        _divisions(reading)
        _unread(reading)
        _required(reading)
        if whole:
            _partitions(reading)


def _schedulers(reading: Reading) -> None:
    """A scheduler is a prefix, with one head and with workers; a host serves one scheduler."""
    served: dict[str, list[HostDraft]] = {
        name: [host for host in reading.hosts.values() if name in host.groups]
        for name in reading.known.groups
        if name.endswith(("_head", "_workers"))
    }
    used = {name.rpartition("_")[0]: None for name in served if name in reading.groups}
    if not used:
        hint = "known groups: " + ", ".join(reading.known.groups)
        reading.refuse(reading.top, "all.children", "no head and no workers", hint)
    for scheduler in used:
        heads, workers = served.get(f"{scheduler}_head", []), served.get(f"{scheduler}_workers", [])
        if len(heads) != 1:
            names = ", ".join(host.name for host in heads)
            what = f"more than one head, got {names}" if heads else "no head"
            at = heads[1].position if heads else reading.top
            reading.refuse(at, f"all.children.{scheduler}_head", f"{what}, expected one host")
        if not workers:
            reading.refuse(reading.top, f"all.children.{scheduler}_workers", "no workers, expected at least one host")
    for host in reading.hosts.values():
        mine = [name for name in used if host.groups & {f"{name}_head", f"{name}_workers"}]
        if len(mine) > 1:
            reading.refuse(host.position, host.name, f"in two schedulers, got {', '.join(mine)}, expected one")


def _submission(reading: Reading) -> None:
    """Slurm's plugin for containers has to be where jobs are submitted and run: who lacks it ignores the image."""
    if "enroot" not in reading.groups:
        return
    members = [host for host in reading.hosts.values() if host.groups & {"slurm_head", "slurm_workers"}]
    if missing := [host.name for host in members if "enroot" not in host.groups]:
        told = f"without {', '.join(missing)}, where srun --container-image would be unknown, or do nothing"
        reading.refuse(reading.top, "all.children.enroot", told, "children: {slurm_head: {}, slurm_workers: {}}")


def _membership(reading: Reading) -> None:
    for host in reading.hosts.values():
        if not host.groups:
            reading.refuse(host.position, host.name, "in no group, so that nothing would be installed on it")
        if host.name in reading.groups:
            reading.refuse(host.position, host.name, "a host with the name of a group")


def _addresses(reading: Reading) -> None:
    """Two names for one server would configure it twice. SSH may reach several on one address by port (NAT)."""
    reached: dict[object, HostDraft] = {}
    known_as: dict[object, HostDraft] = {}
    for host in reading.hosts.values():
        address = _address(host.get("ansible_host", host.name))
        port = str(host.get("ansible_port", 22))
        first = reached.setdefault((address, port), host)
        if first is not host:
            message = f"duplicate address, got {address}, which {first.name} has"
            reading.refuse(host.place("ansible_host"), f"{host.name}.ansible_host", message)
            continue
        address = _address(host.get("cluster_address", address))
        if ":" in address:
            hint = "give it an IPv4 address as cluster_address; ansible_host may stay as it is"
            key = f"{host.name}.cluster_address"
            reading.refuse(host.place("cluster_address"), key, f"Slurm is set up for IPv4 here, got {address}", hint)
        first = known_as.setdefault(address, host)
        if first is not host:
            message = f"duplicate address inside the cluster, got {address}, which {first.name} has"
            hint = "give each its own cluster_address"
            reading.refuse(host.place("cluster_address"), f"{host.name}.cluster_address", message, hint)


def _jumps(reading: Reading) -> None:
    """The jump host is one of the cluster's, so that its key is known like any other's, and reached directly."""
    for host in reading.hosts.values():
        name, at, key = host.get(JUMP, host.name), host.place(JUMP), JUMP
        if not isinstance(name, str):
            continue  # its type was refused
        if name not in reading.hosts:
            reading.refuse(at, key, f'no host "{shown(name)}"', did_you_mean(name, reading.hosts))
        elif name != host.name and (further := reading.hosts[name].get(JUMP, name)) != name:
            reading.refuse(at, key, f"{name} is itself behind {further}, expected a host that is reached directly")


def _toolkits(reading: Reading) -> None:
    """A release of CUDA asks for a driver; where the inventory names both, nobody has to be asked about them."""
    table = yaml.safe_load((paths.content() / "roles/nvidia_cuda/vars/main.yml").read_text())["__nvidia_cuda_oldest"]
    for host in reading.hosts.values():
        driver = host.get("nvidia_driver_version", "") or host.get("nvidia_driver_branch", "")
        if TOOLKITS not in host.merged or not re.match("[0-9]{3}", str(driver)):
            continue
        bridged = [item.value for item, _ in _texts(host.merged[COMPAT], COMPAT)] if COMPAT in host.merged else []
        for item, key in _texts(host.merged[TOOLKITS], TOOLKITS):
            least = table.get(str(item.value).partition(".")[0])
            if least and int(str(driver)[:3]) < int(least[:3]) and item.value not in bridged:
                hint = f"name a later branch, or the toolkit in {COMPAT} as well"
                message = f"CUDA {item.value} needs driver {least} or newer, got {driver} for {host.name}"
                reading.refuse(item.position, key, message, hint)


def _divisions(reading: Reading) -> None:
    """GPUs are named by their index."""
    for node in _given(reading, DIVISIONS):
        for name in node.value if isinstance(node.value, dict) else ():
            if not re.fullmatch("[0-9]|[1-5][0-9]|6[0-3]", name):
                message = f'bad key, got "{shown(name)}", expected a GPU\'s index such as 0'
                reading.refuse(name.position, f"{DIVISIONS}.{shown(name)}", message)


def _unread(reading: Reading) -> None:
    """Settings of GPUs count for the members of their group."""
    for host in reading.hosts.values():
        named = [name for name in host.merged if name.startswith(f"{SETTINGS}_")]
        if named and SETTINGS not in host.groups and "slurm_workers" in host.groups:
            hint = f"all.children.{SETTINGS}: {{children: {{slurm_workers: {{}}}}}}"
            reading.refuse(
                host.merged[named[0]].position, named[0], f"{host.name} is not in the group {SETTINGS}", hint
            )


def _time_zones(reading: Reading) -> None:
    """Judge names of time zones by this machine's database, where it has one."""
    folders = [Path(folder) for folder in zoneinfo.TZPATH if Path(folder, "Etc/UTC").is_file()]
    for node in _given(reading, "cluster_timezone"):
        name = node.value
        if not isinstance(name, str):
            continue  # its type was refused
        if folders and not any(Path(folder, name).is_file() and ".." not in Path(name).parts for folder in folders):
            near = did_you_mean(name, zoneinfo.available_timezones())
            reading.refuse(node.position, "cluster_timezone", f'no time zone "{shown(name)}"', near)


def _of_partitions(node: Node, field: str) -> list[Node]:
    """Return a field of each partition that has it."""
    partitions = node.value if isinstance(node.value, list) else []
    fields = [item for part in partitions if isinstance(part.value, dict) for item in part.value.items()]
    return [value for key, value in fields if key == field]


def _time_limits(reading: Reading) -> None:
    """Refuse time limits of partitions that Slurm cannot read."""
    for node in _given(reading, PARTITIONS):
        for options in _of_partitions(node, "options"):
            for key, value in options.value.items() if isinstance(options.value, dict) else ():
                fits = isinstance(value.value, str | int) and rules.TIME_LIMIT.fullmatch(str(value.value))
                if key.lower() in _LIMITS and not fits:
                    message = f"got {value.describe()}, expected a time limit such as 1-12:00:00"
                    reading.refuse(value.position, f"{PARTITIONS}.{shown(key)}", message)


def _partitions(reading: Reading) -> None:
    """The nodes of a partition are workers, or sub-groups of them."""
    workers = [host.name for host in reading.hosts.values() if WORKERS in host.groups]
    below = [name for name, group in reading.groups.items() if name == WORKERS or WORKERS in group.lineage]
    for node in _given(reading, PARTITIONS):
        for nodes in _of_partitions(node, "nodes"):
            for item, _ in _texts(nodes, PARTITIONS):
                if item.value not in [*workers, *below]:
                    near = did_you_mean(str(item.value), [*workers, *below])
                    message = f'no worker and no sub-group of {WORKERS}, got "{shown(str(item.value))}"'
                    reading.refuse(item.position, f"{PARTITIONS}.nodes", message, near)


def _slurm_options(reading: Reading) -> None:
    """Refuse options that no release of Slurm knows; the head's own is asked before it gets the file."""
    known = yaml.safe_load((Path(__file__).parent / "slurm_options.yaml").read_text(encoding="utf-8"))
    for variable, names in known.items():
        taken = {name.lower() for name in names}
        for node in _given(reading, variable):
            for options in [node, *_of_partitions(node, "options")]:
                for key in options.value if isinstance(options.value, dict) else ():
                    if key.lower() not in taken:
                        near = did_you_mean(key, names)
                        message = f'no option of Slurm, got "{shown(key)}"'
                        reading.refuse(key.position, f"{variable}.{shown(key)}", message, near)


def _whole_or_empty(reading: Reading) -> None:
    """Refuse mappings that are neither empty nor have all that they need; argument specs refuse the empty ones too."""
    for name, keys in _WHOLE.items():
        for node in _given(reading, name):
            missing = [key for key in keys if isinstance(node.value, dict) and node.value and key not in node.value]
            for key in missing:
                reading.refuse(node.position, name, f'incomplete, expected the key "{key}" in it')


def _slurm_source(reading: Reading) -> None:
    """Refuse another source of Slurm without its release: which options and nodes fit follows from that.

    Hosts that name no source have that of the head, and not its release.
    """
    refused = set()
    members = [host for host in reading.hosts.values() if host.groups & {"slurm_head", WORKERS}]
    of_head = next((host.merged for host in members if "slurm_head" in host.groups), {})
    for host in members:
        names = ("slurm_head_source", "slurm_head_repository")
        source, repository = (host.merged.get(name) or of_head.get(name) for name in names)
        foreign = source if source is not None and source.value != "distribution" else repository
        version = host.merged.get("slurm_head_version")
        if foreign is None or not foreign.value or (version is not None and version.value) or id(foreign) in refused:
            continue
        refused.add(id(foreign))  # one is often shared by many hosts
        name = "slurm_head_source" if foreign is source else "slurm_head_repository"
        hint = 'for all hosts, in all.vars, such as slurm_head_version: "25.11.*"'
        message = f"needs slurm_head_version for {host.name}, the release that it has"
        reading.refuse(foreign.position, name, message, hint)


def _accounts(reading: Reading) -> None:
    """Refuse two people of one name or number."""
    for node in _given(reading, "users_accounts"):
        taken: set[tuple[str, object]] = set()
        accounts = node.value if isinstance(node.value, list) else []
        for index, account in enumerate(accounts):
            for key, value in account.value.items() if isinstance(account.value, dict) else ():
                if key in ("name", "uid") and isinstance(value.value, str | int):
                    if (str(key), value.value) in taken:
                        told = f"duplicate {key}, got {shown(str(value.value))}, which another account has"
                        reading.refuse(value.position, f"users_accounts[{index}].{key}", told)
                    taken.add((str(key), value.value))


def _given(reading: Reading, name: str) -> list[Node]:
    """Return a variable's values, each once: one is often shared by many hosts."""
    nodes = [host.merged[name] for host in reading.hosts.values() if name in host.merged]
    return list({id(node): node for node in nodes}.values())


def _required(reading: Reading) -> None:
    for name in reading.known.required():
        if any(name not in host.merged for host in reading.hosts.values()):
            reading.refuse(reading.top, f"all.vars.{name}", "missing, expected a value")


def _address(value: object) -> str:
    """Return one spelling for each address."""
    text = str(value)
    return str(ipaddress.ip_address(text)) if rules.is_ip(text) else text.lower()


# --- files that variables name --------------------------------------------------------------------------------------


def _files(reading: Reading) -> None:
    judged = {problem.position for problem in reading.problems}
    named = ((name, node) for host in reading.hosts.values() for name, node in host.merged.items())
    for name, node in {id(node): (name, node) for name, node in named}.values():  # one is often shared by many hosts
        for look in (look for ending, look in _LOOK.items() if name.endswith(ending)):
            for item, key in _texts(node, name):
                if item.position not in judged and (message := look(reading, item)):
                    reading.refuse(item.position, key, f'the file "{shown(str(item.value))}" {message}')


def _texts(node: Node, key: str) -> Iterator[tuple[Node, str]]:
    if isinstance(node.value, str):
        yield node, key
    for index, item in enumerate(node.value if isinstance(node.value, list) else ()):
        yield from _texts(item, f"{key}[{index}]")


def _key_file(_: Reading, node: Node) -> str:
    """SSH refuses such keys too, but later, and Ansible says only that the host is unreachable."""
    try:
        path = Path(str(node.value)).expanduser()
        files.read(path)
        mode = stat.S_IMODE(path.stat().st_mode)
    except files.UnfitError as error:
        return str(error)
    except (OSError, RuntimeError) as error:  # no such home
        return f"cannot be read: {error}"
    return f"is open to others, got mode {mode:04o}, expected 0600" if mode & 0o077 else ""


def _certificate(reading: Reading, node: Node) -> str:
    directory = reading.path.parent
    try:
        content = files.read(directory / str(node.value), inside=directory)
    except files.UnfitError as error:
        return str(error)
    if b"PRIVATE KEY-----" in content:
        return "holds a private key, which every user of the nodes could read"
    return "" if b"-----BEGIN CERTIFICATE-----" in content else "holds no certificate in PEM form"


# By the end of a variable's name.
_LOOK: Mapping[str, Callable[[Reading, Node], str]] = {
    "ansible_ssh_private_key_file": _key_file,
    "cluster_ca_certificates": _certificate,
}
