"""scripts/new-role: a role that the tests of all roles accept."""

import shutil
from pathlib import Path

import pytest
import yaml

from clusterctl.inventory import schema, services
from clusterctl.util import paths
from tests import new_role


@pytest.fixture
def content(tmp_path: Path) -> Path:
    shutil.copytree(paths.content() / "playbooks", tmp_path / "playbooks")
    shutil.copytree(paths.content() / "roles", tmp_path / "roles")
    return tmp_path


@pytest.mark.proves("code", "A new role is a known group, with variables and services of its files.")
def test_make__a_role__is_known_by_its_play_and_files(content: Path) -> None:
    made = new_role.make("newrole", content)
    outside = [path for path in made if "newrole" not in path.parts]
    assert outside == [content / "playbooks/bootstrap.yml"]
    known = schema.load(content)
    assert known.groups["newrole"] == ("newrole",)
    assert known.variables["newrole_version"].role == "newrole"
    assert "newrole" in known.optional
    assert [one.names for one in services.load_all(content)["newrole"]] == [("newrole",)]
    for path in made:
        assert yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["", "Tuned", "../x", "2fast", "a b", "x", "munge"])
def test_make__name_that_cannot_be_one__is_refused_and_nothing_made(content: Path, name: str) -> None:
    before = {path: path.read_bytes() for path in content.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=r"expected a name such as tuned|exists already"):
        new_role.make(name, content)
    assert {path: path.read_bytes() for path in content.rglob("*") if path.is_file()} == before
