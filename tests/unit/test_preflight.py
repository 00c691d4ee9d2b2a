"""Preflight: every problem of every node in one list, and nothing said against a node that is fit."""

import copy
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import paramiko
import pytest
import yaml

from clusterctl.inventory.model import Host, Inventory
from clusterctl.nodes import contact
from clusterctl.nodes.contact import Answer, Facts
from clusterctl.nodes.remote import Access
from clusterctl.nodes.session import ContactError, Failure
from clusterctl.run import gpu_checks, preflight, system_checks
from clusterctl.slurm import checks, versions
from clusterctl.util import paths
from clusterctl.util.errors import Finding, InputError, PreflightError
from clusterctl.util.untrusted import Malformed
from clusterctl.workspace import hardware

from .ssh_server import Server, ed25519, host, inventory, known, listening, shell
from .test_hardware import gpu, reply

SOURCE = "http://deb.debian.org/debian/dists/trixie/InRelease"


def answer() -> dict[str, Any]:
    """Return what the probe prints on a good node."""
    return {
        "hardware": reply(),
        "node": {
            "hostname": "gpu01",
            "root": True,
            "free_mb": {"/": 77_000, "/var": 77_000, "/tmp": 12_000},
            "memory_available_mb": 400_000,
            "pci_gpus": ["2330", "2330"],
            "nvml_error": None,
            "container": False,
            "secure_boot": None,
            "key_enrolled": False,
            "network": {
                "name": "deb.debian.org",
                "name_error": None,
                "proxy": None,
                "sources": [{"url": SOURCE, "error": None}],
            },
            "lock_holder": None,
            "roles": [],
            "cluster": None,
            "before": [],
            "slurm": [],
            "security_updates": None,
            "kubernetes": [],
            "swap_mb": 0,
            "slurm_packages": None,
            "watched_packages": {},
            "jobs": [],
            "firewall": None,
            "services": {},
            "homes": {},
            "mounts": {},
            "people": {"ids": {}, "error": None},
        },
        "state_error": "",
        "records": {},
        "started": 1000.0,
        "ended": 1001.0,
    }


def facts(
    change: Callable[[dict[str, Any]], object] = lambda data: None,
    name: str = "gpu01",
    journey: tuple[float, float] = (1000, 1001),
) -> Facts:
    """Return the facts of a node whose answer was changed on the way."""
    data = copy.deepcopy(answer())
    change(data)
    text = f"Welcome!\nclusterctl-shell:\n\nclusterctl-probe:{json.dumps(data)}\nBye.\n"
    return contact.read(host(22, name=name), text, journey)


def findings_of(found: Facts, one: Host | None = None) -> list[Finding]:
    release = found.hardware.os.id, found.hardware.os.version
    return list(preflight.evaluate(one or host(22), Answer(found, (), release)))


def test_a_fit_node_has_no_findings() -> None:
    assert findings_of(facts()) == []


def _set(*path: str, to: object) -> Callable[[dict[str, Any]], object]:
    def change(data: dict[str, Any]) -> None:
        for step in path[:-1]:
            data = data[step]
        data[path[-1]] = to

    return change


@pytest.mark.proves(
    "preflight", "System, disk, memory, resolver, package source and firewall problems are each reported."
)
@pytest.mark.parametrize(
    ("change", "check", "said", "warning"),
    [
        (_set("hardware", "os", "version", to="11"), "operating system", "debian 11 is not supported", False),
        (_set("hardware", "os", "id", to="alpine"), "operating system", "alpine 13", False),
        (_set("hardware", "os", "architecture", to="riscv64"), "architecture", "riscv64", False),
        (_set("node", "free_mb", to={"/": 4_000, "/var": 4_000}), "disk", "4000 MB free in /", False),
        (_set("node", "free_mb", to={"/": 9_000, "/var": 100}), "disk", "100 MB free in /var", False),
        (_set("hardware", "memory_mb", to=400), "memory", "400 MB", False),
        (_set("node", "network", "name_error", to="timed out"), "name resolution", "deb.debian.org", False),
        (
            _set("node", "network", "sources", to=[{"url": SOURCE, "error": "HTTP 404 Not Found"}]),
            "package source",
            f"{SOURCE}: HTTP 404 Not Found",
            False,
        ),
        (_set("node", "network", "sources", to=[]), "package source", "no source", True),
        (_set("node", "lock_holder", to="pid 7 (apt-get) on /x"), "package lock", "pid 7 (apt-get)", True),
        (_set("node", "before", to=["slurm.conf", "slurmd"]), "slurm", "slurm.conf and slurmd not managed", False),
        (_set("node", "before", to=["kubelet"]), "found", "a kubelet runs", True),
        (_set("node", "before", to=["containers"]), "found", "containers run under Docker", True),
        (_set("node", "before", to=["nvidia-uninstall"]), "found", ".run file", True),
        (_set("node", "firewall", to="ufw"), "firewall", "ufw is already active", False),
        (_set("node", "nvml_error", to="Driver/library version mismatch"), "gpu", "version mismatch", True),
        (_set("node", "pci_gpus", to=["2330"] * 8), "gpu", "6 NVIDIA GPUs on the PCI bus", True),
    ],
)
def test_what_is_wrong_is_found(
    change: Callable[[dict[str, Any]], object], check: str, said: str, warning: bool
) -> None:
    (finding,) = findings_of(facts(change))
    assert (finding.node, finding.check, finding.warning) == ("gpu01", check, warning)
    assert said in finding.found
    assert str(finding).isprintable()


def test_what_is_our_own_is_nobody_elses() -> None:
    def ours(data: dict[str, Any]) -> None:
        data["node"].update(before=["slurm.conf", "slurmd"], roles=["base", "slurm_worker"], cluster="aurora-1")

    answer = Answer(facts(ours), (), ("debian", "13"))
    assert list(preflight.evaluate(host(22), answer, "aurora-1")) == []
    (other,) = preflight.evaluate(host(22), answer, "borealis-2")
    assert (other.check, other.found, other.warning) == ("cluster", "is the head of another cluster, aurora-1", False)
    (taken,) = preflight.evaluate(host(22), answer, "borealis-2", adopt=True)
    assert taken.warning


