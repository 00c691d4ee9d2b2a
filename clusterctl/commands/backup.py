"""`clusterctl backup` and `restore`: what goes before and after their playbooks, and what an archive says of itself.

An archive is a tar file whose last member is the HMAC-SHA256 of every byte before it, under a secret of the cluster
(playbooks/module_utils/cluster_backup.py writes them).
"""

import hmac
import json
import os
import re
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from clusterctl.ansible.outcome import Ledger
from clusterctl.inventory import schema
from clusterctl.inventory.model import Inventory
from clusterctl.run import converge
from clusterctl.run.converge import Options, Site, Work
from clusterctl.ui.screen import Screen
from clusterctl.util import files
from clusterctl.util.errors import ClusterctlError, HeadFailed, InputError, Interrupted, PreflightError, Problem
from clusterctl.util.text import duration, fold, plural, strip_controls
from clusterctl.util.untrusted import Malformed, decode, mapping, number, sequence, text
from clusterctl.workspace import hardware, home, secrets

DIRECTORY = "backups"
REQUEST = "restore.json"
VERSION = 1
_NAME = re.compile(r"[a-z0-9-]{1,80}-\d{8}T\d{6}Z\.tar")
_MANIFEST, _COPY, _SEAL = "manifest.json", "directory.tar", "seal"
_KEY = "backup_key"
_CHUNK = 1 << 20
_SILENCE = 60.0  # seconds without a byte after which a copy is given up
_TIME = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True)
class Manifest:
    """What an archive says of itself; `running` are the numbers of jobs, `records` how many rows of which kind."""

    version: Annotated[int, number(1, 1 << 16)]
    cluster: Annotated[str, text(r"[a-z0-9-]{1,80}", "the label of a cluster")]
    made: Annotated[str, text(r"\d{4}(-\d\d){2}T(\d\d:){2}\d\dZ", "a time")]
    slurm: Annotated[str, text(r"\d+\.\d+\.\d+\S*", "a version of Slurm")]
    running: Annotated[tuple[str, ...], sequence(text(r"\d+", "a job's number"), 1 << 20)]
    pending: Annotated[int, number(0, 1 << 32)]
    database: Annotated[str, text(r"\w*", "the name of a database")]
    records: Annotated[Mapping[str, int], mapping(text(r"\w+"), number(0, 1 << 48), 16)]

    @property
    def moment(self) -> datetime:
        return datetime.strptime(self.made, _TIME).replace(tzinfo=UTC)

    @property
    def release(self) -> str:
        """Slurm's release, as the roles' tables have it: 24.11."""
        return ".".join(self.slurm.split(".")[:2])

    def contents(self) -> str:
        queue = f"{plural(len(self.running), 'job')} running, {self.pending} waiting"
        if not self.database:
            return f"{queue}; no accounting, which is on another host"
        jobs, associations = self.records.get("job", 0), self.records.get("assoc", 0)
        return f"{queue}; {plural(jobs, 'job')} and {plural(associations, 'association')} in accounting"


def read(path: Path, directory: Path) -> Manifest:
    """Return what an archive says of itself; InputError for one that is damaged, or that this cluster did not seal."""
    key = secrets.values(directory).get(_KEY)
    if key is None:
        raise _refused(directory / secrets.FILE, f"has no {_KEY} yet", "bootstrap makes it; older backups have no seal")
    try:
        with path.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
            members = tar.getmembers()
            first, last = members[0], members[-1]
            if last.name == "sha256":
                raise Malformed("an earlier clusterctl made it, without a seal; make another")
            if (first.name, last.name) != (_MANIFEST, _SEAL) or not all(member.isfile() for member in members):
                raise Malformed("its first or last part is missing, or a part is no file")
            parts = tar.extractfile(first), tar.extractfile(last)
            said, told = (part.read(1 << 26) if part else b"" for part in parts)
            if not hmac.compare_digest(_mac(file, last.offset, key).encode(), told.strip()):
                raise Malformed("its seal does not hold")
            manifest = decode(Manifest, json.loads(said))
    except (tarfile.TarError, IndexError, ValueError, RecursionError) as error:
        raise _refused(path, f"is damaged, or no backup of this cluster: {error}", "take another") from None
    except OSError as error:
        raise _refused(path, f"cannot be read: {error.strerror}") from None
    if manifest.version != VERSION:
        raise _refused(path, f"is of version {manifest.version}, expected {VERSION}", "use a later clusterctl")
    return manifest


