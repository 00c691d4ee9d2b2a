"""Verbs on nodes of Kubernetes, alone or beside Slurm: each node through its own scheduler, heads by the quorum."""

import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from clusterctl.ansible.events import Result
from clusterctl.ansible.outcome import Ledger
from clusterctl.ansible.run_directory import RunDirectory
from clusterctl.cli.app import app
from clusterctl.commands import add_node, backup, bootstrap, reboot, remove_node, replace_node, upgrade
from clusterctl.inventory import model as inventory
from clusterctl.inventory.model import Host
from clusterctl.inventory.schedulers import KUBERNETES, SLURM, Kind
from clusterctl.kubernetes.client import KubernetesController
from clusterctl.kubernetes.objects import Pod
from clusterctl.nodes import contact
from clusterctl.nodes.remote import Access
from clusterctl.run import engine, entry, membership, preflight, record, removals, rolling, scheduler
from clusterctl.run.context import Options, Site
from clusterctl.run.draining import Drain
from clusterctl.run.phases import Phase
from clusterctl.run.phases import Run as Phases
from clusterctl.run.planning import Plan
from clusterctl.run.rolling import Pace, Rolling
from clusterctl.slurm import checks as slurm_checks
from clusterctl.slurm import versions
from clusterctl.slurm.client import Job
from clusterctl.ui.screen import Screen
from clusterctl.util.errors import ClusterctlError, HeadFailed, InputError, PreflightError, WorkersFailed
from clusterctl.workspace import edits, home

from .test_hardware import node as recorded

HEADS = """\
all:
  vars: {cluster_name: aurora, cluster_networks: [10.0.0.0/24]}
  children:
    kubernetes_head: {hosts: {k1: {}, k2: {}, k3: {}}}
    kubernetes_workers: {hosts: {gpu01: {}, gpu02: {}}}
"""
ONE = HEADS.replace("k1: {}, k2: {}, k3: {}", "k1: {}")
BOTH = ONE + "    slurm_head: {hosts: {head1: {}}}\n    slurm_workers: {hosts: {cpu01: {}, cpu02: {}}}\n"
POD = Pod("ml", "train-0", "gpu01", "Running", "Job/train")
JOB = Job("57", "alice", "train", "RUNNING", "cpu01")


class Controller:
    """A scheduler, as far as a verb uses it: what was done, in order, for both schedulers together."""

    def __init__(self, kind: Kind, done: list[str], left: list[Any]) -> None:
        self.kind, self.done, self.left = kind, done, left
        self.problem, self.spare, self.serves, self.machine = "", True, "", True

    def __enter__(self) -> "Controller":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def _say(self, what: str, nodes: list[str]) -> None:
        self.done.append(f"{self.kind.name} {what} {','.join(nodes)}")

    def is_set_up(self) -> bool:
        return True

    def drain(self, cause: str, nodes: list[str], reason: str) -> None:
        self._say(f"drain {cause}", nodes)

    def resume(self, cause: str, nodes: list[str]) -> None:
        self._say(f"resume {cause}", nodes)

    def drained_for(self, cause: str) -> list[str]:
        return ["gpu02"] if self.kind is KUBERNETES else []

    def workloads(self, nodes: list[str]) -> list[Any]:
        return [one for one in self.left if str(one).find(nodes[0]) >= 0]

    def doomed(self, nodes: list[str]) -> list[Any]:
        return self.left

    def cancel(self, ids: list[str]) -> None:
        self._say("cancel", ids)

    def wait_until_empty(self, nodes: list[str], say: Callable[[str], None], seconds: float | None) -> list[Any]:
        self._say("wait", nodes)
        return [] if seconds is None else self.left

    def forget(self, nodes: list[str]) -> None:
        self._say("forget", nodes)

    def mark_down(self, nodes: list[str], reason: str) -> None:
        self._say("down", nodes)

    def hears_from(self, node: str) -> bool:
        return False

    def require_spare(self, heads: list[str]) -> None:
        if not self.spare:
            raise HeadFailed("k1: etcd would lose its quorum")

    def removal_problem(self, nodes: list[str]) -> str:
        return self.problem

    def leave(self, nodes: list[str]) -> None:
        self._say("leave", nodes)

    def is_other_machine(self, node: str, machine_id: str) -> bool:
        return self.machine

    def wait_for_head(self, head: str, seconds: float) -> str:
        self._say("serves", [head])
        return self.serves


