"""Which repository is CodeReady Builder on a RHEL, and the command that enables it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleFilterError


def codeready(listing: str, major: str) -> list[str]:
    """Return the command that enables CodeReady Builder, empty where it is enabled; `listing`: dnf repolist --all.

    A registered system has it by one id, images of clouds, whose repositories are Red Hat's Update Infrastructure, by
    others; of one that comes in several architectures or for extended support too, the plain one counts.
    Ids: github.com/oamg/leapp-repository, etc/leapp/files/repomap.json.
    """
    pattern = rf"(?:rhui-)?codeready-builder-for-rhel-{re.escape(major)}-(?:\w+-)?(?:rhui-)?rpms"
    found = {}
    for line in listing.splitlines():
        words = line.split()
        if words and re.fullmatch(pattern, words[0]) and "-eus-" not in words[0]:
            found[words[0]] = words[-1]
    if "enabled" in found.values():
        return []
    if not found:
        raise AnsibleFilterError("dnf knows no CodeReady Builder: register the system (subscription-manager register)")
    name = min(found, key=len)
    if "rhui" in name:
        return ["dnf", "config-manager", "--set-enabled", name]
    return ["subscription-manager", "repos", f"--enable={name}"]


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"codeready": codeready}
