#!/usr/bin/python
"""Ansible module: an ordinary user's job on two nodes gets the GPUs it asks for and no others, and is accounted for."""

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
short_description: Prove by a job that Slurm works
description:
  - Waits until every node has registered, runs a small job on up to two of them as an ordinary user, and judges what
    the job could open. Runs on the head, as root.
  - Where other people's jobs hold every node it proves nothing and says so in a note.
  - Where both nodes have MPI, a program that is compiled there passes messages between them.
  - Changes nothing, unless I(admit) names a cause.
options:
  user:
    description: Who runs the job.
    type: str
    required: true
  nodes:
    description:
      - By node, C(gpus), how many it has, C(confined), whether a job is kept from the GPUs of others, and C(mpi),
        whether it has MPI.
    type: dict
    required: true
  script:
    description: Text of a Python program that prints what it sees on a node as a line of JSON.
    type: str
    required: true
  homes:
    description: Users' homes. A note says where they are not this host's, so that jobs leave their files elsewhere.
    type: list
    elements: str
    default: []
  mpi_script:
    description: Text of a shell script that compiles and runs an MPI program within an allocation.
    type: str
    default: ""
  mpi_program:
    description: Text of that program; it prints how many ranks it has.
    type: str
    default: ""
  admit:
    description:
      - Prove each node that nothing but this cause of slurm-drain's keeps out of service, such as C(bootstrap), and put
        into service those that pass. Until then a reservation keeps all other people's jobs away from them.
    type: str
    default: ""
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
  description: What was proven.
  type: str
  returned: always
notes:
  description: Why no job was run.
  type: list
  elements: str
  returned: always
down:
  description: By node, what is wrong with it. The others were proven without it.
  type: dict
  returned: always
admitted:
  description: Nodes that passed and are in service from now on.
  type: list
  elements: str
  returned: where nodes waited for it
"""

REGISTER_S = 60
DECIDED_S = 10
JOB_S = 90
MPI_S = 110  # less than a job's limit of two minutes
IMMEDIATE_S = 20
ACCOUNTED_S = 30
MOST = 16 << 20  # sinfo says some MB of 5000 nodes
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/usr/sbin:/bin:/sbin", "LC_ALL": "C"}

DRAIN = "/usr/local/sbin/slurm-drain"
RESERVATION = "clusterctl-proof"
# A run that is killed leaves the reservation, and so its nodes out of service, until the next one or for so long.
RESERVED = "1-00:00:00"

# Of the signs that sinfo(1) puts behind a state, those of a node that runs as before: a reservation for maintenance, a
# job that the scheduler has planned there.
SIGNS = "$-"
REGISTERED = ("idle", "mixed", "allocated", "completing", "planned", "draining", "drained", "reserved", "maint")
FREE = ("idle", "mixed", "completing", "planned")

Nodes = dict[str, dict[str, Any]]  # Python 3.8 on a node has no dict[…] outside annotations


@dataclass
class Job:
    """Who runs which script as the proof's job, whose homes it looks at, and what was found that is worth a note."""

    user: str
    script: str
    homes: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class FailedError(Exception):
    """What the administrator reads."""


class BusyError(Exception):
    """Other people's jobs hold the nodes, so nothing can be proven now."""


