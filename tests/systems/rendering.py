"""What a role does on a supported system, by Ansible's own templating: its templates, and the data of its tasks.

No node takes part. What tasks would have learned there is given, as modules return it.
"""

import base64
import functools
import itertools
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.parsing.vault import VaultLib, VaultSecret
from ansible.plugins.loader import filter_loader, init_plugin_loader, lookup_loader
from ansible.template import Templar, trust_as_template
from ansible.utils.collection_loader import AnsibleCollectionConfig
from ansible.vars.hostvars import HostVars
from ansible.vars.manager import VariableManager

from clusterctl.inventory import bootstrap_plays
from clusterctl.util import paths
from clusterctl.workspace import certificates

CONTENT = paths.content()
ROLES = sorted(path for path in (CONTENT / "roles").iterdir() if path.is_dir())
SCHEDULERS = ("slurm", "kubernetes")
# Groups that only a cluster with Slurm can have, and roles of its own verbs.
OF_SLURM = {"login", "mpi", "enroot", "nfs_server", "slurmrestd", "sssd"}
VERBS_OF_SLURM = {"backup", "restore"}
# Shared roles that do something else for Kubernetes.
BOTH = {"base", "containerd", "containers", "gpu_config", "gpu_health", "verify"}


def roles_of(scheduler: str) -> list[Path]:
    """Return the roles that a cluster of this scheduler can have: all but those of the other one alone."""
    given = bootstrap_plays.groups(bootstrap_plays.load(CONTENT))
    other = next(name for name in SCHEDULERS if name != scheduler)
    foreign = {group for group in given if group.startswith(f"{other}_") or (other == "slurm" and group in OF_SLURM)}
    kept = {role for group, roles in given.items() if group not in foreign for role in roles}
    left_out = {role for group in foreign for role in given[group]} - kept
    left_out |= VERBS_OF_SLURM if other == "slurm" else set()
    return [path for path in ROLES if path.name not in left_out]


def roles_with(scheduler: str) -> list[Path]:
    """Return the roles whose files differ by scheduler: all for Slurm; rendering them twice takes minutes."""
    found = roles_of(scheduler)
    if scheduler == "slurm":
        return found
    return [path for path in found if path.name.startswith(scheduler) or path.name in BOTH]


@dataclass(frozen=True)
class System:
    """An operating system, as the module system_facts finds it."""

    family: str
    distribution: str
    major: str
    version: str
    codename: str
    architecture: str = "x86_64"

    @property
    def id(self) -> str:
        """Its ID in os-release."""
        return self.distribution.lower().replace("redhat", "rhel")

    @property
    def version_id(self) -> str:
        """Its version as discovery records it: Debian testing has no VERSION_ID in os-release."""
        return "testing" if "/" in self.version else self.version


