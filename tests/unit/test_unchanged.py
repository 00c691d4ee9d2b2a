"""Which workers a bootstrap leaves out: only those of which all that could have changed is known not to have."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from clusterctl.inventory import model
from clusterctl.nodes.contact import Drift, Item
from clusterctl.nodes.probe import state
from clusterctl.run import context, unchanged
from clusterctl.run.context import Options, Site
from clusterctl.util import paths

INVENTORY = """
all:
  vars: {cluster_name: aurora}
  children:
    slurm_head: {hosts: {head1: {ansible_host: 10.0.0.10}}}
    slurm_workers: {hosts: {gpu01: {ansible_host: 10.0.0.11}, gpu02: {ansible_host: 10.0.0.12}}}
    monitoring: {hosts: {head1: {}}}
"""
CLEAN = Drift(None, (), 0, {})
EDITED = Drift(None, (Item("munge", "file", "/etc/munge/munge.key", "edited"),), 0, {})

# What the tasks of each role do besides node_state, by module and name. A new task may change what no proof has. Before
# it is added here, see that probe/state.py has it in its digest, or take the role out of PROVEN.
NEUTRAL = {"assert", "debug", "fail", "import_tasks", "include_tasks", "include_vars", "meta", "node_state", "set_fact"}
REVIEWED: Mapping[str, set[str]] = {
    "base": {
        "command: Confirm the new firewall",  # after a change
        "command: Enable CodeReady Builder",  # redhat.repo and dnf.conf are in the digest
        "command: List all repositories",
        "lineinfile: Set the package manager's proxy",
        "wait_for_connection: Reconnect",
    },
    "dcgm_exporter": {
        "include_role: Set up NVIDIA's repository",  # of nvidia_driver
        "nvidia_look: Read the GPUs and their driver",
    },
    "munge": {  # of the verb that exchanges the key
        "command: Read the head's clock",
        "munge_key: Schedule the exchange on the head",
        "munge_key: Schedule the exchange on the workers",
        "munge_key: Stage the new key",
        "munge_key: Wait for the exchange",
    },
    "nvidia_cuda": {
        "include_role: Set up NVIDIA's repository",
        "nvidia_look: Read the GPUs and their driver",
    },
    "nvidia_driver": {  # packages, built and loaded modules, boot, kernel and GPUs are in the digest
        "file: Clear the stopped mark",
        "include_role: Prepare Kubernetes on the kernel that runs now",
        "include_role: Reboot the node",
        "nvidia_build: Build and load the kernel modules",
        "nvidia_build: Load the driver that could not be replaced",
        "nvidia_look: Check whether the driver would change",
        "nvidia_look: Read the GPUs and their driver",
        "nvidia_persistence: Check the GPUs' persistence mode",  # a note
        "systemd_service: Restart what else used the driver",
    },
    "packages": {
        "group_by: Group the nodes that follow the heads",
        "include_role: Set up the package sources",  # of base
        "stat: Look for a record of an earlier run",
    },
    "slurm_worker": {"command: Restart Slurm's controller"},  # after a change
    "users": {
        "command: Find what the mount would hide",
        "node_users: Configure groups and users",  # in the digest
        "slurm_accounts: Add accounts and users to Slurm",  # on a head
        "slurm_accounts: Remove departed users from Slurm",
    },
    "verify": {
        "command: Drain failed workers and resume the others",  # a node that is out of service is played
        "command: Verify that every service is enabled and active",  # drift, and the tests of probe/state.py
        "kubernetes_proof: Verify that a pod gets its GPUs and no others, and reaches other nodes",
        "prometheus_targets: Ask Prometheus for its targets",
        "slurm_job_proof: Verify that a user's job gets its GPUs and no others",
    },
}


def tasks_of(role: Path) -> set[str]:
    """Return the tasks of a role, without those that undo it and those that change nothing by themselves."""
    keywords = {"name", "when", "vars", "register", "loop", "loop_control", "run_once", "delegate_to", "environment"}
    keywords |= {"changed_when", "failed_when", "check_mode", "block", "rescue", "always", "no_log", "until", "retries"}
    keywords |= {"delay", "args", "timeout", "become"}
    found: set[str] = set()
    for file in (role / "tasks").glob("*.yml"):
        pending = [] if file.name == "remove.yml" else list(yaml.safe_load(file.read_text()) or [])
        while pending:
            task = pending.pop()
            modules = {key.rpartition(".")[2] for key in task} - keywords - NEUTRAL
            found |= {f"{module}: {task['name']}" for module in modules}
            for part in ("block", "rescue", "always"):
                pending += task.get(part, [])
    return found


@pytest.mark.proves("bootstrap", "Only roles whose whole effect is recorded or in the digest are left out.")
def test_proven__each_role__has_only_reviewed_tasks() -> None:
    roles = paths.content() / "roles"
    assert {name: found for name in unchanged.PROVEN if (found := tasks_of(roles / name))} == REVIEWED


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name, text in {
        "inventory.yaml": INVENTORY,
        "group_vars/all.yml": "cluster_timezone: Etc/UTC\n",
        "host_vars/gpu01.yml": "{}\n",
        "hardware/gpu01.json": "{}",
        "secrets.yml": "$ANSIBLE_VAULT;1.2;AES256;aurora-1\n6100\n",
        "company.pem": "a certificate",
        "known_hosts": "gpu01 ssh-ed25519 AAAA\n",
        ".clusterctl/lock": "",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    "name",
    [
        "inventory.yaml", "group_vars/all.yml", "host_vars/gpu01.yml", "hardware/gpu01.json", "secrets.yml",
        "company.pem", "hardware/gpu02.json", "group_vars/slurm_workers.yml",
    ],
)  # fmt: skip
def test_inputs__of_a_file_that_changes_or_is_new__differ(directory: Path, name: str) -> None:
    before = unchanged.inputs(directory)
    assert before == unchanged.inputs(directory)
    path = directory / name
    path.write_text((path.read_text() if path.exists() else "") + "x")
    assert unchanged.inputs(directory) not in (before, None)


def test_inputs__of_a_file_that_is_renamed_or_removed__differ(directory: Path) -> None:
    found = {unchanged.inputs(directory)}
    (directory / "company.pem").rename(directory / "other.pem")
    found.add(unchanged.inputs(directory))
    (directory / "other.pem").unlink()
    found.add(unchanged.inputs(directory))
    assert len(found) == 3


@pytest.mark.parametrize("name", ["known_hosts", ".clusterctl/lock", ".clusterctl/unchanged.json"])
def test_inputs__of_what_no_role_reads__are_the_same(directory: Path, name: str) -> None:
    before = unchanged.inputs(directory)
    (directory / name).write_text("other")
    assert unchanged.inputs(directory) == before


def test_inputs__that_cannot_be_read__are_unknown(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(directory / "pipe")
    assert unchanged.inputs(directory) is None
    (directory / "pipe").unlink()
    monkeypatch.setattr(unchanged, "_FILES", 3)
    assert unchanged.inputs(directory) is None


def test_inputs__of_another_clusterctl__differ(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = unchanged.inputs(directory)
    monkeypatch.setattr(unchanged, "_of_clusterctl", lambda: "another")
    assert unchanged.inputs(directory) != before


def test_of_clusterctl__a_file_of_a_role_that_changes__differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("playbooks/bootstrap.yml", "plugins/filter/x.py", "roles/munge/tasks/main.yml", "ansible.cfg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("a")
    monkeypatch.setattr(paths, "content", lambda: tmp_path)
    found = set()
    for name in ("", "playbooks/bootstrap.yml", "plugins/filter/x.py", "roles/munge/tasks/main.yml", "ansible.cfg"):
        if name:
            (tmp_path / name).write_text("b")
        found.add(unchanged._of_clusterctl.__wrapped__())
    assert len(found) == 5


def a_site(directory: Path, **facts: Any) -> Site:
    inventory = model.load(directory / "inventory.yaml")
    site = context.load(Options("bootstrap", directory / "inventory.yaml"), inventory)
    known: Any = SimpleNamespace(**({"drift": CLEAN, "state": "a" * 64} | facts))
    return replace(site, facts=dict.fromkeys(("head1", "gpu01", "gpu02"), known))


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    found = {"gpu01", "gpu02"}
    monkeypatch.setattr(unchanged, "_in_service", lambda _site: found)
    return found


def proven(site: Site, **other: str) -> unchanged.Proof:
    now = unchanged.inputs(site.inventory.directory)
    assert now
    proof = unchanged.Proof(**({"inputs": now, "state": "a" * 64, "at": "2026-11-27 12:00 UTC"} | other))
    unchanged._save(site.state, {"gpu01": proof, "head1": proof})
    return proof


def left_out(site: Site) -> list[str]:
    return [*unchanged.of(site, unchanged.inputs(site.inventory.directory), unchanged.candidates(site))]


@pytest.mark.proves("bootstrap", "Only a worker whose inputs, state, records and service are as proven is left out.")
def test_of__a_worker_as_proven__is_left_out_and_no_other(directory: Path, heard: set[str]) -> None:
    site = a_site(directory)
    assert left_out(site) == []
    proven(site)
    assert left_out(site) == ["gpu01"]  # the head never; gpu02 has no proof
    assert [host.name for host in unchanged.without(site, ["gpu01"]).hosts] == ["head1", "gpu02"]


CHANGES: Mapping[str, Callable[[Path, set[str]], dict[str, Any]]] = {
    "an edited file": lambda _path, _heard: {"drift": EDITED},
    "more differences than shown": lambda _path, _heard: {"drift": Drift(None, (), 1, {})},
    "no comparison": lambda _path, _heard: {"drift": None},
    "a comparison that failed": lambda _path, _heard: {"drift": Drift("no Python", (), 0, {})},
    "another state": lambda _path, _heard: {"state": "b" * 64},
    "no state": lambda _path, _heard: {"state": None},
    "a changed inventory": lambda path, _heard: {"_": (path / "inventory.yaml").open("a").write("# more\n")},
    "a silent node": lambda _path, heard: {"_": heard.remove("gpu01") or ""},  # type: ignore[func-returns-value]
    "a damaged proof": lambda path, _heard: {"_": (path / ".clusterctl/unchanged.json").write_text('{"gpu01": 3}')},
    "an unknown field": lambda path, _heard: {
        "_": (path / ".clusterctl/unchanged.json").write_text(json.dumps({"gpu01": {"inputs": "", "more": ""}}))
    },
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_of__a_worker_that_may_have_changed__is_played(directory: Path, heard: set[str], change: Any) -> None:
    proven(a_site(directory))
    facts = {key: value for key, value in change(directory, heard).items() if key != "_"}
    assert left_out(a_site(directory, **facts)) == []


@pytest.mark.parametrize(
    ("groups", "is_possible"),
    [
        ("    gpu_metrics: {hosts: {gpu01: {}}}\n", True),
        ("    containerd: {hosts: {gpu01: {}}}\n", True),
        ("    docker: {hosts: {gpu01: {}}}\n", False),
        ("    gpu_config: {hosts: {gpu01: {}}}\n", False),
        ("    logging: {hosts: {gpu01: {}}}\n", False),
    ],
)
def test_candidates__with_a_role_that_is_not_proven__are_none(directory: Path, groups: str, is_possible: bool) -> None:
    (directory / "inventory.yaml").write_text(INVENTORY + groups)
    site = a_site(directory)
    proven(site)
    assert unchanged.candidates(site) == ({"gpu01"} if is_possible else set())


def test_forget__of_a_run__deletes_the_proofs_of_its_hosts(directory: Path, heard: set[str]) -> None:
    site = a_site(directory)
    proof = proven(site)
    unchanged.forget(replace(site, hosts=tuple(host for host in site.hosts if host.name == "gpu02")))
    assert unchanged._load(site.state) == {"gpu01": proof, "head1": proof}
    unchanged.forget(site)
    assert unchanged._load(site.state) == {}
    assert left_out(site) == []


def test_state__of_what_roles_change__differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file of the digest once, here below a folder."""
    names = [*state._CONTENTS, *state._STATUS, "/var/lib/clusterctl/state/munge.json"]
    moved = {name: tmp_path / name.lstrip("/") for name in names}
    monkeypatch.setattr(state, "_CONTENTS", tuple(str(moved[name]) for name in state._CONTENTS))
    monkeypatch.setattr(state, "_STATUS", tuple(str(moved[name]) for name in state._STATUS))
    monkeypatch.setattr(state, "_RECORDS", str(moved[names[-1]].parent / "*.json"))
    found = {state.state([], None), state.state([], "580.1"), state.state([{"uuid": "GPU-1", "mig": None}], None)}
    for path in moved.values():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("a")
        found.add(state.state([], None))
        path.write_text("bb")
        found.add(state.state([], None))
    assert len(found) == 3 + 2 * len(moved)
    assert state.state([], None) == state.state([], None)
