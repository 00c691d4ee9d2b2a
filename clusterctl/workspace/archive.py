"""Read and check a cluster's backup archive.

An archive is a tar file whose last member is the HMAC-SHA256 of every byte before it, keyed with a secret of the
cluster. plugins/module_utils/cluster_backup.py writes archives.
"""

import hmac
import json
import re
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from clusterctl.util import files
from clusterctl.util.errors import InputError, Problem
from clusterctl.util.text import plural
from clusterctl.util.untrusted import Malformed, decode, mapping, number, sequence, text
from clusterctl.workspace import secrets

VERSION = 1
NAME = re.compile(r"[a-z0-9-]{1,80}-\d{8}T\d{6}Z\.tar")
_MANIFEST, _COPY, _SEAL = "manifest.json", "directory.tar", "seal"
_KEY = "backup_key"
_CHUNK = 1 << 20
_TIME = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True)
class Manifest:
    """An archive's manifest: what the archives of both schedulers have."""

    version: Annotated[int, number(1, 1 << 16)]
    cluster: Annotated[str, text(r"[a-z0-9-]{1,80}", "the label of a cluster")]
    made: Annotated[str, text(r"\d{4}(-\d\d){2}T(\d\d:){2}\d\dZ", "a time")]

    @property
    def moment(self) -> datetime:
        return datetime.strptime(self.made, _TIME).replace(tzinfo=UTC)

    @property
    def program(self) -> str:
        """The scheduler and its version."""
        raise NotImplementedError

    def contents(self) -> str:
        """Return a summary for people."""
        raise NotImplementedError

    def as_dict(self) -> dict[str, Any]:
        """Return the manifest for `--output json`."""
        found = {name: dict(value) if isinstance(value, Mapping) else value for name, value in vars(self).items()}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}


@dataclass(frozen=True)
class SlurmManifest(Manifest):
    """The manifest of Slurm; `running` are the numbers of jobs, `records` the number of rows by kind."""

    slurm: Annotated[str, text(r"\d+\.\d+\.\d+\S*", "a version of Slurm")]
    running: Annotated[tuple[str, ...], sequence(text(r"\d+", "a job's number"), 1 << 20)]
    pending: Annotated[int, number(0, 1 << 32)]
    database: Annotated[str, text(r"\w*", "the name of a database")]
    records: Annotated[Mapping[str, int], mapping(text(r"\w+"), number(0, 1 << 48), 16)]

    @property
    def program(self) -> str:
        return f"Slurm {self.slurm}"

    @property
    def release(self) -> str:
        """Slurm's release, as in the roles' tables: 24.11."""
        return ".".join(self.slurm.split(".")[:2])

    def contents(self) -> str:
        queue = f"{plural(len(self.running), 'job')} running, {self.pending} waiting"
        if not self.database:
            return f"{queue}; no accounting (it is on another host)"
        jobs, associations = self.records.get("job", 0), self.records.get("assoc", 0)
        return f"{queue}; {plural(jobs, 'job')} and {plural(associations, 'association')} in accounting"


@dataclass(frozen=True)
class KubernetesManifest(Manifest):
    """The manifest of Kubernetes; `objects` are the numbers of objects by kind."""

    kubernetes: Annotated[str, text(r"\d+\.\d+\.\d+\S*", "a version of Kubernetes")]
    objects: Annotated[Mapping[str, int], mapping(text(r"\w+"), number(0, 1 << 48), 1 << 10)]

    @property
    def program(self) -> str:
        return f"Kubernetes {self.kubernetes}"

    def contents(self) -> str:
        named = (("Namespace", "namespace"), ("Deployment", "deployment"), ("Secret", "secret"))
        counts = [plural(self.objects.get(kind, 0), noun) for kind, noun in named]
        return f"{plural(sum(self.objects.values()), 'object')}, of them {', '.join(counts)}"


def read(path: Path, directory: Path) -> SlurmManifest | KubernetesManifest:
    """Return an archive's manifest. Raises InputError if it is damaged or not from this cluster."""
    key = secrets.values(directory).get(_KEY)
    if key is None:
        raise refused(
            directory / secrets.FILE, f"has no {_KEY} yet", "run bootstrap to make it; older backups have no seal"
        )
    try:
        with path.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
            members = tar.getmembers()
            first, last = members[0], members[-1]
            if last.name == "sha256":
                raise Malformed("it is from an older clusterctl and has no seal; make a new backup")
            if (first.name, last.name) != (_MANIFEST, _SEAL) or not all(member.isfile() for member in members):
                raise Malformed("its first or last member is missing, or a member is not a file")
            parts = tar.extractfile(first), tar.extractfile(last)
            content, seal = (part.read(1 << 26) if part else b"" for part in parts)
            if not hmac.compare_digest(_mac(file, last.offset, key).encode(), seal.strip()):
                raise Malformed("its seal is not valid")
            data = json.loads(content)
            of_kubernetes = isinstance(data, dict) and "kubernetes" in data
            manifest = decode(KubernetesManifest, data) if of_kubernetes else decode(SlurmManifest, data)
    except (tarfile.TarError, IndexError, ValueError, RecursionError) as error:
        raise refused(path, f"is damaged, or not a backup of this cluster: {error}", "use another backup") from None
    except OSError as error:
        raise refused(path, f"cannot be read: {error.strerror}") from None
    if manifest.version != VERSION:
        raise refused(path, f"has version {manifest.version}, expected {VERSION}", "use a newer clusterctl")
    return manifest


def differing(path: Path, directory: Path) -> list[str]:
    """Return the files of a backup that differ from the cluster's directory or are missing there."""
    try:
        with tarfile.open(path, mode="r:") as tar:
            if _COPY not in tar.getnames():
                return []
            with tarfile.open(fileobj=tar.extractfile(_COPY), mode="r:") as copy:
                kept = {member.name.partition("/")[2]: copy.extractfile(member) for member in copy if member.isfile()}
                if strange := [name for name in kept if Path(name).is_absolute() or ".." in Path(name).parts]:
                    raise Malformed(f"{strange[0]!r} is outside the cluster's directory")
                return [name for name, file in kept.items() if file and file.read() != _read_local(directory, name)]
    except (tarfile.TarError, KeyError, ValueError) as error:
        raise refused(path, f"is damaged: {_COPY}: {error}", "use another backup") from None


def _read_local(directory: Path, name: str) -> bytes | None:
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


def refused(path: Path, message: str, hint: str = "") -> InputError:
    """Return the error for an archive, or a path for one, that cannot be used."""
    return InputError([Problem(None, str(path), message, hint)])
