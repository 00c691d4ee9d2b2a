"""No role reads a variable that run/role_variables.py does not find in its text."""

from pathlib import Path
from typing import Any

import pytest

from clusterctl.inventory import bootstrap_plays, schema
from clusterctl.run import inputs, role_variables, unchanged
from tests.systems.rendering import CONTENT, Cluster, a_cluster, roles_of

SYSTEM = "debian-13"
OTHER = "of-another-host"
_KNOWN: Any = schema.load()
OWN = {*_KNOWN.variables} - role_variables.shared_names(CONTENT)


def outcome(cluster: Cluster, host: str) -> dict[str, str]:
    """Return by role what it gives node_state on a host, with the content of its files; or why it cannot."""
    return {path.name: of_role(cluster, host, path.name) for path in roles_of("slurm")}


def of_role(cluster: Cluster, host: str, name: str) -> str:
    role = cluster.role(name, host)
    try:
        calls = [call for _, call in role.calls()]
        contents = [role.content(item) for call in calls for item in call.get("files", [])]
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return f"{calls} {contents}"


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


IN_PLAYS = {role for play in bootstrap_plays.load(CONTENT) for role in play.roles}
PLAYED = [path.name for path in roles_of("slurm") if path.name in IN_PLAYS]


@pytest.mark.proves("bootstrap", "No role reads a variable whose change would not play it.")
@pytest.mark.parametrize(
    ("system", "name"),
    [*((SYSTEM, name) for name in PLAYED), *(("rocky-9", name) for name in sorted(unchanged.SEPARATE))],
)
def test_variables_that_a_role_does_not_read__of_all_hosts__change_nothing(
    tmp_path: Path, system: str, name: str
) -> None:
    """Among the roles of a cluster that has them all, each alone: others fail with such values."""
    known = [one for one in _KNOWN.variables if not one.startswith("ansible_")]
    unread = [one for one in known if name not in role_variables.readers(CONTENT, [one], {*PLAYED})]
    assert len(unread) > 50
    cluster = a_cluster(tmp_path, system)
    before = {host: of_role(cluster, host, name) for host in cluster.hosts}
    for host in cluster.hosts:
        cluster.set(host, **dict.fromkeys(unread, OTHER))
    assert {host: of_role(cluster, host, name) for host in cluster.hosts} == before


ACCOUNTS = [
    [],
    [1000],
    [1000, 59999, 65536],
    [999],
    [500, 999],
    [999, 500],
    [60000],
    [65535, 1001],
    [1001, 65535],
]


def test_part__of_the_accounts__differs_if_what_base_makes_of_them_does(tmp_path: Path) -> None:
    """The UIDs for the firewall; their order counts, although the value is sorted."""
    (name, (variable, part)), *others = role_variables.PARTS.items()
    assert not others
    cluster, values = a_cluster(tmp_path, SYSTEM), {}
    for uids in ACCOUNTS:
        accounts = [{"name": f"user{uid}", "uid": uid} for uid in uids]
        cluster.set("gpu01", **{variable: accounts})
        values[str(inputs._parts({variable: accounts})[part])] = value = cluster.role("base", "gpu01").value(name)
        assert (inputs._parts({variable: accounts})[part] == []) == (value == ["1000-59999", "65536-4294967293"])
    assert len(values) == 6, "each other part has another value, or another order"
    assert len({str(value) for value in values.values()}) == 5


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
