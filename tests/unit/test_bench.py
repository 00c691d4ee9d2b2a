"""Ceilings of counts (tests/costs.yml), what a start of the program costs in counts, and the bench's own parts."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.bench import __main__ as bench
from tests.bench import against_floor, ceilings, counts
from tests.bench.measure import BenchError, run
from tests.labs import REPOSITORY

_CEILINGS = "exact: {tasks: 20}\nvarying: {bytes: 1000}\n"
_INVENTORY = """\
all:
  vars: {cluster_name: aurora, cluster_networks: [10.0.0.0/16]}
  children:
    slurm_head: {hosts: {head1: {ansible_host: 10.0.0.1}}}
    slurm_workers: {hosts: {gpu01: {ansible_host: 10.0.0.2}}}
"""


@pytest.fixture
def costs(tmp_path: Path) -> Path:
    path = tmp_path / "costs.yml"
    path.write_text(_CEILINGS)
    return path


@pytest.mark.parametrize(("name", "count"), [("tasks", 20), ("tasks", 18), ("bytes", 1000), ("bytes", 800)])
def test_ceiling__count_at_it_or_a_little_below__is_silent(costs: Path, name: str, count: int) -> None:
    assert ceilings.complaint(name, count, costs) == ""


@pytest.mark.proves("costs", "A count above its ceiling fails.")
@pytest.mark.parametrize(("name", "count", "fitting"), [("tasks", 21, "tasks: 21"), ("bytes", 1001, "bytes: 1102")])
def test_ceiling__count_above_it__names_both_and_the_way_out(costs: Path, name: str, count: int, fitting: str) -> None:
    text = ceilings.complaint(name, count, costs)
    assert text.startswith(f"{name}: got {count}, the ceiling is ")
    assert f"costs.yml: {'exact' if name == 'tasks' else 'varying'}: {fitting}," in text


@pytest.mark.proves("costs", "A count far below its ceiling fails until the ceiling is lowered.")
@pytest.mark.parametrize(("name", "count", "fitting"), [("tasks", 17, "tasks: 17."), ("bytes", 799, "bytes: 879.")])
def test_ceiling__count_far_below_it__asks_to_lower_it(costs: Path, name: str, count: int, fitting: str) -> None:
    text = ceilings.complaint(name, count, costs)
    assert "far below its ceiling" in text
    assert text.endswith(fitting)


@pytest.mark.parametrize(
    "text",
    [
        "exact: {a: 1}\n",
        "exact: {a: 1}\nvarying: {a: 2}\n",
        "exact: {a: 1.5}\nvarying: {}\n",
        "exact: {a: true}\nvarying: {}\n",
        "exact: {a: -1}\nvarying: {}\n",
    ],
)
def test_ceilings__file_with_a_mistake__is_refused(costs: Path, text: str) -> None:
    costs.write_text(text)
    with pytest.raises(ValueError, match=r"costs\.yml: "):
        ceilings.read(costs)


def test_ceilings__each_of_the_file__has_its_test_and_its_comment() -> None:
    files = ("cluster/test_costs.py", "cluster/test_unchanged_kubernetes.py", "unit/test_bench.py")
    tests = "".join((REPOSITORY / "tests" / file).read_text() for file in files)
    lines = ceilings.FILE.read_text().splitlines()
    for name in (name for section in ceilings.read().values() for name in section):
        assert f'"{name}"' in tests, name
        (place,) = (place for place, line in enumerate(lines) if line.startswith(f"  {name}: "))
        assert lines[place - 1].startswith("  # "), name


@pytest.mark.proves("costs", "`--version` keeps its imports within their ceiling and starts no process.")
def test_start__version__imports_few_modules_and_starts_nothing() -> None:
    modules = counts.modules("--version")
    ceilings.check({"version_modules": len(modules)}, str(sorted(modules)))
    assert counts.started("--version") == {}


@pytest.mark.proves("costs", "`validate` keeps its imports within their ceiling and starts no process.")
def test_start__validate__imports_few_modules_and_starts_nothing(tmp_path: Path) -> None:
    inventory = tmp_path / "inventory.yaml"
    inventory.write_text(_INVENTORY)
    modules = counts.modules("validate", str(inventory))
    ceilings.check({"validate_modules": len(modules)}, str(sorted(modules)))
    assert counts.started("validate", str(inventory)) == {}


def test_started__children_and_theirs__are_counted_by_program(tmp_path: Path) -> None:
    """The positive control of every count of processes."""
    inner = "import os; pid = os.fork(); pid or os._exit(0); os.waitpid(pid, 0); os.execvp('true', ['true'])"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}], check=True)"
    with counts.processes() as counted:
        subprocess.run([sys.executable, "-c", outer], env={**os.environ, **counted.environment}, check=True, timeout=60)
    python = Path(sys.executable).name
    assert counted.started == {f"subprocess.Popen {python}": 1, "os.fork a copy of itself": 1, "os.exec true": 1}


def test_bench_run__command_that_hangs__is_stopped_with_its_children(tmp_path: Path) -> None:
    child = tmp_path / "child"
    script = f"echo some output; sleep 600 & echo $! >{child}; wait"
    with pytest.raises(BenchError, match=r"^sh -c .* did not end within 1 s:\nsome output$"):
        run("sh", "-c", script, limit=1)
    assert not alive(int(child.read_text()))


def test_bench_run__command_that_fails__shows_its_end() -> None:
    with pytest.raises(BenchError, match=r"^sh -c .* ended with 3:\nits reason$"):
        run("sh", "-c", "echo its reason >&2; exit 3")


def alive(pid: int) -> bool:
    """Return whether a process runs; one that was killed is soon gone."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
            if "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text():
                return False
        except (ProcessLookupError, FileNotFoundError):
            return False
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    return True


def test_bench_parts__by_size__are_the_same() -> None:
    assert set(bench.TINY) == set(bench.measures(1, 1, (2, 3))) == set(bench.PARTS)


def test_floor__clusters_that_differ__are_told_apart_by_line() -> None:
    none: dict[str, Any] = {"holds": [], "units": [], "files": {"/etc/hosts": []}}
    hand = {"head1": {**none, "packages": ["munge 0.5"], "users": ["alice"]}}
    tool = {"head1": {**none, "packages": ["munge 0.5", "slurmd 24"], "users": [], "files": {"/etc/clusterctl": []}}}
    assert against_floor.differences(hand, hand) == []
    assert against_floor.differences(hand, tool) == [
        "head1: packages: only by clusterctl: slurmd 24",
        "head1: users: only by floor.sh: alice",
    ]
    apart = {"only by floor.sh": ["head1:/etc/hosts"], "only by clusterctl": ["head1:/etc/clusterctl"]}
    assert against_floor.files_apart(hand, tool) == apart
