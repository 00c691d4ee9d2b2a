"""Where Slurm's nodes are, and how their GPUs are shared: the examples of Slurm's own pages, made from an inventory."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.systems.rendering import Role, a_cluster
from tests.unit.test_filter_slurm import THREE, gpu, record
from tests.unit.test_role_plugins import plugin

SLURM = plugin("filter/slurm")
TUX = [f"tux{number:02}" for number in range(16)]
RACKS = {f"rack{number}": TUX[4 * number : 4 * number + 4] for number in range(4)}


def leaves(number: int, each: int) -> list[dict[str, Any]]:
    return [{"name": f"s{one}", "nodes": TUX[each * one : each * one + each]} for one in range(number)]


def lines(text: str, *names: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(names)]


def slurm_conf(role: Role) -> str:
    return role.render(role.path / "templates/slurm.conf.j2")


def test_topology__three_levels__are_those_of_slurms_page() -> None:
    """The first example of https://slurm.schedmd.com/topology.html, with a switch above all."""
    above = [("s4", [0, 1]), ("s5", [2, 3])]
    switches = [
        *leaves(4, 2),
        *({"name": name, "switches": [f"s{one}" for one in below]} for name, below in above),
        {"name": "s6", "switches": ["s4", "s5"]},
    ]
    assert SLURM.topology({"switches": switches}, {}, TUX[:8]) == [
        "SwitchName=s0 Nodes=tux[00-01]",
        "SwitchName=s1 Nodes=tux[02-03]",
        "SwitchName=s2 Nodes=tux[04-05]",
        "SwitchName=s3 Nodes=tux[06-07]",
        "SwitchName=s4 Switches=s[0-1]",
        "SwitchName=s5 Switches=s[2-3]",
        "SwitchName=s6 Switches=s[4-5]",
    ]


@pytest.mark.proves("jobs", "Slurm's topology is made from racks of the inventory, as Slurm's page writes it.")
def test_topology__racks_of_the_inventory__are_leaves_of_one_switch() -> None:
    """The last example of that page."""
    switches: list[dict[str, Any]] = [{"name": f"s{one}", "nodes": [f"rack{one}"]} for one in range(4)]
    switches.append({"name": "s4", "switches": ["s0", "s1", "s2", "s3"]})
    assert SLURM.topology({"switches": switches}, RACKS, TUX) == [
        "SwitchName=s0 Nodes=tux[00-03]",
        "SwitchName=s1 Nodes=tux[04-07]",
        "SwitchName=s2 Nodes=tux[08-11]",
        "SwitchName=s3 Nodes=tux[12-15]",
        "SwitchName=s4 Switches=s[0-3]",
    ]


def test_topology__switches_without_a_recorded_node__are_left_out() -> None:
    switches = [
        {"name": "spine", "switches": ["pod0", "pod1"]},
        {"name": "pod0", "switches": ["s0", "s1"]},
        {"name": "pod1", "switches": ["s2", "s3"]},
        *leaves(4, 4),
    ]
    assert SLURM.topology({"switches": switches}, {}, ["tux00", "tux02", "tux09"]) == [
        "SwitchName=spine Switches=pod[0-1]",
        "SwitchName=pod0 Switches=s0",
        "SwitchName=pod1 Switches=s2",
        "SwitchName=s0 Nodes=tux[00,02]",
        "SwitchName=s2 Nodes=tux09",
    ]


