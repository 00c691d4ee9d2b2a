"""`clusterctl lab fault`: what each fault changes, the kernel's words, and what is refused untouched."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from clusterctl.lab import fault
from clusterctl.lab import image as lab_files
from clusterctl.lab.cli import app
from clusterctl.lab.lab import Lab
from clusterctl.lab.podman import LabError
from clusterctl.lab.settings import Settings, gpu_models

from .test_gpu_samples import SAMPLES
from .test_nvml_symbols import library  # noqa: F401 - a fixture

A100, V100 = fault.read_profile("a100-sxm4-80gb"), fault.read_profile("v100-sxm2-32gb")
NAMES = sorted(fault.FAULTS.keys() - {"clear"})


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A lab that has been described and has no containers."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    lab = Lab("described")
    lab.directory.mkdir(parents=True)
    (lab.directory / ".lab").mkdir()
    lab._write_private(Settings("described", workers=1, subnet="10.213.0.0/24"), [])
    return lab


NO_FABRIC = {"a100-pcie-40gb", "a100-sxm4-80gb", "h100-pcie-80gb", "l40s", "t4", "v100-sxm2-32gb"}
# Which models lack the part of a fault; every other fault applies to every model.
REFUSED = {
    "row-remap": {"t4", "v100-sxm2-32gb"},
    "nvlink-down": {"a100-pcie-40gb", "h100-pcie-80gb", "l40s", "t4"},
    "fabric-down": NO_FABRIC,
    "fabric-degraded": NO_FABRIC,
    "nvswitch": {"a100-pcie-40gb", "h100-pcie-80gb", "l40s", "t4", "v100-sxm2-32gb"},
}
IN_NVML = [name for name in NAMES if name != "nvswitch"]  # of a switch NVML says nothing
APPLICABLE = [(name, model) for name in IN_NVML for model in gpu_models() if model not in REFUSED.get(name, ())]

# The library has fixed paths. This shows it a node's files below the directory NODE; the library itself is unmodified.
PATHS = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
static const char *place(const char *path, char *buffer) {
    if (strncmp(path, "/dev/nvidia", 11) != 0 && strncmp(path, "/lib/firmware/nvidia/", 21) != 0) return path;
    snprintf(buffer, 4096, "%s%s", getenv("NODE"), path);
    return buffer;
}
int open(const char *path, int flags, ...) { char b[4096]; return openat(AT_FDCWD, place(path, b), flags, 0600); }
int stat(const char *path, struct stat *out) { char b[4096]; return fstatat(AT_FDCWD, place(path, b), out, 0); }
FILE *fopen(const char *path, const char *mode) {
    char b[4096];
    int file = openat(AT_FDCWD, place(path, b), O_RDONLY | O_CLOEXEC);
    return file < 0 ? NULL : fdopen(file, "r");
}
"""
# Prints what NVIDIA's nvidia-ml-py reads of both GPUs, once for each line on standard input. Times become "since when".
OBSERVER = r"""
import json, sys
from pynvml import *
def asked(function, *arguments):
    try:
        found = function(*arguments)
    except NVMLError as error:
        return str(error)
    return found if isinstance(found, (int, list)) else [str(found)]
def read(gpu):
    try:
        device = nvmlDeviceGetHandleByIndex(gpu)
        number = nvmlDeviceGetIndex(device)
    except NVMLError as error:
        return {"no device": str(error)}
    if number != gpu:
        return {"number": number}
    (reset,) = nvmlDeviceGetFieldValues(device, [NVML_FI_DEV_RESET_STATUS])
    found = {"name": asked(nvmlDeviceGetName, device), "reset": reset.value.ullVal}
    for counter, number in (("volatile", NVML_VOLATILE_ECC), ("aggregate", NVML_AGGREGATE_ECC)):
        found[counter] = asked(nvmlDeviceGetTotalEccErrors, device, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, number)
    found["rows"] = asked(lambda: list(nvmlDeviceGetRemappedRows(device)))
    cause = NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR
    found["pages"] = asked(lambda: len(nvmlDeviceGetRetiredPages(device, cause)))
    found["pages pending"] = asked(nvmlDeviceGetRetiredPagesPendingStatus, device)
    found["links"] = [asked(nvmlDeviceGetNvLinkState, device, link) for link in range(18)]
    found["link errors"] = [asked(nvmlDeviceGetNvLinkErrorCounter, device, link, 0) for link in range(18)]
    found["temperature"] = asked(nvmlDeviceGetTemperature, device, NVML_TEMPERATURE_GPU)
    found["temperature, newer"] = asked(nvmlDeviceGetTemperatureV, device, NVML_TEMPERATURE_GPU)
    found["reasons"] = asked(nvmlDeviceGetCurrentClocksThrottleReasons, device)
    for policy in (NVML_PERF_POLICY_POWER, NVML_PERF_POLICY_THERMAL):
        found[f"slow {policy}"] = asked(lambda: int(nvmlDeviceGetViolationStatus(device, policy).violationTime > 0))
    found["lanes"] = asked(nvmlDeviceGetCurrPcieLinkWidth, device)
    def fabric():
        info = c_nvmlGpuFabricInfo_v2_t()
        nvmlDeviceGetGpuFabricInfoV(device, byref(info))
        return [info.state, info.healthMask]
    found["fabric"] = asked(fabric)
    def load():
        rates = nvmlDeviceGetUtilizationRates(device)
        return [rates.gpu, rates.memory]
    found["load"] = asked(load)
    return found
for line in sys.stdin:
    nvmlInit()
    print(json.dumps([read(0), read(1)]), flush=True)
    nvmlShutdown()
"""
Readings = list[dict[str, Any]]


