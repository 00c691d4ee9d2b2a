"""GPUs that fall ill: each check fires, the node goes out of service with the reason, and comes back when it may.

Slurm runs the checks every few seconds here. The faults are those of `clusterctl lab fault`; what judges them is the
product, through NVIDIA's nvidia-smi and the kernel's log.
"""

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.crash import crashed, kernel_says
from tests.cluster.gpus import INTERVAL, Site
from tests.cluster.lab import TestLab, clusterctl, podman, submit
from tests.cluster.members import states
from tests.faults.injury import wait_until

READ_HEAD = (
    'python3 -c \'import json; given = json.load(open("/etc/clusterctl/gpu-health.json")); '
    'print(given["heads"][0], given["port"])\''
)

# What goes wrong on which GPU, and what the checks say of it. These end by themselves.
PASSING = {
    "hot": ("3", {"temperature": "GPU 3: 90 C, it slows down at 89 C"}),
    "power-brake": ("1", {"power": "GPU 1: power brake: the node's supply asks it to slow down"}),
    "pcie-width": ("0", {"pcie": "GPU 0: 8 PCIe lanes, 16 recorded"}),
}
# These end with a reset of the GPU, and need a diagnosis.
LASTING = {
    "ecc": ("1", {"ecc": "GPU 1: 1 uncorrected ECC errors", "xid": "GPU 1: XID 48, double-bit ECC error"}),
    "gpu-lost": ("2", {"driver": "nvidia-smi: Unable to determine the device handle for GPU2", "xid": "GPU 2: XID 79"}),
    "gpu-gone": ("1", {"count": "GPU 1 is missing (GPU-", "xid": "GPU 1: XID 79"}),
    "gpu-reset": ("1", {"driver": "nvidia-smi: ", "xid": "GPU 1: XID 119"}),  # nvidia-smi 550 gives up
    "nvlink-down": ("0", {"xid": "GPU 0: XID 74, NVLink error", "nvlink": "GPU 0: 11 NVLinks, 12 recorded"}),
    "row-remap": ("3", {"ecc": "GPU 3: no spare memory is left", "xid": "GPU 3: XID 64"}),
}


@pytest.fixture(scope="module")
def lab(gpus: Site) -> TestLab:
    return gpus.lab


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


def in_service(lab: TestLab, node: str) -> None:
    """Wait until a node takes jobs; Slurm has it for silent until it has answered once more."""
    wait_until(lambda: slurm(lab, node)[0] == "idle")


def fault(lab: TestLab, node: str, *what: str) -> None:
    done = clusterctl("lab", "fault", "--name", lab.name, node, *what)
    assert done.returncode == 0, done.stderr


def health(document: dict[str, Any]) -> dict[str, list[tuple[str, str]]]:
    """What keeps each node that was checked out of service: check and text."""
    return {
        node["name"]: [(one["check"], one["text"]) for one in node["answer"]["findings"] if one["drains"]]
        for node in document["nodes"]
        if node["answer"]
    }


def drains(lab: TestLab, gpu: str, name: str, says: dict[str, str]) -> None:
    """Bring a fault on a GPU of the first worker, which alone goes out of service, with the reason."""
    fault(lab, "gpu01", name, "--gpu", gpu)
    first = next(iter(says.values()))
    until(lab, {"gpu01": first})
    state, reason = slurm(lab, "gpu01")
    assert state == "drained"
    assert reason.startswith(f"clusterctl: health: {first}")
    assert slurm(lab, "gpu02")[0] == "idle"
    found = health(lab.run("health", expect=4))
    assert found["gpu02"] == []
    for check, text in says.items():
        assert any(one == check and told.startswith(text) for one, told in found["gpu01"]), found
    assert {number for _, told in found["gpu01"] for number in re.findall(r"GPU ?(\d)", told)} == {gpu}, found


@pytest.mark.proves("health", "A healthy cluster is fit, and Slurm runs the health check periodically.")
@pytest.mark.proves("status", "`status --topology` shows how the GPUs are connected.")
def test_a_healthy_cluster_is_fit_and_slurm_checks_it(lab: TestLab) -> None:
    document = lab.run("health")
    assert health(document) == {"gpu01": [], "gpu02": []}
    assert {(node["fit"], len(node["answer"]["gpus"])) for node in document["nodes"]} == {(True, 4)}
    page = clusterctl("health", str(lab.inventory))
    assert page.returncode == 0
    assert "gpu01, gpu02" in page.stdout
    assert "fit for jobs" in page.stdout
    told = lab.root("head1", "scontrol show config")
    assert re.search(rf"HealthCheckInterval\s+= {INTERVAL} sec", told)
    assert re.search(r"HealthCheckProgram\s+= /usr/local/sbin/gpu-health", told)
    assert "GPU0: NV12 to GPU[1-3]" in clusterctl("status", str(lab.inventory), "--topology").stdout


