"""GPUs as the inventory asks: power, clocks, and MIG instances that Slurm names and hands out one by one.

The chain goes from a fresh cluster over changes under running jobs to a restart of a node. Simulated H100s of
NVIDIA's own nvidia-smi, which forgets MIG at every boot, as the real ones do.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.lab import ALICE, ALICES, TestLab, clusterctl, fresh, podman, submit
from tests.cluster.members import states
from tests.cluster.sessions import alice, key_of_alice
from tests.faults.injury import begin, ended, wait_until

THREE = "3g.40gb,2g.20gb,2g.20gb"
# What a job of an ordinary user sees: its variable, nvidia-smi's list, and the instances whose files it may open.
SEES = """
echo "visible=$CUDA_VISIBLE_DEVICES"
nvidia-smi -L
for file in /dev/nvidia[0-9] /dev/nvidia-mig/gpu*/ci-*; do
    (exec 3<"$file") 2>&1 | grep -q 'not permitted' || echo "opens=$file"
done
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[TestLab]:
    recipes = ("--recipe", "nvidia-container-toolkit", "--recipe", "debian")
    with fresh("gpu-config", "--gpu-model", "h100-sxm5-80gb", "--gpus", "2", *recipes) as lab:
        lab.switch_on("gpu_config", "podman", "nvidia_container_toolkit")
        lab.declare("gpu_config_power_limit: 85%", 'gpu_config_graphics_clock: "345,1500"')
        lab.declare("slurm_head_health_interval: 5")
        of(lab, "gpu01", f'gpu_config_mig: "{THREE}"')
        lab.inventory.write_text(
            lab.inventory.read_text().replace(ALICES, f"{ALICES}      - {{name: bob, uid: 5002}}\n")
        )
        lab.run("bootstrap")
        yield lab


def of(lab: TestLab, node: str, *lines: str) -> Path:
    """Give a host variables of its own."""
    path = lab.inventory.parent / f"host_vars/{node}.yml"
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def gres(lab: TestLab) -> dict[str, str]:
    """What Slurm says that each node has, in the order of the types."""
    told = lab.root("head1", "sinfo --noheader --Node --format='%N %G'")
    found = (line.split() for line in told.splitlines())
    return {name: ",".join(sorted(re.sub(r"\(.*?\)", "", what).split(","))) for name, what in found}


def state(lab: TestLab, node: str) -> tuple[str, str]:
    told = lab.root("head1", f"sinfo --noheader --Node --nodes={node} --format='%T|%E'").strip()
    return (told.partition("|")[0], told.partition("|")[2])


def instances(lab: TestLab, node: str) -> list[str]:
    """The driver's own list."""
    return re.findall(r"  MIG (\S+) +Device", lab.ssh(node, "nvidia-smi", "-L"))


def power(lab: TestLab, node: str) -> list[str]:
    return lab.ssh(node, "nvidia-smi", "--query-gpu=power.limit", "--format=csv,noheader").splitlines()


def seen(lab: TestLab, *options: str, user: str = "alice") -> str:
    return lab.ssh(
        "head1", *ALICE[:-1], user, "srun", "--mem=1M", "--chdir=/", "--quiet", *options, "sh", "-s", stdin=SEES
    )


@pytest.mark.proves("gpu", "Power limits and MIG layouts are set as in the inventory.")
@pytest.mark.proves("gpu", "Slurm lists MIG instances by type.")
@pytest.mark.proves("gpu", "A second run with GPU settings changes nothing.")
def test_slurm_names_the_instances_and_a_second_run_changes_nothing(lab: TestLab) -> None:
    assert gres(lab) == {"gpu01": "gpu:2g.20gb:4,gpu:3g.40gb:2", "gpu02": "gpu:h100:2"}
    assert instances(lab, "gpu01") == THREE.split(",") * 2
    assert instances(lab, "gpu02") == []
    assert power(lab, "gpu01") == power(lab, "gpu02") == ["595.00 W"] * 2
    assert {state(lab, node)[0] for node in ("gpu01", "gpu02")} == {"idle"}
    record = json.loads((lab.inventory.parent / "hardware/gpu01.json").read_text())
    assert [gpu["mig"] for gpu in record["gpus"]] == [sorted(THREE.split(","))] * 2
    lab.unchanged()


