"""The parts of node_state that need no node: arguments, pins, decisions, records, locks and the atomic write.

What it does to packages and units is proven in containers (tests/molecule/node_state).
"""

import ast
import base64
import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from ansible.module_utils import basic
from ansible.module_utils.node_state import drift as node_drift
from ansible.module_utils.node_state import early as node_early
from ansible.module_utils.node_state import insert as node_insert
from ansible.module_utils.node_state import items as node_items
from ansible.module_utils.node_state import kernel as node_kernel
from ansible.module_utils.node_state import packages as node_packages
from ansible.module_utils.node_state import record as node_record
from ansible.module_utils.node_state import systemd as node_systemd
from ansible.module_utils.node_state import tools as node_tools
from ansible.module_utils.node_state import watch as node_watch
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.nodes import contact
from clusterctl.util import paths
from tests.programs import wait_until_shown

PLUGINS = paths.content() / "plugins"
LOGINS = yaml.safe_load((paths.content() / "roles/slurm_logins/vars/main.yml").read_text())


def load(path: Path, name: str) -> Any:
    """Import a plugin as Ansible does: from its file."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look for their own module
    spec.loader.exec_module(module)
    return module


action = load(PLUGINS / "action/node_state.py", "node_state_action")
module = load(PLUGINS / "modules/node_state.py", "node_state_module")
KEY = {"key": "https://x/key.asc", "fingerprint": "0123 4567 89AB CDEF 0123  4567 89ab cdef 0123 4567"}
PRINT = "0123456789ABCDEF0123456789ABCDEF01234567"


def unread(how: str, name: str) -> str:
    raise AssertionError(f"{how} {name} was asked for")


def normalise(**arguments: Any) -> dict[str, Any]:
    return dict(action.normalise({"name": "demo", **arguments}, unread))


def text(item: dict[str, Any]) -> str:
    return base64.b64decode(item["data"]).decode()


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place for records that is not the machine's."""
    monkeypatch.setattr(node_tools, "STORE", tmp_path / "store")
    monkeypatch.setattr(node_record, "STORE", tmp_path / "store")
    return tmp_path / "store"


def call(scope: str = "demo", **options: Any) -> Any:
    opened = node_record.Call(scope, **options)
    opened.open()
    return opened


# Arguments


@pytest.mark.proves("node_state", "Unknown or contradictory arguments are refused.")
@pytest.mark.proves("packages", "A role cannot name a package source without key and fingerprint.")
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"name": "../x"}, "'../x' is not a valid name of a scope"),
        ({"name": None}, "None is not a valid name of a scope"),
        ({"pakages": ["x"]}, "unknown argument pakages"),
        ({"state": "latest"}, "state is 'latest', expected present or absent or probe"),
        ({"package_manager": "zypper"}, "package_manager is 'zypper'"),
        ({"packages": "munge"}, "packages: expected a list, got str"),
        ({"packages": ["-o=x"]}, "'-o=x' is not a valid name of a package"),
        ({"packages": ["a b"]}, "'a b' is not a valid name of a package"),
        ({"packages": ["a:amd64"]}, "'a:amd64' is not a valid name of a package"),
        ({"packages": [{"name": "a", "version": "latest"}]}, "package a: version is 'latest'"),
        ({"packages": [{"name": "a", "version": 24.11}]}, "package a: version is 24.11, expected a version in quotes"),
        ({"packages": [{"name": "a", "version": "1 2"}]}, "'1 2' is not a valid name of a version"),
        ({"packages": [{"name": "a", "hold": "yes"}]}, "package a: hold is 'yes', expected true or false"),
        ({"packages": ["a", {"name": "a", "hold": True}]}, "package a is given twice"),
        ({"packages": [{"name": "a", "state": "latest"}]}, "package a: state is 'latest'"),
        ({"files": [{"dest": "etc/x", "content": ""}]}, "file 'etc/x': expected an absolute path"),
        ({"files": [{"dest": "/etc/../x", "content": ""}]}, "expected an absolute path"),
        ({"files": [{"dest": "/etc/./x", "content": ""}]}, "expected an absolute path"),
        ({"files": [{"dest": "/etc/x/", "content": ""}]}, "expected an absolute path"),
        ({"files": [{"dest": "/", "content": ""}]}, "expected an absolute path"),
        ({"files": [{"dest": "/etc/a\nb", "content": ""}]}, "expected an absolute path"),
        ({"files": [{"content": ""}]}, "file without a name: dest is missing"),
        ({"files": [{"dest": "/x"}]}, "file /x: expected one of"),
        ({"files": [{"dest": "/x", "content": "", "link": "/y"}]}, "got content and link"),
        ({"files": [{"dest": "/x", "content": {"a": 1}}]}, "file /x: content is dict, expected text"),
        ({"files": [{"dest": "/x", "content_base64": "!"}]}, "file /x: content_base64 is not base64"),
        (
            {"files": [{"dest": "/x", "content": "", "mode": 420}]},
            "file /x: mode is 420, expected octal text in quotes",
        ),
        ({"files": [{"dest": "/x", "content": "", "mode": "u=rw"}]}, "file /x: mode is 'u=rw'"),
        ({"files": [{"dest": "/x", "content": "", "mod": "0644"}]}, "file /x: unknown key mod"),
        ({"files": [{"dest": "/x", "content": "", "validate": "visudo -c"}]}, "validate needs %s"),
        ({"files": [{"dest": "/x", "content": "", "on_change": ["a", ["b"]]}]}, "on_change: expected a list of words"),
        ({"files": [{"dest": "/x", "content": "", "secret": "yes"}]}, "file /x: secret is 'yes'"),
        ({"files": [{"dest": "/x", "insert": "a\n"}]}, "file /x: insert needs before, the pattern of a line"),
        ({"files": [{"dest": "/x", "insert": "a\n", "before": "("}]}, "file /x: insert needs before"),
        (
            {"files": [{"dest": "/x", "insert": "a", "before": "b"}]},
            "insert must end with a line break",
        ),
        (
            {"files": [{"dest": "/x", "insert": "", "before": "b", "optional": 1}]},
            "/x: optional is 1, expected true",
        ),
        ({"files": [{"dest": "/x", "content": "", "before": "b"}]}, "file /x: before and optional are for insert"),
        (
            {"files": [{"dest": "/x", "insert": "a\n", "before": "b", "before_packages": True}]},
            "file /x: before_packages is not for insert",
        ),
        ({"files": [{"dest": "/x", "state": "touch"}]}, "file /x: state is 'touch', expected absent"),
        ({"files": [{"dest": "/x", "content": ""}, {"dest": "/x", "content": ""}]}, "path /x is given twice"),
        ({"files": [{"dest": "/x", "content": ""}], "directories": [{"path": "/x"}]}, "path /x is given twice"),
        ({"directories": [{"path": "x"}]}, "directory 'x': expected an absolute path"),
        ({"directories": ["/x"]}, "directory: expected a mapping, got str"),
        ({"units": [{"name": "--now"}]}, "'--now' is not a valid name of a unit"),
        ({"units": [{"name": "a", "state": "running"}]}, "unit a: state is 'running', expected started or stopped"),
        ({"units": [{"name": "a"}, {"name": "a.service"}]}, "unit a.service is given twice"),
        ({"units": [{"name": "a", "masked": True, "state": "started"}]}, "unit a: a masked unit cannot be started"),
        ({"units": [{"name": "a", "restart_on": "/x"}]}, "unit a: restart_on: expected a list of words"),
        ({"sysctl": {"net.core.somaxconn": ""}}, "sysctl net.core.somaxconn: '' is not a number or text"),
        ({"sysctl": {"net.core.somaxconn": True}}, "True is not a number or text"),
        ({"sysctl": {"../../etc/x": 1}}, "'../../etc/x' is not a valid name of a sysctl"),
        ({"sysctl": [1]}, "sysctl: expected a mapping"),
        ({"repositories": [{"name": "a", "url": "https://x"}]}, "repository a: key is missing"),
        ({"repositories": [{"name": "a", "url": "https://x", "key": "https://x"}]}, "a: fingerprint is missing"),
        ({"repositories": [{"name": "a", "url": "https://x", **KEY, "key": "/x"}]}, "expected the URL of a public key"),
        ({"repositories": [{"name": "a", "url": "https://x", **KEY, "fingerprint": "CD"}]}, "is 'CD', expected 40 hex"),
        ({"repositories": [{"name": "a/b", "url": "https://x", **KEY}]}, "is not a valid name of a repository"),
        ({"repositories": [{"name": "a", "url": "https://x\nTrusted: yes", **KEY}]}, "white space in url"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(action.ArgumentError, match=re.escape(told)):
        normalise(**arguments)


def test_every_argument_has_its_default() -> None:
    found = normalise(
        packages=["munge", {"name": "slurmd", "version": "24.11.*", "hold": True}, {"name": "ntp", "state": "absent"}],
        directories=[{"path": "/etc/munge", "owner": "munge", "mode": None}],
        files=[
            {"dest": "/etc/a", "content": "1", "state": "present", "on_change": ["update-x", "--all"]},
            {"dest": "/etc/b", "content_base64": "AAEC\n", "secret": True, "mode": "400"},
            {"dest": "/etc/c", "link": "/etc/a"},
            {"dest": "/etc/d", "state": "absent"},
        ],
        units=[{"name": "munge"}, {"name": "x.timer", "state": "stopped"}, {"name": "y", "masked": True}],
        sysctl={"vm.swappiness": 10, "net.ipv4.tcp_rmem": "4096\t131072  6291456"},
    )
    assert found["packages"][1] == {"name": "slurmd", "version": "24.11.*", "hold": True, "absent": False}
    assert [item["absent"] for item in found["packages"]] == [False, False, True]
    assert found["packages"][0]["hold"] is None
    assert found["directories"] == [{"name": "/etc/munge", "owner": "munge", "group": "root", "mode": "0755"}]
    first, second, third, fourth, settings = found["files"]
    assert (first["mode"], first["owner"], first["on_change"]) == ("0644", "root", [["update-x", "--all"]])
    assert base64.b64decode(second["data"]) == b"\0\1\2"
    assert (third["type"], third["target"], fourth["type"]) == ("link", "/etc/a", "absent")
    assert settings["name"] == "/etc/sysctl.d/60-clusterctl-demo.conf"
    assert text(settings).splitlines()[1:] == ["net.ipv4.tcp_rmem = 4096 131072 6291456", "vm.swappiness = 10"]
    assert found["sysctl"][0] == {"name": "net.ipv4.tcp_rmem", "value": "4096 131072 6291456"}
    shown = [(unit["name"], unit["enabled"], unit["started"], unit["masked"]) for unit in found["units"]]
    assert shown == [
        ("munge.service", True, True, False),
        ("x.timer", False, False, False),
        ("y.service", False, False, True),
    ]


@pytest.mark.parametrize("state", ["absent", "probe"])
def test_undo_and_probe_ask_for_no_template(state: str) -> None:
    assert "files" not in normalise(state=state, files=[{"dest": "/x", "template": "x.j2"}])


@pytest.mark.proves("node_state", "An early download that fails is a note; the later installation decides.")
def test_download__fails__is_a_note(store: Path) -> None:
    class Manager:
        def installed(self, _names: list[str]) -> dict[str, Any]:
            return {}

        def available(self, names: list[str], _fresh: bool) -> dict[str, list[str]]:
            return {name: ["1"] for name in names}

        refreshed = True

        def transact(self, *_: object, download_only: bool) -> None:
            assert download_only
            raise node_tools.NodeError("apt-get: Temporary failure resolving 'deb.debian.org'")

    one = call()
    node_items.Packages(Manager()).download(one, [node_items.Package("chrony")])
    assert one.notes == ["packages were not downloaded early: apt-get: Temporary failure resolving 'deb.debian.org'"]
    assert one.changes == []


@pytest.mark.proves("node_state", "A former package that was removed by hand is no longer recorded.")
def test_package__of_no_role_any_more_and_removed__is_forgotten(store: Path) -> None:
    """One that is still there can be removed with the role, and one from before the role would be installed again."""
    absent, there = {"version": None, "held": False}, {"version": "1", "held": False}
    known = call()
    for name, before in (("gone", absent), ("stays", absent), ("older", there), ("wanted", absent)):
        known.record["items"][f"package:{name}"] = {"before": before, "now": there}
    known.save()
    manager = Upgradable({"stays": "1", "wanted": "1"}, {})
    module.present(call(), normalise(sysctl=[]), lambda: manager)  # one without packages, as a role may have besides
    assert len(call().record["items"]) == 4
    module.present(call(), normalise(packages=["wanted"]), lambda: manager)
    assert {*call().record["items"]} == {"package:stays", "package:older", "package:wanted"}


@pytest.mark.parametrize(
    ("printed", "found"),
    [
        ("package a is not installed\nb\t1-1\n", {"b": {"version": "1-1", "held": False}}),
        ("error: cannot open Packages database in /var/lib/rpm\n", None),
    ],
)
def test_rpm__that_fails__does_not_say_that_nothing_is_installed(
    monkeypatch: pytest.MonkeyPatch, printed: str, found: dict[str, Any] | None
) -> None:
    monkeypatch.setattr(node_packages, "run", lambda *argv, check: (1, printed))
    monkeypatch.setattr(node_packages.Dnf, "excluded", lambda self: set())
    manager = node_packages.Dnf([])
    if found is not None:
        assert manager.installed(["a", "b"]) == found
    else:
        with pytest.raises(node_tools.NodeError, match="rpm -q: error: cannot open Packages database"):
            manager.installed(["a", "b"])


def test_downloading_asks_for_no_template() -> None:
    assert "files" not in normalise(download_only=True, files=[{"dest": "/x", "template": "x.j2"}])


@pytest.mark.proves("packages", "A package source is signed by its own key only.")
def test_a_package_source_is_signed_by_its_own_key_alone() -> None:
    source = {
        "name": "nvidia",
        "url": "https://x/deb",
        **KEY,
        "suites": ["stable"],
        "components": ["main", "extra"],
    }
    found = normalise(repositories=[{**source, "architectures": ["amd64"]}])["repositories"][0]
    assert [item["name"] for item in found["Apt"]] == [
        "/etc/apt/keyrings/nvidia.asc",
        "/etc/apt/sources.list.d/nvidia.sources",
    ]
    assert found["Apt"][0] == {"name": "/etc/apt/keyrings/nvidia.asc", "url": KEY["key"], "fingerprint": PRINT}
    assert text(found["Apt"][1]) == (
        f"# Key: {KEY['key']} {PRINT}\n"
        "Types: deb\nURIs: https://x/deb\nSuites: stable\nComponents: main extra\nArchitectures: amd64\n"
        "Signed-By: /etc/apt/keyrings/nvidia.asc\n"
    )
    assert "gpgcheck=1\ngpgkey=file:///etc/pki/rpm-gpg/nvidia.asc\n" in text(found["Dnf"][1])


def test_a_source_whose_metadata_is_signed_says_so_to_dnf() -> None:
    source = {"name": "n", "url": "https://x", **KEY, "signed": "metadata"}
    found = normalise(repositories=[source])["repositories"][0]
    assert "gpgcheck=0\nrepo_gpgcheck=1\ngpgkey=" in text(found["Dnf"][1])


def test_source__with_a_priority__says_so_to_dnf() -> None:
    """As dnf.conf(5) has it: a lower number wins, and 99 is the default."""
    source = {"name": "n", "url": "https://x", **KEY}
    found = normalise(repositories=[{**source, "priority": 10}])["repositories"][0]
    assert text(found["Dnf"][1]).endswith("\npriority=10\n")
    assert "priority" not in text(found["Apt"][1])
    assert "priority" not in text(normalise(repositories=[source])["repositories"][0]["Dnf"][1])
    for wrong in (0, 100, "10", True):
        with pytest.raises(action.ArgumentError, match="expected a number from 1 to 99"):
            normalise(repositories=[{**source, "priority": wrong}])


def test_a_flat_source_has_no_components() -> None:
    found = normalise(repositories=[{"name": "n", "url": "https://x", **KEY}])["repositories"][0]
    assert "Suites: ./\nSigned-By:" in text(found["Apt"][1])


def test_the_module_takes_what_the_action_plugin_gives() -> None:
    """Both halves name the same fields: every normalised item makes an item of the module."""
    found = normalise(
        packages=["a"],
        directories=[{"path": "/d"}],
        files=[{"dest": "/x", "content": ""}, {"dest": "/l", "link": "y"}, {"dest": "/z", "state": "absent"}],
        units=[{"name": "u"}],
        sysctl={"vm.swappiness": 1},
        repositories=[{"name": "n", "url": "https://x", **KEY}],
    )
    kinds = {
        "packages": node_items.Package,
        "files": node_items.Entry,
        "units": node_items.Unit,
        "sysctl": node_kernel.Setting,
    }
    for key, kind in kinds.items():
        assert [kind(**item).name for item in found[key]]
    assert set(found["repositories"][0]) == {"Apt", "Dnf"}
    assert {node_packages.Apt.__name__, node_packages.Dnf.__name__} == {"Apt", "Dnf"}


def test_a_package_by_url_is_known_by_its_version_and_hash() -> None:
    own = {"name": "a", "version": "1.0-1", "url": "https://x/a.deb", "sha256": "0" * 64}
    (found,) = normalise(packages=[own])["packages"]
    assert node_items.Package(**found).url == "https://x/a.deb"
    for wrong in ({"version": ""}, {"version": "1.*"}, {"sha256": ""}, {"url": "ftp://x/a"}, {"url": "https://x/a b"}):
        with pytest.raises(action.ArgumentError, match=r"package a: .*expected"):
            normalise(packages=[{**own, **wrong}])


@pytest.mark.proves("packages", "A fetched package is kept only with its SHA-256.")
def test_a_fetched_package_is_kept_only_with_its_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_packages, "FETCHED", tmp_path / "cache")
    fetched: list[str] = []

    def fetch(url: str, path: str) -> None:
        fetched.append(url)
        Path(path).write_bytes(b"content")

    right = node_items.Package("a", "1", url="https://x/a", sha256=hashlib.sha256(b"content").hexdigest())
    path = node_packages.fetched(right, ".deb", fetch)
    assert node_packages.fetched(right, ".deb", fetch) == path
    assert (fetched, Path(path).read_bytes()) == (["https://x/a"], b"content")
    with pytest.raises(node_packages.NodeError, match="has the sha256"):
        node_packages.fetched(node_items.Package("a", "1", url="https://x/b", sha256="0" * 64), ".deb", fetch)

    def fail(url: str, path: str) -> None:
        raise node_packages.NodeError("/usr/lib/apt/apt-helper -o ended with 100\nE: Failed to fetch it")

    with pytest.raises(node_packages.NodeError) as refused:
        node_packages.fetched(node_items.Package("b", "1", url="https://x/b", sha256="0" * 64), ".deb", fail)
    assert str(refused.value) == "package b: https://x/b cannot be downloaded\nE: Failed to fetch it"
    assert [str(left) for left in (tmp_path / "cache").iterdir()] == [path]
    node_packages.forget_fetched(["install", path])
    assert not (tmp_path / "cache").exists()


