"""docs/proof.md says what the markers of the tests say, and markers that say too much are refused."""

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import date

import pytest

from tests import ledger, proof
from tests.labs import REPOSITORY

pytest_plugins = "pytester"

Rows = list[proof.Row]

SUITE = """
    import pytest

    @pytest.mark.proves("bootstrap", "An empty lab becomes a working cluster.")
    @pytest.mark.proves("status", "A healthy cluster shows no drift.")
    def test_one():
        pass

    @pytest.mark.long
    @pytest.mark.proves("bootstrap", "A second run changes nothing.")
    def test_slow():
        pass

    @pytest.mark.proves("gpu", "Each model is listed.")
    @pytest.mark.proves("gpu", "The small model has one GPU.", only=["small"])
    @pytest.mark.parametrize("model", ["small", pytest.param("large", marks=pytest.mark.long)])
    def test_model(model):
        pass

    class TestVerbs:
        @pytest.mark.proves("status", "It works in a class.")
        def test_method(self):
            pass

    def test_without_a_promise():
        pass
"""
DATES = {
    "test_suite.py::test_one": "2026-11-20",
    "test_suite.py::test_model[small]": "2026-11-21",
    "test_suite.py::test_model[large]": "2026-11-19",
}


def tier(item: pytest.Item) -> str:
    """Return the tier of a test of the example."""
    return "rotation" if item.get_closest_marker("long") else "ci"


def date_of(item: pytest.Item) -> str | None:
    return DATES.get(item.nodeid)


@pytest.fixture
def items(pytester: pytest.Pytester) -> Callable[[str], list[pytest.Item]]:
    """Collect the tests of a module, none of which is deselected."""

    def collect(source: str) -> list[pytest.Item]:
        path = pytester.makepyfile(test_suite=source)
        found, _ = pytester.inline_genitems(path)
        return found

    return collect


def marked(arguments: str) -> str:
    return f"import pytest\n@pytest.mark.proves({arguments})\n@pytest.mark.parametrize('x', [1])\ndef test_x(x): pass\n"


def test_rows__example__have_test_tier_and_oldest_date(items: Callable[[str], list[pytest.Item]]) -> None:
    found = proof.rows(items(SUITE), tier, date_of)
    assert found == [
        proof.Row(
            "bootstrap", "An empty lab becomes a working cluster.", "test_suite.py::test_one", "ci", "2026-11-20"
        ),
        proof.Row("bootstrap", "A second run changes nothing.", "test_suite.py::test_slow", "rotation", None),
        proof.Row("status", "A healthy cluster shows no drift.", "test_suite.py::test_one", "ci", "2026-11-20"),
        proof.Row("status", "It works in a class.", "test_suite.py::TestVerbs::test_method", "ci", None),
        proof.Row("gpu", "Each model is listed.", "test_suite.py::test_model", "ci, rotation", "2026-11-19"),
        proof.Row("gpu", "The small model has one GPU.", "test_suite.py::test_model", "ci", "2026-11-21"),
    ]


def test_rows__one_parameter_never_proven__has_no_date(items: Callable[[str], list[pytest.Item]]) -> None:
    def without_large(item: pytest.Item) -> str | None:
        return None if "large" in item.nodeid else date_of(item)

    (row,) = (row for row in proof.rows(items(SUITE), tier, without_large) if row.promise == "Each model is listed.")
    assert row.last is None


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ('"bootstrp", "It works."', r"unknown subject 'bootstrp' \(did you mean bootstrap\?\)"),
        (f'"status", "{"word " * 15}more."', "has at most 15 words, got 16"),
        ('"status", "no full stop"', "ends with a full stop"),
        ('"status", "One | two."', r"without \|"),
        ('"status"', "bad promise ''"),
        ('"status", "It works.", only=["2"]', "has no parameter 2, which is to prove: It works"),
        ('"status", "It works.", only="1"', "bad only='1'"),
        ('"status", "It works.")\n@pytest.mark.proves("status", "It works."', "the same marker twice"),
    ],
    ids=["subject", "length", "full stop", "bar", "no promise", "unknown parameter", "no list", "twice"],
)
def test_rows__bad_marker__is_refused_with_its_test(
    items: Callable[[str], list[pytest.Item]], arguments: str, problem: str
) -> None:
    with pytest.raises(proof.ProofError, match=rf"^test_suite\.py::test_x: .*{problem}"):
        proof.rows(items(marked(arguments)), tier, date_of)


