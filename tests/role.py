"""Run one role on a warm lab: check mode, converge, converge again without a change, verify, its unit tests.

    scripts/role NAME [--fresh]     NAME: a role, or another scenario of tests/molecule
    scripts/warm                    make the warm lab, or reset it

The warm lab is a finished cluster of a head and one worker, kept until `scripts/warm --remove`. A role is converged on
what earlier runs have left there; --fresh resets the lab first.
"""

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.golden import Golden
from tests.labs import REPOSITORY, WARM
from tests.molecule import test_molecule
from tests.programs import failure_of
from tests.run import say

LIMIT = 900  # seconds for the plays, and for the unit tests


def warm_lab() -> Golden:
    return Golden(WARM, workers=1)


def warm(argv: list[str]) -> int:
    """Make the warm lab, or reset it to what it was when it was made."""
    parser = argparse.ArgumentParser(prog="scripts/warm", description="Make the warm lab of scripts/role, or reset it.")
    parser.add_argument("--new", action="store_true", help="make it again, from the roles as they are now")
    parser.add_argument("--remove", action="store_true", help="remove it")
    asked = parser.parse_args(argv)
    golden = warm_lab()
    if asked.remove:
        golden.remove()
        return 0
    with step("warm lab"):
        golden.make() if asked.new or not golden.exists() else golden.restore()
    say(f"lab {golden.lab.name}: .venv/bin/clusterctl lab ssh --name {golden.lab.name} head1")
    return 0


def role(argv: list[str]) -> int:
    """Run a role and its unit tests; return 1 if either failed."""
    parser = argparse.ArgumentParser(prog="scripts/role", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("name", metavar="NAME", help="a role, or another scenario of tests/molecule")
    parser.add_argument("--fresh", action="store_true", help="reset the warm lab first")
    asked = parser.parse_args(argv)
    if asked.name not in test_molecule.SCENARIOS:
        parser.error(f"{asked.name}: no such scenario; choose from {', '.join(test_molecule.SCENARIOS)}")
    began, golden = time.monotonic(), warm_lab()
    with step("warm lab"):
        if not golden.exists():
            golden.make()
        elif asked.fresh or golden.disturbed():
            golden.restore()
        else:
            golden.lab.up()
    failures = []
    with step(f"check, converge, converge, verify {asked.name}"), tempfile.TemporaryDirectory() as state:
        environment = test_molecule.settings(golden.lab.name, Path(state))
        play = test_molecule.command(asked.name)
        failures.append(failure_of(play, LIMIT, cwd=REPOSITORY, env=environment))
    with step("unit tests"):
        failures.append(failure_of(unit_tests(asked.name), LIMIT, cwd=REPOSITORY))
    failure = next(filter(None, failures), "")
    outcome = f"failed ({failure})" if failure else "passed"
    say(f"== {asked.name}: {outcome} in {time.monotonic() - began:.0f} s")
    return 1 if failure else 0


def unit_tests(name: str) -> list[str]:
    """Return pytest's command line for a role: tests and a file with its name, and files that read its files."""
    unit = REPOSITORY / "tests" / "unit"
    reads = re.compile(rf'(?:program\(|paths\.content\(\) / )"roles/{name}/')
    own = [
        path for path in sorted(unit.glob("test_*.py")) if path.stem == f"test_{name}" or reads.search(path.read_text())
    ]
    of_all = [f"{unit}/test_roles.py", "-k", f"{name} or {' or '.join(path.stem for path in own) or name}"]
    return [sys.executable, "-m", "pytest", "--quiet", "--no-header", *map(str, own), *of_all]


@contextmanager
def step(title: str) -> Iterator[None]:
    """Print how long a step took."""
    began = time.monotonic()
    yield
    say(f"== {title}: {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    try:
        sys.exit({"role": role, "warm": warm}[sys.argv[1]](sys.argv[2:]))
    except KeyboardInterrupt:
        kept = "scripts/warm resets the lab" if warm_lab().exists() else "there is no warm lab, the next call makes it"
        say(f"== interrupted; {kept}")
        sys.exit(130)
