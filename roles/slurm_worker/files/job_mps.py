"""Run NVIDIA's Multi-Process Service (MPS) for Slurm jobs that have a part of a GPU (gres/mps).

Each user has a control daemon: the Prolog starts it before the user's first such job on this node, the Epilog ends it
after the last. It runs as the user, as in NVIDIA's guide for a single user. One that root runs for all would let a job
wait until those of other users end, and all users can write to its directory. Slurm shares one GPU of a node at a time
(GRES_CONF_ONE_SHARING).

The daemon is a transient unit of systemd, which lets it open only the job's GPU and ends it with its servers. A user
can write to the daemon's directory, so it is on a small file system of its own (run-mps.mount).

usage: job-mps start    in Slurm's Prolog, with its environment
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import gpu_node
from gpu_node import CommandError, NodeError, run

# The device files and UUIDs of the node's GPUs in Slurm's order.
CONFIGURATION = Path("/etc/clusterctl/job-mps.json")
STATE = Path("/run/clusterctl/job-mps.json")
LOCK = Path("/run/clusterctl/job-mps.lock")
DIRECTORY = "/run/mps"  # task-prolog has it too
PROGRAM = "nvidia-cuda-mps-control"
MISSING = f"MPS: no program {PROGRAM}; install it, or set slurm_head_mps: 0 for this worker"
UNIT = re.compile(r"job-mps-([0-9]+)\.service")
# What NVIDIA's container toolkit gives a container besides its GPU.
DEVICES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
START_SECONDS, STOP_SECONDS = 15, 10  # the second counts for the command and again for each signal
STATE_SECONDS, RETRY_SECONDS, LOCK_SECONDS = 3.0, 2.0, 60.0
State = dict  # "jobs": UID and GPU by the job's number; "failed": UID, GPU and cause of a daemon that did not start


@contextlib.contextmanager
def locked(seconds: float) -> Iterator[State]:
    """Give the state, to read and change. Raises NodeError if another process uses it for this time."""
    until = time.monotonic() + seconds
    LOCK.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(LOCK, "w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise NodeError("MPS: another process starts or stops a daemon") from None
                time.sleep(0.1)
        state = read_state()
        try:
            yield state
        finally:
            gpu_node.write_json(STATE, state)


def read_state() -> State:
    """Return the jobs and the last failure."""
    return gpu_node.read_json(STATE, {"jobs": {}, "failed": None})


def unit_of(uid: int) -> str:
    """Return the unit of a user's daemon; UNIT matches it."""
    return f"job-mps-{uid}.service"


def running() -> list[int]:
    """Return the users with a daemon, also one that does not end. Raises CommandError."""
    options = ("--all", "--plain", "--no-legend")
    listed = run("systemctl", "list-units", *options, "job-mps-*.service", seconds=STATE_SECONDS)
    found = (UNIT.match(line.strip()) for line in listed.splitlines())
    return [int(match[1]) for match in found if match]


def is_active(uid: int) -> bool:
    """Return whether the user's daemon runs."""
    try:
        run("systemctl", "is-active", "--quiet", unit_of(uid), seconds=STATE_SECONDS)
    except NodeError:
        return False
    return True


def ensure(uid: int, gpu: int, seconds: float = START_SECONDS) -> None:
    """Start a user's daemon for a GPU by its number in Slurm, unless it runs. Raises NodeError."""
    if is_active(uid):
        return
    program = shutil.which(PROGRAM, path=gpu_node.ENVIRONMENT["PATH"])
    if not program:
        raise NodeError(MISSING)
    gpus = gpu_node.read_json(CONFIGURATION, [])
    if not gpu < len(gpus):
        raise NodeError(f"MPS: {CONFIGURATION} has no GPU {gpu}; bootstrap this worker")
    environment = {
        "CUDA_VISIBLE_DEVICES": gpus[gpu]["uuid"],
        "CUDA_MPS_PIPE_DIRECTORY": f"{DIRECTORY}/{uid}/pipe",
        "CUDA_MPS_LOG_DIRECTORY": f"{DIRECTORY}/{uid}",
    }
    properties = {
        "RequiresMountsFor": DIRECTORY,
        "RuntimeDirectory": f"mps/{uid}",
        "RuntimeDirectoryMode": "0700",
        "ExecStop": f"sh -c 'echo quit -t 3 | {program}'",
        "NoNewPrivileges": "yes",
        "DevicePolicy": "closed",
        "TimeoutStartSec": str(int(seconds)),
        "TimeoutStopSec": str(STOP_SECONDS),
    }
    options = [f"--property={name}={value}" for name, value in properties.items()]
    options += [f"--property=DeviceAllow={device} rw" for device in (gpus[gpu]["device"], *DEVICES)]
    options += [f"--setenv={name}={value}" for name, value in environment.items()]
    options += [f"--unit={unit_of(uid)}", f"--uid={uid}", "--service-type=forking", "--collect"]
    try:
        # With -d the program ends when the daemon accepts connections.
        run("systemd-run", *options, program, "-d", seconds=seconds + STATE_SECONDS)
    except CommandError as error:
        raise NodeError(f"MPS of user {uid}: {error.brief}") from None


