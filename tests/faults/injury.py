"""Injuries to a lab's nodes, inflicted for real from outside or on the node, and healed at the end of a `with`."""

import hashlib
import json
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from clusterctl.lab.podman import run_as_root
from tests import programs
from tests.cluster.lab import TestLab, clusterctl, podman
from tests.manifests import differences, without
from tests.programs import described, output_of, tail

GUARD = 300.0
"""Seconds after which a test that waits is given up: a hang, not a measurement."""
SHORTEST_PAUSE, LONGEST_PAUSE = 0.05, 1.0  # seconds between two checks of a condition
# What a time zone of the inventory's changes: its own files, their record, and the head's copy of the inventory.
OF_ZONE = (
    "/etc/localtime",
    "/etc/timezone",
    "/var/lib/clusterctl/recovery.tar",
    "/var/lib/clusterctl/state/base.json",
)
BERLIN = "cluster_timezone: Europe/Berlin"
CHEAP = 0.02  # seconds that a condition takes which starts no process and can be checked often


def container(lab: TestLab, node: str) -> str:
    return f"clusterctl-{lab.name}-{node}"


@contextmanager
def silent(lab: TestLab, node: str) -> Iterator[None]:
    """Freeze a node as if it were dead: packets reach its address and nothing answers.

    `podman pause` is not used: runc 1.1 gives up after 0.2 s and fails while a process writes to disk (8 of 60 times
    with three `dd conv=fsync`). On cgroup v1 a process that is in vfork() freezes only on the next request.
    """
    cgroup = podman("inspect", "--format", "{{.State.CgroupPath}}", container(lab, node)).strip()
    assert cgroup.startswith("/"), f"{node} is not running"
    root = Path("/sys/fs/cgroup")
    if (root / "cgroup.controllers").exists():
        switch, state, frozen = root / cgroup[1:] / "cgroup.freeze", root / cgroup[1:] / "cgroup.events", "frozen 1"
        freeze, thaw = "1", "0"
    else:
        switch = state = root / "freezer" / cgroup[1:] / "freezer.state"
        freeze = frozen = "FROZEN"
        thaw = "THAWED"

    def is_frozen() -> bool:
        switch.write_text(freeze)
        return frozen in state.read_text().splitlines()

    try:
        deadline = time.monotonic() + GUARD
        while not is_frozen():
            processes = (switch.parent / "cgroup.procs").read_text().split()
            assert time.monotonic() < deadline, f"{node} does not freeze: {state.read_text()}, processes {processes}"
            time.sleep(0.01)
        yield
    finally:
        switch.write_text(thaw)


def gateway(lab: TestLab) -> str:
    """Return the address that the controller has on the lab's network."""
    (network,) = podman(
        "network", "inspect", "--format", "{{range .Subnets}}{{.Gateway}}{{end}}", f"clusterctl-{lab.name}"
    ).split()
    return network


@contextmanager
def outsider(lab: TestLab) -> Iterator[str]:
    """An address of this machine's that the nodes reach through their router, and that is none of the cluster's."""
    digest = hashlib.sha256(lab.name.encode()).digest()
    address = f"198.18.{digest[0]}.{digest[1]}"  # RFC 2544: for tests, never routed
    # Without the connection tracking of this machine: a scan would fill its table.
    quiet = [
        ["iptables", "--table", "raw", "", chain, way, address, "--jump", "CT", "--notrack"]
        for chain, way in (("OUTPUT", "--source"), ("PREROUTING", "--destination"))
    ]
    run_as_root(["ip", "address", "replace", f"{address}/32", "dev", "lo"])
    for rule in quiet:
        run_as_root([word or "--append" for word in rule])
    try:
        yield address
    finally:
        for rule in quiet:
            run_as_root([word or "--delete" for word in rule])
        run_as_root(["ip", "address", "delete", f"{address}/32", "dev", "lo"])


