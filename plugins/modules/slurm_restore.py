#!/usr/bin/python
"""Ansible module: put Slurm's state and its accounting back from a backup, before Slurm starts."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import shutil
import tarfile
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.cluster_backup import (
    DRAINED,
    DUMP,
    LEDGER,
    MONITORING,
    NAME,
    PROMETHEUS,
    RULES,
    STATE,
    counts,
    label,
    load,
    release,
    room,
    sql,
    tables,
    take,
    unpack,
    unseal,
)
from ansible.module_utils.node_state.tools import (
    RUN,
    STORE,
    NodeError,
    change,
    clean,
    exclusive,
    run,
    store,
    sync,
    write,
)

DOCUMENTATION = r"""
module: slurm_restore
author: the clusterctl authors
short_description: Put Slurm's state and accounting back from a backup
description:
  - Stops slurmctld and slurmdbd, and leaves them stopped; what starts them is the role that sets the head up. On a head
    that has never run them they so start with the state for the first time, and know the jobs that run.
  - The dump is loaded beside the database and takes its place in one statement; the state takes its place by a rename.
    What was there before is kept beside both, under the time of the restore; the three newest of these stay.
  - Rules of Prometheus that are not here are put back, for the site may have its own; the rest of its configuration is
    made anew by its role, and so is the cluster's directory on the controller. Nothing that is there is replaced.
  - Workers that are drained now are drained again as slurmctld starts, whatever the archive has of them, and the causes
    of both times are kept.
  - Refuses an archive that is damaged, not sealed by this cluster, another cluster's, or a later Slurm's.
options:
  archive:
    description: The backup, on this host.
    type: path
    required: true
  cluster:
    description: Name of the cluster.
    type: str
    required: true
  state:
    description: StateSaveLocation of slurmctld.
    type: path
    required: true
  database:
    description: Name of the accounting database on this host; empty where it is on another, and then left alone.
    type: str
    required: true
  prometheus:
    description: Whether this host is the cluster's monitoring.
    type: bool
    required: true
  key:
    description: The cluster's secret that its archives are sealed with.
    type: str
    required: true
  ended:
    description:
      - Numbers of jobs that ran when the backup was made and do not run any more. Slurm would take them for lost with
        their nodes, keep these for them for up to half an hour and then run them a second time. So they are cancelled
        as slurmctld starts.
    type: list
    elements: int
    default: []
attributes:
  check_mode:
    support: none
"""

EXAMPLES = r"""
- name: Put the backup back
  slurm_restore:
    archive: /var/lib/clusterctl/backups/aurora-0a1b2c3d-20261121T190000Z.tar
    cluster: aurora
    state: /var/lib/slurm/slurmctld
    database: slurm_acct_db
    prometheus: true
    key: "{{ lookup('cluster_secret', 'backup_key') }}"
"""

RETURN = r"""
changes:
  description: What took whose place; mappings with kind, name and what.
  type: list
  returned: always
notes:
  description: What of the archive was not put back, for something else is there.
  type: list
  elements: str
  returned: always
"""

SCRATCH = "clusterctl_restore"
KEPT = 3  # of the states, and of the databases, that a restore has put aside
# For one start, that of a head which was cut off in the midst too, though not while there is no state: it removes
# itself, and does nothing where systemd still has it in mind later.
DROP_IN = Path("/etc/systemd/system/slurmctld.service.d/restore.conf")
DRAINS = STORE / "restore-drains"  # what it does first, for the shell
NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*")
START = """[Unit]
ConditionPathExists={state}
[Service]
ExecStartPost=+/bin/sh -c 'test -e {file} || exit 0; \
  until scontrol ping | grep -q "is UP"; do test -d /proc/$MAINPID || exit 1; sleep 0.1; done; \
  test ! -e {drains} || sh {drains}; \
  for job in {jobs}; do \
    scontrol update JobId=$job AdminComment="ended between the backup and its restore"; scancel --quiet $job; \
  done; \
  rm -f {file} {drains}'
"""


def refuse(manifest: dict[str, Any], cluster: str, database: str) -> None:
    """Check that the backup is this cluster's, and that this Slurm can read it."""
    theirs, _, _ = manifest["cluster"].rpartition("-")
    if theirs != cluster or manifest["cluster"] != (label() or manifest["cluster"]):
        raise NodeError(f"the backup is of another cluster, {manifest['cluster']}, expected {label() or cluster}")
    made, ours = ([int(part) for part in version.split(".")[:2]] for version in (manifest["slurm"], release()))
    if made > ours:
        raise NodeError(f"the backup is of Slurm {manifest['slurm']}, and {release()} here cannot read it")
    if database and not manifest["database"]:
        raise NodeError("the backup holds no accounting, for it was on another host; here it is on this one")