def test_containers_under_a_docker_of_others_are_not_started_anew_unasked() -> None:
    found = Answer(facts(_set("node", "before", to=["containers"])), (), ("debian", "13"))
    given = replace(host(22), groups=frozenset({"docker"}))
    (refused,) = preflight.evaluate(given, found)
    assert (refused.check, refused.warning) == ("docker", False)
    assert "--adopt" in refused.hint
    (taken,) = preflight.evaluate(given, found, adopt=True)
    assert taken.warning
    ours = facts(lambda data: data["node"].update(before=["containers"], roles=["docker"]))
    assert list(preflight.evaluate(given, Answer(ours, (), ("debian", "13")))) == []


@pytest.mark.proves("preflight", "A role that no group of the host has is reported with `--prune`.")
def test_unused_roles__of_a_host__are_a_warning() -> None:
    found = Answer(facts(lambda data: data["node"].update(roles=["base", "podman"])), (), ("debian", "13"))
    given = replace(host(22), groups=frozenset({"slurm_workers"}))
    (finding,) = preflight.evaluate(given, found)
    assert (finding.check, finding.found.rpartition(" ")[2], finding.warning) == ("groups", "podman", True)
    assert "--prune" in finding.hint
    assert list(preflight.evaluate(replace(given, groups=frozenset({"slurm_workers", "podman"})), found)) == []


def test_a_firewall_of_others_is_fine_where_ours_is_not_wanted() -> None:
    mine = replace(host(22), variables={"base_firewall": False})
    assert findings_of(facts(_set("node", "firewall", to="ufw")), mine) == []


@pytest.mark.parametrize(
    ("distribution", "version"),
    [("debian", "12"), ("ubuntu", "24.04"), ("rocky", "9.6"), ("almalinux", "10.0"), ("rhel", "9.4"), ("centos", "10")],
)
def test_supported_systems_pass(distribution: str, version: str) -> None:
    def change(data: dict[str, Any]) -> None:
        data["hardware"]["os"].update(id=distribution, version=version)

    assert findings_of(facts(change)) == []


@pytest.mark.parametrize("private", [True, False])
def test_a_private_authority_is_a_problem_only_where_it_is_not_configured(private: bool) -> None:
    error = "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"
    found = facts(_set("node", "network", "sources", to=[{"url": SOURCE, "error": error}]))
    one = replace(host(22), variables={"cluster_ca_certificates": ["ca.pem"]} if private else {})
    (finding,) = findings_of(found, one=one)
    assert finding.warning is private


@pytest.mark.proves("preflight", "A known node's clock is reported from 1 s off, refused past 10 s.")
@pytest.mark.proves("preflight", "A new node's clock is reported and never refused.")
@pytest.mark.parametrize(
    ("journey", "recorded", "expected"),
    [
        ((1000, 1001), True, []),
        ((990, 1030), True, []),  # a slow journey proves nothing against a clock
        # The node's clock said 1000 at the beginning and 1001 at the end.
        ((990, 1000.1), True, []),
        ((990, 999.9), True, ["1.1 s ahead of this machine"]),
        ((1000.9, 1010), True, []),
        ((1001.1, 1010), True, ["1.1 s behind this machine"]),
        ((990, 991.1), True, ["9.9 s ahead of this machine"]),
        ((990, 990.9), True, ["10.1 s ahead of this machine"]),
        ((990, 990.9), False, ["10.1 s ahead of this machine"]),
        ((1009.9, 1020), True, ["9.9 s behind this machine"]),
        ((1010.1, 1020), True, ["10.1 s behind this machine"]),
        ((995, 996), False, ["5.0 s ahead of this machine"]),
        ((1003, 1004.5), True, ["3.0 s behind this machine"]),
        ((500, 501), False, ["500.0 s ahead of this machine"]),
        ((500, 501), True, ["500.0 s ahead of this machine"]),
    ],
)
def test_a_clock_is_judged_by_what_is_certain(
    journey: tuple[float, float], recorded: bool, expected: list[str]
) -> None:
    findings = list(preflight._clocks({"gpu01": facts(journey=journey)}, "head1", {"gpu01"} if recorded else ()))
    assert [(f.check, f.found) for f in findings] == [("clock", text) for text in expected]
    refused = [text.startswith(("10.1 ", "500.0 ")) and recorded for text in expected]
    assert [f.warning for f in findings] == [not one for one in refused]


@pytest.mark.proves("preflight", "A wrong clock of the controller does not stop a cluster that agrees.")
def test_a_wrong_clock_here_is_not_held_against_a_cluster_that_agrees() -> None:
    """A laptop 500 s behind: the nodes keep to their head."""
    nodes = {name: facts(name=name, journey=(500, 501)) for name in ("head1", "gpu01")}
    nodes["gpu02"] = facts(name="gpu02", journey=(600, 601))
    found = list(preflight._clocks(nodes, "head1", {"head1", "gpu01", "gpu02"}))
    assert [(f.node, f.warning) for f in found] == [("head1", True), ("gpu02", False)]
    assert found[0].found == "500.0 s ahead of this machine"
    assert found[1].found.endswith("s behind head1")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "clusterctl-probe:",
        "clusterctl-probe:[]",
        "clusterctl-probe:" + "[" * 100_000,
        'clusterctl-probe:{"node": {}}',
        "clusterctl-probe:" + json.dumps({**answer(), "started": float("nan")}),
        "clusterctl-probe:" + json.dumps({**answer(), "started": -1}),
    ],
)
def test_an_answer_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(Malformed):
        contact.read(host(22), text, (0, 1))


# --- nodes together ---------------------------------------------------------------------------------------------------


def three(tmp_path: Path) -> Inventory:
    return inventory(tmp_path, host(22, None, "head1", "slurm_head"), host(22, None, "gpu01"), host(22, None, "gpu02"))


@pytest.mark.proves("preflight", "One machine listed under two names is reported for both.")
def test_one_machine_listed_twice_is_named_on_both() -> None:
    known_nodes = {name: facts(name=name).hardware for name in ("gpu01", "gpu02")}
    found = list(preflight._machine_ids(known_nodes))
    assert [(f.node, f.check) for f in found] == [("gpu01", "machine id"), ("gpu02", "machine id")]
    assert "gpu02" in found[0].found