@contextmanager
def cut_off(lab: TestLab, *nodes: str, how: str = "DROP") -> Iterator[None]:
    """Let nodes take no SSH from the controller, in their own network namespaces; each other they still hear."""

    def rule(node: str, action: str) -> None:
        (pid,) = podman("inspect", "--format", "{{.State.Pid}}", container(lab, node)).split()
        match = ["--source", gateway(lab), "--protocol", "tcp", "--dport", "22", "--jump", how]
        argv = ["nsenter", "--target", pid, "--net", "iptables", action, "INPUT", *match]
        output_of(argv, GUARD)

    for node in nodes:
        rule(node, "--insert")
    try:
        yield
    finally:
        for node in nodes:
            rule(node, "--delete")


@contextmanager
def throttled(lab: TestLab, node: str, rate: str) -> Iterator[None]:
    """Limit what a node says and hears to a rate (`1mbit`), at both ends of its cable."""
    (pid,) = podman("inspect", "--format", "{{.State.Pid}}", container(lab, node)).split()
    inside = ["nsenter", "--target", pid, "--net"]

    def link(*argv: str, **wanted: Any) -> Any:
        links = json.loads(output_of([*argv, "ip", "-json", "link"], GUARD))
        (found,) = (link for link in links if all(link.get(k) == v for k, v in wanted.items()))
        return found

    outside = link(ifindex=link(*inside, ifname="eth0")["link_index"])["ifname"]
    ends = [[*inside, "tc", "qdisc"], ["tc", "qdisc"]]
    devices = ["eth0", outside]
    limit = ["root", "tbf", "rate", rate, "burst", "32kb", "latency", "1s"]
    try:
        for end, device in zip(ends, devices, strict=True):
            output_of([*end, "add", "dev", device, *limit], GUARD)
        yield
    finally:
        for end, device in zip(ends, devices, strict=True):
            programs.call([*end, "delete", "dev", device, "root"], GUARD)


@contextmanager
def stuck_file(lab: TestLab, node: str, path: str = "/etc/chrony/chrony.conf") -> Iterator[None]:
    """Change a file that a role manages and make it one that cannot be replaced."""
    lab.root(node, f"echo '# changed by hand' >> {path}; mount --bind {path} {path}")
    try:
        yield
    finally:
        lab.root(node, f"umount {path}")


@contextmanager
def inventory_with(lab: TestLab, line: str) -> Iterator[None]:
    """Add a line to the variables of all hosts."""
    text = lab.inventory.read_text()
    lab.declare(line)
    try:
        yield
    finally:
        lab.inventory.write_text(text)


def change_zone(lab: TestLab) -> str:
    """Let the inventory ask for another time zone than gpu01 has, for good; return it.

    So each fault strikes a run that has something to change, and no run is needed to undo the change.
    """
    kept = lab.inventory.read_text().replace(f"    {BERLIN}\n", "")
    lab.inventory.write_text(kept)
    if lab.ssh("gpu01", "readlink", "/etc/localtime").strip().endswith("/Berlin"):
        return "Etc/UTC"
    lab.declare(BERLIN)
    return "Europe/Berlin"


def zone(lab: TestLab, node: str) -> str:
    return lab.ssh(node, "readlink", "/etc/localtime").strip().partition("/zoneinfo/")[2]