@pytest.mark.proves("health", "Six simultaneous kinds of GPU fault are each reported with GPU and reason.")
@pytest.mark.proves("health", "Passing faults end by themselves, hardware errors by a diagnosis; nodes resume.")
def test_every_fault_is_found_among_others(lab: TestLab) -> None:
    """What ends by itself on one worker, errors of the hardware on the other; the tests below take each alone."""
    for name, (gpu, _) in PASSING.items():
        fault(lab, "gpu01", name, "--gpu", gpu)
    lasting = {name: LASTING[name] for name in ("ecc", "nvlink-down", "row-remap")}  # the rest would hide others
    for name, (gpu, _) in lasting.items():
        fault(lab, "gpu02", name, "--gpu", gpu)
    until(lab, {"gpu01": "GPU ", "gpu02": "GPU "})
    for node in ("gpu01", "gpu02"):
        state, reason = slurm(lab, node)
        assert state == "drained"
        assert re.match(r"clusterctl: health: GPU .* \(and \d+ more\)$", reason)
    assert {line.split()[0] for line in lab.alarms().splitlines()} == {"gpu01", "gpu02"}
    found = health(lab.run("health", expect=4))
    for node, faults in (("gpu01", PASSING), ("gpu02", lasting)):
        for check, text in ((check, text) for _, says in faults.values() for check, text in says.items()):
            assert any(one == check and told.startswith(text) for one, told in found[node]), (check, text, found[node])
    for node in ("gpu01", "gpu02"):
        fault(lab, node, "clear")
    until(lab, {"gpu02": "GPU 1: XID 48"})
    in_service(lab, "gpu01")
    assert lab.run("health", "gpu02", "--diagnose")["exit_code"] == 0
    until(lab, {})
    in_service(lab, "gpu02")


@pytest.mark.proves("health", "Heat, power brake or lost lanes drain only that node until they end.")
@pytest.mark.long
@pytest.mark.parametrize("name", PASSING)
def test_a_fault_drains_the_node_and_its_end_brings_it_back(lab: TestLab, name: str) -> None:
    drains(lab, PASSING[name][0], name, PASSING[name][1])
    fault(lab, "gpu01", "clear")
    until(lab, {})
    in_service(lab, "gpu01")


@pytest.mark.proves("health", "ECC, lost GPU, NVLink or row remap drain the node until a diagnosis.")
@pytest.mark.long
@pytest.mark.parametrize("name", LASTING)
def test_a_fault_of_the_hardware_waits_for_a_diagnosis(lab: TestLab, name: str) -> None:
    gpu, says = LASTING[name]
    drains(lab, gpu, name, says)
    fault(lab, "gpu01", "clear")
    lab.root("gpu01", "gpu-health")
    assert next(check for check, _ in health(lab.run("health", "gpu01", expect=4))["gpu01"]) == "xid"
    assert ledger(lab)["gpu01"]["health"].startswith(says["xid"])
    assert lab.run("health", "gpu01", "--diagnose")["exit_code"] == 0
    until(lab, {})
    in_service(lab, "gpu01")


@pytest.mark.proves("health", "A driver that does not respond drains its node until it does.")
@pytest.mark.long
def test_a_driver_that_hangs_drains_its_node(lab: TestLab) -> None:
    """A program in the place of nvidia-smi never ends; of a driver that hangs even a kill would not end it."""
    lab.root("gpu02", "install -m 755 /dev/stdin /usr/local/sbin/nvidia-smi <<'END'\n#!/bin/sh\nsleep 600\nEND\n")
    until(lab, {"gpu02": "nvidia-smi: no response within 30 s"})
    assert slurm(lab, "gpu02")[0] == "drained"
    lab.root("gpu02", "rm /usr/local/sbin/nvidia-smi")
    until(lab, {})
    in_service(lab, "gpu02")


@pytest.mark.proves("health", "Application XIDs, load and a user's forged kernel line drain no node.")
def test_no_application_no_load_and_no_user_drains_a_node(lab: TestLab) -> None:
    """Errors of programs, a GPU at work, and a line that a user writes in the kernel's name."""
    for number in (13, 31, 43, 45):
        fault(lab, "gpu01", "gpu-xid", str(number))
    fault(lab, "gpu01", "busy")
    line = "NVRM: Xid (PCI:0000:07:00): 79, pid=1, name=x, GPU has fallen off the bus."
    lab.root("gpu01", f"runuser -u nobody -- logger -t kernel '{line}'; journalctl --sync; gpu-health")
    assert health(lab.run("health")) == {"gpu01": [], "gpu02": []}
    assert ledger(lab) == {}
    log = lab.root("gpu01", "journalctl --output=cat --grep='NVRM: Xid'")
    assert all(f"): {number}," in log for number in (13, 31, 43, 45, 79)), "they were all there to be read"
    fault(lab, "gpu01", "clear")


