"""The phases before a run changes anything: locks, host keys, and checks of all nodes."""

import shlex
import shutil
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from clusterctl.inventory import alerting, directory, metrics, slurm_heads, slurm_power
from clusterctl.run import context, lock, sleeping
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
    """A phase that changes no node and also runs in a plan."""

    changes_nodes = announced = False

    def plan(self, run: Run) -> None:
        self.run(run)


class NoteInputs(_Entry):
    """Note the variables' files as they were read. The first phase: others wait for people, who may edit them."""

    title = "Note the inventory"

    def run(self, run: Run) -> None:
        from clusterctl.run import inputs

        now = inputs.of(run.site.inventory)
        run.variables = now.variables if now else None


class Authorise(_Entry):
    """Read the sudo password or ask for it, according to the options."""

    title = "Ask for the sudo password"

    def run(self, run: Run) -> None:
        run.site = context.authorise(run.site)


class LockDirectory(_Entry):
    """Lock the cluster's directory against other runs. Raises InputError if it is not writable."""

    title = "Lock the cluster's directory"

    def run(self, run: Run) -> None:
        state = run.site.state
        with files.writing(state):
            held = run.stack.enter_context(lock.hold(state, run.options.verb, say=run.screen.say))
            free = shutil.disk_usage(state).free >> 20
        if free < MIN_STATE_MB:
            found = f"got {free} MB free, expected at least {MIN_STATE_MB} MB"
            raise InputError([Problem(None, str(state), found, "a run writes its log there")])
        run.lock = held


class EnsureSecrets(_Entry):
    """Generate missing secrets. Raises InputError if one is missing that only a person can set."""

    title = "Generate missing secrets"

    def run(self, run: Run) -> None:
        inventory = run.site.inventory
        secrets.ensure(inventory.directory, inventory.cluster_name)
        needed = alerting.secrets(inventory) | metrics.secrets(inventory)
        needed |= directory.secrets(inventory) | slurm_power.secrets(inventory) | slurm_heads.secrets(inventory)
        secrets.require(inventory.directory, needed)


class PrepareAnsible(_Entry):
    """Start Ansible's process, which loads its code while the nodes are asked, and then waits for its command.

    It is not started if all nodes may be left out, as nothing has changed on this machine.
    """

    title = "Start Ansible"

    def __init__(self, *, leaves_out: bool = False) -> None:
        self.leaves_out = leaves_out
        """Whether the run leaves out nodes where nothing has changed."""

    def run(self, run: Run) -> None:
        from clusterctl.ansible import process
        from clusterctl.run import unchanged

        site = run.site
        run.expected_roles = unchanged.expected_roles(site) if self.leaves_out and run.variables else {}
        if len(run.expected_roles) == len(site.hosts) and not any(run.expected_roles.values()):
            return
        run.ansible = process.Process(site.inventory.path, run.lock if run.lock >= 0 else None)
        run.stack.callback(run.close_ansible)


class CheckHostKeys(_Entry):
    """Record the host keys of new nodes, after confirmation, and the key that login nodes will present.

    Raises Interrupted if the operator declines, PreflightError for wrong keys.
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
        trust.add_login_key(chosen, site.access)


class RenewHostKeys(_Entry):
    """Replace the recorded host keys with the keys that the nodes present now, after confirmation."""

    title = "Record new SSH host keys"

    def __init__(self, names: Collection[str] = ()) -> None:
        self.names = names
        """The hosts to renew; empty for all hosts of the run."""

    def run(self, run: Run) -> None:
        from clusterctl.nodes import route, trust

        site, screen = run.site, run.screen
        hosts = [host for host in site.hosts if not self.names or host.name in self.names]
        heads_have_secrets = any(host.is_head for host in hosts) and (site.inventory.directory / secrets.FILE).exists()
        if heads_have_secrets:
            # The heads' identities are stored under an HMAC of this password: without it, fail before any change.
            secrets.vault_password_file(site.inventory.directory)
        with files.writing(site.inventory.directory):
            old = {host.name: trust.recorded(site.access, route.of(host).name) for host in hosts}
            accept = run.options.accept_new_host_keys
            new = trust.renew(site.inventory, hosts, site.access, accept, ask_about_keys(screen, old))
            if heads_have_secrets:
                # If a head has a new key, the operator has just confirmed it: do not ask about this head again.
                require_same_head(site, screen, confirmed={key.node for key in new})
                keep_head(site, screen)
        for key in new:
            screen.say((f"  {key.node}", "bold"), f"  {key.type}  {key.fingerprint}  recorded")
        if not new:
            screen.say("The nodes present the recorded host keys.")

    def describe(self, run: Run) -> Iterator[Step]:
        yield shlex.join(["clusterctl", "trust", str(run.options.given), *self.names])


class ConfirmHead(_Entry):
    """Check that the heads are the hosts that last received the cluster's secrets, or ask."""

    title = "Check that the head is the same"

    def run(self, run: Run) -> None:
        require_same_head(run.site, run.screen)


