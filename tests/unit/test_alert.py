"""`alert test`: what its program on the node concludes, and what a person reads."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from clusterctl.commands import alert
from clusterctl.inventory import alerting
from clusterctl.inventory.model import Host
from clusterctl.nodes import prometheus
from clusterctl.ui.screen import Screen
from clusterctl.util.errors import Position
from tests.systems.rendering import SYSTEMS, Cluster, a_cluster
from tests.unit.head_programs import load

PROGRAM = load("alert-test")
RECEIVERS: list[dict[str, Any]] = [
    {"type": "mail", "to": ["ops@example.org", "ada@example.org"]},
    {"type": "slack", "channel": "#gpu", "severities": ["critical"]},
    {"type": "webhook", "url": "https://hooks.example.org/x", "token": True},
    {"type": "watchdog"},
]
# As Alertmanager 0.25.0 (Debian 12) and 0.28.1 (Debian 13) logged it for a closed port.
LOGGED = [
    "ts=2026-11-27T02:12:08.412Z caller=notify.go:732 level=warn component=dispatcher receiver=webhook-3 "
    'integration=webhook[0] msg="Notify attempt failed, will retry later" attempts=1 '
    r'err="Post \"http://127.0.0.1:8097/nobody\": dial tcp 127.0.0.1:8097: connect: connection refused"',
    'time=2026-11-27T02:09:36.642Z level=WARN source=notify.go:865 msg="Notify attempt failed, will retry later" '
    r"component=dispatcher receiver=webhook-3 integration=webhook[0] aggrGroup="
    r'"{}/{severity=~\"info\"}:{alertname=\"ClusterctlTest\"}" attempts=1 '
    r'err="Post \"<redacted>\": dial tcp 127.0.0.1:8097: connect: connection refused"',
]


@pytest.mark.parametrize("line", LOGGED)
def test_log__of_a_failed_attempt__has_receiver_and_error(line: str) -> None:
    match = PROGRAM.FAILED.search(line)
    assert match["receiver"] == "webhook-3"
    assert match["error"].endswith("connect: connection refused")


@pytest.mark.parametrize(
    ("after", "errors", "expected"),
    [
        ({"email": (5, 2), "slack": (1, 0)}, {}, {"mail-1": "sent", "slack-2": "sent"}),
        ({"email": (5, 3), "slack": (1, 0)}, {}, {"slack-2": "sent"}),
        ({"email": (5, 2)}, {}, {"mail-1": "sent"}),
        ({"email": (5, 3)}, {"mail-1": "refused"}, {"mail-1": "refused"}),
        ({}, {}, {}),
    ],
)
def test_outcomes__by_counters_and_log__are_known_or_left_out(
    after: dict[str, Any], errors: dict[str, str], expected: dict[str, str]
) -> None:
    before = {"email": (4, 2)}
    assert PROGRAM.outcomes(["mail-1", "slack-2"], before, {**before, **after}, errors) == expected


def test_outcomes__two_of_one_kind__need_two_requests() -> None:
    names = ["webhook-1", "watchdog-2"]
    assert PROGRAM.outcomes(names, {}, {"webhook": (1, 0)}, {}) == {}
    assert PROGRAM.outcomes(names, {}, {"webhook": (2, 0)}, {}) == dict.fromkeys(names, "sent")


def a_host(**variables: Any) -> Host:
    groups, place = frozenset({"monitoring"}), Position(Path("inventory.yaml"), 1, 1)
    return Host("head1", "10.0.0.10", 22, "admin", None, True, groups, variables, place)


@pytest.mark.parametrize(("address", "expected"), [("10.0.0.10", "10.0.0.10"), ("fd00::1", "[fd00::1]")])
def test_url__of_a_host__has_its_address_in_the_cluster(address: str, expected: str) -> None:
    assert prometheus.url(a_host(cluster_address=address), 9093) == f"https://{expected}:9093"


def shown(host: Host, delivery: alert.Delivery) -> str:
    out = io.StringIO()
    alert.show(Screen(out), host, delivery, "critical")
    return out.getvalue()


def test_show__of_each_receiver__says_where_and_what_happened() -> None:
    host = a_host(alertmanager_receivers=RECEIVERS)
    text = shown(host, alert.Delivery("head1", "", {"mail-1": "sent", "webhook-3": "connection refused"}))
    assert "mail ops@example.org, ada@example.org: sent" in text
    assert "webhook https://hooks.example.org/x: connection refused" in text
    assert "none of 4 receivers gets critical alerts" in shown(host, alert.Delivery("head1", "", {}))
    assert "there is no receiver; set alertmanager_receivers" in shown(a_host(), alert.Delivery("head1", "", {}))
    assert "head1: no answer" in shown(host, alert.Delivery("head1", "no answer"))


@pytest.mark.parametrize(
    ("receivers", "arrived"),
    [({"mail-1": "sent"}, True), ({"mail-1": "sent", "slack-2": "x"}, False), ({}, False), (None, False)],
)
def test_arrived__only_if__each_receiver_got_it(receivers: dict[str, str] | None, arrived: bool) -> None:
    assert alert.Delivery("head1", "", receivers).arrived is arrived


@pytest.mark.parametrize("system", SYSTEMS)
def test_config__of_every_type__sends_each_severity_where_it_belongs(tmp_path: Path, system: str) -> None:
    mail = {"server": "mail.example.org:587", "from": "cluster@example.org", "user": "cluster"}
    role = a_cluster(tmp_path, system).role(
        "alertmanager", "head1", alertmanager_receivers=RECEIVERS, alertmanager_mail=mail
    )
    config = yaml.safe_load(role.render(role.path / "templates/alertmanager.yml.j2"))
    routes = {route["receiver"]: route["matchers"] for route in config["route"]["routes"]}
    assert routes == {
        "drain": ['action="drain"'],
        "mail-1": ['severity=~"critical|warning"'],
        "slack-2": ['severity=~"critical"'],
        "webhook-3": ['severity=~"critical|warning"'],
        "watchdog-4": ['alertname="Watchdog"'],
    }
    assert all(route["continue"] for route in config["route"]["routes"])
    by_name = {receiver["name"]: receiver for receiver in config["receivers"]}
    assert by_name["mail-1"]["email_configs"][0]["to"] == "ops@example.org, ada@example.org"
    assert by_name["slack-2"]["slack_configs"][0]["channel"] == "#gpu"
    assert "authorization" in by_name["webhook-3"]["webhook_configs"][0]["http_config"]
    assert config["global"]["smtp_auth_username"] == "cluster"


@pytest.mark.proves("monitoring", "Receivers outside get alerts through the cluster's proxy, drains do not.")
def test_config__with_a_proxy__uses_it_for_receivers_outside(tmp_path: Path) -> None:
    receivers = [
        *RECEIVERS,
        {"type": "webhook", "url": "https://chat.aurora.cluster/x"},
        {"type": "webhook", "url": "http://10.0.0.7/x"},
        {"type": "pagerduty"},
        {"type": "teams"},
        {"type": "webhook", "url": "http://gpu01/x"},
        {"type": "webhook", "url": "http://10.0.0.10/x"},
    ]
    role = a_cluster(tmp_path, "debian-13").role(
        "alertmanager",
        "head1",
        alertmanager_receivers=receivers,
        alertmanager_mail={"server": "mail.example.org:587", "from": "cluster@example.org"},
        cluster_http_proxy="http://proxy:3128",
        cluster_networks=["10.0.0.7/32"],
    )
    config = yaml.safe_load(role.render(role.path / "templates/alertmanager.yml.j2"))
    proxies = {
        receiver["name"]: one.get("http_config", {}).get("proxy_url")
        for receiver in config["receivers"]
        for kind, ones in receiver.items()
        if kind.endswith("_configs")
        for one in ones
    }
    outside = ("slack-2", "webhook-3", "watchdog-4", "pagerduty-7", "teams-8")
    inside = ("drain", "mail-1", "webhook-5", "webhook-6", "webhook-9", "webhook-10")
    assert proxies == dict.fromkeys(outside, "http://proxy:3128") | dict.fromkeys(inside)


def test_secrets__of_receivers__are_those_that_they_use() -> None:
    class Inventory:
        def in_group(self, _: str) -> list[Host]:
            return [a_host(alertmanager_receivers=RECEIVERS, alertmanager_mail={"user": "cluster"})]

    assert alerting.secrets(Inventory()) == {  # type: ignore[arg-type]
        "alertmanager_mail_password": "alertmanager_mail.user",
        "alertmanager_slack_url": "alertmanager_receivers[1]",
        "alertmanager_webhook_token": "alertmanager_receivers[2]",
        "alertmanager_watchdog_url": "alertmanager_receivers[3]",
    }


def labels_of_targets(cluster: Cluster) -> list[dict[str, str]]:
    role = cluster.role("prometheus", "head1")
    assert "honor_labels" not in role.render(role.path / "templates/prometheus.yml.j2")
    return [one["labels"] for one in json.loads(role.render(role.path / "templates/nodes.json.j2"))]


@pytest.mark.proves("monitoring", "A worker cannot report metrics as another node, which would be drained.")
def test_targets__of_workers__have_their_own_name_as_node(tmp_path: Path) -> None:
    labels = labels_of_targets(a_cluster(tmp_path, "debian-13"))
    assert {one["instance"]: one.get("node") for one in labels} == {"head1": None, "gpu01": "gpu01"}


def test_targets__of_a_head_that_is_a_worker__keep_the_node_that_a_series_names(tmp_path: Path) -> None:
    """The head reports Slurm's state of every node: with a label of its own, all of them would be the head."""
    a_cluster(tmp_path, "debian-13")
    path = tmp_path / "inventory.yaml"
    inventory = yaml.safe_load(path.read_text())
    inventory["all"]["children"]["slurm_workers"]["hosts"]["head1"] = {}
    path.write_text(yaml.safe_dump(inventory))
    labels = labels_of_targets(Cluster(path, "debian-13"))
    assert {one["instance"]: one.get("node") for one in labels} == {"head1": None, "gpu01": "gpu01"}
