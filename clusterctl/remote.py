"""SSH to the nodes before Ansible has its turn: many at once, strict about host keys, and exact about what went wrong.

Host keys are known from the cluster's own known_hosts or not at all; no code path turns the check off, and a key that
is not the recorded one is refused before anything is said about who we are.
"""

import base64
import errno
import fnmatch
import getpass
import hmac
import logging
import os
import shlex
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TypeVar

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm
from paramiko.hostkeys import HostKeyEntry

from clusterctl import home
from clusterctl.errors import ClusterctlError
from clusterctl.inventory import Host, Inventory
from clusterctl.untrusted import printable

R = TypeVar("R")

# Together under 15 s, so that a node that is down or silent is named by then. TCP sends again after 1 s and 3 s.
CONNECT_SECONDS = 6.0
LOGIN_SECONDS = 8.0
MAX_OUTPUT = 1 << 20
# Key exchange costs this machine some 10 ms of CPU for each node; more of them at once would only make each one late.
_handshakes = threading.BoundedSemaphore(64)

# paramiko logs each failure of a node with a traceback on stderr; ContactError says it instead.
logging.getLogger("paramiko").addHandler(logging.NullHandler())
logging.getLogger("paramiko").propagate = False


class Failure(Enum):
    """Why there is no contact, as a user would look for it."""

    UNRESOLVED = "name"
    NO_ROUTE = "route"
    REFUSED = "connection"
    SILENT = "silence"
    CLOSED = "protocol"
    HOST_KEY_UNKNOWN = "host key unknown"
    HOST_KEY_CHANGED = "host key changed"
    AUTHENTICATION = "login"
    SUDO = "sudo"
    PYTHON = "python"
    REPLY = "reply"


class ContactError(ClusterctlError):
    """A node could not be used over SSH: which way it failed, what was found, and one hint."""

    def __init__(self, failure: Failure, found: str, hint: str = "") -> None:
        self.failure, self.found, self.hint = failure, found, hint
        super().__init__(f"{found} ({hint})" if hint else found)


@dataclass(frozen=True)
class HostKey:
    """The public key that a node shows: what a person compares, and the line for known_hosts."""

    node: str
    name: str
    type: str
    fingerprint: str
    line: str


def each(hosts: Sequence[Host], work: Callable[[Host], R]) -> dict[str, R]:
    """Do `work` for all hosts at once and return the results by host name; the first exception is raised at the end.

    One daemon thread per host: a silent one delays nobody, and Ctrl-C waits for none.
    """
    results: dict[str, R] = {}
    errors: list[BaseException] = []

    def one(host: Host) -> None:
        try:
            results[host.name] = work(host)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=one, args=(host,), daemon=True) for host in hosts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return {host.name: results[host.name] for host in hosts}


# --- known hosts ------------------------------------------------------------------------------------------------------


def known_hosts_of(inventory: Inventory) -> Path:
    """Return the cluster's own known_hosts, which Ansible's ssh reads too."""
    return inventory.directory / home.KNOWN_HOSTS


def known_name(host: Host) -> str:
    """Return the name under which known_hosts knows a host: `addr`, or `[addr]:port` for a port other than 22."""
    address = host.address.lower()
    return address if host.port == 22 else f"[{address}]:{host.port}"


def _names(patterns: Iterable[str], name: str) -> bool:
    found = False
    for pattern in patterns:
        if pattern.startswith("|1|"):
            found |= _is_hash_of(pattern, name)
            continue
        if not set(pattern) & set("!*?"):
            found |= pattern.lower() == name
            continue
        # Only * and ? have a meaning. A regular expression of many .* would take for ever to fail.
        if fnmatch.fnmatchcase(name, pattern.lstrip("!").lower().replace("[", "[[]")):
            if pattern.startswith("!"):
                return False
            found = True
    return found


def _is_hash_of(pattern: str, name: str) -> bool:
    """Tell whether `|1|salt|hash` stands for `name`; paramiko's own function raises for what is damaged."""
    try:
        salt, wanted = (base64.b64decode(part) for part in pattern.split("|")[2:])
    except ValueError:
        return False
    return hmac.digest(salt, name.encode(), "sha1") == wanted


