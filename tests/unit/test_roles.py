"""House rules that hold for every role, and every template rendered for every supported operating system.

What cannot run here for real (Ubuntu, the RHEL family) is at least written completely: its variables have the keys that
Debian's have, and with them every template and every `node_state` call comes out whole.
"""

import configparser
import itertools
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.playbook.task import Task
from jinja2 import Environment, nodes

from clusterctl.inventory import host_pattern
from clusterctl.inventory.bootstrap_plays import APPLY
from tests.systems.rendering import (
    CONTENT,
    ROLES,
    SCHEDULERS,
    SECRET,
    SYSTEMS,
    Cluster,
    Role,
    a_cluster,
    load,
    look,
    roles_of,
    roles_with,
    tasks,
)

NAMES = [role.name for role in ROLES]
OUR_MODULES = {path.stem for path in (CONTENT / "plugins/modules").glob("*.py")}
KEYWORDS = {*Task.fattributes, "args", "block", "rescue", "always"}


def role_files(role: Path) -> Iterator[Path]:
    return (path for path in role.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


@pytest.mark.parametrize("role", ROLES, ids=NAMES)
def test_role_has_the_house_layout(role: Path) -> None:
    for path in ("defaults/main.yml", "meta/argument_specs.yml", "tasks/main.yml"):
        assert (role / path).is_file(), path
    assert not (role / "meta/main.yml").exists(), "order lives in the playbook: no dependencies"
    assert not (role / "handlers").exists(), "node_state restarts what changed"
    assert len((role / "tasks/main.yml").read_text(encoding="utf-8").splitlines()) <= 40


@pytest.mark.proves("roles", "Variables for Debian and the RHEL family have the same keys.")
@pytest.mark.parametrize("role", ROLES, ids=NAMES)
def test_families_have_the_same_variables(role: Path) -> None:
    families = {path.stem: set(load(path)) for path in (role / "vars").glob("*.yml") if path.stem != "main"}
    assert families.keys() in (set(), {"Debian", "RedHat"})
    assert len({frozenset(keys) for keys in families.values()}) <= 1, families


@pytest.mark.parametrize("role", ROLES, ids=NAMES)
def test_variables_are_named_for_their_role(role: Path) -> None:
    for name in load(role / "defaults/main.yml"):
        assert name.startswith(f"{role.name}_")
    private = [name for path in (role / "vars").glob("*.yml") for name in load(path)]
    for path in (role / "tasks").glob("*.yml"):
        private += [task["register"] for task in tasks(path) if "register" in task]
    for name in private:
        assert name.startswith(f"__{role.name}_"), name


@pytest.mark.proves("roles", "Roles use only ansible-core's modules and ours, and ignore no error.")
@pytest.mark.parametrize("role", ROLES, ids=NAMES)
def test_role_uses_ansible_core_and_our_modules_alone(role: Path) -> None:
    for path in (role / "tasks").glob("*.yml"):
        for task in tasks(path):
            for module in task.keys() - KEYWORDS:
                assert module.startswith("ansible.builtin.") or module in OUR_MODULES, f"{path}: {module}"
            assert not task.get("ignore_errors")
            assert task.get("failed_when") is not False, f"{path}: {task['name']} cannot fail"


@pytest.mark.parametrize("role", ROLES, ids=NAMES)
def test_role_knows_no_lab_and_no_other_hosts_facts(role: Path) -> None:
    for path in role_files(role):
        if path.suffix == ".py":
            continue
        # What Slurm and Debian call the way to ask the driver.
        text = re.sub("AutoDetect=nvml|slurm-wlm-nvml-plugin", "", path.read_text(encoding="utf-8"))
        assert not re.search(r"simulated|nvml|/lab/|clusterctl/lab", text, re.IGNORECASE), path
        assert not re.search(r"hostvars\[[^]]*\](\.|\[['\"])ansible_", text), f"{path} reads another host's facts"
        assert not re.search(r"\bansible_(distribution|os_family|hostname|nodename|default_ipv4)\b", text), (
            f"{path}: ansible_facts['x']"
        )


@pytest.mark.proves("roles", "One call describes a scope of records, or its calls are partial.")
def test_scopes__described_by_several_calls__are_marked_as_partial() -> None:
    """Else what one call describes would be taken for former by another, and not be compared any more."""
    whole: dict[str, list[str]] = {}
    every: dict[str, int] = {}
    for role in NAMES:
        for path in (CONTENT / "roles" / role / "tasks").glob("*.yml"):
            for task in tasks(path):
                given = task.get("node_state") or {}
                if "node_state" in task and given.get("state") not in ("absent", "flush", "probe"):
                    scope = str(given.get("name", role))
                    every[scope] = every.get(scope, 0) + 1
                    whole.setdefault(scope, []).extend([] if given.get("partial") else [f"{role}: {task['name']}"])
    assert {scope: names for scope, names in whole.items() if len(names) > 1} == {}
    assert max(every.values()) > 1
    modules = [path.read_text(encoding="utf-8") for path in (CONTENT / "plugins/modules").glob("*.py")]
    recorded = {scope for text in modules for scope in re.findall(r'\bCall\("(\w+)"', text)}
    assert recorded == {"kubernetes_head"}
    assert not any(whole[scope] for scope in recorded)


def visits(role: str, file: str = "main.yml") -> int:
    """Tasks of a role that reach a worker, skipped ones as well; files that only other hosts include are none.

    One that runs once, for all workers together, does not reach each of them.
    """
    count = 0
    for task in tasks(CONTENT / "roles" / role / "tasks" / file):
        if imported := task.get("ansible.builtin.import_tasks"):
            count += visits(role, imported)
        elif "ansible.builtin.include_tasks" not in task and not task.get("run_once"):
            count += 1
    return count


@pytest.mark.proves("roles", "A bootstrap runs fewer than forty tasks on a worker.")
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_worker_is_visited_by_fewer_than_forty_tasks(scheduler: str) -> None:
    """The whole bootstrap, facts included, without Ansible's checks of arguments, which ansible.cfg skips."""
    groups = {"all", f"{scheduler}_workers", "gpu01"}
    plays = [play for play in load(CONTENT / "playbooks/bootstrap.yml") if host_pattern.matches(play["hosts"], groups)]
    # A node is prepared beside the heads or after them; its packages come twice, as they are downloaded first.
    roles = {role if isinstance(role, str) else role["role"] for play in plays for role in play.get("roles", ())}
    count = sum(visits(role) for role in ("packages", *roles)) + visits("base", "sources.yml")
    count += visits("verify", "services.yml")
    assert len(plays) >= 3
    assert count + sum(bool(play.get("gather_facts")) for play in plays) < 40


def played(folder: Path, plays: list[dict[str, Any]]) -> str:
    """Run plays on a head and two workers, by real Ansible on this machine; return its output."""
    hosts = "".join(f"{name} ansible_connection=local\n" for name in ("head1", "gpu01", "gpu02"))
    (folder / "hosts").write_text(f"{hosts}[workers]\ngpu0[1:2]\n")
    plain = [{"gather_facts": False, "tasks": [{"debug": {"msg": "was here"}}]} | play for play in plays]
    (folder / "plays.yml").write_text(yaml.safe_dump(plain))
    program = Path(sys.executable).with_name("ansible-playbook")
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "LC_ALL": "C.UTF-8"}
    argv = [str(program), "-i", str(folder / "hosts"), str(folder / "plays.yml")]
    done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 2, done.stdout + done.stderr
    return done.stdout


