"""Print the report of a run (results, or failures with the next command) and of preflight."""

import contextlib
import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from clusterctl import __version__
from clusterctl.ansible.outcome import Ledger
from clusterctl.inventory import pages
from clusterctl.inventory.model import Inventory
from clusterctl.ui.screen import Screen, at_commas
from clusterctl.util.errors import ClusterctlError, Finding, HeadFailed, Interrupted, WorkersFailed, together
from clusterctl.util.text import did_you_mean, duration, fold, plural, strip_controls, upstream
from clusterctl.workspace import hardware

if TYPE_CHECKING:
    from clusterctl.nodes.contact import Contact
    from clusterctl.nodes.known_hosts import HostKey

__all__ = ["Page", "Screen", "Shape", "addresses", "checked", "findings", "hint", "host_keys", "upstream"]

_MESSAGE_LINES = 20  # of a failure's message; the log has all of it
_BUILDS = ("bootstrap", "restore")  # verbs whose report lists the URLs
_UNION = "packages"  # the role that installs the packages of all other roles
_OURS = ("slurm_exporter",)  # roles whose program is part of clusterctl; their packages are only its dependencies
_NODES_WIDTH = 24  # of the names in a table; longer lists are wrapped
_NOTES = 12  # of a run; summary.json has them all

# Hints by patterns of a failure's message. Only the first match is shown.
_HINTS: tuple[tuple[str, str], ...] = (
    (
        r"host key verification failed|host identification has changed",
        "the node's SSH host key differs from known_hosts: find out why before you remove the old entry",
    ),
    (
        r"permission denied \(|publickey",
        "the node accepts none of your keys: check ansible_user and ansible_ssh_private_key_file, or use ssh-agent",
    ),
    (
        r"sudo: a password is required|missing sudo password|not in the sudoers",
        "the user needs sudo without a password",
    ),
    (r"no space left on device|disk quota exceeded", "free space on the filesystem in the message"),
    (r"read-only file system", "a disk error makes a filesystem read-only: check dmesg on the node"),
    (
        r"could not get lock|is locked by|lock-frontend|(package|rpm) lock is (still )?held by",
        "another package manager is running on the node: wait until it ends",
    ),
    (
        r"dpkg was interrupted|dpkg --configure",
        "run the same command again; if it still fails, run dpkg --configure -a on the node",
    ),
    (
        r"no_pubkey|not signed|expkeysig|gpg.*(fail|error)|signature|nothing is installed from there",
        "the repository's signature is not valid: check its key and the node's clock; do not install unsigned packages",
    ),
    (
        r"hash sum mismatch|is not valid yet|release file .* expired",
        "the package mirror is outdated or being updated: retry later, or set cluster_package_mirrors",
    ),
    (
        r"temporary failure (in name resolution|resolving)|could not resolve|name or service not known",
        "the node cannot resolve names: check its /etc/resolv.conf and cluster_nameservers",
    ),
    (
        r"apptainer.*(fetch|download|apt-helper|timed out|http error)|(fetch|download|apt-helper).*apptainer",
        "set apptainer_package_url to a URL that the node can reach, or remove the host from the group apptainer",
    ),
    (
        r"failed to fetch|unable to fetch|error downloading|cannot download|status code: [45]|http error [45]",
        "the package source returned an error: check cluster_package_mirrors, cluster_http_proxy and the package cache",
    ),
    (r"no module named|python.*not found|interpreter", "the node needs python3 as /usr/bin/python3"),
    (
        r"connection refused|no route to host|timed out(?! after \d+ s)|timeout|unreachable|connection (closed|reset)",
        "check that the node is up, sshd is running and no firewall blocks the connection",
    ),
    (
        r"\b(oom|oom-kill|out of memory|cannot allocate memory)\b|\bkilled$",
        "the node ran out of memory: check dmesg on the node",
    ),
    (r"\b(unit|service)\b.*(fail|not (become )?active|inactive)|journalctl", "run journalctl -b -u UNIT on the node"),
)


def hint(message: str) -> str:
    """Return the hint for a failure's message; empty if there is none."""
    return next((text for pattern, text in _HINTS if re.search(pattern, message, re.IGNORECASE)), "")


def addresses(inventory: Inventory, given: Path) -> list[tuple[str, str, str]]:
    """Return the cluster's web pages as (title, URL, login), the landing page first; `given` is the path as typed."""
    found = []
    for one in pages.of_inventory(inventory):
        command = shlex.join(["clusterctl", "secret", "show", str(given), one.page.secret])
        found.append((one.page.title, one.url, f"user {one.user}, password: {command}" if one.page.secret else ""))
    return found


