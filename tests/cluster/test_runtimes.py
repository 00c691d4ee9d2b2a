"""Container runtimes: Docker and containerd as an administrator uses them, Apptainer and pyxis in users' jobs."""

import hashlib
import json
import lzma
import re
import subprocess
import tarfile
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster.lab import ALICE, TestLab, clusterctl, podman
from tests.faults.injury import container, gateway
from tests.faults.repository import repository
from tests.labs import lab_name

SID = "http://deb.debian.org/debian"
# An image of one program, made on the node: no registry is asked.
IMAGE = """
apt-get install -qq --no-install-recommends busybox-static >/dev/null
mkdir -p /root/image/bin /root/image/dev /root/image/proc /root/image/sys
cp /bin/busybox /root/image/bin/
for name in cat ls mknod sh sleep; do ln -sf busybox /root/image/bin/$name; done
tar -C /root/image -cf /root/image.tar .
docker import /root/image.tar tiny
docker save tiny -o /root/oci.tar
ctr images import /root/oci.tar
"""
# What a vendor's toolkit writes for two of the node's GPUs.
CDI = """
cdiVersion: "0.5.0"
kind: nvidia.com/gpu
devices:
  - {name: "0", containerEdits: {deviceNodes: [{path: /dev/nvidia0}]}}
  - {name: "1", containerEdits: {deviceNodes: [{path: /dev/nvidia1}]}}
"""
# A simulated device that may be opened answers ENXIO; one that may not, EPERM.
MAY, MAY_NOT = "No such device or address", "Operation not permitted"
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


@dataclass(frozen=True)
class Site:
    """The lab, where its server has files, and the hash of each."""

    lab: TestLab
    url: str
    sha256: Mapping[str, str]


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
    subprocess.run(argv, check=True, capture_output=True)
    subprocess.run(["rm", "-r", str(root)], check=True)


