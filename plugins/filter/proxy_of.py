"""Filter for the proxy of a URL, for programs that cannot have exceptions from a proxy."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import urlsplit


def proxy_of(url: str, proxy: str, exceptions: Iterable[str]) -> str:
    """Return the proxy of a URL, empty if it needs none.

    Exceptions are as in no_proxy (https://pkg.go.dev/golang.org/x/net/http/httpproxy#Config): a name with its
    subdomains, a domain with a leading dot without the name itself, an address, a network, or C(*) for all. localhost
    and loopback addresses never have a proxy.
    """
    host = (urlsplit(url).hostname or "").rstrip(".")
    return (
        ""
        if not proxy or any(_covers(one, host) for one in ("localhost", "127.0.0.0/8", "::1", *exceptions))
        else proxy
    )


def _covers(exception: str, host: str) -> bool:
    exception = exception.lower()
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