def output(argv: list[str], text: str = "", timeout: int = JOB_S) -> str:
    """Return what a command prints. Raises FailedError with its own words, and where it prints more than MOST bytes."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(text.encode())
        given.seek(0)
        process = subprocess.Popen(argv, stdin=given, stdout=out, stderr=err, env=ENVIRONMENT, cwd="/")
        wrong, deadline = "", time.monotonic() + timeout
        while not wrong and process.poll() is None:
            if any(os.fstat(file.fileno()).st_size > MOST for file in (out, err)):
                wrong = f"prints more than {MOST} bytes"
            elif time.monotonic() > deadline:
                wrong = f"has not ended after {timeout} s"
            else:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.2)
        if wrong:
            process.terminate()
            process.wait()
        said, complaint = (_beginning(file) for file in (out, err))
    if wrong:
        raise FailedError(f"{argv[0]} {wrong}: {complaint.strip()[-600:]}")
    if process.returncode:
        raise FailedError(
            f"{' '.join(argv[:6])} ended with {process.returncode}: {(complaint.strip() or said.strip())[-600:]}"
        )
    return said


def _beginning(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(MOST).decode(errors="replace")


def states() -> dict[str, tuple[str, str]]:
    """Return (state, partition) of each node. A partition marked * is the default one."""
    lines = output(["sinfo", "--noheader", "--Node", "--format=%N|%T|%P"]).splitlines()
    rows = sorted((line.split("|") for line in lines), key=lambda row: row[2].endswith("*"))
    return {name: (state.rstrip(SIGNS), partition.rstrip("*")) for name, state, partition in rows}


def register(nodes: Nodes) -> tuple[dict[str, tuple[str, str]], dict[str, str]]:
    """Wait until every node has registered; one that a person took out of service has.

    Returns the states, and of each node that does not come up the reason. A state marked * is of a silent node, which
    may yet be heard of; any other is decided.
    """
    began = time.monotonic()
    while True:
        known = states()
        down = {name: known.get(name, ("unknown", ""))[0] for name in nodes}
        down = {name: state for name, state in down.items() if state not in REGISTERED}
        silent = any(state.endswith("*") or state == "unknown" for state in down.values())
        if not down or time.monotonic() - began > (REGISTER_S if silent else DECIDED_S):
            return known, {name: f"Slurm has it as {state}: scontrol show node {name}" for name, state in down.items()}
        time.sleep(0.2)


def choose(nodes: Nodes, known: dict[str, tuple[str, str]]) -> tuple[list[str], str]:
    """Return up to two nodes of one partition, idle ones and those with most GPUs first, and the partition."""
    able = [name for name in nodes if nodes[name]["gpus"]] or list(nodes)
    free = [name for name in able if known[name][0] in FREE]
    if not free:
        raise BusyError("no node is free: " + ", ".join(f"{name} is {known[name][0]}" for name in sorted(able)))
    free.sort(key=lambda name: (known[name][0] != "idle", -nodes[name]["gpus"], name))
    bundles = [[name for name in free if known[name][1] == known[first][1]][:2] for first in free]
    best = max(bundles, key=len)
    return best, known[best[0]][1]


def answers_in(told: str, chosen: list[str]) -> Nodes:
    """Return by node what it answered: of all that comes out of a job, the lines that the script can have printed.

    Raises FailedError for two different answers of one node: either may be another node's doing.
    """
    found = {}
    for line in told.splitlines():
        try:
            answer = json.loads(line)
            whole = answer["node"] in chosen and re.fullmatch(r"\d{1,10}", answer["job"]) is not None
            if not whole or not isinstance(answer["user"], int) or not isinstance(answer["devices"], dict):
                continue
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
        answer = {"listed": None, "homes": {}, **answer}
        if found.setdefault(answer["node"], answer) != answer:
            raise FailedError(f"two different answers came in the name of {answer['node']}")
    return found


def run_job(job: Job, nodes: Nodes, chosen: list[str], partition: str, reservation: str = "") -> tuple[int, Nodes]:
    """Run the job; return how many GPUs it asked for, and what it saw on each node."""
    gpus = min(2, min(nodes[name]["gpus"] for name in chosen))
    options = [f"--reservation={reservation}"] * bool(reservation) + [f"--gres=gpu:{gpus}"] * (gpus > 0)
    argv = ["srun", "--mem=64M", *options, *size(chosen, partition), "python3", "-", *job.homes]
    return gpus, answers_in(small_job(job.user, chosen, argv, job.script), chosen)


def same_time(one: int, other: int) -> bool:
    """Tell whether two times in nanoseconds are one; a file system may keep whole seconds alone, as sshfs does.

    Local homes are made on all nodes within the same second.
    """
    seconds = 0 in (one % 10**9, other % 10**9) and one // 10**9 == other // 10**9
    return one == other or seconds


def homes_apart(homes: list[str], answers: Nodes) -> list[str]:
    """Return the nodes whose homes are not those of this host.

    A local home has another age on each node; that of a user who works right now may differ anyhow.
    """
    mine = {path: Path(path).stat().st_mtime_ns for path in homes if Path(path).is_dir()}
    found = []
    for name, answer in sorted(answers.items()):
        theirs = answer["homes"] if isinstance(answer["homes"], dict) else {}
        same = [same_time(theirs[path], mine[path]) for path in mine if isinstance(theirs.get(path), int)]
        if same and 2 * sum(same) < len(same):
            found.append(name)
    return found


def size(chosen: list[str], partition: str) -> list[str]:
    """Return the options of a job that is one process on each of those nodes."""
    nodes = [f"--partition={partition}", f"--nodelist={','.join(chosen)}", f"--nodes={len(chosen)}"]
    return ["--job-name=verify", *nodes, "--ntasks-per-node=1", "--time=2", "--chdir=/", "--quiet"]


def small_job(user: str, chosen: list[str], argv: list[str], text: str = "", timeout: int = JOB_S) -> str:
    """Return what srun or salloc prints as that user. Raises BusyError where the nodes have no room for it."""
    argv = ["runuser", "--user", user, "--", argv[0], f"--immediate={IMMEDIATE_S}", *argv[1:]]
    try:
        return output(argv, text, timeout)
    except FailedError as failure:
        if "Unable to allocate resources" in str(failure) and ("busy" in str(failure) or "mmediate" in str(failure)):
            raise BusyError(f"no room for a small job on {' and '.join(chosen)} within {IMMEDIATE_S} s") from None
        raise


def prove_mpi(user: str, script: str, program: str, nodes: Nodes) -> str:
    """Run an MPI program on two of the nodes; return what was proven, or nothing where no two of them have MPI.

    Raises FailedError where its messages do not pass. The nodes stay in service: most jobs need no MPI.
    """
    known, down = register({name: node for name, node in nodes.items() if node.get("mpi")})
    able = {name: nodes[name] for name in known.keys() & nodes.keys() - down.keys() if nodes[name].get("mpi")}
    chosen, partition = choose(able, known) if len(able) > 1 else ([], "")
    if len(chosen) < 2:
        return ""
    argv = ["salloc", "--mem=512M", *size(chosen, partition), "sh", "-c", script, "sh", program]
    try:
        told = small_job(user, chosen, argv, timeout=MPI_S)
    except FailedError as failure:
        raise FailedError(f"MPI across {' and '.join(chosen)}: {failure}") from None
    if (expected := f"{len(chosen)} ranks, 0 wrong") not in told.splitlines():
        raise FailedError(f"MPI across {' and '.join(chosen)} says {told[-200:]!r}, not {expected!r}")
    return f"an MPI program passed messages between {' and '.join(chosen)}"


def judge(gpus: int, confined: bool, answer: dict[str, Any] | None) -> list[str]:
    """Return what is wrong with a node's answer."""
    if answer is None:
        return ["the job printed nothing there"]
    found = ["the job ran as root"] if answer["user"] == 0 else []
    opened = sorted(path for path, result in answer["devices"].items() if result == "open")
    if others := {path: result for path, result in answer["devices"].items() if result not in ("open", "EPERM")}:
        found.append(f"opening a GPU gave {others}")
    if confined and len(opened) != gpus:
        found.append(f"the job asked for {gpus} GPUs and can open {len(opened)} ({' '.join(opened) or 'none'})")
    if confined and gpus and answer["listed"] not in (None, gpus):
        found.append(f"the job asked for {gpus} GPUs and nvidia-smi lists {answer['listed']}")
    return found


