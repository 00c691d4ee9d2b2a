"""The kinds of item that node_state knows: paths, packages, kernel settings, units.

Each kind is a class that reads items, compares them and changes them; `converge` is the common loop. It records
planned changes before it makes them (record.py), so that the next run completes those of a killed run.
"""

from __future__ import annotations

import base64
import difflib
import functools
import hashlib
import itertools
import os
import shlex
import stat
import time
from dataclasses import dataclass, field, replace
from grp import getgrnam
from pathlib import Path
from pwd import getpwnam

from ansible.module_utils.node_state.packages import Package, come_along, matches, targets
from ansible.module_utils.node_state.record import original
from ansible.module_utils.node_state.tools import (
    TEXT_LIMIT,
    NodeError,
    about,
    change,
    clean,
    complaint,
    run,
    seconds,
    store,
    successor,
    sync,
    write,
)

UNIT_HOME = "/etc/systemd/system"


def converge(call, kind, items):
    """Compare all items, record the planned changes, make them, and record the new state."""
    states, plan, changes = kind.read(items), {}, {}
    for item in items:
        with about(kind.label, item.name):
            due = kind.difference(call, item, states[item.name])
        if due:
            plan[item.name], changes[item.name] = item, change(kind.label, item.name, *due)
        call.note(f"{kind.label}:{item.name}", states[item.name], **kind.beside(item))
    triggers = [kind.trigger(item, states[name]) for name, item in plan.items()]
    call.pending += [trigger for trigger in triggers if trigger and trigger not in call.pending]
    try:
        if plan and not call.check:
            kind.prepare(call, plan, states)
            call.save()
            kind.apply(call, plan, states)
            for name, state in kind.read(items).items():
                call.note(f"{kind.label}:{name}", state)
    except (NodeError, OSError):
        after = kind.read(items)
        changes = {name: made for name, made in changes.items() if after[name] != states[name]}
        raise
    finally:
        call.changes += changes.values()


class Kind:
    """The interface of a kind of item for `converge`. A state is a flat mapping; `item` makes an item from a name.

    `difference(call, item, state)` returns the arguments of node_tools.change after the name, () without a difference.
    """

    label = ""
    item = None

    def beside(self, item):
        """Return values for the record besides the state."""
        return {}

    def trigger(self, item, state):
        """Return the trigger for restart_on, reload_on and on_change when the item changes from `state`."""
        return ""

    def prepare(self, call, plan, states):
        """Store what must be on disk before `apply` changes the node."""


# ---------------------------------------------------------------------------------------------------------- paths


@dataclass
class Entry:
    """The wanted state of a path; `data` is base64, `owner` and `group` are names or numbers."""

    name: str
    type: str = "file"  # file, directory, link, absent
    data: str = ""
    target: str = ""
    owner: str = "root"
    group: str = "root"
    mode: str = "0644"
    validate: str = ""
    on_change: list = field(default_factory=list)
    in_effect: list = field(default_factory=list)
    secret: bool = False
    before_packages: bool = False

    @property
    def content(self):
        return base64.b64decode(self.data)

    def wanted(self, check):
        """Return the wanted state in the form of `inspect`. In check mode, an unknown user is allowed."""
        if self.type in ("absent", "link"):
            return {"type": self.type, **({"target": self.target} if self.type == "link" else {})}
        owner = {"uid": identity(self.owner, getpwnam, check), "gid": identity(self.group, getgrnam, check)}
        state = {"type": self.type, "mode": f"{int(self.mode, 8):04o}", **owner}
        return {**state, "hash": digest(self.content)} if self.type == "file" else state


def identity(name, find, check):
    try:
        return int(name) if name.isdigit() else find(name)[2]
    except KeyError:
        if check:
            return None
        raise NodeError(f"this node has no {'user' if find is getpwnam else 'group'} {name}") from None


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def inspect(path, follow=False):
    """Return the state of `path`: type, mode, uid, gid, and the hash of a file or the target of a link."""
    try:
        status = Path(path).stat() if follow else Path(path).lstat()
        if stat.S_ISLNK(status.st_mode):
            return {"type": "link", "target": os.readlink(path)}  # noqa: PTH115 (Python 3.8)
        type_ = {stat.S_IFDIR: "directory", stat.S_IFREG: "file"}.get(stat.S_IFMT(status.st_mode), "special file")
        mode = f"{stat.S_IMODE(status.st_mode):04o}"
        state = {"type": type_, "mode": mode, "uid": status.st_uid, "gid": status.st_gid}
        return {**state, "hash": digest(Path(path).read_bytes())} if type_ == "file" else state
    except (FileNotFoundError, NotADirectoryError):
        return {"type": "absent"}


