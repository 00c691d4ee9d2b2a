"""The main job on one lab, in order: empty nodes, a working cluster, an unchanged second run, repair, jobs."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pynvml
import pytest
import yaml

from clusterctl.lab.image import HERE as LAB
from clusterctl.lab.settings import gpu_models
from tests.cluster.lab import ALICE, CALL_LIMIT, HERE, SSH_LIMIT, TestLab, clusterctl, podman
from tests.faults.injury import in_service, outsider
from tests.labs import REPOSITORY, lab_name
from tests.manifests import differences, lasting
from tests.programs import conversation, output_of
from tests.pythons import Installed, install_wheel

PROFILES = LAB / "nvml" / "profiles"
SCAN_LIMIT = 300.0  # seconds for a look at all ports of two nodes; it takes some 30


# Kernel settings that change by themselves: counters, and a rate that a busy kernel lowers.
VOLATILE = re.compile(
    r"(fs\.(aio-nr|dentry|file-nr|inode|quota)|kernel\.(random|ns_last|pty\.nr|sched_domain|perf_event_max_sample_rate)|net\.)"
    r"|.*(conf\.(veth|podman))"
)
# Modules that a kernel loads by itself when podman asks it for a container's network, filter and file system, or when
# flannel in a node asks for its network.
FOR_CONTAINERS = re.compile(
    r"(br_netfilter|bridge|llc|overlay|stp|veth|vxlan|(ip6_)?udp_tunnel|libcrc32c|nfnetlink|ip_set|(arp|eb|ip|ip6|x)_?table|(nf|nft|xt)_)\w*$"
)


def host_state() -> dict[str, Any]:
    """What the lab must never change of its host; of modules None where the kernel has no /proc/modules."""
    sysctl = subprocess.run(["/sbin/sysctl", "-a"], capture_output=True, text=True, check=False, timeout=60).stdout
    modules = Path("/proc/modules")
    return {
        "sysctl": {line: "set" for line in sysctl.splitlines() if not VOLATILE.match(line)},
        "modules": sorted(line.split()[0] for line in modules.read_text().splitlines()) if modules.exists() else None,
        "swap": Path("/proc/swaps").read_text(),
        # The clock beside one that nobody can set: a step would show.
        "clock": time.time() - time.clock_gettime(time.CLOCK_BOOTTIME),
    }


# Taken when the tests are collected: xdist has all its processes do so before any of them runs a test.
HOST_BEFORE = host_state()


@pytest.mark.proves("lab", "A second `lab up` keeps all containers and adds none.")
def test_lab_up_twice_is_one_lab(lab: TestLab) -> None:
    listing = ("ps", "--filter", f"label=clusterctl.lab={lab.name}", "--format", "{{.ID}}")
    before = podman(*listing)
    lab.up()
    assert podman(*listing) == before
    assert len(before.split()) == 3


@pytest.mark.proves("lab", "`lab up` restarts killed nodes and recreates removed ones.")
def test_lab_up_recovers_nodes_that_were_killed_or_lost(lab: TestLab) -> None:
    """As after a reboot of the machine: podman still believes in containers whose processes are gone."""
    names = [f"clusterctl-{lab.name}-{node}" for node in lab.nodes]
    kill = "{{.State.Pid}} {{.State.ConmonPid}}"
    for pid in podman("container", "inspect", "--format", kill, *names[:2]).split():
        os.kill(int(pid), signal.SIGKILL)
    podman("rm", "--force", "--volumes", "--time", "0", names[2])
    lab.up()
    assert {node: lab.ssh(node, "hostname").strip() for node in lab.nodes} == {node: node for node in lab.nodes}


@pytest.mark.proves("bootstrap", "A stopped worker is reported, the other nodes stay unchanged, exit 3.")
@pytest.mark.proves("lab", "`lab up` starts a stopped node again.")
def test_stopped_node_is_named_and_nothing_changes(lab: TestLab) -> None:
    before = {node: lab.manifest(node) for node in ("head1", "gpu01")}
    podman("stop", "--time", "0", f"clusterctl-{lab.name}-gpu02")
    done = clusterctl("bootstrap", str(lab.inventory))
    assert done.returncode == 3, done.stderr
    assert "gpu02" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert differences(before, {node: lab.manifest(node) for node in ("head1", "gpu01")}) == []
    lab.up()  # a stopped node is started again


@pytest.mark.proves("bootstrap", "An empty lab becomes a working cluster.")
@pytest.mark.proves("bootstrap", "Each node gets a hardware record with its GPUs.")
def test_bootstrap(cluster: TestLab) -> None:
    records = sorted(path.stem for path in (cluster.inventory.parent / "hardware").glob("*.json"))
    assert records == sorted(cluster.nodes)
    gpus = json.loads((cluster.inventory.parent / "hardware" / "gpu01.json").read_text())["gpus"]
    assert [gpu["type"] for gpu in gpus] == ["a100"] * 4


@pytest.mark.proves("bootstrap", "A second run changes nothing, by Ansible's count and by an independent manifest.")
def test_second_run_changes_nothing(cluster: TestLab) -> None:
    before = cluster.manifests()
    cluster.unchanged()
    assert differences(before, cluster.manifests()) == []


@pytest.mark.proves("plan", "A plan of a finished cluster reports no change and makes none.")
def test_plan__of_a_finished_cluster__announces_nothing(cluster: TestLab) -> None:
    before = cluster.manifests()
    cluster.unchanged("plan bootstrap")
    assert differences(before, cluster.manifests()) == []


@pytest.mark.proves("verify", "`verify` notes homes that are not shared, and `status` names the workers.")
def test_homes__of_each_node_alone__are_noted(cluster: TestLab) -> None:
    notes = [note["note"] for note in cluster.run("verify")["notes"]]
    note = "homes are not shared: what a job writes at home stays on its node, seen on gpu01, gpu02"
    assert f"{note} (see clusterctl docs slurm)" in notes
    assert cluster.healthy()["homes_apart"] == ["gpu01", "gpu02"]


def found(document: dict[str, Any]) -> dict[str, tuple[dict[str, str], list[str]]]:
    """By node, the services that do not run, and how it differs from its record."""
    return {
        node["name"]: ({k: v for k, v in node["services"].items() if v != "active"}, node["differences"])
        for node in document["nodes"]
    }


@pytest.mark.proves("status", "A healthy cluster shows all services active, no differences and its GPU counts.")
def test_status_of_a_healthy_cluster(cluster: TestLab) -> None:
    document = cluster.healthy()
    assert found(document) == {node: ({}, []) for node in cluster.nodes}
    assert document["gpus"]["a100"] == {"total": 8, "allocated": 0, "idle": 8, "out_of_service": 0}


@pytest.mark.proves("status", "`status` reports a stopped slurmd and memory that differs from the record.")
@pytest.mark.proves("validate", "`discover` reports memory that differs from the hardware record.")
def test_status_and_validate_tell_what_is_not_as_it_was(cluster: TestLab) -> None:
    record = cluster.inventory.parent / "hardware" / "gpu01.json"
    kept = record.read_text()
    record.write_text(kept.replace('"memory_mb": ', '"memory_mb": 9', 1))
    cluster.root("gpu02", "systemctl stop slurmd")
    try:
        told = found(cluster.run("status", expect=4))
        assert told["head1"] == ({}, [])
        assert told["gpu01"][0] == {}
        assert [line.startswith("memory: recorded 9") for line in told["gpu01"][1]] == [True]
        assert told["gpu02"] == ({"slurmd": "inactive"}, [])
        validated = clusterctl("discover", str(cluster.inventory))
        assert "memory: recorded 9" in validated.stdout + validated.stderr
    finally:
        record.write_text(kept)
        cluster.root("gpu02", "systemctl start slurmd")


@pytest.mark.proves("jobs", "An ordinary user's job sees two GPUs on each of two nodes.")
def test_job_of_an_ordinary_user_sees_two_gpus_on_each_node(cluster: TestLab) -> None:
    out = cluster.ssh("head1", *ALICE, "srun", "--nodes=2", "--gres=gpu:2", "--label", "nvidia-smi", "-L")
    for task in "01":
        names = [line for line in out.splitlines() if line.startswith(f"{task}:")]
        assert len(names) == 2, out
        assert all("A100-SXM4-80GB" in line for line in names)


@pytest.mark.proves("jobs", "A job with two of four GPUs cannot open the others: EPERM.")
def test_a_foreign_gpu_cannot_be_opened(cluster: TestLab) -> None:
    script = (
        "import errno, glob, os\n"
        "def attempt(path):\n"
        "    try:\n"
        "        os.close(os.open(path, os.O_RDWR))\n"
        "        return 'open'\n"
        "    except OSError as error:\n"
        "        return errno.errorcode[error.errno]\n"
        "print(sorted(attempt(path) for path in glob.glob('/dev/nvidia[0-9]*')))\n"
    )
    out = cluster.ssh("head1", *ALICE, "srun", "--gres=gpu:2", "python3", "-", stdin=script)
    assert out.strip() == "['ENXIO', 'ENXIO', 'EPERM', 'EPERM']"


@pytest.mark.proves("lab", "NVIDIA's `nvidia-smi` runs on the simulated library.")
def test_nvidia_smi_speaks_on_the_simulated_library(cluster: TestLab) -> None:
    version = driver_version(cluster)
    query = "index,name,memory.total,driver_version,temperature.gpu,pcie.link.width.max"
    rows = cluster.ssh("gpu01", "nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader").splitlines()
    assert len(rows) == 4
    assert all(f"NVIDIA A100-SXM4-80GB, 81920 MiB, {version}," in row for row in rows)
    assert "NV12" in cluster.ssh("gpu01", "nvidia-smi", "topo", "-m")
    assert "<attached_gpus>4</attached_gpus>" in cluster.ssh("gpu01", "nvidia-smi", "-q", "-x")
    assert f"NVIDIA-SMI {version} " in cluster.ssh("gpu01", "nvidia-smi")


def driver_version(cluster: TestLab) -> str:
    """Return the version of gpu01's package nvidia-smi, which is the driver's; without Debian's revision."""
    shown = cluster.ssh("gpu01", "dpkg-query", "--show", "--showformat='${Version}'", "nvidia-smi")
    version = re.fullmatch(r"(\d+(?:\.\d+)+)-[^-]+", shown)
    assert version, shown
    return version[1]


