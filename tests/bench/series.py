"""Time series of a cluster: what each exporter has, and what a real Prometheus of the role needs for them.

The nodes are simulated by one server, with TLS, on an address of 127.0.0.0/8 each. They serve what the real node
exporter says on this machine, with CPUs, disks and interfaces of a large server, with the files of metrics of our own
programs, and DCGM's fields of the role for 8 GPUs.
"""

import asyncio
import contextlib
import ipaddress
import json
import re
import ssl
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clusterctl.workspace import certificates
from tests.bench.measure import BenchError, Document, load, say
from tests.labs import REPOSITORY
from tests.metrics_programs import PROGRAMS, Node, ask, free_port, wait_for
from tests.systems.rendering import SECRET, Cluster, a_cluster
from tests.unit import head_programs

NODES = 100
INTERVAL = 15
"""Seconds between two scrapes, the role's default."""
GPUS, CPUS, DISKS, INTERFACES = 8, 256, 10, 10
JOBS_PER_NODE = 8
LIMIT = 300.0
"""Seconds after which something that is waited for does not happen."""
FIRST = ipaddress.IPv4Address("127.0.1.1")


@dataclass
class Pages:
    """What the exporters serve: of a head, of a worker, and of a worker's GPUs."""

    head: str
    worker: str
    gpu: str

    def of(self, port: int, address: str, gpu_port: int) -> str:
        if port == gpu_port:
            return self.gpu
        return self.head if address == str(FIRST) else self.worker


def series_of(text: str) -> int:
    """Return the number of series of a page."""
    return sum(1 for line in text.splitlines() if line and not line.startswith("#"))


def repeat(text: str, label: str, present: str, values: list[str]) -> str:
    """Return a page with each line of one value of a label again for other values."""
    lines = []
    for line in text.splitlines():
        lines.append(line)
        if f'{label}="{present}"' in line:
            lines += [line.replace(f'{label}="{present}"', f'{label}="{value}"') for value in values]
    return "\n".join(lines) + "\n"


def without(text: str, label: str, kept: str, names: str) -> str:
    """Return a page without the lines of these metrics that have another value of a label: this machine's own."""
    there = re.compile(rf"(?:{names})\w*{{.*?{label}=\"(?!{re.escape(kept)}\")")
    return "".join(line for line in text.splitlines(keepends=True) if not there.match(line))


def large(text: str) -> str:
    """Return the page of this machine as that of a large server."""
    text = without(text, "cpu", "0", "node_cpu|node_schedstat|node_softnet")
    text = repeat(text, "cpu", "0", [str(number) for number in range(1, CPUS)])
    (disk, *_), (interface, *_) = (
        sorted(set(re.findall(rf'(?m)^node_{name}\w*{{.*?device="(\w+)"', text))) or [""]
        for name in ("disk_reads", "network_up")
    )
    for name, device, number in (("disk", disk, DISKS), ("network", interface, INTERFACES)):
        text = without(text, "device", device, f"node_{name}")
        kept = [line for line in text.splitlines() if line.startswith(f"node_{name}")]
        rest = [line for line in text.splitlines() if not line.startswith(f"node_{name}")]
        more = repeat("\n".join(kept), "device", device, [f"x{n}" for n in range(1, number)])
        text = "\n".join(rest) + "\n" + more
    return text


def gpu_page(collectors: str) -> str:
    """Return what DCGM's exporter serves of the role's fields for 8 GPUs that pods hold, in its form."""
    lines = []
    for line in collectors.splitlines():
        if line.startswith("#"):
            continue
        name, kind, text = (part.strip() for part in line.split(",", 2))
        lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
        for gpu in range(GPUS):
            labels = (
                f'gpu="{gpu}",UUID="GPU-{gpu:08x}-0000-0000-0000-000000000000",pci_bus_id="00000000:{gpu:02x}:00.0",'
                f'device="nvidia{gpu}",modelName="NVIDIA H100 80GB HBM3",Hostname="gpu01",'
                f'DCGM_FI_DRIVER_VERSION="580.95.05",container="train",namespace="team",pod="train-{gpu}"'
            )
            lines.append(f"{name}{{{labels}}} {gpu}")
    return "\n".join(lines) + "\n"


