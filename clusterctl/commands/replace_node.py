"""`replace-node`: add reinstalled hardware to the cluster under the name of a worker or of one of several heads."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace

from clusterctl.inventory.model import Host, Inventory
from clusterctl.inventory.schedulers import KUBERNETES, SLURM
from clusterctl.run import engine, membership, scheduler
from clusterctl.run.context import Options
from clusterctl.run.draining import Drain
from clusterctl.run.entry import (
    Authorise,
    CheckHostKeys,
    ConfirmHead,
    EnsureSecrets,
    LockDirectory,
    LockHead,
    Preflight,
    RenewHostKeys,
)
from clusterctl.run.membership import RequireResponse
from clusterctl.run.phases import Phase, Run, Step
from clusterctl.run.plays import Play
from clusterctl.util.errors import InputError, PreflightError, Problem
from clusterctl.util.text import fold, plural
from clusterctl.workspace import hardware, home

_WHY = "or Slurm starts jobs before they are tested"


def replace_node(options: Options) -> int:
    """Record the nodes' new host keys and hardware, configure and test them; return the exit code.

    Prints how the hardware differs from the old record. Raises the same errors as `trust` and `bootstrap`.
    """
    present = home.load(options.inventory)
    names = options.nodes
    known = [host.name for host in present.hosts if host.is_worker or _is_one_of_several(present, host)]
    if unknown := [name for name in names if name not in known]:
        raise InputError(membership.unknown(unknown, known))
    if heads := [name for name in names if present.host(name).is_head]:
        _require_majority(present, heads)
    again = scheduler.by_kind(present, names)
    jobs, pods = again.get(SLURM, []), again.get(KUBERNETES, [])
    phases = [
        Authorise(),
        LockDirectory(),
        RenewHostKeys(names),
        EnsureSecrets(),
        CheckHostKeys(),
        ConfirmHead(),
        LockHead(),
        RecordAgain(names),
        RequireResponse(names, "cannot be configured"),
        # Slurm knows the name and would start jobs there as soon as its slurmd responds.
        *[Drain("bootstrap", jobs, "not proven yet", wait=False, why=_WHY)] * bool(jobs),
        *[ForgetReplaced(pods)] * bool(pods),
        Play("replace-node", f"Configure {fold(names)}"),
    ]
    try:
        return engine.execute(membership.limited(options, present, names, options.screen()), phases, present)
    except PreflightError as error:
        raise membership.without_hint(error, names) from None


def _is_one_of_several(present: Inventory, host: Host) -> bool:
    kind = host.scheduler
    return kind is not None and kind.has_quorum and len(present.in_group(kind.head)) > 1


def _require_majority(present: Inventory, heads: Sequence[str]) -> None:
    """Raise InputError for more heads than the others can replace: their quorum has the cluster's state."""
    for kind, names in scheduler.by_kind(present, heads).items():
        count = len(present.in_group(kind.head))
        if 2 * len(names) >= count:
            message = f"got {len(names)} of {plural(count, 'head')}, expected fewer than half"
            raise InputError([Problem(None, "NODE", message, "restore a backup: clusterctl restore")])


class ForgetReplaced(Phase):
    """Delete Kubernetes' nodes whose machine was replaced, and their members of etcd.

    kubeadm does not join a node that exists. A node that has joined again since the replacement is kept: a kubelet
    registers only when it starts.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self.title = f"Delete the old nodes {fold(names)}"

    def run(self, run: Run) -> None:
        # Not through a head that is replaced: it has no API server.
        site = replace(run.site, skipped=(*run.site.skipped, *self.names))
        with scheduler.control_plane(site, KUBERNETES) as controller:
            if not controller.is_set_up():
                return
            machines = {name: found.hardware.machine_id for name, found in run.site.facts.items()}
            controller.forget(
                [name for name in self.names if controller.is_other_machine(name, machines.get(name, ""))]
            )

    def describe(self, run: Run) -> Iterator[Step]:
        head = scheduler.head_of(run.site.inventory, KUBERNETES).name
        yield f"on {head}, or another head: {scheduler.of(KUBERNETES).forget_command(self.names)}"


class RecordAgain(Preflight):
    """Check the nodes and record the hardware of the replaced ones again."""

    def describe(self, run: Run) -> Iterator[Step]:
        records = [str(hardware.path_of(run.site.inventory.directory, name)) for name in self.renewed]
        discover = ["clusterctl", "discover", str(run.options.given), "--limit", ",".join(self.renewed)]
        yield f"{shlex.join(['rm', '-f', *records])} && {shlex.join(discover)}"
        yield from super().describe(run)
