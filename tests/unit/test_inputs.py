"""What a bootstrap reads on this machine, by host: run/inputs.py."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest
import yaml

from clusterctl.inventory import model
from clusterctl.run import inputs, role_variables
from clusterctl.run.inputs import Inputs
from clusterctl.slurm import versions
from clusterctl.util import paths
from clusterctl.util.errors import InputError
from clusterctl.workspace import secrets
from tests.systems.rendering import record

# A lookup of Ansible's own, and terms that are a role's own files, those of the cluster's directory, or its variables.
LOOKUP = r"(?:lookup|query)\('ansible\.builtin\.(\w+)', *([^)]*)"
OWN = r"'[\w.-]+\.\w+'|'[\w-]+-[\w-]+'|\w+ ~ '\.\w+'|role_path|inventory_dir|\*?__\w+|\*\(cluster_ca_certificates"
INVENTORY = """
all:
  vars:
    cluster_name: aurora
    cluster_networks: [10.0.0.0/24]
    cluster_ca_certificates: [./company.pem, .clusterctl/ca.pem, a/.git/ca.pem]
  children:
    slurm_head: {hosts: {head1: {ansible_host: 10.0.0.10}}}
    slurm_workers: {hosts: {gpu01: {ansible_host: 10.0.0.11}, gpu02: {ansible_host: 10.0.0.12}}}
    monitoring: {hosts: {head1: {}}}