def apptainer() -> tuple[str, str, str]:
    """Version, URL and hash of the Apptainer that Debian's next release has."""
    with urllib.request.urlopen(f"{SID}/dists/sid/main/binary-amd64/Packages.xz") as answer:  # noqa: S310
        index = lzma.decompress(answer.read()).decode()
    (entry,) = re.findall(r"(?ms)^Package: apptainer$.*?^$", index)
    version, name, sha256 = (re.search(rf"(?m)^{key}: (.*)$", entry) for key in ("Version", "Filename", "SHA256"))
    assert version
    assert name
    assert sha256
    return version[1], f"{SID}/{name[1]}", sha256[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A cluster whose gpu01 has every runtime; gpu02 has what all workers have."""
    folder = tmp_path_factory.mktemp("vendor")
    package(folder, "enroot", {f"usr/share/enroot/hooks.d/50-slurm-{n}.sh": "" for n in ("pmi", "pytorch")})
    package(folder, "enroot+caps", {})
    (folder / "pyxis.c").write_text(PLUGIN)
    (folder / "Makefile").write_text(MAKEFILE)
    with tarfile.open(folder / "v0.20.0.tar.gz", "w:gz") as archive:
        for name in ("pyxis.c", "Makefile"):
            archive.add(folder / name, f"pyxis-0.20.0/{name}")
    sha256 = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    lab = TestLab(lab_name("runtimes"))
    lab.down()
    lab.up()
    with repository(gateway(lab), packages=folder) as (url, _):
        version, package_url, package_sha256 = apptainer()
        variables = {
            "apptainer_version": version,
            "apptainer_package_url": package_url,
            "apptainer_package_sha256": package_sha256,
            "cluster_no_proxy": [gateway(lab)],
            "containers_registry_mirrors": {"docker.io": f"{url}", "ghcr.io": "https://harbor.example/ghcr"},
            "enroot_release_url": f"{url}/v3.5.0",
            "enroot_sha256": sha256[f"enroot_{VERSION}_amd64.deb"],
            "enroot_caps_sha256": sha256[f"enroot+caps_{VERSION}_amd64.deb"],
            "pyxis_source_url": f"{url}/v0.20.0.tar.gz",
            "pyxis_source_sha256": sha256["v0.20.0.tar.gz"],
        }
        text = lab.inventory.read_text()
        lines = "".join(f"    {name}: {json.dumps(value)}\n" for name, value in variables.items())
        groups = {"apptainer": "slurm_workers", "enroot": "slurm_head: {}, slurm_workers"}
        runtimes = "".join(f"    {name}: {{children: {{{of}: {{}}}}}}\n" for name, of in groups.items())
        runtimes += "".join(f"    {name}: {{hosts: {{gpu01: {{}}}}}}\n" for name in ("containerd", "docker"))
        text = text.replace("  vars:\n", f"  vars:\n{lines}", 1)
        lab.inventory.write_text(text.replace("    monitoring:\n", f"{runtimes}    monitoring:\n", 1))
        lab.run("bootstrap")
        yield Site(lab, url, sha256)
    lab.down()


@pytest.fixture(scope="module")
def image(site: Site) -> TestLab:
    """The lab with an image for Docker and containerd on gpu01, and two GPUs that are described to them."""
    site.lab.root("gpu01", IMAGE)
    site.lab.root("gpu01", f"mkdir -p /etc/cdi; cat > /etc/cdi/gpu.yaml <<'END'\n{CDI}END\n")
    return site.lab


def test_a_second_run_changes_nothing(site: Site) -> None:
    document = site.lab.run("bootstrap")
    assert {name: host["changed"] for name, host in document["hosts"].items()} == dict.fromkeys(site.lab.nodes, 0)
    site.lab.healthy()


def opened(lab: TestLab, within: str) -> list[str]:
    """How three devices of the node answer a process in a container: two described there, one that is none of it."""
    lab.root("gpu01", f"{within} mknod /dev/other c 195 3", check=False)
    script = "for one in nvidia0 nvidia1 other; do cat /dev/$one; done"
    return lab.root("gpu01", f"{within} sh -c '{script}' 2>&1", check=False).splitlines()


def test_docker_gives_a_container_the_gpus_asked_for_and_keeps_them(image: TestLab) -> None:
    image.root("gpu01", "docker run --detach --name work --device nvidia.com/gpu=0 tiny sleep 3600")
    for _ in range(2):
        first, second, third = opened(image, "docker exec work")
        assert MAY in first
        assert "No such file" in second
        assert MAY_NOT in third
        # The second time after what takes GPUs from containers elsewhere, and after the daemons have started anew.
        image.root("gpu01", "systemctl daemon-reload; systemctl restart containerd docker")


def test_containerd_gives_a_container_the_gpus_asked_for_and_keeps_them(image: TestLab) -> None:
    """Its own client takes a device by path; CDI is for its other clients."""
    image.root("gpu01", "ctr run --detach --device /dev/nvidia1 docker.io/library/tiny:latest work sleep 3600")
    for at in range(2):
        first, second, third = opened(image, f"ctr tasks exec --exec-id $$-{at} work")
        assert "No such file" in first
        assert MAY in second
        assert MAY_NOT in third
        image.root("gpu01", "systemctl daemon-reload; systemctl restart containerd")
    assert "enable_cdi = true" in image.root("gpu01", "containerd --config /etc/containerd/config.toml config dump")


def test_docker_is_for_root_alone_and_listens_nowhere(image: TestLab) -> None:
    assert re.search(r"(?m)^docker:x:[0-9]+:$", image.ssh("gpu01", "getent", "group", "docker"))
    image.ssh("gpu01", "sudo", "gpasswd", "--add", "alice", "docker")
    document = image.run("bootstrap", "--limit", "gpu01")
    assert document["hosts"]["gpu01"]["changed"] == 1
    denied = image.root("gpu01", "sudo -u alice docker ps 2>&1", check=False)
    assert "permission denied" in denied.lower()
    listening = image.root("gpu01", "ss --no-header --listening --tcp --numeric --processes | grep -v 127.0.0.1", False)
    assert not [name for name in ("docker", "containerd") if name in listening]


def test_docker_asks_the_mirror_first(site: Site, image: TestLab) -> None:
    told = image.root("gpu01", "docker info --format '{{json .RegistryConfig.Mirrors}}'")
    assert json.loads(told) == [f"{site.url}/"]


def test_apptainer_in_a_job_has_the_jobs_gpus_and_no_others(site: Site) -> None:
    """An ordinary user's image is a folder here, with the node's own programs in it."""
    root = "mkdir -p ~/image/{dev,etc,proc,sys,tmp,usr,var/tmp}; ln -sfnt ~/image usr/{bin,lib,lib64,sbin}"
    script = "for at in 0 1 2 3; do cat /dev/nvidia$at; done 2>&1; ls /.singularity.d/libs; nvidia-smi -L"
    inside = f"apptainer exec --nv --bind /usr,/etc/simulated-nvml.conf ~/image sh -c '{script}'"
    out = site.lab.ssh(
        "head1", *ALICE, "srun", "--chdir=/home/alice", "--nodelist=gpu02", "--gres=gpu:2", "bash", "-s",
        stdin=f"{root}\n{inside}\n",
    )  # fmt: skip
    assert (out.count(MAY), out.count(MAY_NOT)) == (2, 2), out
    assert "libnvidia-ml.so.1" in out
    assert len(re.findall(r"(?m)^GPU \d: ", out)) == 2, out


def test_srun_knows_the_plugin_on_every_node(site: Site) -> None:
    out = site.lab.ssh(
        "head1", *ALICE, "srun", "--chdir=/", "--nodes=2", "--container-image=ubuntu", "printenv", "CONTAINER_IMAGE"
    )
    assert out.split() == ["ubuntu", "ubuntu"]


def test_a_node_that_leaves_keeps_no_container(image: TestLab) -> None:
    done = clusterctl("remove-node", str(image.inventory), "gpu01", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    # The cluster no longer knows its host key, and iptables is gone there.
    node = container(image, "gpu01")
    (pid,) = podman("inspect", "--format", "{{.State.Pid}}", node).split()
    argv = ["nsenter", "--target", pid, "--net", "iptables-save"]
    rules = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert not re.findall("DOCKER|docker0", rules)
    left = podman("exec", node, "sh", "-c", "ps -eo comm; ip -brief link; ls /usr/local/lib/slurm 2>&1 || true")
    assert not re.findall(r"(?m)^sleep$|^dockerd|^containerd|docker0|spank_pyxis", left)
    packages = podman("exec", node, "dpkg-query", "--show", "--showformat", "${Package} ${db:Status-Abbrev}\\n")
    assert not re.findall(r"(?m)^(apptainer|containerd|docker\.io|enroot|enroot\+caps|runc) ii", packages)


def test_a_file_that_is_another_than_vouched_for_is_not_installed(site: Site) -> None:
    """One package is gone, and what the server has in its place is not what was vouched for. It ends this lab's use."""
    lab, found = site.lab, site.sha256[f"enroot+caps_{VERSION}_amd64.deb"]
    lab.root("gpu02", "apt-get -qq purge enroot+caps")
    lab.inventory.write_text(lab.inventory.read_text().replace(found, "0" * 64))
    done = clusterctl("bootstrap", str(lab.inventory), "--limit", "gpu02")
    assert done.returncode == 4, done.stdout + done.stderr
    assert found in done.stdout + done.stderr
    installed = [line.split()[0] for line in lab.manifest("gpu02")["packages"] if line.endswith(" ii ")]
    assert "enroot" in installed
    assert "enroot+caps" not in installed
