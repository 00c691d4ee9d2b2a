"""Prometheus's own release, for systems without a package: what the role asks for, and the program that installs it."""

import hashlib
import http.server
import io
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.systems.rendering import CONTENT, SYSTEMS, a_cluster

PROGRAM = CONTENT / "roles/prometheus/files/release-install"
RELEASE = {"version": "3.5.0", "sha256": "a" * 64}
FOLDER = "/usr/local/lib/prometheus/3.5.0-aaaaaaaaaaaa"
STARTED = "ExecStart=/usr/local/libexec/prometheus-start 20 /var/lib/prometheus/metrics2"


def archive(version: str) -> bytes:
    """Return an archive that is laid out as Prometheus's own: a folder with two programs."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name in ("prometheus", "promtool", "LICENSE"):
            text = f"#!/bin/sh\necho {name}, version {version}\n".encode()
            member = tarfile.TarInfo(f"prometheus-{version}.linux-amd64/{name}")
            member.size, member.mode, member.uid = len(text), 0o755, 1001
            tar.addfile(member, io.BytesIO(text))
    return buffer.getvalue()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """Serve a folder; yields it and its URL."""
    folder = tmp_path / "served"
    folder.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments, directory=str(folder))

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield folder, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def install(url: str, sha256: str, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    argv = ["sh", str(PROGRAM), url, sha256, str(folder), "prometheus", "promtool", *options]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30)


@pytest.mark.proves("monitoring", "Prometheus's own release is installed once, and refused with a wrong SHA-256.")
def test_install__by_its_hash__is_done_once_or_refused(tmp_path: Path, served: tuple[Path, str]) -> None:
    folder, url = served
    data = archive("3.5.0")
    (folder / "release.tar.gz").write_bytes(data)
    sha256, target = hashlib.sha256(data).hexdigest(), tmp_path / "lib/3.5.0-x"

    refused = install(f"{url}/release.tar.gz", "0" * 64, target)
    assert refused.returncode == 1
    assert refused.stderr.strip() == f"{url}/release.tar.gz has the sha256 {sha256}, expected {'0' * 64}"
    assert not target.parent.exists()

    assert install(f"{url}/release.tar.gz", sha256, target, "--check").stdout == "would be installed\n"
    assert not target.parent.exists()

    done = install(f"{url}/release.tar.gz", sha256, target)
    assert (done.returncode, done.stdout) == (0, "prometheus, version 3.5.0\n"), done.stderr
    assert sorted(path.name for path in (target / "bin").iterdir()) == ["prometheus", "promtool"]
    assert (target / "bin/prometheus").stat().st_mode & 0o777 == 0o755
    for options in ((), ("--check",)):
        again = install(f"{url}/gone.tar.gz", sha256, target, *options)
        assert (again.returncode, again.stdout) == (0, "")


def test_install__of_another_version__removes_the_one_before(tmp_path: Path, served: tuple[Path, str]) -> None:
    folder, url = served
    for version in ("3.5.0", "3.5.1"):
        (folder / "release.tar.gz").write_bytes(archive(version))
        sha256 = hashlib.sha256((folder / "release.tar.gz").read_bytes()).hexdigest()
        assert install(f"{url}/release.tar.gz", sha256, tmp_path / "lib" / version).returncode == 0
    assert [path.name for path in (tmp_path / "lib").iterdir()] == ["3.5.1"]


@pytest.mark.parametrize("system", SYSTEMS)
def test_role__with_a_release__has_no_package_but_a_unit_and_a_user(tmp_path: Path, system: str) -> None:
    role = a_cluster(tmp_path, system).role("prometheus", "head1", prometheus_release=RELEASE)
    assert role.value("__prometheus_packages") == []
    calls = {file.name: call for file, call in role.calls() if call.get("state") != "absent"}
    assert [file["content"] for file in calls["release.yml"]["files"]] == [
        'u prometheus - "Prometheus" /var/lib/prometheus\n'
    ]
    files = {file["dest"]: file for file in calls["main.yml"]["files"]}
    for name in ("prometheus", "promtool"):
        assert files[f"/usr/local/bin/{name}"]["link"] == f"{FOLDER}/bin/{name}"
    assert "User=prometheus\n" in role.render(
        role.path / "templates" / files["/etc/systemd/system/prometheus.service"]["template"]
    )
    assert f"{STARTED} /usr/local/bin/prometheus " in role.render(role.path / "templates/drop-in.conf.j2")
    (unit,) = calls["main.yml"]["units"]
    brought = {"/usr/local/bin/prometheus", "/etc/systemd/system/prometheus.service"}
    assert brought <= {*unit["restart_on"]} <= {*files}


@pytest.mark.parametrize("system", ["debian-13", "rocky-9"])
def test_role__without_a_release__has_the_package_and_nothing_of_the_release(tmp_path: Path, system: str) -> None:
    role = a_cluster(tmp_path, system).role("prometheus", "head1")
    assert len(role.value("__prometheus_packages")) == 1
    gone = [file["dest"] for file in role.value("__prometheus_files") if file.get("state") == "absent"]
    # Not credentials for a cluster of Kubernetes, and for remote write.
    gone = [path for path in gone if "kubernetes" not in path and "remote-write" not in path]
    assert gone == ["/usr/local/bin/prometheus", "/usr/local/bin/promtool", "/etc/systemd/system/prometheus.service"]
    assert f"{STARTED} /usr/bin/prometheus " in role.render(role.path / "templates/drop-in.conf.j2")


@pytest.mark.parametrize(
    ("release", "machine", "url"),
    [
        (RELEASE, "x86_64", "v3.5.0/prometheus-3.5.0.linux-amd64.tar.gz"),
        (RELEASE, "aarch64", "v3.5.0/prometheus-3.5.0.linux-arm64.tar.gz"),
        ({**RELEASE, "url": "http://mirror.example/p.tgz"}, "x86_64", "http://mirror.example/p.tgz"),
    ],
)
def test_url__of_a_release__is_for_the_machine_or_as_given(
    tmp_path: Path, release: dict[str, str], machine: str, url: str
) -> None:
    role = a_cluster(tmp_path, "almalinux-10").role("prometheus", "head1", prometheus_release=release)
    role.variables["ansible_facts"]["architecture"] = machine
    github = "https://github.com/prometheus/prometheus/releases/download/"
    assert role.value("__prometheus_release_arguments") == [
        url if url.startswith("http") else github + url,
        release["sha256"],
        FOLDER,
        "prometheus",
        "promtool",
    ]
