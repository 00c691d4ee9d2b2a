"""Look at every node before anything is changed: one list of every problem of every node, each with what to do.

A check is a function that yields findings; the list of checks is at the end of this file's first half, on one screen.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from clusterctl.inventory import slurm_source
from clusterctl.inventory.model import Host, Inventory
from clusterctl.nodes import contact, route
from clusterctl.nodes.contact import Answer, Contact, Facts, lead
from clusterctl.nodes.known_hosts import keys
from clusterctl.nodes.remote import Access, each
from clusterctl.nodes.session import ContactError, Failure
from clusterctl.run import gpu_checks, pruning
from clusterctl.slurm import checks
from clusterctl.util import paths
from clusterctl.util.errors import Finding, PreflightError
from clusterctl.workspace import hardware, secrets
from clusterctl.workspace.hardware import Hardware, of_system

# What our roles' packages unpack to, their index and cache, with room for a first month of logs and metrics.
MIN_ROOT_MB = 5_000
# Packages are downloaded to /var/cache first; journals, the accounting database and metrics grow in /var.
MIN_VAR_MB = 3_000
# systemd, sshd, slurmd and a package transaction fit into this, and nothing else does.
MIN_MEMORY_MB = 512
# Munge refuses messages 300 s apart and logs are read side by side; a synchronised clock is within some ms.
CLOCK_WARN_SECONDS = 1.0
CLOCK_FAIL_SECONDS = 10.0

# By ID and VERSION_ID of os-release; below, as people write them.
SUPPORTED: Mapping[str, Sequence[str]] = {
    "debian": ("12", "13", "testing"),
    "ubuntu": ("22.04", "24.04"),
    "rocky": ("9", "10"),
    "almalinux": ("9", "10"),
    "rhel": ("9", "10"),
    "centos": ("9", "10"),
}
SUPPORTED_TEXT = (
    "Debian 12, 13 and testing, Ubuntu 22.04 and 24.04; Rocky Linux, AlmaLinux, RHEL and CentOS Stream 9 and 10"
)
ARCHITECTURES = ("x86_64", "aarch64")
# Names that installers give, so that two nodes of one name are not yet a mistake; base gives each its own.
COMMON_HOSTNAMES = frozenset({"localhost", "debian", "ubuntu", "rocky", "almalinux", "rhel", "centos"})
UNREACHABLE = frozenset({Failure.UNRESOLVED, Failure.NO_ROUTE, Failure.REFUSED, Failure.SILENT, Failure.CLOSED})
WITHOUT_THEM = "With --skip-unreachable it continues without the workers that do not answer or cannot confine jobs."


def preflight(
    inventory: Inventory,
    access: Access,
    skip_unreachable: bool | None = False,
    hosts: Sequence[Host] | None = None,
    adopt: bool | None = False,
    refused: Mapping[str, ContactError] | None = None,
    new_head: bool | None = False,
) -> Contact:
    """Contact the hosts (default: all) at once and judge them.

    Raises PreflightError with every Finding that is no warning. With `skip_unreachable` workers that cannot be
    reached or cannot confine jobs are left out instead, and so are their facts; the head never is. It is None for a run
    that has no such choice. With `adopt` what clusterctl does not manage is a warning, and nothing at all where it is
    None, for a run that replaces nothing. So it is with `new_head` and a head that has lost what it knew of a cluster's
    jobs. `refused` is as in contact.ask.
    Raises InputError for a hardware record that cannot be used.
    """
    records = hardware.load_all(inventory.directory)
    label = secrets.label(inventory.directory) if (inventory.directory / secrets.FILE).exists() else ""
    asked = inventory.hosts if hosts is None else hosts
    before = refused or {}
    daemons = [name for part in slurm_source.DAEMONS for name in slurm_source.every(inventory, part)]

    def ask(host: Host) -> Answer:
        options = {"network": network_options(host), "slurm": checks.probe_options(inventory, host, daemons)}
        return contact.ask(host, access, options, before.get(host.name))

    answers = each(asked, ask)
    findings = [finding for host in asked for finding in judge(host, answers[host.name], label, adopt)]
    facts = {name: answer.facts for name, answer in answers.items() if answer.facts}
    findings += _clocks(facts, inventory.head.name, records)
    # Hosts that this run leaves alone are known by their records, and get no finding of their own.
    known = {name: record for name, record in records.items() if name in {host.name for host in inventory.hosts}}
    known |= {name: found.hardware for name, found in facts.items()}
    unconfined = {finding.node: finding for finding in checks.confinement(inventory, known)}
    confined = {name: found for name, found in facts.items() if name not in unconfined}
    together = [
        *_whole(inventory, access.known_hosts, facts, known),
        *unconfined.values(),
        *gpu_checks.security(inventory, confined),
        *(() if new_head is None else checks.lost_head(inventory, facts, records, new_head)),
    ]
    findings += [finding for finding in together if finding.node in answers]
    unfit = _unfit(inventory, answers, findings, unconfined)
    skipped = [finding for finding in findings if finding.node in unfit]
    others = [finding for finding in findings if finding.node not in unfit]
    problems = [finding for finding in (others if skip_unreachable else findings) if not finding.warning]
    if problems:
        alone = skip_unreachable is False and all(finding.warning for finding in others)
        raise PreflightError(problems, WITHOUT_THEM if alone else "")
    facts = {name: found for name, found in facts.items() if name not in unfit}
    warnings = tuple(finding for finding in others if finding.warning)
    return Contact(facts, warnings, _differences(records, facts), tuple(skipped))


def _differences(records: Mapping[str, Hardware], facts: Mapping[str, Facts]) -> dict[str, tuple[str, ...]]:
    """Return by host how it differs from its record."""
    compared = {
        name: tuple(hardware.compare(records[name], found.hardware))
        for name, found in facts.items()
        if name in records and not _driven(records[name], found.hardware)
    }
    return {name: lines for name, lines in compared.items() if lines}


def _whole(
    inventory: Inventory, known_hosts: Path, facts: Mapping[str, Facts], known: Mapping[str, Hardware]
) -> Iterator[Finding]:
    """Yield what is wrong with the hosts as one cluster."""
    yield from _machine_ids(known)
    yield from _hostnames(inventory, facts)
    yield from _host_keys(inventory, known_hosts)
    yield from checks.releases(inventory, known)
    yield from checks.offers(inventory, facts)
    yield from checks.sources(inventory, facts)
    yield from checks.job_defaults(inventory, known)
    yield from _unpublished(inventory, known)


def _unfit(
    inventory: Inventory,
    answers: Mapping[str, Answer],
    findings: Iterable[Finding],
    unconfined: Mapping[str, Finding],
) -> set[str]:
    """Return the workers that a run can leave out: those out of reach, and those that cannot confine jobs.

    A worker that has another problem besides, such as a changed host key, still stops the run.
    """
    optional = {name for name in answers if name != inventory.head.name}
    other = {one.node for one in findings if not one.warning and one is not unconfined.get(one.node)}
    unfit = {name for name in optional if any(e.failure in UNREACHABLE for e in answers[name].errors)}
    unfit |= optional & unconfined.keys() - other
    return unfit if unfit != set(answers) else set()  # with no node left there is nothing to continue with


def record(inventory: Inventory, found: Contact, refresh: Collection[str] = ()) -> list[Path]:
    """Write the hardware record of each host that has none, or is named in `refresh`; return the files written.

    So is that of a host whose GPUs had no driver when it was recorded. How GPUs are divided is renewed in every record.
    """

    def due(name: str, facts: Facts) -> bool:
        path = hardware.path_of(inventory.directory, name)
        return name in refresh or not path.exists() or _driven(hardware.load(path), facts.hardware)

    written = [
        hardware.save(inventory.directory, facts.hardware) for name, facts in found.facts.items() if due(name, facts)
    ]
    for name, facts in found.facts.items():
        path = hardware.path_of(inventory.directory, name)
        if path not in written and (now := hardware.renewed(hardware.load(path), facts.hardware)):
            hardware.save(inventory.directory, now)
    return written


def _driven(record: Hardware, found: Hardware) -> bool:
    """Tell whether a node shows GPUs whose record is of a time when no driver did."""
    return bool(found.gpus) and not record.gpus and record.driver_version is None


def network_options(host: Host) -> dict[str, Any]:
    """Return what the inventory says about a host's way to packages, as the probe takes it."""
    variables = host.variables
    return {
        "proxy": variables.get("cluster_package_proxy") or variables.get("cluster_http_proxy") or "",
        "no_proxy": list(variables.get("cluster_no_proxy") or ()),
        "mirrors": dict(variables.get("cluster_package_mirrors") or {}),
    }


