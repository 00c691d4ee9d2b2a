"""The judge of a node's GPUs, on what NVIDIA's nvidia-smi 550.163 printed in the lab, and what the head takes from it.

The faults are written into that document where nvidia-smi writes them.
"""

import contextlib
import hashlib
import hmac
import importlib.machinery
import importlib.util
import inspect
import json
import os
import re
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from clusterctl.commands import health
from clusterctl.util import paths
from clusterctl.util.untrusted import Malformed, decode

HERE = Path(__file__).parent / "gpu_health"
DOCUMENT = (HERE / "a100-550.163.xml").read_text()
MATRIX = (
    "\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\nGPU0\t X \tNV12\tPXB\t0-3\t0\t\tN/A\n"
)
MATRIX += "GPU1\tNV12\t X \tSYS\t0-3\t0\t\tN/A\nNIC0\tPXB\tSYS\t X \t\t\t\t\n\nLegend:\n\n  X    = Self\n"
UUIDS = re.findall(r"<uuid>(GPU-\S+)</uuid>", DOCUMENT)
LINKS = "".join(
    f"GPU {gpu}: NVIDIA A100-SXM4-80GB (UUID: {UUIDS[gpu]})\n" + "".join(f"\t Link {n}: 25 GB/s\n" for n in range(12))
    for gpu in range(2)
)
LISTING = (
    "GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-0)\n  MIG 3g.40gb     Device  0: (UUID: MIG-0)\n"
    "  MIG 2g.20gb     Device  1: (UUID: MIG-1)\nGPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-1)\n"
)
GIVEN = {
    "node": "gpu01",
    "heads": ["10.0.0.10"],
    "port": 6822,
    "gpus": [
        {"index": 0, "uuid": "", "pci": "00000000:07:00.0", "links": {"1": "NV12"}, "lanes": 16, "memory_mb": 81920},
        {"index": 1, "uuid": "", "pci": "00000000:0F:00.0", "links": {"0": "NV12"}, "lanes": 16, "memory_mb": 81920},
    ],
    "infiniband": [],
    "memory_mb": 200000,
    "cores": 4,
    "skip": [],
    "timeouts": {},
    "xids": [48, 63, 64, 74, 79, 95, 119],
    "uncorrected_errors": 0,
    "temperature_margin": 0,
    "busy_percent": 50,
    "least_memory_mb": 24576,
    "cores_per_gpu": 2,
}
XID = "NVRM: Xid (PCI:0000:0f:00): {}, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def program(path: str) -> ModuleType:
    loader = importlib.machinery.SourceFileLoader(Path(path).name.replace("-", "_"), str(paths.content() / path))
    specification = importlib.util.spec_from_loader(loader.name, loader)
    assert specification is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[loader.name] = module  # dataclasses look their module up
    loader.exec_module(module)
    return module


def installed(name: str) -> ModuleType:
    """A module of gpu-health or gpu-config, which both import from one directory."""
    for role in ("gpu_health", "gpu_config", "slurm_worker"):
        if (folder := str(paths.content() / "roles" / role / "files")) not in sys.path:
            sys.path.append(folder)
    return importlib.import_module(name)


CHECKS, DIAGNOSIS, ERRORS, HEALTH, NODE, SMI = map(
    installed, ("gpu_checks", "gpu_diagnosis", "gpu_errors", "gpu_health", "gpu_node", "nvidia_smi")
)
EAR = program("roles/slurm_head/files/slurm-health")

Find = Callable[..., list[tuple[str, str, bool]]]


@pytest.fixture
def find(monkeypatch: pytest.MonkeyPatch) -> Find:
    """What one look finds, as (check, text, whether it drains), where the programs that it asks print this."""

    def ask(
        document: str = DOCUMENT,
        matrix: str = MATRIX,
        links: str = LINKS,
        listing: str = LISTING,
        log: str = "",
        kernel: Sequence[str] = (),
        units: str = "ActiveState=inactive\nUnitFileState=\n",
        given: dict[str, Any] | None = None,
        state: dict[str, Any] | None = None,
    ) -> list[tuple[str, str, bool]]:
        answers: dict[tuple[str, ...], str] = {
            ("nvidia-smi", "-q"): document,
            ("nvidia-smi", "topo"): matrix,
            ("nvidia-smi", "nvlink"): links,
            ("nvidia-smi", "-L"): listing,
            ("journalctl", "--lines=1"): json.dumps({"__CURSOR": "s=2"}),
            ("journalctl", "--quiet"): log,
            ("systemctl", "show"): units,
        }

        def answer(*argv: str, seconds: float = 0) -> str:
            said = answers[argv[:2]]
            if said.startswith("!"):
                raise NODE.CommandError(argv, [said[1:]])
            return said

        monkeypatch.setattr(NODE, "run", answer)
        monkeypatch.setattr(ERRORS, "kernel_records", lambda: iter(kernel))
        kept = {"cursor": "", "xids": {}, "stuck": 0} if state is None else state
        return [(one.check, one.text, one.drains) for one in CHECKS.Checks(GIVEN | (given or {}), kept).run()]

    return ask


