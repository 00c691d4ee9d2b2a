"""`alert test`: send a test alert through the Alertmanager of each monitoring host, and print where it arrived."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from clusterctl.inventory import alerting
from clusterctl.inventory.model import Host
from clusterctl.nodes import prometheus
from clusterctl.nodes.parallel import each
from clusterctl.nodes.remote import Access, connect
from clusterctl.nodes.session import ContactError
from clusterctl.run import context
from clusterctl.run.context import Options
from clusterctl.ui.screen import Screen
from clusterctl.util.errors import InputError, Problem
from clusterctl.util.redaction import throughout
from clusterctl.util.text import plural, printable
from clusterctl.util.untrusted import Malformed, decode, mapping, text
from clusterctl.workspace import secrets

ARRIVED, NOT_ARRIVED = 0, 4
PROGRAM = "/usr/local/sbin/alert-test"
SENT = "sent"
_SECONDS = 90.0  # the program itself ends after 60 s


@dataclass(frozen=True)
class Answer:
    """The program's output: of each receiver that got the alert `sent`, or why not."""

    receivers: Annotated[Mapping[str, str], mapping(text(r"[a-z]+-\d+", "a receiver such as mail-1"), text(), 100)]


@dataclass(frozen=True)
class Delivery:
    """What a host's Alertmanager reported, or the reason why there is no answer."""

    name: str
    problem: str = ""
    receivers: Mapping[str, str] | None = None

    @property
    def arrived(self) -> bool:
        """Return whether at least one receiver got the alert, and none failed."""
        return bool(self.receivers) and {*(self.receivers or {}).values()} == {SENT}


def test(options: Options, severity: str) -> int:
    """Send a test alert and print what became of it; return ARRIVED or NOT_ARRIVED.

    Raises InputError for a cluster without monitoring.
    """
    site = context.load(options)
    hosts = site.inventory.in_group(prometheus.GROUP)
    if not hosts:
        raise InputError([Problem(None, str(options.given), "has no group monitoring", "clusterctl docs monitoring")])
    site = context.authorise(site)
    screen = options.screen()
    with screen.working("Sending a test alert, for up to a minute"):
        found = each(hosts, lambda host: deliver(host, site.access, severity))
    redact = secrets.redactor(site.inventory.directory, site.access.sudo_password).redact
    deliveries: list[Delivery] = throughout(list(found.values()), redact)
    code = ARRIVED if all(one.arrived for one in deliveries) else NOT_ARRIVED
    if options.json:
        print(json.dumps({"exit_code": code, "hosts": {one.name: _as_dict(one) for one in deliveries}}, indent=2))
        return code
    for host, delivery in zip(hosts, deliveries, strict=True):
        show(screen, host, delivery, severity)
    return code


def deliver(host: Host, access: Access, severity: str) -> Delivery:
    """Run the program on a host."""
    url = prometheus.url(host, host.variables.get("alertmanager_port", 9093))
    argv = [PROGRAM, url, str(host.variables.get("alertmanager_user", "admin")), severity]
    try:
        with connect(host, access) as session:
            status, out, err = session.run(argv, root=True, timeout=_SECONDS)
    except ContactError as error:
        return Delivery(host.name, error.found)
    if status:
        reason = next((printable(line, 200) for line in reversed(err.splitlines()) if line.strip()), "")
        absent = status == 127 or "not found" in reason
        return Delivery(host.name, "Alertmanager is not set up yet: bootstrap" if absent else reason)
    try:
        return Delivery(host.name, "", decode(Answer, json.loads(out)).receivers)
    except (ValueError, RecursionError) as error:
        return Delivery(host.name, f"invalid output: {error if isinstance(error, Malformed) else 'not JSON'}")


def show(screen: Screen, host: Host, delivery: Delivery, severity: str) -> None:
    """Print a line for each receiver."""
    if delivery.receivers is None:
        screen.say((screen.glyphs["failed"], "red"), f" {host.name}: {delivery.problem}")
    elif not delivery.receivers:
        given = host.variables.get(alerting.RECEIVERS, [])
        which = f"none of {plural(len(given), 'receiver')} gets {severity} alerts" if given else "there is no receiver"
        screen.say((screen.glyphs["failed"], "red"), f" {host.name}: {which}; set {alerting.RECEIVERS}")
    for name, outcome in (delivery.receivers or {}).items():
        mark = ("done", "green") if outcome == SENT else ("failed", "red")
        screen.say((screen.glyphs[mark[0]], mark[1]), f" {alerting.describe(host, name)}: {outcome}")


def _as_dict(delivery: Delivery) -> dict[str, object]:
    return {"problem": delivery.problem or None, "receivers": dict(delivery.receivers or {})}
