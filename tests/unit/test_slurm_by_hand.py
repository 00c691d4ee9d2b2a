"""What is in Slurm and not in the inventory, from what sacctmgr of a lab printed."""

from copy import deepcopy
from typing import Any

import pytest

from clusterctl.slurm.by_hand import ByHand, compare, declared, parse

from .test_slurm_quota import SAMPLE

VARIABLES: dict[str, Any] = {
    "users_accounts": [
        {"name": "alice", "uid": 5001, "slurm_account": "Vision"},
        {"name": "bob", "uid": 5002, "slurm_account": "robots", "slurm_options": {"MaxJobs": 10}},
        {"name": "carol", "uid": 5003, "slurm_account": "students"},
        {"name": "dan", "uid": 5004},
        {"name": "gone", "uid": 5005, "state": "absent", "slurm_account": "old"},
    ],
    "slurm_head_accounts": [
        {"name": "root", "options": {"QOS": ["normal", "scavenger", "urgent"]}},
        {"name": "science", "options": {"GrpTRES": {"gres/gpu": 12}, "Fairshare": 60}},
        {"name": "Vision", "parent": "science", "options": {"Fairshare": 30, "MaxWall": "2-00:00:00"}},
        {"name": "robots", "parent": "science", "options": {"Fairshare": 10, "GrpTRESMins": {"gres/gpu": 600000}}},
        {"name": "students", "options": {"Fairshare": 20, "GrpTRES": {"gres/gpu": 4}, "MaxJobs": 2}},
    ],
    "slurm_head_qos": [
        {"name": "scavenger", "options": {"UsageFactor": 0.2}},
        {"name": "urgent", "options": {"Priority": 100, "Preempt": ["scavenger"], "MaxTRESPerUser": {"gres/gpu": 1}}},
    ],
}
"""What the sample's inventory declares."""
BY_HAND = ByHand(
    ("account byhand (below science)", "QOS byhand"),
    ("account students: GrpTRESMins=cpu=1000, MaxTRESPerJob=gres/gpu=2",),
)


def found(variables: dict[str, Any] = VARIABLES, qos: str = SAMPLE["qos"]) -> ByHand:
    return compare(declared(variables), parse(SAMPLE["accounts"], qos))


@pytest.mark.proves("jobs", "What was made by hand in Slurm is found by comparison with the inventory.")
def test_compare__with_the_inventory__finds_what_was_made_by_hand() -> None:
    assert found() == BY_HAND


def changed(entry: int, **options: Any) -> dict[str, Any]:
    """Return the inventory with other options of an account."""
    variables = deepcopy(VARIABLES)
    variables["slurm_head_accounts"][entry] |= options
    return variables


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        (changed(1, options={"GrpTRES": {"gres/gpu": 64}, "Fairshare": 60}), "science: GrpTRES=gres/gpu=12, inventory"),
        (changed(1, options={"GrpTRES": {"gres/gpu": 12}, "Fairshare": 6}), "Fairshare=60, inventory Fairshare=6"),
        (
            changed(1, options={"Fairshare": 60, "GrpTRES": {"gres/gpu": 12}, "MaxJobs": 3}),
            "no MaxJobs, inventory MaxJ",
        ),
        (changed(2, parent="students"), "account vision: parent science, inventory students"),
    ],
)
def test_compare__with_another_value__shows_both(variables: dict[str, Any], text: str) -> None:
    (difference,) = found(variables).changed
    assert text in difference


def test_compare__with_an_account_that_is_not_in_slurm__shows_it() -> None:
    assert found(changed(4, name="pupils")).missing == ("account pupils",)


def test_compare__of_an_empty_inventory__spares_the_products_own() -> None:
    objects = found({}).objects
    assert "account science (below root)" in objects
    assert "user alice in vision" in objects
    assert not {"account root", "account cluster (below root)", "QOS normal"} & {*objects}
    assert not any(one.startswith(("user root ", "user clusterverify ")) for one in objects)


def test_compare__of_a_flag_set_by_hand__shows_it() -> None:
    qos = SAMPLE["qos"].replace("urgent|DenyOnLimit", "urgent|DenyOnLimit,NoReserve")
    assert found(qos=qos).options[-1] == "QOS urgent: Flags=NoReserve"
    without = found(VARIABLES | {"slurm_head_deny_on_limit": False}).options
    assert "QOS normal: Flags=DenyOnLimit" in without


def test_compare__of_names_with_escapes__removes_them() -> None:
    qos = f"{SAMPLE['qos']}\x1b[2Jevil\u202e|a\x1b\n"
    assert found(qos=qos).objects[-1] == "QOS [2Jevil"