def test_a_cleanup_that_hangs_leaves_what_it_had_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without the finding the head would give the worker back to jobs."""
    (tmp_path / "job-cleanup").touch()
    monkeypatch.setattr(CHECKS, "JOB_CLEANUP", tmp_path / "job-cleanup")
    state: dict[str, Any] = {}

    def leftovers(said: str) -> list[tuple[str, bool]]:
        def answer(*argv: str, seconds: float) -> str:
            if said.startswith("!"):
                raise NODE.CommandError(argv, [said[1:]])
            return said

        monkeypatch.setattr(NODE, "run", answer)
        return [(one.text, one.drains) for one in CHECKS.Checks(GIVEN, state).leftovers()]

    hangs = (f"check failed: {tmp_path}/job-cleanup: no response within 10 s", False)
    assert leftovers("!no response within 10 s") == [hangs]
    assert leftovers("process 7 does not end\n") == [("process 7 does not end", True)]
    assert leftovers("!no response within 10 s") == [hangs, ("process 7 does not end", True)]
    assert leftovers("") == []
    assert leftovers("!no response within 10 s") == [hangs]


def line(message: str, when: int = 1_800_000_000) -> str:
    return json.dumps({"MESSAGE": message, "__REALTIME_TIMESTAMP": str(when * 1_000_000), "__CURSOR": "s=1"}) + "\n"


def changed(path: str, value: str, gpu: int = 1) -> str:
    """The document with another value of one GPU in a place such as `temperature/gpu_temp`."""
    blocks = re.split(r"(?=\t<gpu id)", DOCUMENT)
    outer, _, name = path.rpartition("/")
    pattern = rf"(<{outer.rpartition('/')[2]}>.*?<{name}>)[^<]*(</{name}>)"
    blocks[gpu + 1], count = re.subn(pattern, rf"\g<1>{value}\g<2>", blocks[gpu + 1], count=1, flags=re.DOTALL)
    assert count == 1, path
    return "".join(blocks)


def test_a_node_that_is_well_has_nothing_found(find: Find) -> None:
    assert find() == []


FAULTS = {
    "ecc": ("ecc_errors/volatile/dram_uncorrectable", "2", "ecc", "GPU 1: 2 uncorrected ECC errors"),
    "row remap": ("remapped_rows/remapped_row_pending", "Yes", "ecc", "GPU 1: memory waits to be replaced by a reset"),
    "no spare": ("remapped_rows/remapped_row_failure", "Yes", "ecc", "GPU 1: no spare memory is left"),
    "page": ("retired_pages/pending_retirement", "Yes", "ecc", "GPU 1: memory waits to be replaced by a reset"),
    "hot": ("temperature/gpu_temp", "89 C", "temperature", "GPU 1: 89 C, it slows down at 89 C"),
    "hot memory": ("temperature/memory_temp", "96 C", "temperature", "GPU 1: memory 96 C, it slows down at 95 C"),
    "slow": ("clocks_event_reasons/clocks_event_reason_hw_thermal_slowdown", "Active", "temperature",
             "GPU 1: slows down for heat"),
    "brake": ("clocks_event_reasons/clocks_event_reason_hw_power_brake_slowdown", "Active", "power",
              "GPU 1: power brake: the node's supply asks it to slow down"),
    "lanes": ("link_widths/current_link_width", "8x", "pcie", "GPU 1: 8 PCIe lanes, 16 recorded"),
    "fabric": ("fabric/state", "In Progress", "fabric", "GPU 1: fabric in progress, no status"),
    "lost": ("temperature/gpu_temp", "GPU is lost", "count", "GPU 1: the driver has lost it"),
    "reset": ("gpu_reset_status/reset_required", "Yes", "reset", "GPU 1: the driver asks for: Reset"),
}  # fmt: skip


@pytest.mark.proves("health", "Twelve kinds of fault in nvidia-smi's document are each reported alone.")
@pytest.mark.parametrize(("path", "value", "name", "text"), FAULTS.values(), ids=FAULTS.keys())
def test_each_fault_drains_and_is_told(find: Find, path: str, value: str, name: str, text: str) -> None:
    assert find(changed(path, value)) == [(name, text, True)]


def test_newer_drivers_tell_the_distance_to_the_limit(find: Find) -> None:
    limits = (
        "<gpu_temp_tlimit>{} C</gpu_temp_tlimit><gpu_temp_slow_tlimit_threshold>-2 C</gpu_temp_slow_tlimit_threshold>"
    )
    document = re.sub(r"<gpu_temp_(max|slow|max_gpu)_threshold>.*?\n", "", DOCUMENT)
    document = document.replace("<gpu_temp_tlimit>N/A</gpu_temp_tlimit>", "{}", 1)
    assert find(document.replace("{}", limits.format(46))) == []
    assert find(document.replace("{}", limits.format(-2))) == [
        ("temperature", "GPU 0: -2 C from its limit, it slows down at -2 C", True)
    ]


@pytest.mark.proves("health", "A slow PCIe link counts under load only.")
def test_the_generation_counts_under_load_alone(find: Find) -> None:
    idle = changed("pcie_gen/current_link_gen", "1")
    assert find(idle) == []
    busy = idle.replace("<gpu_util>0 %</gpu_util>", "<gpu_util>97 %</gpu_util>")
    assert find(busy) == [("pcie", "GPU 1: PCIe generation 1 under load, 4 is possible", True)]


def test_a_missing_gpu_is_named_by_its_record(find: Find) -> None:
    one = re.sub(r"\t<gpu id=\"00000000:0F.*?</gpu>\n", "", DOCUMENT, flags=re.DOTALL)
    assert ("count", "GPU 1 is missing (0000:0f:00)", True) in find(one)
    assert find(re.sub(r"\t<gpu id.*</gpu>\n", "", DOCUMENT, flags=re.DOTALL))[:2] == [
        ("count", "GPU 0 is missing (0000:07:00)", True),
        ("count", "GPU 1 is missing (0000:0f:00)", True),
    ]


@pytest.mark.parametrize("said", ["!no response within 30 s", "<?xml version='1.0'?><nvidia_smi_log><gpu"])
def test_a_silent_driver_is_the_only_thing_said(find: Find, said: str) -> None:
    (found,) = find(said)
    assert (found[0], found[2]) == ("driver", True)


@pytest.mark.parametrize(
    ("name", "user", "hangs"), [("nvidia-smi", 0, True), ("nvidia-smi", 1000, False), ("x", 0, False)]
)
def test_a_program_of_ours_that_hangs_is_not_asked_again(
    find: Find, monkeypatch: pytest.MonkeyPatch, name: str, user: int, hangs: bool
) -> None:
    """By the number of its process, which later may be that of another."""
    known = {Path("/proc/4711/status"): f"Name:\t{name}\nUmask:\t0022\nUid:\t{user}\t{user}\t{user}\t{user}"}
    monkeypatch.setattr(CHECKS, "read_text", lambda path: known.get(path, ""))
    state: dict[str, Any] = {"cursor": "", "xids": {}, "stuck": 4711}
    assert find(state=state) == ([("driver", "nvidia-smi hangs since an earlier check", True)] if hangs else [])
    assert state["stuck"] == (4711 if hangs else 0)


def test_a_node_without_gpus_asks_for_none(find: Find) -> None:
    assert find("!there is no driver", "!nor this", given={"gpus": []}) == []


@pytest.mark.proves("health", "A hardware XID stays although the log no longer has it.")
@pytest.mark.parametrize("number", [48, 63, 64, 74, 79, 95, 119])
def test_an_xid_of_the_hardware_stays(find: Find, number: int) -> None:
    state: dict[str, Any] = {"cursor": "", "xids": {}, "stuck": 0}
    expected = [("xid", f"GPU 1: XID {number}, {ERRORS.MEANINGS[number]}", True)]
    assert find(log=line(XID.format(number)), state=state) == expected
    assert state["cursor"] == "s=1", "of the last line that was read"
    assert find(state=state) == expected, "though it is in the log no more"
    assert state["cursor"] == "s=2"


def record(text: str, number: int, priority: int = 3) -> str:
    """What a read of /dev/kmsg returns for one line (Linux, Documentation/ABI/testing/dev-kmsg)."""
    return f"{priority},{number},5140900,-;{text}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:0f:00.0\n"


@pytest.mark.proves("health", "An XID drains although a flood has turned the journal over.")
def test_an_xid__in_the_kernels_log_alone__drains_until_it_is_settled(find: Find) -> None:
    state: dict[str, Any] = {"cursor": "", "xids": {}, "stuck": 0}
    expected = [("xid", "GPU 1: XID 79, GPU has fallen off the bus", True)]
    kernel = [record("usb 1-1: new device", 7), record(XID.format(79), 8)]
    assert find(kernel=kernel, state=state) == expected
    state["xids"] = {}  # a diagnosis has passed
    assert find(kernel=kernel, state=state) == [], "the line was read already"
    again = [*kernel, record(XID.format(79), 9)]
    assert find(kernel=again, state=state) == expected


def test_an_xid__of_a_boot_before__does_not_hide_one_of_this_boot(find: Find) -> None:
    state: dict[str, Any] = {"cursor": "s=1", "xids": {}, "stuck": 0, "kernel": {"boot": "another", "number": 4000}}
    assert find(kernel=[record(XID.format(79), 8)], state=state) != []


def test_an_xid__that_a_program_wrote_into_the_kernels_log__is_none(find: Find) -> None:
    assert find(kernel=[record(XID.format(79), 8, priority=1 << 3 | 3)]) == []


def test_kernels_log__of_a_state_that_knew_the_journal_alone__is_settled(find: Find) -> None:
    """Its first look by a newer version: what stands there may have been diagnosed since."""
    state: dict[str, Any] = {"cursor": "s=1", "xids": {}, "stuck": 0}
    assert find(kernel=[record(XID.format(79), 8)], state=state) == []
    assert find(kernel=[record(XID.format(79), 8), record(XID.format(79), 9)], state=state) != []


@pytest.mark.skipif(
    not os.access("/dev/kmsg", os.R_OK | os.W_OK), reason="this machine's kernel shows its log to root alone"
)
def test_kernels_log__of_this_machine__is_read_to_its_end(find: Find) -> None:
    """What a program writes there is told from the kernel's own words by the kernel itself."""
    said = f"clusterctl test {os.getpid()}"
    Path("/dev/kmsg").write_text(f"<3>{said}\n")
    records = list(ERRORS.kernel_records())
    (ours,) = (one for one in records if said in one)
    assert int(ours.partition(",")[0]) >= ERRORS.FACILITY
    assert any(int(one.partition(",")[0]) < ERRORS.FACILITY for one in records)
    numbers = [int(one.split(",")[1]) for one in records]
    assert numbers == sorted(numbers)


