"""What an ended job has left: processes and objects by files of /proc, clocks by a library that answers as NVML."""

import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from clusterctl.util import paths
from tests.unit.test_gpu_health import NODE, installed

# As printed by Linux 6.18 in the lab; the second line of each is another user's.
SHM = """\
       key      shmid perms                  size  cpid  lpid nattch   uid   gid  cuid  cgid      atime      dtime
 121100258          4   644                  4096  3091     0      0  5001  5001  5001  5001          0          0
-1414852159         5   644                  5001  5001     0      0  5002  5002  5002  5002          0          0
"""
SEM = """\
       key      semid perms      nsems   uid   gid  cuid  cgid      otime      ctime
 -12973551          7   644          1  5001  5001  5001  5001          0 1796018004
 -12973552          8   644       5001  5002  5002  5002  5002          0 1796018004
"""
MSG = """\
       key      msqid perms      cbytes       qnum lspid lrpid   uid   gid  cuid  cgid      stime      rtime      ctime
 177105512          9   644           0          0     0     0  5002  5001  5001  5001          0          0 1796018004
 177105513         10   644           0       5001  5001     0  5002  5002  5002  5002          0          0 1796018004
"""
CGROUPS = {
    "v2": "0::/system.slice/slurmstepd.scope/job_{}/step_0/user/task_0",
    "v1": "9:memory:/slurm/uid_5001/job_{0}/step_batch\n1:freezer:/slurm/uid_5001/job_{0}/step_batch",
    "nested": "0::/system.slice/slurmstepd.scope/job_{}/step_0/user/task_0/job_99",
}


PROCESSES, CLEANUP = map(installed, ("job_processes", "job_cleanup"))


def job(**changed: Any) -> dict[str, Any]:
    """Return a job of alice's that has ended 1000 ticks after the boot."""
    default = {"id": "12", "uid": 5001, "user": "alice", "node": "gpu01", "gpus": [], "ended": 0, "tick": 1000}
    return {**default, "needs_job": True, "failed": 0, "left": "", **changed}


def process(
    proc: Path, pid: int, uid: int = 5001, state: str = "S", cgroup: str = "0::/", environ: str = "", tick: int = 500
) -> None:
    (proc / str(pid)).mkdir(parents=True)
    status = f"Name:\tsleep\nState:\t{state} (sleeping)\nPPid:\t1\nUid:\t{uid}\t0\t0\t0\n"
    stat = f"{pid} (a) b) {state} {'0 ' * 18}{tick} 0 0\n"
    for name, text in {"status": status, "stat": stat, "cgroup": cgroup + "\n", "environ": environ}.items():
        (proc / str(pid) / name).write_text(text)
    (proc / str(pid) / "exe").symlink_to("/bin/sleep")


def test_user_processes__by_real_uid_and_state__are_found(tmp_path: Path) -> None:
    process(tmp_path, 10)
    process(tmp_path, 11, uid=5002)
    process(tmp_path, 12, state="Z")  # its parent has not read its exit status
    process(tmp_path, 13, state="D")
    (tmp_path / "self").mkdir()
    assert sorted(PROCESSES.user_processes(5001, tmp_path)) == [10, 13]


@pytest.mark.parametrize(("parent", "found"), [("slurmd", []), ("bash", [10])])
def test_user_processes__slurmd_for_a_user__is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parent: str, found: list[int]
) -> None:
    process(tmp_path, 10)
    process(tmp_path, 1, uid=0)
    programs = {tmp_path / "10": "slurmd", tmp_path / "1": parent}
    monkeypatch.setattr(PROCESSES, "is_slurm", lambda entry, of_root=False: programs[entry] == "slurmd")
    assert PROCESSES.user_processes(5001, tmp_path) == found


@pytest.mark.parametrize("cgroup", CGROUPS.values(), ids=CGROUPS)
@pytest.mark.parametrize("needs_job", [True, False])
def test_is_left__process_in_a_cgroup__belongs_to_its_job(tmp_path: Path, cgroup: str, needs_job: bool) -> None:
    process(tmp_path, 10, cgroup=cgroup.format(12), environ="SLURM_JOB_ID=13")
    for number, left in (("12", True), ("13", False), ("1", False)):
        assert PROCESSES.is_left(10, job(id=number, needs_job=needs_job), tmp_path) is left


