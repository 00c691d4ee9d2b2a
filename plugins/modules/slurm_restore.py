#!/usr/bin/python
"""Ansible module: restore Slurm's state and accounting from a backup, before Slurm starts."""

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
    DRAIN_LOCK,
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
short_description: Restore Slurm's state and accounting from a backup
description:
  - Stops slurmctld and slurmdbd; role slurm_head starts them again. So on a new head their first start is with the
    restored state, and they know the running jobs.
  - The dump is loaded beside the database and replaces it in one statement; the state is replaced by a rename. The
    former database and state are kept under the time of the restore; only the three newest of them are kept.
  - Missing rules of Prometheus are restored, because the site may have its own. Roles write the rest of its
    configuration. Existing rules are not replaced.
  - Workers that are drained now are drained again when slurmctld starts, independent of the archive. The causes in the
    archive and the current ones are kept.
  - Refuses an archive that is damaged, not sealed by this cluster, from another cluster, or from a newer Slurm.
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
    description: Name of the accounting database on this host; empty if it is on another host, then it is not restored.
    type: str
    required: true
  prometheus:
    description: Whether this host is the cluster's monitoring.
    type: bool
    required: true
  key:
    description: The cluster's secret that seals its archives.
    type: str
    required: true
  ended:
    description:
      - Numbers of jobs that ran at the time of the backup and have ended since. Slurm would consider their nodes lost,
        reserve these nodes for up to half an hour and then run the jobs again. So the jobs are cancelled when slurmctld
        starts.
    type: list
    elements: int
    default: []
attributes:
  check_mode:
    support: none
"""

EXAMPLES = r"""
- name: Restore the backup
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
  description: What was replaced; mappings with kind, name and what.
  type: list
  returned: always
notes:
  description: Parts of the archive that were not restored.
  type: list
  elements: str
  returned: always
"""

SCRATCH = "clusterctl_restore"
KEPT = 3  # former states, and former databases, that are kept
# A drop-in for one start of slurmctld, also after an interrupted restore, but not without a state. It removes itself,
# and has no effect if systemd still has it loaded later.
DROP_IN = Path("/etc/systemd/system/slurmctld.service.d/restore.conf")
DRAINS = STORE / "restore-drains"  # shell commands that it runs first
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
    """Check that the backup is from this cluster, and that this Slurm can read it."""
    theirs, _, _ = manifest["cluster"].rpartition("-")
    if theirs != cluster or manifest["cluster"] != (label() or manifest["cluster"]):
        raise NodeError(f"the backup is from another cluster, got {manifest['cluster']}, expected {label() or cluster}")
    made, ours = ([int(part) for part in version.split(".")[:2]] for version in (manifest["slurm"], release()))
    if made > ours:
        raise NodeError(
            f"the backup is from Slurm {manifest['slurm']}, which Slurm {release()} on this host cannot read"
        )
    if database and not manifest["database"]:
        raise NodeError("the backup has no accounting, because it was on another host; now it is on this host")


def loaded(dump: Path, manifest: dict[str, Any]) -> None:
    """Load the dump beside the database; it must have the same number of rows as at the backup."""
    run("systemctl", "start", "mariadb")
    load(dump, SCRATCH)
    found = counts(SCRATCH)
    for what, expected in manifest["records"].items():
        got = sum(count for name, count in found.items() if name.endswith(f"_{what}_table"))
        if got != expected:
            raise NodeError(f"the dump has a wrong number of rows in the table {what}, got {got}, expected {expected}")


def exchange_database(database: str, now: str) -> str:
    """Replace the database with the loaded one in one step; return the name of the former one."""
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
    """Return those of the running jobs that have ended since, according to the former accounting."""
    table = f"{cluster}_job_table"
    if not running or table not in tables(former):
        return set()
    numbers = ", ".join(str(int(job)) for job in running)
    asked = f"SELECT id_job FROM `{former}`.`{table}` WHERE id_job IN ({numbers})"  # noqa: S608 - numbers
    return {int(job) for (job,) in sql(f"{asked} GROUP BY id_job HAVING MIN(time_end) > 0")}


def exchange_state(state: Path, new: Path, now: str) -> str:
    """Replace the state; return the path of the former one."""
    aside = state.with_name(f"{state.name}.before-{now}")
    if state.exists():
        state.rename(aside)
    new.rename(state)
    sync(state.parent)
    return str(aside) if aside.exists() else ""


def prune(state: Path, database: str) -> None:
    """Delete the former states and databases of earlier restores, except the newest."""
    moment = r"\d{8}T\d{6}Z"
    old = re.compile(rf"{re.escape(state.name)}\.before-{moment}")
    for aside in sorted(path for path in state.parent.iterdir() if old.fullmatch(path.name))[:-KEPT]:
        shutil.rmtree(aside)
    old = re.compile(f"{re.escape(database)}_before_{moment}")
    asides = sorted(name for (name,) in sql("SHOW DATABASES") if old.fullmatch(name)) if database else []
    for name in asides[:-KEPT]:
        sql(f"DROP DATABASE `{name}`")


def note_drained() -> None:
    """Store which nodes are drained now, and why: they may be in service in the restored state.

    If no slurmctld answers, the file of an earlier, killed restore is kept.
    """
    status, told = run("sinfo", "--noheader", "--all", "--Node", "--format=%N|%T|%E", check=False)
    rows = (line.split("|", 2) for line in told.splitlines())
    found = {row[0]: row[2] for row in rows if len(row) == 3 and NODE.fullmatch(row[0]) and row[1].startswith("drain")}
    if status == 0:
        why = {node: shlex.quote("Reason=" + " ".join(clean(reason).split())) for node, reason in found.items()}
        lines = [f"scontrol update NodeName={node} State=DRAIN {reason}\n" for node, reason in why.items()]
        store(DRAINS, "".join(lines).encode())


def causes(path: Path) -> dict[str, dict[str, str]]:
    """Read a drain ledger: node to cause to reason; empty if there is none. Raises NodeError for an invalid one."""
    try:
        data = json.loads(path.read_bytes())
        nodes = {node: dict(found) for node, found in data["nodes"].items()}
        words = [word for node, found in nodes.items() for word in (node, *found)]
        reasons = [reason for found in nodes.values() for reason in found.values()]
        if data["version"] != 1 or not all(map(NODE.fullmatch, words)) or {*map(type, reasons)} - {str}:
            raise ValueError("unknown version or format")
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise NodeError(f"the drain ledger {path} is damaged: {error}") from None
    return nodes


def add_causes(kept: dict[str, dict[str, str]], notes: list[str]) -> None:
    """Add a backup's causes to the drain ledger; for the same cause, the current reason is kept."""
    with exclusive(DRAIN_LOCK, notes):
        now = causes(DRAINED)
        nodes = {node: {**kept.get(node, {}), **now.get(node, {})} for node in {*kept, *now}}
        store(DRAINED, json.dumps({"version": 1, "nodes": nodes}, indent=1, sort_keys=True).encode())