def test_kernels_log__a_pipe_or_none__is_empty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "none"):
        monkeypatch.setattr(ERRORS, "KERNEL_LOG", tmp_path / name)
        assert list(ERRORS.kernel_records()) == []


def test_an_xid_of_an_instance_is_one_of_its_gpu(find: Find) -> None:
    of_an_instance = XID.format(95).replace("0f:00)", "0f:00 GPU-I:05 GPU-CI:00)")
    assert find(log=line(of_an_instance)) == [("xid", "GPU 1: XID 95, uncontained ECC error", True)]


@pytest.mark.proves("health", "An application's XID never drains.")
@pytest.mark.parametrize("number", [13, 31, 43, 45, 94])
def test_an_xid_of_an_application_never_drains(find: Find, number: int) -> None:
    assert find(log=line(XID.format(number))) == []


@pytest.mark.parametrize(
    "message", [f"x {XID.format(79)}", "NVRM: Xid 79", "NVRM: Xid (PCI:0000:0f:00): seventy-nine", "NVRM: loading"]
)
def test_what_is_no_xid_is_none(find: Find, message: str) -> None:
    assert find(log=line(message)) == []


@pytest.mark.proves("health", "Persistence mode that is off beside its daemon is advised.")
def test_persistence_mode__off_beside_its_daemon__is_advised(
    find: Find, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Canonical's unit starts the daemon with --no-persistence-mode."""
    before, _, after = DOCUMENT.rpartition("<persistence_mode>Enabled<")
    off = f"{before}<persistence_mode>Disabled<{after}"
    monkeypatch.setattr(CHECKS, "PERSISTENCED_SOCKET", tmp_path / "socket")
    assert find(off) == []
    (tmp_path / "socket").touch()
    assert find(off) == [("advice", "GPU 1: persistence mode is off, though nvidia-persistenced runs", False)]
    assert find() == []


def test_fewer_nvlinks_than_recorded(find: Find) -> None:
    assert find(matrix=MATRIX.replace("NV12", "NV11")) == [("nvlink", "GPU 0 to GPU 1: NV11, NV12 recorded", True)]
    assert find(matrix=MATRIX.replace("NV12", "PHB")) == [("nvlink", "GPU 0 to GPU 1: PHB, NV12 recorded", True)]
    one_down = LINKS.replace("Link 3: 25 GB/s", "Link 3: <inactive>", 1)
    assert find(links=one_down) == [("nvlink", "GPU 0: 11 NVLinks, 12 recorded", True)]
    divided = changed("mig_mode/current_mig", "Enabled", gpu=0)
    assert find(document=divided, matrix=MATRIX.replace("NV12", "SYS"), links=one_down) == []
    assert find(matrix="!Failed to run topology matrix") == [
        ("nvlink", "check failed: nvidia-smi: Failed to run topology matrix", False)
    ]


def test_the_matrix_is_read() -> None:
    assert SMI.topology(MATRIX) == {
        "GPU0": {"GPU1": "NV12", "NIC0": "PXB"},
        "GPU1": {"GPU0": "NV12", "NIC0": "SYS"},
        "NIC0": {"GPU0": "PXB", "GPU1": "SYS"},
    }


@pytest.mark.proves("health", "A MIG layout that differs from the recorded setting drains the node.")
@pytest.mark.parametrize(
    ("kept", "text"),
    [
        ({"mig": "", "mig_gpus": {}, "power_limit": "300"}, ""),
        ({"mig": "", "mig_gpus": {"0": "2g.20gb, 3g.40gb"}}, ""),
        ({"mig": "none", "mig_gpus": {"0": "3g.40gb,2g.20gb"}}, ""),
        ({"mig": "3g.40gb,2g.20gb"}, "GPU 1: MIG layout none, expected 3g.40gb,2g.20gb"),
        ({"mig_gpus": {"0": "7g.80gb"}}, "GPU 0: MIG layout 3g.40gb,2g.20gb, expected 7g.80gb"),
    ],
)
def test_a_layout_is_as_it_is_kept(
    find: Find, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kept: dict[str, Any], text: str
) -> None:
    monkeypatch.setattr(NODE, "GPU_SETTINGS", tmp_path / "kept.json")
    (tmp_path / "kept.json").write_text(json.dumps(kept))
    monkeypatch.setattr(CHECKS, "is_gpu_config_running", lambda: False)
    assert find(listing=LISTING) == ([("mig", text, True)] if text else [])
    monkeypatch.setattr(CHECKS, "is_gpu_config_running", lambda: True)
    assert find(listing=LISTING) == []


def test_gpu_config_is_known_at_its_work(tmp_path: Path) -> None:
    """Only root's counts, by its real uid: the files of a process may be root's though it is not."""
    for number, words in enumerate(("python3 - --give {}", "tail -f /usr/local/sbin/gpu-config", "")):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "cmdline").write_bytes(words.replace(" ", "\0").encode())
        (tmp_path / str(number) / "status").write_text("Name:\tpython3\nUid:\t0\t0\t0\t0\n")
    assert not CHECKS.is_gpu_config_running(tmp_path)
    for words in ("/usr/bin/python3 - --given {}", "/usr/bin/python3 /usr/local/sbin/gpu-config"):
        (tmp_path / "2/cmdline").write_bytes(words.replace(" ", "\0").encode())
        assert CHECKS.is_gpu_config_running(tmp_path)
    (tmp_path / "2/status").write_text("Name:\tpython3\nUid:\t1000\t0\t0\t0\n")
    assert not CHECKS.is_gpu_config_running(tmp_path)


