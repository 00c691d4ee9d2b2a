"""What a bootstrap reads on this machine, as digests: those of a host, and one of all that concerns every host.

An inventory has no templates, so its values do not depend on anything else. A variable of one host concerns others,
too, if a role may read it there: by `hostvars`, in a task that runs once for all, or in a plugin. These are
`shared_names`, found in the text of the roles: every word of such an expression, and of what the roles define under
these words. A name that only looks like a variable costs a play that was not necessary; one that is missed would be a
change that is not applied, so tests/systems/test_inputs.py renders the roles of a cluster of Slurm with other values,
and compares. Clusters with Kubernetes, whose plugins make names of variables as they run, have no inputs.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from clusterctl.inventory.model import Inventory
from clusterctl.util import files, paths
from clusterctl.util.errors import InputError
from clusterctl.workspace import home, secrets

LIMIT = 64 << 20  # bytes of the cluster's directory
_FILES = 5000
_IGNORED = (home.STATE, ".git", "__pycache__")
_VARIABLES = ("group_vars", "host_vars")
_WORD = re.compile(r"[A-Za-z_]\w*")
_KEY = re.compile(r"^([A-Za-z_]\w*):", re.MULTILINE)
# In a task: another host's variables, or a result that other hosts get.
_OF_OTHERS = ("hostvars", "run_once", "delegate_")
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Inputs:
    """Digests: of the cluster's directory, of its files with variables, and by host of what its roles may read."""

    directory: str
    variables: str
    hosts: Mapping[str, str]


def of(inventory: Inventory) -> Inputs | None:
    """Return the inputs of a loaded inventory; None if the cluster's directory cannot be read or has too many files."""
    everything, variables, shared, size = hashlib.sha256(), hashlib.sha256(), hashlib.sha256(), 0
    structure = {inventory.path.name, *_VARIABLES}
    try:
        shared.update(_of_clusterctl().encode())
        for count, path in enumerate(_below(inventory.directory)):
            name, data = path.relative_to(inventory.directory), files.read(path, LIMIT)
            size += len(data)
            if size > LIMIT or count >= _FILES:
                return None
            # A head has a copy of the directory (role base), of which known_hosts is a part.
            concerns_all = () if name.parts == (home.KNOWN_HOSTS,) else (shared,)
            for digest in (everything, *((variables,) if name.parts[0] in structure else concerns_all)):
                digest.update(b"%d %s %d\n%s" % (len(os.fsencode(name)), os.fsencode(name), len(data), data))
        tree = yaml.load(files.read(inventory.path, LIMIT), Loader=_Loader)  # noqa: S506 - a safe loader
        vault = secrets.vault_password_file(inventory.directory).read_bytes()
    except (OSError, files.UnfitError, metadata.PackageNotFoundError, yaml.YAMLError, InputError):
        return None
    names = shared_names(paths.content())
    of_all: dict[str, Any] = {}
    own: dict[str, dict[str, Any]] = {}
    for host in inventory.hosts:
        of_all[host.name], own[host.name] = {}, {}
        for key, value in host.variables.items():
            concerned = of_all if key in names or key.startswith("ansible_") else own
            concerned[host.name][key] = value
    shared.update(_json([_skeleton(tree), {name: list(hosts) for name, hosts in inventory.groups.items()}, of_all]))
    copy = everything.digest() + hashlib.sha256(vault).digest()
    hosts = {
        host.name: hashlib.sha256(shared.digest() + _json(own[host.name]) + (copy if host.is_head else b"")).hexdigest()
        for host in inventory.hosts
    }
    return Inputs(everything.hexdigest(), variables.hexdigest(), hosts)


def _json(value: object) -> bytes:
    return json.dumps(value, default=str).encode()


def _skeleton(tree: object) -> object:
    """Return the groups of an inventory's tree, in order, with the names of their hosts, without variables."""
    found: list[object] = []
    for name, content in tree.items() if isinstance(tree, dict) else ():
        inner = content if isinstance(content, dict) else {}
        found.append([str(name), [str(host) for host in inner.get("hosts") or ()], _skeleton(inner.get("children"))])
    return found


@cache
def shared_names(content: Path) -> frozenset[str]:
    """Return the variables that a role may read of another host, among other words."""
    variables = [content / "playbooks/group_vars/all.yml"]
    variables += [*content.glob("roles/*/defaults/*.yml"), *content.glob("roles/*/vars/*.yml")]
    definitions: dict[str, str] = {}
    for path in variables:
        for name, text in _keys(path.read_text(encoding="utf-8")):
            definitions[name] = definitions.get(name, "") + text
    parts = [*definitions.values(), *_tasks(content)]
    parts += [path.read_text(encoding="utf-8") for path in content.glob("roles/*/templates/**/*") if path.is_file()]
    parts += [path.read_text(encoding="utf-8") for path in content.glob("plugins/*/*.py")]
    pending = {word for text in parts if any(mark in text for mark in _OF_OTHERS) for word in _WORD.findall(text)}
    found: set[str] = set()
    while pending:
        word = pending.pop()
        found.add(word)
        pending |= {*_WORD.findall(definitions.get(word, ""))} - found
    return frozenset(found)


def _keys(text: str) -> Iterator[tuple[str, str]]:
    """Yield the keys of a file of variables, each with the text of its value."""
    starts = list(_KEY.finditer(text))
    for start, end in zip(starts, [*starts[1:], None], strict=False):
        yield start[1], text[start.end() : end.start() if end else len(text)]


def _tasks(content: Path) -> Iterator[str]:
    """Yield the text of each task of the roles, of each role's pages, and of the playbook as a whole."""
    # Lookup cluster_pages reads the variables of other hosts that a role's pages.yml names.
    for path in (content / "playbooks/bootstrap.yml", *content.glob("roles/*/meta/pages.yml")):
        yield "hostvars " + path.read_text(encoding="utf-8")
    for path in content.glob("roles/*/tasks/*.yml"):
        pending: list[Any] = yaml.load(path.read_bytes(), Loader=_Loader) or []  # noqa: S506 - a safe loader
        while pending:
            task = pending.pop()
            inner = [one for part in ("block", "rescue", "always") for one in task.get(part, ())]
            # What a block says is true of each of its tasks.
            own = {key: value for key, value in task.items() if key not in ("block", "rescue", "always")}
            pending += inner if not any(mark in str(own) for mark in _OF_OTHERS) else ()
            yield str(task) if any(mark in str(own) for mark in _OF_OTHERS) else str(own)


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
