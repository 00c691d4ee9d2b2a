"""Status: what Slurm and the nodes say, added up, and the exit status that a monitoring script relies on."""

import io
import json
import os
import re
import ssl
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import paramiko
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterctl.commands import status, status_page, upgrade
from clusterctl.commands.status_report import DEGRADED, HEAD_DOWN, HEALTHY, UNRECORDED, NodeStatus, Status
from clusterctl.nodes.contact import Alert, Alerts, Drift, Item
from clusterctl.nodes.probe import common as probe_common
from clusterctl.nodes.probe import prometheus as probe_prometheus
from clusterctl.nodes.probe import services as probe_services
from clusterctl.nodes.remote import Access
from clusterctl.run import pruning
from clusterctl.run.runs import Run
from clusterctl.slurm import state as slurm_state
from clusterctl.slurm.state import Slurm, SlurmNode
from clusterctl.ui.report import Screen
from clusterctl.ui.screen import at_commas
from clusterctl.util import paths
from clusterctl.workspace import certificates, hardware

from .ssh_server import Server, ed25519, host, inventory, known, listening, shell
from .test_hardware import node as recorded
from .test_role_plugins import plugin

TARGETS = plugin("modules/prometheus_targets")

# As Slurm 24.11.5 prints it, shortened.
NODES = """\
NodeName=gpu01 Arch=x86_64 CPUTot=2 Gres=gpu:a100:4(S:0-1) GresDrain=N/A GresUsed=gpu:a100:2(IDX:0,2) OS=Linux 6.12 #1 SMP State=MIXED Partitions=main
NodeName=gpu02 Arch=x86_64 Gres=gpu:t4:2 GresUsed=gpu:t4:0(IDX:N/A) State=IDLE+DRAIN Partitions=main Reason=ops: fan State=DOWN [root@2026-11-21T11:05:18] Comment=none
NodeName=gpu03 Gres=(null) GresUsed=gpu:0 State=DOWN* Reason=Not responding [slurm@2026-11-21T11:05:18]
"""  # noqa: E501 - a line of Slurm's is one line


def test_nodes_are_read() -> None:
    nodes = slurm_state.parse_nodes("a warning on the way\n" + NODES)
    assert list(nodes) == ["gpu01", "gpu02", "gpu03"]
    assert nodes["gpu01"] == SlurmNode(("MIXED",), "", {"a100": 4}, {"a100": 2})
    assert nodes["gpu01"].in_service
    assert nodes["gpu02"].state == ("IDLE", "DRAIN")
    assert not nodes["gpu02"].in_service
    assert nodes["gpu02"].reason.startswith("ops: fan")
    assert nodes["gpu02"].by == "root"
    assert nodes["gpu03"].state == ("DOWN", "NOT_RESPONDING")
    assert (nodes["gpu03"].reason, nodes["gpu03"].by) == ("Not responding", "slurm")


def test_a_node_does_not_choose_its_state_by_what_it_says_of_itself() -> None:
    said = NODES.replace("OS=Linux 6.12", "OS=Linux State=DOWN").replace("State=IDLE+DRAIN", "State=IDLE", 1)
    assert slurm_state.parse_nodes(said)["gpu01"].state == ("DOWN",), "scontrol alone does not tell them apart"
    states = slurm_state.parse_states(
        "gpu01   mixed  \ngpu02  idle+drain\ngpu02  idle+drain\ngpu03 down*\na warning on the way\n"
    )
    assert states == {"gpu01": ("MIXED",), "gpu02": ("IDLE", "DRAIN"), "gpu03": ("DOWN", "NOT_RESPONDING")}
    nodes = slurm_state.parse_nodes(said, states)
    assert {name: node.state for name, node in nodes.items()} == states


@pytest.mark.parametrize("answer", ["", "{", "NodeName=", "State=IDLE", "NodeName=x " * 100_000])
def test_what_slurm_cannot_say_is_no_node(answer: str) -> None:
    assert slurm_state.parse_nodes(answer) == {}


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
    assert slurm_state.count_gpus(gres) == expected


