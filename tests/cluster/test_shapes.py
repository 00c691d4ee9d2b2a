"""Clusters of another shape than the other tests have; each has a lab of its own."""

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pynvml
import pytest
import yaml

from clusterctl.lab.podman import host_has_v1, remove_containers, run_as_root
from clusterctl.workspace import secrets
from tests import programs
from tests.cluster import test_bootstrap
from tests.cluster.lab import ALICE, HERE, TestLab, clusterctl, fresh, fresh_as, podman, submit
from tests.cluster.leaving_out import decided
from tests.cluster.members import states
from tests.cluster.test_bootstrap import declared, inject
from tests.cluster.test_gpu_metrics import ask
from tests.cluster.test_systems import refused
from tests.faults.injury import fails, gateway, in_service, wait_until
from tests.labs import REPOSITORY, lab_name
from tests.programs import described

pytestmark = pytest.mark.long


def works(lab: TestLab) -> None:
    """See that an ordinary user's job runs on all workers at once, and is accounted for."""
    job = submit(lab, "srun true", f"--nodes={lab.workers}")
    wait_until(lambda: states(lab, job) in (["COMPLETED"], ["FAILED"], ["CANCELLED"]))
    assert states(lab, job) == ["COMPLETED"]


def roles(lab: TestLab, node: str) -> set[str]:
    """Return the roles, and parts of roles, that have set something up on a node."""
    return {name.removesuffix(".json") for name in lab.root(node, "ls /var/lib/clusterctl/state").split()}


class Watched(TestLab):
    """A lab whose last container is `mon1`, which has no other task than monitoring."""

    @property
    def nodes(self) -> list[str]:
        return ["head1", "gpu01", "mon1"]

    def ssh_argv(self, node: str, *command: str) -> list[str]:
        return super().ssh_argv({"mon1": "gpu02"}.get(node, node), *command)

    def address(self, node: str) -> str:
        groups = yaml.safe_load(self.inventory.read_text())["all"]["children"].values()
        return next(
            str(group["hosts"][node]["ansible_host"])
            for group in groups
            if "ansible_host" in (group["hosts"].get(node) or {})
        )

    def drop(self, variable: str) -> None:
        """Take a variable of all hosts out of the inventory."""
        lines = self.inventory.read_text().splitlines(keepends=True)
        kept = [line for line in lines if not line.startswith(f"    {variable}:")]
        assert len(kept) == len(lines) - 1
        self.inventory.write_text("".join(kept))

    def move_monitoring(self) -> None:
        """Turn the last worker into `mon1`, and give it the monitoring that the head has in every lab."""
        lines = self.inventory.read_text().splitlines(keepends=True)
        (last,) = (line for line in lines if "gpu02" in line)
        text = "".join(line for line in lines if line is not last)
        head = "    monitoring:\n      hosts:\n        head1: {}\n"
        assert head in text
        self.inventory.write_text(
            text.replace(head, head.replace("        head1: {}\n", last.replace("gpu02", "mon1")))
        )


MONITORING = ("alertmanager", "blackbox_exporter", "landing_page", "prometheus")
"""The roles of group monitoring alone."""


