"""Logs of all nodes in a real OpenSearch with TLS and login: found by their fields, each line once."""

import json
import shlex
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests import pipelines
from tests.cluster.lab import TestLab, clusterctl, fresh_as, submit
from tests.cluster.members import Growing
from tests.faults.injury import wait_until
from tests.log_pages import SEARCHES

RECIPES = ("opensearch", "filebeat")
STOPPED = 120  # seconds without the engine
RATE, SECONDS = 50, STOPPED + 30  # lines a second on each node
WRITER = f"""
import syslog, time
syslog.openlog("sequence")
began = time.monotonic()
for number in range({RATE * SECONDS}):
    syslog.syslog(f"number {{number}}")
    time.sleep(max(0, began + number / {RATE} - time.monotonic()))
"""

# A lab node's kernel log is a pipe. The journal reads lines of Linux's Documentation/ABI/testing/dev-kmsg from it.
KERNEL = """
import struct, time
from pathlib import Path
known = Path("/run/systemd/journal/kernel-seqnum")
serial = struct.unpack("Q", known.read_bytes()[:8])[0] if known.exists() else 0
with open("/dev/kmsg", "wb", buffering=0) as pipe:
    pipe.write(b"3,%d,%d,-;%s\\n" % (serial, time.monotonic_ns() // 1000, {line!r}.encode()))
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Growing]:
    with fresh_as(Growing, "logs", *(f"--recipe={name}" for name in RECIPES)) as made:
        text = made.inventory.read_text()
        made.inventory.write_text(text + "    logging:\n      hosts:\n        head1: {}\n")
        yield made


def configuration(lab: TestLab) -> dict[str, Any]:
    given: dict[str, Any] = json.loads(lab.root("head1", "cat /etc/clusterctl/log-store/configuration.json"))
    return given


def ask(lab: TestLab, path: str, body: dict[str, Any] | None = None, method: str = "POST") -> Any:
    """Send a request to the engine as a person would, with user and password; of this method if it has data."""
    given = configuration(lab)
    argv = f"--cacert {given['authority']} --user {given['user']}:$(cat {given['password']})"
    data = (
        ""
        if body is None
        else f"--request {method} --header 'Content-Type: application/json' --data {shlex.quote(json.dumps(body))}"
    )
    return json.loads(lab.root("head1", f"curl --silent --show-error {argv} {data} '{given['url']}{path}'"))


def has_started(lab: TestLab) -> bool:
    """Return whether the engine answers; just after its start it sends text instead of JSON."""
    try:
        return "version" in ask(lab, "/")
    except json.JSONDecodeError:
        return False


def find(lab: TestLab, query: str) -> list[dict[str, Any]]:
    """Return the newest lines that a query finds; none without an index."""
    ask(lab, "/clusterlog-*/_refresh")
    body: dict[str, Any] = {"query": {"query_string": {"query": query}}, "size": 50}
    # A day's index may be new.
    body["sort"] = [{"@timestamp": {"order": "desc", "unmapped_type": "date"}}]
    return [hit["_source"] for hit in ask(lab, "/clusterlog-*/_search", body)["hits"]["hits"]]


def numbers(lab: TestLab, node: str, program: str = "sequence") -> tuple[int, int]:
    """Return how many lines of a program are stored, and how many different ones."""
    ask(lab, "/clusterlog-*/_refresh")
    query = {"query_string": {"query": f"node:{node} AND program:{program}"}}
    found: list[str] = []
    after = None
    while True:
        body: dict[str, Any] = {"query": query, "size": 5000, "sort": [{"@timestamp": "asc"}, {"_id": "asc"}]}
        body |= {"search_after": after} if after else {}
        hits = ask(lab, "/clusterlog-*/_search?filter_path=hits.hits._source.message,hits.hits.sort", body)
        page = (hits.get("hits") or {}).get("hits") or []
        if not page:
            return len(found), len(set(found))
        found += [hit["_source"]["message"] for hit in page]
        after = page[-1]["sort"]


def stored(lab: TestLab, node: str, expected: tuple[int, int]) -> bool:
    return numbers(lab, node) == expected


@pytest.mark.kit(*RECIPES)
@pytest.mark.proves("log_stack", "The group logging sets up search engine and shippers; a second run changes nothing.")
def test_bootstrap__with_logging__is_repeatable(lab: TestLab) -> None:
    lab.run("bootstrap")
    lab.unchanged()


@pytest.mark.kit(*RECIPES)
@pytest.mark.proves("log_stack", "Sample lines of real programs give node, GPU, XID, job, user and level.")
def test_pipelines__with_samples__find_their_fields(lab: TestLab) -> None:
    assert pipelines.wrong(lambda path, body: ask(lab, path, body)) == []


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
def test_plan__with_pages_and_receiver__lists_what_they_install(lab: TestLab) -> None:
    """Their packages cannot be had here, so this is all of roles kibana and logstash that runs on a node."""
    text = lab.inventory.read_text()
    assert "kibana_enabled: false" in text
    new = text.replace("kibana_enabled: false", "kibana_enabled: true\n    logstash_senders: [192.0.2.0/24]")
    lab.inventory.write_text(new)
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
    }


@pytest.mark.kit(*RECIPES)
@pytest.mark.proves("log_stack", "With the engine stopped and shippers killed, every line is stored exactly once.")
def test_lines__engine_stopped_and_shippers_killed__are_stored_once(lab: TestLab) -> None:
    for node in lab.nodes:
        lab.ssh(node, "sudo", "tee", "/root/writer.py", stdin=WRITER)
        lab.root(node, "systemd-run --quiet --collect --unit=writer python3 /root/writer.py")
    lab.root("head1", "systemctl stop opensearch")
    time.sleep(STOPPED / 2)
    for node in lab.nodes:
        lab.root(node, "systemctl kill --signal=KILL filebeat journal-export")
    time.sleep(STOPPED / 2)
    lab.root("head1", "systemctl start opensearch")
    wait_until(lambda: has_started(lab))
    for node in lab.nodes:
        lab.root(node, "systemctl kill --signal=KILL filebeat")
    job = submit(lab, "true")
    wait_until(lambda: "COMPLETED" in lab.root("head1", f"sacct --noheader --parsable2 --format=State --jobs={job}"))
    expected = (RATE * SECONDS, RATE * SECONDS)
    for node in lab.nodes:
        wait_until(partial(stored, lab, node, expected))
    lab.unchanged()


def metrics(lab: TestLab) -> dict[str, float]:
    """Return what log-store writes for Prometheus."""
    text = lab.root("head1", "systemctl start log-store && cat /var/lib/clusterctl-metrics/log-store.prom")
    rows = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in rows}


@pytest.mark.kit(*RECIPES)
@pytest.mark.proves("log_stack", "Every node's newest line is counted, and recent without any job.")
def test_metrics__of_all_nodes__show_recent_lines(lab: TestLab) -> None:
    found = metrics(lab)
    now = float(lab.root("head1", "date +%s"))
    ages = {node: now - found[f'cluster_logs_newest_seconds{{node="{node}"}}'] for node in lab.nodes}
    assert max(ages.values()) < 600, ages  # two of the lines that a quiet node writes
    assert found["cluster_logs_refused"] == 0


@pytest.mark.kit(*RECIPES)
@pytest.mark.proves("log_stack", "With the engine's disk full, jobs run, an alert's metric rises, no line is lost.")
def test_disk__that_is_full__loses_no_line(lab: TestLab) -> None:
    levels = {
        f"cluster.routing.allocation.disk.watermark.{name}": "900000gb" for name in ("low", "high", "flood_stage")
    }
    settings = {"cluster.info.update.interval": "10s", **levels}
    ask(lab, "/_cluster/settings", {"transient": settings}, "PUT")
    try:
        wait_until(lambda: metrics(lab)["cluster_logs_refused"] > 0)
        lab.root("gpu01", "for n in $(seq 200); do logger -t full number $n; done")
        job = submit(lab, "true")
        ended = f"sacct --noheader --parsable2 --format=State --jobs={job}"
        wait_until(lambda: "COMPLETED" in lab.root("head1", ended))
        assert numbers(lab, "gpu01", "full") == (0, 0)
    finally:
        ask(lab, "/_cluster/settings", {"transient": dict.fromkeys(settings)}, "PUT")
    wait_until(lambda: numbers(lab, "gpu01", "full")[0] >= 200)
    assert numbers(lab, "gpu01", "full") == (200, 200)
    wait_until(lambda: metrics(lab)["cluster_logs_refused"] == 0)


@pytest.mark.kit(*RECIPES)
@pytest.mark.proves("log_stack", "Logs above the size limit are deleted by the timer's service.")
def test_retention__above_the_limit__deletes_indices(lab: TestLab) -> None:
    given = json.dumps({**configuration(lab), "gigabytes": 0})
    lab.ssh("head1", "sudo", "tee", "/root/small.json", stdin=given)
    assert "deleted clusterlog-" in lab.root("head1", "/usr/local/sbin/log-store /root/small.json retain")
    lab.root("gpu01", "logger -t after a line")
    wait_until(lambda: find(lab, "node:gpu01 AND program:after") != [])


@pytest.mark.kit(*RECIPES)
@pytest.mark.proves("log_stack", "A new node ships its logs without a restart of the engine.")
def test_node__that_is_added__ships_its_logs(lab: Growing) -> None:
    show = "systemctl show --property=InvocationID --value opensearch"
    before = lab.root("head1", show)
    lab.add()
    wait_until(lambda: find(lab, f"node:{lab.last} AND dataset:slurm") != [])
    wait_until(lambda: find(lab, f"node:{lab.last} AND dataset:journal") != [])
    assert lab.root("head1", show) == before


@pytest.mark.kit(*RECIPES)
@pytest.mark.proves("log_stack", "An XID 79 is stored with node, GPU and the job that ran there.")
def test_xid__during_a_job__is_found_by_the_jobs_number(lab: TestLab) -> None:
    job = submit(lab, "sleep 600", "--nodelist=gpu02")
    wait_until(lambda: "RUNNING" in lab.root("head1", f"squeue --noheader --format=%T --jobs={job}"))
    line = "NVRM: Xid (PCI:0000:41:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    lab.ssh("gpu02", "sudo", "python3", "-", stdin=KERNEL.format(line=line))
    wait_until(lambda: find(lab, f"job_id:{job} AND xid:79") != [])
    (found,) = find(lab, f"job_id:{job} AND xid:79")
    assert (found["node"], found["gpu"], found["level"]) == ("gpu02", "0000:41:00", "error")
    assert found["job_id"] == [int(job)]


@pytest.mark.kit(*RECIPES)
@pytest.mark.proves("log_stack", "Each search of docs/logs.md, and each saved one, finds the lines it is for.")
def test_searches__of_the_documentation__find_their_lines(lab: TestLab) -> None:
    """One of devices: the test of the receiver's user."""
    searches = {one.name: one for one in SEARCHES}
    (xid,) = find(lab, "node:gpu02 AND xid:79")
    for name in ("job", "gpu", "errors"):
        assert xid in find(lab, searches[name].asked(str(xid["job_id"][0]), "gpu02"))
        assert xid in find(lab, f"({searches[name].asked()}) AND node:gpu02 AND xid:79")
        assert {"node", "message"} <= {*searches[name].columns} <= {*xid, "dataset", "program", "unit"}
    # A login that must fail, from the lab's node to itself: nothing is sent that a wrong host could use.
    argv = "ssh -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
    lab.root("gpu01", f"{argv} intruder@127.0.0.1 true || true")
    wait_until(lambda: "intruder" in {line.get("user") for line in find(lab, searches["logins"].asked())})
