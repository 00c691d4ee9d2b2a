"""Which driver and toolkits GPUs get, and what is made of what a node says about them."""

import contextlib
import fcntl
import itertools
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import tests.unit.test_node_state  # noqa: F401 - lets the modules of the nodes be found
from clusterctl.nodes.probe import gpus as probe_gpus
from clusterctl.nodes.probe import machine as probe_machine
from clusterctl.util import paths
from tests.unit.test_gpu_health import HEALTH
from tests.unit.test_role_plugins import plugin

NVIDIA = plugin("filter/nvidia")
BUILD = plugin("modules/nvidia_build")
LOOK = plugin("modules/nvidia_look")
PERSISTENCE = plugin("modules/nvidia_persistence")
nvidia_kernel, slurm_steps = BUILD.kernel_side, BUILD.slurm_steps

_VARS = yaml.safe_load((paths.content() / "roles/nvidia_driver/vars/main.yml").read_text())
TABLES = {name: _VARS[f"__nvidia_driver_{name}"] for name in NVIDIA.TABLES}
DEVICES, NEEDS = TABLES["devices"], TABLES["needs"]
SAMPLES = Path(__file__).parent.parent / "samples" / "gpu"
PROPRIETARY = {"modules": "proprietary"}
V100, T4, A100, H100, L40S, B200, B300 = "1db1", "1eb8", "20b2", "2330", "26b9", "2901", "3182"
H200 = "2335"
DISTRIBUTION: dict[str, Any] = {"source": "distribution"}


@pytest.mark.parametrize(
    ("devices", "name"),
    [
        (["102d"], "kepler"),  # K80
        (["13f2", "17fd"], "maxwell"),  # M60, M40
        (["15f8", "1b38"], "pascal"),  # P100, P40
        ([V100, "1df6"], "volta"),  # and V100S
        ([T4, "1e30", "2187"], "turing"),  # and RTX 6000, GTX 1650 SUPER
        ([A100, "20b7", "2236", "25b6"], "ampere"),  # and A30, A10, A2
        ([H100, "2331", "2335"], "hopper"),  # and PCIe, H200
        (["2342", "2348"], "grace_hopper"),
        ([L40S, "27b8", "2684"], "ada"),  # and L4, RTX 4090
        ([B200, "2941", "2bb5", B300, "31c2"], "blackwell"),  # and GB200, RTX PRO 6000, GB300
        (["1091", "06d1"], "fermi"),  # M2090, C2050
        (["3000", "30c0"], "rubin"),
        (["3500", "ffff"], "unknown"),
    ],
)
def test_a_generation_is_known_by_its_pci_ids(devices: list[str], name: str) -> None:
    assert {NVIDIA.generation(device, DEVICES) for device in devices} == {name}


# How chips are called, by generation: the first letters of their names in pci.ids.
CHIPS = {
    "GF": "fermi", "GK": "kepler", "GM": "maxwell", "GP": "pascal", "GV": "volta", "TU": "turing", "GA": "ampere",
    "GH": "hopper", "AD": "ada", "GB": "blackwell", "GR": "rubin",
}  # fmt: skip


@pytest.mark.proves("driver", "Every GPU of pci.ids (2026-10) has its generation, from Fermi to Rubin.")
def test_generation__every_gpu_of_pci_ids__is_that_of_its_chip() -> None:
    rows = [line.split(" ", 1) for line in (SAMPLES / "pci-ids.txt").read_text().splitlines() if line[0] != "#"]
    chip_of = {device: "grace_hopper" if "GH200" in name else CHIPS.get(name[:2], "older") for device, name in rows}
    found = {device: NVIDIA.generation(device, DEVICES) for device in chip_of}
    # 2343 and 2345 have no product's name, and are taken for what their neighbours are; 3400 is a Tegra's, no card.
    assert {device for device in found if found[device] != chip_of[device]} <= {"2343", "2345", "3400"}
    assert len(found) > 1000


def test_the_ranges_of_ids_do_not_overlap() -> None:
    ends = [(int(row["first"], 16), int(row["last"], 16)) for row in DEVICES]
    assert all(first <= last for first, last in ends)
    assert all(last < following for (_, last), (following, _) in itertools.pairwise(ends))
    assert {row["generation"] for row in DEVICES} <= NEEDS.keys()


def driver(*devices: str, look: dict[str, Any] | None = None, **wanted: Any) -> dict[str, Any]:
    asked = {
        "source": "nvidia", "modules": "auto", "branch": "", "version": "", "fingerprint": "", "gdrcopy": False,
        "system": "ubuntu-24", "architecture": "x86_64", **wanted,
    }  # fmt: skip
    found: dict[str, Any] = NVIDIA.driver({"devices": list(devices), **(look or {})}, asked, TABLES)
    return found


@pytest.mark.proves("driver", "Open or proprietary modules follow the generation of the GPUs.")
@pytest.mark.parametrize(
    ("devices", "modules"),
    [
        ([V100], "proprietary"),
        ([T4], "open"),
        ([A100, H100], "open"),
        ([B200], "open"),
        ([V100, T4], "proprietary"),
        (["2342"], "open"),
        ([], "open"),
    ],
)
def test_the_kind_of_modules_follows_the_gpus(devices: list[str], modules: str) -> None:
    found = driver(*devices)
    assert (found["modules"], found["branch"], found["version"], found["problems"]) == (modules, "580", "580.*", [])


