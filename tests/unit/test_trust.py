"""Host keys at first contact and after a reinstallation: none is believed that nobody stood up for."""

import io
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import paramiko
import pytest

from clusterctl.inventory.model import Host
from clusterctl.nodes import known_hosts as trusted
from clusterctl.nodes import remote, trust
from clusterctl.nodes.known_hosts import HostKey
from clusterctl.nodes.remote import Access
from clusterctl.run import entry
from clusterctl.ui.screen import Screen
from clusterctl.util.errors import InputError, Interrupted, PreflightError

from .ssh_server import Server, ed25519, host, inventory, known, listening

OLD = "10.0.0.1 ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICS+wsToPfB5V/MKyVe2IANlfOELBO3yJiYhteEeXNYk"


@pytest.fixture
def node(stranger: Server) -> Server:
    return stranger


@pytest.fixture
def access(tmp_path: Path) -> Access:
    return Access(tmp_path / "known_hosts")


def asked(answer: bool, shown: list[HostKey]) -> Callable[[Sequence[HostKey]], bool]:
    def ask(keys: Sequence[HostKey]) -> bool:
        shown.extend(keys)
        return answer

    return ask


def promising(node: Server, fingerprint: str, **changes: Any) -> Host:
    """The node, as an inventory that gives its key's fingerprint has it."""
    one = host(node.port, **changes)
    return replace(one, variables={**one.variables, trust.FINGERPRINT: fingerprint})


@pytest.mark.proves("trust", "New host keys are added to known_hosts; old ones stay.")
def test_new_keys_are_added_and_old_ones_stay(tmp_path: Path, node: Server, access: Access) -> None:
    access.known_hosts.write_text(OLD)  # a person's file: no line break at its end
    cluster = inventory(tmp_path, host(node.port, tmp_path / "id"))
    mask = os.umask(0)
    try:
        trust.ensure(cluster, access, accept=True)
    finally:
        os.umask(mask)
    assert access.known_hosts.read_text() == f"{OLD}\n{known(node.port, *node.host_keys)}"
    assert access.known_hosts.stat().st_mode & 0o777 == 0o600
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith(".")) == []
    remote.connect(cluster.hosts[0], access).close()


@pytest.mark.proves("trust", "A recorded host key is never replaced without `trust`.")
def test_a_recorded_key_is_never_replaced_at_a_contact(tmp_path: Path, node: Server, access: Access) -> None:
    recorded = known(node.port, ed25519(tmp_path / "old"))
    access.known_hosts.write_text(recorded)
    cluster = inventory(tmp_path, host(node.port, tmp_path / "id"))
    trust.ensure(cluster, access, accept=True)
    trusted.add(
        access.known_hosts, [key for key in trust.scan(cluster.hosts, access).values() if isinstance(key, HostKey)]
    )
    assert access.known_hosts.read_text() == recorded


@pytest.mark.proves("trust", "A host key is shown first and recorded only on consent.")
@pytest.mark.parametrize("answer", [True, False])
def test_keys_are_shown_before_they_are_recorded(tmp_path: Path, node: Server, access: Access, answer: bool) -> None:
    shown: list[HostKey] = []
    trust.ensure(inventory(tmp_path, host(node.port)), access, ask=asked(answer, shown))
    assert [(key.node, key.fingerprint) for key in shown] == [("gpu01", node.host_keys[0].fingerprint)]
    assert access.known_hosts.exists() is answer
    assert node.attempts == []


