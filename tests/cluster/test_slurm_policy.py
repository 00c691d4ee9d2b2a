"""Who may use how much of Slurm: accounts, QOS and limits of the inventory, as ordinary users meet them."""

import math
from collections.abc import Iterator

import pytest

from tests.cluster.lab import TestLab, clusterctl
from tests.cluster.members import of_jobs, states
from tests.cluster.slurm import HERE, SACCTMGR, USE, WAITS, ended, running, submit_as
from tests.faults.injury import wait_until
from tests.programs import described


@pytest.mark.proves("jobs", "A job over a limit of the inventory is refused with Slurm's own reason.")
def test_submission__over_a_limit_of_the_account__is_refused(slurm: TestLab) -> None:
    said = submit_as(slurm, "carol", "true", "--gres=gpu:2")
    assert "AssocMaxGRESPerJob" in said
    assert "violates accounting/QOS policy" in said
    said = submit_as(slurm, "bob", "true", "--time=2-00:00:00")  # the limit of the parent
    assert "AssocMaxWallDurationPerJobLimit" in said
    ended(slurm, submit_as(slurm, "bob", "true", "--gres=gpu:2", HERE))


@pytest.mark.proves("jobs", "GPU-minutes of a job and the number of a user's jobs are limited.")
def test_submission__over_gpu_minutes_or_jobs__is_refused(slurm: TestLab) -> None:
    assert "AssocMaxGRESMinutesPerJob" in submit_as(slurm, "bob", "true", "--gres=gpu:2", "--time=400")
    held = submit_as(slurm, "bob", "true", "--hold", "--array=1-9")
    said = submit_as(slurm, "bob", "true")
    slurm.root("head1", f"scancel {held}")
    assert "AssocMaxSubmitJobLimit" in said


@pytest.mark.proves("jobs", "A partition of a type of GPU has the workers with it.")
def test_partition__of_a_type_of_gpu__has_its_workers(slurm: TestLab) -> None:
    """All workers of the lab have it; tests/systems/test_slurm.py has others."""
    assert slurm.root("head1", "sinfo --noheader --partition=a100s --format=%N").strip() == "gpu[01-02]"
    assert {*slurm.root("head1", "sinfo --noheader --format=%P").split()} == {"main*", "crowded", "small", "a100s"}


@pytest.mark.long
@pytest.mark.proves("jobs", "A short job runs on a node that a larger job waits for.")
def test_short_job__behind_one_that_waits__is_backfilled(slurm: TestLab) -> None:
    slurm.root("gpu01", "rm -f /var/tmp/enough")
    first = submit_as(slurm, "alice", WAITS, HERE, "--exclusive")
    running(slurm, first)
    large = submit_as(slurm, "bob", "true", "--nodes=2", "--exclusive", "--qos=urgent")
    wait_until(lambda: slurm.root("head1", f"squeue --noheader --jobs={large} --format=%r").strip() == "Resources")
    ended(slurm, submit_as(slurm, "alice", "true", "--exclusive", "--time=1"))
    assert states(slurm, large) == ["PENDING"]
    slurm.root("gpu01", "touch /var/tmp/enough")
    ended(slurm, first, large)


@pytest.mark.proves("jobs", "A partition has the limits of its QOS from the first bootstrap on.")
def test_partition__with_a_qos__has_its_limits(slurm: TestLab) -> None:
    assert "QOSMaxGRESPerJob" in submit_as(slurm, "bob", "true", "--partition=small", "--gres=gpu:2")
    ended(slurm, submit_as(slurm, "bob", "true", "--partition=small", "--gres=gpu:1"))


