"""Recipes of the kit as data; what is built and served of them, tests/cluster/test_containers.py shows."""

import fcntl
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from typer.testing import CliRunner

from clusterctl.lab import cache, cli, image, kit, kit_build, kit_pack, kit_recipe, lab
from clusterctl.lab.podman import LabError
from clusterctl.lab.settings import Settings
from clusterctl.util.errors import ClusterctlError

ALL = kit_recipe.load(tuple(kit_recipe.names()))
DEFAULT = kit_recipe.load()


def test_an_unknown_recipe_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(LabError, match=r"has no recipe kubernets; choose from busybox, coredns, .*, kubernetes, "):
        kit_recipe.load(("debian", "kubernets"))


def test_a_damaged_recipe_is_a_bug_of_ours(tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "recipe.yaml").write_text("description: x\nversion: '1'\nverison: '2'\n")
    with pytest.raises(ClusterctlError, match=r"bad/recipe.yaml is damaged: TypeError: .*verison"):
        kit_recipe.load(directory=tmp_path)


@pytest.mark.proves("lab", "A changed recipe or builder changes the identity of a built result.")
@pytest.mark.parametrize("recipe", ALL, ids=lambda recipe: recipe.name)
def test_a_result_is_known_by_all_that_it_depends_on(recipe: kit_recipe.Recipe, tmp_path: Path) -> None:
    for directory in recipe.directories:
        shutil.copytree(directory, tmp_path / directory.name)

    def digest(builder: str = "builder") -> str:
        return kit_recipe._read(tmp_path / recipe.name).digest(builder)

    assert digest() == recipe.digest("builder")
    assert digest("another builder") != recipe.digest("builder")
    for path in (path for directory in recipe.directories for path in (tmp_path / directory.name).iterdir()):
        kept = path.read_text()
        path.write_text(f"{kept}\n# changed")
        assert digest() != recipe.digest("builder"), path
        path.write_text(kept)


@pytest.mark.proves("lab", "Every Go module of the kit is pinned by its hash.")
@pytest.mark.parametrize("recipe", [recipe for recipe in ALL if recipe.go], ids=lambda recipe: recipe.name)
def test_every_module_is_pinned_by_its_hash(recipe: kit_recipe.Recipe) -> None:
    pins = (recipe.directory / "go.sum").read_text()
    text = (recipe.directory / "go.mod").read_text()
    named = re.findall(r"^(?:require )?\s*(\S+) (v\S+)", text, re.MULTILINE)
    instead = {old: (new, version) for old, new, version in re.findall(r"(\S+) => (\S+) (v\S+)", text)}
    assert recipe.go
    assert (recipe.go.module, f"v{recipe.go.version or recipe.version.split('-')[0]}") in named
    for wanted in named:
        module, version = instead.get(wanted[0], wanted)
        assert re.search(rf"^{re.escape(module)} {re.escape(version)} h1:\S{{44}}$", pins, re.MULTILINE), module


@pytest.mark.proves("lab", "The kit's packages and images contain exactly the programs that their recipe builds.")
@pytest.mark.parametrize("recipe", ALL, ids=lambda recipe: recipe.name)
def test_what_is_packed_is_built_and_has_no_placeholder_left(recipe: kit_recipe.Recipe) -> None:
    built = {f"bin/{program}" for program in recipe.c} | set(recipe.go.built() if recipe.go else ())
    files = [*(one.files for one in recipe.packages.values()), *(one.files for one in recipe.images)]
    packed = {origin for some in files for origin in some.values()} - {"/dev/null"}
    packed |= {getattr(package, script) for package in recipe.packages.values() for script in kit_pack.SCRIPTS} - {""}
    assert {origin for origin in packed if not origin.startswith(("recipe/", "source/"))} == built
    own = {path.name for directory in recipe.directories for path in directory.iterdir()}
    assert {origin.removeprefix("recipe/") for origin in packed if origin.startswith("recipe/")} <= own
    texts = [kit_pack.package_script(name, package) for name, package in recipe.packages.items()]
    texts += [kit_pack.image_script(made) + made.tag for made in recipe.images]
    texts += [*recipe.repositories, *recipe.c.values(), kit_build.go_script(recipe.go) if recipe.go else ""]
    assert not [text for text in texts if re.search(r"\{\w+\}", text)]
    assert bool(recipe.repositories) == bool(recipe.packages)


def test_a_lab_is_told_where_and_by_which_key() -> None:
    recipe, small = kit_recipe.load(("nvidia-container-toolkit", "debian"))
    served = kit.Kit("https://10.88.255.252/0123", "10.88.255.252", "", "ABCD" * 10, (recipe, small))
    folder = f"libnvidia-container/stable/deb/{kit_recipe.architecture()}"
    assert served.places(recipe) == [f"https://10.88.255.252/0123/{folder}"]
    assert served.places(small) == ["10.88.255.252/lab/debian:13"]
    assert served.variables() == {
        "nvidia_container_toolkit_repository_url": "https://10.88.255.252/0123/libnvidia-container",
        "nvidia_container_toolkit_key_fingerprint": "ABCD" * 10,
        "nvidia_container_toolkit_version": "1.20.1",
    }