@pytest.mark.proves("preflight", "A head without state is refused if workers had a controller, unless `--new-head`.")
@pytest.mark.parametrize(
    ("head", "worker", "asked", "found"),
    [
        ([], [], True, ""),  # a first bootstrap
        (["controller"], ["worker"], True, ""),
        (
            [],
            ["worker"],
            True,
            "has no Slurm state, but gpu01 has had a controller; a new controller would end its 2 running jobs",
        ),
        ([], ["worker"], False, "has no Slurm state, but gpu01 has had a controller"),  # --limit head1
        (["controller"], ["worker"], False, ""),
    ],
)
def test_a_head_that_knows_none_of_its_workers_jobs_is_not_set_up_anew(
    tmp_path: Path, head: list[str], worker: list[str], asked: bool, found: str
) -> None:
    cluster = inventory(tmp_path, host(22, None, "head1", "slurm_head"), host(22, None, "gpu01", "slurm_workers"))
    known_nodes = {"head1": facts(_set("node", "slurm", to=head), "head1")}
    records = {name: facts(_set("hardware", "machine_id", to="0" * 32), name).hardware for name in ("head1", "gpu01")}
    if asked:

        def served(data: dict[str, Any]) -> None:
            data["node"].update(slurm=worker, jobs=["7", "8"] if worker else [])

        known_nodes["gpu01"] = facts(served)
    for wanted in (False, True):
        findings = list(checks.lost_head(cluster, known_nodes, records, wanted))
        assert [(one.node, one.warning) for one in findings] == ([("head1", wanted)] if found else [])
        assert all(one.found.startswith(found) for one in findings)


@pytest.mark.proves("preflight", "Duplicate host names and exchanged addresses are reported.")
@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ({"head1": "head1", "gpu01": "gpu01", "gpu02": "gpu02.aurora.cluster"}, []),
        ({"head1": "localhost", "gpu01": "debian", "gpu02": "debian"}, []),
        ({"head1": "a", "gpu01": "server7", "gpu02": "server7"}, ["gpu01", "gpu02"]),
        ({"head1": "a", "gpu01": "gpu02", "gpu02": "gpu01"}, ["gpu01", "gpu02"]),
    ],
)
def test_hostnames_tell_clones_and_exchanged_addresses(
    tmp_path: Path, names: dict[str, str], expected: list[str]
) -> None:
    found = {name: facts(_set("node", "hostname", to=names[name]), name) for name in names}
    assert [f.node for f in preflight._hostnames(three(tmp_path), found)] == expected


def test_clones_are_told_by_their_host_key(tmp_path: Path) -> None:
    key, other = ed25519(tmp_path / "a"), ed25519(tmp_path / "b")
    cluster = inventory(tmp_path, host(1, None, "gpu01"), host(2, None, "gpu02"), host(3, None, "gpu03"))
    (tmp_path / "known_hosts").write_text(known(1, key) + known(2, key) + known(3, other))
    found = list(preflight._host_keys(cluster, tmp_path / "known_hosts"))
    assert [(f.node, f.warning) for f in found] == [("gpu01", True), ("gpu02", True)]
    assert {f.found for f in found} == {"gpu01, gpu02 have the same SSH host key"}, "so that many are one line"


@pytest.mark.proves("preflight", "Systems whose Slurm versions cannot communicate are refused.")
@pytest.mark.parametrize(
    ("head", "worker", "fits"),
    [
        (("debian", "13"), ("debian", "13"), True),
        (("debian", "12"), ("debian", "12"), True),
        (("debian", "13"), ("debian", "12"), False),
        (("debian", "12"), ("debian", "13"), False),
        (("debian", "13"), ("ubuntu", "24.04"), True),
        (("ubuntu", "24.04"), ("debian", "13"), False),
        (("rocky", "9.6"), ("almalinux", "9.5"), True),
        (("debian", "13"), ("rhel", "9.4"), False),
    ],
)
def test_slurm_versions_that_cannot_talk_are_refused(
    tmp_path: Path, head: tuple[str, str], worker: tuple[str, str], fits: bool
) -> None:
    def runs(distribution: str, version: str) -> Callable[[dict[str, Any]], object]:
        family = "Debian" if distribution in ("debian", "ubuntu") else "RedHat"
        return lambda data: data["hardware"]["os"].update(id=distribution, version=version, family=family)

    known_nodes = {"head1": facts(runs(*head)).hardware, "gpu02": facts(runs(*worker)).hardware}
    found = list(checks.releases(three(tmp_path), known_nodes))
    assert [f.node for f in found] == ([] if fits else ["gpu02"])


@pytest.mark.proves("preflight", "A worker that cannot confine jobs is refused by itself.")
@pytest.mark.parametrize(
    ("cgroup", "system", "wanted", "found", "hint"),
    [
        ({"version": 2, "controllers": ["cpu", "cpuset", "memory"]}, ("debian", "13"), None, "", ""),
        (
            {"version": 1, "controllers": ["cpuset", "devices", "memory"]},
            ("debian", "13"),
            None,
            "to their swap: ",
            "memory]",
        ),
        (
            {"version": 2, "controllers": ["cpuset"]},
            ("debian", "13"),
            None,
            "to their memory, swap: ",
            "[cores, devices]",
        ),
        ({"version": 1, "controllers": []}, ("debian", "13"), None, "to their cores, devices, memory, swap: ", ": []"),
        ({"version": 1, "controllers": []}, ("debian", "13"), ["devices"], "to their devices: ", ": []"),
        ({"version": 1, "controllers": []}, ("debian", "13"), [], "", ""),
        (
            {"version": 2, "controllers": ["cpu", "cpuset", "memory"]},
            ("ubuntu", "22.04"),
            None,
            "to their cores, devices, memory, swap: ",
            "its Slurm 21.08 supports only version 1 of cgroups",
        ),
    ],
)
def test_confinement__worker_lacks_a_controller__is_refused(
    tmp_path: Path,
    cgroup: dict[str, Any],
    system: tuple[str, str],
    wanted: list[str] | None,
    found: str,
    hint: str,
) -> None:
    def runs(data: dict[str, Any]) -> None:
        data["hardware"]["os"].update(id=system[0], version=system[1])
        data["hardware"]["cgroup"] = cgroup

    given = three(tmp_path)
    if wanted is not None:
        head = replace(given.head, variables={"slurm_head_confine": wanted})
        given = replace(given, hosts=(head, *(host for host in given.hosts if host.name != head.name)))
    known = {"gpu01": facts().hardware, "gpu02": facts(runs).hardware}
    findings = list(checks.confinement(given, known))
    assert [finding.node for finding in findings] == (["gpu02"] if found else [])
    assert all(found in finding.found and hint in finding.hint for finding in findings)


