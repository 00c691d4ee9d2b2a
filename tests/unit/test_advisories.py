"""Which versions are named as unsafe, and that versions are ordered as dpkg orders them."""

import itertools
import shutil
import subprocess

import pytest
import yaml

from clusterctl.nodes import advisories
from clusterctl.util import paths

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


@pytest.mark.proves("preflight", "Versions of munge, Slurm and the container toolkit with known holes are named.")
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
        ("debian testing", "munge", "0.5.18-1", []),
        ("debian 12", "slurmctld", "22.05.8-4+deb12u2", ["CVE-2025-43904"]),
        ("debian 13", "slurmd", "24.11.5-4", ["CVE-2026-65107, CVE-2026-65140"]),
        ("debian 13", "slurmd", "24.11.5-4+deb13u1", []),
        ("debian testing", "slurmd", "26.05.5-1", []),
        ("debian 13", "slurm-smd-slurmd", "24.11.5-1", ["CVE-2026-65107, CVE-2026-65140"]),
        ("debian 13", "slurm-smd-slurmd", "25.05.9-1", []),
        ("rocky 9.6", "nvidia-container-toolkit-base", "1.19.0-1", ["CVE-2026-24260 and others before it"]),
        ("ubuntu 22.04", "nvidia-container-toolkit", "1.17.8-1", ["CVE-2026-24260 and others before it"]),
        ("debian 13", "nvidia-container-toolkit-base", "1.19.1-1", []),
        ("debian 13", "nvidia-container-toolkit-base", "1.20.1-1", []),
    ],
)
def test_unsafe__by_system_and_version__names_the_hole(
    system: str, package: str, version: str, named: list[str]
) -> None:
    found = [one for one in advisories.unsafe(system, {package: version, "bash": "1"}) if one.fixed]
    assert [one.advisory.names for one in found] == named
    assert all(f"{package} {version} lets " in str(one) and str(one).endswith(" does not") for one in found)


@pytest.mark.proves("preflight", "Versions that no known fix covers are named as not known to be fixed.")
@pytest.mark.parametrize(
    ("system", "package", "version", "release"),
    [
        ("rocky 9.6", "munge", "0.5.13-13.el9", "0.5.18"),
        ("rocky 9.6", "munge", "0.5.18-1.el9", ""),
        ("rhel 10.1", "munge", "0.5.15-10.el10", "0.5.18"),
        ("centos 9", "munge", "0.5.13-13.el9", "0.5.18"),
        ("ubuntu 22.04", "munge", "0.5.14-6", "0.5.18"),
        ("ubuntu 24.04", "slurmd", "23.11.4-1.2ubuntu5", "23.11.11"),
        ("ubuntu 24.04", "slurmd", "24.05.7-1", "24.05.8"),
        ("almalinux 9.5", "slurm-slurmctld", "22.05.9-1.el9", "24.11.5"),
        ("debian 12", "slurmctld", "22.05.8-4+deb12u3", "26.05.4"),
        ("almalinux 9.5", "slurm-slurmctld", "25.11.7-1.el9", "25.11.8"),
        ("almalinux 9.5", "slurm-slurmctld", "25.11.8-1.el9", ""),
    ],
)
def test_unsafe__no_fix_of_the_distribution_is_known__says_so(
    system: str, package: str, version: str, release: str
) -> None:
    found = [str(one) for one in advisories.unsafe(system, {package: version}) if not one.fixed]
    told = [
        text for text in found if f"{package} {version} is not known to be fixed: before {release} it lets " in text
    ]
    assert bool(told) is bool(release)
    assert found == [] or release


def test_unsafe__fix_of_a_major_release__is_for_its_minor_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    one = advisories.Advisory(("munge",), "CVE", "lets", {"rocky 9": "0.5.13-14.el9"}, ("0.5.18",))
    monkeypatch.setattr(advisories, "ADVISORIES", (one,))
    assert [found.fixed for found in advisories.unsafe("rocky 9.6", {"munge": "0.5.13-13.el9"})] == ["0.5.13-14.el9"]
    assert list(advisories.unsafe("rocky 9.6", {"munge": "0.5.13-14.el9"})) == []
    assert [found.fixed for found in advisories.unsafe("rocky 10.1", {"munge": "0.5.13-14.el9"})] == [""]


def test_toolkit__floor_of_preflight_and_of_the_role__is_one() -> None:
    table = yaml.safe_load((paths.content() / "roles/nvidia_container_toolkit/vars/main.yml").read_text())
    floor = table["__nvidia_container_toolkit_floor"]
    assert [one.releases for one in advisories.ADVISORIES if one.authors == advisories.TOOLKIT] == [(floor,)]