def checked(screen: Screen, contact: "Contact", recorded: int, seconds: float, renewed: Collection[str] = ()) -> None:
    """Print the result of a passed preflight; `renewed` nodes have a new hardware record."""
    good = len(contact.facts)
    screen.say(
        f"  {plural(good, 'node')} ready in {duration(seconds)}"
        + (f"; hardware of {recorded} recorded" if recorded else ""),
        cut=True,
    )
    for finding in together(contact.skipped):
        screen.say(("  skipped: ", "yellow"), str(finding))
    for finding in together(contact.warnings):
        screen.say(("  note: ", "yellow"), str(finding))
    differing: dict[tuple[str, str], list[str]] = {}
    for name, lines in contact.differences.items():
        for line in lines:
            label = "new hardware: " if name in renewed else "differs from its record: "
            differing.setdefault((label, line), []).append(name)
    for (label, line), names in differing.items():
        screen.say((f"  {label}", "yellow"), f"{fold(names)}: {line}")
    if contact.differences.keys() - {*renewed}:
        screen.say(
            ("  If the change is intended, delete hardware/NODE.json; the next run records the hardware again.", "dim")
        )


def findings(screen: Screen, problems: Sequence[object]) -> int:
    """Print the problems that preflight found, in columns on a terminal; return the number of nodes."""
    found = [problem for problem in problems if isinstance(problem, Finding)]
    if not screen.is_terminal or len(found) < len(problems):
        for problem in problems:
            screen.say(str(problem))
        screen.say()
        return len({finding.node for finding in found})
    # Only two columns: a narrow terminal must not cut a fingerprint or a command.
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for one in together(found):
        text = Text.assemble((f"{one.check}: {one.found}", "red"), f"\n{one.hint}" if one.hint else "")
        table.add_row(Text(at_commas(one.node, _NODES_WIDTH), "bold"), text)
    screen.print(table)
    screen.say()
    return len({finding.node for finding in found})


def host_keys(screen: Screen, keys: Sequence["HostKey"], recorded: Mapping[str, Sequence[str]]) -> None:
    """Print the host keys of nodes for comparison, and the recorded keys that they would replace."""
    screen.say("The SSH host keys of these nodes are:" if recorded else "These nodes are new; their SSH host keys are:")
    width = max(len(key.node) for key in keys)
    for key in keys:
        screen.say((f"  {key.node:<{width}}", "bold"), f"  {key.type}  {key.fingerprint}")
        for old in recorded.get(key.node, ()):
            screen.say(f"  {'':<{width}}  recorded: {old}")


@dataclass(frozen=True)
class Shape:
    """The cluster that an inventory describes, with the hardware that is recorded."""

    inventory: Inventory
    records: dict[str, hardware.Hardware]
    unresolved: tuple[str, ...] = ()

    @classmethod
    def of(cls, inventory: Inventory) -> "Shape":
        records = hardware.load_all(inventory.directory)
        known = {host.name: records[host.name] for host in inventory.hosts if host.name in records}
        unresolved: list[str] = []
        if by_name := [host for host in inventory.hosts if host.address == host.name]:
            from clusterctl.nodes import remote  # its libraries are slow to load

            unresolved = remote.unresolved(by_name)
        return cls(inventory, known, tuple(unresolved))

    def gpus(self) -> dict[str, int]:
        """Return the number of GPUs by type."""
        counts: dict[str, int] = {}
        for record in self.records.values():
            for gpu in record.gpus:
                counts[gpu.type] = counts.get(gpu.type, 0) + 1
        return counts

    def summary(self) -> dict[str, Any]:
        return {
            "cluster": self.inventory.cluster_name,
            "hosts": len(self.inventory.hosts),
            "groups": {group: list(hosts) for group, hosts in self.inventory.groups.items() if group != "all"},
            "recorded": sorted(self.records),
            "unresolved": list(self.unresolved),
            "cpus": sum(record.cpu.cpus for record in self.records.values()),
            "memory_mb": sum(record.memory_mb for record in self.records.values()),
            "gpus": self.gpus(),
        }

    def show(self, screen: Screen, path: Path, discovered: bool) -> None:
        hosts, page = len(self.inventory.hosts), Page(screen)
        lost = len(self.unresolved)
        but = f", but {plural(lost, 'host')} {'has' if lost == 1 else 'have'} no address" if lost else ""
        screen.say((self.inventory.cluster_name, "bold"), f": {plural(hosts, 'host')}, the inventory is valid{but}.")
        for group, names in self.inventory.groups.items():
            if group != "all":
                page.field(group, fold(names))
        if self.records:
            summary, dot = self.summary(), f" {screen.glyphs['dot']} "
            gpus = [f"{count} x {name}" for name, count in self.gpus().items()] or ["no GPU"]
            parts = [f"{summary['cpus']} CPUs", f"{summary['memory_mb'] / 1024:.0f} GiB memory", *gpus]
            page.field("Hardware", dot.join(parts))
        for name in self.unresolved:
            near = did_you_mean(name, [host.name for host in self.inventory.hosts if host.name != name])
            text = f"{name} does not resolve on this machine: set its ansible_host"
            page.field("No address", f"{text} ({near})" if near else text)
        if missing := [host.name for host in self.inventory.hosts if host.name not in self.records]:
            page.field("No record", f"{fold(missing)} (recorded at the first contact)")
        command = ["clusterctl", "bootstrap", str(path)] if discovered else ["clusterctl", "discover", str(path)]
        page.field("Next", shlex.join(command), "bold")


