"""Whose host keys are believed: the first contact with a node, and `clusterctl trust` after one was reinstalled."""

from collections.abc import Callable, Sequence

from clusterctl.inventory.model import Host, Inventory
from clusterctl.nodes import known_hosts as trusted
from clusterctl.nodes import route
from clusterctl.nodes.known_hosts import HostKey
from clusterctl.nodes.remote import Access, each, shown_key
from clusterctl.nodes.session import ContactError, Failure
from clusterctl.util.errors import Finding, InputError, PreflightError, Problem

FINGERPRINT = "cluster_host_key"
_TYPES = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ssh-rsa")

Ask = Callable[[Sequence[HostKey]], bool]


def scan(hosts: Sequence[Host], access: Access) -> dict[str, HostKey | ContactError]:
    """Ask each host for its public key, all at once, without logging in.

    Of a host whose fingerprint the inventory gives, the key that has it is looked for among all that the host has.
    """

    def one(host: Host) -> HostKey | ContactError:
        wanted = host.variables.get(FINGERPRINT)
        try:
            for kind in _TYPES if wanted else _TYPES[:1]:
                key = _describe(host, access, kind)
                if key.fingerprint == wanted:
                    break
        except ContactError as error:
            return error
        return key

    return each(hosts, one)


def _describe(host: Host, access: Access, kind: str) -> HostKey:
    key, name = shown_key(host, access, kind), route.of(host).name
    return HostKey(host.name, name, key.get_name(), key.fingerprint, f"{name} {key.get_name()} {key.get_base64()}")


def ensure(inventory: Inventory, access: Access, accept: bool = False, ask: Ask | None = None) -> None:
    """Record the keys of hosts that known_hosts lacks: those that the inventory has the fingerprints of, and others if
    `accept` says so or `ask`, shown the keys, agrees.

    Without any of it nothing is recorded, and preflight names each such host with its fingerprint. An entry that is
    there never changes. Raises PreflightError where a host shows another key than the inventory says.
    """
    new = [host for host in inventory.hosts if not any(trusted.keys(access.known_hosts, route.of(host).name))]
    # Those behind a jump host can be asked once it is known itself.
    for hosts in ([h for h in new if not h.jump], [h for h in new if h.jump]):
        if hosts and (accept or ask or any(FINGERPRINT in host.variables for host in hosts)):
            _record(hosts, access, accept, ask)


def _record(hosts: Sequence[Host], access: Access, accept: bool, ask: Ask | None) -> None:
    found = scan([host for host in hosts if accept or ask or FINGERPRINT in host.variables], access)
    shown = [key for key in found.values() if isinstance(key, HostKey)]  # preflight names those who did not answer
    trusted.add(access.known_hosts, _agreed(hosts, shown, accept, ask))


def _agreed(hosts: Sequence[Host], shown: Sequence[HostKey], accept: bool, ask: Ask | None) -> list[HostKey]:
    """Return the keys that the inventory knows, and those that somebody stands up for."""
    promised = {host.name: str(host.variables[FINGERPRINT]) for host in hosts if FINGERPRINT in host.variables}
    wrong = [key for key in shown if promised.get(key.node, key.fingerprint) != key.fingerprint]
    if wrong:
        raise PreflightError(
            [
                Finding(
                    key.node,
                    Failure.HOST_KEY_CHANGED.value,
                    f"shows {key.type} {key.fingerprint}, and the inventory says {promised[key.node]}",
                    f"compare it on the node's console, then correct {FINGERPRINT}",
                )
                for key in wrong
            ]
        )
    sure = [key for key in shown if key.node in promised]
    rest = [key for key in shown if key.node not in promised]
    return [*sure, *(rest if rest and (accept or (ask and ask(rest))) else ())]


def renew(inventory: Inventory, hosts: Sequence[Host], access: Access, accept: bool, ask: Ask | None) -> list[HostKey]:
    """Put the keys that the hosts show now in the place of those on record; return the ones that changed.

    Raises PreflightError where a host cannot be asked, InputError where there is nobody to ask, and what `ask` raises.
    """
    found = scan(hosts, access)
    silent = [
        Finding(name, error.failure.value, error.found, error.hint)
        for name, error in found.items()
        if isinstance(error, ContactError)
    ]
    if silent:
        raise PreflightError(silent)
    keys = [key for key in found.values() if isinstance(key, HostKey)]
    new = [key for key in keys if key.fingerprint not in recorded(access, key.name)]
    agreed = _agreed(hosts, new, accept, ask)
    if refused := [key for key in new if key not in agreed]:
        listed = ", ".join(f"{key.node} {key.fingerprint}" for key in refused)
        hint = "" if ask else "compare them on the nodes' consoles and give --accept-new-host-keys, or use a terminal"
        raise InputError([Problem(None, "host keys", f"not recorded: {listed}", hint)])
    for key in new:
        trusted.replace(access.known_hosts, key)
    return new


def recorded(access: Access, name: str) -> list[str]:
    """Return the fingerprints on record for a name of known_hosts."""
    return [key.fingerprint for key in trusted.keys(access.known_hosts, name)[0]]
