"""Filter for the proxy of a URL, for programs that cannot have exceptions from a proxy."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import urlsplit


def proxy_of(url: str, proxy: str, exceptions: Iterable[str]) -> str:
    """Return the proxy of a URL, empty if it needs none.

    Exceptions are as in no_proxy (https://pkg.go.dev/golang.org/x/net/http/httpproxy#Config): a name with its
    subdomains, a domain with a leading dot without the name itself, an address, a network, or C(*) for all; a name or
    an address may have a port. localhost and loopback addresses never have a proxy.
    """
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").rstrip("."), parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        host, port = "", None
    never = ("localhost", "127.0.0.0/8", "::1")
    return "" if not proxy or any(_covers(one, host, port) for one in (*never, *exceptions)) else proxy


def _covers(exception: str, host: str, port: int | None) -> bool:
    exception = exception.lower()
    if with_port := re.fullmatch(r"(?:\[(.+)\]|([^:]+)):(\d+)", exception):
        exception = with_port[1] or with_port[2]
        if int(with_port[3]) != port:
            return False
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(exception, strict=False)
    except ValueError:
        # One of both is a name.
        return exception in ("*", host) or host.endswith("." + exception.removeprefix("*").removeprefix("."))


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"proxy_of": proxy_of}