@pytest.mark.parametrize(
    ("needs_job", "environ", "cgroup", "left"),
    [
        (True, "", "0::/", True),
        (True, "SLURM_JOB_ID=13", "0::/", True),
        (False, "", "0::/", False),
        (False, "A=1\0SLURM_JOB_ID=12\0B=2", "0::/", True),
        (False, "SLURM_JOB_ID=121\0X=SLURM_JOB_ID=12", "0::/", False),
        (False, "SLURM_JOB_ID=12", "0::/user.slice/user-5001.slice/session-3.scope", False),  # salloc's shell
        # A cgroup that a user has made.
        (True, "", "0::/user.slice/user@5001.service/slurmstepd.scope/job_13", True),
    ],
)
def test_is_left__process_in_no_jobs_cgroup__by_who_may_be_here(
    tmp_path: Path, needs_job: bool, environ: str, cgroup: str, left: bool
) -> None:
    process(tmp_path, 10, environ=environ, cgroup=cgroup)
    assert PROCESSES.is_left(10, job(needs_job=needs_job), tmp_path) is left


def test_is_left__of_a_job_that_was_requeued__is_not(tmp_path: Path) -> None:
    process(tmp_path, 10, cgroup=CGROUPS["v2"].format(12), tick=1001)
    assert not PROCESSES.is_left(10, job(), tmp_path)


@pytest.mark.parametrize(
    ("user", "groups", "needed"),
    [
        ("alice", "alice cluster", True),
        ("root", "root", False),
        ("carol", "carol sudo", False),
        ("wheel", "wheels", True),
        ("dan", "dan", False),
        ("erin", None, False),  # the directory of users does not respond
    ],
)
def test_requires_job__administrators_of_the_file__do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: str, groups: str | None, needed: bool
) -> None:
    def run(*argv: str, seconds: float) -> str:
        if groups is None:
            raise NODE.CommandError(argv, ["no response"])
        return groups

    monkeypatch.setattr(PROCESSES, "run", run)
    file = tmp_path / "administrators.conf"
    assert not PROCESSES.requires_job(user, file)  # without the file, all users can log in
    file.write_text("# Users who can log in, see access.conf(5).\n+ : (sudo) (wheel) dan root : ALL\n- : ALL : ALL\n")
    assert PROCESSES.requires_job(user, file) is needed


def test_sysv_objects__of_owner_or_creator__are_found(tmp_path: Path) -> None:
    for name, text in {"shm": SHM, "sem": SEM, "msg": MSG}.items():
        (tmp_path / name).write_text(text)
    assert CLEANUP.sysv_objects(5001, tmp_path) == {"shm 4": "-m4", "msg 9": "-q9", "sem 7": "-s7"}
    assert CLEANUP.sysv_objects(5003, tmp_path) == {}


# Three GPUs whose clocks are not the default; one has no application clocks.
SOURCE = """
static unsigned now[3] = {{210, 210, 210}};
int nvmlInit_v2(void) {{ return {init}; }}
int nvmlDeviceGetCount_v2(unsigned *count) {{ *count = {count}; return 0; }}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **gpu) {{ *gpu = &now[index]; return 0; }}
static long number(void *gpu) {{ return (unsigned *)gpu - now; }}
int nvmlDeviceGetMinorNumber(void *gpu, unsigned *out) {{ *out = number(gpu) + (number(gpu) >= {gap}); return 0; }}
int nvmlDeviceGetMigMode(void *gpu, unsigned *out, unsigned *pending) {{ *out = number(gpu) == {mig}; return 0; }}
int nvmlDeviceGetName(void *gpu, char *name, unsigned length) {{
    name[0] = number(gpu) == {other} ? 'b' : 'a';
    return 0;
}}
int nvmlDeviceGetApplicationsClock(void *gpu, unsigned type, unsigned *out) {{
    *out = type == 0 ? *(unsigned *)gpu : 1593;
    return number(gpu) == 2 ? 3 : 0;
}}
int nvmlDeviceGetDefaultApplicationsClock(void *gpu, unsigned type, unsigned *out) {{
    *out = type == 0 ? 1275 : 1593;
    return 0;
}}
int nvmlDeviceResetApplicationsClocks(void *gpu) {{
    if (!{code}) *(unsigned *)gpu = 1275;
    return {code};
}}
int changed(void) {{ return (now[0] != 210) + 10 * (now[1] != 210) + 100 * (now[2] != 210); }}
"""