@pytest.mark.proves("driver", "A driver that does not support the GPUs is reported before installation.")
@pytest.mark.parametrize(
    ("devices", "wanted", "problem"),
    [
        ([V100], {"modules": "open"}, "open modules do not support volta: nvidia_driver_modules: proprietary"),
        ([B200], PROPRIETARY, "proprietary modules do not support blackwell: nvidia_driver_modules: open"),
        ([V100], {"branch": "590"}, "branch 580 is the last for volta, got 590"),
        ([B200], {"branch": "550"}, "blackwell needs branch 570 or newer, got 550"),
        ([A100], PROPRIETARY | {"branch": "620"}, "branch 615 is the last for proprietary modules, got 620"),
        (
            [A100],
            {"branch": "580", "version": "590.48.01"},
            "nvidia_driver_version 590.48.01 is not of nvidia_driver_branch 580",
        ),
        ([V100, B200], {}, "no kernel modules support all GPUs of the node (volta: proprietary; blackwell: open)"),
        (["1091"], {}, "no kernel modules support all GPUs of the node (fermi: none)"),
        (["0045"], {}, "no kernel modules support all GPUs of the node (older: none)"),
        (["2342"], PROPRIETARY, "proprietary modules do not support grace_hopper: nvidia_driver_modules: open"),
        ([T4], {"modules": "open", "branch": "470"}, "open modules need branch 515 or newer, got 470"),
        (["3000"], {}, "the first branch for rubin is not known: nvidia_driver_branch"),
        (
            ["3500"],
            {},
            "the first branch for GPUs of the PCI id 3500 is not known: nvidia_driver_branch",
        ),
        (
            [V100],
            {"system": "debian-13"},
            "the package source has branch 590 and newer, but 580 is the last for volta: "
            "nvidia_driver_source: distribution",
        ),
        ([V100], {"system": "debian-13", "architecture": "aarch64"}, "the package source has branch 595 and newer"),
        (["102d"], {"system": "debian-12"}, "the package source has branch 545 and newer, but 470 is the last"),
        ([H100], {"system": "debian-testing"}, "NVIDIA has no packages for Debian testing: nvidia_driver_source: dis"),
        ([H100], {"system": "redhat-10"}, "the fingerprint of CDF6BA43.pub, the key that signs NVIDIA's rhel10"),
        (
            [H100],
            {"system": "redhat-9"} | DISTRIBUTION,
            "RHEL 9 has no known NVIDIA driver package: nvidia_driver_source: nvidia",
        ),
        ([B200], {"system": "debian-12"} | DISTRIBUTION, "blackwell needs branch 570 or newer, got 535"),
        (
            [H100],
            {"system": "debian-13", "branch": "535", "modules": "open"} | DISTRIBUTION,
            "Debian 13's packages have no open modules of branch 535",
        ),
        (
            [H100],
            {"system": "debian-13", "branch": "580"} | DISTRIBUTION,
            "Debian 13's packages have no open modules of branch 580",
        ),
        ([B200], {"version": "570.86.15"}, "B200 needs driver 570.133.20 or newer, got 570.86.15"),
        ([B300], {"version": "580.65.06"}, "B300 needs driver 580.82.07 or newer, got 580.65.06"),
        ([B300], {"branch": "575"}, "B300 needs driver 580.82.07 or newer, got 575"),
        ([H200], {"version": "555.42.02"}, "H200 needs driver 555.42.06 or newer, got 555.42.02"),
        ([H200], {"branch": "535"}, "H200 needs driver 550.90.07 or newer, got 535"),
        ([L40S], {"branch": "525"}, "L40S needs driver 535.104.05 or newer, got 525"),
    ],
)  # fmt: skip
def test_a_driver_that_cannot_be_is_told_before_it_is_installed(
    devices: list[str], wanted: dict[str, Any], problem: str
) -> None:
    assert any(said.startswith(problem) for said in driver(*devices, **wanted)["problems"])


@pytest.mark.parametrize(
    ("devices", "version"),
    [([B200], "570.133.20"), ([B200], "570.195.03"), ([H200], "560.35.03"), ([B300], "580.*"), ([L40S], "535.*"),
     ([H200, L40S], "550.163.01"), ([B300], "580.105.08"), ([B300], "580.9*")],
)  # fmt: skip
def test_driver__first_version_of_a_gpu_or_later__is_taken(devices: list[str], version: str) -> None:
    assert driver(*devices, version=version)["problems"] == []


def test_first_versions__of_every_gpu__are_those_of_nvidias_lists() -> None:
    """The list of supported GPUs at each tag of NVIDIA's open kernel modules begins with these versions."""
    rows = [line.split() for line in (SAMPLES / "first-versions.txt").read_text().splitlines() if line[0] != "#"]
    known = {device: row["versions"] for device, row in TABLES["first_versions"].items()}
    assert known.pop(B200) == ["570.133.20"], "the list has it from 570.86.15 on, NVIDIA/cloud-native-docs#184 later"
    assert known == {device: versions for device, *versions in rows}


def test_gpus_older_than_the_default_get_their_last_branch() -> None:
    found = driver("102d")
    assert (found["modules"], found["branch"], found["problems"]) == ("proprietary", "470", [])
    assert driver(V100, system="debian-13", **DISTRIBUTION)["branch"] == "550"
    assert "branch 470 is the last for kepler, got 580" in driver("102d", branch="580")["problems"]


def test_driver__named_branch__is_taken_with_the_modules_that_it_has() -> None:
    for devices, branch, modules in (
        (["3000"], "600", "open"),
        ([T4], "470", "proprietary"),
        ([A100], "450", "proprietary"),
    ):
        found = driver(*devices, branch=branch)
        assert (found["modules"], found["branch"], found["problems"]) == (modules, branch, [])
    assert driver(V100, branch="580", system="debian-13")["problems"] == [], "a mirror may have it"


def test_driver__debian_on_arm__begins_where_its_repository_does() -> None:
    assert driver(H100, system="debian-13", architecture="aarch64")["branch"] == "595"
    assert driver(H100, system="debian-12", architecture="aarch64")["branch"] == "590"
    assert driver(H100, system="debian-12")["branch"] == "580"


