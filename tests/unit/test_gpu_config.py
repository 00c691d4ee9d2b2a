"""What role gpu_config makes of what is asked for, on what NVIDIA's nvidia-smi 550.163 printed in the lab."""

import fcntl
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from clusterctl.nodes.probe import services as probe_services
from clusterctl.util import paths
from tests.programs import started
from tests.unit.test_gpu_health import DOCUMENT, NODE, SMI, installed
from tests.unit.test_nvidia import slurm_steps

CONFIG, SETTINGS = map(installed, ("gpu_config", "gpu_settings"))
CLOCKS = (
    "<supported_clocks><supported_mem_clock><value>1593 MHz</value>{}</supported_mem_clock></supported_clocks>".format(
        "".join(f"<supported_graphics_clock>{clock} MHz</supported_graphics_clock>" for clock in range(1410, 209, -15))
    )
)
PROFILES = """
+-----------------------------------------------------------------------------+
| GPU instance profiles:                                                      |
| GPU   Name             ID    Instances   Memory     P2P    SM    DEC   ENC  |
|                              Free/Total   GiB              CE    JPEG  OFA  |
|=============================================================================|
|   0  MIG 1g.10gb       19     7/7        9.75       No     14     0     0   |
|                                                             1     0     0   |
+-----------------------------------------------------------------------------+
|   0  MIG 1g.10gb+me    20     1/1        9.75       No     14     1     0   |
|                                                             1     1     1   |
+-----------------------------------------------------------------------------+
|   0  MIG 2g.20gb       14     3/3        19.62      No     28     1     0   |
|                                                             2     0     0   |
+-----------------------------------------------------------------------------+
|   0  MIG 4g.40gb        5     1/1        39.50      No     56     2     0   |
|                                                             4     0     0   |
+-----------------------------------------------------------------------------+
|   0  MIG 3g.40gb        9     2/2        39.50      No     42     2     0   |
|                                                             3     0     0   |
+-----------------------------------------------------------------------------+
"""
THREE = "3g.40gb,2g.20gb,2g.20gb"
SPELT = "2g.20gb, 3g.40gb,2g.20gb"
PLACEMENTS = """GPU  0 Profile ID 19 Placements: {0,1,2,3,4,5,6}:1
GPU  0 Profile ID 20 Placements: {0,1,2,3,4,5,6}:1
GPU  0 Profile ID 14 Placements: {0,2,4}:2
GPU  0 Profile ID  9 Placements: {0,4}:4
GPU  0 Profile ID  5 Placement : {0}:4
"""


def gpus(**replaced: str) -> list[Any]:
    """The document's GPUs, with the text of some elements replaced."""
    document = ET.fromstring(DOCUMENT)  # noqa: S314 - it lies beside this file
    for element in document.iter("gpu"):
        element.append(ET.fromstring(CLOCKS))  # noqa: S314 - as above
    for name, text in replaced.items():
        for element in document.iter(name):
            element.text = text
    return [SMI.Gpu(element, index) for index, element in enumerate(document.iter("gpu"))]