@pytest.mark.skipif(not shutil.which("gcc"), reason="the library is compiled here")
@pytest.mark.parametrize(
    ("numbers", "node", "left", "changed"),
    [
        ([0, 1, 2], {}, [], 11),
        ([1], {}, [], 10),
        ([0], {"code": 4}, ["application clocks of GPU 0 (NVML: 4)"], 0),  # NVML_ERROR_NO_PERMISSION
        ([0], {"init": 9}, [], 0),  # NVML_ERROR_DRIVER_NOT_LOADED: gpu-health reports it
        # The positions in gres.conf may be other GPUs.
        ([0], {"gap": 1}, [], 0),
        ([0], {"mig": 1}, [], 0),
        ([0], {"other": 1}, [], 0),
        ([3], {}, [], 0),
        ([0], {"count": 0}, [], 0),
    ],
)
def test_reset_clocks__of_the_jobs_gpus__are_the_default_again(
    tmp_path: Path, numbers: list[int], node: dict[str, int], left: list[str], changed: int
) -> None:
    default = {"init": 0, "count": 3, "gap": 9, "mig": 9, "other": 9, "code": 0}
    (tmp_path / "nvml.c").write_text(SOURCE.format(**{**default, **node}))
    library = str(tmp_path / "nvml.so")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, tmp_path / "nvml.c"], check=True)
    assert CLEANUP.reset_clocks(numbers, library) == left
    assert CLEANUP.ctypes.CDLL(library).changed() == changed


def test_reset_clocks__without_a_driver__leaves_nothing(tmp_path: Path) -> None:
    assert CLEANUP.reset_clocks([0], str(tmp_path / "no-such.so")) == []


def test_in_child__that_hangs__is_left_behind() -> None:
    assert CLEANUP.in_child(5.0, lambda numbers: [f"GPU {numbers[0]}"], [3]) == ["GPU 3"]
    with pytest.raises(NODE.NodeError, match="does not respond"):
        CLEANUP.in_child(0.1, lambda _: time.sleep(60), [3])


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the parts of a clean-up answer, an error to raise or a list; its files are below a temporary directory."""
    answers: dict[str, Any] = {"kill_left": [], "restore_gpus": [], "free_memory": []}
    monkeypatch.setattr(CLEANUP, "STATE", tmp_path / "state.json")
    monkeypatch.setattr(CLEANUP, "LOCK", tmp_path / "lock")

    def answer(name: str) -> Any:
        if isinstance(answers[name], Exception):
            raise answers[name]
        return answers[name]

    for name in answers:
        monkeypatch.setattr(CLEANUP, name, lambda *_, name=name: answer(name))
    return answers


def recorded() -> dict[str, Any]:
    with CLEANUP.unfinished() as jobs:
        return dict(jobs)


def cleaned(**changed: Any) -> str:
    """Clean up after a job; return what is left."""
    ended = job(**changed)
    with CLEANUP.unfinished() as jobs:
        jobs[ended["id"]] = ended
    CLEANUP.clean(ended, 0.0, 0.0, CLEANUP.Deadline(9))
    return str(ended["left"])


@pytest.mark.parametrize("part", ["restore_gpus", "free_memory"])
def test_clean__of_what_is_left__is_recorded_until_it_is_gone(node: dict[str, Any], part: str) -> None:
    node[part] = ["ECC of GPU 0 waits"]
    assert cleaned() == "ECC of GPU 0 waits"
    CLEANUP.retry(CLEANUP.Deadline(7))
    assert recorded()["12"]["left"] == "ECC of GPU 0 waits"
    node[part] = []
    CLEANUP.retry(CLEANUP.Deadline(7))
    assert recorded() == {}


def test_clean__of_processes_that_do_not_end__names_the_first(node: dict[str, Any]) -> None:
    node["kill_left"] = [7, 8, 9]
    assert cleaned() == "process 7 does not end; 2 more do not end"


def test_clean__that_fails__is_left_when_it_fails_again(node: dict[str, Any]) -> None:
    """A controller or a driver that does not respond for a moment drains no node."""
    node["free_memory"] = NODE.NodeError("squeue failed")
    assert cleaned() == ""
    CLEANUP.retry(CLEANUP.Deadline(7))
    assert recorded()["12"]["left"] == "clean-up failed: squeue failed"
    node["free_memory"] = []
    CLEANUP.retry(CLEANUP.Deadline(7))
    assert recorded() == {}


def test_clean__that_fails_later__keeps_what_is_left(node: dict[str, Any]) -> None:
    node["kill_left"] = [7]
    assert cleaned() == "process 7 does not end"
    node["kill_left"] = NODE.NodeError("no time is left")
    CLEANUP.retry(CLEANUP.Deadline(7))
    assert recorded()["12"]["left"] == "process 7 does not end"


def test_clean__with_an_error_of_the_system__is_retried(node: dict[str, Any]) -> None:
    node["restore_gpus"] = OSError(28, "No space left on device")
    assert cleaned() == ""
    CLEANUP.retry(CLEANUP.Deadline(7))
    assert "No space left" in recorded()["12"]["left"]


def test_main__with_a_problem_of_mps__prints_it(
    node: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """gpu-health drains for each line, and not for a program that fails."""
    monkeypatch.setattr(CLEANUP.os, "geteuid", lambda: 0)
    monkeypatch.setattr(CLEANUP.job_mps, "retry", lambda _: ["MPS: No space left on device"])
    monkeypatch.setattr(CLEANUP.job_mps, "problems", list)
    monkeypatch.setattr(CLEANUP.job_scratch, "base", lambda: None)
    CLEANUP.main(["--retry"])
    assert capsys.readouterr().out == "MPS: No space left on device\n"


def test_retry__of_a_job_whose_epilog_runs__does_nothing(node: dict[str, Any]) -> None:
    with CLEANUP.unfinished() as jobs:
        jobs["12"] = job(ended=time.time())
    CLEANUP.retry(CLEANUP.Deadline(7))
    assert {*recorded()} == {"12"}


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of all jobs' scratch, as that of a worker."""
    monkeypatch.setattr(CLEANUP.job_scratch, "CONFIGURATION", tmp_path / "scratch")
    monkeypatch.setattr(CLEANUP.job_scratch, "start_emptying", lambda: None)
    (tmp_path / "scratch").write_text(f"{tmp_path}/local\n")
    (tmp_path / "local/12").mkdir(parents=True)
    return tmp_path / "local"


