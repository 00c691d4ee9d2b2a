"""The package cache of a cluster: what is fetched from outside, without the outside, and who is served."""

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
import yaml

from tests.cluster.lab import TestLab, fresh

PORT = 8123
GROUP = "    package_cache: {hosts: {head1: {}}}\n"
SOURCES = "/etc/apt/sources.list.d/debian.sources"
FIRST, SECOND = "busybox-static", "cowsay"
"""Packages that no role installs, and that need no other package that the nodes lack, but perl modules."""


def address(lab: TestLab, node: str) -> str:
    children = yaml.safe_load(lab.inventory.read_text())["all"]["children"]
    return next(
        str(group["hosts"][node]["ansible_host"])
        for group in children.values()
        if "ansible_host" in (group["hosts"].get(node) or {})
    )


def requests(lab: TestLab) -> list[list[str]]:
    """Return the lines of the cache's log: client, method, status, state in the cache, bytes, path."""
    lines = lab.root("head1", "journalctl --sync; journalctl --quiet --output=cat --identifier=package_cache")
    return [line.split() for line in lines.splitlines()]


def packages(found: Sequence[Sequence[str]]) -> dict[str, list[tuple[str, str]]]:
    """Return client and state in the cache of each request of a package."""
    states = defaultdict(list)
    for client, _, status, state, _, path in found:
        if path.endswith(".deb"):
            assert status in ("200", "206"), path
            states[path].append((client, state))
    return states


@contextmanager
def without_outside(lab: TestLab) -> Iterator[None]:
    """Cut the head off from the server that fetches packages for labs."""
    proxy = yaml.safe_load(lab.inventory.read_text())["all"]["vars"]["cluster_package_proxy"]
    route = f"unreachable {urlsplit(proxy).hostname}/32"
    lab.root("head1", f"ip route add {route}")
    try:
        yield
    finally:
        lab.root("head1", f"ip route delete {route}")


def status(lab: TestLab, node: str, path: str, *options: str) -> str:
    """Return the status that the cache answers to a request from a node."""
    url = f"http://{address(lab, 'head1')}:{PORT}{path}"
    words = " ".join(f"'{word}'" for word in (*options, url))
    return lab.root(
        node, f"curl --silent --max-time 20 --output /dev/null --write-out '%{{http_code}}' {words} || true"
    )


@pytest.mark.proves("packages", "With `package_cache`, nodes fetch each package from outside once.")
@pytest.mark.proves("packages", "The package cache serves packages that it has without a connection to the outside.")
@pytest.mark.proves("packages", "The package cache serves only listed servers, only reads, only the cluster.")
@pytest.mark.proves("packages", "`--prune` uninstalls the package cache and restores the nodes' package sources.")
@pytest.mark.timeout(1800)
def test_package_cache__first_bootstrap_to_prune__serves_the_nodes() -> None:
    with fresh("packages", "--gpus", "1") as lab:
        before = {node: lab.root(node, f"cat {SOURCES} 2>/dev/null || true") for node in lab.nodes}
        plain = lab.inventory.read_text()
        lab.inventory.write_text(plain + GROUP)
        lab.run("bootstrap")
        workers = {address(lab, node) for node in ("gpu01", "gpu02")}
        fetched_once(lab, workers)
        assert {client for client, *_ in requests(lab)} == workers, "the head needs its packages before the cache"
        assert f":{PORT}/debian\n" in lab.root("gpu01", f"cat {SOURCES}")
        assert lab.root("head1", f"cat {SOURCES} 2>/dev/null || true") == before["head1"]
        assert lab.root("head1", "systemctl is-active nginx || systemctl is-enabled nginx || true").split() == [
            "inactive",
            "masked",
        ]
        lab.unchanged()

        lab.root("gpu01", f"apt-get update -qq && apt-get install -qq {FIRST}")
        refuses(lab)
        works_offline(lab, workers)

        lab.inventory.write_text(plain)
        lab.run("bootstrap", "--prune")
        for node in lab.nodes:
            assert lab.root(node, f"cat {SOURCES} 2>/dev/null || true") == before[node], node
        lab.root("head1", "! ls /var/cache/nginx/packages /etc/systemd/system/package-cache.service 2>&1")
        assert "masked" not in lab.root("head1", "systemctl is-enabled nginx 2>&1 || true")
        lab.root("gpu01", f"apt-get update -qq && apt-get install -qq {SECOND}")
        lab.unchanged()


def fetched_once(lab: TestLab, workers: set[str]) -> None:
    """See that each package was fetched for one of the workers, and was in the cache for the other."""
    found = packages(requests(lab))
    assert len(found) > 20, "the workers are seen to install packages"
    for path, served in found.items():
        assert [state for _, state in served].count("MISS") == 1, (path, served)
        assert {state for _, state in served} <= {"MISS", "HIT"}, (path, served)
    shared = [path for path, served in found.items() if {client for client, _ in served} == workers]
    assert len(shared) > 20


def refuses(lab: TestLab) -> None:
    index = "/debian/dists/trixie/InRelease"
    assert status(lab, "gpu01", index) == "200"
    assert status(lab, "gpu01", "/example.org/index.html") == "404"
    assert status(lab, "gpu01", "/debian/../../etc/passwd", "--path-as-is") == "400"
    assert status(lab, "gpu01", "/other/%2e%2e/debian/dists/", "--path-as-is") == "404"
    assert status(lab, "gpu01", index, "--request", "POST") == "405"
    proxy = f"http://{address(lab, 'head1')}:{PORT}"
    asked = f"curl --silent --output /dev/null --write-out '%{{http_code}}' --proxy {proxy} http://example.org/"
    assert lab.root("gpu01", asked) == "404"
    # The firewall drops connections from outside of the cluster. The cache itself serves no other address either.
    assert status(lab, "head1", index, "--interface", "127.0.0.1") == "403"
    assert status(lab, "head1", index) == "200"


def works_offline(lab: TestLab, workers: set[str]) -> None:
    time.sleep(61)  # an index is valid for a minute
    with without_outside(lab):
        known = len(requests(lab))
        lab.root("gpu02", f"apt-get update -qq && apt-get install -qq {FIRST}")
        later = requests(lab)[known:]
        assert "STALE" in {state for *_, state, _, path in later if path.endswith("InRelease")}
        assert {state for served in packages(later).values() for _, state in served} == {"HIT"}
        said = lab.root("gpu02", f"apt-get install -qq {SECOND} 2>&1 && exit 1 || true", check=False)
        assert "502" in said
    lab.root("gpu02", f"apt-get install -qq {SECOND}")
