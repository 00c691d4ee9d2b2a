"""Faults of the log stack in a real cluster: no line is lost or stored twice, and no job waits."""

import json
import re
import shlex
import time
from collections.abc import Iterator
from functools import partial

import pytest

from tests.cluster.lab import ALICE, TestLab, fresh_as, submit
from tests.cluster.logs import (
    GROUP,
    RECIPES,
    ask,
    configuration,
    find,
    full_disk,
    has_started,
    numbers,
    stored,
    switch_on,
)
from tests.cluster.members import Growing
from tests.faults.injury import in_service, wait_until

RATE = 50  # lines a second on each node
WRITER = """
import syslog, time
syslog.openlog({program!r})
began = time.monotonic()
for number in range({count}):
    syslog.syslog(f"number {{number}}")
    time.sleep(max(0, began + number / {rate} - time.monotonic()))
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Growing]:
    with fresh_as(Growing, "logs", *(f"--recipe={name}" for name in RECIPES)) as made:
        switch_on(made)
        made.run("bootstrap")
        yield made


@pytest.mark.kit(*RECIPES)
@pytest.mark.proves("log_stack", "With the engine stopped and shippers killed, every line is stored exactly once.")
@pytest.mark.parametrize("stopped", [120, 600], ids=["two minutes", "ten minutes"])
@pytest.mark.long
@pytest.mark.timeout(3000)
def test_lines__engine_stopped_and_shippers_killed__are_stored_once(lab: TestLab, stopped: int) -> None:
    program, count = f"sequence-{stopped}", RATE * (stopped + 30)
    for node in lab.nodes:
        lab.ssh(node, "sudo", "tee", "/root/writer.py", stdin=WRITER.format(program=program, count=count, rate=RATE))
        lab.root(node, "systemd-run --quiet --collect --unit=writer python3 /root/writer.py")
    lab.root("head1", "systemctl stop opensearch")
    time.sleep(stopped / 2)
    for node in lab.nodes:
        lab.root(node, "systemctl kill --signal=KILL filebeat journal-export")
    time.sleep(stopped / 2)
    lab.root("head1", "systemctl start opensearch")
    wait_until(lambda: has_started(lab))
    for node in lab.nodes:
        lab.root(node, "systemctl kill --signal=KILL filebeat")
    job = submit(lab, "true")
    wait_until(lambda: "COMPLETED" in lab.root("head1", f"sacct --noheader --parsable2 --format=State --jobs={job}"))
    for node in lab.nodes:
        wait_until(partial(stored, lab, node, (count, count), program))
    lab.unchanged()


@pytest.mark.kit(*RECIPES)
@pytest.mark.proves("log_stack", "With the engine's disk full, jobs run, an alert's metric rises, no line is lost.")
@pytest.mark.long
def test_disk__that_is_full__loses_no_line(lab: TestLab) -> None:
    with full_disk(lab):
        lab.root("gpu01", "for n in $(seq 200); do logger -t full number $n; done")
        job = submit(lab, "true")
        ended = f"sacct --noheader --parsable2 --format=State --jobs={job}"
        wait_until(lambda: "COMPLETED" in lab.root("head1", ended))
        assert numbers(lab, "gpu01", "full") == (0, 0)
    wait_until(lambda: numbers(lab, "gpu01", "full")[0] >= 200)
    assert numbers(lab, "gpu01", "full") == (200, 200)


@pytest.mark.kit(*RECIPES)
@pytest.mark.proves("log_stack", "Logs above the size limit are deleted but for yesterday's and today's.")
@pytest.mark.long
def test_retention__above_the_limit__deletes_indices(lab: TestLab) -> None:
    # As an earlier release, or an administrator, may have left them.
    for name in ("clusterlog-2026.01.01", "clusterlog-2099.01.01"):
        assert ask(lab, f"/{name}", {}, "PUT")["acknowledged"]
    week = lab.root("head1", "date --utc --date='5 days ago' +clusterlog-%Y.%m.%d").strip()
    assert ask(lab, f"/{week}", {}, "PUT")["acknowledged"]
    given = json.dumps({**configuration(lab), "gigabytes": 0})
    lab.ssh("head1", "sudo", "tee", "/root/small.json", stdin=given)
    deleted = lab.root("head1", "/usr/local/sbin/log-store /root/small.json retain")
    assert re.findall(r"deleted (\S+)", deleted) == ["clusterlog-2026.01.01", "clusterlog-2099.01.01", week]
    lab.root("gpu01", "logger -t after a line")
    wait_until(lambda: find(lab, "node:gpu01 AND program:after") != [])


@pytest.mark.kit(*RECIPES)
@pytest.mark.proves("log_stack", "A node that is added while the engine's disk is full serves jobs; exit 5.")
@pytest.mark.proves("log_stack", "A new node ships its logs without a restart of the engine.")
@pytest.mark.long
def test_node__that_is_added__ships_its_logs(lab: Growing) -> None:
    show = "systemctl show --property=InvocationID --value opensearch"
    before = lab.root("head1", show)
    with full_disk(lab):
        assert "the search engine" in lab.verb("add-node", *lab.adding, expect=5)
        assert in_service(lab)[lab.last] == "idle"
    lab.add()
    wait_until(lambda: find(lab, f"node:{lab.last} AND dataset:slurm") != [])
    wait_until(lambda: find(lab, f"node:{lab.last} AND dataset:journal") != [])
    assert lab.root("head1", show) == before


FORGED = "x\nJobId=99 UserId=root(0) GroupId=root(0) Name=y"  # a name that begins a second line of the record
RECORDS = "/var/log/slurm/jobcomp.log"


def recorded(lab: TestLab, name: str) -> str:
    """Submit a job of this name; return its number after its record has been written."""
    options = f"--mem=1M --time=UNLIMITED --chdir=/ --output=none --job-name={shlex.quote(name)}"
    job = lab.ssh("head1", *ALICE, "sh", "-s", stdin=f"sbatch --parsable {options} --wrap=true").strip()
    wait_until(lambda: f"JobId={job} " in lab.root("head1", f"cat {RECORDS}"))
    return job


@pytest.mark.kit(*RECIPES)
@pytest.mark.proves("log_stack", "slurmctld writes to a new file after rotation; each job's record is stored.")
@pytest.mark.proves("log_stack", "A newline in a job's name makes no record of another job.")
@pytest.mark.long
def test_record__of_a_job__is_stored_past_rotation(lab: TestLab) -> None:
    jobs = []
    for name in ("before", FORGED):
        jobs.append(recorded(lab, name))
        lab.root("head1", "logrotate --force /etc/logrotate.d/clusterctl-jobcomp")
        wait_until(lambda: lab.root("head1", f"stat -c %s {RECORDS} || true") == "0\n")
    for job in jobs:
        wait_until(partial(lambda query: len(find(lab, query)) == 1, f"dataset:jobs AND job_id:{job}"))
    (forged,) = find(lab, f"dataset:jobs AND job_id:{jobs[1]}")
    assert (forged["user"], forged["job_name"], forged["job_state"]) == ("alice", FORGED, "COMPLETED")
    assert find(lab, "dataset:jobs AND (job_id:99 OR user:root)") == []
    lab.ssh("head1", *ALICE, "sh", "-s", stdin=f"! cat {RECORDS}")


@pytest.mark.kit(*RECIPES)
@pytest.mark.proves("log_stack", "Without its group, nodes have no shipper; with it again, they ship.")
@pytest.mark.long
def test_group__that_is_removed__takes_the_shippers_along(lab: Growing) -> None:
    text = lab.inventory.read_text()
    assert GROUP in text
    lab.inventory.write_text(text.replace(GROUP, ""))
    lab.run("bootstrap")
    for node in lab.nodes:
        lab.root(
            node, "! systemctl is-active filebeat journal-export && ! systemctl is-enabled filebeat journal-export"
        )
        lab.root(node, "! pgrep -f '/[f]ilebeat/bin|libexec/[j]ournal-export' && ! ls /usr/share/filebeat/bin/filebeat")
        lab.root(node, "! ls /etc/systemd/system/*.wants/journal-export.service")
    lab.unchanged()
    lab.inventory.write_text(text)
    lab.run("bootstrap")
    lab.root("gpu01", "logger -t again a line")
    wait_until(lambda: find(lab, "node:gpu01 AND program:again") != [])
