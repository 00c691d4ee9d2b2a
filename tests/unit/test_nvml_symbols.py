"""The simulated NVML's source: symbols complete, profiles complete and plausible, no hidden input."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from clusterctl import lab

NVML = Path(lab.__file__).parent / "nvml"
BRANCHES = {
    name: int(branch or 0)
    for name, _, branch in (line.partition(" ") for line in (NVML / "symbols.txt").read_text().splitlines())
}
"""Since which branch of the driver a function is there, 0: since 535 or longer."""
SYMBOLS = list(BRANCHES)
SOURCE = "\n".join(path.read_text() for path in sorted((NVML / "source").glob("*.[ch]")))
PROFILES = sorted((NVML / "profiles").glob("*.conf"))
#: Words in quotes in the source that are no keys: values, visibility, a mode of fopen().
NOT_KEYS = {"default", "gone", "lost", "none", "re", "reset", "switch", "we"}


def read(profile: Path) -> dict[str, str]:
    """The profile's lines, `key` -> value, read as config.c reads them."""
    lines = [line.strip() for line in profile.read_text().splitlines()]
    pairs = [line.split("=", 1) for line in lines if line and not line.startswith("#")]
    assert all(len(pair) == 2 for pair in pairs), profile
    keys = [key for key, _ in pairs]
    assert len(keys) == len(set(keys)), f"{profile.name} gives a key twice"
    return dict(pairs)


def plain(keys: set[str] | dict[str, str]) -> set[str]:
    """The keys without those of a single device (`key.N`)."""
    return {key for key in keys if not re.search(r"\.\d+$", key)}


REFERENCE = plain(read(PROFILES[0]))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not (shutil.which("gcc") and shutil.which("nm")):
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("nvml")
    build = [str(NVML / "build.sh"), str(folder), "550.163.01"]
    done = subprocess.run(
        build,
        env={"CC": "gcc -Werror", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        check=False,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return next(folder.rglob("libnvidia-ml.so.550.163.01"))


def test_symbols_are_sorted_and_unique() -> None:
    assert sorted(set(SYMBOLS)) == SYMBOLS
    assert len(SYMBOLS) >= 346
    assert all(name.startswith("nvml") for name in SYMBOLS)


def test_every_public_function_of_the_source_is_a_known_symbol() -> None:
    defined = re.findall(r"^(?:EXPORT|ALIAS|TEXT|NUMBER|CONSTANT|CLOCK|ENGINE)[ (]+(nvml\w+)", SOURCE, re.MULTILINE)
    assert len(set(defined)) > 100
    assert set(defined) <= set(SYMBOLS)


def test_every_function_that_nvidia_ml_py_calls_is_there() -> None:
    pynvml = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    called = re.findall(r"_nvmlGetFunctionPointer\(\"(nvml\w+)\"\)", Path(pynvml.__file__).read_text())
    assert len(called) > 300
    assert set(called) <= set(SYMBOLS)


def test_no_environment_variable_is_read() -> None:
    assert "getenv" not in SOURCE
    assert "environ" not in SOURCE


def test_the_library_exports_every_symbol_and_imports_no_getenv(library: Path) -> None:
    def names(*options: str) -> set[str]:
        done = subprocess.run(["nm", "-D", *options, str(library)], check=True, stdout=subprocess.PIPE, text=True)
        return {line.split()[-1].split("@")[0] for line in done.stdout.splitlines()}

    assert names("--defined-only") == set(SYMBOLS)
    imported = names("--undefined-only")
    assert "open" in imported or "open64" in imported
    assert not {name for name in imported if "getenv" in name or "environ" in name}


def test_functions_that_the_driver_has__are_those_of_debians_library() -> None:
    """As `objdump -T` lists them of libnvidia-ml1 535.261.03-1 and 550.163.01-2 in Debian's non-free.

    When newer ones came is told by the releases of nvidia-ml-py, each of which is named for a driver.
    """
    counts = [sum(branch <= limit for branch in BRANCHES.values()) for limit in (535, 550)]
    assert counts == [332, 350]
    assert BRANCHES["nvmlDeviceGetTemperatureV"] == 570
    assert {branch for branch in BRANCHES.values() if branch > 550} <= {555, 560, 570, 575, 580, 590, 595, 610, 615}


def test_without_configuration_it_says_that_no_driver_is_loaded(library: Path) -> None:
    if Path("/etc/simulated-nvml.conf").exists():
        pytest.skip("this machine is a lab node")
    nvml = ctypes.CDLL(str(library))
    nvml.nvmlErrorString.restype = ctypes.c_char_p
    assert nvml.nvmlErrorString(nvml.nvmlInit_v2()) == b"Driver Not Loaded"
    assert nvml.nvmlErrorString(nvml.nvmlDeviceGetCount_v2(ctypes.byref(ctypes.c_uint()))) == b"Uninitialized"


@pytest.mark.parametrize("profile", PROFILES, ids=lambda path: path.stem)
def test_profile_gives_every_key_and_no_other(profile: Path) -> None:
    own = read(profile)
    own.pop("driver_version", None)  # a model may need a newer driver than the lab's
    assert plain(own) == REFERENCE
    for key in set(own) - REFERENCE:
        assert key.rsplit(".", 1)[0] in REFERENCE


def test_every_key_is_read_and_every_key_read_is_documented() -> None:
    used = set(re.findall(r'"([a-z][a-z_0-9]*)"', SOURCE)) - NOT_KEYS
    assert used >= REFERENCE, f"never read: {REFERENCE - used}"
    documented = set(re.findall(r"`([a-z_]+)(?:\.N)?`", (NVML / "README.md").read_text()))
    assert used - REFERENCE <= documented, f"not in README.md: {used - REFERENCE - documented}"


@pytest.mark.parametrize("profile", PROFILES, ids=lambda path: path.stem)
def test_profile_is_plausible(profile: Path) -> None:
    values = read(profile)

    def number(key: str) -> int:
        return int(values[key], 0)

    assert number("memory_reserved") < number("memory_total")
    assert number("power_usage") < number("power_minimum") + 50
    assert number("power_minimum") <= number("power_default") <= number("power_maximum")
    assert number("power_limit") <= number("power_maximum")
    assert number("temperature") < number("temperature_maximum") < number("temperature_shutdown")
    assert number("temperature_slowdown") < number("temperature_shutdown")
    assert number("clock_idle") <= number("clock_default") <= number("clock_maximum")
    assert (number("clock_maximum") - number("clock_idle")) % 15 == 0
    assert number("pci_device_id") & 0xFFFF == number("pci_subsystem_id") & 0xFFFF == 0x10DE
    assert len(set(values["pci_buses"].split(","))) == 8
    assert (values["nvlink_version"] == "none") == (number("nvlink_links") == 0)
    assert re.fullmatch(r"\d+\.\d", values["cuda_capability"])
    assert number("mig_devices") == (7 if re.search("A100|H100|H200|B200", values["name"]) else 0)


@pytest.mark.parametrize("profile", PROFILES, ids=lambda path: path.stem)
def test_direct_links_have_two_ends(profile: Path) -> None:
    values = read(profile)
    peers = {
        int(key.split(".")[1]): value.split(",") for key, value in values.items() if key.startswith("nvlink_peers.")
    }
    for device, links in peers.items():
        assert len(links) == int(values["nvlink_links"])
        for peer in links:
            assert peers[int(peer)].count(str(device)) == links.count(peer)
