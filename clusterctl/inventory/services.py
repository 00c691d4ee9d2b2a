"""Read the services that roles declare in meta/services.yml, for status, verify and metrics."""

import functools
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from clusterctl.inventory import schema
from clusterctl.inventory.model import Host
from clusterctl.util import paths, yaml_text
from clusterctl.util.errors import ClusterctlError

FAMILIES = ("Debian", "RedHat")


@dataclass(frozen=True)
class Service:
    """One declared systemd unit."""

    role: str
    unit: Mapping[str, str]
    """Its name by the operating system's family; one name in the file if all have the same."""
    scheduling: bool = False
    """Whether jobs need it to start."""
    required: bool = True
    """Whether it always runs on hosts of the role; metrics always include it."""
    local: str = ""
    """A variable with the host that runs it; `localhost` is the host itself."""
    beside: str = ""
    """A variable with the host of what it needs; while that is `localhost`, only the first host of the role runs it."""
    groups: tuple[str, ...] = ()
    """The groups whose hosts run it; empty: all hosts of the role."""

    @property
    def names(self) -> tuple[str, ...]:
        """Its names, each once, without `.service`."""
        return tuple(dict.fromkeys(name.removesuffix(".service") for name in self.unit.values()))

    def runs_here(self, variables: Mapping[str, Any], groups: Collection[str], *, backup: bool = False) -> bool:
        """Return whether it must run on a host of the role with these variables, in these groups.

        `backup`: the host is a further head of its scheduler.
        """
        if not self.required or (self.groups and not {*self.groups} & {*groups}):
            return False
        if backup and self.beside and variables.get(self.beside, "localhost") == "localhost":
            return False
        return not self.local or bool(variables.get(self.local, "localhost") == "localhost")


@functools.cache
def load(role: Path) -> tuple[Service, ...]:
    """Return a role's services. Raises ClusterctlError for an invalid declaration, which is a bug in the role."""
    path = role / "meta/services.yml"
    declared = yaml_text.load(path.read_text(encoding="utf-8")) if path.is_file() else []
    return tuple(_service(role.name, item) for item in declared)


def _service(role: str, item: Any) -> Service:
    keys = {field.name: field.default is MISSING for field in fields(Service) if field.name != "role"}
    given = dict(item) if isinstance(item, dict) else {}
    unit = given.get("unit")
    named = unit if isinstance(unit, dict) else dict.fromkeys(FAMILIES, unit)
    fits = set(named) == {*FAMILIES} and all(isinstance(name, str) and "." in name for name in named.values())
    if given.keys() - keys or not fits:
        expected = f"the keys {', '.join(keys)}, and unit with its suffix, for all or by {', '.join(FAMILIES)}"
        raise ClusterctlError(f"{role}: meta/services.yml: {item!r}: expected {expected}")
    return Service(role, **{**given, "unit": named, "groups": tuple(given.get("groups", ()))})


@functools.cache
def load_all(content: Path | None = None) -> Mapping[str, tuple[Service, ...]]:
    """Return the services of all roles, by role."""
    return {role.name: load(role) for role in sorted((content or paths.content()).glob("roles/*/"))}


def of_host(host: Host) -> list[Service]:
    """Return the services that must run on a host, from the roles of its groups."""
    known = schema.load()
    roles = [*known.common, *(role for group in sorted(host.groups) for role in known.groups.get(group, ()))]
    return [
        one for one in _of(dict.fromkeys(roles)) if one.runs_here(host.variables, host.groups, backup=host.is_backup)
    ]


def scheduling() -> frozenset[str]:
    """Return the names of the units that jobs need to start."""
    return frozenset(name for one in _of(load_all()) if one.scheduling for name in one.names)


def _of(roles: Iterable[str]) -> Iterator[Service]:
    return (one for role in roles for one in load_all().get(role, ()))
