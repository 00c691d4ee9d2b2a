"""Calls of node_state and kubernetes_objects that wait: by real Ansible in check mode here, and in all roles."""

import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jinja2 import Environment

from clusterctl.ansible import events, waiting
from clusterctl.ansible.outcome import Ledger
from clusterctl.ansible.patience import Patience
from clusterctl.inventory import host_pattern
from clusterctl.inventory.bootstrap_plays import APPLY
from clusterctl.util import paths
from tests.systems.rendering import ROLES, load, tasks

CONTENT = paths.content()
SECRET = "d0-not-sh0w"
# These do not reach the node.
ON_THE_CONTROLLER = {"assert", "debug", "fail", "group_by", "include_vars", "meta", "set_fact"}
WAITS = ("node_state", "kubernetes_objects")
# What follows a call that waits, in its role or a later one of the play, and needs nothing of it.
INDEPENDENT = {
    ("slurm_worker", "Record the driver's order of GPUs"): "where it is due, the call before it says now",
    (
        "kubernetes_node",
        "List swap, the kernel, and the certificate and release of a node that has joined",
    ): "it only reads",
    ("kubernetes_node", "Refuse a host on which the kubelet cannot run"): "it only fails",
    ("kubernetes_worker", "Delete the tokens of workers that have not joined"): "it is done on a head",
    ("kubernetes_worker", "Label the workers, and cordon new ones"): "it is done on a head",
    ("package_cache", "Find an nginx of the site"): "it only reads, and no package is installed before it",
    ("base", "Set up the package sources"): "role packages has done it before its call waits",
    ("users", "Add the users to Slurm"): "there the call before it says now",
    ("kubernetes_head", "Upgrade the kubelet after the API"): "only the record of the kubelet of a new head waits",
    ("kubernetes_network", "Check what network policies need"): "it asks the API, whose server runs",
}
# Results that are read although their call may wait.
RESULTS = {
    ("base", "__base_sources"): "is only asked whether it is there",
    ("packages", "__packages_installed"): "is only asked whether it is there",
    ("containerd", "__containerd_converged"): "without it the version is that of the early installation",
    ("slurm_worker", "__slurm_worker_converged"): "is read only where the call says now",
}


def may_wait(task: dict[str, Any]) -> bool:
    call = next((task[name] or {} for name in WAITS if name in task), None)
    waits = call is not None and call.get("state") not in ("probe", "flush") and call.get("now") is not True
    return waits and not any(task.get(key) for key in ("environment", "loop", "delegate_to"))


def reaches_the_node(task: dict[str, Any]) -> bool:
    names = {name.rpartition(".")[2] for name in task}
    return not names & ON_THE_CONTROLLER and not any(name in task for name in WAITS)


def walk(role: str, file: str = "main.yml") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a role's tasks in the order in which they run, those of included files in their place."""
    for task in tasks(CONTENT / "roles" / role / "tasks" / file):
        yield role, task
        plain = {
            name.rpartition(".")[2]: value for name, value in task.items() if (role, task["name"]) not in INDEPENDENT
        }
        inner = plain.get("include_tasks") or plain.get("import_tasks")
        if isinstance(inner, str) and "{{" not in inner:
            yield from walk(role, inner)
        if other := plain.get("include_role") or plain.get("import_role"):
            yield from walk(other["name"], f"{other.get('tasks_from', 'main')}.yml")


def includes(task: dict[str, Any]) -> bool:
    return any(name.rpartition(".")[2].startswith(("include_", "import_")) for name in task)


def with_apply(play: dict[str, Any]) -> bool:
    return APPLY in [role["role"] for role in play.get("roles") or ()]


def later(play: dict[str, Any]) -> str:
    """Return the condition by which a play leaves its calls to a later one."""
    last = (play.get("roles") or [{}])[-1]
    return str(last.get("vars", {}).get("__apply_later", ""))


BOOTSTRAP = load(CONTENT / "playbooks/bootstrap.yml")
PLAYS = [play for play in BOOTSTRAP if with_apply(play)]


def chains() -> Iterator[list[dict[str, Any]]]:
    """Yield the plays up to one that applies what waits in the first of them, also those between them."""
    ends = [place for place, play in enumerate(BOOTSTRAP) if with_apply(play) and not later(play)]
    for begin, play in enumerate(BOOTSTRAP):
        if with_apply(play):
            yield BOOTSTRAP[begin : 1 + next(end for end in ends if end >= begin)]