def _new(system: tuple[str, str, str], *devices: str, **node: Any) -> Facts:
    """Return a node of that id, version and architecture with GPUs and without a driver."""

    def change(data: dict[str, Any]) -> None:
        family = "Debian" if system[0] in ("debian", "ubuntu") else "RedHat"
        data["hardware"]["os"].update(id=system[0], version=system[1], architecture=system[2], family=family)
        data["hardware"].update(driver_version=None, gpus=[])
        data["node"].update(pci_gpus=list(devices), **node)

    return facts(change)


TRIXIE, NOBLE = ("debian", "13", "x86_64"), ("ubuntu", "24.04", "x86_64")


@pytest.mark.proves("preflight", "GPUs that no driver branch fits are refused, with the role's own reason.")
@pytest.mark.parametrize(
    ("found", "variables", "said", "hint"),
    [
        (_new(TRIXIE, "26b9"), {}, "", ""),
        (_new(TRIXIE, "1db4"), {}, "580 is the last for volta", "set nvidia_driver_source: distribution"),
        (_new(TRIXIE, "1db4"), {"nvidia_driver_source": "distribution"}, "", ""),
        (_new(("debian", "13", "aarch64"), "2342"), {}, "", ""),
        (_new(("debian", "13", "aarch64"), "2342"), {"nvidia_driver_version": "580.95.05"}, "", ""),
        (
            _new(NOBLE, "1091"),
            {},
            "no kernel modules support all GPUs of the node (fermi: none)",
            "see `clusterctl docs gpus`",
        ),
        (
            _new(NOBLE, "2901"),
            {"nvidia_driver_branch": 550},
            "blackwell needs branch 570 or newer, got 550",
            "clusterctl docs",
        ),
        (
            _new(NOBLE, "2901"),
            {"nvidia_driver_version": "570.86.15"},
            "B200 needs driver 570.133.20 or newer",
            "clusterctl docs",
        ),
        (_new(NOBLE, "3500"), {}, "first branch for GPUs of the PCI id 3500", "set nvidia_driver_branch"),
        (_new(("rocky", "9.6", "x86_64"), "1db4"), {}, "", ""),
        (_new(("rocky", "10.1", "x86_64"), "2330"), {}, "the fingerprint of CDF6BA43.pub", "key_fingerprint"),
        (
            _new(("debian", "12", "x86_64"), "2330", secure_boot=True),
            {},
            "Secure Boot is on, and the kernel",
            "clusterctl docs",
        ),
        (_new(("debian", "12", "x86_64"), "2330", secure_boot=True, key_enrolled=True), {}, "", ""),
        (_new(("debian", "12", "x86_64"), "2330", secure_boot=True), {"nvidia_driver_kernel": "6.1.0-9"}, "", ""),
        (_new(NOBLE, "2330", secure_boot=True), {}, "", ""),
        (_new(TRIXIE, "1db4", container=True), {}, "", ""),
        (_new(TRIXIE), {}, "", ""),
    ],
)
def test_driver__no_branch_fits_the_gpus__is_refused(
    found: Facts, variables: dict[str, Any], said: str, hint: str
) -> None:
    worker = replace(host(22), groups=frozenset({"slurm_workers"}), variables=variables)
    findings = list(gpu_checks.driver(worker, found))
    assert [finding.check for finding in findings] == (["driver"] if said else [])
    assert all(said in one.found and hint in one.hint and not one.warning for one in findings)
    if said:
        (refused,) = [one for one in findings_of(found, worker) if not one.warning]
        assert refused == findings[0], "it is among what ends a run with exit code 3"


def test_driver__that_the_role_leaves_alone__is_not_refused() -> None:
    worker = replace(host(22), groups=frozenset({"slurm_workers"}))
    found = _new(TRIXIE, "1db4")
    works = replace(found, hardware=replace(found.hardware, driver_version="580.95.05"))
    assert list(gpu_checks.driver(worker, works)) == []
    loaded = replace(_new(NOBLE, "2330", secure_boot=True), hardware=works.hardware)
    loaded = replace(loaded, node=replace(loaded.node, roles=("base", "nvidia_driver")))
    wants = replace(worker, variables={"nvidia_driver_gdrcopy": True})
    assert list(gpu_checks.driver(wants, loaded)) == [], "the firmware knows the key of modules that are loaded"
    ours = replace(works, node=replace(works.node, roles=("base", "nvidia_driver")))
    assert [finding.check for finding in gpu_checks.driver(worker, ours)] == ["driver"]
    assert list(gpu_checks.driver(replace(worker, groups=frozenset({"docker"})), found)) == [], "it is no worker"


