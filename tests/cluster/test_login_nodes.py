"""Login nodes: users submit and compile there, no jobs run there, and only administrators reach the head."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import programs
from tests.cluster.lab import ALICE, ALICES, TestLab, clusterctl, fresh, podman, submit
from tests.cluster.members import states
from tests.cluster.sessions import alice
from tests.faults.injury import container, wait_until
from tests.programs import described

LOGIN = "gpu02"
"""A lab has workers only; this one becomes the login node."""
LINE = "/run/motd.d/clusterctl-queue"


@pytest.fixture(scope="module")
def lab(key: Path) -> Iterator[TestLab]:
    """A cluster of a head, a worker with two GPUs and a login node, bootstrapped."""
    with fresh("login", "--gpus", "2") as lab:
        text = lab.inventory.read_text()
        (moved,) = re.findall(rf"^        {LOGIN}: .*\n", text, re.MULTILINE)
        public = Path(f"{key}.pub").read_text().strip()
        text = text.replace(ALICES, f"      - {{name: alice, uid: 5001, ssh_keys: ['{public}']}}\n")
        lab.inventory.write_text(text.replace(moved, "") + f"    login:\n      hosts:\n{moved}")
        lab.run("bootstrap")
        yield lab


def on_login(lab: TestLab, key: Path, command: str) -> "subprocess.CompletedProcess[str]":
    return alice(lab, key, LOGIN, command)


@pytest.mark.long
@pytest.mark.proves("login", "A user's jobs from a login node run on workers, interactive ones too.")
def test_login__job_of_a_user__runs_on_a_worker(lab: TestLab, key: Path) -> None:
    done = on_login(lab, key, "srun --gres=gpu:1 --mem=200M --chdir=/ sh -c 'hostname; nvidia-smi -L | wc -l'")
    assert done.stdout.split() == ["gpu01", "1"], done.stderr
    done = on_login(
        lab, key, "sbatch --parsable --wait --mem=200M --chdir=/ --output=/dev/null --wrap 'test $(hostname) = gpu01'"
    )
    assert done.returncode == 0, done.stderr
    done = on_login(lab, key, "salloc --quiet --mem=200M --chdir=/ srun hostname")
    assert done.stdout.split() == ["gpu01"], done.stderr
    nodes = on_login(lab, key, "sinfo --noheader --Node --format=%N").stdout.split()
    assert nodes == ["gpu01"]
    assert lab.root(LOGIN, "pgrep -x slurmd || true") == ""


@pytest.mark.long
@pytest.mark.proves("login", "Without sackd, commands find the head by its DNS record.")
def test_login__without_sackd__commands_find_the_head(lab: TestLab, key: Path) -> None:
    """So do those of releases before 23.11, which have no sackd."""
    lab.root(LOGIN, "systemctl stop sackd; mv /run/slurm/conf /run/slurm/aside")
    try:
        done = on_login(lab, key, "sinfo --noheader --Node --format=%N")
        assert done.stdout.split() == ["gpu01"], done.stderr
    finally:
        lab.root(LOGIN, "mv /run/slurm/aside /run/slurm/conf; systemctl start sackd")


@pytest.mark.long
@pytest.mark.proves("login", "With login nodes, SSH to the head admits administrators only.")
def test_head__with_login_nodes__refuses_users(lab: TestLab, key: Path) -> None:
    assert on_login(lab, key, "true").returncode == 0
    assert alice(lab, key, "head1", "true").returncode == 255
    assert alice(lab, key, "gpu01", "true").returncode == 255
    assert lab.ssh("head1", "sudo", "id", "-u").strip() == "0"


PROGRAM = '#include <iostream>\nint main() { std::cout << "compiled\\n"; }\n'


@pytest.mark.long
@pytest.mark.proves("login", "Users compile on login nodes, and have environment modules.")
def test_login__compiler_and_modules__work(lab: TestLab, key: Path) -> None:
    done = on_login(lab, key, f"cat > p.cc <<'E'\n{PROGRAM}E\ng++ -o p p.cc && ./p")
    assert done.stdout == "compiled\n", done.stderr
    done = on_login(lab, key, "bash -lc 'module avail 2>&1; type module'")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.proves("login", "On a login node systemd has limits of memory, CPUs and processes for each user.")
def test_login__session_of_a_user__has_limits(lab: TestLab, key: Path) -> None:
    """The lab's nodes do not have the cgroup controllers that would enforce them."""
    names = ("MemoryMax", "CPUQuotaPerSecUSec", "TasksMax")
    done = on_login(lab, key, f"cat /proc/self/cgroup; systemctl show user-5001.slice --property={','.join(names)}")
    assert "/user.slice/user-5001.slice/" in done.stdout, done.stderr
    found = dict(line.split("=") for line in done.stdout.splitlines() if "=" in line)
    assert (found["CPUQuotaPerSecUSec"], found["TasksMax"]) == ("4s", "4096")
    assert found["MemoryMax"].isdecimal()
    root = lab.root(LOGIN, "systemctl show user-0.slice --property=MemoryMax --value")
    assert root == "infinity\n"