@pytest.mark.proves("lab", "`nvidia-smi` lists GPUs of every model that the lab simulates.")
@pytest.mark.parametrize("model", gpu_models())
def test_nvidia_smi_lists_every_model_that_can_be_simulated(cluster: TestLab, model: str) -> None:
    profile = (PROFILES / f"{model}.conf").read_text()
    (name,) = re.findall(r"^name=(.+)$", profile, re.MULTILINE)
    look = "mount --bind /tmp/model.conf /etc/simulated-nvml.conf && nvidia-smi -L && nvidia-smi -q -x >/dev/null"
    cluster.ssh("gpu01", "tee", "/tmp/model.conf", stdin=f"{profile}gpus=4\nnode_seed=test\n")
    listed = cluster.root("gpu01", f"unshare --mount sh -c '{look}'").splitlines()
    assert [line.split(" (UUID")[0] for line in listed] == [f"GPU {index}: {name}" for index in range(4)]


@pytest.mark.proves("lab", "NVIDIA's `nvidia-ml-py` runs on the simulated library.")
def test_nvidia_ml_py_works_on_the_simulated_library(cluster: TestLab) -> None:
    cluster.ssh("gpu01", "tee", "/tmp/pynvml.py", stdin=Path(pynvml.__file__).read_text())
    cluster.ssh("gpu01", "tee", "/tmp/nvml_check.py", stdin=(HERE / "nvml_check.py").read_text())
    expected = f"--count 4 --name 'NVIDIA A100-SXM4-80GB' --memory-mib 81920 --driver {driver_version(cluster)}"
    cluster.ssh(
        "gpu01", f"cd /tmp && python3 nvml_check.py {expected}; code=$?; rm pynvml.py nvml_check.py; exit $code"
    )


