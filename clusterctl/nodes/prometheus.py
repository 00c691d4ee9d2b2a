"""Sum up metrics of the Prometheus on a host of the group `monitoring`, over SSH and with the host's own password."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from clusterctl.inventory.model import Host
from clusterctl.nodes import contact, probe
from clusterctl.nodes.probe import common
from clusterctl.nodes.remote import Access, connect
from clusterctl.nodes.session import ContactError
from clusterctl.util.period import Period
from clusterctl.util.text import printable
from clusterctl.util.untrusted import Malformed, amount, decode, mapping, optional, sequence, text

GROUP = "monitoring"
_AUTHORITY = "/etc/prometheus/tls/authority.pem"
_PASSWORD = "/etc/prometheus/own-password"  # noqa: S105 - the path of the file
_SECONDS = 300.0
_MAX_REPLY = 64 << 20  # bytes; five queries of 500 nodes and 366 days are a third of it
_MAX_DAYS = 400
# Prometheus scrapes every 15 s unless the inventory differs, and keeps a value for 5 min.
_MIN_STEP, _MAX_STEP, _STEPS = 15, 300, 240


@dataclass(frozen=True)
class _Reply:
    error: Annotated[str | None, optional(text())]
    series: Annotated[
        Mapping[str, Mapping[str, tuple[tuple[float, float], ...]]],
        mapping(text(), mapping(text(), sequence(sequence(amount, 2), _MAX_DAYS), common.MAX_SERIES), 16),
    ]


@dataclass(frozen=True)
class Measures:
    """By query, by the series' label and by day, the sum of the values and their number; or why there are none.

    `step` is the time in seconds that a value stands for.
    """

    error: str = ""
    series: Mapping[str, Mapping[str, tuple[tuple[float, float], ...]]] = field(default_factory=dict)
    step: int = 0

    def hours(self, query: str, label: str | None = None, day: int | None = None) -> float:
        """Return the sum of the values over time, in hours; of one series, or of one day."""
        return self._sum(query, label, day, 0) * self.step / 3600

    def measured_hours(self, query: str, label: str | None = None, day: int | None = None) -> float:
        """Return for how many hours the series have values."""
        return self._sum(query, label, day, 1) * self.step / 3600

    def labels(self, query: str) -> list[str]:
        """Return the labels of the query's series."""
        return sorted(self.series.get(query, {}))

    def _sum(self, query: str, label: str | None, day: int | None, part: int) -> float:
        series = self.series.get(query, {})
        chosen = series.values() if label is None else [series[label]] if label in series else []
        return sum(one[part] for days in chosen for one in (days if day is None else days[day : day + 1]))


def url(host: Host, port: int) -> str:
    """Return the address of a host's pages."""
    address = str(host.variables.get("cluster_address", host.address))
    return f"https://[{address}]:{port}" if ":" in address else f"https://{address}:{port}"


def access(host: Host) -> dict[str, str]:
    """Return where the Prometheus of a host of the group `monitoring` is, and the files that are needed to log in."""
    return {
        "url": url(host, host.variables.get("prometheus_port", 9090)),
        "user": str(host.variables.get("prometheus_user", "admin")),
        "password_file": _PASSWORD,
        "authority": _AUTHORITY,
    }


def step(period: Period) -> int:
    """Return the seconds between two values, so that a short period has enough of them and a long one not too many."""
    return min(_MAX_STEP, max(_MIN_STEP, period.seconds // _STEPS))


def measure(host: Host, way: Access, queries: Mapping[str, str], period: Period) -> Measures:
    """Evaluate queries, whose series have at most one label, over a period. A failure is in the answer."""
    options: dict[str, Any] = {
        "access": access(host),
        "queries": dict(queries),
        "parts": [(part.since, part.until) for part in period.days()],
        "step": step(period),
    }
    try:
        with connect(host, way) as session:
            argv = [contact.PYTHON, "-I", "-"]
            program = probe.program(options, "print_measures")
            status, out, err = session.run(argv, stdin=program, root=True, timeout=_SECONDS, limit=_MAX_REPLY)
    except ContactError as error:
        return Measures(f"{host.name}: {error.found}")
    return read(host.name, out, options["step"]) if status == 0 else Measures(_failed(host.name, status, err))


def read(name: str, out: str, seconds: int) -> Measures:
    """Return the answer in the output of the program on the host `name`."""
    lines = [line for line in out.splitlines() if line.startswith(common.MARK)]
    try:
        found = decode(_Reply, json.loads(lines[-1][len(common.MARK) :]) if lines else None)
    except (ValueError, RecursionError) as invalid:
        reason = str(invalid) if isinstance(invalid, Malformed) else "not JSON"
        return Measures(f"{name}: the sums of Prometheus's metrics are not valid: {reason}")
    return Measures(f"{name}: {found.error}" if found.error else "", found.series, seconds)


def _failed(name: str, status: int, err: str) -> str:
    last = next((printable(line, 200) for line in reversed(err.splitlines()) if line.strip()), "")
    return f"{name}: {contact.PYTHON} ended with {status}: {last}"
