"""Role alert_drain: which alerts drain which nodes, how many, and what is not repeated."""

import calendar
import http.client
import json
import os
import socket
import ssl
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterctl.workspace import certificates
from tests.unit.head_programs import load

PROGRAM = load("alert-drain")
NODES = [f"gpu{number:02}" for number in range(1, 9)]
# Keeps the causes as a file, and takes the arguments of slurm-drain.
LEDGER = """\
#!{python}
import json, pathlib, sys
file = pathlib.Path({file!r})
known = json.loads(file.read_text())
if sys.argv[1:]:
    cause, _, node, _, reason = sys.argv[1:]
    known.setdefault(node, {{}})[cause] = reason
    file.write_text(json.dumps(known))
print(json.dumps(known))
"""


def alert(node: str, name: str = "GpuXid", *, start: str = "2026-11-27T01:00:00Z", **changes: Any) -> dict[str, Any]:
    """Return an alert as Alertmanager's webhook has it."""
    labels = {"alertname": name, "node": node, "severity": "critical", "action": "drain"}
    notes = {"summary": f"GPU 0 of {node} had XID 79"}
    return {"status": "firing", "labels": labels, "annotations": notes, "startsAt": start} | changes


def message(*alerts: dict[str, Any]) -> dict[str, Any]:
    return {"version": "4", "alerts": list(alerts)}


class Head:
    """A head with a ledger in a file."""

    def __init__(self, folder: Path, limit: int = 3) -> None:
        self.causes, self.metrics = folder / "causes.json", folder / "alert-drain.prom"
        self.causes.write_text("{}")
        ledger = folder / "ledger"
        ledger.write_text(LEDGER.format(python=sys.executable, file=str(self.causes)))
        ledger.chmod(0o755)
        self.given = {"ledger": str(ledger), "nodes": NODES, "limit": limit, "metrics": str(self.metrics)}
        self.drain = PROGRAM.Drain(self.given)

    @property
    def drained(self) -> dict[str, str]:
        known = json.loads(self.causes.read_text())
        return {node: causes["alert"] for node, causes in known.items() if "alert" in causes}

    def resume(self, node: str) -> None:
        known = json.loads(self.causes.read_text())
        del known[node]["alert"]
        self.causes.write_text(json.dumps(known))


@pytest.fixture
def head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Head:
    monkeypatch.setattr(PROGRAM, "STATE", tmp_path / "state.json")
    monkeypatch.setattr(PROGRAM, "DIAGNOSED", tmp_path / "diagnosed")
    return Head(tmp_path)


def test_alert__that_asks_for_it__drains_its_node_with_its_name(head: Head) -> None:
    head.drain.handle(message(alert("gpu01")))
    assert head.drained == {"gpu01": "GpuXid: GPU 0 of gpu01 had XID 79"}
    assert "cluster_alert_drained_nodes 1\n" in head.metrics.read_text()


@pytest.mark.parametrize(
    "other",
    [
        alert("gpu01", status="resolved"),
        alert("head1"),
        alert("gpu01;id"),
        alert("gpu01", labels={"alertname": "GpuXid", "node": "gpu01", "action": "page"}),
        alert("gpu01", labels={"alertname": "GpuXid", "node": "gpu01"}),
        alert("gpu01", labels={"alertname": "GpuXid", "action": "drain"}),
    ],
)
def test_alert__of_another_kind__drains_nothing(head: Head, other: dict[str, Any]) -> None:
    head.drain.handle(message(other))
    assert head.drained == {}


@pytest.mark.proves("monitoring", "Alerts drain only a limited number of nodes at a time.")
def test_alerts__of_five_nodes__drain_three(head: Head, capsys: pytest.CaptureFixture[str]) -> None:
    head.drain.handle(message(*(alert(node) for node in NODES[:5])))
    assert [*head.drained] == NODES[:3]
    assert "gpu04 stays in service despite GpuXid: 3 nodes are drained by alerts already" in capsys.readouterr().err
    assert "cluster_alert_drain_refused 2\n" in head.metrics.read_text()
    head.drain.handle(message(*(alert(node) for node in NODES[:5])))
    assert [*head.drained] == NODES[:3]
    head.resume("gpu01")
    head.drain.handle(message(alert("gpu05")))
    assert [*head.drained] == ["gpu02", "gpu03", "gpu05"]


@pytest.mark.proves("monitoring", "A refused drain is counted until its own alert ends.")
def test_refusal__of_one_alert__is_counted_until_that_ends(head: Head) -> None:
    sensor = [alert(node, name="SensorBroken") for node in NODES[:5]]
    head.drain.handle(message(*sensor) | {"groupKey": "sensor"})
    head.drain.handle(message(alert("gpu01")) | {"groupKey": "xid"})
    assert "cluster_alert_drain_refused 2\n" in head.metrics.read_text(), "another alert's message ended it"
    ended = [one | {"status": "resolved"} for one in sensor]
    head.drain.handle(message(*ended) | {"groupKey": "sensor", "status": "resolved"})
    assert "cluster_alert_drain_refused 0\n" in head.metrics.read_text()
    assert [*head.drained] == NODES[:3], "the end of an alert resumes no node"


def test_limit__of_zero__drains_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PROGRAM, "STATE", tmp_path / "state.json")
    head = Head(tmp_path, limit=0)
    head.drain.handle(message(alert("gpu01")))
    assert head.drained == {}


