"""`init`: create a cluster's directory with a small, commented inventory and its secrets."""

import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
import yaml

from clusterctl.inventory import model as inventory
from clusterctl.inventory import schedulers, schema
from clusterctl.inventory.schedulers import KUBERNETES, SLURM, Kind
from clusterctl.util.errors import InputError, Problem
from clusterctl.workspace import secrets

_INVENTORY = """\
# The cluster: its hosts, how to reach them, and their groups.
# Check it with `clusterctl validate inventory.yaml`; `clusterctl docs variables` lists all variables.
all:
  vars:
    cluster_name: {cluster_name}
    # cluster_networks: [10.0.0.0/24]  # networks that reach every port; default: the nodes' own addresses
    {user}
    # ansible_ssh_private_key_file: ~/.ssh/cluster  # default: the keys that ssh uses, the agent's first
  children:
    # {about_head}
    {scheduler}_head:
      hosts:
{head}
    # The hosts that run {workload}s. Use a range for many hosts: gpu[01:40]. Names in a range must resolve.
    # Your own groups below `children:` become {property}s of their nodes.
    {scheduler}_workers:
      hosts:
{workers}
    # The host that collects metrics.
    monitoring:
      hosts:
        {monitoring}: {{}}
"""
_ABOUT_HEAD = {
    SLURM: "The host that runs the scheduler, its database and the cluster's name service. It needs no GPU.",
    KUBERNETES: "The hosts of the control plane: one, three or five. They need no GPU.",
}
_PROPERTY = {SLURM: "feature", KUBERNETES: "label"}
_NO_USER = "# ansible_user: admin  # login user, with sudo; default: your user name"
_IGNORED = "# Runs and locks of this machine; commit everything else, secrets.yml is encrypted.\n.clusterctl/\n"

_ASK_HEAD = "Head (NAME=ADDRESS, or a NAME that resolves)"
_ASK_WORKERS = "Workers (separated by spaces; gpu[01:40] is a range)"
_ASK_USER = "Login user (empty: your user name)"

EXAMPLE_HEAD = "head1=10.0.0.10"
EXAMPLE_WORKERS = ("gpu01=10.0.0.11", "gpu02=10.0.0.12")


class Scheduler(StrEnum):
    """The values of --scheduler."""

    slurm = SLURM.name
    kubernetes = KUBERNETES.name


def create(
    directory: Path,
    head: str,
    workers: Sequence[str],
    user: str | None = None,
    content: Path | None = None,
    kind: Kind = SLURM,
) -> None:
    """Create `directory` for the cluster of that name; each host is `NAME=ADDRESS`, or `NAME` if the name resolves.

    The directory is created atomically. Raises InputError if it already has files, or for an invalid host.
    `content` is the directory of the Ansible content to validate against (default: clusterctl's own).
    """
    directory = directory.absolute()
    _require_vacant(directory)
    try:
        draft = Path(tempfile.mkdtemp(prefix=f".{directory.name[:40]}-", dir=directory.parent))
    except OSError as error:
        raise InputError([Problem(None, str(directory), f"cannot be created: {error.strerror}")]) from None
    try:
        _write_inventory(draft / "inventory.yaml", directory.name, head, workers, user, kind)
        _validate(draft / "inventory.yaml", content)
        (draft / ".gitignore").write_text(_IGNORED, encoding="utf-8")
        secrets.ensure(draft, directory.name, content)
        draft.rename(directory)
    except OSError as error:
        raise InputError([Problem(None, str(directory), f"cannot be created: {error.strerror}")]) from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def check(
    name: str, head: str | None, workers: Sequence[str] | None, user: str | None = None, kind: Kind = SLURM
) -> None:
    """Raise InputError for invalid values; a value of None is not entered yet and is not checked."""
    with tempfile.TemporaryDirectory() as draft:
        path = Path(draft, "inventory.yaml")
        head, workers = "head-to-come" if head is None else head, ["worker-to-come"] if workers is None else workers
        _write_inventory(path, name, head, workers, user, kind)
        _validate(path, None)


def _require_vacant(directory: Path) -> None:
    if directory.is_symlink() or (directory.exists() and (not directory.is_dir() or any(directory.iterdir()))):
        raise InputError([Problem(None, str(directory), "already exists, expected a new name or an empty directory")])
    if not directory.absolute().parent.is_dir():
        raise InputError([Problem(None, str(directory), "cannot be created: its parent directory does not exist")])


