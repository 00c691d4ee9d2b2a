"""Slurm's power saving: the programs that switch nodes, with a real IPMI client and a simulated BMC; their settings."""

import json
import os
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from ansible.errors import AnsibleFilterError

from clusterctl.commands import status
from clusterctl.commands.status_report import NodeStatus, Status
from clusterctl.inventory.model import Host
from clusterctl.nodes.contact import Answer
from clusterctl.nodes.session import ContactError, Failure
from clusterctl.run import sleeping
from clusterctl.slurm.client import SlurmController
from clusterctl.slurm.state import Slurm, SlurmNode, sleep_of
from clusterctl.util import paths
from tests import programs
from tests.labs import REPOSITORY
from tests.unit import head_programs
from tests.unit.ssh_server import host
from tests.unit.test_role_plugins import plugin

POWER = plugin("filter/slurm_power")
PROGRAMS = REPOSITORY / ".cache/programs"
MAC = "02:00:5e:10:00:01"


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The program of the head, whose lines for the journal are kept in `said`."""
    found = head_programs.load("slurm-power")
    monkeypatch.setattr(found, "said", [], raising=False)
    monkeypatch.setattr(found, "log", found.said.append)
    monkeypatch.setattr(found, "POLL", 0.1)
    return found


def executable(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def run(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, hostlist: str, **more: Any
) -> int:
    """Run the program by a name, as Slurm does. Its settings have two nodes with a command that stands in for BMCs.

    `scontrol` stands in for Slurm's, and divides names at commas only.
    """
    nodes: dict[str, dict[str, str]] = {"gpu01": {}, "gpu02": {}}
    settings = {"command": "", "command_seconds": 5, "soft_seconds": 1, "resume_seconds": 900, "nodes": nodes, **more}
    (tmp_path / "power.json").write_text(json.dumps(settings))
    monkeypatch.setattr(program, "CONFIGURATION", str(tmp_path / "power.json"))
    executable(tmp_path / "bin/scontrol", 'test "$1 $2" = "show hostnames" && echo "$3" | tr , "\\n"')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr("sys.argv", [f"/usr/local/sbin/{name}", hostlist])
    with pytest.raises(SystemExit) as end:
        program.main()
    return int(end.value.code or 0)


SITE = """echo "$1 $2" >> {}/done
test "$2" != gpu01 || {{ echo broken; exit 3; }}"""


@pytest.mark.proves("power", "A node that cannot be switched does not stop the others; unknown names are refused.")
def test_power__one_node_fails__others_are_switched(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    command = executable(tmp_path / "site", SITE.format(tmp_path))
    given = "gpu01,gpu02,--help,evil"
    assert run(program, monkeypatch, tmp_path, "slurm-suspend", given, command=str(command)) == 1
    assert sorted((tmp_path / "done").read_text().splitlines()) == ["suspend gpu01", "suspend gpu02"]
    said = "\n".join(program.said)
    assert f"gpu01: suspend: {command}: exit code 3: broken" in said
    assert f"gpu02: {command} suspend succeeded" in said
    assert "evil: suspend: is no worker of this cluster" in said
    assert "--help: suspend: is no worker of this cluster" in said


def test_power__program_hangs__fails_after_its_time(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    command = executable(tmp_path / "site", "exec sleep 60")
    assert run(program, monkeypatch, tmp_path, "slurm-resume", "gpu01", command=str(command), command_seconds=0.2) == 1
    assert program.said == [f"gpu01: resume: {command}: no answer in 0 s"]


def test_power__without_settings__says_so(program: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert run(program, monkeypatch, tmp_path, "slurm-resume-failed", "gpu01") == 0
    assert program.said == ["gpu01: did not respond in 900 s after it was switched on"]
    monkeypatch.setattr(program, "CONFIGURATION", str(tmp_path / "none"))
    with pytest.raises(SystemExit, match="1"):
        program.main()
    assert "No such file" in program.said[-1]


# --- Wake-on-LAN ------------------------------------------------------------------------------------------------------


@pytest.mark.proves("power", "Wake-on-LAN sends magic packets to the network of the node's interface.")
def test_wake_on_lan__of_a_node__sends_magic_packets(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as lan:
        lan.bind(("0.0.0.0", 0))  # noqa: S104 - a broadcast has no other address
        lan.settimeout(10)
        monkeypatch.setattr(program, "PORT", lan.getsockname()[1])
        monkeypatch.setattr(program, "BROADCAST", "127.255.255.255")
        nodes = {"gpu01": {"mac": MAC, "interface": "127.1.2.3/8"}}
        assert run(program, monkeypatch, tmp_path, "slurm-resume", "gpu01", nodes=nodes) == 0
        packets = [lan.recv(2048) for _ in range(2 * program.TRIES)]
    assert {*packets} == {bytes.fromhex("ffffffffffff" + "02005e100001" * 16)}
    assert program.said == [f"gpu01: magic packets sent to {MAC}"]
    assert run(program, monkeypatch, tmp_path, "slurm-suspend", "gpu01", nodes=nodes) == 0
    assert program.said[1:] == ["gpu01: shuts itself down"]


@pytest.mark.parametrize(
    ("interface", "targets"),
    [
        ("10.0.0.11/24", ["10.0.0.255"]),
        ("10.1.2.3/16", ["10.1.255.255"]),
        ("", []),
        ("fd00::1/64", []),
        ("10.0.0.1/32", []),
    ],
)
def test_wake_on_lan__targets__are_broadcast_addresses(program: ModuleType, interface: str, targets: list[str]) -> None:
    assert program.targets(interface) == [*targets, "255.255.255.255"]


# --- IPMI: FreeIPMI's ipmipower and OpenIPMI's ipmi_sim, a simulated BMC ----------------------------------------------

USER, PASSWORD = "operator1", "a-secret.of~16+"
LAN = """
name "bmc"
set_working_mc 0x20
  startlan 1
    addr 127.0.0.1 {port}
    priv_limit admin
    allowed_auths_callback none md2 md5 straight
    allowed_auths_user none md2 md5 straight
    allowed_auths_operator none md2 md5 straight
    allowed_auths_admin none md2 md5 straight
    guid a123456789abcdefa123456789abcdef
  endlan
  chassis_control "{chassis} 0x20"
  user 1 true "" "test" user 10 none md2 md5 straight
  user 2 true "{user}" "{password}" admin 10 none md2 md5 straight
