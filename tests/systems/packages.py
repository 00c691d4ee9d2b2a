"""What each supported system's package repositories have, as far as public sources tell, and what our roles ask of it.

A file of repositories/ is one repository: of each package the versions that a source shows, not all that there are, and
where that was read (2026-11-23). `virtual` is a name that other packages provide: apt and dnf install it by that name,
but take no version for it. `absent` is what a source says is not there, `unknown` what was looked for and not found.
`branches` are those of the driver that a source shows, `first_branch` the one before which a source says there is none.
EPEL 10 has a tree for each minor release: a build for a later one (el10_3) is not known of an earlier.

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

from tests.systems.rendering import CONTENT, KERNELS, ROLES, SYSTEMS, Cluster, Role, a_cluster, load, look

HERE = Path(__file__).resolve().parent
VENDORS = ("nvidia-container-toolkit", "enroot")
REPOSITORIES = {
    "debian-12": ("debian-12", "nvidia-debian12", "docker-apt", *VENDORS),
    "debian-13": ("debian-13", "nvidia-debian13", "docker-apt", *VENDORS),
    "ubuntu-22.04": ("ubuntu-22.04", "nvidia-ubuntu2204", "docker-apt", "apptainer", *VENDORS),
    "ubuntu-24.04": ("ubuntu-24.04", "nvidia-ubuntu2404", "docker-apt", "apptainer", *VENDORS),
    "rocky-9": ("rhel-9", "epel-9", "nvidia-rhel9", "docker-rpm", *VENDORS),
    "centos-9": ("rhel-9", "epel-9", "nvidia-rhel9", "docker-rpm", *VENDORS),
    "almalinux-10": ("rhel-10", "epel-10", "nvidia-rhel10", "docker-rpm", *VENDORS),
    "rhel-10": ("rhel-10", "epel-10", "nvidia-rhel10", "docker-rpm", *VENDORS),
}
# CUDA 12 is not published for RHEL 10.
OWN = {name: {"nvidia_cuda_toolkits": ["13.0"]} for name in ("almalinux-10", "rhel-10")}
# What decides over the driver's names: GPUs by PCI device id, switches, source, tools. Roles refuse what cannot be.
DRIVER_ROLES = ("nvidia_driver", "nvidia_cuda", "dcgm_exporter")
VARIANTS: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "V100": ({"devices": ["1db4"], "fabric": ""}, {"nvidia_cuda_toolkits": ["12.8"], "nvidia_cuda_compat": []}),
    "L40S": ({"devices": ["26b9"], "fabric": ""}, {}),
    "B200": ({"devices": ["2901"], "fabric": "nvlink5"}, {}),
    "gdrcopy": ({"devices": ["2330"], "fabric": ""}, {"nvidia_driver_gdrcopy": True}),
    "distribution": ({"devices": ["2330"]}, {"nvidia_driver_source": "distribution", "nvidia_driver_imex_nodes": []}),
    "distribution, no switches": (
        {"devices": ["26b9"], "fabric": ""},
        {"nvidia_driver_source": "distribution", "nvidia_driver_imex_nodes": []},
    ),
    "distribution, V100": (
        {"devices": ["1db4"], "fabric": ""},
        {"nvidia_driver_source": "distribution", "nvidia_driver_imex_nodes": []},
    ),
}
# The running kernel's own packages have its name in theirs, or its version.
OF_A_BRANCH = re.compile(r"(lib|kmod-)?nvidia|libcuda1$")
OF_THE_KERNEL = re.compile(r"linux-(image|headers)-\d|kernel(-64k|-rt)?-devel$")


@dataclass(frozen=True, order=True)
class Request:
    """A package that a role asks for, by a version's pattern or empty; `own`: of the distribution's driver."""

    role: str
    name: str
    version: str = ""
    own: bool = False

    def __str__(self) -> str:
        return f"{self.name}={self.version}" if self.version else self.name


@functools.cache
def repository(name: str) -> Any:
    return load(HERE / f"repositories/{name}.yaml")


@functools.cache
def requests(system: str) -> set[Request]:
    """Return what all roles ask for on a head and a worker with NVSwitches, and the driver's roles on others."""
    found = set()
    refused = {path.parent.parent.name for path in CONTENT.glob("roles/*/meta/systems.yml") if _refuses(path, system)}
    with tempfile.TemporaryDirectory() as folder:
        cluster = a_cluster(Path(folder), system)
        for host in cluster.hosts:
            for role in (path.name for path in ROLES if path.name not in refused):
                for _, call in cluster.role(role, host, **OWN.get(system, {})).calls():
                    found |= {*of_call(role, call)}
        for name in VARIANTS:
            for one in variant(cluster, system, name):
                if one.name not in refused:
                    own = (
                        one.name == "nvidia_driver" and VARIANTS[name][1].get("nvidia_driver_source") == "distribution"
                    )
                    asked = {request for _, call in one.calls() for request in of_call(one.name, call)}
                    found |= {replace(request, own=own) for request in asked}
    return found


def variant(cluster: Cluster, system: str, name: str) -> Iterator[Role]:
    """Yield the roles of the driver on a worker of another kind, but none that refuses it."""
    given, variables = VARIANTS[name]
    cluster.found = look(system, **given)
    for role in DRIVER_ROLES:
        one = cluster.role(role, "gpu01", **{**variables, **OWN.get(system, {})})
        problems = f"__{role}_problems"
        if problems not in one.variables or one.value(problems) == []:
            yield one


def _refuses(declared: Path, system: str) -> bool:
    """Tell whether preflight refuses a role on a system for want of its packages."""
    one = SYSTEMS[system]
    return any(
        entry["system"] in (f"{one.id}-{one.major}", f"{one.family.lower()}-{one.major}") for entry in load(declared)
    )


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
    repositories = [repository(name) for name in REPOSITORIES[system]]
    if request.own:
        repositories = [one for one in repositories if not one["repository"].startswith("nvidia-")]
    having = [one for one in repositories if request.name in one["packages"]]
    # The roles pin NVIDIA's packages to their origin: some names of NVIDIA's are Ubuntu's as well.
    having = [one for one in having if one["repository"].startswith("nvidia-")] or having
    entries = [one["packages"][request.name] for one in having]
    if not having:
        unsettled = any(request.name in one["unknown"] for one in repositories)
        if not unsettled and any(request.name in one["absent"] for one in repositories):
            return "wrong", f"no repository of {system} has {request.name}"
        return "unknown", "the name"
    shown = [version for entry in entries for version in entry.get("versions", [])]
    versions = [version for version in shown if _is_built_for(version, system)]
    if shown and not versions:
        return "unknown", f"in the tree of {SYSTEMS[system].version}; elsewhere {', '.join(shown)}"
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
    _, _, here = SYSTEMS[system].version.partition(".")
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
    for system in SYSTEMS:
        for request in sorted(requests(system)):
            verdict, why = judge(system, request)
            if verdict == "unknown":
                lines.append(f"| {system} | {request.role} | `{request.name}` | {why} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
