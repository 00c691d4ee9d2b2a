"""No role reads a variable that run/role_variables.py does not find in its text."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleError

from clusterctl.inventory import bootstrap_plays, schema
from clusterctl.run import effects, inputs, role_variables
from tests.systems.rendering import (
    CONTENT,
    SCHEDULERS,
    SECRET,
    Cluster,
    Role,
    a_cluster,
    declared_secrets,
    record,
    roles_of,
    roles_with,
    tasks,
    trusted,
)

SYSTEM = "debian-13"
OTHER = "of-another-host"
_KNOWN: Any = schema.load()
SHARED = role_variables.shared_names(CONTENT) & {*_KNOWN.variables}
OWN = {*_KNOWN.variables} - SHARED


MODULES = {path.stem for path in CONTENT.glob("plugins/modules/*.py")} - {"node_state"}
SEEN = {"authority": "a", "missing": [], "registered": ["gpu01", "head1"], "version": "1.36.3"}
"""What module kubernetes_nodes has returned."""
WITHOUT = "without arguments: "
"""Of a task that needs what earlier ones have returned on the node."""


def outcome(cluster: Cluster, host: str, scheduler: str = "slurm") -> dict[str, str]:
    """Return by role what it gives clusterctl's modules on a host, with the content of its files; or why it cannot."""
    return {path.name: of_role(cluster, host, path.name) for path in roles_of(scheduler)}


def of_role(cluster: Cluster, host: str, name: str) -> str:
    role = cluster.role(name, host, __kubernetes_worker_cluster=SEEN)
    try:
        calls = [call for _, call in role.calls()]
        contents: list[Any] = [role.content(item) for call in calls for item in call.get("files", [])]
        contents += [given for file in sorted((role.path / "tasks").glob("*.yml")) for given in of_modules(role, file)]
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return f"{calls} {contents}"


