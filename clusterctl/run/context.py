"""What a verb was asked for, and the cluster as its run sees it."""

import getpass
import shlex
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl.ansible import runner
from clusterctl.inventory.model import Host, Inventory
from clusterctl.nodes import route
from clusterctl.ui.screen import Screen
from clusterctl.util import paths
from clusterctl.util.errors import InputError, Problem
from clusterctl.util.redaction import Redactor
from clusterctl.workspace import home, secrets

if TYPE_CHECKING:
    from clusterctl.nodes.contact import Facts

_ADOPT = "slurm_head_adopt"  # the variable by which --adopt reaches the role


@dataclass(frozen=True)
class Options:
    """What the command line asks for; `given` is the inventory as it was typed, for the commands that we suggest."""

    verb: str
    given: Path
    limit: str | None = None
    check: bool = False
    """Ansible's check mode, in which nothing is changed."""
    diff: bool = False
    forks: int | None = None
    verbosity: int = 0
    accept_new_host_keys: bool = False
    skip_unreachable: bool | None = None  # None: the verb has no such choice
    adopt: bool = False
    new_head: bool = False
    become_password_file: Path | None = None
    ask_become_pass: bool = False
    json: bool = False
    yes: bool = False
    """Whether questions are answered with yes beforehand."""
    nodes: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    """The nodes that a verb names, and what else it alone is given, as they are typed."""
    planned: str = ""
    """The verb that `plan` plans."""
    subverb: str = ""
    """What `secret` does."""
    print_command: bool = False
    """Print the plain commands instead."""

    @property
    def inventory(self) -> Path:
        """The inventory's file; a directory stands for the `inventory.yaml` in it."""
        return home.inventory_file(self.given)

    @property
    def chosen(self) -> str | None:
        """The limit that was asked for; other verbs limit themselves."""
        return self.limit if (self.planned or self.verb) in ("bootstrap", "discover") else None

    def again(self) -> str:
        """Return the command that resumes where this one stopped: the same."""
        argv = [
            "clusterctl",
            self.verb,
            *filter(None, [self.subverb, self.planned]),
            str(self.given),
            *self.nodes,
            *self.flags,
        ]
        argv += ["--limit", self.chosen] if self.chosen else []
        argv += ["--skip-unreachable"] * bool(self.skip_unreachable)
        argv += ["--adopt"] * self.adopt
        argv += ["--new-head"] * self.new_head
        argv += ["--ask-become-pass"] * self.ask_become_pass
        argv += ["--become-password-file", str(self.become_password_file)] if self.become_password_file else []
        return shlex.join(argv)

    def screen(self) -> Screen:
        """Return where a person reads: stderr where stdout is for a program."""
        return Screen(sys.stderr if self.json or self.print_command else sys.stdout)


