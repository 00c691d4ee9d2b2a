"""All that Slurm's side has, in one cluster: two heads, a login node, NFS, a directory, REST, limits, sleep, scratch.

Other files test each part. Here a person uses them together, the first head dies, and a second bootstrap changes
nothing. The directory and the database of accounting are on servers of the site, as the file server is one.
"""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.directory import AUTHORITY, BASE, PASSWORD, READER, Directory, directory
from tests.cluster.lab import ALICES, TestLab, clusterctl, fresh, podman
from tests.cluster.nfs import HOMES, prepare
from tests.cluster.sessions import session
from tests.cluster.test_slurm_heads import SAVED
from tests.faults.injury import container, wait_until
from tests.programs import described

pytestmark = pytest.mark.timeout(2700)  # seconds; the first test has the set-up of six nodes and their bootstrap

LOGIN, FILES = "gpu03", "gpu04"
"""A lab has workers only; these two become the login node and the file server."""
WORKERS = ("gpu01", "gpu02")
HEADS = ("--heads", "2", "--gpus", "2")
PEOPLE = {"eve": 7001, "dora": 7002, "frank": 7003}
POWER = "/usr/local/sbin/lab-power"
RECORD = "/var/lib/clusterctl/slurm-directory.json"
VARIABLES: dict[str, Any] = {
    "users_accounts": [{"name": "alice", "uid": 5001, "slurm_account": "vision"}],
    "users_home": HOMES,
    "nfs_server_software": "ganesha",
    "slurm_worker_scratch": "/local",
    "slurm_head_accounts": [
        {"name": "root", "options": {"QOS": ["normal", "scavenger", "urgent"]}},
        {"name": "science", "options": {"MaxWall": "1-00:00:00", "GrpTRES": {"gres/gpu": 3}}},
        {"name": "vision", "parent": "science", "options": {"Fairshare": 30}},
        {"name": "robots", "parent": "science"},
    ],
    "slurm_head_qos": [
        {"name": "urgent", "options": {"Priority": 100, "Preempt": ["scavenger"]}},
        {"name": "scavenger", "options": {"UsageFactor": 0.5}},
        {"name": "racked", "options": {"MaxJobsPerUser": 100}},
    ],
    "slurm_head_reservations": [
        {
            "name": "course",
            "options": {"StartTime": "2099-03-01T08:00", "Duration": "10:00:00", "Nodes": ["rack1"],
                        "Accounts": ["robots"]},
        }
    ],
    "slurm_head_partitions": [
        {"name": "main", "default": True},
        {"name": "racked", "nodes": ["rack1"], "options": {"QOS": "racked"}},
    ],
    "slurm_head_topology": {
        "switches": [
            {"name": "leaf1", "nodes": ["rack1"]},
            {"name": "leaf2", "nodes": ["gpu02"]},
            {"name": "spine", "switches": ["leaf1", "leaf2"]},
        ]
    },
    "slurm_head_shards": 2,
    "slurm_head_conf_extra": {"SlurmctldTimeout": 15},
    "slurm_head_sleep_after": 86400,
    "slurm_head_power_command": POWER,
    "gpu_config_power_limit": "320 W",
    "gpu_health_commands": {"scratch": "test ! -e /var/tmp/full || { echo scratch is full; exit 1; }"},
    "sssd_base": BASE,
    "sssd_ca_certificates": [AUTHORITY],
    "sssd_bind_dn": READER,
    "sssd_login_groups": ["gpu-users"],
    "sssd_slurm_accounts": {"vision": "vision", "robots": "robots"},
    "sssd_cache_seconds": 2,
}  # fmt: skip
GROUPS = """\
    login:
      hosts:
{login}
    nfs_server:
      hosts:
{files}
    gpu_config:
      children: {{slurm_workers: {{}}}}
    slurmrestd:
      children: {{slurm_head: {{}}}}
    sssd:
      children: {{slurm_head: {{}}, slurm_workers: {{}}, login: {{}}}}
"""
_RACK = "      children:\n        rack1:\n          hosts:\n    "
# As curl's configuration, the token is on no command line.
SUBMIT = """
umask 077
printf 'header = "X-SLURM-USER-TOKEN: %s"\\n' "$(scontrol token | cut -d= -f2)" > config
echo '{body}' | curl --silent --max-time 60 --cacert /var/tmp/authority.pem --config config --data @- \\
  --header 'Content-Type: application/json' https://{head}:6820/slurm/v0.0.42/job/submit
"""
OF_DATABASE = r"a site #1 \pass=word"  # what a file of Slurm's and an SQL statement both have to escape
# In the directory's container, which is a server of the site.
_DATABASE = """
set -eu
export DEBIAN_FRONTEND=noninteractive
exec >/tmp/database.log 2>&1
apt-get -o Acquire::http::Proxy=$1 install -q -y --no-install-recommends mariadb-server
printf '[mariadbd]\\nbind-address=0.0.0.0\\ninnodb_lock_wait_timeout=900\\n' > /etc/mysql/mariadb.conf.d/99-site.cnf
install -d -o mysql /run/mysqld
setsid mariadbd --user=mysql < /dev/null > /tmp/mariadbd.log 2>&1 &
until mariadb-admin --silent ping; do sleep 0.5; done
mariadb -e "CREATE DATABASE slurm_acct_db; GRANT ALL ON slurm_acct_db.* TO slurm@'%' IDENTIFIED BY '$2'"
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[TestLab]:
    """Empty nodes: two heads, two workers, a login node and a file server."""
    with fresh("whole", *HEADS, workers=4) as lab:
        yield lab


@pytest.fixture(scope="module")
def site(lab: TestLab, key: Path) -> Iterator[Directory]:
    """The cluster, bootstrapped with all of it, and the directory of its people."""
    with directory(lab) as found:
        declare(lab, found, key)
        lab.run("bootstrap")
        yield found


def declare(lab: TestLab, found: Directory, key: Path) -> None:
    """Set up the site's servers, and write the inventory."""
    public = Path(f"{key}.pub").read_text().strip()
    found.add_group("people", 7000)
    for name, uid in PEOPLE.items():
        found.add_person(name, uid, public)
    found.add_group("gpu-users", 7100, [*PEOPLE])
    found.add_group("vision", 7101, ["eve", "dora"])
    found.add_group("robots", 7102, ["frank"])
    (lab.inventory.parent / AUTHORITY).write_text(found.authority)

    prepare(lab, FILES, ("head1", "head2", *WORKERS, LOGIN))
    for head in ("head1", "head2"):
        lab.root(head, f"printf '#!/bin/sh\\nexit 1\\n' > {POWER}; chmod 0755 {POWER}")
    lines = {line.strip().split(":")[0]: line for line in lab.inventory.read_text().splitlines()
             if "ansible_host" in line}  # fmt: skip
    text = lab.inventory.read_text().replace(f"    users_accounts:\n{ALICES}", "")
    for name in ("gpu01", LOGIN, FILES):
        text = text.replace(f"{lines[name]}\n", "")
    text = text.replace(lines["gpu02"], f"{lines['gpu02']}\n{_RACK}{lines['gpu01']}")
    lab.inventory.write_text(text + GROUPS.format(login=lines[LOGIN], files=lines[FILES]))
    addresses = {"sssd_uris": [f"ldaps://{found.address}"], "slurm_head_database_host": found.address}
    (lab.inventory.parent / "group_vars").mkdir(exist_ok=True)
    (lab.inventory.parent / "group_vars/all.yml").write_text(json.dumps(VARIABLES | addresses))
    for name, secret in (("sssd_bind_password", PASSWORD), ("slurm_head_database_host_password", OF_DATABASE)):
        done = clusterctl("secret", "set", str(lab.inventory), name, input=f"{secret}\n")
        assert done.returncode == 0, described(done)
    (proxy,) = re.findall(r"cluster_package_proxy: (.*)", text)
    found.shell(_DATABASE, proxy, OF_DATABASE.replace("\\", 2 * "\\"))


