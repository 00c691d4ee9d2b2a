"""Alerts from the fault to a person's mail, and to the node that is drained: with the real Prometheus and Alertmanager.

What receives mail and webhooks is a server on the head (tests/molecule/alertmanager/sink.py).
"""

import json
import tarfile
import time
from collections.abc import Callable, Iterator

import pytest

from tests.cluster.alerting import drained_by_alerts, firing, reason
from tests.cluster.lab import TestLab, clusterctl, submit
from tests.cluster.logs import find
from tests.cluster.watched import RECIPES, set_hook_token
from tests.faults.injury import wait_until
from tests.labs import REPOSITORY

SINK = REPOSITORY / "tests/molecule/alertmanager/sink.py"


@pytest.fixture
def lab(watched: TestLab) -> TestLab:
    return watched


def fault(lab: TestLab, node: str, *what: str) -> None:
    done = clusterctl("lab", "fault", "--name", lab.name, node, *what)
    assert done.returncode == 0, done.stderr


def received(lab: TestLab, file: str) -> str:
    return lab.root("head1", f"cat /root/{file} 2>/dev/null || true")


@pytest.mark.kit(*RECIPES)
@pytest.mark.proves("monitoring", "A receiver without its secret ends a run before any change.")
def test_bootstrap__secret_of_a_receiver_is_missing__changes_nothing(lab: TestLab) -> None:
    done = clusterctl("bootstrap", str(lab.inventory))
    assert done.returncode == 2, done.stdout
    assert "needs the secret alertmanager_webhook_token, which is not set" in done.stdout + done.stderr
    assert "clusterctl secret set alertmanager_webhook_token" in done.stdout + done.stderr
    assert lab.root("gpu01", "ls /var/lib/clusterctl 2>/dev/null || true") == ""
    set_hook_token(lab)
    lab.run("bootstrap")
    lab.unchanged()


@pytest.mark.kit(*RECIPES)
@pytest.mark.proves("monitoring", "`alert test` shows at which receivers a test alert arrived, and why not.")
def test_alert_test__while_nothing_listens_and_then__says_so(lab: TestLab) -> None:
    done = clusterctl("alert", "test", str(lab.inventory))
    assert done.returncode == 4, done.stdout
    assert "mail ops@example.org: " in done.stdout
    assert "connection refused" in done.stdout
    lab.ssh("head1", "sudo", "tee", "/root/sink.py", stdin=SINK.read_text())
    lab.root("head1", "systemd-run --quiet --unit=sink --collect python3 /root/sink.py")
    found = lab.run("alert test")
    assert found["hosts"]["head1"]["receivers"] == {"mail-1": "sent", "webhook-2": "sent"}
    assert "This is a test of the cluster's alerts" in received(lab, "mail")


@pytest.fixture
def in_service_afterwards(lab: TestLab) -> Iterator[None]:
    """Repair what a failed test leaves: other files use the lab."""
    yield
    for node in ("gpu01", "gpu02"):
        fault(lab, node, "clear")
        lab.root("head1", f"slurm-drain alert --in {node}; scontrol update NodeName={node} State=UNDRAIN || true")
    lab.root("head1", "scancel --user=alice")


