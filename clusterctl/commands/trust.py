"""`trust`: accept the new SSH host keys of reinstalled nodes."""

from clusterctl.run import engine
from clusterctl.run.context import Options
from clusterctl.run.entry import LockDirectory, RenewHostKeys


def trust(options: Options) -> int:
    """Record the host keys that the nodes present now, after confirmation; return the exit code."""
    phases = [
        LockDirectory(),
        RenewHostKeys(),
    ]
    return engine.execute(options, phases)
