"""Counts of what a command costs, the same on any machine however busy: tasks, bytes, connections, processes."""

import itertools
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from clusterctl.lab.podman import run_as_root
from tests.bench.profile import LATER, events
from tests.cluster.lab import TestLab, podman
from tests.faults.injury import container, gateway
from tests.labs import REPOSITORY
from tests.programs import output_of

LIMIT = 600.0
"""Seconds after which a counted command hangs."""

# Python loads it at its start, and in every Python that such a process starts. One line for each process started, and
# for each directory of PATH in which a program is looked for to replace this one: of these lines, alike, one counts.
_AUDIT = """\
import os, sys

STARTS = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec")

def note(event, arguments):
    # Since Python 3.13 subprocess may use posix_spawn, for what it has said to start already.
    if event in STARTS and (event != "os.posix_spawn" or sys._getframe(1).f_globals["__name__"] != "subprocess"):
        program = os.path.basename(os.fsdecode(arguments[0])) if arguments else "a copy of itself"
        log = os.open(os.environ["STARTED_PROCESSES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(log, f"{os.getpid()} {event} {program}\\n".encode())
        os.close(log)

sys.addaudithook(note)
"""


def tasks(directory: Path) -> dict[str, Counter[str]]:
    """Return for each host of a run how many of its tasks were `run`, `skipped`, or `left` to a later one."""
    found: dict[str, Counter[str]] = {}
    for event in events(directory):
        if event["event"] == "result" and not event.get("waited"):
            status = {"skipped": "skipped", **dict.fromkeys(LATER, "left")}.get(event["status"], "run")
            found.setdefault(event["host"], Counter())[status] += 1
    return found


# Modules that run on the controller. An include has a result for each host, as has a group_by.
_LOCAL = ("assert", "debug", "fail", "group_by", "include_role", "include_tasks", "include_vars", "meta", "set_fact")


def calls(directory: Path) -> dict[str, list[str]]:
    """Return for each host of a run the tasks that ran on it, and not on the controller for it."""
    found: dict[str, list[str]] = {}
    place = ""
    for event in events(directory):
        place = event["path"] if event["event"] == "task" else place
        ran = event["event"] == "result" and event["status"] not in ("skipped", *LATER) and not event.get("waited")
        if ran and not _is_local(place):
            found.setdefault(event["host"], []).append(f"{event['role']}: {event['task']}")
    return found


@cache
def _is_local(place: str) -> bool:
    """Return whether the task at FILE:LINE runs on the controller."""
    file, _, line = place.rpartition(":")
    lines = (REPOSITORY / file).read_text(encoding="utf-8").splitlines()[int(line) - 1 :]
    own = "\n".join([lines[0], *itertools.takewhile(lambda text: not text.lstrip().startswith("- name:"), lines[1:])])
    return re.search(rf"^\s*ansible\.builtin\.({'|'.join(_LOCAL)}):", own, re.MULTILINE) is not None


@dataclass
class Traffic:
    """What the controller sent to a node's SSH server: bytes with their IP headers, and connections."""

    bytes: int = 0
    connections: int = 0


@contextmanager
def traffic(lab: TestLab) -> Iterator[dict[str, Traffic]]:
    """Count what every node gets from the controller over SSH; the counts are there at the end of the `with`.

    The node's own kernel counts, in its network namespace. So nothing else is in it: not the packages, nor the metrics.
    """
    match = ["--source", gateway(lab), "--protocol", "tcp", "--dport", "22"]
    # Without a target: the rule only counts the packet; the next rule then applies.
    rules = {"bytes": match, "connections": [*match, "--syn"]}
    found = {node: Traffic() for node in lab.nodes}
    inside = {node: ["nsenter", "--target", _pid(lab, node), "--net"] for node in lab.nodes}

    def change(action: str) -> None:
        for enter in inside.values():
            for what, rule in rules.items():
                run_as_root(
                    [*enter, "iptables", action, "INPUT", *rule, "--match", "comment", "--comment", f"costs-{what}"]
                )

    change("--insert")
    try:
        yield found
        for node, enter in inside.items():
            saved = run_as_root([*enter, "iptables-save", "--counters", "--table", "filter"]).stdout
            for packets, size, what in re.findall(
                r"^\[(\d+):(\d+)\] -A INPUT .*--comment costs-(\w+)", saved, re.MULTILINE
            ):
                setattr(found[node], what, int(size if what == "bytes" else packets))
    finally:
        change("--delete")


def _pid(lab: TestLab, node: str) -> str:
    return podman("inspect", "--format", "{{.State.Pid}}", container(lab, node)).strip()


@dataclass
class Processes:
    """The processes that a command started, itself not among them: its Pythons say so, other programs do not."""

    environment: Mapping[str, str]
    log: Path
    started: Counter[str] = field(default_factory=Counter)

    def read(self) -> None:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        once = dict.fromkeys(line for line in lines if " os.exec " in line)
        rows = [*(line for line in lines if line not in once), *once]
        self.started = Counter(row.partition(" ")[2] for row in rows)


@contextmanager
def processes() -> Iterator[Processes]:
    """Count the processes that commands with this environment start; the counts are there at the end of the `with`."""
    with tempfile.TemporaryDirectory(prefix="clusterctl-bench-") as folder:
        Path(folder, "sitecustomize.py").write_text(_AUDIT)
        log = Path(folder, "started")
        counted = Processes({"PYTHONPATH": folder, "STARTED_PROCESSES": str(log)}, log)
        yield counted
        counted.read()


def started(*argv: str) -> Counter[str]:
    """Run clusterctl with these arguments; return what processes it started. It must succeed."""
    with processes() as counted:
        output_of([sys.executable, "-m", "clusterctl", *argv], LIMIT, env={**os.environ, **counted.environment})
    return counted.started


def modules(*argv: str) -> set[str]:
    """Run clusterctl with these arguments; return the modules that it imported beyond those of a bare Python."""

    def imported(*arguments: str) -> set[str]:
        done = subprocess.run(
            [sys.executable, "-X", "importtime", *arguments],
            capture_output=True,
            text=True,
            check=True,
            stdin=subprocess.DEVNULL,
            timeout=LIMIT,
        )
        return set(re.findall(r"^import time: .*\| +(\S+)$", done.stderr, re.MULTILINE))

    return imported("-m", "clusterctl", *argv) - imported("-c", "pass")
