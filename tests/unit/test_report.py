"""What people read: lines, pages and tables, on a terminal and without one."""

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterctl import __version__
from clusterctl.ansible.events import Change, Ended, Event, PlaybookStarted, PlayStarted, Result, Stopped, TaskStarted
from clusterctl.ansible.outcome import Ledger
from clusterctl.ansible.runner import Output
from clusterctl.inventory import model as inventory
from clusterctl.inventory.model import Host
from clusterctl.nodes import remote
from clusterctl.nodes.contact import Contact
from clusterctl.ui import report
from clusterctl.ui.progress import Progress
from clusterctl.ui.screen import Screen
from clusterctl.util.errors import ClusterctlError, Finding, HeadFailed, Interrupted, WorkersFailed
from clusterctl.util.text import duration, fold, plural

ROLE = "munge"
PATH = "roles/munge/tasks/main.yml:3"


class Stream(io.StringIO):
    encoding = "utf-8"


def screen(
    monkeypatch: pytest.MonkeyPatch, *, terminal: bool = False, width: int = 100, language: str = "C.UTF-8"
) -> Screen:
    for name in ("LC_ALL", "LC_CTYPE", "NO_COLOR", "FORCE_COLOR", "TERM", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LANG", language)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm-256color")
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
    return Screen(Stream())


def printed(on: Screen) -> str:
    assert isinstance(on.file, Stream)
    return on.file.getvalue()


def result(host: str, status: str = "ok", message: str = "", **more: object) -> Result:
    return Result(host, ROLE, "Converge munge", PATH, status, message, **more)  # type: ignore[arg-type]


def run(*results: Result, end: bool = True) -> list[Event]:
    hosts = tuple(dict.fromkeys(item.host for item in results))
    started: list[Event] = [
        PlaybookStarted(("Workers",)),
        PlayStarted("Workers", "slurm_workers", hosts, (ROLE,)),
        TaskStarted("Workers", ROLE, "Converge munge", PATH),
    ]
    return [*started, *results, Ended() if end else Stopped()]


def ledger(events: list[Event]) -> Ledger:
    made = Ledger(clock=lambda: 0.0)
    for event in events:
        made.add(event)
    return made


def test_without_a_terminal_a_role_that_has_ended_is_one_plain_line(monkeypatch: pytest.MonkeyPatch) -> None:
    on = screen(monkeypatch)
    clock = iter(range(100)).__next__
    progress = Progress(on, Ledger(clock=clock), clock=clock)
    with progress.running():
        for event in run(result("gpu01", "changed"), result("gpu02"), result("gpu03", "failed", "no\nmore")):
            progress.show(event)
            progress.show(None)
    lines = printed(on).splitlines()
    assert [re.sub(" +", " ", line).strip() for line in lines] == [
        "",
        "Role Hosts Changed Failed Time",
        "Workers",
        "✗ gpu03 munge: Converge munge: no",
        "✗ munge 2/3 1 1 1.0 s",
    ]
    assert "\x1b" not in printed(on)


@pytest.mark.parametrize("status", ["skipped", "ok", "failed"])
def test_progress__role_skipped_on_all_hosts__has_no_line(monkeypatch: pytest.MonkeyPatch, status: str) -> None:
    on = screen(monkeypatch)
    progress = Progress(on, Ledger())
    with progress.running():
        for event in run(result("gpu01", status), result("gpu02", "skipped")):
            progress.show(event)
    assert (ROLE in printed(on)) is (status != "skipped")


def test_progress__host_failed_in_the_playbook_before__is_counted_again() -> None:
    made = ledger(run(result("gpu01", "failed"), result("gpu02")))
    made.add(PlayStarted("Workers", hosts=("gpu01", "gpu02"), roles=("base",)))
    made.add(TaskStarted("Workers", "base", "Converge", ""))
    assert made.stages[-1].total == 1
    for event in run(result("gpu01"), result("gpu02")):
        made.add(event)
    assert made.stages[-1].total == 2


def test_on_a_terminal_a_line_lives_and_the_result_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    on = screen(monkeypatch, terminal=True)
    progress = Progress(on, Ledger())
    with progress.running():
        for event in run(result("gpu01", "changed")):
            progress.show(event)
    shown = printed(on)
    assert "\x1b[?25l" in shown  # the cursor hides while a line lives
    assert shown.rindex("\x1b[?25h") > shown.rindex("munge")
    assert "1/1" in shown


