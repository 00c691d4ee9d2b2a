"""Who may use how much of Slurm: accounts, QOS and limits of the inventory, as ordinary users meet them."""

import json
import math
import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.lab import TestLab, clusterctl, fresh
from tests.cluster.leaving_out import decided
from tests.cluster.members import of_jobs, states
from tests.faults.injury import fails, wait_until
from tests.programs import described

ACCOUNTS = "    users_accounts:\n      - {name: alice, uid: 5001}\n"
SACCTMGR = "sacctmgr --immediate --noheader --parsable2"
ONE_GPU = {"MaxTRESPerJob": {"gres/gpu": 1}}
POLICY: dict[str, Any] = {
    "users_accounts": [
        {"name": "alice", "uid": 5001, "slurm_account": "vision"},
        {"name": "bob", "uid": 5002, "slurm_account": "robots", "slurm_options": {"MaxSubmitJobs": 9}},
        {"name": "carol", "uid": 5003, "slurm_account": "students"},
    ],
    "slurm_head_accounts": [
        {"name": "root", "options": {"QOS": ["normal", "scavenger", "urgent"]}},
        {"name": "students", "parent": "science", "options": ONE_GPU},
        {"name": "vision", "parent": "science"},
        {"name": "robots", "parent": "science", "description": "Robots"},
        {"name": "science", "options": {"MaxWall": "1-00:00:00"}},
    ],
    "slurm_head_qos": [
        {"name": "urgent", "options": {"Priority": 100, "Preempt": ["scavenger"]}},
        {"name": "scavenger", "options": {"UsageFactor": 0.5}},
    ],
    "slurm_head_conf_extra": {"PriorityCalcPeriod": 1},  # minutes until a job's use changes the order of others
}
COURSE: dict[str, Any] = {
    "name": "course",
    "options": {
        "StartTime": "2026-01-01T00:00",  # is past: it begins with the bootstrap
        "EndTime": "2090-01-01T00:00",
        "Nodes": ["slurm_workers"],
        "Accounts": ["vision"],
    },
}
ENDED = {"name": "ended", "options": COURSE["options"] | {"EndTime": "2026-01-02T00:00"}}


def declare(lab: TestLab, **changed: Any) -> None:
    directory = lab.inventory.parent / "group_vars"
    directory.mkdir(exist_ok=True)
    (directory / "all.yml").write_text(json.dumps(POLICY | changed))


@pytest.fixture(scope="module")
def lab() -> Iterator[TestLab]:
    """A cluster of one worker with two GPUs and the accounts of POLICY."""
    with fresh("policy", "--gpus", "2", workers=1) as lab:
        text = lab.inventory.read_text()
        assert ACCOUNTS in text
        lab.inventory.write_text(text.replace(ACCOUNTS, ""))
        declare(lab)
        lab.run("bootstrap")
        yield lab


def submit(lab: TestLab, user: str, script: str, *options: str) -> str:
    """Submit a job of a user's; return its number, or what sbatch says to its refusal."""
    argv = ["runuser", "-u", user, "--", "sbatch", "--parsable", "--mem=1M", "--output=none", *options]
    return lab.root("head1", f"cd /; {shlex.join(argv)} --wrap={shlex.quote(script)} 2>&1 || :").strip()


def ended(lab: TestLab, *jobs: str) -> None:
    def found() -> list[str]:
        return [state for job in jobs for state in states(lab, job)]

    wait_until(lambda: found() == ["COMPLETED"] * len(jobs), lambda: f"{jobs}: {found()}")


def limits(lab: TestLab, account: str) -> dict[str, str]:
    fields = ("MaxTRESPerJob", "MaxJobs", "MaxWall", "ParentName")
    where = f"account={account} user= wopl format=user,{','.join(fields)}"
    rows = [line.split("|") for line in lab.root("head1", f"{SACCTMGR} show assoc {where}").splitlines()]
    return dict(zip(fields, next(row[1:] for row in rows if not row[0]), strict=True))