@pytest.mark.proves("roles", "The only node that a play concerns fails: the others continue.")
@pytest.mark.parametrize(("pattern", "continues"), [("workers", True), ("gpu01", False)])
def test_play__that_others_leave__does_not_end_the_run(tmp_path: Path, pattern: str, continues: bool) -> None:
    """Ansible ends the run if all hosts of a play fail; hosts that have left it count as not failed."""
    leave = {"meta": "end_host", "when": "inventory_hostname != 'gpu01'"}
    plays: list[dict[str, Any]] = [{"hosts": pattern, "tasks": [leave, {"fail": {}}]}, {"hosts": "workers"}]
    assert ("was here" in played(tmp_path, plays)) is continues


@pytest.mark.proves("faults", "A head that fails beside new workers ends the plain Ansible run, too.")
@pytest.mark.parametrize("stops", [True, False])
def test_head__fails_beside_new_workers__ends_the_run(tmp_path: Path, stops: bool) -> None:
    stop = {"import_tasks": str(CONTENT / "roles/packages/tasks/stop.yml")}
    first = {
        "hosts": "all",
        "vars": {"__packages_head": ["head1"]},
        "tasks": [{"fail": {}, "when": "inventory_hostname == 'head1'"}, *[stop] * stops],
    }
    output = played(tmp_path, [first, {"hosts": "workers"}])
    assert ("was here" in output) is not stops
    assert ("head1 failed, so no node in use is changed." in output) is stops


@pytest.mark.proves("roles", "Only one play selects new nodes alone; it has the heads, whose failure ends it.")
def test_plays__for_some_nodes__have_the_others_too() -> None:
    plays = load(CONTENT / "playbooks/bootstrap.yml")
    made = [play for play in plays if any(name.startswith("_") for _, name in host_pattern.parse(play["hosts"]))]
    assert [play["name"] for play in made] == ["Prepare the Kubernetes heads and new workers"]
    (stop,) = made[0]["post_tasks"]
    assert stop["ansible.builtin.import_role"] == {"name": "packages", "tasks_from": "stop"}


@pytest.mark.proves("bootstrap", "Each role of the bootstrap can be played alone, by a tag of its name.")
def test_bootstrap__each_role__has_its_name_as_its_tag() -> None:
    """Role apply has those of the roles whose calls it applies, also of plays that leave theirs to it."""
    left: list[str] = []
    of_base: dict[str, list[str] | str] = {"slurm_head": ["base", "head_base"], "all": "early_base"}
    of_base["kubernetes_head:kubernetes_workers:!_followers"] = ["base", "head_base"]
    for play in load(CONTENT / "playbooks/bootstrap.yml"):
        before, left = left, []
        for role in play.get("roles", ()):
            own = of_base.get(play["hosts"], "base") if role["role"] == "base" else role["role"]
            assert role["tags"] == (before if role["role"] == APPLY else own), play["name"]
            left = list(before) if "__apply_later" in role.get("vars", {}) else left
            before += own if isinstance(own, list) else [own]
        tasks = [task for part in ("pre_tasks", "tasks", "post_tasks") for task in play.get(part, ())]
        tags = {task["name"]: task["tags"] for task in tasks if "tags" in task}
        of_slurm = "kubernetes" not in str(play["hosts"]) or "slurm" in str(play["hosts"])
        assert len(tags) == len(tasks) or not of_slurm or play["name"] == "Configure the base of the other nodes"
        assert {*tags.values()} <= {"facts", "packages", "verify"}


def test_base__in_several_plays__reads_the_same_values() -> None:
    """A default of another role exists only in plays with that role; base has one of its own in place of it."""
    base = CONTENT / "roles/base"
    files = [path for part in ("tasks", "vars", "templates") for path in (base / part).iterdir()]
    words = {word for path in files for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))}
    others = [load(path) or {} for path in (CONTENT / "roles").glob("*/defaults/main.yml") if path.parts[-3] != "base"]
    read = {name: value for defaults in others for name, value in defaults.items() if name in words}
    assert "munge_version" in read
    # Role base of Slurm's heads is in the play of role slurm_head alone.
    assert [name for name, value in read.items() if value] == ["slurm_head_user_id"]


@pytest.mark.proves("roles", "Plays that gather facts do so although Ansible's checks of arguments are skipped.")
def test_plays_that_gather_facts__have_a_tag_of_their_own() -> None:
    config = configparser.ConfigParser()
    config.read(CONTENT / "ansible.cfg")
    assert config["tags"]["skip"] == "always"
    plays = [play for path in sorted((CONTENT / "playbooks").glob("*.yml")) for play in load(path)]
    gathering = [play for play in plays if play.get("gather_facts")]
    assert gathering
    assert [play["name"] for play in gathering if not play.get("tags") or "always" in play["tags"]] == []


