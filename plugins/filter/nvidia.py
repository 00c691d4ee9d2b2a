"""Filters for the driver that GPUs of a generation need, and for the driver that CUDA toolkits need."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

UNKNOWN = "unknown"
KINDS = ("open", "proprietary")
# Variables of role nvidia_driver that `driver` uses; there with the prefix __nvidia_driver_.
TABLES = (
    "default_branch", "devices", "distributions", "first_open", "first_versions", "last_proprietary", "needs",
    "repositories",
)  # fmt: skip
# dkms signs with this key if it exists, except on Ubuntu (dkms(8), mok_signing_key). At the next boot, the console asks
# for the password of the import.
ENROLL = (
    "mkdir -p /var/lib/dkms; cd /var/lib/dkms; [ -e mok.pub ] || openssl req -new -x509 -nodes -days 36500 "
    "-newkey rsa:2048 -subj /CN=dkms/ -keyout mok.key -outform DER -out mok.pub; mokutil --import mok.pub; "
    "reboot, and confirm at the console"
)


def generation(device: str, table: Sequence[Mapping[str, str]]) -> str:
    """Return the generation of a GPU by its PCI device id (hexadecimal), ``unknown`` if the table does not have it.

    The table's rows are ranges of ids, ``first`` to ``last``.
    """
    number = int(device, 16)
    rows = (row for row in table if int(row["first"], 16) <= number <= int(row["last"], 16))
    return next((row["generation"] for row in rows), UNKNOWN)


def numbers(version: str) -> list[int]:
    """Return the numbers of a version for comparison."""
    return [int(number) for number in re.findall(r"\d+", version)]


def system_of(distribution: str, family: str, version: str) -> str:
    """Return a system's name in the tables: debian-13, ubuntu-24 or, for the whole RHEL family, redhat-9."""
    return f"{distribution.lower() if family == 'Debian' else 'redhat'}-{version.partition('.')[0]}"


