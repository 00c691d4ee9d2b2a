#!/usr/bin/python3
"""Sets this node's GPUs as the inventory asks: power limit, clocks, ECC, compute mode, MIG layout.

It reads what nvidia-smi says of them first and changes only what differs. Power and clocks are set whatever runs. The
rest needs GPUs that nobody uses: it is done where no job runs and no slurmd could start one, as at boot, or where the
node is known to be drained; else it waits, and is told.

Each MIG instance gets names that do not change with the driver's numbering, for Slurm's configuration to name:
/dev/nvidia-mig/gpuN/gi-PROFILE-I and ci-PROFILE-I, I counting the instances of one profile on GPU N.

usage: gpu-config                                   as at boot, by what the role has written down
       gpu-config --given JSON [--check [--halt]] [--drained]
                                                    for the role: prints what it did, or would do, as JSON
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

CONFIGURATION = Path("/etc/clusterctl/gpu-config.json")
# What was or may have been set, and was not taken back since: there before it is set, whatever becomes of the run.
RECORD = Path("/var/lib/clusterctl/gpu-config.json")
# Locked clocks cannot be read. A boot, or a driver that is loaded anew, forgets them.
LOCKS = Path("/run/clusterctl/gpu-config.json")
# There as long as GPUs change of which others have to know: the services that are stopped meanwhile.
UNFINISHED = Path("/run/clusterctl/gpu-config-unfinished.json")
# There from when slurmd was stopped, for the head to name instances that are to come, until they are there.
HALTED = Path("/run/clusterctl/gpu-config-halted.json")
LINKS = Path("/dev/nvidia-mig")
CAPABILITIES = Path("/proc/driver/nvidia/capabilities")
DRIVER = Path("/sys/module/nvidia")
SECONDS = 60
LONG_SECONDS = 300  # of resets, and of services that start or stop
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
DEFAULT, NONE = "default", "none"
LAYOUT = "MIG layout"
COMPUTE_MODES = {DEFAULT: "Default", "exclusive_process": "Exclusive_Process", "prohibited": "Prohibited"}
CDI = "nvidia-cdi-refresh.service"
SLURMD = "slurmd.service"  # it knows the devices that there were at its start
PERSISTENCE = "nvidia-persistenced.service"
# They hold the GPUs without computing on them, and are stopped for what needs all hands off.
HOLDERS = ("nvidia-dcgm-exporter.service", "nvidia-dcgm.service", PERSISTENCE)

Data = dict  # as JSON has it


class Unfit(Exception):
    """What was asked for cannot be; the text says of what, and what could be."""


class Refused(Unfit):
    """A program has failed; the text is its own words."""


def ask(*argv: str, seconds: float = SECONDS) -> str:
    """Return what a program prints; raises Refused with its own words. One that cannot be killed is left behind."""
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT, text=True,
            errors="replace",
        )  # fmt: skip
    except OSError as error:
        raise Refused(f"{argv[0]}: {error.strerror}") from None
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        raise Refused(f"{' '.join(argv)} has not ended after {seconds:g} s") from None
    if process.returncode:
        said = [line.strip() for line in (out + err).splitlines() if line.strip()]
        raise Refused(f"{' '.join(argv)}: {'; '.join(said)[:300] or f'ended with {process.returncode}'}")
    return out


# --- what there is ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Instance:
    """A MIG device: its profile, and the numbers by which the driver knows its two instances."""

    profile: str
    gpu_instance: int
    compute_instance: int


class Gpu:
    """One GPU as nvidia-smi describes it; `mig` is None where MIG is off."""

    def __init__(self, index: int, element: ET.Element, names: dict[int, str]) -> None:
        self.index, self.element = index, element
        self.uuid, self.minor = self.text("uuid"), self.text("minor_number")
        self.mig: list[Instance] | None = None
        if self.text("mig_mode/current_mig") == "Enabled":
            devices = list(element.iterfind("mig_devices/mig_device"))
            self.mig = [
                Instance(names.get(int(self.text("index", one)), "?"), int(self.text("gpu_instance_id", one)),
                         int(self.text("compute_instance_id", one)))
                for one in devices
            ]  # fmt: skip

    def text(self, path: str, element: ET.Element | None = None) -> str:
        """Return a value, empty where the GPU has none."""
        found = ((self.element if element is None else element).findtext(path) or "").strip()
        return "" if found in ("N/A", "[N/A]", "None") else found

    def number(self, *paths: str) -> int | None:
        """Return the first of these values that is a number, rounded."""
        for path in paths:
            if found := re.match(r"\d+(\.\d+)?", self.text(path)):
                return round(float(found.group()))
        return None

    def power(self, kind: str) -> int | None:
        """Return a power limit in watts: current, default, min or max; drivers before 535 name the place otherwise."""
        kinds = ["requested", "current"] if kind == "current" else [kind]
        names = [f"{kind}_power_limit" for kind in kinds] + ["power_limit"] * (kind == "current")
        return self.number(*(f"{place}/{name}" for place in ("gpu_power_readings", "power_readings") for name in names))

    def clocks(self) -> dict[int, list[int]]:
        """Return the memory clocks that it supports, with the graphics clocks of each, in MHz."""
        found = {}
        for one in self.element.iterfind("supported_clocks/supported_mem_clock"):
            graphics = [int(clock.text.split()[0]) for clock in one.iterfind("supported_graphics_clock") if clock.text]
            found[int(self.text("value", one).split()[0])] = graphics
        return found

    def layout(self) -> str:
        """Return its division as the inventory writes it."""
        return NONE if self.mig is None else ordered([one.profile for one in self.mig])


def ordered(profiles: list[str]) -> str:
    """Return a layout in the one order that it is written and made in: the largest first, which always finds room."""
    return ",".join(sorted(profiles, key=lambda name: (-slices(name), -memory(name), name)))


def slices(profile: str) -> int:
    """Return how many compute slices a profile has."""
    found = re.match(r"\d+", profile)
    return int(found.group()) if found else 0


def memory(profile: str) -> int:
    """Return how much memory (GB) a profile has."""
    found = re.search(r"\.(\d+)gb", profile)
    return int(found.group(1)) if found else 0


def look() -> list[Gpu]:
    """Return the GPUs; raises Unfit where the driver does not answer."""
    answer, listing = ask("nvidia-smi", "-q", "-x"), ask("nvidia-smi", "-L")
    # It prints the names of processes as they are. Characters that XML does not have would make it unreadable.
    answer = re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "?", answer)
    try:
        elements = list(ET.fromstring(answer).iter("gpu"))  # noqa: S314 - of the driver's own program
    except ET.ParseError as error:
        raise Unfit(f"nvidia-smi: not its XML: {error}") from None
    names, numbers = instances(listing), numbered(listing)
    found = []
    for place, element in enumerate(elements):
        # Where a GPU is lost, nvidia-smi calls the others by their numbers as before.
        index = numbers.get((element.findtext("uuid") or "").strip(), place)
        found.append(Gpu(index, element, names.get(index, {})))
    return found


def numbered(listing: str) -> dict[str, int]:
    """Return, of what `nvidia-smi -L` prints, nvidia-smi's number of each GPU by its UUID."""
    return {uuid: int(number) for number, uuid in re.findall(r"^GPU (\d+): .*\(UUID: (\S+)\)", listing, re.MULTILINE)}


