"""What users meet in their first hour: their files at home, MPI, limits that are told at once, GPUs that are billed.

The shared home is a stand-in: a directory of this machine that all nodes see, and mount as homes, for this machine's
kernel may have no NFS. The mount, its unit and the order of its start are the product's.
"""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from clusterctl.lab.podman import run_as_root
from tests.cluster.lab import TestLab, clusterctl, fresh, podman
from tests.cluster.members import of_jobs, states
from tests.faults.injury import container, in_service, wait_until

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("built")]

EXPORT, HOMES, HERS = "/srv/export", "/srv/homes", "/srv/homes/alice"
# Gives a directory a second place, in the mount namespace of another process; see open_tree(2) and move_mount(2).
ATTACH = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
source, pid, target = (os.fsencode(word) for word in sys.argv[1:])
def done(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
tree = done(libc.syscall(428, -100, source, 1))  # AT_FDCWD, OPEN_TREE_CLONE
done(libc.setns(os.open(b"/proc/%s/ns/mnt" % pid, os.O_RDONLY), 0x20000))  # CLONE_NEWNS
os.makedirs(target)
done(libc.syscall(429, tree, b"", -100, target, 4))  # MOVE_MOUNT_F_EMPTY_PATH
"""
VARIABLES = f"""\
    users_home: {HOMES}
    nfs_client_mounts: [{{path: {HOMES}, source: {EXPORT}, type: none, options: [bind, nosuid, nodev]}}]
    slurm_head_partitions:
      - {{name: main, default: true, options: {{MaxTime: "02:00:00"}}}}
"""
MPI = "    mpi: {children: {slurm_head: {}, slurm_workers: {}}}\n"
PROGRAM = r"""
#include <mpi.h>
#include <stdio.h>
int main(int argc, char **argv) {
    int rank, size, length, sum;
    char name[MPI_MAX_PROCESSOR_NAME];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Get_processor_name(name, &length);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    printf("%d of %d on %s, %d\n", rank, size, name, sum);
    MPI_Finalize();
}
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestLab]:
    """A cluster whose users write to one home everywhere, with MPI and a limit of two hours."""
    shared = tmp_path_factory.mktemp("homes")
    shared.chmod(0o755)
    with fresh("hour", "--gpus", "4") as lab:
        for node in lab.nodes:
            (pid,) = podman("inspect", "--format", "{{.State.Pid}}", container(lab, node)).split()
            run_as_root(["python3", "-c", ATTACH, str(shared), pid, EXPORT])
        text = lab.inventory.read_text()
        lab.inventory.write_text(text.replace("  children:\n", VARIABLES + "  children:\n", 1) + MPI)
        yield lab


@pytest.fixture(scope="module")
def built(lab: TestLab) -> dict[str, Any]:
    """What the first bootstrap says; each test may run by itself."""
    return lab.run("bootstrap")


def alice(lab: TestLab, script: str) -> str:
    """Run a script in her home on the head; return all that it says."""
    argv = ["sudo", "--login", "--user", "alice", "sh", "-eu"]
    return lab.ssh("head1", *argv, stdin=f"exec 2>&1\n{script}\n")


@pytest.mark.proves("jobs", "`nfs_client_mounts` mounts homes before Slurm starts; output is where its user submitted.")
def test_homes__from_an_export__have_a_jobs_output(lab: TestLab, built: dict[str, Any]) -> None:
    assert "homes are not shared" not in str(built["notes"])
    lab.unchanged()
    told = alice(lab, "mkdir work; cd work; sbatch --nodelist=gpu02 --wrap 'pwd; hostname; id -u'")
    job = re.findall(r"\d+", told)[0]
    wait_until(lambda: states(lab, job) == ["COMPLETED"])
    assert alice(lab, f"cat work/slurm-{job}.out; stat --format=%U work/slurm-{job}.out").split() == [
        f"{HERS}/work",
        "gpu02",
        "5001",
        "alice",
    ]
    assert lab.healthy()["homes_apart"] == []
    page = clusterctl("status", str(lab.inventory)).stdout
    assert re.search(r"^Homes +shared$", page, re.MULTILINE)


@pytest.mark.proves("jobs", "Without its users' homes a worker gets no jobs.")
def test_homes__that_are_gone__stop_slurm_there(lab: TestLab) -> None:
    lab.root("gpu01", "systemctl stop srv-homes.mount")
    assert lab.root("gpu01", "systemctl is-active slurmd || true").strip() == "inactive"
    lab.run("bootstrap")
    assert in_service(lab)["gpu01"] == "idle"
    assert lab.root("gpu01", f"ls {HOMES}").split() == ["alice"]


@pytest.mark.proves("bootstrap", "A mount that would hide files is refused, and nothing is hidden.")
def test_homes__where_files_would_be_hidden__are_refused(lab: TestLab) -> None:
    text = lab.inventory.read_text()
    lab.inventory.write_text(text.replace(f"users_home: {HOMES}\n", "users_home: /srv/local\n", 1))
    lab.root("gpu01", "mkdir -p /srv/local/carol")
    done = lab.run("plan bootstrap", expect=4)
    assert "/srv/local is not a mount and has carol" in str(done["failures"])
    done = lab.run("bootstrap", "--limit", "gpu01", expect=4)
    assert "/srv/local is not a mount and has carol" in str(done["failures"])
    assert lab.root("gpu01", "ls /srv/local; mountpoint -q /srv/local || echo bare").split() == ["carol", "bare"]
    lab.root("gpu01", "rm -r /srv/local")
    lab.inventory.write_text(text)
    lab.run("bootstrap")


