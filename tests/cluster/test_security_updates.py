"""Security updates that nodes install by themselves: unattended-upgrades is real, the distribution's server is ours."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.cluster.lab import TestLab, podman
from tests.faults.injury import container, gateway
from tests.faults.repository import SECURITY, repository
from tests.golden import Golden
from tests.programs import output_of

pytestmark = pytest.mark.long

NODE = "gpu01"
PLAIN, HELD, PINNED, OTHERS = "plain-probe", "held-probe", "munge-probe", "other-probe"
CONTROL = "Package: {}\nVersion: {}\nArchitecture: all\nMaintainer: nobody <nobody@example.org>\nDescription: a probe\n"
SOURCE = "Types: deb\nURIs: {}\nSuites: ./\nSigned-By: {}\n"


@pytest.fixture(scope="module")
def lab(golden: Golden) -> Iterator[TestLab]:
    """The cluster as outside of labs: with security updates, and munge's version named by the inventory."""
    with golden.taken() as lab:
        version = lab.root(NODE, "dpkg-query --show --showformat '${Version}' munge").partition("-")[0]
        text = lab.inventory.read_text()
        assert "base_security_updates: false" in text
        text = text.replace("base_security_updates: false", "base_security_updates: true")
        lab.inventory.write_text(text)
        # The test's own servers are asked past the lab's package cache.
        lab.declare(f'munge_version: "{version}"', f"cluster_no_proxy: [{gateway(lab)}]")
        lab.run("bootstrap")
        yield lab


def build(folder: Path, version: str, *names: str) -> Path:
    """Build packages of these names; return the folder that has them."""
    served = folder / f"served-{version}-{names[0]}"
    served.mkdir()
    for name in names:
        about = folder / f"{name}-{version}" / "DEBIAN"
        about.mkdir(parents=True)
        (about / "control").write_text(CONTROL.format(name, version))
        output_of(["dpkg-deb", "--root-owner-group", "--build", str(about.parent), str(served / f"{name}.deb")], 60)
    return served


def versions(lab: TestLab) -> Mapping[str, str]:
    rows = lab.root(NODE, "dpkg-query --show --showformat '${Package} ${Version}\\n' '*-probe'")
    return dict(row.split() for row in rows.splitlines())


@pytest.mark.proves("packages", "Nodes install their distribution's security updates, but none that is held or pinned.")
def test_security_updates__of_the_distribution__are_installed_alone(lab: TestLab, tmp_path: Path) -> None:
    names = (PLAIN, HELD, PINNED, OTHERS)
    for package in build(tmp_path, "1", *names).iterdir():
        podman("cp", str(package), f"{container(lab, NODE)}:/root/")
    lab.root(NODE, f"dpkg --install /root/*-probe.deb; apt-mark hold {HELD}")
    of_debian, of_others = build(tmp_path, "2", PLAIN, HELD, PINNED), build(tmp_path, "2", OTHERS)
    address = gateway(lab)
    with (
        repository(address, packages=of_debian, release=SECURITY) as (security, key),
        repository(address, packages=of_others) as (others, other_key),
    ):
        for name, url, public in (("security", security, key), ("others", others, other_key)):
            path = f"/etc/apt/keyrings/probe-{name}.asc"
            lab.ssh(NODE, "sudo", "tee", path, stdin=public)
            lab.ssh(
                NODE, "sudo", "tee", f"/etc/apt/sources.list.d/probe-{name}.sources", stdin=SOURCE.format(url, path)
            )
        # What apt-daily.timer and apt-daily-upgrade.timer start.
        lab.root(NODE, "apt-get --quiet update; unattended-upgrade --debug")
        assert versions(lab) == {PLAIN: "2", HELD: "1", PINNED: "1", OTHERS: "1"}
        lab.root(NODE, "rm /etc/apt/sources.list.d/probe-*; apt-get --quiet update")


@pytest.mark.proves("packages", "With security updates on, a second bootstrap changes nothing.")
def test_security_updates__second_bootstrap__changes_nothing(lab: TestLab) -> None:
    timers = lab.root(NODE, "systemctl is-enabled apt-daily.timer apt-daily-upgrade.timer")
    assert timers.split() == ["enabled", "enabled"]
    lab.unchanged()
    lab.healthy()