"""
HEAD = {"head1"}  # it has a copy of the directory
ALL = HEAD | {"gpu01", "gpu02"}
PEM = "-----BEGIN CERTIFICATE-----\n"


def recorded(name: str, number: int = 1) -> str:
    """Return a hardware record of a node with four GPUs for each number."""
    return json.dumps(record(name, number, "debian-13"))


PASSWORD = "a long vault password"
SECRETS = {"alertmanager_slack_url": "https://hooks.example/1", "munge_key": "a2V5", "record_key": "cmVjb3Jk"}


@cache
def _sealed(text: str) -> str:
    return str(secrets._vault("aurora-1", PASSWORD.encode()).encrypt(text.encode(), vault_id="aurora-1").decode())


def sealed(known: Mapping[str, str]) -> str:
    """Return the text of a file of secrets."""
    return _sealed(yaml.safe_dump(dict(known)))


def a_directory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a cluster's directory, with the vault password that its secrets name."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder.parent / f"{folder.name}-config"))
    vault = secrets.configuration() / "vault"
    vault.mkdir(parents=True)
    (vault / "aurora-1").write_text(PASSWORD)
    (vault / "aurora-1").chmod(0o600)
    for name, text in {
        "inventory.yaml": INVENTORY,
        "group_vars/all.yml": "cluster_timezone: Etc/UTC\n",
        "host_vars/gpu01.yml": "{}\n",
        "hardware/gpu01.json": recorded("gpu01"),
        "secrets.yml": sealed(SECRETS),
        "company.pem": PEM,
        "known_hosts": "gpu01 ssh-ed25519 AAAA\n",
        ".clusterctl/lock": "",
        ".clusterctl/ca.pem": PEM,
        "a/.git/ca.pem": PEM,
    }.items():
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return a_directory(tmp_path, monkeypatch)


def read(directory: Path) -> Inputs | None:
    return inputs.of(model.load(directory / "inventory.yaml"))


def different(before: Inputs | None, after: Inputs | None) -> set[str]:
    """Return the hosts whose inputs differ; all of a host that only one of them has."""
    assert before and after
    return {name for name in {*before.hosts, *after.hosts} if before.hosts.get(name) != after.hosts.get(name)}


def write(directory: Path, name: str, text: str) -> None:
    (directory / name).parent.mkdir(exist_ok=True)
    (directory / name).write_text(text)


@pytest.mark.parametrize(
    ("name", "text", "hosts"),
    [
        ("group_vars/all.yml", "cluster_timezone: Europe/Berlin\n", ALL),
        ("group_vars/slurm_workers.yml", "cluster_timezone: Europe/Berlin\n", ALL),
        ("host_vars/gpu01.yml", "cluster_timezone: Europe/Berlin\n", HEAD | {"gpu01"}),
        ("host_vars/gpu01.yml", "base_packages: [zsh]\n", HEAD | {"gpu01"}),
        ("host_vars/gpu01.yml", "cluster_address: 10.1.0.11\n", HEAD | {"gpu01"}),
        ("host_vars/gpu01.yml", "ansible_port: 2222\n", HEAD | {"gpu01"}),
        ("host_vars/head1.yml", "cluster_address: 10.1.0.1\n", ALL),
        ("host_vars/head1.yml", "ansible_port: 2222\n", ALL),
        ("host_vars/gpu01.yml", "# the same\n{}\n", HEAD),  # a head has a copy of the directory
        ("inventory.yaml", INVENTORY.replace("gpu02: {", "gpu03: {"), HEAD | {"gpu02", "gpu03"}),
        ("inventory.yaml", INVENTORY.replace("10.0.0.12}", "10.0.0.12}, gpu03: {}"), HEAD | {"gpu03"}),
        ("inventory.yaml", INVENTORY + "    mpi: {hosts: {gpu01: {}}}\n", ALL),  # the names of the groups
        ("inventory.yaml", INVENTORY + "    logging: {hosts: {gpu01: {}}}\n", ALL),
        ("inventory.yaml", INVENTORY.replace("gpu01: {", "gpu01: {base_packages: [zsh], "), HEAD | {"gpu01"}),
        ("inventory.yaml", INVENTORY + "# a comment\n", HEAD),
        ("hardware/gpu01.json", recorded("gpu01", 2), HEAD | {"gpu01"}),
        ("hardware/gpu02.json", recorded("gpu02"), HEAD | {"gpu02"}),
        ("hardware/head1.json", recorded("head1"), ALL),
        ("hardware/gone.json", "{}", HEAD),
        ("secrets.yml", sealed(SECRETS) + "\n", HEAD),
        ("secrets.yml", sealed(SECRETS | {"alertmanager_slack_url": "https://hooks.example/2"}), ALL),
        ("secrets.yml", sealed(SECRETS | {"record_key": "b3RoZXI="}), ALL),
        ("company.pem", f"{PEM}another", ALL),
        (".clusterctl/ca.pem", f"{PEM}another", ALL),
        ("a/.git/ca.pem", f"{PEM}another", ALL),
        ("other.pem", "a certificate", HEAD),
        ("known_hosts", "other", HEAD),
        ("a/.git/FETCH_HEAD", "other", set()),
        (".clusterctl/lock", "other", set()),
        (".clusterctl/unchanged.json", "other", set()),
    ],
)
def test_of__a_file_that_changes__differs_for_the_hosts_concerned(
    directory: Path, name: str, text: str, hosts: set[str]
) -> None:
    before = read(directory)
    assert before == read(directory)
    write(directory, name, text)
    assert different(before, read(directory)) == hosts


def test_of__archives_of_images__differ_by_size_and_times(directory: Path, tmp_path: Path) -> None:
    """They are outside the directory, and too large to be read. A copy that keeps its times differs, too."""
    archives = tmp_path / "archives"
    archives.mkdir()
    write(directory, "group_vars/all.yml", f"kubernetes_node_images_directory: {archives}\n")
    before = read(directory)
    assert before == read(directory)
    (archives / "a.tar").write_text("a")
    with_one = read(directory)
    assert different(before, with_one) == ALL
    os.utime(archives / "a.tar", ns=(1, 1))
    old = read(directory)
    assert different(with_one, old) == ALL
    (archives / "a.tar").write_text("b")
    os.utime(archives / "a.tar", ns=(1, 1))
    assert different(old, read(directory)) == ALL
    archives.rename(tmp_path / "elsewhere")
    assert read(directory) is None


def test_of__another_vault_password__differs(directory: Path) -> None:
    """It is the key of the digests, so nobody can try values without it."""
    before = read(directory)
    (secrets.configuration() / "vault/aurora-1").write_text("another long password")
    assert read(directory) is None, "it does not decrypt the secrets"
    again = secrets._vault("aurora-1", b"another long password").encrypt(b"{}", vault_id="aurora-1").decode()
    write(directory, "secrets.yml", str(again))
    after = read(directory)
    assert before and after
    assert not {*before.hosts["gpu01"].variables.values()} & {*after.hosts["gpu01"].variables.values()}
    (secrets.configuration() / "vault/aurora-1").unlink()
    assert read(directory) is None


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        (INVENTORY.replace("    cluster_networks: [10.0.0.0/24]\n", ""), ALL | {"gpu03"}),  # firewalls list the nodes
        (INVENTORY.replace("10.0.0.10}", "10.0.0.10, cluster_networks: []}"), ALL | {"gpu03"}),
        (INVENTORY + "    package_cache: {hosts: {gpu01: {}}}\n", HEAD | {"gpu01", "gpu03"}),
        (INVENTORY + "    grafana: {hosts: {gpu01: {}}}\n", HEAD | {"gpu01", "gpu03"}),
        (INVENTORY + "    mpi: {hosts: {gpu01: {}}}\n", HEAD | {"gpu03"}),
        (INVENTORY.replace("slurm_", "kubernetes_"), HEAD | {"gpu03"}),
    ],
)
def test_of__a_new_worker__differs_for_the_hosts_that_see_it(directory: Path, text: str, hosts: set[str]) -> None:
    write(directory, "inventory.yaml", text)
    before = read(directory)
    write(directory, "inventory.yaml", text.replace("10.0.0.12}", "10.0.0.12}, gpu03: {ansible_host: 10.0.0.13}"))
    assert different(before, read(directory)) == hosts


def test_of__the_order_of_heads_in_ranges__differs(directory: Path) -> None:
    """Ansible's first head is another one; the first lines of the file give the order of all hosts."""
    variables = "  vars: {cluster_name: aurora, cluster_networks: [10.0.0.0/24]}\n"
    hosts = "all:\n  hosts: {head1: {}, head2: {}, head3: {}, gpu01: {}}\n" + variables
    workers = "    kubernetes_workers: {hosts: {gpu01: {}}}\n"
    found = []
    for heads in ('head1: {}, "head[2:3]": {}', '"head[2:3]": {}, head1: {}'):
        groups = f"  children:\n    kubernetes_head: {{hosts: {{{heads}}}}}\n{workers}"
        write(directory, "inventory.yaml", hosts + groups)
        now = read(directory)
        assert now
        found.append(now.hosts["gpu01"].rest)
    assert found[0] != found[1]


