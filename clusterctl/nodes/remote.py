"""SSH to the nodes before Ansible has its turn: many at once, strict about host keys, and exact about what went wrong.

Host keys are known from the cluster's own known_hosts or not at all; no code path turns the check off, and a key that
is not the recorded one is refused before anything is said about who we are.
"""

import errno
import logging
import selectors
import shlex
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm

from clusterctl.inventory.model import Host
from clusterctl.nodes import known_hosts as trusted
from clusterctl.nodes import route
from clusterctl.nodes.route import Access as Access
from clusterctl.nodes.route import Route
from clusterctl.nodes.session import ContactError, Failure, Line, Session
from clusterctl.util.text import printable

R = TypeVar("R")

# Together under 15 s, so that a node that is down or silent is named by then. TCP sends again after 1 s and 3 s.
CONNECT_SECONDS = 6.0
LOGIN_SECONDS = 8.0
# Key exchange costs this machine some 10 ms of CPU for each node; more of them at once would only make each one late.
_handshakes = threading.BoundedSemaphore(64)

# paramiko logs each failure of a node with a traceback on stderr; ContactError says it instead.
logging.getLogger("paramiko").addHandler(logging.NullHandler())
logging.getLogger("paramiko").propagate = False


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


# --- host keys --------------------------------------------------------------------------------------------------------


def _verify(host: Host, name: str, shown: paramiko.PKey, access: Access) -> None:
    """Refuse a key that is not the recorded one. `fingerprint` is SHA256, as ssh-keygen -l prints it."""
    accepted, revoked = trusted.keys(access.known_hosts, name)
    new = f"{shown.get_name()} {shown.fingerprint}"
    if any(key.asbytes() == shown.asbytes() for key in revoked):
        raise ContactError(Failure.HOST_KEY_CHANGED, f"shows a revoked host key: {new}")
    if any(key.asbytes() == shown.asbytes() for key in accepted):
        return
    if not accepted:
        raise ContactError(
            Failure.HOST_KEY_UNKNOWN,
            f"shows a host key that is not in {access.known_hosts.name}: {new}",
            f"compare it on the node's console ({_show(shown)}), then run again with --accept-new-host-keys",
        )
    old = ", ".join(f"{key.get_name()} {key.fingerprint}" for key in accepted)
    trust = shlex.join(["clusterctl", "trust", str(access.given or access.known_hosts.parent), host.name])
    raise ContactError(
        Failure.HOST_KEY_CHANGED,
        f"shows another host key than the recorded one: old {old}, new {new}",
        f"if the node was reinstalled, compare the new key on its console ({_show(shown)}), then: {trust}",
    )


def _show(key: paramiko.PKey) -> str:
    kind = {"ssh-ed25519": "ed25519", "ssh-rsa": "rsa"}.get(key.get_name(), "ecdsa")
    return f"ssh-keygen -lf /etc/ssh/ssh_host_{kind}_key.pub"


# --- connecting -------------------------------------------------------------------------------------------------------


def _resolve(way: Route) -> list[tuple[socket.AddressFamily, tuple[object, ...]]]:
    """Look a name up in a thread of its own: the resolver knows no time-out that we could set."""
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
        said = getattr(answer, "strerror", None) or f"no answer within {CONNECT_SECONDS:.0f} s"
        raise ContactError(
            Failure.UNRESOLVED,
            f"the name {way.address} does not resolve: {said}",
            "give the host's IP address as ansible_host, or to add-node as --address",
        )
    return [(family, address) for family, _, _, _, address in answer]


def unresolved(hosts: Sequence[Host]) -> list[str]:
    """Return the hosts whose names are not known on this machine, of those that TCP leads to directly."""

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


_gateways: dict[tuple[str, Access], "Session | ContactError"] = {}
_gateways_lock = threading.Lock()


