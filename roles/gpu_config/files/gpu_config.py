"""Apply the requested settings to this node's GPUs: power limit, clocks, ECC, compute mode, MIG layout.

It changes only what differs from what nvidia-smi reports. Power limit and clocks change under running jobs. The other
settings need idle GPUs: they change if no job runs and slurmd or kubelet cannot start one, as at boot, or if the node
is drained.
Otherwise they wait, and a note reports it.

usage: gpu-config                                   at boot: apply the saved settings
       gpu-config --again                           after a job: apply what is set; print what has to wait
       gpu-config --given JSON [--check [--halt]] [--drained]
                                                    for the role: print the changes, made or needed, as JSON
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import gpu_node
import nvidia_smi
from gpu_node import CLOCK_LOCKS, GPU_SERVICES, KUBELET, PERSISTENCED, NodeError, systemd_property
from gpu_settings import ALL, DEFAULT, NONE, ORDER, Data, Settings, Step, layout_of
from nvidia_smi import Gpu

# What was or may have been set and was not reverted since. It is written before a change, in case the run is killed.
RECORD = Path("/var/lib/clusterctl/gpu-config.json")
# The services that are stopped while GPUs change; the file exists until they have been started again.
UNFINISHED = Path("/run/clusterctl/gpu-config-unfinished.json")
# Exists while slurmd is stopped so that the head can configure instances that are not there yet.
HALTED = Path("/run/clusterctl/gpu-config-halted.json")
# Held while GPUs are configured: a job may end meanwhile.
LOCK = Path("/run/clusterctl/gpu-config.lock")
AGAIN_SECONDS = 30.0
DRIVER = Path("/sys/module/nvidia")
CAPABILITIES = Path("/proc/driver/nvidia/capabilities")
MIG_LINKS = Path("/dev/nvidia-mig")
CDI = "nvidia-cdi-refresh.service"
SLURMD = "slurmd.service"  # it reads the devices at its start
SERVICE_SECONDS = 300


def has_jobs(proc: Path = Path("/proc")) -> bool:
    """Return whether a Slurm job runs: root runs slurmstepd for it. Any user can forge the title of a process."""
    for path, argv in gpu_node.root_processes(proc):
        if argv[0].startswith("slurmstepd: ["):
            with contextlib.suppress(OSError):
                # Debian's name is slurmstepd-wlm; a program that was replaced ends with "(deleted)".
                if re.search(r"/slurmstepd[^/]*$", os.readlink(path / "exe")):
                    return True
    return False


def is_running(unit: str) -> bool:
    """Return whether a unit runs or starts; one that waits for gpu-config's own unit does not."""
    return systemd_property(unit, "ActiveState") in ("active", "reloading", "activating")


# --- requested settings -----------------------------------------------------------------------------------------------


def has_settings(given: Data) -> bool:
    """Return whether anything is requested."""
    return any(given.get(setting) for setting in ALL) or bool(given.get("mig_gpus"))


def with_reverted(given: Data, before: Data) -> Data:
    """Return what is requested, and the card's default for what was requested before and no longer is."""
    dropped = {setting: DEFAULT for setting in ALL if before.get(setting) and not given.get(setting)}
    layouts = dict.fromkeys(before.get("mig_gpus", {}), NONE) if not given.get("mig") else {}
    if "mig" in dropped:
        dropped["mig"] = NONE
    return {**given, **dropped, "mig_gpus": {**layouts, **given.get("mig_gpus", {})}}


def merge(before: Data, now: Data) -> Data:
    """Return what is requested now, and what was requested before; only settings that have a value."""
    layouts = {**before.get("mig_gpus", {}), **now.get("mig_gpus", {})}
    found = {**before, **{setting: value for setting, value in now.items() if value}, "mig_gpus": layouts}
    return {setting: value for setting, value in found.items() if value}


def describe(steps: list[Step]) -> list[Data]:
    """Return changes as data, the same change of several GPUs as one."""
    groups: dict[tuple[str, str, str, str], list[str]] = {}
    for step in steps:
        action = "partitioned" if step.setting == "mig" else "changed"
        groups.setdefault((step.name, action, str(step.was), str(step.to)), []).append(str(step.gpu.index))
    return [
        {"kind": f"GPU {', '.join(gpus)}", "name": name, "action": action, "what": f"{to}, was {was}", "from": was,
         "to": to}
        for (name, action, was, to), gpus in groups.items()
    ]  # fmt: skip


