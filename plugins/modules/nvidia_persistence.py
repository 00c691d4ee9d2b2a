#!/usr/bin/python
"""Ansible module: check that GPUs keep their state without a client."""

from __future__ import annotations

import time

from ansible.module_utils import nvidia_kernel as kernel_side
from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: nvidia_persistence
author: the clusterctl authors
short_description: Check the persistence mode of a node's GPUs
description:
  - Asks the driver whether the persistence daemon has enabled persistence mode. Changes nothing.
options: {}
attributes:
  check_mode:
    support: full
    description: Changes nothing.
"""

EXAMPLES = r"""
- name: Check the GPUs' persistence mode
  nvidia_persistence:
"""

RETURN = r"""
notes:
  description: Notes for the user.
  type: list
  returned: always
"""

# The daemon enables it after it has opened each GPU.
WAIT_S = 20.0


def notes(wait: float = WAIT_S) -> list[str]:
    """Return the problems with the GPUs' persistence mode; wait for the daemon to set it."""
    until = time.monotonic() + wait
    off = kernel_side.without_persistence()
    while off and time.monotonic() < until:
        time.sleep(min(1.0, wait))
        off = kernel_side.without_persistence()
    if off is None:
        return ["persistence mode is not known: the driver does not respond"]
    if not off:
        return []
    lost = "clocks and power limits are reset when the last program on the GPU ends"
    return [f"persistence mode is off on {', '.join(off)}, so {lost}: systemctl status nvidia-persistenced"]


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule({}, supports_check_mode=True)
    module.exit_json(changed=False, notes=[] if module.check_mode else notes())


if __name__ == "__main__":
    main()
