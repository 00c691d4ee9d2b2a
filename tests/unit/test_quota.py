"""`report quota`: accounts as a tree with shares and waiting jobs, in each output, from what a lab printed."""

import csv
import io
import json
import re
import subprocess
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from clusterctl.commands import quota_page
from clusterctl.commands.quota import Tree
from clusterctl.commands.quota_report import Quota, Row, Wait
from clusterctl.slurm.quota import Association, Job, Limit, State
from clusterctl.ui.screen import Screen

from .test_cli import clusterctl
from .test_slurm_by_hand import BY_HAND
from .test_slurm_quota import STATE
from .test_usage import KUBERNETES, SLURM_ONLY

HOSTILE = "=HYPERLINK(1)"


def rows(state: State = STATE, users: bool = False) -> dict[str, Row]:
    return {row.name: row for row in Tree(state).rows(users)}


def quota(users: bool = False) -> Quota:
    return Quota("aurora", tuple(Tree(STATE).rows(users)), BY_HAND, ("1 line of squeue could not be read",))


def text_of(found: Quota, width: int = 0) -> str:
    """Return the page as text, on a terminal if it has a width."""
    screen = Screen(io.StringIO(), plain=not width)
    if width:
        screen._force_terminal, screen.width = True, width
    with screen.capture() as page:
        quota_page.show(screen, found)
    return re.sub(r"\x1b\[[\d;]*m", "", page.get())


def test_tree__of_a_lab__has_parents_before_their_children() -> None:
    found = [*Tree(STATE).rows(users=False)]
    names = ["root", "cluster", "science", "byhand", "robots", "vision", "students"]
    assert [row.account for row in found] == names
    assert [row.depth for row in found] == [0, 1, 1, 2, 2, 2, 1]


def test_tree__of_a_lab__has_shares_and_jobs_of_all_below() -> None:
    found = rows()
    science, vision = found["science"], found["vision"]
    assert [science.share, vision.share] == pytest.approx([60 / 82, 30 / 41])
    assert (science.gpus, science.gpu_limit, science.running, science.waiting) == (12, 12, 3, 22)
    assert (found["root"].running, found["root"].waiting, found["root"].share) == (3, 32, None)
    assert (found["robots"].gpu_minutes_limit, found["students"].level_fs) == (600000, None)
    assert [wait.jobs for row in found.values() for wait in row.waits] == [4, 1, 1, 21, 1, 3, 1]


def test_tree__with_users__has_their_own_jobs() -> None:
    found = rows(users=True)
    assert (found["bob"].depth, found["bob"].parent, found["bob"].waiting) == (3, "robots", 21)
    assert found["carol"].waits == found["students"].waits


def made(
    account: str,
    parent: str,
    shares: int | None,
    usage: float,
    user: str = "",
    limits: Mapping[str, Limit] = MappingProxyType({}),
) -> Association:
    return Association(account, user, "", parent, shares, 10, usage, limits)


def state_of(*associations: Association, job: Job) -> State:
    return State((made("root", "", 1, 100.0), *associations), Counter({job: 2}))


@pytest.mark.parametrize(
    ("shares", "usage", "level_fs"),
    [(5, 25.0, 2.0), (5, 100.0, 0.5), (5, 0.0, None), (0, 5.0, 0.0), (None, 5.0, None)],
)
def test_level_fs__of_an_account__is_share_by_use(shares: int | None, usage: float, level_fs: float | None) -> None:
    state = state_of(made("a", "root", shares, usage), job=Job("a", "u", "normal", True, ""))
    assert rows(state)["a"].level_fs == level_fs


def test_level_fs__below_an_account_without_a_share__uses_the_next_above() -> None:
    state = state_of(made("a", "root", None, 50.0), made("b", "a", 5, 25.0), job=Job("b", "u", "normal", True, ""))
    assert rows(state)["b"].level_fs == 2.0


