"""What holds for all tests: how they share processes and labs, and what examples the fuzz tests try."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

from tests.cluster.conftest import TestLab, bootstrapped
from tests.cluster.members import AT_ONCE, JOB, JOBS, Growing, growing, states, submit
from tests.faults.injury import wait_until


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Let tests that share a lab share a process."""
    from tests.processes import ByLab  # the unit tests run without xdist, too

    return ByLab(config, log)


def pytest_configure(config: pytest.Config) -> None:
    """Let the fuzz tests try the same examples each time, so that a change is judged by itself; long ones try new."""
    settings.register_profile("same", derandomize=True)
    settings.register_profile("new")
    settings.load_profile("new" if "long or not long" in config.option.markexpr else "same")


@pytest.fixture(scope="session")
def members() -> Iterator[Growing]:
    """A lab of two workers, and a third that comes and goes."""
    with growing("members", 2) as lab:
        yield lab


@pytest.fixture(scope="session")
def jobs(members: Growing) -> str:
    """Fifty jobs that run on the two, and fifty that wait for them; the array's number."""
    number = submit(members, JOB, f"--array=1-{JOBS}%{AT_ONCE}")
    wait_until(lambda: states(members, number).count("RUNNING") == AT_ONCE)
    return number


@pytest.fixture(scope="session")
def whole() -> Iterator[TestLab]:
    """A lab that the tests which share it leave whole; a small job need not wait long behind a large one."""
    with bootstrapped("whole", "slurm_head_conf_extra: {SchedulerParameters: bf_interval=1}") as lab:
        yield lab
