"""Slurm's own words, made from hardware records."""

import re
from typing import Any

import pytest
from ansible.errors import AnsibleFilterError

from clusterctl.util.redaction import Redactor
from tests.unit.test_role_plugins import plugin

SLURM = plugin("filter/slurm")
A100 = "a100"


def gpu(index: int, kind: str = A100, cpus: str | None = None, mig: list[str] | None = None) -> dict[str, Any]:
    return {"index": index, "type": kind, "device": f"/dev/nvidia{index}", "cpus": cpus, "mig": mig}


def record(**other: Any) -> dict[str, Any]:
    base = {
        "os": {"id": "debian", "version": "13", "family": "Debian"},
        "cpu": {"sockets": 2, "cores_per_socket": 32, "threads_per_core": 2, "cpus": 128},
        "memory_mb": 515_000,
        "gpus": [gpu(index) for index in range(4)],
        "cgroup": {"version": 1, "controllers": ["cpu", "cpuset", "devices", "memory"]},
    }
    return base | other


@pytest.mark.parametrize(
    ("system", "release"),
    [
        (("debian", "13", "Debian"), "24.11"),
        (("ubuntu", "24.04", "Debian"), "23.11"),
        (("rocky", "9.6", "RedHat"), "22.05"),
        (("centos", "9", "RedHat"), "22.05"),
        (("debian", "14", "Debian"), ""),
        (("ubuntu", "24.10", "Debian"), ""),
    ],
)
def test_a_distribution_tells_the_release_of_slurm(system: tuple[str, str, str], release: str) -> None:
    table = {"debian-13": "24.11", "ubuntu-24.04": "23.11", "redhat-9": "22.05"}
    assert SLURM.release(record(os=dict(zip(("id", "version", "family"), system, strict=True))), table) == release


@pytest.mark.parametrize(("total", "given"), [(515_000, 504_700), (24_105, 23_593), (900, 450)])
def test_memory_leaves_a_margin_but_never_most_of_a_small_node(total: int, given: int) -> None:
    assert SLURM.real_memory(record(memory_mb=total)) == given


@pytest.mark.proves("jobs", "slurm.conf describes a node by its CPU layout and typed GPUs.")
def test_a_node_is_described_by_its_layout_and_typed_gpus() -> None:
    described = SLURM.node(record(gpus=[gpu(0), gpu(1, "t4"), gpu(2)]))
    assert described == {
        "CPUs": 128, "Sockets": 2, "CoresPerSocket": 32, "ThreadsPerCore": 2, "RealMemory": 504_700,
        "Gres": "gpu:a100:2,gpu:t4:1",
    }  # fmt: skip


def test_a_layout_that_does_not_add_up_is_left_to_slurm() -> None:
    cpu = {"sockets": 1, "cores_per_socket": 8, "threads_per_core": 2, "cpus": 12}
    assert SLURM.node(record(cpu=cpu, gpus=[])) == {"CPUs": 12, "RealMemory": 504_700}


