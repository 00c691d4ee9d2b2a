"""What a bootstrap reads on this machine, as digests: of each host its variables by name, and all the rest as one.

An inventory has no templates, so its values do not depend on anything else. What concerns a host:

- its own variables, and of the shared names of role_variables.py those of the other hosts that its roles see
- the secrets by name: a role reads one as it reads a variable
- the groups, the hosts that its roles see, how they are reached, and their hardware records
- files of the cluster's directory that a variable names, and clusterctl with its roles
- archives of images (role kubernetes_node) by size, times and inode: they are too large to be read

A worker's roles see the worker itself and the hosts that are no workers or serve others; the roles of these see all
hosts. So a new worker concerns no other one. All hosts see all without `cluster_networks`, because their firewalls
list the nodes then, and if Slurm's daemons learn of a new node only by a restart.

The digests are keyed with the vault password: without it, values of secrets cannot be tried.
"""

import hashlib
import hmac
import json
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from clusterctl.inventory import hostrange, model
from clusterctl.inventory.model import Host, Inventory
from clusterctl.run import role_variables
from clusterctl.slurm import versions
from clusterctl.util import files, paths, yaml_text
from clusterctl.util.errors import InputError
from clusterctl.workspace import hardware, home, secrets

LIMIT = 64 << 20  # bytes of the cluster's directory
SERVERS = ("grafana", "kubernetes_head", "login", "slurm_head", "slurmrestd", *model.LISTING)
"""Groups whose hosts the roles of other hosts read. A worker in one of them is not only a worker."""
_FILES = 5000
_IGNORED = (home.STATE, ".git", "__pycache__")
_VARIABLES = ("group_vars", "host_vars")
_ARCHIVES = "kubernetes_node_images_directory"


@dataclass(frozen=True)
class HostInputs:
    """Digests of what a host's roles may read: each variable, clusterctl, and all the rest. A head also has a copy."""

    variables: Mapping[str, str]
    """Its own variables and the secrets, by name; of shared names, the values of all hosts that it sees."""
    program: str
    """clusterctl with its roles, ansible.cfg, Python, and the libraries of _of_clusterctl."""
    rest: str
    """All else that the module's text lists."""
    copy: str = ""
    """All files of the cluster's directory, of which a head has a copy (role base); empty for another host."""

    def changed(self, other: "HostInputs") -> set[str]:
        """Return the names of the variables and secrets that differ."""
        names = self.variables.keys() | other.variables.keys()
        return {name for name in names if self.variables.get(name) != other.variables.get(name)}


@dataclass(frozen=True)
class Inputs:
    """Digests of the files with variables, and by host of what its roles may read."""

    variables: str
    hosts: Mapping[str, HostInputs]
    written: str
    """When the files of the cluster's directory were written: one that was edited and restored during a run differs."""


def of(inventory: Inventory) -> Inputs | None:
    """Return the inputs of a loaded inventory; None if the cluster's directory cannot be read or has too many files."""
    try:
        digest = _Digest(secrets.vault_password_file(inventory.directory).read_bytes())
        found = _contents(inventory.directory)
        hosts = _Reader(inventory, digest, found).hosts()
    except (OSError, ValueError, files.UnfitError, metadata.PackageNotFoundError, yaml.YAMLError, InputError):
        return None
    structure = {inventory.path.name, *_VARIABLES}
    variables = {name: one for name, one in found.items() if name.split("/")[0] in structure}
    return Inputs(digest(variables), hosts, digest(_written(inventory.directory)))


@dataclass(frozen=True)
class _Digest:
    """Keyed digests of values, as hexadecimal digits."""

    key: bytes

    def __call__(self, value: object) -> str:
        return hmac.digest(self.key, json.dumps(value, default=repr).encode(), "sha256").hex()[:32]