@pytest.mark.proves("roles", "Nothing on the node needs what a role has left to a later task.")
@pytest.mark.parametrize("chain", [*chains()], ids=lambda chain: str(chain[0]["name"]))
def test_play__after_a_call_that_waits__does_nothing_that_needs_it(chain: list[dict[str, Any]]) -> None:
    """A call by a template of `now` counts as one that waits."""
    left = ""
    for name in (role["role"] for play in chain for role in play.get("roles") or ()):
        for role, task in walk(name) if name != APPLY else ():
            if left and reaches_the_node(task) and (role, task["name"]) not in INDEPENDENT:
                assert includes(task), f"{role}: {task['name']} comes after {left}, which waits"
            if any(name in task for name in WAITS):
                left = f"{role}: {task['name']}" if may_wait(task) else ""
    assert all(play.get("roles") for play in chain)


def tags(play: dict[str, Any]) -> set[str]:
    """Return the tags of the roles before role apply."""
    lists = [[role["tags"]] if isinstance(role["tags"], str) else role["tags"] for role in play["roles"][:-1]]
    return {*itertools.chain(*lists)}


@pytest.mark.proves("roles", "What a play leaves to a later one is applied on each host.")
@pytest.mark.parametrize("others", [[], ["two"]], ids=["the only host", "one of two hosts"])
def test_plays__that_leave_calls_to_a_later_one__are_followed_by_it(others: list[str]) -> None:
    """With a second host they leave none: the run ends if all hosts of a play between them fail."""
    conditions = {play["name"]: later(play) for play in PLAYS}
    own = load(CONTENT / "roles/apply/vars/main.yml")
    templates = Environment(autoescape=True)
    templates.filters["intersect"] = lambda one, other: [name for name in one if name in other]
    templates.filters["union"] = lambda one, other: [*dict.fromkeys([*one, *other])]

    def is_true(condition: str, groups: list[str]) -> bool:
        given = {"groups": {name: ["one", *others] for name in groups}, "group_names": groups}
        given |= {"inventory_hostname": "one"}
        mine = {name: str(templates.from_string(str(text)).render(given)) == "True" for name, text in own.items()}
        return str(templates.from_string(condition or "{{ false }}").render(given | mine)) == "True"

    names = {name for play in PLAYS for _, name in host_pattern.parse(play["hosts"])} - {"all"}
    names |= {name for text in conditions.values() for name in re.findall(r"'(\w+)'", text)}
    leave: set[str] = set()
    for chosen in itertools.product((False, True), repeat=len(names)):
        groups = ["all", *itertools.compress(sorted(names), chosen)]
        left: set[str] = set()
        for play in PLAYS:
            if host_pattern.matches(play["hosts"], groups):
                left |= tags(play)
                waits = is_true(conditions[play["name"]], groups)
                leave |= {play["name"]} if waits else set()
                assert waits or left <= {*play["roles"][-1]["tags"]}, (groups, play["name"])
                left = left if waits else set()
        assert not left, groups
    assert leave == (set() if others else {name for name, text in conditions.items() if text})


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_result__of_a_call_that_waits__is_not_read(role: Path) -> None:
    found = [task for path in role.glob("tasks/*.yml") for task in tasks(path) if may_wait(task)]
    kept = {task["register"] for task in found if "register" in task}
    assert {name for name in kept if (role.name, name) not in RESULTS} == set()


def test_plays__with_role_apply__have_it_last() -> None:
    assert len(PLAYS) >= 7
    assert [play["name"] for play in PLAYS if play["roles"][-1]["role"] != APPLY] == []


def play(
    folder: Path, calls: dict[str, list[dict[str, Any]]], last: list[str], *options: str
) -> tuple[str, list[events.Event]]:
    """Run one role for each entry, then others, by real Ansible in check mode; return its output and the events."""
    return play_all(folder, calls, {"Play": [*calls, *last]}, *options)


