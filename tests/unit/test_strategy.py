"""Our strategy beside Ansible's own: real ansible-playbook carries out the same playbook on this machine by both."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.template import trust_as_template

from tests.labs import REPOSITORY

# A result without what differs between any two runs.
REPORTER = """
import json, os
from ansible.plugins.callback import CallbackBase

class CallbackModule(CallbackBase):
    CALLBACK_VERSION, CALLBACK_TYPE, CALLBACK_NAME = 2.0, "notification", "reporter"

    def v2_runner_on_start(self, host, task):
        self.report("start", host.get_name(), task.get_name(), {})

    def report(self, kind, host, task, result):
        with open(os.environ["REPORT"], "a") as file:
            file.write(json.dumps([task, host, kind, result], default=str) + "\\n")

def reporter(kind):
    def reported(self, result, **_):
        self.report(kind, result.host.get_name(), result.task.get_name(), untimed(result.result))
    return reported

def untimed(value):
    if isinstance(value, list):
        return [untimed(one) for one in value]
    if isinstance(value, dict):
        return {key: untimed(one) for key, one in value.items() if key not in ("start", "end", "delta")}
    return value

for kind in ("ok", "failed", "skipped", "unreachable"):
    for one in ("runner", "runner_item"):
        setattr(CallbackModule, f"v2_{one}_on_{kind}", reporter(f"{one} {kind}"))
"""

# ignore_errors is one of the keywords that both have to treat alike.
PLAYBOOK = """
- hosts: all
  gather_facts: false
  vars: {unset: false, first: "{{ inventory_hostname == 'a' }}"}
  tasks:
    - {name: a command, ansible.builtin.command: echo one, register: one, changed_when: false}
    - {name: skipped, ansible.builtin.command: "false", when: unset}
    - {name: skipped on some, ansible.builtin.command: echo two, when: first, register: two}
    - {name: two conditions, ansible.builtin.command: echo three, when: [first, unset]}
    - {name: a condition that fails, ansible.builtin.command: echo four, when: unknown.there, ignore_errors: true}
    - {name: a loop, ansible.builtin.command: "echo {{ item }}", loop: [x, y], when: item == 'x'}
    - {name: a loop of facts, ansible.builtin.set_fact: {"fact_{{ item }}": "{{ item }}"}, loop: [x, y], when: first}
    - {name: the facts, ansible.builtin.debug: {msg: "{{ fact_x | default('no') }} {{ two.stdout | default('no') }}"}}
    - {name: a check, ansible.builtin.assert: {that: first}, ignore_errors: true, register: check}
    - {name: its result, ansible.builtin.debug: {var: check.failed}}
    - {name: a set of hosts, ansible.builtin.group_by: {key: "set_{{ first }}"}}
    - {name: variables, ansible.builtin.include_vars: more.yml, when: first}
    - {name: other tasks, ansible.builtin.include_tasks: other.yml, vars: {given: "{{ first }}"}}
    - {name: other tasks for some, ansible.builtin.include_tasks: other.yml, vars: {given: 7}, when: first}
    - {name: other tasks for each, ansible.builtin.include_tasks: other.yml, vars: {given: "{{ item }}"}, loop: [1, 2]}
    - {name: once, ansible.builtin.set_fact: {once: "{{ inventory_hostname }}"}, run_once: true}
    - {name: for another host, ansible.builtin.set_fact: {mine: 1}, delegate_to: b, delegate_facts: true}
    - {name: its fact, ansible.builtin.debug: {msg: "{{ hostvars.b.mine }} {{ once }} {{ more | default('no') }}"}}
    - {name: skipped for another host, ansible.builtin.command: "false", delegate_to: b, when: unset}
    - {name: in a role, ansible.builtin.include_role: {name: one}, when: not unset}
    - name: a block
      when: first
      block:
        - {name: fails, ansible.builtin.fail: {msg: "{{ more }} and {{ ansible_check_mode }}"}}
      rescue:
        - {name: rescued, ansible.builtin.debug: {msg: "{{ ansible_failed_result.msg }}"}}
      always:
        - {name: always, ansible.builtin.set_fact: {was: "{{ ansible_failed_task.name }}"}}
    - {name: the last host fails, ansible.builtin.fail: {msg: no}, when: inventory_hostname == 'c'}
    - {name: on the others, ansible.builtin.debug: {msg: "{{ ansible_play_hosts }}"}}