@pytest.mark.proves("jobs", "A job over a limit of the inventory is refused with Slurm's own reason.")
def test_submission__over_a_limit_of_the_account__is_refused(lab: TestLab) -> None:
    said = submit(lab, "carol", "true", "--gres=gpu:2", "--time=1")
    assert "AssocMaxGRESPerJob" in said
    assert "violates accounting/QOS policy" in said
    said = submit(lab, "bob", "true", "--time=2-00:00:00")  # the limit of the parent
    assert "AssocMaxWallDurationPerJobLimit" in said
    ended(lab, submit(lab, "bob", "true", "--gres=gpu:2", "--time=1"))


@pytest.mark.proves("jobs", "Of two waiting jobs, that of the user with less use starts first.")
def test_order__of_users_with_unequal_use__prefers_the_one_with_less(lab: TestLab) -> None:
    ended(lab, submit(lab, "alice", "sleep 20", "--exclusive", "--time=1"))
    lab.root("head1", "scontrol update nodename=gpu01 state=drain reason=test")
    hers = submit(lab, "alice", "true", "--exclusive", "--time=1")
    his = submit(lab, "bob", "true", "--exclusive", "--time=1")

    def priority(job: str) -> int:
        return int(lab.root("head1", f"squeue --noheader --jobs={job} --format=%Q"))

    wait_until(lambda: priority(his) > priority(hers), lambda: lab.root("head1", "sprio --long; sshare --all"))
    lab.root("head1", "scontrol update nodename=gpu01 state=resume")
    ended(lab, hers, his)
    started = [of_jobs(lab, job, "Start")[0] for job in (his, hers)]
    assert started == sorted(started)
    assert of_jobs(lab, his, "End")[0] <= started[1]


@pytest.mark.proves("jobs", "A job that is preempted by another QOS is requeued, and completes later.")
def test_preemption__of_a_scavenger__requeues_its_job(lab: TestLab) -> None:
    lab.root("gpu01", "rm -f /var/tmp/begun /var/tmp/enough")
    script = "echo $SLURM_RESTART_COUNT >> /var/tmp/begun; until [ -e /var/tmp/enough ]; do sleep 1; done"
    preempted = submit(lab, "alice", script, "--exclusive", "--qos=scavenger", "--time=10")
    wait_until(lambda: states(lab, preempted) == ["RUNNING"])
    ended(lab, submit(lab, "bob", "true", "--exclusive", "--qos=urgent", "--time=1"))
    wait_until(lambda: lab.root("gpu01", "tail -n 1 /var/tmp/begun").strip() == "1")
    lab.root("gpu01", "touch /var/tmp/enough")
    ended(lab, preempted)
    assert of_jobs(lab, preempted, "Restarts") == ["1"]


def by_association(lab: TestLab) -> dict[tuple[str, str], dict[str, str]]:
    """Return what sshare prints of accounts and users."""
    fields = ("NormShares", "RawUsage", "LevelFS")
    argv = f"sshare --all --parsable2 --noheader --format=Account,User,{','.join(fields)}"
    rows = [line.strip().split("|") for line in lab.root("head1", argv).splitlines()]
    return {(row[0], row[1]): dict(zip(fields, row[2:], strict=True)) for row in rows}


@pytest.fixture
def limited(lab: TestLab) -> Iterator[list[str]]:
    """Two jobs of carol's, of which a limit set by hand lets one run; an account and a QOS made by hand."""
    lab.root("head1", f"{SACCTMGR} modify account where name=students set GrpTRES=gres/gpu=1")
    lab.root("head1", f"{SACCTMGR} add account spare parent=science; {SACCTMGR} add qos spare")
    jobs = [submit(lab, "carol", "sleep 600", "--gres=gpu:1", "--time=20") for _ in range(2)]
    yield jobs
    lab.root("head1", f"scancel {' '.join(jobs)}")
    lab.root("head1", f"{SACCTMGR} modify account where name=students set GrpTRES=gres/gpu=-1")
    lab.root("head1", f"{SACCTMGR} delete account name=spare; {SACCTMGR} delete qos name=spare")


