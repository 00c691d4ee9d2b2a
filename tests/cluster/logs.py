"""What the tests of the log stack ask its search engine, a real OpenSearch with TLS and login."""

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.cluster.lab import TestLab
from tests.faults.injury import wait_until

RECIPES = ("opensearch", "filebeat")
"""What a lab needs of the kit."""
GROUP = "    logging:\n      hosts:\n        head1: {}\n"
"""The group of a lab's inventory that switches the log stack on."""


def switch_on(lab: TestLab) -> None:
    """Add the group logging to the inventory."""
    lab.inventory.write_text(lab.inventory.read_text() + GROUP)


def configuration(lab: TestLab) -> dict[str, Any]:
    given: dict[str, Any] = json.loads(lab.root("head1", "cat /etc/clusterctl/log-store/configuration.json"))
    return given


def ask(lab: TestLab, path: str, body: dict[str, Any] | None = None, method: str = "POST") -> Any:
    """Send a request to the engine as a person would, with user and password; of this method if it has data.

    The Apache-licensed Elasticsearch has no login.
    """
    given = configuration(lab)
    login = f"--cacert {given['authority']} --user {given['user']}:$(cat {given['password']})"
    argv = login if given["secure"] else ""
    data = (
        ""
        if body is None
        else f"--request {method} --header 'Content-Type: application/json' --data {shlex.quote(json.dumps(body))}"
    )
    return json.loads(lab.root("head1", f"curl --silent --show-error {argv} {data} '{given['url']}{path}'"))


def has_started(lab: TestLab) -> bool:
    """Return whether the engine answers; just after its start it sends text instead of JSON."""
    try:
        return "version" in ask(lab, "/")
    except json.JSONDecodeError:
        return False


def find(lab: TestLab, query: str) -> list[dict[str, Any]]:
    """Return the newest lines that a query finds; none without an index."""
    ask(lab, "/clusterlog-*/_refresh")
    body: dict[str, Any] = {"query": {"query_string": {"query": query}}, "size": 50}
    # A day's index may be new.
    body["sort"] = [{"@timestamp": {"order": "desc", "unmapped_type": "date"}}]
    return [hit["_source"] for hit in ask(lab, "/clusterlog-*/_search", body)["hits"]["hits"]]


def numbers(lab: TestLab, node: str, program: str) -> tuple[int, int]:
    """Return how many lines of a program are stored, and how many different ones."""
    ask(lab, "/clusterlog-*/_refresh")
    query = {"query_string": {"query": f'node:{node} AND program:"{program}"'}}
    found: list[str] = []
    after = None
    while True:
        body: dict[str, Any] = {"query": query, "size": 5000, "sort": [{"@timestamp": "asc"}, {"_id": "asc"}]}
        body |= {"search_after": after} if after else {}
        hits = ask(lab, "/clusterlog-*/_search?filter_path=hits.hits._source.message,hits.hits.sort", body)
        page = (hits.get("hits") or {}).get("hits") or []
        if not page:
            return len(found), len(set(found))
        found += [hit["_source"]["message"] for hit in page]
        after = page[-1]["sort"]


def stored(lab: TestLab, node: str, expected: tuple[int, int], program: str) -> bool:
    return numbers(lab, node, program) == expected


def metrics(lab: TestLab) -> dict[str, float]:
    """Return what log-store writes for Prometheus."""
    text = lab.root("head1", "systemctl start log-store && cat /var/lib/clusterctl-metrics/log-store.prom")
    rows = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in rows}


@contextmanager
def full_disk(lab: TestLab) -> Iterator[None]:
    """Let the engine take its disk for full: set watermarks of free space that no disk has."""
    levels = {
        f"cluster.routing.allocation.disk.watermark.{name}": "900000gb" for name in ("low", "high", "flood_stage")
    }
    settings = {"cluster.info.update.interval": "10s", **levels}
    ask(lab, "/_cluster/settings", {"transient": settings}, "PUT")
    try:
        wait_until(lambda: metrics(lab)["cluster_logs_refused"] > 0)
        yield
    finally:
        ask(lab, "/_cluster/settings", {"transient": dict.fromkeys(settings)}, "PUT")
    wait_until(lambda: metrics(lab)["cluster_logs_refused"] == 0)
