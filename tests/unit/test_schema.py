"""The schema: what the content declares, and that declarations, defaults and the documentation are in step."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from clusterctl.cli import docs_variables
from clusterctl.inventory import model as inventory
from clusterctl.inventory import schema
from clusterctl.util import paths
from clusterctl.util.errors import ClusterctlError, InputError

from . import small_content

CONTENT = paths.content()


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_content.make(tmp_path_factory.mktemp("content"))


def test_groups_are_those_of_the_playbook_in_its_order(content: Path) -> None:
    known = schema.load(content)
    assert dict(known.groups) == {
        "slurm_head": ("base",),
        "kubernetes_head": ("base",),
        "slurm_workers": ("demo",),
        "kubernetes_workers": ("demo",),
        "monitoring": (),
    }


def test_only_what_has_no_default_is_required(content: Path) -> None:
    assert list(schema.load(content).required()) == ["cluster_name"]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("roles/demo/meta/argument_specs.yml", "argument_specs: ["),
        ("roles/demo/meta/argument_specs.yml", "argument_specs: {main: {options: {demo_x: {type: strr}}}}"),
        ("roles/demo/meta/argument_specs.yml", "main: {}"),
        ("playbooks/bootstrap.yml", "- 7"),
    ],
)
def test_damaged_content_is_our_bug_and_says_where(tmp_path: Path, file: str, text: str) -> None:
    content = small_content.make(tmp_path)
    (content / file).write_text(text, encoding="utf-8")
    with pytest.raises(ClusterctlError) as caught:
        schema.load(content)
    assert caught.value.exit_code == 1
    assert str(content) in str(caught.value)


LISTS_WITH_CHOICES = [one for one in schema.load().variables.values() if one.type == "list" and one.choices]


@pytest.mark.parametrize("option", LISTS_WITH_CHOICES, ids=lambda option: option.name)
def test_list_with_choices__each_of_them__is_accepted(tmp_path: Path, option: schema.Option) -> None:
    path = tmp_path / "inventory.yaml"
    values = {"cluster_name": "aurora", option.name: list(option.choices)}
    groups: dict[str, Any] = {"slurm_head": {"hosts": {"head1": {}}}, "slurm_workers": {"hosts": {"gpu01": {}}}}
    path.write_text(yaml.safe_dump({"all": {"vars": values, "children": groups}}))
    assert inventory.load(path).variables[option.name] == list(option.choices)


def loaded(directory: Path, **variables: Any) -> dict[str, Any]:
    """What a small inventory with these variables comes to; InputError where it is refused."""
    path = directory / "inventory.yaml"
    groups: dict[str, Any] = {"slurm_head": {"hosts": {"head1": {}}}, "slurm_workers": {"hosts": {"gpu01": {}}}}
    groups["gpu_config"] = {"children": {"slurm_workers": {}}}
    path.write_text(yaml.safe_dump({"all": {"vars": {"cluster_name": "aurora", **variables}, "children": groups}}))
    return dict(inventory.load(path).variables)


DEFAULTS = {
    name: value
    for name, value in schema.load().defaults.items()
    if "{{" not in str(value) and not name.startswith("_")  # private
}


@pytest.mark.proves("inventory", "Every default can be written into an inventory as it is.")
@pytest.mark.parametrize("name", DEFAULTS)
def test_default__written_into_an_inventory__is_accepted(tmp_path: Path, name: str) -> None:
    assert loaded(tmp_path, **{name: DEFAULTS[name]})[name] == DEFAULTS[name]


@pytest.mark.parametrize("limit", ["60", "10:00", "1:00:00", "1-12", "2-00:00", "1-00:00:00", "UNLIMITED", "-1"])
def test_time_limit__as_slurm_writes_it__is_accepted(tmp_path: Path, limit: str) -> None:
    partitions = [{"name": "a", "options": {"MaxTime": limit, "defaulttime": limit}}]
    found = loaded(tmp_path, slurm_head_default_time=limit, slurm_head_partitions=partitions)
    assert found["slurm_head_default_time"] == limit


def test_the_page_names_each_variable_with_type_default_and_meaning(content: Path) -> None:
    page = docs_variables.markdown(schema.load(content))
    assert "- `cluster_name` (str, required): Name of the cluster.\n" in page
    assert "- `demo_level` (str, one of `low`, `high`, default `low`): How much.\n" in page
    assert "- `cluster_networks` (list of str, default `[]`): Networks, `CIDR`.\n" in page
    assert "  - `uid` (int): Number.\n" in page
    assert "- `ansible_host` (str): Address" in page


# --- our own content ------------------------------------------------------------------------------------------------

SPECS = sorted(CONTENT.glob("roles/*/meta/argument_specs.yml"))


def _options(spec: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(spec.read_text(encoding="utf-8"))["argument_specs"]["main"].get(
        "options", {}
    )
    return found


@pytest.mark.parametrize("role", sorted(path.name for path in CONTENT.glob("roles/*") if path.is_dir()))
def test_each_role_declares_exactly_what_it_has_defaults_for(role: str) -> None:
    """A default without a spec cannot be set by a user, a spec without a default is undefined in a template."""
    files = [CONTENT / "roles" / role / "defaults/main.yml"]
    if role == "base":
        files.append(CONTENT / "playbooks/group_vars/all.yml")
    defaults = {name for file in files if file.exists() for name in yaml.safe_load(file.read_text("utf-8")) or {}}
    spec = CONTENT / "roles" / role / "meta/argument_specs.yml"
    options = _options(spec) if spec.exists() else {}
    optional = {name for name, option in options.items() if not option.get("required")}
    assert optional == {name for name in defaults if not name.startswith(("ansible_", "__"))}


def test_no_spec_has_a_default_and_no_variable_two_specs() -> None:
    seen: dict[str, str] = {}
    for spec in SPECS:
        role = spec.parent.parent.name
        for name, option in _options(spec).items():
            assert "default" not in option, f"{role}: {name}: the default belongs in defaults/main.yml"
            assert seen.setdefault(name, role) == role, f"{name} is declared by {seen[name]} and {role}"
            assert name.startswith((f"{role}_", "cluster_")), f"{role}: {name} is not named for its role"


def test_the_documentation_is_what_the_generator_prints() -> None:
    page = (CONTENT / "docs/variables.md").read_text(encoding="utf-8")
    assert page == docs_variables.markdown(schema.load()), "python -m clusterctl.cli.docs_variables > docs/variables.md"


@pytest.mark.parametrize("name", ["a'b", 'a"b', "a%h", "a$b", "a`b", "a\\b"])
def test_a_directory_whose_name_ssh_would_read_otherwise_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(InputError, match="the directory's name holds"):
        inventory.load(tmp_path / name / "inventory.yaml")