SECURE = {"secure_boot": True, "key_enrolled": False}
REFUSED = "Secure Boot is on, and the kernel refuses modules of dkms: dkms's key is not enrolled: mkdir -p /var"


@pytest.mark.proves("driver", "With Secure Boot, Ubuntu gets signed modules; elsewhere an unknown key is refused.")
@pytest.mark.parametrize(
    ("wanted", "look", "signed", "problem"),
    [
        ({}, SECURE, True, ""),
        ({}, SECURE | {"driver": "580.95.05", "brought": ["linux-modules-nvidia-580-server-open-generic"]}, True, ""),
        ({}, {"secure_boot": False}, False, ""),
        ({}, SECURE | {"key_enrolled": True}, False, ""),
        ({}, SECURE | {"driver": "580.95.05", "brought": ["nvidia-dkms-580-open"]}, False, ""),
        ({"architecture": "aarch64"}, SECURE, False, REFUSED),
        ({"system": "debian-12"}, SECURE, False, REFUSED),
        ({"system": "redhat-9"}, SECURE, False, REFUSED),
        ({"system": "redhat-9"}, SECURE | {"key_enrolled": True}, False, ""),
        ({"system": "redhat-9"}, SECURE | {"driver": "580.95.05"}, False, ""),
        ({"gdrcopy": True}, SECURE, True, "Secure Boot is on, and the kernel refuses gdrdrv"),
        ({"gdrcopy": True}, {}, False, ""),
    ],
)
def test_secure_boot__by_system_and_key__takes_signed_modules_or_is_refused(
    wanted: dict[str, Any], look: dict[str, Any], signed: bool, problem: str
) -> None:
    found = driver(H100, look=look, **wanted)
    assert (found["signed"], found["source"]) == (signed, "distribution" if signed else "nvidia")
    assert [said[: len(problem)] for said in found["problems"]] == ([problem] if problem else [])


def test_a_version_says_its_branch() -> None:
    found = driver(H100, version="570.195.03")
    assert (found["branch"], found["version"], found["problems"]) == ("570", "570.195.03", [])


def test_every_system_has_its_repository_and_a_whole_fingerprint() -> None:
    rows = _VARS["__nvidia_driver_repositories"]
    assert {"debian-12", "debian-13", "ubuntu-22", "ubuntu-24", "redhat-9", "redhat-10"} == rows.keys()
    for name, row in rows.items():
        key = row["key"].partition(".")[0].upper()
        assert row["fingerprint"].endswith(key) or (name == "redhat-10" and not row["fingerprint"])
        assert len(row["fingerprint"]) in (0, 40)


def test_what_made_another_driver_goes_with_it() -> None:
    kept = [NVIDIA.held("nvidia-driver-cuda", "580.*"), "dkms"]
    assert NVIDIA.without(kept, ["dkms", "nvidia-driver-cuda", "nvidia-kernel-dkms"]) == [
        *kept,
        {"name": "nvidia-kernel-dkms", "state": "absent", "hold": False},
    ]


OLDEST = yaml.safe_load((paths.content() / "roles/nvidia_cuda/vars/main.yml").read_text())["__nvidia_cuda_oldest"]


@pytest.mark.proves("driver", "CUDA toolkits that driver or GPUs do not support are reported.")
@pytest.mark.parametrize(
    ("toolkits", "version", "devices", "bridged", "problems"),
    [
        (["12.8", "11.8"], "550.163.01", [H100], [], []),
        (["13.0"], "580.95.05", [H100], [], []),
        (["13.0"], "", [H100], [], []),
        (
            ["12.9", "13.0"],
            "550.163.01",
            [H100],
            [],
            ["CUDA 13.0 needs driver 580.65.06 or newer, got 550.163.01; CUDA 12 is compatible with it"],
        ),
        (["13.0"], "550.163.01", [H100], ["13.0"], []),
        (
            ["13.0"],
            "580.95.05",
            [V100],
            [],
            ["CUDA 13.0 does not support volta GPUs; 12.9 is the last release that does"],
        ),
        (["12.9"], "580.95.05", [V100], [], []),
        (["9.2"], "580.95.05", [V100], [], ["CUDA 9.2 is unknown, expected a release 11, 12, 13"]),
    ],
)
def test_toolkits_are_judged_before_they_are_installed(
    toolkits: list[str], version: str, devices: list[str], bridged: list[str], problems: list[str]
) -> None:
    look = {"driver": version, "devices": devices}
    assert NVIDIA.toolkits(toolkits, look, OLDEST, DEVICES, NEEDS, bridged) == problems


LOG = """\
make -C /usr/src/linux-headers-6.12.117+deb13-amd64
  gcc -Werror=implicit-int -c -o /var/lib/dkms/nvidia-current-open/550.163.01/build/nvidia/nv-pci.o
/var/lib/dkms/nvidia-current-open/550.163.01/build/nvidia/nv-pci.c: In function 'nv_resize_pcie_bars':
/var/lib/dkms/nvidia-open/550/build/nvidia/nv-pci.c:237:9: error: too few arguments to function 'pci_resize_resource'
/usr/src/linux-headers-6.12.117+deb13-common/include/linux/pci.h:1440:5: note: declared here
make[4]: *** [scripts/Makefile.build:229: nvidia/nv-pci.o] Error 1
make: *** [Makefile:86: modules] Error 2
"""


def test_kernel__of_the_rhel_family__is_held_with_all_its_parts() -> None:
    assert LOOK.rpms_of("5.14.0-570.el9.x86_64")[:4] == [
        "kernel", "kernel-core", "kernel-modules", "kernel-modules-core",
    ]  # fmt: skip
    assert LOOK.rpms_of("5.14.0-570.el9.aarch64+64k")[:2] == ["kernel-64k", "kernel-64k-core"]


