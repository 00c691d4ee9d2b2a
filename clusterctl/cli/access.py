"""The verbs that hand out access: `secret` and `kubeconfig`."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from clusterctl.cli import completion
from clusterctl.cli.options import SUDO, verb


def add_secrets(secrets: typer.Typer) -> None:
    """Add the verbs of the group `secret`."""

    @verb(secrets, "show", of="secret")
    def secret_show(
        options: Any,
        name: Annotated[
            str,
            typer.Argument(
                help="Name, such as prometheus_password.", metavar="NAME", autocompletion=completion.secrets
            ),
        ],
    ) -> None:
        """Print one of the cluster's secrets."""
        from clusterctl.commands import secret

        typer.echo(secret.show(options, name))

    @verb(secrets, "authority", of="secret")
    def secret_authority(options: Any) -> None:
        """Print the certificate of the cluster's authority."""
        from clusterctl.commands import secret

        typer.echo(secret.authority(options), nl=False)

    @verb(secrets, "set", of="secret")
    def secret_set(
        options: Any,
        name: Annotated[
            str,
            typer.Argument(
                help="Name, such as alertmanager_slack_url.", metavar="NAME", autocompletion=completion.settable
            ),
        ],
    ) -> None:
        """Set a secret of an outside service, from a prompt or stdin."""
        from clusterctl.commands import secret

        secret.set_given(options, name)

    @verb(secrets, "rotate", "skip_unreachable", *SUDO, "output", "verbose", of="secret")
    def secret_rotate(
        options: Any,
        names: Annotated[
            list[str],
            typer.Argument(
                help="Names, such as munge_key, or `all`.", metavar="NAME...", autocompletion=completion.rotatable
            ),
        ],
    ) -> int:
        """Replace secrets on all nodes while jobs run."""
        from clusterctl.commands import secret

        return secret.rotate(replace(options, flags=tuple(dict.fromkeys(names))))


def add_kubeconfig(app: typer.Typer) -> None:
    """Add the verb `kubeconfig`."""

    @verb(app, "kubeconfig", *SUDO)
    def kubeconfig(
        options: Any,
        user: Annotated[
            str | None,
            typer.Option(
                metavar="NAME", help="Create access for a person, with a namespace.", autocompletion=completion.people
            ),
        ] = None,
        namespace: Annotated[
            str | None,
            typer.Option(
                metavar="NAME", help="Namespace of the person. [default: the person's name]", show_default=False
            ),
        ] = None,
        output: Annotated[
            Path | None,
            typer.Option(metavar="FILE", help="File to write. [default: .clusterctl/kubeconfig]", show_default=False),
        ] = None,
    ) -> int:
        """Write a kubeconfig for the administrator or a person."""
        from clusterctl.commands import kubeconfig

        return kubeconfig.kubeconfig_command(options, user, output, namespace)
