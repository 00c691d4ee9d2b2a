"""Slurm's accounting: lines of sacct as real clusters printed them, and what is summed up of them.

The values of AllocTRES and ConsumedEnergyRaw are from sacct's output in public repositories: a job of a typed GPU
(974804 in partition accel, account ec395), a job of four nodes with measured energy (38113 on CSCS's santis), a site
that accounts types alone (partition gpu-v100-32g, account aalto_users). What is printed for an unknown energy:
SchedMD/slurm, src/sacct/print.c and slurm/slurm.h (NO_VAL64, INFINITE64).
"""

import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import paramiko
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.nodes.remote import Access
from clusterctl.slurm.accounting import BY, FIELDS, Accounting, Job, Sums, Tally, parse
from clusterctl.util.errors import HeadFailed
from clusterctl.util.period import DAY, Period

from .ssh_server import Server, ed25519, host, known, listening

SINCE = 1790812800  # 2026-10-01 00:00 UTC
PERIOD = Period(SINCE, SINCE + 3 * DAY)
ONE_GPU = "billing=19,cpu=1,gres/gpu:a100=1,gres/gpu=1,mem=32G,node=1"
FOUR_NODES = "billing=1152,cpu=1152,energy=20543125,mem=1840000M,node=4"


def line(
    start: int | str = SINCE,
    end: int | str = "Unknown",
    tres: str = ONE_GPU,
    energy: str = "0",
    names: str = "ec-eeeee|ec395|accel",
    state: str = "COMPLETED",
    eligible: int | str = SINCE - 60,
) -> str:
    """Return a line of sacct."""
    return f"{names}|{state}|{eligible}|{start}|{end}|{tres}|{energy}"


def tally(*lines: str, by: str = "account", period: Period = PERIOD) -> Tally:
    """Return the sums of jobs that sacct prints for each day in which they ran, waited or began."""
    found = Tally(period, by)
    for part in period.days():
        found.add(part, "".join(f"{one}\n" for one in lines))
    return found


def test_parse__a_job_of_a_gpu__has_all_fields() -> None:
    job = parse(line(1731499506, 1731499738, state="TIMEOUT", eligible="1731499500"))
    names = ("ec-eeeee", "ec395", "accel", "TIMEOUT")
    assert job == Job(*names, 1731499500, 1731499506, 1731499738, gpus=1, cpus=1, nodes=1, joules=None)
    assert job.wait == 6


@pytest.mark.parametrize(
    ("tres", "gpus", "cpus", "nodes"),
    [
        (ONE_GPU, 1, 1, 1),
        (FOUR_NODES, 0, 1152, 4),
        ("billing=64,cpu=8,gres/gpu:v100=2", 2, 8, 0),
        ("cpu=8,gres/gpu:a100=2,gres/gpu:v100=1,mem=64G,node=1", 3, 8, 1),
        ("cpu=8,gres/gpu=4,gres/gpu:a100=2,gres/gpu:v100=2,node=2", 4, 8, 2),
        ("cpu=1,gres/gpumem=80G,gres/gpuutil=50,node=1", 0, 1, 1),
        ("", 0, 0, 0),
    ],
)
def test_parse__alloctres__counts_each_gpu_once(tres: str, gpus: int, cpus: int, nodes: int) -> None:
    job = parse(line(tres=tres))
    assert (job.gpus, job.cpus, job.nodes) == (gpus, cpus, nodes)


@pytest.mark.parametrize(
    ("energy", "expected"),
    [
        ("20543125", 20543125),
        ("0", None),
        ("", None),
        ("4294967294", None),
        ("18446744073709551614", None),
        ("18446744073709551615", None),
    ],
)
def test_parse__energy__is_unknown_where_slurm_has_none(energy: str, expected: int | None) -> None:
    assert parse(line(energy=energy)).joules == expected


@pytest.mark.parametrize("text", ["", "sacct: warning", line() + "|x", line().rpartition("|")[0]])
def test_parse__another_line__is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a line of sacct"):
        parse(text)


@pytest.mark.proves("untrusted", "Names in Slurm's accounting cannot write control characters on the screen.")
def test_parse__hostile_names__are_plain() -> None:
    job = parse(line(names=f"\x1b[2Jmallory|a\u202eb|{'p' * 500}"))
    assert (job.user, job.account, len(job.partition)) == ("[2Jmallory", "ab", 64)
    assert parse(line(names="|root|main")).user == "-"