def differing(path: Path, directory: Path) -> list[str]:
    """Return which files of the cluster's directory are others in a backup than here, or are there alone."""
    try:
        with tarfile.open(path, mode="r:") as tar:
            if _COPY not in tar.getnames():
                return []
            with tarfile.open(fileobj=tar.extractfile(_COPY), mode="r:") as copy:
                kept = {member.name.partition("/")[2]: copy.extractfile(member) for member in copy if member.isfile()}
                if strange := [name for name in kept if Path(name).is_absolute() or ".." in Path(name).parts]:
                    raise Malformed(f"{strange[0]!r} is outside the cluster's directory")
                return [name for name, file in kept.items() if file and file.read() != _here(directory, name)]
    except (tarfile.TarError, KeyError, ValueError) as error:
        raise _refused(path, f"is damaged: {_COPY}: {error}", "take another") from None


def _here(directory: Path, name: str) -> bytes | None:
    try:
        return files.read(directory / name, inside=directory)
    except files.UnfitError:
        return None


def _mac(file: Any, size: int, key: str) -> str:
    found = hmac.new(key.encode(), digestmod="sha256")
    file.seek(0)
    while size and (data := file.read(min(_CHUNK, size))):
        found.update(data)
        size -= len(data)
    return found.hexdigest()


def _refused(path: Path, message: str, hint: str = "") -> InputError:
    return InputError([Problem(None, str(path), message, hint)])


# --- backup -----------------------------------------------------------------------------------------------------------


def backup_command(options: Options, to: Path | None) -> int:
    """Have the head make a backup, and bring a copy of it here; returns the exit code."""
    inventory = home.load(options.inventory)
    target = to.absolute() if to else inventory.directory / home.STATE / DIRECTORY
    if options.print_command:
        made, head = _setting(inventory, "backup_directory"), inventory.head.name
        after = [f"copy the newest in {made} on {head}, which only root reads there, into {target}"]
        return converge.print_command(converge.load(replace(options, limit=head), inventory), after=after)
    try:
        if to is None:
            files.make_private_directory(target)
        # Now, and not when the head has worked for an hour.
        with tempfile.TemporaryFile(dir=target):
            pass
    except OSError as error:
        raise _refused(target, f"cannot be written into: {error.strerror}") from None

    told: dict[str, Any] = {}

    def finish(
        site: Site, ledger: Ledger, screen: Screen, play: Callable[[Site], ClusterctlError | None]
    ) -> ClusterctlError | None:
        told.update(fetch(site, ledger, screen, target, prune=to is None))
        return None

    return converge.run(replace(options, limit=inventory.head.name), work=Work(finish=finish, told=told))


def make(
    site: Site, ledger: Ledger, screen: Screen, play: Callable[[Site], ClusterctlError | None]
) -> ClusterctlError | None:
    """Make a backup and bring a copy here, as the first step of another verb."""
    target = site.state / DIRECTORY
    files.make_private_directory(target)
    error = play(replace(site, playbook="backup", hosts=(site.inventory.head,)))
    if error is None:
        fetch(site, ledger, screen, target, prune=True)
    return error


def fetch(site: Site, ledger: Ledger, screen: Screen, target: Path, *, prune: bool) -> dict[str, Any]:
    """Bring a copy of the backup that a run has made into a directory, say what is in it, and return that."""
    with screen.working("Copying the backup"):
        path = _fetch(site, _made(site, ledger), target)
    if prune:
        _prune(path, int(_setting(site.inventory, "backup_keep")))
    manifest = read(path, site.inventory.directory)
    screen.say()
    screen.say((f"  {'Backup':<14}", "dim"), str(path))
    screen.hang((f"  {'Holds':<14}", "dim"), manifest.contents())
    return {"backup": str(path), "manifest": _plain(manifest)}