def extent(played: int, what: str, left_out: int) -> str:
    """Return what a run has done, on how many nodes, and how many it has left out because nothing had changed."""
    if left_out and not played:
        return f"{plural(left_out, 'node')}, all unchanged."
    rest = f" {plural(left_out, 'node')} left out, unchanged." if left_out else ""
    return f"{plural(played, 'node')}, {what}.{rest}"


class Page:
    """The report at the end of a run."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def field(self, name: str, value: str, style: str = "") -> None:
        self._screen.say((f"  {name:<14}", "dim"), (value, style))

    def rows(self, title: str, rows: Sequence[tuple[str, str, str]]) -> None:
        """Print rows of three columns under a title; on a terminal the last two columns wrap."""
        if not rows:
            return
        self._screen.say()
        self._screen.say((f"  {title}", "dim"))
        if self._screen.is_terminal:
            table = Table.grid(padding=(0, 2, 0, 0))
            table.add_column(no_wrap=True, min_width=2)
            table.add_column(overflow="fold")
            table.add_column(overflow="fold")
            for row in rows:
                table.add_row(f"    {row[0]}", *row[1:])
            self._screen.print(table)
            return
        first, second = (max(len(row[i]) for row in rows) for i in (0, 1))
        for row in rows:
            self._screen.say(f"    {row[0]:<{min(first, 24)}}  {row[1]:<{min(second, 32)}}  {row[2]}".rstrip())

    def done(self, ledger: Ledger, inventory: Inventory, verb: str, given: Path, left_out: int = 0) -> None:
        """Print the summary of a successful run; `given` is the inventory's path as typed.

        `left_out` is the number of nodes where nothing has changed.
        """
        changed = sum(host.changed for host in ledger.hosts.values())
        what = plural(changed, "change") if changed else "nothing to change"
        title = "Done"
        if verb == "verify":
            title, what = "Verified", "the cluster works"
        if verb == "backup":
            title, what = "Backed up", "and restored for a test"
        done = extent(len(ledger.hosts), what, left_out)
        self._screen.say()
        self._screen.say((title, "bold green"), f" in {duration(ledger.seconds())}: {done}")
        self.content(ledger)
        if verb in _BUILDS:
            offers = addresses(inventory, given)
            if offers:
                self._screen.say()
                self._screen.say(("  Open in a browser", "dim"))
            for what, url, login in offers[:1]:
                # Not in columns: the command is to be copied and must not wrap.
                self._screen.say(f"    {what}  {url}")
                self._screen.say(f"    {' ' * len(what)}  {login}")
                self._screen.say(f"    All pages: {shlex.join(['clusterctl', 'open', str(given)])}")
        self._screen.say()

    def content(self, ledger: Ledger, check: bool = False) -> None:
        """Print the installed packages, the changes and the roles' notes."""
        dot = f" {self._screen.glyphs['dot']} "
        installed = [(role, fold(hosts), dot.join(versions)) for role, hosts, versions in _installed(ledger)]
        self.rows("Installed", installed if any(host.changed for host in ledger.hosts.values()) else [])
        self.rows("Would change" if check else "Changed", list(_changed(ledger)))
        notes = [(fold(ledger.ordered(hosts)), note, "") for note, hosts in ledger.notes.items()]
        rest = plural(len(notes) - _NOTES, "more note") + " in summary.json"
        self.rows("Notes", notes if len(notes) <= _NOTES else [*notes[:_NOTES], ("", rest, "")])

    def failed(self, error: ClusterctlError, ledger: Ledger) -> None:
        """Print the error that ended a run, and each failure once with its hosts."""
        self._screen.say()
        half_done = isinstance(error, WorkersFailed | HeadFailed)
        title = "Stopped" if isinstance(error, Interrupted) else "Incomplete" if half_done else "Failed"
        self._screen.say(
            (title, "bold yellow" if title == "Stopped" else "bold red"),
            f" after {duration(ledger.seconds())}: {error}",
        )
        same: dict[tuple[str, str, str, str], list[str]] = {}
        for result in ledger.failures:
            key = (result.role, result.task, result.path, result.message.replace(result.host, "\0"))
            same.setdefault(key, []).append(result.host)
        for (role, task, path, message), hosts in same.items():
            self._screen.say()
            self._screen.say(
                (f"  {fold(ledger.ordered(hosts))}", "bold"),
                f"  {role + ': ' if role else ''}{task}",
                (f"  {path}", "dim"),
            )
            lines = message.replace("\0", hosts[0]).splitlines() or ["(no message: the task's output is secret)"]
            for line in lines[:_MESSAGE_LINES]:
                self._screen.say(f"    {line}")
            if len(lines) > _MESSAGE_LINES:
                self._screen.say(
                    (f"    {self._screen.glyphs['more']} {len(lines) - _MESSAGE_LINES} more lines in the log", "dim")
                )
            if found := hint(message):
                self._screen.say(("    Hint: ", "yellow"), found)
        if not isinstance(error, Interrupted):
            self.state(error, ledger)
        self._screen.say()

    def tail(self, log: Path, most: int = 20) -> None:
        """Print the end of Ansible's log, from its last error on, for a failure without events."""
        self._screen.say((f"  The end of {log.name}:", "dim"))
        with contextlib.suppress(OSError):
            lines = log.read_text(encoding="utf-8", errors="replace").rstrip().splitlines()[-2 * most :]
            errors = [number for number, line in enumerate(lines) if line.startswith("[ERROR]")]
            for line in lines[errors[-1] :][:most] if errors else lines[-most:]:
                self._screen.say(f"    {strip_controls(line)}")
        self._screen.say()

    def state(self, error: ClusterctlError, ledger: Ledger) -> None:
        """Print the state of the nodes after a failed run."""
        good = [name for name in ledger.ordered(ledger.hosts) if ledger.hosts[name].status == "ok"]
        rows = []
        if isinstance(error, WorkersFailed) and good:
            rows.append(
                (fold(good), "complete" if not ledger.plays_to_come else "configured as far as the run got", "")
            )
        if isinstance(error, HeadFailed):
            untouched = [name for name in good if not ledger.hosts[name].changed]
            changed = [name for name in good if ledger.hosts[name].changed]
            rows += [(fold(untouched), "not changed", "")] if untouched else []
            rows += [(fold(changed), "changed as far as the run got", "")] if changed else []
        states: dict[str, list[str]] = {}
        for name in ledger.ordered(ledger.lost()):
            states.setdefault(_has(ledger, name), []).append(name)
        rows += [(fold(names), state, "") for state, names in states.items()]
        self.rows("State", rows)


