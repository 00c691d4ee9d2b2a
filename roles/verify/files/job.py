"""Proves that an ordinary user's job on two nodes gets the GPUs it asks for and no others, and is accounted for.

Runs on the head, fed to python3 by stdin. Usage:
python3 - '{"user": …, "nodes": {NAME: {"gpus": N, "confined": BOOL}}, "script": …}'
"""

import json
import subprocess
import sys
import time

REGISTER_S = 60
JOB_S = 90
IMMEDIATE_S = 20
ACCOUNTED_S = 30
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/usr/sbin:/bin:/sbin", "LC_ALL": "C"}


REGISTERED = ("idle", "mixed", "allocated", "completing", "planned", "draining", "drained", "reserved", "maint")
FREE = ("idle", "mixed", "completing", "planned")


class Failed(Exception):
    """What the administrator reads."""


class Busy(Exception):
    """Other people's jobs hold the nodes, so nothing can be proven now."""


def output(argv, text=None, timeout=JOB_S):
    """Return what a command prints. Raises Failed with its own words."""
    process = subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
        env=ENVIRONMENT,
        cwd="/",
    )
    try:
        out, err = process.communicate(text or "", timeout=timeout)
    except subprocess.TimeoutExpired:
        process.terminate()
        _, err = process.communicate()
        raise Failed("%s has not ended after %d s: %s" % (argv[0], timeout, err.strip()[-600:]))
    if process.returncode:
        said = (err.strip() or out.strip())[-600:]
        raise Failed("%s ended with %d: %s" % (" ".join(argv[:6]), process.returncode, said))
    return out


def states():
    """Return (state, partition) of each node. A partition marked * is the default one."""
    lines = output(["sinfo", "--noheader", "--Node", "--format=%N|%T|%P"]).splitlines()
    found = {}
    for name, state, partition in sorted((line.split("|") for line in lines), key=lambda row: row[2].endswith("*")):
        found[name] = (state, partition.rstrip("*"))
    return found


def choose(nodes):
    """Return up to two nodes of one partition, idle ones and those with most GPUs first, and the partition.

    Waits until every node has registered; one that a person took out of service has. A state marked * is of a
    silent node.
    Raises Failed with the state of each node that does not come up.
    """
    deadline = time.monotonic() + REGISTER_S
    while True:
        known = states()
        waiting = {name: known.get(name, ("unknown",))[0] for name in nodes}
        waiting = {name: state for name, state in waiting.items() if state not in REGISTERED}
        if not waiting:
            break
        if time.monotonic() > deadline:
            raise Failed("not in service: " + ", ".join("%s is %s" % pair for pair in sorted(waiting.items())))
        time.sleep(0.2)
    able = [name for name in nodes if nodes[name]["gpus"]] or list(nodes)
    free = [name for name in able if known[name][0] in FREE]
    if not free:
        raise Busy("no node is free: " + ", ".join("%s is %s" % (name, known[name][0]) for name in sorted(able)))
    free.sort(key=lambda name: (known[name][0] != "idle", -nodes[name]["gpus"], name))
    bundles = [[name for name in free if known[name][1] == known[first][1]][:2] for first in free]
    best = max(bundles, key=len)
    return best, known[best[0]][1]


def run_job(plan, chosen, partition):
    """Run the job and return what it saw on each node."""
    gpus = min(2, min(plan["nodes"][name]["gpus"] for name in chosen))
    argv = ["runuser", "--user", plan["user"], "--", "srun", "--job-name=verify", "--partition=" + partition]
    argv += ["--nodelist=" + ",".join(chosen), "--nodes=%d" % len(chosen)]
    argv += ["--ntasks-per-node=1", "--mem=64M", "--time=2"]
    argv += ["--immediate=%d" % IMMEDIATE_S]
    argv += ["--gres=gpu:%d" % gpus] * (gpus > 0) + ["--chdir=/", "--quiet", "python3", "-"]
    try:
        told = output(argv, plan["script"])
    except Failed as failure:
        if "Unable to allocate resources" in str(failure) and ("busy" in str(failure) or "mmediate" in str(failure)):
            raise Busy("no room for a small job on %s within %d s" % (" and ".join(chosen), IMMEDIATE_S))
        raise
    answers = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
    return gpus, {answer["node"]: answer for answer in answers}


def judge(plan, chosen, gpus, answers):
    """Yield what is wrong with the answers."""
    for name in chosen:
        answer = answers.get(name)
        if answer is None:
            yield "%s: the job printed nothing there" % name
            continue
        if answer["user"] == 0:
            yield "%s: the job ran as root" % name
        opened = sorted(path for path, result in answer["devices"].items() if result == "open")
        others = {path: result for path, result in answer["devices"].items() if result not in ("open", "EPERM")}
        if others:
            yield "%s: opening a GPU gave %s" % (name, others)
        if plan["nodes"][name]["confined"] and len(opened) != gpus:
            which = " ".join(opened) or "none"
            yield "%s: the job asked for %d GPUs and can open %d (%s)" % (name, gpus, len(opened), which)
        if plan["nodes"][name]["confined"] and gpus and answer["listed"] not in (None, gpus):
            yield "%s: the job asked for %d GPUs and nvidia-smi lists %d" % (name, gpus, answer["listed"])


def accounted(job):
    """Wait until accounting knows the job as completed. Raises Failed with what it knows instead."""
    deadline = time.monotonic() + ACCOUNTED_S
    while True:
        ask = ["sacct", "--noheader", "--parsable2", "--allocations", "--jobs=" + job, "--format=State"]
        state = output(ask).strip()
        if state == "COMPLETED":
            return
        if time.monotonic() > deadline:
            raise Failed("sacct says %r of job %s, not COMPLETED" % (state, job))
        time.sleep(0.2)


def main(plan):
    """Print one line that says what was proven."""
    chosen, partition = choose(plan["nodes"])
    gpus, answers = run_job(plan, chosen, partition)
    problems = list(judge(plan, chosen, gpus, answers))
    if problems:
        raise Failed("; ".join(problems))
    job = answers[chosen[0]]["job"]
    accounted(job)
    where = ", ".join(chosen)
    print("job %s of %s saw exactly %d GPUs on each of %s, and is accounted for" % (job, plan["user"], gpus, where))


try:
    main(json.loads(sys.argv[1]))
except Busy as busy:
    print("no job was run: %s" % busy)
except Failed as failure:
    sys.exit(str(failure))
