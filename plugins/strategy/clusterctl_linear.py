"""Ansible's linear strategy, which forks no process for a task that contacts no node, and has calls in the background.

Ansible forks a process for each task on each host, also where the task is skipped: 18 ms of CPU, where the same in its
own process takes 2.5 ms (docs/benchmarks.md). The task is carried out by the same code of Ansible's in both cases.

Calls with `in_background` continue during the next plays of other hosts (clusterctl/ansible/background).
"""

from __future__ import annotations

import contextlib
import copy
import sys
from collections.abc import Iterator
from typing import Any

from ansible import constants, context
from ansible._internal import _task
from ansible._internal._templating._engine import TemplateEngine
from ansible.errors import AnsibleError
from ansible.executor.play_iterator import HostState
from ansible.executor.process import worker
from ansible.plugins.loader import get_plugin_loader_namespace
from ansible.plugins.strategy import linear

from clusterctl.ansible import background, waiting

DOCUMENTATION = r"""
name: clusterctl_linear
short_description: Ansible's linear strategy, which forks no process for a task that contacts no node
description:
  - Tasks that are skipped, set variables, check or include, and calls that wait, run in Ansible's own process.
  - A host waits for all others at the end of a task, as in P(ansible.builtin.linear#strategy).
  - A call of node_state or slurm_job_proof with C(in_background) continues while the next plays run on other hosts.
  - In a play with the variable C(__calls_continue) it continues until a task contacts its host. Such a play must
    not rescue failures nor delegate.
author: the clusterctl authors
"""

LOCAL = frozenset(
    prefix + name
    for prefix in ("", "ansible.builtin.")
    for name in ("assert", "debug", "fail", "include_tasks", "include_vars", "set_fact")
)
"""Actions that contact no node. Without group_by, which since ansible-core 2.21 asks the process that forked it."""

LATER = {"now": (False,), "state": ("present", "absent")}
"""The values of arguments of calls that wait."""

HIDDEN = {"_raw_params", "_variable_params"}
"""Arguments by which a template hides others."""

NOT_A_HOST = "calls in the background"
"""What Ansible counts as one more lost host, so that they are not exactly those of the play, and it continues."""


class _Stream:
    """A stream of this process, for code that asks what a process of its own has written."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @staticmethod
    def getvalue() -> str:
        """Return nothing: all is written at once."""
        return ""


class StrategyModule(linear.StrategyModule):
    """The strategy of all playbooks (ansible.cfg)."""

    def run(self, iterator: Any, play_context: Any) -> Any:
        """Wait for the calls that continue in the background on the play's hosts, then run the play."""
        self._set_hosts_cache(iterator._play)
        self._before = self._lost(iterator)
        try:
            if not iterator._play.vars.get(background.CONTINUE):
                self._join(iterator, [background.CALLS[name] for name in self._hosts_cache if name in background.CALLS])
            result = super().run(iterator, play_context)
            if self._is_over(iterator):  # Ansible ends the run
                self._end_calls(iterator)
        except BaseException:
            with contextlib.suppress(AnsibleError):  # the processes may have ended by the same signal
                self._end_calls(iterator)
            raise
        return result

    def _lost(self, iterator: Any) -> set[str]:
        """Return the hosts that have failed or are unreachable, as Ansible counts them after a play."""
        return {*iterator.get_failed_hosts(), *self._tqm._failed_hosts, *self._tqm._unreachable_hosts}

    def _is_over(self, iterator: Any) -> bool:
        """Return whether all hosts of the play have failed in it or are unreachable."""
        return len(self._lost(iterator) - self._before) == len(self._hosts_cache)

    def _get_next_task_lockstep(self, hosts: list[Any], iterator: Any) -> list[tuple[Any, Any]]:
        """Return the hosts of the next task, each with it. Calls that continue on those that it contacts end before."""
        found: list[tuple[Any, Any]] = super()._get_next_task_lockstep(hosts, iterator)
        if not iterator._play.vars.get(background.CONTINUE):
            return found
        continuing = [pair for pair in found if pair[0].name in background.CALLS and self._contacts(iterator, *pair)]
        if not continuing:
            return found
        self._join(iterator, [background.CALLS[host.name] for host, _ in continuing])
        lost = self._lost(iterator)
        left = [pair for pair in found if pair[0].name not in lost]
        # Without a host, Ansible would end the play.
        return left or self._get_next_task_lockstep([host for host in hosts if host.name not in lost], iterator)

    def _contacts(self, iterator: Any, host: Any, task: Any) -> bool:
        """Return whether a task contacts its host."""
        if task.action in constants._ACTION_META:
            return False
        hosts = {"_hosts": self._hosts_cache, "_hosts_all": self._hosts_cache_all}
        task_vars = self._variable_manager.get_vars(play=iterator._play, host=host, task=task, **hosts)
        self.add_tqm_variables(task_vars, play=iterator._play)
        return not contacts_no_node(task, task_vars, self._loader)

    def _queue_task(self, host: Any, task: Any, task_vars: dict[str, Any], play_context: Any) -> None:
        """Carry out a task of one host here, or have a process do it. Both send the result to the same queue."""
        given = {"host": host, "task": task, "task_vars": task_vars, "play_context": play_context}
        if contacts_no_node(task, task_vars, self._loader):
            self._tqm.send_callback("v2_runner_on_start", host, task)
            self._carry_out(given, task.copy(exclude_parent=True, exclude_tasks=True))
        elif host.name in background.CALLS:
            raise AnsibleError(f"{task.get_name()}: a call in the background continues on {host.name}.")
        elif background.AVAILABLE and in_background(task, task_vars, self._loader):
            self._begin_call(given)
            self._carry_out(given, background.stand_in(task))
        else:
            super()._queue_task(host, task, task_vars, play_context)

    def _carry_out(self, given: dict[str, Any], own: Any) -> None:
        """Carry out a task in this process. It changes its task and its host, which are copies elsewhere, too."""
        host, task = given["host"], given["task"]
        self._queued_task_cache[host.name, task._uuid] = given
        own._parent = task._parent
        with _as_process(own, given["task_vars"], host.name):
            self._process({**given, "host": copy.copy(host), "task": own}, self._final_q)._run()
        self._pending_results += 1

    def _process(self, given: dict[str, Any], final_q: Any) -> worker.WorkerProcess:
        """Return what carries out a task, as Ansible makes it."""
        return worker.WorkerProcess(
            **given,
            final_q=final_q,
            loader=self._loader,
            variable_manager=self._variable_manager,
            shared_loader_obj=get_plugin_loader_namespace(),
            worker_id=0,
            cliargs=context.CLIARGS,
        )

    # --- calls in the background ---

    def _begin_call(self, given: dict[str, Any]) -> None:
        """Start a call that continues while the next plays run."""
        while len(background.running()) >= self._tqm._forks:
            background.wait()
        # The role is of this play; the blocks around the task know its name.
        task = given["task"].copy(exclude_parent=True, exclude_tasks=True)
        task._parent, task._role = given["task"]._parent, None
        kept = background.Kept()
        background.Call({**given, "task": task}, self._process(given, kept), kept).start()

    def _join(self, iterator: Any, calls: list[background.Call]) -> None:
        """Wait for calls in a play that has not begun them. If they fail, the run continues as if they had there."""
        for task in {call.task._uuid: call.task for call in calls}.values():
            self._tqm.send_callback("v2_playbook_on_task_start", task, is_conditional=False)
        self._wait_for_calls(iterator, calls)
        if self._is_over(iterator):  # Ansible would end the run
            self._tqm._unreachable_hosts[f"{NOT_A_HOST} {len(self._tqm._unreachable_hosts)}"] = True

    def _wait_for_calls(self, iterator: Any, calls: list[background.Call]) -> None:
        """Wait for calls, and have Ansible handle their results as those of this play."""
        self._wait_on_pending_results(iterator)  # of stand-ins, which have the same keys in the cache
        for call in calls:
            self._queued_task_cache[call.host.name, call.task._uuid] = call.given
            if not call.has_ended():  # else no host waits for it
                self._tqm.send_callback("v2_runner_on_start", call.host, call.task)
        dead = list[str]()
        while calls:
            for call in [one for one in calls if one.has_ended()]:
                calls.remove(call)
                del background.CALLS[call.host.name]
                if call.exit_code != 0:
                    dead.append(call.host.name)
                    continue
                self._pending_results += 1
                for message in call.messages:
                    self._final_q.put(message)
            self._process_pending_results(iterator)
            background.wait()
        self._wait_on_pending_results(iterator)
        if dead:
            raise AnsibleError(f"The process of a call ended before the call, on {', '.join(dead)}.")

    def _end_calls(self, iterator: Any) -> None:
        """Wait for the other calls, as the run ends. Their results must not change whether it does."""
        before = self._lost(iterator)
        self._wait_for_calls(iterator, list(background.CALLS.values()))
        for name in self._lost(iterator) - before:
            iterator.set_state_for_host(name, HostState(blocks=[]))
            self._tqm._failed_hosts.pop(name, None)
            self._tqm._unreachable_hosts.pop(name, None)


