"""Usage: what is summed up of jobs and metrics, what is said to be unknown, and the four outputs."""

import csv
import io
import json
import re
import subprocess
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import paramiko
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.commands import usage, usage_html, usage_page
from clusterctl.commands.usage import COMPLETE, INCOMPLETE, Capacity
from clusterctl.commands.usage_report import Group, Usage
from clusterctl.inventory.schedulers import SLURM
from clusterctl.nodes.prometheus import Measures
from clusterctl.nodes.remote import Access
from clusterctl.slurm.accounting import Tally
from clusterctl.ui.screen import Screen
from clusterctl.util.period import DAY
from tests import programs
from tests.labs import REPOSITORY

from .ssh_server import Server, ed25519, host, inventory, known, listening
from .test_alerts import promtool
from .test_cli import clusterctl
from .test_hardware import node as recorded
from .test_slurm_accounting import ONE_GPU, PERIOD, SINCE, line, tally

HOSTILE = "=HYPERLINK(<script>alert(1)</script>)"
FOUR_GPUS = ONE_GPU.replace("=1,", "=4,")
CAPACITY = Capacity(("gpu01", "gpu02"), 8)
HOURS = PERIOD.hours
STEPS = 288  # of 300 s in a day


def daily(value: float) -> tuple[tuple[float, float], ...]:
    """Return what is summed up of a series that has one value all the time."""
    return ((value * STEPS, STEPS),) * 3


MEASURES = Measures(
    series={
        "node_busy": {"gpu01": daily(1.0), "gpu02": daily(2.0), "gone": daily(9.0)},
        "node_gpus": {"gpu01": daily(4), "gpu02": daily(4), "gone": daily(9)},
        "node_allocated": {"gpu01": daily(4), "gpu02": daily(1)},
        "node_idle": {"gpu01": daily(3), "gpu02": daily(0)},
        "job_watts": {"physics": daily(800), "another": daily(9)},
        "job_measured": {"physics": daily(1)},
        "up": {"": daily(1)},
        "held": {"physics": daily(2), "default": daily(1)},
        "pod_busy": {"physics": daily(0.5)},
        "pod_gpus": {"physics": daily(2)},
        "pod_idle": {"physics": daily(1)},
    },
    step=300,
)


def jobs() -> Tally:
    """Return the jobs of two accounts; one is measured, one waits."""
    return tally(
        line(SINCE, SINCE + DAY, FOUR_GPUS, "7200000", "alice|physics|main"),
        line(SINCE + DAY, state="RUNNING", names=f"bob|{HOSTILE}|main", eligible=SINCE),
        line("Unknown", state="PENDING", tres="", names="carol|physics|main"),
    )


def of_slurm(measures: Measures | None = MEASURES, capacity: Capacity = CAPACITY) -> Usage:
    return Usage("aurora", PERIOD, (usage.of_slurm(jobs(), measures, capacity, PERIOD),))


def text_of(found: Usage, width: int = 0) -> str:
    """Return the page as text, on a terminal if it has a width."""
    screen = Screen(io.StringIO(), plain=not width)
    if width:
        screen._force_terminal, screen.width = True, width
    with screen.capture() as page:
        usage_page.show(screen, found)
    return re.sub(r"\x1b\[[\d;]*m", "", page.get())


# --- sums -------------------------------------------------------------------------------------------------------------


def test_of_slurm__jobs_of_accounts__are_hours_and_shares() -> None:
    (report,) = of_slurm().reports
    first, second = report.groups
    assert (first.name, first.jobs, first.gpu_hours, first.cpu_hours, first.waiting) == ("physics", 1, 96.0, 96.0, 1)
    assert (second.name, second.gpu_hours, second.energy_joules) == (HOSTILE, 48.0, None)
    assert (second.wait_median_seconds, second.wait_p95_seconds) == (DAY, DAY)
    assert [first.energy_joules, first.energy_jobs] == pytest.approx([7200000, 1])
    assert (report.capacity_gpu_hours, report.total.gpu_hours) == (8 * HOURS, 144.0)
    assert report.total.share == pytest.approx(144 / (8 * HOURS))
    assert [(day.day, day.gpu_hours) for day in report.days] == [
        ("2026-10-01", 96.0),
        ("2026-10-02", 24.0),
        ("2026-10-03", 24.0),
    ]