def instances(listing: str) -> dict[int, dict[int, str]]:
    """Return, of what `nvidia-smi -L` prints, by GPU the profile of each MIG device by its number."""
    found: dict[int, dict[int, str]] = {}
    gpu = -1
    for line in listing.splitlines():
        if head := re.match(r"GPU (\d+):", line):
            gpu = int(head.group(1))
        elif device := re.match(r"\s+MIG (\S+)\s+Device\s+(\d+):", line):
            found.setdefault(gpu, {})[int(device.group(2))] = device.group(1)
    return found


def room(profiles: str, placements: str) -> dict[str, list[range]]:
    """Return where on the memory an instance of each profile can lie, of what `mig -lgip` and `mig -lgipp` print."""
    rows = re.findall(r"Profile ID\s+(\d+)\s+Placements?\s*:\s*\{([\d,\s]*)\}:(\d+)", placements)
    places = {
        int(number): [range(int(start), int(start) + int(size)) for start in re.findall(r"\d+", starts)]
        for number, starts, size in rows
    }
    named = re.findall(r"^\|\s+\d+\s+MIG (\S+)\s+(\d+)\s+\d+/\d+", profiles, re.MULTILINE)
    return {name: places.get(int(number), []) for name, number in named}


def fits(wanted: list[str], where: dict[str, list[range]], taken: frozenset[int] = frozenset()) -> bool:
    """Tell whether instances of all these profiles find room at once."""
    if not wanted:
        return True
    first, rest = wanted[0], wanted[1:]
    return any(not taken & set(place) and fits(rest, where, taken | set(place)) for place in where.get(first, ()))