def follow(lab: TestLab, head: str) -> list[str]:
    """Let a head follow the directory now, without what SSSD has in its cache; return what could not be done."""
    lab.root(head, "sss_cache -E; systemctl start slurm-directory")
    problems: list[str] = json.loads(lab.root(head, f"cat {RECORD}"))["problems"]
    return problems


def associations(lab: TestLab, head: str) -> set[str]:
    """Return the people of the directory in Slurm with their accounts."""
    rows = lab.root(head, "sacctmgr --noheader --parsable2 show assoc format=user,account").splitlines()
    return {row for row in rows if row.split("|")[0] in PEOPLE}


def jobs(lab: TestLab, head: str) -> set[str]:
    """Return the jobs in the queue, as user and state."""
    return {*lab.root(head, "squeue --noheader --format=%u:%T").split()}


def states_of_nodes(lab: TestLab, head: str) -> set[str]:
    return {*lab.root(head, "sinfo --noheader --format=%T").split()}


def home_of(lab: TestLab, name: str) -> None:
    """Make a home on the file server, whose root alone can."""
    lab.root(FILES, f"install -d -o {PEOPLE[name]} -g 7000 -m 700 {HOMES}/{name}")


@pytest.mark.long
@pytest.mark.proves("bootstrap", "With all parts of Slurm on, a second bootstrap and a plan change nothing.")
def test_bootstrap__again_with_all_of_it__changes_nothing(lab: TestLab, site: Directory) -> None:
    lab.unchanged()
    done = clusterctl("plan", "bootstrap", str(lab.inventory), "--full")
    assert (done.returncode, "Nothing would change." in done.stdout) == (0, True), described(done)