"""
MC = "mc_setbmc 0x20\nmc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02 persist_sdr\nmc_enable 0x20\n"
# The operating system shuts down at once, or with the file `stubborn` never.
CHASSIS = """cd {folder}; shift; echo "$*" >> asked
case "$1 $2" in
"get power") echo "power:$(cat power)" ;;
get*) echo "$2:0" ;;
"set power") echo "$3" > power ;;
"set shutdown") test -e stubborn || echo 0 > power ;;
esac"""


@contextmanager
def simulated_bmc(folder: Path) -> Iterator[str]:
    """Yield the address of a BMC whose chassis is the file `power`."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "power").write_text("1\n")
    (folder / "asked").touch()
    chassis = executable(folder / "chassis", CHASSIS.format(folder=folder))
    (folder / "lan.conf").write_text(LAN.format(port=port, chassis=chassis, user=USER, password=PASSWORD))
    (folder / "bmc.emu").write_text(MC)
    (folder / "state").mkdir()
    argv = [
        PROGRAMS / "usr/bin/ipmi_sim",
        "-n",
        "-c",
        folder / "lan.conf",
        "-f",
        folder / "bmc.emu",
        "-s",
        folder / "state",
    ]
    with open(folder / "bmc.log", "wb") as log:
        bmc = programs.start(argv, stdout=log, stderr=log)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        os.killpg(bmc.pid, signal.SIGKILL)
        bmc.wait()