def begin(lab: TestLab, verb: str = "bootstrap", *options: str) -> "subprocess.Popen[str]":
    """Start a run, in a process group of its own, and return when Ansible has started: its events can be read."""
    runs = lab.inventory.parent / ".clusterctl" / "runs"
    before = set(runs.glob("*/events.jsonl"))
    argv = ["clusterctl", verb, str(lab.inventory), *options]
    process = programs.start_for_test(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wait_until(lambda: set(runs.glob("*/events.jsonl")) - before or process.poll() is not None)
    assert process.poll() is None, tail(process.communicate(timeout=GUARD)[0])
    return process


def cloned(lab: TestLab, directory: Path) -> Path:
    """Make the directory a clone of the cluster's, as another administrator has it; return its inventory."""
    directory.mkdir()
    for path in (lab.inventory, *(lab.inventory.parent / name for name in ("known_hosts", "secrets.yml"))):
        shutil.copy(path, directory)
    shutil.copytree(lab.inventory.parent / "hardware", directory / "hardware")
    return directory / lab.inventory.name


def latest_run(lab: TestLab) -> Path:
    """Return the directory of the last run."""
    return max((lab.inventory.parent / ".clusterctl/runs").iterdir())


def wait_until(condition: Callable[[], object], explain: Callable[[], str] = lambda: "") -> None:
    """Wait for a condition, for GUARD seconds at most; `explain` says then what the condition last saw.

    A condition that costs something, as an SSH connection does, is checked less and less often, at last each second.
    """
    deadline, pause = time.monotonic() + GUARD, SHORTEST_PAUSE
    while True:
        began = time.monotonic()
        if condition():
            return
        now = time.monotonic()
        assert now < deadline, f"still not so after {GUARD:.0f} s. {explain()}"
        time.sleep(pause)
        if now - began > CHEAP:
            pause = min(2 * pause, LONGEST_PAUSE)


@contextmanager
def watched(look: Callable[[], None]) -> Iterator[None]:
    """Look every second meanwhile; where that fails, so does the test."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(1):
            look()

    with ThreadPoolExecutor() as pool:
        watcher = pool.submit(watch)
        try:
            yield
        finally:
            over.set()
            watcher.result()


def ended(process: "subprocess.Popen[str]", code: int) -> str:
    """Wait for a run and return what it said; it must end with this code, and without a traceback."""
    try:
        said, _ = process.communicate(timeout=GUARD)
    except subprocess.TimeoutExpired:
        so_far, _ = programs.end(process)
        raise AssertionError(f"no end after {GUARD:.0f} s: {process.args!r}\n{tail(so_far)}") from None
    assert process.returncode == code, f"exit {process.returncode}: {process.args!r}\n{tail(said)}"
    assert "Traceback" not in said, tail(said)
    return said


def fails(lab: TestLab, code: int, *options: str, verb: str = "bootstrap", inventory: Path | None = None) -> str:
    """Run a verb that must end with this code; return what it said."""
    done = clusterctl(verb, str(inventory or lab.inventory), *options)
    said = done.stdout + done.stderr
    assert done.returncode == code, described(done)
    assert "Traceback" not in said, described(done)
    return said


def converges(lab: TestLab, *apart: str) -> dict[str, Any]:
    """The same command again repairs what the fault left; returns its summary.

    Where the lab remembers its nodes as they were before the fault, they are so again, but for the files `apart` and
    those of the time zone that the inventory asks for, which the nodes then have. Elsewhere one more run has nothing
    to do.
    """
    first = lab.run("bootstrap")
    if not lab.undisturbed:
        lab.unchanged()
        return first
    assert disturbed(lab, *apart) == []
    return first


def disturbed(lab: TestLab, *apart: str) -> list[str]:
    """Return how the nodes differ from what the lab remembers of them, and from the inventory's time zone."""
    now = lab.comparable_manifests()
    zone = yaml.safe_load(lab.inventory.read_text())["all"]["vars"].get("cluster_timezone")
    paths = (*apart, *OF_ZONE) if zone else apart
    found = differences(without(lab.undisturbed, *paths), without(now, *paths))
    if zone:
        links = {node: manifest["files"]["/etc/localtime"][3] for node, manifest in now.items()}
        found += [f"{node}/etc/localtime: {to}" for node, to in links.items() if not to.endswith(f"/{zone}")]
    return found


def in_service(lab: TestLab) -> dict[str, str]:
    """Return Slurm's state of each worker."""
    rows = lab.ssh("head1", "sinfo", "--noheader", "--Node", "--format=%N=%T").split()
    return dict(row.split("=") for row in rows)