def test_of_slurm__metrics_of_its_nodes__are_utilisation_and_idle_gpus() -> None:
    (report,) = of_slurm().reports
    assert [report.total.utilisation, report.measured_gpu_hours] == pytest.approx([3 / 8, 8 * HOURS])
    assert [report.total.idle_gpu_hours, report.idle_of_gpu_hours] == pytest.approx([3 * HOURS, 5 * HOURS])
    assert [node.name for node in report.nodes] == ["gpu01", "gpu02"]
    assert [node.utilisation for node in report.nodes] == pytest.approx([0.25, 0.5])
    assert [node.idle_gpu_hours for node in report.nodes] == pytest.approx([3 * HOURS, 0])
    assert [day.utilisation for day in report.days] == [pytest.approx(3 / 8)] * 3
    assert {group.utilisation for group in report.groups} == {None}, "it is not known which GPU a job had"


@pytest.mark.proves("usage", "Energy of GPUs is by account; without a measurement it is unknown, not 0.")
def test_of_slurm__power_of_gpus_of_jobs__is_energy(tmp_path: Path) -> None:
    (report,) = of_slurm().reports
    energies = [group.gpu_energy_joules for group in (*report.groups, report.total)]
    assert energies == [pytest.approx(800 * HOURS * 3600), None, pytest.approx(800 * HOURS * 3600)]
    assert f"GPU energy: measured for {HOURS:.1f} of 144.0 GPU-hours of jobs; CPUs, memory" in "\n".join(report.notes)
    assert f"{0.8 * HOURS:.1f} kWh" in text_of(of_slurm())
    for measures in (None, Measures("head1: refused"), Measures()):
        (report,) = of_slurm(measures).reports
        assert report.total.gpu_energy_joules is None
        assert "gpu_energy_joules" not in usage_page.columns(report)
        assert "GPU energy" not in "\n".join(report.notes)


# GPU 0 of gpu01 changes from alice to bob; GPU 1 has no job; gpu02 has MIG, so Slurm's number 0 is not DCGM's; two
# heads have the same numbers.
SERIES = """
      - {series: 'DCGM_FI_DEV_POWER_USAGE{instance="gpu01",node="gpu01",gpu="0"}', values: "300x9 500x9"}
      - {series: 'DCGM_FI_DEV_POWER_USAGE{instance="gpu01",node="gpu01",gpu="1"}', values: "70x19"}
      - {series: 'DCGM_FI_DEV_POWER_USAGE{instance="gpu02",node="gpu02",gpu="0",GPU_I_ID="1"}', values: "600x19"}
      - {series: 'DCGM_FI_DEV_POWER_USAGE{instance="gpu02",node="gpu02",gpu="0",GPU_I_ID="2"}', values: "600x19"}
      - {series: 'slurm_node_gpus{instance="head1",node="gpu01",use="allocated"}', values: "1x19"}
      - {series: 'slurm_node_gpus{instance="head2",node="gpu01",use="allocated"}', values: "1x19"}
      - {series: 'slurm_node_gpus{instance="head1",node="gpu01",use="idle"}', values: "1x19"}
      - {series: 'slurm_node_gpus{instance="head1",node="gpu02",use="allocated"}', values: "2x19"}
      - {series: 'slurm_job_gpu{instance="head1",job_id="1",node="gpu01",gpu="0",account="a",user="alice"}', values: "1x9 stale"}
      - {series: 'slurm_job_gpu{instance="head2",job_id="1",node="gpu01",gpu="0",account="a",user="alice"}', values: "1x9 stale"}
      - {series: 'slurm_job_gpu{instance="head1",job_id="2",node="gpu01",gpu="0",account="a",user="bob"}', values: "_x10 1x9"}
      - {series: 'slurm_job_gpu{instance="head1",job_id="3",node="gpu02",gpu="0",account="c",user="carol"}', values: "1x19"}
      - {series: 'slurm_job_gpu{instance="head1",job_id="0",node="gpu01",gpu="1"}', values: "1x19"}
"""  # noqa: E501 - a series is one line


