"""Faults of simulated GPUs: the changes in the state that NVML reads on the node, and the kernel's log lines."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from clusterctl.lab.podman import LabError, run_as_root

HERE = Path(__file__).resolve().parent
LOST = 79
_XID, _DOUBLE_BIT = 8, 2  # types of events, as NVML numbers them

# The driver's log text for an XID (NVIDIA's catalogue). For any other XID the line has only the number.
_XIDS = {
    13: "Graphics Exception: ESR 0x504730=0x109009c",
    31: "MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f2c_b5b3c000.",
    43: "GPU stopped processing",
    45: "Preemptive Removal",
    48: "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at partition 6.",
    63: "Row Remapper: New row marked for remapping, reset gpu to activate.",
    64: "Row Remapper: Failed to remap a row.",
    74: "NVLink: fatal error detected on link 0",
    LOST: "GPU has fallen off the bus.",
    94: "Contained: memory error",
    95: "Uncontained: memory error. RST: Yes",
    119: "Timeout after 6s of waiting for RPC response from GPU GSP!",
}
# After these XIDs the GPU works again only after a reset.
_NEEDS_RESET = {48, 62, 63, 64, 74, 95, 109, 110, 119, 120, 136, 140, 143}


@dataclass(frozen=True)
class Change:
    """Changes of the node's state by key: `state` ends with a reset or boot, `kept` does not; and the XIDs reported."""

    state: Mapping[str, int | str] = field(default_factory=dict)
    kept: Mapping[str, int | str] = field(default_factory=dict)
    xids: tuple[int, ...] = ()
    kernel: tuple[str, ...] = ()
    """Lines of the kernel's log besides those of the XIDs."""


# Each fault's description for the command's help; `change` has its effect.
FAULTS = {
    "gpu-xid": "the driver reports the XID of this number",
    "gpu-lost": f"the GPU has fallen off the bus (XID {LOST})",
    "gpu-gone": f"the GPU has fallen off the bus and the driver no longer lists it (XID {LOST})",
    "gpu-reset": "the GPU requires a reset: the driver cannot read it (XID 119)",
    "ecc": "an uncorrected memory error; the next reset retires the row or page (XID 48, 63)",
    "row-remap": "a row with errors could not be remapped (XID 64)",
    "nvlink-down": "a link has failed (XID 74)",
    "hot": "the temperature is above the model's slowdown threshold",
    "power-brake": "the power supply requests lower clocks",
    "pcie-width": "half of the PCI Express lanes are lost",
    "fabric-down": "the fabric manager has not started the NVSwitch fabric",
    "fabric-degraded": "the NVSwitch fabric has lost some of its bandwidth",
    "nvswitch": "a switch of the NVSwitch fabric reports a fatal error (SXid 20034)",
    "busy": "no fault: the GPU computes at full load",
    "clear": "remove all faults",
}
# Keys that a fault may have set and `clear` removes.
KEYS = (
    "fault", "reset_required", "ecc_volatile_uncorrected", "ecc_aggregate_uncorrected", "remapped_pending",
    "remapped_uncorrected", "remapped_failure", "retired_pages", "retired_pending", "nvlink_down", "nvlink_errors",
    "temperature", "violation_thermal_since", "power_brake", "violation_power_since", "pcie_width_current",
    "fabric_state", "fabric_health", "process", "utilization_gpu", "utilization_memory",
)  # fmt: skip
# As gpud's tests have it, from a server (github.com/leptonai/gpud, components/accelerator/nvidia/sxid).
_SXID = "nvidia-nvswitch0: SXid (PCI:0000:00:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"
_AMPERE, _HOPPER = 7, 9  # architectures, as NVML numbers them


