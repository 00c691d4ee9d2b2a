"""Real programs with the files of the roles: who reads an exporter, and what another Prometheus gets of a cluster.

scripts/prepare unpacks Debian's Prometheus and exporters below .cache.
"""

import http.client
import json
import os
import re
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from clusterctl.workspace import certificates
from tests.labs import REPOSITORY
from tests.metrics_programs import HASH, PROGRAMS, Node, ask, free_port, wait_for
from tests.systems.rendering import SECRET, a_cluster

NAMES = ("prometheus", "prometheus-node-exporter", "prometheus-blackbox-exporter")
ADDRESSES = {"head1": "127.0.0.1", "gpu01": "127.0.0.2"}
FEDERATION = re.compile(r"(?s)```yaml\n(scrape_configs:\n  - job_name: federate\n.*?)```")


class Site:
    """A cluster with a worker and Prometheus, and the upper Prometheus of its site."""

    def __init__(self, folder: Path) -> None:
        self.port, self.upper_port = free_port("127.0.0.1"), free_port("127.0.0.3")
        exporters, self.checks = free_port("127.0.0.2"), free_port("127.0.0.1")
        (folder / "cluster").mkdir()
        self.cluster = a_cluster(folder / "cluster", "debian-13")
        url = f"https://127.0.0.3:{self.upper_port}/api/v1/write"
        for name, address in ADDRESSES.items():
            self.cluster.set(
                name,
                cluster_address=address,
                ansible_host=address,
                node_exporter_port=exporters,
                prometheus_port=self.port,
                prometheus_scrape_interval="1s",
                prometheus_endpoint_interval="1s",
                blackbox_exporter_port=self.checks,
                prometheus_remote_write={
                    "url": url,
                    "user": "admin",
                    "authority": "company.pem",
                    "metrics": "node_load1|slurm_.*",
                    "shards": 2,
                },
            )
        self.exporters = exporters
        self.nodes = {name: Node(self.cluster, name, folder / name) for name in [*ADDRESSES, "upper"]}
        for node in self.nodes.values():
            node.folder.mkdir()

    def start(self) -> None:
        for name in ADDRESSES:
            self.nodes[name].install("node_exporter")
            self.nodes[name].start("prometheus-node-exporter")
        head = self.nodes["head1"]
        head.install("prometheus")
        head.install("blackbox_exporter")
        head.start("prometheus-blackbox-exporter")
        self.start_upper(head)
        head.start("prometheus")

    def start_upper(self, head: Node) -> None:
        upper = self.nodes["upper"]
        issued = certificates.issue(SECRET, "company", "upper", ["127.0.0.3"])
        (upper.folder / "certificate.pem").write_text(issued.certificate)
        (upper.folder / "key.pem").write_text(issued.key)
        (upper.folder / "company.pem").write_text(certificates.authority(SECRET, "company"))
        web = {
            "tls_server_config": {"cert_file": "certificate.pem", "key_file": "key.pem"},
            "basic_auth_users": {"admin": HASH},
        }
        (upper.folder / "web.yml").write_text(json.dumps(web))
        # The documentation's own lines, with this cluster's address and this machine's paths.
        (text,) = FEDERATION.findall((REPOSITORY / "docs/monitoring.md").read_text(encoding="utf-8"))
        text = text.replace("head1.example.org:9090", f"127.0.0.1:{self.port}")
        text = text.replace("/etc/prometheus/aurora-authority.pem", str(head.path("/etc/prometheus/tls/authority.pem")))
        text = text.replace("/etc/prometheus/aurora-password", str(head.path("/etc/prometheus/own-password")))
        assert str(head.folder) in text
        (upper.folder / "prometheus.yml").write_text("global: {scrape_interval: 1s}\n" + text)
        options = [
            f"--web.listen-address=127.0.0.3:{self.upper_port}",
            f"--web.config.file={upper.folder}/web.yml",
            f"--config.file={upper.folder}/prometheus.yml",
            f"--storage.tsdb.path={upper.folder}/data",
            "--web.enable-remote-write-receiver",
        ]
        upper.run([str(PROGRAMS / "prometheus"), *options])

    def query(self, text: str, upper: bool = False) -> list[dict[str, Any]]:
        """Return the labels of all series of an expression, in the cluster's or the upper Prometheus."""
        name, address, port = ("upper", "127.0.0.3", self.upper_port) if upper else ("head1", "127.0.0.1", self.port)
        own = self.nodes[name]
        authority = own.folder / "company.pem" if upper else own.path("/etc/prometheus/tls/authority.pem")
        answer = ask(address, port, f"/api/v1/query?query={urllib.parse.quote(text)}", authority)
        return [one["metric"] for one in json.loads(answer)["data"]["result"]]

    def pair(self, node: str, which: str) -> tuple[Path, Path]:
        """Return a certificate of a host, and its key."""
        folder, prefix = {
            "client": ("/etc/prometheus/tls", "client-"),
            "prometheus": ("/etc/prometheus/tls", ""),
            "exporter": ("/etc/clusterctl-metrics", ""),
        }[which]
        own = self.nodes[node]
        return own.path(f"{folder}/{prefix}certificate.pem"), own.path(f"{folder}/{prefix}key.pem")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    if not all((PROGRAMS / name).exists() for name in NAMES):
        pytest.skip("Prometheus is missing: scripts/prepare dev")
    site = Site(tmp_path_factory.mktemp("site"))
    try:
        site.start()
        yield site
    finally:
        for node in site.nodes.values():
            node.stop()