def of_modules(role: Role, file: Path) -> Iterator[Any]:
    """Yield the arguments of clusterctl's other modules in a file of tasks, and Kubernetes' objects; or WITHOUT."""
    for task in tasks(file):
        for module in MODULES & task.keys():
            role.variables.update(trusted(task.get("vars", {})))
            try:
                given = role.arguments(task[module] or {})
            except AnsibleError:
                yield WITHOUT + task["name"]
                continue
            yield given
            if module == "kubernetes_objects":
                yield from (role.render(role.path / "templates" / name) for name in given.get("templates", []))


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By scheduler, of one cluster for all tests, as its path is in what a role writes."""
    return {scheduler: tmp_path_factory.mktemp(scheduler) for scheduler in SCHEDULERS}


@pytest.fixture(scope="module")
def before(directories: dict[str, Path]) -> dict[str, dict[str, dict[str, str]]]:
    found = {}
    for scheduler, directory in directories.items():
        cluster = a_cluster(directory, SYSTEM, scheduler)
        found[scheduler] = {host: outcome(cluster, host, scheduler) for host in cluster.hosts}
    return found


@pytest.mark.proves("bootstrap", "No role reads a variable of another host that would not play its own.")
@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize(("host", "reader"), [("gpu01", "head1"), ("head1", "gpu01")])
def test_own_variables__of_another_host__are_not_read(
    directories: dict[str, Path],
    before: dict[str, dict[str, dict[str, str]]],
    host: str,
    reader: str,
    scheduler: str,
) -> None:
    assert len(OWN) > 200
    cluster = Cluster(directories[scheduler] / "inventory.yaml", SYSTEM)
    cluster.set(host, **dict.fromkeys(OWN, OTHER))
    assert outcome(cluster, reader, scheduler) == before[scheduler][reader]
    assert OTHER in str(outcome(cluster, host, scheduler)), "the values have reached their own host"


IN_PLAYS = {role for play in bootstrap_plays.load(CONTENT) for role in play.roles}
PLAYED = {scheduler: {path.name for path in roles_of(scheduler)} & IN_PLAYS for scheduler in SCHEDULERS}
OF_KUBERNETES = sorted({path.name for path in roles_with("kubernetes")} & IN_PLAYS)


@pytest.mark.proves("bootstrap", "No role reads a variable whose change would not play it.")
@pytest.mark.parametrize(
    ("system", "scheduler", "name"),
    [
        *((SYSTEM, "slurm", name) for name in sorted(PLAYED["slurm"])),
        *((SYSTEM, "kubernetes", name) for name in OF_KUBERNETES),
        *(("rocky-9", "slurm", name) for name in sorted(PLAYED["slurm"] & effects.SEPARATE.keys())),
        *(("rocky-9", "kubernetes", name) for name in sorted({*OF_KUBERNETES} & effects.SEPARATE.keys())),
    ],
)
def test_variables_that_a_role_does_not_read__of_all_hosts__change_nothing(
    tmp_path: Path, system: str, scheduler: str, name: str
) -> None:
    """Among the roles of a cluster that has them all, each alone: others fail with such values."""
    known = [one for one in _KNOWN.variables if not one.startswith("ansible_")]
    unread = [one for one in known if name not in role_variables.readers(CONTENT, [one], PLAYED[scheduler])]
    assert len(unread) > 50
    cluster = a_cluster(tmp_path, system, scheduler)
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
    ("scheduler", "host", "reader", "name", "value"),
    [
        ("slurm", "gpu01", "head1", "cluster_address", "10.9.9.9"),
        ("slurm", "head1", "gpu01", "slurm_head_health_port", 9999),
        ("kubernetes", "head1", "gpu01", "kubernetes_node_service_domain", "other.example"),
        ("kubernetes", "gpu01", "head1", "kubernetes_gpu_time_slices", 3),
    ],
)
def test_shared_variables__of_another_host__are_read(
    directories: dict[str, Path],
    before: dict[str, dict[str, dict[str, str]]],
    scheduler: str,
    host: str,
    reader: str,
    name: str,
    value: object,
) -> None:
    """So the comparison sees it."""
    cluster = Cluster(directories[scheduler] / "inventory.yaml", SYSTEM)
    cluster.set(host, **{name: value})
    assert outcome(cluster, reader, scheduler) != before[scheduler][reader]


RUNTIMES = ("docker", "nvidia_container_toolkit", "podman")
WORKERS = {
    "slurm": ("apptainer", "containerd", "enroot", "gpu_config", "gpu_metrics", "mpi", "slurm_workers", *RUNTIMES),
    "kubernetes": ("gpu_config", "gpu_metrics", "kubernetes_workers", *RUNTIMES),
}
"""Groups of the workers."""
FOR_OTHERS = {"kubernetes_worker": "labels the nodes that are played, on a head", "verify": "tests them, on a head"}
"""Roles of workers that read other workers, and why that is nothing that they change on the worker itself."""


def with_workers(directory: Path, system: str, scheduler: str, *names: str) -> Cluster:
    """Return the cluster of a directory with these workers, gpu01 in another group below them than the others."""
    tree = yaml.safe_load((directory / "inventory.yaml").read_text())
    children, workers = tree["all"]["children"], f"{scheduler}_workers"
    children |= {group: {"hosts": {"head1": {}}} for group in ("grafana", "logging", "package_cache")}
    for group in WORKERS[scheduler]:
        hosts = children.get(group, {}).get("hosts", {})
        children[group] = {"hosts": {name: hosts.get(name) or {} for name in names}}
    below = {"a100": ["gpu01"], "rack1": [name for name in names if name != "gpu01"]}
    children[workers]["children"] = {group: {"hosts": dict.fromkeys(hosts)} for group, hosts in below.items()}
    (directory / "inventory.yaml").write_text(yaml.safe_dump(tree, sort_keys=False))
    for number, name in enumerate(names):
        found = record(name, 2 if number else 1, system)
        if name != "gpu01":  # nothing of it is as on the others
            found |= {"machine_id": "2" * 32, "memory_mb": 999, "cgroup": {"version": 1, "controllers": []}}
            found["nics"][0]["addresses"] = ["192.168.77.7/24"]
        else:
            found |= {"gpus": record(name, 1, system)["gpus"], "machine_id": "1" * 32}
            found["nics"][0]["addresses"] = ["10.0.0.11/24"]
        (directory / f"hardware/{name}.json").write_text(json.dumps(found))
    return Cluster(directory / "inventory.yaml", system)


@pytest.mark.proves("bootstrap", "A worker's roles read nothing of other workers.")
@pytest.mark.parametrize(
    ("system", "scheduler"), [(SYSTEM, "slurm"), ("almalinux-10", "slurm"), (SYSTEM, "kubernetes")]
)
def test_roles_of_a_worker__with_another_worker__are_the_same(tmp_path: Path, system: str, scheduler: str) -> None:
    """With `cluster_networks`, so that no firewall lists the nodes, and the new worker first in each group."""
    a_cluster(tmp_path, system, scheduler)
    cluster = with_workers(tmp_path, system, scheduler, "gpu01")
    groups = {"all", *(group.name for group in cluster.manager.hosts["gpu01"].get_groups())}
    roles = {*bootstrap_plays.roles_of_host(bootstrap_plays.load(CONTENT), groups)}
    before = {name: of_role(cluster, "gpu01", name) for name in roles}
    base = of_role(cluster, "head1", "base")
    with_another = with_workers(tmp_path, system, scheduler, "gpu00", "gpu01")
    with_another.set("gpu00", **dict.fromkeys(SHARED - {"cluster_networks"}, OTHER))
    after = {name: of_role(with_another, "gpu01", name) for name in roles}
    assert not [text for text in before.values() if not text.startswith("[")]
    assert {name for name in roles if after[name] != before[name]} <= FOR_OTHERS.keys()
    assert of_role(with_another, "head1", "base") != base, "the head's list of names has the other worker"


class Noted(dict[str, str]):
    """Secrets, of which the names that are read are noted."""

    def __init__(self, known: Mapping[str, str]) -> None:
        super().__init__(known)
        self.names = set[str]()

    def __getitem__(self, name: str) -> str:
        self.names.add(name)
        return super().__getitem__(name)


@pytest.mark.proves("bootstrap", "No role reads a secret that it does not name.")
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_secrets__that_a_role_reads__are_found_in_its_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheduler: str
) -> None:
    cluster = a_cluster(tmp_path, SYSTEM, scheduler)
    known = declared_secrets() & role_variables.words_of_single_roles(CONTENT)
    load, read = cluster.loader.load_from_file, set[str]()
    secrets = Noted(dict.fromkeys(declared_secrets(), SECRET))
    monkeypatch.setattr(
        cluster.loader,
        "load_from_file",
        lambda path, **options: secrets if path.endswith("secrets.yml") else load(path, **options),
    )
    for role in sorted(PLAYED[scheduler]):
        secrets.names.clear()
        for host in cluster.hosts:
            of_role(cluster, host, role)
        found = {name for name in known if role in role_variables.readers(CONTENT, [name], PLAYED[scheduler])}
        assert secrets.names <= found, role
        read |= secrets.names
    assert len(read) > 10


def test_groups__that_roles_name__are_of_workers_or_of_servers() -> None:
    """A worker's inputs have the hosts of the others alone."""
    files = [path for name in ("roles", "playbooks", "plugins") for path in CONTENT.glob(f"{name}/**/*")]
    texts = [path.read_text() for path in files if path.suffix in (".j2", ".py", ".yml")]
    named = {name for text in texts for name in re.findall(r"groups\['(\w+)'\]", text)}
    workers = {"all", "gpu_metrics", "kubernetes_workers", "mpi", "slurm_workers", "ungrouped"}
    assert named == {*inputs.SERVERS} | workers


def test_outcomes__of_a_cluster__are_those_of_whole_roles(before: dict[str, dict[str, dict[str, str]]]) -> None:
    found = [text for hosts in before.values() for roles in hosts.values() for text in roles.values()]
    assert not [text for text in found if not text.startswith("[")]
    # Of the verb that exchanges the key, and the proof of the scheduler that the cluster does not have.
    others = {"Schedule the exchange on", "Stage the new key", "Verify that a pod", "Verify that a user"}
    assert {name for text in found for name in re.findall(f"{WITHOUT}(\\w+ \\w+ \\w+ \\w+)", text)} == others
