"""A real SSH server in this process, for what a node may do at the other end of a connection."""

import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import paramiko
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from clusterctl.inventory.model import Host, Inventory
from clusterctl.util.errors import Position

Program = Callable[[paramiko.Channel, str], int]


def shell(channel: paramiko.Channel, command: str) -> int:
    """Run the command on this machine, as sshd would."""
    process = subprocess.Popen(  # noqa: S602 - what sshd does
        command, shell=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    given = b""
    while chunk := channel.recv(1 << 15):
        given += chunk
    out, err = process.communicate(given)
    channel.sendall(out)
    channel.sendall_stderr(err)
    return process.returncode


@dataclass
class Server(paramiko.ServerInterface):
    """Lets `authorized` in and runs `program` for each command; `attempts` are the keys that were offered to it."""

    host_keys: list[paramiko.PKey]
    authorized: paramiko.PKey | None = None
    program: Program = shell
    attempts: list[str] = field(default_factory=list)
    port: int = 0

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        self.attempts.append(key.fingerprint)
        good = self.authorized is not None and key.asbytes() == self.authorized.asbytes()
        return paramiko.common.AUTH_SUCCESSFUL if good else paramiko.common.AUTH_FAILED

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.common.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        threading.Thread(target=self._execute, args=(channel, command.decode()), daemon=True).start()
        return True

    def _execute(self, channel: paramiko.Channel, command: str) -> None:
        # The client speaks after paramiko has told it that its request was accepted, which no program may overtake.
        while not (channel.recv_ready() or channel.eof_received or channel.closed):
            time.sleep(0.005)
        with suppress(OSError, EOFError):
            channel.send_exit_status(self.program(channel, command))
            channel.close()

    def serve(self, connection: socket.socket) -> None:
        transport = paramiko.Transport(connection)
        for key in self.host_keys:
            transport.add_server_key(key)
        with suppress(paramiko.SSHException, EOFError, OSError):
            transport.start_server(server=self)
            channels = []  # paramiko closes a channel that nobody holds
            while transport.is_active():
                channels.append(transport.accept(1))


def ed25519(path: Path, passphrase: bytes = b"") -> paramiko.PKey:
    """Make a key pair at `path`, as ssh-keygen does."""
    encryption = serialization.BestAvailableEncryption(passphrase) if passphrase else serialization.NoEncryption()
    form = serialization.PrivateFormat.OpenSSH
    path.write_bytes(Ed25519PrivateKey.generate().private_bytes(serialization.Encoding.PEM, form, encryption))
    path.chmod(0o600)
    return paramiko.Ed25519Key(filename=str(path), password=passphrase.decode() or None)


@contextmanager
def listening(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """Listen on a port of this machine and answer each connection in a thread; yields the port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def host(port: int, key: Path | None = None, name: str = "gpu01", group: str = "slurm_workers") -> Host:
    """Return a host of an inventory that is served on a port of this machine."""
    variables = {"cluster_name": "aurora"}
    position = Position(Path("inventory.yaml"), 1, 1)
    return Host(name, "127.0.0.1", port, "ops", key, False, frozenset({group}), variables, position)


def inventory(directory: Path, *hosts: Host) -> Inventory:
    """Return an inventory of these hosts in a directory."""
    groups: dict[str, tuple[str, ...]] = {}
    for one in hosts:
        for group in one.groups:
            groups[group] = (*groups.get(group, ()), one.name)
    return Inventory(directory / "inventory.yaml", directory, "aurora", hosts, groups, {"cluster_name": "aurora"})


def known(port: int, *keys: paramiko.PKey) -> str:
    """Return the lines of known_hosts for a server on a port of this machine."""
    return "".join(f"[127.0.0.1]:{port} {key.get_name()} {key.get_base64()}\n" for key in keys)