def test_of_an_older_drivers_matrix_the_gpus_are_read() -> None:
    found = SMI.topology(MATRIX.replace("NIC0", "mlx5_0"))
    assert found == {"GPU0": {"GPU1": "NV12"}, "GPU1": {"GPU0": "NV12"}}
    decode(health.Answer, ANSWER | {"topology": found})


@pytest.mark.proves("health", "A failed Fabric Manager counts only where it is enabled.")
def test_fabric_manager_counts_where_it_is_enabled(find: Find) -> None:
    assert find(units="ActiveState=failed\nUnitFileState=disabled\n") == []
    assert find(units="ActiveState=failed\nUnitFileState=enabled\n") == [("fabric", "Fabric Manager is failed", True)]


@pytest.mark.proves("health", "An InfiniBand port that was up and is down is reported.")
def test_infiniband_that_was_up_has_to_be(tmp_path: Path) -> None:
    port = tmp_path / "class/net/ib0/device/infiniband/mlx5_0/ports/1"
    port.mkdir(parents=True)
    look = CHECKS.Checks(GIVEN | {"infiniband": ["ib0", "ib1"]}, {})
    (port / "state").write_text("4: ACTIVE\n")
    assert [one.text for one in look.infiniband(tmp_path)] == ["ib1 is missing"]
    (port / "state").write_text("1: DOWN\n")
    assert [one.text for one in look.infiniband(tmp_path)] == ["ib0 is down", "ib1 is missing"]


@pytest.mark.proves("health", "What a GPU lacked when it was recorded is advice.")
def test_advice__recorded_with_less__says_so(tmp_path: Path) -> None:
    for number, (vendor, kind) in enumerate([("0x10de", "0x030200"), ("0x10de", "0x040300"), ("0x8086", "0x030000")]):
        device = tmp_path / f"bus/pci/devices/0000:0{number}:00.0"
        device.mkdir(parents=True)
        (device / "vendor").write_text(f"{vendor}\n")
        (device / "class").write_text(f"{kind}\n")
    state: dict[str, Any] = {"cursor": "", "xids": {}, "stuck": 0}
    one = GIVEN["gpus"][0] | {"width": 16}  # type: ignore[index]
    enough = GIVEN | {"gpus": [one], "cores": 64}
    assert list(CHECKS.Checks(enough, state).advice(tmp_path)) == []
    less = CHECKS.Checks(enough | {"gpus": [one | {"lanes": 8}]}, state)
    assert [(a.text, a.drains) for a in less.advice(tmp_path)] == [
        ("GPU 0: recorded with 8 of its 16 PCIe lanes", False)
    ]
    none = CHECKS.Checks(enough | {"gpus": []}, state)
    assert [a.text for a in none.advice(tmp_path)] == ["NVIDIA GPUs on the PCI bus: 1, recorded: 0"]


def test_advice_never_drains(find: Find) -> None:
    limited = DOCUMENT.replace("<current_power_limit>400.00 W", "<current_power_limit>320.00 W", 1)
    assert find(limited, given={"memory_mb": 24000, "cores": 3}) == [
        ("advice", "24000 MB of memory, 163840 MB are sensible with these GPUs", False),
        ("advice", "3 cores for 2 GPUs, 2 for each are sensible", False),
        ("advice", "GPU 0: limited to 320 W of 400 W", False),
    ]


def test_a_check_can_be_left_out(find: Find) -> None:
    assert find(changed(*FAULTS["ecc"][:2]), given={"skip": ["ecc"]}) == []
    assert find("!silent", given={"skip": ["driver"]}) == []


