"""`replace-node`: take reinstalled hardware into the cluster under a worker's name."""

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
    """New host key, new hardware record, bootstrap, proof; return the exit code.

    Raises as `trust` and `bootstrap` do. What differs from the old record is shown.
    """
    present = home.load(options.inventory)
    names, workers = options.nodes, [host.name for host in present.workers]
    if strangers := [name for name in names if name not in workers]:
        raise InputError(membership.unknown(strangers, workers))
    phases = [
        Authorise(),
        LockDirectory(),
        RenewHostKeys(names),
        EnsureSecrets(),
        CheckHostKeys(),
        ConfirmHead(),
        LockHead(),
        RecordAgain(names),
        # Slurm knows the name, and would give it jobs as soon as its slurmd answers.
        Drain("bootstrap", names, "not proven yet", wait=False, why="or Slurm starts jobs before they are proven"),
        Play("replace-node", f"Configure {fold(names)}"),
    ]
    return engine.execute(membership.limited(options, present, names, options.screen()), phases, present)


class RecordAgain(Preflight):
    """Check the nodes, and record the hardware of the replaced ones again."""

    def describe(self, run: Run) -> Iterator[Step]:
        records = [str(hardware.path_of(run.site.inventory.directory, name)) for name in self.renewed]
        discover = ["clusterctl", "discover", str(run.options.given), "--limit", ",".join(self.renewed)]
        yield f"{shlex.join(['rm', '-f', *records])} && {shlex.join(discover)}"
        yield from super().describe(run)
