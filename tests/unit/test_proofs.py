"""What nodes and jobs say to those who prove and empty a cluster: no more than data, and of nobody else."""

import http.server
import json
import os
import re
import socket
import ssl
import sys
import threading
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from clusterctl.slurm.client import SlurmController
from clusterctl.util import paths
from tests.unit.test_role_plugins import plugin

JOB = plugin("modules/slurm_job_proof")
TARGETS = plugin("modules/prometheus_targets")
GOOD = {"node": "gpu01", "job": "7", "user": 64999, "devices": {"/dev/nvidia0": "open"}, "listed": 1, "homes": {}}


@pytest.mark.proves("untrusted", "A proof job's answer counts only if whole and of a chosen node.")
@pytest.mark.parametrize(
    ("states", "text"),
    [
        ({"gpu01": "allocated"}, "gpu01 is allocated"),
        ({"gpu01": "down", "gpu02": "mixed", "gpu03": "down"}, "gpu01, gpu03 are down, gpu02 is mixed"),
        (dict.fromkeys(map("gpu{:03}".format, range(500)), "mixed"), "gpu000, gpu001, gpu002, 497 others are mixed"),
    ],
)
def test_in_states__of_many_nodes__names_the_first(states: dict[str, str], text: str) -> None:
    assert JOB.in_states(states) == text


def test_only_whole_answers_of_chosen_nodes_count() -> None:
    foreign = [
        "{",
        "[" * 100_000,
        "[]",
        "{}",
        json.dumps(GOOD | {"node": "head1"}),
        json.dumps(GOOD | {"node": ["gpu02"]}),
        json.dumps(GOOD | {"node": "gpu02", "job": "7 --user=root"}),
        json.dumps(GOOD | {"node": "gpu02", "job": 7}),
        json.dumps(GOOD | {"node": "gpu02", "devices": "none"}),
        json.dumps({key: value for key, value in GOOD.items() if key != "user"} | {"node": "gpu02"}),
        "a prologue's greeting",
    ]
    assert JOB.parse_answers("\n".join([*foreign, json.dumps(GOOD)]), ["gpu01", "gpu02"]) == {"gpu01": GOOD}


@pytest.mark.parametrize(
    ("told", "state"),
    [("mixed-", "mixed"), ("idle$", "idle"), ("idle*", "idle*"), ("planned", "planned"), ("drained*", "drained*")],
)
def test_states__signs_of_sinfo__are_of_nodes_in_service_or_not(
    monkeypatch: pytest.MonkeyPatch, told: str, state: str
) -> None:
    """sinfo(1): - a job is planned there, $ a reservation for maintenance has it, * it does not respond."""
    monkeypatch.setattr(JOB, "output", lambda argv: f"gpu01|{told}|main*\n")
    assert JOB.states() == {"gpu01": (state, "main")}


@pytest.mark.proves("bootstrap", "A worker that rebooted or woke too late is tested like a new one.")
@pytest.mark.parametrize(
    ("state", "reason", "is_tested"),
    [
        ("down", "slurm|Node unexpectedly rebooted", True),
        ("down", "slurm|ResumeTimeout reached", True),
        ("down", "Unknown|none", True),
        ("down*", "slurm|Node unexpectedly rebooted", False),
        ("down", "slurm|Low RealMemory", False),
        ("down", "root|none", False),
        ("down", "root|fan: Node unexpectedly rebooted", False),
    ],
)
def test_prove__node_that_slurm_keeps_down__is_tested_if_it_was_away(
    monkeypatch: pytest.MonkeyPatch, state: str, reason: str, is_tested: bool
) -> None:
    ledger: dict[str, dict[str, str]] = {}
    has = {"state": state, "reason": reason}

    def output(argv: list[str], **_: Any) -> str:
        if argv[0] == "sinfo":
            return f"gpu01|{has['state']}|main*\n" if "%T" in argv[-1] else f"gpu01|{has['reason']}\n"
        if argv[0] == JOB.DRAIN and "--out" in argv:
            ledger["gpu01"] = {argv[1]: argv[-1]}
            has.update(state="drained", reason=f"root|clusterctl: {argv[-1]}")
        return json.dumps(ledger)

    monkeypatch.setattr(JOB, "output", output)
    for name in ("REGISTER_S", "DECIDED_S"):
        monkeypatch.setattr(JOB, name, 0)
    monkeypatch.setattr(JOB, "has_reservation", lambda: False)
    monkeypatch.setattr(JOB, "admit_nodes", lambda user, cause, names, proof: ("done", [], {}))
    nodes = {"gpu01": {"gpus": 1, "confined": True, "mpi": False}}
    assert (JOB.prove(JOB.Job("alice", ""), nodes)["down"].keys(), ledger) == ({"gpu01"}, {}), "a test without `admit`"
    found = JOB.prove(JOB.Job("alice", ""), nodes, "bootstrap")
    assert found.get("admitted", []) == ["gpu01"] * is_tested
    assert list(found["down"]) == ["gpu01"] * (not is_tested)


