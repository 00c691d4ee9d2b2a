"""kubeadm on nodes."""

from __future__ import annotations

import shutil

from ansible.module_utils.node_state.tools import run


def installed():
    """Return the version of the installed kubeadm, without the v; an empty text if there is none."""
    return run("kubeadm", "version", "--output=short")[1].strip().lstrip("v") if shutil.which("kubeadm") else ""
