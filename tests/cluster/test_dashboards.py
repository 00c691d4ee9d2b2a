"""Every panel of the dashboards, asked of the real Prometheus while jobs run on simulated GPUs."""

import time
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import pytest

from tests.cluster.lab import TestLab, clusterctl
from tests.cluster.panels import asker, now, shown, simulate_hardware, without_data
from tests.cluster.watched import RECIPES, ready
from tests.dashboards.asking import INTERVAL, Result, keep, values_of
from tests.dashboards.pages import PAGES
from tests.faults.injury import wait_until

NAMES = [page.name for page in PAGES if page.scheduler in ("", "slurm")]
NO_DATA = {("storage", "InfiniBand"): "a container has no InfiniBand; its metric's name is of node_exporter's README"}
WORDS = "x\nUserId=bob(5002) Account=root"
# Of a job without GPUs: it takes a free one, and hides that it has none in a part of another job.
SPOOF = "x  Nodes=gpu01 CPU_IDs=0 Mem=1 GRES=gpu:a100:1(IDX:3)\nJobId=99999 UserId=alice(5001)"


class Load(NamedTuple):
    """What was seen before the jobs began, and the numbers of alice's job, of bob's, and of the one that pretends."""

    before: dict[str, list[Result]]
    job: str
    others: str
    spoof: str


def pages(lab: TestLab, job: str = "") -> dict[str, list[Result]]:
    """Return the results of all pages that this cluster has; without a job, those that need none."""
    names = [name for name in NAMES if job or name != "job"]
    return shown(lab, names, {"node": {"node": "gpu01"}, "job": {"job": job}})


def sbatch(lab: TestLab, user: str, *options: str) -> str:
    """Submit a job that computes on a CPU; options may have spaces and brackets."""
    quoted = " ".join(f"'{option}'" for option in options)
    script = f"cd /; runuser -u {user} -- sbatch --parsable --mem=1M --output=none {quoted}"
    return lab.root("head1", f"{script} --wrap 'timeout 1200 sh -c \"while :; do :; done\"'").strip()


@pytest.fixture(scope="module")
def lab(watched: TestLab) -> TestLab:
    ready(watched)
    return watched


@pytest.fixture(scope="module")
def load(lab: TestLab) -> Iterator[Load]:
    """Two users' jobs that run, two that wait, and two GPUs of gpu01 that compute, for some scrapes."""
    try:
        yield begin(lab)
    finally:
        lab.root("head1", "scancel --user=alice; scancel --user=bob")
        assert clusterctl("lab", "fault", "--name", lab.name, "gpu01", "clear").returncode == 0
        for node in lab.nodes[1:]:
            lab.root(node, "rm --force /var/lib/clusterctl-metrics/hardware.prom")
    wait_until(lambda: lab.root("head1", "sinfo --noheader --format=%T").split() == ["idle"])


def begin(lab: TestLab) -> Load:
    for node in lab.nodes:
        lab.root(node, "systemctl start --no-block update-metrics")  # counts security updates, once a day otherwise
    simulate_hardware(lab, "gpu01", "gpu02")
    for metric in (f"rate(node_cpu_seconds_total[{INTERVAL}])", "smartctl_devices", "slurm_gpus"):
        wait_until(partial(has_data, lab, metric))
    wait_until(lambda: len(asker(lab)("query", {"query": "DCGM_FI_DEV_GPU_UTIL"})["result"]) == 8)
    before = pages(lab)
    job = sbatch(lab, "alice", "--gres=gpu:2", "--nodelist=gpu01", f"--comment={WORDS}", f"--job-name={WORDS}")
    others = sbatch(lab, "bob", "--gres=gpu:1", "--nodelist=gpu02")
    spoof = sbatch(lab, "bob", "--nodelist=gpu02", f"--job-name={SPOOF}")
    for _ in range(2):
        sbatch(lab, "bob", "--gres=gpu:4", "--nodes=2")
    for gpu in ("0", "1"):
        assert clusterctl("lab", "fault", "--name", lab.name, "gpu01", "busy", "--gpu", gpu).returncode == 0
    wait_until(lambda: len(asker(lab)("query", {"query": f'slurm_job_gpu{{job_id="{job}"}}'})["result"]) == 2)
    time.sleep(75)
    wait_until(lambda: len(asker(lab)("query", {"query": "cluster_node_security_updates"})["result"]) == len(lab.nodes))
    return Load(before, job, others, spoof)


def has_data(lab: TestLab, expression: str) -> bool:
    return bool(asker(lab)("query", {"query": expression})["result"])


def last(found: list[Result], title: str) -> dict[str, float]:
    """Return the values that a panel has at its end, by the labels of its series; a series may have ended before."""
    series = [one for result in found if result.panel.title == title for of_query in result.series for one in of_query]
    end = max((one["values"][-1][0] for one in series), default=0)
    return {
        " ".join(value for name, value in sorted(one["metric"].items())): values_of(one)[-1]
        for one in series
        if one["values"][-1][0] == end
    }


