"""What each supported system's package repositories have, as far as public sources tell, and what our roles ask of it.

A file of repositories/ is one repository: of each package the versions that a source shows, not all that there are.
`sources` says where that was read and when; a fact has a key of it, or the source itself. `virtual` is a name that
other packages provide: apt and dnf install it by that name, but take no version for it. `absent` is what a source says
is not there, `unknown` what was looked for and not found. `branches` are those of the driver that a source shows,
`first_branch` the one before which a source says there is none. <kernel> in a name is what `uname -r` prints. EPEL 10
has a tree for each minor release: a build for a later one (el10_3) is not known of an earlier.

All that is of x86_64. `aarch64` has what its own repository has: with `like_x86_64`, a source, only what differs.

usage: python -m tests.systems.packages > docs/packages.md
"""

import functools
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ansible.module_utils.node_state.packages import matches

from tests.systems.rendering import (
    CONTENT,
    KERNELS,
    PACKAGED,
    SCHEDULERS,
    SYSTEMS,
    WITH_ADDRESS,
    Cluster,
    Role,
    a_cluster,
    load,
    look,
    roles_of,
    system_of,
)

HERE = Path(__file__).resolve().parent
VENDORS = ("nvidia-container-toolkit", "enroot", "gdrcopy")
# SchedMD publishes files to build packages from, and no repository.
SCHEDMD = "schedmd"
APT = ("docker-apt", "grafana-apt", "elastic-apt", "kubernetes-apt", *VENDORS)
RPM = ("docker-rpm", "grafana-rpm", "elastic-rpm", "kubernetes-rpm", *VENDORS)
REPOSITORIES = {
    "debian-12": ("debian-12", "nvidia-debian12", *APT),
    "debian-13": ("debian-13", "nvidia-debian13", *APT),
    "debian-testing": ("debian-testing", *APT),
    "ubuntu-22.04": ("ubuntu-22.04", "nvidia-ubuntu2204", *APT, "apptainer"),
    "ubuntu-24.04": ("ubuntu-24.04", "nvidia-ubuntu2404", *APT, "apptainer"),
    "rocky-9": ("rhel-9", "epel-9", "nvidia-rhel9", *RPM),
    "centos-9": ("rhel-9", "epel-9", "nvidia-rhel9", *RPM),
    "almalinux-10": ("rhel-10", "epel-10", "nvidia-rhel10", *RPM),
    "centos-10": ("rhel-10", "epel-10", "nvidia-rhel10", *RPM),
    "rhel-10": ("rhel-10", "epel-10", "nvidia-rhel10", *RPM),
}
# CUDA 12 is not published for RHEL 10, whose key NVIDIA's own list does not have.
OWN = {
    name: {"nvidia_cuda_toolkits": ["13.0"], "nvidia_driver_key_fingerprint": "0" * 40}
    for name in ("almalinux-10", "centos-10", "rhel-10", "rhel-10-aarch64")
}
# What decides over the driver's names: GPUs by PCI device id, switches, source, tools. Roles refuse what cannot be.
DRIVER_ROLES = ("nvidia_driver", "nvidia_cuda", "dcgm_exporter")
GRACE = {"devices": ["2342"], "fabric": ""}
VARIANTS: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "V100": ({"devices": ["1db4"], "fabric": ""}, {"nvidia_cuda_toolkits": ["12.8"], "nvidia_cuda_compat": []}),
    "L40S": ({"devices": ["26b9"], "fabric": ""}, {}),
    "B200": ({"devices": ["2901"], "fabric": "nvlink5"}, {}),
    "gdrcopy": ({"devices": ["2330"], "fabric": ""}, {"nvidia_driver_gdrcopy": True}),
    "distribution": ({"devices": ["2330"]}, {"nvidia_driver_source": "distribution", "nvidia_driver_imex_nodes": []}),
    "distribution, no switches": (
        {"devices": ["26b9"], "fabric": ""},
        {"nvidia_driver_source": "distribution", "nvidia_driver_imex_nodes": [], "slurm_head_mps": 100},
    ),
    "distribution, V100": (
        {"devices": ["1db4"], "fabric": ""},
        {"nvidia_driver_source": "distribution", "nvidia_driver_imex_nodes": []},
    ),
    # Canonical's signed modules, on Ubuntu alone.
    "Secure Boot": ({"devices": ["2330"], "secure_boot": True}, {"nvidia_driver_imex_nodes": []}),
    "Secure Boot, V100": (
        {"devices": ["1db4"], "fabric": "", "secure_boot": True},
        {"nvidia_driver_imex_nodes": [], "nvidia_cuda_toolkits": ["12.8"], "nvidia_cuda_compat": []},
    ),
}
# On aarch64 there is no driver for Volta, and no GPU has the switches of x86_64: GH200, GB200.
VARIANTS_AARCH64: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "GH200": (GRACE, {}),
    "GB200": ({"devices": ["2941"], "fabric": ""}, {}),
    "distribution": (GRACE, {"nvidia_driver_source": "distribution", "nvidia_driver_imex_nodes": []}),
}
# A cluster whose Slurm is built from SchedMD's files; all of its packages have the pin.
SLURM_ROLES = ("login", "slurm_head", "slurmrestd", "slurm_worker", "slurm_logins", "pyxis")
SLURM_SOURCE = {"slurm_head_source": "schedmd", "slurm_head_version": "25.11.*"}
# The running kernel's own packages have its name in theirs, or its version.
OF_A_BRANCH = re.compile(r"(lib|kmod-)?nvidia|libcuda1$")
OF_THE_KERNEL = re.compile(r"linux-(image|headers)-\d|kernel(-64k|-rt)?-(devel|modules-extra)$")
# On aarch64 these alone are looked at where the distribution's table has no listing of that.
OF_NVIDIA = re.compile(r"(lib|kmod-)?nvidia|cuda-|libnccl|libnv|nvlsm|datacenter-gpu|gdr|libgdr")