def _through(jump: Host, way: Route, access: Access) -> paramiko.Channel:
    """Open a line through a jump host: one connection to it serves all hosts behind."""
    with _gateways_lock:
        gateway = _gateways.get((jump.name, access))
        if not isinstance(gateway, Session) or not gateway.transport.is_active():
            if not isinstance(gateway, ContactError):  # one that failed is not tried again for each host behind
                try:
                    gateway = connect(jump, access)
                except ContactError as error:
                    gateway = error
            _gateways[jump.name, access] = gateway
    if isinstance(gateway, ContactError):
        raise ContactError(Failure.NO_ROUTE, f"no way through {jump.name}: {gateway.found}", gateway.hint)
    where = f"{way.address} port {way.port}"
    try:
        return gateway.transport.open_channel(
            "direct-tcpip", (way.address, way.port), ("127.0.0.1", 0), timeout=CONNECT_SECONDS
        )
    except paramiko.ChannelException as error:
        said = {1: "it allows no forwarding (AllowTcpForwarding)", 2: "no connection"}.get(error.code, error.text)
        raise ContactError(Failure.REFUSED, f"{jump.name} does not reach {where}: {printable(said, 200)}") from None
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
    """Turn what paramiko and the socket say during the handshake into a ContactError."""
    try:
        yield
    except (paramiko.SSHException, OSError, EOFError) as error:
        where = f"{way.address} port {way.port}"
        if said := line.complaint():
            found = f"no connection to {where} by way of `{printable(way.proxy, 200)}`: {said}"
            raise ContactError(Failure.NO_ROUTE, found, "see ~/.ssh/config") from None
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


@contextmanager
def _turn(way: Route, line: Line) -> Iterator[float]:
    """Wait for the node's greeting, then for a turn at the key exchange; yields the time by which all must be over.

    However many nodes say nothing, none of them keeps another from its turn.
    """
    began = time.monotonic()
    with selectors.DefaultSelector() as selector:
        selector.register(line.end, selectors.EVENT_READ)
        greeted = selector.select(LOGIN_SECONDS)
    left = LOGIN_SECONDS - (time.monotonic() - began)
    if not greeted:
        with _explained(way, line, time.monotonic()):
            raise TimeoutError
    with _handshakes:
        yield time.monotonic() + left


def _handshake(way: Route, line: Line, types: Collection[str], deadline: float) -> paramiko.Transport:
    """Exchange keys, not yet names. Asks first for the types of host key that are known, as OpenSSH does."""
    seconds = max(0.1, deadline - time.monotonic())
    with _explained(way, line, deadline):
        transport = paramiko.Transport(line.end)
        transport.banner_timeout = transport.handshake_timeout = transport.auth_timeout = seconds
        options = transport.get_security_options()
        wanted = {*types, *(("rsa-sha2-512", "rsa-sha2-256") if "ssh-rsa" in types else ())}
        options.key_types = sorted(options.key_types, key=lambda offered: offered not in wanted)
        try:
            transport.start_client(timeout=seconds)
            transport.get_remote_server_key()  # raises where the time ran out
        except BaseException:
            transport.close()
            raise
    return transport


def shown_key(host: Host, access: Access, type: str = "") -> paramiko.PKey:
    """Return the public key that a host shows, one of `type` if it has it, without logging in. Raises ContactError."""
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
            # ssh's own list names kinds of keys that paramiko does not know.
            with suppress(ContactError):
                if path.is_file() and (key := _load(path)):
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
                refusal = "it asks for a further step"
            except paramiko.BadAuthenticationType as error:
                refusal = f"it takes only {printable(', '.join(error.allowed_types))}"
            except paramiko.AuthenticationException:
                if time.monotonic() >= deadline - 0.2:
                    raise
            if not transport.is_active():
                refusal = "it closed the connection after that"
                break
    found = f"{way.user}@{way.address} is not let in"
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


_refusals: dict[tuple[str, Access], ContactError] = {}
_let_in: set[tuple[str, Access]] = set()
_logins: defaultdict[tuple[str, Access], threading.Lock] = defaultdict(threading.Lock)


def connect(host: Host, access: Access) -> "Session":
    """Return an authenticated connection, or raise ContactError within 15 seconds. Close it after use (`with`).

    A node that has refused our key is not asked again, by whatever way: some lock an account after a few times. One
    that has taken it before is: while it boots it lets nobody in but root.
    """
    whom = (host.name, access)
    with _logins[whom]:
        if known := _refusals.get(whom):
            raise ContactError(known.failure, known.found, known.hint)
        try:
            session = _connect(host, access)
        except ContactError as error:
            if error.failure is Failure.AUTHENTICATION and whom not in _let_in:
                _refusals[whom] = error
            raise
        _let_in.add(whom)
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
