"""What changes in Slurm when the inventory changes: limits, partitions, reservations, switches, shards, MPS.

Each test declares the state that it begins with.
"""

import re
from typing import Any

import pytest

from tests.cluster.lab import TestLab, clusterctl
from tests.cluster.leaving_out import decided
from tests.cluster.members import of_jobs, states
from tests.cluster.slurm import (
    HERE,
    PARTITIONS,
    SACCTMGR,
    VARIABLES,
    WAITS,
    crowd,
    declare,
    ended,
    running,
    submit_as,
    topology,
)  # fmt: skip
from tests.faults.injury import fails, wait_until
from tests.programs import described

pytestmark = pytest.mark.long
COURSE: dict[str, Any] = {
    "name": "course",
    "options": {
        "StartTime": "2026-01-01T00:00",  # is past: it begins with the bootstrap
        "EndTime": "2090-01-01T00:00",
        "Nodes": ["slurm_workers"],
        "Accounts": ["vision"],
    },
}
MPS: dict[str, Any] = {"slurm_head_shards": 0, "slurm_head_mps": 100}
THERE = "--nodelist=gpu02"
CONTROL = "/usr/bin/nvidia-cuda-mps-control"
# What a task finds: its variables, what its user's daemon answers, whether it has the node's shared memory.
TASK = f"""
exec > /var/tmp/mps.$SLURM_JOB_ID
echo $CUDA_MPS_PIPE_DIRECTORY $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE $CUDA_VISIBLE_DEVICES $SLURM_JOB_GPUS
echo get_default_active_thread_percentage | {CONTROL}
cat /dev/shm/of-the-node
{WAITS}
"""
ENDED = {"name": "ended", "options": COURSE["options"] | {"EndTime": "2026-01-02T00:00"}}


def limits(slurm: TestLab, account: str) -> dict[str, str]:
    fields = ("MaxTRESPerJob", "MaxJobs", "MaxWall", "ParentName")
    where = f"account={account} user= wopl format=user,{','.join(fields)}"
    rows = [line.split("|") for line in slurm.root("head1", f"{SACCTMGR} show assoc {where}").splitlines()]
    return dict(zip(fields, next(row[1:] for row in rows if not row[0]), strict=True))


def reservations(slurm: TestLab) -> dict[str, str]:
    """Return the accounts of all reservations in Slurm."""
    found = re.findall(r"ReservationName=(\S+) .* Accounts=(\S+)", slurm.root("head1", "scontrol -o show reservations"))
    return dict(found)


@pytest.mark.proves("jobs", "A limit that is edited by hand is repaired; those that nobody declares stay.")
def test_bootstrap__of_limits_changed_by_hand__repairs_the_declared_ones(slurm: TestLab) -> None:
    declare(slurm)
    slurm.run("bootstrap")
    wait_until(lambda: decided(slurm) == sorted(slurm.nodes))
    slurm.root("head1", f"{SACCTMGR} modify account where name=students set MaxTRESPerJob=gres/gpu=7 MaxJobs=40")
    slurm.root("head1", f"{SACCTMGR} add account byhand parent=science; {SACCTMGR} add qos byhand")
    assert decided(slurm) == slurm.nodes[1:]
    page = clusterctl("plan", "bootstrap", str(slurm.inventory))
    assert "Slurm account students: MaxTRESPerJob=gres/gpu=1" in page.stdout, described(page)
    (change,) = (one for one in slurm.run("bootstrap")["hosts"]["head1"]["changes"] if one["kind"] != "file")
    assert (change["kind"], change["name"], change["action"]) == ("Slurm account", "students", "changed")
    assert limits(slurm, "students") == {
        "MaxTRESPerJob": "gres/gpu=1", "MaxJobs": "40", "MaxWall": "", "ParentName": "science",
    }  # fmt: skip
    assert limits(slurm, "byhand")["ParentName"] == "science"
    assert "byhand" in slurm.root("head1", f"{SACCTMGR} show qos format=name")
    slurm.unchanged()


@pytest.mark.proves("jobs", "A limit that leaves the inventory is removed from Slurm; its account is not.")
def test_bootstrap__after_limits_were_removed__removes_them_from_slurm(slurm: TestLab) -> None:
    slurm.root("head1", f"{SACCTMGR} modify account where name=students set MaxJobs=40")
    accounts = [one for one in VARIABLES["slurm_head_accounts"] if one["name"] != "students"]
    declare(slurm, slurm_head_accounts=accounts)
    slurm.run("bootstrap")
    assert limits(slurm, "students") == {"MaxTRESPerJob": "", "MaxJobs": "40", "MaxWall": "", "ParentName": "science"}
    ended(slurm, submit_as(slurm, "carol", "true", "--gres=gpu:2"))
    slurm.unchanged()