@pytest.mark.parametrize(
    ("by", "minute", "watts"), [("user", 5, ("alice", 300)), ("user", 15, ("bob", 500)), ("account", 15, ("a", 500))]
)
def test_energy__queries__have_the_power_of_gpus_of_jobs(tmp_path: Path, by: str, minute: int, watts: Any) -> None:
    name, value = watts
    samples = {"job_watts": value, "job_measured": 1}
    queries = [
        {
            "expr": query,
            "eval_time": f"{minute}m",
            "exp_samples": [{"labels": f'{{{by}="{name}"}}', "value": samples[key]}],
        }
        for key, query in usage._energy(by).items()
    ]
    head = f"evaluation_interval: 1m\ntests:\n  - interval: 1m\n    input_series:{SERIES}"
    (tmp_path / "energy.yml").write_text(f"{head}    promql_expr_test: {json.dumps(queries)}\n")
    done = programs.call([promtool(), "test", "rules", str(tmp_path / "energy.yml")], 60)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("measures", "note"),
    [
        (None, "utilisation: the inventory has no group monitoring"),
        (Measures("head1: refused"), "utilisation: head1: refused"),
        (Measures(), "utilisation: Prometheus has no GPU metrics of this period (group gpu_metrics)"),
    ],
)
def test_of_slurm__without_metrics__has_jobs_and_says_so(measures: Measures | None, note: str) -> None:
    (report,) = of_slurm(measures).reports
    assert note in report.notes
    assert (report.total.gpu_hours, report.total.utilisation, report.total.idle_gpu_hours) == (144.0, None, None)
    assert (report.nodes, report.measured_gpu_hours) == ((), None)
    assert not {"utilisation", "idle_gpu_hours"} & {*usage_page.columns(report)}


def test_of_slurm__what_is_not_known__is_noted() -> None:
    counted = replace(
        MEASURES, series={name: MEASURES.series[name] for name in ("node_busy", "node_gpus")} | {"node_allocated": {}}
    )
    (report,) = of_slurm(counted, Capacity(("gpu01", "gpu02", "gpu03"), 9, ("gpu03",))).reports
    assert report.notes == (
        "capacity: gpu03 without a hardware record (clusterctl discover)",
        "energy: measured for 1 of 2 jobs; the others are not in the sums",
        "utilisation: measured for 576.0 of 648.0 GPU-hours; the rest is unknown",
        "idle but allocated: Prometheus has no counts of this period of nodes without MIG",
    )
    found = tally(line(SINCE, SINCE + 5), "a line")
    notes = usage.of_slurm(found, MEASURES, CAPACITY, PERIOD).notes
    assert notes == (
        "energy: Slurm measured it for no job (AcctGatherEnergyType)",
        "jobs: 3 lines of sacct could not be read",
    )


def test_of_slurm__without_gpus__has_no_share() -> None:
    (report,) = of_slurm(None, Capacity(("gpu01",), 0)).reports
    assert (report.total.share, "share of the capacity: the hardware records have no GPU" in report.notes) == (
        None,
        True,
    )


def test_of_kubernetes__gpus_of_namespaces__are_hours_from_metrics() -> None:
    report = usage.of_kubernetes(MEASURES, CAPACITY, PERIOD)
    first, second = report.groups
    assert [first.name, second.name] == ["physics", "default"]
    assert [first.gpu_hours, first.utilisation, first.idle_gpu_hours] == pytest.approx([2 * HOURS, 0.25, HOURS])
    assert (second.gpu_hours, second.utilisation) == (HOURS, None)
    assert [report.total.gpu_hours, report.total.idle_gpu_hours] == pytest.approx([3 * HOURS, HOURS])
    assert (report.by, report.notes, len(report.days)) == ("namespace", (), 3)
    assert sum(day.gpu_hours for day in report.days) == pytest.approx(report.total.gpu_hours)


def test_of_kubernetes__heads_that_did_not_respond__are_noted() -> None:
    half = replace(MEASURES, series={**MEASURES.series, "up": {"": ((100, STEPS),)}})
    assert usage.of_kubernetes(half, CAPACITY, PERIOD).notes == (
        "GPUs of pods: counted in 8.3 of 72.0 h; the rest is unknown",
    )


