"""SSH to the nodes: strict about host keys, exact about what went wrong, and never at the mercy of the other end."""

import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import paramiko
import pytest

from clusterctl.inventory.model import Host
from clusterctl.nodes import known_hosts, parallel, remote, trust
from clusterctl.nodes.remote import Access
from clusterctl.nodes.session import ContactError, Failure, Session

from .ssh_server import Server, ed25519, host, known, listening


@pytest.fixture(scope="module")
def rsa() -> paramiko.PKey:
    return paramiko.RSAKey.generate(2048)


@pytest.fixture(autouse=True)
def _nobodys_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the agent nor ~/.ssh of who runs the tests has a part in them."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


@pytest.fixture
def connect(tmp_path: Path, node: Server) -> Callable[[], Session]:
    return lambda: remote.connect(host(node.port, tmp_path / "id"), Access(tmp_path / "known_hosts"))


def failure(port: int, directory: Path, address: str = "127.0.0.1") -> ContactError:
    """Return how contact fails with a host at a port."""
    one = host(port, directory / "id")
    with pytest.raises(ContactError) as caught:
        remote.connect(type(one)(**{**one.__dict__, "address": address}), Access(directory / "known_hosts")).close()
    return caught.value


def test_a_known_node_runs_what_it_is_told(connect: Callable[[], Session]) -> None:
    with connect() as session:
        assert session.run(["cat"], stdin="to the node") == (0, "to the node", "")
        assert session.run(["sh", "-c", "echo 'a $b' >&2; exit 3"]) == (3, "", "a $b\n")


@pytest.mark.parametrize("unset", [("https_proxy", "HTTPS_PROXY"), ()])
def test_run__without_variables__keeps_the_others(
    connect: Callable[[], Session], monkeypatch: pytest.MonkeyPatch, unset: tuple[str, ...]
) -> None:
    for name in ("https_proxy", "HTTPS_PROXY", "KEPT"):
        monkeypatch.setenv(name, "a value")
    with connect() as session:
        _, out, _ = session.run(["sh", "-c", "echo $https_proxy, $HTTPS_PROXY, $KEPT"], unset=unset)
        assert out == (", , a value\n" if unset else "a value, a value, a value\n")
        assert session.run(["no-such-program"], unset=unset)[0] == 127


def test_a_program_that_does_not_read_its_input_is_judged_by_its_exit(
    node: Server, connect: Callable[[], Session]
) -> None:
    node.program = lambda channel, command: 7
    with connect() as session:
        assert session.run(["exit"], stdin="x" * 10_000_000)[0] == 7


def test_text_from_a_node_has_no_terminal_escapes(connect: Callable[[], Session]) -> None:
    with connect() as session:
        _, out, _ = session.run(["printf", r"\033[2Jwiped\r\n\tkept \377\342\200\256"])
    assert out == "[2Jwiped\n\tkept �"


def test_a_node_cannot_flood_us(connect: Callable[[], Session]) -> None:
    with connect() as session, pytest.raises(ContactError) as caught:
        session.run(["head", "-c", "200000", "/dev/zero"], limit=100_000)
    assert caught.value.failure is Failure.REPLY


def test_a_program_that_hangs_is_given_up(tmp_path: Path, node: Server, connect: Callable[[], Session]) -> None:
    def hang(channel: paramiko.Channel, command: str) -> int:
        channel.sendall(b"one line, then nothing\n")
        time.sleep(60)
        return 0

    node.program = hang
    with connect() as session, pytest.raises(ContactError) as caught:
        session.run(["sleep"], timeout=0.5)
    assert caught.value.failure is Failure.REPLY
    assert "sleep did not end" in str(caught.value)


# --- host keys --------------------------------------------------------------------------------------------------------


@pytest.mark.proves("trust", "A changed host key is refused before any login attempt.")
def test_a_changed_host_key_is_refused_before_we_say_who_we_are(tmp_path: Path, node: Server) -> None:
    old = ed25519(tmp_path / "old")
    (tmp_path / "known_hosts").write_text(known(node.port, old))
    error = failure(node.port, tmp_path)
    assert error.failure is Failure.HOST_KEY_CHANGED
    assert old.fingerprint in error.found
    assert node.host_keys[0].fingerprint in error.found
    assert f"clusterctl trust {tmp_path} gpu01" in error.hint
    assert node.attempts == []