class Head:
    """One head of several, and no other one."""

    done: list[str]
    stop_serving_command = KubernetesController.stop_serving_command

    def __init__(self, name: str) -> None:
        self.name = name

    @classmethod
    def connect(cls, head: Host, access: Access) -> "Head":
        return cls(head.name)

    def __enter__(self) -> "Head":
        return self

    def __exit__(self, *error: object) -> None: ...

    def stop_serving(self) -> None:
        self.done.append(f"stop {self.name}")


@pytest.fixture
def done() -> list[str]:
    return []


@pytest.fixture
def controllers(monkeypatch: pytest.MonkeyPatch, done: list[str]) -> dict[Kind, Controller]:
    found = {SLURM: Controller(SLURM, done, [JOB]), KUBERNETES: Controller(KUBERNETES, done, [POD])}
    monkeypatch.setattr(scheduler, "connect", lambda site, kind: found[kind])
    monkeypatch.setattr(scheduler, "control_plane_of", lambda kind: Head)
    monkeypatch.setattr(Head, "done", done, raising=False)
    return found


def site(directory: Path, text: str = BOTH, **options: Any) -> Site:
    (directory / "inventory.yaml").write_text(text)
    known = inventory.load(directory / "inventory.yaml")
    return Site(Options("verb", known.path, **options), known, known.hosts, Access(directory / "known_hosts"))


class Run(Phases):
    """A run whose plays fail on chosen hosts; keeps what was played and for whom."""

    def __init__(self, given: Site, *bad: str, done: list[str]) -> None:
        super().__init__(given, Screen(io.StringIO()))
        self.bad, self.done = bad, done

    def play(self, given: Site) -> ClusterctlError | None:
        names = [host.name for host in given.hosts]
        self.done.append(f"play {given.playbook} {','.join(names)}")
        for name in names:
            failed = name in self.bad and given.playbook != "verify"
            self.ledger.add(Result(name, "r", "t", "", "failed" if failed else "ok"))
        return WorkersFailed("some") if self.ledger.lost() else None


# --- drains -----------------------------------------------------------------------------------------------------------


@pytest.mark.proves("remove-node", "Nodes of Slurm and of Kubernetes are drained in one run, each by its scheduler.")
def test_drain__of_nodes_of_both__uses_each_scheduler(
    tmp_path: Path, controllers: dict[Kind, Controller], done: list[str]
) -> None:
    run = Run(site(tmp_path, yes=True), done=done)
    Drain("remove-node", ["gpu01", "cpu01", "cpu02"], "why").run(run)
    assert done == [
        "kubernetes drain remove-node gpu01",
        "slurm drain remove-node cpu01,cpu02",
        "kubernetes wait gpu01",
        "slurm wait cpu01,cpu02",
    ], "all are drained before any is waited for"
    done.clear()
    Drain("remove-node", ["gpu01"], "why", force=True).run(run)
    assert done == ["kubernetes drain remove-node gpu01", "kubernetes cancel ml/train-0", "kubernetes wait gpu01"]
    Drain("remove-node", ["gpu01", "cpu01"], "why").plan(run)
    assert run.jobs == [POD, JOB]


def test_drain__that_times_out__has_the_pods_and_the_command(
    tmp_path: Path, controllers: dict[Kind, Controller], done: list[str]
) -> None:
    with pytest.raises(WorkersFailed) as caught:
        Drain("remove-node", ["gpu01"], "why", minutes=1).run(Run(site(tmp_path), done=done))
    text = str(caught.value)
    assert text.startswith("1 pod still on gpu01 after 1 min; pod ml/train-0 (Job/train, running on gpu01).")
    assert "on the head: sudo /usr/local/sbin/kubernetes-drain remove-node --in gpu01" in text


