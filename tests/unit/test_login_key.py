"""The SSH host key of login nodes: derived from a secret, and recorded beside the nodes' own keys."""

from pathlib import Path

import paramiko
import pytest

from clusterctl.inventory import model, schema
from clusterctl.nodes import known_hosts, trust
from clusterctl.nodes.remote import Access
from clusterctl.util.errors import PreflightError
from clusterctl.workspace import login_key, secrets
from tests import programs

OWN = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIN/t3w4g45mz1d5/3F5CJZWDB76vqUGCv8ERyRjNm9u7"
INVENTORY = """\
all:
  vars: {cluster_name: aurora}
  children:
    slurm_head: {hosts: {head1: {ansible_host: 10.0.0.10}}}
    slurm_workers: {hosts: {gpu01: {ansible_host: 10.0.0.11}}}
    login: {hosts: {login1: {ansible_host: 10.0.0.20, KEEP}, login2: {ansible_host: 10.0.0.21, KEEP}}}
"""


def test_private__of_a_secret__is_a_key_that_openssh_reads(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(login_key.private("a secret"))
    path.chmod(0o600)
    assert (
        programs.output_of(["ssh-keygen", "-y", "-f", str(path)], 60).split()[:2]
        == login_key.public("a secret").split()
    )
    assert paramiko.Ed25519Key.from_private_key_file(str(path)).get_name() == login_key.TYPE
    assert login_key.private("a secret") == path.read_text()
    assert login_key.private("another") != path.read_text()


def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorded: str, keep: str = "true") -> str:
    """Return known_hosts after the key of the login nodes was added."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    path = tmp_path / "inventory.yaml"
    path.write_text(INVENTORY.replace("KEEP", f"login_keep_host_key: {keep}"))
    (tmp_path / "known_hosts").write_text(recorded)
    secrets.ensure(tmp_path, "aurora")
    trust.add_login_key(model.load(path, schema.load()), Access(tmp_path / "known_hosts"))
    return (tmp_path / "known_hosts").read_text()


@pytest.mark.proves("login", "The key of login nodes is recorded beside their own before they present it.")
def test_add_login_key__beside_the_nodes_own__keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = f"10.0.0.20 {OWN}\n10.0.0.10 {OWN}\n"
    text = added(tmp_path, monkeypatch, recorded)
    shared = login_key.public(secrets.values(tmp_path)[login_key.SECRET])
    assert text == f"{recorded}10.0.0.20 {shared}\n", "login2 was never contacted"
    assert len(known_hosts.keys(tmp_path / "known_hosts", "10.0.0.20")[0]) == 2
    assert added(tmp_path, monkeypatch, text) == text


def test_add_login_key__switched_off__adds_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = f"10.0.0.20 {OWN}\n"
    assert added(tmp_path, monkeypatch, recorded, keep="false") == recorded


@pytest.mark.proves("login", "A login node of which only a key of another type is recorded is refused.")
def test_add_login_key__beside_another_type__is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = paramiko.ECDSAKey.generate()
    with pytest.raises(PreflightError, match="ecdsa-sha2-nistp256 in known_hosts, expected ssh-ed25519"):
        added(tmp_path, monkeypatch, f"10.0.0.20 {other.get_name()} {other.get_base64()}\n")