@pytest.mark.proves("bootstrap", "A partition can have a QOS of the inventory; one that Slurm lacks is refused.")
def test_bootstrap__of_a_partition_with_a_qos__adds_a_declared_one(slurm: TestLab) -> None:
    partitions = [*PARTITIONS, {"name": "fast", "options": {"QOS": "later", "AllowQos": "later,urgent"}}]
    declare(slurm, slurm_head_partitions=partitions)
    assert "accounting has no QOS later, which a partition has" in fails(slurm, 5)
    later = {"name": "Later", "options": {"MaxTRESPerJob": {"gres/gpu": 1}}}
    declare(slurm, slurm_head_partitions=partitions, slurm_head_qos=[*VARIABLES["slurm_head_qos"], later])
    slurm.run("bootstrap")
    assert "QoS=later" in slurm.root("head1", "scontrol show partition fast")
    options = ("--partition=fast", "--qos=urgent")
    assert "QOSMaxGRESPerJob" in submit_as(slurm, "bob", "true", *options, "--gres=gpu:2")
    ended(slurm, submit_as(slurm, "bob", "true", *options))
    slurm.unchanged()


@pytest.mark.proves("jobs", "On nodes of a declared reservation only jobs of its accounts start.")
def test_reservation__of_an_account__keeps_others_off_its_nodes(slurm: TestLab) -> None:
    declare(slurm, slurm_head_reservations=[COURSE, ENDED])
    page = clusterctl("plan", "bootstrap", str(slurm.inventory))
    assert "Slurm reservation course: Accounts=vision" in page.stdout, described(page)
    assert reservations(slurm) == {}
    changes = slurm.run("bootstrap")["hosts"]["head1"]["changes"]
    (change,) = (one for one in changes if one["kind"] == "Slurm reservation")
    assert (change["name"], change["action"]) == ("course", "created")
    his = submit_as(slurm, "bob", "true")
    ended(slurm, submit_as(slurm, "alice", "true", "--reservation=course"))
    assert "Access denied to requested reservation" in submit_as(slurm, "bob", "true", "--reservation=course")
    assert states(slurm, his) == ["PENDING"]
    slurm.unchanged()
    slurm.root("head1", "scontrol delete reservation=course")
    ended(slurm, his)


@pytest.mark.proves("jobs", "A declared reservation that is edited by hand is repaired; others stay.")
def test_reservation__changed_by_hand__is_repaired(slurm: TestLab) -> None:
    declare(slurm, slurm_head_reservations=[COURSE])
    slurm.run("bootstrap")
    slurm.root(
        "head1", "scontrol create reservation=byhand starttime=now duration=60 nodes=ALL users=bob flags=OVERLAP"
    )
    slurm.run("bootstrap")
    wait_until(lambda: decided(slurm) == sorted(slurm.nodes))
    slurm.root("head1", "scontrol update reservation=course Accounts=robots MaxStartDelay=5")
    assert decided(slurm) == slurm.nodes[1:]
    (change,) = (one for one in slurm.run("bootstrap")["hosts"]["head1"]["changes"] if one["kind"] != "file")
    assert (change["name"], change["what"]) == ("course", "Accounts=vision")
    assert reservations(slurm) == {"course": "vision", "byhand": "(null)"}
    assert "MaxStartDelay=00:05:00" in slurm.root("head1", "scontrol show reservation course")
    declare(slurm)
    slurm.run("bootstrap")
    assert reservations(slurm) == {"byhand": "(null)"}
    slurm.unchanged()
    slurm.root("head1", "scontrol delete reservation=byhand")