def test_the_poorest_node_sets_the_memory_per_cpu() -> None:
    assert SLURM.memory_per_cpu([record(), record(memory_mb=131_072)]) == (131_072 - 131_072 // 50) // 128
    assert SLURM.memory_per_cpu([]) == 0


def cpus(number: int) -> dict[str, int]:
    return {"sockets": 1, "cores_per_socket": number, "threads_per_core": 1, "cpus": number}


SLIM = {"memory_mb": 131_072, "cpu": cpus(64)}
ODD: dict[str, dict[str, Any]] = {
    "preflight's least memory, 1024 CPUs": {"memory_mb": 512, "cpu": cpus(1024)},
    "preflight's least memory": {"memory_mb": 512},
    "1 MB": {"memory_mb": 1},
    "most CPUs that a record takes": {"cpu": cpus(65_536)},
    "most memory that a record takes": {"memory_mb": 1 << 28},
    "one CPU with that memory": {"memory_mb": 1 << 28, "cpu": cpus(1)},
    "4 GPUs on 3 cores": {"cpu": cpus(3)},
    "4 GPUs on 1 core": {"cpu": cpus(1)},
    "64 GPUs on 64 CPUs": {"cpu": cpus(64), "gpus": [gpu(index) for index in range(64)]},
    "one GPU in 7,200 parts": {"gpus": [gpu(0, mig=["1g.5gb"] * 7200)]},
}


@pytest.mark.proves("jobs", "One odd worker's record changes no other worker's defaults for jobs.")
@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize(
    "others", [[record()], [record()] * 10, [record(), record(**SLIM)] * 2], ids=["1", "10", "2+2"]
)
def test_defaults__with_an_odd_record__are_those_of_the_others(others: list[dict[str, Any]], odd: str) -> None:
    if len(others) == 1 and odd == "64 GPUs on 64 CPUs":
        pytest.skip("of two workers with 32 CPUs and with 1 CPU per GPU either may be the odd one")
    for place in (0, len(others)):
        with_it = [*others[:place], record(**ODD[odd]), *others[place:]]
        assert SLURM.memory_per_cpu(iter(with_it)) == SLURM.memory_per_cpu(others)
        assert SLURM.partition(iter(with_it), {}, "", True) == SLURM.partition(others, {}, "", True)


@pytest.mark.parametrize("memory_mb", [1, 512, 2000])
def test_memory_per_cpu__whatever_the_records_say__is_never_0(memory_mb: int) -> None:
    """Slurm takes DefMemPerCPU=0 for no limit."""
    assert SLURM.memory_per_cpu([record(memory_mb=memory_mb, cpu=cpus(4096))]) == 1
    assert SLURM.node(record(memory_mb=memory_mb))["RealMemory"] >= 1


def test_partition__fewer_cores_than_gpus__counts_where_no_worker_has_more() -> None:
    usual, few = record(cpu=cpus(16)), record(cpu=cpus(3))
    assert SLURM.partition([usual, few, usual], {}, "", True)["DefCpuPerGPU"] == 4
    assert "DefCpuPerGPU" not in SLURM.partition([few, few], {}, "", True)


def test_defaults__nodes_within_a_factor_of_eight__all_count() -> None:
    """Of two that are further apart none is the odd one: the lower one sets the default."""
    assert SLURM.memory_per_cpu([record(), record(memory_mb=65_000)]) == (65_000 - 1300) // 128
    assert SLURM.memory_per_cpu([record(), record(memory_mb=40_000)]) == (40_000 - 800) // 128
    assert SLURM.memory_per_cpu([record(), record(), record(memory_mb=60_000)]) == 504_700 // 128


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        (["gpu02", "gpu01", "gpu03", "gpu07"], "gpu[01-03,07]"),
        (["gpu1", "gpu01", "gpu2"], "gpu01,gpu[1-2]"),
        (["gpu9", "gpu10"], "gpu10,gpu9"),
        (["rack1-node07"], "rack1-node07"),
        (["login", "gpu01"], "gpu01,login"),
        ([], ""),
    ],
)
def test_names_fold_into_a_hostlist(names: list[str], folded: str) -> None:
    assert SLURM.hostlist(names) == folded


def test_like_nodes_share_their_lines_and_like_gpus_one() -> None:
    mixed = record(gpus=[gpu(0), gpu(1), gpu(3), gpu(2, "t4")])
    assert SLURM.gres({"gpu01": record(), "gpu02": record(), "odd": mixed, "cpu01": record(gpus=[])}) == [
        "NodeName=gpu[01-02] Name=gpu Type=a100 File=/dev/nvidia[0-3]",
        "NodeName=odd Name=gpu Type=a100 File=/dev/nvidia[0-1,3]",
        "NodeName=odd Name=gpu Type=t4 File=/dev/nvidia2",
    ]


@pytest.mark.parametrize(
    ("cpus", "cores"),
    [
        ("0-31,64-95", " Cores=0-31"),
        ("32-63,96-127", " Cores=32-63"),
        ("16-31,80-95", " Cores=16-31"),
        ("0-63", ""),  # second threads are missing: not the numbering that we know
        ("0-127", ""),  # all of them: says nothing
        ("0,2,4,64,66,68", ""),  # every other core: sockets take turns
        (None, ""),
    ],
)
def test_cores_near_a_gpu_are_told_only_where_their_numbers_are_certain(cpus: str | None, cores: str) -> None:
    lines = SLURM.gres({"gpu01": record(gpus=[gpu(0, cpus=cpus)])})
    assert lines == [f"NodeName=gpu01 Name=gpu Type=a100 File=/dev/nvidia0{cores}"]