@pytest.mark.proves("roles", "No role reads another role's private variables, which a play may lack.")
@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_private_variables__of_another_role__are_not_read(role: Path) -> None:
    """Results of tasks stay with the host in later plays. A role's variables exist only in plays with the role."""
    others = {
        name: path for path in ROLES if path != role for file in path.glob("vars/*.yml") for name in load(file) or {}
    }
    own = {name for file in role.glob("vars/*.yml") for name in load(file) or {}}
    files = [
        path
        for part in ("tasks", "vars", "templates", "defaults")
        for path in (role / part).rglob("*")
        if path.is_file()
    ]
    for path in files:
        text = re.sub(r"(?m)^ *#.*$", "", path.read_text(encoding="utf-8"))
        found = {name for name in re.findall(r"(?<![.\w])__[a-z0-9_]+\b", text) if name in others and name not in own}
        assert found == set(), path


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_results__of_tasks__have_names_of_their_own(role: Path) -> None:
    """A result has precedence over the role's variable of this name, from then on."""
    known = {name for file in role.glob("vars/*.yml") for name in load(file) or {}}
    results = {task["register"] for file in role.glob("tasks/*.yml") for task in tasks(file) if "register" in task}
    assert known & results == set()


TEMPLATES = [path for role in ROLES for path in sorted(role.glob("templates/*.j2"))]


@pytest.mark.proves("roles", "Every template and `node_state` call renders completely for each supported system.")
@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("host", ["head1", "gpu01"])
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_every_template_and_call_comes_out_whole(system: str, host: str, scheduler: str, tmp_path: Path) -> None:
    """Nothing undefined, no template's own mark left over, and the words of a format where the format can be read."""
    cluster = a_cluster(tmp_path, system, scheduler)
    for path in roles_of(scheduler) if system in ("debian-13", "rocky-9") else roles_with(scheduler):
        role = cluster.role(path.name, host)
        for path in sorted(role.path.glob("templates/*.j2")):
            if path.name == "debian.sources.j2" and not system.startswith("debian"):
                continue
            if path.name == "dnf.repo.j2" and SYSTEMS[system].family != "RedHat":
                continue
            text = role.render(path)
            assert text.endswith("\n"), path
            # Kubernetes' objects have JSON, which may end like a mark.
            marks = r"\{[{%]|%\}|__\w+__|\\n" + ("" if ".yaml." in path.name else r"|\}\}")
            # Prometheus' own labels.
            shown = re.sub(r"\b__(name|address)__", "", text.replace("{{ $", ""))
            assert not re.search(marks, shown), f"{path}: {text}"
            if path.name in ("registries.conf.j2", "config.toml.j2", "hosts.toml.j2"):
                assert tomllib.loads(text)
            if ".yml." in path.name:
                assert isinstance(yaml.safe_load(text), dict)
            if ".yaml." in path.name:
                assert all(isinstance(one, dict | None) for one in yaml.safe_load_all(text))
            if ".json." in path.name:
                assert json.loads(text)
        for _, call in role.calls():
            check_call(role, call, host)


def check_call(role: Role, call: dict[str, Any], host: str) -> None:
    """Check a node_state call's arguments; its files have a source that exists, its contents are whole lines."""
    for item in call.get("files", []):
        assert str(item["dest"]).startswith("/")
        for kind, folder in (("template", "templates"), ("copy", "files")):
            if kind in item:
                assert (role.path / folder / item[kind]).is_file(), f"{role.name} on {host}: {item[kind]}"
        text = role.render(role.path / "templates" / item["template"]) if "template" in item else ""
        if SECRET in (text or f"{item.get('content', '')}{item.get('content_base64', '')}"):
            assert item.get("secret"), f"{item['dest']}: a secret is in it, and --diff would show it"
            assert int(item["mode"], 8) & 0o007 == 0, f"{item['dest']}: a secret is in it, and every user can read it"
        if item.get("content") and not item.get("secret"):
            assert "\\n" not in item["content"], f"{item['dest']}: a backslash where a line should end"
            assert re.search(r"\S\n\Z", item["content"]), f"{item['dest']}: its last line has no end, or is empty"
    assert all(isinstance(unit["name"], str) for unit in call.get("units", []))
    listed = call.get("packages", [])
    listed = listed.split(",") if isinstance(listed, str) else listed  # as Ansible reads text where a list is due
    packages = [package if isinstance(package, str) else package["name"] for package in listed]
    assert len(packages) == len(set(packages))


# Conditions of tasks, by the keyword that has them.
CONDITIONS = ("when", "until", "failed_when", "changed_when", "break_when", "that")
# What modules return as true or false, and what molecule's own tasks set so.
BOOLEAN_RESULTS = {"__nvidia_driver_built.ready", "demo_killed", "refused_version"}
# What Ansible documents as true or false: common return values, and those of stat.
BOOLEAN_ENDS = re.compile(r"\.(failed|changed|skipped|stat\.(exists|isdir|isreg|islnk))$")


def results(node: nodes.Node) -> Iterator[nodes.Node]:
    """Yield the parts of an expression of which one is its value: `a and b` is a or b, `not a` is always a bool."""
    if isinstance(node, nodes.And | nodes.Or):
        yield from [*results(node.left), *results(node.right)]
    elif isinstance(node, nodes.CondExpr) and node.expr2 is not None:
        yield from [*results(node.expr1), *results(node.expr2)]
    elif isinstance(node, nodes.Filter) and node.name == "default" and node.node is not None and len(node.args) == 1:
        yield from [*results(node.node), *results(node.args[0])]
    elif isinstance(node, nodes.Const) and isinstance(node.value, bool):
        return
    elif not isinstance(node, nodes.Not | nodes.Compare | nodes.Test):
        yield node


