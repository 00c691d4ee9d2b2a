"""Which hosts a run leaves behind, by events with times of their own."""

import pytest

from clusterctl.ansible.events import Event, HostStarted, PlayStarted, Result, TaskStarted
from clusterctl.ansible.patience import Patience

HOSTS = ("head1", "gpu01", "gpu02", "gpu03")
TASK = TaskStarted("Configure all nodes", "munge", "Configure munge", "")


def result(host: str, seconds: float) -> Result:
    return Result(host, "munge", "Configure munge", "", "ok", seconds=seconds)


def given(*events: Event, seconds: float | None = 60.0, started: tuple[str, ...] = HOSTS) -> Patience:
    """Return what a run knows after a task began at second 0 on these hosts, and after these events."""
    patience = Patience(seconds, {"head1"})
    for event in (PlayStarted("Configure all nodes"), TASK, *(HostStarted(host, 0.0) for host in started), *events):
        patience.add(event)
    return patience


THROUGH = (result("head1", 4.0), result("gpu01", 5.0), result("gpu02", 6.0))  # median 5 s: late after 10 s


def test_patience__late_for_longer_than_the_limit__is_exhausted() -> None:
    patience = given(*THROUGH)
    assert patience.exhausted(70.0) == []
    assert patience.exhausted(70.1) == ["gpu03"]


def test_patience__critical_host__is_never_exhausted() -> None:
    patience = given(result("gpu01", 5.0), result("gpu02", 5.0), result("gpu03", 5.0))
    assert patience.exhausted(10_000.0) == []


def test_patience__less_than_half_are_through__nobody_is_late() -> None:
    assert given(result("head1", 1.0)).exhausted(10_000.0) == []


def test_patience__half_are_through__the_others_are_late() -> None:
    assert given(result("head1", 1.0), result("gpu01", 1.0)).exhausted(62.1) == ["gpu02", "gpu03"]


def test_patience__only_host_of_a_task__is_not_late() -> None:
    assert given(started=("gpu01",)).exhausted(10_000.0) == []


def test_patience__without_a_limit__nobody_is_exhausted() -> None:
    assert given(*THROUGH, seconds=None).exhausted(10_000.0) == []


def test_patience__queued_for_a_fork__is_late_from_its_own_start() -> None:
    """With two forks, gpu02 and gpu03 start when the first two are through."""
    through = (result("head1", 100.0), result("gpu01", 100.0))
    patience = given(*through, started=("head1", "gpu01"))
    assert patience.exhausted(10_000.0) == []
    patience.add(HostStarted("gpu02", 1000.0))
    assert patience.exhausted(1260.0) == []
    assert patience.exhausted(1260.1) == ["gpu02"]


def test_patience__lateness_of_several_tasks__adds_up() -> None:
    patience = given(*THROUGH, result("gpu03", 40.0))  # 30 s late
    again: tuple[Event, ...] = (TASK, *(HostStarted(host, 100.0) for host in HOSTS), *THROUGH)
    for event in again:
        patience.add(event)
    assert patience.exhausted(140.0) == []
    assert patience.exhausted(140.1) == ["gpu03"]


@pytest.mark.parametrize("event", [TASK, PlayStarted("Verify")])
def test_patience__next_task__has_nobody_under_way(event: Event) -> None:
    patience = given(*THROUGH, event)
    assert patience.exhausted(10_000.0) == []


def test_patience__result_without_a_start__is_passed_over() -> None:
    """A reboot has no start: it has a limit of its own."""
    patience = given(result("gpu03", 900.0), started=("gpu01", "gpu02"))
    assert patience.exhausted(10_000.0) == []


@pytest.mark.proves("faults", "A node whose call in the background is slow is left behind, too.")
def test_patience__calls_that_ended_before__are_through() -> None:
    """gpu03 alone is still under way when the play begins to wait, at second 0; the calls of the others took 10 s."""
    ended = [Result(host, "base", "Apply", "", "ok", seconds=1.0, ended=10.0) for host in ("gpu01", "gpu02")]
    lost = [Result(host, "base", "Apply", "", "failed", ended=0.0) for host in ("gpu04", "gpu05", "gpu06")]
    patience = given(*ended, *lost, started=("gpu03",))
    assert patience.exhausted(80.0) == []
    assert patience.exhausted(80.1) == ["gpu03"]
