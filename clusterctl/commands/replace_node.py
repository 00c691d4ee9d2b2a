"""`replace-node`: add reinstalled hardware to the cluster under the name of a worker."""

import shlex
from collections.abc import Iterator

from clusterctl.run import engine, membership
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
from clusterctl.run.phases import Run, Step
from clusterctl.run.plays import Play
from clusterctl.util.errors import InputError
from clusterctl.util.text import fold
from clusterctl.workspace import hardware, home


def replace_node(options: Options) -> int:
    """Record the nodes' new host keys and hardware, configure and test them; return the exit code.

    Prints how the hardware differs from the old record. Raises the same errors as `trust` and `bootstrap`.
    """
    present = home.load(options.inventory)
    names, workers = options.nodes, [host.name for host in present.workers]
    if unknown := [name for name in names if name not in workers]:
        raise InputError(membership.unknown(unknown, workers))
    phases = [
        Authorise(),
        LockDirectory(),
        RenewHostKeys(names),
        EnsureSecrets(),
        CheckHostKeys(),
        ConfirmHead(),
        LockHead(),
        RecordAgain(names),
        # Slurm knows the name and would start jobs there as soon as its slurmd responds.
        Drain("bootstrap", names, "not proven yet", wait=False, why="or Slurm starts jobs before they are tested"),
        Play("replace-node", f"Configure {fold(names)}"),
    ]
    return engine.execute(membership.limited(options, present, names, options.screen()), phases, present)


class RecordAgain(Preflight):
    """Check the nodes and record the hardware of the replaced ones again."""

    def describe(self, run: Run) -> Iterator[Step]:
        records = [str(hardware.path_of(run.site.inventory.directory, name)) for name in self.renewed]
        discover = ["clusterctl", "discover", str(run.options.given), "--limit", ",".join(self.renewed)]
        yield f"{shlex.join(['rm', '-f', *records])} && {shlex.join(discover)}"
        yield from super().describe(run)
