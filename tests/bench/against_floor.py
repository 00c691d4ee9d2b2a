"""The same fresh nodes brought to the same state by hand (floor.sh) and by `clusterctl bootstrap`, in turns."""

import statistics
from collections.abc import Callable
from pathlib import Path

import yaml

from clusterctl import hardware, inventory, secrets
from clusterctl.paths import content
from tests.bench import profile
from tests.bench.measure import CLUSTERCTL, BenchLab, Cost, Document, load, say

FLOOR = Path(__file__).with_name("floor.sh")


def settings(lab: BenchLab) -> dict[str, str]:
    """Return what an administrator would have written into floor.sh for this one cluster."""
    cluster = inventory.load(lab.inventory)
    known = secrets.values(lab.directory)
    records = hardware.load_all(lab.directory)
    workers = cluster.in_group("slurm_workers")
    one = records[workers[0].name]
    prometheus = yaml.safe_load((content() / "roles" / "prometheus" / "defaults" / "main.yml").read_text())
    cpus, memory = one.cpu.cpus, one.memory_mb * 9 // 10
    return {
        "LOGIN": workers[0].user or "root",
        "CLUSTER": cluster.cluster_name,
        "NETWORK": " ".join(cluster.variables["cluster_networks"]),
        "PROXY": str(cluster.variables["cluster_package_proxy"]),
        "NAMESERVERS": "\n".join(records[cluster.head.name].nameservers),
        "HEAD": f"{cluster.head.name} {cluster.head.address}",
        "WORKERS": "\n".join(f"{host.name} {host.address}" for host in workers),
        "NODE_OPTIONS": f"CPUs={cpus} RealMemory={memory} Gres=gpu:{one.gpus[0].type}:{len(one.gpus)}",
        "GPU_TYPE": one.gpus[0].type,
        "GPUS": str(len(one.gpus)),
        "MEMORY_PER_CPU": str(memory // cpus),
        "BUFFER_POOL_MB": str(max(128, min(4096, records[cluster.head.name].memory_mb // 8))),
        "SCRAPE_INTERVAL": prometheus["prometheus_scrape_interval"],
        "MUNGE_KEY": known["munge_key"],
        "DATABASE_PASSWORD": known["slurm_head_database_password"],
        "PROMETHEUS_PASSWORD": known["prometheus_password"],
        "PROMETHEUS_HASH": known["prometheus_password_hash"],
    }


def by_hand(lab: BenchLab) -> tuple[Cost, str]:
    """Run floor.sh on fresh nodes; return its cost and its own account.

    It is given for nothing what clusterctl finds out or makes within its time: hardware and secrets.
    """
    secrets.ensure(lab.directory, inventory.load(lab.inventory).cluster_name)
    lab.clusterctl("validate", "--online")
    return lab.measure(FLOOR, lab.directory, env=settings(lab))


def by_clusterctl(lab: BenchLab) -> tuple[Cost, str]:
    """Run bootstrap on fresh nodes; secrets, host checks and discovery of the hardware are within its time."""
    return lab.measure(*CLUSTERCTL, "bootstrap", lab.inventory)


def main(rounds: int) -> Document:
    """Measure both by turns, each judged by the same verify afterwards; print and return the figures."""
    lab = BenchLab.of("bench")
    ways: dict[str, Callable[[BenchLab], tuple[Cost, str]]] = {"by hand": by_hand, "clusterctl": by_clusterctl}
    costs: dict[str, list[Cost]] = {name: [] for name in ways}
    analysis: Document = {}
    say(f"Against a hand-written script: {lab.workers} workers and a head, fresh each time; {load()}")
    try:
        lab.fresh()
        by_hand(lab)  # untimed: from here on every package is in the lab's cache
        for number in range(rounds):
            for name in sorted(ways, reverse=bool(number % 2)):
                lab.fresh()
                cost, told = ways[name](lab)
                costs[name].append(cost)
                least = lab.measure(*profile.ping_command(lab.inventory))[0] if name == "clusterctl" else None
                say(f"  round {number + 1}: {name:10}  {cost}; {load()}")
                lab.clusterctl("verify")
                if least:
                    analysis = profile.report(profile.latest_run(lab.directory, "bootstrap"), cost, least)
                else:
                    say(told.rstrip())
    finally:
        lab.down()
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
    }
