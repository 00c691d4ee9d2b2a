"""clusterctl as its users install it: the wheel in an environment of the newest Python on this machine."""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.labs import REPOSITORY
from tests.programs import output_of

LIMIT = 600
"""Seconds for one step of an installation: a hang, not a measurement."""


@dataclass(frozen=True)
class Installed:
    """The program of an installed wheel, with the versions that it runs on."""

    program: Path
    python: tuple[int, ...]
    ansible: tuple[int, ...]

    def __str__(self) -> str:
        python, ansible = (".".join(map(str, version)) for version in (self.python, self.ansible))
        return f"the wheel under Python {python} with ansible-core {ansible}"


def newest_python() -> str:
    """Return the newest CPython that can make an environment, from PATH or a pyenv: at least the running one."""
    for minor in range(20, sys.version_info.minor, -1):
        pyenv = sorted((Path.home() / ".pyenv" / "versions").glob(f"3.{minor}.*/bin/python3.{minor}"))
        for program in filter(None, [*map(str, pyenv), shutil.which(f"python3.{minor}")]):
            check = [program, "-c", "import ensurepip"]
            if subprocess.run(check, capture_output=True, check=False, timeout=LIMIT).returncode == 0:
                return program
    return sys.executable


def make_environment(directory: Path, *packages: str) -> Path:
    """Make a virtual environment of the newest Python with these packages; return its Python."""
    _run(newest_python(), "-m", "venv", str(directory))
    python = directory / "bin" / "python"
    _run(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages)
    return python


def install_wheel(directory: Path) -> Installed:
    """Build the wheel of this checkout and install it into an environment of the newest Python."""
    _run(sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps",
         "--wheel-dir", str(directory), str(REPOSITORY))  # fmt: skip
    (wheel,) = directory.glob("clusterctl-*.whl")
    python = make_environment(directory / "venv", str(wheel))
    query = "import platform; from importlib.metadata import version; print(platform.python_version())"
    versions = _run(str(python), "-c", f"{query}; print(version('ansible-core'))").split()
    numbers = [tuple(int(part) for part in text.split(".")[:2]) for text in versions]
    return Installed(python.parent / "clusterctl", *numbers)


def _run(*argv: str) -> str:
    return output_of(argv, LIMIT)
