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
