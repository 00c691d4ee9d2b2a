"""One lab with all that GPUs can have: their metrics, every container runtime, NVIDIA's toolkit from the kit."""

import hashlib
import json
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.cluster import sid
from tests.cluster.lab import ALICES, TestLab, fresh
from tests.faults.injury import gateway
from tests.faults.repository import Registry, registry, repository

INTERVAL = 5
"""Seconds after which Slurm has the GPUs' health checked again."""
# It stands for NVIDIA's plugin, which cannot be had here: it is built, loaded and asked as that one is.
PLUGIN = r"""
#include <string.h>
#include <slurm/spank.h>
SPANK_PLUGIN(pyxis, 1)
static char image[256];
static int take(int value, const char *given, int remote) { strncpy(image, given, sizeof image - 1); return 0; }
static struct spank_option options[] = {
  {"container-image", "IMAGE", "the step runs in it", 1, 0, take}, SPANK_OPTIONS_TABLE_END};
int slurm_spank_init(spank_t spank, int count, char **arguments) { return spank_option_register(spank, options); }
int slurm_spank_user_init(spank_t spank, int count, char **arguments) {
  return *image ? spank_setenv(spank, "CONTAINER_IMAGE", image, 1) : 0; }
"""
MAKEFILE = "spank_pyxis.so: pyxis.c\n\tgcc -shared -fPIC -o $@ $<\n"
VERSION = "3.5.0-1"
RECIPES = ("dcgm-exporter-simulated", "debian", "nvidia-container-toolkit")
"""What the lab needs of the kit."""
GROUPS = {
    "enroot": "children: {slurm_head: {}, slurm_workers: {}}",
    "podman": "children: {slurm_workers: {}}",
    "nvidia_container_toolkit": "children: {slurm_workers: {}}",
    "gpu_metrics": "children: {slurm_workers: {}}",
    "containerd": "hosts: {gpu01: {}}",
    "docker": "hosts: {gpu01: {}}",
}


@dataclass(frozen=True)
class Site:
    """The lab, where its server has files, the hash of each, and the mirror of docker.io."""

    lab: TestLab
    url: str
    sha256: Mapping[str, str]
    mirror: Registry


def package(folder: Path, name: str, content: Mapping[str, str]) -> None:
    """Build a package by the vendor's file name, with the files that a role counts on."""
    root = folder / "root"
    for path, text in {
        "DEBIAN/control": f"Package: {name}\nVersion: {VERSION}\nArchitecture: amd64\n"
        "Maintainer: nobody <nobody@example>\nDescription: stands for the vendor's\n",
        **content,
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    target = folder / f"{name}_{VERSION}_amd64.deb"
    argv = ["dpkg-deb", "--root-owner-group", "--build", str(root), str(target)]
    subprocess.run(argv, check=True, capture_output=True, timeout=60)
    shutil.rmtree(root)


def add_apptainer(lab: TestLab) -> None:
    """Install the Apptainer of Debian's next release on the workers; nothing else in the lab needs that release."""
    proxy = yaml.safe_load(lab.inventory.read_text())["all"]["vars"]["cluster_package_proxy"]
    package = sid.find(proxy, "apptainer")
    lab.inventory.write_text(lab.inventory.read_text() + "    apptainer: {children: {slurm_workers: {}}}\n")
    lab.declare(
        f"apptainer_version: {json.dumps(package['version'])}",
        f"apptainer_package_url: {package['url']}",
        f"apptainer_package_sha256: {package['sha256']}",
    )
    lab.run("bootstrap", "--limit", ",".join(lab.nodes[1:]))


def vendor(folder: Path) -> dict[str, str]:
    """Make what stands for enroot's packages and pyxis's source; the hash of each file."""
    package(folder, "enroot", {f"usr/share/enroot/hooks.d/50-slurm-{n}.sh": "" for n in ("pmi", "pytorch")})
    package(folder, "enroot+caps", {})
    (folder / "pyxis.c").write_text(PLUGIN)
    (folder / "Makefile").write_text(MAKEFILE)
    with tarfile.open(folder / "v0.20.0.tar.gz", "w:gz") as archive:
        for name in ("pyxis.c", "Makefile"):
            archive.add(folder / name, f"pyxis-0.20.0/{name}")
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


@contextmanager
def everything() -> Iterator[Site]:
    """A cluster whose workers have all of GROUPS, gpu01 Docker and containerd as well."""
    with (
        fresh("gpus", *(f"--recipe={name}" for name in RECIPES)) as lab,
        tempfile.TemporaryDirectory(prefix="vendor-") as name,
    ):
        sha256 = vendor(Path(name))
        address = gateway(lab)
        with repository(address, packages=Path(name)) as (url, _), registry(address) as mirror:
            configure(lab, url, sha256, mirror)
            lab.run("bootstrap")
            yield Site(lab, url, sha256, mirror)


def configure(lab: TestLab, url: str, sha256: Mapping[str, str], mirror: Registry) -> None:
    """Write what the lab is to have into its inventory."""
    text = lab.inventory.read_text()
    reached = json.loads(re.findall(r"(?m)^    cluster_no_proxy: (.*)$", text)[0])
    variables = {
        "cluster_no_proxy": [*reached, gateway(lab)],
        "containers_registry_mirrors": {"docker.io": mirror.url, "ghcr.io": "https://harbor.example/ghcr"},
        "enroot_release_url": f"{url}/v3.5.0",
        "enroot_sha256": sha256[f"enroot_{VERSION}_amd64.deb"],
        "enroot_caps_sha256": sha256[f"enroot+caps_{VERSION}_amd64.deb"],
        "prometheus_scrape_interval": "5s",
        "pyxis_source_url": f"{url}/v0.20.0.tar.gz",
        "pyxis_source_sha256": sha256["v0.20.0.tar.gz"],
        "slurm_head_health_interval": INTERVAL,
    }
    text = re.sub(r"(?m)^    cluster_no_proxy: .*\n", "", text)
    assert ALICES in text
    text = text.replace(ALICES, f"{ALICES}      - {{name: bob, uid: 5002}}\n")
    lab.inventory.write_text(text + "".join(f"    {group}: {{{of}}}\n" for group, of in GROUPS.items()))
    lab.declare(*(f"{name}: {json.dumps(value)}" for name, value in variables.items()))