@pytest.mark.proves("bootstrap", "A role that has ended is not shown as under way too.")
def test_progress__role_has_ended__its_live_line_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    on = screen(monkeypatch, terminal=True)
    now = [0.0]
    progress = Progress(on, Ledger(clock=lambda: now[0]), clock=lambda: now[0])
    with progress.running():
        for event in run(result("gpu01"))[:3]:
            now[0] += 1.0
            progress.show(event)
        for event in (result("gpu01"), TaskStarted("Workers", "base", "Converge base", PATH)):
            now[0] += 0.01  # sooner than a live line is drawn again
            progress.show(event)
    shown = re.sub(" +", " ", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", printed(on)))
    assert "munge 0/1" in shown, "it was under way"
    after = shown[shown.index("✓ munge 1/1") :]
    assert "base 0/1" in after
    assert after.count("munge") == 1


def test_progress__several_plays__shows_which_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    on, now = screen(monkeypatch, terminal=True), [0.0]
    progress = Progress(on, Ledger(clock=lambda: now[0]), clock=lambda: now[0])
    with progress.running():
        for event in (PlaybookStarted(("Workers", "Head", "Proof")), *run(result("gpu01"))[1:3]):
            now[0] += 1.0
            progress.show(event)
    assert "play 1 of 3" in printed(on)
    assert "play 0" not in printed(on)


def test_a_live_line_is_never_wider_than_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    on = screen(monkeypatch, terminal=True, width=30)
    progress = Progress(on, Ledger())
    progress.stopping(False)
    with progress.running():
        for event in run(result("gpu01", "changed"))[:-1]:
            progress.show(event)
    lines = re.split(r"[\r\n]", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", printed(on)))
    assert max(map(len, lines)) == 29


def test_text_of_a_node_is_neither_markup_nor_a_terminal_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    on = screen(monkeypatch, terminal=True)
    made = ledger(run(result("gpu01", "failed", "[bold]loud[/bold] [link=x]:smile:")))
    report.Page(on).failed(WorkersFailed("Failed on gpu01."), made)
    progress = Progress(on, Ledger(), verbose=True)
    progress.show(Output("a\x1b]0;title\x07b"))
    assert "[bold]loud[/bold] [link=x]:smile:" in printed(on)
    assert "\x1b]" not in printed(on)


@pytest.mark.parametrize("language", ["C", "POSIX", "", "de_DE.ISO-8859-1"])
def test_a_language_without_unicode_gets_ascii_alone(monkeypatch: pytest.MonkeyPatch, language: str) -> None:
    on = screen(monkeypatch, language=language)
    progress = Progress(on, Ledger())
    events = run(result("gpu01", "changed", versions={"munge": "1", "a": "2", "b": "3", "c": "4"}, notes=("n",)))
    for event in events:
        progress.show(event)
    page = report.Page(on)
    page.content(ledger(events))
    page.failed(WorkersFailed("Failed."), ledger(run(result("gpu01", "failed", "x\n" * 99))))
    assert printed(on).isascii()
    assert " ok munge" in printed(on)


def test_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    on = screen(monkeypatch, terminal=True)
    monkeypatch.setenv("NO_COLOR", "1")
    on = Screen(on.file)
    on.say(("red", "red"))
    assert "\x1b[31m" not in printed(on)


@pytest.mark.proves("bootstrap", "A failure shows hosts, task with file, cause, hint and what completed.")
def test_a_failure_page_names_host_task_cause_hint_and_state(monkeypatch: pytest.MonkeyPatch) -> None:
    on = screen(monkeypatch)
    full = "E: write /var/cache: No space left on device"
    made = ledger(run(result("gpu01"), result("gpu02", "failed", full), result("gpu03", "failed", full)))
    report.Page(on).failed(WorkersFailed("Failed on gpu02, gpu03."), made)
    text = printed(on)
    for part in ("gpu02, gpu03  munge: Converge munge", PATH, full, "Hint: free space"):
        assert part in text
    assert re.search(r"gpu01 +complete\n +gpu02, gpu03 +nothing completed", text)
    assert text.count(full) == 1


def test_the_state_after_a_failed_head(monkeypatch: pytest.MonkeyPatch) -> None:
    on = screen(monkeypatch)
    made = ledger(run(result("gpu01"), result("gpu02"), result("head1", "failed", "x")))
    report.Page(on).failed(HeadFailed("Failed on the head: head1."), made)
    assert re.search(r"gpu01, gpu02 +not changed", printed(on))


def test_a_stopped_run_shows_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    on = screen(monkeypatch)
    report.Page(on).failed(Interrupted("as asked."), ledger(run(result("gpu01"), end=False)))
    assert printed(on).strip() == "Stopped after 0.0 s: as asked."


def test_the_summary_says_what_is_where(monkeypatch: pytest.MonkeyPatch) -> None:
    on = screen(monkeypatch)
    change = Change("file", "/etc/munge/munge.key", "created")
    events = run(
        result("gpu01", "changed", changes=(change, change), versions={"munge": "0.5.16-1"}, notes=("reboot",)),
        result("gpu02", versions={"munge": "0.5.15-4"}, notes=("reboot",)),
    )
    report.Page(on).content(ledger(events))
    text = re.sub(" +", " ", printed(on))
    for part in ("munge gpu01, gpu02 munge 0.5.15 / 0.5.16", "gpu01 2 files", "gpu01, gpu02 reboot"):
        assert part in text
    assert "gpu02 2 files" not in text


def test_summary__nothing_changed__lists_no_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    on = screen(monkeypatch)
    report.Page(on).content(ledger(run(result("gpu01", versions={"munge": "0.5.16-1"}))))
    assert printed(on) == ""


@pytest.mark.parametrize(("verb", "shown"), [("bootstrap", True), ("upgrade", False), ("reboot", False)])
def test_summary__of_a_verb__has_the_addresses_if_it_builds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, shown: bool
) -> None:
    (tmp_path / "inventory.yaml").write_text(
        "all:\n  vars: {cluster_name: aurora}\n  children:\n"
        "    slurm_head: {hosts: {head1: {ansible_host: 10.0.0.10}}}\n    monitoring: {hosts: {head1: {}}}\n"
        "    slurm_workers: {hosts: {gpu01: {ansible_host: 10.0.0.11}}}\n"
    )
    on = screen(monkeypatch)
    report.Page(on).done(ledger(run(result("gpu01"))), inventory.load(tmp_path / "inventory.yaml"), verb, tmp_path)
    text = printed(on)
    assert ("Landing page  https://10.0.0.10:9443/\n" in text) is shown
    assert (f"secret show {tmp_path} landing_page_password\n" in text) is shown
    assert (f"All pages: clusterctl open {tmp_path}\n" in text) is shown


def test_summary__task_without_details__is_another_change(monkeypatch: pytest.MonkeyPatch) -> None:
    on = screen(monkeypatch)
    change = Change("file", "/etc/munge/munge.key", "created")
    report.Page(on).content(ledger(run(result("gpu01", "changed"), result("gpu01", "changed", changes=(change,)))))
    assert re.search(r"gpu01 +1 file, 1 other change\n", printed(on))


def test_a_program_of_ours_has_our_version_and_not_that_of_what_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    on = screen(monkeypatch)
    counted = replace(result("head1", "changed", versions={"python3": "3.13.5-1"}), role="slurm_exporter")
    report.Page(on).content(ledger(run(counted)))
    assert re.search(rf"slurm_exporter +clusterctl {re.escape(__version__)}\n", printed(on))
    assert "python3" not in printed(on)


def test_the_end_of_the_log_is_shown_without_control_characters(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    on = screen(monkeypatch)
    log = tmp_path / "ansible.log"
    log.write_text("".join(f"line {number}\n" for number in range(50)) + "\x1b[2Jlast\n")
    report.Page(on).tail(log, 3)
    assert printed(on).splitlines()[-4:-1] == ["    line 48", "    line 49", "    [2Jlast"]


def test_differences_are_shown_with_their_host(monkeypatch: pytest.MonkeyPatch) -> None:
    on = screen(monkeypatch)
    progress = Progress(on, Ledger(), diff=True)
    for line in (
        "TASK [x]",
        "--- before: /a",
        "+++ after: /a",
        "@@ -0,0 +1 @@",
        "+b",
        "",
        "changed: [gpu01]",
        "ok: [gpu02]",
    ):
        progress.show(Output(line))
    assert [line.strip() for line in printed(on).splitlines()] == [
        "gpu01:", "--- before: /a", "+++ after: /a", "@@ -0,0 +1 @@", "+b", "",
    ]  # fmt: skip


def test_a_closed_output_is_an_error_once_and_silence_afterwards(tmp_path: Path) -> None:
    with open("/dev/full", "w") as file:
        on = Screen(file)
        with pytest.raises(OSError, match="No space"):
            on.say("x")
        on.mute()
        on.say("x")


@pytest.mark.parametrize(
    ("message", "part"),
    [
        ("Host key verification failed.", "host key"),
        ("root@10.0.0.11: Permission denied (publickey,password).", "ssh-agent"),
        ("sudo: a password is required", "sudo"),
        ("E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 7 (apt-get)", "package manager"),
        ("the package lock is still held by pid 7 (apt-get upgrade) after 300 s", "package manager"),
        ("W: GPG error: NO_PUBKEY 7EA0A9C3F273FCD8", "signature"),
        ("Temporary failure resolving 'deb.debian.org'", "resolv.conf"),
        ("E: Failed to fetch http://deb.debian.org/x  404  Not Found", "package source"),
        ("E: Release file for http://x is expired: Release file http://x expired", "mirror"),
        ("ssh: connect to host 10.0.0.11 port 22: Connection timed out", "firewall"),
        ("/bin/sh: 1: /usr/bin/python3: not found, python3 not found", "python3"),
        (
            "/usr/lib/apt/apt-helper download-file ended with 100\n"
            "E: Failed to fetch https://snapshot.debian.org/x/apptainer_1.4.5-2_amd64.deb  Connection timed out",
            "apptainer_package_url",
        ),
        ("unit slurmd did not become active", "journalctl"),
        ("/bin/sh: line 1: 4711 Killed", "memory"),
    ],
)
def test_hints(message: str, part: str) -> None:
    assert part in report.hint(message)


@pytest.mark.parametrize("message", ["value of state must be one of: present, absent", "dkms timed out after 1800 s"])
def test_hint__none_fits__is_empty(message: str) -> None:
    """A program of the node's own that does not end has nothing to do with the network."""
    assert report.hint(message) == ""
    assert report.hint("not able to guarantee that all other processes were killed!") == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (65, "1 min 05 s"),
        (7380, "2 h 03 min"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(("count", "text"), [(0, "0 directories"), (1, "1 directory"), (2, "2 directories")])
def test_plurals(count: int, text: str) -> None:
    assert plural(count, "directory") == text


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["head1"], "head1"),
        (["gpu01", "gpu02"], "gpu01, gpu02"),
        (["gpu01", "gpu02", "gpu03", "head1"], "gpu[01-03], head1"),
        (["gpu8", "gpu9", "gpu10", "gpu11", "gpu12"], "gpu8, gpu9, gpu[10-12]"),
        (["a1", "b1", "a2"], "a1, b1, a2"),
        (["login", "login"], "login, login"),
        (["gpu01", "gpu03", "gpu04", "gpu07", "head1"], "gpu[01,03-04,07], head1"),
        (["gpu3", "gpu1", "gpu2"], "gpu[3,1-2]"),
    ],
)
def test_fold(names: list[str], text: str) -> None:
    assert fold(names) == text


