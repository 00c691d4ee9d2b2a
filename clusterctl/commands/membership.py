"""Who belongs to the cluster: add-node, remove-node, replace-node.

Each edits the inventory as a person would, then runs the very playbook that built the cluster for the nodes in
question, the head and monitoring. Nobody else is contacted, so the cost does not grow with the cluster, and jobs
elsewhere go on. There are two exceptions: a Slurm that learns of nodes by a restart alone, and, where nodes come, an
inventory without `cluster_networks`.
"""

import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from clusterctl.ansible.outcome import Ledger
from clusterctl.commands import plan
from clusterctl.inventory import edit
from clusterctl.inventory import model as inventory
from clusterctl.inventory.model import Host, Inventory
from clusterctl.inventory.reading import listing
from clusterctl.nodes.remote import Access, ContactError, connect, each
from clusterctl.run import converge, leaving
from clusterctl.run.converge import Options, Site, Work
from clusterctl.slurm.client import DRAIN, Head, Job
from clusterctl.ui.screen import Screen
from clusterctl.util import files, paths
from clusterctl.util.errors import (
    ClusterctlError,
    InputError,
    Interrupted,
    Position,
    PreflightError,
    Problem,
    WorkersFailed,
)
from clusterctl.util.text import did_you_mean, fold, plural, printable
from clusterctl.workspace import hardware, home

WORKERS = "slurm_workers"
_BY_RESTART = (
    "The head's Slurm learns of nodes only by a restart of its daemons on every worker: all {} hosts are contacted. "
    "Running jobs go on."
)
_BY_FIREWALLS = (
    "Without cluster_networks every node's firewall lists the others' addresses: all {} hosts are contacted. "
    "Running jobs go on."
)


# --- the inventory ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """A new text for the inventory, judged as a whole before anything is written; `gone` are files that go with it."""

    path: Path
    old: str
    new: str
    inventory: Inventory
    gone: tuple[Path, ...] = ()

    def __bool__(self) -> bool:
        return self.new != self.old

    def diff(self) -> str:
        """Return what changes, as `diff -u` writes it."""
        removed = (edit.diff(path.read_text(), "", str(path), "/dev/null") for path in self.gone)
        return edit.diff(self.old, self.new, self.path.name) + "".join(removed)

    def save(self) -> None:
        """Put the new text in the place of the old one, whole or not at all, with the same mode; InputError else."""
        try:
            mode = self.path.stat().st_mode & 0o777
            files.write_atomically(self.path, self.new.encode(), replace=True)
            self.path.chmod(mode)
            files.discard(self.gone)
        except OSError as error:
            at = str(error.filename or self.path)
            raise InputError([Problem(None, at, f"cannot be written: {error.strerror}")]) from None


def changed(path: Path, new: str, gone: Sequence[Path] = ()) -> Change:
    """Judge the cluster's directory as it would be with this text; raises InputError with every problem of it."""
    directory = path.parent.resolve()
    old = path.read_text()
    with tempfile.TemporaryDirectory(prefix="clusterctl-edit-") as place:
        copy = Path(place).resolve()
        # With the files that variables name; pipes, which none may be, would make it wait.
        shutil.copytree(directory, copy, ignore=_unread, ignore_dangling_symlinks=True, dirs_exist_ok=True)
        (copy / path.name).write_text(new)
        files.discard(copy / file.relative_to(directory) for file in gone)
        try:
            found = inventory.load(copy / path.name)
        except InputError as error:
            raise InputError([_elsewhere(problem, copy, directory) for problem in error.problems]) from None
    return Change(path, old, new, replace(found, path=path, directory=directory), tuple(gone))


def _unread(directory: str, names: list[str]) -> list[str]:
    """Name what no inventory refers to: the runs, git's own, and what is neither file nor directory."""
    paths = {name: Path(directory, name) for name in names}
    return [n for n, path in paths.items() if n in (home.STATE, ".git") or not (path.is_file() or path.is_dir())]


def _elsewhere(problem: object, copy: Path, directory: Path) -> object:
    """Return a problem of the copy as one of the directory that it is a copy of."""
    if not isinstance(problem, Problem):
        return problem
    position = problem.position
    if position:
        path = Path(str(position.path).replace(str(copy), str(directory), 1))
        position = Position(path, position.line, position.column)
    words = (text.replace(str(copy), str(directory)) for text in (problem.key, problem.message, problem.hint))
    return Problem(position, *words)


def agree(screen: Screen, question: str, yes: bool, flag: str = "--yes") -> bool:
    """Ask a person; `yes` is the answer where it was given beforehand. InputError where there is nobody to ask."""
    if yes:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InputError([Problem(None, flag, "is needed where there is no terminal to ask on")])
    return screen.agrees(question)