@dataclass(frozen=True, order=True)
class Request:
    """A package that a role asks for, by a version's pattern or empty, and whose: NVIDIA's where both have the name.

    `origin` is "distribution" for that of the distribution itself, or "schedmd".
    """

    role: str
    name: str
    version: str = ""
    origin: str = ""

    def __str__(self) -> str:
        return f"{self.name}={self.version}" if self.version else self.name


@functools.cache
def repository(name: str, architecture: str = "x86_64") -> Any:
    document = load(HERE / f"repositories/{name}.yaml")
    if architecture == "x86_64":
        return document
    other = {"packages": {}, "absent": {}, "unknown": [], **document.get(architecture, {})}
    named = {*document["packages"], *document["absent"], *document["unknown"]} - {*other["packages"], *other["absent"]}
    like: Any = document if "like_x86_64" in other else {"packages": {}, "absent": {}, "unknown": sorted(named)}
    return document | {
        "packages": {one: fact for one, fact in like["packages"].items() if one in named} | other["packages"],
        "absent": {one: source for one, source in like["absent"].items() if one in named} | other["absent"],
        "unknown": [*(one for one in like["unknown"] if one in named), *other["unknown"]],
        "first_branch": other.get("first_branch"),
    }


def repositories_of(system: str) -> list[Any]:
    names = REPOSITORIES[system.removesuffix("-aarch64")]
    return [repository(name, system_of(system).architecture) for name in names]


@functools.cache
def requests(system: str) -> set[Request]:
    """Return what all roles ask for on a head and a worker with NVSwitches, and some of them on others."""
    found = set()
    refused = {path.parent.parent.name for path in CONTENT.glob("roles/*/meta/systems.yml") if _refuses(path, system)}
    given = system_of(system)
    whole = given.architecture == "x86_64" or given.distribution == "Debian"
    for scheduler in SCHEDULERS:
        with tempfile.TemporaryDirectory() as folder:
            cluster = a_cluster(Path(folder), system, scheduler, **WITH_ADDRESS)
            for host in cluster.hosts:
                names = {path.name for path in roles_of(scheduler)} if whole else {"nvidia_container_toolkit"}
                # On others the driver's roles are looked at by variants: not all have a driver for this worker.
                for name in sorted(names - refused - (set() if system in SYSTEMS else {*DRIVER_ROLES})):
                    found |= _of_role(cluster.role(name, host, **OWN.get(system, {})))
    with tempfile.TemporaryDirectory() as folder:
        cluster = a_cluster(Path(folder), system)
        for name in VARIANTS if given.architecture == "x86_64" else VARIANTS_AARCH64:
            found |= {
                one for role in variant(cluster, system, name) if role.name not in refused for one in _of_role(role)
            }
        cluster.found = None
        for host in cluster.hosts if whole else ():
            cluster.set(host, **SLURM_SOURCE)
            for role in (cluster.role(name, host, **OWN.get(system, {})) for name in SLURM_ROLES):
                found |= {replace(one, origin=SCHEDMD) for one in _of_role(role) if "slurm" in one.name}
    return {one for one in found if whole or OF_NVIDIA.match(one.name)}


def variant(cluster: Cluster, system: str, name: str) -> Iterator[Role]:
    """Yield the roles of the driver on a worker of another kind, but none that refuses it."""
    given, variables = (VARIANTS if system_of(system).architecture == "x86_64" else VARIANTS_AARCH64)[name]
    cluster.found = look(system, **given)
    for role in DRIVER_ROLES:
        one = cluster.role(role, "gpu01", **{**variables, **OWN.get(system, {})})
        if _fits(one):
            yield one
        elif role == "nvidia_driver":  # and without a driver the node stays out of service
            return


