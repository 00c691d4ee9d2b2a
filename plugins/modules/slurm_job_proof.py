#!/usr/bin/python
"""Ansible module: test Slurm with a user's job. It must get exactly the requested GPUs and be in the accounting."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: slurm_job_proof
author: the clusterctl authors
short_description: Test Slurm with a job
description:
  - Waits until every node has registered, runs a small job on up to two of them as an ordinary user, and checks which
    GPUs the job can open. Runs on the head, as root.
  - If other jobs occupy every node, runs no job and returns a note.
  - If both nodes have MPI, compiles an MPI program there and sends messages between the nodes.
  - Changes nothing unless I(admit) is set.
options:
  user:
    description: User who runs the job.
    type: str
    required: true
  nodes:
    description:
      - For each node the number of its GPUs (C(gpus)), whether a job can open only its own GPUs (C(confined)), and
        whether the node has MPI (C(mpi)).
    type: dict
    required: true
  script:
    description: Text of a Python program that prints a line of JSON about the node it runs on.
    type: str
    required: true
  homes:
    description: Home directories of users. A note lists the nodes where they are not the same as on this host.
    type: list
    elements: str
    default: []
  mpi_script:
    description: Text of a shell script that compiles and runs an MPI program in an allocation.
    type: str
    default: ""
  mpi_program:
    description: Text of the MPI program. It prints the number of its ranks.
    type: str
    default: ""
  admit:
    description:
      - A cause of slurm-drain, such as C(bootstrap). Test every node that is drained only for this cause, or is down
        because it rebooted or woke too late, and put nodes that pass into service. During the test a reservation
        prevents other jobs on them. In the end faulty nodes are drained for this cause, and it no longer drains the
        others.
    type: str
    default: ""
  failed:
    description: Nodes that failed before the test. They are drained with the faulty ones.
    type: list
    elements: str
    default: []
  accounting:
    description: Whether the job must be in accounting. It cannot be while the host of slurmdbd is down.
    type: bool
    default: true
  in_background:
    description: Whether the next plays begin before the test has ended (see the strategy clusterctl_linear).
    type: bool
    default: false
attributes:
  check_mode:
    support: none
"""

EXAMPLES = r"""
- name: Prove that two nodes work
  slurm_job_proof:
    user: ada
    nodes:
      gpu01: {gpus: 4, confined: true}
      gpu02: {gpus: 4, confined: true}
    script: "{{ lookup('ansible.builtin.file', 'devices.py') }}"
"""

RETURN = r"""
msg:
  description: What the tests have shown.
  type: str
  returned: always
notes:
  description: Reasons why no job was run, and remarks on the homes.
  type: list
  elements: str
  returned: always
seconds:
  description: How long it took.
  type: float
  returned: always
down:
  description: What is wrong with each faulty node. The other nodes were tested without it.
  type: dict
  returned: always
admitted:
  description: Nodes that have passed and are now in service.
  type: list
  elements: str
  returned: when nodes waited for the test
refused:
  description: Nodes that have waited for the test, did not pass and stay drained.
  type: list
  elements: str
  returned: when nodes waited for the test
drained:
  description: What slurm-drain did in the end, a line for each node.
  type: list
  elements: str
  returned: with admit
"""

REGISTER_S = 60
DECIDED_S = 10
JOB_S = 90
MPI_S = 110  # less than the job's time limit of two minutes
IMMEDIATE_S = 20
ACCOUNTED_S = 30
DRAIN_S = 600
UNSTARTED = "are still not ready"  # of srun and salloc, if a job was ended before its nodes were ready for it
MAX_OUTPUT = 16 << 20  # bytes; sinfo prints some MB for 5000 nodes
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/usr/sbin:/bin:/sbin", "LC_ALL": "C"}

DRAIN = "/usr/local/sbin/slurm-drain"
DID_NOT_COMPLETE = "the last run did not complete there"
# Author and reason, as sinfo prints them.
AWAY = (("slurm", "Node unexpectedly rebooted"), ("slurm", "ResumeTimeout reached"), ("Unknown", "none"))
RESERVATION = "clusterctl-proof"
# After a killed run the reservation and the drained nodes stay until the next run, at most for this time.
RESERVATION_TIME = "1-00:00:00"

# Suffixes of sinfo(1) for a node that works as before: in a maintenance reservation ($), planned for a job (-).
SUFFIXES = "$-"
REGISTERED = ("idle", "mixed", "allocated", "completing", "planned", "draining", "drained", "reserved", "maint")
FREE = ("idle", "mixed", "completing", "planned")

