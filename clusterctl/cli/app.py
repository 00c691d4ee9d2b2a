"""The command line: verbs, flags, exit codes. What a verb needs is imported when it is called, so `--help` is quick."""

import json
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from clusterctl import __version__
from clusterctl.cli import completion
from clusterctl.cli.groups import INVENTORY, INVENTORY_VARIABLE, AllVerbs, Verb, Verbs, WatchVerb
from clusterctl.util.errors import ClusterctlError


class Format(StrEnum):
    """What `--output` may be."""

    text = "text"
    json = "json"


app = typer.Typer(
    cls=AllVerbs,
    name="clusterctl",
    no_args_is_help=True,
    subcommand_metavar="VERB ...",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 ok, 1 bug or unwritable output, 2 bad input, 3 nodes unfit and unchanged, "
    "4 some workers failed, 5 head failed, 6 another run holds the lock, 7 interrupted, 10 a plan with changes.",
)

_Inventory = Annotated[
    Path,
    typer.Argument(
        help=f"inventory.yaml or its directory. [default: ${INVENTORY_VARIABLE} or ./{INVENTORY}]",
        metavar="INVENTORY",
        show_default=False,
    ),
]
_Output = Annotated[Format, typer.Option(help="json: one object on stdout, progress on stderr.")]
_Verbose = Annotated[
    int, typer.Option("-v", "--verbose", count=True, show_default=False, help="Show Ansible's output; -vvv: all of it.")
]
_Limit = Annotated[
    str | None,
    typer.Option(
        metavar="NODES",
        help="Only these hosts or groups, separated by commas.",
        show_default=False,
        autocompletion=completion.limit,
    ),
]
_Forks = Annotated[int | None, typer.Option(min=1, max=1000, help="Nodes to work on at the same time. [default: 50]")]
_NewKeys = Annotated[
    bool, typer.Option("--accept-new-host-keys", help="Record the SSH host keys of new nodes, unasked.")
]
_Skip = Annotated[
    bool, typer.Option("--skip-unreachable", help="Leave out unreachable or unconfined workers (exit 4).")
]
_Adopt = Annotated[bool, typer.Option("--adopt", help="Replace unmanaged software; take over a head.")]
_Nodes = Annotated[
    list[str],
    typer.Argument(help="Names of workers.", metavar="NODE...", show_default=False, autocompletion=completion.workers),
]
_Address = Annotated[
    list[str] | None,
    typer.Option(help="Address; repeat it in the order of NODE. [default: the name resolves]", metavar="A"),
]
_Group = Annotated[
    str,
    typer.Option(help="Group of workers to add them to.", metavar="G", autocompletion=completion.groups),
]
_Dead = Annotated[bool, typer.Option("--dead", help="The nodes are permanently down; contact only the head.")]
_Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
_Only = Annotated[
    list[str] | None,
    typer.Option(metavar="ROLE", help="Only the packages of this role; repeatable.", autocompletion=completion.roles),
]
_System = Annotated[bool, typer.Option("--os", help="All other packages, kernel included; reboot if needed.")]
_Stay = Annotated[bool, typer.Option("--no-reboot", help="With --os: list nodes that need a reboot instead.")]
_Batch = Annotated[str, typer.Option(metavar="N|P%", help="Workers per batch, or P% of all (at least one).")]
_MaxFailures = Annotated[int, typer.Option(min=1, metavar="K", help="Stop after this many failed workers.")]
_Timeout = Annotated[
    float | None,
    typer.Option(min=0, help="Minutes to wait for a batch's jobs. [default: no limit]", metavar="T"),
]
_AskPass = Annotated[bool, typer.Option("-K", "--ask-become-pass", help="Ask once for the sudo password.")]
_PassFile = Annotated[
    Path | None,
    typer.Option(
        "--become-password-file", metavar="FILE", help="Read the sudo password from a 0600 file.", show_default=False
    ),
]
_Print = Annotated[bool, typer.Option("--print-command", help="Print the equivalent ansible-playbook command.")]