def change(fault: str, xid: int | None, profile: Mapping[str, str], now: int) -> Change:
    """Return the changes of a fault (not `clear`) on a GPU of this model; LabError if the model lacks that part."""

    def number(key: str) -> int:
        return int(profile[key], 0)

    reset = {"reset_required": 1}
    remaps, links = number("architecture") >= _AMPERE, number("nvlink_links")
    fabric = number("architecture") >= _HOPPER and profile["nvlink_peers"] == "switch"
    if fault == "gpu-xid" and xid is not None and xid != LOST:
        return Change(reset if xid in _NEEDS_RESET else {}, xids=(xid,))
    changes = {
        "gpu-xid": Change({"fault": "lost"}, xids=(LOST,)),
        "gpu-lost": Change({"fault": "lost"}, xids=(LOST,)),
        "gpu-gone": Change({"fault": "gone"}, xids=(LOST,)),
        "gpu-reset": Change({**reset, "fault": "reset"}, xids=(119,)),
        "ecc": Change(
            {**reset, "ecc_volatile_uncorrected": 1, ("remapped_pending" if remaps else "retired_pending"): 1},
            {"ecc_aggregate_uncorrected": 1, ("remapped_uncorrected" if remaps else "retired_pages"): 1},
            (48, 63),
        ),
        "row-remap": Change(reset, {"remapped_failure": 1}, (64,)) if remaps else None,
        "nvlink-down": Change({**reset, "nvlink_down": "0", "nvlink_errors": 17}, xids=(74,)) if links else None,
        "hot": Change({"temperature": number("temperature_slowdown") + 1, "violation_thermal_since": now}),
        "power-brake": Change({"power_brake": 1, "violation_power_since": now}),
        "pcie-width": Change({"pcie_width_current": number("pcie_width_slot") // 2}),
        "fabric-down": Change({"fabric_state": 2}) if fabric else None,
        "fabric-degraded": Change({"fabric_health": 1}) if fabric else None,
        "nvswitch": Change(kernel=(_SXID,)) if profile["nvlink_peers"] == "switch" else None,
        "busy": Change({"utilization_gpu": 100, "utilization_memory": 60}),
    }
    found = changes[fault]
    if found is None:
        raise LabError(f"{fault}: {profile['name']} has no part with this fault")
    return found


def read_profile(model: str) -> dict[str, str]:
    """Return a model's profile, `key` -> value."""
    lines = (HERE / "nvml" / "profiles" / f"{model}.conf").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def kernel_line(xid: int, gpu: int, profile: Mapping[str, str]) -> str:
    """Return the line that NVIDIA's driver writes to the kernel's log for an XID."""
    buses = profile["pci_buses"].split(",")
    place = f"{gpu // len(buses):04x}:{buses[gpu % len(buses)].lower()}:00"
    description = f", {_XIDS[xid]}" if xid in _XIDS else ""
    return f"NVRM: Xid (PCI:{place}): {xid}, pid='<unknown>', name=<unknown>{description}"


def inject(container: str, fault: str, xid: int | None, model: str, gpus: Sequence[int]) -> None:
    """Inject a fault into GPUs of a running node, or clear all faults there."""
    profile = read_profile(model)
    request: dict[str, list[str]] = {"drop": [], "state": [], "kept": [], "events": [], "kernel": []}
    for gpu in gpus:
        made = Change() if fault == "clear" else change(fault, xid, profile, int(time.time()))
        dropped = KEYS if fault == "clear" else (*made.state, *made.kept)
        request["drop"] += [f"{key}.{gpu}=" for key in dropped]
        request["state"] += [f"{key}.{gpu}={value}" for key, value in made.state.items()]
        request["kept"] += [f"{key}.{gpu}={value}" for key, value in made.kept.items()]
        request["events"] += [f"{gpu} {_XID} {number}" for number in made.xids]
        request["events"] += [f"{gpu} {_DOUBLE_BIT} 0"] if fault == "ecc" else []
        request["kernel"] += [*(kernel_line(number, gpu, profile) for number in made.xids), *made.kernel]
    script = (HERE / "nvml" / "inject.py").read_text()
    run_as_root(["podman", "exec", "--interactive", container, "python3", "-", json.dumps(request)], stdin=script)
