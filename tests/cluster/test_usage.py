"""Usage of a cluster on which two users ran jobs of known length: as sacct has it, and as Prometheus measured it."""

import csv
import io
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from html.parser import HTMLParser
from typing import Any, NamedTuple

import pytest

from tests.cluster.gpus import Site
from tests.cluster.lab import ALICE, TestLab, clusterctl
from tests.cluster.members import of_jobs, states
from tests.faults.injury import wait_until

JOBS = {"alice": (2, 90), "bob": (1, 60)}
"""GPUs and seconds of each user's job."""
TOLERANCE = 2
"""Seconds that a job may be longer than its script, at each end."""


class Ran(NamedTuple):
    """A job as sacct has it; times in seconds since 1970."""

    number: str
    start: int
    end: int


@pytest.fixture(scope="module")
def lab(gpus: Site) -> TestLab:
    return gpus.lab


@pytest.fixture(scope="module")
def began(lab: TestLab) -> Iterator[int]:
    """When the jobs were submitted. Meanwhile GPU 0 of gpu01 computes, and the others do not."""
    for node, *options in (("gpu01", "clear"), ("gpu02", "clear"), ("gpu01", "busy", "--gpu", "0")):
        assert clusterctl("lab", "fault", "--name", lab.name, node, *options).returncode == 0
    yield int(lab.ssh("head1", "date", "+%s"))
    assert clusterctl("lab", "fault", "--name", lab.name, "gpu01", "clear").returncode == 0


@pytest.fixture(scope="module")
def ran(lab: TestLab, began: int) -> dict[str, Ran]:
    """The users' jobs, all on gpu01, when they have ended."""
    numbers = {}
    for user, (count, seconds) in JOBS.items():
        options = ["--parsable", "--mem=1M", "--chdir=/", "--output=none", "--nodelist=gpu01", f"--gres=gpu:{count}"]
        argv = [*ALICE[:-1], user, "sbatch", *options]
        numbers[user] = lab.ssh("head1", *argv, stdin=f"#!/bin/sh\nsleep {seconds}\n").strip()
    for number in numbers.values():
        wait_until(lambda number=number: states(lab, number) == ["COMPLETED"])  # type: ignore[misc]
    return {user: Ran(number, *times(lab, number)) for user, number in numbers.items()}


def times(lab: TestLab, number: str) -> tuple[int, int]:
    """Return the start and the end of a job, from sacct in the time zone of the head."""
    found = [
        int(lab.ssh("head1", "date", f"--date={of_jobs(lab, number, field)[0]}", "+%s")) for field in ("Start", "End")
    ]
    return found[0], found[1]


def utc(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}"


def slurm(document: dict[str, Any]) -> dict[str, Any]:
    """Return the report of Slurm's jobs."""
    (report,) = document["reports"]
    assert report["scheduler"] == "slurm"
    found: dict[str, Any] = report
    return found


def of(lab: TestLab, output: str, *options: str) -> "subprocess.CompletedProcess[str]":
    done = clusterctl("usage", str(lab.inventory), "--output", output, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.mark.proves("usage", "GPU-hours by user are those of their jobs in Slurm's accounting.")
def test_usage__of_two_users__is_that_of_their_jobs(lab: TestLab, began: int, ran: dict[str, Ran]) -> None:
    report = slurm(lab.run("usage", "--since", utc(began), "--by", "user"))
    groups = {group["name"]: group for group in report["groups"]}
    for user, (count, seconds) in JOBS.items():
        job = ran[user]
        assert groups[user]["jobs"] == 1
        assert groups[user]["gpu_hours"] == pytest.approx(count * (job.end - job.start) / 3600)
        assert seconds <= job.end - job.start <= seconds + TOLERANCE
        assert 0 <= groups[user]["wait_median_seconds"] <= job.start - began + TOLERANCE
    for name in ("jobs", "gpu_hours", "cpu_hours", "node_hours"):
        assert sum(group[name] for group in report["groups"]) == pytest.approx(report["total"][name])
    assert sum(day["gpu_hours"] for day in report["days"]) == pytest.approx(report["total"]["gpu_hours"])
    assert report["gpus"] == 8
    assert "energy: Slurm measured it for no job (AcctGatherEnergyType)" in report["notes"]


@pytest.mark.proves("usage", "A job that began before the period counts with its part.")
def test_usage__of_a_part_of_a_job__is_that_part(lab: TestLab, ran: dict[str, Ran]) -> None:
    job = ran["alice"]
    period = ("--since", utc(job.start + 20), "--until", utc(job.start + 50))
    groups = slurm(lab.run("usage", *period, "--by", "user"))["groups"]
    (group,) = [group for group in groups if group["name"] == "alice"]
    assert (group["jobs"], group["gpu_hours"]) == (1, pytest.approx(2 * 30 / 3600))
    assert group["wait_median_seconds"] is None


@pytest.mark.proves("usage", "Utilisation and idle allocated GPUs are measured from Prometheus's metrics.")
def test_usage__of_a_busy_gpu__is_measured_on_its_node(lab: TestLab, began: int, ran: dict[str, Ran]) -> None:
    """Three of gpu01's four GPUs were allocated, and one of them computed."""
    until = max(job.end for job in ran.values())
    while time.time() < until + 1:
        time.sleep(1)
    report = slurm(lab.run("usage", "--since", utc(min(job.start for job in ran.values())), "--until", utc(until)))
    busy = {node["name"]: node["utilisation"] for node in report["nodes"]}
    assert busy == {"gpu01": pytest.approx(0.25, abs=0.1), "gpu02": 0}
    total = report["total"]
    assert total["utilisation"] == pytest.approx(0.125, abs=0.05)
    assert 0 < total["idle_gpu_hours"] < report["idle_of_gpu_hours"]
    # One GPU drew its limit, the others what they draw when idle.
    assert 70 < total["gpu_energy_joules"] / (total["gpu_hours"] * 3600) < 700
    assert report["idle_of_gpu_hours"] == pytest.approx(total["gpu_hours"], rel=0.5), "Slurm is counted every 15 s"


class Elements(HTMLParser):
    """The names of a page's elements."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)


@pytest.mark.proves("usage", "The HTML page has pictures and no script; CSV has the same users.")
def test_usage__as_html_and_csv__has_the_same_users(lab: TestLab, began: int, ran: dict[str, Ran]) -> None:
    options = ("--since", utc(began), "--by", "user")
    page, text = Elements(), of(lab, "html", *options).stdout
    page.feed(text)
    page.close()
    assert {"script", "link", "img"}.isdisjoint(page.names)
    rows = {row["name"]: row for row in csv.DictReader(io.StringIO(of(lab, "csv", *options).stdout))}
    days = slurm(lab.run("usage", *options))["days"]
    assert page.names.count("svg") == len(rows) + len(days), "a bar for each user and day"
    for user in ran:
        assert f">{user}<" in text
        assert float(rows[user]["gpu_hours"]) > 0
        assert user in of(lab, "text", *options).stdout


@pytest.mark.proves("usage", "Without slurmdbd, `usage` reports the head's failure, exit 5.")
def test_usage__slurmdbd_is_stopped__is_the_heads_failure(lab: TestLab) -> None:
    lab.root("head1", "systemctl stop slurmdbd")
    try:
        document = lab.run("usage", expect=5)
        assert document["error"].startswith("head1: sacct failed with exit code 1: ")
    finally:
        lab.root("head1", "systemctl start slurmdbd")
    lab.healthy()
