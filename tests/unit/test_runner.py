"""The runner, on real runs of ansible-playbook with playbooks of this test's own (`connection: local`)."""

import contextlib
import importlib.util
import json
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from clusterctl.ansible import connections, events, runner
from clusterctl.ansible.outcome import Ledger
from clusterctl.ansible.run_directory import RUNS_KEPT, RunDirectory
from clusterctl.run import lock
from clusterctl.util import paths, redaction
from clusterctl.util.errors import ClusterctlError, Interrupted, Locked, WorkersFailed

from .ssh_server import Server, ed25519, known, listening

GUARD = 60.0  # seconds after which a test that waits is stuck

# Answers as node_state does, with what a hostile node might put into it.
MODULE = """#!/usr/bin/python
import json
print(json.dumps({
    "changed": True,
    "changes": [{"kind": "file", "name": "/etc/x\\u001b[2J", "what": "new", "action": "created", "to": "9"}],
    "versions": {"munge": "0.5.16-1"},
    "notes": ["n" * 5000, "kernel setting\\nis read-only"],
    "invocation": {"module_args": {"content": "argument-of-a-module"}},
}))
"""

INVENTORY = """
all:
  vars: {{ansible_connection: local, ansible_python_interpreter: "{python}"}}
  children:
    slurm_head: {{hosts: {{head1: {{}}}}}}
    slurm_workers:
      hosts:
        gpu01: {{}}
        gpu02: {{}}
        gpu03: {{ansible_connection: ssh, ansible_host: 127.0.0.1, ansible_port: 1}}
"""
GROUPS = {"slurm_head": ["head1"], "slurm_workers": ["gpu01", "gpu02", "gpu03"]}

MIXED = """
- name: Head
  hosts: slurm_head
  gather_facts: false
  roles: [munge, outer]
  tasks:
    - name: Try something
      block:
        - name: Fail inside a block
          ansible.builtin.include_role: {name: munge, tasks_from: broken}
      rescue:
        - name: Answer the failure
          ansible.builtin.command: "true"
          changed_when: false
      always:
        - name: Do it always
          ansible.builtin.command: "true"
          changed_when: false
    - name: Keep it secret
      ansible.builtin.command: echo the-secret-word
      changed_when: false
      no_log: true
    - name: Skip it
      ansible.builtin.command: "true"
      when: false
- name: Workers
  hosts: slurm_workers
  gather_facts: false
  tasks:
    - name: Fail on one
      ansible.builtin.command: sh -c 'echo cannot do it >&2; test {{ inventory_hostname }} = gpu01'
      changed_when: false
    - name: Fail in a secret loop
      ansible.builtin.command: "test the-secret-item = {{ item }}"
      loop: [one, two]
      no_log: true
- name: Nobody is left
  hosts: slurm_workers
  gather_facts: false
  tasks: []
"""


@dataclass
class Site:
    """A directory with an inventory and playbooks, and how to run them."""

    path: Path

    def command(self, playbook: str, **settings: object) -> runner.Command:
        file = self.path / f"play {len(list(self.path.glob('play *')))}.yml"
        file.write_text(playbook)
        return runner.Command(file, self.path / "inventory.yaml", **settings)  # type: ignore[arg-type]

    def run(
        self, playbook: str, critical: tuple[str, ...] = (), patience: float | None = None, **settings: Any
    ) -> tuple[Ledger, RunDirectory]:
        kept = RunDirectory.create(self.path / ".clusterctl", "bootstrap")
        ledger = Ledger()
        ansible = runner.Runner(self.command(playbook, **settings), kept, critical=critical, patience=patience)
        for item in ansible.watch():
            if item and not isinstance(item, runner.Output):
                ledger.add(item)
        return ledger, kept


def make_site(path: Path) -> Site:
    (path / "library").mkdir(parents=True)
    (path / "library/converge.py").write_text(MODULE)
    (path / "roles/munge/tasks").mkdir(parents=True)
    (path / "roles/munge/tasks/main.yml").write_text(
        "- name: Converge munge\n  converge: {content: argument-of-a-module}\n"
    )
    (path / "roles/munge/tasks/broken.yml").write_text("- name: Break\n  ansible.builtin.command: 'false'\n")
    (path / "roles/outer/tasks").mkdir(parents=True)
    (path / "roles/outer/tasks/main.yml").write_text("- ansible.builtin.include_role: {name: inner}\n  name: Include\n")
    (path / "roles/inner/tasks").mkdir(parents=True)
    (path / "roles/inner/tasks/main.yml").write_text("- name: Work inside\n  ansible.builtin.ping:\n")
    (path / "inventory.yaml").write_text(INVENTORY.format(python=sys.executable))
    return Site(path)


def told_in(path: Path) -> list[events.Event]:
    """Return the events in a run directory's file."""
    return [event for line in path.read_text().splitlines() if (event := events.parse(line))]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return make_site(tmp_path / "a cluster's directory")


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ledger, RunDirectory, list[events.Result]]:
    """One run that has everything in it; several tests look at it."""
    ledger, kept = make_site(tmp_path_factory.mktemp("mixed") / "x").run(MIXED)
    return ledger, kept, [event for event in told_in(kept.events) if isinstance(event, events.Result)]


