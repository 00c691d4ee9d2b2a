"""What roles read about a node's system: as Ansible finds it, and no more."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from ansible.module_utils.node_state.record import record_path

from clusterctl.run.preflight import SUPPORTED
from clusterctl.util.paths import content
from tests.labs import REPOSITORY
from tests.systems import rendering

from .test_role_plugins import plugin

MODULE = plugin("modules/system_facts")
SAMPLES = yaml.safe_load((REPOSITORY / "tests/samples/systems.yaml").read_text(encoding="utf-8"))
SET_BY_OTHERS = {"getent_group", "getent_passwd", "kubernetes_objects_waiting"}
TESTING = 'PRETTY_NAME="Debian GNU/Linux forky/sid"\nNAME="Debian GNU/Linux"\nVERSION_CODENAME=forky\nID=debian\n'


def read(root: Path, release: str, debian: str = "") -> dict[str, str]:
    """Return the facts of a system with this os-release and debian_version."""
    (root / "etc").mkdir()
    (root / "etc/os-release").write_text(release)
    if debian:
        (root / "etc/debian_version").write_text(debian)
    found: dict[str, str] = MODULE.distribution(root)
    return found


@pytest.mark.proves("bootstrap", "A node's system has the names that Ansible gives it.")
@pytest.mark.parametrize("sample", SAMPLES, ids=[one["source"] for one in SAMPLES])
def test_distribution__of_a_real_system__is_named_as_by_ansible(tmp_path: Path, sample: dict[str, Any]) -> None:
    found = read(tmp_path, sample["release"])
    if system := rendering.SYSTEMS.get(sample.get("like", "")):
        names = (found["os_family"], found["distribution"], found["distribution_major_version"])
        assert names == (system.family, system.distribution, system.major)
        assert found["distribution_version"] == system.version
        assert found["distribution_release"] == system.codename
    else:
        assert found.items() >= sample["facts"].items()


def test_distribution__debian_without_a_number__has_the_name_of_its_version(tmp_path: Path) -> None:
    found = read(tmp_path, TESTING, "forky/sid\n")
    wanted = rendering.TESTING
    assert found["distribution_version"] == found["distribution_major_version"] == wanted.version
    assert found["distribution_release"] == wanted.codename


def test_distribution__of_each_supported_system__is_known() -> None:
    assert MODULE.DISTRIBUTIONS.keys() == SUPPORTED.keys()


@pytest.mark.proves("bootstrap", "The facts of a node name the roles that were applied to it.")
def test_roles__with_the_record_of_role_base__have_it(tmp_path: Path) -> None:
    assert MODULE.roles(tmp_path) == []
    path = tmp_path / str(record_path("base")).lstrip("/")
    path.parent.mkdir(parents=True)
    path.touch()
    assert MODULE.roles(tmp_path) == ["base"]


def test_distribution__another_system__is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="system 'arch' is not supported; expected one of almalinux, "):
        read(tmp_path, "ID=arch\n")


def test_facts__that_roles_read__are_all_there() -> None:
    files = [path for part in ("roles", "playbooks") for path in (content() / part).rglob("*") if path.suffix in _READ]
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    read_by_roles = {*re.findall(r"ansible_facts(?:\.|\[['\"])(\w+)", text)}
    assert "os_family" in read_by_roles
    assert read_by_roles - SET_BY_OTHERS <= MODULE.facts().keys() | {"virtualization_role"}
    assert {*re.findall(r"ansible_facts\['env'\]\['(\w+)'\]", text)} == {"SUDO_USER"}


_READ = (".yml", ".yaml", ".j2")


@pytest.mark.parametrize(
    ("files", "flags", "status"),
    [
        (("enforce", "config"), 0, "enabled"),
        (("enforce", "config"), os.ST_RDONLY, "disabled"),  # as a container sees it
        (("config",), 0, "disabled"),
        (("enforce",), 0, "disabled"),
        ((), 0, "disabled"),
    ],
)
def test_selinux__its_file_system_and_setup__are_there_where_it_is_enabled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: tuple[str, ...], flags: int, status: str
) -> None:
    for name in files:
        (tmp_path / name).touch()
    monkeypatch.setattr(MODULE.os, "statvfs", lambda path: SimpleNamespace(f_flag=flags))
    assert MODULE.selinux(str(tmp_path), str(tmp_path / "config")) == {"status": status}


def test_virtualization__program_that_hangs__is_no_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    def hangs(argv: list[str], **_: object) -> None:
        raise subprocess.TimeoutExpired(argv, 30)

    monkeypatch.setattr(MODULE.shutil, "which", lambda name: "/usr/bin/systemd-detect-virt")
    monkeypatch.setattr(MODULE.subprocess, "run", hangs)
    assert MODULE.virtualization_role() == {}


def test_distribution__a_line_that_is_wrong__is_passed_over(tmp_path: Path) -> None:
    found = read(tmp_path, "PRETTY_NAME=\"Debian's\nID='debian'\nVERSION_ID=13\n")
    assert (found["distribution"], found["distribution_version"]) == ("Debian", "13")


@pytest.mark.parametrize(
    ("prints", "found"),
    [("none", {"virtualization_role": "NA"}), ("kvm", {"virtualization_role": "guest"}), ("", {}), (None, {})],
)
def test_virtualization__as_systemd_finds_it__is_ansibles_role(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prints: str | None, found: dict[str, str]
) -> None:
    """On bare metal the program prints `none` and fails: systemd-detect-virt(1)."""
    if prints is not None:
        (tmp_path / "systemd-detect-virt").write_text(f"#!/bin/sh\necho {prints}\n[ {prints or 'none'} != none ]\n")
        (tmp_path / "systemd-detect-virt").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert MODULE.virtualization_role() == found


def test_gather_facts__in_a_play__reads_these_with_ansibles_values(tmp_path: Path) -> None:
    """By real Ansible, on this machine; its own module, asked for by name, finds the same."""
    task = {"name": "Ask Ansible", "ansible.builtin.setup": {"gather_subset": ["min", "virtual"]}, "register": "own"}
    show = {"name": "Show", "ansible.builtin.copy": {"dest": str(tmp_path / "found"), "content": SHOWN}}
    play = {
        "hosts": "all",
        "gather_facts": True,
        "tags": "facts",
        "tasks": [{"set_fact": {"ours": "{{ ansible_facts }}"}}, task, show],
    }
    (tmp_path / "play.yml").write_text(yaml.safe_dump([play]))
    (tmp_path / "hosts.yaml").write_text("all: {hosts: {here: {ansible_connection: local}}}")
    program = Path(sys.executable).with_name("ansible-playbook")
    environment = {**os.environ, "ANSIBLE_CONFIG": str(content() / "ansible.cfg"), "ANSIBLE_HOME": str(tmp_path)}
    environment |= {"PYTHONPATH": str(REPOSITORY), "SUDO_USER": "jim"}
    argv = [str(program), "-i", str(tmp_path / "hosts.yaml"), str(tmp_path / "play.yml")]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "found").read_text())
    assert found["ours"].pop("env") == {"SUDO_USER": "jim"}
    assert found["ours"].pop("clusterctl_roles") == []
    for name in ("selinux", "apparmor"):
        assert found["ours"].pop(name)["status"] == found["own"][f"ansible_{name}"]["status"]
    # Of Debian, Ansible finds the point release as well.
    version = found["ours"].pop("distribution_version")
    assert found["own"]["ansible_distribution_version"].split(".")[0] == version
    assert found["ours"].keys() >= {"distribution", "os_family", "architecture"}
    assert found["ours"] == {name: found["own"][f"ansible_{name}"] for name in found["ours"]}


SHOWN = "{{ {'ours': ours, 'own': own.ansible_facts} | to_json }}"