@pytest.mark.proves("status", "`status` distinguishes drains by an operator, by Slurm and by clusterctl.")
@pytest.mark.parametrize(
    ("state", "reason", "by", "causes", "told"),
    [
        ("IDLE", "", "", {}, []),
        ("IDLE+DRAIN", "fan", "root", {}, ["drained by an operator (root): fan"]),
        ("IDLE+DRAIN", "Low RealMemory", "slurm", {}, ["drained by Slurm itself: Low RealMemory"]),
        ("IDLE+DRAIN", "Kill task failed", "root", {}, ["drained by Slurm itself: Kill task failed"]),
        ("IDLE+DRAIN", "SlurmdSpoolDir is full", "root", {}, ["drained by Slurm itself: SlurmdSpoolDir is full"]),
        ("IDLE+DRAIN", "Kill task failed", "ada", {}, ["drained by an operator (ada): Kill task failed"]),
        ("IDLE+DRAIN", "clusterctl: bootstrap: x", "root", {"bootstrap": "x"}, ["drained by bootstrap: x"]),
        (
            "MIXED+DRAIN",
            "fan",
            "root",
            {"health": "y", "bootstrap": "x"},
            ["drained by an operator (root): fan", "drained by bootstrap: x", "drained by health: y"],
        ),
        (
            "IDLE+DRAIN",
            "clusterctl: bootstrap: x",
            "root",
            {},
            ["drained, but the drain ledger has no cause: clusterctl: bootstrap: x"],
        ),
        ("DOWN+NOT_RESPONDING", "Not responding", "slurm", {}, ["out of service for Slurm: Not responding"]),
        ("DOWN", "", "", {}, ["out of service for Slurm: down"]),
        ("IDLE", "", "", {"health": "y"}, ["in service, though the drain ledger has health: y"]),
    ],
)
def test_who_keeps_a_node_out_of_service(
    state: str, reason: str, by: str, causes: dict[str, str], told: list[str]
) -> None:
    assert SlurmNode(tuple(state.split("+")), reason, {}, {}, by, causes).why() == told


def test_the_drain_ledger_is_data() -> None:
    assert slurm_state.parse_ledger('{"gpu01": {"boot\\u001b[2Jstrap": "did not\\ncomplete"}, "gpu02": 3}') == {
        "gpu01": {"boot[2Jstrap": "did notcomplete"}
    }
    for answer in ("", "[]", "{", "[" * 100_000):
        assert slurm_state.parse_ledger(answer) == {}


GOOD = {"munge": "active", "slurmctld": "active", "chrony": "active"}
HEAD, WORKER = NodeStatus("head1", True, "", False, GOOD), NodeStatus("gpu01", False, "", True, GOOD)
SLURM = Slurm({"gpu01": SlurmNode(("IDLE",), "", {"a100": 4}, {"a100": 1})}, {"RUNNING": 2})


def cluster(head: NodeStatus = HEAD, worker: NodeStatus = WORKER, slurm: Slurm = SLURM) -> Status:
    return Status("aurora", (head, worker), slurm, None)


def drift(*items: tuple[str, str, str, str], **other: Any) -> Drift:
    return replace(Drift(None, tuple(Item(*item) for item in items), 0, {}), **other)


EDITED = ("base", "file", "/etc/hosts", "edited")
FIRING = Alert("NodeDown", "critical", "gpu01", "2026-11-21T18:00:00.123456789Z", "gpu01 does not answer")


def slurm(*state: str) -> Slurm:
    return Slurm({"gpu01": SlurmNode(state, "a reason", {"a100": 4}, {"a100": 1})})


@pytest.mark.proves("status", "The exit code distinguishes healthy, degraded and a head that is down.")
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
        (cluster(worker=replace(WORKER, drift=drift())), HEALTHY),
        (cluster(worker=replace(WORKER, drift=drift(EDITED))), DEGRADED),
        (cluster(worker=replace(WORKER, drift=drift(error="the record cannot be read"))), DEGRADED),
        (replace(cluster(), alerts=Alerts()), HEALTHY),
        (replace(cluster(), alerts=Alerts(firing=(replace(FIRING, severity="warning"),))), HEALTHY),
        (replace(cluster(), alerts=Alerts(firing=(FIRING,))), DEGRADED),
        (replace(cluster(), alerts=Alerts("Prometheus does not answer")), DEGRADED),
        (replace(cluster(), secrets_problem="there is no vault password"), HEALTHY),
        (replace(cluster(), leaving={"gpu09": "clusterctl remove-node aurora gpu09"}), DEGRADED),
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


NOW = datetime(2026, 11, 21, 18, 30, tzinfo=UTC)