@pytest.mark.proves("driver", "The compiler's own error line is found in a build log.")
def test_the_compilers_own_line_is_found() -> None:
    told = "nvidia/nv-pci.c:237:9: error: too few arguments to function 'pci_resize_resource'"
    assert nvidia_kernel.complaint(LOG) == told


@pytest.mark.parametrize(
    ("log", "told"),
    [
        ("nv.ko: license does not fit\nmake: *** [x] Error 2", "make: *** [x]"),
        ('ERROR: modpost: "follow_pfn" [nvidia-uvm.ko] undefined!\nmake: *** x', 'ERROR: modpost: "follow_pfn"'),
        ("make: *** /lib/modules/6.1/build: No such file or directory.  Stop.", "make: *** /lib/modules"),
        ("it was killed\n\n", "it was killed"),
        ("", ""),
    ],
)  # fmt: skip
def test_a_build_that_fails_otherwise_says_its_first_word_of_it(log: str, told: str) -> None:
    assert nvidia_kernel.complaint(log).startswith(told)


def write(root: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else f"{content}\n".encode())
    return root


def device(address: str, vendor: str, kind: str, number: str, **more: bytes) -> dict[str, str | bytes]:
    base = f"sys/bus/pci/devices/{address}"
    found = {f"{base}/vendor": vendor, f"{base}/class": kind, f"{base}/device": number}
    return {**found, **{f"{base}/{name}": data for name, data in more.items()}}


def test_gpus_and_their_fabric_are_found_on_the_bus(tmp_path: Path) -> None:
    gpus = device("0000:3b:00.0", "0x10de", "0x030200", "0x2330") | device(
        "0000:1a:00.0", "0x10de", "0x030000", "0x1eb8"
    )
    other = device("0000:1a:00.1", "0x10de", "0x040300", "0x10f8") | device(
        "0000:02:00.0", "0x8086", "0x030000", "0x56c0"
    )
    assert nvidia_kernel.pci(write(tmp_path / "a", gpus | other)) == (["1eb8", "2330"], "")
    switch = device("0000:05:00.0", "0x10de", "0x068000", "0x22a3")
    assert nvidia_kernel.pci(write(tmp_path / "b", gpus | switch)) == (["1eb8", "2330"], "nvswitch")
    bridge = device("0000:07:00.0", "0x15b3", "0x020700", "0x1021", vpd=b"\x82\0SW_MNG\0")
    assert nvidia_kernel.pci(write(tmp_path / "c", gpus | bridge)) == (["1eb8", "2330"], "nvlink5")
    assert nvidia_kernel.pci(tmp_path / "none") == ([], "")
    for name in ("a", "b", "c"):
        assert probe_gpus.pci_gpus(str(tmp_path / name)) == ["1eb8", "2330"]
    (tmp_path / "a/.dockerenv").touch()
    assert probe_gpus.pci_gpus(str(tmp_path / "a")) == []


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.274.02  Tue Sep 16", ("535.274.02", False)),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build", ("580.95.05", True)),
        ("", ("", False)),
    ],
)  # fmt: skip
def test_the_loaded_driver_says_its_version_and_kind(tmp_path: Path, told: str, found: tuple[str, bool]) -> None:
    assert nvidia_kernel.loaded(write(tmp_path, {"proc/driver/nvidia/version": told})) == found


EFI = "sys/firmware/efi/efivars/"
STATE, SHIM, KEYS = (
    f"{EFI}SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c",
    f"{EFI}MokSBStateRT-605dab50-e046-4300-abb6-3dd810dd8b23",
    f"{EFI}MokListRT-605dab50-e046-4300-abb6-3dd810dd8b23",
)


@pytest.mark.parametrize(
    ("files", "role", "preflight"),
    [
        ({STATE: b"\6\0\0\0\1"}, True, True),
        ({STATE: b"\6\0\0\0\0"}, False, False),
        ({}, False, None),
        ({STATE: b"\6\0\0\0\1", SHIM: b"\6\0\0\0\1"}, False, False),  # mokutil --disable-validation
    ],
)
def test_secure_boot_is_read_from_the_firmware(
    tmp_path: Path, files: dict[str, str | bytes], role: bool, preflight: bool | None
) -> None:
    write(tmp_path, files)
    assert nvidia_kernel.secure_boot(tmp_path) is role
    assert probe_machine.secure_boot(str(tmp_path)) is preflight


DER = b"0\x82\x03\x0f a certificate"
ENROLLED = {KEYS: b"\6\0\0\0\xa1Y\xc0\xa5" + DER + b"\0"}
SITE = {"etc/dkms/framework.conf.d/site.conf": 'mok_certificate="/etc/keys/site.der"', "etc/keys/site.der": DER}


@pytest.mark.parametrize(
    ("files", "enrolled"),
    [
        ({"var/lib/dkms/mok.pub": DER} | ENROLLED, True),
        ({"var/lib/dkms/mok.pub": b"another"} | ENROLLED, False),
        ({"var/lib/dkms/mok.pub": DER}, False),
        (ENROLLED, False),
        ({"var/lib/dkms/mok.pub": b""} | ENROLLED, False),
        ({"etc/os-release": "ID=ubuntu", "var/lib/shim-signed/mok/MOK.der": DER} | ENROLLED, True),
        ({"etc/os-release": "ID=ubuntu", "var/lib/dkms/mok.pub": DER} | ENROLLED, False),
        (SITE | ENROLLED, True),
        (SITE | {"sys/firmware/efi/efivars/db-d719b2cb-3d3a-4596-a3bc-dad00e67656f": DER}, True),
        (SITE | {"sys/firmware/efi/mok-variables/MokListRT": DER}, True),
    ],
)
def test_key_of_dkms__by_what_the_firmware_lists__is_enrolled(
    tmp_path: Path, files: dict[str, str | bytes], enrolled: bool
) -> None:
    """The role and preflight have the same answer, each by its own code: nodes run the one, the probe is the other."""
    write(tmp_path, files)
    assert nvidia_kernel.key_enrolled(tmp_path) is enrolled
    assert probe_machine.key_enrolled(str(tmp_path)) is enrolled


