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
    """That a bootstrap was good on a host: what its roles may read here, the node's state after it, and when."""

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
    program = str(inputs.get("program", ""))  # older proofs had it in the rest
    of_host = HostInputs(dict(inputs["variables"]), program, str(inputs["rest"]), str(inputs["copy"]))
    return Proof(of_host, dict(state), str(at), tuple(map(str, notes)), tuple(map(str, pending)))


def save(state: Path, proofs: Mapping[str, Proof]) -> None:
    """Store the proofs, in place of all others. Raises InputError."""
    with files.writing(state):
        data = json.dumps({name: asdict(proof) for name, proof in proofs.items()}, indent=1, sort_keys=True)
        files.write_atomically(state / _FILE, f"{data}\n".encode(), replace=True)


def forget(site: Site) -> None:
    """Delete the proofs of the hosts that a playbook will change. Raises InputError if they cannot be deleted."""
    known, hosts = load(site.state), {host.name for host in site.hosts}
    kept = {name: proof for name, proof in known.items() if name not in hosts}
    if kept != known or (not known and os.path.lexists(site.state / _FILE)):  # one that cannot be read may be, later
        save(site.state, kept)


def restore(site: Site, proofs: Mapping[str, Proof]) -> None:
    """Store proofs besides the others."""
    if proofs:
        with suppress(InputError):  # a full disk is no error: the run itself was good
            save(site.state, load(site.state) | {**proofs})
