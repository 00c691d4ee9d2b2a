"""The hardware records of the inventory's hosts, as data that is never templated."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleLookupError
from ansible.plugins.lookup import LookupBase

from clusterctl import hardware
from clusterctl.errors import InputError

DOCUMENTATION = """
name: cluster_hardware
short_description: What the cluster's nodes are made of
description:
  - Returns one dictionary, host name to record, read from C(hardware/*.json) in the cluster's directory.
  - A record is typed and whitelisted at every reading. Its strings came from a node, so Ansible never templates them.
  - A host without a record is not in the dictionary; a record without a host is left out.
options: {}
"""

EXAMPLES = """
- name: Show how many GPUs the cluster has
  ansible.builtin.debug:
    msg: "{{ lookup('cluster_hardware').values() | map(attribute='gpus') | map('length') | sum }}"
"""

RETURN = """
_raw:
  description: Host name to record; see clusterctl/hardware.py for the fields.
  type: list
  elements: dict
"""


class LookupModule(LookupBase):
    """Reads the records anew at each call: they are small, and discovery may have written one since the last."""

    def run(self, terms: list[Any], variables: dict[str, Any] | None = None, **kwargs: Any) -> list[dict[str, Any]]:
        """Return the records of the hosts in the inventory."""
        if terms or kwargs:
            raise AnsibleLookupError("cluster_hardware takes no arguments")
        known = variables or {}
        hosts = set(known.get("groups", {}).get("all", ()))
        try:
            records = hardware.load_all(Path(known["inventory_dir"]))
        except InputError as error:
            raise AnsibleLookupError(str(error)) from error
        return [{name: _plain(asdict(record)) for name, record in records.items() if name in hosts}]


def _plain(value: Any) -> Any:
    """Return lists for tuples: templates index and concatenate them."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
