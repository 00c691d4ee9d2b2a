"""Storage: homes from an NFS server on all nodes, a server that does not respond, a directory for each job.

The server is real, the client of the workers is simulated (nfs.py).
"""

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cluster.lab import ALICES, TestLab, clusterctl, fresh, podman
from tests.cluster.members import states
from tests.cluster.nfs import HOMES, prepare
from tests.faults.injury import container, in_service, wait_until
from tests.programs import described

VARIABLES = f"""\
    users_home: {HOMES}
    nfs_server_software: ganesha
    slurm_worker_scratch: /local
"""
# A client as a user can write it; prints 0 if the server lets it mount.
OWN_CLIENT = f"""
import ctypes
nfs = ctypes.CDLL("libnfs.so.14")
nfs.nfs_init_context.restype = ctypes.c_void_p
context = ctypes.c_void_p(nfs.nfs_init_context())
nfs.nfs_set_version(context, 4)
nfs.nfs4_set_client_name(context, b"own")
print(nfs.nfs_mount(context, b"SERVER", b"{HOMES}"))
"""
SERVER = "head1"


@pytest.fixture(scope="module")
def lab() -> Iterator[TestLab]:
    """A cluster whose head serves the homes, with scratch directories, bootstrapped."""
    with fresh("storage", "--gpus", "2") as lab:
        prepare(lab, SERVER, ("gpu01", "gpu02"))
        text = lab.inventory.read_text().replace(ALICES, f"{ALICES}{VARIABLES}")
        lab.inventory.write_text(f"{text}    nfs_server:\n      hosts:\n        {SERVER}: {{}}\n")
        lab.run("bootstrap")
        yield lab


def alice(lab: TestLab, script: str) -> str:
    """Run a script in her home on the head; return all that it prints."""
    return lab.ssh(SERVER, "sudo", "--login", "--user", "alice", "sh", "-eu", stdin=f"exec 2>&1\n{script}\n")


def submit(lab: TestLab, script: str, *options: str) -> str:
    """Submit alice's job from her home; return its number."""
    argv = ["sudo", "--login", "--user", "alice", "sbatch", "--parsable", "--mem=1M", "--time=9", *options]
    return lab.ssh(SERVER, *argv, stdin=f"#!/bin/sh\n{script}\n").strip()


def finished(lab: TestLab, job: str) -> None:
    wait_until(lambda: states(lab, job) == ["COMPLETED"])


# Verbs that refuse, and name the directory and the server.
REFUSING = {
    "verify": (),
    "discover": (),
    "plan bootstrap": (),
    "plan upgrade": (),
    "bootstrap": (),
    "remove-node": ("gpu02", "--yes"),
    "reboot": ("gpu02",),
    "upgrade": (),
    "secret rotate": ("slurm_head_health_key",),
}
# Others do their work, with exit code 0.
READING = {"health": (), "usage": (), "report quota": (), "backup": (), "support-bundle": ("gpu02",)}


@contextmanager
def silent(lab: TestLab, seconds: float = 0) -> Iterator[None]:
    """Let the server not respond, for at least so long."""
    lab.root(SERVER, "pkill -STOP -x ganesha.nfsd")
    until = time.monotonic() + seconds
    try:
        yield
        time.sleep(max(0, until - time.monotonic()))
    finally:
        lab.root(SERVER, "pkill -CONT -x ganesha.nfsd")


def causes(lab: TestLab, node: str) -> dict[str, str]:
    found: dict[str, str] = json.loads(lab.root(SERVER, "slurm-drain")).get(node, {})
    return found


@pytest.mark.proves("storage", "With NFS-Ganesha and a simulated client, all nodes have the same homes.")
def test_homes__of_the_server__are_the_same_on_all_nodes(lab: TestLab) -> None:
    job = submit(lab, "hostname > written; pwd", "--nodelist=gpu02")
    finished(lab, job)
    assert alice(lab, f"cat written slurm-{job}.out").split() == ["gpu02", f"{HOMES}/alice"]
    assert lab.root("gpu01", f"runuser -u alice -- cat {HOMES}/alice/written").strip() == "gpu02"
    assert lab.healthy()["homes_apart"] == []