def slurm_page(nodes: int) -> str:
    """Return the metrics of Slurm that our program makes of a cluster whose GPUs are all allocated, one job each."""
    program, file = head_programs.load("slurm-metrics"), head_programs.load("metrics_file")
    counters = head_programs.load("slurm_counters")
    names = [f"gpu{number:03}" for number in range(1, nodes)]
    shown = "".join(
        f"NodeName={name} CPUTot=128 Gres=gpu:h100:{GPUS} GresUsed=gpu:h100:{GPUS}(IDX:0-{GPUS - 1}) State=ALLOCATED "
        f"Partitions=main,long \n"
        for name in names
    )
    jobs, holders, held, details, counted = [], [], [], [], []
    for number, (name, gpu) in enumerate(((name, gpu) for name in names for gpu in range(JOBS_PER_NODE)), 1):
        user, account = f"user{number % 100}", f"account{number % 20}"
        jobs.append("RUNNING main 1 2 1 2 gres/gpu:1 (null)  (null) None\n")
        holders.append(f"{number} {user} {account} main {name}\n")
        held.append(f"{number:<20}cpu=2,mem=1M,node=1,gres/gpu=1,gres/gpu:h100=1\n")
        details.append(
            f"JobId={number} JobName=a UserId={user}(1)   Nodes={name} CPU_IDs=0 Mem=1 GRES=gpu:h100:1(IDX:{gpu}) \n"
        )
        values = (number, "COMPLETED", account, "main", 1, 5, "gres/gpu=1")
        counted.append("".join(str(v).ljust(w) for v, w in zip(values, counters.FIELDS.values(), strict=True)) + "\n")
    metrics = program.count(shown, *("".join(part) for part in (jobs, holders, held, details)))
    first = counters.advance(None, "", 0)
    metrics |= counters.series(counters.advance(first, "".join(counted), 10))
    return str(file.render(metrics, program.DESCRIPTIONS))


def hardware_page() -> str:
    """Return the metrics of a server's disks and sensors, from the samples of the tests."""
    program, samples = head_programs.load("hardware-metrics"), REPOSITORY / "tests/samples/hardware"
    scan = {"devices": [{"name": f"/dev/nvme{number}", "type": "nvme"} for number in range(DISKS)]}
    disk = (samples / "smart/nvme.json").read_text()
    sensor = (samples / "ipmi/supermicro.csv").read_text().splitlines()
    sensors = "\n".join(f"{number},S{number},{sensor[number % 4].split(',', 2)[2]}" for number in range(160))
    answers = {"ipmi-sensors": sensors, "ipmi-dcmi": "Current Power : 1 Watts", "ipmi-sel": ""}
    found = program.count(
        lambda argv, _: answers.get(argv[0], json.dumps(scan) if "--scan" in argv else disk), True, ""
    )
    return str(head_programs.load("metrics_file").render(found, program.DESCRIPTIONS))


class Served:
    """The simulated nodes: a server for all of their addresses and ports, in a thread of its own."""

    def __init__(self, pages: Pages, addresses: list[str], ports: tuple[int, int], cluster_name: str) -> None:
        self.pages, self.addresses, self.ports = pages, addresses, ports
        issued = certificates.issue(SECRET, cluster_name, "nodes", addresses)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with tempfile.TemporaryDirectory() as name:
            certificate, key = Path(name, "certificate.pem"), Path(name, "key.pem")
            certificate.write_text(issued.certificate)
            key.write_text(issued.key)
            self.context.load_cert_chain(certificate, key)
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address, port = writer.get_extra_info("sockname")[:2]
        body = self.pages.of(port, address, self.ports[1]).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {len(body)}\r\n\r\n"
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(head.encode() + body)
                await writer.drain()
        writer.close()

    def start(self) -> None:
        self.thread.start()
        for port in self.ports:
            # The head has no GPUs.
            hosts = self.addresses[1:] if port == self.ports[1] else self.addresses
            opened = asyncio.start_server(self.answer, hosts, port, ssl=self.context)
            asyncio.run_coroutine_threadsafe(opened, self.loop).result(60)

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(60)


