"""Logs of all nodes, found by their fields, in a real OpenSearch with TLS and login."""

import json
import shlex
import time
from datetime import datetime, timedelta
from functools import partial

import pytest

from tests import pipelines
from tests.cluster.lab import TestLab, clusterctl, submit
from tests.cluster.logs import ask, configuration, find, metrics
from tests.cluster.watched import RECIPES, ready
from tests.faults.injury import wait_until
from tests.log_pages import SEARCHES

# A lab node's kernel log is a pipe. The journal reads lines of Linux's Documentation/ABI/testing/dev-kmsg from it.
KERNEL = """
import struct, time
from pathlib import Path
known = Path("/run/systemd/journal/kernel-seqnum")
serial = struct.unpack("Q", known.read_bytes()[:8])[0] if known.exists() else 0
with open("/dev/kmsg", "wb", buffering=0) as pipe:
    pipe.write(b"3,%d,%d,-;%s\\n" % (serial, time.monotonic_ns() // 1000, {line!r}.encode()))
"""


@pytest.fixture
def lab(watched: TestLab) -> TestLab:
    ready(watched)
    return watched


@pytest.mark.kit(*RECIPES)
@pytest.mark.proves("log_stack", "Sample lines of real programs give node, GPU, XID, job, user and level.")
def test_pipelines__with_samples__find_their_fields(lab: TestLab) -> None:
    assert pipelines.wrong(lambda path, body: ask(lab, path, body)) == []


@pytest.mark.kit(*RECIPES)
@pytest.mark.proves("log_stack", "A line is stored by its day, one of a wrong clock by today's.")
def test_index__of_lines_by_age__is_one_that_exists(lab: TestLab) -> None:
    now = datetime.fromisoformat(lab.root("head1", "date --utc +%Y-%m-%dT12:00:00+00:00").strip())
    days = (-400, -5, -1, 0, 1, 2, 400)
    lines = [
        {
            "@timestamp": (now + timedelta(days=day)).isoformat(),
            "dataset": "other",
            "message": "text",
            "keep_days": 30,
        }
        for day in days
    ]
    lines[3]["@timestamp"] = "no time"
    answer = ask(lab, "/_ingest/pipeline/clusterlog/_simulate", {"docs": [{"_source": line} for line in lines]})
    found = [one["doc"]["_index"] if one else None for one in answer["docs"]]
    today, yesterday, tomorrow = (f"clusterlog-{now + timedelta(days=day):%Y.%m.%d}" for day in (0, -1, 1))
    assert found == [None, today, yesterday, today, tomorrow, today, today]
    listed = ask(lab, "/_cat/indices/clusterlog-*?format=json&h=index")
    assert {today, yesterday, tomorrow} <= {one["index"] for one in listed}


@pytest.mark.kit(*RECIPES)
@pytest.mark.proves("log_stack", "A job's log lines and its record are found by its number, on all nodes.")
def test_job__that_ends__is_found_by_its_number(lab: TestLab) -> None:
    job = submit(lab, "sleep 1", "--nodes=2")
    wait_until(lambda: {"head1", "gpu01"} <= {line["node"] for line in find(lab, f"job_id:{job}")})
    wait_until(lambda: find(lab, f"dataset:jobs AND job_id:{job}") != [])
    (record,) = find(lab, f"dataset:jobs AND job_id:{job}")
    assert (record["user"], record["job_state"], record["nodes"]) == ("alice", "COMPLETED", "gpu[01-02]")


