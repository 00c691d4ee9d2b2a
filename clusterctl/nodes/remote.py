"""Connect to many nodes over SSH in parallel, with strict host key checks and exact errors.

Only the cluster's known_hosts has host keys. No code path turns the check off. A key that differs from the recorded
one is refused before any login data is sent.
"""

import errno
import logging
import selectors
import shlex
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm

from clusterctl.inventory.model import Host
from clusterctl.nodes import known_hosts as trusted
from clusterctl.nodes import route
from clusterctl.nodes.parallel import each
from clusterctl.nodes.route import Access as Access
from clusterctl.nodes.route import Route
from clusterctl.nodes.session import ContactError, Failure, Line, Session
from clusterctl.util.text import printable

# Together under 15 s, the time limit for a node that is down, unless more than AT_ONCE are. TCP retransmits after 1 s
# and 3 s.
CONNECT_SECONDS = 6.0
LOGIN_SECONDS = 8.0
# A key exchange costs about 10 ms of CPU here; more of them in parallel would only delay each one.
_handshakes = threading.BoundedSemaphore(64)

# paramiko logs each failure of a node with a traceback on stderr; ContactError replaces that.
logging.getLogger("paramiko").addHandler(logging.NullHandler())
logging.getLogger("paramiko").propagate = False


# --- host keys --------------------------------------------------------------------------------------------------------


def _verify(host: Host, name: str, shown: paramiko.PKey, access: Access) -> None:
    """Raise ContactError unless the key is recorded. `fingerprint` is SHA256, as ssh-keygen -l prints it."""
    accepted, revoked = trusted.keys(access.known_hosts, name)
    new = f"{shown.get_name()} {shown.fingerprint}"
    if any(key.asbytes() == shown.asbytes() for key in revoked):
        raise ContactError(Failure.HOST_KEY_CHANGED, f"its host key is revoked: {new}")
    if any(key.asbytes() == shown.asbytes() for key in accepted):
        return
    if not accepted:
        raise ContactError(
            Failure.HOST_KEY_UNKNOWN,
            f"its host key is not in {access.known_hosts.name}: {new}",
            f"compare it on the node's console ({_show(shown)}), then repeat the command with --accept-new-host-keys",
        )
    old = ", ".join(f"{key.get_name()} {key.fingerprint}" for key in accepted)
    trust = shlex.join(["clusterctl", "trust", str(access.given or access.known_hosts.parent), host.name])
    raise ContactError(
        Failure.HOST_KEY_CHANGED,
        f"its host key differs from the recorded one: old {old}, new {new}",
        f"if the node was reinstalled, compare the new key on its console ({_show(shown)}), then: {trust}",
    )


def _show(key: paramiko.PKey) -> str:
    kind = {"ssh-ed25519": "ed25519", "ssh-rsa": "rsa"}.get(key.get_name(), "ecdsa")
    return f"ssh-keygen -lf /etc/ssh/ssh_host_{kind}_key.pub"


# --- connecting -------------------------------------------------------------------------------------------------------


