"""Who gets into a worker by SSH: users while a job of theirs runs there, and then with that job's GPUs alone."""

import re
from pathlib import Path

import pytest

from tests.cluster.lab import ALICE, TestLab, submit
from tests.cluster.members import states
from tests.cluster.sessions import alice, key_of_alice
from tests.faults.injury import wait_until

WORKERS = ("gpu01", "gpu02")
REFUSED = "Access denied by pam_slurm_adopt: you have no active jobs on this node"


@pytest.fixture(scope="module")
def key(whole: TestLab, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return key_of_alice(whole, tmp_path_factory.mktemp("alice"), WORKERS)


@pytest.mark.proves("firewall", "Without a job there, a user's SSH to a worker is refused.")
def test_ssh__user_without_a_job__is_refused(whole: TestLab, key: Path) -> None:
    for node in WORKERS:
        done = alice(whole, key, node, "nvidia-smi -L")
        assert (done.returncode, done.stdout) == (255, ""), node
        told = whole.root(node, "journalctl --quiet --boot --output=cat --identifier=pam_slurm_adopt --lines=1")
        assert REFUSED in told + done.stderr


LOOK = """
echo job $SLURM_JOB_ID
for device in /dev/nvidia[0-9]*; do cat < $device; done
setsid sleep 4242 < /dev/null > /dev/null 2>&1 &
"""


@pytest.mark.proves("firewall", "SSH to a job's worker has the job's GPUs alone, and ends with the job.")
def test_ssh__user_with_a_job__is_in_its_cgroup(whole: TestLab, key: Path) -> None:
    """Reading a simulated GPU always fails, and judges how: it is not there, or it is forbidden."""
    job = submit(whole, "sleep 900", "--gres=gpu:1", "--nodelist=gpu01", "--mem=300M")
    try:
        wait_until(lambda: states(whole, job) == ["RUNNING"])
        done = alice(whole, key, "gpu01", LOOK)
        assert f"job {job}\n" in done.stdout, done.stderr
        opened = re.findall("No such device or address|Operation not permitted", done.stdout + done.stderr)
        assert sorted(opened) == ["No such device or address", *["Operation not permitted"] * 3]
        (left,) = whole.ssh("gpu01", "pgrep", "-f", "'^sleep 4242'").split()
        assert f"job_{job}/step_extern" in whole.ssh("gpu01", "cat", f"/proc/{left}/cgroup")
        assert alice(whole, key, "gpu02", "true").returncode == 255
    finally:
        whole.ssh("head1", *ALICE, "scancel", job)
    wait_until(lambda: whole.ssh("gpu01", "pgrep", "-f", "'^sleep 4242'", check=False) == "")
    assert alice(whole, key, "gpu01", "true").returncode == 255


CRON = """
export DEBIAN_FRONTEND=noninteractive
apt-get -qq install -y --no-install-recommends cron at > /dev/null
printf '* * * * * touch /tmp/of-alice\\n' > /var/spool/cron/crontabs/alice
printf '* * * * * touch /tmp/of-root\\n' > /var/spool/cron/crontabs/root
chown alice:crontab /var/spool/cron/crontabs/alice
chmod 600 /var/spool/cron/crontabs/*
"""
NO_CRON = """
rm -f /var/spool/cron/crontabs/root /var/spool/cron/crontabs/alice /tmp/of-alice /tmp/of-root
apt-get -qq purge -y cron at > /dev/null; apt-get -qq autoremove --purge -y > /dev/null
"""


@pytest.mark.long
@pytest.mark.proves("firewall", "On workers users have neither cron nor at, not even an old crontab.")
def test_cron__crontab_of_a_user__does_not_run(whole: TestLab) -> None:
    """Both crontabs were there before clusterctl closed cron; root's shows that cron has come by."""
    whole.root("gpu01", CRON)
    try:
        whole.run("bootstrap")
        whole.root("gpu01", "rm -f /tmp/of-alice /tmp/of-root")
        wait_until(lambda: whole.root("gpu01", "ls /tmp").split().count("of-root") == 1)
        assert "of-alice" not in whole.root("gpu01", "ls /tmp")
        for command in ("crontab -l", "at now"):
            told = whole.root("gpu01", f"! runuser -u alice -- {command} < /dev/null 2>&1")
            assert re.search("not allowed|You do not have permission", told), told
    finally:
        whole.root("gpu01", NO_CRON)
        whole.run("bootstrap")


@pytest.mark.long
@pytest.mark.proves("firewall", "Switched off, logins to workers are as they were before.")
def test_logins__no_job_is_needed__nodes_are_as_before(whole: TestLab, key: Path) -> None:
    whole.declare("slurm_logins_need_job: false")
    whole.run("bootstrap")
    try:
        assert alice(whole, key, "gpu01", "true").returncode == 0
        left = "grep -rls clusterctl /etc/pam.d /etc/security /etc/cron.allow /etc/at.allow"
        told = whole.root("gpu01", f"{left} || true; systemctl is-enabled systemd-logind", False)
        assert told == "/etc/security/limits.d/60-clusterctl.conf\nstatic\n"  # of role slurm_worker
    finally:
        whole.inventory.write_text(whole.inventory.read_text().replace("slurm_logins_need_job: false", ""))
        whole.run("bootstrap")
    assert alice(whole, key, "gpu01", "true").returncode == 255
    whole.unchanged()
