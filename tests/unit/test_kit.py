"""Recipes of the kit as data; what is built and served of them, tests/cluster/test_containers.py shows."""

import re
import shutil
from pathlib import Path

import pytest

from clusterctl.errors import ClusterctlError
from clusterctl.lab import kit, kit_recipe
from clusterctl.lab.podman import LabError

ALL = kit_recipe.load()


def test_an_unknown_recipe_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(LabError, match=r"has no kubernets; choose from dcgm-exporter-simulated, debian, nvidia-"):
        kit_recipe.load(("debian", "kubernets"))


def test_a_damaged_recipe_is_a_bug_of_ours(tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "recipe.yaml").write_text("description: x\nversion: '1'\nverison: '2'\n")
    with pytest.raises(ClusterctlError, match=r"bad/recipe.yaml is damaged: TypeError: .*verison"):
        kit_recipe.load(directory=tmp_path)


@pytest.mark.parametrize("recipe", ALL, ids=lambda recipe: recipe.name)
def test_a_result_is_known_by_all_that_it_depends_on(recipe: kit_recipe.Recipe, tmp_path: Path) -> None:
    shutil.copytree(recipe.directory, tmp_path / recipe.name)
    (again,) = kit_recipe.load(directory=tmp_path)
    assert again.digest("builder") == recipe.digest("builder")
    assert again.digest("another builder") != recipe.digest("builder")
    for path in (tmp_path / recipe.name).iterdir():
        kept = path.read_text()
        path.write_text(f"{kept}\n# changed")
        assert again.digest("builder") != recipe.digest("builder"), path
        path.write_text(kept)


@pytest.mark.parametrize("recipe", [recipe for recipe in ALL if recipe.go], ids=lambda recipe: recipe.name)
def test_every_module_is_pinned_by_its_hash(recipe: kit_recipe.Recipe) -> None:
    pins = (recipe.directory / "go.sum").read_text()
    named = re.findall(r"^(?:require )?\s*(\S+) (v\S+)", (recipe.directory / "go.mod").read_text(), re.MULTILINE)
    assert recipe.go
    assert (recipe.go.module, f"v{recipe.version.split('-')[0]}") in named
    for module, version in named:
        assert re.search(rf"^{re.escape(module)} {re.escape(version)} h1:\S{{44}}$", pins, re.MULTILINE), module


@pytest.mark.parametrize("recipe", ALL, ids=lambda recipe: recipe.name)
def test_what_is_packed_is_built_and_has_no_placeholder_left(recipe: kit_recipe.Recipe) -> None:
    built = {f"bin/{program.rsplit('/', 1)[-1]}" for program in recipe.go.programs} if recipe.go else set()
    packed = {origin for package in recipe.packages.values() for origin in package.files.values()}
    assert {origin for origin in packed if not origin.startswith(("recipe/", "source/"))} == built
    own = [origin.removeprefix("recipe/") for origin in packed if origin.startswith("recipe/")]
    assert all((recipe.directory / name).is_file() for name in own)
    for name, package in recipe.packages.items():
        assert "{" not in kit._pack(recipe, name, package)


def test_a_lab_is_told_where_and_by_which_key() -> None:
    recipe, small = kit_recipe.load(("nvidia-container-toolkit", "debian"))
    served = kit.Kit("https://10.88.255.252/0123", "10.88.255.252", "", "ABCD" * 10, (recipe, small))
    folder = f"libnvidia-container/stable/deb/{kit.architecture()}"
    assert served.place(recipe) == f"https://10.88.255.252/0123/{folder}"
    assert served.place(small) == "10.88.255.252/lab/debian:13"
    assert served.variables() == {
        "nvidia_container_toolkit_repository_url": "https://10.88.255.252/0123/libnvidia-container",
        "nvidia_container_toolkit_key_fingerprint": "ABCD" * 10,
        "nvidia_container_toolkit_version": "1.20.1",
    }