@pytest.fixture
def all_well(cluster: TestLab) -> Iterator[TestLab]:
    """The cluster; afterwards its simulated GPUs are without faults, and as a reset leaves them."""
    yield cluster
    for node in ("gpu01", "gpu02"):
        assert clusterctl("lab", "fault", "--name", cluster.name, node, "clear").returncode == 0
        cluster.root(
            node, "nvidia-smi mig -dci >&2 || true; nvidia-smi mig -dgi >&2 || true; nvidia-smi -mig 0; nvidia-smi -r"
        )


def inject(cluster: TestLab, node: str, *fault: str) -> None:
    done = clusterctl("lab", "fault", "--name", cluster.name, node, *fault)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def query(cluster: TestLab, gpu: int, *fields: str) -> list[str]:
    """What nvidia-smi says of a GPU of gpu01, asked by an ordinary user."""
    argv = ["nvidia-smi", "-i", str(gpu), f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    return cluster.ssh("gpu01", *argv).strip().split(", ")


@pytest.mark.proves(
    "lab", "`nvidia-smi` sets power limit, clocks, ECC, compute and persistence mode for all processes."
)
@pytest.mark.proves("lab", "Only root can change a simulated GPU's settings.")
@pytest.mark.proves("lab", "A reset of a simulated GPU reverts its power limit, clocks and compute mode.")
def test_nvidia_smi_sets_what_every_process_sees_and_root_alone_may_set(all_well: TestLab) -> None:
    fields = ("power.limit", "clocks.gr", "compute_mode", "ecc.mode.current", "ecc.mode.pending", "persistence_mode")
    before = query(all_well, 1, *fields)
    assert before == ["400.00", "210", "Default", "Enabled", "Enabled", "Disabled"]
    assert "Insufficient Permissions" in all_well.ssh("gpu01", "nvidia-smi", "-i", "1", "-pl", "300", check=False)
    assert query(all_well, 1, *fields) == before
    for option in ("-pl 300", "-lgc 300,900", "-c 3", "-e 0", "-pm 1"):
        all_well.root("gpu01", f"nvidia-smi -i 1 {option}")
    assert query(all_well, 1, *fields) == ["300.00", "300", "Exclusive_Process", "Enabled", "Disabled", "Enabled"]
    assert "should be between 100.00 W and 400.00 W" in all_well.root("gpu01", "nvidia-smi -i 1 -pl 50", check=False)
    assert query(all_well, 0, *fields) == before
    all_well.root("gpu01", "nvidia-smi -i 1 -r")  # what was pending counts, what was set is gone
    assert query(all_well, 1, *fields) == ["400.00", "210", "Default", "Disabled", "Disabled", "Enabled"]
    all_well.root("gpu01", "nvidia-smi -i 1 -e 1; nvidia-smi -i 1 -pm 0; nvidia-smi -i 1 -r")
    assert query(all_well, 1, *fields) == before


# What Slurm's NVML plugin finds, unpacked beside the node's own Slurm and not installed.
SLURMS_PLUGIN = """
place=$(mktemp -d)
cd $place
apt-get -qq download slurm-wlm-nvml-plugin >&2
dpkg -x *.deb .
plugins=$(dirname $(find /usr -name gres_gpu.so -print -quit))
cat >slurm.conf <<END
ClusterName=x
SlurmctldHost=gpu01
GresTypes=gpu
NodeName=gpu01 Gres=gpu:6
PartitionName=p Nodes=ALL
PluginDir=$plugins:$place$plugins
END
echo AutoDetect=nvml >gres.conf
slurmd -G -f $place/slurm.conf 2>&1
rm -r $place
"""


@pytest.mark.proves("lab", "`nvidia-smi` creates and removes MIG instances of a simulated GPU.")
@pytest.mark.proves("lab", "A user who cannot open MIG device files does not see the instances.")
@pytest.mark.proves("lab", "Slurm's NVML plugin finds MIG instances, and whole GPUs with cores.")
def test_mig_devices_are_made_by_nvidia_smi_and_seen_by_slurms_plugin(all_well: TestLab) -> None:
    made = all_well.root("gpu01", "nvidia-smi -i 3 -mig 1 >&2; nvidia-smi mig -i 3 -cgi 3g.40gb,2g.20gb,2g.20gb -C")
    assert len(re.findall("^Successfully created compute instance", made, re.MULTILINE)) == 3
    assert "Insufficient Resources" in all_well.root("gpu01", "nvidia-smi mig -i 3 -cgi 3g.40gb", check=False)
    listed = re.findall(r"MIG (\S+) +Device +\d: \(UUID: MIG-", all_well.ssh("gpu01", "nvidia-smi", "-L"))
    assert listed == ["3g.40gb", "2g.20gb", "2g.20gb"]
    files = "/dev/nvidia-caps/nvidia-cap[0-9][0-9]*"
    hidden = f"chmod 0 {files}; su admin -c 'nvidia-smi -L'; chmod 0444 {files}"
    assert "MIG" not in all_well.root("gpu01", hidden)  # who may not open a device's file does not see it

    said = all_well.root("gpu01", SLURMS_PLUGIN)
    found = re.findall(r"Gres Name=gpu .* File=(\S+) Cores=(\S+) ", said)
    assert [files.count(",") for files, _ in found] == [0, 0, 0, 2, 2, 2], said
    assert all(re.fullmatch("/dev/nvidia3(,/dev/nvidia-caps/nvidia-cap[0-9]+){2}", files) for files, _ in found[3:])
    all_well.root("gpu01", "nvidia-smi mig -i 3 -dci; nvidia-smi mig -i 3 -dgi; nvidia-smi -i 3 -mig 0")
    assert "MIG" not in all_well.ssh("gpu01", "nvidia-smi", "-L")


EVENT = """
import pynvml
pynvml.nvmlInit()
events = pynvml.nvmlEventSetCreate()
for index in range(4):
    device = pynvml.nvmlDeviceGetHandleByIndex(index)
    pynvml.nvmlDeviceRegisterEvents(device, pynvml.nvmlEventTypeXidCriticalError, events)
print("waiting", flush=True)
event = pynvml.nvmlEventSetWait_v2(events, 120000)
print(pynvml.nvmlDeviceGetIndex(event.device), event.eventData)
"""


@pytest.mark.proves("lab", "`lab fault` shows through `nvidia-smi`, as an NVML event and in the kernel log.")
@pytest.mark.proves("lab", "`lab fault NODE clear` ends all simulated faults of a node.")
def test_faults_show_where_real_ones_do(all_well: TestLab) -> None:
    all_well.ssh("gpu01", "tee", "/tmp/pynvml.py", stdin=Path(pynvml.__file__).read_text())
    argv = all_well.ssh_argv("gpu01", f"cd /tmp && python3 -c {shlex.quote(EVENT)}")
    with conversation(argv, SSH_LIMIT, stdout=subprocess.PIPE, text=True) as waiting:
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == "waiting\n"
        inject(all_well, "gpu01", "gpu-xid", "31", "--gpu", "1")
        assert waiting.stdout.readline() == "1 31\n"
    all_well.ssh("gpu01", "rm", "/tmp/pynvml.py")

    inject(all_well, "gpu01", "ecc", "--gpu", "1")
    counters = ("ecc.errors.uncorrected.volatile.total", "ecc.errors.uncorrected.aggregate.total")
    assert query(all_well, 1, *counters) == ["1", "1"]
    assert "Pending                           : Yes" in all_well.ssh("gpu01", "nvidia-smi -q -i 1 -d ROW_REMAPPER")
    inject(all_well, "gpu01", "nvlink-down", "--gpu", "0")
    assert "Link 0: <inactive>" in all_well.ssh("gpu01", "nvidia-smi nvlink -s -i 0")
    inject(all_well, "gpu01", "hot")
    inject(all_well, "gpu01", "busy")
    reasons = ("clocks_event_reasons.hw_thermal_slowdown", "clocks_event_reasons.hw_power_brake_slowdown")
    assert query(all_well, 0, "temperature.gpu", "clocks.gr", *reasons) == ["90", "705", "Active", "Not Active"]
    inject(all_well, "gpu01", "power-brake", "--gpu", "3")
    inject(all_well, "gpu01", "pcie-width", "--gpu", "3")
    assert query(all_well, 3, reasons[1], "pcie.link.width.current", "pcie.link.width.max") == ["Active", "8", "16"]
    inject(all_well, "gpu01", "gpu-xid", "79", "--gpu", "2")
    assert "GPU is lost" in all_well.ssh("gpu01", "nvidia-smi -L 2>&1", check=False)
    numbers = re.findall(r"kernel: NVRM: Xid \(PCI:0000:(..):00\): (\d+),", all_well.root("gpu01", "journalctl -k"))
    assert numbers == [("0f", "31"), ("0f", "48"), ("0f", "63"), ("07", "74"), ("47", "79")]
    inject(all_well, "gpu01", "clear")
    assert len(all_well.ssh("gpu01", "nvidia-smi", "-L").splitlines()) == 4
    assert query(all_well, 1, *counters) == ["0", "0"]
    # The XIDs in the log would drain the node at the next health check, and raise an alert.
    assert all_well.run("health", "gpu01", "--diagnose")["exit_code"] == 0


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.mark.proves(
    "systems", "An installed wheel under the newest Python runs from another directory, changing nothing."
)
@pytest.mark.proves("backup", "The head's copy replaces a lost controller; bootstrap with it changes nothing.")
def test_wheel__recovered_directory_newest_python__changes_nothing(
    cluster: TestLab, installed: Installed, tmp_path: Path
) -> None:
    """As docs/inventory.md says for a lost controller, on one that has the wheel and the way in, nothing else."""
    argv = cluster.ssh_argv("head1", "sudo", "cat", "/var/lib/clusterctl/recovery.tar")
    copy = subprocess.run(argv, capture_output=True, check=True, timeout=60).stdout
    subprocess.run(["tar", "--extract", "--directory", str(tmp_path)], input=copy, check=True, timeout=60)
    config = tmp_path / "home" / ".config" / "clusterctl"
    config.mkdir(parents=True)
    (tmp_path / "vault").rename(config / "vault")
    original = cluster.inventory.parent
    directory = tmp_path / original.name
    recovered = {path.relative_to(directory): path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    needed = ["inventory.yaml", "known_hosts", "secrets.yml", *(f"hardware/{node}.json" for node in cluster.nodes)]
    assert recovered.keys() >= {Path(name) for name in needed}, "the head's copy of the directory is not complete"
    assert recovered == {path: (original / path).read_bytes() for path in recovered}, (
        "the head's copy is not up to date"
    )

    bootstrap = [installed.program, "bootstrap", directory / cluster.inventory.name, "--output", "json"]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path / "home")}
    hosts = json.loads(output_of(bootstrap, CALL_LIMIT, cwd=config, env=environment))["hosts"]
    changes = {name: host["changes"] for name, host in hosts.items() if host["changed"]}
    assert changes == {}, f"{installed} and the recovered directory are not what built the cluster"
    assert set(hosts) == set(cluster.nodes), "the recovered inventory has not all nodes"