@pytest.mark.proves("preflight", "A feature that nobody publishes for a node's system is refused.")
@pytest.mark.parametrize(
    ("system", "group", "variables", "found"),
    [
        (("debian", "13", "Debian"), "gpu_metrics", {}, "NVIDIA publishes no DCGM for Debian 13"),
        (("debian", "13", "Debian"), "gpu_metrics", {"cluster_package_mirrors": {"debian": "http://m"}}, "no DCGM"),
        (("debian", "13", "Debian"), "gpu_metrics", {"cluster_package_mirrors": {"nvidia": "http://m"}}, ""),
        (("debian", "12", "Debian"), "gpu_metrics", {}, ""),
        (("rocky", "10.1", "RedHat"), "gpu_metrics", {}, "no exporter of DCGM for RHEL 10"),
        (("rocky", "10.1", "RedHat"), "monitoring", {"alertmanager_package": "a"}, "EPEL 10 has no Prometheus"),
        (("rocky", "10.1", "RedHat"), "monitoring", {"prometheus_package": "p"}, "EPEL 10 has no Alertmanager"),
        (
            ("rocky", "10.1", "RedHat"),
            "monitoring",
            {"prometheus_package": "p", "alertmanager_release": {"version": "0.28.1"}},
            "",
        ),
        (
            ("rocky", "10.1", "RedHat"),
            "monitoring",
            {"prometheus_release": {"version": "3.5.0"}, "alertmanager_package": "a"},
            "",
        ),
        (("rocky", "9.6", "RedHat"), "monitoring", {}, ""),
        (("rocky", "10.2", "RedHat"), "slurm_workers", {}, "EPEL has Slurm from 10.3 on"),
        (("rocky", "10.2", "RedHat"), "slurm_workers", {"base_epel_tree": "10"}, ""),
        (("rocky", "10.3", "RedHat"), "slurm_workers", {}, ""),
        (("centos", "10", "RedHat"), "slurm_workers", {}, ""),
    ],
)
def test_system__what_nobody_publishes_for_it__is_refused(
    tmp_path: Path, system: tuple[str, str, str], group: str, variables: dict[str, Any], found: str
) -> None:
    def runs(data: dict[str, Any]) -> None:
        data["hardware"]["os"].update(id=system[0], version=system[1], family=system[2])

    given = three(tmp_path)
    hosts = tuple(replace(host, variables=variables) if host.name == "gpu02" else host for host in given.hosts)
    hosts = tuple(replace(host, groups=host.groups | {group}) if host.name == "gpu02" else host for host in hosts)
    given = replace(given, hosts=hosts)
    found_all = system_checks.unpublished(given, {"gpu01": facts(runs).hardware, "gpu02": facts(runs).hardware})
    findings = [one for one in found_all if one.check == group and (group != "slurm_workers" or one.node == "gpu02")]
    assert [(one.node, one.check, one.warning) for one in findings] == ([("gpu02", group, False)] if found else [])
    assert all(found in one.found and "leave gpu02 out of" in one.hint for one in findings)


def test_confinement__of_preflight_and_role__is_one() -> None:
    defaults = yaml.safe_load((paths.content() / "roles/slurm_head/defaults/main.yml").read_text())
    assert defaults["slurm_head_confine"] == [*checks.CONFINED_BY]


@pytest.mark.proves(
    "preflight", "A new worker whose source offers an incompatible Slurm is refused; patches are reported."
)
@pytest.mark.parametrize(
    ("offered", "found", "hint"),
    [
        ([], "", ""),
        (["24.11.5-4"], "", ""),
        (["24.11.5-4+deb13u1"], "", ""),
        (["24.11.6-1", "24.11.5-4"], "have 24.11.6-1, while head1 has 24.11.5-4", "the two are compatible"),
        (["23.02.1-1"], "have 23.02.1-1, while head1 has 24.11.5-4", "the two are compatible"),
        (
            ["25.05.1-1"],
            "have 25.05.1-1, which is not compatible with 24.11.5-4 on head1",
            "run clusterctl upgrade first",
        ),
        (
            ["25.05.1-1", "24.11.5-4"],
            "have 25.05.1-1, which is not compatible with 24.11.5-4 on head1",
            'pin it: slurm_head_version: "24.11.5"',
        ),
        (
            ["22.05.8-4"],
            "have 22.05.8-4, which is not compatible with 24.11.5-4 on head1",
            "add a package source with 23.02 to 24.11",
        ),
    ],
)
def test_a_new_worker_gets_a_slurm_that_the_head_can_talk_to(
    tmp_path: Path, offered: list[str], found: str, hint: str
) -> None:
    def has(versions: dict[str, str]) -> Callable[[dict[str, Any]], object]:
        return _set("node", "slurm_packages", to={"installed": versions, "offered": offered, "user": None})

    def told(worker: dict[str, str], cluster: Inventory) -> list[Finding]:
        head = facts(has({"slurmctld": "24.11.5-4"}), "head1")
        return list(checks.offers(cluster, {"head1": head, "gpu02": facts(has(worker), "gpu02")}))

    findings = told({}, three(tmp_path))
    assert [one.node for one in findings] == ["gpu02"] * bool(found)
    assert all(one.found == f"its package sources {found}" for one in findings)
    assert all((one.hint, one.warning) == (hint, "while" in found) for one in findings)
    assert told({"slurmd": "24.11.5-4"}, three(tmp_path)) == []
    pinned = [replace(one, variables={"slurm_head_version": "24.11.*"}) for one in three(tmp_path).hosts]
    assert told({}, replace(three(tmp_path), hosts=tuple(pinned))) == []


@pytest.mark.proves("preflight", "Installed and pinned versions with known holes are named, and warn.")
def test_advisories__installed_or_pinned__are_named(tmp_path: Path) -> None:
    def has(data: dict[str, Any]) -> None:
        data["hardware"]["os"].update(id="debian", version="13")
        data["node"]["slurm_packages"] = {
            "installed": {"munge": "0.5.16-1", "slurmd": "24.11.5-9"},
            "offered": [],
            "user": 64030,
        }

    found = list(gpu_checks.security(three(tmp_path), {"gpu01": facts(has)}))
    assert [(one.node, one.check, one.warning, one.hint) for one in found] == [
        ("gpu01", "security", True, "clusterctl upgrade installs it")
    ]
    assert "munge 0.5.16-1 lets any user of the node read the munge key (CVE-2026-25506), 0.5.16-1.1" in found[0].found
    pins = {"munge_version": "0.5.16-1", "slurm_head_version": "24.11.*"}
    pinned = [replace(one, variables=pins) for one in three(tmp_path).hosts]
    found = list(gpu_checks.security(replace(three(tmp_path), hosts=tuple(pinned)), {"gpu01": facts(has)}))
    assert [one.hint for one in found] == ["correct munge_version"]


