"""The landing page: what it shows of Prometheus's answers, and to whom it is served."""

import base64
import contextlib
import hashlib
import http.client
import socket
import ssl
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from clusterctl.workspace import certificates
from tests.unit.head_programs import load
from tests.unit.landing import EVIL, NOW, PAGE, PAGES, one, page, state

PROGRAM = load("landing-page")
LOGIN = "viewer:right"


class Seen(HTMLParser):
    """The elements of a page and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.links += [value or "" for key, value in attrs if key in ("href", "src")]

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.proves("monitoring", "The landing page shows texts of alerts and nodes as text.")
def test_page__texts_that_look_like_html__are_text() -> None:
    seen = Seen(page())
    assert seen.elements.count("script") == 1
    assert EVIL in seen.text
    assert seen.text.count(EVIL) == 2


@pytest.mark.proves("monitoring", "The landing page shows drained nodes with reasons, GPUs, jobs, alerts and backups.")
def test_page__of_a_cluster__has_its_state() -> None:
    text = Seen(page()).text
    for expected in (
        "2 nodes out of service, 2 firing alerts.",
        "2 in service, 1 drained, 1 not responding",
        "3 allocated",
        "8 unavailable",
        "2 running, 1 pending, 1 other",
        "1 critical, 1 warning",
        "clusterctl: alert: GpuXid: GPU 1 of gpu02 had XID 79",
        "not responding, no metrics",
        "2026-11-27 00:38 UTC",
        "(2 h ago)",
    ):
        assert expected in text
    for unexpected in ("Watchdog", "DiskFull", "an old one"):
        assert unexpected not in text


def test_page__links__are_of_the_name_in_the_browser_or_of_the_other_host() -> None:
    links = Seen(page()).links
    assert "https://head1.example.org:9090/" in links
    assert "https://10.0.0.11:8000/hub" in links


def test_page__without_its_scheduler__says_so() -> None:
    empty: dict[str, list[dict[str, Any]]] = {
        name: [] for name in ("slurm_states", "slurm_reasons", "slurm_gpus", "jobs", "partition_gpus")
    }
    text = Seen(page(slurm_up=[one(0)], **empty)).text
    assert "Slurm does not respond; its figures are missing." in text
    assert "in service" not in text.split("Overview")[1]


def test_page__of_kubernetes__has_its_nodes_and_pods() -> None:
    found = state(
        slurm_up=[],
        slurm_states=[],
        kubernetes_up=[one(0), one(1)],
        kubernetes_states=[one(1, node="gpu01", state="ready"), one(1, node="gpu02", state="cordoned")],
        kubernetes_reasons=[one(1, node="gpu02", reason="health: ecc")],
        pods=[one(3, phase="running")],
    )
    text = Seen(PAGE.page("aurora", found, [], NOW)).text
    assert "1 in service, 1 cordoned" in text
    assert "health: ecc" in text
    assert "3 running" in text
    assert "Slurm" not in text


def test_page__of_many_nodes__has_the_first_hundred() -> None:
    text = Seen(page(slurm_states=[one(1, node=f"gpu{n:03}", state="down") for n in range(130)])).text
    assert "gpu098" in text
    assert "gpu099" not in text
    assert "and 31 more" in text  # gpu03 of the metrics, too


@pytest.fixture
def served(tmp_path: Path) -> Iterator[int]:
    """The program's own server with TLS, and a Prometheus that does not respond."""
    seed = base64.b64encode(b"s" * 32).decode()
    issued = certificates.issue(seed, "aurora", "head1", ["127.0.0.1"])
    (tmp_path / "c.pem").write_text(issued.certificate)
    (tmp_path / "k.pem").write_text(issued.key)
    (tmp_path / "a.pem").write_text(certificates.authority(seed, "aurora"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    prometheus = PROGRAM.landing_state.Prometheus("https://127.0.0.1:1", "admin", "x", str(tmp_path / "a.pem"))
    PROGRAM.Handler.given = {"cluster": "aurora", "pages": PAGES}
    PROGRAM.Handler.cluster = PROGRAM.Cluster(prometheus)
    PROGRAM.Handler.login = hashlib.sha256(LOGIN.encode()).hexdigest()
    PROGRAM.Handler.files = dict.fromkeys(PROGRAM.FILES, b"/* */")
    PROGRAM.Server.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    PROGRAM.Server.context.load_cert_chain(tmp_path / "c.pem", tmp_path / "k.pem")
    server = PROGRAM.Server("127.0.0.1", port)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def ask(port: int, login: str | None, path: str = "/") -> http.client.HTTPResponse:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    line = http.client.HTTPSConnection("127.0.0.1", port, timeout=20, context=context)
    header = {} if login is None else {"Authorization": "Basic " + base64.b64encode(login.encode()).decode()}
    line.request("GET", path, headers=header)
    return line.getresponse()


@pytest.mark.proves("monitoring", "The landing page opens only with its login, and only over TLS.")
@pytest.mark.parametrize("login", [None, "viewer:", "viewer:viewer", "admin:admin", "viewer:right:"])
@pytest.mark.parametrize("path", ["/", "/landing_page.css", "/nothing"])
def test_server__without_the_login__shows_nothing(served: int, login: str | None, path: str) -> None:
    answer = ask(served, login, path)
    assert answer.status == 401
    assert answer.getheader("WWW-Authenticate") == 'Basic realm="aurora", charset="UTF-8"'
    assert answer.read() == b"This page requires a login.\n"


def test_server__with_the_login__shows_the_page_and_forbids_foreign_content(served: int) -> None:
    answer = ask(served, LOGIN)
    assert answer.status == 200
    assert "default-src 'none'" in (answer.getheader("Content-Security-Policy") or "")
    assert "Prometheus does not respond" in answer.read().decode()
    assert ask(served, LOGIN, "/landing_page.js").status == 200
    assert ask(served, LOGIN, "/../landing-page").status == 404


def test_server__plain_http__is_not_answered(served: int) -> None:
    with socket.create_connection(("127.0.0.1", served), timeout=20) as plain:
        plain.sendall(b"GET / HTTP/1.0\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert not plain.recv(4096).startswith(b"HTTP")


def test_server__held_by_silent_clients__closes_the_oldest(served: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PROGRAM, "SECONDS", 600)
    monkeypatch.setattr(PROGRAM.Handler, "timeout", 600)
    with contextlib.ExitStack() as stack:
        oldest, *_ = [
            stack.enter_context(socket.create_connection(("127.0.0.1", served), timeout=20))
            for _ in range(PROGRAM.CONNECTIONS + 1)
        ]
        assert ask(served, LOGIN).status == 200
        with contextlib.suppress(ConnectionResetError):
            assert oldest.recv(1) == b""


def test_server__held_by_one_client__does_not_close_those_of_others(
    served: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PROGRAM, "SECONDS", 600)
    monkeypatch.setattr(PROGRAM.Handler, "timeout", 600)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with contextlib.ExitStack() as stack:
        slow = stack.enter_context(socket.create_connection(("127.0.0.1", served), 20, ("127.0.0.2", 0)))
        slow = stack.enter_context(context.wrap_socket(slow))
        for _ in range(2 * PROGRAM.CONNECTIONS):
            stack.enter_context(socket.create_connection(("127.0.0.1", served), timeout=20))
        assert ask(served, LOGIN).status == 200
        slow.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert slow.recv(4096).startswith(b"HTTP/1.0 401")


def test_server__a_client_that_sends_nothing__does_not_hold_others(served: int) -> None:
    """The handshake of TLS is not in the loop that accepts connections."""
    with socket.create_connection(("127.0.0.1", served), timeout=20):
        assert ask(served, LOGIN).status == 200
    with socket.create_connection(("127.0.0.1", served), timeout=20) as half:
        half.sendall(b"\x16\x03\x01")  # the beginning of a handshake
        assert ask(served, LOGIN).status == 200


@pytest.mark.parametrize("method", ["POST", "HEAD", "OPTIONS", "PUT"])
def test_server__another_method__is_refused(served: int, method: str) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    line = http.client.HTTPSConnection("127.0.0.1", served, timeout=20, context=context)
    line.request(method, "/", headers={"Authorization": "Basic " + base64.b64encode(LOGIN.encode()).decode()})
    assert line.getresponse().status == 501


@pytest.mark.parametrize("host", ['x"><script>', "javascript:alert(1)//", "a/b", "[::1", "x" * 300, "a@b"])
def test_host__that_is_no_name__is_not_in_the_links(host: str) -> None:
    handler = PROGRAM.Handler.__new__(PROGRAM.Handler)
    handler.headers = {"Host": host}
    assert handler.host() == ""


def test_server__a_request_of_megabytes__is_not_kept(served: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """32 clients with what Python permits, 6 MB each, would exceed the memory of the unit."""
    kept: list[int] = []
    answer = PROGRAM.Handler.do_GET

    def watch(handler: Any) -> None:
        kept.append(len(handler.headers.as_bytes()))
        answer(handler)

    monkeypatch.setattr(PROGRAM.Handler, "do_GET", watch)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", served), timeout=20) as plain:
        line = context.wrap_socket(plain)
        line.sendall(b"GET / HTTP/1.0\r\n" + b"".join(b"X%d: %s\r\n" % (n, b"a" * 60000) for n in range(90)) + b"\r\n")
        line.recv(4096)
    assert ask(served, LOGIN).status == 200
    assert len(kept) == 2
    assert max(kept) < 1 << 15