def difference(current, wanted):
    """Return the differences of two states as text; empty if there are none."""
    if current.get("type") != wanted.get("type"):
        created = "created" if current["type"] == "absent" else f"replaced a {current['type']}"
        return "removed" if wanted["type"] == "absent" else created
    parts = [key for key in wanted if current.get(key) != wanted[key]]
    return ", ".join("content" if key == "hash" else f"{key} {wanted[key]}, was {current.get(key)}" for key in parts)


class Paths(Kind):
    """Files, links and directories; package sources are files with another label."""

    def __init__(self, label):
        self.label = label
        self.item = functools.partial(Entry, type="directory" if label == "directory" else "file")

    def read(self, items):
        return {item.name: inspect(item.name, follow=self.label == "directory") for item in items}

    def beside(self, item):
        return {"secret": item.secret}

    def trigger(self, item, state):
        return item.name

    def difference(self, call, item, state):
        if self.label == "directory" and Path(item.name).is_symlink() and Path(item.name).lstat().st_uid != 0:
            raise NodeError("it is a link that root does not own, and its owner could redirect the change")
        wanted = item.wanted(call.check)
        what, known = difference(state, wanted), call.record["items"].get(f"{self.label}:{item.name}", {}).get("now")
        if what and known and not item.secret and not difference(known, wanted):
            call.edited.append(item.name)
        if not what and item.in_effect and not succeeds(item.in_effect):
            what = "not in effect"
        fit = ("absent", "directory") if self.label == "directory" else ("absent", "file", "link")
        if what and state["type"] not in fit:
            raise NodeError(f"it is a {state['type']}, which is not removed")
        if what and call.want_diff and not item.secret:
            old = Path(item.name).read_bytes() if state["type"] == "file" else b""
            texts = [data.decode("utf-8", "replace").splitlines() for data in (old, item.content)]
            lines = list(difflib.unified_diff(*texts, f"before: {item.name}", f"after: {item.name}", lineterm=""))
            lines = ["binary content"] if b"\0" in old + item.content else lines
            text = clean("\n".join([*lines, f"{self.label} {item.name}: {what}", ""]), 1 << 20)
            call.diffs.append({"prepared": text if len(text) <= TEXT_LIMIT else text[:TEXT_LIMIT] + "\n[…]\n"})
        kept = "changed" if state["type"] == item.type else "created" if state["type"] == "absent" else "replaced"
        return ("removed" if item.type == "absent" else kept, what) if what else ()

    def prepare(self, call, plan, states):
        """Store originals that are replaced for the first time, and make missing directories."""
        parents = {str(parent) for item in plan.values() if item.type != "absent" for parent in Path(item.name).parents}
        missing = sorted(parent for parent in parents if parent not in plan and not Path(parent).exists())
        if missing:
            converge(call, Paths("directory"), [Entry(path, "directory", mode="0755") for path in missing])
        for name, item in plan.items():
            before = call.record["items"][f"{self.label}:{name}"]["before"]
            first = before == call.recordable(states[name], item.secret) and not original(name).exists()
            if first and states[name]["type"] == "file":
                with about(self.label, name):
                    store(original(name), Path(name).read_bytes())

    def apply(self, call, plan, states):
        for name, item in plan.items():
            with about(self.label, name):
                self.put(item, Path(name), states[name], item.wanted(check=False))
        if Path("/sys/fs/selinux/enforce").exists():  # a renamed file keeps the label of its temporary name
            run("restorecon", *[name for name in plan if os.path.lexists(name)])

    def put(self, item, path, current, wanted):
        if item.type == "absent":
            path.rmdir() if current["type"] == "directory" else path.unlink()
            sync(path.parent)
        elif item.type == "link":
            if not Path(path.parent, item.target).exists():
                raise NodeError(f"the link's target {item.target} does not exist")
            new = successor(path)
            new.symlink_to(item.target)
            new.rename(path)
            sync(path.parent)
        elif item.type == "file" and current.get("hash") != wanted["hash"]:
            accept = functools.partial(self.validate, item) if item.validate else None
            write(path, item.content, wanted["uid"], wanted["gid"], int(wanted["mode"], 8), accept)
        else:
            if current["type"] == "absent":
                path.mkdir(mode=0o700)
            # The owner of the directory, a daemon's user, could meanwhile have replaced it with a link to any file.
            flags = 0 if path.is_symlink() and path.lstat().st_uid == 0 else os.O_NOFOLLOW
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | flags)
            os.fchown(descriptor, wanted["uid"], wanted["gid"])
            os.fchmod(descriptor, int(wanted["mode"], 8))
            os.close(descriptor)

    def validate(self, item, path):
        argv = [word.replace("%s", path) for word in shlex.split(item.validate)]
        status, output = run(*argv, check=False, timeout=300)
        if status != 0:
            why = "(its output is withheld, the file is secret)" if item.secret else complaint(output)
            raise NodeError(f"{argv[0]} refuses the new content (exit code {status}), the file was not changed\n{why}")


