"""The panels of Grafana's dashboards, asked of a lab's Prometheus."""

import json
import urllib.parse
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tests.cluster.lab import TestLab
from tests.cluster.test_gpu_metrics import ask
from tests.dashboards.asking import Result, results
from tests.dashboards.pages import PAGES
from tests.labs import REPOSITORY
from tests.unit.head_programs import load

PERIOD = 180
"""Seconds that the graphs show."""


def asker(lab: TestLab) -> Callable[[str, Mapping[str, str]], Any]:
    """Return what asks the lab's Prometheus."""

    def asked(path: str, parameters: Mapping[str, str]) -> Any:
        # A shell's double quotes are around the path.
        return ask(lab, f"{path}?{urllib.parse.urlencode(parameters)}")

    return asked


def now(lab: TestLab) -> float:
    """Return the time of the lab's head."""
    return float(lab.ssh("head1", "date", "+%s"))


def shown(
    lab: TestLab, names: Iterable[str], wanted: Mapping[str, Mapping[str, str]] | None = None
) -> dict[str, list[Result]]:
    """Return the results of the pages with these names; `wanted` are the choices of a page's reader."""
    end = now(lab)
    return {
        page.name: results(asker(lab), page, (wanted or {}).get(page.name, {}), end, PERIOD)
        for page in PAGES
        if page.name in names
    }  # fmt: skip


def simulate_hardware(lab: TestLab, *nodes: str) -> None:
    """Write metrics of disks and sensors, which no container has: what the role's program makes of recorded outputs."""
    samples = REPOSITORY / "tests/samples/hardware"
    disks = {f"/dev/{name}": (samples / f"smart/{name}.json").read_text() for name in ("hdd-sata", "nvme", "ssd-sata")}
    others = {
        "ipmi-sensors": "".join((samples / f"ipmi/{name}.csv").read_text() for name in ("supermicro", "huawei")),
        "ipmi-dcmi": "Current Power : 812 Watts\n",
        "ipmi-sel": "Number of log entries : 493\nFree space remaining : 8528 bytes\n",
    }

    def ask(argv: Sequence[str], _seconds: int) -> str:
        if "--scan" in argv:
            return json.dumps({"devices": [{"name": name, "type": "auto"} for name in disks]})
        return disks.get(argv[-1]) or others[argv[0]]

    program = load("hardware-metrics")
    text = program.metrics_file.render(program.count(ask, True, ""), program.DESCRIPTIONS)
    for node in nodes:
        lab.ssh(node, "sudo", "tee", "/var/lib/clusterctl-metrics/hardware.prom", stdin=text)


def without_data(found: Mapping[str, Iterable[Result]]) -> set[tuple[str, str]]:
    """Return page and title of each panel of which a query has no series."""
    return {(name, one.panel.title) for name, of_page in found.items() for one in of_page if not all(one.series)}
