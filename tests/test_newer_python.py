"""The unit tests under the newest Python of this machine, with the Ansible that only newer Pythons get."""

import sys
from pathlib import Path

import pytest

from tests.labs import REPOSITORY
from tests.programs import output_of
from tests.pythons import make_environment, newest_python

UNIT_TESTS_LIMIT = 1500
"""Seconds for all unit tests: a hang, not a measurement."""
# What tests/conftest.py and the unit tests import besides clusterctl's own dependencies.
PACKAGES = ("hypothesis", "nvidia-ml-py", "pyte", "pytest", "pytest-timeout", "pytest-xdist")


@pytest.mark.proves("systems", "The unit tests pass under the newest Python and Ansible of the machine.")
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_unit_tests_pass_under_a_newer_python(tmp_path: Path) -> None:
    """CI runs a bootstrap under that Python: tests/cluster/test_bootstrap.py."""
    if newest_python() == sys.executable:
        pytest.skip(f"this machine has no Python newer than {sys.version_info.major}.{sys.version_info.minor}")
    python = make_environment(tmp_path / "venv", str(REPOSITORY), *PACKAGES)
    environment = {"PATH": f"{python.parent}:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(tmp_path)}
    argv = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/unit"]
    output_of(argv, UNIT_TESTS_LIMIT, cwd=REPOSITORY, env=environment)
