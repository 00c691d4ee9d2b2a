"""Which hosts a run plays, in what order, and what it says to run next. Nodes, Ansible and locks are replaced."""

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from clusterctl.ansible.events import Change, Ended, HostStats, PlaybookStarted, Result, Stats
from clusterctl.commands import bootstrap
from clusterctl.nodes import contact
from clusterctl.run import context, engine, plays, removals
from clusterctl.run.context import Options, Site
from clusterctl.run.entry import Preflight
from clusterctl.run.phases import Phase, Run
from clusterctl.run.plays import Play
from clusterctl.ui.screen import Screen
from clusterctl.util.errors import ClusterctlError, HeadFailed, Locked, WorkersFailed
from clusterctl.util.redaction import Redactor
from clusterctl.workspace import hardware, secrets

from .test_hardware import NOW, reply

INVENTORY = """\
all:
  vars: {cluster_name: aurora}
  children:
    slurm_head: {hosts: {head1: {ansible_host: 10.0.0.10}}}
    slurm_workers: {hosts: {gpu01: {}, gpu02: {}}}
"""


@pytest.fixture
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster whose nodes nobody asks."""
    (tmp_path / "inventory.yaml").write_text(INVENTORY)
    monkeypatch.setattr(bootstrap, "contact_phases", lambda **_: ())
    monkeypatch.setattr(Preflight, "run", lambda *_: None)
    monkeypatch.setattr(Site, "redactor", lambda *_, **__: Redactor([]))


@pytest.mark.proves("restore", "A worker left behind by a restore gets a bootstrap, no second restore.")
@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize(("rest", "second"), [("", "restore"), ("bootstrap", "bootstrap")])
def test_what_was_left_behind_gets_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rest: str, second: str
) -> None:
    """A restore that was played to the head once more would put back a state from before the jobs since."""
    played: list[tuple[str, str]] = []

    def watch(run: Run, site: Site, *_: Any, **__: Any) -> tuple[None, None]:
        played.append((site.command().playbook.stem, ",".join(host.name for host in site.hosts)))
        run.ledger.add(PlaybookStarted(()))
        run.ledger.add(Result("gpu02", "r", "t", "", "ok" if len(played) > 1 else "behind"))
        return None, None

    monkeypatch.setattr(plays, "watch", watch)
    assert engine.execute(Options("restore", tmp_path), [Play("restore", "Restore", rest=rest)]) == 0
    assert played == [("restore", "head1,gpu01,gpu02"), (second, "head1,gpu02")]


@pytest.mark.proves("restore", "After a restored head the next command is `bootstrap`.")
@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize(
    ("error", "verb"), [(WorkersFailed("gpu01 failed"), "bootstrap {}"), (HeadFailed("head1"), "restore {} a.tar")]
)
def test_nobody_is_told_to_restore_what_is_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: ClusterctlError, verb: str
) -> None:
    monkeypatch.setattr(plays, "watch", lambda *_, **__: (error, None))
    asked = Options("restore", tmp_path, flags=("a.tar",))
    assert engine.execute(asked, [Play("restore", "Restore", rest="bootstrap")]) == error.exit_code
    (summary,) = (tmp_path / ".clusterctl/runs").glob("*/summary.json")
    assert json.loads(summary.read_text())["next"] == f"clusterctl {verb.format(tmp_path)}"


@pytest.mark.proves("driver", "A node fails only if its run with the new GPUs fails.")
@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize(("other", "code"), [("ok", 0), ("failed", 4)])
def test_run__proof_fails_before_slurm_has_the_new_gpus__counts_the_second_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: Literal["ok", "failed"], code: int
) -> None:
    """The first time the proof finds GPUs that the record lacks; what another node failed with stays."""
    (tmp_path / "hardware").mkdir()
    hardware.save(tmp_path, hardware.from_reply("gpu02", reply() | {"gpus": [], "driver_version": None}, NOW))
    played: list[str] = []

    def watch(run: Run, site: Site, *_: Any, **__: Any) -> tuple[ClusterctlError | None, None]:
        names = [host.name for host in site.hosts]
        played.append(",".join(names))
        first = len(played) == 1
        run.ledger.add(PlaybookStarted(()))
        built = Change("kernel module", "nvidia", "580.95.05 loaded")
        run.ledger.add(
            Result("gpu02", "nvidia_driver", "t", "", "changed" if first else "ok", changes=(built,) if first else ())
        )
        run.ledger.add(Result("gpu02", "verify", "t", "", "failed" if first else "ok"))
        if first:
            run.ledger.add(Result("gpu01", "base", "t", "", other))
        failed = {"gpu02": first, "gpu01": other == "failed"}
        run.ledger.add(Stats({name: HostStats(failed=int(failed.get(name, False))) for name in names}))
        run.ledger.add(Ended())
        return run.ledger.error(site.groups(), site.inventory.heads), None

    monkeypatch.setattr(plays, "watch", watch)
    answer = SimpleNamespace(facts=SimpleNamespace(hardware=hardware.from_reply("gpu02", reply(), NOW)))
    monkeypatch.setattr(contact, "ask", lambda *_: answer)
    assert bootstrap.bootstrap(Options("bootstrap", tmp_path)) == code
    assert played == ["head1,gpu01,gpu02", "head1,gpu02"]


BARE = reply() | {"gpus": [], "driver_version": None}


def a_driver_comes(monkeypatch: pytest.MonkeyPatch, found: dict[str, Any]) -> list[str]:
    """Let each play give gpu02 a driver, and the node answer so afterwards; return the hosts of each play."""
    played: list[str] = []

    def watch(run: Run, site: Site, *_: Any, **__: Any) -> tuple[None, None]:
        played.append(",".join(host.name for host in site.hosts))
        run.ledger.add(PlaybookStarted(()))
        built = Change("kernel module", "nvidia", "580.95.05 loaded")
        run.ledger.add(Result("gpu02", "nvidia_driver", "t", "", "changed", changes=(built,)))
        return None, None

    monkeypatch.setattr(plays, "watch", watch)
    answer = SimpleNamespace(facts=SimpleNamespace(hardware=hardware.from_reply("gpu02", found, NOW)))
    monkeypatch.setattr(contact, "ask", lambda *_: answer)
    return played


@pytest.mark.usefixtures("_alone")
def test_run__driver_without_a_gpu__plays_the_node_once_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its proof was left to the second time, and there is no third."""
    (tmp_path / "hardware").mkdir()
    hardware.save(tmp_path, hardware.from_reply("gpu02", BARE, NOW))
    played = a_driver_comes(monkeypatch, BARE)
    assert bootstrap.bootstrap(Options("bootstrap", tmp_path)) == 0
    assert played == ["head1,gpu01,gpu02", "head1,gpu02"]