def test_page__example__has_a_line_for_each_row(items: Callable[[str], list[pytest.Item]]) -> None:
    found = proof.rows(items(SUITE), tier, date_of)
    lines = proof.page(found).splitlines()
    assert "| Each model is listed. | `test_suite.py::test_model` | `ci, rotation` | 2026-11-19 |" in lines
    assert "| A second run changes nothing. | `test_suite.py::test_slow` | `rotation` | never |" in lines
    assert len([line for line in lines if "`test_suite.py::" in line]) == len(found)
    assert next(line for line in lines if line.startswith("## ")) == f"## {proof.SUBJECTS['bootstrap']}"


def test_page__dates__are_all_that_undated_removes(items: Callable[[str], list[pytest.Item]]) -> None:
    found = items(SUITE)
    pages = [proof.page(proof.rows(found, tier, dates)) for dates in (date_of, lambda item: None)]
    assert pages[0] != pages[1]
    assert proof.undated(pages[0]) == proof.undated(pages[1])
    other = proof.page(proof.rows(found, lambda item: "ci", date_of))
    assert proof.undated(other) != proof.undated(pages[0])


def test_hardware__each_line__is_a_short_promise_of_a_known_subject() -> None:
    assert {subject for subject, _, _ in proof.BEYOND} <= proof.SUBJECTS.keys()
    assert [proof.problem(subject, promise) for subject, promise, _ in proof.BEYOND] == [""] * len(proof.BEYOND)
    assert all(need and "|" not in need for _, _, need in proof.BEYOND)


def test_tier_and_date__of_the_suite__come_from_layers_and_ledger(pytester: pytest.Pytester) -> None:
    """Of a test file of a layer, by its path alone."""
    path = pytester.mkpydir("tests").joinpath("cluster", "test_bootstrap.py")
    path.parent.mkdir()
    path.write_text("import pytest\ndef test_a(): pass\n@pytest.mark.long\ndef test_b(): pass\n")
    found, _ = pytester.inline_genitems(path)
    assert [item.nodeid.partition("::")[0] for item in found] == ["tests/cluster/test_bootstrap.py"] * 2
    assert [proof.tier_of(item) for item in found] == ["ci", "rotation"]
    expected = [ledger.last_proven(item.nodeid, long) for item, long in zip(found, (False, True), strict=True)]
    assert [proof.last_proven()(item) for item in found] == expected


# --- the suite itself -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def suite() -> Rows:
    """The rows of all tests, collected by the generator in a process of its own."""
    pytest.importorskip("xdist", reason="without xdist the tests of clusters cannot be collected")
    argv = [sys.executable, "-m", "tests.proof", "--json"]
    done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    return [proof.Row(**row) for row in json.loads(done.stdout)]


def test_page__markers_of_the_suite__is_current(suite: Rows) -> None:
    assert suite
    there = proof.undated(proof.PAGE.read_text(encoding="utf-8"))
    assert there == proof.undated(proof.page(suite, ledger.load())), "run python -m tests.proof"


def test_rows__of_the_suite__are_short_and_of_known_subjects(suite: Rows) -> None:
    assert [row for row in suite if len(row.promise.split()) > 15] == []
    assert {row.subject for row in suite} <= proof.SUBJECTS.keys()
    assert {row.tier for row in suite} <= {"ci", "rotation", "ci, rotation"}
    for day in (row.last for row in suite if row.last is not None):
        date.fromisoformat(day)


def test_rows__of_the_suite__name_files_that_exist(suite: Rows) -> None:
    assert [row.test for row in suite if not (REPOSITORY / row.test.partition("::")[0]).is_file()] == []


def test_page__minutes_of_units__are_no_part_of_the_comparison() -> None:
    entries = {
        "tests/unit": ledger.Entry("c1", "2026-01-02", 4.0),
        "tests/cluster/test_backup.py": ledger.Entry("c1", "2026-01-02", 9.0),
        "tests/faults/test_canary.py::test_x[a]": ledger.Entry("c1", "2026-01-02", 1.0, skipped=True),
        "tests/cluster/test_removed.py": ledger.Entry("c1", "2026-01-02", 2.0),
    }
    text = proof.page([], entries)
    assert text.splitlines()[-3:] == [
        "| `tests/cluster/test_backup.py` | day2 | 9.0 | 2026-01-02 |",
        "| `tests/unit` | unit | 4.0 | 2026-01-02 |",
        "| `tests/faults/test_canary.py::test_x[a]` | contract | 1.0 | skipped |",
    ]
    assert proof.undated(text) == proof.undated(proof.page([]))
