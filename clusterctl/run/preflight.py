"""Look at every node before anything is changed: one list of every problem of every node, each with what to do.

A check is a function that yields findings; the list of checks is at the end of this file's first half, on one screen.
"""

import importlib.util
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from clusterctl.inventory import slurm_defaults, slurm_source
from clusterctl.inventory.model import Host, Inventory
from clusterctl.nodes import advisories, contact, route
from clusterctl.nodes.contact import Answer, Contact, Facts, lead
from clusterctl.nodes.known_hosts import keys
from clusterctl.nodes.remote import Access, ContactError, Failure, each
from clusterctl.run import pruning
from clusterctl.util import paths
from clusterctl.util.errors import Finding, PreflightError
from clusterctl.util.text import fold, upstream
from clusterctl.workspace import hardware, secrets
from clusterctl.workspace.hardware import Hardware

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
# The cgroup controller by which Slurm confines jobs to each thing of slurm_head_confine.
CONFINED_BY = {"cores": "cpuset", "devices": "devices", "memory": "memory", "swap": "swap"}
PINNED = {"munge": "munge_version", "slurmctld": "slurm_head_version", "slurmd": "slurm_head_version"}
TOOLKIT = "nvidia_container_toolkit"  # role and group
TOOLKIT_PINNED = {"nvidia-container-toolkit-base": "nvidia_container_toolkit_version"}
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
        options = {"network": network_options(host), "slurm": slurm_options(inventory, host, daemons)}
        return contact.ask(host, access, options, before.get(host.name))

    answers = each(asked, ask)
    findings = [finding for host in asked for finding in judge(host, answers[host.name], label, adopt)]
    facts = {name: answer.facts for name, answer in answers.items() if answer.facts}
    findings += _clocks(facts, inventory.head.name, records)
    # Hosts that this run leaves alone are known by their records, and get no finding of their own.
    known = {name: record for name, record in records.items() if name in {host.name for host in inventory.hosts}}
    known |= {name: found.hardware for name, found in facts.items()}
    unconfined = {finding.node: finding for finding in _confinement(inventory, known)}
    findings += [
        finding
        for finding in (
            *_machine_ids(known),
            *_hostnames(inventory, facts),
            *_host_keys(inventory, access.known_hosts),
            *_slurm_versions(inventory, known),
            *_slurm_offers(inventory, facts),
            *_slurm_sources(inventory, facts),
            *unconfined.values(),
            *_slurm_defaults(inventory, known),
            *_unpublished(inventory, known),
            *_advisories(inventory, {name: found for name, found in facts.items() if name not in unconfined}),
            *(() if new_head is None else _lost_head(inventory, facts, records, new_head)),
        )
        if finding.node in answers
    ]
    optional = {name for name in answers if name != inventory.head.name}
    # A worker that has another problem besides, such as a changed host key, still stops the run.
    other = {one.node for one in findings if not one.warning and one is not unconfined.get(one.node)}
    unfit = {name for name in optional if any(e.failure in UNREACHABLE for e in answers[name].errors)}
    unfit |= optional & unconfined.keys() - other
    if unfit == set(answers):  # with no node left there is nothing to continue with
        unfit = set()
    skipped = [finding for finding in findings if finding.node in unfit]
    others = [finding for finding in findings if finding.node not in unfit]
    problems = [finding for finding in (others if skip_unreachable else findings) if not finding.warning]
    if problems:
        alone = skip_unreachable is False and all(finding.warning for finding in others)
        raise PreflightError(problems, WITHOUT_THEM if alone else "")
    facts = {name: found for name, found in facts.items() if name not in unfit}
    compared = {
        name: tuple(hardware.compare(records[name], facts[name].hardware))
        for name in facts
        if name in records and not _driven(records[name], facts[name].hardware)
    }
    return Contact(
        facts,
        tuple(finding for finding in others if finding.warning),
        {name: lines for name, lines in compared.items() if lines},
        tuple(skipped),
    )


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
        for check in (_architecture, _disk, _memory, _locks, _gpus):
            yield from check(name, answer.facts)
        if adopt is not None:
            yield from _before(host, answer.facts, label, adopt)
            yield from _unused(host, answer.facts)
            yield from _driver(host, answer.facts)
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


