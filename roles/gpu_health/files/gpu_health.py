"""Check whether this node's GPUs are fit for jobs, and report it to the head, which drains an unfit node.

The checks compare nvidia-smi, the kernel's log, the journal and /sys with the node's hardware record. A finding drains
or is advice. A hardware XID drains until the GPU was reset or the node rebooted, and a diagnosis has passed: the log
alone does not show that a GPU is healthy again.

usage: gpu-health              as Slurm's HealthCheckProgram or from a timer: check, report to the head
       gpu-health --json       check, print the findings, report nothing
       gpu-health --diagnose   reset GPUs with a hardware XID, and clear these XIDs if the checks pass
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import itertools
import json
import os
import random
import socket
import sys
import time
from pathlib import Path

import gpu_errors
import gpu_node
from gpu_checks import Data, Finding, check_node
from gpu_diagnosis import STOPPED, diagnose, switch_back
from nvidia_smi import pci_address

CONFIGURATION = Path("/etc/clusterctl/gpu-health.json")
KEY = Path("/etc/clusterctl/gpu-health.key")
STATE = Path("/var/lib/clusterctl/gpu-health.json")
LOCK = Path("/run/clusterctl/gpu-health.lock")
# Checks share this lock. A diagnosis holds it exclusively, as does role nvidia_driver while it replaces the driver.
DIAGNOSES = Path("/run/clusterctl/gpu-health.diagnosis")
VERSION = 1
# Slurm ends the program after a minute, of which a driver that hangs takes half. Role verify has many nodes report at
# once: in a lab of 60 nodes on two cores, more than ten seconds were not enough for 12 of them.
REPORT_SECONDS = 20
CONNECT_SECONDS = 5  # a head that is down does not answer
# Only root can use these source ports; by them the head distinguishes root from users.
PORTS = range(600, 1024)


def load_state() -> Data:
    """Return the state of the last run; a new one, which reads all logs again, if there is none or it is unreadable."""
    new = {"version": VERSION, "cursor": "", "xids": {}, "told": None, "stuck": 0}
    state = gpu_node.read_json(STATE, new)
    return state if isinstance(state, dict) and state.get("version") == VERSION else new


def write_metrics(given: Data, state: Data, found: list[Finding]) -> None:
    """Write the XIDs that need a diagnosis and the checks that drain as metrics, if the node has node_exporter."""
    file = Path(given["textfiles"]) / "gpu-health.prom"
    gpus = {pci_address(gpu["pci"]): gpu["index"] for gpu in given["gpus"]}
    lines = [
        f'cluster_node_nvswitch_sxid{{switch="{place}",sxid="{code}"}} 1\n'
        if gpu_errors.is_switch(place)
        else f'cluster_node_gpu_xid{{gpu="{gpus.get(place, place)}",xid="{code}"}} 1\n'
        for place, codes in state["xids"].items()
        for code in codes
    ]
    checks = sorted({one.check for one in found if one.drains})
    lines += [f'cluster_node_gpu_unfit{{check="{check}"}} 1\n' for check in checks]
    if not lines:
        file.unlink(missing_ok=True)
    elif file.parent.is_dir():
        gpu_node.replace_file(file, "".join(lines), 0o644)


def reason(found: list[Finding]) -> str:
    """Return the reason to drain the node in at most 100 characters of ASCII, empty if there is none."""
    texts = list(dict.fromkeys(finding.text for finding in found if finding.drains))
    more = f" (and {len(texts) - 1} more)" if len(texts) > 1 else ""
    text = "".join(c if " " <= c <= "~" else "?" for c in " ".join(texts[0].split())) if texts else ""
    return text[: 100 - len(more)] + more


def report(given: Data, state: Data, text: str) -> None:
    """Report the reason to drain, or that there is none, if the head may not know it. Raises as `send` does.

    A reason is sent every time: an operator may have resumed the node.
    """
    if text or state["told"] != text:
        state["told"] = None
        gpu_node.write_json(STATE, state)  # before: after a late answer it is unknown what the head has recorded
        send(given, text)
        state["told"] = text


def send(given: Data, text: str) -> None:
    """Send a report, with retries: many nodes may report at once. Raises OSError, or ValueError if the head refuses."""
    deadline = time.monotonic() + REPORT_SECONDS
    delay = 0.5 + int(hashlib.sha256(given["node"].encode()).hexdigest(), 16) % 100 / 100
    number = len(given["heads"])
    for at in itertools.count():
        head, others = given["heads"][at % number], number - 1 - at % number
        seconds = max(1.0, (deadline - time.monotonic()) / (1 + others))  # the others of this round have their part
        try:
            answer = send_once(given, head, text, time.monotonic() + seconds)
            break
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(delay)
    if answer != "kept":
        raise ValueError("the head refused the report; its journal has the reason (slurm-health)")


def send_once(given: Data, head: str, text: str, until: float) -> str:
    """Send a report, signed with this node's key, and return the head's answer.

    It is waited for until a time of the monotonic clock. A busy head has accepted the connection, and would have more
    to do if the report were sent once more.
    """
    target, source = (head, given["port"]), ("", random.choice(PORTS))  # noqa: S311 - any free one
    with socket.create_connection(target, CONNECT_SECONDS, source) as connection, connection.makefile("rw") as file:
        connection.settimeout(max(0.1, until - time.monotonic()))
        challenge = file.readline(128).strip()
        if not challenge:
            raise ConnectionResetError("the head is busy")
        signed = f"{challenge} {given['node']} {text}".encode()
        signature = hmac.new(KEY.read_text().strip().encode(), signed, hashlib.sha256).hexdigest()
        print(given["node"], signature, text, file=file, flush=True)
        connection.settimeout(max(0.1, until - time.monotonic()))
        return file.readline(128).strip()


def main(arguments: list[str]) -> int:
    """Run what the command line asks for; return the exit status: 1 if the report to the head failed."""
    if os.geteuid() != 0:
        sys.exit("gpu-health: only root can run the checks")
    os.umask(0o077)
    given = json.loads(CONFIGURATION.read_text())
    is_diagnosis = arguments == ["--diagnose"]
    LOCK.parent.mkdir(mode=0o700, exist_ok=True)
    with open(DIAGNOSES, "w") as diagnoses, open(LOCK, "w") as lock:
        try:
            # A diagnosis may restart slurmd, which runs this program first: it must not wait for the diagnosis.
            kind = fcntl.LOCK_EX if is_diagnosis else fcntl.LOCK_SH
            fcntl.flock(diagnoses, kind | (0 if arguments else fcntl.LOCK_NB))
        except BlockingIOError:
            return 0
        fcntl.flock(lock, fcntl.LOCK_EX)
        for error in switch_back("start", gpu_node.read_text(STOPPED).split()).values():  # after a killed diagnosis
            print(f"gpu-health: {error}", file=sys.stderr)
        STOPPED.unlink(missing_ok=True)
        state = load_state()
        status, found = 0, []
        try:
            if is_diagnosis:
                found, checks = diagnose(given, state, lambda text: report(given, state, text))
            else:
                found, checks = check_node(given, state, with_topology=bool(arguments))
            if arguments != ["--json"]:
                report(given, state, reason(found))
        except (OSError, ValueError) as error:
            print(f"gpu-health: the report to {' or '.join(given['heads'])} failed: {error}", file=sys.stderr)
            status = 1
        gpu_node.write_json(STATE, state)
        write_metrics(given, state, found)
    if arguments and not status:
        answer = {"version": VERSION, "checks": list(checks.enabled()), "recorded": len(given["gpus"])}
        answer["gpus"] = [gpu.text("product_name") for gpu in checks.gpus]
        answer["findings"] = [{"check": one.check, "text": one.text, "drains": one.drains} for one in found]
        print(json.dumps({**answer, "topology": checks.topology}))
    return status


def start() -> None:
    """Run as the program gpu-health, and end even if a thread hangs in the kernel."""
    status = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(status)
