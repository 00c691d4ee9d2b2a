"""The phases before a run changes anything: its locks, host keys, and the checks of all nodes."""

import shlex
import shutil
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from clusterctl.run import context, lock
from clusterctl.run.context import Site
from clusterctl.run.phases import Phase, Run, Step
from clusterctl.ui import report
from clusterctl.ui.screen import Screen
from clusterctl.util import files
from clusterctl.util.errors import Finding, InputError, Interrupted, PreflightError, Problem
from clusterctl.util.text import fold, plural
from clusterctl.workspace import hardware, home, secrets

# A first bootstrap of 500 nodes writes some 20 MB of events, log and summary.
MIN_STATE_MB = 50


class _Entry(Phase):
    """A phase that changes no node, and that a plan needs as well."""

    changes_nodes = announced = False

    def plan(self, run: Run) -> None:
        self.run(run)


class Authorise(_Entry):
    """Read or ask for the password for sudo, where the command line promises one."""

    title = "Ask for the sudo password"

    def run(self, run: Run) -> None:
        run.site = context.authorise(run.site)


class LockDirectory(_Entry):
    """Keep other runs out of the cluster's directory; InputError where it cannot be written."""

    title = "Lock the cluster's directory"

    def run(self, run: Run) -> None:
        state = run.site.state
        with files.writing(state):
            held = run.stack.enter_context(lock.hold(state, run.options.verb, say=run.screen.say))
            free = shutil.disk_usage(state).free >> 20
        if free < MIN_STATE_MB:
            found = f"{free} MB free there, expected at least {MIN_STATE_MB} MB"
            raise InputError([Problem(None, str(state), found, "a run writes its log there")])
        run.lock = held


class EnsureSecrets(_Entry):
    """Generate the secrets that the cluster does not have yet."""

    title = "Generate missing secrets"

    def run(self, run: Run) -> None:
        secrets.ensure(run.site.inventory.directory, run.site.inventory.cluster_name)


class CheckHostKeys(_Entry):
    """Record the host keys of nodes never seen, if the operator agrees.

    Interrupted for a no, PreflightError for wrong keys.
    """

    title = "Check SSH host keys"

    def run(self, run: Run) -> None:
        from clusterctl.nodes import trust

        site, options = run.site, run.options
        chosen = replace(site.inventory, hosts=site.hosts)
        ask = None if options.json else ask_about_keys(run.screen)
        with run.screen.working(f"Checking {plural(len(site.hosts), 'node')}"):
            if not ask or options.accept_new_host_keys:
                trust.ensure(chosen, site.access, accept=options.accept_new_host_keys)
        if ask and not options.accept_new_host_keys:
            trust.ensure(chosen, site.access, ask=ask)


class RenewHostKeys(_Entry):
    """Put the host keys that nodes show now in place of those on record, once the operator agrees."""

    title = "Record new SSH host keys"

    def __init__(self, names: Collection[str] = ()) -> None:
        self.names = names
        """Hosts of the run; all where none is named."""

    def run(self, run: Run) -> None:
        from clusterctl.nodes import route, trust

        site, screen = run.site, run.screen
        hosts = [host for host in site.hosts if not self.names or host.name in self.names]
        head_has_secrets = site.inventory.head in hosts and (site.inventory.directory / secrets.FILE).exists()
        if head_has_secrets:
            # By it the head is known; without it nothing is recorded.
            secrets.vault_password_file(site.inventory.directory)
        with files.writing(site.inventory.directory):
            old = {host.name: trust.recorded(site.access, route.of(host).name) for host in hosts}
            accept = run.options.accept_new_host_keys
            new = trust.renew(site.inventory, hosts, site.access, accept, ask_about_keys(screen, old))
            if head_has_secrets:
                # Who has just agreed to the head's new host key is not asked about the head once more.
                if site.inventory.head.name not in {key.node for key in new}:
                    require_same_head(site, screen)
                keep_head(site, screen)
        for key in new:
            screen.say((f"  {key.node}", "bold"), f"  {key.type}  {key.fingerprint}  recorded")
        if not new:
            screen.say("The nodes show the keys that are on record.")

    def describe(self, run: Run) -> Iterator[Step]:
        yield shlex.join(["clusterctl", "trust", str(run.options.given), *self.names])


class ConfirmHead(_Entry):
    """See that the head is the one that last got the cluster's secrets, or ask."""

    title = "Check that the head is the same"

    def run(self, run: Run) -> None:
        require_same_head(run.site, run.screen)


class LockHead(_Entry):
    """Keep runs from other machines out. Locked while one has the lock."""

    title = "Lock the cluster on its head"

    def run(self, run: Run) -> None:
        from clusterctl.run import headlock

        site = run.site
        me = lock.this_run(run.options.verb)
        run.head_lock = run.stack.enter_context(headlock.hold(site.inventory.head, site.access, me, site.state))