SEEDED = """
import sys
from pathlib import Path
from clusterctl.inventory import model
from clusterctl.run import inputs
print(inputs.of(model.load(Path(sys.argv[1]))))
"""


def test_of__in_another_process__is_the_same(directory: Path) -> None:
    found = set()
    for seed in ("1", "2", "3", "4"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        argv = [sys.executable, "-c", SEEDED, str(directory / "inventory.yaml")]
        done = subprocess.run(argv, env=environment, check=True, capture_output=True, text=True)
        found.add(done.stdout)
    assert len(found) == 1
    assert "HostInputs" in found.pop()


def test_of__a_new_worker_of_an_old_slurm__differs_for_all(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its daemons learn of it by a restart."""
    monkeypatch.setattr(versions, "learns_by_restart", lambda _: True)
    before = read(directory)
    write(directory, "inventory.yaml", INVENTORY.replace("10.0.0.12}", "10.0.0.12}, gpu03: {}"))
    assert different(before, read(directory)) == ALL | {"gpu03"}


@pytest.mark.parametrize(
    ("secret", "roles"),
    [("alertmanager_slack_url", {"alertmanager"}), ("munge_key", {"munge"}), ("record_key", set())],
)
def test_of__a_secret__is_a_variable_of_the_roles_that_name_it(directory: Path, secret: str, roles: set[str]) -> None:
    before = read(directory)
    write(directory, "secrets.yml", sealed(SECRETS | {secret: "another"}))
    after = read(directory)
    assert before and after
    one, other = before.hosts["gpu01"], after.hosts["gpu01"]
    assert one.changed(other) == ({secret} if roles else set())
    assert (one.rest != other.rest) == (not roles), "what no role names may concern all"
    assert role_variables.readers(paths.content(), [secret], ["alertmanager", "munge", "users"]) == roles


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        (
            "group_vars/all.yml",
            "slurm_head_conf_extra: {KillWait: 9, MinJobAge: 9}\n",
            "slurm_head_conf_extra: {MinJobAge: 9, KillWait: 9}\n",
        ),
        ("inventory.yaml", INVENTORY, INVENTORY.replace("gpu01", "x").replace("gpu02", "gpu01").replace("x", "gpu02")),
    ],
)
def test_of__another_order__differs(directory: Path, name: str, one: str, other: str) -> None:
    """Slurm's configuration keeps it."""
    write(directory, name, one)
    before = read(directory)
    write(directory, name, other)
    assert different(before, read(directory)) >= HEAD


def test_of__files_with_variables__have_a_digest_of_their_own(directory: Path) -> None:
    before = read(directory)
    write(directory, "company.pem", f"{PEM}another")
    after = read(directory)
    assert before and after and before.variables == after.variables
    write(directory, "group_vars/all.yml", "{}\n")
    last = read(directory)
    assert last and last.variables != after.variables


def test_of__a_group_below_another__differs(directory: Path) -> None:
    """Both have the same hosts, so that Ansible's own variables are the same; roles read the tree."""
    workers = "slurm_workers: {children: {big: {hosts: {gpu01: {}}"
    below = INVENTORY.replace("slurm_workers: {", f"{workers}, children: {{small: {{hosts: {{gpu01: {{}}}}}}}}}}}}, ")
    beside = INVENTORY.replace("slurm_workers: {", f"{workers}}}, small: {{hosts: {{gpu01: {{}}}}}}}}, ")
    found = set()
    for text in (below, beside):
        write(directory, "inventory.yaml", text)
        now = read(directory)
        assert now
        found.add(now.hosts["gpu02"].rest)
    assert len(found) == 2


def test_of__a_file_that_is_renamed_or_removed__differs(directory: Path) -> None:
    first = read(directory)
    (directory / "company.pem").rename(directory / "other.pem")
    write(directory, "inventory.yaml", INVENTORY.replace("company.pem", "other.pem"))
    second = read(directory)
    write(directory, "inventory.yaml", INVENTORY.replace("./company.pem, ", ""))
    assert different(first, second) == different(second, read(directory)) == ALL


def test_written__of_a_link_that_led_elsewhere_meanwhile__differs(directory: Path) -> None:
    """And what it leads to is as before."""
    link = directory / "certificates"
    link.symlink_to(directory / "host_vars")
    before = inputs._written(directory)
    link.unlink()
    link.symlink_to(directory / "group_vars")
    link.unlink()
    link.symlink_to(directory / "host_vars")
    assert inputs._written(directory) != before


@pytest.mark.parametrize("name", ["group_vars/all.yml", "host_vars/gpu01.yml"])
def test_of__a_template__is_no_inventory(directory: Path, name: str) -> None:
    """Else a value could come from anywhere."""
    write(directory, name, "base_packages: [\"{{ lookup('env', 'HOME') }}\"]\n")
    with pytest.raises(InputError, match="got a template"):
        read(directory)


def test_roles__read_only_their_own_files_and_those_of_the_directory() -> None:
    """`of` has no others: what a role looks up begins with its own path or the directory's."""
    content = paths.content()
    found_in = [*content.glob("roles/*/*/*.yml"), *content.glob("roles/*/*/*.j2"), *content.glob("playbooks/*/*.yml")]
    found = [one for file in found_in for one in re.findall(LOOKUP, file.read_text())]
    assert len(found) > 30
    others = {term for plugin, term in found if not (plugin == "vars" or re.match(OWN, term))}
    assert others == {"'ANSIBLE_SSH_CONTROL_PATH_DIR'"}


def test_of__what_cannot_be_read__is_unknown(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(directory / "pipe")
    assert read(directory) is None
    (directory / "pipe").unlink()
    monkeypatch.setattr(inputs, "_FILES", 3)
    assert read(directory) is None


def test_of__another_clusterctl__differs(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = read(directory)
    monkeypatch.setattr(inputs, "_of_clusterctl", lambda: "another")
    assert different(before, read(directory)) == ALL


def test_of_clusterctl__each_file_of_the_program_and_its_roles__counts(monkeypatch: pytest.MonkeyPatch) -> None:
    content, read = paths.content(), set[Path]()
    folders = (content / "playbooks", content / "plugins", content / "roles", Path(inputs.__file__).parents[1])
    given = Path.read_bytes

    def noted(path: Path) -> bytes:
        read.add(path)
        return given(path)

    monkeypatch.setattr(Path, "read_bytes", noted)
    inputs._of_clusterctl.__wrapped__()
    files = {path for folder in folders for path in folder.rglob("*") if path.is_file()}
    assert {path for path in files if "__pycache__" not in path.parts} | {content / "ansible.cfg"} == read
    assert len(read) > 700


def test_of_clusterctl__a_file_of_a_role_that_changes__differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("playbooks/bootstrap.yml", "plugins/filter/x.py", "roles/munge/tasks/main.yml", "ansible.cfg")
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("a")
    monkeypatch.setattr(paths, "content", lambda: tmp_path)
    found = {inputs._of_clusterctl.__wrapped__()}
    for name in names:
        (tmp_path / name).write_text("b")
        found.add(inputs._of_clusterctl.__wrapped__())
    assert len(found) == 5
