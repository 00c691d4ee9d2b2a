"""Which users' MPS daemons are started and ended around jobs, by a systemd that is simulated."""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_gpu_health import NODE, installed
from tests.unit.test_job_cleanup import CLEANUP, PROCESSES, process
from tests.unit.test_role_plugins import plugin

MPS = installed("job_mps")
LATER = PROCESSES.ticks() + 1_000_000


class Systemd:
    """A simulated systemd: it has the users whose daemon runs; those of `broken` do not start, of `hung` do not end.

    Those of `slow` take all the time to fail. A command that mounts a file system is simulated by the set of `mounted`
    directories. `clock` is the time, which passes only by waiting.
    """

    def __init__(self) -> None:
        self.users: set[int] = set()
        self.broken: set[int] = set()
        self.slow: set[int] = set()
        self.hung: set[int] = set()
        self.mounted: set[str] = set()
        self.commands: list[tuple[str, ...]] = []
        self.at_stop: list[Any] = []
        self.clock = 0.0

    def run(self, *argv: str, seconds: float) -> str:
        assert seconds > 0
        self.commands.append(argv)
        named = {int(match[1]) for word in argv if (match := MPS.UNIT.search(word))}
        if argv[1] == "list-units":
            there = self.users - self.hung if argv[2] == "--state=active" else self.users
            return "".join(f"job-mps-{one}.service loaded active running x\n" for one in sorted(there))
        if argv[1] == "stop":
            self.at_stop.append(MPS.read_state()["jobs"])
            self.users -= named - self.hung
        if argv[0] == "mount":
            self.mounted.add(argv[-1])
        if argv[0] == "umount":
            self.mounted.discard(argv[-1])
        if argv[0] == "systemd-run":
            if named & self.broken:
                self.clock += seconds * bool(named & self.slow)
                raise NODE.CommandError(argv, ["Job failed", "see journal"])
            self.users |= named
        return ""

    def sleep(self, seconds: float) -> None:
        self.clock += seconds

    def started(self) -> list[str]:
        return [word for argv in self.commands if argv[0] == "systemd-run" for word in argv]

    def of(self, program: str, verb: str = "") -> list[tuple[str, ...]]:
        return [argv for argv in self.commands if argv[0] == program and verb in ("", argv[1])]


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Systemd:
    """A worker with two GPUs, the program of MPS and no job."""
    simulated = Systemd()
    monkeypatch.setattr(MPS, "run", simulated.run)
    monkeypatch.setattr(MPS.os.path, "ismount", lambda place: str(place) in simulated.mounted)
    monkeypatch.setattr(time, "monotonic", lambda: simulated.clock)
    monkeypatch.setattr(time, "sleep", simulated.sleep)
    for name, text in {
        "CONFIGURATION": '[{"device": "/dev/nvidia0", "uuid": "GPU-a"}, {"device": "/dev/nvidia1", "uuid": "GPU-b"}]',
        "STATE": "",
        "LOCK": "",
        "DIRECTORY": "",
    }.items():
        monkeypatch.setattr(MPS, name, tmp_path / name)
        if text:
            (tmp_path / name).write_text(text)
    monkeypatch.setattr(MPS.shutil, "which", lambda program, path: f"/usr/bin/{program}")
    return simulated


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.delenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", raising=False)
    return monkeypatch


def start(environment: pytest.MonkeyPatch, job: str, uid: int, gpus: str, percentage: str = "") -> None:
    """Start a job, one with a percentage having a part of its GPU."""
    given = {"SLURM_JOB_ID": job, "SLURM_JOB_UID": str(uid), "SLURM_JOB_GPUS": gpus}
    for name, value in given.items():
        environment.setenv(name, value)
    with environment.context() as context:
        if percentage:
            context.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", percentage)
        MPS.start()


def test_daemon__of_a_user__lives_from_the_first_job_to_the_last(
    systemd: Systemd, environment: pytest.MonkeyPatch
) -> None:
    start(environment, "1", 5001, "1", "40")
    start(environment, "2", 5001, "1", "40")
    start(environment, "3", 5002, "1", "20")
    assert systemd.users == {5001, 5002}
    assert systemd.started().count("--uid=5001") == 1
    assert MPS.end("1", LATER, 9) == MPS.end("1", LATER, 9) == []
    assert systemd.users == {5001, 5002}
    assert MPS.end("2", LATER, 9) == []
    assert systemd.users == {5002}
    assert MPS.problems() == []