def jobs(proc: Path = Path("/proc")) -> bool:
    """Tell whether a job of Slurm's runs here: root runs its program. Titles of processes anybody can forge."""
    for path in proc.glob("[0-9]*"):
        try:
            named = (path / "cmdline").read_bytes().startswith(b"slurmstepd: [")
            # Debian calls it slurmstepd-wlm, and one that was replaced meanwhile is "(deleted)".
            ours = r"/slurmstepd[^/]*$"
            if (
                named
                and re.search(ours, os.readlink(path / "exe"))
                and re.search(r"^Uid:\s+0\s", (path / "status").read_text(), re.MULTILINE)
            ):
                return True
        except OSError:
            continue
    return False


def shown(unit: str, what: str) -> str:
    """Return what systemd says of a service, empty where there is no systemd."""
    try:
        return ask("systemctl", "show", f"--property={what}", "--value", unit).strip()
    except Refused:
        return ""


def running(unit: str) -> bool:
    """Tell whether a service runs, or is about to; one that waits for this program's own service is not."""
    return shown(unit, "ActiveState") in ("active", "reloading", "activating")


# --- what is wanted ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """One change of one GPU."""

    gpu: Gpu
    setting: str
    name: str
    to: str
    was: str
    act: Callable[[], object]
    idle: bool = False


