"""The settings of GPUs: compare what is requested with what nvidia-smi reports, and yield the changes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import gpu_node
import nvidia_smi
from gpu_node import CommandError, NodeError
from nvidia_smi import Gpu

RESET_SECONDS = 300
DEFAULT = "default"
NONE = "none"  # the layout of a GPU that is not partitioned
COMPUTE_MODES = {DEFAULT: "Default", "exclusive_process": "Exclusive_Process", "prohibited": "Prohibited"}
# In the order of changes: a reset clears all that follows, and the last group is kept while a process has the GPU open.
ORDER = (("ecc",), ("mig",), ("compute_mode", "power_limit", "application_clocks", "memory_clock", "graphics_clock"))
ALL = tuple(setting for settings in ORDER for setting in settings)

Data = dict  # a JSON object


@dataclass(frozen=True)
class Step:
    """One change of one GPU. `needs_idle`: it needs a GPU that no process uses."""

    gpu: Gpu
    setting: str
    name: str
    to: str
    was: str
    apply: Callable[[], object]
    needs_idle: bool = False


class Settings:
    """The requested settings. `locks` are the locked clocks by UUID of the GPU, kept up to date by the steps."""

    def __init__(self, given: Data, locks: dict[str, dict[str, str]]) -> None:
        self.given, self.locks = given, locks

    def requested(self, gpu: Gpu, setting: str) -> str:
        """Return the requested value of a GPU, empty if the setting is unmanaged; a layout in canonical order."""
        value = str(self.given.get(setting, ""))
        if setting == "mig":
            value = str(self.given.get("mig_gpus", {}).get(str(gpu.index), value)).replace(" ", "")
            return value if value in ("", NONE) else sort_layout(value.split(","))
        return value

    def steps(self, gpus: list[Gpu], *settings: str) -> Iterator[Step]:
        """Yield the changes that are needed. Raises NodeError for a value that a GPU does not support."""
        for setting in settings:
            for gpu in gpus:
                if value := self.requested(gpu, setting):
                    try:
                        yield from getattr(self, setting)(gpu, value)
                    except NodeError as error:
                        raise NodeError(f"GPU {gpu.index} ({gpu.text('product_name')}): {error}") from None

    def ecc(self, gpu: Gpu, value: str) -> Iterator[Step]:
        """Yield the change of ECC, which needs a reset."""
        now, pending = gpu.text("ecc_mode/current_ecc"), gpu.text("ecc_mode/pending_ecc")
        if not now:
            raise NodeError("gpu_config_ecc: the GPU has no ECC")
        to = "Enabled" if value == DEFAULT else value.capitalize()

        def apply() -> None:
            if pending != to:
                gpu_node.run("nvidia-smi", "-i", gpu.uuid, "-e", str(int(to == "Enabled")))
            self.reset(gpu, f"ECC becomes {to.lower()}")

        if now != to:
            yield Step(gpu, "ecc", "ECC", to.lower(), now.lower(), apply, needs_idle=True)

    def mig(self, gpu: Gpu, layout: str) -> Iterator[Step]:
        """Yield the change of MIG mode and instances."""
        if not gpu.text("mig_mode/current_mig"):
            if layout == NONE:
                return
            raise NodeError(f"gpu_config_mig: the GPU does not support MIG, got {layout}")
        if layout != NONE:
            try:
                self.require_room(gpu, layout)
            except CommandError:
                if gpu.is_mig_enabled:
                    raise  # with MIG disabled, the driver may not list the profiles
        if layout_of(gpu) != layout:
            was = layout_of(gpu) or "nothing"
            yield Step(gpu, "mig", "MIG layout", layout, was, lambda: self.partition(gpu, layout), needs_idle=True)

    def require_room(self, gpu: Gpu, layout: str) -> None:
        """Raise NodeError if the GPU does not have these profiles, or no room for all of them."""
        lists = (gpu_node.run("nvidia-smi", "mig", "-i", gpu.uuid, option) for option in ("-lgip", "-lgipp"))
        placements, profiles = nvidia_smi.mig_placements(*lists), layout.split(",")
        choices = f"expected some of {', '.join(placements)}"
        if unknown := [name for name in dict.fromkeys(profiles) if name not in placements]:
            raise NodeError(f"gpu_config_mig: the GPU has no {', '.join(unknown)}, {choices}")
        if not fits(profiles, placements):
            raise NodeError(f"gpu_config_mig: {layout} do not fit on the GPU at once, {choices}")

    def partition(self, gpu: Gpu, layout: str) -> None:
        """Give a GPU this layout. If that is impossible, MIG mode stays as it was."""
        is_enabled = gpu.is_mig_enabled
        if is_enabled:
            self.remove_instances(gpu)
        if is_enabled == (layout == NONE):
            self.switch_mig(gpu, on=layout != NONE)
        if layout == NONE:
            return
        try:
            self.require_room(gpu, layout)
        except NodeError:
            if not is_enabled:
                self.switch_mig(gpu, on=False)
            raise
        gpu_node.run("nvidia-smi", "mig", "-i", gpu.uuid, "-cgi", layout, "-C")

    def remove_instances(self, gpu: Gpu) -> None:
        """Remove all compute instances, then all GPU instances."""
        for list_option, remove_option in (("-lci", "-dci"), ("-lgi", "-dgi")):
            try:
                listing = gpu_node.run("nvidia-smi", "mig", "-i", gpu.uuid, list_option)
            except CommandError:  # there is none
                continue
            if re.search(r"MIG \d", listing):
                gpu_node.run("nvidia-smi", "mig", "-i", gpu.uuid, remove_option)

    def switch_mig(self, gpu: Gpu, *, on: bool) -> None:
        """Switch MIG mode, with a reset if the driver requires one."""
        gpu_node.run("nvidia-smi", "-i", gpu.uuid, "-mig", str(int(on)))
        now = next(one for one in nvidia_smi.read_gpus() if one.uuid == gpu.uuid)
        if now.is_mig_enabled != on:
            self.reset(gpu, f"MIG mode becomes {'enabled' if on else 'disabled'}")

    def reset(self, gpu: Gpu, why: str) -> None:
        """Reset a GPU, which clears its other settings."""
        try:
            gpu_node.run("nvidia-smi", "--gpu-reset", "-i", gpu.uuid, seconds=RESET_SECONDS)
        except CommandError as error:
            raise NodeError(f"GPU {gpu.index}: {why} with a reset, which fails ({error}): clusterctl reboot") from None
        self.locks.pop(gpu.uuid, None)

    def compute_mode(self, gpu: Gpu, value: str) -> Iterator[Step]:
        """Yield the change of the compute mode."""
        now, to = gpu.text("compute_mode"), COMPUTE_MODES[value]
        if now != to:
            apply = self._command(gpu, "-c", {"Default": "0", "Prohibited": "2", "Exclusive_Process": "3"}[to])
            yield Step(gpu, "compute_mode", "compute mode", to, now or "unknown", apply, needs_idle=True)

    def power_limit(self, gpu: Gpu, value: str) -> Iterator[Step]:
        """Yield the change of the power limit."""
        limits = (gpu.power_limit("requested", "current"), *map(gpu.power_limit, (DEFAULT, "min", "max")))
        if None in limits:
            raise NodeError("gpu_config_power_limit: the GPU has no configurable power limit")
        now, default, least, most = map(round, limits)
        to = to_watts(value, default)
        if not least <= to <= most:
            raise NodeError(f"gpu_config_power_limit: got {to} W, expected {least} to {most} W (default {default} W)")
        if now != to:
            yield Step(gpu, "power_limit", "power limit", f"{to} W", f"{now} W", self._command(gpu, "-pl", str(to)))

    def graphics_clock(self, gpu: Gpu, value: str) -> Iterator[Step]:
        """Yield the change of the range that the graphics clock is locked to."""
        known = sorted({clock for clocks in gpu.supported_clocks().values() for clock in clocks})
        if value != DEFAULT and known and not all(known[0] <= clock <= known[-1] for clock in clock_range(value)):
            raise NodeError(f"gpu_config_graphics_clock: got {value} MHz, expected {known[0]} to {known[-1]} MHz")
        yield from self._lock_clock(gpu, "graphics_clock", "graphics clock", value, "-lgc", "-rgc")

    def memory_clock(self, gpu: Gpu, value: str) -> Iterator[Step]:
        """Yield the change of the range that the memory clock is locked to."""
        known = sorted(gpu.supported_clocks())
        if value != DEFAULT and known and not set(clock_range(value)) <= set(known):
            choices = ", ".join(map(str, known))
            raise NodeError(f"gpu_config_memory_clock: got {value} MHz, expected one of {choices} MHz")
        yield from self._lock_clock(gpu, "memory_clock", "memory clock", value, "-lmc", "-rmc")

    def _lock_clock(self, gpu: Gpu, setting: str, name: str, value: str, lock: str, unlock: str) -> Iterator[Step]:
        now = self.locks.get(gpu.uuid, {}).get(setting, DEFAULT)
        to = DEFAULT if value == DEFAULT else ",".join(map(str, clock_range(value)))

        def apply() -> None:
            gpu_node.run("nvidia-smi", "-i", gpu.uuid, *((unlock,) if to == DEFAULT else (lock, to)))
            self.locks.setdefault(gpu.uuid, {})[setting] = to

        if now != to:
            yield Step(gpu, setting, name, to if to == DEFAULT else f"{to} MHz", now, apply)

    def application_clocks(self, gpu: Gpu, value: str) -> Iterator[Step]:
        """Yield the change of the clocks (memory, graphics) of applications where no clock is locked."""
        now, default = (
            tuple(gpu.integer(f"{place}/{name}") for name in ("mem_clock", "graphics_clock"))
            for place in ("applications_clocks", "default_applications_clocks")
        )
        if None in now:
            raise NodeError(
                "gpu_config_application_clocks: the GPU has none, lock its clocks instead: gpu_config_graphics_clock"
            )
        to = default if value == DEFAULT else tuple(map(int, value.split(",")))
        known = gpu.supported_clocks()
        if value != DEFAULT and known and to[0] not in known:
            choices = ", ".join(map(str, sorted(known)))
            raise NodeError(f"gpu_config_application_clocks: got {to[0]} MHz for memory, expected one of {choices}")
        if value != DEFAULT and known and to[1] not in known[to[0]]:
            nearest = sorted(sorted(known[to[0]], key=lambda clock: abs(clock - to[1]))[:4])
            choices = f"{min(known[to[0]])} to {max(known[to[0]])} MHz such as {', '.join(map(str, nearest))}"
            raise NodeError(f"gpu_config_application_clocks: got {to[1]} MHz for graphics, expected one of {choices}")
        if now != to:
            apply = self._command(gpu, *(("-rac",) if value == DEFAULT else ("-ac", "{},{}".format(*to))))
            texts = ["{},{} MHz".format(*clocks) for clocks in (to, now)]
            yield Step(gpu, "application_clocks", "application clocks", *texts, apply)

    def _command(self, gpu: Gpu, *options: str) -> Callable[[], object]:
        return lambda: gpu_node.run("nvidia-smi", "-i", gpu.uuid, *options)


def layout_of(gpu: Gpu) -> str:
    """Return a GPU's layout as the inventory writes it, empty if MIG is enabled and there is no instance."""
    return sort_layout([one.profile for one in gpu.mig_instances]) if gpu.is_mig_enabled else NONE


