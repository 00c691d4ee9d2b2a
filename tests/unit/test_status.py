"""Status: what Slurm and the nodes say, added up, and the exit status that a monitoring script relies on."""

import io
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import paramiko
import pytest

from clusterctl import hardware, status
from clusterctl.remote import Access
from clusterctl.report import Screen
from clusterctl.status import DEGRADED, HEAD_DOWN, HEALTHY, NodeStatus, Slurm, SlurmNode, Status

from .ssh_server import Server, host, inventory, known, listening, shell
from .test_hardware import node as recorded
from .test_remote import ed25519

# As Slurm 24.11.5 prints it, shortened.
NODES = """\
NodeName=gpu01 Arch=x86_64 CPUTot=2 Gres=gpu:a100:4(S:0-1) GresDrain=N/A GresUsed=gpu:a100:2(IDX:0,2) OS=Linux 6.12 #1 SMP State=MIXED Partitions=main
NodeName=gpu02 Arch=x86_64 Gres=gpu:t4:2 GresUsed=gpu:t4:0(IDX:N/A) State=IDLE+DRAIN Partitions=main Reason=ops: fan State=DOWN [root@2026-11-21T11:05:18] Comment=none
NodeName=gpu03 Gres=(null) GresUsed=gpu:0 State=DOWN* Reason=Not responding [slurm@2026-11-21T11:05:18]
"""  # noqa: E501 - a line of Slurm's is one line


def test_nodes_are_read() -> None:
    nodes = status.parse_nodes("a warning on the way\n" + NODES)
    assert list(nodes) == ["gpu01", "gpu02", "gpu03"]
    assert nodes["gpu01"] == SlurmNode(("MIXED",), "", {"a100": 4}, {"a100": 2})
    assert nodes["gpu01"].in_service
    assert nodes["gpu02"].state == ("IDLE", "DRAIN")
    assert not nodes["gpu02"].in_service
    assert nodes["gpu02"].reason.startswith("ops: fan")
    assert nodes["gpu03"].state == ("DOWN", "NOT_RESPONDING")
    assert nodes["gpu03"].reason == "Not responding"


@pytest.mark.parametrize("answer", ["", "{", "NodeName=", "State=IDLE", "NodeName=x " * 100_000])
def test_what_slurm_cannot_say_is_no_node(answer: str) -> None:
    assert status.parse_nodes(answer) == {}


@pytest.mark.parametrize(
    ("gres", "expected"),
    [
        ("", {}),
        ("(null)", {}),
        ("gpu:4", {"gpu": 4}),
        ("gpu:(null):2(IDX:0-1)", {"gpu": 2}),
        ("gpu:a100:4(S:0-1),gpu:t4:1(S:0),shard:8", {"a100": 4, "t4": 1}),
        ("gpu:rtx_6000_ada_generation:2(IDX:0,1)", {"rtx_6000_ada_generation": 2}),
        ("gpu:4090:2", {"4090": 2}),
        ("mps:gpu:3", {}),
    ],
)
def test_gpus_are_counted_by_type(gres: str, expected: dict[str, int]) -> None:
    assert status.count_gpus(gres) == expected


GOOD = {"munge": "active", "slurmctld": "active", "chrony": "active"}
HEAD, WORKER = NodeStatus("head1", True, "", False, GOOD), NodeStatus("gpu01", False, "", True, GOOD)
SLURM = Slurm({"gpu01": SlurmNode(("IDLE",), "", {"a100": 4}, {"a100": 1})}, {"RUNNING": 2})


def cluster(head: NodeStatus = HEAD, worker: NodeStatus = WORKER, slurm: Slurm = SLURM) -> Status:
    return Status("aurora", (head, worker), slurm, None)


def slurm(*state: str) -> Slurm:
    return Slurm({"gpu01": SlurmNode(state, "a reason", {"a100": 4}, {"a100": 1})})


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (cluster(), HEALTHY),
        (cluster(slurm=slurm("ALLOCATED", "COMPLETING")), HEALTHY),
        (cluster(slurm=slurm("IDLE", "PLANNED")), HEALTHY),
        (cluster(slurm=slurm("IDLE", "DRAIN")), DEGRADED),
        (cluster(slurm=slurm("DOWN", "NOT_RESPONDING")), DEGRADED),
        (cluster(slurm=slurm("IDLE", "INVALID_REG")), DEGRADED),
        (cluster(slurm=Slurm()), DEGRADED),
        (cluster(worker=replace(WORKER, problem="no answer")), DEGRADED),
        (cluster(worker=replace(WORKER, services={"slurmd": "failed"})), DEGRADED),
        (cluster(worker=replace(WORKER, differences=("GPUs: recorded 4, found 3",))), DEGRADED),
        (cluster(head=replace(HEAD, services={**GOOD, "chrony": "failed"})), DEGRADED),
        (cluster(head=replace(HEAD, services={**GOOD, "slurmctld": "not installed"})), HEAD_DOWN),
        (cluster(head=replace(HEAD, problem="no answer")), HEAD_DOWN),
        (cluster(slurm=Slurm(problem="Unable to contact slurm controller")), HEAD_DOWN),
    ],
)
def test_the_exit_status_tells_how_bad_it_is(one: Status, expected: int) -> None:
    assert one.exit_code == expected