@pytest.mark.long
@pytest.mark.proves("status", "With all parts of Slurm on, status and verify have no complaint.")
def test_status__with_all_of_it__is_healthy(lab: TestLab, site: Directory) -> None:
    found = lab.healthy()
    assert found["slurm"]["controllers"] == {"head1": True, "head2": True}
    assert (found["directory"], found["people_apart"], found["homes_apart"]) == ([], [], [])
    done = clusterctl("verify", str(lab.inventory))
    assert done.returncode == 0, described(done)


@pytest.mark.long
@pytest.mark.proves("identity", "A person of a directory has their shared home, scratch and GPU in a job.")
def test_person__with_all_of_it__runs_a_job_from_the_login_node(lab: TestLab, site: Directory, key: Path) -> None:
    home_of(lab, "eve")
    script = "pwd; stat --format=%U:%a $SCRATCH; echo $SCRATCH; nvidia-smi -L | wc -l; hostname > there"
    done = session(lab, key, "eve", LOGIN, f"srun --mem=50M --gres=gpu:1 --qos=urgent sh -c '{script}'; cat there")
    home, owner, scratch, gpus, node = done.stdout.split()
    assert (home, owner, gpus) == (f"{HOMES}/eve", "eve:700", "1"), done.stderr
    assert re.fullmatch(r"/local/\d+", scratch)
    assert node in WORKERS
    shard = session(lab, key, "eve", LOGIN, "srun --mem=50M --gres=shard:1 --partition=racked hostname")
    assert shard.stdout == "gpu01\n", shard.stderr
    assert session(lab, key, "eve", "head1", "true").returncode == 255
    assert lab.root(FILES, f"stat --format=%u {HOMES}/eve/there") == f"{PEOPLE['eve']}\n"


@pytest.mark.long
@pytest.mark.proves("identity", "A person of a directory submits a job by REST, also at the second head.")
def test_rest__by_a_person_of_the_directory__runs_a_job(lab: TestLab, site: Directory, key: Path) -> None:
    done = clusterctl("secret", "authority", str(lab.inventory))
    assert done.returncode == 0, described(done)
    lab.ssh(LOGIN, "sudo", "tee", "/var/tmp/authority.pem", stdin=done.stdout)
    home_of(lab, "dora")
    for head in ("head1", "head2"):
        job = {"script": f"#!/bin/sh\nid -un > {head}\n", "environment": ["PATH=/bin:/usr/bin"],
               "current_working_directory": f"{HOMES}/dora"}  # fmt: skip
        submitted = session(lab, key, "dora", LOGIN, SUBMIT.format(body=json.dumps({"job": job}), head=head))
        assert json.loads(submitted.stdout)["job_id"], submitted.stdout + submitted.stderr
        wait_until(lambda head=head: lab.root(FILES, f"cat {HOMES}/dora/{head} || :") == "dora\n")  # type: ignore[misc]


