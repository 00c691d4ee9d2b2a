"""Run NVIDIA's Multi-Process Service (MPS) for Slurm jobs that have a part of a GPU (gres/mps).

Each user has a control daemon: the Prolog starts it before the user's first such job on this node, the Epilog ends it
after the last. It runs as the user, as in NVIDIA's guide for a single user. One that root runs for all would let a job
wait until those of other users end, and all users can write to its directory. Slurm shares one GPU of a node at a time
(GRES_CONF_ONE_SHARING).

The daemon is a transient unit of systemd, which lets it open only the job's GPU and ends it with its servers. A user
can write to the daemon's directory, so each is a small file system of its own. It stays as long as the user has jobs:
one that has private directories would not see another.

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
from gpu_node import CommandError, Deadline, NodeError, run
from job_processes import ticks

# The device files and UUIDs of the node's GPUs in Slurm's order.
CONFIGURATION = Path("/etc/clusterctl/job-mps.json")
STATE = Path("/run/clusterctl/job-mps.json")
LOCK = Path("/run/clusterctl/job-mps.lock")
DIRECTORY = Path("/run/mps")  # task-prolog has it too
OPTIONS = "mode=0700,nosuid,nodev,noexec,size=4m,nr_inodes=1k"  # of a user's file system
PROGRAM = "nvidia-cuda-mps-control"
MISSING = f"MPS: no program {PROGRAM}; install it, or set slurm_head_mps: 0 for this worker"
UNIT = re.compile(r"job-mps-([0-9]+)\.service")
# What NVIDIA's container toolkit gives a container besides its GPU.
DEVICES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
STOP_SECONDS = 6  # for the command to end a daemon, and again for each signal
# The Prolog may start a daemon twice, with a check of the node's health between (mps in gpu_prolog.py).
LOCK_SECONDS, STOP_ALL_SECONDS, START_SECONDS = 12.0, 3.0 * STOP_SECONDS + 3, 15.0
PROLOG_SECONDS = LOCK_SECONDS + STOP_ALL_SECONDS + START_SECONDS
STATE_SECONDS, STOP_AGAIN_SECONDS, START_AGAIN_SECONDS = 3.0, 1.0, 3.0
# "jobs": UID, GPU and start by the job's number; "failures": GPU and cause by the UID whose daemon did not start
State = dict


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
    """Return the jobs and the failures."""
    return {"jobs": {}, "failures": {}, **gpu_node.read_json(STATE, {})}


def unit_of(uid: int) -> str:
    """Return the unit of a user's daemon; UNIT matches it."""
    return f"job-mps-{uid}.service"


def users(which: str, seconds: float) -> set[int]:
    """Return the users whose daemon systemd lists with an option; with `--all` also one that ends. Raises NodeError."""
    listed = run("systemctl", "list-units", which, "--plain", "--no-legend", "job-mps-*.service", seconds=seconds)
    found = (UNIT.match(line.strip()) for line in listed.splitlines())
    return {int(match[1]) for match in found if match}


def make_directory(uid: int) -> None:
    """Mount a user's file system, unless it is mounted. Raises CommandError and OSError."""
    place = DIRECTORY / str(uid)
    if os.path.ismount(place):
        return
    DIRECTORY.mkdir(exist_ok=True)
    DIRECTORY.chmod(0o711)
    place.mkdir(mode=0o700, exist_ok=True)
    run("mount", "-t", "tmpfs", "-o", f"{OPTIONS},uid={uid}", "job-mps", str(place), seconds=STATE_SECONDS)


def remove_directories(kept: set[int]) -> None:
    """Unmount and remove the directories of all other users; one that cannot be removed stays until the next time."""
    for place in DIRECTORY.iterdir() if DIRECTORY.is_dir() else ():
        if place.name.isdecimal() and int(place.name) not in kept:
            with contextlib.suppress(CommandError, OSError):
                if os.path.ismount(place):
                    run("umount", "--lazy", str(place), seconds=STATE_SECONDS)
                place.rmdir()


def start_daemon(uid: int, gpu: int, seconds: float) -> None:
    """Start a user's daemon for a GPU by its number in Slurm. Raises NodeError."""
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
        # systemd empties it after the daemon, also after one that its user has ended with the file system full.
        "RuntimeDirectory": f"mps/{uid}",
        "RuntimeDirectoryMode": "0700",
        "ExecStop": f"sh -c 'echo quit -t 3 | {program}'",
        "NoNewPrivileges": "yes",
        "DevicePolicy": "closed",
        "TimeoutStartSec": str(max(1, int(seconds) - 1)),  # so systemd-run has the result in time; 0 would be no limit
        "TimeoutStopSec": str(STOP_SECONDS),
    }
    options = [f"--property={name}={value}" for name, value in properties.items()]
    options += [f"--property=DeviceAllow={device} rw" for device in (gpus[gpu]["device"], *DEVICES)]
    options += [f"--setenv={name}={value}" for name, value in environment.items()]
    options += [f"--unit={unit_of(uid)}", f"--uid={uid}", "--service-type=forking", "--collect"]
    try:
        make_directory(uid)
        # With -d the program ends when the daemon accepts connections.
        run("systemd-run", *options, program, "-d", seconds=seconds)
    except (CommandError, OSError) as error:
        raise NodeError(f"MPS of user {uid}: {getattr(error, 'brief', error)}") from None


