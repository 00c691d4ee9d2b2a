"""Modules as they are sent to a node: the program runs here."""

import ast
import base64
import datetime
import json
import re
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils import basic

from clusterctl.ansible import light_basic, light_module
from tests.labs import REPOSITORY

OWN = {"_ansible_check_mode": True, "_ansible_diff": True, "_ansible_verbosity": 1, "_ansible_no_log": False}


def directory(path: Path) -> dict[str, Any]:
    return {"name": str(path), "owner": "root", "group": "root", "mode": "0755"}


def sent(*calls: dict[str, Any], cwd: Path | None = None, **own: Any) -> subprocess.CompletedProcess[str]:
    """Run the program as a node does, which gets it as standard input in the home of the login."""
    given = {"calls": list(calls), "record_key": "d0-not-sh0w"}
    text = light_module.program("node_state", "#!/usr/bin/python3", {**given, **OWN, **own})
    return subprocess.run(
        [sys.executable], input=text.decode(), capture_output=True, text=True, check=False, timeout=60, cwd=cwd
    )


def present(name: str, **items: Any) -> dict[str, Any]:
    kinds = ("repositories", "packages", "directories", "files", "sysctl", "units")
    flags = {"download_only": False, "upgrade": False, "union": False, "package_manager": "auto"}
    return {"state": "present", "name": name, **flags, **{kind: items.get(kind, []) for kind in kinds}}


@pytest.mark.proves("node_state", "node_state runs on a node without Ansible's own module code.")
def test_program__of_two_calls__makes_them(tmp_path: Path) -> None:
    calls = [present(name, directories=[directory(tmp_path / name)]) for name in ("a", "b")]
    done = sent(*calls)
    printed = json.loads(done.stdout)
    assert done.stderr == ""
    assert [one["changes"][0]["name"] for one in printed["results"]] == [str(tmp_path / "a"), str(tmp_path / "b")]
    assert printed["changed"]
    assert list(tmp_path.iterdir()) == [], "check mode"


def test_program__whose_call_fails__says_it_as_ansible_expects(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = sent(present("a", directories=[directory(tmp_path / "file")]))
    printed = json.loads(done.stdout)
    assert printed["failed"]
    assert str(tmp_path / "file") in printed["msg"]
    assert "d0-not-sh0w" not in done.stdout


def test_program__with_a_mistake_in_it__says_where() -> None:
    done = sent({"state": "present", "name": "a"})
    printed = json.loads(done.stdout)
    assert printed["failed"]
    assert "KeyError" in printed["msg"]


def test_program__whose_arguments_are_unusable__says_where() -> None:
    done = sent({"state": "present", "name": "a"}, _ansible_verbosity=["no number"])
    printed = json.loads(done.stdout)
    assert (done.returncode, printed["failed"]) == (1, True)
    assert "node_state" in printed["exception"]


@pytest.mark.proves("untrusted", "Root imports no Python file of the login's home directory.")
def test_program__in_a_home_with_python_files__imports_none(tmp_path: Path) -> None:
    for name in ("base64", "json", "shlex", "zlib", "syslog"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported')")
    done = sent({"state": "probe", "package_manager": "auto"}, cwd=tmp_path)
    assert "imported" not in done.stderr
    assert "results" in json.loads(done.stdout)


@pytest.mark.parametrize("name", sorted(light_module.names()))
def test_program__has_no_code_of_ansible(name: str) -> None:
    """Only that makes it faster; a module that imports more of Ansible would fail on the node."""
    texts = json.loads(zlib.decompress(base64.b64decode(light_module.sources(name))))
    wanted = set[str]()
    for text in texts.values():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                wanted |= {alias.name for alias in node.names if alias.name.startswith("ansible")}
            elif isinstance(node, ast.ImportFrom) and str(node.module).startswith("ansible"):
                package = node.module == "ansible.module_utils"
                wanted |= {f"{node.module}.{alias.name}" for alias in node.names} if package else {str(node.module)}
    assert wanted == set(texts) - {name}


@pytest.mark.parametrize("name", sorted(light_module.names()))
def test_module__uses_only_what_light_basic_has(name: str) -> None:
    tree = ast.parse((REPOSITORY / f"plugins/modules/{name}.py").read_text())
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "module"
    }
    used &= {*dir(basic.AnsibleModule), "params", "no_log_values", "_diff", "_verbosity", "check_mode", "tmpdir"}
    assert used <= {"params", "check_mode", "exit_json", "fail_json", "no_log_values", "_diff", "_verbosity"}
    created = [
        node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "AnsibleModule"
    ]
    names = {str(keyword.arg) for node in created for keyword in node.keywords}
    assert len(created) == 1
    assert names <= {"argument_spec", "supports_check_mode", "required_if"}


def test_light_basic__runs_with_an_old_python() -> None:
    text = Path(light_basic.__file__).read_text(encoding="utf-8")
    ast.parse(text, feature_version=(3, 8))
    assert "from __future__ import annotations" in text
    assert [line for line in text.splitlines() if line.startswith(("import ", "from "))] == [
        "from __future__ import annotations",
        "import json",
        "import os",
        "import re",
        "import sys",
        "import syslog",
        "from collections.abc import Collection, Iterator, Mapping, Sequence",
        "from typing import Any, NoReturn",
    ]


SPEC: dict[str, dict[str, Any]] = {
    "name": {"type": "str", "required": True},
    "number": {"type": "int", "default": 7},
    "flag": {"type": "bool", "default": False},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "words": {"type": "list", "elements": "str", "default": []},
    "users": {"type": "list", "elements": "dict", "options": {"uid": {"type": "int", "required": True}}},
    "login": {"type": "dict", "no_log": True},
}


def test_checked__gives_defaults_and_numbers() -> None:
    secrets = set[str]()
    found = light_basic.checked(
        SPEC, {"name": 5, "users": [{"uid": "12"}], "login": {"a": ["se", {"b": "cret"}]}}, secrets
    )
    assert found == {
        "name": "5",
        "number": 7,
        "flag": False,
        "state": "present",
        "words": [],
        "users": [{"uid": 12}],
        "login": {"a": ["se", {"b": "cret"}]},
    }
    assert secrets == {"se", "cret"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "missing required arguments: name"),
        ({"name": None}, "missing required arguments: name"),
        ({"name": "a", "nmae": "b"}, "unsupported arguments: nmae"),
        ({"name": ["a"]}, "argument name is list, expected str"),
        ({"name": True}, "argument name is bool, expected str"),
        ({"name": "a", "number": "7a"}, "argument number is str, expected int"),
        ({"name": "a", "number": "--7"}, "argument number is str, expected int"),
        ({"name": "a", "number": True}, "argument number is bool, expected int"),
        ({"name": "a", "flag": "false"}, "argument flag is str, expected bool"),
        ({"name": "a", "state": "gone"}, "argument state is gone, expected one of present, absent"),
        ({"name": "a", "words": ["b", []]}, "argument words is list, expected str"),
        ({"name": "a", "users": [{}]}, "missing required arguments: uid"),
        ({"name": "a", "users": {}}, "argument users is dict, expected list"),
    ],
)
def test_checked__of_wrong_arguments__says_which(given: dict[str, Any], said: str) -> None:
    with pytest.raises(light_basic.ArgumentError, match=re.escape(said)):
        light_basic.checked(SPEC, given, set())