def parts(condition: str) -> list[str]:
    """Return the parts of a condition that may be no bool."""
    (output,) = Environment(autoescape=True).parse("{{" + condition + "}}").body
    return list(map(named, results(output.nodes[0])))  # type: ignore[attr-defined]


def named(node: nodes.Node) -> str:
    """Return a variable or a result's value as it is written; anything else in words."""
    if isinstance(node, nodes.Getattr):
        return f"{named(node.node)}.{node.attr}"
    return str(node.name) if isinstance(node, nodes.Name) else type(node).__name__


@pytest.mark.parametrize(
    ("condition", "doubtful"),
    [
        ("not a and b.c", ["b.c"]),
        ("a is defined and 'abc'", ["Const"]),
        ("a | length", ["Filter"]),
        ("a.failed | default(false)", ["a.failed"]),
        ("a | default('')", ["a", "Const"]),
        ("a == 1 if b else ''", ["Const"]),
        ("a == 1 if b", ["CondExpr"]),
        ("a == 1 if b else true", []),
        ("a or 0", ["a", "Const"]),
        ("a is changed or b > 2 or not c", []),
        ("{}", ["Dict"]),
    ],
)
def test_parts__of_a_condition__are_those_that_may_be_no_bool(condition: str, doubtful: list[str]) -> None:
    assert parts(condition) == doubtful


def conditions(value: Any) -> Iterator[str]:
    """Yield every condition of a play or task, those within it included."""
    for key, inner in value.items() if isinstance(value, dict) else ():
        if key in CONDITIONS:
            yield from (one for one in (inner if isinstance(inner, list) else [inner]) if isinstance(one, str))
        yield from conditions(inner)
    for inner in value if isinstance(value, list) else ():
        yield from conditions(inner)


@pytest.mark.proves("roles", "Every condition of a task is a bool, as ansible-core 2.19 demands.")
def test_conditions__of_all_tasks__are_true_or_false(tmp_path: Path) -> None:
    """A string as condition fails only when it is reached: `upgrade --os --no-reboot` never worked for that."""
    booleans = {"ansible_check_mode", *BOOLEAN_RESULTS}
    clusters = {}
    for scheduler in SCHEDULERS:
        (tmp_path / scheduler).mkdir()
        clusters[scheduler] = a_cluster(tmp_path / scheduler, "debian-13", scheduler)
    for role in ROLES:
        options = load(role / "meta/argument_specs.yml")["argument_specs"]["main"].get("options", {})
        booleans |= {name for name, option in options.items() if option["type"] == "bool"}
    files = [(role, path) for role in ROLES for path in (role / "tasks").glob("*.yml")]
    molecule = sorted((CONTENT / "tests/molecule").rglob("*.yml"))
    assert molecule
    files += [(ROLES[0], path) for path in [*(CONTENT / "playbooks").glob("*.yml"), *molecule]]
    for role, path in files:
        cluster = clusters["kubernetes" if role.name.startswith("kubernetes") else "slurm"]
        for condition in conditions(load(path)):
            for name in parts(condition):
                if name not in booleans and not BOOLEAN_ENDS.search(name):
                    value = cluster.role(role.name, "gpu01").value(f"{name} | default('a result')")
                    assert isinstance(value, bool), f"{path}: {condition}: {name} is not known as a bool"


@pytest.mark.parametrize("role", ROLES, ids=NAMES)
def test_defaults__of_a_role__pass_its_argument_specs(role: Path) -> None:
    """Ansible takes the keys that an optional mapping requires for required in an empty one, too."""
    options = load(role / "meta/argument_specs.yml")["argument_specs"]["main"].get("options", {})
    defaults = load(role / "defaults/main.yml") or {}
    plain = {name: value for name, value in defaults.items() if name in options and "{{" not in str(value)}
    for name, value in plain.items():
        assert ArgumentSpecValidator({name: options[name]}).validate({name: value}).error_messages == []


def test_settings_that_are_empty_again_leave_units_that_can_be_looked_for(tmp_path: Path) -> None:
    """What was recorded of a unit is looked for ever after, so it is stated on."""
    cluster = a_cluster(tmp_path, "debian-13")

    def call(role: str, file: str, **known: Any) -> Any:
        calls = cluster.role(role, "gpu01", **known).calls()
        return next(given for path, given in calls if path.name == file and "units" in given)

    kept = {"kept": {"power_limit": "", "mig": "", "mig_gpus": {}}}
    asked, emptied = call("gpu_config", "settle.yml"), call("gpu_config", "settle.yml", __gpu_config_done=kept)
    assert asked["units"] == emptied["units"] == [{"name": "gpu-config"}]
    gone = [file["dest"] for file in emptied["files"] if file.get("state") == "absent"]
    assert gone == ["/etc/systemd/system/slurmd.service.d/gpu-config.conf"]
    for imex, stated in ((True, [{"name": "nvidia-imex", "state": "stopped"}]), (False, [])):
        known = {"nvidia_driver_imex_nodes": [], "__nvidia_driver_look": look("debian-13", imex=imex)}
        units = call("nvidia_driver", "install.yml", **known)["units"]
        assert [unit for unit in units if unit["name"] == "nvidia-imex"] == stated


@pytest.mark.parametrize("role", ["gpu_config", "gpu_health"])
def test_gpu_programs__of_one_role_alone__have_all_their_modules(tmp_path: Path, role: str) -> None:
    """Both roles install what both programs share, and each keeps it when the other is removed."""
    found = a_cluster(tmp_path, "debian-13").role(role, "gpu01")
    files = [item for _, call in found.calls() for item in call.get("files", [])]
    modules = {Path(item["dest"]).stem: item for item in files if item["dest"].startswith("/usr/local/lib/clusterctl/")}
    known = {path.stem for path in CONTENT.glob("roles/gpu_*/files/*.py")}
    texts = [found.content(item) or b"" for item in modules.values()]
    imported = {name for text in texts for name in re.findall(r"^(?:import|from) (\w+)", text.decode(), re.MULTILINE)}
    assert {role} | (imported & known) == {*modules}
    assert all(item.get("mode", "0644") == "0644" for item in modules.values())


