"""`kubeconfig`: write the administrator's kubeconfig, or create one for a person with a namespace and a quota."""

import shlex
from collections.abc import Iterator
from pathlib import Path

from clusterctl.inventory.model import Host
from clusterctl.inventory.schedulers import KUBERNETES
from clusterctl.kubernetes import kubeconfig
from clusterctl.run import context
from clusterctl.run.context import Options, Site
from clusterctl.run.phases import Phase, Run, Step
from clusterctl.util import files
from clusterctl.util.errors import HeadFailed, InputError, Problem
from clusterctl.util.text import printable

ADMIN = "/etc/kubernetes/admin.conf"
PROGRAM = "/usr/local/sbin/kubernetes-user"
ADDRESS = "kubernetes_node_api_address"
_NAME = "kubernetes-admin"  # the user in kubeadm's admin.conf
_SECONDS = 120.0


def kubeconfig_command(options: Options, user: str | None, output: Path | None, namespace: str | None = None) -> int:
    """Write the kubeconfig with mode 0600, by default into `.clusterctl` of the cluster's directory.

    A person's namespace has the person's name, unless another one is given.

    Raises InputError for a cluster without Kubernetes, HeadFailed if no head has the kubeconfig.
    """
    site = context.load(options)
    if KUBERNETES not in site.inventory.schedulers:
        raise InputError(
            [Problem(None, str(options.given), f"has no group {KUBERNETES.head}", "clusterctl docs kubernetes")]
        )
    path = output.absolute() if output else administrators(site) if user is None else site.state / f"kubeconfig-{user}"
    for option, name in (("--user", user), ("--namespace", namespace)):
        if name is not None and not kubeconfig.is_label(name):
            raise InputError([Problem(None, option, f'bad name, got "{printable(name, 64)}"', "a-z, 0-9 and -")])
    if namespace is not None and user is None:
        raise InputError([Problem(None, "--namespace", "is only for a person", "--user NAME")])
    argv = ["cat", ADMIN] if user is None else [PROGRAM, user]
    argv += [f"--namespace={namespace}"] if namespace is not None else []
    with files.writing(path):
        if output is None:
            files.make_private_directory(path.parent)
        if path.is_dir() or not path.parent.is_dir():
            raise InputError([Problem(None, str(path), "cannot be written, expected a file in an existing directory")])
    site = context.authorise(site)
    screen = options.screen()
    with screen.working("Reading the kubeconfig"):
        head, found = _read(site, argv)
    _write(site, path, head, found, user or _NAME)
    screen.say(f"{path}: the key in it gives access as {user or 'the administrator'}.")
    if end := found.end:
        screen.say(
            f"Its certificate ends on {end:%Y-%m-%d}. Nothing renews it: run this command again before that day."
        )
    if head.jump and not head.variables.get(ADDRESS):
        screen.say(f"The API is behind {head.jump.name}: kubectl needs a tunnel or a VPN to {head.address}.")
    if user is None:
        screen.say(_next(path))
    else:
        screen.say(f"Pass it to {user}, and delete it here. It is for the namespace {found.namespace or user}.")
    return 0


def address_of(head: Host) -> str:
    """Return the address at which this machine reaches the API: the cluster's, or else the head's."""
    return str(head.variables.get(ADDRESS) or head.address)


class StoreKubeconfig(Phase):
    """Write the administrator's kubeconfig, if there is none or the head has renewed its certificate.

    A head that was left out has the certificate that it had.
    """

    title = "Store the administrator's kubeconfig"
    changes_nodes = announced = False

    def should_run(self, run: Run) -> bool:
        heads = {host.name for host in run.site.inventory.in_group(KUBERNETES.head)}
        played = any(host.name in heads for host in run.site.hosts)
        return played or (not heads.isdisjoint(run.unchanged) and not administrators(run.site).exists())

    def run(self, run: Run) -> None:
        path = administrators(run.site)
        head, found = _read(run.site, ["cat", ADMIN])
        if _write(run.site, path, head, found, _NAME):
            run.screen.say(f"  {_next(path)}")

    def describe(self, run: Run) -> Iterator[Step]:
        yield f"clusterctl kubeconfig {shlex.quote(str(run.options.given))}"


def administrators(site: Site) -> Path:
    """Return the path of the administrator's kubeconfig of a cluster."""
    return site.state / "kubeconfig"


def _next(path: Path) -> str:
    return f"Next: export KUBECONFIG={shlex.quote(str(path))}"


def _write(site: Site, path: Path, head: Host, found: kubeconfig.Kubeconfig, user: str) -> bool:
    """Write a kubeconfig with mode 0600; return whether it has changed."""
    content = found.text(site.inventory.cluster_name, user, address_of(head)).encode()
    with files.writing(path):
        if path.exists() and path.read_bytes() == content and path.stat().st_mode & 0o777 == 0o600:
            return False
        files.write_atomically(path, content, replace=True)
    return True


def _read(site: Site, argv: list[str]) -> tuple[Host, kubeconfig.Kubeconfig]:
    """Return the kubeconfig that a command prints on the first head that responds, and that head."""
    from clusterctl.nodes.head_commands import HeadCommands  # its libraries are slow to load

    failures = []
    for head in site.inventory.in_group(KUBERNETES.head):
        try:
            with HeadCommands.connect(head, site.access) as connected:
                connected.seconds = _SECONDS
                return head, kubeconfig.parse(connected.output(*argv))
        except kubeconfig.KubeconfigError as error:
            raise HeadFailed(f"{head.name}: the kubeconfig is not valid: {error}") from None
        except HeadFailed as error:  # it does not respond, or was reinstalled
            failures.append(error)
    raise failures[0]
