"""`backup`: archive Slurm's queue and accounting, or Kubernetes' objects, on the head, and copy it to this machine."""

import os
import shlex
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from clusterctl.ansible.outcome import Ledger
from clusterctl.inventory import schema
from clusterctl.inventory.model import Host
from clusterctl.run import engine
from clusterctl.run.context import Options, Site
from clusterctl.run.entry import CONTACT_OF_A_TEST, Preflight
from clusterctl.run.phases import Phase, Run, Step
from clusterctl.run.plays import Play
from clusterctl.util import files
from clusterctl.util.errors import ClusterctlError, HeadFailed, InputError, Problem
from clusterctl.workspace import archive, home

DIRECTORY = "backups"
_CHUNK = 1 << 20
_IDLE_SECONDS = 60.0  # a copy that receives no byte for this long is aborted


def backup(options: Options, to: Path | None) -> int:
    """Make a backup on the head and copy it to a local directory; return the exit code."""
    inventory = home.load(options.inventory)
    target = to.absolute() if to else inventory.directory / home.STATE / DIRECTORY
    phases = [
        *CONTACT_OF_A_TEST,
        Preflight(replaces=False, skips=True),
        PlayBackup(),
        FetchBackup(target, prune=to is None),
    ]
    if not options.print_command:
        _require_writable(target, private=to is None)  # fail before the head spends up to an hour on the archive
    names = [host.name for host in inventory.hosts if host.name in inventory.heads]
    return engine.execute(replace(options, limit=",".join(names)), phases, inventory)


class PlayBackup(Play):
    """Make the archive on the head, and test it by a restore."""

    def __init__(self) -> None:
        super().__init__("backup", "Make a backup on the head")

    def site(self, run: Run) -> Site:
        return replace(super().site(run), hosts=_heads(run.site), skipped=())


def _heads(site: Site) -> tuple[Host, ...]:
    """Return one head of each scheduler: of several, the first that responded and is set up."""
    found = []
    for kind in site.inventory.schedulers:
        heads = site.inventory.in_group(kind.head)
        present = [head for head in heads if head.name not in site.skipped]
        set_up = [h for h in present if h.name in site.facts and "controller" in site.facts[h.name].node.kubernetes]
        found.append([*set_up, *present, *heads][0])
    return tuple(found)


class FetchBackup(Phase):
    """Copy the archive of this run from the head to a local directory."""

    title = "Copy the backup to this machine"

    def __init__(self, target: Path, *, prune: bool) -> None:
        self.target, self.prune = target, prune

    def run(self, run: Run) -> None:
        run.summary |= fetch(run, self.target, prune=self.prune)

    def describe(self, run: Run) -> Iterator[Step]:
        for head in _heads(run.site):
            source = _setting(head, "backup_directory")
            yield f"copy the newest archive from {source} on {head.name} (readable by root only) to {self.target}"


class MakeBackup(PlayBackup):
    """Make a backup and copy it to this machine before another verb makes large changes."""

    def __init__(self, due: Callable[[], bool]) -> None:
        super().__init__()
        self.due = due

    def should_run(self, run: Run) -> bool:
        return run.options.print_command or self.due()

    def run(self, run: Run) -> None:
        target = run.site.state / DIRECTORY
        files.make_private_directory(target)
        super().run(run)
        fetch(run, target, prune=True)

    def describe(self, run: Run) -> Iterator[Step]:
        yield shlex.join(["clusterctl", "backup", str(run.options.given)])


def _require_writable(target: Path, *, private: bool) -> None:
    try:
        if private:
            files.make_private_directory(target)
        with tempfile.TemporaryFile(dir=target):
            pass
    except OSError as error:
        raise archive.refused(target, f"is not writable: {error.strerror}") from None


def fetch(run: Run, target: Path, *, prune: bool) -> dict[str, Any]:
    """Copy this run's backups to a directory, print what they contain, and return that for the summary."""
    found = [_fetch_one(run, head, target, prune=prune) for head in _heads(run.site)]
    return found[0] | ({"backups": found} if len(found) > 1 else {})


def _fetch_one(run: Run, head: Host, target: Path, *, prune: bool) -> dict[str, Any]:
    site, screen = run.site, run.screen
    with screen.working("Copying the backup"):
        path = _fetch(site, head, _archive_of_run(head, run.ledger), target)
    if prune:
        _prune(path, int(_setting(head, "backup_keep")))
    manifest = archive.read(path, site.inventory.directory)
    screen.say()
    screen.say((f"  {'Backup':<14}", "dim"), str(path))
    screen.hang((f"  {'Contains':<14}", "dim"), manifest.contents())
    return {"backup": str(path), "manifest": manifest.as_dict()}


def _setting(head: Host, name: str) -> Any:
    """Return the value of a variable for a head, or its default."""
    return head.variables.get(name, schema.load().defaults[name])


def _archive_of_run(head: Host, ledger: Ledger) -> str:
    """Return the archive's path on a head, from the events of the run."""
    host = ledger.hosts.get(head.name)
    found = [change.name for _, change in host.changes if change.kind == "backup"] if host else []
    if len(found) != 1 or not archive.NAME.fullmatch(Path(found[0]).name):
        raise ClusterctlError("The head did not report the name of the backup.")
    return found[0]


def _fetch(site: Site, head: Host, source: str, target: Path) -> Path:
    """Copy an archive from a head with mode 0600, atomically. Raises HeadFailed if the copy fails."""
    path = target / Path(source).name
    new = path.with_name(f".{path.name}.new")
    try:
        with _reading(site, head, source) as chunks, os.fdopen(_private(new), "wb") as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        archive.read(new, site.inventory.directory)
        new.replace(path)
    except InputError as error:
        problem = "; ".join(one.message for one in error.problems if isinstance(one, Problem))
        raise HeadFailed(_copy_failed(head, source, f"the copy {problem}")) from None
    except OSError as error:
        raise HeadFailed(_copy_failed(head, source, f"{error.filename or target}: {error.strerror}")) from None
    finally:
        new.unlink(missing_ok=True)
    return path


def _copy_failed(head: Host, source: str, reason: str) -> str:
    return f"The backup is valid and is on {head.name}: {source}. Copying it failed: {reason}."


def _private(path: Path) -> int:
    path.unlink(missing_ok=True)  # a killed run leaves its partial file
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)


@contextmanager
def _reading(site: Site, head: Host, source: str) -> Iterator[Iterator[bytes]]:
    """Yield the chunks of a file that root reads on the head. SSH errors are raised as OSError."""
    import paramiko

    from clusterctl.nodes.remote import connect
    from clusterctl.nodes.session import ContactError

    try:
        with connect(head, site.access) as session, closing(session.transport.open_session()) as channel:
            first = session.start(channel, ["cat", "--", source], True, time.monotonic() + _IDLE_SECONDS)
            channel.settimeout(_IDLE_SECONDS)

            def chunks() -> Iterator[bytes]:
                yield first
                while data := channel.recv(_CHUNK):
                    yield data

            yield chunks()
    except (ContactError, paramiko.SSHException, EOFError) as error:
        raise OSError(0, str(error) or "the connection was closed", head.name) from None


def _prune(path: Path, keep: int) -> None:
    """Remove all but the newest `keep` archives of this cluster; names sort by time."""
    stem = path.name[: -len("20261121T190000Z.tar")]
    archives = sorted(
        other
        for other in path.parent.iterdir()
        if archive.NAME.fullmatch(other.name) and other.name[: len(stem)] == stem and len(other.name) == len(path.name)
    )
    for old in archives[:-keep]:
        old.unlink()