@dataclass
class Simulation:
    """A Prometheus of the role on this machine that reads simulated nodes."""

    folder: Path
    nodes: int
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not all((PROGRAMS / name).exists() for name in ("prometheus", "prometheus-node-exporter")):
            raise BenchError("Prometheus is missing: scripts/prepare dev")
        self.addresses = [str(FIRST + number) for number in range(self.nodes)]
        self.ports = free_port(str(FIRST)), free_port(str(FIRST))
        self.port = free_port("127.0.0.1")
        (self.folder / "cluster").mkdir()
        self.cluster: Cluster = a_cluster(self.folder / "cluster", "debian-13", prometheus_sample_limits={})
        for name, address in {"head1": "127.0.0.1", "gpu01": "127.0.0.2"}.items():
            self.cluster.set(
                name,
                cluster_address=address,
                ansible_host=address,
                node_exporter_port=self.ports[0],
                dcgm_exporter_port=self.ports[1],
                prometheus_port=self.port,
                **self.settings,
            )
        (self.folder / "head1").mkdir()
        self.head = Node(self.cluster, "head1", self.folder / "head1")

    def node_page(self, *texts: str) -> str:
        """Return what the real exporter serves on this machine with the role's options and these files of metrics."""
        files = self.head.path("/var/lib/clusterctl-metrics")
        files.mkdir(parents=True, exist_ok=True)
        for number, text in enumerate(texts):
            (files / f"{number}.prom").write_text(text)
        self.head.start("prometheus-node-exporter")
        authority = self.head.path("/etc/prometheus/tls/authority.pem")
        pair = tuple(self.head.path(f"/etc/prometheus/tls/client-{what}.pem") for what in ("certificate", "key"))
        page = wait_for(lambda: ask("127.0.0.1", self.ports[0], "/metrics", authority, (pair[0], pair[1])))
        self.head.stop()
        self.head.running.clear()
        for path in files.glob("[0-9].prom"):
            path.unlink()
        return large(bytes(page).decode())

    def pages(self) -> Pages:
        """Return what the nodes serve. The roles' files must be there."""
        known = {"dcgm_exporter_profiling": "always", "__dcgm_exporter_record": {"gpus": [{"type": "b200"}] * GPUS}}
        role = self.cluster.role("dcgm_exporter", "gpu01", **known)
        return Pages(
            self.node_page(slurm_page(self.nodes), hardware_page()),
            self.node_page(hardware_page()),
            gpu_page(role.render(role.path / "templates/collectors.csv.j2")),
        )

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Start the nodes and Prometheus, and stop them."""
        for role in ("node_exporter", "prometheus"):
            self.head.install(role)
        served = Served(self.pages(), self.addresses, self.ports, "aurora")
        targets = [
            {"targets": [f"{address}:{port}"], "labels": {"job": job, "instance": f"node{number:03}"}}
            for number, address in enumerate(self.addresses)
            for job, port in zip(("node", "gpu"), self.ports, strict=True)
            if job == "node" or number
        ]
        self.head.path("/etc/prometheus/targets/nodes.json").write_text(json.dumps(targets))
        try:
            served.start()
            self.head.start("prometheus")
            yield
        finally:
            self.head.stop()
            served.stop()

    def query(self, text: str) -> dict[str, float]:
        """Return the values of an expression, by the label `job` or else `instance`."""
        authority = self.head.path("/etc/prometheus/tls/authority.pem")
        answer = ask("127.0.0.1", self.port, f"/api/v1/query?query={urllib.parse.quote(text)}", authority)
        result = json.loads(answer)["data"]["result"]
        return {one["metric"].get("job", one["metric"].get("instance", "")): float(one["value"][1]) for one in result}

    def wait(self, text: str, met: Callable[[dict[str, float]], bool]) -> dict[str, float]:
        """Return the values of an expression when they meet a condition."""
        found: dict[str, float] = wait_for(lambda: (found := self.query(text)) and met(found) and found, LIMIT)
        return found


SERIES = "max by (job) (scrape_samples_post_metric_relabeling{job=~'node|gpu'})"
WORKERS = "max by (job) (scrape_samples_post_metric_relabeling{job=~'node|gpu',instance!='node000'})"


def main(nodes: int = NODES, scrapes: int = 8) -> Document:
    """Measure the series of each exporter, and memory and scrapes of Prometheus; print and return the figures."""
    say(f"Series: {nodes} simulated nodes, {GPUS} GPUs each; {load()}")
    with tempfile.TemporaryDirectory(prefix="clusterctl-bench-") as name:
        simulation = Simulation(Path(name), nodes, {"prometheus_scrape_interval": f"{INTERVAL}s"})
        with simulation.running():
            simulation.wait("sum(up{job=~'node|gpu'})", lambda found: found.get("") == 2 * nodes - 1)
            time.sleep(INTERVAL * scrapes)
            per_target, workers = simulation.query(SERIES), simulation.query(WORKERS)
            own = simulation.head.running[-1].pid
            status = Path(f"/proc/{own}/status").read_text()
            memory = int(re.findall(r"(?m)^VmRSS:\s+(\d+)", status)[0]) << 10
            total = simulation.query("prometheus_tsdb_head_series")["prometheus"]
            slowest = max(simulation.query("max by (job) (scrape_duration_seconds{job=~'node|gpu'})").values())
            cpu = simulation.query("rate(process_cpu_seconds_total{job='prometheus'}[1m])").get("prometheus", 0.0)
    figures = {
        "nodes": nodes,
        "head_node_series": int(per_target["node"]),
        "worker_node_series": int(workers["node"]),
        "worker_gpu_series": int(workers["gpu"]),
        "total_series": int(total),
        "memory_bytes": memory,
        "bytes_per_series": round(memory / total),
        "slowest_scrape_ratio": round(slowest / INTERVAL, 4),
        "cpu_cores": round(cpu, 3),
    }
    head, worker = figures["head_node_series"], figures["worker_node_series"]
    say(f"  node exporter: {head} series on the head, {worker} on a worker")
    say(f"  GPU exporter: {figures['worker_gpu_series']} series on a worker")
    say(f"  Prometheus: {int(total)} series, {memory >> 20} MiB, {figures['bytes_per_series']} bytes a series")
    say(f"  slowest scrape: {slowest / INTERVAL:.4f} of the interval of {INTERVAL} s; {cpu:.3f} cores")
    return figures