Nodes = dict[str, dict[str, Any]]  # Python 3.8 on a node has no dict[…] outside annotations


@dataclass
class Job:
    """The test job: its user, its script, the homes that it checks, and the notes about the results."""

    user: str
    script: str
    homes: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    accounting: bool = True


class FailedError(Exception):
    """A test failed. The text is the module's error message."""


class UnstartedError(FailedError):
    """Slurm has allocated nodes to a job, and has ended it before it started there.

    `nodes` has their state and reason after it, in Slurm's words.
    """

    def __init__(self, failure: str, nodes: dict[str, str]) -> None:
        super().__init__("; ".join([failure, *(f"{name} is {state}" for name, state in sorted(nodes.items()))]))
        self.nodes = nodes


class BusyError(Exception):
    """Other jobs occupy the nodes, so no test is possible now."""


def output(argv: list[str], text: str = "", timeout: int = JOB_S) -> str:
    """Return the output of a command.

    Raises FailedError with the command's error message, after a timeout, and for more than MAX_OUTPUT bytes.
    """
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        stdin.write(text.encode())
        stdin.seek(0)
        process = subprocess.Popen(argv, stdin=stdin, stdout=out, stderr=err, env=ENVIRONMENT, cwd="/")
        fault, deadline = "", time.monotonic() + timeout
        while not fault and process.poll() is None:
            if any(os.fstat(file.fileno()).st_size > MAX_OUTPUT for file in (out, err)):
                fault = f"prints more than {MAX_OUTPUT} bytes"
            elif time.monotonic() > deadline:
                fault = f"has not ended after {timeout} s"
            else:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.2)
        if fault:
            process.terminate()
            process.wait()
        stdout, stderr = (_read_start(file) for file in (out, err))
    if fault:
        raise FailedError(f"{argv[0]} {fault}: {stderr.strip()[-600:]}")
    if process.returncode:
        raise FailedError(
            f"{' '.join(argv[:6])} ended with {process.returncode}: {(stderr.strip() or stdout.strip())[-600:]}"
        )
    return stdout