def _show(screen: Screen, change: Change) -> None:
    for line in change.diff().splitlines():
        style = {"+": "green", "-": "red", "@": "dim"}.get(line[:1], "")
        screen.say((f"  {line}", style))


def _to_write(change: Change | None) -> list[str]:
    """Return what is to be done by hand in place of `Change.save`."""
    return [f"change {change.path.parent}:\n{change.diff()}"] if change else []


def _screen(options: Options) -> Screen:
    return Screen(sys.stderr if options.json or options.print_command else sys.stdout)


def _unknown(names: Sequence[str], known: Sequence[str]) -> list[Problem]:
    return [Problem(None, "NODE", f'no worker "{printable(name, 64)}"', did_you_mean(name, known)) for name in names]


# --- adding -----------------------------------------------------------------------------------------------------------


def flags(addresses: Sequence[str], group: str) -> tuple[str, ...]:
    """Return add-node's own flags as they are typed."""
    given = [word for address in addresses for word in ("--address", address)]
    return (*given, *(["--group", group] if group != WORKERS else []))


def add_node(options: Options, addresses: Sequence[str], group: str, yes: bool = False) -> int:
    """Take nodes into the cluster: those that the inventory has not yet are written into it, the rest is `bootstrap`.

    Returns the exit status. Raises InputError for names and addresses that cannot be meant, as the other verbs do.
    """
    from clusterctl.util.errors import Finding

    present = home.load(options.inventory)
    names = list(dict.fromkeys(options.nodes))
    if len(addresses) not in (0, len(names)):
        told = f"{plural(len(addresses), 'address')} for {plural(len(names), 'node')}"
        raise InputError([Problem(None, "--address", told, "give one for each node, in their order, or none")])
    wanted: dict[str, str | None] = dict(zip(names, addresses, strict=True)) if addresses else dict.fromkeys(names)
    known = {host.name: host for host in present.hosts}
    new = {name: address for name, address in wanted.items() if name not in known}
    problems = []
    if group != WORKERS and group not in present.groups:
        told = f'no group "{printable(group, 64)}" below {WORKERS}'
        problems.append(Problem(None, "--group", told, did_you_mean(group, present.groups)))
    for name in (name for name in names if name in known):
        if WORKERS not in known[name].groups:
            problems.append(Problem(known[name].position, name, "is in the inventory, and no worker"))
        elif wanted[name] not in (None, known[name].address):
            told = f"is in the inventory with the address {known[name].address}, not {printable(str(wanted[name]), 64)}"
            problems.append(Problem(known[name].position, name, told, "leave --address out, or correct it there"))
    if problems:
        raise InputError(problems)
    screen = _screen(options)
    if there := [name for name in names if name in known]:
        one = len(there) == 1
        they = "is in the inventory already; it is" if one else "are in the inventory already; they are"
        screen.say(f"{fold(there)} {they} set up again.")
    change = None
    if new:
        old = options.inventory.read_text()
        change = changed(options.inventory, edit.add(old, group, new))
        if not options.print_command:
            _show(screen, change)
            if not options.planned and not agree(screen, "Write this into the inventory?", yes):
                raise Interrupted(f"{options.inventory} is as it was, and no node was changed.")

    def begin(site: Site, screen: Screen) -> Site:
        _answered(site, new)
        if change:
            change.save()
        return site

    after = change.inventory if change else present
    options = _limited(options, after, names, screen)
    if options.print_command:
        return converge.print_command(converge.load(options, after), first=_to_write(change))
    if options.planned:
        return plan.preview(options, present, change)
    try:
        return converge.run(options, after, Work(begin=begin))
    except PreflightError as error:
        # --skip-unreachable, which it may suggest, adds no node that does not answer.
        if any(isinstance(problem, Finding) and problem.node in new for problem in error.problems):
            raise PreflightError(error.problems) from None
        raise


def _answered(site: Site, new: Collection[str]) -> None:
    """Refuse (PreflightError) to add nodes that --skip-unreachable has left out: the inventory would keep them."""
    from clusterctl.util.errors import Finding

    found = "is left out for the reason above, so it is not added; --skip-unreachable is for the cluster's other nodes"
    if left := [Finding(name, "node", found, "leave it out of the command") for name in new if name in site.skipped]:
        raise PreflightError(left)


