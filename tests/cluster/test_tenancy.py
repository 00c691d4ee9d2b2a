"""What two users of one cluster see and reach of each other, with the settings that a cluster has by itself."""

import re

import pytest

from tests.cluster.lab import ALICES, TestLab, clusterctl
from tests.cluster.members import states
from tests.faults.injury import in_service, wait_until

DIRECTORIES = "/var/lib/slurm/job_directories/gpu01"  # each job's own below its number
OTHERS = "      - {name: bob, uid: 5002}\n      - {name: carol, uid: 5003, admin: true}\n"
MAY, MAY_NOT = "No such device or address", "Operation not permitted"  # what reading a simulated GPU says


@pytest.fixture(scope="module")
def two(whole: TestLab) -> TestLab:
    """The lab with a second user and an administrator."""
    text = whole.inventory.read_text()
    assert ALICES in text
    whole.inventory.write_text(text.replace(ALICES, ALICES + OTHERS))
    whole.run("bootstrap")
    return whole


def user(lab: TestLab, name: str, script: str, check: bool = True) -> str:
    """Run a shell script on the head as one of the two; return what it says."""
    return lab.ssh("head1", "sudo", "--login", "--user", name, "sh", "-eu", stdin=f"exec 2>&1\n{script}\n", check=check)


JOB = """sbatch --parsable --chdir=/ --output=none --nodelist=gpu01 --gres=gpu:1 --mem=200M --job-name=hers --wrap '
touch /tmp/hers /dev/shm/hers; exec sleep 4545'"""
LOOK = """srun --quiet --chdir=/ --nodelist=gpu01 --gres=gpu:1 --mem=200M sh -c '
ls -A /tmp /dev/shm
for device in /dev/nvidia[0-9]*; do cat $device; done; true'"""


@pytest.fixture
def job(two: TestLab) -> str:
    """A job of alice's on gpu01, which has left something in both temporary directories."""
    number = user(two, "alice", JOB).strip()
    wait_until(lambda: two.root("gpu01", f"ls {DIRECTORIES}/{number}/.{number}/_tmp/hers", check=False) != "")
    return number


@pytest.mark.proves("jobs", "Two users' jobs on one node share no GPU, no /tmp and no /dev/shm.")
def test_jobs__of_two_users_on_one_node__share_nothing(two: TestLab, job: str) -> None:
    told = user(two, "bob", LOOK)
    assert "hers" not in told
    assert sorted(re.findall(f"{MAY}|{MAY_NOT}", told)) == [MAY, *[MAY_NOT] * 3]
    used = two.root("head1", "scontrol show node gpu01 --details | grep GresUsed")
    assert "(IDX:N/A)" not in used, "alice's job still runs"
    two.root("head1", f"scancel {job}")
    wait_until(lambda: states(two, job)[:1] == ["CANCELLED"])  # then by whom
    wait_until(lambda: two.root("gpu01", f"ls {DIRECTORIES}; ls /tmp /dev/shm | grep hers || true") == "")


@pytest.mark.proves("jobs", "A job that asks for no GPU opens none.")
def test_job__without_gpus__opens_none(two: TestLab) -> None:
    told = user(two, "bob", LOOK.replace("--gres=gpu:1 ", ""))
    assert re.findall(f"{MAY}|{MAY_NOT}", told) == [MAY_NOT] * 4


@pytest.mark.proves("jobs", "Users see nothing of each other's jobs in the queue and the accounting.")
def test_queue__of_another_user__is_not_shown(two: TestLab, job: str) -> None:
    assert job in two.root("head1", "squeue --noheader --format=%A").split()
    assert user(two, "alice", "squeue --noheader --format=%A").split() == [job]
    told = user(two, "bob", f"squeue --noheader; sacct --allusers --noheader; scontrol show job {job} || true")
    assert "hers" not in told
    assert "alice" not in told
    assert "Invalid job id" in told
    two.root("head1", f"scancel {job}")


OF_SYSTEMD = "org.freedesktop.systemd1 /org/freedesktop/systemd1 org.freedesktop.systemd1.Manager"


