"""The counters of accounts, on text in the form of squeue's, over several counts."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.head_programs import load

COUNTERS = load("slurm_counters")
FILE = load("metrics_file")
EXPORTER = load("slurm-metrics")
START = 1_764_206_000


def job(number: int, state: str, start: int, end: int | str, gpus: int = 2, account: str = "ml") -> str:
    """Return a line of squeue, whose fields have fixed widths. The expected end of a running job is in the future."""
    tres = f"cpu=2,mem=1M,node=1,billing=2,gres/gpu={gpus},gres/gpu:a100={gpus}" if gpus else "cpu=2,mem=1M,node=1"
    values = (number, state, account, "main", start, end, tres)
    widths = COUNTERS.FIELDS.values()
    return "".join(str(value).ljust(width) for value, width in zip(values, widths, strict=True)) + "\n"


def counted(*texts: tuple[int, str], last: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the counts after several runs, each of which reads what the one before stored."""
    for seconds, text in texts:
        last = json.loads(COUNTERS.save(COUNTERS.advance(last, text, START + seconds)))
    assert last
    return last


@pytest.mark.proves("monitoring", "GPU time and ended jobs by account are exact between two counts.")
def test_counters__of_a_job__are_exact_to_its_end() -> None:
    running = job(7, "RUNNING", START + 4, START + 3600)
    first = counted((0, ""), (15, running), (30, running))
    assert first["gpu_seconds"] == {"ml\tmain": 2 * 26}
    assert first["jobs"] == {}
    # It ended 5 s after the last count, and squeue shows it for some minutes.
    ended = job(7, "COMPLETED", START + 4, START + 35)
    last = counted((45, ended), (60, ended), (75, ""), last=first)
    assert last["gpu_seconds"] == {"ml\tmain": 2 * 31}
    assert last["jobs"] == {"ml\tmain\tcompleted": 1}


def test_counters__of_a_job_between_two_counts__have_all_of_it() -> None:
    last = counted((0, ""), (15, job(7, "FAILED", START + 3, START + 9, gpus=4)))
    assert (last["gpu_seconds"], last["jobs"]) == ({"ml\tmain": 24}, {"ml\tmain\tfailed": 1})


def test_counters__of_a_job_that_is_completing__count_it_once_with_its_state() -> None:
    completing = job(7, "COMPLETING", START - 10, START + 5)
    last = counted((0, ""), (15, completing), (30, completing), (45, job(7, "TIMEOUT", START - 10, START + 5)))
    assert (last["gpu_seconds"], last["jobs"]) == ({"ml\tmain": 10}, {"ml\tmain\ttimeout": 1})


def test_counters__of_the_first_count__have_nothing_of_before() -> None:
    text = job(7, "RUNNING", START - 1000, START + 1000) + job(6, "COMPLETED", START - 1000, START - 10)
    assert counted((0, text), (0, text))["gpu_seconds"] == {"ml\tmain": 0}
    assert counted((0, text), (15, text)) | {"seen": [], "time": 0} == {
        "time": 0, "seen": [], "gpu_seconds": {"ml\tmain": 30}, "jobs": {},
    }  # fmt: skip


def test_counters__of_jobs_without_gpus_or_without_a_start__count_the_job_alone() -> None:
    waiting = job(8, "RUNNING", 0, "N/A", 1)[:150]  # without a start
    last = counted((0, ""), (15, job(7, "CANCELLED", START + 1, START + 9, gpus=0) + "\n" + waiting))
    assert last["jobs"] == {"ml\tmain\tcancelled": 1}
    assert last["gpu_seconds"]["ml\tmain"] == 0


@pytest.mark.proves("monitoring", "Accounts beyond a limit share one series.")
def test_counters__of_very_many_accounts__are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(COUNTERS, "PAIRS", 3)
    text = "".join(job(n, "COMPLETED", START + 1, START + 3, 1, f"a{n}") for n in range(10))
    last = counted((0, ""), (15, text))
    assert last["gpu_seconds"] == {"a0\tmain": 2, "a1\tmain": 2, "a2\tmain": 2, "other\tother": 14}
    assert last["jobs"]["other\tother\tcompleted"] == 7
    assert counted((30, text), last=last)["jobs"] == last["jobs"]


def test_counters__with_a_clock_that_went_back__never_decrease() -> None:
    running = job(7, "RUNNING", START - 100, START + 3600)
    last = counted((0, running), (60, running), (30, running), (45, running))
    assert last["gpu_seconds"] == {"ml\tmain": 2 * (60 + 15)}


@pytest.mark.parametrize("content", ["", "{", "[]", '{"time": 1}'])
def test_counters__in_a_file_that_is_not_theirs__begin_anew(tmp_path: Path, content: str) -> None:
    (tmp_path / "x.json").write_text(content)
    assert COUNTERS.load(tmp_path / "x.json") is None
    assert COUNTERS.load(tmp_path / "missing") is None


def test_main__counts_twice__continues_in_the_file_and_writes_counters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the program runs it: the counts are beside the metrics, and of the type that Prometheus expects."""
    times = iter((START, START + 15))
    monkeypatch.setattr(EXPORTER.time, "time", lambda: next(times))
    asked = job(7, "RUNNING", START - 5, START + 3600) + job(6, "COMPLETED", START + 1, START + 2, 0)
    monkeypatch.setattr(EXPORTER, "ask", lambda argv: asked if argv == COUNTERS.ASK else "")
    monkeypatch.setattr("sys.argv", ["slurm-metrics", str(tmp_path / "slurm.prom")])
    for _ in range(2):
        EXPORTER.main()
    text = (tmp_path / "slurm.prom").read_text()
    assert "# TYPE slurm_account_gpu_seconds_total counter\n" in text
    assert 'slurm_account_gpu_seconds_total{account="ml",partition="main"} 30\n' in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["slurm-counters.json", "slurm.prom"]
