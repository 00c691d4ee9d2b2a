"""Golden labs: a bootstrapped lab that is saved once and restored in place.

A node is its container's upper layer and volumes; its host key, address and GPUs come from the lab's directory and
network. So a restored node has the same name, address and keys. A second clone beside the first is not possible: name
and addresses are in the nodes' configuration.

    golden = Golden("warm")            # another purpose is another lab
    if not golden.current():           # no snapshot, or one of other code
        golden.make()                  # lab up, bootstrap, save
    golden.restore()                   # the state of the snapshot, healthy, without drift
    golden.remove()                    # the lab and the snapshot

In tests, the fixture `golden` is the process's own; `with golden.taken() as lab:` restores it for one user.
"""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from clusterctl.lab.podman import as_root, podman_json, remove_containers
from clusterctl.util import files
from clusterctl.workspace import secrets
from tests.cluster.lab import CALL_LIMIT, AnyLab, TestLab, clusterctl, podman
from tests.faults.injury import container, wait_until
from tests.labs import REPOSITORY, abandoned, lab_name, process_name, release, snapshots_directory
from tests.programs import described, output_of

KEEP = "CLUSTERCTL_KEEP_GOLDEN"
"""Environment variable: tests keep their golden lab and its snapshot, and use them while the code is the same."""
STOP_LIMIT = 60  # seconds that a node's services have to end
# What a snapshot is made from. The inventory of a lab is a template in clusterctl/.
SOURCES = ("ansible.cfg", "clusterctl", "playbooks", "plugins", "roles")


def sources_key() -> str:
    """Return a hash of the files that decide what a bootstrapped lab consists of."""
    digest = hashlib.sha256()
    for source in SOURCES:
        root = REPOSITORY / source
        for path in sorted(root.rglob("*")) if root.is_dir() else [root]:
            if path.is_file() and "__pycache__" not in path.parts:
                content = hashlib.sha256(path.read_bytes()).hexdigest()
                digest.update(f"{path.relative_to(REPOSITORY)} {path.stat().st_mode & 0o777:o} {content}\n".encode())
    return digest.hexdigest()


def copy_tree(source: Path | str, target: Path | str) -> None:
    """Copy a directory's content with owners, hard links, devices (an overlay's whiteouts) and extended attributes."""
    copy = ["cp", "--archive", "--preserve=xattr", f"{source}/.", f"{target}/"]
    output_of(as_root(["setpriv", "--pdeathsig", "KILL", *copy]), CALL_LIMIT)  # a killed test leaves no copy under way


def remove_tree(path: Path) -> None:
    """Remove a directory of root's, if there is one."""
    output_of(as_root(["rm", "--recursive", "--force", "--one-file-system", str(path)]), CALL_LIMIT)