def test_a_changed_host_key__of_a_plan__names_the_inventory_that_was_given(tmp_path: Path, node: Server) -> None:
    """Its known_hosts is that of a copy of the directory, which is gone when the message is read."""
    (tmp_path / "known_hosts").write_text(known(node.port, ed25519(tmp_path / "old")))
    with pytest.raises(ContactError) as caught:
        remote.connect(
            host(node.port, tmp_path / "id"), Access(tmp_path / "known_hosts", given=Path("aurora/inventory.yaml"))
        )
    assert "clusterctl trust aurora/inventory.yaml gpu01" in caught.value.hint


def test_a_revoked_host_key_is_refused_though_it_is_known(tmp_path: Path, node: Server) -> None:
    line = known(node.port, *node.host_keys)
    (tmp_path / "known_hosts").write_text(f"{line}@revoked {line.replace('127.0.0.1', '*')}")
    assert failure(node.port, tmp_path).failure is Failure.HOST_KEY_CHANGED
    assert node.attempts == []


@pytest.mark.proves("trust", "An unknown host key is refused and shown, without a login attempt.")
@pytest.mark.parametrize("line", ["", "# nothing\n", "[127.0.0.1]:{other} {key}\n", "127.0.0.1 {key}\n", "!* {key}\n"])
def test_an_unknown_host_key_is_refused_and_shown(tmp_path: Path, node: Server, line: str) -> None:
    key = f"{node.host_keys[0].get_name()} {node.host_keys[0].get_base64()}"
    (tmp_path / "known_hosts").write_text(line.format(key=key, other=node.port + 1))
    error = failure(node.port, tmp_path)
    assert error.failure is Failure.HOST_KEY_UNKNOWN
    assert node.host_keys[0].fingerprint in error.found
    assert "--accept-new-host-keys" in error.hint
    assert node.attempts == []


@pytest.mark.parametrize("names", ["{name}", "*", "[127.0.0.?]:{port}", "other,{name}", "{hashed}", "!other,*"])
def test_every_way_to_write_a_name_is_understood(tmp_path: Path, node: Server, names: str) -> None:
    name = f"[127.0.0.1]:{node.port}"
    written = names.format(name=name, port=node.port, hashed=paramiko.HostKeys.hash_host(name))
    line = known(node.port, *node.host_keys).replace(name, written)
    junk = "not a line\n[x]:1 ssh-ed25519 !!!\nx ssh-unheard AAAA\n@x * ssh-rsa AAAA\n"
    (tmp_path / "known_hosts").write_text(junk + line)
    with remote.connect(host(node.port, tmp_path / "id"), Access(tmp_path / "known_hosts")) as session:
        assert session.transport.is_authenticated()


def test_the_kind_of_key_that_is_recorded_is_the_one_asked_for(
    tmp_path: Path, node: Server, rsa: paramiko.PKey
) -> None:
    node.host_keys.append(rsa)
    (tmp_path / "known_hosts").write_text(known(node.port, rsa))
    with remote.connect(host(node.port, tmp_path / "id"), Access(tmp_path / "known_hosts")) as session:
        assert session.transport.get_remote_server_key().fingerprint == rsa.fingerprint


# --- what goes wrong --------------------------------------------------------------------------------------------------


@pytest.mark.proves("preflight", "A key that is not authorized is named and tried once.")
def test_a_key_that_is_not_authorized_is_named_and_tried_once(tmp_path: Path, node: Server) -> None:
    node.authorized = None
    error = failure(node.port, tmp_path)
    assert error.failure is Failure.AUTHENTICATION
    assert "ops@127.0.0.1" in error.found
    key = paramiko.Ed25519Key(filename=str(tmp_path / "id"))
    assert key.fingerprint in error.found
    assert set(node.attempts) == {key.fingerprint}
    assert len(node.attempts) <= 2  # one question whether the key would do is a part of the one attempt


def test_a_node_that_has_taken_the_key_is_asked_again_after_it_has_refused_it(
    node: Server, connect: Callable[[], Session]
) -> None:
    connect().close()
    authorized, node.authorized = node.authorized, None  # as while it boots
    with pytest.raises(ContactError, match=r"login as .* was refused"):
        connect()
    node.authorized = authorized
    connect().close()


def test_default_keys_are_tried_where_the_inventory_names_none(tmp_path: Path, node: Server) -> None:
    (tmp_path / ".ssh").mkdir()
    (tmp_path / "id").rename(tmp_path / ".ssh/id_ed25519")
    remote.connect(host(node.port), Access(tmp_path / "known_hosts")).close()


def test_no_key_at_all_is_said(tmp_path: Path, node: Server) -> None:
    with pytest.raises(ContactError, match="there is no private key to try"):
        remote.connect(host(node.port), Access(tmp_path / "known_hosts"))