@pytest.mark.proves("systems", "The documentation travels in the wheel.")
def test_wheel__docs__are_in_it(installed: Installed, tmp_path: Path) -> None:
    page = output_of([installed.program, "docs", "variables"], CALL_LIMIT, cwd=tmp_path)
    assert page == (REPOSITORY / "docs/variables.md").read_text()


@pytest.mark.proves("systems", "Under Python 3.12 or newer the wheel gets ansible-core 2.20 or newer.")
def test_wheel__newest_python__gets_the_newest_ansible(installed: Installed) -> None:
    """So the bootstrap before this test ran under both."""
    if installed.python < (3, 12):
        pytest.skip(f"ansible-core 2.20 needs Python 3.12, and the newest here is {sys.version.split()[0]}")
    assert installed.ansible >= (2, 20)


# A file that no unit reads, so that its repair is the only change.
EDITED = "/etc/security/limits.d/60-clusterctl.conf"


@pytest.mark.proves("print-command", "The printed bootstrap command repairs an edited file and changes nothing else.")
def test_printed_command__one_file_edited__repairs_that_alone(cluster: TestLab) -> None:
    command = clusterctl("bootstrap", str(cluster.inventory), "--print-command").stdout.strip()
    before = cluster.manifests()
    cluster.root("gpu01", f"echo '# by hand' >> {EDITED}")
    injured = cluster.manifest("gpu01")
    assert [line.split(":")[0] for line in differences(before["gpu01"], injured)] == [f"/files/{EDITED}"]
    printed = output_of(["bash", "-c", command], CALL_LIMIT)
    recap = re.findall(r"^(\w+) +: ok=\d+ +changed=(\d+)", printed, re.MULTILINE)
    assert dict(recap) == {"head1": "0", "gpu01": "1", "gpu02": "0"}
    assert differences(before, cluster.manifests()) == []


