"""`reboot`: reboot nodes around their jobs and pods, and check their hardware and GPU jobs afterwards."""

from dataclasses import replace

from clusterctl.commands.upgrade import RequireSetUp
from clusterctl.run import engine, membership, scheduler
from clusterctl.run.context import Options
from clusterctl.run.entry import ENTRY
from clusterctl.run.rolling import Pace, Rolling
from clusterctl.util.errors import InputError
from clusterctl.util.text import fold
from clusterctl.workspace import home


def reboot(options: Options, pace: Pace) -> int:
    """Reboot hosts in batches; return the exit code."""
    pace.check()
    inventory = home.load(options.inventory)
    names = [host.name for host in inventory.hosts]
    if unknown := [name for name in options.nodes if name not in names]:
        raise InputError(membership.unknown(unknown, names, "host"))
    phases = [
        *ENTRY,
        RequireSetUp(),
        Rolling(f"Reboot {fold(options.nodes)}", "reboot", "reboot", pace, options.nodes, reboots=True),
    ]
    # The heads of their schedulers drain and test them.
    kinds = scheduler.by_kind(inventory, options.nodes)
    heads = [host.name for kind in kinds for host in inventory.in_group(kind.head)]
    all_contacted = dict.fromkeys([inventory.head.name, *heads, *options.nodes])
    contacted = options.nodes if options.print_command else all_contacted
    return engine.execute(replace(options, limit=",".join(contacted)), phases, inventory)