@pytest.mark.proves("jobs", "On the head users see their own processes alone, by ps and by systemd.")
def test_processes__of_another_user_on_the_head__are_not_shown(two: TestLab) -> None:
    user(two, "alice", "setsid sleep 4646 < /dev/null > /dev/null 2>&1 &")
    try:
        wait_until(lambda: two.root("head1", "pgrep --full '^sleep 4646' || true") != "")
        assert user(two, "alice", "pgrep --full '^sleep 4646'") != ""
        assert user(two, "bob", "pgrep --full '^sleep 4646' || true") == ""
        assert set(user(two, "bob", "ps -e -o user=").split()) == {"bob"}
        # systemd has access to all processes and answers for them: to root, not to users.
        unit = "ssh.service"  # sessions of a lab's nodes are there, not in user.slice
        asked = [f"busctl call {OF_SYSTEMD} GetUnitProcesses s {unit}", f"systemctl status --full --lines=0 {unit}"]
        for ask in asked:
            assert "sleep 4646" in two.root("head1", f"{ask} 2>&1 || true"), ask
            assert "sleep 4646" not in user(two, "bob", f"{ask} || true"), ask
        assert "denied" in user(two, "bob", f"{asked[0]} || true").lower()
    finally:
        two.root("head1", "pkill --full '^sleep 4646'")


SQUAT = """cat > squat.py <<'END'
import socket, sys
taken = socket.create_server(("0.0.0.0", int(sys.argv[1])))
while True:
    with taken.accept()[0] as line, open("caught", "ab") as caught:
        caught.write(line.recv(4096) or b"nothing")
END
rm -f caught
setsid python3 squat.py {port} < /dev/null > /dev/null 2>&1 &"""


def squat(lab: TestLab, port: int) -> None:
    """Let a program of alice's take a port of the head; it keeps in `caught` what it is sent."""
    user(lab, "alice", SQUAT.replace("{port}", str(port)))
    listening = f"ss --listening --tcp --processes 'sport = :{port}'"
    wait_until(lambda: "python3" in lab.root("head1", listening))


@pytest.mark.proves("secrets", "No password is sent to a user's program that took Prometheus's port.")
def test_prometheus_port__taken_by_a_user__is_sent_no_password(two: TestLab) -> None:
    two.root("head1", "systemctl stop prometheus")
    try:
        squat(two, 9090)
        done = clusterctl("status", str(two.inventory))
        assert done.returncode == 4
        assert "Prometheus does not answer" in done.stdout
        assert user(two, "alice", "cat caught || true") == "cat: caught: No such file or directory\n"
        # Without the firewall, as where base_firewall is off, it is the certificate that keeps the password.
        two.root("head1", "nft delete table inet clusterctl")
        assert clusterctl("status", str(two.inventory)).returncode == 4
        caught = user(two, "alice", "cat caught | tr -cd '[:print:]'; od -A n -t x1 -N 2 caught")
        assert caught.endswith(" 16 03\n"), "the record of TLS that begins a handshake (RFC 8446, 5.1)"
        assert "Authorization" not in caught
    finally:
        two.root("head1", "pkill --full squat.py; systemctl restart clusterctl-firewall; systemctl start prometheus")
    two.healthy()


@pytest.mark.proves("jobs", "No job of another user is sent to a user's program that took slurmctld's port.")
def test_slurmctlds_port__taken_by_a_user__is_sent_no_job(two: TestLab) -> None:
    send = "timeout 20 sbatch --chdir=/ --output=none --wrap 'echo topsecret' || true"
    two.root("head1", "systemctl stop slurmctld")
    try:
        squat(two, 6817)
        user(two, "bob", send)
        assert user(two, "alice", "cat caught || true") == "cat: caught: No such file or directory\n"
        # It would be sent otherwise: the same without the firewall.
        two.root("head1", "nft delete table inet clusterctl")
        user(two, "bob", send)
        assert "topsecret" in user(two, "alice", "tr -cd '[:print:]' < caught")
    finally:
        two.root("head1", "pkill --full squat.py; systemctl restart clusterctl-firewall; systemctl start slurmctld")
    wait_until(lambda: set(in_service(two).values()) == {"idle"})  # slurmctld has to hear of its nodes first
    two.healthy()