REACH_FOR_THE_HOST = """
import ctypes, errno, json, time
libc = ctypes.CDLL(None, use_errno=True)
def name(result):
    return errno.errorcode[ctypes.get_errno()] if result else "done"
told = {"swap": name(libc.swapon(b"/nonexistent", 0)), "swap off": name(libc.swapoff(b"/nonexistent"))}
told["module"] = name(libc.syscall({"x86_64": 175, "aarch64": 105}[__import__("platform").machine()], None, 0, b""))
try:
    time.clock_settime(time.CLOCK_REALTIME, time.time())
    told["clock"] = "done"
except OSError as error:
    told["clock"] = errno.errorcode[error.errno]
try:
    open("/proc/sys/vm/swappiness", "r+").close()
    told["sysctl"] = "done"
except OSError as error:
    told["sysctl"] = errno.errorcode[error.errno]
print(json.dumps(told))
"""


@pytest.mark.proves("bootstrap", "`--skip-unreachable` skips a dead worker, keeps it in Slurm, exits with 4.")
@pytest.mark.proves("bootstrap", "`--limit` runs on the named host only, and adds a skipped worker again.")
def test_a_run_goes_on_without_a_dead_worker_and_takes_it_back(cluster: TestLab) -> None:
    before = lasting(cluster.manifests())
    podman("stop", "--time", "0", f"clusterctl-{cluster.name}-gpu02")
    summary = cluster.run("bootstrap", "--skip-unreachable", expect=4)
    assert summary["skipped"] == ["gpu02"]
    assert {name: host["changed"] for name, host in summary["hosts"].items()} == {"head1": 0, "gpu01": 0}
    assert "NodeName=gpu02 " in cluster.root("head1", "cat /etc/slurm/slurm.conf")
    nobody_left = clusterctl("bootstrap", str(cluster.inventory), "--limit", "gpu02", "--skip-unreachable")
    assert nobody_left.returncode == 3
    assert "gpu02" in nobody_left.stdout + nobody_left.stderr
    cluster.up()
    limited = cluster.run("bootstrap", "--limit", "gpu02")
    assert set(limited["hosts"]) == {"gpu02"}
    assert differences(before, lasting(cluster.manifests())) == []
    assert in_service(cluster)["gpu02"] == "idle"


