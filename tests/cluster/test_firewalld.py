"""Nodes with an active firewalld, as on a fresh RHEL: it accepts the cluster, and clusterctl's table filters."""

from collections.abc import Iterator

import pytest

from tests.cluster.lab import ALICE, TestLab, fresh

pytestmark = pytest.mark.long

ZONE = "/etc/firewalld/zones/clusterctl.xml"
STATUS = "clusterctl-firewall status 2>&1 || true"
NETWORK = f"grep -o 'address=\"[^\"]*' {ZONE} | cut -d'\"' -f2"


@pytest.fixture(scope="module")
def lab() -> Iterator[TestLab]:
    """A cluster, bootstrapped on nodes whose firewalld lets SSH in and nothing else of the cluster's."""
    with fresh("firewalld", "--gpus", "1") as lab:
        for node in lab.nodes:
            lab.root(node, "apt-get -qq update; apt-get -qq install -y firewalld >/dev/null; firewall-cmd --state")
        lab.run("bootstrap")
        yield lab


def reaches(lab: TestLab, port: int) -> bool:
    """Return whether root of the head can connect to a port of gpu01."""
    return lab.root("head1", f"timeout 5 bash -c '</dev/tcp/gpu01/{port}' 2>/dev/null && echo yes || true") == "yes\n"


@pytest.mark.proves("firewall", "Nodes with an active firewalld make a cluster; firewalld stays active.")
def test_firewalld__active_on_all_nodes__cluster_works(lab: TestLab) -> None:
    ran_on = lab.ssh("head1", *ALICE, "srun", "--quiet", "--nodes=2", "--mem=1M", "hostname")
    assert sorted(ran_on.split()) == ["gpu01", "gpu02"]
    assert reaches(lab, 6818)
    assert [lab.root(node, "systemctl is-active firewalld") for node in lab.nodes] == ["active\n"] * 3
    lab.healthy()
    lab.unchanged()
    lab.root("gpu01", "systemctl restart firewalld")
    assert reaches(lab, 6818), "the zone is permanent"


@pytest.mark.proves(
    "verify", "A firewalld that no longer accepts the cluster is reported, and repaired by a bootstrap."
)
def test_firewalld__zone_is_lost__is_reported_and_restored(lab: TestLab) -> None:
    lab.root("gpu01", f"mv {ZONE} /root/; firewall-cmd --quiet --reload")
    assert not reaches(lab, 6818), "without the zone the test would prove nothing"
    assert "systemctl restart clusterctl-firewall" in lab.root("gpu01", STATUS)
    failed = lab.run("verify", expect=4)
    assert "does not accept the cluster's networks: systemctl restart clusterctl-firewall" in str(failed["failures"])
    lab.run("bootstrap", "--limit", "gpu01")
    assert reaches(lab, 6818)
    network = lab.root("gpu01", NETWORK).split()[0]
    lab.root("gpu01", f"firewall-cmd --quiet --zone=clusterctl --remove-source={network}")
    assert f"does not accept {network} in its zone clusterctl: firewall-cmd --reload" in lab.root("gpu01", STATUS)
    lab.run("bootstrap", "--limit", "gpu01")
    assert lab.root("gpu01", STATUS) == ""
    lab.unchanged()


@pytest.mark.proves("firewall", "A network that firewalld has in a stricter zone is refused.")
def test_firewalld__network_in_another_zone__is_refused_or_left(lab: TestLab) -> None:
    network = lab.root("gpu01", NETWORK).split()[0]
    bind = "firewall-cmd --quiet --permanent --zone={} --add-source=" + network
    lab.root("gpu01", "systemctl stop clusterctl-firewall; " + bind.format("internal"))
    lab.root("gpu01", "rm -f /etc/clusterctl/firewall.nft")
    failed = lab.run("bootstrap", "--limit", "gpu01", expect=4)
    assert f"firewalld has {network} in its zone internal" in str(failed["failures"])
    starts = "systemctl start clusterctl-firewall 2>/dev/null || true"
    assert "clusterctl" not in lab.root("gpu01", f"{starts}; ls /etc/firewalld/zones")
    undo = f"firewall-cmd --quiet --permanent --zone=internal --remove-source={network}; "
    lab.root("gpu01", undo + bind.format("trusted") + "; firewall-cmd --quiet --reload")
    lab.run("bootstrap", "--limit", "gpu01")
    assert network not in lab.root("gpu01", f"cat {ZONE}"), "it is in a zone that accepts all"
    assert reaches(lab, 6818)


@pytest.mark.proves("firewall", "Without clusterctl's firewall its zone leaves firewalld.")
def test_firewalld__without_our_rules__has_no_zone_of_ours(lab: TestLab) -> None:
    lab.declare("base_firewall: false")
    for node in lab.nodes:
        lab.root(node, "firewall-cmd --quiet --permanent --zone=trusted --add-source=0.0.0.0/0")
    lab.run("bootstrap")
    for node in lab.nodes:
        assert "clusterctl" not in lab.root(node, f"ls {ZONE} 2>/dev/null || true; firewall-cmd --get-zones")
