"""Programs of the log stack: what is deleted, what is exported, and whether an export resumes where it ended."""

import errno
import importlib.machinery
import importlib.util
import json
import os
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
@pytest.mark.proves("log_stack", "Days that lines are written to stay, however large they are.")
@pytest.mark.parametrize(
    ("days", "limit", "deleted"),
    [
        (30, 26, ""),
        (30, 25, "24"),
        (30, 20, "24 25"),
        (2, 26, "24"),
        (2, 20, "24 25"),
        (30, 7, "24 25"),
        (1, 0, "24 25"),
        (0, 26, "24 25"),
    ],
)
def test_expired__by_age_and_size__are_the_oldest(store: ModuleType, days: int, limit: int, deleted: str) -> None:
    now = datetime(2026, 11, 27, 12, tzinfo=UTC)
    assert store.expired(SIZES, days, limit, now) == [f"clusterlog-2026.11.{day}" for day in deleted.split()]


@pytest.mark.proves("log_stack", "An index of a day in the future is deleted.")
def test_expired__of_a_day_in_the_future__is_deleted(store: ModuleType) -> None:
    sizes = {
        "clusterlog-2026.11.28": 1,
        "clusterlog-2026.11.29": 1,
        "clusterlog-2026.11.30": 1,
        "clusterlog-2099.01.01": 9,
    }
    now = datetime(2026, 11, 27, 12, tzinfo=UTC)
    assert store.expired(sizes, 30, 5, now) == ["clusterlog-2026.11.30", "clusterlog-2099.01.01"]


@pytest.mark.proves("log_stack", "The logs never take more than half of their file system.")
@pytest.mark.parametrize(("disk", "limit"), [(10**12, 20 * 10**9), (30 * 10**9, 15 * 10**9)])
def test_limit__of_a_disk__is_half_of_it_at_most(store: ModuleType, disk: int, limit: int) -> None:
    engine = store.Engine({"secure": False, "gigabytes": 20})
    engine.ask = lambda *_: {"nodes": {"a": {"fs": {"total": {"total_in_bytes": disk}}}}}
    assert engine.limit() == limit


@pytest.mark.proves("log_stack", "The next two days' indices exist before a full disk can prevent it.")
@pytest.mark.parametrize(
    ("blocks", "exists", "created"), [({}, False, True), ({}, True, False), ({"10": {}}, False, False)]
)
def test_retain__next_days__are_created_once(
    store: ModuleType, tmp_path: Path, blocks: dict[str, Any], exists: bool, created: bool
) -> None:
    puts: list[str] = []
    wanted = [f"/{store.index_of(datetime.now(UTC) + timedelta(days=day))}" for day in (-1, 0, 1, 2)]

    def ask(method: str, path: str, _body: object = None) -> Any:
        if method == "PUT":
            puts.append(path)
        if path.startswith("/_cluster"):
            return {"blocks": {"global": blocks}}
        if path.startswith("/_nodes"):
            return {"nodes": {"a": {"fs": {"total": {"total_in_bytes": 10**12}}}}}
        return {} if exists and path in wanted else None

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
    assert puts == (wanted if created else [])
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


FIELDS = {
    "MESSAGE": b"hello",
    "PRIORITY": b"3",
    "SYSLOG_IDENTIFIER": b"sshd",
    "_PID": b"17",
    "_UID": b"5001",
    "_TRANSPORT": b"syslog",
    "_EXE": b"/usr/bin/logger",
}


def entry(**fields: bytes) -> dict[str, Any]:
    """Return an entry as the journal's library has it, with these fields in place of the usual ones."""
    return {"cursor": "s=1;i=2", "time": 1795763000094123, "fields": {**FIELDS, **fields}}


def test_converted__line_of_the_journal__has_cursor_and_time(exporter: ModuleType) -> None:
    assert exporter.converted(entry()) == {
        "cursor": "s=1;i=2",
        "time": 1795763000094,
        "message": "hello",
        "identifier": "sshd",
        "priority": 3,
        "pid": 17,
        "uid": 5001,
        "transport": "syslog",
        "executable": "/usr/bin/logger",
    }


@pytest.mark.parametrize(
    ("message", "shown", "cut"),
    [
        (b"hi\xff", "hi\ufffd", None),
        (b"a\nb\0c", "a\nb\0c", None),
        (b"", "", None),
        (b"x" * 32768, "x" * 32768, None),
        (b"x" * 32769, "x" * 32768, True),
        (b"x" + "\u00fc".encode() * 20000, "x" + "\u00fc" * 16383, True),
    ],
    ids=["binary", "newline", "empty", "longest", "cut", "cut-in-a-character"],
)
def test_converted__message_in_another_form__is_text(
    exporter: ModuleType, message: bytes, shown: str, cut: bool | None
) -> None:
    line = exporter.converted(entry(MESSAGE=message))
    assert (line["message"], line.get("cut")) == (shown, cut)