@pytest.mark.parametrize(
    ("pattern", "forgotten"),
    [
        ("slurm_head", True),
        ("monitoring:slurm_head", True),
        ("monitoring", False),
        ("monitoring:&slurm_head", False),
        ("slurm_head:!slurm_head", False),
        ("all:!slurm_head", True),
    ],
)
def test_a_play_without_hosts_is_an_error_where_the_inventory_has_some(pattern: str, forgotten: bool) -> None:
    groups = {"all": ["head1", "gpu01"], "slurm_head": ["head1"]}
    made = ledger([*run(result("gpu01"))[:-1], PlayStarted("Head", pattern), Ended()])
    verdict = made.error(groups, [])
    assert (type(verdict) is ClusterctlError) == forgotten


def test_verdicts_of_runs_without_an_end() -> None:
    assert type(ledger(run(result("gpu01"))[:-1]).error({}, [])) is ClusterctlError
    assert isinstance(ledger(run(result("gpu01"), end=False)).error({}, []), Interrupted)
    assert type(ledger([Ended()]).error({}, [])) is ClusterctlError


def test_a_stop_too_late_to_end_a_playbook_ends_what_is_to_follow() -> None:
    made = ledger(run(result("gpu01")))
    made.stopped = True
    assert made.error({}, []) is None
    assert str(made.error({}, [], more=True)) == "interrupted; no task is running."