def loaded(dump: Path, manifest: dict[str, Any]) -> None:
    """Load the dump beside the database; it must have as many rows as when it was made."""
    run("systemctl", "start", "mariadb")
    load(dump, SCRATCH)
    found = counts(SCRATCH)
    for what, expected in manifest["records"].items():
        got = sum(count for name, count in found.items() if name.endswith(f"_{what}_table"))
        if got != expected:
            raise NodeError(f"the dump has {got} rows in the table {what}, and had {expected} when it was made")


def exchange_database(database: str, now: str) -> str:
    """Let what was loaded take the database's place in one step; return where the former is."""
    sql(f"CREATE DATABASE IF NOT EXISTS `{database}`")
    before, aside = tables(database), f"{database}_before_{now}"
    moves = [f"`{database}`.`{name}` TO `{aside}`.`{name}`" for name in before]
    moves += [f"`{SCRATCH}`.`{name}` TO `{database}`.`{name}`" for name in tables(SCRATCH)]
    if before:
        sql(f"CREATE DATABASE `{aside}`")
    sql("RENAME TABLE " + ", ".join(moves))
    sql(f"DROP DATABASE `{SCRATCH}`")
    return aside if before else ""


def ended(former: str, cluster: str, running: list[str]) -> set[int]:
    """Return which of the jobs that ran have ended since by the accounting that was here until now, to the second."""
    table = f"{cluster}_job_table"
    if not running or table not in tables(former):
        return set()
    numbers = ", ".join(str(int(job)) for job in running)
    asked = f"SELECT id_job FROM `{former}`.`{table}` WHERE id_job IN ({numbers})"  # noqa: S608 - numbers
    return {int(job) for (job,) in sql(f"{asked} GROUP BY id_job HAVING MIN(time_end) > 0")}


def exchange_state(state: Path, new: Path, now: str) -> str:
    """Let the state take its place; return where the former is."""
    aside = state.with_name(f"{state.name}.before-{now}")
    if state.exists():
        state.rename(aside)
    new.rename(state)
    sync(state.parent)
    return str(aside) if aside.exists() else ""


def prune(state: Path, database: str) -> None:
    """Remove what earlier restores have put aside, but for the newest."""
    moment = r"\d{8}T\d{6}Z"
    old = re.compile(rf"{re.escape(state.name)}\.before-{moment}")
    for aside in sorted(path for path in state.parent.iterdir() if old.fullmatch(path.name))[:-KEPT]:
        shutil.rmtree(aside)
    old = re.compile(f"{re.escape(database)}_before_{moment}")
    asides = sorted(name for (name,) in sql("SHOW DATABASES") if old.fullmatch(name)) if database else []
    for name in asides[:-KEPT]:
        sql(f"DROP DATABASE `{name}`")


def note_drained() -> None:
    """Write down who is drained now, and why: the state that takes this one's place may have them in service.

    Where no slurmctld answers what a restore that was killed has written down stays.
    """
    status, told = run("sinfo", "--noheader", "--all", "--Node", "--format=%N|%T|%E", check=False)
    rows = (line.split("|", 2) for line in told.splitlines())
    found = {row[0]: row[2] for row in rows if len(row) == 3 and NODE.fullmatch(row[0]) and row[1].startswith("drain")}
    if status == 0:
        why = {node: shlex.quote("Reason=" + " ".join(clean(reason).split())) for node, reason in found.items()}
        lines = [f"scontrol update NodeName={node} State=DRAIN {reason}\n" for node, reason in why.items()]
        store(DRAINS, "".join(lines).encode())


def causes(path: Path) -> dict[str, dict[str, str]]:
    """Read a drain ledger: node to cause to reason; nothing where there is none. NodeError for what is no ledger."""
    try:
        data = json.loads(path.read_bytes())
        nodes = {node: dict(found) for node, found in data["nodes"].items()}
        words = [word for node, found in nodes.items() for word in (node, *found)]
        reasons = [reason for found in nodes.values() for reason in found.values()]
        if data["version"] != 1 or not all(map(NODE.fullmatch, words)) or {*map(type, reasons)} - {str}:
            raise ValueError("it is of another version or shape")
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise NodeError(f"the drain ledger {path} is damaged: {error}") from None
    return nodes


def add_causes(kept: dict[str, dict[str, str]], notes: list[str]) -> None:
    """Add a backup's causes to the drain ledger; of two reasons for one cause today's stays."""
    with exclusive(RUN / "drain.lock", notes):
        now = causes(DRAINED)
        nodes = {node: {**kept.get(node, {}), **now.get(node, {})} for node in {*kept, *now}}
        store(DRAINED, json.dumps({"version": 1, "nodes": nodes}, indent=1, sort_keys=True).encode())


