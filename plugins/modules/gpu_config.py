#!/usr/bin/python
"""Ansible module: apply the settings of a node's GPUs with the program of role gpu_config."""

from __future__ import annotations

import json
import sys

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.node_state.tools import clean

DOCUMENTATION = r"""
module: gpu_config
author: the clusterctl authors
short_description: Apply the settings of a node's GPUs
description:
  - Runs the program of role gpu_config, which reads the GPUs first and changes only what differs.
  - Settings that were removed are reset to the card's default.
  - Changes that need unused GPUs are postponed, with a note, unless the node runs no job and accepts none.
options:
  program:
    description: The program's text.
    type: str
    required: true
  given:
    description: The settings by name, as the program expects them; an empty one is not changed.
    type: dict
    default: {}
  drained:
    description: Whether the node was drained for this.
    type: bool
    default: false
  look:
    description:
      - Only report the coming MIG layouts; errors are left to the run that applies them.
      - On a node that is drained for that, stop Slurm's daemon; the run that applies them starts it again.
    type: bool
    default: false
attributes:
  check_mode:
    support: full
    description: Reports what would be changed.
"""

EXAMPLES = r"""
- name: Limit the power
  gpu_config:
    program: "{{ lookup('ansible.builtin.file', 'gpu_config.py') }}"
    given: {power_limit: 80%}
"""

RETURN = r"""
changes:
  description: The changes, or in check mode those that would be made; mappings with kind, name and what.
  type: list
  returned: always
notes:
  description: What is postponed, and why.
  type: list
  returned: always
kept:
  description: The settings that apply now and at every boot.
  type: dict
  returned: always
layouts:
  description: The MIG layout by the index of a GPU, C(none) without MIG.
  type: dict
  returned: always
"""

NOTHING = {"changes": [], "notes": [], "kept": {}, "layouts": {}}


def main() -> None:
    """Ansible's entry point."""
    spec = {
        "program": {"type": "str", "required": True},
        "given": {"type": "dict", "default": {}},
        "drained": {"type": "bool", "default": False},
        "look": {"type": "bool", "default": False},
    }
    module = AnsibleModule(spec, supports_check_mode=True)
    looks, given = module.params["look"], module.params["given"]
    if module.check_mode and not looks and any(given.values()) and not module.get_bin_path("nvidia-smi"):
        module.exit_json(**{**NOTHING, "kept": given, "notes": ["the settings of its GPUs wait for the driver"]})
    argv = [sys.executable, "-", "--given", json.dumps(given)]
    drained = module.params["drained"]
    argv += ["--check"] * (module.check_mode or looks) + ["--drained"] * drained
    argv += ["--halt"] * (looks and drained and not module.check_mode)
    status, out, err = module.run_command(argv, data=module.params["program"])
    if status and not looks:
        module.fail_json(msg=clean(err.strip()[-2000:]))
    answer = NOTHING if status else json.loads(out)
    changes = [] if looks else answer["changes"]
    module.exit_json(**{**answer, "changes": changes, "notes": [] if looks else answer["notes"]}, changed=bool(changes))


if __name__ == "__main__":
    main()