def test_drain__as_manual_steps__is_on_the_head_of_each(tmp_path: Path) -> None:
    run = Run(site(tmp_path), done=[])
    steps = [str(step) for step in Drain("remove-node", ["gpu01", "cpu01"], "why").describe(run)]
    assert [step.partition(":")[0].partition(",")[0] for step in steps] == ["on k1", "on k1", "on head1", "on head1"]
    assert "kubernetes-drain remove-node --out gpu01" in steps[0]
    assert " drain --ignore-daemonsets --delete-emptydir-data gpu01" in steps[1]
    assert steps[3] == "on head1, until no job is listed: squeue --nodelist=cpu01"


def test_connect__to_several_heads__takes_the_first_that_responds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    silent, reinstalled, closed = {"k1", "k2"}, set[str](), list[str]()

    @dataclass
    class Head:
        name: str

        @classmethod
        def connect(cls, head: inventory.Host, access: Access) -> "Head":
            tried.append(head.name)
            if head.name in silent:
                raise HeadFailed(f"{head.name}: no answer")
            return cls(head.name)

        def is_set_up(self) -> bool:
            return self.name not in reinstalled

        def close(self) -> None:
            closed.append(self.name)

    def connected(**changes: tuple[str, ...]) -> str:
        tried.clear()
        return cast(Head, scheduler.connect(replace(given, **changes), KUBERNETES)).name  # type: ignore[arg-type]

    monkeypatch.setattr(scheduler, "of", lambda kind: Head)
    given = site(tmp_path, HEADS)
    assert (connected(), tried) == ("k3", ["k1", "k2", "k3"])
    assert (connected(skipped=("k1", "k2")), tried) == ("k3", ["k3"])
    with pytest.raises(HeadFailed, match="k1: no answer"):
        connected(skipped=("k3",))
    silent.clear()
    reinstalled |= {"k1", "k2"}
    assert (connected(), closed) == ("k3", ["k1", "k2"]), "one that was reinstalled knows no nodes"
    closed.clear()
    reinstalled |= {"k3"}
    assert (connected(), closed) == ("k1", ["k2", "k3"])


# --- batches ----------------------------------------------------------------------------------------------------------


def over(
    run: Run, monkeypatch: pytest.MonkeyPatch, due: list[str], cause: str = "upgrade", **more: Any
) -> ClusterctlError | None:
    monkeypatch.setattr(rolling, "play", lambda run, site, more: run.play(site))
    return Rolling("In batches", cause, cause, Pace("2"), due, **more).over(run)


@pytest.mark.proves("upgrade", "Heads of Kubernetes are drained and upgraded one by one; each serves before the next.")
def test_heads__of_kubernetes__are_changed_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, controllers: dict[Kind, Controller], done: list[str]
) -> None:
    run = Run(site(tmp_path, HEADS), done=done)
    assert over(run, monkeypatch, ["k1", "k2", "gpu01", "gpu02"]) is None
    assert done == [
        "kubernetes drain upgrade k1",
        "kubernetes wait k1",
        "play upgrade k1",
        "kubernetes serves k1",
        "kubernetes resume upgrade k1",
        "kubernetes drain upgrade k2",
        "kubernetes wait k2",
        "play upgrade k2",
        "kubernetes serves k2",
        "kubernetes resume upgrade k2",
        "kubernetes drain upgrade gpu01,gpu02",
        "kubernetes wait gpu01,gpu02",
        "play upgrade gpu01,gpu02",
        "play verify k1,gpu01,gpu02",
    ]


def test_batches__of_both_schedulers__are_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, controllers: dict[Kind, Controller], done: list[str]
) -> None:
    run = Run(site(tmp_path), done=done)
    assert over(run, monkeypatch, ["gpu01", "cpu01", "gpu02", "cpu02", "head1"]) is None
    assert [line for line in done if line.startswith("play")] == [
        "play upgrade head1",
        "play upgrade gpu01,gpu02",
        "play verify k1,gpu01,gpu02,head1",
        "play upgrade cpu01,cpu02",
        "play verify head1,cpu01,cpu02",
    ]


