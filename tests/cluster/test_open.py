"""The landing page and `clusterctl open` on a real cluster: what they show, to whom, and from where."""

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.lab import TestLab, clusterctl
from tests.cluster.watched import RECIPES, SENSOR, ready
from tests.faults.injury import wait_until
from tests.programs import described, start_for_test

PORT = 9443
ASK = "curl --silent --show-error --max-time 20"
PAGES = {"landing": 9443, "alertmanager": 9093, "prometheus": 9090}


@pytest.fixture(scope="module")
def lab(watched: TestLab) -> Iterator[TestLab]:
    """The lab, bootstrapped. This is the last file that needs it."""
    try:
        ready(watched)
        yield watched
    finally:
        watched.down()


@pytest.fixture(scope="module")
def authority(lab: TestLab, tmp_path_factory: pytest.TempPathFactory) -> Path:
    done = clusterctl("secret", "authority", str(lab.inventory))
    assert done.returncode == 0, described(done)
    path = tmp_path_factory.mktemp("open") / "authority.pem"
    path.write_text(done.stdout)
    return path


def secret(lab: TestLab, name: str) -> str:
    done = clusterctl("secret", "show", str(lab.inventory), name)
    assert done.returncode == 0, described(done)
    return done.stdout.strip()


def address(lab: TestLab) -> str:
    found = json.loads(lab.root("head1", "cat /etc/clusterctl/landing-page/configuration.json"))
    return str(found["address"])


def fetch(url: str, authority: Path, login: str) -> str:
    """Return a page as this machine gets it. The login is not in the arguments."""
    argv = [*ASK.split(), "--fail", "--cacert", str(authority), "--config", "-", url]
    done = subprocess.run(argv, input=f'user = "{login}"', text=True, capture_output=True, check=False)
    assert done.returncode == 0, described(done)
    return done.stdout


@pytest.mark.kit(*RECIPES)
@pytest.mark.proves("monitoring", "The landing page opens with its login only, and only over TLS.")
def test_page__without_its_login_or_tls__does_not_open(lab: TestLab, authority: Path) -> None:
    host = f"{address(lab)}:{PORT}"
    lab.ssh("gpu01", "sudo", "tee", "/root/authority.pem", stdin=authority.read_text())
    status = f"{ASK} --cacert /root/authority.pem --output /dev/null --write-out '%{{http_code}}'"
    assert lab.root("gpu01", f"{status} https://{host}/") == "401"
    of_prometheus = secret(lab, "prometheus_password")
    for login in ("viewer:", "viewer:viewer", "admin:admin", f"viewer:{of_prometheus}", f"admin:{of_prometheus}"):
        assert lab.root("gpu01", f"{status} --user '{login}' https://{host}/") == "401", login
    assert lab.root("gpu01", f"{status} http://{host}/ 2>/dev/null || true") == "000"
    login = f"viewer:{secret(lab, 'landing_page_password')}"
    assert lab.root("gpu01", f"{status} --user '{login}' https://{host}/") == "200"


@pytest.mark.kit(*RECIPES)
@pytest.mark.proves("monitoring", "The landing page shows a drained node with its cause, and a firing alert.")
def test_page__of_a_drained_node_and_an_alert__shows_their_causes(lab: TestLab, authority: Path) -> None:
    login, url = f"viewer:{secret(lab, 'landing_page_password')}", f"https://{address(lab)}:{PORT}/"

    def says(text: str) -> None:
        wait_until(lambda: text in fetch(url, authority, login), lambda: fetch(url, authority, login))

    says("All nodes are in service, and no alert fires.")
    lab.root("head1", "scontrol update NodeName=gpu01 State=DRAIN Reason='new fan <b> [#7]'")
    lab.ssh("head1", "sudo", "tee", "/etc/prometheus/rules/site.yml", stdin=SENSOR.replace(", action: drain", ""))
    lab.root("head1", "systemctl reload prometheus")
    lab.ssh("gpu02", "sudo", "tee", "/var/lib/clusterctl-metrics/site.prom", stdin="site_sensor_broken 1\n")
    says("1 node out of service, 1 firing alert.")
    page = fetch(url, authority, login)
    assert "new fan &lt;b&gt; [#7]" in page
    assert "the sensor of gpu02 is broken" in page
    assert "4 idle" in page
    assert "4 unavailable" in page
    # In service again it has no reason on the page, although Slurm keeps one.
    lab.root("head1", "rm /etc/prometheus/rules/site.yml; systemctl reload prometheus")
    lab.root("head1", "scontrol update NodeName=gpu01 State=UNDRAIN")
    lab.root("gpu02", "rm /var/lib/clusterctl-metrics/site.prom")
    says("All nodes are in service, and no alert fires.")
    assert "new fan" not in fetch(url, authority, login)


