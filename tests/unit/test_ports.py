"""Ports: what roles declare, the page made from it, and the firewall that a host gets from its roles' declarations."""

from pathlib import Path
from typing import Any

import pytest

from clusterctl.inventory import ports, schema
from clusterctl.util.errors import ClusterctlError
from tests.systems.rendering import CONTENT, a_cluster

from .test_lookups import look_up
from .test_role_plugins import plugin

NETWORKS = plugin("filter/networks")
MEMBERS = plugin("lookup/cluster_members")
DECLARED = ports.load_all()


@pytest.mark.proves("firewall", "docs/ports.md is generated from the roles' declarations.")
def test_the_documentation_is_what_the_generator_prints() -> None:
    page = (CONTENT / "docs/ports.md").read_text(encoding="utf-8")
    assert page == ports.markdown(DECLARED, schema.load()), "run python -m clusterctl.inventory.ports > docs/ports.md"


def test_a_port_is_declared_once_and_its_variable_is_the_roles_own() -> None:
    places = [(one.role, one.port, one.protocol) for one in DECLARED]
    assert len(places) == len(set(places))
    known = schema.load()
    for one in DECLARED:
        assert set(one.groups) <= known.groups.keys(), one
        if isinstance(one.port, str):
            assert one.port in ports.SSH or known.variables[one.port].role == one.role, one
        assert one.purpose.replace("'", "").isprintable()
        assert '"' not in one.purpose, "it stands in quotes in the firewall's rules"


@pytest.mark.parametrize(
    "text",
    [
        "[{port: 80, protocol: tcp, to: cluster}]",
        "[{port: 80, protocol: tcp, to: world, purpose: x}]",
        "[{port: 0, protocol: tcp, to: admin, purpose: x}]",
        "[{port: 80, protocol: icmp, to: admin, purpose: x}]",
        "[{port: 80, protocol: tcp, to: admin, purpose: x, password: true}]",
        "[{port: 80, protocol: tcp, to: admin, purpose: x, login: maybe}]",
        "[{port: 80, protocol: tcp, to: admin, purpose: x, privileged: maybe}]",
        "[{port: 80, protocol: tcp, to: listed, purpose: x}]",
        "[{port: 80, protocol: tcp, to: admin, addresses: x_senders, purpose: x}]",
        "[80]",
    ],
)
def test_a_declaration_that_cannot_be_meant_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta/ports.yml").write_text(text, encoding="utf-8")
    with pytest.raises(ClusterctlError, match=r"meta/ports\.yml"):
        ports.load(tmp_path)


def found(groups: list[str], **variables: Any) -> dict[tuple[int, str], dict[str, Any]]:
    known = {
        "inventory_hostname": "node1",
        "group_names": groups,
        "ansible_facts": {"os_family": "Debian"},
        **variables,
    }
    return {(one["port"], one["protocol"]): one for one in look_up("role_ports", [], known)}


@pytest.mark.proves("firewall", "A host opens the ports of its own roles.")
def test_a_host_gets_the_ports_of_its_own_roles() -> None:
    worker, head = found(["slurm_workers"]), found(["slurm_head", "monitoring"])
    assert set(worker) == {(22, "tcp"), (323, "udp"), (6818, "tcp"), (9100, "tcp")}
    assert {port for port, one in head.items() if one["to"] == "admin"} == {
        (22, "tcp"),
        (9090, "tcp"),
        (9093, "tcp"),
        (9443, "tcp"),
    }
    assert {(53, "udp"), (53, "tcp"), (123, "udp"), (6817, "tcp"), (6819, "tcp")} <= set(head)


def test_a_port_follows_its_variable() -> None:
    moved = found(["monitoring"], ansible_port=2222, prometheus_port=19090)
    assert {(22, "tcp"), (2222, "tcp"), (19090, "tcp")} <= set(moved)
    assert (9090, "tcp") not in moved


@pytest.mark.proves("firewall", "A node's word about its networks opens no firewall to them.")
def test_members_are_the_recorded_nodes_own_addresses() -> None:
    nics = ["10.0.0.7/24", "10.0.0.8/24", "198.41.0.4/20", "fd00::7/64", "169.254.3.4/16", "127.0.0.2/8"]
    records = [{"nics": [{"addresses": nics[:3]}]}, {"nics": [{"addresses": nics[3:]}, {"addresses": []}]}]
    own = {"10.0.0.7/32", "10.0.0.8/32", "198.41.0.4/32", "fd00::7/128"}
    assert {str(one) for one in MEMBERS.own(records)} == own
    liar = [{"nics": [{"addresses": ["10.255.255.1/8", "172.16.0.9/12", "192.168.77.7/16", "fd00::1/8", "0.0.0.0/0"]}]}]
    assert all(one.num_addresses == 1 for one in MEMBERS.own(liar))


