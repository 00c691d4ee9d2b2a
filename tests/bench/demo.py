"""The demo from a fresh clone, with and without what earlier runs left on the machine.

Cold means: no node image, no image of the package cache, no cached package, an empty pip cache. What scripts/prepare
installs with apt-get is there in both cases: the bench removes nothing from the machine.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.bench.measure import BenchError, Cost, Document, bench_lab_name, load, run, say
from tests.labs import REPOSITORY

IMAGES = ("localhost/clusterctl-lab", "localhost/clusterctl-cache")
LIMIT = 1800.0
"""Seconds after which a demo hangs: a cold one downloads all that it needs."""


def main() -> Document:
    """Measure the demo warm (after an untimed run) and cold; return the figures. Everything made is removed."""
    refuse_other_labs()
    with _clone() as folder:
        _demo(folder, {})  # untimed: makes the node image and fills the caches
    warm = warm_demo()
    with _clone() as folder, images_aside():
        cold = _demo(folder, {"XDG_CACHE_HOME": str(folder / "cache"), "PIP_CACHE_DIR": str(folder / "cache" / "pip")})
    say(f"  cold  {cold}; {load()}")
    return {"warm": warm.document(), "cold": cold.document(), "ratio": round(cold.wall / warm.wall, 2)}


def warm_demo() -> Cost:
    """Measure one demo, with what earlier runs left on the machine."""
    say(f"The demo from a fresh clone of {REPOSITORY.name}; {load()}")
    with _clone() as folder:
        warm = _demo(folder, {})
    say(f"  warm  {warm}; {load()}")
    return warm


def refuse_other_labs() -> None:
    """Raise BenchError if there is a lab: all labs share the images and the package cache that a cold demo lacks."""
    _, listing = run("podman", "ps", "--all", "--filter", "label=clusterctl.lab", "--format", "{{.Names}}")
    if listing.split():
        raise BenchError(
            f"the demo is measured on a machine without other labs; these stand: {' '.join(listing.split())}"
        )


@contextlib.contextmanager
def _clone() -> Iterator[Path]:
    """A folder with a clone of what is committed here, in `clone`; removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="clusterctl-bench-", dir="/var/tmp"))
    try:
        run("git", "clone", "--quiet", REPOSITORY, folder / "clone")
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _demo(folder: Path, env: Mapping[str, str]) -> Cost:
    """Run scripts/demo as after a `git clone`: nothing of this checkout's environment reaches it. Take its lab down."""
    clone, lab = folder / "clone", bench_lab_name("demo")
    private = {
        "XDG_CONFIG_HOME": str(folder / "config"),
        "PATH": os.pathsep.join(p for p in os.environ["PATH"].split(os.pathsep) if ".venv" not in Path(p).parts),
        "PYTHONPATH": "",
        "VIRTUAL_ENV": "",
        **env,
    }
    try:
        return run(clone / "scripts" / "demo", lab, env=private, cwd=clone, limit=LIMIT)[0]
    finally:
        program = clone / ".venv" / "bin" / "clusterctl"
        if program.exists():
            run(program, "lab", "down", "--name", lab, env=private, cwd=clone)


@contextlib.contextmanager
def images_aside(repositories: Sequence[str] = IMAGES) -> Iterator[None]:
    """Rename the images of these repositories; at the end they replace those built meanwhile."""
    kept = {name: name.replace(":", "-aside:") for name in _images(repositories)}
    for name, aside in kept.items():
        _rename(name, aside)
    try:
        yield
    finally:
        for name in _images(repositories):
            run("podman", "rmi", name)
        for name, aside in kept.items():
            _rename(aside, name)


def _images(repositories: Sequence[str]) -> list[str]:
    _, listing = run("podman", "images", "--format", "{{.Repository}}:{{.Tag}}")
    return [name for name in listing.split() if name.rpartition(":")[0] in repositories]


def _rename(old: str, new: str) -> None:
    run("podman", "tag", old, new)
    run("podman", "untag", old, old)