@pytest.fixture
def bmc(program: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """A BMC, and ipmipower with the work-around that this one needs, as FreeIPMI's own configuration would have it."""
    (tmp_path / "bmc.conf").write_text(rendered(USER, PASSWORD))
    (tmp_path / "bmc.conf").chmod(0o400)
    monkeypatch.setattr(program, "BMC", str(tmp_path / "bmc.conf"))
    real = PROGRAMS / "usr/sbin/ipmipower"
    seen = f'echo "$*" >> {tmp_path}/argv'
    options = "--workaround-flags=opensesspriv --session-timeout=3000"
    executable(tmp_path / "bin/ipmipower", f'{seen}\nexec {real} "$@" {options}')
    with simulated_bmc(tmp_path) as address:
        yield address


def rendered(user: str, password: str) -> str:
    """Return the file for FreeIPMI as role slurm_head writes it."""
    from jinja2 import Environment

    environment = Environment(autoescape=False, keep_trailing_newline=True)  # noqa: S701 - not HTML
    environment.filters["slurm_power_word"] = POWER.word
    template = (paths.content() / "roles/slurm_head/templates/power-bmc.conf.j2").read_text(encoding="utf-8")
    return environment.from_string(template).render(
        ansible_managed="managed", slurm_head_power_bmc_user=user, lookup=lambda *_: password
    )


def chassis(tmp_path: Path) -> list[str]:
    """Return what the BMC was asked to set."""
    return [line for line in (tmp_path / "asked").read_text().splitlines() if line.startswith("set ")]


@pytest.mark.proves("power", "IPMI asks the system to shut down, and switches off one that does not.")
def test_ipmi__suspend_and_resume__switch_the_chassis(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bmc: str
) -> None:
    nodes = {"gpu01": {"bmc": bmc}}
    assert run(program, monkeypatch, tmp_path, "slurm-suspend", "gpu01", nodes=nodes) == 0, program.said
    assert (tmp_path / "power").read_text() == "0\n"
    assert run(program, monkeypatch, tmp_path, "slurm-resume", "gpu01", nodes=nodes) == 0, program.said
    assert (tmp_path / "power").read_text() == "1\n"
    assert chassis(tmp_path) == ["set shutdown 1", "set power 1"]
    (tmp_path / "stubborn").touch()
    assert run(program, monkeypatch, tmp_path, "slurm-suspend", "gpu01", nodes=nodes, soft_seconds=0.3) == 0, (
        program.said
    )
    assert (tmp_path / "power").read_text() == "0\n"
    assert chassis(tmp_path)[2:] == ["set shutdown 1", "set power 0"]
    assert "gpu01: did not shut down in 0 s, switched off" in program.said
    argv = (tmp_path / "argv").read_text()
    assert PASSWORD not in argv
    assert USER not in argv


@pytest.mark.proves("power", "A BMC that refuses or does not answer is reported with its node.")
def test_ipmi__wrong_password__is_reported(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bmc: str
) -> None:
    (tmp_path / "bmc.conf").chmod(0o600)
    (tmp_path / "bmc.conf").write_text(rendered(USER, "another-secret"))
    assert run(program, monkeypatch, tmp_path, "slurm-resume", "gpu01", nodes={"gpu01": {"bmc": bmc}}) == 1
    assert program.said == [f"gpu01: resume: ipmipower: exit code 1: {bmc.partition(':')[0]}: password invalid"]
    assert not [line for line in chassis(tmp_path) if line.startswith("set power")]


@pytest.mark.parametrize("password", ["a b", 'a"b', "a#b", "a\\b", "", "x" * 21, "a\nb"])
def test_ipmi__password_that_the_file_cannot_hold__is_refused(password: str) -> None:
    with pytest.raises(AnsibleFilterError, match="the secret slurm_head_power_bmc_password: expected at most 20"):
        rendered(USER, password)


# --- settings ---------------------------------------------------------------------------------------------------------


def record(*nics: tuple[str, str]) -> dict[str, Any]:
    return {"nics": [{"name": f"eth{n}", "mac": mac, "addresses": [address]} for n, (mac, address) in enumerate(nics)]}


def test_ways__of_workers__are_bmc_given_or_recorded_address() -> None:
    own = record(("02:00:5e:00:00:aa", "192.168.1.5/24"), (MAC, "10.0.0.11/24"))
    infiniband = record(("a0:00:02:20:fe:80:00:00:00:00:00:00:00:00:00:00:00:00:00:01", "10.0.0.11/24"))
    names = ["by_bmc", "by_record", "by_given", "infiniband", "named"]
    records = dict(zip(names, [own, own, own, infiniband, own], strict=True))
    addresses = dict.fromkeys(names, "10.0.0.11") | {"named": "gpu.example.org"}
    bmcs = dict.fromkeys(names, "") | {"by_bmc": "10.9.0.1"}
    macs = dict.fromkeys(names, "") | {"by_given": "02:00:5E:FF:00:01"}
    ways = POWER.ways(records, addresses, bmcs, macs)
    assert ways == {
        "by_bmc": {"bmc": "10.9.0.1"},
        "by_record": {"mac": MAC, "interface": "10.0.0.11/24"},
        "by_given": {"mac": "02:00:5e:ff:00:01", "interface": "10.0.0.11/24"},
        "infiniband": {},
        "named": {},
    }
    assert POWER.problems(ways, [], "/site") == []
    assert POWER.problems(ways, ["infiniband", "named"], "") == []
    (problem,) = POWER.problems(ways, ["infiniband"], "")
    assert " of named, so it could not be woken: set slurm_head_power_mac" in problem


def test_exceptions__with_and_without_numbers__are_slurms() -> None:
    workers = [f"gpu{n:02}" for n in range(1, 13)]
    groups = {"slurm_workers": workers, "a100": ["gpu02", "gpu01"], "odd": ["gpu01", "gpu03"], "one": ["gpu07"]}
    given = ["gpu05", "a100:1", "slurm_workers:3", "one:4", "gone"]
    assert POWER.exceptions(given, groups, workers, ["gpu12"]) == [
        "gpu[01-02]:1", "gpu[01-12]:3", "gpu07:1", "gpu05", "gpu12",
    ]  # fmt: skip
    assert POWER.exceptions([], groups, workers, []) == []
    with pytest.raises(AnsibleFilterError, match=r"odd:1: expected workers with names of one range, got gpu01, gpu03"):
        POWER.exceptions(["odd:1"], groups, workers, [])


# --- what clusterctl sees ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "sleep", "in_service"),
    [
        ("IDLE", "", True),
        ("IDLE+POWERING_DOWN", "asleep", True),
        ("IDLE+POWERED_DOWN", "asleep", True),
        ("IDLE+POWERED_DOWN+POWER_UP", "waking", True),
        ("ALLOCATED+POWERING_UP+NOT_RESPONDING", "waking", True),
        ("IDLE+NOT_RESPONDING", "", False),
        ("DOWN+POWERED_DOWN", "", False),
        ("IDLE+DRAIN+POWERED_DOWN", "asleep", False),
        ("IDLE+POWER_DOWN", "", True),
    ],
)
def test_state__of_power_saving__is_sleep_unless_down(state: str, sleep: str, in_service: bool) -> None:
    node = SlurmNode(tuple(state.split("+")), "", {}, {})
    assert (sleep_of(state.split("+")), node.sleep, node.in_service) == (sleep, sleep, in_service)