@pytest.mark.proves("bootstrap", "A node whose hardware record is lost stays in slurm.conf; exit 5.")
def test_a_node_whose_record_is_lost_stays_in_slurm(cluster: TestLab) -> None:
    record = cluster.inventory.parent / "hardware" / "gpu02.json"
    kept = record.read_text()
    record.unlink()
    try:
        done = clusterctl("bootstrap", str(cluster.inventory), "--limit", "head1")
        assert done.returncode == 5, done.stdout + done.stderr
        assert "gpu02 is in Slurm, but its hardware record is missing" in done.stdout + done.stderr
        assert "NodeName=gpu02 " in cluster.root("head1", "cat /etc/slurm/slurm.conf")
    finally:
        record.write_text(kept)


@pytest.mark.proves("verify", "A worker that Slurm reports down fails; the other hosts pass; exit 4.")
def test_a_worker_that_slurm_cannot_use_has_failed_and_not_the_head(cluster: TestLab) -> None:
    cluster.root("head1", "scontrol update nodename=gpu02 state=DOWN reason=test")
    try:
        summary = cluster.run("verify", expect=4)
        assert {name: host["status"] for name, host in summary["hosts"].items()} == {
            "head1": "ok",
            "gpu01": "ok",
            "gpu02": "failed",
        }
        assert "its Slurm state is down" in summary["failures"][0]["message"]
    finally:
        cluster.root("head1", "scontrol update nodename=gpu02 state=RESUME")


