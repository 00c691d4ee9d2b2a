"""`open`: the pages that roles declare, their addresses and logins, and the tunnel to them through SSH."""

import ipaddress
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import paramiko
import pytest
import yaml
from cryptography import x509

from clusterctl.commands import open as opening
from clusterctl.inventory import pages, ports, schema
from clusterctl.nodes import remote
from clusterctl.nodes.remote import Access
from clusterctl.nodes.session import ContactError
from clusterctl.nodes.tunnel import LOCAL, Tunnel
from clusterctl.util import paths
from clusterctl.util.errors import ClusterctlError
from tests.systems import rendering
from tests.unit import ssh_server
from tests.unit.test_lookups import look_up

GROUPS = {"slurm_head": ("head1",), "monitoring": ("head1", "mon1"), "slurm_workers": ("gpu01",)}
VARIABLES: dict[str, dict[str, Any]] = {
    "head1": {"cluster_address": "10.0.0.10"},
    "mon1": {"cluster_address": "fd00::5", "prometheus_port": 9999, "prometheus_user": "ops"},
    "gpu01": {"cluster_address": "10.0.0.11"},
}


def test_of_hosts__of_two_hosts__has_the_ports_and_users_of_each() -> None:
    found = pages.of_hosts(GROUPS, VARIABLES)
    assert [one.page.name for one in found[:2]] == ["landing", "landing"]
    of_prometheus = [(one.host, one.url, one.user) for one in found if one.page.name == "prometheus"]
    assert of_prometheus == [
        ("head1", "https://10.0.0.10:9090/", "admin"),
        ("mon1", "https://[fd00::5]:9999/", "ops"),
    ]
    assert {one.host for one in found} == {"head1", "mon1"}


@pytest.mark.parametrize(("given", "listed"), [({}, True), ({"kibana_enabled": False}, False)])
def test_of_hosts__page_that_is_switched_off__is_not_listed(given: dict[str, Any], listed: bool) -> None:
    variables = {"head1": {"cluster_address": "10.0.0.10", "logging_user": "ops", **given}}
    found = pages.of_hosts({"logging": ("head1",)}, variables)
    assert [(one.url, one.user) for one in found if one.page.name == "logs"] == [
        ("https://10.0.0.10:5601/", "ops")
    ] * listed


@pytest.mark.proves("open", "Each declared page has a port with a login, and a secret of its role.")
def test_declared__pages__have_ports_with_logins_and_secrets() -> None:
    declared = pages.load_all()
    assert {"landing", "prometheus", "alertmanager"} <= {page.name for page in declared}
    assert len({page.name for page in declared}) == len(declared)
    known = schema.load().defaults
    for page in declared:
        opened = {port.port: port for port in ports.load(paths.content() / "roles" / page.role)}
        assert opened[page.port].login, page.name
        if page.secret:
            secrets = yaml.safe_load((paths.content() / f"roles/{page.role}/meta/secrets.yml").read_text())
            assert page.secret in secrets, page.name
            assert page.user == "admin" or isinstance(known[page.user], str), page.name


@pytest.mark.proves("open", "Each page's certificate is also valid for the end of a tunnel.")
@pytest.mark.parametrize("name", sorted({page.role for page in pages.load_all()}))
def test_certificate__of_each_page__names_the_end_of_a_tunnel(name: str, tmp_path: Path) -> None:
    role = rendering.a_cluster(tmp_path, "debian-12").role(name, "head1")
    certificate = x509.load_pem_x509_certificate(role.value(f"__{name}_issued")["certificate"].encode())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert ipaddress.ip_address(LOCAL) in names.get_values_for_type(x509.IPAddress)


@pytest.mark.parametrize(
    "changed",
    [{"path": "x"}, {"user": ""}, {"secret": ""}, {"port": 9090}, {"nonsense": "x"}, {"title": None}],
    ids=lambda changed: next(iter(changed)),
)
def test_load__declaration_that_cannot_be_meant__is_refused(tmp_path: Path, changed: dict[str, Any]) -> None:
    good = {"name": "x", "title": "X", "purpose": "x", "port": "x_port", "user": "x_user", "secret": "x_password"}
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta/pages.yml").write_text(json.dumps([good]))
    assert pages.load(tmp_path)[0].path == "/"
    (tmp_path / "meta/pages.yml").write_text(json.dumps([good | changed]))
    with pytest.raises(ClusterctlError, match=r"meta/pages\.yml"):
        pages.load(tmp_path)


