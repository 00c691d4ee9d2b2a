"""Ports of this machine that lead through SSH to ports of a host, with the host keys and jump hosts of all verbs."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

import paramiko

from clusterctl.inventory.model import Host
from clusterctl.nodes.remote import CONNECT_SECONDS, Access, connect
from clusterctl.nodes.session import ContactError, Session
from clusterctl.util.text import printable

LOCAL = "127.0.0.1"
_KEEPALIVE = 30  # seconds; a firewall may forget a connection that is idle


class Tunnel:
    """One connection to a host for all its ports. It is opened again when it is needed and has ended."""

    def __init__(self, host: Host, access: Access, report: Callable[[str], None]) -> None:
        """Connect. Raises ContactError. `report` gets what goes wrong later."""
        self._host, self._access, self._report = host, access, report
        self._lock = threading.Lock()
        self._listeners: list[socket.socket] = []
        self._session = self._connect()

    def __enter__(self) -> "Tunnel":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the ports and the connection, and with it all that goes through it."""
        for listener in self._listeners:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self._session.close()

    def open(self, address: str, port: int) -> int:
        """Return a port of this machine that leads to `address` as the host sees it: the same one if it is free."""
        try:
            listener = socket.create_server((LOCAL, port))
        except OSError:  # in use, or only for root
            listener = socket.create_server((LOCAL, 0))
        self._listeners.append(listener)
        threading.Thread(target=self._accept, args=(listener, address, port), daemon=True).start()
        return int(listener.getsockname()[1])

    def _connect(self) -> Session:
        session = connect(self._host, self._access)
        session.transport.set_keepalive(_KEEPALIVE)
        return session

    def _accept(self, listener: socket.socket, address: str, port: int) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._serve, args=(connection, address, port), daemon=True).start()

    def _serve(self, connection: socket.socket, address: str, port: int) -> None:
        with connection:
            try:
                channel = self._channel(address, port)
            except ContactError as error:
                self._report(f"{self._host.name}: {error.found}")
                return
            except paramiko.ChannelException as error:
                cause = {1: "its SSH server does not allow forwarding (AllowTcpForwarding)", 2: "no connection"}
                found = cause.get(error.code, printable(error.text, 200))
                self._report(f"{self._host.name}: {found} to {address} port {port}")
                return
            except (paramiko.SSHException, OSError, EOFError) as error:
                self._report(f"{self._host.name}: the connection ended: {printable(str(error), 200)}")
                return
            with channel:
                back = threading.Thread(target=_copy, args=(channel, connection), daemon=True)
                back.start()
                _copy(connection, channel)
                back.join()

    def _channel(self, address: str, port: int) -> paramiko.Channel:
        with self._lock:
            if not self._session.transport.is_active():
                self._session.close()
                self._session = self._connect()
            transport = self._session.transport
        return transport.open_channel("direct-tcpip", (address, port), (LOCAL, 0), timeout=CONNECT_SECONDS)


def _copy(source: "socket.socket | paramiko.Channel", target: "socket.socket | paramiko.Channel") -> None:
    """Copy one direction until its end, and then end that direction."""
    with suppress(OSError, EOFError):
        while data := source.recv(1 << 15):
            target.sendall(data)
    with suppress(OSError, EOFError):
        target.shutdown(socket.SHUT_WR)
