"""What a bootstrap reads on this machine, as digests: of each host its variables by name, and all the rest as one.

An inventory has no templates, so its values do not depend on anything else. A variable of one host concerns others,
too, if a role may read it there: by `hostvars`, in a task that runs once for all, or in a plugin. These are the shared
names of role_variables.py. Archives of images (role kubernetes_node) are too large to be read: their size and time of
change count.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from clusterctl.inventory.model import Inventory
from clusterctl.run import role_variables
from clusterctl.util import files, paths
from clusterctl.util.errors import InputError
from clusterctl.workspace import home, secrets

LIMIT = 64 << 20  # bytes of the cluster's directory
_FILES = 5000
_IGNORED = (home.STATE, ".git", "__pycache__")
_VARIABLES = ("group_vars", "host_vars")
_ARCHIVES = "kubernetes_node_images_directory"
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class HostInputs:
    """Digests of what a host's roles may read: each variable, and all the rest. A head also has a copy of all."""

    variables: Mapping[str, str]
    """Its own variables by name; of shared names, the values of all hosts."""
    rest: str
    """The hosts and groups, how they are reached, archives of images, other files of the directory, and clusterctl."""
    copy: str = ""
    """The directory and its vault password (role base); empty for a worker."""

    def changed(self, other: "HostInputs") -> set[str]:
        """Return the names of the variables that differ."""
        names = self.variables.keys() | other.variables.keys()
        return {name for name in names if self.variables.get(name) != other.variables.get(name)}


@dataclass(frozen=True)
class Inputs:
    """Digests: of the cluster's directory, of its files with variables, and by host of what its roles may read."""

    directory: str
    variables: str
    hosts: Mapping[str, HostInputs]


def of(inventory: Inventory) -> Inputs | None:
    """Return the inputs of a loaded inventory; None if the cluster's directory cannot be read or has too many files."""
    everything, variables, rest, size = hashlib.sha256(), hashlib.sha256(), hashlib.sha256(), 0
    structure = {inventory.path.name, *_VARIABLES}
    try:
        rest.update(_of_clusterctl().encode())
        for count, path in enumerate(_below(inventory.directory)):
            name, data = path.relative_to(inventory.directory), files.read(path, LIMIT)
            size += len(data)
            if size > LIMIT or count >= _FILES:
                return None
            # A head has a copy of the directory (role base), of which known_hosts is a part.
            concerns_all = () if name.parts == (home.KNOWN_HOSTS,) else (rest,)
            for digest in (everything, *((variables,) if name.parts[0] in structure else concerns_all)):
                digest.update(b"%d %s %d\n%s" % (len(os.fsencode(name)), os.fsencode(name), len(data), data))
        rest.update(_json(_archives(inventory)))
        tree = yaml.load(files.read(inventory.path, LIMIT), Loader=_Loader)  # noqa: S506 - a safe loader
        vault = secrets.vault_password_file(inventory.directory).read_bytes()
    except (OSError, files.UnfitError, metadata.PackageNotFoundError, yaml.YAMLError, InputError):
        return None
    groups = {name: list(hosts) for name, hosts in inventory.groups.items()}
    rest.update(_json([_skeleton(tree), groups, _chosen(inventory, lambda name: name.startswith("ansible_"))]))
    names = role_variables.shared_names(paths.content())
    shared = {name: _digest(values) for name, values in _chosen(inventory, names.__contains__).items()}
    copy = hashlib.sha256(everything.digest() + vault).hexdigest()
    hosts = {
        host.name: HostInputs(
            {name: _digest(value) for name, value in {**host.variables, **_parts(host.variables)}.items()} | shared,
            rest.hexdigest(),
            copy if host.is_head else "",
        )
        for host in inventory.hosts
    }
    return Inputs(everything.hexdigest(), variables.hexdigest(), hosts)


def _chosen(inventory: Inventory, is_chosen: Callable[[str], bool]) -> dict[str, dict[str, Any]]:
    """Return by name the values that hosts have of some variables."""
    found: dict[str, dict[str, Any]] = {}
    for host in inventory.hosts:
        for name, value in host.variables.items():
            if is_chosen(name):
                found.setdefault(name, {})[host.name] = value
    return found


def _archives(inventory: Inventory) -> list[tuple[str, int, int]]:
    """Return path, size and time of change of each file in the directories of image archives. Raises OSError."""
    folders = {str(host.variables[_ARCHIVES]) for host in inventory.hosts if host.variables.get(_ARCHIVES)}
    found = [(path, path.stat()) for folder in sorted(folders) for path in sorted(Path(folder).iterdir())]
    return [(str(path), known.st_size, known.st_mtime_ns) for path, known in found]


def _parts(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of variables that some roles read: of the accounts the UIDs that __base_user_ids lists."""
    uids = [account.get("uid") for account in variables.get("users_accounts") or () if isinstance(account, Mapping)]
    return {"users_accounts:uids": [uid for uid in uids if uid is None or uid < 1000 or 59999 < uid < 65536]}


def _digest(value: object) -> str:
    return hashlib.sha256(_json(value)).hexdigest()[:32]


def _json(value: object) -> bytes:
    return json.dumps(value, default=repr).encode()


def _skeleton(tree: object) -> object:
    """Return the groups of an inventory's tree, in order, with the names of their hosts, without variables."""
    found: list[object] = []
    for name, content in tree.items() if isinstance(tree, dict) else ():
        inner = content if isinstance(content, dict) else {}
        found.append([str(name), [str(host) for host in inner.get("hosts") or ()], _skeleton(inner.get("children"))])
    return found


def _below(directory: Path) -> Iterator[Path]:
    for path in sorted(directory.iterdir()):
        if path.name in _IGNORED:
            continue
        if path.is_dir():
            yield from _below(path)
        else:
            yield path


@cache
def _of_clusterctl() -> str:
    """Return a digest of clusterctl, its roles, and Ansible's version."""
    versions = [metadata.version(name) for name in ("ansible-core", "cryptography", "jinja2")]
    digest = hashlib.sha256(" ".join(versions).encode())
    content = paths.content()
    package = Path(__file__).resolve().parent.parent
    for folder in (package, *(content / name for name in ("playbooks", "plugins", "roles"))):
        for path in _below(folder):
            data = path.read_bytes()
            digest.update(b"%s %d\n%s" % (os.fsencode(path.relative_to(folder.parent)), len(data), data))
    digest.update((content / "ansible.cfg").read_bytes())
    return digest.hexdigest()