# --- what the callback tells ------------------------------------------------------------------------------------------


def test_each_result_has_the_status_that_ansible_gave_it(
    mixed: tuple[Ledger, RunDirectory, list[events.Result]],
) -> None:
    assert {(result.host, result.task): result.status for result in mixed[2]} == {
        ("head1", "Converge munge"): "changed",
        ("head1", "Include"): "ok",
        ("head1", "Work inside"): "ok",
        ("head1", "Fail inside a block"): "ok",
        ("head1", "Break"): "rescued",
        ("head1", "Answer the failure"): "ok",
        ("head1", "Do it always"): "ok",
        ("head1", "Keep it secret"): "ok",
        ("head1", "Skip it"): "skipped",
        ("gpu01", "Fail on one"): "ok",
        ("gpu02", "Fail on one"): "failed",
        ("gpu03", "Fail on one"): "unreachable",
        ("gpu01", "Fail in a secret loop"): "failed",
    }


def test_the_last_hundred_runs_are_kept(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for number in range(RUNS_KEPT + 20):
        (runs / f"20260101T{number:06}Z-bootstrap").mkdir(parents=True)
    new = RunDirectory.create(tmp_path, "verify")
    left = sorted(runs.iterdir())
    assert len(left) == RUNS_KEPT
    assert left[0].name == "20260101T000021Z-bootstrap"
    assert left[-1] == new.path


def test_plays_name_their_hosts_and_roles(
    mixed: tuple[Ledger, RunDirectory, list[events.Result]],
) -> None:
    told = list(told_in(mixed[1].events))
    assert told[0] == events.PlaybookStarted(("Head", "Workers", "Nobody is left"))
    assert [event for event in told if isinstance(event, events.PlayStarted)] == [
        events.PlayStarted("Head", "slurm_head", ("head1",), ("munge", "outer")),
        events.PlayStarted("Workers", "slurm_workers", ("gpu01", "gpu02", "gpu03"), ()),
    ]
    assert told[-1] == events.Ended()


def test_a_role_inside_a_role_counts_as_the_one_that_the_play_names(
    mixed: tuple[Ledger, RunDirectory, list[events.Result]],
) -> None:
    roles = {result.task: (result.role, result.path.rpartition("roles/")[2]) for result in mixed[2]}
    assert roles["Work inside"] == ("outer", "inner/tasks/main.yml:1")
    assert roles["Break"] == ("munge", "munge/tasks/broken.yml:1")
    assert roles["Keep it secret"][0] == ""


def test_a_result_carries_what_node_state_says_cleaned_and_cut(
    mixed: tuple[Ledger, RunDirectory, list[events.Result]],
) -> None:
    result = mixed[2][0]
    assert (result.role, result.task) == ("munge", "Converge munge")
    assert result.path.endswith("roles/munge/tasks/main.yml:1")
    assert result.changes == (events.Change("file", "/etc/x[2J", "new", "created", "", "9"),)
    assert result.versions == {"munge": "0.5.16-1"}
    assert [len(note) for note in result.notes] == [512, 27]
    assert result.notes[1] == "kernel setting is read-only"


def test_a_failure_says_what_the_tool_said(
    mixed: tuple[Ledger, RunDirectory, list[events.Result]],
) -> None:
    messages = {(result.host, result.task): result.message for result in mixed[2]}
    said, output = messages["gpu02", "Fail on one"].splitlines()
    assert ("non-zero return code" in said, output) == (True, "cannot do it")
    # Which of the two Ansible says depends on whether ssh ends before the module is written to it.
    lost = messages["gpu03", "Fail on one"]
    assert "Connection refused" in lost or "could not be sent to remote host '127.0.0.1'" in lost
    assert messages["gpu01", "Fail on one"] == ""


def test_no_secret_and_no_module_argument_is_in_the_events(
    mixed: tuple[Ledger, RunDirectory, list[events.Result]],
) -> None:
    text = mixed[1].events.read_text()
    assert '"task": "Fail in a secret loop"' in text
    for word in ("the-secret-word", "the-secret-item", "argument-of-a-module", "\\u001b"):
        assert word not in text


# --- the verdict ------------------------------------------------------------------------------------------------------


def test_failed_workers_are_named_and_so_is_what_was_not_run(
    mixed: tuple[Ledger, RunDirectory, list[events.Result]],
) -> None:
    verdict = mixed[0].error(GROUPS, ["head1"])
    assert isinstance(verdict, WorkersFailed)
    assert str(verdict) == "gpu[01-03] failed; not run: Nobody is left."


def test_a_good_run(site: Site) -> None:
    ledger, kept = site.run("- {name: Head, hosts: slurm_head, gather_facts: false, roles: [munge]}")
    assert ledger.error(GROUPS, ["head1"]) is None
    assert str(ledger.error(GROUPS, ["head1"], skipped=["gpu09"])) == "gpu09 skipped; everything else is done."
    summary = ledger.summary()
    assert summary["hosts"]["head1"]["changed"] == 1
    assert summary["roles"] == {"munge": {"hosts": ["head1"], "versions": {"munge": {"head1": "0.5.16-1"}}}}
    assert not kept.path.joinpath("stop").exists()


@pytest.mark.proves("faults", "A broken playbook is reported as our bug, exit 1.")
@pytest.mark.parametrize(
    "playbook",
    [
        pytest.param("- hosts: slurm_head\n  tasks: [{no_such_module: }]\n", id="unknown module"),
        pytest.param("- hosts: [slurm_head\n", id="no YAML"),
    ],
)
def test_a_broken_playbook_is_our_bug_and_the_log_says_where(site: Site, playbook: str) -> None:
    ledger, kept = site.run(playbook)
    verdict = ledger.error(GROUPS, ["head1"])
    assert verdict is not None
    assert verdict.exit_code == 1
    assert "play 0.yml" in kept.log.read_text()


@pytest.mark.proves("faults", "A play that matches no host is an error, though Ansible returns 0.")
def test_a_play_that_finds_nobody_is_no_success(site: Site) -> None:
    """Ansible itself ends such a run with 0."""
    ledger, _ = site.run("- {name: Head, hosts: 'slurm_head:&no_such_group', tasks: []}")
    verdict = ledger.error(GROUPS, ["head1"])
    assert type(verdict) is ClusterctlError


def test_a_play_of_a_group_that_the_run_leaves_out_may_find_nobody(site: Site) -> None:
    ledger, _ = site.run(
        "- {name: Head, hosts: slurm_head, gather_facts: false, roles: [munge]}\n"
        "- {name: Workers, hosts: slurm_workers, gather_facts: false, roles: [munge]}",
        limit=("head1",),
    )
    assert ledger.error({"slurm_head": ["head1"]}, ["head1"]) is None
    assert isinstance(ledger.error(GROUPS, ["head1"]), ClusterctlError)


# --- environment, files, command --------------------------------------------------------------------------------------


@pytest.mark.proves("untrusted", "`ANSIBLE_*` variables and a foreign ansible.cfg have no effect.")
def test_a_hostile_environment_changes_nothing_and_what_is_kept_is_private(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = site.path / "marker"
    plugin = site.path / "hostile/hostile.py"
    plugin.parent.mkdir()
    plugin.write_text(f"open({str(marker)!r}, 'w')\n")
    (site.path / "ansible.cfg").write_text(f"[defaults]\ncallback_plugins = {plugin.parent}\n")
    for name, value in {
        "ANSIBLE_CALLBACK_PLUGINS": str(plugin.parent),
        "ANSIBLE_CONFIG": str(site.path / "ansible.cfg"),
        "ANSIBLE_STDOUT_CALLBACK": "json",
        "ANSIBLE_DEBUG": "1",
        "ANSIBLE_CHECK_MODE": "1",
        "LC_ALL": "C",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("HOME")
    monkeypatch.chdir(site.path)
    before = os.umask(0)
    try:
        ledger, kept = site.run("- {name: Head, hosts: slurm_head, gather_facts: false, roles: [munge]}")
    finally:
        os.umask(before)
    assert ledger.error(GROUPS, ["head1"]) is None
    assert not marker.exists()
    assert "TASK [munge : Converge munge]" in kept.log.read_text()
    assert re.fullmatch(r"\d{8}T\d{6}Z-bootstrap", kept.path.name)
    assert kept.path.stat().st_mode & 0o777 == 0o700
    modes = {path.name: path.stat().st_mode & 0o777 for path in kept.path.iterdir()}
    assert modes == {"ansible.log": 0o600, "events.jsonl": 0o600}


def test_two_run_directories_of_one_second_differ(tmp_path: Path) -> None:
    made = [RunDirectory.create(tmp_path, "verify").path for _ in range(3)]
    assert len(set(made)) == 3


@pytest.mark.proves("secrets", "Screen, log and events of a run are redacted.")
def test_everything_kept_and_shown_is_redacted(site: Site) -> None:
    kept = RunDirectory.create(site.path, "bootstrap")
    command = site.command(
        "- {name: Head, hosts: slurm_head, gather_facts: false, tasks: [{name: Tell the canary,"
        " ansible.builtin.command: sh -c 'echo canary >&2; false'}]}",
        verbosity=3,
    )
    redact: Callable[[str], str] = lambda text: text.replace("canary", "[redacted]")  # noqa: E731
    shown = [item for item in runner.Runner(command, kept, redact=redact).watch() if item]
    assert any(isinstance(item, runner.Output) and "[redacted]" in item.text for item in shown)
    for text in (repr(shown), kept.log.read_text(), kept.events.read_text()):
        assert "canary" not in text
    assert "[redacted]" in kept.events.read_text()


@pytest.mark.proves("secrets", "An event from which a secret was removed stays complete.")
def test_an_event_is_whole_after_a_secret_was_taken_out_of_it(site: Site) -> None:
    secret = '\\"\\n\' a pass\\word of "some" length, with what JSON escapes\\'
    (site.path / "library/says.py").write_text(SAYS.replace("TEXT", repr(f'"{secret}" {json.dumps(secret)} end')))
    kept = RunDirectory.create(site.path, "bootstrap")
    command = site.command("- {name: Head, hosts: slurm_head, gather_facts: false, tasks: [{name: Listen, says: }]}")
    redact = redaction.Redactor([secret]).redact
    told = [item for item in runner.Runner(command, kept, redact=redact).watch() if isinstance(item, events.Result)]
    assert [result.message for result in told] == ['"[redacted]" "[redacted]" end']
    for text in (kept.log.read_text(), kept.events.read_text()):
        assert "length" not in text
        assert "[redacted]" in text


@pytest.mark.proves("secrets", "A password that is a common word removes no event.")
def test_a_password_that_is_a_word_of_ours_takes_no_event_away(site: Site) -> None:
    for word in ("result", "host", "changed", "name", "gpu01"):
        kept = RunDirectory.create(site.path, "bootstrap")
        command = site.command("- {name: Head, hosts: gpu01, gather_facts: false, roles: [munge]}")
        redact = redaction.Redactor([word]).redact
        told = [item for item in runner.Runner(command, kept, redact=redact).watch() if isinstance(item, events.Result)]
        assert [(result.host, result.status, len(result.changes)) for result in told] == [("gpu01", "changed", 1)], word


# A module as a hostile node has it: Ansible shows such a message as it is.
SAYS = """#!/usr/bin/python
import json
print(json.dumps({"failed": True, "msg": TEXT}))
"""


@pytest.mark.proves("untrusted", "Text from a node is printed without control characters, never run as template.")
def test_what_a_node_says_is_data_without_control_characters(site: Site) -> None:
    marker = site.path.parent / "marker"
    said = f"\x1b]0;title\x07\x1b[31mred \x9b2J\r\u202e\b{{{{ lookup('pipe', 'touch {marker}') }}}}"
    (site.path / "library/says.py").write_text(SAYS.replace("TEXT", repr(said)))
    kept = RunDirectory.create(site.path, "bootstrap")
    command = site.command("- {name: Head, hosts: slurm_head, gather_facts: false, tasks: [{name: Listen, says: }]}")
    shown = [item.text for item in runner.Runner(command, kept).watch() if isinstance(item, runner.Output)]
    for text in (*shown, *kept.log.read_text().split("\n")):
        assert text.replace("\t", "").isprintable(), repr(text)
    assert f"]0;title[31mred 2J{said[said.index('{{') :]}" in kept.log.read_text()
    assert "lookup('pipe'" in kept.events.read_text()
    assert not marker.exists()


@pytest.mark.proves("untrusted", "A line without end is cut, and the log reports how much.")
def test_a_line_without_end_is_cut_and_said_to_be(tmp_path: Path) -> None:
    """A quarter of a gigabyte: gathered piece by piece in one text that grows, it would take minutes."""
    block, blocks = b"x" * (1 << 16), 1 << 12
    with contextlib.ExitStack() as stack:
        source, written = os.pipe()
        stack.callback(os.close, source)
        pipe = runner._Pipe(source, os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT), False, stack)

        def say() -> None:
            with os.fdopen(written, "wb") as sink:
                sink.write(b"first\n")
                for _ in range(blocks):
                    sink.write(block)
                sink.write(b"\nlast\nthe rest")

        thread = threading.Thread(target=say)
        thread.start()
        lines = []
        while not pipe.at_end:
            select.select([pipe.source], [], [], GUARD)
            lines += pipe.read()
        lines += pipe.rest()
        thread.join()
    assert [line for line in lines if not line.startswith("xxx")] == ["first", "last", "the rest"]
    long = lines[1]
    assert len(long) < runner._LOG_LINE + 64
    assert long.endswith(f" [cut: {blocks * len(block) - runner._LOG_LINE} bytes more]")


def events_plugin() -> Any:
    """Load the callback plugin as a module of its own."""
    path = paths.content() / "plugins/callback/clusterctl_events.py"
    spec = importlib.util.spec_from_file_location("clusterctl_events", path)
    assert spec
    assert spec.loader
    plugin = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plugin)
    return plugin


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (
            {"stderr": "refused\r\nShared connection to 10.0.0.9 closed.\r\n", "stdout": "x"},
            "non-zero return code\nrefused",
        ),
        (
            {"stderr": "Shared connection to 10.0.0.9 closed.\r\n", "stdout": "refused\r\n"},
            "non-zero return code\nrefused",
        ),
        ({"stderr": "", "module_stdout": "refused"}, "non-zero return code\nrefused"),
        ({}, "non-zero return code"),
    ],
)
def test_message__of_a_task_with_a_terminal__is_the_programs(result: dict[str, str], message: str) -> None:
    parts = [{"failed": True, "msg": "non-zero return code", **result}]
    assert events_plugin()._message(parts) == message