@pytest.mark.proves("roles", "Health port and GPU source set for the head reach the workers.")
def test_what_is_set_for_the_head_alone_reaches_the_workers(tmp_path: Path) -> None:
    """The port at which it hears them, and who is to list their GPUs."""
    cluster = a_cluster(tmp_path, "debian-13")
    cluster.set("head1", slurm_head_health_port=7000, slurm_head_gres_source="driver")
    for role, name, expected in (
        ("gpu_health", "__gpu_health_given", 7000),
        ("slurm_worker", "__slurm_worker_asks", True),
    ):
        found = cluster.role(role, "gpu01").value(name)
        assert (found["port"] if isinstance(found, dict) else found) == expected


@pytest.mark.proves("firewall", "SSH needs a job on workers that confine jobs and are no head.")
@pytest.mark.parametrize(
    ("host", "changes", "guarded"),
    [
        ("gpu01", {}, True),
        ("gpu01", {"slurm_logins_need_job": False}, False),
        ("gpu01", {"slurm_head_confine": []}, False),
        ("gpu01", {"slurm_head_confine": ["devices"]}, True),
        ("head1", {}, False),
    ],
)
def test_logins__by_what_the_host_is__need_a_job(
    tmp_path: Path, host: str, changes: dict[str, Any], guarded: bool
) -> None:
    cluster = a_cluster(tmp_path, "debian-13")
    cluster.set("head1", **changes)
    role = cluster.role("slurm_logins", host, **changes)
    assert role.value("__slurm_logins_guarded") is guarded
    packages = [{"name": "libpam-slurm-adopt", "hold": True}]
    assert role.value("__slurm_logins_packages") == (packages if guarded else [])


@pytest.mark.proves("login", "With login nodes the head admits administrators by SSH; nothing else of it changes.")
@pytest.mark.parametrize(("login", "state"), [({}, "absent"), ({"login1": {"ansible_host": "10.0.0.20"}}, "present")])
def test_logins__of_a_head__depend_on_login_nodes(tmp_path: Path, login: dict[str, Any], state: str) -> None:
    a_cluster(tmp_path, "debian-13")
    path = tmp_path / "inventory.yaml"
    tree = yaml.safe_load(path.read_text())
    tree["all"]["children"] |= {"login": {"hosts": login}} if login else {}
    path.write_text(yaml.safe_dump(tree))
    calls = Cluster(path, "debian-13").role("slurm_logins", "head1").calls()
    (call,) = [call for _, call in calls if "files" in call]
    assert (call["state"], call["packages"], call["units"]) == (state, [], [])
    if login:
        texts = {file["dest"]: str(file.get("insert", "")) for file in call["files"]}
        assert "pam_deny.so" in texts["/etc/pam.d/sshd"]
        assert "pam_slurm_adopt" not in texts["/etc/pam.d/sshd"]


@pytest.mark.proves("firewall", "Administrators, sudoers and who runs clusterctl reach workers without a job.")
def test_logins__administrators__need_no_job(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path, "debian-13")
    people = [
        {"name": "ada", "uid": 5001, "admin": True},
        {"name": "bob", "uid": 5002},
        {"name": "eve", "uid": 5003, "admin": True, "state": "absent"},
        {"name": "fay", "uid": 5004, "admin": True, "state": "present"},
    ]
    cluster.set("gpu01", ansible_user="ops")
    role = cluster.role("slurm_logins", "gpu01", users_accounts=people)
    role.variables["ansible_facts"]["env"] = {"SUDO_USER": "jim"}
    text = role.render(role.path / "templates/administrators.conf.j2")
    rules = [line for line in text.splitlines() if not line.startswith("#")]
    assert rules == ["+ : (sudo) (wheel) ada fay jim ops root : ALL", "- : ALL : ALL"]


@pytest.mark.proves("firewall", "Administrators get sudo on the head alone; who runs clusterctl keeps it.")
@pytest.mark.parametrize(
    ("host", "operator", "groups", "sudoers", "listed_keys_only"),
    [
        ("head1", None, ["slurm_head"], ["ada", "fay"], ["ada"]),
        ("gpu01", None, ["slurm_head"], [], ["ada"]),
        ("gpu01", "ada", ["slurm_head"], ["ada"], []),
        ("gpu01", "bob", ["slurm_head"], [], ["ada"]),
        ("gpu01", None, ["slurm_workers"], ["ada", "fay"], ["ada"]),
        ("head1", "fay", [], ["fay"], ["ada"]),
    ],
)
def test_users__by_host_and_who_runs_it__become_root(
    tmp_path: Path,
    host: str,
    operator: str | None,
    groups: list[str],
    sudoers: list[str],
    listed_keys_only: list[str],
) -> None:
    cluster = a_cluster(tmp_path, "debian-13")
    key = ["ssh-ed25519 AAAA ada"]
    people = [
        {"name": "ada", "uid": 5001, "admin": True, "ssh_keys": key},
        {"name": "bob", "uid": 5002, "ssh_keys": key},
        {"name": "eve", "uid": 5003, "admin": True, "ssh_keys": key, "state": "absent"},
        {"name": "fay", "uid": 5004, "admin": True},
    ]
    role = cluster.role("users", host, users_accounts=people, users_sudo_groups=groups)
    role.variables["ansible_facts"]["env"] = {"SUDO_USER": operator} if operator else {}
    assert role.value("__users_sudoers") == sudoers
    assert role.value("__users_listed_keys_only") == listed_keys_only


