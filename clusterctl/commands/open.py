"""`open`: print the addresses of the cluster's pages with their logins, and open one in the browser.

Passwords are printed only on request. They never are in a URL or in the arguments of a program.
"""

import json
import os
import shlex
import socket
import sys
import threading
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from clusterctl.inventory import pages
from clusterctl.inventory.document import shown
from clusterctl.inventory.pages import Address
from clusterctl.run import context
from clusterctl.run.context import Options, Site
from clusterctl.ui.screen import Screen
from clusterctl.util.errors import InputError, Problem, WorkersFailed
from clusterctl.util.text import did_you_mean
from clusterctl.workspace import secrets

_SECONDS = 3.0  # for a page to accept a connection


@dataclass(frozen=True)
class Entry:
    """A page as it is printed: `problem` is why it cannot be opened from here; `password` is empty unless requested."""

    address: Address
    url: str
    problem: str = ""
    password: str = ""

    def as_dict(self) -> dict[str, object]:
        page = self.address.page
        found: dict[str, object] = {
            "name": page.name,
            "title": page.title,
            "host": self.address.host,
            "url": self.url,
            "user": self.address.user or None,
            "secret": page.secret or None,
            "problem": self.problem or None,
        }
        return found | ({"password": self.password} if self.password else {})


def open_pages(options: Options, name: str | None, tunnel: bool, browser: bool, passwords: bool) -> int:
    """Print the pages, or those with a name, and open the first of them. Raises InputError, WorkersFailed."""
    site = context.load(options)
    found = _chosen(pages.of_inventory(site.inventory), name, options)
    known = secrets.values(site.inventory.directory) if passwords else {}
    entries = [Entry(one, one.url, password=known.get(one.page.secret, "")) for one in found]
    screen = options.screen()
    if not tunnel:
        with screen.working("Looking for the pages"):
            entries = _tried(entries)
        _print(options, screen, entries)
        _open_first(screen, entries, browser and not options.json)
        return 0
    with _through_tunnels(site, entries, screen) as opened:
        _print(options, screen, opened)
        _open_first(screen, opened, browser and not options.json)
        screen.say("The tunnel is open; Ctrl-C closes it.")
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            screen.say("The tunnel is closed.")
    return 0


def _chosen(found: list[Address], name: str | None, options: Options) -> list[Address]:
    if not found:
        raise InputError([Problem(None, str(options.given), "has no group with pages", "add the group monitoring")])
    names = list(dict.fromkeys(one.page.name for one in found))
    if name is not None and name not in names:
        near = did_you_mean(name, names) or "available: " + ", ".join(names)
        raise InputError([Problem(None, "PAGE", f'no page "{shown(name)}"', near)])
    return [one for one in found if name in (None, one.page.name)]


def _tried(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries, with a problem where this machine cannot connect."""
    problems: dict[int, str] = {}

    def attempt(index: int, address: str, port: int) -> None:
        try:
            socket.create_connection((address, port), timeout=_SECONDS).close()
        except OSError as error:
            problems[index] = error.strerror or "no answer"

    threads = [
        threading.Thread(target=attempt, args=(index, one.address.address, one.address.port), daemon=True)
        for index, one in enumerate(entries)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [replace(one, problem=problems.get(index, "")) for index, one in enumerate(entries)]


@contextmanager
def _through_tunnels(site: Site, entries: Sequence[Entry], screen: Screen) -> Iterator[list[Entry]]:
    """Open a tunnel to each host with pages; yield the entries with their local addresses."""
    from clusterctl.nodes import remote  # its libraries are slow to load
    from clusterctl.nodes.session import ContactError
    from clusterctl.nodes.tunnel import LOCAL, Tunnel

    problems: dict[str, ContactError] = {}
    with ExitStack() as stack:
        stack.callback(remote.forget_gateways)
        tunnels: dict[str, Tunnel] = {}
        for name in dict.fromkeys(one.address.host for one in entries):
            try:
                made = Tunnel(site.inventory.host(name), site.access, screen.say)
            except ContactError as error:
                problems[name] = error
                continue
            tunnels[name] = stack.enter_context(made)
        if not tunnels:
            raise WorkersFailed("; ".join(f"{name}: {error}" for name, error in problems.items()))
        opened = []
        for one in entries:
            where = one.address
            if where.host in problems:
                opened.append(replace(one, problem=problems[where.host].found))
            else:
                port = tunnels[where.host].open(where.address, where.port)
                opened.append(replace(one, url=where.at(LOCAL, port)))
        yield opened


def _print(options: Options, screen: Screen, entries: Sequence[Entry]) -> None:
    if options.json:
        print(json.dumps({"exit_code": 0, "pages": [one.as_dict() for one in entries]}, indent=2), flush=True)
        return
    given = shlex.quote(str(options.given))
    for one in entries:
        page = one.address.page
        screen.say((page.title, "bold"), f" on {one.address.host}: {page.purpose}")
        screen.say(f"  {one.url}")
        if one.problem:
            screen.say((f"  cannot be opened from this machine: {one.problem}", "yellow"))
        if page.secret:
            how = one.password or f"clusterctl secret show {given} {page.secret}"
            screen.say(f"  user {one.address.user}, password: {how}")
    if any(one.problem for one in entries):
        screen.say(f"Through SSH: clusterctl open {given} --tunnel")
    trust = f"clusterctl secret authority {given} > {options.inventory.parent.resolve().name}.pem"
    screen.say(f"The certificates are of the cluster's authority. For the browser: {trust}")


def _open_first(screen: Screen, entries: Sequence[Entry], wanted: bool) -> None:
    """Open the first page that can be opened, on a machine with a display."""
    usable = [one for one in entries if not one.problem]
    if wanted and usable and has_display() and webbrowser.open(usable[0].url):
        screen.say(f"{usable[0].address.page.title} is open in the browser.")


def has_display() -> bool:
    """Return whether a browser can show a window; without one, Python would start a browser of the terminal."""
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