def known_keys(known_hosts: Path, name: str) -> tuple[list[paramiko.PKey], list[paramiko.PKey]]:
    """Return the keys that the file has for `name`: the accepted and the revoked ones.

    Lines that OpenSSH would pass over are passed over; certificate authorities are, too, for paramiko knows none.
    """
    lines = home.known_hosts(known_hosts).splitlines()
    accepted: list[paramiko.PKey] = []
    revoked: list[paramiko.PKey] = []
    for line in lines:
        fields = line.split()
        marker = fields.pop(0) if fields and fields[0].startswith("@") else ""
        if len(fields) < 3 or fields[0].startswith("#") or marker not in ("", "@revoked"):
            continue
        if not _names(fields[0].split(","), name):
            continue
        with suppress(paramiko.SSHException, paramiko.hostkeys.InvalidHostKey, ValueError):
            entry = HostKeyEntry.from_line(" ".join(fields[:3]))
            if entry and entry.key:
                (revoked if marker else accepted).append(entry.key)
    return accepted, revoked


def _verify(host: Host, shown: paramiko.PKey, known_hosts: Path) -> None:
    """Refuse a key that is not the recorded one. `fingerprint` is SHA256, as ssh-keygen -l prints it."""
    name = known_name(host)
    accepted, revoked = known_keys(known_hosts, name)
    new = f"{shown.get_name()} {shown.fingerprint}"
    if any(key.asbytes() == shown.asbytes() for key in revoked):
        raise ContactError(Failure.HOST_KEY_CHANGED, f"shows a revoked host key: {new}")
    if any(key.asbytes() == shown.asbytes() for key in accepted):
        return
    if not accepted:
        raise ContactError(
            Failure.HOST_KEY_UNKNOWN,
            f"shows a host key that is not in {known_hosts.name}: {new}",
            f"compare it on the node's console ({_show(shown)}), then run again with --accept-new-host-keys",
        )
    old = ", ".join(f"{key.get_name()} {key.fingerprint}" for key in accepted)
    raise ContactError(
        Failure.HOST_KEY_CHANGED,
        f"shows another host key than the recorded one: old {old}, new {new}",
        f"if the node was reinstalled, compare the new key on its console ({_show(shown)}), forget the old one with "
        f"{shlex.join(['ssh-keygen', '-R', name, '-f', str(known_hosts)])} and run again with --accept-new-host-keys",
    )


def _show(key: paramiko.PKey) -> str:
    kind = {"ssh-ed25519": "ed25519", "ssh-rsa": "rsa"}.get(key.get_name(), "ecdsa")
    return f"ssh-keygen -lf /etc/ssh/ssh_host_{kind}_key.pub"


# --- connecting -------------------------------------------------------------------------------------------------------


