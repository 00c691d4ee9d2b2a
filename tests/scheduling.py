"""Which process of xdist runs which tests, and in which order."""

import re
from collections.abc import Mapping

from xdist.scheduler import LoadFileScheduling

from tests.ledger import Entry
from tests.selection import Test, minutes_of

# Files that share a lab, by its name, in the order in which they come.
LABS = {
    "alerts": ("test_alerts.py", "test_dashboards.py", "test_log_search.py", "test_open.py"),
    "members": ("test_membership.py", "test_upgrade.py"),
    # The last one takes the lab apart.
    "whole": ("test_backup.py", "test_drift.py", "test_logins.py", "test_tenancy.py", "test_secret.py", "test_plan.py"),
    # The last one changes what the cluster has.
    "slurm": ("test_slurm_policy.py", "test_placement.py", "test_between_jobs.py", "test_slurm_changes.py"),
    "gpus": (
        "test_gpu_metrics.py",
        "test_usage.py",
        "test_health.py",
        "test_containers.py",
        "test_runtimes.py",
    ),
}
# Files whose labs do not fit beside each other on a small machine, by their inotify instances and their memory: one
# process runs them, one after another.
ALONE = {
    "kubernetes": (
        "test_kubernetes.py",
        "test_kubernetes_api.py",
        "test_kubernetes_restore.py",
        "test_kubernetes_upgrade.py",
        "test_kubernetes_heads.py",
        "test_kubernetes_choices.py",
        "test_kubernetes_killed.py",
        "test_kubernetes_monitoring.py",
        "test_kubernetes_demo.py",
        "test_kubernetes_beside_slurm.py",
        "test_kubernetes_e2e.py",
        "test_unchanged_kubernetes.py",
    ),
}
LAB_OF = {f"tests/cluster/{file}": lab for lab, files in LABS.items() for file in files}
_PROCESS_OF = {f"tests/cluster/{file}": name for name, files in ALONE.items() for file in files}
_NAMED = re.compile(r"tests/(bench|molecule)/.*\[(kubernetes)\w*\]$")  # a part of the benches, a scenario
_PLACES = {file: place for place, file in enumerate(LAB_OF)}


def process_of(nodeid: str) -> str:
    """Return what one process runs: a scope, or several whose labs do not fit beside each other."""
    named = _NAMED.match(nodeid)
    return (named[2] if named else _PROCESS_OF.get(nodeid.partition("::")[0])) or scope_of(nodeid)


def scope_of(nodeid: str) -> str:
    """Return what is run in order: the files that share a lab, a file, or one molecule scenario."""
    if nodeid.startswith("tests/molecule/"):
        return nodeid
    file = nodeid.partition("::")[0]
    return LAB_OF.get(file, file)


def order(tests: list[Test], ledger: Mapping[str, Entry]) -> dict[str, tuple[float, str, int]]:
    """Return a sort key for each node id: the longest scopes first, each whole; the files of one lab in their order."""
    units: dict[str, set[str]] = {}
    for test in tests:
        units.setdefault(test.scope, set()).add(test.unit)
    weights = {scope: -sum(minutes_of(unit, ledger) for unit in found) for scope, found in units.items()}
    for scope in weights:
        if scope.startswith("tests/unit/"):  # small ones fill the gaps at the end
            weights[scope] = 0.0
    return {test.nodeid: (weights[test.scope], test.scope, _place(test.nodeid)) for test in tests}


def _place(nodeid: str) -> int:
    return _PLACES.get(nodeid.partition("::")[0], 0)


class ByLab(LoadFileScheduling):  # type: ignore[misc] # xdist has no types
    """Gives one process all of a scope, and scopes that have to be run one after another."""

    def _split_scope(self, nodeid: str) -> str:
        return process_of(nodeid)
