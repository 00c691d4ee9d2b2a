"""Slurm's REST API: users' tokens, HTTPS with the cluster's certificate, nothing open without it, and its removal."""

import base64
import hashlib
import hmac
import json
import re
import time
from collections.abc import Iterator

import pytest
import yaml

from tests.cluster.lab import ALICE, TestLab, clusterctl, fresh
from tests.cluster.members import states
from tests.faults.injury import fails, wait_until
from tests.programs import described

GROUP = "    slurmrestd: {children: {slurm_head: {}}}\n"
URL = "https://head1:6820"
JOBS = "/slurm/v0.0.42/jobs"
KEY = "/etc/slurm/jwt_hs256.key"
HEADERS = 'header = "X-SLURM-USER-TOKEN: {token}"\n'


@pytest.fixture(scope="module")
def lab() -> Iterator[TestLab]:
    """A cluster of a head that serves the REST API and a worker, which has the cluster's authority for curl."""
    with fresh("rest", "--gpus", "0", workers=1) as lab:
        lab.inventory.write_text(lab.inventory.read_text() + GROUP)
        lab.run("bootstrap")
        done = clusterctl("secret", "authority", str(lab.inventory))
        assert done.returncode == 0, described(done)
        lab.ssh("gpu01", "tee", "/var/tmp/authority.pem", stdin=done.stdout)
        yield lab


def token(lab: TestLab, *options: str) -> str:
    """Return a token that alice makes on the worker."""
    return lab.ssh("gpu01", *ALICE, "scontrol", "token", *options).strip().removeprefix("SLURM_JWT=")


def request(lab: TestLab, path: str, token: str = "", body: object = None, url: str = URL) -> tuple[int, str]:
    """Return the status and the body of a response to alice's curl on the worker; 0 if there is none.

    The token is in a file that curl reads, as users should do it.
    """
    config = HEADERS.format(token=token) if token else ""
    if body is not None:
        config += f'header = "Content-Type: application/json"\ndata = {json.dumps(json.dumps(body))}\n'
    argv = ["curl", "--silent", "--max-time", "60", "--cacert", "/var/tmp/authority.pem", "--config", "-"]
    out = lab.ssh("gpu01", *ALICE, *argv, "--write-out", "/%{http_code}", f"{url}{path}", stdin=config, check=False)
    text, _, status = out.rpartition("/")
    return int(status), text