@pytest.mark.kit(*RECIPES)
@pytest.mark.proves("monitoring", "An XID raises its alert, drains the node with that reason, and reaches a person.")
@pytest.mark.proves("monitoring", "A node that an alert drained is resumed by a passed diagnosis.")
@pytest.mark.proves("log_stack", "An XID's line is stored with node, GPU and the job that ran there.")
def test_xid__of_a_gpu__drains_its_node_until_the_diagnosis(
    lab: TestLab, in_service_afterwards: None, record_property: Callable[[str, object], None]
) -> None:
    lab.root("head1", "scontrol update NodeName=gpu02 State=DRAIN Reason=mine")
    job = submit(lab, "sleep 600", "--nodelist=gpu01")
    wait_until(lambda: "RUNNING" in lab.root("head1", f"squeue --noheader --format=%T --jobs={job}"))
    address = lab.root("gpu01", "nvidia-smi --query-gpu=pci.bus_id --format=csv,noheader --id=1").lower()
    began = time.monotonic()
    for node in ("gpu01", "gpu02"):
        fault(lab, node, "gpu-xid", "79", "--gpu", "1")
    wait_until(lambda: any(node == "gpu01" and name.startswith("Gpu") for name, node in firing(lab)))
    record_property("from the fault to the alert", f"{time.monotonic() - began:.0f} s")
    wait_until(lambda: {"gpu01", "gpu02"} <= drained_by_alerts(lab).keys())
    record_property("from the fault to the drain", f"{time.monotonic() - began:.0f} s")
    wait_until(lambda: find(lab, f"job_id:{job} AND xid:79") != [])
    record_property("from the fault to the stored line", f"{time.monotonic() - began:.0f} s")
    (line,) = find(lab, f"job_id:{job} AND xid:79")
    assert (line["node"], line["level"], line["job_id"]) == ("gpu01", "error", [int(job)])
    assert line["gpu"] in address
    lab.root("head1", f"scancel {job}")
    of_node = drained_by_alerts(lab)["gpu01"]
    assert of_node.startswith("Gpu")
    assert "gpu01" in of_node
    assert f"alert: {of_node}"[:30] in reason(lab, "gpu01")
    assert reason(lab, "gpu02").endswith("mine")
    wait_until(lambda: "GPU 1 of gpu01 had XID 79" in received(lab, "mail"))
    wait_until(lambda: "GPU 1 of gpu01 had XID 79" in received(lab, "hook"))
    assert "gpu01 is drained: Gpu" in lab.root("head1", "journalctl --quiet --output=cat --unit=alert-drain")
    page = clusterctl("status", str(lab.inventory))
    assert "alert: Gpu" in page.stdout

    bundle = lab.run("support-bundle", "gpu01")
    with tarfile.open(bundle["path"]) as tar:
        contents = {member.name.rpartition("/")[2]: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
    assert b"NVRM: Xid" in contents["kernel-errors.txt"]
    assert b"GPU 1: XID 79" in contents["gpu-health.json"]
    assert b"GPU is lost" in contents["nvidia-smi.txt"]

    for node in ("gpu01", "gpu02"):
        fault(lab, node, "clear")
    assert lab.run("health", "gpu01", "gpu02", "--diagnose")["exit_code"] == 0
    wait_until(lambda: reason(lab, "gpu01").startswith("idle"))
    assert drained_by_alerts(lab) == {}
    wait_until(lambda: not firing(lab))
    assert reason(lab, "gpu01").startswith("idle"), "an alert that had not ended yet has drained it again"
    assert reason(lab, "gpu02").endswith("mine")
    lab.root("head1", "scontrol update NodeName=gpu02 State=UNDRAIN")


@pytest.mark.kit(*RECIPES)
@pytest.mark.proves("monitoring", "The pages of Alertmanager and the webhook of drains open with their logins only.")
def test_pages__without_login_or_from_elsewhere__do_not_open(lab: TestLab) -> None:
    configuration = lab.root("head1", "cat /etc/clusterctl/alert-drain/configuration.json")
    address = json.loads(configuration)["address"]
    ask = "curl --silent --insecure --max-time 5 --output /dev/null --write-out '%{http_code}'"
    for url in (f"https://{address}:9093/api/v2/alerts", f"https://{address}:9093/"):
        assert lab.root("gpu01", f"{ask} {url}") == "401"
        assert lab.root("gpu01", f"{ask} --user admin:admin {url}") == "401"
    assert lab.root("gpu01", f"{ask} --data '{{}}' https://{address}:9096/ || true") == "000"
    assert lab.root("head1", f"{ask} --data '{{}}' https://{address}:9096/") == "401"
    assert lab.root("head1", f"{ask} --data '{{}}' http://{address}:9096/ || true") == "000"