def play_all(
    folder: Path, calls: dict[str, list[dict[str, Any]]], given: dict[str, list[Any]], *options: str
) -> tuple[str, list[events.Event]]:
    """Run plays of these names and roles."""
    for role, made in calls.items():
        (folder / "roles" / role / "tasks").mkdir(parents=True)
        (folder / "roles" / role / "tasks/main.yml").write_text(yaml.safe_dump(made))
    (folder / "hosts.yaml").write_text(yaml.safe_dump({"all": {"hosts": {"one": None, "two": None}}}))
    written = {"hosts": "all", "connection": "local", "gather_facts": False}
    written |= {"vars": {"ansible_python_interpreter": sys.executable}}
    plays = [{**written, "name": name, "roles": roles} for name, roles in given.items()]
    (folder / "play.yml").write_text(yaml.safe_dump(plays))
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "LC_ALL": "C.UTF-8",
        "ANSIBLE_CONFIG": str(CONTENT / "ansible.cfg"),
        "ANSIBLE_ROLES_PATH": f"{folder / 'roles'}:{CONTENT / 'roles'}",
        "CLUSTERCTL_EVENTS": str(folder / "events.jsonl"),
    }
    argv = [
        str(Path(sys.executable).with_name("ansible-playbook")),
        "-i",
        "hosts.yaml",
        "play.yml",
        "--check",
        *options,
    ]
    done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=120)
    lines = (folder / "events.jsonl").read_text().splitlines()
    return done.stdout + done.stderr, [event for line in lines if (event := events.parse(line))]


def directory(name: str, path: object, **more: object) -> dict[str, Any]:
    return {"name": name, "node_state": {"directories": [{"path": str(path)}], **more}}


def results(found: list[events.Event], host: str) -> Iterator[tuple[str, str, str]]:
    for event in found:
        if isinstance(event, events.Result) and event.host == host:
            yield event.role, event.task, event.status


@pytest.mark.proves("roles", "What roles leave to one task is reported as the result of each role.")
def test_play__with_role_apply__applies_all_in_one_task(tmp_path: Path) -> None:
    there = {"path": str(tmp_path), "mode": "0700", "owner": str(os.geteuid()), "group": str(os.getegid())}
    secret = {"dest": str(tmp_path / "key"), "content": SECRET, "secret": True}
    calls = {
        "a": [directory("Make a", tmp_path / "a"), {"name": "Make c", "node_state": {"name": "c", "files": [secret]}}],
        "b": [{"name": "Make none", "node_state": {"directories": [there]}}],
    }
    output, found = play(tmp_path, calls, ["apply"], "-vvv", "--diff")
    assert list(results(found, "two")) == [
        ("a", "Make a", "waits"),
        ("a", "Make c", "waits"),
        ("b", "Make none", "waits"),
        ("a", "Make a", "changed"),
        ("a", "Make c", "changed"),
        ("b", "Make none", "ok"),
        ("apply", "Apply what the roles before have left", "ok"),
    ]
    assert SECRET not in output
    assert SECRET not in (tmp_path / "events.jsonl").read_text()
    ledger = Ledger()
    ended = [stage.role for event in found for stage in ledger.add(event)]
    assert ended == ["a", "b"]
    assert [sorted(stage.changed) for stage in ledger.stages if stage.role in ("a", "b")] == [["one", "two"], []]
    assert {change.name for _, change in ledger.hosts["one"].changes} == {str(tmp_path / "a"), str(tmp_path / "key")}
    assert [stage["role"] for stage in ledger.summary()["stages"]] == ["a", "b"]
    assert sorted(ledger.roles) == ["a", "b"]


@pytest.mark.proves("roles", "A later play applies what one has left, and its role is reported then.")
def test_play__that_leaves_calls_to_a_later_one__has_them_applied_there(tmp_path: Path) -> None:
    calls = {name: [directory(f"Make {name}", tmp_path / name)] for name in "abc"}
    later = {"role": "apply", "vars": {"__apply_later": True}}
    given: dict[str, list[Any]] = {"First": ["a", later], "Second": ["b", later], "Third": ["c", "apply"]}
    output, found = play_all(tmp_path, calls, given)
    assert list(results(found, "two")) == [
        ("a", "Make a", "waits"),
        ("apply", "Apply what the roles before have left", "skipped"),
        ("b", "Make b", "waits"),
        ("apply", "Apply what the roles before have left", "skipped"),
        ("c", "Make c", "waits"),
        ("a", "Make a", "changed"),
        ("b", "Make b", "changed"),
        ("c", "Make c", "changed"),
        ("apply", "Apply what the roles before have left", "ok"),
    ], output
    ledger = Ledger()
    ended = [(event, stage.role) for event in found for stage in ledger.add(event)]
    assert [role for _, role in ended] == ["a", "b", "c"]
    assert {type(event) for event, _ in ended} == {events.Ended}
    assert all(stage.changed == {"one", "two"} for stage in ledger.stages if stage.role != "apply")