def test_tally__a_job_over_both_edges__counts_its_part() -> None:
    found = tally(line(SINCE - DAY, SINCE + 10 * DAY, FOUR_NODES, "1100000")).total
    assert (found.jobs, found.gpu_seconds) == (1, 0)
    assert (found.node_seconds, found.cpu_seconds) == (4 * 3 * DAY, 1152 * 3 * DAY)
    assert found.joules == pytest.approx(1100000 * 3 / 11)


def test_tally__a_job_that_runs__counts_until_the_end_of_the_period() -> None:
    found = tally(line(SINCE + DAY, state="RUNNING"))
    assert (found.total.jobs, found.total.gpu_seconds) == (1, 2 * DAY)
    assert found.days == {"2026-10-01": 0, "2026-10-02": DAY, "2026-10-03": DAY}


def test_tally__jobs_before_after_and_never_begun__do_not_count() -> None:
    cancelled = line(SINCE + 9, SINCE + 9, tres="", state="CANCELLED by 1000")
    none = line("None", SINCE + 9, tres="", state="CANCELLED by 1000")
    held = line("Unknown", tres="", state="CANCELLED", eligible="Unknown")
    found = tally(line(SINCE - 9, SINCE), line(SINCE + 3 * DAY, SINCE + 4 * DAY), cancelled, none, held)
    assert (found.total, dict(found.groups)) == (Sums(), {})


def test_tally__a_requeued_job__is_two_jobs() -> None:
    found = tally(
        line(SINCE, SINCE + 100, state="REQUEUED"), line(SINCE + 400, SINCE + 500, eligible=SINCE + 220)
    ).total
    assert (found.jobs, found.gpu_seconds, sorted(found.waits)) == (2, 200, [60, 180])


def test_tally__a_job_that_waits__is_waiting_once_and_has_no_wait() -> None:
    found = tally(line("Unknown", state="PENDING", tres=""), line()).total
    assert (found.waiting, found.jobs, list(found.waits)) == (1, 1, [60])


def test_tally__wait_of_a_job_that_began_before__does_not_count() -> None:
    assert list(tally(line(SINCE - 10, SINCE + 10)).total.waits) == []


def test_tally__a_job_that_ended_at_once__is_a_job() -> None:
    found = tally(line(SINCE + 5, SINCE + 5, energy="7")).total
    assert (found.jobs, found.gpu_seconds, found.joules) == (1, 0, 0.0)


def test_tally__other_lines__are_counted() -> None:
    found = tally("sacct: error: something", line(), period=Period(SINCE, SINCE + DAY))
    assert (found.unreadable, found.total.jobs) == (1, 1)


@pytest.mark.parametrize(
    ("waits", "median", "late"),
    [([], None, None), ([7], 7, 7), ([1, 9], 1, 9), ([5, 1, 3], 3, 5), (list(range(1, 101)), 50, 95)],
)
def test_wait__of_so_many_jobs__is_the_nearest_rank(waits: list[int], median: int | None, late: int | None) -> None:
    sums = Sums()
    sums.waits.extend(waits)
    assert (sums.wait(0.5), sums.wait(0.95)) == (median, late)


NAME = st.text("ab =<\x1bé", max_size=3)
TIME = st.integers(SINCE - 2 * DAY, SINCE + 5 * DAY)


@st.composite
def jobs(draw: st.DrawFn) -> str:
    start = draw(TIME)
    end = draw(st.one_of(st.just("Unknown"), st.integers(start, start + 4 * DAY)))
    tres = f"cpu={draw(st.integers(0, 9))},gres/gpu={draw(st.integers(0, 9))},node={draw(st.integers(0, 2))}"
    state = draw(st.sampled_from(["COMPLETED", "RUNNING", "PENDING"]))
    names = "|".join(draw(st.tuples(NAME, NAME, NAME)))
    return line(start, end, tres, str(draw(st.integers(0, 2**40))), names, state, start - draw(st.integers(0, 999)))


@pytest.mark.proves("usage", "Usage by user, account and partition has the same total.")
@given(st.lists(jobs(), max_size=12))
def test_tally__parts_by_each_name__sum_up_to_the_total(lines: list[str]) -> None:
    whole = [tally(*lines, by=by) for by in BY]
    for found in whole:
        groups = found.groups.values()
        assert found.unreadable == 0
        for name in ("jobs", "waiting", "gpu_seconds", "cpu_seconds", "node_seconds", "measured"):
            assert sum(getattr(sums, name) for sums in groups) == getattr(found.total, name)
        assert sum(sums.joules for sums in groups) == pytest.approx(found.total.joules)
        assert sorted(wait for sums in groups for wait in sums.waits) == sorted(found.total.waits)
        assert sum(found.days.values()) == found.total.gpu_seconds
    assert [found.total.jobs for found in whole] == [whole[0].total.jobs] * len(BY)


