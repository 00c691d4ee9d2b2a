"""The verbs that report: `usage`, `report`, `open`, `support-bundle`, `alert`."""

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from clusterctl.cli import completion
from clusterctl.cli.options import SUDO, verb


class _By(StrEnum):
    """The values of `usage --by`."""

    USER = "user"
    ACCOUNT = "account"
    PARTITION = "partition"


class _UsageFormat(StrEnum):
    """The values of `usage --output`."""

    text = "text"
    csv = "csv"
    json = "json"
    html = "html"


class _QuotaFormat(StrEnum):
    """The values of `report quota --output`."""

    text = "text"
    csv = "csv"
    json = "json"


class _Severity(StrEnum):
    """The severities of alerts that receivers can have."""

    critical = "critical"
    warning = "warning"
    info = "info"


def add_usage(app: typer.Typer) -> None:
    """Add the verb `usage`."""

    @verb(app, "usage", *SUDO)
    def usage(
        options: Any,
        since: Annotated[
            str, typer.Option(metavar="TIME", help="Begin: 7d or 24h before the end, or a date of UTC.")
        ] = "30d",
        until: Annotated[
            str | None, typer.Option(metavar="TIME", help="End: 7d or 24h ago, or a date of UTC. [default: now]")
        ] = None,
        by: Annotated[
            _By | None, typer.Option(help="Groups of Slurm's jobs. [default: account]", show_default=False)
        ] = None,
        output: Annotated[
            _UsageFormat, typer.Option(help="csv, json, html: on stdout, progress on stderr.")
        ] = _UsageFormat.text,
    ) -> int:
        """Sum up GPU-hours, waits, energy and utilisation."""
        from clusterctl.commands.usage import usage_command

        return usage_command(options, since, until, by, output)


def add_reports(reports: typer.Typer) -> None:
    """Add the verbs of the group `report`."""

    @verb(reports, "quota", *SUDO, of="report")
    def report_quota(
        options: Any,
        users: Annotated[bool, typer.Option("--users", help="Show the users of each account, too.")] = False,
        output: Annotated[
            _QuotaFormat, typer.Option(help="csv, json: on stdout, progress on stderr.")
        ] = _QuotaFormat.text,
    ) -> int:
        """Show shares, use and limits of Slurm's accounts."""
        from clusterctl.commands.quota import quota_command

        return quota_command(options, output, users)


def add_open(app: typer.Typer) -> None:
    """Add the verb `open`."""

    @verb(app, "open", "output")
    def open_(
        options: Any,
        name: Annotated[
            str | None,
            typer.Argument(
                help="Name, such as prometheus. [default: the landing page]",
                metavar="[PAGE]",
                show_default=False,
                autocompletion=completion.addresses,
            ),
        ] = None,
        tunnel: Annotated[bool, typer.Option("--tunnel", help="Reach the pages through SSH, until Ctrl-C.")] = False,
        no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the addresses; open none.")] = False,
        show_passwords: Annotated[bool, typer.Option("--show-passwords", help="Print the passwords, too.")] = False,
    ) -> int:
        """Print the cluster's pages with their logins; open one."""
        from clusterctl.commands import open as opening

        return opening.open_pages(options, name, tunnel, not no_browser, show_passwords)


def add_support_bundle(app: typer.Typer) -> None:
    """Add the verb `support-bundle`."""

    @verb(app, "support-bundle", *SUDO, "output")
    def support_bundle(
        options: Any,
        node: Annotated[str, typer.Argument(help="Name of a host.", metavar="NODE", autocompletion=completion.hosts)],
        to: Annotated[
            Path | None,
            typer.Option(
                metavar="DIRECTORY",
                help="Directory for the archive. [default: .clusterctl/support in the cluster's directory]",
                show_default=False,
            ),
        ] = None,
    ) -> int:
        """Collect what a vendor asks for about a server."""
        from clusterctl.commands import support_bundle

        return support_bundle.support_bundle(replace(options, nodes=(node,)), to)


def add_alerts(alerts: typer.Typer) -> None:
    """Add the verbs of the group `alert`."""

    @verb(alerts, "test", *SUDO, "output", of="alert")
    def alert_test(
        options: Any,
        severity: Annotated[_Severity, typer.Option(help="Severity of the alert.")] = _Severity.critical,
    ) -> int:
        """Send a test alert and show where it arrives."""
        from clusterctl.commands import alert

        return alert.test(options, severity)