@pytest.mark.proves("driver", "Fabric Manager, IMEX, NSCQ and NVSDM have NVIDIA's name for system and branch.")
@pytest.mark.parametrize(
    ("system", "branch", "fabric", "imex", "nscq", "nvsdm"),
    [
        # NVIDIA/gpu-driver-container@51d4966 and its rhel9/precompiled/Dockerfile; of NSCQ and NVSDM @06a208c,
        # ubuntu24.04/precompiled/nvidia-driver besides.
        ("debian-12", "580", "nvidia-fabricmanager", "nvidia-imex", "libnvidia-nscq", "libnvsdm"),
        ("debian-12", "575", "nvidia-fabricmanager-575", "nvidia-imex-575", "libnvidia-nscq-575", "libnvsdm-575"),
        ("debian-13", "", "nvidia-fabricmanager", "nvidia-imex", "libnvidia-nscq", "libnvsdm"),
        ("ubuntu-24.04", "580", "nvidia-fabricmanager", "nvidia-imex", "libnvidia-nscq", "libnvsdm"),
        ("ubuntu-24.04", "570", "nvidia-fabricmanager-570", "nvidia-imex-570", "libnvidia-nscq-570", "libnvsdm-570"),
        ("rocky-9", "580", "nvidia-fabricmanager", "nvidia-imex", "libnvidia-nscq", "libnvsdm"),
        ("rocky-9", "570", "nvidia-fabric-manager", "nvidia-imex-570", "libnvidia-nscq-570", "libnvsdm-570"),
    ],
)
def test_nvidia_driver__fabric_of_a_branch__has_nvidias_names(
    tmp_path: Path, system: str, branch: str, fabric: str, imex: str, nscq: str, nvsdm: str
) -> None:
    cluster = a_cluster(tmp_path, system)
    for joined, library in (("nvswitch", nscq), ("nvlink5", nvsdm)):
        known = {"nvidia_driver_branch": branch, "__nvidia_driver_look": look(system, fabric=joined)}
        role = cluster.role("nvidia_driver", "gpu01", **known)
        installed = [one for one in role.value("__nvidia_driver_fabric_packages") if isinstance(one, dict)]
        assert [one["name"] for one in installed] == [fabric, library, imex]
        assert {one["version"] for one in installed} == {f"{role.value('__nvidia_driver_branch')}.*"}
        assert role.value("__nvidia_driver_problems") == []
    if not branch:
        assert role.value("__nvidia_driver_branch") == "590", "all that NVIDIA has for Debian 13"
    role.variables["ansible_facts"]["architecture"] = "aarch64"
    assert library not in str(role.value("__nvidia_driver_fabric_packages")), "there is none for arm64"


@pytest.mark.proves("driver", "On Ubuntu with Secure Boot the modules are Canonical's, and held.")
@pytest.mark.parametrize(
    ("devices", "headers", "modules"),
    [
        (["2330"], ["linux-headers-generic"], ["580-server-open-generic"]),
        (["1db4"], ["linux-headers-generic-hwe-24.04"], ["580-server-generic-hwe-24.04"]),
        (["2330"], ["linux-headers-virtual"], ["580-server-open-generic"]),
        (["2330"], [], []),
    ],
)
def test_nvidia_driver__secure_boot_on_ubuntu__has_signed_modules(
    tmp_path: Path, devices: list[str], headers: list[str], modules: list[str]
) -> None:
    found = look("ubuntu-24.04", devices, headers=headers, secure_boot=True, key_enrolled=False)
    known = {"nvidia_driver_imex_nodes": [], "__nvidia_driver_look": found}
    role = a_cluster(tmp_path, "ubuntu-24.04").role("nvidia_driver", "gpu01", **known)
    kind = "580-server-open" if devices == ["2330"] else "580-server"
    names = [f"linux-modules-nvidia-{name}" for name in (*modules, f"{kind}-6.8.0-85-generic")]
    wanted = {one["name"]: one for one in role.value("__nvidia_driver_wanted")}
    assert role.value("__nvidia_driver_problems") == []
    assert [one for one in wanted.values() if one["name"].startswith("linux-modules-")] == [
        {"name": name, "hold": True} for name in names
    ]
    assert wanted["nvidia-utils-580-server"]["version"] == "580.*"
    built = {"dkms", "gcc", "make", "linux-headers-6.8.0-85-generic", *headers}
    assert not wanted.keys() & (built | {"nvidia-persistenced"})
    assert role.value("__nvidia_driver_branch_files") == [], "the pin is for NVIDIA's packages"
    # What another kernel has under another name makes no other driver.
    assert role.value("__nvidia_driver_names")[: len(names)] == [
        *(names[:-1] or names), *role.value("__nvidia_driver_offered.tools")
    ][: len(names)]  # fmt: skip
    build = role.value("__nvidia_driver_build")
    assert (build["signed"], build["packages"]) == (True, names)
    fabric = [one["name"] for one in role.value("__nvidia_driver_fabric_packages")]
    assert fabric[:2] == ["nvidia-fabricmanager-580", "libnvidia-nscq-580"]


def test_nvidia_driver__libraries_of_signed_modules__are_of_one_version(tmp_path: Path) -> None:
    found = look("ubuntu-24.04", secure_boot=True, key_enrolled=False)
    versions = {
        "linux-modules-nvidia-580-server-open-generic": "6.8.0-85.85",
        "libnvidia-compute-580-server": "580.126.09-0ubuntu0.24.04.1",
    }
    state = {"changes": [], "versions": versions}
    known = {"nvidia_driver_imex_nodes": [], "__nvidia_driver_look": found, "__nvidia_driver_state": state}
    role = a_cluster(tmp_path, "ubuntu-24.04").role("nvidia_driver", "gpu01", **known)
    assert role.value("__nvidia_driver_build")["libraries"] == "580.126.09"
    assert {one["version"] for one in role.value("__nvidia_driver_fabric_packages")[:2]} == {"580.126.09"}


