"""`restore`: restore Slurm's queue and accounting from a backup, once the operator agrees."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from clusterctl.run import context, engine, scheduler
from clusterctl.run.context import Options, Site
from clusterctl.run.entry import CONTACT, Preflight
from clusterctl.run.phases import Phase, Run, Step
from clusterctl.run.plays import Play
from clusterctl.slurm import versions
from clusterctl.ui.screen import Screen
from clusterctl.util import files
from clusterctl.util.errors import Finding, InputError, Interrupted, PreflightError, Problem
from clusterctl.util.text import duration, fold, strip_controls
from clusterctl.workspace import archive, hardware, home, secrets
from clusterctl.workspace.archive import Manifest, differing, read

REQUEST = "restore.json"


def restore(options: Options, path: Path) -> int:
    """Put the backup in `path` back; return the exit code. Raises InputError for one that is not this cluster's."""
    inventory = home.load(options.inventory)
    manifest = _manifest(inventory.directory, path)
    phases = [
        *CONTACT,
        Preflight(new_head=False),
        ConfirmRestore(path, manifest),
        # What it does to the head is done once: nodes left behind need a bootstrap.
        Play("restore", "Restore the head, and configure all nodes", rest="bootstrap"),
    ]
    if not options.yes and not options.print_command:
        if options.json:
            raise InputError([Problem(None, "--yes", "is needed with --output json")])
        context.require_terminal("--yes")
    return engine.execute(options, phases, inventory)


def _manifest(directory: Path, path: Path) -> Manifest:
    if any(sign in str(path.absolute()) for sign in ("{{", "{%", "{#")):
        raise archive.refused(path, "has a name that Ansible takes for a template", "give it another")
    if not (directory / secrets.FILE).exists():
        hint = "`clusterctl docs inventory` says how to recover the cluster's directory"
        raise archive.refused(directory / secrets.FILE, "is missing: the workers have what is in it", hint)
    manifest, label = read(path, directory), secrets.label(directory)
    if manifest.cluster != label:
        raise archive.refused(path, f"is a backup of another cluster, {manifest.cluster}, expected {label}")
    return manifest


class ConfirmRestore(Phase):
    """Show what is in the backup and what it replaces, ask, and write what the playbook reads."""

    title = "Confirm the restore"
    changes_nodes = announced = False

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path, self.manifest = path, manifest

    def run(self, run: Run) -> None:
        _fits(run.site, self.manifest)
        ended = _ended(run.site, self.manifest)
        _show(run.site, self.manifest, self.path, ended, run.screen)
        if not run.options.yes and not run.screen.agrees("Put it back?"):
            raise Interrupted("Nothing was put back, and no node was changed.")
        asked = run.site.state / REQUEST
        run.stack.callback(asked.unlink, missing_ok=True)  # or the plain command would one day put it back once more
        files.write_atomically(asked, _request(self.path, ended), replace=True)

    def describe(self, run: Run) -> Iterator[Step]:
        running = list(self.manifest.running)
        note = f"restore_ended: which of the jobs that ran then run nowhere now; of {_list(running)}" if running else ""
        yield f"write {run.site.state / REQUEST}:\n{_request(self.path, []).decode()}{note}"


def _request(path: Path, ended: list[str]) -> bytes:
    """Return what playbooks/restore.yml reads: the variables of role restore."""
    asked = {"restore_archive": str(path.absolute()), "restore_ended": [int(job) for job in ended]}
    return (json.dumps(asked, indent=1) + "\n").encode()


def _fits(site: Site, manifest: Manifest) -> None:
    """Refuse (PreflightError) a backup that this head's Slurm cannot read."""
    head = site.inventory.head
    ours = versions.of_node(head, hardware.load(hardware.path_of(site.inventory.directory, head.name)))
    if ours and not versions.work_together(ours, manifest.release):
        range_ = f"{versions.oldest().get(ours, ours)} to {ours}"
        found = f"is of Slurm {manifest.slurm}, and {ours} here reads {range_}"
        hint = "install the distribution that it was made on"
        if head.variables.get(versions.PIN):
            hint = f"correct {versions.PIN}"
        raise PreflightError([Finding(head.name, "backup", found, hint)])


def _ended(site: Site, manifest: Manifest) -> list[str]:
    """Return the jobs that ran when the backup was made and run nowhere now; none where a worker could not be asked."""
    asked = all(host.name in site.facts for host in site.inventory.workers)
    there = {job for facts in site.facts.values() for job in facts.node.jobs}
    return sorted(set(manifest.running) - there, key=int) if asked else []


def _show(site: Site, manifest: Manifest, path: Path, ended: list[str], screen: Screen) -> None:
    """Print what is in a backup, and what putting it back means for what is there now."""
    head = site.inventory.head.name
    age = duration(max(0.0, (datetime.now(UTC) - manifest.moment).total_seconds()))
    fresh = "controller" not in site.facts[head].node.slurm
    rows = [
        ("Backup", f"{path}: {site.inventory.cluster_name}, {manifest.moment:%Y-%m-%d %H:%M:%S} UTC, {age} ago"),
        ("Made by", f"Slurm {manifest.slurm}"),
        ("Holds", manifest.contents()),
        ("Replaces", "nothing" if fresh else f"the queue and the accounting of {head}, which are kept beside them"),
    ]
    there = {job: name for name, facts in site.facts.items() for job in facts.node.jobs}
    if unknown := sorted(there.keys() - set(manifest.running), key=int):
        nodes = fold(sorted({there[job] for job in unknown}))
        rows.append(("Ends", f"{_list(unknown)} on {nodes}: they began later, and the backup does not know them"))
    if ended:
        rows.append(("Cancels", f"{_list(ended)}: they ran then and have ended since, it is not known how"))
    if not fresh and (drained := _drained(site)):
        rows.append(("Keeps", f"{fold(drained)} drained, as now"))
    if other := differing(path, site.inventory.directory):
        rows.append(
            ("Leaves", f"{strip_controls(_some(other))} in the cluster's directory, which the backup has otherwise")
        )
    screen.say()
    for name, value in rows:
        screen.hang((f"  {name:<14}", "dim"), value)
    screen.say()


def _drained(site: Site) -> list[str]:
    """Return who is drained now; nobody where no slurmctld answers."""
    with scheduler.connect(site) as controller:
        return controller.drained()


def _list(jobs: list[str]) -> str:
    return f"job{'s' * (len(jobs) > 1)} {_some(jobs)}"


def _some(names: list[str], most: int = 10) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