def test_gpus_of_a_drained_node_are_not_idle() -> None:
    assert cluster().gpus() == {"a100": {"total": 4, "allocated": 1, "idle": 3, "out_of_service": 0}}
    drained = cluster(slurm=slurm("MIXED", "DRAIN")).gpus()
    assert drained == {"a100": {"total": 4, "allocated": 1, "idle": 0, "out_of_service": 3}}


def test_the_page_is_ascii_where_the_terminal_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LC_ALL", "LC_CTYPE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LANG", "C")
    page = io.StringIO()
    sick = replace(WORKER, services={"slurmd": "failed"}, differences=("GPUs: recorded 4, found 3",))
    status.show(Screen(page), cluster(worker=sick, slurm=slurm("DOWN")))
    text = page.getvalue()
    assert text.isascii()
    for expected in ("slurmd failed", "GPUs: recorded 4, found 3", "a reason", "down", "aurora: degraded"):
        assert expected in text


def test_the_last_run_is_the_newest(tmp_path: Path) -> None:
    assert status.last_run(tmp_path) is None
    runs = tmp_path / ".clusterctl/runs"
    for name, summary in (
        ("20261121T010000Z-bootstrap", {"verb": "bootstrap", "exit_code": 4, "error": "Failed on gpu01."}),
        ("20261121T020000Z-verify", {"verb": "verify", "exit_code": 0, "error": None}),
    ):
        (runs / name).mkdir(parents=True)
        (runs / name / "summary.json").write_text(json.dumps(summary))
    last = status.last_run(tmp_path)
    assert last == {"began": "20261121T020000Z", "verb": "verify", "exit_code": 0, "error": None}
    (runs / "20261121T030000Z-bootstrap").mkdir()
    killed: Any = status.last_run(tmp_path)
    assert (killed["verb"], killed["exit_code"]) == ("bootstrap", None)


def test_what_somebody_left_among_the_runs_is_neither_shown_nor_waited_for(tmp_path: Path) -> None:
    """A directory may come from somebody else, and a terminal obeys what it is shown."""
    runs = tmp_path / ".clusterctl/runs"
    (runs / "20991231T000000Z-\x1b]0;owned\x07").mkdir(parents=True)
    assert status.last_run(tmp_path) is None
    piped = runs / "20261121T010000Z-verify"
    piped.mkdir()
    os.mkfifo(piped / "summary.json")
    assert status.last_run(tmp_path) == {
        "began": "20261121T010000Z",
        "verb": "verify",
        "exit_code": None,
        "error": "it did not end, or goes on",
    }
    (piped / "summary.json").unlink()
    (piped / "summary.json").write_text(json.dumps({"verb": "\x1b[41mx", "exit_code": 3, "error": "\x1b[5m"}))
    page = io.StringIO()
    status.show(Screen(page), replace(cluster(), last_run=status.last_run(tmp_path)))
    assert "\x1b" not in page.getvalue()


def test_services_follow_groups() -> None:
    head = replace(host(22), groups=frozenset({"slurm_head", "monitoring"}))
    assert set(status.services_of(head)) >= {"munge", "slurmctld", "slurmdbd", "mariadb", "prometheus"}
    assert "slurmd" not in status.services_of(head)
    elsewhere = replace(head, variables={"slurm_head_database_host": "10.0.0.9"})
    assert "mariadb" not in status.services_of(elsewhere)
    assert {"munge", "slurmd"} <= set(status.services_of(host(22)))


def test_a_cluster_is_asked_over_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe runs for real; Slurm's two commands are answered by the server."""
    monkeypatch.setenv("HOME", str(tmp_path))

    def program(channel: paramiko.Channel, command: str) -> int:
        if command.startswith("scontrol"):
            channel.sendall(NODES.encode())
            return 0
        if command.startswith("squeue"):
            channel.sendall(b"RUNNING\nPENDING\nRUNNING\n")
            return 0
        return shell(channel, command.replace("/usr/bin/python3", sys.executable))

    server = Server([ed25519(tmp_path / "host")], ed25519(tmp_path / "id"), program)
    with listening(server.serve) as port:
        head = replace(host(port, tmp_path / "id", "head1", "slurm_head"), user="root")
        gone = replace(host(1, tmp_path / "id"), user="root")
        cluster = inventory(tmp_path, head, gone)
        (tmp_path / "known_hosts").write_text(known(port, *server.host_keys))
        hardware.save(tmp_path, recorded(name="head1"))
        found = status.collect(cluster, Access(tmp_path / "known_hosts"))
    answered, silent = found.nodes
    if answered.problem:  # who runs this test is not root, and status says so
        assert "is not root" in answered.problem
        assert found.exit_code == HEAD_DOWN
        return
    assert set(answered.services) >= {"munge", "slurmctld", "slurmdbd", "mariadb"}
    assert any(line.startswith("CPUs: recorded 32") for line in answered.differences)
    assert "refuses the connection" in silent.problem
    assert found.slurm is not None
    assert found.slurm.jobs == {"RUNNING": 2, "PENDING": 1}
    assert json.loads(json.dumps(found.as_dict()))["gpus"]["a100"]["idle"] == 2
