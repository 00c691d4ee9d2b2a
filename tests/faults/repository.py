"""A site's own servers: packages signed by a key that lives as long as the server, sound or at fault; and an image."""

import gzip
import hashlib
import http.server
import io
import json
import os
import shutil
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from urllib.parse import unquote

from tests.programs import output_of

PACKAGE = "fault-probe"
SLOW_BYTES = 10_000  # a second
A_SITE = "Origin: a site\nCodename: here\n"
# As Debian's own of 2026-11 says: Release of trixie-security.
SECURITY = "Origin: Debian\nLabel: Debian-Security\nSuite: stable-security\nCodename: trixie-security\n"


@contextmanager
def repository(
    address: str, fault: str = "none", packages: Path | None = None, key_name: str = "", release: str = A_SITE
) -> Iterator[tuple[str, str]]:
    """Serve the packages of a folder, or one of our own, on this address; yields its URL and the key to trust.

    The same files are found below every path of it, as in a vendor's layout, flat or with a component `stable`, and the
    key under a name, if one is given. `release` is what its Release file says of it.
    """
    with tempfile.TemporaryDirectory(prefix="repository-") as name:
        directory = Path(name)
        if packages:
            shutil.copytree(packages, directory / "served")
        else:
            _make(directory)
        key = _publish(directory, fault, release)
        if key_name:
            (directory / "served" / key_name).write_text(key)
        with http.server.ThreadingHTTPServer((address, 0), _handler(directory, fault)) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            try:
                yield f"http://{address}:{server.server_port}", key
            finally:
                server.shutdown()


def _handler(directory: Path, fault: str) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = directory / "served" / Path(unquote(self.path)).name
            if not path.is_file():
                self.send_error(404)
                return
            data = path.read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            step = SLOW_BYTES // 10 if fault == "slow" else len(data)
            for begin in range(0, len(data), step):
                if begin:
                    time.sleep(0.1)
                self.wfile.write(data[begin : begin + step])

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    return Handler


def _make(directory: Path) -> None:
    served, root = directory / "served", directory / "root"
    served.mkdir()
    (root / "DEBIAN").mkdir(parents=True)
    (root / "usr/share/doc" / PACKAGE).mkdir(parents=True)
    (root / "usr/share/doc" / PACKAGE / "noise").write_bytes(os.urandom(100_000))
    control = f"Package: {PACKAGE}\nVersion: 1.0\nArchitecture: all\nMaintainer: nobody <nobody@example.org>\n"
    control += "Description: shows whether a package source is used\n"
    (root / "DEBIAN/control").write_text(control)
    _run("dpkg-deb", "--root-owner-group", "--build", str(root), str(served / f"{PACKAGE}.deb"))


def _publish(directory: Path, fault: str, about: str) -> str:
    """Write the index and sign it; return the key that it should be signed by."""
    served, entries = directory / "served", []
    for package in sorted(served.glob("*.deb")):
        data = package.read_bytes()
        place = f"Filename: ./{package.name}\nSize: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}\n"
        entries.append(_run("dpkg-deb", "--field", str(package)) + place)
        if fault == "hash":
            package.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    packages = "\n".join(entries).encode()
    (served / "Packages").write_bytes(packages)
    now = time.time()
    day = 24 * 3600
    release = f"{about}Date: {formatdate(now - 9 * day, usegmt=True)}\n"
    if fault == "expired":
        release += f"Valid-Until: {formatdate(now - 2 * day, usegmt=True)}\n"
    index, architecture = (
        f"{hashlib.sha256(packages).hexdigest()} {len(packages)}",
        _run("dpkg", "--print-architecture"),
    )
    release += f"SHA256:\n {index} Packages\n {index} stable/binary-{architecture.strip()}/Packages\n"
    (served / "Release").write_text(release)
    trusted = _sign(directory / "trusted", served, renewed=fault == "renewed")
    if fault == "signature":
        signed = served / "InRelease"
        signed.write_text(signed.read_text().replace("Origin: ", "Origin: not "))
    elif fault == "key":
        _sign(directory / "other", served)
    elif fault == "unsigned":
        (served / "InRelease").unlink()
    return trusted


