"""Programs of the log stack: what is deleted, what is exported, and whether an export resumes where it ended."""

import importlib.machinery
import importlib.util
import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.labs import REPOSITORY


def program(path: str, name: str) -> ModuleType:
    loader = importlib.machinery.SourceFileLoader(name, str(REPOSITORY / path))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def store() -> ModuleType:
    return program("roles/logging/files/log-store", "log_store")


@pytest.fixture(scope="module")
def exporter() -> ModuleType:
    return program("roles/filebeat/files/journal-export", "journal_export")


SIZES = {"clusterlog-2026.11.24": 5, "clusterlog-2026.11.25": 6, "clusterlog-2026.11.26": 7, "clusterlog-2026.11.27": 8}


@pytest.mark.proves("log_stack", "Logs of old days are deleted, and the oldest days above the size limit.")
@pytest.mark.parametrize(
    ("days", "limit", "deleted"),
    [
        (30, 26, ""),
        (30, 25, "24"),
        (30, 20, "24 25"),
        (2, 26, "24"),
        (2, 20, "24 25"),
        (30, 7, "24 25 26 27"),
        (1, 0, "24 25 26 27"),
    ],
)
def test_expired__by_age_and_size__are_the_oldest(store: ModuleType, days: int, limit: int, deleted: str) -> None:
    now = datetime(2026, 11, 27, 12, tzinfo=UTC)
    assert store.expired(SIZES, days, limit, now) == [f"clusterlog-2026.11.{day}" for day in deleted.split()]


@pytest.mark.proves("log_stack", "The next day's index exists before a full disk can prevent it.")
@pytest.mark.parametrize(
    ("blocks", "exists", "created"), [({}, False, True), ({}, True, False), ({"10": {}}, False, False)]
)
def test_retain__next_day__is_created_once(
    store: ModuleType, tmp_path: Path, blocks: dict[str, Any], exists: bool, created: bool
) -> None:
    puts: list[str] = []
    tomorrow = store.index_of(datetime.now(UTC) + timedelta(days=1))

    def ask(method: str, path: str, _body: object = None) -> Any:
        if method == "PUT":
            puts.append(path)
        if path.startswith("/_cluster"):
            return {"blocks": {"global": blocks}}
        return {} if exists and path == f"/{tomorrow}" else None

    given = {
        "secure": False,
        "days": 30,
        "gigabytes": 1,
        "metrics": str(tmp_path / "log-store.prom"),
        "shippers": ["gpu01"],
    }
    engine = store.Engine(given)
    engine.ask = ask
    assert engine.retain() == []
    assert puts == ([f"/{tomorrow}"] if created else [])
    assert f"cluster_logs_refused {len(blocks)}\n" in (tmp_path / "log-store.prom").read_text()


@pytest.mark.proves("log_stack", "Users of pages and receiver exist while wanted, each with one narrow role.")
@pytest.mark.parametrize("engine", ["elasticsearch", "opensearch"])
@pytest.mark.parametrize(("pages", "receiver"), [(True, True), (False, True), (True, False), (False, False)])
def test_users__of_programs__are_those_that_are_wanted(
    store: ModuleType, tmp_path: Path, engine: str, pages: bool, receiver: bool
) -> None:
    for name in ("seed", "hash"):
        (tmp_path / name).write_text("x\n")
    given = {
        "secure": True, "engine": engine, "user": "admin", "shippers": ["gpu01"], "pages": pages, "receiver": receiver,
        **{name: str(tmp_path / name) for name in ("seed", "hash")},
    }  # fmt: skip
    found = object.__new__(store.Engine)
    found.given = given
    objects = list((found.opensearch if engine == "opensearch" else found.elasticsearch)())
    own = {path.rpartition("/")[2]: content for kind, path, content in objects if kind == "user"}
    wanted = {"shipper-gpu01", *["kibanaserver"] * pages, *["receiver"] * receiver}
    assert own.keys() - {"admin"} == wanted
    passwords = [content["password"] for name, content in own.items() if name != "admin"]
    assert len({*passwords}) == len(passwords) and all(len(one) == 48 for one in passwords)
    key = "backend_roles" if engine == "opensearch" else "roles"
    roles = {name: content[key] for name, content in own.items() if name != "admin"}
    of_pages = [] if engine == "opensearch" else ["kibana_system"]
    assert roles == {name: of_pages if name == "kibanaserver" else ["shipper"] for name in wanted}
    mapped = [path for kind, path, _ in objects if kind == "mapping" and path.endswith("/kibana_server")]
    assert len(mapped) == (engine == "opensearch" and pages)
    present = dict.fromkeys(
        ["admin", "kibanaserver", "receiver", "readall", "shipper-gpu01", "shipper-gone", "someone"]
    )
    found.ask = lambda _method, path: None if "rolesmapping" in path else present
    unwanted = {path.rpartition("/")[2] for path in found.unwanted()}
    assert unwanted == {"readall", "shipper-gone", "kibanaserver", "receiver"} - wanted


ENTRY: dict[str, Any] = {
    "__CURSOR": "s=1;i=2",
    "__REALTIME_TIMESTAMP": "1795763000094123",
    "MESSAGE": "hello",
    "PRIORITY": "3",
    "SYSLOG_IDENTIFIER": "sshd",
    "_PID": "17",
    "_TRANSPORT": "syslog",
}