def _gpus(name: str, facts: Facts) -> Iterator[Finding]:
    usable, hint = len(facts.hardware.gpus), f"mend that, delete {hardware.DIRECTORY}/{name}.json and run again"
    unused = len(facts.node.pci_gpus) - usable
    if unused > 0:
        found = f"{unused} NVIDIA GPUs on the bus that no driver offers"
        then = f"they stay outside the cluster; {hint}" if usable else "bootstrap and add-node give a worker's a driver"
        yield Finding(name, "gpu", found, then, warning=True)
    if usable and facts.node.nvml_error:
        found = f"the driver does not answer, so models are unknown: {facts.node.nvml_error}"
        yield Finding(name, "gpu", found, hint, warning=True)


def _driver(host: Host, facts: Facts) -> Iterator[Finding]:
    """Yield why role nvidia_driver would refuse a worker's GPUs, by its own rule, before a run changes anything.

    It leaves alone a driver that works and that it did not install.
    """
    node, hardware = facts.node, facts.hardware
    unmanaged = hardware.driver_version and "nvidia_driver" not in node.roles
    if "slurm_workers" not in host.groups or node.container or not node.pci_gpus or unmanaged:
        return
    choose, tables, defaults = _driver_rule()
    asked = {**defaults, **{name: value for name, value in host.variables.items() if name in defaults}}
    look: dict[str, Any] = {"devices": node.pci_gpus, "driver": hardware.driver_version or ""}
    # The modules of a managed driver that works are signed by a key that the firmware knows, and those for another
    # kernel are not loaded here.
    signed = bool(hardware.driver_version) or bool(host.variables.get("nvidia_driver_kernel"))
    look |= {"secure_boot": node.secure_boot and not signed, "key_enrolled": node.key_enrolled}
    wanted = {name: asked[f"nvidia_driver_{name}"] for name in ("source", "modules", "gdrcopy")}
    wanted |= {name: str(asked[f"nvidia_driver_{name}"] or "") for name in ("branch", "version")}
    wanted["fingerprint"] = asked["nvidia_driver_key_fingerprint"]
    wanted["system"] = choose.system_of(hardware.os.id, hardware.os.family, hardware.os.version)
    wanted["architecture"] = hardware.os.architecture
    for problem in choose.driver(look, wanted, tables)["problems"]:
        found, _, variable = problem.partition(": nvidia_driver_")
        hint = f"set nvidia_driver_{variable}" if variable else "see `clusterctl docs gpus`"
        yield Finding(host.name, "driver", found, hint)


@cache
def _driver_rule() -> tuple[Any, Mapping[str, Any], Mapping[str, Any]]:
    """Return the filters by which role nvidia_driver chooses, its tables without their prefix, and its defaults."""
    content = paths.content()
    specification = importlib.util.spec_from_file_location(
        "clusterctl_filter_nvidia", content / "playbooks/filter_plugins/nvidia.py"
    )
    if specification is None or specification.loader is None:
        raise ImportError("playbooks/filter_plugins/nvidia.py")
    rule: Any = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(rule)
    role = content / "roles/nvidia_driver"
    tables = yaml.safe_load((role / "vars/main.yml").read_text(encoding="utf-8"))
    defaults = yaml.safe_load((role / "defaults/main.yml").read_text(encoding="utf-8"))
    return rule, {name: tables[f"__nvidia_driver_{name}"] for name in rule.TABLES}, defaults


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


def _slurm_versions(inventory: Inventory, known: Mapping[str, Hardware]) -> Iterator[Finding]:
    heads = [host.name for host in inventory.in_group("slurm_head") if host.name in known]
    workers = [host.name for host in inventory.in_group("slurm_workers") if host.name in known]
    if not heads or not workers:
        return
    versions, oldest = slurm_tables()
    for head, worker in product(heads, workers):
        pins = [str(inventory.host(name).variables.get("slurm_head_version", "")) for name in (head, worker)]
        ours, theirs = slurm_version(versions, known[head], pins[0]), slurm_version(versions, known[worker], pins[1])
        if ours and ours not in oldest:
            found = f"is to have Slurm {ours}, and known here are {', '.join(oldest)}"
            yield Finding(head, "slurm version", found, "correct slurm_head_version, or use a later clusterctl")
            return
        if ours and theirs and not oldest[ours] <= theirs <= ours:
            found = f"its Slurm {theirs} cannot talk to the {ours} of {head}, which takes {oldest[ours]} to {ours}"
            hint = f"give all the same distribution: {head} has {known[head].os.id} {known[head].os.version}"
            hint = "correct slurm_head_version" if any(pins) else hint
            yield Finding(worker, "slurm version", found, hint)