def page(one: Status, width: int | None = None) -> str:
    """What is shown of a cluster, to a terminal of a width or to no terminal."""
    text = io.StringIO()
    screen = Screen(text)
    if width:
        screen._force_terminal, screen.width, screen.height, screen.no_color = True, width, 50, True
    status_page.show(screen, one, NOW)
    return re.sub(r"\x1b\[[0-9;]*m", "", text.getvalue())


GIVEN = "./aurora/inventory.yaml"


def out_of_service(state: str, reason: str = "a reason", by: str = "root", **causes: str) -> Status:
    """Three workers that are out of Slurm's service alike."""
    names = ("gpu01", "gpu02", "gpu03")
    node = SlurmNode(tuple(state.split("+")), reason, {}, {}, by, causes)
    workers = [replace(WORKER, name=name) for name in names]
    return replace(cluster(), nodes=(HEAD, *workers), slurm=Slurm(dict.fromkeys(names, node)), given=GIVEN)


def our_causes() -> set[str]:
    """The causes under which our own programs drain nodes, as they have them."""
    found = {upgrade.What().playbook, upgrade.What(system=True).playbook, "reboot"}
    for pattern, paths_ in (
        (r"Drain\(\s*\"([^\"]+)\"", paths.content().glob("clusterctl/*/*.py")),
        (r"slurm-drain, ([\w-]+),", paths.content().glob("roles/*/tasks/*.yml")),
        (r"\[\"(\w+)\"\] if reason", paths.content().glob("roles/slurm_head/files/slurm-health")),
        (r"(?m)^CAUSE = \"(\w+)\"", paths.content().glob("roles/alert_drain/files/alert-drain")),
        (r"verify_cause: ([\w-]+)", paths.content().glob("roles/verify/defaults/main.yml")),
    ):
        causes = {cause for path in paths_ for cause in re.findall(pattern, path.read_text())}
        assert causes, pattern
        found |= causes
    return found


NODES_OF_IT = "gpu{01..03}"
COMMANDS = {
    "alert": f"clusterctl health {GIVEN} {NODES_OF_IT} --diagnose",
    "bootstrap": f"clusterctl bootstrap {GIVEN}",
    "health": f"clusterctl health {GIVEN} {NODES_OF_IT} --diagnose",
    "reboot": f"clusterctl reboot {GIVEN} {NODES_OF_IT}",
    "remove-node": f"clusterctl remove-node {GIVEN} {NODES_OF_IT}",
    "upgrade": f"clusterctl upgrade {GIVEN}",
    "upgrade-os": f"clusterctl upgrade {GIVEN} --os",
}
RESUME = "on the head: sudo scontrol update nodename='gpu[01-03]' state=resume"


@pytest.mark.proves("status", "Each cause of a drain is shown with the command that ends it.")
@pytest.mark.parametrize("cause", sorted(our_causes()))
def test_page__cause_of_a_drain__has_its_command(cause: str) -> None:
    drained = out_of_service("IDLE+DRAIN", "clusterctl: x", **{cause: "XID 79"})
    assert f"gpu[01-03]: drained by {cause}: XID 79 ({COMMANDS[cause]})\n" in page(drained)
    back = out_of_service("IDLE", "", **{cause: "XID 79"})
    assert f"(on the head: sudo /usr/local/sbin/slurm-drain {cause} --in gpu01,gpu02,gpu03)\n" in page(back)