@pytest.mark.proves("trust", "Who declines a host key gets exit 7, and nothing is recorded.")
@pytest.mark.parametrize("verb", ["bootstrap", "trust"])
def test_host_keys__declined__are_not_recorded_and_exit_7(
    tmp_path: Path, node: Server, access: Access, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    for stream in (sys.stdin, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda *_: "n")
    recorded = known(node.port, ed25519(tmp_path / "old")) if verb == "trust" else ""
    access.known_hosts.write_text(recorded)
    told = io.StringIO()
    ask, one = entry.ask_about_keys(Screen(told)), host(node.port)
    with pytest.raises(Interrupted, match="No host key was recorded, and no node was changed") as caught:
        if verb == "trust":
            trust.renew(inventory(tmp_path, one), [one], access, accept=False, ask=ask)
        else:
            trust.ensure(inventory(tmp_path, one), access, ask=ask)
    assert caught.value.exit_code == 7
    assert node.host_keys[0].fingerprint in told.getvalue()
    assert access.known_hosts.read_text() == recorded


def test_without_leave_nothing_is_asked_and_nothing_recorded(tmp_path: Path, node: Server, access: Access) -> None:
    trust.ensure(inventory(tmp_path, host(node.port)), access)
    assert not access.known_hosts.exists()


# --- fingerprints in the inventory ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [0, 1])
def test_a_fingerprint_of_the_inventory_is_leave_enough(tmp_path: Path, access: Access, kind: int) -> None:
    """Whichever of the node's keys it is of."""
    server = Server([ed25519(tmp_path / "host"), paramiko.ECDSAKey.generate()], ed25519(tmp_path / "id"))
    with listening(server.serve) as server.port:
        one = promising(server, server.host_keys[kind].fingerprint, key=tmp_path / "id")
        trust.ensure(inventory(tmp_path, one), access)
        assert access.known_hosts.read_text() == known(server.port, server.host_keys[kind])
        remote.connect(one, access).close()


@pytest.mark.proves("trust", "A host key other than the inventory's fingerprint is refused.")
@pytest.mark.parametrize("accept", [True, False])
def test_another_key_than_the_inventory_says_is_refused(
    tmp_path: Path, node: Server, access: Access, accept: bool
) -> None:
    other = ed25519(tmp_path / "other").fingerprint
    with pytest.raises(PreflightError) as caught:
        trust.ensure(inventory(tmp_path, promising(node, other)), access, accept=accept)
    assert node.host_keys[0].fingerprint in str(caught.value)
    assert other in str(caught.value)
    assert not access.known_hosts.exists()
    assert node.attempts == []


# --- clusterctl trust -------------------------------------------------------------------------------------------------


def renewed(directory: Path, one: Host, access: Access, accept: bool = False, ask: Any = None) -> list[str]:
    return [key.fingerprint for key in trust.renew(inventory(directory, one), [one], access, accept, ask)]


@pytest.mark.proves("trust", "`trust` replaces the old key of exactly that node.")
def test_trust_puts_the_new_key_in_the_place_of_the_old(tmp_path: Path, node: Server, access: Access) -> None:
    name, old = f"[127.0.0.1]:{node.port}", ed25519(tmp_path / "old")
    hashed = f"{paramiko.HostKeys.hash_host(name)} {old.get_name()} {old.get_base64()}\n"
    shared = known(node.port, old).replace(name, f"{name},10.0.0.9")
    access.known_hosts.write_text(f"# ours\n{OLD}\n{hashed}{shared}")
    shown: list[HostKey] = []
    one = host(node.port, tmp_path / "id")
    assert renewed(tmp_path, one, access, ask=asked(True, shown)) == [node.host_keys[0].fingerprint]
    kept = f"10.0.0.9 {old.get_name()} {old.get_base64()}\n"
    assert access.known_hosts.read_text() == f"# ours\n{OLD}\n{kept}{known(node.port, *node.host_keys)}"
    assert len(shown) == 1
    remote.connect(one, access).close()


def test_trust_of_a_key_that_is_on_record_asks_nobody(tmp_path: Path, node: Server, access: Access) -> None:
    access.known_hosts.write_text(known(node.port, *node.host_keys))
    assert renewed(tmp_path, host(node.port), access) == []


@pytest.mark.proves("trust", "`trust` records nothing without consent.")
def test_trust_needs_somebody_who_agrees(tmp_path: Path, node: Server, access: Access) -> None:
    recorded = known(node.port, ed25519(tmp_path / "old"))
    access.known_hosts.write_text(recorded)
    for ask in (None, asked(False, [])):
        with pytest.raises(InputError, match=r"not recorded: gpu01 SHA256:"):
            renewed(tmp_path, host(node.port), access, ask=ask)
    with pytest.raises(PreflightError, match="expected SHA256:"):
        renewed(tmp_path, promising(node, ed25519(tmp_path / "other").fingerprint), access, accept=True)
    assert access.known_hosts.read_text() == recorded
    assert renewed(tmp_path, host(node.port), access, accept=True) == [node.host_keys[0].fingerprint]


def test_trust_names_a_node_that_does_not_answer(tmp_path: Path, access: Access) -> None:
    with pytest.raises(PreflightError, match="gpu01"):
        renewed(tmp_path, host(1), access, accept=True)