def test_play__without_role_apply__applies_each_at_once(tmp_path: Path) -> None:
    _, found = play(tmp_path, {"a": [directory("Make a", tmp_path / "a")]}, [])
    assert list(results(found, "one")) == [("a", "Make a", "changed")]


def test_call__that_says_now__is_made_after_those_that_wait(tmp_path: Path) -> None:
    now = directory("Make b", tmp_path / "b", now=True) | {"register": "made"}
    own = {
        "name": "Compare",
        "ansible.builtin.assert": {"that": ["made.changes | length == 1", "made.changes[0].name.endswith('/b')"]},
    }
    output, found = play(tmp_path, {"a": [directory("Make a", tmp_path / "a")], "b": [now, own]}, ["apply"])
    assert list(results(found, "one"))[:5] == [
        ("a", "Make a", "waits"),
        ("a", "Make a", "changed"),
        ("b", "Make b", "changed"),
        ("b", "Compare", "ok"),
        ("apply", "Apply what the roles before have left", "skipped"),
    ], output


@pytest.mark.proves("faults", "Of roles applied in one task, the failed one is named and ends the others.")
def test_call__that_waits_and_fails__is_named_and_ends_the_others(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    if os.geteuid() == 0:
        os.lchown(tmp_path / "link", 65534, 65534)
    calls = {
        "a": [directory("Make a", tmp_path / "a")],
        "b": [directory("Make b", tmp_path / "link")],
        "c": [directory("Make c", tmp_path / "c")],
    }
    output, found = play(tmp_path, calls, ["apply"])
    ended = list(results(found, "one"))[3:]
    assert ended == [("a", "Make a", "changed"), ("b", "Make b", "failed")]
    assert "b: directory" in output  # Ansible's own line names the role as well
    ledger = Ledger()
    for event in found:
        ledger.add(event)
    assert {(one.host, one.role, one.task) for one in ledger.failures} == {
        ("one", "b", "Make b"),
        ("two", "b", "Make b"),
    }
    assert all(one.path.endswith("roles/b/tasks/main.yml:1") for one in ledger.failures)


def test_call__that_fails_after_later_ones__is_named_and_they_are_reported() -> None:
    """What started and ended again is found only after all have been made."""
    calls = [{"arguments": {}, "task": uuid, "role": role} for uuid, role in (("1", "a"), ("2", "b"))]
    done: list[dict[str, Any]] = [
        {"changed": True, "failed": True, "msg": "unit a.service did not stay up"},
        {"changed": True},
    ]
    for has_own in (False, True):
        found = waiting.joined("fact", calls, {"results": [dict(one) for one in done]}, has_own=has_own)
        assert found["failed"]
        assert found["msg"] == "a: unit a.service did not stay up"
        assert [(one["task"], one.get("failed", False)) for one in found["applied"]] == [("1", True), ("2", False)]


def test_call__of_several_hosts_or_with_a_loop__after_one_that_waits__is_refused(tmp_path: Path) -> None:
    looped = directory("Make b", tmp_path / "{{ item }}", now=True) | {"loop": ["x", "y"]}
    output, _ = play(tmp_path, {"a": [directory("Make a", tmp_path / "a"), looped]}, ["apply"])
    assert "a task with loop, run_once or delegate_to cannot follow calls that wait" in output


def test_patience__of_a_task_that_applies_what_waited__counts_its_own_time() -> None:
    patience = Patience(10.0)
    for host in ("one", "two", "three"):
        patience.add(events.HostStarted(host, 0.0))
    for host in ("one", "two"):
        patience.add(events.Result(host, "a", "Make a", "", "ok", seconds=0.1, waited=True))
        patience.add(events.Result(host, "apply", "Apply", "", "ok", seconds=8.0))
    assert patience.exhausted(12.0) == []
    assert patience.exhausted(30.0) == ["three"]


def test_stage__of_a_role_that_waited__has_its_part_of_the_time() -> None:
    now = 0.0
    ledger = Ledger(lambda: now)
    ledger.add(events.PlayStarted("Play", hosts=("one",)))
    ledger.add(events.TaskStarted("Play", "a", "Make a", ""))
    now = 1.0
    ledger.add(events.Result("one", "a", "Make a", "", "waits"))
    assert ledger.add(events.TaskStarted("Play", "b", "Make b", "")) == []
    now = 6.0
    ledger.add(events.Result("one", "a", "Make a", "", "changed", seconds=3.0, waited=True))
    ledger.add(events.Result("one", "b", "Make b", "", "ok", seconds=5.0))
    ended = ledger.add(events.PlayStarted("Next"))
    assert [(stage.role, stage.seconds(now)) for stage in ended] == [("a", 4.0), ("b", 2.0)]


@pytest.mark.parametrize("play", ["Play", "Next"])
def test_stage__with_a_call_of_an_earlier_one__lends_it_the_time(play: str) -> None:
    now = 0.0
    ledger = Ledger(lambda: now)
    ledger.add(events.PlayStarted("Play", hosts=("one",)))
    ledger.add(events.TaskStarted("Play", "a", "Make a", ""))
    ledger.add(events.Result("one", "a", "Make a", "", "waits"))
    ledger.add(events.PlayStarted(play, hosts=("one",)))
    ledger.add(events.TaskStarted(play, "b", "Make b now", ""))
    now = 5.0
    ledger.add(events.Result("one", "a", "Make a", "", "changed", seconds=3.0, waited=True))
    ledger.add(events.Result("one", "b", "Make b now", "", "changed", seconds=5.0))
    ended = ledger.add(events.Ended())
    assert [(stage.role, stage.seconds(now)) for stage in ended] == [("a", 3.0), ("b", 2.0)]


def with_two_calls() -> Ledger:
    """Return the results of a run in which a call of each host waits when role apply begins."""
    ledger = Ledger()
    ledger.add(events.PlayStarted("Play", hosts=("one", "two")))
    ledger.add(events.TaskStarted("Play", "a", "Make a", ""))
    for host in ("one", "two"):
        ledger.add(events.Result(host, "a", "Make a", "", "waits"))
    ledger.add(events.TaskStarted("Play", "apply", "Apply", ""))
    return ledger


def test_stage__with_a_call_of_a_host_left_behind__ends_with_the_next_one() -> None:
    ledger = with_two_calls()
    ledger.add(events.Result("one", "a", "Make a", "", "ok", waited=True))
    ledger.add(events.Result("two", "apply", "Apply", "", "behind"))
    assert [stage.role for stage in ledger.add(events.PlayStarted("Next", hosts=("one",)))] == ["a"]


def test_role__with_a_call_that_never_ran__is_not_one_that_the_host_has() -> None:
    ledger = Ledger()
    ledger.add(events.PlayStarted("Play", hosts=("one",)))
    ledger.add(events.TaskStarted("Play", "users", "Make users", ""))
    ledger.add(events.Result("one", "users", "Make users", "", "changed"))
    ledger.add(events.Result("one", "users", "Configure sudo", "", "waits"))
    ledger.add(events.TaskStarted("Play", "later", "Refuse", ""))
    ledger.add(events.Result("one", "later", "Refuse", "", "failed"))
    ledger.add(events.Ended())
    assert ledger.summary()["roles"] == {}


def test_changes__before_a_call_that_fails__are_counted() -> None:
    """To Ansible the task that applied both has failed, and a failed task is no changed one."""
    ledger = Ledger()
    ledger.add(events.PlayStarted("Play", hosts=("one",)))
    ledger.add(events.TaskStarted("Play", "apply", "Apply", ""))
    ledger.add(events.Result("one", "a", "Make a", "", "changed", waited=True))
    ledger.add(events.Result("one", "b", "Make b", "", "failed", waited=True))
    ledger.add(events.Stats({"one": events.HostStats(failed=1)}))
    assert ledger.hosts["one"].changed == 1


def test_stage__with_a_call_that_never_ran__ends_with_its_play() -> None:
    ledger = with_two_calls()
    ledger.add(events.Result("one", "apply", "Apply", "", "unreachable", "lost"))
    ledger.add(events.Result("two", "a", "Make a", "", "ok", waited=True))
    assert [stage.role for stage in ledger.add(events.Ended())] == ["a"]
    assert ledger.summary()["roles"]["a"]["hosts"] == ["two"]


def test_event__of_a_call_that_waited__is_marked() -> None:
    line = {"event": "result", "host": "one", "role": "a", "task": "Make a", "status": "ok", "waited": True}
    parsed = events.parse(json.dumps(line))
    assert isinstance(parsed, events.Result)
    assert parsed.waited
