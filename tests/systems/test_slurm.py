"""What Slurm's configuration and packages are on each supported system, where a lost line would break no other test."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.systems.rendering import SYSTEMS, Cluster, a_cluster, record

# Slurm's release by system is in roles/slurm_head/vars/main.yml; switch/nvidia_imex and SystemdTimeout come with 24.05.
# https://slurm.schedmd.com/slurm.conf.html: MpiDefault, SwitchType, PropagateResourceLimitsExcept, EnforcePartLimits.
SINCE_24_05 = {"debian-13", "almalinux-10", "centos-10", "rhel-10"}
HELD = {
    "Debian": {"slurmctld", "slurmdbd", "slurm-client", "slurmd", "libpam-slurm-adopt", "libslurm-dev"},
    "RedHat": {"slurm", "slurm-slurmctld", "slurm-slurmdbd", "slurm-slurmd", "slurm-pam_slurm", "slurm-devel"},
}


def options(text: str) -> dict[str, str]:
    """Return the options of a slurm.conf that are on lines of their own."""
    lines = (line.split("=", 1) for line in text.splitlines() if "=" in line and " " not in line)
    return {line[0]: line[1] for line in lines}


def slurm_conf(directory: Path, system: str, **known: Any) -> dict[str, str]:
    role = a_cluster(directory, system).role("slurm_head", "head1", **known)
    return options(role.render(role.path / "templates/slurm.conf.j2"))


@pytest.mark.proves("jobs", "slurm.conf of each system has PMIx, limits at submission, and IMEX where asked for.")
@pytest.mark.parametrize("system", SYSTEMS)
def test_slurm_conf__of_each_system__has_mpi_limits_and_imex(tmp_path: Path, system: str) -> None:
    found = slurm_conf(tmp_path, system)
    assert found["MpiDefault"] == "pmix"
    assert found["EnforcePartLimits"] == "ANY"
    assert found["PropagateResourceLimitsExcept"] == "MEMLOCK"
    assert found["PriorityFlags"] == "MAX_TRES"
    assert found.get("SwitchType") == ("switch/nvidia_imex" if system in SINCE_24_05 else None)


@pytest.mark.proves("jobs", "Jobs are confined to cores, devices, memory and swap on every system, as asked for.")
@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("left", ["", "cores", "devices", "memory", "swap"])
def test_cgroup_conf__of_each_system__confines_jobs(tmp_path: Path, system: str, left: str) -> None:
    places = {"cores": "Cores", "devices": "Devices", "memory": "RAMSpace", "swap": "SwapSpace"}
    asked = [name for name in places if name != left]
    role = a_cluster(tmp_path, system).role("slurm_head", "head1", slurm_head_confine=asked)
    found = options(role.render(role.path / "templates/cgroup.conf.j2"))
    assert {name: found[f"Constrain{place}"] for name, place in places.items()} == {
        name: "yes" if name in asked else "no" for name in places
    }


@pytest.mark.parametrize("system", SYSTEMS)
def test_cgroup_conf__of_each_system__gives_systemd_time(tmp_path: Path, system: str) -> None:
    """SystemdTimeout comes with 24.05 (CHANGELOG/slurm-24.05.md); slurmd of an older release refuses unknown keys."""
    role = a_cluster(tmp_path, system).role("slurm_head", "head1")
    found = options(role.render(role.path / "templates/cgroup.conf.j2"))
    assert found.get("SystemdTimeout") == ("30000" if system in SINCE_24_05 else None)


def test_slurm_conf__debian_testing__has_no_pmix(tmp_path: Path) -> None:
    """Its Slurm is built without the plugin (bug 1149781)."""
    facts = {"os_family": "Debian", "distribution": "Debian", "distribution_release": "forky"}
    assert slurm_conf(tmp_path, "debian-13", ansible_facts=facts)["MpiDefault"] == "pmi2"


def test_slurm_conf__no_imex_nodes__has_no_switch(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path, "debian-13")
    cluster.set("gpu01", nvidia_driver_imex_nodes=[])
    role = cluster.role("slurm_head", "head1")
    assert "SwitchType" not in options(role.render(role.path / "templates/slurm.conf.j2"))


def partitions(directory: Path, given: list[dict[str, Any]], types: dict[str, list[str]]) -> dict[str, str]:
    """Return the nodes of each partition in slurm.conf, by name, of a cluster whose workers have these GPUs."""
    a_cluster(directory, "debian-13")
    inventory = yaml.safe_load((directory / "inventory.yaml").read_text())
    workers = inventory["all"]["children"]["slurm_workers"]["hosts"]
    workers |= {name: {"ansible_host": f"{name}.example"} for name in ("gpu02", "gpu03")}
    inventory["all"]["children"]["slurm_workers"]["children"] = {"none": {"hosts": {}}}
    (directory / "inventory.yaml").write_text(yaml.safe_dump(inventory))
    for number, name in enumerate(types, 1):
        found = record(name, number, "debian-13")
        gpu = found["gpus"][0]
        # A type with a dot is a profile: its GPU is divided.
        found["gpus"] = [
            gpu
            | {"index": index, "device": f"/dev/nvidia{index}"}
            | ({"mig": [kind]} if "." in kind else {"type": kind})
            for index, kind in enumerate(types[name])
        ]
        (directory / f"hardware/{name}.json").write_text(json.dumps(found))
    role = Cluster(directory / "inventory.yaml", "debian-13").role("slurm_head", "head1", slurm_head_partitions=given)
    lines = role.render(role.path / "templates/slurm.conf.j2").splitlines()
    words = [line.split() for line in lines if line.startswith("PartitionName=")]
    omitted = [line.rpartition(" ")[2] for line in lines if line.startswith("# no worker with such a GPU yet:")]
    return {word[0].split("=")[1]: word[1].split("=")[1] for word in words} | dict.fromkeys(omitted, "omitted")


@pytest.mark.proves("jobs", "A partition of a type of GPU has the workers with such a GPU.")
def test_partition__of_a_type_of_gpu__has_its_workers(tmp_path: Path) -> None:
    given: list[dict[str, Any]] = [
        {"name": "main", "default": True},
        {"name": "empty", "gpu": []},
        {"name": "h", "gpu": "H100"},
        {"name": "both", "gpu": ["h100", "a100"]},
        {"name": "mig", "gpu": "1g.10gb"},
        {"name": "narrow", "gpu": "h100", "nodes": ["gpu01"]},
        {"name": "typo", "gpu": "h10"},
        {"name": "group", "gpu": "h100", "nodes": ["slurm_workers"]},
    ]
    types = {"gpu01": ["a100", "1g.10gb"], "gpu02": ["h100"]}
    assert partitions(tmp_path, given, types) == {
        "main": "ALL",
        "empty": "ALL",
        "h": "gpu02",
        "both": "gpu[01-02]",
        "mig": "gpu01",
        "narrow": "omitted",
        "typo": "omitted",
        "group": "gpu02",
    }


@pytest.mark.proves("jobs", "A partition of a sub-group without workers has no worker, not all of them.")
@pytest.mark.parametrize("more", [{}, {"gpu": "a100"}])
def test_partition__of_a_group_without_workers__is_left_out(tmp_path: Path, more: dict[str, Any]) -> None:
    given = [{"name": "main"}, {"name": "p", "nodes": ["none"], **more}]
    found = partitions(tmp_path, given, {"gpu01": ["a100"]})
    assert {name: nodes for name, nodes in found.items() if nodes != "omitted"} == {"main": "ALL"}


def test_partition__of_a_type_that_comes_later__has_the_new_worker(tmp_path: Path) -> None:
    given = [{"name": "main"}, {"name": "h", "gpu": "h100"}]
    (before := tmp_path / "before").mkdir()
    (after := tmp_path / "after").mkdir()
    types = {"gpu01": ["a100"], "gpu02": ["a100"]}
    assert partitions(before, given, types) == {"main": "ALL", "h": "omitted"}
    assert partitions(after, given, types | {"gpu03": ["h100"]}) == {"main": "ALL", "h": "gpu03"}


@pytest.mark.proves("packages", "An upgrade of the system does not move Slurm's packages: all are held.")
@pytest.mark.parametrize("system", SYSTEMS)
def test_packages__of_slurm__are_held_on_every_node(tmp_path: Path, system: str) -> None:
    cluster = a_cluster(tmp_path, system)
    asked = [
        package if isinstance(package, dict) else {"name": package}
        for role, host in (
            ("slurm_head", "head1"),
            ("slurm_worker", "gpu01"),
            ("slurm_logins", "gpu01"),
            ("pyxis", "gpu01"),
        )
        for _, call in cluster.role(role, host).calls()
        for package in call.get("packages", [])
        if not isinstance(call["packages"], str)
    ]
    slurms = [one for one in asked if "slurm" in one["name"] and one.get("state") != "absent"]
    assert {one["name"] for one in slurms} == HELD[SYSTEMS[system].family]
    assert [one["name"] for one in slurms if not one.get("hold")] == []


@pytest.mark.proves("jobs", "Jobs can lock memory: no file for slurmd lowers the limit of its unit.")
@pytest.mark.parametrize("system", SYSTEMS)
def test_memlock__of_slurmd_and_shells__is_unlimited(tmp_path: Path, system: str) -> None:
    """The units of SchedMD (etc/slurmd.service.in, which EPEL packages) and of Debian have LimitMEMLOCK=infinity."""
    cluster = a_cluster(tmp_path, system)
    role = cluster.role("slurm_worker", "gpu01")
    assert "LimitMEMLOCK" not in role.render(role.path / "templates/slurmd.service.j2")
    base = cluster.role("base", "gpu01")
    limits = [line.split() for line in base.render(base.path / "templates/limits.conf.j2").splitlines()]
    locked = {(line[0], line[1]): line[3] for line in limits if line[2:3] == ["memlock"]}
    assert locked == dict.fromkeys([("*", "soft"), ("*", "hard"), ("root", "soft"), ("root", "hard")], "unlimited")


@pytest.mark.proves("verify", "A node whose MIG instances are missing is no fault of confinement.")
@pytest.mark.parametrize(
    ("mig", "count", "confined"),
    [(None, 8, True), (["3g.40gb", "3g.40gb"], 16, True), ([], 0, False), ("none", 0, True)],
)
def test_job__on_a_node_with_these_gpus__asks_for_what_slurm_knows(
    tmp_path: Path, mig: list[str] | str | None, count: int, confined: bool
) -> None:
    a_cluster(tmp_path, "debian-13")
    found = record("gpu01", 2, "debian-13")
    found["gpus"] = [] if mig == "none" else [gpu | {"mig": mig} for gpu in found["gpus"]]
    (tmp_path / "hardware/gpu01.json").write_text(json.dumps(found))
    nodes = Cluster(tmp_path / "inventory.yaml", "debian-13").role("verify", "head1").value("__verify_nodes")
    assert nodes == {"gpu01": {"gpus": count, "confined": confined, "mpi": False}}


def power_saving(found: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in found.items() if name.startswith(("Suspend", "Resume"))}


@pytest.mark.proves("power", "slurm.conf has power saving only if the variable is set, as Slurm's release knows it.")
@pytest.mark.parametrize("system", SYSTEMS)
def test_slurm_conf__sleep_after__has_power_saving(tmp_path: Path, system: str) -> None:
    """SuspendExcStates comes with 23.02 (src/common/read_config.c)."""
    for name in ("off", "on"):
        (tmp_path / name).mkdir()
    assert power_saving(slurm_conf(tmp_path / "off", system)) == {}
    found = power_saving(
        slurm_conf(tmp_path / "on", system, slurm_head_sleep_after=600, slurm_head_sleep_except=["gpu01"])
    )
    states = "DOWN,DRAIN,FAIL,INVALID_REG,MAINTENANCE,NOT_RESPONDING,PLANNED"
    old = system in {"debian-12", "ubuntu-22.04"} or system.endswith("-9")
    assert found == {
        "SuspendTime": "600",
        "SuspendProgram": "/usr/local/sbin/slurm-suspend",
        "ResumeProgram": "/usr/local/sbin/slurm-resume",
        "ResumeFailProgram": "/usr/local/sbin/slurm-resume-failed",
        "SuspendTimeout": "300",
        "ResumeTimeout": "900",
        "SuspendRate": "20",
        "ResumeRate": "20",
        "SuspendExcNodes": "gpu01",
        **({} if old else {"SuspendExcStates": states}),
    }
