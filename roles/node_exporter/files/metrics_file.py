"""Write a file of metrics for the node exporter, in Prometheus' text format."""

import calendar
import os
import re
import tempfile
import time

# The archives of roles backup: a cluster's label, Kubernetes' with its name, the time in UTC.
ARCHIVE = re.compile(r".+?(-kubernetes)?-(\d{8}T\d{6})Z\.tar$")


def newest_backup(directory, scheduler):
    """Return {labels: seconds since 1970} of a scheduler's newest archive in a directory; empty if there is none."""
    try:
        found = [ARCHIVE.match(name) for name in os.listdir(directory)]
    except OSError:
        return {}
    of_scheduler = [one.group(2) for one in found if one and bool(one.group(1)) == (scheduler == "kubernetes")]
    if not of_scheduler:
        return {}
    made = calendar.timegm(time.strptime(max(of_scheduler), "%Y%m%dT%H%M%S"))
    return {(("scheduler", scheduler),): made}


def plain(text, longest=100):
    """Return a text of people or nodes on one line of ASCII, for a label's value."""
    return re.sub(r"[^ -~]", "?", " ".join(text.split()))[:longest]


def escape(text):
    """Return a label's value, escaped for the text format."""
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def render(metrics, descriptions):
    """Return the text of metrics, which are {name: {labels: value}} with labels as a tuple of pairs."""
    lines = []
    for name, description in descriptions.items():
        values = metrics.get(name)
        if values:
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# HELP {name} {description}", f"# TYPE {name} {kind}"]
        for labels, value in sorted((values or {}).items()):
            pairs = ",".join(f'{key}="{escape(text)}"' for key, text in labels)
            lines.append(f"{name}{{{pairs}}} {value}" if pairs else f"{name} {value}")
    return "\n".join(lines) + "\n"


def replace(path, text):
    """Replace a file atomically, because the exporter may read it at any time."""
    handle, name = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".new-")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
