"""Work on nodes in batches: how large they are, in what order, and after which failures no other begins."""

import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterctl.ansible import runner
from clusterctl.ansible.events import Change, Ended, HostStats, PlaybookStarted, PlayStarted, Result, Stats, TaskStarted
from clusterctl.ansible.outcome import Ledger
from clusterctl.ansible.run_directory import RunDirectory
from clusterctl.commands import upgrade
from clusterctl.inventory import model as inventory
from clusterctl.nodes.remote import Access
from clusterctl.run import plays, rolling, scheduler
from clusterctl.run.context import Options, Site
from clusterctl.run.phases import Run as Phases
from clusterctl.run.planning import Plan
from clusterctl.run.rolling import Pace, Rolling
from clusterctl.ui.screen import Screen
from clusterctl.util.errors import ClusterctlError, HeadFailed, InputError, Interrupted, PreflightError, WorkersFailed
from clusterctl.workspace import hardware

INVENTORY = """\
all:
  vars: {cluster_name: aurora}
  children:
    slurm_head: {hosts: {head1: {ansible_host: 10.0.0.10}}}
    slurm_workers:
      hosts: {gpu01: {}, gpu02: {}, gpu03: {}, gpu04: {}, gpu05: {}}
    monitoring: {hosts: {mon1: {}}}
"""
WORKERS = [f"gpu0{n}" for n in range(1, 6)]