def test_networks_are_told_apart_by_family_and_none_is_within_another() -> None:
    given = ["10.0.0.0/24", "10.0.0.9/32", "fd00::/64", "10.0.1.0/24"]
    assert NETWORKS.by_family(given) == {"ip": ["10.0.0.0/23"], "ip6": ["fd00::/64"]}
    assert NETWORKS.by_family([]) == {}


def rules(tmp_path: Path, host: str, **variables: Any) -> list[str]:
    """The lines of a host's firewall; the worker's address is a name that only its record resolves."""
    cluster = a_cluster(tmp_path, "debian-13")
    known = {"cluster_networks": [], **variables}
    for node in cluster.hosts:
        cluster.set(node, **known)
    role = cluster.role("base", host, **known)
    text = role.render(role.path / "templates/firewall.nft.j2")
    return [line.strip() for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize("host", ["head1", "gpu01"])
def test_without_networks_the_recorded_addresses_pass(tmp_path: Path, host: str) -> None:
    told = rules(tmp_path, host)
    assert 'ip saddr { 10.0.0.10/31 } accept comment "members of the cluster"' in told
    assert 'tcp dport 22 accept comment "SSH"' in told
    assert "type filter hook input priority filter; policy drop;" in told
    assert any(line.startswith("tcp dport 9090") for line in told) is (host == "head1")
    assert not [line for line in told if "dport" in line and "6817" in line]


def test_a_host_outside_the_named_networks_is_a_member_all_the_same(tmp_path: Path) -> None:
    told = rules(tmp_path, "head1", cluster_networks=["192.168.0.0/24"], cluster_address="10.9.9.9")
    assert 'ip saddr { 10.9.9.9/32, 192.168.0.0/24 } accept comment "members of the cluster"' in told


@pytest.mark.proves("firewall", "`cluster_admin_networks` limits SSH and Prometheus to those networks.")
def test_administrators_networks_narrow_what_else_is_open(tmp_path: Path) -> None:
    told = rules(tmp_path, "head1", cluster_admin_networks=["203.0.113.0/24", "2001:db8::/64"])
    assert 'ip saddr { 203.0.113.0/24 } tcp dport 22 accept comment "SSH"' in told
    assert 'ip6 saddr { 2001:db8::/64 } tcp dport 9090 accept comment "Prometheus\'s pages"' in told
    assert not [line for line in told if line.startswith("tcp dport") and "accept" in line]
    theirs = [line for line in told if "203.0.113.0/24" in line or "2001:db8::/64" in line]
    accepted = [line.removeprefix("# firewalld: ") for line in told if line.startswith("# firewalld: ")]
    assert accepted == ["10.0.0.10/31", "203.0.113.0/24", "2001:db8::/64"]
    assert not [line for line in theirs if "9100" in line or "6817" in line], "what is the cluster's is not theirs"


@pytest.mark.proves("firewall", "No user's program answers on the port of a service of the cluster.")
@pytest.mark.parametrize(
    ("host", "ports"),
    [("head1", "3306, 6817, 6819, 6822, 9090, 9093, 9096, 9100, 9104, 9115, 9443"), ("gpu01", "6818, 9100")],
)
def test_firewall__users_program_on_a_services_port__cannot_answer(tmp_path: Path, host: str, ports: str) -> None:
    users = "meta skuid { 1000-59999, 65536-4294967293 }"
    assert any(line.startswith(f"{users} tcp sport {{ {ports} }} drop") for line in rules(tmp_path, host))


def test_firewall__slurms_own_user_has_a_number_of_people__may_answer(tmp_path: Path) -> None:
    found = rules(tmp_path, "head1", slurm_head_user_id=1001)
    ports = "tcp sport { 3306, 6817, 6819, 6822, 9090, 9093, 9096, 9100, 9104, 9115, 9443 }"
    own = found.index(f'meta skuid 1001 {ports} accept comment "Slurm\'s daemons"')
    assert found[own + 1].startswith(f"meta skuid {{ 1000-59999, 65536-4294967293 }} {ports} drop")


@pytest.mark.proves("firewall", "Metrics are read by monitoring's hosts alone, and by no program of a user's.")
@pytest.mark.parametrize("host", ["head1", "gpu01"])
def test_firewall__metrics__are_for_monitoring_alone(tmp_path: Path, host: str) -> None:
    groups = {"slurm_head": ["head1"], "slurm_workers": ["gpu01"], "monitoring": ["head1"], "gpu_metrics": ["gpu01"]}
    told = rules(tmp_path, host, groups={"all": ["head1", "gpu01"], **groups})
    accept = 'ip saddr { 10.0.0.10/32 } tcp dport 9100 accept comment "metrics of the node"'
    reject = 'ip saddr { 10.0.0.10/31 } tcp dport 9100 reject comment "metrics of the node, to others"'
    assert told.index(accept) < told.index(reject) < told.index('iifname "lo" accept')
    users = "meta skuid { 1000-59999, 65536-4294967293 }"
    assert f'{users} oifname "lo" tcp dport 9100 reject comment "metrics of the node, to users"' in told
    assert f"{users} ip daddr {{ 10.0.0.10/31 }} tcp dport 9400 reject" in told, "other hosts' metrics"


@pytest.mark.parametrize("host", ["head1", "gpu01"])
def test_firewall__port_of_root__turns_users_away_before_all_else_is_let_in(tmp_path: Path, host: str) -> None:
    """Users of the head itself come by `lo`, those of workers from a member's address."""
    told = rules(tmp_path, host)
    of_users = [line for line in told if line.startswith("tcp dport 6822 tcp sport >= 1024 reject")]
    assert len(of_users) == (host == "head1")
    if of_users:
        assert told.index(of_users[0]) == told.index("ct state established,related accept") + 1


@pytest.mark.proves("firewall", "A listed port is open to its addresses alone, also not to the cluster.")
def test_firewall__port_for_listed_addresses__is_closed_to_all_others(tmp_path: Path) -> None:
    groups = {"all": ["head1", "gpu01"], "slurm_head": ["head1"], "slurm_workers": ["gpu01"], "logging": ["head1"]}
    variables = {"groups": groups, "group_names": ["logging", "slurm_head"]}
    for folder in ("none", "some"):
        (tmp_path / folder).mkdir()
    closed = rules(tmp_path / "none", "head1", **variables)
    assert not [line for line in closed if "dport 514 " in line], "a site's own service on that port stays reachable"
    senders = ["192.0.2.7", "198.51.100.0/24", "2001:db8::/64"]
    found = rules(tmp_path / "some", "head1", logstash_senders=senders, **variables)
    for protocol, purpose in (("udp", "syslog of devices"), ("tcp", "syslog of devices, over TCP")):
        accept = f'ip saddr {{ 192.0.2.7/32, 198.51.100.0/24 }} {protocol} dport 514 accept comment "{purpose}"'
        sixth = f'ip6 saddr {{ 2001:db8::/64 }} {protocol} dport 514 accept comment "{purpose}"'
        drop = f'iifname != "lo" {protocol} dport 514 drop comment "{purpose}, to others"'
        members = next(number for number, line in enumerate(found) if "members of the cluster" in line)
        assert max(found.index(accept), found.index(sixth)) < found.index(drop) < members
    accepted = [line.removeprefix("# firewalld: ") for line in found if line.startswith("# firewalld: ")]
    assert {"192.0.2.7/32", "198.51.100.0/24", "2001:db8::/64"} <= {*accepted}


@pytest.mark.proves("firewall", "A port without a login is open to administrators' networks only.")
@pytest.mark.parametrize("login", [False, True])
def test_firewall__port_without_a_login__is_open_to_named_networks_only(tmp_path: Path, login: bool) -> None:
    port = {
        "port": 8443,
        "protocol": "tcp",
        "to": "admin",
        "login": login,
        "purpose": "a page",
        "privileged": False,
        "addresses": [],
        "role": "x",
    }
    (tmp_path / "named").mkdir()
    everybody = 'tcp dport 8443 accept comment "a page"'
    assert (everybody in rules(tmp_path, "head1", __base_ports=[port])) is login
    named = rules(tmp_path / "named", "head1", __base_ports=[port], cluster_admin_networks=["203.0.113.0/24"])
    assert everybody not in named
    assert f"ip saddr {{ 203.0.113.0/24 }} {everybody}" in named


def test_a_firewall_that_is_not_wanted_is_an_empty_one(tmp_path: Path) -> None:
    told = [line for line in rules(tmp_path, "head1", base_firewall=False) if not line.startswith("#")]
    assert told == ["add table inet clusterctl", "delete table inet clusterctl"]


def test_members__of_hosts_with_and_without_networks__are_their_own(tmp_path: Path) -> None:
    """The addresses of hosts without networks are found once, on the first host of a play, for all of them."""
    cluster, found = a_cluster(tmp_path, "debian-13"), {"__base_all_members": ["192.168.7.3/32"]}
    assert "10.0.0.0/24" in cluster.role("base", "gpu01", **found).value("__base_members")
    assert "192.168.7.3/32" not in cluster.role("base", "gpu01", **found).value("__base_members")
    cluster.set("gpu01", cluster_networks=[])
    assert cluster.role("base", "gpu01", **found).value("__base_members") == ["192.168.7.3/32"]
    assert "10.0.0.11/32" in cluster.role("base", "gpu01").value("__base_members")
