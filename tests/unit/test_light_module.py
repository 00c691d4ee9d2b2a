"""node_state as it is sent to a node: the program runs here, beside Ansible's own way of sending it."""

import base64
import json
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

from clusterctl.ansible import light_module

OWN = {"_ansible_check_mode": True, "_ansible_diff": True, "_ansible_verbosity": 1, "_ansible_no_log": False}


def directory(path: Path) -> dict[str, Any]:
    return {"name": str(path), "owner": "root", "group": "root", "mode": "0755"}


def sent(*calls: dict[str, Any], cwd: Path | None = None, **own: Any) -> subprocess.CompletedProcess[str]:
    """Run the program as a node does, which gets it as standard input in the home of the login."""
    text = light_module.program("#!/usr/bin/python3", {"calls": list(calls), "record_key": "d0-not-sh0w", **OWN, **own})
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


def test_program__has_no_code_of_ansible() -> None:
    """Only that makes it faster; a module that imports more of Ansible would fail on the node."""
    texts = json.loads(zlib.decompress(base64.b64decode(light_module.sources())))
    assert {name for name in texts if not name.startswith("ansible.module_utils.node_state.")} == {
        "ansible.module_utils.basic",
        "node_state",
    }
    wanted = {
        line.split()[1]
        for text in texts.values()
        for line in text.splitlines()
        if line.startswith(("from ansible", "import ansible"))
    }
    assert wanted <= set(texts)
