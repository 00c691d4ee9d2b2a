"""CodeReady Builder on systems that are registered, and on images of clouds."""

import base64
from pathlib import Path

import pytest
from ansible.errors import AnsibleError

from tests.systems.rendering import a_cluster
from tests.unit.test_role_plugins import plugin

CODEREADY = plugin("filter/codeready")
NODE_STATE = plugin("action/node_state")
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


@pytest.mark.proves("bootstrap", "EPEL comes from each system's list of mirrors, or from the mirror set.")
@pytest.mark.parametrize(
    ("system", "listed", "tree"),
    [
        ("rocky-9", "epel-9", "9"),
        ("centos-9", "epel-9", "9"),
        ("centos-10", "epel-10", "10"),
        ("almalinux-10", "epel-z-10", "10.0z"),
        ("rhel-10", "epel-z-10", "10.0z"),
    ],
)
def test_epel__by_system__has_its_mirrors(tmp_path: Path, system: str, listed: str, tree: str) -> None:
    """As epel-release of EPEL 10 has it: epel${releasever_minor:+-z}-10, and $releasever${releasever_minor:+z}."""
    cluster = a_cluster(tmp_path, system)
    cluster.set("gpu01", cluster_package_mirrors={})
    (epel,) = cluster.role("base", "gpu01").value("__base_repositories")
    assert epel["url"] == f"https://mirrors.fedoraproject.org/metalink?repo={listed}&arch=$basearch"
    content = base64.b64decode(NODE_STATE.repository(epel)["Dnf"][1]["data"]).decode()
    assert f"\nmetalink={epel['url']}\n" in content
    assert "baseurl" not in content
    cluster.set("gpu01", cluster_package_mirrors={"epel": "http://mirror.example/epel"})
    (epel,) = cluster.role("base", "gpu01").value("__base_repositories")
    assert epel["url"] == f"http://mirror.example/epel/{tree}/Everything/$basearch/"
    content = base64.b64decode(NODE_STATE.repository(epel)["Dnf"][1]["data"]).decode()
    assert f"\nbaseurl={epel['url']}\n" in content
