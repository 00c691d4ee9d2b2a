#!/usr/bin/env python3
"""Check the GPUs that a node shows through NVML, with NVIDIA's own nvidia-ml-py.

Stands alone: copied to a node together with pynvml.py and run there. Exit 0 if all holds; else the first thing that
does not, as an AssertionError.

    nvml_check.py --count 4 --name "NVIDIA A100-SXM4-80GB" --memory-mib 81920 --driver 550.163.01 [--uuids GPU-a,GPU-b]
"""

from __future__ import annotations

import argparse
import json
import re

import pynvml


def check(count: int, name: str, memory_mib: int, driver: str, uuids: list[str] | None) -> list[dict[str, object]]:
    """Assert what NVML says of this node; return it. `uuids`, if given, are those expected, in order of index."""
    assert pynvml.nvmlSystemGetDriverVersion() == driver, pynvml.nvmlSystemGetDriverVersion()
    assert pynvml.nvmlSystemGetNVMLVersion().endswith(driver), pynvml.nvmlSystemGetNVMLVersion()
    assert pynvml.nvmlSystemGetCudaDriverVersion() >= 12000
    assert pynvml.nvmlDeviceGetCount() == count, f"{pynvml.nvmlDeviceGetCount()} devices, expected {count}"

    found: list[dict[str, object]] = []
    for index in range(count):
        device = pynvml.nvmlDeviceGetHandleByIndex(index)
        uuid = pynvml.nvmlDeviceGetUUID(device)
        memory = pynvml.nvmlDeviceGetMemoryInfo(device)
        pci = pynvml.nvmlDeviceGetPciInfo(device)
        assert pynvml.nvmlDeviceGetIndex(device) == index
        assert pynvml.nvmlDeviceGetName(device) == name, pynvml.nvmlDeviceGetName(device)
        assert re.fullmatch(r"GPU(-[0-9a-f]{4,12}){5}", uuid), uuid
        assert memory.total == memory_mib * 1024**2, memory.total
        assert memory.used + memory.free == memory.total
        assert 0 < pynvml.nvmlDeviceGetTemperature(device, pynvml.NVML_TEMPERATURE_GPU) < 110
        assert 0 < pynvml.nvmlDeviceGetPowerUsage(device) < pynvml.nvmlDeviceGetEnforcedPowerLimit(device)
        assert any(pynvml.nvmlDeviceGetCpuAffinity(device, 16)), "no CPU is near the device"
        by_uuid = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        by_bus = pynvml.nvmlDeviceGetHandleByPciBusId(pci.busId)
        assert [pynvml.nvmlDeviceGetIndex(handle) for handle in (by_uuid, by_bus)] == [index, index]
        found.append(
            {
                "index": index,
                "minor": pynvml.nvmlDeviceGetMinorNumber(device),
                "uuid": uuid,
                "serial": pynvml.nvmlDeviceGetSerial(device),
                "pci": pci.busId,
            }
        )
    for key in ("minor", "uuid", "serial", "pci"):
        assert len({entry[key] for entry in found}) == count, f"two devices share their {key}"
    if uuids is not None:
        assert [entry["uuid"] for entry in found] == uuids, found
    return found


def main() -> None:
    """Read the expectations from the command line and print what was found as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--memory-mib", type=int, required=True)
    parser.add_argument("--driver", required=True)
    parser.add_argument("--uuids", type=lambda text: text.split(","))
    wanted = parser.parse_args()
    pynvml.nvmlInit()
    try:
        print(json.dumps(check(wanted.count, wanted.name, wanted.memory_mib, wanted.driver, wanted.uuids), indent=1))
    finally:
        pynvml.nvmlShutdown()


if __name__ == "__main__":
    main()
