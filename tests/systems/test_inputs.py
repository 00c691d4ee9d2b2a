"""No role reads another host's variable that run/inputs.py has for that host's own."""

from pathlib import Path
from typing import Any

import pytest

from clusterctl.inventory import schema
from clusterctl.run import inputs
from tests.systems.rendering import CONTENT, Cluster, a_cluster, roles_of

SYSTEM = "debian-13"
OTHER = "of-another-host"
_KNOWN: Any = schema.load()
OWN = {*_KNOWN.variables} - inputs.shared_names(CONTENT)


def outcome(cluster: Cluster, host: str) -> dict[str, str]:
    """Return by role what it gives node_state on a host, with the content of its files; or why it cannot."""
    found = {}
    for path in roles_of("slurm"):
        role = cluster.role(path.name, host)
        try:
            calls = [call for _, call in role.calls()]
            contents = [role.content(item) for call in calls for item in call.get("files", [])]
            found[path.name] = f"{calls} {contents}"
        except Exception as error:
            found[path.name] = f"{type(error).__name__}: {error}"
    return found


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of one cluster for all tests, as its path is in what a role writes."""
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def before(directory: Path) -> dict[str, dict[str, str]]:
    cluster = a_cluster(directory, SYSTEM)
    return {host: outcome(cluster, host) for host in cluster.hosts}


@pytest.mark.proves("bootstrap", "No role reads a variable of another host that would not play its own.")
@pytest.mark.parametrize(("host", "reader"), [("gpu01", "head1"), ("head1", "gpu01")])
def test_own_variables__of_another_host__are_not_read(
    directory: Path, before: dict[str, dict[str, str]], host: str, reader: str
) -> None:
    assert len(OWN) > 200
    cluster = Cluster(directory / "inventory.yaml", SYSTEM)
    cluster.set(host, **dict.fromkeys(OWN, OTHER))
    assert outcome(cluster, reader) == before[reader]
    assert OTHER in str(outcome(cluster, host)), "the values have reached their own host"


@pytest.mark.parametrize(
    ("host", "reader", "name", "value"),
    [("gpu01", "head1", "cluster_address", "10.9.9.9"), ("head1", "gpu01", "slurm_head_health_port", 9999)],
)
def test_shared_variables__of_another_host__are_read(
    directory: Path, before: dict[str, dict[str, str]], host: str, reader: str, name: str, value: object
) -> None:
    """So the comparison sees it."""
    cluster = Cluster(directory / "inventory.yaml", SYSTEM)
    cluster.set(host, **{name: value})
    assert outcome(cluster, reader) != before[reader]


def test_outcomes__of_a_cluster__are_those_of_whole_roles(before: dict[str, dict[str, str]]) -> None:
    failed = {name: text for roles in before.values() for name, text in roles.items() if not text.startswith("[")}
    assert not failed
