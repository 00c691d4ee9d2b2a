"""Generate docs/proof.md: each promise, the test that proves it, its tier, and when that test last passed.

usage: python -m tests.proof [--check | --json]
"""

import argparse
import contextlib
import difflib
import io
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType

import pytest

from tests import layers, ledger
from tests.labs import REPOSITORY
from tests.layers import layer_of
from tests.ledger import Entry

PAGE = REPOSITORY / "docs/proof.md"
TESTS = REPOSITORY / "tests"
MOST_WORDS = 15
SUBJECTS = {
    "init": "`clusterctl init`",
    "validate": "`clusterctl validate`",
    "trust": "`clusterctl trust` and host keys",
    "bootstrap": "`clusterctl bootstrap`",
    "verify": "`clusterctl verify`",
    "plan": "`clusterctl plan`",
    "status": "`clusterctl status`",
    "health": "`clusterctl health` and the health of GPUs",
    "usage": "`clusterctl usage`",
    "open": "`clusterctl open`",
    "logs": "`clusterctl logs` and past runs",
    "add-node": "`clusterctl add-node`",
    "remove-node": "`clusterctl remove-node`",
    "replace-node": "`clusterctl replace-node`",
    "upgrade": "`clusterctl upgrade`",
    "reboot": "`clusterctl reboot`",
    "backup": "`clusterctl backup`",
    "restore": "`clusterctl restore`",
    "print-command": "`--print-command` and plain Ansible",
    "inventory": "The inventory",
    "preflight": "Preflight: what is checked before a change",
    "faults": "Faults and interruptions of a run",
    "secrets": "Secrets",
    "untrusted": "Untrusted input: directories, nodes, jobs",
    "packages": "Packages and their sources",
    "jobs": "Slurm and jobs",
    "login": "Login nodes",
    "storage": "Storage: shared directories and scratch",
    "identity": "People of a directory",
    "power": "Idle nodes that sleep",
    "heads": "Two heads of Slurm",
    "kubernetes": "Kubernetes and pods",
    "gpu": "GPU settings and MIG",
    "driver": "NVIDIA's driver and CUDA",
    "containers": "Containers",
    "kubeconfig": "`clusterctl kubeconfig`",
    "monitoring": "Metrics and alerts",
    "log_stack": "Logs of all nodes",
    "firewall": "Ports and firewall",
    "node_state": "The module `node_state`",
    "roles": "Roles",
    "systems": "Operating systems and Python",
    "costs": "What a run costs, in counts",
    "lab": "The lab",
    "code": "The structure of the program",
}
"""What a promise can be about: a verb of clusterctl or a part of it, and its heading, in the order of the page."""

BEYOND = (
    ("reboot", "A real machine reboots and comes back.", "real machines"),
    ("reboot", "A reboot starts the new kernel.", "real machines"),
    ("restore", "A backup of millions of accounted jobs is made and restored.", "a site of that size"),
    ("health", "The checks find real faults of GPUs, and the diagnosis resets a real one.", "real GPUs"),
    ("gpu", "GPUs compute correctly.", "real GPUs"),
    ("gpu", "Real GPUs accept the settings, and MIG layouts take effect.", "real GPUs"),
    ("gpu", "NVLink and InfiniBand carry traffic.", "real GPUs and networks"),
    ("driver", "The kernel modules load, and an upgrade exchanges them.", "real machines"),
    ("driver", "NVIDIA's own packages install from NVIDIA's own source.", "access to NVIDIA's source"),
    ("containers", "Docker's own packages install from Docker's own source.", "access to Docker's source"),
    ("containers", "NVIDIA's enroot and pyxis start a container.", "both programs"),
    ("containers", "NVIDIA's `nvidia-container-cli` gives a container its GPUs.", "real GPUs"),
    ("containers", "Apptainer works on systems other than Debian 13.", "nodes with those systems"),
    ("containers", "Containers work under AppArmor or SELinux.", "a kernel with either"),
    ("containers", "containerd's CRI gives a container GPUs through CDI.", "a client of CRI"),
    ("containers", "A container engine works with systemd's cgroup driver.", "cgroups version 2"),
    ("kubernetes", "kubelet and containerd work with systemd's cgroup driver.", "cgroups version 2"),
    ("kubernetes", "The Kubernetes project's own packages install from its own source.", "access to that source"),
    ("kubernetes", "Images are pulled from registry.k8s.io and the other registries.", "access to these registries"),
    ("kubernetes", "Pods mount volumes of the CSI driver for NFS.", "the driver's images and an NFS server"),
    ("kubernetes", "`kubernetes_network_policies` enforces NetworkPolicies.", "the image of kube-network-policies"),
    ("kubernetes", "Pods compute on real GPUs.", "real GPUs"),
    ("kubernetes", "Pods share a real GPU by time slices, or get its MIG instances.", "real GPUs"),
    ("monitoring", "NVIDIA's DCGM exporter reports real GPUs.", "real GPUs"),
    ("monitoring", "NVIDIA's DCGM exporter gets the pods from the kubelet's API.", "real GPUs"),
    ("log_stack", "Elasticsearch 9 with its login, and Filebeat 9.", "Elastic's packages"),
    ("log_stack", "OpenSearch and Filebeat of their vendors' own packages.", "the vendors' packages"),
    ("log_stack", "Kibana and OpenSearch Dashboards start, and import the saved searches.", "the vendors' packages"),
    ("log_stack", "Logstash receives lines of devices, and keeps them while the engine is down.", "Elastic's packages"),
    ("systems", "A cluster of Ubuntu 22.04 or 24.04 works.", "nodes with Ubuntu"),
    ("systems", "A cluster of the RHEL family 9 or 10 works.", "nodes of that family"),
    ("lab", "The lab runs with crun.", "a host with cgroups version 2 alone"),
)
"""What no test here can prove: subject, promise, what it needs."""