def driver(look: Mapping[str, Any], wanted: Mapping[str, Any], tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the driver for a node's GPUs: source, modules, branch, the version's pattern, and the problems.

    ``look`` has the PCI ``devices``; ``secure_boot``, whether the firmware accepts only signed modules;
    ``key_enrolled``, whether it has the key of dkms; the version of the loaded ``driver``; and the packages that the
    role has installed (``brought``). ``wanted`` has the inventory's settings (``source``, ``modules``, ``branch``,
    ``version``, ``fingerprint``, ``gdrcopy``), ``auto`` or empty for an automatic choice, and the node's ``system`` and
    ``architecture``. ``tables`` are those of TABLES in vars/main.yml of role nvidia_driver, without their prefix.
    Unknown GPUs are taken as newer than the table. If the first branch of a GPU is not known, the inventory must set
    one. GPUs that are too old for the default branch get the last branch that supports them.
    """
    table, needs, problems = tables["devices"], tables["needs"], []
    signed = _takes_signed(look, wanted)
    source = "distribution" if signed else wanted["source"]
    known = dict.fromkeys(generation(device, table) for device in look["devices"])
    required = [{**needs.get(name, needs["newest"]), "name": name} for name in known]
    # Without GPUs (an image for GPU servers) every kind is possible.
    fit = [kind for kind in KINDS if all(kind in need["modules"] for need in required)]
    if not fit:
        lists = "; ".join(f"{need['name']}: {' or '.join(need['modules']) or 'none'}" for need in required)
        problems.append(f"no kernel modules support all GPUs of the node ({lists})")
    named = wanted["branch"] or wanted["version"].partition(".")[0]
    closed = bool(named) and int(named) < int(tables["first_open"])
    choice = [kind for kind in fit or KINDS if not (closed and kind == "open")]
    modules = wanted["modules"] if wanted["modules"] in KINDS else (choice or fit or KINDS)[0]
    if closed and modules == "open":
        problems.append(f"open modules need branch {tables['first_open']} or newer, got {named}")
    if fit and modules not in fit:
        problems.append(f"{modules} modules do not support {_list(known)}: nvidia_driver_modules: {fit[0]}")
    offered, obstacles = _offered(source, wanted, tables)
    problems += obstacles
    last = [(need["last_branch"], need["name"]) for need in required if need.get("last_branch")]
    newest = min([offered["default"], *(end for end, _ in last)], key=int)
    branch = named or newest
    if not named and offered["first"] and int(newest) < int(offered["first"]):
        problems.append(
            f"the package source has branch {offered['first']} and newer, but {newest} is the last for "
            f"{_list(name for end, name in last if end == newest)}: nvidia_driver_source: distribution"
        )
    if offered["only"] is not None and modules not in offered["only"].get(branch, ()):
        problems.append(f"{_called_system(wanted)}'s packages have no {modules} modules of branch {branch}")
    if wanted["version"] and wanted["version"].partition(".")[0] != branch:
        problems.append(f"nvidia_driver_version {wanted['version']} is not of nvidia_driver_branch {branch}")
    last += [(tables["last_proprietary"], "proprietary modules")] if modules == "proprietary" else []
    problems += [f"branch {end} is the last for {what}, got {branch}" for end, what in last if int(branch) > int(end)]
    first = [(need["first_branch"], need["name"]) for need in required if need.get("first_branch", UNKNOWN) != UNKNOWN]
    if not named:
        problems += [
            f"the first branch for {_called(need['name'], look, table)} is not known: nvidia_driver_branch"
            for need in required
            if need.get("first_branch") == UNKNOWN
        ]
    problems += [
        f"{what} needs branch {begin} or newer, got {branch}" for begin, what in first if int(branch) < int(begin)
    ]
    version = wanted["version"] or f"{branch}.*"
    if all(int(branch) >= int(begin) for begin, _ in first):
        begun = {device: tables["first_versions"].get(device) for device in look["devices"]}
        late = [(row["name"], least_version(version, row["versions"])) for row in begun.values() if row]
        problems += [f"{gpu} needs driver {least} or newer, got {version.rstrip('.*')}" for gpu, least in late if least]
    return {
        "generations": list(known),
        "fit": fit,
        "source": source,
        "signed": signed,
        "modules": modules,
        "branch": branch,
        "version": version,
        "problems": problems + _unsigned(look, wanted, signed),
    }


def least_version(version: str, least: Sequence[str]) -> str:
    """Return the oldest driver that supports a GPU if the version is older than that, else an empty text.

    ``least`` has, in order, the first version with that GPU of each branch that started without it. A pattern (580.*)
    is compared by its fixed part: the newest matching version is installed.
    """
    given = numbers(re.sub(r"\d+\*$", "", version))  # 580.9* may be 580.95
    of_branch = [one for one in least if numbers(one)[0] == given[0]]
    for one in of_branch or least[:1]:
        if given < numbers(one)[: len(given)]:
            return one
    return ""


def _takes_signed(look: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Return whether a node gets the modules that Canonical has built and signed.

    They are for Secure Boot, and only for amd64 (NVIDIA/gpu-driver-container, ubuntu24.04/precompiled/local-repo.sh).
    If modules of dkms are loaded, the firmware trusts their key.
    """
    ubuntu = wanted["system"].startswith("ubuntu-") and wanted["architecture"] == "x86_64"
    built = bool(look.get("driver")) and any("dkms" in name for name in look.get("brought", ()))
    return ubuntu and bool(look.get("secure_boot")) and not look.get("key_enrolled") and not built


def _unsigned(look: Mapping[str, Any], wanted: Mapping[str, Any], signed: bool) -> list[str]:
    """Return why the kernel would refuse modules that dkms builds on the node, and the commands that fix it."""
    if not look.get("secure_boot") or look.get("key_enrolled"):
        return []
    if signed:
        gdrcopy = "Secure Boot is on, and the kernel refuses gdrdrv: dkms's key is not enrolled"
        return [f"{gdrcopy}: {ENROLL}"] if wanted["gdrcopy"] else []
    if look.get("driver"):
        return []
    return [f"Secure Boot is on, and the kernel refuses modules of dkms: dkms's key is not enrolled: {ENROLL}"]