# Versions


@pytest.mark.parametrize(
    ("version", "pattern", "met"),
    [
        ("24.11.5-4", "24.11.*", True),
        ("24.11.5-4", "24.11.5", True),
        ("24.11.5-4", "24.11.5-4", True),
        ("24.11.5-4", "24.11.5-3", False),
        ("24.11.5-4", "24.11", False),
        ("24.11.5-4", "24.1.*", False),
        ("1:24.11.5-4.el9", "24.11.*", True),
        ("1:24.11.5-4.el9", "1:24.11.5-4.el9", True),
        ("1:24.11.5-4.el9", "24.11.5-4.el9", True),
        ("2:24.11.5-4", "1:24.11.5-4", False),
        ("5.2.0+ds1-2~deb13u1", "5.2.*", True),
        ("5.2.0", "5.2.0", True),
        ("2.4-1-3", "2.4-1", True),
        ("24.11.5-4", "", True),
        (None, "", False),
        (None, "*", False),
    ],
)
def test_a_pin_names_the_version_or_upstreams_part_of_it(version: str | None, pattern: str, met: bool) -> None:
    assert node_packages.matches(version, pattern) is met


@given(st.from_regex(r"\A([0-9]:)?[0-9][A-Za-z0-9.+~]{0,12}(-[0-9][a-z0-9.+~]{0,6})?\Z"))
def test_every_version_meets_itself_and_what_the_arguments_let_through(version: str) -> None:
    assert node_packages.matches(version, version)
    assert normalise(packages=[{"name": "a", "version": version}])["packages"][0]["version"] == version


class Index:
    """A package manager's index as `resolve` asks for it, stale at first."""

    def __init__(self, stale: dict[str, list[str]], fresh: dict[str, list[str]]) -> None:
        self.answers, self.asked, self.warnings = {False: stale, True: fresh}, 0, "W: Failed to fetch"
        self.refreshed = False

    def available(self, _names: list[str], fresh: bool) -> dict[str, list[str]]:
        self.asked += 1
        self.refreshed = fresh
        return self.answers[fresh]


def test_a_pin_takes_the_newest_that_meets_it() -> None:
    index = Index({"slurmd": ["25.05-1", "24.11.5-4", "24.11.5-3"], "munge": ["0.5"]}, {})
    due = [node_items.Package("slurmd", "24.11.*"), node_items.Package("munge"), node_items.Package("ntp", absent=True)]
    assert node_items.Packages(index).resolve(due) == {"slurmd": "24.11.5-4", "munge": ""}
    assert index.asked == 1


def test_what_the_index_lacks_is_looked_for_in_a_fresh_one() -> None:
    index = Index({}, {"slurmd": ["24.11.5-4"]})
    assert node_items.Packages(index).resolve([node_items.Package("slurmd", "24.11.*")]) == {"slurmd": "24.11.5-4"}
    assert index.asked == 2


@pytest.mark.proves("packages", "A pin that cannot be met is reported with the versions offered.")
def test_a_pin_that_cannot_be_met_names_what_there_is() -> None:
    index = Index({}, {"slurmd": ["25.05-1", "23.02-1"]})
    due = [node_items.Package("slurmd", "24.11.*"), node_items.Package("nosuch")]
    told = "slurmd is pinned to 24.11.*, but the sources offer 25.05-1, 23.02-1; no source offers nosuch\nW: Failed to"
    with pytest.raises(node_tools.NodeError, match=re.escape(told)):
        node_items.Packages(index).resolve(due)
    assert node_items.Packages(index).resolve(due, lenient=True) == {}


class Upgradable(Index):
    """One with packages that are installed, and newer ones to be had."""

    broken, interrupted = (), False

    def __init__(self, installed: dict[str, str], offered: dict[str, list[str]], held: tuple[str, ...] = ()) -> None:
        super().__init__(offered, offered)
        self.here, self.held = installed, held

    def installed(self, _names: list[str]) -> dict[str, dict[str, Any]]:
        return {name: {"version": version, "held": name in self.held} for name, version in self.here.items()}

    def candidates(self, names: list[str], _age: int) -> dict[str, str]:
        newest = {name: self.answers[True][name][0] for name in names}
        return {name: version for name, version in newest.items() if version != self.here[name]}

    def rehearse(self, _install: dict[str, str]) -> dict[str, tuple[str, str]]:
        return {}


