"""An unchanged run of all nodes: what it costs to play them, with Ansible's own ping as the yardstick."""

import json

from tests.bench import profile
from tests.bench.measure import CLUSTERCTL, BenchError, BenchLab, Document, load, say


def main(workers: int) -> Document:
    """Bootstrap a lab untimed, then measure the same command again; print and return the figures."""
    lab = BenchLab.of("rerun", workers)
    say(f"Unchanged re-run: {workers} workers and a head; {load()}")
    try:
        lab.fresh()
        lab.clusterctl("bootstrap")
        cost, _ = lab.measure(*CLUSTERCTL, "bootstrap", lab.inventory, "--full")
        say(f"  bootstrap --full {cost}; {load()}")
        directory = profile.latest_run(lab.directory, "bootstrap")
        hosts = json.loads((directory / "summary.json").read_text())["hosts"]
        if changed := [name for name, host in hosts.items() if host["changed"]]:
            raise BenchError(f"the run that was to change nothing changed {', '.join(changed)}")
        least, _ = lab.measure(*profile.ping_command(lab.inventory))
        say(f"  ansible -m ping  {least}")
        count = profile.host_tasks(directory)
        wall, controller = cost.wall / least.wall, cost.controller / least.controller
        say(f"  Ratio to the ping: {wall:.1f} on the wall, {controller:.1f} of CPU here")
        say(f"  {count} host-tasks, {1000 * cost.controller / count:.0f} ms of CPU here for each")
        analysis = profile.report(directory, cost, least)
    finally:
        lab.down()
    return {
        "nodes": workers + 1,
        "bootstrap": cost.document(),
        "ping": least.document(),
        "host_tasks": count,
        "ratio_wall": round(wall, 2),
        "ratio_controller": round(controller, 2),
        "profile": analysis,
    }