def test_events__preload_fails__are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else Ansible would leave out the plugin, and nothing could stop the run."""
    plugin, asked = events_plugin(), []

    def preload() -> None:
        asked.append(True)
        raise ValueError

    monkeypatch.setattr(plugin, "preload", preload)
    monkeypatch.setenv("CLUSTERCTL_EVENTS", str(tmp_path / "events"))
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, getattr(sys, name))  # the plugin replaces them
    callback = plugin.CallbackModule()
    callback.v2_playbook_on_start(types.SimpleNamespace(get_plays=list))
    assert asked
    assert not callback.disabled
    assert json.loads((tmp_path / "events").read_text())["event"] == "playbook"


@pytest.mark.parametrize("is_ended", [True, False])
def test_events__of_a_call_that_had_ended__have_the_seconds_of_all_it_applied(
    monkeypatch: pytest.MonkeyPatch, is_ended: bool
) -> None:
    callback, written = events_plugin().CallbackModule(), list[dict[str, Any]]()
    monkeypatch.setattr(callback, "_write", lambda event, **fields: written.append(fields))
    task = types.SimpleNamespace(
        _uuid="own", _role=None, _parent=None, get_name=lambda: "x", get_path=str, no_log=False
    )
    callback._waiting["gpu01", "other"] = task
    applied = [{"task": "other", "seconds": 200.0, "changed": True}, {"task": "own", "seconds": 3.0}]
    callback._write_applied("gpu01", task, "ok", {"applied": applied}, 3.0, is_ended=is_ended)
    first, own = written
    assert "ended" not in first
    assert own["seconds"] == 3.0
    assert own.get("ended") == (203.0 if is_ended else None)


def test_no_event_is_as_long_as_a_line_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a node that says enough would have its own failure cut, and nobody would hear of it."""
    plugin = events_plugin()
    wide = "\U0001f600" * 100_000
    part = {
        "msg": wide,
        "changes": [{"kind": wide, "name": wide, "what": wide}] * 10_000,
        "versions": {f"{number}{wide}": wide for number in range(2000)},
        "notes": [wide] * 10_000,
    }
    told = (plugin._message([part]), plugin._changes([part]), plugin._versions([part]), plugin._notes([part]))
    assert 1 << 20 < len(json.dumps(told, ensure_ascii=False).encode()) < runner._EVENT_LINE // 2