# --- one node ---------------------------------------------------------------------------------------------------------


def judge(host: Host, answer: Answer, label: str = "", adopt: bool | None = False) -> Iterator[Finding]:
    """Yield what is wrong with one node, for the cluster of that label (secrets.label); `adopt` as in preflight."""
    name = host.name
    for error in answer.errors:
        yield Finding(name, error.failure.value, error.found, error.hint)
    if answer.release:
        yield from _system(name, *answer.release)
    if answer.facts:
        for check in (_architecture, _disk, _memory, _locks, gpu_checks.gpus):
            yield from check(name, answer.facts)
        if adopt is not None:
            yield from _before(host, answer.facts, label, adopt)
            yield from _unused(host, answer.facts)
            yield from gpu_checks.driver(host, answer.facts)
        yield from _network(host, answer.facts)
        yield from _firewall(host, answer.facts)


def _system(name: str, distribution: str, version: str) -> Iterator[Finding]:
    wanted = SUPPORTED.get(distribution, ())
    if version not in wanted and version.split(".")[0] not in wanted:
        hint = f"supported: {SUPPORTED_TEXT}"
        yield Finding(name, "operating system", f"{distribution} {version} is not supported", hint)


def _architecture(name: str, facts: Facts) -> Iterator[Finding]:
    if facts.hardware.os.architecture not in ARCHITECTURES:
        hint = f"supported: {', '.join(ARCHITECTURES)}"
        yield Finding(name, "architecture", f"{facts.hardware.os.architecture} is not supported", hint)