def _limited(options: Options, after: Inventory, names: Sequence[str], screen: Screen) -> Options:
    """Limit a run to these nodes and to who must know of them, which can be all."""
    if learns_by_restart(after):
        reason = _BY_RESTART
    elif not after.variables.get("cluster_networks"):
        reason = _BY_FIREWALLS
    else:
        return replace(options, limit=",".join([*names, *_informed(after)]))
    screen.say(reason.format(len(after.hosts)))
    return replace(options, limit=None)


def _informed(after: Inventory) -> list[str]:
    """Return the hosts that must know who belongs to the cluster."""
    heads = [host.name for host in after.hosts if any(group.endswith("_head") for group in host.groups)]
    return list(dict.fromkeys([*heads, *(host.name for host in after.in_group("monitoring"))]))


def learns_by_restart(after: Inventory) -> bool:
    """Tell whether the head's Slurm is older than 23.11, so that a changed list of nodes needs new daemons everywhere.

    Source: https://slurm.schedmd.com/faq.html#add_nodes and the release notes of 23.11.
    """
    from clusterctl.run.preflight import slurm_version

    path = hardware.path_of(after.directory, after.head.name)
    if not path.exists():
        return False
    table = yaml.safe_load((paths.content() / "roles/slurm_head/vars/main.yml").read_text())
    pin = str(after.head.variables.get("slurm_head_version", ""))
    release = slurm_version(table["__slurm_head_distribution_versions"], hardware.load(path), pin)
    return release is not None and release < "23.11"


# --- replacing --------------------------------------------------------------------------------------------------------


def replace_node(options: Options) -> int:
    """Take hardware in that was reinstalled under a worker's name: new host key, new record, bootstrap, proof.

    Returns the exit status; raises as `trust` and `bootstrap` do. What differs from the old record is shown.
    """
    present = home.load(options.inventory)
    workers = [host.name for host in present.in_group(WORKERS)]
    if unknown := [name for name in options.nodes if name not in workers]:
        raise InputError(_unknown(unknown, workers))
    screen = _screen(options)
    if options.print_command:
        return _print_replacement(_limited(options, present, options.nodes, screen), present)
    converge.trust(replace(options, limit=",".join(options.nodes)))

    def begin(site: Site, screen: Screen) -> Site:
        # Slurm knows the name, and would hand it jobs as soon as its slurmd speaks.
        with Head.of(site.inventory.head, site.access) as head:
            if head.has_slurm():
                head.drain("bootstrap", options.nodes, "not proven yet")
        return site

    return converge.run(_limited(options, present, options.nodes, screen), present, Work(begin=begin))


def _print_replacement(options: Options, present: Inventory) -> int:
    records = [str(hardware.path_of(present.directory, name)) for name in options.nodes]
    given = str(options.given)
    first = [
        shlex.join(["clusterctl", "trust", given, *options.nodes]),
        f"{shlex.join(['rm', '-f', *records])} && "
        + shlex.join(["clusterctl", "discover", given, "--limit", ",".join(options.nodes)]),
        f"on {present.head.name}, or Slurm hands out jobs before they are proven: sudo "
        + shlex.join([DRAIN, "bootstrap", "--out", ",".join(options.nodes), "--reason", "not proven yet"]),
    ]
    return converge.print_command(converge.load(options, present), first=first)


# --- removing ---------------------------------------------------------------------------------------------------------