def test_what_hangs_is_late_in_its_own_time(find: Find, monkeypatch: pytest.MonkeyPatch) -> None:
    look = CHECKS.Checks(GIVEN | {"timeouts": {"fabric": 0.1}}, {"cursor": "", "xids": {}, "stuck": 0})
    with pytest.raises(NODE.CommandError, match=r"sleep 60: no response within 0\.1 s"):
        NODE.run("sleep", "60", seconds=look.timeout("fabric"))
    assert look.timeout("driver") == 30
    assert look.timeout("xid") == 10


@pytest.mark.proves("health", "A fault that can pass drains only if seen twice.")
def test_what_may_be_over_has_to_be_there_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = [[CHECKS.Finding("power", "brake", transient=True), CHECKS.Finding("ecc", "errors")],
             [CHECKS.Finding("ecc", "errors"), CHECKS.Finding("temperature", "hot", transient=True)]]  # fmt: skip
    monkeypatch.setattr(CHECKS, "REPEAT_SECONDS", 0)
    monkeypatch.setattr(CHECKS.Checks, "run", lambda self, *without: looks.pop(0))
    found, _ = CHECKS.check_node(GIVEN, {})
    assert [one.text for one in found] == ["errors"]


def test_the_reason_is_one_short_line_of_ascii() -> None:
    one = CHECKS.Finding("xid", "GPU 1:\x1b[31m bad\nöld")
    assert HEALTH.reason([one]) == "GPU 1:?[31m bad ?ld"
    assert HEALTH.reason([one, CHECKS.Finding("ecc", "x" * 200), CHECKS.Finding("pcie", "y", drains=False)]).endswith(
        "(and 1 more)"
    )
    assert len(HEALTH.reason([CHECKS.Finding("ecc", "x" * 200)])) == 100
    assert HEALTH.reason([CHECKS.Finding("advice", "little", drains=False)]) == ""


# --- what the head takes from it --------------------------------------------------------------------------------------


def said(node: str, reason: str, of: str = "", challenge: str = "c1") -> bytes:
    """What a worker says, sealed with its own key or with that of another."""
    own = hashlib.sha256(f"key{of or node}".encode()).hexdigest()
    seal = hmac.new(own.encode(), f"{challenge} {node} {reason}".encode(), "sha256").hexdigest()
    return f"{node} {seal} {reason}\n".encode()


def test_the_head_believes_a_node_of_itself() -> None:
    assert EAR.understood(said("gpu01", "GPU 1: XID 79"), "key", "c1") == ("gpu01", "GPU 1: XID 79")
    assert EAR.understood(said("gpu01", ""), "key", "c1") == ("gpu01", "")


@pytest.mark.proves("health", "The head refuses reports for another node, replayed or altered.")
@pytest.mark.parametrize(
    "line",
    [
        said("gpu02", "of another", of="gpu01"),
        said("gpu01", "yesterday's", challenge="c0"),
        said("gpu01", "one thing").replace(b"one", b"two"),
        said("gpu01", "cut")[:-1],
        said("gpu01", "control \x1b"),
        said("gpu01,gpu02", "two"),
        said("--forget", "an option"),
        b"",
        b"\xff\n",
    ],
)
def test_the_head_believes_nobody_of_another(line: bytes) -> None:
    with pytest.raises(SystemExit):
        EAR.understood(line, "key", "c1")


