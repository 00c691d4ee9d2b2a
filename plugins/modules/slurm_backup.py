#!/usr/bin/python
"""Ansible module: back up a head into one archive, which is kept if a test restore succeeds."""

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
short_description: Back up a head, and check the backup with a test restore
description:
  - Copies slurmctld's state of jobs, nodes and reservations, and the causes of drained nodes; then dumps the
    accounting database. Jobs continue to run. The archive also has the head's copy of the cluster's directory, and
    Prometheus's configuration. Runs on the head, as root.
  - Restores state and dump for a test. A separate slurmctld in a separate network starts on the copied state. The dump
    is loaded into a separate database. The vault with the cluster's secrets is checked with its password, and promtool
    checks Prometheus's configuration. If anything is missing, the module fails and keeps all earlier archives.
  - Only root can read the archive, because it has jobs' scripts and environments. The cluster's secrets are in it
    encrypted, as in its directory; the vault password is not.
options:
  directory:
    description: Directory of the archives.
    type: path
    required: true
  keep:
    description: Number of this cluster's archives to keep.
    type: int
    required: true
  state:
    description: StateSaveLocation of slurmctld.
    type: path
    required: true
  database:
    description: Name of the accounting database on this host; empty if it is on another host, then it is not backed up.
    type: str
    required: true
  prometheus:
    description: Whether this host is the cluster's monitoring.
    type: bool
    required: true
  key:
    description: The cluster's secret that seals the archive; only its head and its controllers have it.
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
  description: The new archive and the deleted old ones; mappings with kind, name and what.
  type: list
  returned: always
notes:
  description: What the archive does not include, and problems of the included configuration.
  type: list
  elements: str
  returned: always
"""

SAVED_S = 6  # slurmctld saves a change within 5 s
DELIVERED_S = 60
ATTEMPTS = 3
SCRATCH = "clusterctl_backup_check"


def queue() -> dict[str, str]:
    """Return the pending and running jobs, id to state."""
    return jobs(run("squeue", "--noheader", "--all", "--states=PENDING,RUNNING,SUSPENDED", "--format=%A %T")[1])


def save(queue: dict[str, str]) -> None:
    """Make slurmctld save its jobs within SAVED_S: after backfill has started a job, it may not save for minutes.

    Any update of a job triggers that, so set a job's name to its current name.
    """
    for job in sorted(queue, key=lambda job: queue[job] != "RUNNING")[:1]:
        status, name = run("squeue", "--noheader", "--all", f"--jobs={job}", "--format=%j", check=False)
        if status == 0 and name.strip():  # a job that has ended meanwhile is saved as ended
            run("scontrol", "update", f"JobId={job}", "JobName=" + name.splitlines()[0], check=False)


def state(source: Path, workplace: Path, check: str) -> dict[str, str]:
    """Copy the state, and start a slurmctld on the copy; return its jobs.

    Each job with the same state before and after the copying must have this state in the copy.
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
    listed = ", ".join(f"{job} is {before[job]}, in the copy {found.get(job, 'missing')}" for job in lacking[:10])
    age = time.time() - (source / "job_state").stat().st_mtime
    raise NodeError(
        f"in the copy of slurmctld's state, {len(lacking)} jobs of the queue are missing or different: {listed}; "
        f"slurmctld last saved its jobs {age:.0f} s ago"
    )


def delivered() -> None:
    """Wait until slurmdbd has all records of slurmctld, so that the dump is not older than the state."""
    deadline = time.monotonic() + DELIVERED_S
    while True:
        waiting = [line.split()[-1] for line in run("sdiag")[1].splitlines() if line.startswith("DBD Agent queue size")]
        if waiting == ["0"]:
            return
        if time.monotonic() > deadline:
            count = " ".join(waiting) or "an unknown number of"
            raise NodeError(f"slurmdbd does not accept {count} records from slurmctld: check that slurmdbd is running")
        time.sleep(0.2)


def dump(database: str, target: Path) -> None:
    """Dump a consistent snapshot of a database, compressed, without blocking its writers."""
    argv = ["mariadb-dump", "--single-transaction", "--quick", "--hex-blob", database]
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **ENVIRONMENT},
    )
    assert process.stdout is not None  # noqa: S101 - requested with PIPE
    with gzip.open(target, "wb", compresslevel=1) as file:
        shutil.copyfileobj(process.stdout, file, CHUNK)
    _, said = process.communicate()
    if process.returncode:
        raise NodeError(f"mariadb-dump: {clean(said.decode('utf-8', 'replace'))}")


def accounting(database: str, workplace: Path) -> dict[str, int]:
    """Dump the database, load the dump into a separate database and return its number of rows by table."""
    before = counts(database)
    dump(database, workplace / DUMP)
    after = counts(database)
    try:
        load(workplace / DUMP, SCRATCH)
        found = counts(SCRATCH)
    finally:
        sql(f"DROP DATABASE IF EXISTS `{SCRATCH}`")
    for name in before:
        # Meanwhile rows are added, and deleted if Slurm is configured to purge.
        least, most = sorted((before[name], after.get(name, before[name])))
        if not least <= found.get(name, -1) <= most:
            got = found.get(name, "none")
            raise NodeError(f"in the test restore, {name} has {got} rows, expected {least} to {most}")
    return found


def needed(source: Path, database: str) -> list[tuple[str, int]]:
    """Return (directory, bytes) that a backup and its test restore need at most."""
    of_state, of_database = size_of(source), 0
    if database:
        asked = f"SELECT @@datadir, SUM(data_length + index_length) FROM information_schema.tables WHERE table_schema = '{database}'"  # noqa: E501,S608
        ((folder, size),) = sql(asked)
        of_database = int(float(size)) if size != "NULL" else 0
    spare = 64 << 20
    # The dump, twice with the archive; the state, twice with the archive, and once more unpacked.
    here = [(str(source), 3 * of_state), ("", 2 * of_database + spare)]
    return here + ([(folder, of_database + spare)] if database else [])


def make(given: dict[str, Any]) -> tuple[Path, dict[str, Any], list[str]]:
    """Make and test an archive; return its path, its manifest and notes."""
    directory, source, database = Path(given["directory"]), Path(given["state"]), given["database"]
    if database and not NAME.fullmatch(database):
        raise NodeError(f"{database!r} is not a valid name of a database")
    if not label():
        raise NodeError("this host is not a cluster's head: bootstrap's copy of the cluster's directory is missing")
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.chmod(0o700)
    workplace = directory / ".new"
    shutil.rmtree(workplace, ignore_errors=True)  # from a killed run
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
            notes += [f"Prometheus's configuration in the backup has errors, promtool: {wrong}"] * bool(wrong)
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
        unseal(workplace / "archive", given["key"])  # read back from the disk
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
        module.fail_json(msg=f"No backup was made; earlier backups are unchanged. {error}")
    changes = [change("backup", str(path), "created", json.dumps(manifest["records"]))]
    changes += [change("old backup", str(old), "removed", "removed") for old in gone]
    module.exit_json(changed=True, changes=changes, notes=notes)


if __name__ == "__main__":
    main()
