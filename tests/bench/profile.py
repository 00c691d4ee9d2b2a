"""Where the time of a run of clusterctl went, read from what it keeps in its run directory."""

import json
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from clusterctl.ansible import process
from clusterctl.util.paths import content
from tests.bench.measure import BenchError, Cost, Document, say

_SSH_ARGS = "-o ControlMaster=auto -o ControlPersist=5s -o ConnectTimeout=10"


@dataclass(frozen=True)
class Task:
    """One task of a run: the slowest host's seconds, by the clock of Ansible's own worker processes."""

    role: str
    name: str
    seconds: float
    hosts: int

    def __str__(self) -> str:
        where = f"{self.hosts} node" + ("s" if self.hosts > 1 else " ")
        return f"{self.seconds:6.1f} s  {where}  {self.role or '-'}: {self.name}"


LATER = ("waits", "runs")
"""Statuses of a result after which there is another one of the same task."""


def latest_run(directory: Path, verb: str) -> Path:
    """Return the directory of the newest run of a verb. Raises BenchError where there is none."""
    runs = sorted((directory / ".clusterctl" / "runs").glob(f"*-{verb}*"))
    if not runs:
        raise BenchError(f"{directory}: no run of {verb} is recorded")
    return runs[-1]


def events(directory: Path) -> Iterator[Document]:
    """Read the events of a run, in order."""
    for line in (directory / "events.jsonl").read_text().splitlines():
        yield json.loads(line)


def tasks(directory: Path) -> list[Task]:
    """Return the tasks of a run in order, without those that every host skipped or left to a later one."""
    found: dict[tuple[str, ...], Task] = {}
    play = ""
    for event in events(directory):
        play = event.get("name", play) if event["event"] == "play" else play
        if event["event"] == "result" and event["status"] not in ("skipped", *LATER) and not event.get("waited"):
            key = (play, event["role"], event["task"], event["path"])
            old = found.get(key, Task(event["role"], event["task"], 0.0, 0))
            found[key] = Task(old.role, old.name, max(old.seconds, float(event["seconds"])), old.hosts + 1)
    return list(found.values())


def host_tasks(directory: Path) -> int:
    """Return how many times a task ran on a host."""
    return sum(task.hosts for task in tasks(directory))


def ping_command(inventory: Path) -> tuple[str | Path, ...]:
    """Return the least that Ansible can do with all nodes, with our settings: start, connect, one trivial module.

    The connections are new ones, as in every run of clusterctl; their masters end by themselves within seconds.
    """
    settings = process.settings()
    settings |= {"ANSIBLE_SSH_CONTROL_PATH": f"/tmp/bench-{uuid.uuid4().hex[:12]}-%%C", "ANSIBLE_SSH_ARGS": _SSH_ARGS}
    program = Path(sys.executable).with_name("ansible")
    playbooks = content() / "playbooks"
    env = [f"{name}={value}" for name, value in settings.items()]
    return ("env", *env, program, "all", "-i", inventory, "--playbook-dir", playbooks, "-m", "ansible.builtin.ping")


def report(directory: Path, cost: Cost, least: Cost) -> Document:
    """Print and return where the time of a run went, by stage and by task."""
    summary = json.loads((directory / "summary.json").read_text())
    done = tasks(directory)
    inside = sum(task.seconds for task in done)
    parts = {
        "before and after Ansible: start, inventory, secrets, preflight, discovery": cost.wall - summary["seconds"],
        "Ansible between tasks": summary["seconds"] - inside,
        f"in {len(done)} tasks ({host_tasks(directory)} host-tasks), each as long as its slowest node": inside,
        "what `ansible all -m ping` takes: start, new connections, one module": least.wall,
    }
    say(f"\n  Where clusterctl's {cost.wall:.1f} s went ({directory.name})")
    for what, seconds in parts.items():
        say(f"  {seconds:6.1f} s  {what}")
    say("\n  By stage")
    for stage in summary["stages"]:
        say(f"  {stage['seconds']:6.1f} s  {len(stage['hosts'])} nodes  {stage['play']}: {stage['role'] or 'facts'}")
    say("\n  The slowest tasks")
    slowest = sorted(done, key=lambda task: -task.seconds)[:20]
    for task in slowest:
        say(f"  {task}")
    return {
        "parts": {what: round(seconds, 2) for what, seconds in parts.items()},
        "ping": least.document(),
        "stages": [{key: stage[key] for key in ("play", "role", "seconds")} for stage in summary["stages"]],
        "tasks": [{"role": t.role, "name": t.name, "seconds": t.seconds, "hosts": t.hosts} for t in slowest],
    }
