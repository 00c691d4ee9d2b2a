"""The SSH route to a node, as OpenSSH reads the user's configuration.

`ssh -G` prints the effective ssh_config of a host. So preflight (paramiko) and Ansible (ssh) use the same name, port,
user, keys and jump hosts.
"""

import os
import re
import shlex
import socket
import subprocess
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from clusterctl.inventory.model import Host
from clusterctl.util.errors import InputError, Problem
from clusterctl.util.text import printable

_SECONDS = 20.0


@dataclass(frozen=True)
class Route:
    """The route to a host.

    `name` is the host's name in known_hosts. `proxy` is a shell command whose input and output are the connection; it
    is empty for a direct TCP connection. `keys` are private keys, tried after those of the `agent`.
    """

    address: str
    port: int
    user: str
    name: str
    keys: tuple[Path, ...] = ()
    agent: bool = True
    proxy: str = ""


@dataclass(frozen=True)
class Access:
    """What all routes have in common: the accepted host keys, and sudo's password, if any."""

    known_hosts: Path
    sudo_password: str | None = field(default=None, repr=False)
    given: Path | None = None
    """The inventory's path as typed, for suggested commands; a plan reads a temporary copy."""


def of(host: Host) -> Route:
    """Return the route to a host. Raises InputError if ssh is missing or its configuration cannot be read."""
    return _route(host.address, host.port, host.user, host.private_key_file)


@cache
def _route(address: str, port: int | None, user: str | None, key: Path | None) -> Route:
    found = _configuration(address, port, user)

    def first(option: str, default: str = "") -> str:
        return found[option][0] if found[option] else default

    target, effective = first("hostname", address), int(first("port", "22"))
    name = first("hostkeyalias") or target.lower()
    return Route(
        address=target,
        port=effective,
        user=first("user"),
        name=name if effective == 22 or found["hostkeyalias"] else f"[{name}]:{effective}",
        keys=(key,) if key else tuple(Path(path).expanduser() for path in found["identityfile"]),
        agent=first("identitiesonly") != "yes" and first("identityagent") != "none",
        proxy=_proxy(first("proxycommand"), first("proxyjump"), target, effective, first("user"), address),
    )


def _configuration(address: str, port: int | None, user: str | None) -> dict[str, list[str]]:
    argv = ["ssh", "-G", "-T", *(["-p", str(port)] if port else []), *(["-l", user] if user else []), "--", address]
    options: Any = {"capture_output": True, "text": True, "errors": "replace", "stdin": subprocess.DEVNULL}
    try:
        done = subprocess.run(argv, check=False, timeout=_SECONDS, **options)
    except FileNotFoundError:
        raise InputError([Problem(None, "ssh", "is not installed on this machine", "install openssh-client")]) from None
    except subprocess.TimeoutExpired:
        raise InputError([Problem(None, "ssh -G", f"took over {_SECONDS:.0f} s; check ~/.ssh/config")]) from None
    if done.returncode:
        cause = printable(next(iter(done.stderr.splitlines()), ""), 200)
        raise InputError([Problem(None, "~/.ssh/config", f"ssh cannot read it: {cause}")])
    found: dict[str, list[str]] = defaultdict(list)
    for line in done.stdout.splitlines():
        option, _, value = line.partition(" ")
        if value != "none" or option == "identityagent":
            found[option].append(value)
    return found


def _proxy(command: str, jump: str, address: str, port: int, user: str, given: str) -> str:
    """Return the shell command of ssh_config(5)'s ProxyCommand, or the equivalent of its ProxyJump."""
    if jump:
        *before, last = jump.split(",")
        whom = re.fullmatch(r"(?:ssh://)?(?:(?P<user>.+)@)?\[?(?P<host>[^\]]+?)\]?(?::(?P<port>\d+))?/?", last)
        if not whom:
            raise InputError([Problem(None, "~/.ssh/config", f"ProxyJump {printable(jump)} is not valid")])
        # The user's known_hosts must have the last hop's key: Ansible's ssh uses the same hop later.
        argv = [
            "ssh",
            "-o",
            "BatchMode=yes",
            "-o",
            "StrictHostKeyChecking=yes",
            *(["-J", ",".join(before)] if before else []),
        ]
        argv += ["-l", whom["user"]] if whom["user"] else []
        argv += ["-p", whom["port"]] if whom["port"] else []
        return shlex.join([*argv, "-W", f"[{address}]:{port}", "--", whom["host"]])
    tokens = {"%": "%", "h": address, "n": given, "p": str(port), "r": user, "d": str(Path.home())}

    def expand(match: re.Match[str]) -> str:
        if match[1] not in tokens:
            raise InputError([Problem(None, "~/.ssh/config", f"ProxyCommand: {match[0]} is not supported")])
        return tokens[match[1]]

    return re.sub("%(.)", expand, command)


def open_proxy(command: str) -> tuple[socket.socket, "subprocess.Popen[bytes]"]:
    """Start a proxy command; return the local end of the connection through it, and the process.

    The process's stderr is a pipe. The process ends when the connection is closed.
    """
    local, remote = socket.socketpair()
    with remote:
        process = subprocess.Popen(
            ["/bin/sh", "-c", f"exec {command}"],
            stdin=remote.fileno(),
            stdout=remote.fileno(),
            stderr=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "SSH_ASKPASS_REQUIRE": "never"},
        )
    return local, process
