"""A connection to a node and its commands; the reason of a failed connection as data."""

import os
import shlex
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType

import paramiko

from clusterctl.util.errors import ClusterctlError
from clusterctl.util.text import printable, strip_controls

MAX_OUTPUT = 1 << 20
_READY = "clusterctl-ready:"
_PROMPT = "clusterctl-sudo:"


class Failure(Enum):
    """Why a contact failed; the values are check names in messages."""

    UNRESOLVED = "name"
    NO_ROUTE = "route"
    REFUSED = "connection"
    SILENT = "timeout"
    CLOSED = "protocol"
    HOST_KEY_UNKNOWN = "host key unknown"
    HOST_KEY_CHANGED = "host key changed"
    AUTHENTICATION = "login"
    SUDO = "sudo"
    PYTHON = "python"
    REPLY = "reply"


class ContactError(ClusterctlError):
    """A node could not be used over SSH: the kind of failure, the finding, and one hint."""

    def __init__(self, failure: Failure, found: str, hint: str = "") -> None:
        self.failure, self.found, self.hint = failure, found, hint
        super().__init__(f"{found} ({hint})" if hint else found)


@dataclass
class Line:
    """A byte stream to a node's SSH server, and the proxy's process if there is one."""

    end: "socket.socket | paramiko.Channel"
    proxy: "subprocess.Popen[bytes] | None" = None

    def close(self) -> None:
        self.end.close()
        if self.proxy:
            self.proxy.kill()
            self.proxy.wait()

    def complaint(self) -> str:
        """Return the last line of the stderr of a proxy that has ended or is ending."""
        if not self.proxy or not self.proxy.stderr:
            return ""
        with suppress(subprocess.TimeoutExpired):
            self.proxy.wait(1)
        self.proxy.kill()
        os.set_blocking(self.proxy.stderr.fileno(), False)  # a child process may keep the other end open
        lines = (self.proxy.stderr.read(4096) or b"").decode(errors="replace").split("\n")
        return next((printable(line, 200) for line in reversed(lines) if line.strip()), "")


@dataclass
class Session:
    """A connection to a node, logged in as `user`; `becomes`: this user needs sudo to be root."""

    transport: paramiko.Transport
    line: Line = field(repr=False)
    user: str
    becomes: bool
    _password: str | None = field(default=None, repr=False)

    def __enter__(self) -> "Session":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.transport.close()
        self.line.close()

    def run(
        self,
        argv: Sequence[str],
        stdin: str = "",
        root: bool = False,
        timeout: float = 30,
        limit: int = MAX_OUTPUT,
        unset: Sequence[str] = (),
    ) -> tuple[int, str, str]:
        """Run a program on the node and return its exit status, output and errors, without control characters.

        `root` runs it through sudo if needed. A password is sent once, and only when sudo prompts for it. The program
        does not get the variables `unset` of the login's environment; then a missing program exits with 127. Raises
        ContactError if it is refused, the connection ends, the program takes longer than `timeout` seconds or prints
        more than `limit` bytes.
        """
        deadline = time.monotonic() + timeout
        try:
            with closing(self.transport.open_session(timeout=timeout)) as channel:
                without = ["env", *(word for name in unset for word in ("-u", name))] if unset else []
                first = self.start(channel, [*without, *argv], root, deadline)
                with suppress(OSError):  # a program may end before it has read its input
                    channel.sendall(stdin.encode())
                    channel.shutdown_write()
                out = _drain(channel, channel.recv, deadline, limit, first)
                err = _drain(channel, channel.recv_stderr, deadline, limit)
                if not channel.status_event.wait(max(0.1, deadline - time.monotonic())):
                    raise TimeoutError
                return channel.recv_exit_status(), out, err
        except TimeoutError:
            raise ContactError(Failure.REPLY, f"{argv[0]} did not end within {timeout:.0f} s") from None
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise ContactError(Failure.CLOSED, f"the connection ended: {printable(str(error), 200)}") from None

    def start(self, channel: paramiko.Channel, argv: Sequence[str], root: bool, deadline: float) -> bytes:
        """Start a program on a channel and return its output so far; the channel then is its standard input."""
        channel.settimeout(max(0.1, deadline - time.monotonic()))
        if not (root and self.becomes):
            channel.exec_command(shlex.join(argv))
            return b""
        if self._password is None:
            channel.exec_command(shlex.join(["sudo", "-n", "--", *argv]))
            return b""
        # sudo would read any earlier input as the password, so wait until the program has started.
        begin = ["/bin/sh", "-c", f'echo {_READY}; exec "$@"', "sh", *argv]
        channel.exec_command(shlex.join(["sudo", "-S", "-p", _PROMPT, "--", *begin]))
        return self._authorise(channel, self._password, deadline)

    def _authorise(self, channel: paramiko.Channel, password: str, deadline: float) -> bytes:
        out, err, sent = b"", b"", False
        ready, prompt = f"{_READY}\n".encode(), _PROMPT.encode()
        while ready not in out:
            if channel.recv_ready():
                out += channel.recv(1 << 12)
            elif channel.recv_stderr_ready():
                err += channel.recv_stderr(1 << 12)
            elif channel.exit_status_ready():
                lines = [line for line in err.decode(errors="replace").splitlines() if line.strip()]
                cause = printable(lines[-1], 200) if lines else "sudo printed no message"
                raise ContactError(Failure.SUDO, f"{self.user} cannot become root: {cause}")
            elif time.monotonic() > deadline or len(out) + len(err) > MAX_OUTPUT:
                raise TimeoutError
            else:
                time.sleep(0.01)
            if prompt in err:
                if sent:  # only once: some systems lock the account after a few attempts
                    raise ContactError(Failure.SUDO, f"sudo refused the password of {self.user}")
                sent, err = True, err.partition(prompt)[2]
                channel.sendall(f"{password}\n".encode())
        return out.partition(ready)[2]


def _drain(
    channel: paramiko.Channel, receive: Callable[[int], bytes], deadline: float, limit: int, first: bytes = b""
) -> str:
    data = bytearray(first)
    while True:
        channel.settimeout(max(0.01, deadline - time.monotonic()))
        chunk = receive(1 << 15)
        if not chunk:
            break
        data += chunk
        if len(data) > limit:
            raise ContactError(Failure.REPLY, f"the node printed more than {limit} bytes")
    return strip_controls(data.decode("utf-8", "replace"), keep="\n\t")