@pytest.mark.long
@pytest.mark.proves("identity", "After a fail-over the other head ends an association that the first one made.")
def test_offboarding__with_a_dead_first_head__is_done_by_the_other(lab: TestLab, site: Directory, key: Path) -> None:
    everyone = {"eve|vision", "dora|vision", "frank|robots"}
    assert (follow(lab, "head1"), associations(lab, "head1")) == ([], everyone)
    for name in PEOPLE:
        home_of(lab, name)
    for name, gres in (("eve", "gpu:1"), ("dora", "shard:1")):
        script = "echo $SCRATCH; exec sleep 4711"
        done = session(lab, key, name, LOGIN, f"sbatch --mem=50M --gres={gres} --output=out --wrap '{script}'")
        assert done.returncode == 0, done.stderr
    wait_until(lambda: jobs(lab, "head1") == {"eve:RUNNING", "dora:RUNNING"})
    # Slurm requeues a job that is being started at that moment, or whose start is not saved yet.
    wait_until(lambda: sum(len(lab.root(node, "pgrep -fx 'sleep 4711' || :").split()) for node in WORKERS) == 2)
    time.sleep(SAVED)
    # Nothing of the directory is the second head's while the first one is in control.
    lab.root("head1", "systemctl stop slurm-directory.timer")
    site.change("cn=vision,ou=groups", "delete: memberUid", "memberUid: eve")
    assert (follow(lab, "head2"), associations(lab, "head2")) == ([], everyone)

    podman("kill", "--signal", "KILL", container(lab, "head1"))
    wait_until(lambda: lab.root("head2", "slurm-in-control head2 && echo yes || :") == "yes\n")
    assert jobs(lab, "head2") == {"eve:RUNNING", "dora:RUNNING"}
    # slurmdbd takes over later than slurmctld; until then slurm-directory ends no association.
    wait_until(
        lambda: lab.root("head2", "sacctmgr --noheader show qos format=name 2>&1 || :").split()[:1] == ["normal"]
    )
    assert (follow(lab, "head2"), associations(lab, "head2")) == ([], everyone - {"eve|vision"})
    assert jobs(lab, "head2") == {"dora:RUNNING"}
    refused = session(lab, key, "eve", LOGIN, "sbatch --mem=50M --wrap true")
    assert (refused.returncode != 0, "Invalid account" in refused.stderr) == (True, True), refused.stderr
    status = lab.run("status", expect=4)
    assert [node["name"] for node in status["nodes"] if node["problem"]] == ["head1"]
    assert (status["directory"], status["people_apart"]) == ([], [])
    ran = session(lab, key, "frank", LOGIN, "srun --mem=50M sh -c 'pwd; echo $SCRATCH'")
    assert re.fullmatch(rf"{HOMES}/frank\n/local/\d+\n", ran.stdout), ran.stderr
    wait_until(lambda: states_of_nodes(lab, "head2") == {"idle", "mixed"}, lambda: str(states_of_nodes(lab, "head2")))
    site.change("cn=robots,ou=groups", "add: memberUid", "memberUid: eve")
    assert (follow(lab, "head2"), associations(lab, "head2")) == ([], {"dora|vision", "eve|robots", "frank|robots"})

    lab.up(*HEADS)
    wait_until(lambda: lab.root("head2", "slurm-in-control head1 && echo yes || :") == "yes\n")
    site.change("cn=robots,ou=groups", "delete: memberUid", "memberUid: eve")
    assert (follow(lab, "head1"), associations(lab, "head1")) == ([], {"dora|vision", "frank|robots"})
    wait_until(lambda: jobs(lab, "head1") == {"dora:RUNNING"})
    lab.root("head1", "scancel --user=dora")


@pytest.mark.long
@pytest.mark.proves("heads", "After a fail-over and back, a bootstrap of all parts changes nothing.")
def test_bootstrap__after_the_fail_over__changes_nothing(lab: TestLab, site: Directory) -> None:
    lab.unchanged()
    lab.healthy()
