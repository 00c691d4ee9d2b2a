"""An unchanged run beside pyinfra's on the same nodes, for the same packages, files, units and users.

pyinfra has its own environment in .cache, in a fixed version. Its deploy is made from the nodes (pyinfra_state.py), so
that it describes what is there; that it changes nothing is checked. It tests no job and asks no service, as clusterctl
does not either when it leaves out all nodes.
"""

import base64
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.bench import profile
from tests.bench.measure import CLUSTERCTL, BenchError, BenchLab, Cost, Document, load, run, say
from tests.cluster.lab import TestLab
from tests.cluster.leaving_out import decided
from tests.faults.injury import wait_until
from tests.labs import REPOSITORY

VERSION = "3.10.0"
ROUNDS = 3
_HERE = Path(__file__).parent


def main(workers: int, rounds: int = ROUNDS) -> Document:
    """Bootstrap a lab until it is proven to be unchanged, then take turns between both; return the figures."""
    lab = BenchLab.of("pyinfra", workers)
    program = _installed()
    say(f"Unchanged, beside pyinfra {VERSION}: {workers} workers and a head; {load()}")
    try:
        lab.fresh()
        lab.clusterctl("bootstrap")
        lab.clusterctl("bootstrap")
        nodes = TestLab(lab.name, workers)
        wait_until(lambda: decided(nodes) == sorted(nodes.nodes))  # Prometheus has to reach all of them first
        with tempfile.TemporaryDirectory(prefix="clusterctl-pyinfra-") as folder:
            argv = (program, "-y", _inventory(lab, Path(folder)), _HERE / "pyinfra_deploy.py")
            ours, theirs = [], []
            for _ in range(rounds):
                ours.append(_unchanged(lab))
                cost, printed = lab.measure(*argv)
                _check(printed)
                theirs.append(cost)
            full, _ = lab.measure(*CLUSTERCTL, "bootstrap", lab.inventory, "--full")
            edited = {name: _edited(lab, command) for name, command in _commands(lab, argv).items()}
    finally:
        lab.down()
    us, them = _median(ours), _median(theirs)
    say(f"  bootstrap, unchanged  {us}; {load()}")
    say(f"  pyinfra, unchanged    {them}")
    say(f"  bootstrap --full      {full}")
    for name, cost in edited.items():
        say(f"  {name}, a file of one node edited  {cost}")
    say(f"  Ratio by wall clock: {us.wall / them.wall:.2f}, by CPU: {us.cpu / them.cpu:.2f}")
    return {
        "nodes": workers + 1,
        "bootstrap": us.document(),
        "pyinfra": them.document(),
        "full": full.document(),
        "edited": {name: cost.document() for name, cost in edited.items()},
        "ratio_wall": round(us.wall / them.wall, 2),
        "ratio_cpu": round(us.cpu / them.cpu, 2),
        "controller_per_node": round(us.controller / (workers + 1), 2),
    }


def _installed() -> Path:
    folder = REPOSITORY / ".cache" / f"pyinfra-{VERSION}"
    if not (folder / "bin/pyinfra").exists():
        run(sys.executable, "-m", "venv", "--clear", folder)
        run(folder / "bin/pip", "install", "--quiet", f"pyinfra=={VERSION}")
    return folder / "bin/pyinfra"


def _inventory(lab: BenchLab, folder: Path) -> Path:
    """Write pyinfra's inventory and the state of each node; return the inventory's path."""
    nodes = TestLab(lab.name, lab.workers)
    data = {}
    for name in nodes.nodes:
        state = json.loads(nodes.root(name, f"python3 - <<'END'\n{(_HERE / 'pyinfra_state.py').read_text()}\nEND"))
        for number, given in enumerate(state["files"].values()):
            file = folder / f"{name}-{number}"
            file.write_bytes(base64.b64decode(given["content"]))
            given["content"] = file.name
        (folder / f"{name}.json").write_text(json.dumps(state))
        argv = nodes.ssh_argv(name)
        option = {word.partition("=")[0]: word.partition("=")[2] for word in argv if "=" in word}
        user, _, address = argv[-1].rpartition("@")
        data[name] = {
            "ssh_hostname": address,
            "ssh_user": user,
            "ssh_key": argv[argv.index("-i") + 1],
            "ssh_known_hosts_file": option["UserKnownHostsFile"],
            "_sudo": True,
            "states": str(folder),
        }
    path = folder / "inventory.py"
    path.write_text(f"nodes = {list(data.items())!r}\n")
    return path


def _unchanged(lab: BenchLab) -> Cost:
    cost, _ = lab.measure(*CLUSTERCTL, "bootstrap", lab.inventory)
    document = json.loads((profile.latest_run(lab.directory, "bootstrap") / "summary.json").read_text())
    if len(document["unchanged"]) != lab.workers + 1:
        raise BenchError(f"not all nodes were left out, only {', '.join(document['unchanged'])}")
    return cost


def _check(printed: str) -> None:
    rows = [line.split() for line in printed.splitlines() if line.strip().startswith("Grand total")]
    # The columns are operations, then success (hosts where it changed something), error, and those without a change.
    if not rows or [word for word in rows[-1][3:5] if word not in ("-", "0")]:
        raise BenchError(f"pyinfra changed something:\n{printed[-3000:]}")


def _commands(lab: BenchLab, argv: tuple[str | Path, ...]) -> Mapping[str, tuple[str | Path, ...]]:
    return {"bootstrap": (*CLUSTERCTL, "bootstrap", lab.inventory), "pyinfra": argv}


def _edited(lab: BenchLab, command: tuple[str | Path, ...]) -> Cost:
    """Edit a file of one worker, then measure the command, which has to repair it."""
    nodes = TestLab(lab.name, lab.workers)
    path, worker = "/etc/chrony/chrony.conf", nodes.nodes[-1]
    nodes.root(worker, f"echo '# edited' >> {path}")
    cost, _ = lab.measure(*command)
    if "# edited" in nodes.root(worker, f"cat {path}"):
        raise BenchError(f"{command[0]} did not repair {path}")
    return cost


def _median(costs: list[Cost]) -> Cost:
    def part(name: str) -> float:
        return float(statistics.median(getattr(cost, name) for cost in costs))

    return Cost(part("wall"), part("controller"), part("nodes"))
