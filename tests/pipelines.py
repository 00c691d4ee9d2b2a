"""Sample lines through the ingest pipelines of a real search engine."""

import json
from collections.abc import Callable
from typing import Any

import yaml

from tests.labs import REPOSITORY

SAMPLES = REPOSITORY / "tests/samples/logs/lines.yaml"


def samples() -> list[dict[str, Any]]:
    """Return the sample lines, each with its source and what is to be found in it."""
    lines: list[dict[str, Any]] = yaml.safe_load(SAMPLES.read_text())
    return lines


def shipped(sample: dict[str, Any]) -> dict[str, Any]:
    """Return a line as Filebeat sends it, or Logstash if it is of a device."""
    message = sample["message"]
    if sample["dataset"] == "syslog":
        return {
            "@timestamp": "2024-06-01T00:00:00.000Z",
            "message": message,
            "dataset": "syslog",
            "address": "192.0.2.7",
        }
    if sample["dataset"] == "journal":
        entry = {"cursor": "s=1", "time": 1_654_045_200_000, "message": message, **sample["journal"]}
        message = json.dumps(entry)
    return {
        "@timestamp": "2024-06-01T00:00:00.000Z",
        "message": message,
        "dataset": sample["dataset"],
        "node": "gpu01",
        "zone": sample.get("zone", "UTC"),
        "keep_days": 36500,
        "log": {"offset": 17, "file": {"path": sample.get("path", "/var/log/x")}},
        "agent": {"type": "filebeat"},
    }


def wrong(ask: Callable[[str, dict[str, Any]], Any]) -> list[str]:
    """Return what a search engine does not find in the samples; `ask` sends a POST request to it."""
    lines = samples()
    answer = ask(
        "/_ingest/pipeline/clusterlog/_simulate",
        {"docs": [{"_index": "clusterlog-2", "_source": shipped(line)} for line in lines]},
    )
    found = []
    for line, done in zip(lines, answer["docs"], strict=True):
        document = (done.get("doc") or {}).get("_source")
        if document is None:
            found.append(f"{line['message'][:60]}: {json.dumps(done)[:300]}")
            continue
        wanted = {"node": "gpu01", "dataset": line["dataset"], **line["finds"]}
        got = {name: document.get(name) for name in wanted}
        if got != wanted:
            found.append(f"{line['message'][:60]}: got {got}, expected {wanted}")
        if ("unparsed" in document) != line.get("unparsed", False):
            found.append(f"{line['message'][:60]}: {document.get('unparsed')}")
        left = document.keys() & {
            "log",
            "agent",
            "zone",
            "keep_days",
            "stored",
            "age",
            "journal",
            "rest",
            "time",
            "text",
        }
        if left:
            found.append(f"{line['message'][:60]}: left over: {sorted(left)}")
    return found
