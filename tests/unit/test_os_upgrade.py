"""When a node has to be rebooted for what is installed there."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tests.unit.test_node_state  # noqa: F401 - lets the modules of the nodes be found
from tests.unit.test_role_plugins import plugin

OS = plugin("library/os_upgrade")


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


@pytest.mark.parametrize(
    ("asked", "boot", "moves", "why"),
    [
        (False, [], ["sudo"], ""),
        (True, [], [], "the distribution asks for it"),
        (False, ["6.12.48+deb13-amd64", "0-rescue-1234"], [], ""),
        (
            False,
            ["6.12.57+deb13-amd64", "6.12.48+deb13-amd64"],
            [],
            "Linux 6.12.57+deb13-amd64 is installed, and 6.12.48",
        ),
        (False, [], ["linux-image-6.12.57+deb13-amd64"], "linux-image-6.12.57[+]deb13-amd64 comes"),
        (False, [], ["linux-image-amd64"], ""),
        (False, [], ["kernel-core"], "kernel-core comes"),
    ],
)
def test_a_reboot_is_asked_for_by_the_distribution_or_by_a_newer_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: bool, boot: list[str], moves: list[str], why: str
) -> None:
    for kernel in boot:
        (tmp_path / f"vmlinuz-{kernel}").touch()
    monkeypatch.setattr(OS, "BOOT", tmp_path)
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(release="6.12.48+deb13-amd64"))
    manager: Any = SimpleNamespace(wants_reboot=lambda: asked)
    assert OS.reason(manager, moves).startswith(why.replace("[+]", "+"))
    assert bool(OS.reason(manager, moves)) is bool(why)
