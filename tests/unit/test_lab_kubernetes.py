"""`clusterctl lab up --scheduler kubernetes`: its nodes, its inventory, and what a machine cannot have."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from clusterctl.inventory import model, schedulers
from clusterctl.lab import cli, kit, kit_recipe, lab, lab_inventory
from clusterctl.lab.podman import LabError
from clusterctl.lab.settings import Scheduler, Settings

SLURM = Settings("lab", subnet="10.213.9.0/24")
KUBERNETES = Settings("lab", scheduler=Scheduler.kubernetes, cgroups=1, subnet="10.213.9.0/24")


def inventory(settings: Settings, directory: Path, served: kit.Kit | None = None) -> dict[str, Any]:
    found = lab_inventory.variables(settings, directory, served, host_has_v1=True)
    text = lab_inventory.text(settings, settings.nodes(), directory / "key", "http://10.213.9.2:3142", found)
    document: dict[str, Any] = yaml.safe_load(text)["all"]
    return document


def test_schedulers__of_labs__are_those_of_inventories() -> None:
    assert {scheduler.value for scheduler in Scheduler} == {kind.name for kind in schedulers.KINDS}


@pytest.mark.proves("lab", "Labs of both schedulers have inventories that differ by the prefix of groups.")
def test_inventory__of_both_schedulers__has_the_same_hosts_in_groups_of_another_prefix(tmp_path: Path) -> None:
    slurm, kubernetes = inventory(SLURM, tmp_path), inventory(KUBERNETES, tmp_path)
    groups = {name.replace("slurm_", "kubernetes_"): hosts for name, hosts in slurm["children"].items()}
    assert kubernetes["children"] == groups
    shared = {name for name in slurm["vars"] if not name.startswith("slurm_")}
    own = {name for name in kubernetes["vars"] if not name.startswith(("kubernetes_", "containerd_"))}
    assert own == shared


@pytest.mark.parametrize("heads", [1, 3])
def test_inventory__of_kubernetes__is_valid(tmp_path: Path, heads: int) -> None:
    """All its variables are those of roles, and the API's address is none of a node's."""
    settings = dataclasses.replace(KUBERNETES, heads=heads)
    key = tmp_path / "key"
    key.touch(mode=0o600)
    found = lab_inventory.variables(settings, tmp_path, None, host_has_v1=True)
    path = tmp_path / "inventory.yaml"
    path.write_text(lab_inventory.text(settings, settings.nodes(), key, "http://10.213.9.2:3142", found))
    assert [host.name for host in model.load(path).hosts] == [node.name for node in settings.nodes()]


def test_inventory__of_version_1__lets_kubelet_run_there(tmp_path: Path) -> None:
    given = inventory(KUBERNETES, tmp_path)["vars"]
    assert (
        given["kubernetes_node_kubelet_config"].items() >= {"failCgroupV1": False, "cgroupDriver": "cgroupfs"}.items()
    )
    assert "slurm_head_confine" not in given
    unified = inventory(Settings("lab", scheduler="kubernetes", subnet="10.213.9.0/24"), tmp_path)["vars"]
    assert not {"failCgroupV1", "cgroupDriver"} & unified["kubernetes_node_kubelet_config"].keys()


def test_inventory__with_the_kit__names_its_certificate_and_sources(tmp_path: Path) -> None:
    recipes = tuple(kit_recipe.load(("debian", "nvidia-container-toolkit")))
    served = kit.Kit("https://10.88.255.252/0123", "10.88.255.252", "a certificate", "ABCD" * 10, recipes)
    given = inventory(KUBERNETES, tmp_path, served)["vars"]
    assert (tmp_path / given["cluster_ca_certificates"][0]).read_text() == "a certificate"
    assert given["cluster_no_proxy"] == ["10.88.255.252"]
    assert given["nvidia_container_toolkit_key_fingerprint"] == "ABCD" * 10


@pytest.mark.proves("lab", "A lab with three heads has an API address apart from theirs.")
def test_nodes__of_three_heads_and_many_workers__have_addresses_of_their_own(tmp_path: Path) -> None:
    settings = Settings("lab", scheduler="kubernetes", heads=3, workers=200, cgroups=1, subnet="10.213.9.0/24")
    nodes = settings.nodes()
    assert [node.name for node in nodes[:4]] == ["head1", "head2", "head3", "gpu01"]
    assert [(node.is_head, node.gpus) for node in nodes[2:4]] == [(True, 0), (False, 4)]
    assert nodes[0].address == SLURM.nodes()[0].address
    given = inventory(settings, tmp_path)
    assert list(given["children"]["kubernetes_head"]["hosts"]) == ["head1", "head2", "head3"]
    addresses = {node.address for node in nodes} | {"10.213.9.1", given["vars"]["kubernetes_node_api_address"]}
    assert len(addresses) == 205


@pytest.mark.parametrize(
    ("settings", "v1", "message"),
    [
        ({"heads": 3}, True, "--heads 3: a Slurm cluster has one head or two"),
        ({"heads": 2, "scheduler": "kubernetes", "cgroups": 1}, True, "--heads 2: expected an odd number"),
        ({"cgroups": 1}, False, "--cgroups 1: this machine has only version 2"),
        ({"cgroups": 2, "scheduler": "kubernetes"}, True, "--cgroups 2: kubelet needs the controllers"),
    ],
)
def test_up__settings_that_cannot_be__are_refused_before_anything_is_made(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], v1: bool, message: str
) -> None:
    monkeypatch.setattr(lab, "host_has_v1", lambda: v1)
    monkeypatch.setattr(lab, "require_programs", lambda: pytest.fail("it went on"))
    with pytest.raises(LabError, match=message):
        lab.Lab("lab").up(Settings("lab", **settings))


@pytest.mark.proves("lab", "An existing lab gets more nodes and no other settings, refused before a build.")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"scheduler": "slurm", "heads": 1, "cgroups": 2},
            "exists with --scheduler kubernetes, --cgroups 1; to change",
        ),
        ({"heads": 1}, "has 3 heads and cannot shrink"),
        ({"workers": 1}, "has 2 workers and cannot shrink"),
    ],
)
def test_up__existing_lab__does_not_change_or_shrink(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], message: str
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(lab, "host_has_v1", lambda: True)
    monkeypatch.setattr(lab, "require_programs", lambda: pytest.fail("it went on"))
    stored = dataclasses.replace(KUBERNETES, heads=3)
    one = lab.Lab("lab")
    one._private.mkdir(parents=True)
    (one._private / "lab.json").write_text(json.dumps(dataclasses.asdict(stored)))
    with pytest.raises(LabError, match=message):
        one.up(dataclasses.replace(stored, **settings))


@pytest.fixture
def up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`lab up` with these options, without a machine: returns the settings that it came to."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(cli, "host_has_v1", lambda: True)
    found: list[Settings] = []
    monkeypatch.setattr(lab.Lab, "settings", lambda _: found[-1] if found else None)

    def take(_: lab.Lab, wanted: Settings, say: Any) -> tuple[list[Any], bool]:
        found.append(wanted)
        return [], False

    monkeypatch.setattr(lab.Lab, "up", take)

    def run(*options: str) -> Settings:
        done: Result = CliRunner().invoke(cli.app, ["up", *options])
        assert done.exit_code == 0, done.output
        return found[-1]

    return run


@pytest.mark.proves("lab", "A Kubernetes lab builds what Kubernetes needs of the kit, and keeps what was added.")
def test_up__kubernetes__takes_its_part_of_the_kit(up: Any) -> None:
    first = up("--scheduler", "kubernetes", "--recipe", "kubernetes-previous", "--heads", "3")
    assert (first.scheduler, first.heads, first.cgroups, first.kit) == ("kubernetes", 3, 1, True)
    assert first.recipes == [*lab_inventory.KUBERNETES_RECIPES, "kubernetes-previous"]
    assert up() == first
    assert up("--scheduler", "kubernetes") == first
    assert up("--recipe", "helm").recipes == [*lab_inventory.KUBERNETES_RECIPES, "helm"]
    assert up("--scheduler", "kubernetes", "--kit").recipes[-1] == "dcgm-exporter-simulated"


def test_recipes__of_kubernetes__are_in_the_kit_with_what_they_need() -> None:
    found = {recipe.name for recipe in kit_recipe.load(lab_inventory.KUBERNETES_RECIPES)}
    assert found >= {*lab_inventory.KUBERNETES_RECIPES, "coredns", "cri-tools", "etcd", "kubernetes-cni", "pause"}


def test_up__slurm__needs_no_kit(up: Any) -> None:
    assert (up().scheduler, up().kit, up().cgroups) == ("slurm", False, 2)


def running(*schedulers: str) -> list[dict[str, Any]]:
    return [{"Labels": {"clusterctl.lab": "other", "clusterctl.lab.scheduler": name}} for name in schedulers]


@pytest.mark.proves("lab", "A lab that needs more inotify instances than the machine has is refused.")
@pytest.mark.parametrize(
    ("workers", "there", "used", "fits"),
    [
        (2, [], 40, True),  # 66 of the 88 that are left
        (3, [], 40, True),
        (4, [], 40, False),
        (2, ["kubernetes"] * 3, 15, False),  # a lab that will use 66, but is not bootstrapped yet
        (2, ["slurm"] * 3, 15, True),
    ],
)
def test_inotify__of_a_kubernetes_lab__is_counted(
    monkeypatch: pytest.MonkeyPatch, workers: int, there: list[str], used: int, fits: bool
) -> None:
    class Done:
        stdout = "/proc/1/fd/3\n" * used

    monkeypatch.setattr(lab, "podman_json", lambda *_: running(*there))
    monkeypatch.setattr(lab, "run_as_root", lambda *_, **__: Done)
    monkeypatch.setattr(Path, "read_text", lambda _: "128\n")
    wanted = Settings("lab", scheduler="kubernetes", workers=workers)
    if fits:
        lab.Lab("lab")._require_inotify(wanted)
        return
    with pytest.raises(
        LabError, match=rf"{workers + 1} more nodes need {(workers + 1) * 22} inotify instances, 22 each"
    ):
        lab.Lab("lab")._require_inotify(wanted)


def test_container__of_kubernetes__has_volumes_of_its_own_for_etcd(monkeypatch: pytest.MonkeyPatch) -> None:
    argv: list[str] = []
    monkeypatch.setattr(lab, "podman", lambda *words: argv.extend(words))
    monkeypatch.setattr(lab, "container_state", lambda name: "")
    for settings, expected in ((SLURM, 0), (KUBERNETES, 1)):
        argv.clear()
        lab.Lab("lab")._ensure_container(settings.nodes()[0], settings, "an-image")
        assert argv.count("--volume=/var/lib/etcd") == expected
        assert f"clusterctl.lab.scheduler={settings.scheduler}" in argv
