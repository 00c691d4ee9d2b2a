"""The command line: verbs, flags, exit codes. A verb imports its module when it is called, so that `--help` is fast."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from clusterctl import __version__
from clusterctl.cli import access, completion, observing
from clusterctl.cli.groups import AllVerbs, Verb, Verbs, WatchVerb
from clusterctl.cli.options import PLAY, SUDO, Hosts, Nodes, Verbose, verb

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

_Address = Annotated[
    list[str] | None,
    typer.Option(help="Address; repeat it in the order of NODE. [default: the name resolves]", metavar="A"),
]
_Group = Annotated[
    str | None,
    typer.Option(
        help="Group of workers to add them to. [default: the only one]",
        metavar="G",
        show_default=False,
        autocompletion=completion.groups,
    ),
]
_Dead = Annotated[bool, typer.Option("--dead", help="The nodes are permanently down; contact only the head.")]
_Only = Annotated[
    list[str] | None,
    typer.Option(metavar="ROLE", help="Only the packages of this role; repeatable.", autocompletion=completion.roles),
]
_System = Annotated[bool, typer.Option("--os", help="All other packages, kernel included; reboot if needed.")]
_Stay = Annotated[bool, typer.Option("--no-reboot", help="With --os: do not reboot; list nodes that need it.")]
_Batch = Annotated[str, typer.Option(metavar="N|P%", help="Workers per batch, or P% of all (at least one).")]
_MaxFailures = Annotated[int, typer.Option(min=1, metavar="K", help="Stop after this many failed workers.")]
_Timeout = Annotated[
    float | None,
    typer.Option(min=0, help="Minutes to wait for a batch's jobs. [default: no limit]", metavar="T"),
]


def _version(value: bool) -> None:
    if value:
        typer.echo(f"clusterctl {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    context: typer.Context,
    verbose: Annotated[int, Verbose] = 0,
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


def _group(name: str, summary: str) -> typer.Typer:
    """Add a group of verbs."""
    group = typer.Typer(
        cls=Verbs, help=summary, subcommand_metavar="VERB ...", no_args_is_help=True, rich_markup_mode=None
    )
    app.add_typer(group, name=name)
    return group


# --- set up -----------------------------------------------------------------------------------------------------------


@verb(app, "validate", "output")
def validate(options: Any) -> int:
    """Check the inventory; contact no node."""
    from clusterctl.commands import discover

    return discover.validate(options)


@verb(app, "discover", "limit", "accept_new_host_keys", *SUDO, "output")
def discover(options: Any) -> int:
    """Check all nodes and record their hardware; change none."""
    from clusterctl.commands import discover

    return discover.discover(options)


_FULL = "Run all roles on all nodes, even if nothing changed."


@verb(app, "bootstrap", "limit", "diff", "accept_new_host_keys", "skip_unreachable", "adopt", "print_command", *PLAY)
def bootstrap(
    options: Any,
    new_head: Annotated[bool, typer.Option("--new-head", help="Start with an empty queue; running jobs end.")] = False,
    prune: Annotated[bool, typer.Option("--prune", help="Uninstall roles that no group of a host has.")] = False,
    full: Annotated[bool, typer.Option("--full", help=_FULL)] = False,
) -> int:
    """Build the cluster; repair what differs from the inventory."""
    from clusterctl.commands import bootstrap

    flags = ("--prune",) * prune + ("--full",) * full
    return bootstrap.bootstrap(replace(options, flags=flags), prune, full)


@verb(app, "verify", "skip_unreachable", "print_command", *PLAY)
def verify(options: Any) -> int:
    """Test the cluster: services, GPU jobs, accounting, metrics."""
    from clusterctl.commands import verify

    return verify.verify(options)


_plans = _group("plan", "Show what a verb would change; exit 10 if anything.")


@verb(_plans, "bootstrap", "limit", "diff", "accept_new_host_keys", "skip_unreachable", "adopt", *PLAY, of="plan")
def plan_bootstrap(
    options: Any,
    full: Annotated[bool, typer.Option("--full", help=_FULL)] = False,
) -> int:
    """Show what bootstrap would change."""
    from clusterctl.commands import bootstrap

    return bootstrap.bootstrap(replace(options, flags=("--full",) * full), full=full)


@verb(_plans, "add-node", "diff", "accept_new_host_keys", "adopt", *PLAY, of="plan")
def plan_add_node(options: Any, nodes: Nodes, address: _Address = None, group: _Group = None) -> int:
    """Show what add-node would change."""
    from clusterctl.commands import add_node

    return add_node.add_node(replace(options, flags=add_node.flags(address or (), group)), address or (), group)


@verb(_plans, "remove-node", "diff", "skip_unreachable", *PLAY, of="plan")
def plan_remove_node(options: Any, nodes: Nodes, dead: _Dead = False) -> int:
    """Show what remove-node would change."""
    from clusterctl.commands import remove_node

    return remove_node.remove_node(replace(options, flags=("--dead",) * dead), dead)


@verb(_plans, "upgrade", "diff", "skip_unreachable", *PLAY, of="plan")
def plan_upgrade(options: Any, only: _Only = None, system: _System = False, no_reboot: _Stay = False) -> int:
    """Show what upgrade would change."""
    from clusterctl.commands import upgrade

    what = upgrade.What(tuple(only or ()), system, no_reboot)
    return upgrade.upgrade(replace(options, flags=what.flags()), what)


# --- look -------------------------------------------------------------------------------------------------------------


@verb(app, "status", *SUDO, "output", cls=WatchVerb)
def status(
    options: Any,
    watch: Annotated[
        float | None,
        typer.Option(
            "--watch", "-w", min=1, max=86400, metavar="[SECONDS]", show_default=False, help="Refresh until Ctrl-C."
        ),
    ] = None,
    topology: Annotated[bool, typer.Option("--topology", help="Show how each node's GPUs are connected.")] = False,
) -> int:
    """Show nodes, jobs, alerts and drift."""
    from clusterctl.commands.status_page import status_command

    return status_command(options, watch, topology)


@verb(app, "health", *SUDO, "output")
def health(
    options: Any,
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
) -> int:
    """Check GPUs: driver, ECC, XIDs, links, heat, power."""
    from clusterctl.commands.health import health_command

    return health_command(options, diagnose)


observing.add_usage(app)
observing.add_reports(_group("report", "Show accounts: shares, use, limits and waiting jobs."))
observing.add_open(app)


@verb(app, "logs", "output")
def logs(
    options: Any,
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]",
            show_default=False,
            help="Name of a run, a unique prefix of it, or last.",
            autocompletion=completion.runs,
        ),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Print Ansible's whole log of that run.")] = False,
) -> int:
    """List past runs, or show one."""
    from clusterctl.commands.logs import logs_command

    return logs_command(options.given, run, full, options.json)


# --- operate ----------------------------------------------------------------------------------------------------------


@verb(app, "add-node", "yes", "accept_new_host_keys", "skip_unreachable", "adopt", "print_command", *PLAY)
def add_node(options: Any, nodes: Nodes, address: _Address = None, group: _Group = None) -> int:
    """Add workers to the cluster."""
    from clusterctl.commands import add_node

    return add_node.add_node(replace(options, flags=add_node.flags(address or (), group)), address or (), group)


@verb(app, "remove-node", "yes", "skip_unreachable", "print_command", *PLAY)
def remove_node(
    options: Any,
    nodes: Nodes,
    dead: _Dead = False,
    force: Annotated[bool, typer.Option("--force", help="Kill their jobs, after asking.")] = False,
    timeout: Annotated[
        float | None,
        typer.Option(min=0, help="Minutes to wait for jobs; then exit 4. [default: no limit]", metavar="T"),
    ] = None,
) -> int:
    """Remove workers: drain, wait for jobs, clean up."""
    from clusterctl.commands import remove_node

    flags = ["--dead"] * dead + ["--force"] * force + (["--timeout", f"{timeout:g}"] if timeout is not None else [])
    return remove_node.remove_node(replace(options, flags=tuple(flags)), dead, force, timeout)


@verb(app, "replace-node", "accept_new_host_keys", "skip_unreachable", "adopt", "print_command", *PLAY)
def replace_node(options: Any, nodes: Nodes) -> int:
    """Add reinstalled workers again under their old names."""
    from clusterctl.commands import replace_node

    return replace_node.replace_node(options)


@verb(app, "upgrade", "skip_unreachable", "print_command", *PLAY)
def upgrade(
    options: Any,
    only: _Only = None,
    system: _System = False,
    no_reboot: _Stay = False,
    batch: _Batch = "10%",
    max_failures: _MaxFailures = 1,
    timeout: _Timeout = None,
) -> int:
    """Upgrade packages around running jobs, in batches."""
    from clusterctl.commands import upgrade
    from clusterctl.run.rolling import Pace

    what, pace = upgrade.What(tuple(only or ()), system, no_reboot), Pace(batch, max_failures, timeout)
    return upgrade.upgrade(replace(options, flags=(*what.flags(), *pace.flags())), what, pace)


@verb(app, "reboot", "skip_unreachable", "print_command", *PLAY)
def reboot(
    options: Any,
    nodes: Hosts,
    batch: _Batch = "10%",
    max_failures: _MaxFailures = 1,
    timeout: _Timeout = None,
) -> int:
    """Reboot nodes around running jobs, in batches."""
    from clusterctl.commands import reboot
    from clusterctl.run.rolling import Pace

    pace = Pace(batch, max_failures, timeout)
    return reboot.reboot(replace(options, flags=pace.flags()), pace)


@verb(app, "backup", *SUDO, "print_command", "output", "verbose")
def backup(
    options: Any,
    to: Annotated[
        Path | None,
        typer.Option(
            metavar="DIRECTORY",
            help="Directory for the copy. [default: .clusterctl/backups in the cluster's directory]",
            show_default=False,
        ),
    ] = None,
) -> int:
    """Back up Slurm's queue and accounting, Kubernetes' objects."""
    from clusterctl.commands import backup

    return backup.backup(replace(options, flags=("--to", str(to)) if to else ()), to)


@verb(app, "restore", "yes", "accept_new_host_keys", "skip_unreachable", "print_command", *PLAY)
def restore(
    options: Any,
    archive: Annotated[
        Path, typer.Argument(help="Archive that `clusterctl backup` made.", metavar="BACKUP", show_default=False)
    ],
) -> int:
    """Restore Slurm or Kubernetes from a backup."""
    from clusterctl.commands import restore

    return restore.restore(replace(options, flags=(str(archive), *["--yes"] * options.yes)), archive)


@verb(app, "trust", "accept_new_host_keys")
def trust(
    options: Any,
    nodes: Annotated[
        list[str], typer.Argument(help="Reinstalled nodes.", metavar="NODE...", autocompletion=completion.hosts)
    ],
) -> int:
    """Accept the new SSH host keys of reinstalled nodes."""
    from clusterctl.commands import trust

    return trust.trust(replace(options, limit=",".join(options.nodes)))


observing.add_support_bundle(app)
observing.add_alerts(_group("alert", "Test the delivery of alerts."))
access.add_secrets(_group("secret", "Print or replace the cluster's secrets."))
access.add_kubeconfig(app)


# --- read -------------------------------------------------------------------------------------------------------------


@app.command(cls=Verb)
def docs(
    page: Annotated[
        str,
        typer.Argument(metavar="[PAGE]", help="Name of a page; without it, list all.", autocompletion=completion.pages),
    ] = "",
) -> None:
    """Show the documentation."""
    from clusterctl.commands.docs import docs_command

    docs_command(page)