def test_topology__blocks__are_those_of_slurms_page() -> None:
    """The second example of topology.conf(5), 24.11."""
    domains = {f"nvl{one + 1}": [f"node{32 * one + number:03}" for number in range(1, 33)] for one in range(4)}
    workers = [name for names in domains.values() for name in names]
    blocks = [{"name": f"block{one}", "nodes": [f"nvl{one}"]} for one in (1, 2, 3, 4)]
    given = {"blocks": blocks, "block_sizes": [30, 120]}
    assert SLURM.topology(given, domains, workers) == [
        *(f"BlockName=block{one + 1} Nodes={SLURM.hostlist(names)}" for one, names in enumerate(domains.values())),
        "BlockSizes=30,120",
    ]
    assert SLURM.hostlist(domains["nvl4"]) == "node[097-128]"
    assert SLURM.topology_problems(given, domains, workers, "24.11") == []
    assert SLURM.topology_problems(given, domains, workers, "23.11") == [
        "blocks in slurm_head_topology need Slurm 24.05 on all nodes, got 23.11"
    ]
    rest = workers[5:]
    assert SLURM.topology_problems(given, domains, rest, "25.05") == []
    assert SLURM.topology_problems(given, domains, rest, "24.11") == [
        "block block1 has 27 nodes with a hardware record, and Slurm 24.11 needs 30 (block_sizes)"
    ]


@pytest.mark.proves("gpu", "Shards of GPUs are those of Slurm's page; a GPU with MIG has none.")
def test_shards__of_whole_gpus__are_those_of_slurms_page() -> None:
    """The second example of https://slurm.schedmd.com/gres.html#Sharding: four GPUs with eight shards each."""
    mixed = record(gpus=[gpu(0, mig=THREE), gpu(1)])
    records = {"tux1": record(), "tux2": record(), "odd": mixed, "cpu1": record(gpus=[]), "own": record()}
    numbers = {"tux1": 8, "tux2": 8, "odd": 2, "cpu1": 8, "own": 0}
    assert SLURM.shared(records, numbers, "shard") == [
        *(f"NodeName=tux[1-2] Name=shard Type=a100 Count=8 File=/dev/nvidia{number}" for number in range(4)),
        "NodeName=odd Name=shard Type=a100 Count=2 File=/dev/nvidia1",
    ]
    assert SLURM.node(record(), 8)["Gres"] == "gpu:a100:4,shard:a100:32"
    assert SLURM.node(mixed, 2)["Gres"] == "gpu:2g.20gb:2,gpu:3g.40gb:1,gpu:a100:1,shard:a100:2"
    two = [gpu(0), {**gpu(1), "type": "h100"}, {**gpu(2), "type": "h100"}]
    assert SLURM.node(record(gpus=two), 2)["Gres"] == "gpu:a100:1,gpu:h100:2,shard:a100:2,shard:h100:4"
    assert SLURM.node(record(gpus=[gpu(0, mig=THREE)]), 2)["Gres"] == "gpu:2g.20gb:2,gpu:3g.40gb:1"
    assert "Gres" not in SLURM.node(record(gpus=[]), 2)


@pytest.mark.proves("gpu", "Parts of GPUs for MPS are those of Slurm's page, with the device files.")
def test_mps__of_gpus__is_that_of_slurms_page() -> None:
    """As in https://slurm.schedmd.com/gres.html#MPS_Management, with the same number for each GPU."""
    assert SLURM.shared({"tux1": record(gpus=[gpu(0), gpu(1)])}, {"tux1": 100}, "mps") == [
        "NodeName=tux1 Name=mps Type=a100 Count=100 File=/dev/nvidia0",
        "NodeName=tux1 Name=mps Type=a100 Count=100 File=/dev/nvidia1",
    ]
    assert SLURM.node(record(), 0, 100)["Gres"] == "gpu:a100:4,mps:a100:400"
    records = {"a": record(), "b": record(gpus=[gpu(0, mig=THREE), gpu(1)]), "c": record(gpus=[gpu(0, mig=THREE)])}
    assert SLURM.divided(records, {"a": 100, "b": 100, "c": 0}) == ["b"]
    weights = SLURM.partition([record(), record()], {}, "", True, 0, [0, 0], [100, 50])["TRESBillingWeights"]
    assert weights == "CPU=1.000,Mem=0.260G,GRES/gpu=32.000,GRES/mps=0.640"


