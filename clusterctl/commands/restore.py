"""`restore`: restore Slurm's queue and accounting, or Kubernetes' objects, from a backup, after confirmation."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from clusterctl.inventory.model import Inventory
from clusterctl.inventory.schedulers import KUBERNETES, SLURM
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
from clusterctl.workspace.archive import KubernetesManifest, Manifest, SlurmManifest, differing, read

REQUEST = "restore.json"


def restore(options: Options, path: Path) -> int:
    """Restore the backup in `path`; return the exit code. Raises InputError for a backup of another cluster."""
    inventory = home.load(options.inventory)
    manifest = _manifest(inventory, path)
    of_slurm = isinstance(manifest, SlurmManifest)
    phases = [
        *CONTACT,
        Preflight(new_head=False),
        ConfirmRestore(path, manifest) if isinstance(manifest, SlurmManifest) else ConfirmKubernetes(path, manifest),
        # The head is restored only once: nodes that fell behind get a bootstrap instead.
        Play(
            "restore" if of_slurm else "restore-kubernetes",
            "Restore the head, and configure all nodes",
            rest="bootstrap",
        ),
    ]
    if not options.yes and not options.print_command:
        if options.json:
            raise InputError([Problem(None, "--yes", "is needed with --output json")])
        context.require_terminal("--yes")
    return engine.execute(options, phases, inventory)


def _manifest(inventory: Inventory, path: Path) -> SlurmManifest | KubernetesManifest:
    directory = inventory.directory
    if any(sign in str(path.absolute()) for sign in ("{{", "{%", "{#")):
        raise archive.refused(path, "has a name that Ansible reads as a template", "rename it")
    if not (directory / secrets.FILE).exists():
        hint = "`clusterctl docs inventory` describes how to recover the cluster's directory"
        raise archive.refused(directory / secrets.FILE, "is missing: the workers use the secrets in it", hint)
    manifest, label = read(path, directory), secrets.label(directory)
    if manifest.cluster != label:
        raise archive.refused(path, f"is a backup of another cluster, {manifest.cluster}, expected {label}")
    kind = SLURM if isinstance(manifest, SlurmManifest) else KUBERNETES
    if kind is SLURM and len(inventory.in_group(SLURM.head)) > 1:
        found = "cannot be restored beside a second head, which would take over meanwhile"
        hint = "remove the second head: clusterctl docs slurm; add it again after the restore"
        raise archive.refused(path, found, hint)
    if kind not in inventory.schedulers:
        raise archive.refused(path, f"is a backup of {manifest.program}, but the inventory has no group {kind.head}")
    return manifest


class Confirm(Phase):
    """Show what the backup contains and replaces, ask, and write the file that the playbook reads."""

    title = "Confirm the restore"
    changes_nodes = announced = False
    path: Path

    def ask(self, run: Run, manifest: Manifest, more: list[tuple[str, str]], ended: list[str]) -> None:
        """Show the backup with further rows, ask, and write the file."""
        _show(run.site, manifest, self.path, more, run.screen)
        if not run.options.yes and not run.screen.agrees("Restore it?"):
            raise Interrupted("Nothing was restored, and no node was changed.")
        request = run.site.state / REQUEST
        run.stack.callback(request.unlink, missing_ok=True)  # or a later plain command would restore it again
        files.write_atomically(request, _request(self.path, ended), replace=True)


class ConfirmRestore(Confirm):
    """Confirm the restore of Slurm."""

    def __init__(self, path: Path, manifest: SlurmManifest) -> None:
        self.path, self.manifest = path, manifest

    def run(self, run: Run) -> None:
        _require_readable(run.site, self.manifest)
        ended = _ended(run.site, self.manifest)
        self.ask(run, self.manifest, _rows(run.site, self.manifest, ended), ended)

    def describe(self, run: Run) -> Iterator[Step]:
        running = list(self.manifest.running)
        note = ""
        if running:
            note = f"restore_ended: list the jobs of the backup that no longer run on any node, from {_list(running)}"
        yield f"write {run.site.state / REQUEST}:\n{_request(self.path, []).decode()}{note}"


def _request(path: Path, ended: list[str]) -> bytes:
    """Return the file that playbooks/restore.yml reads: the variables of role restore."""
    variables = {"restore_archive": str(path.absolute()), "restore_ended": [int(job) for job in ended]}
    return (json.dumps(variables, indent=1) + "\n").encode()


def _require_readable(site: Site, manifest: SlurmManifest) -> None:
    """Raise PreflightError for a backup that the head's Slurm cannot read."""
    head = site.inventory.head
    release = versions.of_node(head, hardware.load(hardware.path_of(site.inventory.directory, head.name)))
    if release and not versions.work_together(release, manifest.release):
        range_ = f"{versions.oldest().get(release, release)} to {release}"
        found = f"is from Slurm {manifest.slurm}; Slurm {release} on the head reads {range_}"
        hint = "install the distribution of the head that made it"
        if head.variables.get(versions.PIN):
            hint = f"correct {versions.PIN}"
        raise PreflightError([Finding(head.name, "backup", found, hint)])