@pytest.mark.proves("jobs", "An MPI program of a user's runs on two nodes, and so does the proof's.")
def test_mpi__program_of_a_user__runs_on_two_nodes(lab: TestLab) -> None:
    alice(lab, f"cat > ring.c <<'END'\n{PROGRAM}END\nmpicc -o ring ring.c")
    told = alice(lab, "srun --quiet --nodes=2 --ntasks=4 --mem=100M ./ring")
    assert sorted(told.splitlines()) == [
        "0 of 4 on gpu01, 6",
        "1 of 4 on gpu01, 6",
        "2 of 4 on gpu02, 6",
        "3 of 4 on gpu02, 6",
    ]


@pytest.mark.proves("verify", "An MPI that does not work is reported; its nodes stay in service.")
def test_mpi__broken_on_one_node__fails_the_proof(lab: TestLab) -> None:
    lab.root("gpu02", "mv /usr/bin/mpicc /usr/bin/mpicc.away")
    done = lab.run("verify", expect=5)
    assert "MPI across gpu01 and gpu02" in str(done["failures"])
    assert set(in_service(lab).values()) == {"idle"}
    lab.root("gpu02", "mv /usr/bin/mpicc.away /usr/bin/mpicc")
    lab.run("verify")


@pytest.mark.proves("jobs", "Users reach their own running jobs by srun --overlap.")
@pytest.mark.proves("jobs", "A job's limit of locked memory is its node's, not that of the login.")
def test_job__under_way__is_reached_from_the_head(lab: TestLab) -> None:
    """As docs/slurm.md has it, since nobody logs in from the head to a worker."""
    limits = lab.root("gpu02", "cat /proc/$(pgrep --oldest slurmd)/limits")
    locked = re.findall(r"Max locked memory +(\d+|unlimited)", limits)[0]
    job = re.findall(r"\d+", alice(lab, "ulimit -l 64; sbatch --nodelist=gpu02 --wrap 'ulimit -l > mine; sleep 600'"))[
        0
    ]
    try:
        wait_until(lambda: states(lab, job) == ["RUNNING"])
        command = f"srun --jobid={job} --overlap --pty sh -c 'hostname -s; ulimit -l'"
        found = alice(lab, f'ulimit -l 64; script --quiet --return --command "{command}" /dev/null | tr -d "\\0\\r"')
        # Containers cannot raise a limit to what the unit of slurmd asks for.
        of_the_node = "unlimited" if locked == "unlimited" else str(int(locked) // 1024)
        assert found.split() == ["gpu02", of_the_node]
        wait_until(lambda: alice(lab, "cat mine").split() == [of_the_node])
    finally:
        alice(lab, f"scancel {job}")


@pytest.mark.proves("jobs", "A job over its partition's limit is refused when it is submitted.")
def test_limit__of_the_partition__is_told_at_once(lab: TestLab) -> None:
    told = alice(lab, "sbatch --time=02:00:01 --wrap true || echo refused")
    assert told.endswith("refused\n")
    assert "time limit" in told.lower()
    job = re.findall(r"\d+", alice(lab, "sbatch --wrap true"))[0]
    wait_until(lambda: states(lab, job) == ["COMPLETED"])
    assert of_jobs(lab, job, "Timelimit") == ["02:00:00"]


@pytest.mark.proves("jobs", "A job over a limit of its account is refused when it is submitted.")
def test_limit__of_the_account__is_refused_at_once(lab: TestLab) -> None:
    """Of all cores at once: a job that would fit beside no other waits as before."""
    lab.root("head1", "sacctmgr --immediate modify user alice set MaxTRESPerJob=cpu=1")
    try:
        refused = alice(lab, "sbatch --ntasks=2 --wrap true || echo refused")
        assert refused.endswith("refused\n")
        assert "limit" in refused.lower()
        job = re.findall(r"\d+", alice(lab, "sbatch --ntasks=1 --wrap true"))[0]
        wait_until(lambda: states(lab, job) == ["COMPLETED"])
    finally:
        lab.root("head1", "sacctmgr --immediate modify user alice set MaxTRESPerJob=cpu=-1")


@pytest.mark.proves("jobs", "On the head users have git, an editor and compilers; unsent mail is logged.")
def test_tools__of_users_on_the_head__are_there(lab: TestLab) -> None:
    alice(lab, "command -v gcc g++ git htop jq make nano wget")
    source = r"""printf '#include <stdio.h>\nint main() { return puts("hello") < 0; }' > hello.c"""
    alice(lab, f"{source}; gcc hello.c -o hello; ./hello | grep -x hello")
    job = re.findall(r"\d+", alice(lab, "sbatch --mail-type=END --wrap true"))[0]
    wait_until(lambda: f"Job_id={job}" in lab.root("head1", "journalctl --identifier=slurm-mail --output=cat"))


@pytest.mark.proves("jobs", "A job is billed for the largest of its shares of cores, memory and GPUs.")
def test_billing__of_all_gpus_of_a_node__is_that_of_the_node(lab: TestLab) -> None:
    cores = int(lab.root("head1", "sinfo --noheader --nodes=gpu01 --format=%c"))
    alice(lab, "srun --quiet --nodelist=gpu01 --gres=gpu:4 --mem=10M true")
    alice(lab, "srun --quiet --nodelist=gpu01 --mem=10M true")
    jobs = alice(lab, "sacct --noheader --allocations --parsable2 --format=JobID | tail -n 2").split()
    told = [of_jobs(lab, job, "AllocTRES")[0] for job in jobs]
    assert [int(re.findall(r"billing=(\d+)", one)[0]) for one in told] == [cores, 1]
