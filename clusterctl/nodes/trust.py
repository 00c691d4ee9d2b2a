"""Record host keys: at the first contact with a node, and with `clusterctl trust` after a reinstallation."""

from collections.abc import Callable, Sequence

from clusterctl.inventory.model import Host, Inventory
from clusterctl.inventory.schedulers import LOGIN
from clusterctl.nodes import known_hosts as trusted
from clusterctl.nodes import route
from clusterctl.nodes.known_hosts import HostKey
from clusterctl.nodes.parallel import each
from clusterctl.nodes.remote import Access, shown_key
from clusterctl.nodes.session import ContactError, Failure
from clusterctl.util.errors import Finding, InputError, PreflightError, Problem
from clusterctl.workspace import login_key, secrets

FINGERPRINT = "cluster_host_key"
_KEEPS = "login_keep_host_key"
_PROCESSES = 16  # of `ssh -G`, which each host's route takes once
_TYPES = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ssh-rsa")

Ask = Callable[[Sequence[HostKey]], bool]


def scan(hosts: Sequence[Host], access: Access) -> dict[str, HostKey | ContactError]:
    """Get the public key of each host in parallel, without logging in.

    If the inventory has a host's fingerprint, look for the key with it among all keys of the host.
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
    """Record missing keys of hosts: those with a fingerprint in the inventory, and all with `accept` or after `ask`.

    Otherwise nothing is recorded, and preflight reports each such host with its fingerprint. An existing entry never
    changes. Raises PreflightError if a host's key differs from the inventory's fingerprint.
    """
    for chosen in (inventory.hosts[:1], inventory.hosts):  # ssh's configuration, if it hangs, does so for each host
        each(chosen, route.of, _PROCESSES)
    new = [host for host in inventory.hosts if not any(trusted.keys(access.known_hosts, route.of(host).name))]
    # A host behind a jump host can be reached only after the jump host's key is recorded.
    for hosts in ([h for h in new if not h.jump], [h for h in new if h.jump]):
        if hosts and (accept or ask or any(FINGERPRINT in host.variables for host in hosts)):
            _record(hosts, access, accept, ask)


def add_login_key(inventory: Inventory, access: Access) -> None:
    """Record the key that role login installs on login nodes, beside the key that each of them presents now.

    So a node is accepted before and after its sshd presents the new one. A node without a recorded key is left out.
    Raises PreflightError for a node of which only keys of another type are recorded: ssh would then ask it for its own
    key of this type, which is not recorded.
    """
    nodes = [host for host in inventory.in_group(LOGIN) if host.variables.get(_KEEPS, True)]
    if not nodes or not (inventory.directory / secrets.FILE).exists():
        return
    seed = secrets.values(inventory.directory).get(login_key.SECRET)
    wrong, names = [], []
    for host in nodes:
        name = route.of(host).name
        types = {known.get_name() for known in trusted.keys(access.known_hosts, name)[0]}
        names += [name] * bool(types)
        if types and login_key.TYPE not in types:
            trust = f"clusterctl trust {access.given} {host.name}"
            hint = f"if it has an {login_key.TYPE} key: {trust}; otherwise {_KEEPS}: false"
            found = f"got {', '.join(sorted(types))} in known_hosts, expected {login_key.TYPE}"
            wrong.append(Finding(host.name, "host key", found, hint))
    if wrong:
        raise PreflightError(wrong)
    if seed:
        trusted.add_beside(access.known_hosts, names, login_key.public(seed))


def _record(hosts: Sequence[Host], access: Access, accept: bool, ask: Ask | None) -> None:
    found = scan([host for host in hosts if accept or ask or FINGERPRINT in host.variables], access)
    shown = [key for key in found.values() if isinstance(key, HostKey)]  # preflight reports hosts that did not answer
    trusted.add(access.known_hosts, _agreed(hosts, shown, accept, ask))


def _agreed(hosts: Sequence[Host], shown: Sequence[HostKey], accept: bool, ask: Ask | None) -> list[HostKey]:
    """Return the keys with a fingerprint in the inventory, and those that the user accepts."""
    expected = {host.name: str(host.variables[FINGERPRINT]) for host in hosts if FINGERPRINT in host.variables}
    wrong = [key for key in shown if expected.get(key.node, key.fingerprint) != key.fingerprint]
    if wrong:
        raise PreflightError(
            [
                Finding(
                    key.node,
                    Failure.HOST_KEY_CHANGED.value,
                    f"got {key.type} {key.fingerprint}, expected {expected[key.node]}",
                    f"compare the key on the node's console, then correct {FINGERPRINT}",
                )
                for key in wrong
            ]
        )
    sure = [key for key in shown if key.node in expected]
    rest = [key for key in shown if key.node not in expected]
    return [*sure, *(rest if rest and (accept or (ask and ask(rest))) else ())]


def renew(inventory: Inventory, hosts: Sequence[Host], access: Access, accept: bool, ask: Ask | None) -> list[HostKey]:
    """Replace the recorded keys of the hosts with their current ones; return the changed keys.

    Raises PreflightError if a host does not answer, InputError if keys are not accepted, and what `ask` raises.
    """
    found = scan(hosts, access)
    failed = [
        Finding(name, error.failure.value, error.found, error.hint)
        for name, error in found.items()
        if isinstance(error, ContactError)
    ]
    if failed:
        raise PreflightError(failed)
    keys = [key for key in found.values() if isinstance(key, HostKey)]
    new = [key for key in keys if key.fingerprint not in recorded(access, key.name)]
    agreed = _agreed(hosts, new, accept, ask)
    if refused := [key for key in new if key not in agreed]:
        listed = ", ".join(f"{key.node} {key.fingerprint}" for key in refused)
        hint = "" if ask else "compare them on the nodes' consoles, then use --accept-new-host-keys or a terminal"
        raise InputError([Problem(None, "host keys", f"not recorded: {listed}", hint)])
    for key in new:
        trusted.replace(access.known_hosts, key)
    return new


def recorded(access: Access, name: str) -> list[str]:
    """Return the recorded fingerprints of a name in known_hosts."""
    return [key.fingerprint for key in trusted.keys(access.known_hosts, name)[0]]
