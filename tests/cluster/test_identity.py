"""People of a directory: a real OpenLDAP server, SSSD on all nodes, and Slurm's associations that follow it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.directory import AUTHORITY, BASE, PASSWORD, READER, Directory, directory
from tests.cluster.lab import ALICES, TestLab, clusterctl, fresh
from tests.cluster.sessions import session
from tests.faults.injury import wait_until
from tests.programs import described

LOGIN = "gpu02"
"""A lab has workers only; this one becomes the login node."""
RECORD = "/var/lib/clusterctl/slurm-directory.json"
VARIABLES = """
sssd_uris: [ldaps://{address}]
sssd_base: {base}
sssd_ca_certificates: [{authority}]
sssd_bind_dn: {reader}
sssd_login_groups: [gpu-users]
sssd_slurm_accounts: {{vision: vision, robots: robots}}
sssd_cache_seconds: 2
slurm_head_accounts: [{{name: vision}}, {{name: robots}}]
"""
PEOPLE = {"eve": 7001, "mallory": 7002, "carol": 7003, "dora": 7004, "frank": 7005, "alice": 7006}


@pytest.fixture(scope="module")
def lab() -> Iterator[TestLab]:
    """Empty nodes: a head, a worker and a login node."""
    with fresh("identity", "--gpus", "1") as lab:
        text = lab.inventory.read_text()
        (moved,) = [line for line in text.splitlines() if line.startswith(f"        {LOGIN}: ")]
        members = "slurm_head: {}, slurm_workers: {}, login: {}"
        text = text.replace(f"{moved}\n", "") + f"    login:\n      hosts:\n{moved}\n"
        lab.inventory.write_text(text + f"    sssd:\n      children: {{{members}}}\n")
        yield lab


@pytest.fixture(scope="module")
def ldap(lab: TestLab, key: Path) -> Iterator[Directory]:
    """A directory of six people, of whom all but mallory can log in, and a cluster that is bootstrapped with it."""
    with directory(lab) as found:
        public = Path(f"{key}.pub").read_text().strip()
        for name, uid in PEOPLE.items():
            found.add_person(name, uid, public)
        found.add_group("people", 7000)
        found.add_group("gpu-users", 7100, [name for name in PEOPLE if name != "mallory"])
        found.add_group("vision", 7101, ["eve", "mallory", "dora"])
        found.add_group("robots", 7102, ["frank", "dora"])
        (lab.inventory.parent / AUTHORITY).write_text(found.authority)
        values = VARIABLES.format(address=found.address, base=BASE, authority=AUTHORITY, reader=READER)
        lab.declare(*values.strip().splitlines())
        done = clusterctl("bootstrap", str(lab.inventory))
        assert done.returncode == 2, described(done)
        assert "needs the secret sssd_bind_password" in done.stderr
        done = clusterctl("secret", "set", str(lab.inventory), "sssd_bind_password", input=f"{PASSWORD}\n")
        assert done.returncode == 0, described(done)
        lab.run("bootstrap")
        yield found


def follow(lab: TestLab) -> list[str]:
    """Let Slurm follow the directory now, without what SSSD has in its cache; return what could not be done."""
    lab.root("head1", "sss_cache -E; systemctl start slurm-directory")
    problems: list[str] = json.loads(lab.root("head1", f"cat {RECORD}"))["problems"]
    return problems


def associations(lab: TestLab) -> set[tuple[str, ...]]:
    """Return the users in Slurm with their accounts, without the inventory's."""
    rows = lab.root("head1", "sacctmgr --noheader --parsable2 show assoc format=user,account").splitlines()
    pairs = {tuple(row.split("|")) for row in rows}
    return {pair for pair in pairs if pair[0] not in ("", "root", "alice", "clusterverify")}


FIRST = {("eve", "vision"), ("dora", "vision"), ("frank", "robots")}


@pytest.mark.long
@pytest.mark.proves("identity", "A person of the directory logs in with its key; jobs have that UID.")
def test_person__of_the_directory__logs_in_and_runs_a_job(lab: TestLab, ldap: Directory, key: Path) -> None:
    done = session(lab, key, "eve", LOGIN, "id -u; stat -c '%U %a' ~; srun --mem=50M --chdir=/ sh -c 'hostname; id -u'")
    assert done.stdout.split() == ["7001", "eve", "700", "gpu01", "7001"], done.stderr
    assert follow(lab) == []
    assert associations(lab) == FIRST
    for name, node in (("mallory", LOGIN), ("eve", "head1"), ("eve", "gpu01")):
        assert session(lab, key, name, node, "true").returncode == 255, (name, node)
    for name, said in (("eve", "eve"), ("mallory", "refused")):
        assert lab.root(LOGIN, f"su {name} -c whoami || echo refused").strip() == said


@pytest.mark.long
@pytest.mark.proves("identity", "A person with an administrator's UID cannot log in, which is reported.")
def test_person__with_the_uid_of_a_local_account__is_refused(lab: TestLab, ldap: Directory, key: Path) -> None:
    uid = int(lab.root(LOGIN, "id -u alice"))
    for name, number in (("heidi", uid), ("../up", 7009)):
        ldap.add_person(name, number, Path(f"{key}.pub").read_text().strip())
        for group in ("gpu-users", "vision"):
            ldap.change(f"cn={group},ou=groups", "add: memberUid", f"memberUid: {name}")
    try:
        assert session(lab, key, "heidi", LOGIN, "true").returncode == 255
        lab.root(LOGIN, f"install -d -o {uid} -m 700 /home/heidi /home/heidi/.ssh")
        lab.root(LOGIN, f"echo '{Path(f'{key}.pub').read_text().strip()}' >/home/heidi/.ssh/authorized_keys")
        assert session(lab, key, "heidi", LOGIN, "true").returncode == 255
        assert lab.root(LOGIN, "su heidi -c true || echo refused") == "refused\n"
        assert lab.root(LOGIN, "getent -s sss passwd -- ../up || echo unknown") == "unknown\n"
        problems = follow(lab)
        assert f"UID {uid} is that of the local account alice and of heidi" in problems
        assert associations(lab) == FIRST
    finally:
        for name in ("heidi", "../up"):
            for group in ("gpu-users", "vision"):
                ldap.change(f"cn={group},ou=groups", "delete: memberUid", f"memberUid: {name}")
            ldap.remove(f"uid={name},ou=people")
        lab.root(LOGIN, "rm -r /home/heidi")
    assert follow(lab) == []


@pytest.mark.long
@pytest.mark.proves("identity", "Keys of the directory open no local account of the same name, which SSSD ignores.")
def test_local_account__of_a_name_of_the_directory__keeps_its_own_keys(
    lab: TestLab, ldap: Directory, key: Path
) -> None:
    assert session(lab, key, "alice", LOGIN, "true").returncode == 255
    for node in lab.nodes:
        assert lab.root(node, "getent -s sss passwd alice || echo unknown") == "unknown\n"
    ldap.change("cn=gpu-users,ou=groups", "delete: memberUid", "memberUid: alice")
    ldap.remove("uid=alice,ou=people")
    assert follow(lab) == []


@pytest.mark.long
@pytest.mark.proves("identity", "Associations follow groups of the directory; those made by hand stay.")
def test_associations__of_people_of_the_directory__follow_its_groups(lab: TestLab, ldap: Directory, key: Path) -> None:
    by_hand = ("carol", "robots")
    lab.root("head1", "sacctmgr --immediate add user carol account=robots")
    ldap.change(
        "cn=vision,ou=groups", "add: memberUid", "memberUid: carol", "-", "delete: memberUid", "memberUid: dora"
    )
    assert follow(lab) == []
    others = {("eve", "vision"), ("dora", "robots"), ("frank", "robots"), by_hand}
    assert associations(lab) == {*others, ("carol", "vision")}
    ldap.change("cn=vision,ou=groups", "delete: memberUid", "memberUid: carol")
    assert follow(lab) == []
    assert associations(lab) == others
    quota = json.loads(clusterctl("report", "quota", str(lab.inventory), "--output", "json").stdout)
    assert quota["not_in_inventory"] == ["user carol in robots"]


@pytest.mark.long
@pytest.mark.proves("identity", "Who expires in the directory cannot log in and loses jobs and association.")
def test_person__whom_the_directory_locks__loses_access(lab: TestLab, ldap: Directory, key: Path) -> None:
    done = session(lab, key, "frank", LOGIN, "sbatch --mem=50M --chdir=/ --output=none --wrap 'sleep 900'")
    assert done.returncode == 0, done.stderr
    ldap.change("uid=frank,ou=people", "add: shadowExpire", "shadowExpire: 1")
    assert follow(lab) == []
    assert ("frank", "robots") not in associations(lab)
    assert lab.root("head1", "squeue --noheader --format=%u") == ""
    lab.root(LOGIN, "sss_cache -E")
    assert session(lab, key, "frank", LOGIN, "true").returncode == 255


@pytest.mark.long
@pytest.mark.proves("identity", "A user with another UID on a node is named by status and verify.")
def test_user__with_another_uid_on_a_worker__is_named(lab: TestLab, ldap: Directory) -> None:
    lab.root("gpu01", "echo eve:x:7777:100::/:/bin/sh >>/etc/passwd")  # useradd does not add whom the directory has
    try:
        said = "eve has different IDs (UID:GID): 7001:7000 on head1, gpu02; 7777:100 on gpu01"
        done = clusterctl("status", str(lab.inventory), "--output", "json")
        assert (done.returncode, json.loads(done.stdout)["people_apart"]) == (4, [said])
        done = clusterctl("verify", str(lab.inventory))
        assert done.returncode == 4, described(done)
        assert said in done.stdout + done.stderr
    finally:
        lab.root("gpu01", "sed -i /^eve:/d /etc/passwd")
    done = clusterctl("verify", str(lab.inventory))
    assert done.returncode == 0, described(done)


@pytest.mark.long
@pytest.mark.proves("identity", "Without the directory, its people still log in, and nobody loses anything.")
def test_directory__that_does_not_respond__blocks_nothing(lab: TestLab, ldap: Directory, key: Path) -> None:
    before = associations(lab)
    ldap.stop()
    try:
        lab.root("head1", "sss_cache -E; systemctl restart sssd")
        assert "no server of the directory responds" in follow(lab)
        done = clusterctl("status", str(lab.inventory), "--output", "json")
        assert json.loads(done.stdout)["directory"] == ["no server of the directory responds"]
        assert associations(lab) == before
        assert session(lab, key, "eve", LOGIN, "srun --mem=50M --chdir=/ id -u").stdout == "7001\n"
        assert clusterctl("verify", str(lab.inventory)).returncode == 0
        lab.run("bootstrap", "--full")
        assert associations(lab) == before
    finally:
        ldap.start()
    for node in lab.nodes:
        lab.root(node, "systemctl restart sssd")
    assert follow(lab) == []


SEARCH = f"""
umask 077
trap 'rm /run/pattern' EXIT
cat > /run/pattern <<'E'
{PASSWORD}
E
search='grep --recursive --files-with-matches --fixed-strings --file=/run/pattern'
cat /proc/[0-9]*/cmdline | grep --text --quiet --fixed-strings --file=/run/pattern && echo "a command line"
journalctl --quiet --output=cat | grep --quiet --fixed-strings --file=/run/pattern && echo "the journal"
$search /var/log || true
find /etc /opt /run /srv /tmp /usr/local /var -xdev -type f -perm -o=r -exec $search {{}} + || true
stat -c '%a %U %G' /etc/sssd/conf.d/10-clusterctl-bind.conf
"""


@pytest.mark.long
@pytest.mark.proves("identity", "The directory's password is in no log, command line or readable file.")
def test_bind_password__after_a_bootstrap__is_nowhere_to_read(lab: TestLab, ldap: Directory) -> None:
    for node in lab.nodes:
        assert lab.root(node, SEARCH) == "640 root root\n"  # so sssd.service of Debian 13 sets it
    for path in (lab.inventory.parent / ".clusterctl").rglob("*"):
        assert not path.is_file() or PASSWORD.encode() not in path.read_bytes(), path


@pytest.mark.long
@pytest.mark.proves("identity", "A second bootstrap of a cluster with a directory changes nothing.")
def test_bootstrap__again__changes_nothing(lab: TestLab, ldap: Directory) -> None:
    lab.unchanged()
    lab.unchanged("plan bootstrap")


@pytest.mark.long
@pytest.mark.proves("identity", "state absent for a person of the directory ends all but their home.")
def test_person__absent_in_the_inventory__keeps_only_their_home(lab: TestLab, ldap: Directory, key: Path) -> None:
    done = session(
        lab,
        key,
        "eve",
        LOGIN,
        "touch ~/mine; nohup setsid sleep 4711 >/dev/null 2>&1 & "
        "sbatch --mem=50M --chdir=/ --output=none --wrap 'sleep 900' && sleep 1",
    )
    assert done.returncode == 0, done.stderr
    wait_until(lambda: lab.root("head1", "squeue --noheader --format=%u:%T").split() == ["eve:RUNNING"])
    assert lab.root(LOGIN, "pgrep -c -u eve sleep") == "1\n"
    text = lab.inventory.read_text()
    lab.inventory.write_text(text.replace(ALICES, f"{ALICES}      - {{name: eve, state: absent}}\n"))
    lab.run("bootstrap")
    assert lab.root("head1", "squeue --noheader --format=%u") == ""
    assert ("eve", "vision") not in associations(lab)
    assert lab.root(LOGIN, "pgrep -u eve || true") == ""
    assert session(lab, key, "eve", LOGIN, "true").returncode == 255
    assert lab.root(LOGIN, "ls /home/eve") == "mine\n"
    lab.unchanged()