@pytest.mark.proves("monitoring", "Prometheus on a host of its own scrapes all nodes.")
@pytest.mark.proves("firewall", "A host with monitoring only opens just its declared ports to the outside.")
@pytest.mark.proves("firewall", "Without `cluster_networks`, other hosts of the nodes' own network are outsiders.")
def test_monitoring__on_a_host_of_its_own__scrapes_all_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Monitoring on a host with no other task watches the whole cluster."""
    with fresh_as(Watched, "mon", "--gpus", "1") as lab:
        lab.move_monitoring()
        lab.drop("cluster_networks")
        lab.run("bootstrap")
        # Only the play for hosts with other tasks gives such a host the first ones.
        assert roles(lab, "mon1") == {"sources", "packages", "base", "users", "node_exporter", *MONITORING}
        assert "prometheus" not in roles(lab, "head1")

        def up() -> dict[tuple[str, str], bool]:
            targets = ask(lab, "targets", "mon1")["activeTargets"]
            return {(one["labels"]["job"], one["labels"]["instance"]): one["health"] == "up" for one in targets}

        wait_until(lambda: all(up().values()))
        seen = up()
        assert {node for job, node in seen if job == "node"} == {*lab.nodes}
        assert ("prometheus", "mon1") in seen
        lab.healthy()
        lab.unchanged()
        monkeypatch.setitem(test_bootstrap.GROUPS, "mon1", {"monitoring"})
        address = lab.address("mon1")
        asked = json.dumps({"source": gateway(lab), "addresses": [address], "name": "mon1", "pages": ["/"]})
        found = json.loads(programs.output_of([sys.executable, str(HERE / "scan.py"), asked], 300))[address]
        assert {key: found[key] for key in ("tcp", "udp")} == declared("mon1", "admin")
        assert " 401 " in found["pages"]["9090"][0]
        job = submit(lab, "true", "--nodes=1")
        wait_until(lambda: states(lab, job) == ["COMPLETED"])


@pytest.mark.proves("bootstrap", "A cluster without monitoring is left out by its third bootstrap.")
def test_monitoring__on_no_host__leaves_nothing_to_do() -> None:
    with fresh("bare", workers=1) as lab:
        text = lab.inventory.read_text()
        assert "    monitoring:\n      hosts:\n        head1: {}\n" in text
        lab.inventory.write_text(text.replace("    monitoring:\n      hosts:\n        head1: {}\n", ""))
        for _ in range(2):
            done = lab.run("bootstrap")
        assert {name: host["changed"] for name, host in done["hosts"].items()} == {"head1": 0, "gpu01": 0}
        assert decided(lab) == ["gpu01", "head1"]
        lab.unchanged()


GREEDY = "python3 -c 'import time; taken = bytearray(400 * 2**20); time.sleep(60)'"


@pytest.mark.skipif(not host_has_v1(), reason="this machine has version 2 of cgroups alone")
@pytest.mark.proves("jobs", "Version 1 of cgroups confines jobs to their cores, memory and devices, too.")
def test_cgroups_1__bootstrap__confines_cores_memory_devices() -> None:
    """On such a machine a lab of version 2 confines devices alone: the other controllers are the host's."""
    with fresh("v1", "--cgroups", "1", workers=1) as lab:
        lab.run("bootstrap")  # proves the devices by a job
        record = json.loads((lab.inventory.parent / "hardware/gpu01.json").read_text())
        assert record["cgroup"]["version"] == 1
        job = submit(lab, GREEDY, "--cpus-per-task=1", "--mem=100M")
        wait_until(lambda: states(lab, job) in (["OUT_OF_MEMORY"], ["COMPLETED"], ["FAILED"]))
        assert states(lab, job) == ["OUT_OF_MEMORY"]
        cores = lab.ssh("head1", *ALICE, "srun", "--chdir=/", "--cpus-per-task=1", "--mem=100M", "nproc").strip()
        assert (cores, int(lab.ssh("gpu01", "nproc")) > 1) == ("1", True)
        limit = "systemctl show --property=MemoryMax --value user.slice"  # in a container it limits nothing
        total = int(lab.ssh("head1", "awk '/^MemTotal:/ {print $2}' /proc/meminfo").strip()) * 1024
        assert 0.75 < int(lab.root("head1", limit)) / total < 0.85, "what users of the head have together"
        lab.unchanged()


# A Slurm that clusterctl does not manage: Debian's packages, configured by hand.
UNMANAGED = """
export DEBIAN_FRONTEND=noninteractive
mkdir -p /etc/slurm
cat > /etc/slurm/slurm.conf <<END
ClusterName=theirs
SlurmctldHost=head1({head})
SlurmUser=slurm
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
NodeName=gpu01 NodeAddr={worker} CPUs=1
PartitionName=theirs Nodes=gpu01 Default=YES
END
apt-get -o Acquire::http::Proxy={proxy} -qq update
apt-get -o Acquire::http::Proxy={proxy} -qq install -y --no-install-recommends munge slurm-client {daemon}
echo {key} | base64 --decode > /etc/munge/munge.key
install -d -o slurm -g slurm /var/lib/slurm /var/lib/slurm/slurmctld /var/log/slurm
systemctl restart munge
systemctl restart {daemon}
"""
KEPT = "/var/lib/clusterctl/original/%2Fetc%2Fslurm%2Fslurm.conf"


