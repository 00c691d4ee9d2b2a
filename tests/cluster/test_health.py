"""GPUs that fall ill: each check fires, the node goes out of service with the reason and comes back by itself, or not.

Slurm runs the checks every few seconds here. The faults are the simulated driver's and lines of the kernel's log; what
judges them is the product, with NVIDIA's nvidia-smi.
"""

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.cluster.conftest import TestLab, clusterctl, podman
from tests.labs import lab_name

INTERVAL = 5
DRIVER = "/etc/simulated-nvml.conf"
# What is set for the driver, and how the reason begins.
FAULTS = {
    "ecc": (["fault.1=ecc"], "GPU 1: 1 uncorrected ECC errors (and 1 more)"),
    "lost": (["fault.2=lost"], "nvidia-smi: Unable to determine the device handle for GPU2: GPU is lost"),
    "hot": (["temperature.3=95"], "GPU 3: 95 C, it slows down at 89 C"),
    "slow link under load": (["pcie_generation_current.0=1", "utilization_gpu.0=90"], "GPU 0: PCIe generation 1 under"),
    "gone": (["gpus=3"], "GPU 3 is missing"),
}
XID = "NVRM: Xid (PCI:{}): {}, pid=4711, name=python3, a fault"


@pytest.fixture(scope="module")
def lab() -> Iterator[TestLab]:
    lab = TestLab(lab_name("health"))
    lab.down()
    lab.up()
    variables = lab.inventory.parent / "group_vars/all.yml"
    variables.parent.mkdir(exist_ok=True)
    variables.write_text(f"slurm_head_health_interval: {INTERVAL}\n")
    lab.run("bootstrap")
    yield lab
    lab.down()


def ledger(lab: TestLab) -> dict[str, dict[str, str]]:
    causes: dict[str, dict[str, str]] = json.loads(lab.root("head1", "slurm-drain"))
    return causes


def until(lab: TestLab, nodes: dict[str, str]) -> None:
    """Wait until the ledger has just these nodes out for their health, each for a reason that begins like this."""
    for _ in range(180):
        found = {node: causes["health"] for node, causes in ledger(lab).items() if "health" in causes}
        if found.keys() == nodes.keys() and all(found[node].startswith(nodes[node]) for node in nodes):
            return
        time.sleep(1)
    raise AssertionError(f"expected {nodes}, the ledger has {found}")


def slurm(lab: TestLab, node: str) -> tuple[str, str]:
    """A node's state and reason in Slurm's own words."""
    state, _, reason = (
        lab.root("head1", f"sinfo --noheader --Node --nodes={node} --format='%T %E'").strip().partition(" ")
    )
    return state, reason


def log(lab: TestLab, node: str, *lines: str, as_user: str = "root") -> None:
    script = "".join(f"runuser -u {as_user} -- logger -t kernel {line!r}\n" for line in lines)
    lab.root(node, script + "journalctl --sync\n")


@contextmanager
def fault(lab: TestLab, *where: tuple[str, list[str]]) -> Iterator[None]:
    """Let drivers behave as their file says with these lines added, then as before."""
    for node, lines in where:
        added = "".join(f"echo {line} >> {DRIVER}\n" for line in lines)
        lab.root(node, f"cp {DRIVER} /root/kept\n{added}")
    try:
        yield
    finally:
        for node, _ in where:
            lab.root(node, f"cp /root/kept {DRIVER}")


def health(document: dict[str, Any]) -> dict[str, list[str]]:
    """What keeps each node that was checked out of service."""
    return {
        node["name"]: [one["text"] for one in node["answer"]["findings"] if one["drains"]]
        for node in document["nodes"]
        if node["answer"]
    }