def remove_node(
    options: Options, dead: bool, force: bool = False, minutes: float | None = None, yes: bool = False
) -> int:
    """Take workers out of the cluster: drain, wait for their jobs, unregister them on the head, clean them.

    With `dead` they are not contacted. With `force` their jobs are cancelled instead of waited for. `minutes` is how
    long jobs are waited for, None for ever; after that the nodes stay drained and nothing is removed (exit 4). The same
    command goes on with a removal that was interrupted, though the inventory no longer has the nodes. Returns the exit
    status; raises InputError for nodes that cannot be removed.
    """
    before = home.load(options.inventory)
    state = before.directory / home.STATE
    names = list(dict.fromkeys(options.nodes))
    workers = [host.name for host in before.in_group(WORKERS)]
    begun = {name: found for name in names if name not in workers and (found := leaving.load(before, name))}
    present = [name for name in names if name not in begun]
    _removable(before, present, workers)
    screen = _screen(options)
    change = changed(
        options.inventory, edit.remove(options.inventory.read_text(), present), _own_files(before, present)
    )
    if change and not options.print_command:
        _show(screen, change)
        if not options.planned and not agree(screen, f"Remove {fold(present)} from {before.cluster_name}?", yes):
            raise Interrupted(f"{options.inventory} is as it was, and no node was changed.")
    gone = {name: begun.get(name) or leaving.Node.of(before.host(name), before) for name in names}
    reached = list(begun)  # those that a run has been on, with those that have a record
    slow = learns_by_restart(before)
    stay = [host.name for host in change.inventory.hosts] if slow else _informed(change.inventory)
    if slow:
        screen.say(_BY_RESTART.format(len(stay)))

    def begin(site: Site, screen: Screen) -> Site:
        with Head.of(site.inventory.head, site.access) as head:
            if present:
                if dead and not force:
                    _must_be_dead(head, [before.host(name) for name in present], site.access)
                _empty(head, present, screen, dead=dead, force=force, minutes=minutes, yes=yes)
        for node in gone.values():
            leaving.save(state, node)
        change.save()
        for name in present:
            record = hardware.path_of(before.directory, name)
            reached.extend([name] if record.exists() else [])
            record.unlink(missing_ok=True)
        leaving.forget_keys(site.access.known_hosts, gone.values(), change.inventory)
        return without(site, change.inventory)

    def without(site: Site, after: Inventory) -> Site:
        left = tuple(host for host in after.hosts if host.name in stay)
        return replace(site, inventory=after, hosts=left, playbook="bootstrap")

    def finish(
        site: Site, ledger: Ledger, screen: Screen, play: Callable[[Site], ClusterctlError | None]
    ) -> ClusterctlError | None:
        if ledger.stopped:  # when the last task was under way
            return Interrupted(f"{ledger.why}; nothing is under way any more.")
        with Head.of(site.inventory.head, site.access) as head:
            head.forget(names)
        error = None if dead else play(leaving.site(site, list(gone.values()), state / leaving.FOLDER))
        if error is None:
            leaving.forget(state, names)
            if dead and reached:
                warning = "was not cleaned: it still has the cluster's munge key. Wipe it before it is used again."
                screen.say((f"  {fold(reached)} ", "bold"), warning)
        return error

    if options.print_command:
        return _print_removal(replace(options, limit=",".join(stay)), before, change, gone, dead)
    options = replace(options, limit=",".join([*stay, *([] if dead else present)]))
    try:
        if options.planned:
            return _plan_removal(options, before, change, list(gone.values()), dead, without)
        return converge.run(options, before, Work(begin, finish))
    except PreflightError as error:
        raise PreflightError([_or_dead(problem, present) for problem in error.problems]) from None


def _print_removal(
    options: Options, before: Inventory, change: Change, gone: Mapping[str, leaving.Node], dead: bool
) -> int:
    names, on_head = ",".join(gone), f"on {before.head.name}"
    site = replace(converge.load(options, change.inventory), playbook="bootstrap")
    first = [
        f"{on_head}: sudo {shlex.join([DRAIN, 'remove-node', '--out', names, '--reason', 'it is being removed'])}",
        f"{on_head}, until no job is listed: squeue --nodelist={names}",
    ]
    first += _to_write(change)
    records = [str(hardware.path_of(before.directory, name)) for name in gone]
    first.append(shlex.join(["rm", "-f", *records]))
    after = [
        f"{on_head}: sudo {shlex.join([DRAIN, '--forget', names])}",
        f"take the host keys of {fold(list(gone))} out of {site.access.known_hosts}",
    ]
    if dead:
        return converge.print_command(site, first=first, after=after)
    nodes, folder = list(gone.values()), before.directory / home.STATE / leaving.FOLDER
    cleaning = leaving.unwritten(replace(site, inventory=before), nodes, folder)
    forgotten = {line for node in nodes for line in node.keys} - {*home.known_hosts(site.access.known_hosts)}
    copy = shlex.join(["cp", str(site.access.known_hosts), str(folder / home.KNOWN_HOSTS)])
    first += [
        f"{shlex.join(['mkdir', '-p', str(folder)])} && {copy}",
        *(f"add to it: {line}" for line in sorted(forgotten)),
        f"write {cleaning.inventory.path}:\n{leaving.inventory_text(cleaning, nodes)}",
    ]
    return converge.print_command(site, cleaning, first=first, after=after)


def _or_dead(problem: object, names: Sequence[str]) -> object:
    """Add to what preflight has against a node that is to go what helps if it is gone already."""
    from clusterctl.util.errors import Finding

    if not isinstance(problem, Finding) or problem.node not in names or problem.warning:
        return problem
    return replace(problem, hint=f"{problem.hint}; if it is gone for good: --dead".removeprefix("; "))