def succeeds(argv):
    """Return whether a command ends with 0. The call may have to write the program first."""
    try:
        return run(*argv, check=False, timeout=60)[0] == 0
    except NodeError:
        return False


def run_commands(call, items):
    """Run the on_change commands of every file that changed, now or in a killed run; each once."""
    due = [tuple(argv) for item in items if item.name in call.pending for argv in item.on_change]
    for argv in dict.fromkeys(due):
        with about("on_change", " ".join(argv)):
            if not call.check:
                run(*argv, timeout=600)
        call.changes.append(change("command", argv[0], "ran", "run"))


# ------------------------------------------------------------------------------------------------------- packages


class Packages(Kind):
    """A state is the version, or None, and whether it is held. All changes are made in one transaction."""

    label = "package"
    item = Package

    def __init__(self, manager):
        self.manager, self.targets = manager, {}

    def aim(self, items, planned, unseen=False):
        """Plan upgrades of installed packages too; return the further packages that this changes.

        With `unseen`, a dry run does not see the packages of a changed source: a pin counts that no source offers.
        """
        self.targets, rest = targets(self.manager, items, self.read(items), planned)
        self.targets.update({item.name: item.version for item in rest if item.url})
        due = [item for item in rest if not item.url]
        self.targets.update(self.resolve(due, lenient=unseen))
        along = come_along(self.manager, self.targets, items)
        self.targets.update({item.name: item.version for item in due if item.name not in self.targets})
        return along

    def fit(self, item, state):
        stays = state["version"] and not item.absent
        return self.targets.get(item.name, state["version"]) == state["version"] if stays else item.met(state)

    def read(self, items):
        self.all = self.manager.installed([item.name for item in items])
        return {item.name: self.all.get(item.name, {"version": None, "held": False}) for item in items}

    def trigger(self, item, state):
        return "" if self.fit(item, state) and item.name not in self.manager.broken else "package:" + item.name

    def difference(self, call, item, state):
        steps = [("repaired", "repaired")] if item.name in self.manager.broken else []
        here, target = state["version"], self.targets.get(item.name)
        if not self.fit(item, state):
            comes = ("upgraded", f"version {target}, was {here}", here, target) if here else ("installed", "installed")
            steps.append(("removed", "removed") if item.absent else comes)
        elif not item.met(state):
            call.notes.append(f"{item.name} {state['version']} is pinned to {item.version}: see clusterctl upgrade")
        if item.hold not in (None, state["held"]) and not item.absent:
            steps.append(("held", "held") if item.hold else ("released", "no longer held"))
        action, _, *versions = next((step for step in steps if step[0] != "repaired"), steps[0]) if steps else ("", "")
        return (action, ", ".join(step[1] for step in steps), *versions) if steps else ()

    def apply(self, call, plan, states):
        items, before = list(plan.values()), set(self.all)
        if self.manager.broken or self.manager.interrupted:
            self.manager.repair()
            states = self.read(items)
        due = [item for item in items if not self.fit(item, states[item.name])]
        loose = [item.name for item in due if item.hold is not None and states[item.name]["held"]]
        if loose:
            self.manager.hold(loose, False)
        if due:
            self.manager.transact(self.resolve(due), [item.name for item in due if item.absent])
            states = self.read(items)
            call.record["pulled"] = sorted({*call.record["pulled"], *(set(self.all) - before - set(plan))})
        wrong = [i.name for i in due if not (i.met(states[i.name]) and self.fit(i, states[i.name]))]
        if wrong:
            raise NodeError(f"packages: the transaction succeeded without {', '.join(wrong)} (a virtual name?)")
        for held in (True, False):
            if names := [i.name for i in items if i.hold is held is not states[i.name]["held"] and not i.absent]:
                self.manager.hold(names, held)

    def resolve(self, due, lenient=False):
        """Return {name: version, file, or "" for any version} to install. Refresh the index if it lacks a package."""
        own = {item.name: self.manager.fetch(item) for item in due if item.url and not item.absent}
        due = [replace(i, version=self.targets.get(i.name, i.version)) for i in due if not (i.absent or i.url)]
        for fresh in (False, True):
            if not (fresh and self.manager.refreshed):
                offered = self.manager.available([item.name for item in due], fresh) if due else {}
                chosen = {i.name: [v for v in offered.get(i.name, ()) if matches(v, i.version)] for i in due}
            if all(chosen.values()) or (fresh and lenient):
                return {**own, **{i.name: chosen[i.name][0] if i.version else "" for i in due if chosen[i.name]}}
        parts = []
        for item in (item for item in due if not chosen[item.name]):
            others = ", ".join(offered.get(item.name, ())[:8])
            pin = f"{item.name} is pinned to {item.version}, but the sources offer {others}"
            parts.append(pin if others else f"no source offers {item.name}")
        raise NodeError("packages: " + "; ".join(parts) + f"\n{self.manager.warnings}".rstrip())

    def download(self, call, items):
        """Download what a later call will install. A failure is a note: the later call may succeed, or reports it."""
        states = self.read(items)
        due = [item for item in items if not self.fit(item, states[item.name])]
        try:
            if due and not call.check and (chosen := self.resolve(due, lenient=True)):
                self.manager.transact(chosen, [], download_only=True)
        except NodeError as error:
            call.notes.append(f"packages were not downloaded early: {error}")