class Slurm:
    """The head, as far as a batch asks it: what it was told, and who still has jobs."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self.limits: list[float | None] = []
        self.busy: set[str] = set()
        self.out: set[str] = set()

    def __enter__(self) -> "Slurm":
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def drain(self, cause: str, nodes: list[str], reason: str) -> None:
        self.told.append((reason, ",".join(nodes)))
        self.out.update(nodes)

    def drained_for(self, cause: str) -> list[str]:
        return [name for name in WORKERS if name in self.out]

    def workloads(self, nodes: list[str]) -> list[str]:
        return [f"a job on {name}" for name in nodes if name in self.busy]

    def wait_until_empty(self, nodes: list[str], say: Any, seconds: float | None) -> list[str]:
        self.limits.append(seconds)
        return self.workloads(nodes)


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    found = Slurm()
    monkeypatch.setattr(scheduler, "connect", lambda site, kind: found)
    monkeypatch.setattr(rolling, "play", lambda run, site, more: run.play(site))
    return found


class Run(Phases):
    """A run whose plays fail on chosen hosts; keeps what was played and for whom."""

    def __init__(
        self, directory: Path, *bad: str, error: ClusterctlError | None = None, inventory_text: str = INVENTORY
    ) -> None:
        (directory / "inventory.yaml").write_text(inventory_text)
        known = inventory.load(directory / "inventory.yaml")
        access = Access(directory / "known_hosts")
        super().__init__(Site(Options("upgrade", directory), known, known.hosts, access), Screen(io.StringIO()))
        self.bad, self.error, self.played = bad, error, list[tuple[str, str]]()

    def play(self, site: Site) -> ClusterctlError | None:
        names = [host.name for host in site.hosts]
        self.played.append((site.playbook, ",".join(names)))
        for name in names:
            status: Any = "failed" if name in self.bad and site.playbook == "upgrade" else "ok"
            self.ledger.add(Result(name, "r", "t", "", status))
        return self.error or (WorkersFailed("some") if self.ledger.lost() else None)

    def over(
        self, due: list[str], pace: Pace, cause: str = "upgrade", **more: Any
    ) -> tuple[ClusterctlError | None, Rolling]:
        work = Rolling("In batches", cause, cause, pace, due, **more)
        return work.over(self), work


@pytest.mark.proves("upgrade", "`--batch` takes a number or a percentage of the workers.")
@pytest.mark.parametrize(
    ("batch", "workers", "size"), [("10%", 5, 1), ("10%", 500, 50), ("100%", 3, 3), ("3", 100, 3), ("25%", 10, 2)]
)
def test_a_batch_is_a_number_or_a_part_of_the_workers(batch: str, workers: int, size: int) -> None:
    assert Pace(batch).size(workers) == size


@pytest.mark.parametrize("batch", ["0", "0%", "101%", "-1", "ten", "", "1.5", "3%%", "٣", "123456"])
def test_a_batch_that_cannot_be_meant_is_refused(batch: str) -> None:
    with pytest.raises(InputError, match="--batch"):
        Pace(batch).check()


def test_a_pace_is_typed_as_it_was_given() -> None:
    assert Pace().flags() == ()
    assert Pace("2", 3, 0.5).flags() == ("--batch", "2", "--max-failures", "3", "--timeout", "0.5")


@pytest.mark.proves("upgrade", "The head is first; then each batch is drained, upgraded and verified.")
@pytest.mark.proves("upgrade", "Workers that are not due are neither drained nor upgraded.")
def test_the_head_comes_first_and_each_batch_is_drained_and_proven(tmp_path: Path, slurm: Slurm) -> None:
    run = Run(tmp_path)
    error, work = run.over(["gpu01", "gpu03", "gpu05", "head1", "mon1"], Pace("2"))
    assert error is None
    assert run.played == [
        ("upgrade", "head1,mon1"),
        ("upgrade", "gpu01,gpu03"),
        ("verify", "head1,gpu01,gpu03"),
        ("upgrade", "gpu05"),
        ("verify", "head1,gpu05"),
    ]
    assert work.steps == [["head1", "mon1"], ["gpu01", "gpu03"], ["gpu05"]]
    assert slurm.told == [("upgrade under way", "gpu01,gpu03"), ("upgrade under way", "gpu05")]


@pytest.mark.proves("reboot", "A worker is drained before it is rebooted or upgraded.")
@pytest.mark.parametrize("reboots", [False, True])
def test_batch__in_its_turn__is_drained_before_the_playbook(
    tmp_path: Path, slurm: Slurm, monkeypatch: pytest.MonkeyPatch, reboots: bool
) -> None:
    monkeypatch.setattr(rolling, "each", lambda hosts, ask: {})
    drained: list[tuple[str, list[str]]] = []

    def play(run: Run, site: Site, more: bool) -> ClusterctlError | None:
        drained.append((site.playbook, sorted(slurm.out)))
        return run.play(site)

    monkeypatch.setattr(rolling, "play", play)
    error, _ = Run(tmp_path).over(["gpu01", "head1"], Pace(), "reboot", reboots=reboots)
    assert error is None
    assert [names for playbook, names in drained if playbook == "reboot"] == [[], ["gpu01"]]
    assert slurm.told == [("reboot under way", "gpu01")]


@pytest.mark.parametrize(("minutes", "seconds"), [(None, None), (0.5, 30)])
def test_batch__with_jobs__is_waited_for_as_long_as_asked(
    tmp_path: Path, slurm: Slurm, minutes: float | None, seconds: float | None
) -> None:
    Run(tmp_path).over(["gpu01"], Pace(minutes=minutes))
    assert slurm.limits == [seconds]


def test_the_head_learns_of_divided_gpus_when_their_turn_comes(tmp_path: Path, slurm: Slurm) -> None:
    run = Run(tmp_path)
    work = Rolling("Upgrade", "upgrade", "upgrade", Pace("1"), ["gpu01", "gpu03"])
    work.divided = ["gpu03"]
    assert work.over(run) is None
    assert [names for playbook, names in run.played if playbook == "upgrade"] == ["gpu01", "head1,gpu03"]


@pytest.mark.proves("upgrade", "A failed worker stays drained, and the next batch does not start.")
def test_a_failure_stops_it_before_the_next_batch(tmp_path: Path, slurm: Slurm) -> None:
    run = Run(tmp_path, "gpu02")
    error, _ = run.over(WORKERS, Pace("2"))
    assert isinstance(error, WorkersFailed)
    assert str(error) == "gpu02 failed, and gpu02 stays drained; not started: gpu[03-05]."
    assert run.played == [("upgrade", "gpu01,gpu02"), ("verify", "head1,gpu01")]
    assert slurm.told[-1] == ("the last upgrade failed there", "gpu02")


@pytest.mark.proves("upgrade", "`--max-failures` lets further batches start.")
def test_so_many_may_fail_as_are_allowed(tmp_path: Path, slurm: Slurm) -> None:
    error, work = Run(tmp_path, "gpu01", "gpu03").over(WORKERS, Pace("1", failures=2))
    assert str(error) == "gpu01, gpu03 failed, and gpu01, gpu03 stays drained; not started: gpu04, gpu05."
    assert work.steps == [["gpu01"], ["gpu02"], ["gpu03"]]


def test_a_node_whose_jobs_go_on_is_left_alone(tmp_path: Path, slurm: Slurm) -> None:
    slurm.busy = {"gpu01"}
    run = Run(tmp_path)
    error, work = run.over(["gpu01", "gpu02"], Pace("2", minutes=0))
    assert isinstance(error, WorkersFailed)
    assert work.failed == ["gpu01"]
    assert run.played == [("upgrade", "gpu02"), ("verify", "head1,gpu02")]


@pytest.mark.proves("upgrade", "A failed head ends the rolling run before any worker.")
def test_a_head_that_fails_ends_it(tmp_path: Path, slurm: Slurm) -> None:
    run = Run(tmp_path, error=HeadFailed("head1 failed"))
    error, _ = run.over([*WORKERS, "head1"], Pace())
    assert isinstance(error, HeadFailed)
    assert run.played == [("upgrade", "head1")]
    assert slurm.told == []


def test_a_head_that_works_too_and_whose_jobs_go_on_ends_it(tmp_path: Path, slurm: Slurm) -> None:
    text = INVENTORY.replace("hosts: {gpu01: {}", "hosts: {head1: {}, gpu01: {}")
    run, slurm.busy = Run(tmp_path, inventory_text=text), {"head1"}
    error, _ = run.over([*WORKERS, "head1"], Pace(failures=3, minutes=0))
    assert isinstance(error, HeadFailed)
    assert run.played == [], "a proof would put it back into service, and workers would be ahead of it"


def test_a_jump_host_has_a_turn_of_its_own(tmp_path: Path, slurm: Slurm) -> None:
    run = Run(tmp_path, inventory_text=INVENTORY.replace("mon1: {}", "mon1: {cluster_jump_host: head1}"))
    error, work = run.over(["head1", "mon1", "gpu01"], Pace())
    assert error is None
    assert work.steps == [["head1"], ["mon1"], ["gpu01"]]


def test_a_stop_ends_it_after_the_play_under_way(tmp_path: Path, slurm: Slurm) -> None:
    run = Run(tmp_path, error=Interrupted("stopped."))
    error, _ = run.over(WORKERS, Pace("2"))
    assert isinstance(error, Interrupted)
    assert str(error).startswith("stopped. gpu01, gpu02 stay drained; the same command continues there")
    assert run.played == [("upgrade", "gpu01,gpu02")]


@pytest.mark.proves("upgrade", "After Ctrl-C the run prints which workers stay drained.")
@pytest.mark.parametrize("at", ["wait_until_empty", "drain"])
def test_whoever_stops_it_is_told_who_stays_out(
    tmp_path: Path, slurm: Slurm, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """What an earlier batch has left out too; nobody, where nobody was taken out yet."""

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(slurm, at, interrupted)
    error, _ = Run(tmp_path).over(["gpu01"], Pace())
    assert isinstance(error, Interrupted)
    assert ("sudo /usr/local/sbin/slurm-drain upgrade --in gpu01)" in str(error)) == (at != "drain")


@pytest.mark.proves("reboot", "Missing hardware after a reboot fails workers, and is a note elsewhere.")
def test_hardware_that_is_missing_is_a_failure_of_workers_alone(
    tmp_path: Path, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "load", lambda path: path)
    monkeypatch.setattr(hardware, "compare", lambda record, found: ["GPUs: recorded 2, found 1"])
    answer = SimpleNamespace(facts=SimpleNamespace(hardware=None), errors=[])
    monkeypatch.setattr(rolling, "each", lambda hosts, ask: {host.name: answer for host in hosts})
    run = Run(tmp_path)
    error, _ = run.over(["head1", "mon1", "gpu01", "gpu02"], Pace(), "reboot", reboots=True)
    assert str(error) == "gpu01 failed, and gpu01 stays drained; not started: gpu02."
    assert run.ledger.notes == {"differs from its record: GPUs: recorded 2, found 1": ["head1", "mon1"]}


def test_a_playbook_that_never_begins_is_not_judged_by_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path)
    for event in (Result("head1", "r", "t", "", "ok"), Ended()):
        run.ledger.add(event)
    died: Any = SimpleNamespace(watch=lambda: iter(()), stopped=False, trouble=None)
    monkeypatch.setattr(runner, "Runner", lambda *_, **__: died)
    run.kept = RunDirectory(tmp_path)
    error, _ = plays.watch(run, run.site)
    assert type(error) is ClusterctlError
    assert str(error) == "Ansible ended without finishing the playbook."


def test_who_was_left_out_is_told(tmp_path: Path, slurm: Slurm) -> None:
    run = Run(tmp_path)
    run.site = replace(run.site, skipped=("gpu02",))
    error, _ = run.over(["gpu01", "gpu02"], Pace())
    assert str(error) == "gpu02 skipped."
    assert run.played == [("upgrade", "gpu01"), ("verify", "head1,gpu01")]


def moved(host: str, name: str, new: str, old: str) -> Plan:
    return Plan({("r", Change("package", name, "", "upgraded", old, new)): [host]})


@pytest.mark.proves("upgrade", "Slurm moves no further than it can read its own state.")
@pytest.mark.parametrize(
    ("new", "old", "told"),
    [
        ("25.05.1-1", "24.11.5-4", ""),
        ("24.11.5-5", "24.11.5-4", ""),
        ("25.11.1-1", "23.11.1-1", "Slurm 23.11 is not compatible with 25.11 on the head"),
        ("1:24.05.1-1", "24.11.5-4", "Slurm 24.11 is not compatible with 24.05 on the head"),
        ("99.05.1-1", "24.11.5-4", "Slurm 99.05 is not known"),
    ],
)
def test_slurm_moves_no_further_than_it_reads_its_own_state(tmp_path: Path, new: str, old: str, told: str) -> None:
    site, plan = Run(tmp_path).site, moved("head1", "slurmctld", new, old)
    if told:
        with pytest.raises(PreflightError, match=told):
            upgrade._require_window(site, plan, Ledger())
    else:
        upgrade._require_window(site, plan, Ledger())


@pytest.mark.proves("upgrade", "With `--only`, versions that stay are checked against those that move.")
@pytest.mark.parametrize(
    ("host", "name", "to", "stays", "told"),
    [
        (
            "gpu01",
            "slurmd",
            "25.05.1-1",
            {"slurmctld": {"head1": "24.11.5-4"}},
            "Slurm 25.05 is not compatible with 24.11 on the head",
        ),
        ("gpu01", "slurmd", "24.11.6-1", {"slurmctld": {"head1": "24.11.5-4"}}, ""),
        (
            "head1",
            "slurmctld",
            "25.11.1-1",
            {"slurmd": {"gpu01": "23.11.1-1"}},
            "Slurm 23.11 is not compatible with 25.11 on the head",
        ),
        ("head1", "slurmctld", "25.11.1-1", {"slurmd": {"gpu01": "24.11.5-4"}}, ""),
        (
            "gpu01",
            "slurm-smd-slurmd",
            "25.05.1-1",
            {"slurm-smd-slurmctld": {"head1": "24.11.5-1"}},
            "Slurm 25.05 is not compatible with 24.11 on the head",
        ),
        ("gpu01", "munge", "0.5.17", {"slurmctld": {"head1": "99.05.1"}}, ""),
    ],
)
def test_what_stays_counts_beside_what_moves(
    tmp_path: Path, host: str, name: str, to: str, stays: dict[str, dict[str, str]], told: str
) -> None:
    """As with --only, which moves the one and not the other."""
    ledger = Ledger()
    ledger.installed["r"] = stays
    site, plan = Run(tmp_path).site, moved(host, name, to, "24.11.5-4")
    if told:
        with pytest.raises(PreflightError, match=told):
            upgrade._require_window(site, plan, ledger)
    else:
        upgrade._require_window(site, plan, ledger)


def test_only_takes_roles_that_there_are() -> None:
    assert upgrade.What().variables() == {}
    assert upgrade.What(("munge", "slurm_head")).variables() == {"upgrade_roles": ["munge", "slurm_head"]}
    assert upgrade.What(system=True, stay=True).variables() == {"os_upgrade_reboot": False}
    with pytest.raises(InputError, match=r'no role "slurm_worke".*slurm_worker'):
        upgrade.What(("slurm_worke",)).variables()
    with pytest.raises(InputError, match="--os"):
        upgrade.What(("munge",), system=True).variables()
    with pytest.raises(InputError, match="--no-reboot"):
        upgrade.What(stay=True).variables()


def test_the_changes_of_several_playbooks_add_up_and_a_rehearsal_counts_for_nothing() -> None:
    ledger = Ledger()
    ledger.add(PlaybookStarted(("p",), check=True))
    ledger.add(Result("gpu01", "r", "t", "", "changed", changes=(Change("package", "a", "installed"),)))
    ledger.add(PlaybookStarted(("p",), check=True))  # a plan may have several, too
    assert len(ledger.hosts["gpu01"].changes) == 1
    ledger.add(PlaybookStarted(("p",)))
    assert (ledger.hosts, ledger.failures) == ({}, [])
    for count in (2, 1):
        ledger.add(PlaybookStarted(("p",)))
        ledger.add(PlayStarted("p", "all", ("gpu01",)))
        ledger.add(TaskStarted("p", "r", "t", ""))
        for _ in range(count):
            ledger.add(Result("gpu01", "r", "t", "", "changed"))
        ledger.add(Stats({"gpu01": HostStats(changed=count)}))
    assert ledger.hosts["gpu01"].changed == 3


@pytest.mark.proves("upgrade", "With --skip-unreachable workers that were never set up are left out, exit 4.")
@pytest.mark.parametrize("skip", [False, True])
def test_upgrade__worker_was_never_set_up__is_refused_or_left_out(tmp_path: Path, skip: bool) -> None:
    (tmp_path / "inventory.yaml").write_text(INVENTORY)
    cluster = inventory.load(tmp_path / "inventory.yaml")
    parts = {"head1": ("controller",), "mon1": (), "gpu03": ()}
    facts = {
        host.name: SimpleNamespace(node=SimpleNamespace(slurm=parts.get(host.name, ("worker",))))
        for host in cluster.hosts
    }
    asked = Options("upgrade", tmp_path, skip_unreachable=skip)
    site = Site(asked, cluster, cluster.hosts, Access(tmp_path / "known_hosts"), facts=facts)  # type: ignore[arg-type]
    screen = io.StringIO()
    run = Phases(site, Screen(screen))
    if skip:
        upgrade.RequireSetUp().run(run)
        assert run.site.skipped == ("gpu03",)
        assert "gpu03  skipped: was never configured (clusterctl add-node gpu03)" in screen.getvalue()
    else:
        with pytest.raises(PreflightError, match="gpu03: upgrade: was never configured") as refused:
            upgrade.RequireSetUp().run(run)
        assert "--skip-unreachable" in refused.value.hint
    facts["head1"].node.slurm = ()
    with pytest.raises(PreflightError, match="head1: upgrade: was never configured") as refused:
        upgrade.RequireSetUp().run(Phases(site, Screen(screen)))
    assert refused.value.hint == ""