@pytest.mark.proves("log_stack", "A number or name that a user sends to the journal stops no export.")
@pytest.mark.parametrize("priority", [b"", b"8", b"-1", "\u00b2".encode(), b"1" * 5000, b"\xff"])
def test_converted__priority_that_is_none__is_left_out(exporter: ModuleType, priority: bytes) -> None:
    line = exporter.converted(entry(PRIORITY=priority, SYSLOG_IDENTIFIER=b"\xff" * 5000))
    assert "priority" not in line
    assert len(line["identifier"]) == 256


def test_converted__shippers_own_line__is_left_out(exporter: ModuleType) -> None:
    assert exporter.converted(entry(_SYSTEMD_UNIT=b"filebeat.service")) is None


def test_converted__regular_line_of_the_exporter__is_shipped(exporter: ModuleType) -> None:
    assert exporter.converted(entry(_SYSTEMD_UNIT=b"journal-export.service")) is None
    line = exporter.converted(entry(_SYSTEMD_UNIT=b"journal-export.service", MESSAGE=exporter.BEAT_LINE.encode()))
    assert line["message"] == exporter.BEAT_LINE


@pytest.mark.parametrize(
    ("message", "age", "jobs"),
    [
        (b"NVRM: Xid (PCI:0000:01:00): 79", 0, [7]),
        (b"usb 1-1: reset", 0, None),
        (b"NVRM: Xid (PCI:0000:01:00): 79", 3600, None),
    ],
)
def test_converted__gpu_error__has_the_jobs_that_run(
    exporter: ModuleType, monkeypatch: pytest.MonkeyPatch, message: bytes, age: int, jobs: list[int] | None
) -> None:
    monkeypatch.setattr(exporter, "running_jobs", lambda: [7])
    when = {"time": int((time.time() - age) * 1_000_000)}
    kernel = entry(_TRANSPORT=b"kernel", MESSAGE=message)
    assert exporter.converted({**kernel, **when}).get("jobs") == jobs
    assert "jobs" not in exporter.converted({**entry(MESSAGE=message), **when})


@pytest.mark.proves("log_stack", "A user's process that has the name of a job's step adds no job.")
def test_running_jobs__of_steps_that_root_started__are_each_once(exporter: ModuleType, tmp_path: Path) -> None:
    lines = {1: b"/sbin/init", 20: b"slurmstepd: [1234.batch]", 21: b"slurmstepd: [1234.extern]"}
    lines |= {22: b"slurmstepd: [77.0]", 23: b"python3\0slurmstepd: [5.0]"}
    # A user's process, a set-uid program that a user started, and one that ended meanwhile.
    lines |= {30: b"slurmstepd: [4242.batch]", 31: b"slurmstepd: [4243.batch]", 32: b"slurmstepd: [4244.batch]"}
    uids = {30: "5001 5001 5001 5001", 31: "5001 0 0 0"}
    for number, line in lines.items():
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "cmdline").write_bytes(line)
        if number != 32:
            shown = "\t".join(uids.get(number, "0 5001 0 0").split())
            (tmp_path / str(number) / "status").write_text(f"Name:\tslurmstepd\nUid:\t{shown}\nGid:\t0\t0\t0\t0\n")
    (tmp_path / "24").mkdir()
    assert exporter.running_jobs(tmp_path) == [77, 1234]


def test_metrics__of_the_store__have_each_node(store: ModuleType) -> None:
    text = store.metrics(SIZES, 20, {"gpu01": 1795763000.4, "gpu02": 0}, 1)
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert lines == [
        "cluster_logs_bytes 26",
        "cluster_logs_limit_bytes 20",
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


class FullDisk:
    """A file on a disk that takes a part of a line, then is full once."""

    def __init__(self, file: Any) -> None:
        self.file, self.writes = file, 0

    def write(self, data: bytes) -> int:
        self.writes += 1
        if self.writes == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return int(self.file.write(data[:7] if self.writes == 1 else data))

    def tell(self) -> int:
        return int(self.file.tell())


@pytest.mark.proves("log_stack", "A full disk merges no two lines of the exported journal.")
def test_files__on_a_disk_that_was_full__have_whole_lines(
    exporter: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "WAIT", 0)
    files = exporter.Files(tmp_path, 1 << 30)
    files.write({"cursor": "c0"})
    files.file = FullDisk(files.file)
    files.write({"cursor": "c1"})
    files.write({"cursor": "c2"})
    lines = (tmp_path / "journal-0000000001.json").read_bytes().splitlines()
    assert [json.loads(line)["cursor"] for line in lines] == ["c0", "c1", "c2"]


@pytest.mark.proves("log_stack", "A deleted file of the exported journal takes no space, even while it is read.")
def test_files__that_are_deleted_while_read__are_empty(
    exporter: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "SIZE", 1000)
    files = exporter.Files(tmp_path, 2000)
    files.write({"cursor": "first"})
    with (tmp_path / "journal-0000000001.json").open() as reader:
        for number in range(100):
            files.write({"cursor": f"{number:03}", "message": "x" * 100})
        assert not (tmp_path / "journal-0000000001.json").exists()
        assert os.fstat(reader.fileno()).st_size == 0