def _disk(name: str, facts: Facts) -> Iterator[Finding]:
    free = facts.node.free_mb
    for place, least in (("/", MIN_ROOT_MB), ("/var", MIN_VAR_MB)):
        # /var on the file system of / has the same free space to the last MB, and was judged with it.
        if place in free and free[place] < least and (place == "/" or free[place] != free.get("/")):
            yield Finding(name, "disk", f"{free[place]} MB free in {place}", f"at least {least} MB are needed")


def _memory(name: str, facts: Facts) -> Iterator[Finding]:
    if facts.hardware.memory_mb < MIN_MEMORY_MB:
        yield Finding(name, "memory", f"{facts.hardware.memory_mb} MB", f"at least {MIN_MEMORY_MB} MB are needed")


def _network(host: Host, facts: Facts) -> Iterator[Finding]:
    network = facts.node.network
    if network is None:
        return
    if network.name_error:
        resolvers = ", ".join(facts.hardware.nameservers) or "none"
        found = f"{network.name} does not resolve: {network.name_error}"
        yield Finding(host.name, "name resolution", found, f"name servers there: {resolvers}")
        return
    private = bool(host.variables.get("cluster_ca_certificates"))
    for source in network.sources:
        if source.error and "CERTIFICATE_VERIFY_FAILED" in source.error:
            hint = (
                "cluster_ca_certificates will be installed"
                if private
                else "name the authority: cluster_ca_certificates"
            )
            yield Finding(host.name, "package source", f"{source.url}: {source.error}", hint, warning=private)
        elif source.error:
            hint = f"through the proxy {network.proxy}" if network.proxy else "is cluster_http_proxy needed there?"
            if source.error.startswith("HTTP ") and not network.proxy:
                hint = "correct or remove this source on the node"
            yield Finding(host.name, "package source", f"{source.url}: {source.error}", hint)
    if not network.sources:
        yield Finding(host.name, "package source", "none that can be tried is configured", warning=True)