def test_advisories__of_the_driver__installed_or_pinned__are_named(tmp_path: Path) -> None:
    found = list(
        gpu_checks.security(three(tmp_path), {"gpu01": facts(_set("hardware", "driver_version", to="580.82.07"))})
    )
    assert [one.hint for one in found] == ["clusterctl upgrade --only nvidia_driver installs it"]
    assert "NVIDIA driver 580.82.07 may let any user of a GPU become root" in found[0].found
    for pin, hints in (("535.230.02", ["correct nvidia_driver_version"]), ("580.159.03", [])):
        pinned = [replace(one, variables={"nvidia_driver_version": pin}) for one in three(tmp_path).hosts]
        told = gpu_checks.security(replace(three(tmp_path), hosts=tuple(pinned)), {"gpu01": facts()})
        assert [one.hint for one in told] == hints


@pytest.mark.parametrize(
    ("roles", "groups", "pin", "hint"),
    [
        (["nvidia_container_toolkit"], [], "", "clusterctl upgrade --only nvidia_container_toolkit installs it"),
        ([], [], "", "not managed by clusterctl: update it"),
        ([], [], "1.18.0", "not managed by clusterctl: update it"),  # whose pin is of another host's group
        ([], ["nvidia_container_toolkit"], "1.18.0", "correct nvidia_container_toolkit_version"),
        ([], ["nvidia_container_toolkit"], "1.20.1", None),
    ],
)
def test_advisories__of_the_container_toolkit__are_named(
    tmp_path: Path, roles: list[str], groups: list[str], pin: str, hint: str | None
) -> None:
    def has(data: dict[str, Any]) -> None:
        data["hardware"]["os"].update(id="rocky", version="9.6", family="RedHat")
        data["node"] |= {"roles": roles, "watched_packages": {"nvidia-container-toolkit-base": "1.17.8-1"}}

    given = three(tmp_path)
    variables = {"nvidia_container_toolkit_version": pin} if pin else {}
    hosts = [replace(one, variables=variables, groups=one.groups | {*groups}) for one in given.hosts]
    found = list(gpu_checks.security(replace(given, hosts=tuple(hosts)), {"gpu01": facts(has)}))
    assert [(one.hint, one.warning) for one in found] == ([(hint, True)] if hint else [])
    assert all("lets a container escape to its host (CVE-2026-24260" in one.found for one in found)


def test_advisories__the_same_on_several_nodes__is_one_note(tmp_path: Path) -> None:
    def has(data: dict[str, Any]) -> None:
        data["hardware"]["os"].update(id="rocky", version="9.6", family="RedHat")
        data["node"]["watched_packages"] = {"munge": "0.5.13-13.el9"}

    nodes = {name: facts(has, name) for name in ("head1", "gpu01", "gpu02")}
    (found,) = gpu_checks.security(three(tmp_path), nodes)
    assert found.node == "head1"
    assert found.found.startswith("munge 0.5.13-13.el9 is not known to be fixed: before 0.5.18 it lets any user")
    assert found.found.endswith("(CVE-2026-25506); also on gpu01, gpu02")
    assert found.hint.endswith("check whether it has the fix: rpm --query --changelog munge")


def test_every_supported_system_has_a_slurm() -> None:
    for distribution, releases in preflight.SUPPORTED.items():
        family = "Debian" if distribution in ("debian", "ubuntu") else "RedHat"
        for release in releases:
            change = {"id": distribution, "version": release, "family": family}
            node = facts(lambda data, change=change: data["hardware"]["os"].update(change)).hardware  # type: ignore[misc]
            assert versions.of_node(host(22), node) in versions.oldest()


# --- the whole, over SSH ----------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _nobodys_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


def says(change: Callable[[dict[str, Any]], object]) -> Callable[[paramiko.Channel, str], int]:
    """Return a node that answers the probe as it likes."""
    data = answer()
    change(data)
    del data["started"], data["ended"]

    def program(channel: paramiko.Channel, command: str) -> int:
        while channel.recv(1 << 15):
            pass
        now = {"started": time.time(), "ended": time.time()}
        channel.sendall(f"clusterctl-shell:\nclusterctl-probe:{json.dumps({**data, **now})}\n".encode())
        return 0

    return program


def served(tmp_path: Path, *programs: Callable[[paramiko.Channel, str], int]) -> tuple[list[Server], Path]:
    key = ed25519(tmp_path / "id")
    return [
        Server([ed25519(tmp_path / f"host{n}")], key, program) for n, program in enumerate(programs)
    ], tmp_path / "id"


def named(name: str) -> Callable[[dict[str, Any]], object]:
    def change(data: dict[str, Any]) -> None:
        data["node"]["hostname"] = name
        data["hardware"]["machine_id"] = f"{sum(name.encode()):032x}"

    return change


@pytest.mark.proves("preflight", "All problems of all nodes are reported at once, and no record is written.")
def test_all_problems_of_all_nodes_come_at_once_and_nothing_is_written(tmp_path: Path) -> None:
    def poor(data: dict[str, Any]) -> None:
        named("gpu01")(data)
        data["node"]["free_mb"] = {"/": 10}
        data["hardware"]["memory_mb"] = 100
        data["hardware"]["machine_id"] = f"{sum(b'head1'):032x}"  # a clone of it

    (head, worker), key = served(tmp_path, says(named("head1")), says(poor))
    with listening(head.serve) as one, listening(worker.serve) as two:
        (tmp_path / "known_hosts").write_text(known(one, *head.host_keys) + known(two, *worker.host_keys))
        cluster = inventory(
            tmp_path,
            host(one, key, "head1", "slurm_head"),
            host(two, key, "gpu01"),
            host(1, key, "gpu02"),
            replace(host(22, key, "gpu03"), address="gpu03.invalid"),
        )
        with pytest.raises(PreflightError) as caught:
            preflight.preflight(cluster, Access(tmp_path / "known_hosts"))
    found = [(f.node, f.check) for f in caught.value.problems if isinstance(f, Finding)]
    clones = [("head1", "machine id"), ("gpu01", "machine id")]
    assert found == [("gpu01", "disk"), ("gpu01", "memory"), ("gpu02", "connection"), ("gpu03", "name"), *clones]
    assert caught.value.exit_code == 3
    assert not (tmp_path / "hardware").exists()


