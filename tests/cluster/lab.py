"""A lab under test, driven through the command line as a user would."""

import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.labs import lab_name, state_directory

HERE = Path(__file__).resolve().parent
ALICE = ("sudo", "--login", "--user", "alice")


def clusterctl(*argv: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the command line program, without a terminal."""
    options = {"capture_output": True, "text": True, "check": False, "stdin": subprocess.DEVNULL, **options}
    return subprocess.run(["clusterctl", *argv], **options)


@dataclass(frozen=True)
class TestLab:
    """A lab under test."""

    __test__ = False

    name: str
    workers: int = 2

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
        done = clusterctl("lab", "up", "--name", self.name, "--workers", str(self.workers), *options)
        assert done.returncode == 0, done.stderr

    def declare(self, *lines: str) -> None:
        """Add lines to the inventory's variables of all hosts."""
        added = "".join(f"    {line}\n" for line in lines)
        self.inventory.write_text(self.inventory.read_text().replace("  vars:\n", f"  vars:\n{added}", 1))

    def down(self) -> None:
        done = clusterctl("lab", "down", "--name", self.name)
        assert done.returncode == 0, done.stderr

    def switch_on(self, *groups: str) -> None:
        """Put all workers into these groups, as a person would."""
        members = f"      hosts:\n        gpu[01:{self.workers:02}]: {{}}\n"
        text = "".join(f"    {group}:\n{members}" for group in groups)
        self.inventory.write_text(self.inventory.read_text() + text)

    def run(self, *argv: str, expect: int = 0) -> dict[str, Any]:
        """Run a verb on the lab's inventory with JSON output."""
        verb, *options = argv
        done = clusterctl(verb, str(self.inventory), "--output", "json", *options)
        assert done.returncode == expect, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def unchanged(self, *argv: str) -> None:
        """See that a run, of bootstrap where no other is named, has nothing to do on all nodes."""
        hosts = self.run(*argv or ("bootstrap",))["hosts"]
        assert {name: host["changed"] for name, host in hosts.items()} == dict.fromkeys({*self.nodes, *hosts}, 0)

    def healthy(self, *options: str) -> dict[str, Any]:
        """Return the status of a cluster that is whole; an alert about what was repaired ends some time afterwards."""
        for _ in range(60):
            done = clusterctl("status", str(self.inventory), "--output", "json", *options)
            document: dict[str, Any] = json.loads(done.stdout)
            if done.returncode != 4 or not (document["alerts"]["error"] or document["alerts"]["firing"]):
                break
            time.sleep(3)
        assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return document

    def ssh_argv(self, node: str, *command: str) -> list[str]:
        return ["clusterctl", "lab", "ssh", "--name", self.name, node, "--", *command]

    def ssh(self, node: str, *command: str, stdin: str = "", check: bool = True) -> str:
        """Run a command line on a node as the lab's administrator."""
        done = subprocess.run(self.ssh_argv(node, *command), capture_output=True, text=True, check=False, input=stdin)
        assert done.returncode == 0 or not check, f"{command}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
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


def podman(*argv: Sequence[str] | str) -> str:
    done = subprocess.run(["podman", *map(str, argv)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def bootstrapped(purpose: str, *lines: str) -> Iterator[TestLab]:
    """A lab of its own for a purpose, bootstrapped with these lines too; the tests that share it leave it whole."""
    lab = TestLab(lab_name(purpose))
    lab.down()
    lab.up()
    lab.declare(*lines)
    lab.run("bootstrap")
    yield lab
    lab.down()


def submit(lab: TestLab, script: str, *options: str) -> str:
    """Submit a small job of an ordinary user's, as shell; return its number."""
    argv = [*ALICE, "sbatch", "--parsable", "--mem=1M", "--chdir=/", "--output=none", *options]
    return lab.ssh("head1", *argv, stdin=f"#!/bin/sh\n{script}\n").strip()
