"""House rules that hold for every role, and every template rendered for every supported operating system.

What cannot run here for real (Ubuntu, the RHEL family) is at least written completely: its variables have the keys that
Debian's have, and with them every template and every `node_state` call comes out whole.
"""

import importlib.util
import itertools
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.parsing.vault import VaultLib, VaultSecret
from ansible.playbook.task import Task
from ansible.plugins.loader import filter_loader, init_plugin_loader, lookup_loader
from ansible.template import Templar, trust_as_template
from ansible.utils.collection_loader import AnsibleCollectionConfig
from ansible.vars.hostvars import HostVars
from ansible.vars.manager import VariableManager

from clusterctl import paths

CONTENT = paths.content()
ROLES = sorted(path for path in (CONTENT / "roles").iterdir() if path.is_dir())
NAMES = [role.name for role in ROLES]
OUR_MODULES = {path.stem for path in (CONTENT / "playbooks/library").glob("*.py")}
KEYWORDS = {*Task.fattributes, "args", "block", "rescue", "always"}
MIRRORED = ("debian", "ubuntu", "rocky", "almalinux", "centos")

SYSTEMS = {
    "debian-12": ("Debian", "Debian", "12", "12.12", "bookworm"),
    "debian-13": ("Debian", "Debian", "13", "13.1", "trixie"),
    "ubuntu-22.04": ("Debian", "Ubuntu", "22", "22.04", "jammy"),
    "ubuntu-24.04": ("Debian", "Ubuntu", "24", "24.04", "noble"),
    "rocky-9": ("RedHat", "Rocky", "9", "9.6", "Blue Onyx"),
    "almalinux-10": ("RedHat", "AlmaLinux", "10", "10.0", "Purple Lion"),
    "centos-9": ("RedHat", "CentOS", "9", "9", "Stream"),
    "rhel-10": ("RedHat", "RedHat", "10", "10.0", "Coughlan"),
}
# What earlier tasks of a role would have registered, and what a template gets from its caller.
REGISTERED: Mapping[str, Any] = {
    "__gpu_config_done": {"kept": {"mig": "3g.40gb,2g.20gb,2g.20gb"}},
    "__slurm_head_job_container": {"use": True},
    "__nvidia_cuda_look": {"devices": ["2330"], "driver": "580.95.05"},
    "__nvidia_cuda_toolkit": "12.8",
    "__nvidia_driver_key": {"key": "-----BEGIN PGP PUBLIC KEY BLOCK-----"},
    "__nvidia_driver_look": {
        "brought": ["nvidia-kernel-dkms"],
        "devices": ["2330"],
        "fabric": "nvswitch",
        "headers": ["linux-headers-amd64"],
        "imex": True,
        "kept": ["linux-image-6.12.1-amd64", "linux-image-amd64"],
        "kernel": "6.12.1-amd64",
        "left": "",
        "runfile": False,
    },
    "__nvidia_driver_state": {"changes": [], "versions": {}},
    "mirror": "https://harbor.example/ghcr",
    "registry": "ghcr.io",
    "repositories": {"baseos": "BaseOS"},
}
VAULT = VaultSecret(b"a vault password")
SECRET = "c2VjcmV0"  # each secret of a cluster
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
    "users_accounts": [
        {"name": "ada", "uid": 10001, "admin": True, "ssh_keys": ["ssh-ed25519 AAAA ada"]},
        {"name": "bob", "uid": 10002},
    ],
}


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8")) or {}


def tasks(path: Path) -> Iterator[dict[str, Any]]:
    """Every task of a file, those in blocks included."""
    pending = list(load(path))
    while pending:
        task = pending.pop(0)
        yield task
        for part in ("block", "rescue", "always"):
            pending += task.get(part, [])


