"""Calls of an action plugin that wait, so that one task makes them all: for node_state and kubernetes_objects.

In a play that ends with role `apply`, what the roles before it describe is kept in a fact of the host, and applied in
one task, in its order: by role `apply`, or before it by a call that says `now`. With `__apply_later` it is kept for a
later play of the host that ends with role `apply`. A task that contacts a node has a process of its own, so a fact is
the only way to keep something for it.

What waits is not applied if the host fails before. Ansible forgets the facts of a task that fails: if a block rescues
it, all calls are made again.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ansible import constants
from ansible.errors import AnsibleActionFail

from clusterctl.inventory.bootstrap_plays import APPLY

Data = dict[str, Any]

in_background = False
"""Whether this process is that of a call in the background. What waited is with it, and other calls may wait since."""

ACTIONS = {"node_state": False, "kubernetes_objects": True}
"""The actions whose calls may wait, and whether those of a task with run_once may."""


def fact(action: str) -> str:
    """Return the name of the fact with the calls that wait: for kubernetes_objects of all hosts of the play."""
    return f"{action}_waiting"


def waiting(action: str, task_vars: Mapping[str, Any]) -> list[Data]:
    """Return the calls of a host that wait."""
    return list((task_vars.get("ansible_facts") or {}).get(fact(action)) or [])


def made(plugin: Any, own: Data | None, task_vars: Mapping[str, Any], *, once: bool = False, **arguments: Any) -> Data:
    """Return the result of a task: of a call that waits now, or of all calls, which the task makes.

    `own` are the arguments of the task's own call with `now`; without it, the task makes what waits. `once`: a task of
    one host for all may wait. `arguments` are the module's besides `calls`. Raises AnsibleActionFail for a task that
    would lose or repeat what waits.
    """
    task = plugin._task
    calls = waiting(task.action, task_vars)
    if calls and (task.delegate_to or task.loop or (task.run_once and not once)):
        raise AnsibleActionFail(
            f"{task.action}: a task with loop, run_once or delegate_to cannot follow calls that wait"
        )
    if own is not None:
        given = {key: value for key, value in own.items() if key != "now"}
        calls.append({"arguments": given, "task": task._uuid, "role": str(task._role or "")})
        if not own["now"] and may_wait(task, once=once):
            # Ansible would show the content of secret files with -v.
            return {"changed": False, "ansible_facts": {fact(task.action): calls}, "_ansible_no_log": True}
    if not calls:
        return {"changed": False, "skipped": True, "skip_reason": "Nothing waits."}
    arguments["calls"] = [call["arguments"] for call in calls]
    found: Data = plugin._execute_module(module_name=task.action, module_args=arguments, task_vars=task_vars)
    return joined(fact(task.action), calls, found, has_own=own is not None)


def may_wait(task: Any, *, once: bool = False) -> bool:
    """Return whether role `apply` follows in the play of a task, and facts are kept in memory only."""
    if task.delegate_to or task.loop or any(task.environment or ()) or task.async_val or (task.run_once and not once):
        return False
    outer, item = None, task
    while item is not None:
        outer, item = getattr(item, "_role", None) or outer, item._parent
    names = [role.get_name() for role in outer._play.roles] if outer and outer._play else []
    follows = outer is not None and APPLY in names and outer.get_name() in names[: names.index(APPLY)]
    return follows and constants.CACHE_PLUGIN == "memory"


def joined(name: str, calls: Sequence[Data], found: Data, *, has_own: bool) -> Data:
    """Return the result of the task that made calls, from that of their module.

    It is the result of the task's own call, the last one, or that of the first call that failed; `changed` and `diff`
    are of all. `applied` has an entry for each call, which the callback reports as the result of its own task. `name`
    is that of the fact.
    """
    found.pop("invocation", None)
    done = found.pop("results", None)
    if not isinstance(done, list) or not all(isinstance(one, dict) for one in done):
        return found  # the module did not run, or could not begin
    diffs = [diff for one in done for diff in one.pop("diff", [])]
    failed = next((place for place, one in enumerate(done) if one.get("failed")), None)
    last = dict(done[-1 if failed is None else failed]) if done and (has_own or failed is not None) else {}
    if failed is not None and not (has_own and failed == len(calls) - 1):
        role, msg = calls[failed]["role"], str(last.get("msg", ""))
        last["msg"] = msg if msg.startswith(f"{role}: ") else f"{role}: {msg}"
    return {
        **found,
        **last,
        **({"diff": diffs} if diffs else {}),
        "changed": any(bool(one.get("changed")) for one in done),
        "applied": [{**one, "task": of["task"]} for of, one in zip(calls, done, strict=False)],
        **({} if in_background else {"ansible_facts": {name: []}}),
    }