def _plan_removal(
    options: Options,
    before: Inventory,
    change: Change,
    gone: Sequence[leaving.Node],
    dead: bool,
    without: Callable[[Site, Inventory], Site],
) -> int:
    def leave(site: Site, directory: Path) -> tuple[Site, list[Job]]:
        names = [node.name for node in gone]
        with Head.of(site.inventory.head, site.access) as head:
            jobs = head.jobs(names) if head.has_slurm() else []
        for name in names:
            hardware.path_of(directory, name).unlink(missing_ok=True)
        leaving.forget_keys(directory / home.KNOWN_HOSTS, gone, change.inventory)
        return without(site, replace(change.inventory, path=site.inventory.path, directory=directory)), jobs

    def clean(site: Site, directory: Path) -> Site:
        return leaving.site(site, gone, directory.with_name(f"{directory.name}-{leaving.FOLDER}"))

    return plan.preview(options, before, change, leave, None if dead else clean)


def _removable(before: Inventory, names: Sequence[str], workers: Sequence[str]) -> None:
    """Refuse (InputError) who cannot be removed: strangers, heads, hosts with another task, and the last worker."""
    hosts = {host.name: host for host in before.hosts}
    problems = _unknown([name for name in names if name not in hosts], workers)
    for host in (hosts[name] for name in names if name in hosts):
        if head := next((group for group in sorted(host.groups) if group.endswith("_head")), ""):
            problems.append(Problem(None, "NODE", f"{host.name} is the head ({head})", "a cluster has one"))
        elif others := sorted(group for group in host.groups if group in ("monitoring",)):
            hint = "give that to another host in the inventory first, and bootstrap"
            problems.append(Problem(None, "NODE", f"{host.name} is in {', '.join(others)} too", hint))
    if not problems and names and not {*workers} - {*names}:
        problems.append(Problem(None, "NODE", "these are all the workers", "a cluster needs one"))
    if problems:
        raise InputError(problems)


def _own_files(before: Inventory, names: Sequence[str]) -> list[Path]:
    """Return the files of host_vars/ that are these nodes' own; InputError where they lie behind a link."""
    above = before.directory / "host_vars"
    places = [above / name for name in names]
    single = [place.with_name(place.name + suffix) for place in places for suffix in (".yml", ".yaml")]
    inside = [path for place in places if place.is_dir() for path in listing(place)]
    found = [path for path in (*single, *inside) if path.is_file()]
    if led := [path for path in (above, *places) if path.is_symlink() and any(path in file.parents for file in found)]:
        hint = "what it leads to may be another's: put the files themselves there"
        raise InputError([Problem(None, str(path), "is a link, expected a directory", hint) for path in led])
    return found


def _must_be_dead(head: Head, hosts: Sequence[Host], access: Access) -> None:
    """Raise PreflightError for nodes that are there: Slurm has heard from them, and something answers our SSH.

    Slurm alone would take minutes to notice that a node is gone.
    """
    from clusterctl.run.preflight import UNREACHABLE
    from clusterctl.util.errors import Finding

    def answers(host: Host) -> bool:
        try:
            connect(host, access).close()
        except ContactError as error:
            return error.failure not in UNREACHABLE
        return True

    there = each([host for host in hosts if head.has_slurm() and head.hears(host.name)], answers)
    hint = "leave out --dead, and it is cleaned as well; --force removes it as it is"
    if alive := [name for name, answer in there.items() if answer]:
        raise PreflightError([Finding(name, "dead", "it answers, and Slurm hears from it", hint) for name in alive])


def _empty(
    head: Head, names: Sequence[str], screen: Screen, *, dead: bool, force: bool, minutes: float | None, yes: bool
) -> None:
    """Drain the nodes and see to it that no job is left on them; raises WorkersFailed where one is, after the time."""
    if not head.has_slurm():
        return
    keep = f"to keep it in service, on the head: sudo slurm-drain remove-node --in {','.join(names)}"
    head.drain("remove-node", names, "it is being removed")
    if dead:
        head.set_down(names, "remove-node --dead")
        return
    jobs = head.jobs(names)
    if jobs and force:
        for job in jobs:
            screen.say(f"  {job}")
        if not agree(screen, f"Kill {plural(len(jobs), 'job')}?", yes):
            raise Interrupted(f"No job was killed; {fold(names)} stays drained ({keep}).")
        head.cancel(jobs)
    try:
        left = head.wait_until_empty(names, screen.say, None if minutes is None else minutes * 60)
    except KeyboardInterrupt:
        raise Interrupted(f"Interrupted while jobs went on; {fold(names)} stays drained ({keep}).") from None
    if left:
        told = "; ".join(str(job) for job in left[:5]) + (f"; and {len(left) - 5} more" if len(left) > 5 else "")
        raise WorkersFailed(
            f"{plural(len(left), 'job')} still on {fold(names)} after {minutes:g} min; {told}.\n"
            f"It stays drained, and nothing was removed; the same command waits again ({keep})."
        )