# As Slurm 24.11 prints it, shortened.
CONFIG = """\
ResumeTimeout           = 900 sec
SuspendRate             = 20 nodes/min
SuspendTime             = 600 sec
SuspendTimeout          = 30 sec
"""


class Head:
    """Slurm's commands on a head; a node that is shutting down ignores a command to wake (simulated)."""

    def __init__(self, **states: Sequence[str]) -> None:
        self.states = {name: [*later] for name, later in states.items()}
        self.updates: list[str] = []
        self.reasons: dict[str, str] = {}

    def run(self, argv: Sequence[str], **_: Any) -> tuple[int, str, str]:
        if argv[-1] == "--format=%N %E":
            names = argv[4].partition("=")[2].split(",")
            return 0, "".join(f"{name} {self.reasons[name]}\n" for name in names), ""
        if argv[0] == "sinfo":
            rows = [f"{name} {later.pop(0) if len(later) > 1 else later[0]}" for name, later in self.states.items()]
            return 0, "\n".join(rows), ""
        if tuple(argv) == ("scontrol", "show", "config"):
            return 0, CONFIG, ""
        self.updates.append(" ".join(argv[2:]))
        return 0, "", ""


def test_wake__node_still_shuts_down__is_asked_until_it_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusterctl.slurm.client.POLL_SECONDS", 0.0)
    head = Head(
        gpu01=["idle+powering_down", "idle+powered_down", "idle+powering_up*", "idle"],
        gpu02=["idle+powered_down", "idle+powering_up", "down+powered_down"],
        gpu03=["idle"],
    )
    SlurmController(head, "head1").wake(["gpu01", "gpu02", "gpu03"], 60)  # type: ignore[arg-type]
    assert head.updates == ["NodeName=gpu01,gpu02 State=POWER_UP", "NodeName=gpu01 State=POWER_UP"]