def test_converted__line_of_the_journal__has_cursor_and_time(exporter: ModuleType) -> None:
    line = exporter.converted(ENTRY)
    assert line == {
        "cursor": "s=1;i=2",
        "time": 1795763000094,
        "message": "hello",
        "identifier": "sshd",
        "priority": 3,
        "pid": 17,
        "transport": "syslog",
    }


@pytest.mark.parametrize(
    ("message", "shown"),
    [([104, 105, 255], "hi\ufffd"), (["a", "b"], "a b"), (None, ""), ("x" * 40000, "x" * 32768)],
)
def test_converted__message_in_another_form__is_text(exporter: ModuleType, message: Any, shown: str) -> None:
    assert exporter.converted({**ENTRY, "MESSAGE": message})["message"] == shown


def test_converted__shippers_own_line__is_left_out(exporter: ModuleType) -> None:
    assert exporter.converted({**ENTRY, "_SYSTEMD_UNIT": "filebeat.service"}) is None


def test_converted__regular_line_of_the_exporter__is_shipped(exporter: ModuleType) -> None:
    own = {**ENTRY, "_SYSTEMD_UNIT": "journal-export.service"}
    assert exporter.converted(own) is None
    assert exporter.converted({**own, "MESSAGE": exporter.BEAT_LINE})["message"] == exporter.BEAT_LINE


@pytest.mark.parametrize(
    ("message", "age", "jobs"),
    [
        ("NVRM: Xid (PCI:0000:01:00): 79", 0, [7]),
        ("usb 1-1: reset", 0, None),
        ("NVRM: Xid (PCI:0000:01:00): 79", 3600, None),
    ],
)
def test_converted__gpu_error__has_the_jobs_that_run(
    exporter: ModuleType, monkeypatch: pytest.MonkeyPatch, message: str, age: int, jobs: list[int] | None
) -> None:
    monkeypatch.setattr(exporter, "running_jobs", lambda: [7])
    entry = {**ENTRY, "_TRANSPORT": "kernel", "MESSAGE": message}
    entry["__REALTIME_TIMESTAMP"] = str(int((time.time() - age) * 1_000_000))
    assert exporter.converted(entry).get("jobs") == jobs
    assert "jobs" not in exporter.converted({**entry, "_TRANSPORT": "syslog"})


def test_running_jobs__of_steps__are_each_once(exporter: ModuleType, tmp_path: Path) -> None:
    lines = {1: b"/sbin/init", 20: b"slurmstepd: [1234.batch]", 21: b"slurmstepd: [1234.extern]"}
    lines |= {22: b"slurmstepd: [77.0]", 23: b"python3\0slurmstepd: [5.0]"}
    for number, line in lines.items():
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "cmdline").write_bytes(line)
    (tmp_path / "24").mkdir()
    assert exporter.running_jobs(tmp_path) == [77, 1234]


def test_metrics__of_the_store__have_each_node(store: ModuleType) -> None:
    text = store.metrics(SIZES, {"gpu01": 1795763000.4, "gpu02": 0}, 1)
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert lines == [
        "cluster_logs_bytes 26",
        "cluster_logs_days 4",
        "cluster_logs_refused 1",
        'cluster_logs_newest_seconds{node="gpu01"} 1795763000',
        'cluster_logs_newest_seconds{node="gpu02"} 0',
    ]


@pytest.mark.proves("log_stack", "An export of the journal that was killed resumes after its last whole line.")
def test_files__with_half_a_line__resume_after_the_last_whole_one(exporter: ModuleType, tmp_path: Path) -> None:
    files = exporter.Files(tmp_path, 1 << 30)
    for number in range(3):
        files.write({"cursor": f"c{number}", "message": "ü"})
    with (tmp_path / "journal-0000000001.json").open("ab") as file:
        file.write(b'{"cursor": "c3", "mess')
    again = exporter.Files(tmp_path, 1 << 30)
    assert again.cursor == "c2"
    again.write({"cursor": "c3"})
    lines = (tmp_path / "journal-0000000001.json").read_bytes().splitlines()
    assert [json.loads(line)["cursor"] for line in lines] == ["c0", "c1", "c2", "c3"]


def test_files__newest_is_empty__resume_from_the_one_before(exporter: ModuleType, tmp_path: Path) -> None:
    files = exporter.Files(tmp_path, 1 << 30)
    files.write({"cursor": "c0"})
    (tmp_path / "journal-0000000002.json").touch()
    again = exporter.Files(tmp_path, 1 << 30)
    assert (again.cursor, again.number) == ("c0", 2)


@pytest.mark.proves("log_stack", "The exported journal never exceeds its limit by more than a file.")
def test_files__above_the_limit__lose_the_oldest(
    exporter: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "SIZE", 1000)
    files = exporter.Files(tmp_path, 3500)
    for number in range(100):
        files.write({"cursor": f"{number:03}", "message": "x" * 100})
    sizes = [path.stat().st_size for path in files.names()]
    assert sum(sizes) < 3500 + 1000
    newest = b"".join(path.read_bytes() for path in files.names()).splitlines()
    assert json.loads(newest[-1])["cursor"] == "099"
    assert len(newest) > 20