class Node:
    """A node whose GPUs are to be divided, with the services that run: what programs are called, and which fail."""

    locks: Mapping[str, Any] = {}

    def __init__(self, monkeypatch: pytest.MonkeyPatch, unfinished: Path, *up: str) -> None:
        self.up, self.calls = {f"{name}.service" for name in up}, list[str]()
        self.fails: tuple[str, ...] = ()
        monkeypatch.setattr(CONFIG, "UNFINISHED", unfinished)
        monkeypatch.setattr(CONFIG, "HALTED", unfinished.with_suffix(".halted"))
        monkeypatch.setattr(NODE, "run", self.run)
        monkeypatch.setattr(SMI, "read_gpus", list)
        monkeypatch.setattr(CONFIG, "update_links", lambda _: self.run("nvidia-smi", "link"))

    def run(self, *argv: str, seconds: float = 0) -> str:
        if argv[1] == "show":
            what = {"ActiveState": "active" if argv[-1] in self.up else "inactive", "LoadState": "loaded"}
            return what.get(argv[2].partition("=")[2], "")
        words = [word for word in argv[1:] if word != "--job-mode=ignore-requirements"]
        self.calls.append(" ".join(words).removesuffix(".service"))
        if self.calls[-1].startswith(self.fails):
            raise NODE.NodeError(f"{self.calls[-1]} fails")
        if argv[0] == "systemctl":
            (self.up.discard if argv[1] == "stop" else self.up.add)(argv[-1])
        return ""

    def steps(self, _: list[Any], *settings: str) -> list[Any]:
        step = SETTINGS.Step(None, "mig", "", "", "", lambda: self.run("nvidia-smi", "divide"))
        return [step] if "mig" in settings else []

    def apply(self, *due: str, boot: bool = False) -> tuple[list[str], str]:
        """What was called, and what is said of a failure."""
        self.calls.clear()
        try:
            CONFIG.apply(self, set(due), boot=boot)
        except NODE.NodeError as error:
            return list(self.calls), CONFIG.join_errors(error)
        return list(self.calls), ""


def steps(
    given: dict[str, Any], locks: dict[str, Any] | None = None, **replaced: str
) -> list[tuple[int, str, str, str]]:
    settings = SETTINGS.Settings(given, {} if locks is None else locks)
    found = settings.steps(gpus(**replaced)[:2], *(name for name in SETTINGS.ALL if name != "mig"))
    return [(step.gpu.index, step.name, step.to, step.was) for step in found]


@pytest.mark.proves("gpu", "Only settings that differ are changed.")
@pytest.mark.proves("gpu", "A power limit of 80 percent is 320 W on a 400-W card.")
def test_only_what_differs_is_a_step() -> None:
    assert steps({}) == []
    assert steps({"power_limit": "400", "compute_mode": "default", "ecc": "enabled"}) == []
    assert steps({"power_limit": "80%"}) == [(gpu, "power limit", "320 W", "400 W") for gpu in (0, 1)]
    assert steps({"power_limit": "80%"}, requested_power_limit="320.00 W") == []
    assert steps({"power_limit": "default"}, requested_power_limit="320.00 W")[0] == (
        0,
        "power limit",
        "400 W",
        "320 W",
    )
    assert steps({"ecc": "disabled"})[0] == (0, "ECC", "disabled", "enabled")
    assert steps({"compute_mode": "prohibited"})[1] == (1, "compute mode", "Prohibited", "Default")


@pytest.mark.proves("gpu", "A clock is locked again only if the locked value differs.")
def test_a_locked_clock_is_known_by_what_was_locked() -> None:
    first, second = (gpu.uuid for gpu in gpus()[:2])
    locks = {first: {"graphics_clock": "1200,1200"}, second: {"graphics_clock": "210,1200"}}
    assert steps({"graphics_clock": "1200"}, locks) == [(1, "graphics clock", "1200,1200 MHz", "210,1200")]
    assert steps({"graphics_clock": "default"}, {}) == []


@pytest.mark.proves("gpu", "Power and clocks outside the card's range are refused with the range.")
@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            {"power_limit": "90"},
            r"GPU 0 \(NVIDIA A100-SXM4-80GB\): gpu_config_power_limit: got 90 W, expected 100 to 400 W",
        ),
        ({"power_limit": "110%"}, r"got 440 W, expected 100 to 400 W \(default 400 W\)"),
        ({"application_clocks": "1000,1275"}, "got 1000 MHz for memory, expected one of 1593"),
        ({"application_clocks": "1593,1276"}, "got 1276 MHz for graphics, .*1260, 1275, 1290"),
        ({"graphics_clock": "210,2000"}, "got 210,2000 MHz, expected 210 to 1410 MHz"),
        ({"memory_clock": "1500"}, "expected one of 1593 MHz"),
    ],
)
def test_what_the_card_does_not_allow_is_refused_with_its_choices(given: dict[str, Any], says: str) -> None:
    with pytest.raises(NODE.NodeError, match=says):
        steps(given)