@pytest.mark.proves("upgrade", "A head that does not serve again stops the run before the next head.")
@pytest.mark.parametrize(
    ("change", "expected", "played"),
    [
        ({"serves": "its node is not ready"}, "k1, a head, does not serve: its node is not ready", ["k1"]),
        ({"spare": False}, "k1: etcd would lose its quorum", []),
    ],
)
def test_head__that_fails__stops_the_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    controllers: dict[Kind, Controller],
    done: list[str],
    change: dict[str, Any],
    expected: str,
    played: list[str],
) -> None:
    vars(controllers[KUBERNETES]).update(change)
    error = over(Run(site(tmp_path, HEADS), done=done), monkeypatch, ["k1", "k2", "gpu01"])
    assert isinstance(error, HeadFailed)
    assert expected in str(error)
    assert [line.split()[-1] for line in done if line.startswith("play")] == played
    assert not any("resume" in line for line in done)


def test_head__whose_play_fails__stays_drained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, controllers: dict[Kind, Controller], done: list[str]
) -> None:
    error = over(Run(site(tmp_path, HEADS), "k2", done=done), monkeypatch, ["k1", "k2", "k3"])
    assert isinstance(error, HeadFailed)
    assert done[-1] == "play upgrade k2"


def test_batches__as_manual_steps__are_for_each_scheduler(tmp_path: Path) -> None:
    run = Run(site(tmp_path), done=[])
    steps = [step for step in Rolling("x", "upgrade", "upgrade", Pace()).describe(run) if isinstance(step, str)]
    assert [step.split()[1].rstrip(":,") for step in steps] == ["k1", "k1", "head1", "head1", "k1", "head1"]


def test_due__of_an_interrupted_upgrade__is_what_any_scheduler_has_drained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, controllers: dict[Kind, Controller], done: list[str]
) -> None:
    monkeypatch.setattr(upgrade, "play", lambda run, site, more: None)
    run = Run(site(tmp_path), done=done)
    work = Rolling("x", "upgrade", "upgrade", Pace())
    monkeypatch.setattr(Plan, "show", lambda self, screen: None)
    upgrade.Rehearse(work, False).run(run)
    assert work.due == {"gpu02"}


def test_set_up__of_nodes__is_by_their_scheduler(tmp_path: Path) -> None:
    given = site(tmp_path, ONE)
    node = SimpleNamespace(slurm=(), kubernetes=("worker",))
    head = SimpleNamespace(slurm=(), kubernetes=("controller", "worker"))
    facts: Any = {name: SimpleNamespace(node=node) for name in ("gpu01", "gpu02")} | {"k1": SimpleNamespace(node=head)}
    run = Run(replace(given, facts=facts), done=[])
    upgrade.RequireSetUp().run(run)
    facts["gpu02"] = SimpleNamespace(node=SimpleNamespace(slurm=("worker",), kubernetes=()))
    with pytest.raises(PreflightError, match="gpu02: upgrade: was never configured"):
        upgrade.RequireSetUp().run(run)


def test_reboot__of_a_worker__contacts_the_heads_that_drain_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[str | None] = []
    monkeypatch.setattr(engine, "execute", lambda options, phases, known: limits.append(options.limit))
    path = site(tmp_path).inventory.path
    for name in ("gpu01", "cpu01", "k1"):
        reboot.reboot(Options("reboot", path, nodes=(name,)), Pace())
    assert limits == ["head1,k1,gpu01", "head1,cpu01", "head1,k1"]


# --- membership -------------------------------------------------------------------------------------------------------


def test_group__of_new_nodes__is_the_only_workers(tmp_path: Path) -> None:
    assert add_node._default_group(site(tmp_path, HEADS).inventory) == "kubernetes_workers"
    with pytest.raises(InputError, match="--group: is required, expected slurm_workers or kubernetes_workers"):
        add_node._default_group(site(tmp_path, BOTH).inventory)


