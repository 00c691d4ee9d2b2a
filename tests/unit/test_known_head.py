"""The head that a run gives the cluster's secrets is the one that got them before, or somebody stands up for it."""

import contextlib
import io
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import paramiko
import pytest

from clusterctl.nodes import known_head, known_hosts
from clusterctl.nodes.known_hosts import HostKey
from clusterctl.run import context, entry
from clusterctl.run.context import Options, Site
from clusterctl.ui.screen import Screen
from clusterctl.util.errors import InputError, Interrupted
from clusterctl.workspace import hardware, home, secrets

from .test_hardware import NOW, reply

INVENTORY = """\
all:
  vars: {cluster_name: aurora}
  children:
    slurm_head: {hosts: {head1: {ansible_host: ADDRESS}}}
    slurm_workers: {hosts: {gpu01: {ansible_host: 10.0.0.11}}}
"""


class Stream(io.StringIO):
    encoding = "utf-8"


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cluster's directory with secrets, host key and record of its head."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("CLUSTERCTL_VAULT_PASSWORD_FILE", raising=False)
    made = tmp_path / "aurora"
    (made / "hardware").mkdir(parents=True)
    (made / "inventory.yaml").write_text(INVENTORY.replace("ADDRESS", "10.0.0.10"))
    secrets.ensure(made, "aurora")
    shows(made, "10.0.0.10")
    hardware.save(made, hardware.from_reply("head1", reply() | {"gpus": [], "machine_id": "a" * 32}, NOW))
    return made


def shows(directory: Path, name: str) -> None:
    """Have a new host key on record for a name."""
    key = paramiko.ECDSAKey.generate()
    line = f"{name} {key.get_name()} {key.get_base64()}"
    known_hosts.replace(directory / home.KNOWN_HOSTS, HostKey("head1", name, key.get_name(), key.fingerprint, line))


def site(directory: Path, **more: object) -> Site:
    return context.load(replace(Options("bootstrap", directory / "inventory.yaml"), **more))  # type: ignore[arg-type]


def screen() -> Screen:
    return Screen(Stream())


def moves(directory: Path) -> None:
    (directory / "inventory.yaml").write_text(INVENTORY.replace("ADDRESS", "10.9.9.9"))
    known = directory / home.KNOWN_HOSTS
    known.write_text(known.read_text().replace("10.0.0.10", "10.9.9.9"))


def shows_another_key(directory: Path) -> None:
    shows(directory, "10.0.0.10")


def is_another_machine(directory: Path) -> None:
    hardware.save(directory, hardware.from_reply("head1", reply() | {"gpus": [], "machine_id": "b" * 32}, NOW))


CHANGES = {"address": moves, "host key": shows_another_key, "machine id": is_another_machine}


@pytest.mark.proves("secrets", "A head with another address, host key or machine gets no secrets unasked.")
@pytest.mark.parametrize("what", CHANGES)
def test_same_head__directory_names_another__is_refused_without_a_terminal(directory: Path, what: str) -> None:
    entry.keep_head(site(directory), screen())
    entry.require_same_head(site(directory), screen())
    CHANGES[what](directory)
    with pytest.raises(InputError, match=rf"its {what}: .* before, .* now.*\n?.*clusterctl trust .*head1"):
        entry.require_same_head(site(directory), screen())


@pytest.mark.parametrize("what", CHANGES)
def test_same_head__kept_by_an_earlier_clusterctl__still_counts(directory: Path, what: str) -> None:
    entry.keep_head(site(directory), screen())
    secrets.head_file(directory).rename(secrets.old_head_file(directory))
    CHANGES[what](directory)
    with pytest.raises(InputError, match=f"its {what}: .* before, .* now"):
        entry.require_same_head(site(directory), screen())


@pytest.mark.proves("secrets", "--accept-new-host-keys alone gives no other head the secrets.")
@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("verb", ["bootstrap", "add-node", "restore"])
def test_same_head__accept_new_host_keys__is_no_answer(directory: Path, what: str, verb: str) -> None:
    entry.keep_head(site(directory), screen())
    CHANGES[what](directory)
    with pytest.raises(InputError, match=f"its {what}: .* before, .* now"):
        entry.require_same_head(site(directory, verb=verb, accept_new_host_keys=True), screen())