def test_capacity__gpus_with_mig__count_as_their_instances(tmp_path: Path) -> None:
    record = recorded(name="gpu01")
    divided = replace(record, gpus=(replace(record.gpus[0], mig=("1g.10gb",) * 7), *record.gpus[1:]))
    cluster = inventory(
        tmp_path, host(1, tmp_path, "gpu01", "slurm_workers"), host(1, tmp_path, "gpu02", "slurm_workers")
    )
    found = usage.capacity_of(cluster, SLURM, {"gpu01": divided})
    assert found == Capacity(("gpu01", "gpu02"), 7 + len(record.gpus) - 1, ("gpu02",))


@pytest.mark.parametrize("refused", [False, True])
def test_collect__over_ssh__is_complete_only_with_metrics(tmp_path: Path, refused: bool) -> None:
    def program(channel: paramiko.Channel, command: str) -> int:
        channel.sendall(f"{line(SINCE, SINCE + DAY)}\n".encode())
        return 0 if "sacct" in command else 1

    server = Server([ed25519(tmp_path / "host")], ed25519(tmp_path / "id"), program)
    with listening(server.serve) as port:
        (tmp_path / "known_hosts").write_text(known(port, *server.host_keys))
        head = replace(host(port, tmp_path / "id", "head1", "slurm_head"), user="root")
        monitoring = [replace(host(port, tmp_path / "id", "mon1", "monitoring"), user="root")] * refused
        cluster = replace(inventory(tmp_path, head, *monitoring), cluster_name="aurora")
        found = usage.collect(cluster, Access(tmp_path / "known_hosts"), PERIOD, "user", {})
    (report,) = found.reports
    assert (report.groups[0].name, report.groups[0].gpu_hours) == ("ec-eeeee", 24.0)
    assert found.exit_code == (INCOMPLETE if refused else COMPLETE)
    assert any(note.startswith("utilisation: mon1: /usr/bin/python3 ended with 1") for note in report.notes) == refused


@pytest.mark.proves("monitoring", "The queries of `usage` are those that promtool tests.")
def test_queries__of_the_program__are_those_that_promtool_tests() -> None:
    (tests,) = yaml.safe_load((REPOSITORY / "tests/molecule/prometheus/files/usage_test.yml").read_text())["tests"]
    queries = [*usage._BY_NODE.values(), *usage._OF_SLURM.values(), *usage._OF_KUBERNETES.values()]
    assert [test["expr"] for test in tests["promql_expr_test"]] == queries
    series = " ".join(one["series"] for one in tests["input_series"])
    exporters = [
        (REPOSITORY / f"roles/{name}_exporter/files/{name}-metrics").read_text() for name in ("slurm", "kubernetes")
    ]
    for name in ("slurm_node_gpus", "kubernetes_namespace_gpus", "kubernetes_up"):
        assert name in series
        assert any(f'    "{name}":' in text for text in exporters)


# --- outputs ----------------------------------------------------------------------------------------------------------


def test_text__of_a_pipe__is_aligned_with_a_total_and_the_period() -> None:
    lines = text_of(of_slurm()).splitlines()
    assert lines[0].split()[:4] == ["Account", "Jobs", "GPU", "hours"]
    total = next(one for one in lines if one.startswith("Total"))
    assert total.split()[1:4] == ["2", "144.0", "25.0"]
    assert {len(one) for one in lines[:4]} == {len(lines[0])}, "numbers are right-aligned"
    assert "Period      2026-10-01 00:00 to 2026-10-04 00:00 UTC, 72.0 h" in lines
    assert "Capacity    8 GPUs, 576.0 GPU-hours" in lines
    assert "Utilisation 37.5 % of 576.0 measured GPU-hours" in lines
    assert "Idle        216.0 of 360.0 allocated GPU-hours, most on gpu01" in lines
    assert "Unknown     energy: measured for 1 of 2 jobs; the others are not in the sums" in lines


@pytest.mark.parametrize("width", [60, 80, 120])
def test_text__on_a_terminal__fits(width: int) -> None:
    text = text_of(of_slurm(), width)
    assert max(map(len, text.splitlines())) <= width
    assert "144.0" in text
    if width >= 80:
        assert re.search(r"2\.0\s+kWh", text)