GROUPS = {"head1": {"slurm_head", "monitoring"}, "gpu01": {"slurm_workers"}}


def declared(node: str, *audiences: str, groups: Mapping[str, set[str]] = GROUPS) -> dict[str, list[int]]:
    """What docs/ports.md says that a node opens to these, by protocol; without what it opens to root's ports alone."""
    found: dict[str, set[int]] = {"tcp": set(), "udp": set()}
    for line in (REPOSITORY / "docs/ports.md").read_text().splitlines():
        row = re.match(r"\| (\d+)/(tcp|udp)[^|]* \| (\w+)([^|]*) \| ([^|]+) \|", line)
        if not row or row[3] not in audiences or "from root's ports only" in row[4]:
            continue
        if row[5] == "every group" or set(re.findall(r"\w+", row[5])) & groups[node]:
            found[row[2]].add(int(row[1]))
    return {protocol: sorted(ports) for protocol, ports in found.items()}


def question(cluster: TestLab, source: str) -> tuple[dict[str, str], str]:
    """Address to name of the nodes that are looked at, and what scan.py is asked."""
    groups = yaml.safe_load(cluster.inventory.read_text())["all"]["children"]
    hosts = groups["slurm_head"]["hosts"] | groups["slurm_workers"]["hosts"]
    names = {hosts[name]["ansible_host"]: name for name in GROUPS}
    name, pages = f"gpu01.{cluster.name}.cluster", ["/", "/metrics"]
    return names, json.dumps({"source": source, "addresses": list(names), "name": name, "pages": pages})


@pytest.fixture
def outside(lab: TestLab) -> Iterator[str]:
    with outsider(lab) as address:
        yield address


@pytest.mark.proves("firewall", "From outside, exactly the ports of docs/ports.md for administrators are open.")
@pytest.mark.proves("firewall", "From outside, no page is readable without a password.")
def test_from_outside_the_declared_ports_alone_are_open(cluster: TestLab, outside: str) -> None:
    names, asked = question(cluster, outside)
    argv = [sys.executable, str(HERE / "scan.py"), asked]
    seen = json.loads(output_of(argv, SCAN_LIMIT))
    for address, node in names.items():
        assert {key: seen[address][key] for key in ("tcp", "udp")} == declared(node, "admin"), node
        for port, answers in seen[address]["pages"].items():
            assert all(answer == "" or " 401 " in answer for answer in answers), f"{node}: {port} answers {answers}"
    assert " 401 " in seen[next(iter(names))]["pages"]["9090"][0]  # so the scan does see a page where there is one


