"""Saved searches and the dashboard of the logs' pages: one definition for role kibana, docs/logs.md and their tests.

`python -m tests.log_pages` writes the files that role kibana imports, one for each program, in the form of its exports.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.labs import REPOSITORY

FOLDER = REPOSITORY / "roles/kibana/files"
VIEW = "clusterctl-logs"
INDEX = "kibanaSavedObjectMeta.searchSourceJSON.index"
WIDTH, HEIGHT = 48, 15  # of a panel, in the dashboards' units


@dataclass(frozen=True)
class Search:
    """A search in the logs. Its query has places for what a person looks for."""

    name: str
    title: str
    purpose: str
    query: str
    columns: tuple[str, ...]

    def asked(self, job: str = "*", node: str = "*") -> str:
        """Return the query in the syntax that both engines call lucene; a saved one is of all jobs and nodes."""
        return self.query.format(job=job, node=node)


SEARCHES = (
    Search(
        "job",
        "Lines of jobs",
        "a job on all nodes, with GPU errors during it",
        "job_id:{job}",
        ("job_id", "node", "dataset", "level", "message"),
    ),
    Search(
        "gpu", "GPU errors", "GPU errors", "xid:* OR sxid:* OR ecc:true", ("node", "gpu", "xid", "job_id", "message")
    ),
    Search("logins", "Failed logins", "failed logins", "login:failed", ("node", "user", "address", "message")),
    Search(
        "errors",
        "Errors",
        "errors of a node",
        "node:{node} AND level:(error OR critical)",
        ("node", "dataset", "program", "unit", "message"),
    ),
    Search(
        "devices",
        "Lines of devices",
        "switches, BMCs and power units",
        "dataset:syslog",
        ("node", "device", "level", "program", "message"),
    ),
)


@dataclass(frozen=True)
class Product:
    """What differs between the programs' exports: versions of the types, attributes, and names of references."""

    name: str
    versions: dict[str, dict[str, Any]]
    search: dict[str, Any]
    panel: dict[str, Any]
    reference: str


KIBANA = Product(
    "kibana",
    {
        kind: {"coreMigrationVersion": "8.8.0", "typeMigrationVersion": version}
        for kind, version in (("index-pattern", "8.0.0"), ("search", "10.5.0"), ("dashboard", "8.9.0"))
    },
    {"grid": {}, "hideChart": False, "isTextBasedQuery": False, "timeRestore": False},
    {"version": "8.9.0", "type": "search"},
    "{0}:panel_{0}",
)
OPENSEARCH = Product(
    "opensearch-dashboards",
    {
        kind: {"migrationVersion": {kind: version}}
        for kind, version in (("index-pattern", "7.6.0"), ("search", "7.9.3"), ("dashboard", "7.9.3"))
    },
    {"hits": 0, "version": 1},
    {"version": "2.19.0"},
    "panel_{0}",
)
PRODUCTS = (KIBANA, OPENSEARCH)


def compact(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def objects(product: Product) -> list[dict[str, Any]]:
    """Return the saved objects. The dashboard's description ends with a hash of all of them, for program log-pages."""
    found = [*_objects(product)]
    mark = hashlib.sha256(compact(found).encode()).hexdigest()[:12]
    found[-1]["attributes"]["description"] += f" (clusterctl {mark})"
    return found


def _objects(product: Product) -> Iterator[dict[str, Any]]:
    view = {"title": "clusterlog-*", "timeFieldName": "@timestamp"}
    yield _object(product, "index-pattern", VIEW, view, [])
    for search in SEARCHES:
        source = {
            "query": {"query": search.asked(), "language": "lucene"},
            "filter": [],
            "indexRefName": INDEX,
        }
        attributes = {
            "title": search.title,
            "description": f"Search for {search.purpose}.",
            "columns": list(search.columns),
            "sort": [["@timestamp", "desc"]],
            "kibanaSavedObjectMeta": {"searchSourceJSON": compact(source)},
            **product.search,
        }
        references = [{"name": INDEX, "type": "index-pattern", "id": VIEW}]
        yield _object(product, "search", f"{VIEW}-{search.name}", attributes, references)
    panels = [
        {
            "panelIndex": str(number),
            "gridData": {"x": 0, "y": number * HEIGHT, "w": WIDTH, "h": HEIGHT, "i": str(number)},
            "embeddableConfig": {},
            "panelRefName": f"panel_{number}",
            **product.panel,
        }
        for number, _ in enumerate(SEARCHES)
    ]
    source = {"query": {"query": "", "language": "lucene"}, "filter": []}
    attributes = {
        "title": "Logs of the cluster",
        "description": "Searches in the logs of all nodes. Save copies of your own: a new release replaces this one.",
        "panelsJSON": compact(panels),
        "optionsJSON": compact({"useMargins": True, "hidePanelTitles": False}),
        "timeRestore": True,
        "timeFrom": "now-24h",
        "timeTo": "now",
        "version": 1,
        "kibanaSavedObjectMeta": {"searchSourceJSON": compact(source)},
    }
    references = [
        {"name": product.reference.format(number), "type": "search", "id": f"{VIEW}-{search.name}"}
        for number, search in enumerate(SEARCHES)
    ]
    yield _object(product, "dashboard", f"{VIEW}-overview", attributes, references)


def _object(
    product: Product, kind: str, name: str, attributes: dict[str, Any], references: list[dict[str, str]]
) -> dict[str, Any]:
    return {
        "type": kind, "id": name, "attributes": attributes, "references": references, **product.versions[kind],
    }  # fmt: skip


def text(product: Product) -> str:
    """Return the file that role kibana imports."""
    return "".join(compact(one) + "\n" for one in objects(product))


if __name__ == "__main__":
    for one in PRODUCTS:
        (FOLDER / f"{one.name}.ndjson").write_text(text(one))