def forged(user: str, key: bytes, algorithm: str = "HS256") -> str:
    """Return a token as slurmctld makes it, signed with another key."""

    def part(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    now = int(time.time())
    claims = {"exp": now + 1800, "iat": now, "sun": user}
    signed = ".".join(part(json.dumps(one).encode()) for one in ({"alg": algorithm, "typ": "JWT"}, claims))
    return f"{signed}.{part(hmac.digest(key, signed.encode(), hashlib.sha256)) if key else ''}"


@pytest.mark.long
@pytest.mark.proves("jobs", "A user lists and submits jobs by HTTPS, with a token of her own.")
def test_rest__with_a_users_token__submits_and_lists_her_job(lab: TestLab) -> None:
    own = token(lab)
    job = {
        "name": "byrest",
        "script": "#!/bin/sh\nid -un\n",
        "environment": ["PATH=/bin:/usr/bin"],
        "current_working_directory": "/var/tmp",
        "standard_output": "/var/tmp/byrest",
    }
    status, text = request(lab, "/slurm/v0.0.42/job/submit", own, {"job": job})
    assert status == 200, text
    number = str(json.loads(text)["job_id"])
    wait_until(lambda: states(lab, number) == ["COMPLETED"], lambda: str(states(lab, number)))
    assert lab.root("gpu01", "cat /var/tmp/byrest").strip() == "alice"
    status, text = request(lab, JOBS, own)
    assert status == 200, text
    assert "byrest" in {one["name"] for one in json.loads(text)["jobs"]}
    status, text = request(lab, "/slurmdb/v0.0.42/jobs", own)
    assert status == 200, text


@pytest.mark.long
@pytest.mark.proves("jobs", "Without a token, or with a forged one, the REST API responds with 401.")
def test_rest__without_a_valid_token__is_401(lab: TestLab) -> None:
    assert request(lab, JOBS)[0] == 401
    assert request(lab, "/openapi/v3")[0] == 401
    key = lab.root("head1", f"cat {KEY}").strip().encode()
    assert request(lab, JOBS, forged("alice", key))[0] == 200, "the token is made as Slurm makes it"
    for bad in (forged("alice", b"x" * 43), forged("alice", b"", "none"), "nonsense"):
        status, text = request(lab, JOBS, bad)
        assert (status, json.loads(text)["jobs"]) == (401, [])
        # slurmdbd rejects the connection, which to slurmrestd is a gateway that does not work.
        status, text = request(lab, "/slurmdb/v0.0.42/jobs", bad)
        assert (status, "byrest" in text) == (502, False)


@pytest.mark.long
@pytest.mark.proves("jobs", "A user makes tokens only for herself, and for a limited time.")
def test_token__for_another_or_for_long__is_refused(lab: TestLab) -> None:
    assert token(lab, "lifespan=86400")
    assert lab.ssh("gpu01", *ALICE, "scontrol", "token", "lifespan=86401", check=False) == ""
    assert lab.ssh("gpu01", *ALICE, "scontrol", "token", "username=root", check=False) == ""
    own = token(lab)
    # It is hers also if she sends another name.
    status, text = request(lab, JOBS, f'{own}"\nheader = "X-SLURM-USER-NAME: root')
    assert status != 200, text


@pytest.mark.long
@pytest.mark.proves("jobs", "slurmrestd listens on no network, and haproxy in front of it only with TLS.")
def test_rest__in_clear_or_past_haproxy__is_refused(lab: TestLab) -> None:
    status, text = request(lab, JOBS, token(lab), url="http://head1:6820")
    assert (status, text) in {(0, ""), (400, text)}
    assert "jobs" not in text
    listening = lab.root("head1", "ss --no-header --listening --tcp --numeric --processes")
    assert [line for line in listening.splitlines() if "slurmrestd" in line] == []
    assert len(re.findall(r"haproxy", listening)) == 1
    past = "curl --silent --unix-socket /run/slurmrestd/socket http://x/ || echo $?\n"
    assert lab.ssh("head1", *ALICE, "sh", "-s", stdin=past).strip() == "7"
    users = lab.root("head1", "ps -o user= -C slurmrestd,haproxy").split()
    assert set(users) <= {"slurmrestd", "haproxy", "root"}
    assert "slurmrestd" in users


@pytest.mark.long
@pytest.mark.proves("jobs", "The key of users' tokens is in no log and no file of others.")
def test_token_key__on_all_nodes__is_slurms_alone(lab: TestLab) -> None:
    key = lab.root("head1", f"cat {KEY}").strip()
    assert lab.root("head1", f"stat --format='%a %U' {KEY}").strip() == "600 slurm"
    own = token(lab)
    assert request(lab, JOBS, own)[0] == 200
    for node in lab.nodes:
        journal = lab.root(node, "journalctl --quiet --boot")
        assert key not in journal
        assert own not in journal
        places = "/etc /var/lib/slurm /var/log /var/spool"
        found = lab.root(node, f"find {places} -type f -size -20M -exec grep -lF -- '{key}' {{}} + || :").split()
        assert found == ([KEY] if node == "head1" else [])
    for path in (lab.inventory.parent / ".clusterctl").rglob("*"):
        assert not path.is_file() or key.encode() not in path.read_bytes(), path


@pytest.mark.long
@pytest.mark.proves("jobs", "With the REST API a second bootstrap changes nothing.")
def test_bootstrap__with_the_rest_api__changes_nothing(lab: TestLab) -> None:
    lab.unchanged()
    lab.healthy()


@pytest.mark.long
@pytest.mark.proves("jobs", "Users' tokens can be switched off; a replaced key makes all invalid.")
def test_tokens__switched_off_or_of_an_old_key__are_refused(lab: TestLab) -> None:
    own = token(lab)
    lab.declare("slurm_head_user_tokens: false")
    lab.run("bootstrap")
    assert lab.ssh("gpu01", *ALICE, "scontrol", "token", check=False) == ""
    assert request(lab, JOBS, own)[0] == 200
    done = clusterctl("secret", "rotate", str(lab.inventory), "slurm_head_token_key")
    assert done.returncode == 0, described(done)
    assert request(lab, JOBS, own)[0] == 401
    mine = lab.root("head1", "scontrol token username=alice").strip().removeprefix("SLURM_JWT=")
    assert request(lab, JOBS, mine)[0] == 200


@pytest.mark.long
@pytest.mark.proves("bootstrap", "Without the group the REST API is closed, and Slurm accepts no tokens.")
def test_bootstrap__without_the_group__closes_the_api(lab: TestLab) -> None:
    text = lab.inventory.read_text()
    lab.inventory.write_text(text.replace(GROUP, "    slurmrestd: {hosts: {gpu01: {}}}\n"))
    assert "only a head can serve" in fails(lab, 2)
    lab.inventory.write_text(text.replace(GROUP, ""))
    lab.run("bootstrap", "--prune")
    assert request(lab, JOBS, "x") == (0, "")
    lab.root("head1", f"test ! -e {KEY}; test ! -e /etc/haproxy/slurmrestd.pem; ! grep -r AuthAlt /etc/slurm")
    assert yaml.safe_load(lab.root("head1", "ss -Hltn sport = :6820 | wc -l")) == 0
    assert "null" in lab.root("head1", "scontrol show config | grep ^AuthAltTypes")
    lab.unchanged()
