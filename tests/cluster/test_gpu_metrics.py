"""The GPUs' metrics by DCGM's names, as the real Prometheus has them, and the alerts that faults raise there.

The exporter is a simulation, in NVIDIA's packages and places; what it serves it reads through NVML.
"""

import json
import re
import socket
import time
import urllib.parse
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from tests.cluster.gpus import Site
from tests.cluster.lab import TestLab, clusterctl
from tests.faults.injury import outsider
from tests.labs import REPOSITORY

COLLECTORS = REPOSITORY / "roles/dcgm_exporter/templates/collectors.csv.j2"
PORT, SSH = 9400, 22
XIDS = yaml.safe_load((REPOSITORY / "roles/gpu_health/defaults/main.yml").read_text())["gpu_health_xids"]


@pytest.fixture(scope="module")
def lab(gpus: Site) -> TestLab:
    return gpus.lab


def ask(lab: TestLab, path: str, node: str = "head1") -> Any:
    """What Prometheus answers to its own host, by its own password."""
    script = f"""password=$(cat /etc/prometheus/own-password)
    address=$(grep -o 'listen-address=[^ ]*' /etc/systemd/system/prometheus.service.d/clusterctl.conf | cut -d= -f2)
    printf 'user = "admin:%s"' "$password" | curl --silent --show-error --fail --config - \\
      --cacert /etc/prometheus/tls/authority.pem "https://$address/api/v1/{path}"
    """
    return json.loads(lab.root(node, script))["data"]


def query(lab: TestLab, expression: str) -> list[dict[str, Any]]:
    """The series of an expression, now."""
    found: list[dict[str, Any]] = ask(lab, f"query?query={urllib.parse.quote(expression)}")["result"]
    return found


def firing(lab: TestLab) -> dict[tuple[str, str, str], str]:
    """The alerts about GPUs that fire: name, node, GPU; and what each says."""
    return {
        (alert["labels"]["alertname"], alert["labels"]["instance"], alert["labels"].get("gpu", "")): str(
            alert["annotations"]["summary"]
        )
        for alert in ask(lab, "alerts")["alerts"]
        if alert["state"] == "firing" and alert["labels"]["alertname"].startswith("Gpu")
    }


def until(lab: TestLab, fits: Callable[[dict[tuple[str, str, str], str]], bool]) -> None:
    """Wait until the alerts about GPUs are as they should be."""
    for _ in range(120):
        found = firing(lab)
        if fits(found):
            return
        time.sleep(2)
    raise AssertionError(found)


@pytest.mark.proves("monitoring", "Every GPU's metrics are in Prometheus under DCGM's names.")
@pytest.mark.proves("monitoring", "Health check and alert use the same list of XIDs.")
def test_every_gpu_has_its_metrics_by_dcgms_names(lab: TestLab) -> None:
    names = re.findall(r"(?m)^DCGM_FI_(?!DEV_NVLINK_COUNT_)\w+", COLLECTORS.read_text())  # A100 has older links
    until(lab, lambda found: len(query(lab, "DCGM_FI_DEV_GPU_TEMP")) == 8)
    found = query(lab, '{__name__=~"DCGM_FI_.*"}')
    assert {one["metric"]["__name__"] for one in found} == set(names)
    for name in names:
        of = {(one["metric"]["instance"], one["metric"]["gpu"]) for one in found if one["metric"]["__name__"] == name}
        assert of == {(node, str(gpu)) for node in ("gpu01", "gpu02") for gpu in range(4)}, name
    uuids = {one["metric"]["UUID"] for one in found if one["metric"]["instance"] == "gpu01"}
    assert uuids == set(lab.root("gpu01", "nvidia-smi --query-gpu=uuid --format=csv,noheader").split())
    assert {one["value"][1] for one in query(lab, "cluster_node_gpus")} == {"4"}
    told = {(one["metric"]["instance"], int(one["metric"]["xid"])) for one in query(lab, "cluster_node_hardware_xid")}
    assert told == {(node, xid) for node in ("gpu01", "gpu02") for xid in XIDS}
    assert firing(lab) == {}


@pytest.mark.proves("lab", "The simulated DCGM exporter and its packages say that they are simulated.")
def test_it_says_that_it_is_simulated(lab: TestLab) -> None:
    assert "Simulated DCGM exporter" in lab.root("gpu01", "systemctl status nvidia-dcgm-exporter")
    query_packages = "dpkg-query --show --showformat '${Package} ${Version}\\n' 'datacenter-gpu-manager-*'"
    packages = dict(line.split() for line in lab.root("gpu01", query_packages).splitlines())
    assert {"datacenter-gpu-manager-exporter", "datacenter-gpu-manager-4-core"} < set(packages)  # and the diagnostics
    assert all("simulated" in version for version in packages.values()), packages