@pytest.mark.proves("driver", "A driver of another origin that works is left alone.")
@pytest.mark.parametrize(
    ("named", "gpus", "found", "ours", "container", "begins"),
    [
        (False, [H100], "", False, False, ""),
        (False, [], "", False, False, "no GPU"),
        (False, [H100], "580.95.05", False, False, "driver 580.95.05 is already installed"),
        (False, [H100], "580.95.05", True, False, ""),
        (False, [H100], "", False, True, "a container uses its host's driver"),
        (False, [], "550.163.01", False, True, "driver 550.163.01 is already installed"),
        (True, [], "", False, True, ""),
    ],
)
def test_what_works_already_is_left_alone(
    named: bool, gpus: list[str], found: str, ours: bool, container: bool, begins: str
) -> None:
    why = LOOK.left(named, gpus, found, ours, container)
    assert why.startswith(begins)
    assert bool(why) == bool(begins)


def test_the_next_kernels_headers_come_with_it() -> None:
    kept = ["linux-headers-6.12.1-amd64", "linux-image-6.12.1-amd64", "linux-image-amd64"]
    assert LOOK.headers(kept) == ["linux-headers-amd64"]
    assert LOOK.headers(kept[:2]) == []
    assert LOOK.headers(["linux-image-unsigned-6.8.0-85-generic", "linux-image-generic"]) == ["linux-headers-generic"]


def test_kernel__signed_modules_beside_it__go_with_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = (
        "ii \tlinux-image-6.8.0-85-generic\tkmod\nii \tlinux-image-generic\tlinux-image-6.8.0-85-generic\n"
        "ii \tlinux-modules-nvidia-580-server-open-6.8.0-85-generic\tlinux-image-6.8.0-85-generic\n"
        "ii \tlinux-modules-nvidia-580-server-open-generic\tlinux-modules-nvidia-580-server-open-6.8.0-85-generic\n"
    )
    monkeypatch.setattr(LOOK, "run", lambda *_argv, **_options: (0, listed))
    assert LOOK.kernel_packages("6.8.0-85-generic") == ["linux-image-6.8.0-85-generic", "linux-image-generic"]
    names = ("linux-image-generic", "linux-modules-nvidia-580-server-open-generic", "nvidia-utils-580-server")
    item = {"before": {"version": ""}, "now": {"version": "1"}}
    record = {"items": {f"package:{name}": item for name in names}}
    monkeypatch.setattr(LOOK, "load_record", lambda _scope: record)
    assert [name for name, brought in LOOK.recorded().items() if brought] == [*names[1:]]


def test_modules_are_built_for_the_kernel_and_for_what_boots_next(tmp_path: Path) -> None:
    for name in ("6.12.48+deb13-amd64", "6.12.9+deb13-amd64", "6.12.117+deb13-amd64"):
        (tmp_path / "lib/modules" / name / "build").mkdir(parents=True)
    running = "6.12.48+deb13-amd64"
    assert BUILD.kernels(running, True, str(tmp_path)) == [running, "6.12.117+deb13-amd64"]
    assert BUILD.kernels(running, False, str(tmp_path)) == [running]
    (tmp_path / "lib/modules/6.12.120+deb13-amd64/kernel").mkdir(parents=True)
    assert BUILD.kernels(running, True, str(tmp_path), headers=False) == [running, "6.12.120+deb13-amd64"]


@pytest.mark.parametrize(
    ("newer", "container", "kernel"),
    [(True, False, "6.8.0-90-generic"), (False, False, "6.8.0-85-generic"), (True, True, "6.8.0-85-generic")],
)
def test_kernel_of_the_driver__after_a_reboot__is_the_running_one(
    monkeypatch: pytest.MonkeyPatch, newer: bool, container: bool, kernel: str
) -> None:
    monkeypatch.setattr(BUILD.os, "uname", lambda: SimpleNamespace(release="6.8.0-90-generic"))
    monkeypatch.setattr(nvidia_kernel, "in_container", lambda: container)
    assert BUILD.target("6.8.0-85-generic", newer) == kernel


def test_who_holds_a_gpu_is_told(tmp_path: Path) -> None:
    (tmp_path / "12/fd").mkdir(parents=True)
    (tmp_path / "12/fd/3").symlink_to("/dev/nvidia0")
    (tmp_path / "12/comm").write_text("python3\n")
    (tmp_path / "13/fd").mkdir(parents=True)
    (tmp_path / "13/fd/3").symlink_to("/dev/null")
    assert nvidia_kernel.holders(proc=str(tmp_path)) == ["python3 (12)"]


@pytest.mark.parametrize("path", ["0::%s", "12:devices:/user.slice\n1:name=systemd:%s"], ids=["v2", "v1"])
def test_a_service_that_is_stopped_anyway_holds_nothing(tmp_path: Path, path: str) -> None:
    """It is known by its unit: Fabric Manager's program has another name, and a user's could have that of a service."""
    for pid, name, group in (
        (12, "nv-fabricmanage", "/system.slice/nvidia-fabricmanager.service"),
        (13, "nvidia-fabricma", "/user.slice/user-1000.slice/session-2.scope"),
    ):
        write(tmp_path, {f"{pid}/comm": name, f"{pid}/cgroup": path % group})
        (tmp_path / f"{pid}/fd").mkdir()
        (tmp_path / f"{pid}/fd/3").symlink_to("/dev/nvidiactl")
    assert nvidia_kernel.holders(["nvidia-fabricmanager.service"], proc=str(tmp_path)) == ["nvidia-fabricma (13)"]


