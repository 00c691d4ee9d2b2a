"""Recipes of the kit: what is built from which published sources, read from recipes/NAME/recipe.yaml.

A recipe has no download URL: its go.mod and go.sum pin every module by its hash, and Go refuses any other content. Its
pom.xml names artifacts of Maven's central repository, and maven.sha256 pins each by its hash.
In all texts `{version}`, `{major}`, `{minor}` and `{architecture}` are replaced with the recipe's version, its first
two parts and Debian's name of the architecture. In a package `{version}` is the package's version.
"""

import functools
import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from clusterctl.lab.podman import LabError
from clusterctl.util import yaml_text
from clusterctl.util.errors import ClusterctlError

RECIPES = Path(__file__).resolve().parent / "recipes"


@dataclass(frozen=True)
class Go:
    """Programs of Go modules; `programs` are packages below `module`, built as bin/NAME.

    The program `.` is the module itself, and one that starts with a host's name is a package of any module in go.mod.
    Without programs only the module's source is fetched. `tests` are packages whose tests are built as bin/NAME.test.
    """

    module: str
    programs: tuple[str, ...] = ()
    version: str = ""  # of the module, if the recipe has another
    ldflags: str = ""
    cgo: bool = True
    tests: tuple[str, ...] = ()

    def packages(self) -> list[str]:
        """Return the import paths of the programs."""
        own = [f"{self.module}/{program}".removesuffix("/.") for program in self.programs]
        is_full = [re.match(r"[\w-]+\.[\w.-]+/", program) for program in self.programs]
        return [program if full else path for program, path, full in zip(self.programs, own, is_full, strict=True)]

    def built(self) -> list[str]:
        """Return the programs as Go names them: the last part of the path that is no major version."""
        paths = (re.sub(r"/v[0-9]+$", "", package) for package in self.packages())
        programs = [f"bin/{path.rsplit('/', 1)[-1]}" for path in paths]
        return programs + [f"bin/{path.rsplit('/', 1)[-1]}.test" for path in self.tests]


@dataclass(frozen=True)
class Package:
    """A Debian package; `version` defaults to the recipe's. `files` maps a file's path to its source.

    The source is bin/PROGRAM or source/FILE of the module, recipe/FILE beside the recipe, or /dev/null for an empty
    file. Files below /etc that are not empty are the package's configuration. `setup` is a shell script that runs in
    the package's tree and may add to it and to DEBIAN/conffiles; Maven's artifacts are in /work/maven.
    """

    control: str
    version: str
    files: Mapping[str, str]
    setup: str = ""
    preinst: str = ""
    postinst: str = ""
    prerm: str = ""
    postrm: str = ""