@pytest.mark.proves("gpu", "MIG layouts are accepted only if the card's placements allow them.")
def test_layouts_fit_where_the_cards_placements_allow() -> None:
    where = SMI.mig_placements(PROFILES, PLACEMENTS)
    assert list(where) == ["1g.10gb", "1g.10gb+me", "2g.20gb", "4g.40gb", "3g.40gb"]
    assert where["4g.40gb"] == [range(4)]
    assert SETTINGS.fits(["4g.40gb", "3g.40gb"], where)
    assert where["3g.40gb"] == [range(4), range(4, 8)]
    assert SETTINGS.fits(["3g.40gb", "2g.20gb", "2g.20gb"], where)
    assert SETTINGS.fits(["1g.10gb"] * 7, where)
    assert not SETTINGS.fits(["3g.40gb", "3g.40gb", "1g.10gb"], where)
    assert not SETTINGS.fits(["1g.10gb"] * 8, where)
    assert SETTINGS.sort_layout(["1g.10gb", "1g.20gb", "3g.40gb", "1g.10gb+me"]) == "3g.40gb,1g.20gb,1g.10gb,1g.10gb+me"


def test_instances_are_known_by_their_profiles() -> None:
    listing = (
        "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)\n  MIG 3g.40gb     Device  0: (UUID: MIG-1)\n"
        "  MIG 1g.10gb+me  Device  1: (UUID: MIG-2)\nGPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-2)\n"
    )
    assert SMI.mig_profiles(listing) == {0: {0: "3g.40gb", 1: "1g.10gb+me"}}


@pytest.mark.proves("gpu", "Settings removed from the inventory return to the card's default.")
def test_what_is_no_longer_asked_for_goes_back_to_the_cards_own() -> None:
    before = {"power_limit": "300", "mig": "7g.80gb", "mig_gpus": {"1": "none", "2": "3g.40gb"}, "ecc": ""}
    assert CONFIG.with_reverted({}, before) == {
        "power_limit": "default",
        "mig": "none",
        "mig_gpus": {"1": "none", "2": "none"},
    }
    assert CONFIG.with_reverted({"mig": "7g.80gb"}, before)["mig_gpus"] == {}
    assert not CONFIG.has_settings(CONFIG.with_reverted({}, {}))


def test_alike_changes_of_several_gpus_are_told_as_one() -> None:
    settings = SETTINGS.Settings({"power_limit": "300"}, {})
    told = CONFIG.describe(list(settings.steps(gpus()[:2], "power_limit")))
    values = {"action": "changed", "what": "300 W, was 400 W", "from": "400 W", "to": "300 W"}
    assert told == [{"kind": "GPU 0, 1", "name": "power limit", **values}]


STOPS = ["stop slurmd", "stop nvidia-dcgm", "stop nvidia-persistenced"]
STARTS = ["start nvidia-persistenced", "start nvidia-dcgm", "start slurmd"]
CDI = "start nvidia-cdi-refresh"


@pytest.mark.proves("gpu", "MIG changes while no service holds the GPUs; slurmd starts last.")
def test_gpus_change_while_nobody_holds_them_and_slurm_comes_back_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(monkeypatch, tmp_path / "unfinished", "slurmd", "nvidia-dcgm", "nvidia-persistenced")
    assert node.apply("mig") == ([*STOPS, "divide", "link", CDI, *STARTS], "")
    assert node.apply("power_limit") == (["link"], "")
    node.up.discard("slurmd.service")  # it comes after this program at boot, as these do
    begins = ["start nvidia-persistenced", "start --no-block nvidia-dcgm"]
    assert node.apply("mig", boot=True) == ([*STOPS[1:], "divide", "link", f"start --no-block {CDI[6:]}", *begins], "")