@pytest.mark.proves("bootstrap", "Other switches and shards reach Slurm while a job with a GPU runs on.")
def test_bootstrap__of_another_topology__is_slurms_and_keeps_jobs(slurm: TestLab) -> None:
    slurm.root("gpu01", "rm -f /var/tmp/enough")
    job = crowd(slurm, WAITS, HERE, "--gres=gpu:1")
    running(slurm, job)
    blocks = [{"name": "nvl1", "nodes": ["rack1"]}, {"name": "nvl2", "nodes": ["gpu02"]}]
    declare(slurm, slurm_head_topology={"blocks": blocks, "block_sizes": [1, 2]}, slurm_head_shards=4)
    slurm.run("bootstrap")
    found = {name: one["Nodes"] for name, one in topology(slurm).items()}
    assert found == {"nvl1": "gpu01", "nvl2": "gpu02", "nvl[1-2]": "gpu[01-02]"}
    wait_until(lambda: "gres/shard=8" in slurm.root("head1", "scontrol show node gpu01 | grep CfgTRES="))
    assert states(slurm, job) == ["RUNNING"]
    slurm.root("gpu01", "touch /var/tmp/enough")
    ended(slurm, job, crowd(slurm, "true", "--nodes=2", "--gres=shard:4"))
    slurm.unchanged()


def causes(slurm: TestLab) -> str:
    return slurm.root("head1", "slurm-drain")


def daemons(slurm: TestLab) -> dict[str, str]:
    """Return the process of each user's control daemon of MPS on gpu02."""
    listed = slurm.root("gpu02", f"pgrep -f '^{CONTROL}' | xargs -r ps -o user=,pid=")
    return dict(line.split() for line in listed.splitlines())


@pytest.mark.proves("jobs", "A worker without MPS's program is drained with the cause until it has it.")
def test_mps__without_its_program__drains_with_the_cause(slurm: TestLab) -> None:
    """The program is NVIDIA's own, from Debian."""
    declare(slurm, **MPS)
    slurm.run("bootstrap")
    wait_until(lambda: causes(slurm).count("MPS: no program nvidia-cuda-mps-control; install it") == 2)
    for node in ("gpu01", "gpu02"):
        slurm.root(node, "apt-get -qq install --yes nvidia-cuda-mps > /dev/null")
    wait_until(lambda: causes(slurm).strip() == "{}", lambda: causes(slurm))
    slurm.unchanged()


@pytest.mark.proves("jobs", "Jobs share a GPU by MPS; each user has a daemon while it is needed.")
def test_mps__of_one_gpu__has_a_daemon_for_each_user(slurm: TestLab) -> None:
    """The daemon is NVIDIA's. It starts no server and no program of CUDA runs, because the GPUs are simulated."""
    slurm.root("gpu02", "rm -f /var/tmp/enough /var/tmp/mps.*; echo shared > /dev/shm/of-the-node")
    whole = crowd(slurm, WAITS, THERE, "--gres=gpu:1")
    running(slurm, whole)
    shares = [crowd(slurm, TASK, THERE, "--gres=mps:40") for _ in range(2)]
    his = submit_as(slurm, "bob", TASK, "--partition=crowded", THERE, "--gres=mps:20")
    for job in (*shares, his):
        running(slurm, job)
    more = crowd(slurm, TASK, THERE, "--gres=mps:1")
    wait_until(lambda: "Resources" in slurm.root("head1", f"squeue --noheader --jobs={more} --format=%r"))
    ready = "cat " + " ".join(f"/var/tmp/mps.{job}" for job in (*shares, his)) + " 2>/dev/null | grep -c shared || :"
    wait_until(lambda: slurm.root("gpu02", ready).strip() == "3")
    found = {job: slurm.root("gpu02", f"cat /var/tmp/mps.{job}").split() for job in (*shares, his)}
    number = found[his][3]
    uuid = slurm.root("gpu02", f"nvidia-smi -i {number} --query-gpu=uuid --format=csv,noheader").strip()
    assert found[shares[0]] == found[shares[1]] == ["/run/mps/5001/pipe", "40", uuid, number, "100.0", "shared"]
    assert found[his] == ["/run/mps/5002/pipe", "20", uuid, number, "100.0", "shared"]

    both = daemons(slurm)
    assert {*both} == {"alice", "bob"}
    assert f"CUDA_VISIBLE_DEVICES={uuid}\n" in slurm.root("gpu02", f"tr '\\0' '\\n' < /proc/{both['bob']}/environ")
    devices = slurm.root("gpu02", "systemctl show job-mps-5002.service --property=DevicePolicy,DeviceAllow")
    assert "DevicePolicy=closed" in devices
    assert [word for word in devices.split() if re.search(r"nvidia\d", word)] == [f"DeviceAllow=/dev/nvidia{number}"]
    assert "Permission denied" in slurm.root("gpu02", "runuser -u bob -- ls /run/mps/5001/pipe 2>&1 || :")
    assert "cannot create directory" in slurm.root("gpu02", "runuser -u bob -- mkdir /run/mps/5003 2>&1 || :")

    slurm.root("head1", f"scancel {shares[0]} {his} {more}")
    wait_until(lambda: {*daemons(slurm)} == {"alice"}, lambda: str(daemons(slurm)))
    assert daemons(slurm)["alice"] == both["alice"]
    slurm.root("gpu02", "touch /var/tmp/enough")
    ended(slurm, whole, shares[1])
    wait_until(lambda: daemons(slurm) == {}, lambda: str(daemons(slurm)))
    assert slurm.root("gpu02", "ls /run/mps; rm /dev/shm/of-the-node") == ""
    assert "gres/mps=40" in of_jobs(slurm, shares[1], "AllocTRES")[0]


