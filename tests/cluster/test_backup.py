"""Queue and accounting put back while a job runs, on the same head and a new one. The tests share a lab, in order."""

import gzip
import io
import json
import re
import stat
import tarfile
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils import cluster_backup

from clusterctl.workspace import secrets
from tests import programs
from tests.cluster.lab import TestLab, clusterctl, podman, submit
from tests.faults.injury import container, fails, wait_until

# Counts until it is told to end, so that no test depends on how long anything takes.
COUNTER = """n=0
until test -e /var/tmp/end; do n=$((n+1)); echo $n > /var/tmp/new; mv /var/tmp/new /var/tmp/counter; sleep 0.2; done"""


# What three restores have put aside, and something of somebody's own.
ASIDE = """
for day in 1 2 3; do
  mkdir /var/lib/slurm/slurmctld.before-2020010${day}T000000Z
  mariadb -e "CREATE DATABASE slurm_acct_db_before_2020010${day}T000000Z"
done
mkdir /var/lib/slurm/slurmctld.before-mine
"""
# As if nothing had ever run there.
FORGET = """
systemctl stop slurmctld slurmdbd
rm -r /var/lib/slurm/slurmctld
mariadb -e 'DROP DATABASE slurm_acct_db'
"""


@pytest.fixture(scope="module")
def cluster(whole: TestLab) -> TestLab:
    return whole


def queue(cluster: TestLab) -> dict[str, str]:
    rows = cluster.ssh("head1", "sudo", "squeue", "--noheader", "--format=%i=%T").split()
    return dict(row.split("=") for row in rows)


def records(cluster: TestLab, *jobs: str) -> dict[str, dict[str, str]]:
    """What accounting has of jobs, all runs of each."""
    fields = ["JobIDRaw", "JobName", "User", "Account", "State", "ExitCode", "NodeList", "Submit", "Start", "Restarts"]
    argv = ["sudo", "sacct", "--allocations", "--duplicates", "--parsable2", f"--jobs={','.join(jobs)}"]
    lines = cluster.ssh("head1", "sudo", *argv, "--noheader", f"--format={','.join(fields)}").splitlines()
    rows = [dict(zip(fields, line.split("|"), strict=True)) for line in lines]
    assert len(rows) == len({row["JobIDRaw"] for row in rows}), f"a job has more than one record: {lines}"
    return {row["JobIDRaw"]: row for row in rows}


def wait_for(cluster: TestLab, job: str, state: str) -> None:
    wait_until(lambda: records(cluster, job).get(job, {}).get("State") == state)


def counter(cluster: TestLab) -> tuple[int, str]:
    """How far the job that runs has counted, and the process that does it."""
    said = cluster.root("gpu01", "cat /var/tmp/counter; pgrep -u alice -o -f slurm_script")
    count, pid = said.split()
    return int(count), pid


@pytest.fixture(scope="module")
def jobs(cluster: TestLab) -> dict[str, str]:
    """One job that has failed, two that run, and one that waits for both nodes."""
    found = {"failed": submit(cluster, "exit 3", "--job-name=failed", "--nodelist=gpu02")}
    wait_for(cluster, found["failed"], "FAILED")
    found["runs"] = submit(cluster, COUNTER, "--job-name=runs", "--nodelist=gpu01")
    found["ends"] = submit(
        cluster, "until test -e /var/tmp/end; do sleep 0.2; done", "--job-name=ends", "--nodelist=gpu02"
    )
    for name in ("runs", "ends"):
        wait_for(cluster, found[name], "RUNNING")
    found["waits"] = submit(cluster, "true", "--job-name=waits", "--nodes=2", "--exclusive")
    return found


@pytest.fixture(scope="module")
def archive(cluster: TestLab, jobs: dict[str, str]) -> Path:
    """A backup that was made while the jobs ran and waited."""
    return Path(cluster.run("backup")["backup"])


def content(archive: Path) -> dict[str, bytes]:
    """Every part of a backup, unpacked."""
    found = {}
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            file = tar.extractfile(member)
            assert file is not None
            data = file.read()
            found[member.name] = gzip.decompress(data) if member.name.endswith(".gz") else data
    return found


