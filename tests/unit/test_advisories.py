"""Which versions are named as unsafe, and that versions are ordered as dpkg orders them."""

import itertools
import shutil
import subprocess

import pytest

from clusterctl import advisories

# Made to differ in each thing that counts, and some that packages really have.
VERSIONS = (
    "0.5.13-2", "0.5.15-2", "0.5.15-2+deb12u1", "0.5.15-4ubuntu0.1", "0.5.16-1.1~deb13u1", "0.5.16-1.1", "0.5.18-1",
    "22.05.8-4+deb12u3", "22.05.8-4", "24.11.5-4", "24.11.5-4+deb13u1", "1:0.5-1", "1.0~rc1-1", "1.0-1", "1.0", "1.0-0",
    "1.0a-1", "1.0+b-1", "1.00-1", "1.10-1", "1.9-1", "1.0-1~bpo12+1", "a1", "1a", "1~", "2026.01-2.el9",
)  # fmt: skip


@pytest.mark.skipif(not shutil.which("dpkg"), reason="dpkg is the judge")
def test_is_older__any_two_versions__is_what_dpkg_says() -> None:
    for one, other in itertools.product(VERSIONS, repeat=2):
        told = subprocess.run(["dpkg", "--compare-versions", one, "lt", other], capture_output=True, check=False)
        assert advisories.is_older(one, other) is (told.returncode == 0), (one, other)


@pytest.mark.proves("preflight", "Versions of NVIDIA's driver with known holes are named.")
@pytest.mark.parametrize(
    ("version", "named"),
    [
        ("535.247.01", ["CVE-2026-24187"]),
        ("535.309.01", []),
        ("550.144.03", ["CVE-2025-23244"]),
        ("550.163.01", []),  # what came after is not known of this branch
        ("570.172.08", ["CVE-2025-33219"]),
        ("580.105.08", ["CVE-2026-24187"]),
        ("580.159.03", []),
        ("590.48.01", []),
        ("595.71.05", []),
        (None, []),
    ],
)
def test_unsafe_driver__by_branch__names_the_newest_hole(version: str | None, named: list[str]) -> None:
    assert [one.advisory.names.split()[0] for one in advisories.unsafe_driver(version)] == named


@pytest.mark.proves("preflight", "Versions of munge and Slurm with known holes are named.")
@pytest.mark.parametrize(
    ("system", "package", "version", "named"),
    [
        ("debian 12", "munge", "0.5.15-2", ["CVE-2026-25506"]),
        ("debian 12", "munge", "0.5.15-2+deb12u1", []),
        ("debian 13", "munge", "0.5.16-1", ["CVE-2026-25506"]),
        ("debian 13", "munge", "0.5.16-1.1~deb13u1", []),
        ("ubuntu 24.04", "munge", "0.5.15-4build1", ["CVE-2026-25506"]),
        ("ubuntu 24.04", "munge", "0.5.18-1", []),
        ("debian 12", "munge", "0.5.18-1", []),
        ("rocky 9", "munge", "0.5.13-13.el9", []),  # not known
        ("debian 12", "slurmctld", "22.05.8-4+deb12u2", ["CVE-2025-43904"]),
        ("debian 12", "slurmctld", "22.05.8-4+deb12u3", []),
        ("debian 13", "slurmd", "24.11.5-4", ["CVE-2026-65107, CVE-2026-65140"]),
        ("debian 13", "slurmd", "24.11.5-4+deb13u1", []),
    ],
)
def test_unsafe__by_system_and_version__names_the_hole(
    system: str, package: str, version: str, named: list[str]
) -> None:
    found = list(advisories.unsafe(system, {package: version, "bash": "1"}))
    assert [one.advisory.names for one in found] == named
    assert all(f"{package} {version} lets " in str(one) for one in found)
