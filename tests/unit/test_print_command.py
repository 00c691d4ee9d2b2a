"""`--print-command` of verbs that do more than their playbook: plain commands on stdout, the rest in words on stderr.

tests/cluster runs some of them as they are printed.
"""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils import cluster_backup

from clusterctl.commands import restore
from clusterctl.util import paths
from clusterctl.workspace import home, secrets

from .test_cli import clusterctl

INVENTORY = """\
all:
  vars: {cluster_name: aurora, cluster_networks: [127.0.0.0/24], ansible_user: admin}
  children:
    slurm_head: {hosts: {head1: {ansible_host: 127.0.0.1}}}
    slurm_workers:
      hosts:
        gpu01: {ansible_host: 127.0.0.2}
        gpu02: {ansible_host: 127.0.0.3}
    monitoring: {hosts: {head1: {}}}
"""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cluster's directory with its secrets."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home/.config"))
    directory = tmp_path / "aurora"
    directory.mkdir()
    (directory / "inventory.yaml").write_text(INVENTORY)
    secrets.ensure(directory, "aurora")
    return directory


def printed(cluster: Path, verb: str, *options: str) -> tuple[list[list[str]], str]:
    """Return the words of each command that a verb prints, and what it leaves to do; nothing else happens."""
    before = {path: path.read_bytes() for path in cluster.rglob("*") if path.is_file()}
    done = clusterctl(verb, str(cluster), *options, "--print-command")
    assert done.returncode == 0, done.stderr
    assert {path: path.read_bytes() for path in cluster.rglob("*") if path.is_file()} == before
    commands = [shlex.split(line) for line in done.stdout.splitlines()]
    for words in commands:
        assert words[0] == f"ANSIBLE_CONFIG={paths.content() / 'ansible.cfg'}"
        inventory = Path(words[words.index("-i") + 1])
        if inventory == cluster / "inventory.yaml":  # the inventory of a leaving node has no secrets
            option = words.index("--vault-password-file")
            assert words[option + 1] == str(secrets.vault_password_file(cluster))
            del words[option : option + 2]
        assert not [word for word in words if word.startswith(("-e", "--extra"))] or verb == "upgrade"
    return commands, done.stderr


def tail(words: list[str]) -> list[str]:
    """Return a command from its inventory on, each path as its name."""
    return [word.rpartition("/")[2] for word in words[words.index("-i") + 1 :]]


@pytest.mark.proves("print-command", "`add-node` prints its playbook command and the inventory edit.")
def test_a_new_node_is_to_be_written_first(cluster: Path) -> None:
    [words], left = printed(cluster, "add-node", "gpu09", "--address", "127.0.0.9")
    assert tail(words) == ["inventory.yaml", "add-node.yml", "--limit", "head1,gpu09"]
    assert "+        gpu09: {ansible_host: 127.0.0.9}\n" in left
    assert "After it" not in left
    [words], left = printed(cluster, "add-node", "gpu02")
    assert tail(words)[-1] == "head1,gpu02"
    assert f"change {cluster}" not in left


@pytest.mark.proves("print-command", "`remove-node` prints two commands and the manual steps.")
def test_a_node_leaves_by_two_commands(cluster: Path) -> None:
    (cluster / "known_hosts").touch()
    [head, node], left = printed(cluster, "remove-node", "gpu02")
    assert tail(head) == ["inventory.yaml", "bootstrap.yml", "--limit", "head1"]
    assert tail(node) == ["inventory.yaml", "remove-node.yml"]
    folder = cluster / home.STATE / "leaving"
    assert node[node.index("-i") + 1] == str(folder / "inventory.yaml")
    steps, _, text = left.partition(f"write {folder}/inventory.yaml:\n")
    assert "slurm-drain remove-node --out gpu02 --reason 'it is being removed'\n" in steps
    assert "squeue --nodelist=gpu02\n" in steps
    assert "-        gpu02: {ansible_host: 127.0.0.3}\n" in left
    assert "    leaving:\n" in text.replace("      ", "", 1)
    assert "Then:\n  - on head1: sudo /usr/local/sbin/slurm-drain --forget gpu02\n" in text
    assert steps.index("slurm-drain") < left.index("-        gpu02: {ansible_host")
    assert "discover" in steps and "gpu02: host keys" not in steps, "who leaves needs no record"
    [head], left = printed(cluster, "remove-node", "gpu02", "--dead")
    assert "scontrol update NodeName=gpu02 State=DOWN 'Reason=clusterctl: remove-node --dead'\n" in left
    assert tail(head)[1] == "bootstrap.yml"
    assert "leaving" not in left