def test_cluster_pages__on_a_host__are_those_of_open() -> None:
    known = {"groups": GROUPS, "hostvars": VARIABLES, "inventory_hostname": "mon1"}
    found = look_up("cluster_pages", [], known)
    assert [one["url"] for one in found] == [one.url for one in pages.of_hosts(GROUPS, VARIABLES)]
    assert {one["host"] for one in found if one["here"]} == {"mon1"}


# --- through SSH ------------------------------------------------------------------------------------------------------


class Forwarding(ssh_server.Server):
    """A server that forwards connections, unless `forbidden`."""

    forbidden = False

    def check_channel_direct_tcpip_request(self, chanid: int, origin: Any, destination: tuple[str, int]) -> int:
        if self.forbidden:
            return paramiko.common.OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED
        self.destination = destination
        return paramiko.common.OPEN_SUCCEEDED

    def serve(self, connection: socket.socket) -> None:
        transport = paramiko.Transport(connection)
        for key in self.host_keys:
            transport.add_server_key(key)
        self.transport = transport
        transport.start_server(server=self)
        kept = []
        while transport.is_active():
            if channel := transport.accept(0.1):
                kept.append(channel)
                threading.Thread(target=self.forward, args=(channel,), daemon=True).start()

    def forward(self, channel: paramiko.Channel) -> None:
        with socket.create_connection(self.destination, timeout=20) as end:
            while data := channel.recv(1 << 15):
                end.sendall(data)
            end.shutdown(socket.SHUT_WR)
            while data := end.recv(1 << 15):
                channel.sendall(data)
            channel.close()


@contextmanager
def node(tmp_path: Path) -> Iterator[tuple[Forwarding, Any, Access]]:
    key = ssh_server.ed25519(tmp_path / "id")
    server = Forwarding([ssh_server.ed25519(tmp_path / "host")], key)
    with ssh_server.listening(server.serve) as port:
        known = tmp_path / "known_hosts"
        known.write_text(ssh_server.known(port, *server.host_keys))
        yield server, ssh_server.host(port, tmp_path / "id"), Access(known)
    remote.forget_gateways()


def shout(connection: socket.socket) -> None:
    """Answer what comes, in capitals, once all of it has come."""
    with connection:
        data = b""
        while more := connection.recv(1 << 15):
            data += more
        connection.sendall(data.upper())


def through(port: int, data: bytes) -> bytes:
    with socket.create_connection((LOCAL, port), timeout=20) as line:
        line.sendall(data)
        line.shutdown(socket.SHUT_WR)
        answer = b""
        while more := line.recv(1 << 15):
            answer += more
        return answer


@pytest.mark.proves("open", "`open --tunnel` reaches a page through SSH, also after the connection was lost.")
def test_tunnel__to_a_page__carries_both_directions_and_reconnects(tmp_path: Path) -> None:
    reports: list[str] = []
    with (
        ssh_server.listening(shout) as port,
        node(tmp_path) as (server, host, access),
        Tunnel(host, access, reports.append) as made,
    ):
        local = made.open("127.0.0.1", port)
        assert local != port  # it is in use
        assert through(local, b"x" * 200_000) == b"X" * 200_000
        server.transport.close()
        while made._session.transport.is_active():
            pass
        assert through(local, b"again") == b"AGAIN"
    assert reports == []
    with pytest.raises(ConnectionRefusedError):
        through(local, b"")


def test_tunnel__that_the_server_forbids__says_so(tmp_path: Path) -> None:
    reports: list[str] = []
    with node(tmp_path) as (server, host, access), Tunnel(host, access, reports.append) as made:
        server.forbidden = True
        assert through(made.open("10.0.0.1", 9090), b"") == b""
    assert reports == ["gpu01: its SSH server does not allow forwarding (AllowTcpForwarding) to 10.0.0.1 port 9090"]


def test_tunnel__to_a_host_with_another_key__is_refused(tmp_path: Path) -> None:
    with node(tmp_path) as (_, host, access):
        other = ssh_server.ed25519(tmp_path / "other")
        access.known_hosts.write_text(ssh_server.known(host.port, other))
        with pytest.raises(ContactError, match="host key differs"):
            Tunnel(replace(host), access, print)


@pytest.mark.parametrize("variable", ["DISPLAY", "WAYLAND_DISPLAY", ""])
def test_has_display__by_the_environment(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv(variable, ":0")
    assert opening.has_display() == bool(variable)