SYSTEMS = {
    "debian-12": System("Debian", "Debian", "12", "12", "bookworm"),
    "debian-13": System("Debian", "Debian", "13", "13", "trixie"),
    "ubuntu-22.04": System("Debian", "Ubuntu", "22", "22.04", "jammy"),
    "ubuntu-24.04": System("Debian", "Ubuntu", "24", "24.04", "noble"),
    "rocky-9": System("RedHat", "Rocky", "9", "9.6", "NA"),
    "almalinux-10": System("RedHat", "AlmaLinux", "10", "10.0", "NA"),
    "centos-9": System("RedHat", "CentOS", "9", "9", "NA"),
    "centos-10": System("RedHat", "CentOS", "10", "10", "NA"),
    "rhel-10": System("RedHat", "RedHat", "10", "10.0", "NA"),
}
# No repository has a driver for it, so that role nvidia_driver does not come out whole there.
TESTING = System("Debian", "Debian", "forky/sid", "forky/sid", "forky")
ON_AARCH64 = ("debian-12", "debian-13", "debian-testing", "ubuntu-24.04", "rocky-9", "rhel-10")
PACKAGED = {
    "debian-testing": TESTING,
    **{f"{name}-aarch64": replace(SYSTEMS.get(name, TESTING), architecture="aarch64") for name in ON_AARCH64},
}
"""Systems of which only the packages are looked at."""
VAULT = VaultSecret(b"a vault password")
SECRET = "c2VjcmV0"  # each secret of a cluster
MIRRORED = ("debian", "ubuntu", "rocky", "almalinux", "centos")
VARIABLES: Mapping[str, Any] = {
    "cluster_ca_certificates": ["company.pem"],
    "cluster_http_proxy": "http://proxy.example:3128",
    "cluster_networks": ["10.0.0.0/24"],
    "cluster_package_mirrors": {name: f"http://mirror.example/{name}" for name in MIRRORED},
    "nvidia_cuda_compat": ["13.0"],
    "nvidia_cuda_toolkits": ["12.8", "13.0"],
    "nvidia_driver_imex_nodes": ["10.0.0.11"],
    "containers_registry_mirrors": {
        "docker.io": "http://mirror.example:5000",
        "ghcr.io": "https://harbor.example/ghcr",
    },
    "enroot_caps_sha256": "c" * 64,
    "enroot_sha256": "e" * 64,
    "pyxis_source_sha256": "f" * 64,
    "nfs_client_mounts": [{"path": "/data", "source": "nas.example:/data"}],
    "nfs_server_home_quota": {"soft": "400G", "hard": "500G"},
    "slurm_head_power_bmc_user": "operator",
    "slurm_worker_scratch": "/local",
    "sssd_base": "dc=example,dc=org",
    "sssd_bind_dn": "cn=reader,dc=example,dc=org",
    "sssd_ca_certificates": ["company.pem"],
    "sssd_login_groups": ["gpu-users"],
    "sssd_slurm_accounts": {"vision": "vision"},
    "sssd_uris": ["ldaps://ldap.example"],
    "users_accounts": [
        {"name": "ada", "uid": 10001, "admin": True, "ssh_keys": ["ssh-ed25519 AAAA ada"]},
        {"name": "bob", "uid": 10002},
    ],
}
"""Of a cluster that uses what it can."""
WITH_ADDRESS: Mapping[str, Any] = {"kubernetes_head_haproxy": True, "kubernetes_node_api_address": "10.0.0.100"}
"""Of a cluster whose API has an address of its own."""

KERNELS = {
    "debian-12": "6.1.0-40-amd64",
    "debian-13": "6.12.48+deb13-amd64",
    "debian-testing": "7.2.12+deb14-amd64",
    "ubuntu-22.04": "5.15.0-157-generic",
    "ubuntu-24.04": "6.8.0-85-generic",
    "rocky-9": "5.14.0-570.42.2.el9_6.x86_64",
    "centos-9": "5.14.0-620.el9.x86_64",
    "almalinux-10": "6.12.0-55.32.1.el10_0.x86_64",
    "centos-10": "6.12.0-140.el10.x86_64",
    "rhel-10": "6.12.0-55.32.1.el10_0.x86_64",
    "debian-12-aarch64": "6.1.0-40-arm64",
    "debian-13-aarch64": "6.12.48+deb13-arm64",
    "debian-testing-aarch64": "7.2.12+deb14-arm64",
    "ubuntu-24.04-aarch64": "6.8.0-85-generic",
    "rocky-9-aarch64": "5.14.0-570.42.2.el9_6.aarch64",
    "rhel-10-aarch64": "6.12.0-55.32.1.el10_0.aarch64+64k",
}
"""A kernel of each system, as `uname -r` prints it."""


def system_of(name: str) -> System:
    return SYSTEMS[name] if name in SYSTEMS else PACKAGED[name]


