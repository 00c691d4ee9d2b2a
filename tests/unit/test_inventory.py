"""The inventory: what it becomes, everything that is refused with its place, and that nothing else ever comes out."""

import textwrap
from pathlib import Path

import pytest
from ansible.plugins.inventory import detect_range, expand_hostname_range

from clusterctl.inventory import document, hostrange, reading, schema
from clusterctl.inventory import model as inventory
from clusterctl.inventory.schema import Schema
from clusterctl.util import paths
from clusterctl.util.errors import InputError, Problem

from . import small_content

GOOD = small_content.INVENTORY.replace("    slurm_workers:\n", "    slurm_workers:\n      vars: {demo_level: high}\n")


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Schema:
    return schema.load(small_content.make(tmp_path_factory.mktemp("content")))


def write(directory: Path, text: str | bytes, name: str = "inventory.yaml") -> Path:
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def problems(path: Path, known: Schema) -> list[str]:
    """Return each problem as printed, with the directory cut off."""
    with pytest.raises(InputError) as caught:
        inventory.load(path, known)
    assert caught.value.exit_code == 2
    lines = str(caught.value).splitlines()
    assert len(lines) == len(caught.value.problems), "a message of more than one line"
    assert all(line.isprintable() for line in lines)
    return [line.replace(f"{path.parent}/", "") for line in lines]


# --- what is accepted -----------------------------------------------------------------------------------------------


def test_hosts_groups_and_variables(tmp_path: Path, known: Schema) -> None:
    write(tmp_path, "cluster_timezone: Europe/Berlin\n", "group_vars/all.yml")
    write(tmp_path, "demo_port: 1\n", "group_vars/slurm_workers/ports.yaml")
    write(tmp_path, "demo_port: 2\n", "group_vars/a100.yml")
    write(tmp_path, "demo_port: 3\n", "host_vars/gpu03.yml")
    cluster = inventory.load(write(tmp_path, GOOD), known)
    assert (cluster.cluster_name, cluster.directory, cluster.head.name) == ("aurora", tmp_path, "head1")
    assert [host.name for host in cluster.hosts] == ["head1", "gpu01", "gpu02", "gpu03", "gpu04"]
    assert dict(cluster.groups) == {
        "slurm_head": ("head1",),
        "slurm_workers": ("gpu01", "gpu02", "gpu03", "gpu04"),
        "a100": ("gpu02", "gpu03", "gpu04"),
        "monitoring": ("head1",),
    }
    assert dict(cluster.variables) == {
        "cluster_name": "aurora",
        "cluster_timezone": "Europe/Berlin",
        "ansible_user": "admin",
    }
    gpu01, gpu02 = cluster.host("gpu01"), cluster.host("gpu02")
    assert (gpu01.address, gpu01.port, gpu01.user, gpu01.become) == ("10.0.0.11", 2222, "admin", True)
    assert (gpu02.address, gpu02.port, set(gpu02.groups)) == ("gpu02", None, {"slurm_workers", "a100"})
    assert [host.variables.get("demo_port") for host in cluster.hosts] == [None, 1, 2, 3, 2]
    assert (gpu02.variables["demo_level"], gpu02.position.line) == ("high", 16)
    assert [host.name for host in cluster.in_group("monitoring")] == ["head1"]
    with pytest.raises(InputError, match=r'no host "gpu1" \(did you mean gpu01\?\)'):
        cluster.host("gpu1")


def test_hosts_may_be_described_once_under_all_and_only_named_in_their_groups(tmp_path: Path, known: Schema) -> None:
    text = """\
    all:
      hosts:
        head1: {ansible_host: 10.0.0.1}
        gpu01: {ansible_host: 10.0.0.2}
      vars: {cluster_name: aurora}
      children:
        slurm_head: {hosts: {head1: }}
        slurm_workers: {hosts: {gpu01: {}}}
    """
    cluster = inventory.load(write(tmp_path, textwrap.dedent(text)), known)
    assert [host.address for host in cluster.hosts] == ["10.0.0.1", "10.0.0.2"]


@pytest.mark.proves("inventory", "A group can take the hosts of the workers' groups, later ones too.")
def test_a_group_may_have_the_hosts_of_the_schedulers_groups(tmp_path: Path, known: Schema) -> None:
    """Those that come later, too; its variables give way to theirs, as with Ansible."""
    members = "monitoring: {children: {a100: {}}, vars: {demo_level: low, demo_port: 7}}"
    text = GOOD.replace("monitoring:\n      hosts:\n        head1: {}\n", f"{members}\n")
    cluster = inventory.load(write(tmp_path, text), known)
    assert cluster.groups["monitoring"] == ("gpu02", "gpu03", "gpu04")
    gpu02 = cluster.host("gpu02")
    assert (gpu02.variables["demo_port"], gpu02.variables["demo_level"]) == (7, "high")
    assert set(gpu02.groups) == {"slurm_workers", "a100", "monitoring"}
    assert {type(group) for group in gpu02.groups} == {str}  # as they are written for a node that leaves


