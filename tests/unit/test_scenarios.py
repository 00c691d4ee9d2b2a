"""The scenarios of tests/molecule: what each role gets in the ordinary ones, and what tests a role that has none."""

import ast
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from clusterctl.inventory import host_pattern
from tests.labs import REPOSITORY
from tests.molecule.test_molecule import HERE, ORDINARY, SCENARIOS

ROLES = sorted(path.name for path in (REPOSITORY / "roles").iterdir())
GROUPS = {"all", "slurm_head", "slurm_workers", "monitoring"}  # of a scenario's lab
WHOLE = "check converge idempotence verify"
ROLES_OF_ORDINARY = {
    "alert_drain": "check converge idempotence",
    "alertmanager": "check converge idempotence",
    "backup": "converge verify",
    "apply": "check converge idempotence",
    "base": WHOLE,
    "blackbox_exporter": "check converge idempotence",
    "filebeat": "check converge idempotence",
    "gpu_health": "check converge idempotence",
    "landing_page": "check converge idempotence",
    "munge": WHOLE,
    "mysqld_exporter": "check converge idempotence",
    "nfs_client": "check converge idempotence",
    "node_exporter": WHOLE,
    "nvidia_cuda": "check converge idempotence",
    "nvidia_driver": "check converge idempotence",
    "packages": WHOLE,
    "prometheus": "check converge idempotence",
    "removal": "converge verify",
    "restore": "converge",
    "slurm_exporter": WHOLE,
    "slurm_head": WHOLE,
    "slurm_logins": "check converge idempotence",
    "slurm_worker": WHOLE,
    "users": WHOLE,
    "verify": "converge idempotence verify",
}


class Elsewhere(NamedTuple):
    """A test of a whole cluster or a node that plays a role, for want of a scenario."""

    kind: str  # ordinary, long
    test: str  # file in tests/cluster, function
    word: str  # in that function: what of the role it plays or uses