@pytest.mark.proves("health", "GPUs in slots of eight lanes, and of the Blackwell generation, are fit.")
@pytest.mark.parametrize(("model", "type_"), [("t4", "t4"), ("b200-sxm-180gb", "b200")])
def test_gpu_model__as_servers_have_it__is_fit_and_takes_jobs(model: str, type_: str) -> None:
    with fresh(f"model-{type_}", "--gpu-model", model, "--gpus", "2", workers=1) as lab:
        lab.run("bootstrap")
        (node,) = lab.run("health")["nodes"]
        assert (node["fit"], len(node["answer"]["gpus"])) == (True, 2)
        assert [one for one in node["answer"]["findings"] if one["drains"]] == []
        assert f"Gres=gpu:{type_}:2" in lab.root("head1", "scontrol show node gpu01")
        works(lab)
        lab.unchanged()
        inject(lab, "gpu01", "ecc", "--gpu", "1")
        lab.ssh("gpu01", "tee", "/tmp/pynvml.py", stdin=Path(pynvml.__file__).read_text())
        actions = lab.ssh("gpu01", "sh", "-c", "'cd /tmp; python3 -'", stdin=RECOVERY_ACTIONS).split()
        older = pynvml.NVML_ERROR_NOT_SUPPORTED
        assert [int(one) for one in actions] == ([0, 0, older, older] if model == "t4" else [0, 1, 0, 0])


# Value and return code of each GPU. nvidia-smi 550, Debian's, does not print them.
RECOVERY_ACTIONS = """
import pynvml
pynvml.nvmlInit()
devices = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(2)]
found = [pynvml.nvmlDeviceGetFieldValues(one, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])[0] for one in devices]
print(*(one.value.uiVal for one in found), *(one.nvmlReturn for one in found))
"""


@pytest.mark.proves("bootstrap", "An unmanaged Slurm is refused; `--adopt` replaces it and keeps its slurm.conf.")
def test_adopt__unmanaged_slurm__is_refused_then_replaced() -> None:
    with fresh("adopt", "--gpus", "1", workers=1) as lab:
        site = yaml.safe_load(lab.inventory.read_text())["all"]
        head, worker = (
            site["children"][group]["hosts"][name]["ansible_host"]
            for group, name in (("slurm_head", "head1"), ("slurm_workers", "gpu01"))
        )
        key = base64.b64encode(os.urandom(1024)).decode()
        proxy = site["vars"]["cluster_package_proxy"]
        for node, daemon in (("head1", "slurmctld"), ("gpu01", "slurmd")):
            lab.root(node, UNMANAGED.format(head=head, worker=worker, proxy=proxy, daemon=daemon, key=key))
        wait_until(lambda: "idle" in lab.ssh("head1", "sinfo", "--noheader", "--format=%T"))
        lab.root("head1", "srun true; sbatch --output=none --wrap='sleep 10000'")
        before = lab.root("head1", "cat /etc/slurm/slurm.conf")

        refused(lab, "slurmctld not managed by clusterctl", "slurmd not managed by clusterctl", "--adopt")
        assert lab.root("head1", "squeue --noheader --format=%T").split() == ["RUNNING"]

        lab.run("bootstrap", "--adopt")
        assert lab.root("head1", f"cat {KEPT}") == lab.root("gpu01", f"cat {KEPT}") == before
        assert lab.root("head1", "cut -d'|' -f1 /var/lib/slurm/slurmctld.before-*/clustername").strip() == "theirs"
        assert f"ClusterName={lab.name}" in lab.root("head1", "scontrol show config").replace(" ", "")
        works(lab)
        lab.healthy()
        lab.unchanged()