def accounted(job: str) -> None:
    """Wait until accounting knows the job as completed. Raises FailedError with what it knows instead."""
    deadline = time.monotonic() + ACCOUNTED_S
    ask = ["sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={job}", "--format=State"]
    while (state := output(ask).strip()) != "COMPLETED":
        if time.monotonic() > deadline:
            raise FailedError(f"sacct says {state!r} of job {job}, not COMPLETED")
        time.sleep(0.2)


def prove(job: Job, nodes: Nodes, admit: str = "") -> dict[str, Any]:
    """Return what was proven, and what is wrong with which node. Raises FailedError where Slurm itself fails."""
    known, down = register(nodes)
    if admit:
        down.update(unfit([name for name in nodes if name not in down], admit))
    usable = {name: node for name, node in nodes.items() if name not in down}
    kept_out = waiting(usable, admit) if admit else []
    if kept_out:
        proof = functools.partial(examine, job, usable, reservation=RESERVATION)
        told, notes, wrong = admitted(job.user, admit, kept_out, lambda names: by_partition(names, known, proof))
        done = sorted({*kept_out} - {*wrong})
        return {"msg": told, "notes": notes + job.notes, "down": {**down, **wrong}, "admitted": done}
    if not usable:
        return {"msg": "no node is in service", "notes": [], "down": down}
    try:
        told, wrong = examine(job, usable, *choose(usable, known))
    except BusyError as busy:
        told = f"no job was run to prove the scheduler: {busy}"
        return {"msg": told, "notes": [told], "down": down}
    return {"msg": told, "notes": job.notes, "down": {**down, **wrong}}