def prepare_start(jobs: set[int], state: Path) -> None:
    """Have nodes drained and jobs cancelled as soon as slurmctld answers: some seconds later it misses the jobs."""
    DROP_IN.parent.mkdir(parents=True, exist_ok=True)
    text = START.format(jobs=" ".join(map(str, sorted(jobs))), file=DROP_IN, drains=DRAINS, state=state)
    write(DROP_IN, text.encode(), mode=0o644)
    run("systemctl", "daemon-reload")


def rules_back(archive: Path, copy: Path) -> tuple[list[str], list[str]]:
    """Put those of the site's rules of Prometheus back that are not here; return their paths, and notes on others."""
    back, notes = [], []
    if take(archive, MONITORING, copy):
        with tarfile.open(copy, mode="r:") as tar:
            for member in (member for member in tar if member.isfile() and RULES.fullmatch(member.name)):
                path, text = PROMETHEUS / member.name, tar.extractfile(member).read()  # type: ignore[union-attr]
                if path.exists():
                    notes += [f"{path} is another in the backup, and stays as it is"] * (path.read_bytes() != text)
                    continue
                path.parent.mkdir(mode=0o755, exist_ok=True)
                try:
                    write(path, text, mode=0o644, accept=lambda new: run("promtool", "check", "rules", new))
                except NodeError as error:
                    notes.append(f"{path} is left out: {clean(str(error))}")
                    continue
                back.append(str(path))
        run("systemctl", "try-reload-or-restart", "prometheus")  # one that was killed may have put some back
    return back, notes


def restore(given: dict[str, Any]) -> tuple[list[dict[str, str]], list[str]]:
    """Put a backup back; return what took whose place, and notes. Slurm runs on until all is ready to be exchanged."""
    archive, state, database = Path(given["archive"]), Path(given["state"]), given["database"]
    if database and not NAME.fullmatch(database):
        raise NodeError(f"{database!r} is no name of a database")
    manifest = unseal(archive, given["key"])
    refuse(manifest, given["cluster"], database)
    now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    workplace, new = archive.parent / ".restore", state.with_name(f"{state.name}.new")
    for left in (workplace, new):  # of a run that was killed
        shutil.rmtree(left, ignore_errors=True)
    workplace.mkdir(mode=0o700)
    changes = []
    try:
        room((str(archive.parent), 2 * archive.stat().st_size))
        take(archive, STATE, workplace / STATE)
        state.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        unpack(workplace / STATE, new)
        if database:
            take(archive, DUMP, workplace / DUMP)
            loaded(workplace / DUMP, manifest)
        back, notes = rules_back(archive, workplace / MONITORING) if given["prometheus"] else ([], [])
        changes += [change("rules", path, "restored", was(manifest, "")) for path in back]
        kept = causes(workplace / LEDGER) if take(archive, LEDGER, workplace / LEDGER) else {}
        causes(DRAINED)  # one that is damaged is said now
        note_drained()
        run("systemctl", "stop", "slurmctld", "slurmdbd")
        over = set(given["ended"])
        if database:
            former = exchange_database(database, now)
            over |= ended(former, given["cluster"], manifest["running"]) if former else set()
            changes.append(change("database", database, "restored", was(manifest, former)))
        prepare_start(over, state)
        aside = exchange_state(state, new, now)
        changes.append(change("state", str(state), "restored", was(manifest, aside)))
        if kept:
            add_causes(kept, notes)
            changes.append(change("ledger", str(DRAINED), "restored", f"with the causes of {manifest['made']}"))
        prune(state, database)
        return changes, notes
    finally:
        for left in (workplace, new):
            shutil.rmtree(left, ignore_errors=True)
        with contextlib.suppress(NodeError):  # a server that does not run has been told of
            sql(f"DROP DATABASE IF EXISTS `{SCRATCH}`")


def was(manifest: dict[str, Any], aside: str) -> str:
    return f"as of {manifest['made']}" + f"; the former is {aside}" * bool(aside)


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "archive": {"type": "path", "required": True},
            "cluster": {"type": "str", "required": True},
            "state": {"type": "path", "required": True},
            "database": {"type": "str", "required": True},
            "prometheus": {"type": "bool", "required": True},
            "key": {"type": "str", "required": True, "no_log": True},
            "ended": {"type": "list", "elements": "int", "default": []},
        },
    )
    try:
        changes, notes = restore(module.params)
    except (NodeError, OSError, tarfile.TarError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=True, changes=changes, notes=notes)


if __name__ == "__main__":
    main()
