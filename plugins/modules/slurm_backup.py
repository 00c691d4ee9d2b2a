#!/usr/bin/python
"""Ansible module: one archive of what a head has, kept if a test restore of it succeeds."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import tarfile
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.cluster_backup import (
    CHUNK,
    DIRECTORY,
    DRAINED,
    DUMP,
    LEDGER,
    MONITORING,
    NAME,
    PROMETHEUS,
    STATE,
    VERSION,
    copy_directory,
    copy_monitoring,
    counts,
    jobs,
    label,
    load,
    pack,
    release,
    room,
    seal,
    size_of,
    sql,
    try_directory,
    try_monitoring,
    try_state,
    unseal,
)
from ansible.module_utils.node_state.tools import ENVIRONMENT, NodeError, change, clean, run, sync

DOCUMENTATION = r"""
module: slurm_backup
author: the clusterctl authors
short_description: Back up what a head has, and prove the backup by a restore
description:
  - Copies what slurmctld keeps of jobs, nodes and reservations, and the causes of drained nodes; then dumps the
    accounting database, all while jobs run. With them go the cluster's directory, of which the head has a copy, and
    what Prometheus is configured by. Runs on the head, as root.
  - Restores both for a test. A slurmctld of its own, in a network of its own, starts on the copied state; the dump is
    loaded into a database of its own; the vault with the cluster's secrets is held against its password, and promtool
    reads Prometheus's configuration. Where anything is missing that is an error, and no earlier archive is touched.
  - The archive is for root alone, for jobs' scripts and environments are in it. Secrets of the cluster are in it as
    they are in its directory, sealed; the password that opens them is not.
options:
  directory:
    description: Where archives are kept.
    type: path
    required: true
  keep:
    description: How many of this cluster's archives stay.
    type: int
    required: true
  state:
    description: StateSaveLocation of slurmctld.
    type: path
    required: true
  database:
    description: Name of the accounting database on this host; empty where it is on another, and then not backed up.
    type: str
    required: true
  prometheus:
    description: Whether this host is the cluster's monitoring.
    type: bool
    required: true
  key:
    description: The cluster's secret that seals the archive, and that only its head and its controllers have.
    type: str
    required: true
  check:
    description: Text of the program that starts a slurmctld on a state and prints its jobs.
    type: str
    required: true
attributes:
  check_mode:
    support: none
"""

EXAMPLES = r"""
- name: Back up
  slurm_backup:
    directory: /var/lib/clusterctl/backups
    keep: 7
    state: /var/lib/slurm/slurmctld
    database: slurm_acct_db
    prometheus: true
    key: "{{ lookup('cluster_secret', 'backup_key') }}"
    check: "{{ lookup('ansible.builtin.file', 'slurm-state-check') }}"
"""

RETURN = r"""
changes:
  description: The archive that was made and those that it replaces; mappings with kind, name and what.
  type: list
  returned: always
notes:
  description: What the archive does not hold, and what is wrong in it as it is here.
  type: list
  elements: str
  returned: always