def _slurm_offers(inventory: Inventory, facts: Mapping[str, Facts]) -> Iterator[Finding]:
    """Hold what a new worker gets where nothing is pinned against what the head has, for package sources move on."""
    _, oldest = slurm_tables()
    controllers, workers = (slurm_source.every(inventory, part) for part in slurm_source.DAEMONS)
    for head, worker in product(inventory.in_group("slurm_head"), inventory.in_group("slurm_workers")):
        here, there = (facts[host.name].node.slurm_packages if host.name in facts else None for host in (head, worker))
        has = next((here.installed[name] for name in controllers if name in here.installed), None) if here else None
        if (
            not has
            or not there
            or not there.installed.keys().isdisjoint(workers)
            or not there.offered
            or worker.variables.get("slurm_head_version")
        ):
            continue
        comes, ours = there.offered[0], _release(has)

        def fits(version: str, ours: str = ours) -> bool:
            return oldest.get(ours, ours) <= _release(version) <= ours

        if not fits(comes):
            other = next((version for version in there.offered if fits(version)), None)
            range_ = f"{oldest.get(ours, ours)} to {ours}"
            hint = "clusterctl upgrade comes first" if _release(comes) > ours else f"it needs a source of {range_}"
            if other:
                alone = "" if _release(other) == ours else ", for it alone"
                hint = f'pin it{alone}: slurm_head_version: "{upstream(other)}"'
            found = f"its package sources bring {comes}, which cannot talk to the {has} of {head.name}"
            yield Finding(worker.name, "slurm version", found, hint)
        elif upstream(comes) != upstream(has):
            found = f"its package sources bring {comes}, while {head.name} has {has}"
            yield Finding(worker.name, "slurm version", found, "the two go together", warning=True)


def slurm_options(inventory: Inventory, host: Host, daemons: Sequence[str]) -> dict[str, list[str]]:
    """Return what the probe is to look for of Slurm's packages (probe.slurm_packages); nothing on other hosts.

    `daemons` are those of all sources.
    """
    if not {"slurm_head", "slurm_workers"} & set(host.groups):
        return {}
    return {"daemons": list(daemons), "worker": slurm_source.names(inventory, host, "worker")}


def _slurm_sources(inventory: Inventory, facts: Mapping[str, Facts]) -> Iterator[Finding]:
    """Refuse packages of another source than the inventory's, and a user slurm of another number.

    Both kinds of packages conflict. Munge's credentials carry UIDs, and Slurm's daemons take that of SlurmUser alone
    (https://slurm.schedmd.com/quickstart_admin.html).
    """
    for host in (host for host in inventory.hosts if host.name in facts):
        found = facts[host.name].node.slurm_packages
        if not found:
            continue
        own = {name for part in slurm_source.DAEMONS for name in slurm_source.names(inventory, host, part)}
        if others := sorted(found.installed.keys() - own - {"munge"}):
            source = slurm_source.given(inventory, host, "slurm_head_source", "distribution")
            hint = "uninstall them, or correct slurm_head_source"
            yield Finding(host.name, "slurm source", f"has {', '.join(others)}, which are not from {source}", hint)
        number = slurm_source.given(inventory, host, "slurm_head_user_id", slurm_source.USER_ID)
        if found.user not in (None, number):
            hint = f"if all nodes have it: slurm_head_user_id: {found.user}; else remove the user"
            yield Finding(host.name, "slurm user", f"the user slurm has the number {found.user}, not {number}", hint)