# --- state between runs -----------------------------------------------------------------------------------------------


def load_settings(path: Path) -> Data:
    """Return the settings in a file; ends the program if they are unreadable."""
    try:
        return dict(json.loads(path.read_text()))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        sys.exit(f"{path}: {error}")


def save_record(settings: Data) -> None:
    """Record what is set, or remove the record if nothing is."""
    if settings != load_settings(RECORD):
        gpu_node.write_json(RECORD, settings)
    if not settings:
        RECORD.unlink(missing_ok=True)


def load_locks() -> dict[str, dict[str, str]]:
    """Return the clocks that were locked since the driver was loaded, by UUID of the GPU."""
    kept = gpu_node.read_json(CLOCK_LOCKS, None)
    return kept["locks"] if isinstance(kept, dict) and kept.get("driver") == driver_id() else {}


def driver_id() -> str:
    """Return a text that changes when the driver is loaded, or when nvidia-persistenced has restarted."""
    try:
        module = DRIVER.stat().st_ino
    except OSError:
        module = 0  # a container uses its host's
    return f"{module} {systemd_property(PERSISTENCED, 'InvocationID')}"


def stopped_units() -> list[str]:
    """Return the units that an earlier run has stopped and not started again."""
    return [unit for path in (UNFINISHED, HALTED) for unit in gpu_node.read_json(path, [])]


# --- changes ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def paused(units: tuple[str, ...], *, boot: bool) -> Iterator[None]:
    """Stop those of the units that run; start them again in reverse order, and those that an earlier run has stopped.

    slurmd is stopped first: a slurmd that reloads its configuration waits 20 s for devices that it names and that do
    not exist. If they appear meanwhile, its new process would not know that it was stopped.
    """
    left = stopped_units()
    held = [unit for unit in (SLURMD, *GPU_SERVICES) if unit in left or (unit in units and is_running(unit))]
    if units:
        gpu_node.write_json(UNFINISHED, held)
    with contextlib.ExitStack() as stack:
        for unit in held:
            # At boot these units start after gpu-config's own. Otherwise slurmd must not start it: slurmd requires it.
            how = "--no-block" if boot and unit != PERSISTENCED else "--job-mode=ignore-requirements"
            stack.callback(gpu_node.run, "systemctl", "start", how, unit, seconds=SERVICE_SECONDS)
            gpu_node.run("systemctl", "stop", unit, seconds=SERVICE_SECONDS)
        if KUBELET in held:
            gpu_node.end_device_plugin()
        yield


def halt_slurmd() -> None:
    """Stop slurmd, if no job runs, until the GPUs are partitioned.

    With the head's new configuration slurmd would report fewer instances than configured. Slurm would then replace
    clusterctl's drain reason with its own, and clusterctl would no longer resume the node.
    """
    if is_running(SLURMD) and not has_jobs():
        gpu_node.write_json(HALTED, [SLURMD])
        gpu_node.run("systemctl", "stop", SLURMD, seconds=SERVICE_SECONDS)