ELSEWHERE = {
    "apply": Elsewhere(
        "ordinary",
        "test_costs.py::test_bootstrap__from_nothing__keeps_a_workers_path_short",
        "bootstrap_tasks_worker",  # without the role, more tasks run
    ),
    "elasticsearch": Elsewhere(
        "ordinary", "test_log_search.py::test_engine__without_its_login__shows_nothing", "configuration"
    ),
    "enroot": Elsewhere("ordinary", "test_runtimes.py::test_enroots_directories_are_each_users_own", "/var/lib/enroot"),
    "filebeat": Elsewhere(
        "long", "test_logs.py::test_lines__engine_stopped_and_shippers_killed__are_stored_once", "filebeat"
    ),
    "grafana": Elsewhere(
        "ordinary", "test_log_search.py::test_plan__with_pages_and_receiver__lists_what_they_install", "grafana.ini"
    ),
    "kibana": Elsewhere(
        "ordinary",
        "test_log_search.py::test_plan__with_pages_and_receiver__lists_what_they_install",
        "opensearch_dashboards.yml",
    ),
    "kubernetes_exporter": Elsewhere(
        "ordinary", "test_kubernetes.py::test_metrics__in_prometheus__are_those_of_the_cluster", "kubernetes_node_state"
    ),
    "kubernetes_gpu": Elsewhere("ordinary", "test_kubernetes.py::test_pod__with_two_gpus__has_these_alone", "gpus=2"),
    "kubernetes_head": Elsewhere("ordinary", "test_kubernetes.py::test_tokens__after_a_bootstrap__are_none", "tokens"),
    "kubernetes_network": Elsewhere(
        "ordinary", "test_kubernetes.py::test_service__from_another_node__is_reached_by_name", "website"
    ),
    "kubernetes_quota": Elsewhere(
        "ordinary", "test_kubernetes_api.py::test_teams__in_the_inventory__share_by_quotas", "kubernetes_quota"
    ),
    "kubernetes_storage": Elsewhere(
        "ordinary", "test_kubernetes.py::test_volume__of_the_default_class__outlives_its_pod", "PersistentVolumeClaim"
    ),
    "kubernetes_worker": Elsewhere(
        "ordinary", "test_kubernetes.py::test_labels__of_workers__are_those_of_the_hardware_record", "labels"
    ),
    "logging": Elsewhere("long", "test_logs.py::test_retention__above_the_limit__deletes_indices", "log-store"),
    "logstash": Elsewhere(
        "ordinary",
        "test_log_search.py::test_plan__with_pages_and_receiver__lists_what_they_install",
        "logstash_senders",
    ),
    "sssd": Elsewhere("long", "test_identity.py::test_person__of_the_directory__logs_in_and_runs_a_job", "srun"),
    "login": Elsewhere("long", "test_login_nodes.py::test_login__job_of_a_user__runs_on_a_worker", "sbatch"),
    "nfs_client": Elsewhere("long", "test_storage.py::test_server__that_does_not_respond__blocks_no_verb", "status"),
    "nfs_server": Elsewhere(
        "ordinary", "test_storage.py::test_homes__of_the_server__are_the_same_on_all_nodes", "written"
    ),
    "mpi": Elsewhere("long", "test_first_hour.py::test_mpi__program_of_a_user__runs_on_two_nodes", "mpicc"),
    "nvidia_cuda": Elsewhere(
        "ordinary", "test_driver.py::test_users_choose_among_toolkits_side_by_side", '"nvidia_cuda"'
    ),
    "os_upgrade": Elsewhere(
        "long",
        "test_upgrade.py::test_the_rest_of_the_system_is_upgraded_and_rebooted_where_it_asks_for_it",
        '"upgrade", "--os"',
    ),
    "pyxis": Elsewhere("ordinary", "test_runtimes.py::test_srun_knows_the_plugin_on_every_node", "--container-image"),
    "reboot": Elsewhere("long", "test_upgrade.py::test_nodes_are_rebooted_around_their_jobs", '"reboot"'),
    "restore": Elsewhere("ordinary", "test_backup.py::test_restore_onto_the_same_head", '"restore"'),
    "slurm_logins": Elsewhere(
        "ordinary", "test_logins.py::test_ssh__user_without_a_job__is_refused", "pam_slurm_adopt"
    ),
    "slurmrestd": Elsewhere(
        "long",
        "test_slurmrestd.py::test_rest__with_a_users_token__submits_and_lists_her_job",
        "/slurm/v0.0.42/job/submit",
    ),
}


def plays(playbook: Path) -> Iterator[dict[str, Any]]:
    """Yield the plays of a playbook and of those that it imports."""
    for play in yaml.safe_load(playbook.read_text()):
        imported = play.get("ansible.builtin.import_playbook")
        if imported:
            yield from plays(playbook.parent / imported)
        else:
            yield play


def roles(playbook: Path, groups: Collection[str] = ()) -> dict[str, bool]:
    """Return the roles whose tasks a playbook runs, on these groups or on all; and whether it does so in check mode."""
    found = {}
    for play in plays(playbook):
        if groups and not any(name in groups for operator, name in host_pattern.parse(play["hosts"]) if not operator):
            continue
        for role in play.get("roles", []):
            entry = role if isinstance(role, dict) else {"role": role}
            found[entry["role"]] = "ansible_check_mode" not in str(entry.get("when", ""))
        for task in tasks(play.get("tasks", [])):
            included = task.get("ansible.builtin.include_role", {})
            if included and "tasks_from" not in included:
                names = task["loop"] if included["name"].startswith("{{") else [included["name"]]
                found |= dict.fromkeys(names, True)
    return found