@pytest.mark.proves("validate", "The first line lists hosts without an address, with the name that may be meant.")
@pytest.mark.parametrize(
    ("unresolved", "told"),
    [
        ([], "aurora: 3 hosts, the inventory is valid.\n"),
        (["hed1"], "aurora: 3 hosts, the inventory is valid, but 1 host has no address.\n"),
        (["hed1", "gpu01"], "aurora: 3 hosts, the inventory is valid, but 2 hosts have no address.\n"),
    ],
)
def test_shape__hosts_without_an_address__are_told_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, unresolved: list[str], told: str
) -> None:
    path = tmp_path / "inventory.yaml"
    path.write_text(
        "all:\n  vars: {cluster_name: aurora}\n  children:\n"
        "    slurm_head: {hosts: {head1: {ansible_host: 10.0.0.10}}}\n"
        "    slurm_workers: {hosts: {gpu01: {}}}\n    monitoring: {hosts: {hed1: {}}}\n"
    )
    looked_up: list[str] = []

    def look_up(hosts: list[Host]) -> list[str]:
        looked_up.extend(host.name for host in hosts)
        return unresolved

    monkeypatch.setattr(remote, "unresolved", look_up)
    on, shape = screen(monkeypatch), report.Shape.of(inventory.load(path))
    shape.show(on, path, discovered=False)
    assert printed(on).startswith(told)
    assert ("hed1 does not resolve on this machine: set its ansible_host (did you mean head1?)" in printed(on)) is bool(
        unresolved
    )
    assert (sorted(looked_up), shape.summary()["unresolved"]) == (["gpu01", "hed1"], unresolved)


