"""Role package_cache: the nginx of this machine with the role's configuration, before servers of this test.

scripts/prepare unpacks Debian's nginx below .cache. What nodes do with it is in tests/cluster/test_package_cache.py.
"""

import http.client
import re
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from clusterctl.inventory import model
from clusterctl.nodes.probe import packages
from clusterctl.run import preflight
from clusterctl.workspace import certificates
from tests.labs import REPOSITORY
from tests.metrics_programs import SECONDS, free_port, wait_for
from tests.systems.rendering import SECRET, Cluster, a_cluster

NGINX = REPOSITORY / ".cache/programs/usr/sbin/nginx"
MB = 1 << 20
BIG = "/pool/cuda_1.0_amd64.deb"
FILES = {
    "/InRelease": b"index 1",
    "/pool/libstdc++6_14%2b1_amd64.deb": b"small",
    BIG: bytes(range(256)) * (40 * MB // 256),
}


class Server:
    """A server of packages that supports ranges, and records its requests."""

    def __init__(self, certificate: tuple[Path, Path] | None = None) -> None:
        self.files, self.moved, self.requests = {**FILES}, dict[str, str](), list[tuple[str, str]]()
        self.refuses = False
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                server.requests.append((self.path, self.headers.get("Range") or ""))
                server.answer(self)

        self.web = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.web.server_address[1]
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self.web.socket = context.wrap_socket(self.web.socket, server_side=True)
        threading.Thread(target=self.web.serve_forever, daemon=True).start()

    def answer(self, to: BaseHTTPRequestHandler) -> None:
        path = re.sub("^http://[^/]+", "", to.path)
        content, tag = self.files.get(path), f'"{hash(self.files.get(path))}"'
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", to.headers.get("Range") or "")
        headers: dict[str, object] = {"ETag": tag, "Cache-Control": "no-store"}
        status, body = 200, content or b""
        if path in self.moved:
            status, body, headers = 302, b"", {"Location": self.moved[path]}
        elif content is None:
            status, headers = 404, {}
        elif to.headers.get("If-None-Match") == tag:
            status, body = 304, b""
        elif wanted and self.refuses:
            status, body = 416, b""
        elif wanted:
            first, last = int(wanted[1]), min(int(wanted[2]), len(content) - 1)
            status, body = 206, content[first : last + 1]
            headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
        to.send_response(status)
        for name, value in {**headers, "Content-Length": len(body)}.items():
            to.send_header(name, str(value))
        to.end_headers()
        to.wfile.write(body)

    def stop(self) -> None:
        self.web.shutdown()
        self.web.server_close()


class Names:
    """A name server that knows every name as this machine."""

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self) -> None:
        while True:
            query, client = self.socket.recvfrom(512)
            if not query:
                return
            end = query.index(b"\0", 12) + 5
            found = query[end - 4 : end - 2] == b"\0\1"  # an A record
            head = query[:2] + b"\x81\x80\0\1" + (b"\0\1" if found else b"\0\0") + b"\0\0\0\0"
            record = b"\xc0\x0c\0\1\0\1\0\0\0\x01\0\4\x7f\0\0\1" if found else b""
            self.socket.sendto(head + query[12:end] + record, client)

    def stop(self) -> None:
        self.socket.sendto(b"", self.socket.getsockname())
        self.thread.join(SECONDS)
        self.socket.close()


