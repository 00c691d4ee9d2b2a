"""Proofs that a bootstrap has nothing to do on a host, in the cluster's directory: run/unchanged.py."""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from clusterctl.run.context import Site
from clusterctl.run.inputs import LIMIT, HostInputs
from clusterctl.util import files
from clusterctl.util.errors import InputError

_FILE = "unchanged.json"


@dataclass(frozen=True)
class Proof:
    """The result of a successful bootstrap on a host: its inputs, the node's state after it, and the time (UTC)."""

    inputs: HostInputs
    state: Mapping[str, str]
    at: str
    notes: tuple[str, ...] = ()
    """Notes about the host, which are repeated by the runs that leave it out."""
    pending: tuple[str, ...] = ()
    """The roles that changed the host in that run: whether they have nothing more to do is not known."""


def load(state: Path) -> dict[str, Proof]:
    """Return the proofs by host, none if the file is missing or damaged."""
    return _read(state)[0]


def are_tested(state: Path) -> bool:
    """Return whether all nodes were tested since a playbook could last change one of Inventory.informed."""
    return _read(state)[1]


def _read(state: Path) -> tuple[dict[str, Proof], bool]:
    try:
        found = json.loads(files.read(state / _FILE, LIMIT, state))
        return {str(name): _proof(**one) for name, one in found["hosts"].items()}, found["tested"] is True
    except (files.UnfitError, ValueError, TypeError, AttributeError, KeyError, RecursionError):
        return {}, False


def _proof(inputs: dict[str, Any], state: dict[str, str], at: str, notes: list[str], pending: list[str]) -> Proof:
    digests = {name: str(inputs[name]) for name in ("program", "rest", "copy")}
    of_host = HostInputs(dict(inputs["variables"]), **digests)
    return Proof(of_host, dict(state), str(at), tuple(map(str, notes)), tuple(map(str, pending)))


def save(state: Path, proofs: Mapping[str, Proof], tested: bool = False) -> None:
    """Store the proofs, in place of all others, and whether all nodes are tested. Raises InputError."""
    content = {"tested": tested, "hosts": {name: asdict(proof) for name, proof in proofs.items()}}
    with files.writing(state):
        data = json.dumps(content, indent=1, sort_keys=True)
        files.write_atomically(state / _FILE, f"{data}\n".encode(), replace=True)


def forget(site: Site) -> None:
    """Delete the proofs of the site's hosts, which a playbook may change. Raises InputError if that is not possible."""
    hosts, (known, tested) = {host.name for host in site.hosts}, _read(site.state)
    kept = {name: proof for name, proof in known.items() if name not in hosts}
    still = tested and hosts.isdisjoint(site.inventory.informed)
    # A file that cannot be read is replaced, too: it may be readable later, and then be believed.
    if (kept, still) != (known, tested) or (not known and os.path.lexists(site.state / _FILE)):
        save(site.state, kept, still)


def add(site: Site, proofs: Mapping[str, Proof], tested: bool = False) -> None:
    """Store proofs beside those of other hosts, and whether all nodes are tested.

    Errors of writing are ignored: the run itself was good.
    """
    if proofs or tested:
        with suppress(InputError):
            save(site.state, load(site.state) | dict(proofs), tested)