@pytest.mark.kit(*RECIPES)
@pytest.mark.proves("log_stack", "No log opens without credentials, a default login, or with a shipper's.")
def test_engine__without_its_login__shows_nothing(lab: TestLab) -> None:
    given = configuration(lab)
    code = "curl --silent --output /dev/null --write-out '%{http_code}' --cacert /etc/filebeat/tls/authority.pem"

    def read(login: str) -> str:
        return lab.root("gpu01", f"{code} {login} '{given['url']}/clusterlog-*/_search'")

    assert read("") == "401"
    for login in ("admin:admin", "kibanaserver:kibanaserver", "logstash:logstash", "readall:readall"):
        assert read(f"--user {login}") == "401"
    own = "--user shipper-gpu01:$(sed -n 's/^  password: //p' /etc/filebeat/filebeat.yml)"
    assert read(own) == "403"
    # A shipper adds lines; it can neither close an index to others, nor make one that is never deleted.
    index = f"clusterlog-{lab.root('head1', 'date --utc +%Y.%m.%d').strip()}"
    header = "--header 'Content-Type: application/json'"
    for method, path, body in (
        ("DELETE", index, {}),
        ("PUT", f"{index}/_mapping", {"dynamic": "strict"}),
        ("PUT", f"{index}/_settings", {"index.blocks.write": True}),
        ("PUT", "clusterlog-mine", {}),
        ("POST", f"{index}/_close", {}),
    ):
        request = f"--request {method} {header} --data '{json.dumps(body)}'"
        assert lab.root("gpu01", f"{code} {own} {request} '{given['url']}/{path}'") == "403", path
    plain = given["url"].replace("https", "http")
    assert lab.root("gpu01", f"{code} {plain}/ || true") == "000"


def status(lab: TestLab, word: str, path: str, *options: str, user: str = "") -> str:
    """Return the HTTP status that a program of the host gets; `word` is that of its password, or the password."""
    given = configuration(lab)
    derived = (
        f"$(printf '%s %s' \"$(cat {given['seed']})\" '{word}' | sha512sum | cut -c 1-48)" if " " in word else word
    )
    login = f'--user "{user}:{derived}"' if user else ""
    argv = f"curl --silent --output /dev/null --write-out '%{{http_code}}' --cacert {given['authority']} {login}"
    return lab.root("head1", f"{argv} {' '.join(options)} '{given['url']}{path}'")


@pytest.mark.kit(*RECIPES)
@pytest.mark.proves("log_stack", "The users of Dashboards and Logstash may do only what these need.")
def test_users__of_pages_and_receiver__may_do_only_their_part(lab: TestLab) -> None:
    """The kit has no packages of both, so that the roles are off; log-store sets their users all the same."""
    pages = partial(status, lab, "kibana server", user="kibanaserver")
    receiver = partial(status, lab, "device receiver", user="receiver")
    put = ("--request PUT --header 'Content-Type: application/json'", "--data '{}'")
    apply = "/usr/local/sbin/log-store {} apply"
    given = {**configuration(lab), "pages": True, "receiver": True}
    lab.ssh("head1", "sudo", "tee", "/root/pages.json", stdin=json.dumps(given))
    try:
        done = lab.root("head1", apply.format("/root/pages.json")).splitlines()
        assert {"user kibanaserver", "user receiver"} <= {*done}
        assert lab.root("head1", apply.format("/root/pages.json")) == ""
        assert pages("/.kibana_1", *put) == "200"
        assert pages("/.kibana_1/_doc/x", *put) == "201"
        assert pages("/clusterlog-*/_search") == "403"
        for login in ("kibanaserver", "admin"):
            assert status(lab, login, "/", user="kibanaserver") == "401"
        assert status(lab, "", "/") == "401"
        line = {
            "@timestamp": time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime()),
            "message": "<187>Apr 22 13:07:46 leaf1 Ebra: %LINEPROTO-5-UPDOWN: Line protocol on Interface Ethernet1",
            "dataset": "syslog",
            "address": "192.0.2.7",
        }
        data = put[0], f"--data {shlex.quote(json.dumps(line))}"
        create = "/clusterlog-2000.01.01/_create/device?pipeline=clusterlog"
        assert receiver(create, *data) == "201"
        assert receiver(create, *data) == "409"  # sent again, stored once
        assert receiver("/clusterlog-*/_search") == "403"
        assert receiver("/.kibana_1/_doc/y", *put) == "403"
        (search,) = [one for one in SEARCHES if one.name == "devices"]
        (found,) = find(lab, search.asked())
        assert {*search.columns} <= {*found}
        assert (found["node"], found["device"], found["level"]) == ("192.0.2.7", "leaf1", "error")
    finally:
        lab.root("head1", apply.format("/etc/clusterctl/log-store/configuration.json"))
    assert (pages("/"), receiver("/")) == ("401", "401")


