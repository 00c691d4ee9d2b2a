"""The shared options of verbs, each declared once, and the decorator that turns a function into a verb."""

import inspect
import json
from collections.abc import Callable
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from clusterctl.cli import completion
from clusterctl.cli.groups import INVENTORY, INVENTORY_VARIABLE, Verb
from clusterctl.util.errors import ClusterctlError


class Format(StrEnum):
    """The values of `--output`."""

    text = "text"
    json = "json"


_VERBOSE = "Show Ansible's output; -vvv: all of it."
Verbose = typer.Option("-v", "--verbose", count=True, show_default=False, help=_VERBOSE)
Nodes = Annotated[
    list[str],
    typer.Argument(help="Names of workers.", metavar="NODE...", show_default=False, autocompletion=completion.workers),
]
Hosts = Annotated[
    list[str],
    typer.Argument(help="Names of hosts.", metavar="NODE...", show_default=False, autocompletion=completion.hosts),
]
# Parameter name: (Typer annotation, default). A parameter with the name of a field of run.context.Options sets it.
_SHARED: dict[str, tuple[Any, Any]] = {
    "context": (typer.Context, inspect.Parameter.empty),
    "inventory": (
        Annotated[
            Path,
            typer.Argument(
                help=f"inventory.yaml or its directory. [default: ${INVENTORY_VARIABLE} or ./{INVENTORY}]",
                metavar="INVENTORY",
                show_default=False,
            ),
        ],
        inspect.Parameter.empty,
    ),
    "limit": (
        Annotated[
            str | None,
            typer.Option(
                metavar="NODES",
                help="Only these hosts or groups, separated by commas.",
                show_default=False,
                autocompletion=completion.limit,
            ),
        ],
        None,
    ),
    "yes": (Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")], False),
    "diff": (Annotated[bool, typer.Option("--diff", help="Show differences of files.")], False),
    "forks": (
        Annotated[
            int | None,
            typer.Option(
                min=1,
                max=1000,
                metavar="N",
                help="Nodes to work on at the same time. [default: 50, but all are asked at once]",
            ),
        ],
        None,
    ),
    "accept_new_host_keys": (
        Annotated[bool, typer.Option("--accept-new-host-keys", help="Record new nodes' SSH host keys without asking.")],
        False,
    ),
    "skip_unreachable": (
        Annotated[bool, typer.Option("--skip-unreachable", help="Skip unreachable or unconfined workers (exit 4).")],
        False,
    ),
    "adopt": (
        Annotated[bool, typer.Option("--adopt", help="Replace unmanaged software; take over a head.")],
        False,
    ),
    "ask_become_pass": (
        Annotated[bool, typer.Option("-K", "--ask-become-pass", help="Ask once for the sudo password.")],
        False,
    ),
    "become_password_file": (
        Annotated[
            Path | None,
            typer.Option(
                "--become-password-file",
                metavar="FILE",
                help="Read the sudo password from a 0600 file.",
                show_default=False,
            ),
        ],
        None,
    ),
    "print_command": (
        Annotated[bool, typer.Option("--print-command", help="Print the equivalent ansible-playbook command.")],
        False,
    ),
    "output": (
        Annotated[Format, typer.Option(help="json: one object on stdout, progress on stderr.")],
        Format.text,
    ),
    "verbose": (Annotated[int, Verbose], 0),
}
SUDO = ("ask_become_pass", "become_password_file")
"""Options of verbs that log in to nodes."""
PLAY = ("forks", *SUDO, "output", "verbose")
"""Options of verbs that run Ansible."""


def verb(
    group: typer.Typer, name: str, *shared: str, of: str = "", cls: type[Verb] = Verb
) -> Callable[[Callable[..., int | None]], Callable[..., int | None]]:
    """Turn a function into a verb with the function's parameters after `options`, and the `shared` ones.

    The function gets run.context.Options as `options` and returns the exit code. `of` is the group: `plan`, `secret`.
    """

    def register(function: Callable[..., int | None]) -> Callable[..., int | None]:
        own = list(inspect.signature(function).parameters.values())[1:]
        common = [
            inspect.Parameter(one, inspect.Parameter.KEYWORD_ONLY, annotation=_SHARED[one][0], default=_SHARED[one][1])
            for one in ("context", "inventory", *shared)
        ]
        own = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]

        def command(**given: Any) -> NoReturn:
            options = _options(name, given, of)
            values = {parameter.name: given[parameter.name] for parameter in own}
            _end(options.verb, options.json, lambda: function(options, **values))

        command.__doc__ = function.__doc__
        command.__signature__ = inspect.Signature([*common[:2], *own, *common[2:]])  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in (*common, *own)}
        group.command(name, cls=cls)(command)
        return function

    return register


def _options(name: str, given: dict[str, Any], of: str) -> Any:
    """Return the Options of a verb, from its parameters that are fields of Options."""
    from clusterctl.run.context import Options

    known = {field.name for field in fields(Options)}
    values: dict[str, Any] = {key: value for key, value in given.items() if key in known}
    values["nodes"] = tuple(dict.fromkeys(values.get("nodes") or ()))
    values["verbosity"] = given.get("verbose", 0) + int(given["context"].find_root().obj or 0)
    values["json"] = given.get("output") == Format.json  # also of a verb with more formats
    values |= {"plan": {"planned": name}, "secret": {"subverb": name}}.get(of, {})
    return Options(verb=of or name, given=given["inventory"], **values)


def _end(name: str, as_json: bool, work: Callable[[], int | None]) -> NoReturn:
    """Run a verb and exit with its exit code; with --output json, print an error as an object on stdout."""
    try:
        raise typer.Exit(work() or 0)
    except ClusterctlError as error:
        if not as_json:
            raise
        problems = [str(problem) for problem in getattr(error, "problems", ())]
        print(json.dumps({"verb": name, "exit_code": error.exit_code, "error": str(error), "problems": problems}))
        raise typer.Exit(error.exit_code) from None
