"""What the lookups find beside the inventory and in the roles."""

import base64
import io
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleError
from ansible.parsing.dataloader import DataLoader
from ansible.parsing.vault import VaultLib, VaultSecret
from ansible.plugins.loader import init_plugin_loader, lookup_loader
from ansible.template import Templar

from clusterctl.inventory import bootstrap_plays, host_pattern
from clusterctl.util import paths
from clusterctl.workspace import hardware
from tests.unit.test_hardware import node
from tests.unit.test_role_plugins import plugin

SUBGROUPS = plugin("lookup/subgroups")
PACKAGES = plugin("lookup/role_packages")
init_plugin_loader()


def look_up(name: str, terms: list[str], variables: dict[str, Any], vault: str = "", **options: Any) -> Any:
    lookup_loader.add_directory(str(paths.content() / "plugins/lookup"))
    loader = DataLoader()
    if vault:
        loader.set_vault_secrets([("default", VaultSecret(vault.encode()))])
    lookup = lookup_loader.get(name, loader=loader, templar=Templar(loader, variables))
    return lookup.run(terms, variables=variables, **options)


@pytest.fixture
def cluster(tmp_path: Path) -> dict[str, Any]:
    """A cluster's directory with one secret."""
    text = "munge_key: '{{ not_a_template }}'\n"
    sealed = VaultLib([("default", VaultSecret(b"right"))]).encrypt(text)
    (tmp_path / "secrets.yml").write_bytes(sealed)
    return {"inventory_dir": str(tmp_path)}


def test_a_secret_comes_as_it_is(cluster: dict[str, Any]) -> None:
    assert look_up("cluster_secret", ["munge_key"], cluster, vault="right") == ["{{ not_a_template }}"]


def test_a_secret_that_cannot_be_had_names_the_file(cluster: dict[str, Any]) -> None:
    path = f"{cluster['inventory_dir']}/secrets.yml"
    with pytest.raises(AnsibleError, match=f"{path}: no secret nonsense"):
        look_up("cluster_secret", ["nonsense"], cluster, vault="right")
    with pytest.raises(AnsibleError, match=f"{path}: the cluster's secrets cannot be read"):
        look_up("cluster_secret", ["munge_key"], cluster, vault="wrong")
    Path(path).unlink()
    with pytest.raises(AnsibleError, match=f"{path}: the cluster's secrets do not exist"):
        look_up("cluster_secret", ["munge_key"], cluster, vault="right")


@pytest.fixture
def whole(cluster: dict[str, Any]) -> dict[str, Any]:
    """A cluster's directory with one file of each kind, and with what is nobody else's business."""
    directory = Path(cluster["inventory_dir"])
    kept = (
        "cluster.yaml",
        "group_vars/all.yml",
        "host_vars/gpu01/site.yaml",
        "hardware/gpu01.json",
        "known_hosts",
        "ca/x.pem",
    )
    for name in (*kept, ".clusterctl/runs/log", "id_ed25519", "hardware/note.txt", "group_vars/.all.yml"):
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(f"{name}\n", encoding="utf-8")
    return cluster | {"inventory_file": str(directory / "cluster.yaml")}


@pytest.mark.proves("backup", "The head's copy contains the cluster's files and vault password, nothing else.")
def test_the_recovery_archive_holds_the_cluster_and_its_password_and_nothing_else(whole: dict[str, Any]) -> None:
    [encoded] = look_up("cluster_recovery", ["ca/x.pem"], whole, vault="right")
    directory = Path(whole["inventory_dir"])
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(encoded))) as tar:
        members = {member.name: member for member in tar.getmembers()}
        found = {name: tar.extractfile(member).read() for name, member in members.items()}  # type: ignore[union-attr]
    assert found.pop("vault/default") == b"right\n"
    names = {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}
    kept = names - {".clusterctl/runs/log", "id_ed25519", "hardware/note.txt", "group_vars/.all.yml"}
    assert found == {f"{directory.name}/{name}": (directory / name).read_bytes() for name in kept}
    assert {(member.mode, member.uid, member.mtime) for member in members.values()} == {(0o600, 0, 0)}