@pytest.mark.proves("backup", "A backup made while jobs run contains queue, accounting and Prometheus's configuration.")
def test_a_backup_has_the_queue_and_the_accounting(cluster: TestLab, jobs: dict[str, str], archive: Path) -> None:
    parts = content(archive)
    manifest = json.loads(parts["manifest.json"])
    assert manifest["cluster"] == secrets.label(cluster.inventory.parent)
    assert manifest["running"] == [jobs["runs"], jobs["ends"]]
    assert manifest["pending"] == 1
    counted = "SELECT (SELECT COUNT(*) FROM `{0}_job_table`), (SELECT COUNT(*) FROM `{0}_assoc_table`)"
    told = cluster.root("head1", f"mariadb -BN slurm_acct_db <<'END'\n{counted.format(cluster.name)}\nEND")
    assert [manifest["records"]["job"], manifest["records"]["assoc"]] == [int(word) for word in told.split()]
    with tarfile.open(fileobj=io.BytesIO(parts["slurmctld.tar.gz"])) as tar:
        assert f"hash.{int(jobs['waits']) % 10}/job.{jobs['waits']}/script" in tar.getnames()
    with tarfile.open(fileobj=io.BytesIO(parts["prometheus.tar"])) as tar:
        rules = ["rules/clusterctl-records.yml", "rules/clusterctl.yml"]
        assert tar.getnames() == ["prometheus.yml", *rules, "targets/endpoints.json", "targets/nodes.json"]