@pytest.mark.parametrize("is_removed", [True, False])
def test_retry__of_a_job_that_runs_again__keeps_its_scratch(
    node: dict[str, Any], scratch: Path, is_removed: bool
) -> None:
    """Of the first run a process does not end; its scratch is removed by the Epilog, or by the Prolog of the next."""
    node["kill_left"] = [7]
    ended = job(scratch=CLEANUP.scratch_of("12"))
    with CLEANUP.unfinished() as jobs:
        jobs["12"] = ended
    if is_removed:
        CLEANUP.clean(ended, 0.0, 0.0, CLEANUP.Deadline(9))
        assert (scratch / "12").exists() is False
        assert recorded()["12"]["scratch"] == []
    else:
        CLEANUP.job_scratch.remove("12")
    (scratch / "12").mkdir()
    (scratch / "12/result").touch()
    for left in ([7], []):
        node["kill_left"] = left
        CLEANUP.retry(CLEANUP.Deadline(7))
        assert (scratch / "12/result").exists()
    assert recorded() == {}


def test_scratch__that_cannot_be_removed__is_removed_later(
    node: dict[str, Any], scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: str) -> None:
        raise OSError(30, "Read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr(CLEANUP.job_scratch, "remove", fail)
        left = cleaned(scratch=CLEANUP.scratch_of("12"))
    assert left == "cannot remove its scratch directory: Read-only file system"
    CLEANUP.retry(CLEANUP.Deadline(7))
    assert (recorded(), (scratch / "12").exists()) == ({}, False)


def test_main__of_any_failure__ends_well(node: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With another exit status Slurm drains the node, which nothing would resume."""
    monkeypatch.setattr(CLEANUP.os, "geteuid", lambda: 0)
    CLEANUP.main([])  # without the environment of an Epilog
    monkeypatch.setattr(CLEANUP, "LOCK", Path("/proc/none/lock"))
    for name, value in {"SLURM_JOB_ID": "12", "SLURM_JOB_UID": "5001", "SLURM_JOB_USER": "root"}.items():
        monkeypatch.setenv(name, value)
    CLEANUP.main([])


def test_limits__of_the_epilog__are_those_of_slurm_conf() -> None:
    roles = paths.content() / "roles"
    template = (roles / "slurm_head/templates/slurm.conf.j2").read_text()
    assert f"\nPrologEpilogTimeout={CLEANUP.EPILOG_SECONDS}\n" in template
    assert CLEANUP.EPILOG_SECONDS * (1 / 2 + 1 / 3) < CLEANUP.EPILOG_SECONDS - 10