@pytest.mark.proves("secrets", "The head is known by the vault's password, whatever label the directory has.")
def test_same_head__another_label__is_still_refused(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a password file of the user's own, any label opens the secrets."""
    password = tmp_path / "password"
    password.write_bytes(secrets.vault_password_file(directory).read_bytes())
    password.chmod(0o600)
    monkeypatch.setenv("CLUSTERCTL_VAULT_PASSWORD_FILE", str(password))
    entry.keep_head(site(directory), screen())
    sealed = directory / secrets.FILE
    sealed.write_text(sealed.read_text().replace(secrets.label(directory), "aurora-00c0ffee", 1))
    assert secrets.values(directory)
    entry.require_same_head(site(directory), screen())
    moves(directory)
    with pytest.raises(InputError, match=r"its address: .* before"):
        entry.require_same_head(site(directory), screen())
    secrets.forget(directory)  # as a plan does whose copy of the directory had no secrets
    with pytest.raises(InputError, match=r"its address: .* before"):
        entry.require_same_head(site(directory), screen())


@pytest.mark.proves("secrets", "A machine's first run for a head prints its address and host key.")
def test_same_head__first_run_from_this_machine__is_said_once(directory: Path) -> None:
    first, second = screen(), screen()
    entry.require_same_head(site(directory), first)
    entry.keep_head(site(directory), first)
    entry.require_same_head(site(directory), second)
    assert isinstance(first.file, Stream)
    assert isinstance(second.file, Stream)
    text = " ".join(first.file.getvalue().split())
    assert "head1 receives the cluster's secrets from this machine for the first time: 10.0.0.10 port of ssh" in text
    assert known_hosts.keys(directory / home.KNOWN_HOSTS, "10.0.0.10")[0][0].fingerprint in text
    assert second.file.getvalue() == ""


@pytest.mark.proves("untrusted", "A certificate authority in a cluster's known_hosts is refused.")
@pytest.mark.parametrize("line", ["@cert-authority * ssh-ed25519 AAAA", " @cert-authority 10.0.0.10\tssh-rsa AAAA"])
def test_load__certificate_authority_in_known_hosts__is_refused(directory: Path, line: str) -> None:
    """Ansible's ssh would take it for the head's own key, which has not changed."""
    known = directory / home.KNOWN_HOSTS
    known.write_text(f"{known.read_text()}{line}\n")
    with pytest.raises(InputError, match=r"known_hosts:2:1: @cert-authority is not allowed.*delete this line"):
        site(directory)


def test_same_head__of_a_plan__names_the_inventory_that_was_given(directory: Path, tmp_path: Path) -> None:
    """A plan is played on a copy of the directory, which is gone when the message is read."""
    entry.keep_head(site(directory), screen())
    is_another_machine(directory)
    asked = site(directory)
    asked = replace(asked, options=replace(asked.options, given=tmp_path / "as typed.yaml"))
    with pytest.raises(InputError, match=rf"clusterctl trust '{tmp_path}/as typed.yaml' head1"):
        entry.require_same_head(asked, screen())


@pytest.mark.parametrize(("answer", "goes_on"), [("yes", True), ("Y", True), ("", False), ("n", False)])
def test_same_head__terminal__asks(
    directory: Path, monkeypatch: pytest.MonkeyPatch, answer: str, goes_on: bool
) -> None:
    entry.keep_head(site(directory), screen())
    moves(directory)
    for stream in (sys.stdin, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda *_: answer)
    with contextlib.nullcontext() if goes_on else pytest.raises(Interrupted, match="No secrets were sent to"):
        entry.require_same_head(site(directory), screen())


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"new_head": True}, id="--new-head"),
        pytest.param({"verb": "trust", "accept_new_host_keys": True}, id="trust --accept-new-host-keys"),
    ],
)
def test_same_head__operator_has_said_so__is_not_asked(directory: Path, given: dict[str, object]) -> None:
    entry.keep_head(site(directory), screen())
    moves(directory)
    on = screen()
    entry.require_same_head(site(directory, **given), on)
    assert isinstance(on.file, Stream)
    assert "its address: 10.0.0.10 port of ssh before, 10.9.9.9 port of ssh now" in on.file.getvalue()


@pytest.mark.parametrize("change", [lambda path: (path / home.KNOWN_HOSTS).write_text(""), lambda path: None])
def test_same_head__nothing_new__is_not_asked(directory: Path, change: Callable[[Path], object]) -> None:
    """A key that is no longer on record is asked for by preflight."""
    entry.keep_head(site(directory), screen())
    change(directory)
    entry.require_same_head(site(directory), screen())


@pytest.mark.proves("secrets", "A further head in the inventory gets no secrets unasked.")
def test_same_head__directory_names_a_further_one__is_refused(directory: Path) -> None:
    entry.keep_head(site(directory), screen())
    text = (directory / "inventory.yaml").read_text()
    workers = "    kubernetes_workers: {hosts: {w1: {}}}\n"
    further = "    kubernetes_head: {hosts: {evil: {ansible_host: 10.9.9.9}}}\n" + workers
    (directory / "inventory.yaml").write_text(text + further)
    with pytest.raises(InputError, match=r"it is a further head: 10[.]9[.]9[.]9.*clusterctl trust .*evil"):
        entry.require_same_head(site(directory), screen())
    entry.require_same_head(site(directory), screen(), confirmed={"evil"})
    entry.keep_head(site(directory), screen())
    entry.require_same_head(site(directory), screen())


def test_same_head__kept_by_a_release_of_one_head__still_counts(directory: Path) -> None:
    entry.keep_head(site(directory), screen())
    kept = secrets.head_file(directory)
    kept.write_text(json.dumps(json.loads(kept.read_text())[0]))
    entry.require_same_head(site(directory), screen())
    moves(directory)
    with pytest.raises(InputError, match=r"its address: .* before"):
        entry.require_same_head(site(directory), screen())


def test_keep_head__cluster_is_gone__forgets_it(directory: Path) -> None:
    entry.keep_head(site(directory), screen())
    kept = secrets.head_file(directory)
    assert kept.stat().st_mode & 0o777 == 0o600
    assert list(known_head.load(directory)) == ["head1"]
    kept.write_text("{}")
    assert known_head.load(directory) == {}
    secrets.forget(directory)
    assert not kept.exists()


def test_keep_head__home_is_read_only__is_said(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(30, "Read-only file system")

    monkeypatch.setattr(known_head, "save", refuse)
    on = screen()
    entry.keep_head(site(directory), on)
    assert isinstance(on.file, Stream)
    assert "Read-only file system" in on.file.getvalue()
