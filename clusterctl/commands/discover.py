"""`validate` and `discover`: what kind of cluster an inventory describes, without its nodes and with them."""

import json
import sys

from clusterctl.run import converge
from clusterctl.ui import report
from clusterctl.ui.screen import Screen
from clusterctl.workspace import secrets


def validate(options: converge.Options) -> int:
    """Check the inventory and print what kind of cluster it is."""
    return _shape(converge.load(options), _screen(options), discovered=False)


def discover(options: converge.Options) -> int:
    """Check the inventory and all nodes, record host keys and hardware, and print what kind of cluster it is."""
    screen = _screen(options)
    site = converge.authorise(converge.load(options))
    with converge.locked(site, screen):
        secrets.ensure(site.inventory.directory, site.inventory.cluster_name)
        converge.meet(site, screen)
        site = converge.prepare(site, screen)
    return _shape(site, screen, discovered=True)


def _screen(options: converge.Options) -> Screen:
    return Screen(sys.stderr if options.json else sys.stdout, plain=options.json)


def _shape(site: converge.Site, screen: Screen, discovered: bool) -> int:
    shape = report.Shape.of(site.inventory)
    if site.options.json:
        print(json.dumps({"verb": site.options.verb, "exit_code": 0, **shape.summary()}))
    else:
        shape.show(screen, site.options.given, discovered)
    return 0
