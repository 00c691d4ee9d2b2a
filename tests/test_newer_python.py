"""The unit tests again, under the newest Python on this machine, with the Ansible that only newer Pythons get."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.labs import REPOSITORY


def _newer() -> str | None:
    """The newest CPython after the running one, from PATH or beside a pyenv's."""
    for minor in range(15, sys.version_info.minor, -1):
        shelf = sorted((Path.home() / ".pyenv" / "versions").glob(f"3.{minor}.*/bin/python3.{minor}"))
        for program in filter(None, [*map(str, shelf), shutil.which(f"python3.{minor}")]):
            if subprocess.run([program, "-c", "import ensurepip"], capture_output=True, check=False).returncode == 0:
                return program
    return None


def test_unit_tests_pass_under_a_newer_python(tmp_path: Path) -> None:
    program = _newer()
    if program is None:
        pytest.skip(f"this machine has no Python newer than {sys.version_info.major}.{sys.version_info.minor}")
    environment = tmp_path / "venv"
    subprocess.run([program, "-m", "venv", str(environment)], check=True)
    pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, str(REPOSITORY), "pytest", "hypothesis", "nvidia-ml-py"], check=True)
    done = subprocess.run(
        [str(environment / "bin" / "python"), "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/unit"],
        cwd=REPOSITORY, capture_output=True, text=True, check=False,
        env={"PATH": f"{environment / 'bin'}:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
