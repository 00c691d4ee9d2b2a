"""What holds for all tests: how they share processes, how their helpers fail, and what the fuzz tests try."""

from typing import Any

import pytest
from hypothesis import settings

# The helpers of tests, too, are to show the values that an assert has seen.
pytest.register_assert_rewrite("tests.cluster", "tests.faults")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Let tests that share a lab share a process; xdist itself decides where no whole files are asked for."""
    from tests.processes import ByLab  # the unit tests run without xdist, too

    return ByLab(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_configure(config: pytest.Config) -> None:
    """Let the fuzz tests try the same examples each time, so that a change is judged by itself; long ones try new."""
    settings.register_profile("same", derandomize=True)
    settings.register_profile("new")
    settings.load_profile("new" if "long or not long" in config.option.markexpr else "same")
