"""One run, from the inventory to the verdict: what `bootstrap`, `verify`, `validate` and others have in common."""

import contextlib
import getpass
import json
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl.ansible import runner
from clusterctl.ansible.outcome import Ledger
from clusterctl.ansible.run_directory import RunDirectory
from clusterctl.inventory.model import Host, Inventory
from clusterctl.nodes import route
from clusterctl.run import lock
from clusterctl.ui import report
from clusterctl.ui.progress import Progress
from clusterctl.ui.screen import Screen
from clusterctl.util import files, paths
from clusterctl.util.errors import ClusterctlError, InputError, Interrupted, PreflightError, Problem, WorkersFailed
from clusterctl.util.redaction import Redactor, throughout
from clusterctl.util.text import fold, plural
from clusterctl.workspace import hardware, home, secrets

if TYPE_CHECKING:
    from clusterctl.nodes.contact import Facts
    from clusterctl.nodes.remote import ContactError

# Without one of these nothing goes on: a failure there is exit 5, anywhere else exit 4.
_CRITICAL = "_head"
_REPLACE_NOTHING = ("verify", "backup")
# A first bootstrap of 500 nodes writes some 20 MB of events, log and summary.
MIN_STATE_MB = 50
_DRIVER = "nvidia_driver"  # the role
_ADOPT = "slurm_head_adopt"  # the variable by which --adopt reaches the role
# How long the others wait for a node in a whole run, in seconds; what is left to do there is done when they are done.
PATIENCE = 60.0


@dataclass(frozen=True)
class Options:
    """What the command line asks for; `given` is the inventory as it was typed, for the commands that we suggest."""

    verb: str
    given: Path
    limit: str | None = None
    check: bool = False
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
        """Return the command that goes on where this one stopped: the same."""
        argv = [
            "clusterctl",
            self.verb,
            *filter(None, [self.subverb, self.planned]),
            str(self.given),
            *self.nodes,
            *self.flags,
        ]
        argv += ["--limit", self.chosen] if self.chosen else []
        argv += ["--check"] * (self.check and not self.planned) + ["--skip-unreachable"] * bool(self.skip_unreachable)
        argv += ["--adopt"] * self.adopt
        argv += ["--new-head"] * self.new_head
        argv += ["--ask-become-pass"] * self.ask_become_pass
        argv += ["--become-password-file", str(self.become_password_file)] if self.become_password_file else []
        return shlex.join(argv)


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
        informed = {host.name for host in self.inventory.in_group("monitoring")} | self.critical()
        hosts = tuple(host for host in self.hosts if host.name in {*names, *informed})
        return replace(self, hosts=hosts, playbook=playbook or self.playbook)

    def critical(self) -> frozenset[str]:
        return frozenset(
            host.name for host in self.inventory.hosts if any(group.endswith(_CRITICAL) for group in host.groups)
        )


@dataclass(frozen=True)
class Work:
    """What a verb does besides its playbook, under the cluster's locks.

    `begin` comes after preflight and returns the site for the playbook. `finish` comes after a playbook that went well,
    and may play others: what it is given does so, and returns what that failed with. `conclude` shows what came of a
    run that went well in its own way, and returns the exit status. `told` is what they have for the summary.
    """

    begin: Callable[[Site, Screen], Site] = lambda site, screen: site
    finish: Callable[[Site, Ledger, Screen, Callable[[Site], ClusterctlError | None]], ClusterctlError | None] = (
        lambda site, ledger, screen, play: None
    )
    conclude: Callable[[Ledger, Screen], int] | None = None
    told: dict[str, Any] = field(default_factory=dict)
    plays: bool = True
    """Whether the site that `begin` returns is played before `finish`, which else plays all, and waits for each."""
    rest: str = ""
    """The playbook for nodes left behind, where the verb's own would do again what it has done to the head."""
    goes_on: Callable[[], str] = lambda: ""
    """The verb that continues after an error, if that is no longer this one."""


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


def print_command(site: Site, *more: Site, first: Sequence[str] = (), after: Sequence[str] = ()) -> int:
    """Print the plain command of each site, and on stderr what is to be done by hand `first`, and what `after` it.

    To the former belongs what the cluster's directory lacks. Contacts nobody; returns the exit status.
    """
    for title, steps in (("Before it", [*first, *_lacking(site)]), ("After it", after)):
        lines = [line.rstrip() for step in steps for line in f"- {step.rstrip()}".replace("\n", "\n    ").splitlines()]
        if lines:
            print(f"{title}:", *(f"  {line}" for line in lines), sep="\n", file=sys.stderr)
    for one in (site, *more):
        print(one.command())
    return 0