def _resolve(way: Route) -> list[tuple[socket.AddressFamily, tuple[object, ...]]]:
    """Resolve a name in a separate thread: the resolver has no configurable time limit."""
    found: list[object] = []

    def look_up() -> None:
        try:
            found.append(socket.getaddrinfo(way.address, way.port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            found.append(error)

    thread = threading.Thread(target=look_up, daemon=True)
    thread.start()
    thread.join(CONNECT_SECONDS)
    answer = found[0] if found else None
    if not isinstance(answer, list):
        cause = getattr(answer, "strerror", None) or f"no answer within {CONNECT_SECONDS:.0f} s"
        raise ContactError(
            Failure.UNRESOLVED,
            f"the name {way.address} does not resolve: {cause}",
            "set ansible_host to the host's IP address, or use --address with add-node",
        )
    return [(family, address) for family, _, _, _, address in answer]


def unresolved(hosts: Sequence[Host]) -> list[str]:
    """Return the hosts with a direct TCP connection whose names do not resolve on this machine."""

    def look_up(host: Host) -> bool:
        way = route.of(host)
        try:
            return not way.proxy and "cluster_jump_host" not in host.variables and not _resolve(way)
        except ContactError:
            return True

    return [name for name, unknown in each(hosts, look_up).items() if unknown]


def _open(host: Host, way: Route, access: Access) -> Line:
    if host.jump:
        return Line(_through(host.jump, way, access))
    if way.proxy:
        return Line(*route.open_proxy(way.proxy))
    deadline = time.monotonic() + CONNECT_SECONDS
    addresses = _resolve(way)
    where = f"{way.address} port {way.port}"
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
        return Line(sock)
    if isinstance(last, ConnectionRefusedError):
        raise ContactError(
            Failure.REFUSED, f"{where} refuses the connection", "check that sshd runs and listens on this port"
        )
    if isinstance(last, TimeoutError) or getattr(last, "errno", None) == errno.ETIMEDOUT:
        raise ContactError(
            Failure.SILENT,
            f"no answer from {where} within {CONNECT_SECONDS:.0f} s",
            "check that the node is up, the address is correct and no firewall blocks the connection",
        )
    if getattr(last, "errno", None) in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN):
        raise ContactError(
            Failure.NO_ROUTE,
            f"no route to {where}",
            "check that the node is up and its network is reachable from this machine",
        )
    raise ContactError(Failure.CLOSED, f"no connection to {where}: {last.strerror if last else 'no address'}")


_gateways: dict[tuple[str, Access], "Session | ContactError"] = {}
_gateways_lock = threading.Lock()


def _through(jump: Host, way: Route, access: Access) -> paramiko.Channel:
    """Open a connection through a jump host; one connection to it serves all hosts behind it."""
    with _gateways_lock:
        gateway = _gateways.get((jump.name, access))
        if not isinstance(gateway, Session) or not gateway.transport.is_active():
            if not isinstance(gateway, ContactError):  # a failed jump host is not retried for each host behind it
                try:
                    gateway = connect(jump, access)
                except ContactError as error:
                    gateway = error
            _gateways[jump.name, access] = gateway
    if isinstance(gateway, ContactError):
        raise ContactError(Failure.NO_ROUTE, f"jump host {jump.name} failed: {gateway.found}", gateway.hint)
    where = f"{way.address} port {way.port}"
    try:
        return gateway.transport.open_channel(
            "direct-tcpip", (way.address, way.port), ("127.0.0.1", 0), timeout=CONNECT_SECONDS
        )
    except paramiko.ChannelException as error:
        cause = {1: "it does not allow forwarding (AllowTcpForwarding)", 2: "no connection"}.get(error.code, error.text)
        raise ContactError(Failure.REFUSED, f"{jump.name} cannot reach {where}: {printable(cause, 200)}") from None
    except (paramiko.SSHException, OSError, EOFError):
        raise ContactError(Failure.SILENT, f"{jump.name} gets no answer from {where}") from None


def forget_gateways() -> None:
    """Close the connections to jump hosts."""
    with _gateways_lock:
        for gateway in _gateways.values():
            if isinstance(gateway, Session):
                gateway.close()
        _gateways.clear()


@contextmanager
def _explained(way: Route, line: Line, deadline: float) -> Iterator[None]:
    """Turn errors of paramiko and the socket during the handshake into a ContactError."""
    try:
        yield
    except (paramiko.SSHException, OSError, EOFError) as error:
        where = f"{way.address} port {way.port}"
        if complaint := line.complaint():
            found = f"no connection to {where} through `{printable(way.proxy, 200)}`: {complaint}"
            raise ContactError(Failure.NO_ROUTE, found, "check ~/.ssh/config") from None
        if time.monotonic() >= deadline - 0.2:
            raise ContactError(
                Failure.SILENT,
                f"{where} accepted the connection but did not respond within {LOGIN_SECONDS:.0f} s",
                "check on its console whether the node is overloaded or hung",
            ) from None
        cause = printable(str(error), 200)
        if isinstance(error, paramiko.ssh_exception.IncompatiblePeer):
            raise ContactError(Failure.CLOSED, f"the SSH server at {where} is too old: {cause}") from None
        if "Indecipherable" in cause or "Invalid SSH banner" in cause:
            raise ContactError(Failure.CLOSED, f"{where} is not an SSH server: {cause}") from None
        raise ContactError(
            Failure.CLOSED,
            f"{where} closed the connection during the handshake" + (f": {cause}" if cause else ""),
            "check the node's journal: journalctl -u ssh -u sshd",
        ) from None


@contextmanager
def _turn(way: Route, line: Line) -> Iterator[float]:
    """Wait for the node's banner, then for a slot for the key exchange; yield the deadline of the login.

    A node that sends no banner does not occupy a slot.
    """
    started = time.monotonic()
    with selectors.DefaultSelector() as selector:
        selector.register(line.end, selectors.EVENT_READ)
        greeted = selector.select(LOGIN_SECONDS)
    left = LOGIN_SECONDS - (time.monotonic() - started)
    if not greeted:
        with _explained(way, line, time.monotonic()):
            raise TimeoutError
    with _handshakes:
        yield time.monotonic() + left


def _handshake(way: Route, line: Line, types: Collection[str], deadline: float) -> paramiko.Transport:
    """Do the key exchange, before authentication. Prefer the types of the known host keys, as OpenSSH does."""
    seconds = max(0.1, deadline - time.monotonic())
    with _explained(way, line, deadline):
        transport = paramiko.Transport(line.end)
        transport.banner_timeout = transport.handshake_timeout = transport.auth_timeout = seconds
        options = transport.get_security_options()
        wanted = {*types, *(("rsa-sha2-512", "rsa-sha2-256") if "ssh-rsa" in types else ())}
        options.key_types = sorted(options.key_types, key=lambda offered: offered not in wanted)
        try:
            transport.start_client(timeout=seconds)
            transport.get_remote_server_key()  # raises if the time ran out
        except BaseException:
            transport.close()
            raise
    return transport


def shown_key(host: Host, access: Access, type: str = "") -> paramiko.PKey:
    """Return a host's public key, preferably of `type`, without logging in. Raises ContactError."""
    way = route.of(host)
    with (
        closing(_open(host, way, access)) as line,
        _turn(way, line) as deadline,
        closing(_handshake(way, line, [type], deadline)) as transport,
    ):
        return transport.get_remote_server_key()


def _own_keys(host: Host, way: Route) -> Iterator[paramiko.PKey]:
    """Yield the keys to try: the host's private key file, else those of the agent and of ssh's configuration."""
    if host.private_key_file:
        key = _load(host.private_key_file)
        if key:
            yield key
            return
    if way.agent or host.private_key_file:
        with closing(paramiko.Agent()) as agent:
            yield from agent.get_keys()
    if not host.private_key_file:
        for path in way.keys:
            # ssh's list may have kinds of keys that paramiko does not support.
            with suppress(ContactError):
                if path.is_file() and (key := _load(path)):
                    yield key


def _load(path: Path) -> paramiko.PKey | None:
    """Load a private key; None for a key with a passphrase, which only the agent can use."""
    try:
        return paramiko.PKey.from_path(path)
    except (TypeError, paramiko.PasswordRequiredException):
        return None
    except OSError as error:
        raise ContactError(Failure.AUTHENTICATION, f"the private key {path} cannot be read: {error.strerror}") from None
    except (ValueError, paramiko.SSHException, UnsupportedAlgorithm, paramiko.pkey.UnknownKeyType):
        raise ContactError(Failure.AUTHENTICATION, f"{path} is not a usable private key") from None


def _authenticate(host: Host, way: Route, line: Line, transport: paramiko.Transport, deadline: float) -> None:
    tried: list[str] = []
    refusal = ""
    with _explained(way, line, deadline):
        for key in _own_keys(host, way):
            tried.append(f"{key.get_name()} {key.fingerprint}")
            transport.auth_timeout = max(0.1, deadline - time.monotonic())
            try:
                if not transport.auth_publickey(way.user, key):
                    return
                refusal = "the server requires another authentication step"
            except paramiko.BadAuthenticationType as error:
                refusal = f"the server accepts only {printable(', '.join(error.allowed_types))}"
            except paramiko.AuthenticationException:
                if time.monotonic() >= deadline - 0.2:
                    raise
            if not transport.is_active():
                refusal = "the server then closed the connection"
                break
    found = f"login as {way.user}@{way.address} was refused"
    if not tried:
        raise ContactError(
            Failure.AUTHENTICATION,
            f"{found}: there is no private key to try",
            "set ansible_ssh_private_key_file to a key without a passphrase, or load one into ssh-agent",
        )
    keys = f"{len(tried)} keys ({tried[0]}, ...)" if len(tried) > 1 else f"the key {tried[0]}"
    raise ContactError(
        Failure.AUTHENTICATION,
        f"{found} with {keys}" + (f"; {refusal}" if refusal else ""),
        "add it to that user's authorized_keys on the node, or set ansible_user and ansible_ssh_private_key_file",
    )


_refusals: dict[tuple[str, Access], ContactError] = {}
_accepted: set[tuple[str, Access]] = set()
_logins: defaultdict[tuple[str, Access], threading.Lock] = defaultdict(threading.Lock)


def connect(host: Host, access: Access) -> "Session":
    """Return an authenticated connection, or raise ContactError within 15 seconds. Close it after use (`with`).

    A node that refused the keys is not tried again: some lock an account after a few attempts. A node that accepted
    them before is: while it boots, only root can log in.
    """
    whom = (host.name, access)
    with _logins[whom]:
        if known := _refusals.get(whom):
            raise ContactError(known.failure, known.found, known.hint)
        try:
            session = _connect(host, access)
        except ContactError as error:
            if error.failure is Failure.AUTHENTICATION and whom not in _accepted:
                _refusals[whom] = error
            raise
        _accepted.add(whom)
        return session


def _connect(host: Host, access: Access) -> "Session":
    way = route.of(host)
    line = _open(host, way, access)
    try:
        with _turn(way, line) as deadline:
            accepted, _ = trusted.keys(access.known_hosts, way.name)
            transport = _handshake(way, line, {key.get_name() for key in accepted}, deadline)
            try:
                _verify(host, way.name, transport.get_remote_server_key(), access)
                _authenticate(host, way, line, transport, deadline)
            except BaseException:
                transport.close()
                raise
    except BaseException:
        line.close()
        raise
    return Session(transport, line, way.user, host.become and way.user != "root", access.sudo_password)


# --- running ----------------------------------------------------------------------------------------------------------