@pytest.mark.parametrize(
    "group",
    [
        "0::/system.slice/slurmstepd.scope/job_12/step_0/user/task_0",
        "0::/system.slice/slurmstepd.scope/sEKNKTV3WPV500/step_0/user/task_0",  # from 26.05 on, cgroup.conf(5)
        "3:freezer:/slurm/uid_1/job_12",
    ],
)
def test_a_jobs_process_holds_a_gpu_until_the_job_ends(tmp_path: Path, group: str) -> None:
    for pid, path in (("12", group), ("13", "0::/user.slice/user-1000.slice/session-2.scope")):
        write(tmp_path, {f"{pid}/comm": "python3", f"{pid}/cgroup": path})
        (tmp_path / pid / "fd").mkdir()
        (tmp_path / pid / "fd/3").symlink_to("/dev/nvidia0")
    assert nvidia_kernel.holders(proc=str(tmp_path)) == ["python3 (12)", "python3 (13)"]
    assert nvidia_kernel.holders(jobs=False, proc=str(tmp_path)) == ["python3 (13)"]


def test_a_driver_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """What hangs in the kernel lives on when it was killed, as this process does."""
    left: list[subprocess.Popen[str]] = []
    end = subprocess.Popen.kill
    monkeypatch.setattr(subprocess.Popen, "kill", lambda process: left.append(process))
    monkeypatch.setattr(nvidia_kernel, "ANSWER_LIMIT_S", 1)
    monkeypatch.setattr(nvidia_kernel, "ASK", "import time; time.sleep(60)")
    assert nvidia_kernel.answers() == ""
    (process,) = left
    assert process.poll() is None
    end(process)
    process.communicate()


def test_only_packages_of_another_version_bring_another_driver() -> None:
    name = "nvidia-kernel-open-dkms"
    others = [BUILD.change("package", name, action) for action in ("held", "released", "repaired", "removed")]
    assert BUILD.coming([*others, BUILD.change("file", "/etc/x", "installed")]) == set()
    for action in ("installed", "upgraded"):
        assert BUILD.coming([BUILD.change("package", name, action)]) == {name}


def test_each_module_that_packages_bring_is_known_to_dkms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = []
    for name, version in (("nvidia-open", "580.95.05"), ("gdrdrv", "2.5.1")):
        file = tmp_path / f"{name}.conf"
        file.write_text(f'PACKAGE_NAME="{name}"\nPACKAGE_VERSION="{version}"\n')
        listed += [f"/usr/src/{name}-{version}", f"/usr/src/{name}-{version}/dkms.conf"]
    monkeypatch.setattr(nvidia_kernel, "run", lambda *_argv, **_options: (0, "\n".join(listed)))
    read = nvidia_kernel.text
    monkeypatch.setattr(
        nvidia_kernel, "text", lambda path: read(tmp_path / f"{path.split('/')[3].rpartition('-')[0]}.conf")
    )
    both = [("nvidia-open", "580.95.05"), ("gdrdrv", "2.5.1")]
    assert nvidia_kernel.sources(["nvidia-kernel-open-dkms", "gdrdrv-dkms"]) == both
    assert nvidia_kernel.source(["nvidia-kernel-open-dkms", "gdrdrv-dkms"]) == both[0]


def test_what_is_shared_has_one_name() -> None:
    assert BUILD.DIAGNOSES == HEALTH.DIAGNOSES
    assert f"path: {BUILD.STOPPED}\n" in (paths.content() / "roles/nvidia_driver/tasks/install.yml").read_text()


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """What a node tells the module: driver 1 is loaded and a shell holds it; `ran` has what was run there.

    `fails` is a module that the kernel refuses, `looks` has what was run while gpu-health could look.
    """
    told: dict[str, Any] = {"loaded": "1", "holders": ["bash (7)"], "used": ["nvidia"], "ran": [], "down": []}
    told |= {"wanted": "1", "fails": "", "jobs": [], "looks": []}

    def run(*argv: str, **_options: Any) -> tuple[int, str]:
        told["ran"].append(argv)
        with contextlib.suppress(BlockingIOError), BUILD.DIAGNOSES.open("w") as look:
            fcntl.flock(look, fcntl.LOCK_SH | fcntl.LOCK_NB)
            told["looks"].append(argv)
        if argv == ("modprobe", told["fails"]):
            return 1, "No such device"
        if argv[:2] == ("modprobe", "nvidia"):
            told["loaded"] = "2"
        if argv[1:2] == ("show",):
            return 0, "loaded\n"
        return 0, "inactive\n" if argv[-1] in told["down"] else "active\n"

    monkeypatch.setattr(BUILD, "run", run)
    monkeypatch.setattr(nvidia_kernel, "source", lambda packages: ("nvidia-open", told["wanted"]))
    monkeypatch.setattr(nvidia_kernel, "loaded", lambda: (told["loaded"], True))

    def holders(units: tuple[str, ...] = (), jobs: bool = True) -> list[str]:
        return [*told["holders"], *(f"job {number}" for number in told["jobs"] if jobs)]

    monkeypatch.setattr(nvidia_kernel, "holders", holders)
    monkeypatch.setattr(slurm_steps, "jobs", lambda: told["jobs"])
    monkeypatch.setattr(nvidia_kernel, "in_use", lambda: told["used"])
    monkeypatch.setattr("ansible.module_utils.node_state.tools.RUN", tmp_path)
    monkeypatch.setattr("ansible.module_utils.node_state.tools.wait_until_free.__defaults__", (0,))
    monkeypatch.setattr(BUILD, "STOPPED", tmp_path / "stopped")
    monkeypatch.setattr(BUILD, "DIAGNOSES", tmp_path / "diagnosis")
    return told


