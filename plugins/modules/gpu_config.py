#!/usr/bin/python
"""Ansible module: configure a node's GPUs with the program of role gpu_config."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.node_state.tools import NodeError, alone_on_node, clean

DOCUMENTATION = r"""
module: gpu_config
author: the clusterctl authors
short_description: Configure a node's GPUs
description:
  - Runs the program of role gpu_config, which reads the GPUs first and changes only what differs.
  - A setting that was requested before and no longer is gets the card's default.
  - A setting that needs idle GPUs waits, with a note, unless the node runs no job and accepts none.
options:
  program:
    description: The program's modules, file name to text; C(gpu_config.py) is the one to run.
    type: dict
    required: true
  given:
    description: The settings by name; an empty one is unmanaged.
    type: dict
    default: {}
  drained:
    description: Whether the node is drained for this.
    type: bool
    default: false
  look:
    description:
      - Only report how the GPUs will be partitioned; the run that does it reports errors.
      - On a node that is drained for that, stop slurmd, which that run starts again.
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
    program: "{{ __gpu_config_program }}"
    given: {power_limit: 80%}
"""

RETURN = r"""
changes:
  description: What was or would be changed; mappings with kind, name, action, what, from and to.
  type: list
  returned: always
notes:
  description: Settings that wait, and for what.
  type: list
  returned: always
kept:
  description: The settings that apply now and at every boot.
  type: dict
  returned: always
layouts:
  description: The MIG layout of each GPU by its index, C(none) for one that is not partitioned.
  type: dict
  returned: always
"""

NOTHING = {"changes": [], "notes": [], "kept": {}, "layouts": {}}


def main() -> None:
    """Ansible's entry point."""
    spec = {
        "program": {"type": "dict", "required": True},
        "given": {"type": "dict", "default": {}},
        "drained": {"type": "bool", "default": False},
        "look": {"type": "bool", "default": False},
    }
    module = AnsibleModule(spec, supports_check_mode=True)
    looks, given = module.params["look"], module.params["given"]
    if module.check_mode and not looks and any(given.values()) and not module.get_bin_path("nvidia-smi"):
        module.exit_json(**{**NOTHING, "kept": given, "notes": ["the settings of its GPUs wait for the driver"]})
    for name, text in module.params["program"].items():
        Path(module.tmpdir, name).write_text(text, encoding="utf-8")
    # gpu-health knows the process by these arguments and reports no MIG layout that is just being changed.
    argv = [sys.executable, "-", "--given", json.dumps(given)]
    starter = f"import sys; sys.path[:0] = [{module.tmpdir!r}]; import gpu_config; gpu_config.main(sys.argv[1:])"
    drained = module.params["drained"]
    argv += ["--check"] * (module.check_mode or looks) + ["--drained"] * drained
    argv += ["--halt"] * (looks and drained and not module.check_mode)
    notes: list[str] = []
    try:
        with contextlib.nullcontext() if module.check_mode else alone_on_node(notes):
            status, out, err = module.run_command(argv, data=starter)
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
