#!/usr/bin/python
"""Ansible module: check whether Slurm can change private directories of jobs now, or must wait for running jobs."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: slurm_job_container
author: the clusterctl authors
short_description: Check whether JobContainerType can change on a Slurm cluster
description:
  - With V(job_container/tmpfs) slurmd starts a job's steps in the namespace that it made at the job's start. Steps of
    jobs that started without one cannot be started any more, so the setting does not change while jobs run.
  - Must run on the head, before slurm.conf is written.
options:
  wanted:
    description: Whether jobs should have private directories.
    type: bool
    required: true
  begins:
    description: Whether the cluster is new, so that an existing slurm.conf belongs to another cluster.
    type: bool
    default: false
  configuration:
    description: The cluster's current slurm.conf.
    type: path
    default: /etc/slurm/slurm.conf
attributes:
  check_mode: {support: full, description: Never changes anything.}
"""

EXAMPLES = r"""
- name: Check whether running jobs prevent a change
  slurm_job_container:
    wanted: true
"""

RETURN = r"""
use:
  description: Whether slurm.conf should have the plugin.
  type: bool
  returned: always
notes:
  description: Why that differs from I(wanted).
  type: list
  returned: always
"""

LIMIT = 30  # seconds
STATES = "running,suspended,completing,configuring,stopped,signaling,stage_out"
PLUGIN = re.compile(r"^\s*JobContainerType\s*=\s*job_container/tmpfs\s*(#|$)", re.IGNORECASE | re.MULTILINE)


def running() -> list[str] | None:
    """Return the numbers of started jobs that have not ended, None if the controller does not respond."""
    argv = ["squeue", "--noheader", "--all", f"--states={STATES}", "--format=%A"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if done.returncode else sorted({*done.stdout.split()}, key=int)


def decide(configuration: Path, wanted: bool) -> tuple[bool, str]:
    """Return whether to use the plugin, and why that differs from `wanted`."""
    try:
        has = bool(PLUGIN.search(configuration.read_text(errors="replace")))
    except FileNotFoundError:  # a new cluster
        return wanted, ""
    if has == wanted:
        return wanted, ""
    jobs = running()
    if jobs == []:
        return wanted, ""
    some = ", ".join([*(jobs or [])[:5], *(["..."] if len(jobs or []) > 5 else [])])
    why = f"because jobs are running: {some}" if jobs else "because slurmctld does not respond"
    change = "get private directories" if wanted else "share the node's directories"
    return has, f"new jobs do not {change} yet, {why}; run bootstrap again when no job runs"


def main() -> None:
    """Run as an Ansible module."""
    arguments = {
        "wanted": {"type": "bool", "required": True},
        "begins": {"type": "bool", "default": False},
        "configuration": {"type": "path", "default": "/etc/slurm/slurm.conf"},
    }
    module = AnsibleModule(arguments, supports_check_mode=True)
    wanted = module.params["wanted"]
    use, note = (wanted, "") if module.params["begins"] else decide(Path(module.params["configuration"]), wanted)
    module.exit_json(changed=False, use=use, notes=[note] if note else [])


if __name__ == "__main__":
    main()