@pytest.mark.proves("gpu", "A job gets the MIG instance it requested and can open no other.")
def test_a_job_gets_one_instance_and_no_other(lab: TestLab) -> None:
    told = seen(lab, "--gres=gpu:2g.20gb:1")
    assert re.findall(r"  MIG (\S+)", told) == ["2g.20gb"]
    opened = re.findall("opens=(.*)", told)
    assert len(opened) == 2, told
    assert re.fullmatch("/dev/nvidia[01]", opened[0])
    assert re.fullmatch("/dev/nvidia-mig/gpu[01]/ci-2g.20gb-[01]", opened[1])
    assert re.findall(r"  MIG (\S+)", seen(lab, "--gres=gpu:3g.40gb:2")) == ["3g.40gb"] * 2
    assert "MIG" not in seen(lab, "--gres=gpu:h100:1")


@pytest.mark.proves("gpu", "Two users' MIG instances on one node are their own, in jobs and by SSH.")
def test_two_users_instances_are_their_own(lab: TestLab, tmp_path: Path) -> None:
    key = key_of_alice(lab, tmp_path, ["gpu01"])
    job = submit(lab, "sleep 900", "--gres=gpu:2g.20gb:1", "--nodelist=gpu01")
    try:
        wait_until(lambda: states(lab, job) == ["RUNNING"])
        done = alice(lab, key, "gpu01", SEES)
        assert done.returncode == 0, done.stderr
        bobs = seen(lab, "--nodelist=gpu01", "--gres=gpu:2g.20gb:1", user="bob")
        for told in (done.stdout, bobs):
            assert re.findall(r"  MIG (\S+)", told) == ["2g.20gb"], told
            assert len(re.findall("opens=/dev/nvidia-mig/", told)) == 1, told
        assert not owned(done.stdout) & owned(bobs)
    finally:
        lab.ssh("head1", *ALICE, "scancel", job)
    wait_until(lambda: states(lab, job)[:1] == ["CANCELLED"])


def owned(told: str) -> set[str]:
    """The MIG instances of what SEES prints: their UUIDs and the files that may be opened."""
    return {*re.findall(r"UUID: (MIG-[0-9a-f-]+)", told), *re.findall("opens=(/dev/nvidia-mig/.*)", told)}


@pytest.mark.proves("containers", "A job's container has the job's MIG instances and no others.")
def test_a_jobs_container_has_its_instances_and_no_others(lab: TestLab) -> None:
    assert contained(lab, "--gres=gpu:2g.20gb:1") == ["2g.20gb"]
    assert contained(lab, "--gres=gpu:3g.40gb:2") == ["3g.40gb"] * 2


def contained(lab: TestLab, *options: str) -> list[str]:
    """The instances that a container of a job's is shown, which are those of the job."""
    script = f"nvidia-smi -L; echo ==; podman run --rm --quiet $(job-gpus) {lab.image} nvidia-smi -L"
    told = lab.ssh("head1", *ALICE, "srun", "--chdir=/", "--quiet", *options, "sh", "-eu", "-s", stdin=script)
    outside, inside = (part.splitlines() for part in told.split("==\n"))
    assert inside == outside
    return [found.group(1) for line in inside if (found := re.search(r"  MIG (\S+)", line))]


@pytest.mark.proves("health", "A fabric that is not up drains its node only; repair resumes it.")
def test_a_fabric_that_is_not_up_drains_its_node(lab: TestLab) -> None:
    """Of a fault that these have and test_health.py's GPUs do not."""
    assert clusterctl("lab", "fault", "--name", lab.name, "gpu02", "fabric-down").returncode == 0
    wait_until(lambda: state(lab, "gpu02") == ("drained", "clusterctl: health: GPU 0: fabric in progress, no status"))
    assert state(lab, "gpu01")[0] == "idle"
    assert clusterctl("lab", "fault", "--name", lab.name, "gpu02", "clear").returncode == 0
    wait_until(lambda: state(lab, "gpu02")[0] == "idle")


@pytest.mark.proves("gpu", "A lost MIG layout drains the node until `upgrade --only gpu_config`.")
@pytest.mark.long
def test_a_layout_that_was_lost_is_missed_until_an_upgrade_brings_it_back(lab: TestLab) -> None:
    lab.root("gpu01", "nvidia-smi mig -dci && nvidia-smi mig -dgi")
    missed = ("drained", f"clusterctl: health: GPU 0: MIG layout nothing, expected {THREE} (and 1 more)")
    wait_until(lambda: state(lab, "gpu01") == missed)
    document = lab.run("bootstrap")
    assert f"MIG layout {THREE}, was nothing, once the node is drained for it" in json.dumps(document)
    assert state(lab, "gpu01") == missed
    lab.run("upgrade", "--only", "gpu_config")
    assert instances(lab, "gpu01") == THREE.split(",") * 2
    assert gres(lab)["gpu01"] == "gpu:2g.20gb:4,gpu:3g.40gb:2"
    wait_until(lambda: state(lab, "gpu01")[0] == "idle")
    lab.unchanged()


