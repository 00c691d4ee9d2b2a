"""Sums of Prometheus's metrics: asked on its host, with its password, and decoded as what a node may say."""

import json
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import paramiko
import pytest

from clusterctl.nodes import probe, prometheus
from clusterctl.nodes.probe import common as probe_common
from clusterctl.nodes.probe import prometheus as probe_prometheus
from clusterctl.nodes.prometheus import Measures
from clusterctl.nodes.remote import Access
from clusterctl.util.period import DAY, Period

from .ssh_server import Server, ed25519, host, known, listening, shell
from .test_status import options as options  # a fixture
from .test_status import prometheus as serving

PARTS = [(0, 600), (600, 1000)]


def matrix(*series: tuple[dict[str, str], list[str]]) -> bytes:
    """Return Prometheus's answer of these series."""
    result = [{"metric": labels, "values": [[n, value] for n, value in enumerate(values)]} for labels, values in series]
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}}).encode()


def asking(url: str, options: dict[str, str], **queries: str) -> dict[str, Any]:
    return {"access": {"url": url, **options}, "queries": queries, "parts": PARTS, "step": 300}


def test_measure__series_of_each_part__are_summed_on_the_node(options: dict[str, str]) -> None:
    answer = matrix(({"instance": "gpu01"}, ["1", "0.5", "NaN"]), ({}, ["2"]))
    with serving(answer) as (url, asked):
        found = probe_prometheus.measure(asking(url, options, busy="sum(x)"))
    assert found == {"error": None, "series": {"busy": {"gpu01": [[1.5, 2]] * 2, "": [[2.0, 1]] * 2}}}
    forms = [parse_qs(request.partition(" /api/v1/query_range ")[2]) for request in asked]
    assert forms == [
        {"query": ["sum(x)"], "start": [str(begin)], "end": [str(end - 1)], "step": ["300"]} for begin, end in PARTS
    ]


def test_measure__a_series_that_begins_later__has_nothing_before(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"0": matrix(), "600": matrix(({"namespace": "a"}, ["3"]))}
    monkeypatch.setattr(
        probe_prometheus, "ask_prometheus", lambda access, path, form, limit: json.loads(answers[form["start"]])["data"]
    )
    assert probe_prometheus.measure(asking("", {}, held="x"))["series"]["held"] == {"a": [[0, 0], [3.0, 1]]}


@pytest.mark.parametrize(
    ("answer", "code", "reason"),
    [
        (b"no", 401, "Prometheus returned HTTP 401"),
        (b"{}", 200, "answer cannot be read (KeyError)"),
        (matrix(({"a": "b"}, ["x"])), 200, "answer cannot be read (ValueError)"),
    ],
)
def test_measure__no_valid_answer__is_an_error(options: dict[str, str], answer: bytes, code: int, reason: str) -> None:
    with serving(answer, code) as (url, _):
        assert reason in probe_prometheus.measure(asking(url, options, a="x"))["error"]


@pytest.mark.proves("bootstrap", "A head is left out though Prometheus has not asked for all pages yet.")
@pytest.mark.parametrize(
    ("found", "is_up"),
    [
        ([("node", "up"), ("endpoint", "up"), ("endpoint", "unknown")], True),
        ([("node", "up"), ("endpoint", "up"), ("endpoint", "down")], False),
        ([("node", "up"), ("endpoint", "unknown")], False),
        ([("node", "unknown"), ("endpoint", "up")], False),
        ([("node", "down")], False),
        ([("node", "another")], False),
    ],
)
def test_targets__of_one_job__are_of_one_exporter(
    monkeypatch: pytest.MonkeyPatch, found: list[tuple[str, str]], is_up: bool
) -> None:
    """The states are those of TargetHealth in Prometheus' scrape/target.go."""
    active = [{"labels": {"job": job, "instance": "head1"}, "health": health} for job, health in found]
    active.append({"labels": {"job": "node", "instance": "gpu01"}, "health": "up"})
    monkeypatch.setattr(probe_prometheus, "ask_prometheus", lambda access, path: {"activeTargets": active})
    assert probe_prometheus.targets({}) == {"head1": is_up, "gpu01": True}


