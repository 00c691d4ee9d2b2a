"""The labs that tests share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.gpus import Site, everything
from tests.cluster.lab import TestLab, fresh, submit
from tests.cluster.members import AT_ONCE, JOB, JOBS, Growing, crowd, states
from tests.cluster.sessions import new_key
from tests.cluster.slurm import slurm_lab
from tests.cluster.watched import watched_lab
from tests.faults.injury import wait_until
from tests.golden import Golden
from tests.golden import golden as golden  # a fixture


@pytest.fixture(scope="module")
def lab() -> Iterator[TestLab]:
    """A fresh lab of one head and two workers; the tests of test_bootstrap.py take it from empty to working."""
    with fresh("main") as lab:
        yield lab


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's SSH key."""
    return new_key(tmp_path_factory.mktemp("user"))


@pytest.fixture(scope="module")
def cluster(lab: TestLab) -> TestLab:
    """The same lab, bootstrapped."""
    lab.run("bootstrap")
    return lab


@pytest.fixture(scope="session")
def members(golden: Golden) -> Iterator[Growing]:
    """The golden lab of two workers, and a third that comes and goes."""
    with golden.taken_as(Growing) as lab:
        crowd(lab)
        yield lab


@pytest.fixture(scope="session")
def jobs(members: Growing) -> str:
    """Fifty jobs that run on the two, and fifty that wait for them; the array's number."""
    number = submit(members, JOB, f"--array=1-{JOBS}%{AT_ONCE}")
    wait_until(lambda: states(members, number).count("RUNNING") == AT_ONCE)
    return number


@pytest.fixture(scope="session")
def whole(golden: Golden) -> Iterator[TestLab]:
    """A lab that the tests which share it leave whole; a small job need not wait long behind a large one."""
    with golden.taken("slurm_head_conf_extra: {SchedulerParameters: bf_interval=1}") as lab:
        yield lab


@pytest.fixture(scope="session")
def gpus() -> Iterator[Site]:
    """A lab with all that GPUs can have; the last file that shares it takes it apart."""
    with everything() as site:
        yield site


@pytest.fixture(scope="session")
def slurm() -> Iterator[TestLab]:
    """A lab with what Slurm's users and administrators can have."""
    with slurm_lab() as lab:
        yield lab


@pytest.fixture(scope="session")
def watched() -> Iterator[TestLab]:
    """A lab with alerts and their receivers; the last file that shares it takes it down."""
    with watched_lab() as lab:
        yield lab