def prepare_start(jobs: set[int], state: Path) -> None:
    """Drain nodes and cancel jobs as soon as slurmctld answers: a few seconds later it considers the jobs lost."""
    DROP_IN.parent.mkdir(parents=True, exist_ok=True)
    text = START.format(jobs=" ".join(map(str, sorted(jobs))), file=DROP_IN, drains=DRAINS, state=state)
    write(DROP_IN, text.encode(), mode=0o644)
    run("systemctl", "daemon-reload")


def rules_back(archive: Path, copy: Path) -> tuple[list[str], list[str]]:
    """Restore the site's missing rules of Prometheus; return their paths, and notes on the others."""
    back, notes = [], []
    if take(archive, MONITORING, copy):
        with tarfile.open(copy, mode="r:") as tar:
            for member in (member for member in tar if member.isfile() and RULES.fullmatch(member.name)):
                path, text = PROMETHEUS / member.name, tar.extractfile(member).read()  # type: ignore[union-attr]
                if path.exists():
                    notes += [f"{path} differs from the backup and is not changed"] * (path.read_bytes() != text)
                    continue
                path.parent.mkdir(mode=0o755, exist_ok=True)
                try:
                    write(path, text, mode=0o644, accept=lambda new: run("promtool", "check", "rules", new))
                except NodeError as error:
                    notes.append(f"{path} is not restored: {clean(str(error))}")
                    continue
                back.append(str(path))
        run("systemctl", "try-reload-or-restart", "prometheus")  # a killed restore may have restored some
    return back, notes


def restore(given: dict[str, Any]) -> tuple[list[dict[str, str]], list[str]]:
    """Restore a backup; return the changes and notes. Slurm runs until everything is prepared for the replacement."""
    archive, state, database = Path(given["archive"]), Path(given["state"]), given["database"]
    if database and not NAME.fullmatch(database):
        raise NodeError(f"{database!r} is not a valid name of a database")
    manifest = unseal(archive, given["key"])
    refuse(manifest, given["cluster"], database)
    now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    workplace, new = archive.parent / ".restore", state.with_name(f"{state.name}.new")
    for left in (workplace, new):  # from a killed run
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
        causes(DRAINED)  # report a damaged ledger before any change
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
        with contextlib.suppress(NodeError):  # an error of a stopped server was reported before
            sql(f"DROP DATABASE IF EXISTS `{SCRATCH}`")


def was(manifest: dict[str, Any], aside: str) -> str:
    return f"as of {manifest['made']}" + f"; the former one is {aside}" * bool(aside)


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
