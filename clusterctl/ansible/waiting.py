"""Calls of an action plugin that wait, so that one task makes them all: for node_state and kubernetes_objects.

In a play that ends with role `apply`, what the roles before it describe is kept in a fact of the host, and applied in
one task, in its order: by role `apply`, or before it by a call that says `now`. Facts are kept in memory only. Ansible
runs a plugin in a process of its own, so a fact is its only way to keep something for a later task.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from clusterctl.inventory.bootstrap_plays import APPLY

Data = dict[str, Any]


def may_wait(task: Any, *, once: bool = False) -> bool:
    """Return whether role `apply` follows in the play of a task. `once`: a task of one host for all may wait."""
    if task.delegate_to or task.loop or any(task.environment or ()) or task.async_val or (task.run_once and not once):
        return False
    outer, item = None, task
    while item is not None:
        outer, item = getattr(item, "_role", None) or outer, item._parent
    names = [role.get_name() for role in outer._play.roles] if outer and outer._play else []
    return outer is not None and APPLY in names and outer.get_name() in names[: names.index(APPLY)]


def left(fact: str, task_vars: Mapping[str, Any]) -> list[Data]:
    """Return the calls that wait, of the host that the variables are of."""
    return list((task_vars.get("ansible_facts") or {}).get(fact) or [])


def call(task: Any, arguments: Data) -> Data:
    """Return a call as it is kept, with what names its task in reports."""
    return {"arguments": arguments, "task": task._uuid, "role": str(task._role or "")}


def keep(fact: str, calls: Sequence[Data]) -> Data:
    """Return the result of a task whose call waits. Ansible would show the content of secret files with -v."""
    return {"changed": False, "ansible_facts": {fact: list(calls)}, "_ansible_no_log": True}


def joined(fact: str, calls: Sequence[Data], found: Data, *, has_own: bool) -> Data:
    """Return the result of the task that made calls, from that of their module, which ends at the first that fails.

    It is the result of the task's own call, the last one, or that of the call that failed. `applied` has an entry for
    each call, which the callback reports as the result of its own task.
    """
    found.pop("invocation", None)
    done = found.pop("results", None)
    if not isinstance(done, list) or not all(isinstance(one, dict) for one in done):
        return found  # the module did not run, or could not begin
    diffs = [diff for one in done for diff in one.pop("diff", [])]
    last = dict(done[-1]) if done and (has_own or done[-1].get("failed")) else {}
    if last.get("failed") and not (has_own and len(done) == len(calls)):
        role, msg = calls[len(done) - 1]["role"], str(last.get("msg", ""))
        last["msg"] = msg if msg.startswith(f"{role}: ") else f"{role}: {msg}"
    return {
        **found,
        **last,
        **({"diff": diffs} if diffs else {}),
        "changed": any(bool(one.get("changed")) for one in done),
        "applied": [{**one, "task": of["task"]} for of, one in zip(calls, done, strict=False)],
        "ansible_facts": {fact: []},
    }
