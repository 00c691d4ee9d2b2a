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
    try:
        found = json.loads(files.read(state / _FILE, LIMIT, state))
        return {str(name): _proof(**one) for name, one in found.items()}
    except (files.UnfitError, ValueError, TypeError, AttributeError, KeyError, RecursionError):
        return {}


def _proof(inputs: dict[str, Any], state: dict[str, str], at: str, notes: list[str], pending: list[str]) -> Proof:
    digests = {name: str(inputs[name]) for name in ("program", "rest", "copy")}
    of_host = HostInputs(dict(inputs["variables"]), **digests)
    return Proof(of_host, dict(state), str(at), tuple(map(str, notes)), tuple(map(str, pending)))


def save(state: Path, proofs: Mapping[str, Proof]) -> None:
    """Store the proofs, in place of all others. Raises InputError."""
    with files.writing(state):
        data = json.dumps({name: asdict(proof) for name, proof in proofs.items()}, indent=1, sort_keys=True)
        files.write_atomically(state / _FILE, f"{data}\n".encode(), replace=True)


def forget(site: Site) -> None:
    """Delete the proofs of the site's hosts. Raises InputError if they cannot be deleted."""
    known, hosts = load(site.state), {host.name for host in site.hosts}
    kept = {name: proof for name, proof in known.items() if name not in hosts}
    # A file that cannot be read is replaced, too: it may be readable later, and then be believed.
    if kept != known or (not known and os.path.lexists(site.state / _FILE)):
        save(site.state, kept)


def add(site: Site, proofs: Mapping[str, Proof]) -> None:
    """Store proofs beside those of other hosts. Errors of writing are ignored: the run itself was good."""
    if proofs:
        with suppress(InputError):
            save(site.state, load(site.state) | dict(proofs))