"""

SAVED_S = 6  # slurmctld writes a change that it was told of down within 5 s
DELIVERED_S = 60
ATTEMPTS = 3
SCRATCH = "clusterctl_backup_check"


def queue() -> dict[str, str]:
    """Return the jobs that wait or run, id to state."""
    return jobs(run("squeue", "--noheader", "--all", "--states=PENDING,RUNNING,SUSPENDED", "--format=%A %T")[1])


def save(queue: dict[str, str]) -> None:
    """Have slurmctld write its jobs down within SAVED_S: where backfill has started one it may not do so for minutes.

    Any update of a job makes it, so one gets the name that it has.
    """
    for job in sorted(queue, key=lambda job: queue[job] != "RUNNING")[:1]:
        status, name = run("squeue", "--noheader", "--all", f"--jobs={job}", "--format=%j", check=False)
        if status == 0 and name.strip():  # one that has ended meanwhile is written down as that
            run("scontrol", "update", f"JobId={job}", "JobName=" + name.splitlines()[0], check=False)


def state(source: Path, workplace: Path, check: str) -> dict[str, str]:
    """Copy the state, and start a slurmctld on the copy; return the jobs that this one has.

    Each job that waited, or ran, before the copy was begun and still does after it must be in the copy like that.
    """
    for _ in range(ATTEMPTS):
        before = queue()
        save(before)
        time.sleep(SAVED_S)
        pack(source, workplace / STATE)
        found = try_state(workplace / STATE, workplace, check)
        after = queue()
        lacking = sorted(job for job in before if before[job] == after.get(job) and found.get(job) != before[job])
        if not lacking:
            return found
    told = ", ".join(f"{job} is {before[job]}, there {found.get(job, 'not at all')}" for job in lacking[:10])
    age = time.time() - (source / "job_state").stat().st_mtime
    raise NodeError(
        f"the copy of slurmctld's state does not have {len(lacking)} jobs of the queue as they are: {told}; "
        f"slurmctld last saved its jobs {age:.0f} s ago"
    )


def delivered() -> None:
    """Wait until slurmdbd has all that slurmctld has to say to it, so that the dump is no older than the state."""
    deadline = time.monotonic() + DELIVERED_S
    while True:
        waiting = [line.split()[-1] for line in run("sdiag")[1].splitlines() if line.startswith("DBD Agent queue size")]
        if waiting == ["0"]:
            return
        if time.monotonic() > deadline:
            said = " ".join(waiting) or "an unknown number of"
            raise NodeError(f"slurmdbd does not take {said} records that slurmctld has for it: is it running?")
        time.sleep(0.2)


def dump(database: str, target: Path) -> None:
    """Dump a database as of one moment, compressed; its writers are not held up."""
    argv = ["mariadb-dump", "--single-transaction", "--quick", "--hex-blob", database]
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **ENVIRONMENT},
    )
    assert process.stdout is not None  # noqa: S101 - as it was asked for
    with gzip.open(target, "wb", compresslevel=1) as file:
        shutil.copyfileobj(process.stdout, file, CHUNK)
    _, said = process.communicate()
    if process.returncode:
        raise NodeError(f"mariadb-dump: {clean(said.decode('utf-8', 'replace'))}")


def accounting(database: str, workplace: Path) -> dict[str, int]:
    """Dump the database, load the dump into one of its own and return how many rows it has there, table by table."""
    before = counts(database)
    dump(database, workplace / DUMP)
    after = counts(database)
    try:
        load(workplace / DUMP, SCRATCH)
        found = counts(SCRATCH)
    finally:
        sql(f"DROP DATABASE IF EXISTS `{SCRATCH}`")
    for name in before:
        # Rows are added all the time, and taken away where Slurm is told to purge.
        least, most = sorted((before[name], after.get(name, before[name])))
        if not least <= found.get(name, -1) <= most:
            got = found.get(name, "none")
            raise NodeError(f"restored for a test, {name} has {got} rows, expected {least} to {most}")
    return found


def needed(source: Path, database: str) -> list[tuple[str, int]]:
    """Return where a backup and its test restore need how many bytes at most."""
    of_state, of_database = size_of(source), 0
    if database:
        asked = f"SELECT @@datadir, SUM(data_length + index_length) FROM information_schema.tables WHERE table_schema = '{database}'"  # noqa: E501,S608
        ((folder, size),) = sql(asked)
        of_database = int(float(size)) if size != "NULL" else 0
    spare = 64 << 20
    # The dump and the archive with it in it; the state as well, and once more laid out.
    here = [(str(source), 3 * of_state), ("", 2 * of_database + spare)]
    return here + ([(folder, of_database + spare)] if database else [])


def make(given: dict[str, Any]) -> tuple[Path, dict[str, Any], list[str]]:
    """Make an archive that a test has restored, and return it with what it says of itself, and what to say of it."""
    directory, source, database = Path(given["directory"]), Path(given["state"]), given["database"]
    if database and not NAME.fullmatch(database):
        raise NodeError(f"{database!r} is no name of a database")
    if not label():
        raise NodeError(
            "this is no cluster's head: the copy of the cluster's directory that bootstrap leaves is not here"
        )
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.chmod(0o700)
    workplace = directory / ".new"
    shutil.rmtree(workplace, ignore_errors=True)  # of a run that was killed
    room(*((place or str(directory), size) for place, size in needed(source, database)))
    workplace.mkdir(mode=0o700)
    try:
        made = datetime.now(timezone.utc)  # noqa: UP017 - the node's Python may be older
        found = state(source, workplace, given["check"])
        rows: dict[str, int] = {}
        if database:
            delivered()
            rows = accounting(database, workplace)
        notes = [] if database else ["accounting is on another host, and is not in the backup"]
        copy_directory(workplace / DIRECTORY)
        try_directory(workplace / DIRECTORY)
        parts = [workplace / STATE, workplace / DIRECTORY] + [workplace / DUMP] * bool(database)
        if given["prometheus"] and (PROMETHEUS / "prometheus.yml").exists():
            copy_monitoring(workplace / MONITORING)
            wrong = try_monitoring(workplace / MONITORING, workplace)
            parts.append(workplace / MONITORING)
            notes += [f"Prometheus's configuration is in the backup as it is, and promtool says: {wrong}"] * bool(wrong)
        else:
            notes.append("Prometheus is not set up on this host, and its configuration is not in the backup")
        if DRAINED.exists():
            shutil.copyfile(DRAINED, workplace / LEDGER)
            parts.append(workplace / LEDGER)
        manifest = {
            "version": VERSION,
            "cluster": label(),
            "made": made.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "slurm": release(),
            "running": sorted((job for job in found if found[job] in ("RUNNING", "SUSPENDED")), key=int),
            "pending": sum(one == "PENDING" for one in found.values()),
            "database": database,
            "records": {
                what: sum(count for name, count in rows.items() if name.endswith(f"_{what}_table"))
                for what in ("job", "assoc")
            },
        }
        seal(workplace / "archive", manifest, parts, given["key"])
        unseal(workplace / "archive", given["key"])  # as it lies on the disk
        path = directory / f"{manifest['cluster']}-{made:%Y%m%dT%H%M%SZ}.tar"
        (workplace / "archive").rename(path)
        sync(directory)
        return path, manifest, notes
    finally:
        shutil.rmtree(workplace, ignore_errors=True)


def prune(path: Path, keep: int) -> list[Path]:
    """Remove this cluster's oldest archives beyond `keep`; names sort by time."""
    stem = path.name[: -len("20261121T190000Z.tar")]
    mine = sorted(
        other
        for other in path.parent.glob("*.tar")
        if other.name.startswith(stem) and len(other.name) == len(path.name)
    )
    for old in mine[:-keep]:
        old.unlink()
    return mine[:-keep]


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "directory": {"type": "path", "required": True},
            "keep": {"type": "int", "required": True},
            "state": {"type": "path", "required": True},
            "database": {"type": "str", "required": True},
            "prometheus": {"type": "bool", "required": True},
            "key": {"type": "str", "required": True, "no_log": True},
            "check": {"type": "str", "required": True},
        },
    )
    try:
        path, manifest, notes = make(module.params)
        gone = prune(path, max(1, module.params["keep"]))
    except (NodeError, OSError, tarfile.TarError) as error:
        module.fail_json(msg=f"No backup was made, and those from before are as they were. {error}")
    changes = [change("backup", str(path), "created", json.dumps(manifest["records"]))]
    changes += [change("old backup", str(old), "removed", "removed") for old in gone]
    module.exit_json(changed=True, changes=changes, notes=notes)


if __name__ == "__main__":
    main()
