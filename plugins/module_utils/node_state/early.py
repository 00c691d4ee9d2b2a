"""Files that are written before packages are installed."""

from __future__ import annotations

from ansible.module_utils.node_state.items import Paths, converge, run_commands


def settle(call, first):
    """Set the early files again, because scripts of packages may have changed the owner and mode of all files there.

    A file that was changed before is not reported twice, and its commands do not run twice.
    """
    before, edited, count = {one["name"] for one in call.changes}, list(call.edited), len(call.changes)
    converge(call, Paths("file"), first)
    call.edited = edited
    call.changes[count:] = [one for one in call.changes[count:] if one["name"] not in before]
    names = {one["name"] for one in call.changes[count:]}
    run_commands(call, [item for item in first if item.name in names])