# ----------------------------------------------------------------------------------------------------------- units


@dataclass
class Unit:
    name: str
    enabled: bool | None = True  # None: not changed
    started: bool = True
    masked: bool = False
    restart_on: list = field(default_factory=list)
    reload_on: list = field(default_factory=list)
    reload_tells: bool = False  # its reload notifies other hosts, a restart does not


def is_up(unit):
    """Return whether a unit is started: active, or a one-shot service that has succeeded since boot."""
    once = unit.get("Type") == "oneshot" and unit["RemainAfterExit"] == "no" and unit["ActiveState"] == "inactive"
    ran = once and unit["ExecMainStartTimestampMonotonic"] != "0" and unit["Result"] == "success"
    return ran or unit["ActiveState"] in ("active", "reloading", "refreshing")


def verbs(item, unit, restart=False, reload=False):
    """Return the systemctl verbs for a unit with these properties, in order."""
    parts, load, file_state = [], unit["LoadState"], unit["UnitFileState"]
    down = unit["ActiveState"] in ("inactive", "failed")
    if item.masked:
        return [*([] if down else ["stop"]), *([] if load == "masked" else ["mask"])]
    if load == "masked":
        parts.append("unmask")
    if item.enabled and (load in ("not-found", "masked") or file_state in ("disabled", "linked", "enabled-runtime")):
        parts.append("enable")
    elif item.enabled is False and file_state in ("enabled", "enabled-runtime", "linked"):
        parts.append("disable")
    if not item.started:
        return parts + ([] if down else ["stop"])
    ran = unit.get("ExecMainStartTimestampMonotonic") != "0"  # a timer has none
    tell = item.reload_tells and bool(reload) and ran and unit["CanReload"] == "yes"
    if not is_up(unit):
        return [*parts, "start", *["reload"] * tell]
    if restart or (reload and unit["CanReload"] != "yes"):
        return [*parts, "restart", *["reload"] * tell]
    return [*parts, "reload"] if reload else parts