@pytest.mark.proves("print-command", "A printed command runs on the same hosts in check mode as clusterctl.")
def test_the_printed_command_does_the_same_when_pasted(site: Site) -> None:
    playbook = (
        "- {name: Head, hosts: 'slurm_head:gpu01:gpu02', gather_facts: false, tasks: [{name: Say who,"
        " ansible.builtin.shell: 'echo {{ inventory_hostname }} >> who', args: {chdir: '{{ inventory_dir }}'},"
        " check_mode: false}]}"
    )
    settings: dict[str, Any] = {"limit": ("head1", "gpu02"), "forks": 1, "check": True}
    who = site.path / "who"
    ledger, _ = site.run(playbook, **settings)
    assert ledger.error(GROUPS, ["head1"]) is None
    ours = who.read_text()
    who.unlink()
    pasted = str(site.command(playbook, **settings))
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "HOME": str(site.path)}
    subprocess.run(["sh", "-c", pasted], cwd="/", env=environment, check=True, capture_output=True, timeout=120)
    assert who.read_text() == ours == "head1\ngpu02\n"


def test_the_command_line() -> None:
    command = runner.Command(
        Path("/p/verify.yml"), Path("/i n/inventory.yaml"), Path("/v"), ("a", "b"), True, True, 7, 3, "ops"
    )
    assert command.argv() == [
        "-i", "/i n/inventory.yaml", "--user", "ops", "--vault-password-file", "/v", "/p/verify.yml",
        "--limit", "a,b", "--check", "--diff", "--forks", "7", "-vvv",
    ]  # fmt: skip
    config = paths.content() / "ansible.cfg"
    assert str(command).startswith(f"ANSIBLE_CONFIG={config} ")
    assert "-i '/i n/inventory.yaml'" in str(command)
    asked = runner.Command(Path("/p/upgrade.yml"), Path("/i"), variables={"upgrade_roles": ["munge"]})
    assert asked.argv()[-2:] == ["--extra-vars", '{"upgrade_roles": ["munge"]}']