@pytest.mark.proves("power", "A run keeps idle workers awake, and does not undo a drain.")
def test_keep_awake__of_drained_and_busy_nodes__leaves_them() -> None:
    head = Head(gpu01=["idle"], gpu02=["idle+drain"], gpu03=["mixed"], gpu04=["idle+powered_down"], gpu05=["idle"])
    controller = SlurmController(head, "head1")  # type: ignore[arg-type]
    controller.keep_awake(["gpu01", "gpu02", "gpu03", "gpu04"])
    assert head.updates == ["NodeName=gpu01 State=IDLE"]
    assert controller.power_saving() == {"SuspendTime": 600, "SuspendTimeout": 30, "ResumeTimeout": 900}


@pytest.mark.proves("power", "A worker that sleeps is healthy without contact; one that does not wake is not.")
@pytest.mark.parametrize(("state", "sleep", "code"), [("IDLE+POWERED_DOWN", "asleep", 0), ("DOWN+POWERED_DOWN", "", 4)])
def test_status__worker_that_does_not_respond__is_healthy_if_it_sleeps(state: str, sleep: str, code: int) -> None:
    slurm = Slurm({"gpu01": SlurmNode(tuple(state.split("+")), "", {"a100": 4}, {})})
    silent = NodeStatus("gpu01", False, problem="no answer", slurm_worker=True)
    found = Status("aurora", (status._known(silent, slurm), NodeStatus("head1", True)), slurm, None)
    assert (found.nodes[0].sleep, found.exit_code) == (sleep, code)
    assert bool(found.nodes[0].problem) is (code == 4)
    idle = 4 if sleep else 0
    assert found.gpus() == {"a100": {"total": 4, "allocated": 0, "idle": idle, "out_of_service": 4 - idle}}


def test_ask_awake__of_hosts_that_do_not_respond__asks_woken_ones_again(tmp_path: Path) -> None:
    hosts = [host(1, tmp_path, name, "slurm_workers") for name in ("gpu01", "gpu02", "gpu03")]
    asked: list[str] = []

    def ask(one: Host) -> Answer:
        asked.append(one.name)
        responds = one.name == "gpu01" or asked.count(one.name) > 1
        return Answer() if responds else Answer(errors=(ContactError(Failure.SILENT, "no answer"),))

    answers = sleeping.ask_awake(hosts, ask, rouse=lambda names: [name for name in names if name == "gpu02"])
    assert sorted(asked) == ["gpu01", "gpu02", "gpu02", "gpu03"]
    assert {name: answer.is_unreachable for name, answer in answers.items()} == {
        "gpu01": False, "gpu02": False, "gpu03": True,
    }  # fmt: skip
    assert sleeping.ask_awake(hosts[2:], ask, rouse=lambda names: names)["gpu03"].is_unreachable is False