@given(st.lists(jobs(), max_size=6))
def test_tally__day_by_day__is_that_of_one_query(lines: list[str]) -> None:
    text, at_once = "\n".join(lines), Tally(PERIOD, "user")
    at_once.add(PERIOD, text)
    daily, whole = tally(*lines, by="user").total, at_once.total
    assert daily.joules == pytest.approx(whole.joules)
    assert sorted(daily.waits) == sorted(whole.waits)
    assert replace(daily, joules=0.0, waits=whole.waits) == replace(whole, joules=0.0)


# --- on the head ------------------------------------------------------------------------------------------------------

Reply = Callable[[list[str]], tuple[int, str, str]]


@pytest.fixture
def asked() -> list[list[str]]:
    return []


def ask(tmp_path: Path, asked: list[list[str]], reply: Reply, period: Period = PERIOD) -> Tally:
    """Ask a head whose sacct answers by `reply`."""

    def program(channel: paramiko.Channel, command: str) -> int:
        asked.append(shlex.split(command))
        status, out, err = reply(asked[-1])
        channel.sendall(out.encode())
        channel.sendall_stderr(err.encode())
        return status

    server = Server([ed25519(tmp_path / "host")], ed25519(tmp_path / "id"), program)
    with listening(server.serve) as port:
        (tmp_path / "known_hosts").write_text(known(port, *server.host_keys))
        head = replace(host(port, tmp_path / "id", "head1", "slurm_head"), user="root")
        with Accounting.connect(head, Access(tmp_path / "known_hosts")) as accounting:
            return accounting.tally(period, "account")


def test_accounting__each_day__is_asked_in_utc_and_seconds(tmp_path: Path, asked: list[list[str]]) -> None:
    found = ask(tmp_path, asked, lambda argv: (0, line(SINCE, SINCE + 2 * DAY) + "\n", ""))
    assert (found.total.jobs, found.total.gpu_seconds) == (1, 2 * DAY)
    assert [argv[:4] for argv in asked] == [["env", "LC_ALL=C", "TZ=UTC0", "SLURM_TIME_FORMAT=%s"]] * 3
    assert [argv[-2:] for argv in asked] == [
        [f"--starttime=2026-10-0{day}T00:00:00", f"--endtime=2026-10-0{day + 1}T00:00:00"] for day in (1, 2, 3)
    ]
    options = {"--allusers", "--allocations", "--duplicates", "--noheader", "--parsable2"}
    assert options | {f"--format={','.join(FIELDS)}"} == {*asked[0][5:-2]}


@pytest.mark.parametrize(
    ("status", "err", "reason"),
    [
        (127, "env: 'sacct': No such file or directory\n", "Slurm is not installed on the head yet"),
        (1, "Slurm accounting storage is disabled\n", "Slurm keeps no accounting: AccountingStorageType"),
        (
            1,
            "sacct: error: slurm_persist_conn_open_without_init: failed to open persistent connection\n"
            "sacct: error: Problem talking to the database: Connection refused\n",
            "sacct failed with exit code 1: sacct: error: slurm_persist_conn_open_without_init",
        ),
    ],
)
def test_accounting__a_failed_sacct__is_the_heads_failure(
    tmp_path: Path, asked: list[list[str]], status: int, err: str, reason: str
) -> None:
    with pytest.raises(HeadFailed, match="head1: ") as caught:
        ask(tmp_path, asked, lambda argv: (status, "", err))
    assert reason in str(caught.value)
    assert (caught.value.exit_code, len(asked)) == (5, 1)


def test_tally__many_jobs__keeps_eight_bytes_of_each_wait() -> None:
    found, lines = Tally(PERIOD, "user"), "\n".join(line(SINCE + n, SINCE + n + 5) for n in range(20_000))
    for part in PERIOD.days():
        found.add(part, lines)
    kept = [sums.waits for sums in (found.total, *found.groups.values())]
    assert [(len(waits), waits.itemsize) for waits in kept] == [(20_000, 8)] * 2
