"""The helpers of tests that drive a lab: their limits, what they show of a failure, and what they wait for."""

import copy
import time
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
    "kubernetes": {"nodes": {"gpu03": {"ready": True, "cordoned": False, "problems": []}}, "problem": ""},
    "alerts": {"error": None, "firing": [{"name": "Down"}], "more": 0},
    "leaving": {},
}  # fmt: skip


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
        (("kubernetes", "problem"), "no answer"),
        (("kubernetes", "nodes", "gpu03", "ready"), False),
        (("kubernetes", "nodes", "gpu03", "cordoned"), True),
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