def stop_unused(state: State, seconds: float = 3 * STOP_SECONDS + STATE_SECONDS) -> list[str]:
    """End the daemons of users without jobs; return what does not end in this time. Raises CommandError."""
    used = {job["uid"] for job in state["jobs"].values()}
    for uid in set(running()) - used:
        with contextlib.suppress(NodeError):  # it may end later, and is listed again then
            run("systemctl", "stop", unit_of(uid), seconds=seconds)
    return [f"MPS of user {uid} does not end" for uid in sorted(set(running()) - used)]


def forget_others(state: State, gpus: list[int], shares: bool) -> None:
    """Forget jobs that cannot run any more: Slurm has allocated their GPU whole, or shares another one."""
    for number, job in list(state["jobs"].items()):
        if (job["gpu"] not in gpus) if shares else (job["gpu"] in gpus):
            del state["jobs"][number]


def start() -> None:
    """Start the daemon of the job's user, if the job of the environment has a part of a GPU. Raises NodeError."""
    gpus = [int(number) for number in os.environ.get("SLURM_JOB_GPUS", "").split(",") if number.isdecimal()]
    shares = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" in os.environ
    if not gpus or not (shares or STATE.exists()):
        return
    number, uid = os.environ["SLURM_JOB_ID"], int(os.environ["SLURM_JOB_UID"])
    with locked(LOCK_SECONDS) as state:
        forget_others(state, gpus, shares)
        try:
            if left := stop_unused(state):
                raise NodeError(left[0])
            if shares:
                ensure(uid, gpus[0])
                state["jobs"][number] = {"uid": uid, "gpu": gpus[0]}
            state["failed"] = None
        except NodeError as error:
            state["failed"] = {"uid": uid, "gpu": gpus[0] if shares else None, "why": str(error)}
            raise


def end(number: str, seconds: float) -> list[str]:
    """Forget an ended job, and end its user's daemon if no other job needs it; return what does not end in this time.

    Raises NodeError.
    """
    if not STATE.exists():
        return []
    with locked(seconds) as state:
        state["jobs"].pop(number, None)
        return stop_unused(state, seconds)


def retry() -> None:
    """Start daemons again that have ended while jobs need them, and try one that did not start."""
    if not STATE.exists():
        return
    with contextlib.suppress(NodeError), locked(0) as state:
        failed = state["failed"]
        left = stop_unused(state, RETRY_SECONDS)
        if failed and left:
            state["failed"] = {**failed, "why": left[0]}
        elif failed:
            try:
                if failed["gpu"] is not None:
                    ensure(failed["uid"], failed["gpu"], RETRY_SECONDS)  # the next retry ends it
                state["failed"] = None
            except NodeError as error:
                state["failed"] = {**failed, "why": str(error)}
        for job in state["jobs"].values():
            ensure(job["uid"], job["gpu"], RETRY_SECONDS)


def problems() -> list[str]:
    """Return why jobs cannot have MPS now; empty if they can, or if this node has none."""
    if not CONFIGURATION.exists():
        return []
    if not shutil.which(PROGRAM, path=gpu_node.ENVIRONMENT["PATH"]):
        return [MISSING]
    state = read_state()
    ended = {job["uid"] for job in state["jobs"].values() if not is_active(job["uid"])}
    lines = [f"MPS of user {uid} has ended: journalctl -u {unit_of(uid)}" for uid in sorted(ended)]
    return lines + ([state["failed"]["why"]] if state["failed"] else [])


def main(arguments: list[str]) -> None:
    """Run as the program job-mps."""
    if arguments != ["start"]:
        sys.exit("usage: job-mps start")
    try:
        start()
    except (NodeError, OSError, KeyError, ValueError) as error:
        sys.exit(f"job-mps: {error}")
