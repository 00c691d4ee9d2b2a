"""Count GPU time and ended jobs by account and partition, from what squeue shows, across restarts.

squeue still shows a job for some minutes after its end (MinJobAge, 300 s by default), so a count every 15 s misses none
and needs no accounting. If no count is made for longer, the time of jobs that ended meanwhile is missing.
"""

import json
import re

RUNNING = ("RUNNING", "SUSPENDED", "STOPPED", "SIGNALING")
ENDED = ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE")
ENDED += ("OUT_OF_MEMORY",)
# Fields of squeue with their widths; no word of them is chosen by a user.
FIELDS = {"JobID": 20, "State": 20, "Account": 64, "Partition": 64, "StartTime": 24, "EndTime": 24, "tres-alloc": 500}
ASK = ["squeue", "--all", "--noheader", "--noconvert", "--states=R,S,ST,SI,CG,CD,F,TO,CA,NF,PR,BF,DL,OOM"]
ASK += ["--Format=" + ",".join(f"{name}:{width}" for name, width in FIELDS.items())]
# Pairs of an account and a partition with series of their own; all others are one, `other`.
PAIRS = 500


def load(path):
    """Return the counts of the last run; None if there are none, or they cannot be read."""
    try:
        with open(path) as file:
            found = json.load(file)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and found.keys() == {"time", "seen", "gpu_seconds", "jobs"} else None


def rows(text):
    """Return the fields of each job."""
    for line in text.splitlines():
        found, at = {}, 0
        for name, width in FIELDS.items():
            found[name] = line[at : at + width].strip()
            at += width
        if found["JobID"].isdigit():
            yield found


def advance(last, text, now):
    """Return the counts at `now`, from those of the last run and the text of ASK. The first run counts nothing."""
    counts = {
        "time": now,
        "seen": [],
        "gpu_seconds": dict(last["gpu_seconds"]) if last else {},
        "jobs": dict(last["jobs"]) if last else {},
    }
    pairs = {key.rpartition("\t")[0] for key in counts["jobs"]} | set(counts["gpu_seconds"])
    seen = set(last["seen"]) if last else set()
    for row in rows(text):
        pair = f"{row['Account']}\t{row['Partition']}"
        if pair not in pairs and len(pairs) >= PAIRS:
            pair = "other\tother"
        pairs.add(pair)
        ended = row["State"] not in RUNNING
        if (ended and not row["EndTime"].isdigit()) or not row["StartTime"].isdigit():
            continue
        end = min(int(row["EndTime"]), now) if ended else now
        held = re.search(r"(?:^|,)gres/gpu=(\d+)", row["tres-alloc"])
        gpus = int(held.group(1)) if held else 0
        seconds = end - max(int(row["StartTime"]), last["time"]) if last else 0
        counts["gpu_seconds"][pair] = counts["gpu_seconds"].get(pair, 0) + max(0, seconds) * gpus
        if row["State"] in ENDED:
            # A job that is requeued has the same number, and another end.
            key = f"{row['JobID']} {row['EndTime']}"
            counts["seen"].append(key)
            if last and key not in seen:
                state = f"{pair}\t{row['State'].lower()}"
                counts["jobs"][state] = counts["jobs"].get(state, 0) + 1
    return counts


def series(counts):
    """Return {metric: {labels: value}} of counts."""
    names = ("account", "partition", "state")
    return {
        metric: {tuple(zip(names, key.split("\t"))): value for key, value in counts[kind].items()}
        for metric, kind in (("slurm_account_gpu_seconds_total", "gpu_seconds"), ("slurm_account_jobs_total", "jobs"))
    }


def save(counts):
    """Return the text of a file of counts."""
    return json.dumps(counts) + "\n"