@pytest.mark.proves("containers", "An enroot group that lacks a host of Slurm is refused.")
@pytest.mark.parametrize(
    ("members", "missing"), [("slurm_workers", "head1"), ("slurm_head", "gpu01, gpu02"), ("a100, slurm_head", "gpu01")]
)
def test_slurms_containers_are_on_all_its_hosts(tmp_path: Path, members: str, missing: str) -> None:
    text = f"""\
    all:
      vars: {{cluster_name: aurora}}
      children:
        enroot: {{children: {{{": {}, ".join(members.split(", "))}: {{}}}}}}
        slurm_head: {{hosts: {{head1: {{ansible_host: 10.0.0.1}}}}}}
        slurm_workers:
          hosts: {{gpu01: {{ansible_host: 10.0.0.2}}}}
          children: {{a100: {{hosts: {{gpu02: {{ansible_host: 10.0.0.3}}}}}}}}
    """
    path = write(tmp_path, textwrap.dedent(text))
    (problem,) = problems(path, schema.load())
    assert f"lacks {missing}, where srun" in problem


@pytest.mark.proves("inventory", "A login node that is a head or a worker, or without Slurm, is refused.")
@pytest.mark.parametrize(
    ("login", "prefix", "said"),
    [
        ("gpu01: {}", "slurm", "5:15: all.children.login: gpu01 is also in slurm_workers, expected a host of its own"),
        ("head1: {}", "slurm", "5:15: all.children.login: head1 is also in slurm_head, expected a host of its own"),
        (
            "login1: {ansible_host: 10.0.0.9}",
            "kubernetes",
            "5:15: all.children.login: login1 would log in to Slurm, but there is no group slurm_head",
        ),
        ("login1: {ansible_host: 10.0.0.9}", "slurm", ""),
    ],
)
def test_login__without_a_host_of_its_own__is_refused(tmp_path: Path, login: str, prefix: str, said: str) -> None:
    text = f"""\
    all:
      vars: {{cluster_name: aurora}}
      children:
        login:
          hosts: {{{login}}}
        {prefix}_head: {{hosts: {{head1: {{ansible_host: 10.0.0.1}}}}}}
        {prefix}_workers: {{hosts: {{gpu01: {{ansible_host: 10.0.0.2}}}}}}
    """
    path = write(tmp_path, textwrap.dedent(text))
    found = [] if not said else problems(path, schema.load())
    if not said:
        inventory.load(path, schema.load())
    assert [said in problem for problem in found] == [True] * bool(said), found


@pytest.mark.parametrize("member", ["a10", "monitoring", "all"])
def test_a_group_has_no_other_groups_hosts(tmp_path: Path, known: Schema, member: str) -> None:
    text = GOOD.replace("hosts:\n        head1: {}\n", f"children: {{{member}: {{}}}}\n")
    (problem,) = problems(write(tmp_path, text), known)
    assert f'"{member}" as members of monitoring, expected slurm_head, slurm_workers, a100' in problem


def test_hosts_behind_one_address_differ_by_port(tmp_path: Path, known: Schema) -> None:
    hosts = "gpu01: {ansible_host: nat, ansible_port: 1, cluster_address: 10.0.0.1}"
    text = GOOD.replace("gpu01: {ansible_host: 10.0.0.11, ansible_port: 2222}", hosts)
    text = text.replace("gpu[02:04]: {}", "gpu02: {ansible_host: nat, ansible_port: 2, cluster_address: 10.0.0.2}")
    cluster = inventory.load(write(tmp_path, text), known)
    assert cluster.host("gpu02").variables["cluster_address"] == "10.0.0.2"


def test_a_byte_order_mark_and_windows_line_ends_are_read(tmp_path: Path, known: Schema) -> None:
    assert inventory.load(write(tmp_path, b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode()), known).hosts


def test_editors_copies_and_hidden_files_are_skipped_as_ansible_does(tmp_path: Path, known: Schema) -> None:
    write(tmp_path, "nonsense: [", "group_vars/.all.yml.swp")
    write(tmp_path, "nonsense: [", "host_vars/gpu01.yml~")
    assert inventory.load(write(tmp_path, GOOD), known).hosts


def test_keys_are_private_files(tmp_path: Path, known: Schema, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path, "a key", ".ssh/id").chmod(0o600)
    text = GOOD.replace("ansible_user: admin", "ansible_ssh_private_key_file: ~/.ssh/id")
    assert inventory.load(write(tmp_path, text), known).head.private_key_file == tmp_path / ".ssh/id"


def test_certificates_are_files_of_the_cluster(tmp_path: Path, known: Schema) -> None:
    write(tmp_path, "-----BEGIN CERTIFICATE-----\n", "ca/site.pem")
    text = in_vars("cluster_ca_certificates: [ca/site.pem]")
    assert inventory.load(write(tmp_path, text), known).variables["cluster_ca_certificates"] == ["ca/site.pem"]


