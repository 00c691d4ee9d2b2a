"""Calls in the background: real ansible-playbook plays on this machine, with a call that waits for a file.

The action plugin stands in for node_state, which would change this machine; the labs bootstrap with the real one.
"""

import contextlib
import json
import resource
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from clusterctl.ansible import background, events
from clusterctl.ansible.outcome import Ledger
from tests.unit.test_strategy import command, play

T = TypeVar("T")

ACTION = """
import os, time
from pathlib import Path
from ansible.plugins.action import ActionBase
from clusterctl.ansible import background

class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        given, host = self._task.args, task_vars["inventory_hostname"]
        if given.get("state") == background.STATE:
            return background.begun("node_state")
        until = time.monotonic() + 60
        Path(given["until"] + "-" + host).write_text(str(os.getpid()))
        while not Path(given["until"]).exists():
            if time.monotonic() > until:
                return {"failed": True, "msg": "nothing happened meanwhile"}
            time.sleep(0.05)
        with open(given["until"] + "-log", "a") as log:
            print("begin", host, file=log, flush=True)
            time.sleep(float(given.get("takes", 0)))
            print("end", host, file=log, flush=True)
        return {"changed": True, "failed": host in given.get("fails", ""), "said": "by " + host, "long": "x" * 200000}
"""

FIRST = """
- hosts: all
  gather_facts: false
  tasks:
    - name: call
      node_state: {until: GO, in_background: "{{ inventory_hostname != 'a' }}", fails: FAILS}
      register: called
      when: inventory_hostname != 'a'
    - {name: meanwhile, ansible.builtin.debug: {msg: "{{ called.skipped | default('not yet') }}"}}
"""
SECOND = """
- hosts: a
  gather_facts: false
  tasks:
    - {name: go, ansible.builtin.command: "touch GO"}
    - {name: end, ansible.builtin.fail: {msg: no}, when: ENDS}
"""
THIRD = """
- hosts: all
  gather_facts: false
  tasks:
    - {name: after, ansible.builtin.debug: {msg: "{{ called.said | default('none') }}"}}
"""

CONTINUES = """
- hosts: all
  gather_facts: false
  vars: {__calls_continue: true}
  tasks:
    - {name: early, ansible.builtin.debug: {msg: "{{ called.said | default('none') }}"}}
    - {name: go, ansible.builtin.command: "touch GO", when: inventory_hostname == 'a'}
    - {name: late, ansible.builtin.command: "echo {{ called.said | default('none') }}", when: inventory_hostname != 'a'}
    - {name: last, ansible.builtin.debug: {msg: here}}
"""

# The real code of calls that wait; the module stands in for node_state's.
WAITING = """
from ansible.plugins.action import ActionBase
from clusterctl.ansible import background, waiting

class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        given = self._task.args
        if given.get("state") == background.STATE:
            return background.begun(given["of"])
        own = None if given.get("state") == "flush" else {"what": given["what"], "now": given.get("now", False)}
        return waiting.made(self, own, task_vars)

    def _execute_module(self, module_name=None, module_args=None, task_vars=None, **_):
        calls = [one["what"] for one in module_args["calls"]]
        with open("LOG", "a") as log:
            print(task_vars["inventory_hostname"], *calls, file=log)
        return {"changed": True, "results": [{"changed": True} for _ in calls]}
"""
ROLES = {
    "first": "now: \"{{ inventory_hostname == 'b' }}\", in_background: \"{{ inventory_hostname == 'b' }}\"",
    "second": "now: false",
    "apply": "state: flush",
}


def planned(folder: Path, *plays: str, fails: str = "none", ends: str = "false") -> str:
    """Return a playbook, and make its action plugin."""
    (folder / "actions").mkdir(exist_ok=True)
    (folder / "actions/node_state.py").write_text(ACTION)
    text = "".join(plays).replace("GO", str(folder / "go"))
    return text.replace("FAILS", fails).replace("ENDS", ends)


def actions(folder: Path) -> dict[str, str]:
    return {"ANSIBLE_ACTION_PLUGINS": str(folder / "actions")}