def role_files(role: Path) -> Iterator[Path]:
    return (path for path in role.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


@pytest.mark.parametrize("role", ROLES, ids=NAMES)
def test_role_has_the_house_layout(role: Path) -> None:
    for path in ("defaults/main.yml", "meta/argument_specs.yml", "tasks/main.yml"):
        assert (role / path).is_file(), path
    assert not (role / "meta/main.yml").exists(), "order lives in the playbook: no dependencies"
    assert not (role / "handlers").exists(), "node_state restarts what changed"
    assert len((role / "tasks/main.yml").read_text(encoding="utf-8").splitlines()) <= 40


@pytest.mark.proves("roles", "Variables for Debian and the RHEL family have the same keys.")
@pytest.mark.parametrize("role", ROLES, ids=NAMES)
def test_families_have_the_same_variables(role: Path) -> None:
    families = {path.stem: set(load(path)) for path in (role / "vars").glob("*.yml") if path.stem != "main"}
    assert families.keys() in (set(), {"Debian", "RedHat"})
    assert len({frozenset(keys) for keys in families.values()}) <= 1, families


@pytest.mark.parametrize("role", ROLES, ids=NAMES)
def test_variables_are_named_for_their_role(role: Path) -> None:
    for name in load(role / "defaults/main.yml"):
        assert name.startswith(f"{role.name}_")
    private = [name for path in (role / "vars").glob("*.yml") for name in load(path)]
    for path in (role / "tasks").glob("*.yml"):
        private += [task["register"] for task in tasks(path) if "register" in task]
    for name in private:
        assert name.startswith(f"__{role.name}_"), name


@pytest.mark.proves("roles", "Roles use only ansible-core's modules and ours, and ignore no error.")
@pytest.mark.parametrize("role", ROLES, ids=NAMES)
def test_role_uses_ansible_core_and_our_modules_alone(role: Path) -> None:
    for path in (role / "tasks").glob("*.yml"):
        for task in tasks(path):
            for module in task.keys() - KEYWORDS:
                assert module.startswith("ansible.builtin.") or module in OUR_MODULES, f"{path}: {module}"
            assert not task.get("ignore_errors")
            assert task.get("failed_when") is not False, f"{path}: {task['name']} cannot fail"


@pytest.mark.parametrize("role", ROLES, ids=NAMES)
def test_role_knows_no_lab_and_no_other_hosts_facts(role: Path) -> None:
    for path in role_files(role):
        if path.suffix == ".py":
            continue
        # What Slurm and Debian call the way to ask the driver.
        text = re.sub("AutoDetect=nvml|slurm-wlm-nvml-plugin", "", path.read_text(encoding="utf-8"))
        assert not re.search(r"simulated|nvml|/lab/|clusterctl/lab", text, re.IGNORECASE), path
        assert not re.search(r"hostvars\[[^]]*\](\.|\[['\"])ansible_", text), f"{path} reads another host's facts"
        assert not re.search(r"\bansible_(distribution|os_family|hostname|nodename|default_ipv4)\b", text), (
            f"{path}: ansible_facts['x']"
        )


def visits(role: str, file: str = "main.yml") -> int:
    """Tasks of a role that reach a worker, skipped ones as well; files that only other hosts include are none."""
    count = 0
    for task in tasks(CONTENT / "roles" / role / "tasks" / file):
        if imported := task.get("ansible.builtin.import_tasks"):
            count += visits(role, imported)
        elif "ansible.builtin.include_tasks" not in task:
            count += 1
    return count


@pytest.mark.proves("roles", "A bootstrap runs fewer than forty tasks on a worker.")
def test_a_worker_is_visited_by_fewer_than_forty_tasks() -> None:
    """The whole bootstrap, facts and checks of arguments included."""
    groups = {"all", "slurm_workers", "gpu01"}
    path = CONTENT / "playbooks/lookup_plugins/role_packages.py"
    specification = importlib.util.spec_from_file_location("role_packages", path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    matches = module.matches
    plays = [play for play in load(CONTENT / "playbooks/bootstrap.yml") if matches(play["hosts"], groups)]
    roles = [role if isinstance(role, str) else role["role"] for play in plays for role in play["roles"]]
    count = sum(1 + visits(role) for role in roles) + visits("base", "sources.yml")
    assert len(plays) >= 3
    assert count + sum(bool(play.get("gather_facts")) for play in plays) < 40


@pytest.fixture(scope="session", autouse=True)
def plugins() -> None:
    if AnsibleCollectionConfig.collection_finder is None:  # another test may have come first
        init_plugin_loader()
    lookup_loader.add_directory(str(CONTENT / "playbooks/lookup_plugins"))
    filter_loader.add_directory(str(CONTENT / "playbooks/filter_plugins"))


def record(name: str, number: int, system: str) -> dict[str, Any]:
    """A hardware record as discovery writes it, on a system."""
    family, distribution, _, version, codename = SYSTEMS[system]
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
            "id": distribution.lower().replace("redhat", "rhel"),
            "version": version,
            "codename": codename.split()[0],
            "family": family,
            "architecture": "x86_64",
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


def cluster(directory: Path, system: str) -> Path:
    """A cluster's directory with records, secrets and a certificate; the worker's address is a name."""
    hosts = {"head1": {"ansible_host": "10.0.0.10"}, "gpu01": {"ansible_host": "gpu01.example"}}
    groups = {"slurm_head": ["head1"], "slurm_workers": ["gpu01"], "monitoring": ["head1"]}
    children = {group: {"hosts": {name: hosts[name] for name in names}} for group, names in groups.items()}
    inventory = {"all": {"vars": {"cluster_name": "aurora"}, "children": children}}
    (directory / "hardware").mkdir()
    for number, name in enumerate(hosts):
        (directory / f"hardware/{name}.json").write_text(json.dumps(record(name, number, system)), encoding="utf-8")
    declared = [load(role / "meta/secrets.yml") for role in ROLES if (role / "meta/secrets.yml").is_file()]
    secrets = {name: SECRET for names in declared for name in names}
    sealed = VaultLib([("aurora-1", VAULT)]).encrypt(yaml.safe_dump(secrets), vault_id="aurora-1")
    (directory / "secrets.yml").write_bytes(sealed)
    (directory / "company.pem").write_text("-----BEGIN CERTIFICATE-----\n", encoding="utf-8")
    (directory / "inventory.yaml").write_text(yaml.safe_dump(inventory), encoding="utf-8")
    return directory / "inventory.yaml"


def templar(role: Path, system: str, host: str, manager: InventoryManager, loader: DataLoader) -> Templar:
    """Ansible's own templar with a host's variables as a role sees them there."""
    loader.set_basedir(str(role))
    family, distribution, major, version, codename = SYSTEMS[system]

    def content(path: Path) -> Any:
        return (loader.load_from_file(str(path), trusted_as_template=True) or {}) if path.is_file() else {}

    extra = content(CONTENT / "playbooks/group_vars/all.yml") | content(role / "defaults/main.yml") | dict(VARIABLES)
    for path in ("vars/main.yml", f"vars/{family}.yml"):
        extra |= content(role / path)
    for name in manager.hosts:
        for key, value in extra.items():
            manager.hosts[name].set_variable(key, value)
    variables = VariableManager(loader=loader, inventory=manager)
    known = variables.get_vars(host=manager.get_host(host)) | dict(REGISTERED)
    known |= {
        "ansible_check_mode": False,
        "ansible_facts": {
            "architecture": "x86_64",
            "distribution": distribution,
            "distribution_major_version": major,
            "distribution_release": codename,
            "distribution_version": version,
            "os_family": family,
        },
        "ansible_managed": "Managed.",
        "ansible_play_hosts": ["head1", "gpu01"],
        "ansible_play_hosts_all": ["head1", "gpu01"],
        "ansible_search_path": [str(role), str(CONTENT / "playbooks")],
        "hostvars": HostVars(manager, variables, loader),
        "playbook_dir": str(CONTENT / "playbooks"),
        "role_path": str(role),
    }
    return Templar(loader=loader, variables=known)


def render(engine: Templar, path: Path) -> str:
    """A template as node_state's action plugin renders it."""
    text = trust_as_template(path.read_text(encoding="utf-8"))
    return str(engine.template(text, escape_backslashes=False, overrides={"trim_blocks": True}))


TEMPLATES = [path for role in ROLES for path in sorted(role.glob("templates/*.j2"))]


@pytest.mark.proves("roles", "Every template and `node_state` call renders completely for each supported system.")
@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("host", ["head1", "gpu01"])
def test_every_template_and_call_comes_out_whole(system: str, host: str, tmp_path: Path) -> None:
    """Nothing undefined, no template's own mark left over, and the words of a format where the format can be read."""
    loader = DataLoader()
    loader.set_vault_secrets([("default", VAULT)])
    manager = InventoryManager(loader=loader, sources=[str(cluster(tmp_path, system))])
    for role in ROLES:
        engine = templar(role, system, host, manager, loader)
        for path in sorted(role.glob("templates/*.j2")):
            if path.name == "debian.sources.j2" and not system.startswith("debian"):
                continue
            if path.name == "dnf.repo.j2" and SYSTEMS[system][0] != "RedHat":
                continue
            text = render(engine, path)
            assert text.endswith("\n"), path
            assert not re.search(r"\{[{%]|[%}]\}|__\w+__|\\n", text.replace("{{ $", "")), f"{path}: {text}"
            if path.name in ("registries.conf.j2", "config.toml.j2", "hosts.toml.j2"):
                assert tomllib.loads(text)
            if ".yml." in path.name:
                assert isinstance(yaml.safe_load(text), dict)
            if ".json." in path.name:
                assert json.loads(text)
        for file in sorted((role / "tasks").glob("*.yml")):
            for task in tasks(file):
                if "node_state" in task:
                    check_call(engine, role, task, host)


def check_call(engine: Templar, role: Path, task: dict[str, Any], host: str) -> None:
    """Template a node_state call's arguments; its files have a source that exists, its contents are whole lines."""
    given = trusted(task["node_state"])
    call = engine.template(given)
    for item in call.get("files", []):
        assert str(item["dest"]).startswith("/")
        for kind, folder in (("template", "templates"), ("copy", "files")):
            if kind in item:
                assert (role / folder / item[kind]).is_file(), f"{role.name} on {host}: {item[kind]}"
        text = render(engine, role / "templates" / item["template"]) if "template" in item else ""
        if SECRET in (text or f"{item.get('content', '')}{item.get('content_base64', '')}"):
            assert item.get("secret"), f"{item['dest']}: a secret is in it, and --diff would show it"
            assert int(item["mode"], 8) & 0o007 == 0, f"{item['dest']}: a secret is in it, and every user can read it"
        if item.get("content") and not item.get("secret"):
            assert "\\n" not in item["content"], f"{item['dest']}: a backslash where a line should end"
            assert re.search(r"\S\n\Z", item["content"]), f"{item['dest']}: its last line has no end, or is empty"
    assert all(isinstance(unit["name"], str) for unit in call.get("units", []))
    listed = call.get("packages", [])
    listed = listed.split(",") if isinstance(listed, str) else listed  # as Ansible reads text where a list is due
    packages = [package if isinstance(package, str) else package["name"] for package in listed]
    assert len(packages) == len(set(packages))


def test_settings_that_are_empty_again_leave_units_that_can_be_looked_for(tmp_path: Path) -> None:
    """What was recorded of a unit is looked for ever after, so it is stated on."""
    loader = DataLoader()
    loader.set_vault_secrets([("default", VAULT)])
    manager = InventoryManager(loader=loader, sources=[str(cluster(tmp_path, "debian-13"))])

    def call(role: str, file: str, **known: Any) -> Any:
        engine = templar(CONTENT / "roles" / role, "debian-13", "gpu01", manager, loader)
        engine.available_variables = {**engine.available_variables, **known}
        calls = [task.get("node_state", {}) for task in tasks(CONTENT / f"roles/{role}/tasks/{file}")]
        return engine.template(trusted(next(given for given in calls if "units" in given)))

    kept = {"kept": {"power_limit": "", "mig": "", "mig_gpus": {}}}
    asked, emptied = call("gpu_config", "settle.yml"), call("gpu_config", "settle.yml", __gpu_config_done=kept)
    assert asked["units"] == emptied["units"] == [{"name": "gpu-config"}]
    gone = [file["dest"] for file in emptied["files"] if file.get("state") == "absent"]
    assert gone == ["/etc/systemd/system/slurmd.service.d/gpu-config.conf"]
    look = REGISTERED["__nvidia_driver_look"]
    for imex, stated in ((True, [{"name": "nvidia-imex", "state": "stopped"}]), (False, [])):
        known = {"nvidia_driver_imex_nodes": [], "__nvidia_driver_look": {**look, "imex": imex}}
        units = call("nvidia_driver", "install.yml", **known)["units"]
        assert [unit for unit in units if unit["name"] == "nvidia-imex"] == stated


@pytest.mark.proves("roles", "Health port and GPU source set for the head reach the workers.")
def test_what_is_set_for_the_head_alone_reaches_the_workers(tmp_path: Path) -> None:
    """The port at which it hears them, and who is to list their GPUs."""
    loader = DataLoader()
    loader.set_vault_secrets([("default", VAULT)])
    manager = InventoryManager(loader=loader, sources=[str(cluster(tmp_path, "debian-13"))])
    manager.hosts["head1"].set_variable("slurm_head_health_port", 7000)
    manager.hosts["head1"].set_variable("slurm_head_gres_source", "driver")
    for role, name, expected in (
        ("gpu_health", "__gpu_health_given", 7000),
        ("slurm_worker", "__slurm_worker_asks", True),
    ):
        engine = templar(CONTENT / "roles" / role, "debian-13", "gpu01", manager, loader)
        found = engine.template(trusted("{{ " + name + " }}"))
        assert (found["port"] if isinstance(found, dict) else found) == expected


@pytest.mark.proves("firewall", "SSH needs a job on workers that confine jobs and are no head.")
@pytest.mark.parametrize(
    ("host", "changes", "guarded"),
    [
        ("gpu01", {}, True),
        ("gpu01", {"slurm_logins_need_job": False}, False),
        ("gpu01", {"slurm_head_confine": []}, False),
        ("gpu01", {"slurm_head_confine": ["devices"]}, True),
        ("head1", {}, False),
    ],
)
def test_logins__by_what_the_host_is__need_a_job(
    tmp_path: Path, host: str, changes: dict[str, Any], guarded: bool
) -> None:
    loader = DataLoader()
    manager = InventoryManager(loader=loader, sources=[str(cluster(tmp_path, "debian-13"))])
    for name, value in changes.items():
        manager.hosts["head1"].set_variable(name, value)
    engine = templar(CONTENT / "roles/slurm_logins", "debian-13", host, manager, loader)
    engine.available_variables.update(changes)
    assert engine.template(trusted("{{ __slurm_logins_guarded }}")) is guarded
    packages = engine.template(trusted("{{ __slurm_logins_packages }}"))
    assert packages == (["libpam-slurm-adopt"] if guarded else [])


@pytest.mark.proves("firewall", "Administrators, sudoers and who runs clusterctl reach workers without a job.")
def test_logins__administrators__need_no_job(tmp_path: Path) -> None:
    loader = DataLoader()
    manager = InventoryManager(loader=loader, sources=[str(cluster(tmp_path, "debian-13"))])
    people = [
        {"name": "ada", "uid": 5001, "admin": True},
        {"name": "bob", "uid": 5002},
        {"name": "eve", "uid": 5003, "admin": True, "state": "absent"},
        {"name": "fay", "uid": 5004, "admin": True, "state": "present"},
    ]
    manager.hosts["gpu01"].set_variable("ansible_user", "ops")
    engine = templar(CONTENT / "roles/slurm_logins", "debian-13", "gpu01", manager, loader)
    engine.available_variables["users_accounts"] = people
    engine.available_variables["ansible_facts"]["env"] = {"SUDO_USER": "jim"}
    text = (CONTENT / "roles/slurm_logins/templates/administrators.conf.j2").read_text()
    rules = [line for line in engine.template(trusted(text)).splitlines() if not line.startswith("#")]
    assert rules == ["+ : (sudo) (wheel) ada fay jim ops root : ALL", "- : ALL : ALL"]


@pytest.mark.proves("firewall", "Administrators get sudo on the head alone; who runs clusterctl keeps it.")
@pytest.mark.parametrize(
    ("host", "operator", "groups", "sudoers", "listed_keys_only"),
    [
        ("head1", None, ["slurm_head"], ["ada", "fay"], ["ada"]),
        ("gpu01", None, ["slurm_head"], [], ["ada"]),
        ("gpu01", "ada", ["slurm_head"], ["ada"], []),
        ("gpu01", "bob", ["slurm_head"], [], ["ada"]),
        ("gpu01", None, ["slurm_workers"], ["ada", "fay"], ["ada"]),
        ("head1", "fay", [], ["fay"], ["ada"]),
    ],
)
def test_users__by_host_and_who_runs_it__become_root(
    tmp_path: Path,
    host: str,
    operator: str | None,
    groups: list[str],
    sudoers: list[str],
    listed_keys_only: list[str],
) -> None:
    loader = DataLoader()
    manager = InventoryManager(loader=loader, sources=[str(cluster(tmp_path, "debian-13"))])
    key = ["ssh-ed25519 AAAA ada"]
    engine = templar(CONTENT / "roles/users", "debian-13", host, manager, loader)
    engine.available_variables |= {
        "group_names": [group.name for group in manager.hosts[host].get_groups()],
        "users_accounts": [
            {"name": "ada", "uid": 5001, "admin": True, "ssh_keys": key},
            {"name": "bob", "uid": 5002, "ssh_keys": key},
            {"name": "eve", "uid": 5003, "admin": True, "ssh_keys": key, "state": "absent"},
            {"name": "fay", "uid": 5004, "admin": True},
        ],
        "users_sudo_groups": groups,
    }
    engine.available_variables["ansible_facts"]["env"] = {"SUDO_USER": operator} if operator else {}
    assert engine.template(trusted("{{ __users_sudoers }}")) == sudoers
    assert engine.template(trusted("{{ __users_listed_keys_only }}")) == listed_keys_only


@pytest.mark.proves("driver", "Fabric Manager and IMEX have NVIDIA's name for system and branch.")
@pytest.mark.parametrize(
    ("system", "branch", "fabric", "imex"),
    [
        # NVIDIA/gpu-driver-container@51d4966 and its rhel9/precompiled/Dockerfile.
        ("debian-12", "580", "nvidia-fabricmanager", "nvidia-imex"),
        ("debian-12", "575", "nvidia-fabricmanager-575", "nvidia-imex-575"),
        ("debian-13", "", "nvidia-fabricmanager", "nvidia-imex"),
        ("ubuntu-24.04", "580", "nvidia-fabricmanager", "nvidia-imex"),
        ("ubuntu-24.04", "570", "nvidia-fabricmanager-570", "nvidia-imex-570"),
        ("rocky-9", "580", "nvidia-fabricmanager", "nvidia-imex"),
        ("rocky-9", "570", "nvidia-fabric-manager", "nvidia-imex-570"),
    ],
)
def test_nvidia_driver__fabric_of_a_branch__has_nvidias_names(
    tmp_path: Path, system: str, branch: str, fabric: str, imex: str
) -> None:
    loader = DataLoader()
    manager = InventoryManager(loader=loader, sources=[str(cluster(tmp_path, system))])
    engine = templar(CONTENT / "roles/nvidia_driver", system, "gpu01", manager, loader)
    engine.available_variables["nvidia_driver_branch"] = branch
    found = engine.template(trusted("{{ __nvidia_driver_of_nvidia }}"))
    assert (found["fabric"], found["imex"]) == ([fabric], [imex])
    assert engine.template(trusted("{{ __nvidia_driver_problems }}")) == []
    if not branch:
        assert engine.template(trusted("{{ __nvidia_driver_branch }}")) == "590", "all that NVIDIA has for Debian 13"


@pytest.mark.proves("driver", "NVLink 5 switches get the subnet manager, its tools and ib_umad.")
def test_nvidia_driver__switches_of_nvlink_5__get_what_their_manager_needs(tmp_path: Path) -> None:
    loader = DataLoader()
    manager = InventoryManager(loader=loader, sources=[str(cluster(tmp_path, "ubuntu-24.04"))])
    engine = templar(CONTENT / "roles/nvidia_driver", "ubuntu-24.04", "gpu01", manager, loader)
    for fabric, packages in (("nvlink5", {"nvlsm", "infiniband-diags"}), ("nvswitch", set())):
        engine.available_variables["__nvidia_driver_look"] = {**REGISTERED["__nvidia_driver_look"], "fabric": fabric}
        named = engine.template(trusted("{{ __nvidia_driver_fabric_packages }}"))
        plain = {one for one in named if isinstance(one, str)}
        assert plain == packages
        assert ("ib_umad" in engine.template(trusted("{{ __nvidia_driver_loads }}"))) is bool(packages)


def trusted(value: Any) -> Any:
    """Arguments as Ansible's own loader would hand them over: its strings may be templates."""
    if isinstance(value, dict):
        return {key: trusted(item) for key, item in value.items()}
    if isinstance(value, list):
        return [trusted(item) for item in value]
    return trust_as_template(value) if isinstance(value, str) else value


def test_every_template_is_used() -> None:
    for path in TEMPLATES:
        role = path.parent.parent
        sources = itertools.chain(role.glob("tasks/*.yml"), role.glob("vars/*.yml"), role.glob("templates/*.j2"))
        named = {path.name, re.sub(r"^[a-z]+\.sources", "{{ __base_distribution }}.sources", path.name)}
        assert any(name in source.read_text(encoding="utf-8") for source in sources for name in named), path