@pytest.mark.proves("status", "Each other fault is shown with the command that repairs it.")
@pytest.mark.parametrize(
    ("one", "told"),
    [
        (out_of_service("IDLE+DRAIN"), f"drained by an operator (root): a reason ({RESUME})"),
        (out_of_service("IDLE+DRAIN", by="slurm"), f"drained by Slurm itself: a reason ({RESUME})"),
        (out_of_service("IDLE+DRAIN", "clusterctl: x"), f"drain ledger has no cause: clusterctl: x ({RESUME})"),
        (
            out_of_service("IDLE+DRAIN", "clusterctl: x", mine="x"),
            "(on the head: sudo /usr/local/sbin/slurm-drain mine --in gpu01,",
        ),
        (out_of_service("IDLE+DRAIN", "clusterctl: x", **{"{x}; id": "x"}), f"drained by {{x}}; id: x ({RESUME})\n"),
        (out_of_service("DOWN+NOT_RESPONDING"), f"a reason ({COMMANDS['bootstrap']})"),
        (out_of_service("IDLE+INVALID_REG"), f"a reason ({COMMANDS['bootstrap']})"),
        (out_of_service("IDLE+FAIL"), f"a reason ({RESUME})"),
        (out_of_service("MAINTENANCE"), "out of service for Slurm: a reason\n"),
        (out_of_service("DOWN+REBOOT_ISSUED"), "out of service for Slurm: a reason\n"),
        (out_of_service("IDLE+MAINTENANCE"), "out of service for Slurm: a reason\n"),
        (out_of_service("FUTURE"), "out of service for Slurm: a reason\n"),
        (cluster(slurm=Slurm()), "gpu01: not known to Slurm (clusterctl bootstrap INVENTORY)"),
        (cluster(worker=replace(WORKER, drift=drift(EDITED))), "/etc/hosts: edited (clusterctl bootstrap INVENTORY)"),
        (
            replace(cluster(worker=replace(WORKER, differences=("GPUs: 3",))), given="au rora/x.yaml"),
            "GPUs: 3 (if that is right: rm 'au rora'/hardware/gpu01.json && clusterctl bootstrap 'au rora/x.yaml')",
        ),
        (cluster(worker=replace(WORKER, differences=(UNRECORDED,))), "(clusterctl bootstrap INVENTORY)"),
    ],
)
def test_page__fault__has_its_remedy(one: Status, told: str) -> None:
    assert told in page(one)


@given(st.lists(st.builds("{}{:02}".format, st.sampled_from(["gpu", "a-b"]), st.integers(0, 12)), max_size=16))
@settings(max_examples=50, deadline=None)
def test_braces__of_any_names__are_those_names_to_a_shell(names: list[str]) -> None:
    names = sorted(set(names))
    done = subprocess.run(
        ["bash", "-c", f"echo {status_page.braces(names)}"], capture_output=True, text=True, check=True
    )
    assert sorted(done.stdout.split()) == sorted(names)


UNBUILT = "not built yet by a run from this directory: clusterctl bootstrap INVENTORY"


@pytest.mark.proves("status", "A head that does not serve is `not built yet` until a bootstrap went well.")
@pytest.mark.parametrize(
    ("runs_", "built"),
    [
        ([], False),
        ([("plan", {"exit_code": 10, "planned": "bootstrap"})], False),
        ([("plan", {"exit_code": 3, "planned": "bootstrap"})], False),
        ([("bootstrap", {"exit_code": 3})], False),
        ([("bootstrap", {"exit_code": 5})], False),
        ([("bootstrap", {"exit_code": 0, "check": True})], False),
        ([("bootstrap", {"exit_code": 4})], True),
        ([("restore", {"exit_code": 0})], True),
        ([("bootstrap", {"exit_code": 0}), ("plan", {"exit_code": 3})], True),
    ],
)
def test_page__head_is_down__was_it_ever_built(
    tmp_path: Path, runs_: list[tuple[str, dict[str, Any]]], built: bool
) -> None:
    for second, (verb, summary) in enumerate(runs_):
        folder = tmp_path / f".clusterctl/runs/20261121T18000{second}Z-{verb}"
        folder.mkdir(parents=True)
        (folder / "summary.json").write_text(json.dumps(summary))
    head = replace(host(1, tmp_path / "id", "head1", "slurm_head"), user="root")
    found = status.collect(inventory(tmp_path, head), Access(tmp_path / "known_hosts"))
    assert found.exit_code == HEAD_DOWN
    assert (UNBUILT in page(found)) is not built
    assert ("the head or its scheduler is down" in page(found)) is built
    assert ("Last run" in page(found)) is bool(runs_)


def test_page__last_run_failed_at_length__keeps_its_command() -> None:
    """What helps is at the end of the text."""
    last = Run(
        "20261121T180000Z-bootstrap",
        "bootstrap",
        NOW,
        exit_code=5,
        error="gpu01 failed; " * 60 + "on the head: sudo slurm-drain",
    )
    assert "sudo slurm-drain" in " ".join(page(replace(cluster(slurm=Slurm(problem="")), last_run=last)).split())


def test_page__first_run_is_under_way__asks_for_no_other() -> None:
    one = replace(cluster(slurm=Slurm(problem="no answer")), built=False)
    run = Run("20261121T180000Z-bootstrap", "bootstrap", NOW, under_way=True)
    assert UNBUILT in page(one)
    assert UNBUILT not in page(replace(one, last_run=run))