def test_a_healthy_cluster_is_fit_and_slurm_checks_it(lab: TestLab) -> None:
    document = lab.run("check")
    assert health(document) == {"gpu01": [], "gpu02": []}
    assert {(node["fit"], len(node["answer"]["gpus"])) for node in document["nodes"]} == {(True, 4)}
    page = clusterctl("check", str(lab.inventory))
    assert page.returncode == 0
    assert "gpu01, gpu02" in page.stdout
    assert "fit for jobs" in page.stdout
    told = lab.root("head1", "scontrol show config")
    assert re.search(rf"HealthCheckInterval\s+= {INTERVAL} sec", told)
    assert re.search(r"HealthCheckProgram\s+= /usr/local/sbin/gpu-health", told)
    assert "GPU0: NV12 to GPU[1-3]" in clusterctl("status", str(lab.inventory), "-v").stdout


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_drains_the_node_and_its_end_brings_it_back(lab: TestLab, name: str) -> None:
    lines, reason = FAULTS[name]
    with fault(lab, ("gpu01", lines)):
        until(lab, {"gpu01": reason})
        state, told = slurm(lab, "gpu01")
        assert state == "drained"
        assert told.startswith(f"clusterctl: health: {reason}")
        assert slurm(lab, "gpu02")[0] == "idle"
        found = health(lab.run("check", expect=4))
        assert found["gpu02"] == []
        assert any(text.startswith(reason.partition(" (and")[0]) for text in found["gpu01"])
    until(lab, {})
    assert slurm(lab, "gpu01")[0] == "idle"


def test_no_application_and_no_user_drains_a_node(lab: TestLab) -> None:
    """Errors of programs, and a line that a user writes in the kernel's name."""
    log(lab, "gpu01", *(XID.format("0000:07:00", number) for number in (13, 31, 43, 45)))
    log(lab, "gpu01", XID.format("0000:07:00", 79), as_user="nobody")
    lab.root("gpu01", "gpu-health")
    assert health(lab.run("check", "gpu01")) == {"gpu01": []}
    assert ledger(lab) == {}


def test_an_operators_drain_is_kept(lab: TestLab) -> None:
    lab.root("head1", "scontrol update NodeName=gpu01 State=DRAIN Reason='new fan'")
    with fault(lab, ("gpu01", ["temperature.3=95"])):
        until(lab, {"gpu01": "GPU 3: 95 C"})
        assert slurm(lab, "gpu01") == ("drained", "new fan")
    until(lab, {})
    assert slurm(lab, "gpu01") == ("drained", "new fan")
    lab.root("head1", "scontrol update NodeName=gpu01 State=RESUME")


def test_a_worker_cannot_speak_for_another(lab: TestLab) -> None:
    """With all that root finds on one worker."""
    speak = """python3 - <<'END'
import importlib.machinery, importlib.util, json, sys
loader = importlib.machinery.SourceFileLoader("health", "/usr/local/sbin/gpu-health")
module = importlib.util.module_from_spec(importlib.util.spec_from_loader("health", loader))
sys.modules["health"] = module
loader.exec_module(module)
given = json.loads(module.CONFIGURATION.read_text())
module.tell(given, "of itself")
for node in ("gpu02", "head1", "ALL", "gpu01,gpu02"):
    try:
        module.tell(given | {"node": node}, "of another")
    except ValueError:
        continue
    sys.exit(node)
END
"""
    lab.root("gpu01", speak)
    assert ledger(lab) == {"gpu01": {"health": "of itself"}}
    lab.root("gpu01", "rm /var/lib/clusterctl/gpu-health.json; gpu-health")
    until(lab, {})


def test_an_xid_of_the_hardware_stays_until_a_restart_and_a_diagnosis(lab: TestLab) -> None:
    log(lab, "gpu02", XID.format("0000:07:00", 79))
    reason = "GPU 0: XID 79, GPU has fallen off the bus"
    until(lab, {"gpu02": reason})
    lab.root("gpu02", "journalctl -q --rotate; journalctl -q --vacuum-time=1s; gpu-health")
    assert ledger(lab) == {"gpu02": {"health": reason}}, "though the log has it no more"
    refused = lab.run("check", "gpu02", "--diagnose", expect=4)
    assert "has to be rebooted" in health(refused)["gpu02"][0]

    podman("restart", "--time", "5", f"clusterctl-{lab.name}-gpu02")
    lab.up()
    lab.root("gpu02", "gpu-health")
    assert ledger(lab) == {"gpu02": {"health": reason}}, "a restart alone says nothing"
    assert lab.run("check", "gpu02", "--diagnose")["exit_code"] == 0
    until(lab, {})
    lab.healthy()


def test_a_node_that_is_down_is_named(lab: TestLab) -> None:
    podman("stop", "--time", "0", f"clusterctl-{lab.name}-gpu02")
    try:
        nodes = {node["name"]: node for node in lab.run("check", expect=4)["nodes"]}
    finally:
        lab.up()
    assert nodes["gpu01"]["fit"]
    assert nodes["gpu02"]["problem"]
    assert nodes["gpu02"]["answer"] is None
