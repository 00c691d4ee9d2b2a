"""The helpers of tests that drive a lab: their limits, what they show of a failure, and what they wait for."""

import copy
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import lab
from tests.faults import injury

HEALTHY: dict[str, Any] = {
    "nodes": [
        {"name": "head1", "problem": "", "differences": [], "drift": [], "drift_more": 0, "drift_error": None,
         "services": {"slurmctld": "active"}},
    ],
    "slurm": {"nodes": {"gpu01": {"state": ["IDLE"]}}, "problem": "", "ledger_problem": ""},
    "alerts": {"error": None, "firing": [{"name": "Down"}], "more": 0},
    "leaving": {},
}  # fmt: skip


def test_tail__long_output__keeps_the_last_lines() -> None:
    text = "".join(f"line {n}\n" for n in range(250))
    rows = lab.tail(text).splitlines()
    assert (len(rows), rows[0], rows[1], rows[-1]) == (101, "[150 earlier lines]", "line 150", "line 249")
    assert lab.tail("a\nb\n") == "a\nb"


def test_call__beyond_its_limit__shows_command_and_output_so_far() -> None:
    script = "for n in $(seq 300); do echo out $n; done; echo err >&2; exec sleep 60"
    began = time.monotonic()
    with pytest.raises(AssertionError) as caught:
        lab.call(["sh", "-c", script], 1.0)
    assert time.monotonic() - began < lab.END_LIMIT
    said = str(caught.value)
    for word in ("no end after 1 s: sh -c ", "exec sleep 60", "[200 earlier lines]", "out 300", "\nerr"):
        assert word in said
    assert "out 200\n" not in said


def test_call__ignores_sigterm_and_leaves_a_child__is_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(lab, "END_LIMIT", 0.5)
    script = f"trap '' TERM; echo $$ > {tmp_path}/pid; sleep 20 & echo said; while :; do sleep 0.1; done"
    with pytest.raises(AssertionError, match="said"):
        lab.call(["sh", "-c", script], 0.5)
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_call__with_input__returns_both_outputs() -> None:
    code = "import sys; print(sys.stdin.read()); print('err', file=sys.stderr); sys.exit(3)"
    done = lab.call([sys.executable, "-c", code], 60.0, input="text")
    assert (done.returncode, done.stdout, done.stderr) == (3, "text\n", "err\n")
    assert lab.described(done).startswith("exit 3: ")


def test_only_alerts__firing_alone__is_waited_for() -> None:
    assert lab.only_alerts(HEALTHY)


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("nodes", 0, "problem"), "no answer"),
        (("nodes", 0, "differences"), ["GPUs: recorded 4, found 3"]),
        (("nodes", 0, "drift"), [{"name": "/etc/munge/munge.key"}]),
        (("nodes", 0, "drift_error"), "the record cannot be read"),
        (("nodes", 0, "services", "slurmctld"), "failed"),
        (("slurm", "problem"), "no answer"),
        (("slurm", "nodes", "gpu01", "state"), ["IDLE", "DRAIN"]),
        (("alerts", "error"), "no answer"),
        (("alerts", "firing"), []),
        (("leaving",), {"gpu02": "clusterctl remove-node gpu02"}),
    ],
)
def test_only_alerts__any_other_cause__is_not_waited_for(where: tuple[Any, ...], value: object) -> None:
    status = copy.deepcopy(HEALTHY)
    inner: Any = status
    for key in where[:-1]:
        inner = inner[key]
    inner[where[-1]] = value
    assert not lab.only_alerts(status)


def test_wait_until__condition_that_costs__is_checked_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    now, pauses = [0.0], []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds

    def costs(seconds: float) -> bool:
        now[0] += seconds
        return len(pauses) == 7

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", pause)
    injury.wait_until(lambda: costs(0.4))
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    pauses.clear()
    injury.wait_until(lambda: costs(0.001))
    assert pauses == [0.05] * 7
    with pytest.raises(AssertionError, match="the last answer"):
        injury.wait_until(lambda: False, lambda: "the last answer")