class _Reader:
    """Digests what each host's roles read; `contents` has the files of the cluster's directory."""

    def __init__(self, inventory: Inventory, digest: _Digest, contents: Mapping[str, str]) -> None:
        self._inventory, self._digest, self._contents = inventory, digest, contents
        content = paths.content()
        self._names = role_variables.shared_names(content)
        have_networks = all(host.variables.get("cluster_networks") for host in inventory.hosts)
        lists_nodes = not have_networks or versions.learns_by_restart(inventory)
        self._only_workers = {host.name for host in inventory.hosts if _is_only_worker(host) and not lists_nodes}
        known = _secrets(inventory.directory, files.read(inventory.directory / secrets.FILE, LIMIT), digest.key)
        read = known.keys() & role_variables.words_of_single_roles(content)
        self._secrets = {name: digest(known[name]) for name in sorted(read)}
        # Any other may concern all roles, as the key of the records does.
        others = {name: value for name, value in known.items() if name not in read}
        self._common = [_archives(inventory), self._named_files(), others]
        self._tree = yaml_text.load(files.read(inventory.path, LIMIT))

    def hosts(self) -> dict[str, HostInputs]:
        """Return the inputs of each host."""
        digest, every = self._digest, {host.name for host in self._inventory.hosts}
        of_all, rest_of_all = self._shared(every), self._rest(every)
        of_servers, rest_of_servers = self._shared(every - self._only_workers), self._rest(every - self._only_workers)
        shared_by_all = {name: digest(values) for name, values in of_all.items()}
        copy, found = digest(self._contents), {}
        for host in self._inventory.hosts:
            own = {**host.variables, **_parts(host.variables)}
            variables, rest = {name: digest(value) for name, value in own.items()} | self._secrets, rest_of_all
            if host.name in self._only_workers:
                names = of_servers.keys() | (self._names & own.keys())
                variables |= {name: digest([of_servers.get(name), own.get(name)]) for name in names}
                connection = _connection_variables([host])
                rest = digest([rest_of_servers, sorted(host.groups), connection, self._record(host.name)])
            else:
                variables |= shared_by_all
            found[host.name] = HostInputs(variables, _of_clusterctl(), rest, copy if host.is_head else "")
        return found

    def _shared(self, seen: Collection[str]) -> dict[str, dict[str, Any]]:
        hosts = [host for host in self._inventory.hosts if host.name in seen]
        return _chosen(hosts, self._names.__contains__)

    def _rest(self, seen: Collection[str]) -> str:
        hosts = [host for host in self._inventory.hosts if host.name in seen]
        groups = {name: [one for one in members if one in seen] for name, members in self._inventory.groups.items()}
        records = [self._record(host.name) for host in hosts]
        return self._digest([self._common, _skeleton(self._tree, seen), groups, _connection_variables(hosts), records])

    def _record(self, name: str) -> str | None:
        return self._contents.get(hardware.path_of(Path(), name).as_posix())

    def _named_files(self) -> dict[str, str]:
        """Return the digest of each file of the directory whose path is a value in the inventory, or a part of one."""
        found = {}
        for text in sorted({text for host in self._inventory.hosts for text in _texts(host.variables)}):
            name = os.path.normpath(text)
            if name in self._contents:
                found[name] = self._contents[name]
            elif {*Path(name).parts} & {*_IGNORED} and (path := self._inventory.directory / name).is_file():
                found[name] = hashlib.sha256(files.read(path, LIMIT)).hexdigest()
        return found


def _is_only_worker(host: Host) -> bool:
    """Return whether no other worker's roles see the host, and its roles see no other worker."""
    return host.is_worker and host.groups.isdisjoint(SERVERS)


def _connection_variables(hosts: Iterable[Host]) -> dict[str, dict[str, Any]]:
    """Return by name the variables of Ansible's connections to the hosts: ansible_*."""
    return _chosen(hosts, lambda name: name.startswith("ansible_"))


def _chosen(hosts: Iterable[Host], is_chosen: Callable[[str], bool]) -> dict[str, dict[str, Any]]:
    """Return by name the values that hosts have of some variables."""
    found: dict[str, dict[str, Any]] = {}
    for host in hosts:
        for name, value in host.variables.items():
            if is_chosen(name):
                found.setdefault(name, {})[host.name] = value
    return found


def _texts(value: object) -> Iterator[str]:
    """Yield each text in a value, at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _texts(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _texts(one)


@lru_cache(maxsize=1)
def _secrets(directory: Path, _sealed: bytes, _password: bytes) -> dict[str, str]:
    """Return the cluster's secrets, decrypted once as long as file and password are the same. Raises InputError."""
    return secrets.values(directory)