def _sign(home: Path, served: Path, renewed: bool = False) -> str:
    """Sign the Release file with a new key; return its public part.

    One that is `renewed` signs with a later subkey; as it was before it is served as old.asc.
    """
    home.mkdir(mode=0o700)
    gpg = ("gpg", "--homedir", str(home), "--batch", "--yes", "--quiet", "--pinentry-mode", "loopback")
    try:
        _run(*gpg, "--passphrase", "", "--quick-generate-key", "A site <site@example.org>", "ed25519", "sign", "never")
        if renewed:
            (served / "old.asc").write_text(_run(*gpg, "--armor", "--export"))
            shown = _run(*gpg, "--list-keys", "--with-colons").splitlines()
            found = next(line.split(":")[9] for line in shown if line.startswith("fpr:"))
            _run(*gpg, "--passphrase", "", "--quick-add-key", found, "ed25519", "sign", "never")
        _run(*gpg, "--output", str(served / "InRelease"), "--clearsign", str(served / "Release"))
        return _run(*gpg, "--armor", "--export")
    finally:
        _run("gpgconf", "--homedir", str(home), "--kill", "all")


def _run(*argv: str) -> str:
    return output_of(argv, 120)


@dataclass(frozen=True)
class Registry:
    """A server of one image, which is at the registry `docker.io` under the same name and is another one there."""

    url: str
    requests: list[tuple[str, str]]
    """Each request so far: the client's address, and method and path."""
    manifest: str
    """The digest of the image's manifest."""
    config: str
    """The digest of its configuration, by which Docker and podman know an image."""

    image = "docker.io/library/busybox:latest"


@contextmanager
def registry(address: str) -> Iterator[Registry]:
    """Serve an image by the registry's protocol (OCI Distribution 1.1, pull only), and note who asks for what."""
    pages, manifest, config = _image(Registry.image.removeprefix("docker.io/").partition(":")[0])
    requests: list[tuple[str, str]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            requests.append((str(self.client_address[0]), f"{self.command} {path}"))
            kind, data = pages.get(path, ("application/json", b'{"errors": [{"code": "NAME_UNKNOWN"}]}'))
            self.send_response(200 if path in pages else 404)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Docker-Content-Digest", _digest(data))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data)

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer((address, 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield Registry(f"http://{address}:{server.server_port}", requests, manifest, config)
        finally:
            server.shutdown()


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _image(name: str) -> tuple[Mapping[str, tuple[str, bytes]], str, str]:
    """Every page that the server has for an image of one file; the digests of its manifest and its configuration."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        text = b"of the mirror\n"
        member = tarfile.TarInfo("origin")
        member.size = len(text)
        tar.addfile(member, io.BytesIO(text))
    layer = gzip.compress(buffer.getvalue(), mtime=0)
    prefix, kinds = "application/vnd.oci.image", ("config.v1+json", "layer.v1.tar+gzip", "manifest.v1+json")
    about = {"architecture": "amd64", "os": "linux", "config": {}}
    rootfs = {"type": "layers", "diff_ids": [_digest(buffer.getvalue())]}
    config = json.dumps({**about, "rootfs": rootfs}).encode()
    parts = [
        {"mediaType": f"{prefix}.{kind}", "digest": _digest(data), "size": len(data)}
        for kind, data in zip(kinds, (config, layer), strict=False)
    ]
    manifest = json.dumps(
        {"schemaVersion": 2, "mediaType": f"{prefix}.{kinds[2]}", "config": parts[0], "layers": parts[1:]}
    ).encode()
    pages = {"/v2/": ("application/json", b"{}")}
    for reference in ("latest", _digest(manifest)):
        pages[f"/v2/{name}/manifests/{reference}"] = (f"{prefix}.{kinds[2]}", manifest)
    for data in (config, layer):
        pages[f"/v2/{name}/blobs/{_digest(data)}"] = ("application/octet-stream", data)
    return pages, _digest(manifest), _digest(config)