def _installed(ledger: Ledger) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield each role that has packages, its hosts, and up to three versions.

    Prefer packages that share the role's name. A program of clusterctl has clusterctl's version. Versions have no
    distribution's revision.
    """
    for role, packages in ledger.installed.items():
        if role == _UNION:
            continue
        if role in _OURS:
            yield role, ledger.roles.get(role, []), [f"clusterctl {__version__}"]
            continue
        shown = ([name for name in packages if re.split("[_-]", role)[0] in name] or list(packages))[:3]
        versions = [f"{name} {' / '.join(sorted(set(map(upstream, packages[name].values()))))}" for name in shown]
        if len(packages) > len(shown):
            versions.append(f"{len(packages) - len(shown)} more")
        yield role, ledger.roles.get(role, []), versions


def _changed(ledger: Ledger) -> Iterator[tuple[str, str, str]]:
    """Yield the number of changes by kind, one row for all hosts with the same numbers."""
    rows: dict[str, list[str]] = {}
    for name in ledger.ordered(ledger.hosts):
        host = ledger.hosts[name]
        if host.changed:
            kinds = Counter("other change" if change.kind == "task" else change.kind for _, change in host.changes)
            what = ", ".join(plural(kinds[kind], kind) for kind in sorted(kinds, key="other change".__eq__))
            rows.setdefault(what, []).append(name)
    yield from ((fold(names), what, "") for what, names in rows.items())


def _has(ledger: Ledger, name: str) -> str:
    roles = [role for role, hosts in ledger.roles.items() if name in hosts]
    return "has " + ", ".join(roles) if roles else "nothing completed in this run"