@dataclass(frozen=True)
class Site:
    """A cluster as one run sees it: its inventory, the hosts asked for, and those left out as unreachable."""

    options: Options
    inventory: Inventory
    hosts: tuple[Host, ...]
    access: route.Access
    skipped: tuple[str, ...] = ()
    playbook: str = ""
    """Its name where it is not the verb's."""
    facts: Mapping[str, "Facts"] = field(default_factory=dict)
    variables: Mapping[str, Any] = field(default_factory=dict)
    """What the playbook is asked to do."""

    @property
    def state(self) -> Path:
        return self.inventory.directory / home.STATE

    def command(self) -> runner.Command:
        """Return the Ansible command for these hosts."""
        names = tuple(host.name for host in self.hosts if host.name not in self.skipped)
        whole = len(names) == len(self.inventory.hosts)
        directory = self.inventory.directory
        return runner.Command(
            playbook=paths.content() / "playbooks" / f"{self.playbook or self.options.verb}.yml",
            inventory=self.inventory.path,
            user=self.login(),
            become_password_file=self.options.become_password_file,
            ask_become_pass=self.options.ask_become_pass,
            vault_password_file=secrets.vault_password_file(directory) if (directory / secrets.FILE).exists() else None,
            limit=() if whole else names,
            check=self.options.check,
            diff=self.options.diff,
            forks=self.options.forks,
            verbosity=self.options.verbosity,
            variables={**self.variables, **({_ADOPT: True} if self.options.adopt else {})},
        )

    def login(self) -> str:
        """Return who logs in where the inventory names nobody; InputError where ssh's configuration names several."""
        users = {route.of(host).user: host.name for host in self.hosts if not host.user}
        if len(users) > 1:
            named = ", ".join(f"{user} on {name}" for user, name in users.items())
            message = f"names several users ({named}), and Ansible takes one"
            raise InputError([Problem(None, "~/.ssh/config", message, "set ansible_user in the inventory")])
        return next(iter(users), "")

    def groups(self) -> dict[str, list[str]]:
        """Return the groups of the hosts that the run goes to."""
        here = [host for host in self.hosts if host.name not in self.skipped]
        groups: dict[str, list[str]] = {"all": [host.name for host in here]}
        for host in here:
            for group in host.groups:
                groups.setdefault(group, []).append(host.name)
        return groups

    def only(self, names: Collection[str], playbook: str = "") -> "Site":
        """Return the site with these hosts alone, and those that must know of them; for another playbook, if given."""
        hosts = tuple(host for host in self.hosts if host.name in {*names, *self.inventory.informed})
        return replace(self, hosts=hosts, playbook=playbook or self.playbook)

    def redactor(self, needed: bool = False) -> Redactor:
        """Return what takes the cluster's secrets out of text; InputError where they are `needed` and not there."""
        if needed or (self.inventory.directory / secrets.FILE).exists():
            return secrets.redactor(self.inventory.directory, self.access.sudo_password)
        return Redactor([self.access.sudo_password or ""])


def load(options: Options, inventory: Inventory | None = None) -> Site:
    """Read the cluster's directory, if it is not read yet, and the names in `--limit`.

    Raises InputError; nothing is contacted.
    """
    inventory = inventory or home.load(options.inventory)
    hosts = _select(inventory, options.limit, "NODE" if options.verb == "trust" else "--limit")
    return Site(options, inventory, hosts, route.Access(inventory.directory / home.KNOWN_HOSTS, given=options.given))


def authorise(site: Site) -> Site:
    """Return the site with the password for sudo, if the command line promises one; asks for it where it says so."""
    options = site.options
    password = None
    if options.become_password_file and options.ask_become_pass:
        raise InputError(
            [Problem(None, "--ask-become-pass", "cannot be given with --become-password-file", "choose one")]
        )
    if options.become_password_file:
        password = secrets.password_of(options.become_password_file)
    elif options.ask_become_pass:
        if not sys.stdin.isatty():
            hint = "give --become-password-file FILE"
            raise InputError([Problem(None, "--ask-become-pass", "there is no terminal to ask on", hint)])
        password = getpass.getpass("sudo password: ")
    return replace(site, access=replace(site.access, sudo_password=password))


def agree(screen: Screen, question: str, yes: bool, flag: str = "--yes") -> bool:
    """Ask a person; `yes` is the answer where it was given beforehand. InputError where there is nobody to ask."""
    if yes:
        return True
    require_terminal(flag)
    return screen.agrees(question)


def require_terminal(flag: str) -> None:
    """Raise InputError where there is nobody to ask, naming the flag that answers."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InputError([Problem(None, flag, "is needed where there is no terminal to ask on")])


def _select(inventory: Inventory, limit: str | None, key: str = "--limit") -> tuple[Host, ...]:
    """Return the hosts named in a limit, host or group names, separated by commas; all hosts where there is none.

    `key` is what the command line calls it.
    """
    if limit is None:
        return inventory.hosts
    wanted: set[str] = set()
    problems: list[Problem] = []
    for name in filter(None, (part.strip() for part in limit.split(","))):
        if members := inventory.in_group(name):
            wanted.update(host.name for host in members)
            continue
        try:
            wanted.add(inventory.host(name).name)
        except InputError as error:
            problems += [replace(problem, key=key) for problem in error.problems if isinstance(problem, Problem)]
    if problems:
        raise InputError(problems)
    if not wanted:
        raise InputError([Problem(None, key, "names no node")])
    return tuple(host for host in inventory.hosts if host.name in wanted)
