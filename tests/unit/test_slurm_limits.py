"""Limits of Slurm's accounts and QOS: one form for what is declared and what sacctmgr prints."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.labs import REPOSITORY
from tests.unit.test_role_plugins import plugin

LIMITS = plugin("module_utils/slurm_limits")
FILTERS = plugin("filter/slurm")
SAMPLE = REPOSITORY / "tests/samples/slurm/sacctmgr-24.11.5.txt"
OF_ACCOUNT = {
    "DefaultQOS": "normal",
    "Fairshare": 40,
    "GrpJobs": 5,
    "GrpJobsAccrue": 6,
    "GrpSubmitJobs": 7,
    "GrpTRES": {"gres/gpu": 8, "mem": "1536G", "cpu": 4},
    "GrpTRESMins": "gres/gpu=100",
    "GrpTRESRunMins": {"cpu": 10},
    "GrpWall": 100,
    "MaxJobs": "3",
    "MaxJobsAccrue": 4,
    "MaxSubmitJobs": 9,
    "MaxTRESMinsPerJob": {"cpu": 5},
    "MaxTRESPerJob": {"gres/gpu": 2},
    "MaxTRESPerNode": {"cpu": 2},
    "MaxWall": "1-12:00:00",
    "MinPrioThresh": 2,
    "Priority": 7,
    "QOS": ["normal", "every"],
}
OF_QOS = {
    "Flags": ["DenyOnLimit", "NoReserve"],
    "GraceTime": "00:01:30",
    "GrpJobs": 1,
    "GrpJobsAccrue": 2,
    "GrpSubmitJobs": 3,
    "GrpTRES": {"gres/gpu": 2},
    "GrpTRESMins": {"cpu": 4},
    "GrpTRESRunMins": {"cpu": 5},
    "GrpWall": "6:00:00",
    "LimitFactor": 2,
    "MaxJobsAccruePerAccount": 7,
    "MaxJobsAccruePerUser": 8,
    "MaxJobsPerAccount": 9,
    "MaxJobsPerUser": 10,
    "MaxSubmitJobsPerAccount": 11,
    "MaxSubmitJobsPerUser": 12,
    "MaxTRESMinsPerJob": {"cpu": 13},
    "MaxTRESPerAccount": {"gres/gpu": 14},
    "MaxTRESPerJob": {"cpu": 15},
    "MaxTRESPerNode": {"cpu": 16},
    "MaxTRESPerUser": {"gres/gpu": 17},
    "MaxTRESRunMinsPA": {"cpu": 18},
    "MaxTRESRunMinsPU": {"cpu": 19},
    "MaxWall": 1440,
    "MinPrioThresh": 20,
    "MinTRESPerJob": {"cpu": 1},
    "Preempt": "scavenger,high",
    "PreemptMode": "REQUEUE",
    "Priority": 21,
    "UsageFactor": 0.5,
    "UsageThreshold": 0.1,
}


def printed(section: str, name: str) -> list[str]:
    """Return the fields of a line of the sample."""
    text = SAMPLE.read_text().partition(f"# {section}\n")[2].partition("\n#")[0]
    return next(line.split("|") for line in text.splitlines() if line.startswith(f"{name}|"))


def each_option() -> Iterator[Any]:
    for kind, options in (("account", OF_ACCOUNT), ("qos", OF_QOS)):
        for name, value in options.items():
            yield pytest.param(kind, name, value, id=f"{kind} {name}")


def of(kind: str) -> tuple[Mapping[str, int], Any]:
    """Return the kinds of options, and what reads them from a section of the sample."""
    kinds, name, first = {
        "account": (LIMITS.OF_ASSOCIATION, "all", 4),
        "qos": (LIMITS.OF_QOS, "every", 1),
    }[kind]
    suffix = ", associations" if kind == "account" else ""
    return kinds, lambda section: LIMITS.printed(kinds, printed(f"{section}{suffix}", name)[first:])


def test_options__all_that_are_known__are_in_the_sample() -> None:
    assert (set(OF_ACCOUNT), set(OF_QOS)) == (set(LIMITS.OF_ASSOCIATION), set(LIMITS.OF_QOS))


@pytest.mark.proves("jobs", "Each limit of accounts and QOS is compared with what Slurm 24.11 prints.")
@pytest.mark.parametrize(("kind", "name", "value"), [*each_option()])
def test_arguments__of_each_option__are_needed_once_and_removed_once(kind: str, name: str, value: Any) -> None:
    kinds, state = of(kind)
    declared = LIMITS.flatten(kinds, {name.upper(): value})
    assert LIMITS.arguments(kinds, declared, state("set"), declared) == []
    (needed,) = LIMITS.arguments(kinds, declared, state("new"), {})
    assert needed.startswith(f"{name}=")
    (removed,) = LIMITS.arguments(kinds, {}, state("set"), declared)
    assert removed.startswith(name)
    assert LIMITS.arguments(kinds, {}, state("removed"), declared) == []


@pytest.mark.proves("jobs", "A limit that is no longer declared is removed, unless it was changed by hand.")
def test_arguments__of_an_option_that_somebody_set__leave_it() -> None:
    kinds, state = of("account")
    now = state("set")
    assert LIMITS.arguments(kinds, {}, now, {}) == []
    assert LIMITS.arguments(kinds, {}, now, {"MaxJobs": "30"}) == []
    assert LIMITS.arguments(kinds, {}, now, {"MaxJobs": "3", "GrpTRES:cpu": "4"}) == ["GrpTRES=cpu=-1", "MaxJobs=-1"]


def test_arguments__of_resources__change_those_that_differ() -> None:
    declared = LIMITS.flatten(LIMITS.OF_ASSOCIATION, {"GrpTRES": {"gres/gpu": 8, "cpu": 64, "MEM": "2T"}})
    current = {"GrpTRES:cpu": "64", "GrpTRES:node": "2", "GrpTRES:mem": "1"}
    assert LIMITS.arguments(LIMITS.OF_ASSOCIATION, declared, current, {}) == ["GrpTRES=gres/gpu=8,mem=2097152"]


def test_arguments__of_flags__are_all_flags_or_those_to_remove() -> None:
    """Of `Flags+=NoDecay Flags+=NoReserve` sacctmgr 24.11.5 set only the last."""
    declared = LIMITS.flatten(LIMITS.OF_QOS, {"Flags": "NoDecay,NoReserve"})
    current = {"Flags:denyonlimit": "DenyOnLimit"}
    assert LIMITS.arguments(LIMITS.OF_QOS, declared, current, {}) == ["Flags=DenyOnLimit,NoDecay,NoReserve"]
    assert LIMITS.arguments(LIMITS.OF_QOS, {}, current, current) == ["Flags-=DenyOnLimit"]


def test_arguments__that_remove_flags__have_them_last() -> None:
    """Before 25.11, `_set_rec` of qos_functions.c reads each option behind `Flags-=` with the same operator."""
    current = {"Flags:denyonlimit": "DenyOnLimit"}
    wanted = {"Preempt": "scavenger", "UsageFactor": "0.500000"}
    found = LIMITS.arguments(LIMITS.OF_QOS, wanted, current, current)
    assert found == ["Preempt=scavenger", "UsageFactor=0.500000", "Flags-=DenyOnLimit"]


def test_probe__of_the_state_of_accounting__has_all_options() -> None:
    text = (REPOSITORY / "clusterctl/nodes/probe/state.py").read_text().replace('"\n        "', "")
    for part, kinds in (("qos format=name", LIMITS.OF_QOS), ("parentname", LIMITS.OF_ASSOCIATION)):
        assert f"{part},{','.join(kinds)}" in text


@pytest.mark.parametrize(
    ("text", "minutes"),
    [(90, 90), ("90", 90), ("90:00", 90), ("1:30:00", 90), ("1-1", 1500), ("1-01:30", 1530), ("1-00:00:00", 1440)],
)
def test_flatten__of_a_time__is_minutes(text: Any, minutes: int) -> None:
    assert LIMITS.flatten(LIMITS.OF_QOS, {"MaxWall": text}) == {"MaxWall": str(minutes)}


@pytest.mark.parametrize(
    "options",
    [{"MaxJob": 3}, {"MaxJobs": -1}, {"MaxJobs": 2**32}, {"MaxJobs": [3]}, {"DefaultQOS": ["normal"]},
     {"GrpTRES": {"gres/gpu": -1}}, {"GrpTRES": {"mem": "infG"}}, {"GrpTRES": {"cpu": "1.5"}}, {"Fairshare": -1},
     {"MaxJobs": 1, "maxjobs": 2}, {"MaxJobs": "many"}, {"MaxWall": "a day"}, {"GrpTRES": 8},
     {"GrpTRES": {"cpu": "4x"}}, {"Fairshare": "child"}, {"GrpTRES": "gres/gpu:8"}],
)  # fmt: skip
def test_flatten__of_what_slurm_cannot_read__is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(LIMITS.OptionError):
        LIMITS.flatten(LIMITS.OF_ASSOCIATION, options)


def test_flatten__of_a_mode_of_preemption__is_one_of_slurms() -> None:
    for mode in ("kill", "off", False):
        with pytest.raises(LIMITS.OptionError):
            LIMITS.flatten(LIMITS.OF_QOS, {"PreemptMode": mode})
    declared = LIMITS.flatten(LIMITS.OF_QOS, {"PreemptMode": "requeue,within"})
    assert declared == LIMITS.printed({"PreemptMode": LIMITS.MODE}, ["within,requeue"])


@pytest.mark.parametrize("factor", ["nan", "inf", "-1", "half"])
def test_flatten__of_a_factor__is_a_number(factor: str) -> None:
    with pytest.raises(LIMITS.OptionError):
        LIMITS.flatten(LIMITS.OF_QOS, {"UsageFactor": factor})


@pytest.mark.proves("bootstrap", "A limit of GPUs that no worker has ends a bootstrap before Slurm is changed.")
def test_limit_problems__of_gpus_that_no_worker_has__name_them() -> None:
    accounts, qos = [{"name": "a", "options": {"GrpTRES": {"gres/gpu": 8, "cpu": 4}}}], [{"name": "q"}]
    of_type = [{"name": "fast", "options": {"MaxTRESPerUser": {"gres/gpu:H100": 1}}}]
    assert FILTERS.limit_problems(accounts, of_type, ["a100", "h100"]) == []
    said = "a limit is for gres/gpu:h100, but the workers have a100"
    assert FILTERS.limit_problems(accounts, of_type, ["a100"]) == [said]
    assert FILTERS.limit_problems(accounts, qos, []) == ["a limit is for gres/gpu, but no worker has a GPU"]
    assert FILTERS.limit_problems([], qos, []) == []


def test_options_of_qos__without_a_value__are_not_there() -> None:
    qos = [{"name": "a", "options": {"preempt": [], "Flags": "NoDecay"}}, {"name": "b", "options": {"Priority": 0}}]
    assert FILTERS.options_of_qos(qos) == ["Flags", "Priority"]


def test_printed__in_an_unknown_form__stays_and_differs() -> None:
    current = LIMITS.printed({"MaxWall": LIMITS.WALL}, ["a long time"])
    assert current == {"MaxWall": "a long time"}
    assert LIMITS.arguments({"MaxWall": LIMITS.WALL}, {"MaxWall": "5"}, current, {}) == ["MaxWall=5"]
    resources = LIMITS.printed({"GrpTRES": LIMITS.TRES}, ["cpu=4,gres/gpumem=40G,gres/gpu=2"])
    assert resources == {"GrpTRES:cpu": "4", "GrpTRES:gres/gpumem": "gres/gpumem=40G", "GrpTRES:gres/gpu": "2"}
