"""Filter for the command that enables CodeReady Builder on RHEL."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleFilterError


def codeready(listing: str, major: str) -> list[str]:
    """Return the command that enables CodeReady Builder, empty if it is enabled; `listing`: dnf repolist --all.

    The repository's id differs between registered systems and cloud images with Red Hat Update Infrastructure. If there
    are several, for other architectures or extended support, use the shortest id.
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
        raise AnsibleFilterError(
            "dnf has no CodeReady Builder repository: register the system (subscription-manager register)"
        )
    name = min(found, key=len)
    if "rhui" in name:
        return ["dnf", "config-manager", "--set-enabled", name]
    return ["subscription-manager", "repos", f"--enable={name}"]


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"codeready": codeready}
