"""Roles that a host still has after it left their group."""

import io
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterctl.commands import bootstrap
from clusterctl.inventory import schema
from clusterctl.run import context, pruning
from clusterctl.run.context import Options, Site
from clusterctl.run.phases import Run
from clusterctl.ui.screen import Screen
from clusterctl.util import paths
from clusterctl.util.errors import WorkersFailed
from clusterctl.workspace import secrets

from .test_cli import clusterctl
from .test_lookups import look_up

INVENTORY = """\
all:
  vars: {cluster_name: aurora}
  children:
    slurm_head: {hosts: {head1: {ansible_host: 10.0.0.10}}}
    slurm_workers: {hosts: {gpu01: {}, gpu02: {}}}
    docker: {hosts: {gpu01: {}}}
    monitoring: {hosts: {mon1: {}}}
"""
BASE = ("sources", "packages", "base", "users", "node_exporter")
WORKER = (*BASE, "munge", "slurm_worker", "gpu_health", "nvidia_driver", "nvidia_daemons", "nvidia_cuda")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    (tmp_path / "inventory.yaml").write_text(INVENTORY)
    return context.load(Options("bootstrap", tmp_path))


@pytest.mark.proves("status", "Unused roles are those recorded on a host without a group for them.")
@pytest.mark.parametrize(
    ("name", "recorded", "unused"),
    [
        ("gpu01", (*WORKER, "containers", "docker"), []),
        ("gpu01", (*WORKER, "containers", "docker", "podman"), ["podman"]),
        ("gpu02", (*WORKER, "pyxis_slurm", "podman", "containers"), ["containers", "podman", "pyxis"]),
        ("mon1", (*BASE, "prometheus"), []),
        ("mon1", (*WORKER, "prometheus"), ["munge", "nvidia_driver", "nvidia_cuda", "gpu_health", "slurm_worker"]),
        ("mon1", (), []),
        ("mon1", ("of_another_version",), []),
    ],
)
def test_unused__by_records_and_groups__are_those_of_no_group(
    site: Site, name: str, recorded: tuple[str, ...], unused: list[str]
) -> None:
    assert sorted(pruning.unused(site.inventory.host(name), recorded)) == sorted(unused)


def test_explain__roles_of_slurm__are_not_offered_to_prune() -> None:
    optional, others = pruning.explain(["munge", "podman", "slurm_worker"])
    assert optional == ("installed, but in no group of the host: podman", f"to uninstall: {pruning.COMMAND}")
    assert others[0].endswith(": munge, slurm_worker")
    assert "--prune" not in others[1]
    assert pruning.explain([]) == []


def test_optional__roles__are_none_of_slurms_and_can_be_uninstalled() -> None:
    runtimes = ("containers", "containerd", "docker", "podman", "apptainer", "enroot", "pyxis")
    found = schema.load().optional
    assert {*found} >= {"mpi", *runtimes, "nvidia_container_toolkit", "prometheus", "dcgm_exporter"}
    assert not {*found} & {*WORKER, "slurm_head", "slurm_logins", "slurm_exporter", "gpu_config", "verify"}
    for role in found:
        assert (paths.content() / f"roles/{role}/tasks/remove.yml").exists()
    assert look_up("host_roles", [], {}, optional=True) == list(found)


@pytest.mark.proves("print-command", "`bootstrap --prune` prints both of its commands.")
def test_print_command__prune__adds_its_playbook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "inventory.yaml").write_text(INVENTORY)
    secrets.ensure(tmp_path, "aurora")
    done = clusterctl("bootstrap", str(tmp_path), "--prune", "--limit", "gpu02", "--print-command")
    assert done.returncode == 0, done.stderr
    commands = [shlex.split(line) for line in done.stdout.splitlines()]
    played = [Path(word).name for words in commands for word in words if word.endswith(".yml")]
    assert played == ["bootstrap.yml", "prune.yml"]
    assert [words[-2:] for words in commands] == [["--limit", "gpu02"]] * 2


@pytest.fixture
def uninstall(site: Site, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return what --prune ends with, and plays, where these hosts have these roles and jobs."""

    def run(found: dict[str, tuple[tuple[str, ...], tuple[str, ...]]]) -> Any:
        facts: Any = {
            name: SimpleNamespace(node=SimpleNamespace(roles=roles, jobs=jobs)) for name, (roles, jobs) in found.items()
        }
        played: list[tuple[str, list[str]]] = []

        def play(_: Run, one: Site, patience: float) -> None:
            played.append((one.playbook, [host.name for host in one.hosts]))

        monkeypatch.setattr(bootstrap, "play", play)
        try:
            bootstrap.UninstallUnused().run(Run(replace(site, facts=facts), Screen(io.StringIO())))
        except WorkersFailed as error:
            return error, played
        return None, played

    return run


@pytest.mark.proves("bootstrap", "`--prune` skips a host with jobs and fails it.")
def test_uninstall_unused__with_jobs_on_a_host__leaves_it_and_fails(uninstall: Any) -> None:
    error, played = uninstall(
        {
            "gpu01": ((*WORKER, "podman"), ("17",)),
            "gpu02": ((*WORKER, "podman"), ()),
            "mon1": ((*WORKER, "prometheus"), ()),  # only what is Slurm's
        }
    )
    assert played == [("prune", ["gpu02"])]
    assert isinstance(error, WorkersFailed)
    assert "gpu01" in str(error)


def test_uninstall_unused__without_unused_roles__plays_nothing(uninstall: Any) -> None:
    assert uninstall({"gpu01": ((*WORKER, "docker", "containers"), ("17",))}) == (None, [])