@pytest.mark.proves("print-command", "`replace-node` prints the trust, record and drain steps before its command.")
def test_a_replaced_node_is_trusted_and_drained_first(cluster: Path) -> None:
    [words], left = printed(cluster, "replace-node", "gpu02")
    assert tail(words) == ["inventory.yaml", "replace-node.yml", "--limit", "head1,gpu02"]
    for step in ("clusterctl trust ", "hardware/gpu02.json && clusterctl discover ", "bootstrap --out gpu02 "):
        assert step in left


@pytest.mark.proves("print-command", "`backup` prints that the archive must be copied.")
def test_a_backup_is_to_be_copied_afterwards(cluster: Path, tmp_path: Path) -> None:
    [words], left = printed(cluster, "backup", "--to", str(tmp_path))
    assert tail(words) == ["inventory.yaml", "backup.yml", "--limit", "head1"]
    assert left.endswith(f"/backups on head1 (readable by root only) to {tmp_path}\n")


@pytest.mark.proves("print-command", "`restore` prints the file that its playbook reads.")
def test_what_is_restored_is_to_be_written_where_the_playbook_reads_it(cluster: Path, tmp_path: Path) -> None:
    manifest: dict[str, Any] = {
        "version": 1, "cluster": secrets.label(cluster), "made": "2026-11-21T19:00:00Z", "slurm": "24.11.5",
        "running": ["7", "12"], "pending": 3, "database": "slurm_acct_db", "records": {"job": 12},
    }  # fmt: skip
    archive = tmp_path / "archive.tar"
    cluster_backup.seal(archive, manifest, [], secrets.values(cluster)["backup_key"])
    [words], left = printed(cluster, "restore", str(archive))
    assert tail(words) == ["inventory.yaml", "restore.yml"]
    file = cluster / home.STATE / restore.REQUEST
    assert f"{{{{ inventory_dir }}}}/{home.STATE}/{restore.REQUEST}" in Path(words[-1]).read_text()
    _, _, text = left.partition(f"write {file}:\n")
    asked, end = json.JSONDecoder().raw_decode(text.lstrip())
    assert asked == {"restore_archive": str(archive), "restore_ended": []}
    assert "from jobs 7, 12" in text.lstrip()[end:]


@pytest.mark.proves("print-command", "`upgrade` prints the backup, drain and resume steps around its command.")
def test_an_upgrade_is_of_drained_workers_with_a_backup(cluster: Path) -> None:
    commands, left = printed(cluster, "upgrade", "--only", "munge")
    assert [tail(words) for words in commands] == [
        ["inventory.yaml", "upgrade.yml", "--extra-vars", '{"upgrade_roles": ["munge"]}']
    ]
    _, backup, drain, *_ = left.partition("Before it:\n")[2].splitlines()
    assert backup == f"  - clusterctl backup {cluster}"
    assert drain.endswith("slurm-drain upgrade --out gpu01,gpu02 --reason 'upgrade under way'")
    assert left.endswith("slurm-drain upgrade --in gpu01,gpu02\n")


@pytest.mark.proves("print-command", "`reboot` of a worker prints the drain step.")
def test_a_reboot_is_of_drained_workers(cluster: Path) -> None:
    [words], left = printed(cluster, "reboot", "gpu02")
    assert tail(words) == ["inventory.yaml", "reboot.yml", "--limit", "gpu02"]
    assert "slurm-drain reboot --out gpu02 " in left
    [words], left = printed(cluster, "reboot", "head1")
    assert "slurm-drain" not in left