@pytest.mark.proves("monitoring", "Only a passed diagnosis removes the drain of an alert.")
@pytest.mark.parametrize(
    ("known", "removed"),
    [
        ({}, ["health"]),
        ({"gpu01": {"health": "GPU 1: XID 79", "alert": "GpuXid"}}, ["health"]),
        ({"gpu02": {"health": EAR.DIAGNOSIS}}, ["health"]),
        ({"gpu01": {"health": EAR.DIAGNOSIS, "alert": "GpuXid"}}, ["alert", "health"]),
    ],
)
def test_causes__of_a_healthy_report__include_alert_after_a_diagnosis(
    known: dict[str, Any], removed: list[str], tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger"
    ledger.write_text(f"#!/bin/sh\ncat <<'END'\n{json.dumps(known)}\nEND\n")
    ledger.chmod(0o755)
    assert EAR.causes(str(ledger), "gpu01") == removed
    assert f'report("{EAR.DIAGNOSIS}")' in inspect.getsource(DIAGNOSIS.diagnose)


@pytest.mark.parametrize("scheduler", ["slurm", "kubernetes"])
def test_worker_and_head_speak_the_same(scheduler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both programs, with a controller that answers and a ledger's program that writes down what it is asked."""
    (tmp_path / "health.key").write_text("key\n")
    (tmp_path / "gpu-health.key").write_text(hashlib.sha256(b"keygpu01").hexdigest() + "\n")
    ledger = tmp_path / "ledger"
    answer = "[ $# -gt 0 ] || { echo '{}'; exit; }\n"
    ledger.write_text(f'#!/bin/sh\n{answer}printf "%s|" "$@" >> {tmp_path}/asked; echo >> {tmp_path}/asked\n')
    ledger.chmod(0o755)
    source = (paths.content() / "roles/slurm_head/files/slurm-health").read_text()
    given = [str(tmp_path / "health.key"), str(ledger)]
    if scheduler == "slurm":
        (tmp_path / "scontrol").write_text("#!/bin/sh\necho 'Slurmctld(primary) at head1 is UP'\n")
        (tmp_path / "scontrol").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        source = source.replace("/etc/slurm", str(tmp_path)).replace("/usr/local/sbin/slurm-drain", str(ledger))
        given = []
    (tmp_path / "ear").write_text(source)
    monkeypatch.setattr(HEALTH, "KEY", tmp_path / "gpu-health.key")
    monkeypatch.setattr(HEALTH, "PORTS", range(30000, 31000))  # whoever runs the tests may have them
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hear() -> None:
            for port in ("700", "1023"):
                line, _ = server.accept()
                with line:
                    subprocess.run(
                        ["python3", str(tmp_path / "ear"), *given],
                        stdin=line.fileno(),
                        stdout=line.fileno(),
                        env={**os.environ, "REMOTE_PORT": port},
                        check=True,
                        timeout=60,
                    )

        thread = threading.Thread(target=hear, daemon=True)
        thread.start()
        configured = GIVEN | {"heads": ["127.0.0.1"], "port": server.getsockname()[1]}
        HEALTH.send(configured, "GPU 1: XID 79")
        HEALTH.send(configured, "")
        thread.join(60)
    assert (tmp_path / "asked").read_text().splitlines() == [
        "health|--out|gpu01|--reason|GPU 1: XID 79|",
        "health|--in|gpu01|",
    ]


@pytest.mark.proves("health", "A worker of Kubernetes reports to another head if one does not respond.")
def test_send__first_head_down__asks_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def send_once(_: dict[str, Any], head: str, *__: object) -> str:
        asked.append(head)
        if head == "10.0.0.10":
            raise ConnectionRefusedError
        return "kept"

    monkeypatch.setattr(HEALTH, "send_once", send_once)
    monkeypatch.setattr(HEALTH.time, "sleep", lambda _: None)
    HEALTH.send(GIVEN | {"heads": ["10.0.0.10", "10.0.0.11"]}, "GPU 1: XID 79")
    assert asked == ["10.0.0.10", "10.0.0.11"]


@contextlib.contextmanager
def heads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *waits: tuple[float, float]
) -> Iterator[tuple[dict[str, Any], list[list[str]]]]:
    """Have heads on addresses of this machine, by the seconds before a challenge and before an answer.

    Yields a node's configuration, and the reports that each head has received.
    """
    (tmp_path / "gpu-health.key").write_text("key\n")
    monkeypatch.setattr(HEALTH, "KEY", tmp_path / "gpu-health.key")
    monkeypatch.setattr(HEALTH, "PORTS", range(30000, 31000))
    received: list[list[str]] = [[] for _ in waits]
    over = threading.Event()

    def head(server: socket.socket, reports: list[str], challenge: float, answer: float) -> None:
        with contextlib.suppress(OSError):  # the client has left, or the test is over
            while True:
                line, _ = server.accept()
                with line, line.makefile("rw") as file:
                    over.wait(challenge)
                    print("challenge", file=file, flush=True)
                    reports.append(file.readline())
                    over.wait(answer)
                    print("kept", file=file, flush=True)

    with contextlib.ExitStack() as stack:
        first = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = first.getsockname()[1]
        others = [stack.enter_context(socket.create_server((f"127.0.0.{at}", port))) for at in range(2, len(waits) + 1)]
        given = GIVEN | {"heads": [f"127.0.0.{at}" for at in range(1, len(waits) + 1)], "port": port}
        for server, reports, wait in zip([first, *others], received, waits, strict=True):
            threading.Thread(target=head, args=(server, reports, *wait), daemon=True).start()
        yield given, received
        over.set()


@pytest.mark.proves("health", "A busy head is waited for; its report is not sent again.")
@pytest.mark.parametrize("wait", [(1.0, 0.0), (0.0, 1.0)], ids=["with its challenge", "with its answer"])
def test_send__head_that_is_late__sends_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wait: tuple[float, float]
) -> None:
    monkeypatch.setattr(HEALTH, "CONNECT_SECONDS", 0.2)
    with heads(monkeypatch, tmp_path, wait) as (given, (reports,)):
        HEALTH.send(given, "")
        assert len(reports) == 1


@pytest.mark.parametrize(
    "stuck",
    [(60.0, 60.0), (0.0, 60.0), (2.0, 60.0)],
    ids=["before its challenge", "before its answer", "after a late challenge"],
)
def test_send__first_head_stuck__leaves_time_for_the_next(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stuck: tuple[float, float]
) -> None:
    """Also for one that needs nearly a quarter of all the time."""
    monkeypatch.setattr(HEALTH, "REPORT_SECONDS", 6)
    with heads(monkeypatch, tmp_path, stuck, (0.0, 1.4)) as (given, (_, reports)):
        HEALTH.send(given, "")
        assert len(reports) == 1


