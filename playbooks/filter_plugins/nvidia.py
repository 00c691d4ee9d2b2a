"""What GPUs of a generation need of their driver, and what toolkits need of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

UNKNOWN = "unknown"
KINDS = ("open", "proprietary")


def generation(device: str, table: Sequence[Mapping[str, str]]) -> str:
    """Return the generation of a GPU by its PCI device id (hexadecimal), ``unknown`` for one the table has not.

    Its rows are ranges of ids, ``first`` to ``last``.
    """
    number = int(device, 16)
    rows = (row for row in table if int(row["first"], 16) <= number <= int(row["last"], 16))
    return next((row["generation"] for row in rows), UNKNOWN)


def numbers(version: str) -> list[int]:
    """Return the numbers of a version, to compare."""
    return [int(number) for number in re.findall(r"\d+", version)]


def driver(
    look: Mapping[str, Any], wanted: Mapping[str, str], table: Sequence[Mapping[str, str]], needs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return which driver a node's GPUs get: modules, branch, the version's pattern, and what speaks against it.

    ``wanted`` has what the inventory asks for (``modules``, ``branch``, ``version``), ``auto`` or empty where it leaves
    the choice, the ``default`` branch, for which older GPUs get their own last one, the first branch that the package
    source offers (empty where it has all), the first with open modules, and the last with proprietary ones; ``needs``
    what each generation asks for. GPUs that no table knows are newer than it. Where it is not known which branch is
    the first for a GPU, the inventory has to name one.
    """
    known = dict.fromkeys(generation(device, table) for device in look["devices"])
    asked = [{**needs.get(name, needs["newest"]), "name": name} for name in known]
    problems = []
    # Without GPUs (an image for servers that have some) all is possible.
    fit = [kind for kind in KINDS if all(kind in need["modules"] for need in asked)]
    if not fit:
        told = "; ".join(f"{need['name']}: {' or '.join(need['modules']) or 'none'}" for need in asked)
        problems.append(f"no kernel modules are for all GPUs here ({told})")
    named = wanted["branch"] or wanted["version"].partition(".")[0]
    closed = bool(named) and int(named) < int(wanted["first_open"])
    choice = [kind for kind in fit or KINDS if not (closed and kind == "open")]
    modules = wanted["modules"] if wanted["modules"] in KINDS else (choice or fit or KINDS)[0]
    if closed and modules == "open":
        problems.append(f"branch {wanted['first_open']} is the first with open modules, not {named}")
    if fit and modules not in fit:
        problems.append(f"{modules} modules do not support {_list(known)}: nvidia_driver_modules: {fit[0]}")
    last = [(need["last_branch"], need["name"]) for need in asked if need.get("last_branch")]
    newest = min([wanted["default"], *(end for end, _ in last)], key=int)
    branch = named or newest
    if not named and wanted["first_offered"] and int(newest) < int(wanted["first_offered"]):
        problems.append(
            f"the package source begins with branch {wanted['first_offered']}, and {newest} is the last for "
            f"{_list(name for end, name in last if end == newest)}: nvidia_driver_source: distribution"
        )
    if wanted["version"] and wanted["version"].partition(".")[0] != branch:
        problems.append(f"nvidia_driver_version {wanted['version']} is not of nvidia_driver_branch {branch}")
    last += [(wanted["last_proprietary"], "proprietary modules")] if modules == "proprietary" else []
    problems += [f"branch {end} is the last for {what}, not {branch}" for end, what in last if int(branch) > int(end)]
    first = [(need["first_branch"], need["name"]) for need in asked if need.get("first_branch", UNKNOWN) != UNKNOWN]
    if not named:
        problems += [
            f"it is not known here which branch is the first for {_called(need['name'], look, table)}: "
            "nvidia_driver_branch"
            for need in asked
            if need.get("first_branch") == UNKNOWN
        ]
    problems += [
        f"{what} needs branch {begin} or newer, not {branch}" for begin, what in first if int(branch) < int(begin)
    ]
    return {
        "generations": list(known),
        "fit": fit,
        "modules": modules,
        "branch": branch,
        "version": wanted["version"] or f"{branch}.*",
        "problems": problems,
    }


def held(name: str, version: str = "") -> dict[str, Any]:
    """Return a package of node_state that nobody but its role moves."""
    return {"name": name, "hold": True} | ({"version": version} if version else {})


def without(packages: Sequence[Any], brought: Iterable[str]) -> list[Any]:
    """Return the packages of node_state, and those that were brought earlier and are no longer among them as absent."""
    named = {package["name"] if isinstance(package, dict) else package for package in packages}
    gone = [{"name": name, "state": "absent", "hold": False} for name in brought if name not in named]
    return [*packages, *gone]


def _called(name: str, look: Mapping[str, Any], table: Sequence[Mapping[str, str]]) -> str:
    """Return the name of a generation, or the ids of the GPUs that no table knows."""
    ids = [device for device in look["devices"] if generation(device, table) == UNKNOWN]
    return f"GPUs of the PCI id {', '.join(dict.fromkeys(ids))}" if name == UNKNOWN else name


def _list(names: Iterable[str]) -> str:
    return ", ".join(names) or "any GPU"


def toolkits(
    asked: Sequence[str],
    look: Mapping[str, Any],
    oldest: Mapping[str, str],
    table: Sequence[Mapping[str, str]],
    needs: Mapping[str, Any],
    bridged: Sequence[str] = (),
) -> list[str]:
    """Return what speaks against CUDA toolkits (``12.8``) beside a node's driver, where it has one, and on its GPUs.

    ``oldest`` is the oldest driver of each major release: that will do for all of it (minor version compatibility).
    ``bridged`` are the toolkits that bring compatibility libraries for an older one.
    """
    version, problems = look["driver"], []
    for toolkit in asked:
        least = oldest.get(toolkit.partition(".")[0])
        if least is None:
            problems.append(f"CUDA {toolkit} is not known here, but releases {', '.join(oldest)}")
        elif version and toolkit not in bridged and numbers(version) < numbers(least):
            fit = [major for major, driver in oldest.items() if numbers(driver) <= numbers(version)]
            told = f"; CUDA {max(fit, key=int)} goes with it" if fit else ""
            problems.append(f"CUDA {toolkit} needs driver {least} or newer, and {version} is here{told}")
        for name in dict.fromkeys(generation(device, table) for device in look["devices"]):
            last = needs.get(name, needs["newest"]).get("last_cuda")
            if last and numbers(toolkit) > numbers(last):
                problems.append(f"CUDA {toolkit} no longer supports {name} GPUs; {last} is the last that does")
    return problems


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {
            "nvidia_driver": driver,
            "nvidia_generation": generation,
            "nvidia_held": held,
            "nvidia_toolkits": toolkits,
            "nvidia_without": without,
        }