@pytest.mark.proves("firewall", "From a node's user, exactly the ports of docs/ports.md are open.")
def test_from_inside_nothing_is_open_that_is_not_declared(cluster: TestLab) -> None:
    names, asked = question(cluster, "")
    told = cluster.ssh("gpu02", "python3", "-", shlex.quote(asked), stdin=(HERE / "scan.py").read_text())
    for address, seen in json.loads(told).items():
        node = names[address]
        assert {key: seen[key] for key in ("tcp", "udp")} == declared(node, "admin", "cluster"), node
        pages = {int(port): answers for port, answers in seen["pages"].items() if any(answers)}
        assert pages.keys() == ({9090, 9093, 9443} if node == "head1" else set())
        for port in pages.keys() & set(declared(node, "admin")["tcp"]):
            assert all(" 401 " in answer for answer in pages[port])


@pytest.mark.proves("firewall", "Ports that docs/ports.md calls local listen on the loopback only.")
def test_what_is_declared_as_local_listens_on_the_loopback_alone(cluster: TestLab) -> None:
    for node in GROUPS:
        sockets = [line.split() for line in cluster.ssh(node, "ss", "-tulnH").splitlines()]
        for protocol, ports in declared(node, "local").items():
            for port in ports:
                at = {words[4] for words in sockets if words[0] == protocol and words[4].endswith(f":{port}")}
                assert at, f"{node}: nothing listens on {port}/{protocol}"
                assert at <= {f"127.0.0.1:{port}", f"[::1]:{port}"}, node


@pytest.mark.proves("firewall", "An active ufw is refused with the command that disables it.")
def test_a_second_firewall_is_refused_with_the_command_that_helps(cluster: TestLab) -> None:
    cluster.root("gpu02", "apt-get -qq install -y --no-install-recommends ufw")
    cluster.root("gpu02", "ufw allow 22/tcp && ufw --force enable")
    try:
        done = clusterctl("bootstrap", str(cluster.inventory))
        assert done.returncode == 3, done.stdout + done.stderr
        assert "gpu02: firewall: ufw is already active (disable it: ufw disable" in done.stderr
        # The role itself, where Ansible runs without our preflight.
        told = cluster.root("gpu02", "clusterctl-firewall check /etc/clusterctl/firewall.nft 2>&1 || echo exit $?")
        assert "ufw disable" in told
        assert told.endswith("exit 1\n")
    finally:
        cluster.root("gpu02", "ufw disable && apt-get -qq purge -y ufw && apt-get -qq autoremove -y")


@pytest.mark.proves("lab", "Labs leave the host's kernel settings, swap and clock unchanged.")
def test_host__labs_of_this_test_run__leave_it_as_it_was(cluster: TestLab) -> None:
    """From the collection of the tests, before the first lab of this test run, up to here.

    What the first lab of a machine changes for good shows only on a machine that had no lab before. A kernel without
    loadable modules (no /proc/modules) shows nothing of modules.
    """
    before, after = dict(HOST_BEFORE), host_state()
    assert abs(before.pop("clock") - after.pop("clock")) < 5  # seconds; the host's own time service may slew
    modules = {*(before.pop("modules") or ())} ^ {*(after.pop("modules") or ())}
    assert {name for name in modules if not FOR_CONTAINERS.match(name)} == set()
    assert differences(before, after) == []


@pytest.mark.proves("lab", "In a node the calls for clock, modules, swap and sysctl are refused.")
def test_node__reach_for_the_host__is_refused(cluster: TestLab) -> None:
    """Each would fail otherwise without the ban: with ENOENT, EFAULT or not at all."""
    told = json.loads(cluster.ssh("gpu01", "sudo", "python3", "-", stdin=REACH_FOR_THE_HOST))
    assert told == dict.fromkeys(("clock", "module", "swap", "swap off"), "EPERM") | {"sysctl": "EROFS"}


@pytest.mark.proves("lab", "`lab down` leaves no container, volume, network or directory.")
def test_lab_down_leaves_nothing(lab: TestLab) -> None:
    short = TestLab(lab_name("gone"), workers=1)
    short.up()
    containers = [f"clusterctl-{short.name}-{node}" for node in short.nodes]
    mounts = json.loads(podman("inspect", "--format", "json", *containers))
    volumes = {mount["Name"] for container in mounts for mount in container["Mounts"] if mount["Type"] == "volume"}
    assert volumes <= set(podman("volume", "ls", "--quiet").split())
    assert volumes
    short.down()
    assert not volumes & set(podman("volume", "ls", "--quiet").split())
    for listing in (("ps", "--all"), ("network", "ls")):
        assert short.name not in podman(*listing)
    assert not short.inventory.parent.exists()