# --- signals ----------------------------------------------------------------------------------------------------------

# The first task lasts until the test says so; the second must not run once a stop was asked for.
SLOW = """
- name: Head
  hosts: slurm_head:gpu01
  gather_facts: false
  tasks:
    - name: Fail where the head is to fail
      ansible.builtin.command: test ! -e fail-{{ inventory_hostname }}
      args: {chdir: "{{ inventory_dir }}"}
      changed_when: false
- name: Slow
  hosts: slurm_head:gpu01
  gather_facts: false
  tasks:
    - name: First
      run_once: true
      ansible.builtin.shell: echo $$ > first; while ! test -e go; do sleep 0.05; done; touch first-done
      args: {chdir: "{{ inventory_dir }}"}
    - name: Second
      run_once: true
      ansible.builtin.shell: echo x >> second
      args: {chdir: "{{ inventory_dir }}"}
"""

# What `clusterctl bootstrap` does around Ansible, on a playbook of ours.
DRIVER = """
import sys
from pathlib import Path
from clusterctl.ansible import runner
from clusterctl.ansible.run_directory import RunDirectory
from clusterctl.cli import main
from clusterctl.run import lock, plays
from clusterctl.run.context import Options
from clusterctl.run.phases import Run
from clusterctl.nodes.remote import Access
from clusterctl.ui.screen import Screen

here = Path(sys.argv[1])

class Site:
    options = Options("bootstrap", here)
    skipped = ()
    access = Access(here / "known_hosts")
    def command(self): return runner.Command(here / sys.argv[2], here / "inventory.yaml", verbosity=int(sys.argv[3]))
    def groups(self): return {"slurm_head": ["head1"]}
    class inventory:
        heads = set(sys.argv[4].split(","))

def work():
    screen = Screen(sys.stdout)
    with lock.hold(here / ".clusterctl", "bootstrap", say=screen.say) as held:
        run = Run(Site(), screen, lock=held, kept=RunDirectory.create(here / ".clusterctl", "bootstrap"))
        error, _ = plays.watch(run, run.site, patience=1)
    if error:
        raise error

main.app = work
main.main()
"""