class Units(Kind):
    """A state is systemd's UnitFileState, and whether the unit is up."""

    label = "unit"
    item = Unit
    properties = (
        "Id,LoadState,ActiveState,SubState,UnitFileState,Type,RemainAfterExit,Result,NRestarts,InvocationID,CanReload,"
        "NeedDaemonReload,TimeoutStartUSec,ExecMainStartTimestampMonotonic,FragmentPath,DropInPaths"
    )

    def __init__(self, patient=True):
        self.patient = patient

    def show(self, names):
        """Return {name: properties} from one call; if patient, after starting units have started or timed out."""
        begun = time.monotonic()
        while names:
            # systemctl answers in the order of its arguments, aliases included.
            output = run("systemctl", "show", "--property=" + self.properties, *names)[1]
            blocks = [dict(line.split("=", 1) for line in block.splitlines()) for block in output.strip().split("\n\n")]
            found = {name: blocks[at] for at, name in enumerate(names)}
            busy = [u for u in found.values() if u["ActiveState"] == "activating" and u["SubState"] != "auto-restart"]
            patience = max((seconds(unit.get("TimeoutStartUSec", "")) for unit in busy), default=0)
            if not self.patient or time.monotonic() - begun >= patience:
                return found
            time.sleep(0.2)
        return {}

    def read(self, items):
        self.found = self.show([item.name for item in items])
        found = self.found.items()
        return {name: {"enablement": u["UnitFileState"], "state": "up" if is_up(u) else "down"} for name, u in found}

    def beside(self, item):
        return {"restart_on": [*item.restart_on, *item.reload_on]}

    def verbs(self, call, item):
        due = [set(call.pending) & set(names) for names in (item.restart_on, item.reload_on)]
        return verbs(item, self.found[item.name], *due)

    def difference(self, call, item, state):
        unit = self.found[item.name]
        parts = [{"stop": "stopped"}.get(verb, verb.rstrip("e") + "ed") for verb in self.verbs(call, item)]
        unknown = unit["LoadState"] not in ("loaded", "masked") and parts not in ([], ["stopped"])
        if unknown and not call.check and not item.masked:
            raise NodeError(f"systemd says {unit['LoadState']}; {self.last_words(item.name, unit)}")
        because = sorted(set(call.pending) & {*item.restart_on, *item.reload_on})
        because = because if {"restarted", "reloaded"} & set(parts) else []
        action = next((one for one in ("restarted", "started", "reloaded", "stopped") if one in parts), "changed")
        return (action, ", ".join(parts) + f" ({', '.join(because)} changed)" * bool(because)) if parts else ()

    def apply(self, call, plan, states):
        if any(unit["NeedDaemonReload"] == "yes" for unit in self.found.values()):
            run("systemctl", "daemon-reload")
        parts = {name: self.verbs(call, item) for name, item in plan.items()}
        for verb in ("unmask", "stop", "mask", "enable", "disable"):
            names = [name for name in plan if verb in parts[name]]
            if names:
                run("systemctl", verb, *names)
        failed = [name for name in plan if self.found[name]["ActiveState"] == "failed"]
        if failed:
            run("systemctl", "reset-failed", *failed)  # the start limit of an earlier crash loop would refuse the start
        last = [(verb, name) for name in plan for verb in parts[name] if verb in ("start", "restart", "reload")]
        for verb, group in itertools.groupby(last, key=lambda one: one[0]):
            names = [name for _, name in group]
            status, output = run("systemctl", verb, *names, check=False, timeout=900)
            if status != 0:
                self.insist_up(names, f"did not {verb}")
                raise NodeError(f"units: systemctl {verb} {' '.join(names)}: {complaint(output)}")
        call.watch.add(self.insist_up(list(dict.fromkeys(name for _, name in last)), "did not stay up"))

    def insist_up(self, names, what):
        found = self.show(names)
        down = [f"unit {name} {what}: {self.last_words(name, unit)}" for name, unit in found.items() if not is_up(unit)]
        if down:
            raise NodeError("\n".join(down))
        return found

    def last_words(self, name, unit):
        """Return a unit's state and its last 15 lines. `journalctl -u` misses the last lines of an exiting process."""
        run("journalctl", "--sync", check=False)
        its = (f"_SYSTEMD_UNIT={unit['Id']}", "+", f"UNIT={unit['Id']}", "_UID=0")
        _, output = run("journalctl", "--quiet", "--no-pager", "-n", "15", "-o", "short", *its, check=False)
        return f"{unit['ActiveState']} ({unit['SubState']})\n{clean(output) or 'the journal has no lines of this unit'}"


def orphaned(files, units):
    """Return the units to stop and disable, because the call removes their files: those that it does not list itself.

    A unit whose file an earlier run has removed may still run.
    """
    listed = {unit.name for unit in units}
    paths = [Path(file.name) for file in files if file.type == "absent" and str(Path(file.name).parent) == UNIT_HOME]
    kinds = (".service", ".timer", ".socket", ".path", ".mount")
    paths = [path for path in paths if path.suffix in kinds and "@." not in path.name]
    found = Units().show([path.name for path in paths if path.name not in listed])
    here = [path.name for path in paths if path.exists()]
    return [
        Unit(name, enabled=False, started=False)
        for name, unit in found.items()
        if name in here or (unit["LoadState"] == "not-found" and is_up(unit))
    ]