@pytest.mark.parametrize("pattern", ["gpu01", "gpu[01:04]", "gpu[8:11]", "r[a:c]n[1:9:4]", "n[0:0]", "x[001:100:33]y"])
def test_ranges_mean_what_they_mean_to_ansible(pattern: str) -> None:
    expected = expand_hostname_range(pattern) if detect_range(pattern) else [pattern]
    assert list(hostrange.expand(pattern)) == expected


# --- what is refused ------------------------------------------------------------------------------------------------


def replaced(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


def in_vars(line: str) -> str:
    """Return an inventory with one more variable, on line 4."""
    return replaced("    ansible_user: admin\n", f"    {line}\n")


VARIABLES: dict[str, tuple[str, str]] = {
    # what stands on line 4 from column 5 on: the rest of the place, and what is said
    "demo_level: lo": (":4:17: all.vars.demo_level: ", 'got "lo", expected one of low, high (did you mean low?)'),
    "demo_ratio: .nan": (":4:17: ", "got .nan, which YAML reads as nan, expected a number"),
    "demo_ratio: 1:30.5": (":4:17: ", "which YAML reads as 90.5, expected a number"),
    "demo_on: 1": (":4:14: ", "got 1, expected true or false"),
    "demo_any: 1_000": (":4:15: ", "which YAML reads as 1000"),
    "demo_any: 2026-01-01": (":4:15: ", "expected an unambiguous value"),
    'demo_token: "hunter2"': (":4:17: ", "got a hidden value, expected a whole number"),
}


@pytest.mark.parametrize(("line", "place", "said"), [(line, *expected) for line, expected in VARIABLES.items()])
def test_a_value_of_a_type_that_no_role_of_ours_has(
    tmp_path: Path, known: Schema, line: str, place: str, said: str
) -> None:
    """What our own roles declare is in test_bad_input.py."""
    [found] = problems(write(tmp_path, in_vars(line)), known)
    assert place in found
    assert said in found
    assert "hunter2" not in found


def test_a_host_serves_one_scheduler(tmp_path: Path, known: Schema) -> None:
    text = GOOD + "    kubernetes_head: {hosts: {k1: }}\n    kubernetes_workers: {hosts: {gpu01: }}\n"
    assert problems(write(tmp_path, text), known) == [
        "inventory.yaml:12:9: gpu01: in two schedulers, got slurm, kubernetes, expected one"
    ]


@pytest.mark.proves("inventory", "All problems of an inventory are reported at once, in file order.")
def test_every_problem_is_reported_at_once_in_the_order_of_the_files(tmp_path: Path, known: Schema) -> None:
    write(tmp_path, "demo_port: x\n", "group_vars/slurm_workers.yml")
    write(tmp_path, "demo_port: y\n", "host_vars/gpu01.yml")
    text = in_vars("demo_on: 1").replace("demo_level: high", "demo_levl: high").replace("10.0.0.11", "10.0.0.10")
    assert [line.split(": ")[0] for line in problems(write(tmp_path, text), known)] == [
        "inventory.yaml:4:14",
        "inventory.yaml:10:14",
        "inventory.yaml:12:9",
        "group_vars/slurm_workers.yml:1:12",
        "host_vars/gpu01.yml:1:12",
    ]


def test_a_flood_of_problems_ends(tmp_path: Path, known: Schema) -> None:
    found = problems(write(tmp_path, in_vars("\n    ".join(f"x{i}: 1" for i in range(9999)))), known)
    assert len(found) == reading.MAX_PROBLEMS + 1
    assert found[-1] == "inventory.yaml: too many problems, the rest was not checked"


def test_a_path_that_no_system_call_takes(tmp_path: Path, known: Schema) -> None:
    assert "cannot be read: " in problems(tmp_path / "nul\0", known)[0]


def test_messages_show_at_most_a_line_of_what_was_written() -> None:
    assert len(document.shown("x" * 1000)) == 60
    assert document.shown("a\x1bb\n") == "a\\x1bb\\n"


@pytest.mark.parametrize("example", sorted(paths.content().glob("inventory/*/inventory.yaml")), ids=str)
def test_the_examples_hold(example: Path) -> None:
    cluster = inventory.load(example)
    assert len(cluster.hosts) == 3
    assert cluster.variables["users_accounts"]


def test_document__deeper_than_pyyaml_reads__says_how_deep_it_may_be() -> None:
    """From 6.0.4 on PyYAML's scanner has a limit of its own, which it meets before it gives out the first level."""
    problems: list[Problem] = []
    assert document.parse("[" * 100_000, Path("inventory.yaml"), problems.append) is None
    assert [problem.message for problem in problems] == ["nested too deep, expected at most 20 levels"]