def _fits(role: Role) -> bool:
    """Tell whether a role of the driver does not refuse the node."""
    problems = f"__{role.name}_problems"
    return problems not in role.variables or role.value(problems) == []


def _of_role(role: Role) -> set[Request]:
    """Return what a role asks for; the driver's packages are NVIDIA's or the distribution's."""
    own = role.name == "nvidia_driver" and not role.value("__nvidia_driver_vendor")
    asked = {request for _, call in role.calls() for request in of_call(role.name, call)}
    return {replace(request, origin="distribution" if own else "") for request in asked}


def _refuses(declared: Path, system: str) -> bool:
    """Tell whether preflight refuses a role on a system for want of its packages."""
    one = system_of(system)
    versions = (one.version_id, one.version_id.partition(".")[0])
    names = {f"{name}-{version}" for name in (one.id, one.family.lower()) for version in versions}
    listed = [entry["system"] for entry in load(declared)]
    return any(names & ({given} if isinstance(given, str) else {*given}) for given in listed)


def of_call(role: str, call: dict[str, Any]) -> Iterator[Request]:
    listed = call.get("packages", [])
    for package in listed.split(",") if isinstance(listed, str) else listed:
        given = {"name": package} if isinstance(package, str) else package
        # A file that is downloaded by its URL is in no repository; role packages collects what the others ask for.
        if given.get("state") != "absent" and not given.get("url") and role != "packages":
            yield Request(role, given["name"], given.get("version", ""))


def judge(system: str, request: Request) -> tuple[str, str]:
    """Return `known`, `unknown` or `wrong` of a request on a system, and why."""
    if OF_THE_KERNEL.match(request.name):
        return "known", KERNELS[system]
    repositories = repositories_of(system)
    if request.origin == "distribution":
        repositories = [one for one in repositories if not one["repository"].startswith("nvidia-")]
    elif request.origin == SCHEDMD:
        repositories = [repository(SCHEDMD)]
    name = request.name.replace(KERNELS[system], "<kernel>")
    having = [one for one in repositories if name in one["packages"]]
    # The roles pin NVIDIA's packages to their origin: some names of NVIDIA's are Ubuntu's as well.
    having = [one for one in having if one["repository"].startswith("nvidia-")] or having
    entries = [one["packages"][name] for one in having]
    if not having:
        unsettled = any(name in one["unknown"] for one in repositories)
        if not unsettled and any(name in one["absent"] for one in repositories):
            return "wrong", f"no repository of {system} has {request.name}"
        return "unknown", "the name"
    shown = [version for entry in entries for version in entry.get("versions", [])]
    versions = [version for version in shown if _is_built_for(version, system)]
    if shown and not versions:
        return "unknown", f"in the tree of {system_of(system).version}; elsewhere {', '.join(shown)}"
    if not request.version:
        return "known", ""
    if all(entry.get("virtual") for entry in entries):
        return "wrong", f"{request.name} is virtual on {system}, so a version of it cannot be asked for"
    for one in having:
        first = one.get("first_branch")
        if first and OF_A_BRANCH.match(request.name) and 300 <= _branch(request.version) < int(first["branch"]):
            return "wrong", f"{one['repository']} has no branch before {first['branch']} ({first['source']})"
    if any(matches(version, request.version) for version in versions):
        return "known", ""
    return "unknown", f"a version {request.version}"


def _branch(pin: str) -> int:
    """Return the driver's branch that a pin names; 0 where it names none."""
    number = pin.partition(".")[0]
    return int(number) if number.isdigit() else 0


def _is_built_for(version: str, system: str) -> bool:
    """Tell whether a build is in the tree of a system's minor release: EPEL 10 names it, el10_3."""
    minor = re.search(r"[.]el10_(\d+)$", version)
    _, _, here = system_of(system).version.partition(".")
    return not minor or not here or int(minor[1]) <= int(here)


def markdown() -> str:
    """Return the page about what could not be looked up."""
    lines = [
        "# Package names that were not verified",
        "",
        "<!-- Generated by python -m tests.systems.packages > docs/packages.md -->",
        "",
        "A unit test resolves every package name and pin of every role against `tests/systems/repositories`: what",
        "public sources show of each repository. These could not be looked up. Where one is wrong, the package",
        "manager reports it on the node.",
        "",
        "| system | role | package | not known |",
        "|---|---|---|---|",
    ]
    for system in (*SYSTEMS, *PACKAGED):
        for request in sorted(requests(system)):
            verdict, why = judge(system, request)
            if verdict == "unknown":
                lines.append(f"| {system} | {request.role} | `{request.name}` | {why} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