@pytest.mark.proves("backup", "A backup contains the cluster's directory unchanged; bootstrap with it changes nothing.")
def test_a_lost_controllers_directory_comes_out_of_a_backup(cluster: TestLab, archive: Path, tmp_path: Path) -> None:
    """As docs/operations.md says; the password of its vault is somewhere else."""
    programs.output_of(["tar", "--extract", "--directory", tmp_path, "--file", archive, "directory.tar"], 60)
    programs.output_of(["tar", "--extract", "--directory", tmp_path, "--file", tmp_path / "directory.tar"], 60)
    (tmp_path / "directory.tar").unlink()
    (directory,), ours = tmp_path.iterdir(), cluster.inventory.parent
    found = {path.relative_to(directory): path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    records = {f"hardware/{node}.json" for node in cluster.nodes}
    assert {str(path) for path in found} >= {"inventory.yaml", "known_hosts", "secrets.yml", *records}
    assert found == {path: (ours / path).read_bytes() for path in found}
    done = clusterctl("bootstrap", str(directory / "inventory.yaml"), "--output", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    changed = {name: host["changed"] for name, host in json.loads(done.stdout)["hosts"].items()}
    assert changed == dict.fromkeys(cluster.nodes, 0)


@pytest.mark.proves("backup", "Only the owner can read a backup, on the head and on the controller.")
@pytest.mark.proves("backup", "A backup contains no secret in plain text and no vault password.")
def test_a_backup_is_its_owners_alone_and_holds_no_secret(cluster: TestLab, archive: Path) -> None:
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    assert stat.S_IMODE(archive.parent.stat().st_mode) == 0o700
    place = "/var/lib/clusterctl/backups"
    assert cluster.root("head1", f"stat -c '%a %U' {place} {place}/{archive.name}").split() == ["700", "root"] * 1 + [
        "600",
        "root",
    ]
    assert cluster.root("head1", f"ls -A {place}").split() == [archive.name]
    assert cluster.root("head1", "mariadb -BN -e 'SHOW DATABASES LIKE \"clusterctl%\"'") == ""
    directory = cluster.inventory.parent
    password = secrets.vault_password_file(directory).read_text().strip()
    for name, part in content(archive).items():
        for secret in [password, *secrets.values(directory).values()]:
            assert secret.encode() not in part, f"{name} holds a secret"


@pytest.mark.proves("backup", "A backup with a truncated state file or no room fails and replaces none.")
def test_a_backup_that_fails_its_test_is_an_error_and_replaces_none(cluster: TestLab, archive: Path) -> None:
    state, place = "/var/lib/slurm/slurmctld/job_state", "/var/lib/clusterctl/backups"
    cluster.root("head1", f"head -c 1000 {state} > /tmp/cut; chown slurm: /tmp/cut; mount --bind /tmp/cut {state}")
    try:
        said = cluster.run("backup", expect=5)["failures"][0]["message"]
        assert "slurmctld does not start on the copy of its state" in said
    finally:
        cluster.root("head1", f"umount {state}")
    cluster.root(
        "head1", f"mkdir /tmp/small; mount -t tmpfs -o size=1m none /tmp/small; mount --bind /tmp/small {place}"
    )
    try:
        assert "not enough free space" in cluster.run("backup", expect=5)["failures"][0]["message"]
    finally:
        cluster.root("head1", f"umount {place}; umount /tmp/small; rmdir /tmp/small")
    assert cluster.root("head1", f"ls -A {place}").split() == [archive.name]
    assert [path.name for path in archive.parent.iterdir()] == [archive.name]


def resealed(archive: Path, target: Path, key: str, dump: bytes = b"", **other: Any) -> Path:
    """Return a backup with another dump, or that says something else of itself; it is whole and sealed with a key."""
    parts = []
    with tarfile.open(archive) as tar:
        for member in tar.getmembers()[1:-1]:
            file = tar.extractfile(member)
            assert file is not None
            parts.append(target.parent / member.name)
            parts[-1].write_bytes(dump if dump and member.name == cluster_backup.DUMP else file.read())
    cluster_backup.seal(target, json.loads(content(archive)["manifest.json"]) | other, parts, key)
    return target


@pytest.mark.proves("restore", "A dump with a shell command is refused; it does not run, the queue stays.")
def test_restore__dump_with_a_shell_command__is_refused_unrun(
    cluster: TestLab, jobs: dict[str, str], archive: Path, tmp_path: Path
) -> None:
    """The backup is sealed with the cluster's own key: whoever can write to the database can get a line into a dump."""
    line = b"\\! touch /tmp/ran\n"
    cluster.root("head1", f"echo '{line.decode().strip()}' | mariadb --batch; rm /tmp/ran")  # left alone, it runs
    key = secrets.values(cluster.inventory.parent)["backup_key"]
    dump = gzip.compress(line + content(archive)[cluster_backup.DUMP])
    hostile = resealed(archive, tmp_path / "hostile.tar", key, dump)
    before = queue(cluster)
    done = clusterctl("restore", str(cluster.inventory), str(hostile), "--yes")
    assert cluster.root("head1", "ls /tmp/ran 2>/dev/null || true") == "", "the command was run"
    said = done.stdout + done.stderr
    assert done.returncode == 5, said
    assert re.search("the dump cannot be loaded: .*sandbox", said), said
    assert queue(cluster) == before
    cluster.run("status")


@pytest.mark.proves(
    "restore", "A damaged, forged, foreign or newer-Slurm backup is refused; the queue stays unchanged."
)
def test_what_is_not_this_clusters_whole_backup_is_refused(
    cluster: TestLab, jobs: dict[str, str], archive: Path, tmp_path: Path
) -> None:
    def refused(path: Path, code: int, *options: str) -> str:
        done = clusterctl("restore", str(cluster.inventory), str(path), *options)
        said = done.stdout + done.stderr
        assert done.returncode == code, said
        assert "Traceback" not in said
        return said

    before = queue(cluster)
    whole = archive.read_bytes()
    damaged = tmp_path / archive.name
    end = len(whole.rstrip(b"\0"))  # what follows is the tar file's own padding
    for place in (600, end // 2, end - 10):
        damaged.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert "is damaged" in refused(damaged, 2, "--yes")
    damaged.write_bytes(whole[: end // 2])
    assert "is damaged" in refused(damaged, 2, "--yes")
    assert "its seal is not valid" in refused(resealed(archive, tmp_path / "forged.tar", "another's"), 2, "--yes")
    key = secrets.values(cluster.inventory.parent)["backup_key"]
    other = resealed(archive, tmp_path / "other.tar", key, cluster=f"{cluster.name}-00000000")
    assert "is a backup of another cluster" in refused(other, 2, "--yes")
    later = resealed(archive, tmp_path / "later.tar", key, slurm="99.11.1")
    assert "is from Slurm 99.11.1" in refused(later, 3, "--yes")
    assert "--yes: is required without a terminal" in refused(archive, 2)
    assert (
        queue(cluster)
        == before
        == {
            jobs["runs"]: "RUNNING",
            jobs["ends"]: "RUNNING",
            jobs["waits"]: "PENDING",
        }
    )


@pytest.mark.proves("restore", "A restore onto the same head restores the queue; a running job continues.")
@pytest.mark.proves("restore", "A node that is drained now stays drained, with its reason.")
@pytest.mark.proves("restore", "The restore reports the jobs that it ends and those that it cancels.")
@pytest.mark.proves("restore", "A job that has ended since the backup does not run again.")
@pytest.mark.proves("restore", "The replaced state is kept; of earlier copies the newest stay, three in all.")
@pytest.mark.proves("restore", "Files of the directory that differ from the backup are reported and left.")
def test_restore_onto_the_same_head(cluster: TestLab, jobs: dict[str, str], archive: Path) -> None:
    kept = records(cluster, *jobs.values())
    count, process = counter(cluster)
    cluster.ssh("gpu02", "touch", "/var/tmp/end")
    wait_for(cluster, jobs["ends"], "COMPLETED")
    later = submit(cluster, "sleep 1000", "--nodelist=gpu02")
    wait_for(cluster, later, "RUNNING")
    cluster.root("head1", ASIDE)
    cluster.root("head1", """scontrol update NodeName=gpu02 State=DRAIN Reason="the fan's loud" """)
    keys = cluster.inventory.parent / "known_hosts"
    keys.write_text(keys.read_text() + "# somebody's word\n")

    done = clusterctl("restore", str(cluster.inventory), str(archive), "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"job {later} on gpu02: " in done.stdout
    assert f"job {jobs['ends']}: ended since the backup" in done.stdout
    assert "known_hosts in the cluster's directory; the backup has another version" in done.stdout
    assert keys.read_text().endswith("# somebody's word\n")
    assert "gpu02 drained, as now" in done.stdout
    assert cluster.root("head1", "sinfo --noheader --nodes=gpu02 --format='%T %E'") == "drained the fan's loud\n"
    left = "/var/lib/clusterctl/restore-drains /etc/systemd/system/slurmctld.service.d/restore.conf"
    assert cluster.root("head1", f"ls {left} 2>/dev/null || true") == ""
    cluster.root("head1", "scontrol update NodeName=gpu02 State=UNDRAIN")
    assert queue(cluster) == {jobs["runs"]: "RUNNING", jobs["waits"]: "PENDING"}
    after = records(cluster, *jobs.values())
    assert after.pop(jobs["ends"])["State"].startswith("CANCELLED")  # and it does not run a second time
    assert after.items() <= kept.items()
    assert counter(cluster)[0] > count
    assert counter(cluster)[1] == process

    # What was there before is there to go back to, and of what earlier restores have left the newest.
    *older, aside = cluster.root("head1", "mariadb -BN -e 'SHOW DATABASES LIKE \"%before%\"'").split()
    assert older == [f"slurm_acct_db_before_2020010{day}T000000Z" for day in (2, 3)]
    states = cluster.root("head1", "cd /var/lib/slurm && ls -d slurmctld.before-*").split()
    assert states[:2] == [f"slurmctld.before-2020010{day}T000000Z" for day in (2, 3)]
    assert states[3:] == ["slurmctld.before-mine"]
    found = cluster.root("head1", f"mariadb -BN {aside} -e 'SELECT MAX(id_job) FROM `{cluster.name}_job_table`'")  # noqa: S608
    assert found.strip() == later
    assert cluster.root("head1", f"ls /var/lib/slurm/{states[2]}/job_state").split()
    assert not (cluster.inventory.parent / ".clusterctl/restore.json").exists()


@pytest.mark.proves("bootstrap", "`bootstrap` refuses a head that lost Slurm's state while jobs run.")
@pytest.mark.proves("restore", "A lost head is restored while a job runs, and the job completes.")
@pytest.mark.proves("restore", "Ended and waiting jobs keep number and one exact accounting record each.")
@pytest.mark.proves("restore", "A restored head has the site's own alert rule again.")
@pytest.mark.proves("restore", "A bootstrap after the restore of a lost head changes nothing.")
@pytest.mark.proves("restore", "A job that ended while there was no head is accounted for.")
@pytest.mark.proves("restore", "A job that waited runs after the lost head is restored.")
@pytest.mark.proves("backup", "`--to` copies the backup to another directory, for its owner, and nowhere else.")
@pytest.mark.proves("health", "No health check drains a node before the head of the lab is replaced.")
def test_a_lost_head_is_restored_and_a_job_runs_all_the_while(
    cluster: TestLab, jobs: dict[str, str], tmp_path: Path
) -> None:
    meanwhile = submit(cluster, "until test -e /var/tmp/meanwhile; do sleep 0.2; done", "--nodelist=gpu02")
    wait_for(cluster, meanwhile, "RUNNING")
    rule = "/etc/prometheus/rules/site.yml"
    cluster.root("head1", f"echo 'groups: []  # of the site' > {rule}")
    usual = cluster.inventory.parent / ".clusterctl/backups"
    before = sorted(usual.iterdir())
    archive = Path(cluster.run("backup", "--to", str(tmp_path))["backup"])
    assert [archive] == list(tmp_path.iterdir())
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    assert before
    assert sorted(usual.iterdir()) == before
    kept = records(cluster, *jobs.values())
    count, process = counter(cluster)
    # The new head's journal begins without them, and test_plan.py asks that one.
    assert cluster.alarms() == ""
    podman("rm", "--force", "--volumes", "--time", "0", container(cluster, "head1"))
    cluster.ssh("gpu02", "touch", "/var/tmp/meanwhile")
    cluster.up()

    done = clusterctl("bootstrap", str(cluster.inventory))
    assert done.returncode == 3, done.stdout + done.stderr
    assert "lost head: has no Slurm state, but gpu01 and others have had a controller" in done.stderr
    assert "; a new controller would end its " in done.stderr
    assert cluster.root("head1", "ls -d /etc/slurm /var/lib/slurm /var/lib/clusterctl 2>/dev/null || true") == ""

    done = clusterctl("restore", str(cluster.inventory), str(archive), "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    wait_for(cluster, meanwhile, "COMPLETED")  # it ended when nobody listened
    assert queue(cluster) == {jobs["runs"]: "RUNNING", jobs["waits"]: "PENDING"}
    assert counter(cluster)[0] > count
    assert counter(cluster)[1] == process

    cluster.ssh("gpu01", "touch", "/var/tmp/end")
    for name in ("runs", "waits"):
        wait_for(cluster, jobs[name], "COMPLETED")
    after = records(cluster, *jobs.values())
    assert after[jobs["failed"]] == kept[jobs["failed"]]
    assert after[jobs["failed"]]["ExitCode"] == "3:0"
    # By whom it was cancelled is in no state of slurmctld's, which tells accounting again how the job ended.
    assert after[jobs["ends"]]["State"].startswith("CANCELLED")
    assert after[jobs["ends"]] | {"State": ""} == kept[jobs["ends"]] | {"State": ""}
    assert after[jobs["runs"]] == kept[jobs["runs"]] | {"State": "COMPLETED"}
    assert after[jobs["waits"]]["NodeList"] == "gpu[01-02]"
    assert {row["Restarts"] for row in after.values()} == {"0"}

    assert cluster.root("head1", f"cat {rule}; stat -c '%a %U' {rule}") == "groups: []  # of the site\n644 root\n"
    cluster.run("status")
    cluster.unchanged()


@pytest.mark.proves("bootstrap", "`--new-head` starts with an empty queue and ends the jobs on workers.")
@pytest.mark.long
def test_a_head_without_its_state_begins_anew_where_that_is_asked_for(cluster: TestLab) -> None:
    job = submit(cluster, "sleep 3000", "--nodelist=gpu01")
    wait_for(cluster, job, "RUNNING")
    cluster.root("head1", FORGET)
    assert "; a new controller would end its 1 running jobs" in fails(cluster, 3)
    assert "lost head" in fails(cluster, 0, "--new-head")
    assert queue(cluster) == {}
    wait_until(lambda: cluster.root("gpu01", "pgrep -u alice || true") == "")
    assert int(submit(cluster, "true")) < int(job)
