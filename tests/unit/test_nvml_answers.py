"""The simulated H100 answers NVML's calls as a real one: the same errors, types of values and texts.

tests/samples/gpu/nvml has what nvml_answers.py printed on an H100 in a virtual machine without NVLinks, driver 580.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from clusterctl import lab

HERE = Path(__file__).parent
NVML = Path(lab.__file__).parent / "nvml"
REAL = json.loads((HERE.parent / "samples/gpu/nvml/h100-80gb-hbm3-vm-driver-580.159.04.json").read_text())
VERSION = "580.159.04"
# Opens any file in place of a device.
OPEN = """
#include <fcntl.h>
#include <string.h>
static inline int open_device(const char *path, int flags, ...) {
    return open(strncmp(path, "/dev/nvidia", 11) == 0 ? "/dev/null" : path, flags, 0644);
}
#define open(...) open_device(__VA_ARGS__)
"""
# The simulation counts errors of the DRAM in these fields for older nvidia-smi, a real H100 does not have them.
DIFFERENT = {"field 11", "field 12", "field 22", "field 23"}


@pytest.mark.proves("lab", "A simulated H100 answers NVML as a real one, in errors and types.")
def test_answers__of_a_simulated_h100__are_those_of_a_real_one(tmp_path: Path) -> None:
    if not shutil.which("gcc"):
        pytest.skip("no C compiler")
    stubs, folder = tmp_path / "stubs.inc", tmp_path / "lib"
    firmware = folder / "firmware/nvidia" / VERSION
    firmware.mkdir(parents=True)
    lines = [line.split() for line in (NVML / "symbols.txt").read_text().splitlines()]
    stubs.write_text("".join(f"STUB({name[0]}, {(*name, '0')[1]})\n" for name in lines))
    (tmp_path / "open.h").write_text(OPEN)
    sources = sorted((NVML / "source").glob("*.c"))
    options = [f"-I{tmp_path}", f'-DDRIVER_VERSION="{VERSION}"', "-include", str(tmp_path / "open.h")]
    output = ["-Wl,-soname,libnvidia-ml.so.1", "-o", str(folder / "libnvidia-ml.so.1")]
    subprocess.run([str(NVML / "compile.sh"), *options, *output, *map(str, sources)], check=True)
    profile = (NVML / "profiles/h100-sxm5-80gb.conf").read_text()
    alone = "gpus=1\nnode_seed=gpu01\nnvlink_peers=none\nnvlink_links=none\n"
    (firmware / "gsp_simulated.bin").write_text(profile + alone)
    program = [sys.executable, str(HERE / "nvml_answers.py")]
    done = subprocess.run(
        program, check=True, stdout=subprocess.PIPE, env=os.environ | {"LD_LIBRARY_PATH": str(folder)}
    )
    found = json.loads(done.stdout)
    assert {label for label in REAL if found[label] != REAL[label]} == DIFFERENT