@pytest.mark.parametrize("number", [1, 2, 3])
def test_send__all_heads_stuck__ends_before_slurm_ends_it(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """By a clock of this test. A driver that hangs takes half of the minute that Slurm gives the program."""
    now = 1000.0

    def pass_time(seconds: float) -> None:
        nonlocal now
        now += seconds

    def send_once(_: dict[str, Any], __: str, ___: str, until: float) -> str:
        pass_time(until - now)
        raise TimeoutError

    monkeypatch.setattr(HEALTH, "time", types.SimpleNamespace(monotonic=lambda: now, sleep=pass_time))
    monkeypatch.setattr(HEALTH, "send_once", send_once)
    with pytest.raises(TimeoutError):
        HEALTH.send(GIVEN | {"heads": [f"10.0.0.{at}" for at in range(number)]}, "")
    assert now - 1000 < 25


@pytest.mark.proves("health", "The head refuses a report from an unprivileged port.")
def test_the_head_hears_root_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert HEALTH.PORTS.stop == EAR.ROOTS.stop
    monkeypatch.setenv("REMOTE_PORT", "1024")
    with pytest.raises(SystemExit, match="is not a port of root"):
        EAR.main()
    assert capsys.readouterr().out == ""


def test_what_the_head_may_have_kept_is_said_until_it_answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Though its answer came too late, or Slurm ended the program meanwhile."""
    heard: list[str] = []

    def late(given: dict[str, Any], text: str) -> None:
        heard.append(text)
        raise TimeoutError

    monkeypatch.setattr(HEALTH, "STATE", tmp_path / "state.json")
    monkeypatch.setattr(HEALTH, "send", late)
    with pytest.raises(TimeoutError):
        HEALTH.report(GIVEN, HEALTH.load_state() | {"told": ""}, "GPU 1 is missing")
    monkeypatch.setattr(HEALTH, "send", lambda given, text: heard.append(text))
    state = HEALTH.load_state()
    for _ in range(2):
        HEALTH.report(GIVEN, state, "")
    assert heard == ["GPU 1 is missing", ""]


def test_the_xids_that_wait_for_a_diagnosis_are_published(tmp_path: Path) -> None:
    given, file = GIVEN | {"textfiles": str(tmp_path / "metrics")}, tmp_path / "metrics/gpu-health.prom"
    state = {"xids": {"0000:0f:00": {"79": 1.0, "48": 1.0}, "nvidia-nvswitch0": {"20034": 1.0}}}
    drains = [CHECKS.Finding("xid", "x"), *[CHECKS.Finding("fabric", "x")] * 2, CHECKS.Finding("advice", "x", False)]
    HEALTH.write_metrics(given, state, drains)
    file.parent.mkdir()
    HEALTH.write_metrics(given, state, drains)
    lines = [f'cluster_node_gpu_xid{{gpu="1",xid="{xid}"}} 1' for xid in (79, 48)]
    lines += ['cluster_node_nvswitch_sxid{switch="nvidia-nvswitch0",sxid="20034"} 1']
    lines += [f'cluster_node_gpu_unfit{{check="{check}"}} 1' for check in ("fabric", "xid")]
    assert file.read_text().splitlines() == lines
    assert file.stat().st_mode & 0o777 == 0o644
    HEALTH.write_metrics(given, {"xids": {}}, [])
    assert list(file.parent.iterdir()) == []


def test_publish__link_in_its_way__leaves_what_it_names(tmp_path: Path) -> None:
    (tmp_path / "shadow").write_text("root:*")
    (tmp_path / "shadow").chmod(0o600)
    (tmp_path / "gpu-health.new").symlink_to(tmp_path / "shadow")
    HEALTH.write_metrics(GIVEN | {"textfiles": str(tmp_path)}, {"xids": {"0000:0f:00": {"79": 1.0}}}, [])
    assert (tmp_path / "shadow").read_text() == "root:*"
    assert (tmp_path / "shadow").stat().st_mode & 0o777 == 0o600
    assert "xid" in (tmp_path / "gpu-health.prom").read_text()


@pytest.mark.proves("health", "The device plugin of Kubernetes ends before a GPU is reset.")
def test_device_plugin__running__is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["sleep", "60"]) as plugin, subprocess.Popen(["sleep", "60"]) as other:

        def processes(_: Path) -> list[tuple[Path, list[str]]]:
            alive = plugin.poll() is None
            found = [(Path(f"/proc/{plugin.pid}"), ["/usr/bin/nvidia-device-plugin", "--mig-strategy=none"])] * alive
            return [*found, (Path(f"/proc/{other.pid}"), ["nvidia-persistenced"])]

        monkeypatch.setattr(NODE, "root_processes", processes)
        NODE.end_device_plugin()
        assert plugin.poll() is not None
        assert other.poll() is None
        other.kill()


def test_device_plugin__that_does_not_end__is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["sh", "-c", "trap '' TERM; echo; exec sleep 60"], stdout=subprocess.PIPE) as plugin:
        assert plugin.stdout
        plugin.stdout.readline()
        monkeypatch.setattr(NODE, "root_processes", lambda _: [(Path(f"/proc/{plugin.pid}"), ["nvidia-device-plugin"])])
        monkeypatch.setattr(NODE, "PLUGIN_SECONDS", 0.3)
        with pytest.raises(NODE.CommandError, match=f"process {plugin.pid} does not end"):
            NODE.end_device_plugin()
        plugin.kill()


# --- what the controller takes from it --------------------------------------------------------------------------------

ANSWER: dict[str, Any] = {
    "version": 1,
    "checks": ["driver", "ecc"],
    "recorded": 2,
    "gpus": ["NVIDIA A100-SXM4-80GB"] * 2,
    "findings": [{"check": "ecc", "text": "GPU 1: 2 uncorrected ECC errors", "drains": True}],
    "topology": {"GPU0": {"GPU1": "NV12"}, "GPU1": {"GPU0": "NV12"}},
}


def test_an_answer_is_read_and_judged() -> None:
    found = health.Health("gpu01", "", decode(health.Answer, ANSWER))
    assert not found.fit
    assert found.of(drains=True) == ["ecc: GPU 1: 2 uncorrected ECC errors"]
    advice = ANSWER | {"findings": [{"check": "advice", "text": "little memory", "drains": False}]}
    assert health.Health("gpu01", "", decode(health.Answer, advice)).fit
    assert not health.Health("gpu01", "no contact").fit


@pytest.mark.parametrize(
    "wrong",
    [
        {"findings": [{"check": "e c c", "text": "x", "drains": True}]},
        {"findings": [{"check": "ecc", "text": "x", "drains": "no"}]},
        {"topology": {"GPU0": {"GPU1": "; rm"}}},
        {"topology": {"../x": {}}},
        {"recorded": -1},
    ],
)
def test_what_is_no_answer_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        decode(health.Answer, ANSWER | wrong)


def test_the_topology_is_told_in_a_line_for_each_gpu() -> None:
    answer = decode(health.Answer, ANSWER | {"topology": {"GPU0": {"GPU1": "NV12", "GPU2": "NV12", "NIC0": "PXB"}}})
    assert health.Health("gpu01", "", answer).topology == ("GPU0: NV12 to GPU1, GPU2, PXB to NIC0",)


@pytest.mark.parametrize(
    ("verb", "back", "asked"),
    [
        ("stop", "start", [("stop", "b.service"), ("stop", "c.service"), "inside", ("start", "c.service"),
                           ("start", "b.service")]),
        ("start", "stop", [("start", "a.service"), "inside", ("stop", "a.service")]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("fails", ["nothing", "stop", "inside", "start"])
def test_services_are_as_they_were_after_a_reset_or_diagnosis(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, verb: str, back: str, asked: list[Any], fails: str
) -> None:
    """Of three of them the last two run. Whatever fails, the rest is put back, and what was stopped is known."""
    seen: list[Any] = []
    stopped = tmp_path / "stopped"

    def ask(program: str, *argv: str, seconds: float) -> str:
        if argv[0] == "list-units":
            return "b.service loaded active running something\nc.service loaded active running something\n"
        seen.append(argv)
        if argv in ((fails, "c.service"), (fails, "a.service")):
            raise NODE.CommandError((program, *argv), ["it does not"])
        return ""

    monkeypatch.setattr(DIAGNOSIS, "STOPPED", stopped)
    monkeypatch.setattr(NODE, "run", ask)
    left, after = fails == back, []
    with (
        pytest.raises(NODE.CommandError) if fails in (verb, "inside") else contextlib.nullcontext(),
        DIAGNOSIS.switched(verb, back, "a.service", "b.service", "c.service") as found,
    ):
        after.append(found)
        seen.append("inside")
        assert verb == "start" or stopped.read_text() == "b.service c.service"
        if fails == "inside":
            raise NODE.CommandError(("nvidia-smi",), ["in use"])
    assert seen == [one for one in asked if one != "inside" or fails != verb]
    assert [one.text for found in after for one in found] == (["systemctl: it does not"] if left else [])
    assert verb == "start" or stopped.read_text() == ("c.service" if left else "")


@pytest.fixture
def ill(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, ...]]:
    """A node whose second GPU had an XID, with clocks that are locked; what is asked and said there, in its order."""
    seen: list[tuple[str, ...]] = []

    def ask(*argv: str, seconds: float) -> str:
        if argv[0] == "systemctl":
            return ""
        seen.append(argv)
        return json.dumps({"notes": []})

    for name in ("GPU_SETTINGS", "CLOCK_LOCKS", "GPU_CONFIG"):
        monkeypatch.setattr(NODE, name, tmp_path / f"{name}.json")
    monkeypatch.setattr(HEALTH, "STATE", tmp_path / "STATE.json")
    monkeypatch.setattr(DIAGNOSIS, "STOPPED", tmp_path / "STOPPED.json")
    (tmp_path / "GPU_CONFIG.json").touch()
    (tmp_path / "GPU_SETTINGS.json").write_text('{"mig": "7g.80gb"}')
    locks = {gpu: {"graphics_clock": "1200,1200"} for gpu in ("GPU-a", "GPU-b")}
    (tmp_path / "CLOCK_LOCKS.json").write_text(json.dumps({"driver": 1, "locks": locks}))
    monkeypatch.setattr(NODE, "run", ask)
    monkeypatch.setattr(HEALTH, "send", lambda given, text: seen.append(("reported", text)))
    monkeypatch.setattr(CHECKS.Checks, "run", lambda self, *without: [])
    monkeypatch.setattr(DIAGNOSIS, "boot_time", lambda: 0.0)
    monkeypatch.setitem(NODE.ENVIRONMENT, "PATH", "")
    return seen


RECORD = GIVEN | {"gpus": [{"uuid": "GPU-a", "pci": "00000000:07:00.0", "index": 0},
                           {"uuid": "GPU-b", "pci": "00000000:0F:00.0", "index": 1}]}  # fmt: skip


def diagnose(state: dict[str, Any]) -> Any:
    return DIAGNOSIS.diagnose(RECORD, state, lambda text: HEALTH.report(RECORD, state, text))


def diagnosed() -> tuple[list[str], dict[str, Any]]:
    """What a diagnosis of it finds, and the state that is kept then."""
    state = HEALTH.load_state() | {"xids": {"0000:0f:00": {"79": 1.0}}}
    found, _ = diagnose(state)
    assert all(one.drains for one in found)
    return [one.text for one in found], state


def test_after_a_reset_all_is_set_again_while_the_node_is_out(ill: list[tuple[str, ...]], tmp_path: Path) -> None:
    found, state = diagnosed()
    assert (found, state["xids"]) == ([], {})
    assert ill == [
        ("reported", "a diagnosis is under way"),
        ("nvidia-smi", "--gpu-reset", "-i", "GPU-b"),
        (str(NODE.GPU_CONFIG), "--given", '{"mig": "7g.80gb"}', "--drained"),
    ]
    assert list(json.loads((tmp_path / "CLOCK_LOCKS.json").read_text())["locks"]) == ["GPU-a"]


@pytest.mark.proves("health", "A diagnosis after a reboot ends the drain by an alert, too.")
def test_diagnosis__without_a_gpu_to_reset__is_reported_as_one(ill: list[tuple[str, ...]]) -> None:
    """By the report the head knows that what comes next is the result of a diagnosis, and removes the cause `alert`."""
    state = HEALTH.load_state() | {"xids": {"0000:0f:00": {"119": -1.0}}}  # before the start of the system
    assert diagnose(state)[0] == []
    assert state["xids"] == {}
    assert ill == [("reported", EAR.DIAGNOSIS)]


def test_a_service_that_does_not_come_back_is_told_and_the_rest_goes_on(
    ill: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = NODE.run

    def ask(*argv: str, seconds: float) -> str:
        if argv[:2] == ("systemctl", "start"):
            raise NODE.CommandError(argv, [f"{argv[2]} does not start"])
        return (
            "nvidia-dcgm.service loaded" if argv[:2] == ("systemctl", "list-units") else before(*argv, seconds=seconds)
        )

    monkeypatch.setattr(NODE, "run", ask)
    found, state = diagnosed()
    assert found == ["systemctl: nvidia-dcgm.service does not start"]
    assert state["xids"]
    assert [argv[0] for argv in ill[1:]] == ["nvidia-smi", str(NODE.GPU_CONFIG)]
    assert DIAGNOSIS.STOPPED.read_text() == "nvidia-dcgm.service"


@pytest.mark.proves("health", "Settings that a reset lost and cannot be restored keep the node drained.")
@pytest.mark.parametrize("answer", ['{"notes": ["GPU 1: it waits"]}', "no JSON", ""])
def test_what_could_not_be_set_again_keeps_the_node_out(
    ill: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    def ask(*argv: str, seconds: float) -> str:
        if argv[0] == str(NODE.GPU_CONFIG) and not answer:
            raise NODE.CommandError(argv, ["no room"])
        return answer if argv[0] == str(NODE.GPU_CONFIG) else ""

    monkeypatch.setattr(NODE, "run", ask)
    found, state = diagnosed()
    assert len(found) == 1
    assert found[0].startswith("settings are not restored after the reset: ")
    assert state["xids"]


@pytest.mark.proves("health", "A diagnosis resets no GPU before the head has drained the node.")
def test_nothing_is_reset_that_jobs_may_come_to(ill: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    def deaf(given: dict[str, Any], text: str) -> None:
        raise TimeoutError

    monkeypatch.setattr(HEALTH, "send", deaf)
    with pytest.raises(TimeoutError):
        diagnosed()
    assert ill == []