HEAD = """\
# What is proven, and by which test

`python -m tests.proof` generates this page from the marker `proves` of each test. Change the marker, not this page.

| tier | meaning |
|---|---|
| `ci` | Each landing runs the test. |
| `rotation` | A landing runs the test when its layer changed or its turn comes; `scripts/test --all` runs it. |
| `ci, rotation` | The test has parameters; some are in `ci`, the others in `rotation`. |
| `hardware` | No test here can prove it. The column of tests says what it needs. |

*Last proven* is the date (UTC) of the last pass in tests/ledger.json. For a test with parameters it is the oldest of
their dates. *never*: no pass is recorded.
Measurements are in [benchmarks.md](benchmarks.md).
"""
MINUTES = """\
## Minutes by unit

What each unit last took of one test process, set-up included (tests/ledger.json). Two processes run at a time.

| unit | layer | minutes | last proven |
|---|---|---|---|
"""
COLUMNS = "| promise | test | tier | last proven |\n|---|---|---|---|\n"


class ProofError(Exception):
    """Markers from which no page can be made; one line for each problem."""


@dataclass(frozen=True)
class Row:
    """One promise of one test."""

    subject: str
    promise: str
    test: str
    tier: str
    last: str | None


class _Collector:
    """Keep each test that pytest collects, deselected ones included."""

    def __init__(self) -> None:
        self.items: list[pytest.Item] = []

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        self.items.append(item)


def collect() -> list[pytest.Item]:
    """Return all tests of the suite, in the order of their files."""
    collector, output = _Collector(), io.StringIO()
    argv = ["--collect-only", "-qq", "-p", "no:cacheprovider", "--rootdir", str(REPOSITORY), str(TESTS)]
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        code = pytest.main(argv, plugins=[collector])
    if code != pytest.ExitCode.OK:
        last = output.getvalue().splitlines()[-100:]
        raise ProofError("\n".join([*last, f"pytest could not collect {TESTS}"]))
    return collector.items


def tier_of(item: pytest.Item) -> str:
    """Return `ci` or `rotation`."""
    return layers.tier_of(item.nodeid.partition("::")[0], _is_long(item))


def last_proven() -> Callable[[pytest.Item], str | None]:
    """Return what finds the date of a test's last pass in the ledger."""
    entries = ledger.load()
    return lambda item: ledger.last_proven(item.nodeid, _is_long(item), entries)


def _is_long(item: pytest.Item) -> bool:
    return item.get_closest_marker("long") is not None


def problem(subject: object, promise: object, only: object = None) -> str:
    """Return what is wrong with the arguments of a marker, or nothing."""
    if subject not in SUBJECTS:
        near = difflib.get_close_matches(str(subject), SUBJECTS, 1)
        return f"unknown subject {subject!r}" + (f" (did you mean {near[0]}?)" if near else "")
    if not isinstance(promise, str) or not promise.endswith(".") or "|" in promise or "\n" in promise:
        return f"bad promise {promise!r}, expected one sentence that ends with a full stop, without |"
    if (words := len(promise.split())) > MOST_WORDS:
        return f"a promise has at most {MOST_WORDS} words, got {words}: {promise}"
    if only is not None and not (isinstance(only, list | tuple) and only and all(isinstance(one, str) for one in only)):
        return f"bad only={only!r}, expected the ids of parameters"
    return ""