# An escape, a control character and a byte that is no UTF-8: what XML has none of, and nvidia-smi passes on.
PROCESS = r"""
runuser -u alice -- bash -c 'exec -a "$(printf "\033<x\001\377")" sleep 5151' &
until pid=$(pgrep --uid alice --exact sleep); do sleep 0.1; done
echo "process.0=$pid" >> /run/simulated-nvml/state
nvidia-smi -q -x | od -A n -c
gpu-health
kill "$pid"
"""


@pytest.mark.proves("health", "A user's process drains no node, whatever bytes its name has.")
def test_users_process__of_bytes_that_are_no_text__drains_nothing(lab: TestLab) -> None:
    try:
        told = lab.root("gpu01", PROCESS)
        assert " 033 & l t ; x 001 377 " in re.sub(r"\s+", " ", told), "or nvidia-smi has not shown its name"
        assert health(lab.run("health"))["gpu01"] == []
        assert ledger(lab) == {}
    finally:
        fault(lab, "gpu01", "clear")


TRACED = Path("/proc/sys/debug/exception-trace")
# The kernel's line has the first 15 characters of a name at its begin, and all of it at its end.
NAMES = (
    "NVRM: Xid (0000 ): 79, x",
    "NVRM: Xid (PCI:0000:07:00): 79, pid=1",
    "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30",
    "NVRM: GPU 0000:07:00.0: RmInitAdapter failed! (0x22:0x65:884)",
    "NVRM: The NVIDIA GPU 0000:07:00.0 has fallen off the bus",
)


@pytest.mark.proves("health", "A user's program that crashes drains no node, whatever its name.")
@pytest.mark.skipif(
    os.uname().machine != "x86_64" or not TRACED.exists() or TRACED.read_text().strip() == "0",
    reason="this kernel says nothing of programs that crash",
)
def test_users_program_crashes__under_the_drivers_words__drains_nothing(lab: TestLab) -> None:
    """Programs really crash on the node; what this machine's kernel says of them is carried into the node's journal."""
    lines = [crashed(lab, "gpu01", name) for name in NAMES]
    kernel_says(lab, "gpu01", *lines)
    log = lab.root("gpu01", "journalctl --sync; journalctl --output=cat _TRANSPORT=kernel; gpu-health")
    assert all(line in log for line in lines)
    assert health(lab.run("health")) == {"gpu01": [], "gpu02": []}
    assert ledger(lab) == {}


@pytest.mark.proves("health", "A health drain and its end keep an operator's drain.")
def test_an_operators_drain_is_kept(lab: TestLab) -> None:
    lab.root("head1", "scontrol update NodeName=gpu01 State=DRAIN Reason='new fan'")
    fault(lab, "gpu01", "hot")
    until(lab, {"gpu01": "GPU 0: "})
    assert slurm(lab, "gpu01") == ("drained", "new fan")
    fault(lab, "gpu01", "clear")
    until(lab, {})
    assert slurm(lab, "gpu01") == ("drained", "new fan")
    lab.root("head1", "scontrol update NodeName=gpu01 State=RESUME")


@pytest.mark.proves("health", "A lost GPU takes its node out before the next job begins there.")
def test_lost_gpu__job_comes_before_the_check__begins_elsewhere(lab: TestLab) -> None:
    """Slurm's own interval is longer than the test; the job asks for a GPU, of which the other node has some."""
    lab.root("head1", "scontrol update NodeName=gpu02 State=DRAIN Reason='for later'")
    slow = "sed -i 's/^HealthCheckInterval=.*/HealthCheckInterval=3600/' /etc/slurm/slurm.conf; scontrol reconfigure"
    lab.root("head1", slow)
    fault(lab, "gpu01", "gpu-lost")
    try:
        job = submit(lab, "hostname > /var/tmp/began-on", "--gres=gpu:1")
        until(lab, {"gpu01": ""})
        assert states(lab, job) == ["PENDING"]
        assert lab.root("gpu01", "ls /var/tmp/began-on 2>&1 || true").startswith("ls: cannot access")
        lab.root("head1", "scontrol update NodeName=gpu02 State=RESUME")
        lab.root("head1", f"scontrol update JobId={job} StartTime=now")  # or it waits for two minutes
        wait_until(lambda: states(lab, job) == ["COMPLETED"])
        assert lab.root("gpu02", "cat /var/tmp/began-on; rm /var/tmp/began-on") == "gpu02\n"
    finally:
        lab.root("head1", "scontrol update NodeName=gpu02 State=RESUME || true")
        fault(lab, "gpu01", "clear")
    lab.run("health", "gpu01", "--diagnose")
    until(lab, {})
    lab.run("bootstrap", "--limit", "head1,gpu01")