def _offered(source: str, wanted: Mapping[str, Any], tables: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return what a package source has for a system, and the problems that prevent its use.

    The result has the ``default`` branch, the ``first`` branch (empty: all), and in ``only`` the kinds of modules by
    branch (None: all).
    """
    system = wanted["system"]
    if source == "distribution":
        own = tables["distributions"].get(system)
        if own is None:
            reason = f"{_called_system(wanted)} has no known NVIDIA driver package"
            return _ANY | {"default": tables["default_branch"]}, [f"{reason}: nvidia_driver_source: nvidia"]
        return {"default": own["branch"], "first": "", "only": own.get("modules")}, []
    row = tables["repositories"].get(system, {})
    first = row.get("first_branches", {}).get(wanted["architecture"], "")
    offered = _ANY | {"default": max(tables["default_branch"], first or "0", key=int), "first": first}
    if not row:
        return offered, [f"NVIDIA has no packages for {_called_system(wanted)}: nvidia_driver_source: distribution"]
    if wanted["fingerprint"] or row["fingerprint"]:
        return offered, []
    key = f"{row['key']}, the key that signs NVIDIA's {row['name']}"
    return offered, [f"the fingerprint of {key}, is not set: nvidia_driver_key_fingerprint"]


_ANY: dict[str, Any] = {"default": "", "first": "", "only": None}


def _called_system(wanted: Mapping[str, Any]) -> str:
    name, _, version = wanted["system"].partition("-")
    return f"{ {'debian': 'Debian', 'ubuntu': 'Ubuntu', 'redhat': 'RHEL'}.get(name, name) } {version}"


def held(name: str, version: str = "") -> dict[str, Any]:
    """Return a package of node_state that only its role updates."""
    return {"name": name, "hold": True} | ({"version": version} if version else {})


def without(packages: Sequence[Any], brought: Iterable[str]) -> list[Any]:
    """Return the packages of node_state, and earlier installed ones that are no longer among them as absent."""
    named = {package["name"] if isinstance(package, dict) else package for package in packages}
    removed = [{"name": name, "state": "absent", "hold": False} for name in brought if name not in named]
    return [*packages, *removed]


def _called(name: str, look: Mapping[str, Any], table: Sequence[Mapping[str, str]]) -> str:
    """Return the name of a generation, or the PCI ids of unknown GPUs."""
    ids = [device for device in look["devices"] if generation(device, table) == UNKNOWN]
    return f"GPUs of the PCI id {', '.join(dict.fromkeys(ids))}" if name == UNKNOWN else name


def _list(names: Iterable[str]) -> str:
    return ", ".join(names) or "any GPU"


def toolkits(
    wanted: Sequence[str],
    look: Mapping[str, Any],
    oldest: Mapping[str, str],
    table: Sequence[Mapping[str, str]],
    needs: Mapping[str, Any],
    bridged: Sequence[str] = (),
) -> list[str]:
    """Return the problems of CUDA toolkits (``12.8``) with a node's driver, if it has one, and its GPUs.

    ``oldest`` has the oldest driver for each major release (minor version compatibility). ``bridged`` are the toolkits
    with compatibility libraries for an older driver.
    """
    version, problems = look["driver"], []
    for toolkit in wanted:
        least = oldest.get(toolkit.partition(".")[0])
        if least is None:
            problems.append(f"CUDA {toolkit} is unknown, expected a release {', '.join(oldest)}")
        elif version and toolkit not in bridged and numbers(version) < numbers(least):
            fit = [major for major, driver in oldest.items() if numbers(driver) <= numbers(version)]
            hint = f"; CUDA {max(fit, key=int)} is compatible with it" if fit else ""
            problems.append(f"CUDA {toolkit} needs driver {least} or newer, got {version}{hint}")
        for name in dict.fromkeys(generation(device, table) for device in look["devices"]):
            last = needs.get(name, needs["newest"]).get("last_cuda")
            if last and numbers(toolkit) > numbers(last):
                problems.append(f"CUDA {toolkit} does not support {name} GPUs; {last} is the last release that does")
    return problems


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {
            "nvidia_driver": driver,
            "nvidia_generation": generation,
            "nvidia_held": held,
            "nvidia_system": system_of,
            "nvidia_toolkits": toolkits,
            "nvidia_without": without,
        }
