"""Options that verbs share, each declared once, and the decorator that makes a verb of a function."""

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
    """What `--output` may be."""

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
# By the name of the parameter: what Typer makes of it, and its value where it is not given. Those whose name is a field
# of run.context.Options set that field.
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
            typer.Option(min=1, max=1000, metavar="N", help="Nodes to work on at the same time. [default: 50]"),
        ],
        None,
    ),
    "accept_new_host_keys": (
        Annotated[bool, typer.Option("--accept-new-host-keys", help="Record the SSH host keys of new nodes, unasked.")],
        False,
    ),
    "skip_unreachable": (
        Annotated[
            bool, typer.Option("--skip-unreachable", help="Leave out unreachable or unconfined workers (exit 4).")
        ],
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
"""Of verbs that log in."""
PLAY = ("forks", *SUDO, "output", "verbose")
"""Of verbs that run Ansible."""


def verb(
    group: typer.Typer, name: str, *shared: str, of: str = "", cls: type[Verb] = Verb
) -> Callable[[Callable[..., int | None]], Callable[..., int | None]]:
    """Make a verb of a function: its own parameters, after `options` (run.context.Options), and the `shared` ones.

    The function returns the exit code. `of` is the verb whose verb it is: `plan`, `secret`.
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
            mine = {parameter.name: given[parameter.name] for parameter in own}
            _end(options.verb, options.json, lambda: function(options, **mine))

        command.__doc__ = function.__doc__
        command.__signature__ = inspect.Signature([*common[:2], *own, *common[2:]])  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in (*common, *own)}
        group.command(name, cls=cls)(command)
        return function

    return register


def _options(name: str, given: dict[str, Any], of: str) -> Any:
    """Return what a verb was asked for: its parameters that are fields of Options."""
    from clusterctl.run.context import Options

    known = {field.name for field in fields(Options)}
    asked: dict[str, Any] = {key: value for key, value in given.items() if key in known}
    asked["nodes"] = tuple(dict.fromkeys(asked.get("nodes") or ()))
    asked["verbosity"] = given.get("verbose", 0) + int(given["context"].find_root().obj or 0)
    asked["json"] = given.get("output") is Format.json
    asked |= {"plan": {"planned": name}, "secret": {"subverb": name}}.get(of, {})
    return Options(verb=of or name, given=given["inventory"], **asked)


def _end(name: str, as_json: bool, work: Callable[[], int | None]) -> NoReturn:
    """Do a verb's work and end with its exit code; with --output json an error is an object on stdout too."""
    try:
        raise typer.Exit(work() or 0)
    except ClusterctlError as error:
        if not as_json:
            raise
        problems = [str(problem) for problem in getattr(error, "problems", ())]
        print(json.dumps({"verb": name, "exit_code": error.exit_code, "error": str(error), "problems": problems}))
        raise typer.Exit(error.exit_code) from None