@pytest.mark.proves("health", "Root of one worker cannot drain another node.")
def test_a_worker_cannot_speak_for_another(lab: TestLab) -> None:
    """With all that root finds on one worker."""
    speak = """python3 - <<'END'
import json, sys
sys.dont_write_bytecode = True
sys.path.insert(0, "/usr/local/lib/clusterctl")
import gpu_health
given = json.loads(gpu_health.CONFIGURATION.read_text())
gpu_health.send(given, "of itself")
for node in ("gpu02", "head1", "ALL", "gpu01,gpu02"):
    try:
        gpu_health.send(given | {"node": node}, "of another")
    except ValueError:
        continue
    sys.exit(node)
END
"""
    lab.root("gpu01", speak)
    assert ledger(lab) == {"gpu01": {"health": "of itself"}}
    # Slurm may start the program meanwhile, which then writes back what the file said before.
    again = """sed -i 's/"told": ""/"told": null/' /var/lib/clusterctl/gpu-health.json; gpu-health"""
    wait_until(lambda: [lab.root("gpu01", again), ledger(lab)][1] == {})


@pytest.mark.proves("health", "Users' connections to the head's health port start no process.")
@pytest.mark.parametrize(("node", "of_root"), [("gpu01", 599), ("head1", 598)])
def test_health_port__users_connect__are_rejected_before_a_program_starts(
    lab: TestLab, node: str, of_root: int
) -> None:
    """Who could keep their node from being heard, and root's processor at work, by connections that say nothing."""
    address, port = lab.root("gpu01", READ_HEAD).split()
    accepted = "systemctl show --property=NAccepted --value slurm-health.socket"
    before = lab.root("head1", accepted)
    speak = 'python3 -c \'import socket; print(socket.create_connection(("{}", {}), 10, ("", {})).recv(100))\''
    as_user = lab.root(node, f"runuser -u nobody -- {speak.format(address, port, 0)} 2>&1 || :")
    assert "ConnectionRefusedError" in as_user
    assert lab.root("head1", accepted) == before
    assert re.search(r"b'[0-9a-f]{32}\\n'", lab.root("gpu01", speak.format(address, port, of_root)))
    assert int(lab.root("head1", accepted)) > int(before)


@pytest.mark.proves("health", "A fatal error of an NVSwitch drains the node until it was rebooted.")
@pytest.mark.long
def test_an_error_of_a_switch__waits_for_a_reboot(lab: TestLab) -> None:
    fault(lab, "gpu02", "nvswitch")
    until(lab, {"gpu02": "nvidia-nvswitch0: SXid 20034, fatal"})
    (node,) = lab.run("health", "gpu02", "--diagnose", expect=4)["nodes"]
    told = [one["text"] for one in node["answer"]["findings"] if one["drains"]]
    assert told == ["nvidia-nvswitch0 had a fatal error, so the node has to be rebooted"]
    podman("restart", "--time", "5", f"clusterctl-{lab.name}-gpu02")
    lab.up()
    assert lab.run("health", "gpu02", "--diagnose")["exit_code"] == 0
    until(lab, {})
    in_service(lab, "gpu02")


@pytest.mark.proves("health", "Neither a purged log nor a restart ends a hardware XID.")
def test_neither_time_nor_a_restart_ends_an_error_of_the_hardware(lab: TestLab) -> None:
    """The log forgets, and a GPU that works again says nothing; what lets the node back is a diagnosis."""
    fault(lab, "gpu02", "gpu-xid", "119")
    reason = "GPU 0: XID 119"
    until(lab, {"gpu02": reason})
    fault(lab, "gpu02", "clear")
    lab.root("gpu02", "journalctl -q --rotate; journalctl -q --vacuum-time=1s; gpu-health")
    until(lab, {"gpu02": reason})
    podman("restart", "--time", "5", f"clusterctl-{lab.name}-gpu02")
    lab.up()
    lab.root("gpu02", "gpu-health")
    until(lab, {"gpu02": reason})
    assert lab.run("health", "gpu02", "--diagnose")["exit_code"] == 0
    assert lab.root("head1", "find /var/lib/clusterctl/diagnosed -name gpu02 -newermt '-1 minute'")
    until(lab, {})
    lab.healthy()


@pytest.mark.proves("health", "`health` reports a node that is down and judges the others; exit 4.")
def test_a_node_that_is_down_is_named(lab: TestLab) -> None:
    podman("stop", "--time", "0", f"clusterctl-{lab.name}-gpu02")
    try:
        nodes = {node["name"]: node for node in lab.run("health", expect=4)["nodes"]}
    finally:
        lab.up()
    assert nodes["gpu01"]["fit"]
    assert nodes["gpu02"]["problem"]
    assert nodes["gpu02"]["answer"] is None