@pytest.mark.proves("jobs", "A job that is preempted by another QOS is requeued, and completes later.")
def test_preemption__of_a_scavenger__requeues_its_job(slurm: TestLab) -> None:
    slurm.root("gpu01", "rm -f /var/tmp/begun /var/tmp/enough")
    script = "echo $SLURM_RESTART_COUNT >> /var/tmp/begun; until [ -e /var/tmp/enough ]; do sleep 1; done"
    preempted = submit_as(slurm, "alice", script, HERE, "--exclusive", "--qos=scavenger")
    running(slurm, preempted)
    ended(slurm, submit_as(slurm, "bob", "true", HERE, "--exclusive", "--qos=urgent"))
    # Slurm lets it wait for two minutes, as long as a credential of its first start is valid (cred_expire).
    slurm.root("head1", f"scontrol update jobid={preempted} starttime=now")
    wait_until(lambda: slurm.root("gpu01", "tail -n 1 /var/tmp/begun").strip() == "1")
    slurm.root("gpu01", "touch /var/tmp/enough")
    ended(slurm, preempted)
    assert of_jobs(slurm, preempted, "Restarts") == ["1"]


def by_association(slurm: TestLab) -> dict[tuple[str, str], dict[str, str]]:
    """Return what sshare prints of accounts and users."""
    fields = ("NormShares", "RawUsage", "LevelFS")
    argv = f"sshare --all --parsable2 --noheader --format=Account,User,{','.join(fields)}"
    rows = [line.strip().split("|") for line in slurm.root("head1", argv).splitlines()]
    return {(row[0], row[1]): dict(zip(fields, row[2:], strict=True)) for row in rows}


@pytest.fixture
def limited(slurm: TestLab) -> Iterator[list[str]]:
    """Two jobs of carol's, of which a limit set by hand lets one run; an account and a QOS made by hand."""
    slurm.root("head1", f"{SACCTMGR} modify account where name=students set GrpTRES=gres/gpu=1")
    slurm.root("head1", f"{SACCTMGR} add account spare parent=science; {SACCTMGR} add qos spare")
    jobs = [submit_as(slurm, "carol", "sleep 600", "--gres=gpu:1") for _ in range(2)]
    yield jobs
    slurm.root("head1", f"scancel {' '.join(jobs)}")
    slurm.root("head1", f"{SACCTMGR} modify account where name=students set GrpTRES=gres/gpu=-1")
    slurm.root("head1", f"{SACCTMGR} delete account name=spare; {SACCTMGR} delete qos name=spare")


@pytest.mark.proves("jobs", "`report quota` agrees with sshare and squeue, and lists what was made by hand.")
def test_quota__of_a_job_at_a_limit__agrees_with_slurm(slurm: TestLab, limited: list[str]) -> None:
    def reasons() -> set[str]:
        return {*slurm.root("head1", f"squeue --noheader --jobs={','.join(limited)} --format=%r").split()}

    wait_until(lambda: reasons() == {"None", "AssocGrpGRES"}, lambda: slurm.root("head1", "squeue"))
    wait_until(lambda: int(by_association(slurm)["students", ""]["RawUsage"]) >= 20)  # each PriorityCalcPeriod
    before, found, after = by_association(slurm), slurm.run("report quota", "--users"), by_association(slurm)
    while before != after:  # Slurm computed them again meanwhile
        before, found, after = after, slurm.run("report quota", "--users"), by_association(slurm)
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
    page = clusterctl("report", "quota", str(slurm.inventory))
    assert "AssocGrpGRES (limit of students: 1 GPU)" in page.stdout, described(page)


@pytest.mark.proves("jobs", "Of two waiting jobs, that of the user with less use starts first.")
def test_order__of_users_with_unequal_use__prefers_the_one_with_less(slurm: TestLab) -> None:
    ended(slurm, *slurm.root("head1", f"sacct --noheader --allocations --name={USE} --format=JobID").split())
    slurm.root("head1", "scontrol update nodename=gpu01 state=drain reason=test")
    hers = submit_as(slurm, "alice", "true", HERE, "--exclusive")
    his = submit_as(slurm, "bob", "true", HERE, "--exclusive")

    def priority(job: str) -> int:
        return int(slurm.root("head1", f"squeue --noheader --jobs={job} --format=%Q"))

    wait_until(lambda: priority(his) > priority(hers), lambda: slurm.root("head1", "sprio --long; sshare --all"))
    slurm.root("head1", "scontrol update nodename=gpu01 state=resume")
    ended(slurm, hers, his)
    started = [of_jobs(slurm, job, "Start")[0] for job in (his, hers)]
    assert started == sorted(started)
    assert of_jobs(slurm, his, "End")[0] <= started[1]