def test_text__of_no_job__says_so() -> None:
    empty = usage.of_slurm(tally(), None, CAPACITY, PERIOD)
    assert text_of(Usage("aurora", PERIOD, (empty,))).startswith("No job in this period.\n")


def test_text__of_both_schedulers__has_their_names() -> None:
    both = (*of_slurm().reports, usage.of_kubernetes(MEASURES, CAPACITY, PERIOD))
    lines = text_of(Usage("aurora", PERIOD, both)).splitlines()
    assert [one for one in lines if one in ("Slurm", "Kubernetes")] == ["Slurm", "Kubernetes"]
    assert any(one.startswith("Namespace") and "Utilised" in one for one in lines)


def test_csv__of_groups__has_a_line_for_each() -> None:
    rows = list(csv.DictReader(io.StringIO(usage_page.table(of_slurm()))))
    assert [(row["scheduler"], row["by"], row["name"]) for row in rows] == [
        ("slurm", "account", "physics"),
        ("slurm", "account", f"'{HOSTILE}"),
    ]
    assert (rows[0]["gpu_hours"], rows[0]["energy_joules"], rows[1]["energy_joules"]) == ("96.0", "7200000.0", "")
    assert rows[1]["utilisation"] == ""


@pytest.mark.proves("untrusted", "A name in Slurm's accounting is no formula of a spreadsheet and no markup.")
@given(st.text(st.sampled_from('=+-@a1,"\u00e9'), max_size=6))
def test_csv__of_any_name__is_no_formula(name: str) -> None:
    report = replace(of_slurm().reports[0], groups=(Group(name, 1.0),))
    rows = list(csv.DictReader(io.StringIO(usage_page.table(Usage("aurora", PERIOD, (report,))), newline="")))
    assert [row["name"].removeprefix("'") for row in rows] == [name]
    assert not rows[0]["name"].startswith(("=", "+", "-", "@"))


class Page(HTMLParser):
    """The elements of a page, with their attributes; fails for one that is not closed."""

    VOID = ("meta",)

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


def html_of(found: Usage) -> str:
    return usage_html.page(found, datetime(2026, 11, 25, 14, 30, tzinfo=UTC))


def test_html__of_a_cluster__loads_nothing_and_runs_nothing() -> None:
    text = html_of(of_slurm())
    page = Page(text)
    assert {"script", "link", "img", "image", "iframe", "object", "a"} & {tag for tag, _ in page.found} == set()
    assert not re.search(r"https?:|url\(|@import|\bon\w+=|\bstyle=|javascript", text)
    assert HOSTILE not in text
    assert HOSTILE in page.words, "as text"
    policy = next(one["content"] for one in page.of("meta") if one.get("http-equiv") == "Content-Security-Policy")
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"


def test_html__of_both_schedulers__is_accessible_in_light_dark_and_print() -> None:
    both = (*of_slurm().reports, usage.of_kubernetes(MEASURES, CAPACITY, PERIOD))
    text = html_of(Usage("aurora", PERIOD, both))
    page = Page(text)
    assert text.startswith('<!DOCTYPE html>\n<html lang="en">')
    assert {one.get("scope") for one in page.of("th")} == {"col", "row"}
    assert len(page.of("caption")) == len(page.of("table"))
    ids = [one["id"] for _, one in page.found if one.get("id")]
    assert len(ids) == len({*ids})
    assert [one["aria-labelledby"] for one in page.of("section")] == ids
    # A bar's name and number are text beside it.
    assert {one["aria-hidden"] for one in page.of("svg")} == {"true"}
    assert len(page.of("svg")) == len(page.of("li")) == 10
    assert [one["aria-label"] for one in page.of("ul")].count("GPU-hours by day of UTC") == 2
    for condition in ("(prefers-color-scheme: dark)", "print"):
        assert f"@media {condition}" in text
    assert "37.5 %" in page.words


