"""A lab under test, driven through the command line as a user would."""

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml

from clusterctl.lab.lab import Lab
from tests.labs import lab_name, state_directory
from tests.manifests import comparable
from tests.programs import call, described, output_of, tail

HERE = Path(__file__).resolve().parent
ALICE = ("sudo", "--login", "--user", "alice")
ALICES = "      - {name: alice, uid: 5001}\n"
"""The line of a lab's inventory that lists her."""
CALL_LIMIT = 600.0  # seconds for one command of clusterctl or podman: seven times a bootstrap on a quiet machine
SSH_LIMIT = 300.0  # seconds for one command on a node
ALERTS_LIMIT = 420.0
"""Seconds in which alerts about a fault that was repaired must end.

Prometheus keeps the last sample of a target for 5 minutes, if it is started again without the target.
"""


def clusterctl(*argv: str, limit: float = CALL_LIMIT, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the command line program, without a terminal."""
    return call(["clusterctl", *argv], limit, **options)


@dataclass(frozen=True)
class TestLab:
    """A lab under test."""

    __test__ = False

    name: str
    workers: int = 2
    release: Callable[[], None] | None = field(default=None, compare=False, repr=False)
    """What `down` does to a lab that several files use in turn (tests/golden.py)."""
    undisturbed: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """The nodes' manifests when `remember` was called, comparable."""

    @property
    def inventory(self) -> Path:
        return state_directory() / self.name / "inventory.yaml"

    @property
    def nodes(self) -> list[str]:
        return ["head1", *(f"gpu{n:02}" for n in range(1, self.workers + 1))]

    @property
    def image(self) -> str:
        """What the kit's registry calls a small Debian."""
        address = yaml.safe_load(self.inventory.read_text())["all"]["vars"]["cluster_no_proxy"][0]
        return f"{address}/lab/debian:13"

    def up(self, *options: str) -> None:
        argv = ["clusterctl", "lab", "up", "--name", self.name, "--workers", str(self.workers), *options]
        output_of(argv, CALL_LIMIT)

    def declare(self, *lines: str) -> None:
        """Add lines to the inventory's variables of all hosts."""
        added = "".join(f"    {line}\n" for line in lines)
        self.inventory.write_text(self.inventory.read_text().replace("  vars:\n", f"  vars:\n{added}", 1))

    def down(self) -> None:
        """Remove the lab; one that is used in turn is left to the next user."""
        if self.release:
            self.release()
            return
        output_of(["clusterctl", "lab", "down", "--name", self.name], CALL_LIMIT)

    def switch_on(self, *groups: str) -> None:
        """Put all workers into these groups, as a person would."""
        members = f"      hosts:\n        gpu[01:{self.workers:02}]: {{}}\n"
        text = "".join(f"    {group}:\n{members}" for group in groups)
        self.inventory.write_text(self.inventory.read_text() + text)

    def run(self, *argv: str, expect: int = 0, limit: float = CALL_LIMIT) -> dict[str, Any]:
        """Run a verb on the lab's inventory with JSON output."""
        verb, *options = argv
        done = clusterctl(*verb.split(), str(self.inventory), "--output", "json", *options, limit=limit)
        assert done.returncode == expect, described(done)
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def unchanged(self, *argv: str) -> None:
        """See that a run, of bootstrap where no other is named, has nothing to do on all nodes, and leaves none out."""
        full = ["--full"] * (not argv or argv[0] in ("bootstrap", "plan bootstrap"))
        hosts = self.run(*argv or ("bootstrap",), *full)["hosts"]
        assert {name: host["changed"] for name, host in hosts.items()} == dict.fromkeys({*self.nodes, *hosts}, 0)

    def healthy(self, *options: str) -> dict[str, Any]:
        """Return the status of a healthy cluster.

        An alert about a fault that was repaired ends some time later, and is waited for; nothing else is.
        """
        deadline = time.monotonic() + ALERTS_LIMIT
        while True:
            done = clusterctl("status", str(self.inventory), "--output", "json", *options)
            if done.returncode != 4 or not only_alerts(json.loads(done.stdout)) or time.monotonic() > deadline:
                break
            time.sleep(3)
        assert done.returncode == 0, described(done)
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def ssh_argv(self, node: str, *command: str) -> list[str]:
        return Lab(self.name).ssh_command(node, list(command))

    def ssh(self, node: str, *command: str, stdin: str = "", check: bool = True) -> str:
        """Run a command line on a node as the lab's administrator."""
        done = call(self.ssh_argv(node, *command), SSH_LIMIT, input=stdin)
        assert done.returncode == 0 or not check, f"{node}: {described(done)}\n{tail(stdin)}"
        return done.stdout

    def root(self, node: str, script: str, check: bool = True) -> str:
        """Run a shell script on a node as root."""
        return self.ssh(node, "sudo", "sh", "-eu", "-s", stdin=script, check=check)

    def alarms(self) -> str:
        """What the head has in its journal of nodes whose GPUs were not well."""
        search = "journalctl --quiet --output=cat --unit='slurm-health@*' --grep=' is unfit: '"
        return self.root("head1", f"{search} || [ $? = 1 ]")  # 1: there is none

    def manifest(self, node: str) -> dict[str, Any]:
        """Return what a node consists of, seen by a script that shares nothing with the product."""
        text = self.ssh(node, "sudo", "python3", "-", stdin=(HERE / "manifest.py").read_text())
        document: dict[str, Any] = json.loads(text)
        return document

    def manifests(self, *nodes: str) -> dict[str, Any]:
        """Return the manifests of these nodes, of all where none is named."""
        names = nodes or tuple(self.nodes)
        with ThreadPoolExecutor() as pool:
            return dict(zip(names, pool.map(self.manifest, names), strict=True))

    def comparable_manifests(self) -> dict[str, Any]:
        """Return the manifests of all nodes without what differs by chance."""
        return {node: comparable(manifest) for node, manifest in self.manifests().items()}

    def remember(self) -> None:
        """Keep the nodes' manifests, for comparison after a fault."""
        self.undisturbed.update(self.comparable_manifests())


AnyLab = TypeVar("AnyLab", bound=TestLab)


def only_alerts(status: dict[str, Any]) -> bool:
    """Return whether firing alerts are all that keeps a cluster from being healthy."""
    nodes = [(node["problem"], node["differences"], node["drift"], node["drift_more"], node["drift_error"])
             for node in status["nodes"]]  # fmt: skip
    services = [state for node in status["nodes"] for state in node["services"].values()]
    slurm = status["slurm"] or {"nodes": {}, "problem": "", "ledger_problem": ""}
    kubernetes = status.get("kubernetes") or {"nodes": {}, "problem": ""}
    states = {state for node in slurm["nodes"].values() for state in node["state"]}
    alerts = status["alerts"] or {"error": None, "firing": []}
    degraded = any(map(any, nodes)) or {*services} - {"active"} or slurm["problem"] or slurm["ledger_problem"]
    degraded = degraded or kubernetes["problem"]
    unwell = [
        node for node in kubernetes["nodes"].values() if node["cordoned"] or node["problems"] or not node["ready"]
    ]
    out_of_service = unwell or states - {"IDLE", "ALLOCATED", "MIXED", "COMPLETING", "PLANNED"} or status["leaving"]
    return bool(alerts["firing"]) and not (degraded or out_of_service or alerts["error"])


def podman(*argv: str) -> str:
    return output_of(["podman", *argv], CALL_LIMIT)


def fresh(purpose: str, *options: str, workers: int = 2) -> AbstractContextManager[TestLab]:
    """A lab of its own for a purpose, of empty nodes; it is removed however its use ends."""
    return fresh_as(TestLab, purpose, *options, workers=workers)


@contextmanager
def fresh_as(kind: type[AnyLab], purpose: str, *options: str, workers: int = 2) -> Iterator[AnyLab]:
    """The same, as another kind of TestLab."""
    lab = kind(lab_name(purpose), workers)
    lab.down()
    try:
        lab.up(*options)
        yield lab
    finally:
        lab.down()


def submit(lab: TestLab, script: str, *options: str) -> str:
    """Submit a small job of an ordinary user's, as shell; return its number.

    With limits Slurm would know when a larger job can begin, and keep the nodes for it.
    """
    argv = [*ALICE, "sbatch", "--parsable", "--mem=1M", "--time=UNLIMITED", "--chdir=/", "--output=none", *options]
    return lab.ssh("head1", *argv, stdin=f"#!/bin/sh\n{script}\n").strip()