def test_new_node__of_kubernetes__is_written_into_its_group(tmp_path: Path) -> None:
    given = site(tmp_path, HEADS).inventory
    change = edits.adding(given, given.path, "kubernetes_workers", {"gpu03": "10.0.0.13"})
    assert [host.name for host in change.inventory.in_group("kubernetes_workers")] == ["gpu01", "gpu02", "gpu03"]
    assert change.diff().count("\n+") == 2, "one changed line, and the header"


def test_limit__of_a_new_worker__is_it_and_the_heads(tmp_path: Path) -> None:
    """An old Slurm on the other head is no reason to contact its workers."""
    given = site(tmp_path).inventory
    limited = membership.limited(Options("add-node", given.path), given, ["gpu01"], Screen(io.StringIO()))
    assert limited.limit == "gpu01,k1,head1"


def test_restart__of_slurms_daemons__is_never_needed_without_slurm(tmp_path: Path) -> None:
    given = site(tmp_path, HEADS).inventory
    assert not versions.learns_by_restart(given)
    known = {host.name: recorded() for host in given.hosts}
    for check in (slurm_checks.releases, slurm_checks.confinement, slurm_checks.job_defaults):
        assert list(check(given, known)) == []


@pytest.mark.proves("remove-node", "Heads of Kubernetes are removed if an odd number stays.")
@pytest.mark.parametrize(
    ("text", "names", "expected"),
    [
        (ONE, ("k1",), "k1 is the head (kubernetes_head)"),
        (BOTH, ("head1",), "head1 is the head (slurm_head)"),
        (HEADS, ("k1",), "2 heads would stay, expected an odd number"),
        (HEADS, ("k1", "k2", "k3"), "these are all the heads"),
        (HEADS, ("gpu01", "gpu02"), "these are all the workers"),
        (BOTH, ("cpu01", "cpu02", "gpu01"), "these are all the workers"),
    ],
)
def test_node__that_is_needed__is_not_removed(tmp_path: Path, text: str, names: tuple[str, ...], expected: str) -> None:
    given = site(tmp_path, text).inventory
    with pytest.raises(InputError) as caught:
        remove_node.remove_node(Options("remove-node", given.path, nodes=names), dead=False)
    assert expected in str(caught.value)


def phases_of(monkeypatch: pytest.MonkeyPatch, verb: Callable[[], object]) -> tuple[list[Phase], dict[str, Any]]:
    found, options = list[Phase](), dict[str, Any]()

    def execute(given: Options, phases: list[Phase], *_: object) -> int:
        found.extend(phases)
        options["limit"] = given.limit
        return 0

    monkeypatch.setattr(engine, "execute", execute)
    verb()
    return found, options


@pytest.mark.proves("remove-node", "A head leaves etcd before the firewalls of the other heads exclude it.")
def test_heads__that_are_removed__leave_etcd_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, controllers: dict[Kind, Controller], done: list[str]
) -> None:
    given = site(tmp_path, HEADS)
    options = Options("remove-node", given.inventory.path, nodes=("k2", "k3"))
    phases, _ = phases_of(monkeypatch, lambda: remove_node.remove_node(options, dead=False))
    names = [type(phase).__name__ for phase in phases]
    order = [
        "RequireQuorum",
        "Drain",
        "LeaveQuorum",
        "RemoveFromDirectory",
        "ConfigureRemaining",
        "Unregister",
        "Clean",
    ]
    assert [name for name in names if name in order] == order
    run = Run(given, done=done)
    for phase in phases:
        if type(phase).__name__ in ("RequireQuorum", "Drain", "LeaveQuorum", "Unregister"):
            phase.run(run)
    assert done == [
        "kubernetes drain remove-node k2,k3",
        "kubernetes wait k2,k3",
        "stop k2",
        "stop k3",
        "kubernetes leave k2,k3",
        "kubernetes forget k2,k3",
    ]
    controllers[KUBERNETES].problem = "without k2, etcd would lose its quorum"
    with pytest.raises(PreflightError, match="k2: quorum: without k2, etcd would lose its quorum"):
        phases[names.index("RequireQuorum")].run(run)