@pytest.mark.proves("status", "A node without contact is listed with what helps.")
def test_collect__no_contact__says_what_helps(tmp_path: Path, stranger: Server) -> None:
    unknown = replace(host(stranger.port, tmp_path / "id", "head1", "slurm_head"), user="root")
    refusing = replace(host(1, tmp_path / "id"), user="root")
    access = Access(tmp_path / "known_hosts", given=Path("au rora"))
    nodes = {node.name: node.problem for node in status.collect(inventory(tmp_path, unknown, refusing), access).nodes}
    assert nodes["head1"].endswith("(clusterctl discover 'au rora')")
    assert nodes["gpu01"].endswith("(check that sshd runs and listens on this port)")


def test_ask_slurm__no_slurm_conf__is_said_in_words() -> None:
    """As Slurm 24.11.5 prints it."""
    said = "scontrol: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host\nscontrol: error: fetch_config"

    class Session:
        def run(self, *_: object, **__: object) -> tuple[int, str, str]:
            return 1, "", said

    assert slurm_state.ask_slurm(Session()).problem == "Slurm is not set up on the head: no slurm.conf"  # type: ignore[arg-type]


@pytest.mark.proves("status", "It says whether the workers have the head's homes.")
@pytest.mark.parametrize(
    ("head", "worker", "told"),
    [
        ({"/home/a": 7}, {"/home/a": 7}, "Homes     shared"),
        ({"/home/a": 7, "/home/b": 7, "/home/c": 7}, {"/home/a": 7, "/home/b": 7, "/home/c": 9}, "Homes     shared"),
        (
            {"/home/a": 7},
            {"/home/a": 8},
            "Homes     not shared: files that a job writes to its home directory stay on gpu01",
        ),
        ({"/home/a": 7 * 10**9 + 5}, {"/home/a": 7 * 10**9}, "Homes     shared"),
        (
            {"/home/a": 7 * 10**9 + 5},
            {"/home/a": 7 * 10**9 + 6},
            "Homes     not shared: files that a job writes to its home directory",
        ),
        ({"/home/a": 7}, {}, ""),
        ({}, {"/home/a": 7}, ""),
    ],
)
def test_page__homes_of_head_and_worker__are_compared(head: dict[str, int], worker: dict[str, int], told: str) -> None:
    text = page(cluster(head=replace(HEAD, homes=head), worker=replace(WORKER, homes=worker)))
    assert told in text
    assert ("Homes" in text) is bool(told)


def test_homes__of_a_node__have_the_nanoseconds(tmp_path: Path) -> None:
    """Local homes are made on all nodes within the same second."""
    there = tmp_path / "al ice"
    there.mkdir()
    os.utime(there, ns=(0, 1_700_000_000_023_456_789))
    assert probe_services.homes([str(there), str(tmp_path / "gone")]) == {str(there): 1_700_000_000_023_456_789}


def test_the_page_is_ascii_where_the_terminal_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LC_ALL", "LC_CTYPE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LANG", "C")
    sick = replace(WORKER, services={"slurmd": "failed"}, differences=("GPUs: recorded 4, found 3",))
    text = page(cluster(worker=sick, slurm=slurm("DOWN")))
    assert text.isascii()
    for expected in ("slurmd failed", "GPUs: recorded 4, found 3", "a reason", "down", "aurora: degraded"):
        assert expected in text


def test_drift_is_told_once_by_the_role_that_owns_it() -> None:
    node = replace(
        WORKER,
        drift=drift(
            ("packages", "package", "slurmd", "removed"),
            ("slurm_worker", "package", "slurmd", "removed"),
            ("packages", "package", "tmux", "removed"),
            ("slurm_head_database", "unit", "mariadb.service", "not running"),
            ("sources", "file", "/etc/apt/apt.conf.d/90x", "edited"),
            ("munge", "pending", "package:munge", "a run ended before this change was applied"),
        ),
    )
    assert node.drifted == [
        Item("slurm_worker", "package", "slurmd", "removed"),
        Item("packages", "package", "tmux", "removed"),
        Item("slurm_head", "unit", "mariadb.service", "not running"),
        Item("base", "file", "/etc/apt/apt.conf.d/90x", "edited"),
        Item("munge", "pending", "package:munge", "a run ended before this change was applied"),
    ]
    text = page(cluster(worker=node))
    assert "gpu01: munge: package:munge: a run ended" in text
    assert "gpu01: base: file /etc/apt/apt.conf.d/90x: edited" in text