def _lacking(site: Site) -> list[str]:
    directory, hosts = site.inventory.directory, site.inventory.hosts
    lacking = [host.name for host in hosts if not hardware.path_of(directory, host.name).exists()]
    if not lacking and all((directory / name).exists() for name in (home.KNOWN_HOSTS, secrets.FILE)):
        return []
    argv = ["clusterctl", "discover", str(site.options.given)]
    argv += ["--limit", ",".join(lacking)] if 0 < len(lacking) < len(hosts) else []
    return [
        f"{fold(lacking) or 'the cluster'}: host keys, hardware records and secrets are not all there yet: "
        f"{shlex.join(argv)}"
    ]


def trust(options: Options) -> int:
    """Put the host keys that the named nodes show now in place of those on record, once somebody agrees."""
    from clusterctl.nodes import trust as first_contact

    site = load(options)
    screen = Screen(sys.stderr if options.json else sys.stdout)
    head_has_secrets = site.inventory.head in site.hosts and (site.inventory.directory / secrets.FILE).exists()
    if head_has_secrets:
        secrets.vault_password_file(site.inventory.directory)  # by it the head is known; without it nothing is recorded
    with locked(site, screen), _writing(site.inventory.directory):
        old = {host.name: first_contact.recorded(site.access, route.of(host).name) for host in site.hosts}
        new = first_contact.renew(
            site.inventory, site.hosts, site.access, options.accept_new_host_keys, _ask(screen, old)
        )
        if head_has_secrets:
            # Whoever has just agreed to the head's new host key is not asked about the head once more.
            if site.inventory.head.name not in {key.node for key in new}:
                _same_head(site, screen)
            _keep_head(site, screen)
    for key in new:
        screen.say((f"  {key.node}", "bold"), f"  {key.type}  {key.fingerprint}  recorded")
    if not new:
        screen.say("The nodes show the keys that are on record.")
    return 0


def run(options: Options, inventory: Inventory | None = None, work: Work = Work()) -> int:
    """Do a whole run and return its exit code; raises ClusterctlError where it ends before Ansible begins.

    `inventory` is what the file is about to say, where `work` writes it.
    """
    site = load(options, inventory)
    if options.print_command:
        return print_command(site)
    screen = Screen(sys.stderr if options.json else sys.stdout)
    site = authorise(site)
    screen.say(
        (site.inventory.cluster_name, "bold"),
        f"  {options.verb}{' --check' * (options.check and not options.planned)}",
        cut=True,
    )
    with contextlib.ExitStack() as stack:
        descriptor = stack.enter_context(locked(site, screen))
        directory = site.inventory.directory
        if options.verb not in _REPLACE_NOTHING:
            secrets.ensure(directory, site.inventory.cluster_name)
        began = time.monotonic()
        try:
            with _before_any_change():
                meet(site, screen)
                _same_head(site, screen)
                on_head = stack.enter_context(_locked_head(site))
                site = prepare(site, screen, on_head.missing)
                _keep_head(site, screen)
                _require_lock(site, on_head, screen)
            site = work.begin(site, screen)
        except ClusterctlError as refusal:
            _keep_refusal(site, refusal, time.monotonic() - began)
            raise
        redact = _redactor(site, needed=True).redact  # of secrets that `begin` made, too
        with _writing(site.state):
            kept = RunDirectory.create(site.state, options.verb)
        ledger = Ledger()
        trouble: list[OSError] = []
        shown: set[str] = set()  # nodes that were played again for their GPUs

        def played(site: Site, patience: float | None = PATIENCE) -> ClusterctlError | None:
            patience = None if options.check or not work.plays else patience
            error, bad = play(site, kept, ledger, descriptor, redact, screen, on_head, patience, more=not work.plays)
            trouble.extend([bad] if bad else [])
            going_on = error is None or isinstance(error, WorkersFailed)
            if going_on and (found := set(_found_gpus(site, ledger)) - shown):
                shown.update(found)
                screen.say((f"  {fold(ledger.ordered(found))}", "bold"), ", whose GPUs have a driver now:")
                # What failed there for want of the record is judged by this; the ledger still has who else failed.
                return played(site.only(found | ledger.behind()), patience=None)
            if (behind := ledger.behind()) and going_on:
                screen.say((f"  {fold(ledger.ordered(behind))}", "bold"), ", which the others did not wait for:")
                return played(site.only(behind, work.rest), patience=None)
            return error

        try:
            error = (played(site) if work.plays else None) or work.finish(site, ledger, screen, played)
        except ClusterctlError as raised:
            error = raised
        except KeyboardInterrupt:
            error = Interrupted("Interrupted between two playbooks; nothing is under way any more.")
        # What a verb does to the head alone is done then.
        verb = work.goes_on() or (work.rest if isinstance(error, WorkersFailed) else "")
        again = (replace(options, verb=verb, subverb="", flags=()) if verb else options).again()
        summary = _summary(site, kept, ledger, error, again)
        if work.conclude and error is None:
            summary["exit_code"] = work.conclude(ledger, screen)
        summary = throughout(summary | work.told, redact)
        with contextlib.suppress(OSError):  # a full disk is told below, the run's outcome counts
            files.write_atomically(kept.summary, (json.dumps(summary, indent=2) + "\n").encode())
    with contextlib.suppress(OSError):  # nobody listens any more; the summary is on disk
        if options.json:
            print(json.dumps(summary), flush=True)
        if error or not work.conclude:
            _page(site, kept, ledger, error, next(iter(trouble), None), screen, again)
    return int(summary["exit_code"])