def _setting(inventory: Inventory, name: str) -> Any:
    """Return what the head's role is set to."""
    return inventory.head.variables.get(name, schema.load().defaults[name])


def _plain(manifest: Manifest) -> dict[str, Any]:
    return {**vars(manifest), "running": list(manifest.running), "records": dict(manifest.records)}


def _made(site: Site, ledger: Ledger) -> str:
    """Return the archive's path on the head, as the run's events tell it."""
    host = ledger.hosts.get(site.inventory.head.name)
    found = [change.name for _, change in host.changes if change.kind == "backup"] if host else []
    if len(found) != 1 or not _NAME.fullmatch(Path(found[0]).name):
        raise ClusterctlError("The head does not say which backup it made.")
    return found[0]


def _fetch(site: Site, source: str, target: Path) -> Path:
    """Copy an archive from the head, for its owner alone, whole or not at all. HeadFailed where that fails."""
    path = target / Path(source).name
    new = path.with_name(f".{path.name}.new")
    try:
        with _reading(site, source) as chunks, os.fdopen(_private(new), "wb") as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        read(new, site.inventory.directory)
        new.replace(path)
    except InputError as error:
        problem = "; ".join(one.message for one in error.problems if isinstance(one, Problem))
        raise HeadFailed(_only_there(site, source, f"what arrived here {problem}")) from None
    except OSError as error:
        raise HeadFailed(_only_there(site, source, f"{error.filename or target}: {error.strerror}")) from None
    finally:
        new.unlink(missing_ok=True)
    return path


def _only_there(site: Site, source: str, trouble: str) -> str:
    return f"The backup is good and lies on {site.inventory.head.name}: {source}. There is no copy of it: {trouble}."


def _private(path: Path) -> int:
    path.unlink(missing_ok=True)  # of a run that was killed
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)


@contextmanager
def _reading(site: Site, source: str) -> Iterator[Iterator[bytes]]:
    """Yield a file of the head's root in pieces; what SSH raises is an OSError, for the caller to tell one kind."""
    import paramiko

    from clusterctl.nodes.remote import ContactError, connect

    try:
        with connect(site.inventory.head, site.access) as session, closing(session.transport.open_session()) as channel:
            begun = session.start(channel, ["cat", "--", source], True, time.monotonic() + _SILENCE)
            channel.settimeout(_SILENCE)

            def chunks() -> Iterator[bytes]:
                yield begun
                while data := channel.recv(_CHUNK):
                    yield data

            yield chunks()
    except (ContactError, paramiko.SSHException, EOFError) as error:
        raise OSError(0, str(error) or "the connection ended", site.inventory.head.name) from None


def _prune(path: Path, keep: int) -> None:
    """Remove the oldest archives of this cluster beyond `keep`; names sort by time."""
    stem = path.name[: -len("20261121T190000Z.tar")]
    mine = sorted(
        other for other in path.parent.iterdir() if _NAME.fullmatch(other.name) and other.name[: len(stem)] == stem
    )
    for old in mine[:-keep]:
        old.unlink()


# --- restore ----------------------------------------------------------------------------------------------------------