@pytest.mark.proves("gpu", "A power limit changes while a job runs.")
@pytest.mark.proves("gpu", "A new MIG layout waits for the job; then Slurm lists it.")
@pytest.mark.proves("containers", "After a layout change a job's container has the new instances.")
@pytest.mark.long
def test_power_changes_under_a_job_and_a_layout_waits_until_it_has_ended(lab: TestLab) -> None:
    number = submit(lab, "sleep 100000", "--nodelist=gpu01", "--gres=gpu:2g.20gb:1")
    wait_until(lambda: lab.root("head1", f"squeue --noheader --jobs={number} --format=%T").strip() == "RUNNING")
    of(lab, "gpu01", 'gpu_config_mig: "7g.80gb"', 'gpu_config_power_limit: "500"')
    assert "500 W, was 595 W" in json.dumps(lab.run("plan bootstrap", expect=10))
    assert power(lab, "gpu01") == ["595.00 W"] * 2
    document = lab.run("bootstrap")
    waits = f"MIG layout 7g.80gb, was {THREE}, once the node is drained for it: clusterctl upgrade --only gpu_config"
    assert waits in json.dumps(document)
    assert power(lab, "gpu01") == ["500.00 W"] * 2
    assert instances(lab, "gpu01") == THREE.split(",") * 2
    assert gres(lab)["gpu01"] == "gpu:2g.20gb:4,gpu:3g.40gb:2"
    lab.unchanged()

    upgrade = begin(lab, "upgrade", "--only", "gpu_config")
    wait_until(lambda: "upgrade" in json.loads(lab.root("head1", "slurm-drain")).get("gpu01", {}))
    assert state(lab, "gpu01")[0] == "draining"
    assert instances(lab, "gpu01") == THREE.split(",") * 2
    assert lab.root("head1", f"squeue --noheader --jobs={number} --format=%T").strip() == "RUNNING"
    lab.root("head1", f"scancel {number}")
    said = ended(upgrade, 0)
    assert "waiting for 1 job" in said
    assert instances(lab, "gpu01") == ["7g.80gb"] * 2
    assert gres(lab) == {"gpu01": "gpu:7g.80gb:2", "gpu02": "gpu:h100:2"}
    wait_until(lambda: state(lab, "gpu01")[0] == "idle")
    assert re.findall(r"  MIG (\S+)", seen(lab, "--gres=gpu:7g.80gb:1")) == ["7g.80gb"]
    assert contained(lab, "--gres=gpu:7g.80gb:1") == ["7g.80gb"]
    lab.unchanged()


@pytest.mark.proves("gpu", "A change of layout keeps an operator's drain.")
@pytest.mark.long
def test_an_operators_drain_is_kept(lab: TestLab) -> None:
    lab.root("head1", "scontrol update NodeName=gpu02 State=DRAIN Reason='new fan'")
    of(lab, "gpu02", f'gpu_config_mig_gpus: {{"1": "{THREE}"}}')
    lab.run("upgrade", "--only", "gpu_config")
    assert gres(lab)["gpu02"] == "gpu:2g.20gb:2,gpu:3g.40gb:1,gpu:h100:1"
    assert instances(lab, "gpu02") == THREE.split(",")
    assert state(lab, "gpu02") == ("drained", "new fan")
    lab.root("head1", "scontrol update NodeName=gpu02 State=RESUME")
    wait_until(lambda: state(lab, "gpu02")[0] == "idle")


@pytest.mark.proves("gpu", "A node's restart restores layout and power limit; jobs get their instances.")
@pytest.mark.proves("containers", "After a restart a job's container has the job's instances.")
@pytest.mark.proves("gpu", "When slurmd runs after a restart, layout and power limit are back.")
@pytest.mark.long
def test_a_restart_brings_all_of_it_back_before_slurm(lab: TestLab) -> None:
    podman("restart", "--time", "5", f"clusterctl-{lab.name}-gpu01")
    wait_until(lambda: lab.ssh("gpu01", "systemctl", "is-active", "slurmd", check=False).strip() == "active")
    assert instances(lab, "gpu01") == ["7g.80gb"] * 2
    assert power(lab, "gpu01") == ["500.00 W"] * 2
    lab.root("gpu01", "journalctl --boot --unit gpu-config | grep -q 'MIG layout 7g.80gb, was none'")
    wait_until(lambda: state(lab, "gpu01")[0] == "idle")
    assert re.findall(r"  MIG (\S+)", seen(lab, "--gres=gpu:7g.80gb:1")) == ["7g.80gb"]
    assert contained(lab, "--gres=gpu:7g.80gb:1") == ["7g.80gb"]