@pytest.mark.proves("remove-node", "The API of a removed head stops before its etcd, unless the head is dead.")
@pytest.mark.parametrize("dead", [False, True])
def test_heads__that_are_removed__stop_their_api(
    tmp_path: Path, controllers: dict[Kind, Controller], done: list[str], dead: bool
) -> None:
    run = Run(site(tmp_path, HEADS), done=done)
    phase = remove_node.LeaveQuorum([run.site.inventory.host("k2")], dead)
    phase.run(run)
    assert done == ["stop k2"] * (not dead) + ["kubernetes leave k2"]
    # With --print-command the inventory is the one without the heads.
    (tmp_path / "after").mkdir()
    without = Run(site(tmp_path / "after", HEADS.replace(", k2: {}, k3: {}", "")), done=done)
    printed = [str(step) for step in phase.describe(without)]
    assert printed[-1] == "on another head: sudo /usr/local/sbin/kubernetes-etcd --remove k2"
    assert ["kube-apiserver" in step and step.startswith("on k2") for step in printed[:-1]] == [True] * (not dead)


@pytest.mark.proves("remove-node", "Without a head, all remaining nodes get the other heads' addresses.")
def test_heads__that_are_removed__change_all_other_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = site(tmp_path, HEADS).inventory.path
    for nodes, limit in ((("gpu01",), "k1,k2,k3,gpu01"), (("k1", "k2"), "k3,gpu01,gpu02,k1,k2")):
        options = Options("remove-node", path, nodes=nodes)
        _, found = phases_of(monkeypatch, lambda options=options: remove_node.remove_node(options, dead=False))  # type: ignore[misc]
        assert found["limit"] == limit
    said = capsys.readouterr().out
    assert said == "Every node has k1, k2 as a server of names and time: contacting all 3 hosts. Pods continue.\n"


@pytest.mark.parametrize("group", ["slurm_workers", "kubernetes_head"])
def test_removal__that_was_interrupted__configures_the_same_hosts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str
) -> None:
    """The node has left the inventory already. Old slurmds learn of it only by their configuration."""
    given = site(tmp_path).inventory
    removals.save(
        given.directory / home.STATE,
        removals.Node("gone", (group,), {"cluster_name": "aurora", "ansible_host": "10.0.0.9"}, ()),
    )
    monkeypatch.setattr(versions, "learns_by_restart", lambda _: True)
    options = Options("remove-node", given.path, nodes=("gone",))
    _, found = phases_of(monkeypatch, lambda: remove_node.remove_node(options, dead=True))
    assert {*found["limit"].split(",")} == {host.name for host in given.hosts}


def test_node__that_is_dead__is_marked_by_its_scheduler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, controllers: dict[Kind, Controller], done: list[str]
) -> None:
    given = site(tmp_path)
    options = Options("remove-node", given.inventory.path, nodes=("gpu01", "cpu01"))
    phases, _ = phases_of(monkeypatch, lambda: remove_node.remove_node(options, dead=True, force=True))
    (down,) = [phase for phase in phases if isinstance(phase, remove_node.MarkDown)]
    down.run(Run(given, done=done))
    assert done == [
        "kubernetes drain remove-node gpu01",
        "slurm drain remove-node cpu01",
        "kubernetes down gpu01",
        "slurm down cpu01",
    ]
    steps = [str(step) for step in down.describe(Run(given, done=done))]
    assert any("out-of-service=nodeshutdown:NoExecute" in step for step in steps)
    assert any("scontrol update NodeName=cpu01 State=DOWN" in step for step in steps)


def test_nodes__that_were_not_cleaned__still_have_a_secret(tmp_path: Path) -> None:
    given = site(tmp_path)
    nodes = {name: removals.Node.of(given.inventory.host(name), given.inventory) for name in ("gpu01", "cpu01")}
    run = Run(given, done=[])
    remove_node.WarnUncleaned(given.inventory, nodes, nodes).run(run)
    said = run.screen.file.getvalue()  # type: ignore[attr-defined]
    assert "cpu01 was not cleaned: it still has the cluster's munge key" in said
    assert "gpu01 was not cleaned: it still has credentials of Kubernetes" in said