def test_the_recovery_archive_changes_with_its_content_alone(whole: dict[str, Any]) -> None:
    first = look_up("cluster_recovery", [], whole, vault="right")
    path = Path(whole["inventory_dir"], "known_hosts")
    os.utime(path, (1, 1))
    path.chmod(0o644)
    assert look_up("cluster_recovery", [], whole, vault="right") == first
    path.write_text("another\n", encoding="utf-8")
    assert look_up("cluster_recovery", [], whole, vault="right") != first


@pytest.mark.proves("untrusted", "A link out of the cluster's directory is not sent to the head.")
@pytest.mark.parametrize("name", ["known_hosts", ".gitignore", "hardware/gpu02.json", "ca/x.pem"])
def test_the_recovery_archive_follows_no_link_out_of_the_directory(
    whole: dict[str, Any], tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    """The head would be sent whatever file of the controller a stranger's directory names."""
    path = Path(whole["inventory_dir"], name)
    path.unlink(missing_ok=True)
    path.symlink_to(tmp_path_factory.mktemp("home") / "id_ed25519")
    path.resolve().write_text("PRIVATE KEY", encoding="utf-8")
    with pytest.raises(AnsibleError, match=f"{path}: is a link out of the cluster's directory"):
        look_up("cluster_recovery", ["ca/x.pem"], whole, vault="right")


@pytest.mark.proves("backup", "No copy is made without the password that opens the secrets.")
def test_there_is_no_recovery_archive_without_what_opens_the_secrets(whole: dict[str, Any]) -> None:
    path = Path(whole["inventory_dir"], "secrets.yml")
    for vault in ("wrong", ""):
        with pytest.raises(AnsibleError, match=f"{path}: no given vault password decrypts it"):
            look_up("cluster_recovery", [], whole, vault=vault)
    path.unlink()
    with pytest.raises(AnsibleError, match=f"{path}: the cluster's secrets do not exist"):
        look_up("cluster_recovery", [], whole, vault="right")


def test_subgroups_are_those_below_at_any_depth_and_place() -> None:
    inventory = {
        "all": {
            "children": {
                "slurm_head": {"hosts": {"head1": None}},
                "slurm_workers": {"children": {"a100": {"children": {"rack1": None}}, "h100": None}},
                "h100": {"children": {"rack2": None}},
            }
        }
    }
    assert SUBGROUPS.below(inventory, "slurm_workers") == ["a100", "rack1", "h100", "rack2"]
    assert SUBGROUPS.below(inventory, "slurm_head") == []


@pytest.mark.parametrize(
    ("pattern", "groups", "expected"),
    [
        ("slurm_head", {"all", "slurm_head"}, True),
        ("slurm_head:monitoring", {"all", "monitoring"}, True),
        ("monitoring:!slurm_head", {"all", "monitoring", "slurm_head"}, False),
        ("monitoring:!slurm_head", {"all", "monitoring"}, True),
        ("monitoring:&slurm_head", {"all", "monitoring"}, False),
        (["all"], {"all"}, True),
    ],
)
def test_a_play_is_for_the_hosts_that_its_pattern_names(pattern: str, groups: set[str], expected: bool) -> None:
    assert host_pattern.matches(pattern, groups) is expected


def test_bootstrap_plays__asked_twice__reads_the_file_once(tmp_path: Path) -> None:
    (tmp_path / "playbooks").mkdir()
    (tmp_path / "playbooks/bootstrap.yml").write_text(
        "- {hosts: all, roles: [packages]}\n- {hosts: 'a:!b', roles: [{role: base, x: true}, packages]}\n"
    )
    plays = bootstrap_plays.load(tmp_path)
    (tmp_path / "playbooks/bootstrap.yml").unlink()
    assert bootstrap_plays.load(tmp_path) is plays
    assert bootstrap_plays.roles_of_host(plays, {"all", "a"}) == ["base", "packages"]
    assert bootstrap_plays.roles_of_host(plays, {"all", "a", "b"}) == ["packages"]


def test_groups__of_a_group_that_a_run_makes__does_not_offer_it() -> None:
    """An inventory may have the groups that plays name, but not those that only select some of their hosts."""
    plays = [bootstrap_plays.Play("all:&_followers", ("base",)), bootstrap_plays.Play("a:b:!_followers", ("munge",))]
    assert bootstrap_plays.groups(plays) == {"all": ("base",), "a": ("munge",), "b": ("munge",)}


def test_a_package_is_wanted_once_and_the_stricter_statement_wins() -> None:
    pinned = {"name": "slurmd", "version": "24.11.*"}
    wanted = ["munge", "slurmd", pinned, "munge", {"name": "snapd", "state": "absent"}]
    assert PACKAGES.union(wanted) == ["munge", pinned]
    with pytest.raises(ValueError, match="slurmd is given as"):
        PACKAGES.union([pinned, {"name": "slurmd", "version": "25.05.*"}])


def on_debian(*groups: str, **variables: Any) -> dict[str, Any]:
    """Return the variables of a host of Debian 13 in these groups."""
    facts = {
        "os_family": "Debian",
        "distribution": "Debian",
        "distribution_major_version": "13",
        "distribution_release": "trixie",
        "architecture": "x86_64",
    }
    return {
        "inventory_hostname": "node1",
        "group_names": [*groups],
        "groups": {"all": ["node1"], **{group: ["node1"] for group in groups}},
        "cluster_name": "aurora",
        "ansible_facts": facts,
        **variables,
    }


@pytest.mark.proves("packages", "A missing package of disks' and sensors' tools stops no role of the scheduler.")
def test_packages__of_hardware_metrics__are_not_installed_first() -> None:
    variables = {**on_debian("slurm_workers"), "node_exporter_hardware": True}
    assert not {"smartmontools", "freeipmi-tools"} & {str(one) for one in look_up("role_packages", [], variables)}


@pytest.mark.parametrize(
    ("groups", "there", "elsewhere"),
    [
        (["slurm_head", "monitoring"], {"munge", "slurmctld", "mariadb-server", "prometheus"}, {"slurmd"}),
        (["slurm_workers"], {"munge", "slurmd"}, {"slurmctld", "mariadb-server", "prometheus"}),
    ],
)
def test_a_host_gets_the_packages_of_its_own_roles(groups: list[str], there: set[str], elsewhere: set[str]) -> None:
    found = look_up("role_packages", [], on_debian(*groups))
    names = [package if isinstance(package, str) else package["name"] for package in found]
    assert there <= set(names)
    assert not elsewhere & set(names)
    assert len(names) == len(set(names))


def test_hardware__of_a_record_that_has_changed__is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has not changed is read once in a process."""
    read: list[Path] = []
    load = hardware.load

    def counted(path: Path) -> hardware.Hardware:
        read.append(path)
        return load(path)

    monkeypatch.setattr(hardware, "load", counted)
    known = {"inventory_dir": str(tmp_path), "groups": {"all": ["gpu01", "gpu02"]}}
    for name in ("gpu01", "gpu02"):
        hardware.save(tmp_path, node(name=name))

    def memory() -> list[int]:
        (all_of_them,) = look_up("cluster_hardware", [], known)
        return [record["memory_mb"] for record in all_of_them.values()]

    before = memory()
    assert memory() == before
    layouts = {"__gpu_config_layouts": {"gpu01": {"0": "1g.10gb"}}}
    (as_announced,) = look_up("cluster_hardware", ["gpu01"], known | layouts)
    (as_it_is,) = look_up("cluster_hardware", ["gpu01"], known)
    assert as_announced["gpus"][0] != as_it_is["gpus"][0]
    assert len(read) == 2
    hardware.save(tmp_path, node(("memory_mb",), 4096, name="gpu02"))
    assert memory() == [before[0], 4096]
    assert len(read) == 3
    hardware.path_of(tmp_path, "gpu01").unlink()
    assert memory() == [4096]