def examine(
    job: Job, nodes: Nodes, chosen: list[str], partition: str, reservation: str = ""
) -> tuple[str, dict[str, str]]:
    """Run a job on these nodes and judge it; return what was proven, once it is accounted for, and what is wrong."""
    gpus, answers = run_job(job, nodes, chosen, partition, reservation)
    found = {name: judge(gpus, nodes[name]["confined"], answers.get(name)) for name in chosen}
    wrong = {name: "; ".join(problems) for name, problems in found.items() if problems}
    number = next((answer["job"] for answer in answers.values()), "")
    if not number:
        raise FailedError(f"the job on {' and '.join(chosen)} printed nothing")
    accounted(number)
    if apart := homes_apart(job.homes, answers):
        what = "homes are not shared: what a job writes at home stays on its node"
        job.notes.append(f"{what}, seen on {', '.join(apart)} (see clusterctl docs slurm)")
    told = f"job {number} of {job.user} saw exactly {gpus} GPUs on each of {', '.join(chosen)}, and is accounted for"
    return "" if wrong else told, wrong


def unfit(names: list[str], cause: str) -> dict[str, str]:
    """Return which nodes wait for this proof and cannot have it, for their GPUs are not well; and why.

    They would enter service unproven as soon as they are.
    """
    causes = json.loads(output([DRAIN]))
    return {
        name: f"it cannot be proven by a job, for its GPUs are not well: {causes[name]['health']}"
        for name in names
        if {cause, "health"} <= causes.get(name, {}).keys()
    }


def waiting(nodes: Nodes, cause: str) -> list[str]:
    """Return the nodes that wait for this proof alone: out of service for no cause of another's, nor by a person."""
    causes = json.loads(output([DRAIN]))
    mine = [name for name in sorted(nodes) if {*causes.get(name, ())} == {cause}]
    if not mine:
        return []
    # Said again: a run that was killed may have left them undrained, and Slurm may have a reason of its own by now.
    output([DRAIN, cause, "--out", ",".join(mine), "--reason", "not proven yet"])
    if reserved():  # by a run that was killed
        forget_reservation()
    told = output(["sinfo", "--noheader", "--Node", f"--nodes={','.join(mine)}", "--format=%N|%E"])
    reasons = dict(line.split("|", 1) for line in told.splitlines())
    return [name for name in mine if reasons.get(name, "").startswith("clusterctl: ")]