class LockHead(_Entry):
    """Lock the cluster against runs from other machines. Raises Locked while another run has the lock."""

    title = "Lock the cluster on its head"

    def run(self, run: Run) -> None:
        from clusterctl.run import headlock

        site = run.site
        me = lock.this_run(run.options.verb)
        heads = site.inventory.locked_heads
        run.head_lock = run.stack.enter_context(headlock.hold(heads, site.access, me, site.state))


class Preflight(_Entry):
    """Check every host before anything changes, and record the hardware of new hosts.

    Raises PreflightError with all problems of all hosts. With `skip_unreachable`, unreachable hosts are skipped.
    """

    title = "Check the nodes"

    def __init__(
        self,
        renewed: Collection[str] = (),
        *,
        replaces: bool = True,
        new_head: bool = True,
        skips: bool = False,
        proves: bool = False,
        leaves_out: bool = False,
    ) -> None:
        self.renewed = renewed
        """Nodes whose hardware is recorded again."""
        self.replaces = replaces
        """Whether the verb may replace software on the nodes that clusterctl does not manage."""
        self.new_head = replaces and new_head
        """Whether a head that has lost its queue may start with an empty queue."""
        self.skips = skips
        """Whether unreachable hosts are skipped without `skip_unreachable`: one head of several is enough."""
        self.proves = proves
        """Whether the state of all nodes is asked for, which the verb can then prove to be unchanged."""
        self.leaves_out = leaves_out
        """Whether nodes are left out where nothing has changed."""

    def run(self, run: Run) -> None:
        from clusterctl.nodes import remote
        from clusterctl.run import inputs, preflight

        site, began = run.site, time.monotonic()
        with run.screen.working(f"Checking {plural(len(site.hosts), 'node')}"):
            contact = self._contact(run)
            with files.writing(site.inventory.directory):
                recorded = preflight.record(site.inventory, contact, self.renewed)
        remote.forget_gateways()
        report.checked(run.screen, contact, len(recorded), time.monotonic() - began, self.renewed)
        skipped = tuple(dict.fromkeys(finding.node for finding in contact.skipped))
        run.site = replace(site, skipped=skipped, facts=contact.facts)
        if self.proves:
            now = inputs.of(site.inventory)
            run.inputs = now if now and now.variables == run.variables else None
        if self.leaves_out:
            _leave_out(run)
        if run.head_lock:
            keep_head(run.site, run.screen)
            _require_lock(run)

    def _contact(self, run: Run) -> Any:
        from clusterctl.nodes.session import Failure
        from clusterctl.run import preflight

        site, options = run.site, run.options
        redact = site.redactor().redact
        errors = run.head_lock.errors if run.head_lock else {}
        # Do not try a password again that a head has refused.
        refused = {name: error for name, error in errors.items() if error.failure is Failure.SUDO}
        adopt, new_head = options.adopt if self.replaces else None, options.new_head if self.new_head else None
        skip = self.skips or options.skip_unreachable

        def redacted(findings: Iterable[Any]) -> tuple[Any, ...]:
            return tuple(replace(one, found=redact(one.found), hint=redact(one.hint)) for one in findings)

        try:
            contact = preflight.preflight(
                site.inventory,
                site.access,
                skip,
                site.hosts,
                adopt,
                refused,
                new_head,
                run.expected_roles,
                self.proves,
                options.forks,
                None if options.planned else lambda names: sleeping.rouse(run, names),
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
        missing = "some host keys, hardware records or secrets are missing"
        yield f"{fold(lacking) or 'the cluster'}: {missing}: {shlex.join(argv)}"


def _leave_out(run: Run) -> None:
    """Take the hosts and roles that have nothing to do out of the run.

    Print why each other host that was set up before is configured.
    """
    from clusterctl.run import unchanged

    decision = unchanged.decide(run.site, run.inputs, run.expected_roles)
    for reason, names in decision.reasons.items():
        run.screen.say((f"  {fold(names)}", "bold"), f": to be configured ({reason})")
    run.ledger.order([host.name for host in run.site.hosts])
    for note, names in decision.notes.items():
        run.ledger.notes.setdefault(note, []).extend(names)
    run.roles = decision.roles
    if run.roles is not None and len(decision.left_out) < len(run.site.inventory.hosts):
        roles = (unchanged.NAMES.get(name, name) for name in sorted(run.roles))
        run.screen.say(f"  Roles to run: {', '.join([*roles, 'verify'])}")
    if decision.left_out:
        since = min(proof.at for proof in decision.left_out.values())
        run.unchanged = decision.left_out
        run.screen.say((f"  {fold([*run.unchanged])}", "bold"), f": unchanged since {since}, left out")
        run.site = unchanged.without(run.site, run.unchanged)


def contact_phases(*, leaves_out: bool = False) -> tuple[Phase, ...]:
    """Return the phases before the checks of the nodes."""
    started = PrepareAnsible(leaves_out=leaves_out)
    woken = sleeping.WakeUp()
    return Authorise(), LockDirectory(), started, EnsureSecrets(), CheckHostKeys(), ConfirmHead(), LockHead(), woken


CONTACT = contact_phases()
ENTRY = (*CONTACT, Preflight())
"""The first phases of runs that build or change the cluster."""
CONTACT_OF_A_TEST = tuple(phase for phase in CONTACT if not isinstance(phase, EnsureSecrets))
ENTRY_OF_A_TEST = (*CONTACT_OF_A_TEST, Preflight(replaces=False))
"""The first phases of runs that replace nothing on the nodes."""


def require_same_head(site: Site, screen: Screen, confirmed: Collection[str] = ()) -> None:
    """Check that each head is a host that last received the cluster's secrets, or ask; not about `confirmed` ones.

    Raises Interrupted if the operator declines, InputError without a terminal.
    `--accept-new-host-keys` applies to new nodes. Only the verb `trust` accepts a changed head with it.
    """
    from clusterctl.nodes import known_head

    options, directory = site.options, site.inventory.directory
    before, now = known_head.load(directory), known_head.of(site.inventory, site.access)
    if not before:
        for head in (head for head in now.values() if head.keys):
            found = f"{head.way}, host key {', '.join(head.keys)}"
            screen.say(f"  {head.name} receives the cluster's secrets from this machine for the first time: {found}")
        return
    changes = [(name, line) for name, line in known_head.changes(before, now) if name not in confirmed]
    if not changes:
        return
    if options.new_head or (options.verb == "trust" and options.accept_new_host_keys):
        for name, change in changes:
            screen.say((f"  {name}", "bold"), f"  {change}")
        return
    if options.json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        found = "is not the head that last received the cluster's secrets from this machine"
        raise InputError([Problem(None, name, f"{found}; {line}", _trust(site, name)) for name, line in changes])
    for name in dict.fromkeys(name for name, _ in changes):
        screen.say(
            (f"  {name}", "bold"), " is not the head that last received the cluster's secrets from this machine:"
        )
        for change in (change for one, change in changes if one == name):
            screen.say(f"    {change}")
        if not screen.agrees("Is this expected, and should this host receive the secrets?"):
            raise Interrupted(f"No secrets were sent to {name}, and no node was changed.")


def _trust(site: Site, name: str) -> str:
    trust = shlex.join(["clusterctl", "trust", str(site.options.given), name])
    return f"if this is expected: {trust}, on a terminal or with --accept-new-host-keys"


def keep_head(site: Site, screen: Screen) -> None:
    """Record which heads have the cluster's secrets."""
    from clusterctl.nodes import known_head

    heads = known_head.of(site.inventory, site.access)
    try:
        if any(head.keys for head in heads.values()) and heads != known_head.load(site.inventory.directory):
            known_head.save(site.inventory.directory, heads)
    except OSError as error:
        screen.say(f"The identity of {fold([*heads])} could not be recorded on this machine: {error.strerror}")


def _require_lock(run: Run) -> None:
    """Raise PreflightError if the head is in the run and the cluster cannot be locked. A run without it only warns."""
    head, error = run.site.inventory.head, run.head_lock.missing if run.head_lock else None
    if error and head in run.site.hosts:
        raise PreflightError([Finding(head.name, "lock", error.found, error.hint)])
    if error:
        run.screen.say(f"{head.name} is not locked against other runs: {error.found}")


def ask_about_keys(screen: Screen, recorded: Mapping[str, Sequence[str]] | None = None) -> Any:
    """Return a function that asks about host keys; None without a terminal. `recorded` has the keys to replace."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None

    def ask(keys: Sequence[Any]) -> bool:
        report.host_keys(screen, keys, recorded or {})
        command = "ssh-keygen -l -f /etc/ssh/ssh_host_ed25519_key.pub"
        screen.say(f"Compare them with the output on the nodes' consoles: {command}")
        if not screen.agrees("Are these keys correct? Record them?"):
            raise Interrupted("No host key was recorded, and no node was changed.")
        return True

    return ask