def _write_inventory(path: Path, name: str, head: str, workers: Sequence[str], user: str | None, kind: Kind) -> None:
    text = _INVENTORY.format(
        scheduler=kind.name,
        about_head=_ABOUT_HEAD[kind],
        workload=kind.workload,
        property=_PROPERTY[kind],
        cluster_name=_scalar(name),
        user=f"ansible_user: {_scalar(user)}" if user else _NO_USER,
        head=_host(head),
        workers="\n".join(_host(worker) for worker in workers),
        monitoring=_scalar(head.partition("=")[0]),
    )
    path.write_text(text, encoding="utf-8")


def _validate(path: Path, content: Path | None) -> None:
    try:
        inventory.load(path, schema.load(content))
    except InputError as error:  # drop the positions: the draft file is removed
        problems = [problem for problem in error.problems if isinstance(problem, Problem)]
        raise InputError([Problem(None, problem.key, problem.message, problem.hint) for problem in problems]) from None


def _host(given: str) -> str:
    name, _, address = given.partition("=")
    return f"        {_scalar(name)}: {{{f'ansible_host: {_scalar(address)}' if address else ''}}}"


def _scalar(text: str) -> str:
    """Return `text` as a YAML scalar that is read as exactly this text, also in a flow mapping."""
    return yaml.safe_dump([text], default_flow_style=True, allow_unicode=True, width=10**6).strip()[1:-1]


def _on_terminal() -> bool:
    return sys.stdin.isatty()


def _ask(question: str, accept: Callable[[str], None], default: str | None = None) -> str:
    """Ask until `accept` raises no InputError; without a default, an empty answer is not accepted."""

    def accepted(answer: str) -> str:
        answer = answer.strip()
        try:
            accept(answer)
        except InputError as error:
            problems = [problem for problem in error.problems if isinstance(problem, Problem)]
            messages = dict.fromkeys(str(replace(problem, key="")) for problem in problems)
            raise typer.BadParameter("\n".join(messages)) from None
        return answer

    answer: str = typer.prompt(question, default=default, show_default=False, value_proc=accepted)
    return answer


def init_command(
    name: Annotated[str, typer.Argument(help="Name of the cluster and of its new directory.", metavar="NAME")],
    head: Annotated[str | None, typer.Option(metavar="NAME=ADDRESS", help="Host that runs the scheduler.")] = None,
    worker: Annotated[
        list[str] | None, typer.Option(metavar="NAME=ADDRESS", help="Host that runs jobs; repeatable.")
    ] = None,
    user: Annotated[str | None, typer.Option(help="Login user on the hosts. [default: your user name]")] = None,
    scheduler: Annotated[Scheduler, typer.Option(help="Scheduler of the cluster.")] = Scheduler.slurm,
    example: Annotated[bool, typer.Option("--example", help="Write example hosts to edit.")] = False,
) -> None:
    """Create a cluster's directory with a small, commented inventory and its secrets."""
    example = example and not (head or worker)
    if example:
        head, worker = EXAMPLE_HEAD, list(EXAMPLE_WORKERS)
    directory, kind = Path(name).absolute(), schedulers.named(scheduler)
    if not (head and worker):
        if not _on_terminal():
            flags = "--head NAME=ADDRESS and at least one --worker NAME=ADDRESS, or --example"
            raise InputError([Problem(None, "init", f"no terminal to ask on, expected {flags}")])
        _require_vacant(directory)
        worker = worker or None
        check(directory.name, head, worker, user, kind)
        head = head or _ask(_ASK_HEAD, lambda answer: check(directory.name, answer, worker, user, kind))
        if not worker:
            worker = _ask(_ASK_WORKERS, lambda answer: check(directory.name, head, answer.split(), user, kind)).split()
        user = user or _ask(_ASK_USER, lambda answer: check(directory.name, head, worker, answer, kind), default="")
    create(directory, str(head), worker or [], user, kind=kind)
    typer.echo(f"Created {name}/ with inventory.yaml and secrets.yml.")
    typer.echo(f"The password of secrets.yml is in {secrets.vault_password_file(directory)}: back up that file.")
    edit = "edit inventory.yaml, then " if example else ""
    typer.echo(f"Next: cd {name}, {edit}clusterctl validate inventory.yaml")