def made(check: bool = False, **given: Any) -> Any:
    asked: dict[str, Any] = {
        "packages": ["nvidia-kernel-open-dkms"],
        "change": False,
        "units": ["nvidia-persistenced.service"],
    }
    asked |= {
        "modules": ["nvidia-uvm", "nvidia-peermem"],
        "signed": False,
        "libraries": "",
        "kernel": "6.8.0-85-generic",
    }
    return BUILD.Driver(asked | given, check)


def test_a_dry_run_foresees_a_reboot_only_where_the_driver_may_be_exchanged(node: dict[str, Any]) -> None:
    kept = made(check=True)
    kept.foresee()
    assert (kept.changes, kept.reboot) == ([], "")
    assert kept.notes == ["driver 1 stays loaded: run clusterctl upgrade to replace it"]
    held = made(check=True, change=True)
    held.foresee()
    assert held.reboot == "the driver is in use by bash (7)"
    node.update(holders=[], jobs=["12"])
    free = made(check=True, change=True)
    free.foresee()
    assert (free.changes, free.reboot) == ([], "")


SIGNED: dict[str, Any] = {"signed": True, "libraries": "580.126.09"}


@pytest.mark.proves("driver", "Signed modules of another version than the libraries wait for their kernel.")
@pytest.mark.parametrize(
    ("modules", "loaded", "change", "outcome", "reboot"),
    [
        ({"6.8.0-85-generic": "580.126.09"}, "", False, "2", ""),
        ({"6.8.0-85-generic": "580.126.09"}, "580.126.09", False, "580.126.09", ""),
        (
            {"6.8.0-85-generic": "580.95.05", "6.8.0-90-generic": "580.126.09"},
            "",
            False,
            "",
            "kernel 6.8.0-90-generic has the signed modules of driver 580.126.09",
        ),
        (
            {"6.8.0-85-generic": "580.95.05", "6.8.0-90-generic": "580.126.09"},
            "580.95.05",
            True,
            "580.95.05",
            "kernel 6.8.0-90-generic has the signed modules of driver 580.126.09",
        ),
        ({"6.8.0-85-generic": "580.95.05", "6.8.0-90-generic": "580.126.09"}, "580.95.05", False, "580.95.05", ""),
        ({"6.8.0-85-generic": "580.95.05"}, "", False, None, ""),
        ({}, "", False, None, ""),
    ],
)
def test_signed_modules__by_version_of_the_libraries__are_loaded_or_wait(
    node: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    modules: dict[str, str],
    loaded: str,
    change: bool,
    outcome: str | None,
    reboot: str,
) -> None:
    node.update(loaded=loaded, used=[])
    monkeypatch.setattr(nvidia_kernel, "signed_module", lambda kernel: modules.get(kernel, ""))
    monkeypatch.setattr(BUILD, "kernels", lambda kernel, *_newer, **_headers: [kernel, "6.8.0-90-generic"])
    built = made(False, change=change, **SIGNED)
    if outcome is None:
        found = modules.get("6.8.0-85-generic", "(none)")
        with pytest.raises(
            BUILD.NodeError, match=re.escape(f"modules of driver {found}, but the libraries are 580.126")
        ):
            built.load()
    else:
        assert (built.load(), built.reboot) == (outcome, reboot)
    assert (("modprobe", "nvidia") in node["ran"]) is (outcome == "2")


def test_signed_module__as_modinfo_prints_it__has_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    for answer, version in (((0, "580.126.09\n"), "580.126.09"), ((1, "modinfo: ERROR: Module nvidia not found."), "")):
        monkeypatch.setattr(nvidia_kernel, "run", lambda *_argv, answer=answer, **_options: answer)
        assert nvidia_kernel.signed_module("6.8.0-85-generic") == version


@pytest.mark.proves("driver", "Persistence mode that stays off after installation is reported by GPU.")
def test_persistence_mode__after_installation__is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    modes = "00000000:3B:00.0 {}\n00000000:5E:00.0 on\n"
    for program, said in (
        (f"print({modes.format('on')!r})", ""),
        (f"print({modes.format('off')!r})", "persistence mode is off on 00000000:3B:00.0, so"),
        ("raise SystemExit(1)", "persistence mode is not known: the driver does not respond"),
    ):
        monkeypatch.setattr(nvidia_kernel, "ASK_MODES", program)
        assert [note[: len(said)] for note in PERSISTENCE.notes(0)] == ([said] if said else [])


LIBRARY = """
#include <string.h>
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char address[32]; } pci_info;
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 3; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
    *device = (void *)(long)(index + 1);
    return index == 1 ? 15 : 0;
}
int nvmlDeviceGetPciInfo_v3(void *device, pci_info *pci)
{
    memset(pci, 'x', sizeof *pci);
    strcpy(pci->address, (long)device == 1 ? "00000000:3B:00.0" : "00000000:5E:00.0");
    return 0;
}
int nvmlDeviceGetPersistenceMode(void *device, unsigned *mode) { *mode = (long)device == 1; return 0; }
"""