@contextlib.contextmanager
def locked(site: Site, screen: Screen) -> Iterator[int]:
    with contextlib.ExitStack() as stack:
        with _writing(site.state):
            held = stack.enter_context(lock.hold(site.state, site.options.verb, say=screen.say))
            free = shutil.disk_usage(site.state).free >> 20
        if free < MIN_STATE_MB:
            found = f"{free} MB free there, expected at least {MIN_STATE_MB} MB"
            raise InputError([Problem(None, str(site.state), found, "a run writes its log there")])
        yield held


def _same_head(site: Site, screen: Screen) -> None:
    """See that the head is the one that last got the cluster's secrets, or ask.

    Raises Interrupted for a no, and InputError where there is nobody to ask.
    `--accept-new-host-keys` is for nodes never seen. It is an answer for the head only where `trust` names it.
    """
    from clusterctl.nodes import known_head

    options, directory, name = site.options, site.inventory.directory, site.inventory.head.name
    before, now = known_head.load(directory), known_head.of(site.inventory, site.access)
    if before is None:
        if now.keys:
            found = f"{now.way}, host key {', '.join(now.keys)}"
            screen.say(f"  {name} gets the cluster's secrets from this machine for the first time: {found}")
        return
    if not (changes := list(known_head.changes(before, now))):
        return
    if options.new_head or (options.verb == "trust" and options.accept_new_host_keys):
        for change in changes:
            screen.say((f"  {name}", "bold"), f"  {change}")
        return
    if options.json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        trust = shlex.join(["clusterctl", "trust", str(options.given), name])
        hint = f"if that is right: {trust}, on a terminal or with --accept-new-host-keys"
        raise InputError(
            [
                Problem(None, name, f"not the head that this machine gave the cluster's secrets; {change}", hint)
                for change in changes
            ]
        )
    screen.say((f"  {name}", "bold"), " is not the head that this machine last gave the cluster's secrets:")
    for change in changes:
        screen.say(f"    {change}")
    if not screen.agrees("Is that right, and is this one to have them?"):
        raise Interrupted(f"{name} was given nothing, and no node was changed.")


def _keep_head(site: Site, screen: Screen) -> None:
    from clusterctl.nodes import known_head

    head = known_head.of(site.inventory, site.access)
    try:
        if head.keys and head != known_head.load(site.inventory.directory):
            known_head.save(site.inventory.directory, head)
    except OSError as error:
        screen.say(f"That {head.name} is the head could not be kept on this machine: {error.strerror}")


def _locked_head(site: Site) -> contextlib.AbstractContextManager[Any]:
    from clusterctl.run import headlock

    return headlock.hold(site.inventory.head, site.access, lock.this_run(site.options.verb), site.state)


def _require_lock(site: Site, on_head: Any, screen: Screen) -> None:
    """Let no run go to a head that cannot keep others out; one that leaves the head alone may do without."""
    from clusterctl.util.errors import Finding

    head, error = site.inventory.head, on_head.missing
    if error and head in site.hosts:
        raise PreflightError([Finding(head.name, "lock", error.found, error.hint)])
    if error:
        screen.say(f"{head.name} does not keep other runs out: {error.found}")


@contextlib.contextmanager
def _before_any_change() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted("Interrupted before any node was changed.") from None


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        at = str(error.filename or path)
        raise InputError([Problem(None, at, f"cannot be written: {error.strerror}")]) from None


