"""The clusters that users are most likely to have: every role, package name, pin and command line."""

import re
from datetime import date
from pathlib import Path

import pytest

from tests.systems.clusters import HERE, NAMES, calls, command_lines, described, documented, opened, turns, unknown
from tests.systems.rendering import CONTENT, File, load, roles_of
from tests.systems.test_files import CHECKS, checks_of, have

COMPARED = {"table", "run", "read", "own", "unknown"}


def scheduler_of(name: str) -> str:
    return str(described(name).get("scheduler", "slurm"))


def test_clusters__with_nvidias_repository__are_five() -> None:
    assert {name: (described(name)["system"], scheduler_of(name)) for name in NAMES} == {
        "debian-l40s": ("debian-13", "slurm"),
        "rocky-a100-kubernetes": ("rocky-9", "kubernetes"),
        "rocky-v100": ("rocky-9", "slurm"),
        "ubuntu-a100-kubernetes": ("ubuntu-24.04", "kubernetes"),
        "ubuntu-h100": ("ubuntu-24.04", "slurm"),
    }


@pytest.mark.proves("systems", "Five likely clusters, of H100, V100, L40S and A100: every role comes out whole.")
@pytest.mark.parametrize("name", NAMES)
def test_roles__of_a_cluster__come_out_whole(name: str) -> None:
    with opened(name) as cluster:
        for host in cluster.hosts:
            for path in roles_of(scheduler_of(name)):
                role = cluster.role(path.name, host)
                for _, call in role.calls():
                    written = [role.content(item) or b"" for item in call.get("files", []) if "copy" not in item]
                    # Grafana fills in the labels of a series itself.
                    written = [re.sub(rb'"legendFormat": ".*"', b"", text) for text in written]
                    assert not [text for text in written if b"{{" in text or b"Undefined" in text]
        driver = cluster.role("nvidia_driver", "gpu01")
        assert driver.value("__nvidia_driver_problems") == []


@pytest.mark.proves("systems", "Five likely clusters: each file passes its own program.")
@pytest.mark.parametrize("name", NAMES)
def test_files__of_a_cluster__pass_their_own_program(name: str, tmp_path: Path) -> None:
    written: dict[tuple[str, str], list[File]] = {}
    with opened(name) as cluster:
        for host, role in turns(cluster):
            for item in (item for call in calls(role) for item in call.get("files", [])):
                text = role.content(item)
                for pattern in checks_of(item["dest"]) if text is not None else ():
                    written.setdefault((host, pattern), []).append(File(host, role.name, item["dest"], text or b""))
    assert {pattern for _, pattern in written} >= {"/etc/ssh/sshd_config[.]d/", "/etc/systemd/system/"}
    for number, ((_, pattern), found) in enumerate(written.items()):
        have(pattern)
        root = tmp_path / str(number)
        root.mkdir()
        CHECKS[pattern](root, found)


@pytest.mark.proves("packages", "Five likely clusters: no package or pin is wrong, what no source shows is listed.")
@pytest.mark.parametrize("name", NAMES)
def test_packages__of_a_cluster__are_known_or_listed(name: str) -> None:
    with opened(name) as cluster:
        wrong, found = unknown(name, cluster)
    assert wrong == []
    assert found == described(name)["unknown"]


@pytest.mark.proves("systems", "Five likely clusters: every command line of a bootstrap has its source.")
@pytest.mark.parametrize("name", NAMES)
def test_commands__of_a_bootstrap__are_listed_with_their_source(name: str) -> None:
    with opened(name) as cluster:
        found = command_lines(cluster)
    assert len(found) > 100
    listed = documented(name)
    hint = f"python -m tests.systems.clusters {name} lists them: look each up and add it with its source"
    assert {line: roles for line, roles in found.items() if line not in listed} == {}, hint
    assert [line for line in listed if line not in found] == [], "no longer run"


@pytest.mark.parametrize("name", NAMES)
def test_commands__of_the_list__have_one_source_each(name: str) -> None:
    entries = load(HERE / name / "commands.yaml")
    lines = [line for entry in entries for line in entry["lines"]]
    assert len(lines) == len(set(lines))
    for entry in entries:
        source = str(entry["source"])
        assert entry["compared"] in COMPARED, source
        assert (entry["compared"] == "read") is isinstance(entry.get("read"), date), source
        assert entry["compared"] != "unknown" or entry["note"], source
        assert (entry["compared"] == "own") is not source.startswith("https://")
        assert source.startswith("https://") or (CONTENT / source).is_file(), source


def test_turns__of_a_worker__are_bootstraps(tmp_path: Path) -> None:
    with opened("ubuntu-h100") as cluster:
        roles = [role.name for host, role in turns(cluster) if host == "gpu01"]
    assert roles.index("nvidia_driver") < roles.index("slurm_worker")
    assert {"dcgm_exporter", "verify"} < set(roles)
    assert "slurm_head" not in roles
