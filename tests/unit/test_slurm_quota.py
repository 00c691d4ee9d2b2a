"""Slurm's accounts and queue, as scontrol and squeue of a lab printed them, and what a reason can be about."""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import paramiko
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.nodes.remote import Access
from clusterctl.slurm.quota import (
    Association,
    Job,
    Limit,
    QuotaReader,
    State,
    described,
    explained,
    limits_of,
    parse_associations,
    parse_jobs,
)
from clusterctl.util.errors import HeadFailed
from tests.labs import REPOSITORY

from .ssh_server import Server, ed25519, host, known, listening

_TEXT = (REPOSITORY / "tests/samples/slurm/quota-24.11.5.txt").read_text()
SAMPLE = dict(zip(*[iter(re.split(r"^# (associations|jobs|accounts|qos)\n", _TEXT, flags=re.M)[1:])] * 2, strict=True))
"""What the commands printed, by the name of the part."""
ASSOCIATIONS = [one for one in parse_associations(SAMPLE["associations"]) if one]
JOBS = Counter(job for job in parse_jobs(SAMPLE["jobs"]) if job)
STATE = State(tuple(ASSOCIATIONS), JOBS)


def association(account: str, user: str = "") -> Association:
    """Return an association of the sample."""
    return next(one for one in ASSOCIATIONS if (one.account, one.user) == (account, user))


def test_associations__of_a_lab__have_shares_and_limits() -> None:
    assert len(ASSOCIATIONS) == SAMPLE["associations"].count("ClusterName=")
    science = association("science")
    assert (science.parent, science.shares, science.level_shares) == ("root", 60, 82)
    assert science.limits["GrpTRES:gres/gpu"] == Limit(12, 12)
    assert science.limits["GrpTRES:gres/gpu:a100"] == Limit(None, 12)
    assert science.limits["GrpJobs"] == Limit(None, 3)
    students = association("students")
    assert (students.limits["MaxJobs"], students.limits["MaxTRESPJ:gres/gpu"]) == (Limit(2, 0), Limit(2))
    bob = association("robots", "bob")
    assert (bob.parent, bob.limits["MaxJobs"], bob.limits["GrpTRES:gres/gpu"]) == ("", Limit(10, 1), Limit(None, 2))
    assert association("root").parent == ""


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        # slurm-22.05, src/scontrol/info_assoc_mgr.c: another field, and no comment.
        ((r"Lineage=\S*", "Lft=2"), "account", "robots"),
        ((r" Comment=.*", ""), "account", "robots"),
        ((r"Comment=.*", "Comment=ClusterName=a Account=b GrpJobs=7"), "account", "robots"),
        ((r"Raw/Norm/Level/Factor=10/", "Raw/Norm/Level/Factor=2147483647/"), "shares", None),
        (("Account=robots ", "Account=a b=c "), "account", "a b=c"),
        (("Account=robots ", "Account=\x1b[31mred "), "account", "[31mred"),
        (("Partition= ", "Partition=main "), "partition", "main"),
        (("UserName= ", "UserName=eve(4294967294) "), "user", "eve"),
    ],
)
def test_association__in_another_form__is_read(change: tuple[str, str], field: str, value: object) -> None:
    line = next(one for one in SAMPLE["associations"].splitlines() if "Account=robots UserName= " in one)
    changed = re.sub(*change, line)
    assert changed != line
    (found,) = parse_associations(changed)
    assert found
    assert getattr(found, field) == value
    assert found.limits["GrpTRESMins:gres/gpu"].most == 600000
    assert found.limits["GrpJobs"] == Limit(None, 1)


def test_jobs__of_a_lab__have_reasons_if_they_wait() -> None:
    assert JOBS[Job("robots", "bob", "normal", False, "AssocGrpGRES")] == 21
    assert JOBS[Job("vision", "alice", "normal", True, "")] == 2
    assert JOBS.total() == SAMPLE["jobs"].count("\n")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("a|b|c|PENDING|ReqNodeNotAvail, UnavailableNodes:gpu[01-02]", "ReqNodeNotAvail"),
        ("a|b|c|PENDING|ReqNodeNotAvail,_UnavailableNodes:gpu01", "ReqNodeNotAvail"),
        ("a|b|c|REQUEUED|launch_failed_requeued_held", "launch failed requeued held"),
        ("a|b|c|PENDING|\x1b]0;x\x07 | y", "]0;x | y"),
        ("a|b|c|CONFIGURING|None", ""),
    ],
)
def test_job__with_a_description__has_a_short_reason(line: str, reason: str) -> None:
    (job,) = parse_jobs(f"{line}\n")
    assert job
    assert job.reason == reason
    assert job.is_running is (not reason)