class Driven:
    """A run in a process of its own, to send signals to."""

    def __init__(self, site: Site, verbosity: int = 0, playbook: str = SLOW, critical: str = "head1") -> None:
        self.site = site
        (site.path / "slow.yml").write_text(playbook)
        self.process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, str(site.path), "slow.yml", str(verbosity), critical],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_for(self, name: str) -> Path:
        deadline = time.monotonic() + GUARD
        while not (found := sorted(self.site.path.glob(name))):
            assert self.process.poll() is None or name.startswith("."), self.process.communicate()
            assert time.monotonic() < deadline, f"no {name}"
            time.sleep(0.02)
        return found[-1]

    def go(self) -> None:
        (self.site.path / "go").touch()

    def done(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=GUARD)
        return self.process.returncode, out, err

    def has(self, name: str) -> bool:
        return (self.site.path / name).exists()


def gone(pid: int) -> None:
    deadline = time.monotonic() + GUARD
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline, "the task still runs"
        time.sleep(0.05)


@pytest.fixture
def driven(site: Site, request: pytest.FixtureRequest) -> Iterator[Driven]:
    driver = Driven(site, getattr(request, "param", 0))
    yield driver
    driver.go()
    driver.process.kill()
    driver.process.communicate()


@pytest.mark.proves("faults", "SIGINT, SIGTERM and SIGHUP each request a stop.")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_asks_for_a_stop_while_ansible_runs(number: signal.Signals) -> None:
    stops: list[int] = []
    before = signal.signal(number, signal.SIG_DFL)  # whoever runs the tests may have it ignored, as nohup does
    try:
        with runner._signals(lambda: stops.append(1)):
            signal.raise_signal(number)
        assert stops == [1]
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_a_run_under_nohup_goes_on_without_its_terminal() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with runner._signals(lambda: pytest.fail("stopped")):
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.proves("faults", "The first SIGINT lets the running task end; exit 7; the lock is free.")
def test_the_first_signal_lets_the_task_under_way_end(driven: Driven) -> None:
    driven.wait_for("first")
    driven.process.send_signal(signal.SIGINT)
    driven.wait_for(".clusterctl/runs/*/stop")
    assert not driven.has("first-done")
    driven.go()
    code, out, err = driven.done()
    assert (code, err.strip()) == (7, "clusterctl: interrupted; no task is running.")
    assert "Stopping when the running tasks have ended" in out
    assert driven.has("first-done")
    assert not driven.has("second")
    with lock.hold(driven.site.path / ".clusterctl", "verify"):
        pass


@pytest.mark.proves("faults", "A failing head stops the run before any further task.")
def test_a_failing_head_stops_the_run_before_another_task_begins_anywhere(site: Site) -> None:
    """Ansible itself would go on with the other hosts in the next play."""
    (site.path / "fail-head1").touch()
    code, out, err = Driven(site).done()
    assert (code, err.strip()) == (5, "clusterctl: the head head1 failed; the run stopped.")
    assert "head1  Fail where the head is to fail" in out
    assert not (site.path / "first").exists()


@pytest.mark.proves("faults", "A failing worker does not stop the others; exit 4.")
def test_a_failing_worker_does_not_stop_the_others(site: Site) -> None:
    (site.path / "fail-gpu01").touch()
    (site.path / "go").touch()
    code, _, err = Driven(site).done()
    assert (code, err.strip()) == (4, "clusterctl: gpu01 failed; everything else is done.")
    assert (site.path / "second").exists()


@pytest.mark.proves("faults", "A second SIGINT ends the running task at once; exit 7.")
def test_the_second_signal_ends_everything_at_once(driven: Driven) -> None:
    pid = int(driven.wait_for("first").read_text() or 0)
    driven.process.send_signal(signal.SIGINT)
    driven.wait_for(".clusterctl/runs/*/stop")
    driven.process.send_signal(signal.SIGINT)
    code, _, err = driven.done()
    assert (code, err.strip()) == (7, "clusterctl: interrupted; a task may still be running on a node.")
    assert not driven.has("first-done")
    gone(pid)


@pytest.mark.proves("faults", "A closed output pipe stops the run after its task; exit 7.")
def test_a_closed_pipe_is_a_request_to_stop(driven: Driven) -> None:
    driven.wait_for("first")
    assert driven.process.stdout
    driven.process.stdout.close()
    driven.wait_for(".clusterctl/runs/*/stop")
    driven.go()
    assert driven.process.stderr
    err = driven.process.stderr.read()
    assert driven.process.wait(GUARD) == 7
    assert "Traceback" not in err
    assert driven.has("first-done")
    assert not driven.has("second")