@pytest.mark.proves("preflight", "Hardware is recorded once; later differences are reported and change no record.")
def test_hardware_is_recorded_once_and_then_compared(tmp_path: Path) -> None:
    (head, worker), key = served(tmp_path, says(named("head1")), says(named("gpu01")))
    with listening(head.serve) as one, listening(worker.serve) as two:
        (tmp_path / "known_hosts").write_text(known(one, *head.host_keys) + known(two, *worker.host_keys))
        cluster = inventory(tmp_path, host(one, key, "head1", "slurm_head"), host(two, key, "gpu01"))
        first = preflight.preflight(cluster, Access(tmp_path / "known_hosts"))
        assert [path.name for path in preflight.record(cluster, first)] == ["head1.json", "gpu01.json"]
        before = (tmp_path / "hardware/gpu01.json").read_bytes()

        def lost(data: dict[str, Any]) -> None:
            named("gpu01")(data)
            data["hardware"]["gpus"] = [gpu(0)]

        worker.program = says(lost)
        second = preflight.preflight(cluster, Access(tmp_path / "known_hosts"))
        assert preflight.record(cluster, second) == []
        assert (tmp_path / "hardware/gpu01.json").read_bytes() == before
        assert second.differences["gpu01"][0] == "GPUs: recorded 2, found 1"
        assert [path.name for path in preflight.record(cluster, second, refresh=["gpu01"])] == ["gpu01.json"]
        assert preflight.preflight(cluster, Access(tmp_path / "known_hosts")).differences == {}

        def divided(data: dict[str, Any]) -> None:
            named("gpu01")(data)
            data["hardware"]["gpus"] = [gpu(0) | {"mig": ["3g.40gb"], "cpus": "0-1"}]

        worker.program = says(divided)
        assert preflight.record(cluster, preflight.preflight(cluster, Access(tmp_path / "known_hosts"))) == []
        record = hardware.load(tmp_path / "hardware/gpu01.json")
        assert [(one.mig, one.cpus) for one in record.gpus] == [(("3g.40gb",), gpu(0)["cpus"])]


def told(tmp_path: Path, cluster: Inventory, skip_unreachable: bool | None = False) -> str:
    """Return the way to go on that a refusal shows."""
    with pytest.raises(PreflightError) as caught:
        preflight.preflight(cluster, Access(tmp_path / "known_hosts"), skip_unreachable)
    return caught.value.hint


@pytest.mark.proves("preflight", "Unreachable workers can be skipped, an unreachable head cannot.")
def test_workers_that_cannot_be_reached_may_be_left_out_but_not_the_head(tmp_path: Path) -> None:
    (head,), key = served(tmp_path, says(named("head1")))
    with listening(head.serve) as one:
        (tmp_path / "known_hosts").write_text(known(one, *head.host_keys))
        good = inventory(tmp_path, host(one, key, "head1", "slurm_head"), host(1, key, "gpu01"))
        found = preflight.preflight(good, Access(tmp_path / "known_hosts"), skip_unreachable=True)
        assert [f.node for f in found.skipped] == ["gpu01"]
        assert list(found.facts) == ["head1"]
        assert told(tmp_path, good) == preflight.WITHOUT_THEM
        assert told(tmp_path, good, skip_unreachable=None) == ""
        head.program = says(lambda data: data["hardware"].update(memory_mb=100))
        assert told(tmp_path, good) == ""
        head.program = says(named("head1"))
        bad = inventory(tmp_path, host(1, key, "head1", "slurm_head"), host(one, key, "gpu01"))
        assert told(tmp_path, bad) == ""
        with pytest.raises(PreflightError, match="head1: connection"):
            preflight.preflight(bad, Access(tmp_path / "known_hosts"), skip_unreachable=True)


@pytest.mark.proves("preflight", "A worker that cannot confine jobs can be left out, and is not recorded.")
def test_skip_unreachable__worker_cannot_confine_jobs__is_left_out(tmp_path: Path) -> None:
    def unconfined(data: dict[str, Any]) -> None:
        named("gpu01")(data)
        data["hardware"]["cgroup"] = {"version": 2, "controllers": ["cpu", "cpuset"]}

    (head, worker), key = served(tmp_path, says(named("head1")), says(unconfined))
    with listening(head.serve) as one, listening(worker.serve) as two:
        (tmp_path / "known_hosts").write_text(known(one, *head.host_keys) + known(two, *worker.host_keys))
        cluster = inventory(tmp_path, host(one, key, "head1", "slurm_head"), host(two, key, "gpu01"))
        assert told(tmp_path, cluster) == preflight.WITHOUT_THEM
        with pytest.raises(PreflightError, match="gpu01: confinement: cannot confine jobs to their memory"):
            preflight.preflight(cluster, Access(tmp_path / "known_hosts"), skip_unreachable=None)
        found = preflight.preflight(cluster, Access(tmp_path / "known_hosts"), skip_unreachable=True)
        assert [(one.node, one.check) for one in found.skipped] == [("gpu01", "confinement")]
        assert list(found.facts) == ["head1"]
        assert [path.name for path in preflight.record(cluster, found)] == ["head1.json"]

        def tiny(data: dict[str, Any]) -> None:
            unconfined(data)
            data["hardware"]["memory_mb"] = 100

        worker.program = says(tiny)
        with pytest.raises(PreflightError, match="gpu01: memory: 100 MB"):
            preflight.preflight(cluster, Access(tmp_path / "known_hosts"), skip_unreachable=True)