def _locks(name: str, facts: Facts) -> Iterator[Finding]:
    if facts.node.lock_holder:
        yield Finding(name, "package lock", facts.node.lock_holder, "it is waited for up to 300 s", warning=True)


def _before(host: Host, facts: Facts, label: str, adopt: bool) -> Iterator[Finding]:
    """Yield what clusterctl does not manage: what a run would replace stops it, except with `adopt`; the rest stays."""
    name = host.name
    slurm = [what for what in facts.node.before if what.startswith("slurm")]
    if slurm and not {"slurm_head", "slurm_worker"} & set(facts.node.roles):
        found = f"{' and '.join(slurm)} not managed by clusterctl"
        hint = "it is replaced" if adopt else "remove it, or replace it: --adopt"
        yield Finding(name, "slurm", found, hint, warning=adopt)
    if facts.node.cluster and label and facts.node.cluster != label:
        found = f"is the head of another cluster, {facts.node.cluster}"
        hint = (
            "it is taken over"
            if adopt
            else "`clusterctl docs inventory` says how to recover its directory; to take it over: --adopt"
        )
        yield Finding(name, "cluster", found, hint, warning=adopt)
    taken = "containers" if "docker" in host.groups else ""
    if taken in facts.node.before and "docker" not in facts.node.roles:
        found = "containers run under a Docker not managed by clusterctl, whose new configuration restarts them"
        hint = "they are restarted" if adopt else "stop them, or restart them: --adopt"
        yield Finding(name, "docker", found, hint, warning=adopt)
    for what, found in _LEFT_ALONE.items():
        if what in facts.node.before and what != taken:
            yield Finding(name, "found", found, "it is left alone", warning=True)


def _unused(host: Host, facts: Facts) -> Iterator[Finding]:
    for found, hint in pruning.explain(pruning.unused(host, facts.node.roles)):
        yield Finding(host.name, "groups", found, hint, warning=True)


_LEFT_ALONE = {
    "kubelet": "a kubelet runs here, whose pods know nothing of Slurm's jobs",
    "containers": "containers run under Docker, outside of Slurm's jobs",
    "nvidia-uninstall": "an NVIDIA driver from a .run file, which no package manager updates",
}


def _firewall(host: Host, facts: Facts) -> Iterator[Finding]:
    """Where two firewalls filter, a packet has to pass both; the role refuses that as well, later."""
    if facts.node.firewall == "ufw" and host.variables.get("base_firewall", True):
        hint = "let clusterctl do it alone: ufw disable; or keep ufw: base_firewall: false"
        yield Finding(host.name, "firewall", "ufw filters there already", hint)


# --- all nodes together -----------------------------------------------------------------------------------------------


def _clocks(facts: Mapping[str, Facts], head: str, recorded: Collection[str]) -> Iterator[Finding]:
    """Compare clocks with the head's, which the cluster follows; with ours where the head is not asked or still new.

    A node without a record has no time service of ours yet, so that its clock is no reason to stop.
    """
    ours = head not in facts or head not in recorded
    base = (0.0, 0.0) if ours else facts[head].clock
    for name, found in facts.items():
        skew = lead((found.clock[0] - base[1], found.clock[1] - base[0]))
        if name == head and not ours:
            skew = found.skew
        if abs(skew) > CLOCK_WARN_SECONDS:
            way = "ahead of" if skew > 0 else "behind"
            fails = name in recorded and abs(skew) > CLOCK_FAIL_SECONDS and name != head
            hint = (
                "look at chrony there: chronyc tracking" if name in recorded else "it is set right when chrony starts"
            )
            whose = "this machine's" if ours or name == head else f"that of {head}"
            yield Finding(name, "clock", f"{abs(skew):.1f} s {way} {whose}", hint, warning=not fails)


