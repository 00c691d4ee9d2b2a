"""The directory of one run, in the cluster's `.clusterctl/runs`: Ansible's log, the events and the summary."""

import contextlib
import os
import re
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from clusterctl.util.errors import ClusterctlError

RUNS_KEPT = 100

NAME = re.compile(r"(\d{8}T\d{6}Z)-([a-z-]+?)(-\d+)?")


@dataclass(frozen=True)
class RunDirectory:
    """`.clusterctl/runs/<UTC time>-<verb>`: the files of a run; only its owner can read them."""

    path: Path

    @property
    def log(self) -> Path:
        return self.path / "ansible.log"

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"

    @classmethod
    def create(cls, state: Path, verb: str) -> "RunDirectory":
        """Make the directory under `state` (the cluster's `.clusterctl`); keep at most RUNS_KEPT, delete the oldest."""
        for directory in (state, state / "runs"):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory.chmod(0o700)
        existing = [path for path in (state / "runs").iterdir() if NAME.fullmatch(path.name) and not path.is_symlink()]
        for old in sorted(existing)[: -RUNS_KEPT + 1]:
            shutil.rmtree(old, ignore_errors=True)
        name = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{verb}"
        for number in range(1000):
            path = state / "runs" / (f"{name}-{number + 1}" if number else name)
            with contextlib.suppress(FileExistsError):
                path.mkdir(mode=0o700)
                path.chmod(0o700)
                return cls(path)
        raise ClusterctlError(f"{state / 'runs'}: more than 1000 runs in one second")

    def open(self, path: Path) -> int:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
