"""Lookup of the hardware records of the inventory's hosts, as data that is never templated."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleLookupError
from ansible.plugins.lookup import LookupBase

from clusterctl.util.errors import InputError
from clusterctl.workspace import hardware

DOCUMENTATION = """
name: cluster_hardware
short_description: Return the hardware records of the cluster's nodes
description:
  - Returns one dictionary, host name to record, read from C(hardware/*.json) in the cluster's directory. With terms,
    returns the record of each host, and reads no others.
  - A record is decoded by type and whitelist at every read. Its strings came from a node, so Ansible never templates
    them.
  - A host without a record is not in the dictionary, or has an empty record. A record without a host is left out.
  - On the head, GPUs have the MIG layouts that they will have at the end of the run (role gpu_config).
options:
  _terms:
    description: Names of hosts in the inventory; none means the dictionary of all.
    required: false
"""

EXAMPLES = """
- name: Show how many GPUs the cluster has
  ansible.builtin.debug:
    msg: "{{ lookup('cluster_hardware').values() | map(attribute='gpus') | map('length') | sum }}"
"""

RETURN = """
_raw:
  description: Host name to record, or the records; see clusterctl/workspace/hardware.py for the fields.
  type: list
  elements: dict
"""


class LookupModule(LookupBase):
    """Reads the records at each call: they are small, and discovery may have written one since the last call."""

    def run(self, terms: list[Any], variables: dict[str, Any] | None = None, **kwargs: Any) -> list[dict[str, Any]]:
        """Return the records of the hosts in the inventory."""
        if kwargs:
            raise AnsibleLookupError("cluster_hardware has no options")
        known = variables or {}
        hosts, directory = set(known.get("groups", {}).get("all", ())), Path(known["inventory_dir"])
        if unknown := [str(term) for term in terms if term not in hosts]:
            raise AnsibleLookupError(f"cluster_hardware: the inventory has no host {', '.join(unknown)}")
        try:
            if terms:
                paths = [hardware.path_of(directory, str(term)) for term in terms]
                found = [hardware.load(path) if path.exists() else None for path in paths]
                return [_plain(asdict(learned(record, known))) if record else {} for record in found]
            records = hardware.load_all(directory)
        except InputError as error:
            raise AnsibleLookupError(str(error)) from error
        return [{name: _plain(asdict(learned(record, known))) for name, record in records.items() if name in hosts}]


def learned(record: hardware.Hardware, known: Mapping[str, Any]) -> hardware.Hardware:
    """Return a record with the MIG layouts that role gpu_config has announced for its node in this run."""
    return hardware.learned(record, (known.get("__gpu_config_layouts") or {}).get(record.name) or {})


def _plain(value: Any) -> Any:
    """Convert tuples to lists: templates index and concatenate them."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