@dataclass
class Node:
    """A node's files, and a process that has the simulated library in its address space."""

    directory: Path
    process: "subprocess.Popen[str]"

    def read(self, model: str, state: Mapping[str, int | str]) -> Readings:
        """What NVML says of two GPUs when the first one has this state."""
        profile = (lab_files.HERE / "nvml" / "profiles" / f"{model}.conf").read_text()
        texts = {
            "": f"{profile}gpus=2\nnode_seed=unit/test\n",
            "_kept": "",
            "_state": "".join(f"{key}.0={value}\n" for key, value in state.items()),
        }
        for name, text in texts.items():
            path = self.directory / f"lib/firmware/nvidia/550.163.01/gsp_simulated{name}.bin"
            new = path.with_suffix(".new")
            new.write_text(text)
            new.rename(path)  # another inode: the library reads it again
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        found: Readings = json.loads(self.process.stdout.readline() or "null")
        assert found, "the observer has ended"
        return found


@pytest.fixture(scope="module")
def node(
    library: Path,  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Node]:
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    directory = tmp_path_factory.mktemp("node")
    (directory / "lib/firmware/nvidia/550.163.01").mkdir(parents=True)
    (directory / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (directory / "dev" / name).touch()
    preload = directory / "paths.so"
    argv = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(preload)]
    subprocess.run(argv, input=PATHS, text=True, check=True, timeout=60)
    environment = {"LD_PRELOAD": str(preload), "LD_LIBRARY_PATH": str(library.parent), "NODE": str(directory)}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", OBSERVER], env=environment, **pipes) as process:
        try:
            yield Node(directory, process)
        finally:
            process.kill()


@pytest.mark.proves("lab", "Each value of a simulated fault changes what NVML reports of that GPU only.")
@pytest.mark.parametrize(("name", "model"), APPLICABLE)
def test_fault__on_a_gpu__library_reads_every_line_of_it(node: Node, name: str, model: str) -> None:
    """Each line that a fault sets changes what NVML says of that GPU, and of no other."""
    made = fault.change(name, None, fault.read_profile(model), 1)
    state = {**made.state, **made.kept}
    assert state
    assert state.keys() <= set(fault.KEYS), "`clear` would leave some of it"
    sound, ill = node.read(model, {}), node.read(model, state)
    assert ill[0] != sound[0]
    if name == "gpu-gone":
        assert ill == [{"number": 1}, {"no device": "Invalid Argument"}], "the other one keeps its number"
        return
    assert ill[1] == sound[1]
    for key in state:
        without = node.read(model, {other: value for other, value in state.items() if other != key})
        assert without[0] != ill[0], f"NVML says the same without {key}"
    assert node.read(model, {}) == sound


@pytest.mark.proves("lab", "A function that is newer than the simulated driver is not found.")
def test_function__of_newer_drivers__is_not_found_before(node: Node) -> None:
    """nvitop and others ask for the newer one first, and take the older one only where it is not found."""
    older, newer = node.read("a100-sxm4-80gb", {})[0], node.read("b200-sxm-180gb", {})[0]
    assert older["temperature, newer"] == "Function Not Found"
    assert newer["temperature, newer"] == newer["temperature"]


