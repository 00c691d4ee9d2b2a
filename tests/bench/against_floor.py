"""The same fresh nodes brought to the same state by hand (floor.sh) and by `clusterctl bootstrap`, in turns.

floor.sh is written by hand and has to follow the product: after each run `clusterctl verify` checks the cluster, and at
the end the packages, enabled units, users and groups of both clusters are compared. Any difference fails the part.
"""

import hashlib
import json
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from clusterctl.inventory import model as inventory
from clusterctl.util.paths import content
from clusterctl.workspace import certificates, hardware, secrets
from tests.bench import profile
from tests.bench.measure import CLUSTERCTL, BenchError, BenchLab, Cost, Document, load, say
from tests.cluster.lab import TestLab
from tests.systems import rendering

FLOOR = Path(__file__).with_name("floor.sh")


def settings(lab: BenchLab) -> dict[str, str]:
    """Return what an administrator would have written into floor.sh for this one cluster."""
    cluster = inventory.load(lab.inventory)
    known = secrets.values(lab.directory)
    records = hardware.load_all(lab.directory)
    workers = cluster.in_group("slurm_workers")
    one = records[workers[0].name]
    prometheus, head = _defaults("prometheus"), _defaults("slurm_head")
    cpu, memory = one.cpu, one.memory_mb * 9 // 10
    # Its health checks compare a worker with /etc/clusterctl/gpu-health.json, here as role gpu_health has it.
    rendered = rendering.Cluster(lab.inventory, "debian-13", {})
    health = {host.name: rendered.role("gpu_health", host.name).value("__gpu_health_given") for host in workers}
    drain = rendered.role("alert_drain", cluster.head.name)
    landing = rendered.role("landing_page", cluster.head.name)
    seed = known["certificate_authority_seed"]
    issued = certificates.issue(seed, cluster.cluster_name, cluster.head.name, [cluster.head.address])
    addresses = [str(host.address) for host in [cluster.head, *workers]]
    exporters = certificates.issue(seed, cluster.cluster_name, "exporters", addresses)
    client = certificates.issue_client(seed, cluster.cluster_name, "metrics", "prometheus")
    return {
        "LOGIN": workers[0].user or "root",
        "CLUSTER": cluster.cluster_name,
        "NETWORK": " ".join(cluster.variables["cluster_networks"]),
        "PROXY": str(cluster.variables["cluster_package_proxy"]),
        "NAMESERVERS": "\n".join(records[cluster.head.name].nameservers),
        "HEAD": f"{cluster.head.name} {cluster.head.address}",
        "WORKERS": "\n".join(f"{host.name} {host.address}" for host in workers),
        "CONFINE": " ".join(cluster.variables.get("slurm_head_confine", head["slurm_head_confine"])),
        "NODE_OPTIONS": f"CPUs={cpu.cpus} Sockets={cpu.sockets} CoresPerSocket={cpu.cores_per_socket}"
        f" ThreadsPerCore={cpu.threads_per_core} RealMemory={memory} Gres=gpu:{one.gpus[0].type}:{len(one.gpus)}",
        "GPU_TYPE": one.gpus[0].type,
        "GPUS": str(len(one.gpus)),
        "MEMORY_PER_CPU": str(memory // cpu.cpus),
        "BUFFER_POOL_MB": str(max(128, min(4096, records[cluster.head.name].memory_mb // 8))),
        "SCRAPE_INTERVAL": prometheus["prometheus_scrape_interval"],
        "HEALTH_INTERVAL": str(head["slurm_head_health_interval"]),
        "HEALTH_PORT": str(head["slurm_head_health_port"]),
        "HEALTH_RECORDS": "\n".join(f"{name} {json.dumps(given)}" for name, given in health.items()),
        "HEALTH_KEY": known["slurm_head_health_key"],
        "MUNGE_KEY": known["munge_key"],
        "DATABASE_PASSWORD": known["slurm_head_database_password"],
        "PROMETHEUS_PASSWORD": known["prometheus_password"],
        "PROMETHEUS_HASH": known["prometheus_password_hash"],
        "ALERTMANAGER_PASSWORD": known["alertmanager_password"],
        "ALERTMANAGER_HASH": known["alertmanager_password_hash"],
        "DRAIN_TOKEN": known["alert_drain_token"],
        "DRAIN_CONFIGURATION": json.dumps(drain.value("__alert_drain_configuration")),
        "LANDING_LOGIN": hashlib.sha256(
            f"{landing.value('landing_page_user')}:{known['landing_page_password']}".encode()
        ).hexdigest(),
        "LANDING_CONFIGURATION": json.dumps(landing.value("__landing_page_configuration")),
        "PROMETHEUS_KEY": issued.key,
        "PROMETHEUS_CERTIFICATE": issued.certificate,
        "PROMETHEUS_AUTHORITY": certificates.authority(seed, cluster.cluster_name),
        # One certificate for the exporters of all nodes: the script makes no difference between them.
        "EXPORTER_KEY": exporters.key,
        "EXPORTER_CERTIFICATE": exporters.certificate,
        "CLIENT_KEY": client.key,
        "CLIENT_CERTIFICATE": client.certificate,
        "CLIENT_AUTHORITY": certificates.authority_for(seed, cluster.cluster_name, "metrics").certificate,
    }


def _defaults(role: str) -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load((content() / "roles" / role / "defaults" / "main.yml").read_text())
    return values


def by_hand(lab: BenchLab) -> tuple[Cost, str]:
    """Run floor.sh on fresh nodes; return its cost and its own account.

    It is given for nothing what clusterctl finds out or makes within its time: hardware and secrets.
    """
    find_out(lab)
    return join_by_hand(lab)


def find_out(lab: BenchLab) -> None:
    """Record the hardware of all listed nodes and make the secrets, which floor.sh is given."""
    secrets.ensure(lab.directory, inventory.load(lab.inventory).cluster_name)
    lab.clusterctl("discover")


def join_by_hand(lab: BenchLab, *worker: str) -> tuple[Cost, str]:
    """Run floor.sh for one worker that joins a running cluster, or for all nodes; return its cost and its account."""
    return lab.measure(FLOOR, lab.directory, *worker, env=settings(lab))


def by_clusterctl(lab: BenchLab) -> tuple[Cost, str]:
    """Run bootstrap on fresh nodes; secrets, host checks and discovery of the hardware are within its time."""
    return lab.measure(*CLUSTERCTL, "bootstrap", lab.inventory)


def differences(by_hand: Mapping[str, Any], by_clusterctl: Mapping[str, Any]) -> list[str]:
    """Compare two clusters by the manifests of their nodes; return what only one of them has, a line each."""
    found = []
    for node in sorted(by_hand):
        for kind in ("packages", "holds", "units", "users"):
            hand, tool = (set(manifests[node][kind]) for manifests in (by_hand, by_clusterctl))
            found += [f"{node}: {kind}: only by floor.sh: {line}" for line in sorted(hand - tool)]
            found += [f"{node}: {kind}: only by clusterctl: {line}" for line in sorted(tool - hand)]
    return found


def files_apart(by_hand: Mapping[str, Any], by_clusterctl: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the files that only one of two clusters has, by which: they have other names, such as clusterctl's own."""
    paths = [
        {f"{node}:{path}" for node in sorted(one) for path in one[node]["files"]} for one in (by_hand, by_clusterctl)
    ]
    return {"only by floor.sh": sorted(paths[0] - paths[1]), "only by clusterctl": sorted(paths[1] - paths[0])}


def main(rounds: int, *, fill_cache: bool = True) -> Document:
    """Measure both by turns, with the same check at the end of each; print and return the figures.

    A first run, untimed, puts every package into the lab's cache, unless `fill_cache` is False.
    """
    lab = BenchLab.of("floor")
    ways: dict[str, Callable[[BenchLab], tuple[Cost, str]]] = {"by hand": by_hand, "clusterctl": by_clusterctl}
    costs: dict[str, list[Cost]] = {name: [] for name in ways}
    manifests: dict[str, dict[str, Any]] = {}
    analysis: Document = {}
    say(f"Against a hand-written script: {lab.workers} workers and a head, fresh each time; {load()}")
    try:
        if fill_cache:
            lab.fresh()
            by_hand(lab)
        for number in range(rounds):
            for name in sorted(ways, reverse=bool(number % 2)):
                lab.fresh()
                cost, told = ways[name](lab)
                costs[name].append(cost)
                least = lab.measure(*profile.ping_command(lab.inventory))[0] if name == "clusterctl" else None
                say(f"  round {number + 1}: {name:10}  {cost}; {load()}")
                lab.clusterctl("verify")
                if number == 0:
                    manifests[name] = TestLab(lab.name, lab.workers).manifests()
                if least:
                    analysis = profile.report(profile.latest_run(lab.directory, "bootstrap"), cost, least)
                else:
                    say(told.rstrip())
    finally:
        lab.down()
    if found := differences(manifests["by hand"], manifests["clusterctl"]):
        raise BenchError("floor.sh and bootstrap no longer make the same cluster:\n" + "\n".join(found))
    apart = files_apart(manifests["by hand"], manifests["clusterctl"])
    say(
        f"  Same packages, units and users; files {', '.join(f'{what}: {len(paths)}' for what, paths in apart.items())}"
    )
    pairs = list(zip(costs["clusterctl"], costs["by hand"], strict=True))
    walls = [tool.wall / hand.wall for tool, hand in pairs]
    cpus = [tool.cpu / hand.cpu for tool, hand in pairs]
    for what, ratios in (("wall clock", walls), ("all CPU used", cpus)):
        each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        say(f"  Ratio by {what}: {each} in the rounds; median {statistics.median(ratios):.2f}")
    return {
        "rounds": {name: [cost.document() for cost in list_] for name, list_ in costs.items()},
        "ratio_wall": round(statistics.median(walls), 3),
        "ratio_cpu": round(statistics.median(cpus), 3),
        "profile": analysis,
        "files": apart,
    }