def rows(
    items: Iterable[pytest.Item],
    tier: Callable[[pytest.Item], str],
    last: Callable[[pytest.Item], str | None],
) -> list[Row]:
    """Return the promises of these tests in the order of subjects and tests; parameters of one test are one row.

    `only=[ID, ...]` in a marker limits its promise to these parameters. Raises ProofError with all that is wrong.
    """
    proving: dict[tuple[str, str, str], list[pytest.Item]] = {}
    expected: dict[tuple[str, str], set[str]] = {}
    ids: dict[str, set[str]] = {}
    problems: dict[str, None] = {}
    for item in items:
        test, bracket, parameter = item.nodeid.partition("[")
        ids.setdefault(test, set()).add(parameter.removesuffix("]") if bracket else "")
        seen = set()
        for mark in reversed(list(item.iter_markers("proves"))):  # pytest begins with the decorator next to the test
            subject, promise = (*mark.args, "", "")[:2]
            only = mark.kwargs.get("only")
            if wrong := problem(subject, promise, only) or (
                "the same marker twice" if (subject, promise) in seen else ""
            ):
                problems[f"{test}: {wrong}"] = None
                continue
            seen.add((subject, promise))
            if only is not None:
                expected.setdefault((test, promise), set()).update(only)
                if parameter.removesuffix("]") not in only:
                    continue
            proving.setdefault((subject, promise, test), []).append(item)
    for (test, promise), names in expected.items():
        if missing := sorted(names - ids[test]):
            problems[f"{test}: has no parameter {', '.join(missing)}, which is to prove: {promise}"] = None
    if problems:
        raise ProofError("\n".join(problems))
    order = list(SUBJECTS)
    found = [_row(*key, parts, tier, last) for key, parts in proving.items()]
    return sorted(found, key=lambda row: order.index(row.subject))


def _row(
    subject: str,
    promise: str,
    test: str,
    items: list[pytest.Item],
    tier: Callable[[pytest.Item], str],
    last: Callable[[pytest.Item], str | None],
) -> Row:
    """Make a row of the parameters of one test: the tiers of all, the oldest date, none where one has none."""
    dates = [last(item) for item in items]
    known = [date for date in dates if date is not None]
    tiers = ", ".join(sorted({tier(item) for item in items}))
    return Row(subject, promise, test, tiers, min(known) if len(known) == len(dates) else None)


def page(found: list[Row], entries: Mapping[str, Entry] = MappingProxyType({})) -> str:
    """Return the page: the promises, then how long each unit of tests took when it last passed."""
    parts = [HEAD]
    for subject, heading in SUBJECTS.items():
        lines = [
            f"| {row.promise} | `{row.test}` | `{row.tier}` | {row.last or 'never'} |\n"
            for row in found
            if row.subject == subject
        ]
        lines += [
            f"| {promise} | needs {need} | `hardware` | never |\n" for at, promise, need in BEYOND if at == subject
        ]
        if lines:
            parts.append(f"## {heading}\n\n{COLUMNS}{''.join(lines)}")
    if entries:
        parts.append(MINUTES + "".join(_minutes(entries)))
    return "\n".join(parts)


def _minutes(entries: Mapping[str, Entry]) -> Iterator[str]:
    """Yield a line for each unit, the longest first."""
    for unit, entry in sorted(entries.items(), key=lambda item: (-item[1].minutes, item[0])):
        try:
            layer = layer_of(unit.partition("::")[0] if "::" in unit else unit if unit.endswith(".py") else f"{unit}/")
        except LookupError:  # its file was removed; the next run takes it out of the ledger
            continue
        yield f"| `{unit}` | {layer} | {entry.minutes} | {'skipped' if entry.skipped else entry.date} |\n"


def undated(text: str) -> str:
    """Return a page without its dates and minutes, which change with each run of the tests."""
    text = text.partition("\n" + MINUTES.partition("\n")[0])[0]
    return re.sub(r"\| (\d{4}-\d\d-\d\d|never) \|$", "| |", text, flags=re.MULTILINE)


def main() -> int:
    """Write the page, or compare it, or print its rows."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof", description=(__doc__ or "").partition("\n")[0])
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--check", action="store_true", help="exit 1 if docs/proof.md is not what would be written")
    choice.add_argument("--json", action="store_true", help="print the rows and write nothing")
    given = parser.parse_args()
    try:
        found = rows(collect(), tier_of, last_proven())
    except ProofError as error:
        print(f"proof: {error}", file=sys.stderr)
        return 1
    if given.json:
        print(json.dumps([asdict(row) for row in found]))
        return 0
    text = page(found, ledger.load())
    if not given.check:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    there = PAGE.read_text(encoding="utf-8")
    if there == text:
        return 0
    names = ("docs/proof.md", "as generated")
    difference = list(difflib.unified_diff(there.splitlines(), text.splitlines(), *names, lineterm="", n=0))
    print("\n".join(difference[:20]))
    print("proof: docs/proof.md is out of date: run python -m tests.proof", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