@pytest.mark.proves("storage", "The server refuses root of a worker, programs of users, and other addresses.")
def test_server__root_of_a_worker__cannot_write(lab: TestLab) -> None:
    assert "Permission denied" in lab.root("gpu01", f"touch {HOMES}/alice/roots 2>&1 || :")
    assert "Permission denied" in lab.root("gpu01", f"cat {HOMES}/alice/written 2>&1 || :")
    exports = lab.root(SERVER, "cat /etc/ganesha/clusterctl-exports.conf")
    client = OWN_CLIENT.replace("SERVER", lab.root(SERVER, "hostname -I").strip())
    for user, found in (("root", "0"), ("alice", "-2")):
        assert lab.root("gpu01", f"cd /; runuser -u {user} -- python3 -c '{client}'").strip() == found
    networks = re.findall(r"cluster_networks: \[(.*)\]", lab.inventory.read_text())
    assert re.findall("Clients = (.*);", exports) == networks


@pytest.mark.proves("storage", "A second bootstrap with a server, mounts and scratch changes nothing.")
def test_bootstrap__again__changes_nothing(lab: TestLab) -> None:
    lab.unchanged()


@pytest.mark.proves("storage", "Each job has a scratch directory, its user's alone, on each of its nodes.")
def test_scratch__of_a_job__is_its_users_alone(lab: TestLab) -> None:
    script = "hostname; echo $SCRATCH; stat --format=%a:%U $SCRATCH; touch $SCRATCH/file"
    shown = alice(lab, f"srun --mem=1M --nodes=2 --label sh -c '{script}'")
    rows = sorted(line.split(": ", 1)[1] for line in shown.splitlines() if re.match(r"\d: ", line))
    (directory,) = {row for row in rows if row.startswith("/")}
    assert re.fullmatch(r"/local/\d+", directory)
    assert rows == [directory, directory, "700:alice", "700:alice", "gpu01", "gpu02"]
    for node in ("gpu01", "gpu02"):
        wait_until(lambda node=node: lab.root(node, "find /local -mindepth 1").split() == ["/local/.trash"])  # type: ignore[misc]


@pytest.mark.proves("storage", "Scratch is deleted without what a user's links and mounts in it lead to.")
def test_scratch__links_and_mounts_in_it__are_not_followed(lab: TestLab) -> None:
    alice(lab, "echo precious > precious")
    links = f"ln -s {HOMES}/alice $SCRATCH/all; ln {HOMES}/alice/precious $SCRATCH/hard || :; mkdir $SCRATCH/mount"
    job = submit(lab, f"{links}; until [ -e go ]; do sleep 1; done; rm go", "--nodelist=gpu01")
    wait_until(lambda: lab.root("gpu01", f"ls -d /local/{job}/mount || :") != "")
    other = "mkdir -p /var/tmp/other; touch /var/tmp/other/file"
    lab.root("gpu01", f"{other}; mount --bind /var/tmp/other /local/{job}/mount; mount -t tmpfs none /local/{job}")
    alice(lab, "touch go")
    finished(lab, job)
    wait_until(lambda: lab.root("gpu01", "find /local -mindepth 1").split() == ["/local/.trash"])
    assert alice(lab, "cat precious").strip() == "precious"
    assert lab.root("gpu01", "ls /var/tmp/other; grep /local/ /proc/self/mounts || :").split() == ["file"]
    wait_until(lambda: in_service(lab)["gpu01"] == "idle")


@pytest.mark.proves("storage", "Scratch that a power cut left is deleted at boot, before slurmd starts.")
def test_scratch__left_by_a_power_cut__is_deleted_at_boot(lab: TestLab) -> None:
    lab.root("gpu02", "systemctl stop slurmd; mkdir /local/77; touch /local/77/file")
    lab.root("gpu02", "rm /run/clusterctl/scratch-boot; systemctl restart job-scratch-boot; systemctl start slurmd")
    wait_until(lambda: lab.root("gpu02", "find /local -mindepth 1").split() == ["/local/.trash"])
    wait_until(lambda: in_service(lab)["gpu02"] == "idle")