def configure(given: Data, before: Data, *, drained: bool = False, check: bool = False, boot: bool = False) -> Data:
    """Apply the requested settings; return the changes that were made or are needed, and what has to wait.

    `before` is what was requested last. Of the result, `kept` applies from now on and at every boot, without what
    waits; `layouts` is how each GPU is partitioned then. Raises NodeError for a value that a GPU does not support.
    """
    answer: Data = {"changes": [], "notes": [], "kept": given, "layouts": {}}
    requested = with_reverted(given, before)
    if not has_settings(requested) and not stopped_units() and not UNFINISHED.exists():
        return answer
    gpus, locks = nvidia_smi.read_gpus(), {} if UNFINISHED.exists() else load_locks()
    settings = Settings(requested, locks)
    require_numbers(given, gpus)
    steps = list(settings.steps(gpus, *ALL))  # validates every value before anything changes
    # With --check --drained the node will be drained, so its jobs will have ended.
    starts_jobs = is_running(SLURMD) or (KUBELET in GPU_SERVICES and is_running(KUBELET))
    is_idle = (drained and check) or (not has_jobs() and (drained or not starts_jobs))
    waiting = [] if is_idle else [step for step in steps if step.needs_idle]
    due = [step for step in steps if step not in waiting]
    late = {step.setting for step in waiting}
    layouts = {str(gpu.index): layout_of(gpu) for gpu in gpus}
    answer["kept"] = {**given, **{setting: before.get(setting, "") for setting in late}}
    if "mig" in late:
        answer["kept"].update(kept_layouts(settings, before, gpus))
    answer["layouts"] = {**layouts, **{str(step.gpu.index): step.to for step in due if step.setting == "mig"}}
    answer["changes"] = describe(due)
    if UNFINISHED.exists() or (HALTED.exists() and not any(step.setting == "mig" for step in due)):
        what = "started, which an earlier run did not do"
        answer["changes"].append({"kind": "services", "name": "of the GPUs", "action": "started", "what": what})
    answer["notes"] = [
        f"{one['kind']}: {one['name']} {one['what']}, once the node is drained for it: "
        "clusterctl upgrade --only gpu_config"
        for one in describe(waiting)
    ]
    if not check:
        save_record(merge(before, answer["kept"]))
        try:
            apply(settings, {step.setting for step in due}, boot=boot)
        finally:
            gpu_node.write_json(CLOCK_LOCKS, {"driver": driver_id(), "locks": locks})
        save_record(merge({}, answer["kept"]))
    return answer


def require_numbers(given: Data, gpus: list[Gpu]) -> None:
    """Raise NodeError if layouts of single GPUs have numbers without a GPU, or numbers that may have changed."""
    layouts = given.get("mig_gpus", {})
    if unknown := sorted({*layouts} - {str(gpu.index) for gpu in gpus}):
        raise NodeError(f"gpu_config_mig_gpus: there is no GPU {', '.join(unknown)}, expected 0 to {len(gpus) - 1}")
    lost = sorted({*filter(None, given.get("uuids", []))} - {gpu.uuid for gpu in gpus})
    if layouts and lost:  # after a reboot the driver numbers the other GPUs without it
        raise NodeError(f"gpu_config_mig_gpus: {', '.join(lost)} is missing, so the numbers may be those of other GPUs")


def kept_layouts(settings: Settings, before: Data, gpus: list[Gpu]) -> Data:
    """Return the layouts that apply while new ones wait: those requested before, also of a GPU that has lost its own.

    The next boot restores a lost layout, and until then the health check reports it.
    """
    old = Settings(before, {})
    layouts = {gpu: old.requested(gpu, "mig") for gpu in gpus if settings.requested(gpu, "mig")}
    if all(layouts.values()):  # as written in the inventory, so that the file on the node does not change
        return {"mig": before.get("mig", ""), "mig_gpus": before.get("mig_gpus", {})}
    return {"mig": "", "mig_gpus": {str(gpu.index): layout or layout_of(gpu) for gpu, layout in layouts.items()}}


def apply(settings: Settings, due: set[str], *, boot: bool) -> None:
    """Apply these settings in their order, each compared with what nvidia-smi reports then."""
    exclusive, driver = due & {"ecc", "mig"}, driver_id()
    left = UNFINISHED.exists() or HALTED.exists()
    with paused((SLURMD, *GPU_SERVICES) if exclusive else (SLURMD,) if left else (), boot=boot):
        try:
            for part in ORDER[:-1] if exclusive else ():
                for step in settings.steps(nvidia_smi.read_gpus(), *part):
                    step.apply()
        finally:
            update_links(nvidia_smi.read_gpus())
        if UNFINISHED.exists() and systemd_property(CDI, "LoadState") == "loaded":
            gpu_node.run("systemctl", "start", *["--no-block"] * boot, CDI, seconds=SERVICE_SECONDS)
    if driver_id() != driver:
        settings.locks.clear()
    # A reset has cleared settings that were as requested before it. Where one is allowed, nothing has to wait.
    last = (setting for setting in ORDER[-1] if exclusive or setting in due)
    for step in settings.steps(nvidia_smi.read_gpus(), *last):
        step.apply()
    for path in (UNFINISHED, HALTED):
        path.unlink(missing_ok=True)


