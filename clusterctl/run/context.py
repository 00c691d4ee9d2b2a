"""The options of a verb, and the cluster as a run sees it."""

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

_ADOPT = "slurm_head_adopt"  # the role's variable for --adopt
BASE_OF_HEADS = "head_base"
"""The tag of role base where only the heads play it. Each other tag of a role is its name."""


@dataclass(frozen=True)
class Options:
    """The options of the command line. `given` is the inventory as typed, for the commands that hints suggest."""

    verb: str
    given: Path
    limit: str | None = None
    check: bool = False
    """Use Ansible's check mode, which changes nothing."""
    diff: bool = False
    forks: int | None = None
    verbosity: int = 0
    accept_new_host_keys: bool = False
    skip_unreachable: bool | None = None  # None: the verb has no such option
    adopt: bool = False
    new_head: bool = False
    become_password_file: Path | None = None
    ask_become_pass: bool = False
    json: bool = False
    yes: bool = False
    """Whether to answer all questions with yes."""
    nodes: tuple[str, ...] = ()
    """The nodes in the arguments of the verb."""
    flags: tuple[str, ...] = ()
    """The flags that only this verb has, as typed."""
    planned: str = ""
    """The verb that `plan` plans."""
    subverb: str = ""
    """The verb of `secret`, such as `rotate`."""
    print_command: bool = False
    """Print the plain commands instead of running them."""

    @property
    def inventory(self) -> Path:
        """The inventory's file; in a directory it is `inventory.yaml`."""
        return home.inventory_file(self.given)

    @property
    def requested_limit(self) -> str | None:
        """The value of --limit; verbs without that option set `limit` themselves."""
        return self.limit if (self.planned or self.verb) in ("bootstrap", "discover") else None

    def again(self) -> str:
        """Return the command that resumes the run: the same command again."""
        argv = [
            "clusterctl",
            self.verb,
            *filter(None, [self.subverb, self.planned]),
            str(self.given),
            *self.nodes,
            *self.flags,
        ]
        argv += ["--limit", self.requested_limit] if self.requested_limit else []
        argv += ["--skip-unreachable"] * bool(self.skip_unreachable)
        argv += ["--adopt"] * self.adopt
        argv += ["--new-head"] * self.new_head
        argv += ["--ask-become-pass"] * self.ask_become_pass
        argv += ["--become-password-file", str(self.become_password_file)] if self.become_password_file else []
        return shlex.join(argv)

    def screen(self) -> Screen:
        """Return the screen for text: stderr if stdout is for a program, otherwise stdout."""
        return Screen(sys.stderr if self.json or self.print_command else sys.stdout)


@dataclass(frozen=True)
class Site:
    """A cluster as one run sees it: its inventory, the requested hosts, and the skipped hosts."""

    options: Options
    inventory: Inventory
    hosts: tuple[Host, ...]
    access: route.Access
    skipped: tuple[str, ...] = ()
    playbook: str = ""
    """The name of the playbook, if it differs from the verb."""
    facts: Mapping[str, "Facts"] = field(default_factory=dict)
    variables: Mapping[str, Any] = field(default_factory=dict)
    """Extra variables of the playbook."""
    roles: frozenset[str] | None = None
    """The roles of the playbook to play, besides its tests, by their tags; None for all."""

    @property
    def state(self) -> Path:
        return self.inventory.directory / home.STATE

    def command(self) -> runner.Command:
        """Return the Ansible command for these hosts."""
        names = tuple(host.name for host in self.hosts if host.name not in self.skipped)
        if not names:  # Ansible would take an empty limit for all hosts
            raise InputError([Problem(None, "--limit", "no node is left to run on")])
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
            tags=("facts", *sorted(self.roles), "verify") if self.roles is not None else (),
            variables={**self.variables, **({_ADOPT: True} if self.options.adopt else {})},
        )

    def login(self) -> str:
        """Return the login user of hosts without `ansible_user`.

        Raises InputError if ssh's configuration has several users for them: Ansible's command line accepts one.
        """
        users = {route.of(host).user: host.name for host in self.hosts if not host.user}
        if len(users) > 1:
            listed = ", ".join(f"{user} on {name}" for user, name in users.items())
            message = f"got several users ({listed}), expected one user for all hosts"
            raise InputError([Problem(None, "~/.ssh/config", message, "set ansible_user in the inventory")])
        return next(iter(users), "")

    def groups(self) -> dict[str, list[str]]:
        """Return the groups of the hosts of the run, without skipped hosts."""
        hosts = [host for host in self.hosts if host.name not in self.skipped]
        groups: dict[str, list[str]] = {"all": [host.name for host in hosts]}
        for host in hosts:
            for group in host.groups:
                groups.setdefault(group, []).append(host.name)
        return groups

    def only(self, names: Collection[str], playbook: str = "") -> "Site":
        """Return the site with only these hosts and the informed hosts, for another playbook if given."""
        chosen = {*names, *self.inventory.informed}
        hosts = tuple(host for host in self.hosts if host.name in chosen)
        return replace(self, hosts=hosts, playbook=playbook or self.playbook)

    def redactor(self, needed: bool = False) -> Redactor:
        """Return a redactor for the cluster's secrets. Raises InputError if they are `needed` and do not exist."""
        if needed or (self.inventory.directory / secrets.FILE).exists():
            return secrets.redactor(self.inventory.directory, self.access.sudo_password)
        return Redactor([self.access.sudo_password or ""])


def load(options: Options, inventory: Inventory | None = None) -> Site:
    """Read the cluster's directory, unless `inventory` is given, and the names in `--limit`.

    Contacts no node. Raises InputError.
    """
    inventory = inventory or home.load(options.inventory)
    hosts = _select(inventory, options.limit, "NODE" if options.verb == "trust" else "--limit")
    return Site(options, inventory, hosts, route.Access(inventory.directory / home.KNOWN_HOSTS, given=options.given))


def authorise(site: Site) -> Site:
    """Return the site with the sudo password: read it from the file or ask for it, as the options say."""
    options = site.options
    password = None
    if options.become_password_file and options.ask_become_pass:
        raise InputError(
            [Problem(None, "--ask-become-pass", "cannot be used with --become-password-file", "choose one")]
        )
    if options.become_password_file:
        password = secrets.password_of(options.become_password_file)
    elif options.ask_become_pass:
        if not sys.stdin.isatty():
            hint = "use --become-password-file FILE"
            raise InputError([Problem(None, "--ask-become-pass", "there is no terminal to ask on", hint)])
        password = getpass.getpass("sudo password: ")
    return replace(site, access=replace(site.access, sudo_password=password))


def agree(screen: Screen, question: str, yes: bool, flag: str = "--yes") -> bool:
    """Ask the operator, or return true with `yes`. Raises InputError without a terminal."""
    if yes:
        return True
    require_terminal(flag)
    return screen.agrees(question)


def require_terminal(flag: str) -> None:
    """Raise InputError without a terminal; the message has the flag that answers the question."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InputError([Problem(None, flag, "is required without a terminal")])


def _select(inventory: Inventory, limit: str | None, key: str = "--limit") -> tuple[Host, ...]:
    """Return the hosts of a limit: names of hosts or groups, separated by commas. Without a limit, return all hosts.

    `key` is the name of the argument on the command line.
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
