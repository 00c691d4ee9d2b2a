"""Which of NVIDIA's packages real apt takes by the preferences of role nvidia_driver, where two sources have a name."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.systems.rendering import a_cluster

DRIVER, LIBRARY = "nvidia-dkms-580-open", "libnvidia-cfg1-580"
# As tests/systems/repositories has them; the newest driver is Ubuntu's, the newest library NVIDIA's.
OFFERED = {
    "NVIDIA": {DRIVER: ["580.159.03-1ubuntu1", "580.105.08-0ubuntu1"], LIBRARY: ["580.159.03-1ubuntu1"]},
    "Ubuntu": {DRIVER: ["580.173.02-0ubuntu0.24.04.1"], LIBRARY: ["580.65.06-0ubuntu0.24.04.4"]},
}
PACKAGE = "Package: {}\nVersion: {}\nArchitecture: amd64\nFilename: x.deb\nSize: 1\nSHA256: {:064d}\n\n"


def apt(folder: Path, *argv: str) -> str:
    """Run one of apt's programs with a state of its own below a folder."""
    places = {"": "", "::Etc": "/etc", "::State": "/state", "::State::status": "/status", "::Cache": "/cache"}
    options = [f"Dir{name}={folder}{place}" for name, place in places.items()]
    options += ["Dir::Etc::parts=-", "APT::Architecture=amd64", "APT::Architectures=amd64", "Acquire::Languages=none"]
    settings = [word for option in options for word in ("-o", option)]
    done = subprocess.run([argv[0], *settings, *argv[1:]], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout


def source(folder: Path, origin: str) -> str:
    """Make a repository without its files; return its line of sources.list."""
    place = folder / origin
    place.mkdir()
    offered = [(name, version) for name, versions in OFFERED[origin].items() for version in versions]
    (place / "Packages").write_text("".join(PACKAGE.format(name, version, 0) for name, version in offered))
    (place / "Release").write_text(f"Origin: {origin}\nLabel: {origin}\n")
    return f"deb [trusted=yes] file:{place} ./\n"


def candidates(folder: Path) -> list[str]:
    return re.findall(r"Candidate: (\S+)", apt(folder, "apt-cache", "policy", DRIVER, LIBRARY))


@pytest.mark.skipif(not shutil.which("apt-cache"), reason="apt itself is asked")
@pytest.mark.proves("driver", "NVIDIA's driver is not mixed with Ubuntu's packages of the same names.")
@pytest.mark.parametrize(("pin", "expected"), [("", "580.159.03-1ubuntu1"), ("580.105.08", "580.105.08-0ubuntu1")])
def test_pin__two_sources_have_the_name__takes_nvidias(tmp_path: Path, pin: str, expected: str) -> None:
    for place in ("cluster", "etc/preferences.d", "state/lists/partial", "cache/archives/partial"):
        (tmp_path / place).mkdir(parents=True)
    (tmp_path / "status").touch()
    (tmp_path / "etc/sources.list").write_text("".join(source(tmp_path, origin) for origin in OFFERED))
    apt(tmp_path, "apt-get", "update")
    assert candidates(tmp_path) == ["580.173.02-0ubuntu0.24.04.1", "580.159.03-1ubuntu1"], "the newest of both"

    role = a_cluster(tmp_path / "cluster", "ubuntu-24.04").role("nvidia_driver", "gpu01", nvidia_driver_version=pin)
    (preferences,) = role.value("__nvidia_driver_branch_files")
    (tmp_path / "etc/preferences").write_text(preferences["content"])
    assert candidates(tmp_path) == [expected, "580.159.03-1ubuntu1"]