def test_bars__of_many_groups__are_the_largest_and_the_rest() -> None:
    found = usage_html.bars([(f"a{n:02}", 100.0 - n) for n in range(25)])
    assert (len(found), found[0].width, found[-1].label) == (21, 400.0 * 100 / 390, "5 others")
    assert found[-1] == usage_html.Bar("5 others", "390.0", 400.0)
    assert [bar.width for bar in usage_html.bars([("a", 0.0)])] == [0.0]
    assert usage_html.bars([]) == []


def test_json__of_a_cluster__has_numbers_and_the_period() -> None:
    found = json.loads(json.dumps(of_slurm().as_dict()))
    assert (found["cluster"], found["exit_code"], found["hours"]) == ("aurora", 0, 72.0)
    assert (found["since"], found["until"]) == ("2026-10-01T00:00:00Z", "2026-10-04T00:00:00Z")
    (report,) = found["reports"]
    assert [(group["name"], group["gpu_hours"]) for group in report["groups"]] == [("physics", 96.0), (HOSTILE, 48.0)]
    assert (report["total"]["gpu_hours"], report["days"][0]["day"], report["nodes"][0]["name"]) == (
        144.0,
        "2026-10-01",
        "gpu01",
    )


# --- the command line -------------------------------------------------------------------------------------------------

KUBERNETES = """\
all:
  vars: {cluster_name: borealis}
  children:
    kubernetes_head: {hosts: {head1: {ansible_host: 127.0.0.1, ansible_port: 1}}}
    kubernetes_workers: {hosts: {gpu01: {ansible_host: 127.0.0.2, ansible_port: 1}}}
"""
SLURM_ONLY = KUBERNETES.replace("kubernetes_", "slurm_")
MONITORED = f"{KUBERNETES}    monitoring: {{hosts: {{head1: {{}}}}}}\n"


def run(directory: Path, text: str, *argv: str) -> "subprocess.CompletedProcess[str]":
    (directory / "inventory.yaml").write_text(text)
    return clusterctl("usage", *argv, cwd=directory, HOME=str(directory))


@pytest.mark.parametrize(
    ("text", "argv", "code", "reason"),
    [
        (SLURM_ONLY, ["--since", "last week"], 2, '--since: got "last week", expected a duration such as 7d'),
        (SLURM_ONLY, ["--until", "2999-01-01"], 2, "--until: 2999-01-01 is in the future"),
        (SLURM_ONLY, ["--by", "qos"], 2, "'qos' is not one of 'user', 'account', 'partition'"),
        (SLURM_ONLY, ["--output", "xml"], 2, "'xml' is not one of"),
        (KUBERNETES, ["--by", "user"], 2, "--by: is for Slurm; the usage of Kubernetes is by namespace"),
        (KUBERNETES, [], 2, "Kubernetes keeps no accounting, and the inventory has no group monitoring"),
        (SLURM_ONLY, [], 5, "head1: 127.0.0.1 port 1 refuses the connection"),
        (SLURM_ONLY, ["--output", "csv"], 5, "head1: 127.0.0.1 port 1 refuses the connection"),
        (MONITORED, [], 4, "utilisation: head1: 127.0.0.1 port 1 refuses the connection"),
    ],
)
def test_usage__that_cannot_be__ends_with_its_exit_code(
    tmp_path: Path, text: str, argv: list[str], code: int, reason: str
) -> None:
    done = run(tmp_path, text, *argv)
    assert (done.returncode, reason in done.stdout + done.stderr) == (code, True), done.stdout + done.stderr
    assert not (tmp_path / ".clusterctl").exists(), "it writes nothing"


def test_usage__an_error_as_json__is_one_object(tmp_path: Path) -> None:
    done = run(tmp_path, SLURM_ONLY, "--output", "json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["verb"], found["exit_code"]) == (5, "usage", 5)


def test_usage__of_each_format__goes_to_stdout(tmp_path: Path) -> None:
    outputs = {name: run(tmp_path, MONITORED, "--output", name) for name in ("json", "csv", "html")}
    assert {done.returncode for done in outputs.values()} == {4}
    assert json.loads(outputs["json"].stdout)["reports"][0]["groups"] == []
    assert outputs["csv"].stdout.startswith("scheduler,by,name,gpu_hours,")
    assert Page(outputs["html"].stdout).of("h1") == [{}]