class Settings:
    """What is asked for, compared with what there is."""

    def __init__(self, given: Data, locks: dict[str, dict[str, str]]) -> None:
        self.given, self.locks = given, locks

    def wanted(self, gpu: Gpu, setting: str) -> str:
        """Return what is asked of a GPU, empty where it is left as it is; a layout in its one order."""
        value = str(self.given.get(setting, ""))
        if setting == "mig":
            value = str(self.given.get("mig_gpus", {}).get(str(gpu.index), value)).replace(" ", "")
            return value if value in ("", NONE) else ordered(value.split(","))
        return value

    def steps(self, gpus: list[Gpu], *settings: str) -> Iterator[Step]:
        """Yield what differs; raises Unfit where a value cannot be."""
        for setting in settings:
            for gpu in gpus:
                if wanted := self.wanted(gpu, setting):
                    try:
                        yield from getattr(self, setting)(gpu, wanted)
                    except Unfit as error:
                        raise Unfit(f"GPU {gpu.index} ({gpu.text('product_name')}): {error}") from None

    def ecc(self, gpu: Gpu, wanted: str) -> Iterator[Step]:
        """ECC; it changes with a reset."""
        now, pending = gpu.text("ecc_mode/current_ecc"), gpu.text("ecc_mode/pending_ecc")
        if not now:
            raise Unfit("gpu_config_ecc: it has no ECC to switch")
        to = "Enabled" if wanted == DEFAULT else wanted.capitalize()

        def act() -> None:
            if pending != to:
                ask("nvidia-smi", "-i", gpu.uuid, "-e", str(int(to == "Enabled")))
            self.reset(gpu, f"ECC becomes {to.lower()}")

        if now != to:
            yield Step(gpu, "ecc", "ECC", to.lower(), now.lower(), act, idle=True)

    def mig(self, gpu: Gpu, wanted: str) -> Iterator[Step]:
        """MIG mode, and the instances."""
        if not gpu.text("mig_mode/current_mig"):
            if wanted == NONE:
                return
            raise Unfit(f"gpu_config_mig: it cannot be divided, got {wanted}")
        if wanted != NONE:
            try:
                self.require_room(gpu, wanted)
            except Refused:
                if gpu.mig is not None:
                    raise  # where MIG is off the driver may not say what there would be
        if gpu.layout() != wanted:
            was = gpu.layout() or "nothing"
            yield Step(gpu, "mig", LAYOUT, wanted, was, lambda: self.divide(gpu, wanted), idle=True)

    def require_room(self, gpu: Gpu, wanted: str) -> None:
        """Raise Unfit where the GPU has no such profile, or no room for all of them."""
        where = room(*(ask("nvidia-smi", "mig", "-i", gpu.uuid, what) for what in ("-lgip", "-lgipp")))
        profiles = wanted.split(",")
        choices = f"expected some of {', '.join(where)}"
        if unknown := [name for name in dict.fromkeys(profiles) if name not in where]:
            raise Unfit(f"gpu_config_mig: it has no {', '.join(unknown)}, {choices}")
        if not fits(profiles, where):
            raise Unfit(f"gpu_config_mig: {wanted} do not find room on it at once, {choices}")

    def divide(self, gpu: Gpu, wanted: str) -> None:
        """Bring the GPU to this layout; where it cannot be, MIG is left as it was."""
        if gpu.mig is not None:
            self.clear(gpu)
        if (gpu.mig is None) != (wanted == NONE):
            self.switch(gpu, on=wanted != NONE)
        if wanted == NONE:
            return
        try:
            self.require_room(gpu, wanted)
        except Unfit:
            if gpu.mig is None:
                self.switch(gpu, on=False)
            raise
        ask("nvidia-smi", "mig", "-i", gpu.uuid, "-cgi", wanted, "-C")

    def clear(self, gpu: Gpu) -> None:
        """Remove all instances."""
        for listed, removed in (("-lci", "-dci"), ("-lgi", "-dgi")):
            # It fails where there is none.
            try:
                found = ask("nvidia-smi", "mig", "-i", gpu.uuid, listed)
            except Refused:
                continue
            if re.search(r"MIG \d", found):
                ask("nvidia-smi", "mig", "-i", gpu.uuid, removed)

    def switch(self, gpu: Gpu, *, on: bool) -> None:
        """Switch MIG mode, by a reset of the GPU where the driver asks for one."""
        ask("nvidia-smi", "-i", gpu.uuid, "-mig", str(int(on)))
        now = next(one for one in look() if one.uuid == gpu.uuid)
        if (now.mig is not None) != on:
            self.reset(gpu, f"MIG mode becomes {'enabled' if on else 'disabled'}")

    def reset(self, gpu: Gpu, why: str) -> None:
        """Reset a GPU, which forgets what else was set."""
        try:
            ask("nvidia-smi", "--gpu-reset", "-i", gpu.uuid, seconds=LONG_SECONDS)
        except Refused as error:
            raise Unfit(f"GPU {gpu.index}: {why} with a reset, which fails ({error}): clusterctl reboot") from None
        self.locks.pop(gpu.uuid, None)

    def compute_mode(self, gpu: Gpu, wanted: str) -> Iterator[Step]:
        """Who may compute."""
        now, to = gpu.text("compute_mode"), COMPUTE_MODES[wanted]
        if now != to:
            act = self.command(gpu, "-c", {"Default": "0", "Prohibited": "2", "Exclusive_Process": "3"}[to])
            yield Step(gpu, "compute_mode", "compute mode", to, now or "unknown", act, idle=True)

    def power_limit(self, gpu: Gpu, wanted: str) -> Iterator[Step]:
        """The power limit, in watts or per cent of the default."""
        now, usual, least, most = (gpu.power(kind) for kind in ("current", DEFAULT, "min", "max"))
        if None in (now, usual, least, most):
            raise Unfit("gpu_config_power_limit: it has no power limit to set")
        to = watts(wanted, usual)
        if not least <= to <= most:
            raise Unfit(f"gpu_config_power_limit: got {to} W, expected {least} to {most} W (default {usual} W)")
        if now != to:
            yield Step(gpu, "power_limit", "power limit", f"{to} W", f"{now} W", self.command(gpu, "-pl", str(to)))

    def graphics_clock(self, gpu: Gpu, wanted: str) -> Iterator[Step]:
        """The range that the graphics clock is locked to."""
        known = sorted({clock for clocks in gpu.clocks().values() for clock in clocks})
        if wanted != DEFAULT and known and not all(known[0] <= clock <= known[-1] for clock in numbers(wanted)):
            raise Unfit(f"gpu_config_graphics_clock: got {wanted} MHz, expected {known[0]} to {known[-1]} MHz")
        yield from self.lock(gpu, "graphics_clock", "graphics clock", wanted, "-lgc", "-rgc")

    def memory_clock(self, gpu: Gpu, wanted: str) -> Iterator[Step]:
        """The range that the memory clock is locked to."""
        known = sorted(gpu.clocks())
        if wanted != DEFAULT and known and not set(numbers(wanted)) <= set(known):
            raise Unfit(f"gpu_config_memory_clock: got {wanted} MHz, expected one of {', '.join(map(str, known))} MHz")
        yield from self.lock(gpu, "memory_clock", "memory clock", wanted, "-lmc", "-rmc")

    def lock(self, gpu: Gpu, setting: str, name: str, wanted: str, locks: str, frees: str) -> Iterator[Step]:
        """Lock a clock, or free it."""
        mine = self.locks.get(gpu.uuid, {})
        now, to = mine.get(setting, DEFAULT), DEFAULT if wanted == DEFAULT else ",".join(map(str, numbers(wanted)))

        def act() -> None:
            ask("nvidia-smi", "-i", gpu.uuid, *((frees,) if to == DEFAULT else (locks, to)))
            self.locks.setdefault(gpu.uuid, {})[setting] = to

        if now != to:
            yield Step(gpu, setting, name, to if to == DEFAULT else f"{to} MHz", now, act)

    def application_clocks(self, gpu: Gpu, wanted: str) -> Iterator[Step]:
        """The clocks that applications run at where nothing is locked: memory, graphics."""
        names = ("mem_clock", "graphics_clock")
        now, usual = (
            tuple(gpu.number(f"{place}/{name}") for name in names)
            for place in ("applications_clocks", "default_applications_clocks")
        )
        if None in now:
            raise Unfit("gpu_config_application_clocks: it has none, lock its clocks: gpu_config_graphics_clock")
        to = usual if wanted == DEFAULT else tuple(map(int, wanted.split(",")))
        known = gpu.clocks()
        if wanted != DEFAULT and known and to[0] not in known:
            told = ", ".join(map(str, sorted(known)))
            raise Unfit(f"gpu_config_application_clocks: got {to[0]} MHz for its memory, expected one of {told}")
        if wanted != DEFAULT and known and to[1] not in known[to[0]]:
            near = sorted(sorted(known[to[0]], key=lambda clock: abs(clock - to[1]))[:4])
            told = f"{min(known[to[0]])} to {max(known[to[0]])} MHz such as {', '.join(map(str, near))}"
            raise Unfit(f"gpu_config_application_clocks: got {to[1]} MHz for graphics, expected one of {told}")
        if now != to:
            act = self.command(gpu, *(("-rac",) if wanted == DEFAULT else ("-ac", "{},{}".format(*to))))
            shown = ["{},{} MHz".format(*pair) for pair in (to, now)]
            yield Step(gpu, "application_clocks", "application clocks", *shown, act)

    def command(self, gpu: Gpu, *options: str) -> Callable[[], object]:
        """Return what has nvidia-smi set something."""
        return lambda: ask("nvidia-smi", "-i", gpu.uuid, *options)


