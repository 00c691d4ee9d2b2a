"""Drop-ins that have to make something of a vendor's unit, with real systemd's own programs."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.systems.rendering import a_cluster

UNIT = "nvidia-persistenced.service"
# Ubuntu's, of nvidia-compute-utils; three public copies from hosts with 22.04 and 24.04 agree.
CANONICAL = """\
[Unit]
Description=NVIDIA Persistence Daemon
Wants=syslog.target
StopWhenUnneeded=true
Before=systemd-backlight@backlight:nvidia_0.service

[Service]
Type=forking
ExecStart=/usr/bin/nvidia-persistenced --user nvidia-persistenced --no-persistence-mode --verbose
ExecStopPost=/bin/rm -rf /var/run/nvidia-persistenced
"""


@pytest.mark.skipif(not shutil.which("systemctl"), reason="systemd itself is asked")
@pytest.mark.proves("driver", "Ubuntu's persistence daemon can be enabled and keeps persistence mode on.")
def test_persistenced__ubuntus_static_unit__can_be_enabled(tmp_path: Path) -> None:
    (tmp_path / "cluster").mkdir()
    role = a_cluster(tmp_path / "cluster", "ubuntu-24.04").role("nvidia_driver", "gpu01")
    root = tmp_path / "root"
    unit = root / "usr/lib/systemd/system" / UNIT
    unit.parent.mkdir(parents=True)
    unit.write_text(CANONICAL)
    (root / "etc/systemd/system").mkdir(parents=True)
    link = root / f"etc/systemd/system/multi-user.target.wants/{UNIT}"
    enable = ["systemctl", f"--root={root}", "enable", UNIT]
    subprocess.run(enable, capture_output=True, check=False, timeout=60)
    assert not link.is_symlink(), "it is static"

    (file,) = [one for one in role.value("__nvidia_driver_daemon_files") if "persistenced" in one["dest"]]
    path = root / file["dest"].lstrip("/")
    path.parent.mkdir()
    path.write_text(file["content"])
    subprocess.run(enable, capture_output=True, check=True, timeout=60)
    assert link.is_symlink()
    assert "--no-persistence-mode" not in file["content"]
    assert {"name": "nvidia-persistenced", "restart_on": [file["dest"]]} in role.value("__nvidia_driver_units")


@pytest.mark.parametrize(
    ("system", "has_private"),
    [("debian-12", True), ("debian-13", False), ("ubuntu-22.04", True), ("ubuntu-24.04", True)],
)
def test_sssd__sockets_that_the_package_enables__are_disabled(tmp_path: Path, system: str, has_private: bool) -> None:
    """Units of sssd-common 2.8.2 in Debian 12 and 2.10.1 in Debian 13; Ubuntu has 2.6.3 and 2.9.4.

    sssd.service wants them, and PAM's two bind to each other. autofs and sudo, which sssd.conf does not list, stay.
    """
    units = a_cluster(tmp_path, system).role("sssd", "head1").value("__sssd_family_units")
    assert all((unit["state"], unit["enabled"]) == ("stopped", False) for unit in units)
    names = {"sssd-nss.socket", "sssd-pam.socket", "sssd-ssh.socket"}
    assert {unit["name"] for unit in units} == names | ({"sssd-pam-priv.socket"} if has_private else set())
