"""Pages for people that roles declare in meta/pages.yml: for `clusterctl open` and the landing page."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from clusterctl.inventory import schema
from clusterctl.inventory.model import Inventory
from clusterctl.inventory.schema import Schema
from clusterctl.util import paths, yaml_text
from clusterctl.util.errors import ClusterctlError


@dataclass(frozen=True)
class Page:
    """One declared page. It has TLS with a certificate of the cluster's authority, and a login."""

    role: str
    name: str
    """What a person types to open it."""
    title: str
    purpose: str
    port: str
    """The name of the variable that has it."""
    user: str
    """The variable that has the user of the login, or the user itself; empty: each person has an own login."""
    secret: str
    """The secret that is the password; empty with an empty `user`."""
    path: str = "/"
    groups: tuple[str, ...] = ()
    """The groups whose hosts have it; empty: all hosts of the role."""
    enabled: str = ""
    """The name of the variable that switches it off if it is false; empty: no such variable."""


@dataclass(frozen=True)
class Address:
    """A page of one host."""

    page: Page
    host: str
    port: int
    user: str
    address: str
    """Of the host in the cluster, as in the page's certificate."""

    @property
    def url(self) -> str:
        """Return its URL, from where the cluster's network is reachable."""
        return self.at(f"[{self.address}]" if ":" in self.address else self.address, self.port)

    def at(self, host: str, port: int) -> str:
        """Return its URL at another host and port, such as the end of a tunnel."""
        return f"https://{host}:{port}{self.page.path}"


def load(role: Path) -> list[Page]:
    """Return a role's pages. Raises ClusterctlError for an invalid declaration, which is a bug in the role."""
    path = role / "meta/pages.yml"
    declared = yaml_text.load(path.read_text(encoding="utf-8")) if path.is_file() else []
    return [_page(role.name, item) for item in declared]


def _page(role: str, item: Any) -> Page:
    keys = {field.name: field.default is MISSING for field in fields(Page) if field.name != "role"}
    given = dict(item) if isinstance(item, dict) else {}
    if given.keys() - keys or {key for key, required in keys.items() if required} - given.keys():
        raise ClusterctlError(f"{role}: meta/pages.yml: {item!r}: expected the keys {', '.join(keys)}")
    page = Page(role, **given | {"groups": tuple(given.get("groups", ()))})
    texts = all(isinstance(value, str) for key, value in given.items() if key != "groups")
    if not (texts and page.path.startswith("/") and bool(page.user) == bool(page.secret)):
        raise ClusterctlError(f"{role}: meta/pages.yml: {item!r}: not a valid path, user or secret")
    return page


def load_all(content: Path | None = None) -> list[Page]:
    """Return the pages of all roles, by role."""
    return [page for role in sorted((content or paths.content()).glob("roles/*/")) for page in load(role)]


def of_inventory(inventory: Inventory) -> list[Address]:
    """Return the pages of a cluster, the landing page first."""
    variables = {host.name: {"cluster_address": host.address, **host.variables} for host in inventory.hosts}
    return of_hosts(inventory.groups, variables)


def of_hosts(
    groups: Mapping[str, Iterable[str]],
    variables: Mapping[str, Mapping[str, Any]],
    known: Schema | None = None,
    declared: Collection[Page] | None = None,
) -> list[Address]:
    """Return the pages of a cluster, the landing page first.

    `groups` has the hosts of each group, `variables` those of each host from the inventory.
    """
    known = known or schema.load()
    pages = load_all() if declared is None else declared
    found = [one for page in pages for one in _of(page, groups, variables, known)]
    return sorted(found, key=lambda one: (one.page.role != "landing_page", one.page.title.lower(), one.host))


def _of(
    page: Page, groups: Mapping[str, Iterable[str]], variables: Mapping[str, Mapping[str, Any]], known: Schema
) -> Iterator[Address]:
    wanted = page.groups or [group for group, roles in known.groups.items() if page.role in roles]
    for host in sorted({host for group in wanted for host in groups.get(group, ())}):
        own = variables[host]

        def value(name: str, own: Mapping[str, Any] = own) -> Any:
            return own[name] if name in own else known.defaults.get(name, name)

        if page.enabled and not value(page.enabled):
            continue
        user = str(value(page.user))
        yield Address(page, host, int(value(page.port)), user, str(own["cluster_address"]))