@given(st.text())
def test_output__of_any_text__is_read(text: str) -> None:
    for line in (text, f"ClusterName={text}", f"a|b|c|PENDING|{text}"):
        read: tuple[object, ...] = (*parse_associations(line), *parse_jobs(line))
        assert all(isinstance(one, Association | Job | None) for one in read)


@pytest.mark.parametrize(
    ("reason", "account", "words"),
    [
        ("AssocGrpGRES", "science", ["12 GPUs"]),
        ("AssocGrpGRES", "vision", []),
        ("AssocGrpGRESMinutes", "robots", ["600000 GPU-minutes"]),
        ("AssocMaxJobsLimit", "students", ["2 running jobs of a user"]),
        ("AssocMaxGRESPerJob", "students", ["2 GPUs per job"]),
        ("AssocGrpCPUMinutesLimit", "students", ["1000 CPU-minutes"]),
        ("AssocGrpCpuLimit", "students", []),
        ("Priority", "students", []),
    ],
)
def test_reason__about_a_limit__has_it_in_words(reason: str, account: str, words: list[str]) -> None:
    assert [described(*item) for item in limits_of(reason, association(account)).items()] == words


@pytest.mark.parametrize(
    ("name", "most", "words"),
    [
        ("GrpTRES:gres/gpu:h100", 1, "1 h100 GPU"),
        ("GrpTRES:gres/gpu:h100", 8, "8 h100 GPUs"),
        ("GrpTRES:license/ansys", 3, "3 license/ansys"),
        ("GrpTRES:node", 2, "2 nodes"),
        ("GrpTRESRunMins:cpu", 60, "60 CPU-minutes of running jobs"),
        ("MaxTRESPN:mem", 4096, "4096 MB per node"),
        ("MaxWallPJ", 60, "60 minutes per job"),
        ("MaxWallPJ", 1, "1 minute per job"),
        ("GrpSubmitJobs", 1, "1 job"),
    ],
)
def test_limit__of_each_kind__has_its_unit(name: str, most: int, words: str) -> None:
    assert described(name, most) == words


@pytest.mark.parametrize("reason", ["QOSMaxGRESPerUser", "QOSGrpCpuLimit", "MaxGRESPerAccount"])
def test_reason__of_a_qos__names_it(reason: str) -> None:
    assert explained(Job("a", "b", "urgent", False, reason)) == "limit of QOS urgent or of its partition's QOS"
    assert explained(Job("a", "b", "urgent", False, "NotKnown")) == ""


def answers(directory: Path, program: Callable[[paramiko.Channel, str], int]) -> State:
    """Return what a head that runs this program has."""
    server = Server([ed25519(directory / "host")], ed25519(directory / "id"), program)
    with listening(server.serve) as port:
        (directory / "known_hosts").write_text(known(port, *server.host_keys))
        head = replace(host(port, directory / "id", "head1", "slurm_head"), user="root")
        with QuotaReader.connect(head, Access(directory / "known_hosts")) as reader:
            return reader.state()


def test_state__of_a_head__is_read_with_two_commands(tmp_path: Path) -> None:
    commands = []

    def program(channel: paramiko.Channel, command: str) -> int:
        commands.append(command)
        channel.sendall((SAMPLE["associations"] if "scontrol" in command else f"{SAMPLE['jobs']}?\n").encode())
        return 0

    found = answers(tmp_path, program)
    assert (found.associations, found.jobs, found.unreadable) == (STATE.associations, STATE.jobs, 1)
    assert len(commands) == 2
    assert all("LC_ALL=C" in one for one in commands)


@pytest.mark.parametrize(
    ("output", "code", "message"),
    [
        ("Current Association Manager state\nNo associations currently cached in Slurm.\n", 0, "has no accounts"),
        ("slurm_load_assoc_mgr_info error: \x1b[5mUnable to contact slurm controller\n", 1, "is slurmctld running?"),
        ("", 127, "Slurm is not installed on the head yet"),
    ],
)
def test_state__of_a_head_without_accounting__is_an_error(tmp_path: Path, output: str, code: int, message: str) -> None:
    def program(channel: paramiko.Channel, command: str) -> int:
        if "scontrol" in command:
            (channel.sendall_stderr if code else channel.sendall)(output.encode())
            return code
        return 0

    with pytest.raises(HeadFailed, match=re.escape(message)) as error:
        answers(tmp_path, program)
    assert "\x1b" not in str(error.value)