@pytest.mark.proves("driver", "The persistence daemon's own package is held wherever there is one.")
@pytest.mark.parametrize(
    ("system", "source", "held"),
    [
        ("debian-13", "nvidia", True),
        ("debian-13", "distribution", True),
        ("ubuntu-24.04", "nvidia", True),
        ("ubuntu-24.04", "distribution", False),  # it is in nvidia-compute-utils
        ("rocky-9", "nvidia", True),
    ],
)
def test_nvidia_driver__persistence_daemon__is_held(tmp_path: Path, system: str, source: str, held: bool) -> None:
    known = {"nvidia_driver_source": source, "__nvidia_driver_look": look(system, fabric="")}
    wanted = a_cluster(tmp_path, system).role("nvidia_driver", "gpu01", **known).value("__nvidia_driver_wanted")
    daemon = [one for one in wanted if isinstance(one, dict) and one["name"] == "nvidia-persistenced"]
    assert daemon == ([{"name": "nvidia-persistenced", "hold": True}] if held else [])


@pytest.mark.proves("driver", "Kernels with 64 KiB pages and real-time kernels get their own headers.")
@pytest.mark.parametrize(
    ("kernel", "headers"),
    [
        # packages of RHEL 9 and what `uname -r` prints of them
        ("5.14.0-570.42.2.el9_6.x86_64", "kernel-devel 5.14.0-570.42.2.el9_6"),
        ("5.14.0-503.11.1.el9_5.aarch64+64k", "kernel-64k-devel 5.14.0-503.11.1.el9_5"),
        ("5.14.0-503.11.1.el9_5.x86_64+rt", "kernel-rt-devel 5.14.0-503.11.1.el9_5"),
    ],
)
def test_nvidia_driver__kernel_of_another_kind__gets_its_headers(tmp_path: Path, kernel: str, headers: str) -> None:
    found = look("rocky-9", kernel=kernel)
    role = a_cluster(tmp_path, "rocky-9").role("nvidia_driver", "gpu01", __nvidia_driver_look=found)
    (built,) = [one for one in role.value("__nvidia_driver_builders") if isinstance(one, dict)]
    assert f"{built['name']} {built['version']}" == headers


def test_nvidia_driver__modules_that_are_built__need_the_kernels_headers(tmp_path: Path) -> None:
    builders = a_cluster(tmp_path, "ubuntu-24.04").role("nvidia_driver", "gpu01").value("__nvidia_driver_builders")
    assert builders == ["dkms", "gcc", "make", {"name": "linux-headers-6.8.0-85-generic", "hold": True}]


@pytest.mark.proves("monitoring", "DCGM gets the diagnostics that driver and GPUs need.")
@pytest.mark.parametrize(
    ("driver", "devices", "cuda"),
    [
        ("580.95.05", ["2330"], ["13"]),
        ("570.148.08", ["2330"], ["12"]),
        ("580.95.05", ["1db4"], ["12", "13"]),  # V100, NVIDIA/DCGM#254
        ("550.163.01", ["20b2"], ["12"]),
    ],
)
def test_dcgm__by_driver_and_gpus__has_its_diagnostics(
    tmp_path: Path, driver: str, devices: list[str], cuda: list[str]
) -> None:
    found = look("ubuntu-24.04", devices, driver=driver)
    role = a_cluster(tmp_path, "ubuntu-24.04").role("dcgm_exporter", "gpu01", __dcgm_exporter_look=found)
    assert role.value("__dcgm_exporter_diagnostics") == [f"datacenter-gpu-manager-4-cuda{one}" for one in cuda]


