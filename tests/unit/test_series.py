"""How many time series the exporters have, and what happens beyond the limit: simulated nodes, a real Prometheus.

docs/monitoring.md states numbers; tests/bench/series.py simulates the nodes, and measures 100 of them.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench import series
from tests.bench.measure import BenchError
from tests.labs import REPOSITORY

DOCS = (REPOSITORY / "docs/monitoring.md").read_text(encoding="utf-8")
# The rows of the table: exporter, series, limit of its job.
STATED = {
    name: (int(number.replace(",", "")), int(limit.replace(",", "")))
    for name, number, limit in re.findall(r"(?m)^\| ([\w' ,-]+?) \| .+ \| ([\d,]+) \| ([\d,]+) \|$", DOCS)
}
LIMIT = 300


@pytest.fixture(scope="module")
def simulation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[series.Simulation]:
    """Three nodes. A scrape of GPUs may have fewer series than they have."""
    settings = {"prometheus_scrape_interval": "1s", "prometheus_sample_limits": {"gpu": LIMIT}}
    try:
        simulation = series.Simulation(tmp_path_factory.mktemp("series"), 3, settings)
    except BenchError as error:
        pytest.skip(str(error))
    with simulation.running():
        yield simulation


@pytest.mark.proves("monitoring", "No exporter of a node has more series than the documentation states.")
def test_exporters__of_large_nodes__have_no_more_series_than_stated(simulation: series.Simulation) -> None:
    found = simulation.wait(series.WORKERS, lambda found: {"node", "gpu"} <= found.keys())
    worker = STATED["worker's node exporter"][0]
    assert worker * 0.6 < found["node"] <= worker
    assert STATED["GPU exporter"][0] * 0.6 < found["gpu"] <= STATED["GPU exporter"][0]
    own = simulation.wait(
        "max by (job) (scrape_samples_post_metric_relabeling{job='prometheus'})", lambda found: found["prometheus"] > 0
    )
    assert own["prometheus"] <= STATED["Prometheus"][0]


@pytest.mark.proves("monitoring", "Slurm's metrics of 100 full nodes are no more series than stated.")
@pytest.mark.parametrize(("nodes", "what"), [(100, "head, Slurm with 100 nodes"), (501, "head, Slurm with 500 nodes")])
def test_slurm_metrics__of_many_full_nodes__are_no_more_than_stated(nodes: int, what: str) -> None:
    assert STATED[what][0] * 0.6 < series.series_of(series.slurm_page(nodes)) <= STATED[what][0]


def test_hardware_metrics__of_a_large_server__are_no_more_than_stated() -> None:
    number = series.series_of(series.hardware_page())
    assert STATED["disks and sensors"][0] * 0.6 < number <= STATED["disks and sensors"][0]


@pytest.mark.proves("monitoring", "Limits of a scrape are several times what its exporter has.")
def test_limits__of_the_jobs__are_those_of_the_documentation_and_leave_room(simulation: series.Simulation) -> None:
    role = simulation.cluster.role("prometheus", "head1", prometheus_sample_limits={})
    limits = role.value("__prometheus_limits")
    jobs = {"worker's node exporter": "node", "GPU exporter": "gpu", "Prometheus": "prometheus"}
    jobs |= {"head, Slurm with 100 nodes": "node", "head, Slurm with 500 nodes": "node", "disks and sensors": "node"}
    assert {name: limits[jobs[name]] for name in STATED} == {name: limit for name, (_, limit) in STATED.items()}
    assert [name for name, (number, limit) in STATED.items() if number > limit * 0.8] == []


@pytest.mark.proves("monitoring", "A scrape above its limit fails, and an alert names the target and its number.")
def test_scrape__above_its_limit__fails_and_has_an_alert(simulation: series.Simulation) -> None:
    assert set(simulation.wait("up{job='gpu'} == 0", lambda found: bool(found))) == {"gpu"}
    assert simulation.query("up{job='node'} == 1")
    failed = "prometheus_target_scrapes_exceeded_sample_limit_total"
    assert simulation.wait(failed, lambda found: found["prometheus"] > 0)
    # The head's own file has the limits; its page is served by the simulated head.
    text = simulation.head.path("/var/lib/clusterctl-metrics/limits.prom").read_text()
    assert f'cluster_sample_limit{{scrape_job="gpu"}} {LIMIT}\n' in text
    assert simulation.query(series.WORKERS)["gpu"] > LIMIT
    alert = "ALERTS{alertname='SeriesNearLimit'}"
    assert simulation.wait(alert, lambda found: bool(found)).keys() == {"gpu"}
    assert json.loads((Path(simulation.head.folder) / "etc/prometheus/targets/nodes.json").read_text())