@pytest.mark.proves("upgrade", "An upgrade moves to the newest version that the pin allows.")
@pytest.mark.parametrize(
    ("pin", "offered", "target"),
    [
        ("", ["2.0-1", "1.1-1"], "2.0-1"),
        ("", ["1.0-1"], None),
        ("1.*", ["1.1-1", "1.0-1"], "1.1-1"),
        ("1.*", ["2.0-1", "1.0-1"], None),  # what is there meets the pin, and the newest does not
        ("1.1", ["2.0-1", "1.1-2", "1.1-1"], "1.1-2"),
        ("0.9", ["2.0-1", "0.9-1"], "0.9-1"),
    ],
)
def test_an_upgrade_moves_to_the_newest_that_the_pin_allows(pin: str, offered: list[str], target: str | None) -> None:
    packages = node_items.Packages(Upgradable({"a": "1.0-1"}, {"a": offered}))
    wanted = node_items.Package("a", pin)
    packages.aim([wanted], planned=True)
    (state,) = packages.read([wanted]).values()
    assert packages.targets.get("a") == target
    assert packages.fit(wanted, state) is (target is None)
    told = packages.difference(node_record.Call("x"), wanted, state)
    assert told == (("upgraded", f"version {target}, was 1.0-1", "1.0-1", target) if target else ())


@pytest.mark.proves("plan", "A plan of an upgrade lists packages that come along as dependencies.")
def test_upgrade__packages_come_along__are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    moves = {"a": ("2.0-1", "1.0-1"), "needed": ("2.0-1", "1.0-1"), "new": ("3", ""), "gone": ("", "1")}
    index = Upgradable({"a": "1.0-1", "b": "1.0-1"}, {"a": ["2.0-1"], "b": ["1.0-1"]})
    monkeypatch.setattr(index, "rehearse", lambda install: moves if install == {"a": "2.0-1"} else {})
    packages = node_items.Packages(index)
    along = packages.aim([node_items.Package("a"), node_items.Package("b")], planned=True)
    assert along == [
        node_tools.change("package", "needed", "upgraded", "version 2.0-1, was 1.0-1", "1.0-1", "2.0-1"),
        node_tools.change("package", "new", "installed", "installed (3)", "", "3"),
        node_tools.change("package", "gone", "removed", "removed (1)", "1", ""),
    ]
    assert packages.aim([node_items.Package("b")], planned=True) == []


@pytest.mark.proves("upgrade", "Without `upgrade` an installed package stays, and the pin is reported.")
def test_without_an_upgrade_what_is_installed_stays_and_the_pin_is_told() -> None:
    noted = node_record.Call("x")
    packages = node_items.Packages(Upgradable({"a": "1.0-1"}, {"a": ["2.0-1"]}))
    pinned = node_items.Package("a", "2.*")
    state = {"version": "1.0-1", "held": False}
    assert packages.difference(noted, pinned, state) == ()
    assert noted.notes == ["a 1.0-1 is pinned to 2.*: see clusterctl upgrade"]
    assert packages.difference(noted, pinned, NOTHING) == ("installed", "installed")


@pytest.mark.proves("upgrade", "An upgrade leaves packages that an administrator holds.")
def test_an_upgrade_leaves_what_an_administrator_holds() -> None:
    packages = node_items.Packages(
        Upgradable({"a": "1.0-1", "b": "1.0-1"}, {"a": ["2.0-1"], "b": ["2.0-1"]}, ("a", "b"))
    )
    packages.aim([node_items.Package("a"), node_items.Package("b", hold=True)], planned=True)
    assert packages.targets == {"b": "2.0-1"}


def test_an_upgrade_to_what_nobody_offers_fails() -> None:
    packages = node_items.Packages(Upgradable({"a": "1.0-1"}, {"a": ["2.0-1"]}))
    with pytest.raises(node_tools.NodeError, match=r"a is pinned to 3[.][*], but the sources offer 2[.]0-1"):
        packages.aim([node_items.Package("a", "3.*")], planned=True)


@pytest.mark.proves("plan", "A plan reports an upgrade to a release whose package source comes with it.")
def test_upgrade__planned_from_a_source_to_come__has_the_pin(monkeypatch: pytest.MonkeyPatch) -> None:
    index, asked = Upgradable({"a": "1.0-1", "b": "1.0-1"}, {"a": ["1.0-1"], "b": ["2.0-1"]}), list[dict[str, str]]()

    def rehearse(install: dict[str, str]) -> dict[str, tuple[str, str]]:
        asked.append(install)
        return {}

    monkeypatch.setattr(index, "rehearse", rehearse)
    packages = node_items.Packages(index)
    assert packages.aim([node_items.Package("a", "2.0"), node_items.Package("b")], planned=True, unseen=True) == []
    assert packages.targets == {"a": "2.0", "b": "2.0-1"}
    assert asked == [{"b": "2.0-1"}]


@pytest.mark.proves("upgrade", "Packages required in one exact version move along.")
def test_what_is_needed_in_one_version_alone_comes_along(monkeypatch: pytest.MonkeyPatch) -> None:
    depends = {
        "slurmd=2-1": "Depends: libc6 (>= 2.39), slurm-wlm-basic-plugins (= 2-1), a (= 2) | b",
        "slurm-wlm-basic-plugins=2-1": "Pre-Depends: base (= 2-1)\nDepends: slurmd (= 2-1)",
        "base=2-1": "Version: 2-1",
    }

    def shown(*argv: str, **_: Any) -> tuple[int, str]:
        return 0, "\n".join(depends[word] for word in argv[2:])

    monkeypatch.setattr(node_packages, "run", shown)
    assert node_packages.Apt([]).along({"slurmd": "2-1"}) == {"slurm-wlm-basic-plugins": "2-1", "base": "2-1"}
    assert node_packages.Apt([]).along({}) == {}


SIMULATED = """\
Inst libc6 [2.41-12] (2.41-13 Debian:13.2/stable [amd64])
Inst linux-image-6.12.57+deb13-amd64 (6.12.57-1 Debian-Security:13/stable-security [amd64])
Remv libold1 [1.0-1] [libc6 ]
Conf libc6 (2.41-13 Debian:13.2/stable [amd64])
"""


def test_what_an_upgrade_brings_is_read_from_its_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    apt = node_packages.Apt([])
    monkeypatch.setattr(apt, "stale", lambda _age: False)
    monkeypatch.setattr(apt, "upgrade", lambda _kept, *_words: SIMULATED)
    assert apt.moves(["slurmd"], True) == {
        "libc6": ("2.41-13", "2.41-12"),
        "linux-image-6.12.57+deb13-amd64": ("6.12.57-1", ""),
        "libold1": ("", "1.0-1"),
    }


TRANSACTION = """\
Last metadata expiration check: 0:00:09 ago on Sun Nov 22 02:42:43 2026.
Dependencies resolved.

 Problem: package app-2.0-1.noarch from demo requires lib >= 2.0, but none of the providers can be installed
  - package lib-2.0-1.noarch from demo is filtered out by exclude filtering
==================================================
 Package               Arch   Version  Repo  Size
==================================================
Installing:
 kernel-core           x86_64 5.14.0-3 demo   21 M
 new-name              noarch 2.0-1    demo 6.4 k
     replacing  old-name.noarch 1.0-1
Upgrading:
 a-package-whose-name-is-so-long-that-dnf-breaks-its-lines
                       noarch 1:1.1-1  demo  938 {}
 plain                 noarch 1.1-1    demo 6.4 k
Installing dependencies:
 pulled-in             noarch 3.0-1    demo 6.4 k
Removing:
 kernel-core           x86_64 5.14.0-1 @demo  40 M
Skipping packages with broken dependencies:
 app                   noarch 2.0-1    demo 6.4 k

Transaction Summary
==================================================
Install  3 Packages
Upgrade  2 Packages
Remove   1 Package
Skip     1 Package

Total size: 38 k
Operation aborted.
"""


def test_what_an_upgrade_brings_is_read_from_the_table_of_dnf() -> None:
    long = "a-package-whose-name-is-so-long-that-dnf-breaks-its-lines"
    here = {"plain": "1.0-1", long: "1.0-1", "app": "1.0-1", "kernel-core": "5.14.0-2", "old-name": "1.0-1"}
    assert node_packages.transaction(TRANSACTION.format(""), here) == {
        "kernel-core": ("5.14.0-3", ""),
        "kernel-core-5.14.0-1": ("", "5.14.0-1"),
        "new-name": ("2.0-1", ""),
        "old-name": ("", "1.0-1"),
        long: ("1:1.1-1", "1.0-1"),
        "plain": ("1.1-1", "1.0-1"),
        "pulled-in": ("3.0-1", ""),
    }
    assert node_packages.transaction("Dependencies resolved.\nNothing to do.\nComplete!\n", here) == {}


@pytest.mark.parametrize(
    ("status", "listed", "asks"),
    [(1, ["glibc", "kernel-core"], True), (1, ["kernel", "kernel-core"], False), (0, [], False)],
)
def test_dnf_asks_for_a_reboot_for_more_than_a_kernel(
    monkeypatch: pytest.MonkeyPatch, status: int, listed: list[str], asks: bool
) -> None:
    said = "".join(f"  * {name}\n" for name in listed)
    monkeypatch.setattr(node_packages, "run", lambda *_argv, check: (status, said))
    assert node_packages.Dnf([]).wants_reboot() is asks


def test_a_new_version_restarts_what_waits_for_it_and_a_hold_does_not() -> None:
    packages = node_items.Packages(node_packages.Dnf([]))
    pinned = node_items.Package("a", "2.*", hold=True)
    packages.targets = {"a": "2.0-1"}
    assert packages.trigger(pinned, {"version": "1.0-1", "held": True}) == "package:a"
    assert packages.trigger(pinned, {"version": None, "held": False}) == "package:a"
    assert packages.trigger(pinned, {"version": "2.0-1", "held": False}) == ""
    assert packages.difference(None, pinned, {"version": "2.0-1", "held": False}) == ("held", "held")
    assert packages.difference(None, pinned, {"version": "1.0-1", "held": True}) == (
        "upgraded", "version 2.0-1, was 1.0-1", "1.0-1", "2.0-1"
    )  # fmt: skip
    assert packages.difference(None, node_items.Package("a", absent=True), {"version": "1", "held": False}) == (
        "removed",
        "removed",
    )
    assert packages.difference(None, node_items.Package("b"), {"version": "1", "held": True}) == ()


# Units


def unit(**properties: str) -> dict[str, str]:
    running = {"LoadState": "loaded", "UnitFileState": "enabled", "ActiveState": "active", "SubState": "running"}
    service = {"Type": "notify", "RemainAfterExit": "no", "Result": "success", "CanReload": "yes"}
    return {**running, **service, "ExecMainStartTimestampMonotonic": "1", **properties}


ONCE = {"Type": "oneshot", "ActiveState": "inactive"}


