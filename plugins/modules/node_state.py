#!/usr/bin/python
"""Converge one role's part of a node to a described state, record it, compare it later, undo it.

This is the node's part of `node_state`; its documentation is in node_state.yml. The controller's part
(plugins/action/node_state.py) has checked the arguments and rendered the templates. Packages, files and the other
kinds of item are in module_utils/node_state/items.py.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.node_state.drift import compare
from ansible.module_utils.node_state.early import settle
from ansible.module_utils.node_state.insert import entries
from ansible.module_utils.node_state.items import (
    Entry,
    Packages,
    Paths,
    Unit,
    Units,
    converge,
    orphaned,
    run_commands,
)
from ansible.module_utils.node_state.kernel import Setting, Settings
from ansible.module_utils.node_state.keys import with_key
from ansible.module_utils.node_state.packages import Package, package_manager
from ansible.module_utils.node_state.record import Call, original, record_path
from ansible.module_utils.node_state.restore import before_path, restored
from ansible.module_utils.node_state.systemd import reload_units, stay_up
from ansible.module_utils.node_state.tools import NodeError, alone_on_node, attempt, clean, environment, run, said


def present(call, given, manager):
    """Converge in a fixed order: early files, package sources, packages, directories, files, kernel settings, units."""
    packages = [Package(**package) for package in given["packages"]]
    if given["download_only"]:
        with environment(given["environment"]):
            Packages(manager()).download(call, packages)
        return
    files, released = restored(call, given["files"])
    first = entries(call.scope, [item for item in files if item.get("before_packages")])
    converge(call, Paths("file"), first)
    run_commands(call, first)
    sources = [item for source in given["repositories"] for item in source[type(manager()).__name__]]
    converge(call, Paths("repository"), [Entry(**with_key(item, manager(), call.check)) for item in sources])
    if packages:
        kind = Packages(manager())
        unseen = call.check and any(one["kind"] == "repository" for one in call.changes)
        along = kind.aim(packages, call.check, unseen) if given["upgrade"] else []
        converge(call, kind, packages)
        call.changes += along
        if manager().refreshed and not call.check:  # a refresh may replace a key, which must be recorded
            converge(call, Paths("repository"), [Entry(**with_key(item, manager(), False)) for item in sources])
        states = {package.name: call.record["items"]["package:" + package.name]["now"] for package in packages}
        call.versions = {name: state["version"] for name, state in states.items() if state["version"]}
        if not call.check:
            settle(call, first)
    converge(call, Paths("directory"), [Entry(type="directory", **item) for item in given["directories"]])
    rest = entries(call.scope, [item for item in files if not item.get("before_packages")])
    units = [Unit(**unit) for unit in given["units"]]
    orphans = orphaned(rest, units)
    converge(call, Units(), orphans)  # systemctl does not disable a unit without a file
    call.named -= {"unit:" + unit.name for unit in orphans}  # the next run has none, with the same arguments
    converge(call, Paths("file"), rest)
    run_commands(call, rest)
    converge(call, Settings(), [Setting(**setting) for setting in given["sysctl"]])
    reload_units(call)
    converge(call, Units(), units)
    if not call.watch.first:  # else settle_daemons does it
        call.pending.clear()
    if not call.check:
        for name in released:
            del call.record["items"]["file:" + name]
        if not given["partial"]:
            call.mark_former()
        if packages and (former := call.former_packages()):
            call.forget_removed(Packages(manager()).read([Package(name) for name in former]))
        call.save(given["union"])
        for name in released:
            original(name).unlink(missing_ok=True)


def absent(call, _given, manager):
    """Restore the state from before the scope, except items of other scopes. A killed undo is started again."""
    mine = {key: item for key, item in sorted(call.record["items"].items()) if key not in call.others}

    def of(label):
        return [(key.split(":", 1)[1], item) for key, item in mine.items() if key.startswith(label + ":")]

    here = Units().show([name for name, _ in of("unit")])
    units = [before_unit(name, item) for name, item in of("unit") if here[name]["LoadState"] != "not-found"]
    converge(call, Units(), [unit for unit in units if not unit.started])
    for label in ("file", "repository"):
        converge(call, Paths(label), [before_path(call, name, item) for name, item in of(label)])
    failed = [name for name, unit in here.items() if unit["ActiveState"] == "failed"]
    if failed and not call.check:
        run("systemctl", "reset-failed", *failed)  # else systemd keeps failed units whose files are removed
    settings = [Setting(name, item["before"]["value"]) for name, item in of("sysctl")]
    converge(call, Settings(), [setting for setting in settings if setting.value is not None])
    reload_units(call)
    converge(call, Units(), [unit for unit in units if unit.started])
    stay_up(call.watch)
    was = [(name, item["before"]) for name, item in of("package")]
    if was:
        packages = Packages(manager())
        converge(call, packages, [Package(n, "", b["held"], b["version"] is None) for n, b in was])
        orphans = manager().orphans(call.pulled) if call.pulled and not call.check else []
        converge(call, packages, [Package(name, absent=True) for name in orphans])
    for name, item in reversed(of("directory")):
        if item["before"]["type"] == "absent" and Path(name).is_dir() and any(Path(name).iterdir()):
            call.notes.append(f"directory {name} is not empty and was not removed")
        else:
            converge(call, Paths("directory"), [before_path(call, name, item)])
    if not call.check:
        for name, _ in of("file") + of("repository"):
            original(name).unlink(missing_ok=True)
        record_path(call.scope).unlink(missing_ok=True)


def before_unit(name, item):
    was = item["before"]
    enabled = {"enabled": True, "disabled": False}.get(was["enablement"])
    return Unit(name, enabled, was["state"] == "up", was["enablement"] == "masked", item["restart_on"])


def probe(call, _given, manager):
    """Compare every recorded scope with the node: [{scope, kind, name, what}]."""
    return compare(call, manager)[0]


def make(call, given, manager):
    """Make one call; return its result."""
    began = time.monotonic()

    def carry_out():
        if given["state"] != "probe":
            call.open()
        return {"present": present, "absent": absent, "probe": probe}[given["state"]](call, given, manager)

    error, drift = attempt(carry_out)
    more = error or ({} if drift is None else {"drift": drift})
    return {**call.result(), **more, "seconds": round(time.monotonic() - began, 3)}


def settle_daemons(made, following=None):
    """Wait until the daemons that calls have started have stayed up for a moment. Calls whose daemons have not fail.

    If a call follows, only those of which that is known without waiting, and those of its scope, which it reads.
    """

    def wait():
        stay_up(call.watch)
        call.pending.clear()
        call.save()

    for call, result in made:
        due = following is None or call.watch.is_over() or call.scope == following.get("name")
        if call.watch.first and "failed" not in result and due:
            result.update(attempt(wait)[0])


def main():
    """Make the calls in their order until one fails. The result has that of each call.

    Daemons have to stay up for a moment, in which later calls are made. So an earlier call than the last one can fail.
    """
    # Without no_log the node's journal shows the content of files.
    spec = {"calls": {"type": "list", "elements": "dict", "no_log": True, "required": True}}
    spec["record_key"] = {"type": "str", "no_log": True}
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    module.no_log_values.clear()  # values of `calls` are words like root; secrets are never in a result
    os.umask(0o022)
    calls, notes, made = module.params["calls"], [], []
    manager = functools.lru_cache(lambda choice: package_manager(choice, notes))
    writes = not module.check_mode and any(given["state"] != "probe" for given in calls)
    try:
        with alone_on_node(notes) if writes else contextlib.nullcontext():
            for given in calls:
                settle_daemons(made, given)
                if any("failed" in result for _, result in made):
                    break
                for call, _ in made:
                    call.watch.loosen()
                call = new_call(given, module)
                result = make(call, given, functools.partial(manager, given["package_manager"]))
                made.append((call, {**result, "notes": result["notes"] + notes}))
                notes.clear()
            settle_daemons(made)
    except (NodeError, OSError) as error:  # of the lock. Without `invocation`, -vvv shows the content of secret files.
        module.fail_json(msg=said(error) if isinstance(error, OSError) else clean(str(error)), invocation={})
    results = [result for _, result in made]
    failed = next(({"failed": True, "msg": one["msg"]} for one in results if "failed" in one), {})
    module.exit_json(changed=any(one["changed"] for one in results), results=results, invocation={}, **failed)


def new_call(given, module):
    """Return a call with the settings of the run."""
    params = module.params
    return Call(given.get("name"), module.check_mode, module._diff, params["record_key"], module._verbosity > 0)


if __name__ == "__main__":
    main()
