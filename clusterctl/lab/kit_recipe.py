"""Recipes of the kit: what is built from which published sources, read from recipes/NAME/recipe.yaml.

A recipe has no download URL: its go.mod and go.sum pin every module by its hash, and Go refuses any other content.
`{version}` and `{architecture}` are replaced with the recipe's version and Debian's name of the architecture.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from clusterctl.lab.podman import LabError
from clusterctl.util.errors import ClusterctlError

RECIPES = Path(__file__).resolve().parent / "recipes"


@dataclass(frozen=True)
class Go:
    """Programs of one Go module; `programs` are packages below it, built as bin/NAME."""

    module: str
    programs: tuple[str, ...]
    ldflags: str = ""


@dataclass(frozen=True)
class Package:
    """A Debian package; `version` defaults to the recipe's. `files` maps a file's path to its source.

    The source is bin/PROGRAM or source/FILE of the module, or recipe/FILE beside the recipe.
    """

    control: str
    files: Mapping[str, str]
    version: str = ""
    postinst: str = ""
    postrm: str = ""


@dataclass(frozen=True)
class Image:
    """A container image: Debian of this suite."""

    name: str
    suite: str


@dataclass(frozen=True)
class Recipe:
    """One thing that the kit can build.

    `repository` is the path of its packages below the kit's URL, as below the vendor's. `repository_key` is the
    vendor's path of the public key. `variables` are added to a lab's inventory; `{url}` and `{fingerprint}` are
    replaced with the kit's URL and the fingerprint of its key.
    """

    name: str
    directory: Path
    description: str
    version: str
    repository: str = ""
    repository_key: str = ""
    variables: Mapping[str, Any] = field(default_factory=dict)
    go: Go | None = None
    packages: Mapping[str, Package] = field(default_factory=dict)
    image: Image | None = None

    def digest(self, builder: str) -> str:
        """Return a digest of everything that the result depends on; `builder` is the build container's image."""
        digest = hashlib.sha256(builder.encode())
        for path in sorted(path for path in self.directory.rglob("*") if path.is_file()):
            digest.update(str(path.relative_to(self.directory)).encode() + b"\0" + path.read_bytes())
        return digest.hexdigest()[:12]


def load(names: tuple[str, ...] = (), directory: Path = RECIPES) -> list[Recipe]:
    """Return the recipes of these names, or all; LabError for an unknown name."""
    known = sorted(path.parent.name for path in directory.glob("*/recipe.yaml"))
    if unknown := [name for name in names if name not in known]:
        raise LabError(f"the kit has no recipe {', '.join(unknown)}; choose from {', '.join(known)}")
    return [_read(directory / name) for name in dict.fromkeys(names or known)]


def _read(directory: Path) -> Recipe:
    try:
        raw = yaml.safe_load((directory / "recipe.yaml").read_text())
        go, image = raw.pop("go", None), raw.pop("image", None)
        return Recipe(
            directory.name,
            directory,
            go=Go(**{**go, "programs": tuple(go["programs"])}) if go else None,
            packages={name: Package(**package) for name, package in raw.pop("packages", {}).items()},
            image=Image(**image) if image else None,
            **raw,
        )
    except (OSError, yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        raise ClusterctlError(f"{directory / 'recipe.yaml'} is damaged: {type(error).__name__}: {error}") from error