def test_a_key_with_a_passphrase_needs_the_agent(tmp_path: Path, node: Server) -> None:
    ed25519(tmp_path / "locked", b"secret")
    with pytest.raises(ContactError, match="ssh-agent") as caught:
        remote.connect(host(node.port, tmp_path / "locked"), Access(tmp_path / "known_hosts"))
    assert caught.value.failure is Failure.AUTHENTICATION


@pytest.mark.parametrize("content", [None, b"", b"no key", b"-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n"])
def test_a_private_key_that_cannot_be_used_is_named(tmp_path: Path, node: Server, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "bad").write_bytes(content)
    with pytest.raises(ContactError, match="bad") as caught:
        remote.connect(host(node.port, tmp_path / "bad"), Access(tmp_path / "known_hosts"))
    assert caught.value.failure is Failure.AUTHENTICATION


def test_a_closed_port_refuses(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert failure(port, tmp_path).failure is Failure.REFUSED


@pytest.mark.parametrize("name", ["gpu99.invalid", "gpu..01", "x" * 300])
def test_a_name_that_does_not_resolve(tmp_path: Path, name: str) -> None:
    error = failure(22, tmp_path, name)
    assert (error.failure, error.hint.startswith("set ansible_host to the host's IP address")) == (
        Failure.UNRESOLVED,
        True,
    )


def test_a_hung_sshd_is_told_from_one_that_is_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "LOGIN_SECONDS", 1.0)
    with listening(lambda connection: time.sleep(60)) as port:
        error = failure(port, tmp_path)
    assert error.failure is Failure.SILENT
    assert "accepted the connection" in error.found


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (b"", "closed the connection during the handshake"),
        (b"HTTP/1.0 400 \x1b[31mBad\r\n" * 150, "is not an SSH server"),
        (b"SSH-1.0-old\r\n", "too old"),
        (b"SSH-2.0-x\r\n" + b"\xff" * 4096, "closed the connection during the handshake"),
    ],
)
def test_noise_where_sshd_should_be(tmp_path: Path, said: bytes, expected: str) -> None:
    def answer(connection: socket.socket) -> None:
        with connection:
            connection.sendall(said)
            if said:
                connection.recv(4096)

    with listening(answer) as port:
        error = failure(port, tmp_path)
    assert error.failure is Failure.CLOSED
    assert expected in error.found
    assert error.found.isprintable()


@pytest.mark.proves("preflight", "A hundred and fifty hosts are contacted at once.")
def test_all_hosts_are_asked_at_once(tmp_path: Path) -> None:
    hosts = 150  # more than may exchange keys at once
    together = threading.Barrier(hosts)
    met = []

    def answer(connection: socket.socket) -> None:
        with connection:
            met.append(together.wait(timeout=60))  # nobody is answered before the last has come

    with listening(answer) as port:
        found = trust.scan([host(port, name=f"gpu{n:02}") for n in range(hosts)], Access(tmp_path / "known_hosts"))
        assert {type(said) for said in found.values()} == {ContactError}
    assert len(met) == hosts


def test_keys__of_a_file_that_changes__are_read_again(tmp_path: Path) -> None:
    one, other = ed25519(tmp_path / "a"), ed25519(tmp_path / "b")
    path = tmp_path / "known_hosts"
    assert known_hosts.keys(path, "[127.0.0.1]:1") == ([], [])
    path.write_text(known(1, one))
    assert known_hosts.keys(path, "[127.0.0.1]:1") == ([one], [])
    path.write_text("@revoked " + known(1, one) + known(1, other))
    assert known_hosts.keys(path, "[127.0.0.1]:1") == ([other], [one])
    path.write_text(known(1, one).replace("[127", "!*,[127"))
    assert known_hosts.keys(path, "[127.0.0.1]:1") == ([], [])


@pytest.mark.parametrize(("at_once", "expected"), [(2, 2), (None, 3)])
def test_hosts__as_many_as_asked_for_or_as_files_allow__are_worked_on_at_once(
    monkeypatch: pytest.MonkeyPatch, at_once: int | None, expected: int
) -> None:
    monkeypatch.setattr(parallel, "AT_ONCE", 3)
    busy, most = set[str](), list[int]()

    def work(one: Host) -> None:
        busy.add(one.name)
        time.sleep(0.05)
        most.append(len(busy))
        busy.discard(one.name)

    assert len(parallel.each([host(22, name=f"gpu{n:02}") for n in range(12)], work, at_once)) == 12
    assert max(most) == expected


def test_an_error_in_one_thread_is_not_lost() -> None:
    def work(one: object) -> None:
        raise KeyError("a bug")

    with pytest.raises(KeyError, match="a bug"):
        parallel.each([host(22)], work)