def test_unused_roles__of_a_node__are_a_note_and_no_fault() -> None:
    found = cluster(worker=replace(WORKER, unused=("containers", "podman")))
    assert found.exit_code == HEALTHY
    note = "gpu01: installed, but in no group of the host: containers, podman (to uninstall: clusterctl bootstrap"
    assert note in page(found)
    assert found.as_dict()["nodes"][1]["unused"] == ("containers", "podman")


def test_every_scope_is_known_as_some_roles() -> None:
    """What `node_state` records under a name of its own must still be told by the role's name."""
    own = {}
    for path in sorted(paths.content().glob("roles/*/tasks/*.yml")):
        for task in yaml.safe_load(path.read_bytes()) or []:
            # A template chooses one of the scopes that remove.yml names.
            if "name" in (arguments := task.get("node_state") or {}) and "{{" not in arguments["name"]:
                own[arguments["name"]] = path.parent.parent.name
    roles = {path.name for path in paths.content().glob("roles/*")}
    assert {scope: role for scope, role in own.items() if scope not in roles} == pruning.ROLE_OF


@pytest.mark.proves("status", "A hundred nodes fit on a page of fewer than 20 lines.")
def test_a_hundred_nodes_are_a_page() -> None:
    """Nodes that are alike share a line, and so do the notes that are true of many."""
    names = [f"gpu{n:03}" for n in range(1, 101)]
    edited = drift(EDITED, versions={"slurmd": "24.11.5-5"})
    nodes = [replace(WORKER, name=name, release="debian 13", drift=edited) for name in names]
    nodes[49] = replace(nodes[49], drift=drift(EDITED, versions={"slurmd": "24.11.5-4+deb13u1"}))
    nodes[50] = replace(nodes[50], release="ubuntu 24.04", drift=drift(EDITED, versions={"slurmd": "26.05.5"}))
    nodes[99] = replace(WORKER, name=names[99], problem="no answer from 10.0.0.100 port 22 within 6 s")
    known = Slurm({name: SlurmNode(("IDLE",), "", {"a100": 4}, {"a100": 0}) for name in names})
    for width in (80, 120, None):
        text = page(Status("aurora", (HEAD, *nodes), known, None), width)
        assert len(text.splitlines()) < 20, text
        assert all(len(line) <= width for line in text.splitlines()) if width else True
        joined = " ".join(text.split())
        assert "gpu[001-099]" in joined
        assert "base: file /etc/hosts: edited" in joined
        assert "gpu100" in joined
        assert "slurmd 24.11.5-5 on 97 nodes; 24.11.5-4+deb13u1 on gpu050" in joined
        assert "26.05.5" not in joined, "another release may have another version"


@pytest.mark.proves("status", "Packages with known holes are named, with their nodes.")
def test_unsafe_packages__of_some_nodes__are_named() -> None:
    old = replace(WORKER, release="debian 13", drift=drift(versions={"munge": "0.5.16-1"}), driver="550.144.03")
    known = Status("aurora", (HEAD, old, replace(old, name="gpu02")), None, None)
    text = " ".join(page(known, 200).split())
    assert "munge 0.5.16-1 lets any user of the node read the munge key (CVE-2026-25506)" in text
    assert "NVIDIA driver 550.144.03 may let any user of a GPU become root (CVE-2025-23244)" in text
    assert known.as_dict()["unsafe"] == {hole: [old.name, "gpu02"] for hole in known.unsafe()}


@pytest.mark.proves("status", "Packages that are not known to be fixed, and an old container toolkit, are named.")
def test_unsafe_packages__of_other_systems__are_named_once() -> None:
    versions = {"munge": "0.5.13-13.el9", "nvidia-container-toolkit-base": "1.17.8-1"}
    old = replace(WORKER, release="rocky 9.6", drift=drift(versions=versions))
    text = " ".join(page(Status("aurora", (HEAD, old, replace(old, name="gpu02")), None, None), 200).split())
    assert text.count("munge 0.5.13-13.el9 is not known to be fixed: before 0.5.18 it lets any user") == 1
    assert text.count("nvidia-container-toolkit-base 1.17.8-1 lets a container escape to its host (CVE-2026-24260") == 1