def test_checked__of_a_path__has_the_home_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/root")
    assert light_basic.checked({"path": {"type": "path"}}, {"path": "~/a"}, set()) == {"path": "/root/a"}


def test_checked__of_a_secret_in_a_wrong_place__knows_it_before_it_complains() -> None:
    secrets = set[str]()
    with pytest.raises(light_basic.ArgumentError):
        light_basic.checked(SPEC, {"name": "a", "state": "se-cret", "login": {"a": "se-cret"}}, secrets)
    assert secrets == {"se-cret"}


def test_program__with_a_date__sends_it_as_text() -> None:
    status, found = run_light("kubernetes_objects", calls=[{"a": datetime.date(2026, 1, 2)}], number="x")
    assert (status, found["failed"]) == (1, True)
    with pytest.raises(TypeError, match="set cannot be sent"):
        run_light("kubernetes_objects", calls=[{"a": {1}}])


def test_without__hides_the_longer_secret_whole() -> None:
    result = {"a": ["x-secret-long", {"b": 3}], "c": ("secret",)}
    hidden = light_basic.HIDDEN
    assert light_basic.without(result, {"secret", "secret-long"}) == {"a": [f"x-{hidden}", {"b": 3}], "c": [hidden]}


def run_light(module: str, **arguments: Any) -> tuple[int, dict[str, Any]]:
    """Run a module as a node does; return its exit status and what it reports."""
    own = {**OWN, "_ansible_check_mode": False, "_ansible_module_name": module}
    text = light_module.program(module, "#!/usr/bin/python3", {**arguments, **own})
    done = subprocess.run(
        [sys.executable], input=text.decode(), capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


def test_program__of_another_module__fails_without_a_secret_in_its_message(tmp_path: Path) -> None:
    given = {"url": "http://127.0.0.1:1", "user": "a", "password": "d0-not-sh0w"}
    status, found = run_light("prometheus_targets", **given, authority=str(tmp_path / "d0-not-sh0w"))
    assert (status, found["failed"]) == (1, True)
    assert light_basic.HIDDEN in found["msg"]
    assert "d0-not-sh0w" not in json.dumps(found)


def test_program__without_a_required_argument__says_which() -> None:
    status, found = run_light("munge_key", step="schedule", key="d0-not-sh0w")
    assert (status, found["msg"]) == (1, "missing required arguments: at")


def test_program__that_does_nothing_in_check_mode__is_skipped() -> None:
    text = light_module.program(
        "slurm_job_proof", "#!/usr/bin/python3", {"user": "a", "nodes": {}, "script": "b", **OWN}
    )
    done = subprocess.run([sys.executable], input=text.decode(), capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(done.stdout)["skipped"]