def by_partition(
    names: list[str], known: dict[str, tuple[str, str]], job: Any
) -> tuple[str, list[str], dict[str, str]]:
    """Run the job on all these nodes, in each of their partitions; where that fails as a whole, on each node alone."""
    told, notes, wrong = [], [], {}
    bundles = [[name for name in names if known[name][1] == partition] for partition in {known[n][1] for n in names}]
    while bundles:
        bundle = bundles.pop()
        try:
            said, found = job(bundle, known[bundle[0]][1])
        except BusyError as busy:  # it does other people's jobs, as it did before
            notes.append(f"not proven by a job: {busy}")
        except FailedError as failure:
            if len(bundle) == 1:
                wrong[bundle[0]] = str(failure)
            bundles += [[name] for name in bundle] if len(bundle) > 1 else []
        else:
            told.append(said)
            wrong.update(found)
    return "; ".join(filter(None, told)), notes, wrong


def admitted(user: str, cause: str, names: list[str], proof: Any) -> tuple[str, list[str], dict[str, str]]:
    """Let a proof run on nodes that are out of service; those that pass enter it, the others stay out.

    For the proof they are resumed, though slurm-drain's cause stays until they have passed; a reservation keeps them
    for its user meanwhile. What has started anew is down for Slurm, which an undrain alone would not change.
    """
    argv = ["scontrol", "create", "reservation", f"reservationname={RESERVATION}", "starttime=now"]
    output([*argv, f"duration={RESERVED}", f"users={user}", f"nodes={','.join(names)}", "flags=maint,ignore_jobs"])
    wrong = dict.fromkeys(names, "the proof did not come to its end")
    try:
        output(["scontrol", "update", f"nodename={','.join(names)}", "state=resume"])
        # Slurm asks each whether it is there; a job that is handed in before they have answered waits for seconds.
        _, silent = register({name: {} for name in names})
        told, notes, found = proof([name for name in names if name not in silent])
        wrong = {**silent, **found}
    finally:
        good = [name for name in names if name not in wrong]
        reason = ["--reason", "the last run could not prove it by a job"]
        output([DRAIN, cause, "--in", ",".join(good), "--out", ",".join(wrong), *reason])
        forget_reservation()
    return told, notes, wrong


def reserved() -> bool:
    """Return whether our reservation is there."""
    return f"ReservationName={RESERVATION} " in output(["scontrol", "--oneliner", "show", "reservation"])


def forget_reservation() -> None:
    """Delete it."""
    output(["scontrol", "delete", f"reservationname={RESERVATION}"])


def proofs(job: Job, mpi_script: str, mpi_program: str, nodes: Nodes, admit: str) -> dict[str, Any]:
    """Return what prove() does, and of MPI where a program of it is given."""
    found = prove(job, nodes, admit)
    if not mpi_program:
        return found
    well = {name: node for name, node in nodes.items() if name not in found["down"]}
    try:
        told = prove_mpi(job.user, mpi_script, mpi_program, well)
    except BusyError as busy:
        return {**found, "notes": [*found["notes"], f"MPI was not proven: {busy}"]}
    return {**found, "msg": "; ".join(filter(None, [found["msg"], told]))}


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "user": {"type": "str", "required": True},
            "nodes": {"type": "dict", "required": True},
            "script": {"type": "str", "required": True},
            "homes": {"type": "list", "elements": "str", "default": []},
            "mpi_script": {"type": "str", "default": ""},
            "mpi_program": {"type": "str", "default": ""},
            "admit": {"type": "str", "default": ""},
        },
    )
    try:
        given = dict(module.params)
        job = Job(given.pop("user"), given.pop("script"), given.pop("homes"))
        found = proofs(job, **given)
    except FailedError as failure:
        module.fail_json(msg=str(failure))
    module.exit_json(changed=bool(found.get("admitted")), **found)


if __name__ == "__main__":
    main()
