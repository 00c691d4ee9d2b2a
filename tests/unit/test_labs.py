"""Which labs of this checkout no process uses any more."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from clusterctl.lab import cli, lab
from tests import golden, labs
from tests.programs import started

USE = "import sys; from tests import labs; labs.lab_name(sys.argv[1]); print(flush=True); sys.stdin.read()"


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(labs, "_marks", {})


@pytest.mark.proves("lab", "`lab list` lists the labs; for an unknown name the error lists them, too.")
def test_list__of_two_labs__names_them_and_so_does_a_wrong_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*argv: str) -> Result:
        return CliRunner().invoke(cli.app, argv)

    monkeypatch.setattr(lab, "container_state", lambda name: "running" if name.endswith("gpu01") else "")
    assert run("list").output == "There is no lab. Create one: clusterctl lab up\n"
    for name, workers in (("two", 1), ("one", 3)):
        folder = labs.state_directory() / name / ".lab"
        folder.mkdir(parents=True)
        (folder / "lab.json").write_text(json.dumps({"name": name, "workers": workers, "subnet": "10.213.9.0/24"}))
    assert lab.names() == ["one", "two"]
    assert [line.split()[:6] for line in run("list").output.splitlines()] == [
        ["one", "1", "of", "4", "nodes", "run"],
        ["two", "1", "of", "2", "nodes", "run"],
    ]
    rows = json.loads(run("list", "--output", "json").output)
    assert [(row["name"], row["running"], row["nodes"]) for row in rows] == [("one", 1, 4), ("two", 1, 2)]
    for argv in (("status",), ("ssh", "gpu01"), ("fault", "gpu01", "gpu-lost")):
        error = run(*argv, "--name", "three").exception
        assert str(error) == (
            "there is no lab named three; create it: clusterctl lab up --name three (existing labs: one, two)"
        )


def make(directory: Path, *purposes: str) -> None:
    for purpose in purposes:
        (directory / f"{labs.PREFIX}{purpose}").mkdir(parents=True)


def test_abandoned__labs_and_snapshots__are_those_that_no_process_uses() -> None:
    make(labs.state_directory(), "used", "left", labs.WARM)
    make(labs.snapshots_directory(), "used", "gold-gw3", labs.WARM)
    (labs.state_directory() / "t000000-of-another-checkout").mkdir()
    assert labs.lab_name("used") == f"{labs.PREFIX}used"
    assert set(labs.abandoned()) == {"gold-gw3", "left"}


def test_abandoned__process_is_killed__its_lab_is_found() -> None:
    make(labs.state_directory(), "killed")
    argv = [sys.executable, "-c", USE, "killed"]
    with started(argv, cwd=labs.REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        assert list(labs.abandoned()) == []
        process.kill()
        process.wait()
    assert list(labs.abandoned()) == ["killed"]


def test_remove_abandoned__each_lab__is_removed_unless_it_is_to_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def remove(lab: golden.Golden) -> None:
        if lab.lab.name.endswith("stuck"):
            raise AssertionError("exit 1")
        (labs.state_directory() / lab.lab.name).rmdir()

    monkeypatch.setattr(golden.Golden, "remove", remove)
    monkeypatch.setenv(golden.KEEP, "1")
    make(labs.state_directory(), "gold-gw2", "left", "stuck")
    assert list(golden.remove_abandoned()) == [
        f"{labs.PREFIX}left",
        f"{labs.PREFIX}stuck is still there: exit 1",
    ]
    monkeypatch.delenv(golden.KEEP)
    assert list(golden.remove_abandoned()) == [
        f"{labs.PREFIX}gold-gw2",
        f"{labs.PREFIX}stuck is still there: exit 1",  # this process tries again, as at its end
    ]


def test_restore__ctrl_c__keeps_the_snapshot_and_says_that_the_lab_is_disturbed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(_: golden.Golden) -> None:
        raise KeyboardInterrupt

    removed: list[str] = []
    monkeypatch.setattr(golden.Golden, "_remove_nodes", interrupt)
    monkeypatch.setattr(golden.Golden, "remove", lambda lab: removed.append(lab.lab.name))
    lab = golden.Golden(labs.WARM, workers=1)
    lab.folder.mkdir(parents=True)
    (lab.folder / "snapshot.json").write_text("{}")
    assert not lab.disturbed()
    with pytest.raises(KeyboardInterrupt):
        lab.restore()
    assert (lab.exists(), lab.disturbed(), removed) == (True, True, [])