@pytest.mark.parametrize(
    ("wanted", "properties", "told"),
    [
        ({}, {}, []),
        ({}, {"ActiveState": "inactive"}, ["start"]),
        ({}, {"ActiveState": "failed", "UnitFileState": "disabled"}, ["enable", "start"]),
        ({}, {"ActiveState": "activating", "SubState": "auto-restart"}, ["start"]),
        (
            {},
            {"LoadState": "masked", "UnitFileState": "masked", "ActiveState": "inactive"},
            ["unmask", "enable", "start"],
        ),
        ({}, {"LoadState": "not-found", "UnitFileState": "", "ActiveState": "inactive"}, ["enable", "start"]),
        ({}, {"UnitFileState": "static"}, []),
        ({}, {"UnitFileState": "generated"}, []),
        ({"enabled": None}, {"UnitFileState": "disabled"}, []),
        ({"enabled": False}, {}, ["disable"]),
        ({"enabled": False, "started": False}, {}, ["disable", "stop"]),
        ({"enabled": False, "started": False}, {"UnitFileState": "disabled", "ActiveState": "failed"}, []),
        ({"masked": True, "started": False}, {}, ["stop", "mask"]),
        ({"masked": True, "started": False}, {"LoadState": "masked", "ActiveState": "inactive"}, []),
        ({}, ONCE, []),
        ({}, {**ONCE, "ExecMainStartTimestampMonotonic": "0"}, ["start"]),
        ({}, {**ONCE, "Result": "exit-code"}, ["start"]),
        ({}, {**ONCE, "RemainAfterExit": "yes"}, ["start"]),
        ({}, {"Type": "oneshot", "RemainAfterExit": "yes", "SubState": "exited"}, []),
    ],
)
def test_what_systemctl_is_told(wanted: dict[str, Any], properties: dict[str, str], told: list[str]) -> None:
    assert node_items.verbs(node_items.Unit("u", **wanted), unit(**properties)) == told


@pytest.mark.parametrize(
    ("properties", "pending", "action"),
    [
        ({"UnitFileState": "disabled"}, [], "changed"),
        ({"UnitFileState": "disabled", "ActiveState": "inactive"}, [], "started"),
        ({}, ["/etc/u"], "restarted"),
        ({"CanReload": "yes"}, ["/etc/v"], "reloaded"),
    ],
)
def test_unit__by_what_is_due__has_an_action(properties: dict[str, str], pending: list[str], action: str) -> None:
    """Plans and upgrades decide by it, not by the words."""
    kind, due = node_items.Units(), call()
    kind.found, due.pending = {"u": unit(**properties)}, pending
    wanted = node_items.Unit("u", restart_on=["/etc/u"], reload_on=["/etc/v"])
    assert kind.difference(due, wanted, {})[0] == action


def test_unit__whose_file_is_removed__is_stopped_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one that the call lists, whose file may be another package's, and not one that is unknown to systemd."""
    monkeypatch.setattr(node_items, "UNIT_HOME", str(tmp_path))
    gone = {"LoadState": "not-found", "UnitFileState": ""}
    found = {
        "here.service": unit(),
        r"srv-a\x2db.mount": unit(),
        "listed.service": unit(),
        "packaged.service": unit(),
        "runs.timer": unit(**gone),
        "never.service": unit(**gone, ActiveState="inactive"),
    }
    for name in ("here.service", r"srv-a\x2db.mount", "listed.service", "kept.service"):
        (tmp_path / name).touch()
    monkeypatch.setattr(node_items.Units, "show", lambda _, names: {name: found[name] for name in names})
    files = [node_items.Entry(str(tmp_path / name), "absent") for name in [*found, "multi@.service", "x.d/y.conf"]]
    files += [node_items.Entry(str(tmp_path / "kept.service"))]
    stopped = node_items.orphaned(files, [node_items.Unit("listed.service")])
    names = ("here.service", r"srv-a\x2db.mount", "runs.timer")
    assert stopped == [node_items.Unit(name, enabled=False, started=False) for name in names]
    kind = node_items.Units()
    kind.found = found
    assert kind.difference(call(), stopped[2], {}) == ("stopped", "stopped")


def test_a_unit_that_is_not_there_is_as_good_as_stopped(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = node_items.Units()
    kind.found = {"u": unit(Id="u.service", LoadState="not-found", UnitFileState="", ActiveState="inactive")}
    assert kind.difference(call(), node_items.Unit("u", enabled=False, started=False), {}) == ()
    monkeypatch.setattr(node_items, "run", lambda *_, **__: (0, ""))
    with pytest.raises(node_tools.NodeError, match="systemd says not-found"):
        kind.difference(call(), node_items.Unit("u"), {})


def test_a_changed_file_restarts_or_reloads_what_runs() -> None:
    item = node_items.Unit("u")
    assert node_items.verbs(item, unit(), restart=True, reload=True) == ["restart"]
    assert node_items.verbs(item, unit(), reload=True) == ["reload"]
    tells, never = node_items.Unit("u", reload_tells=True), {"ExecMainStartTimestampMonotonic": "0"}
    assert node_items.verbs(tells, unit(), restart=True, reload=True) == ["restart", "reload"]
    assert node_items.verbs(tells, unit(), restart={"/x"}, reload=set()) == ["restart"]  # as they come
    assert node_items.verbs(tells, unit(ActiveState="inactive"), reload=True) == ["start", "reload"]
    assert node_items.verbs(tells, unit(ActiveState="inactive", **never), reload=True) == ["start"]
    assert node_items.verbs(item, unit(CanReload="no"), reload=True) == ["restart"]
    assert node_items.verbs(item, unit(ActiveState="inactive"), restart=True) == ["start"]
    assert node_items.verbs(node_items.Unit("u", started=False), unit(ActiveState="inactive"), restart=True) == []


@pytest.mark.parametrize(
    ("waits", "expected"),
    [({"restart_on": ["/x"]}, ["restart"]), ({"reload_on": ["/x"]}, ["reload"]), ({"restart_on": ["/y"]}, [])],
)
def test_units__of_what_they_wait_for_changed__restart_or_reload(
    waits: dict[str, list[str]], expected: list[str]
) -> None:
    units = node_items.Units.__new__(node_items.Units)
    units.found = {"u": unit()}
    assert units.verbs(SimpleNamespace(pending=["/x", "/z"]), node_items.Unit("u", **waits)) == expected


@pytest.mark.parametrize(
    ("span", "length"),
    [
        ("1min 30s", 90),
        ("500ms", 0.5),
        ("5s", 5),
        ("infinity", 600),
        ("", 600),
        ("2h", 600),
        ("1d 2h", 600),
        ("0", 600),
    ],
)
def test_systemds_time_spans(span: str, length: float) -> None:
    assert node_items.seconds(span) == length


# The loop, the record, the journal


class Notebook:
    """A kind of item that is nothing but entries in a dictionary."""

    label = "page"

    def __init__(self, pages: dict[str, str], fail: bool = False) -> None:
        self.pages, self.fail = pages, fail
        self.prepared: list[str] = []

    def read(self, items: list[Any]) -> dict[str, dict[str, str]]:
        return {item.name: {"value": self.pages.get(item.name, "")} for item in items}

    def difference(self, _call: Any, item: Any, state: dict[str, str]) -> tuple[str, ...]:
        old, new = state["value"], item.value
        return () if old == new else ("changed", f"{new}, was {old}", old, new)

    def beside(self, _item: Any) -> dict[str, Any]:
        return {}

    def trigger(self, item: Any, _state: dict[str, str]) -> str:
        return f"/{item.name}"

    def prepare(self, _call: Any, plan: dict[str, Any], _states: Any) -> None:
        self.prepared = sorted(plan)

    def apply(self, _call: Any, plan: dict[str, Any], _states: Any) -> None:
        for name, item in plan.items():
            self.pages[name] = item.value
            if self.fail:
                raise node_tools.NodeError("ended early")


WANTED = [node_kernel.Setting("a", "1"), node_kernel.Setting("b", "2")]


def test_what_is_right_is_not_touched(store: Path) -> None:
    done, pages = call(), Notebook({"a": "1", "b": "0"})
    node_items.converge(done, pages, WANTED)
    assert pages.prepared == ["b"]
    assert done.changes == [node_tools.change("page", "b", "changed", "2, was 0", "0", "2")]
    assert done.record["items"]["page:a"] == {"before": {"value": "1"}, "now": {"value": "1"}}
    assert done.record["items"]["page:b"] == {"before": {"value": "0"}, "now": {"value": "2"}}


@pytest.mark.proves("node_state", "Check mode changes nothing and writes no record.")
def test_check_mode_changes_nothing_and_writes_nothing(store: Path) -> None:
    done, pages = call(check=True), Notebook({"a": "1", "b": "0"})
    node_items.converge(done, pages, WANTED)
    assert done.result()["changed"]
    assert pages.pages == {"a": "1", "b": "0"}
    assert done.pending == ["/b"], "what follows is to be told as well"
    assert not store.exists()


@pytest.mark.proves("node_state", "The next call knows what an interrupted call began.")
def test_what_an_interrupted_call_began_is_known_to_the_next(store: Path) -> None:
    first = call()
    with pytest.raises(node_tools.NodeError):
        node_items.converge(first, Notebook({"a": "0", "b": "0"}, fail=True), WANTED)
    assert [change["name"] for change in first.changes] == ["a"], "b was not reached"
    following = call()
    assert following.pending == ["/a", "/b"]
    assert following.record["items"]["page:a"]["before"] == {"value": "0"}
    node_items.converge(following, Notebook({"a": "1", "b": "0"}), WANTED)
    assert following.pending == ["/a", "/b"]
    assert following.record["items"]["page:a"] == {"before": {"value": "0"}, "now": {"value": "1"}}
    following.pending.clear()
    following.save()
    assert call().pending == []


def test_two_scopes_share_what_was_before_either(store: Path) -> None:
    first = call("packages")
    node_items.converge(first, Notebook({}), [WANTED[0]])
    first.save()
    second = call("munge")
    node_items.converge(second, Notebook({"a": "1"}), [WANTED[0]])
    assert second.record["items"]["page:a"] == {"before": {"value": ""}, "now": {"value": "1"}}


class Apt:
    """A package manager that knows these packages, and which of them nothing needs."""

    broken: tuple[str, ...] = ()
    interrupted = refreshed = False

    def __init__(self, *names: str, orphans: tuple[str, ...] = ()) -> None:
        self.names, self.unneeded = {*names}, orphans
        self.gone: list[str] = []

    def installed(self, _names: list[str]) -> dict[str, Any]:
        return {name: {"version": "1", "held": False} for name in self.names}

    def orphans(self, pulled: set[str]) -> list[str]:
        return sorted({*self.unneeded} & {*pulled} & self.names)

    def transact(self, _install: dict[str, str], remove: list[str]) -> None:
        self.names -= {*remove}
        self.gone += remove


def recorded(scope: str, *names: str, pulled: tuple[str, ...] = (), union: bool = False) -> None:
    """Let a scope have installed these packages, and some that came along."""
    noting = call(scope)
    for name in names:
        noting.note(f"package:{name}", {"version": None, "held": False})
        noting.note(f"package:{name}", {"version": "1", "held": False})
    noting.record["pulled"] = sorted(pulled)
    noting.save(union)


def test_union__without_a_package__leaves_it_to_its_scope(store: Path) -> None:
    recorded("packages", "chrony", "podman", "tools", union=True)
    recorded("podman", "podman")
    recorded("packages", "chrony", union=True)
    # No other scope has `tools`, so nobody else would undo it.
    assert sorted(call("packages").record["items"]) == ["package:chrony", "package:tools"]
    manager = Apt("chrony", "podman", "tools")
    module.absent(call("podman"), {}, lambda: manager)
    assert manager.gone == ["podman"]


def test_union__without_a_repository__leaves_it_to_its_scope(store: Path) -> None:
    for scope in ("packages", "docker"):
        noting = call(scope)
        noting.note("repository:/etc/apt/sources.list.d/docker.sources", {"type": "absent"})
        noting.save()
    call("packages").save(union=True)
    assert call("packages").record["items"] == {}
    assert [*call("docker").record["items"]] == ["repository:/etc/apt/sources.list.d/docker.sources"]


@pytest.mark.proves("node_state", "Undoing a role removes packages that only it brought along.")
def test_undo__of_one_scope__takes_what_came_along_in_another(store: Path) -> None:
    """All roles' packages come in one transaction; what a further scope names stays."""
    recorded("podman", "podman")
    recorded("docker", "docker")
    recorded("containerd", "containerd")
    recorded("packages", "docker", pulled=("conmon", "containerd", "needed"), union=True)
    manager = Apt("podman", "conmon", "containerd", "needed", "docker", orphans=("conmon", "containerd", "foreign"))
    module.absent(call("podman"), {}, lambda: manager)
    assert manager.gone == ["podman", "conmon"]


def test_records_are_for_root_alone_whatever_the_umask(store: Path) -> None:
    old = os.umask(0)
    try:
        node_items.converge(call(), Notebook({}), WANTED)
    finally:
        os.umask(old)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (store, *store.rglob("*"))}
    assert modes == {"store": 0o700, "state": 0o700, "demo.json": 0o600}