@pytest.mark.proves("gpu", "A setting the card does not support is refused with the choices.")
@pytest.mark.long
def test_what_a_card_cannot_do_is_refused_with_what_it_can(lab: TestLab) -> None:
    path = of(lab, "gpu01", 'gpu_config_mig: "7g.80gb"', 'gpu_config_power_limit: "100"')
    said = clusterctl("bootstrap", str(lab.inventory))
    assert said.returncode == 4
    assert "gpu_config_power_limit: got 100 W, expected 200 to 700 W (default 700 W)" in " ".join(said.stdout.split())
    of(lab, "gpu01", 'gpu_config_mig: "1g.12gb"', 'gpu_config_power_limit: "500"')
    said = clusterctl("bootstrap", str(lab.inventory))
    assert said.returncode == 4
    assert "the GPU has no 1g.12gb, expected some of 1g.10gb" in " ".join(said.stdout.split())
    assert instances(lab, "gpu01") == ["7g.80gb"] * 2
    assert gres(lab)["gpu01"] == "gpu:7g.80gb:2"
    of(lab, "gpu01", 'gpu_config_mig: "3g.40gb,3g.40gb,1g.10gb"')
    said = clusterctl("bootstrap", str(lab.inventory))
    assert said.returncode == 2
    assert f"{path.name}:1:17: gpu_config_mig: bad value" in said.stderr
    of(lab, "gpu01", 'gpu_config_mig: "7g.80gb"', 'gpu_config_power_limit: "500"')
    lab.run("bootstrap")
    wait_until(lambda: state(lab, "gpu01")[0] == "idle")


@pytest.mark.proves("gpu", "With `slurm_head_gres_source: driver` Slurm keeps all types and counts.")
@pytest.mark.proves("gpu", "With the driver as source a job knows its instance by UUID.")
@pytest.mark.long
def test_slurm_asks_the_driver_itself_where_that_is_its_source(lab: TestLab) -> None:
    """The types and counts stay; a job knows its instance by the name that CUDA has for it."""
    before = gres(lab)
    lab.declare("slurm_head_gres_source: driver")
    lab.run("bootstrap")
    assert gres(lab) == before
    told = seen(lab, "--nodelist=gpu02", "--gres=gpu:2g.20gb:1")
    assert re.search("visible=MIG-[0-9a-f-]{36}$", told, re.MULTILINE), told
    assert re.findall(r"  MIG (\S+)", told) == ["2g.20gb"]
    assert len(re.findall("opens=", told)) == 2, told
    lab.unchanged()


@pytest.mark.proves("health", "A node resumes with its GPU after Slurm itself reported it missing.")
@pytest.mark.long
def test_a_node_comes_back_with_its_gpu_though_slurm_itself_had_found_it_missing(lab: TestLab) -> None:
    """Slurm's reason replaces ours when the node registers, and Slurm then checks its health only when slurmd starts.

    Slurm still asks the driver for the GPUs: with a gres.conf slurmd would wait for the missing file and not register.
    """
    of(lab, "gpu02").unlink()
    lab.run("upgrade", "--only", "gpu_config")
    assert gres(lab)["gpu02"] == "gpu:h100:2"
    (place,) = (path for path in lab.inventory.parent.rglob("gpu02/simulated-nvml.conf"))
    whole = place.read_text()
    place.write_text(re.sub(r"(?m)^gpus=\d+", "gpus=1", whole))
    podman("restart", "--time", "5", f"clusterctl-{lab.name}-gpu02")
    found = "journalctl --quiet --unit=slurmctld --grep='gpu02 state to INVAL.*count reported lower' || [ $? = 1 ]"
    wait_until(lambda: lab.root("head1", found))  # 1: none yet
    assert "GPU 1 is missing" in json.loads(lab.root("head1", "slurm-drain"))["gpu02"]["health"]
    assert state(lab, "gpu02")[0] == "inval"
    assert state(lab, "gpu01")[0] == "idle"
    place.write_text(whole)
    podman("restart", "--time", "5", f"clusterctl-{lab.name}-gpu02")
    wait_until(lambda: state(lab, "gpu02")[0] == "idle")
