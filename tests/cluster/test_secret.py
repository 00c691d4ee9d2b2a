"""Secrets that are replaced while jobs run: every node has the new ones, the old ones are refused, no job notices."""

import json
import re

import pytest

from tests.cluster.lab import TestLab, clusterctl, submit
from tests.cluster.members import states
from tests.faults.injury import wait_until
from tests.programs import described

KEYS = "sha256sum /etc/munge/munge.key; ls /etc/munge"
STEPS = """
set -eu
until [ -e /var/tmp/enough ]; do
  srun --nodes=2 --ntasks=2 --mem=1M sleep 0.5
  echo step >> /var/tmp/steps
done
"""
SHORT = 1000


def rotate(lab: TestLab, *names: str) -> None:
    done = clusterctl("secret", "rotate", str(lab.inventory), *names, "--output", "json")
    assert done.returncode == 0, described(done)
    assert json.loads(done.stdout)["subverb"] == "rotate"


def shown(lab: TestLab, name: str) -> str:
    """Return a secret as a user gets it."""
    done = clusterctl("secret", "show", str(lab.inventory), name)
    assert done.returncode == 0, described(done)
    return done.stdout.strip()


@pytest.mark.proves("secrets", "A new munge key comes to all nodes at once; jobs go on.")
def test_munge_key__rotated_under_jobs__loses_none(whole: TestLab) -> None:
    """A job whose steps begin and end on two nodes all the time, and small jobs one after the other.

    A step that was to begin while slurmctld was away waits up to two minutes (seen with any restart of slurmctld).
    """
    old = whole.root("gpu01", KEYS)
    credential = whole.root("gpu01", "munge --no-input")
    whole.root("gpu01", "rm -f /var/tmp/steps /var/tmp/enough")
    long = submit(whole, STEPS, "--nodes=2", "--ntasks=2", "--nodelist=gpu01,gpu02")
    short = submit(whole, "sleep 0.3", f"--array=1-{SHORT}%1")
    wait_until(lambda: states(whole, long) == ["RUNNING"])
    rotate(whole, "munge_key")
    seen = {node: whole.root(node, KEYS) for node in whole.nodes}
    assert len(set(seen.values())) == 1, seen
    assert old not in seen.values()
    assert "munge.key.next" not in old + seen["head1"]
    told = whole.root("head1", "unmunge > /dev/null 2>&1 << 'END' && echo believed || true\n" + credential + "\nEND")
    assert told == "", "a credential of the old key is believed"
    steps = len(whole.root("gpu01", "cat /var/tmp/steps").split())
    wait_until(lambda: len(whole.root("gpu01", "cat /var/tmp/steps").split()) > steps)
    whole.root("gpu01", "touch /var/tmp/enough")
    wait_until(lambda: states(whole, long) == ["COMPLETED"])
    whole.root("gpu01", "rm /var/tmp/enough /var/tmp/steps")
    # Held first: scancel --state=PENDING asks for the states and then cancels, and a task may begin in between.
    # It holds the tasks that wait, and fails for those that have ended.
    whole.root("head1", f"scontrol hold {short}", check=False)
    waiting = f"squeue --noheader --array --jobs={short} --format='%T %r'"
    wait_until(lambda: set(whole.root("head1", waiting).splitlines()) == {"PENDING JobHeldAdmin"})
    whole.root("head1", f"scancel {short}")
    wait_until(lambda: whole.root("head1", f"squeue --noheader --jobs={short}", check=False) == "")
    rows = whole.root("head1", f"sacct -nPX --jobs={short},{long} --format=JobID,State,Restarts,Start").split("\n")
    begun = [row.split("|") for row in rows if row and row.split("|")[3] not in ("None", "Unknown")]
    ended = [row[1:3] for row in begun]  # those that had not begun were cancelled
    assert ended == [["COMPLETED", "0"]] * len(ended)
    assert len(ended) > 5, rows
    assert {*whole.root("head1", f"sacct -nP --jobs={long} --format=State").split()} == {"COMPLETED"}


OTHERS = (
    *("backup_key", "certificate_authority_seed", "prometheus_password", "record_key"),
    *("slurm_head_database_password", "slurm_head_health_key"),
)


@pytest.mark.proves("secrets", "All other secrets are replaced on all nodes; the old ones are refused.")
def test_other_secrets__rotated__take_the_old_ones_place(whole: TestLab) -> None:
    old = {name: shown(whole, name) for name in OTHERS}
    files = "sha256sum /etc/slurm/slurmdbd.conf /etc/slurm/health.key /etc/munge/munge.key"
    before = whole.root("head1", files).splitlines()
    whole.root("head1", "cp /etc/prometheus/tls/authority.pem /root/authority.pem")
    backup = whole.run("backup")["backup"]
    rotate(whole, *OTHERS)
    after = whole.root("head1", files).splitlines()
    assert [was == now for was, now in zip(before, after, strict=True)] == [False, False, True]
    assert all(shown(whole, name) != value for name, value in old.items())
    ask = "curl --silent --output /dev/null --write-out '%{{http_code}}' --cacert /etc/prometheus/tls/authority.pem"
    ask += " --user 'admin:{0}' https://head1:9090/-/ready"
    assert whole.ssh("head1", ask.format(old["prometheus_password"])) == "401"
    assert whole.ssh("head1", ask.format(shown(whole, "prometheus_password"))) == "200"
    believed = "curl --silent --output /dev/null --cacert /root/authority.pem https://head1:9090/ || echo $?"
    assert whole.root("head1", f"{believed}; rm /root/authority.pem") == "60\n", "CURLE_PEER_FAILED_VERIFICATION"
    refused = clusterctl("restore", str(whole.inventory), str(backup), "--yes")
    assert refused.returncode == 2, described(refused)
    assert re.search("seal", refused.stderr), refused.stderr
    whole.unchanged()
    whole.healthy()