def meet(site: Site, screen: Screen) -> None:
    """Record the host keys of nodes never seen, if the operator agrees.

    Raises Interrupted for a no, and PreflightError for wrong keys.
    """
    from clusterctl.nodes import trust

    options = site.options
    chosen = replace(site.inventory, hosts=site.hosts)
    ask = None if options.json else _ask(screen)
    with screen.working(f"Checking {plural(len(site.hosts), 'node')}"):
        if not ask or options.accept_new_host_keys:
            trust.ensure(chosen, site.access, accept=options.accept_new_host_keys)
    if ask and not options.accept_new_host_keys:
        trust.ensure(chosen, site.access, ask=ask)


def prepare(site: Site, screen: Screen, on_head: "ContactError | None" = None) -> Site:
    """Check every host before anything is changed, and record the hardware of those that are new.

    `on_head` is why the head gave no lock: a password that it has refused is not tried there once more.
    Raises PreflightError with all problems of all hosts; with `skip_unreachable` goes on without who cannot be reached.
    """
    from clusterctl.nodes import remote
    from clusterctl.run import preflight

    options, began = site.options, time.monotonic()
    redact = _redactor(site).redact
    refused = {site.inventory.head.name: on_head} if on_head and on_head.failure is remote.Failure.SUDO else None

    def redacted(findings: Iterable[Any]) -> tuple[Any, ...]:
        return tuple(replace(one, found=redact(one.found), hint=redact(one.hint)) for one in findings)

    with screen.working(f"Checking {plural(len(site.hosts), 'node')}"):
        adopt = None if options.verb in _REPLACE_NOTHING else options.adopt
        new_head = None if options.verb in (*_REPLACE_NOTHING, "restore") else options.new_head
        try:
            contact = preflight.preflight(
                site.inventory, site.access, options.skip_unreachable, site.hosts, adopt, refused, new_head
            )
        except PreflightError as error:
            raise PreflightError(redacted(error.problems), error.hint) from None
        contact = replace(contact, warnings=redacted(contact.warnings), skipped=redacted(contact.skipped))
        with _writing(site.inventory.directory):
            renewed = options.nodes if options.verb == "replace-node" else ()
            recorded = preflight.record(site.inventory, contact, renewed)
    remote.forget_gateways()
    report.checked(screen, contact, len(recorded), time.monotonic() - began, renewed)
    skipped = tuple(dict.fromkeys(finding.node for finding in contact.skipped))
    return replace(site, skipped=skipped, facts=contact.facts)


def _redactor(site: Site, needed: bool = False) -> Redactor:
    """Return what takes the cluster's secrets out of text; InputError where they are `needed` and not there."""
    if needed or (site.inventory.directory / secrets.FILE).exists():
        return secrets.redactor(site.inventory.directory, site.access.sudo_password)
    return Redactor([site.access.sudo_password or ""])