def test_daemon__of_a_user__has_the_jobs_gpu_alone(systemd: Systemd, environment: pytest.MonkeyPatch) -> None:
    start(environment, "1", 5001, "1", "40")
    words = systemd.started()
    assert words[-2:] == ["/usr/bin/nvidia-cuda-mps-control", "-d"]
    assert {"--setenv=CUDA_VISIBLE_DEVICES=GPU-b", f"--setenv=CUDA_MPS_PIPE_DIRECTORY={MPS.DIRECTORY}/5001/pipe"} <= {
        *words
    }
    assert [word for word in words if "/dev/nvidia0" in word or "/dev/nvidia1" in word] == [
        "--property=DeviceAllow=/dev/nvidia1 rw"
    ]
    assert {"--property=DevicePolicy=closed", "--property=RuntimeDirectoryMode=0700", "--uid=5001"} <= {*words}


def test_start__without_a_part_of_a_gpu__starts_nothing(systemd: Systemd, environment: pytest.MonkeyPatch) -> None:
    start(environment, "1", 5001, "0,1")
    start(environment, "2", 5001, "")
    assert systemd.commands == []
    assert MPS.end("1", LATER, 9) == []
    assert not MPS.STATE.exists()


@pytest.mark.parametrize(("gpus", "percentage", "stays"), [("0", "", True), ("0,1", "", False), ("0", "50", False)])
def test_start__of_a_job_that_excludes_others__forgets_them(
    systemd: Systemd, environment: pytest.MonkeyPatch, gpus: str, percentage: str, stays: bool
) -> None:
    """Their Epilog has not run. Slurm would not have allocated this job's GPUs if they still ran."""
    start(environment, "1", 5001, "1", "40")
    start(environment, "2", 5002, gpus, percentage)
    assert (5001 in systemd.users) is stays
    assert (5002 in systemd.users) is bool(percentage)


def test_start__of_a_daemon_that_fails__is_a_problem_until_it_starts(
    systemd: Systemd, environment: pytest.MonkeyPatch
) -> None:
    systemd.broken = {5001}
    with pytest.raises(NODE.NodeError):
        start(environment, "1", 5001, "0", "40")
    MPS.retry(5)
    assert MPS.problems() == ["MPS of user 5001: systemd-run: Job failed"]
    systemd.broken = set()
    MPS.retry(5)
    assert MPS.problems() == []
    MPS.retry(5)
    assert systemd.users == set()


def test_problems__without_the_program__names_it(
    systemd: Systemd, environment: pytest.MonkeyPatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MPS.shutil, "which", lambda program, path: None)
    assert "no program nvidia-cuda-mps-control" in MPS.problems()[0]
    with pytest.raises(NODE.NodeError, match="no program"):
        start(environment, "1", 5001, "0", "40")
    MPS.CONFIGURATION.unlink()
    assert MPS.problems() == []


def test_daemon__that_has_ended__is_a_problem_if_it_does_not_start(
    systemd: Systemd, environment: pytest.MonkeyPatch
) -> None:
    """Its user can end it."""
    start(environment, "1", 5001, "0", "40")
    systemd.users.clear()
    assert MPS.problems() == []
    assert MPS.retry(5) == []
    assert systemd.users == {5001}
    assert MPS.problems() == []
    systemd.users, systemd.broken = set(), {5001}
    MPS.retry(5)
    assert MPS.problems() == ["MPS of user 5001: systemd-run: Job failed"]
    systemd.broken = set()
    MPS.retry(5)
    assert (systemd.users, MPS.problems()) == ({5001}, [])


def test_daemon__that_does_not_end__is_left_and_prevents_the_next_job(
    systemd: Systemd, environment: pytest.MonkeyPatch
) -> None:
    start(environment, "1", 5001, "0", "40")
    systemd.hung = {5001}
    assert MPS.end("1", LATER, 9) == ["MPS of user 5001 does not end"]
    with pytest.raises(NODE.NodeError, match="does not end"):
        start(environment, "2", 5002, "0")
    assert MPS.problems() == ["MPS of user 5001 does not end"]
    systemd.hung = set()
    MPS.retry(5)
    assert MPS.problems() == []


