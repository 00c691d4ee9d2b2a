"""Kubernetes on the same fresh nodes by hand (floor-kubernetes.sh) and by `clusterctl bootstrap`; then what follows.

One more node, and bootstraps that change nothing: of all roles, and as usual.

The script by hand sets up Kubernetes alone. `bootstrap` also does what every cluster gets: users, firewall, time, node
metrics, encrypted secrets, an audit log, signed certificates, tests. The images and packages are at hand.
"""

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from clusterctl.inventory import model as inventory
from clusterctl.lab import kit_recipe
from tests.bench import changes, profile
from tests.bench.measure import CLUSTERCTL, BenchLab, Cost, Document, load, median, say
from tests.cluster.kubernetes import Kubernetes

FLOOR = Path(__file__).with_name("floor-kubernetes.sh")
MONITORING = "    monitoring:\n      hosts:\n        head1: {}\n"


def settings(lab: BenchLab) -> dict[str, str]:
    """Return what an administrator would have written into floor-kubernetes.sh for this one cluster."""
    cluster = inventory.load(lab.inventory)
    given = yaml.safe_load(lab.inventory.read_text())["all"]["vars"]
    workers = cluster.in_group("kubernetes_workers")
    address = given["cluster_no_proxy"][0]
    kubelet: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        **given["kubernetes_node_kubelet_config"],
    }
    images = {
        made.name: made.tag for recipe in kit_recipe.load(("flannel", "nvidia-device-plugin")) for made in recipe.images
    }
    named = {name.rsplit("/", 1)[1]: f"{name}:{tag}" for name, tag in images.items()}
    return {
        "LOGIN": workers[0].user or "root",
        "PROXY": str(given["cluster_package_proxy"]),
        "AUTHORITY": (lab.directory / given["cluster_ca_certificates"][0]).read_text(),
        "HEAD": f"{cluster.head.name} {cluster.head.address}",
        "WORKERS": "\n".join(f"{host.name} {host.address}" for host in workers),
        "VERSION": given["kubernetes_node_version"],
        "REPOSITORY": given["kubernetes_node_repository_url"],
        "TOOLKIT_VERSION": given["nvidia_container_toolkit_version"],
        "TOOLKIT_REPOSITORY": given["nvidia_container_toolkit_repository_url"],
        "MIRRORS": "\n".join(
            f"{registry} https://{url.removeprefix('https://').replace('/', ' ', 1)}"
            for registry, url in given["containers_registry_mirrors"].items()
        ),
        "CGROUPS": "1" if "failCgroupV1" in kubelet else "2",
        "KUBELET": json.dumps(kubelet),
        "FLANNEL": named["flannel"],
        "PLUGIN": named["k8s-device-plugin"],
        "IMAGE": f"{address}/lab/debian:13",
    }


def by_hand(lab: BenchLab) -> tuple[Cost, str]:
    """Run floor-kubernetes.sh on fresh nodes; return its cost and its own account."""
    return lab.measure(FLOOR, lab.directory, env=settings(lab))


def by_clusterctl(lab: BenchLab) -> tuple[Cost, str]:
    """Run bootstrap on fresh nodes; secrets, host checks, discovery and its tests are within its time."""
    return lab.measure(*CLUSTERCTL, "bootstrap", lab.inventory)


def fresh(lab: BenchLab) -> None:
    """Have new nodes, and no monitoring, which the script by hand does not set up either."""
    lab.fresh()
    text = lab.inventory.read_text()
    assert MONITORING in text
    lab.inventory.write_text(text.replace(MONITORING, ""))


def one_more(lab: BenchLab) -> Cost:
    """Remove the last worker, and measure how it is added again."""
    nodes, last = Kubernetes(lab.name, lab.workers), f"gpu{lab.workers:02}"
    lab.clusterctl("remove-node", last, "--yes")
    options = ("--address", nodes.address(last), "--yes", "--accept-new-host-keys")
    return lab.measure(*CLUSTERCTL, "add-node", lab.inventory, last, *options)[0]


def unchanged(lab: BenchLab, rounds: int = 3) -> tuple[Cost, Cost]:
    """Measure bootstraps that change nothing: one that plays all, and the median of some that leave all out."""
    changes.settle(lab, Kubernetes(lab.name, lab.workers))
    full, _ = lab.measure(*CLUSTERCTL, "bootstrap", lab.inventory, "--full")
    return full, median([by_clusterctl(lab)[0] for _ in range(rounds)])


def main(rounds: int, *, fill_cache: bool = True) -> Document:
    """Measure both by turns, then one more node; print and return the figures.

    A first run, untimed, puts every package into the lab's cache, unless `fill_cache` is False.
    """
    lab = BenchLab.of("kubernetes", options=("--scheduler", "kubernetes"))
    ways: dict[str, Callable[[BenchLab], tuple[Cost, str]]] = {"by hand": by_hand, "clusterctl": by_clusterctl}
    costs: dict[str, list[Cost]] = {name: [] for name in ways}
    analysis: Document = {}
    say(f"Against a script with kubeadm: {lab.workers} workers and a head, fresh each time; {load()}")
    try:
        if fill_cache:
            fresh(lab)
            by_hand(lab)
        for number in range(rounds):
            for name in ways:  # clusterctl last: its cluster gets one more node
                fresh(lab)
                cost, printed = ways[name](lab)
                costs[name].append(cost)
                say(f"  round {number + 1}: {name:10}  {cost}; {load()}")
                if name == "by hand":
                    say(printed.rstrip())
                elif number == 0:
                    least = lab.measure(*profile.ping_command(lab.inventory))[0]
                    analysis = profile.report(profile.latest_run(lab.directory, "bootstrap"), cost, least)
        added = one_more(lab)
        say(f"  one more node           {added}; {load()}")
        full, left_out = unchanged(lab)
        say(f"  unchanged, all played   {full}")
        say(f"  unchanged, median       {left_out}; {load()}")
    finally:
        lab.down()
    pairs = list(zip(costs["clusterctl"], costs["by hand"], strict=True))
    walls, cpus = [tool.wall / hand.wall for tool, hand in pairs], [tool.cpu / hand.cpu for tool, hand in pairs]
    for what, ratios in (("wall clock", walls), ("all CPU used", cpus)):
        each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        say(f"  Ratio by {what}: {each} in the rounds; median {statistics.median(ratios):.2f}")
    return {
        "rounds": {name: [cost.document() for cost in list_] for name, list_ in costs.items()},
        "ratio_wall": round(statistics.median(walls), 3),
        "ratio_cpu": round(statistics.median(cpus), 3),
        "one_more": added.document(),
        "full": full.document(),
        "unchanged": left_out.document(),
        "profile": analysis,
    }
