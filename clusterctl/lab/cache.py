"""One package cache (apt-cacher-ng) for all labs of a machine: each package is downloaded once."""

import hashlib
import ipaddress
import os
from collections.abc import Callable
from pathlib import Path

from clusterctl.lab import image
from clusterctl.lab.podman import (
    LIMITS,
    container_state,
    podman,
    podman_json,
    remove_containers,
    run_as_root,
    runtime_options,
)

NAME = "clusterctl-cache"
PORT = 3142
DISTRIBUTION = "debian-13"  # of the cache itself
NETWORK = "podman"  # podman's default network


def directory(name: str = "packages") -> Path:
    """Return the directory of cached packages, or of other files that outlive labs. It may be deleted at any time."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "clusterctl" / name


def _image(debian: Callable[[], str]) -> str:
    """Build the cache's image from a Debian node's image, unless it exists."""
    install = (
        "apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "
        "apt-cacher-ng && rm -rf /var/lib/apt/lists/*"
    )
    name = f"localhost/{NAME}:{hashlib.sha256(install.encode()).hexdigest()[:12]}"
    if run_as_root(["podman", "image", "exists", name], check=False).returncode == 0:
        return name
    scratch = f"{NAME}-build-{os.getpid()}"
    try:
        podman(*runtime_options(), "run", "--name", scratch, *LIMITS, debian(), "sh", "-c", install)
        podman("commit", "--quiet", scratch, name)
    finally:
        remove_containers(scratch)
    image.prune(f"localhost/{NAME}:*", keep=name)
    return name


def ensure(debian: Callable[[], str]) -> str:
    """Start the cache unless it runs; return its URL. `debian` returns the image of a Debian node to build from.

    The container uses podman's default network, so names resolve as on the host, independent of the labs.
    """
    address = shared_address(-3)
    if container_state(NAME) != "running":
        remove_containers(NAME)
        _start(debian, address)
    return f"http://{address}:{PORT}"


def shared_address(index: int) -> str:
    """Return the fixed address of a server for all labs, on podman's default network: every lab network reaches it."""
    network = ipaddress.ip_network(podman_json("network", "inspect", NETWORK)[0]["subnets"][0]["subnet"])
    return str(network[index])


def _start(debian: Callable[[], str], address: str) -> None:
    path = directory()
    path.mkdir(parents=True, exist_ok=True)
    upstream = os.environ.get("http_proxy") or os.environ.get("HTTP_PROXY")
    # The packaged configuration redirects Debian's packages to mirrors that it expects as settings.
    settings = [
        "CacheDir: /var/cache/apt-cacher-ng", "LogDir: /var/log/apt-cacher-ng", "SupportDir: /usr/lib/apt-cacher-ng",
        "ExThreshold: 30", "PassThroughPattern: .*:443$", *([f"Proxy: {upstream}"] if upstream else []),
    ]  # fmt: skip
    script = (
        'mkdir -p /etc/lab-cache && printf "%s\\n" "$@" > /etc/lab-cache/acng.conf && '
        "chown -R apt-cacher-ng: /var/cache/apt-cacher-ng && "
        "install -d -o apt-cacher-ng /run/apt-cacher-ng && "
        "exec setpriv --reuid apt-cacher-ng --regid apt-cacher-ng --clear-groups "
        "apt-cacher-ng -c /etc/lab-cache ForeGround=1"
    )
    podman(
        *runtime_options(), "run", "--detach", "--name", NAME, "--label", "clusterctl.lab.cache=1",
        "--network", f"{NETWORK}:ip={address}", *LIMITS,
        "--volume", f"{path}:/var/cache/apt-cacher-ng", _image(debian), "sh", "-c", script, "sh", *settings,
    )  # fmt: skip


def remove() -> None:
    """Remove the cache's container; the packages stay on disk."""
    remove_containers(NAME)