@pytest.mark.proves("gpu", "After a failed change the next run completes it and restarts services.")
@pytest.mark.parametrize("fails", ["divide", "stop nvidia-persistenced", "start nvidia-dcgm", "start nvidia-cdi"])
def test_what_fails_is_told_and_the_next_run_brings_the_rest(
    fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(monkeypatch, tmp_path / "unfinished", "slurmd", "nvidia-dcgm", "nvidia-persistenced")
    node.fails = (fails,)
    calls, said = node.apply("mig")
    assert calls[-3:] == STARTS
    assert re.fullmatch(rf"{fails}\S* fails", said)
    assert ("link" in calls) == ("divide" in calls)
    node.fails = ()
    calls, _ = node.apply()
    assert calls[-5:] == ["link", CDI, *STARTS]
    assert node.apply() == (["link"], "")


@pytest.mark.proves("gpu", "The next run restarts the services that a killed run stopped.")
def test_a_run_that_was_killed_is_finished_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unfinished = tmp_path / "unfinished"
    unfinished.write_text(json.dumps(["slurmd.service", "nvidia-dcgm.service"]))
    node = Node(monkeypatch, unfinished)
    calls, _ = node.apply()
    assert calls[-4:] == ["link", CDI, "start nvidia-dcgm", "start slurmd"]
    assert not unfinished.exists()


@pytest.mark.parametrize("job", [False, True])
def test_slurm_is_halted_before_the_head_names_instances_and_comes_back_with_them(
    job: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(monkeypatch, tmp_path / "unfinished", "slurmd")
    monkeypatch.setattr(CONFIG, "has_jobs", lambda: job)
    CONFIG.halt_slurmd()
    assert node.calls == ([] if job else ["stop slurmd"])
    calls, _ = node.apply("mig")
    assert (calls[-4:], node.up) == (["divide", "link", CDI, "start slurmd"], {"slurmd.service", CONFIG.CDI})
    assert list(tmp_path.iterdir()) == []


def test_all_that_failed_is_told_in_the_order_of_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(monkeypatch, tmp_path / "unfinished", "slurmd")
    node.fails = ("divide", "link", "start slurmd")
    assert node.apply("mig")[1] == "divide fails; link fails; start slurmd fails"


@pytest.mark.parametrize(
    ("title", "program", "user", "job"),
    [
        ("slurmstepd: [7.extern]", "/usr/sbin/slurmstepd", 0, True),  # EPEL's
        ("slurmstepd: [7.extern]", "/usr/sbin/slurmstepd-wlm", 0, True),  # Debian's
        ("slurmstepd: [7.extern]", "/usr/sbin/slurmstepd-wlm (deleted)", 0, True),
        ("slurmstepd: [7.extern]", "/usr/sbin/slurmstepd.dpkg-tmp (deleted)", 0, True),
        ("slurmstepd: [7.extern]", "/usr/sbin/slurmstepd;65a1b2c3 (deleted)", 0, True),
        ("slurmstepd: [7.extern]", "/usr/sbin/slurmstepd", 5001, False),
        ("slurmstepd: [7.extern]", "/usr/bin/sudo", 0, False),
        ("slurmd", "/usr/sbin/slurmd", 0, False),
    ],
)
def test_jobs__process_of_this_title__is_slurms_or_not(
    title: str, program: str, user: int, job: bool, tmp_path: Path
) -> None:
    """By all three programs that ask: settings of GPUs, the driver's role and the controller's probe."""
    (tmp_path / "12").mkdir()
    (tmp_path / "12/cmdline").write_text(f"{title}\0")
    (tmp_path / "12/exe").symlink_to(program)
    (tmp_path / "12/status").write_text(f"Name:\tslurmstepd\nUid:\t{user}\t5001\t0\t5001\n")
    assert CONFIG.has_jobs(tmp_path) is job
    assert slurm_steps.jobs(str(tmp_path)) == probe_services.jobs(str(tmp_path)) == ["7"] * job


FORGED = """
import ctypes, os, sys, time
os.setresgid(65534, 65534, 65534), os.setresuid(65534, 65534, 65534)
ctypes.CDLL(None).prctl(4, 0)  # PR_SET_DUMPABLE: its files below /proc are root's then
print(flush=True)
time.sleep(600)
"""


@pytest.mark.proves("upgrade", "A user's process that passes for Slurm's blocks no upgrade or restore.")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
def test_jobs__forged_by_a_user__are_none(tmp_path: Path) -> None:
    """A real process: its title and the owner of its files say that it is Slurm's."""
    argv = ["slurmstepd: [424242.0]", "-c", FORGED]
    with started(argv, executable=sys.executable, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        files = Path(f"/proc/{process.pid}")
        assert (files / "cmdline").read_bytes().startswith(b"slurmstepd: [424242.0]\0")
        assert (files / "cmdline").stat().st_uid == 0
        (tmp_path / str(process.pid)).symlink_to(files)  # labs on this machine may have jobs
        assert not CONFIG.has_jobs(tmp_path)
        assert slurm_steps.jobs(str(tmp_path)) == probe_services.jobs(str(tmp_path)) == []


def test_a_dead_driver_holds_up_what_is_asked_for_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def dead() -> None:
        raise NODE.CommandError(("nvidia-smi", "-q"), ["no devices were found"])

    for name in ("RECORD", "UNFINISHED", "HALTED"):
        monkeypatch.setattr(CONFIG, name, tmp_path / name)
    monkeypatch.setattr(NODE, "GPU_SETTINGS", tmp_path / "settings")
    monkeypatch.setattr(SMI, "read_gpus", dead)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    NODE.GPU_SETTINGS.write_text('{"power_limit": "300"}')
    with pytest.raises(SystemExit, match="no devices were found"):
        CONFIG.main(["--given", '{"power_limit": "400"}'])
    CONFIG.main(["--given", '{"power_limit": ""}'])
    answer = json.loads(capsys.readouterr().out)
    assert answer["kept"] == {"power_limit": "300"}
    assert "no devices were found" in answer["notes"][0]


@pytest.mark.proves("gpu", "The next run undoes a killed run's setting that is no longer requested.")
def test_what_a_killed_run_has_set_is_taken_back_by_one_that_no_longer_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RECORD", "UNFINISHED", "HALTED", "CLOCK_LOCKS"):
        monkeypatch.setattr(CONFIG, name, tmp_path / name)
    monkeypatch.setattr(NODE, "GPU_SETTINGS", tmp_path / "settings")
    monkeypatch.setattr(SMI, "read_gpus", lambda: gpus(requested_power_limit="300.00 W"))
    monkeypatch.setattr(NODE, "run", lambda *_, **__: "")
    monkeypatch.setattr(CONFIG, "has_jobs", lambda: False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as until:
        until.setattr(CONFIG, "apply", killed)
        with pytest.raises(KeyboardInterrupt):
            CONFIG.main(["--given", '{"power_limit": "300", "mig_gpus": {"1": "none"}}'])
    set_back = list[str]()
    monkeypatch.setattr(CONFIG, "apply", lambda settings, due, **_: set_back.append(settings.given["power_limit"]))
    CONFIG.main(["--given", '{"power_limit": "", "mig_gpus": {}}'])
    assert set_back == ["default"]
    assert not CONFIG.RECORD.exists()
    CONFIG.main(["--given", '{"power_limit": ""}'])
    assert set_back == ["default"]


@pytest.mark.proves("gpu", "A lost layout of a node in service waits until it is drained.")
@pytest.mark.parametrize(
    ("given", "before", "kept"),
    [
        ({"mig": SPELT}, {"mig": SPELT}, (SPELT, {})),
        ({"mig": "4g.40gb"}, {"mig": THREE}, (THREE, {})),
        ({"mig": THREE}, {"mig": "", "mig_gpus": {"0": THREE, "1": ""}}, ("", {"0": THREE, "1": ""})),
        ({}, {"mig_gpus": {"1": SPELT}}, ("", {"1": SPELT})),
        ({"mig": THREE}, {}, ("", {"0": "", "1": ""})),
    ],
)
def test_a_layout_that_was_lost_on_a_node_in_service_is_kept(
    given: dict[str, Any],
    before: dict[str, Any],
    kept: tuple[str, dict[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As by hands, or with the driver; it comes back at the next boot, and the health check misses it until then.

    It is spelt as before, so that the file on the node stays the same.
    """
    for name in ("UNFINISHED", "HALTED"):
        monkeypatch.setattr(CONFIG, name, tmp_path / name)
    answers = {"-lgip": PROFILES, "-lgipp": PLACEMENTS, "show": "active"}
    monkeypatch.setattr(NODE, "run", lambda *argv, **_: next((answers[word] for word in argv if word in answers), ""))
    monkeypatch.setattr(SMI, "read_gpus", lambda: gpus(current_mig="Enabled"))
    monkeypatch.setattr(CONFIG, "has_jobs", lambda: False)
    answer = CONFIG.configure(given, before, check=True)
    assert "was nothing, once the node is drained for it" in " ".join(answer["notes"])
    assert (answer["kept"]["mig"], answer["kept"]["mig_gpus"]) == kept
    assert not CONFIG.configure(given, before, check=True, drained=True)["notes"]


def test_a_program_that_cannot_be_killed_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that hangs in the kernel's part of the driver."""
    left = list["subprocess.Popen[str]"]()
    with monkeypatch.context() as until:
        until.setattr(subprocess.Popen, "kill", lambda process: left.append(process))
        with pytest.raises(NODE.CommandError, match=r"sleep 60: no response within 0.1 s"):
            NODE.run("sleep", "60", seconds=0.1)
    with left[0] as process:
        assert process.poll() is None
        process.kill()


@pytest.mark.parametrize("check", [True, False])
def test_a_rehearsal_on_a_node_without_a_driver_says_that_its_gpus_wait_for_it(check: bool, tmp_path: Path) -> None:
    folder = paths.content() / "plugins"
    environment = {"ANSIBLE_LIBRARY": str(folder / "modules"), "ANSIBLE_MODULE_UTILS": str(folder / "module_utils")}
    asked = json.dumps({"program": {"gpu_config.py": "raise SystemExit('no driver')"}, "given": {"power_limit": "300"}})
    ansible = [str(Path(sys.executable).parent / "ansible"), "node", "--inventory", "node,", "--connection", "local"]
    argv = [*ansible, "--module-name", "gpu_config", "--args", asked, *["--check"] * check]
    environment |= {**os.environ, "ANSIBLE_PYTHON_INTERPRETER": sys.executable}
    done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    said = json.loads(done.stdout.partition("=> ")[2])
    assert said.get("notes") == (["the settings of its GPUs wait for the driver"] if check else None), done.stderr
    assert said.get("kept") == ({"power_limit": "300"} if check else None)
    assert said.get("msg") == (None if check else "no driver")


def test_main__again_while_another_one_is_at_work__gives_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """slurmd, which the other one may have stopped, waits for its Epilog, which waits for this."""
    monkeypatch.setattr(CONFIG, "LOCK", tmp_path / "lock")
    monkeypatch.setattr(CONFIG, "AGAIN_SECONDS", 0.3)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with open(tmp_path / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(SystemExit, match="another one is at work"):
            CONFIG.main(["--again"])


def test_main__again__applies_what_was_set_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(CONFIG, "LOCK", tmp_path / "lock")
    monkeypatch.setattr(CONFIG, "RECORD", tmp_path / "record")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    (tmp_path / "record").write_text('{"power_limit": "300"}')
    calls = []

    def configure(given: Any, before: Any, **options: Any) -> dict[str, Any]:
        calls.append((given, before, options))
        return {"changes": [{"kind": "GPU 0", "name": "power limit", "what": "300 W"}], "notes": ["ECC waits"]}

    monkeypatch.setattr(CONFIG, "configure", configure)
    CONFIG.main(["--again"])
    settings = {"power_limit": "300"}
    assert calls == [(settings, settings, {"drained": False, "check": False, "boot": False})]
    assert capsys.readouterr().out == "ECC waits\n"