@dataclass(frozen=True)
class Image:
    """A container image, named as in its registry; `tag` defaults to the recipe's version.

    With `packages` it has these packages of Debian and what they depend on, unpacked, not configured. With a suite and
    no packages it is Debian's minimal system. `files` are as in Package. `setup` is a shell script that runs in the
    image's tree, outside of the image.
    """

    name: str
    tag: str
    suite: str = ""  # of Debian; empty: that of the build container
    packages: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    setup: str = ""
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    user: str = ""

    @property
    def registry(self) -> str:
        """The registry that the image is pulled from; empty if its name has none."""
        first = self.name.split("/")[0]
        return first if "." in first else ""

    @property
    def archive(self) -> str:
        """The name of the file with its tree."""
        return f"{self.name.replace('/', '+')}.tar"

    @property
    def is_system(self) -> bool:
        """Whether it is Debian's minimal system."""
        return bool(self.suite and not self.packages)

    def changes(self) -> list[str]:
        """Return the instructions that configure the image, as in a Containerfile."""
        if self.is_system:
            return []
        found = ["ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]
        for name, argv in (("ENTRYPOINT", self.entrypoint), ("CMD", self.command)):
            if argv:
                found.append(f"{name} {json.dumps(argv)}")
        return [*found, *([f"USER {self.user}"] if self.user else [])]


@dataclass(frozen=True)
class Recipe:
    """One thing that the kit can build.

    `repositories` are the paths of its packages below the kit's URL, as below the vendor's. `repository_key` is the
    vendor's path of the public key; `{repository}` is replaced in it. `variables` are added to a lab's inventory;
    `{url}` and `{fingerprint}` are replaced with the kit's URL and the fingerprint of its key. `needs` are recipes
    without which the result is useless. A `suite` is that of a repository with dists/SUITE/COMPONENT ("stable main");
    one without is flat. `tools` are Debian packages that its build needs beside the build container's. An optional
    recipe is built only if it is named or needed. A recipe `like` another one has all that it does not state from that
    one, and its own go.mod and go.sum, or pom.xml and maven.sha256.
    """

    name: str
    directory: Path
    description: str
    version: str
    needs: tuple[str, ...] = ()
    optional: bool = False
    like: Path | None = None
    repositories: tuple[str, ...] = ()
    repository_key: str = ""
    suite: str = ""
    tools: tuple[str, ...] = ()
    maven: bool = False
    variables: Mapping[str, Any] = field(default_factory=dict)
    go: Go | None = None
    c: Mapping[str, str] = field(default_factory=dict)  # static C programs: name -> arguments of gcc
    packages: Mapping[str, Package] = field(default_factory=dict)
    images: tuple[Image, ...] = ()

    @property
    def directories(self) -> tuple[Path, ...]:
        """The directories with its files; a file of a later one replaces that of an earlier one."""
        return (self.like, self.directory) if self.like else (self.directory,)

    @property
    def is_compiled(self) -> bool:
        """Whether it needs the build container."""
        return bool(self.packages) or not all(image.is_system for image in self.images)

    def digest(self, builder: str) -> str:
        """Return a digest of everything that the result depends on; `builder` is the build container's image."""
        digest = hashlib.sha256(builder.encode())
        for directory in self.directories:
            for path in sorted(path for path in directory.rglob("*") if path.is_file()):
                digest.update(str(path.relative_to(directory)).encode() + b"\0" + path.read_bytes())
        return digest.hexdigest()[:12]


def names(directory: Path = RECIPES) -> list[str]:
    """Return the names of all recipes."""
    return sorted(path.parent.name for path in directory.glob("*/recipe.yaml"))


def load(wanted: tuple[str, ...] = (), directory: Path = RECIPES) -> list[Recipe]:
    """Return the recipes of these names, or all that are not optional, each after those that it needs.

    An unknown name is a LabError.
    """
    known = names(directory)
    if unknown := [name for name in wanted if name not in known]:
        raise LabError(f"the kit has no recipe {', '.join(unknown)}; choose from {', '.join(known)}")
    read = functools.cache(lambda name: _read(directory / name))
    found: dict[str, Recipe] = {}

    def add(name: str) -> None:
        if name not in found:
            for needed in read(name).needs:
                add(needed)
            found[name] = read(name)

    for name in wanted or [name for name in known if not read(name).optional]:
        add(name)
    return list(found.values())


@functools.cache
def architecture() -> str:
    """Debian's name of this machine's architecture."""
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)


def fill(value: Any, known: Mapping[str, str]) -> Any:
    """Replace placeholders in all texts of a value."""
    if isinstance(value, Mapping):
        return {key: fill(item, known) for key, item in value.items()}
    if isinstance(value, list):
        return [fill(item, known) for item in value]
    if isinstance(value, str):
        for name, text in known.items():
            value = value.replace(name, text)
    return value


def _read(directory: Path) -> Recipe:
    try:
        raw = yaml_text.load((directory / "recipe.yaml").read_text())
        like = directory.parent / raw.pop("like") if "like" in raw else None
        if like:
            raw = {**yaml_text.load((like / "recipe.yaml").read_text()), **raw}
        version = raw["version"]
        major, minor = [*re.split(r"[.+-]", version), ""][:2]
        known = {"{version}": version, "{major}": major, "{minor}": minor, "{architecture}": architecture()}
        packages = {name: _package(package, known) for name, package in raw.pop("packages", {}).items()}
        raw = fill(raw, known)
        raw |= {key: tuple(raw.get(key, ())) for key in ("needs", "repositories", "tools")}
        go, images = raw.pop("go", None), raw.pop("images", ())
        return Recipe(
            directory.name,
            directory,
            like=like,
            go=Go(**{**go, **{key: tuple(go.get(key, ())) for key in ("programs", "tests")}}) if go else None,
            packages=packages,
            images=tuple(_image(image, version) for image in images),
            **raw,
        )
    except (OSError, yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        raise ClusterctlError(f"{directory / 'recipe.yaml'} is damaged: {type(error).__name__}: {error}") from error


def _package(raw: Mapping[str, Any], known: Mapping[str, str]) -> Package:
    version = fill(raw.get("version", "{version}"), known)
    return Package(**fill({**raw, "version": version}, {**known, "{version}": version}))


def _image(raw: Mapping[str, Any], version: str) -> Image:
    lists = {key: tuple(raw.get(key, ())) for key in ("packages", "entrypoint", "command")}
    return Image(**{"tag": version, **raw, **lists})
