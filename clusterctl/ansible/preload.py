"""Load what tasks need before Ansible forks.

A task that contacts a node has a process of its own on each host, and what such a process loads is lost when it ends.
"""

from ansible.module_utils._internal import _datatag
from ansible.plugins import loader

from clusterctl.ansible import light_module
from clusterctl.inventory import ports, schema, services

_ACTIONS = ("gather_facts", "node_state", "kubernetes_objects", "include_vars", "command", "normal")
"""Action plugins of nearly all tasks: `normal` is that of modules that have none of their own."""


_UNCHANGEABLE = ("_AnsibleTaggedStr", "_AnsibleTaggedInt", "_AnsibleTaggedFloat", "_AnsibleTaggedBytes")


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
    read_declarations()


def read_declarations() -> None:
    """Read what the roles declare, and our modules. It needs no settings of Ansible."""
    schema.load()
    ports.load_all()
    services.load_all()
    for name in light_module.names():
        light_module.sources(name)


def share_texts() -> None:
    """Have copies of data share its texts and numbers, which cannot change, as Python does with its own types.

    Ansible copies the variables of each role that it reads. Its texts, which know where they are from, are of a type of
    its own, and their copies took a third of the time that it needs to read a playbook.
    """
    for name in _UNCHANGEABLE:
        if kind := getattr(_datatag, name, None):
            kind.__deepcopy__ = lambda self, memo: self
