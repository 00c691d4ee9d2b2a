"""When a node has to be rebooted for what is installed there."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tests.unit.test_node_state  # noqa: F401 - lets the modules of the nodes be found
from tests.unit.test_role_plugins import plugin

OS = plugin("modules/os_upgrade")


@pytest.mark.parametrize(
    ("newer", "older"),
    [
        ("6.12.57+deb13-amd64", "6.12.48+deb13-amd64"),
        ("6.8.0-101-generic", "6.8.0-85-generic"),
        ("5.14.0-570.62.1.el9_6.x86_64", "5.14.0-570.9.1.el9_6.x86_64"),
    ],
)
def test_kernels_are_ordered_by_their_versions(newer: str, older: str) -> None:
    assert OS.numbers(newer) > OS.numbers(older)


def test_flavours_of_one_kernel_are_equal() -> None:
    assert OS.numbers("6.12.57+deb13-amd64") == OS.numbers("6.12.57+deb13-cloud-amd64")


RUNS = "6.12.48+deb13-amd64"
NEWER = "6.12.57+deb13-amd64"
GRUB = """\
if [ "${next_entry}" ] ; then
   set default="${next_entry}"
   set next_entry=
else
   set default="%s"
fi
menuentry 'Debian GNU/Linux' --class debian {
\tlinux /boot/vmlinuz-6.12.57+deb13-amd64 root=UUID=1 ro quiet
}
"""
OLD_ENTRY = f"gnulinux-advanced-1>gnulinux-{RUNS}-advanced-1"


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node's /boot, whose kernel is RUNS and that has no boot loader yet."""
    monkeypatch.setattr(OS, "BOOT", tmp_path)
    monkeypatch.setattr(OS, "LINKS", (tmp_path / "vmlinuz",))
    monkeypatch.setattr(OS, "DUE", tmp_path / "kernel-due")
    monkeypatch.setattr(OS, "store", lambda path, data: path.write_bytes(data))
    monkeypatch.setattr(OS, "boot", lambda: "first")
    monkeypatch.setattr(OS.shutil, "which", lambda _name: None)
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(release=RUNS))
    return tmp_path


def install(node: Path, *kernels: str) -> None:
    for kernel in kernels:
        (node / f"vmlinuz-{kernel}").touch()


def grub(node: Path, default: str, environment: str = "") -> None:
    (node / "grub").mkdir()
    (node / "grub/grub.cfg").write_text(GRUB % default)
    (node / "grub/grubenv").write_text(f"# GRUB Environment Block\n{environment}\n#######")


def ask(asked: bool = False, moves: tuple[str, ...] = (), planned: bool = False) -> tuple[str, list[str]]:
    """Return why the node is to be rebooted, and what is noted."""
    manager: Any = SimpleNamespace(wants_reboot=lambda: asked, restarts=("glibc",))
    notes: list[str] = []
    return OS.reason(manager, moves, planned, notes), notes


@pytest.mark.proves("upgrade", "A reboot is planned for the distribution's request or a newer kernel.")
@pytest.mark.parametrize(
    ("asked", "boot", "moves", "why"),
    [
        (False, [], ["sudo"], ""),
        (True, [], [], "the distribution requires it"),
        (False, [RUNS, "0-rescue-1234"], [], ""),
        (False, [NEWER, RUNS], [], f"Linux {NEWER} is installed, but {RUNS} runs"),
        (False, [], [f"linux-image-{NEWER}"], f"linux-image-{NEWER} comes"),
        (False, [], ["linux-image-amd64"], ""),
        (False, [], ["kernel-core"], "kernel-core comes"),
        (False, [], ["kernel-64k-core"], "kernel-64k-core comes"),
        (False, [], ["glibc"], "glibc comes"),
    ],
)
def test_a_reboot_is_planned_for_the_distribution_or_for_a_newer_kernel(
    node: Path, asked: bool, boot: list[str], moves: list[str], why: str
) -> None:
    install(node, *boot)
    assert ask(asked, tuple(moves), planned=True) == (why, [])


def test_a_kernel_that_has_come_is_a_reason_only_if_it_would_start(node: Path) -> None:
    install(node, RUNS, NEWER)
    assert ask(moves=("kernel-core",))[0] == f"Linux {NEWER} is installed, but {RUNS} runs"
    grub(node, OLD_ENTRY)
    assert ask(moves=("kernel-core",)) == ("", [])
    assert ask(moves=("glibc",)) == ("glibc comes", [])


@pytest.mark.proves("upgrade", "The due kernel is the one that GRUB would start.")
@pytest.mark.parametrize(
    ("default", "environment", "due"),
    [
        ("0", "", NEWER),
        (OLD_ENTRY, "", ""),
        ("${saved_entry}", f"saved_entry={OLD_ENTRY}", ""),
        ("${saved_entry}", f"saved_entry={OLD_ENTRY.replace(RUNS, NEWER)}", NEWER),
        ("${saved_entry}", "", NEWER),
        ("0", f"next_entry={OLD_ENTRY}", ""),
        (f"Advanced options for Debian GNU/Linux>Debian GNU/Linux, with Linux {RUNS}", "", ""),
        (OLD_ENTRY.replace(RUNS, "6.1.0-18-amd64"), "", ""),
    ],
)
def test_the_kernel_that_is_due_is_what_grub_would_start(node: Path, default: str, environment: str, due: str) -> None:
    install(node, RUNS, NEWER, "6.1.0-18-amd64")
    grub(node, default, environment)
    assert OS.due_kernel() == due


def test_without_grub_its_tool_or_the_link_to_the_kernel_tells(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(node, RUNS, NEWER)
    (node / "vmlinuz").symlink_to(f"vmlinuz-{RUNS}")
    assert OS.due_kernel() == ""
    monkeypatch.setattr(OS.shutil, "which", lambda name: f"/usr/sbin/{name}")
    monkeypatch.setattr(OS, "run", lambda *_argv, check: (0, f"/boot/vmlinuz-{NEWER}\n"))
    assert OS.due_kernel() == NEWER


@pytest.mark.proves("upgrade", "A reboot without the expected kernel is reported and not repeated.")
def test_a_reboot_that_was_in_vain_is_told_and_not_repeated(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(node, RUNS, NEWER)
    due: tuple[str, list[str]] = (f"Linux {NEWER} is installed, but {RUNS} runs", [])
    vain = ("", [f"Linux {RUNS} still runs after a reboot, expected {NEWER}: check the boot loader's default"])
    assert [ask(planned=True), ask(), ask(planned=True), ask()] == [due] * 4
    monkeypatch.setattr(OS, "boot", lambda: "second")
    assert [ask(planned=True), ask(), ask()] == [vain] * 3
    assert ask(asked=True) == ("the distribution requires it", vain[1])
    install(node, "6.12.60+deb13-amd64")
    assert ask()[0] == f"Linux 6.12.60+deb13-amd64 is installed, but {RUNS} runs"


def test_a_kernel_that_came_to_run_and_is_due_again_is_no_vain_reboot(
    node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(node, RUNS, NEWER)
    assert ask()[0]
    monkeypatch.setattr(OS, "boot", lambda: "second")
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(release=NEWER))
    assert ask() == ("", [])
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(release=RUNS))
    assert ask() == (f"Linux {NEWER} is installed, but {RUNS} runs", [])


def test_each_start_of_a_node_has_a_name() -> None:
    assert OS.boot() == OS.boot()
    assert len(OS.boot().split()) == 1