def stop_unused(state: State, seconds: float) -> list[str]:
    """End the daemons of users without jobs, all at once; return what does not end in this time. Raises NodeError."""
    gpu_node.write_json(STATE, state)  # a process that is killed here would leave jobs that have ended
    deadline = Deadline(seconds)
    used = {job["uid"] for job in state["jobs"].values()}
    left = users("--all", STATE_SECONDS) - used
    if left:
        with contextlib.suppress(CommandError):  # one may have ended meanwhile
            run("systemctl", "stop", "--no-block", *map(unit_of, sorted(left)), seconds=STATE_SECONDS)
    with contextlib.suppress(NodeError):  # one may end later, and is listed again then
        while left:
            time.sleep(deadline.within(0.1))
            left = users("--all", deadline.within(STATE_SECONDS)) - used
    remove_directories(used | left)
    return [f"MPS of user {uid} does not end" for uid in sorted(left)]


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
    deadline = Deadline(PROLOG_SECONDS)
    number, uid = os.environ["SLURM_JOB_ID"], int(os.environ["SLURM_JOB_UID"])
    with locked(LOCK_SECONDS) as state:
        forget_others(state, gpus, shares)
        try:
            if left := stop_unused(state, deadline.within(STOP_ALL_SECONDS)):
                raise NodeError(left[0])
            if shares:
                if uid not in users("--state=active", deadline.within(STATE_SECONDS)):
                    start_daemon(uid, gpus[0], deadline.within(START_SECONDS))
                state["jobs"][number] = {"uid": uid, "gpu": gpus[0], "tick": ticks()}
            state["failures"].pop(str(uid), None)
        except NodeError as error:
            state["failures"][str(uid)] = {"gpu": gpus[0] if shares else None, "why": str(error)}
            raise


def end(number: str, tick: int, seconds: float) -> list[str]:
    """Forget a job that ended at this tick, and end its user's daemon if no other job needs it.

    Return what does not end in this time. A job that was requeued may run again with its number. Raises NodeError.
    """
    if not STATE.exists():
        return []
    deadline = Deadline(seconds)
    with locked(seconds) as state:
        if number in state["jobs"] and state["jobs"][number]["tick"] <= tick:
            del state["jobs"][number]
        return stop_unused(state, deadline.within(seconds))


def retry(seconds: float) -> list[str]:
    """Start daemons again that have ended while jobs need them, and try those that did not start, in this time.

    Return why that cannot be tried. A daemon that has ended is no problem if it starts again: its user can end it.
    """
    if not STATE.exists():
        return []
    try:
        with contextlib.suppress(NodeError), locked(0) as state:
            start_again(state, Deadline(seconds))
    except OSError as error:
        return [f"MPS: {error.strerror}"]
    return []


def start_again(state: State, deadline: Deadline) -> None:
    """Do what `retry` says. Raises NodeError if the state of daemons is unknown."""
    left = stop_unused(state, deadline.within(STOP_AGAIN_SECONDS))
    failures = state["failures"]
    wanted = {str(job["uid"]): job["gpu"] for job in state["jobs"].values()}
    for user, failure in list(failures.items()):
        if left:
            failure["why"] = left[0]
        elif failure["gpu"] is None:
            del failures[user]
        else:
            wanted.setdefault(user, failure["gpu"])  # the next retry ends it
    there = users("--all", deadline.within(STATE_SECONDS))
    for user in sorted(wanted, key=lambda user: user in failures):  # one that fails may need all the time
        if deadline.within(START_AGAIN_SECONDS) < START_AGAIN_SECONDS:
            break
        try:
            if int(user) not in there:
                start_daemon(int(user), wanted[user], START_AGAIN_SECONDS)
            failures.pop(user, None)
        except NodeError as error:
            failures[user] = {"gpu": wanted[user], "why": str(error)}


def problems() -> list[str]:
    """Return why jobs cannot have MPS now; empty if they can, or if this node has none."""
    if not CONFIGURATION.exists():
        return []
    if not shutil.which(PROGRAM, path=gpu_node.ENVIRONMENT["PATH"]):
        return [MISSING]
    return list(dict.fromkeys(failure["why"] for failure in read_state()["failures"].values()))


def main(arguments: list[str]) -> None:
    """Run as the program job-mps."""
    if arguments != ["start"]:
        sys.exit("usage: job-mps start")
    try:
        start()
    except (NodeError, OSError, KeyError, ValueError) as error:
        sys.exit(f"job-mps: {error}")