def test_locked__by_another_process__is_waited_for_only_so_long(systemd: Systemd) -> None:
    with MPS.locked(0), pytest.raises(NODE.NodeError, match="another process"), MPS.locked(0.01):
        pass


def test_end__of_several_users_that_hang__takes_its_time_once(
    systemd: Systemd, environment: pytest.MonkeyPatch
) -> None:
    for user in (5001, 5002, 5003):
        start(environment, str(user), user, "0", "20")
    systemd.hung = {5001, 5002}
    began = systemd.clock
    start(environment, "4", 5004, "0", "20")
    assert systemd.clock == began
    MPS.gpu_node.write_json(MPS.STATE, {"jobs": {}})
    assert len(MPS.end("5001", LATER, 9)) == 2
    assert systemd.clock - began == pytest.approx(9)
    assert systemd.users == {5001, 5002}
    units = [f"job-mps-{user}.service" for user in (5001, 5002, 5003, 5004)]
    assert systemd.of("systemctl", "stop") == [("systemctl", "stop", "--no-block", *units)]


def test_retry__with_daemons_that_hang__ends_in_time(
    systemd: Systemd, environment: pytest.MonkeyPatch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of jobs that have ended and of those that need one, together: gpu-health waits 10 s."""
    for name in ("STATE", "LOCK"):
        monkeypatch.setattr(CLEANUP, name, tmp_path / f"cleanup-{name}")
    monkeypatch.setattr(CLEANUP.os, "geteuid", lambda: 0)
    monkeypatch.setattr(CLEANUP.job_scratch, "CONFIGURATION", tmp_path / "none")
    for part in ("kill_left", "restore_gpus", "free_memory"):
        monkeypatch.setattr(CLEANUP, part, lambda *_: [])
    for user in range(5001, 5009):
        start(environment, str(user), user, "0", "10")
    systemd.hung, systemd.broken, systemd.slow = {5001, 5002, 5003}, {5004, 5005, 5006}, {5004, 5005, 5006}
    systemd.users -= systemd.broken
    with CLEANUP.unfinished() as jobs:
        for user in systemd.hung:
            jobs[str(user)] = ended(str(user))
    began = systemd.clock
    CLEANUP.main(["--retry"])
    assert 3 <= systemd.clock - began <= CLEANUP.ALL_SECONDS


def ended(number: str) -> dict[str, Any]:
    """Return a job that has ended now, whose clean-up is late."""
    job = {"id": number, "uid": int(number), "user": "", "node": "", "gpus": [], "scratch": [], "needs_job": True}
    return {**job, "ended": 0, "tick": PROCESSES.ticks(), "failed": 0, "left": "something"}


def test_start__in_the_worst_case__ends_before_slurmd_gives_up(
    systemd: Systemd, environment: pytest.MonkeyPatch
) -> None:
    """The Prolog may start a daemon twice, with a check of the node's health between."""
    for user in (5001, 5002, 5003):
        start(environment, str(user), user, "0", "20")
    systemd.hung = {5001, 5002, 5003}
    MPS.gpu_node.write_json(MPS.STATE, {"jobs": {}})
    began = systemd.clock
    with pytest.raises(NODE.NodeError, match="does not end"):
        start(environment, "4", 5004, "0", "20")
    took = systemd.clock - began
    assert MPS.STOP_SECONDS * 3 < took <= MPS.PROLOG_SECONDS
    assert 2 * MPS.PROLOG_SECONDS + plugin("../roles/slurm_head/files/gpu_prolog").HEALTH_SECONDS < 160
    assert CLEANUP.EPILOG_SECONDS == 200


def test_end__of_a_job_that_runs_again__leaves_it(systemd: Systemd, environment: pytest.MonkeyPatch) -> None:
    """It was requeued, and the clean-up of its first run is late."""
    first = PROCESSES.ticks() - 1
    start(environment, "1", 5001, "0", "40")
    assert MPS.end("1", first, 9) == []
    assert systemd.users == {5001}
    assert MPS.end("1", LATER, 9) == []
    assert systemd.users == set()


def test_state__while_a_daemon_is_stopped__lacks_its_job(systemd: Systemd, environment: pytest.MonkeyPatch) -> None:
    """A process that is killed then leaves no job that has ended."""
    start(environment, "1", 5001, "0", "40")
    MPS.end("1", LATER, 9)
    start(environment, "2", 5001, "0", "40")
    start(environment, "3", 5002, "1", "40")  # Slurm shares another GPU
    assert systemd.at_stop == [{}, {}]


def test_directory__of_a_user__is_a_small_file_system_of_the_users_own(
    systemd: Systemd, environment: pytest.MonkeyPatch
) -> None:
    start(environment, "1", 5001, "0", "40")
    start(environment, "2", 5002, "0", "40")
    mounts = systemd.of("mount")
    assert [argv[:3] + argv[5:] for argv in mounts] == [
        ("mount", "-t", "tmpfs", "job-mps", f"{MPS.DIRECTORY}/{user}") for user in (5001, 5002)
    ]
    assert {"uid=5002", "mode=0700", "nosuid", "nodev", "noexec"} < {*mounts[1][4].split(",")}
    assert {"size", "nr_inodes"} <= {option.partition("=")[0] for option in mounts[1][4].split(",")}
    assert MPS.DIRECTORY.stat().st_mode & 0o777 == 0o711
    systemd.users.clear()
    MPS.retry(5)
    assert systemd.of("umount") == []  # jobs with private directories would not see another one
    MPS.end("1", LATER, 9)
    assert systemd.of("umount") == [("umount", "--lazy", f"{MPS.DIRECTORY}/5001")]
    assert [place.name for place in MPS.DIRECTORY.iterdir()] == ["5002"]
    systemd.hung = {5002}
    MPS.end("2", LATER, 1)
    assert (MPS.DIRECTORY / "5002").exists()  # the daemon may still use it


def test_directory__that_cannot_be_mounted__is_a_problem(
    systemd: Systemd, environment: pytest.MonkeyPatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MPS, "DIRECTORY", MPS.CONFIGURATION / "mps")
    with pytest.raises(NODE.NodeError):
        start(environment, "1", 5001, "0", "40")
    assert [line[:18] for line in MPS.problems()] == ["MPS of user 5001: "]


def test_retry__with_a_daemon_that_does_not_start__starts_the_others(
    systemd: Systemd, environment: pytest.MonkeyPatch
) -> None:
    for user in (5001, 5002, 5003):
        start(environment, str(user), user, "0", "20")
    systemd.users, systemd.broken = set(), {5001}
    MPS.retry(5)
    assert systemd.users == {5002, 5003}
    systemd.users, systemd.slow = set(), {5001}
    MPS.retry(5)
    assert systemd.users == {5002, 5003}
    assert MPS.problems() == ["MPS of user 5001: systemd-run: Job failed"]


def test_retry__while_the_users_daemon_ends__waits_for_the_next_check(
    systemd: Systemd, environment: pytest.MonkeyPatch
) -> None:
    """systemd starts no unit that is there."""
    start(environment, "1", 5001, "0", "40")
    systemd.hung, systemd.broken = {5001}, {5001}
    MPS.retry(5)
    assert MPS.problems() == []


def test_retry__that_cannot_write__is_a_problem(
    systemd: Systemd, environment: pytest.MonkeyPatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(environment, "1", 5001, "0", "40")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(MPS.gpu_node, "write_json", fail)
    assert MPS.retry(5) == ["MPS: No space left on device"]


@pytest.mark.parametrize(
    ("cgroup", "found"),
    [
        ("0::/system.slice/job-mps-5001.service", []),
        ("1:name=systemd:/system.slice/job-mps-5001.service", []),
        ("0::/user.slice/user-5001.slice/user@5001.service/app.slice/job-mps-5001.service", [10]),
        ("0::/system.slice/slurmstepd.scope/job_1/step_0/user/task_0/system.slice/job-mps-5001.service", [10]),
    ],
)
def test_user_processes__of_the_daemon__are_left_alone(tmp_path: Path, cgroup: str, found: list[int]) -> None:
    """Another job of the user may need it. A user can make a cgroup of the same name below those of the user's own."""
    process(tmp_path, 10, cgroup=cgroup)
    assert PROCESSES.user_processes(5001, tmp_path) == found