@pytest.mark.proves("monitoring", "Users read no metrics, neither on monitoring's host nor elsewhere.")
def test_metrics__asked_for_by_users__are_refused(two: TestLab) -> None:
    address = re.search(r"head1: \{ansible_host: ([^}]*)\}", two.inventory.read_text())
    assert address
    ask = f"curl --silent --show-error --max-time 10 --insecure https://{address[1]}:9100/metrics"
    files = "cd /etc/prometheus/tls; {} --cert client-certificate.pem --key client-key.pem"
    assert "node_load1" in two.root("head1", files.format(ask))
    assert "certificate required" in two.root("head1", f"{ask} 2>&1 || true"), "not even root, without the certificate"
    assert "ailed to connect" in user(two, "alice", f"{ask} || true")
    assert "ailed to connect" in two.root("gpu01", f"{ask} 2>&1 || true")


@pytest.mark.proves("jobs", "Slurm runs no job of root's.")
def test_job__of_root__is_refused(two: TestLab) -> None:
    told = two.root("head1", "srun --chdir=/ true 2>&1 || echo refused")
    assert told.endswith("refused\n")
    assert "Invalid user id" in told  # ESLURM_USER_ID_MISSING, for root alone


@pytest.mark.proves("jobs", "Root of a worker becomes root nowhere else in an administrator's name.")
def test_root_of_a_worker__in_an_administrators_name__is_root_nowhere_else(two: TestLab) -> None:
    """Whoever is root somewhere is any user there, as far as sudo and Slurm on other nodes can tell."""
    as_carol = "runuser --user carol -- {} 2>&1 || true"
    start = "srun --quiet --chdir=/ --nodelist=gpu02 --mem=50M {}"
    assert two.root("gpu01", as_carol.format(start.format("id --user"))).strip() == "5003", "she may run jobs there"
    told = two.root("gpu01", as_carol.format(start.format("sudo --non-interactive id")))
    assert "uid=0" not in told
    assert "sudo:" in told
    told = two.root("gpu01", as_carol.format("scontrol update nodename=gpu02 state=down reason=mine"))
    assert "Invalid user id" in told or "Access/permission denied" in told
    assert in_service(two)["gpu02"] == "idle"


BOB = "      - {name: bob, uid: 5002}\n"
HIS = """sbatch --parsable --chdir=/ --output=none --nodelist=gpu01 --mem=50M --wrap '
until [ -e /var/tmp/left ]; do sleep 1; done'"""


@pytest.mark.proves("jobs", "A running job of a user who left completes; its accounting record stays.")
@pytest.mark.proves("jobs", "A user with `state: absent` is in no node's accounts; without jobs in Slurm's neither.")
def test_user__who_leaves_while_a_job_runs__leaves_slurm_after_it(two: TestLab) -> None:
    """Last, for the others need bob. Slurm refuses to forget a user whose job runs, which the run reports."""
    number = user(two, "bob", HIS).strip()
    wait_until(lambda: states(two, number) == ["RUNNING"])
    text = two.inventory.read_text()
    assert BOB in text
    two.inventory.write_text(text.replace(BOB, BOB.replace("}", ", state: absent}")))
    notes = [note["note"] for note in two.run("bootstrap")["notes"]]
    assert [note for note in notes if "bob" in note], notes
    for node in two.nodes:
        assert two.root(node, "getent passwd bob || true; ls -d /home/bob") == "/home/bob\n", node
    assert states(two, number) == ["RUNNING"]
    two.root("gpu01", "touch /var/tmp/left")
    wait_until(lambda: states(two, number) == ["COMPLETED"])
    two.run("bootstrap", "--limit", "head1")
    known = two.root("head1", "sacctmgr --noheader --parsable2 show user format=user").split()
    assert "alice" in known
    assert "bob" not in known
    assert states(two, number) == ["COMPLETED"]