def test_persistence_mode__by_nvidias_own_interface__is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost GPU (code 15) has none; the library's functions and structure are those of nvml.h."""
    if not shutil.which("gcc"):
        pytest.skip("no C compiler")
    (tmp_path / "nvml.c").write_text(LIBRARY)
    build = ["gcc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", "libnvidia-ml.so.1", "nvml.c"]
    subprocess.run(build, cwd=tmp_path, check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert nvidia_kernel.without_persistence() == ["00000000:5E:00.0"]


def test_persistence_mode__daemon_needs_a_while__is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [["00000000:3B:00.0"], []]
    monkeypatch.setattr(nvidia_kernel, "without_persistence", lambda: answers.pop(0))
    assert PERSISTENCE.notes(0.05) == []
    assert answers == []


def test_a_module_is_in_use_by_what_is_none_of_the_drivers(tmp_path: Path) -> None:
    def root(name: str, nvidia: str, *holders: str) -> str:
        base = "sys/module/nvidia"
        files: dict[str, str | bytes] = {f"{base}/refcnt": nvidia, "sys/module/nvidia_uvm/refcnt": "0"}
        files["sys/module/nvidia_modeset/refcnt"] = "2"
        return str(write(tmp_path / name, files | {f"{base}/holders/{holder}": "" for holder in holders}))

    assert nvidia_kernel.in_use(root("free", "2", "nvidia_uvm", "nvidia_modeset")) == []
    assert nvidia_kernel.in_use(root("copies", "3", "nvidia_uvm", "nvidia_modeset", "gdrdrv")) == []
    assert nvidia_kernel.in_use(root("process", "3", "nvidia_uvm", "nvidia_modeset")) == ["nvidia"]
    assert nvidia_kernel.in_use(root("foreign", "2", "nvidia_uvm", "nvidia_fs")) == ["nvidia"]
    assert nvidia_kernel.in_use(str(tmp_path / "none")) == []


def test_a_driver_that_stays_has_its_services_back(node: dict[str, Any]) -> None:
    units = ["nvidia-dcgm.service", "nvidia-persistenced.service", "nvidia-imex.service"]
    node["down"] = units[2:]
    driver = made(change=True, units=units)
    driver.changed("loaded", "2 loaded, was 1")
    assert not driver.unload()
    assert driver.reboot == "nvidia is in use by bash (7)"
    assert node["ran"] == [
        *(("systemctl", "is-active", unit) for unit in units),
        *(("systemctl", "stop", unit) for unit in units),
        ("systemctl", "start", "nvidia-persistenced.service"),
        ("systemctl", "start", "nvidia-dcgm.service"),
    ]
    assert not BUILD.STOPPED.exists()


def test_services_that_ran_before_an_exchange_are_remembered_until_they_run_again(node: dict[str, Any]) -> None:
    units = ["nvidia-dcgm.service", "nvidia-persistenced.service"]
    node.update(used=[], wanted="2", fails="nvidia")
    with pytest.raises(BUILD.NodeError, match="modprobe nvidia: No such device"):
        made(change=True, units=units).load()
    assert nvidia_kernel.text(BUILD.STOPPED).split() == units
    assert ("systemctl", "start", "nvidia-dcgm.service") not in node["ran"]
    node.update(loaded="", fails="", down=units)
    assert made(units=units).load() == "2"
    assert nvidia_kernel.text(BUILD.STOPPED).split() == units
    node.update(wanted="3", down=units[:1])  # exchanged again, before its role has come to starting all of them
    assert made(change=True, units=units).load() == "2"
    assert nvidia_kernel.text(BUILD.STOPPED).split() == units


def test_the_health_check_does_not_look_while_the_driver_is_exchanged(node: dict[str, Any]) -> None:
    """It would have the driver in use, or have the kernel load it again."""
    node.update(used=[], wanted="2")
    driver = made(change=True)
    with BUILD.DIAGNOSES.open("w") as look:
        fcntl.flock(look, fcntl.LOCK_SH)
        with pytest.raises(BUILD.NodeError, match="diagnosis is still held by another process after 0 s"):
            driver.load()
    assert (driver.changes, node["ran"]) == ([], [])
    assert driver.load() == "2"
    assert ("modprobe", "nvidia") in node["ran"]
    assert node["looks"] == []


def test_a_rehearsal_counts_on_the_end_of_jobs_where_the_node_will_be_drained(node: dict[str, Any]) -> None:
    node.update(wanted="2", jobs=["12"])
    rehearsal = made(check=True, change=True)
    assert rehearsal.load() == "1"
    assert [change["what"] for change in rehearsal.changes] == ["2 loaded, was 1"]
    with pytest.raises(BUILD.NodeError, match="the driver is not replaced while jobs run: 12"):
        made(change=True).load()


def test_what_is_to_be_loaded_with_a_driver_that_runs_is_loaded_beside_it(node: dict[str, Any]) -> None:
    rehearsal, driver = made(check=True), made()
    assert rehearsal.load() == driver.load() == "1"
    modules = ("nvidia-uvm", "nvidia-peermem")
    told = [BUILD.change("kernel module", name, "loaded", "loaded") for name in modules]
    assert rehearsal.changes == driver.changes == told
    assert node["ran"] == [("modprobe", "nvidia-uvm"), ("modprobe", "nvidia-peermem")]


def test_containers_have_the_gpus_described_by_the_driver_that_came(node: dict[str, Any]) -> None:
    node.update(used=[], wanted="2")
    driver = made(change=True)
    assert driver.load() == "2"
    assert node["ran"][-2:] == [
        ("systemctl", "show", "--property=LoadState", "--value", "nvidia-cdi-refresh.service"),
        ("systemctl", "start", "nvidia-cdi-refresh.service"),
    ]
    assert [change["what"] for change in driver.changes] == ["2 loaded, was 1", "loaded", "loaded"]


def test_peer_memory__symbols_of_a_kernel__tell_whose_ib_core_it_has(tmp_path: Path) -> None:
    """depmod writes which module has a symbol into modules.symbols."""
    folder = tmp_path / "lib/modules/6.8.0"
    folder.mkdir(parents=True)
    assert not nvidia_kernel.peer_memory("6.8.0", tmp_path)
    (folder / "modules.symbols").write_text("alias symbol:ib_register_client ib_core\n")
    assert not nvidia_kernel.peer_memory("6.8.0", tmp_path)
    (folder / "modules.symbols").write_text("alias symbol:ib_register_peer_memory_client ib_core\n")
    assert nvidia_kernel.peer_memory("6.8.0", tmp_path)
