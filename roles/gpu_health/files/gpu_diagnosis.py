"""gpu-health --diagnose: reset GPUs after a hardware error, restore their settings, test them with DCGM."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import gpu_node
from gpu_checks import Checks, Data, Finding, check_node
from gpu_node import CommandError
from nvidia_smi import Gpu, pci_address

# Services that a diagnosis has stopped and not yet started again.
STOPPED = Path("/run/clusterctl/gpu-health.stopped")
TIMEOUT = 300  # seconds of each command


def diagnose(given: Data, state: Data, report: Callable[[str], None]) -> tuple[list[Finding], Checks]:
    """Reset GPUs with an XID, run the checks, and clear the XIDs if nothing drains. Raises what `report` raises."""
    before = Checks(given, state)
    before.run()  # reads the errors since the last check
    places = [place for place, codes in state["xids"].items() if max(codes.values()) > boot_time()]
    failures = []
    if switches := [place for place in places if place not in before.records]:
        text = f"{' and '.join(switches)} had a fatal error, so the node has to be rebooted"
        return [Finding("diagnosis", text)], before
    # Drains the node, so that no job starts there. If the next report is healthy, the head knows what has passed.
    report("a diagnosis is under way")
    if places:
        groups = reset_groups(given, places, before.gpus)
        try:
            failures = reset(given, groups)
        except CommandError as error:
            names = " or ".join(places)
            text = f"GPU at {names} could not be reset, so the node has to be rebooted: {error.brief}"
            return [Finding("diagnosis", text)], before
        failures += restore_settings(given, [place for group in groups for place in group])
    found, after = check_node(given, state, "xid", with_topology=True)
    found = failures + found
    if not any(finding.drains for finding in found) and shutil.which("dcgmi", path=gpu_node.ENVIRONMENT["PATH"]):
        found += run_dcgm()
    if not any(finding.drains for finding in found):
        state.update(xids={}, unexplained={})
    return found, after


def boot_time() -> float:
    """Return when this system started, in seconds since 1970: that of process 1, as the node may be a container."""
    ticks = int(Path("/proc/1/stat").read_text().rpartition(")")[2].split()[19])
    booted = re.search(r"^btime (\d+)", Path("/proc/stat").read_text(), re.MULTILINE)
    return int(booted.group(1) if booted else 0) + ticks / os.sysconf("SC_CLK_TCK")


def reset_groups(given: Data, places: list[str], gpus: list[Gpu]) -> list[list[str]]:
    """Return the GPUs to reset in one command: before Ampere all that NVLink joins (nvidia-smi(1), --gpu-reset)."""
    if not any(gpu.text("product_architecture") in ("Pascal", "Volta", "Turing") for gpu in gpus):
        return [[place] for place in places]
    records = {pci_address(gpu["pci"]): gpu for gpu in given["gpus"]}
    place_of = {str(gpu["index"]): place for place, gpu in records.items()}
    peers = {place: {place_of[other] for other in gpu["links"] if other in place_of} for place, gpu in records.items()}
    groups: list[list[str]] = []
    for place in places:
        if any(place in group for group in groups):
            continue
        group = [place]
        for one in group:  # the loop appends to it
            group += sorted(peers.get(one, set()) - {*group})
        groups.append(group)
    return groups


def reset(given: Data, groups: list[list[str]]) -> list[Finding]:
    """Reset each group of GPUs; return what could not be restored. Raises CommandError if a reset fails."""
    names = {pci_address(gpu["pci"]): gpu["uuid"] or gpu["pci"] for gpu in given["gpus"]}
    with switched("stop", "start", *gpu_node.GPU_SERVICES) as failures:
        if gpu_node.IS_KUBERNETES:
            gpu_node.end_device_plugin()
        for group in groups:
            gpus = ",".join(names.get(place, f"{place}.0") for place in group)
            gpu_node.run("nvidia-smi", "--gpu-reset", "-i", gpus, seconds=TIMEOUT)
    return failures


@contextlib.contextmanager
def switched(verb: str, back: str, *units: str) -> Iterator[list[Finding]]:
    """Stop those of the units that run, or start those that do not; afterwards restore what they were.

    Yields a list that then gets a finding for each unit that could not be restored. The next run of gpu-health starts
    units that could not be started.
    """
    options = ("--plain", "--no-legend", "--state=active")
    listing = gpu_node.run("systemctl", "list-units", *options, *units, seconds=10)
    running = {line.split()[0] for line in listing.splitlines()}
    changed = [unit for unit in units if (unit in running) == (verb == "stop")]
    if verb == "stop":
        STOPPED.write_text(" ".join(changed))
    failures: list[Finding] = []
    try:
        for unit in changed:
            gpu_node.run("systemctl", verb, unit, seconds=TIMEOUT)
        yield failures
    finally:
        failed = switch_back(back, changed)
        if verb == "stop":
            STOPPED.write_text(" ".join(failed))
        failures += [Finding("diagnosis", error.brief) for error in failed.values()]


def switch_back(verb: str, units: list[str]) -> dict[str, CommandError]:
    """Start or stop units in reverse order; return the error of each that failed."""
    failed = {}
    for unit in reversed(units):
        try:
            gpu_node.run("systemctl", verb, unit, seconds=TIMEOUT)
        except CommandError as error:
            failed[unit] = error
    return failed


def restore_settings(given: Data, places: list[str]) -> list[Finding]:
    """Run gpu-config to restore what a reset of these GPUs has cleared; return a finding for what fails."""
    if not gpu_node.GPU_CONFIG.exists():
        return []
    try:
        if gpu_node.CLOCK_LOCKS.exists():
            kept = json.loads(gpu_node.CLOCK_LOCKS.read_text())
            for gpu in given["gpus"]:
                if pci_address(gpu["pci"]) in places:
                    kept["locks"].pop(gpu["uuid"], None)
            gpu_node.write_json(gpu_node.CLOCK_LOCKS, kept)
        argv = (str(gpu_node.GPU_CONFIG), "--given", gpu_node.GPU_SETTINGS.read_text(), "--drained")
        problems = json.loads(gpu_node.run(*argv, seconds=TIMEOUT))["notes"]
    except (CommandError, OSError, ValueError, KeyError, TypeError) as error:
        problems = [getattr(error, "brief", error)]
    return [Finding("diagnosis", f"settings are not restored after the reset: {problem}") for problem in problems]


def run_dcgm() -> list[Finding]:
    """Run DCGM's quick diagnosis; a failed test drains. A diagnosis that cannot start is only reported."""
    try:
        with switched("start", "stop", gpu_node.DCGM) as failures:
            output = gpu_node.run("dcgmi", "diag", "-r", "1", "-j", seconds=TIMEOUT, accept_failure=True)
        tests = list(dcgm_results(json.loads(output[output.find("{") :])))
    except CommandError as error:
        return [Finding("diagnosis", f"DCGM could not run: {error.brief}", drains=False)]
    except ValueError:
        tests = []
    if not any(status in ("pass", "fail") for _, status, _ in tests):
        return [*failures, Finding("diagnosis", f"DCGM could not run: {output.strip()[:200]}", drains=False)]
    failed: dict[str, bool] = {}
    for name, status, is_setting in tests:
        if status == "fail":
            failed[name] = failed.get(name, False) or not is_setting
    return [*failures, *(Finding("diagnosis", f"DCGM: {name} has failed", drains) for name, drains in failed.items())]


def dcgm_results(output: object, name: str = "a test") -> Iterator[tuple[str, str, bool]]:
    """Yield each result of `dcgmi diag -j`: the test's name, its status, and whether only a setting is wrong.

    DCGM 3 and 4 nest them differently. DCGM gives a wrong setting, such as disabled persistence mode, the severity 5
    (DCGM_ERROR_CONFIG).
    """
    if isinstance(output, list):
        for item in output:
            yield from dcgm_results(item, name)
    elif isinstance(output, dict):
        name = str(output.get("name", name))
        for item in output.get("results") or ():
            if isinstance(item, dict) and isinstance(item.get("status"), str):
                warnings = [one for one in item.get("warnings") or () if isinstance(one, dict)]
                is_setting = bool(warnings) and all(one.get("error_severity") == 5 for one in warnings)
                yield name, item["status"].lower(), is_setting
        for item in output.values():
            yield from dcgm_results(item, name)
