"""Check all nodes before anything changes: one list of all problems of all nodes, each with a hint.

A check is a function that yields findings. `_whole` and `evaluate` list the checks.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from clusterctl.inventory import slurm_source
from clusterctl.inventory.model import Host, Inventory
from clusterctl.kubernetes import checks as kubernetes_checks
from clusterctl.nodes import contact, prometheus, route
from clusterctl.nodes.contact import Answer, Contact, Facts, lead
from clusterctl.nodes.known_hosts import keys
from clusterctl.nodes.remote import Access
from clusterctl.nodes.session import ContactError
from clusterctl.run import gpu_checks, mount_checks, pruning, sleeping, system_checks
from clusterctl.slurm import checks
from clusterctl.util.errors import Finding, PreflightError
from clusterctl.util.text import fold
from clusterctl.workspace import hardware, secrets
from clusterctl.workspace.hardware import Hardware

# The unpacked packages of all roles, their index and cache, and a first month of logs and metrics.
MIN_ROOT_MB = 5_000
# Packages are downloaded to /var/cache first; journals, the accounting database and metrics grow in /var.
MIN_VAR_MB = 3_000
# Enough for systemd, sshd, slurmd and a package transaction, and for nothing else.
MIN_MEMORY_MB = 512
# Munge refuses messages that are 300 s apart, and logs of several nodes are compared. NTP is accurate to some ms.
CLOCK_WARN_SECONDS = 1.0
CLOCK_FAIL_SECONDS = 10.0

CACHE = "package_cache"
# By ID and VERSION_ID of os-release.
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
# Default names of installers: two nodes with one of them are no error, because role base sets the hostname.
COMMON_HOSTNAMES = frozenset({"localhost", "debian", "ubuntu", "rocky", "almalinux", "rhel", "centos"})
WITHOUT_THEM = (
    "With --skip-unreachable the run continues without nodes that do not respond, that cannot confine jobs, "
    "or whose file server does not respond."
)


def _options(inventory: Inventory, host: Host, daemons: Sequence[str], with_state: bool) -> dict[str, Any]:
    slurm, mounts = checks.probe_options(inventory, host, daemons), mount_checks.of_host(inventory, host)
    targets = {"targets": prometheus.access(host)} if prometheus.GROUP in host.groups else {}
    state = {"state": True, **targets} if with_state else {}
    return {"network": network_options(host, inventory), "slurm": slurm, "mounts": mounts, **state}


def preflight(
    inventory: Inventory,
    access: Access,
    skip_unreachable: bool | None = False,
    hosts: Sequence[Host] | None = None,
    adopt: bool | None = False,
    refused: Mapping[str, ContactError] | None = None,
    new_head: bool | None = False,
    compared: Collection[str] = (),
    with_state: bool = False,
    at_once: int | None = None,
    rouse: Callable[[Sequence[str]], Collection[str]] | None = None,
) -> Contact:
    """Contact the hosts (default: all), `at_once` at the same time, and evaluate them.

    Raises PreflightError with all findings that are not warnings, InputError for an invalid hardware record.
    `skip_unreachable`: skip the hosts of _unfit. None for a verb without that option.
    `adopt`: report unmanaged software as a warning. None for a verb that replaces nothing: do not report it.
    `new_head`: the same for a head that has lost its records of the cluster's jobs.
    `refused`: see contact.ask. `rouse`: see sleeping.ask_awake. `compared`: hosts to compare with their records.
    `with_state`: ask for all digests.
    """
    records = hardware.load_all(inventory.directory)
    label = secrets.label(inventory.directory) if (inventory.directory / secrets.FILE).exists() else ""
    hosts = inventory.hosts if hosts is None else hosts
    key = secrets.values(inventory.directory).get("record_key") if compared else None
    daemons = [name for part in slurm_source.DAEMONS for name in slurm_source.every(inventory, part)]

    def ask(host: Host) -> Answer:
        options = _options(inventory, host, daemons, with_state)
        options |= contact.drift_options(key) if host.name in compared else {}
        return contact.ask(host, access, options, (refused or {}).get(host.name))

    answers = sleeping.ask_awake(hosts, ask, at_once, rouse)
    findings = [finding for host in hosts for finding in evaluate(host, answers[host.name], label, adopt)]
    facts = {name: answer.facts for name, answer in answers.items() if answer.facts}
    findings += _clocks(facts, inventory.head.name, records)
    # Hosts outside this run are known by their records; findings about them are dropped below.
    known = {host.name: records[host.name] for host in inventory.hosts if host.name in records}
    known |= {name: found.hardware for name, found in facts.items()}
    unconfined = {finding.node: finding for finding in checks.confinement(inventory, known)}
    confined = {name: found for name, found in facts.items() if name not in unconfined}
    together = [
        *_whole(inventory, access.known_hosts, facts, known),
        *unconfined.values(),
        *mount_checks.findings(inventory, facts, mounts_them=adopt is not None),
        *gpu_checks.security(inventory, confined),
        *(() if new_head is None else checks.lost_head(inventory, facts, records, new_head)),
        *(() if new_head is None else kubernetes_checks.lost_head(inventory, facts, records, new_head)),
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
    return Contact(facts, tuple(one for one in others if one.warning), _differences(records, facts), tuple(skipped))


def _differences(records: Mapping[str, Hardware], facts: Mapping[str, Facts]) -> dict[str, tuple[str, ...]]:
    """Return the differences from the hardware record of each host that has any."""
    compared = {
        name: tuple(hardware.compare(records[name], found.hardware))
        for name, found in facts.items()
        if name in records and not _has_new_driver(records[name], found.hardware)
    }
    return {name: lines for name, lines in compared.items() if lines}


def _whole(
    inventory: Inventory, known_hosts: Path, facts: Mapping[str, Facts], known: Mapping[str, Hardware]
) -> Iterator[Finding]:
    """Yield the problems between hosts of the cluster."""
    yield from _machine_ids(known)
    yield from _hostnames(inventory, facts)
    yield from _host_keys(inventory, known_hosts)
    yield from checks.releases(inventory, known)
    yield from checks.offers(inventory, facts)
    yield from checks.sources(inventory, facts)
    yield from checks.job_defaults(inventory, known)
    yield from checks.partition_gpus(inventory, known)
    yield from kubernetes_checks.nodes(inventory, facts, known)
    yield from system_checks.unpublished(inventory, known)


def _unfit(
    inventory: Inventory,
    answers: Mapping[str, Answer],
    findings: Iterable[Finding],
    unconfined: Mapping[str, Finding],
) -> set[str]:
    """Return the hosts that a run can skip.

    These are unreachable ones that it does not need, and workers that cannot confine jobs or wait for a file server. A
    worker with another problem too, such as a changed host key, is not skipped and stops the run.
    """
    needed = kubernetes_checks.needed_heads(inventory, answers) | checks.needed_heads(inventory, answers)
    optional = answers.keys() - needed
    blocked = {one.node for one in findings if one.check == mount_checks.CHECK}
    own = [one for one in findings if not one.warning and one.check != mount_checks.CHECK]
    other = {one.node for one in own if one is not unconfined.get(one.node)}
    unfit = {name for name in optional if answers[name].is_unreachable}
    unfit |= optional & (unconfined.keys() | blocked) - other
    return unfit if unfit != set(answers) else set()  # if all nodes would be skipped, the run must stop


def record(inventory: Inventory, found: Contact, refresh: Collection[str] = ()) -> list[Path]:
    """Write the hardware record of each host without one and of each host in `refresh`; return the written files.

    Also write the record of a host whose GPUs had no driver when it was recorded. In all other records, update the MIG
    layout and missing PCIe lanes.
    """

    def due(name: str, facts: Facts) -> bool:
        path = hardware.path_of(inventory.directory, name)
        return name in refresh or not path.exists() or _has_new_driver(hardware.load(path), facts.hardware)

    written = [
        hardware.save(inventory.directory, facts.hardware) for name, facts in found.facts.items() if due(name, facts)
    ]
    for name, facts in found.facts.items():
        path = hardware.path_of(inventory.directory, name)
        if path not in written and (now := hardware.renewed(hardware.load(path), facts.hardware)):
            hardware.save(inventory.directory, now)
    return written


def _has_new_driver(record: Hardware, found: Hardware) -> bool:
    """Return whether a node reports GPUs and its record is from before it had a driver."""
    return bool(found.gpus) and not record.gpus and record.driver_version is None


def network_options(host: Host, inventory: Inventory | None = None) -> dict[str, Any]:
    """Return the inventory's settings for package downloads of a host, in the form of the probe's options.

    The package cache fetches the packages of the other hosts. It does not run before a first bootstrap, so only its own
    host is tested.
    """
    variables = host.variables
    cached = inventory is not None and bool(inventory.in_group(CACHE)) and CACHE not in host.groups
    return {
        "cached": cached,
        "proxy": variables.get("cluster_package_proxy") or variables.get("cluster_http_proxy") or "",
        "no_proxy": list(variables.get("cluster_no_proxy") or ()),
        "mirrors": dict(variables.get("cluster_package_mirrors") or {}),
    }


# --- one node ---------------------------------------------------------------------------------------------------------


def evaluate(host: Host, answer: Answer, label: str = "", adopt: bool | None = False) -> Iterator[Finding]:
    """Yield the problems of one node of the cluster with that label (secrets.label); `adopt` as in preflight."""
    name = host.name
    for error in answer.errors:
        yield Finding(name, error.failure.value, error.found, error.hint)
    if answer.release:
        yield from _system(name, *answer.release)
    if answer.facts:
        for check in (_architecture, _disk, _memory, _locks, gpu_checks.gpus):
            yield from check(name, answer.facts)
        if adopt is not None:
            yield from _unmanaged(host, answer.facts, label, adopt)
            yield from kubernetes_checks.unmanaged(host, answer.facts)
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
    for path, minimum in (("/", MIN_ROOT_MB), ("/var", MIN_VAR_MB)):
        # If /var is on the file system of /, both report the same free MB: report only /.
        if path in free and free[path] < minimum and (path == "/" or free[path] != free.get("/")):
            yield Finding(name, "disk", f"{free[path]} MB free in {path}", f"at least {minimum} MB are needed")


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
        yield Finding(host.name, "name resolution", found, f"name servers on the node: {resolvers}")
        return
    private = bool(host.variables.get("cluster_ca_certificates"))
    for source in network.sources:
        if source.error and "CERTIFICATE_VERIFY_FAILED" in source.error:
            hint = (
                "cluster_ca_certificates will be installed"
                if private
                else "add the certificate authority to cluster_ca_certificates"
            )
            yield Finding(host.name, "package source", f"{source.url}: {source.error}", hint, warning=private)
        elif source.error:
            hint = f"through the proxy {network.proxy}" if network.proxy else "does the node need cluster_http_proxy?"
            if source.error.startswith("HTTP ") and not network.proxy:
                hint = "correct or remove this source on the node"
            yield Finding(host.name, "package source", f"{source.url}: {source.error}", hint)
    if not network.sources:
        yield Finding(host.name, "package source", "no source that can be tested is configured", warning=True)


def _locks(name: str, facts: Facts) -> Iterator[Finding]:
    if facts.node.lock_holder:
        yield Finding(name, "package lock", facts.node.lock_holder, "the run waits up to 300 s for it", warning=True)


def _unmanaged(host: Host, facts: Facts, label: str, adopt: bool) -> Iterator[Finding]:
    """Yield unmanaged software: an error if a run would replace it, a warning with `adopt` or if it is not touched."""
    name = host.name
    slurm = [what for what in facts.node.before if what.startswith("slurm")]
    if slurm and not {"slurm_head", "slurm_worker"} & set(facts.node.roles):
        found = f"{' and '.join(slurm)} not managed by clusterctl"
        hint = "it is replaced" if adopt else "remove it, or replace it: --adopt"
        yield Finding(name, "slurm", found, hint, warning=adopt)
    if facts.node.cluster and label and facts.node.cluster != label:
        found = f"is the head of another cluster, {facts.node.cluster}"
        hint = (
            "its cluster is replaced"
            if adopt
            else "`clusterctl docs inventory` describes how to recover its directory; to replace it: --adopt"
        )
        yield Finding(name, "cluster", found, hint, warning=adopt)
    replaced = "containers" if "docker" in host.groups else ""
    if replaced in facts.node.before and "docker" not in facts.node.roles:
        found = "containers run under a Docker not managed by clusterctl, and its new configuration restarts them"
        hint = "they are restarted" if adopt else "stop them, or restart them: --adopt"
        yield Finding(name, "docker", found, hint, warning=adopt)
    for what, found in _NOT_TOUCHED.items():
        if what in facts.node.before and what not in (replaced, kubernetes_checks.daemon_of(host)):
            yield Finding(name, "found", found, "it is not changed", warning=True)


def _unused(host: Host, facts: Facts) -> Iterator[Finding]:
    for found, hint in pruning.explain(pruning.unused(host, facts.node.roles)):
        yield Finding(host.name, "groups", found, hint, warning=True)


_NOT_TOUCHED = {
    "kubelet": "a kubelet runs here; its pods do not respect the allocations of Slurm's jobs",
    "containers": "containers run under Docker, outside of Slurm's jobs",
    "nvidia-uninstall": "an NVIDIA driver from a .run file, which no package manager updates",
}


def _firewall(host: Host, facts: Facts) -> Iterator[Finding]:
    """Yield an active ufw: with two firewalls a packet must pass both. Role base fails for the same reason."""
    if facts.node.firewall == "ufw" and host.variables.get("base_firewall", True):
        hint = "disable it: ufw disable; or keep it and set base_firewall: false"
        yield Finding(host.name, "firewall", "ufw is already active", hint)


# --- all nodes together -----------------------------------------------------------------------------------------------


def _clocks(facts: Mapping[str, Facts], head: str, recorded: Collection[str]) -> Iterator[Finding]:
    """Compare clocks with the head, or with this machine if the head is not in the run or has no record yet.

    A node without a record has no chrony from clusterctl yet, so its clock is only a warning.
    """
    use_local = head not in facts or head not in recorded
    base = (0.0, 0.0) if use_local else facts[head].clock
    for name, found in facts.items():
        skew = lead((found.clock[0] - base[1], found.clock[1] - base[0]))
        if name == head and not use_local:
            skew = found.skew
        if abs(skew) > CLOCK_WARN_SECONDS:
            direction = "ahead of" if skew > 0 else "behind"
            fails = name in recorded and abs(skew) > CLOCK_FAIL_SECONDS and name != head
            hint = "check on the node: chronyc tracking" if name in recorded else "chrony corrects it at start"
            reference = "this machine" if use_local or name == head else head
            yield Finding(name, "clock", f"{abs(skew):.1f} s {direction} {reference}", hint, warning=not fails)


def _machine_ids(known: Mapping[str, Hardware]) -> Iterator[Finding]:
    for identity, names in _same({name: record.machine_id for name, record in known.items()}):
        hint = "one server listed twice, or a clone: rm /etc/machine-id; systemd-machine-id-setup"
        for name in names:
            yield Finding(name, "machine id", f"{identity} is the machine id of {fold(names)}", hint)


def _hostnames(inventory: Inventory, facts: Mapping[str, Facts]) -> Iterator[Finding]:
    own = {name: facts[name].node.hostname.split(".")[0].lower() for name in facts}
    for hostname, names in _same({name: own[name] for name in own if own[name] not in COMMON_HOSTNAMES}):
        for name in names:
            hint = "one server listed twice, or a clone: hostnamectl set-hostname"
            yield Finding(name, "hostname", f"{hostname} is the hostname of {fold(names)}", hint)
    listed = {host.name.split(".")[0].lower(): host.name for host in inventory.hosts}
    for name, hostname in own.items():
        if listed.get(hostname, name) != name:
            found = f"got {hostname}, which is another host of the inventory"
            yield Finding(name, "hostname", found, "are the addresses of the two hosts swapped?")


def _host_keys(inventory: Inventory, known_hosts: Path) -> Iterator[Finding]:
    fingerprints: dict[str, dict[str, None]] = defaultdict(dict)
    for host in inventory.hosts:
        for key in keys(known_hosts, route.of(host).name)[0]:
            fingerprints[key.fingerprint][host.name] = None
    for names in fingerprints.values():
        for name in names if len(names) > 1 else ():
            hint = "a clone can impersonate the other host; create new keys: rm /etc/ssh/ssh_host_*_key*; ssh-keygen -A"
            yield Finding(name, "host key", f"{fold(names)} have the same SSH host key", hint, warning=True)


def _same(values: Mapping[str, str]) -> Iterator[tuple[str, list[str]]]:
    names = defaultdict(list)
    for name, value in values.items():
        names[value].append(name)
    return ((value, found) for value, found in names.items() if value and len(found) > 1)