def write(lab: TestLab, *groups: str, monitoring: str = "head1") -> None:
    """Give a lab's inventory these groups below its own, and monitoring to this host."""
    text = lab.inventory.read_text()
    own = text[: text.index("    monitoring:")]
    lab.inventory.write_text(f"{own}    monitoring: {{hosts: {{{monitoring}: {{}}}}}}\n" + "".join(groups))


def unused(lab: TestLab) -> dict[str, set[str]]:
    """Return the roles that status reports for each node that has such."""
    return {node["name"]: {*node["unused"]} for node in lab.healthy()["nodes"] if node["unused"]}


def installed(lab: TestLab, node: str, *packages: str) -> set[str]:
    """Return which of these packages a node has."""
    listed = lab.root(
        node, f"dpkg-query --show --showformat '${{Package}} ${{db:Status-Status}}\\n' {' '.join(packages)} || :"
    )
    return {words[0] for words in map(str.split, listed.splitlines()) if words[1] == "installed"}


@pytest.mark.proves("status", "`status` and `bootstrap` report roles that no group of the host has.")
@pytest.mark.proves("bootstrap", "`--prune` uninstalls the roles of left groups, except while jobs run.")
@pytest.mark.timeout(1800)
def test_groups__hosts_leave_them__roles_are_listed_then_pruned() -> None:
    """A host that leaves a group keeps its role until --prune; both are reported."""
    docker = "    docker: {hosts: {gpu01: {}}}\n"
    with fresh("leave", "--gpus", "1") as lab:
        write(lab, docker, "    podman: {hosts: {gpu01: {}, gpu02: {}}}\n")
        lab.run("bootstrap")
        assert unused(lab) == {}

        write(lab, docker, monitoring="gpu02")
        said = fails(lab, 0)
        expected = {"head1": {*MONITORING}, "gpu01": {"podman"}, "gpu02": {"containers", "podman"}}
        reported = dict(re.findall(r"(\w+): groups: installed, but in no group of the host: ([\w, ]+) \(", said))
        assert {node: {*names.split(", ")} for node, names in reported.items()} == expected
        assert "clusterctl bootstrap --prune" in said
        assert unused(lab) == expected
        line = "gpu02: installed, but in no group of the host: containers, podman (to uninstall: clusterctl boot"
        assert line in clusterctl("status", str(lab.inventory)).stdout

        job = submit(lab, "until [ -e /var/tmp/enough ]; do sleep 1; done", "--nodelist=gpu01")
        wait_until(lambda: states(lab, job) == ["RUNNING"])
        assert "Jobs are running on gpu01; nothing was uninstalled there" in fails(lab, 4, "--prune")
        assert unused(lab) == {"gpu01": {"podman"}}
        lab.root("gpu01", "touch /var/tmp/enough")
        wait_until(lambda: states(lab, job) == ["COMPLETED"])
        lab.run("bootstrap", "--prune")

        assert unused(lab) == {}
        assert not roles(lab, "head1") & {*MONITORING}
        assert roles(lab, "gpu01") & {"docker", "containers", "podman"} == {"docker", "containers"}
        assert not roles(lab, "gpu02") & {"docker", "containers", "podman"}
        assert installed(lab, "head1", "prometheus") == set()
        # conmon came along with podman alone.
        assert installed(lab, "gpu01", "podman", "conmon", "docker.io") == {"docker.io"}
        assert installed(lab, "gpu02", "podman", "conmon") == set()
        lab.root("gpu01", "docker info")
        assert all(target["health"] == "up" for target in ask(lab, "targets", "gpu02")["activeTargets"])
        works(lab)
        lab.unchanged("bootstrap", "--prune")


INOTIFY = Path("/proc/sys/fs/inotify/max_user_instances")


@contextmanager
def inotify_instances(least: int) -> Iterator[None]:
    """Let this machine's users have so many: systemd on each node takes five, and other labs need theirs meanwhile."""
    before = int(INOTIFY.read_text())
    if before >= least:
        yield
        return
    run_as_root(["sysctl", "--quiet", f"fs.inotify.max_user_instances={least}"])
    try:
        yield
    finally:
        run_as_root(["sysctl", "--quiet", f"fs.inotify.max_user_instances={before}"])