def _version(value: bool) -> None:
    if value:
        typer.echo(f"clusterctl {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    context: typer.Context,
    verbose: _Verbose = 0,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Turn a list of Linux servers into a working GPU cluster, and keep it working."""
    context.obj = verbose
    try:
        Path.cwd()
    except OSError as error:
        from clusterctl.util.errors import InputError, Problem

        raise InputError([Problem(None, "working directory", f"cannot be used: {error.strerror}", "cd")]) from None


def _options(verb: str, given: dict[str, Any], **more: Any) -> Any:
    """Return what a verb was asked for: of its parameters those that mean the same for every verb, and `more`."""
    from clusterctl.run.converge import Options

    known = {field.name for field in fields(Options)}
    asked: dict[str, Any] = {name: value for name, value in given.items() if name in known}
    if "nodes" in asked:
        asked["nodes"] = tuple(dict.fromkeys(asked["nodes"]))
    if context := given.get("context"):
        asked["verbosity"] = given.get("verbose", 0) + int(context.find_root().obj or 0)
    asked["json"] = given.get("output") is Format.json
    return Options(**{"verb": verb, "given": given["inventory"], **asked, **more})


def _plan(verb: str, given: dict[str, Any], **more: Any) -> Any:
    """Return the same for a plan; with -v it shows how files would change."""
    options = _options("plan", given, planned=verb, **more)
    return replace(options, diff=options.verbosity > 0, verbosity=max(0, options.verbosity - 1))


@app.command(cls=Verb)
def validate(inventory: _Inventory, output: _Output = Format.text) -> None:
    """Check the inventory; contact no node."""
    from clusterctl.commands import discover as work

    options = _options("validate", locals())
    _end("validate", output, lambda: work.validate(options))


@app.command(cls=Verb)
def discover(
    context: typer.Context,
    inventory: _Inventory,
    limit: _Limit = None,
    accept_new_host_keys: _NewKeys = False,
    ask_become_pass: _AskPass = False,
    become_password_file: _PassFile = None,
    output: _Output = Format.text,
) -> None:
    """Check all nodes and record their hardware; change none."""
    from clusterctl.commands import discover as work

    options = _options("discover", locals())
    _end("discover", output, lambda: work.discover(options))


@app.command(cls=Verb)
def bootstrap(
    context: typer.Context,
    inventory: _Inventory,
    limit: _Limit = None,
    check: Annotated[bool, typer.Option("--check", help="Show what would change; change nothing.")] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Show differences of files.")] = False,
    forks: _Forks = None,
    accept_new_host_keys: _NewKeys = False,
    skip_unreachable: _Skip = False,
    adopt: _Adopt = False,
    new_head: Annotated[bool, typer.Option("--new-head", help="Start with an empty queue; running jobs end.")] = False,
    prune: Annotated[bool, typer.Option("--prune", help="Uninstall roles of groups that hosts left.")] = False,
    ask_become_pass: _AskPass = False,
    become_password_file: _PassFile = None,
    print_command: _Print = False,
    output: _Output = Format.text,
    verbose: _Verbose = 0,
) -> None:
    """Build the cluster; repair what differs from the inventory."""
    from clusterctl.run import pruning

    options = _options("bootstrap", locals(), flags=("--prune",) * prune)
    _end("bootstrap", output, lambda: pruning.bootstrap(options, prune))


@app.command(cls=Verb)
def docs(
    page: Annotated[
        str,
        typer.Argument(metavar="[PAGE]", help="Name of a page; without it, list all.", autocompletion=completion.pages),
    ] = "",
) -> None:
    """Show the documentation."""
    import pydoc

    from clusterctl.util import paths
    from clusterctl.util.errors import InputError, Problem
    from clusterctl.util.text import did_you_mean

    pages = {path.stem: path for path in sorted((paths.content() / "docs").glob("*.md"))}
    if page and page not in pages:
        raise InputError([Problem(None, "PAGE", f'no page "{page}"', did_you_mean(page, pages) or ", ".join(pages))])
    text = pages[page].read_text(encoding="utf-8") if page else "".join(f"{name}\n" for name in pages)
    if page and sys.stdout.isatty():
        pydoc.pager(text)
    else:
        typer.echo(text, nl=False)


def _group(name: str, summary: str) -> typer.Typer:
    """Add a verb that has verbs of its own."""
    group = typer.Typer(
        cls=Verbs, help=summary, subcommand_metavar="VERB ...", no_args_is_help=True, rich_markup_mode=None
    )
    app.add_typer(group, name=name)
    return group


_plans = _group("plan", "Show what a verb would change; exit 10 if anything.")


@_plans.command("bootstrap", cls=Verb)
def plan_bootstrap(
    context: typer.Context,
    inventory: _Inventory,
    limit: _Limit = None,
    forks: _Forks = None,
    accept_new_host_keys: _NewKeys = False,
    skip_unreachable: _Skip = False,
    adopt: _Adopt = False,
    ask_become_pass: _AskPass = False,
    become_password_file: _PassFile = None,
    output: _Output = Format.text,
    verbose: _Verbose = 0,
) -> None:
    """Show what bootstrap would change."""
    from clusterctl.commands import plan

    options = _plan("bootstrap", locals())
    _end("plan", output, lambda: plan.bootstrap(options))


@_plans.command("add-node", cls=Verb)
def plan_add_node(
    context: typer.Context,
    inventory: _Inventory,
    nodes: _Nodes,
    address: _Address = None,
    group: _Group = "slurm_workers",
    forks: _Forks = None,
    accept_new_host_keys: _NewKeys = False,
    adopt: _Adopt = False,
    ask_become_pass: _AskPass = False,
    become_password_file: _PassFile = None,
    output: _Output = Format.text,
    verbose: _Verbose = 0,
) -> None:
    """Show what add-node would change."""
    from clusterctl.commands import membership

    options = _plan("add-node", locals(), flags=membership.flags(address or (), group))
    _end("plan", output, lambda: membership.add_node(options, address or (), group))


@_plans.command("remove-node", cls=Verb)
def plan_remove_node(
    context: typer.Context,
    inventory: _Inventory,
    nodes: _Nodes,
    dead: _Dead = False,
    forks: _Forks = None,
    ask_become_pass: _AskPass = False,
    become_password_file: _PassFile = None,
    output: _Output = Format.text,
    verbose: _Verbose = 0,
) -> None:
    """Show what remove-node would change."""
    from clusterctl.commands import membership

    options = _plan("remove-node", locals(), flags=("--dead",) * dead)
    _end("plan", output, lambda: membership.remove_node(options, dead))


@_plans.command("upgrade", cls=Verb)
def plan_upgrade(
    context: typer.Context,
    inventory: _Inventory,
    only: _Only = None,
    system: _System = False,
    no_reboot: _Stay = False,
    forks: _Forks = None,
    ask_become_pass: _AskPass = False,
    become_password_file: _PassFile = None,
    output: _Output = Format.text,
    verbose: _Verbose = 0,
) -> None:
    """Show what upgrade would change."""
    from clusterctl.commands import upgrade as work

    what = work.What(tuple(only or ()), system, no_reboot)
    options = _plan("upgrade", locals(), flags=what.flags())
    _end("plan", output, lambda: work.preview(options, what))


@app.command(cls=Verb)
def verify(
    context: typer.Context,
    inventory: _Inventory,
    forks: _Forks = None,
    ask_become_pass: _AskPass = False,
    become_password_file: _PassFile = None,
    print_command: _Print = False,
    output: _Output = Format.text,
    verbose: _Verbose = 0,
) -> None:
    """Test the cluster: services, GPU jobs, accounting, metrics."""
    from clusterctl.run import converge

    options = _options("verify", locals())
    _end("verify", output, lambda: converge.run(options))


@app.command(cls=WatchVerb)
def status(
    context: typer.Context,
    inventory: _Inventory,
    ask_become_pass: _AskPass = False,
    become_password_file: _PassFile = None,
    watch: Annotated[
        float | None,
        typer.Option(
            "--watch", "-w", min=1, max=86400, metavar="[SECONDS]", show_default=False, help="Refresh until Ctrl-C."
        ),
    ] = None,
    output: _Output = Format.text,
    verbose: Annotated[
        int,
        typer.Option(
            "-v", "--verbose", count=True, show_default=False, help="Show how each node's GPUs are connected."
        ),
    ] = 0,
) -> None:
    """Show nodes, jobs, alerts and drift."""
    from clusterctl.commands.status_page import status_command

    options = _options("status", locals())
    _end("status", output, lambda: status_command(options, watch))


@app.command(cls=Verb)
def health(
    inventory: _Inventory,
    nodes: Annotated[
        list[str] | None,
        typer.Argument(
            help="Names of workers. [default: all]",
            metavar="[NODE]...",
            show_default=False,
            autocompletion=completion.workers,
        ),
    ] = None,
    diagnose: Annotated[
        bool,
        typer.Option("--diagnose", help="Reset GPUs with a hardware XID; resume healthy nodes."),
    ] = False,
    ask_become_pass: _AskPass = False,
    become_password_file: _PassFile = None,
    output: _Output = Format.text,
) -> None:
    """Check GPUs: driver, ECC, XIDs, links, heat, power."""
    from clusterctl.commands.health import health_command

    nodes = nodes or []
    options = _options("health", locals())
    _end("health", output, lambda: health_command(options, diagnose))


@app.command(cls=Verb)
def logs(
    inventory: _Inventory,
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]",
            show_default=False,
            help="A run's name, how only its name begins, or last.",
            autocompletion=completion.runs,
        ),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Print Ansible's whole log of that run.")] = False,
    output: _Output = Format.text,
) -> None:
    """List past runs, or show one."""
    from clusterctl.commands.logs import logs_command

    _end("logs", output, lambda: logs_command(inventory, run, full, output is Format.json))


@app.command("add-node", cls=Verb)
def add_node(
    context: typer.Context,
    inventory: _Inventory,
    nodes: _Nodes,
    address: _Address = None,
    group: _Group = "slurm_workers",
    yes: _Yes = False,
    forks: _Forks = None,
    accept_new_host_keys: _NewKeys = False,
    skip_unreachable: _Skip = False,
    adopt: _Adopt = False,
    ask_become_pass: _AskPass = False,
    become_password_file: _PassFile = None,
    print_command: _Print = False,
    output: _Output = Format.text,
    verbose: _Verbose = 0,
) -> None:
    """Add workers to the cluster."""
    from clusterctl.commands import membership

    options = _options("add-node", locals(), flags=membership.flags(address or (), group))
    _end("add-node", output, lambda: membership.add_node(options, address or (), group, yes))


@app.command("remove-node", cls=Verb)
def remove_node(
    context: typer.Context,
    inventory: _Inventory,
    nodes: _Nodes,
    dead: _Dead = False,
    force: Annotated[bool, typer.Option("--force", help="Kill their jobs, after asking.")] = False,
    timeout: Annotated[
        float | None,
        typer.Option(min=0, help="Minutes to wait for jobs; then exit 4. [default: no limit]", metavar="T"),
    ] = None,
    yes: _Yes = False,
    forks: _Forks = None,
    ask_become_pass: _AskPass = False,
    become_password_file: _PassFile = None,
    print_command: _Print = False,
    output: _Output = Format.text,
    verbose: _Verbose = 0,
) -> None:
    """Remove workers: drain, wait for jobs, clean up."""
    from clusterctl.commands import membership

    flags = ["--dead"] * dead + ["--force"] * force + (["--timeout", f"{timeout:g}"] if timeout is not None else [])
    options = _options("remove-node", locals(), flags=tuple(flags))
    _end("remove-node", output, lambda: membership.remove_node(options, dead, force, timeout, yes))


@app.command("replace-node", cls=Verb)
def replace_node(
    context: typer.Context,
    inventory: _Inventory,
    nodes: _Nodes,
    forks: _Forks = None,
    accept_new_host_keys: _NewKeys = False,
    adopt: _Adopt = False,
    ask_become_pass: _AskPass = False,
    become_password_file: _PassFile = None,
    print_command: _Print = False,
    output: _Output = Format.text,
    verbose: _Verbose = 0,
) -> None:
    """Add reinstalled workers again under their old names."""
    from clusterctl.commands import membership

    options = _options("replace-node", locals())
    _end("replace-node", output, lambda: membership.replace_node(options))


@app.command(cls=Verb)
def upgrade(
    context: typer.Context,
    inventory: _Inventory,
    only: _Only = None,
    system: _System = False,
    no_reboot: _Stay = False,
    batch: _Batch = "10%",
    max_failures: _MaxFailures = 1,
    timeout: _Timeout = None,
    forks: _Forks = None,
    skip_unreachable: _Skip = False,
    ask_become_pass: _AskPass = False,
    become_password_file: _PassFile = None,
    print_command: _Print = False,
    output: _Output = Format.text,
    verbose: _Verbose = 0,
) -> None:
    """Upgrade packages around running jobs, in batches."""
    from clusterctl.commands import upgrade as work
    from clusterctl.run.rolling import Pace

    what, pace = work.What(tuple(only or ()), system, no_reboot), Pace(batch, max_failures, timeout)
    options = _options("upgrade", locals(), flags=(*what.flags(), *pace.flags()))
    _end("upgrade", output, lambda: work.upgrade(options, what, pace))


@app.command(cls=Verb)
def reboot(
    context: typer.Context,
    inventory: _Inventory,
    nodes: Annotated[
        list[str],
        typer.Argument(help="Names of hosts.", metavar="NODE...", show_default=False, autocompletion=completion.hosts),
    ],
    batch: _Batch = "10%",
    max_failures: _MaxFailures = 1,
    timeout: _Timeout = None,
    forks: _Forks = None,
    ask_become_pass: _AskPass = False,
    become_password_file: _PassFile = None,
    print_command: _Print = False,
    output: _Output = Format.text,
    verbose: _Verbose = 0,
) -> None:
    """Reboot nodes around running jobs, in batches."""
    from clusterctl.commands import upgrade as work
    from clusterctl.run.rolling import Pace

    pace = Pace(batch, max_failures, timeout)
    options = _options("reboot", locals(), flags=pace.flags())
    _end("reboot", output, lambda: work.reboot(options, pace))


@app.command(cls=Verb)
def backup(
    context: typer.Context,
    inventory: _Inventory,
    to: Annotated[
        Path | None,
        typer.Option(
            metavar="DIRECTORY",
            help="Directory for the copy. [default: .clusterctl/backups in the cluster's directory]",
            show_default=False,
        ),
    ] = None,
    ask_become_pass: _AskPass = False,
    become_password_file: _PassFile = None,
    print_command: _Print = False,
    output: _Output = Format.text,
    verbose: _Verbose = 0,
) -> None:
    """Back up Slurm's queue and accounting."""
    from clusterctl.commands.backup import backup_command

    options = _options("backup", locals(), flags=("--to", str(to)) if to else ())
    _end("backup", output, lambda: backup_command(options, to))


@app.command(cls=Verb)
def restore(
    context: typer.Context,
    inventory: _Inventory,
    archive: Annotated[
        Path, typer.Argument(help="Archive that `clusterctl backup` made.", metavar="BACKUP", show_default=False)
    ],
    yes: _Yes = False,
    forks: _Forks = None,
    accept_new_host_keys: _NewKeys = False,
    skip_unreachable: _Skip = False,
    ask_become_pass: _AskPass = False,
    become_password_file: _PassFile = None,
    print_command: _Print = False,
    output: _Output = Format.text,
    verbose: _Verbose = 0,
) -> None:
    """Restore Slurm's queue and accounting from a backup."""
    from clusterctl.commands.backup import restore_command

    options = _options("restore", locals(), flags=(str(archive), *["--yes"] * yes))
    _end("restore", output, lambda: restore_command(options, archive, yes))


@app.command(cls=Verb)
def trust(
    inventory: _Inventory,
    nodes: Annotated[
        list[str],
        typer.Argument(help="Reinstalled nodes.", metavar="NODE...", autocompletion=completion.hosts),
    ],
    accept_new_host_keys: _NewKeys = False,
) -> None:
    """Accept the new SSH host keys of reinstalled nodes."""
    from clusterctl.run import converge

    options = converge.Options("trust", inventory, ",".join(nodes), accept_new_host_keys=accept_new_host_keys)
    _end("trust", Format.text, lambda: converge.trust(options))


_secrets = _group("secret", "Print or replace the cluster's secrets.")


@_secrets.command("show", cls=Verb)
def secret_show(
    inventory: _Inventory,
    name: Annotated[
        str,
        typer.Argument(help="Name, such as prometheus_password.", metavar="NAME", autocompletion=completion.secrets),
    ],
) -> None:
    """Print one of the cluster's secrets."""
    from clusterctl.commands import rotation
    from clusterctl.run import converge

    typer.echo(rotation.show(converge.Options("secret", inventory), name))


@_secrets.command("authority", cls=Verb)
def secret_authority(inventory: _Inventory) -> None:
    """Print the certificate of the cluster's authority."""
    from clusterctl.commands import rotation
    from clusterctl.run import converge

    typer.echo(rotation.authority(converge.Options("secret", inventory)), nl=False)


@_secrets.command("rotate", cls=Verb)
def secret_rotate(
    context: typer.Context,
    inventory: _Inventory,
    names: Annotated[
        list[str],
        typer.Argument(
            help="Names, such as munge_key, or `all`.",
            metavar="NAME...",
            autocompletion=completion.rotatable,
        ),
    ],
    skip_unreachable: _Skip = False,
    ask_become_pass: _AskPass = False,
    become_password_file: _PassFile = None,
    output: _Output = Format.text,
    verbose: _Verbose = 0,
) -> None:
    """Replace secrets on all nodes while jobs run."""
    from clusterctl.commands import rotation

    options = _options("secret", locals(), subverb="rotate", flags=tuple(dict.fromkeys(names)))
    _end("secret", output, lambda: rotation.rotate(options))


def _end(verb: str, output: Format, work: Callable[[], int | None]) -> NoReturn:
    """Do a verb's work and end with its exit code; with --output json an error is an object on stdout too."""
    try:
        raise typer.Exit(work() or 0)
    except ClusterctlError as error:
        if output is not Format.json:
            raise
        problems = [str(problem) for problem in getattr(error, "problems", ())]
        print(json.dumps({"verb": verb, "exit_code": error.exit_code, "error": str(error), "problems": problems}))
        raise typer.Exit(error.exit_code) from None
