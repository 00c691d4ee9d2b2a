"""Measurements, as ratios of things taken in one run. Run by scripts/bench; nothing here judges a figure.

usage: python -m tests.bench [input] [nodes] [floor] [demo] [rerun] [limits] [grow] [status] [ill]   without a name: all
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.bench import against_floor, bad_input, demo, grow, ill, limits, nodes, rerun, status_drift
from tests.bench.measure import BenchError, Document, say
from tests.labs import REPOSITORY

PARTS = ("input", "nodes", "floor", "demo", "rerun", "limits", "grow", "status", "ill")


def main() -> int:
    """Measure what is asked for, and keep the figures; 1 where something that was to be measured failed."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; none means all")
    parser.add_argument("--rounds", type=int, default=2, help="rounds against the hand-written script (default: 2)")
    parser.add_argument("--workers", type=int, default=8, help="workers of the re-run and of status (default: 8)")
    parser.add_argument("--output", type=Path, default=REPOSITORY / ".cache" / "bench.json", help="where figures go")
    given = parser.parse_args()
    if unknown := sorted(set(given.parts) - set(PARTS)):
        parser.error(f"no such part: {', '.join(unknown)}; choose from {', '.join(PARTS)}")
    if min(given.rounds, given.workers) < 1:
        parser.error("--rounds and --workers are at least 1")
    measures: dict[str, Callable[[], Document]] = {
        "input": bad_input.main,
        "nodes": nodes.main,
        "floor": lambda: against_floor.main(given.rounds),
        "demo": demo.main,
        "rerun": lambda: rerun.main(given.workers),
        "grow": grow.main,
        "ill": ill.main,
        "limits": limits.main,
        "status": lambda: status_drift.main(given.workers),
    }
    figures: Document = json.loads(given.output.read_text()) if given.output.exists() else {}
    try:
        with tempfile.TemporaryDirectory(prefix="clusterctl-bench-") as config:
            os.environ["XDG_CONFIG_HOME"] = config  # the vault passwords of labs that are gone would stay behind
            for part in given.parts or PARTS:
                figures[part] = measures[part]()
                given.output.parent.mkdir(parents=True, exist_ok=True)
                given.output.write_text(json.dumps(figures, indent=2) + "\n")
                say()
    except BenchError as error:
        say(f"bench: {error}")
        return 1
    say(f"Figures: {given.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