def watts(text: str, usual: int) -> int:
    """Return a power limit as it is written, in watts: `300`, `300 W`, `80%` of what is usual, or that itself."""
    if text == DEFAULT:
        return usual
    number = int(re.match(r"\d+", text).group())
    return round(usual * number / 100) if text.endswith("%") else number


def numbers(text: str) -> list[int]:
    """Return lowest and highest of a range of clocks; one clock is both."""
    found = [int(part) for part in text.split(",")]
    return found * 2 if len(found) == 1 else found


# A reset forgets all that comes after, and what comes last is kept while somebody holds the GPU open.
ORDER = (("ecc",), ("mig",), ("compute_mode", "power_limit", "application_clocks", "memory_clock", "graphics_clock"))
ALL = tuple(setting for settings in ORDER for setting in settings)


# --- doing it ---------------------------------------------------------------------------------------------------------


def asked(given: Data) -> bool:
    """Tell whether anything is asked for."""
    return any(given.get(setting) for setting in ALL) or bool(given.get("mig_gpus"))


def back(given: Data, before: Data) -> Data:
    """Return what is asked for now, with the card's own value for what was asked for before and no longer is."""
    dropped = {setting: DEFAULT for setting in ALL if before.get(setting) and not given.get(setting)}
    parts = dict.fromkeys(before.get("mig_gpus", {}), NONE) if not given.get("mig") else {}
    if "mig" in dropped:
        dropped["mig"] = NONE
    return {**given, **dropped, "mig_gpus": {**parts, **given.get("mig_gpus", {})}}