class Preflight(_Entry):
    """Check every host before anything is changed, and record the hardware of those that are new.

    PreflightError has all problems of all hosts. With `skip_unreachable` those that cannot be reached are left out.
    """

    title = "Check the nodes"

    def __init__(self, renewed: Collection[str] = (), *, replaces: bool = True, new_head: bool = True) -> None:
        self.renewed = renewed
        """Nodes whose hardware is recorded again."""
        self.replaces = replaces
        """Whether software on the nodes, which clusterctl may not manage, is replaced."""
        self.new_head = replaces and new_head
        """Whether a head that has lost its queue begins with an empty one."""

    def run(self, run: Run) -> None:
        from clusterctl.nodes import remote
        from clusterctl.run import preflight

        site, began = run.site, time.monotonic()
        with run.screen.working(f"Checking {plural(len(site.hosts), 'node')}"):
            contact = self._contact(run)
            with files.writing(site.inventory.directory):
                recorded = preflight.record(site.inventory, contact, self.renewed)
        remote.forget_gateways()
        report.checked(run.screen, contact, len(recorded), time.monotonic() - began, self.renewed)
        skipped = tuple(dict.fromkeys(finding.node for finding in contact.skipped))
        run.site = replace(site, skipped=skipped, facts=contact.facts)
        if run.head_lock:
            keep_head(run.site, run.screen)
            _require_lock(run)

    def _contact(self, run: Run) -> Any:
        from clusterctl.nodes.session import Failure
        from clusterctl.run import preflight

        site, options = run.site, run.options
        redact = site.redactor().redact
        missing = run.head_lock.missing if run.head_lock else None
        # A password that the head has refused is not tried there once more.
        refused = {site.inventory.head.name: missing} if missing and missing.failure is Failure.SUDO else None
        adopt, new_head = options.adopt if self.replaces else None, options.new_head if self.new_head else None

        def redacted(findings: Iterable[Any]) -> tuple[Any, ...]:
            return tuple(replace(one, found=redact(one.found), hint=redact(one.hint)) for one in findings)

        try:
            contact = preflight.preflight(
                site.inventory, site.access, options.skip_unreachable, site.hosts, adopt, refused, new_head
            )
        except PreflightError as error:
            raise PreflightError(redacted(error.problems), error.hint) from None
        return replace(contact, warnings=redacted(contact.warnings), skipped=redacted(contact.skipped))

    def describe(self, run: Run) -> Iterator[Step]:
        directory, hosts = run.site.inventory.directory, run.site.inventory.hosts
        lacking = [host.name for host in hosts if not hardware.path_of(directory, host.name).exists()]
        if not lacking and all((directory / name).exists() for name in (home.KNOWN_HOSTS, secrets.FILE)):
            return
        argv = ["clusterctl", "discover", str(run.options.given)]
        argv += ["--limit", ",".join(lacking)] if 0 < len(lacking) < len(hosts) else []
        missing = "host keys, hardware records and secrets are not all there yet"
        yield f"{fold(lacking) or 'the cluster'}: {missing}: {shlex.join(argv)}"


CONTACT = (Authorise(), LockDirectory(), EnsureSecrets(), CheckHostKeys(), ConfirmHead(), LockHead())
"""What comes before the checks of the nodes."""
ENTRY = (*CONTACT, Preflight())
"""How runs begin that build or change the cluster."""
ENTRY_OF_A_TEST = (*(phase for phase in CONTACT if not isinstance(phase, EnsureSecrets)), Preflight(replaces=False))
"""How runs begin that replace nothing."""


def require_same_head(site: Site, screen: Screen) -> None:
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


def keep_head(site: Site, screen: Screen) -> None:
    """Keep which head has the cluster's secrets."""
    from clusterctl.nodes import known_head

    head = known_head.of(site.inventory, site.access)
    try:
        if head.keys and head != known_head.load(site.inventory.directory):
            known_head.save(site.inventory.directory, head)
    except OSError as error:
        screen.say(f"That {head.name} is the head could not be kept on this machine: {error.strerror}")


def _require_lock(run: Run) -> None:
    """Let no run go to a head that cannot keep others out; one that leaves the head alone may do without."""
    head, error = run.site.inventory.head, run.head_lock.missing if run.head_lock else None
    if error and head in run.site.hosts:
        raise PreflightError([Finding(head.name, "lock", error.found, error.hint)])
    if error:
        run.screen.say(f"{head.name} does not keep other runs out: {error.found}")


def ask_about_keys(screen: Screen, recorded: Mapping[str, Sequence[str]] | None = None) -> Any:
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