@pytest.mark.proves("monitoring", "The GPU exporter responds to root of monitoring's host alone.")
def test_it_answers_monitoring_alone(lab: TestLab) -> None:
    """At the cluster's address of the node; the head has monitoring."""
    listening = lab.root("gpu01", f"ss --no-header --listening --tcp --numeric 'sport = :{PORT}'").split()[3]
    address, _, _ = listening.rpartition(":")
    assert f"gpu01: {{ansible_host: {address}}}" in lab.inventory.read_text()
    ask = f"curl --silent --fail --max-time 10 --insecure https://{listening}/metrics"
    login = " --cert /etc/prometheus/tls/client-certificate.pem --key /etc/prometheus/tls/client-key.pem"
    assert "DCGM_FI_DEV_GPU_TEMP" in lab.root("head1", ask + login)
    for node, who in (("head1", "alice"), ("gpu01", "alice"), ("gpu02", "root")):
        assert lab.root(node, f"runuser -u {who} -- {ask} || echo $?") == "7\n", (node, who)  # refused
    with outsider(lab) as source:
        socket.create_connection((address, SSH), 30, (source, 0)).close()  # there is a way from outside to the node
        with pytest.raises(TimeoutError):
            socket.create_connection((address, PORT), 3, (source, 0)).close()


@pytest.mark.proves("monitoring", "A hardware XID raises its alert until the diagnosis; an application's XID another.")
def test_a_fault_of_the_hardware_raises_its_alert_until_the_diagnosis(lab: TestLab) -> None:
    """Health and alert have one list of XIDs."""
    for gpu, xid in ((0, 31), (1, 119)):
        done = clusterctl("lab", "fault", "--name", lab.name, "gpu01", "gpu-xid", str(xid), "--gpu", str(gpu))
        assert done.returncode == 0, done.stderr
    until(lab, lambda found: found.get(("GpuXid", "gpu01", "1")) == "GPU 1 of gpu01 had XID 119")
    of_application = "GPU 0 of gpu01 had XID 31, an error of an application"
    until(lab, lambda found: found.get(("GpuApplicationXid", "gpu01", "0")) == of_application)
    assert ("GpuXid", "gpu01", "0") not in firing(lab)
    mended(lab, "gpu01")


@pytest.mark.proves("monitoring", "A lost GPU raises its two alerts until the diagnosis.")
@pytest.mark.long
def test_a_gpu_that_is_lost_raises_two(lab: TestLab) -> None:
    done = clusterctl("lab", "fault", "--name", lab.name, "gpu02", "gpu-xid", "79", "--gpu", "1")
    assert done.returncode == 0, done.stderr
    wanted = {
        ("GpuXid", "gpu02", "1"): "GPU 1 of gpu02 had XID 79",
        ("GpuLost", "gpu02", ""): "gpu02 shows fewer GPUs than the 4 on record",
    }
    until(lab, lambda found: found.items() >= wanted.items())
    mended(lab, "gpu02")


def mended(lab: TestLab, node: str) -> None:
    """End the faults of a node, and with the diagnosis its alerts."""
    assert clusterctl("lab", "fault", "--name", lab.name, node, "clear").returncode == 0
    assert lab.run("health", node, "--diagnose")["exit_code"] == 0
    until(lab, lambda found: not found)
    lab.healthy()


@pytest.mark.proves("monitoring", "ECC, row remap and NVLink errors raise their alerts.")
@pytest.mark.proves("monitoring", "A diagnosis ends the alerts for memory errors.")
def test_faults_of_memory_and_links_raise_theirs(lab: TestLab) -> None:
    for gpu, name in enumerate(("ecc", "row-remap", "nvlink-down")):
        assert clusterctl("lab", "fault", "--name", lab.name, "gpu01", name, "--gpu", str(gpu)).returncode == 0
    wanted = {
        ("GpuDoubleBitError", "gpu01", "0"),
        ("GpuRowRemapFailed", "gpu01", "1"),
        ("GpuNvlinkErrors", "gpu01", "2"),
    }
    until(lab, lambda found: found.keys() >= wanted)
    assert clusterctl("lab", "fault", "--name", lab.name, "gpu01", "clear").returncode == 0
    assert lab.run("health", "gpu01", "--diagnose")["exit_code"] == 0
    until(lab, lambda found: not {name for name, _, _ in found} - {"GpuNvlinkErrors"})