def joined(before: Data, now: Data) -> Data:
    """Return what is asked for now, and what was asked for before."""
    parts = {**before.get("mig_gpus", {}), **now.get("mig_gpus", {})}
    found = {**before, **{setting: value for setting, value in now.items() if value}, "mig_gpus": parts}
    return {setting: value for setting, value in found.items() if value}


def told(steps: list[Step]) -> list[Data]:
    """Return changes for a person, alike ones of several GPUs as one."""
    bundles: dict[tuple[str, str, str, str], list[str]] = {}
    for step in steps:
        action = "partitioned" if step.setting == "mig" else "changed"
        bundles.setdefault((step.name, action, str(step.was), str(step.to)), []).append(str(step.gpu.index))
    return [
        {
            "kind": f"GPU {', '.join(gpus)}",
            "name": name,
            "action": action,
            "what": f"{to}, was {was}",
            "from": was,
            "to": to,
        }
        for (name, action, was, to), gpus in bundles.items()
    ]


def load_locks() -> dict[str, dict[str, str]]:
    """Return the clocks that were locked since this driver was loaded, by UUID of their GPU."""
    try:
        kept = json.loads(LOCKS.read_text())
        return kept["locks"] if kept["driver"] == loaded() else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def save_locks(locks: dict[str, dict[str, str]]) -> None:
    """Keep them."""
    save(LOCKS, {"driver": loaded(), "locks": locks})


def load(path: Path) -> Data:
    """Return the settings that a file keeps; ends the program where they cannot be read."""
    try:
        return dict(json.loads(path.read_text()))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        sys.exit(f"{path}: {error}")


def record(settings: Data) -> None:
    """Keep what was set."""
    if settings != load(RECORD):
        save(RECORD, settings)
    if not settings:
        RECORD.unlink(missing_ok=True)