@pytest.mark.kit(*RECIPES)
@pytest.mark.proves("log_stack", "The plan of the logs' pages and receiver lists packages, files and firewall.")
@pytest.mark.proves("monitoring", "The plan of Grafana lists its packages, files and service.")
def test_plan__with_pages_and_receiver__lists_what_they_install(lab: TestLab) -> None:
    """Their packages cannot be had here, so this is all of roles grafana, kibana and logstash that runs on a node."""
    text = lab.inventory.read_text()
    assert "kibana_enabled: false" in text
    new = text.replace("kibana_enabled: false", "kibana_enabled: true\n    logstash_senders: [192.0.2.0/24]")
    lab.inventory.write_text(new + "    grafana: {hosts: {head1: {}}}\n")
    done = clusterctl("plan", "bootstrap", str(lab.inventory), "--output", "json")
    lab.inventory.write_text(text)
    assert done.returncode == 10, done.stdout + done.stderr
    changes = {(one["kind"], one["name"]) for one in json.loads(done.stdout)["changes"] if "head1" in one["hosts"]}
    assert changes >= {
        ("package", "opensearch-dashboards"),
        ("file", "/etc/opensearch-dashboards/opensearch_dashboards.yml"),
        ("file", "/etc/clusterctl/log-pages/objects.ndjson"),
        ("package", "logstash-oss"),
        ("file", "/etc/logstash/clusterctl.conf"),
        ("file", "/etc/clusterctl/firewall.nft"),
        ("package", "grafana"),
        ("file", "/etc/grafana/grafana.ini"),
        ("file", "/etc/grafana/provisioning/datasources/clusterctl.yaml"),
        ("file", "/etc/grafana/clusterctl-dashboards/job.json"),
    }
    assert ("file", "/etc/grafana/clusterctl-dashboards/kubernetes.json") not in changes


@pytest.mark.kit(*RECIPES)
@pytest.mark.proves("log_stack", "Every node's newest line is counted, and recent without any job.")
def test_metrics__of_all_nodes__show_recent_lines(lab: TestLab) -> None:
    found = metrics(lab)
    now = float(lab.root("head1", "date +%s"))
    ages = {node: now - found[f'cluster_logs_newest_seconds{{node="{node}"}}'] for node in lab.nodes}
    assert max(ages.values()) < 600, ages  # two of the lines that a quiet node writes
    assert found["cluster_logs_refused"] == 0
    half = int(lab.root("head1", "df --output=size --block-size=1 /var/lib/opensearch | tail -1")) // 2
    assert found["cluster_logs_limit_bytes"] == min(half, 20e9)


@pytest.mark.kit(*RECIPES)
@pytest.mark.proves("log_stack", "Each search of docs/logs.md, and each saved one, finds the lines it is for.")
def test_searches__of_the_documentation__find_their_lines(lab: TestLab) -> None:
    """One of devices: the test of the receiver's user."""
    searches = {one.name: one for one in SEARCHES}
    job = submit(lab, "sleep 600", "--nodelist=gpu02")
    wait_until(lambda: "RUNNING" in lab.root("head1", f"squeue --noheader --format=%T --jobs={job}"))
    # An application's error, which takes no node out of service.
    line = (
        "NVRM: Xid (PCI:0000:41:00): 13, pid='<unknown>', name=<unknown>, Graphics Exception: ESR 0x404490=0x80000001"
    )
    lab.ssh("gpu02", "sudo", "python3", "-", stdin=KERNEL.format(line=line))
    wait_until(lambda: find(lab, f"job_id:{job} AND xid:13") != [])
    lab.root("head1", f"scancel {job}")
    (xid,) = find(lab, f"job_id:{job} AND xid:13")
    for name in ("job", "gpu", "errors"):
        assert xid in find(lab, searches[name].asked(job, "gpu02"))
        assert xid in find(lab, f"({searches[name].asked()}) AND node:gpu02 AND xid:13 AND job_id:{job}")
        assert {"node", "message"} <= {*searches[name].columns} <= {*xid, "dataset", "program", "unit"}
    # A login that must fail, from the lab's node to itself: nothing is sent that a wrong host could use.
    argv = "ssh -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
    lab.root("gpu01", f"{argv} intruder@127.0.0.1 true || true")
    wait_until(lambda: "intruder" in {line.get("user") for line in find(lab, searches["logins"].asked())})