def _resolve(host: Host) -> list[tuple[socket.AddressFamily, tuple[object, ...]]]:
    """Look a name up in a thread of its own: the resolver knows no time-out that we could set."""
    found: list[object] = []

    def look_up() -> None:
        try:
            found.append(socket.getaddrinfo(host.address, host.port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            found.append(error)

    thread = threading.Thread(target=look_up, daemon=True)
    thread.start()
    thread.join(CONNECT_SECONDS)
    answer = found[0] if found else None
    if not isinstance(answer, list):
        said = getattr(answer, "strerror", None) or f"no answer within {CONNECT_SECONDS:.0f} s"
        raise ContactError(
            Failure.UNRESOLVED,
            f"the name {host.address} does not resolve: {said}",
            "give the host's IP address as ansible_host",
        )
    return [(family, address) for family, _, _, _, address in answer]


def _open(host: Host) -> socket.socket:
    deadline = time.monotonic() + CONNECT_SECONDS
    addresses = _resolve(host)
    where = f"{host.address} port {host.port}"
    last: OSError | None = None
    for index, (family, address) in enumerate(addresses):
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.settimeout(max(0.5, (deadline - time.monotonic()) / (len(addresses) - index)))
        try:
            sock.connect(address)
        except OSError as error:
            sock.close()
            last = error
            continue
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return sock
    if isinstance(last, ConnectionRefusedError):
        raise ContactError(Failure.REFUSED, f"{where} refuses the connection", "is sshd running, and on this port?")
    if isinstance(last, TimeoutError) or getattr(last, "errno", None) == errno.ETIMEDOUT:
        raise ContactError(
            Failure.SILENT,
            f"no answer from {where} within {CONNECT_SECONDS:.0f} s",
            "is the node up, the address right, and no firewall between?",
        )
    if getattr(last, "errno", None) in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN):
        raise ContactError(
            Failure.NO_ROUTE, f"no route to {where}", "is the node up, and its network reachable from here?"
        )
    raise ContactError(Failure.CLOSED, f"no connection to {where}: {last.strerror if last else 'no address'}")


@contextmanager
def _explained(host: Host, deadline: float) -> Iterator[None]:
    """Turn what paramiko and the socket say during the handshake into a ContactError."""
    try:
        yield
    except (paramiko.SSHException, OSError, EOFError) as error:
        where = f"{host.address} port {host.port}"
        if time.monotonic() >= deadline - 0.2:
            raise ContactError(
                Failure.SILENT,
                f"{where} took the connection and said nothing more within {LOGIN_SECONDS:.0f} s",
                "is the node overloaded or hung?",
            ) from None
        said = printable(str(error), 200)
        if isinstance(error, paramiko.ssh_exception.IncompatiblePeer):
            raise ContactError(Failure.CLOSED, f"{where} speaks an SSH too old for us: {said}") from None
        if "Indecipherable" in said or "Invalid SSH banner" in said:
            raise ContactError(Failure.CLOSED, f"what answers at {where} is no SSH server: {said}") from None
        raise ContactError(
            Failure.CLOSED,
            f"{where} closed the connection during the handshake" + (f": {said}" if said else ""),
            "look at the node's journal: journalctl -u ssh -u sshd",
        ) from None


def _handshake(host: Host, sock: socket.socket, known: Sequence[paramiko.PKey], deadline: float) -> paramiko.Transport:
    """Exchange keys, not yet names. Asks for key types that we know of the host first, as OpenSSH does."""
    seconds = deadline - time.monotonic()
    with _explained(host, deadline):
        transport = paramiko.Transport(sock)
        transport.banner_timeout = transport.handshake_timeout = transport.auth_timeout = seconds
        options = transport.get_security_options()
        types = {key.get_name() for key in known}
        types |= {"rsa-sha2-512", "rsa-sha2-256"} if "ssh-rsa" in types else set()
        options.key_types = sorted(options.key_types, key=lambda offered: offered not in types)
        try:
            transport.start_client(timeout=seconds)
            transport.get_remote_server_key()  # raises where the time ran out
        except BaseException:
            transport.close()
            raise
    return transport


def _own_keys(host: Host) -> Iterator[paramiko.PKey]:
    """Yield the keys to try: the host's private key file, else those of the agent and ~/.ssh/id_*, as ssh does."""
    if host.private_key_file:
        key = _load(host.private_key_file)
        if key:
            yield key
            return
    with closing(paramiko.Agent()) as agent:
        yield from agent.get_keys()
        if not host.private_key_file:
            for name in ("id_ed25519", "id_ecdsa", "id_rsa"):
                path = Path("~/.ssh", name).expanduser()
                key = _load(path) if path.is_file() else None
                if key:
                    yield key


def _load(path: Path) -> paramiko.PKey | None:
    """Load a private key; None for one with a passphrase, which only the agent can use."""
    try:
        return paramiko.PKey.from_path(path)
    except (TypeError, paramiko.PasswordRequiredException):
        return None
    except OSError as error:
        raise ContactError(Failure.AUTHENTICATION, f"the private key {path} cannot be read: {error.strerror}") from None
    except (ValueError, paramiko.SSHException, UnsupportedAlgorithm, paramiko.pkey.UnknownKeyType):
        raise ContactError(Failure.AUTHENTICATION, f"{path} is no private key that can be used") from None


def _authenticate(host: Host, transport: paramiko.Transport, deadline: float) -> None:
    user = host.user or getpass.getuser()
    tried: list[str] = []
    refusal = ""
    with _explained(host, deadline):
        for key in _own_keys(host):
            tried.append(f"{key.get_name()} {key.fingerprint}")
            transport.auth_timeout = max(0.1, deadline - time.monotonic())
            try:
                if not transport.auth_publickey(user, key):
                    return
                refusal = "it asks for a further step"
            except paramiko.BadAuthenticationType as error:
                refusal = f"it takes only {printable(', '.join(error.allowed_types))}"
            except paramiko.AuthenticationException:
                if time.monotonic() >= deadline - 0.2:
                    raise
            if not transport.is_active():
                refusal = "it closed the connection after that"
                break
    found = f"{user}@{host.address} is not let in"
    if not tried:
        raise ContactError(
            Failure.AUTHENTICATION,
            f"{found}: there is no key to try",
            "set ansible_ssh_private_key_file to a key without a passphrase, or load one into ssh-agent",
        )
    keys = f"{len(tried)} keys ({tried[0]}, ...)" if len(tried) > 1 else f"the key {tried[0]}"
    raise ContactError(
        Failure.AUTHENTICATION,
        f"{found} with {keys}" + (f"; {refusal}" if refusal else ""),
        "put it into that user's authorized_keys there, or set ansible_user and ansible_ssh_private_key_file",
    )


def connect(host: Host, known_hosts: Path) -> paramiko.Transport:
    """Return an authenticated connection, or raise ContactError within 15 seconds. Close it after use (`with`)."""
    sock = _open(host)
    with _handshakes:
        deadline = time.monotonic() + LOGIN_SECONDS
        accepted, _ = known_keys(known_hosts, known_name(host))
        transport = _handshake(host, sock, accepted, deadline)
        try:
            _verify(host, transport.get_remote_server_key(), known_hosts)
            _authenticate(host, transport, deadline)
        except BaseException:
            transport.close()
            raise
    return transport


# --- running ----------------------------------------------------------------------------------------------------------


def run(
    transport: paramiko.Transport,
    argv: Sequence[str],
    stdin: str = "",
    become: bool = False,
    timeout: float = 30,
    limit: int = MAX_OUTPUT,
) -> tuple[int, str, str]:
    """Run a program on the node and return its exit status, output and errors, without control characters.

    `become` runs it through `sudo -n`, which never asks. Raises ContactError where the connection ends, the program
    takes longer than `timeout` seconds or says more than `limit` bytes.
    """
    command = shlex.join(["sudo", "-n", "--", *argv] if become else argv)
    deadline = time.monotonic() + timeout
    try:
        with closing(transport.open_session(timeout=timeout)) as channel:
            channel.settimeout(timeout)
            channel.exec_command(command)
            with suppress(OSError):  # a program that ends before it has read its input is judged by its exit status
                channel.sendall(stdin.encode())
                channel.shutdown_write()
            out = _drain(channel, channel.recv, deadline, limit)
            err = _drain(channel, channel.recv_stderr, deadline, limit)
            if not channel.status_event.wait(max(0.1, deadline - time.monotonic())):
                raise TimeoutError
            return channel.recv_exit_status(), out, err
    except TimeoutError:
        raise ContactError(Failure.REPLY, f"{argv[0]} did not end within {timeout:.0f} s") from None
    except (paramiko.SSHException, OSError, EOFError) as error:
        raise ContactError(Failure.CLOSED, f"the connection ended: {printable(str(error), 200)}") from None


def _drain(channel: paramiko.Channel, receive: Callable[[int], bytes], deadline: float, limit: int) -> str:
    data = bytearray()
    while True:
        channel.settimeout(max(0.01, deadline - time.monotonic()))
        chunk = receive(1 << 15)
        if not chunk:
            break
        data += chunk
        if len(data) > limit:
            raise ContactError(Failure.REPLY, f"the node says more than {limit} bytes")
    text = data.decode("utf-8", "replace")
    return "".join(c for c in text if c.isprintable() or c in "\n\t")


# --- first contact ----------------------------------------------------------------------------------------------------


def scan_host_keys(hosts: Sequence[Host]) -> list[HostKey]:
    """Ask each host for its public key, all at once, without logging in; hosts that cannot be reached are left out."""

    def scan(host: Host) -> HostKey | None:
        try:
            sock = _open(host)
            with _handshakes, closing(_handshake(host, sock, [], time.monotonic() + LOGIN_SECONDS)) as transport:
                key = transport.get_remote_server_key()
        except ContactError:
            return None  # preflight names it, beside everything else
        name = known_name(host)
        return HostKey(host.name, name, key.get_name(), key.fingerprint, f"{name} {key.get_name()} {key.get_base64()}")

    return [key for key in each(hosts, scan).values() if key]


def accept_new_host_keys(inventory: Inventory, keys: Sequence[HostKey]) -> None:
    """Add keys to the cluster's known_hosts: whole or not at all, 0600; a name that has an entry keeps it."""
    path = known_hosts_of(inventory)
    new = [key.line for key in keys if not any(known_keys(path, key.name))]
    if not new:
        return
    old = home.known_hosts(path)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        try:
            file.write(old + ("\n" if old and not old.endswith("\n") else "") + "\n".join(dict.fromkeys(new)) + "\n")
            file.flush()
            os.fsync(file.fileno())
            Path(file.name).replace(path)  # NamedTemporaryFile made it 0600, whatever the umask
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def ensure_host_keys(
    inventory: Inventory, accept: bool = False, ask: Callable[[Sequence[HostKey]], bool] | None = None
) -> None:
    """Record the keys of hosts that known_hosts lacks, if `accept` says so or `ask`, shown the keys, agrees.

    Without either nothing is recorded, and preflight names each such host with its fingerprint. An entry that is
    there never changes.
    """
    path = known_hosts_of(inventory)
    new = [host for host in inventory.hosts if not any(known_keys(path, known_name(host)))]
    if not new or not (accept or ask):
        return
    keys = scan_host_keys(new)
    if keys and (accept or (ask and ask(keys))):
        accept_new_host_keys(inventory, keys)