def _confinement(inventory: Inventory, known: Mapping[str, Hardware]) -> Iterator[Finding]:
    """Hold what jobs are to be confined to against what each worker's kernel offers.

    Slurm knows version 2 of cgroups since 22.05, and confines devices there by a BPF program, which needs no controller
    (https://slurm.schedmd.com/cgroup_v2.html). Swap is the memory controller's there; version 1 counts it only where
    the kernel was started with swapaccount=1, which no record tells.
    """
    versions, _ = slurm_tables()
    wanted = inventory.head.variables.get("slurm_head_confine", list(CONFINED_BY))
    for worker in inventory.in_group("slurm_workers"):
        if worker.name not in known:
            continue
        node = known[worker.name]
        offered = {*node.cgroup.controllers}
        if node.cgroup.version == 2:
            offered |= {"devices"} | ({"swap"} if "memory" in offered else set())
        release = slurm_version(versions, node, str(worker.variables.get("slurm_head_version", "")))
        hint = "enable it there, see kernel-command-line(7)"
        if node.cgroup.version == 2 and release and release < "22.05":
            offered, hint = set(), f"its Slurm {release} knows version 1 of cgroups alone"
        missing = [limit for limit in wanted if CONFINED_BY[limit] not in offered]
        if missing:
            rest = ", ".join(limit for limit in wanted if limit not in missing)
            found = (
                f"cannot confine jobs to their {', '.join(missing)}: cgroups (v{node.cgroup.version}) do not offer it"
            )
            hint = f"{hint}; or confine no job of the cluster so: slurm_head_confine: [{rest}]"
            yield Finding(worker.name, "confinement", found, hint)


def _slurm_defaults(inventory: Inventory, known: Mapping[str, Hardware]) -> Iterator[Finding]:
    """Report workers whose records are too far below the others' to count for the defaults that jobs get.

    A default that the inventory sets follows no record.
    """
    head = inventory.head.variables
    everywhere = {name.lower() for name in head.get("slurm_head_conf_extra", {})}
    names = [host.name for host in inventory.in_group("slurm_workers") if host.name in known]
    workers = {name: asdict(known[name]) for name in names}
    little = dict(slurm_defaults.low_memory(workers))
    found: dict[tuple[str, str], str] = {}
    for partition in head.get("slurm_head_partitions", [{}]):
        given = everywhere | {name.lower() for name in partition.get("options", {})}
        members = {
            name
            for part in partition.get("nodes", ["slurm_workers"])
            for name in (part, *(host.name for host in inventory.in_group(part)))
        }
        if not given & {"defmempercpu", "defmempernode"}:
            found |= {(name, text): "DefMemPerCPU" for name, text in little.items() if name in members}
        if head.get("slurm_head_gpu_share", True) and "defcpupergpu" not in given:
            inside = {name: record for name, record in workers.items() if name in members}
            found |= dict.fromkeys(slurm_defaults.few_cpus(inside), "DefCpuPerGPU")
    for (name, text), option in found.items():
        hint = f"set {option} for its partition in slurm_head_partitions, or correct {hardware.DIRECTORY}/{name}.json"
        yield Finding(name, "slurm defaults", f"{text}: {option} does not follow it", hint, warning=True)


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
            given = any(_is_given(host, name) for name in names)
            if host.name in known and not given and _of_system({entry["system"]: "it"}, known[host.name]):
                hint = f"leave {host.name} out of {entry['group']}, or say where it is: {' or '.join(names)}"
                yield Finding(host.name, entry["group"], entry["lacks"], hint)


def _is_given(host: Host, name: str) -> bool:
    """Return whether the inventory sets a variable of a host, or with `variable.key` a key of it."""
    variable, _, key = name.partition(".")
    value = host.variables.get(variable)
    return bool(value.get(key) if key and isinstance(value, Mapping) else value)


_DRIVER_PIN = "nvidia_driver_version"


def _advisories(inventory: Inventory, facts: Mapping[str, Facts]) -> Iterator[Finding]:
    """Name the packages with known holes, those that are installed and those that an inventory pins, each once."""
    nodes: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, found in facts.items():
        for text, hint in _unsafe(inventory.host(name), found):
            nodes[text, hint].append(name)
    for (text, hint), (first, *others) in nodes.items():
        also = f"; also on {fold(others)}" if others else ""
        yield Finding(first, "security", f"{text}{also}", hint, warning=True)