@pytest.mark.parametrize(
    ("reason", "limits", "meaning"),
    [
        ("AssocGrpJobsLimit", ({}, {"GrpJobs": Limit(4, 4)}, {}), "limit of top: 4 running jobs"),
        (
            "AssocGrpJobsLimit",
            ({}, {"GrpJobs": Limit(4, 4)}, {"GrpJobs": Limit(2, 2)}),
            "limit of low: 2 running jobs; top: 4 running jobs",
        ),
        ("AssocGrpJobsLimit", ({"GrpJobs": Limit(1, 1)}, {}, {}), "limit of eve: 1 running job"),
        # What a user inherits is the account's; another value is the user's own.
        ("AssocMaxJobsLimit", ({"MaxJobs": Limit(3)},) * 3, "limit of top: 3 running jobs of a user"),
        (
            "AssocMaxJobsLimit",
            ({"MaxJobs": Limit(1)}, {}, {"MaxJobs": Limit(3)}),
            "limit of eve: 1 running job of a user",
        ),
        ("AssocMaxJobsLimit", ({}, {}, {}), ""),
        ("Priority", ({}, {}, {}), "behind jobs with a higher priority"),
    ],
)
def test_meaning__of_a_reason__is_the_limit_with_its_owner(
    reason: str, limits: tuple[dict[str, Limit], ...], meaning: str
) -> None:
    user, top, low = limits
    state = state_of(
        made("top", "root", 5, 0.0, limits=top),
        made("low", "top", 5, 0.0, limits=low),
        made("low", "", 5, 0.0, "eve", user),
        job=Job("low", "eve", "normal", False, reason),
    )
    assert rows(state)["low"].waits == (Wait(reason, 2, meaning),)


def test_tree__with_an_unknown_parent_or_account__counts_their_jobs() -> None:
    state = state_of(made("a", "gone", 5, 1.0), job=Job("deleted", "u", "normal", False, "InvalidAccount"))
    found = rows(state)
    assert (found["a"].depth, found["root"].waiting) == (1, 2)


# --- output -----------------------------------------------------------------------------------------------------------


def test_page__of_a_lab__has_accounts_reasons_and_what_was_made_by_hand() -> None:
    text = text_of(quota())
    assert re.search(r"^  science +73\.2 % +99\.\d % +0\.73 +12/12 +", text, re.M), text
    assert re.search(r"^robots +21  AssocGrpGRES \(limit of science: 12 GPUs\)$", text, re.M), text
    assert "Not in inventory  account byhand (below science)\n" in text
    assert "Not in inventory  account students: GrpTRESMins=cpu=1000, MaxTRESPerJob=gres/gpu=2\n" in text
    assert "Unknown           1 line of squeue could not be read\n" in text


@pytest.mark.parametrize("width", [80, 200])
def test_page__on_a_terminal__fits_its_width(width: int) -> None:
    lines = text_of(quota(users=True), width).splitlines()
    assert max(map(len, lines)) <= width
    assert any(line.startswith("      alice") for line in lines)
    assert any(
        line.split() == ["robots", "21", "AssocGrpGRES", "(limit", "of", "science:", "12", "GPUs)"] for line in lines
    )


def test_csv__of_a_name_like_a_formula__is_inert() -> None:
    row = replace(rows()["science"], account=HOSTILE, waits=(Wait("Priority", 2, "later"), Wait("Resources", 1)))
    (found,) = csv.DictReader(io.StringIO(quota_page.table(replace(quota(), rows=(row,)))))
    assert (found["account"], found["share"], found["gpu_minutes_limit"]) == (f"'{HOSTILE}", "0.7317", "")
    assert found["waits"] == "2 Priority (later); 1 Resources"


def test_json__of_a_lab__has_numbers_and_differences() -> None:
    found = json.loads(json.dumps(quota(users=True).as_dict()))
    science = next(one for one in found["accounts"] if one["account"] == "science")
    assert (science["gpus"], science["gpu_limit"], science["gpu_minutes_limit"]) == (12, 12, None)
    assert {one["user"] for one in found["users"]} == {"root", "clusterverify", "dan", "bob", "alice", "carol"}
    assert "QOS byhand" in found["not_in_inventory"]
    assert (found["differs"], found["not_in_slurm"], found["exit_code"]) == ([], [], 0)


# --- the command line -------------------------------------------------------------------------------------------------


def run(directory: Path, text: str, *argv: str) -> "subprocess.CompletedProcess[str]":
    (directory / "inventory.yaml").write_text(text)
    return clusterctl("report", "quota", *argv, cwd=directory, HOME=str(directory))


@pytest.mark.parametrize(
    ("text", "argv", "code", "reason"),
    [
        (KUBERNETES, [], 2, "kubectl describe resourcequota --all-namespaces"),
        (SLURM_ONLY, ["--output", "html"], 2, "'html' is not one of"),
        (SLURM_ONLY, [], 5, "head1: 127.0.0.1 port 1 refuses the connection"),
    ],
)
def test_quota__that_cannot_be__ends_with_its_exit_code(
    tmp_path: Path, text: str, argv: list[str], code: int, reason: str
) -> None:
    done = run(tmp_path, text, *argv)
    assert (done.returncode, reason in done.stdout + done.stderr) == (code, True), done.stdout + done.stderr
    assert not (tmp_path / ".clusterctl").exists(), "it writes nothing"
