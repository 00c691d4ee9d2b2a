"""Which users' MPS daemons are started and ended around jobs, by a systemd that is simulated."""

from pathlib import Path

import pytest

from tests.unit.test_gpu_health import NODE, installed
from tests.unit.test_job_cleanup import PROCESSES, process

MPS = installed("job_mps")


class Systemd:
    """A simulated systemd: it has the users whose daemon runs; those of `broken` do not start, of `hung` do not end."""

    def __init__(self) -> None:
        self.users: set[int] = set()
        self.broken: set[int] = set()
        self.hung: set[int] = set()
        self.commands: list[tuple[str, ...]] = []

    def run(self, *argv: str, seconds: float) -> str:
        self.commands.append(argv)
        user = next((int(match[1]) for word in argv if (match := MPS.UNIT.search(word))), 0)
        if argv[1] == "list-units":
            return "".join(f"job-mps-{one}.service loaded active running x\n" for one in sorted(self.users))
        if argv[1] == "is-active" and user not in self.users:
            raise NODE.CommandError(argv, ["exit status 3"])
        if argv[1] == "stop" and user not in self.hung:
            self.users.discard(user)
        if argv[0] == "systemd-run":
            if user in self.broken:
                raise NODE.CommandError(argv, ["Job failed", "see journal"])
            self.users.add(user)
        return ""

    def started(self) -> list[str]:
        return [word for argv in self.commands if argv[0] == "systemd-run" for word in argv]


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Systemd:
    """A worker with two GPUs, the program of MPS and no job."""
    simulated = Systemd()
    monkeypatch.setattr(MPS, "run", simulated.run)
    for name, text in {
        "CONFIGURATION": '[{"device": "/dev/nvidia0", "uuid": "GPU-a"}, {"device": "/dev/nvidia1", "uuid": "GPU-b"}]',
        "STATE": "",
        "LOCK": "",
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
    assert MPS.end("1", 9) == MPS.end("1", 9) == []
    assert systemd.users == {5001, 5002}
    assert MPS.end("2", 9) == []
    assert systemd.users == {5002}
    assert MPS.problems() == []


def test_daemon__of_a_user__has_the_jobs_gpu_alone(systemd: Systemd, environment: pytest.MonkeyPatch) -> None:
    start(environment, "1", 5001, "1", "40")
    words = systemd.started()
    assert words[-2:] == ["/usr/bin/nvidia-cuda-mps-control", "-d"]
    assert {"--setenv=CUDA_VISIBLE_DEVICES=GPU-b", "--setenv=CUDA_MPS_PIPE_DIRECTORY=/run/mps/5001/pipe"} <= {*words}
    assert [word for word in words if "/dev/nvidia0" in word or "/dev/nvidia1" in word] == [
        "--property=DeviceAllow=/dev/nvidia1 rw"
    ]
    assert {"--property=DevicePolicy=closed", "--property=RuntimeDirectoryMode=0700", "--uid=5001"} <= {*words}


def test_start__without_a_part_of_a_gpu__starts_nothing(systemd: Systemd, environment: pytest.MonkeyPatch) -> None:
    start(environment, "1", 5001, "0,1")
    start(environment, "2", 5001, "")
    assert systemd.commands == []
    assert MPS.end("1", 9) == []
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
    MPS.retry()
    assert MPS.problems() == ["MPS of user 5001: systemd-run: Job failed"]
    systemd.broken = set()
    MPS.retry()
    assert MPS.problems() == []
    MPS.retry()
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


def test_daemon__that_has_ended__is_a_problem_and_starts_again(
    systemd: Systemd, environment: pytest.MonkeyPatch
) -> None:
    start(environment, "1", 5001, "0", "40")
    systemd.users.clear()
    assert MPS.problems() == ["MPS of user 5001 has ended: journalctl -u job-mps-5001.service"]
    MPS.retry()
    assert systemd.users == {5001}
    assert MPS.problems() == []


def test_daemon__that_does_not_end__is_left_and_prevents_the_next_job(
    systemd: Systemd, environment: pytest.MonkeyPatch
) -> None:
    start(environment, "1", 5001, "0", "40")
    systemd.hung = {5001}
    assert MPS.end("1", 9) == ["MPS of user 5001 does not end"]
    with pytest.raises(NODE.NodeError, match="does not end"):
        start(environment, "2", 5002, "0")
    assert MPS.problems() == ["MPS of user 5001 does not end"]
    systemd.hung = set()
    MPS.retry()
    assert MPS.problems() == []


def test_locked__by_another_process__is_waited_for_only_so_long(systemd: Systemd) -> None:
    with MPS.locked(0), pytest.raises(NODE.NodeError, match="another process"), MPS.locked(0.01):
        pass


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