def test_an_unchanged_record_is_not_written_again(store: Path) -> None:
    first = call()
    node_items.converge(first, Notebook({"a": "1"}), [WANTED[0]])
    first.save()
    written = (store / "state/demo.json").stat()
    second = call()
    node_items.converge(second, Notebook({"a": "1"}), [WANTED[0]])
    second.save()
    assert (store / "state/demo.json").stat().st_ino == written.st_ino


@pytest.mark.proves("node_state", "A damaged record is refused and kept.")
@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema": 1}', '{"schema": "x", "items": {}}', "\x80"])
def test_a_broken_record_is_refused_and_kept(store: Path, content: str) -> None:
    (store / "state").mkdir(parents=True)
    (store / "state/demo.json").write_text(content, encoding="latin-1")
    with pytest.raises(node_tools.NodeError, match=r"demo\.json is not a valid record"):
        call()
    assert (store / "state/demo.json").read_text(encoding="latin-1") == content


@pytest.mark.proves("node_state", "A record of a newer version is refused.")
def test_a_record_of_a_newer_version_is_refused(store: Path) -> None:
    (store / "state").mkdir(parents=True)
    (store / "state/demo.json").write_text(json.dumps({"schema": 2, "items": {}, "pending": [], "pulled": []}))
    with pytest.raises(node_tools.NodeError, match="written by a newer clusterctl"):
        call()


def test_a_secrets_hash_is_recorded_with_the_clusters_key_or_not_at_all() -> None:
    state = {"type": "file", "hash": node_items.digest(b"secret"), "mode": "0400"}
    plain, keyed, other = (node_record.Call("x", record_key=key) for key in (None, "one", "two"))
    assert plain.recordable(state, secret=True) == {"type": "file", "hash": None, "mode": "0400"}
    assert plain.recordable(state, secret=False) == state
    first, second = keyed.recordable(state, secret=True)["hash"], other.recordable(state, secret=True)["hash"]
    assert first.startswith("hmac-")
    assert first.split(":")[0] != second.split(":")[0], "which key it was can be told"
    assert state["hash"].split(":")[1] not in first
    assert keyed.recordable(state, secret=True)["hash"] == first


# The fixed order


@pytest.mark.parametrize(("check", "again"), [(True, []), (False, [("file", ["/early"])])])
def test_the_order_is_fixed_whatever_the_order_of_the_arguments(
    store: Path, monkeypatch: pytest.MonkeyPatch, check: bool, again: list[tuple[str, list[str]]]
) -> None:
    """Only the loop is watched here; what each step does is proven elsewhere."""
    seen: list[tuple[str, list[str]]] = []

    def watch(_call: Any, kind: Any, items: list[Any]) -> None:
        seen.extend([(kind.label, [item.name for item in items])] if items else [])
        for item in items:
            _call.note(f"{kind.label}:{item.name}", {"version": "1", "held": False})

    for part in (module, node_early):
        monkeypatch.setattr(part, "converge", watch)
    arguments = normalise(
        units=[{"name": "u"}],
        sysctl={"vm.swappiness": 1},
        files=[{"dest": "/late", "content": ""}, {"dest": "/early", "content": "", "before_packages": True}],
        directories=[{"path": "/d"}],
        packages=["p"],
        repositories=[{"name": "r", "url": "https://x", **KEY}],
    )
    monkeypatch.setattr(module, "with_key", lambda item, _manager, _check: {"name": item["name"]})
    monkeypatch.setattr(module, "reload_units", lambda _call: None)
    module.present(call(check=check), arguments, lambda: node_packages.Apt([]))
    assert seen == [
        ("file", ["/early"]),
        ("repository", ["/etc/apt/keyrings/r.asc", "/etc/apt/sources.list.d/r.sources"]),
        ("package", ["p"]),
        *again,
        ("directory", ["/d"]),
        ("file", ["/late", "/etc/sysctl.d/60-clusterctl-demo.conf"]),
        ("sysctl", ["vm.swappiness"]),
        ("unit", ["u.service"]),
    ]


@pytest.mark.parametrize("is_new", [True, False])
def test_an_early_file_that_a_packages_script_changes_is_set_again(store: Path, tmp_path: Path, is_new: bool) -> None:
    path, ran = tmp_path / "engine.yml", tmp_path / "ran"
    given = [entry(path, b"a", on_change=[["sh", "-c", f"echo >> {ran}"]])]
    for _ in range(1 if is_new else 2):
        done = call()
        node_items.converge(done, node_items.Paths("file"), given)
        node_items.run_commands(done, given)
        done.pending.clear()
        done.save()
    assert [one["kind"] for one in done.changes] == (["file", "command"] if is_new else [])
    path.chmod(0o660)  # as the package's script would
    node_early.settle(done, given)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert [one["kind"] for one in done.changes] == ["file", "command"]
    assert done.edited == []
    assert len(ran.read_text().splitlines()) == (1 if is_new else 2)


def test_a_source_that_cannot_be_trusted_is_tried_again_with_its_renewed_key(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apt, expired = node_packages.Apt([]), "W: GPG error: https://x ./ InRelease: EXPKEYSIG 0123\n"
    answers: list[str] = []
    monkeypatch.setattr(apt, "apt_get", lambda *_words: answers.pop(0))
    for renewed, told in ((True, [expired, ""]), (False, [expired]), (True, [expired, expired])):
        monkeypatch.setattr(node_packages, "renewed", lambda _told, _manager, renewed=renewed: renewed)
        answers[:] = told
        if told[-1]:
            with pytest.raises(node_tools.NodeError, match="a source cannot be trusted"):
                apt.refresh()
        else:
            apt.refresh()
        assert answers == []


# Paths


def entry(path: Path, content: bytes = b"", **given: Any) -> Any:
    owner = {"owner": str(os.getuid()), "group": str(os.getgid())}
    return node_items.Entry(str(path), data=base64.b64encode(content).decode(), **{**owner, **given})


def put(store: Path, *items: Any, label: str = "file", **options: Any) -> Any:
    done = call(**options)
    node_items.converge(done, node_items.Paths(label), list(items))
    done.pending.clear()
    done.save()
    return done


@pytest.mark.proves("node_state", "A file is created, changed, then left alone, and removed on request.")
def test_a_file_is_created_changed_and_then_left_alone(store: Path, tmp_path: Path) -> None:
    path = tmp_path / "etc/x.d/x.conf"
    assert put(store, entry(path, b"one\n", mode="0640")).changes == [
        node_tools.change("directory", str(path.parents[1]), "created", "created"),
        node_tools.change("directory", str(path.parent), "created", "created"),
        node_tools.change("file", str(path), "created", "created"),
    ]
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"one\n", 0o640)
    inode = path.stat().st_ino
    assert put(store, entry(path, b"one\n", mode="0640")).changes == []
    assert put(store, entry(path, b"one\n", mode="0600")).changes[0]["what"] == "mode 0600, was 0640"
    assert path.stat().st_ino == inode, "a mode is changed in place"
    assert put(store, entry(path, b"two\n", mode="0600")).changes == [
        node_tools.change("file", str(path), "changed", "content")
    ]
    assert sorted(file.name for file in path.parent.iterdir()) == ["x.conf"], "no temporary file is left"
    assert put(store, entry(path, type="absent")).changes == [
        node_tools.change("file", str(path), "removed", "removed")
    ]
    assert not path.exists()