@pytest.mark.proves("driver", "GPUs that appear with a driver are recorded; head and node run again.")
@pytest.mark.usefixtures("_alone")
def test_run__a_node_got_a_driver__plays_it_once_more_with_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only which hosts are played and what is recorded; nodes, Ansible and Slurm are not in it.

    That Slurm has the GPUs in the same run is shown by tests/cluster/test_driver.py.
    """
    (tmp_path / "hardware").mkdir()
    for name in ("gpu01", "gpu02"):
        hardware.save(tmp_path, hardware.from_reply(name, BARE, NOW))
    played = a_driver_comes(monkeypatch, reply())
    assert bootstrap.bootstrap(Options("bootstrap", tmp_path)) == 0
    assert played == ["head1,gpu01,gpu02", "head1,gpu02"]
    assert len(hardware.load(hardware.path_of(tmp_path, "gpu02")).gpus) == 2
    assert bootstrap.bootstrap(Options("bootstrap", tmp_path)) == 0
    assert played[2:] == ["head1,gpu01,gpu02"]


@pytest.mark.usefixtures("_alone")
def test_play__nodes_that_left__are_played_with_the_clusters_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their directory has none; what Ansible says is still redacted."""
    asked: list[Path] = []

    def redactor(site: Site, **_: object) -> Redactor:
        asked.append(site.inventory.directory)
        return Redactor([])

    monkeypatch.setattr(Site, "redactor", redactor)
    monkeypatch.setattr(plays, "watch", lambda *_, **__: (None, None))
    run = Run(context.load(Options("remove-node", tmp_path)), Screen(io.StringIO()))
    node = removals.Node.of(run.site.inventory.host("gpu01"), run.site.inventory)
    plays.play(run, removals.written(run.site, [node]))
    assert asked == [tmp_path]


class Refused(Phase):
    """A phase before which the directory may be locked."""

    title, changes_nodes = "Refuse", False

    def __init__(self, locked: bool) -> None:
        self.locked = locked

    def run(self, run: Run) -> None:
        run.lock = 3 if self.locked else -1
        raise Locked("another run")


class Elsewhere(Phase):
    """A phase that does not concern this cluster: it is not among those that did not begin."""

    title = "Store the administrator's kubeconfig"

    def should_run(self, run: Run) -> bool:
        return False


@pytest.mark.proves("faults", "A refused run leaves the other run's entry the latest.")
@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize("locked", [True, False])
def test_execute__refused__is_kept_where_the_directory_is_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locked: bool
) -> None:
    monkeypatch.setattr(secrets, "redactor", lambda *_: Redactor([]))
    with pytest.raises(Locked):
        engine.execute(Options("bootstrap", tmp_path), [Refused(locked), Play("bootstrap", "Configure"), Elsewhere()])
    kept = list((tmp_path / ".clusterctl/runs").glob("*/summary.json")) if locked else []
    assert len(kept) == locked
    assert locked or not (tmp_path / ".clusterctl").exists()
    phases = [json.loads(path.read_text())["phases"] for path in kept]
    assert [[(one["title"], one["result"]) for one in found] for found in phases] == [
        [("Refuse", "failed"), ("Configure", "not begun")]
    ] * locked