def _read_start(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(MAX_OUTPUT).decode(errors="replace")


def states() -> dict[str, tuple[str, str]]:
    """Return (state, partition) of each node. A node in several partitions gets the default one, marked * by sinfo."""
    lines = output(["sinfo", "--noheader", "--Node", "--format=%N|%T|%P"]).splitlines()
    rows = sorted((line.split("|") for line in lines), key=lambda row: row[2].endswith("*"))
    return {name: (state.rstrip(SUFFIXES), partition.rstrip("*")) for name, state, partition in rows}


def register(nodes: Nodes) -> tuple[dict[str, tuple[str, str]], dict[str, str]]:
    """Wait until every node has registered. A node that an administrator has drained counts as registered.

    Returns the states, and the reason for each node that did not register. sinfo marks a node that does not respond
    with *. It may still register, so the wait is longer than for other states.
    """
    began = time.monotonic()
    while True:
        known = states()
        down = {name: known.get(name, ("unknown", ""))[0] for name in nodes}
        down = {name: state for name, state in down.items() if state not in REGISTERED}
        may_register = any(state.endswith("*") or state == "unknown" for state in down.values())
        if not down or time.monotonic() - began > (REGISTER_S if may_register else DECIDED_S):
            see = "its Slurm state is {1}: scontrol show node {0}"
            return known, {name: see.format(name, state) for name, state in down.items()}
        time.sleep(0.2)


def choose(nodes: Nodes, known: dict[str, tuple[str, str]]) -> tuple[list[str], str]:
    """Return up to two nodes of one partition, and the partition. Prefer idle nodes, then nodes with most GPUs."""
    able = [name for name in nodes if nodes[name]["gpus"]] or list(nodes)
    free = [name for name in able if known[name][0] in FREE]
    if not free:
        raise BusyError("no node is free: " + in_states({name: known[name][0] for name in sorted(able)}))
    free.sort(key=lambda name: (known[name][0] != "idle", -nodes[name]["gpus"], name))
    bundles = [[name for name in free if known[name][1] == known[first][1]][:2] for first in free]
    best = max(bundles, key=len)
    return best, known[best[0]][1]


def in_states(states: dict[str, str]) -> str:
    """Return which nodes are in which state, of many nodes the first ones and the number of the others."""
    found = []
    for state in dict.fromkeys(states.values()):
        names = [name for name in states if states[name] == state]
        few = names if len(names) < 5 else [*names[:3], f"{len(names) - 3} others"]
        found.append(f"{', '.join(few)} {'is' if len(names) == 1 else 'are'} {state}")
    return ", ".join(found)


def parse_answers(stdout: str, chosen: list[str]) -> Nodes:
    """Return the answer of each node from a job's output. Ignore lines that the script cannot have printed.

    Raises FailedError for two different answers of one node: another node may have forged one of them.
    """
    found = {}
    for line in stdout.splitlines():
        try:
            answer = json.loads(line)
            is_valid = answer["node"] in chosen and re.fullmatch(r"\d{1,10}", answer["job"]) is not None
            if not is_valid or not isinstance(answer["user"], int) or not isinstance(answer["devices"], dict):
                continue
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
        answer = {"listed": None, "homes": {}, **answer}
        if found.setdefault(answer["node"], answer) != answer:
            raise FailedError(f"the job printed two different answers for {answer['node']}")
    return found


def run_job(job: Job, nodes: Nodes, chosen: list[str], partition: str, reservation: str = "") -> tuple[int, Nodes]:
    """Run the job. Return the number of GPUs that it requested, and its answer on each node.

    A job that Slurm ends at its start, without draining a node, proves nothing: it is run once more.
    """
    gpus = min(2, min(nodes[name]["gpus"] for name in chosen))
    options = [f"--reservation={reservation}"] * bool(reservation) + [f"--gres=gpu:{gpus}"] * (gpus > 0)
    argv = ["srun", "--mem=64M", *options, *size(chosen, partition), "python3", "-", *job.homes]
    try:
        stdout = small_job(job.user, chosen, argv, job.script)
    except UnstartedError as failure:
        # Drained nodes were resumed for the test, so Slurm has drained them now.
        if any("drain" in state.partition(":")[0] for state in failure.nodes.values()):
            raise
        job.notes.append(f"a second test job was run on {' and '.join(chosen)}: {failure}")
        stdout = small_job(job.user, chosen, argv, job.script)
    return gpus, parse_answers(stdout, chosen)


def same_time(one: int, other: int) -> bool:
    """Return whether two times in nanoseconds are equal. If one has whole seconds only, as on sshfs, compare seconds.

    Otherwise compare nanoseconds, because local homes are created on all nodes in the same second.
    """
    same_second = 0 in (one % 10**9, other % 10**9) and one // 10**9 == other // 10**9
    return one == other or same_second


def homes_apart(homes: list[str], answers: Nodes) -> list[str]:
    """Return the nodes whose homes are not shared with this host.

    A local home has a different modification time on each node. A shared home may differ too while its user works, so
    most homes of a node have to differ.
    """
    times = {path: Path(path).stat().st_mtime_ns for path in homes if Path(path).is_dir()}
    found = []
    for name, answer in sorted(answers.items()):
        on_node = answer["homes"] if isinstance(answer["homes"], dict) else {}
        same = [same_time(on_node[path], times[path]) for path in times if isinstance(on_node.get(path), int)]
        if same and 2 * sum(same) < len(same):
            found.append(name)
    return found


def size(chosen: list[str], partition: str) -> list[str]:
    """Return the options of a job with one process on each of the nodes."""
    nodes = [f"--partition={partition}", f"--nodelist={','.join(chosen)}", f"--nodes={len(chosen)}"]
    return ["--job-name=verify", *nodes, "--ntasks-per-node=1", "--time=2", "--chdir=/", "--quiet"]


def small_job(user: str, chosen: list[str], argv: list[str], text: str = "", timeout: int = JOB_S) -> str:
    """Return the output of srun or salloc as that user.

    Raises BusyError if the nodes have no free resources, UnstartedError if Slurm has ended the job at its start.
    """
    argv = ["runuser", "--user", user, "--", argv[0], f"--immediate={IMMEDIATE_S}", *argv[1:]]
    try:
        return output(argv, text, timeout)
    except FailedError as failure:
        if "Unable to allocate resources" in str(failure) and ("busy" in str(failure) or "mmediate" in str(failure)):
            raise BusyError(f"no small job could start on {' and '.join(chosen)} within {IMMEDIATE_S} s") from None
        if UNSTARTED not in str(failure):
            raise
        raise UnstartedError(str(failure), conditions(chosen)) from None


def conditions(chosen: list[str]) -> dict[str, str]:
    """Return the whole state of each node and its reason, in Slurm's words."""
    argv = ["sinfo", "--noheader", "--all", "--Node", f"--nodes={','.join(chosen)}"]
    lines = output([*argv, "--Format=NodeList:100,StateComplete:200,Reason:200"]).splitlines()
    rows = [line.split(None, 2) for line in lines]
    return {row[0]: f"{row[1].lower()}: {row[-1].strip()}" for row in rows if len(row) > 1}


def prove_mpi(user: str, script: str, program: str, nodes: Nodes) -> str:
    """Run an MPI program on two of the nodes. Return the result, or "" if no two nodes have MPI.

    Raises FailedError if the messages do not arrive. The nodes stay in service, because most jobs need no MPI.
    """
    known, down = register({name: node for name, node in nodes.items() if node.get("mpi")})
    able = {name: nodes[name] for name in known.keys() & nodes.keys() - down.keys() if nodes[name].get("mpi")}
    chosen, partition = choose(able, known) if len(able) > 1 else ([], "")
    if len(chosen) < 2:
        return ""
    argv = ["salloc", "--mem=512M", *size(chosen, partition), "sh", "-c", script, "sh", program]
    try:
        stdout = small_job(user, chosen, argv, timeout=MPI_S)
    except FailedError as failure:
        raise FailedError(f"MPI across {' and '.join(chosen)}: {failure}") from None
    if (expected := f"{len(chosen)} ranks, 0 wrong") not in stdout.splitlines():
        raise FailedError(f"MPI across {' and '.join(chosen)}: got {stdout[-200:]!r}, expected {expected!r}")
    return f"an MPI program sent messages between {' and '.join(chosen)}"


def find_faults(gpus: int, confined: bool, answer: dict[str, Any] | None) -> list[str]:
    """Return what is wrong with a node's answer."""
    if answer is None:
        return ["the job printed nothing on the node"]
    found = ["the job ran as root"] if answer["user"] == 0 else []
    opened = sorted(path for path, result in answer["devices"].items() if result == "open")
    if others := {path: result for path, result in answer["devices"].items() if result not in ("open", "EPERM")}:
        found.append(f"GPUs failed to open: {others}")
    if confined and len(opened) != gpus:
        found.append(f"the job requested {gpus} GPUs and can open {len(opened)} ({' '.join(opened) or 'none'})")
    if confined and gpus and answer["listed"] not in (None, gpus):
        found.append(f"the job requested {gpus} GPUs and nvidia-smi lists {answer['listed']}")
    return found


def wait_for_accounting(job: str) -> None:
    """Wait until the job is completed in the accounting. Raises FailedError with its state after ACCOUNTED_S."""
    deadline = time.monotonic() + ACCOUNTED_S
    sacct = ["sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={job}", "--format=State"]
    while (state := output(sacct).strip()) != "COMPLETED":
        if time.monotonic() > deadline:
            raise FailedError(f"job {job} is not COMPLETED in sacct after {ACCOUNTED_S} s, its state is {state!r}")
        time.sleep(0.2)


def prove(job: Job, nodes: Nodes, admit: str = "") -> dict[str, Any]:
    """Test the nodes. Return the result and the faults by node. Raises FailedError if Slurm itself fails."""
    known, down = register(nodes)
    if admit and (back := returned(known, down)):
        # It is tested like a new node.
        output([DRAIN, admit, "--out", ",".join(back), "--reason", "it was away, and is not proven yet"])
        down = {name: fault for name, fault in down.items() if name not in back}
    causes = json.loads(output([DRAIN])) if admit else {}
    down.update(find_unhealthy([name for name in nodes if name not in down], admit, causes))
    usable = {name: node for name, node in nodes.items() if name not in down}
    drained = waiting(usable, admit, causes)
    if drained:
        proof = functools.partial(examine, job, usable, reservation=RESERVATION)
        result, notes, faults = admit_nodes(job.user, admit, drained, lambda names: by_partition(names, known, proof))
        done = sorted({*drained} - {*faults})
        answer = {"msg": result, "notes": notes + job.notes, "down": {**down, **faults}}
        return {**answer, "admitted": done, "refused": sorted(faults)}
    if not usable:
        return {"msg": "no node is in service", "notes": [], "down": down}
    try:
        result, faults = examine(job, usable, *choose(usable, known))
    except BusyError as busy:
        result = f"no test job was run: {busy}"
        return {"msg": result, "notes": [result], "down": down}
    return {"msg": result, "notes": job.notes, "down": {**down, **faults}}


def examine(
    job: Job, nodes: Nodes, chosen: list[str], partition: str, reservation: str = ""
) -> tuple[str, dict[str, str]]:
    """Run a job on these nodes, check its answers and wait for its accounting. Return the result and the faults."""
    gpus, answers = run_job(job, nodes, chosen, partition, reservation)
    found = {name: find_faults(gpus, nodes[name]["confined"], answers.get(name)) for name in chosen}
    faults = {name: "; ".join(problems) for name, problems in found.items() if problems}
    number = next((answer["job"] for answer in answers.values()), "")
    if not number:
        raise FailedError(f"the job on {' and '.join(chosen)} printed nothing")
    if job.accounting:
        wait_for_accounting(number)
    else:
        job.notes.append("accounting was not tested: the host of slurmdbd is not in this run")
    if apart := homes_apart(job.homes, answers):
        effect = "homes are not shared: what a job writes at home stays on its node"
        job.notes.append(f"{effect}, seen on {', '.join(apart)} (see clusterctl docs slurm)")
    result = f"job {number} of {job.user} saw exactly {gpus} GPUs on each of {', '.join(chosen)}"
    result += ", and is accounted for" * job.accounting
    return "" if faults else result, faults


def find_unhealthy(names: list[str], cause: str, causes: Nodes) -> dict[str, str]:
    """Return the nodes that wait for this test and have unhealthy GPUs, each with the reason.

    These nodes count as faulty. Otherwise they would enter service untested as soon as their GPUs are healthy again.
    """
    return {
        name: f"no test job was run, its GPUs are unhealthy: {causes[name]['health']}"
        for name in names
        if {cause, "health"} <= causes.get(name, {}).keys()
    }


def returned(known: dict[str, tuple[str, str]], down: dict[str, str]) -> list[str]:
    """Return the nodes that respond and that Slurm itself keeps down: they rebooted or woke too late.

    With ReturnToService=1 Slurm puts no such node into service. Of one that had been switched off, it has deleted the
    reason (validate_node_specs in src/slurmctld/node_mgr.c of Slurm 24.11).
    """
    names = [name for name in sorted(down) if known.get(name, ("", ""))[0] == "down"]
    reasons = reasons_of(names)
    return [name for name in names if reasons.get(name) in AWAY]  # of another author, they are an administrator's


def reasons_of(names: list[str]) -> dict[str, tuple[str, str]]:
    """Return for nodes that are down or drained who set the reason, and the reason."""
    if not names:
        return {}
    lines = output(["sinfo", "--noheader", "--Node", f"--nodes={','.join(names)}", "--format=%N|%u|%E"]).splitlines()
    return {name: (user.strip(), reason.strip()) for name, user, reason in (line.split("|", 2) for line in lines)}


def waiting(nodes: Nodes, cause: str, causes: Nodes) -> list[str]:
    """Return the nodes that are drained only for this cause, and not by an administrator."""
    waiting_nodes = [name for name in sorted(nodes) if {*causes.get(name, ())} == {cause}]
    if not waiting_nodes:
        return []
    # Drain again: a killed run may have left the nodes undrained, and Slurm may have set another reason meanwhile.
    output([DRAIN, cause, "--out", ",".join(waiting_nodes), "--reason", "not proven yet"])
    if has_reservation():  # of a killed run
        delete_reservation()
    reasons = reasons_of(waiting_nodes)
    return [name for name in waiting_nodes if reasons.get(name, ("", ""))[1].startswith("clusterctl: ")]


def by_partition(
    names: list[str], known: dict[str, tuple[str, str]], job: Any
) -> tuple[str, list[str], dict[str, str]]:
    """Run the job on all nodes of each partition. If it fails as a whole, run it on each node of the partition."""
    results, notes, faults = [], [], {}
    bundles = [[name for name in names if known[name][1] == partition] for partition in {known[n][1] for n in names}]
    while bundles:
        bundle = bundles.pop()
        try:
            result, found = job(bundle, known[bundle[0]][1])
        except BusyError as busy:  # a node that runs other jobs passes: it works
            notes.append(f"no test job was run: {busy}")
        except FailedError as failure:
            if len(bundle) == 1:
                faults[bundle[0]] = str(failure)
            bundles += [[name] for name in bundle] if len(bundle) > 1 else []
        else:
            results.append(result)
            faults.update(found)
    return "; ".join(filter(None, results)), notes, faults


def admit_nodes(user: str, cause: str, names: list[str], proof: Any) -> tuple[str, list[str], dict[str, str]]:
    """Run a test on drained nodes. Put the nodes that pass into service; the others stay drained.

    The nodes are resumed for the test, in a reservation for the test's user. slurm-drain keeps the cause until they
    have passed. Slurm has a node that has rebooted as down, and an undrain alone does not change that.
    """
    argv = ["scontrol", "create", "reservation", f"reservationname={RESERVATION}", "starttime=now"]
    options = [f"duration={RESERVATION_TIME}", f"users={user}", f"nodes={','.join(names)}", "flags=maint,ignore_jobs"]
    output([*argv, *options])
    faults = dict.fromkeys(names, "the test did not complete")
    try:
        output(["scontrol", "update", f"nodename={','.join(names)}", "state=resume"])
        # Slurm contacts each resumed node. A job that is submitted before the node has responded waits for seconds.
        _, unregistered = register({name: {} for name in names})
        result, notes, found = proof([name for name in names if name not in unregistered])
        faults = {**unregistered, **found}
    finally:
        passed = [name for name in names if name not in faults]
        reason = ["--reason", "the last run could not prove it by a job"]
        output([DRAIN, cause, "--in", ",".join(passed), "--out", ",".join(faults), *reason])
        delete_reservation()
    return result, notes, faults


def has_reservation() -> bool:
    """Return whether the reservation for tests exists."""
    return f"ReservationName={RESERVATION} " in output(["scontrol", "--oneliner", "show", "reservation"])


def delete_reservation() -> None:
    """Delete the reservation for tests."""
    output(["scontrol", "delete", f"reservationname={RESERVATION}"])


def settle(found: dict[str, Any], nodes: Nodes, failed: list[str], cause: str) -> dict[str, Any]:
    """Drain the nodes that failed before or are faulty; take the cause from the others. Return the result with it.

    What was admitted or refused by its test is settled.
    """
    settled = {*found.get("admitted", []), *found.get("refused", [])}
    out = sorted({*failed, *found["down"]} - settled)
    into = sorted(nodes.keys() - {*out, *settled})
    if not out and not into:
        return {**found, "drained": []}
    argv = [DRAIN, cause, "--out", ",".join(out), "--in", ",".join(into), "--reason", DID_NOT_COMPLETE]
    try:
        drained = output(argv, timeout=DRAIN_S).splitlines()
    except FailedError as failure:
        faults = [f"{name}: {fault}" for name, fault in sorted(found["down"].items())]
        raise FailedError("; ".join([str(failure), *faults])) from None
    return {**found, "drained": drained}


def prove_all(
    job: Job, mpi_script: str, mpi_program: str, nodes: Nodes, admit: str, failed: list[str]
) -> dict[str, Any]:
    """Test the nodes, then MPI if a program is given. Return the module's result."""
    found = prove(job, nodes, admit)
    if admit:
        found = settle(found, nodes, failed, admit)
    if not mpi_program:
        return found
    healthy = {name: node for name, node in nodes.items() if name not in found["down"]}
    try:
        result = prove_mpi(job.user, mpi_script, mpi_program, healthy)
    except BusyError as busy:
        return {**found, "notes": [*found["notes"], f"MPI was not tested: {busy}"]}
    return {**found, "msg": "; ".join(filter(None, [found["msg"], result]))}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "user": {"type": "str", "required": True},
            "nodes": {"type": "dict", "required": True},
            "script": {"type": "str", "required": True},
            "homes": {"type": "list", "elements": "str", "default": []},
            "mpi_script": {"type": "str", "default": ""},
            "mpi_program": {"type": "str", "default": ""},
            "admit": {"type": "str", "default": ""},
            "failed": {"type": "list", "elements": "str", "default": []},
            "accounting": {"type": "bool", "default": True},
            "in_background": {"type": "bool", "default": False},
        },
    )
    began = time.monotonic()
    try:
        params = dict(module.params)
        del params["in_background"]  # the strategy reads it
        job = Job(*(params.pop(name) for name in ("user", "script", "homes")), accounting=params.pop("accounting"))
        found = prove_all(job, **params)
    except FailedError as failure:
        module.fail_json(msg=str(failure))
    found["seconds"] = round(time.monotonic() - began, 3)
    module.exit_json(changed=bool(found.get("admitted") or found.get("drained")), **found)


if __name__ == "__main__":
    main()