@pytest.mark.parametrize(("source", "numbers"), [("record", [2, 10, 11]), ("driver", [10, 2, 11])])
def test_gpus_in_order__by_source__are_counted_as_slurm_does(source: str, numbers: list[int]) -> None:
    """By device files as numbers, not as text, and by PCI addresses with AutoDetect."""
    gpus = [gpu(number) | {"index": index, "uuid": f"GPU-{number}"} for index, number in enumerate([10, 2, 11])]
    assert SLURM.in_order(record(gpus=gpus), source) == [
        {"device": f"/dev/nvidia{number}", "uuid": f"GPU-{number}"} for number in numbers
    ]


def test_shards__of_a_partition__cost_their_part_of_a_gpu() -> None:
    nodes = [record(), record(), record(gpus=[])]
    weights = SLURM.partition(nodes, {}, "", True, 0, [8, 4, 2])["TRESBillingWeights"]
    assert weights == "CPU=1.000,Mem=0.260G,GRES/gpu=32.000,GRES/shard=8.000"
    assert "shard" not in SLURM.partition(nodes, {}, "", True, 0, [0, 0, 2])["TRESBillingWeights"]


@pytest.mark.parametrize("source", ["record", "driver"])
def test_files__with_shards__have_them_where_slurm_reads_them(tmp_path: Path, source: str) -> None:
    cluster = a_cluster(tmp_path, "debian-13")
    cluster.set("gpu01", slurm_head_shards=3)
    role = cluster.role("slurm_head", "head1", slurm_head_gres_source=source)
    assert lines(slurm_conf(role), "GresTypes", "AccountingStorageTRES", "JobAcctGatherType") == [
        "GresTypes=gpu,shard",
        "AccountingStorageTRES=gres/gpu,gres/gpu:a100,gres/shard",
        "JobAcctGatherType=jobacct_gather/cgroup",
    ]
    assert [line.split(" Gres=")[1] for line in lines(slurm_conf(role), "NodeName")] == ["gpu:a100:4,shard:a100:12"]
    assert "GRES/gpu=0.500,GRES/shard=0.167 State=UP" in slurm_conf(role)
    found = role.render(role.path / "templates/gres.conf.j2").splitlines()
    assert found[1] == ("AutoDetect=nvml" if source == "driver" else "AutoDetect=off")
    assert found[-4:] == [
        f"NodeName=gpu01 Name=shard Type=a100 Count=3 File=/dev/nvidia{number}" for number in range(4)
    ]


@pytest.mark.parametrize("source", ["record", "driver"])
def test_files__with_mps__have_it_where_slurm_reads_it(tmp_path: Path, source: str) -> None:
    cluster = a_cluster(tmp_path, "debian-13")
    cluster.set("gpu01", slurm_head_mps=100, slurm_worker_scratch="")
    role = cluster.role("slurm_head", "head1", slurm_head_gres_source=source)
    assert lines(slurm_conf(role), "GresTypes", "AccountingStorageTRES", "JobAcctGatherType", "TaskProlog") == [
        "GresTypes=gpu,mps",
        "TaskProlog=/usr/local/sbin/task-prolog",
        "AccountingStorageTRES=gres/gpu,gres/gpu:a100,gres/mps",
        "JobAcctGatherType=jobacct_gather/cgroup",
    ]
    assert [line.split(" Gres=")[1] for line in lines(slurm_conf(role), "NodeName")] == ["gpu:a100:4,mps:a100:400"]
    assert "GRES/gpu=0.500,GRES/mps=0.005 State=UP" in slurm_conf(role)
    found = role.render(role.path / "templates/gres.conf.j2").splitlines()
    assert found[-4:] == [
        f"NodeName=gpu01 Name=mps Type=a100 Count=100 File=/dev/nvidia{number}" for number in range(4)
    ]


@pytest.mark.parametrize(
    ("private", "line"),
    [
        (["/tmp", "/dev/shm"], "NodeName=gpu01 BasePath=/var/lib/slurm/job_directories Dirs=/tmp"),
        (["/dev/shm"], "NodeName=gpu01 BasePath=none"),
        (["/tmp"], ""),
    ],
)
def test_private_directories__of_workers_with_mps__lack_shared_memory(
    tmp_path: Path, private: list[str], line: str
) -> None:
    """Other nodes keep theirs; an option of a later line replaces one of the file (read_jcconf.c)."""
    cluster = a_cluster(tmp_path, "debian-13")
    cluster.set("gpu01", slurm_head_mps=100)
    role = cluster.role("slurm_head", "head1", slurm_head_private_directories=private)
    found = role.render(role.path / "templates/job_container.conf.j2").splitlines()
    assert found[1:3] == ["AutoBasePath=true", "BasePath=/var/lib/slurm/job_directories"]
    assert lines("\n".join(found), "NodeName") == [line] * bool(line)
    if line:
        assert found[-1] == line