@pytest.mark.proves("jobs", "An MPS daemon that does not start drains the worker; the job waits.")
@pytest.mark.proves("jobs", "An MPS daemon that has ended while jobs need it is started again.")
def test_mps__daemon_that_fails__drains_until_it_starts(slurm: TestLab) -> None:
    """A program that fails is in its place."""
    slurm.root("gpu02", f"rm -f /var/tmp/enough; mv {CONTROL} {CONTROL}.real; cp /bin/false {CONTROL}")
    job = crowd(slurm, TASK, THERE, "--gres=mps:40")
    wait_until(
        lambda: "MPS of user 5001: systemd-run: Job for job-mps-5001.service failed" in causes(slurm),
        lambda: causes(slurm),
    )
    wait_until(lambda: states(slurm, job) == ["PENDING"], lambda: str(states(slurm, job)))
    assert daemons(slurm) == {}
    slurm.root("gpu02", f"mv {CONTROL}.real {CONTROL}")
    running(slurm, job)
    assert causes(slurm).strip() == "{}"
    before = daemons(slurm)["alice"]
    slurm.root("gpu02", f"kill -9 {before}")
    wait_until(lambda: daemons(slurm).get("alice", before) != before, lambda: str(daemons(slurm)))
    slurm.root("gpu02", "touch /var/tmp/enough")
    ended(slurm, job)
    wait_until(lambda: daemons(slurm) == {}, lambda: str(daemons(slurm)))


@pytest.mark.proves("bootstrap", "Without the variables Slurm has no topology, no shards and no MPS again.")
def test_bootstrap__without_topology_and_parts__removes_them(slurm: TestLab) -> None:
    declare(slurm, slurm_head_topology={}, slurm_head_shards=0)
    slurm.run("bootstrap")
    slurm.root("head1", "test ! -e /etc/slurm/topology.conf")
    assert "topology/default" in slurm.root("head1", "scontrol show config | grep ^TopologyPlugin")
    gres = "scontrol show node gpu01 | grep Gres="
    wait_until(lambda: not re.search("shard|mps", slurm.root("head1", gres)), lambda: slurm.root("head1", gres))
    slurm.root("gpu01", "test ! -e /usr/local/sbin/job-mps; ! grep ' /run/mps' /proc/mounts")
    ended(slurm, crowd(slurm, "true", "--nodes=2", "--gres=gpu:2"))
    slurm.unchanged()


@pytest.mark.proves("jobs", "Jobs of a user who leaves with `jobs: cancel` end, and Slurm forgets the user.")
def test_user__who_leaves_with_jobs_cancelled__is_removed_at_once(slurm: TestLab) -> None:
    declare(slurm)
    slurm.run("bootstrap")
    slurm.root("gpu01", "rm -f /var/tmp/enough")
    job, waiting = (submit_as(slurm, "carol", WAITS, HERE, *options) for options in ((), ("--hold",)))
    running(slurm, job)
    *others, carol = VARIABLES["users_accounts"]
    declare(slurm, users_accounts=[*others, carol | {"state": "absent", "jobs": "cancel"}])
    page = clusterctl("plan", "bootstrap", str(slurm.inventory))
    assert "Cancel the jobs of departed users" in page.stdout, described(page)
    assert states(slurm, job) == ["RUNNING"]
    slurm.run("bootstrap")
    assert [states(slurm, one)[0] for one in (job, waiting)] == ["CANCELLED"] * 2
    assert "carol" not in slurm.root("head1", f"{SACCTMGR} show user format=user").split()
    assert slurm.root("gpu01", "getent passwd carol || :; ls -d /home/carol") == "/home/carol\n"
    slurm.unchanged()