def address(lab: TestLab) -> str:
    shown = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
    return podman("inspect", "--format", shown, container(lab, LOGIN)).strip()


def message(lab: TestLab, key: Path) -> str:
    """Return what a login shows before the shell."""
    known = lab.inventory.parent / "known_hosts"
    options = ("IdentitiesOnly=yes", "BatchMode=yes", f"UserKnownHostsFile={known}")
    argv = ["ssh", "-F", "none", "-tt", "-i", str(key), *(word for one in options for word in ("-o", one))]
    return programs.call([*argv, f"alice@{address(lab)}"], 60, input="exit\n").stdout


@pytest.mark.long
@pytest.mark.proves("login", "The message of the day describes the queue, or that Slurm is down.")
def test_motd__of_a_login_node__describes_the_queue(lab: TestLab, key: Path) -> None:
    name = lab.name
    running = submit(lab, "sleep 900", "--gres=gpu:1", "--mem=200M")
    waiting = submit(lab, "sleep 900", "--gres=gpu:2", "--mem=200M")
    try:
        wait_until(lambda: states(lab, running) == ["RUNNING"])
        lab.root(LOGIN, "systemctl start slurm-queue-line")
        line = f"{name}: 1 job runs, 1 waits; 1 of 2 GPUs are free"
        assert lab.root(LOGIN, f"cat {LINE}") == f"{line}\n"
        assert line in message(lab, key)
    finally:
        lab.ssh("head1", *ALICE, "scancel", running, waiting)
    lab.root("head1", "systemctl stop slurmctld")
    try:
        lab.root(LOGIN, "systemctl start slurm-queue-line")
        assert f"{name}: Slurm's controller does not respond" in message(lab, key)
    finally:
        lab.root("head1", "systemctl start slurmctld")


REINSTALLED = """
rm -f /etc/ssh/ssh_host_* /etc/ssh/sshd_config.d/20-clusterctl-host-key.conf
ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/ssh_host_ed25519_key
systemctl restart ssh
"""


@pytest.mark.long
@pytest.mark.proves("login", "A reinstalled login node has the same SSH host key; clusterctl still reaches it.")
def test_host_key__of_a_reinstalled_login_node__is_kept(lab: TestLab) -> None:
    def presented() -> str:
        return programs.output_of(["ssh-keyscan", "-t", "ed25519", address(lab)], 60).split()[-1]

    before = presented()
    lab.root(LOGIN, REINSTALLED, check=False)  # the connection ends
    assert presented() != before
    lab.run("bootstrap", expect=3)
    done = clusterctl("trust", str(lab.inventory), LOGIN, "--accept-new-host-keys")
    assert done.returncode == 0, described(done)
    lab.run("bootstrap")
    assert presented() == before
    assert lab.root(LOGIN, "id -u") == "0\n"


@pytest.mark.long
@pytest.mark.proves("login", "A second bootstrap of a cluster with login nodes changes nothing.")
def test_bootstrap__again__changes_nothing(lab: TestLab) -> None:
    lab.unchanged()
    lab.unchanged("plan bootstrap")


@pytest.mark.long
@pytest.mark.proves("login", "When the last login node leaves, users reach the head again.")
def test_head__after_the_last_login_node_left__admits_users(lab: TestLab, key: Path) -> None:
    lab.run("remove-node", LOGIN, "--yes")
    assert alice(lab, key, "head1", "true").returncode == 0
    left = "grep -rls clusterctl /etc/pam.d /etc/security /etc/cron.allow /etc/at.allow || true"
    assert lab.root("head1", left) == "/etc/security/limits.d/60-clusterctl.conf\n"
    hosts = lab.run("bootstrap", "--full")["hosts"]
    assert {name: host["changed"] for name, host in hosts.items()} == {"head1": 0, "gpu01": 0}