KEYS = [f"SHA256:{letter * 43}" for letter in "ab"]
COMMAND = "clusterctl trust aurora/inventory.yaml gpu09"
FINDINGS = [
    *(Finding(f"gpu{n:02}", "connection", "silent for 10 s", "see whether it is up") for n in range(1, 16, 2)),
    Finding("gpu09", "host key changed", f"it shows {KEYS[0]}, on record is {KEYS[1]}", COMMAND),
    Finding("gpu10", "package lock", "apt-get"),
]


@pytest.mark.parametrize("width", [80, 120])
def test_what_is_wrong_with_nodes_fits_the_terminal_and_can_be_copied(
    monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    on = screen(monkeypatch, terminal=True, width=width)
    assert report.findings(on, FINDINGS) == 9
    lines = [line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", printed(on)).splitlines()]
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert all(text.count(whole) == 1 for whole in (*KEYS, COMMAND))
    assert lines[:2] == [
        "gpu[01,03,05,07,09,11,  connection: silent for 10 s",
        "13,15]                  see whether it is up",
    ]
    assert lines[-2:] == ["gpu10                   package lock: apt-get", ""]


def test_ledger__with_nodes_that_are_left_out__orders_them_among_the_others() -> None:
    ledger = Ledger()
    ledger.order(["head1", "gpu01", "gpu02"])
    ledger.add(PlayStarted("Configure the head", hosts=("gpu02", "head1")))
    assert ledger.ordered({"gpu02", "gpu01", "head1"}) == ["head1", "gpu01", "gpu02"]


def test_checked__of_many_nodes_alike__names_them_together(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"gpu{number:03}" for number in range(1, 501)]
    # One of each kind of key: nodes that are named twice are shown once.
    warnings = tuple(Finding(name, "clock", "3.0 s behind head1", warning=True) for name in [*names, *names])
    differences = dict.fromkeys(names, ("memory 96 GiB, was 128 GiB",))
    facts: dict[str, Any] = dict.fromkeys(names)
    on, contact = screen(monkeypatch), Contact(facts, warnings, differences)
    report.checked(on, contact, 0, 1.0)
    assert printed(on).splitlines()[1:3] == [
        "  note: gpu[001-500]: clock: 3.0 s behind head1",
        "  differs from its record: gpu[001-500]: memory 96 GiB, was 128 GiB",
    ]


def test_what_is_wrong_with_nodes_is_a_line_each_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    on = screen(monkeypatch)
    report.findings(on, FINDINGS)
    assert printed(on).splitlines() == [*map(str, FINDINGS), ""]