@pytest.mark.long
@pytest.mark.proves("storage", "A full scratch disk drains its worker with the cause; the job waits, then runs.")
def test_scratch__full_disk__drains_the_worker(lab: TestLab) -> None:
    lab.root("gpu01", "mount -t tmpfs -o size=1M,mode=0711 none /local; fallocate -l 1M /local/big")
    try:
        job = submit(lab, "echo $SCRATCH", "--nodelist=gpu01")
        wait_until(lambda: "/local is full" in causes(lab, "gpu01").get("health", ""))
        wait_until(lambda: states(lab, job) == ["PENDING"])
        lab.root("gpu01", "rm /local/big; gpu-health")
        wait_until(lambda: causes(lab, "gpu01") == {})
        finished(lab, job)
        assert alice(lab, f"cat slurm-{job}.out").strip() == f"/local/{job}"
    finally:
        wait_until(lambda: lab.root("gpu01", "umount /local && echo done || :") != "")
        lab.root("gpu01", "gpu-health || :")


@pytest.mark.long
@pytest.mark.timeout(1800)  # seconds, for all verbs
@pytest.mark.proves("storage", "A file server silent for a minute blocks none of 15 commands; jobs then continue.")
def test_server__that_does_not_respond__blocks_no_verb(lab: TestLab) -> None:
    script = "for n in 1 2 3; do echo $n >> lines; until [ -e go$n ]; do sleep 1; done; done"
    job = submit(lab, script, "--nodelist=gpu01", "--time=60")
    wait_until(lambda: states(lab, job) == ["RUNNING"])
    mount = f"{HOMES} ({lab.root(SERVER, 'hostname -I').strip()}:{HOMES}) does not respond"
    with silent(lab, seconds=60):
        page = clusterctl("status", str(lab.inventory), limit=60).stdout
        assert f"gpu01, gpu02: {mount}" in page
        nodes = {node["name"]: node["mounts"] for node in lab.run("status", expect=4, limit=60)["nodes"]}
        assert nodes == {SERVER: [], "gpu01": [mount], "gpu02": [mount]}
        for verb, options in REFUSING.items():
            done = clusterctl(*verb.split(), str(lab.inventory), *options, limit=120)
            assert (done.returncode, mount in done.stdout + done.stderr) == (3, True), f"{verb}: {done.stderr}"
        for verb, options in READING.items():
            done = clusterctl(*verb.split(), str(lab.inventory), *options, limit=120)
            assert done.returncode == 0, f"{verb}: {described(done)}"
        done = clusterctl("bootstrap", str(lab.inventory), "--skip-unreachable", limit=300)
        assert done.returncode == 4
        assert mount in done.stdout + done.stderr
        # Probes leave at most one process for each mount. The simulated client may end it, with an error.
        processes = lab.root("gpu02", "ps -eo stat=,args=").splitlines()
        assert len([line for line in processes if line.endswith("python3 -I -")]) <= 1, processes
    alice(lab, "touch go1 go2 go3")
    finished(lab, job)
    assert alice(lab, "cat lines").split() == ["1", "2", "3"]
    assert lab.run("bootstrap")["hosts"].keys() >= {"gpu01", "gpu02"}
    # The server and its clients keep the times of a home for up to a minute.
    wait_until(lambda: lab.healthy()["homes_apart"] == [])


@pytest.mark.long
@pytest.mark.proves("storage", "A worker whose file server boots later mounts the homes then, and takes jobs.")
@pytest.mark.timeout(1800)
def test_server__that_boots_later__is_mounted_then(lab: TestLab) -> None:
    with silent(lab):
        podman("restart", "--time", "5", container(lab, "gpu02"))
        found = ("sudo", "journalctl", "-b", "--unit", "clusterctl-mounts")  # SSH is not there at once
        wait_until(lambda: "Failed with result" in lab.ssh("gpu02", *found, check=False))
        assert lab.root("gpu02", "systemctl is-active slurmd || :").strip() == "inactive"
    wait_until(lambda: lab.root("gpu02", "systemctl is-active slurmd || :").strip() == "active")
    wait_until(lambda: in_service(lab)["gpu02"] == "idle")
    job = submit(lab, "pwd", "--nodelist=gpu02")
    finished(lab, job)
    assert alice(lab, f"cat slurm-{job}.out").strip() == f"{HOMES}/alice"