def save(path: Path, data: object) -> None:
    """Replace a file, whole or not at all."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(data))
    new.replace(path)


def loaded() -> str:
    """Return what is another text each time that the driver is loaded, or has had nobody who keeps the GPUs open."""
    try:
        module = DRIVER.stat().st_ino
    except OSError:
        module = 0  # a container has its host's
    return f"{module} {shown(PERSISTENCE, 'InvocationID')}"


def link(gpus: list[Gpu]) -> None:
    """Give the device files of each instance their lasting names, and take away those of what is gone."""
    wanted = {}
    for gpu in gpus:
        count: Counter[str] = Counter()
        for one in sorted(gpu.mig or [], key=lambda one: (one.gpu_instance, one.compute_instance)):
            folder = CAPABILITIES / f"gpu{gpu.minor}/mig/gi{one.gpu_instance}"
            for kind, access in (("gi", folder / "access"), ("ci", folder / f"ci{one.compute_instance}/access")):
                name = LINKS / f"gpu{gpu.minor}" / f"{kind}-{one.profile}-{count[one.profile]}"
                wanted[name] = f"/dev/nvidia-caps/nvidia-cap{capability(access)}"
            count[one.profile] += 1
    for path in LINKS.glob("gpu*/*"):
        if path not in wanted or os.readlink(path) != wanted[path]:
            path.unlink()
    for path, target in wanted.items():
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        if not path.is_symlink():
            path.symlink_to(target)
    for folder in LINKS.glob("gpu*"):
        if not any(folder.iterdir()):
            folder.rmdir()


def capability(access: Path) -> int:
    """Return the number of the device file that grants access to an instance."""
    try:
        found = re.search(r"DeviceFileMinor:\s*(\d+)", access.read_text())
    except OSError as error:
        raise Unfit(f"{access}: {error.strerror}") from None
    if not found:
        raise Unfit(f"{access} names no device file")
    return int(found.group(1))


def stopped() -> list[str]:
    """Return the services that were stopped before and not started again."""
    found: list[str] = []
    for path in (UNFINISHED, HALTED):
        try:
            found += json.loads(path.read_text())
        except (OSError, ValueError):
            continue
    return found


@contextmanager
def paused(units: tuple[str, ...], *, boot: bool) -> Iterator[None]:
    """Stop services that run; start them again in the other order, and those that an earlier run has left stopped.

    While a slurmd reads its configuration anew, it waits 20 s for devices that this names and are not there yet. Had it
    found them meanwhile, its new process would know nothing of having been stopped. So it is stopped first of all.
    """
    left = stopped()
    held = [unit for unit in (SLURMD, *HOLDERS) if unit in left or (unit in units and running(unit))]
    if units:
        save(UNFINISHED, held)
    with ExitStack() as stack:
        for unit in held:
            # At boot it comes after this program's own service, which slurmd requires: and else would start.
            how = "--no-block" if boot and unit != PERSISTENCE else "--job-mode=ignore-requirements"
            stack.callback(ask, "systemctl", "start", how, unit, seconds=LONG_SECONDS)
            ask("systemctl", "stop", unit, seconds=LONG_SECONDS)
        yield


def halt() -> None:
    """Stop slurmd where no job runs, until the GPUs are divided.

    With the head's new configuration it would tell the head of fewer instances than that names. For this Slurm puts its
    own reason in the place of the one by which the node is out of service, and nobody would know it for ours.
    """
    if running(SLURMD) and not jobs():
        save(HALTED, [SLURMD])
        ask("systemctl", "stop", SLURMD, seconds=LONG_SECONDS)


def settle(given: Data, before: Data, *, drained: bool = False, check: bool = False, boot: bool = False) -> Data:
    """Bring the GPUs to what is asked for; return what was changed, or would be, and what has to wait.

    `before` is what was asked for last. `kept` is what holds from now on, at every boot: what waits is not in it.
    `layouts` is how each GPU is divided then. Raises Unfit for what cannot be.
    """
    answer: Data = {"changes": [], "notes": [], "kept": given, "layouts": {}}
    wanted = back(given, before)
    if not asked(wanted) and not stopped() and not UNFINISHED.exists():
        return answer
    gpus, locks = look(), {} if UNFINISHED.exists() else load_locks()
    settings = Settings(wanted, locks)
    if unknown := sorted({*given.get("mig_gpus", {})} - {str(gpu.index) for gpu in gpus}):
        raise Unfit(f"gpu_config_mig_gpus: there is no GPU {', '.join(unknown)}, expected 0 to {len(gpus) - 1}")
    if given.get("mig_gpus") and (lost := sorted({*filter(None, given.get("uuids", []))} - {gpu.uuid for gpu in gpus})):
        # After a restart the driver numbers the others without it.
        raise Unfit(f"gpu_config_mig_gpus: {', '.join(lost)} is missing, so the numbers may be those of other GPUs")
    steps = list(settings.steps(gpus, *ALL))  # before anything is changed: every value is possible
    # A rehearsal for a node that will be drained: its jobs will have ended by then.
    free = (drained and check) or (not jobs() and (drained or not running(SLURMD)))
    waiting = [] if free else [step for step in steps if step.idle]
    done = [step for step in steps if step not in waiting]
    late = {step.setting for step in waiting}
    layouts = {str(gpu.index): gpu.layout() for gpu in gpus}
    answer["kept"] = {**given, **{setting: before.get(setting, "") for setting in late}}
    if "mig" in late:
        # A layout that was lost meanwhile is still the one to come back, and the one that the health check misses.
        old = Settings(before, {})
        divided = {gpu: old.wanted(gpu, "mig") for gpu in gpus if settings.wanted(gpu, "mig")}
        if all(divided.values()):  # in the words of the inventory, which are in the file already
            kept = {"mig": before.get("mig", ""), "mig_gpus": before.get("mig_gpus", {})}
        else:
            kept = {"mig": "", "mig_gpus": {str(gpu.index): asked or gpu.layout() for gpu, asked in divided.items()}}
        answer["kept"].update(kept)
    answer["layouts"] = {**layouts, **{str(step.gpu.index): step.to for step in done if step.setting == "mig"}}
    answer["changes"] = told(done)
    if UNFINISHED.exists() or (HALTED.exists() and not any(step.setting == "mig" for step in done)):
        what = "started, which an earlier run has not come to"
        answer["changes"].append({"kind": "services", "name": "of the GPUs", "action": "started", "what": what})
    answer["notes"] = [
        f"{one['kind']}: {one['name']} {one['what']}, once the node is drained for it: "
        "clusterctl upgrade --only gpu_config"
        for one in told(waiting)
    ]
    if not check:
        record(joined(before, answer["kept"]))
        try:
            apply(settings, {step.setting for step in done}, boot=boot)
        finally:
            save_locks(locks)
        record(joined({}, answer["kept"]))
    return answer


def apply(settings: Settings, due: set[str], *, boot: bool) -> None:
    """Make these settings so, in their order, each by what there is when its turn comes."""
    exclusive, driver = due & {"ecc", "mig"}, loaded()
    left = UNFINISHED.exists() or HALTED.exists()
    with paused((SLURMD, *HOLDERS) if exclusive else (SLURMD,) if left else (), boot=boot):
        try:
            for part in ORDER[:-1] if exclusive else ():
                for step in settings.steps(look(), *part):
                    step.act()
        finally:
            link(look())
        if UNFINISHED.exists() and shown(CDI, "LoadState") == "loaded":
            ask("systemctl", "start", *["--no-block"] * boot, CDI, seconds=LONG_SECONDS)
    if loaded() != driver:
        settings.locks.clear()
    # A reset has forgotten what was as asked before it, and where one is allowed nothing has to wait.
    for step in settings.steps(look(), *(setting for setting in ORDER[-1] if exclusive or setting in due)):
        step.act()
    for path in (UNFINISHED, HALTED):
        path.unlink(missing_ok=True)


def words(error: BaseException | None) -> str:
    """Return what has failed, in the order of time: what had to follow may have failed, too."""
    said: list[str] = []
    while error:
        if isinstance(error, Unfit) and not any(str(error) in one for one in said):
            said.insert(0, str(error))
        error = error.__context__
    return "; ".join(said)


def main(arguments: list[str]) -> None:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(prog="gpu-config", description=__doc__.partition("\n")[0])
    parser.add_argument("--given", type=json.loads, metavar="JSON")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--drained", action="store_true")
    parser.add_argument("--halt", action="store_true", help="with --check: have slurmd stopped where MIG would change")
    options = parser.parse_args(arguments)
    if os.geteuid() != 0:
        sys.exit("gpu-config: only root may set GPUs")
    boot = options.given is None
    kept = load(CONFIGURATION)
    given = kept if boot else options.given
    try:
        answer = settle(given, joined(kept, load(RECORD)), drained=options.drained, check=options.check, boot=boot)
        if options.halt and any(change["action"] == "partitioned" for change in answer["changes"]):
            halt()
    except Unfit as error:
        if asked(given):
            sys.exit(words(error))
        # A node that leaves does so with a driver that is dead, too.
        note = f"the GPUs may keep what was set: {words(error)}"
        answer = {"changes": [], "notes": [note], "kept": kept, "layouts": {}}
    if not boot:
        print(json.dumps(answer))
        return
    for change in answer["changes"]:
        print(f"{change['kind']}: {change['name']} {change['what']}")
    for note in answer["notes"]:
        print(note)


if __name__ == "__main__":
    main(sys.argv[1:])