@pytest.mark.proves("faults", "The next run waits until a killed run's task has ended.")
# With -vvv Ansible's own threads write to the output that nobody reads any more.
@pytest.mark.parametrize("driven", [0, 3], indirect=True)
def test_a_killed_run_ends_its_task_and_the_next_one_waits_for_that(driven: Driven) -> None:
    driven.wait_for("first")
    private = next(Path("/tmp").glob(f"clusterctl-run-{driven.process.pid}-*"))
    driven.process.kill()
    driven.process.communicate()
    with pytest.raises(Locked), lock.hold(driven.site.path / ".clusterctl", "verify", orphan_seconds=0):
        pass
    driven.go()
    code, _, err = Driven(driven.site).done()
    assert (code, err) == (0, "")
    assert (driven.site.path / "second").read_text() == "x\n"
    assert not private.exists()


def test_stop_before_ansible_has_begun(site: Site) -> None:
    kept = RunDirectory.create(site.path, "bootstrap")
    ansible = runner.Runner(site.command(SLOW), kept)
    ansible.stop()
    ledger = Ledger()
    for item in ansible.watch():
        if item and not isinstance(item, runner.Output):
            ledger.add(item)
    assert isinstance(ledger.error(GROUPS, ["head1"]), Interrupted)
    assert not (site.path / "first").exists()