@contextlib.contextmanager
def _as_process(task: Any, task_vars: dict[str, Any], host: str) -> Iterator[None]:
    """Give Ansible's code what it has in a process of a task."""
    create = getattr(_task.TaskContext, "create", None)  # since ansible-core 2.21
    made = create(task=task, task_vars=task_vars, host_name=host) if create else _task.TaskContext(task)
    out, err = contextlib.redirect_stdout(_Stream(sys.stdout)), contextlib.redirect_stderr(_Stream(sys.stderr))
    before = worker.current_worker
    try:
        with out, err, made:
            yield
    finally:
        worker.current_worker = before


def argument(task: Any, name: str, task_vars: dict[str, Any], loader: Any) -> object:
    """Return the value of a task's argument, None if it has none or it is not valid: the task says that."""
    try:
        return TemplateEngine(loader=loader, variables=task_vars).template(task.args.get(name))
    except AnsibleError:
        return None


def contacts_no_node(task: Any, task_vars: dict[str, Any], loader: Any) -> bool:
    """Return whether it is known that a task contacts no node: what is not known gets a process of its own."""
    if task.async_val or task.delegate_to or task.until or task.retries:
        return False
    if task.action in LOCAL:
        return True
    if task.action in waiting.ACTIONS:
        if task.args.get("state") == "flush":
            if not waiting.waiting(task.action, task_vars):
                return True
        elif not HIDDEN & task.args.keys() and not task.module_defaults:
            given = {name: argument(task, name, task_vars, loader) for name in LATER if name in task.args}
            later = all(value in LATER[name] for name, value in given.items())
            if later and waiting.may_wait(task, once=waiting.ACTIONS[task.action]):
                return True
    if task.loop or not task.when:
        return False
    try:
        return not task._resolve_conditional(task.when, task_vars)
    except AnsibleError:
        return False


def in_background(task: Any, task_vars: dict[str, Any], loader: Any) -> bool:
    """Return whether a call continues while the next plays run, which its argument says."""
    if (
        task.action not in background.ACTIONS
        or task.loop
        or task.run_once
        or task.delegate_to
        or task.until
        or task.async_val
    ):
        return False
    return argument(task, "in_background", task_vars, loader) is True
