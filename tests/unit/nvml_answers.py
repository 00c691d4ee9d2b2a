"""Print how NVML answers each of these calls about GPU 0, as JSON: an error's number, or the type of a field's value.

Run as a program, with nvidia-ml-py: on the simulated library by test_nvml_answers.py, once on a real GPU for
tests/samples/gpu/nvml.
"""

import ctypes
import json
from collections.abc import Callable
from typing import Any

import pynvml

PLAIN = (
    "Name", "UUID", "Serial", "VbiosVersion", "BoardPartNumber", "InforomImageVersion", "Brand", "Architecture",
    "NumGpuCores", "MemoryBusWidth", "MinorNumber", "ModuleId", "BoardId", "MultiGpuBoard", "Index", "PciInfo",
    "CudaComputeCapability", "GspFirmwareVersion", "GspFirmwareMode", "ComputeMode", "PersistenceMode",
    "DisplayActive", "DisplayMode", "AccountingMode", "AccountingBufferSize", "VirtualizationMode", "EccMode",
    "DefaultEccMode", "MemoryInfo", "BAR1MemoryInfo", "ComputeRunningProcesses", "GraphicsRunningProcesses",
    "UtilizationRates", "EncoderUtilization", "DecoderUtilization", "MaxPcieLinkGeneration", "CurrPcieLinkGeneration",
    "GpuMaxPcieLinkGeneration", "MaxPcieLinkWidth", "CurrPcieLinkWidth", "PcieReplayCounter", "SupportedMemoryClocks",
    "PerformanceState", "CurrentClocksEventReasons", "SupportedClocksEventReasons", "PowerUsage",
    "PowerManagementMode", "PowerManagementLimit", "EnforcedPowerLimit", "PowerManagementDefaultLimit",
    "TotalEnergyConsumption", "RowRemapperHistogram", "PowerManagementLimitConstraints", "RemappedRows",
    "RetiredPagesPendingStatus", "MigMode", "MaxMigDeviceCount", "FanSpeed",
)  # fmt: skip
CALLS: dict[str, list[tuple[int, ...]]] = {
    **{name: [()] for name in PLAIN},
    "ClockInfo": [(kind,) for kind in range(4)],
    "MaxClockInfo": [(kind,) for kind in range(4)],
    "ApplicationsClock": [(kind,) for kind in range(3)],
    "DefaultApplicationsClock": [(kind,) for kind in range(3)],
    "TemperatureThreshold": [(kind,) for kind in range(8)],
    "Temperature": [(sensor,) for sensor in range(2)],
    "TotalEccErrors": [(kind, counter) for kind in range(2) for counter in range(2)],
    "MemoryErrorCounter": [(kind, counter, place) for kind in range(2) for counter in range(2) for place in range(9)],
    "ViolationStatus": [(policy,) for policy in range(8)],
    "RetiredPages": [(cause,) for cause in range(2)],
    "InforomVersion": [(part,) for part in range(4)],
    "NvLinkState": [(link,) for link in range(18)],
    "CpuAffinity": [(16,)],
}
# The fields that DCGM and nvidia-smi ask for; those of NVLink need one.
FIELDS = (*range(1, 9), 11, 12, 22, 23, *range(29, 32), *range(74, 84), 94, *range(142, 146), 184, *range(185, 191),
          *range(192, 197), 226, 230)  # fmt: skip


def error_of(function: Callable[..., Any], *arguments: Any) -> int:
    """Return the number of the error of a call, 0 if there is none."""
    try:
        function(*arguments)
    except pynvml.NVMLError as error:
        return int(error.value)
    return 0


def field_of(gpu: Any, number: int) -> str:
    """Return the type of a field's value, or the error."""
    field = (pynvml.c_nvmlFieldValue_t * 1)()
    field[0].fieldId = number
    pynvml.nvmlLib.nvmlDeviceGetFieldValues(gpu, 1, field)
    return f"error {field[0].nvmlReturn}" if field[0].nvmlReturn else f"type {field[0].valueType}"


def main() -> None:
    pynvml.nvmlInit()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    found: dict[str, int | str] = {}
    for name, calls in CALLS.items():
        for arguments in calls:
            label = "/".join((name, *map(str, arguments)))
            found[label] = error_of(getattr(pynvml, f"nvmlDeviceGet{name}"), gpu, *arguments)
    found.update({f"field {number}": field_of(gpu, number) for number in FIELDS})
    found["version"] = pynvml.nvmlSystemGetNVMLVersion().partition(".")[0]
    pynvml.nvmlLib.nvmlErrorString.restype = ctypes.c_char_p
    found.update({f"text {code}": pynvml.nvmlLib.nvmlErrorString(code).decode() for code in range(31)})
    found["text 999"] = pynvml.nvmlLib.nvmlErrorString(999).decode()
    print(json.dumps(found, indent=0))


if __name__ == "__main__":
    main()