@pytest.mark.kit(*RECIPES)
@pytest.mark.proves("open", "`open` prints each page's address and user; passwords only on request.")
def test_open__of_a_cluster__prints_addresses_and_logins(lab: TestLab, authority: Path) -> None:
    found = {one["name"]: one for one in lab.run("open", "--no-browser")["pages"]}
    host = address(lab)
    assert {name: one["url"] for name, one in found.items()} == {
        name: f"https://{host}:{port}/" for name, port in PAGES.items()
    }
    assert {one["problem"] for one in found.values()} == {None}
    assert found["landing"]["user"] == "viewer"

    password = secret(lab, "landing_page_password")
    plain = clusterctl("open", str(lab.inventory), "landing", "--no-browser")
    assert plain.returncode == 0, described(plain)
    assert f"https://{host}:{PORT}/" in plain.stdout
    assert f"clusterctl secret show {lab.inventory} landing_page_password" in plain.stdout
    assert ":9090/" not in plain.stdout
    assert password not in plain.stdout + plain.stderr
    shown = clusterctl("open", str(lab.inventory), "landing", "--no-browser", "--show-passwords")
    assert f"user viewer, password: {password}" in shown.stdout
    for one in lab.run("open", "--no-browser", "--show-passwords")["pages"]:
        fetch(one["url"], authority, f"{one['user']}:{one['password']}")


@pytest.mark.kit(*RECIPES)
def test_open__of_a_misspelt_page__exits_with_2(lab: TestLab) -> None:
    done = clusterctl("open", str(lab.inventory), "promtheus")
    assert done.returncode == 2, described(done)
    assert 'no page "promtheus"' in done.stdout + done.stderr
    assert "prometheus" in (done.stdout + done.stderr).replace("promtheus", "")


@pytest.mark.kit(*RECIPES)
@pytest.mark.proves("open", "`open --tunnel` serves the page with a valid certificate until Ctrl-C, then exits 0.")
def test_tunnel__until_interrupted__serves_the_page_on_this_machine(lab: TestLab, authority: Path) -> None:
    argv = [
        "clusterctl",
        "open",
        str(lab.inventory),
        "--tunnel",
        "--no-browser",
        "--show-passwords",
        "--output",
        "json",
    ]
    process = start_for_test(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout
    text = ""
    while not text.endswith("\n}\n"):
        line = process.stdout.readline()
        assert line, process.communicate()
        text += line
    found = json.loads(text)["pages"]
    assert [one["name"] for one in found] == list(PAGES)
    served = [fetch(one["url"], authority, f"{one['user']}:{one['password']}") for one in found]
    assert "All nodes are in service" in served[0]
    host, _, port = found[0]["url"].removeprefix("https://").rstrip("/").partition(":")
    assert host == "127.0.0.1"
    # Nobody else on the network can use it.
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((address_of_this_machine(lab), int(port)), timeout=20)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, out + errors
    assert "Traceback" not in errors
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), timeout=20)


def address_of_this_machine(lab: TestLab) -> str:
    """Return the address that nodes of the lab see this machine at."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address(lab), PORT))
        return str(probe.getsockname()[0])


MONITORING = (
    "alert-drain",
    "landing-page",
    "nvidia-dcgm-exporter",
    "prometheus",
    "prometheus-alertmanager",
    "prometheus-blackbox-exporter",
    "prometheus-mysqld-exporter",
    "prometheus-node-exporter",
)
LOGS = ("filebeat", "journal-export", "opensearch")
# MB that all services of each may need; docs/monitoring.md and docs/logs.md have what they need.
MOST = {("head1", MONITORING): 330, ("gpu01", MONITORING): 100, ("head1", LOGS): 1200, ("gpu01", LOGS): 150}


@pytest.mark.kit(*RECIPES)
@pytest.mark.proves("monitoring", "Monitoring of a small cluster needs at most 330 MB on the head.")
@pytest.mark.proves("log_stack", "Logs of a small cluster need at most 1.2 GB on the head.")
@pytest.mark.parametrize(("node", "units"), MOST, ids=lambda value: value if isinstance(value, str) else value[0])
def test_stack__at_rest__needs_little_memory(lab: TestLab, node: str, units: tuple[str, ...]) -> None:
    needed = {unit: round(pss(lab, node, unit)) for unit in units}
    print(f"memory in MB on {node}: {needed}")
    if node == "head1":
        missing = {unit for unit, megabytes in needed.items() if not megabytes}
        assert missing <= {"nvidia-dcgm-exporter"}
    assert 0 < sum(needed.values()) <= MOST[node, units]


def pss(lab: TestLab, node: str, unit: str) -> float:
    """Return the MB of a service's processes, with their part of what they share with others; 0 if it does not run."""
    script = f"""
    group=$(systemctl show --value --property=ControlGroup {unit})
    [ -n "$group" ] || exit 0
    for pid in $(cat "/sys/fs/cgroup$group/cgroup.procs"); do grep ^Pss: "/proc/$pid/smaps_rollup"; done
    """
    return sum(int(line.split()[1]) for line in lab.root(node, script).splitlines()) * 1.024e-3