def restore_command(options: Options, archive: Path, yes: bool) -> int:
    """Put a backup back, once somebody agrees; returns the exit code."""
    inventory = home.load(options.inventory)
    path = str(archive.absolute())
    if any(sign in path for sign in ("{{", "{%", "{#")):
        raise _refused(archive, "has a name that Ansible takes for a template", "give it another")
    if not (inventory.directory / secrets.FILE).exists():
        hint = "`clusterctl docs inventory` says how to recover the cluster's directory"
        raise _refused(inventory.directory / secrets.FILE, "is missing: the workers have what is in it", hint)
    manifest, label = read(archive, inventory.directory), secrets.label(inventory.directory)
    if manifest.cluster != label:
        raise _refused(archive, f"is a backup of another cluster, {manifest.cluster}, expected {label}")
    asked = inventory.directory / home.STATE / REQUEST
    if options.print_command:
        text = _request(path, []).decode()
        note = f"restore_ended: which of the jobs that ran then run nowhere now; of {_list(list(manifest.running))}"
        first = [f"write {asked}:\n{text}{note if manifest.running else ''}"]
        return converge.print_command(converge.load(options, inventory), first=first)
    if not yes and (options.json or not (sys.stdin.isatty() and sys.stderr.isatty())):
        raise InputError([Problem(None, "--yes", "is missing, and there is no terminal to ask on")])

    after = ExitStack()

    def agree(site: Site, screen: Screen) -> Site:
        _fits(site, manifest)
        ended = _ended(site, manifest)
        _show(site, manifest, archive, ended, screen)
        if not yes and not screen.agrees("Put it back?"):
            raise Interrupted("Nothing was put back, and no node was changed.")
        after.callback(asked.unlink, missing_ok=True)  # or the plain command would one day put it back once more
        files.write_atomically(asked, _request(path, ended), replace=True)
        return site

    with after:
        return converge.run(options, work=Work(agree, rest="bootstrap"))


def _request(archive: str, ended: list[str]) -> bytes:
    """Return what playbooks/restore.yml reads: the variables of role restore."""
    asked = {"restore_archive": archive, "restore_ended": [int(job) for job in ended]}
    return (json.dumps(asked, indent=1) + "\n").encode()


def _fits(site: Site, manifest: Manifest) -> None:
    """Refuse (PreflightError) a backup that this head's Slurm cannot read."""
    from clusterctl.run.preflight import slurm_tables, slurm_version
    from clusterctl.util.errors import Finding

    head = site.inventory.head.name
    versions, oldest = slurm_tables()
    ours = slurm_version(versions, hardware.load(hardware.path_of(site.inventory.directory, head)))
    if ours and not oldest[ours] <= manifest.release <= ours:
        found = f"is of Slurm {manifest.slurm}, and {ours} here reads {oldest[ours]} to {ours}"
        raise PreflightError([Finding(head, "backup", found, "install the distribution that it was made on")])


def _ended(site: Site, manifest: Manifest) -> list[str]:
    """Return the jobs that ran when the backup was made and run nowhere now; none where a worker could not be asked."""
    asked = all(host.name in site.facts for host in site.inventory.in_group("slurm_workers"))
    there = {job for facts in site.facts.values() for job in facts.node.jobs}
    return sorted(set(manifest.running) - there, key=int) if asked else []


def _show(site: Site, manifest: Manifest, archive: Path, ended: list[str], screen: Screen) -> None:
    """Print what is in a backup, and what putting it back means for what is there now."""
    head = site.inventory.head.name
    age = duration(max(0.0, (datetime.now(UTC) - manifest.moment).total_seconds()))
    fresh = "controller" not in site.facts[head].node.slurm
    rows = [
        ("Backup", f"{archive}: {site.inventory.cluster_name}, {manifest.moment:%Y-%m-%d %H:%M:%S} UTC, {age} ago"),
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
    if other := differing(archive, site.inventory.directory):
        rows.append(
            ("Leaves", f"{strip_controls(_some(other))} in the cluster's directory, which the backup has otherwise")
        )
    screen.say()
    for name, value in rows:
        screen.hang((f"  {name:<14}", "dim"), value)
    screen.say()


def _drained(site: Site) -> list[str]:
    """Return who is drained now; nobody where no slurmctld answers."""
    from clusterctl.slurm.client import Head

    with Head.of(site.inventory.head, site.access) as head:
        return head.drained()


def _list(jobs: list[str]) -> str:
    return f"job{'s' * (len(jobs) > 1)} {_some(jobs)}"


def _some(names: list[str], most: int = 10) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
