"""Verb groups: sections of `--help`, verbs in other modules, and the default of INVENTORY."""

import importlib
import os
import re
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from clusterctl.util.errors import Interrupted

# Verbs that define their own command line: (module, a Typer app or a command's function, summary for --help).
_ELSEWHERE = {
    "init": (
        "clusterctl.commands.initialise",
        "init_command",
        "Create a cluster's directory with a commented inventory.",
    ),
    "lab": ("clusterctl.lab.cli", "app", "Run a test cluster in containers, with simulated GPUs."),
}
_SECTIONS = {
    "Set up": ("init", "validate", "discover", "plan", "bootstrap", "verify"),
    "Look": ("status", "open", "health", "usage", "report", "logs"),
    "Operate": (
        "add-node",
        "remove-node",
        "replace-node",
        "upgrade",
        "reboot",
        "backup",
        "restore",
        "support-bundle",
        "alert",
        "trust",
        "secret",
        "kubeconfig",
    ),
    "Try and read": ("lab", "docs"),
}
_ORDER = tuple(name for names in _SECTIONS.values() for name in names)
_WATCH_SECONDS = 5
INVENTORY = "inventory.yaml"
INVENTORY_VARIABLE = "CLUSTERCTL_INVENTORY"


_TYPES = {"int range": "N", "int": "N", "str": "TEXT", "list[str]": "TEXT", "path": "PATH"}


def _plain(name: str) -> str:
    """Return the name of a parameter without Python types and nested brackets, which typer prints."""
    word, _, kind = name.partition(" <")
    if kind and word.startswith("-"):
        kind = kind.rstrip(">")
        return f"{word} {_TYPES.get(kind, kind)}"
    if found := re.fullmatch(r"([\[{]*)([A-Za-z]+)([\]}.]*)", word):
        optional, repeated = "[" in found[1], "..." in found[3]
        return (f"[{found[2]}]" if optional else found[2]) + "..." * repeated
    return name


class Verb(TyperCommand):
    """A verb with a default INVENTORY: $CLUSTERCTL_INVENTORY, or inventory.yaml in the working directory."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        default = os.environ.get(INVENTORY_VARIABLE) or (INVENTORY if Path(INVENTORY).is_file() else "")
        if default and any(parameter.name == "inventory" for parameter in self.params):
            given, *_ = self.make_parser(ctx).parse_args(args=list(args))
            if not self._is_inventory(given.get("inventory")):
                args = [default, *args]
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        for parameter in self.params:
            parameter.required &= parameter.name != "inventory"
        write = formatter.write_dl
        formatter.write_dl = lambda rows, **layout: write([(_plain(name), text) for name, text in rows], **layout)
        super().format_help(ctx, formatter)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [_plain(piece) for piece in super().collect_usage_pieces(ctx)]

    def _is_inventory(self, word: object) -> bool:
        """Return whether a first argument is the INVENTORY: it is a path, or the verb has no other argument."""
        if not isinstance(word, str):
            return False
        alone = sum(parameter.param_type_name == "argument" for parameter in self.params) == 1
        if word.endswith(".tar"):  # the BACKUP of restore
            return False
        return alone or "/" in word or word.endswith((".yaml", ".yml")) or Path(word).exists()


class Verbs(TyperGroup):
    """A group of verbs."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl(
                [(name, self.commands[name].get_short_help_str(limit=100)) for name in self.list_commands(ctx)]
            )


class AllVerbs(TyperGroup):
    """The group of all verbs: lists them in the order of use, and loads verbs of other modules when they are called."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(_ORDER)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands and cmd_name in _ELSEWHERE:
            module, name, _ = _ELSEWHERE[cmd_name]
            found = getattr(importlib.import_module(module), name)
            if not isinstance(found, typer.Typer):
                function, found = found, typer.Typer(add_completion=False, rich_markup_mode=None)
                found.command(cmd_name, cls=Verb)(function)
            self.commands[cmd_name] = typer.main.get_command(found)
            self.commands[cmd_name].name = cmd_name
        return super().get_command(ctx, cmd_name)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse `help VERB` as `VERB --help`."""
        return super().parse_args(ctx, [*args[1:], "--help"] if args[:1] == ["help"] else args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in _ORDER:  # a typo: load all verbs for the search for the nearest one
            for name in _ELSEWHERE:
                self.get_command(ctx, name)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        width = max(map(len, _ORDER))
        for title, names in _SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), self._summary(name)) for name in names])

    def _summary(self, name: str) -> str:
        if name in _ELSEWHERE:
            return _ELSEWHERE[name][2]
        return str(self.commands[name].get_short_help_str(limit=100))

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, typer.Abort):  # click would print "Aborted!" and exit with 1
            raise Interrupted("Interrupted.") from None
        except BrokenPipeError:
            raise typer.Exit(Interrupted.exit_code) from None


class WatchVerb(Verb):
    """A verb with an option `--watch` whose value is optional."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = [*args, ""]
        for at, word in enumerate(args):
            if word in ("--watch", "-w") and not re.fullmatch(r"[0-9.]+", given[at + 1]):
                args = [*args[:at], f"--watch={_WATCH_SECONDS}", *args[at + 1 :]]
        return super().parse_args(ctx, args)
