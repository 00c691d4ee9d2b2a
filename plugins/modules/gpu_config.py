#!/usr/bin/python
"""Ansible module: the settings of a node's GPUs, by the program of role gpu_config."""

from __future__ import annotations

import contextlib
import json
import sys

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.node_state.tools import NodeError, alone_on_node, clean

DOCUMENTATION = r"""
module: gpu_config
author: the clusterctl authors
short_description: Bring a node's GPUs to the settings that are asked for
description:
  - Runs the program of role gpu_config, which reads the GPUs first and changes only what differs.
  - What was asked for before and no longer is gets the card's own value.
  - What needs GPUs that nobody uses waits, with a note, unless the node runs no job and takes none.
options:
  program:
    description: The program's text.
    type: str
    required: true
  given:
    description: The settings by their names, as the program takes them; an empty one is left as it is.
    type: dict
    default: {}
  drained:
    description: Whether the node was taken out of service for this.
    type: bool
    default: false
  look:
    description:
      - Only tells how the GPUs will be divided; what cannot be is left to the run that does it.
      - On a node that is drained for that it stops Slurm's daemon, which that run starts again.
    type: bool
    default: false
attributes:
  check_mode:
    support: full
    description: Says what would be changed.
"""

EXAMPLES = r"""
- name: Limit the power
  gpu_config:
    program: "{{ lookup('ansible.builtin.file', 'gpu_config.py') }}"
    given: {power_limit: 80%}
"""

RETURN = r"""
changes:
  description: What was changed, or would be; mappings with kind, name and what.
  type: list
  returned: always
notes:
  description: What waits, and for what.
  type: list
  returned: always
kept:
  description: The settings that hold now, and at every boot.
  type: dict
  returned: always
layouts:
  description: By the index of a GPU, how it is divided then, C(none) where it is whole.
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
    notes: list[str] = []
    try:
        with contextlib.nullcontext() if module.check_mode else alone_on_node(notes):
            status, out, err = module.run_command(argv, data=module.params["program"])
    except NodeError as error:
        module.fail_json(msg=clean(str(error)))
    if status and not looks:
        module.fail_json(msg=clean(err.strip()[-2000:]))
    answer = NOTHING if status else json.loads(out)
    changes = [] if looks else answer["changes"]
    notes += [] if looks else answer["notes"]
    module.exit_json(**{**answer, "changes": changes, "notes": notes}, changed=bool(changes))


if __name__ == "__main__":
    main()