@pytest.mark.proves("replace-node", "The old node of a replaced machine is deleted unless it has joined again.")
@pytest.mark.parametrize(("other", "expected"), [(True, "gpu01"), (False, "")])
def test_node__that_was_replaced__is_deleted_before_it_joins(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    controllers: dict[Kind, Controller],
    done: list[str],
    other: bool,
    expected: str,
) -> None:
    given = site(tmp_path)
    controllers[KUBERNETES].machine = other
    options = Options("replace-node", given.inventory.path, nodes=("gpu01", "cpu01"))
    phases, _ = phases_of(monkeypatch, lambda: replace_node.replace_node(options))
    for phase in phases:
        if isinstance(phase, Drain | replace_node.ForgetReplaced):
            phase.run(Run(given, done=done))
    assert done == ["slurm drain bootstrap cpu01", f"kubernetes forget {expected}"]


@pytest.mark.parametrize(
    ("text", "names", "expected"),
    [
        (HEADS, ("k1",), ""),
        (HEADS, ("k1", "k2"), "got 2 of 3 heads, expected fewer than half"),
        (ONE, ("k1",), 'no worker "k1"'),
        (BOTH, ("head1",), 'no worker "head1"'),
    ],
)
def test_heads__that_are_replaced__are_fewer_than_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, names: tuple[str, ...], expected: str
) -> None:
    path = site(tmp_path, text).inventory.path
    monkeypatch.setattr(engine, "execute", lambda *_: 0)
    options = Options("replace-node", path, nodes=names)
    if not expected:
        assert replace_node.replace_node(options) == 0
        return
    with pytest.raises(InputError) as caught:
        replace_node.replace_node(options)
    assert expected in str(caught.value)


def test_roles__are_not_uninstalled_under_pods(
    tmp_path: Path, controllers: dict[Kind, Controller], done: list[str]
) -> None:
    given = site(tmp_path)
    hosts = [given.inventory.host(name) for name in ("gpu01", "cpu01")]
    assert bootstrap._with_pods(given, hosts) == {"gpu01"}
    assert bootstrap._with_pods(given, hosts[1:]) == set()


def test_plan__of_pods__names_them() -> None:
    for kinds, expected in (((KUBERNETES,), "Pods"), ((SLURM,), "Jobs"), ((SLURM, KUBERNETES), "Workloads")):
        text = io.StringIO()
        Plan.of(Ledger(), kinds=kinds).show(Screen(text))
        assert f"  {expected}" in text.getvalue()


@pytest.mark.proves("backup", "A dead head of several does not prevent a backup of Kubernetes.")
def test_backup__with_a_dead_head__skips_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = site(tmp_path, HEADS)
    options = Options("backup", given.inventory.path)
    phases, found = phases_of(monkeypatch, lambda: backup.backup(options, tmp_path))
    assert found["limit"] == "k1,k2,k3"
    asked: list[Any] = []

    def answer(*arguments: Any) -> contact.Contact:
        asked.append(arguments[2])
        return contact.Contact({})

    monkeypatch.setattr(preflight, "preflight", answer)
    (check,) = [phase for phase in phases if isinstance(phase, entry.Preflight)]
    check._contact(Run(given, done=[]))
    entry.Preflight()._contact(Run(given, done=[]))
    assert asked == [True, None]


# --- a head that is down ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        "bootstrap",
        "verify",
        "add-node gpu03",
        "remove-node gpu01",
        "replace-node gpu01",
        "reboot gpu01",
        "upgrade",
        "plan bootstrap",
        "plan remove-node gpu01",
        "plan upgrade",
    ],
)
def test_skip_unreachable__of_verbs__reaches_the_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    found: list[bool | None] = []

    def execute(options: Options, *_: object) -> int:
        found.append(options.skip_unreachable)
        return 0

    monkeypatch.setattr(engine, "execute", execute)
    path = str(site(tmp_path, HEADS).inventory.path)
    words = command.split()
    verb = words[: 1 + (words[0] == "plan")]
    for flags in ([], ["--skip-unreachable"]):
        done = CliRunner().invoke(app, [*verb, path, *words[len(verb) :], *flags])
        assert done.exit_code == 0, done.output
    assert found == [False, True]


