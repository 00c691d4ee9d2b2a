"""The unit tests under the newest Python of this machine, with the Ansible that only newer Pythons get."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.labs import REPOSITORY
from tests.pythons import make_environment, newest_python

UNIT_TESTS_LIMIT = 1800
"""Seconds for all unit tests: a hang, not a measurement."""


@pytest.mark.proves("systems", "The unit tests pass under the newest Python and Ansible of the machine.")
@pytest.mark.long
def test_unit_tests_pass_under_a_newer_python(tmp_path: Path) -> None:
    """CI runs a bootstrap under that Python: tests/cluster/test_bootstrap.py."""
    if newest_python() == sys.executable:
        pytest.skip(f"this machine has no Python newer than {sys.version_info.major}.{sys.version_info.minor}")
    python = make_environment(tmp_path / "venv", str(REPOSITORY), "pytest", "hypothesis", "nvidia-ml-py")
    done = subprocess.run(
        [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/unit"],
        cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=UNIT_TESTS_LIMIT,
        env={"PATH": f"{python.parent}:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