def test_skip_unreachable__head_cannot_confine_jobs__is_refused(tmp_path: Path) -> None:
    """One that is a worker too."""

    def unconfined(data: dict[str, Any]) -> None:
        named("head1")(data)
        data["hardware"]["cgroup"] = {"version": 2, "controllers": ["cpu", "cpuset"]}

    (head, worker), key = served(tmp_path, says(unconfined), says(named("gpu01")))
    with listening(head.serve) as one, listening(worker.serve) as two:
        (tmp_path / "known_hosts").write_text(known(one, *head.host_keys) + known(two, *worker.host_keys))
        both = host(one, key, "head1", "slurm_head")
        both = replace(both, groups=both.groups | {"slurm_workers"})
        cluster = inventory(tmp_path, both, host(two, key, "gpu01"))
        with pytest.raises(PreflightError, match="head1: confinement"):
            preflight.preflight(cluster, Access(tmp_path / "known_hosts"), skip_unreachable=True)


def test_a_changed_host_key_is_no_unreachable_node(tmp_path: Path) -> None:
    (head, worker), key = served(tmp_path, says(named("head1")), says(named("gpu01")))
    with listening(head.serve) as one, listening(worker.serve) as two:
        (tmp_path / "known_hosts").write_text(known(one, *head.host_keys) + known(two, *head.host_keys))
        cluster = inventory(tmp_path, host(one, key, "head1", "slurm_head"), host(two, key, "gpu01"))
        with pytest.raises(PreflightError, match="gpu01: host key changed"):
            preflight.preflight(cluster, Access(tmp_path / "known_hosts"), skip_unreachable=True)


def test_a_bad_record_stops_before_any_contact(tmp_path: Path) -> None:
    (tmp_path / "hardware").mkdir()
    (tmp_path / "hardware/gpu01.json").write_text("{")
    with pytest.raises(InputError):
        preflight.preflight(inventory(tmp_path, host(1, None, "head1", "slurm_head")), Access(tmp_path / "known_hosts"))


def ask(tmp_path: Path, program: Callable[[paramiko.Channel, str], int], become: bool = True) -> Answer:
    (server,), key = served(tmp_path, program)
    with listening(server.serve) as port:
        (tmp_path / "known_hosts").write_text(known(port, *server.host_keys))
        return contact.ask(replace(host(port, key), become=become), Access(tmp_path / "known_hosts"), {})


def test_the_real_probe_is_run_and_read(tmp_path: Path) -> None:
    def program(channel: paramiko.Channel, command: str) -> int:
        channel.sendall(b"what a login shell prints\n")
        return shell(channel, command.replace(contact.PYTHON, sys.executable))

    found = ask(tmp_path, program, become=False)
    assert found.facts is not None
    assert abs(found.facts.skew) < preflight.CLOCK_WARN_SECONDS
    assert bool(found.errors) is not found.facts.node.root


def test_without_sudo_the_rest_is_still_looked_at(tmp_path: Path) -> None:
    good = says(lambda data: data["node"].update(root=False))

    def program(channel: paramiko.Channel, command: str) -> int:
        if command.startswith("sudo"):
            channel.sendall_stderr(b"\x1b[31msudo: a password is required\n")
            return 1
        return good(channel, command)

    found = ask(tmp_path, program)
    assert [error.failure for error in found.errors] == [Failure.SUDO]
    assert found.errors[0].found == "ops cannot become root: [31msudo: a password is required"
    assert found.facts is not None


@pytest.mark.proves("preflight", "A sudo password that the head refused is not tried there again.")
def test_a_password_that_a_head_has_refused_is_not_tried_there_again(tmp_path: Path) -> None:
    """A run takes the head's lock first, and preflight would give the same password a second time."""
    asked: list[str] = []
    good = says(lambda data: data["node"].update(root=False))

    def program(channel: paramiko.Channel, command: str) -> int:
        asked.append(command)
        return good(channel, command)

    (head,), key = served(tmp_path, program)
    with listening(head.serve) as port:
        (tmp_path / "known_hosts").write_text(known(port, *head.host_keys))
        cluster = inventory(tmp_path, replace(host(port, key, "head1", "slurm_head"), become=True))
        refused = ContactError(Failure.SUDO, "not like this")
        with pytest.raises(PreflightError) as caught:
            preflight.preflight(cluster, Access(tmp_path / "known_hosts", "a password"), refused={"head1": refused})
    (finding,) = (f for f in caught.value.problems if isinstance(f, Finding))
    assert (finding.check, finding.found) == ("sudo", "not like this")
    (command,) = asked
    assert "sudo" not in command


@pytest.mark.proves("preflight", "Without Python a node's system is still identified.")
def test_without_python_the_system_is_still_known(tmp_path: Path) -> None:
    def program(channel: paramiko.Channel, command: str) -> int:
        channel.sendall(b'clusterctl-shell:\nID=alpine\nVERSION_ID="3.22"\n')
        return 97

    found = ask(tmp_path, program)
    findings = list(preflight.evaluate(host(22), found))
    assert [f.check for f in findings] == ["python", "operating system"]


@pytest.mark.parametrize(
    "said", [b"clusterctl-shell:\nTraceback\n", b"clusterctl-shell:\nclusterctl-probe:{}\n", b"\xff"]
)
def test_a_probe_that_fails_is_a_problem_of_that_node(tmp_path: Path, said: bytes) -> None:
    def program(channel: paramiko.Channel, command: str) -> int:
        channel.sendall(said)
        channel.sendall_stderr(b"  File x\nMemoryError: \x07no memory\n")
        return 1

    found = ask(tmp_path, program)
    assert found.facts is None
    assert found.errors[-1].failure is Failure.REPLY
    assert "MemoryError: no memory" in found.errors[-1].found


@pytest.mark.proves("secrets", "A proxy's password appears in no argument on a node.")
def test_nothing_of_the_probes_options_is_in_the_arguments(tmp_path: Path) -> None:
    seen: list[str] = []

    def program(channel: paramiko.Channel, command: str) -> int:
        seen.append(command)
        return says(lambda data: None)(channel, command)

    (server,), key = served(tmp_path, program)
    with listening(server.serve) as port:
        (tmp_path / "known_hosts").write_text(known(port, *server.host_keys))
        one = replace(host(port, key), variables={"cluster_http_proxy": "http://me:canary@proxy:3128"})
        contact.ask(one, Access(tmp_path / "known_hosts"), {"network": preflight.network_options(one)})
    assert seen
    assert not any("canary" in command for command in seen)
