"""Work for many hosts in parallel."""

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from clusterctl.inventory.model import Host

R = TypeVar("R")

AT_ONCE = 256
"""Nodes that are contacted at the same time. Each needs two open files here, and a process often may have 1024."""


def each(hosts: Sequence[Host], work: Callable[[Host], R], at_once: int | None = None) -> dict[str, R]:
    """Do `work` for all hosts, `at_once` (default: AT_ONCE) in parallel; return the results by host name.

    Raises the first exception at the end. One daemon thread per host: one that does not respond does not delay Ctrl-C.
    """
    results, errors = dict[str, R](), list[BaseException]()
    slots = threading.BoundedSemaphore(at_once or AT_ONCE)

    def one(host: Host) -> None:
        try:
            with slots:
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
