#!/usr/bin/python
"""Ansible module: what the roles read about a node's system, as Ansible names it."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: system_facts
author: the clusterctl authors
short_description: Read the facts that the roles need
description:
  - Returns some of the facts of M(ansible.builtin.setup), by the same names, for the systems that clusterctl supports.
    C(gather_facts) calls it, so that a node is asked for no more.
attributes:
  check_mode: {support: full}
"""

EXAMPLES = r"""
- name: Read what the roles need
  system_facts:
"""

RETURN = r"""
ansible_facts:
  description:
    - C(distribution) and C(os_family), as Ansible names them, C(distribution_version), of Debian without the point
      release, C(distribution_major_version), C(distribution_release), which is the code name of Debian's and Ubuntu's
      releases, and C(architecture).
    - C(selinux) and C(apparmor), whose C(status) is V(enabled) or V(disabled).
    - C(virtualization_role) is V(guest) in a virtual machine or a container, and V(NA) on bare metal, also on one that
      has guests.
    - C(env) has only C(SUDO_USER), the user who became root, if there is one.
    - C(clusterctl_roles), the names under which roles were applied to the node before, such as V(base). That record
      remains until the node is removed from the cluster.
  type: dict
  returned: always
"""

DISTRIBUTIONS = {
    "almalinux": ("AlmaLinux", "RedHat"),
    "centos": ("CentOS", "RedHat"),
    "debian": ("Debian", "Debian"),
    "rhel": ("RedHat", "RedHat"),
    "rocky": ("Rocky", "RedHat"),
    "ubuntu": ("Ubuntu", "Debian"),
}
"""Ansible's names of a distribution and its family, by ID in os-release: OS_FAMILY_MAP in its distribution.py."""


READ = ("ID", "VERSION_ID", "VERSION_CODENAME")


def distribution(root="/"):
    """Return the facts that os-release(5) below `root` has. Raises ValueError for an unsupported system."""
    text = Path(root, "etc/os-release").read_text(encoding="utf-8", errors="replace")
    found = re.findall(r"""(?m)^(\w+)=(["']?)([^"'\n]*)\2\s*$""", text)
    release = {name: value.strip() for name, _, value in found if name in READ}
    if release.get("ID") not in DISTRIBUTIONS:
        expected = ", ".join(DISTRIBUTIONS)
        raise ValueError(f"/etc/os-release: system {release.get('ID')!r} is not supported; expected one of {expected}")
    name, family = DISTRIBUTIONS[release["ID"]]
    # Debian's next release has no number yet.
    version = release.get("VERSION_ID") or Path(root, "etc/debian_version").read_text(encoding="utf-8").strip()
    return {
        "distribution": name,
        "distribution_major_version": version.split(".")[0],
        "distribution_release": release.get("VERSION_CODENAME", "NA"),
        "distribution_version": version,
        "os_family": family,
    }


def selinux(mounted="/sys/fs/selinux", configuration="/etc/selinux/config"):
    """Return whether SELinux is enabled: its file system is there, which a container may see read-only, and its setup.

    As libselinux's is_selinux_enabled(3).
    """
    is_there = Path(mounted, "enforce").exists() and Path(configuration).exists()
    enabled = is_there and not os.statvfs(mounted).f_flag & os.ST_RDONLY
    return {"status": "enabled" if enabled else "disabled"}


def virtualization_role():
    """Return the fact; none if it cannot be found out."""
    program = shutil.which("systemd-detect-virt")
    try:
        found = program and subprocess.run([program], stdout=subprocess.PIPE, check=False, timeout=30).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return {}
    return {"virtualization_role": "NA" if found == b"none" else "guest"} if found else {}


def roles(root="/"):
    """Return the names of what node_state has recorded on the node, sorted."""
    return sorted(path.stem for path in Path(root, "var/lib/clusterctl/state").glob("*.json"))


def facts():
    """Return the facts. Raises ValueError for an unsupported system."""
    apparmor = Path("/sys/kernel/security/apparmor").exists()
    return {
        **distribution(),
        **virtualization_role(),
        "apparmor": {"status": "enabled" if apparmor else "disabled"},
        "architecture": platform.machine(),
        "clusterctl_roles": roles(),
        "env": {name: os.environ[name] for name in ("SUDO_USER",) if name in os.environ},
        "selinux": selinux(),
    }


def main():
    """Ansible's entry point."""
    module = AnsibleModule(argument_spec={}, supports_check_mode=True)
    try:
        found = facts()
    except (OSError, ValueError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, ansible_facts=found)


if __name__ == "__main__":
    main()