def eventually(known: Callable[[], T]) -> T:
    """Return what is known once it is there. Raises TimeoutError after half a minute."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        with contextlib.suppress(FileNotFoundError, ValueError):
            if found := known():
                return found
        time.sleep(0.05)
    raise TimeoutError


def pid_in(path: Path) -> Callable[[], int]:
    return lambda: int(path.read_text())


def reported(
    folder: Path, *plays: str, env: dict[str, str] | None = None, **given: str
) -> dict[tuple[str, str], list[tuple[str, dict[str, Any]]]]:
    """Return the results of a playbook by task and host."""
    playbook = planned(folder, *plays, **given)
    found: dict[tuple[str, str], list[tuple[str, dict[str, Any]]]] = {}
    lines, shown = play(folder, "clusterctl_linear", playbook, **actions(folder), **(env or {}))
    for task, host, kind, result in lines:
        if kind != "start":
            found.setdefault((task, host), []).append((kind, result))
    assert "Traceback" not in shown
    return found


def test_call__in_the_background__continues_while_another_play_runs(tmp_path: Path) -> None:
    found = reported(tmp_path, FIRST, SECOND, THIRD)
    assert found["after", "b"][0][1]["msg"] == "by b"
    assert found["after", "a"][0][1]["msg"] == "none"
    for host in "bc":
        assert [(kind, result["changed"]) for kind, result in found["call", host]] == [
            ("runner ok", False),
            ("runner ok", True),
        ]
        assert [result.get("said") for _, result in found["call", host]].count(f"by {host}") == 1
        assert found["meanwhile", host][0][1]["msg"] == "not yet"


def test_call__that_fails_in_the_background__ends_its_host_alone(tmp_path: Path) -> None:
    found = reported(tmp_path, FIRST, SECOND, THIRD, fails="b")
    assert [kind for kind, _ in found["call", "b"]].count("runner failed") == 1
    assert ("after", "b") not in found
    assert found["after", "c"][0][1]["msg"] == "by c"


def test_call__when_all_hosts_of_another_play_fail__is_reported(tmp_path: Path) -> None:
    found = reported(tmp_path, FIRST, SECOND, THIRD, ends="true")
    assert found["end", "a"][0][0] == "runner failed"
    assert not any(task == "after" for task, _ in found), "Ansible ends the run"
    for host in "bc":
        assert [result.get("said") for _, result in found["call", host]].count(f"by {host}") == 1


def test_call__of_a_run_that_is_stopped__is_completed_and_reported(tmp_path: Path) -> None:
    stop, events = tmp_path / "stop", tmp_path / "events.jsonl"
    second = SECOND.replace("touch GO", f"touch {stop} GO")
    env = {"CLUSTERCTL_EVENTS": str(events), "CLUSTERCTL_STOP": str(stop)}
    found = reported(tmp_path, FIRST, second, THIRD, env=env)
    assert not {"end", "after"} & {task for task, _ in found}
    written = [json.loads(line) for line in events.read_text().splitlines()]
    assert [one["event"] for one in written].count("stopped") == 1
    results = [(one["host"], one["status"]) for one in written if one["event"] == "result" and one["task"] == "call"]
    assert sorted(results) == [("a", "skipped"), ("b", "changed"), ("b", "runs"), ("c", "changed"), ("c", "runs")]


def test_call__when_ansible_is_ended__ends(tmp_path: Path) -> None:
    second = SECOND.replace("touch GO", "sleep 60")
    argv, env = command(tmp_path, "clusterctl_linear", planned(tmp_path, FIRST, second), **actions(tmp_path))
    process = subprocess.Popen(argv, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    pids = [eventually(pid_in(tmp_path / f"go-{host}")) for host in "bc"]
    eventually(lambda: '"go", "a", "start"' in Path(env["REPORT"]).read_text())
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def test_call__after_one_in_the_background_in_its_play__is_refused(tmp_path: Path) -> None:
    again = FIRST.replace(
        "- {name: meanwhile", "- {name: again, ansible.builtin.command: 'true'}\n    - {name: meanwhile"
    )
    argv, env = command(tmp_path, "clusterctl_linear", planned(tmp_path, again), **actions(tmp_path))
    (tmp_path / "go").touch()
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert "again: a call in the background continues on b." in done.stdout + done.stderr
    assert done.returncode not in (0, 2)


def test_calls__that_all_fail__end_no_other_play(tmp_path: Path) -> None:
    """Ansible ends the run if all hosts of a play fail, which is here one that only waits."""
    waits = "- {hosts: 'b:c', gather_facts: false, tasks: [{name: waits, ansible.builtin.debug: {msg: here}}]}\n"
    found = reported(tmp_path, FIRST, SECOND, waits, waits, THIRD, fails="bc")
    assert {host for task, host in found if task == "after"} == {"a"}
    assert not any(task == "waits" for task, _ in found)
    for host in "bc":
        assert [kind for kind, _ in found["call", host]].count("runner failed") == 1


def test_call__whose_process_is_killed__ends_the_run_after_the_others(tmp_path: Path) -> None:
    kill = "sh -c 'until test -s GO-b; do sleep 0.1; done; kill -9 $(cat GO-b); touch GO'"
    second = SECOND.replace("touch GO", kill)
    found = reported(tmp_path, FIRST, second, THIRD)
    assert [result.get("said") for _, result in found["call", "c"]].count("by c") == 1
    assert not any(task == "after" for task, _ in found)


def test_call__with_an_argument_that_fails__fails_on_its_host(tmp_path: Path) -> None:
    first = FIRST.replace(
        "\"{{ inventory_hostname != 'a' }}\"",
        "\"{{ inventory_hostname != 'a' and (unknown if inventory_hostname == 'b' else true) }}\"",
    )
    found = reported(tmp_path, first, SECOND, THIRD)
    assert [kind for kind, _ in found["call", "b"]] == ["runner failed"]
    assert found["after", "c"][0][1]["msg"] == "by c"


def test_call__in_a_play_that_begins_meanwhile__continues_until_its_host_is_contacted(tmp_path: Path) -> None:
    found = reported(tmp_path, FIRST, CONTINUES, THIRD)
    for host in "bc":
        assert found["early", host][0][1]["msg"] == "none"
        assert found["late", host][0][1]["stdout"] == f"by {host}"
        assert [result.get("said") for _, result in found["call", host]].count(f"by {host}") == 1
    assert {host for task, host in found if task == "after"} == {*"abc"}


def test_call__that_fails_in_a_play_that_has_begun__ends_its_host_alone(tmp_path: Path) -> None:
    found = reported(tmp_path, FIRST, CONTINUES, THIRD, fails="b")
    assert [kind for kind, _ in found["call", "b"]].count("runner failed") == 1
    assert {host for task, host in found if task == "late"} == {*"ac"}
    assert {host for task, host in found if task == "after"} == {*"ac"}


def test_calls__that_all_fail_in_a_play_that_has_begun__end_no_other_play(tmp_path: Path) -> None:
    go = CONTINUES.replace("hosts: all", "hosts: b:c").replace("inventory_hostname == 'a'", "false")
    found = reported(tmp_path, FIRST, SECOND, go, THIRD, fails="bc")
    assert found["early", "b"][0][1]["msg"] == "none"
    assert not any(task in ("late", "last") for task, _ in found)
    assert {host for task, host in found if task == "after"} == {"a"}


def test_calls__that_wait_after_one_in_the_background__are_made(tmp_path: Path) -> None:
    """The result of the one in the background comes later, and must not clear what waits."""
    (tmp_path / "actions").mkdir()
    (tmp_path / "actions/node_state.py").write_text(WAITING.replace("LOG", str(tmp_path / "log")))
    for role, arguments in ROLES.items():
        (tmp_path / f"roles/{role}/tasks").mkdir(parents=True)
        text = f"- {{name: {role}, node_state: {{what: {role}, {arguments}}}}}\n"
        (tmp_path / f"roles/{role}/tasks/main.yml").write_text(text)
    play_of = "- {{hosts: '{}', gather_facts: false, vars: {{__calls_continue: true}}, roles: [{}, apply]}}\n".format
    play(tmp_path, "clusterctl_linear", play_of("a:b", "first") + play_of("b", "second"), **actions(tmp_path))
    assert sorted((tmp_path / "log").read_text().splitlines()) == ["a first", "b first", "b second"]


def test_calls__more_than_forks__are_made_in_turn(tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    first = FIRST.replace("fails: FAILS", "takes: 1, fails: FAILS")
    found = reported(tmp_path, first, SECOND, THIRD, env={"ANSIBLE_FORKS": "1"})
    assert [found["after", host][0][1]["msg"] for host in "bc"] == ["by b", "by c"]
    assert (tmp_path / "go-log").read_text() == "begin b\nend b\nbegin c\nend c\n"


def test_descriptors__of_the_process__are_as_many_as_the_system_allows() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard - 1, hard))
        background.allow_descriptors()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def begun(*hosts: str) -> tuple[Ledger, list[str]]:
    """Return the ledger of a run whose calls of role base continue, and the stages that have ended in the next play."""
    ledger = Ledger(lambda: 0.0)
    ended = ledger.add(events.PlayStarted("First", hosts=("head", *hosts)))
    for role, status in (("packages", "waits"), ("base", "runs")):
        ended += ledger.add(events.TaskStarted("First", role, "Do it", ""))
        ended += ledger.add(events.Result("head", role, "Do it", "", "ok"))
        for host in hosts:
            ended += ledger.add(events.Result(host, role, "Do it", "", "waits" if status == "waits" else "runs"))
    ended += ledger.add(events.PlayStarted("Second", hosts=("head",)))
    for role in ("base", "slurm_head"):
        ended += ledger.add(events.TaskStarted("Second", role, "Go", ""))
        ended += ledger.add(events.Result("head", role, "Go", "", "ok"))
    ended += ledger.add(events.PlayStarted("Third", hosts=("head", *hosts)))
    ended += ledger.add(events.TaskStarted("Third", "base", "Do it", ""))
    return ledger, [stage.role for stage in ended]


def test_stage__of_a_call_in_the_background__ends_with_its_results() -> None:
    ledger, ended = begun("one", "two")
    assert ended == ["base", "slurm_head"], "of the second play"
    assert ledger.awaited
    for host in ("one", "two"):
        ledger.add(events.Result(host, "packages", "Do it", "", "changed", seconds=9.0, waited=True))
        ledger.add(events.Result(host, "base", "Do it", "", "changed", seconds=1.0))
    rows = ledger.add(events.TaskStarted("Third", "users", "Make users", ""))
    assert [(row.play, row.role, sorted(row.changed), row.seconds(0.0)) for row in rows] == [
        ("First", "packages", ["one", "two"], 9.0),
        ("First", "base", ["one", "two"], 1.0),
    ]
    assert ledger.awaited is None
    assert ledger.summary()["roles"]["base"]["hosts"] == ["head", "one", "two"]


def test_stage__of_a_host_that_is_lost_in_the_background__has_the_others() -> None:
    ledger, _ = begun("one", "two")
    ledger.add(events.Result("one", "packages", "Do it", "", "ok", waited=True))
    ledger.add(events.Result("one", "base", "Do it", "", "ok"))
    ledger.add(events.Result("two", "base", "Do it", "", "unreachable", "no route"))
    rows = ledger.add(events.TaskStarted("Third", "users", "Make users", ""))
    assert [(row.role, sorted(row.hosts - row.failed), sorted(row.failed)) for row in rows] == [
        ("packages", ["head", "one"], []),
        ("base", ["head", "one"], ["two"]),
    ]
    assert ledger.lost() == {"two"}
    assert ledger.summary()["roles"]["packages"]["hosts"] == ["head", "one"]


def test_stage__of_calls_in_the_background__ends_with_the_run() -> None:
    ledger, _ = begun("one")
    assert [stage.role for stage in ledger.add(events.Stopped())] == ["packages", "base"]
    ledger.add(events.Result("one", "base", "Do it", "", "changed"))
    assert ledger.hosts["one"].changed == 1


def test_stage__of_another_role__has_no_result_of_a_call() -> None:
    ledger, _ = begun("one")
    ledger.add(events.Stopped())
    ledger.add(events.TaskStarted("Third", "users", "Make users", ""))
    ledger.add(events.Result("one", "base", "Do it", "", "ok", seconds=3.0))
    assert ledger.stage
    assert not ledger.stage.hosts


def test_stage__of_a_later_task_of_the_play_that_began_a_call__is_its_own() -> None:
    ledger = Ledger(lambda: 0.0)
    ledger.add(events.PlayStarted("First", hosts=("one",)))
    for role, status in (("packages", "waits"), ("base", "runs"), ("packages", "ok")):
        ledger.add(events.TaskStarted("First", role, "Do it", ""))
        ledger.add(events.Result("one", role, "Do it", "", status))  # type: ignore[arg-type]
    assert [stage.role for stage in ledger.add(events.PlayStarted("Second", hosts=("one",)))] == ["packages"]
    ledger.add(events.TaskStarted("Second", "base", "Do it", ""))
    for role in ("packages", "base"):
        ledger.add(events.Result("one", role, "Do it", "", "changed", waited=role == "packages"))
    assert [stage.role for stage in ledger.add(events.TaskStarted("Second", "users", "", ""))] == ["packages", "base"]