def test_homes__of_a_job__are_compared_with_the_heads(tmp_path: Path) -> None:
    homes = [str(tmp_path / name) for name in ("a", "b")]
    for home in homes:
        Path(home).mkdir()
        os.utime(home, ns=(0, 1_700_000_000_123_456_789))
    ages = {home: Path(home).stat().st_mtime_ns for home in homes}
    whole = {home: age // 10**9 * 10**9 for home, age in ages.items()}  # as sshfs tells them
    other = {home: age + 60 * 10**9 for home, age in ages.items()}
    near = {home: age + 1 for home, age in ages.items()}
    answers = {"gpu01": {"homes": ages}, "gpu02": {"homes": other}, "gpu03": {"homes": {}}, "gpu04": {"homes": "x"}}
    assert JOB.homes_apart(homes, answers) == ["gpu02"]
    assert JOB.homes_apart(homes, {"gpu01": {"homes": whole}, "gpu02": {"homes": near}}) == ["gpu02"]
    assert JOB.homes_apart([], answers) == []


@pytest.mark.parametrize("told", ["1 ranks, 0 wrong\n1 ranks, 0 wrong\n", "2 ranks, 3 wrong\n", ""])
def test_mpi__ranks_that_do_not_know_each_other__prove_nothing(monkeypatch: pytest.MonkeyPatch, told: str) -> None:
    nodes = {name: {"gpus": 1, "mpi": True} for name in ("gpu01", "gpu02")}
    monkeypatch.setattr(JOB, "states", lambda: dict.fromkeys(nodes, ("idle", "main")))
    monkeypatch.setattr(JOB, "output", lambda *argv: "2 ranks, 0 wrong\n")
    assert JOB.prove_mpi("alice", "", "", nodes) == "an MPI program sent messages between gpu01 and gpu02"
    monkeypatch.setattr(JOB, "output", lambda *argv: told)
    with pytest.raises(JOB.FailedError, match="MPI across gpu01 and gpu02"):
        JOB.prove_mpi("alice", "", "", nodes)
    del nodes["gpu02"]
    assert JOB.prove_mpi("alice", "", "", nodes) == ""


@pytest.mark.proves("untrusted", "Two different answers for one node prove nothing.")
def test_two_answers_in_one_name_prove_nothing() -> None:
    twice = "\n".join([json.dumps(GOOD), json.dumps(GOOD)])
    assert JOB.parse_answers(twice, ["gpu01", "gpu02"]) == {"gpu01": GOOD}
    with pytest.raises(JOB.FailedError, match="the job printed two different answers for gpu01"):
        JOB.parse_answers(twice + "\n" + json.dumps(GOOD | {"devices": {}}), ["gpu01", "gpu02"])


def test_where_one_node_speaks_for_another_each_is_proven_alone() -> None:
    asked = []

    def job(names: list[str], partition: str) -> tuple[str, dict[str, str]]:
        asked.append(names)
        if len(names) > 1 or names == ["gpu02"]:
            raise JOB.FailedError("the job printed two different answers for gpu01")
        return "proven", {}

    known = dict.fromkeys(("gpu01", "gpu02"), ("idle", "main"))
    _, _, wrong = JOB.by_partition(["gpu01", "gpu02"], known, job)
    assert sorted(asked) == [["gpu01"], ["gpu01", "gpu02"], ["gpu02"]]
    assert list(wrong) == ["gpu02"]


@pytest.mark.proves("verify", "A node with a health drain is not proven.")
def test_a_node_whose_gpus_are_not_well_is_not_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be in service, unproven, as soon as they are. One that has been proven before waits for nothing."""
    causes = {
        "gpu01": {"upgrade": "x", "health": "GPU 1: XID 79"},
        "gpu02": {"health": "hot"},
        "gpu03": {"upgrade": "x"},
    }
    monkeypatch.setattr(JOB, "output", lambda argv, *_: json.dumps(causes))
    monkeypatch.setattr(JOB, "register", lambda nodes: (dict.fromkeys(nodes, ("idle", "main")), {}))
    monkeypatch.setattr(JOB, "waiting", lambda nodes, cause, causes: [name for name in nodes if name == "gpu03"])
    monkeypatch.setattr(JOB, "admit_nodes", lambda user, cause, names, proof: ("proven", [], {}))
    told = JOB.prove(JOB.Job("alice", ""), {name: {} for name in causes}, "upgrade")
    assert told["down"] == {"gpu01": "no test job was run, its GPUs are unhealthy: GPU 1: XID 79"}
    assert told["admitted"] == ["gpu03"]


@pytest.mark.parametrize(
    ("found", "out", "into"),
    [
        ({"down": {}}, "gpu09", "gpu01,gpu02,gpu03"),
        ({"down": {"gpu02": "x"}}, "gpu02,gpu09", "gpu01,gpu03"),
        ({"down": {"gpu02": "x", "gpu03": "y"}, "admitted": ["gpu01"], "refused": ["gpu02"]}, "gpu03,gpu09", ""),
    ],
)
@pytest.mark.proves("verify", "The test job's call drains failed nodes and lets the others in.")
def test_settle__of_nodes__drains_faulty_ones(
    found: dict[str, Any], out: str, into: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def output(argv: list[str], **_: Any) -> str:
        asked.append(argv)
        return "gpu09 out: upgrade\n"

    monkeypatch.setattr(JOB, "output", output)
    nodes: dict[str, Any] = {"gpu01": {}, "gpu02": {}, "gpu03": {}}
    assert JOB.settle(found, nodes, ["gpu09"], "upgrade") == {**found, "drained": ["gpu09 out: upgrade"]}
    assert asked == [
        [JOB.DRAIN, "upgrade", "--out", out, "--in", into, "--reason", "the last run did not complete there"]
    ]


UNSTARTED = "srun: error: Nodes gpu01 are still not ready"


@pytest.mark.parametrize(
    ("ends", "conditions", "answers", "message"),
    [
        ([UNSTARTED], "gpu01 IDLE+MAINTENANCE drain this later\n", {"gpu01": GOOD}, "gpu01 is idle+maintenance: drain"),
        ([UNSTARTED] * 2, "gpu01 IDLE none\n", None, "gpu01 is idle: none"),
        ([UNSTARTED], "gpu01 IDLE+DRAIN Prolog error\n", None, "gpu01 is idle+drain: Prolog error"),
        (["srun: error: something else"], "gpu01 IDLE none\n", None, "something else"),
    ],
)
@pytest.mark.proves("verify", "A test job that Slurm ended at its start is run once more.")
def test_job__ended_at_its_start__is_run_once_more(
    ends: list[str], conditions: str, answers: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless Slurm has drained the node, as after a failed Prolog: its reason is in the message then."""
    left = list(ends)

    def output(argv: list[str], *_: Any) -> str:
        if argv[0] == "sinfo":
            return conditions
        if left:
            raise JOB.FailedError(left.pop(0))
        return json.dumps(GOOD)

    monkeypatch.setattr(JOB, "output", output)
    job, nodes = JOB.Job("alice", ""), {"gpu01": {"gpus": 2}}
    if answers:
        assert JOB.run_job(job, nodes, ["gpu01"], "main") == (2, answers)
        assert len(job.notes) == 1
        assert message in job.notes[0]
    else:
        with pytest.raises(JOB.FailedError, match=re.escape(message)):
            JOB.run_job(job, nodes, ["gpu01"], "main")
    assert not left


def test_settle__of_a_node_that_its_test_has_settled__does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JOB, "output", lambda *_: pytest.fail("called slurm-drain"))
    found = {"down": {}, "admitted": ["gpu01"], "refused": []}
    assert JOB.settle(found, {"gpu01": {}}, [], "bootstrap") == {**found, "drained": []}