@pytest.mark.proves("status", "What a node's own security updates moved up is no drift.")
@pytest.mark.parametrize(
    ("updated", "old", "new", "healthy"),
    [
        (60, "24.11.5-4", "24.11.5-4+deb13u1", True),
        (60, "24.11.5-4+deb13u1", "24.11.5-4", False),
        (None, "24.11.5-4", "24.11.5-4+deb13u1", False),
        (60, "24.11.5-4", "", False),
    ],
)
def test_drift__of_a_package_that_moved_up__is_none(updated: int | None, old: str, new: str, healthy: bool) -> None:
    moved = Drift(None, (Item("slurm_worker", "package", "slurmd", "", old, new),), 0, {})
    assert replace(WORKER, drift=moved, updated=updated).is_healthy is healthy


@pytest.mark.proves("status", "Nodes whose own security updates are late are named.")
def test_security_updates__late__are_told() -> None:
    ages = (None, 86400, 5 * 86400, 5 * 86401)
    nodes = [replace(WORKER, name=f"gpu{n:02}", updated=age) for n, age in enumerate(ages)]
    text = " ".join(page(Status("aurora", (HEAD, *nodes), None, None), 200).split())
    assert "gpu02, gpu03 no security updates for 5 days" in text
    assert text.count("no security updates") == 1


@given(st.text(alphabet="gpu01,[] ", max_size=80), st.integers(min_value=4, max_value=30))
def test_names_are_broken_after_commas_alone(text: str, width: int) -> None:
    lines = at_commas(text, width).splitlines()
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert all(line.endswith(",") for line in lines[:-1])
    assert all(len(line) <= width or "," not in line[:-1] for line in lines)


def test_notes_without_end_are_cut() -> None:
    many = drift(*(("base", "file", f"/etc/{n}", "edited") for n in range(300)), more=7)
    text = page(cluster(worker=replace(WORKER, drift=many)), 100)
    assert "and 261 more lines; --output json has all" in text
    assert len(text.splitlines()) < 60


@pytest.mark.proves("status", "`status` shows firing alerts with their nodes and since when.")
def test_alerts_are_told_with_node_and_since_when() -> None:
    second = replace(FIRING, node="gpu02", since="2026-11-21T17:00:00Z", summary="gpu02 does not answer")
    drained = Alert("SlurmNodeDrained", "warning", "gpu02", "nonsense", "")
    text = page(replace(cluster(), alerts=Alerts(firing=(FIRING, second, drained), more=2)), 120)
    joined = " ".join(text.split())
    assert "critical NodeDown on gpu01, gpu02 since 2026-11-21 17:00 UTC (90 min): gpu01 does not answer" in joined
    assert "warning SlurmNodeDrained on gpu02" in joined
    assert "and 2 more alerts" in joined


@pytest.mark.proves("status", "A page of `--watch` is cut to the window.")
def test_a_page_that_is_drawn_again_fits_the_window() -> None:
    text = io.StringIO()
    screen = Screen(text)
    screen.width, screen.height = 60, 8
    many = drift(*(("base", "file", f"/etc/{n}", "edited") for n in range(30)))
    for _ in range(2):
        status_page.draw(screen, cluster(worker=replace(WORKER, drift=many)), 5, NOW)
    _, first, second = text.getvalue().split("\x1b[H")
    assert first == second
    assert first.count("\n") == 7, "a line more would scroll"
    assert "more lines; the window is too small" in first
    assert first.endswith("\x1b[J")


SEED, OTHERS = "of this cluster", "of another cluster"


@pytest.fixture
def options(tmp_path: Path) -> dict[str, str]:
    """What the probe is asked about Prometheus, but for its URL."""
    authority = tmp_path / "authority.pem"
    authority.write_text(certificates.authority(SEED, "aurora"))
    secret = tmp_path / "own-password"
    secret.write_text("s3cret\n")
    return {"user": "admin", "password_file": str(secret), "authority": str(authority)}


@contextmanager
def prometheus(answer: bytes, code: int = 200, seed: str = SEED) -> Iterator[tuple[str, list[str]]]:
    """A web server that gives one answer; yields its URL, and what logins and paths it was asked for.

    Its certificate is of the authority of a seed; without one it speaks plain HTTP.
    """
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            form = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
            asked.append(f"{self.headers['Authorization']} {self.path} {form}".rstrip())
            self.send_response(code)
            self.end_headers()
            self.wfile.write(answer)

        do_POST = do_GET  # noqa: N815 - http.server's name

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server, tempfile.NamedTemporaryFile("w+") as file:
        if seed:
            issued = certificates.issue(seed, "aurora", "head1", ["127.0.0.1"])
            file.write(issued.key + issued.certificate)
            file.flush()
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(file.name)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"https://127.0.0.1:{server.server_port}", asked
        server.shutdown()


