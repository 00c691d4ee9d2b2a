"""The rest of the faults, which take too long for every change: `scripts/test --long`."""

import http.server
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cluster.conftest import TestLab, bootstrapped, podman
from tests.cluster.test_bootstrap import ALICE, differences
from tests.faults.injury import (
    begin,
    container,
    converges,
    ended,
    fails,
    gateway,
    in_service,
    inventory_with,
    wait_until,
)

pytestmark = pytest.mark.long

BERLIN = "cluster_timezone: Europe/Berlin"


@pytest.fixture(scope="module")
def lab() -> Iterator[TestLab]:
    with bootstrapped("more-faults") as lab:
        yield lab


# --- nodes that go away -----------------------------------------------------------------------------------------------


def test_a_worker_that_dies_in_the_middle(lab: TestLab) -> None:
    with inventory_with(lab, BERLIN):
        run = begin(lab)
        podman("kill", container(lab, "gpu02"))
        assert "gpu02" in ended(run, 4)
        assert lab.ssh("gpu01", "readlink", "/etc/localtime").strip().endswith("Berlin")
        lab.up()
        converges(lab)
    converges(lab)


def test_a_head_that_restarts_in_the_middle_keeps_jobs(lab: TestLab) -> None:
    job = lab.ssh(
        "head1", *ALICE, "sbatch", "--parsable", "--nodes=1", "--chdir=/", "--output=none", "--wrap='sleep 40'"
    )
    with inventory_with(lab, BERLIN):
        run = begin(lab)
        podman("restart", "--time", "2", container(lab, "head1"))
        ended(run, 5)
        lab.up()
        converges(lab)
    converges(lab)
    assert finished(lab, job) == "COMPLETED"


def finished(lab: TestLab, job: str) -> str:
    """Wait for a job's end; return its state by accounting."""
    ask = ("sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={job.strip()}", "--format=State")
    wait_until(lambda: lab.ssh("head1", *ask).strip() not in ("", "PENDING", "RUNNING"))
    return lab.ssh("head1", *ask).strip()


# --- what a node has not ----------------------------------------------------------------------------------------------


def test_a_full_file_system_is_named(lab: TestLab) -> None:
    cache = "/var/cache/apt/archives"
    lab.root("gpu02", "apt-get -qq remove -y prometheus-node-exporter; apt-get clean")
    lab.root("gpu02", f"mount -t tmpfs -o size=64k none {cache}; mkdir {cache}/partial")
    try:
        assert cache in fails(lab, 4)
    finally:
        lab.root("gpu02", f"umount {cache}")
    converges(lab)


def test_no_python_is_named_with_the_command_that_installs_it(lab: TestLab) -> None:
    before = lab.manifest("head1")
    podman("exec", container(lab, "gpu01"), "mv", "/usr/bin/python3", "/usr/bin/python3.away")
    try:
        said = fails(lab, 3)
    finally:
        podman("exec", container(lab, "gpu01"), "mv", "/usr/bin/python3.away", "/usr/bin/python3")
    assert "gpu01" in said
    assert "apt-get install -y python3" in said
    assert differences(before, lab.manifest("head1")) == []
    converges(lab)


def test_names_that_do_not_resolve_are_blamed_on_the_resolver(lab: TestLab) -> None:
    proxy = lab.inventory.read_text().partition("cluster_package_proxy: ")[2].split("\n")[0]
    text = lab.inventory.read_text()
    lab.inventory.write_text(text.replace(f"    cluster_package_proxy: {proxy}\n", ""))
    kept = lab.root("gpu01", "cat /etc/resolv.conf")
    # A proxy that is given by its address needs no names.
    lab.root("gpu01", "grep -l Proxy /etc/apt/apt.conf.d/* | xargs rm; echo 'nameserver 192.0.2.1' > /etc/resolv.conf")
    try:
        said = fails(lab, 3)
    finally:
        lab.ssh("gpu01", "sudo", "tee", "/etc/resolv.conf", stdin=kept)
        lab.inventory.write_text(text)
    assert "192.0.2.1" in said
    converges(lab)


def test_two_nodes_of_one_machine_id_are_both_named(lab: TestLab) -> None:
    own = lab.root("gpu02", "cat /etc/machine-id")
    lab.ssh("gpu02", "sudo", "tee", "/etc/machine-id", stdin=lab.root("gpu01", "cat /etc/machine-id"))
    try:
        said = fails(lab, 3)
    finally:
        lab.ssh("gpu02", "sudo", "tee", "/etc/machine-id", stdin=own)
    assert "gpu01" in said
    assert "gpu02" in said
    converges(lab)


def test_noise_at_login_and_a_tmp_that_runs_nothing_disturb_nobody(lab: TestLab) -> None:
    noise = r"printf '\033[31mWelcome\033[0m {{ 7 * 7 }}\n'; echo noise >&2"
    lab.root("gpu01", "mount -t tmpfs -o noexec,mode=1777 none /tmp")
    lab.ssh("gpu01", "tee", ".bashrc", stdin=noise)
    try:
        with inventory_with(lab, BERLIN):
            lab.run("bootstrap")
            assert lab.ssh("gpu01", "readlink", "/etc/localtime").strip().endswith("Berlin")
    finally:
        lab.root("gpu01", "umount /tmp; rm ~admin/.bashrc")
    converges(lab)