@pytest.mark.proves("untrusted", "A job that prints without end is cut off.")
def test_what_a_job_prints_without_end_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JOB, "MAX_OUTPUT", 1000)
    for where in ("1", "2"):
        with pytest.raises(JOB.FailedError, match="prints more than 1000 bytes") as failure:
            JOB.output(["sh", "-c", f"while :; do echo something; done >&{where}"])
        assert len(str(failure.value)) < 1000
    assert JOB.output(["cat"], "text") == "text"
    with pytest.raises(JOB.FailedError, match=r"sh -c .* ended with 3: no"):
        JOB.output(["sh", "-c", "echo no >&2; exit 3"])
    with pytest.raises(JOB.FailedError, match="sleep has not ended after 0 s"):
        JOB.output(["sleep", "600"], timeout=0)


@pytest.fixture
def drain(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """slurm-drain, which is a program without a suffix."""
    loader = SourceFileLoader("slurm_drain", str(paths.content() / "roles/slurm_head/files/slurm-drain"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    module = ModuleType(loader.name)
    loader.exec_module(module)
    return module


@pytest.mark.proves("untrusted", "A node cannot forge its Slurm state in its own description.")
@pytest.mark.parametrize(
    ("state", "reason", "causes", "told"),
    [
        ("idle", "Unknown none", {"health": "x"}, "gpu01 out: health"),
        ("idle+drain", "root clusterctl: health: x", {}, "gpu01 in"),
        ("idle+drain", "root fan State=IDLE Reason=clusterctl: x", {}, ""),
        ("idle+drain", "slurm Kill task failed", {}, ""),
        ("", "", {"health": "x"}, ""),
    ],
)
def test_a_node_is_drained_by_what_slurm_has_of_it(
    drain: ModuleType, monkeypatch: pytest.MonkeyPatch, state: str, reason: str, causes: dict[str, str], told: str
) -> None:
    """Its own words in scontrol's line say that it is down, drained by us and idle."""
    updates = []

    def run(*argv: str) -> str:
        if argv[0] == "sinfo":
            return f"{reason if '--format=%u %E' in argv else state.ljust(200)}\n" * 2  # it is in two partitions
        if "show" in argv:
            return "NodeName=gpu01 OS=x State=DOWN+DRAIN Reason=clusterctl: x [root@x] State=IDLE Partitions=main\n"
        updates.append(argv)
        return ""

    monkeypatch.setattr(drain, "run", run)
    assert drain.settle("gpu01", causes, set()) == told
    assert [word for argv in updates for word in argv if word.startswith("State=")] == (
        ["State=DRAIN"] if told.endswith("health") else ["State=UNDRAIN"] if told else []
    )


@pytest.mark.proves("jobs", "A reason that Slurm writes over ours does not keep the node drained.")
def test_a_reason_that_slurm_writes_over_ours_makes_the_node_nobody_elses(
    drain: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that a person has written since does, and so does one for which Slurm itself drains a node in service."""
    has = {"state": "idle", "by": "Unknown", "reason": "none"}
    ours: set[str] = set()

    def run(*argv: str) -> str:
        if argv[0] == "sinfo":
            return f"{has['by']} {has['reason']}" if "--format=%u %E" in argv else has["state"]
        has["state"] = "idle+drain" if "State=DRAIN" in argv else "idle"
        has["by"], has["reason"] = "root", argv[-1].removeprefix("Reason=")
        return ""

    monkeypatch.setattr(drain, "run", run)
    assert drain.settle("gpu01", {"health": "x"}, ours) == "gpu01 out: health"
    has.update(state="inval+drain", by="slurm", reason="gres/gpu count reported lower than configured (1 < 2)")
    drain.settle("gpu01", {"health": "y"}, ours)
    assert has["reason"] == "clusterctl: health: y"
    has.update(by="slurm", reason="gres/gpu count reported lower than configured (1 < 2)")
    assert drain.settle("gpu01", {}, ours) == "gpu01 in"
    for by, reason in (("ops", "new fan"), ("slurm", "Kill task failed")):
        has.update(state="idle")
        drain.settle("gpu01", {"health": "x"}, ours)
        assert ours == {"gpu01"}
        has.update(by=by, reason=reason)
        assert drain.settle("gpu01", {}, ours) == ""
        assert (has["state"], ours) == ("idle+drain", set())
    has.update(state="idle")
    drain.settle("gpu01", {"health": "x"}, ours)
    has.update(by="ops", reason="new fan")
    drain.settle("gpu01", {"health": "y"}, ours)
    has.update(by="slurm", reason="Low RealMemory")
    assert drain.settle("gpu01", {}, ours) == ""
    assert (has["state"], ours) == ("idle+drain", set())


def test_settle__of_a_job_that_slurm_could_not_kill__takes_the_drain_over(
    drain: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cause is the same process, so the node is resumed when that has ended. Other drains of Slurm's stay."""
    has = {"state": "idle+drain", "reason": "Kill task failed"}

    def run(*argv: str) -> str:
        if argv[0] == "sinfo":
            return f"root {has['reason']}" if "--format=%u %E" in argv else has["state"]
        has["state"] = "idle+drain" if "State=DRAIN" in argv else "idle"
        has["reason"] = argv[-1].removeprefix("Reason=")
        return ""

    monkeypatch.setattr(drain, "run", run)
    ours: set[str] = set()
    drain.settle("gpu01", {"health": "job 1 of alice: process 7 does not end"}, ours)
    assert has["reason"] == "clusterctl: health: job 1 of alice: process 7 does not end"
    assert drain.settle("gpu01", {}, ours) == "gpu01 in"
    has.update(state="idle+drain", reason="Epilog error")
    drain.settle("gpu01", {"health": "x"}, ours)
    assert (has["reason"], ours) == ("Epilog error", set())


@pytest.mark.proves("jobs", "A new node counts as new until it entered service.")
def test_a_node_is_new_until_it_was_put_into_service(
    drain: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And once more after it had left; Slurm is asked for nothing of that."""
    for name in ("LEDGER", "LOCK"):
        monkeypatch.setattr(drain, name, tmp_path / "run" / name)
    monkeypatch.setattr(drain, "settle", lambda node, causes, ours: f"{node}: {'; '.join(causes.values())}")
    monkeypatch.setattr(drain, "drained", set)

    def does(*argv: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", ["slurm-drain", *argv])
        drain.main()
        return capsys.readouterr().out.splitlines()

    bootstrap = ("bootstrap", "--new", "--reason", "not proven yet", "--out")
    assert does(*bootstrap, "gpu01,gpu02") == ["gpu01: not proven yet", "gpu02: not proven yet"]
    does("bootstrap", "--in", "gpu01", "--out", "gpu02", "--reason", "saw no GPU")
    does("health", "--out", "gpu01")
    assert does(*bootstrap, "gpu01,gpu02,gpu03") == ["gpu02: saw no GPU", "gpu03: not proven yet"]
    does("health", "--in", "gpu01")
    does("bootstrap", "--in", "gpu02,gpu03")
    assert does(*bootstrap, "gpu01,gpu02,gpu03") == []
    assert does() == ["{}"]
    does("--forget", "gpu02")
    does(*bootstrap, "gpu01")  # gpu03 was taken out of the inventory
    assert does(*bootstrap, "gpu01,gpu02,gpu03") == ["gpu02: not proven yet", "gpu03: not proven yet"]


def test_what_slurm_was_not_told_is_made_up_for(
    drain: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The controller fails when the last cause is gone already; a cause that is left waits for its own end."""
    settled: list[str] = []

    def settle(node: str, causes: dict[str, str], ours: set[str]) -> str:
        settled.append(node)
        if len(settled) == 1:
            sys.exit("scontrol: Unable to contact slurm controller")
        return ""

    for name in ("LEDGER", "LOCK"):
        monkeypatch.setattr(drain, name, tmp_path / "run" / name)
    (tmp_path / "run").mkdir()
    drain.save({"gpu01": {"health": "x"}, "gpu02": {"bootstrap": "x"}}, set())
    monkeypatch.setattr(drain, "settle", settle)
    monkeypatch.setattr(drain, "drained", lambda: {"gpu01", "gpu02"})
    monkeypatch.setattr(sys, "argv", ["slurm-drain", "health", "--in", "gpu01,gpu02,gpu03"])
    with pytest.raises(SystemExit):
        drain.main()
    drain.main()
    assert settled == ["gpu01", "gpu01"]


def test_nodes_in_service_cost_one_command(drain: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[tuple[str, ...]] = []

    def run(*argv: str) -> str:
        asked.append(argv)
        states = {"gpu01": "IDLE", "gpu02": "IDLE+DRAIN", "gpu03": "MIXED"}
        if "--format=%u %E" in argv:
            return "root clusterctl: bootstrap: x\n"
        nodes = next((word.partition("=")[2] for word in argv if word.startswith("--nodes=")), "")
        rows = [states[nodes]] if nodes else [f"{name:100}{state:200}" for name, state in states.items()]
        return "".join(f"{row}\n" * 2 for row in rows) if argv[0] == "sinfo" else ""

    for name in ("LEDGER", "LOCK"):
        monkeypatch.setattr(drain, name, tmp_path / "run" / name)
    (tmp_path / "run").mkdir()
    drain.save({name: {} for name in ("gpu01", "gpu02", "gpu03")}, set())
    monkeypatch.setattr(drain, "run", run)
    monkeypatch.setattr(sys, "argv", ["slurm-drain", "bootstrap", "--in", "gpu01,gpu02,gpu03"])
    drain.main()
    assert [argv[0] for argv in asked] == ["sinfo", "sinfo", "sinfo", "scontrol"]
    assert asked[-1] == ("scontrol", "update", "NodeName=gpu02", "State=UNDRAIN")


class Session:
    """The head's answers to squeue and sinfo; a row of jobs begins with whatever squeue was asked to put there."""

    def run(self, argv: tuple[str, ...], **_: Any) -> tuple[int, str, str]:
        if argv[0] == "sinfo":
            return 0, "gpu01  idle\ngpu02  down+not_responding\n", ""
        fields = next(word for word in argv if word.startswith("--format=")).partition("=")[2]
        jobs = [
            ("7", "eve", "x\n999|root|y|RUNNING|gpu01\n8|eve", "RUNNING", "gpu01"),
            ("8", "bob", "a|b", "RUNNING", "gpu01"),
        ]
        rows = (dict(zip(("%i", "%u", "%j", "%T", "%N"), job, strict=True)) for job in jobs)
        return 0, "".join(re.sub("%[iujTN]", lambda at: row[at[0]], fields) + "\n" for row in rows), ""  # noqa: B023


@pytest.mark.proves("untrusted", "A job's name cannot pass for another job.")
def test_a_job_is_no_other_by_its_name() -> None:
    head = SlurmController(Session(), "head1")  # type: ignore[arg-type]
    found = head.workloads(["gpu01"])
    assert [(job.number, job.user, job.name, job.state) for job in found] == [
        ("7", "eve", "x", "RUNNING"),
        ("8", "bob", "a|b", "RUNNING"),
    ]


def test_a_node_that_slurm_hears_from_is_one_that_it_has() -> None:
    head = SlurmController(Session(), "head1")  # type: ignore[arg-type]
    assert [head.hears_from(name) for name in ("gpu01", "gpu02", "gpu03")] == [True, False, False]


SERVICE = {
    "idle": ("idle", "{}", True),
    "with jobs": ("mixed", "{}", True),
    "full": ("allocated+completing", "{}", True),
    "planned for a job": ("idle+planned", "{}", True),
    "silent": ("idle*", "{}", False),
    "down": ("down", "{}", False),
    "drained by an operator": ("idle+drain", "{}", False),
    "reserved": ("idle+reserved", "{}", True),
    "in maintenance": ("idle+maint", "{}", False),
    "to be rebooted": ("idle+reboot_requested", "{}", False),
    "powered down": ("idle+powered_down", "{}", False),
    "with a cause": ("idle", '{"health": "XID 79"}', False),
    "new": ("idle", None, False),
    "in a partition that is down": ("idle", "{}", False),
}


@pytest.mark.parametrize(("state", "causes", "serves"), SERVICE.values(), ids=SERVICE)
def test_in_service__of_each_state__is_only_a_node_that_gets_jobs(
    state: str, causes: str | None, serves: bool, request: pytest.FixtureRequest
) -> None:
    class Head(Session):
        def run(self, argv: tuple[str, ...], **_: Any) -> tuple[int, str, str]:
            ledger = "{}" if causes is None else f'{{"gpu01": {causes}}}'
            if argv[-1] == "--format=%a":
                return 0, "up\ndown\n" if "partition" in request.node.callspec.id else "up\nup\n", ""
            return 0, f"gpu01  {state}\n" if argv[0] == "sinfo" else ledger, ""

    head = SlurmController(Head(), "head1")  # type: ignore[arg-type]
    assert head.in_service() == ({"gpu01"} if serves else set())


@pytest.mark.proves("untrusted", "A metrics target that responds without end is not read to its end.")
def test_a_target_whose_answer_has_no_end_is_not_heard_to_its_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def talk() -> None:
            line, _ = server.accept()
            with line:
                line.recv(4096)
                line.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
                try:
                    while True:
                        line.sendall(b"metric 1\n" * 1000)
                except OSError:
                    pass

        talker = threading.Thread(target=talk, daemon=True)
        talker.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/metrics"
        prometheus = TARGETS.Prometheus("https://10.0.0.1:9090", "secret", ssl.get_default_verify_paths().cafile)
        assert TARGETS.complaint(prometheus, {"scrapeUrl": url}) == ""
        talker.join(5)
        assert not talker.is_alive()


@pytest.mark.proves("secrets", "A login for a metrics target is sent to the address of this target alone.")
def test_target__with_a_login__gets_it_and_no_other_does() -> None:
    asked: dict[int, str | None] = {}

    class Target(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked[self.server.server_address[1]] = self.headers["Authorization"]  # type: ignore[index]
            away = self.path == "/away"
            self.send_response(302 if away else 200 if self.headers["Authorization"] else 401)
            if away:
                self.send_header("Location", f"{urls[1]}/metrics")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), Target) as one,
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), Target) as other,
    ):
        for server in (one, other):
            threading.Thread(target=server.serve_forever, daemon=True).start()
        urls = [f"http://127.0.0.1:{server.server_port}" for server in (one, other)]
        authority = ssl.get_default_verify_paths().cafile
        prometheus = TARGETS.Prometheus("https://10.0.0.1:9090", "admin:a", authority, logins={urls[0]: "admin:b"})
        found = [TARGETS.complaint(prometheus, {"scrapeUrl": f"{url}/metrics"}) for url in urls]
        redirected = TARGETS.complaint(prometheus, {"scrapeUrl": f"{urls[0]}/away"})
        ports = (one.server_port, other.server_port)
        for server in (one, other):
            server.shutdown()
    assert found[0] == ""
    assert "401" in found[1]
    assert "401" in redirected
    assert asked == {ports[0]: "Basic YWRtaW46Yg==", ports[1]: None}
