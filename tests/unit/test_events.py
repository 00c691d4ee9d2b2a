"""Events: a typed reading of lines that nobody vouches for."""

import json

import pytest

from clusterctl.ansible import events

RESULT = {
    "event": "result",
    "host": "gpu01",
    "role": "munge",
    "task": "Converge munge",
    "path": "roles/munge/tasks/main.yml:3",
    "status": "changed",
    "message": "",
    "seconds": 1.5,
    "changes": [
        {"kind": "file", "name": "/etc/munge/munge.key", "what": "created"},
        {"kind": "package", "name": "munge", "action": "upgraded", "what": "1", "from": "0.5.15", "to": "0.5.16"},
    ],
    "versions": {"munge": "0.5.16-1"},
    "notes": ["a note"],
}


def test_a_result_with_every_field() -> None:
    event = events.parse(json.dumps(RESULT))
    assert event == events.Result(
        "gpu01",
        "munge",
        "Converge munge",
        "roles/munge/tasks/main.yml:3",
        "changed",
        "",
        1.5,
        (
            events.Change("file", "/etc/munge/munge.key", "created"),
            events.Change("package", "munge", "1", "upgraded", "0.5.15", "0.5.16"),
        ),
        {"munge": "0.5.16-1"},
        ("a note",),
    )


@pytest.mark.parametrize(
    "line",
    [
        "",
        "null",
        "[]",
        "3",
        '"play"',
        "{",
        '{"event": "play", "name": "He',
        "{}",
        '{"event": "unheard of"}',
        '{"event": ["play"]}',
        json.dumps(RESULT | {"status": "splendid"}),
        json.dumps(RESULT | {"status": None}),
    ],
)
def test_what_is_no_event_is_passed_over(line: str) -> None:
    assert events.parse(line) is None


@pytest.mark.parametrize("wrong", [None, 3, "text", [1, None], {"a": 1}, True])
def test_fields_of_a_wrong_type_are_empty(wrong: object) -> None:
    keys = ("host", "role", "task", "path", "message", "seconds", "changes", "versions", "notes")
    event = events.parse(json.dumps(RESULT | dict.fromkeys(keys, wrong)))
    assert isinstance(event, events.Result)
    assert all(isinstance(note, str) for note in event.notes)
    assert all(isinstance(change, events.Change) for change in event.changes)
    assert all(isinstance(version, str) for version in event.versions.values())
    assert isinstance(event.seconds, float)
    assert isinstance(event.host, str)


def test_every_kind_of_event() -> None:
    lines = [
        {"event": "playbook", "plays": ["Head", "Workers"]},
        {"event": "play", "name": "Head", "pattern": "slurm_head", "hosts": ["head1"], "roles": ["munge"]},
        {"event": "task", "play": "Head", "role": "munge", "task": "Converge", "path": "x:1"},
        {"event": "started", "host": "head1", "at": 7.5},
        {"event": "stats", "hosts": {"head1": {"ok": 1, "changed": 2, "failed": 3, "unreachable": 4, "skipped": 5}}},
        {"event": "stopped"},
        {"event": "end"},
    ]
    assert [events.parse(json.dumps(line)) for line in lines] == [
        events.PlaybookStarted(("Head", "Workers")),
        events.PlayStarted("Head", "slurm_head", ("head1",), ("munge",)),
        events.TaskStarted("Head", "munge", "Converge", "x:1"),
        events.HostStarted("head1", 7.5),
        events.Stats({"head1": events.HostStats(1, 2, 3, 4, 5)}),
        events.Stopped(),
        events.Ended(),
    ]