def _contents(directory: Path) -> dict[str, str]:
    """Return the digest of each file of the cluster's directory by its path in it, in order.

    Raises OSError, UnfitError, also for too many or too large files.
    """
    found, size = dict[str, str](), 0
    for path in _below(directory, _IGNORED):
        data = files.read(path, LIMIT)
        size += len(data)
        if size > LIMIT or len(found) >= _FILES:
            raise files.UnfitError(f"{directory} has more than {_FILES} files or {LIMIT} bytes")
        found[path.relative_to(directory).as_posix()] = hashlib.sha256(data).hexdigest()
    return found


def _written(directory: Path) -> list[tuple[str, int, int]]:
    """Return path, inode and its time of each file, link and folder in the cluster's directory. Raises OSError.

    Not of the directory itself: editors create files there.
    """
    found = [(path, of) for path in _entries(directory, _IGNORED) for of in (path.lstat(), path.stat())]
    return [(path.relative_to(directory).as_posix(), of.st_ino, of.st_ctime_ns) for path, of in found]


def _archives(inventory: Inventory) -> list[tuple[str | int, ...]]:
    """Return path, size, times and inode of each file in the directories of image archives. Raises OSError.

    Programs that copy can set the time of the content, but not that of the inode.
    """
    folders = {str(host.variables[_ARCHIVES]) for host in inventory.hosts if host.variables.get(_ARCHIVES)}
    found = [(path, path.stat()) for folder in sorted(folders) for path in sorted(Path(folder).iterdir())]
    return [(str(path), known.st_size, known.st_mtime_ns, known.st_ctime_ns, known.st_ino) for path, known in found]


def _parts(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of variables that some roles read: of the accounts the UIDs that __base_user_ids lists."""
    uids = [account.get("uid") for account in variables.get("users_accounts") or () if isinstance(account, Mapping)]
    return {"users_accounts:uids": [uid for uid in uids if uid is not None and (uid < 1000 or 59999 < uid < 65536)]}


def _skeleton(tree: object, seen: Collection[str]) -> object:
    """Return the groups of an inventory's tree, in order, with those of their hosts that are seen; no variables."""
    found: list[object] = []
    for name, content in tree.items() if isinstance(tree, dict) else ():
        inner = content if isinstance(content, dict) else {}
        names = [one for pattern in inner.get("hosts") or () for one in hostrange.expand(str(pattern))]
        hosts = [one for one in names if one in seen]
        found.append([str(name), hosts, _skeleton(inner.get("children"), seen)])
    return found


def _below(directory: Path, ignored: Collection[str]) -> Iterator[Path]:
    """Yield the files below a directory, in order, without those that are ignored and what is below."""
    return (path for path in _entries(directory, ignored) if not path.is_dir())


def _entries(directory: Path, ignored: Collection[str]) -> Iterator[Path]:
    """Yield the files and folders below a directory, in order, without those that are ignored and what is below."""
    for path in sorted(directory.iterdir()):
        if path.name not in ignored:
            yield path
            yield from _entries(path, ignored) if path.is_dir() else ()


def forget_program() -> None:
    """Let the next inputs have the digest of clusterctl's files as they are then."""
    _of_clusterctl.cache_clear()


@cache
def _of_clusterctl() -> str:
    """Return a digest of clusterctl, its roles, and the versions of Python and of what Ansible writes files with."""
    releases = [metadata.version(name) for name in ("ansible-core", "cryptography", "jinja2", "PyYAML")]
    digest = hashlib.sha256(" ".join([*releases, sys.version]).encode())
    content = paths.content()
    package = Path(__file__).resolve().parent.parent
    for folder in (package, *(content / name for name in ("playbooks", "plugins", "roles"))):
        for path in _below(folder, ("__pycache__",)):
            data = path.read_bytes()
            digest.update(b"%s %d\n%s" % (os.fsencode(path.relative_to(folder.parent)), len(data), data))
    digest.update((content / "ansible.cfg").read_bytes())
    return digest.hexdigest()
