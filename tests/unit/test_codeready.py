"""CodeReady Builder on systems that are registered, and on images of clouds."""

from pathlib import Path

import pytest
from ansible.errors import AnsibleError

from tests.systems.rendering import a_cluster
from tests.unit.test_role_plugins import plugin

CODEREADY = plugin("filter/codeready")
# Ids: github.com/oamg/leapp-repository, etc/leapp/files/repomap.json of 2026-07-29; columns: `dnf repolist --all`.
REGISTERED = """repo id                                     repo name                                        status
codeready-builder-for-rhel-9-x86_64-eus-rpms  Red Hat CodeReady Linux Builder, EUS   disabled
codeready-builder-for-rhel-9-x86_64-rpms      Red Hat CodeReady Linux Builder        {}
codeready-builder-for-rhel-9-x86_64-source-rpms Sources                              disabled
rhel-9-for-x86_64-baseos-rpms                 Red Hat Enterprise Linux 9 - BaseOS    enabled
"""


@pytest.mark.proves("bootstrap", "CodeReady Builder is found on registered RHEL and on images of clouds.")
@pytest.mark.parametrize(
    ("listing", "major", "command"),
    [
        (REGISTERED.format("disabled"), "9",
         "subscription-manager repos --enable=codeready-builder-for-rhel-9-x86_64-rpms"),
        (REGISTERED.format("enabled"), "9", ""),
        # AWS, Azure, Google.
        ("codeready-builder-for-rhel-9-rhui-rpms CRB disabled", "9",
         "dnf config-manager --set-enabled codeready-builder-for-rhel-9-rhui-rpms"),
        ("codeready-builder-for-rhel-9-x86_64-rhui-rpms CRB disabled", "9",
         "dnf config-manager --set-enabled codeready-builder-for-rhel-9-x86_64-rhui-rpms"),
        ("rhui-codeready-builder-for-rhel-10-x86_64-rhui-rpms CRB disabled", "10",
         "dnf config-manager --set-enabled rhui-codeready-builder-for-rhel-10-x86_64-rhui-rpms"),
    ],
)  # fmt: skip
def test_codeready__by_what_dnf_lists__is_enabled_once(listing: str, major: str, command: str) -> None:
    assert " ".join(CODEREADY.codeready(listing, major)) == command


def test_codeready__that_dnf_does_not_know__is_an_error() -> None:
    with pytest.raises(AnsibleError, match="register the system"):
        CODEREADY.codeready(REGISTERED.format("disabled"), "10")


@pytest.mark.proves("bootstrap", "EPEL's tree is that of the minor release from 10 on.")
@pytest.mark.parametrize(
    ("system", "tree"), [("rocky-9", "9"), ("centos-9", "9"), ("almalinux-10", "10.0z"), ("rhel-10", "10.0z")]
)
def test_epel__by_system__has_its_tree(tmp_path: Path, system: str, tree: str) -> None:
    """As epel-release of EPEL 10 has it: $releasever${releasever_minor:+z}."""
    role = a_cluster(tmp_path, system).role("base", "gpu01")
    (epel,) = role.value("__base_repositories")
    assert f"/pub/epel/{tree}/Everything/" in epel["url"]