def test_a_device_that_is_none_is_refused() -> None:
    bad = gpu(0) | {"device": "/dev/nvidia0 Flags=x"}
    with pytest.raises(AnsibleFilterError, match="not a device file"):
        SLURM.gres({"gpu01": record(gpus=[bad])})


def test_partition__with_gpus__shares_and_bills_them() -> None:
    """128 cores, 504,700 MB and 4 GPUs: 32 cores and 123 GB for each GPU, so all GPUs cost as much as the node."""
    options = SLURM.partition([record(), record()], {}, "1-00:00:00", True)
    assert options == {
        "DefaultTime": "1-00:00:00",
        "DefCpuPerGPU": 32,
        "TRESBillingWeights": "CPU=1.000,Mem=0.260G,GRES/gpu=32.000",
    }
    weights = {"CPU": 128 * 1.0, "Mem": 504_700 / 1024 * 0.260, "GRES/gpu": 4 * 32.0}
    assert all(127 < cost < 129 for cost in weights.values())


def test_partition__of_unlike_nodes__gives_what_each_can_give() -> None:
    small = record(cpu={"sockets": 1, "cores_per_socket": 16, "threads_per_core": 1, "cpus": 16})
    alone = record(gpus=[])
    assert SLURM.partition([record(), small, alone], {}, "", True)["DefCpuPerGPU"] == 4
    tiny = record(cpu={"sockets": 1, "cores_per_socket": 2, "threads_per_core": 1, "cpus": 2})
    assert "DefCpuPerGPU" not in SLURM.partition([tiny], {}, "", True), "a GPU has less than one core"
    assert SLURM.partition([alone], {}, "", True) == SLURM.partition([], {}, "", True) == {}


def test_partition__given_options__stand_as_they_are() -> None:
    given = {"defaulttime": "02:00:00", "MaxTime": "10:00:00", "TRESBillingWeights": "CPU=1"}
    options = SLURM.partition([record()], given, "1-00:00:00", True)
    assert options == {"DefCpuPerGPU": 32, **given}
    assert SLURM.partition([record()], given, "1-00:00:00", False) == given


@pytest.mark.parametrize(
    ("limit", "found"),
    [("90", 5400), ("90:30", 5430), ("02:00:00", 7200), ("1-0", 86400), ("1-12:30", 131_400), ("1-00:00:01", 86_401)],
)
def test_time_limit__in_each_form_of_slurm__in_seconds(limit: str, found: int) -> None:
    """The forms of slurm.conf(5) and sbatch(1)."""
    assert SLURM.seconds(limit) == found


@pytest.mark.parametrize(("most", "default"), [("02:00:00", None), ("1-0", "1-00:00:00"), ("UNLIMITED", "1-00:00:00")])
def test_partition__with_a_limit_below_the_default_time__has_no_such_default(most: str, default: str | None) -> None:
    assert SLURM.partition([], {"MaxTime": most}, "1-00:00:00", False).get("DefaultTime") == default


def test_an_option_is_replaced_where_it_stands_added_or_left_out() -> None:
    text = "ClusterName=a\nSlurmdTimeout=300\nKillOnBadExit=1\n"
    changed = SLURM.override(text, {"slurmdtimeout": 60, "KillOnBadExit": None, "DisableRootJobs": True})
    assert changed == "ClusterName=a\nslurmdtimeout=60\nDisableRootJobs=YES\n"
    assert SLURM.override(text, {}) == text


@pytest.mark.parametrize(
    "options",
    [{"Epilog": "/bin/x\nPartitionName=evil"}, {"Epilog=/bin/x\nA": 1}, {"Prolog": "/bin/x # y"}, {"NodeName": "x"}],
)
def test_an_option_is_one_option(options: dict[str, Any]) -> None:
    with pytest.raises(AnsibleFilterError):
        SLURM.override("ClusterName=a\n", options)


