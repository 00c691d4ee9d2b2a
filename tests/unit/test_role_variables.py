"""Which variables roles read, by their text: run/role_variables.py."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from clusterctl.inventory import bootstrap_plays, schema
from clusterctl.run import effects, role_variables
from clusterctl.util import paths
from tests.unit.test_role_plugins import plugin

ROLE = {
    "roles/web/defaults/main.yml": "web_port: 80\nweb_title: x\nweb_name: \"{{ web_title }}\"\nweb_own: 1\n",
    "roles/web/vars/main.yml": "__web_seen: \"{{ groups['web'] | map('extract', hostvars, 'web_port') }}\"\n",
    "roles/web/tasks/main.yml": "- name: a\n  debug: {msg: \"{{ web_own }}\"}\n",
    "playbooks/bootstrap.yml": "- hosts: all\n",
    "playbooks/group_vars/all.yml": "",
}  # fmt: skip
CASES: Mapping[str, tuple[dict[str, str], set[str]]] = {
    "hostvars of a variable": ({}, {"web_port"}),
    "hostvars in a template": (
        {"roles/web/templates/x.j2": "{{ hostvars['a'].web_name }}"},
        {"web_port", "web_name", "web_title"},
    ),
    "a task that runs once": (
        {"roles/web/tasks/main.yml": "- {name: a, set_fact: {x: '{{ web_own }}'}, run_once: true}\n"},
        {"web_port", "web_own"},
    ),
    "a block that runs once": (
        {"roles/web/tasks/main.yml": "- {run_once: true, block: [{name: a, debug: {msg: '{{ web_own }}'}}]}\n"},
        {"web_port", "web_own"},
    ),
    "a task of a block": (
        {"roles/web/tasks/main.yml": "- block: [{name: a, set_fact: {x: '{{ web_own }}'}, delegate_to: b}]\n"},
        {"web_port", "web_own"},
    ),
    "a plugin": ({"plugins/lookup/x.py": "variables['hostvars'][0]['web_own']"}, {"web_port", "web_own"}),
    "a playbook": ({"playbooks/bootstrap.yml": "- hosts: all\n  when: web_own\n"}, {"web_port", "web_own"}),
}


@pytest.mark.parametrize(("files", "names"), CASES.values(), ids=CASES)
def test_shared_names__of_a_role__are_those_that_other_hosts_may_read(
    tmp_path: Path, files: dict[str, str], names: set[str]
) -> None:
    for name, text in {**ROLE, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert {name for name in role_variables.shared_names.__wrapped__(tmp_path) if name.startswith("web_")} == names


def test_shared_names__of_all_roles__are_a_part_of_their_variables() -> None:
    """If most were shared, a variable of one node would play all."""
    known: Any = schema.load()
    shared = role_variables.shared_names(paths.content())
    of_roles = {*known.variables}
    assert {"cluster_address", "slurm_head_partitions", "node_exporter_port"} <= shared
    assert not {"cluster_timezone", "base_packages", "users_accounts", "gpu_config_mig"} & shared
    assert 20 < len(of_roles & shared) < len(of_roles) / 3


PLAYS = "- hosts: all\n  roles: [{role: first}, {role: second}, {role: third}]\n"
READING: Mapping[str, tuple[dict[str, str], set[str]]] = {
    "its own text": ({"second/templates/x.j2": "{{ x }}"}, {"second"}),
    "what it only describes": ({"second/meta/argument_specs.yml": "x"}, set()),
    "how it is undone": ({"second/tasks/remove.yml": "- debug: {msg: '{{ x }}'}\n"}, set()),
    "a variable of another role": (
        {"first/vars/main.yml": "__first: '{{ x }}'\n", "third/tasks/main.yml": "- debug: {msg: '{{ __first }}'}\n"},
        {"first", "third"},
    ),
    "a role that it includes": (
        {
            "third/tasks/x.yml": "- debug: {msg: '{{ x }}'}\n",
            "first/tasks/main.yml": "- block: [{ansible.builtin.include_role: {name: third, tasks_from: x}}]\n",
        },
        {"first", "third"},
    ),
    "a lookup": ({"second/defaults/main.yml": "a: \"{{ query('seen') }}\"\n"}, {"second"}),
    "the ports of all roles": (
        {"second/defaults/main.yml": "a: \"{{ query('role_ports') }}\"\n", "third/meta/ports.yml": "- {port: x}\n"},
        {"second", "third"},
    ),
    "the packages of all roles": (
        {
            "second/tasks/main.yml": "- debug: {msg: \"{{ query('role_packages') }}\"}\n",
            "third/vars/main.yml": "__third_packages: ['{{ x }}']\n",
        },
        {"second", "third"},
    ),
    "a result of an earlier role": (
        {
            "first/tasks/main.yml": "- {debug: {}, register: __seen}\n",
            "second/tasks/main.yml": "- {debug: {msg: '{{ x }} {{ __seen }}'}}\n",
        },
        {"first", "second"},
    ),
    "a fact of an earlier role": (
        {
            "first/tasks/main.yml": "- ansible.builtin.set_fact: {__seen: 1}\n",
            "second/tasks/main.yml": "- {debug: {msg: '{{ x }} {{ __seen }}'}}\n",
        },
        {"first", "second"},
    ),
    "a result of a later role": (
        {
            "third/tasks/main.yml": "- {debug: {}, register: __seen}\n",
            "second/tasks/main.yml": "- {debug: {msg: '{{ x }} {{ __seen | default(1) }}'}}\n",
        },
        {"second"},
    ),
}


@pytest.mark.parametrize(("files", "roles"), READING.values(), ids=READING)
def test_readers__of_a_variable__are_the_roles_that_may_read_it(
    tmp_path: Path, files: dict[str, str], roles: set[str]
) -> None:
    files = {f"roles/{name}": text for name, text in files.items()} | {
        "playbooks/bootstrap.yml": PLAYS,
        "playbooks/group_vars/all.yml": "",
        "plugins/lookup/seen.py": "variables['x']",
        "plugins/lookup/role_ports.py": "",
        "plugins/lookup/role_packages.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert role_variables.readers(tmp_path, ["x", "y"], {"first", "second", "third"}) == roles
    assert role_variables.readers(tmp_path, ["z"], {"first", "second", "third"}) == set()


WORKER = {"all", "gpu01", "slurm_workers"}
HEAD = {"all", "head1", "slurm_head", "monitoring"}
PRECISE: Mapping[str, tuple[set[str], set[str]]] = {
    "users_accounts": ({"slurm_logins", "users"}, {"slurm_logins", "users"}),
    "users_accounts:uids": ({"base", "packages"}, {"base", "packages"}),
    "cluster_timezone": ({"base", "filebeat", "packages"}, {"base", "filebeat", "packages"}),
    "prometheus_retention_time": (set(), {"prometheus"}),
    "node_exporter_port": ({"base", "node_exporter", "packages"}, {"base", "node_exporter", "packages", "prometheus"}),
    "docker_data_directory": (set(), set()),
}
"""By variable: the roles of a worker and of a head that are played if it changes."""


OF_KUBERNETES: Mapping[str, tuple[set[str], set[str]]] = {
    "users_accounts": ({"users"}, {"users"}),
    "kubernetes_quota_teams": (set(), {"kubernetes_quota"}),
    "kubernetes_gpu_mig_strategy": (
        {"base", "containerd", "kubernetes_node", "kubernetes_worker", "nvidia_driver"},
        {"kubernetes_gpu"},
    ),
    "gpu_config_power_limit": ({"gpu_config"}, set()),
    "elasticsearch_heap_mb": (set(), {"elasticsearch"}),
    "logging_retention_days": ({"filebeat"}, {"filebeat", "logging"}),
}
"""The same for a cluster of Kubernetes, with logs and configured GPUs."""
KUBERNETES_WORKER = {"all", "gpu01", "kubernetes_workers", "gpu_config"}
KUBERNETES_HEAD = {"all", "head1", "kubernetes_head", "monitoring", "logging"}


@pytest.mark.proves("bootstrap", "A variable that changes plays only roles that may read it.")
@pytest.mark.parametrize(("name", "worker", "head"), [(name, *roles) for name, roles in PRECISE.items()], ids=PRECISE)
def test_readers__of_a_variable_of_the_roles__are_few(name: str, worker: set[str], head: set[str]) -> None:
    are_readers(name, {"worker": (WORKER, worker), "head": (HEAD, head)})


@pytest.mark.parametrize("name", OF_KUBERNETES)
def test_readers__of_a_variable_of_kubernetes__are_few(name: str) -> None:
    worker, head = OF_KUBERNETES[name]
    are_readers(name, {"worker": (KUBERNETES_WORKER, worker), "head": (KUBERNETES_HEAD, head)})


def are_readers(name: str, hosts: Mapping[str, tuple[set[str], set[str]]]) -> None:
    """See that on a host of these groups these roles read a variable."""
    assert name.partition(":")[0] in schema.load().variables
    content = paths.content()
    for groups, expected in hosts.values():
        own = {*bootstrap_plays.roles_of_host(bootstrap_plays.load(content), groups)} - {"verify"}
        assert role_variables.readers(content, [name], own) == expected


def test_filters__of_all_plugins__have_their_names() -> None:
    found = {path.stem: plugin(f"filter/{path.stem}") for path in (paths.content() / "plugins/filter").glob("*.py")}
    names = {name for one in found.values() for name in one.FilterModule().filters()}
    assert len(names) > 30
    assert role_variables._filters(paths.content()).keys() == names


def test_readers__of_most_variables__can_be_played_alone() -> None:
    """Of roles that are SEPARATE, all but a few variables need no other role."""
    content, known = paths.content(), schema.load()
    own = {*bootstrap_plays.roles_of_host(bootstrap_plays.load(content), WORKER | HEAD)} - {"verify"}
    needs = {name: role_variables.readers(content, [name], own) for name in known.variables}
    of_separate = {name: roles for name, roles in needs.items() if name.startswith(tuple(effects.SEPARATE))}
    alone = [name for name, roles in of_separate.items() if roles <= effects.SEPARATE.keys()]
    assert len(alone) > 0.6 * len(of_separate) > 50, sorted(of_separate.keys() - {*alone})


def test_playbook__reads_no_variable_of_the_inventory() -> None:
    """`readers` does not know which roles a play's own expressions concern."""
    words = {*re.findall(r"\w+", (paths.content() / "playbooks/bootstrap.yml").read_text())}
    assert words & {*schema.load().variables} == {"verify_drain"}
