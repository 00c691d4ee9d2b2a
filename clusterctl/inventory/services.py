"""Services that roles declare in meta/services.yml: what runs where. Status, verify and metrics read them here."""

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from clusterctl.inventory import schema
from clusterctl.inventory.model import Host
from clusterctl.util import paths
from clusterctl.util.errors import ClusterctlError

FAMILIES = ("Debian", "RedHat")


@dataclass(frozen=True)
class Service:
    """One declared unit of systemd."""

    role: str
    unit: Mapping[str, str]
    """Its name by the operating system's family; given as one name where all have the same."""
    scheduling: bool = False
    """Whether no job starts without it."""
    required: bool = True
    """Whether it always runs on hosts of the role; metrics have it also where it does not."""
    local: str = ""
    """A variable with the host that runs it; it is `localhost` where that is this one."""

    @property
    def names(self) -> tuple[str, ...]:
        """Its names, each once, without `.service`, as systemctl takes them."""
        return tuple(dict.fromkeys(name.removesuffix(".service") for name in self.unit.values()))

    def runs_here(self, variables: Mapping[str, Any]) -> bool:
        """Return whether it has to run on a host of the role with these variables."""
        return self.required and (not self.local or variables.get(self.local, "localhost") == "localhost")


def load(role: Path) -> list[Service]:
    """Return what a role declares. Raises ClusterctlError where that cannot be meant, which is a bug of ours."""
    path = role / "meta/services.yml"
    declared = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else []
    return [_service(role.name, item) for item in declared]


def _service(role: str, item: Any) -> Service:
    keys = {field.name: field.default is MISSING for field in fields(Service) if field.name != "role"}
    given = dict(item) if isinstance(item, dict) else {}
    unit = given.get("unit")
    named = unit if isinstance(unit, dict) else dict.fromkeys(FAMILIES, unit)
    fits = set(named) == {*FAMILIES} and all(isinstance(name, str) and "." in name for name in named.values())
    if given.keys() - keys or not fits:
        expected = f"the keys {', '.join(keys)}, and unit with its suffix, for all or by {', '.join(FAMILIES)}"
        raise ClusterctlError(f"{role}: meta/services.yml: {item!r}: expected {expected}")
    return Service(role, **{**given, "unit": named})


@functools.cache
def load_all(content: Path | None = None) -> Mapping[str, tuple[Service, ...]]:
    """Return what all roles declare, by role."""
    return {role.name: tuple(load(role)) for role in sorted((content or paths.content()).glob("roles/*/"))}


def of_host(host: Host) -> list[Service]:
    """Return what has to run on a host: the services of the roles that its groups give it."""
    known = schema.load()
    roles = [*known.common, *(role for group in sorted(host.groups) for role in known.groups.get(group, ()))]
    return [one for one in _of(dict.fromkeys(roles)) if one.runs_here(host.variables)]


def scheduling() -> frozenset[str]:
    """Return the names of the units without which no job starts."""
    return frozenset(name for one in _of(load_all()) if one.scheduling for name in one.names)


def _of(roles: Iterable[str]) -> Iterator[Service]:
    return (one for role in roles for one in load_all().get(role, ()))