def metrics(site: Site, client: tuple[Path, Path] | None) -> bytes:
    return ask(
        "127.0.0.2", site.exporters, "/metrics", site.nodes["head1"].path("/etc/prometheus/tls/authority.pem"), client
    )


@pytest.mark.proves("monitoring", "Only Prometheus's certificate reads a node's metrics, and only over TLS.")
def test_exporter__with_prometheus_certificate__answers_and_no_others(site: Site) -> None:
    assert b"\nnode_load1 " in wait_for(lambda: metrics(site, site.pair("head1", "client")))
    for other in (None, site.pair("gpu01", "exporter"), site.pair("head1", "prometheus")):
        with pytest.raises(OSError, match=r"certificate|alert|reset|EOF"):
            metrics(site, other)
    connection = http.client.HTTPConnection("127.0.0.2", site.exporters, timeout=10)
    connection.request("GET", "/metrics")
    answer = connection.getresponse()
    assert (answer.status, b"node_load1" in answer.read()) == (400, False)


@pytest.mark.proves("monitoring", "Prometheus reads every node with its certificate.")
def test_prometheus__with_its_certificate__reads_all_nodes(site: Site) -> None:
    up = wait_for(lambda: len(found := site.query('up{job="node"} == 1')) == len(ADDRESSES) and found)
    assert {one["instance"] for one in up} == set(ADDRESSES)


@pytest.mark.proves("monitoring", "Pages are checked over TLS by the cluster's authority; a missing one is reported.")
def test_endpoints__of_the_cluster__are_checked_with_tls(site: Site) -> None:
    up = wait_for(lambda: site.query('probe_success{endpoint="prometheus"} == 1'))
    assert [(one["instance"], one["job"]) for one in up] == [("head1", "endpoint")]
    assert wait_for(lambda: site.query('probe_ssl_earliest_cert_expiry{endpoint="prometheus"} > time() + 86400 * 30'))
    missing = {"landing", "alertmanager"}  # each endpoint has its own moment within the interval
    assert wait_for(lambda: missing <= {one["endpoint"] for one in site.query('probe_success{job="endpoint"} == 0')})


@pytest.mark.proves("monitoring", "Only Prometheus's certificate starts a check, and a foreign certificate fails it.")
def test_endpoints__for_another_client_or_authority__are_refused(site: Site) -> None:
    authority = site.nodes["head1"].path("/etc/prometheus/tls/authority.pem")
    for other in (None, site.pair("gpu01", "exporter")):
        with pytest.raises(OSError, match=r"certificate|alert|reset|EOF"):
            ask("127.0.0.1", site.checks, "/metrics", authority, other)
    target = urllib.parse.quote(f"https://127.0.0.3:{site.upper_port}/", safe="")  # the company's Prometheus
    path = f"/probe?debug=true&module=page&target={target}"
    found = ask("127.0.0.1", site.checks, path, authority, site.pair("head1", "client")).decode()
    assert re.search(r"(?m)^probe_success 0$", found) and "x509" in found


@pytest.mark.proves("monitoring", "Remote write sends chosen metrics with the cluster's name, over TLS with a login.")
def test_remote_write__to_a_real_receiver__has_the_clusters_label(site: Site) -> None:
    found = wait_for(lambda: len(seen := site.query("node_load1", upper=True)) == len(ADDRESSES) and seen)
    assert {(one["cluster"], one["instance"], one["job"]) for one in found} == {
        ("aurora", name, "node") for name in ADDRESSES
    }
    assert site.query("node_boot_time_seconds") and not site.query("node_boot_time_seconds", upper=True)


@pytest.mark.parametrize(
    ("url", "proxy"),
    [("https://metrics.example.org/write", "http://proxy:3128"), ("https://metrics.aurora.cluster/write", None)],
)
def test_remote_write__with_a_proxy__uses_it_for_hosts_outside(tmp_path: Path, url: str, proxy: str | None) -> None:
    variables = {"prometheus_remote_write": {"url": url}, "cluster_http_proxy": "http://proxy:3128"}
    role = a_cluster(tmp_path, "debian-13").role("prometheus", "head1", **variables)
    (given,) = yaml.safe_load(role.render(role.path / "templates/prometheus.yml.j2"))["remote_write"]
    assert given.get("proxy_url") == proxy


@pytest.mark.proves("monitoring", "A site's Prometheus federates a cluster as the documentation says.")
def test_federation__as_documented__has_the_clusters_label(site: Site) -> None:
    found = wait_for(lambda: site.query('up{job="node", instance="gpu01"}', upper=True))
    assert [one["cluster"] for one in found] == ["aurora"]


@pytest.mark.proves("monitoring", "The size limit of metrics is a share of their file system's size.")
def test_retention__as_a_share__is_of_the_file_systems_size(site: Site) -> None:
    authority = site.nodes["head1"].path("/etc/prometheus/tls/authority.pem")
    flags = json.loads(wait_for(lambda: ask("127.0.0.1", site.port, "/api/v1/status/flags", authority)))["data"]
    found = os.statvfs(site.nodes["head1"].folder)
    size = found.f_blocks * found.f_frsize * 20 // 100
    units = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
    parts = re.findall(r"(\d+)([KMGT]iB)", flags["storage.tsdb.retention.size"])
    bytes_of = sum(int(number) * units[unit] for number, unit in parts)
    assert bytes_of == pytest.approx(size, rel=0.02)
