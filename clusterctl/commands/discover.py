"""`validate` and `discover`: print a summary of the cluster, from the inventory alone or after checks of all nodes."""

import json
import sys

from clusterctl.run import context, engine
from clusterctl.run.context import Options, Site
from clusterctl.run.entry import Authorise, CheckHostKeys, EnsureSecrets, LockDirectory, Preflight
from clusterctl.run.phases import Phase, Run
from clusterctl.ui import report
from clusterctl.ui.screen import Screen


def validate(options: Options) -> int:
    """Check the inventory and print a summary of the cluster."""
    _show(context.load(options), _screen(options), discovered=False)
    return 0


def discover(options: Options) -> int:
    """Check the inventory and all nodes, record host keys and hardware, and print a summary of the cluster."""
    phases = [
        Authorise(),
        LockDirectory(),
        EnsureSecrets(),
        CheckHostKeys(),
        Preflight(),
        ShowCluster(),
    ]
    return engine.execute(options, phases)


class ShowCluster(Phase):
    """Print a summary of the cluster."""

    title = "Show the cluster"
    changes_nodes = announced = False

    def run(self, run: Run) -> None:
        _show(run.site, run.screen, discovered=True)


def _screen(options: Options) -> Screen:
    return Screen(sys.stderr if options.json else sys.stdout, plain=options.json)


def _show(site: Site, screen: Screen, discovered: bool) -> None:
    shape = report.Shape.of(site.inventory)
    if site.options.json:
        print(json.dumps({"verb": site.options.verb, "exit_code": 0, **shape.summary()}))
    else:
        shape.show(screen, site.options.given, discovered)
