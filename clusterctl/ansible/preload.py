"""Load what tasks need before Ansible forks.

Ansible runs each task on each host in a process of its own, and what such a process loads is lost when it ends.
"""

from ansible.plugins import loader

from clusterctl.ansible import light_module
from clusterctl.inventory import ports, schema, services

_ACTIONS = ("node_state", "kubernetes_objects", "include_vars", "command", "normal")
"""Action plugins of nearly all tasks: `normal` is that of modules that have none of their own."""


def preload() -> None:
    """Load Ansible's and our plugins, and what the roles declare, so that processes that are forked later have them."""
    for plugins in (loader.filter_loader, loader.test_loader):
        list(plugins.all())
    list(loader.lookup_loader.all(class_only=True))
    for name in _ACTIONS:
        loader.action_loader.get(name, class_only=True)
    loader.connection_loader.get("ssh", class_only=True)
    loader.shell_loader.get("sh")
    loader.become_loader.get("sudo", class_only=True)
    schema.load()
    ports.load_all()
    services.load_all()
    light_module.sources()
