"""`reboot`: reboot nodes around their jobs, and prove that they came back as they were."""

from dataclasses import replace

from clusterctl.commands.upgrade import RequireSetUp
from clusterctl.run import engine, membership
from clusterctl.run.context import Options
from clusterctl.run.entry import ENTRY
from clusterctl.run.rolling import Pace, Rolling
from clusterctl.util.errors import InputError
from clusterctl.util.text import fold
from clusterctl.workspace import home


def reboot(options: Options, pace: Pace) -> int:
    """Reboot hosts in batches; return the exit code."""
    pace.check()
    known = home.load(options.inventory)
    names = [host.name for host in known.hosts]
    if strangers := [name for name in options.nodes if name not in names]:
        raise InputError(membership.unknown(strangers, names, "host"))
    phases = [
        *ENTRY,
        RequireSetUp(),
        Rolling(f"Reboot {fold(options.nodes)}", "reboot", "reboot", pace, options.nodes, reboots=True),
    ]
    contacted = options.nodes if options.print_command else dict.fromkeys([known.head.name, *options.nodes])
    return engine.execute(replace(options, limit=",".join(contacted)), phases, known)