@pytest.mark.proves("jobs", "`report quota` agrees with sshare and squeue, and lists what was made by hand.")
def test_quota__of_a_job_at_a_limit__agrees_with_slurm(lab: TestLab, limited: list[str]) -> None:
    def reasons() -> set[str]:
        return {*lab.root("head1", f"squeue --noheader --jobs={','.join(limited)} --format=%r").split()}

    wait_until(lambda: reasons() == {"None", "AssocGrpGRES"}, lambda: lab.root("head1", "squeue"))
    wait_until(lambda: int(by_association(lab)["students", ""]["RawUsage"]) >= 20)  # each PriorityCalcPeriod
    before, found, after = by_association(lab), lab.run("report quota", "--users"), by_association(lab)
    while before != after:  # Slurm computed them again meanwhile
        before, found, after = after, lab.run("report quota", "--users"), by_association(lab)
    rows = {(row["account"], row["user"]): row for row in [*found["accounts"], *found["users"]]}
    assert rows.keys() == after.keys()
    whole = int(after["root", ""]["RawUsage"])
    for key, row in rows.items():
        assert row["use"] == pytest.approx(int(after[key]["RawUsage"]) / whole, abs=1.5 / whole), key
        if key != ("root", ""):
            assert row["share"] == pytest.approx(float(after[key]["NormShares"]), abs=1e-6), key
            expected = float(after[key]["LevelFS"])
            assert row["level_fs"] == (None if expected == math.inf else pytest.approx(expected, rel=0.01)), key
    for key in (("students", ""), ("students", "carol")):
        assert [rows[key][name] for name in ("gpus", "running", "waiting")] == [1, 1, 1]
        (wait,) = rows[key]["waits"]
        assert wait == {"reason": "AssocGrpGRES", "jobs": 1, "meaning": "limit of students: 1 GPU"}
    assert (rows["students", ""]["gpu_limit"], rows["science", ""]["waiting"], rows["root", ""]["gpus"]) == (1, 1, 1)
    assert found["not_in_inventory"] == [
        "account spare (below science)", "QOS spare", "account students: GrpTRES=gres/gpu=1",
    ]  # fmt: skip
    assert (found["differs"], found["not_in_slurm"], found["notes"]) == ([], [], [])
    page = clusterctl("report", "quota", str(lab.inventory))
    assert "AssocGrpGRES (limit of students: 1 GPU)" in page.stdout, described(page)


@pytest.mark.proves("jobs", "A limit that is edited by hand is repaired; those that nobody declares stay.")
def test_bootstrap__of_limits_changed_by_hand__repairs_the_declared_ones(lab: TestLab) -> None:
    lab.run("bootstrap")
    wait_until(lambda: decided(lab) == sorted(lab.nodes))
    lab.root("head1", f"{SACCTMGR} modify account where name=students set MaxTRESPerJob=gres/gpu=7 MaxJobs=40")
    lab.root("head1", f"{SACCTMGR} add account byhand parent=science; {SACCTMGR} add qos byhand")
    assert decided(lab) == ["gpu01"]
    page = clusterctl("plan", "bootstrap", str(lab.inventory))
    assert "Slurm account students: MaxTRESPerJob=gres/gpu=1" in page.stdout, described(page)
    (change,) = (one for one in lab.run("bootstrap")["hosts"]["head1"]["changes"] if one["kind"] != "file")
    assert (change["kind"], change["name"], change["action"]) == ("Slurm account", "students", "changed")
    assert limits(lab, "students") == {
        "MaxTRESPerJob": "gres/gpu=1", "MaxJobs": "40", "MaxWall": "", "ParentName": "science",
    }  # fmt: skip
    assert limits(lab, "byhand")["ParentName"] == "science"
    assert "byhand" in lab.root("head1", f"{SACCTMGR} show qos format=name")
    lab.unchanged()