def sort_layout(profiles: list[str]) -> str:
    """Return a layout in canonical order: the largest profile first, for which there is always room."""

    def size(profile: str) -> tuple[int, int, str]:
        slices, memory = re.match(r"\d+", profile), re.search(r"\.(\d+)gb", profile)
        return (-int(slices.group()) if slices else 0, -int(memory.group(1)) if memory else 0, profile)

    return ",".join(sorted(profiles, key=size))


def fits(profiles: list[str], placements: dict[str, list[range]], used: frozenset[int] = frozenset()) -> bool:
    """Return whether instances of all these profiles fit on a GPU at once."""
    if not profiles:
        return True
    first, rest = profiles[0], profiles[1:]
    return any(
        not used & set(place) and fits(rest, placements, used | set(place)) for place in placements.get(first, ())
    )


def to_watts(text: str, default: int) -> int:
    """Return a power limit in watts: of `300`, `300 W`, `80%` of the default, or `default`."""
    if text == DEFAULT:
        return default
    number = int(re.match(r"\d+", text).group())
    return round(default * number / 100) if text.endswith("%") else number


def clock_range(text: str) -> list[int]:
    """Return the lowest and the highest clock of a range; a single clock is both."""
    found = [int(part) for part in text.split(",")]
    return found * 2 if len(found) == 1 else found