def tasks(block: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for task in block:
        yield task
        for part in ("block", "rescue", "always"):
            yield from tasks(task.get(part, []))


def sequence(scenario: str) -> list[str]:
    """Return the steps of a scenario's test."""
    for path in (HERE / scenario / "molecule.yml", HERE / "config.yml"):
        steps: list[str] = yaml.safe_load(path.read_text())["scenario"].get("test_sequence", [])
        if steps:
            return steps
    raise AssertionError(f"{scenario} has no steps")


def imported(scenario: str, file: str) -> set[str]:
    """Return the scenarios whose playbook of this name a scenario imports."""
    playbooks = [path for path in (HERE / scenario).glob("*.yml") if path.stem in ("prepare", "verify")]
    named = [
        Path(play.get("ansible.builtin.import_playbook", ""))
        for path in playbooks
        for play in yaml.safe_load(path.read_text())
    ]
    return {path.parent.name for path in named if path.name == file}


@pytest.mark.proves("roles", "Each role has a scenario of its own or a named test elsewhere.")
def test_every_role_has_a_scenario() -> None:
    """Its own, which plays it, or a test elsewhere that has its word, and is ordinary or long as the table says."""
    assert set(ROLES) - set(SCENARIOS) == ELSEWHERE.keys()
    for role in set(ROLES) & set(SCENARIOS):
        played = [roles(HERE / role / file) for file in ("converge.yml", "verify.yml")]
        assert any(role in names for names in played), role
    offered = {name for playbook in (REPOSITORY / "playbooks").glob("*.yml") for name in roles(playbook)}
    for role, (kind, test, word) in ELSEWHERE.items():
        file, name = test.split("::")
        source = (REPOSITORY / "tests/cluster" / file).read_text()
        function = function_of(source, name)
        assert role in offered
        assert word in (ast.get_source_segment(source, function) or ""), (role, word)
        assert kind == ("long" if is_long(source, name) else "ordinary"), (role, kind)


def function_of(source: str, name: str) -> ast.FunctionDef:
    """Return a function of a module."""
    (function,) = [item for item in ast.parse(source).body if isinstance(item, ast.FunctionDef) and item.name == name]
    return function


def is_long(source: str, name: str) -> bool:
    """Return whether a test of a module is `long`, by its own mark or by the module's `pytestmark`."""
    marks: list[ast.expr] = list(function_of(source, name).decorator_list)
    for item in ast.parse(source).body:
        if isinstance(item, ast.Assign) and any(ast.unparse(target) == "pytestmark" for target in item.targets):
            marks.append(item.value)
    return any("pytest.mark.long" in ast.unparse(mark) for mark in marks)


@pytest.mark.parametrize(
    ("module", "mark", "long"),
    [
        ("", "", False),
        ("", "@pytest.mark.long\n", True),
        ("pytestmark = pytest.mark.long\n", "", True),
        ("pytestmark = [pytest.mark.x, pytest.mark.long]\n", "", True),
        ("other = pytest.mark.long\n", "", False),
    ],
)
def test_is_long__mark_of_test_or_module__counts(module: str, mark: str, long: bool) -> None:
    assert is_long(f"import pytest\n{module}{mark}def test_a(): pass\n", "test_a") is long


def test_roles_of_ordinary_scenarios__get_what__the_table_says() -> None:
    got: dict[str, set[str]] = {role: set() for role in ROLES}
    for scenario in set(ORDINARY) - {"node_state"}:
        steps = sequence(scenario)
        for role, checked in roles(HERE / scenario / "converge.yml", GROUPS).items():
            got[role] |= {"converge", *({"check"} if checked else ()), "idempotence"} & set(steps)
        for role in roles(HERE / scenario / "verify.yml", GROUPS):
            got[role] |= {"converge"}
        for role in imported(scenario, "verify.yml"):
            got[role] |= {"verify"} & set(steps)
    assert {role: " ".join(sorted(steps)) for role, steps in got.items() if steps} == ROLES_OF_ORDINARY


def test_a_split_verification__is_played__as_a_whole() -> None:
    split = {path.parent.name for path in HERE.glob("*/remove.yml")}
    assert split
    for name in split:
        assert sequence(name).index("verify remove.yml") == sequence(name).index("verify") + 1
    for name in SCENARIOS:
        assert imported(name, "verify.yml") & split == imported(name, "remove.yml")
