"""Container runtimes: Docker and containerd as an administrator uses them, Apptainer and pyxis in users' jobs."""

import re
import socket
import subprocess
from collections.abc import Iterator

import pytest

from clusterctl.lab.podman import run_as_root
from tests.cluster.gpus import VERSION, Site, add_apptainer
from tests.cluster.lab import ALICE, TestLab, clusterctl, podman
from tests.faults.injury import container, gateway, outsider

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
# A simulated device that may be opened answers ENXIO; one that may not, EPERM.
MAY, MAY_NOT = "No such device or address", "Operation not permitted"


@pytest.fixture(scope="module")
def image(gpus: Site) -> Iterator[TestLab]:
    """The lab with an image for Docker and containerd on gpu01. The last file that needs it takes it down."""
    try:
        gpus.lab.root("gpu01", IMAGE)
        yield gpus.lab
    finally:
        gpus.lab.down()


@pytest.fixture(scope="module")
def apptainer(gpus: Site) -> TestLab:
    add_apptainer(gpus.lab)
    return gpus.lab


def opened(lab: TestLab, within: str) -> list[str]:
    """How three devices of the node answer a process in a container: two by their own names, one by another."""
    lab.root("gpu01", f"{within} mknod /dev/other c 195 3", check=False)
    script = "for one in nvidia0 nvidia1 other; do cat /dev/$one; done"
    return lab.root("gpu01", f"{within} sh -c '{script}' 2>&1", check=False).splitlines()


@pytest.mark.proves("containers", "A Docker container has the GPUs requested and no others.")
@pytest.mark.proves(
    "containers", "`daemon-reload` and restarted daemons neither end a Docker container nor change its GPUs."
)
def test_docker_gives_a_container_the_gpus_asked_for_and_keeps_them(image: TestLab) -> None:
    image.root("gpu01", "docker run --detach --name work --device nvidia.com/gpu=0 tiny sleep 3600")
    for _ in range(2):
        first, second, third = opened(image, "docker exec work")
        assert MAY in first
        assert "No such file" in second
        assert MAY_NOT in third
        # The second time after what takes GPUs from containers elsewhere, and after the daemons have started anew.
        image.root("gpu01", "systemctl daemon-reload; systemctl restart containerd docker")


ALL_CORES = "--cpu-shares 0"
"""Its client asks for a share of cores by default, which version 2 of cgroups on a host of version 1 does not have."""


@pytest.mark.proves("containers", "A containerd container has the GPUs requested and no others.")
@pytest.mark.proves(
    "containers", "`daemon-reload` and a restarted containerd neither end a container nor change its GPUs."
)
def test_containerd_gives_a_container_the_gpus_asked_for_and_keeps_them(image: TestLab) -> None:
    """Its own client takes a device by path; CDI is for its other clients."""
    image.root("gpu01", f"ctr run -d {ALL_CORES} --device /dev/nvidia1 docker.io/library/tiny:latest work sleep 3600")
    for at in range(2):
        first, second, third = opened(image, f"ctr tasks exec --exec-id $$-{at} work")
        assert "No such file" in first
        assert MAY in second
        assert MAY_NOT in third
        image.root("gpu01", "systemctl daemon-reload; systemctl restart containerd")
    assert "enable_cdi = true" in image.root("gpu01", "containerd --config /etc/containerd/config.toml config dump")


@pytest.mark.proves("containers", "A user whom a person adds to group docker is removed by the run.")
@pytest.mark.proves("containers", "Docker and containerd listen on no port beyond the loopback.")
@pytest.mark.proves("containers", "An ordinary user cannot use Docker.")
def test_docker_is_for_root_alone_and_listens_nowhere(image: TestLab) -> None:
    assert re.search(r"(?m)^docker:x:[0-9]+:$", image.ssh("gpu01", "getent", "group", "docker"))
    image.ssh("gpu01", "sudo", "gpasswd", "--add", "alice", "docker")
    document = image.run("bootstrap", "--limit", "gpu01")
    assert document["hosts"]["gpu01"]["changed"] == 1
    denied = image.root("gpu01", "sudo -u alice docker ps 2>&1", check=False)
    assert "permission denied" in denied.lower()
    rows = image.root("gpu01", "ss --no-header --listening --tcp --numeric --processes").splitlines()
    listening = [(row.split()[3], row) for row in rows]
    assert [row for address, row in listening if address.endswith(":22") and "sshd" in row], "ss sees who listens"
    outside = [row for address, row in listening if not address.startswith("127.0.0.1")]
    assert not [row for row in outside if "docker" in row or "containerd" in row]


