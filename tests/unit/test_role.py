"""The inner loop's choice of tests; what it runs in a lab is molecule's."""

from pathlib import Path

import pytest

from tests import role


def test_unit_tests__of_a_role__are_its_own_and_those_of_all_roles() -> None:
    argv = role.unit_tests("gpu_health")
    assert any(word.endswith("tests/unit/test_gpu_health.py") for word in argv)
    assert any(word.endswith("tests/unit/test_roles.py") for word in argv)
    assert {"gpu_health", "test_gpu_health"} <= set(argv[argv.index("-k") + 1].split(" or "))


def test_unit_tests__of_a_role_that_others_have_as_an_example__leave_those_out() -> None:
    argv = role.unit_tests("munge")
    assert [Path(word).name for word in argv if word.endswith(".py")] == ["test_roles.py"]


def test_role__unknown_name__is_refused_with_the_names(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        role.role(["mung"])
    assert "mung: no such scenario; choose from" in capsys.readouterr().err
