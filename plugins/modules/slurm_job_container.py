#!/usr/bin/python
"""Ansible module: whether Slurm can give jobs directories of their own now, or has to wait for those that run."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: slurm_job_container
author: the clusterctl authors
short_description: Tell whether JobContainerType can change on a Slurm cluster
description:
  - With V(job_container/tmpfs) slurmd starts a job's steps in the name space that it made when the job began. Steps
    of jobs that began without one can no longer be started, so the setting stays as it is while jobs run.
  - To be run on the head, before slurm.conf is written.
options:
  wanted:
    description: Whether jobs are to have directories of their own.
    type: bool
    required: true
  begins:
    description: Whether the cluster begins, and what its slurm.conf says is another one's.
    type: bool
    default: false
  configuration:
    description: The cluster's slurm.conf as it is now.
    type: path
    default: /etc/slurm/slurm.conf
attributes:
  check_mode: {support: full, description: Changes nothing in any case.}
"""

EXAMPLES = r"""
- name: Look whether jobs that run keep a setting from being changed
  slurm_job_container:
    wanted: true
"""

RETURN = r"""
use:
  description: Whether slurm.conf is to name the plugin.
  type: bool
  returned: always
notes:
  description: Why that is not what is wanted.
  type: list
  returned: always
"""

LIMIT = 30  # seconds
STATES = "running,suspended,completing,configuring,stopped,signaling,stage_out"
PLUGIN = re.compile(r"^\s*JobContainerType\s*=\s*job_container/tmpfs\s*(#|$)", re.IGNORECASE | re.MULTILINE)


def running() -> list[str] | None:
    """Return the numbers of the jobs that have begun and not ended, None where the controller does not tell."""
    argv = ["squeue", "--noheader", "--all", f"--states={STATES}", "--format=%A"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if done.returncode else sorted({*done.stdout.split()}, key=int)


def decide(configuration: Path, wanted: bool) -> tuple[bool, str]:
    """Return whether to use the plugin, and why that is not what is wanted."""
    try:
        has = bool(PLUGIN.search(configuration.read_text(errors="replace")))
    except FileNotFoundError:  # a cluster that begins
        return wanted, ""
    if has == wanted:
        return wanted, ""
    jobs = running()
    if jobs == []:
        return wanted, ""
    some = ", ".join([*(jobs or [])[:5], *(["..."] if len(jobs or []) > 5 else [])])
    why = f"for jobs that run: {some}" if jobs else "while slurmctld is silent"
    change = "get directories of their own" if wanted else "share the node's directories"
    return has, f"new jobs do not {change} yet, {why}; bootstrap changes it when no job runs"


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