def _machine_ids(known: Mapping[str, Hardware]) -> Iterator[Finding]:
    for identity, names in _same({name: record.machine_id for name, record in known.items()}):
        hint = "one server listed twice, or a clone: rm /etc/machine-id; systemd-machine-id-setup"
        for name in names:
            yield Finding(name, "machine id", f"{identity} is that of {_others(names, name)} too", hint)


def _hostnames(inventory: Inventory, facts: Mapping[str, Facts]) -> Iterator[Finding]:
    own = {name: facts[name].node.hostname.split(".")[0].lower() for name in facts}
    for hostname, names in _same({name: own[name] for name in own if own[name] not in COMMON_HOSTNAMES}):
        for name in names:
            hint = "one server listed twice, or a clone: hostnamectl set-hostname"
            yield Finding(name, "hostname", f"{hostname} is that of {_others(names, name)} too", hint)
    listed = {host.name.split(".")[0].lower(): host.name for host in inventory.hosts}
    for name, hostname in own.items():
        if listed.get(hostname, name) != name:
            found = f"calls itself {hostname}, which the inventory has as another host"
            yield Finding(name, "hostname", found, "are the addresses of the two exchanged?")


def _host_keys(inventory: Inventory, known_hosts: Path) -> Iterator[Finding]:
    fingerprints: dict[str, list[str]] = defaultdict(list)
    for host in inventory.hosts:
        for key in keys(known_hosts, route.of(host).name)[0]:
            fingerprints[key.fingerprint].append(host.name)
    for names in fingerprints.values():
        for name in names if len(set(names)) > 1 else ():
            hint = "a clone can pass for the other; give it its own: rm /etc/ssh/ssh_host_*_key*; ssh-keygen -A"
            yield Finding(
                name, "host key", f"its SSH host key is that of {_others(names, name)} too", hint, warning=True
            )


def _unpublished(inventory: Inventory, known: Mapping[str, Hardware]) -> Iterator[Finding]:
    """Yield what a node's groups ask for and nobody publishes for its system, as roles declare in meta/systems.yml."""
    declared = [
        entry
        for path in sorted(paths.content().glob("roles/*/meta/systems.yml"))
        for entry in yaml.safe_load(path.read_text(encoding="utf-8"))
    ]
    for entry in declared:
        for host in inventory.in_group(entry["group"]):
            names = [entry["unless"]] if isinstance(entry["unless"], str) else entry["unless"]
            systems = [entry["system"]] if isinstance(entry["system"], str) else entry["system"]
            given = any(_is_given(one, name) for one in (host, inventory.head) for name in names)
            if host.name in known and not given and of_system(dict.fromkeys(systems, "it"), known[host.name]):
                hint = f"leave {host.name} out of {entry['group']}, or say where it is: {' or '.join(names)}"
                yield Finding(host.name, entry["group"], entry["lacks"], hint)


def _is_given(host: Host, name: str) -> bool:
    """Return whether the inventory sets a variable of a host, or with `variable.key` a key of it."""
    variable, _, key = name.partition(".")
    value = host.variables.get(variable)
    return bool(value.get(key) if key and isinstance(value, Mapping) else value)


def _same(values: Mapping[str, str]) -> Iterator[tuple[str, list[str]]]:
    names = defaultdict(list)
    for name, value in values.items():
        names[value].append(name)
    return ((value, found) for value, found in names.items() if value and len(found) > 1)


def _others(names: Iterable[str], name: str) -> str:
    return ", ".join(other for other in names if other != name)