class Cache:
    """The cache with its upstreams by name: the vendors' servers, or the site's mirrors of them."""

    def __init__(
        self, folder: Path, servers: Mapping[str, str], names: int = 1, mirrors: bool = False, **variables: Any
    ) -> None:
        self.port = free_port("127.0.0.1")
        (folder / "cluster").mkdir()
        cluster = a_cluster(folder / "cluster", "debian-13")
        cluster.set("head1", cluster_address="127.0.0.1", ansible_host="127.0.0.1", package_cache_port=self.port)
        known: dict[str, Any] = {"cluster_http_proxy": "", "cluster_package_mirrors": servers if mirrors else {}}
        known |= variables
        own = [{"name": name, "mirror": name, "url": url} for name, url in servers.items()]
        cluster.set("head1", **known)
        role = cluster.role(
            "package_cache",
            "head1",
            **known,
            **({"__cluster_package_servers": own} if servers and not mirrors else {}),
            __package_cache_files=str(folder / "files"),
            __package_cache_run=str(folder),
            __package_cache_certificates=str(folder / "authority.pem"),
        )
        text = role.render(role.path / "templates/nginx.conf.j2")
        self.log = folder / "access.log"
        text = re.sub("access_log [^ ]+", f"access_log {self.log}", text)
        # Debian 12's own nginx checks it, too.
        (folder / "nginx.conf").write_text(text.replace("1m;\n      error_page", "1s;\n      error_page"))
        (folder / "authority.pem").write_text(certificates.authority(SECRET, "company"))
        (folder / "resolver.conf").write_text(f"resolver 127.0.0.1:{names};\n")
        (folder / "files").mkdir()
        options = f"pid {folder}/pid; daemon off; user root;"
        with (folder / "nginx.log").open("wb") as log:
            self.process = subprocess.Popen([NGINX, "-g", options, "-c", folder / "nginx.conf"], stderr=log)
        deadline = time.monotonic() + SECONDS
        while self.get("/")[0] != 404:
            assert time.monotonic() < deadline and self.process.poll() is None, (folder / "nginx.log").read_text()
            time.sleep(0.05)

    def get(self, path: str, **headers: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except ConnectionRefusedError:
            return 0, b""
        finally:
            connection.close()

    def states(self, path: str, count: int) -> list[str]:
        """Return the states in the cache of `count` requests of a path, decoded, sorted.

        nginx logs a request after its answer, and each of its processes for itself.
        """
        found: list[str] = []

        def all_logged() -> bool:
            lines = (line.split() for line in self.log.read_text().splitlines())
            found[:] = [state for _, _, _, state, _, asked in lines if asked == path]
            return len(found) >= count

        wait_for(all_logged)
        return sorted(found)


URL = "http://10.0.0.10:8123"


def cluster_with_cache(folder: Path, system: str, host: str = "head1", **variables: Any) -> Cluster:
    cluster = a_cluster(folder, system)
    cluster.manager.add_group("package_cache")
    cluster.manager.add_host(host, "package_cache")
    known = {"cluster_http_proxy": "", "cluster_package_mirrors": {}, **variables}
    for name in cluster.hosts:
        cluster.set(name, **known)
    return cluster


@pytest.mark.parametrize(("system", "names"), [
    ("debian-13", {"debian": "debian", "debian_security": "debian_security", "grafana": "grafana_apt"}),
    ("ubuntu-24.04", {"ubuntu": "ubuntu", "kubernetes": "kubernetes", "docker": "docker"}),
    ("ubuntu-24.04-aarch64", {"ubuntu": "ubuntu_ports", "nvidia": "nvidia", "elastic": "elastic"}),
    ("rocky-9", {"rocky": "rocky", "epel": "epel", "grafana": "grafana_rpm"}),
])  # fmt: skip
def test_mirrors__with_a_cache__are_its_urls_on_all_other_hosts(
    tmp_path: Path, system: str, names: dict[str, str]
) -> None:
    mirrors = {"debian": "http://mirror.example/debian"}
    cluster = cluster_with_cache(tmp_path, system, cluster_package_mirrors=mirrors)
    found = cluster.role("base", "gpu01").value("__cluster_mirrors")
    assert {name: found[name] for name in names} == {name: f"{URL}/{path}" for name, path in names.items()}
    assert cluster.role("base", "head1").value("__cluster_mirrors") == mirrors
    upstreams = cluster.role("package_cache", "head1").value("__cluster_package_upstreams")
    assert upstreams["debian"] == {"url": mirrors["debian"], "proxy": "", "ranges": False}
    assert {path.removeprefix(f"{URL}/") for path in found.values()} <= upstreams.keys()
    shown = cluster.role("nvidia_driver", "gpu01").value("__nvidia_driver_url")
    assert shown.startswith(f"{URL}/nvidia/")


def test_mirrors__behind_a_proxy__are_of_the_cache_for_apt_and_http_alone(tmp_path: Path) -> None:
    proxy = {"cluster_http_proxy": "http://proxy.example:3128"}
    for system, expected in (("debian-13", {"debian", "debian_security", "ubuntu"}), ("rocky-9", set())):
        (tmp_path / system).mkdir()
        cluster = cluster_with_cache(tmp_path / system, system, **proxy)
        role = cluster.role("base", "gpu01")
        assert role.value("__cluster_mirrors").keys() == expected
        direct = 'Acquire::http::Proxy::10.0.0.10 "DIRECT";' in role.render(role.path / "templates/apt-proxy.j2")
        assert direct == bool(expected)


def test_mirrors__without_a_cache__are_those_of_the_inventory(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path, "debian-13")
    for name in cluster.hosts:
        role = cluster.role("base", name)
        assert role.value("__cluster_mirrors") == role.value("cluster_package_mirrors")
        assert "10.0.0.10" not in role.render(role.path / "templates/apt-proxy.j2")


def test_mask__where_the_site_has_an_nginx__is_left_out(tmp_path: Path) -> None:
    def masked(program: bool, link: str = "") -> bool:
        results = [{"stat": {"exists": program}}, {"stat": {"exists": bool(link), "lnk_source": link}}]
        role = cluster.role("package_cache", "head1", __package_cache_found={"results": results})
        (call,) = (call for _, call in role.calls() if "packages" in call)
        return "/etc/systemd/system/nginx.service" in {item["dest"] for item in call["files"]}

    cluster = a_cluster(tmp_path, "debian-13")
    assert masked(False)
    assert masked(True, "/dev/null"), "the role has installed it"
    assert not masked(True)


@pytest.mark.proves("preflight", "With a package cache, only its host must reach the package sources.")
def test_preflight__with_a_cache__tests_the_sources_of_its_host_alone(tmp_path: Path) -> None:
    path = tmp_path / "inventory.yaml"
    plain = (REPOSITORY / "inventory/slurm/inventory.yaml").read_text()
    for text, expected in ((plain, set()), (plain + "    package_cache: {hosts: {head1: {}}}\n", {"gpu01", "gpu02"})):
        path.write_text(text)
        inventory = model.load(path)
        options = {host.name: preflight.network_options(host, inventory) for host in inventory.hosts}
        assert {name for name, given in options.items() if given["cached"]} == expected
    assert packages.network(options["gpu01"]) is None


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    yield found
    found.stop()


@pytest.fixture
def caches(tmp_path: Path) -> Iterator[list[Cache]]:
    found: list[Cache] = []
    yield found
    for cache in found:
        cache.process.terminate()
        cache.process.wait(SECONDS)


@pytest.mark.proves("packages", "Nodes that ask the cache for a large package at once cause one download.")
def test_cache__large_file_for_three_at_once__is_fetched_once(
    server: Server, caches: list[Cache], tmp_path: Path
) -> None:
    cache = Cache(tmp_path, {"debian": f"http://127.0.0.1:{server.port}"})
    caches.append(cache)
    with ThreadPoolExecutor() as pool:
        answers = [*pool.map(cache.get, [f"/debian{BIG}"] * 3)]
    assert answers == [(200, FILES[BIG])] * 3
    slices = [f"bytes={at * 16 * MB}-{(at + 1) * 16 * MB - 1}" for at in range(3)]
    assert sorted(server.requests) == sorted((BIG, one) for one in slices)
    assert cache.states(f"/debian{BIG}", 3) == ["HIT", "HIT", "MISS"]
    # The rest of a download that was interrupted.
    assert cache.get(f"/debian{BIG}", Range=f"bytes={20 * MB}-") == (206, FILES[BIG][20 * MB :])
    assert len(server.requests) == 3


@pytest.mark.parametrize("by_proxy", [False, True])
def test_cache__mirror_that_refuses_ranges__is_asked_for_whole_files(
    server: Server, caches: list[Cache], tmp_path: Path, by_proxy: bool
) -> None:
    """As apt-cacher-ng, which refuses a range that ends after the file."""
    url, server.refuses = f"http://127.0.0.1:{server.port}", True
    proxy: dict[str, Any] = {"cluster_http_proxy": url} if by_proxy else {}
    given = {"debian": "http://mirror.example.org/" if by_proxy else f"{url}/"}
    cache = Cache(tmp_path, given, mirrors=True, **proxy)
    caches.append(cache)
    with ThreadPoolExecutor() as pool:
        answers = [*pool.map(cache.get, [f"/debian{BIG}"] * 3)]
    assert answers == [(200, FILES[BIG])] * 3
    assert cache.get(f"/debian{BIG}", Range=f"bytes={20 * MB}-") == (206, FILES[BIG][20 * MB :])
    assert server.requests == [(f"http://mirror.example.org{BIG}" if by_proxy else BIG, "")]


@pytest.mark.proves("packages", "The cache asks for an index again after a minute, for a package not.")
@pytest.mark.proves("packages", "If a server or its name does not answer, the cache serves what it has.")
def test_cache__index_and_package__are_current_and_outlive_the_server(
    server: Server, caches: list[Cache], tmp_path: Path
) -> None:
    names = Names()
    cache = Cache(tmp_path, {"debian": f"http://deb.example.org:{server.port}"}, names.port)
    caches.append(cache)
    small = "/pool/libstdc++6_14%2b1_amd64.deb"
    for _ in range(2):
        assert cache.get("/debian/InRelease") == (200, b"index 1")
        assert cache.get(f"/debian{small}") == (200, b"small")
    assert [path for path, _ in server.requests] == ["/InRelease", small]
    time.sleep(2.1)  # here a minute is a second, and nginx counts whole ones
    assert cache.get("/debian/InRelease") == (200, b"index 1")
    server.files["/InRelease"] = b"index 2"
    time.sleep(2.1)
    assert cache.get("/debian/InRelease") == (200, b"index 2")
    assert cache.get(f"/debian{small}") == (200, b"small")
    assert cache.states("/debian/InRelease", 4) == ["EXPIRED", "HIT", "MISS", "REVALIDATED"]
    assert [path for path, _ in server.requests].count(small) == 1

    server.stop()
    time.sleep(2.1)
    assert cache.get("/debian/InRelease") == (200, b"index 2")
    names.stop()
    time.sleep(2.1)  # the name's address is known for a second
    assert cache.get("/debian/InRelease") == (200, b"index 2")
    assert cache.get(f"/debian{small}") == (200, b"small")
    assert cache.states("/debian/InRelease", 6).count("STALE") == 2
    assert cache.get("/debian/other")[0] == 502


@pytest.mark.proves("packages", "The cache follows a server's redirect, but not to an address.")
def test_cache__moved_file__is_fetched_from_a_name_alone(server: Server, caches: list[Cache], tmp_path: Path) -> None:
    names = Names()
    cache = Cache(tmp_path, {"debian": f"http://127.0.0.1:{server.port}"}, names.port)
    caches.append(cache)
    server.moved = {
        "/moved.deb": f"http://files.example.org:{server.port}{BIG}",
        "/inside.deb": f"http://127.0.0.1:{server.port}{BIG}",
        "/host.deb": f"http://localhost:{server.port}{BIG}",
    }
    for _ in range(2):
        assert cache.get("/debian/moved.deb") == (200, FILES[BIG])
    assert [path for path, _ in server.requests] == ["/moved.deb", *[BIG] * 3]
    assert [cache.get(f"/debian/{name}.deb")[0] for name in ("inside", "host")] == [502, 502]
    assert len(server.requests) == 6
    names.stop()


@pytest.mark.proves("packages", "The cache refuses a TLS server whose certificate is not valid for its name.")
@pytest.mark.parametrize(("company", "name", "expected"), [
    ("company", "deb.example.org", 200), ("company", "other.example.org", 502), ("stranger", "deb.example.org", 502),
])  # fmt: skip
def test_cache__server_with_tls__is_verified(
    caches: list[Cache], tmp_path: Path, company: str, name: str, expected: int
) -> None:
    issued = certificates.issue(SECRET + "x" * (company == "stranger"), company, name, [name])
    (tmp_path / "cert.pem").write_text(issued.certificate)
    (tmp_path / "key.pem").write_text(issued.key)
    server, names = Server((tmp_path / "cert.pem", tmp_path / "key.pem")), Names()
    try:
        cache = Cache(tmp_path, {"nvidia": f"https://deb.example.org:{server.port}"}, names.port)
        caches.append(cache)
        assert cache.get("/nvidia/InRelease")[0] == expected
        assert len(server.requests) == (expected == 200)
    finally:
        names.stop()
        server.stop()


@pytest.mark.proves("packages", "Behind a proxy, the cache fetches by way of it, and offers no TLS servers.")
def test_cache__behind_a_proxy__asks_it_for_whole_urls(server: Server, caches: list[Cache], tmp_path: Path) -> None:
    proxy = f"http://127.0.0.1:{server.port}"
    cache = Cache(tmp_path, {}, cluster_package_proxy=proxy, cluster_no_proxy=["127.0.0.1"])
    caches.append(cache)
    for _ in range(2):
        assert cache.get("/debian/InRelease")[0] == 404
    server.files["/debian/InRelease"] = b"index"
    for _ in range(2):
        assert cache.get("/debian/InRelease") == (200, b"index")
    assert [path for path, _ in server.requests] == ["http://deb.debian.org/debian/InRelease"] * 3
    assert cache.states("/debian/InRelease", 4) == ["HIT", "MISS", "MISS", "MISS"]
    assert [cache.get(f"/{name}/InRelease")[0] for name in ("nvidia", "rocky", "example.org")] == [404, 404, 404]
    assert len(server.requests) == 3
