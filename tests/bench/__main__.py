"""Measurements, as ratios taken in one run, for scripts/bench. No figure makes it fail.

usage: python -m tests.bench [--tiny] [input] [nodes] [floor] [demo] [rerun] [changes] [scale] [bytes] [pyinfra]
       [limits] [grow] [status] [ill] [jobs] [kubernetes] [series]
Without a name: all. With --tiny each part runs once on its smallest lab: to see that the part works, not to measure.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.bench import (
    against_floor,
    against_kubeadm,
    against_pyinfra,
    bad_input,
    changes,
    demo,
    grow,
    ill,
    jobs,
    limits,
    nodes,
    outside_bytes,
    rerun,
    scale,
    series,
    status_drift,
)
from tests.bench.measure import BenchError, Document, say
from tests.labs import REPOSITORY

PARTS = (
    "input",
    "nodes",
    "floor",
    "demo",
    "rerun",
    "changes",
    "scale",
    "bytes",
    "pyinfra",
    "limits",
    "grow",
    "status",
    "ill",
    "jobs",
    "kubernetes",
    "series",
)


# Each part once, on the fewest nodes that it needs. Images and caches, which other labs share, stay as they are.
TINY: Mapping[str, Callable[[], Document]] = {
    "input": lambda: bad_input.main(number=20, rounds=1),
    "nodes": lambda: nodes.with_images((2,)),
    "floor": lambda: against_floor.main(1, fill_cache=False),
    "demo": lambda: {"warm": demo.warm_demo().document()},
    "rerun": lambda: rerun.main(1),
    "changes": lambda: changes.main(2, rounds=1),
    "scale": lambda: scale.main((2, 3), rounds=1),
    "bytes": lambda: outside_bytes.main((2, 3)),
    "pyinfra": lambda: against_pyinfra.main(1, rounds=1),
    "grow": lambda: grow.main((2, 3), rounds=1),
    "ill": lambda: ill.main(ill.FAULTS[:1], interval=5),
    "jobs": lambda: jobs.main(1, jobs=5),
    "limits": lambda: limits.main(1),
    "status": lambda: status_drift.main(1, rounds=1),
    "kubernetes": lambda: against_kubeadm.main(1, fill_cache=False),
    "series": lambda: series.main(5, scrapes=2),
}


def measures(rounds: int, workers: int, sizes: Sequence[int]) -> Mapping[str, Callable[[], Document]]:
    return {
        "input": bad_input.main,
        "nodes": nodes.main,
        "floor": lambda: against_floor.main(rounds),
        "demo": demo.main,
        "rerun": lambda: rerun.main(workers),
        "changes": lambda: changes.main(workers),
        "scale": lambda: scale.main(sizes),
        "bytes": outside_bytes.main,
        "pyinfra": lambda: against_pyinfra.main(workers),
        "grow": grow.main,
        "ill": ill.main,
        "jobs": jobs.main,
        "limits": limits.main,
        "status": lambda: status_drift.main(workers),
        "kubernetes": lambda: against_kubeadm.main(rounds),
        "series": series.main,
    }


def main() -> int:
    """Measure the parts and store the figures; return 1 if a command failed or hung."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; none means all")
    parser.add_argument("--rounds", type=int, default=3, help="rounds against the hand-written script (default: 3)")
    parser.add_argument("--workers", type=int, default=8, help="workers of the re-run and of status (default: 8)")
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[*scale.SIZES], help="nodes of scale, rising (default: 20 60 100)"
    )
    parser.add_argument(
        "--tiny", action="store_true", help="run each part once on its smallest lab, to see that it works"
    )
    parser.add_argument("--output", type=Path, help="where figures go (default: .cache/bench.json, or bench-tiny.json)")
    given = parser.parse_args()
    if unknown := sorted(set(given.parts) - set(PARTS)):
        parser.error(f"no such part: {', '.join(unknown)}; choose from {', '.join(PARTS)}")
    if min(given.rounds, given.workers) < 1:
        parser.error("--rounds and --workers are at least 1")
    if len(given.sizes) < 2 or given.sizes[0] < 2 or given.sizes != sorted(set(given.sizes)):
        parser.error("--sizes are two or more rising numbers of nodes, each at least 2")
    output = given.output or REPOSITORY / ".cache" / ("bench-tiny.json" if given.tiny else "bench.json")
    parts = TINY if given.tiny else measures(given.rounds, given.workers, given.sizes)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # parts take their labs down as they end
    figures: Document = json.loads(output.read_text()) if output.exists() else {}
    try:
        with tempfile.TemporaryDirectory(prefix="clusterctl-bench-") as config:
            os.environ["XDG_CONFIG_HOME"] = config  # the vault passwords of labs that are gone would stay behind
            for part in given.parts or PARTS:
                figures[part] = parts[part]()
                output.parent.mkdir(parents=True, exist_ok=True)
                output.write_text(json.dumps(figures, indent=2) + "\n")
                say()
    except BenchError as error:
        say(f"bench: {error}")
        return 1
    say(f"Figures: {output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