# What a container reads that has its node's root in a directory: the devices are its own, all else is below that root.
IN_CONTAINER = r"""
import sys
from pynvml import *
nvmlInit()
events = nvmlEventSetCreate()
nvmlDeviceRegisterEvents(nvmlDeviceGetHandleByIndex(1), nvmlEventTypeXidCriticalError, events)
with open(sys.argv[1] + "/run/simulated-nvml/events", "a") as list_:
    list_.write("1 8 79\n")
print(nvmlDeviceGetCount(), nvmlEventSetWait_v2(events, 1000).eventData)
"""


@pytest.mark.proves("lab", "In a container with its node's root the simulated library finds GPUs and events there.")
def test_library__loaded_from_a_nodes_root__reads_that_nodes_files(
    node: Node,
    library: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    """As NVIDIA's device plugin loads it, from /driver-root; the links to the configuration lead there, too."""
    root = tmp_path / "driver-root"
    below = next(path for path in library.parents if (path / "usr").is_dir())
    shutil.copytree(below, root, symlinks=True)
    (root / "lib").symlink_to("usr/lib")
    for folder in ("etc", "run/simulated-nvml"):
        (root / folder).mkdir(parents=True)
    profile = (lab_files.HERE / "nvml" / "profiles" / "t4.conf").read_text()
    (root / "etc/simulated-nvml.conf").write_text(f"{profile}gpus=2\nnode_seed=unit/test\n")
    (root / "run/simulated-nvml/events").touch()
    environment = {
        "LD_PRELOAD": str(node.directory / "paths.so"),
        "LD_LIBRARY_PATH": str(root / library.parent.relative_to(below)),
        "NODE": str(node.directory),
    }
    argv = [sys.executable, "-c", IN_CONTAINER, str(root)]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "2 79\n", done.stderr


@pytest.mark.proves("lab", "A fault that a GPU model cannot have is refused.")
@pytest.mark.parametrize("name", REFUSED)
def test_fault__model_without_the_part__is_refused(name: str) -> None:
    for model in REFUSED[name]:
        profile = fault.read_profile(model)
        with pytest.raises(LabError, match=f"{name}: {profile['name']} has no part with this fault"):
            fault.change(name, None, profile, 1)


def test_what_depends_on_the_model() -> None:
    assert "remapped_uncorrected" in fault.change("ecc", None, A100, 1).kept
    assert "retired_pages" in fault.change("ecc", None, V100, 1).kept
    assert fault.change("hot", None, A100, 7).state == {"temperature": 90, "violation_thermal_since": 7}


def test_fault__of_a_switch__is_a_line_that_a_server_wrote() -> None:
    (line,) = fault.change("nvswitch", None, A100, 1).kernel
    assert line in (SAMPLES / "xid/lines-others.txt").read_text().splitlines()


def test_xids() -> None:
    assert fault.change("gpu-xid", 79, A100, 1) == fault.change("gpu-lost", None, A100, 1)
    assert fault.change("gpu-xid", 13, A100, 1) == fault.Change(xids=(13,))
    assert fault.change("gpu-xid", 119, A100, 1) == fault.Change({"reset_required": 1}, xids=(119,))
    lost = "pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    assert fault.kernel_line(79, 2, A100) == f"NVRM: Xid (PCI:0000:47:00): 79, {lost}"
    assert fault.kernel_line(999, 9, A100) == "NVRM: Xid (PCI:0001:0f:00): 999, pid='<unknown>', name=<unknown>"


@pytest.mark.proves("lab", "An unknown fault, node or GPU is refused with the nearest name or choices.")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gpu01", "gpu-xit", "79"], "gpu-xit: no such fault; did you mean gpu-xid?"),
        (["gpu01", "frobnicate"], "frobnicate: no such fault; choose from gpu-xid, gpu-lost, gpu-gone"),
        (["gpu1", "hot"], "lab described has no node gpu1; did you mean gpu01?"),
        (["gpu01", "hot", "--gpu", "4"], "gpu01 has no GPU 4; its GPUs: 0, 1, 2, 3"),
        (["head1", "hot"], "head1 has no GPUs"),
        (["gpu01", "gpu-xid"], "gpu-xid: an XID is missing, for example 79"),
        (["gpu01", "hot", "79"], "hot: accepts no number"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else None,
)
def test_what_cannot_be_is_refused_with_the_nearest_name(lab: Lab, arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["fault", "--name", lab.name, *arguments])
    assert isinstance(done.exception, LabError)
    assert done.exception.exit_code == 2
    assert said in str(done.exception)


def test_a_lab_that_is_not_there_is_named() -> None:
    with pytest.raises(LabError, match="there is no lab named nowhere; create it: clusterctl lab up --name nowhere"):
        Lab("nowhere").fault("gpu01", "hot", None, None)