def test_resumed_node__same_alert_once_more__is_drained_at_the_second(head: Head) -> None:
    head.drain.handle(message(alert("gpu01")))
    head.drain.handle(message(alert("gpu01")))
    head.resume("gpu01")
    head.drain.handle(message(alert("gpu01")))
    assert head.drained == {}
    head.drain.handle(message(alert("gpu01")))
    assert [*head.drained] == ["gpu01"]
    head.resume("gpu01")
    head.drain.handle(message(alert("gpu01", start="2026-11-27T02:00:00Z")))
    assert [*head.drained] == ["gpu01"], "a new alert drains at once"


@pytest.mark.proves("monitoring", "An alert delivered after its node's diagnosis drains nothing at first.")
def test_alert__that_began_before_a_passed_diagnosis__drains_at_the_second_message(head: Head) -> None:
    passed = PROGRAM.DIAGNOSED / "gpu01"
    passed.parent.mkdir()
    passed.touch()
    os.utime(passed, (calendar.timegm((2026, 11, 27, 1, 0, 30)),) * 2)
    before = alert("gpu01", start="2026-11-27T01:00:07.113945826Z")
    head.drain.handle(message(before, alert("gpu02", start="2026-11-27T01:00:07.113945826Z")))
    assert sorted(head.drained) == ["gpu02"], "only gpu01 was diagnosed"
    head.drain.handle(message(before))
    assert sorted(head.drained) == ["gpu01", "gpu02"]
    head.resume("gpu01")
    head.drain.handle(message(alert("gpu01", start="2026-11-27T01:00:31.5Z")))
    assert sorted(head.drained) == ["gpu01", "gpu02"], "a new alert drains at once"


def test_text_of_an_alert__with_controls__is_plain_in_the_reason(head: Head) -> None:
    notes = {"summary": "\x1b[31mred\nline\u202e" + "x" * 500}
    head.drain.handle(message(alert("gpu01", annotations=notes)))
    (reason,) = head.drained.values()
    assert reason.isascii() and reason.isprintable() and len(reason) <= 100


@pytest.mark.parametrize(
    "wrong", [{}, {"version": "3", "alerts": []}, {"version": "4"}, {"version": "4", "alerts": {}}]
)
def test_message__of_another_form__is_refused(head: Head, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not a message of Alertmanager"):
        head.drain.handle(wrong)


def test_ledger__that_fails__is_reported(head: Head) -> None:
    head.given["ledger"] = "/bin/false"
    with pytest.raises(OSError, match="/bin/false"):
        head.drain.handle(message(alert("gpu01")))


# --- over TLS, as Alertmanager calls it -------------------------------------------------------------------------------


@pytest.fixture
def served(head: Head, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Head, int, ssl.SSLContext]]:
    """Serve on a free port; yields the head, the port, and a context that trusts the cluster's authority.

    The address is 127.0.0.1, or the fixture's parameter.
    """
    address = getattr(request, "param", "127.0.0.1")
    issued = certificates.issue("c2VlZA==", "aurora", "head1", [address])
    for name, text in (("certificate", issued.certificate), ("key", issued.key)):
        (tmp_path / name).write_text(text)
    (tmp_path / "authority").write_text(certificates.authority("c2VlZA==", "aurora"))
    PROGRAM.Handler.drain, PROGRAM.Handler.token, PROGRAM.Handler.delay = head.drain, b"the-token", 0
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "certificate", tmp_path / "key")
    PROGRAM.Server.context = context
    with PROGRAM.Server(address, 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield head, server.server_port, ssl.create_default_context(cafile=str(tmp_path / "authority"))
        server.shutdown()


def post(
    port: int, trusted: ssl.SSLContext, token: str | None, body: bytes, *, address: str = "127.0.0.1", **headers: str
) -> int:
    connection = http.client.HTTPSConnection(address, port, context=trusted, timeout=10)
    given = {"Authorization": token} if token is not None else {}
    connection.request("POST", "/", body, {**given, **headers})
    status = connection.getresponse().status
    connection.close()
    return status


@pytest.mark.proves("monitoring", "The webhook that drains nodes refuses requests without its token.")
def test_request__without_the_token__drains_nothing(served: tuple[Head, int, ssl.SSLContext]) -> None:
    head, port, trusted = served
    body = json.dumps(message(alert("gpu01"))).encode()
    for token in (None, "", "Bearer ", "Bearer wrong", "Basic the-token", "the-token"):
        assert post(port, trusted, token, body) == 401
    assert head.drained == {}
    assert post(port, trusted, "Bearer the-token", body) == 200
    assert [*head.drained] == ["gpu01"]


@pytest.mark.parametrize("served", ["::1"], indirect=True)
def test_request__to_an_ipv6_address__drains_its_node(served: tuple[Head, int, ssl.SSLContext]) -> None:
    head, port, trusted = served
    body = json.dumps(message(alert("gpu01"))).encode()
    assert post(port, trusted, "Bearer the-token", body, address="::1") == 200
    assert [*head.drained] == ["gpu01"]


def test_request__that_is_wrong__gets_an_error_and_the_next_is_served(served: tuple[Head, int, ssl.SSLContext]) -> None:
    head, port, trusted = served
    for body in (b"", b"{", b"[]", b'{"version": "4", "alerts": [7]}', b"\xff"):
        assert post(port, trusted, "Bearer the-token", body) == 400
    assert post(port, trusted, "Bearer the-token", b"{}", **{"Content-Length": "9999999999"}) == 413
    with socket.create_connection(("127.0.0.1", port), 10) as plain:
        plain.sendall(b"no TLS at all\r\n\r\n")
    assert post(port, trusted, "Bearer the-token", json.dumps(message(alert("gpu02"))).encode()) == 200
    assert [*head.drained] == ["gpu02"]