@pytest.mark.proves("bootstrap", "A head and twenty workers are built in one run and share a job.")
@pytest.mark.timeout(2400)
def test_twenty_workers__from_nothing__run_one_job() -> None:
    """A head and twenty workers are set up in one run, and work together."""
    with inotify_instances(512), fresh("twenty", "--gpus", "1", workers=20) as lab:
        lab.run("bootstrap")
        found = lab.healthy()
        assert [node["name"] for node in found["nodes"]] == lab.nodes
        assert sorted(found["slurm"]["nodes"]) == lab.nodes[1:]
        works(lab)
        lab.unchanged()


OLD = {
    # 2026-11-22 00:21: before backups were sealed, GPUs were checked and hosts had optional groups. Its secrets are
    # fewer; its records and its drain ledger are what an upgrade has to understand.
    "first": "74a8191ec2f8837dff95b7882ce92babdda1d36b",
    # 2026-11-22 17:14: before users were kept out of workers, jobs had directories of their own, and pages had TLS.
    "open": "2ef790d95d3fd99f989bbe78f534af6146a49334",
}
# Variables of a lab's inventory that they do not know.
LATER = r"(?m)^    (base_security_updates|slurm_head_confine):.*\n"


@pytest.fixture
def older(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """Return the program of an older clusterctl, installed beside this one."""
    old = OLD[request.param]
    if programs.call(["git", "-C", REPOSITORY, "cat-file", "-e", f"{old}^{{commit}}"], 60).returncode != 0:
        pytest.skip(f"this clone has no commit {old}: git fetch --unshallow")
    source, venv = tmp_path / "source", tmp_path / "venv"
    source.mkdir()
    programs.output_of(["git", "-C", REPOSITORY, "archive", f"--output={source}.tar", old], 60)
    programs.output_of(["tar", "-x", "-C", source, "-f", f"{source}.tar"], 60)
    programs.output_of([sys.executable, "-m", "venv", venv], 120)
    pip = [venv / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", source]
    programs.output_of(pip, 300)
    return str(venv / "bin/clusterctl")


@pytest.mark.proves("upgrade", "A newer clusterctl takes over an older one's cluster, its secrets, jobs and drains.")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("older", OLD, indirect=True)
def test_newer_clusterctl__on_an_older_ones_cluster__upgrades_it(older: str) -> None:
    """A bootstrap by this clusterctl takes over the cluster of an older one, drain included."""
    with fresh("older", "--gpus", "1", *(["--cgroups", "1"] if host_has_v1() else [])) as lab:
        text = lab.inventory.read_text()
        lab.inventory.write_text(re.sub(LATER, "", text))
        programs.output_of([older, "bootstrap", lab.inventory], 600)
        lab.inventory.write_text(text)
        directory = lab.inventory.parent
        given, keys = dict(secrets.values(directory)), (directory / "known_hosts").read_bytes()
        munge = lab.root("head1", "sha256sum /etc/munge/munge.key")
        lab.root("head1", "scontrol update nodename=gpu02 state=drain reason='broken fan'")
        job = submit(lab, "until [ -e /var/tmp/enough ]; do sleep 1; done", "--nodelist=gpu01")
        wait_until(lambda: states(lab, job) == ["RUNNING"])

        lab.run("bootstrap")
        assert given.items() <= secrets.values(directory).items()
        assert (directory / "known_hosts").read_bytes() == keys
        assert lab.root("head1", "sha256sum /etc/munge/munge.key") == munge
        assert in_service(lab)["gpu02"] == "drained"
        assert "broken fan" in lab.ssh("head1", "sinfo", "--list-reasons")
        lab.root("gpu01", "touch /var/tmp/enough")
        wait_until(lambda: states(lab, job) == ["COMPLETED"])
        lab.run("bootstrap")  # what had to wait for jobs that ran
        lab.unchanged()
        assert in_service(lab)["gpu02"] == "drained"
        lab.root("head1", "scontrol update nodename=gpu02 state=resume")
        works(lab)
        lab.healthy()


# In a mount namespace of its own: users, sudo's rules and homes are files that only the processes in it see.
AS_ORDINARY_USER = """
set -eu
for file in passwd group sudoers; do mount --bind {place}/$file /etc/$file; done
mount --bind {place}/home /home
for path in {paths}; do
  mkdir -p {place}/aside$path
  mount --bind $path {place}/aside$path
done
for path in {private}; do mount -t tmpfs -o mode=0755 tmpfs $path; done
for path in {paths}; do
  mkdir -p $path
  mount --bind {place}/aside$path $path
done
exec setpriv --reuid=64999 --regid=64999 --clear-groups \
  env HOME=/home/ordinary USER=ordinary LOGNAME=ordinary PATH={bin}:/usr/bin:/bin bash -euc "$1"
"""


def private_above(paths: Iterable[Path]) -> set[Path]:
    """Return the topmost directories above these paths that only their owner may enter."""
    found = (next((above for above in reversed(path.parents) if not above.stat().st_mode & 1), None) for path in paths)
    return {path for path in found if path}


def as_ordinary_user(place: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run a shell script as an ordinary user who exists for it alone, and who may use sudo without a password."""
    home = place / "home/ordinary"
    home.mkdir(parents=True)
    os.chown(home, 64999, 64999)
    (place / "passwd").write_text(
        Path("/etc/passwd").read_text() + "ordinary:*:64999:64999::/home/ordinary:/bin/bash\n"
    )
    (place / "group").write_text(Path("/etc/group").read_text() + "ordinary:*:64999:\n")
    (place / "sudoers").write_text("Defaults env_reset\nordinary ALL=(ALL) NOPASSWD: ALL\n")
    (place / "sudoers").chmod(0o440)
    paths = [REPOSITORY, Path(sys.base_prefix)]
    # Root's own directories are closed to such a user, and a checkout or a Python may lie in one.
    words = {"paths": paths, "private": sorted(private_above(paths))}
    outer = AS_ORDINARY_USER.format(
        place=place, bin=Path(sys.executable).parent, **{key: " ".join(map(str, value)) for key, value in words.items()}
    )
    argv = ["unshare", "--mount", "bash", "-c", outer, "bash", script]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("XDG_", "CLUSTERCTL_"))}
    return programs.call(argv, 300, env=environment)


@pytest.mark.proves("lab", "An ordinary user with sudo starts and removes a lab, not another user's.")
def test_lab__of_a_user_with_sudo__comes_up_and_leaves_nothing(tmp_path: Path) -> None:
    """An ordinary user with sudo has labs as root has, and keeps others' labs."""
    lab = lab_name("ordinary")
    with fresh("roots", "--gpus", "0", workers=1) as roots:
        remove_containers(*(f"clusterctl-{lab}-{node}" for node in ("head1", "gpu01")))
        done = as_ordinary_user(
            tmp_path,
            f"""trap 'clusterctl lab down --name {lab} >&2' EXIT
            id -un
            clusterctl lab up --name {lab} --workers 1 --gpus 1 >&2
            clusterctl lab status --name {lab}
            clusterctl lab ssh --name {lab} gpu01 -- sudo id -un
            find ~ ! -user ordinary
            ! clusterctl lab down --name {roots.name}
            """,
        )
        assert done.returncode == 0, described(done)
        first, *table, last = done.stdout.splitlines()
        assert (first, last) == ("ordinary", "root"), described(done)
        assert sum(" running " in line for line in table) == 2, described(done)
        assert f"lab {roots.name} belongs to " in done.stderr
        assert f"Lab {lab} was removed." in done.stderr
        assert f"clusterctl-{lab}-" not in podman("ps", "--all", "--format", "{{.Names}}")
        assert f"clusterctl-{lab}\n" not in podman("network", "ls", "--format", "{{.Name}}")
        assert roots.ssh("gpu01", "id", "-un").strip() == "admin"
