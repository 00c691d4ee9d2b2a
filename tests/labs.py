"""Names of the labs that tests make: one set for each checkout, so that two clones can be tested side by side."""

import hashlib
import os
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent


def lab_name(purpose: str) -> str:
    """Return the name of this checkout's test lab for a purpose."""
    return f"t{hashlib.sha256(str(REPOSITORY).encode()).hexdigest()[:6]}-{purpose}"


def process_name() -> str:
    """Return the name of this process of xdist, or `main` where the tests have one process."""
    return os.environ.get("PYTEST_XDIST_WORKER", "main")


def state_directory() -> Path:
    """Return the directory that holds the labs' directories."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "clusterctl" / "labs"