@pytest.mark.proves("node_state", "A change by hand is distinguished from one of the role.")
def test_edited__file_that_a_role_left_as_it_is__is_a_change_by_hand(store: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.conf"

    def edited(content: bytes, check: bool = False) -> list[str]:
        done = call(check=check)
        node_items.converge(done, node_items.Paths("file"), [entry(path, content)])
        if not check:
            done.save()
        found: list[str] = done.result()["edited"]
        return found

    assert edited(b"one\n") == [], "a new file"
    assert edited(b"one\n") == []
    path.write_bytes(b"by hand\n")
    assert edited(b"one\n", check=True) == [str(path)]
    assert edited(b"two\n", check=True) == [], "the role changes it, too"
    assert edited(b"one\n") == [str(path)]
    assert path.read_bytes() == b"one\n"
    assert edited(b"two\n") == []


@pytest.mark.proves("node_state", "A file swapped for a link does not redirect a change of mode.")
def test_what_became_a_link_since_it_was_looked_at_changes_no_hands(store: Path, tmp_path: Path) -> None:
    """The folder may be a daemon's own, and who runs as that daemon would have any file of the node given to it."""
    prize, path = tmp_path / "shadow", tmp_path / "key"
    prize.write_text("x")
    prize.chmod(0o600)
    path.symlink_to(prize)
    paths, item = node_items.Paths("file"), entry(path, b"x", mode="0644")
    seen = {"type": "file", "mode": "0600", "uid": os.getuid(), "gid": os.getgid(), "hash": node_items.digest(b"x")}
    os.lchown(path, 65534, 65534)
    with pytest.raises(OSError, match="symbolic links"):
        paths.put(item, path, seen, item.wanted(check=False))
    assert stat.S_IMODE(prize.stat().st_mode) == 0o600


def test_a_link_takes_the_place_of_a_file(store: Path, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("x")
    put(store, entry(tmp_path / "x", type="link", target="/etc/hostname"))
    assert (tmp_path / "x").readlink() == Path("/etc/hostname")
    assert put(store, entry(tmp_path / "x", type="link", target="/etc/hostname")).changes == []
    put(store, entry(tmp_path / "x", b"y"))
    assert (tmp_path / "x").read_bytes() == b"y"
    assert not (tmp_path / "x").is_symlink()


def insert(store: Path, path: Path, lines: str, before: str, **options: Any) -> Any:
    """Insert lines as a role would, by both halves of the module."""
    (item,) = normalise(files=[{"dest": str(path), "insert": lines, "before": before, **options}])["files"]
    done = call()
    node_items.converge(done, node_items.Paths("file"), node_insert.entries("demo", [item]))
    done.save()
    return done


INSERTED = "# BEGIN clusterctl demo\none\n# END clusterctl demo\n"


@pytest.mark.proves("node_state", "Inserted lines move with their place and leave the rest of the file alone.")
def test_insert__into_somebody_elses_file__is_found_again(store: Path, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"a 1\na 2\n\xff")
    path.chmod(0o644)
    assert insert(store, path, "one\n", "^a 2").changes[0]["what"] == "content"
    assert path.read_bytes() == b"a 1\n" + INSERTED.encode() + b"a 2\n\xff"
    assert insert(store, path, "one\n", "^a 2").changes == []
    path.write_bytes(path.read_bytes().replace(b"a 1", b"a 2") + b"\na 3")
    insert(store, path, "one\n", "^a 2")
    assert path.read_bytes() == INSERTED.encode() + b"a 2\na 2\n\xff\na 3"
    insert(store, path, "", "^a 2")
    assert path.read_bytes() == b"a 2\na 2\n\xff\na 3"


@pytest.mark.proves("node_state", "Undo takes inserted lines out and keeps what others changed since.")
def test_insert__undone_after_others_changed_the_file__keeps_their_changes(store: Path, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("a\n")
    path.chmod(0o644)
    insert(store, path, "one\n", "^a")
    path.write_text(path.read_text() + "theirs\n")
    undo(store)
    assert path.read_text() == "a\ntheirs\n"


def test_insert__without_its_line_or_file__is_an_error(store: Path, tmp_path: Path) -> None:
    path = tmp_path / "x"
    with pytest.raises(node_tools.NodeError, match=f"file {path}: No such file"):
        insert(store, path, "one\n", "^a")
    assert insert(store, path, "one\n", "^a", optional=True).changes == []
    path.write_text("b\n")
    with pytest.raises(node_tools.NodeError, match=r"no line matches \^a, so nothing was inserted"):
        insert(store, path, "one\n", "^a", optional=True)
    assert path.read_text() == "b\n"


@pytest.mark.proves("firewall", "The rule stands before what may end each distribution's PAM stack.")
@pytest.mark.parametrize(
    ("sample", "included"),
    [
        ("debian-12-sshd", "@include common-account"),
        ("debian-12-cron", "@include common-account"),
        ("debian-12-atd", "@include common-account"),
        ("redhat-sshd", "account    include      password-auth"),
        ("redhat-crond", "account    include    password-auth"),
    ],
)
def test_logins__pam_of_each_system__has_its_place(sample: str, included: str) -> None:
    before = LOGINS["__slurm_logins_before"]
    content = Path(__file__).parents[1].joinpath("samples/pam", sample).read_bytes()
    lines = node_insert.inserted("demo", content, "account required x\n", before).decode().splitlines()
    assert lines.index(included) == lines.index("account required x") + 2
    enders = [line for line in lines[: lines.index(included)] if re.match(r"account\s+sufficient", line)]
    assert enders == []


@pytest.mark.parametrize("file", ["pam-ssh", "pam-cron"])
def test_logins__our_lines__end_the_stack_for_nobody_whom_they_let_in(file: str) -> None:
    """And each jumps over all that follow it, to what the distribution includes."""
    lines = (paths.content() / "roles/slurm_logins/files" / file).read_text().splitlines()
    for at, line in enumerate(lines[:-1]):
        assert line.startswith(f"account [success={len(lines) - 1 - at} default=ignore] ")
    assert lines[-1].startswith("account required ")
    assert all("nodefgroup" in line for line in lines if "pam_access.so" in line)


def test_a_folder_is_never_removed_for_a_file(store: Path, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    for item in (entry(tmp_path / "x", b"y"), entry(tmp_path / "x", type="absent")):
        with pytest.raises(node_tools.NodeError, match=r"file .*/x: it is a directory, which is not removed"):
            put(store, item)
    (tmp_path / "y").write_text("y")
    with pytest.raises(node_tools.NodeError, match=r"directory .*/y: it is a file, which is not removed"):
        put(store, entry(tmp_path / "y", type="directory"), label="directory")


@pytest.mark.proves("node_state", "Content that its validator refuses is not used.")
def test_what_the_validator_refuses_is_not_used(store: Path, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("old")
    refused = entry(tmp_path / "x", b"CANARY", validate="sh -c 'cat $0; exit 3' %s")
    with pytest.raises(node_tools.NodeError, match=r"sh refuses the new content \(exit code 3\).*\nCANARY"):
        put(store, refused)
    refused.secret = True
    with pytest.raises(node_tools.NodeError, match=r"its output is withheld") as caught:
        put(store, refused)
    assert "CANARY" not in str(caught.value)
    assert (tmp_path / "x").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store", "x"]
    put(store, entry(tmp_path / "x", b"new", validate="grep -q new %s"))
    assert (tmp_path / "x").read_text() == "new"


def test_an_unknown_owner_is_a_change_in_check_mode_and_an_error_otherwise(store: Path, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("x")
    item = entry(tmp_path / "x", b"x", owner="nosuchuser")
    assert put(store, item, check=True).changes[0]["what"].startswith("uid None, was")
    with pytest.raises(node_tools.NodeError, match="this node has no user nosuchuser"):
        put(store, item)


@pytest.mark.proves("secrets", "`--diff` shows no content of a secret file.")
def test_differences_are_shown_but_never_those_of_a_secret(store: Path, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("a\nb\n")
    shown = put(store, entry(tmp_path / "x", b"a\nc"), check=True, want_diff=True).result()["diff"]
    assert shown[0]["prepared"].splitlines()[2:] == ["@@ -1,2 +1,2 @@", " a", "-b", "+c", f"file {tmp_path}/x: content"]
    hidden = put(store, entry(tmp_path / "x", b"CANARY", secret=True), want_diff=True)
    assert hidden.result()["diff"] == []
    assert "CANARY" not in json.dumps(hidden.result())
    large = put(store, entry(tmp_path / "x", b"\x1b[31m\n" * 9999), check=True, want_diff=True).result()["diff"][0]
    assert len(large["prepared"]) < 5000
    assert "\x1b" not in large["prepared"]
    binary = put(store, entry(tmp_path / "x", b"\0\1"), check=True, want_diff=True).result()["diff"][0]["prepared"]
    assert binary.startswith("binary content\n")


@pytest.mark.proves("node_state", "A file with state restored gets back what was there, and leaves the record.")
def test_restored__a_recorded_file__is_as_before_and_unmanaged(store: Path, tmp_path: Path) -> None:
    old, new, foreign, shared = (tmp_path / name for name in ("old", "new", "foreign", "shared"))
    for path in (old, foreign, shared):
        path.write_text("theirs")
    old.chmod(0o604)
    put(store, entry(old, b"1"), entry(new, b"2"), entry(shared, b"3"))
    other = call("other")
    node_items.converge(other, node_items.Paths("file"), [entry(shared, b"3")])
    other.save()
    files = [{"dest": str(path), "state": "restored"} for path in (old, new, foreign, shared)]
    for changed in (True, False):
        done = call()
        module.present(done, normalise(files=files), lambda: node_packages.Apt([]))
        assert [one["name"] for one in done.changes] == [str(old), str(new)] * changed
    assert (old.read_text(), f"{old.stat().st_mode & 0o777:o}", new.exists()) == ("theirs", "604", False)
    assert (foreign.read_text(), shared.read_text()) == ("theirs", "3")
    assert {key for key in node_record.load_record("demo")["items"] if "shared" not in key} == set()
    assert not node_record.original(str(old)).exists()


def undo(store: Path) -> Any:
    done = call()
    module.absent(done, {}, lambda: pytest.fail("no package was recorded"))
    return done


@pytest.mark.proves("node_state", "Undo restores earlier files, modes and links.")
def test_undo_puts_back_what_was_there(store: Path, tmp_path: Path) -> None:
    old, new, link = tmp_path / "old", tmp_path / "a/b/new", tmp_path / "link"
    old.write_bytes(b"\xffold")
    old.chmod(0o604)
    link.symlink_to("/etc/hostname")
    items = [entry(old, b"1", secret=True), entry(new, b"2"), entry(link, b"3")]
    put(store, *items)
    put(store, entry(old, b"4", secret=True))
    told = undo(store)
    assert (old.read_bytes(), stat.S_IMODE(old.stat().st_mode)) == (b"\xffold", 0o604)
    assert link.readlink() == Path("/etc/hostname")
    assert not (tmp_path / "a").exists()
    assert not any(store.rglob("*/*"))
    assert {change["name"] for change in told.changes} == {
        str(old),
        str(new),
        str(link),
        str(new.parent),
        f"{tmp_path}/a",
    }
    assert undo(store).changes == []


def test_undo_leaves_what_another_scope_names_and_what_others_put_there(store: Path, tmp_path: Path) -> None:
    put(store, entry(tmp_path / "x", b"1"), entry(tmp_path / "d/y", b"2"))
    put(store, entry(tmp_path / "x", b"1"), scope="other")
    (tmp_path / "d/foreign").write_text("")
    told = undo(store)
    assert (tmp_path / "x").exists()
    assert not (tmp_path / "d/y").exists()
    assert told.notes == [f"directory {tmp_path}/d is not empty and was not removed"]


@pytest.mark.proves("node_state", "A probe reports edited, removed and re-moded files; secrets with the key only.")
def test_probe_tells_what_is_not_as_recorded(store: Path, tmp_path: Path) -> None:
    names = ("same", "edited", "mode", "gone", "secret")
    put(store, *(entry(tmp_path / name, b"1", secret=name == "secret") for name in names), record_key="key")
    (tmp_path / "edited").write_text("2")
    (tmp_path / "mode").chmod(0o666)
    (tmp_path / "gone").unlink()
    (tmp_path / "secret").write_text("2")

    def drift(key: str | None) -> dict[str, str]:
        asked = node_record.Call(None, record_key=key)
        found = module.probe(asked, {}, lambda: pytest.fail("no package was recorded"))
        return {Path(item["name"]).name: item["what"] for item in found}

    seen = {"edited": "edited", "mode": "mode 0666, was 0644", "gone": "removed"}
    assert drift("key") == {**seen, "secret": "edited"}
    assert drift("other") == drift(None) == seen, "another key tells nothing about a secret"


def test_kernel_settings_that_cannot_be_set_are_one_note_and_no_change(store: Path) -> None:
    def notes(too: str, verbose: bool = False) -> list[str]:
        done = call()
        done.verbose = verbose
        wanted = [node_kernel.Setting("kernel.nosuch", "1"), node_kernel.Setting("kernel.nosuch/too", too)]
        node_items.converge(done, node_kernel.Settings(), wanted)
        done.save()
        assert done.changes == []
        said: list[str] = done.notes
        return said

    told = (
        "kernel settings that could not be changed: kernel.nosuch is absent, not 1; kernel.nosuch/too is absent, not 2"
    )
    assert [notes("2"), notes("2"), notes("2", verbose=True)] == [[told], [], [told]]
    assert notes("3") == ["kernel settings that could not be changed: kernel.nosuch/too is absent, not 3"]


# Tools


def test_an_error_names_the_filesystem() -> None:
    with (
        pytest.raises(node_tools.NodeError, match=r"file /proc/x: No such file.*"),
        node_tools.about("file", "/proc/x"),
    ):
        Path("/proc/x").write_text("")
    with (
        pytest.raises(node_tools.NodeError, match=r"file /proc/x: No space left on device \(filesystem /proc\)"),
        node_tools.about("file", "/proc/x"),
    ):
        raise OSError(28, "No space left on device", "/proc/x")


NOTHING = {"version": None, "held": False}


@pytest.mark.parametrize(
    ("label", "was", "now", "told"),
    [
        ("package", {"version": "2-1", "held": True}, {"version": "1-1", "held": False},
         "version 1-1, was 2-1, no longer held"),
        ("package", {"version": "2-1", "held": True}, NOTHING, "removed"),
        ("package", NOTHING, {"version": "2-1", "held": False}, "installed (2-1)"),
        ("package", NOTHING, NOTHING, ""),
        ("unit", {"enablement": "enabled", "state": "up"}, {"enablement": "masked", "state": "down"},
         "masked, was enabled; not running"),
        ("unit", {"enablement": "static", "state": "up"}, {"enablement": "static", "state": "up"}, ""),
        ("unit", {"enablement": "enabled", "state": "up"}, {"enablement": "", "state": "up"},
         "unknown to systemd, was enabled"),
        ("unit", {"enablement": "disabled", "state": "down"}, {"enablement": "disabled", "state": "up"}, "running"),
        ("sysctl", {"value": "10"}, {"value": "60"}, "60, was 10"),
        ("sysctl", {"value": "10"}, {"value": None}, "absent, was 10"),
        ("sysctl", {"value": "0"}, {"value": "0"}, ""),
        ("file", {"type": "file", "mode": "0644"}, {"type": "file", "mode": "0600"}, "mode 0600, was 0644"),
        ("file", {"type": "absent"}, {"type": "file"}, "created"),
    ],
)  # fmt: skip
def test_drift_in_words(label: str, was: dict[str, Any], now: dict[str, Any], told: str) -> None:
    assert node_drift.words(label, {"now": was}, now, node_record.Call(None)) == told


def test_what_an_interrupted_run_left_is_drift_until_it_is_done(store: Path, tmp_path: Path) -> None:
    put(store, entry(tmp_path / "x", b"1"))
    interrupted = call()
    interrupted.pending.append("package:demo")
    interrupted.save()
    told, versions = node_drift.compare(node_record.Call(None), lambda: pytest.fail("no package was recorded"))
    assert [(item["scope"], item["kind"], item["name"]) for item in told] == [("demo", "pending", "package:demo")]
    assert versions == {}


@pytest.mark.proves("node_state", "What a role no longer describes is not compared, but still undone.")
def test_drift__of_what_the_role_describes_no_more__is_none(store: Path, tmp_path: Path) -> None:
    def describe(*names: str, **arguments: Any) -> None:
        given = [{"path": str(tmp_path / name), "owner": str(os.getuid()), "group": str(os.getgid())} for name in names]
        module.present(call(), normalise(directories=given, **arguments), lambda: pytest.fail("no package was named"))

    def differing() -> list[str]:
        drift, _ = node_drift.compare(call(), lambda: pytest.fail("no package was recorded"))
        return [Path(item["name"]).name for item in drift]

    describe("alice", "bob")
    (tmp_path / "bob").rmdir()
    assert differing() == ["bob"]
    describe("alice", partial=True)
    assert differing() == ["bob"]  # another call of the scope has it
    describe("alice")
    assert differing() == []
    module.absent(call(), {}, lambda: pytest.fail("no package was recorded"))
    assert not (tmp_path / "alice").exists()
    describe("alice", "bob")
    describe("alice")
    describe("alice", "bob")
    (tmp_path / "bob").rmdir()
    assert differing() == ["bob"]  # described again


@pytest.mark.proves("node_state", "A second call with the same arguments leaves the record as it is.")
def test_record__of_the_same_call_again__is_the_same(store: Path, tmp_path: Path) -> None:
    """Also of the directories above a file, which only the first call makes."""
    mine = {"owner": str(os.getuid()), "group": str(os.getgid())}
    given = normalise(
        files=[{"dest": str(tmp_path / "a/b/file"), "content": "x", **mine}],
        directories=[{"path": str(tmp_path / "c"), **mine}],
    )
    records = []
    for _ in range(3):
        module.present(call(), given, lambda: pytest.fail("no package was named"))
        records.append(node_record.record_path("demo").read_text())
    assert records[0] == records[1] == records[2]
    (tmp_path / "a/b").chmod(0o700)
    drift, _ = node_drift.compare(call(), lambda: pytest.fail("no package was recorded"))
    assert [item["name"] for item in drift] == [str(tmp_path / "a/b")]


@pytest.mark.proves("node_state", "An unchanged file that is not in effect has its commands run again.")
@pytest.mark.parametrize("check", [False, True])
def test_file__that_is_not_in_effect__runs_its_commands(store: Path, tmp_path: Path, check: bool) -> None:
    program, loaded = tmp_path / "program", tmp_path / "loaded"
    mine = {"owner": str(os.getuid()), "group": str(os.getgid())}
    text = f"#!/bin/sh\ncase $1 in load) touch {loaded};; *) test -e {loaded};; esac\n"
    given = normalise(
        files=[
            {"dest": str(program), "content": text, "mode": "0755", **mine},
            {"dest": str(tmp_path / "rules"), "content": "x", "on_change": [str(program), "load"],
             "in_effect": [str(program), "status"], **mine},
        ]
    )  # fmt: skip

    def made(*, check: bool = False) -> list[tuple[str, str, str]]:
        one = call() if not check else node_record.Call("demo", check=True)
        one.open()
        module.present(one, given, lambda: pytest.fail("no package was named"))
        return [(change["kind"], Path(change["name"]).name, change["what"]) for change in one.changes]

    ran = ("command", "program", "run")
    assert made() == [("file", "program", "created"), ("file", "rules", "created"), ran]
    assert made() == []
    loaded.unlink()
    assert made(check=check) == [("file", "rules", "not in effect"), ran]
    assert loaded.exists() is not check
    made()
    assert made() == []
    program.unlink()  # then it cannot say so
    assert made(check=check) == [("file", "program", "created"), ("file", "rules", "not in effect"), ran]
    assert program.exists() is not check


@given(st.text(max_size=200), st.integers(min_value=1, max_value=50))
def test_a_tools_text_is_printable_and_bounded(said: str, limit: int) -> None:
    told = node_tools.clean(said, limit)
    assert len(told) <= limit + 3
    assert all(character in "\n\t" or character.isprintable() for character in told)


def test_apts_own_words_are_told() -> None:
    output = """\
Get:1 http://deb.debian.org/debian trixie InRelease
Err:2 http://mirror.example/debian trixie InRelease
  404  Not Found [IP: 192.0.2.1 80]
Reading package lists...
E: The repository 'http://mirror.example/debian trixie Release' does not have a Release file.
N: Updating from such a repository can't be done securely.
"""
    told = node_tools.complaint(output).splitlines()
    assert told[0].startswith("Err:2 http://mirror.example/debian")
    assert "404  Not Found" in told[1]
    assert told[2].startswith("E: The repository")
    assert len(told) == 3
    told = node_tools.complaint(
        "Setting up x\ndpkg: error processing package x (--configure):\n exit status 1\nProcessing\n y"
    )
    assert told == "dpkg: error processing package x (--configure):\n exit status 1"
    assert node_tools.complaint("one\n\n two\n") == "one\n two"


HOLD_LOCK = "import fcntl, sys; f = open(sys.argv[1], 'w'); {take}; print('held', flush=True); sys.stdin.read()"


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[Callable[[str], "subprocess.Popen[str]"]]:
    """Start a process that holds a lock on tmp_path/lock until its input is closed."""
    started = []

    def start(take: str) -> "subprocess.Popen[str]":
        argv = [sys.executable, "-c", HOLD_LOCK.format(take=take), str(tmp_path / "lock")]
        held = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(held)
        assert held.stdout and held.stdout.readline() == "held\n"
        return held

    yield start
    for held in started:
        if held.poll() is None:
            held.communicate("")


@pytest.mark.proves("packages", "The holder of a package lock is named by process.")
def test_the_holder_of_a_posix_lock_is_named(tmp_path: Path, holder: Callable[[str], "subprocess.Popen[str]"]) -> None:
    lock = tmp_path / "lock"
    assert node_tools.lock_holder([lock]) is None
    holding = holder("fcntl.lockf(f, fcntl.LOCK_EX)")
    told = node_tools.lock_holder([tmp_path / "none", lock])
    assert told.startswith(f"pid {holding.pid} (")
    assert "fcntl.lockf" in told
    with pytest.raises(node_tools.NodeError, match=rf"the lock is still held by pid {holding.pid} .* after 0 s"):
        node_tools.wait_until_free("the lock", lambda: node_tools.lock_holder([lock]), [], limit=0)


@pytest.mark.proves("packages", "A wait for a lock is noted with its holder.")
def test_a_lock_that_comes_free_is_noted_with_its_holder() -> None:
    answers, notes = iter(["pid 1 (apt)", "pid 2 (dpkg)", None]), []  # type: ignore[var-annotated]
    node_tools.wait_until_free("the package lock", lambda: next(answers), notes)
    assert re.fullmatch(r"waited \d s for the package lock, held by pid 2 \(dpkg\)", notes[0])


def test_process__long_command__is_shown_by_its_beginning() -> None:
    with subprocess.Popen(["sleep", "99", *["0"] * 200]) as long:
        wait_until_shown(long)
        shown = node_tools.process(long.pid)
        long.kill()
    assert re.fullmatch(rf"pid {long.pid} \(sleep 99( 0)+ ?\[…\]\)", shown)
    assert node_tools.process(long.pid) == f"pid {long.pid} (gone)"


def test_a_run_that_outlived_its_controller_is_waited_for_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holder: Callable[[str], "subprocess.Popen[str]"]
) -> None:
    monkeypatch.setattr(node_tools, "RUN", tmp_path)
    monkeypatch.setattr(node_tools.wait_until_free, "__defaults__", (0,))
    lock = tmp_path / "lock"
    with node_tools.exclusive(lock, []):
        assert lock.read_text().strip() == str(os.getpid())
    orphan = holder("f.write(str(__import__('os').getpid())), f.flush(), fcntl.flock(f, fcntl.LOCK_EX)")
    named = rf"lock is still held by pid {orphan.pid} \({re.escape(sys.executable[:150])}"
    with pytest.raises(node_tools.NodeError, match=named):  # noqa: SIM117
        with node_tools.exclusive(lock, []):
            pytest.fail("the lock is not ours")
    orphan.communicate("")
    with node_tools.exclusive(lock, []):
        pass


def test_alone_on_node__another_module_runs__fails_with_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holder: Callable[[str], "subprocess.Popen[str]"]
) -> None:
    """A run has left the node behind, and the module that it left there does not end."""
    monkeypatch.setattr(node_tools, "RUN", tmp_path)
    monkeypatch.setattr(node_tools, "NODE_WAIT_S", 0)
    (tmp_path / "lock").symlink_to("node_state.lock")  # which is what the other process opens
    other = holder("f.write(str(__import__('os').getpid())), f.flush(), fcntl.flock(f, fcntl.LOCK_EX)")
    waits = rf"node_state.lock is still held by pid {other.pid} .* after 0 s. Run again when it has ended."
    with pytest.raises(node_tools.NodeError, match=waits):  # noqa: SIM117
        with node_tools.alone_on_node([]):
            pytest.fail("the node is not ours")


@pytest.mark.proves("secrets", "What the module prints when it cannot begin has no content of secret files.")
@pytest.mark.parametrize("error", [node_tools.NodeError("locked"), OSError(28, "No space left on device", "/run/x")])
def test_module__that_cannot_begin__prints_no_arguments(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    """Ansible prints all of it with -vvv."""

    def locked(_notes: list[str]) -> None:
        raise error

    key = {"name": "/etc/key", "data": base64.b64encode(b"d0-not-sh0w").decode(), "secret": True}
    given = {"calls": [{"state": "present", "name": "demo", "files": [key]}], "record_key": "d0-not-sh0w"}
    monkeypatch.setattr(module, "alone_on_node", locked)
    monkeypatch.setattr(basic, "_ANSIBLE_ARGS", json.dumps({"ANSIBLE_MODULE_ARGS": given}).encode())
    monkeypatch.setattr(basic, "_ANSIBLE_PROFILE", "legacy")
    with pytest.raises(SystemExit):
        module.main()
    printed = json.loads(capsys.readouterr().out)
    assert printed["failed"]
    assert printed["msg"] in ("locked", "/run/x: No space left on device")
    assert "d0-not-sh0w" not in str(printed)
    assert str(key["data"]) not in str(printed)


@pytest.mark.proves("packages", "A transaction of Debian's packages reloads systemd once.")
@pytest.mark.parametrize(
    ("asked", "made", "reloads"),
    [
        (["--system daemon-reload", "daemon-reload"], [], True),
        (["daemon-reload", "--quiet is-active x", "is-enabled x"], ["--quiet is-active x", "is-enabled x"], True),
        (
            ["--system daemon-reload", "restart x", "try-restart y"],
            ["daemon-reload", "restart x", "try-restart y"],
            False,
        ),
        (["daemon-reload", "start x", "daemon-reload"], ["daemon-reload", "start x"], True),
        (["--user daemon-reload"], ["--user daemon-reload"], False),
        (["daemon-reload", "--root=/ preset x", "daemon-reload"], ["--root=/ preset x"], True),
        (["restart x"], ["restart x"], False),
    ],
)
def test_systemctl__in_a_transaction__reloads_when_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[str], made: list[str], reloads: bool
) -> None:
    """The end reloads what is pending then. The real systemctl is replaced by one that keeps a list."""
    listed, real = tmp_path / "listed", tmp_path / "real"
    real.write_text(f'#!/bin/sh\necho "$*" >>{listed}\n')
    real.chmod(0o755)
    text_ = node_packages.SYSTEMCTL_TEXT.replace("/usr/bin/systemctl", str(real))
    monkeypatch.setattr(node_packages, "SYSTEMCTL_TEXT", text_)
    monkeypatch.setattr(node_packages, "SYSTEMCTL", tmp_path / "transaction/systemctl")

    def run(*argv: str, check: bool = True) -> tuple[int, str]:
        if argv[0] == "apt-config":
            return 0, "path='/opt/bin:/bin:/usr/bin'"
        return subprocess.run([real, *argv[1:]], check=check).returncode, ""

    monkeypatch.setattr(node_packages, "run", run)
    notes: list[str] = []
    with node_packages.one_reload(notes) as (_, option):
        search = option.removeprefix("DPkg::Path=")
        assert search.endswith("/transaction:/opt/bin:/bin:/usr/bin")
        for words in asked:
            subprocess.run(["sh", "-c", f"systemctl {words}"], env={"PATH": search}, check=True)
        assert (listed.read_text().splitlines() if listed.exists() else []) == made
    assert (listed.read_text().splitlines() if listed.exists() else []) == made + ["daemon-reload"] * reloads
    assert list((tmp_path / "transaction").iterdir()) == []


def test_reload__put_off_and_failing__is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The packages are installed, and apt's own error must not be replaced."""
    monkeypatch.setattr(node_packages, "SYSTEMCTL", tmp_path / "systemctl")
    monkeypatch.setattr(node_packages, "run", lambda *argv, check: (1, "Failed to connect to bus"))
    (tmp_path / "systemctl.pending").touch()
    notes: list[str] = []
    for _ in range(2):
        node_packages.reload_pending(notes)
    assert notes == ["systemd was not reloaded after the installation of packages: Failed to connect to bus"]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/etc/systemd/system/munge.service", "munge.service"),
        ("/etc/systemd/system/prometheus.service.d/cluster.conf", "prometheus.service"),
        ("/usr/lib/systemd/system/gpu@0.timer", "gpu@0.timer"),
        ("/etc/systemd/system/getty@.service.d/cluster.conf", ""),
        ("/etc/systemd/system/user-.slice.d/cluster.conf", ""),
        ("/etc/systemd/system/service.d/cluster.conf", ""),
        ("/etc/systemd/system/multi-user.target.wants/munge.service", ""),
        ("/etc/systemd/journald.conf.d/60-cluster.conf", ""),
    ],
)
def test_unit_file__of_one_unit__is_known(path: str, name: str) -> None:
    assert node_systemd.unit_of(path) == name


NEW, DROP_IN = "/etc/systemd/system/u.service", "/etc/systemd/system/u.service.d/x.conf"


@pytest.mark.proves("node_state", "systemd is reloaded if it has not read all unit files that changed.")
@pytest.mark.parametrize(
    ("pending", "created", "fragment", "drop_ins", "reloads"),
    [
        ([], [], "", "", False),
        (["/etc/munge/munge.key", "package:munge"], ["/etc/munge/munge.key"], "", "", False),
        ([NEW], [NEW], NEW, "", False),
        ([NEW, DROP_IN], [NEW, DROP_IN], NEW, f"/usr/lib/systemd/system/u.service.d/y.conf {DROP_IN}", False),
        ([NEW], [], NEW, "", True),  # changed, or created in a run that was killed
        ([NEW], [NEW], "", "", True),  # it knows that this unit is not there
        ([NEW], [NEW], "/usr/lib/systemd/system/u.service", "", True),  # it has read the package's file before
        ([DROP_IN], [DROP_IN], "/usr/lib/systemd/system/u.service", "", True),
        ([NEW, "/etc/systemd/system.conf.d/x.conf"], [NEW, "/etc/systemd/system.conf.d/x.conf"], NEW, "", True),
    ],
)
def test_systemd__with_changed_unit_files__is_reloaded_where_needed(
    monkeypatch: pytest.MonkeyPatch, pending: list[str], created: list[str], fragment: str, drop_ins: str, reloads: bool
) -> None:
    made: list[tuple[str, ...]] = []
    properties = {"FragmentPath": fragment, "DropInPaths": drop_ins}
    monkeypatch.setattr(node_systemd, "run", lambda *argv: made.append(argv))
    monkeypatch.setattr(node_systemd, "reload_pending", lambda _notes: None)
    monkeypatch.setattr(node_items.Units, "show", lambda _, names: {name: unit(**properties) for name in names})
    done = call()
    done.pending = pending
    done.changes = [node_tools.change("file", path, "created") for path in created]
    node_systemd.reload_units(done)
    assert made == [("systemctl", "daemon-reload")] * reloads


SIMPLE = {"Type": "simple", "NRestarts": "0", "InvocationID": "1", "NeedDaemonReload": "no", "Id": "x.service"}
Made = Callable[..., dict[str, Any]]


@pytest.fixture
def made(store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Made:
    """Make calls as Ansible does. systemd says of each daemon what is given for it, once each, then that it runs."""

    def make(calls: list[Any], states: dict[str, list[dict[str, str]]]) -> dict[str, Any]:
        def show(_: Any, names: list[str]) -> dict[str, dict[str, str]]:
            return {name: unit(**{**SIMPLE, **(states[name].pop(0) if states.get(name) else {})}) for name in names}

        monkeypatch.setattr(node_items, "run", lambda *_argv, **_: (0, ""))
        monkeypatch.setattr(node_items.Units, "show", show)
        monkeypatch.setattr(node_watch.Watch, "is_over", lambda _: False)  # however slow this machine is
        monkeypatch.setattr(module, "reload_units", lambda _call: None)
        monkeypatch.setattr(module, "alone_on_node", lambda _notes: contextlib.nullcontext())
        monkeypatch.setattr(basic, "_ANSIBLE_ARGS", json.dumps({"ANSIBLE_MODULE_ARGS": {"calls": calls}}).encode())
        monkeypatch.setattr(basic, "_ANSIBLE_PROFILE", "legacy")
        with pytest.raises(SystemExit):
            module.main()
        printed: dict[str, Any] = json.loads(capsys.readouterr().out)
        return printed

    return make


@pytest.mark.proves("node_state", "A daemon that ends soon after its start fails its role, whatever follows.")
@pytest.mark.parametrize(
    ("later", "fails"),
    [
        ({}, False),
        ({"InvocationID": "2"}, False),  # a later call may start it again
        ({"NRestarts": "1", "InvocationID": "2"}, True),
        ({"ActiveState": "failed"}, True),
        ({"ActiveState": "activating", "SubState": "auto-restart"}, True),
    ],
)
def test_daemon__that_ends_after_later_calls__fails_its_own(
    made: Made, tmp_path: Path, later: dict[str, str], fails: bool
) -> None:
    """Its restart stays due, so that the next run does it again."""
    path = tmp_path / "configuration"
    file = {"dest": str(path), "content": "", "owner": str(os.geteuid()), "group": str(os.getegid())}
    calls = [
        normalise(name="first", files=[file], units=[{"name": "first", "restart_on": [str(path)]}]),
        normalise(name="second", units=[{"name": "second"}]),
    ]
    down = {"ActiveState": "inactive"}
    printed = made(calls, {"first.service": [down, {}, {}, later], "second.service": [down]})
    assert [bool(one.get("failed")) for one in printed["results"]] == [fails, False]
    assert bool(printed.get("failed")) is fails
    assert "first.service did not stay up" in printed.get("msg", "") or not fails
    assert all(one["changed"] for one in printed["results"])
    assert node_record.load_record("first")["pending"] == [str(path)] * fails


def test_daemon__of_an_earlier_call_of_the_scope__is_awaited_before_the_next(made: Made, tmp_path: Path) -> None:
    """Both write the scope's record."""
    own = {"owner": str(os.geteuid()), "group": str(os.getegid())}
    files = [{"dest": str(tmp_path / name), "content": "", **own} for name in ("one", "two")]
    first = {"name": "u", "restart_on": [str(tmp_path / "one")]}
    calls = [normalise(name="s", files=files[:1], units=[first]), normalise(name="s", files=files[1:])]
    assert "failed" not in made(calls, {})
    record = node_record.load_record("s")
    assert {f"file:{tmp_path / name}" for name in ("one", "two")} <= record["items"].keys()
    assert record["pending"] == []


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (["munge.service", "start"], 101),
        (["--quiet", "munge", "start"], 101),
        (["nosuch.service", "restart"], 101),
        (["nosuch.service", "force-reload"], 101),
        (["munge.service", "stop"], 0),
        (["munge.service", "reload"], 0),
    ],
)
def test_the_policy_denies_only_while_the_lock_is_held(tmp_path: Path, asked: list[str], answer: int) -> None:
    lock, script = tmp_path / "lock", tmp_path / "policy"
    script.write_text(node_packages.POLICY_TEXT.replace(str(node_packages.TRANSACTION_LOCK), str(lock)))

    def ask() -> int:
        return subprocess.run(["sh", str(script), *asked], check=False, capture_output=True).returncode

    assert ask() == 0, "no transaction was ever there"
    with lock.open("w") as handle:
        assert ask() == 0, "left behind by a kill"
        fcntl.flock(handle, fcntl.LOCK_EX)
        assert ask() == answer
    assert ask() == 0, "over"


def test_modules__that_compare_a_node__import_those_before_them() -> None:
    """The probe has only these."""
    known: list[str] = []
    for name in contact.drift_modules():
        text = (PLUGINS / f"module_utils/node_state/{name}.py").read_text(encoding="utf-8")
        assert set(re.findall(r"from ansible[.]module_utils[.]node_state[.](\w+)", text)) <= {*known}, name
        known.append(name)


@pytest.mark.parametrize(
    "file",
    [
        "modules/node_state.py",
        *sorted(str(path.relative_to(PLUGINS)) for path in (PLUGINS / "module_utils").rglob("*.py")),
    ],
)
def test_nodes_may_have_an_old_python(file: str) -> None:
    ast.parse((PLUGINS / file).read_text(encoding="utf-8"), feature_version=(3, 8))


def test_the_module_stays_small() -> None:
    files = [PLUGINS / file for file in ("modules/node_state.py", "module_utils/node_state/items.py")]
    assert sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files) < 730