@dataclass
class Machine:
    """A machine on which labs come and go: what runs there, and a step that another process takes in between."""

    running: set[str] = field(default_factory=set)
    built: list[str] = field(default_factory=list)
    meanwhile: Thread | None = None

    def build(self, recipes: list[kit_recipe.Recipe], *_: Any) -> kit.Build:
        self.built += [recipe.name for recipe in recipes]
        return kit.Build(tuple(recipes), {}, "builder")

    def serve(self, build: kit.Build, *_: Any) -> kit.Kit:
        self.running.add("kit")
        if self.meanwhile:
            self.meanwhile.start()
            if not labs_are_locked():
                self.meanwhile.join()
        return kit.Kit("https://10.88.255.252/0123", "10.88.255.252", "", "ABCD" * 10, build.recipes)

    def podman_json(self, command: str, *options: str) -> list[dict[str, Any]]:
        wanted = [option.partition("label=clusterctl.lab")[2].lstrip("=") for option in options if "label" in option]
        names = [name for name in self.running if name.startswith(f"clusterctl-{wanted[0]}")] if wanted else []
        return [{"Names": [name], "Labels": {}} for name in names] if command == "ps" else []


def labs_are_locked() -> bool:
    with (lab._state_directory() / ".lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine without podman; the labs' lock, directories and decisions are real."""
    machine = Machine()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    lab._state_directory().mkdir(parents=True)
    monkeypatch.setattr(kit, "build", machine.build)
    monkeypatch.setattr(kit, "serve", machine.serve)
    monkeypatch.setattr(kit, "remove", lambda: machine.running.discard("kit"))
    monkeypatch.setattr(cache, "ensure", lambda _: "http://10.88.255.253:3142")
    monkeypatch.setattr(cache, "remove", lambda: None)
    monkeypatch.setattr(image, "ensure", lambda *_: ("image", False))
    for name in ("require_programs", "podman"):
        monkeypatch.setattr(lab, name, lambda *_, **__: "")
    monkeypatch.setattr(lab, "podman_json", machine.podman_json)
    monkeypatch.setattr(lab, "remove_containers", lambda *names: machine.running.difference_update(names))
    for name in ("_require_ours", "_require_inotify", "_wait_reachable"):
        monkeypatch.setattr(lab.Lab, name, lambda *_: None)
    monkeypatch.setattr(lab.Lab, "_ensure_network", lambda _: "10.213.0.0/24")
    monkeypatch.setattr(
        lab.Lab, "_ensure_container", lambda self, node, *_: machine.running.add(self.container(node.name))
    )
    return machine


@pytest.mark.proves("lab", "`lab down` of another lab keeps the kit's server while a lab starts.")
def test_kit__another_lab_goes_while_one_is_made__server_stays(machine: Machine) -> None:
    """The other `down` comes between the start of the server and the first container of the lab that needs it."""
    machine.meanwhile = Thread(target=lab.Lab("old").down)
    lab.Lab("new").up(Settings("new", kit=True))
    machine.meanwhile.join(timeout=60)
    assert machine.running == {"kit", "clusterctl-new-head1", "clusterctl-new-gpu01", "clusterctl-new-gpu02"}
    lab.Lab("old").down()
    assert "kit" in machine.running
    lab.Lab("new").down()
    assert machine.running == set()


@pytest.mark.proves("lab", "A lab builds only the kit recipes that it names.")
def test_kit__lab_with_recipes__builds_only_those(machine: Machine) -> None:
    def up(*options: str) -> list[str]:
        machine.built.clear()
        done = CliRunner().invoke(cli.app, ["up", "--name", "small", *options])
        assert done.exit_code == 0, done.output
        return sorted(machine.built)

    assert up() == []
    assert up("--recipe", "debian") == ["debian"]
    assert up() == ["debian"], "the lab keeps what it was made with"
    assert "nvidia_container_toolkit_version" not in lab.Lab("small").inventory.read_text()
    assert up("--kit") == sorted(recipe.name for recipe in DEFAULT)
    assert "nvidia_container_toolkit_version" in lab.Lab("small").inventory.read_text()


@pytest.mark.proves("lab", "A lab that waits for another build of the kit says so.")
def test_build__while_another_one_runs__waits_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        fcntl.flock(other, fcntl.LOCK_UN)  # the other build ends, so that this test does

    with (kit_build.directory() / ".lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        monkeypatch.setattr(kit, "require_programs", lambda: None)
        monkeypatch.setattr(kit_build, "ensure_builder", lambda *_: "builder")
        assert kit.build([], say).results == {}
    assert said == ["wait for another build of the kit"]
