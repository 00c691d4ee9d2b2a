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

_READ: dict[Path, tuple[object, hardware.Hardware]] = {}
_PLAIN: dict[int, tuple[hardware.Hardware, Any]] = {}
"""By the record's address, which holds as long as the record is here."""


class LookupModule(LookupBase):
    """Looks at each call whether a record has changed: discovery may have written one since the last."""

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
                found = [_read(path) if path.exists() else None for path in paths]
                return [_shown(record, known) if record else {} for record in found]
            records = hardware.load_all(directory, _read)
        except InputError as error:
            raise AnsibleLookupError(str(error)) from error
        return [{name: _shown(record, known) for name, record in records.items() if name in hosts}]


def _read(path: Path) -> hardware.Hardware:
    """Return the record of a file, which is read again only if it has changed: each process reads all, many times."""
    try:
        status = path.stat()
    except OSError:
        return hardware.load(path)  # it says what is wrong
    stamp = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    if _READ.get(path, (None,))[0] != stamp:
        _READ[path] = stamp, hardware.load(path)
    return _READ[path][1]


def _shown(record: hardware.Hardware, known: Mapping[str, Any]) -> Any:
    """Return a record as plain data, with the MIG layouts that role gpu_config has announced in this run.

    Ansible does not change what it is given.
    """
    if layouts := (known.get("__gpu_config_layouts") or {}).get(record.name):
        return _plain(asdict(hardware.learned(record, layouts)))
    if id(record) not in _PLAIN:
        _PLAIN[id(record)] = record, _plain(asdict(record))
    return _PLAIN[id(record)][1]


def _plain(value: Any) -> Any:
    """Convert tuples to lists: templates index and concatenate them."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
