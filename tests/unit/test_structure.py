"""The structure of the program: imports go one way, and modules and functions stay small enough to read."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.labs import REPOSITORY

PACKAGE = REPOSITORY / "clusterctl"
# Each may import from those after it. The lab is a second command line beside the first.
ORDER = ("cli", "commands", "run", "ui", "slurm", "kubernetes", "nodes", "ansible", "workspace", "inventory", "util")
TOP = {"cli", "lab"}
MODULE_LINES, FUNCTION_LINES = 400, 60


def modules() -> Iterator[Path]:
    yield from sorted(path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE)


def package_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0]


def imported(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the packages of clusterctl that a module imports from, wherever it does so, and the lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        yield from ((name.split(".")[1], node.lineno) for name in names if name.startswith("clusterctl."))


def rank(package: str) -> int:
    return 0 if package in TOP else ORDER.index(package)


@pytest.mark.proves("code", "Imports of the program's packages go one way.")
def test_imports__of_all_modules__go_one_way() -> None:
    wrong = [
        f"{path.relative_to(REPOSITORY)}:{line} imports {package}"
        for path in modules()
        for package, line in imported(ast.parse(path.read_text(encoding="utf-8")))
        if package in {*ORDER, *TOP} and rank(package) < rank(package_of(path))
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "line", ["from clusterctl.cli import app", "import clusterctl.run.lock", "from clusterctl import ui"]
)
def test_imports__of_each_form__are_seen(line: str) -> None:
    ((package, _),) = imported(ast.parse(f"def f():\n    {line}\n"))
    assert rank(package) < rank("util")


def test_packages__of_the_program__have_a_place() -> None:
    assert {package_of(path) for path in modules()} == {*ORDER, *TOP}


@pytest.mark.proves("code", "No module exceeds 400 lines, no function 60.")
def test_sizes__of_modules_and_functions__are_limited() -> None:
    long, functions = {}, {}
    for path in modules():
        name, text = str(path.relative_to(PACKAGE)), path.read_text(encoding="utf-8")
        if len(text.splitlines()) > MODULE_LINES:
            long[name] = len(text.splitlines())
        for node in ast.walk(ast.parse(text)):
            if (
                isinstance(node, ast.FunctionDef)
                and (lines := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION_LINES
            ):
                functions[f"{name}:{node.name}"] = lines
    assert long == {}
    assert functions == {}