@pytest.mark.proves("faults", "A log that cannot be written stops the run before the next task.")
def test_a_full_disk_stops_the_run_in_order_and_is_told(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = RunDirectory.create(site.path, "bootstrap")
    monkeypatch.setattr(RunDirectory, "open", lambda self, path: os.open("/dev/full", os.O_WRONLY))
    ansible = runner.Runner(site.command(SLOW), kept)
    for _ in ansible.watch():
        if ansible.stopped:
            (site.path / "go").touch()
    assert ansible.trouble is not None
    assert "No space left" in str(ansible.trouble)
    assert not (site.path / "second").exists()


# --- slow hosts -------------------------------------------------------------------------------------------------------

# gpu02 continues when the file `go` exists, or after a minute. The others leave a file after each task.
# In these tests every host but gpu02 is critical: however slow this machine is, none of them is left behind.
# gpu02 is reached by ssh, which is what a run cuts.
BEHIND = """
- name: Together
  hosts: slurm_head:gpu01:gpu02
  gather_facts: false
  tasks:
    - name: Wait on one
      ansible.builtin.shell: |
        [ {{ inventory_hostname }} = gpu02 ] || touch {{ inventory_hostname }}-passed
        [ {{ inventory_hostname }} != gpu02 ] || {
          echo $$ >> waiting
          for _ in $(seq 1200); do [ ! -e go ] || break; sleep 0.05; done
          head -c 300000 /dev/zero | tr '\\0' x
          touch gpu02-waited
        }
      args: {chdir: "{{ inventory_dir }}"}
    - name: Come on
      ansible.builtin.shell: touch {{ inventory_hostname }}-came COME
      args: {chdir: "{{ inventory_dir }}"}
- name: Later
  hosts: slurm_head:gpu01:gpu02
  gather_facts: false
  tasks:
    - name: Arrive
      ansible.builtin.shell: touch {{ inventory_hostname }}-arrived LET
      args: {chdir: "{{ inventory_dir }}"}
"""


# Seconds for a task: the others' `touch` needs less on a loaded machine, too.
TASK_LIMIT = 20


def playbook_behind(come: str = "", arrive: str = "") -> str:
    return BEHIND.replace("COME", come).replace("LET", arrive)


@pytest.fixture
def by_ssh(site: Site) -> Iterator[Site]:
    """Return the site with gpu02 behind an SSH server of this process: a command that has begun runs to its end."""
    key, host_key = ed25519(site.path / "id"), ed25519(site.path / "host_key")
    server = Server([host_key], key)
    with listening(server.serve) as port:
        (site.path / "known_hosts").write_text(known(port, host_key))
        reached = {
            "ansible_connection": "ssh",
            "ansible_host": "127.0.0.1",
            "ansible_port": port,
            "ansible_user": "ops",
            "ansible_ssh_private_key_file": str(site.path / "id"),
            "ansible_ssh_common_args": "-F none -o " + shlex.quote(f'UserKnownHostsFile="{site.path}/known_hosts"'),
        }
        inventory = (site.path / "inventory.yaml").read_text()
        (site.path / "inventory.yaml").write_text(inventory.replace("gpu02: {}", f"gpu02: {json.dumps(reached)}"))
        yield site
        (site.path / "go").touch()


def awaited(path: Path) -> Path:
    deadline = time.monotonic() + GUARD
    while not path.exists():
        assert time.monotonic() < deadline, f"no {path}"
        time.sleep(0.05)
    return path


@pytest.mark.proves("faults", "Others do not wait for a slow host; it completes afterwards.")
@pytest.mark.parametrize("until", ["come", "arrive"])
def test_the_others_do_not_wait_for_a_slow_host_which_ends_its_task_and_follows(by_ssh: Site, until: str) -> None:
    """It waits for what the others do after it. What it says then is more than a pipe takes."""
    site = by_ssh
    ledger, kept = site.run(playbook_behind(**{until: "go"}), critical=("head1", "gpu01"), patience=1)
    assert ledger.behind() == {"gpu02"}
    assert ledger.ended
    assert ledger.error(GROUPS, ["head1"]) is None
    assert {name: (host.status, host.changed) for name, host in ledger.hosts.items()} == {
        "head1": ("ok", 3),
        "gpu01": ("ok", 3),
        "gpu02": ("behind", 0),
    }
    awaited(site.path / "gpu02-waited")
    assert not (site.path / "gpu02-came").exists()
    assert len((site.path / "waiting").read_text().splitlines()) == 1, "Ansible connected once more"
    for item in runner.Runner(site.command(playbook_behind(), limit=("head1", "gpu02")), kept).watch():
        if item and not isinstance(item, runner.Output):
            ledger.add(item)
    assert ledger.behind() == set()
    assert {name: (host.status, host.changed) for name, host in ledger.hosts.items()} == {
        "head1": ("ok", 6),
        "gpu01": ("ok", 3),
        "gpu02": ("ok", 3),
    }


@pytest.mark.proves("faults", "No host continues without a slow head.")
def test_nobody_goes_on_without_a_critical_host(by_ssh: Site) -> None:
    """gpu02 is as late as the host that is left behind in the test above, whatever the speed of this machine."""
    site = by_ssh
    began = time.monotonic()

    def let_go() -> None:
        try:
            while not all((site.path / name).exists() for name in ("waiting", "head1-passed", "gpu01-passed")):
                assert time.monotonic() - began < GUARD
                time.sleep(0.05)
            # Late is who takes twice as long as the others. They took less than has passed since the beginning.
            time.sleep(2 * (time.monotonic() - began) + 2)
            assert not [name for name in ("head1", "gpu01") if (site.path / f"{name}-came").exists()]
        finally:
            (site.path / "go").touch()

    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(let_go)
        ledger, _ = site.run(playbook_behind(), critical=("head1", "gpu01", "gpu02"), patience=0.1)
        late.result()
    assert {name: host.changed for name, host in ledger.hosts.items()} == {"head1": 3, "gpu01": 3, "gpu02": 3}


@pytest.mark.proves("faults", "A task that never ends fails on its own host only.")
def test_a_task_that_never_ends_fails_on_its_host_alone(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours may take an hour, here it is seconds."""
    ours, hour, content = paths.content(), "\ntask_timeout = 3600\n", tmp_path / "content"
    settings = (ours / "ansible.cfg").read_text()
    assert hour in settings
    content.mkdir()
    (content / "ansible.cfg").write_text(settings.replace(hour, f"\ntask_timeout = {TASK_LIMIT}\n"))
    for name in ("playbooks", "plugins", "roles"):
        (content / name).symlink_to(ours / name)
    monkeypatch.setattr(paths, "content", lambda: content)
    ledger, kept = site.run(playbook_behind(), critical=("head1",))  # nobody says go
    (site.path / "go").touch()  # Ansible leaves it running
    assert ledger.ended
    assert {name: host.status for name, host in ledger.hosts.items()} == {
        "head1": "ok",
        "gpu01": "ok",
        "gpu02": "failed",
    }
    assert f"Timed out after {TASK_LIMIT} second" in kept.log.read_text()


@pytest.mark.proves("faults", "SIGINT after a host was left behind: exit 7; its task is reported.")
def test_a_stop_reports_the_task_of_a_host_that_was_left_behind(by_ssh: Site) -> None:
    """The host's task runs to its end on the node, as any task does whose connection is lost."""
    arrive = "; for _ in $(seq 1200); do [ ! -e gone ] || break; sleep 0.05; done"
    driven = Driven(by_ssh, playbook=playbook_behind(arrive=arrive), critical="head1,gpu01")
    try:
        driven.wait_for("gpu01-arrived")
        driven.process.send_signal(signal.SIGINT)
        driven.wait_for(".clusterctl/runs/*/stop")
        (by_ssh.path / "gone").touch()
        code, out, err = driven.done()
        assert code == 7
        assert (
            "gpu02  Wait on one: much slower than the other hosts; the others continue, this host follows at the end"
            in out
        )
        assert "gpu02 was left behind; a task may still be running on a node" in err
        assert not driven.has("gpu02-waited")
        driven.go()
        awaited(by_ssh.path / "gpu02-waited")
    finally:
        driven.process.kill()
        driven.process.communicate()


def test_connection__of_a_delegated_task__is_the_delegates(by_ssh: Site) -> None:
    """Cutting off the host of the task must not cut off its delegate, nor lead to the wrong one."""
    by_ssh.run("""
- hosts: gpu01
  gather_facts: false
  tasks:
    - name: Connect
      ansible.builtin.command: "true"
      delegate_to: gpu02
    - name: List the sockets
      ansible.builtin.shell: find "$ANSIBLE_SSH_CONTROL_PATH_DIR" -type s > sockets
      args: {chdir: "{{ inventory_dir }}"}
""")
    (socket,) = (by_ssh.path / "sockets").read_text().splitlines()
    assert Path(socket).parent == connections.sockets(Path(socket).parents[2], "gpu02")


def test_summary_is_plain_data(mixed: tuple[Ledger, RunDirectory, list[events.Result]]) -> None:
    summary = json.loads(json.dumps(mixed[0].summary()))
    assert [failure["host"] for failure in summary["failures"]] == ["gpu03", "gpu02", "gpu01"]
    assert summary["hosts"]["gpu03"]["status"] == "unreachable"
