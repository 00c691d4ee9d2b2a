"""`status` of a cluster, drift included, with Ansible's own ping of the same nodes as the yardstick."""

import json

from tests.bench import profile
from tests.bench.measure import CLUSTERCTL, BenchError, BenchLab, Cost, Document, load, say

GOAL_SECONDS = 5  # above the ping, on eight workers
ROUNDS = 3


def main(workers: int, rounds: int = ROUNDS) -> Document:
    """Bootstrap a lab untimed, then take turns between the two; print and return the figures of the best of each."""
    lab = BenchLab.of("status", workers)
    say(f"Status: {workers} workers and a head; {load()}")
    try:
        lab.fresh()
        lab.clusterctl("bootstrap")
        ours, pings = [], []
        for _ in range(rounds):
            cost, told = lab.measure(*CLUSTERCTL, "status", lab.inventory, "--output", "json")
            ours.append(cost)
            if drifted := [node["name"] for node in json.loads(told)["nodes"] if node["drift"]]:
                raise BenchError(f"an untouched cluster shows drift on {', '.join(drifted)}")
            pings.append(lab.measure(*profile.ping_command(lab.inventory))[0])
    finally:
        lab.down()
    status, ping = (min(costs, key=lambda cost: cost.wall) for costs in (ours, pings))
    above = status.wall - ping.wall
    say(f"  status           {status}; {load()}")
    say(f"  ansible -m ping  {ping}")
    say(f"  Ratio to the ping: {status.wall / ping.wall:.2f} on the wall, {status.cpu / ping.cpu:.2f} of CPU")
    say(f"  Seconds above the ping: {above:.1f} (goal: at most {GOAL_SECONDS})")
    return {
        "nodes": workers + 1,
        "status": _documents(ours),
        "ping": _documents(pings),
        "ratio_wall": round(status.wall / ping.wall, 2),
        "seconds_above": round(above, 2),
    }


def _documents(costs: list[Cost]) -> list[Document]:
    return [dict(cost.document()) for cost in costs]