@pytest.fixture(scope="module")
def after(lab: TestLab, load: Load) -> dict[str, list[Result]]:
    found = pages(lab, load.job)
    keep("slurm", found, now(lab))
    return found


@pytest.mark.kit(*RECIPES)
@pytest.mark.proves("monitoring", "Every query of every panel of the dashboards returns data while jobs run.")
@pytest.mark.timeout(1500)
def test_panels__while_jobs_run__all_have_data(after: dict[str, list[Result]]) -> None:
    assert without_data(after) == set(NO_DATA)


@pytest.mark.kit(*RECIPES)
@pytest.mark.proves("monitoring", "The panels of GPUs, power, jobs and usage move when jobs begin.")
def test_panels__when_jobs_begin__move(load: Load, after: dict[str, list[Result]]) -> None:
    for page, title in (
        ("cluster", "GPUs allocated"),
        ("cluster", "GPU power"),
        ("cluster", "GPUs by use"),
        ("cluster", "Each node"),
        ("node", "CPU"),
        ("node", "GPU utilisation"),
        ("gpu", "Utilisation"),
        ("gpu", "Power"),
        ("queue", "Jobs"),
        ("queue", "GPUs held, by user"),
        ("queue", "GPUs held, by partition"),
        ("queue", "GPU-hours in the period"),
    ):
        before = last(load.before[page], title)
        assert before or title == "Jobs" or "by user" in title or "period" in title, title  # nobody had a job
        assert last(after[page], title) != before, title
    (allocated,) = last(after["cluster"], "GPUs allocated").values()
    assert allocated == pytest.approx(100 * 3 / 8)
    assert last(load.before["cluster"], "GPUs allocated") == {"": 0}


@pytest.mark.kit(*RECIPES)
@pytest.mark.proves("monitoring", "The panels of jobs and GPUs show what squeue and NVML show.")
@pytest.mark.proves("monitoring", "A job's name cannot give it GPUs in metrics, nor another user.")
def test_panels__beside_squeue_and_nvml__show_the_same(
    lab: TestLab, load: Load, after: dict[str, list[Result]]
) -> None:
    queue = lab.root("head1", "squeue --noheader --format='%T %u'").split("\n")
    states = [line.split()[0].lower() for line in queue if line]
    assert last(after["queue"], "Jobs") == {state: states.count(state) for state in {*states}}
    held = {user: gpus for user, gpus in last(after["queue"], "GPUs held, by user").items() if gpus}
    assert held == {"alice": 2, "bob": 1}

    smi = lab.root(
        "gpu01", "nvidia-smi --query-gpu=index,utilization.gpu,temperature.gpu --format=csv,noheader,nounits"
    )
    nvml = {one[0]: (float(one[1]), float(one[2])) for one in (line.split(", ") for line in smi.splitlines())}
    assert last(after["node"], "GPU utilisation") == {gpu: use for gpu, (use, _) in nvml.items()}
    assert last(after["node"], "GPU temperature") == {gpu: heat for gpu, (_, heat) in nvml.items()}

    show = lab.root("head1", f"scontrol --details show job {load.job} | grep ' Nodes=gpu01 '")
    assert "IDX:0-1" in show
    assert last(after["job"], "GPU utilisation") == {f"{gpu} gpu01": nvml[gpu][0] for gpu in ("0", "1")}
    assert last(after["job"], "Nodes") == {"": 1}
    assert last(after["job"], "GPUs") == {"": 2}

    forged = lab.root("head1", "scontrol --oneliner --details show jobs").splitlines()
    assert any(line.startswith("JobId=99999 UserId=alice(5001)") for line in forged)
    assert load.spoof in lab.root("head1", "squeue --noheader --states=R --format=%A").split()
    given = asker(lab)("query", {"query": "slurm_job_gpu"})["result"]
    assert sorted(one["metric"]["job_id"] for one in given) == sorted([load.job, load.job, load.others])


@pytest.mark.kit(*RECIPES)
@pytest.mark.proves("monitoring", "GPU time and ended jobs of accounts are counted while jobs run and end.")
def test_counters__of_accounts__grow_with_jobs(lab: TestLab, load: Load) -> None:
    rate = "sum(rate(slurm_account_gpu_seconds_total[1m]))"
    wait_until(
        lambda: 2 < float(asker(lab)("query", {"query": rate})["result"][0]["value"][1]) < 4
    )  # three GPUs are held
    before = cancelled(lab)
    lab.root("head1", f"scancel {load.spoof}")
    wait_until(lambda: cancelled(lab) == before + 1)


def cancelled(lab: TestLab) -> int:
    """Return how many jobs were cancelled, by Prometheus."""
    found = asker(lab)("query", {"query": 'sum(slurm_account_jobs_total{state="cancelled"})'})["result"]
    return sum(int(one["value"][1]) for one in found)
