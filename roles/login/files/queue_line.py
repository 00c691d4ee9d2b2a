#!/usr/bin/python3 -IS
"""Write a line about Slurm's queue to a file, for the message of the day.

A timer starts this program, so that a login never asks Slurm. If the controller does not respond, the line says that.

usage: slurm-queue-line CLUSTER FILE
"""

import os
import re
import subprocess
import sys

JOBS = ["squeue", "--all", "--array", "--noheader", "--states=RUNNING,PENDING", "--format=%T"]
NODES = ["scontrol", "--oneliner", "show", "nodes"]
SECONDS = 20  # for each command
NEW = "/run/clusterctl-queue.new"  # pam_motd would show it in the directory of the file
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
# Flags and states of nodes to which Slurm gives no jobs.
OUT = ("DOWN", "DRAIN", "ERROR", "FAIL", "FUTURE", "MAINT", "NOT_RESPONDING", "REBOOT", "UNKNOWN")


def run(argv):
    """Return a command's output. Raises OSError and subprocess.SubprocessError."""
    done = subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        universal_newlines=True,
        errors="replace",
        env=ENVIRONMENT,
        timeout=SECONDS,
        check=True,
    )
    return done.stdout


def gpus_of(node, key):
    """Return the number of GPUs in a node's CfgTRES or AllocTRES."""
    found = re.search(r" %s=(?:\S*,)?gres/gpu=(\d+)" % key, node)
    return int(found[1]) if found else 0


def count_gpus(nodes):
    """Return the free GPUs of nodes in service, and the GPUs of all nodes; `nodes` is scontrol's text."""
    free = total = 0
    for node in nodes.splitlines():
        configured = gpus_of(node, "CfgTRES")
        state = re.search(r" State=(\S+)", node)
        total += configured
        if state and not any(word in state[1] for word in OUT):
            free += configured - gpus_of(node, "AllocTRES")
    return free, total


def describe(cluster, jobs, nodes):
    """Return the line for squeue's and scontrol's text."""
    states = jobs.split()
    running, waiting = states.count("RUNNING"), states.count("PENDING")
    line = "%s: %d %s, %d %s" % (
        cluster,
        running,
        "job runs" if running == 1 else "jobs run",
        waiting,
        "waits" if waiting == 1 else "wait",
    )
    free, total = count_gpus(nodes)
    gpus = "; %d of %d %s free" % (free, total, "GPU is" if total == 1 else "GPUs are")
    return line + (gpus if total else "")


def main(cluster, file):
    """Write the line; pam_motd never reads half of it."""
    try:
        line = describe(cluster, run(JOBS), run(NODES))
    except (OSError, subprocess.SubprocessError):
        line = "%s: Slurm's controller does not respond" % cluster
    os.makedirs(os.path.dirname(file), mode=0o755, exist_ok=True)
    with open(os.open(NEW, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), "w") as output:
        output.write(line + "\n")
    os.replace(NEW, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