WEB = "docker run --detach --name {name} --network site --publish {port}:80 tiny busybox nc -ll -p 80 -e echo {name}"


def answer(address: str, port: int, source: str) -> str:
    """Return what a server sends that waits for nothing; the error's name where no connection comes about."""
    try:
        with socket.create_connection((address, port), 5, (source, 0)) as there:
            return there.recv(100).decode().strip()
    except OSError as error:
        return type(error).__name__


@pytest.mark.proves("containers", "Docker's published ports are closed to outsiders, compose projects' too.")
def test_docker__published_ports__are_closed_to_outsiders(image: TestLab) -> None:
    """A network of one's own, as a compose project has; an outsider who routes to the container's address included."""
    shown = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
    node = podman("inspect", "--format", shown, container(image, "gpu01")).strip()
    image.root("gpu01", "docker network create site")
    try:
        for name, port in (("plain", "8001"), ("named", "0.0.0.0:8002")):
            image.root("gpu01", WEB.format(name=name, port=port))
        within = image.root("gpu01", f"docker inspect --format '{shown}' named").strip()
        member = gateway(image)
        assert answer(node, 8002, member) == "named"
        assert answer(node, 8001, member) == "ConnectionRefusedError"
        assert image.root("gpu01", "busybox nc 127.0.0.1 8001 < /dev/null").strip() == "plain"
        with outsider(image) as outside:
            run_as_root(["ip", "route", "add", f"{within}/32", "via", node])
            try:
                assert answer(within, 80, member) == "named", "the route is right"
                assert answer(node, 22, outside).startswith("SSH-")
                assert answer(node, 8002, outside) == answer(within, 80, outside) == "TimeoutError"
            finally:
                run_as_root(["ip", "route", "delete", f"{within}/32", "via", node])
    finally:
        image.root("gpu01", "docker rm --force plain named; docker network rm site")


# How each runtime fetches the mirror's image, and by what it then knows it.
PULLS = {
    "docker": ("docker pull --quiet {0}", "docker image inspect --format '{{{{.Id}}}}' {0}"),
    "podman": ("podman pull --quiet {0}", "podman image inspect --format 'sha256:{{{{.Id}}}}' {0}"),
    "containerd": (
        "ctr images pull --hosts-dir /etc/containerd/certs.d {0}",
        "ctr images ls name=={0} | awk 'NR == 2 {{print $3}}'",
    ),
}


@pytest.mark.proves("containers", "Docker, podman and containerd's `ctr` pull an image from the mirror first.")
@pytest.mark.parametrize("runtime", PULLS)
def test_mirror__runtime_pulls_an_image__asks_the_mirror_first(gpus: Site, image: TestLab, runtime: str) -> None:
    """Docker Hub has another image of this name, so the digest shows who answered."""
    mirror = gpus.mirror
    before = len(mirror.requests)
    pull, identify = (command.format(mirror.image) for command in PULLS[runtime])
    image.root("gpu01", f"timeout 120 {pull}")
    known = image.root("gpu01", identify).strip()
    assert known == (mirror.manifest if runtime == "containerd" else mirror.config)
    (address,) = re.findall(r"gpu01: \{ansible_host: ([^}]*)\}", image.inventory.read_text())
    asked = [request for client, request in mirror.requests[before:] if client == address]
    assert any(request.endswith("/v2/library/busybox/manifests/latest") for request in asked), asked


@pytest.mark.proves("containers", "containerd's daemon is configured with the directory of the mirrors.")
def test_mirror__containerds_other_clients__read_the_same_files(image: TestLab) -> None:
    """The daemon's own pulls, for Kubernetes, take the directory that ctr was given above from its configuration."""
    dumped = image.root("gpu01", "containerd --config /etc/containerd/config.toml config dump")
    assert re.search(r'(?m)^ *config_path = "/etc/containerd/certs\.d"$', dumped)


