"""How the lab's programs are started on hosts of other kinds than the one that runs these tests."""

import os
from pathlib import Path

import pytest

from clusterctl.lab import lab, podman
from clusterctl.lab.settings import Settings


@pytest.mark.proves("lab", "The lab uses sudo only for a user who is not root.")
@pytest.mark.parametrize(("user", "prefix"), [(0, []), (1000, ["sudo"])])
def test_as_root__by_any_user__uses_sudo_where_needed(
    monkeypatch: pytest.MonkeyPatch, user: int, prefix: list[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert podman.as_root(["podman", "ps"]) == [*prefix, "podman", "ps"]


@pytest.mark.parametrize(("unified", "options"), [(True, []), (False, ["--runtime", "runc"])])
def test_runtime_options__by_cgroups__leave_crun_to_unified_ones(
    monkeypatch: pytest.MonkeyPatch, unified: bool, options: list[str]
) -> None:
    monkeypatch.setattr(Path, "exists", lambda path: unified and str(path) == "/sys/fs/cgroup/cgroup.controllers")
    assert podman.runtime_options() == options


@pytest.mark.proves("lab", "A node whose system reboots starts again.")
def test_container__of_a_node__starts_again_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its init ends with a signal's number when the system reboots, which for podman is a failure."""
    argv: list[str] = []
    monkeypatch.setattr(lab, "podman", lambda *words: argv.extend(words))
    monkeypatch.setattr(lab, "container_state", lambda name: "")
    one = lab.Lab("tried")
    [head, *_] = (settings := Settings("tried", subnet="10.213.9.0/24")).nodes()
    one._ensure_container(head, settings, "an-image")
    assert argv[: argv.index("an-image")].count("--restart=on-failure") == 1


def test_require_programs__for_an_ordinary_user__names_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(podman, "search_path", lambda: "/nowhere")
    with pytest.raises(podman.LabError, match=r"sudo apt-get install --no-install-recommends .*podman"):
        podman.require_programs()