def look(system: str, devices: Iterable[str] = ("2330",), fabric: str = "nvswitch", **more: Any) -> dict[str, Any]:
    """Return what module nvidia_look returns on a server with these GPUs, by PCI device id."""
    kernel, known = KERNELS[system], system_of(system)
    if known.family == "RedHat":
        kept, headers = ["kernel", "kernel-core", "kernel-modules"], []
    else:
        own = "amd64" if known.architecture == "x86_64" else "arm64"
        kind = "generic" if known.distribution == "Ubuntu" else own
        kept, headers = [f"linux-image-{kernel}", f"linux-image-{kind}"], [f"linux-headers-{kind}"]
    return {
        "brought": [],
        "devices": list(devices),
        "driver": "",
        "fabric": fabric,
        "headers": headers,
        "imex": False,
        "kept": kept,
        "kernel": kernel,
        "left": "",
        "peer_memory": False,
        "runfile": False,
        "waits": [],
        **more,
    }


def registered(system: str, found: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return what earlier tasks of roles have registered, and what a template gets from its caller."""
    found = found or look(system, imex=True)
    return {
        "__dcgm_exporter_look": {**found, "driver": "580.95.05"},
        "__kubernetes_node_archives": {"images.tar": "a" * 64},
        "__kubernetes_node_found_images": {"missing": []},
        "__kubernetes_node_look": {"stdout_lines": [f"Linux {KERNELS[system]}", "/etc/kubernetes/kubelet.conf"]},
        "__nfs_client_found": {"stdout_lines": ["unit former.mount"]},
        "__gpu_config_done": {"kept": {"mig": "3g.40gb,2g.20gb,2g.20gb"}},
        "__slurm_head_job_container": {"use": True},
        "__package_cache_found": {"results": [{"stat": {"exists": False}}, {"stat": {"exists": False}}]},
        "__nvidia_cuda_look": {"devices": found["devices"], "driver": "580.95.05"},
        "__nvidia_cuda_toolkit": "12.8",
        "__nvidia_driver_key": {"key": "-----BEGIN PGP PUBLIC KEY BLOCK-----"},
        "__nvidia_driver_look": found,
        "__nvidia_driver_state": {"changes": [], "versions": {}},
        "mirror": "https://harbor.example/ghcr",
        "mount": {"path": "/data", "source": "nas.example:/data", "type": "nfs", "options": ["hard"]},
        "registry": "ghcr.io",
        "repositories": {"baseos": "BaseOS"},
    }


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8")) or {}


def tasks(path: Path) -> Iterator[dict[str, Any]]:
    """Yield every task of a file, those in blocks included."""
    pending = list(load(path))
    while pending:
        task = pending.pop(0)
        yield task
        for part in ("block", "rescue", "always"):
            pending += task.get(part, [])


def trusted(value: Any) -> Any:
    """Return arguments as Ansible's own loader would hand them over: its strings may be templates."""
    if isinstance(value, dict):
        return {key: trusted(item) for key, item in value.items()}
    if isinstance(value, list):
        return [trusted(item) for item in value]
    return trust_as_template(value) if isinstance(value, str) else value


class Role:
    """A role on one host: Ansible's templar with the variables that it has there."""

    def __init__(self, path: Path, templar: Templar) -> None:
        self.path, self.templar = path, templar

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def variables(self) -> dict[str, Any]:
        """All that it sees; what is changed there holds from then on."""
        return self.templar.available_variables  # type: ignore[no-any-return]

    def value(self, name: str) -> Any:
        """Return the value of an expression."""
        return self.templar.template(trust_as_template("{{ " + name + " }}"))

    def arguments(self, given: Any) -> Any:
        """Return a task's arguments."""
        return self.templar.template(trusted(given))

    def render(self, path: Path) -> str:
        """Return a template as node_state's action plugin renders it."""
        text = trust_as_template(path.read_text(encoding="utf-8"))
        return str(self.templar.template(text, escape_backslashes=False, overrides={"trim_blocks": True}))

    def calls(self, wanted: Callable[[Path], bool] = lambda _: True) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Yield the file and the arguments of every node_state task in the files that are wanted."""
        for file in filter(wanted, sorted((self.path / "tasks").glob("*.yml"))):
            for task in tasks(file):
                if "node_state" in task:
                    yield file, self.arguments(task["node_state"] or {})

    def content(self, item: Mapping[str, Any]) -> bytes | None:
        """Return what node_state writes for one of its files; None where it writes no whole file."""
        if "state" in item or "link" in item or "insert" in item:
            return None
        if "template" in item:
            return self.render(self.path / "templates" / item["template"]).encode()
        if "copy" in item:
            return (self.path / "files" / str(item["copy"])).read_bytes()
        return base64.b64decode(item["content_base64"]) if "content_base64" in item else str(item["content"]).encode()


class Cluster:
    """A cluster's directory whose hosts are all of one system; `found` is what nvidia_look returns on its workers."""

    def __init__(
        self,
        inventory: Path,
        system: str,
        variables: Mapping[str, Any] | None = None,
        found: Mapping[str, Any] | None = None,
    ) -> None:
        self.system, self.found = system, found
        self.loader = DataLoader()
        self.loader.set_vault_secrets([("default", VAULT)])
        self.manager = InventoryManager(loader=self.loader, sources=[str(inventory)])
        if AnsibleCollectionConfig.collection_finder is None:  # another test may have come first
            init_plugin_loader()
        lookup_loader.add_directory(str(CONTENT / "plugins/lookup"))
        filter_loader.add_directory(str(CONTENT / "plugins/filter"))
        shared = self.loader.load_from_file(str(CONTENT / "playbooks/group_vars/all.yml"), trusted_as_template=True)
        everybody = self.manager.groups["all"]
        for name, value in {**shared, **everybody.vars, **(VARIABLES if variables is None else variables)}.items():
            everybody.set_variable(name, value)

    @property
    def hosts(self) -> list[str]:
        return list(self.manager.hosts)

    def set(self, host: str, **variables: Any) -> None:
        """Set variables of a host in the inventory."""
        for name, value in variables.items():
            self.manager.hosts[host].set_variable(name, value)

    def role(self, name: str, host: str, **known: Any) -> Role:
        """Return a role as it is on a host, with these variables above all others."""
        path, system = CONTENT / "roles" / name, system_of(self.system)
        self.loader.set_basedir(str(path))

        def content(file: Path) -> Any:
            return (self.loader.load_from_file(str(file), trusted_as_template=True) or {}) if file.is_file() else {}

        defaults = content(CONTENT / "playbooks/group_vars/all.yml") | content(path / "defaults/main.yml")
        private = content(path / "vars/main.yml") | content(path / f"vars/{system.family}.yml")
        variables = VariableManager(loader=self.loader, inventory=self.manager)
        everything = defaults | variables.get_vars(host=self.manager.get_host(host)) | private
        everything |= registered(self.system, self.found)
        everything |= {
            "ansible_check_mode": False,
            "ansible_facts": {
                "architecture": system.architecture,
                "clusterctl_roles": [],
                "distribution": system.distribution,
                "distribution_major_version": system.major,
                "distribution_release": system.codename,
                "distribution_version": system.version,
                "os_family": system.family,
                "virtualization_role": "NA",
            },
            "ansible_managed": "Managed.",
            "ansible_play_hosts": self.hosts,
            "ansible_play_hosts_all": self.hosts,
            "ansible_search_path": [str(path), str(CONTENT / "playbooks")],
            "hostvars": HostVars(self.manager, variables, self.loader),
            "playbook_dir": str(CONTENT / "playbooks"),
            "role_path": str(path),
        }
        return Role(path, Templar(loader=self.loader, variables={**everything, **known}))


def record(name: str, number: int, system: str) -> dict[str, Any]:
    """Return a hardware record as discovery writes it; the first host has no GPUs."""
    os = system_of(system)
    gpu = {
        "model": "NVIDIA A100-SXM4-80GB",
        "type": "a100",
        "memory_mb": 81920,
        "uuid": "",
        "pci": "",
        "cpus": None,
        "links": {},
        "pcie_generation": 4,
        "pcie_width": 16,
        "mig": None,
    }
    return {
        "schema": 1,
        "name": name,
        "recorded": "2026-11-21T01:00:00Z",
        "machine_id": f"{number:032x}",
        "os": {
            "id": os.id,
            "version": os.version_id,
            "codename": os.codename.split()[0],
            "family": os.family,
            "architecture": os.architecture,
            "kernel": "6.12",
        },
        "cpu": {"model": "x", "sockets": 1, "cores_per_socket": 2, "threads_per_core": 1, "cpus": 2},
        "memory_mb": 24105,
        "gpus": [gpu | {"index": index, "device": f"/dev/nvidia{index}"} for index in range(4 * number)],
        "driver_version": None,
        "disks": [],
        "nameservers": ["10.0.0.1"],
        "resolver": "plain",
        "cloud_init": True,
        "nics": [{"name": "eth0", "mac": "", "speed_mbps": None, "addresses": [f"10.0.0.{10 + number}/24"]}],
        "cgroup": {"version": 2, "controllers": ["cpu", "cpuset", "memory"]},
    }


def declared_secrets() -> set[str]:
    """Return the names of the secrets of all roles."""
    return {name for role in ROLES if (role / "meta/secrets.yml").is_file() for name in load(role / "meta/secrets.yml")}


def seal(directory: Path) -> None:
    """Write the encrypted secrets of a cluster."""
    secrets = dict.fromkeys(declared_secrets(), SECRET)
    sealed = VaultLib([("aurora-1", VAULT)]).encrypt(yaml.safe_dump(secrets), vault_id="aurora-1")
    (directory / "secrets.yml").write_bytes(sealed)


def a_cluster(
    directory: Path, system: str, scheduler: str = "slurm", further_heads: Iterable[str] = (), **variables: Any
) -> Cluster:
    """Return a cluster of a head and a worker, whose address is a name, with records, secrets and a certificate."""
    hosts = {"head1": {"ansible_host": "10.0.0.10"}, "gpu01": {"ansible_host": "gpu01.example"}}
    hosts |= {name: {"ansible_host": f"10.0.0.{number}"} for number, name in enumerate(further_heads, 12)}
    heads = [name for name in hosts if name != "gpu01"]
    groups = {f"{scheduler}_head": heads, f"{scheduler}_workers": ["gpu01"], "monitoring": ["head1"]}
    children = {group: {"hosts": {name: hosts[name] for name in names}} for group, names in groups.items()}
    inventory = {"all": {"vars": {"cluster_name": "aurora", **variables}, "children": children}}
    (directory / "hardware").mkdir()
    for number, name in enumerate(hosts):
        (directory / f"hardware/{name}.json").write_text(json.dumps(record(name, number, system)), encoding="utf-8")
    seal(directory)
    (directory / "company.pem").write_text(certificates.authority(SECRET, "company"), encoding="utf-8")
    (directory / "inventory.yaml").write_text(yaml.safe_dump(inventory), encoding="utf-8")
    return Cluster(directory / "inventory.yaml", system)


@dataclass(frozen=True)
class File:
    """A file that a role writes on a host; the name of a host of Kubernetes begins with "kubernetes-"."""

    host: str
    role: str
    path: str
    content: bytes


@functools.cache
def files(system: str) -> list[File]:
    """Return every whole file that the roles write on a head and a worker of a system, with each scheduler."""
    found = []
    for scheduler in SCHEDULERS:
        with tempfile.TemporaryDirectory() as folder:
            cluster = a_cluster(Path(folder), system, scheduler, **WITH_ADDRESS)
            for host, path in itertools.product(cluster.hosts, roles_with(scheduler)):
                role = cluster.role(path.name, host)
                items = [item for _, call in role.calls() for item in call.get("files", [])]
                written = {item["dest"]: role.content(item) for item in items}
                name = host if scheduler == "slurm" else f"{scheduler}-{host}"
                found += [File(name, path.name, dest, text) for dest, text in written.items() if text is not None]
    return found