@pytest.mark.proves("containers", "Apptainer in a user's job has the job's GPUs and no others.")
@pytest.mark.proves("containers", "Apptainer finds the driver's libraries in a job.")
def test_apptainer_in_a_job_has_the_jobs_gpus_and_no_others(apptainer: TestLab) -> None:
    """An ordinary user's image is a folder here, with the node's own programs in it."""
    root = "mkdir -p ~/image/{dev,etc,proc,sys,tmp,usr,var/tmp}; ln -sfnt ~/image usr/{bin,lib,lib64,sbin}"
    script = "for at in 0 1 2 3; do cat /dev/nvidia$at; done 2>&1; ls /.singularity.d/libs; nvidia-smi -L"
    inside = f"apptainer exec --nv --bind /usr,/etc/simulated-nvml.conf ~/image sh -c '{script}'"
    out = apptainer.ssh(
        "head1", *ALICE, "srun", "--chdir=/home/alice", "--nodelist=gpu02", "--gres=gpu:2", "bash", "-s",
        stdin=f"{root}\n{inside}\n",
    )  # fmt: skip
    assert (out.count(MAY), out.count(MAY_NOT)) == (2, 2), out
    assert "libnvidia-ml.so.1" in out
    assert len(re.findall(r"(?m)^GPU \d: ", out)) == 2, out


@pytest.mark.proves("containers", "Each user's enroot directories are private.")
def test_enroots_directories_are_each_users_own(gpus: Site) -> None:
    for folder in ("/run/enroot", "/var/lib/enroot"):
        told = gpus.lab.root("gpu02", f"stat --format='%a %U %n' {folder} {folder}/user-5001")
        assert told.splitlines() == [f"755 root {folder}", f"700 alice {folder}/user-5001"]


@pytest.mark.proves("containers", "A plugin built in pyxis's place makes `srun --container-image` known on every node.")
def test_srun_knows_the_plugin_on_every_node(gpus: Site) -> None:
    out = gpus.lab.ssh(
        "head1", *ALICE, "srun", "--chdir=/", "--nodes=2", "--container-image=ubuntu", "printenv", "CONTAINER_IMAGE"
    )
    assert out.split() == ["ubuntu", "ubuntu"]


@pytest.mark.proves("containers", "A removed node keeps no container, no bridge and no Docker firewall rule.")
@pytest.mark.long
def test_a_node_that_leaves_keeps_no_container(image: TestLab, apptainer: TestLab) -> None:
    done = clusterctl("remove-node", str(image.inventory), "gpu01", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    # The cluster no longer knows its host key, and iptables is gone there.
    node = container(image, "gpu01")
    (pid,) = podman("inspect", "--format", "{{.State.Pid}}", node).split()
    argv = ["nsenter", "--target", pid, "--net", "iptables-save"]
    rules = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout
    assert not re.findall("DOCKER|docker0", rules)
    left = podman("exec", node, "sh", "-c", "ps -eo args; ip -brief link; ls /usr/local/lib/slurm 2>&1 || true")
    assert not re.findall(r"(?m)^sleep 3600$|dockerd|containerd|docker0|spank_pyxis", left)
    packages = podman("exec", node, "dpkg-query", "--show", "--showformat", "${Package} ${db:Status-Abbrev}\\n")
    assert not re.findall(r"(?m)^(apptainer|containerd|docker\.io|enroot|enroot\+caps|runc) ii", packages)


@pytest.mark.proves("packages", "A package by URL with another SHA-256 is not installed.")
def test_a_file_that_is_another_than_vouched_for_is_not_installed(gpus: Site) -> None:
    """One package is gone, and what the server has in its place is not what was vouched for. It ends this lab's use."""
    lab, found = gpus.lab, gpus.sha256[f"enroot+caps_{VERSION}_amd64.deb"]
    text = lab.inventory.read_text()
    lab.inventory.write_text(text.replace(found, ""))
    lab.run("bootstrap", "--limit", "gpu02")  # uninstalls it
    lab.inventory.write_text(text.replace(found, "0" * 64))
    done = clusterctl("bootstrap", str(lab.inventory), "--limit", "gpu02")
    assert done.returncode == 4, done.stdout + done.stderr
    assert found in done.stdout + done.stderr
    installed = [line.split()[0] for line in lab.manifest("gpu02")["packages"] if line.endswith(" ii ")]
    assert "enroot" in installed
    assert "enroot+caps" not in installed