# --- what was written is damaged --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["secrets.yml", "hardware/gpu01.json"])
def test_a_damaged_file_of_the_directory_is_refused_and_left(lab: TestLab, name: str) -> None:
    path = lab.inventory.parent / name
    kept = path.read_bytes()
    path.write_bytes(kept[: len(kept) // 2])
    try:
        assert path.name in fails(lab, 2)
        assert path.read_bytes() == kept[: len(kept) // 2]
    finally:
        path.write_bytes(kept)
    converges(lab)


def test_a_damaged_record_on_a_node_is_refused_and_left(lab: TestLab) -> None:
    record = "/var/lib/clusterctl/state/base.json"
    lab.root("gpu01", f"cp {record} /root/kept; truncate --size 100 {record}")
    try:
        assert record in fails(lab, 4)
        assert lab.root("gpu01", f"stat --format %s {record}").strip() == "100"
    finally:
        lab.root("gpu01", f"mv /root/kept {record}")
    converges(lab)


# --- Slurm's own daemons ----------------------------------------------------------------------------------------------


def test_jobs_outlive_slurmctld_and_the_database(lab: TestLab) -> None:
    submit = ("sbatch", "--parsable", "--chdir=/", "--output=none")
    running = lab.ssh("head1", *ALICE, *submit, "--wrap='sleep 30'")
    time.sleep(6)  # slurmctld saves its state up to 5 s late
    lab.root("head1", "systemctl stop slurmdbd mariadb; systemctl kill --signal SEGV slurmctld")
    wait_until(lambda: "active" not in lab.root("head1", "systemctl is-active slurmctld || true").split())
    converges(lab)
    later = lab.ssh("head1", *ALICE, *submit, "--wrap='sleep 1'")
    assert finished(lab, running) == "COMPLETED"
    assert finished(lab, later) == "COMPLETED"


def test_a_monitoring_that_is_down_costs_no_job(lab: TestLab) -> None:
    lab.root("head1", "systemctl stop prometheus; chmod 0 /var/lib/prometheus")
    job = lab.ssh("head1", *ALICE, "sbatch", "--parsable", "--chdir=/", "--output=none", "--wrap='sleep 1'")
    assert finished(lab, job) == "COMPLETED"
    assert in_service(lab) == {"gpu01": "idle", "gpu02": "idle"}
    lab.root("head1", "chmod 0755 /var/lib/prometheus")
    converges(lab)


# --- the package source -----------------------------------------------------------------------------------------------


class Source(http.server.BaseHTTPRequestHandler):
    """A package proxy with a fault."""

    fault = ""

    def do_GET(self) -> None:
        if self.fault.isdigit():
            self.send_error(int(self.fault))
        elif self.fault == "truncated":
            self.send_response(200)
            self.send_header("Content-Length", "100000")
            self.end_headers()
            self.wfile.write(b"x" * 1000)
        elif self.fault == "garbage":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"x" * 1000)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def faulty_source(lab: TestLab, fault: str) -> Iterator[str]:
    """Serve a package proxy with a fault on the controller's address in the lab; yields its URL."""
    if fault == "refused":
        with socket.create_server((gateway(lab), 0)) as free:
            port = free.getsockname()[1]
        yield f"http://{gateway(lab)}:{port}"
        return
    handler = type("Faulty", (Source,), {"fault": fault})
    with http.server.ThreadingHTTPServer((gateway(lab), 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://{gateway(lab)}:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("fault", ["404", "500", "refused", "truncated", "garbage"])
def test_a_package_source_with_a_fault_is_named_and_nothing_installed(lab: TestLab, fault: str) -> None:
    """With preflight's own look at the source, and without it for what it cannot see."""
    text = lab.inventory.read_text()
    proxy = text.partition("cluster_package_proxy: ")[2].split("\n")[0]
    lab.root("gpu02", "apt-get -qq remove -y prometheus-node-exporter; apt-get clean; rm -rf /var/lib/apt/lists/*")
    try:
        with faulty_source(lab, fault) as url:
            lab.inventory.write_text(text.replace(proxy, url))
            done = subprocess.run(
                ["clusterctl", "bootstrap", str(lab.inventory)], capture_output=True, text=True, check=False
            )
        said = done.stdout + done.stderr
        assert done.returncode in (3, 4), said
        assert "deb.debian.org" in said or url in said
        if fault.isdigit():
            assert fault in said
        assert "Traceback" not in said
        status = lab.root("gpu02", "dpkg-query -W -f '${db:Status-Abbrev}' prometheus-node-exporter || true")
        assert "ii" not in status
    finally:
        lab.inventory.write_text(text)
    converges(lab)