@pytest.mark.proves("reboot", "A worker is rebooted while one head of three is down, with exit code 4.")
def test_reboot__with_a_dead_head__uses_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, controllers: dict[Kind, Controller], done: list[str]
) -> None:
    run, variables = Run(replace(site(tmp_path, HEADS), skipped=("k1",)), done=done), list[Any]()

    def play(_: object, given: Site, more: bool) -> ClusterctlError | None:
        variables.append(given.variables.get("kubernetes_silent_heads"))
        return run.play(given)

    monkeypatch.setattr(rolling, "play", play)
    error = Rolling("In batches", "reboot", "reboot", Pace("2"), ["gpu01"]).over(run)
    assert isinstance(error, WorkersFailed)
    assert str(error) == "k1 skipped."
    assert done[2:] == ["play reboot gpu01", "play verify k2,gpu01"]
    assert variables == [["k1"], ["k1"]]


@pytest.mark.proves("remove-node", "A worker is removed while one head of three is down, with exit code 4.")
def test_remove_node__with_a_dead_head__is_completed_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, controllers: dict[Kind, Controller], done: list[str]
) -> None:
    given = site(tmp_path, HEADS)
    options = Options("remove-node", given.inventory.path, nodes=("gpu01",), skip_unreachable=True)
    phases, found = phases_of(monkeypatch, lambda: remove_node.remove_node(options, dead=False))
    assert found["limit"] == "k1,k2,k3,gpu01"
    run = Run(replace(given, skipped=("k1",), options=options), done=done)
    by_name = {type(phase).__name__: phase for phase in phases}
    assert list(by_name)[-3:] == ["Unregister", "Clean", "ReportSkipped"]
    by_name["RequireResponse"].run(run)
    configure = cast(remove_node.ConfigureRemaining, by_name["ConfigureRemaining"]).site(run)
    assert [host.name for host in configure.hosts] == ["k2", "k3", "gpu01", "gpu02"]
    assert configure.skipped == (), "it would end the run before the node is unregistered"
    by_name["Unregister"].run(run)
    assert done == ["kubernetes forget gpu01"]
    with pytest.raises(WorkersFailed, match="k1 skipped; everything else is done") as caught:
        by_name["ReportSkipped"].run(run)
    assert caught.value.exit_code == 4
    run.kept = RunDirectory.create(given.state, "remove-node")
    closing = record.write(run, caught.value)
    assert closing.again == f"clusterctl bootstrap {given.inventory.path} --skip-unreachable", "the head has old files"
    assert closing.summary["skipped"] == ["k1"]


@pytest.mark.proves("remove-node", "With --skip-unreachable a node that does not respond is not removed: --dead is.")
@pytest.mark.parametrize("verb", ["remove-node", "replace-node"])
def test_node__that_is_skipped_itself__is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, controllers: dict[Kind, Controller], verb: str
) -> None:
    given = site(tmp_path, HEADS)
    options = Options(verb, given.inventory.path, nodes=("gpu01",), skip_unreachable=True)

    def call() -> int:
        return (
            replace_node.replace_node(options)
            if verb == "replace-node"
            else remove_node.remove_node(options, dead=False)
        )

    phases, _ = phases_of(monkeypatch, call)
    (require,) = [phase for phase in phases if isinstance(phase, membership.RequireResponse)]
    with pytest.raises(PreflightError, match="gpu01: node: was skipped for the reason above and cannot be ") as caught:
        require.run(Run(replace(given, skipped=("gpu01",)), done=[]))
    refusal = PreflightError(caught.value.problems, preflight.WITHOUT_THEM)

    def refuse(*_: object) -> int:
        raise refusal

    monkeypatch.setattr(engine, "execute", refuse)
    with pytest.raises(PreflightError) as caught:
        call()
    assert caught.value.hint == "", "it cannot be skipped"
    assert ("--dead" in str(caught.value)) is (verb == "remove-node")
