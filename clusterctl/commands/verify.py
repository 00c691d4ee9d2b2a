"""`verify`: test the cluster with jobs and queries."""

from clusterctl.run import engine
from clusterctl.run.context import Options
from clusterctl.run.entry import ENTRY_OF_A_TEST
from clusterctl.run.plays import Play


def verify(options: Options) -> int:
    """Test services, GPU jobs, accounting and metrics; return the exit code."""
    phases = [
        *ENTRY_OF_A_TEST,
        Play("verify", "Test the cluster"),
    ]
    return engine.execute(options, phases)
