#!/usr/bin/python3
"""Write metrics of Slurm's nodes, jobs and GPUs to a file for the node exporter.

Uses options that exist since before Slurm 22.05, and text output: Debian 12's Slurm has no JSON for nodes. Text from
users, such as reasons or names of jobs, is never read. If the controller does not answer, the file has only that:
old numbers would look current.
"""

import collections
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

NODES = ["scontrol", "--oneliner", "--details", "show", "nodes"]
JOBS = ["squeue", "--all", "--noheader", "--format=%T %P"]

# Flags of a node that have precedence over its base state; the first match is used.
FLAGS = (
    ("NOT_RESPONDING", "not_responding"),
    ("FAIL", "fail"),
    ("DRAIN", "drained"),
    ("MAINTENANCE", "maintenance"),
    ("REBOOT_ISSUED", "rebooting"),
    ("COMPLETING", "completing"),
)
BUSY = ("ALLOCATED", "MIXED")
# States whose free GPUs are available for jobs.
SERVING = ("idle", "allocated", "mixed", "completing")


def fields(line):
    """Return the first value of every key of a line of `scontrol --oneliner`."""
    found = {}
    for key, value in re.findall(r"(?:^|\s)([A-Za-z_]+)=(\S*)", line):
        found.setdefault(key, value)
    return found


def node_state(text):
    """Return one word, the most important one, for a node's state such as IDLE+DRAIN."""
    # Older releases print NOT_RESPONDING as an asterisk.
    base, *flags = text.replace("*", "+NOT_RESPONDING").split("+")
    if base == "DOWN":
        return "down"
    for flag, word in FLAGS:
        if flag in flags:
            return "draining" if word == "drained" and (base in BUSY or "COMPLETING" in flags) else word
    return base.lower()


def gpus(text):
    """Return the number of GPUs by type in a Gres= or GresUsed= such as gpu:a100:4(S:0-1),tmpdisk:10."""
    count = collections.Counter()
    for item in re.sub(r"\([^)]*\)", "", text).split(","):
        parts = item.split(":")
        if parts[0] == "gpu" and parts[-1].isdigit():
            count[parts[1] if len(parts) > 2 else "gpu"] += int(parts[-1])
    return count


def count(nodes, jobs):
    """Return {metric: {labels: value}}, labels as a tuple of pairs, from the text of NODES and JOBS."""
    metrics = {name: collections.Counter() for name in DESCRIPTIONS}
    metrics["slurm_up"][()] = 1
    for line in nodes.splitlines():
        node = fields(line)
        if "NodeName" not in node:
            continue
        state = node_state(node["State"])
        partitions = node.get("Partitions", "(null)").replace("(null)", "").split(",")
        metrics["slurm_node_state"][(("node", node["NodeName"]), ("state", state))] = 1
        metrics["slurm_nodes"][(("state", state),)] += 1
        total, used = gpus(node.get("Gres", "")), gpus(node.get("GresUsed", ""))
        for partition in filter(None, partitions):
            for kind in total:
                free = total[kind] - used[kind]
                for use, number in (
                    ("allocated", used[kind]),
                    ("idle", free if state in SERVING else 0),
                    ("unavailable", 0 if state in SERVING else free),
                ):
                    metrics["slurm_gpus"][(("partition", partition), ("type", kind), ("use", use))] += number
    for line in jobs.splitlines():
        state, _, partitions = line.partition(" ")
        # A pending job may have several partitions and counts in each.
        for partition in filter(None, partitions.strip().split(",")):
            metrics["slurm_jobs"][(("partition", partition), ("state", state.lower()))] += 1
    return metrics


DESCRIPTIONS = {
    "slurm_up": "Whether Slurm's controller answered.",
    "slurm_nodes": "Nodes by state.",
    "slurm_node_state": "1 for the state that a node is in.",
    "slurm_gpus": "GPUs by partition, type and use; a node in two partitions counts in both.",
    "slurm_jobs": "Jobs in the queue by partition and state; an array that waits is one.",
}


def escape(text):
    """Return a label's value, escaped for the text format."""
    return text.replace("\\", r"\\").replace('"', r"\"")


def render(metrics):
    """Return Prometheus' text format."""
    lines = []
    for name, description in DESCRIPTIONS.items():
        values = metrics.get(name)
        if values:
            lines += [f"# HELP {name} {description}", f"# TYPE {name} gauge"]
        for labels, value in sorted((values or {}).items()):
            pairs = ",".join(f'{key}="{escape(text)}"' for key, text in labels)
            lines.append(f"{name}{{{pairs}}} {value}" if pairs else f"{name} {value}")
    return "\n".join(lines) + "\n"


def ask(argv):
    """Return the output of a command. Raises if it fails or times out."""
    return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=30).stdout


def replace(path, text):
    """Replace a file atomically, because the exporter may read it at any time."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".slurm-metrics-")
    new = Path(name)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        new.chmod(0o644)
        new.replace(path)
    except BaseException:
        new.unlink()
        raise


def main():
    """Write the metrics once, to the file on the command line."""
    try:
        metrics = count(ask(NODES), ask(JOBS))
    except subprocess.CalledProcessError as error:
        print(f"{' '.join(error.cmd)}: {error.stderr.strip()}", file=sys.stderr)
        metrics = {"slurm_up": {(): 0}}
    except subprocess.TimeoutExpired as error:
        print(f"{' '.join(error.cmd)}: no answer in {error.timeout:.0f} s", file=sys.stderr)
        metrics = {"slurm_up": {(): 0}}
    replace(Path(sys.argv[1]), render(metrics))


if __name__ == "__main__":
    main()
