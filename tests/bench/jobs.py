"""What the programs before and after each job cost: jobs that do nothing, with and without Prolog and Epilog."""

import statistics
import time

from tests.bench.measure import BenchLab, Document, load, run, say

JOBS = 40
ROUNDS = 5
_SUBMIT = ("runuser", "-u", "alice", "--", "sbatch", "--wait", "--mem=1M", "--gres=gpu:1", "--chdir=/", "--output=none")
_OFF = "sed -i 's/^\\(Prolog\\|Epilog\\)=/#&/' /etc/slurm/slurm.conf; scontrol reconfigure"
_ON = "sed -i 's/^#\\(Prolog\\|Epilog\\)=/\\1=/' /etc/slurm/slurm.conf; scontrol reconfigure"
_SETTLE = 5.0  # seconds until the worker has the configuration


def main(rounds: int = ROUNDS, jobs: int = JOBS) -> Document:
    """Run an array of jobs by turns with and without the programs; print and return the medians and their ratio."""
    lab = BenchLab.of("jobs", 1)
    say(f"{jobs} jobs of one GPU that do nothing, the median of {rounds}; {load()}")
    walls: dict[str, list[float]] = {"without": [], "with": []}
    try:
        lab.fresh()
        lab.clusterctl("bootstrap")
        for _ in range(rounds):
            for name, switch in (("without", _OFF), ("with", _ON)):
                _on_head(lab, "sh", "-c", switch)
                time.sleep(_SETTLE)
                began = time.monotonic()
                _on_head(lab, *_SUBMIT, f"--array=1-{jobs}", "--wrap=true")
                walls[name].append(time.monotonic() - began)
    finally:
        lab.down()
    without, with_programs = (statistics.median(walls[name]) for name in ("without", "with"))
    ratio, each = with_programs / without, (with_programs - without) / jobs
    say(f"  without {without:.1f} s, with {with_programs:.1f} s: {each * 1000:.0f} ms for each job; {load()}")
    say(f"  Ratio: {ratio:.2f}")
    return {"without": round(without, 2), "with": round(with_programs, 2), "ratio": round(ratio, 2)}


def _on_head(lab: BenchLab, *argv: str) -> None:
    run("podman", "exec", f"clusterctl-{lab.name}-head1", *argv, limit=300)