@pytest.mark.proves("jobs", "A limit that leaves the inventory is removed from Slurm; its account is not.")
def test_bootstrap__after_limits_were_removed__removes_them_from_slurm(lab: TestLab) -> None:
    lab.root("head1", f"{SACCTMGR} modify account where name=students set MaxJobs=40")
    accounts = [one for one in POLICY["slurm_head_accounts"] if one["name"] != "students"]
    declare(lab, slurm_head_accounts=accounts)
    lab.run("bootstrap")
    assert limits(lab, "students") == {"MaxTRESPerJob": "", "MaxJobs": "40", "MaxWall": "", "ParentName": "science"}
    ended(lab, submit(lab, "carol", "true", "--gres=gpu:2", "--time=1"))
    lab.unchanged()


@pytest.mark.proves("bootstrap", "A partition can have a QOS of the inventory; one that Slurm lacks is refused.")
def test_bootstrap__of_a_partition_with_a_qos__needs_it_in_slurm(lab: TestLab) -> None:
    main = {"name": "main", "default": True}
    declare(lab, slurm_head_partitions=[main, {"name": "fast", "options": {"QOS": "later"}}])
    assert "accounting has no QOS later yet" in fails(lab, 5)
    declare(lab, slurm_head_partitions=[main, {"name": "fast", "options": {"QOS": "urgent"}}])
    lab.run("bootstrap")
    assert "QoS=urgent" in lab.root("head1", "scontrol show partition fast")
    ended(lab, submit(lab, "bob", "true", "--partition=fast", "--time=1"))


def reservations(lab: TestLab) -> dict[str, str]:
    """Return the accounts of all reservations in Slurm."""
    found = re.findall(r"ReservationName=(\S+) .* Accounts=(\S+)", lab.root("head1", "scontrol -o show reservations"))
    return dict(found)


@pytest.mark.proves("jobs", "On nodes of a declared reservation only jobs of its accounts start.")
def test_reservation__of_an_account__keeps_others_off_its_nodes(lab: TestLab) -> None:
    declare(lab, slurm_head_reservations=[COURSE, ENDED])
    page = clusterctl("plan", "bootstrap", str(lab.inventory))
    assert "Slurm reservation course: Accounts=vision" in page.stdout, described(page)
    assert reservations(lab) == {}
    changes = lab.run("bootstrap")["hosts"]["head1"]["changes"]
    (change,) = (one for one in changes if one["kind"] == "Slurm reservation")
    assert (change["name"], change["action"]) == ("course", "created")
    his = submit(lab, "bob", "true", "--time=1")
    ended(lab, submit(lab, "alice", "true", "--time=1", "--reservation=course"))
    assert "Access denied to requested reservation" in submit(lab, "bob", "true", "--time=1", "--reservation=course")
    assert states(lab, his) == ["PENDING"]
    lab.unchanged()
    lab.root("head1", "scontrol delete reservation=course")
    ended(lab, his)


@pytest.mark.proves("jobs", "A declared reservation that is edited by hand is repaired; others stay.")
def test_reservation__changed_by_hand__is_repaired(lab: TestLab) -> None:
    declare(lab, slurm_head_reservations=[COURSE])
    lab.run("bootstrap")
    lab.root("head1", "scontrol create reservation=byhand starttime=now duration=60 nodes=ALL users=bob flags=OVERLAP")
    lab.run("bootstrap")
    wait_until(lambda: decided(lab) == sorted(lab.nodes))
    lab.root("head1", "scontrol update reservation=course Accounts=robots MaxStartDelay=5")
    assert decided(lab) == ["gpu01"]
    (change,) = (one for one in lab.run("bootstrap")["hosts"]["head1"]["changes"] if one["kind"] != "file")
    assert (change["name"], change["what"]) == ("course", "Accounts=vision")
    assert reservations(lab) == {"course": "vision", "byhand": "(null)"}
    assert "MaxStartDelay=00:05:00" in lab.root("head1", "scontrol show reservation course")
    declare(lab)
    lab.run("bootstrap")
    assert reservations(lab) == {"byhand": "(null)"}
    lab.unchanged()
    lab.root("head1", "scontrol delete reservation=byhand")