class Phases:
    """How long each part of a save or a restore took."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since = time.monotonic()

    def end(self, name: str) -> None:
        now = time.monotonic()
        self.seconds[name] = now - self._since
        self._since = now

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in self.seconds.items())
        return f"{sum(self.seconds.values()):.1f} s ({parts})"


class Golden:
    """A lab and its snapshot. The lab's network stays from one restore to the next, and with it the addresses."""

    def __init__(self, purpose: str | None = None, workers: int = 2) -> None:
        self.lab = TestLab(lab_name(purpose or f"gold-{process_name()}"), workers)
        self.folder = snapshots_directory() / self.lab.name
        self._record = self.folder / "snapshot.json"  # written last: a snapshot without it is not complete
        self._restoring = self.folder / "restoring"  # there while a restore has not come to its end
        self._is_ours = False  # whether this process made it, or chose to use the one that was kept
        self._turn = 0

    # What a golden lab is; a test makes a smaller one

    def build(self) -> None:
        """Bring the lab that is up to the state that is saved."""
        self.lab.run("bootstrap")

    def wait(self) -> None:
        """Wait until the nodes that boot are a healthy cluster without drift: `clusterctl status` exits with 0."""
        idle = ["idle"] * self.lab.workers
        ask = ("sinfo", "--noheader", "--Node", "--format=%T")
        wait_until(lambda: self.lab.ssh("head1", *ask, check=False).split() == idle, self._describe_slurm)
        last = [clusterctl("status", str(self.lab.inventory))]

        def is_healthy() -> bool:
            last.append(clusterctl("status", str(self.lab.inventory)))
            return last[-1].returncode == 0

        wait_until(is_healthy, lambda: described(last[-1]))

    def _describe_slurm(self) -> str:
        """Return what Slurm reports about the nodes, and what has failed on each node."""
        look = "systemctl list-units --failed --plain --no-legend; journalctl --unit 'slurm*' --no-pager --lines 15"
        said = self.lab.ssh("head1", "scontrol", "show", "nodes", "--oneliner", check=False)
        return "\n".join([said, *(f"{node}:\n{self.lab.root(node, look, check=False)}" for node in self.lab.nodes)])

    # The snapshot

    def exists(self) -> bool:
        """Return whether there is a complete snapshot."""
        return self._record.exists()

    def disturbed(self) -> bool:
        """Return whether a restore was interrupted, so that the lab is between two states."""
        return self._restoring.exists()

    def current(self) -> bool:
        """Return whether there is a complete snapshot, and the code is still that which it was made from."""
        return self.exists() and json.loads(self._record.read_text())["key"] == sources_key()

    def make(self) -> None:
        """Make the lab from nothing and save it; what an earlier process left of either is removed first."""
        self.remove()
        try:
            phases, key = Phases(), sources_key()
            self.lab.up()
            phases.end("lab up")
            self.build()
            phases.end("build")
            print(f"golden lab {self.lab.name} made in {phases}")
            self.save(key)
        except BaseException:
            self.remove()
            raise

    def save(self, key: str | None = None) -> None:
        """Save the lab as it is now: stop its nodes in order, copy them and the cluster's directory, start them."""
        phases = Phases()
        remove_tree(self.folder)
        self.folder.mkdir(parents=True, mode=0o700)
        head, *workers = self._containers()
        for some in (workers, [head]):
            podman("stop", "--time", str(STOP_LIMIT), *some)
        phases.end("stop")
        with ThreadPoolExecutor() as pool:
            nodes = list(pool.map(self._save_node, (head, *workers)))
        self._save_directory()
        record = {"key": key or sources_key(), "subnet": self._subnet(), "nodes": nodes}
        unfinished = self._record.with_suffix(".new")
        unfinished.write_text(json.dumps(record, indent=2))
        unfinished.rename(self._record)
        phases.end("copy")
        self._start(head, *workers)
        phases.end("start")
        self.wait()
        phases.end("healthy")
        print(f"golden lab {self.lab.name} saved in {phases}")

    def restore(self) -> None:
        """Put the lab back as it was saved, whatever became of it; when that fails, nothing of it is left.

        Ctrl-C leaves the snapshot, and a lab that has to be restored again.
        """
        assert self.exists(), f"{self.folder}: no complete snapshot"
        self._restoring.touch()
        try:
            phases = Phases()
            record = json.loads(self._record.read_text())
            self._remove_nodes()
            phases.end("remove")
            self._restore_network(record["subnet"])
            self._restore_directory()
            with ThreadPoolExecutor() as pool:
                list(pool.map(self._restore_node, record["nodes"]))
            phases.end("copy")
            self._start(*(node["container"] for node in record["nodes"]))
            phases.end("start")
            self.wait()
            phases.end("healthy")
            print(f"golden lab {self.lab.name} restored in {phases}")
            self._restoring.unlink()
        except KeyboardInterrupt:
            raise
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Remove the lab and the snapshot, in whatever state they are."""
        self._is_ours = False
        self._record.unlink(missing_ok=True)
        self.lab.down()
        remove_tree(self.folder)

    # Users

    def ready(self) -> None:
        """Let the lab be as it was saved: made at the process's first use, restored at later ones."""
        if self._is_ours or (os.environ.get(KEEP) and self.current()):
            self.restore()
        else:
            self.make()
        self._is_ours = True

    @contextmanager
    def taken(self, *lines: str) -> Iterator[TestLab]:
        """The lab for one user, as it was saved; lines for its inventory are applied by one more run."""
        with self.taken_as(TestLab) as lab:
            if lines:
                lab.declare(*lines)
                lab.run("bootstrap")
            yield lab

    @contextmanager
    def taken_as(self, kind: type[AnyLab]) -> Iterator[AnyLab]:
        """The lab for one user, as it was saved, as another kind of TestLab.

        Its `down` removes the nodes and keeps the network; it does nothing once the next user has the lab.
        """
        self.ready()
        self._turn += 1
        lab = kind(self.lab.name, self.lab.workers, release=partial(self._release, self._turn))
        try:
            yield lab
        finally:
            lab.down()

    def _release(self, turn: int) -> None:
        if turn == self._turn:
            self._remove_nodes()

    # Parts

    def _containers(self) -> list[str]:
        return [container(self.lab, node) for node in self.lab.nodes]

    def _remove_nodes(self) -> None:
        """Remove all nodes at once, without stopping them, those that a user has added included."""
        listing = podman_json("ps", "--all", "--filter", f"label=clusterctl.lab={self.lab.name}")
        if names := [str(entry["Names"][0]) for entry in listing]:
            remove_containers(*names)

    def _start(self, *names: str) -> None:
        """Start the nodes, and the package cache, which another lab's `down` may have removed meanwhile."""
        with ThreadPoolExecutor() as pool:
            list(pool.map(partial(podman, "start"), names))
        self.lab.up()

    def _subnet(self) -> str:
        listing = podman_json("network", "ls", "--filter", f"name=^clusterctl-{self.lab.name}$")
        return str(listing[0]["subnets"][0]["subnet"]) if listing else ""

    def _restore_network(self, subnet: str) -> None:
        """Make the network again where somebody removed it; podman refuses a subnet that is in use."""
        if not self._subnet():
            label = f"clusterctl.lab={self.lab.name}"
            podman("network", "create", "--label", label, "--subnet", subnet, f"clusterctl-{self.lab.name}")
        assert self._subnet() == subnet, f"the network of {self.lab.name} is {self._subnet()}, expected {subnet}"

    def _save_node(self, name: str) -> dict[str, Any]:
        command, upper, volumes = self._inspect(name)
        self._copy({"upper": upper, **volumes}, self.folder / name)
        return {"container": name, "command": command, "volumes": sorted(volumes)}

    def _copy(self, sources: dict[str, str], folder: Path) -> None:
        for part, source in sources.items():
            target = folder / part.strip("/").replace("/", "-")
            target.mkdir(parents=True)
            copy_tree(source, target)

    def _restore_node(self, node: dict[str, Any]) -> None:
        """Create a container by the command that created the saved one, and fill it before its first start."""
        command: Sequence[str] = node["command"]
        at = command.index("run")
        assert command[0] == "podman" and command[at + 1] == "--detach", command
        podman(*command[1:at], "create", *command[at + 2 :])
        _, upper, volumes = self._inspect(node["container"])
        assert sorted(volumes) == node["volumes"]
        for part, target in {"upper": upper, **volumes}.items():
            copy_tree(self.folder / node["container"] / part.strip("/").replace("/", "-"), target)

    def _inspect(self, name: str) -> tuple[list[str], str, dict[str, str]]:
        """Return the command that created a container, its upper layer, and its volumes by where they are mounted."""
        (found,) = json.loads(podman("inspect", name))
        volumes = {mount["Destination"]: mount["Source"] for mount in found["Mounts"] if mount["Type"] == "volume"}
        return found["Config"]["CreateCommand"], found["GraphDriver"]["Data"]["UpperDir"], volumes

    def _save_directory(self) -> None:
        directory = self.lab.inventory.parent
        (self.folder / "directory").mkdir()
        copy_tree(directory, self.folder / "directory")
        if (directory / secrets.FILE).exists():
            password = secrets.vault_password_file(directory)
            (self.folder / "vault").mkdir(mode=0o700)
            shutil.copy2(password, self.folder / "vault" / password.name)

    def _restore_directory(self) -> None:
        directory = self.lab.inventory.parent
        remove_tree(directory)
        directory.mkdir(parents=True)
        copy_tree(self.folder / "directory", directory)
        for password in (self.folder / "vault").glob("*"):
            target = secrets._password_path(password.name)
            files.make_private_directory(target.parent)
            shutil.copy2(password, target)


def remove_abandoned() -> Iterator[str]:
    """Remove what killed test processes of this checkout left: labs and snapshots; yield a line for each."""
    for purpose in abandoned():
        if purpose.startswith("gold-") and os.environ.get(KEEP):
            continue
        golden = Golden(purpose)
        try:
            golden.remove()
            yield golden.lab.name
        except AssertionError as error:
            yield f"{golden.lab.name} is still there: {error}"
        finally:
            release(golden.lab.name)  # its next test process may be killed, too


@cache
def of_this_process() -> Golden:
    return Golden()


@pytest.fixture(scope="session")
def golden() -> Iterator[Golden]:
    """This process's golden lab, which its tests use in turn; it is made when the first one takes it."""
    try:
        yield of_this_process()
    finally:
        if not os.environ.get(KEEP):
            of_this_process().remove()