def update_links(gpus: list[Gpu]) -> None:
    """Link the device files of each instance below MIG_LINKS, and remove the links of instances that no longer exist.

    gpuN/gi-PROFILE-I and gpuN/ci-PROFILE-I are instance I of a profile on GPU N, whatever numbers the driver assigns.
    """
    wanted = {}
    for gpu in gpus:
        minor = gpu.text("minor_number")
        count: Counter[str] = Counter()
        instances = gpu.mig_instances if gpu.is_mig_enabled else []
        for one in sorted(instances, key=lambda one: (one.gpu_instance, one.compute_instance)):
            folder = CAPABILITIES / f"gpu{minor}/mig/gi{one.gpu_instance}"
            for kind, access in (("gi", folder / "access"), ("ci", folder / f"ci{one.compute_instance}/access")):
                link = MIG_LINKS / f"gpu{minor}" / f"{kind}-{one.profile}-{count[one.profile]}"
                wanted[link] = f"/dev/nvidia-caps/nvidia-cap{capability_minor(access)}"
            count[one.profile] += 1
    for link in MIG_LINKS.glob("gpu*/*"):
        if link not in wanted or os.readlink(link) != wanted[link]:
            link.unlink()
    for link, target in wanted.items():
        link.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        if not link.is_symlink():
            link.symlink_to(target)
    for folder in MIG_LINKS.glob("gpu*"):
        if not any(folder.iterdir()):
            folder.rmdir()


def capability_minor(access: Path) -> int:
    """Return the minor number of the device file that grants access to an instance. Raises NodeError."""
    try:
        found = re.search(r"DeviceFileMinor:\s*(\d+)", access.read_text())
    except OSError as error:
        raise NodeError(f"{access}: {error.strerror}") from None
    if not found:
        raise NodeError(f"{access}: no DeviceFileMinor")
    return int(found.group(1))


def join_errors(error: BaseException | None) -> str:
    """Return the text of an error and of those before it, in the order of time: later ones may be consequences."""
    texts: list[str] = []
    while error:
        if isinstance(error, NodeError) and not any(str(error) in text for text in texts):
            texts.insert(0, str(error))
        error = error.__context__
    return "; ".join(texts)


def main(arguments: list[str]) -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="gpu-config", description=__doc__.partition("\n")[0])
    parser.add_argument("--again", action="store_true", help="apply what was set last, print what has to wait")
    parser.add_argument("--given", type=json.loads, metavar="JSON", help="settings to apply, not the saved ones")
    parser.add_argument("--check", action="store_true", help="change nothing, print what is needed")
    parser.add_argument("--drained", action="store_true", help="the node is drained, so settings for idle GPUs change")
    parser.add_argument("--halt", action="store_true", help="with --check: stop slurmd if a MIG layout will change")
    options = parser.parse_args(arguments)
    if os.geteuid() != 0:
        sys.exit("gpu-config: only root may set GPUs")
    LOCK.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(LOCK, "w") as lock:
        take(lock, AGAIN_SECONDS if options.again else None)
        run(options)


def take(lock: TextIO, seconds: float | None) -> None:
    """Take the lock; end the program if that takes longer: slurmd, which is stopped meanwhile, waits for its Epilog."""
    until = None if seconds is None else time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX if until is None else fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if until is not None and time.monotonic() > until:
                sys.exit("gpu-config: another one is at work")
            time.sleep(0.1)


def run(options: argparse.Namespace) -> None:
    """Configure the GPUs, and print the result."""
    boot = options.given is None and not options.again
    kept = load_settings(RECORD if options.again else gpu_node.GPU_SETTINGS)
    given = kept if options.given is None else options.given
    before = merge(kept, load_settings(RECORD))
    try:
        answer = configure(given, before, drained=options.drained, check=options.check, boot=boot)
        if options.halt and any(change["action"] == "partitioned" for change in answer["changes"]):
            halt_slurmd()
    except NodeError as error:
        if has_settings(given):
            sys.exit(join_errors(error))
        # Removing the role must work with a dead driver, too.
        note = f"the GPUs may keep what was set: {join_errors(error)}"
        answer = {"changes": [], "notes": [note], "kept": kept, "layouts": {}}
    if options.given is not None:
        print(json.dumps(answer))
        return
    for change in answer["changes"] if boot else ():
        print(f"{change['kind']}: {change['name']} {change['what']}")
    for note in answer["notes"]:
        print(note)