def test_worker__with_mps__has_its_gpus_and_what_tasks_need(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path, "debian-13")
    for host, number, expected in (("head1", 100, True), ("gpu01", 0, False)):
        cluster.set(host, slurm_head_mps=number)
        role = cluster.role("slurm_worker", "gpu01")
        files = {file["dest"]: file for file in role.value("__slurm_worker_files")}
        assert ("content" in files["/etc/clusterctl/job-mps.json"]) is expected
        assert ("CUDA_MPS_PIPE_DIRECTORY" in role.render(role.path / "templates/task-prolog.j2")) is expected
        if not expected:  # as the program that gpu-prolog makes on a worker without any
            placeholder = plugin("../roles/slurm_head/files/gpu_prolog").PLACEHOLDER
            program = role.render(role.path / "templates/task-prolog.j2")
            assert program.splitlines()[-1] == placeholder.splitlines()[-1]


@pytest.mark.parametrize(
    ("step", "given", "number"),
    [
        ("step_0", {"SLURM_STEP_GPUS": "2", "SLURM_JOB_GPUS": "1"}, 2),
        ("step_0", {"SLURM_JOB_GPUS": "1"}, 1),
        # Of the step that the job was submitted in.
        ("step_batch", {"SLURM_STEP_GPUS": "2", "SLURM_JOB_GPUS": "1"}, 1),
        ("step_interactive", {"SLURM_STEP_GPUS": "2", "SLURM_JOB_GPUS": "1"}, 1),
        *[
            ("step_0", {"SLURM_STEP_GPUS": value}, None)
            for value in ("4", "1,2", "-1", "1 2", "*", "x$(exit 9)", "9" * 30)
        ],
        ("step_0", {}, None),
    ],
)
def test_task_prolog__of_a_part_of_a_gpu__names_that_gpu_or_none(
    tmp_path: Path, step: str, given: dict[str, str], number: int | None
) -> None:
    cluster = a_cluster(tmp_path, "debian-13")
    cluster.set("gpu01", slurm_head_mps=100)
    with_uuids(tmp_path)
    role = cluster.role("slurm_worker", "gpu01", slurm_worker_scratch="")
    (tmp_path / "cgroup").write_text(f"0::/system.slice/slurmstepd.scope/job_7/{step}/user/task_0\n")
    program = role.render(role.path / "templates/task-prolog.j2").replace("/proc/self/cgroup", str(tmp_path / "cgroup"))
    assert str(tmp_path / "cgroup") in program
    environment = {"PATH": os.environ["PATH"], "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "40", **given}
    done = subprocess.run(["sh", "-e"], input=program, env=environment, capture_output=True, text=True, check=True)
    found = done.stdout.splitlines()
    assert found[0] == "unset SCRATCH"
    if number is None:
        assert [line[:10] for line in found[1:]] == ["print MPS:"]
    else:
        assert found[1] == f"export CUDA_VISIBLE_DEVICES=GPU-{number}"
        assert found[2] == f"export CUDA_MPS_PIPE_DIRECTORY=/run/mps/{os.getuid()}/pipe"


def with_uuids(directory: Path, *without: int) -> None:
    """Give the recorded GPUs of gpu01 UUIDs, except these."""
    path = directory / "hardware/gpu01.json"
    content = json.loads(path.read_text())
    for one in content["gpus"]:
        one["uuid"] = "" if one["index"] in without else f"GPU-{one['index']}"
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(("parts", "without", "refused"), [(100, [1], True), (100, [], False), (0, [1], False)])
def test_mps__of_a_gpu_without_uuid__is_refused(tmp_path: Path, parts: int, without: list[int], refused: bool) -> None:
    """The task's GPU is named by it."""
    cluster = a_cluster(tmp_path, "debian-13")
    cluster.set("gpu01", slurm_head_mps=parts)
    with_uuids(tmp_path, *without)
    problems = cluster.role("slurm_head", "head1").value("__slurm_head_problems")
    assert [problem.split(", which")[0] for problem in problems] == [
        "hardware/gpu01.json has a GPU without UUID"
    ] * refused


def test_shards__set_on_the_head__count_for_workers_without_their_own(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path, "debian-13")
    cluster.set("head1", slurm_head_shards=2)
    assert cluster.role("slurm_head", "head1").value("__slurm_head_shards") == {"gpu01": 2}
    cluster.set("gpu01", slurm_head_shards=0)
    assert cluster.role("slurm_head", "head1").value("__slurm_head_shards") == {"gpu01": 0}


@pytest.mark.parametrize(
    ("topology", "plugin_", "second"),
    [
        ({"switches": [{"name": "leaf", "nodes": ["slurm_workers"]}]}, "tree", "SwitchName=leaf Nodes=gpu01"),
        ({"blocks": [{"name": "a", "nodes": ["gpu01"]}], "block_sizes": [1]}, "block", "BlockName=a Nodes=gpu01"),
    ],
)
def test_files__with_a_topology__name_its_plugin(tmp_path: Path, topology: Any, plugin_: str, second: str) -> None:
    role = a_cluster(tmp_path, "debian-13").role("slurm_head", "head1", slurm_head_topology=topology)
    assert lines(slurm_conf(role), "TopologyPlugin") == [f"TopologyPlugin=topology/{plugin_}"]
    files = {file["dest"]: file for file in role.value("__slurm_head_files")}
    text = (role.content(files["/etc/slurm/topology.conf"]) or b"").decode()
    assert text.splitlines()[1] == second
    assert role.value("__slurm_head_problems") == []
    assert "/etc/slurm/topology.conf" in role.value("__slurm_head_units")[1]["reload_on"]


@pytest.mark.proves("bootstrap", "A Slurm without shards, blocks or programs for MPS is refused before its files.")
@pytest.mark.parametrize(
    ("system", "known", "refused"),
    [
        ("ubuntu-22.04", {"slurm_head_shards": 2}, "slurm_head_shards needs Slurm 22.05 on all nodes, got 21.08"),
        ("debian-12", {"slurm_head_shards": 2}, ""),
        ("debian-12", {"slurm_head_mps": 100}, "slurm_head_mps needs Slurm 23.11 on all nodes, got 22.05"),
        ("ubuntu-24.04", {"slurm_head_mps": 100}, ""),
        (
            "ubuntu-24.04",
            {"slurm_head_topology": {"blocks": [{"name": "a", "nodes": ["gpu01"]}], "block_sizes": [1]}},
            "blocks in slurm_head_topology need Slurm 24.05 on all nodes, got 23.11",
        ),
    ],
)
def test_release__too_old_for_placement__is_refused(
    tmp_path: Path, system: str, known: dict[str, Any], refused: str
) -> None:
    cluster = a_cluster(tmp_path, system)
    cluster.set("gpu01", slurm_worker_scratch="")
    with_uuids(tmp_path)
    role = cluster.role("slurm_head", "head1", **known)
    assert role.value("__slurm_head_problems") == [refused] * bool(refused)


def test_files__without_variables__have_no_line_of_placement(tmp_path: Path) -> None:
    role = a_cluster(tmp_path, "debian-13").role("slurm_head", "head1")
    files = {file["dest"]: file for file in role.value("__slurm_head_files")}
    assert files["/etc/slurm/topology.conf"]["state"] == "restored"
    text = slurm_conf(role) + role.render(role.path / "templates/gres.conf.j2")
    assert "opology" not in text
    assert "shard" not in text
    assert "mps" not in text + role.render(role.path / "templates/job_container.conf.j2")