@pytest.mark.proves("monitoring", "DCGM is asked for the NVLink counters that the generation of the GPUs has.")
@pytest.mark.parametrize(
    ("devices", "recorded", "nvlink_5"),
    [
        (["2330"], "h100", False),
        (["2901"], "b200", True),
        ([], "gb200", True),
        ([], "a100", False),
        (["3182"], "x", True),
    ],
)
def test_dcgm__by_generation__has_its_nvlink_counters(
    tmp_path: Path, devices: list[str], recorded: str, nvlink_5: bool
) -> None:
    """Field 310 beside those of NVLink 5 leaves all of them without a value (NVIDIA/DCGM#265)."""
    known = {
        "__dcgm_exporter_look": look("ubuntu-24.04", devices, driver="580.95.05"),
        "__dcgm_exporter_record": {"gpus": [{"type": recorded}]},
    }
    role = a_cluster(tmp_path, "ubuntu-24.04").role("dcgm_exporter", "gpu01", **known)
    text = role.render(role.path / "templates/collectors.csv.j2")
    named = {line.split(",")[0] for line in text.splitlines() if not line.startswith("#")}
    new = {name for name in named if "_NVLINK_COUNT_" in name}
    old = {name for name in named if "DEV_NVLINK_" in name} - new
    assert (len(new), len(old)) == ((9, 0) if nvlink_5 else (0, 5))
    assert ("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL" in named) is not nvlink_5
    assert {"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "DCGM_FI_DEV_XID_ERRORS"} <= named


@pytest.mark.proves("monitoring", "Profiling counters are on where they do not prevent users' profilers.")
@pytest.mark.parametrize(
    ("setting", "devices", "recorded", "counted", "package"),
    [
        ("auto", ["2330"], "h100", True, False),
        ("auto", ["2342"], "gh200", True, False),
        ("auto", [], "b200", True, False),
        ("auto", ["20b2"], "a100", False, False),
        ("auto", ["26b9"], "l40s", False, False),
        ("always", ["20b2"], "a100", True, True),
        ("always", ["2330"], "h100", True, False),
        ("never", ["2330"], "h100", False, False),
    ],
)
def test_dcgm__by_generation_and_setting__has_profiling_counters(
    tmp_path: Path, setting: str, devices: list[str], recorded: str, counted: bool, package: bool
) -> None:
    """Before Hopper they need a package (NVIDIA/dcgm-exporter#449) and lock profilers out (NVIDIA/DCGM#62)."""
    known = {
        "__dcgm_exporter_look": look("ubuntu-24.04", devices, driver="580.95.05"),
        "__dcgm_exporter_record": {"gpus": [{"type": recorded}]},
        "dcgm_exporter_profiling": setting,
    }
    role = a_cluster(tmp_path, "ubuntu-24.04").role("dcgm_exporter", "gpu01", **known)
    text = role.render(role.path / "templates/collectors.csv.j2")
    assert (len(re.findall("(?m)^DCGM_FI_PROF_", text)) == 9) is counted
    wanted = [one["name"] if isinstance(one, dict) else one for one in role.value("__dcgm_exporter_wanted")]
    assert ("datacenter-gpu-manager-4-proprietary" in wanted) is package


DCGM_NAMES = [
    dict(line.split() for line in (Path(__file__).parents[1] / f"samples/gpu/dcgm/{name}.txt").read_text().splitlines())
    for name in ("go-dcgm", "dcgm-4.6.0")
]


@pytest.mark.proves("monitoring", "Every DCGM field is one that the exporter and DCGM know, by the same number.")
@pytest.mark.parametrize("recorded", ["h100", "b200"])
def test_dcgm__each_field__is_known_to_the_exporter_and_to_dcgm(tmp_path: Path, recorded: str) -> None:
    """The exporter ends at a name that it does not know. tests/samples/gpu/SOURCES has the versions."""
    known = {"__dcgm_exporter_record": {"gpus": [{"type": recorded}]}, "dcgm_exporter_profiling": "always"}
    role = a_cluster(tmp_path, "ubuntu-24.04").role("dcgm_exporter", "gpu01", **known)
    lines = [line for line in role.render(role.path / "templates/collectors.csv.j2").splitlines() if line[0] != "#"]
    assert [line for line in lines if not re.fullmatch(r"DCGM_FI_\w+, (gauge|counter), [^,]+", line)] == []
    fields = [line.split(",")[0] for line in lines]
    assert len(set(fields)) == len(fields) > 40
    exporter, dcgm = DCGM_NAMES
    assert [name for name in fields if name not in exporter or exporter[name] != dcgm.get(name)] == []


@pytest.mark.proves("monitoring", "Only on a worker of Kubernetes the GPU exporter adds the labels of pods.")
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_dcgm__by_scheduler__adds_the_labels_of_pods(tmp_path: Path, scheduler: str) -> None:
    role = a_cluster(tmp_path, "ubuntu-24.04", scheduler).role("dcgm_exporter", "gpu01")
    text = role.render(role.path / "templates/drop-in.conf.j2")
    (command,) = re.findall(r"(?m)^ExecStart=(/(?:.*\\\n)*.*)$", text)
    words = command.replace("\\\n", " ").split()
    assert words[0] == "/usr/bin/dcgm-exporter"
    assert ("--kubernetes" in words) is (scheduler == "kubernetes")
    assert words[words.index("--collect-interval") + 1] == "15000"


@pytest.mark.proves("driver", "NVLink 5 switches get the subnet manager, its tools and ib_umad.")
def test_nvidia_driver__switches_of_nvlink_5__get_what_their_manager_needs(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path, "ubuntu-24.04")
    for fabric, packages in (("nvlink5", {"nvlsm", "infiniband-diags"}), ("nvswitch", set())):
        found = look("ubuntu-24.04", fabric=fabric)
        role = cluster.role("nvidia_driver", "gpu01", __nvidia_driver_look=found)
        named = role.value("__nvidia_driver_fabric_packages")
        plain = {one for one in named if isinstance(one, str)}
        assert plain == packages
        assert ("ib_umad" in role.value("__nvidia_driver_loads")) is bool(packages)


@pytest.mark.proves("driver", "nvidia-peermem is loaded where it can be; DMA-BUF does without it.")
@pytest.mark.parametrize(
    ("devices", "kernel", "ofed", "loaded", "refused"),
    [
        (["2330"], "6.8.0-50-generic", False, False, False),  # H100, open modules: DMA-BUF
        (["2330"], "6.8.0-50-generic", True, True, False),
        (["1db4"], "6.8.0-50-generic", False, False, True),  # V100, for which there are no open ones
        (["1db4"], "6.8.0-50-generic", True, True, False),
        (["2330"], "5.4.0-200-generic", False, False, True),  # before DMA-BUF
    ],
)
def test_peermem__by_modules_and_kernel__is_loaded_left_out_or_refused(
    tmp_path: Path, devices: list[str], kernel: str, ofed: bool, loaded: bool, refused: bool
) -> None:
    found = look("ubuntu-24.04", devices, fabric="", kernel=kernel, peer_memory=ofed)
    given = {"nvidia_driver_peermem": True, "__nvidia_driver_look": found}
    role = a_cluster(tmp_path, "ubuntu-24.04").role("nvidia_driver", "gpu01", **given)
    assert ("nvidia-peermem" in role.value("__nvidia_driver_loads")) is loaded
    assert any("MLNX_OFED" in problem for problem in role.value("__nvidia_driver_problems")) is refused


def test_imex_channel__asked_for__is_an_option_of_the_driver(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path, "ubuntu-24.04")
    role = cluster.role("nvidia_driver", "gpu01", nvidia_driver_imex_channel=True)
    assert "\noptions nvidia NVreg_CreateImexChannel0=1\n" in role.value("__nvidia_driver_modprobe")
    role = cluster.role("nvidia_driver", "gpu01")
    assert role.value("__nvidia_driver_modprobe").endswith("options nouveau modeset=0\n")


def test_every_template_is_used() -> None:
    for path in TEMPLATES:
        role = path.parent.parent
        sources = itertools.chain(role.glob("tasks/*.yml"), role.glob("vars/*.yml"), role.glob("templates/*.j2"))
        named = {path.name, re.sub(r"^[a-z]+\.sources", "{{ __base_distribution }}.sources", path.name)}
        assert any(name in source.read_text(encoding="utf-8") for source in sources for name in named), path


def test_variables__of_the_playbooks_alone__are_no_parameters_of_roles() -> None:
    """Ansible's check of arguments refuses those. ansible.cfg skips it; a --skip-tags, as of Molecule, does not."""
    plays = [play for path in (CONTENT / "playbooks").glob("*.yml") for play in load(path)]
    roles = [role for play in plays for role in play.get("roles", []) if isinstance(role, dict)]
    assert any("vars" in role for role in roles)
    assert [name for role in roles for name in role if name.startswith("__")] == []