def _ask(screen: Screen, recorded: Mapping[str, Sequence[str]] | None = None) -> Any:
    """Return what asks a person about host keys; None without a terminal. `recorded` are those to be replaced."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None

    def ask(keys: Sequence[Any]) -> bool:
        report.host_keys(screen, keys, recorded or {})
        screen.say(
            "Compare them with what the nodes' consoles show: ssh-keygen -l -f /etc/ssh/ssh_host_ed25519_key.pub"
        )
        if not screen.agrees("Are they right, and to be recorded?"):
            raise Interrupted("No host key was recorded, and no node was changed.")
        return True

    return ask


def _found_gpus(site: Site, ledger: Ledger) -> list[str]:
    """Record the GPUs of nodes that had none before this run gave them a driver; returns the nodes to play again.

    Slurm and the metrics know GPUs by the record alone, and have to hear of it. How GPUs were divided in this run they
    know already; it is recorded for the runs that leave the node out. Role verify leaves a node to the second time
    whose driver came in this run, so one that shows no GPU with it is played again too.
    """

    def given(name: str) -> bool:
        changes = ledger.hosts[name].changes if name in ledger.hosts else ()
        return any(
            (role == _DRIVER and change.kind == "kernel module") or change.action == "partitioned"
            for role, change in changes
        )

    hosts = [host for host in site.hosts if given(host.name)]
    if not hosts or site.options.check:
        return []
    from clusterctl.nodes import contact, remote
    from clusterctl.run import preflight

    unproven = {
        host.name
        for host in hosts
        if host.name not in ledger.lost()
        and not hardware.load(hardware.path_of(site.inventory.directory, host.name)).gpus
    }
    answers = remote.each(hosts, lambda host: contact.ask(host, site.access, {}))
    facts = {name: answer.facts for name, answer in answers.items() if answer.facts}
    return sorted(unproven | {path.stem for path in preflight.record(site.inventory, contact.Contact(facts))})


def play(
    site: Site,
    kept: RunDirectory,
    ledger: Ledger,
    held: int,
    redact: Any,
    screen: Screen,
    on_head: Any = None,
    patience: float | None = None,
    more: bool = False,
) -> tuple[ClusterctlError | None, OSError | None]:
    """Run Ansible and show it; returns what it failed with, and what kept us from writing about it.

    `more`: see Ledger.judge.
    """
    progress = Progress(screen, ledger, verbose=site.options.verbosity > 0, diff=site.options.diff)
    critical = site.critical()
    ansible = runner.Runner(
        site.command(),
        kept,
        critical=critical,
        patience=patience,
        lock=held,
        become_password=site.access.sudo_password,
        redact=redact,
        notify=progress.stopping,
    )
    ledger.ended = False  # or a playbook that never begins would be judged by the end of the one before it
    with progress.running():
        for item in ansible.watch():
            if on_head and on_head.lost and not ansible.stopped:
                screen.say(f"Stopping, for another run has begun: {on_head.lost}")
                ansible.stop()
            try:
                progress.show(item)
            except OSError:  # the terminal or the reader of our output is gone: come to an end in order
                screen.mute()
                ansible.stop()
    ledger.stopped |= ansible.stopped
    if ansible.trouble:
        ledger.why = f"stopped, for {_full(ansible.trouble, kept)} takes no more: {ansible.trouble.strerror}"
    return ledger.judge(site.groups(), critical, site.skipped, more), ansible.trouble


def _asked(site: Site) -> dict[str, Any]:
    """Return what tells one run from another by what it was asked for."""
    options = site.options
    return {
        "verb": options.verb,
        "cluster": site.inventory.cluster_name,
        "check": options.check,
        "limit": options.chosen,
        "planned": options.planned or None,
        "subverb": options.subverb or None,
        "nodes": list(options.nodes),
    }


def _keep_refusal(site: Site, error: ClusterctlError, seconds: float) -> None:
    """Keep that a run ended before Ansible began: it is asked for later, as the other runs are.

    Nothing of it is worth a second error: a disk that is full, secrets that are not there yet.
    """
    with contextlib.suppress(OSError, ClusterctlError):
        redact = secrets.redactor(site.inventory.directory, site.access.sudo_password).redact
        kept = RunDirectory.create(site.state, site.options.verb)
        problems = [str(problem) for problem in getattr(error, "problems", ())]
        summary = {**_asked(site), "exit_code": error.exit_code, "error": str(error), "problems": problems}
        summary = throughout({**summary, "seconds": round(seconds, 1), "log": None}, redact)
        files.write_atomically(kept.summary, (json.dumps(summary, indent=2) + "\n").encode())


def _summary(
    site: Site, kept: RunDirectory, ledger: Ledger, error: ClusterctlError | None, again: str
) -> dict[str, Any]:
    return {
        **_asked(site),
        "exit_code": error.exit_code if error else 0,
        "error": str(error) if error else None,
        "skipped": list(site.skipped),
        **ledger.summary(),
        "open": [
            {"what": what, "url": url, "login": login}
            for what, url, login in report.addresses(site.inventory, site.options.given)
        ],
        "log": str(kept.log.resolve()),
        "next": again if error else None,
    }


def _near(path: Path) -> str:
    """Return a path as short as it can be typed from here.

    A plan is played on a copy of the cluster's directory, whose state is a link to the real one.
    """
    with contextlib.suppress(OSError, ValueError):
        path = path.resolve()
        return str(path.relative_to(Path.cwd()))
    return str(path)


def _full(trouble: OSError, kept: RunDirectory) -> str:
    """Return the path that takes no more."""
    return _near(Path(trouble.filename or kept.path))


def _page(
    site: Site,
    kept: RunDirectory,
    ledger: Ledger,
    error: ClusterctlError | None,
    trouble: OSError | None,
    screen: Screen,
    again: str,
) -> None:
    options, page = site.options, report.Page(screen)
    if error is None:
        page.done(ledger, site.inventory, options.verb, options.given, options.check)
        page.field("Log", _near(kept.log))
        follow = "" if options.verb in ("verify", "backup") else "status"
        command = ["clusterctl", follow, str(options.given)] if follow else []
        if options.check:
            command = shlex.split(replace(options, check=False).again())
        page.field("Next", shlex.join(command), "bold") if command else None
        return
    page.failed(error, ledger)
    if trouble:
        page.field("Trouble", f"{_full(trouble, kept)}: {trouble.strerror}; the log is incomplete", "red")
    if type(error) is ClusterctlError:
        page.tail(kept.log)
    page.field("Log", _near(kept.log))
    page.field("Go on", again, "bold")