def _ended(site: Site, manifest: SlurmManifest) -> list[str]:
    """Return the jobs that ran at the time of the backup and run on no node now.

    If not all workers responded, return none: such a job may run on a worker that did not.
    """
    is_complete = all(host.name in site.facts for host in site.inventory.workers)
    running = {job for facts in site.facts.values() for job in facts.node.jobs}
    return sorted(set(manifest.running) - running, key=int) if is_complete else []


class ConfirmKubernetes(Confirm):
    """Confirm the restore of Kubernetes."""

    def __init__(self, path: Path, manifest: KubernetesManifest) -> None:
        self.path, self.manifest = path, manifest

    def run(self, run: Run) -> None:
        heads = [host.name for host in run.site.inventory.in_group(KUBERNETES.head)]
        if lost := [name for name in heads if name in run.site.skipped]:
            found = "does not respond; a restore creates the cluster again on all heads"
            hint = "repair it, or remove it from the inventory"
            raise PreflightError([Finding(name, "backup", found, hint) for name in lost])
        is_set_up = any(KUBERNETES.head in run.site.facts[name].node.roles for name in heads)
        old = f"all objects of the cluster; etcd's old data is kept on {fold(heads)}" if is_set_up else "nothing"
        ends = "pods that were started after the backup" if is_set_up else "pods that are not in the backup"
        access = "people's access that was removed since; remove it again with kubernetes-user on a head"
        self.ask(run, self.manifest, [("Replaces", old), ("Ends", ends), ("Restores", access)], [])

    def describe(self, run: Run) -> Iterator[Step]:
        yield f"write {run.site.state / REQUEST}:\n{_request(self.path, []).decode()}"


def _show(site: Site, manifest: Manifest, path: Path, more: list[tuple[str, str]], screen: Screen) -> None:
    """Print what a backup contains, what the restore changes, and which files of the directory differ."""
    age = duration(max(0.0, (datetime.now(UTC) - manifest.moment).total_seconds()))
    rows = [
        ("Backup", f"{path}: {site.inventory.cluster_name}, {manifest.moment:%Y-%m-%d %H:%M:%S} UTC, {age} ago"),
        ("Made by", manifest.program),
        ("Contains", manifest.contents()),
        *more,
    ]
    if other := differing(path, site.inventory.directory):
        text = f"{strip_controls(_some(other))} in the cluster's directory; the backup has another version"
        rows.append(("Leaves", text))
    screen.say()
    for name, value in rows:
        screen.hang((f"  {name:<14}", "dim"), value)
    screen.say()


def _rows(site: Site, manifest: SlurmManifest, ended: list[str]) -> list[tuple[str, str]]:
    """Return what a restore of Slurm replaces, and the jobs that it changes."""
    head = site.inventory.head.name
    fresh = "controller" not in site.facts[head].node.slurm
    rows = [
        ("Replaces", "nothing" if fresh else f"the queue and the accounting of {head}; the old files are kept there"),
    ]
    running = {job: name for name, facts in site.facts.items() for job in facts.node.jobs}
    if unknown := sorted(running.keys() - set(manifest.running), key=int):
        nodes = fold(sorted({running[job] for job in unknown}))
        rows.append(("Ends", f"{_list(unknown)} on {nodes}: started after the backup, which does not have them"))
    if ended:
        rows.append(("Cancels", f"{_list(ended)}: ended since the backup, with an unknown result"))
    if not fresh and (drained := _drained(site)):
        rows.append(("Keeps", f"{fold(drained)} drained, as now"))
    return rows


def _drained(site: Site) -> list[str]:
    """Return the nodes that are drained now; none if slurmctld does not respond."""
    with scheduler.connect(site, SLURM) as controller:
        return controller.drained()


def _list(jobs: list[str]) -> str:
    return f"job{'s' * (len(jobs) > 1)} {_some(jobs)}"


def _some(names: list[str], most: int = 10) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