def test_probe__names_of_its_parts__are_those_of_one() -> None:
    """The parts are one program on the node, in which a second definition would replace the first."""
    parts = [Path(probe.__file__).with_name(f"{part}.py") for part in probe._PARTS]
    names = Counter(
        line.split("(")[0]
        for part in parts
        for line in part.read_text().splitlines()
        if line.startswith(("def ", "class "))
    )
    assert [name for name, count in names.items() if count > 1] == []


# --- on the controller ------------------------------------------------------------------------------------------------


def reply(series: object, error: str | None = None) -> str:
    return f"Welcome!\n{probe_common.MARK}{json.dumps({'error': error, 'series': series})}\n"


def test_read__sums_of_days__are_hours() -> None:
    found = prometheus.read("head1", reply({"busy": {"gpu01": [[6, 12], [0, 0]], "gpu02": [[12.0, 12], [6, 6]]}}), 300)
    assert found.hours("busy") == 2.0
    assert (found.hours("busy", "gpu01"), found.hours("busy", "gpu02", 1), found.hours("busy", day=0)) == (
        0.5,
        0.5,
        1.5,
    )
    assert (found.measured_hours("busy", "gpu02"), found.labels("busy")) == (1.5, ["gpu01", "gpu02"])
    assert (found.hours("busy", "gpu03"), found.hours("idle"), found.labels("idle")) == (0, 0, [])


@pytest.mark.proves("untrusted", "Sums of metrics that are no numbers of a node are refused.")
@pytest.mark.parametrize(
    "out",
    [
        "",
        f"{probe_common.MARK}[",
        f"{probe_common.MARK}[]",
        reply({"a": {"b": [[float("nan"), 1]]}}),
        reply({"a": {"b": [[-1, 1]]}}),
        reply({"a": {"b": [[True, 1]]}}),
        reply({"a": {"b": [[1, 1, 1]]}}),
        reply({"a": {str(n): [] for n in range(probe_common.MAX_SERIES + 1)}}),
    ],
)
def test_read__invalid_output__is_an_error(out: str) -> None:
    found = prometheus.read("head1", out, 300)
    assert found.error.startswith("head1: the sums of Prometheus's metrics are not valid: ")
    assert found.series == {}


def test_read__hostile_names__are_plain() -> None:
    found = prometheus.read("head1", reply({"held": {"a\x1b[2J": [[1, 1]]}}, "no \x07route"), 15)
    assert (found.labels("held"), found.error) == (["a[2J"], "head1: no route")


@pytest.mark.parametrize(("length", "expected"), [(60, 15), (3600, 15), (DAY // 2, 180), (DAY, 300), (30 * DAY, 300)])
def test_step__of_a_period__is_within_what_prometheus_keeps(length: int, expected: int) -> None:
    assert prometheus.step(Period(0, length)) == expected


def test_access__an_address_of_ipv6__has_brackets(tmp_path: Path) -> None:
    monitoring = replace(host(22, tmp_path), variables={"cluster_address": "fd00::1", "prometheus_port": 9100})
    assert prometheus.access(monitoring)["url"] == "https://[fd00::1]:9100"


def test_measure__over_ssh__runs_the_program_there(tmp_path: Path) -> None:
    """Its Python runs for real. This machine has no Prometheus, and no password of one."""

    def program(channel: paramiko.Channel, command: str) -> int:
        return shell(channel, command.replace("/usr/bin/python3", sys.executable))

    server = Server([ed25519(tmp_path / "host")], ed25519(tmp_path / "id"), program)
    with listening(server.serve) as port:
        (tmp_path / "known_hosts").write_text(known(port, *server.host_keys))
        monitoring = replace(host(port, tmp_path / "id", "head1", "monitoring"), user="root")
        found = prometheus.measure(monitoring, Access(tmp_path / "known_hosts"), {"up": "max(up)"}, Period(0, DAY))
    assert found == Measures("head1: Prometheus is not set up yet", {"up": {}}, 300)