def _unsafe(host: Host, found: Facts) -> Iterator[tuple[str, str]]:
    """Yield what is unsafe on a host, and what to do."""
    system = f"{found.hardware.os.id} {found.hardware.os.version}"
    variables = PINNED | (TOOLKIT_PINNED if TOOLKIT in host.groups else {})
    pins = {package: str(host.variables.get(variable, "")) for package, variable in variables.items()}
    exact = {package: pin for package, pin in pins.items() if pin and not re.search(r"[*?^]", pin)}
    installed = found.node.slurm_packages.installed if found.node.slurm_packages else {}
    for one in advisories.unsafe(system, {**installed, **found.node.watched_packages, **exact}):
        hint = "clusterctl upgrade brings it"
        if one.package in exact:
            hint = f"correct {variables[one.package]}"
        elif one.package in advisories.TOOLKIT:
            hint = "not managed by clusterctl: update it"
            if TOOLKIT in found.node.roles:
                hint = f"clusterctl upgrade --only {TOOLKIT} brings it"
        elif not one.fixed:
            log = "rpm --query --changelog" if found.hardware.os.family == "RedHat" else "apt-get changelog"
            hint = f"clusterctl upgrade brings its newest; whether that is fixed: {log} {one.package}"
        yield str(one), hint
    pin = str(host.variables.get(_DRIVER_PIN, ""))
    pinned = bool(pin) and not re.search(r"[*?^]", pin)
    driver = pin if pinned and found.hardware.gpus else found.hardware.driver_version
    for one in advisories.unsafe_driver(driver):
        yield str(one), f"correct {_DRIVER_PIN}" if pinned else "clusterctl upgrade --only nvidia_driver brings it"


def _release(version: str) -> str:
    return ".".join(upstream(version).split(".")[:2])


def _lost_head(
    inventory: Inventory, facts: Mapping[str, Facts], records: Mapping[str, Hardware], wanted: bool
) -> Iterator[Finding]:
    """Yield a head without Slurm's state in a cluster whose workers have had a controller.

    One that starts there knows none of the jobs that run, and has the workers end them as they register.
    """
    for head in inventory.in_group("slurm_head"):
        if head.name not in facts or "controller" in facts[head.name].node.slurm:
            continue
        workers = [host.name for host in inventory.in_group("slurm_workers")]
        serving = [name for name in workers if name in facts and "worker" in facts[name].node.slurm]
        unasked = [name for name in workers if name not in facts and name in records]
        # Of workers that this run does not ask, it is known only that they were there before this machine was.
        exchanged = head.name in records and records[head.name].machine_id != facts[head.name].hardware.machine_id
        if not serving and not (unasked and exchanged):
            continue
        running = {job for name in serving for job in facts[name].node.jobs}
        had = serving or unasked
        found = (
            f"has no state of Slurm's, while {had[0]}{' and others have' * (len(had) > 1) or ' has'} had a controller"
        )
        found += f"; {len(running)} of its jobs run, which a new one would end" * bool(running)
        hint = "the queue and the accounting begin anew" if wanted else _RESTORE
        yield Finding(head.name, "lost head", found, hint, warning=wanted)


_RESTORE = "put a backup back: clusterctl restore; to begin with an empty queue and empty accounting: --new-head"


def _same(values: Mapping[str, str]) -> Iterator[tuple[str, list[str]]]:
    names = defaultdict(list)
    for name, value in values.items():
        names[value].append(name)
    return ((value, found) for value, found in names.items() if value and len(found) > 1)


def _others(names: Iterable[str], name: str) -> str:
    return ", ".join(other for other in names if other != name)


def slurm_tables() -> tuple[dict[str, str], dict[str, str]]:
    """Return the role's own tables, which it checks again when Ansible runs without us.

    They are the release that each distribution brings, and the oldest that each release talks to and reads a state of.
    """
    table = yaml.safe_load((paths.content() / "roles/slurm_head/vars/main.yml").read_text())
    return table["__slurm_head_distribution_versions"], table["__slurm_head_oldest_worker"]


def slurm_version(versions: Mapping[str, str], node: Hardware, pin: str = "") -> str | None:
    """Return the Slurm release of a pin, else the one that a node's distribution brings, None where that is unknown."""
    if found := re.match(r"(?:\d+:)?(\d+\.\d+)", pin):
        return found[1]
    return _of_system(versions, node)


def _of_system(table: Mapping[str, str], node: Hardware) -> str | None:
    """Return what a table by system says of a node's: ubuntu-24.04, debian-13 or, for a whole family, redhat-9."""
    major = node.os.version.split(".")[0]
    keys = f"{node.os.id}-{node.os.version}", f"{node.os.id}-{major}", f"{node.os.family.lower()}-{major}"
    return next((table[key] for key in keys if key in table), None)