"""

# Each task tells which process has rendered its arguments.
PROCESSES = """
- hosts: all
  gather_facts: false
  vars: {pid: "{{ lookup('ansible.builtin.pipe', 'echo $PPID') }}", unset: false, item: outside}
  tasks:
    - {name: set, ansible.builtin.set_fact: {one: "{{ pid }}"}}
    - {name: check, ansible.builtin.assert: {that: true, success_msg: "{{ pid }}"}}
    - {name: call, ansible.builtin.command: "echo {{ pid }}"}
    - {name: call elsewhere, ansible.builtin.set_fact: {two: "{{ pid }}"}, delegate_to: b}
    - {name: loop, ansible.builtin.command: "echo {{ pid }}", loop: [x], when: item == 'x'}
    - {name: again, ansible.builtin.assert: {that: true, success_msg: "{{ pid }}"}, until: true, retries: 1}
    - {name: skipped, ansible.builtin.command: "false", when: "lookup('ansible.builtin.pipe', note) == 'never'"}
"""


def command(folder: Path, strategy: str, playbook: str, **env: str) -> tuple[list[str], dict[str, str]]:
    """Return the command for a playbook on three hosts, all of which are this machine, and its environment."""
    (folder / "hosts.yml").write_text(
        json.dumps({"all": {"hosts": {name: {"ansible_connection": "local"} for name in "abc"}}})
    )
    (folder / "play.yml").write_text(playbook)
    (folder / "more.yml").write_text("more: here\n")
    (folder / "other.yml").write_text('- {name: in a file, ansible.builtin.set_fact: {"given_{{ given }}": true}}\n')
    (folder / "roles/one/tasks").mkdir(parents=True, exist_ok=True)
    (folder / "roles/one/tasks/main.yml").write_text("- {name: in one, ansible.builtin.set_fact: {in_one: true}}\n")
    (folder / "reporter.py").write_text(REPORTER)
    own = {
        "ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg"),
        "ANSIBLE_CALLBACK_PLUGINS": f"{folder}:{REPOSITORY}/plugins/callback",
        "ANSIBLE_CALLBACKS_ENABLED": "reporter,clusterctl_events",
        "ANSIBLE_STRATEGY": strategy,
        "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
        "REPORT": str(folder / f"report-{strategy}"),
        "PYTHONPATH": str(REPOSITORY),
        **env,
    }
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    return [program, "-i", "hosts.yml", "play.yml"], {**os.environ, **own}


def play(folder: Path, strategy: str, playbook: str, **env: str) -> tuple[list[list[Any]], str]:
    """Run a playbook; return its report, sorted by task and host, and what it printed."""
    argv, variables = command(folder, strategy, playbook, **env)
    done = subprocess.run(argv, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    report = Path(variables["REPORT"])
    assert report.exists(), done.stdout + done.stderr
    reported = sorted((json.loads(line) for line in report.read_text().splitlines()), key=lambda one: one[:3])
    return reported, done.stdout + done.stderr


def test_play__by_either_strategy__has_the_same_results(tmp_path: Path) -> None:
    ours, shown = play(tmp_path, "clusterctl_linear", PLAYBOOK)
    theirs, _ = play(tmp_path, "linear", PLAYBOOK)
    assert ours == theirs
    assert len({task for task, *_ in ours}) == 27
    assert "errantly" not in shown


def test_tasks__that_contact_no_node__run_in_one_process(tmp_path: Path) -> None:
    note = tmp_path / "note"
    reported, _ = play(tmp_path, "clusterctl_linear", PROCESSES.replace("note)", f"'echo $PPID >> {note}')"))
    results = {(task, host): result for task, host, kind, result in reported if kind.startswith("runner ")}
    processes = {
        "set": {results["set", host]["ansible_facts"]["one"] for host in "abc"},
        "check": {results["check", host]["msg"] for host in "abc"},
        "call": {results["call", host]["stdout"] for host in "abc"},
        "call elsewhere": {results["call elsewhere", host]["ansible_facts"]["two"] for host in "abc"},
        "loop": {results["loop", host]["results"][0]["stdout"] for host in "abc"},
        "again": {results["again", host]["msg"] for host in "abc"},
        "skipped": set(note.read_text().split()),
    }
    assert processes["set"] == processes["check"] == processes["skipped"]
    assert {name: len(pids) for name, pids in processes.items()} == {
        "set": 1,
        "check": 1,
        "call": 3,
        "call elsewhere": 3,
        "loop": 3,
        "again": 3,
        "skipped": 1,
    }


def plugin() -> Any:
    """Return the strategy's module."""
    spec = importlib.util.spec_from_file_location("strategy", REPOSITORY / "plugins/strategy/clusterctl_linear.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("given", "local"),
    [
        ({}, True),
        ({"args": {"now": "{{ x }}"}}, False),
        ({"args": {"now": "{{ x | default(true) }}"}}, False),
        ({"args": {"now": "{{ x | default(false) }}", "state": "{{ x | default('absent') }}"}}, True),
        ({"args": {"state": "{{ x | default('probe') }}"}}, False),
        ({"args": {"state": "probe"}}, False),
        ({"args": {"state": "flush"}}, True),
        ({"args": {"state": "flush"}, "when": ["x"]}, True),
        ({"args": {"_raw_params": "{{ x }}"}}, False),
        ({"args": {"_variable_params": "{{ x }}"}}, False),
        ({"module_defaults": [{"node_state": {"now": True}}]}, False),
        ({"retries": 3}, False),
        ({"async_val": 1}, False),
        ({"action": "ansible.builtin.assert", "retries": 3}, False),
        ({"action": "ansible.builtin.group_by"}, False),
    ],
)
def test_call__that_may_wait__is_local_unless_its_arguments_say_otherwise(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], local: bool
) -> None:
    module = plugin()
    monkeypatch.setattr(module.waiting, "may_wait", lambda *_, **__: True)
    plain = {"action": "node_state", "args": {"files": []}, "async_val": 0, "delegate_to": None, "until": []}
    plain |= {"retries": None, "module_defaults": [], "loop": None, "when": []}
    if texts := given.get("args"):
        given = {
            **given,
            "args": {name: trust_as_template(text) for name, text in texts.items() if isinstance(text, str)},
        }
    assert module.contacts_no_node(SimpleNamespace(**{**plain, **given}), {}, DataLoader()) is local


@pytest.mark.parametrize("when", [True, False])
def test_call__that_makes_what_waits__is_local_only_if_it_is_skipped(when: bool) -> None:
    module = plugin()
    task = {"action": "node_state", "args": {"state": "flush"}, "async_val": 0, "delegate_to": None, "until": []}
    task |= {"retries": None, "loop": None, "when": ["x"], "_resolve_conditional": lambda *_: when}
    waits: dict[str, Any] = {"ansible_facts": {module.waiting.fact("node_state"): [{}]}}
    assert module.contacts_no_node(SimpleNamespace(**task), waits, DataLoader()) is not when


@pytest.mark.parametrize("verbosity", ["0", "4"])
def test_output__of_a_task_in_ansibles_process__is_shown(tmp_path: Path, verbosity: str) -> None:
    playbook = "- {hosts: all, gather_facts: false, tasks: [{name: say, ansible.builtin.debug: {msg: hel-lo}}]}"
    _, shown = play(tmp_path, "clusterctl_linear", playbook, ANSIBLE_VERBOSITY=verbosity)
    assert "hel-lo" in shown
    assert "errantly" not in shown