def test_the_password_hash_is_mariadbs() -> None:
    # SELECT PASSWORD('secret') on MariaDB 11.8
    assert SLURM.mysql_native_password("secret") == "*14E65567ABDB5135D0CFD9A70B3032C179A49EE7"


def test_every_filter_is_offered_under_a_name_that_tells_its_family() -> None:
    assert all(re.match("slurm_|mysql_", name) for name in SLURM.FilterModule().filters())


THREE = ["3g.40gb", "2g.20gb", "2g.20gb"]


@pytest.mark.proves("gpu", "Slurm's configuration names MIG instances by type and device files.")
def test_a_divided_gpu_is_its_instances() -> None:
    mixed = record(gpus=[gpu(0, mig=THREE, cpus="0-15,64-79"), gpu(1), gpu(2, mig=[])])
    assert SLURM.node(mixed)["Gres"] == "gpu:2g.20gb:2,gpu:3g.40gb:1,gpu:a100:1"
    assert SLURM.gpu_types([mixed, record()]) == ["2g.20gb", "3g.40gb", "a100"]
    own = "/dev/nvidia-mig/gpu0/gi-{0},/dev/nvidia-mig/gpu0/ci-{0} Cores=0-15"
    assert SLURM.gres({"gpu01": mixed}) == [
        "NodeName=gpu01 Name=gpu Type=a100 File=/dev/nvidia1",
        f"NodeName=gpu01 Name=gpu Type=3g.40gb MultipleFiles=/dev/nvidia0,{own.format('3g.40gb-0')}",
        f"NodeName=gpu01 Name=gpu Type=2g.20gb MultipleFiles=/dev/nvidia0,{own.format('2g.20gb-0')}",
        f"NodeName=gpu01 Name=gpu Type=2g.20gb MultipleFiles=/dev/nvidia0,{own.format('2g.20gb-1')}",
    ]


@pytest.mark.proves("jobs", "A GPU's default share is whole cores, so every GPU of a node finds cores.")
@pytest.mark.parametrize(
    ("cores", "threads", "gpus", "share"),
    [(64, 2, 6, 20), (64, 2, 8, 16), (64, 1, 6, 10), (4, 2, 8, 1), (1, 2, 1, 2)],
)
def test_partition__cores_that_gpus_do_not_divide__are_rounded_down(
    cores: int, threads: int, gpus: int, share: int
) -> None:
    """64 cores of two threads and 6 GPUs: 21 CPUs would be 11 cores, and six times 11 are 66."""
    cpu = {"sockets": 1, "cores_per_socket": cores, "threads_per_core": threads, "cpus": cores * threads}
    options = SLURM.partition([record(cpu=cpu, gpus=[gpu(index) for index in range(gpus)])], {}, "", True)
    assert options["DefCpuPerGPU"] == share


@pytest.mark.parametrize(
    ("cluster", "given", "own"),
    [
        (1000, {}, 3942),
        (3942, {}, None),
        (5000, {}, None),
        (0, {}, None),  # the inventory sets it for the whole cluster
        (1000, {"defmempernode": 1}, None),
        (1000, {"DefMemPerGPU": 1}, None),
    ],
)
def test_partition__with_more_memory_than_the_poorest_node__has_its_own_default(
    cluster: int, given: dict[str, Any], own: int | None
) -> None:
    assert SLURM.memory_per_cpu([record()]) == 3942
    assert SLURM.partition([record()], given, "", False, cluster).get("DefMemPerCPU") == own


@pytest.mark.proves("secrets", "A password in a file of Slurm's is escaped there, and redacted.")
def test_quoted__with_what_slurm_strips__is_escaped_and_redacted() -> None:
    password = r"a site's #1 \pass"
    written = SLURM.quoted(password, "the secret")
    assert written == r'''"a site's \#1 \\pass"'''
    assert Redactor([password]).redact(written) == '"[redacted]"'
    for text in ('a "quote"', "two\nlines", ""):
        with pytest.raises(AnsibleFilterError, match="the secret: expected no double quote"):
            SLURM.quoted(text, "the secret")