def alert(name: str, severity: str, state: str = "firing", **labels: str) -> dict[str, Any]:
    given = {"alertname": name, "severity": severity, **labels}
    return {"labels": given, "annotations": {"summary": "x"}, "state": state, "activeAt": "2026-11-21T18:00:00Z"}


def test_prometheus_is_asked_with_the_password_that_root_may_read(options: dict[str, str]) -> None:
    alerts = [alert("B", "warning", instance="gpu01", node="gpu02"), alert("A", "critical", instance="gpu01")]
    alerts += [alert("C", "info", state="pending"), *[alert("D", "info")] * probe_common.MAX_ALERTS]
    alerts += [alert("Watchdog", "none")]
    with prometheus(json.dumps({"data": {"alerts": alerts}}).encode()) as (url, asked):
        found = probe_prometheus.alerts({"url": url, **options})
    assert asked == ["Basic YWRtaW46czNjcmV0 /api/v1/alerts"]
    assert (found["error"], found["more"], len(found["firing"])) == (None, 2, probe_common.MAX_ALERTS)
    assert [(one["name"], one["node"]) for one in found["firing"][:2]] == [("A", "gpu01"), ("B", "gpu02")]


@pytest.mark.proves("status", "A Prometheus that gives no alerts is reported with the cause.")
@pytest.mark.parametrize(
    ("answer", "code", "reason"),
    [(b"", 401, "HTTP 401"), (b"Service Unavailable", 503, "HTTP 503"), (b"[]", 200, "answer cannot be read")],
)
def test_alerts__no_valid_answer__is_an_error(options: dict[str, str], answer: bytes, code: int, reason: str) -> None:
    with prometheus(answer, code) as (url, _):
        assert reason in probe_prometheus.alerts({"url": url, **options})["error"]
        for name in ("password_file", "authority"):
            missing = {"url": url, **options, name: options[name] + ".missing"}
            assert probe_prometheus.alerts(missing)["error"] == "Prometheus is not set up yet"
    assert "Connection refused" in probe_prometheus.alerts({"url": "https://127.0.0.1:1", **options})["error"]


@pytest.mark.proves("secrets", "Prometheus's password is sent to nobody without a certificate of the cluster's.")
@pytest.mark.parametrize(("seed", "reason"), [(OTHERS, "certificate verify failed"), ("", "SSL")])
def test_alerts__certificate_of_another__no_password_is_sent(options: dict[str, str], seed: str, reason: str) -> None:
    with prometheus(b"{}", seed=seed) as (url, asked):
        assert reason in probe_prometheus.alerts({"url": url, **options})["error"]
        proof = TARGETS.Prometheus(url, "bG9naW4=", options["authority"])
        with pytest.raises(TARGETS.SilentError, match=reason):
            TARGETS.look(proof, set())
    assert asked == []


def test_a_cluster_is_asked_over_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe runs for real; Slurm's commands are answered by the server."""
    monkeypatch.setenv("HOME", str(tmp_path))

    def program(channel: paramiko.Channel, command: str) -> int:
        if command.startswith("scontrol"):
            channel.sendall(NODES.encode())
            return 0
        if command.startswith("sinfo"):
            channel.sendall(b"gpu01  mixed\ngpu02  idle+drain\ngpu03  down+not_responding\n")
            return 0
        if command.startswith("squeue"):
            channel.sendall(b"RUNNING\nPENDING\nRUNNING\n")
            return 0
        if command.startswith("/usr/local/sbin/slurm-drain"):
            channel.sendall(b'{"gpu02": {"bootstrap": "did not complete"}}')
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
    assert answered.drift == Drift(None, (), 0, {}), "node_state's own modules ran there, and found no record"
    assert found.slurm is not None
    assert found.slurm.nodes["gpu02"].causes == {"bootstrap": "did not complete"}
    assert found.slurm.jobs == {"RUNNING": 2, "PENDING": 1}
    document = json.loads(json.dumps(found.as_dict()))
    assert (document["gpus"]["a100"]["idle"], document["health"]) == (2, "head down")
