"""What an index of packages says of a package."""

import http.server
import lzma
import threading
import urllib.parse
from collections.abc import Iterator

import pytest

from tests.cluster import sid

ENTRY = """Package: {name}
Version: {version}
Filename: pool/main/a/{name}/{name}_{version}_amd64.deb
SHA256: {digest}
"""


def entries(*versions: str, name: str = "apptainer") -> str:
    return "".join(ENTRY.format(name=name, version=version, digest=f"of-{version}") + "\n" for version in versions)


@pytest.mark.parametrize(
    "versions", [("1.4.5-2",), ("1.4.5-2", "1.4.5-1"), ("1.4.5~rc1-1", "1.4.5-2"), ("1.4.10-1", "1.4.9-1")]
)
@pytest.mark.parametrize("turn", [1, -1])
def test_newest__one_or_two_versions__is_the_newer_by_dpkg(versions: tuple[str, ...], turn: int) -> None:
    expected = max(versions, key=lambda version: version in ("1.4.5-2", "1.4.10-1"))
    text = entries("9", name="apptainer-suid") + entries(*versions[::turn]) + entries("9", name="zlib")
    assert sid.newest(text, "apptainer")["SHA256"] == f"of-{expected}"


def test_newest__package_is_not_there__is_an_error() -> None:
    with pytest.raises(AssertionError, match="apptain is not in the index"):
        sid.newest(entries("1"), "apptain")


@pytest.fixture
def cache() -> Iterator[tuple[str, list[str]]]:
    """A package cache that fails as often as the list is long, then serves an index; the URL and the list."""
    failures: list[str] = []

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert urllib.parse.urlsplit(self.path).hostname == "deb.debian.org"
            if failures:
                failures.pop()
                self.send_error(503)
                return
            self.send_response(200)
            self.end_headers()
            self.wfile.write(lzma.compress(entries("1.4.5-2").encode()))

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", failures
        server.shutdown()


def test_find__cache_fails_twice__has_version_url_and_hash(cache: tuple[str, list[str]]) -> None:
    proxy, failures = cache
    failures += ["503"] * (sid.ATTEMPTS - 1)
    assert sid.find(proxy, "apptainer") == {
        "version": "1.4.5-2",
        "url": "http://deb.debian.org/debian/pool/main/a/apptainer/apptainer_1.4.5-2_amd64.deb",
        "sha256": "of-1.4.5-2",
    }


def test_find__cache_fails_each_time__is_an_error(cache: tuple[str, list[str]]) -> None:
    proxy, failures = cache
    failures += ["503"] * sid.ATTEMPTS
    with pytest.raises(OSError, match="503"):
        sid.find(proxy, "apptainer")
